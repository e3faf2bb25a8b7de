//! Lines of logs that are quoted for incidents.

use kevtmon_event::{Event, Kind};
use kevtmon_observation::*;

use super::harness::*;
use crate::Resume;

const OTHER: &str = "94feeebc95fb94feeebc95fb94feeebc95fb94feeebc95fb94feeebc95fb94fe";

fn missing(sandbox: Option<&str>, pod: Option<(&str, &str)>) -> Fact {
    let says = LogSays::EndpointMissing {
        sandbox: sandbox.map(str::to_owned),
        pod: pod.map(|(namespace, name)| (namespace.to_owned(), name.to_owned())),
    };
    let text = "resource does not exist: WorkloadEndpoint".into();
    Fact::Log(Box::new(LogLine { log: "/var/log/kubelet.log".into(), text, says }))
}

fn of_kernel(says: LogSays) -> Fact {
    Fact::Log(Box::new(LogLine { log: "/dev/kmsg".into(), text: "a \"line\"".into(), says }))
}

impl TestNode {
    fn quotes(&self) -> Vec<&Event> {
        self.events.iter().filter(|event| event.kind == Kind::LogQuoted).collect()
    }
}

/// A node on which the removal of a sandbox's network fails.
fn failing() -> TestNode {
    let mut node = TestNode::booted(Resume::default());
    node.start(Vec::new());
    node.call(CniCommand::Del, SANDBOX, 1);
    node.run_for(20 * S);
    node.call(CniCommand::Del, SANDBOX, 1);
    assert_eq!(node.kinds(), ["incident.opened"]);
    node
}

#[test]
fn what_calicos_plugin_says_is_evidence_of_the_removal_that_fails() {
    let mut node = failing();
    node.observe(missing(Some(SANDBOX), Some(("lijiaob", "etcd1-0"))));
    let quote = node.quotes().remove(0).clone();
    assert_eq!(quote.message, "/var/log/kubelet.log says \"resource does not exist: WorkloadEndpoint\"");
    assert_eq!(quote.log.unwrap().name, "/var/log/kubelet.log");
    assert_eq!(node.open()[0].evidence.last(), Some(&quote.seq));
    assert_eq!(node.kinds(), ["incident.opened", "incident.updated"]);
    assert_eq!(node.open()[0].count, 2, "it is no failed call");
    // It is logged again and again.
    node.run_for(60 * S);
    node.observe(missing(Some(SANDBOX), None));
    assert_eq!(node.quotes().len(), 1);
    node.run_for(600 * S);
    node.call(CniCommand::Del, SANDBOX, 1);
    node.observe(missing(None, Some(("lijiaob", "etcd1-0"))));
    assert_eq!(node.quotes().len(), 2);
}

#[test]
fn what_is_said_of_another_sandbox_or_of_none_is_not_quoted() {
    let mut node = failing();
    for fact in [
        missing(Some(OTHER), Some(("lijiaob", "etcd1-0"))),
        missing(None, Some(("lijiaob", "etcd1-1"))),
        missing(None, None),
        of_kernel(LogSays::ThinDeletion),
        of_kernel(LogSays::NeighborOverflow { ipv6: false }),
        of_kernel(LogSays::HungTask { comm: "calico".into(), tid: 7 }),
    ] {
        node.observe(fact);
    }
    assert_eq!(node.quotes().len(), 0);
    assert_eq!(node.kinds(), ["incident.opened"]);
}

#[test]
fn why_a_plugin_fails_is_evidence_of_the_removal_that_fails() {
    let mut node = failing();
    let says = |sandbox: &str| {
        let text = "connection is unauthorized".into();
        let says = LogSays::NetworkNotRemoved { sandbox: Some(sandbox.into()), pod: None };
        Fact::Log(Box::new(LogLine { log: "/var/log/kubelet.log".into(), text, says }))
    };
    node.observe(says(OTHER));
    assert_eq!(node.quotes().len(), 0);
    node.observe(says(SANDBOX));
    let quote = node.quotes().remove(0).seq;
    assert_eq!(node.open()[0].evidence.last(), Some(&quote));
}

#[test]
fn what_the_kernel_says_of_ceph_is_evidence_of_a_busy_volume_on_an_image() {
    let mut node = TestNode::booted(Resume::default());
    node.start(Vec::new());
    node.scan = |id, path: &str| {
        let report = holders(id, path);
        let of_image =
            |mount: MountFacts| MountFacts { fstype: "ext4".into(), source: "/dev/rbd0".into(), ..mount };
        HolderReport { mount: report.mount.map(of_image), ..report }
    };
    node.observe(umount(Some(16)));
    node.run_for(S);
    node.observe(of_kernel(LogSays::RbdDevice { device: "rbd1".into() }));
    assert_eq!(node.quotes().len(), 0);
    node.observe(of_kernel(LogSays::RbdDevice { device: "rbd0".into() }));
    for is_back in [false, true] {
        node.observe(of_kernel(LogSays::CephServer(CephServerLine { server: "osd3".into(), is_back })));
    }
    let quotes: Vec<u64> = node.quotes().iter().map(|event| event.seq).collect();
    assert_eq!(quotes.len(), 3);
    assert!(node.open()[0].evidence.ends_with(&quotes), "{:?}", node.open()[0]);
}

#[test]
fn where_nothing_is_wrong_nothing_is_quoted() {
    let mut node = TestNode::booted(Resume::default());
    node.start(Vec::new());
    node.observe(missing(Some(SANDBOX), None));
    node.observe(of_kernel(LogSays::NeighborOverflow { ipv6: false }));
    node.run_for(S);
    assert_eq!((node.quotes().len(), node.kinds()), (0, Vec::new()));
}

#[test]
fn what_a_kubelet_says_of_a_volume_that_stays_is_evidence_of_the_one_of_that_pod() {
    let mut node = TestNode::booted(Resume::default());
    node.start(Vec::new());
    node.observe(umount(Some(16)));
    node.run_for(S);
    let says = |pod_uid: &str| {
        let text = "UnmountVolume.TearDown failed for volume \"cam-pv-50g".into();
        let says = LogSays::TeardownFailed { pod_uid: pod_uid.into() };
        Fact::Log(Box::new(LogLine { log: "/var/log/kubelet.log".into(), text, says }))
    };
    assert_eq!(node.open().iter().filter(|incident| incident.kind == "volume-busy").count(), 1);
    node.observe(says(WEB_UID));
    node.observe(of_kernel(LogSays::SpecHashChanged));
    node.observe(of_kernel(LogSays::SandboxMissing { sandbox: SANDBOX.into() }));
    assert_eq!(node.quotes().len(), 0);
    node.observe(says(CAM_UID));
    let quote = node.quotes().remove(0).seq;
    assert_eq!(node.open()[0].evidence.last(), Some(&quote));
}
