//! A flood by one changes nothing for others: what is over a budget is counted exactly, summed up, and hides nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kevtmon_tests::balance::{Balance, stop_and_account_for_refusals, wait_for_balance};
use kevtmon_tests::daemon::{ALL_EVENTS, Daemon, WITHOUT_BUDGETS, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::lock::Exclusive;
use kevtmon_tests::mount::{Mount, Scratch};
use kevtmon_tests::netns::NetnsPath;
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::pod_sandbox::PodSandbox;
use kevtmon_tests::process::{Running, copy_program, hold_by_cwd};
use kevtmon_tests::storm::ipv4;
use kevtmon_tests::unique;
use kevtmon_tests::user_network::{UserNetwork, as_user};
use nix::errno::Errno;
use nix::sys::signal::Signal;

/// An unprivileged user of this test.
const USER: u32 = 64_123;
const FLOOD: u32 = 3000;

/// Waits until every deletion of a neighbor entry is accounted for.
fn balance(daemon: &Daemon) -> Balance {
    wait_for_balance(daemon, Balance::of_deletions)
}

fn is_summary(event: &Event, lane: &str) -> bool {
    event.kind() == "events.throttled" && event.text("/throttled/lane") == lane
}

/// Waits until the summaries of a lane hold all that was throttled in it, and returns them.
fn summaries(daemon: &Daemon, lane: &str) -> Vec<Event> {
    let told =
        || -> Vec<Event> { daemon.events().into_iter().filter(|event| is_summary(event, lane)).collect() };
    let sum = || told().iter().filter_map(|event| event.number("/throttled/count")).sum::<u64>() as f64;
    let counted = || daemon.metrics().count("kevtmon_events_throttled_total", &[("lane", lane)]);
    eventually!(counted() > 0.0 && (sum() - counted()).abs() < 0.5, "each lane is summed up exactly");
    told()
}

/// How many events the output has discarded: each number is printed, or among those that are told to be not.
fn discarded(events: &[Event]) -> u64 {
    let (mut last, mut discarded) = (0, 0);
    for event in events {
        let is_gap = event.text("/lost/source") == "sink.stdout";
        let count = if is_gap { event.text("/lost/count").parse().expect("a number of events") } else { 1 };
        assert_eq!(event.number("/seq"), Some(last + count), "{event} after number {last}");
        last += count;
        discarded += if is_gap { count } else { 0 };
    }
    discarded
}

/// What a plugin that root executes asks for.
fn cni_call(plugin: &Path, id: &str) {
    let mut plugin = Command::new(plugin);
    plugin.env_clear().env("CNI_COMMAND", "CHECK").env("CNI_CONTAINERID", id).stdin(Stdio::null());
    assert!(plugin.status().expect("a plugin can be executed").success());
}

fn wait_for_calls(daemon: &mut Daemon, ids: &[String]) {
    for id in ids {
        daemon.wait_for("a CNI call of root's", |event| {
            event.kind() == "cni.finished" && event.text("/cni/container_id") == id
        });
    }
}

/// A daemon that knows one directory of plugins, and a plugin there.
fn with_plugin(scratch: &Scratch, config: &str) -> (Daemon, PathBuf) {
    let plugin = scratch.path().join("plugin");
    copy_program(Path::new("/bin/true"), &plugin);
    let config = format!("[cni]\nbin_dirs = [{:?}]\n{config}", scratch.path().to_string_lossy());
    (launch().config(&config).start(), plugin)
}

/// What counts all that the kernel does, or needs a quiet machine.
mod alone {
    use super::*;

    #[test]
    fn a_user_beyond_his_budget_is_counted_exactly_and_hides_no_gateway() {
        let _exclusive = Exclusive::take();
        let pod = Pod::new();
        let (first, second) = (UserNetwork::of(USER), UserNetwork::of(USER));
        let began = Instant::now();
        let mut daemon =
            launch().config(&format!("[hooks]\nuser_rate = 10\nuser_burst = 500\n{ALL_EVENTS}")).start();
        daemon.wait_for_gateway(pod.inum(), GATEWAY);
        for own in [&first, &second, &first] {
            own.netns().churn((0..FLOOD).map(ipv4));
            let ip = pod.delete_gateway();
            daemon.wait_for_deletion_by(ip.pid, pod.inum(), GATEWAY).expect_actor(ip.pid, "ip");
            pod.set_gateway();
        }
        let balance = balance(&daemon);
        assert!(balance.received >= f64::from(3 * FLOOD), "{balance:?}");
        // One budget for all of his namespaces, and what came back of it meanwhile.
        let flooded = [&first, &second].map(|own| own.inum());
        let printed =
            |events: &[Event]| events.iter().filter(|event| event.kind() == "neighbor.deleted").count();
        let accounted = |events: &[Event]| printed(events) as f64 + discarded(events) as f64;
        eventually!(
            accounted(&daemon.events()) >= balance.emitted,
            "what was emitted is printed, or told to be not"
        );
        let events = daemon.events();
        let own = events.iter().filter(|event| flooded.iter().any(|netns| event.is_in(*netns))).count();
        let discarded = discarded(&events);
        assert!(own as u64 + discarded >= 400, "{own} events and {discarded} discarded of {balance:?}");
        let most = 500.0 + 10.0 * began.elapsed().as_secs_f64();
        assert!(own as f64 <= most + 20.0, "{own} events of {balance:?}, at most {most}");
        for event in summaries(&daemon, "owner") {
            event.expect("/throttled/uid", USER);
            event.expect("/throttled/last_pid", std::process::id());
            event.expect("/severity", "notice");
            event.expect_none("/throttled/netns");
            assert!(event.text("/throttled/from") <= event.text("/throttled/to"), "{event}");
        }
        stop_and_account_for_refusals(daemon);
    }

    #[test]
    fn a_flood_from_two_processors_is_summed_up_as_one() {
        /// Longer than the first summary waits, by as much as makes many mistakes.
        const LASTS: Duration = Duration::from_secs(4);
        let _exclusive = Exclusive::take();
        let mounts = [Mount::new(), Mount::new()];
        let _holders = mounts.each_ref().map(|mount| hold_by_cwd(mount.point()));
        let daemon = launch().config("[hooks]\nsource_rate = 1\nsource_burst = 1\n").start();
        let began = Instant::now();
        std::thread::scope(|scope| {
            for mount in &mounts {
                scope.spawn(|| {
                    while began.elapsed() < LASTS {
                        assert_eq!(nix::mount::umount(mount.point()), Err(Errno::EBUSY));
                    }
                });
            }
        });
        let told = summaries(&daemon, "umount");
        assert!(told.len() > 1, "it outlasts the first summary: {told:?}");
        for pair in told.windows(2) {
            // It goes on where the one before ended, unless there was none for a second.
            let pause = pair[1].seconds_of("/throttled/from") - pair[0].seconds_of("/throttled/to");
            assert!(pause.abs() < 1e-3 || pause > 0.999, "{} then {}", pair[0], pair[1]);
        }
        stop_and_account_for_refusals(daemon);
    }

    #[test]
    fn what_a_user_does_beyond_the_budget_of_events_is_summed_up_and_hides_no_gateway() {
        let _exclusive = Exclusive::take();
        let pod = Pod::new();
        let scratch = Scratch::new();
        let entries = |verb: &str| -> String {
            let lladdr = if verb == "add" { " lladdr 02:00:00:00:00:01" } else { "" };
            (0..FLOOD).map(|index| format!("neigh {verb} {} dev eth0{lladdr}\n", ipv4(index))).collect()
        };
        let batch = scratch.path().join("batch");
        std::fs::write(&batch, entries("add") + &entries("del")).expect("a file");
        let began = Instant::now();
        let mut daemon = launch().start();
        daemon.wait_for_gateway(pod.inum(), GATEWAY);

        let script = "ip link add eth0 type bridge && ip addr add 10.76.0.1/8 dev eth0 && ip link set eth0 up && \
                      ip -batch - && exec sleep 1000000";
        let mut command = as_user(USER);
        command.args(["unshare", "-Urn", "sh", "-c", script]).stdout(Stdio::null());
        command.stdin(std::fs::File::open(&batch).expect("a file"));
        let hostile = Running::spawn(&mut command);
        let netns = || NetnsPath::of_process(hostile.pid()).inum();
        let told = || daemon.metrics().count("kevtmon_events_throttled_total", &[("lane", "events")]);
        eventually!(told() > 1000.0, "the user is beyond his budget");
        let ip = pod.delete_gateway();
        daemon.wait_for_deletion_by(ip.pid, pod.inum(), GATEWAY).expect_actor(ip.pid, "ip");

        let balance = balance(&daemon);
        assert!(balance.received > 1000.0, "{balance:?}");
        let events = daemon.events();
        let own = events.iter().filter(|event| event.is_in(netns())).count();
        // His burst, and what came back of it meanwhile.
        let most = 300.0 + 10.0 * began.elapsed().as_secs_f64();
        assert!(own >= 60 && own as f64 <= most, "{own} events of {balance:?}, at most {most}");
        for event in summaries(&daemon, "events") {
            event.expect("/throttled/kind", "neighbor.deleted");
            event.expect("/throttled/uid", USER);
            event.expect("/throttled/netns", netns());
            event.expect("/severity", "notice");
        }
        // What the metrics count is what has happened.
        let deleted = daemon.metrics().sum("kevtmon_neighbor_deletions_total", &[]).unwrap_or_default();
        let metrics = daemon.metrics();
        let emitted = metrics.count("kevtmon_events_total", &[("kind", "neighbor.deleted")]);
        assert!(deleted - emitted > 1000.0, "{deleted} of which {emitted} were told");
        stop_and_account_for_refusals(daemon);
        drop(hostile);
    }

    #[test]
    fn the_gateway_of_a_pod_has_a_lane_of_its_own_beside_what_its_namespace_floods() {
        let _exclusive = Exclusive::take();
        let pod = Pod::new();
        let mut daemon = launch().config("[hooks]\nsource_rate = 1\nsource_burst = 1\n").start();
        daemon.wait_for_gateway(pod.inum(), GATEWAY);
        for _ in 0..10 {
            pod.netns().churn((0..100).map(ipv4));
            let ip = pod.delete_gateway();
            daemon.wait_for_deletion_by(ip.pid, pod.inum(), GATEWAY).expect_actor(ip.pid, "ip");
            pod.set_gateway();
        }
        let balance = balance(&daemon);
        assert!(balance.throttled > 0.0 && balance.received >= 1010.0, "{balance:?}");
        for event in summaries(&daemon, "namespace") {
            event.expect("/throttled/netns", pod.inum());
            event.expect("/target/netns_name", pod.netns_name());
            event.expect("/severity", "warning");
        }
        stop_and_account_for_refusals(daemon);
    }

    #[test]
    fn what_is_done_to_a_gateway_without_end_is_beyond_its_lane_as_any_other_of_its_namespace() {
        const TIMES: usize = 1000;
        let _exclusive = Exclusive::take();
        let pod = Pod::new();
        let daemon = launch().config("[hooks]\nsource_rate = 1\nsource_burst = 1\n").start();
        daemon.wait_for_gateway(pod.inum(), GATEWAY);
        let begun = Instant::now();
        pod.delete_gateway();
        let gateway = GATEWAY.parse().expect("an address");
        pod.netns().churn(std::iter::repeat_n(gateway, TIMES));
        // At once and a second: 64 of the lane, and one of the namespace; some that others cause.
        let allowed = 65.0 * (1.0 + begun.elapsed().as_secs_f64()) + 10.0;
        let sets = wait_for_balance(&daemon, Balance::of_gateway_sets);
        assert!(sets.received >= TIMES as f64 && sets.emitted >= 64.0 && sets.throttled > 0.0, "{sets:?}");
        let balance = balance(&daemon);
        assert!(balance.received >= TIMES as f64, "{balance:?}");
        assert!(
            (64.0..=allowed).contains(&balance.emitted) && balance.throttled > 0.0,
            "{balance:?} {allowed}"
        );
        for event in [summaries(&daemon, "namespace"), summaries(&daemon, "gateway-set")].concat() {
            event.expect("/throttled/netns", pod.inum());
        }
        stop_and_account_for_refusals(daemon);
    }

    #[test]
    fn namespaces_of_other_user_namespaces_of_root_share_one_budget() {
        let _exclusive = Exclusive::take();
        let (first, second) = (UserNetwork::of(0), UserNetwork::of(0));
        let daemon =
            launch().config(&format!("[hooks]\nsource_rate = 1\nsource_burst = 100\n{ALL_EVENTS}")).start();
        for own in [&first, &second] {
            own.netns().churn((0..FLOOD).map(ipv4));
        }
        balance(&daemon);
        let told = summaries(&daemon, "unknown");
        assert!(told.iter().all(|event| !event.has("/throttled/uid") && !event.has("/target")), "{told:?}");
        let events = daemon.events();
        let of = |own: &UserNetwork| events.iter().filter(|event| event.is_in(own.inum())).count();
        assert!(of(&first) >= 90 && of(&second) < of(&first), "{} and {}", of(&first), of(&second));
        stop_and_account_for_refusals(daemon);
    }

    #[test]
    fn a_namespace_of_a_user_with_too_much_in_it_is_left_out_and_that_is_told() {
        // Several that are left out at a time are told as one.
        let _exclusive = Exclusive::take();
        let (large, small) = (UserNetwork::of(USER), UserNetwork::of(USER));
        large.netns().network(|network| {
            (0..2000).try_for_each(|number| network.add_address("eth0", ipv4(number), 32))
        });
        let mut daemon = launch().start();
        let told = daemon.wait_for("what is left out", |event| {
            is_summary(event, "namespaces") && event.number("/throttled/netns") == Some(large.inum())
        });
        told.expect("/severity", "notice");
        assert!(daemon.metrics().count("kevtmon_namespaces_refused_total", &[]) >= 1.0);
        let state = daemon.ask(&["state", "--json"]).stdout;
        let is_known = |own: &UserNetwork| state.contains(&own.inum().to_string());
        assert!(!is_known(&large) && is_known(&small), "{state}");
        stop_and_account_for_refusals(daemon);
    }

    #[test]
    fn a_user_with_more_namespaces_than_are_kept_hides_no_pod() {
        /// More than are kept of one user.
        const NUMBER: usize = 40;
        const KEPT: usize = 32;
        let _exclusive = Exclusive::take();
        let before = Pod::new();
        let sandbox = PodSandbox::of(&before);
        let crowd: Vec<UserNetwork> = (0..NUMBER).map(|_| UserNetwork::of(USER)).collect();
        let mut daemon = launch().start();
        let is_refused = || daemon.metrics().count("kevtmon_namespaces_refused_total", &[]) > 0.0;
        eventually!(is_refused(), "there are too many");
        crowd.iter().for_each(|own| own.netns().churn((0..FLOOD / 10).map(ipv4)));
        let after = Pod::new();
        let later = PodSandbox::of(&after);
        for (pod, sandbox) in [(&before, &sandbox), (&after, &later)] {
            daemon.wait_for_gateway(pod.inum(), GATEWAY);
            let ip = pod.delete_gateway();
            daemon.wait_for_deletion_by(ip.pid, pod.inum(), GATEWAY).expect_actor(ip.pid, "ip");
            daemon.wait_for_incident(sandbox.id()).expect_actor(ip.pid, "ip");
        }
        let told = daemon.wait_for("what is left out", |event| is_summary(event, "namespaces"));
        told.expect("/severity", "notice");
        let state = daemon.ask(&["state", "--json"]).stdout;
        let known = crowd.iter().filter(|own| state.contains(&own.inum().to_string())).count();
        assert!((1..=KEPT).contains(&known), "{known} of {NUMBER} are known");
        balance(&daemon);
        stop_and_account_for_refusals(daemon);
    }

    #[test]
    fn a_containers_network_that_grows_without_end_is_left_out_and_that_is_told() {
        const ADDRESSES: u32 = 1500;
        let _exclusive = Exclusive::take();
        let pod = Pod::new();
        let _sandbox = PodSandbox::of(&pod);
        let mut daemon = launch().start();
        daemon.wait_for_gateway(pod.inum(), GATEWAY);
        pod.netns().network(|network| {
            (0..ADDRESSES).try_for_each(|number| network.add_address("eth0", ipv4(number), 32))
        });
        let told = daemon.wait_for("what is left out", |event| {
            is_summary(event, "namespaces") && event.number("/throttled/netns") == Some(pod.inum())
        });
        told.expect("/severity", "warning");
        assert!(told.has("/target/container/id"), "{told}");
        let state: serde_json::Value =
            serde_json::from_str(&daemon.ask(&["state", "--json"]).stdout).expect("an object");
        let namespaces = state["namespaces"].as_array().expect("a list");
        let of_pod =
            namespaces.iter().find(|namespace| namespace["netns"] == pod.inum()).expect("it is known");
        let kept = of_pod["addresses"].as_array().expect("a list").len();
        assert!(kept <= 1024, "{kept} addresses");
        stop_and_account_for_refusals(daemon);
    }

    #[test]
    fn the_refused_unmounts_of_a_user_hide_none_of_roots() {
        const ATTEMPTS: u32 = 600;
        let _exclusive = Exclusive::take();
        let scratch = Scratch::new();
        let mut daemon = launch().config("[hooks]\nuser_rate = 20\nuser_burst = 100\n").start();
        let mount = Mount::new();
        let holder = hold_by_cwd(mount.point());
        let script = format!(
            "mount -t tmpfs none {0} && cd {0} && i=0 && \
             while [ $i -lt {ATTEMPTS} ]; do umount {0}; i=$((i+1)); done 2>/dev/null",
            scratch.path().display()
        );
        let mut command = as_user(USER);
        command.args(["unshare", "-Urm", "sh", "-c", &script]).stdout(Stdio::null());
        let mut hostile = Running::spawn(&mut command);
        let throttled = || daemon.metrics().count("kevtmon_events_throttled_total", &[("lane", "umount")]);
        eventually!(throttled() > 0.0, "the user is beyond his budget");
        for _ in 0..16 {
            mount.umount_refused();
        }
        eventually!(hostile.ended().is_some(), "the attempts end");
        let path = mount.point().to_string_lossy().into_owned();
        let all = daemon.wait_for("the sixteenth attempt of root", |event| {
            event.kind() == "mount.busy"
                && event.text("/mount/path") == path
                && event.number("/mount/attempts") == Some(16)
        });
        all.expect("/actor/uid", 0);
        let own = summaries(&daemon, "umount");
        let own = own.iter().filter(|event| event.number("/throttled/uid") == Some(USER.into()));
        let count: u64 = own.filter_map(|event| event.number("/throttled/count")).sum();
        assert!(count > 0 && count <= u64::from(ATTEMPTS), "{count}");
        stop_and_account_for_refusals(daemon);
        drop(holder);
    }

    #[test]
    fn a_user_who_executes_plugins_at_full_speed_is_counted_exactly_and_hides_nothing() {
        const CALLS: u32 = 2000;
        let _exclusive = Exclusive::take();
        let (pod, scratch) = (Pod::new(), Scratch::new());
        let (mut daemon, plugin) = with_plugin(&scratch, "");
        daemon.wait_for_gateway(pod.inum(), GATEWAY);
        let ignored = |daemon: &Daemon| daemon.metrics().count("kevtmon_kernel_cni_ignored_total", &[]);
        let before = ignored(&daemon);
        let script = format!(
            "i=0; while [ $i -lt {CALLS} ]; do CNI_COMMAND=DEL CNI_CONTAINERID={} {}; i=$((i + 1)); done",
            unique::container_id(),
            plugin.display()
        );
        let mut user = as_user(USER);
        user.args(["sh", "-c", &script]);
        let mut user = Running::spawn(&mut user);
        let ids = [(); 5].map(|()| unique::container_id());
        for id in &ids {
            cni_call(&plugin, id);
            let ip = pod.delete_gateway();
            daemon.wait_for_deletion_by(ip.pid, pod.inum(), GATEWAY).expect_actor(ip.pid, "ip");
            pod.set_gateway();
        }
        assert!(user.child().wait().expect("a child can be waited for").success());
        wait_for_calls(&mut daemon, &ids);
        eventually!(ignored(&daemon) - before >= f64::from(CALLS), "each is counted");
        assert_eq!(ignored(&daemon) - before, f64::from(CALLS));
        let calls = daemon.events().iter().filter(|event| event.kind() == "cni.finished").count();
        assert_eq!(calls, ids.len());
        assert_eq!(daemon.metrics().count("kevtmon_events_lost_total", &[]), 0.0);
        stop_and_account_for_refusals(daemon);
    }

    #[test]
    fn what_a_user_fills_of_the_ring_leaves_room_for_cni_calls_and_unmounts() {
        let _exclusive = Exclusive::take();
        let scratch = Scratch::new();
        let own = UserNetwork::of(USER);
        let mount = Mount::new();
        let holder = hold_by_cwd(mount.point());
        let (mut daemon, plugin) = with_plugin(&scratch, WITHOUT_BUDGETS);
        daemon.signal(Signal::SIGSTOP);
        own.netns().churn((0..2 * FLOOD).map(ipv4));
        let id = unique::container_id();
        cni_call(&plugin, &id);
        mount.umount_refused();
        daemon.signal(Signal::SIGCONT);
        wait_for_calls(&mut daemon, &[id]);
        daemon.wait_for("the refused unmount", |event| {
            event.kind() == "mount.busy" && event.text("/mount/path") == mount.point().to_string_lossy()
        });
        drop(holder);
        let balance = balance(&daemon);
        assert!(balance.lost > 0.0, "the user has no room left: {balance:?}");
        for reason in ["neighbor-ring-full", "mount-ring-full"] {
            let lost = daemon.metrics().count("kevtmon_events_lost_total", &[("reason", reason)]);
            assert_eq!(lost, 0.0, "nobody else lost any: {reason}");
        }
        stop_and_account_for_refusals(daemon);
    }

    #[test]
    fn what_others_fill_of_the_ring_leaves_room_for_the_gateway_of_a_pod() {
        let _exclusive = Exclusive::take();
        let own = UserNetwork::of(USER);
        let (pod, other) = (Pod::new(), Pod::new());
        let mut daemon = launch().config(WITHOUT_BUDGETS).start();
        daemon.wait_for_gateway(pod.inum(), GATEWAY);
        daemon.signal(Signal::SIGSTOP);
        for netns in [own.netns(), other.netns()] {
            netns.churn((0..2 * FLOOD).map(ipv4));
        }
        let ip = pod.delete_gateway();
        daemon.signal(Signal::SIGCONT);
        daemon.wait_for_deletion_by(ip.pid, pod.inum(), GATEWAY).expect_actor(ip.pid, "ip");
        balance(&daemon);
        for reason in ["neighbor-users-ring-full", "neighbor-ring-full"] {
            let lost = daemon.metrics().count("kevtmon_events_lost_total", &[("reason", reason)]);
            assert!(lost > 0.0, "neither the user nor the other pod has room left: {reason}");
        }
        stop_and_account_for_refusals(daemon);
    }
}
