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
use kevtmon_types::settings::{Threshold, Unit, thresholds};
use kubelet::KubeletImpact;
use serde::{Deserialize, Serialize};

use super::conditions::{Condition, Conditions, Known, Look, Seen, start};
use super::finding::{Findings, IncidentObjects, Report};
use super::{Alert, Context, IncidentKind, ModelChange, OpenIncident, SECOND, Watch};
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

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Orphan {
    sandbox: String,
    found_at_start: bool,
    is_claimed: bool,
}

impl Orphan {
    fn found(context: &Context<'_>, facts: &ContainerFacts) -> Self {
        Self {
            sandbox: sandbox_of(facts).unwrap_or_default().to_owned(),
            found_at_start: context.ready.is_none_or(|ready| ready == context.now),
            is_claimed: !facts.pod.as_ref().is_some_and(PodIdentity::is_confirmed),
        }
    }
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Lost {
    /// Whether there is a checkpoint of it, as last looked for.
    checkpoint: Option<bool>,
    /// The event of its removal.
    removed: Option<u64>,
}

/// What the lists of the runtimes tell about a container.
enum Assessment<'a> {
    Orphan(&'a ContainerFacts),
    /// It is gone, or has what it needs.
    Fine,
    /// No list is up to date.
    Unknown,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct OrphanContainer {
    lost: BTreeMap<String, Lost>,
    /// When what they rest on is looked at again.
    look_at: BootNs,
}

impl OrphanContainer {
    /// Keeps what is known of the sandboxes that are lacked, and has their checkpoints looked for: all at once, since each look is
    /// one at all processes.
    fn follow(
        &mut self,
        now: BootNs,
        lacked: &BTreeSet<&str>,
        orphans: &[(&ContainerFacts, Orphan)],
        findings: &mut Findings,
    ) {
        self.lost.retain(|sandbox, _| lacked.contains(sandbox.as_str()));
        for sandbox in lacked {
            self.lost.entry((*sandbox).to_owned()).or_default();
        }
        if lacked.is_empty() {
            self.look_at = 0;
        } else if self.look_at <= now {
            self.look_at = now.saturating_add(LOOK_INTERVAL);
            let orphans = orphans.iter().filter(|(facts, _)| kubelet::has_checkpoints(facts));
            let sandboxes: BTreeSet<String> = orphans.map(|(_, orphan)| orphan.sandbox.clone()).collect();
            if !sandboxes.is_empty() {
                let sandboxes = sandboxes.into_iter().collect();
                findings.request(Request::SandboxCheckpoints { sandboxes });
            }
        }
    }

    fn report(&self, context: &Context<'_>, facts: &ContainerFacts, orphan: &Orphan) -> Report {
        let node = context.node;
        let Lost { checkpoint, removed } = self.lost.get(&orphan.sandbox).copied().unwrap_or_default();
        let kubelet = kubelet::last(node);
        let impact = KubeletImpact::of(node, facts, checkpoint, kubelet);
        let target = node.target_of(facts);
        let is_live = is_live(facts.state);
        // It works, and nothing is in the way of the kubelet.
        let is_fine = is_live && impact.severity() == Severity::Info;
        let summary = wording::summary(&target, &orphan.sandbox, &impact);
        Report {
            advice: Some(if is_fine { Vec::new() } else { wording::advice_for(node, &target, is_live) }),
            objects: IncidentObjects {
                sandbox: Some(Box::new(Sandbox {
                    id: orphan.sandbox.clone(),
                    checkpoint,
                    kubelet_version: kubelet.and_then(|kubelet| kubelet.version.clone()),
                })),
                target: Some(Shared::new(target)),
                ..IncidentObjects::default()
            },
            evidence: removed.into_iter().collect(),
            found_at_start: orphan.found_at_start,
            ..Report::new(facts.id.clone(), impact.severity(), confidence(facts), summary, context.now)
        }
    }
}

impl Conditions for OrphanContainer {
    const SPEC: &'static IncidentKind = &SPEC;
    const HOLD: &'static Threshold = &ORPHAN_AFTER;
    type Memory = Orphan;

    fn event(&mut self, seen: &Seen<'_, Orphan>, event: &Event, findings: &mut Findings) -> Look {
        let container = event.target.as_ref().and_then(|target| target.container.as_ref());
        let Some(gone) = container.filter(|_| event.kind == Kind::ContainerRemoved) else { return Look::No };
        if seen.is_open(&gone.id) {
            findings.close(gone.id.clone(), CloseReason::Resolved, Some(event.seq));
        }
        let mut present = seen.context.node.containers.present();
        if present.any(|facts| sandbox_of(facts) == Some(gone.id.as_str())) {
            self.lost.entry(gone.id.clone()).or_default().removed.get_or_insert(event.seq);
        }
        Look::Now
    }

    fn change(&mut self, _: &Seen<'_, Orphan>, change: &ModelChange<'_>, _: &mut Findings) -> Look {
        match change {
            ModelChange::SandboxCheckpoints(found) => {
                for SandboxCheckpoint { sandbox, found } in *found {
                    self.lost.entry(sandbox.clone()).or_default().checkpoint = *found;
                }
            }
            ModelChange::Container(_)
            | ModelChange::Runtime
            | ModelChange::RuntimeAvailability
            | ModelChange::Ready => {}
            _ => return Look::No,
        }
        Look::Now
    }

    fn conditions(
        &mut self,
        seen: &Seen<'_, Orphan>,
        findings: &mut Findings,
    ) -> Option<Vec<Condition<Orphan>>> {
        let (context, node) = (seen.context, seen.context.node);
        let of_pods = node.containers.present().filter(|facts| sandbox_of(facts).is_some());
        let ids: BTreeSet<&str> = of_pods.map(|facts| facts.id.as_str()).chain(seen.open()).collect();
        let mut claimed = seen.memories().filter(|orphan| orphan.is_claimed).count();
        let (mut orphans, mut unknown) = (Vec::new(), Vec::new());
        for id in ids {
            let known = seen.memory(id);
            match judge(node, id) {
                Assessment::Fine => {}
                Assessment::Unknown => unknown.extend(known.map(|orphan| (id, orphan))),
                Assessment::Orphan(facts) => {
                    let orphan = known.cloned().unwrap_or_else(|| Orphan::found(context, facts));
                    if orphan.is_claimed && known.is_none() {
                        if claimed >= CLAIMED_MAX {
                            findings.discard();
                            continue;
                        }
                        claimed += 1;
                    }
                    orphans.push((facts, orphan));
                }
            }
        }
        let lacked =
            orphans.iter().map(|(_, orphan)| orphan).chain(unknown.iter().map(|(_, orphan)| *orphan));
        let lacked: BTreeSet<&str> = lacked.map(|orphan| orphan.sandbox.as_str()).collect();
        self.follow(context.now, &lacked, &orphans, findings);
        let unknown = unknown.iter().map(|(id, _)| Condition::unknown((*id).to_owned()));
        let orphans = orphans.iter().map(|(facts, orphan)| Condition {
            hold: orphan.found_at_start.then_some(START_DELAY),
            memory: orphan.clone(),
            ..Condition::new(self.report(context, facts, orphan))
        });
        Some(orphans.chain(unknown).collect())
    }

    fn settle(&self, _: &Seen<'_, Orphan>, _: &mut Findings) -> Option<BootNs> {
        (!self.lost.is_empty()).then_some(self.look_at)
    }

    /// What is advised depends on more than what is said.
    fn is_news(_: &Known<Orphan>, _: &Report, _: &Orphan) -> bool {
        true
    }

    fn resume(&mut self, _: &Context<'_>, event: &Event) -> Option<(String, Orphan)> {
        let (incident, sandbox) = (event.incident.as_ref()?, event.sandbox.as_ref()?);
        let target = event.target.as_ref()?;
        let orphan = Orphan {
            sandbox: sandbox.id.clone(),
            found_at_start: incident.found_at_start,
            is_claimed: target.is_claimed(),
        };
        self.lost.insert(sandbox.id.clone(), Lost { checkpoint: sandbox.checkpoint, removed: None });
        Some((target.container.as_ref()?.id.clone(), orphan))
    }
}

/// Whether what an open incident tells of may be why this kubelet ended.
pub(super) fn may_end(node: &NodeView<'_>, open: &OpenIncident, kubelet: &ComponentFacts) -> bool {
    let Some(facts) = node.containers.get(&open.subject).filter(|_| open.kind() == KIND) else {
        return false;
    };
    let checkpoint = open.objects.sandbox.as_ref().and_then(|sandbox| sandbox.checkpoint);
    KubeletImpact::of(node, facts, checkpoint, Some(kubelet)).may_end()
}

/// The sandbox that a container needs, if it is of a pod. No kubelet works with Podman.
fn sandbox_of(facts: &ContainerFacts) -> Option<&str> {
    let needs_one = !facts.sandbox && facts.runtime != "podman";
    facts.pod.as_ref().filter(|_| needs_one)?.sandbox_id.as_deref()
}

fn judge<'a>(node: &NodeView<'a>, id: &str) -> Assessment<'a> {
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
                true => Assessment::Orphan(facts),
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
