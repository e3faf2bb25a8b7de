//! One who can be many has the budget of one: by control groups, by requests without end, by names.

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::time::Instant;

use kevtmon_tests::actor::Actor;
use kevtmon_tests::balance::{Balance, stop_and_account, wait_for_balance};
use kevtmon_tests::cgroup::{Cgroup, Hierarchy};
use kevtmon_tests::component::{Program, start};
use kevtmon_tests::daemon::{ALL_EVENTS, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::lock::Exclusive;
use kevtmon_tests::mount::{Mount, Scratch};
use kevtmon_tests::netns::NetnsPath;
use kevtmon_tests::network::NeighbourState;
use kevtmon_tests::pod::{GATEWAY, GATEWAY_LLADDR, Pod};
use kevtmon_tests::podman::Podman;
use kevtmon_tests::process::{finish, hold_by_cwd};
use kevtmon_tests::storm::ipv4;
use kevtmon_tests::user_network::UserNetwork;

/// Records that a source may write at once in these tests.
const BURST: u32 = 20;

/// What counts all that the kernel does, or needs a quiet machine.
mod alone {
    use super::*;

    #[test]
    fn control_groups_without_end_have_no_budget_each() {
        /// Many more than are told apart.
        const GROUPS: u32 = 60;
        const OF_EACH: u32 = 50;
        let _exclusive = Exclusive::take();
        let (pod, scratch) = (Pod::new(), Scratch::new());
        let batch = scratch.path().join("batch");
        let lines = |address: String| {
            format!(
                "neigh replace {address} dev eth0 lladdr 02:00:00:00:00:01\nneigh del {address} dev eth0\n"
            )
        };
        let text: String = (0..OF_EACH).map(|index| lines(ipv4(index).to_string())).collect();
        std::fs::write(&batch, text).expect("a file");
        let config = format!("[hooks]\nsource_rate = 1\nsource_burst = {BURST}\n{ALL_EVENTS}");
        let mut daemon = launch().config(&config).start();
        daemon.wait_for_gateway(pod.inum(), GATEWAY);
        let mut actor = Actor::start();
        actor.act(&format!("netns {}", pod.netns().path().display()));
        let began = Instant::now();
        for _ in 0..GROUPS {
            let groups: Vec<Cgroup> = Hierarchy::all().into_iter().map(Cgroup::new).collect();
            groups.iter().for_each(|group| group.take(actor.pid()));
            actor.act(&format!("run ip -batch {}", batch.display()));
            Hierarchy::all().into_iter().for_each(|hierarchy| Cgroup::release(hierarchy, actor.pid()));
        }
        // The gateway has a lane of its own beside all of them.
        let ip = pod.delete_gateway();
        daemon.wait_for_deletion_by(ip.pid, pod.inum(), GATEWAY).expect_actor(ip.pid, "ip");
        let balance = wait_for_balance(&daemon, Balance::of_deletions);
        assert!(balance.received >= f64::from(GROUPS * OF_EACH), "{balance:?}");
        // All groups of the namespace together have four times as much as one, and what came back of it meanwhile.
        let most = 4.0 * (f64::from(BURST) + began.elapsed().as_secs_f64()) + 2.0;
        assert!(
            balance.emitted >= f64::from(BURST) && balance.emitted <= most,
            "{balance:?}, at most {most}"
        );
        stop_and_account(daemon);
    }

    #[test]
    fn a_control_group_alone_has_no_more_than_one_budget() {
        const TIMES: u32 = 1000;
        let _exclusive = Exclusive::take();
        let pod = Pod::new();
        let config = format!("[hooks]\nsource_rate = 1\nsource_burst = {BURST}\n{ALL_EVENTS}");
        let daemon = launch().config(&config).start();
        let began = Instant::now();
        pod.netns().churn((0..TIMES).map(ipv4));
        let balance = wait_for_balance(&daemon, Balance::of_deletions);
        assert!(balance.received >= f64::from(TIMES), "{balance:?}");
        let most = f64::from(BURST) + began.elapsed().as_secs_f64() + 1.0;
        assert!(balance.emitted <= most, "{balance:?}, at most {most}");
        stop_and_account(daemon);
    }

    #[test]
    fn a_containers_namespace_in_another_user_namespace_has_a_budget_of_its_own() {
        const TIMES: u32 = 200;
        let Some(podman) = Podman::start() else { return };
        let _exclusive = Exclusive::take();
        let id = podman.start_container(&["--uidmap=0:100000:65536"], &["sleep", "1000000"]);
        let netns = NetnsPath::of_process(podman.pid(&id));
        netns.network(|network| {
            network.add_bridge("eth0")?;
            network.add_address("eth0", [10, 76, 0, 1].into(), 8)?;
            network.set_up("eth0", true)
        });
        let config = format!("[hooks]\nsource_rate = 1\nsource_burst = {BURST}\n");
        let mut daemon = launch().config(&config).start();
        daemon.wait_for_netns(netns.inum());
        let is_summary = |event: &Event| event.kind() == "events.throttled";
        netns.churn((0..TIMES).map(ipv4));
        let told = daemon.wait_for("a summary", is_summary);
        told.expect("/throttled/lane", "unknown");
        assert!(!told.has("/throttled/netns"), "of it nobody knows anything: {told}");
        stop_and_account(daemon);

        let mut daemon =
            launch().joining(format!("docker={}", podman.socket().display())).config(&config).start();
        let is_its_own =
            |event: &Event| is_summary(event) && event.number("/throttled/netns") == Some(netns.inum());
        let flooded = || {
            netns.churn((0..TIMES).map(ipv4));
            daemon.events().into_iter().any(|event| is_its_own(&event))
        };
        eventually!(flooded(), "it is a container's, as the runtime says");
        let told = daemon.wait_for("a summary", is_its_own);
        told.expect("/throttled/lane", "namespace");
        told.expect("/target/container/id", &*id);
        told.expect("/severity", "warning");
        stop_and_account(daemon);
    }

    #[test]
    fn mount_and_user_namespaces_without_end_have_no_budget_each() {
        const NAMESPACES: u32 = 60;
        const IN_EACH: u32 = 5;
        let _exclusive = Exclusive::take();
        let scratch = Scratch::new();
        let config = format!("[hooks]\nsource_rate = 1\nsource_burst = {BURST}\n");
        let mut daemon = launch().config(&config).start();
        let began = Instant::now();
        let (there, attempts) = (scratch.path().display(), "umount . 2>/dev/null;".repeat(IN_EACH as usize));
        for kind in ["-m", "-Urm"] {
            let script = format!("mount -t tmpfs none {there} && cd {there} && {{ {attempts} true; }}");
            let all = format!(
                "i=0; while [ $i -lt {NAMESPACES} ]; do unshare {kind} sh -c \"$0\" || exit; i=$((i + 1)); done"
            );
            let mut all_of_them = Command::new("sh");
            all_of_them.args(["-c", &all, &script]).stdin(Stdio::null());
            let _ = finish(&mut all_of_them, "sh".as_ref()).succeeded("the attempts");
        }
        let most = 4.0 * (f64::from(BURST) + began.elapsed().as_secs_f64()) + 2.0;
        // The host's own are not among them.
        let mount = Mount::new();
        let holder = hold_by_cwd(mount.point());
        mount.umount_refused();
        let path = mount.point().to_string_lossy().into_owned();
        daemon.wait_for("the refusal on the host", |event| {
            event.kind() == "mount.busy" && event.text("/mount/path") == path
        });
        let balance = wait_for_balance(&daemon, Balance::of_refusals);
        assert!(balance.received >= f64::from(2 * NAMESPACES * IN_EACH), "{balance:?}");
        let over = daemon.metrics().count("kevtmon_events_throttled_total", &[("lane", "umount")]);
        assert!(
            balance.received - over <= 2.0 * most + 1.0,
            "{over} of {balance:?}, at most {most} of each kind"
        );
        stop_and_account(daemon);
        drop(holder);
    }

    #[test]
    fn what_sets_a_gateway_without_end_takes_no_place_of_its_deletion() {
        const TIMES: u32 = 1000;
        let _exclusive = Exclusive::take();
        let pod = Pod::new();
        let mut daemon = launch().config("[hooks]\nsource_rate = 1\nsource_burst = 1\n").start();
        daemon.wait_for_gateway(pod.inum(), GATEWAY);
        let ip = pod.delete_gateway();
        daemon.wait_for_deletion_by(ip.pid, pod.inum(), GATEWAY);
        // What changes nothing is not looked at.
        let set = |lladdr| format!("neigh replace {GATEWAY} dev eth0 lladdr {lladdr} nud reachable\n");
        pod.netns().ip_batch(&(set(GATEWAY_LLADDR) + &set("02:00:00:00:00:0c")).repeat(TIMES as usize / 2));
        pod.set_neighbor(GATEWAY, GATEWAY_LLADDR, NeighbourState::Permanent);
        let ip = pod.delete_gateway();
        daemon.wait_for_deletion_by(ip.pid, pod.inum(), GATEWAY).expect_actor(ip.pid, "ip");
        let sets = wait_for_balance(&daemon, Balance::of_gateway_sets);
        assert!(sets.received >= f64::from(TIMES) && sets.throttled > 0.0, "{sets:?}");
        let told = daemon.wait_for("what is beyond the budget", |event| {
            event.kind() == "events.throttled" && event.text("/throttled/lane") == "gateway-set"
        });
        told.expect("/throttled/netns", pod.inum());
        told.expect("/target/netns_name", pod.netns_name());
        let deletions = wait_for_balance(&daemon, Balance::of_deletions);
        assert!(deletions.throttled < 0.5, "{deletions:?}");
        stop_and_account(daemon);
    }

    #[test]
    fn who_executes_what_is_called_a_kubelet_in_a_container_takes_no_room_of_the_nodes_own() {
        const TIMES: u32 = 300;
        let _exclusive = Exclusive::take();
        let scratch = Scratch::new();
        let fake = Program::new(&scratch, "fake/kubelet", None);
        let real = Program::new(&scratch, "real/kubelet", Some("v1.20.2"));
        let config = format!("[hooks]\nsource_rate = 1\nsource_burst = {BURST}\n");
        let mut daemon = launch().config(&config).start();
        // It is root of the node, but in a pid namespace of its own.
        let script = format!("i=0; while [ $i -lt {TIMES} ]; do \"$0\" -c :; i=$((i + 1)); done");
        let mut container = Command::new("unshare");
        container.args(["--pid", "--fork", "--kill-child", "sh", "-c", &script]).arg(fake.path());
        let _ = finish(container.stdin(Stdio::null()), "unshare".as_ref()).succeeded("the executions");
        let kubelet = start(&real);
        daemon.wait_for("the start of the kubelet", |event| {
            event.kind() == "component.started"
                && event.number("/component/pid") == Some(kubelet.pid().into())
        });
        let throttled = daemon.metrics().count("kevtmon_events_throttled_total", &[("lane", "exec")]);
        assert!(throttled < 0.5, "{throttled} executions were beyond the budget");
        stop_and_account(daemon);
    }

    #[test]
    fn the_gateway_of_a_users_own_network_has_no_lane_beside_his_budget() {
        const TIMES: usize = 300;
        const USER: u32 = 64_125;
        const GATEWAY_OF_USER: Ipv4Addr = Ipv4Addr::new(10, 76, 0, 2);
        let _exclusive = Exclusive::take();
        let own = UserNetwork::of(USER);
        own.netns().network(|network| network.add_gateway("eth0", GATEWAY_OF_USER));
        let address = GATEWAY_OF_USER.to_string();
        own.netns().set_neighbor("eth0", &address, GATEWAY_LLADDR, NeighbourState::Permanent);
        let began = Instant::now();
        let config = format!("[hooks]\nuser_rate = 1\nuser_burst = 1\n{ALL_EVENTS}");
        let mut daemon = launch().config(&config).start();
        daemon.wait_for_gateway(own.inum(), &address);
        own.netns().churn(std::iter::repeat_n(GATEWAY_OF_USER, TIMES));
        let balance = wait_for_balance(&daemon, Balance::of_deletions);
        assert!(balance.received >= TIMES as f64, "{balance:?}");
        let told = daemon.wait_for("what is beyond the budget", |event| {
            event.kind() == "events.throttled" && event.text("/throttled/lane") == "owner"
        });
        told.expect("/throttled/uid", USER);
        let emitted = daemon.events().iter().filter(|event| event.is_deletion(own.inum(), &address)).count();
        // His burst, and what came back of it meanwhile.
        let most = 2.0 + began.elapsed().as_secs_f64();
        assert!(emitted as f64 <= most, "{emitted} of {balance:?}, at most {most}");
        stop_and_account(daemon);
    }
}
