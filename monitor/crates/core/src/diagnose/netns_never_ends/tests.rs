//! What the kernel says of devices that it cannot free, and what was deleted before.

use kevtmon_event::Incident;
use kevtmon_observation::*;

use super::*;
use crate::Resume;
use crate::diagnose::tests::harness::*;

const WEB: NsInum = 4_026_532_300;
const CALI: &str = "cali9118ebbb10b";
const CALI_OF_WEB: &str = "calib7c1f2d3e4a";

/// The kernel says so every ten seconds, so many times.
fn keeps_waiting(node: &mut TestNode, ifname: &str, times: u32) {
    for _ in 0..times {
        let text = format!("unregister_netdevice: waiting for {ifname} to become free. Usage count = 1");
        let says = LogSays::DeviceNotFreed { ifname: ifname.into() };
        node.observe(Fact::Log(Box::new(LogLine { log: "/dev/kmsg".into(), text, says })));
        node.run_for(10 * S);
    }
}

/// A node with two pods.
fn node() -> TestNode {
    let mut node = TestNode::booted(Resume::default());
    node.add_pod(ETCD, CALI, NudState::PERMANENT);
    node.add_pod(WEB, CALI_OF_WEB, NudState::PERMANENT);
    let web = sandbox(&"b".repeat(64), WEB, "web", "web-0", WEB_UID);
    node.start(vec![etcd_sandbox(), web]);
    // From now on it has seen all deletions that may belong to a line.
    node.run_for(30 * S);
    node.events.clear();
    node
}

/// The networks of these pods end.
fn ended(node: &mut TestNode, networks: &[NsInum]) {
    networks.iter().for_each(|netns| node.end_network(*netns));
    node.run_for(10 * S);
}

fn open(node: &TestNode) -> Vec<Incident> {
    node.open().into_iter().filter(|incident| incident.kind == KIND).collect()
}

/// The newest event of its incidents.
fn newest(node: &TestNode) -> &Event {
    let is_its = |event: &&Event| event.incident.as_ref().is_some_and(|incident| incident.kind == KIND);
    node.events.iter().rfind(is_its).unwrap()
}

#[test]
fn a_device_that_the_kernel_waits_for_is_an_incident_with_the_pod_whose_device_went_before() {
    let mut node = node();
    ended(&mut node, &[ETCD]);
    keeps_waiting(&mut node, "lo", 6);
    assert!(open(&node).is_empty());
    keeps_waiting(&mut node, "lo", 1);
    let incident = open(&node).remove(0);
    assert_eq!((incident.severity, incident.confidence), (Severity::Warning, Confidence::Likely));
    let since = incident.first_seen.get(11..19).unwrap();
    let expected = format!(
        "the kernel has waited since {since} UTC for network device lo, likely of pod lijiaob/etcd1-0, to become free: likely no \
         network namespace ends until then"
    );
    assert_eq!((incident.summary, incident.count), (expected, 7));
    let number = |kind| node.events.iter().find(|event| event.kind == kind).unwrap().seq;
    assert_eq!(incident.evidence, [number(Kind::LinkDeleted), number(Kind::LogQuoted)]);
    let event = newest(&node);
    assert_eq!(event.link.as_ref().unwrap().ifname, CALI);
    let pod = event.target.as_deref().unwrap().pod.as_ref().unwrap();
    assert_eq!(pod.name.as_deref(), Some("etcd1-0"));
    keeps_waiting(&mut node, "lo", 20);
    assert_eq!((open(&node).len(), open(&node)[0].count), (1, 27));
}

#[test]
fn it_is_over_once_the_kernel_says_so_no_more_and_what_stops_in_time_is_none() {
    let mut node = node();
    for _ in 0..3 {
        keeps_waiting(&mut node, "lo", 6);
        node.run_for(200 * S);
    }
    assert!(open(&node).is_empty());
    keeps_waiting(&mut node, "lo", 7);
    node.run_for(160 * S);
    assert_eq!(open(&node).len(), 1);
    node.run_for(20 * S);
    let closed = newest(&node).incident.clone().unwrap();
    assert_eq!((closed.close_reason, closed.count), (Some(CloseReason::LikelyGone), 7));
}

#[test]
fn short_waits_for_devices_of_one_name_are_not_one_long_wait() {
    let mut node = node();
    for _ in 0..5 {
        keeps_waiting(&mut node, "lo", 2);
        node.run_for(60 * S);
    }
    assert!(open(&node).is_empty());
}

#[test]
fn of_several_pods_none_is_named_unless_the_device_has_the_name_of_one_that_went() {
    for (ifname, networks, pod) in [
        ("lo", vec![ETCD, WEB], None),
        ("eth0", Vec::new(), None),
        (CALI_OF_WEB, vec![ETCD, WEB], Some("web/web-0")),
        ("eth0", vec![WEB], Some("web/web-0")),
    ] {
        let mut node = node();
        ended(&mut node, &networks);
        keeps_waiting(&mut node, ifname, 7);
        let summary = open(&node).remove(0).summary;
        let named = summary.split_once(", likely of pod ").map(|(_, rest)| rest.split_once(',').unwrap().0);
        assert_eq!(named, pod, "{summary}");
        assert!(summary.contains(ifname), "{summary}");
    }
    let mut late = node();
    ended(&mut late, &[ETCD]);
    late.run_for(30 * S);
    keeps_waiting(&mut late, "lo", 7);
    let summary = open(&late).remove(0).summary;
    assert!(!summary.contains(" of pod "), "{summary}");
}

#[test]
fn a_second_device_is_counted_with_the_first() {
    let mut node = node();
    for _ in 0..8 {
        keeps_waiting(&mut node, "lo", 1);
        keeps_waiting(&mut node, "eth0", 1);
    }
    let incident = open(&node).remove(0);
    assert!(
        incident.summary.contains(" for network device lo and 1 more to become free"),
        "{}",
        incident.summary
    );
    assert_eq!(incident.count, 16);
}

#[test]
fn devices_of_pods_that_stay_meanwhile_have_it_as_cause() {
    let mut node = node();
    keeps_waiting(&mut node, "lo", 7);
    node.observe(etcd(ContainerState::Exited));
    node.observe(Fact::ContainerGone { id: SANDBOX.into(), source: "docker".into() });
    keeps_waiting(&mut node, "lo", 9);
    let orphan = node.open().into_iter().find(|incident| incident.kind == orphan_veth::KIND).unwrap();
    assert_eq!(orphan.caused_by, [open(&node)[0].id.as_str()]);
}

#[test]
fn an_incident_of_the_run_before_goes_on_with_the_next_line_or_is_over() {
    let mut node = node();
    keeps_waiting(&mut node, "lo", 7);
    let resume = node.resume_state();
    let mut silent = TestNode::booted(resume.clone());
    silent.start(Vec::new());
    silent.run_for(170 * S);
    assert_eq!(open(&silent).len(), 1);
    silent.run_for(20 * S);
    assert!(open(&silent).is_empty());
    let mut next = TestNode::booted(resume);
    next.start(Vec::new());
    keeps_waiting(&mut next, "lo", 30);
    assert_eq!((open(&next).len(), open(&next)[0].count), (1, 37));
    assert!(!next.kinds().contains(&"incident.opened"), "{:?}", next.kinds());
}
