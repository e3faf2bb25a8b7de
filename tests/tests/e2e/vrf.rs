//! The gateway of a default route in the table of a VRF. The kernels of virtual machines have VRFs; others may not, and
//! there is nothing to see there.

use std::process::{Command, Stdio};

use kevtmon_tests::daemon::launch;
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::kernel;
use kevtmon_tests::netns::Netns;
use kevtmon_tests::network::NeighbourState;
use kevtmon_tests::process::{Running, comm};

const KIND: &str = "gateway-neighbor-lost";
const TABLE: u32 = 201;
/// The router to which the VRF's table leads.
const ROUTER: &str = "10.79.0.8";

/// A network with a live process, and an interface of which the default route is in a table of its own.
struct Network {
    netns: Netns,
    _far: Netns,
    _process: Running,
}

impl Network {
    /// `has_vrf`: whether a VRF selects that table.
    fn new(has_vrf: bool) -> Option<Self> {
        let (netns, far) = (Netns::new(), Netns::new());
        netns.path().run(&format!("ip link add eth0 type veth peer name far0 netns {}", far.name()));
        far.path().run("ip link set far0 up");
        let mut lines = "link set eth0 up\n".to_owned();
        if has_vrf {
            let added = netns.path().attempt(&format!("ip link add vrf0 type vrf table {TABLE}"));
            if !added.status.success() {
                kernel::skip(&format!("this kernel has no VRFs: {}", added.stderr.trim()), false);
                return None;
            }
            lines.push_str("link set vrf0 up\nlink set eth0 master vrf0\n");
        }
        lines.push_str(&format!(
            "address add 10.79.0.1/24 dev eth0\nroute add default via {ROUTER} dev eth0 onlink table {TABLE}\n"
        ));
        netns.path().ip_batch(&lines);
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", netns.path().path().display())).args(["sleep", "1000000"]);
        let process = Running::spawn(command.stdin(Stdio::null()));
        eventually!(comm(process.pid()).as_deref() == Some("sleep"), "it is in the network");
        let network = Self { netns, _far: far, _process: process };
        network.set();
        Some(network)
    }

    fn set(&self) {
        self.netns.path().set_neighbor("eth0", ROUTER, "02:00:00:00:00:0f", NeighbourState::Permanent);
    }

    fn is_of(&self, event: &Event, transition: &str) -> bool {
        event.is_incident(transition, KIND) && event.is_in(self.netns.path().inum())
    }
}

#[test]
fn the_gateway_of_a_vrf_is_one_and_is_lost_and_found_as_any_other() {
    let Some(network) = Network::new(true) else { return };
    let inum = network.netns.path().inum();
    let mut daemon = launch().start();
    let ip = network.netns.path().run(&format!("ip neigh del {ROUTER} dev eth0"));
    let deleted = daemon.wait_for_deletion_by(ip.pid, inum, ROUTER);
    deleted.expect("/neighbor/gateway", true);
    let opened = daemon.wait_for("it is lost", |event| network.is_of(event, "incident.opened"));
    opened.expect_actor(ip.pid, "ip");
    opened.expect("/neighbor/reason", "missing");
    opened.expect("/neighbor/address", ROUTER);
    network.set();
    let closed = daemon.wait_for("it is back", |event| network.is_of(event, "incident.closed"));
    closed.expect("/incident/close_reason", "resolved");
}

#[test]
fn a_table_becomes_and_ceases_to_be_in_use_with_its_vrf() {
    let Some(network) = Network::new(true) else { return };
    let (netns, inum) = (network.netns.path(), network.netns.path().inum());
    let mut daemon = launch().start();
    // The rule that selects the tables of VRFs is not tied to one of them.
    netns.run("ip link del vrf0");
    netns.ip_batch(&format!(
        "address replace 10.79.0.1/24 dev eth0\nroute replace default via {ROUTER} dev eth0 onlink table {TABLE}\n"
    ));
    network.set();
    let without = netns.run(&format!("ip neigh del {ROUTER} dev eth0"));
    daemon.wait_for_deletion_by(without.pid, inum, ROUTER).expect("/neighbor/gateway", false);
    netns.ip_batch(&format!(
        "link add vrf0 type vrf table {TABLE}\nlink set vrf0 up\nlink set eth0 master vrf0\n\
         address replace 10.79.0.1/24 dev eth0\nroute replace default via {ROUTER} dev eth0 onlink table {TABLE}\n"
    ));
    network.set();
    daemon.wait_for_gateway(inum, ROUTER);
    let again = netns.run(&format!("ip neigh del {ROUTER} dev eth0"));
    daemon.wait_for_deletion_by(again.pid, inum, ROUTER).expect("/neighbor/gateway", true);
}

#[test]
fn the_gateway_of_a_table_that_no_vrf_selects_is_none() {
    let Some(network) = Network::new(false) else { return };
    let mut daemon = launch().start();
    let ip = network.netns.path().run(&format!("ip neigh del {ROUTER} dev eth0"));
    let deleted = daemon.wait_for_deletion_by(ip.pid, network.netns.path().inum(), ROUTER);
    deleted.expect("/neighbor/gateway", false);
}
