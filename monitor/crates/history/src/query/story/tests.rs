//! Stories of the two common failures, and edge cases.

use kevtmon_event::{Action, Event, Incident, Kind, Risk, Shared, Unreadable};
use kevtmon_testing::sample;

use super::*;
use crate::query::history::History;
use crate::query::why::{Outcome, why};
use crate::test_support::memory::{self, Memory, numbered, time};
use crate::test_support::stories::{chatter, gateway_lost, incident_event, told, volume_busy};

fn ids(story: &Story) -> Vec<&str> {
    story.incidents.iter().map(|chapter| chapter.id.as_str()).collect()
}

#[test]
fn a_cause_stands_before_its_effect_and_the_link_is_no_surer_than_either_end() {
    let story = told(&gateway_lost(), "lijiaob/etcd1-0");
    assert_eq!(ids(&story), ["stale", "lost"]);
    assert_eq!(
        story.incidents[1].caused_by,
        [Cause { id: "stale".into(), confidence: Some(Confidence::Likely) }]
    );
    assert_eq!(story.incidents[1].confidence, Confidence::Certain);
    assert_eq!(
        story.verdict.sentence,
        "pod lijiaob/etcd1-0 lost its gateway ARP 169.254.1.1, deleted by calico (pid 28997), likely because: \
         the CNI DEL of the old sandbox 94feeebc95fb of pod lijiaob/etcd1-0 is retried"
    );
    assert!(story.verdict.open);
    assert_eq!(story.advice.len(), 1);
}

#[test]
fn a_cause_is_marked_where_it_has_ended_otherwise_than_its_effect() {
    let of = |lost: Option<CloseReason>, stale: Option<CloseReason>| {
        let mut history = gateway_lost();
        for view in &mut history.incidents {
            let reason = if view.incident.id == "lost" { lost } else { stale };
            (view.incident.close_reason, view.incident.closed) = (reason, reason.map(|_| time(50)));
        }
        told(&history, "lijiaob/etcd1-0").verdict.sentence
    };
    let (lost, because) = ("pod lijiaob/etcd1-0 lost its gateway ", ", likely because: ");
    let cause = "the CNI DEL of the old sandbox ";
    let (resolved, detached) = (Some(CloseReason::Resolved), Some(CloseReason::Detached));
    for (sentence, begin, then) in [
        (of(None, resolved), lost.to_owned(), format!("{because}resolved: {cause}")),
        (of(resolved, resolved), format!("resolved: {lost}"), format!("{because}{cause}")),
        (
            of(resolved, detached),
            format!("resolved: {lost}"),
            format!("{because}detached, not resolved: {cause}"),
        ),
    ] {
        assert!(sentence.starts_with(&begin) && sentence.contains(&then), "{sentence}");
    }
}

#[test]
fn the_story_has_its_events_in_order_with_what_explains_them_and_without_noise() {
    let story = told(&gateway_lost(), "lijiaob/etcd1-0");
    let steps: Vec<(u64, bool)> = story.steps.iter().map(|step| (step.seq, step.roles.is_empty())).collect();
    assert_eq!(steps, [(1, true), (20, false), (30, true), (40, false)]);
    assert_eq!(story.steps[3].evidence_of, ["lost"]);
    assert_eq!(story.steps[3].roles, [Role::Target]);
}

#[test]
fn the_same_story_is_found_by_whatever_is_at_hand() {
    let whole = told(&gateway_lost(), "lijiaob/etcd1-0");
    for word in ["etcd1-0", "10.42.0.7", "593d8a89", "28997", "169.254.1.1", "interface:4026532253/2"] {
        let story = told(&gateway_lost(), word);
        assert_eq!(story.verdict, whole.verdict, "{word}");
    }
    assert_eq!(told(&gateway_lost(), "28997").steps[0].roles, []);
}

#[test]
fn trouble_that_is_over_says_so() {
    let story = told(&volume_busy(), "lijiaob/etcd1-0");
    assert_eq!((story.verdict.open, story.verdict.until.clone()), (false, Some(time(40))));
    assert_eq!(story.verdict.close_reason, Some(CloseReason::Resolved));
    assert_eq!(story.verdict.sentence, format!("resolved: {}", story.incidents[0].summary));
    assert!(story.advice.is_empty());
    assert!(story.steps[0].roles.contains(&Role::Holder) && story.steps[0].roles.contains(&Role::Target));
    assert!(story.unseen.iter().any(|unseen| unseen.what == Missing::Daemon), "no state, so no daemon");
}

#[test]
fn of_many_incidents_the_open_and_the_newest_are_told_and_the_rest_is_counted() {
    let mut history = Memory::of((1..=50).map(memory::event));
    for seq in 1..=50 {
        let closed = (seq != 3).then(|| time(seq));
        let incident = memory::incident(&format!("{seq:02}"), seq);
        history = history.with_incident(Incident { closed, evidence: vec![seq], ..incident });
    }
    let story = told(&history, "lijiaob/etcd1-0");
    let expected: Vec<String> = [3].into_iter().chain(20..=50).map(|seq| format!("{seq:02}")).collect();
    assert_eq!((ids(&story), story.incidents_omitted), (expected.iter().map(String::as_str).collect(), 18));
}

#[test]
fn a_circle_of_causes_ends() {
    let mut one = memory::incident("a", 40);
    (one.caused_by, one.evidence) = (vec!["b".into()], vec![40]);
    let mut other = memory::incident("b", 41);
    other.caused_by = vec!["a".into(), "forgotten".into()];
    let memory = Memory::of([memory::event(40)]).with_incident(one).with_incident(other);
    let story = told(&memory, "lijiaob/etcd1-0");
    assert_eq!(ids(&story), ["a", "b"]);
    assert_eq!(story.incidents[1].caused_by[1].confidence, None, "no longer known");
}

#[test]
fn without_an_incident_the_worst_event_is_the_verdict() {
    let story = told(&Memory::of([memory::event(1)]), "lijiaob/etcd1-0");
    assert!(story.verdict.sentence.ends_with("deleted by calico (pid 28997); no incident is known of it"));
    assert_eq!(story.verdict.confidence, Some(Confidence::Certain));
}

#[test]
fn a_mount_that_was_busy_and_is_gone_is_not_told_as_busy() {
    let busy = chatter(1, Kind::MountBusy, Severity::Warning, "umount of /x refused");
    let released = chatter(2, Kind::MountReleased, Severity::Info, "/x unmounted");
    let again = chatter(3, Kind::MountBusy, Severity::Warning, "umount of another /x refused");
    let story = told(&Memory::of([busy.clone(), released.clone()]), "lijiaob/etcd1-0");
    let expected = "umount of /x refused; later: /x unmounted; no incident is known of it";
    assert_eq!(story.verdict.sentence, expected);
    let story = told(&Memory::of([busy, released, again]), "lijiaob/etcd1-0");
    assert_eq!(story.verdict.sentence, "umount of another /x refused; no incident is known of it");
}

#[test]
fn a_quiet_life_is_told_as_one() {
    let started = chatter(1, Kind::ContainerStarted, Severity::Info, "container etcd started");
    let story = told(&Memory::of([started]), "lijiaob/etcd1-0");
    assert_eq!(story.verdict.sentence, "no incident is known of it; container etcd started");
    let story = told(&Memory::default().with_state(crate::test_support::node_state::state()), "a/web");
    assert_eq!(story.verdict.sentence, "nothing was recorded about it");
}

#[test]
fn what_is_of_no_weight_is_told_where_nothing_else_is() {
    let released = chatter(1, Kind::MountReleased, Severity::Debug, "volume vol1 of pod p unmounted");
    let created = chatter(2, Kind::ContainerCreated, Severity::Debug, "container etcd created");
    let story = told(&Memory::of([released.clone()]), "lijiaob/etcd1-0");
    assert_eq!(story.verdict.sentence, "no incident is known of it; volume vol1 of pod p unmounted");
    assert_eq!(story.steps.iter().map(|step| step.seq).collect::<Vec<_>>(), [1]);
    let story = told(&Memory::of([released.clone(), created]), "lijiaob/etcd1-0");
    assert!(story.verdict.sentence.ends_with("the last of 2 events: container etcd created"));
    let started = chatter(3, Kind::ContainerStarted, Severity::Info, "container etcd started");
    let story = told(&Memory::of([released, started]), "lijiaob/etcd1-0");
    assert_eq!(story.steps.iter().map(|step| step.seq).collect::<Vec<_>>(), [3]);
}

#[test]
fn harm_that_nobody_was_seen_doing_is_said() {
    let anonymous = Event { actor: None, ..memory::event(3) };
    let story = told(&Memory::of([anonymous]), "lijiaob/etcd1-0");
    let missing = Missing::Actor { kind: "neighbor.deleted".into(), seq: 3 };
    assert!(story.unseen.iter().any(|unseen| unseen.what == missing));
}

#[test]
fn holders_that_nothing_rules_out_are_said_until_a_scan_has_read_everything() {
    let partial = Event {
        target: sample::deletion().target,
        holders_complete: Some(false),
        holders_unreadable: vec![Unreadable {
            pid: Some(1),
            comm: Some("init".into()),
            reason: "its descriptors may not be read".into(),
        }],
        ..numbered(3, sample::busy())
    };
    let path = partial.mount.as_ref().unwrap().path.clone();
    let unreadable = partial.holders_unreadable.clone();
    let complete = Event { seq: 4, time: time(4), holders_complete: Some(true), ..partial.clone() };
    let missing = |events: Vec<Event>| {
        let unseen = told(&Memory::of(events), "lijiaob/etcd1-0").unseen;
        unseen.into_iter().map(|unseen| unseen.what).find(|what| matches!(what, Missing::Holders { .. }))
    };
    let said = Some(Missing::Holders { path, seq: 3, unreadable });
    assert_eq!(missing(vec![partial.clone()]), said);
    let mut other = complete.clone();
    other.mount.as_mut().unwrap().path = "/other".to_owned();
    assert_eq!(missing(vec![partial.clone(), other]), said, "that of another mount rules nothing out");
    assert_eq!(missing(vec![partial, complete]), None);
}

#[test]
fn a_long_story_keeps_what_weighs_most() {
    let mut events: Vec<Event> = (1..=300)
        .map(|seq| chatter(seq, Kind::LinkChanged, Severity::Info, &format!("veth {seq} changed")))
        .collect();
    events[4] = memory::event(5);
    let story = told(&Memory::of(events), "lijiaob/etcd1-0");
    assert_eq!((story.steps.len(), story.steps_omitted), (STEPS, 240));
    assert_eq!((story.steps[0].seq, story.steps[1].seq), (5, 242));
}

#[test]
fn a_story_that_does_not_reach_back_to_the_first_event_says_so() {
    let story = told(&Memory::of((1..=600).map(memory::event)), "lijiaob/etcd1-0");
    assert!(story.unseen.iter().any(|unseen| unseen.what == Missing::Older { looked_at: 500 }));
}

#[test]
fn a_word_with_several_meanings_gives_them_and_one_without_gives_none() {
    let memory = gateway_lost();
    let Outcome::Ambiguous(subjects) = why(&memory, "web").unwrap() else { panic!() };
    assert_eq!(subjects.len(), 2);
    let Outcome::Unknown(nothing) = why(&memory, "nobody").unwrap() else { panic!() };
    assert_eq!(nothing.extent, memory.extent().unwrap());
    assert!(nothing.unwatched.iter().any(|cause| cause.contains("no runtime is configured")));
}

#[test]
fn an_incident_is_found_by_its_id_or_the_beginning_of_it_even_when_it_is_over() {
    let id = "81dbe6ff903f2912";
    let first = Incident { closed: Some(time(5)), evidence: vec![4], ..memory::incident(id, 4) };
    let second = Incident { episode: 2, evidence: vec![8], ..memory::incident(id, 8) };
    let memory = Memory::of((1..=9).map(memory::event)).with_incident(first).with_incident(second);
    for word in [id, "81db", "incident:81dbe6ff903f2912"] {
        let story = told(&memory, word);
        assert_eq!(story.subject.handle, "incident:81dbe6ff903f2912", "{word}");
        assert_eq!(story.incidents.iter().map(|incident| incident.episode).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(story.steps.iter().map(|step| step.seq).collect::<Vec<_>>(), [4, 8], "each its evidence");
    }
    let other = memory::incident("81dbffffffffffff", 2);
    let Outcome::Ambiguous(subjects) = why(&memory.with_incident(other), "81db").unwrap() else { panic!() };
    assert_eq!(subjects.len(), 2);
}

#[test]
fn a_number_is_that_of_an_event_only_where_the_word_says_so() {
    let memory = gateway_lost();
    let story = told(&memory, "seq:40");
    assert_eq!(story.subject.label, "event 40 (neighbor.deleted)");
    assert_eq!(ids(&story), ["stale", "lost"]);
    assert!(matches!(why(&memory, "40").unwrap(), Outcome::Unknown(_)), "no process has it");
    assert_eq!(told(&memory, "28997").subject.handle, "pid:28997");
    assert!(matches!(why(&memory, "seq:999").unwrap(), Outcome::Unknown(_)));
}

#[test]
fn a_former_address_of_a_pod_leads_to_the_pod() {
    let mut moved = memory::event(5);
    moved.target.as_mut().unwrap().pod.as_mut().unwrap().ip = vec!["10.42.0.9".parse().unwrap()];
    let memory = Memory::of([memory::event(1), moved]);
    for word in ["10.42.0.7", "10.42.0.9"] {
        assert_eq!(told(&memory, word).subject.handle, "pod:lijiaob/etcd1-0", "{word}");
    }
}

#[test]
fn an_incident_is_not_left_out_for_what_else_happened() {
    let mut events: Vec<Event> = (2..=700).map(memory::event).collect();
    let opened = memory::incident("81dbe6ff903f2912", 1);
    events.insert(0, incident_event(1, Kind::IncidentOpened, opened.clone(), memory::event(1)));
    let story = told(&Memory::of(events).with_incident(opened), "lijiaob/etcd1-0");
    assert_eq!(ids(&story), ["81dbe6ff903f2912"]);
}

#[test]
fn an_answer_is_read_as_it_is_written() {
    for (memory, word) in [
        (gateway_lost(), "etcd1-0"),
        (volume_busy(), "4123"),
        (gateway_lost(), "web"),
        (volume_busy(), "nobody"),
    ] {
        let json = serde_json::to_string(&why(&memory, word).unwrap()).unwrap();
        let read: Outcome = serde_json::from_str(&json).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), json, "{word}");
    }
}

/// A volume of which two callers are refused in turn, many times.
fn refused_in_turn() -> Memory {
    let busy = |seq| {
        let mut event = numbered(seq, sample::busy());
        let caller = if seq % 2 == 0 { (99, "kubelet") } else { (98, "kubelet") };
        let actor = event.actor.as_mut().unwrap();
        (actor.pid, actor.comm, actor.exe) = (1000 + u32::try_from(seq).unwrap(), "umount".into(), None);
        actor.ancestors = vec![kevtmon_event::AncestorRef {
            pid: caller.0,
            comm: caller.1.into(),
            started: Some(true),
            ..kevtmon_event::AncestorRef::default()
        }];
        event.message =
            format!("umount of /m by {} (pid {}), by means of umount, refused", caller.1, caller.0);
        event
    };
    Memory::of((1..=20).map(busy))
}

#[test]
fn different_callers_of_one_mount_are_different_lines() {
    let story = told(&refused_in_turn(), VOLUME);
    let told: Vec<(u64, u64)> = story
        .steps
        .iter()
        .map(|step| (step.seq, step.repeated.as_ref().map_or(0, |repeated| repeated.count)))
        .collect();
    assert_eq!(told, [(1, 9), (2, 9)]);
}

#[test]
fn a_loop_is_told_once_and_ends_as_it_ended() {
    let life = |seq: u64| {
        let (kind, verb) = match seq % 3 {
            0 => (Kind::ContainerRemoved, "removed"),
            1 => (Kind::ContainerStarted, "started"),
            _ => (Kind::ContainerExited, "exited"),
        };
        let name = format!("etcd_{}", seq.div_ceil(3));
        let message = format!("container {name} of pod lijiaob/etcd1-0 {verb}");
        let mut event = chatter(seq, kind, Severity::Info, &message);
        event.target.as_mut().unwrap().container.as_mut().unwrap().name = Some(name);
        event
    };
    let story = told(&Memory::of((1..=110).map(life)), "lijiaob/etcd1-0");
    let told: Vec<(u64, u64)> = story
        .steps
        .iter()
        .map(|step| (step.seq, step.repeated.as_ref().map_or(0, |repeated| repeated.count)))
        .collect();
    assert_eq!(told, [(1, 35), (2, 35), (3, 34), (108, 0), (109, 0), (110, 0)]);
}

#[test]
fn no_advice_leads_back_to_what_is_being_read() {
    let step = |command: &str| Advice {
        text: "see what was found".into(),
        form: String::new(),
        command: command.into(),
        risk: Risk::Read,
        action: Action::None,
        process: None,
    };
    let advice = vec![step("kevtmon why /m"), step("umount --lazy /m")];
    let open = Incident { advice, evidence: vec![4], ..memory::incident("81dbe6ff903f2912", 4) };
    let memory = Memory::of([memory::event(4)]).with_incident(open);
    let story = told(&memory.with_state(crate::test_support::node_state::state()), "81db");
    let commands: Vec<&str> = story.advice.iter().map(|step| step.command.as_str()).collect();
    assert_eq!(commands, ["umount --lazy /m"]);
}

/// A node that suspects a fault of this pod.
fn suspecting(memory: Memory) -> Memory {
    let event = memory::event(50);
    let suspicion = Suspicion {
        kind: "gateway-neighbor-lost".into(),
        summary: "pod lijiaob/etcd1-0 misses the ARP entry of its gateway".into(),
        reason: "its interface went with it".into(),
        confidence: Confidence::Certain,
        since: time(50),
        due: time(110),
        target: event.target.map(Shared::into_inner),
        neighbor: event.neighbor.map(|neighbor| *neighbor),
        evidence: vec![50],
    };
    let suspected = vec![suspicion];
    memory
        .with_state(kevtmon_core::state::NodeState { suspected, ..crate::test_support::node_state::state() })
}

#[test]
fn what_is_not_judged_yet_is_said_and_stands_before_what_is_over() {
    let over = Incident { closed: Some(time(41)), evidence: vec![40], ..memory::incident("lost", 40) };
    let memory = || Memory::of([memory::event(40), memory::event(50)]);
    for memory in [memory(), memory().with_incident(over)] {
        for word in ["lijiaob/etcd1-0", "169.254.1.1", "interface:4026532253/2", "netns:4026532253"] {
            let story = told(&suspecting(memory.clone()), word);
            assert_eq!(
                story.verdict.sentence,
                "pod lijiaob/etcd1-0 misses the ARP entry of its gateway; not judged yet: its interface went with it",
                "{word}"
            );
            assert_eq!((story.verdict.since, story.verdict.judged), (Some(time(50)), Some(time(110))));
            assert_eq!(story.suspected.len(), 1);
        }
    }
    let open = memory::incident("lost", 40);
    let story = told(&suspecting(memory().with_incident(Incident { evidence: vec![40], ..open })), "etcd1-0");
    assert_eq!((story.verdict.open, story.verdict.judged), (true, None));
    assert_eq!(story.suspected.len(), 1, "told besides");
    assert_eq!(told(&suspecting(Memory::of([memory::event(40)])), "a/web").suspected, []);
}

const VOLUME: &str = "/var/lib/kubelet/pods/3f0f/volumes/kubernetes.io~glusterfs/data";
