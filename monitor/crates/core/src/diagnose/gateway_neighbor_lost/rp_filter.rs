//! ARP requests of a pod that the host drops because it routes the pod's address elsewhere (`rp_filter`): it answers none of
//! them (`arp_process`, net/ipv4/arp.c). The route is the kernel's own answer, which is asked for to find missing routes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use kevtmon_event::{Actor, Advice, Event, Kind, Shared, form};
use kevtmon_observation::{
    BootNs, FoundRoute, LinkFacts, NeighborKey, NsInum, PodRoute, PolicyRule, RpFilter,
};
use kevtmon_types::escape::name;
use serde::{Deserialize, Serialize};

use super::Fault;
use super::host_side::{
    ALL, Act, Cause, Explanation, HostFault, LinkChange, LinkChanges, Silence, host_fault, place,
};
use crate::diagnose::advice::advice;
use crate::diagnose::{CAPACITY, Context, SECOND};
use crate::node::view::NodeView;
use crate::route::by;

/// The kernel is asked twice as often as this, at least.
const FRESH: BootNs = 60 * SECOND;
/// An answer may be older than a change by so much.
const ANSWER_DELAY: BootNs = SECOND;

/// Addresses of pods to which the host's route leads elsewhere, or has changed of late.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Strays(BTreeMap<IpAddr, Stray>);

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Stray {
    /// Where the route leads; absent while that is not known.
    found: Option<FoundRoute>,
    /// When the kernel first and last answered that.
    since: BootNs,
    seen: BootNs,
    /// The last event of a route to this address alone.
    changed: Option<RouteChange>,
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
struct RouteChange {
    is_added: bool,
    ifindex: Option<u32>,
    at: BootNs,
    seq: u64,
    actor: Option<Shared<Actor>>,
}

impl RouteChange {
    /// Whether packets to a pod with this interface may go where they do because of it.
    fn leads_there(&self, found: FoundRoute, own: u32) -> bool {
        match found {
            FoundRoute::By { ifindex } | FoundRoute::Default { ifindex } if self.is_added => {
                self.ifindex == Some(ifindex)
            }
            FoundRoute::By { .. } | FoundRoute::Default { .. } | FoundRoute::Nothing => {
                !self.is_added && self.ifindex == Some(own)
            }
            _ => false,
        }
    }
}

impl Strays {
    pub(super) fn note(&mut self, host: NsInum, event: &Event) {
        let is_added = event.kind == Kind::RouteAdded;
        let is_of_route = is_added || event.kind == Kind::RouteDeleted;
        let route = event.route.as_deref().filter(|route| is_of_route && route.netns == host);
        // A default route has no address.
        let address = route.and_then(|route| route.destination.split('/').next()?.parse::<IpAddr>().ok());
        let (Some(route), Some(address)) = (route, address) else { return };
        if self.0.len() < CAPACITY || self.0.contains_key(&address) {
            let (ifindex, at, seq, actor) = (route.ifindex, event.at, event.seq, event.actor.clone());
            let changed = RouteChange { is_added, ifindex, at, seq, actor };
            self.0.entry(address).or_default().changed = Some(changed);
        }
    }

    /// Where the route to an address leads is not known until the next answer.
    pub(super) fn doubt(&mut self, address: IpAddr) {
        if let Some(stray) = self.0.get_mut(&address) {
            stray.found = None;
        }
    }

    /// The same of all that a rule may concern: since when, and who changed a route, counts no more.
    pub(super) fn doubt_all(&mut self, rule: &PolicyRule) {
        let is_of_others = |address: IpAddr| rule.to.is_some_and(|(to, bits)| bits == 32 && to != address);
        self.0.retain(|address, _| !rule.is_inverse && is_of_others(*address));
    }

    /// Takes what the kernel answered of the addresses of all pods.
    pub(super) fn answered(&mut self, now: BootNs, elsewhere: &[PodRoute]) {
        let mut before = std::mem::take(&mut self.0);
        for PodRoute { address, found } in elsewhere {
            let known = before.remove(address).unwrap_or_default();
            let since = if known.found.is_some() { known.since } else { now };
            let stray = Stray { found: Some(*found), since, seen: now, changed: known.changed };
            self.0.insert(*address, stray);
        }
        for (address, Stray { changed, .. }) in before {
            let is_recent = |changed: &RouteChange| now < changed.at.saturating_add(ANSWER_DELAY);
            if changed.as_ref().is_some_and(is_recent) {
                self.0.insert(address, Stray { changed, ..Stray::default() });
            }
        }
    }

    /// Why nothing answers, and who made it so: of the filter and the route, the one that was changed last.
    pub(super) fn silence(
        &self,
        changes: &LinkChanges,
        context: &Context<'_>,
        key: NeighborKey,
        fault: &Fault,
    ) -> Option<Silence> {
        let node = context.node;
        // What is wrong there is enough for it not to answer.
        if host_fault(node, key).is_some_and(|found| !matches!(found, HostFault::NoRoute(_))) {
            return None;
        }
        let device = node.gateway_link(key).filter(|device| device.netns == node.host_netns)?;
        let filter = node.host_sysctls.rp_filter(device.ifindex)?;
        let address = source(node, key)?;
        let stray = self.0.get(&address).filter(|stray| context.now < stray.seen.saturating_add(FRESH))?;
        let found = stray.found.filter(|found| is_dropped(node, device, filter, *found))?;
        let [own, of_all] =
            [device.ifindex, ALL].map(|ifindex| changes.last(device.netns, ifindex, &[Act::RpFilter]));
        let sets = [(own, of_all), (of_all, own)].into_iter();
        let sets = sets.filter_map(|(set, other)| Some((set.filter(|set| set.at <= fault.first)?, other)));
        let last_set = sets.clone().map(|(set, _)| set.at).max();
        let set = sets
            .filter(|(set, other)| is_effective(node, device, set, *other, found))
            .map(|(set, _)| set)
            .max_by_key(|set| set.at);
        let changed = stray.changed.as_ref().filter(|changed| {
            // Where it was on already, who had set it may not be known any more.
            let is_last = set.is_some() || last_set.is_none_or(|set_at| set_at < changed.at);
            changed.at <= fault.first && changed.leads_there(found, device.ifindex) && is_last
        });
        let astray_since = changed.map_or(stray.since, |changed| changed.at);
        let (act, seq, actor, done) = match (set, changed) {
            (Some(set), _) if astray_since <= set.at => {
                (Act::RpFilter, set.seq, set.actor.as_ref(), "rp_filter was set")
            }
            (_, Some(changed)) => {
                (Act::OtherRoute, changed.seq, changed.actor.as_ref(), "the route was changed")
            }
            // It may have been a rule, or a route to more than this address.
            _ => (Act::OtherRoute, 0, None, ""),
        };
        let way = way(node, address, found);
        let phrase = format!("rp_filter {} on {} likely drops them: {way}", filter.number(), place(device));
        let text = match actor {
            Some(actor) => format!("{phrase}; {done}{}", by(Some(actor))),
            None => phrase.clone(),
        };
        let cause = Some(Cause { act, netns: device.netns, ifindex: device.ifindex });
        Some(Silence {
            explanation: Explanation { text, seq, cause, seen: context.now },
            actor: actor.cloned().map(Actor::at_most_likely),
            phrases: vec![phrase],
        })
    }
}

/// The address from which a pod asks for its gateway, if it has only one there.
fn source(node: &NodeView<'_>, key: NeighborKey) -> Option<IpAddr> {
    let addresses = &node.namespaces.get(key.netns)?.addresses;
    let is_own = |known: IpAddr| known.is_ipv4() && key.address.is_ipv4();
    let mut own = addresses.iter().filter(|known| known.ifindex == key.ifindex && is_own(known.address));
    let (Some(known), None) = (own.next(), own.next()) else { return None };
    Some(known.address)
}

/// Whether the host drops what comes by an interface from an address that it does not route there
/// (`__fib_validate_source`, net/ipv4/fib_frontend.c).
fn is_dropped(node: &NodeView<'_>, device: &LinkFacts, filter: RpFilter, found: FoundRoute) -> bool {
    let has_address = || {
        let host = node.namespaces.get(device.netns);
        let is_its = |ifindex: u32, address: IpAddr| ifindex == device.ifindex && address.is_ipv4();
        host.is_some_and(|host| host.addresses.iter().any(|own| is_its(own.ifindex, own.address)))
    };
    match (filter, found) {
        (RpFilter::Off, _) | (_, FoundRoute::Other) => false,
        // An interface without an address, as Calico's are, is always strict.
        (RpFilter::Loose, FoundRoute::By { .. } | FoundRoute::Default { .. }) => !has_address(),
        _ => true,
    }
}

/// Whether nothing was dropped before this was set: the value of the interface and that of all count, one of which is the other.
fn is_effective(
    node: &NodeView<'_>,
    device: &LinkFacts,
    set: &LinkChange,
    other: Option<&LinkChange>,
    found: FoundRoute,
) -> bool {
    let sysctls = node.host_sysctls;
    let Some((own, of_all)) = sysctls.rp_filters(device.ifindex) else { return false };
    let before = |ifindex: u32| sysctls.rp_filter_before(Some(ifindex).filter(|ifindex| *ifindex != ALL));
    let now = if set.ifindex == ALL { own } else { of_all };
    let was = other.filter(|other| other.at > set.at).and_then(|other| before(other.ifindex)).unwrap_or(now);
    !is_dropped(node, device, was.max(before(set.ifindex).unwrap_or(RpFilter::Off)), found)
}

fn way(node: &NodeView<'_>, address: IpAddr, found: FoundRoute) -> String {
    let (FoundRoute::By { ifindex } | FoundRoute::Default { ifindex }) = found else {
        return format!("the host has no usable route to {address}");
    };
    match node.link_at(node.host_netns, ifindex) {
        Some(link) => format!("the host routes {address} by {}", name(&link.ifname)),
        None => format!("the host routes {address} by interface {ifindex}"),
    }
}

/// What to do where that was found to be why nothing answers.
pub(super) fn steps(node: &NodeView<'_>, fault: &Fault, key: NeighborKey) -> Vec<Advice> {
    let cause = fault.explanation.as_ref().and_then(|known| known.cause);
    let (Some(cause), Some(device)) = (cause, node.gateway_link(key)) else { return Vec::new() };
    match cause.act {
        Act::RpFilter => {
            let text = "have the host take what the pod sends again, wherever its own route leads";
            let step = |of: &str| {
                let setting = format!("net/ipv4/conf/{of}/rp_filter=0");
                advice(form::SET_SYSCTL, text, &["sysctl", "-w", &setting])
            };
            let Some((own, all)) = node.host_sysctls.rp_filters(device.ifindex) else { return Vec::new() };
            let on = [(&*device.ifname, own), ("all", all)]
                .into_iter()
                .filter(|(_, value)| *value != RpFilter::Off);
            on.map(|(of, _)| step(of)).collect()
        }
        Act::OtherRoute => {
            let Some(address) = source(node, key) else { return Vec::new() };
            let address = address.to_string();
            let text = "have the host route the pod's address to it again; where a rule selects another table, change that";
            let words = ["ip", "route", "replace", &address, "dev", &device.ifname, "scope", "link"];
            vec![advice(form::ADD_ROUTE, text, &words)]
        }
        _ => Vec::new(),
    }
}
