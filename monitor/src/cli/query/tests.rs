//! Text and JSON output, to the letter. The clock is fixed; the history is a list.

use jiff::tz;
use kevtmon_core::state::{ContainerStatus, Counts};
use kevtmon_event::{Container, Event, Kind, Shared};
use kevtmon_history::query::history::IncidentView;
use kevtmon_observation::{SourceKind, SourceStatus};
use kevtmon_testing::sample;

use super::*;
use crate::test_support::memory::{Memory, event, incident, numbered, time};
use crate::test_support::stories::{gateway_lost, volume_busy};

mod daemon;

struct Said {
    code: u8,
    out: String,
    err: String,
}

fn answer(memory: Memory, query: &Query) -> Said {
    let source = Source::Files { history: Box::new(memory), dir: "/var/lib/k".into() };
    // Five minutes after the first event.
    let now = "2026-01-02T03:05:00Z".parse().unwrap();
    let clock = Clock { now, zone: TimeZone::fixed(tz::offset(2)) };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = query.answer_from(&source, clock, Terminal::None, &mut out, &mut err);
    Said { code, out: String::from_utf8(out).unwrap(), err: String::from_utf8(err).unwrap() }
}

fn why(word: &str) -> Query {
    Query::Why(WhyArgs { word: word.into(), ..WhyArgs::default() })
}

#[track_caller]
fn golden(said: &Said, name: &str) {
    let path = format!("{}/src/cli/query/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("KEVTMON_BLESS").is_some() {
        std::fs::write(&path, &said.out).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert!(said.out == expected, "this is what is written now:\n{}", said.out);
    assert_eq!(said.code, exit::OK);
}

#[test]
fn the_story_of_a_lost_gateway_reads_well() {
    golden(&answer(gateway_lost(), &why("etcd1-0")), "gateway.txt");
}

#[test]
fn the_story_of_a_busy_volume_reads_well_though_the_daemon_is_dead() {
    golden(&answer(volume_busy(), &why("4123")), "volume.txt");
}

#[test]
fn incidents_read_well() {
    let memory = || {
        let mut closed = incident("b", 30);
        (closed.closed, closed.count, closed.found_at_start) = (Some(time(90)), 3, true);
        closed.close_reason = Some(kevtmon_event::CloseReason::SubjectGone);
        gateway_lost().with_incident(closed)
    };
    let all = Query::Incidents(IncidentsArgs { all: true, ..IncidentsArgs::default() });
    golden(&answer(memory(), &all), "incidents.txt");
    let open = Query::Incidents(IncidentsArgs { json: true, ..IncidentsArgs::default() });
    let said = answer(memory(), &open);
    let ids: Vec<String> = said
        .out
        .lines()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["id"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(ids, ["stale", "lost"]);
}

#[test]
fn incidents_are_narrowed_down_by_kind_pod_and_severity() {
    let (mut open, mut other) = (gateway_lost_view(), gateway_lost_view());
    (open.incident.id, other.incident.id) = ("its".into(), "other".into());
    (other.incident.kind, other.incident.severity) = ("volume-busy".into(), kevtmon_event::Severity::Warning);
    other.target = None;
    let memory = || Memory::default().with_view(open.clone()).with_view(other.clone());
    let ids = |args: IncidentsArgs| {
        let said = answer(memory(), &Query::Incidents(IncidentsArgs { json: true, ..args }));
        let ids =
            said.out.lines().map(|line| serde_json::from_str::<IncidentView>(line).unwrap().incident.id);
        (ids.collect::<Vec<_>>(), said.err)
    };
    let with = IncidentsArgs::default;
    assert_eq!(ids(IncidentsArgs { kind: vec!["volume-busy".into()], ..with() }).0, ["other"]);
    assert_eq!(ids(IncidentsArgs { severity: Some("critical".into()), ..with() }).0, ["its"]);
    for pod in ["lijiaob/etcd1-0", "3f0f6a0e-2f6a-4d4e-9d1f-1f2f3f4f5f6f"] {
        assert_eq!(ids(IncidentsArgs { pod: Some(pod.into()), ..with() }).0, ["its"]);
    }
    assert_eq!(ids(with()).0, ["its", "other"]);
    let (none, err) = ids(IncidentsArgs { pod: Some("lijiaob/etcd1-9".into()), ..with() });
    assert!(none.is_empty() && err.contains("no matching open incidents"), "{err}");
    for (args, expected) in [
        (IncidentsArgs { kind: vec!["mount.busy".into()], ..with() }, "gateway-neighbor-lost"),
        (IncidentsArgs { pod: Some("etcd".into()), ..with() }, "NAMESPACE/NAME"),
        (IncidentsArgs { severity: Some("loud".into()), ..with() }, "critical"),
    ] {
        let said = answer(memory(), &Query::Incidents(args));
        assert_eq!((said.code, said.out.as_str()), (exit::QUERY, ""));
        assert!(said.err.contains(expected), "{}", said.err);
    }
}

/// An open incident of the pod of the sample.
fn gateway_lost_view() -> IncidentView {
    let deletion = sample::deletion();
    let target = deletion.target.map(Shared::into_inner);
    IncidentView::new(incident("lost", 1), None, target, deletion.boot_id, 1)
}

#[test]
fn the_state_reads_well() {
    let mut state = crate::test_support::node_state::state();
    state.sources = vec![
        SourceStatus::down(SourceKind::Runtime, "docker:/run/docker.sock", "no socket"),
        SourceStatus {
            attach_mode: Some("tp_btf".into()),
            ..SourceStatus::up(SourceKind::Hook, "hook.neighbor")
        },
    ];
    state.counts = Counts::default();
    state.pods[0].host_links = vec!["cali-a".into()];
    state.containers = vec![ContainerStatus {
        container: Container {
            id: "593d8a89ee37".repeat(6)[..64].into(),
            name: Some("etcd\u{1b}[2J".into()),
            runtime: Some("docker".into()),
            pid: Some(4100),
            state: Some("running".into()),
            ..Container::default()
        },
        pod: Some(state.pods[0].pod.clone()),
        sandbox: false,
        attempt: Some(2),
        spec_hash: Some(0x5cf0_cfcf.into()),
        netns: Some(71),
        mntns: None,
        ip: Vec::new(),
        sources: vec!["docker:/run/docker.sock".into()],
        stale: true,
    }];
    let memory = || Memory::default().with_state(state.clone());
    golden(&answer(memory(), &Query::State(StateArgs::default())), "state.txt");
    let json = answer(memory(), &Query::State(StateArgs { json: true, ..StateArgs::default() }));
    assert_eq!(serde_json::from_str::<kevtmon_core::state::NodeState>(&json.out).unwrap(), state);
    let of_pod = |pod: &str| Query::State(StateArgs { pod: Some(pod.into()), ..StateArgs::default() });
    let one = answer(memory(), &of_pod("a/web"));
    assert!(one.out.contains("pod a/web") && !one.out.contains("b/web"), "{}", one.out);
    let unknown = answer(memory(), &of_pod("c/web"));
    assert_eq!((unknown.code, unknown.out.as_str()), (exit::QUERY, ""));
    let expected = "it is unknown whether a pod of this node is called c/web: no container runtime answers \
                    (docker:/run/docker.sock: no socket); `kevtmon state` lists the 2 pods that are known";
    assert!(unknown.err.contains(expected), "{}", unknown.err);
    let why = serde_json::from_str::<serde_json::Value>(&json.out).unwrap()["pods_incomplete"].clone();
    assert_eq!(why, "no container runtime answers (docker:/run/docker.sock: no socket)");
    state.sources[0] = SourceStatus::up(SourceKind::Runtime, "docker:/run/docker.sock");
    let memory = || Memory::default().with_state(state.clone());
    let none = answer(memory(), &of_pod("c/web"));
    assert_eq!((none.code, none.out.as_str()), (exit::FAILED, ""));
    assert!(none.err.contains("no pod of this node is called c/web"), "{}", none.err);
    let without = answer(Memory::default(), &Query::State(StateArgs::default()));
    assert_eq!((without.code, without.out.as_str()), (exit::FAILED, ""));
}

fn events(args: EventsArgs) -> Query {
    Query::Events(args)
}

#[test]
fn events_are_the_newest_hundred_or_all_since_a_moment() {
    let seqs = |args: EventsArgs| {
        let said = answer(Memory::of((1..=250).map(event)), &events(EventsArgs { json: true, ..args }));
        assert_eq!(said.code, exit::OK, "{}", said.err);
        said.out.lines().map(|line| serde_json::from_str::<Event>(line).unwrap().seq).collect::<Vec<_>>()
    };
    assert_eq!(seqs(EventsArgs::default()), (151..=250).collect::<Vec<_>>());
    assert_eq!(seqs(EventsArgs { limit: Some(3), ..EventsArgs::default() }), [248, 249, 250]);
    let since = || Some("4m".to_owned());
    assert_eq!(seqs(EventsArgs { since: since(), ..EventsArgs::default() }), (60..=250).collect::<Vec<_>>());
    let both = EventsArgs { since: since(), until: Some("3m55s".into()), ..EventsArgs::default() };
    assert_eq!(seqs(both), (60..=64).collect::<Vec<_>>());
    let newest = EventsArgs { since: since(), limit: Some(2), ..EventsArgs::default() };
    assert_eq!(seqs(newest), [249, 250]);
}

#[test]
fn an_event_is_shown_in_local_time_with_its_age_and_a_newer_kind_by_its_message() {
    let mut strange =
        serde_json::to_value(numbered(60, sample::daemon(kevtmon_event::Severity::Info))).unwrap();
    strange["kind"] = "disk.full".into();
    strange["message"] = "the disk\u{1b}[2J is full".into();
    let memory = Memory::of_lines([serde_json::to_string(&event(1)).unwrap(), strange.to_string()]);
    let said = answer(memory, &events(EventsArgs::default()));
    let heads: Vec<&str> = said.out.lines().filter(|line| !line.starts_with(' ')).collect();
    assert!(
        heads[0].starts_with("05:00:01 (4 min ago) warning  neighbor.deleted  static gateway ARP"),
        "{heads:?}"
    );
    assert_eq!(heads[1], "05:01:00 (4 min ago) info     disk.full         the disk\\x1b[2J is full");
}

#[test]
fn a_wrong_question_is_named_with_what_would_be_right() {
    for (args, expected) in [
        (
            EventsArgs { since: Some("soon".into()), ..EventsArgs::default() },
            "--since: \"soon\" is not a time",
        ),
        (EventsArgs { kind: vec!["mount.bzy".into()], ..EventsArgs::default() }, "mount.busy"),
        (
            EventsArgs { kind: vec!["volume-busy".into()], ..EventsArgs::default() },
            "`incidents --kind volume-busy`",
        ),
        (EventsArgs { pod: Some("etcd".into()), ..EventsArgs::default() }, "NAMESPACE/NAME"),
        (EventsArgs { container: Some("etcd".into()), ..EventsArgs::default() }, "first digits"),
        (EventsArgs { severity: Some("loud".into()), ..EventsArgs::default() }, "critical"),
        (EventsArgs { limit: Some(0), ..EventsArgs::default() }, "--limit"),
        (EventsArgs { follow: true, ..EventsArgs::default() }, "needs a running daemon"),
    ] {
        let said = answer(Memory::of([event(1)]), &events(args));
        assert_eq!((said.code, said.out.as_str()), (exit::QUERY, ""));
        assert!(said.err.contains(expected), "{}", said.err);
    }
}

#[test]
fn nothing_found_says_where_it_was_searched() {
    let kind = vec![Kind::MountBusy.name().to_owned()];
    let nothing = [
        events(EventsArgs { kind, ..EventsArgs::default() }),
        Query::Incidents(IncidentsArgs::default()),
        why("nobody"),
    ];
    for query in nothing {
        let said = answer(Memory::of([event(1)]), &query);
        assert_eq!((said.code, said.out.as_str()), (exit::FAILED, ""));
        assert!(
            said.err.contains(
                "searched the event store in /var/lib/k, which reaches back to 05:00:01 (4 min ago)"
            ),
            "{}",
            said.err
        );
    }
}

#[test]
fn a_word_that_means_several_things_lists_them_as_they_can_be_asked_for() {
    let said = answer(gateway_lost(), &why("web"));
    assert_eq!((said.code, said.out.as_str()), (exit::QUERY, ""));
    assert!(said.err.contains("web is ambiguous: 2 matches"), "{}", said.err);
    assert!(said.err.contains("\n  pod:a/web  pod a/web\n  pod:b/web  pod b/web\n"), "{}", said.err);
    let json = Query::Why(WhyArgs { word: "web".into(), json: true, ..WhyArgs::default() });
    let value: serde_json::Value = serde_json::from_str(&answer(gateway_lost(), &json).out).unwrap();
    assert_eq!(value["candidates"][1]["handle"], "pod:b/web");
}

#[test]
fn a_story_as_json_is_one_object() {
    let json = Query::Why(WhyArgs { word: "etcd1-0".into(), json: true, ..WhyArgs::default() });
    let value: serde_json::Value = serde_json::from_str(&answer(gateway_lost(), &json).out).unwrap();
    assert_eq!(value["subject"]["handle"], "pod:lijiaob/etcd1-0");
    assert_eq!(value["incidents"][1]["caused_by"][0]["confidence"], "likely");
    assert_eq!(value["verdict"]["open"], true);
    assert_eq!(value["steps"][0]["evidence_of"][0], "stale");
}

#[test]
fn what_comes_from_outside_cannot_steer_the_terminal() {
    let evil = "\u{1b}[2J\n\r\u{202e}evil";
    let mut odd = event(1);
    odd.message = evil.into();
    odd.actor.as_mut().unwrap().comm = evil.into();
    let mut trouble = incident(evil, 1);
    (trouble.kind, trouble.summary, trouble.evidence) = (evil.into(), evil.into(), vec![1]);
    trouble.caused_by = vec![evil.into()];
    let memory = || Memory::of([odd.clone()]).with_incident(trouble.clone());
    for query in [why("28997"), events(EventsArgs::default()), Query::Incidents(IncidentsArgs::default())] {
        let said = answer(memory(), &query);
        assert_eq!(said.code, exit::OK, "{}", said.err);
        let steers = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!said.out.contains(steers) && said.out.contains(r"\x1b[2J"), "{:?}", said.out);
    }
}

fn explain(line: &str) -> Query {
    Query::Explain(ExplainArgs { line: Some(line.into()), ..ExplainArgs::default() })
}

#[test]
fn a_line_of_a_log_leads_to_the_incident_behind_it() {
    let memory = || Memory::of([event(1)]).with_view(gateway_lost_view());
    let line = "I1208 09:05:01.000000 1234 prober.go:107] \"Probe failed\" probeType=\"Readiness\" pod=\"lijiaob/etcd1-0\"";
    let said = answer(memory(), &explain(line));
    assert_eq!((said.code, said.err.as_str()), (exit::OK, ""));
    for words in
        ["line 1: probe-failed (kubelet)", "pod       lijiaob/etcd1-0", "incident lost", "kevtmon why lost"]
    {
        assert!(said.out.contains(words), "{words} in {}", said.out);
    }
    let json = ExplainArgs { line: Some(line.into()), json: true, ..ExplainArgs::default() };
    let said = answer(memory(), &Query::Explain(json));
    let value: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((&value["form"], &value["incident"]["id"]), (&"probe-failed".into(), &"lost".into()));
    assert_eq!(value["about"][0]["name"], "lijiaob/etcd1-0");
    assert_eq!(value["incident"]["stale"]["reason"], "no daemon answers");
}

#[test]
fn a_line_without_an_incident_says_where_it_was_searched_and_one_that_is_not_known_that() {
    let memory = || Memory::of([event(1)]);
    let said = answer(memory(), &explain("umount: /mnt/\u{1b}[2J: target is busy\nall is well\n"));
    assert_eq!(said.code, exit::OK);
    assert!(
        said.out.contains("kevtmon holders $'/mnt/\\x1b[2J'") && !said.out.contains('\u{1b}'),
        "{}",
        said.out
    );
    for words in [
        "no open incident explains 1 of 1: searched the event store in /var/lib/k, which reaches back to",
        "no line that kevtmon knows: 1 of 2",
    ] {
        assert!(said.err.contains(words), "{words} in {}", said.err);
    }
    let unknown = answer(memory(), &explain("all is well"));
    assert_eq!((unknown.code, unknown.out.as_str()), (exit::FAILED, ""));
    assert_eq!(unknown.err, "kevtmon: no line that kevtmon knows: 1 of 1\n");
    let nothing = answer(memory(), &explain(" \n"));
    assert_eq!((nothing.code, nothing.err.as_str()), (exit::QUERY, "kevtmon: give a line of a log\n"));
}

#[test]
fn without_daemon_and_store_both_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let client =
        ClientArgs { socket: Some(dir.path().join("k.sock")), state_dir: Some(dir.path().join("state")) };
    let mut err = Vec::new();
    assert!(client.connect(&mut err).is_err());
    let err = String::from_utf8(err).unwrap();
    assert!(err.contains("no daemon listens on") && err.contains("k.sock"), "{err}");
    assert!(err.contains("no event store in") && err.contains("/state"), "{err}");
}

#[test]
fn the_examples_of_the_manual_are_what_the_commands_write() {
    let manual = include_str!("../../../../docs/queries.md");
    let examples: Vec<&str> =
        manual.split("```json\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let [event, incident, story, state] = &examples[..] else { panic!("{} examples", examples.len()) };
    let line = (*event).to_owned();
    let event: Event = serde_json::from_str(event).unwrap();
    let incident: IncidentView = serde_json::from_str(incident).unwrap();
    assert_eq!((&event.boot_id, &vec![event.seq]), (&incident.boot_id, &incident.incident.evidence));
    let state: kevtmon_core::state::NodeState = serde_json::from_str(state).unwrap();
    assert_eq!(state.pods[0].pod.uid, incident.target.as_ref().unwrap().pod.as_ref().unwrap().uid);
    let memory = Memory::of_lines([line]).with_view(incident).with_state(state);
    let json = Query::Why(WhyArgs { word: "lijiaob/etcd1-0".into(), json: true, ..WhyArgs::default() });
    let written: serde_json::Value = serde_json::from_str(&answer(memory, &json).out).unwrap();
    assert!(
        serde_json::from_str::<serde_json::Value>(story).unwrap() == written,
        "this is written now:\n{written:#}"
    );
}
