//! The kernel's table of neighbor entries is full, which all namespaces share: in a virtual machine, for no other could do without it
//! meanwhile.

use kevtmon_tests::actor::Actor;
use kevtmon_tests::advice::{carry_out, resolved};
use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::kernel;
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::pod_sandbox::PodSandbox;
use kevtmon_tests::process::run;

const KIND: &str = "neighbor-table-full";
/// More than the table may have.
const SCANNED: u32 = 300;

struct Scan {
    daemon: Daemon,
    pod: Pod,
    sandbox: PodSandbox,
    other: Pod,
    scanner: Actor,
}

/// A pod with an interface into a network of many addresses, and one whose gateway's entry is in the table beside that.
fn start() -> Scan {
    for (number, limit) in [(1, 16), (2, 64), (3, 128)] {
        run(&format!("busybox sysctl -q -w net.ipv4.neigh.default.gc_thresh{number}={limit}"));
    }
    let (pod, other) = (Pod::new(), Pod::new());
    pod.ip("address add 10.77.0.1/16 dev eth0");
    let sandbox = PodSandbox::of(&pod);
    let daemon = launch().start();
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    daemon.wait_for_gateway(other.inum(), GATEWAY);
    let mut scanner = Actor::start();
    scanner.act(&format!("netns {}", pod.netns().path().display()));
    Scan { daemon, pod, sandbox, other, scanner }
}

#[test]
fn who_fills_the_table_is_named_and_nobody_for_what_the_kernel_removes_to_make_room() {
    if !kernel::is_guest() {
        return kernel::skip("only in a virtual machine", false);
    }
    let mut scan = start();
    // It is no more than nearly full.
    scan.scanner.act("scan 70 10.77.9.1");
    scan.scanner.act(&format!("scan {SCANNED} 10.77.1.1"));
    scan.daemon.wait_for("the incident", |event| event.is_incident("incident.opened", KIND));
    // Who has the entries may be read after that.
    let pid = u64::from(scan.scanner.pid());
    let opened = scan.daemon.wait_for("whom it names", |event| {
        event.text("/incident/kind") == KIND && event.number("/actor/pid") == Some(pid)
    });
    opened.expect("/incident/severity", "critical");
    opened.expect("/neighbor_table/family", "ipv4");
    opened.expect("/neighbor_table/limit", 128);
    opened.expect("/neighbor_table/namespaces/0/netns", scan.pod.inum());
    opened.expect("/target/pod/uid", scan.sandbox.uid());
    opened.expect("/actor/confidence", "likely");
    let of_other = |event: &Event| event.number("/neighbor/netns") == Some(scan.other.inum());
    let blamed = |event: &&Event| of_other(event) && event.number("/actor/pid").is_some();
    let events = scan.daemon.events();
    assert_eq!(events.iter().find(blamed), None);
    assert!(scan.other.has_gateway(), "a permanent entry is never removed for others");
    let id = opened.text("/incident/id").to_owned();
    carry_out(&scan.daemon, &id, "neighbor-table-full/tell-pod");
    carry_out(&scan.daemon, &id, "neighbor-table-full/raise-limits");
    resolved(&mut scan.daemon, &id);
}
