//! Containers of several pods were made again because a kubelet computes other hashes of their specifications than the one
//! before it: an upgrade of the kubelet that ends every container of the node.
//!
//! Found by the recreations alone: images and sandboxes are the same, and a kubelet was started shortly before. Containers
//! that only claim to be of a pod do not count.

use std::collections::{BTreeSet, VecDeque};

use kevtmon_event::{
    Advice, CloseReason, Component, Confidence, Event, Kind, RecreationReason, Severity, form,
};
use kevtmon_observation::{BootNs, ComponentFacts};
use kevtmon_types::escape::name;
use kevtmon_types::settings::{Thresholds, Unit, thresholds};
use serde::{Deserialize, Serialize};

use super::advice::advice;
use super::finding::{Count, Findings, IncidentObjects, Report};
use super::{Alert, Context, Diagnosis, IncidentKind, ModelChange, SECOND, Watch, seconds, start};

pub(super) const KIND: &str = "spec-hash-storm";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "Containers of many pods were recreated because their hash differs",
    symptom: "`NotReady`",
    names: "the containers that an update of the kubelet recreated",
    opens: "After a start of the kubelet, containers of 3 pods were recreated with other spec hashes.",
    alert: Alert::Open { severity: Severity::Warning, minutes: 0 },
    meaning: "A kubelet of another version computes other hashes of the same specifications and restarts all containers of \
             the node.",
    remedy: "Nothing is wrong with the pods. Drain nodes before the next update of the kubelet across such a version.",
    severities: &[Severity::Warning],
    counted: "containers",
    thresholds: THRESHOLDS,
    watched_by: Watch::None,
    is_optional: false,
    start: start::<SpecHashStorm>,
};

const PROGRAM: &str = "kubelet";
/// Recreations that are kept until the kubelet is known that was started before; it is looked for once a minute.
const KEPT_MAX: usize = 1024;
const KEPT_FOR: BootNs = 180 * SECOND;
const PODS_MAX: usize = 1024;
/// A storm without further recreations is over after this time.
const QUIET: BootNs = 600 * SECOND;

thresholds! {
    /// Containers of at least this many pods, recreated with other spec hashes, are a storm.
    PODS = "spec_hash_storm_pods", default 3, Unit::Count;
    /// They are one only within this time.
    WINDOW = "spec_hash_storm_seconds", default 120, Unit::Seconds;
    /// They are one only within this time after the start of a kubelet.
    AFTER_START = "spec_hash_storm_kubelet_seconds", default 600, Unit::Seconds;
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Recreated {
    at: BootNs,
    kept: BootNs,
    seq: u64,
    pod_uid: String,
    found_at_start: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Storm {
    component: Component,
    first: BootNs,
    last: BootNs,
    containers: u64,
    pods: BTreeSet<String>,
    /// Whether an earlier run of the daemon opened it, so that not all of its pods are known.
    resumed: bool,
    quiet_at: BootNs,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct SpecHashStorm {
    #[serde(skip)]
    thresholds: Thresholds,
    recent: VecDeque<Recreated>,
    /// At most one for each start of a kubelet.
    storms: Vec<Storm>,
}

impl SpecHashStorm {
    /// Looks for a kubelet that was started before what is kept, and what that makes of it.
    fn judge(&mut self, context: &Context<'_>, findings: &mut Findings) {
        self.recent.retain(|one| context.now < one.kept.saturating_add(KEPT_FOR));
        let kubelets = context.node.components.named(PROGRAM);
        let mut kubelets: Vec<Component> = kubelets.map(|kubelet| component(context, kubelet)).collect();
        // One of another version is the likelier reason than a restart after it; else the last start is.
        kubelets.sort_by_key(|kubelet| std::cmp::Reverse((is_other_version(kubelet), started(kubelet))));
        for kubelet in kubelets {
            let from = started(&kubelet);
            let until = from.saturating_add(seconds(self.thresholds.get(&AFTER_START)));
            let after = self.recent.iter().filter(|one| one.at >= from && one.at < until);
            let of_it: Vec<Recreated> = after.cloned().collect();
            let is_open = self.storms.iter().any(|storm| is_same(&storm.component, &kubelet));
            if !of_it.is_empty() && (is_open || self.is_storm(&of_it)) {
                self.recent.retain(|one| of_it.iter().all(|taken| taken.seq != one.seq));
                self.report(context, kubelet, &of_it, findings);
            }
        }
    }

    /// Whether enough pods are concerned within the time.
    fn is_storm(&self, all: &[Recreated]) -> bool {
        let window = seconds(self.thresholds.get(&WINDOW));
        let needed = usize::try_from(self.thresholds.get(&PODS)).unwrap_or(usize::MAX);
        all.iter().any(|first| {
            let within = all.iter().filter(|one| one.at >= first.at && one.at - first.at <= window);
            within.map(|one| one.pod_uid.as_str()).collect::<BTreeSet<_>>().len() >= needed
        })
    }

    fn report(
        &mut self,
        context: &Context<'_>,
        component: Component,
        new: &[Recreated],
        findings: &mut Findings,
    ) {
        let Some(first) = new.iter().map(|one| one.at).min() else { return };
        let index = self.storms.iter().position(|storm| is_same(&storm.component, &component));
        let index = index.unwrap_or_else(|| {
            self.storms.push(Storm { component, first, last: first, ..Storm::default() });
            self.storms.len() - 1
        });
        let storm = &mut self.storms[index];
        for one in new {
            storm.last = storm.last.max(one.at);
            storm.containers += 1;
            if storm.pods.len() < PODS_MAX {
                storm.pods.insert(one.pod_uid.clone());
            }
        }
        storm.quiet_at = context.now.saturating_add(QUIET);
        let (subject, confidence) = (subject(&storm.component), storm.confidence());
        findings.report(Report {
            ruled_out: Some(vec![
                "the images of the containers are the same".to_owned(),
                "the sandboxes of the pods are the same".to_owned(),
            ]),
            advice: Some(vec![next_step()]),
            objects: IncidentObjects {
                component: Some(Box::new(storm.component.clone())),
                ..IncidentObjects::default()
            },
            first: storm.first,
            evidence: new.iter().map(|one| one.seq).collect(),
            count: Count::Total(storm.containers),
            found_at_start: new.iter().all(|one| one.found_at_start),
            ..Report::new(subject, Severity::Warning, confidence, storm.summary(), storm.last)
        });
    }
}

impl Storm {
    /// That the kubelet is the reason follows from the time alone, unless it is known to be of another version.
    fn confidence(&self) -> Confidence {
        if is_other_version(&self.component) { Confidence::Certain } else { Confidence::Likely }
    }

    fn summary(&self) -> String {
        let pods = if self.resumed { String::new() } else { format!(" of {} pods", self.pods.len()) };
        let old = self.component.previous_version.as_ref().filter(|_| is_other_version(&self.component));
        let instead = old.map_or_else(String::new, |old| format!(" in place of version {}", name(old)));
        format!(
            "{} containers{pods} were re-created with other spec hashes, in unchanged sandboxes and with unchanged \
             images, after {} had started{instead}",
            self.containers,
            self.component.label()
        )
    }
}

impl Diagnosis for SpecHashStorm {
    fn event(&mut self, context: &Context<'_>, event: &Event, findings: &mut Findings) {
        let (Kind::ContainerRecreated, Some(recreation)) = (event.kind, &event.recreation) else { return };
        let pod = event.target.as_ref().and_then(|target| target.confirmed_pod());
        let is_one =
            recreation.reason == RecreationReason::SpecHashChanged && recreation.same_sandbox == Some(true);
        let Some(pod) = pod.filter(|_| is_one) else { return };
        let one = Recreated {
            at: event.at,
            kept: context.now,
            seq: event.seq,
            pod_uid: pod.uid.clone(),
            found_at_start: recreation.found_at_start,
        };
        crate::bounded::push(&mut self.recent, KEPT_MAX, one);
        self.judge(context, findings);
    }

    fn change(&mut self, context: &Context<'_>, change: &ModelChange<'_>, findings: &mut Findings) {
        if *change == ModelChange::Components && !self.recent.is_empty() {
            self.judge(context, findings);
        }
    }

    fn tick(&mut self, context: &Context<'_>, findings: &mut Findings) {
        let (over, open): (Vec<Storm>, Vec<Storm>) =
            std::mem::take(&mut self.storms).into_iter().partition(|storm| storm.quiet_at <= context.now);
        self.storms = open;
        for storm in over {
            findings.close(subject(&storm.component), CloseReason::Expired, None);
        }
    }

    fn deadline(&self) -> Option<BootNs> {
        self.storms.iter().map(|storm| storm.quiet_at).min()
    }

    fn resume(&mut self, context: &Context<'_>, event: &Event) -> Option<String> {
        let (component, incident) = (event.component.as_deref()?, event.incident.as_ref()?);
        let time = |text: &str| context.clock.boot_ns(text).unwrap_or(context.now);
        self.storms.push(Storm {
            component: component.clone(),
            first: time(&incident.first_seen),
            last: time(&incident.last_seen),
            containers: incident.count,
            pods: BTreeSet::new(),
            resumed: true,
            quiet_at: context.now.saturating_add(QUIET),
        });
        Some(subject(component))
    }

    with_thresholds!();
}

fn component(context: &Context<'_>, kubelet: &ComponentFacts) -> Component {
    let before = context.node.components.before(kubelet);
    Component {
        previous_version: before.and_then(|before| before.version.clone()),
        ..Component::from(kubelet)
    }
}

/// Whether the kubelet is known to be of another version than the one before it.
fn is_other_version(kubelet: &Component) -> bool {
    kubelet.version.as_ref().zip(kubelet.previous_version.as_ref()).is_some_and(|(new, old)| new != old)
}

fn started(kubelet: &Component) -> BootNs {
    kubelet.start_time_ns.parse().unwrap_or(0)
}

fn is_same(one: &Component, other: &Component) -> bool {
    (one.pid, &one.start_time_ns) == (other.pid, &other.start_time_ns)
}

/// One start of a kubelet.
fn subject(component: &Component) -> String {
    format!("{}/{}", component.pid, component.start_time_ns)
}

fn next_step() -> Advice {
    advice(
        form::SHOW_RECREATIONS,
        "list the containers with both hashes; do not go back to the old kubelet, which would re-create all of them once \
         more. Before a kubelet of another minor version starts, drain the node: only since 1.31 does the hash cover \
         nothing but name and image",
        &["kevtmon", "events", "--kind", "container.recreated"],
    )
}

#[cfg(test)]
mod tests;
