//! Why nothing answers for a gateway, or where the interface to it went: what is wrong on the host's side of a pod, and who
//! changed it last, by the events of links.

use std::collections::BTreeMap;
use std::net::IpAddr;

use kevtmon_event::{Actor, Confidence, Event, HostCause, HostChange, Kind, Route, Severity, Shared};
use kevtmon_observation::{BootNs, LinkFacts, NeighborKey, NsInum, RouteFacts, iff};
use kevtmon_types::escape::name;
use serde::{Deserialize, Serialize};

use super::health::prefix;
use super::{Fault, FaultReason, GatewayNeighborLost};
use crate::diagnose::finding::{Count, Findings, Report};
use crate::diagnose::{CAPACITY, Context, SECOND};
use crate::node::namespaces::Namespace;
use crate::node::view::NodeView;
use crate::route::by;

/// Changes that are kept of a network namespace other than the host's.
const OF_NETNS_MAX: usize = 16;
/// In the place of an index: all interfaces of the host.
pub(super) const ALL: u32 = 0;

/// What is said where forwarding is off for all interfaces.
pub(super) const FORWARDS_NOTHING: &str = "the host forwards nothing (net.ipv4.ip_forward is 0)";
/// What is said where the host answers for others, and does not know where this one is: it answers for what it has a route to by
/// another interface (`arp_process`, net/ipv4/arp.c). A route to the gateway alone, which is not followed, would do.
const NO_ROUTE: &str = "the host has lost its default route, which is likely why";
/// Once what is wrong was mended, an answer comes within this time, or it was not that.
const ANSWERS_WITHIN: BootNs = 10 * SECOND;

/// What is done to an interface that ends its use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Act {
    Down,
    Deleted,
    Moved,
    /// It no longer answers ARP requests for others.
    ProxyOff,
    ForwardingOff,
    /// Forwarding was switched off for all interfaces.
    ForwardsNothing,
    NoRoute,
    OtherMac,
    /// The sources of what comes by it are checked (`rp_filter`).
    RpFilter,
    /// The host routes the address of its pod by another one.
    OtherRoute,
}

/// The last one of its kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct LinkChange {
    pub(super) ifindex: u32,
    act: Act,
    pub(super) at: BootNs,
    pub(super) seq: u64,
    pub(super) actor: Option<Shared<Actor>>,
}

/// What was done to interfaces and not undone, by network namespace, the oldest first.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct LinkChanges(BTreeMap<NsInum, Vec<LinkChange>>);

/// What is known of the host's side, as the end of a summary.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Explanation {
    /// Empty where what happened to the entry says it.
    pub(super) text: String,
    /// The event of the change; 0 if it has no number.
    pub(super) seq: u64,
    /// What was done, and to which interface; absent where an earlier run of the daemon said it.
    pub(super) cause: Option<Cause>,
    /// When the model showed it last.
    pub(super) seen: BootNs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cause {
    pub(super) act: Act,
    pub(super) netns: NsInum,
    pub(super) ifindex: u32,
}

/// Why nothing answers, who is to blame for it, and how else the same may have been said.
pub(super) struct Silence {
    pub(super) explanation: Explanation,
    pub(super) actor: Option<Shared<Actor>>,
    pub(super) phrases: Vec<String>,
}

impl Explanation {
    /// Of what the text of the entry says.
    pub(super) fn of_entry(cause: Cause, seq: u64, now: BootNs) -> Self {
        Self { text: String::new(), seq, cause: Some(cause), seen: now }
    }

    /// What the summary of an incident of an earlier run says.
    pub(super) fn resumed(text: &str, now: BootNs) -> Self {
        Self { text: text.to_owned(), seq: 0, cause: None, seen: now }
    }

    /// What was done to the node, if that concerns more than one pod.
    pub(super) fn host_cause(&self, node: &NodeView<'_>) -> Option<HostCause> {
        let Cause { act, netns, ifindex } = self.cause.filter(|cause| cause.netns == node.host_netns)?;
        let bridge = || {
            let link = node.link_at(netns, ifindex)?;
            (link.kind.as_deref() == Some("bridge")).then_some(link)
        };
        let (change, link) = match act {
            Act::ForwardsNothing => (HostChange::ForwardingOff, None),
            Act::NoRoute => (HostChange::DefaultRouteDeleted, None),
            Act::Down => (HostChange::BridgeDown, Some(bridge()?)),
            Act::OtherMac => (HostChange::BridgeMac, Some(bridge()?)),
            Act::Deleted
            | Act::Moved
            | Act::ProxyOff
            | Act::ForwardingOff
            | Act::RpFilter
            | Act::OtherRoute => return None,
        };
        let ifname = link.map(|link| link.ifname.clone());
        Some(HostCause { change, netns, ifindex: link.map(|link| link.ifindex), ifname })
    }

    /// Whether one of these was done to an interface, as far as that is known: then it is not ruled out once it is undone.
    pub(super) fn blames(&self, link: &LinkFacts, acts: &[Act]) -> bool {
        self.cause.is_none_or(|cause| {
            acts.contains(&cause.act) && (cause.netns, cause.ifindex) == (link.netns, link.ifindex)
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HostFault<'a> {
    /// The host's end of the pair, or its bridge, is down.
    Down(&'a LinkFacts),
    /// The host does not answer by its end for an address that is none of its own.
    ProxyOff(&'a LinkFacts),
    /// The same, since it forwards nothing that comes by it.
    ForwardingOff(&'a LinkFacts),
    /// The same, since it has no default route.
    NoRoute(&'a LinkFacts),
}

impl LinkChanges {
    pub(super) fn note(&mut self, host: NsInum, event: &Event) {
        let Some(link) = event.link.as_deref().filter(|_| !is_foreign(event)) else { return };
        let has = |change: &str| link.change.iter().any(|one| one == change);
        let all = self.0.entry(link.netns).or_default();
        let mut undo = |undone: &[Act]| {
            all.retain(|known| known.ifindex != link.ifindex || !undone.contains(&known.act));
        };
        let mut acts = Vec::new();
        match event.kind {
            Kind::LinkCreated => all.retain(|known| known.ifindex != link.ifindex),
            Kind::LinkDeleted | Kind::LinkMoved => {
                all.retain(|known| known.ifindex != link.ifindex);
                acts.push(if event.kind == Kind::LinkMoved { Act::Moved } else { Act::Deleted });
            }
            Kind::LinkChanged | Kind::LinkProxyArp => {
                // The kernel then switches it on for each of them.
                let is_on_for_all = link.ifindex == ALL && has("forwarding-on");
                for (on, off, act) in [
                    ("up", "down", Act::Down),
                    ("proxy-arp-on", "proxy-arp-off", Act::ProxyOff),
                    ("forwarding-on", "forwarding-off", Act::ForwardingOff),
                    ("rp-filter-off", "rp-filter-strict", Act::RpFilter),
                    ("rp-filter-off", "rp-filter-loose", Act::RpFilter),
                ] {
                    if has(on) || has(off) {
                        undo(&[act]);
                    }
                    acts.extend(has(off).then_some(act));
                }
                if is_on_for_all {
                    all.retain(|known| known.act != Act::ForwardingOff);
                }
            }
            _ => {}
        }
        // What left the host has no entry there.
        acts.retain(|act| link.netns != host || !matches!(act, Act::Deleted | Act::Moved));
        let most = if link.netns == host { CAPACITY } else { OF_NETNS_MAX };
        for act in acts {
            if all.len() >= most {
                all.remove(0);
            }
            let (at, seq, actor) = (event.at, event.seq, event.actor.clone());
            all.push(LinkChange { ifindex: link.ifindex, act, at, seq, actor });
        }
        if all.is_empty() {
            self.0.remove(&link.netns);
        }
        if self.0.len() > CAPACITY {
            let oldest = self.0.iter().filter(|(netns, _)| **netns != host);
            let oldest = oldest.min_by_key(|(_, changes)| changes.last().map(|last| last.at));
            if let Some(netns) = oldest.map(|(netns, _)| *netns) {
                self.0.remove(&netns);
            }
        }
    }

    pub(super) fn note_route(&mut self, host: NsInum, event: &Event) {
        let is_of_host = |route: &&Route| route.netns == host && route.destination == "default";
        if event.route.as_deref().filter(is_of_host).is_none() {
            return;
        }
        let all = self.0.entry(host).or_default();
        all.retain(|known| known.act != Act::NoRoute);
        if event.kind == Kind::RouteDeleted && all.len() < CAPACITY {
            let (ifindex, at, seq) = (ALL, event.at, event.seq);
            all.push(LinkChange { ifindex, act: Act::NoRoute, at, seq, actor: event.actor.clone() });
        }
    }

    pub(super) fn forget(&mut self, netns: NsInum) {
        self.0.remove(&netns);
    }

    pub(super) fn last(&self, netns: NsInum, ifindex: u32, acts: &[Act]) -> Option<&LinkChange> {
        let mut changes = self.0.get(&netns)?.iter().rev();
        changes.find(|known| known.ifindex == ifindex && acts.contains(&known.act))
    }

    /// What is wrong on the host's side of a gateway that does not answer.
    fn find<'a>(&self, node: &NodeView<'a>, key: NeighborKey) -> Option<HostFault<'a>> {
        let fault = host_fault(node, key)?;
        let is_known = match fault {
            HostFault::Down(_) => true,
            // Somebody else than the kernel may answer for others (a program on the interface, or in user space).
            HostFault::ProxyOff(end) => self.is_told(end, Act::ProxyOff) || others_answer(node, end),
            // Where the host is to answer and forwards nothing, nobody needs to have seen who switched that off.
            HostFault::ForwardingOff(end) => {
                self.is_told(end, Act::ForwardingOff)
                    || node.host_sysctls.forwards_nothing()
                    || others_answer(node, end)
            }
            HostFault::NoRoute(end) => self.is_told(end, Act::NoRoute),
        };
        is_known.then_some(fault)
    }

    fn is_told(&self, end: &LinkFacts, act: Act) -> bool {
        self.of_host(end, act).is_some()
    }

    fn of_host(&self, link: &LinkFacts, act: Act) -> Option<&LinkChange> {
        let own = self.last(link.netns, link.ifindex, &[act]);
        let of_all = self.last(link.netns, ALL, &[act]).filter(|_| act != Act::Down);
        own.into_iter().chain(of_all).max_by_key(|change| change.at)
    }

    /// Why nothing answers, and who is to blame if he changed that before.
    fn silence(&self, context: &Context<'_>, key: NeighborKey, fault: &Fault) -> Option<Silence> {
        let found = self.find(context.node, key)?;
        let (link, act) = match found {
            HostFault::Down(link) => (link, Act::Down),
            HostFault::ProxyOff(link) => (link, Act::ProxyOff),
            HostFault::ForwardingOff(link) => (link, Act::ForwardingOff),
            HostFault::NoRoute(link) => (link, Act::NoRoute),
        };
        // What was done to it alone counts from then on.
        let newest = self.of_host(link, act);
        let is_of_all = act == Act::ForwardingOff
            && newest
                .map_or_else(|| context.node.host_sysctls.forwards_nothing(), |change| change.ifindex == ALL);
        let change = newest.filter(|change| change.at <= fault.first);
        let what = place(link);
        let phrases = match act {
            Act::Down => vec![format!("{what} is down"), format!("{what} was set down")],
            Act::ProxyOff => vec![format!("proxy_arp is off on {what}")],
            Act::NoRoute => vec![NO_ROUTE.to_owned()],
            _ if is_of_all => vec![FORWARDS_NOTHING.to_owned()],
            // What an earlier run saw of all of them is not seen any more.
            _ => vec![format!("forwarding is off on {what}"), FORWARDS_NOTHING.to_owned()],
        };
        let text = match change {
            Some(LinkChange { actor: Some(actor), .. }) if act == Act::Down => {
                format!("{what} was set down{}", by(Some(actor)))
            }
            Some(LinkChange { actor: Some(actor), .. }) if act == Act::NoRoute => {
                format!("{NO_ROUTE}; the route was deleted{}", by(Some(actor)))
            }
            Some(LinkChange { actor: Some(actor), .. }) => {
                format!("{}; it was switched off{}", phrases[0], by(Some(actor)))
            }
            Some(_) if !matches!(act, Act::Down | Act::NoRoute) => {
                format!("{}; who switched it off was not seen", phrases[0])
            }
            _ => phrases[0].clone(),
        };
        let act = if is_of_all { Act::ForwardsNothing } else { act };
        let cause = Some(Cause { act, netns: link.netns, ifindex: link.ifindex });
        let seq = change.map_or(0, |change| change.seq);
        let explanation = Explanation { text, seq, cause, seen: context.now };
        // Without an event it is not known when it began to fail.
        let is_sure = !fault.evidence.is_empty() && act != Act::NoRoute;
        let most = if is_sure { Confidence::Certain } else { Confidence::Likely };
        let actor = change
            .and_then(|change| change.actor.clone())
            .map(|actor| Shared::new(Actor { confidence: actor.confidence.min(most), ..actor.into_inner() }));
        Some(Silence { explanation, actor, phrases })
    }

    /// Says in a fault who took the interface of the entry.
    fn explain_loss(&self, context: &Context<'_>, key: NeighborKey, fault: &mut Fault) {
        let acts: &[Act] = match context.node.link_at(key.netns, key.ifindex) {
            None => &[Act::Deleted, Act::Moved],
            Some(link) if link.flags & iff::UP == 0 => &[Act::Down],
            Some(_) => return,
        };
        let change = self.last(key.netns, key.ifindex, acts).filter(|change| change.at <= fault.first);
        let Some(change) = change else { return };
        let cause = Cause { act: change.act, netns: key.netns, ifindex: key.ifindex };
        fault.explanation = Some(Explanation::of_entry(cause, change.seq, context.now));
        let Some(actor) = change.actor.as_deref() else { return };
        let (by, ifname) = (by(Some(actor)), name(&fault.ifname));
        fault.what_happened = match change.act {
            Act::Moved => format!("is gone together with {ifname}, which was moved to another namespace{by}"),
            Act::Down => format!("is gone together with {ifname}, which was set down{by}"),
            _ => format!("is gone together with {ifname}, which was deleted{by}"),
        };
        fault.objects.actor.clone_from(&change.actor);
    }
}

impl GatewayNeighborLost {
    /// Says in a fault that no event of its entry tells of, what is known of the host's side and of the interface.
    pub(super) fn explain(&self, context: &Context<'_>, key: NeighborKey, fault: &mut Fault) {
        let went_with_link = || context.node.gateway(key).is_some_and(|gateway| gateway.went_with_link);
        match fault.reason {
            FaultReason::Failed => {
                let found = self.changes.silence(context, key, fault);
                let found = found.or_else(|| self.strays.silence(&self.changes, context, key, fault));
                if let Some(Silence { explanation, actor, .. }) = found {
                    fault.explanation = Some(explanation);
                    fault.objects.actor = actor;
                }
            }
            FaultReason::Missing if fault.evidence.is_empty() && fault.objects.actor.is_none() => {
                if went_with_link() {
                    self.changes.explain_loss(context, key, fault);
                }
            }
            FaultReason::WrongLladdr if fault.evidence.is_empty() => self.explain_mac(context, key, fault),
            FaultReason::Missing | FaultReason::WrongLladdr => {}
        }
    }

    /// Says in an open incident why nothing answers by now, where that is something else than before.
    pub(super) fn explain_again(&mut self, context: &Context<'_>, key: NeighborKey, findings: &mut Findings) {
        let Self { faults, changes, strays, .. } = self;
        let Some(fault) = faults.get_mut(&key).filter(|fault| fault.reason == FaultReason::Failed) else {
            return;
        };
        let found = changes.silence(context, key, fault);
        let found = found.or_else(|| strays.silence(changes, context, key, fault));
        let actor = match (found, &mut fault.explanation) {
            (None, None) => return,
            // What was mended may have been why.
            (None, Some(known)) if context.now < known.seen.saturating_add(ANSWERS_WITHIN) => return,
            (None, known) => {
                *known = None;
                None
            }
            // Who did it may have been known then alone.
            (Some(found), Some(known))
                if found.phrases.iter().any(|phrase| known.text.starts_with(phrase)) =>
            {
                (known.cause, known.seen) = (found.explanation.cause, context.now);
                return;
            }
            (Some(found), known) => {
                *known = Some(found.explanation);
                found.actor
            }
        };
        let is_other_actor = fault.objects.actor != actor;
        fault.objects.actor = actor;
        let report = fault.report(context, key, Severity::Warning, true);
        let count = if is_other_actor { Count::Restart(1) } else { Count::More(0) };
        findings.report(Report { count, ..report });
    }
}

/// What is wrong on the host's side, as the model shows it.
pub(super) fn host_fault<'a>(node: &NodeView<'a>, key: NeighborKey) -> Option<HostFault<'a>> {
    let end = node.host_end(key.netns, key.ifindex).filter(|end| end.netns == node.host_netns)?;
    if end.flags & iff::UP == 0 {
        return Some(HostFault::Down(end));
    }
    let host = node.host()?;
    if let Some(master) = end.master {
        let master = host.links.get(&master)?;
        let is_down = master.kind.as_deref() == Some("bridge") && master.flags & iff::UP == 0;
        return is_down.then_some(HostFault::Down(master));
    }
    // An address of its own it answers for anyway.
    if !key.address.is_ipv4() || host.addresses.iter().any(|known| known.address == key.address) {
        return None;
    }
    let (proxy, forwards) =
        (node.host_sysctls.answers_arp_for_others(end.ifindex), node.host_sysctls.forwards_ipv4(end.ifindex));
    match (proxy, forwards) {
        (Some(false), _) => Some(HostFault::ProxyOff(end)),
        (Some(true), Some(false)) => Some(HostFault::ForwardingOff(end)),
        (Some(true), Some(true)) if !has_way(host, end, key.address) => Some(HostFault::NoRoute(end)),
        _ => None,
    }
}

/// Whether the host may have a route to an address of IPv4 by another interface.
fn has_way(host: &Namespace, end: &LinkFacts, address: IpAddr) -> bool {
    let is_default = |route: &RouteFacts| match route.destination {
        Some((to, _)) => to.is_ipv4(),
        None => !route.ipv6,
    };
    host.is_stale()
        || host.has_omitted_routes()
        || host.routes.iter().any(is_default)
        || host.addresses.iter().any(|own| own.ifindex != end.ifindex && own.has_in_subnet(address))
}

/// Whether the host answers for others by the ends of other pods of the same plugin: then that is how their gateways answer.
fn others_answer(node: &NodeView<'_>, end: &LinkFacts) -> bool {
    let Some(host) = node.host() else { return false };
    let is_alike = |link: &&LinkFacts| {
        link.kind == end.kind && link.ifindex != end.ifindex && prefix(&link.ifname) == prefix(&end.ifname)
    };
    host.links.values().filter(is_alike).any(|link| {
        let sysctls = node.host_sysctls;
        sysctls.answers_arp_for_others(link.ifindex) == Some(true)
            && sysctls.forwards_ipv4(link.ifindex) == Some(true)
    })
}

/// An interface of the host, as seen from its pod.
pub(super) fn place(link: &LinkFacts) -> String {
    match link.kind.as_deref() {
        Some("bridge") => format!("the bridge {}", name(&link.ifname)),
        _ => format!("its host end {}", name(&link.ifname)),
    }
}

fn is_foreign(event: &Event) -> bool {
    event.target.as_deref().is_some_and(kevtmon_event::Target::is_foreign)
}
