//! Gateways of before: which of them are still needed.

use kevtmon_observation::{RuleAction, iff};
use kevtmon_types::clock::SECOND as S;

use super::*;

#[test]
fn a_route_that_is_deleted_long_after_an_address_of_ipv6_went_did_not_go_with_it() {
    const HOUR: BootNs = 3_600_000_000_000;
    let gateway: IpAddr = "10.0.0.1".parse().unwrap();
    let after = |address: &str| {
        let mut namespaces = Namespaces::default();
        let mut tables = lived_in(vec![route("10.0.0.1")]);
        let address = AddressFacts { address: address.parse().unwrap(), ..tables.addresses[0].clone() };
        tables.addresses.push(address.clone());
        namespaces.replace(0, tables, true);
        namespaces.remove_address(10, &address);
        namespaces.remove_route(HOUR, &route("10.0.0.1"));
        namespaces.get(7).unwrap().is_former_gateway(2, gateway)
    };
    assert!(after("fd00::8"), "a temporary address that expired");
    assert!(!after("10.0.0.8"), "the next snapshot tells");
}

#[test]
fn what_another_gateway_had_replaced_did_not_go_with_its_link() {
    let gateway: IpAddr = "fd00::1".parse().unwrap();
    let was_gateway = |is_replaced: bool| {
        let own = RouteFacts { metric: 10, ..route("fd00::1") };
        let mut tables = lived_in(vec![own.clone()]);
        let address = tables.addresses[1].clone();
        tables.neighbors.push(permanent("fd00::1"));
        let mut namespaces = Namespaces::default();
        namespaces.replace(0, tables, true);
        if is_replaced {
            namespaces.put_route(10, RouteFacts { ifindex: Some(3), ..route("fd01::1") });
        }
        namespaces.remove_route(20, &own);
        namespaces.remove_address(30, &address);
        namespaces.get(7).unwrap().was_gateway(40, 2, gateway, false)
    };
    assert_eq!(was_gateway(false), Some(true));
    assert_ne!(was_gateway(true), Some(true));
}

#[test]
fn a_gateway_of_some_packets_takes_the_place_of_none_that_all_took() {
    let gateway: IpAddr = "10.0.0.1".parse().unwrap();
    let other = RouteFacts { table: 100, ifindex: Some(3), ..route("10.1.0.1") };
    let rule = |table, matches_all| {
        let action = RuleAction::Lookup;
        RuleFacts { ipv6: false, table, priority: table, matches_all, action, suppresses: None }
    };
    let former = |matches_all| {
        let rules = vec![rule(100, matches_all), rule(254, true)];
        let mut tables = lived_in(vec![route("10.0.0.1"), other.clone()]);
        let mut namespaces = Namespaces::default();
        tables.rules.clone_from(&rules);
        namespaces.replace(0, tables, true);
        let gone = NetnsSnapshot { rules, addresses: Vec::new(), ..lived_in(vec![other.clone()]) };
        namespaces.replace(1_000_000_000, gone, true);
        namespaces.get(7).unwrap().is_former_gateway(2, gateway)
    };
    assert!(!former(false));
    assert!(former(true));
}

#[test]
fn a_gateway_that_was_told_and_went_with_its_interface_before_it_was_read_is_missed() {
    let gateway: IpAddr = "10.0.0.1".parse().unwrap();
    let after = |flags| {
        let mut namespaces = Namespaces::default();
        let tables = lived_in(Vec::new());
        let link = LinkFacts { flags, ..tables.links[0].clone() };
        namespaces.replace(0, tables.clone(), true);
        namespaces.put_route(5 * S, route("10.0.0.1"));
        namespaces.put_link(10 * S, link);
        namespaces.remove_route(10 * S, &route("10.0.0.1"));
        let is_down = flags & iff::UP == 0;
        let cause = if is_down { NeighborCause::LinkDown } else { NeighborCause::Gc };
        namespaces.put_neighbor(10 * S, &NeighborChange { cause, ..deletion_of(gateway) });
        // It is up again.
        namespaces.replace(11 * S, tables, true);
        !namespaces.get(7).unwrap().is_former_gateway(2, gateway)
    };
    assert!(after(0));
    assert!(!after(iff::UP), "its route was deleted");
}

#[test]
fn a_gateway_whose_routes_went_with_its_interface_was_one_before_that_is_reported() {
    let gateway: IpAddr = "fd00::1".parse().unwrap();
    let was_gateway = |deleted, cause| {
        let mut tables = lived_in(vec![route("fd00::1")]);
        tables.neighbors.push(permanent("fd00::1"));
        let mut namespaces = Namespaces::default();
        namespaces.replace(0, tables, true);
        namespaces.set_heard(7, deleted - 10);
        namespaces.remove_route(deleted, &route("fd00::1"));
        let entry = NeighborChange { cause, ..deletion_of(gateway) };
        namespaces.put_neighbor(10 * S, &entry);
        namespaces.get(7).unwrap().was_gateway(10 * S, 2, gateway, cause == NeighborCause::Admin)
    };
    assert_eq!(was_gateway(10 * S - 5, NeighborCause::LinkDown), Some(true));
    assert_eq!(was_gateway(10 * S - 5, NeighborCause::Admin), Some(false), "the route had been deleted");
    assert_eq!(was_gateway(5 * S, NeighborCause::LinkDown), Some(false), "long before");
}

#[test]
fn what_somebody_deleted_is_not_needed_though_its_interface_goes_right_after() {
    let [gateway, other] = ["10.0.0.1", "fd00::1"].map(|address| address.parse().unwrap());
    let mut tables = lived_in(vec![route("10.0.0.1"), route("fd00::1")]);
    tables.neighbors = vec![permanent("10.0.0.1"), permanent("fd00::1")];
    let mut namespaces = Namespaces::default();
    namespaces.replace(0, tables.clone(), true);
    namespaces.ask(&route("10.0.0.1"), false);
    for gateway in ["10.0.0.1", "fd00::1"] {
        namespaces.remove_route(10, &route(gateway));
    }
    namespaces.put_link(20, LinkFacts { flags: 0, ..tables.links[0].clone() });
    let namespace = namespaces.get(7).unwrap();
    assert!(namespace.is_former_gateway(2, gateway), "somebody had it deleted");
    assert!(!namespace.is_former_gateway(2, other), "the kernel itself");
}

#[test]
fn what_had_a_successor_is_not_needed_when_that_one_goes_as_well() {
    let gateway: IpAddr = "10.0.0.1".parse().unwrap();
    let is_former = |has_successor: bool| {
        let mut namespaces = Namespaces::default();
        let mut tables = lived_in(vec![route("10.0.0.1")]);
        tables.neighbors = vec![permanent("10.0.0.1")];
        namespaces.replace(0, tables.clone(), true);
        let down = |at: usize| LinkFacts { flags: 0, ..tables.links[at].clone() };
        let lost = |at| NetnsSnapshot {
            links: vec![down(at), tables.links[1 - at].clone()],
            ..lived_in(Vec::new())
        };
        namespaces.replace(S, lost(0), true);
        namespaces.replace(2 * S, lived_in(Vec::new()), true);
        if has_successor {
            namespaces.put_route(10 * S, RouteFacts { ifindex: Some(3), ..route("10.1.0.1") });
        }
        namespaces.put_link(20 * S, down(1));
        namespaces.replace(21 * S, lost(1), true);
        namespaces.get(7).unwrap().is_former_gateway(2, gateway)
    };
    assert!(is_former(true));
    assert!(!is_former(false));
}

#[test]
fn what_was_replaced_just_before_its_interface_went_was_replaced() {
    let gateway: IpAddr = "10.0.0.1".parse().unwrap();
    let is_former = |by: RouteFacts, asked: bool| {
        let mut namespaces = Namespaces::default();
        let mut tables = lived_in(vec![route("10.0.0.1"), route("fd00::1")]);
        tables.neighbors = vec![permanent("10.0.0.1")];
        let address = tables.addresses[0].clone();
        namespaces.replace(0, tables, true);
        if asked {
            namespaces.ask(&by, true);
        }
        namespaces.put_route(5, by.clone());
        namespaces.remove_address(10, &address);
        let link = lived_in(Vec::new()).links[0].clone();
        namespaces.put_link(11, LinkFacts { flags: 0, ..link.clone() });
        namespaces.remove_route(12, &route("fd00::1"));
        namespaces.put_link(13, link);
        namespaces.replace(20, lived_in(vec![by]), true);
        namespaces.remove_address(30, &address);
        namespaces.get(7).unwrap().is_former_gateway(2, gateway)
    };
    let nowhere = RouteFacts { gateway: None, ifindex: None, refuses: true, ..route("10.0.0.1") };
    assert!(is_former(nowhere.clone(), true), "by a route that takes its place");
    assert!(!is_former(nowhere.clone(), false), "by one that came later");
    assert!(!is_former(RouteFacts { metric: 7, ..nowhere }, true), "by none");
}

#[test]
fn what_went_with_its_interface_may_have_been_deleted_where_messages_were_lost() {
    let gateway: IpAddr = "10.0.0.1".parse().unwrap();
    let after = |is_lost: bool| {
        let mut namespaces = Namespaces::default();
        let mut tables = lived_in(vec![route("10.0.0.1")]);
        tables.neighbors = vec![permanent("10.0.0.1")];
        let address = tables.addresses[0].clone();
        namespaces.replace(0, tables.clone(), true);
        if is_lost {
            namespaces.set_all_stale(10, 5);
        }
        namespaces.remove_address(20, &address);
        namespaces.replace(30, lived_in(Vec::new()), true);
        let of = |namespaces: &Namespaces| {
            let namespace = namespaces.get(7).unwrap();
            (namespace.is_former_gateway(2, gateway), namespace.may_have_been_deleted(2, gateway))
        };
        let gone = of(&namespaces);
        namespaces.replace(40, tables, true);
        namespaces.remove_address(50, &address);
        namespaces.replace(60, lived_in(Vec::new()), true);
        (gone, of(&namespaces))
    };
    assert_eq!(after(false), ((false, false), (false, false)));
    assert_eq!(after(true), ((false, true), (false, false)), "until it is in use again");
}

#[test]
fn one_of_two_routes_that_is_deleted_on_request_is_no_end_of_their_gateway() {
    let gateway: IpAddr = "10.0.0.1".parse().unwrap();
    let is_former = |deleted: &[u32]| {
        let routes: Vec<RouteFacts> =
            [10, 20].map(|metric| RouteFacts { metric, ..route("10.0.0.1") }).to_vec();
        let mut tables = lived_in(routes.clone());
        tables.neighbors.push(permanent("10.0.0.1"));
        let mut namespaces = Namespaces::default();
        namespaces.replace(0, tables.clone(), true);
        for route in routes.iter().filter(|route| deleted.contains(&route.metric)) {
            namespaces.ask(route, false);
            namespaces.remove_route(10, route);
        }
        let down = LinkFacts { flags: 0, ..tables.links[0].clone() };
        namespaces.put_link(20, down.clone());
        let links = vec![down, tables.links[1].clone()];
        namespaces.replace(30, NetnsSnapshot { links, ..lived_in(Vec::new()) }, true);
        namespaces.get(7).unwrap().is_former_gateway(2, gateway)
    };
    for deleted in [&[10][..], &[20]] {
        assert!(!is_former(deleted), "{deleted:?}: the other one went with the link");
    }
    assert!(is_former(&[10, 20]));
}

#[test]
fn what_was_replaced_is_no_gateway_though_the_link_is_told_to_be_down_first() {
    let gateway: IpAddr = "10.0.0.1".parse().unwrap();
    let was_gateway = |is_asked: bool| {
        let [own, other] = [(2, "10.0.0.1"), (3, "10.1.0.1")]
            .map(|(by, gateway)| RouteFacts { ifindex: Some(by), ..route(gateway) });
        let v6 = RouteFacts { destination: Some(("::".parse().unwrap(), 1)), ..route("fd00::1") };
        let mut tables = lived_in(vec![own, v6.clone()]);
        tables.neighbors.push(permanent("10.0.0.1"));
        let mut namespaces = Namespaces::default();
        namespaces.replace(0, tables.clone(), true);
        if is_asked {
            namespaces.ask(&other, true);
        }
        namespaces.put_route(10, other.clone());
        namespaces.set_stale(10, 7, false);
        namespaces.put_link(20, LinkFacts { flags: 0, ..tables.links[0].clone() });
        namespaces.remove_route(21, &v6);
        namespaces.replace(30, lived_in(vec![other]), true);
        namespaces.get(7).unwrap().was_gateway(19, 2, gateway, false)
    };
    assert_eq!(was_gateway(false), Some(true));
    assert_ne!(was_gateway(true), Some(true));
}

#[test]
fn what_went_before_an_interface_was_set_up_again_does_not_go_with_it_once_more() {
    let gateway: IpAddr = "fd00::1".parse().unwrap();
    let after = |is_up_between: bool| {
        let mut tables = lived_in(vec![route("fd00::1")]);
        tables.neighbors.push(permanent("fd00::1"));
        let mut namespaces = Namespaces::default();
        namespaces.replace(0, tables.clone(), true);
        let down = LinkFacts { flags: 0, ..tables.links[0].clone() };
        namespaces.put_link(10, down.clone());
        namespaces.remove_route(11, &route("fd00::1"));
        let successor = RouteFacts { ifindex: Some(3), ..route("fd01::1") };
        namespaces.put_route(20, successor.clone());
        if is_up_between {
            namespaces.put_link(30, tables.links[0].clone());
        }
        namespaces.remove_route(40, &successor);
        namespaces.put_link(S / 2, down);
        // It is up once more when the entry is told.
        namespaces.put_link(S / 2 + 2, tables.links[0].clone());
        let entry = NeighborChange { cause: NeighborCause::LinkDown, ..deletion_of(gateway) };
        namespaces.put_neighbor(S / 2 + 1, &entry);
        let namespace = namespaces.get(7).unwrap();
        (namespace.is_former_gateway(2, gateway), namespace.was_gateway(S / 2 + 1, 2, gateway, false))
    };
    assert_eq!(after(true), (true, Some(false)));
    assert_eq!(after(false).1, Some(true), "its entry may be told late");
}

#[test]
fn what_went_with_an_address_that_came_back_does_not_go_again_with_its_interface() {
    let gateway: IpAddr = "10.0.0.1".parse().unwrap();
    let after = |had_successor: bool| {
        let successor = RouteFacts { ifindex: Some(3), metric: 7, ..route("10.1.0.1") };
        let routes = [Some(route("10.0.0.1")), had_successor.then(|| successor.clone())];
        let mut tables = lived_in(routes.into_iter().flatten().collect());
        tables.neighbors = vec![permanent("10.0.0.1")];
        let address = tables.addresses[0].clone();
        let mut namespaces = Namespaces::default();
        namespaces.replace(0, tables.clone(), true);
        namespaces.remove_address(10, &address);
        let left = had_successor.then(|| successor.clone());
        let without = NetnsSnapshot { addresses: Vec::new(), ..lived_in(left.into_iter().collect()) };
        namespaces.replace(20, without, true);
        namespaces.put_address(25, address);
        namespaces.ask(&successor, false);
        namespaces.remove_route(30, &successor);
        namespaces.put_link(S / 2, LinkFacts { flags: 0, ..tables.links[0].clone() });
        let namespace = namespaces.get(7).unwrap();
        (namespace.is_former_gateway(2, gateway), namespace.was_gateway(S / 2 + 1, 2, gateway, false))
    };
    assert_eq!(after(true), (true, Some(false)));
    assert_eq!(after(false), (false, Some(false)), "it is needed, but no route led to it");
}

#[test]
fn what_the_kernel_takes_along_as_well_is_no_successor() {
    let gateway: IpAddr = "10.0.0.1".parse().unwrap();
    let is_former = |is_read_between: bool| {
        let other = RouteFacts { ifindex: Some(3), metric: 7, ..route("10.1.0.1") };
        let mut tables = lived_in(vec![route("10.0.0.1"), other.clone()]);
        tables.neighbors = vec![permanent("10.0.0.1")];
        let mut namespaces = Namespaces::default();
        namespaces.replace(0, tables.clone(), true);
        let down = LinkFacts { flags: 0, ..tables.links[0].clone() };
        namespaces.put_link(10, down.clone());
        if is_read_between {
            let links = [&[down], &tables.links[1..]].concat();
            namespaces.replace(12, NetnsSnapshot { links, ..lived_in(vec![other.clone()]) }, true);
        }
        namespaces.remove_route(14, &other);
        namespaces.get(7).unwrap().is_former_gateway(2, gateway)
    };
    assert!(!is_former(false));
    assert!(is_former(true));
}

#[test]
fn equal_routes_go_together_when_one_of_them_replaces_them() {
    let gateway: IpAddr = "fd00::1".parse().unwrap();
    let was_gateway = |is_replaced: bool| {
        let [own, equal] = [(2, "fd00::1"), (3, "fd01::1")]
            .map(|(by, gateway)| RouteFacts { ifindex: Some(by), ..route(gateway) });
        let mut tables = lived_in(vec![own, equal.clone()]);
        tables.neighbors.push(permanent("fd00::1"));
        let mut namespaces = Namespaces::default();
        namespaces.replace(0, tables.clone(), true);
        if is_replaced {
            namespaces.ask(&equal, true);
            namespaces.put_route(10, equal.clone());
            namespaces.set_stale(10, 7, false);
        }
        namespaces.put_link(20, LinkFacts { flags: 0, ..tables.links[0].clone() });
        namespaces.replace(30, lived_in(vec![equal]), true);
        namespaces.get(7).unwrap().was_gateway(25, 2, gateway, false)
    };
    assert_eq!(was_gateway(false), Some(true));
    assert_ne!(was_gateway(true), Some(true));
}

#[test]
fn of_equal_routes_nobody_says_which_one_went_with_the_interface() {
    let gateway: IpAddr = "fd00::1".parse().unwrap();
    let was_gateway = |has_equal: bool| {
        let own = RouteFacts { unshared: true, ..route("fd00::1") };
        let equal = RouteFacts { unshared: true, ifindex: Some(3), ..route("fd00::2") };
        let mut tables = lived_in(if has_equal { vec![own.clone(), equal] } else { vec![own.clone()] });
        tables.neighbors.push(permanent("fd00::1"));
        let mut namespaces = Namespaces::default();
        namespaces.replace(0, tables, true);
        namespaces.set_heard(7, 10 * S - 10);
        namespaces.remove_route(10 * S - 5, &own);
        namespaces.put_neighbor(10 * S, &deletion_of(gateway));
        namespaces.get(7).unwrap().was_gateway(10 * S, 2, gateway, false)
    };
    assert_eq!(was_gateway(false), Some(true));
    assert_eq!(was_gateway(true), None);
}

#[test]
fn what_no_rule_led_to_when_its_interface_went_is_not_needed() {
    let gateway: IpAddr = "10.0.0.1".parse().unwrap();
    let is_former = |action| {
        let rule = |priority, action| RuleFacts {
            ipv6: false,
            table: 254,
            priority,
            matches_all: true,
            action,
            suppresses: None,
        };
        let with_rules = |rules: &[RuleFacts], routes| NetnsSnapshot {
            rules: rules.to_vec(),
            neighbors: vec![permanent("10.0.0.1")],
            ..lived_in(routes)
        };
        let main = rule(100, RuleAction::Lookup);
        let mut namespaces = Namespaces::default();
        namespaces.replace(0, with_rules(&[main], vec![route("10.0.0.1")]), true);
        let address = lived_in(Vec::new()).addresses[0].clone();
        namespaces.remove_address(10, &address);
        namespaces.replace(20, with_rules(&[rule(50, action), main], Vec::new()), true);
        namespaces.get(7).unwrap().is_former_gateway(2, gateway)
    };
    assert!(is_former(RuleAction::Refuse));
    assert!(!is_former(RuleAction::Nothing));
}

#[test]
fn what_others_replace_at_once_was_a_gateway_until_its_interface_went() {
    let gateway: IpAddr = "10.0.0.1".parse().unwrap();
    let other = RouteFacts { ifindex: Some(3), metric: 7, ..route("10.1.0.1") };
    let mut tables = lived_in(vec![route("10.0.0.1"), other.clone()]);
    tables.neighbors = vec![permanent("10.0.0.1")];
    let address = tables.addresses[0].clone();
    let mut namespaces = Namespaces::default();
    namespaces.replace(0, tables, true);
    // The kernel tells of the address before it deletes the entry.
    namespaces.set_heard(7, 10 * S - 20);
    namespaces.remove_address(10 * S - 10, &address);
    namespaces.set_stale(10 * S - 10, 7, true);
    namespaces.replace(10 * S + 5, lived_in(vec![other]), true);
    let namespace = namespaces.get(7).unwrap();
    assert_eq!(namespace.was_gateway(10 * S, 2, gateway, false), Some(true));
    assert!(namespace.is_former_gateway(2, gateway));
}
