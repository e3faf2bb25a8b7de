//! A pod does not go: its containers have ended, or were killed, and something of it remains on the node.
//!
//! Its end has to pass several gates: processes, its control group, the network of its sandboxes, mounted volumes. Which of
//! them is shut is said, and which are open. That its directory is there says nothing: a kubelet keeps that of a pod that
//! has completed for as long as the API has the pod.

use std::collections::BTreeSet;

use gates::Gates;
use kevtmon_event::wording::{pod_label, target_label};
use kevtmon_event::{Advice, Confidence, Event, Pod, Severity, Shared, Target, form};
use kevtmon_observation::{BootNs, Request};
use kevtmon_types::settings::{Threshold, Unit, thresholds};
use serde::{Deserialize, Serialize};

use super::advice::advice;
use super::conditions::{Condition, Conditions, Look, Seen, start};
use super::finding::{Findings, IncidentKey, IncidentObjects, Report};
use super::volume_busy::mount_object;
use super::{Alert, Context, IncidentKind, ModelChange, SECOND, Watch, cni_teardown_failing};
use super::{umount_hung, volume_busy};
use crate::node::kubelet::Way;
use crate::node::pod_remains::PodOnNode;

mod gates;
#[cfg(test)]
mod tests;

pub(super) const KIND: &str = "pod-stuck-terminating";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "A pod has ended and something of it is left on the node",
    symptom: "`Terminating` without end",
    names: "what is left of the pod on the node: a mount, a process, a CNI `DEL` that fails",
    opens: "No container of a pod has run for 60 s, and something of it is left on the node.",
    alert: Alert::ByHand,
    meaning: "A volume is still mounted, a process still in its control group, a CNI DEL fails, or a process that was \
             killed waits in the kernel; so the pod stays in Terminating.",
    remedy: "The incident says which of these it is, and which process did it; begin there.",
    severities: &[Severity::Warning],
    counted: "observations",
    thresholds: THRESHOLDS,
    watched_by: Watch::None,
    is_optional: false,
    start: start::<PodStuckTerminating>,
};

thresholds! {
    /// Something of a pod that remains is reported once no container of the pod has run for this time; and the first process
    /// of a container that is to end (SIGKILL), once it has waited in the kernel for this time.
    AFTER = "pod_stuck_terminating_seconds", default 60, Unit::Seconds;
}

/// How often it is looked at what is behind an open one.
const LOOK: BootNs = 30 * SECOND;
const LISTED_MAX: usize = 32;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct PodStuckTerminating {
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    listed: BTreeSet<String>,
}

impl PodStuckTerminating {
    /// Requests the processes of pods whose containers have ended.
    fn list_processes(&mut self, context: &Context<'_>, findings: &mut Findings) {
        let with_processes = context.node.pods_on_node.iter().filter(|(_, pod)| pod.has_left_processes());
        let wanted: BTreeSet<String> =
            with_processes.map(|(uid, _)| uid.to_owned()).take(LISTED_MAX).collect();
        if wanted != self.listed {
            self.listed.clone_from(&wanted);
            findings.request(Request::PodProcesses { pods: wanted.into_iter().collect() });
        }
    }
}

fn condition(seen: &Seen<'_, ()>, uid: &str, pod: &PodOnNode) -> Option<Condition<()>> {
    let context = seen.context;
    let gates = Gates::of(context, uid, pod);
    // One that is open needs no time to be believed, as long as one of its gates is shut.
    let kept = || pod.over.filter(|_| seen.is_open(uid) && gates.is_kept_shut());
    let since = gates.since(context.node).or_else(kept)?;
    let target = context.node.target_of_pod(uid);
    let summary = summary(seen, (uid, pod), &target, &gates);
    let volume = pod.volumes().next();
    let report = Report {
        ruled_out: Some(gates.open()),
        advice: Some(steps(context, &label(&target, uid), pod)),
        objects: IncidentObjects {
            target: Some(Shared::new(target)),
            mount: volume.map(|(volume, facts)| Box::new(mount_object(facts, volume))),
            ..IncidentObjects::default()
        },
        found_at_start: !pod.ran,
        caused_by: causes(context, uid),
        ..Report::new(uid.to_owned(), Severity::Warning, confidence(&gates), summary, context.now)
    };
    Some(Condition { since: Some(since), ..Condition::new(report) })
}

fn summary(
    seen: &Seen<'_, ()>,
    (uid, pod): (&str, &PodOnNode),
    target: &Target,
    gates: &Gates<'_>,
) -> String {
    let label = target_label(target).unwrap_or_else(|| format!("pod {uid}"));
    let (after, shut) = (seen.hold / SECOND, gates.shut());
    match pod.over {
        Some(_) if seen.context.node.pods.ends(uid).is_some() => {
            let deleted = "though it was deleted and no container of it runs";
            format!("{label} is still on this node, {deleted}: {shut}")
        }
        Some(_) => {
            format!("{label} is still on this node, though no container of it has run for {after} s: {shut}")
        }
        None => format!("a container of {label} does not end: {shut}"),
    }
}

fn steps(context: &Context<'_>, label: &str, pod: &PodOnNode) -> Vec<Advice> {
    let mut steps = Vec::new();
    if let Some((_, mount)) = pod.volumes().next()
        && context.node.kubelets.way(mount.mntns) == Way::Host
    {
        let command = ["kevtmon", "holders", &mount.mountpoint];
        steps.push(advice(form::SHOW_USERS, "see who holds its volume", &command));
    }
    steps.push(advice(form::TELL_POD, "show what is known of the pod", &["kevtmon", "why", label]));
    steps
}

/// How a pod is named in a query.
fn label(target: &Target, uid: &str) -> String {
    match Pod::confirmed(target.pod.as_ref()) {
        Some(pod) => pod_label(pod),
        None => uid.to_owned(),
    }
}

/// That a process is to end and does not, the kernel says. That no container runs does not tell why: of a pod that cannot be
/// started again, all that is left may be, too.
fn confidence(gates: &Gates<'_>) -> Confidence {
    if gates.is_killed() { Confidence::Certain } else { Confidence::Likely }
}

fn causes(context: &Context<'_>, uid: &str) -> Vec<IncidentKey> {
    let of_pod = |kind: &'static str, subject: &str| IncidentKey { kind, subject: subject.to_owned() };
    let cause = |open: &super::OpenIncident| match open.kind() {
        volume_busy::KIND if open.subject.split('/').next() == Some(uid) => {
            Some(of_pod(volume_busy::KIND, &open.subject))
        }
        cni_teardown_failing::KIND if gates::is_sandbox_of(context.node, &open.subject, uid) => {
            Some(of_pod(cni_teardown_failing::KIND, &open.subject))
        }
        umount_hung::KIND => {
            let target = open.objects.target.as_deref().and_then(Target::confirmed_pod);
            target.filter(|pod| pod.uid == uid).map(|_| of_pod(umount_hung::KIND, &open.subject))
        }
        _ => None,
    };
    context.incidents.iter().filter_map(cause).collect()
}

impl Conditions for PodStuckTerminating {
    const SPEC: &'static IncidentKind = &SPEC;
    const HOLD: &'static Threshold = &AFTER;
    type Memory = ();

    fn change(&mut self, _: &Seen<'_, ()>, change: &ModelChange<'_>, _: &mut Findings) -> Look {
        Look::now_if(matches!(
            change,
            ModelChange::PodRemains
                | ModelChange::PodsDeleted
                | ModelChange::Container(_)
                | ModelChange::Runtime
                | ModelChange::RuntimeAvailability
                | ModelChange::CniFinished(..)
                | ModelChange::Ready
        ))
    }

    fn conditions(&mut self, seen: &Seen<'_, ()>, findings: &mut Findings) -> Option<Vec<Condition<()>>> {
        let context = seen.context;
        let pods = context.node.pods_on_node;
        if context.ready.is_none() || !pods.is_read {
            return None;
        }
        self.list_processes(context, findings);
        let any_failing = context.incidents.iter().any(|open| open.kind() == cni_teardown_failing::KIND);
        // Most pods have nothing that could be left: all the rest costs more with each container of the node.
        let may_be_stuck = |(uid, pod): &(&str, &PodOnNode)| {
            any_failing
                || seen.is_open(uid)
                || !pod.seen.mounts.is_empty()
                || !pod.seen.processes.is_empty()
                || pod.has_left_processes()
        };
        let may_be = pods.iter().filter(may_be_stuck);
        Some(may_be.filter_map(|(uid, pod)| condition(seen, uid, pod)).collect())
    }

    fn settle(&self, seen: &Seen<'_, ()>, _: &mut Findings) -> Option<BootNs> {
        seen.open().next().map(|_| seen.context.now.saturating_add(LOOK))
    }

    fn resume(&mut self, _: &Context<'_>, event: &Event) -> Option<(String, ())> {
        Some((event.target.as_deref()?.confirmed_pod()?.uid.clone(), ()))
    }
}
