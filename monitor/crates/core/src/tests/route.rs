//! Routes and addresses: which changes become events, and of whom.

use super::link::end;
use super::*;

#[test]
fn of_routes_only_default_ones_of_the_main_table_give_events() {
    let mut core = settled();
    let default = RouteFacts::default_via(POD, "10.8.0.1".parse().unwrap(), 9);
    let half = RouteFacts { destination: Some(("0.0.0.0".parse().unwrap(), 1)), ..default.clone() };
    let other = RouteFacts { table: 100, ..default.clone() };
    [half, other, default].into_iter().for_each(|route| core.observe(at(10, Fact::Route(route))));
    let kinds: Vec<Kind> = events(&mut core).iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [Kind::RouteAdded]);
}

#[test]
fn a_route_of_the_host_to_a_pod_is_an_event_of_that_pod() {
    let mut core = settled();
    core.observe(at(2, Fact::Link(Box::new(end(iff::UP)))));
    events(&mut core);
    let to = |address: &str, ifindex| RouteFacts {
        destination: Some((address.parse().unwrap(), if address.contains(':') { 128 } else { 32 })),
        gateway: None,
        ipv6: false,
        ..RouteFacts::default_via(HOST, "10.0.0.1".parse().unwrap(), ifindex)
    };
    core.observe(at(3, Fact::Route(to("192.168.252.66", 9))));
    let [added] = &events(&mut core)[..] else { panic!("not one event") };
    assert_eq!((added.kind, added.severity), (Kind::RouteAdded, Severity::Debug));
    core.observe(at(4, Fact::RouteGone(to("192.168.252.66", 9))));
    let [deleted] = &events(&mut core)[..] else { panic!("not one event") };
    assert_eq!(
        deleted.message,
        "route of the host to 192.168.252.66/32 by cali91 of pod lijiaob/etcd1-0 deleted"
    );
    assert_eq!(
        (deleted.kind, deleted.severity, deleted.actor.is_none()),
        (Kind::RouteDeleted, Severity::Info, true)
    );
    let route = deleted.route.as_ref().unwrap();
    assert_eq!((route.netns, route.ifindex, route.gateway), (HOST, Some(9), None));
    core.observe(at(5, Fact::RouteGone(to("fd00::66", 9))));
    assert_eq!(events(&mut core)[0].route.as_ref().unwrap().destination, "fd00::66/128");
    core.observe(at(6, Fact::Route(to("10.7.7.7", 5))));
    assert!(events(&mut core).is_empty(), "it leads to no pod");
}

#[test]
fn a_route_of_the_host_to_the_address_of_a_pod_by_another_interface_is_an_event_of_that_pod() {
    let mut core = settled();
    let inner = LinkFacts { netns: POD, ifindex: 2, ifname: "eth0".into(), ..end(iff::UP) };
    let other = LinkFacts { ifindex: 5, ifname: "ens3".into(), peer: None, ..end(iff::UP) };
    for link in [inner, end(iff::UP), other] {
        core.observe(at(2, Fact::Link(Box::new(link))));
    }
    let address: std::net::IpAddr = "10.8.0.7".parse().unwrap();
    core.observe(at(3, Fact::Address(AddressFacts { netns: POD, ifindex: 2, address, prefix_len: 32 })));
    events(&mut core);
    let route = RouteFacts {
        destination: Some((address, 32)),
        gateway: None,
        ..RouteFacts::default_via(HOST, address, 5)
    };
    core.observe(at(4, Fact::Route(route.clone())));
    let [added] = &events(&mut core)[..] else { panic!("not one event") };
    assert_eq!((added.kind, added.severity), (Kind::RouteAdded, Severity::Info));
    assert_eq!(added.message, "route of the host to 10.8.0.7/32 of pod lijiaob/etcd1-0 by ens3 added");
    core.observe(at(5, Fact::RouteGone(route)));
    assert!(events(&mut core).is_empty(), "the pod's own route decides then");
}

#[test]
fn a_route_to_the_address_of_a_pod_by_the_host_end_of_another_is_an_event_of_the_former() {
    let mut core = settled();
    let (other, id) = (8, "b".repeat(64));
    core.observe(at(2, snapshot(other)));
    let Fact::Container(known) = container(ContainerState::Running) else { unreachable!() };
    let pod = known.pod.clone().map(|pod| PodIdentity {
        name: "web-0".into(),
        uid: "0b7a2f50-9d1c-4a3e-8f6d-2c5b1e0a9d84".into(),
        sandbox_id: Some(id.clone()),
        ..pod
    });
    let name = "k8s_POD_web-0_lijiaob_0b7a_0".into();
    let web = ContainerFacts { id, name, netns: Some(other), tgid: Some(16_800), pod, ..*known };
    core.observe(at(2, Fact::Container(Box::new(web))));
    let inner = LinkFacts { netns: POD, ifindex: 2, ifname: "eth0".into(), ..end(iff::UP) };
    let peer = Some(PeerLink { ifindex: 2, netns: Some(other) });
    let of_web = LinkFacts { ifindex: 10, ifname: "cali92".into(), peer, ..end(iff::UP) };
    for link in [inner, end(iff::UP), of_web] {
        core.observe(at(2, Fact::Link(Box::new(link))));
    }
    let address: std::net::IpAddr = "10.8.0.7".parse().unwrap();
    core.observe(at(3, Fact::Address(AddressFacts { netns: POD, ifindex: 2, address, prefix_len: 32 })));
    events(&mut core);
    let route = RouteFacts {
        destination: Some((address, 32)),
        gateway: None,
        ..RouteFacts::default_via(HOST, address, 10)
    };
    core.observe(at(4, Fact::Route(route.clone())));
    let [added] = &events(&mut core)[..] else { panic!("not one event") };
    assert_eq!((added.kind, added.severity), (Kind::RouteAdded, Severity::Info));
    assert_eq!(
        added.message,
        "route of the host to 10.8.0.7/32 of pod lijiaob/etcd1-0 by cali92 of pod lijiaob/web-0 added"
    );
    let target = added.target.as_ref().and_then(|target| target.pod.as_ref()).unwrap();
    assert_eq!(target.name.as_deref(), Some("etcd1-0"));
    core.observe(at(5, Fact::RouteGone(route)));
    assert!(events(&mut core).is_empty(), "the pod's own route decides then");
}

fn act(tgid: u32, ops: Vec<RouteOp>) -> Fact {
    act_in(POD, tgid, ops)
}

pub(super) fn act_in(netns: NsInum, tgid: u32, ops: Vec<RouteOp>) -> Fact {
    let key = TaskKey { tgid, start_ns: 5, exec_id: 2 };
    let actor = TaskRef { key, tid: tgid, comm: "ip".into(), context: None };
    Fact::RouteAct(Box::new(RouteAct { netns, ops, missing: 0, netns_cookie: None, actor }))
}

/// Who is named by the events, and how.
pub(super) fn named(core: &mut Core) -> Vec<(Kind, Option<(u32, Confidence)>)> {
    let by = |event: &Event| event.actor.as_ref().map(|actor| (actor.pid, actor.confidence));
    events(core).iter().map(|event| (event.kind, by(event))).collect()
}

#[test]
fn who_has_a_route_deleted_is_named_for_that_one_alone() {
    let default = RouteFacts::default_via(POD, "10.8.0.1".parse().unwrap(), 9);
    let worse = RouteFacts { metric: 7, ..default.clone() };
    let mut core = settled();
    core.observe(at(2, act(50, vec![RouteOp::RouteAdded(default.clone())])));
    core.observe(at(3, Fact::Route(default.clone())));
    core.observe(at(4, Fact::Route(worse.clone())));
    assert_eq!(
        named(&mut core),
        [(Kind::RouteAdded, Some((50, Confidence::Certain))), (Kind::RouteAdded, None)]
    );
    core.observe(at(5, act(51, vec![RouteOp::RouteDeleted(worse.clone())])));
    core.observe(at(6, Fact::RouteGone(default.clone())));
    assert_eq!(named(&mut core), [(Kind::RouteDeleted, None)], "he deleted another one");
    core.observe(at(7, Fact::RouteGone(worse)));
    let event = events(&mut core).remove(0);
    assert_eq!(event.actor.as_ref().unwrap().pid, 51);
    assert!(event.message.ends_with("of pod lijiaob/etcd1-0 deleted by ip (pid 51)"), "{}", event.message);
    // Two did the same before the first message was read.
    core.observe(at(8, act(52, vec![RouteOp::RouteAdded(default.clone())])));
    core.observe(at(8, act(53, vec![RouteOp::RouteAdded(default.clone())])));
    core.observe(at(9, Fact::Route(default.clone())));
    assert_eq!(named(&mut core), [(Kind::RouteAdded, None)]);
    // What is read again was done by nobody who is known.
    core.observe(at(10, act(54, vec![RouteOp::RouteDeleted(default.clone())])));
    core.observe(at(11, snapshot(POD)));
    assert!(named(&mut core).iter().all(|(_, by)| by.is_none()));
    core.observe(at(12, Fact::Route(default.clone())));
    core.observe(at(13, Fact::RouteGone(default)));
    assert!(named(&mut core).iter().all(|(_, by)| by.is_none()), "that one is over");
}

#[test]
fn an_act_that_comes_after_what_tells_of_it_makes_the_next_one_doubtful() {
    let default = RouteFacts::default_via(POD, "10.8.0.1".parse().unwrap(), 9);
    let mut core = settled();
    core.observe(at(3, Fact::Route(default.clone())));
    core.observe(at(2, act(50, vec![RouteOp::RouteAdded(default.clone())])));
    core.observe(at(4, act(51, vec![RouteOp::RouteDeleted(default.clone())])));
    core.observe(at(5, Fact::RouteGone(default)));
    assert_eq!(
        named(&mut core),
        [(Kind::RouteAdded, None), (Kind::RouteDeleted, Some((51, Confidence::Likely)))]
    );
}

#[test]
fn addresses_of_a_pod_and_of_its_host_end_are_events_and_no_others() {
    let mut core = settled();
    let inner = LinkFacts { netns: POD, ifindex: 2, ifname: "eth0".into(), ..end(iff::UP) };
    let other = LinkFacts { ifindex: 5, ifname: "ens3".into(), peer: None, ..end(iff::UP) };
    for link in [inner, end(iff::UP), other] {
        core.observe(at(2, Fact::Link(Box::new(link))));
    }
    events(&mut core);
    let address = |netns, ifindex, address: &str| AddressFacts {
        netns,
        ifindex,
        address: address.parse().unwrap(),
        prefix_len: 32,
    };
    let of_pod = address(POD, 2, "10.8.0.7");
    core.observe(at(3, act(50, vec![RouteOp::AddressAdded(of_pod.clone())])));
    core.observe(at(4, Fact::Address(of_pod.clone())));
    let added = events(&mut core).remove(0);
    assert_eq!((added.kind, added.severity), (Kind::AddressAdded, Severity::Debug));
    assert_eq!(added.message, "address 10.8.0.7/32 added to eth0 of pod lijiaob/etcd1-0 by ip (pid 50)");
    core.observe(at(5, Fact::Address(of_pod.clone())));
    assert!(events(&mut core).is_empty(), "it was there");
    core.observe(at(6, Fact::AddressGone(of_pod.clone())));
    core.observe(at(7, Fact::AddressGone(of_pod)));
    assert_eq!(named(&mut core), [(Kind::AddressDeleted, None)]);
    core.observe(at(8, Fact::Address(address(HOST, 9, "10.8.0.1"))));
    let of_end = events(&mut core).remove(0);
    assert_eq!(of_end.message, "address 10.8.0.1/32 added to cali91, the host's end of pod lijiaob/etcd1-0");
    core.observe(at(9, Fact::Address(address(HOST, 5, "10.9.0.1"))));
    core.observe(at(10, Fact::Address(address(POD, 2, "fe80::1"))));
    core.observe(at(11, Fact::Address(address(POD, 77, "10.8.0.8"))));
    assert!(events(&mut core).is_empty(), "of no pod, of each interface, of none that is known");
    // It is the pod's gateway.
    let gateway = address(HOST, 5, "169.254.1.1");
    core.observe(at(12, Fact::Address(gateway.clone())));
    core.observe(at(13, Fact::AddressGone(gateway)));
    let told = events(&mut core);
    assert_eq!(told[1].message, "address 169.254.1.1/32 deleted from ens3 of the host");
    assert_eq!(told.len(), 2);
    // What a new reading lacks is told as well, by nobody.
    let Fact::Netns(bare) = snapshot(POD) else { unreachable!() };
    let eth0 = LinkFacts { netns: POD, ifindex: 2, ifname: "eth0".into(), ..end(iff::UP) };
    let read = NetnsSnapshot { addresses: vec![address(POD, 2, "10.8.0.9")], links: vec![eth0], ..*bare };
    core.observe(at(14, Fact::Netns(Box::new(read))));
    let told = events(&mut core);
    let of_address = told.iter().find(|event| event.kind == Kind::AddressAdded).unwrap();
    assert!(of_address.resync && of_address.actor.is_none());
}
