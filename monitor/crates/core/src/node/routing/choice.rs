//! Which of the default routes of a table the kernel takes.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::net::IpAddr;

use kevtmon_observation::{RouteFacts, RuleFacts};

use super::{InUse, Use};

/// The default routes of a table, in the order of the kernel.
#[derive(Default)]
pub(super) struct Table<'a> {
    whole: Vec<&'a RouteFacts>,
    halves: [Vec<&'a RouteFacts>; 2],
}

/// Whether packets come to a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reach {
    No,
    /// Only the kernel knows.
    Perhaps,
    Surely,
}

/// What a table does with packets.
#[derive(Debug, Clone)]
pub(super) struct Choice {
    pub(super) gateways: InUse,
    /// Whether packets go on to the next rule.
    pub(super) next: Reach,
    /// The length of the prefix that was found.
    prefix_len: u32,
    /// Whether packets go nowhere.
    refuses: Reach,
}

/// Packets that the same routes match.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Class {
    tos: u8,
    source: Option<(IpAddr, u8)>,
}

impl<'a> Table<'a> {
    pub(super) fn add(&mut self, route: &'a RouteFacts) {
        match route.destination {
            None => self.whole.push(route),
            Some((address, _)) => self.halves[usize::from(!address.is_unspecified())].push(route),
        }
    }

    /// Where packets of all classes to one half of all addresses go by a rule.
    pub(super) fn choice(&self, rule: &RuleFacts, half: usize) -> Choice {
        let all = self.whole.iter().chain(self.halves.iter().flatten());
        let of_routes = all.map(|route| Class { tos: route.tos, source: route.source });
        let classes: BTreeSet<Class> = of_routes.chain([Class::default()]).collect();
        let has_sources = rule.ipv6 && classes.len() > 1;
        let mut together = Choice { next: Reach::No, ..Choice::default() };
        for class in classes {
            let mut one = self.choice_of(class, rule.ipv6, half).taken_by(rule);
            // Every source may have a route of its own: then no packet has none.
            if has_sources && class == Class::default() {
                one.gateways.values_mut().for_each(|used| *used = (*used).min(Use::First));
            }
            together.next = one.next.max(together.next);
            add(&mut together.gateways, one.gateways);
        }
        together
    }

    /// A half hides the whole one for its packets, but it is no default route alone.
    fn choice_of(&self, class: Class, ipv6: bool, half: usize) -> Choice {
        let halves = self.halves.each_ref().map(|half| matching(half, class, ipv6));
        let is_alone = halves.iter().any(Vec::is_empty);
        let whole = matching(&self.whole, class, ipv6);
        let Some(own) = halves.into_iter().nth(half).filter(|own| !own.is_empty()) else {
            return chosen(&whole, ipv6);
        };
        // IPv6 falls back on shorter prefixes (net/ipv6/route.c, `fib6_table_lookup`).
        let behind = if ipv6 { whole } else { Vec::new() };
        let choice = chosen(&[own, behind].concat(), ipv6);
        let gateways = if is_alone { InUse::new() } else { choice.gateways };
        Choice { gateways, ..choice }
    }
}

/// Of a table without a default route.
impl Default for Choice {
    fn default() -> Self {
        Self { gateways: InUse::new(), next: Reach::Surely, prefix_len: 0, refuses: Reach::No }
    }
}

impl Choice {
    /// What a rule takes of it. A route by which packets go nowhere is an error to the kernel, which it looks at before it
    /// suppresses anything (net/core/fib_rules.c, `fib_rules_lookup`).
    fn taken_by(self, rule: &RuleFacts) -> Self {
        match (rule.suppresses.is_some_and(|shortest| self.prefix_len <= shortest), self.refuses) {
            (false, _) | (true, Reach::Surely) => self,
            (true, Reach::Perhaps) => Self { next: Reach::Perhaps, ..Self::default() },
            (true, Reach::No) => Self::default(),
        }
    }
}

/// The routes that packets of a class match, those that the kernel prefers first. In IPv4 a type of service comes before the
/// metric (net/ipv4/fib_trie.c, `fib_find_alias`), in IPv6 the source (net/ipv6/ip6_fib.c, `fib6_node_lookup_1`), and the
/// preference after it (net/ipv6/route.c, `find_rr_leaf`).
fn matching<'a>(routes: &[&'a RouteFacts], class: Class, ipv6: bool) -> Vec<&'a RouteFacts> {
    let is_of_class = |route: &&&RouteFacts| match ipv6 {
        true => route.source.is_none_or(|outer| class.source.is_some_and(|inner| is_within(inner, outer))),
        false => route.tos == 0 || route.tos == class.tos,
    };
    let mut matching: Vec<&RouteFacts> = routes.iter().filter(is_of_class).copied().collect();
    if ipv6 {
        let source_len = |route: &RouteFacts| route.source.map_or(0, |(_, prefix_len)| prefix_len);
        matching.sort_by_key(|route| (Reverse(source_len(route)), route.metric, Reverse(route.preference)));
    } else {
        matching.sort_by_key(|route| (Reverse(route.tos), route.metric));
    }
    matching
}

fn chosen(routes: &[&RouteFacts], ipv6: bool) -> Choice {
    let Some(first) = routes.first() else { return Choice::default() };
    let prefix_len = first.destination.map_or(0, |(_, prefix_len)| prefix_len.into());
    let hops = hops_of_first(routes);
    let used: Vec<(&RouteFacts, Use)> = match (first.gateway, ipv6) {
        (_, true) => used_of_ipv6(first, routes, hops),
        _ if first.throws => Vec::new(),
        // Of a group of nexthop objects the kernel leaves out a member that it could not resolve (net/ipv4/nexthop.c,
        // `nexthop_select_path_hthr`); of another multipath route, and of half a default route, it looks for no other one.
        _ if first.hop > 0 => {
            let used = if first.unshared && hops > 1 { Use::First } else { Use::Only };
            routes[..hops].iter().map(|hop| (*hop, used)).collect()
        }
        (None, false) => Vec::new(),
        (Some(_), false) if prefix_len > 0 => vec![(first, Use::Only)],
        (Some(_), false) => used_of_ipv4(routes),
    };
    let mut gateways = InUse::new();
    add(
        &mut gateways,
        used.into_iter().filter_map(|(route, used)| Some(((route.ifindex?, route.gateway?), used))),
    );
    let is_equal = |other: &&RouteFacts| key(other) == key(first) && other.preference == first.preference;
    // Which of equal routes of IPv6 is taken, only the kernel knows.
    let reach = |of: fn(&RouteFacts) -> bool| match of(first) {
        _ if ipv6 && routes.iter().any(|other| is_equal(other) && of(other) != of(first)) => Reach::Perhaps,
        true => Reach::Surely,
        false => Reach::No,
    };
    Choice { gateways, next: reach(|route| route.throws), prefix_len, refuses: reach(|route| route.refuses) }
}

/// `fib_select_default` of net/ipv4/fib_semantics.c: of equal routes it takes the first with a reachable gateway or without
/// a neighbor entry; one with another valid entry it takes in turn with the next.
fn used_of_ipv4<'a>(routes: &[&'a RouteFacts]) -> Vec<(&'a RouteFacts, Use)> {
    let mut candidates: Vec<&RouteFacts> = Vec::new();
    let mut last: Option<&RouteFacts> = None;
    for route in routes {
        match last {
            Some(last) if route.tos == last.tos && route.metric > last.metric => {
                if last.tos == 0 {
                    break;
                }
                continue;
            }
            _ => last = Some(route),
        }
        // Of a multipath route it looks at the first next hop.
        if route.gateway.is_some() && route.hop <= 1 {
            candidates.push(route);
        }
    }
    let is_alone = candidates.len() == 1;
    let rank = |(place, route)| match place {
        0 if is_alone => (route, Use::Only),
        0 => (route, Use::First),
        1 => (route, Use::Alternate),
        _ => (route, Use::Spare),
    };
    candidates.into_iter().enumerate().map(rank).collect()
}

/// What routes have in common of which the kernel takes one after the other, or all.
fn key(route: &RouteFacts) -> impl PartialEq {
    (route.destination, route.source, route.metric)
}

/// `rt6_select` and `fib6_select_path` of net/ipv6: the first route shares packets with all like it, and where its gateway
/// cannot be resolved others follow, those of worse metrics and shorter prefixes too. Once a gateway has failed, equal routes
/// that share nothing come in turn, and nobody is told which of them it is.
fn used_of_ipv6<'a>(
    first: &RouteFacts,
    routes: &[&'a RouteFacts],
    hops: usize,
) -> Vec<(&'a RouteFacts, Use)> {
    let is_shared = |route: &RouteFacts| route.gateway.is_some() && !route.unshared;
    let is_like_first = |place: usize, route: &RouteFacts| {
        place < hops || is_shared(first) && is_shared(route) && key(route) == key(first)
    };
    let is_rival = |place: usize, route: &RouteFacts| {
        key(route) == key(first) && route.preference == first.preference && !is_like_first(place, route)
    };
    let has_rivals = routes.iter().enumerate().any(|(place, route)| is_rival(place, route));
    let used = match (routes.len(), has_rivals) {
        (1, _) => Use::Only,
        (_, true) => Use::Either,
        (_, false) => Use::First,
    };
    let rank = |(place, route): (usize, &'a RouteFacts)| match first.gateway {
        None => is_rival(place, route).then_some((route, Use::Perhaps)),
        Some(_) if is_like_first(place, route) || is_rival(place, route) => Some((route, used)),
        Some(_) => Some((route, Use::Spare)),
    };
    routes.iter().copied().enumerate().filter_map(rank).collect()
}

/// Adds gateways; one that is used in several ways counts by the surest.
pub(super) fn add(all: &mut InUse, more: impl IntoIterator<Item = ((u32, IpAddr), Use)>) {
    for (gateway, used) in more {
        let known = all.entry(gateway).or_insert(used);
        *known = used.max(*known);
    }
}

/// Whether all addresses of a prefix are in another one.
fn is_within((inner, inner_len): (IpAddr, u8), (outer, outer_len): (IpAddr, u8)) -> bool {
    let (IpAddr::V6(inner), IpAddr::V6(outer)) = (inner, outer) else { return false };
    let mask = u128::MAX.checked_shl(128 - u32::from(outer_len.min(128))).unwrap_or(0);
    inner_len >= outer_len && (u128::from(inner) ^ u128::from(outer)) & mask == 0
}

fn hops_of_first(routes: &[&RouteFacts]) -> usize {
    let pairs = routes.iter().zip(routes.iter().skip(1));
    1 + pairs.take_while(|(hop, next)| 0 < hop.hop && hop.hop < next.hop && hop.metric == next.metric).count()
}
