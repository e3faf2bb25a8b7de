//! A Ceph RBD image is still mapped on this node though no pod uses it: other nodes may be refused it for that, or for the lock
//! that was taken with it.
//!
//! Found by state alone: what is mapped, and who uses it (`holders/rbd.rs`). One incident for each mapping. What the node uses
//! for itself is no concern of pods, and none.

use std::collections::BTreeMap;

use kevtmon_event::{CloseReason, Confidence, Event, MountHolder, Rbd, Severity, Shared, Target};
use kevtmon_observation::{BootNs, NsInum};
use kevtmon_types::settings::{Thresholds, Unit, thresholds};
use serde::{Deserialize, Serialize};

use super::finding::{Count, Findings, IncidentObjects, Report};
use super::{Context, Diagnosis, IncidentKind, ModelChange, Watch, seconds};

mod steps;
mod wording;

/// As users filter and alert on it.
pub(super) const KIND: &str = "rbd-orphan-mapping";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "A Ceph RBD image is mapped on this node though no pod uses it",
    meaning: "Either the pod that used it has gone and something still has the image mounted or open, or it was never unmapped, \
             or it was mapped by hand. A pod on another node may wait for it, if the image is locked.",
    remedy: "End the holder of the device that the incident names, unmount it there, then unmap it; only then look at its lock.",
    severities: &[Severity::Warning],
    counted: "observations",
    thresholds: THRESHOLDS,
    watched_by: Watch::None,
    is_optional: false,
    start: |thresholds| Box::new(RbdOrphanMapping::new(thresholds)),
};

thresholds! {
    /// A Ceph RBD image that is mapped on this node and that no pod uses is reported after this time: the kubelet maps it before it
    /// starts a pod, and unmaps it after the end of one.
    AFTER = "rbd_orphan_mapping_seconds", default 300, Unit::Seconds;
}

/// Whether a mapped image is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Usage {
    /// By a pod, or by the node for itself.
    Used,
    /// By nobody who is to have it.
    Unused,
    /// Not all could be looked at.
    Unknown,
}

/// A mapped image, and who uses it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImageUse {
    /// Whether it is used.
    pub usage: Usage,
    /// The image.
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

/// One that no pod uses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Unused {
    since: BootNs,
    /// As seen last.
    seen: ImageUse,
    /// Whether it was found before every source had reported.
    at_start: bool,
}

/// What was said of an incident last.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Said {
    summary: String,
    last_pod: Option<Shared<Target>>,
}

/// The diagnosis.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RbdOrphanMapping {
    #[serde(skip)]
    thresholds: Thresholds,
    unused: BTreeMap<String, Unused>,
    open: BTreeMap<String, Said>,
    next: Option<BootNs>,
}

impl RbdOrphanMapping {
    pub(super) fn new(thresholds: &Thresholds) -> Self {
        Self { thresholds: thresholds.clone(), unused: BTreeMap::new(), open: BTreeMap::new(), next: None }
    }

    fn replace(&mut self, context: &Context<'_>, uses: &[ImageUse], findings: &mut Findings) {
        for found in uses {
            let subject = subject(&found.rbd);
            if found.usage == Usage::Used {
                self.unused.remove(&subject);
                self.close(subject, findings);
            } else if let Some(known) = self.unused.get_mut(&subject) {
                known.seen = found.clone();
            } else if found.usage == Usage::Unused {
                let at_start = context.ready.is_none();
                self.unused.insert(subject, Unused { since: context.now, seen: found.clone(), at_start });
            }
        }
        self.review(context, findings);
    }

    fn keep(&mut self, mapped: &[Rbd], findings: &mut Findings) {
        let subjects: Vec<String> = mapped.iter().map(subject).collect();
        self.unused.retain(|subject, _| subjects.contains(subject));
        let gone = self.open.keys().filter(|subject| !subjects.contains(subject)).cloned();
        for subject in gone.collect::<Vec<_>>() {
            self.close(subject, findings);
        }
    }

    fn close(&mut self, subject: String, findings: &mut Findings) {
        if self.open.remove(&subject).is_some() {
            findings.close(subject, CloseReason::Resolved, None);
        }
    }

    fn review(&mut self, context: &Context<'_>, findings: &mut Findings) {
        let after = seconds(self.thresholds.get(&AFTER));
        self.next = None;
        // Before every source has reported, whose uses they are may not be known yet.
        if context.ready.is_none() {
            return;
        }
        let mut reports = Vec::new();
        for (subject, unused) in &self.unused {
            let due = unused.since.saturating_add(after);
            if due > context.now {
                self.next = Some(self.next.map_or(due, |next| next.min(due)));
            } else if unused.seen.usage == Usage::Unused {
                reports.push(self.report(context, subject, unused, after));
            }
        }
        for report in reports {
            let last_pod = report.objects.target.clone();
            let said = Said { summary: report.summary.clone(), last_pod };
            if self.open.get(&report.subject).is_none_or(|known| known.summary != said.summary) {
                self.open.insert(report.subject.clone(), said);
                findings.report(report);
            }
        }
    }

    fn report(&self, context: &Context<'_>, subject: &str, unused: &Unused, after: BootNs) -> Report {
        let seen = &unused.seen;
        let before = self.open.get(subject).and_then(|said| said.last_pod.as_ref());
        let last_pod = seen.last_pod.as_ref().or(before).cloned();
        Report {
            subject: subject.to_owned(),
            severity: Severity::Warning,
            confidence: match seen.complete && seen.is_told && !seen.rbd.is_by_nbd() {
                true => Confidence::Certain,
                false => Confidence::Likely,
            },
            summary: wording::summary(seen, last_pod.as_deref(), after),
            ruled_out: None,
            advice: Some(steps::steps(context, seen)),
            objects: IncidentObjects {
                target: last_pod,
                rbd: Some(Box::new(seen.rbd.clone())),
                holders: Some(seen.holders.clone()),
                holders_complete: Some(seen.complete),
                ..IncidentObjects::default()
            },
            first: unused.since,
            last: context.now,
            evidence: Vec::new(),
            count: Count::Total(1),
            found_at_start: unused.at_start,
            caused_by: Vec::new(),
        }
    }
}

/// One mapping of an image.
fn subject(rbd: &Rbd) -> String {
    format!("{} {}", rbd.spec(), rbd.device.as_deref().unwrap_or_default())
}

impl Diagnosis for RbdOrphanMapping {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn event(&mut self, _context: &Context<'_>, _event: &Event, _findings: &mut Findings) {}

    fn change(&mut self, context: &Context<'_>, change: &ModelChange<'_>, findings: &mut Findings) {
        match change {
            ModelChange::RbdUses(uses) => self.replace(context, uses, findings),
            ModelChange::RbdImages(mapped) => self.keep(mapped, findings),
            ModelChange::Ready => self.review(context, findings),
            _ => {}
        }
    }

    fn tick(&mut self, context: &Context<'_>, findings: &mut Findings) {
        if self.next.is_some_and(|next| next <= context.now) {
            self.review(context, findings);
        }
    }

    fn deadline(&self) -> Option<BootNs> {
        self.next
    }

    fn resume(&mut self, _context: &Context<'_>, event: &Event) -> Option<String> {
        let subject = subject(event.rbd.as_deref()?);
        let said = Said { summary: String::new(), last_pod: event.target.clone() };
        self.open.insert(subject.clone(), said);
        Some(subject)
    }

    saved_without_thresholds!();
}

#[cfg(test)]
mod tests;
