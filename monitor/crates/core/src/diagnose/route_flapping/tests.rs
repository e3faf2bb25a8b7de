//! What is removed and restored again and again, and by whom.

use kevtmon_event::Incident;
use kevtmon_observation::*;

use super::*;
use crate::diagnose::tests::harness::*;

fn node() -> TestNode {
    let mut node = TestNode::with_running_pod();
    node.events.clear();
    node
}

fn default_route() -> RouteFacts {
    RouteFacts::default_via(ETCD, gateway(), 2)
}

fn by(tgid: u32, comm: &str) -> TaskRef {
    TaskRef { key: task_key(tgid), tid: tgid, comm: comm.into(), context: None }
}

fn act(node: &mut TestNode, op: RouteOp, actor: Option<TaskRef>) {
    let Some(actor) = actor else { return };
    let ops = vec![op];
    node.observe(Fact::RouteAct(Box::new(RouteAct {
        netns: ETCD,
        ops,
        missing: 0,
        netns_cookie: None,
        actor,
    })));
}

fn remove(node: &mut TestNode, actor: Option<TaskRef>) {
    act(node, RouteOp::RouteDeleted(default_route()), actor);
    node.tables.get_mut(&ETCD).unwrap().routes.retain(|route| *route != default_route());
    node.observe(Fact::RouteGone(default_route()));
}

fn restore(node: &mut TestNode, actor: Option<TaskRef>) {
    act(node, RouteOp::RouteAdded(default_route()), actor);
    node.tables.get_mut(&ETCD).unwrap().routes.push(default_route());
    node.observe(Fact::Route(default_route()));
}

fn flapping(node: &TestNode) -> Vec<Incident> {
    node.open().into_iter().filter(|incident| incident.kind == KIND).collect()
}

#[test]
fn two_programs_that_undo_each_others_work_are_both_named_once() {
    let mut node = node();
    for times in 1..=5 {
        remove(&mut node, Some(by(812, "NetworkManager")));
        node.run_for(S);
        restore(&mut node, Some(by(950, "calico-node")));
        node.run_for(119 * S);
        assert_eq!(flapping(&node).len(), usize::from(times >= 3), "{times}");
    }
    let [incident] = &flapping(&node)[..] else { panic!("{:?}", node.kinds()) };
    assert_eq!(
        incident.summary,
        "NetworkManager (pid 812) removes and calico-node (pid 950) restores the default route of pod lijiaob/etcd1-0, \
         about every 120 s"
    );
    assert_eq!((incident.count, incident.confidence), (5, Confidence::Certain));
    assert_eq!((incident.severity, incident.evidence.len()), (Severity::Warning, 8));
    let opened = node.events.iter().filter(|event| event.kind == Kind::IncidentOpened);
    assert_eq!(opened.count(), 1);
    node.run_for(600 * S);
    assert!(flapping(&node).is_empty(), "it is at rest");
    let last = node.last_incident().incident.as_ref().unwrap();
    assert_eq!(last.close_reason, Some(CloseReason::Resolved));
}

#[test]
fn one_program_alone_is_said_to_do_both_and_an_unseen_one_is_not_guessed() {
    let cases = [
        (
            Some(812),
            Some(812),
            "agent (pid 812) removes and restores the default route of pod lijiaob/etcd1-0 itself, ",
        ),
        (
            Some(812),
            None,
            "agent (pid 812) removes the default route of pod lijiaob/etcd1-0 again and again, ",
        ),
        (
            None,
            Some(812),
            "agent (pid 812) restores the default route of pod lijiaob/etcd1-0 again and again, ",
        ),
        (None, None, "the default route of pod lijiaob/etcd1-0 is removed and restored again and again, "),
    ];
    for (remover, restorer, expected) in cases {
        let mut node = node();
        for _ in 0..3 {
            remove(&mut node, remover.map(|tgid| by(tgid, "agent")));
            restore(&mut node, restorer.map(|tgid| by(tgid, "agent")));
            node.run_for(10 * S);
        }
        let [incident] = &flapping(&node)[..] else { panic!("{:?}", node.kinds()) };
        assert!(incident.summary.starts_with(expected), "{}", incident.summary);
        let is_known = remover.is_some() && restorer.is_some();
        assert_eq!(incident.confidence == Confidence::Certain, is_known);
    }
}

#[test]
fn what_happens_twice_or_slowly_or_by_several_is_told_as_what_it_is() {
    let mut node = node();
    for _ in 0..6 {
        remove(&mut node, None);
        restore(&mut node, None);
        node.run_for(301 * S);
    }
    assert!(flapping(&node).is_empty(), "no three times within ten minutes");
    node.run_for(600 * S);
    for tgid in 1..=3 {
        remove(&mut node, Some(by(800 + tgid, "one")));
        restore(&mut node, Some(by(900, "two")));
    }
    let [incident] = &flapping(&node)[..] else { panic!("{:?}", node.kinds()) };
    assert!(incident.summary.starts_with("one of one removes and two"), "{}", incident.summary);
    assert_eq!(incident.confidence, Confidence::Likely);
}

#[test]
fn who_was_seen_once_is_not_blamed_for_what_was_not_seen() {
    let mut node = node();
    for actor in [None, None, Some(by(812, "ip"))] {
        remove(&mut node, actor);
        restore(&mut node, Some(by(950, "agent")));
        node.run_for(S);
    }
    let [incident] = &flapping(&node)[..] else { panic!("{:?}", node.kinds()) };
    assert!(!incident.summary.contains("812"), "{}", incident.summary);
    assert_eq!(incident.confidence, Confidence::Likely);
    assert!(node.last_incident().actor.is_none());
}

#[test]
fn routes_by_several_gateways_are_several_things() {
    let mut node = node();
    let others =
        [7, 8, 9].map(|last| RouteFacts::default_via(ETCD, format!("10.0.0.{last}").parse().unwrap(), 2));
    others.iter().for_each(|route| node.observe(Fact::Route(route.clone())));
    for route in &others {
        node.observe(Fact::RouteGone(route.clone()));
        node.observe(Fact::Route(route.clone()));
    }
    assert!(flapping(&node).is_empty());
}

#[test]
fn what_is_removed_for_good_is_not_said_to_be_resolved() {
    let mut node = node();
    for _ in 0..3 {
        remove(&mut node, None);
        restore(&mut node, None);
    }
    remove(&mut node, None);
    node.run_for(601 * S);
    let closed = node.incidents().into_iter().rfind(|(_, incident)| incident.kind == KIND).unwrap().1;
    assert_eq!(closed.close_reason, Some(CloseReason::Expired));
}

#[test]
fn a_neighbor_entry_flaps_only_between_two_programs() {
    let set = |node: &mut TestNode, actor: TaskRef| {
        node.set_entry(ETCD, Some((NudState::PERMANENT, Some(host_mac()))));
        node.observe(Fact::Neighbor(Box::new(NeighborChange {
            op: NeighborOp::Added,
            old_state: None,
            new_state: Some(NudState::PERMANENT),
            lladdr: Some(host_mac()),
            actor: Some(actor),
            ..deletion(ETCD, NeighborCause::Admin)
        })));
    };
    for (restorer, expected) in [(28_997, 0), (30_000, 1)] {
        let mut node = node();
        for _ in 0..3 {
            node.delete_entry(ETCD, NeighborCause::Admin);
            set(&mut node, by(restorer, "agent"));
            node.run_for(5 * S);
        }
        assert_eq!(flapping(&node).len(), expected, "{:?}", node.kinds());
    }
}

#[test]
fn it_ends_with_its_namespace_and_goes_on_over_a_restart() {
    let mut node = node();
    for _ in 0..3 {
        remove(&mut node, Some(by(812, "agent")));
        restore(&mut node, Some(by(950, "other")));
        node.run_for(10 * S);
    }
    let mut next = TestNode::booted(node.resume_state());
    next.add_pod(ETCD, "cali9118ebbb10b", NudState::PERMANENT);
    next.start(vec![etcd_sandbox()]);
    assert_eq!(flapping(&next).len(), 1);
    remove(&mut next, Some(by(812, "agent")));
    restore(&mut next, Some(by(950, "other")));
    assert_eq!(flapping(&next)[0].count, 4);
    next.end_network(ETCD);
    next.observe(Fact::NetnsGone { netns: ETCD });
    assert!(flapping(&next).is_empty());
}
