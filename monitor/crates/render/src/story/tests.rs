//! Stories as text: 80 columns whatever names they have, what repeats itself once, what is over in the past.

use jiff::tz::TimeZone;
use kevtmon_event::{Action, Advice, Confidence, Event, Incident, Risk};
use kevtmon_history::query::story::Story;
use kevtmon_testing::sample;

use super::*;
use crate::incident;
use crate::test_support::memory::{self, Memory, numbered, time};
use crate::test_support::stories::{gateway_lost, told, volume_busy};

fn shown(story: &Story) -> String {
    let clock = Clock { now: "2026-01-02T03:05:00Z".parse().unwrap(), zone: TimeZone::UTC };
    text(story, &Pretty { colour: false, zone: TimeZone::UTC }, &clock)
}

#[track_caller]
fn fits(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{} columns: {line}\n{text}", line.chars().count());
    }
}

/// An incident and its event, in which every name is as long as it may be.
fn long() -> Memory {
    let path = format!(
        "/var/lib/kubelet/pods/5c948341-c030-4996-b888-f032577d97b0/volumes/kubernetes.io~csi/pvc-{}/mount",
        "0f7e8a52".repeat(8)
    );
    let name = format!("k8s_{}_{}_0", "container-name".repeat(5), "pod-name".repeat(8));
    let address = "2001:0db8:85a3:0000:0000:8a2e:0370:7334";
    let message = format!("{path} is busy: held by {name} at {address} below {path}/{}", "x".repeat(200));
    let mut event = numbered(5, sample::busy());
    event.message.clone_from(&message);
    event.mount.as_mut().unwrap().path.clone_from(&path);
    event.target = sample::deletion().target;
    let inside =
        format!("nsenter -t 16707 -n ip -6 neigh replace {address} lladdr ee:ee:ee:ee:ee:ee nud permanent");
    let incident = Incident {
        kind: "volume-busy".into(),
        summary: message,
        episode: 3,
        count: 70,
        evidence: vec![5],
        ruled_out: vec![format!("{name} is up"), format!("no copy of {path} is left")],
        caused_by: vec!["0123456789abcdef".into()],
        advice: vec![
            Advice {
                text: format!("look at {path}"),
                form: String::new(),
                command: inside,
                risk: Risk::Read,
                action: Action::None,
                process: None,
            },
            Advice {
                text: "x".into(),
                form: String::new(),
                command: "true".into(),
                risk: Risk::Read,
                action: Action::None,
                process: None,
            },
        ],
        confidence: Confidence::Likely,
        ..memory::incident("81dbe6ff903f2912", 5)
    };
    Memory::of([event]).with_incident(incident).with_state(crate::test_support::node_state::state())
}

#[test]
fn every_story_fits_80_columns() {
    for (memory, word) in [
        (gateway_lost(), "lijiaob/etcd1-0"),
        (volume_busy(), "lijiaob/etcd1-0"),
        (volume_busy(), "4123"),
        (long(), "lijiaob/etcd1-0"),
        (long(), "81dbe6ff903f2912"),
        (long(), "seq:5"),
    ] {
        fits(&shown(&told(&memory, word)));
    }
    let story = told(&long(), "lijiaob/etcd1-0");
    let text = shown(&story);
    assert!(text.contains("/var/lib/kubelet/pods") && text.contains('…'), "{text}");
    assert!(story.steps[0].message.contains(&"x".repeat(200)), "JSON has it in full");
}

#[test]
fn what_a_command_does_is_a_comment_in_every_line() {
    let text = shown(&told(&long(), "lijiaob/etcd1-0"));
    let next = text.split("\nNext\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let comments = next.lines().filter(|line| line.starts_with("  # ")).count();
    let commands =
        next.lines().filter(|line| line.trim_start().starts_with("nsenter") || *line == "  true").count();
    let continued = next.lines().filter(|line| line.starts_with("      ")).count();
    assert_eq!(comments + commands + continued, next.lines().count(), "{next}");
    assert!(comments > 2, "{next}");
}

#[test]
fn every_incident_fits_80_columns() {
    let clock = Clock { now: "2026-01-02T03:05:00Z".parse().unwrap(), zone: TimeZone::UTC };
    let pretty = Pretty { colour: false, zone: TimeZone::UTC };
    let filter = kevtmon_history::query::IncidentFilter { all: true, ..Default::default() };
    for memory in [gateway_lost(), volume_busy(), long()] {
        for view in kevtmon_history::query::History::incidents(&memory, &filter).unwrap() {
            let text = incident::text(&view, &pretty, &clock);
            fits(&text);
            assert!(view.incident.episode == 1 || text.contains("episode 3"), "{text}");
        }
    }
}

#[test]
fn what_repeats_itself_is_told_once_with_how_often_and_until_when() {
    let busy = |seq: u64, caller: &str, tid: u32| {
        let mut event = Event { target: sample::deletion().target, ..numbered(seq, sample::busy()) };
        let actor = event.actor.as_mut().unwrap();
        (actor.comm, actor.exe, actor.tid) = (caller.into(), None, tid);
        event.mount.as_mut().unwrap().attempts = Some(seq);
        event.message = format!("/m is busy for {caller} (tid {tid}), attempt {seq}");
        event
    };
    let mut events: Vec<Event> = (1..=38).map(|seq| busy(seq, "kubelet", 100)).collect();
    events.extend([busy(39, "admin", 7), busy(40, "kubelet", 8), busy(41, "admin", 9)]);
    let released = Event { kind: kevtmon_event::Kind::MountReleased, ..busy(42, "kubelet", 7) };
    events.extend([released, busy(43, "kubelet", 7)]);
    let story = told(&Memory::of(events), "lijiaob/etcd1-0");
    let seqs: Vec<(u64, u64)> = story
        .steps
        .iter()
        .map(|step| (step.seq, step.repeated.as_ref().map_or(0, |repeated| repeated.count)))
        .collect();
    assert_eq!(seqs, [(1, 38), (39, 1), (42, 0), (43, 0)]);
    assert_eq!(story.steps[0].repeated.as_ref().unwrap().until, time(40));
    assert!(shown(&story).contains("… 38 more like it until 03:00:40"), "{}", shown(&story));
}

#[test]
fn different_subjects_are_no_repetition() {
    let deleted = |seq: u64| {
        let mut event = numbered(seq, sample::deletion());
        let neighbor = event.neighbor.as_mut().unwrap();
        (neighbor.address, neighbor.gateway) = (format!("10.0.0.{seq}").parse().unwrap(), Some(true));
        event.message = format!("gateway 10.0.0.{seq} deleted by ip (pid 7)");
        event
    };
    let story = told(&Memory::of((1..=3).map(deleted)), "lijiaob/etcd1-0");
    assert_eq!(story.steps.len(), 3);
}

#[test]
fn nothing_wrong_says_what_is_not_watched() {
    let mut state = crate::test_support::node_state::state();
    state.sources = vec![kevtmon_observation::SourceStatus::down(
        kevtmon_observation::SourceKind::Hook,
        "hook.umount",
        "switched off",
    )];
    let memory = Memory::of([numbered(1, sample::link(kevtmon_event::Severity::Info))]).with_state(state);
    let text = shown(&told(&memory, "cali0123"));
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "no incident is known of it",
        "Not watched on this node:",
        "unmounts that are refused (hook.umount: switched off)",
        "no runtime is configured",
        "anything before 2026-01-02 03:00:01Z",
    ] {
        assert!(text.contains(words), "{words} in {text}");
    }
    let text = shown(&told(&gateway_lost(), "lijiaob/etcd1-0"));
    assert!(!text.contains("Not watched"), "{text}");
}
