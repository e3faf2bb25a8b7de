//! Next hops by tunnels of the host, whose entries agents set and delete.

use super::*;

const DEVICE: u32 = 90;

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn hop() -> IpAddr {
    address("10.44.2.0")
}

fn route() -> RouteFacts {
    RouteFacts { destination: Some((hop(), 24)), ..RouteFacts::default_via(HOST, hop(), DEVICE) }
}

fn entry(of: &str) -> NeighborEntry {
    NeighborEntry {
        ifindex: DEVICE,
        address: address(of),
        state: NudState::PERMANENT,
        lladdr: Some(host_mac()),
    }
}

/// A node of a cluster: 10.44.2.0 is another one, and 10.44.1.0 was one.
fn node() -> TestNode {
    let mut node = TestNode::booted(Resume::default());
    let host = node.tables.get_mut(&HOST).unwrap();
    host.links.push(LinkFacts {
        netns: HOST,
        ifindex: DEVICE,
        ifname: "vxlan.calico".into(),
        kind: Some("vxlan".into()),
        flags: iff::UP | iff::LOWER_UP,
        ..LinkFacts::default()
    });
    host.routes.push(route());
    host.neighbors.extend(["10.44.1.0", "10.44.2.0"].map(entry));
    node.start(Vec::new());
    node.observe(calico());
    node.run_for(10 * S);
    node.events.clear();
    node
}

fn change(op: NeighborOp, of: &str) -> NeighborChange {
    NeighborChange {
        key: NeighborKey { netns: HOST, ifindex: DEVICE, address: address(of) },
        ifname: "vxlan.calico".into(),
        op,
        ..deletion(HOST, NeighborCause::Admin)
    }
}

fn delete(node: &mut TestNode, of: &str) {
    let is_other = |known: &NeighborEntry| known.address != address(of);
    node.tables.get_mut(&HOST).unwrap().neighbors.retain(is_other);
    node.observe(Fact::Neighbor(Box::new(change(NeighborOp::Deleted, of))));
}

fn set(node: &mut TestNode, of: &str) {
    node.tables.get_mut(&HOST).unwrap().neighbors.push(entry(of));
    let change = NeighborChange {
        old_state: None,
        new_state: Some(NudState::PERMANENT),
        lladdr: None,
        new_lladdr: Some(host_mac()),
        ..change(NeighborOp::Added, of)
    };
    node.observe(Fact::Neighbor(Box::new(change)));
}

fn delete_route(node: &mut TestNode) {
    node.tables.get_mut(&HOST).unwrap().routes.clear();
    node.observe(Fact::RouteGone(route()));
}

fn lost() -> TestNode {
    let mut node = node();
    delete(&mut node, "10.44.2.0");
    node.run_for(2 * S);
    node
}

fn close_reason(node: &TestNode) -> Option<CloseReason> {
    assert!(node.open().is_empty(), "{:?}", node.kinds());
    node.last_incident().incident.as_ref().unwrap().close_reason
}

#[test]
fn who_deleted_the_entry_of_a_node_in_use_is_named_with_what_is_lost() {
    let mut node = lost();
    let deleted = node.events.iter().find(|event| event.kind == Kind::NeighborDeleted).unwrap();
    assert_eq!(
        (deleted.severity, deleted.neighbor.as_ref().unwrap().gateway),
        (Severity::Notice, Some(true))
    );
    let opened = node.last_incident();
    assert_eq!(opened.kind, Kind::IncidentOpened);
    assert_eq!(
        opened.message,
        "calico (pid 28997) deleted the neighbor entry of 10.44.2.0 on vxlan.calico: what goes to 10.44.2.0/24 by way of it is lost"
    );
    assert_eq!(opened.actor.as_ref().map(|actor| actor.pid), Some(28_997));
    assert_eq!(opened.target.as_ref().unwrap().join, Join::Host);
    let incident = opened.incident.as_ref().unwrap();
    assert_eq!((incident.severity, &incident.evidence), (Severity::Warning, &vec![deleted.seq]));
    assert_eq!(incident.confidence, Confidence::Likely, "a tunnel may find it by itself");
    let advised: Vec<&str> = incident.advice.iter().map(|step| step.command.as_str()).collect();
    assert_eq!(
        advised,
        ["ip neigh replace 10.44.2.0 lladdr ee:ee:ee:ee:ee:ee dev vxlan.calico nud permanent"]
    );
    assert_eq!(incident.ruled_out, ["vxlan.calico is up", "the route to 10.44.2.0/24 is in place"]);
    node.run_for(61 * S);
    assert_eq!(node.open()[0].severity, Severity::Critical);
    set(&mut node, "10.44.2.0");
    assert_eq!(close_reason(&node), Some(CloseReason::Resolved));
}

#[test]
fn it_is_certain_once_the_kernel_cannot_resolve_the_address() {
    let mut node = lost();
    let failed = NeighborChange {
        cause: NeighborCause::Unknown,
        old_state: None,
        new_state: Some(NudState::FAILED),
        lladdr: None,
        actor: None,
        ..change(NeighborOp::Failed, "10.44.2.0")
    };
    node.observe(Fact::Neighbor(Box::new(failed)));
    let [incident] = &node.open()[..] else { panic!("{:?}", node.kinds()) };
    assert_eq!((incident.confidence, incident.count, incident.evidence.len()), (Confidence::Certain, 1, 2));
    let told = node.last_incident();
    assert_eq!(told.actor.as_ref().map(|actor| actor.pid), Some(28_997), "{}", told.message);
}

#[test]
fn nothing_is_lost_with_an_entry_that_no_route_leads_to_or_that_comes_back_or_goes_with_its_route() {
    let cases: [fn(&mut TestNode); 4] = [
        |node| delete(node, "10.44.1.0"),
        |node| {
            delete(node, "10.44.2.0");
            node.run_for(S / 2);
            set(node, "10.44.2.0");
        },
        |node| {
            delete(node, "10.44.2.0");
            node.run_for(S);
            delete_route(node);
        },
        |node| {
            delete_route(node);
            delete(node, "10.44.2.0");
        },
    ];
    for act in cases {
        let mut node = node();
        act(&mut node);
        node.run_for(100 * S);
        assert!(node.kinds().is_empty(), "{:?}", node.kinds());
    }
}

#[test]
fn an_entry_that_is_replaced_is_no_loss_and_not_said_to_be_wrong() {
    let mut node = node();
    let replaced = NeighborChange {
        new_state: Some(NudState::PERMANENT),
        new_lladdr: Some(mac(9)),
        ..change(NeighborOp::Changed, "10.44.2.0")
    };
    node.observe(Fact::Neighbor(Box::new(replaced)));
    node.run_for(100 * S);
    let [event] = &node.events[..] else { panic!("{:?}", node.kinds()) };
    assert_eq!((event.severity, event.neighbor.as_ref().unwrap().reason.as_ref()), (Severity::Notice, None));
}

#[test]
fn it_is_over_with_its_route_or_device() {
    let cases: [fn(&mut TestNode); 2] = [delete_route, |node| {
        let host = node.tables.get_mut(&HOST).unwrap();
        host.links.clear();
        host.routes.clear();
        node.observe(Fact::LinkGone { netns: HOST, ifindex: DEVICE, moved_to: None });
    }];
    for act in cases {
        let mut node = lost();
        act(&mut node);
        assert_eq!(close_reason(&node), Some(CloseReason::SubjectGone));
    }
}

#[test]
fn a_repair_that_was_not_told_closes_it_with_the_next_reading() {
    let mut node = lost();
    node.tables.get_mut(&HOST).unwrap().neighbors.push(entry("10.44.2.0"));
    node.run_for(11 * S);
    assert_eq!(close_reason(&node), Some(CloseReason::Resolved));
}

#[test]
fn the_next_run_goes_on_with_it() {
    let mut before = lost();
    let resume = before.resume_state();
    let [id] = &before.open()[..] else { panic!("{:?}", before.kinds()) };
    let id = id.id.clone();
    for is_back in [false, true] {
        let mut node = TestNode::booted(resume.clone());
        node.tables = before.tables.clone();
        node.now = before.now;
        if is_back {
            node.tables.get_mut(&HOST).unwrap().neighbors.push(entry("10.44.2.0"));
        }
        node.start(Vec::new());
        node.run_for(20 * S);
        let open: Vec<String> = node.open().into_iter().map(|incident| incident.id).collect();
        assert_eq!(open, if is_back { vec![] } else { vec![id.clone()] });
    }
    before.events.clear();
}

#[test]
fn an_agent_that_deletes_them_all_opens_a_bounded_number() {
    let mut node = node();
    let all: Vec<String> = (0..132).map(|number| format!("10.45.{number}.0")).collect();
    let host = node.tables.get_mut(&HOST).unwrap();
    for one in &all {
        let destination = Some((address(one), 24));
        host.routes.push(RouteFacts { destination, ..RouteFacts::default_via(HOST, address(one), DEVICE) });
        host.neighbors.push(entry(one));
    }
    node.observe_netns(HOST);
    node.run_for(10 * S);
    all.iter().for_each(|one| delete(&mut node, one));
    node.run_for(5 * S);
    assert_eq!(node.open().len(), 128);
}

#[test]
fn an_agent_that_deletes_and_sets_one_again_and_again_is_said_to_do_both() {
    let mut node = node();
    for _ in 0..3 {
        delete(&mut node, "10.44.2.0");
        set(&mut node, "10.44.2.0");
        node.run_for(10 * S);
    }
    let [incident] = &node.open()[..] else { panic!("{:?}", node.kinds()) };
    assert_eq!(incident.kind, "route-flapping");
    assert_eq!(
        incident.summary,
        "calico (pid 28997) removes and restores the neighbor entry 10.44.2.0 on vxlan.calico of the host itself, \
         about every 10 s"
    );
}
