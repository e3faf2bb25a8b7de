//! A bridge of the node that is the gateway of pods, and gets another MAC address with its ports: what the pods have learned is
//! wrong then. On a node without any runtime.

use kevtmon_tests::advice::{carry_out, resolved};
use kevtmon_tests::daemon::Daemon;
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::netns::Netns;
use kevtmon_tests::own_node::OwnNode;
use kevtmon_tests::pod_sandbox::PodSandbox;

const KIND: &str = "gateway-neighbor-lost";
const GATEWAY: &str = "10.98.0.1";

/// The ports, the addresses of which decide that of the bridge: `vb` has the lowest.
const PORTS: [(&str, &str); 3] =
    [("va", "0a:00:00:00:00:aa"), ("vb", "02:00:00:00:00:bb"), ("vc", "06:00:00:00:00:cc")];

/// A node with three pods on a bridge, the first of which has learned who its gateway is.
struct Bridged {
    node: OwnNode,
    pods: [Netns; 3],
    sandbox: PodSandbox,
}

impl Bridged {
    /// `bridge`: what else is set of the bridge.
    fn new(bridge: &str) -> Self {
        let (node, pods) = (OwnNode::new(), [Netns::new(), Netns::new(), Netns::new()]);
        node.ip(&format!("link add cni9 {bridge} type bridge"));
        node.ip(&format!("address add {GATEWAY}/24 dev cni9"));
        node.ip("link set cni9 up");
        for (index, (pod, (port, mac))) in pods.iter().zip(PORTS).enumerate() {
            node.ip(&format!("link add {port} address {mac} type veth peer name eth0 netns {}", pod.name()));
            node.ip(&format!("link set {port} master cni9 up"));
            pod.path().ip_batch(&format!(
                "address add 10.98.0.{}/24 dev eth0\nlink set eth0 up\nroute add default via {GATEWAY}\n",
                index + 2
            ));
        }
        let ping = || pods[0].path().attempt(&format!("busybox ping -c 1 -W 1 {GATEWAY}")).status.success();
        eventually!(ping(), "the bridge answers");
        let sandbox = PodSandbox::within(pods[0].path());
        Self { node, pods, sandbox }
    }

    fn daemon(&self) -> Daemon {
        let daemon = self.node.launch().config("[incidents]\ngateway_confirm_seconds = 1\n").start();
        daemon.wait_for_gateway(self.pods[0].path().inum(), GATEWAY);
        daemon
    }

    fn opened(&self, daemon: &mut Daemon) -> Event {
        daemon.wait_for("the loss", |event| {
            event.is_incident("incident.opened", KIND)
                && event.is_neighbor(self.pods[0].path().inum(), GATEWAY)
        })
    }

    /// Deletes a port; returns who did it, once that is told.
    fn delete(&self, daemon: &mut Daemon, port: &str) -> u32 {
        let culprit = self.node.netns().run(&format!("ip link del {port}")).pid;
        daemon.wait_for("the deletion", |event| {
            event.kind() == "link.deleted"
                && event.text("/link/ifname") == port
                && event.number("/link/netns") == Some(self.node.netns().inum())
        });
        culprit
    }

    fn mac(&self) -> String {
        let shown = self.node.netns().run("ip -o link show dev cni9").stdout;
        let mut words = shown.split_whitespace().skip_while(|word| *word != "link/ether");
        words.nth(1).expect("it has an address").to_owned()
    }
}

#[test]
fn who_deleted_the_port_that_a_bridge_had_its_address_of_is_named_until_the_pods_have_the_new_one() {
    let bridged = Bridged::new("");
    assert_eq!(bridged.mac(), PORTS[1].1);
    let mut daemon = bridged.daemon();
    let culprit = bridged.delete(&mut daemon, "vb");
    let opened = bridged.opened(&mut daemon);
    opened.expect("/actor/pid", culprit);
    opened.expect("/actor/confidence", "likely");
    opened.expect("/target/pod/uid", bridged.sandbox.uid());
    opened.expect("/neighbor/reason", "wrong-lladdr");
    opened.expect("/neighbor/lladdr", PORTS[1].1);
    opened.expect("/incident/confidence", "likely");
    opened.expect("/severity", "warning");
    let summary = opened.text("/incident/summary");
    let expected = "its ARP entry on eth0 points to 02:00:00:00:00:bb, but the bridge cni9 has 06:00:00:00:00:cc since veth vb";
    assert!(summary.contains(expected) && summary.contains(" was deleted by "), "{opened}");
    let changed = daemon.wait_for("the change", |event| {
        event.kind() == "link.changed"
            && event.text("/link/old_mac") == PORTS[1].1
            && event.text("/link/mac") == PORTS[2].1
    });
    let number = changed.number("/seq").expect("it has a number");
    assert!(opened.list("/incident/evidence").iter().any(|seq| *seq == number), "{opened}");

    // By the advice it keeps the address without the port that it is of.
    let id = opened.text("/incident/id").to_owned();
    carry_out(&daemon, &id, "gateway-neighbor-lost/set-mac");
    bridged.delete(&mut daemon, "vc");
    assert_eq!(bridged.mac(), PORTS[2].1);
    // The pod takes what the node announces.
    bridged.node.netns().run(&format!("busybox arping -q -A -c 1 -I cni9 {GATEWAY}"));
    let closed = resolved(&mut daemon, &id);
    assert!(closed.text("/message").contains("since veth vb"), "{closed}");
}

#[test]
fn a_bridge_with_an_address_of_its_own_loses_no_pod_with_a_port() {
    let bridged = Bridged::new("address 02:00:00:00:00:01");
    let mut daemon = bridged.daemon();
    bridged.delete(&mut daemon, "vb");
    assert_eq!(bridged.mac(), "02:00:00:00:00:01");
    // That it can be lost shows that nothing was before.
    bridged.node.ip("link set dev cni9 address 02:00:00:00:00:02");
    let opened = bridged.opened(&mut daemon);
    let expected = "points to 02:00:00:00:00:01, but the bridge cni9 has 02:00:00:00:00:02";
    assert!(opened.text("/incident/summary").ends_with(expected), "{opened}");
    opened.expect_none("/actor");
}
