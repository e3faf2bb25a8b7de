//! A lock on a Ceph RBD image is left: a program on this node has taken it, the image is not mapped here, and no program here has
//! removed the lock since. Other nodes may be refused the image for it.
//!
//! All that is known of locks is what `rbd` was asked for on this node and whether it succeeded: the cluster is not asked. Of a
//! lock that was taken before the daemon started nothing is known, unless its incident was open then. One that somebody removes
//! from another node stays an incident until the image is mapped here, or a day has passed.

use std::collections::BTreeMap;

use kevtmon_event::wording::actor_phrase;
use kevtmon_event::{Actor, Advice, CloseReason, Confidence, Event, Rbd, Severity, Shared, form, span};
use kevtmon_observation::{BootNs, RbdCommand};
use kevtmon_types::escape::{name, quoted};
use kevtmon_types::settings::{Threshold, Unit, thresholds};
use serde::{Deserialize, Serialize};

use super::advice::advice;
use super::conditions::{Condition, Conditions, Look, Seen, start};
use super::finding::{Findings, IncidentObjects, Report};
use super::{Alert, CAPACITY, Context, IncidentKind, ModelChange, SECOND, Watch};
use crate::node::rbd_calls::RbdCall;

pub(super) const KIND: &str = "rbd-lock-left";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "A lock is left on a Ceph RBD image that this node has not mapped",
    symptom: "`ContainerCreating` without end",
    names: "the process that took the lock on the RBD image",
    opens: "A lock on an RBD image was taken here, and the image has not been mapped here for 5 min.",
    alert: Alert::Open { severity: Severity::Warning, minutes: 10 },
    meaning: "A program on this node, such as a kubelet up to 1.7, has taken the lock, and none on this node has \
             removed it. Other nodes may be refused the image: \"image is locked by other nodes\". It is unknown \
             whether another node has removed the lock.",
    remedy: "Make sure by rbd status that no client has the image open, see by rbd lock list whether the lock is still there, \
             and only then remove it.",
    severities: &[Severity::Warning],
    counted: "observations",
    thresholds: THRESHOLDS,
    watched_by: Watch::None,
    is_optional: false,
    start: start::<RbdLockLeft>,
};

thresholds! {
    /// A lock on a Ceph RBD image that was taken on this node is reported when the image has not been mapped here for this time: it
    /// is taken before the image is mapped, and removed after that was unmapped.
    AFTER = "rbd_lock_left_seconds", default 300, Unit::Seconds;
}

/// Somebody may have removed it from another node.
const EXPIRES: BootNs = 24 * 3600 * SECOND;
/// How the kubelet's plugin calls its lock; the name of the host follows. Others may have taken one for an image that they use
/// without the kernel.
const OF_KUBELET: &str = "kubelet_lock_magic_";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Lock {
    rbd: Rbd,
    actor: Option<Shared<Actor>>,
    taken: BootNs,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct RbdLockLeft {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    locks: BTreeMap<String, Lock>,
}

impl RbdLockLeft {
    fn called(&mut self, taken: BootNs, call: &RbdCall, findings: &mut Findings) {
        let rbd = Rbd { snapshot: None, ..Rbd::from(&call.exec) };
        let subject = subject(&rbd);
        if call.exec.command == RbdCommand::LockRemove {
            self.locks.remove(&subject);
            return;
        }
        // Nobody gets a lock for himself while there is another one: those of before are gone.
        if !call.exec.shared {
            self.locks.retain(|_, lock| lock.rbd.spec() != rbd.spec());
        }
        if self.locks.len() >= CAPACITY && !self.locks.contains_key(&subject) {
            return findings.discard();
        }
        let actor = Some(call.actor.clone());
        self.locks.entry(subject).or_insert(Lock { rbd, actor, taken });
    }
}

/// When the incident of a lock ends by itself, if it has one.
fn expires(seen: &Seen<'_, ()>, (subject, lock): (&String, &Lock)) -> Option<BootNs> {
    let since = seen.since(subject).filter(|_| seen.is_open(subject))?;
    Some(since.max(lock.taken).saturating_add(seen.hold).saturating_add(EXPIRES))
}

/// Whether the kernel of this node has the image mapped; `None` if that is not known.
fn is_mapped(context: &Context<'_>, rbd: &Rbd) -> Option<bool> {
    context.node.rbd.has(&rbd.pool, rbd.rados_namespace.as_deref(), &rbd.image)
}

fn subject(rbd: &Rbd) -> String {
    format!("{} {}", rbd.spec(), rbd.lock.as_deref().unwrap_or_default())
}

fn report(seen: &Seen<'_, ()>, subject: &str, lock: &Lock) -> Report {
    let Lock { rbd, actor, .. } = lock;
    let id = rbd.lock.as_deref().unwrap_or_default();
    let by = actor.as_ref().map_or_else(String::new, |actor| format!(" by {}", actor_phrase(actor)));
    let time = span(jiff::SignedDuration::from_nanos(i64::try_from(seen.hold).unwrap_or(i64::MAX)));
    // Somebody may have removed it from another node, or use the image without the kernel.
    let confidence = if id.starts_with(OF_KUBELET) { Confidence::Likely } else { Confidence::Guess };
    let summary = format!(
        "{} is not mapped on this node, though lock {} on it was taken here{by}, and has not been removed here for {time}",
        rbd.label(),
        name(id)
    );
    Report {
        advice: Some(steps(rbd, id)),
        objects: IncidentObjects {
            actor: actor.clone(),
            rbd: Some(Box::new(rbd.clone())),
            ..IncidentObjects::default()
        },
        ..Report::new(subject.to_owned(), Severity::Warning, confidence, summary, seen.context.now)
    }
}

/// The lock protects the image from a second writer: it is removed only once it is sure that there is no first one.
fn steps(rbd: &Rbd, lock: &str) -> Vec<Advice> {
    let spec = rbd.spec();
    let remove = format!("rbd lock remove {} {}", quoted(&spec), quoted(lock));
    let watchers = "make sure that no client has the image open: it must show no watcher";
    let locks = format!(
        "only then see whether the lock is still there; `{remove} LOCKER` removes it, with the locker that this shows"
    );
    vec![
        advice(form::LIST_WATCHERS, watchers, &["rbd", "status", &spec]),
        advice(form::LIST_LOCKS, &locks, &["rbd", "lock", "list", &spec]),
    ]
}

impl Conditions for RbdLockLeft {
    const SPEC: &'static IncidentKind = &SPEC;
    const HOLD: &'static Threshold = &AFTER;
    type Memory = ();

    fn change(&mut self, seen: &Seen<'_, ()>, change: &ModelChange<'_>, findings: &mut Findings) -> Look {
        match change {
            ModelChange::RbdLock(call) => self.called(seen.context.now, call, findings),
            ModelChange::RbdImages(_) | ModelChange::RbdUses(_) | ModelChange::Ready => {}
            _ => return Look::No,
        }
        Look::Now
    }

    fn conditions(&mut self, seen: &Seen<'_, ()>, findings: &mut Findings) -> Option<Vec<Condition<()>>> {
        self.locks.retain(|subject, lock| {
            let is_over = expires(seen, (subject, lock)).is_some_and(|at| at <= seen.context.now);
            if is_over {
                findings.close(subject.clone(), CloseReason::Expired, None);
            }
            !is_over
        });
        let condition = |(subject, lock): (&String, &Lock)| match is_mapped(seen.context, &lock.rbd) {
            Some(true) => None,
            // The image may be about to be mapped.
            Some(false) => Some(Condition {
                not_before: lock.taken.saturating_add(seen.hold),
                ..Condition::new(report(seen, subject, lock))
            }),
            None => Some(Condition::unknown(subject.clone())),
        };
        Some(self.locks.iter().filter_map(condition).collect())
    }

    fn settle(&self, seen: &Seen<'_, ()>, _: &mut Findings) -> Option<BootNs> {
        self.locks.iter().filter_map(|lock| expires(seen, lock)).min()
    }

    fn resume(&mut self, _: &Context<'_>, event: &Event) -> Option<(String, ())> {
        let rbd = event.rbd.as_deref()?.clone();
        let subject = subject(&rbd);
        self.locks.insert(subject.clone(), Lock { rbd, actor: event.actor.clone(), taken: 0 });
        Some((subject, ()))
    }
}

#[cfg(test)]
mod tests;
