//! What an actor can change between two of its acts is that of each act: namespaces, user, control group.

use std::collections::BTreeSet;

use kevtmon_tests::actor::Actor;
use kevtmon_tests::cgroup::{Cgroup, Hierarchy};
use kevtmon_tests::daemon::{Daemon, Launch, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::netns::NetnsPath;
use kevtmon_tests::network::{NeighbourState, on_host};
use kevtmon_tests::pod::Pod;
use kevtmon_tests::pod_sandbox::uuid;
use kevtmon_tests::process::attempt;
use kevtmon_tests::random::Random;
use kevtmon_tests::unique;
use serde_json::Value;

/// What is true of an actor at one moment, as /proc shows it.
#[derive(Debug, PartialEq)]
struct Truth {
    netns: u64,
    mntns: u64,
    uid: u64,
    euid: Option<u64>,
    userns: Option<String>,
    cgroup: String,
    container: Option<String>,
    comm: String,
}

/// The user namespace of the node.
const INITIAL_USERNS: u64 = 4_026_531_837;

impl Truth {
    fn of(actor: &Actor) -> Self {
        let (uid, euid) = actor.uids();
        let paths = Hierarchy::all().into_iter().map(|hierarchy| hierarchy.of_process(actor.pid()));
        let paths = paths.collect::<Vec<_>>();
        let container = |path: &String| {
            let id = path.trim_start_matches('/');
            (id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| id.to_owned())
        };
        // The first that names a container, else the first that is not the root.
        let named = paths.iter().find(|path| container(path).is_some());
        let told = named.or_else(|| paths.iter().find(|path| *path != "/"));
        Self {
            netns: actor.namespace("net"),
            mntns: actor.namespace("mnt"),
            uid,
            euid: (euid != uid).then_some(euid),
            userns: (actor.namespace("user") != INITIAL_USERNS).then(|| "other".to_owned()),
            cgroup: told.map_or_else(|| "/".to_owned(), Clone::clone),
            container: named.and_then(container),
            comm: "actor".to_owned(),
        }
    }

    fn told(event: &Event) -> Self {
        let text = |pointer| event.get(pointer).and_then(Value::as_str).map(str::to_owned);
        let number = |pointer| event.number(pointer).unwrap_or_default();
        Self {
            netns: number("/actor/netns"),
            mntns: number("/actor/mntns"),
            uid: event.number("/actor/uid").unwrap_or(u64::MAX),
            euid: event.number("/actor/euid"),
            userns: text("/actor/userns"),
            cgroup: text("/actor/cgroup").unwrap_or_default(),
            container: text("/actor/container/id"),
            comm: text("/actor/comm").unwrap_or_default(),
        }
    }
}

/// Deletes an entry of its own in the namespace it is in; what was true then, and the entry's address.
fn delete_one(actor: &mut Actor) -> (Truth, String) {
    let address = unique::address(30);
    let netns = NetnsPath::of_process(actor.pid());
    netns.set_neighbor("eth0", &address, "02:00:00:00:00:01", NeighbourState::Permanent);
    let truth = Truth::of(actor);
    actor.act(&format!("delete eth0 {address}"));
    (truth, address)
}

fn event_of(daemon: &mut Daemon, actor: &Actor, address: &str) -> Event {
    let event = daemon.wait_for(&format!("the deletion of {address}"), |event| {
        event.kind() == "neighbor.deleted" && event.text("/neighbor/address") == address
    });
    event.expect_actor(actor.pid(), "actor");
    event
}

/// The event of a deletion, checked against the truth.
fn deletion(daemon: &mut Daemon, actor: &mut Actor) -> Event {
    let (truth, address) = delete_one(actor);
    let event = event_of(daemon, actor, &address);
    assert_eq!(Truth::told(&event), truth, "{event}");
    event
}

fn in_pod(pod: &Pod) -> String {
    format!("netns {}", pod.netns().path().display())
}

#[test]
fn a_process_that_is_moved_into_a_container_is_reported_as_its() {
    let pod = Pod::new();
    let containers =
        Hierarchy::all().into_iter().map(|hierarchy| (hierarchy, Cgroup::of_container(hierarchy)));
    let containers = containers.collect::<Vec<_>>();
    let mut daemon = launch().start();
    for (hierarchy, container) in containers {
        let mut actor = Actor::start();
        actor.act(&in_pod(&pod));
        let before = deletion(&mut daemon, &mut actor);
        before.expect("/actor/join", "host");
        before.expect_none("/actor/container");
        container.take(actor.pid());
        let within = deletion(&mut daemon, &mut actor);
        within.expect("/actor/container/id", container.name());
        within.expect("/actor/cgroup", container.path());
        within.expect("/actor/join", "ok");
        Cgroup::release(hierarchy, actor.pid());
        deletion(&mut daemon, &mut actor).expect_none("/actor/container");
    }
}

#[test]
fn a_container_whose_control_group_has_a_long_name_is_known() {
    let pod = Pod::new();
    let mut daemon = launch().start();
    for hierarchy in Hierarchy::all() {
        let (uid, id) = (uuid(), unique::container_id());
        let group = Cgroup::of_slice(hierarchy, &uid, &id);
        let mut actor = Actor::start();
        actor.act(&in_pod(&pod));
        group.take(actor.pid());
        let (_, address) = delete_one(&mut actor);
        let event = event_of(&mut daemon, &actor, &address);
        event.expect("/actor/cgroup", group.path());
        event.expect("/actor/container/id", id);
        event.expect("/actor/pod/uid", uid);
    }
}

/// A link in the namespaces that an actor has just made for itself.
fn give_link(actor: &Actor) {
    let name = unique::name("kvu");
    let netns = NetnsPath::of_process(actor.pid());
    on_host(|network| network.add_veth(&name, None, "eth0", netns.path()));
    netns.network(|network| network.set_up("eth0", true));
}

#[test]
fn a_process_in_another_user_namespace_is_marked_and_not_called_by_its_name() {
    let mut daemon = launch().start();
    let scratch = kevtmon_tests::mount::Scratch::without_mounts();
    let program = scratch.path().join("kubelet");
    kevtmon_tests::process::run(&format!(
        "cp {} {}",
        kevtmon_tests::actor::program().display(),
        program.display()
    ));
    let mut actor = Actor::run(&program);
    actor.act("uid 1000 1000");
    actor.act("unshare user");
    give_link(&actor);
    let (truth, address) = delete_one(&mut actor);
    let event = daemon.wait_for("the deletion", |event| event.text("/neighbor/address") == address);
    assert_eq!(Truth::told(&event), Truth { comm: "kubelet".to_owned(), ..truth }, "{event}");
    event.expect("/actor/userns", "other");
    event.expect("/actor/uid", 1000);
    assert!(!event.text("/message").contains("kubelet"), "{event}");
    for word in ["another user namespace", "uid 1000", &format!("pid {}", actor.pid())] {
        assert!(event.text("/message").contains(word), "{word} in {event}");
    }
}

/// In control groups, and a namespace of them, of its own, as in a container.
fn contained(groups: &[Cgroup]) -> Launch {
    let enter = groups.iter().map(|group| format!("echo $$ > '{}'; ", group.procs().display()));
    let script = format!("{}exec unshare -C \"$@\"", enter.collect::<String>());
    launch().through(&["sh", "-c", &script, "sh"])
}

#[test]
fn a_user_with_control_groups_of_his_own_is_no_container_and_no_pod() {
    const POD: &str = "kubepods-pod5c948341_c030_4996_b888_f032577d97b0.slice";
    for is_contained in [false, true] {
        // They are removed after the daemon that is in them.
        let own: Vec<Cgroup> = Hierarchy::all().into_iter().map(Cgroup::new).collect();
        let mut daemon = if is_contained { contained(&own) } else { launch() }.start();
        let user_in = |hierarchy| {
            let container = unique::container_id();
            let scope = format!("cri-containerd-{container}.scope");
            let group = Cgroup::new(hierarchy).delegated(1000, &["kubepods.slice", POD, &scope]);
            let mut actor = Actor::start();
            group.take(actor.pid());
            actor.act("uid 1000 1000");
            actor.act("unshare user");
            give_link(&actor);
            let netns = NetnsPath::of_process(actor.pid());
            netns.network(|network| network.add_address("eth0", [10, 7, 0, 2].into(), 24));
            netns.network(|network| network.add_gateway("eth0", [10, 7, 0, 1].into()));
            netns.set_neighbor("eth0", "10.7.0.1", "02:00:00:00:00:01", NeighbourState::Permanent);
            daemon.wait_for_gateway(netns.inum(), "10.7.0.1");
            actor.act("delete eth0 10.7.0.1");
            (actor, group, netns)
        };
        let users: Vec<_> = Hierarchy::all().into_iter().map(user_in).collect();
        for (actor, group, netns) in &users {
            let deleted = daemon.wait_for_deletion_by(actor.pid(), netns.inum(), "10.7.0.1");
            let opened = daemon.wait_for("the incident", |event| {
                event.is_incident("incident.opened", "gateway-neighbor-lost") && event.is_in(netns.inum())
            });
            for event in [deleted, opened] {
                event.expect("/target/userns", "other");
                event.expect("/severity", "notice");
                let delegated = group.path().replacen("/kubepods", "//kubepods", 1);
                event.expect("/actor/cgroup", delegated);
                for absent in
                    ["/actor/container", "/actor/pod", "/actor/unit", "/target/container", "/target/pod"]
                {
                    assert!(!event.has(absent), "{absent} of {event}");
                }
                assert!(!event.text("/message").contains("5c948341"), "{event}");
            }
        }
    }
}

#[test]
fn a_process_that_acts_again_is_known_however_many_acted_once_in_between() {
    // More than the daemon remembers.
    const OTHERS: u32 = 1_500;
    let pod = Pod::new();
    let mut daemon = launch().start();
    let mut actor = Actor::start();
    actor.act(&in_pod(&pod));
    for _ in 0..2 {
        deletion(&mut daemon, &mut actor);
    }
    let one_each = format!(
        "i=0; while [ $i -lt {OTHERS} ]; do echo \"neigh add 10.77.$((i / 250)).$((i % 250 + 1)) \
         lladdr 02:00:00:00:00:01 nud permanent dev eth0\"; i=$((i + 1)); done | ip -batch -; \
         i=0; while [ $i -lt {OTHERS} ]; do \
         ip neigh del 10.77.$((i / 250)).$((i % 250 + 1)) dev eth0; i=$((i + 1)); done"
    );
    let net = format!("--net={}", pod.netns().path().display());
    let _ = attempt(&["nsenter", &net, "sh", "-c", &one_each]).succeeded("1,500 processes");
    let event = deletion(&mut daemon, &mut actor);
    event.expect("/actor/exe", kevtmon_tests::actor::program().to_string_lossy().into_owned());
    assert!(!event.list("/actor/ancestors").is_empty(), "{event}");
}

/// Changes one thing at random, or nothing.
fn change(random: &mut Random, actor: &mut Actor, pods: &[Pod], cgroups: &[(Hierarchy, Vec<Cgroup>)]) {
    let own_userns = actor.namespace("user") != INITIAL_USERNS;
    match random.below(9) {
        0..3 if !own_userns => actor.act(&in_pod(random.pick(pods))),
        3 | 4 if !own_userns => {
            let ids = [0, 1000, 1001, 65_534];
            actor.act(&format!("uid {} {}", random.pick(&ids), random.pick(&ids)));
        }
        5 | 6 => {
            let (hierarchy, groups) = random.pick(cgroups);
            match random.below(groups.len() + 1) {
                0 => Cgroup::release(*hierarchy, actor.pid()),
                which => groups[which - 1].take(actor.pid()),
            }
        }
        7 => actor.act("unshare mnt"),
        8 if !own_userns && random.below(4) == 0 => {
            actor.act("unshare user");
            give_link(actor);
        }
        _ => {}
    }
}

#[test]
fn every_act_of_processes_that_change_at_random_is_reported_as_it_was() {
    let mut random = Random::new();
    let pods = [Pod::new(), Pod::new(), Pod::new()];
    let cgroups = Hierarchy::all().into_iter().map(|hierarchy| {
        (
            hierarchy,
            vec![Cgroup::new(hierarchy), Cgroup::of_container(hierarchy), Cgroup::of_container(hierarchy)],
        )
    });
    let cgroups = cgroups.collect::<Vec<_>>();
    let mut daemon = launch().start();
    let mut actors = [Actor::start(), Actor::start(), Actor::start(), Actor::start()];
    actors.iter_mut().for_each(|actor| actor.act(&in_pod(&pods[0])));
    let mut acts = Vec::new();
    for _ in 0..120 {
        let which = random.below(actors.len());
        change(&mut random, &mut actors[which], &pods, &cgroups);
        let (truth, address) = delete_one(&mut actors[which]);
        acts.push((which, truth, address));
    }
    for (which, truth, address) in &acts {
        let event = event_of(&mut daemon, &actors[*which], address);
        assert_eq!(Truth::told(&event), *truth, "{event}");
    }
    // The changes took place: a test in which nothing varies proves nothing.
    let varied = acts.iter().map(|(_, truth, _)| format!("{truth:?}")).collect::<BTreeSet<_>>();
    assert!(varied.len() > 20, "{} different actors", varied.len());
}

#[test]
fn a_thread_is_told_by_the_name_of_its_program() {
    let pod = Pod::new();
    let mut daemon = launch().start();
    let mut actor = Actor::start();
    let address = unique::address(31);
    pod.set_neighbor(&address, "02:00:00:00:00:01", NeighbourState::Permanent);
    actor.act(&format!("netns {}", pod.netns().path().display()));
    actor.act(&format!("thread kubelet delete eth0 {address}"));
    let event = daemon.wait_for_deletion_by(actor.pid(), pod.inum(), &address);
    event.expect("/actor/comm", "actor");
    assert_ne!(
        event.number("/actor/tid"),
        Some(actor.pid().into()),
        "a thread other than the first: {event}"
    );
    let by = format!(" by actor (pid {})", actor.pid());
    assert!(event.text("/message").contains(&by), "{event}");
}
