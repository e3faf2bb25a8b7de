//! Pods whose interface is no end of a veth pair. The kernel of this machine has macvlan; of netkit, ipvlan and the virtual
//! functions of network cards, which it may not have, there are tests of the messages alone.

use std::process::{self, Command, Stdio};

use kevtmon_tests::advice::resolved;
use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::netns::{Netns, NetnsPath};
use kevtmon_tests::network::{NeighbourState, on_host};
use kevtmon_tests::pod_sandbox::PodSandbox;
use kevtmon_tests::process::{Running, run};
use kevtmon_tests::reaper::Cleanup;
use kevtmon_tests::unique;

const LOST: &str = "gateway-neighbor-lost";
/// What would be said of a pod behind a veth pair.
const OTHERS: [&str; 4] =
    ["orphan-veth", "pod-route-missing", "pod-neighbor-unreachable", "duplicate-pod-ip"];
const IMPATIENT: &str = "[incidents]\npod_route_missing_seconds = 1\npod_route_young_pod_seconds = 1\n\
    orphan_veth_seconds = 1\nlearned_gateway_failed_seconds = 1\ngateway_teardown_seconds = 1\n";

/// A pod with a macvlan above a device of the host, whose gateway is a router beyond that.
struct Macvlan {
    pod: Netns,
    router: Netns,
    below: String,
    gateway: String,
    own: String,
    sandbox: PodSandbox,
    _cleanup: Cleanup,
}

impl Macvlan {
    fn new() -> Self {
        let (pod, router, below) = (Netns::new(), Netns::new(), unique::name("kvl"));
        let [a, b, c] = unique::subnet(64);
        let [gateway, own] = [1, 2].map(|last| format!("{a}.{b}.{c}.{last}"));
        let cleanup = Cleanup::link(&below);
        on_host(|network| {
            network.add_veth(&below, None, "router0", router.path().path())?;
            network.set_up(&below, true)
        });
        run(&format!("ip link add link {below} name eth0 netns {} type macvlan mode bridge", pod.name()));
        router.path().ip_batch(&format!("address add {gateway}/24 dev router0\nlink set router0 up\n"));
        pod.path().ip_batch(&format!(
            "address add {own}/24 dev eth0\nlink set eth0 up\nroute add default via {gateway} dev eth0\n"
        ));
        let sandbox = PodSandbox::within(pod.path());
        Self { pod, router, below, gateway, own, sandbox, _cleanup: cleanup }
    }

    fn inum(&self) -> u64 {
        self.pod.path().inum()
    }

    /// Gives the gateway a static entry.
    fn set_gateway(&self) {
        let lladdr = "02:00:00:00:00:0f";
        self.pod.path().set_neighbor("eth0", &self.gateway, lladdr, NeighbourState::Permanent);
    }

    fn daemon(&self, more: &str) -> Daemon {
        let daemon = launch().config(&format!("{IMPATIENT}{more}")).start();
        daemon.wait_for_gateway(self.inum(), &self.gateway);
        daemon
    }

    fn lost(&self, daemon: &mut Daemon) -> Event {
        daemon.wait_for("the loss", |event| {
            event.is_incident("incident.opened", LOST) && event.is_neighbor(self.inum(), &self.gateway)
        })
    }

    /// That nothing is said of a host end.
    fn expect_no_host_end(&self, event: &Event) {
        let all = event.to_string();
        for words in ["host end", "veth", "proxy_arp", &self.below] {
            assert!(!all.contains(words), "{words:?} in {event}");
        }
    }

    /// That nothing is missed of it that a pod behind a veth pair has.
    fn expect_no_others(&self, daemon: &Daemon) {
        let is_of_it = |event: &Event| event.to_string().contains(self.sandbox.uid());
        for kind in OTHERS {
            let told = daemon
                .events()
                .into_iter()
                .find(|event| event.is_incident("incident.opened", kind) && is_of_it(event));
            assert_eq!(told.map(|event| event.to_string()), None);
        }
    }
}

fn of_link<'a>(daemon: &mut Daemon, kind: &str, netns: u64, change: impl Into<Option<&'a str>>) -> Event {
    let change = change.into();
    daemon.wait_for(&format!("{kind} of eth0"), |event| {
        event.kind() == kind
            && event.is_in(netns)
            && event.text("/link/ifname") == "eth0"
            && change.is_none_or(|change| event.list("/link/change").iter().any(|one| one == change))
    })
}

#[test]
fn who_deletes_the_entry_of_a_pod_with_a_macvlan_is_named_and_no_host_end_is_missed() {
    let macvlan = Macvlan::new();
    macvlan.set_gateway();
    let mut daemon = macvlan.daemon("");
    let text = daemon.ask(&["state", macvlan.sandbox.uid()]).succeeded("state").stdout;
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let below = "the device below eth0, a macvlan: the routes of the node are not used";
    assert!(text.contains(below) && text.contains(&macvlan.below), "{text}");
    assert!(!text.contains("default route via"), "{text}");

    let ip = macvlan.pod.path().run(&format!("ip neigh del {} dev eth0", macvlan.gateway));
    let lost = macvlan.lost(&mut daemon);
    lost.expect_actor(ip.pid, "ip");
    lost.expect("/target/pod/uid", macvlan.sandbox.uid());
    macvlan.expect_no_host_end(&lost);
    macvlan.set_gateway();
    resolved(&mut daemon, lost.text("/incident/id"));

    // Its carrier goes with the device below, which it does not tell of anybody.
    let host = NetnsPath::of_process(process::id());
    host.run(&format!("ip link set {} down", macvlan.below));
    let changed = of_link(&mut daemon, "link.changed", macvlan.inum(), "carrier-down");
    changed.expect("/link/kind", "macvlan");
    changed.expect_none("/link/peer");
    changed.expect_none("/actor");
    let ip = host.run(&format!("ip link del {}", macvlan.below));
    of_link(&mut daemon, "link.deleted", macvlan.inum(), None).expect_actor(ip.pid, "ip");
    let deleted = daemon.wait_for_deletion_by(ip.pid, macvlan.inum(), &macvlan.gateway);
    deleted.expect("/neighbor/cause", "link-deleted");
    macvlan.expect_no_others(&daemon);
}

#[test]
fn a_router_that_does_not_answer_a_pod_with_a_macvlan_is_not_the_hosts_doing() {
    let macvlan = Macvlan::new();
    let mut daemon = macvlan.daemon("");
    macvlan.router.path().run(&format!("ip address del {}/24 dev router0", macvlan.gateway));
    macvlan.pod.path().run("busybox sysctl -q -w net.ipv4.neigh.eth0.retrans_time_ms=50");
    macvlan.pod.path().run("ip neigh flush dev eth0");
    let mut ping = Command::new("nsenter");
    ping.arg(format!("--net={}", macvlan.pod.path().path().display()));
    ping.args(["busybox", "ping", "-I", &macvlan.own, &macvlan.gateway]);
    let _sending = Running::spawn(ping.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()));
    let lost = macvlan.lost(&mut daemon);
    lost.expect("/neighbor/reason", "failed");
    lost.expect_none("/actor");
    assert!(lost.text("/incident/summary").ends_with("nothing answers its ARP requests on eth0"), "{lost}");
    macvlan.expect_no_host_end(&lost);
    macvlan.router.path().run(&format!("ip address add {}/24 dev router0", macvlan.gateway));
    resolved(&mut daemon, lost.text("/incident/id"));
    macvlan.expect_no_others(&daemon);
}
