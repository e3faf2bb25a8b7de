//! What happened to gateways while no daemon ran, or just before it ended.

use super::*;
use crate::{Kept, KnownEntry};

fn resumed(gateways: Vec<KnownEntry>) -> Resume {
    Resume { kept: Kept { gateways, ..Kept::default() }, ..Resume::default() }
}

/// A pod with a static entry that a run has seen, and what that run keeps.
fn before(cookie: Option<u64>) -> (TestNode, Vec<KnownEntry>) {
    let mut node = TestNode::with_running_pod();
    let tables = node.tables.get_mut(&ETCD).unwrap();
    tables.cookie = cookie;
    tables.owner =
        Some(NetnsOwner { tgid: 16_707, start_ns: 7 * S, comm: "pause".into(), cgroup: Some("/".into()) });
    node.observe_netns(ETCD);
    let kept = node.core.known_gateways();
    assert_eq!(kept.len(), 1);
    (node, kept)
}

/// The next run, which finds these tables.
fn after(node: &TestNode, kept: Vec<KnownEntry>, change: impl FnOnce(&mut NetnsSnapshot)) -> TestNode {
    let mut again = TestNode::booted(resumed(kept));
    (again.tables, again.now) = (node.tables.clone(), 100 * S);
    change(again.tables.get_mut(&ETCD).unwrap());
    again.start(vec![etcd_sandbox()]);
    again.run_for(30 * S);
    again
}

#[test]
fn an_entry_that_was_deleted_meanwhile_is_found_at_start_without_an_actor() {
    for cookie in [Some(4_097), None] {
        let (node, kept) = before(cookie);
        let again = after(&node, kept, |tables| tables.neighbors.clear());
        assert_eq!(again.kinds(), ["incident.opened"]);
        let opened = again.last_incident();
        assert!(opened.message.ends_with("was removed while nothing was watching"), "{}", opened.message);
        assert!(opened.actor.is_none() && opened.incident.as_ref().unwrap().found_at_start);
    }
}

/// The interface and all that goes with it.
fn without_link(tables: &mut NetnsSnapshot) {
    tables.links.retain(|link| link.ifindex != 2);
    tables.addresses.clear();
    tables.routes.clear();
    tables.neighbors.clear();
}

#[test]
fn an_interface_that_was_deleted_meanwhile_is_missed_once_the_pod_outlives_a_teardown() {
    for state in [NudState::PERMANENT, NudState(0x02)] {
        let (mut node, _) = before(Some(4_097));
        node.tables.get_mut(&ETCD).unwrap().neighbors[0].state = state;
        node.observe_netns(ETCD);
        let mut again = after(&node, node.core.known_gateways(), without_link);
        assert_eq!(again.kinds(), [""; 0], "it may be a teardown");
        // What is missed is not forgotten by another restart.
        let mut third = after(&again, again.core.known_gateways(), without_link);
        for node in [&mut again, &mut third] {
            node.run_for(60 * S);
            assert_eq!(node.kinds(), ["incident.opened"]);
            let opened = node.last_incident();
            assert!(opened.actor.is_none() && opened.incident.as_ref().unwrap().found_at_start);
            assert_eq!(opened.neighbor.as_ref().unwrap().ifname, "eth0");
        }
    }
}

#[test]
fn an_interface_that_is_back_or_was_replaced_is_not_missed() {
    let (node, kept) = before(Some(4_097));
    let mut again = after(&node, kept.clone(), without_link);
    again.tables = node.tables.clone();
    again.observe_netns(ETCD);
    again.run_for(120 * S);
    assert_eq!(again.kinds(), [""; 0]);
    let renewed = |tables: &mut NetnsSnapshot| {
        for link in &mut tables.links {
            link.ifindex += u32::from(link.ifindex == 2);
        }
        tables.addresses.iter_mut().for_each(|address| address.ifindex = 3);
        tables.routes = vec![RouteFacts::default_via(ETCD, "169.254.1.1".parse().unwrap(), 3)];
        tables.neighbors[0].ifindex = 3;
    };
    let mut again = after(&node, kept, renewed);
    again.run_for(120 * S);
    assert_eq!(again.kinds(), [""; 0]);
}

#[test]
fn what_was_only_suspected_goes_on_with_its_actor() {
    let (mut node, _) = before(Some(4_097));
    node.delete_entry(ETCD, NeighborCause::LinkDeleted);
    without_link(node.tables.get_mut(&ETCD).unwrap());
    node.observe_netns(ETCD);
    assert_eq!(node.kinds(), [""; 0], "it may be a teardown");
    let kept = node.core.known_gateways();
    let mut again = after(&node, kept.clone(), without_link);
    again.run_for(60 * S);
    let opened = again.last_incident();
    assert_eq!(opened.actor.as_ref().unwrap().pid, 28_997, "{}", opened.message);
    let incident = opened.incident.as_ref().unwrap();
    assert!(!incident.found_at_start);
    // It may have been repaired and have broken again.
    assert_eq!(incident.confidence, Confidence::Likely);
    let another = |tables: &mut NetnsSnapshot| {
        without_link(tables);
        tables.cookie = Some(4_098);
    };
    let mut another = after(&node, kept, another);
    another.run_for(120 * S);
    assert_eq!(another.kinds(), [""; 0], "another sandbox");
}

#[test]
fn what_was_suspected_is_not_said_of_an_entry_that_is_there_again_and_wrong() {
    let (mut node, _) = before(Some(4_097));
    node.delete_entry(ETCD, NeighborCause::LinkDeleted);
    without_link(node.tables.get_mut(&ETCD).unwrap());
    node.observe_netns(ETCD);
    let kept = node.core.known_gateways();
    assert!(kept[0].suspected.is_some());
    let (intact, _) = before(Some(4_097));
    let wrong = LlAddr(vec![0x02, 0, 0, 0, 0, 0x99]);
    let mut again = after(&intact, kept, |tables| tables.neighbors[0].lladdr = Some(wrong));
    again.run_for(60 * S);
    let opened = again.last_incident();
    assert!(opened.message.contains("points to 02:00:00:00:00:99"), "{}", opened.message);
    let entry = opened.neighbor.as_ref().unwrap();
    assert_eq!(entry.reason.as_deref(), Some("wrong-lladdr"));
    assert!(opened.actor.is_none(), "nobody was seen setting it");
}

#[test]
fn what_a_run_was_to_compare_is_kept_until_the_node_is_read() {
    let (_, kept) = before(Some(4_097));
    let again = TestNode::booted(resumed(kept.clone()));
    assert_eq!(again.core.known_gateways(), kept);
}

#[test]
fn what_is_there_or_cannot_be_compared_is_no_loss() {
    let (node, kept) = before(Some(4_097));
    let none = |_: &mut NetnsSnapshot| {};
    assert_eq!(after(&node, kept.clone(), none).kinds(), [""; 0], "it is there");
    assert_eq!(after(&node, Vec::new(), |tables| tables.neighbors.clear()).kinds(), [""; 0]);
    let restarted = |tables: &mut NetnsSnapshot| {
        tables.neighbors.clear();
        tables.cookie = Some(4_098);
    };
    assert_eq!(after(&node, kept.clone(), restarted).kinds(), [""; 0], "another sandbox");
    let rerouted = |tables: &mut NetnsSnapshot| {
        tables.neighbors.clear();
        tables.routes = vec![RouteFacts::default_via(ETCD, "169.254.9.9".parse().unwrap(), 2)];
    };
    assert_eq!(after(&node, kept.clone(), rerouted).kinds(), [""; 0], "another gateway");
    let learned = |tables: &mut NetnsSnapshot| tables.neighbors[0].state = NudState(0x02);
    assert_eq!(after(&node, kept, learned).kinds(), [""; 0], "packets flow");
    let (node, kept) = before(None);
    let restarted = |tables: &mut NetnsSnapshot| {
        tables.neighbors.clear();
        tables.owner.as_mut().unwrap().start_ns = 9 * S;
    };
    assert_eq!(after(&node, kept, restarted).kinds(), [""; 0], "another process of the same id");
}

#[test]
fn a_container_that_the_runtime_reports_late_is_called_by_its_name() {
    let (node, kept) = before(Some(4_097));
    let mut again = TestNode::booted(resumed(kept));
    (again.tables, again.now) = (node.tables.clone(), 100 * S);
    let tables = again.tables.get_mut(&ETCD).unwrap();
    tables.neighbors.clear();
    if let Some(owner) = &mut tables.owner {
        owner.cgroup = Some(format!("/docker/{SANDBOX}"));
    }
    again.observe_netns(ETCD);
    again.run_for(MS);
    again.start(vec![etcd_sandbox()]);
    again.run_for(30 * S);
    let opened = again.last_incident();
    assert!(opened.message.starts_with("pod lijiaob/etcd1-0 has lost"), "{}", opened.message);
    assert_eq!(opened.target.as_ref().unwrap().pod.as_ref().unwrap().name.as_deref(), Some("etcd1-0"));
}
