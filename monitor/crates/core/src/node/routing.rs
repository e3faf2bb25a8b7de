//! The default gateways in use: next hops of packets without a more specific route.
//!
//! Rules select tables in turn, the longest prefix a route in a table, the lowest metric one of several, and their order one
//! of equal metric. The selectors of a rule are ignored: any rule is assumed to match some packet, and one without selectors
//! every packet. Which of several routes the kernel takes may depend on neighbor entries: that is part of the answer.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use kevtmon_observation::{RouteFacts, RuleAction, RuleFacts, TABLE_LOCAL, TABLE_MAIN};
use serde::{Deserialize, Serialize};

mod choice;

use choice::{Reach, Table};

/// How sure it is that packets go to a default gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Use {
    /// Packets go there only where another one is unresolved.
    Spare,
    /// Packets go to what is no gateway, or there, and only the kernel knows.
    Perhaps,
    /// Packets go to it or to another one, and only the kernel knows to which.
    Either,
    /// Packets go to it and to the first one in turn, if that is not known to be reachable.
    Alternate,
    /// Packets go there, unless it is unresolved: then others take its place.
    First,
    /// Some packets have nowhere else to go.
    Only,
}

/// Default gateways, each with its interface.
pub type InUse = BTreeMap<(u32, IpAddr), Use>;

/// The default gateways; one pass over routes and rules. Where no rule of a family is known, as in a kernel without policy
/// routing, the main table is selected.
pub fn gateways_in_use(routes: &[RouteFacts], rules: &[RuleFacts]) -> InUse {
    let mut tables: BTreeMap<(bool, u32), Table<'_>> = BTreeMap::new();
    for route in routes.iter().filter(|route| route.is_default()) {
        tables.entry((is_ipv6(route), route.table)).or_default().add(route);
    }
    let mut gateways = InUse::new();
    for ipv6 in [false, true] {
        let mut of_family: Vec<RuleFacts> = rules.iter().filter(|rule| rule.ipv6 == ipv6).copied().collect();
        if of_family.is_empty() {
            of_family.push(main_table(ipv6));
        }
        // Of equal priority the first one comes first.
        of_family.sort_by_key(|rule| rule.priority);
        for half in 0..2 {
            let reached = reached(&of_family, &tables, half);
            reached.into_iter().for_each(|gateways_of| choice::add(&mut gateways, gateways_of));
        }
    }
    gateways
}

/// The gateways of the tables that some packet to one half of all addresses reaches, by the rules of a family in their
/// order.
fn reached(rules: &[RuleFacts], tables: &BTreeMap<(bool, u32), Table<'_>>, half: usize) -> Vec<InUse> {
    let mut reach = vec![Reach::No; rules.len()];
    reach.iter_mut().take(1).for_each(|first| *first = Reach::Surely);
    let mut gateways = Vec::new();
    // Many rules may look in few tables.
    let mut found: BTreeMap<(u32, Option<u32>, Reach), Reach> = BTreeMap::new();
    for (at, rule) in rules.iter().enumerate() {
        let own = reach[at];
        if own == Reach::No {
            continue;
        }
        let mut next = if rule.matches_all { Reach::No } else { Reach::Surely };
        match rule.action {
            RuleAction::Lookup => {
                // Prefixes are 0 or 1 long.
                let suppresses = rule.suppresses.map(|shortest| shortest.min(1));
                next = next.max(*found.entry((rule.table, suppresses, own)).or_insert_with(|| {
                    let table = tables.get(&(rule.ipv6, rule.table));
                    let mut choice = table.map(|table| table.choice(rule, half)).unwrap_or_default();
                    if own == Reach::Perhaps {
                        choice.gateways.values_mut().for_each(|used| *used = (*used).min(Use::Either));
                    }
                    gateways.push(choice.gateways);
                    choice.next
                }));
            }
            RuleAction::Goto(target) => {
                // The kernel lets no rule lead backwards (net/core/fib_rules.c).
                match rules.iter().skip(at + 1).position(|rule| rule.priority == target) {
                    Some(skipped) => reach[at + 1 + skipped] = own.max(reach[at + 1 + skipped]),
                    None => next = Reach::Surely,
                }
            }
            RuleAction::Refuse => {}
            RuleAction::Nothing => next = Reach::Surely,
        }
        if let Some(following) = reach.get_mut(at + 1) {
            *following = next.min(own).max(*following);
        }
    }
    gateways
}

/// Whether a rule selects the table of a route.
pub fn is_selected(route: &RouteFacts, rules: &[RuleFacts]) -> bool {
    is_led_to(route, rules, |_| true)
}

/// Whether a rule for all packets selects the table of a route.
pub(super) fn takes_all(route: &RouteFacts, rules: &[RuleFacts]) -> bool {
    is_led_to(route, rules, |rule| rule.matches_all)
}

/// Whether packets of a family come to any table that could have a default route.
pub(super) fn leads_anywhere(rules: &[RuleFacts], ipv6: bool) -> bool {
    let mut of_family = rules.iter().filter(|rule| rule.ipv6 == ipv6).peekable();
    let is_open = of_family.peek().is_none();
    let gateway: IpAddr = if ipv6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
    let tables = of_family.filter(|rule| rule.action == RuleAction::Lookup && rule.table != TABLE_LOCAL);
    let routes =
        tables.map(|rule| RouteFacts { table: rule.table, ..RouteFacts::default_via(0, gateway, 1) });
    is_open || !gateways_in_use(&routes.collect::<Vec<_>>(), rules).is_empty()
}

fn is_led_to(route: &RouteFacts, rules: &[RuleFacts], by: impl Fn(&RuleFacts) -> bool) -> bool {
    let mut of_family = rules.iter().filter(|rule| rule.ipv6 == is_ipv6(route)).peekable();
    match of_family.peek() {
        None => route.table == TABLE_MAIN,
        Some(_) => {
            of_family.any(|rule| rule.action == RuleAction::Lookup && rule.table == route.table && by(rule))
        }
    }
}

fn main_table(ipv6: bool) -> RuleFacts {
    let action = RuleAction::Lookup;
    RuleFacts { ipv6, table: TABLE_MAIN, priority: 0, matches_all: true, action, suppresses: None }
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
mod tests;
