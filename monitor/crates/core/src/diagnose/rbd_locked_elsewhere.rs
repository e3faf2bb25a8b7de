//! A Ceph RBD image was asked for on this node and refused to it, as a log says: another node has it, or a lock on it is left there.
//!
//! That it is refused is told by nothing but the line, so it is likely at most; that somebody asks for the image here is seen of
//! the program `rbd`, and that neither the kernel nor rbd-nbd has mapped it, of the kernel: of other users of librbd nothing is. Who
//! has it is told by the cluster, which is not asked.

use std::collections::BTreeMap;

use kevtmon_event::{Advice, CloseReason, Confidence, Event, Kind, Log, Rbd, Severity, form};
use kevtmon_observation::{BootNs, ImageName};
use kevtmon_types::escape::{Escaped, name};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::advice::advice;
use super::finding::{Count, Findings, IncidentObjects, Report};
use super::{Alert, CAPACITY, Context, Diagnosis, IncidentKind, ModelChange, SECOND, Watch};

pub(super) const KIND: &str = "rbd-locked-elsewhere";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "A log says that a Ceph RBD image is refused to this node",
    symptom: "`ContainerCreating` without end",
    names: "the RBD image that another node has, according to a log",
    opens: "A log says that this node is refused an RBD image.",
    alert: Alert::Open { severity: Severity::Warning, minutes: 5 },
    meaning: "According to a log of this node, another node has the image or a lock on it; then its pod stays in \
             ContainerCreating. Either the pod's node before has not given it back, or a lock was left when it did. The log may \
             also be wrong: it is quoted, and nothing else shows the refusal. Whether a program has the image without the \
             kernel (rbd-nbd, librbd) is not seen.",
    remedy: "`rbd status` shows the client that has the image open. Run `kevtmon incidents` on its node. Without an \
             incident there, a pod there uses the image. Remove a lock only if there is no watcher.",
    severities: &[Severity::Warning],
    counted: "refusals",
    thresholds: &[],
    watched_by: Watch::None,
    is_optional: true,
    start: |_| Box::new(RbdLockedElsewhere::default()),
};

/// Without another refusal nobody waits for it any more: a kubelet tries again every 2 min.
const QUIET: BootNs = 600 * SECOND;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Refused {
    image: ImageName,
    last: BootNs,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct RbdLockedElsewhere {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    refused: BTreeMap<String, Refused>,
}

impl RbdLockedElsewhere {
    fn refusal(&mut self, context: &Context<'_>, event: &Event, findings: &mut Findings) {
        let (Some(rbd), Some(log)) = (event.rbd.as_deref(), event.log.as_deref()) else { return };
        let image = image(rbd);
        let subject = rbd.spec();
        let is_open = self.refused.contains_key(&subject);
        // Who may write to the log can make it say anything, also once it is open: somebody must wait for the image.
        let is_waited_for = context.node.rbd_asked.has(context.now, &image);
        if context.ready.is_none() || !is_waited_for || is_mapped(context, &image) != Some(false) {
            return;
        }
        if !is_open && self.refused.len() >= CAPACITY {
            return findings.discard();
        }
        self.refused.insert(subject.clone(), Refused { image, last: event.at });
        let confidence = if log.vague { Confidence::Guess } else { Confidence::Likely };
        findings.report(Report {
            advice: Some(steps(rbd)),
            objects: IncidentObjects::of(event),
            evidence: vec![event.seq],
            count: Count::More(1),
            ..Report::new(subject, Severity::Warning, confidence, summary(rbd, log), event.at)
        });
    }

    fn close(&mut self, is_over: impl Fn(&Refused) -> bool, reason: CloseReason, findings: &mut Findings) {
        self.refused.retain(|subject, refused| {
            let is_over = is_over(refused);
            if is_over {
                findings.close(subject.clone(), reason, None);
            }
            !is_over
        });
    }
}

fn image(rbd: &Rbd) -> ImageName {
    ImageName { pool: rbd.pool.clone(), namespace: rbd.rados_namespace.clone(), image: rbd.image.clone() }
}

/// Whether this node has the image mapped, by its kernel's client or rbd-nbd; `None` if that is not known.
fn is_mapped(context: &Context<'_>, image: &ImageName) -> Option<bool> {
    context.node.rbd.has(&image.pool, image.namespace.as_deref(), &image.image)
}

fn summary(rbd: &Rbd, log: &Log) -> String {
    let text = log.text.replace('\\', "\\\\").replace('"', "\\\"");
    let holder = rbd.held_by.as_ref();
    let holder =
        holder.map_or_else(String::new, |holder| format!(", which names the client at {}", name(holder)));
    format!(
        "{} was asked for on this node, is not mapped by this node's kernel, and was refused according to {}{holder}: \"{}\"",
        rbd.label(),
        name(&log.name),
        Escaped(&text)
    )
}

/// The lock protects the image from a second writer, so it comes last.
fn steps(rbd: &Rbd) -> Vec<Advice> {
    let spec = rbd.spec();
    let watchers = "see which client has the image open: a watcher's address is that of a node; there, `kevtmon \
                    incidents` shows what keeps the image (rbd-orphan-mapping, rbd-lock-left); without an incident \
                    there, a pod uses the image: see whether that pod is to run";
    let locks = "see whose lock it is; remove it only if no watcher is left and nothing uses the image on the node \
                 that took it";
    vec![
        advice(form::LIST_WATCHERS, watchers, &["rbd", "status", &spec]),
        advice(form::LIST_LOCKS, locks, &["rbd", "lock", "list", &spec]),
    ]
}

impl Diagnosis for RbdLockedElsewhere {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn event(&mut self, context: &Context<'_>, event: &Event, findings: &mut Findings) {
        if event.kind == Kind::RbdAttachRefused {
            self.refusal(context, event, findings);
        }
    }

    fn change(&mut self, context: &Context<'_>, change: &ModelChange<'_>, findings: &mut Findings) {
        if matches!(change, ModelChange::RbdImages(_)) {
            let is_over = |refused: &Refused| is_mapped(context, &refused.image) == Some(true);
            self.close(is_over, CloseReason::Resolved, findings);
        }
    }

    fn tick(&mut self, context: &Context<'_>, findings: &mut Findings) {
        let is_over = |refused: &Refused| refused.last.saturating_add(QUIET) <= context.now;
        self.close(is_over, CloseReason::Expired, findings);
    }

    fn deadline(&self) -> Option<BootNs> {
        self.refused.values().map(|refused| refused.last.saturating_add(QUIET)).min()
    }

    fn resume(&mut self, context: &Context<'_>, event: &Event) -> Option<String> {
        let rbd = event.rbd.as_deref()?;
        let last = context.clock.boot_ns(&event.incident.as_deref()?.last_seen).unwrap_or(context.now);
        self.refused.insert(rbd.spec(), Refused { image: image(rbd), last });
        Some(rbd.spec())
    }

    fn save(&self) -> Result<Value, serde_json::Error> {
        serde_json::to_value(self)
    }

    fn restore(&mut self, saved: Value) -> Result<(), serde_json::Error> {
        *self = serde_json::from_value(saved)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
