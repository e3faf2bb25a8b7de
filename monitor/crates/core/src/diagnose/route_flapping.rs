//! A route, a neighbor entry or a link is removed and restored again and again: two managers fight over it, or one
//! agent does not come to rest.
//!
//! Found by the events alone. What is done to the neighbor entry of a pod's gateway counts only where one program removes it and
//! another one restores it: its loss is an incident of its own. That of a next hop by a tunnel of the host opens none while it
//! comes back at once, so it counts here whoever does it.

use std::collections::{BTreeMap, VecDeque};

use kevtmon_event::wording::{actor_phrase, pod_label, repeated_actor_phrase, target_label};
use kevtmon_event::{
    Actor, Advice, CloseReason, Confidence, Event, Kind, Link, Severity, Shared, Target, form, identity,
};
use kevtmon_observation::{BootNs, NsInum};
use kevtmon_types::escape::name;
use kevtmon_types::settings::{Thresholds, Unit, thresholds};
use serde::{Deserialize, Serialize};

use super::advice::advice;
use super::finding::{Count, Findings, IncidentObjects, Repeat, Report};
use super::timers::Timers;
use super::{Alert, CAPACITY, Context, Diagnosis, IncidentKind, ModelChange, SECOND, Watch, seconds, start};
use crate::node::tenant::is_by_itself;

#[cfg(test)]
mod tests;

pub(super) const KIND: &str = "route-flapping";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "A route, neighbor entry or link is removed and restored again and again",
    symptom: "a pod is unreachable",
    names: "the program that removes a route, link or entry, and the one that restores it",
    opens: "A route, neighbor entry or link was removed and restored 3 times within 10 min.",
    alert: Alert::Open { severity: Severity::Warning, minutes: 0 },
    meaning: "Two programs manage the same thing and undo each other's work, or one does not come to rest. Until then the pod or \
              the host loses its network for a moment each time.",
    remedy: "Let one of the two programs manage it, and configure the other one to leave it alone.",
    severities: &[Severity::Warning],
    counted: "times",
    thresholds: THRESHOLDS,
    watched_by: Watch::Netlink,
    is_optional: true,
    start: start::<RouteFlapping>,
};

thresholds! {
    /// What is removed and restored so often flaps.
    TIMES = "route_flapping_times", default 3, Unit::Count;
    /// It flaps only if that happens within this time. After such a time without it, it does no longer.
    WINDOW = "route_flapping_seconds", default 600, Unit::Seconds;
}

/// Things that are followed in one namespace other than the host's.
const OF_NETNS_MAX: usize = 32;
const TIMES_MAX: usize = 16;

/// What an event says of a thing.
struct Change {
    subject: String,
    netns: NsInum,
    /// For the summary: `the default route`.
    what: String,
    is_removal: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Cycle {
    removed: BootNs,
    restored: BootNs,
    removed_by: Option<Shared<Actor>>,
    restored_by: Option<Shared<Actor>>,
    events: [u64; 2],
}

#[derive(Debug, Serialize, Deserialize)]
struct Flap {
    netns: NsInum,
    /// It is not there: since when, by whom, and the event.
    removed: Option<(BootNs, Option<Shared<Actor>>, u64)>,
    cycles: VecDeque<Cycle>,
    is_open: bool,
}

impl Flap {
    fn last(&self) -> BootNs {
        let restored = self.cycles.back().map_or(0, |cycle| cycle.restored);
        self.removed.as_ref().map_or(restored, |(removed, ..)| *removed)
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct RouteFlapping {
    #[serde(skip)]
    thresholds: Thresholds,
    flaps: BTreeMap<String, Flap>,
    timers: Timers<String>,
}

impl RouteFlapping {
    fn window(&self) -> BootNs {
        seconds(self.thresholds.get(&WINDOW))
    }

    fn note(&mut self, context: &Context<'_>, event: &Event, change: Change, findings: &mut Findings) {
        let Change { subject, netns, what, is_removal } = change;
        let window = self.window();
        if !self.flaps.contains_key(&subject) {
            // Of an entry that was removed unseen nobody is told.
            if !is_removal || event.neighbor.is_some() && event.actor.is_none() {
                return;
            }
            // Containers leave half of it to the host.
            let (in_all, in_one) = match netns == context.node.host_netns {
                true => (CAPACITY, CAPACITY),
                false => (CAPACITY / 2, OF_NETNS_MAX),
            };
            let is_full = |flaps: &BTreeMap<String, Flap>| {
                flaps.len() >= in_all || flaps.values().filter(|flap| flap.netns == netns).count() >= in_one
            };
            if is_full(&self.flaps) {
                self.flaps.retain(|_, flap| flap.is_open || flap.last().saturating_add(window) >= event.at);
            }
            if is_full(&self.flaps) {
                return findings.discard();
            }
        }
        let needed = usize::try_from(self.thresholds.get(&TIMES)).unwrap_or(TIMES_MAX).clamp(2, TIMES_MAX);
        let flap = self.flaps.entry(subject.clone()).or_insert_with(|| Flap {
            netns,
            removed: None,
            cycles: VecDeque::new(),
            is_open: false,
        });
        if is_removal {
            flap.removed = Some((event.at, event.actor.clone(), event.seq));
            return;
        }
        let Some((removed, removed_by, seq)) = flap.removed.take() else { return };
        let is_of_pod = event.neighbor.is_some() && netns != context.node.host_netns;
        if is_of_pod && !are_two(removed_by.as_deref(), event.actor.as_deref()) {
            return;
        }
        flap.cycles.retain(|cycle| cycle.removed.saturating_add(window) >= event.at);
        let (restored, restored_by, events) = (event.at, event.actor.clone(), [seq, event.seq]);
        let cycle = Cycle { removed, restored, removed_by, restored_by, events };
        crate::bounded::push(&mut flap.cycles, TIMES_MAX, cycle);
        if flap.is_open {
            self.timers.set(&subject, context.now.saturating_add(window));
            let (evidence, count) = (Some(event.seq), Count::More(1));
            return findings.repeat(Repeat { subject, last: event.at, evidence, count, severity: None });
        }
        if flap.cycles.len() >= needed {
            flap.is_open = true;
            self.timers.set(&subject, context.now.saturating_add(window));
            findings.report(report(context, subject, flap, &what, event));
        }
    }

    fn gone(&mut self, subject: &str, findings: &mut Findings) {
        self.timers.cancel(&subject.to_owned());
        self.close(subject, CloseReason::SubjectGone, findings);
    }

    fn close(&mut self, subject: &str, reason: CloseReason, findings: &mut Findings) {
        if self.flaps.remove(subject).is_some_and(|flap| flap.is_open) {
            findings.close(subject.to_owned(), reason, None);
        }
    }
}

fn report(context: &Context<'_>, subject: String, flap: &Flap, what: &str, event: &Event) -> Report {
    let target = event.target.as_deref();
    let removers = Parties::of(flap.cycles.iter().map(|cycle| cycle.removed_by.as_deref()));
    let restorers = Parties::of(flap.cycles.iter().map(|cycle| cycle.restored_by.as_deref()));
    let is_own = target.is_some_and(|target| {
        let parties = flap.cycles.iter().flat_map(|cycle| [&cycle.removed_by, &cycle.restored_by]);
        let mut own = parties.flatten().map(|actor| is_by_itself(actor, target)).peekable();
        own.peek().is_some() && own.all(|own| own)
    });
    let severity = if is_own { Severity::Notice } else { Severity::Warning };
    let confidence = removers.confidence().min(restorers.confidence());
    let pod = target.and_then(Target::confirmed_pod).map(pod_label);
    Report {
        advice: Some(pod.iter().map(|pod| tell(pod)).collect()),
        objects: IncidentObjects { actor: removers.one(), ..IncidentObjects::of(event) },
        first: flap.cycles.front().map_or(context.now, |cycle| cycle.removed),
        count: Count::Total(u64::try_from(flap.cycles.len()).unwrap_or(u64::MAX)),
        evidence: flap.cycles.iter().flat_map(|cycle| cycle.events).collect(),
        ..Report::new(subject, severity, confidence, summary(flap, what, &removers, &restorers), event.at)
    }
}

fn tell(pod: &str) -> Advice {
    advice(form::TELL_POD, "show what is known of the pod", &["kevtmon", "why", pod])
}

/// `NetworkManager (pid 812) removes and calico-node (pid 950) restores the default route of pod a/b, about every 120 s`
fn summary(flap: &Flap, what: &str, removers: &Parties<'_>, restorers: &Parties<'_>) -> String {
    let first = flap.cycles.front().map_or(0, |cycle| cycle.removed);
    let last = flap.cycles.back().map_or(0, |cycle| cycle.removed);
    let gaps = u64::try_from(flap.cycles.len()).unwrap_or(u64::MAX).saturating_sub(1).max(1);
    let pace = (last.saturating_sub(first) / gaps + SECOND / 2) / SECOND;
    let pace = format!("about every {} s", pace.max(1));
    match (removers.phrase(), restorers.phrase()) {
        (Some(one), Some(_)) if removers.is_same_as(restorers) => {
            format!("{one} removes and restores {what} itself, {pace}")
        }
        (Some(one), Some(other)) => format!("{one} removes and {other} restores {what}, {pace}"),
        (Some(one), None) => {
            format!("{one} removes {what} again and again, {pace}; who restores it was not seen each time")
        }
        (None, Some(other)) => {
            format!("{other} restores {what} again and again, {pace}; who removes it was not seen each time")
        }
        (None, None) => {
            format!("{what} is removed and restored again and again, {pace}; by whom was not seen each time")
        }
    }
}

/// Who did the same thing each time.
struct Parties<'a> {
    actors: Vec<Option<&'a Actor>>,
}

impl<'a> Parties<'a> {
    fn of(actors: impl Iterator<Item = Option<&'a Actor>>) -> Self {
        Self { actors: actors.collect() }
    }

    fn known(&self) -> impl Iterator<Item = &'a Actor> {
        self.actors.iter().flatten().copied()
    }

    /// The newest, if each time it was one, who was seen.
    fn newest(&self) -> Option<&'a Actor> {
        let newest = (*self.actors.last()?)?;
        self.actors.iter().all(|one| one.is_some() && !are_two(*one, Some(newest))).then_some(newest)
    }

    fn one(&self) -> Option<Shared<Actor>> {
        let confidence = self.confidence();
        self.newest()
            .map(|actor| Shared::new(Actor { confidence: actor.confidence.min(confidence), ..actor.clone() }))
    }

    /// `None` if it was not seen each time.
    fn phrase(&self) -> Option<String> {
        if self.actors.iter().any(Option::is_none) {
            return None;
        }
        let first = self.known().next()?;
        Some(match self.newest() {
            Some(newest) if newest.pid == first.pid => actor_phrase(newest),
            Some(newest) => repeated_actor_phrase(newest),
            None => {
                let mut names: Vec<String> =
                    self.known().map(|actor| name(&actor.comm).to_string()).collect();
                names.sort_unstable();
                names.dedup();
                format!("one of {}", names.join(", "))
            }
        })
    }

    fn is_same_as(&self, other: &Self) -> bool {
        self.newest().zip(other.newest()).is_some_and(|(one, other)| !are_two(Some(one), Some(other)))
    }

    /// Certain if each time was, by one actor that is told from others.
    fn confidence(&self) -> Confidence {
        let of_one = |actor: &Option<&Actor>| match actor {
            Some(actor) if !identity(actor).is_certain => Confidence::Likely,
            Some(actor) => actor.confidence,
            None => Confidence::Likely,
        };
        let least = self.actors.iter().map(of_one).min().unwrap_or(Confidence::Likely);
        if self.newest().is_some() { least } else { Confidence::Likely }
    }
}

/// Whether both are known, and not the same.
fn are_two(one: Option<&Actor>, other: Option<&Actor>) -> bool {
    one.zip(other).is_some_and(|(one, other)| identity(one).key != identity(other).key)
}

/// What an event removes or restores, of the host or of a container.
fn change(host: NsInum, event: &Event) -> Option<Change> {
    let target = event.target.as_deref()?;
    let is_owned = target.container.is_some() || target.confirmed_pod().is_some();
    let (netns, key, what, is_removal) = thing(event.kind, event)?;
    // What a container does to interfaces that do not leave it is its own matter.
    let leads_to_host = |link: &Link| link.peer.as_ref().is_some_and(|peer| peer.netns == Some(host));
    let is_inner = netns != host && event.link.as_deref().is_some_and(|link| !leads_to_host(link));
    if event.resync || target.is_foreign() || is_inner || !(is_owned || netns == host) {
        return None;
    }
    let of = match target_label(target) {
        Some(label) if is_owned => format!(" of {label}"),
        _ => " of the host".to_owned(),
    };
    Some(Change { subject: format!("{netns}/{key}"), netns, what: format!("{what}{of}"), is_removal })
}

/// The namespace, what identifies the thing there, its name, and whether it is removed.
fn thing(kind: Kind, event: &Event) -> Option<(NsInum, String, String, bool)> {
    let is_removal = matches!(kind, Kind::RouteDeleted | Kind::NeighborDeleted);
    match kind {
        Kind::RouteDeleted | Kind::RouteAdded => {
            let route = event.route.as_deref()?;
            let what = match route.destination.as_str() {
                "default" => "the default route".to_owned(),
                to => format!("the route to {to}"),
            };
            // There may be several to one destination.
            let gateway = route.gateway.map_or_else(String::new, |gateway| gateway.to_string());
            let key = format!("route/{}/{gateway}/{}", route.destination, route.ifindex.unwrap_or(0));
            Some((route.netns, key, what, is_removal))
        }
        Kind::NeighborDeleted | Kind::NeighborAdded => {
            let entry = event.neighbor.as_deref().filter(|entry| entry.gateway == Some(true))?;
            let key = format!("neighbor/{}/{}", entry.ifindex, entry.address);
            let what = format!("the neighbor entry {} on {}", entry.address, name(&entry.ifname));
            Some((entry.netns, key, what, is_removal))
        }
        Kind::LinkChanged | Kind::LinkProxyArp => {
            let link = event.link.as_deref()?;
            let has = |change: &str| link.change.iter().any(|one| one == change);
            let of = name(&link.ifname);
            let (off, key, what) = [
                ("down", "up", "link", format!("link {of} (up)")),
                ("forwarding-off", "forwarding-on", "forwarding", format!("forwarding on {of}")),
                ("proxy-arp-off", "proxy-arp-on", "proxy-arp", format!("proxy_arp on {of}")),
            ]
            .into_iter()
            .find_map(|(off, on, key, what)| (has(off) || has(on)).then(|| (has(off), key, what)))?;
            Some((link.netns, format!("{key}/{}", link.ifindex), what, off))
        }
        _ => None,
    }
}

impl Diagnosis for RouteFlapping {
    fn event(&mut self, context: &Context<'_>, event: &Event, findings: &mut Findings) {
        if let Some(change) = change(context.node.host_netns, event) {
            self.note(context, event, change, findings);
        }
        let link = event.link.as_deref();
        if let Some(link) = link.filter(|_| matches!(event.kind, Kind::LinkDeleted | Kind::LinkMoved)) {
            for what in ["link", "forwarding", "proxy-arp"] {
                self.gone(&format!("{}/{what}/{}", link.netns, link.ifindex), findings);
            }
        }
    }

    fn change(&mut self, _: &Context<'_>, change: &ModelChange<'_>, findings: &mut Findings) {
        let ModelChange::NetnsGone(netns) = change else { return };
        let of_it = self.flaps.iter().filter(|(_, flap)| flap.netns == *netns);
        for subject in of_it.map(|(subject, _)| subject.clone()).collect::<Vec<_>>() {
            self.gone(&subject, findings);
        }
    }

    fn tick(&mut self, context: &Context<'_>, findings: &mut Findings) {
        while let Some(subject) = self.timers.take_due(context.now) {
            // What is not there has come to rest, and is not as it should be.
            let is_there = self.flaps.get(&subject).is_none_or(|flap| flap.removed.is_none());
            let reason = if is_there { CloseReason::Resolved } else { CloseReason::Expired };
            self.close(&subject, reason, findings);
        }
    }

    fn resume(&mut self, context: &Context<'_>, event: &Event) -> Option<String> {
        let kind = match (&event.route, &event.neighbor) {
            (Some(_), _) => Kind::RouteAdded,
            (None, Some(_)) => Kind::NeighborAdded,
            (None, None) => Kind::LinkChanged,
        };
        let (netns, key, ..) = thing(kind, event)?;
        let subject = format!("{netns}/{key}");
        let flap = Flap { netns, removed: None, cycles: VecDeque::new(), is_open: true };
        self.flaps.insert(subject.clone(), flap);
        self.timers.set(&subject, context.now.saturating_add(self.window()));
        Some(subject)
    }

    with_thresholds!(by timers);
}
