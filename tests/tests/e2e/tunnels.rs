//! Entries of other nodes on a tunnel of the host, as agents of overlay networks (flannel, Calico) set them.

use kevtmon_tests::advice::{carry_out, resolved};
use kevtmon_tests::daemon::Daemon;
use kevtmon_tests::event::Event;
use kevtmon_tests::netns::{Netns, NetnsPath};
use kevtmon_tests::own_node::OwnNode;

const LLADDR: &str = "02:44:00:00:00:02";
/// An entry that no route leads to, one in use, and one of a node that leaves.
const STALE: &str = "10.44.1.0";
const LIVE: &str = "10.44.2.0";
const LEAVING: &str = "10.44.3.0";

fn set_up(netns: &NetnsPath) {
    netns.ip_batch(&format!(
        "link add vxlan.t type vxlan id 4096 dstport 4789 nolearning\naddress add 10.44.0.0/32 dev vxlan.t\n\
         link set vxlan.t up\n\
         neigh add {STALE} lladdr {LLADDR} dev vxlan.t nud permanent\n\
         neigh add {LIVE} lladdr {LLADDR} dev vxlan.t nud permanent\n\
         neigh add {LEAVING} lladdr {LLADDR} dev vxlan.t nud permanent\n\
         route add {LIVE}/24 via {LIVE} dev vxlan.t onlink\n\
         route add {LEAVING}/24 via {LEAVING} dev vxlan.t onlink\n"
    ));
}

fn node() -> (OwnNode, Daemon) {
    let node = OwnNode::new();
    set_up(node.netns());
    let daemon = node.launch().start();
    (node, daemon)
}

fn is_of(event: &Event, transition: &str, node: &OwnNode, address: &str) -> bool {
    event.is_incident(transition, "gateway-neighbor-lost") && event.is_neighbor(node.netns().inum(), address)
}

fn opened(daemon: &mut Daemon, node: &OwnNode, address: &str) -> Event {
    daemon.wait_for("the loss", |event| is_of(event, "incident.opened", node, address))
}

#[test]
fn who_deletes_the_entry_of_a_node_in_use_is_named_and_the_advice_puts_it_back() {
    let (node, mut daemon) = node();
    // What a container does in its own network is none of the host's.
    let apart = Netns::new();
    set_up(apart.path());
    apart.path().run(&format!("ip neigh del {LIVE} dev vxlan.t"));
    node.ip(&format!("neigh del {STALE} dev vxlan.t"));
    node.ip(&format!("neigh del {LEAVING} dev vxlan.t"));
    node.ip(&format!("route del {LEAVING}/24"));
    let culprit = node.netns().run(&format!("ip neigh del {LIVE} dev vxlan.t"));
    let opened = opened(&mut daemon, &node, LIVE);
    opened.expect_actor(culprit.pid, "ip");
    opened.expect("/severity", "warning");
    opened.expect("/target/join", "host");
    opened.expect("/neighbor/reason", "missing");
    let message = opened.text("/message");
    let lost = format!(
        "deleted the neighbor entry of {LIVE} on vxlan.t: what goes to {LIVE}/24 by way of it is lost"
    );
    assert!(message.ends_with(&lost), "{opened}");
    let id = opened.text("/incident/id").to_owned();
    carry_out(&daemon, &id, "gateway-neighbor-lost/replace-tunnel-entry");
    let closed = resolved(&mut daemon, &id);
    let repair = daemon.wait_for("the repair", |event| {
        event.kind() == "neighbor.added" && event.is_neighbor(node.netns().inum(), LIVE)
    });
    let number = repair.number("/seq").expect("it has a number");
    assert!(closed.list("/incident/evidence").iter().any(|seq| *seq == number), "{closed}\n{repair}");
    let all = daemon.events();
    // Other tests have pods that lose their gateways.
    let is_its = |event: &&Event| event.number("/neighbor/netns") == Some(node.netns().inum());
    let incidents = all.iter().filter(|event| event.kind() == "incident.opened").filter(is_its);
    assert_eq!(incidents.map(|event| event.text("/incident/id")).collect::<Vec<_>>(), [id.as_str()]);
}

#[test]
fn it_is_certain_once_packets_are_lost_and_over_with_the_route_or_the_device() {
    let (node, mut daemon) = node();
    node.ip(&format!("neigh del {LIVE} dev vxlan.t"));
    opened(&mut daemon, &node, LIVE).expect("/incident/confidence", "likely");
    node.netns().attempt(&format!("busybox ping -c 1 -W 1 {LIVE}"));
    daemon.wait_for("that it fails", |event| {
        is_of(event, "incident.updated", &node, LIVE) && event.text("/incident/confidence") == "certain"
    });
    node.ip(&format!("route del {LIVE}/24"));
    let closed = daemon.wait_for("the end", |event| is_of(event, "incident.closed", &node, LIVE));
    closed.expect("/incident/close_reason", "subject-gone");
    node.ip(&format!("neigh del {LEAVING} dev vxlan.t"));
    opened(&mut daemon, &node, LEAVING);
    node.ip("link del vxlan.t");
    let closed = daemon.wait_for("the end", |event| is_of(event, "incident.closed", &node, LEAVING));
    closed.expect("/incident/close_reason", "subject-gone");
}

#[test]
fn an_agent_that_deletes_and_sets_an_entry_again_and_again_is_named_once() {
    let (node, mut daemon) = node();
    for _ in 0..3 {
        node.netns().ip_batch(&format!(
            "neigh del {LIVE} dev vxlan.t\nneigh add {LIVE} lladdr {LLADDR} dev vxlan.t nud permanent\n"
        ));
    }
    let opened =
        daemon.wait_for("that it flaps", |event| event.is_incident("incident.opened", "route-flapping"));
    assert!(opened.text("/message").contains(&format!("the neighbor entry {LIVE} on vxlan.t")), "{opened}");
    assert!(!daemon.events().iter().any(|event| is_of(event, "incident.opened", &node, LIVE)));
}
