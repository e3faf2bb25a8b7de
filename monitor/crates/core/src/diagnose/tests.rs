//! The engine, and complete scenarios through the core.

use harness::*;
use kevtmon_event::{
    Action, Advice, CloseReason, Confidence, EVIDENCE_MAX, Kind, NamedProcess, Risk, Severity, Shared, Target,
};
use kevtmon_observation::*;
use serde_json::json;

use super::*;
use crate::test_support::model::Model;
use crate::{Core, Output, Resume};

mod calls;
pub(super) mod harness;
mod links;
mod quotes;
mod runtimes;
mod volumes;

/// The kind of causes: one that offers the step which the tests advise.
const CAUSE: &str = "gateway-neighbor-lost";

/// A diagnosis that reports the given findings.
#[derive(Debug)]
struct Fake {
    kind: &'static str,
    next: Vec<Finding>,
}

impl Diagnosis for Fake {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn event(&mut self, _: &Context<'_>, _: &Event, _: &mut Findings) {}

    fn tick(&mut self, _: &Context<'_>, findings: &mut Findings) {
        findings.items.append(&mut self.next);
    }

    fn resume(&mut self, _: &Context<'_>, _: &Event) -> Option<String> {
        None
    }

    fn save(&self) -> Result<Value, serde_json::Error> {
        Ok(Value::Null)
    }

    fn restore(&mut self, _: Value) -> Result<(), serde_json::Error> {
        Ok(())
    }
}

fn report(subject: &str, caused_by: Vec<IncidentKey>) -> Report {
    Report {
        evidence: vec![1],
        count: Count::More(1),
        caused_by,
        host_cause: None,
        ..Report::new(subject.into(), Severity::Warning, Confidence::Likely, "something is wrong".into(), 1)
    }
}

fn found(subject: &str) -> Finding {
    Finding::Report(Box::new(report(subject, Vec::new())))
}

fn cause(subject: &str) -> IncidentKey {
    IncidentKey { kind: CAUSE, subject: subject.into() }
}

/// Runs one tick in which the diagnoses `cause` and `effect` report these findings.
fn tick(engine: &mut Engine, causes: Vec<Finding>, effects: Vec<Finding>) -> Vec<IncidentChange> {
    let model = Model::default();
    engine.replace_diagnoses(vec![
        Box::new(Fake { kind: CAUSE, next: causes }),
        Box::new(Fake { kind: "effect", next: effects }),
    ]);
    engine.tick(&model.view(), 10);
    engine.take_changes()
}

fn engine() -> Engine {
    Engine::new(Vec::new(), "slave-197", "b")
}

#[test]
fn an_effect_names_a_cause_that_was_found_in_the_same_moment() {
    let mut engine = engine();
    let effect = Finding::Report(Box::new(report("pod", vec![cause("del"), cause("never-seen")])));
    let changes = tick(&mut engine, vec![found("del")], vec![effect]);
    assert_eq!(changes[1].incident.caused_by, [changes[0].incident.id.as_str()]);
}

#[test]
fn what_begins_again_before_its_end_is_told_goes_on_with_what_is_known_of_it_now() {
    let mut event = kevtmon_testing::sample::deletion();
    event.actor.as_mut().unwrap().container = event.target.as_ref().unwrap().container.clone();
    let by_itself = IncidentObjects::of(&event);
    let mut engine = engine();
    let mut act = |at: BootNs, finding: Finding| {
        engine.replace_diagnoses(vec![Box::new(Fake { kind: "effect", next: vec![finding] })]);
        engine.tick(&Model::default().view(), at);
        engine.take_changes()
    };
    let lost = |objects: &IncidentObjects| {
        Finding::Report(Box::new(Report { objects: objects.clone(), ..report("pod", Vec::new()) }))
    };
    let restored = || Finding::Close {
        subject: "pod".into(),
        reason: CloseReason::Resolved,
        evidence: None,
        last: None,
    };
    let mut changes = Vec::new();
    for number in 0..1000 {
        changes.extend(act(2 * number, lost(&by_itself)));
        changes.extend(act(2 * number + 1, restored()));
    }
    let count = |kind| changes.iter().filter(|change| change.kind == kind).count();
    assert_eq!((count(Kind::IncidentOpened), count(Kind::IncidentClosed)), (9, 8));
    assert!(count(Kind::IncidentUpdated) < 16, "at each doubling");
    // Now nobody knows who it was.
    let unknown = IncidentObjects { actor: None, ..by_itself };
    act(3000, lost(&unknown));
    let closed = act(3001, restored());
    assert_eq!(closed.len(), 1, "nobody is known to do it again and again");
    assert_eq!((closed[0].kind, &closed[0].objects.actor), (Kind::IncidentClosed, &None));
}

#[test]
fn a_cause_found_later_is_linked_and_emitted_once() {
    let mut engine = engine();
    tick(&mut engine, vec![], vec![found("pod")]);
    let link = || Finding::Link {
        effect: IncidentKey { kind: "effect", subject: "pod".into() },
        cause: cause("del"),
    };
    assert_eq!(tick(&mut engine, vec![link()], vec![]), [], "there is no such cause");
    let changes = tick(&mut engine, vec![found("del"), link(), link()], vec![]);
    let kinds: Vec<Kind> = changes.iter().map(|change| change.kind).collect();
    assert_eq!(kinds, [Kind::IncidentOpened, Kind::IncidentUpdated]);
    assert_eq!(changes[1].incident.caused_by, [changes[0].incident.id.as_str()]);
}

#[test]
fn a_cause_that_is_over_can_still_be_named() {
    let mut engine = engine();
    let close =
        Finding::Close { subject: "del".into(), reason: CloseReason::Resolved, evidence: None, last: None };
    tick(&mut engine, vec![found("del"), close], vec![]);
    let effect = Finding::Report(Box::new(report("pod", vec![cause("del")])));
    assert_eq!(tick(&mut engine, vec![], vec![effect])[0].incident.caused_by.len(), 1);
}

#[test]
fn an_incident_that_opens_again_is_another_episode_of_the_same_id() {
    let mut engine = engine();
    let close = || Finding::Close {
        subject: "pod".into(),
        reason: CloseReason::Resolved,
        evidence: None,
        last: None,
    };
    let first = tick(&mut engine, vec![found("pod"), close()], vec![]);
    let second = tick(&mut engine, vec![found("pod"), close()], vec![]);
    let ids: Vec<_> = first.iter().chain(&second).map(|change| change.incident.id.as_str()).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(first.iter().chain(&second).map(|c| c.incident.episode).collect::<Vec<_>>(), [1, 1, 2, 2]);

    let mut restored = self::engine();
    restored.restore(engine.save().unwrap()).unwrap();
    assert_eq!(tick(&mut restored, vec![found("pod")], vec![])[0].incident.episode, 3);
    let mut restarted = self::engine();
    restarted.resume_episodes(vec![(ids[0].to_owned(), 7), ("no id".to_owned(), 9)]);
    assert_eq!(tick(&mut restarted, vec![found("pod")], vec![])[0].incident.episode, 8);
}

#[test]
fn a_closed_incident_has_no_advice() {
    let step = Advice {
        text: "look".into(),
        form: "show-entry".into(),
        command: "ls".into(),
        risk: Risk::Read,
        action: Action::None,
        process: None,
    };
    let report = Report { advice: Some(vec![step]), ..report("pod", Vec::new()) };
    let close =
        Finding::Close { subject: "pod".into(), reason: CloseReason::Resolved, evidence: None, last: None };
    let changes = tick(&mut engine(), vec![Finding::Report(Box::new(report)), close], vec![]);
    let advice: Vec<usize> = changes.iter().map(|change| change.incident.advice.len()).collect();
    assert_eq!(advice, [1, 0]);
}

#[test]
fn other_commands_are_emitted_and_the_same_ones_are_not() {
    let advise = |command: &str, seen: &str| Finding::Advise {
        subject: "pod".into(),
        ruled_out: Some(vec!["eth0 is up".into()]),
        advice: vec![Advice {
            text: "look".into(),
            form: "show-entry".into(),
            command: command.into(),
            risk: Risk::Read,
            action: Action::None,
            process: Some(NamedProcess { pid: 7, seen_ns: seen.into(), links: Vec::new() }),
        }],
    };
    let mut engine = engine();
    let changes =
        tick(&mut engine, vec![found("pod"), advise("a", "1"), advise("a", "2"), advise("b", "3")], vec![]);
    let kinds: Vec<Kind> = changes.iter().map(|change| change.kind).collect();
    assert_eq!(kinds, [Kind::IncidentOpened, Kind::IncidentUpdated, Kind::IncidentUpdated]);
    assert_eq!(changes[2].incident.ruled_out, ["eth0 is up"]);
    let flapping = (0..50).map(|n| advise(["a", "b"][n % 2], "1")).collect();
    assert!(tick(&mut engine, flapping, vec![]).len() < 20, "bounded");
}

#[test]
fn severity_and_confidence_rise_and_never_fall() {
    let mut engine = engine();
    let with = |severity, confidence| {
        Finding::Report(Box::new(Report {
            severity,
            confidence,
            count: Count::More(0),
            ..report("s", Vec::new())
        }))
    };
    let changes = tick(
        &mut engine,
        vec![
            with(Severity::Info, Confidence::Guess),
            with(Severity::Critical, Confidence::Guess),
            with(Severity::Info, Confidence::Certain),
            with(Severity::Info, Confidence::Guess),
        ],
        vec![],
    );
    let levels: Vec<_> =
        changes.iter().map(|change| (change.incident.severity, change.incident.confidence)).collect();
    assert_eq!(
        levels,
        [
            (Severity::Info, Confidence::Guess),
            (Severity::Critical, Confidence::Guess),
            (Severity::Critical, Confidence::Certain),
        ]
    );
}

#[test]
fn the_evidence_is_the_first_and_the_newest() {
    let mut engine = engine();
    let again = |seq| {
        Finding::Repeat(Repeat {
            subject: "s".into(),
            last: 1,
            evidence: Some(seq),
            count: Count::More(1),
            severity: None,
        })
    };
    let changes = tick(&mut engine, [found("s")].into_iter().chain((2..=128).map(again)).collect(), vec![]);
    let last = &changes.last().unwrap().incident;
    assert_eq!((last.count, last.evidence.len(), last.evidence_omitted), (128, EVIDENCE_MAX, 96));
    assert_eq!((last.evidence[15], last.evidence[16], last.evidence[31]), (16, 113, 128));
    assert_eq!(changes.len(), 8, "opened, and updates at 2, 4, 8, 16, 32, 64, 128");
}

#[test]
fn a_summary_that_keeps_changing_is_not_emitted_for_ever() {
    let mut engine = engine();
    let changing = |index| {
        Finding::Report(Box::new(Report {
            summary: format!("by pid {index}"),
            count: Count::More(0),
            ..report("s", Vec::new())
        }))
    };
    assert_eq!(tick(&mut engine, (0..1_000).map(changing).collect(), vec![]).len(), 17);
}

#[test]
fn who_only_claims_to_be_a_pod_raises_no_more_than_a_warning() {
    let target = |claimed| -> Target {
        let pod = json!({"namespace": "lijiaob", "name": "etcd1-0", "uid": "u", "claimed": claimed});
        serde_json::from_value(json!({"pod": pod, "join": "ok"})).unwrap()
    };
    for (claimed, severity) in [(true, Severity::Warning), (false, Severity::Critical)] {
        let mut engine = engine();
        let objects = IncidentObjects { target: Some(Shared::new(target(claimed))), ..Default::default() };
        let report = Report { severity: Severity::Critical, objects, ..report("pod", Vec::new()) };
        let again = Repeat {
            subject: "pod".into(),
            last: 2,
            evidence: None,
            count: Count::More(1),
            severity: Some(Severity::Critical),
        };
        let found = vec![Finding::Report(Box::new(report)), Finding::Repeat(again)];
        for change in tick(&mut engine, found, vec![]) {
            assert_eq!(change.severity(), severity);
        }
    }
}

#[test]
fn a_resumed_incident_that_no_diagnosis_claims_expires_when_all_sources_are_ready() {
    let before = {
        let mut node = TestNode::with_running_pod();
        node.delete_entry(ETCD, NeighborCause::Admin);
        node.resume_state()
    };
    let mut resume = before.clone();
    resume.incidents[0].incident.as_mut().unwrap().kind = "of-a-newer-version".into();
    let mut node = TestNode::booted(resume);
    assert_eq!(node.open().len(), 1);
    node.start(Vec::new());
    assert_eq!(node.last_incident().incident.as_ref().unwrap().close_reason, Some(CloseReason::Expired));

    let mut other_boot = before;
    other_boot.incidents[0].boot_id = "another".into();
    assert!(TestNode::booted(other_boot).open().is_empty());
}

#[test]
fn a_clock_that_was_set_between_two_runs_makes_no_incident_last_longer() {
    let before = {
        let mut node = TestNode::with_running_pod();
        node.delete_entry(ETCD, NeighborCause::Admin);
        node.resume_state()
    };
    let node = TestNode::booted(Resume { realtime_offset_ns: BOOTED_AT + 3_600_000_000_000, ..before });
    let open = node.open();
    assert_eq!((open.len(), open[0].clock_set_ms), (1, -3_600_000));
}

/// Stale CNI DEL: the old sandbox 94feeebc95fb is deleted by pod name, and takes the new one's gateway.
fn scenario_of_the_stale_deletion() -> TestNode {
    let mut node = TestNode::booted(Resume::default());
    let uid = "3f0f6a0e-2f6a-4d4e-9d1f-1f2f3f4f5f6f";
    let mut old = sandbox(
        &"94feeebc95fb".repeat(6)[..64],
        7,
        "lijiaob",
        "etcd1-0",
        "1d0c6a51-77b0-4b4f-9d7b-0a6f1e2d3c4b",
    );
    old.state = ContainerState::Exited;
    old.tgid = None;
    node.start(vec![old]);
    node.run_until(1_287 * S);
    node.add_pod(ETCD, "cali9118ebbb10b", NudState::PERMANENT);
    node.observe_netns(ETCD);
    node.observe_netns(HOST);
    node.observe(Fact::Container(Box::new(sandbox(SANDBOX, ETCD, "lijiaob", "etcd1-0", uid))));
    node.run_until(1_344 * S);
    node.observe(calico());
    node.delete_entry(ETCD, NeighborCause::Admin);
    node.run_for(3 * S);
    node.observe(failure(ETCD));
    node.run_until(1_420 * S);
    node.set_entry(ETCD, Some((NudState::PERMANENT, Some(host_mac()))));
    node.run_until(1_500 * S);
    node
}

fn lines(node: &TestNode) -> Vec<String> {
    node.events
        .iter()
        .map(|event| {
            format!(
                "{} {} {} {}",
                &event.time[11..19],
                event.severity.name(),
                event.kind.name(),
                event.message
            )
        })
        .collect()
}

#[test]
fn the_events_of_the_stale_deletion() {
    let trouble = "pod lijiaob/etcd1-0 has lost its gateway 169.254.1.1: its static ARP entry on eth0 was deleted \
                   by calico (pid 28997)";
    assert_eq!(
        lines(&scenario_of_the_stale_deletion()),
        [
            "20:00:00 info daemon.ready ready".to_owned(),
            "20:21:27 info link.created veth cali9118ebbb10b new: it was created or moved there, unseen".to_owned(),
            "20:21:27 info container.started container k8s_POD_etcd1-0_lijiaob_3f0f6a0e-2f6a-4d4e-9d1f-1f2f3f4f5f6f_0 \
             of pod lijiaob/etcd1-0 started"
                .to_owned(),
            "20:22:24 warning neighbor.deleted static gateway ARP 169.254.1.1 on eth0 of pod lijiaob/etcd1-0 deleted \
             by calico (pid 28997)"
                .to_owned(),
            format!("20:22:24 warning incident.opened {trouble}"),
            "20:22:27 warning neighbor.failed gateway ARP 169.254.1.1 on eth0 of pod lijiaob/etcd1-0 failed to \
             resolve"
                .to_owned(),
            format!("20:23:24 critical incident.updated {trouble}"),
            format!("20:23:40 notice incident.closed resolved: {trouble}"),
        ]
    );
}

/// A glusterfs of another pod's volume holds a file.
fn scenario_of_the_busy_volume() -> TestNode {
    let mut node = TestNode::booted(Resume::default());
    let web = sandbox(&"d".repeat(64), 72, "cam", "web-fddf96444-stxpf", WEB_UID);
    let cam = sandbox(&"c".repeat(64), 71, "cam", "cam1-78b6fc6bc8-cjsw5", CAM_UID);
    node.start(vec![web, cam]);
    node.observe(Fact::ContainerGone { id: "c".repeat(64), source: "docker".into() });
    node.observe(task(30_001, "/bin/umount"));
    // kubelet doubles its delay from half a second.
    for delay in [500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000] {
        node.observe(umount(Some(16)));
        node.run_for(delay * MS);
    }
    node.mounted = false;
    node.observe(umount(None));
    node.run_for(S);
    node
}

#[test]
fn the_events_of_a_volume_that_cannot_be_unmounted() {
    let node = scenario_of_the_busy_volume();
    let volume = "volume cam-pv-50g of pod cam/cam1-78b6fc6bc8-cjsw5";
    let held = "held by glusterfs (pid 94549) with an open file";
    let busy = format!("warning mount.busy umount of {volume} by umount (pid 30001) refused: {held}");

    let trouble = |seen: &str| {
        format!(
            "volume cam-pv-50g (kubernetes.io/glusterfs) of pod cam/cam1-78b6fc6bc8-cjsw5 cannot be unmounted by umount \
             of kubelet.service: at {seen} UTC {held}, which serves a volume of pod cam/web-fddf96444-stxpf"
        )
    };
    let (first, last) = (trouble("20:00:01"), trouble("20:01:04"));
    assert_eq!(
        lines(&node)[2..],
        [
            format!("20:00:01 {busy}"),
            format!("20:00:01 info incident.opened {first}"),
            format!("20:00:01 {busy}"),
            format!("20:00:01 info incident.updated {first} (2 refused attempts within 1 s)"),
            format!("20:00:02 warning incident.updated {first} (3 refused attempts over 1 s)"),
            format!("20:00:04 {busy}"),
            format!("20:00:04 warning incident.updated {first} (4 refused attempts over 3 s)"),
            format!("20:01:04 {busy}"),
            format!("20:01:04 warning incident.updated {last} (8 refused attempts over 1 min)"),
            format!(
                "20:02:08 info mount.released {volume} unmounted by umount (pid 30001), after 8 refused attempts"
            ),
            format!("20:02:08 notice incident.closed resolved: {last}"),
        ]
    );
}

#[test]
fn the_same_observations_give_the_same_bytes() {
    for node in [scenario_of_the_stale_deletion(), scenario_of_the_busy_volume()] {
        let mut core = Core::new(settings(), Resume::default());
        let mut again = Vec::new();
        for observation in &node.observed {
            let json = serde_json::to_string(observation).unwrap();
            core.observe(serde_json::from_str(&json).unwrap());
            again.extend(core.take_output().filter_map(|output| match output {
                Output::Event(event) => Some(serde_json::to_string(&event).unwrap()),
                Output::Request(_) => None,
            }));
        }
        let first: Vec<String> =
            node.events.iter().map(|event| serde_json::to_string(event).unwrap()).collect();
        assert_eq!(first, again);
    }
}

#[test]
fn a_hundred_thousand_repeats_are_one_incident_of_bounded_size() {
    let mut node = TestNode::with_running_pod();
    let mut emitted = 0;
    for index in 0..100_000 {
        let fact = Fact::Neighbor(Box::new(deletion(ETCD, NeighborCause::Admin)));
        node.core.observe(Observation { at: 2 * S + index, source: Source::Daemon, fact });
        emitted += node
            .core
            .take_output()
            .filter(|output| matches!(output, Output::Event(event) if event.incident.is_some()))
            .count();
    }
    let incident = &node.open()[0];
    assert_eq!((node.open().len(), incident.count), (1, 100_000));
    assert_eq!((incident.evidence.len(), incident.evidence_omitted), (EVIDENCE_MAX, 100_000 - 32));
    assert_eq!(emitted, 17, "opened, and updates at powers of two");
}
