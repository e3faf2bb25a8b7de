use std::net::IpAddr;

use kevtmon_event::Incident;
use kevtmon_observation::*;

use super::*;
use crate::Resume;
use crate::diagnose::tests::harness::*;

mod deleted;

const IP: &str = "192.168.252.66";
const HOST_END: &str = "cali9118ebbb10b";
/// The host's end of its pair, as the tables number it.
const END: u32 = 11;
const UPLINK: u32 = 2;

fn ip() -> IpAddr {
    IP.parse().unwrap()
}

fn node() -> TestNode {
    let mut node = TestNode::booted(Resume::default());
    node.add_pod(ETCD, HOST_END, NudState::PERMANENT);
    let address = AddressFacts { netns: ETCD, ifindex: 2, address: ip(), prefix_len: 32 };
    node.tables.get_mut(&ETCD).unwrap().addresses.push(address);
    let uplink = LinkFacts { kind: None, peer: None, ..veth(HOST, UPLINK, "ens3", 0, 0) };
    node.tables.get_mut(&HOST).unwrap().links.push(uplink);
    node
}

/// The pod has run for long, and the kernel was asked before.
fn started(mut node: TestNode) -> TestNode {
    node.start(vec![etcd_sandbox()]);
    node.observe(calico());
    node.run_for(90 * S);
    node.events.clear();
    node
}

fn host_route() -> RouteFacts {
    RouteFacts { destination: Some((ip(), 32)), gateway: None, ..RouteFacts::default_via(HOST, ip(), END) }
}

fn lose(node: &mut TestNode, found: FoundRoute) {
    node.elsewhere.insert(ip(), found);
    node.observe(Fact::RouteGone(host_route()));
}

fn restore(node: &mut TestNode) {
    node.elsewhere.clear();
    node.observe(Fact::Route(host_route()));
}

fn last(node: &TestNode) -> (Kind, Incident) {
    let (kind, incident) = *node.incidents().last().unwrap();
    (kind, incident.clone())
}

/// The addresses and interfaces that the kernel was asked for last.
fn asked(node: &TestNode) -> Vec<PodAddress> {
    let asked = |request: &Request| match request {
        Request::PodRoutes { addresses, .. } => Some(addresses.clone()),
        _ => None,
    };
    node.requests.iter().rev().find_map(asked).unwrap_or_default()
}

fn set_end(node: &mut TestNode, flags: u32) {
    let mut link = node.tables[&HOST].links[0].clone();
    link.flags = flags;
    node.tables.get_mut(&HOST).unwrap().links[0] = link.clone();
    node.observe(Fact::Link(Box::new(link)));
}

#[test]
fn a_route_that_is_deleted_and_stays_away_is_told_until_it_is_back() {
    let mut node = started(node());
    lose(&mut node, FoundRoute::Default { ifindex: UPLINK });
    node.run_for(9 * S);
    assert_eq!(node.kinds(), [""; 0], "it may be replaced");
    node.run_for(2 * S);
    let incident = &node.open()[0];
    assert_eq!((incident.severity, incident.confidence), (Severity::Warning, Confidence::Certain));
    assert!(!incident.found_at_start);
    assert_eq!(
        incident.summary,
        "this node has no route to pod lijiaob/etcd1-0 at 192.168.252.66, which is reached by cali9118ebbb10b: packets \
         take the default route by ens3; the route was deleted; actor unknown"
    );
    assert_eq!(
        incident.ruled_out,
        [
            "its host end cali9118ebbb10b is up",
            "eth0 in the pod is up",
            "eth0 in the pod has the address 192.168.252.66",
            "no other pod of this node has it",
            "the neighbor entry of its gateway 169.254.1.1 is in place",
        ]
    );
    let commands: Vec<&str> = incident.advice.iter().map(|step| step.command.as_str()).collect();
    assert_eq!(
        commands,
        [
            "ip route show match 192.168.252.66",
            "ip route replace 192.168.252.66 dev cali9118ebbb10b scope link",
            "kevtmon why lijiaob/etcd1-0",
        ]
    );
    assert!(node.last_incident().actor.is_none(), "nobody is known to have done it");
    restore(&mut node);
    node.run_for(2 * S);
    let (kind, incident) = last(&node);
    assert_eq!((kind, incident.close_reason), (Kind::IncidentClosed, Some(CloseReason::Resolved)));
    assert!(incident.summary.starts_with("this node has no route to pod "), "{}", incident.summary);
}

#[test]
fn a_route_that_is_replaced_is_none_that_is_missing() {
    let mut node = started(node());
    for _ in 0..5 {
        lose(&mut node, FoundRoute::Nothing);
        node.run_for(5 * S);
        restore(&mut node);
        node.run_for(5 * S);
    }
    let found: Vec<&str> = node.incidents().iter().map(|(_, incident)| incident.kind.as_str()).collect();
    assert!(found.iter().all(|kind| *kind == "route-flapping"), "{found:?}");
}

#[test]
fn it_is_found_by_a_daemon_that_starts_later_and_in_every_form() {
    for (found, words) in [
        (FoundRoute::Nothing, "no route matches"),
        (FoundRoute::Discards, "a blackhole route discards packets"),
        (FoundRoute::Refuses, "a route refuses packets"),
        (FoundRoute::Default { ifindex: UPLINK }, "packets take the default route by ens3"),
        (FoundRoute::Default { ifindex: 99 }, "packets take the default route by interface 99"),
    ] {
        let mut node = node();
        node.elsewhere.insert(ip(), found);
        node.start(vec![ContainerFacts { started_ns: Some(1), ..etcd_sandbox() }]);
        node.run_until(59 * S);
        assert_eq!(node.kinds(), [""; 0], "a pod so young may have no route yet");
        node.run_until(75 * S);
        let incident = &node.open()[0];
        assert!(incident.found_at_start);
        assert!(incident.summary.ends_with(words), "{}", incident.summary);
    }
}

#[test]
fn where_more_cannot_be_known_nothing_is_said() {
    let mut other = started(node());
    lose(&mut other, FoundRoute::Other);
    other.run_for(120 * S);
    assert_eq!(other.kinds(), [""; 0], "what is behind a longer prefix may lead there");

    let mut deleted = started(node());
    deleted.call_with(CniCommand::Del, SANDBOX, 0, |node| lose(node, FoundRoute::Nothing));
    deleted.run_for(50 * S);
    assert!(!deleted.kinds().contains(&"incident.opened"), "the pod is being deleted");
    deleted.run_for(90 * S);
    assert!(deleted.open().iter().any(|incident| incident.kind == KIND), "it lives on all the same");

    // A gateway that was learned stops answering, which is told by itself.
    let mut learned = node();
    learned.set_entry(ETCD, Some((NudState(0x02), Some(host_mac()))));
    let mut down = started(learned);
    set_end(&mut down, 0);
    lose(&mut down, FoundRoute::Nothing);
    down.run_for(120 * S);
    assert!(down.open().iter().all(|incident| incident.kind != KIND), "more than the route is missing");
}

#[test]
fn an_open_one_is_over_when_the_pod_is_gone_or_nobody_knows_whether_it_needs_the_route() {
    let open = || {
        let mut node = started(node());
        lose(&mut node, FoundRoute::Nothing);
        node.run_for(15 * S);
        assert_eq!(node.open().len(), 1);
        node
    };
    let mut gone = open();
    gone.observe(etcd(ContainerState::Exited));
    assert_eq!(last(&gone).1.close_reason, Some(CloseReason::SubjectGone));

    let mut other = open();
    other.elsewhere.insert(ip(), FoundRoute::Other);
    other.run_for(10 * S);
    assert_eq!(last(&other).1.close_reason, Some(CloseReason::Expired));

    let mut without = open();
    without.observe(Fact::AddressGone(AddressFacts {
        netns: ETCD,
        ifindex: 2,
        address: ip(),
        prefix_len: 32,
    }));
    without.run_for(5 * S);
    assert_eq!(last(&without).1.close_reason, Some(CloseReason::Expired));

    // What packets meet instead may change.
    let mut changed = open();
    changed.elsewhere.insert(ip(), FoundRoute::Discards);
    changed.run_for(10 * S);
    assert!(changed.open()[0].summary.contains("a blackhole route discards packets"));
}

#[test]
fn where_rules_tell_packets_apart_it_is_only_likely() {
    let mut ruled = node();
    let rule = |matches_all| RuleFacts {
        ipv6: false,
        table: 7,
        priority: 5,
        matches_all,
        action: RuleAction::Lookup,
        suppresses: None,
    };
    ruled.tables.get_mut(&HOST).unwrap().rules.push(rule(false));
    let mut node = started(ruled);
    lose(&mut node, FoundRoute::Nothing);
    node.run_for(15 * S);
    assert_eq!(node.open()[0].confidence, Confidence::Likely);

    // The kernel has evaluated one for all packets.
    let mut ruled = self::node();
    ruled.tables.get_mut(&HOST).unwrap().rules.push(rule(true));
    let mut node = started(ruled);
    lose(&mut node, FoundRoute::Nothing);
    node.run_for(15 * S);
    assert_eq!(node.open()[0].confidence, Confidence::Certain);
}

#[test]
fn the_deletion_of_a_rule_for_the_address_is_evidence_if_the_route_was_there_until_then() {
    let rule = PolicyRule { netns: HOST, to: Some((ip(), 32)), table: 101, ..PolicyRule::default() };
    let refuses = PolicyRule { action: RuleAction::Refuse, ..rule.clone() };
    let by_mark = PolicyRule { has_more: true, ..rule.clone() };
    let of_one = PolicyRule { from: Some((ip(), 32)), ..rule.clone() };
    let others = [refuses, by_mark, of_one].map(|rule| (rule, false, false));
    let plain = [(rule.clone(), true, false), (rule, false, true)];
    for (rule, is_before, is_evidence) in plain.into_iter().chain(others) {
        let mut node = started(node());
        let gone = Fact::RuleGone(Box::new(rule));
        if is_before {
            node.observe(gone);
            node.run_for(5 * S);
            lose(&mut node, FoundRoute::Nothing);
        } else {
            lose(&mut node, FoundRoute::Nothing);
            node.observe(gone);
        }
        node.run_for(15 * S);
        let told = node.events.iter().find(|event| event.kind == Kind::RuleDeleted).unwrap().seq;
        let event = node.last_incident();
        let evidence = &event.incident.as_ref().unwrap().evidence;
        assert_eq!(evidence.contains(&told), is_evidence);
        assert!(event.actor.is_none(), "who deleted the rule is not known");
    }
}

/// Calico sets the host's end down, and the route by it is gone.
fn cut(node: &mut TestNode) {
    let Fact::Task(task) = calico() else { unreachable!() };
    let actor = TaskRef { key: task.key, tid: 28_997, comm: "calico".into(), context: None };
    let act =
        LinkAct { netns: HOST, ifindex: END, op: LinkOp::Closed, missing: 0, netns_cookie: None, actor };
    node.observe(Fact::LinkAct(Box::new(act)));
    node.elsewhere.insert(ip(), FoundRoute::Default { ifindex: UPLINK });
    set_end(node, 0);
}

#[test]
fn who_set_the_host_end_of_a_static_gateway_down_is_named_until_the_route_is_back() {
    let mut node = started(node());
    cut(&mut node);
    node.run_for(9 * S);
    assert_eq!(node.kinds(), [""; 0], "it may be set up again");
    node.run_for(3 * S);
    let event = node.last_incident();
    let (incident, actor) = (event.incident.as_ref().unwrap(), event.actor.as_ref().unwrap());
    assert_eq!((incident.kind.as_str(), incident.confidence), (KIND, Confidence::Certain));
    assert_eq!(
        incident.summary,
        "this node has no route to pod lijiaob/etcd1-0 at 192.168.252.66, which is reached by cali9118ebbb10b: packets take \
         the default route by ens3; its host end cali9118ebbb10b was set down by calico (pid 28997)"
    );
    assert_eq!((actor.pid, actor.confidence, incident.evidence.len()), (28_997, Confidence::Certain, 1));
    assert!(!incident.ruled_out.iter().any(|fine| fine.contains("host end")), "{:?}", incident.ruled_out);
    let commands: Vec<&str> = incident.advice.iter().map(|step| step.command.as_str()).collect();
    assert_eq!(commands[1], "ip link set cali9118ebbb10b up");
    assert_eq!(commands[2], "ip route replace 192.168.252.66 dev cali9118ebbb10b scope link");
    // It is up again, but its route is not back.
    set_end(&mut node, iff::UP | iff::LOWER_UP);
    node.run_for(6 * S);
    let open = &node.open()[0];
    assert!(open.summary.ends_with("likely went when cali9118ebbb10b was set down by calico (pid 28997)"));
    restore(&mut node);
    node.run_for(2 * S);
    let (kind, incident) = last(&node);
    assert_eq!((kind, incident.close_reason), (Kind::IncidentClosed, Some(CloseReason::Resolved)));
}

#[test]
fn a_host_end_that_is_down_is_found_by_a_daemon_that_starts_later_without_an_actor() {
    let mut node = node();
    node.tables.get_mut(&HOST).unwrap().links[0].flags = 0;
    node.elsewhere.insert(ip(), FoundRoute::Nothing);
    node.start(vec![ContainerFacts { started_ns: Some(1), ..etcd_sandbox() }]);
    node.run_until(59 * S);
    assert_eq!(node.kinds(), [""; 0], "its network may still be in setup");
    node.run_for(40 * S);
    let event = node.last_incident();
    let incident = event.incident.as_ref().unwrap();
    assert!(incident.found_at_start && event.actor.is_none());
    assert!(incident.summary.ends_with("; its host end cali9118ebbb10b is down"), "{}", incident.summary);
}

#[test]
fn a_host_end_that_was_never_up_or_whose_pod_is_torn_down_is_none_that_is_down() {
    let mut new = started(node());
    new.tables.get_mut(&HOST).unwrap().links[0].flags = 0;
    new.observe(Fact::LinkGone { netns: HOST, ifindex: END, moved_to: None });
    new.elsewhere.insert(ip(), FoundRoute::Nothing);
    set_end(&mut new, 0);
    new.run_for(120 * S);
    assert!(new.open().iter().all(|incident| incident.kind != KIND), "it was made, and never set up");
    set_end(&mut new, iff::UP | iff::LOWER_UP);
    set_end(&mut new, 0);
    new.run_for(60 * S);
    assert_eq!(new.open().iter().filter(|incident| incident.kind == KIND).count(), 1);

    let mut deleted = started(node());
    deleted.call_with(CniCommand::Del, SANDBOX, 0, cut);
    deleted.run_for(30 * S);
    assert!(deleted.open().iter().all(|incident| incident.kind != KIND), "it is being deleted");
}

#[test]
fn who_set_a_host_end_down_is_only_likely_known_after_a_loss() {
    let mut node = started(node());
    cut(&mut node);
    node.observe(Fact::Lost(Loss { source: "netlink".into(), reason: "overrun".into(), count: None }));
    node.run_for(15 * S);
    let event = node.last_incident();
    assert_eq!(event.actor.as_ref().unwrap().confidence, Confidence::Likely);
    let summary = &event.incident.as_ref().unwrap().summary;
    assert!(summary.ends_with("was set down, likely by calico (pid 28997)"), "{summary}");
}

#[test]
fn who_set_the_interface_down_is_likely_who_took_the_route() {
    let mut node = started(node());
    let actor = TaskRef { key: task_key(28_997), tid: 28_997, comm: "calico".into(), context: None };
    let act =
        LinkAct { netns: HOST, ifindex: END, op: LinkOp::Closed, missing: 0, netns_cookie: None, actor };
    node.observe(Fact::LinkAct(Box::new(act)));
    node.elsewhere.insert(ip(), FoundRoute::Nothing);
    set_end(&mut node, 0);
    node.run_for(S / 2);
    // It is up again, and nobody has added the route.
    set_end(&mut node, iff::UP | iff::LOWER_UP);
    node.run_for(15 * S);
    let event = node.last_incident();
    let incident = event.incident.as_ref().unwrap();
    assert!(
        incident
            .summary
            .ends_with("; the route likely went when cali9118ebbb10b was set down by calico (pid 28997)"),
        "{}",
        incident.summary
    );
    let actor = event.actor.as_ref().unwrap();
    assert_eq!((actor.pid, actor.confidence), (28_997, Confidence::Likely));
    assert_eq!(incident.evidence.len(), 1);

    // Of a route that somebody deleted it is not known who that was.
    restore(&mut node);
    node.run_for(2 * S);
    lose(&mut node, FoundRoute::Nothing);
    node.run_for(15 * S);
    let event = node.last_incident();
    assert_eq!((event.kind, event.actor.is_none()), (Kind::IncidentOpened, true));
}

#[test]
fn a_gateway_that_fails_after_that_is_its_effect() {
    let mut node = started(node());
    lose(&mut node, FoundRoute::Nothing);
    node.run_for(15 * S);
    node.set_entry(ETCD, Some((NudState::FAILED, None)));
    node.observe(failure(ETCD));
    node.run_for(25 * S);
    let open = node.open();
    let cause = open.iter().find(|incident| incident.kind == KIND).unwrap();
    let effect = open.iter().find(|incident| incident.kind == "gateway-neighbor-lost").unwrap();
    assert_eq!(effect.caused_by, [cause.id.as_str()]);
}

#[test]
fn it_goes_on_over_a_restart_of_the_daemon() {
    let mut node = started(node());
    lose(&mut node, FoundRoute::Nothing);
    node.run_for(15 * S);
    let mut next = TestNode::booted(node.resume_state());
    next.tables.clone_from(&node.tables);
    next.elsewhere.clone_from(&node.elsewhere);
    let mut next = started(next);
    assert_eq!((next.kinds(), next.open().len()), (Vec::new(), 1), "it goes on without another word");
    restore(&mut next);
    next.run_for(35 * S);
    assert_eq!(next.open().len(), 0);
}

#[test]
fn an_answer_that_does_not_come_or_is_late_is_asked_for_again() {
    let mut node = started(node());
    let asked = |node: &TestNode| {
        node.requests.iter().filter(|request| matches!(request, Request::PodRoutes { .. })).count()
    };
    let before = asked(&node);
    node.run_for(40 * S);
    assert!(asked(&node) > before, "also where nothing changes");
    let elsewhere = vec![PodRoute { address: ip(), found: FoundRoute::Nothing }];
    for _ in 0..20 {
        node.observe(Fact::PodRoutes { id: 1, elsewhere: elsewhere.clone() });
        node.run_for(S);
    }
    assert_eq!(node.kinds(), [""; 0], "it answers what nobody waits for");
}

#[test]
fn only_pods_that_this_node_routes_to_are_asked_for() {
    type Change = fn(&mut TestNode);
    let address = |netns, ifindex, text: &str| AddressFacts {
        netns,
        ifindex,
        address: text.parse().unwrap(),
        prefix_len: 24,
    };
    let bridge = |node: &mut TestNode, kind: &str, gateway: &str| {
        let host = node.tables.get_mut(&HOST).unwrap();
        host.links[0].master = Some(90);
        let device = |ifindex, name| LinkFacts {
            kind: Some(kind.into()),
            peer: None,
            ..veth(HOST, ifindex, name, 0, 0)
        };
        host.links.push(device(90, "cni0"));
        let lower = Some(PeerLink { ifindex: 90, netns: None });
        host.links.push(LinkFacts { kind: Some("vlan".into()), lower, ..device(91, "cni0.7") });
        host.addresses.push(AddressFacts {
            netns: HOST,
            ifindex: 90,
            address: gateway.parse().unwrap(),
            prefix_len: 24,
        });
    };
    let of = |change: &dyn Fn(&mut TestNode), facts: ContainerFacts| {
        let mut node = node();
        change(&mut node);
        node.start(vec![facts]);
        node.run_for(5 * S);
        asked(&node)
    };
    let one = |interfaces: &[u32]| vec![PodAddress { address: ip(), interfaces: interfaces.to_vec() }];
    let plain = etcd_sandbox;
    assert_eq!(of(&|_| {}, plain()), one(&[END]));
    assert_eq!(of(&|node| bridge(node, "bridge", "169.254.1.1"), plain()), one(&[90, 91]));
    assert_eq!(of(&|node| bridge(node, "bridge", "10.1.1.1"), plain()), [], "another router answers");
    assert_eq!(of(&|node| bridge(node, "openvswitch", "169.254.1.1"), plain()), []);
    assert_eq!(of(&|node| bridge(node, "vrf", "169.254.1.1"), plain()), []);
    let none: [(Change, &str); 5] = [
        (|node| node.tables.get_mut(&ETCD).unwrap().routes.clear(), "it has no default route"),
        (|node| node.tables.get_mut(&ETCD).unwrap().addresses.clear(), "no address is known"),
        (|node| node.tables.get_mut(&ETCD).unwrap().links[0].kind = Some("ipvlan".into()), "no pair"),
        (|node| node.tables.get_mut(&HOST).unwrap().links[0].ifname = "lxc0123456789ab".into(), "Cilium's"),
        (|node| drop(node.tables.get_mut(&HOST).unwrap().links.remove(0)), "its end is elsewhere"),
    ];
    for (change, why) in none {
        assert_eq!(of(&change, plain()), [], "{why}");
    }
    // Nobody tells which of two is its own.
    let two = |node: &mut TestNode| {
        let tables = node.tables.get_mut(&ETCD).unwrap();
        tables.addresses.push(address(ETCD, 2, "192.168.252.99"));
        tables.addresses.push(address(ETCD, 2, "fe80::7"));
    };
    let untold = ContainerFacts { addresses: Vec::new(), ..plain() };
    assert_eq!(of(&two, untold.clone()), []);
    assert_eq!(of(&two, plain()), one(&[END]), "the runtime tells it");
    assert_eq!(of(&|_| {}, untold), one(&[END]));
    let elsewhere = ContainerFacts { addresses: vec!["10.9.9.9".parse().unwrap()], ..plain() };
    assert_eq!(of(&|_| {}, elsewhere), [], "it has not the address that the runtime tells");
    // One that several have leads to one of them.
    let duplicate = |node: &mut TestNode| {
        node.add_pod(7, "cali0000000000b", NudState::PERMANENT);
        node.tables.get_mut(&7).unwrap().addresses.push(address(7, 2, IP));
    };
    assert_eq!(of(&duplicate, plain()), []);
    let claimed = PodIdentity { proof: PodProof::Claimed, ..plain().pod.unwrap() };
    assert_eq!(
        of(&|_| {}, ContainerFacts { pod: Some(claimed), ..plain() }),
        [],
        "it only claims to be a pod"
    );
    assert_eq!(of(&|_| {}, ContainerFacts { state: ContainerState::Exited, ..plain() }), []);
    assert_eq!(
        of(&|_| {}, ContainerFacts { netns: Some(HOST), ..plain() }),
        [],
        "it is on the host's network"
    );
}
