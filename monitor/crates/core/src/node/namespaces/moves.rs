//! Which gateways were in use at which moment.
//!
//! Routes and neighbor entries are told by different ways, and a message has no time of its own: it was sent after all that
//! were taken before. Where a route came or went between two times, nobody can say what was in use in between.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kevtmon_observation::{BootNs, RouteFacts, iff};
use serde::{Deserialize, Serialize};

use super::{FORMER_GATEWAY_NS, Namespace, RECENT_MAX, ROUTES_MAX};
use crate::node::routing::{InUse, Use, gateways_in_use};

/// Longer than an event waits to be judged.
const KEPT_NS: BootNs = 2 * FORMER_GATEWAY_NS;

/// A gateway came into use or went out of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Move {
    /// Not before that.
    after: BootNs,
    /// Before that.
    until: BootNs,
    gateway: (u32, IpAddr),
    /// It was none before.
    came: bool,
    /// Whether it was one before depended on the neighbor entries of others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    was_unsure: bool,
}

impl Namespace {
    /// Whether an address may have been a default gateway on an interface when its neighbor entry changed. `by_request`: the
    /// entry itself was changed, so that a route which went before is another matter.
    pub fn is_gateway(&self, at: BootNs, ifindex: u32, address: IpAddr, by_request: bool) -> bool {
        let key = (ifindex, address);
        let grace = if by_request { 0 } else { FORMER_GATEWAY_NS };
        let was = |(ceased, gateway): &(BootNs, (u32, IpAddr))| {
            *gateway == key && ceased.saturating_add(grace) >= at
        };
        self.in_use.contains(&key) || self.former.iter().any(was)
    }

    /// Whether it was; `None` if it became or ceased to be one at about that time, and which came first is not known.
    pub fn was_gateway(&self, at: BootNs, ifindex: u32, address: IpAddr, by_request: bool) -> Option<bool> {
        let key = (ifindex, address);
        let is_stale = self.stale.is_some_and(|(first, _)| first <= at);
        if is_stale || at < self.moves_since || self.has_omitted_routes() {
            return None;
        }
        // Its interface or address took it along, together with the entry.
        let went_along = || {
            let ceased = self.former.iter().rev().find(|(_, gateway)| *gateway == key);
            let went = self.succeeded.contains(&key)
                || self.gateways.get(ifindex, address).is_some_and(|gateway| gateway.went_with_link);
            went && ceased.is_none_or(|(ceased, _)| !self.has_risen(ifindex, *ceased, at))
        };
        if !by_request && self.is_gateway(at, ifindex, address, false) && went_along() {
            // Of equal routes nobody knows which one the kernel took.
            let just_before = |one: &&Move| one.until.saturating_add(FORMER_GATEWAY_NS) >= at;
            let last = self.moves.iter().rev().filter(just_before).find(|one| one.gateway == key);
            let is_sure = !self.perhaps_deleted.contains(&key) && last.is_none_or(|last| !last.was_unsure);
            return is_sure.then_some(true);
        }
        let mut was = self.is_sure(key).or_else(|| self.is_taken_in_turn(at, key));
        for later in self.moves.iter().rev().filter(|one| one.gateway == key && at < one.until) {
            if later.after <= at {
                return None;
            }
            was = (!later.was_unsure).then_some(!later.came);
        }
        // It may have become one, or ceased to be one, for a while.
        let may_have_been = self.unseen.iter().any(|(first, last)| (*first..*last).contains(&at));
        was.filter(|_| !may_have_been)
    }

    /// Whether packets go to a gateway, for all that routes tell; `None` where it depends on neighbor entries.
    fn is_sure(&self, key: (u32, IpAddr)) -> Option<bool> {
        let is_unsure =
            matches!(self.shared.get(&key), Some(Use::Alternate | Use::Either | Use::Spare | Use::Perhaps));
        (!is_unsure).then(|| self.in_use.contains(&key))
    }

    /// Whether packets went to a gateway that is not the first choice: known where the entries of those before it were static,
    /// since these are neither unresolved nor confirmed.
    fn is_taken_in_turn(&self, at: BootNs, (ifindex, address): (u32, IpAddr)) -> Option<bool> {
        if at < self.ranked_since {
            return None;
        }
        let own =
            *self.shared.get(&(ifindex, address)).filter(|own| !matches!(own, Use::Either | Use::Perhaps))?;
        let is_before = |other: &&(u32, IpAddr)| {
            other.1.is_ipv4() == address.is_ipv4() && self.shared.get(other).is_none_or(|used| *used > own)
        };
        let is_static =
            |key: &(u32, IpAddr)| self.gateways.get(key.0, key.1).is_some_and(|one| one.was_static(at));
        let mut before = self.in_use.iter().filter(is_before).peekable();
        (before.peek().is_some() && before.all(is_static)).then_some(own == Use::Alternate)
    }

    /// Whether it is a gateway in use without a neighbor entry.
    pub fn is_missed(&self, ifindex: u32, address: IpAddr) -> bool {
        self.stale.is_none()
            && !self.has_omitted_routes()
            && self.in_use.contains(&(ifindex, address))
            && self.gateways.get(ifindex, address).is_some_and(|gateway| gateway.entry.is_none())
    }

    pub(super) fn set_stale(&mut self, at: BootNs, since: BootNs, told: bool) {
        let extend = |known: &mut Option<(BootNs, BootNs)>| {
            let first = known.map_or(since, |(first, _)| first.min(since));
            *known = Some((first, at));
        };
        extend(&mut self.stale);
        if !told {
            extend(&mut self.untold);
        }
    }

    /// A message tells of a route that may have ended the use of one which came untold, or was that one.
    pub(super) fn keep_doubting(&mut self, at: BootNs) {
        if let Some((_, last)) = &mut self.untold {
            *last = at.max(*last);
        }
    }

    /// Recomputes the gateways in use after a snapshot that replaces an older state. What changed unseen is dated as far as
    /// that is known.
    pub(super) fn select_after(&mut self, at: BootNs, old: Option<&Self>) {
        let seen = old.and_then(|old| old.stale).map_or(at, |(_, last)| last);
        let after = match old {
            Some(old) if old.unheard => Some(old.read),
            Some(old) => old.stale.map(|(first, _)| first),
            None => None,
        };
        let until = if old.is_some_and(|old| old.unheard) { at } else { seen };
        let is_old = |(_, last): &mut (BootNs, BootNs)| last.saturating_add(KEPT_NS) < at;
        let old_ones = self.unseen.extract_if(.., is_old).map(|(_, last)| last).max();
        self.unseen.extend(old.and_then(|old| old.untold));
        let dropped = self.unseen.len().saturating_sub(RECENT_MAX);
        let dropped = self.unseen.drain(..dropped).map(|(_, last)| last).max();
        self.moves_since = self.moves_since.max(old_ones.max(dropped).unwrap_or(0));
        let outdone = old.map(|old| self.outdone(old)).unwrap_or_default();
        if let Some(old) = old.filter(|_| self.outdated) {
            // It may have been read before what they were challenged by.
            self.challenged.clone_from(&old.challenged);
        }
        self.select_gateways_between(after.or(self.heard), until, seen, &outdone);
        self.forget_replaced();
        // Messages of other routes may have come first, when an interface was known to be down and these routes were not.
        for gateway in outdone.difference(&self.in_use) {
            self.gateways.set_went_with_link(*gateway, false);
            if self.gone_with_link.remove(gateway) | self.succeeded.remove(gateway) {
                self.hidden.insert(*gateway);
            }
        }
    }

    /// Somebody has a route deleted, or put in the place of others. The equal ones of IPv6 go when one of them replaces them;
    /// what is deleted may be known otherwise than it is told.
    pub(super) fn challenge(&mut self, route: &RouteFacts, replaces: bool) {
        let is_one = !replaces && self.routes.contains(route);
        let meant = self.routes.iter().filter(|other| match is_one {
            true => *other == route,
            false => place(other) == place(route),
        });
        let meant: Vec<RouteFacts> = meant.filter(|one| !self.challenged.contains(one)).cloned().collect();
        self.challenged.extend(meant);
        // Without a snapshot in between a user can go on for ever.
        self.challenged.drain(..self.challenged.len().saturating_sub(ROUTES_MAX));
    }

    /// A route went. Where nobody had asked for that, what its gateway lost before by request matters no more.
    pub(super) fn unchallenge(&mut self, route: &RouteFacts) {
        let routes = &self.routes;
        if !self.challenged.iter().any(|asked| place(asked) == place(route)) {
            self.challenged
                .retain(|asked| way(asked).is_none() || way(asked) != way(route) || routes.contains(asked));
        }
    }

    /// Gateways of before whose routes somebody deleted or replaced since, or which no rule leads to any more.
    fn outdone(&self, old: &Self) -> BTreeSet<(u32, IpAddr)> {
        let is_asked = |route: &&RouteFacts| !self.routes.contains(route) && old.challenged.contains(route);
        let mut outdone: BTreeSet<_> = old.routes.iter().filter(is_asked).filter_map(way).collect();
        if outdone.is_empty() && self.rules == old.rules {
            return outdone;
        }
        let left: Vec<RouteFacts> = old.routes.iter().filter(|route| !is_asked(route)).cloned().collect();
        let still = gateways_in_use(&left, &self.rules);
        if self.rules != old.rules {
            outdone.extend(&old.in_use);
        }
        outdone.retain(|gateway| still.get(gateway).is_none_or(|used| *used <= Use::Perhaps));
        outdone
    }

    pub(super) fn select_gateways(&mut self, at: BootNs) {
        let asked = self.challenged.iter().filter_map(way);
        let by_itself = asked.filter(|gateway| !self.has_route(*gateway)).collect();
        self.select_gateways_between(self.heard, at, at, &by_itself);
    }

    /// The default gateways by routes, rules and the state of interfaces. By one that is down the kernel sends nothing, and of
    /// the routes that it lets go or keeps for later some are told after others, and some never.
    fn selected(&self) -> InUse {
        let is_down = |route: &RouteFacts| {
            let link = route.ifindex.and_then(|ifindex| self.links.get(&ifindex));
            link.is_some_and(|link| link.flags & iff::UP == 0)
        };
        if !self.routes.iter().any(is_down) {
            return gateways_in_use(&self.routes, &self.rules);
        }
        let usable: Vec<RouteFacts> = self.routes.iter().filter(|route| !is_down(route)).cloned().collect();
        gateways_in_use(&usable, &self.rules)
    }

    /// The change was made between the first two times, and is known since the last. Where the first is not
    /// told, what came is taken for a gateway of before. `by_itself`: those
    /// whose route did not go with an interface.
    fn select_gateways_between(
        &mut self,
        after: Option<BootNs>,
        until: BootNs,
        at: BootNs,
        by_itself: &BTreeSet<(u32, IpAddr)>,
    ) {
        let known: BTreeMap<(u32, IpAddr), Option<bool>> =
            self.in_use.iter().chain(self.shared.keys()).map(|key| (*key, self.is_sure(*key))).collect();
        let all = self.selected();
        let is_used = |(gateway, used): (&(u32, IpAddr), &Use)| (*used > Use::Perhaps).then_some(*gateway);
        let before = std::mem::replace(&mut self.in_use, all.iter().filter_map(is_used).collect());
        let shared = all.into_iter().filter(|(_, used)| *used != Use::Only).collect();
        let ranked = std::mem::replace(&mut self.shared, shared);
        if ranked != self.shared || before != self.in_use {
            self.ranked_since = self.ranked_since.max(until);
        }
        let is_known = self.since < at;
        self.former.retain(|(ceased, _)| ceased.saturating_add(FORMER_GATEWAY_NS) >= at);
        let is_old = |one: &mut Move| one.until.saturating_add(KEPT_NS) < at;
        let old_ones = self.moves.extract_if(.., is_old).map(|one| one.until).max();
        let now: BTreeSet<(u32, IpAddr)> =
            known.keys().chain(&self.in_use).chain(self.shared.keys()).copied().collect();
        for gateway in now {
            let was = known.get(&gateway).copied().unwrap_or(Some(false));
            // Of a namespace that is new nothing is known but what it is.
            if was != self.is_sure(gateway) && is_known && (after.is_some() || was != Some(false)) {
                // What changed untold before may have ended its use already.
                let untold = self.untold.map(|(first, _)| first).filter(|_| was == Some(true));
                let after = untold.or(after).unwrap_or(until);
                let (came, was_unsure) = (was == Some(false), was.is_none());
                self.moves.push(Move { after, until, gateway, came, was_unsure });
            }
            if before.contains(&gateway) && !self.in_use.contains(&gateway) {
                let (ifindex, address) = gateway;
                let by_itself = by_itself.contains(&gateway);
                let with_link =
                    !by_itself && (self.disturbed.contains(&ifindex) || !self.is_usable(ifindex, address));
                self.gateways.set_went_with_link(gateway, with_link);
                self.former.push((at, gateway));
                if by_itself || !with_link && self.has_route(gateway) {
                    self.hidden.insert(gateway);
                } else {
                    self.hidden.remove(&gateway);
                }
                if with_link {
                    self.gone_with_link.insert(gateway);
                } else {
                    self.gone_with_link.remove(&gateway);
                }
                if with_link && self.missed {
                    self.doubt(gateway);
                }
            }
        }
        keep_newest(&mut self.former);
        self.perhaps_deleted.retain(|gateway| !self.in_use.contains(gateway));
        let Self { former, gone_with_link, succeeded, hidden, in_use, .. } = self;
        let is_former =
            |gone: &(u32, IpAddr)| !in_use.contains(gone) && former.iter().any(|(_, one)| one == gone);
        gone_with_link.retain(is_former);
        succeeded.retain(is_former);
        hidden.retain(is_former);
        let dropped = self.moves.len().saturating_sub(RECENT_MAX);
        let dropped = self.moves.drain(..dropped).map(|one| one.until).max();
        self.moves_since = self.moves_since.max(old_ones.max(dropped).unwrap_or(0));
        self.name_gateways();
    }
}

/// The next hop of a route that leads to one.
fn way(route: &RouteFacts) -> Option<(u32, IpAddr)> {
    route.ifindex.zip(route.gateway)
}

/// Where a route is among others: there the kernel replaces one by another.
fn place(route: &RouteFacts) -> impl PartialEq {
    (route.table, route.ipv6, route.destination, route.source, route.tos, route.metric)
}

pub(super) fn keep_newest<T>(recent: &mut Vec<T>) {
    recent.drain(..recent.len().saturating_sub(RECENT_MAX));
}
