//! A kubelet ends again and again soon after its start, so that the node is not ready and its pods are not looked after.
//!
//! Found by its process alone. An end that somebody asked for, with exit code 0 or by SIGTERM, does not count.

use std::collections::{BTreeMap, VecDeque};

use kevtmon_event::{CloseReason, Component, Confidence, Event, Kind, Severity, form};
use kevtmon_observation::BootNs;
use kevtmon_types::settings::{Thresholds, Unit, thresholds};
use serde::{Deserialize, Serialize};

use super::advice::advice;
use super::finding::{Count, Findings, IncidentKey, IncidentObjects, Report};
use super::timers::Timers;
use super::{Alert, Context, Diagnosis, IncidentKind, SECOND, Watch, orphan_container, start};

pub(super) const KIND: &str = "kubelet-crash-loop";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "The kubelet ends repeatedly soon after its start",
    symptom: "`NotReady`",
    names: "how the kubelet ends",
    opens: "A kubelet ended 3 times within 5 min, each time soon after its start.",
    alert: Alert::Open { severity: Severity::Critical, minutes: 0 },
    meaning: "No pod of this node is managed meanwhile: none starts, none is removed, and the node becomes NotReady.",
    remedy: "Read the last lines of its log; an orphan container or a wrong configuration are usual reasons.",
    severities: &[Severity::Warning],
    counted: "ends of the kubelet",
    thresholds: THRESHOLDS,
    watched_by: Watch::None,
    is_optional: false,
    start: start::<KubeletCrashLoop>,
};

const PROGRAM: &str = "kubelet";
const SIGTERM: i32 = 15;
/// Programs that are followed; only root of the node adds one.
const PROGRAMS_MAX: usize = 16;
const EXITS_MAX: usize = 64;
/// Ends within this time are one loop: the service is started again after some seconds.
const WINDOW: BootNs = 300 * SECOND;
/// A kubelet that runs for this long is out of it.
const STABLE: BootNs = 120 * SECOND;
/// A kubelet that is not started any more is not in one either.
const QUIET: BootNs = 600 * SECOND;

thresholds! {
    /// A kubelet that ends this often within five minutes, soon after its starts, is in a crash loop.
    EXITS = "kubelet_crash_loop_exits", default 3, Unit::Count;
    /// Soon is before it ran for this time.
    SOON = "kubelet_crash_loop_seconds", default 60, Unit::Seconds;
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Loop {
    exits: VecDeque<(BootNs, u64)>,
    is_open: bool,
    count: u64,
    first: BootNs,
    last: BootNs,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct KubeletCrashLoop {
    #[serde(skip)]
    thresholds: Thresholds,
    loops: BTreeMap<String, Loop>,
    timers: Timers<String>,
}

impl KubeletCrashLoop {
    fn exited(
        &mut self,
        context: &Context<'_>,
        event: &Event,
        component: &Component,
        findings: &mut Findings,
    ) {
        let subject = subject(component);
        if !self.loops.contains_key(&subject) && self.loops.len() >= PROGRAMS_MAX {
            return findings.discard();
        }
        let known = self.loops.entry(subject.clone()).or_default();
        known.exits.retain(|(at, _)| event.at.saturating_sub(*at) <= WINDOW);
        crate::bounded::push(&mut known.exits, EXITS_MAX, (event.at, event.seq));
        self.timers.set(&subject, context.now.saturating_add(STABLE));
        let needed = usize::try_from(self.thresholds.get(&EXITS)).unwrap_or(usize::MAX);
        if !known.is_open && known.exits.len() < needed.max(1) {
            return;
        }
        let evidence = match known.is_open {
            true => vec![event.seq],
            false => known.exits.iter().map(|(_, seq)| *seq).collect(),
        };
        if !std::mem::replace(&mut known.is_open, true) {
            known.first = known.exits.front().map_or(event.at, |(at, _)| *at);
        }
        known.count += u64::try_from(evidence.len()).unwrap_or(1);
        known.last = event.at;
        // What lets this kubelet start all the same is no cause.
        let kubelet = context.node.components.named(PROGRAM).find(|facts| {
            facts.tgid == component.pid && facts.started_ns.to_string() == component.start_time_ns
        });
        let causes = context.incidents.iter().filter(|open| {
            kubelet.is_some_and(|kubelet| orphan_container::may_end(context.node, open, kubelet))
        });
        // Before Linux 6.15 the kernel does not tell whether it was asked to end.
        let confidence = match component.exit_code.or(component.signal) {
            Some(_) => Confidence::Certain,
            None => Confidence::Likely,
        };
        findings.report(Report {
            advice: Some(vec![advice(
                form::SHOW_LOG,
                "show why it ended, if it is a service of systemd",
                &["journalctl", "--unit", PROGRAM, "--lines", "50"],
            )]),
            objects: IncidentObjects {
                component: Some(Box::new(component.clone())),
                ..IncidentObjects::default()
            },
            first: known.first,
            evidence,
            count: Count::Total(known.count),
            caused_by: causes
                .map(|open| IncidentKey { kind: orphan_container::KIND, subject: open.subject.clone() })
                .collect(),
            ..Report::new(subject, Severity::Warning, confidence, summary(component), known.last)
        });
    }

    fn review(&mut self, context: &Context<'_>, subject: String, findings: &mut Findings) {
        let Some(known) = self.loops.get(&subject) else { return };
        let kubelets = context.node.components.running.iter().filter(|facts| facts.name == PROGRAM);
        let is_stable = kubelets
            .filter(|facts| self::subject(&Component::from(*facts)) == subject)
            .any(|facts| context.now >= facts.started_ns.saturating_add(STABLE));
        let last = known.exits.back().map_or(known.last, |(at, _)| *at);
        let reason = if is_stable {
            CloseReason::Resolved
        } else if context.now >= last.saturating_add(QUIET) {
            CloseReason::Expired
        } else {
            return self.timers.set(&subject, context.now.saturating_add(STABLE));
        };
        if self.loops.remove(&subject).is_some_and(|known| known.is_open) {
            findings.close(subject, reason, None);
        }
    }
}

impl Diagnosis for KubeletCrashLoop {
    fn event(&mut self, context: &Context<'_>, event: &Event, findings: &mut Findings) {
        let (Kind::ComponentExited, Some(component)) = (event.kind, &event.component) else { return };
        let was_asked = component.exit_code == Some(0) || component.signal == Some(SIGTERM);
        let soon = f64::from(self.thresholds.get(&SOON));
        let is_soon = component.lifetime_s.is_some_and(|lifetime| lifetime < soon);
        if component.name == PROGRAM && is_soon && !was_asked {
            self.exited(context, event, component, findings);
        }
    }

    fn tick(&mut self, context: &Context<'_>, findings: &mut Findings) {
        while let Some(subject) = self.timers.take_due(context.now) {
            self.review(context, subject, findings);
        }
    }

    fn resume(&mut self, context: &Context<'_>, event: &Event) -> Option<String> {
        let (component, incident) = (event.component.as_deref()?, event.incident.as_ref()?);
        let time = |text: &str| context.clock.boot_ns(text).unwrap_or(context.now);
        let subject = subject(component);
        let known = Loop {
            exits: VecDeque::new(),
            is_open: true,
            count: incident.count,
            first: time(&incident.first_seen),
            last: time(&incident.last_seen),
        };
        self.loops.insert(subject.clone(), known);
        self.timers.set(&subject, context.now.saturating_add(STABLE));
        Some(subject)
    }

    with_thresholds!(by timers);
}

/// A kubelet is told from another one of the node by its program.
fn subject(component: &Component) -> String {
    component.exe.as_deref().unwrap_or(PROGRAM).trim_end_matches(" (deleted)").to_owned()
}

fn summary(component: &Component) -> String {
    let how = match (component.signal, component.exit_code) {
        (Some(signal), _) => format!(" by signal {signal}"),
        (None, Some(code)) => format!(" with exit code {code}"),
        (None, None) => String::new(),
    };
    let after = component
        .lifetime_s
        .map_or_else(String::new, |lifetime| format!(", {lifetime:.1} s after its start"));
    format!("the kubelet ends repeatedly soon after its start; {} ended{how}{after}", component.label())
}

#[cfg(test)]
mod tests {
    use kevtmon_observation::*;

    use super::*;
    use crate::Resume;
    use crate::diagnose::tests::harness::*;

    fn kubelet(tgid: u32, started_ns: BootNs) -> ComponentFacts {
        let exe = Some("/usr/bin/kubelet".to_owned());
        ComponentFacts {
            name: PROGRAM.into(),
            tgid,
            started_ns,
            exe,
            version: Some("v1.20.2".into()),
            remote_runtime: None,
            cni_dirs: Default::default(),
        }
    }

    /// A kubelet of the next number starts, and ends after this time.
    fn run(node: &mut TestNode, tgid: u32, name: &str, lifetime: BootNs, code: Option<i32>) {
        run_as(node, ComponentFacts { name: name.into(), ..kubelet(tgid, node.now) }, lifetime, code);
    }

    fn run_as(node: &mut TestNode, facts: ComponentFacts, lifetime: BootNs, code: Option<i32>) {
        let (tgid, started_ns) = facts.key();
        node.observe(Fact::Components { components: vec![facts] });
        node.run_for(lifetime);
        node.observe(Fact::ComponentExited(ComponentExit { tgid, started_ns, code, signal: None }));
        node.run_for(10 * S);
    }

    fn node() -> TestNode {
        let mut node = TestNode::booted(Resume::default());
        node.start(Vec::new());
        node.observe(Fact::Components { components: Vec::new() });
        node.events.clear();
        node
    }

    #[test]
    fn three_ends_soon_after_the_start_are_a_loop_until_it_runs() {
        let mut node = node();
        for tgid in 7..11 {
            run(&mut node, tgid, PROGRAM, 6 * S, Some(255));
        }
        assert_eq!(node.open().len(), 1);
        let incident = &node.open()[0];
        assert_eq!((incident.count, incident.severity), (4, Severity::Warning));
        assert!(
            incident
                .summary
                .contains("kubelet v1.20.2 (pid 10) ended with exit code 255, 6.0 s after its start"),
            "{}",
            incident.summary
        );
        let started = node.now;
        node.observe(Fact::Components { components: vec![kubelet(20, started)] });
        node.run_for(300 * S);
        let (kind, incident) = *node.incidents().last().unwrap();
        assert_eq!((kind, incident.close_reason), (Kind::IncidentClosed, Some(CloseReason::Resolved)));
    }

    #[test]
    fn a_kubelet_that_is_not_started_any_more_is_in_no_loop() {
        let mut node = node();
        for tgid in 7..10 {
            run(&mut node, tgid, PROGRAM, 6 * S, None);
        }
        let state = node.resume_state();
        node.run_for(QUIET + STABLE);
        let (kind, incident) = *node.incidents().last().unwrap();
        assert_eq!((kind, incident.close_reason), (Kind::IncidentClosed, Some(CloseReason::Expired)));
        let mut next = TestNode::booted(state);
        next.start(Vec::new());
        assert_eq!(next.open().len(), 1, "it goes on over a restart");
        next.run_for(QUIET + STABLE);
        assert_eq!(next.open().len(), 0);
    }

    /// A container of a pod whose sandbox, this one, is gone.
    fn orphan() -> ContainerFacts {
        let sandbox = etcd_sandbox();
        let name = sandbox.name.replace("k8s_POD", "k8s_etcd");
        let incarnation = Incarnation { spec_hash: Some(7), ..Incarnation::default() };
        ContainerFacts {
            id: "b5".repeat(32),
            name,
            state: ContainerState::Exited,
            tgid: None,
            sandbox: false,
            joined_netns: true,
            incarnation,
            ..sandbox
        }
    }

    #[test]
    fn a_container_without_its_sandbox_is_the_cause_only_of_the_end_of_a_kubelet_that_minds() {
        let containerd = || Some("/run/containerd/containerd.sock".to_owned());
        for (version, remote_runtime, is_caused) in [
            (Some("v1.20.2"), None, true),
            (Some("v1.24.0"), None, false),
            (Some("v1.23.14"), None, false),
            (Some("v1.20.2"), containerd(), false),
            (None, None, true),
        ] {
            let mut node = TestNode::booted(Resume::default());
            node.start(vec![orphan()]);
            node.run_for(10 * S);
            assert_eq!(node.open()[0].severity, Severity::Warning, "no kubelet is known yet");
            for tgid in 7..10 {
                let version = version.map(str::to_owned);
                let facts = ComponentFacts {
                    version,
                    remote_runtime: remote_runtime.clone(),
                    ..kubelet(tgid, node.now)
                };
                run_as(&mut node, facts, 6 * S, Some(255));
            }
            let open = node.open();
            let of_kind = |kind: &str| open.iter().find(|open| open.kind == kind).unwrap();
            let causes = match is_caused {
                true => vec![of_kind(orphan_container::KIND).id.clone()],
                false => Vec::new(),
            };
            assert_eq!(of_kind(KIND).caused_by, causes, "{version:?}");
        }
    }

    #[test]
    fn a_restart_an_end_that_was_asked_for_and_other_components_are_no_loop() {
        for (name, lifetime, code) in
            [(PROGRAM, 6 * S, Some(0)), (PROGRAM, 90 * S, Some(255)), ("dockerd", 6 * S, Some(1))]
        {
            let mut node = node();
            for tgid in 7..17 {
                run(&mut node, tgid, name, lifetime, code);
            }
            assert_eq!(node.kinds(), [""; 0], "{name} {code:?}");
        }
    }
}
