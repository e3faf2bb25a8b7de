//! A pod does not go: its containers have ended, or were killed, and something of it remains on the node.
//!
//! Its end has to pass several gates: processes, its control group, the network of its sandboxes, mounted volumes. Which of
//! them is shut is said, and which are open. That its directory is there says nothing: a kubelet keeps that of a pod that
//! has completed for as long as the API has the pod.

use std::collections::{BTreeMap, BTreeSet};

use gates::Gates;
use kevtmon_event::wording::{pod_label, target_label};
use kevtmon_event::{Advice, CloseReason, Confidence, Event, Pod, Severity, Shared, Target, form};
use kevtmon_observation::{BootNs, Request};
use kevtmon_types::settings::{Thresholds, Unit, thresholds};
use serde::{Deserialize, Serialize};

use super::advice::advice;
use super::finding::{Count, Findings, IncidentKey, IncidentObjects, Report};
use super::volume_busy::mount_object;
use super::{
    CAPACITY, Context, Diagnosis, IncidentKind, ModelChange, SECOND, Watch, cni_teardown_failing, seconds,
};
use super::{umount_hung, volume_busy};
use crate::node::kubelet::Way;
use crate::node::pod_remains::PodOnNode;

mod gates;
#[cfg(test)]
mod tests;

/// As users filter and alert on it.
pub(super) const KIND: &str = "pod-stuck-terminating";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "A pod has ended and something of it is left on the node",
    meaning: "A volume is still mounted, a process still in its control group, a CNI DEL fails, or a process that was \
             killed waits in the kernel; so the pod stays in Terminating.",
    remedy: "The incident says which of these it is, and which process did it; begin there.",
    severities: &[Severity::Warning],
    counted: "observations",
    thresholds: THRESHOLDS,
    watched_by: Watch::None,
    is_optional: false,
    start: |thresholds| Box::new(PodStuckTerminating::new(thresholds)),
};

thresholds! {
    /// Something of a pod that remains is reported once no container of the pod has run for this time; and the first process
    /// of a container that is to end (SIGKILL), once it has waited in the kernel for this time.
    AFTER = "pod_stuck_terminating_seconds", default 60, Unit::Seconds;
}

/// How often it is looked at what is behind an open one.
const LOOK: BootNs = 30 * SECOND;
/// Pods whose processes are requested.
const LISTED_MAX: usize = 32;

/// The diagnosis.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PodStuckTerminating {
    #[serde(skip)]
    thresholds: Thresholds,
    /// What each open incident says, by the uid of the pod; nothing yet of one that an earlier run of the daemon opened.
    open: BTreeMap<String, (String, Vec<String>)>,
    /// Pods whose processes were requested.
    listed: BTreeSet<String>,
    next: Option<BootNs>,
}

impl PodStuckTerminating {
    pub(super) fn new(thresholds: &Thresholds) -> Self {
        let (open, listed, next) = (BTreeMap::new(), BTreeSet::new(), None);
        Self { thresholds: thresholds.clone(), open, listed, next }
    }

    fn review(&mut self, context: &Context<'_>, findings: &mut Findings) {
        let pods = context.node.pods_on_node;
        if context.ready.is_none() || !pods.is_read() {
            // It is reviewed once that is told.
            self.next = None;
            return;
        }
        self.list_processes(context, findings);
        let after = seconds(self.thresholds.get(&AFTER));
        let (mut stuck, mut next) = (BTreeSet::new(), None::<BootNs>);
        let mut wake = |at: BootNs| next = Some(next.map_or(at, |next| next.min(at)));
        let any_failing = context.incidents.iter().any(|open| open.kind() == cni_teardown_failing::KIND);
        // Most pods have nothing that could be left: all the rest costs more with each container of the node.
        let may_be_stuck = |uid: &str, pod: &PodOnNode| {
            any_failing
                || self.open.contains_key(uid)
                || !pod.seen.mounts.is_empty()
                || !pod.seen.processes.is_empty()
                || pod.has_left_processes()
        };
        let may_be: Vec<_> = pods.iter().filter(|(uid, pod)| may_be_stuck(uid, pod)).collect();
        for (uid, pod) in may_be {
            let gates = Gates::of(context, uid, pod);
            let is_open = self.open.contains_key(uid);
            // One that is open needs no time to be believed, as long as one of its gates is shut.
            let kept = || pod.over.filter(|_| is_open && gates.is_kept_shut());
            let Some(since) = gates.since(context.node).or_else(kept) else {
                continue;
            };
            let due = since.saturating_add(after);
            if due > context.now {
                wake(due);
            } else if is_open || self.open.len() < CAPACITY {
                self.report(context, (uid, pod), &gates, since, findings);
            } else {
                findings.discard();
                continue;
            }
            stuck.insert(uid.to_owned());
        }
        for uid in self.open.keys().filter(|uid| !stuck.contains(*uid)).cloned().collect::<Vec<_>>() {
            self.open.remove(&uid);
            findings.close(uid, CloseReason::Resolved, None);
        }
        if !self.open.is_empty() {
            wake(context.now.saturating_add(LOOK));
        }
        self.next = next;
    }

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

    fn report(
        &mut self,
        context: &Context<'_>,
        (uid, pod): (&str, &PodOnNode),
        gates: &Gates<'_>,
        since: BootNs,
        findings: &mut Findings,
    ) {
        let target = context.node.target_of_pod(uid);
        let summary = self.summary(uid, pod, &target, gates);
        let ruled_out = gates.open();
        let causes = causes(context, uid);
        let says = (summary, ruled_out);
        if self.open.get(uid) == Some(&says) {
            for cause in causes {
                findings.link(IncidentKey { kind: KIND, subject: uid.to_owned() }, cause);
            }
            return;
        }
        let is_new = self.open.insert(uid.to_owned(), says.clone()).is_none();
        let (summary, ruled_out) = says;
        let volume = pod.volumes().next();
        findings.report(Report {
            subject: uid.to_owned(),
            severity: Severity::Warning,
            confidence: confidence(gates),
            summary,
            ruled_out: Some(ruled_out),
            advice: Some(steps(context, &label(&target, uid), pod)),
            objects: IncidentObjects {
                target: Some(Shared::new(target)),
                mount: volume.map(|(volume, facts)| Box::new(mount_object(facts, volume))),
                ..IncidentObjects::default()
            },
            first: since,
            last: context.now,
            evidence: Vec::new(),
            count: Count::Total(u64::from(is_new)),
            found_at_start: !pod.ran,
            caused_by: causes,
        });
    }

    fn summary(&self, uid: &str, pod: &PodOnNode, target: &Target, gates: &Gates<'_>) -> String {
        let label = target_label(target).unwrap_or_else(|| format!("pod {uid}"));
        let after = self.thresholds.get(&AFTER);
        let shut = gates.shut();
        match pod.over {
            Some(_) => format!(
                "{label} is still on this node, though no container of it has run for {after} s: {shut}"
            ),
            None => format!("a container of {label} does not end: {shut}"),
        }
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

/// The open incidents that are behind it.
fn causes(context: &Context<'_>, uid: &str) -> Vec<IncidentKey> {
    let of_pod = |kind: &'static str, subject: &str| IncidentKey { kind, subject: subject.to_owned() };
    let cause = |open: &super::OpenIncident| match open.kind() {
        volume_busy::KIND if open.subject().split('/').next() == Some(uid) => {
            Some(of_pod(volume_busy::KIND, open.subject()))
        }
        cni_teardown_failing::KIND if gates::is_sandbox_of(context.node, open.subject(), uid) => {
            Some(of_pod(cni_teardown_failing::KIND, open.subject()))
        }
        umount_hung::KIND => {
            let target = open.objects().target.as_deref().and_then(Target::confirmed_pod);
            target.filter(|pod| pod.uid == uid).map(|_| of_pod(umount_hung::KIND, open.subject()))
        }
        _ => None,
    };
    context.incidents.iter().filter_map(cause).collect()
}

impl Diagnosis for PodStuckTerminating {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn event(&mut self, _context: &Context<'_>, _event: &Event, _findings: &mut Findings) {}

    fn change(&mut self, context: &Context<'_>, change: &ModelChange<'_>, findings: &mut Findings) {
        if matches!(
            change,
            ModelChange::PodRemains
                | ModelChange::Container(_)
                | ModelChange::Runtime
                | ModelChange::RuntimeAvailability
                | ModelChange::CniFinished(..)
                | ModelChange::Ready
        ) {
            self.review(context, findings);
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
        let uid = event.target.as_deref()?.confirmed_pod()?.uid.clone();
        self.open.insert(uid.clone(), (String::new(), Vec::new()));
        Some(uid)
    }

    saved_without_thresholds!();
}
