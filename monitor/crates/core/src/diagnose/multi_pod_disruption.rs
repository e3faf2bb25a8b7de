//! The network of several pods is disrupted within a short time by one actor (a restarted network service, a script, an agent that
//! tears down what it does not know), or by one change of the node, whoever made it.
//!
//! It is found in the open incidents of single pods, which name that change, or else the actor, and is their cause. Processes that one process
//! started as the same program are one actor: a script runs `ip` again for each pod. A process is told from a later one with its
//! id by its start; where that is not known, the incident is only likely.

use std::collections::{BTreeMap, BTreeSet};

use effects::{Effect, Effects};
use kevtmon_event::wording::{actor_phrase, repeated_actor_phrase};
use kevtmon_event::{
    Actor, CloseReason, Confidence, Event, HostCause, HostChange, Severity, Shared, form, identity,
};
use kevtmon_observation::BootNs;
use kevtmon_types::escape::name;
use kevtmon_types::settings::{Thresholds, Unit, thresholds};
use serde::{Deserialize, Serialize};

use super::advice::advice;
use super::finding::{Count, Findings, IncidentKey, IncidentObjects, Report};
use super::{
    Alert, CAPACITY, Context, Diagnosis, IncidentKind, ModelChange, Watch, gateway_neighbor_lost,
    pod_route_missing, seconds, start,
};

mod effects;
#[cfg(test)]
mod tests;

pub(super) const KIND: &str = "multi-pod-disruption";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "One actor or change has disrupted the network of several pods",
    symptom: "a pod is unreachable",
    names: "the process, program or change of the node that caused several of these",
    opens: "One actor, or one change of the node, caused open network incidents of 3 pods within 10 s.",
    alert: Alert::Open { severity: Severity::Critical, minutes: 0 },
    meaning: "A network service that was restarted, a script or an agent broke the network of these pods, or that of the node on \
             which they depend: forwarding, its default route, a bridge. Each of them has an incident of its own, and this one is \
             their cause.",
    remedy: "If the summary begins with forwarding, the default route or a bridge that is down, undo that; keep a new MAC \
             address. Find out why the actor did it, and stop that; then restore the pods as their incidents advise.",
    severities: &[Severity::Warning],
    counted: "pods",
    thresholds: THRESHOLDS,
    watched_by: Watch::Netlink,
    is_optional: false,
    start: start::<MultiPodDisruption>,
};

/// Incidents whose actor did something to the network of a pod, or of the node. The actor of others holds or calls something.
const EFFECTS: [&str; 2] = [gateway_neighbor_lost::KIND, pod_route_missing::KIND];
/// Pods that a summary names.
const NAMED: usize = 8;

thresholds! {
    /// The networks of this number of pods, disrupted by one actor or one change of the node, are one incident.
    PODS = "multi_pod_disruption_pods", default 3, Unit::Count;
    /// If they were disrupted within this time.
    WINDOW = "multi_pod_disruption_seconds", default 10, Unit::Seconds;
}

/// What one actor did, or what one change of the node did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Disruption {
    /// When the first and the last pod was hit.
    first: BootNs,
    last: BootNs,
    /// The pods, by uid.
    pods: BTreeMap<String, String>,
    /// The number of pods that was told last; of a resumed one it may be of pods that are not known.
    told: u64,
    severity: Severity,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct MultiPodDisruption {
    #[serde(skip)]
    thresholds: Thresholds,
    /// The open ones, by the key of what the effects have in common.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    disruptions: BTreeMap<String, Disruption>,
    /// What the open incidents tell: looking at all of them for each event would cost the more the more there are.
    #[serde(skip)]
    effects: Effects,
}

impl MultiPodDisruption {
    fn review(&mut self, context: &Context<'_>, findings: &mut Findings) {
        let others = self.disruptions.keys();
        for key in self.effects.look(context, others) {
            let effects = self.effects.of(&key);
            if effects.is_empty() {
                self.end(key, findings);
            } else {
                self.judge(key, &effects, findings);
            }
        }
    }

    fn judge(&mut self, key: String, effects: &[Shared<Effect>], findings: &mut Findings) {
        let window = seconds(self.thresholds.get(&WINDOW));
        let is_open = self.disruptions.contains_key(&key);
        let begin = match self.disruptions.get(&key) {
            Some(known) => Some(known.first),
            None => self.burst(effects, window),
        };
        let Some(begin) = begin else { return };
        if !is_open && self.disruptions.len() >= CAPACITY {
            return findings.discard();
        }
        let disruption = self.disruptions.entry(key.clone()).or_insert_with(|| Disruption {
            first: begin,
            last: begin,
            pods: BTreeMap::new(),
            told: 0,
            severity: Severity::Warning,
        });
        let mut of_it: Vec<&Effect> = Vec::new();
        for effect in effects.iter().filter(|effect| effect.first >= begin) {
            // When a pod notices what was done to the node depends on what it sends.
            if effect.host_cause.is_none() && effect.first > disruption.last.saturating_add(window) {
                break;
            }
            disruption.last = disruption.last.max(effect.first);
            disruption.pods.insert(effect.uid.clone(), effect.label.clone());
            of_it.push(effect);
        }
        if of_it.is_empty() {
            return self.end(key, findings);
        }
        let severity = of_it.iter().map(|effect| effect.severity).max();
        let severity = severity.unwrap_or(Severity::Warning).max(Severity::Warning);
        let count = u64::try_from(disruption.pods.len()).unwrap_or(u64::MAX);
        if count > disruption.told || severity > disruption.severity {
            disruption.told = disruption.told.max(count);
            disruption.severity = severity;
            findings.report(report(key.clone(), disruption, &of_it));
        }
        for effect in of_it {
            let subject = effect.subject.clone();
            let cause = IncidentKey { kind: KIND, subject: key.clone() };
            findings.link(IncidentKey { kind: effect.kind, subject }, cause);
        }
    }

    /// When enough pods were hit within the window for the first time.
    fn burst(&self, effects: &[Shared<Effect>], window: BootNs) -> Option<BootNs> {
        let least = usize::try_from(self.thresholds.get(&PODS)).unwrap_or(usize::MAX).max(2);
        let is_burst = |from: &&Shared<Effect>| {
            let within = effects.iter().filter(|other| {
                from.first <= other.first && other.first <= from.first.saturating_add(window)
            });
            let pods: BTreeSet<&str> = within.map(|other| other.uid.as_str()).collect();
            pods.len() >= least
        };
        effects.iter().find(is_burst).map(|effect| effect.first)
    }

    fn end(&mut self, key: String, findings: &mut Findings) {
        if self.disruptions.remove(&key).is_some() {
            findings.close(key, CloseReason::Resolved, None);
        }
    }
}

fn report(subject: String, disruption: &Disruption, effects: &[&Effect]) -> Report {
    let mut actors: Vec<&Actor> = effects.iter().filter_map(|effect| effect.actor.as_deref()).collect();
    let host_cause = effects.first().and_then(|effect| effect.host_cause.clone());
    // The same may have been done to the node twice.
    if host_cause.is_some() && actors.windows(2).any(|pair| !is_one_process(pair[0], pair[1])) {
        actors.clear();
    }
    let confidence = effects.iter().map(|effect| effect.confidence).min().unwrap_or(Confidence::Likely);
    let kind = effects.first().map_or(gateway_neighbor_lost::KIND, |effect| effect.kind);
    let summary = summary(disruption, host_cause.as_ref(), &actors, confidence);
    Report {
        advice: Some(vec![advice(
            form::LIST_EFFECTS,
            "see what happened to each pod, and what helps it",
            &["kevtmon", "incidents", "--kind", kind],
        )]),
        objects: IncidentObjects {
            actor: actors.first().map(|actor| Shared::new((*actor).clone())),
            ..IncidentObjects::default()
        },
        first: disruption.first,
        count: Count::Total(disruption.told),
        host_cause,
        ..Report::new(subject, disruption.severity, confidence, summary, disruption.last)
    }
}

/// `the network of 110 pods was disrupted within 8 s by systemd-networkd (pid 812): a/b, c/d and 108 more`, or `IPv4 forwarding was
/// switched off on the node, likely by sysctl (pid 902): 110 pods lost their gateway within 8 s: a/b, c/d and 108 more`
fn summary(
    disruption: &Disruption,
    cause: Option<&HostCause>,
    actors: &[&Actor],
    confidence: Confidence,
) -> String {
    let by = match actors {
        [first, others @ ..] if others.iter().all(|other| is_one_process(first, other)) => {
            actor_phrase(first)
        }
        [first, ..] => repeated_actor_phrase(first),
        [] => String::new(),
    };
    let likely = if confidence == Confidence::Certain { "" } else { "likely " };
    let span = disruption.last.saturating_sub(disruption.first).div_ceil(super::SECOND).max(1);
    let mut names: Vec<&str> = disruption.pods.values().map(String::as_str).collect();
    names.sort_unstable();
    let more = disruption.told.saturating_sub(u64::try_from(names.len().min(NAMED)).unwrap_or(u64::MAX));
    names.truncate(NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    let (count, names) = (disruption.told, names.join(", "));
    let Some(cause) = cause else {
        return format!(
            "the network of {count} pods was disrupted within {span} s, {likely}by {by}: {names}{more}"
        );
    };
    let by = if by.is_empty() { by } else { format!(", {likely}by {by}") };
    let cause = cause_phrase(cause, !actors.is_empty());
    format!("{cause}{by}: {count} pods lost their gateway within {span} s: {names}{more}")
}

/// What was done to the node; `was_seen`: the process that did it is known.
fn cause_phrase(cause: &HostCause, was_seen: bool) -> String {
    let bridge = name(cause.ifname.as_deref().unwrap_or_default());
    match (cause.change, was_seen) {
        (HostChange::ForwardingOff, true) => "IPv4 forwarding was switched off on the node".to_owned(),
        (HostChange::ForwardingOff, false) => "IPv4 forwarding is off on the node".to_owned(),
        (HostChange::DefaultRouteDeleted, _) => "the default route of the node was deleted".to_owned(),
        (HostChange::BridgeDown, true) => format!("the bridge {bridge} was set down"),
        (HostChange::BridgeDown, false) => format!("the bridge {bridge} is down"),
        (HostChange::BridgeMac, _) => format!("the bridge {bridge} got another MAC address"),
    }
}

fn is_one_process(one: &Actor, other: &Actor) -> bool {
    one.pid == other.pid && one.start_time_ns == other.start_time_ns
}

impl Diagnosis for MultiPodDisruption {
    fn event(&mut self, context: &Context<'_>, _event: &Event, findings: &mut Findings) {
        self.review(context, findings);
    }

    fn change(&mut self, context: &Context<'_>, _change: &ModelChange<'_>, findings: &mut Findings) {
        self.review(context, findings);
    }

    fn tick(&mut self, context: &Context<'_>, findings: &mut Findings) {
        self.review(context, findings);
    }

    fn resume(&mut self, context: &Context<'_>, event: &Event) -> Option<String> {
        let incident = event.incident.as_ref()?;
        let of_actor = || event.actor.as_deref().map(|actor| identity(actor).key);
        let subject = incident.host_cause.as_ref().map(HostCause::key).or_else(of_actor)?;
        let time = |text: &str| context.clock.boot_ns(text).unwrap_or(context.now);
        let known = Disruption {
            first: time(&incident.first_seen),
            last: time(&incident.last_seen),
            pods: BTreeMap::new(),
            told: incident.count,
            severity: incident.severity,
        };
        self.disruptions.insert(subject.clone(), known);
        self.effects = Effects::default();
        Some(subject)
    }

    with_thresholds!();
}
