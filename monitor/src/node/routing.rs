//! The default gateways in use: next hops of packets without a more specific route.
//!
//! A rule or a VRF selects a table, the longest prefix a route in it, the lowest metric one of several. The
//! selectors of a rule are ignored: any rule is assumed to match some packet, and one without selectors every packet.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::observation::{RouteFacts, RuleFacts, TABLE_MAIN};

/// The two halves that together stand for a default route, as VPN clients set them (`0.0.0.0/1`, `128.0.0.0/1`).
const HALVES_V4: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::new(128, 0, 0, 0))];
const HALVES_V6: [IpAddr; 2] =
    [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::new(0x8000, 0, 0, 0, 0, 0, 0, 0))];

/// Whether it is a default route, or half of one.
#[must_use]
pub fn is_default(route: &RouteFacts) -> bool {
    match route.destination {
        None => true,
        Some((address, 1)) => HALVES_V4.contains(&address) || HALVES_V6.contains(&address),
        Some(_) => false,
    }
}

/// The default gateways in use, each with its interface; one pass over routes and rules. Where no rule of a family is
/// known, as in a kernel without policy routing, the main table is selected.
#[must_use]
pub fn gateways_in_use(routes: &[RouteFacts], rules: &[RuleFacts]) -> BTreeSet<(u32, IpAddr)> {
    let mut tables: BTreeMap<(bool, u32), Table<'_>> = BTreeMap::new();
    for route in routes.iter().filter(|route| is_default(route)) {
        tables.entry((is_ipv6(route), route.table)).or_default().add(route);
    }
    let mut gateways = BTreeSet::new();
    for ipv6 in [false, true] {
        let mut of_family: Vec<RuleFacts> = rules.iter().filter(|rule| rule.ipv6 == ipv6).copied().collect();
        if of_family.is_empty() {
            of_family.push(main_table(ipv6));
        }
        of_family.sort_unstable_by_key(|rule| rule.priority);
        let mut reached = BTreeSet::new();
        for rule in of_family {
            let Some(table) = tables.get(&(ipv6, rule.table)) else { continue };
            let chosen = table.chosen();
            let is_new = reached.insert(rule.table);
            let hops = chosen.iter().filter_map(|route| Some((route.ifindex?, route.gateway?)));
            gateways.extend(hops.filter(|_| is_new));
            if rule.matches_all && !chosen.is_empty() {
                break;
            }
        }
    }
    gateways
}

/// Whether a rule selects the table of a route.
#[must_use]
pub fn is_selected(route: &RouteFacts, rules: &[RuleFacts]) -> bool {
    let mut of_family = rules.iter().filter(|rule| rule.ipv6 == is_ipv6(route)).peekable();
    match of_family.peek() {
        None => route.table == TABLE_MAIN,
        Some(_) => of_family.any(|rule| rule.table == route.table),
    }
}

fn main_table(ipv6: bool) -> RuleFacts {
    RuleFacts { ipv6, table: TABLE_MAIN, priority: 0, matches_all: true }
}

/// The default routes of a table that no other one is better than, by destination.
#[derive(Default)]
struct Table<'a> {
    whole: Vec<&'a RouteFacts>,
    halves: [Vec<&'a RouteFacts>; 2],
}

impl<'a> Table<'a> {
    fn add(&mut self, route: &'a RouteFacts) {
        let best = match route.destination {
            None => &mut self.whole,
            Some((address, _)) => &mut self.halves[usize::from(!address.is_unspecified())],
        };
        let least = best.first().map_or(u32::MAX, |best| best.metric);
        if route.metric < least {
            best.clear();
        }
        // The kernel takes the first of equal ones; one that refuses is no part of a multipath route.
        let is_hidden = best.first().is_some_and(|first| refuses(first));
        if best.is_empty() || (route.metric == least && !is_hidden) {
            best.push(route);
        }
    }

    /// Halves hide a whole one only together.
    fn chosen(&self) -> Vec<&'a RouteFacts> {
        match self.halves.iter().any(Vec::is_empty) {
            true => self.whole.clone(),
            false => self.halves.concat(),
        }
    }
}

/// Whether it leads nowhere (`unreachable`, `blackhole`, `prohibit`): IPv6 has these on the loopback interface, which is
/// the first of each namespace.
fn refuses(route: &RouteFacts) -> bool {
    const LOOPBACK: u32 = 1;
    route.gateway.is_none() && route.ifindex.is_none_or(|ifindex| ifindex == LOOPBACK)
}

fn is_ipv6(route: &RouteFacts) -> bool {
    match (route.destination, route.gateway) {
        (Some((address, _)), _) => address.is_ipv6(),
        // An IPv4 route can have an IPv6 next hop, never the other way round.
        (None, Some(IpAddr::V4(_))) => false,
        (None, _) => route.ipv6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn via(gateway: &str, ifindex: u32) -> RouteFacts {
        RouteFacts::default_via(7, gateway.parse().unwrap(), ifindex)
    }

    fn half(address: &str, gateway: &str) -> RouteFacts {
        RouteFacts { destination: Some((address.parse().unwrap(), 1)), ..via(gateway, 9) }
    }

    fn rule(ipv6: bool, table: u32) -> RuleFacts {
        RuleFacts { ipv6, table, priority: 0, matches_all: false }
    }

    fn in_use(routes: &[RouteFacts], rules: &[RuleFacts]) -> Vec<String> {
        let gateways = gateways_in_use(routes, rules);
        gateways.into_iter().map(|(ifindex, gateway)| format!("{gateway}%{ifindex}")).collect()
    }

    #[test]
    fn the_lowest_metric_wins_and_equal_ones_share() {
        let spare = RouteFacts { metric: 100, ..via("10.0.0.2", 3) };
        assert_eq!(in_use(&[via("10.0.0.1", 2), spare.clone()], &[]), ["10.0.0.1%2"]);
        assert_eq!(in_use(&[spare], &[]), ["10.0.0.2%3"]);
        assert_eq!(in_use(&[via("10.0.0.1", 2), via("10.0.0.1", 3)], &[]), ["10.0.0.1%2", "10.0.0.1%3"]);
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
        assert_eq!(in_use(&[device, via("fe80::1", 2)], &[]), ["fe80::1%2"], "hops of one route");
    }
}
