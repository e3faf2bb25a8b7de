use kevtmon_observation::{NeighborCause, NeighborEntry, NeighborKey, NeighborOp, NudState, iff};

use super::*;

mod former;
mod histories;

fn route(gateway: &str) -> RouteFacts {
    RouteFacts::default_via(7, gateway.parse().unwrap(), 2)
}

fn with(routes: Vec<RouteFacts>) -> Namespaces {
    let mut namespaces = Namespaces::default();
    namespaces.replace(0, snapshot(routes), true);
    namespaces
}

#[test]
fn what_changed_unseen_is_neither_a_gateway_nor_none() {
    let [old, new]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|address| address.parse().unwrap());
    let mut namespaces = Namespaces::default();
    namespaces.replace(0, NetnsSnapshot { unheard: true, ..snapshot(vec![route("10.0.0.1")]) }, true);
    namespaces.replace(500, snapshot(vec![route("10.0.0.2")]), true);
    let namespace = namespaces.get(7).unwrap();
    for address in [old, new] {
        assert_eq!(namespace.was_gateway(400, 2, address, true), None);
    }
    assert_eq!(namespace.was_gateway(600, 2, old, true), Some(false));
    assert_eq!(namespace.was_gateway(600, 2, new, true), Some(true));
}

#[test]
fn a_route_that_was_replaced_counts_until_the_message_not_until_the_snapshot() {
    use kevtmon_types::clock::SECOND;
    let [old, new]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|address| address.parse().unwrap());
    let mut namespaces = with(vec![route("10.0.0.1")]);
    namespaces.set_heard(7, 9 * SECOND);
    namespaces.set_stale(10 * SECOND, 7, false);
    namespaces.replace(11 * SECOND, snapshot(vec![route("10.0.0.2")]), true);
    let namespace = namespaces.get(7).unwrap();
    assert_eq!(namespace.was_gateway(9 * SECOND - 1, 2, old, true), Some(true));
    assert_eq!(namespace.was_gateway(9 * SECOND, 2, old, true), None);
    assert_eq!(namespace.was_gateway(10 * SECOND + 1, 2, old, true), Some(false));
    assert_eq!(namespace.was_gateway(10 * SECOND + 1, 2, new, true), Some(true));
    assert_eq!(namespace.was_gateway(9 * SECOND, 2, new, true), None);
    assert_eq!(namespace.was_gateway(9 * SECOND - 1, 2, new, true), Some(false));
}

#[test]
fn a_route_whose_end_is_told_hides_nothing_of_others() {
    let [old, new]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|address| address.parse().unwrap());
    let better = RouteFacts { metric: 1, ..route("10.0.0.2") };
    let worse = RouteFacts { metric: 2, ..route("10.0.0.1") };
    let after = |told| {
        let mut namespaces = with(vec![worse.clone()]);
        namespaces.set_heard(7, 100);
        namespaces.put_route(200, better.clone());
        // One that was not in use any more goes; the entry was deleted at about that time.
        namespaces.set_heard(7, 300);
        namespaces.remove_route(400, &worse);
        namespaces.set_stale(400, 7, told);
        let was =
            |namespaces: &Namespaces, address| namespaces.get(7).unwrap().was_gateway(350, 2, address, true);
        assert_eq!([old, new].map(|address| was(&namespaces, address)), [None, None]);
        namespaces.replace(500, snapshot(vec![better.clone()]), true);
        [old, new].map(|address| was(&namespaces, address))
    };
    assert_eq!(after(true), [Some(false), Some(true)]);
    assert_eq!(after(false), [None, None]);
}

#[test]
fn a_route_that_was_replaced_is_not_dated_by_the_next_one_that_outdoes_both() {
    let [first, second, third]: [IpAddr; 3] =
        ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|address| address.parse().unwrap());
    let metric = |metric, gateway| RouteFacts { metric, ..route(gateway) };
    let mut namespaces = with(vec![metric(9, "10.0.0.1")]);
    namespaces.set_heard(7, 100);
    // In place of the first one, which no message tells. The entry of that was deleted then.
    namespaces.put_route(200, metric(9, "10.0.0.2"));
    namespaces.set_stale(200, 7, false);
    namespaces.set_heard(7, 300);
    namespaces.put_route(400, metric(8, "10.0.0.3"));
    namespaces.set_stale(400, 7, false);
    namespaces.replace(500, snapshot(vec![metric(9, "10.0.0.2"), metric(8, "10.0.0.3")]), true);
    let was = |at, address| namespaces.get(7).unwrap().was_gateway(at, 2, address, true);
    assert_eq!([first, second, third].map(|address| was(250, address)), [None, None, None]);
    assert_eq!(
        [first, second, third].map(|address| was(450, address)),
        [Some(false), Some(false), Some(true)]
    );
    assert_eq!(was(50, first), Some(true));
}

#[test]
fn a_message_tells_of_what_happened_since_the_one_before_at_the_earliest() {
    let [old, new]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|address| address.parse().unwrap());
    let better = RouteFacts { metric: 1, ..route("10.0.0.2") };
    let mut namespaces = with(vec![RouteFacts { metric: 2, ..route("10.0.0.1") }]);
    namespaces.set_heard(7, 100);
    namespaces.put_route(200, better.clone());
    namespaces.set_heard(7, 300);
    namespaces.remove_route(400, &better);
    let namespace = namespaces.get(7).unwrap();
    let was = |at, address| namespace.was_gateway(at, 2, address, true);
    let expected = [
        (99, Some(true), Some(false)),
        (150, None, None),
        (250, Some(false), Some(true)),
        (350, None, None),
        (400, Some(true), Some(false)),
    ];
    for (at, of_old, of_new) in expected {
        assert_eq!((was(at, old), was(at, new)), (of_old, of_new), "at {at}");
    }
}

#[test]
fn where_messages_were_lost_nothing_is_said_until_the_next_snapshot() {
    let old = "10.0.0.1".parse().unwrap();
    let mut namespaces = with(vec![route("10.0.0.1")]);
    namespaces.set_all_stale(200, 100);
    assert_eq!(namespaces.get(7).unwrap().was_gateway(99, 2, old, true), Some(true));
    assert_eq!(namespaces.get(7).unwrap().was_gateway(150, 2, old, true), None);
    namespaces.replace(300, snapshot(vec![route("10.0.0.2")]), true);
    let namespace = namespaces.get(7).unwrap();
    assert_eq!(namespace.was_gateway(150, 2, old, true), None);
    assert_eq!(namespace.was_gateway(250, 2, old, true), Some(false));
    let other = "10.0.0.3".parse().unwrap();
    assert_eq!(namespace.was_gateway(150, 2, other, true), None, "it may have been one in between");
    assert_eq!(namespace.was_gateway(250, 2, other, true), Some(false));
}

#[test]
fn a_change_of_routes_is_known_for_as_long_as_an_event_waits() {
    let [old, new]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|address| address.parse().unwrap());
    let worse = RouteFacts { metric: 2, ..route("10.0.0.1") };
    let better = RouteFacts { metric: 1, ..route("10.0.0.2") };
    let after = |at| {
        let mut namespaces = with(vec![worse.clone()]);
        namespaces.set_heard(7, 100);
        namespaces.put_route(200, better.clone());
        namespaces.replace(at, snapshot(vec![worse.clone(), better.clone()]), true);
        [old, new].map(|address| namespaces.get(7).unwrap().was_gateway(150, 2, address, true))
    };
    assert_eq!(after(2_900_000_000), [None, None]);
    assert_eq!(after(20_000_000_000), [None, None], "nothing is said of what is known no longer");
}

#[test]
fn what_was_lost_unseen_is_doubted_for_as_long_as_an_event_waits() {
    let other = "10.0.0.3".parse().unwrap();
    for at in [2_900_000_000, 20_000_000_000] {
        let mut namespaces = with(vec![route("10.0.0.1")]);
        namespaces.set_all_stale(200, 100);
        namespaces.replace(300, snapshot(vec![route("10.0.0.1")]), true);
        namespaces.replace(at, snapshot(vec![route("10.0.0.1")]), true);
        assert_eq!(namespaces.get(7).unwrap().was_gateway(150, 2, other, true), None, "at {at}");
    }
}

fn snapshot(routes: Vec<RouteFacts>) -> NetnsSnapshot {
    NetnsSnapshot { routes, ..NetnsSnapshot::empty(7) }
}

#[test]
fn an_address_stays_the_gateway_for_a_moment_after_its_route_went() {
    let address = "169.254.1.1".parse().unwrap();
    let mut namespaces = with(vec![route("169.254.1.1")]);
    assert!(namespaces.remove_route(1_000, &route("169.254.1.1")));
    let namespace = namespaces.get(7).unwrap();
    assert!(namespace.is_gateway(900, 2, address, true));
    assert!(namespace.is_gateway(1_500, 2, address, false));
    assert!(!namespace.is_gateway(1_500, 2, address, true), "its entry was deleted after the route");
    assert!(!namespace.is_gateway(5_000_000_000, 2, address, false));
}

/// With interface 2 up, and an address of each family on it.
fn lived_in(routes: Vec<RouteFacts>) -> NetnsSnapshot {
    let link = |ifindex| LinkFacts {
        netns: 7,
        ifindex,
        ifname: format!("eth{ifindex}"),
        flags: iff::UP,
        ..LinkFacts::default()
    };
    let address = |address: &str| AddressFacts {
        netns: 7,
        ifindex: 2,
        address: address.parse().unwrap(),
        prefix_len: 24,
    };
    let addresses = vec![address("10.0.0.9"), address("fd00::9")];
    NetnsSnapshot { links: vec![link(2), link(3)], addresses, ..snapshot(routes) }
}

fn permanent(gateway: &str) -> NeighborEntry {
    let lladdr = Some(kevtmon_observation::LlAddr(vec![2, 0, 0, 0, 0, 1]));
    NeighborEntry { ifindex: 2, address: gateway.parse().unwrap(), state: NudState::PERMANENT, lladdr }
}

fn with_entries(routes: &[RouteFacts], gateways: &[&str]) -> NetnsSnapshot {
    let neighbors = gateways.iter().map(|gateway| permanent(gateway)).collect();
    NetnsSnapshot { neighbors, ..lived_in(routes.to_vec()) }
}

#[test]
fn a_static_entry_that_came_later_does_not_tell_which_gateway_was_taken_before() {
    let metric = |metric, gateway| RouteFacts { metric, ..route(gateway) };
    let cases = [
        // IPv4 takes the two in turn where the first has an entry, and none but the first where it has none.
        (["10.0.0.1", "10.0.0.2"].map(route), true),
        // IPv6 takes no other one where the first can be resolved.
        ([metric(1, "fd00::1"), metric(2, "fd00::2")], false),
    ];
    for (routes, expected) in cases {
        let [first, second] = routes.each_ref().map(|route| route.gateway.unwrap());
        let (first_text, second_text) = (first.to_string(), second.to_string());
        let both = || with_entries(&routes, &[&first_text, &second_text]);
        let was = |namespaces: &Namespaces, at| namespaces.get(7).unwrap().was_gateway(at, 2, second, true);
        let mut namespaces = Namespaces::default();
        namespaces.replace(0, with_entries(&routes, &[&second_text]), true);
        namespaces.set_heard(7, 1_000);
        namespaces.replace(5_000, both(), true);
        assert_eq!(was(&namespaces, 100), None, "{second}");
        assert_eq!(was(&namespaces, 2_000), None, "{second}: it may have come while it was read");
        assert_eq!(was(&namespaces, 5_000), Some(expected), "{second}");
        namespaces.replace(6_000, both(), true);
        assert_eq!(was(&namespaces, 5_500), Some(expected), "{second}: it was static all the time");
    }
}

#[test]
fn a_gateway_that_moves_up_does_not_seem_to_have_been_there_before() {
    let routes = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(route);
    let third = routes[2].gateway.unwrap();
    let mut namespaces = Namespaces::default();
    namespaces.replace(0, with_entries(&routes, &["10.0.0.1", "10.0.0.2"]), true);
    let was = |namespaces: &Namespaces, at| namespaces.get(7).unwrap().was_gateway(at, 2, third, true);
    assert_eq!(was(&namespaces, 100), Some(false));
    namespaces.set_heard(7, 200);
    namespaces.remove_route(300, &routes[1]);
    assert_eq!(was(&namespaces, 100), None);
    assert_eq!(was(&namespaces, 400), Some(true));
}

#[test]
fn a_gateway_that_was_replaced_and_came_back_unseen_may_have_been_none_in_between() {
    let [old, new]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|address| address.parse().unwrap());
    let mut namespaces = with(vec![route("10.0.0.1")]);
    // Neither message tells what it replaced.
    for (heard, at, gateway) in [(100, 200, "10.0.0.2"), (300, 400, "10.0.0.1")] {
        namespaces.set_heard(7, heard);
        namespaces.put_route(at, route(gateway));
        namespaces.set_stale(at, 7, false);
    }
    namespaces.replace(500, snapshot(vec![route("10.0.0.1")]), true);
    let was = |at, address| namespaces.get(7).unwrap().was_gateway(at, 2, address, true);
    assert_eq!([was(250, old), was(250, new)], [None, None]);
    assert_eq!([was(50, old), was(450, old)], [Some(true), Some(true)]);
    assert_eq!([was(50, new), was(450, new)], [Some(false), Some(false)]);
}

#[test]
fn a_snapshot_that_took_long_to_read_does_not_undo_a_change_that_came_live() {
    use kevtmon_types::clock::SECOND;
    let gateway: IpAddr = "10.0.0.1".parse().unwrap();
    let tables = || with_entries(&[route("10.0.0.1")], &["10.0.0.1"]);
    let lladdr = permanent("10.0.0.1").lladdr;
    let mut namespaces = Namespaces::default();
    namespaces.replace(0, tables(), true);
    let is_static =
        |namespaces: &Namespaces| namespaces.get(7).unwrap().gateway(2, gateway).unwrap().is_static();
    let deletion = NeighborChange {
        key: NeighborKey { netns: 7, ifindex: 2, address: gateway },
        ifname: "eth2".into(),
        op: NeighborOp::Deleted,
        cause: NeighborCause::Admin,
        old_state: Some(NudState::PERMANENT),
        new_state: None,
        lladdr,
        new_lladdr: None,
        device_lladdr: None,
        actor: None,
        netlink_port: None,
        netns_cookie: None,
        netns_of_user: false,
    };
    namespaces.put_neighbor(11 * SECOND, &deletion);
    assert!(!is_static(&namespaces));
    namespaces.set_heard(7, 10 * SECOND);
    namespaces.replace(15 * SECOND, tables(), true);
    assert!(!is_static(&namespaces), "it may have been read before");
    namespaces.set_heard(7, 16 * SECOND);
    namespaces.replace(21 * SECOND, tables(), true);
    assert!(is_static(&namespaces));
}

#[test]
fn a_snapshot_without_the_route_counts_as_its_removal() {
    let mut namespaces = with(vec![route("10.0.0.1")]);
    namespaces.replace(1_000, snapshot(Vec::new()), true);
    assert!(namespaces.get(7).unwrap().is_gateway(1_000, 2, "10.0.0.1".parse().unwrap(), false));
}

#[test]
fn what_a_user_does_in_a_namespace_of_his_own_leaves_little_behind() {
    let mut namespaces = with(vec![route("10.0.0.1")]);
    let link = |ifindex| LinkFacts {
        netns: 7,
        ifindex,
        ifname: "eth0".into(),
        kind: Some("veth".into()),
        peer: Some(kevtmon_observation::PeerLink { ifindex: 1, netns: Some(8) }),
        ..LinkFacts::default()
    };
    for number in 0..20_000_u32 {
        let at = BootNs::from(number);
        let address = IpAddr::from(number.to_be_bytes());
        let facts = AddressFacts { netns: 7, ifindex: 2, address, prefix_len: 32 };
        namespaces.put_address(at, facts.clone());
        namespaces.remove_address(at, &facts);
        let route = RouteFacts { metric: number, ..route("10.0.0.2") };
        namespaces.put_route(at, route.clone());
        if number % 2 == 0 {
            namespaces.remove_route(at, &route);
        }
        let passing = RouteFacts { gateway: Some(address), ..route };
        namespaces.put_route(at, passing.clone());
        namespaces.ask(&passing, false);
        namespaces.remove_route(at, &passing);
        namespaces.put_link(at, link(10 + number));
        namespaces.remove_link(at, 7, 10 + number);
    }
    // Which of them are in use is not known, and how many there are is.
    assert!(namespaces.routes_omitted() > 9_000);
    let gateway = "10.0.0.2".parse().unwrap();
    assert_eq!(namespaces.get(7).unwrap().was_gateway(BootNs::MAX, 2, gateway, true), None);
    let namespace = namespaces.get(7).unwrap();
    assert!(namespace.routes.len() <= ROUTES_MAX && namespace.addresses.is_empty());
    assert!((1..=ROUTES_MAX).contains(&namespace.challenged.len()));
    assert!(namespace.former.len() <= RECENT_MAX && namespace.bereft.len() <= RECENT_MAX);
    assert!(namespace.disturbed.len() <= DISTURBED_MAX && namespace.switched.len() <= 2);
}

#[test]
fn what_the_entry_of_a_gateway_was_is_known_when_its_interface_is_ready_again() {
    let (gateway, other) = (route("10.0.0.1"), RouteFacts { ifindex: Some(3), ..route("10.1.0.1") });
    let both = [gateway.clone(), other.clone()];
    let after = |dead_gateways: &[(u32, IpAddr)]| {
        let mut namespaces = Namespaces::default();
        namespaces.replace(0, with_entries(&both, &["10.0.0.1"]), true);
        let dead = NetnsSnapshot { dead_gateways: dead_gateways.to_vec(), ..lived_in(vec![other.clone()]) };
        namespaces.replace(10_000_000_000, dead, true);
        assert_eq!(namespaces.has_dead_gateway(7, 2), !dead_gateways.is_empty());
        namespaces.replace(20_000_000_000, lived_in(both.to_vec()), true);
        let namespace = namespaces.get(7).unwrap();
        namespace.gateway(2, "10.0.0.1".parse().unwrap()).unwrap().static_lladdr.is_some()
    };
    assert!(after(&[(2, "10.0.0.1".parse().unwrap())]));
    assert!(!after(&[]), "the route was deleted, and is another one");
}

/// A change of the entry of a gateway that no snapshot has shown.
fn deletion_of(gateway: IpAddr) -> NeighborChange {
    NeighborChange {
        key: NeighborKey { netns: 7, ifindex: 2, address: gateway },
        ifname: "eth2".into(),
        op: NeighborOp::Deleted,
        cause: NeighborCause::LinkDown,
        old_state: Some(NudState::PERMANENT),
        new_state: None,
        lladdr: permanent("10.0.0.1").lladdr,
        new_lladdr: None,
        device_lladdr: None,
        actor: None,
        netlink_port: None,
        netns_cookie: None,
        netns_of_user: false,
    }
}

#[test]
fn by_an_interface_that_is_down_no_packet_takes_the_place_of_others() {
    let mut namespaces = with_two_metrics();
    let down = LinkFacts { flags: 0, ..lived_in(Vec::new()).links[0].clone() };
    namespaces.put_link(10, down);
    namespaces.remove_route(20, &route("10.0.0.1"));
    assert!(namespaces.get(7).unwrap().in_use.is_empty());
}

/// Two gateways by the same interface, one of them for want of the other.
fn with_two_metrics() -> Namespaces {
    let mut namespaces = Namespaces::default();
    let spare = RouteFacts { metric: 10, ..route("10.0.0.2") };
    namespaces.replace(0, lived_in(vec![route("10.0.0.1"), spare]), true);
    namespaces
}
