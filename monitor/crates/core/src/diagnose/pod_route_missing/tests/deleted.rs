//! Who deleted the route, where a program in the kernel has seen it.

use super::*;

fn lose_by(node: &mut TestNode, tgid: u32) {
    let actor = TaskRef { key: task_key(tgid), tid: tgid, comm: "ip".into(), context: None };
    let ops = vec![RouteOp::RouteDeleted(host_route())];
    node.observe(Fact::RouteAct(Box::new(RouteAct {
        netns: HOST,
        ops,
        missing: 0,
        netns_cookie: None,
        actor,
    })));
    lose(node, FoundRoute::Nothing);
}

#[test]
fn who_deleted_the_route_is_named_and_the_deletion_is_evidence() {
    let mut node = started(node());
    lose_by(&mut node, 4_711);
    node.run_for(15 * S);
    let event = node.last_incident();
    let incident = event.incident.as_ref().unwrap();
    assert!(
        incident.summary.ends_with("no route matches; the route was deleted by ip (pid 4711)"),
        "{}",
        incident.summary
    );
    let actor = event.actor.as_ref().unwrap();
    assert_eq!((actor.pid, actor.confidence), (4_711, Confidence::Certain));
    let told = node.events.iter().find(|event| event.kind == Kind::RouteDeleted).unwrap();
    assert_eq!(incident.evidence, [told.seq]);
}

#[test]
fn who_deleted_it_before_it_was_added_again_is_not_blamed_for_what_came_then() {
    let mut node = started(node());
    lose_by(&mut node, 4_711);
    restore(&mut node);
    node.run_for(5 * S);
    lose(&mut node, FoundRoute::Nothing);
    node.run_for(15 * S);
    let event = node.last_incident();
    assert!(event.actor.is_none());
    let untold = "; the route was deleted; actor unknown";
    assert!(event.message.contains(untold), "{}", event.message);
}

#[test]
fn after_a_loss_he_is_only_likely_the_one() {
    let mut node = started(node());
    lose_by(&mut node, 4_711);
    node.observe(Fact::Lost(Loss { source: "netlink".into(), reason: "overrun".into(), count: None }));
    node.run_for(15 * S);
    let event = node.last_incident();
    assert_eq!(event.actor.as_ref().unwrap().confidence, Confidence::Likely);
    assert!(event.message.contains("deleted, likely by ip (pid 4711)"), "{}", event.message);
}

#[test]
fn who_deleted_it_once_is_not_blamed_for_a_deletion_of_which_no_event_tells() {
    let mut node = started(node());
    lose_by(&mut node, 4_711);
    restore(&mut node);
    node.run_for(5 * S);
    node.elsewhere.insert(ip(), FoundRoute::Nothing);
    // By an interface that leads to no pod.
    node.observe(Fact::RouteGone(RouteFacts { ifindex: Some(UPLINK), ..host_route() }));
    node.run_for(15 * S);
    let event = node.last_incident();
    assert!(event.actor.is_none() && event.incident.as_ref().unwrap().evidence.is_empty());
    assert!(!event.message.contains("4711"), "{}", event.message);
}
