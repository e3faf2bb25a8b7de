use super::*;

fn via(gateway: &str, ifindex: u32) -> RouteFacts {
    RouteFacts::default_via(7, gateway.parse().unwrap(), ifindex)
}

fn half(address: &str, gateway: &str) -> RouteFacts {
    RouteFacts { destination: Some((address.parse().unwrap(), 1)), ..via(gateway, 9) }
}

fn rule(ipv6: bool, table: u32) -> RuleFacts {
    RuleFacts { table, matches_all: false, ..main_table(ipv6) }
}

/// Those that packets go to, all entries being fine.
fn in_use(routes: &[RouteFacts], rules: &[RuleFacts]) -> Vec<String> {
    let gateways = gateways_in_use(routes, rules).into_iter().filter(|(_, used)| *used > Use::Perhaps);
    gateways.map(|((ifindex, gateway), _)| format!("{gateway}%{ifindex}")).collect()
}

fn ranked(routes: &[RouteFacts]) -> Vec<(String, Use)> {
    let gateways = gateways_in_use(routes, &[]).into_iter();
    gateways.map(|((_, gateway), used)| (gateway.to_string(), used)).collect()
}

fn expected(gateways: &[(&str, Use)]) -> Vec<(String, Use)> {
    gateways.iter().map(|(gateway, used)| ((*gateway).to_owned(), *used)).collect()
}

#[test]
fn the_lowest_metric_wins() {
    let spare = RouteFacts { metric: 100, ..via("10.0.0.2", 3) };
    assert_eq!(in_use(&[via("10.0.0.1", 2), spare.clone()], &[]), ["10.0.0.1%2"]);
    assert_eq!(in_use(&[spare], &[]), ["10.0.0.2%3"]);
}

#[test]
fn a_table_counts_only_if_a_rule_selects_it() {
    let other = RouteFacts { table: 100, ..via("10.0.0.2", 3) };
    let vrf = RouteFacts { table: 77, ..via("10.0.0.3", 4) };
    let routes = [via("10.0.0.1", 2), other, vrf];
    assert_eq!(in_use(&routes, &[]), ["10.0.0.1%2"]);
    assert_eq!(in_use(&routes, &[rule(false, TABLE_MAIN)]), ["10.0.0.1%2"]);
    assert_eq!(
        in_use(&routes, &[rule(false, TABLE_MAIN), rule(false, 100), rule(false, 77)]),
        ["10.0.0.1%2", "10.0.0.2%3", "10.0.0.3%4"]
    );
    assert_eq!(in_use(&routes, &[rule(false, 100)]), ["10.0.0.2%3"], "nothing selects the main table");
    assert_eq!(in_use(&routes, &[rule(true, 100)]), ["10.0.0.1%2"], "a rule of the other family");
}

#[test]
fn no_rule_is_reached_behind_one_that_takes_every_packet_to_a_default_route() {
    let main = RuleFacts { priority: 32_766, matches_all: true, ..rule(false, TABLE_MAIN) };
    let vpn = RuleFacts { priority: 100, matches_all: true, ..rule(false, 100) };
    let marked = RuleFacts { matches_all: false, ..vpn };
    let routes = [via("10.0.0.1", 2), RouteFacts { table: 100, ..via("10.0.0.2", 3) }];
    assert_eq!(in_use(&routes, &[main, vpn]), ["10.0.0.2%3"]);
    assert_eq!(in_use(&routes, &[main, marked]), ["10.0.0.1%2", "10.0.0.2%3"]);
    assert_eq!(in_use(&routes[..1], &[main, vpn]), ["10.0.0.1%2"], "its table is empty");
    assert!(is_selected(&routes[1], &[main, vpn]) && !is_selected(&routes[1], &[main]));
    assert!(is_selected(&routes[0], &[]) && !is_selected(&routes[1], &[]));
}

#[test]
fn two_halves_are_a_default_route_and_hide_the_real_one_but_one_half_alone_is_none() {
    let low = half("0.0.0.0", "10.8.0.1");
    let high = half("128.0.0.0", "10.8.0.2");
    let all = [via("10.0.0.1", 2), low.clone(), high.clone()];
    assert_eq!(in_use(&all, &[]), ["10.8.0.1%9", "10.8.0.2%9"]);
    assert_eq!(in_use(&[via("10.0.0.1", 2), low], &[]), ["10.0.0.1%2"]);
    assert_eq!(in_use(&[high], &[]), [""; 0]);
    let v6 = [half("::", "fe80::1"), half("8000::", "fe80::1"), via("fe80::9", 2)];
    assert_eq!(in_use(&v6, &[]), ["fe80::1%9"]);
}

#[test]
fn the_families_do_not_mix() {
    assert_eq!(in_use(&[via("10.0.0.1", 2), via("fe80::1", 2)], &[]), ["10.0.0.1%2", "fe80::1%2"]);
    let inet_via_inet6 = RouteFacts { ipv6: false, ..via("fe80::5", 2) };
    let worse = RouteFacts { metric: 5, ..via("10.0.0.1", 2) };
    assert_eq!(in_use(&[inet_via_inet6, worse], &[]), ["fe80::5%2"]);
}

#[test]
fn a_default_route_without_next_hop_hides_a_worse_one_with() {
    let device = RouteFacts { gateway: None, ..via("10.0.0.1", 2) };
    let worse = RouteFacts { metric: 5, ..via("10.0.0.1", 2) };
    assert_eq!(in_use(&[device, worse], &[]), [""; 0]);
}

#[test]
fn a_route_that_refuses_hides_an_equal_one_behind_it() {
    let refusing = RouteFacts { gateway: None, ifindex: Some(1), ..via("fe80::1", 2) };
    assert_eq!(in_use(&[refusing.clone(), via("fe80::1", 2)], &[]), [""; 0]);
    assert_eq!(in_use(&[via("fe80::1", 2), refusing], &[]), ["fe80::1%2"]);
    let device = RouteFacts { gateway: None, ..via("fe80::1", 3) };
    assert_eq!(in_use(&[device.clone(), via("fe80::1", 2)], &[]), [""; 0], "no hops of one route");
    assert_eq!(in_use(&[via("fe80::1", 2), device], &[]), ["fe80::1%2"]);
}

#[test]
fn of_equal_ipv4_routes_the_first_two_are_taken_in_turn() {
    let [a, b, c] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|address| via(address, 2));
    let three = [c.clone(), a.clone(), b.clone()];
    let in_turn = [("10.0.0.1", Use::Alternate), ("10.0.0.2", Use::Spare), ("10.0.0.3", Use::First)];
    assert_eq!(ranked(&three), expected(&in_turn));
    let device = RouteFacts { gateway: None, ..a.clone() };
    let two = [("10.0.0.1", Use::First), ("10.0.0.2", Use::Alternate)];
    assert_eq!(ranked(&[a.clone(), device.clone(), b.clone()]), expected(&two));
    assert_eq!(ranked(&[device, a.clone(), b.clone()]), []);
    let hop = |hop, route: &RouteFacts| RouteFacts { hop, ..route.clone() };
    let both = [("10.0.0.1", Use::Only), ("10.0.0.2", Use::Only)];
    assert_eq!(
        ranked(&[hop(1, &a), hop(2, &b), c.clone()]),
        expected(&both),
        "nothing besides a multipath route"
    );
    let of_next = [("10.0.0.1", Use::Alternate), ("10.0.0.3", Use::First)];
    assert_eq!(ranked(&[c, hop(1, &a), hop(2, &b)]), expected(&of_next));
    let halves = ["0.0.0.0", "128.0.0.0"].map(|to| [half(to, "10.8.0.1"), half(to, "10.8.0.2")]).concat();
    assert_eq!(ranked(&halves), expected(&[("10.8.0.1", Use::Only)]));
}

#[test]
fn equal_ipv6_routes_with_gateways_share_unless_a_device_comes_first() {
    let [a, b] = ["fe80::1", "fe80::2"].map(|address| via(address, 2));
    let device = RouteFacts { gateway: None, ..a.clone() };
    let both = |used| expected(&[("fe80::1", used), ("fe80::2", used)]);
    assert_eq!(ranked(&[a.clone(), b.clone()]), both(Use::First));
    assert_eq!(ranked(&[a.clone(), device.clone(), b.clone()]), both(Use::Either));
    assert_eq!(ranked(&[device.clone(), a.clone(), b.clone()]), both(Use::Perhaps));
    let preferred = RouteFacts { preference: 1, ..b.clone() };
    assert_eq!(ranked(&[device, preferred]), expected(&[("fe80::2", Use::First)]));
    let advertised = [&a, &b].map(|route| RouteFacts { unshared: true, ..route.clone() });
    assert_eq!(ranked(&advertised), both(Use::Either));
    let worse = RouteFacts { metric: 5, ..b.clone() };
    assert_eq!(ranked(&[a.clone(), worse]), expected(&[("fe80::1", Use::First), ("fe80::2", Use::Spare)]));
    assert_eq!(ranked(&[a]), expected(&[("fe80::1", Use::Only)]));
}

#[test]
fn what_may_be_taken_in_one_table_is_not_certainly_spare_for_another() {
    let refusing = RouteFacts { gateway: None, ifindex: Some(1), table: 101, ..via("fe80::1", 2) };
    let equal = RouteFacts { table: 101, ..via("fe80::1", 2) };
    let [first, behind] =
        [("fe80::2", 5), ("fe80::1", 9)].map(|(address, metric)| RouteFacts { metric, ..via(address, 2) });
    let some = RuleFacts { matches_all: false, ..rule(true, 101) };
    let found = gateways_in_use(&[refusing, equal, first, behind], &[some, rule(true, 254)]);
    assert_eq!(found.get(&(2, "fe80::1".parse().unwrap())), Some(&Use::Perhaps));
}

#[test]
fn a_gateway_of_some_packets_is_in_use() {
    let service = RouteFacts { tos: 0x10, metric: 50, ..via("10.0.0.2", 2) };
    let two = [("10.0.0.1", Use::Only), ("10.0.0.2", Use::First)];
    assert_eq!(ranked(&[service.clone(), via("10.0.0.1", 2)]), expected(&two));
    assert_eq!(ranked(&[service]), expected(&[("10.0.0.2", Use::Only)]));
    let from = |source: &str, prefix_len, gateway| RouteFacts {
        source: Some((source.parse().unwrap(), prefix_len)),
        metric: 50,
        ..via(gateway, 2)
    };
    let sources = [from("fd00:1::", 64, "fe80::2"), from("fd00:1::", 32, "fe80::3"), via("fe80::1", 2)];
    assert_eq!(in_use(&sources, &[]), ["fe80::1%2", "fe80::2%2", "fe80::3%2"]);
    let same = RouteFacts { metric: 60, ..from("fd00:1::", 64, "fe80::4") };
    assert_eq!(in_use(&[sources[0].clone(), same], &[]), ["fe80::2%2"]);
}

#[test]
fn packets_go_on_behind_a_route_that_throws_and_a_rule_that_suppresses() {
    let main = RuleFacts { priority: 32_766, matches_all: true, ..rule(false, TABLE_MAIN) };
    let first = RuleFacts { priority: 100, matches_all: true, ..rule(false, 100) };
    let other = RouteFacts { table: 100, ..via("10.0.0.2", 3) };
    let throws = RouteFacts { gateway: None, ifindex: None, throws: true, ..other.clone() };
    let worse = RouteFacts { metric: 7, ..other.clone() };
    assert_eq!(in_use(&[throws, worse, via("10.0.0.1", 2)], &[first, main]), ["10.0.0.1%2"]);
    // Of equal routes of IPv6 one or the other.
    let of_v6 = |rule| RuleFacts { ipv6: true, ..rule };
    let equal = RouteFacts { table: 100, ..via("fe80::2", 3) };
    let throws = RouteFacts { gateway: None, throws: true, ipv6: true, ..equal.clone() };
    let routes = [throws, equal, via("fe80::1", 2)];
    let perhaps =
        [((2, "fe80::1".parse().unwrap()), Use::Either), ((3, "fe80::2".parse().unwrap()), Use::Perhaps)];
    assert_eq!(gateways_in_use(&routes, &[first, main].map(of_v6)), InUse::from(perhaps));
    // As wg-quick has it.
    let quick = RuleFacts { priority: 32_764, suppresses: Some(0), ..main };
    let marked = RuleFacts { priority: 32_765, matches_all: false, ..first };
    let tunnel = RouteFacts { gateway: None, ..other.clone() };
    let routes = [via("10.0.0.1", 2), tunnel];
    assert_eq!(in_use(&routes, &[quick, marked, main]), ["10.0.0.1%2"], "of what is not marked");
    assert_eq!(in_use(&routes, &[quick, RuleFacts { matches_all: true, ..marked }, main]), [""; 0]);
    let refuses =
        RouteFacts { gateway: None, ifindex: None, refuses: true, table: TABLE_MAIN, ..other.clone() };
    let of_table = RouteFacts { table: 100, ..via("10.0.0.3", 3) };
    assert_eq!(in_use(&[refuses, of_table], &[quick, marked, main]), [""; 0], "nothing suppresses an error");
    // Of equal routes of IPv6 it may be the other one that is taken, and suppressed.
    let refuses = RouteFacts { gateway: None, refuses: true, ipv6: true, ..via("fe80::1", 2) };
    let behind = RouteFacts { table: 100, ..via("fe80::2", 3) };
    for routes in [[refuses.clone(), via("fe80::1", 2)], [via("fe80::1", 2), refuses]] {
        let routes = [routes.to_vec(), vec![behind.clone()]].concat();
        let found = gateways_in_use(&routes, &[quick, marked, main].map(of_v6));
        assert_eq!(found.get(&(3, "fe80::2".parse().unwrap())), Some(&Use::Either), "{found:?}");
    }
    let halves = ["0.0.0.0", "128.0.0.0"].map(|to| half(to, "10.8.0.1"));
    assert_eq!(in_use(&halves, &[quick]), ["10.8.0.1%9"]);
    assert_eq!(in_use(&halves, &[RuleFacts { suppresses: Some(1), ..quick }]), [""; 0]);
}

#[test]
fn no_packet_passes_a_rule_that_refuses_all_and_none_comes_where_all_are_led_past() {
    let main = RuleFacts { priority: 32_766, matches_all: true, ..rule(false, TABLE_MAIN) };
    let refuses = RuleFacts { priority: 100, action: RuleAction::Refuse, ..main };
    let routes = [via("10.0.0.1", 2), RouteFacts { table: 100, ..via("10.0.0.2", 3) }];
    assert_eq!(in_use(&routes, &[refuses, main]), [""; 0]);
    assert_eq!(in_use(&routes, &[RuleFacts { matches_all: false, ..refuses }, main]), ["10.0.0.1%2"]);
    let skipped = RuleFacts { priority: 200, ..rule(false, 100) };
    let goto = |to, matches_all| RuleFacts { matches_all, action: RuleAction::Goto(to), ..refuses };
    assert_eq!(in_use(&routes, &[goto(32_766, true), skipped, main]), ["10.0.0.1%2"]);
    assert_eq!(in_use(&routes, &[goto(32_766, false), skipped, main]), ["10.0.0.1%2", "10.0.0.2%3"]);
    assert_eq!(in_use(&routes, &[goto(7_777, true), skipped, main]), ["10.0.0.1%2", "10.0.0.2%3"]);
    let nothing = RuleFacts { action: RuleAction::Nothing, ..refuses };
    assert_eq!(in_use(&routes, &[nothing, main]), ["10.0.0.1%2"]);
}
