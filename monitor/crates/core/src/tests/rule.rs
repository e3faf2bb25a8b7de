//! Routing rules that select by a pod.

use super::link::end;
use super::route::{act_in, named};
use super::*;

const TABLE: u32 = 101;

/// With an address in the pod, and the host's end of its pair.
fn with_address() -> Core {
    let mut core = settled();
    let inner = LinkFacts { netns: POD, ifindex: 2, ifname: "eth0".into(), ..end(iff::UP) };
    for link in [inner, end(iff::UP)] {
        core.observe(at(2, Fact::Link(Box::new(link))));
    }
    let address = "192.168.252.66".parse().unwrap();
    core.observe(at(2, Fact::Address(AddressFacts { netns: POD, ifindex: 2, address, prefix_len: 32 })));
    events(&mut core);
    core
}

fn from(address: &str) -> PolicyRule {
    PolicyRule {
        netns: HOST,
        priority: 100,
        from: Some((address.parse().unwrap(), 32)),
        table: TABLE,
        ..PolicyRule::default()
    }
}

fn added(rule: &PolicyRule) -> Fact {
    Fact::Rule(Box::new(rule.clone()))
}

fn gone(rule: &PolicyRule) -> Fact {
    Fact::RuleGone(Box::new(rule.clone()))
}

#[test]
fn a_rule_by_the_address_of_a_pod_is_an_event_of_that_pod_with_who_did_it() {
    let mut core = with_address();
    let rule = from("192.168.252.66");
    core.observe(at(3, added(&rule)));
    let [event] = &events(&mut core)[..] else { panic!("not one event") };
    assert_eq!((event.kind, event.severity, event.actor.is_none()), (Kind::RuleAdded, Severity::Debug, true));
    core.observe(at(4, act_in(HOST, 51, vec![RouteOp::RuleDeleted(rule.clone())])));
    core.observe(at(5, gone(&rule)));
    let [event] = &events(&mut core)[..] else { panic!("not one event") };
    assert_eq!((event.kind, event.severity), (Kind::RuleDeleted, Severity::Info));
    assert_eq!(
        event.message,
        "rule of the host from 192.168.252.66/32 lookup 101 (priority 100) of pod lijiaob/etcd1-0 deleted by ip (pid 51)"
    );
    let shown = event.rule.as_ref().unwrap();
    assert_eq!((shown.table, shown.netns, shown.action.as_str()), (Some(TABLE), HOST, "lookup"));
    // Who deletes another one did not do this.
    let other = PolicyRule { priority: 101, ..rule.clone() };
    core.observe(at(6, act_in(HOST, 52, vec![RouteOp::RuleDeleted(other)])));
    core.observe(at(7, gone(&rule)));
    assert_eq!(named(&mut core), [(Kind::RuleDeleted, None)]);
}

#[test]
fn a_rule_selects_a_pod_by_its_host_end_and_in_its_own_network_and_others_are_no_events() {
    let mut core = with_address();
    let by_end = PolicyRule { from: None, iif: Some("cali91".into()), ..from("192.168.252.66") };
    let to = PolicyRule { from: None, to: Some(("192.168.252.66".parse().unwrap(), 32)), ..by_end.clone() };
    let within = PolicyRule { netns: POD, is_inverse: true, ..from("10.9.9.9") };
    let mut times = 3..;
    for rule in [by_end, to, within] {
        core.observe(at(times.next().unwrap(), added(&rule)));
        let [event] = &events(&mut core)[..] else { panic!("{rule:?}") };
        let pod = event.target.as_ref().unwrap().pod.as_ref().unwrap();
        assert_eq!(pod.name.as_deref(), Some("etcd1-0"), "{rule:?}");
    }
    let subnet = PolicyRule { from: Some(("192.168.252.0".parse().unwrap(), 24)), ..from("10.0.0.1") };
    let uplink = PolicyRule { from: None, iif: Some("ens3".into()), ..from("10.0.0.1") };
    let all_others = PolicyRule { is_inverse: true, ..from("192.168.252.66") };
    for rule in [subnet, uplink, from("10.7.7.7"), all_others] {
        core.observe(at(times.next().unwrap(), added(&rule)));
        assert!(events(&mut core).is_empty(), "{rule:?}");
    }
}

#[test]
fn what_a_user_gives_the_address_of_a_pod_does_not_hide_the_rules_of_that() {
    let mut core = with_address();
    let address = "192.168.252.66".parse().unwrap();
    let of_user = |netns, foreign_userns| {
        let Fact::Netns(bare) = snapshot(netns) else { unreachable!() };
        let addresses = vec![AddressFacts { netns, ifindex: 2, address, prefix_len: 32 }];
        Fact::Netns(Box::new(NetnsSnapshot { foreign_userns, addresses, ..*bare }))
    };
    core.observe(at(3, of_user(88, true)));
    events(&mut core);
    core.observe(at(4, added(&from("192.168.252.66"))));
    let [event] = &events(&mut core)[..] else { panic!("not one event") };
    assert_eq!(event.target.as_ref().unwrap().pod.as_ref().unwrap().name.as_deref(), Some("etcd1-0"));
    core.observe(at(5, of_user(89, false)));
    events(&mut core);
    core.observe(at(6, gone(&from("192.168.252.66"))));
    assert!(events(&mut core).is_empty(), "root has given it to two");
}

#[test]
fn only_rules_of_its_own_network_count_against_the_budget_of_a_container() {
    let mut core = with_address();
    let rule = from("192.168.252.66");
    let flood = |core: &mut Core, netns| {
        for priority in 0..2_000 {
            core.observe(at(3, added(&PolicyRule { netns, priority, ..rule.clone() })));
        }
        events(core).len()
    };
    assert_eq!(flood(&mut core, HOST), 2_000, "root has done that");
    let default = RouteFacts::default_via(POD, "10.8.0.1".parse().unwrap(), 2);
    core.observe(at(4, Fact::Route(default)));
    assert_eq!(named(&mut core), [(Kind::RouteAdded, None)]);
    let told = flood(&mut core, POD);
    assert!(told < 600, "{told} events");
}
