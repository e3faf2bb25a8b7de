//! A Ceph RBD image is still mapped on this node though no pod uses it: other nodes may be refused it for that, or for the lock
//! that was taken with it.
//!
//! Found by state alone: what is mapped, and who uses it (`holders/rbd.rs`). One incident for each mapping. What the node uses
//! for itself is no concern of pods, and none.

use std::collections::{BTreeMap, BTreeSet};

use kevtmon_event::{Confidence, Event, MountHolder, Rbd, Severity, Shared, Target};
use kevtmon_observation::NsInum;
use kevtmon_types::settings::{Threshold, Unit, thresholds};
use serde::{Deserialize, Serialize};

use super::conditions::{Condition, Conditions, Look, Seen, start};
use super::finding::{Findings, IncidentObjects, Report};
use super::{Alert, Context, IncidentKind, ModelChange, Watch};

mod steps;
mod wording;

pub(super) const KIND: &str = "rbd-orphan-mapping";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "A Ceph RBD image is mapped on this node though no pod uses it",
    symptom: "devices of pods that are gone",
    names: "what has the RBD image mounted or open",
    opens: "An RBD image is mapped that no pod has used for 5 min.",
    alert: Alert::Open { severity: Severity::Warning, minutes: 10 },
    meaning: "Either the pod that used it has gone and something still has the image mounted or open, or it was never unmapped, \
             or it was mapped by hand. A pod on another node may wait for it, if the image is locked.",
    remedy: "End the holder of the device that the incident names, unmount it there, then unmap it; only then check \
             its lock.",
    severities: &[Severity::Warning],
    counted: "observations",
    thresholds: THRESHOLDS,
    watched_by: Watch::None,
    is_optional: false,
    start: start::<RbdOrphanMapping>,
};

thresholds! {
    /// A Ceph RBD image that is mapped on this node and that no pod uses is reported after this time: the kubelet maps it before it
    /// starts a pod, and unmaps it after the end of one.
    AFTER = "rbd_orphan_mapping_seconds", default 300, Unit::Seconds;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Usage {
    /// By a pod, or by the node for itself.
    Used,
    /// By nobody who is to have it.
    Unused,
    /// Not all could be looked at.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImageUse {
    pub usage: Usage,
    pub rbd: Rbd,
    /// Where it is mounted for pods, and no pod's: mount namespace and mount point.
    pub staged: Vec<(NsInum, String)>,
    /// Who else holds the device.
    pub holders: Vec<MountHolder>,
    /// Whether all were looked at who may hold it.
    pub complete: bool,
    /// Whether runtimes tell whose they are.
    pub is_told: bool,
    /// The pod that was last seen to use it.
    pub last_pod: Option<Shared<Target>>,
}

impl ImageUse {
    /// An image of which nothing else is known.
    fn unknown(rbd: Rbd) -> Self {
        let (staged, holders) = (Vec::new(), Vec::new());
        Self { usage: Usage::Unknown, rbd, staged, holders, complete: false, is_told: false, last_pod: None }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct RbdOrphanMapping {
    /// Who uses each mapping, as seen last.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    uses: BTreeMap<String, ImageUse>,
}

type LastPod = Option<Shared<Target>>;

fn report(seen: &Seen<'_, LastPod>, subject: &str, image: &ImageUse, last_pod: LastPod) -> Report {
    let is_certain = image.complete && image.is_told && !image.rbd.is_by_nbd();
    let confidence = if is_certain { Confidence::Certain } else { Confidence::Likely };
    let summary = wording::summary(image, last_pod.as_deref(), seen.hold);
    Report {
        advice: Some(steps::steps(seen.context, image)),
        objects: IncidentObjects {
            target: last_pod,
            rbd: Some(Box::new(image.rbd.clone())),
            holders: Some(image.holders.clone()),
            holders_complete: Some(image.complete),
            ..IncidentObjects::default()
        },
        found_at_start: seen.context.ready.is_none(),
        ..Report::new(subject.to_owned(), Severity::Warning, confidence, summary, seen.context.now)
    }
}

fn subject(rbd: &Rbd) -> String {
    format!("{} {}", rbd.spec(), rbd.device.as_deref().unwrap_or_default())
}

impl Conditions for RbdOrphanMapping {
    const SPEC: &'static IncidentKind = &SPEC;
    const HOLD: &'static Threshold = &AFTER;
    type Memory = LastPod;

    fn change(&mut self, _: &Seen<'_, LastPod>, change: &ModelChange<'_>, _: &mut Findings) -> Look {
        match change {
            ModelChange::RbdUses(uses) => {
                self.uses.extend(uses.iter().map(|found| (subject(&found.rbd), found.clone())));
            }
            ModelChange::RbdImages(mapped) => {
                let subjects: BTreeSet<String> = mapped.iter().map(subject).collect();
                self.uses.retain(|subject, _| subjects.contains(subject));
            }
            ModelChange::Ready => {}
            _ => return Look::No,
        }
        Look::Now
    }

    fn conditions(&mut self, seen: &Seen<'_, LastPod>, _: &mut Findings) -> Option<Vec<Condition<LastPod>>> {
        let condition = |(subject, image): (&String, &ImageUse)| match image.usage {
            Usage::Used => None,
            Usage::Unknown => Some(Condition::unknown(subject.clone())),
            Usage::Unused => {
                let before = || seen.memory(subject).cloned().flatten();
                let memory = image.last_pod.clone().or_else(before);
                let report = report(seen, subject, image, memory.clone());
                Some(Condition { memory, ..Condition::new(report) })
            }
        };
        Some(self.uses.iter().filter_map(condition).collect())
    }

    fn resume(&mut self, _: &Context<'_>, event: &Event) -> Option<(String, LastPod)> {
        let rbd = event.rbd.as_deref()?.clone();
        let (subject, last_pod) = (subject(&rbd), event.target.clone());
        self.uses.insert(subject.clone(), ImageUse::unknown(rbd));
        Some((subject, last_pod))
    }
}

#[cfg(test)]
mod tests;
