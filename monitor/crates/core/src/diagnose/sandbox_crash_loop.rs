//! The kubelet makes one sandbox of a pod after the other, because the runtime cannot start them.
//!
//! Found by the sandboxes alone; those that only claim to be of the pod do not count. While it is open, the lifecycle of these
//! sandboxes is no event of its own: the incident counts them.

use std::collections::{BTreeMap, VecDeque};

use kevtmon_event::wording::{pod_label, target_label};
use kevtmon_event::{CloseReason, Confidence, Event, Kind, Severity, Shared, Target, form};
use kevtmon_observation::{BootNs, ContainerFacts, ContainerState};
use kevtmon_types::escape::name;
use kevtmon_types::settings::{Thresholds, Unit, thresholds};
use serde::{Deserialize, Serialize};

use super::advice::advice;
use super::finding::{Count, Findings, IncidentObjects, Repeat, Report};
use super::timers::Timers;
use super::{Alert, Context, Diagnosis, IncidentKind, Incidents, ModelChange, SECOND, Watch, seconds, start};
use crate::node::containers::is_live;
use crate::node::incarnations::current_sandbox;

pub(super) const KIND: &str = "sandbox-crash-loop";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "A pod gets new sandboxes repeatedly",
    symptom: "`ContainerCreating` without end",
    names: "the pod, and how often its sandbox was created",
    opens: "5 sandboxes of one pod were made within 60 s.",
    alert: Alert::Open { severity: Severity::Warning, minutes: 5 },
    meaning: "The runtime or the CNI plugin cannot bring the pod's network up, and the kubelet tries without end.",
    remedy: "Read the error in the events of the pod and the log of the runtime and the plugin.",
    severities: &[Severity::Warning],
    counted: "sandboxes",
    thresholds: THRESHOLDS,
    watched_by: Watch::Runtime,
    is_optional: false,
    start: start::<SandboxCrashLoop>,
};

const PODS_MAX: usize = 512;
const EVIDENCE_MAX: usize = 8;
/// Without another sandbox it is over after this time.
const QUIET: BootNs = 600 * SECOND;

thresholds! {
    /// A pod with this many new sandboxes is in a crash loop.
    SANDBOXES = "sandbox_crash_loop_sandboxes", default 5, Unit::Count;
    /// It is in one only if they were made within this time.
    WINDOW = "sandbox_crash_loop_seconds", default 60, Unit::Seconds;
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Sandboxes {
    made: VecDeque<BootNs>,
    evidence: VecDeque<u64>,
    is_open: bool,
    namespace: String,
    name: String,
    reason: Option<String>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct SandboxCrashLoop {
    #[serde(skip)]
    thresholds: Thresholds,
    pods: BTreeMap<String, Sandboxes>,
    timers: Timers<String>,
}

/// Whether what happens to a container is told by an open incident alone.
pub fn is_folded(incidents: &Incidents, facts: &ContainerFacts) -> bool {
    let Some(pod) = facts.pod.as_ref().filter(|_| facts.sandbox) else { return false };
    // Anybody who can label a container could hide what it does. One that was only made does nothing, and the kubelet's own
    // are claims as well until their checkpoints are written.
    let may_be = pod.is_confirmed() || facts.state == ContainerState::Created;
    may_be && incidents.iter().any(|open| open.kind() == KIND && open.subject == pod.uid)
}

impl SandboxCrashLoop {
    fn made(&mut self, context: &Context<'_>, facts: &ContainerFacts, findings: &mut Findings) {
        let Some(pod) = facts.pod.as_ref().filter(|pod| pod.is_confirmed()) else { return };
        let subject = pod.uid.clone();
        if !self.pods.contains_key(&subject) && self.pods.len() >= PODS_MAX {
            return findings.discard();
        }
        let window = seconds(self.thresholds.get(&WINDOW));
        let needed = usize::try_from(self.thresholds.get(&SANDBOXES)).unwrap_or(usize::MAX).max(1);
        let known = self.pods.entry(subject.clone()).or_default();
        (known.namespace, known.name) = (pod.namespace.clone(), pod.name.clone());
        known.made.retain(|at| context.now.saturating_sub(*at) <= window);
        crate::bounded::push(&mut known.made, needed, context.now);
        let quiet = if known.is_open { QUIET } else { window };
        self.timers.set(&subject, context.now.saturating_add(quiet));
        if known.is_open {
            return findings.repeat(Repeat::new(subject, context.now, Count::More(1)));
        }
        if known.made.len() < needed {
            return;
        }
        known.is_open = true;
        self.timers.set(&subject, context.now.saturating_add(QUIET));
        let target = context.node.target_of(facts);
        known.reason = facts.incarnation.error.clone();
        let command = target.confirmed_pod().map(pod_label);
        let summary = summary(&target, known);
        findings.report(Report {
            advice: command.map(|pod| {
                vec![advice(form::TELL_POD, "show what is known of the pod", &["kevtmon", "why", &pod])]
            }),
            objects: IncidentObjects { target: Some(Shared::new(target)), ..IncidentObjects::default() },
            first: known.made.front().copied().unwrap_or(context.now),
            evidence: known.evidence.iter().copied().collect(),
            count: Count::Total(u64::try_from(known.made.len()).unwrap_or(u64::MAX)),
            ..Report::new(subject, Severity::Warning, Confidence::Certain, summary, context.now)
        });
    }

    /// The runtime told why a sandbox did not start.
    fn explain(&mut self, context: &Context<'_>, facts: &ContainerFacts, findings: &mut Findings) {
        let Some(pod) = facts.pod.as_ref().filter(|pod| pod.is_confirmed()) else { return };
        let Some(error) = &facts.incarnation.error else { return };
        let subject = pod.uid.clone();
        let Some(known) = self.pods.get_mut(&subject).filter(|known| known.is_open) else { return };
        if known.reason.is_none() {
            known.reason = Some(error.clone());
            findings.restate(subject, summary(&context.node.target_of(facts), known));
        }
    }
}

impl Diagnosis for SandboxCrashLoop {
    fn event(&mut self, context: &Context<'_>, event: &Event, _findings: &mut Findings) {
        if !matches!(event.kind, Kind::ContainerCreated | Kind::ContainerStarted | Kind::ContainerExited) {
            return;
        }
        let container = event.target.as_ref().and_then(|target| target.container.as_ref());
        let facts = container.and_then(|container| context.node.containers.get(&container.id));
        let Some(pod) = facts.filter(|facts| facts.sandbox).and_then(|facts| facts.pod.as_ref()) else {
            return;
        };
        if let Some(known) = self.pods.get_mut(&pod.uid) {
            crate::bounded::push(&mut known.evidence, EVIDENCE_MAX, event.seq);
        }
    }

    fn change(&mut self, context: &Context<'_>, change: &ModelChange<'_>, findings: &mut Findings) {
        let facts = |id: &str| context.node.containers.get(id).filter(|facts| facts.sandbox);
        match change {
            ModelChange::SandboxMade(id) => {
                if let Some(facts) = facts(id) {
                    self.made(context, facts, findings);
                }
            }
            ModelChange::Container(id) => {
                if let Some(facts) = facts(id) {
                    self.explain(context, facts, findings);
                }
            }
            _ => {}
        }
    }

    fn tick(&mut self, context: &Context<'_>, findings: &mut Findings) {
        while let Some(subject) = self.timers.take_due(context.now) {
            let Some(known) = self.pods.remove(&subject).filter(|known| known.is_open) else { continue };
            let current = current_sandbox(context.node.containers, &known.namespace, &known.name);
            let runs = current.is_some_and(|facts| is_live(facts.state));
            let reason = if runs { CloseReason::Resolved } else { CloseReason::Expired };
            findings.close(subject, reason, None);
        }
    }

    fn resume(&mut self, context: &Context<'_>, event: &Event) -> Option<String> {
        let pod = event.target.as_ref()?.pod.as_ref()?;
        let subject = pod.uid.clone();
        let known = Sandboxes {
            is_open: true,
            namespace: pod.namespace.clone()?,
            name: pod.name.clone()?,
            ..Sandboxes::default()
        };
        self.pods.insert(subject.clone(), known);
        self.timers.set(&subject, context.now.saturating_add(QUIET));
        Some(subject)
    }

    with_thresholds!(by timers);
}

fn summary(target: &Target, known: &Sandboxes) -> String {
    let label = target_label(target).unwrap_or_else(|| "a pod".to_owned());
    // Of those that an earlier run of the daemon saw, nothing is known.
    let pace = match (known.made.len(), known.made.front(), known.made.back()) {
        (count @ 2.., Some(first), Some(last)) => format!(", {count} within {} s", (last - first) / SECOND),
        _ => String::new(),
    };
    let reason = known.reason.as_ref();
    let reason = reason.map_or_else(String::new, |reason| format!("; the runtime says {}", name(reason)));
    format!("sandboxes of {label} are created repeatedly{pace}{reason}")
}

#[cfg(test)]
mod tests {
    use kevtmon_observation::*;

    use super::*;
    use crate::Resume;
    use crate::diagnose::tests::harness::*;

    fn node() -> TestNode {
        let mut node = TestNode::booted(Resume::default());
        node.start(Vec::new());
        node.events.clear();
        node
    }

    fn attempt(number: u32, state: ContainerState) -> ContainerFacts {
        let facts = sandbox(&format!("{number:064x}"), 0, "lijiaob", "etcd1-0", CAM_UID);
        ContainerFacts { state, tgid: None, netns: None, ..facts }
    }

    /// A sandbox is made, cannot be started and is removed.
    fn fail(node: &mut TestNode, facts: &ContainerFacts) {
        node.observe(Fact::Container(Box::new(facts.clone())));
        node.observe(Fact::ContainerGone { id: facts.id.clone(), source: "docker".into() });
        node.run_for(S);
    }

    #[test]
    fn a_pod_whose_sandboxes_are_made_again_and_again_is_one_incident_and_no_storm_of_events() {
        let mut node = node();
        for number in 1..=38 {
            fail(&mut node, &attempt(number, ContainerState::Created));
        }
        let incident = &node.open()[0];
        assert_eq!((node.open().len(), incident.count), (1, 38));
        assert_eq!((incident.severity, incident.confidence), (Severity::Warning, Confidence::Certain));
        assert_eq!(incident.summary, "sandboxes of pod lijiaob/etcd1-0 are created repeatedly, 5 within 4 s");
        let events = node.events.iter().filter(|event| event.kind.name().starts_with("container.")).count();
        assert!(events <= 10, "{events} events of single sandboxes");
        let failed = ContainerFacts {
            incarnation: Incarnation { error: Some("no such runtime".into()), ..Incarnation::default() },
            ..attempt(39, ContainerState::Created)
        };
        fail(&mut node, &failed);
        assert!(node.open()[0].summary.ends_with("; the runtime says \"no such runtime\""));
        node.observe(Fact::Container(Box::new(attempt(40, ContainerState::Running))));
        node.run_for(QUIET + S);
        let (kind, incident) = *node.incidents().last().unwrap();
        assert_eq!((kind, incident.close_reason), (Kind::IncidentClosed, Some(CloseReason::Resolved)));
        fail(&mut node, &attempt(41, ContainerState::Created));
        assert_eq!(node.events.last().unwrap().kind, Kind::ContainerRemoved, "they are events again");
    }

    #[test]
    fn a_few_sandboxes_or_a_slow_pace_are_none() {
        let mut node = node();
        for number in 1..=4 {
            fail(&mut node, &attempt(number, ContainerState::Created));
        }
        node.run_for(60 * S);
        for number in 5..=20 {
            node.run_for(20 * S);
            fail(&mut node, &attempt(number, ContainerState::Created));
        }
        assert_eq!(node.kinds(), [""; 0]);
    }

    fn claim(number: u32) -> ContainerFacts {
        let facts = attempt(number, ContainerState::Created);
        let pod = facts.pod.map(|pod| PodIdentity { proof: PodProof::Claimed, ..pod });
        ContainerFacts { pod, ..facts }
    }

    #[test]
    fn claims_open_nothing() {
        let mut node = node();
        for number in 1..=10 {
            fail(&mut node, &claim(number));
        }
        assert_eq!(node.open().len(), 0);
    }

    #[test]
    fn a_sandbox_counts_once_it_is_confirmed_to_be_of_the_pod() {
        let mut node = node();
        for number in 1..=10 {
            node.observe(Fact::Container(Box::new(claim(number))));
            fail(&mut node, &attempt(number, ContainerState::Created));
        }
        assert_eq!((node.open().len(), node.open()[0].count), (1, 10));
        let number = |kind| node.events.iter().filter(|event| event.kind == kind).count();
        assert_eq!(number(Kind::ContainerCreated), 5, "until it opens: none is confirmed when it is made");
        assert_eq!(number(Kind::ContainerRemoved), 4, "those before it opened");
    }

    #[test]
    fn a_claim_does_not_hide_in_the_incident() {
        let mut node = node();
        for number in 1..=5 {
            fail(&mut node, &attempt(number, ContainerState::Created));
        }
        assert_eq!(node.open().len(), 1);
        node.events.clear();
        let claimed = ContainerFacts { state: ContainerState::Running, ..claim(6) };
        fail(&mut node, &claimed);
        let kinds: Vec<&str> = node.events.iter().map(|event| event.kind.name()).collect();
        assert_eq!(kinds, ["container.started", "container.removed"]);
        assert_eq!(node.open()[0].count, 5);
        let target = node.events[0].target.as_ref().unwrap();
        assert!(target.pod.as_ref().is_some_and(|pod| pod.claimed));
    }

    #[test]
    fn it_goes_on_over_a_restart_of_the_daemon() {
        let mut node = node();
        for number in 1..=8 {
            fail(&mut node, &attempt(number, ContainerState::Created));
        }
        let mut next = TestNode::booted(node.resume_state());
        next.start(Vec::new());
        let failed = ContainerFacts {
            incarnation: Incarnation { error: Some("no such runtime".into()), ..Incarnation::default() },
            ..attempt(9, ContainerState::Created)
        };
        fail(&mut next, &failed);
        assert_eq!((next.open().len(), next.open()[0].count), (1, 9));
        assert_eq!(
            next.open()[0].summary,
            "sandboxes of pod lijiaob/etcd1-0 are created repeatedly; the runtime says \"no such runtime\""
        );
        next.run_for(QUIET + S);
        assert_eq!(next.open().len(), 0);
    }
}
