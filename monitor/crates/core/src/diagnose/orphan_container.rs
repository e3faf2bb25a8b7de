//! A container of a pod is still there though its sandbox is gone.
//!
//! State alone finds it: the lists of the runtime, at start and after each change. Kubelets of about 1.18 to 1.23 end at
//! their start when they find such a container, whether it runs or has ended: they look its sandbox up and give up
//! (`buildContainerMapFromRuntime` in `pkg/kubelet/cm/container_manager_linux.go`). dockershim also counts sandboxes of which
//! it has a checkpoint. Those files go without a sound, so they are looked for as long as the incident is open.

use std::collections::{BTreeMap, BTreeSet};

use kevtmon_event::{CloseReason, Confidence, Event, Kind, Sandbox, Severity, Shared};
use kevtmon_observation::{
    BootNs, ComponentFacts, ContainerFacts, PodIdentity, PodProof, Request, SandboxCheckpoint,
};
use kevtmon_types::settings::{Thresholds, Unit, thresholds};
use kubelet::KubeletImpact;
use serde::{Deserialize, Serialize};

use super::finding::{Findings, IncidentObjects, Report};
use super::timers::Timers;
use super::{
    Alert, CAPACITY, Context, Diagnosis, IncidentKind, ModelChange, OpenIncident, SECOND, STARTUP_GRACE,
    Watch, seconds, start,
};
use crate::node::containers::is_live;
use crate::node::view::{NodeView, RuntimeAvailability};

mod kubelet;
mod wording;

pub(super) const KIND: &str = "orphan-container";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "A container remains though its pod sandbox is gone",
    symptom: "`NotReady`",
    names: "the container with which the kubelet does not start",
    opens: "A container of a pod is still there 30 s after its sandbox is gone.",
    alert: Alert::ByHand,
    meaning: "Kubelets of about 1.18 to 1.23 refuse to start while such a container exists and their runtime does not \
             remember the sandbox.",
    remedy: "Remove the container by the command of the advice, then see who removed the sandbox alone.",
    severities: &[Severity::Info, Severity::Warning],
    counted: "observations",
    thresholds: THRESHOLDS,
    watched_by: Watch::Runtime,
    is_optional: false,
    start: start::<OrphanContainer>,
};

/// What is there at the start was not seen to begin: a list may just have been read while a pod was removed.
const START_DELAY: BootNs = 5 * SECOND;
/// How often the checkpoints of open incidents are looked for.
const LOOK_INTERVAL: BootNs = 5 * SECOND;
/// Orphans that only claim to be of a pod: anybody who may start containers can make as many as he likes.
const CLAIMED_MAX: usize = 64;

thresholds! {
    /// A container whose sandbox was removed may remain for this time.
    ORPHAN_AFTER = "orphan_container_seconds", default 30, Unit::Seconds;
}

/// A container without its sandbox.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Orphan {
    sandbox: String,
    /// When its sandbox was found missing.
    first: BootNs,
    found_at_start: bool,
    is_claimed: bool,
    /// Whether there is a checkpoint of the sandbox, as last looked for.
    checkpoint: Option<bool>,
    /// The event of the removal of its sandbox.
    evidence: Option<u64>,
    is_open: bool,
}

/// What the lists of the runtimes tell about a container.
enum Assessment {
    /// The sandbox that it lacks.
    Orphan(String),
    /// It is gone, or has what it needs.
    Fine,
    /// No list is up to date.
    Unknown,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct OrphanContainer {
    #[serde(skip)]
    thresholds: Thresholds,
    orphans: BTreeMap<String, Orphan>,
    /// When an incident opens.
    timers: Timers<String>,
    /// When what they rest on is looked at again.
    look_at: Option<BootNs>,
}

impl OrphanContainer {
    fn check_all(&mut self, context: &Context<'_>, findings: &mut Findings) {
        let present = context.node.containers.present().filter(|facts| sandbox_of(facts).is_some());
        // In the order of their ids: incidents open in it.
        let ids: BTreeSet<String> =
            present.map(|facts| &facts.id).chain(self.orphans.keys()).cloned().collect();
        ids.iter().for_each(|id| self.check(context, id, findings));
    }

    /// Looks at a container that changed, and at those of which it is the sandbox.
    fn changed(&mut self, context: &Context<'_>, id: &str, findings: &mut Findings) {
        self.check(context, id, findings);
        let containers = context.node.containers;
        // An unknown one is no sandbox that any container could have lost now.
        if containers.get(id).is_some_and(|facts| facts.sandbox) {
            let mut members: Vec<String> = match containers.is_present(id) {
                true => self.lacking(id),
                false => {
                    let its_own = |facts: &&ContainerFacts| sandbox_of(facts) == Some(id);
                    containers.present().filter(its_own).map(|facts| facts.id.clone()).collect()
                }
            };
            members.sort_unstable();
            members.iter().for_each(|member| self.check(context, member, findings));
        }
    }

    fn check(&mut self, context: &Context<'_>, id: &str, findings: &mut Findings) {
        match judge(context.node, id) {
            Assessment::Unknown => {}
            Assessment::Fine => self.forget(id, None, findings),
            Assessment::Orphan(sandbox) if !self.orphans.contains_key(id) => {
                self.found(context, id, sandbox, findings);
            }
            Assessment::Orphan(_) => self.report(context, id, findings),
        }
    }

    /// A container has no sandbox from now on.
    fn found(&mut self, context: &Context<'_>, id: &str, sandbox: String, findings: &mut Findings) {
        let is_confirmed = |facts: &ContainerFacts| facts.pod.as_ref().is_some_and(PodIdentity::is_confirmed);
        let is_claimed = !context.node.containers.get(id).is_some_and(is_confirmed);
        let claimed = self.orphans.values().filter(|orphan| orphan.is_claimed).count();
        if self.orphans.len() >= CAPACITY || is_claimed && claimed >= CLAIMED_MAX {
            return findings.discard();
        }
        let found_at_start = context.ready.is_none_or(|ready| ready == context.now);
        let delay = if found_at_start { START_DELAY } else { seconds(self.thresholds.get(&ORPHAN_AFTER)) };
        self.timers.set(&id.to_owned(), context.now + delay);
        // Together with those that are found at this time: each look is one at all processes.
        self.look_at.get_or_insert(context.now);
        let orphan = Orphan { sandbox, first: context.now, found_at_start, is_claimed, ..Orphan::default() };
        self.orphans.insert(id.to_owned(), orphan);
    }

    fn due(&mut self, context: &Context<'_>, id: &str, findings: &mut Findings) {
        if context.ready.is_none() {
            return self.timers.set(&id.to_owned(), context.now + STARTUP_GRACE);
        }
        match judge(context.node, id) {
            // Its runtime does not answer: nothing opens on what was known before.
            Assessment::Unknown => self.timers.set(&id.to_owned(), context.now + LOOK_INTERVAL),
            Assessment::Fine => self.forget(id, None, findings),
            Assessment::Orphan(_) => {
                if let Some(orphan) = self.orphans.get_mut(id) {
                    orphan.is_open = true;
                }
                self.report(context, id, findings);
            }
        }
    }

    /// Looks again at what the incidents rest on.
    fn look_again(&mut self, context: &Context<'_>, findings: &mut Findings) {
        let has_checkpoints =
            |id: &str| context.node.containers.get(id).is_some_and(kubelet::has_checkpoints);
        let sandboxes =
            self.orphans.iter().filter(|(id, _)| has_checkpoints(id)).map(|(_, orphan)| &orphan.sandbox);
        let sandboxes: BTreeSet<String> = sandboxes.cloned().collect();
        if !sandboxes.is_empty() {
            let sandboxes = sandboxes.into_iter().collect();
            findings.request(Request::SandboxCheckpoints { sandboxes });
        }
        let ids: Vec<String> = self.orphans.keys().cloned().collect();
        self.look_at = (!ids.is_empty()).then(|| context.now + LOOK_INTERVAL);
        ids.iter().for_each(|id| self.check(context, id, findings));
    }

    /// Whether there is a checkpoint is known now.
    fn looked(&mut self, context: &Context<'_>, found: &[SandboxCheckpoint], findings: &mut Findings) {
        for SandboxCheckpoint { sandbox, found } in found {
            for id in self.lacking(sandbox) {
                if let Some(orphan) = self.orphans.get_mut(&id) {
                    orphan.checkpoint = *found;
                }
                self.report(context, &id, findings);
            }
        }
    }

    /// Tells what is known of an orphan whose incident is open.
    fn report(&self, context: &Context<'_>, id: &str, findings: &mut Findings) {
        let node = context.node;
        let open = self.orphans.get(id).filter(|orphan| orphan.is_open);
        let Some((orphan, facts)) = open.zip(node.containers.get(id)) else { return };
        let kubelet = kubelet::last(node);
        let impact = KubeletImpact::of(node, facts, orphan.checkpoint, kubelet);
        let target = node.target_of(facts);
        let is_live = is_live(facts.state);
        // It works, and nothing is in the way of the kubelet.
        let is_fine = is_live && impact.severity() == Severity::Info;
        let summary = wording::summary(&target, &orphan.sandbox, &impact);
        findings.report(Report {
            advice: Some(if is_fine { Vec::new() } else { wording::advice_for(node, &target, is_live) }),
            objects: IncidentObjects {
                sandbox: Some(Box::new(Sandbox {
                    id: orphan.sandbox.clone(),
                    checkpoint: orphan.checkpoint,
                    kubelet_version: kubelet.and_then(|kubelet| kubelet.version.clone()),
                })),
                target: Some(Shared::new(target)),
                ..IncidentObjects::default()
            },
            first: orphan.first,
            evidence: orphan.evidence.into_iter().collect(),
            found_at_start: orphan.found_at_start,
            ..Report::new(id.to_owned(), impact.severity(), confidence(facts), summary, context.now)
        });
    }

    fn lacking(&self, sandbox: &str) -> Vec<String> {
        let of_it = self.orphans.iter().filter(|(_, orphan)| orphan.sandbox == sandbox);
        of_it.map(|(id, _)| id.clone()).collect()
    }

    /// It is over; `evidence`: the event that shows it.
    fn forget(&mut self, id: &str, evidence: Option<u64>, findings: &mut Findings) {
        let Some(orphan) = self.orphans.remove(id) else { return };
        self.timers.cancel(&id.to_owned());
        if orphan.is_open {
            findings.close(id.to_owned(), CloseReason::Resolved, evidence);
        }
        if self.orphans.is_empty() {
            self.look_at = None;
        }
    }
}

impl Diagnosis for OrphanContainer {
    fn event(&mut self, context: &Context<'_>, event: &Event, findings: &mut Findings) {
        let container = event.target.as_ref().and_then(|target| target.container.as_ref());
        let Some(gone) = container.filter(|_| event.kind == Kind::ContainerRemoved) else { return };
        self.forget(&gone.id, Some(event.seq), findings);
        self.changed(context, &gone.id, findings);
        for id in self.lacking(&gone.id) {
            if let Some(orphan) = self.orphans.get_mut(&id) {
                orphan.evidence.get_or_insert(event.seq);
            }
        }
    }

    fn change(&mut self, context: &Context<'_>, change: &ModelChange<'_>, findings: &mut Findings) {
        match change {
            ModelChange::Container(id) => self.changed(context, id, findings),
            ModelChange::Runtime | ModelChange::RuntimeAvailability | ModelChange::Ready => {
                self.check_all(context, findings);
            }
            ModelChange::SandboxCheckpoints(found) => self.looked(context, found, findings),
            _ => {}
        }
    }

    fn tick(&mut self, context: &Context<'_>, findings: &mut Findings) {
        while let Some(id) = self.timers.take_due(context.now) {
            self.due(context, &id, findings);
        }
        if self.look_at.is_some_and(|at| at <= context.now) {
            self.look_again(context, findings);
        }
    }

    fn deadline(&self) -> Option<BootNs> {
        [self.timers.next(), self.look_at].into_iter().flatten().min()
    }

    fn resume(&mut self, context: &Context<'_>, event: &Event) -> Option<String> {
        let (incident, sandbox) = (event.incident.as_ref()?, event.sandbox.as_ref()?);
        let id = event.target.as_ref()?.container.as_ref()?.id.clone();
        let orphan = Orphan {
            sandbox: sandbox.id.clone(),
            first: context.clock.boot_ns(&incident.first_seen).unwrap_or(context.now),
            found_at_start: incident.found_at_start,
            is_claimed: event.target.as_ref().is_some_and(|target| target.is_claimed()),
            checkpoint: sandbox.checkpoint,
            evidence: None,
            is_open: true,
        };
        self.look_at.get_or_insert(context.now + STARTUP_GRACE);
        self.orphans.insert(id.clone(), orphan);
        Some(id)
    }

    with_thresholds!();
}

/// Whether what an open incident tells of may be why this kubelet ended.
pub(super) fn may_end(node: &NodeView<'_>, open: &OpenIncident, kubelet: &ComponentFacts) -> bool {
    let Some(facts) = node.containers.get(open.subject()).filter(|_| open.kind() == KIND) else {
        return false;
    };
    let checkpoint = open.objects().sandbox.as_ref().and_then(|sandbox| sandbox.checkpoint);
    KubeletImpact::of(node, facts, checkpoint, Some(kubelet)).may_end()
}

/// The sandbox that a container needs, if it is of a pod. No kubelet works with Podman.
fn sandbox_of(facts: &ContainerFacts) -> Option<&str> {
    let needs_one = !facts.sandbox && facts.runtime != "podman";
    facts.pod.as_ref().filter(|_| needs_one)?.sandbox_id.as_deref()
}

fn judge(node: &NodeView<'_>, id: &str) -> Assessment {
    let facts = node.containers.get(id).filter(|_| node.containers.is_present(id));
    let Some(facts) = facts else {
        // One that no list has had yet may be that of a runtime that does not answer.
        let is_known = node.containers.get(id).is_some() || node.runtimes == RuntimeAvailability::All;
        return if is_known { Assessment::Fine } else { Assessment::Unknown };
    };
    // One without a status has just sent its first list.
    let is_up = |source: &String| !node.is_down(source);
    match sandbox_of(facts) {
        Some(sandbox) if !node.containers.is_present(sandbox) => {
            match node.containers.sources(id).iter().any(is_up) {
                true => Assessment::Orphan(sandbox.to_owned()),
                false => Assessment::Unknown,
            }
        }
        _ => Assessment::Fine,
    }
}

/// A label names any sandbox; that whose network the container shares, and what the CRI tells, is the runtime's own word.
fn confidence(facts: &ContainerFacts) -> Confidence {
    let is_told = facts.joined_netns || facts.pod.as_ref().is_some_and(|pod| pod.proof == PodProof::Cri);
    let is_confirmed = facts.pod.as_ref().is_some_and(PodIdentity::is_confirmed);
    if is_told && is_confirmed { Confidence::Certain } else { Confidence::Likely }
}

#[cfg(test)]
mod tests;
