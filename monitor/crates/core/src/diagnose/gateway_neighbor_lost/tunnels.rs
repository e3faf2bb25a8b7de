//! Next hops by tunnels of the host (VXLAN, Geneve) whose static entry is deleted: gateways of all pods behind them.
//!
//! A node that leaves the cluster loses route and entry, in any order, and an agent may delete an entry only to set it again. So a
//! deletion is suspected first, and opens an incident once a snapshot read thereafter shows that the route is there and the
//! entry is not. Only root of the node can make routes and tunnels of the host: containers have theirs in namespaces of their own.

use std::collections::BTreeMap;

use kevtmon_event::wording::actor_subject;
use kevtmon_event::{Advice, CloseReason, Confidence, Event, Kind, Neighbor, Severity, form};
use kevtmon_observation::{BootNs, LinkFacts, NudState, Request, iff};
use kevtmon_types::escape::name;
use kevtmon_types::is_zero::is_zero;
use serde::{Deserialize, Serialize};

use super::fault::{FaultReason, is_of_unknown_state};
use super::wording::what_happened;
use super::{SECOND, key};
use crate::diagnose::advice::advice;
use crate::diagnose::finding::{Count, Findings, IncidentObjects, Repeat, Report};
use crate::diagnose::{Context, STARTUP_GRACE};
use crate::node::tunnels::{Hop, Tunnels};

/// What belongs to a deletion is done by then: the route is deleted, or the entry set again. Longer than a namespace is read.
const SETTLED_AFTER: BootNs = SECOND * 3 / 2;
/// When the host's namespace, which is large, is read again while an incident is open, and each time after twice as long up to the
/// longest: what sets the entry is an event at once, unless its record was lost.
const REREAD_INTERVAL: BootNs = 10 * SECOND;
const REREAD_LONGEST: BootNs = 320 * SECOND;
/// An agent that deletes the entries of a whole cluster opens so many incidents: enough to see what it does.
const FAULTS_MAX: usize = 128;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Phase {
    /// Opens an incident if a snapshot shows it then.
    Suspected { due: BootNs },
    /// Critical after this time; `None` once it is.
    Open { critical_at: Option<BootNs> },
}

#[derive(Debug, Serialize, Deserialize)]
struct LostHop {
    phase: Phase,
    /// What happened to the entry: `calico-node (pid 812) deleted the neighbor entry of 10.44.2.0 on vxlan.calico`.
    what_happened: String,
    summary: String,
    /// Certain once the kernel could not resolve the address: tunnels can be set up to find it by themselves.
    confidence: Confidence,
    first: BootNs,
    evidence: Vec<u64>,
    objects: IncidentObjects,
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct LostHops {
    #[serde(with = "kevtmon_types::pairs")]
    lost: BTreeMap<Hop, LostHop>,
    /// When to read the host's namespace.
    read_at: Option<BootNs>,
    /// How long after the last time, while an incident is open.
    #[serde(default, skip_serializing_if = "is_zero")]
    interval: BootNs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Unused,
    Reached,
    Missing,
    /// The kernel cannot resolve its address.
    Failed,
}

impl State {
    fn of(tunnels: &Tunnels, hop: Hop) -> Self {
        match tunnels.state(hop) {
            _ if !tunnels.is_hop(hop) => Self::Unused,
            Some(state) if state.is_permanent() || state.is_usable() => Self::Reached,
            Some(NudState::FAILED) => Self::Failed,
            _ => Self::Missing,
        }
    }
}

impl LostHops {
    pub(super) fn is_empty(&self) -> bool {
        self.lost.is_empty()
    }

    pub(super) fn next(&self) -> Option<BootNs> {
        let critical = self.lost.values().filter_map(|lost| match lost.phase {
            Phase::Open { critical_at } => critical_at,
            Phase::Suspected { .. } => None,
        });
        critical.chain(self.read_at).min()
    }

    pub(super) fn event(
        &mut self,
        context: &Context<'_>,
        event: &Event,
        entry: &Neighbor,
        findings: &mut Findings,
    ) {
        let hop = hop(entry);
        match event.kind {
            Kind::NeighborDeleted if !is_of_unknown_state(event) => self.deleted(event, entry, findings),
            Kind::NeighborFailed => {
                if let Some(lost) = self.lost.get_mut(&hop)
                    && lost.confidence < Confidence::Certain
                {
                    lost.fails(Some(event.seq));
                    if matches!(lost.phase, Phase::Open { .. }) {
                        findings.report(lost.report(hop, event.at, Count::More(0)));
                    }
                }
            }
            _ => self.recheck(context, hop, Some(event.seq), findings),
        }
    }

    fn deleted(&mut self, event: &Event, entry: &Neighbor, findings: &mut Findings) {
        let hop = hop(entry);
        let is_static = entry.state.as_deref() == Some(NudState::PERMANENT.name());
        if !is_static {
            return;
        }
        if !self.lost.contains_key(&hop) && self.lost.len() >= FAULTS_MAX {
            return findings.discard();
        }
        let due = event.at.saturating_add(SETTLED_AFTER);
        self.interval = 0;
        let mut lost = LostHop::of(event, entry, Phase::Suspected { due });
        if let Some(known) = self.lost.get(&hop).filter(|known| matches!(known.phase, Phase::Open { .. })) {
            // It was set and deleted again before that was seen.
            (lost.phase, lost.first) = (known.phase, known.first);
            lost.summary = known.summary.replacen(&known.what_happened, &lost.what_happened, 1);
            findings.report(lost.report(hop, event.at, Count::Restart(1)));
        } else {
            self.read_at = Some(self.read_at.map_or(due, |at| at.min(due)));
        }
        self.lost.insert(hop, lost);
    }

    pub(super) fn read(&mut self, context: &Context<'_>, critical_after: BootNs, findings: &mut Findings) {
        let Some(host) = context.node.host() else { return };
        for hop in self.hops() {
            self.recheck(context, hop, None, findings);
            let Some(lost) = self.lost.get_mut(&hop) else { continue };
            match lost.phase {
                Phase::Suspected { due } if due <= context.now => {
                    let networks = host.tunnels.networks(hop);
                    if networks.is_empty() {
                        self.remove(hop);
                        continue;
                    }
                    lost.summary = format!(
                        "{}: what goes to {} by way of it is lost",
                        lost.what_happened,
                        phrase(&networks)
                    );
                    if State::of(&host.tunnels, hop) == State::Failed {
                        lost.fails(None);
                    }
                    lost.phase = Phase::Open { critical_at: Some(context.now + critical_after) };
                    let link = host.links.get(&hop.0);
                    let report = lost.report(hop, lost.first, Count::More(1));
                    findings.report(Report {
                        ruled_out: link.map(|link| ruled_out(link, &phrase(&networks))),
                        advice: Some(lost.advice(hop, link).into_iter().collect()),
                        ..report
                    });
                }
                _ => {}
            }
        }
    }

    /// Closes what is over, and drops what was none.
    pub(super) fn recheck_all(&mut self, context: &Context<'_>, findings: &mut Findings) {
        for hop in self.hops() {
            self.recheck(context, hop, None, findings);
        }
    }

    fn recheck(&mut self, context: &Context<'_>, hop: Hop, evidence: Option<u64>, findings: &mut Findings) {
        let Some(host) = context.node.host().filter(|_| self.lost.contains_key(&hop)) else { return };
        let reason = match State::of(&host.tunnels, hop) {
            State::Unused => CloseReason::SubjectGone,
            State::Reached => CloseReason::Resolved,
            State::Missing | State::Failed => return,
        };
        // Before the first snapshot nothing is known of what the previous run left open.
        if context.ready.is_none() {
            return;
        }
        if let Some(LostHop { phase: Phase::Open { .. }, .. }) = self.remove(hop) {
            findings.close(subject(hop), reason, evidence);
        }
    }

    fn remove(&mut self, hop: Hop) -> Option<LostHop> {
        let removed = self.lost.remove(&hop);
        if self.is_empty() {
            (self.read_at, self.interval) = (None, 0);
        }
        removed
    }

    /// Every source has reported: what the previous run left open is compared with the node.
    pub(super) fn ready(&mut self, context: &Context<'_>) {
        if !self.is_empty() {
            self.read_at = Some(context.now);
        }
    }

    pub(super) fn tick(&mut self, context: &Context<'_>, findings: &mut Findings) {
        if self.read_at.take_if(|at| *at <= context.now).is_some() && !self.is_empty() {
            findings.request(Request::Netns { netns: context.node.host_netns });
            let dues = self.lost.values().filter_map(|lost| match lost.phase {
                Phase::Suspected { due } => Some(due).filter(|due| *due > context.now),
                Phase::Open { .. } => None,
            });
            self.interval = (self.interval * 2).clamp(REREAD_INTERVAL, REREAD_LONGEST);
            let next = context.now + self.interval;
            self.read_at = Some(dues.min().unwrap_or(next).min(next));
        }
        for (hop, lost) in &mut self.lost {
            let Phase::Open { critical_at: Some(at) } = lost.phase else { continue };
            if context.now < at {
                continue;
            }
            if context.ready.is_none() {
                lost.phase = Phase::Open { critical_at: Some(context.now + STARTUP_GRACE) };
                continue;
            }
            lost.phase = Phase::Open { critical_at: None };
            let repeat = Repeat::new(subject(*hop), context.now, Count::More(0));
            findings.repeat(Repeat { severity: Some(Severity::Critical), ..repeat });
        }
    }

    pub(super) fn resume(
        &mut self,
        context: &Context<'_>,
        event: &Event,
        critical_after: BootNs,
    ) -> Option<String> {
        let (entry, incident) = (event.neighbor.as_ref()?, event.incident.as_ref()?);
        let hop = hop(entry);
        let opened = context.clock.boot_ns(&incident.opened).unwrap_or(context.now);
        let is_critical = incident.severity >= Severity::Critical;
        let critical_at = (!is_critical).then_some(opened.saturating_add(critical_after));
        let (before, _) = incident.summary.split_once(": ")?;
        self.lost.insert(
            hop,
            LostHop {
                phase: Phase::Open { critical_at },
                what_happened: before.to_owned(),
                summary: incident.summary.clone(),
                confidence: incident.confidence,
                first: context.clock.boot_ns(&incident.first_seen).unwrap_or_default(),
                evidence: Vec::new(),
                objects: IncidentObjects::of(event),
            },
        );
        Some(subject(hop))
    }

    fn hops(&self) -> Vec<Hop> {
        self.lost.keys().copied().collect()
    }
}

impl LostHop {
    fn of(event: &Event, entry: &Neighbor, phase: Phase) -> Self {
        let mut objects = IncidentObjects::of(event);
        if let Some(entry) = &mut objects.neighbor {
            entry.reason = Some(FaultReason::Missing.name().to_owned());
        }
        Self {
            phase,
            what_happened: deletion(event, entry),
            summary: String::new(),
            confidence: Confidence::Likely,
            first: event.at,
            evidence: vec![event.seq],
            objects,
        }
    }

    fn fails(&mut self, evidence: Option<u64>) {
        self.confidence = Confidence::Certain;
        self.evidence.extend(evidence);
    }

    fn report(&self, hop: Hop, last: BootNs, count: Count) -> Report {
        Report {
            objects: self.objects.clone(),
            first: self.first,
            evidence: self.evidence.clone(),
            count,
            ..Report::new(subject(hop), Severity::Warning, self.confidence, self.summary.clone(), last)
        }
    }

    fn advice(&self, (_, address): Hop, link: Option<&LinkFacts>) -> Option<Advice> {
        let lladdr = self.objects.neighbor.as_ref()?.lladdr.as_deref()?;
        let (address, ifname) = (address.to_string(), &link?.ifname);
        let words = ["ip", "neigh", "replace", &address, "lladdr", lladdr, "dev", ifname, "nud", "permanent"];
        let text =
            "put the entry back; packets flow again at once, if the node there has the same address still";
        Some(advice(form::REPLACE_TUNNEL_ENTRY, text, &words))
    }
}

/// Whether an event is one of the entry of a next hop by a tunnel of the host, or of one that has lost it.
pub(super) fn is_of_tunnel(context: &Context<'_>, entry: &Neighbor) -> bool {
    entry.netns == context.node.host_netns
        && context.node.host().is_some_and(|host| host.tunnels.is_hop(hop(entry)))
}

fn hop(entry: &Neighbor) -> Hop {
    let key = key(entry);
    (key.ifindex, key.address)
}

fn subject((ifindex, address): Hop) -> String {
    format!("host/{ifindex}/{address}")
}

/// Who deleted the entry comes first.
fn deletion(event: &Event, entry: &Neighbor) -> String {
    let of = format!("the neighbor entry of {} on {}", entry.address, name(&entry.ifname));
    match &event.actor {
        Some(actor) if entry.cause == "admin" => {
            let likely = if actor.confidence == Confidence::Certain { "" } else { "likely " };
            format!("{likely}{} deleted {of}", actor_subject(actor))
        }
        _ => format!("{of} {}", what_happened(event)),
    }
}

/// The networks that are lost: the first, and how many more.
fn phrase(networks: &[(std::net::IpAddr, u8)]) -> String {
    let Some((address, prefix_len)) = networks.first() else { return String::new() };
    let first = format!("{address}/{prefix_len}");
    match networks.len() - 1 {
        0 => first,
        1 => format!("{first} and one other network"),
        more => format!("{first} and {more} other networks"),
    }
}

fn ruled_out(link: &LinkFacts, networks: &str) -> Vec<String> {
    let ifname = name(&link.ifname);
    let is_up = link.flags & iff::UP != 0;
    let up = is_up.then(|| format!("{ifname} is up"));
    up.into_iter().chain([format!("the route to {networks} is in place")]).collect()
}
