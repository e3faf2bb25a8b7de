//! What a flood displaces: nothing that others did. And every event is delivered or accounted for.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use kevtmon_tests::actor::Actor;
use kevtmon_tests::balance::stop_and_account_for_refusals;
use kevtmon_tests::cgroup::{Cgroup, Hierarchy};
use kevtmon_tests::daemon::{Daemon, WITHOUT_BUDGETS, kubelet_roots, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::fake_dockerd::FakeDockerd;
use kevtmon_tests::lock::Exclusive;
use kevtmon_tests::mount::{Mount, Scratch};
use kevtmon_tests::netns::NetnsPath;
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::pod_sandbox::PodSandbox;
use kevtmon_tests::process::{Running, comm, hold_by_cwd, idle};
use kevtmon_tests::storm::ipv4;
use kevtmon_tests::unique;

/// Times that each pod lost its gateway before the flood.
const LOSSES: usize = 10;
/// Neighbor entries that come and go at once in a flood.
const ROUND: u32 = 500;
/// Events of which a store of 8 MiB can keep no half.
const FLOOD: f64 = 8_000.0;

/// A process in namespaces of its own that nobody in particular has made.
fn user() -> Running {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=64230", "--regid=64230", "--clear-groups"]);
    command.args(["unshare", "-Urn", "sleep", "1000000"]);
    let process = Running::spawn(command.stdin(Stdio::null()));
    eventually!(comm(process.pid()).as_deref() == Some("sleep"), "it has namespaces of its own");
    process
}

/// Events that the store was given and has taken.
fn stored(daemon: &Daemon) -> f64 {
    let metrics = daemon.metrics();
    let discarded = metrics.sum("kevtmon_events_discarded_total", &[("sink", "store")]);
    metrics.sum("kevtmon_events_total", &[]).unwrap_or_default() - discarded.unwrap_or_default()
}

/// Refuses unmounts of a mount of his own to an unprivileged user, each of a program of another name, again and again.
fn unmounts(scratch: &Scratch) -> Running {
    let script = "mount -t tmpfs s \"$1\" && cd \"$1\" && cp /bin/umount . && i=0\n\
        while :; do ln -s umount u$i; ./u$i \"$1\" 2>/dev/null; rm u$i; i=$((i + 1)); done";
    let mut command = Command::new("setpriv");
    command.args(["--reuid=64230", "--regid=64230", "--clear-groups", "--pdeathsig=KILL"]);
    command.args(["unshare", "-Urm", "--propagation", "private", "sh", "-c", script, "sh"]);
    Running::spawn(command.arg(scratch.path()).stdin(Stdio::null()))
}

/// What a node has to tell of a day: pods whose gateways are lost and put back, volumes that are busy for some time,
/// containers that come and go. The gateway of the last pod stays lost.
fn day(daemon: &mut Daemon, docker: &FakeDockerd, pods: &[(Pod, PodSandbox)], volume: &Mount) -> Event {
    let process = Running::spawn(&mut idle());
    for nth in 0..LOSSES {
        for (pod, sandbox) in pods {
            let ip = pod.delete_gateway();
            daemon.wait_for_deletion_by(ip.pid, pod.inum(), GATEWAY);
            let is_last = nth + 1 == LOSSES && pods.last().is_some_and(|(_, last)| last.id() == sandbox.id());
            if !is_last {
                pod.set_gateway();
            }
        }
        let holder = hold_by_cwd(volume.point());
        volume.umount_refused();
        drop(holder);
        let id = unique::container_id();
        docker.start_container(&id, process.pid());
        docker.remove_container(&id);
        daemon.wait_for("the end of a container", |event| {
            event.kind() == "container.removed" && event.text("/target/container/id") == id
        });
    }
    let (_, last) = pods.last().expect("there are pods");
    let is_over = |(_, sandbox): &(Pod, PodSandbox)| {
        let events = daemon.events();
        let mut own = events.iter().rev().filter(|event| event.text("/target/container/id") == sandbox.id());
        own.find(|event| event.kind().starts_with("incident."))
            .is_some_and(|event| event.has("/incident/closed"))
    };
    let others = &pods[..pods.len() - 1];
    eventually!(others.iter().all(is_over), "the other incidents are closed");
    daemon.wait_for_incident(last.id())
}

#[test]
fn users_without_end_use_up_no_budget_of_a_service() {
    /// More than the sources that the programs tell apart, by more than what the rest have together.
    const USERS: u32 = 1_100;
    let (of_users, of_service) = (Mount::new(), Mount::new());
    let _holders = [&of_users, &of_service].map(|mount| hold_by_cwd(mount.point()));
    let mut daemon = launch().config("[hooks]\nuser_rate = 1\nuser_burst = 20\n").start();
    let mut users = Actor::start();
    for uid in 100_000..100_000 + USERS {
        users.act(&format!("uid {uid} {uid}"));
        users.act(&format!("refused {}", of_users.point().display()));
    }
    let mut service = Actor::start();
    let groups = Hierarchy::all().into_iter().map(Cgroup::of_service).collect::<Vec<_>>();
    groups.iter().for_each(|group| group.take(service.pid()));
    service.act(&format!("refused {}", of_service.point().display()));
    daemon.wait_for("what the service tried", |event| {
        event.kind() == "mount.busy" && event.number("/actor/pid") == Some(service.pid().into())
    });
    let throttled = daemon.wait_for("what the users tried", |event| {
        event.kind() == "events.throttled" && event.text("/throttled/lane") == "unknown"
    });
    assert!(!throttled.has("/throttled/uid"), "{throttled}");
    stop_and_account_for_refusals(daemon);
}

/// What counts all that the kernel does, or needs a quiet machine.
mod alone {
    use super::*;

    #[test]
    fn a_flood_of_a_user_displaces_nothing_of_what_a_node_had_to_tell_before() {
        // Other tests would see the flood, and be counted.
        let _exclusive = Exclusive::take();
        let (volume, user, docker) = (Mount::volume(), user(), FakeDockerd::start());
        let flooded = Pod::at(NetnsPath::of_process(user.pid()));
        let pods: Vec<(Pod, PodSandbox)> = (0..4)
            .map(|_| {
                let pod = Pod::new();
                let sandbox = PodSandbox::of(&pod);
                (pod, sandbox)
            })
            .collect();
        let config =
            format!("{WITHOUT_BUDGETS}[store]\nmax_mib = 8\n{}", kubelet_roots(volume.kubelet_root()));
        let mut daemon = launch().config(&config).joining(docker.runtime()).start();
        pods.iter().for_each(|(pod, _)| daemon.wait_for_gateway(pod.inum(), GATEWAY));
        let opened = day(&mut daemon, &docker, &pods, &volume);
        daemon.fence(&pods[0].0);
        // Of the refused unmounts of one caller the first, second, fourth and eighth are told, once their holders were looked for.
        let refusals = || daemon.events().iter().filter(|event| event.kind() == "mount.busy").count();
        eventually!(refusals() >= 4, "four refusals are told");
        let before = daemon.events();
        for (kind, least) in [("neighbor.deleted", LOSSES), ("container.removed", LOSSES), ("mount.busy", 4)]
        {
            let count = before.iter().filter(|event| event.kind() == kind).count();
            assert!(count >= least, "{count} of {kind}");
        }

        let scratch = Scratch::new();
        std::fs::set_permissions(scratch.path(), PermissionsExt::from_mode(0o777))
            .expect("a mode can be set");
        let unmounts = unmounts(&scratch);
        let goal = stored(&daemon) + FLOOD;
        eventually!(
            {
                flooded.netns().churn((0..ROUND).map(ipv4));
                stored(&daemon) >= goal
            },
            "the flood is stored"
        );
        drop(unmounts);
        let expect_before = |daemon: &Daemon| {
            let kept = daemon.find(&["events", "--since", "1h"]);
            let kept: BTreeMap<_, _> = kept.iter().map(|event| (event.number("/seq"), event)).collect();
            for event in &before {
                let kept =
                    kept.get(&event.number("/seq")).unwrap_or_else(|| panic!("it is displaced: {event}"));
                assert_eq!(kept.to_string(), event.to_string());
            }
            let open = daemon.find(&["incidents"]);
            let id = opened.text("/incident/id");
            assert!(open.iter().any(|incident| incident.text("/id") == id), "{id} is open: {open:?}");
            // With what it rests on.
            let story = daemon.find(&["why", id]).remove(0);
            let is_evidence = |step: &serde_json::Value| step["evidence_of"][0] == id;
            assert!(story.list("/steps").iter().any(is_evidence), "{story}");
            for (_, sandbox) in &pods {
                let story = daemon.find(&["why", sandbox.uid()]).remove(0);
                assert!(!story.list("/steps").is_empty() && !story.list("/incidents").is_empty(), "{story}");
            }
        };
        expect_before(&daemon);
        stop_and_account_for_refusals(&mut daemon);
        expect_before(&daemon);
        let kept = daemon.find(&["events", "--since", "1h"]);
        let numbers: BTreeSet<_> = kept.iter().map(|event| event.number("/seq")).collect();
        let is_his = |event: &&Event| {
            event.is_in(flooded.inum())
                || event.number("/actor/uid") == Some(64_230)
                || event.text("/actor/userns") == "other"
                // How much of it the kernel could not deliver.
                || event.text("/lost/reason").ends_with("-users-ring-full")
        };
        let (his, of_others): (Vec<Event>, Vec<Event>) =
            daemon.events().into_iter().partition(|event| is_his(&event));
        let displaced = |events: &[Event]| {
            let gone = events.iter().filter(|event| !numbers.contains(&event.number("/seq")));
            gone.cloned().collect::<Vec<_>>()
        };
        // What an output could not take may have been kept.
        let of_others: Vec<Event> =
            of_others.into_iter().filter(|event| !event.text("/lost/source").starts_with("sink.")).collect();
        assert!(displaced(&of_others).is_empty(), "{:#?}", displaced(&of_others));
        let gone = displaced(&his).len();
        assert!(gone > 1000 && gone < his.len(), "{gone} of {} of the flood are displaced", his.len());
    }
}
