//! Which gateway is missed when default routes move, vanish and come back.

use super::*;

fn other() -> IpAddr {
    "169.254.9.9".parse().unwrap()
}

/// A second interface with an address, and whatever routes there are to be.
fn reroute(node: &mut TestNode, routes: Vec<RouteFacts>) {
    let tables = node.tables.get_mut(&ETCD).unwrap();
    if !tables.links.iter().any(|link| link.ifindex == 7) {
        tables.links.push(veth(ETCD, 7, "net1", HOST, 99));
    }
    tables.addresses = [2, 7]
        .map(|ifindex| AddressFacts {
            netns: ETCD,
            ifindex,
            address: "192.168.252.66".parse().unwrap(),
            prefix_len: 32,
        })
        .to_vec();
    tables.routes = routes;
    node.observe_netns(ETCD);
    node.run_for(10 * S);
    node.events.clear();
}

#[test]
fn the_entry_of_a_former_gateway_is_nobodys_loss() {
    let mut node = TestNode::with_running_pod();
    reroute(&mut node, vec![RouteFacts::default_via(ETCD, other(), 7)]);
    node.delete_entry(ETCD, NeighborCause::Admin);
    node.run_for(120 * S);
    let deleted = node.events.iter().find(|event| event.kind == Kind::NeighborDeleted).unwrap();
    assert_eq!(deleted.neighbor.as_ref().unwrap().gateway, Some(false));
    assert_eq!(node.open().len(), 0);
    // Nor after a restart.
    let mut again = TestNode::booted(node.resume_state());
    again.tables = node.tables.clone();
    again.now = node.now;
    again.start(vec![etcd_sandbox()]);
    again.run_for(120 * S);
    assert_eq!(again.open().len(), 0);
}

#[test]
fn the_gateways_address_on_another_interface_is_no_gateway() {
    let mut node = TestNode::with_running_pod();
    let routes = vec![RouteFacts::default_via(ETCD, gateway(), 2)];
    reroute(&mut node, routes);
    let mut change = deletion(ETCD, NeighborCause::Admin);
    change.key.ifindex = 7;
    change.ifname = "net1".into();
    node.observe(Fact::Neighbor(Box::new(change)));
    node.run_for(120 * S);
    assert_eq!((node.open().len(), node.events[0].neighbor.as_ref().unwrap().gateway), (0, Some(false)));
}

#[test]
fn a_spare_route_of_a_higher_metric_is_none_either() {
    let mut node = TestNode::with_running_pod();
    let spare = RouteFacts { metric: 100, ..RouteFacts::default_via(ETCD, other(), 7) };
    reroute(&mut node, vec![RouteFacts::default_via(ETCD, gateway(), 2), spare]);
    let mut change = deletion(ETCD, NeighborCause::Admin);
    (change.key.ifindex, change.key.address) = (7, other());
    node.observe(Fact::Neighbor(Box::new(change)));
    assert_eq!((node.open().len(), node.events[0].neighbor.as_ref().unwrap().gateway), (0, Some(false)));
}

#[test]
fn an_incident_closes_when_the_route_moves_or_is_deleted_on_purpose() {
    for routes in [vec![RouteFacts::default_via(ETCD, other(), 7)], Vec::new()] {
        let mut node = lost();
        assert_eq!(node.open().len(), 1);
        let tables = node.tables.get_mut(&ETCD).unwrap();
        tables.links.push(veth(ETCD, 7, "net1", HOST, 99));
        tables.addresses = vec![AddressFacts {
            netns: ETCD,
            ifindex: 2,
            address: "192.168.252.66".parse().unwrap(),
            prefix_len: 32,
        }];
        tables.routes = routes;
        node.run_for(5 * S);
        assert_eq!(node.open().len(), 0);
        assert_eq!(node.last_incident().incident.as_ref().unwrap().close_reason, Some(CloseReason::Resolved));
    }
}

#[test]
fn a_gateway_that_went_with_its_interface_stays_missed() {
    let mut node = TestNode::with_running_pod();
    node.delete_entry(ETCD, NeighborCause::LinkDeleted);
    let tables = node.tables.get_mut(&ETCD).unwrap();
    (tables.links, tables.routes, tables.addresses) = Default::default();
    node.run_for(600 * S);
    assert_eq!(node.open().len(), 1, "{:?}", node.kinds());
}

fn address_of(netns: NsInum, ifindex: u32) -> AddressFacts {
    AddressFacts { netns, ifindex, address: "192.168.252.66".parse().unwrap(), prefix_len: 32 }
}

#[test]
fn a_route_that_went_with_its_interface_stays_missed_when_the_interface_is_up_again() {
    let mut node = TestNode::with_running_pod();
    node.tables.get_mut(&ETCD).unwrap().addresses = vec![address_of(ETCD, 2)];
    node.observe_netns(ETCD);
    let eth0 = node.tables[&ETCD].links[0].clone();
    node.delete_entry(ETCD, NeighborCause::LinkDown);
    let says_it =
        |node: &TestNode| node.open()[0].advice[0].text.contains("default route by the gateway is missing");
    assert!(!says_it(&node));
    let down = LinkFacts { flags: 0, ..eth0.clone() };
    node.observe(Fact::Link(Box::new(down.clone())));
    // The kernel sends no message about the route.
    let tables = node.tables.get_mut(&ETCD).unwrap();
    (tables.links, tables.routes) = (vec![down], Vec::new());
    node.run_for(10 * S);
    assert!(!says_it(&node), "how to set the interface up says that");
    node.tables.get_mut(&ETCD).unwrap().links = vec![eth0.clone()];
    node.observe(Fact::Link(Box::new(eth0)));
    assert!(says_it(&node), "{:?}", node.open()[0].advice);
    node.observe_netns(ETCD);
    node.run_for(100 * S);
    assert_eq!(node.open().len(), 1, "{:?}", node.kinds());
    assert!(says_it(&node), "{:?}", node.open()[0].advice);
    node.tables.get_mut(&ETCD).unwrap().routes = vec![RouteFacts::default_via(ETCD, gateway(), 2)];
    node.run_for(3 * S);
    assert!(!says_it(&node), "{:?}", node.open()[0].advice);
    // Restored.
    node.tables.get_mut(&ETCD).unwrap().routes = vec![RouteFacts::default_via(ETCD, gateway(), 2)];
    node.set_entry(ETCD, Some((NudState::PERMANENT, Some(host_mac()))));
    node.run_for(2 * S);
    assert_eq!(node.open().len(), 0);
}

#[test]
fn what_may_have_been_deleted_on_purpose_while_messages_were_lost_is_not_certain() {
    let confidence = |is_lost: bool| {
        let mut node = TestNode::with_running_pod();
        node.tables.get_mut(&ETCD).unwrap().addresses = vec![address_of(ETCD, 2)];
        node.observe_netns(ETCD);
        let tables = node.tables.get_mut(&ETCD).unwrap();
        (tables.links, tables.routes, tables.addresses) = Default::default();
        if is_lost {
            node.observe(Fact::NetnsMissed { since: 1 });
        }
        node.delete_entry(ETCD, NeighborCause::LinkDeleted);
        node.observe(Fact::LinkGone { netns: ETCD, ifindex: 2, moved_to: None });
        node.observe_netns(ETCD);
        node.run_for(600 * S);
        assert_eq!(node.open().len(), 1, "{:?}", node.kinds());
        let incident = node.last_incident().incident.clone().unwrap();
        (incident.confidence, incident.severity)
    };
    assert_eq!(confidence(false), (Confidence::Certain, Severity::Critical));
    assert_eq!(confidence(true), (Confidence::Likely, Severity::Warning));
}

#[test]
fn a_learned_gateway_that_went_with_its_interface_is_missed_too() {
    let mut node = TestNode::booted(Resume::default());
    node.add_pod(ETCD, "cali9118ebbb10b", NudState(0x02));
    node.start(vec![sandbox(SANDBOX, ETCD, "lijiaob", "etcd1-0", "u")]);
    node.tables.get_mut(&HOST).unwrap().links.clear();
    let tables = node.tables.get_mut(&ETCD).unwrap();
    (tables.links, tables.routes, tables.neighbors) = Default::default();
    node.observe(Fact::LinkGone { netns: ETCD, ifindex: 2, moved_to: None });
    node.observe_netns(ETCD);
    node.run_for(55 * S);
    assert!(node.open().is_empty(), "it may be torn down");
    node.run_for(10 * S);
    let opened = node.last_incident();
    assert_eq!(
        opened.message,
        "pod lijiaob/etcd1-0 has lost its gateway 169.254.1.1: its ARP entry on eth0 is gone together with the \
         interface or its address"
    );
    assert_eq!(opened.neighbor.as_ref().unwrap().reason.as_deref(), Some("missing"));
}

#[test]
fn an_interface_that_leaves_the_way_to_another_one_takes_nothing_along() {
    let mut node = TestNode::with_running_pod();
    let spare = RouteFacts { metric: 100, ..RouteFacts::default_via(ETCD, other(), 7) };
    reroute(&mut node, vec![RouteFacts::default_via(ETCD, gateway(), 2), spare.clone()]);
    node.delete_entry(ETCD, NeighborCause::LinkDown);
    let tables = node.tables.get_mut(&ETCD).unwrap();
    (tables.links[0].flags, tables.routes) = (0, vec![spare]);
    node.observe_netns(ETCD);
    node.run_for(100 * S);
    assert_eq!(node.kinds(), [""; 0]);
}

#[test]
fn an_interface_that_goes_where_there_is_another_one_is_waited_for_a_moment() {
    for is_replaced in [true, false] {
        let mut node = TestNode::with_running_pod();
        let tables = node.tables.get_mut(&ETCD).unwrap();
        tables.links.push(LinkFacts { ifindex: 7, ifname: "net1".into(), ..tables.links[0].clone() });
        let address = "10.7.0.2".parse().unwrap();
        tables.addresses.push(AddressFacts { netns: ETCD, ifindex: 7, address, prefix_len: 24 });
        node.observe_netns(ETCD);
        node.delete_entry(ETCD, NeighborCause::LinkDown);
        let tables = node.tables.get_mut(&ETCD).unwrap();
        (tables.links[0].flags, tables.routes) = (0, Vec::new());
        if is_replaced {
            tables.routes.push(RouteFacts::default_via(ETCD, other(), 7));
        }
        node.observe_netns(ETCD);
        assert_eq!(node.kinds(), [""; 0]);
        node.run_for(30 * S);
        match is_replaced {
            true => assert_eq!(node.kinds(), [""; 0]),
            false => assert_eq!(node.last_incident().actor.as_ref().unwrap().pid, 28_997),
        }
    }
}

#[test]
fn of_equal_routes_the_second_is_lost_likely_and_never_critical() {
    let mut node = TestNode::with_running_pod();
    let second = RouteFacts::default_via(ETCD, other(), 2);
    reroute(&mut node, vec![second, RouteFacts::default_via(ETCD, gateway(), 2)]);
    node.delete_entry(ETCD, NeighborCause::Admin);
    node.run_for(120 * S);
    let opened = node.last_incident();
    let incident = opened.incident.as_ref().unwrap();
    assert_eq!((incident.confidence, incident.severity), (Confidence::Likely, Severity::Warning));
    let deleted = node.events.iter().find(|event| event.kind == Kind::NeighborDeleted).unwrap();
    assert_eq!(deleted.neighbor.as_ref().unwrap().gateway, None, "it depends on the first one's entry");
}

#[test]
fn a_deletion_of_which_nothing_was_known_is_told_of_what_is_missed_later() {
    let mut node = TestNode::with_running_pod();
    let routes = node.tables[&ETCD].routes.clone();
    reroute(&mut node, vec![RouteFacts::default_via(ETCD, other(), 7)]);
    // The route comes back about when the entry is deleted; what is read then began before that.
    node.observe(Fact::NetnsHeard { netns: ETCD, until: node.now });
    node.run_for(S);
    node.observe(Fact::NetnsStale { netns: ETCD, told: false });
    node.now -= S / 2;
    node.tables.get_mut(&ETCD).unwrap().routes = routes;
    node.observe(Fact::Neighbor(Box::new(deletion(ETCD, NeighborCause::Admin))));
    let deleted = node.events.iter().find(|event| event.kind == Kind::NeighborDeleted).unwrap();
    assert_eq!((deleted.neighbor.as_ref().unwrap().gateway, node.open().len()), (None, 0));
    let seq = deleted.seq;
    node.set_entry(ETCD, None);
    node.run_for(2 * S);
    node.observe_netns(ETCD);
    node.run_for(10 * S);
    let opened = node.last_incident();
    assert_eq!(opened.actor.as_ref().unwrap().pid, 28_997, "{}", opened.message);
    assert!(opened.message.contains("was deleted by calico"), "{}", opened.message);
    assert_eq!(opened.incident.as_ref().unwrap().evidence, [seq]);
}
