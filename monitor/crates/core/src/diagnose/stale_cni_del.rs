//! A CNI DEL of an old sandbox of a pod whose newer sandbox lives: plugins that know endpoints by the name of the pod then
//! take the newer one's network.
//!
//! Opens before harm is done: when such a `DEL` fails, so that it will be tried again, or when the newer sandbox is added
//! while one of an older one has failed. Otherwise only when the pod's network is harmed soon after one: a single `DEL` of
//! an old sandbox is normal clean-up. It needs the hook `exec`: no source lists CNI calls.

use std::collections::{BTreeMap, VecDeque};

use kevtmon_event::wording::short_id;
use kevtmon_event::{Actor, CloseReason, Cni, Confidence, Event, Kind, Severity, Shared, Target};
use kevtmon_observation::{BootNs, CniPod, NsInum};
use kevtmon_types::settings::{Thresholds, Unit, thresholds};
use reason::Reason;
use serde::{Deserialize, Serialize};
use wording::{next_step, summary};

use super::advice::advice;
use super::finding::{Count, Findings, IncidentKey, IncidentObjects, Repeat, Report};
use super::flapping::is_own_doing;
use super::timers::Timers;
use super::{
    Alert, CAPACITY, Context, Diagnosis, IncidentKind, ModelChange, SECOND, Watch, cni_teardown_failing,
    gateway_neighbor_lost, ipam_drift, pod_route_missing, seconds, start,
};
use crate::node::cni::Sandbox;
use crate::node::tenant::is_by_itself;
use crate::node::view::NodeView;

mod reason;
mod wording;

pub(super) const KIND: &str = "stale-cni-del";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "A CNI DEL of an old sandbox may hit the newer pod of the same name",
    symptom: "a pod is unreachable",
    names: "the CNI `DEL` of an older sandbox, and what the process of that call deleted",
    opens: "A CNI `DEL` of an old sandbox fails or does damage while a newer sandbox of that pod lives.",
    alert: Alert::ByHand,
    meaning: "Plugins that know endpoints by the pod's name remove the network of the newer pod when the older one is \
             cleaned up late.",
    remedy: "Restart the newer pod if its network is gone; remove the old sandbox so that the call is not repeated.",
    severities: &[Severity::Warning],
    counted: "failed calls",
    thresholds: THRESHOLDS,
    watched_by: Watch::Executions,
    is_optional: false,
    start: start::<StaleCniDel>,
};

const DAMAGING: [&str; 3] = [gateway_neighbor_lost::KIND, pod_route_missing::KIND, ipam_drift::KIND];
/// Without another such call it is over, once the old sandbox is gone.
const QUIET: BootNs = 600 * SECOND;
/// Until then its sandbox is looked for so often.
const LOOK: BootNs = 60 * SECOND;
/// Events of failed calls that are kept as evidence of one sandbox before the incident opens.
const EVIDENCE_MAX: usize = 8;
/// Harms that are kept, and how long: a call of a plugin does not take longer.
const IMPACTS_MAX: usize = 256;
const IMPACTS_OF_POD: usize = 4;
const KEPT: BootNs = 120 * SECOND;

thresholds! {
    /// A CNI DEL of an old sandbox is the cause of what happens to the network of the pod's current one within this time.
    IMPACT_WINDOW = "stale_cni_del_seconds", default 60, Unit::Seconds;
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct StaleCniDel {
    #[serde(skip)]
    thresholds: Thresholds,
    /// Sandboxes whose `DEL` has failed, or was of another sandbox than the current one, by id.
    deletions: BTreeMap<String, Deletions>,
    timers: Timers<String>,
    /// What happened to networks of late: a call may go on after that, and is known to be stale when it has ended.
    impacts: VecDeque<Impact>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Impact {
    at: BootNs,
    seq: u64,
    message: String,
    pod: CniPod,
    sandbox: String,
    target: Option<Shared<Target>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Deletions {
    pod: CniPod,
    /// The newest call, and who made it.
    cni: Box<Cni>,
    actor: Option<Shared<Actor>>,
    evidence: Vec<u64>,
    first: BootNs,
    last: BootNs,
    /// Begin and end of the last one that was of another sandbox than the current one.
    stale: Option<(BootNs, BootNs)>,
    is_open: bool,
    /// It opened by what a call did that had not failed: what it counts has not happened yet.
    has_none_failed: bool,
    /// What it is told to have done may not be taken back.
    is_impact_reported: bool,
}

impl Deletions {
    /// Whether what happened then may come of it.
    fn is_before(&self, at: BootNs, window: BootNs) -> bool {
        self.stale.is_some_and(|(from, until)| from <= at && at <= until.saturating_add(window))
    }
}

impl StaleCniDel {
    fn deleted(&mut self, context: &Context<'_>, event: &Event, cni: &Cni, findings: &mut Findings) {
        let (Some(id), Some(pod)) = (&cni.container_id, pod_of(cni)) else { return };
        let (failed, stale) = (cni.failed() == Some(true), cni.stale == Some(true));
        let is_known = self.deletions.contains_key(id);
        if !is_known {
            if !(failed || stale) {
                return self.ended(context, id, &pod, findings);
            }
            if self.deletions.len() >= CAPACITY {
                return findings.discard();
            }
        }
        let is_retry =
            self.deletions.get(id).is_some_and(|known| known.is_open) && cni.failed() == Some(false);
        let known = self.deletions.entry(id.clone()).or_insert_with(|| Deletions {
            pod,
            cni: Box::new(cni.clone()),
            actor: None,
            evidence: Vec::new(),
            first: event.at,
            last: event.at,
            stale: None,
            is_open: false,
            has_none_failed: false,
            is_impact_reported: false,
        });
        *known.cni = cni.clone();
        known.actor.clone_from(&event.actor);
        known.last = event.at;
        if stale {
            let took = cni.duration_ms.unwrap_or(0).saturating_mul(SECOND / 1000);
            known.stale = Some((event.at.saturating_sub(took), event.at));
        }
        if known.evidence.len() < EVIDENCE_MAX {
            known.evidence.push(event.seq);
        }
        if failed && stale {
            self.open(context, id, &Reason::Failed(event.seq), findings);
        } else if known.is_open {
            let count = Count::More(if failed { known.more() } else { 0 });
            findings.repeat(Repeat { evidence: Some(event.seq), ..Repeat::new(id.clone(), event.at, count) });
        } else if !failed && !stale {
            self.deletions.remove(id);
            return self.timers.cancel(id);
        }
        self.timers.set(id, event.at.saturating_add(QUIET));
        if stale {
            self.blame(context, findings);
        }
        // Unless it has done what was feared.
        if is_retry && self.deletions.get(id).is_some_and(|known| !known.is_impact_reported) {
            self.open(context, id, &Reason::Succeeded, findings);
        }
    }

    /// A `DEL` of a newer sandbox has succeeded: what went with that is none of the harms that older ones are feared to do.
    fn ended(&self, context: &Context<'_>, id: &str, pod: &CniPod, findings: &mut Findings) {
        let made = |id: &str| context.node.sandbox_made(id);
        let older = self
            .deletions
            .iter()
            .filter(|(old, known)| known.is_open && is_same(&known.pod, pod) && made(old) < made(id));
        for (old, known) in older {
            let text = format!(
                "a DEL of sandbox {} itself, which is newer, succeeded: what went with that was not taken by another",
                short_id(id)
            );
            findings.advise(
                old.clone(),
                Some(vec![text]),
                vec![next_step(old, known.cni.failed() != Some(false))],
            );
        }
    }

    fn added(&mut self, context: &Context<'_>, pod: &CniPod, seq: Option<u64>, findings: &mut Findings) {
        let has_failed = |id: &str| context.node.cni.get(id).is_some_and(|known| known.failed > 0);
        let older = self.deletions.iter().filter(|(id, known)| {
            is_same(&known.pod, pod)
                && has_failed(id)
                && context.node.is_stale(id, pod) == Some(true)
                && (seq.is_some() || !known.is_open)
        });
        let older: Vec<String> = older.map(|(id, _)| id.clone()).collect();
        for id in older {
            self.open(context, &id, &Reason::Added(seq), findings);
        }
    }

    fn affected(&mut self, context: &Context<'_>, event: &Event, findings: &mut Findings) {
        let Some((pod, sandbox)) = affected_pod(context, event) else { return };
        let both = event.actor.as_deref().zip(event.target.as_deref());
        if both.is_some_and(|(actor, target)| is_by_itself(actor, target)) {
            return;
        }
        // Its own end.
        if context.node.cni.is_deleted_about(&sandbox, event.at, self.window()) {
            return;
        }
        let is_his = |impact: &Impact| is_same(&impact.pod, &pod);
        if self.impacts.iter().filter(|impact| is_his(impact)).count() >= IMPACTS_OF_POD
            && let Some(oldest) = self.impacts.iter().position(is_his)
        {
            self.impacts.remove(oldest);
        } else if self.impacts.len() >= IMPACTS_MAX {
            self.impacts.pop_front();
        }
        // It is blamed on that when it has ended, rather than on what came before.
        let is_under_way = context.node.cni.is_other_being_deleted(&pod, &sandbox);
        let (message, target) = (event.message.clone(), event.target.clone());
        self.impacts.push_back(Impact { at: event.at, seq: event.seq, message, pod, sandbox, target });
        if !is_under_way {
            self.blame(context, findings);
        }
    }

    /// Opens the incidents of stale calls that harms can come of.
    fn blame(&mut self, context: &Context<'_>, findings: &mut Findings) {
        if !self.deletions.values().any(|known| known.stale.is_some()) {
            // No cause for any of them, on a node on which much else happens: only time matters.
            let is_over = |impact: &Impact| context.now >= impact.at.saturating_add(KEPT);
            while self.impacts.front().is_some_and(is_over) {
                self.impacts.pop_front();
            }
            return;
        }
        let window = self.window();
        for impact in std::mem::take(&mut self.impacts) {
            let causes = self.deletions.iter().filter(|(id, known)| {
                **id != impact.sandbox
                    && is_same(&known.pod, &impact.pod)
                    && known.is_before(impact.at, window)
            });
            let causes: Vec<String> = causes.map(|(id, _)| id.clone()).collect();
            for id in &causes {
                self.open(context, id, &Reason::Affected(&impact), findings);
            }
            if causes.is_empty() && context.now < impact.at.saturating_add(KEPT) {
                self.impacts.push_back(impact);
            }
        }
    }

    fn window(&self) -> BootNs {
        seconds(self.thresholds.get(&IMPACT_WINDOW))
    }

    fn open(&mut self, context: &Context<'_>, id: &str, reason: &Reason<'_>, findings: &mut Findings) {
        let Some(known) = self.deletions.get_mut(id) else { return };
        let was_open = std::mem::replace(&mut known.is_open, true);
        let (seq, impact) = (reason.seq(), reason.impact());
        let current = context.node.current_sandbox(&known.pod.namespace, &known.pod.name);
        let current = current.map(|(current, _)| current.to_owned());
        let target = current.as_deref().and_then(|id| context.node.containers.get(id));
        let target = target.map(|facts| context.node.target_of(facts)).or_else(|| {
            let target = impact.and_then(|impact| impact.target.as_deref());
            target.cloned()
        });
        let calls = context.node.cni.get(id);
        let first = calls.and_then(|calls| calls.failed_from).unwrap_or(known.first);
        // Else it follows only from that its beginning was not seen.
        let made = |id: &str| context.node.sandbox_made(id);
        let current_made = current.as_deref().and_then(made);
        let is_older = made(id).is_some() || current_made.is_some_and(|made| known.first < made);
        // What an open one has is not repeated.
        let mut evidence = if was_open { Vec::new() } else { known.evidence.clone() };
        evidence.extend(seq.filter(|seq| !evidence.contains(seq)));
        let total = calls.map_or(0, |calls| calls.failed);
        if !was_open {
            known.has_none_failed = total == 0;
        }
        known.is_impact_reported |= impact.is_some();
        let confidence = if is_older { reason.confidence() } else { Confidence::Likely };
        let summary = summary(known, id, current.as_deref(), reason);
        let last = impact.map_or(known.last, |impact| impact.at.max(known.last));
        findings.report(Report {
            ruled_out: reason.ruled_out(),
            advice: Some(vec![next_step(id, !matches!(reason, Reason::Succeeded))]),
            objects: IncidentObjects {
                actor: known.actor.clone(),
                target: target.map(Shared::new),
                cni: Some(known.cni.clone()),
                ..IncidentObjects::default()
            },
            first,
            evidence,
            count: match (was_open, reason) {
                // It may have counted calls that an earlier run of the daemon saw.
                (true, Reason::Failed(_)) => Count::More(known.more()),
                (true, Reason::Succeeded) => Count::More(0),
                _ => Count::Total(total.max(1)),
            },
            caused_by: vec![IncidentKey { kind: cni_teardown_failing::KIND, subject: id.to_owned() }],
            ..Report::new(id.to_owned(), Severity::Warning, confidence, summary, last)
        });
        self.timers.set(&id.to_owned(), context.now.saturating_add(QUIET));
    }

    /// Links the lost gateways and routes of a pod to what came shortly before.
    fn link(&self, context: &Context<'_>, findings: &mut Findings) {
        // Of every event and every change of the model.
        let is_cause = |known: &Deletions| known.is_open && known.stale.is_some();
        if !self.deletions.values().any(is_cause) {
            return;
        }
        let window = self.window();
        for lost in context.incidents.iter() {
            let Some(&kind) = DAMAGING.iter().find(|kind| **kind == lost.kind()) else { continue };
            let IncidentObjects { target, neighbor, .. } = &lost.objects;
            if is_own_doing(&lost.objects) {
                continue;
            }
            let netns = neighbor.as_ref().map(|neighbor| neighbor.netns);
            let pod = pod_at(context.node, target.as_deref(), netns);
            let first = context.clock.boot_ns(&lost.incident.first_seen);
            let Some((pod, first)) = pod.zip(first) else { continue };
            let causes = self.deletions.iter().filter(|(_, known)| {
                is_cause(known) && is_same(&pod, &known.pod) && known.is_before(first, window)
            });
            for (id, _) in causes {
                let effect = IncidentKey { kind, subject: lost.subject.clone() };
                findings.link(effect, IncidentKey { kind: KIND, subject: id.clone() });
            }
        }
    }
}

impl Deletions {
    /// How many more a failed call makes.
    fn more(&mut self) -> u64 {
        u64::from(!std::mem::take(&mut self.has_none_failed))
    }
}

impl Diagnosis for StaleCniDel {
    fn event(&mut self, context: &Context<'_>, event: &Event, findings: &mut Findings) {
        match (event.kind, &event.cni) {
            (Kind::CniFinished, Some(cni)) if cni.command == "DEL" => {
                self.deleted(context, event, cni, findings);
            }
            (Kind::CniFinished, Some(cni)) if cni.command == "ADD" && cni.failed() == Some(false) => {
                if let Some(pod) = pod_of(cni) {
                    self.added(context, &pod, Some(event.seq), findings);
                }
            }
            (Kind::NeighborDeleted | Kind::NeighborChanged | Kind::NeighborFailed, _)
                if event.severity >= Severity::Warning =>
            {
                self.affected(context, event, findings);
            }
            (Kind::LinkDeleted | Kind::RouteDeleted, _) => self.affected(context, event, findings),
            _ => {}
        }
        self.link(context, findings);
    }

    fn change(&mut self, context: &Context<'_>, change: &ModelChange<'_>, findings: &mut Findings) {
        // Some runtimes tell of a sandbox only after it was added.
        if let ModelChange::SandboxMade(id) | ModelChange::Container(id) = change {
            let calls = context.node.cni.get(id).filter(|calls| calls.is_added);
            if let Some(pod) = calls.and_then(|calls| calls.pod.clone()) {
                self.added(context, &pod, None, findings);
            }
        }
        if !matches!(change, ModelChange::Refused(_)) {
            self.link(context, findings);
        }
    }

    fn tick(&mut self, context: &Context<'_>, findings: &mut Findings) {
        self.link(context, findings);
        while let Some(id) = self.timers.take_due(context.now) {
            if context.node.has_sandbox(&id) {
                self.timers.set(&id, context.now.saturating_add(LOOK));
            } else if self.deletions.remove(&id).is_some_and(|known| known.is_open) {
                let is_deleted = context.node.cni.get(&id).is_some_and(|known| known.is_deleted);
                let reason = if is_deleted { CloseReason::Resolved } else { CloseReason::SubjectGone };
                findings.close(id, reason, None);
            }
        }
    }

    fn resume(&mut self, context: &Context<'_>, event: &Event) -> Option<String> {
        let (cni, incident) = (event.cni.as_deref()?, event.incident.as_deref()?);
        let (id, pod) = (cni.container_id.clone()?, pod_of(cni)?);
        let time = |text: &str| context.clock.boot_ns(text).unwrap_or(context.now);
        let known = Deletions {
            pod,
            cni: Box::new(cni.clone()),
            actor: event.actor.clone(),
            evidence: Vec::new(),
            first: time(&incident.first_seen),
            last: time(&incident.last_seen),
            stale: None,
            is_open: true,
            has_none_failed: false,
            // It is not known of an earlier run of the daemon.
            is_impact_reported: true,
        };
        self.timers.set(&id, known.last.saturating_add(QUIET));
        self.deletions.insert(id.clone(), known);
        Some(id)
    }

    with_thresholds!(by timers);
}

fn pod_of(cni: &Cni) -> Option<CniPod> {
    Some(CniPod { namespace: cni.namespace.clone()?, name: cni.pod.clone()?, uid: None })
}

/// Whether two are of the same name: what knows endpoints by it does not tell them apart.
fn is_same(pod: &CniPod, other: &CniPod) -> bool {
    (&pod.namespace, &pod.name) == (&other.namespace, &other.name)
}

/// The pod that something happened to: as a runtime tells it, or else by the network namespace that its sandbox was added
/// in.
fn pod_at(node: &NodeView<'_>, target: Option<&Target>, netns: Option<NsInum>) -> Option<CniPod> {
    let known = target.and_then(Target::confirmed_pod).and_then(|pod| {
        Some(CniPod { namespace: pod.namespace.clone()?, name: pod.name.clone()?, uid: None })
    });
    known.or_else(|| {
        let netns = netns.filter(|netns| *netns != node.host_netns)?;
        let is_its = |(id, known): &(&str, &Sandbox)| known.netns == Some(netns) && node.is_sandbox_alive(id);
        node.cni.sandboxes().filter(is_its).max_by_key(|(_, known)| known.added)?.1.pod.clone()
    })
}

/// The pod whose current sandbox an event happened to, and that sandbox.
fn affected_pod(context: &Context<'_>, event: &Event) -> Option<(CniPod, String)> {
    let netns = event.neighbor.as_ref().map(|neighbor| neighbor.netns);
    let netns = netns.or_else(|| event.route.as_ref().map(|route| route.netns));
    // Of a pair, the end on the host is told as well.
    let of_link = || {
        let link = event.link.as_deref()?;
        let other = link.peer.as_ref().and_then(|peer| peer.netns);
        [Some(link.netns), other].into_iter().flatten().find(|netns| *netns != context.node.host_netns)
    };
    let netns = netns.or_else(of_link);
    let pod = pod_at(context.node, event.target.as_deref(), netns)?;
    let (current, _) = context.node.current_sandbox(&pod.namespace, &pod.name)?;
    Some((pod, current.to_owned()))
}

#[cfg(test)]
mod tests;
