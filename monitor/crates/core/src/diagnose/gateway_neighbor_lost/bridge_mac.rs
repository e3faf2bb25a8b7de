//! Bridges of the host that got another MAC address, which the entries of pods do not have yet.
//!
//! A bridge takes the lowest address of its ports, unless one was set. A frame to the former one is discarded (`ip_rcv_core`,
//! net/ipv4/ip_input.c), also where another port than that of the pod still has it. Of a learned entry the kernel finds that out by itself, once it is due
//! to be checked: half a minute later, if the pod sends all the time.

use std::collections::VecDeque;

use kevtmon_event::wording::owner_phrase;
use kevtmon_event::{Actor, Event, Kind, Link, Shared};
use kevtmon_observation::{BootNs, LinkFacts, NeighborKey, NsInum};
use kevtmon_types::escape::name;
use serde::{Deserialize, Serialize};

use super::host_side::{Act, Cause, Explanation};
use super::{Fault, FaultReason, GATEWAY_CONFIRM, GatewayNeighborLost, SECOND, health, seconds};
use crate::diagnose::Context;
use crate::node::view::NodeView;
use crate::route::by;

/// Entries that were learned before are outdated for so long, at most, if anything is sent.
const KEPT: BootNs = 120 * SECOND;
/// The messages of a port and of its bridge come at once.
const TOGETHER: BootNs = 2 * SECOND;
const CHANGES_MAX: usize = 64;
const PORTS_MAX: usize = 256;

/// The newest at the end.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct BridgeMacs {
    changes: VecDeque<MacChange>,
    /// What was done of late to interfaces that are ports, or were.
    ports: VecDeque<PortChange>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct MacChange {
    ifindex: u32,
    from: String,
    to: String,
    pub(super) at: BootNs,
    seq: u64,
    actor: Option<Shared<Actor>>,
    port: Option<PortChange>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct PortChange {
    ifindex: u32,
    /// `veth vb of pod web/b`
    label: String,
    /// `was deleted`
    what: String,
    /// The address that the bridge has no longer by it.
    left: Option<String>,
    /// The bridge, and the address that it may have by it.
    came: Option<(u32, String)>,
    at: BootNs,
    seq: u64,
    actor: Option<Shared<Actor>>,
}

impl BridgeMacs {
    /// Notes what the event of a link of the host tells; returns a bridge that got another address.
    pub(super) fn note(&mut self, host: NsInum, event: &Event) -> Option<u32> {
        let link = event.link.as_deref().filter(|link| link.netns == host)?;
        self.changes.retain(|change| event.at < change.at.saturating_add(KEPT));
        self.ports.retain(|port| event.at < port.at.saturating_add(TOGETHER));
        if event.kind == Kind::LinkDeleted {
            // Its index is another one's later.
            self.changes.retain(|change| change.ifindex != link.ifindex);
        }
        if link.kind.as_deref() == Some("bridge") {
            return self.note_bridge(event, link);
        }
        let port = port_change(event, link)?;
        if let Some(change) = self.changes.iter_mut().rev().find(|change| port.explains(change)) {
            change.take(&port);
        }
        crate::bounded::push(&mut self.ports, PORTS_MAX, port);
        None
    }

    fn note_bridge(&mut self, event: &Event, link: &Link) -> Option<u32> {
        let (from, to) = (link.old_mac.clone()?, link.mac.clone()?);
        let (ifindex, at, seq, actor) = (link.ifindex, event.at, event.seq, event.actor.clone());
        let mut change = MacChange { ifindex, from, to, at, seq, actor, port: None };
        for port in self.ports.iter().filter(|port| port.explains(&change)).cloned().collect::<Vec<_>>() {
            change.take(&port);
        }
        crate::bounded::push(&mut self.changes, CHANGES_MAX, change);
        Some(ifindex)
    }

    /// By which change of a bridge an entry became outdated.
    pub(super) fn of_entry(&self, context: &Context<'_>, key: NeighborKey) -> Option<&MacChange> {
        let bridge = outdated(context.node, key)?;
        let lladdr = context.node.gateway(key)?.lladdr()?.to_string();
        let mut newest = self.changes.iter().rev();
        newest.find(|change| {
            (change.ifindex, &change.from) == (bridge.ifindex, &lladdr)
                && context.now < change.at.saturating_add(KEPT)
        })
    }
}

impl MacChange {
    /// Takes a port that explains it; of one that is removed in several steps the one with an actor.
    fn take(&mut self, port: &PortChange) {
        let is_better = |known: &PortChange| {
            known.ifindex == port.ifindex && known.actor.is_none() && port.actor.is_some()
        };
        if self.port.as_ref().is_none_or(is_better) {
            self.port = Some(port.clone());
        }
    }

    /// `points to 02:…:bb, but the bridge cni9 has 0a:…:aa since its port veth vb of pod b was deleted`
    fn what_happened(&self, bridge: &LinkFacts) -> String {
        let since = match (&self.port, &self.actor) {
            (Some(PortChange { label, what, actor, .. }), _) => {
                let by = by(actor.as_deref());
                format!(" since {label} {what}{by}")
            }
            (None, Some(actor)) => format!(" since that was set{}", by(Some(actor))),
            (None, None) => String::new(),
        };
        let now = bridge.mac.as_ref().map(ToString::to_string).filter(|now| *now != self.to);
        let now = now.map(|now| format!(", and {now} by now")).unwrap_or_default();
        format!(
            "points to {}, but the bridge {} has {}{since}{now}",
            self.from,
            name(&bridge.ifname),
            self.to
        )
    }
}

impl PortChange {
    /// Whether a bridge got another address by it: by one that came, a lower one; by one that left, a higher one.
    fn explains(&self, change: &MacChange) -> bool {
        let came =
            || self.came.as_ref() == Some(&(change.ifindex, change.to.clone())) && change.to < change.from;
        let left = || self.left.as_ref() == Some(&change.from) && change.to > change.from;
        self.at.abs_diff(change.at) <= TOGETHER && (came() || left())
    }
}

/// What was done to an interface that matters to its bridge.
fn port_change(event: &Event, link: &Link) -> Option<PortChange> {
    let has = |change: &str| link.change.iter().any(|one| one == change);
    let mac = link.mac.clone()?;
    let came = link.master.map(|bridge| (bridge, mac.clone()));
    let (what, left, came) = match event.kind {
        Kind::LinkDeleted if event.resync => ("is gone", Some(mac), None),
        Kind::LinkDeleted => ("was deleted", Some(mac), None),
        Kind::LinkMoved => ("was moved to another namespace", Some(mac), None),
        Kind::LinkCreated => ("is a new port of it", None, Some(came?)),
        Kind::LinkChanged if has("master") && came.is_some() => ("became its port", None, came),
        Kind::LinkChanged if has("master") => ("left it", Some(mac), None),
        Kind::LinkChanged if has("mac") => ("got another MAC address", link.old_mac.clone(), Some(came?)),
        _ => return None,
    };
    let owner = event.target.as_deref().map(owner_phrase).unwrap_or_default();
    let kind = link.kind.as_deref().unwrap_or("interface");
    Some(PortChange {
        ifindex: link.ifindex,
        label: format!("{kind} {}{owner}", name(&link.ifname)),
        what: what.to_owned(),
        left,
        came,
        at: event.at,
        seq: event.seq,
        actor: event.actor.clone(),
    })
}

/// The bridge of the host by whose address a gateway is reached, if the entry has another one.
pub(super) fn outdated<'a>(node: &NodeView<'a>, key: NeighborKey) -> Option<&'a LinkFacts> {
    let gateway = node.gateway(key)?;
    let is_reached = health::is_of_own_port(node, key);
    let bridge = node.gateway_link(key).filter(|link| !is_reached && is_bridge_of_host(node, link))?;
    (gateway.lladdr()? != bridge.mac.as_ref()?).then_some(bridge)
}

fn is_bridge_of_host(node: &NodeView<'_>, link: &LinkFacts) -> bool {
    link.netns == node.host_netns && link.kind.as_deref() == Some("bridge")
}

impl Fault {
    /// Whether it is a learned entry that has the former address of a bridge: the kernel mends it.
    pub(super) fn is_outdated(&self) -> bool {
        let by_nobody = self.objects.neighbor.as_ref().is_some_and(|entry| entry.cause == "unknown");
        self.reason == FaultReason::WrongLladdr && self.learned && by_nobody
    }
}

impl GatewayNeighborLost {
    /// Has the namespaces read whose gateway is a bridge that got another address: of what they have learned by now no event tells.
    pub(super) fn bridge_changed(&mut self, context: &Context<'_>, ifindex: u32) {
        let due = context.now + seconds(self.thresholds.get(&GATEWAY_CONFIRM));
        for netns in health::live_netns(context.node) {
            let namespace = context.node.namespaces.get(netns);
            let mut gateways = namespace.into_iter().flat_map(|namespace| namespace.gateways());
            let is_behind = gateways.any(|(own, address, gateway)| {
                let link = context.node.gateway_link(NeighborKey { netns, ifindex: own, address });
                let bridge = link.filter(|link| is_bridge_of_host(context.node, link));
                !gateway.is_static() && bridge.is_some_and(|bridge| bridge.ifindex == ifindex)
            });
            if is_behind {
                self.rereads.schedule(netns, due);
            }
        }
    }

    /// Says in a fault that no event of its entry tells of, by what the bridge has another address.
    pub(super) fn explain_mac(&self, context: &Context<'_>, key: NeighborKey, fault: &mut Fault) {
        let Some((change, bridge)) = self.bridges.of_entry(context, key).zip(outdated(context.node, key))
        else {
            return;
        };
        let port = change.port.as_ref();
        fault.what_happened = change.what_happened(bridge);
        fault.first = change.at;
        fault.evidence = vec![change.seq];
        let cause = Cause { act: Act::OtherMac, netns: bridge.netns, ifindex: bridge.ifindex };
        fault.explanation = Some(Explanation::of_entry(cause, port.map_or(0, |port| port.seq), context.now));
        let actor = port.map_or(&change.actor, |port| &port.actor).clone();
        fault.objects.actor = actor.map(Actor::at_most_likely);
    }
}
