//! Screens to the letter, and what keys do. The clock is fixed.

use jiff::tz::TimeZone;
use kevtmon_event::{Incident, Shared};
use kevtmon_observation::{SourceKind, SourceStatus};
use kevtmon_testing::{numbered, sample};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Cell;

use super::*;

fn report() -> DaemonReport {
    let absent = SourceStatus {
        absent: true,
        ..SourceStatus::down(SourceKind::Runtime, "cri", "no socket at /run/containerd.sock")
    };
    DaemonReport {
        version: "0.1.0".into(),
        revision: "r".into(),
        node: "slave-197".into(),
        pid: 1,
        state_dir: "/state".into(),
        ready: true,
        capabilities: None,
        capabilities_at_start: None,
        no_new_privs: None,
        calls_filtered: None,
        pins: Vec::new(),
        sources: vec![
            SourceStatus::up(SourceKind::Netlink, "netlink"),
            SourceStatus::up(SourceKind::Hook, "hook.neighbor"),
            SourceStatus::down(SourceKind::Runtime, "docker", "no socket at /run/docker.sock"),
            absent,
        ],
    }
}

fn incident(id: &str, severity: Severity, kind: &str, summary: &str, second: u32) -> IncidentView {
    let incident = Incident {
        severity,
        kind: kind.into(),
        summary: summary.into(),
        opened: format!("2026-01-02T03:04:{second:02}Z"),
        ..numbered::incident(id, 1)
    };
    let actor = sample::deletion().actor.map(Shared::into_inner);
    IncidentView::new(incident, actor, None, "boot".into(), 1)
}

fn incidents() -> Vec<IncidentView> {
    let lost = "calico (pid 28997) deleted the static ARP entry of the gateway 169.254.1.1 of pod lijiaob/etcd1-0: the pod has \
                no network";
    let busy = "volume cam-pv-50g of pod cam/cam1-78b6fc6bc8-cjsw5 cannot be unmounted: \u{1b}[2J\u{202e}evil (pid 94549) holds it";
    vec![
        incident("veth", Severity::Notice, "orphan-veth", "veth cali4f2a6c7d8e9 is still on this node", 10),
        incident("busy", Severity::Warning, "volume-busy", busy, 50),
        incident("lost", Severity::Critical, "gateway-neighbor-lost", lost, 40),
    ]
}

/// A node with an event of a pod and one without.
fn view() -> View {
    let now = "2026-01-02T03:05:00Z".parse().unwrap();
    let mut view = View::new(Clock { now, zone: TimeZone::UTC });
    for event in [sample::deletion(), sample::daemon(Severity::Info)] {
        let record = Record::read(serde_json::to_string(&event).unwrap()).unwrap();
        view.update(Answer::Event(Box::new(record)));
    }
    view.update(Answer::State(Ok((incidents(), report()))));
    view
}

fn screen(view: &mut View, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view.draw(frame)).unwrap();
    let cells = terminal.backend().buffer().content();
    let line = |row: &[Cell]| {
        let text: String = row.iter().map(Cell::symbol).collect();
        format!("{}\n", text.trim_end())
    };
    cells.chunks(width.into()).map(line).collect()
}

#[track_caller]
fn golden(shown: &str, name: &str) {
    let path = format!("{}/src/cli/top/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("KEVTMON_BLESS").is_some() {
        std::fs::write(&path, shown).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert!(shown == expected, "this is what is shown now:\n{shown}");
}

#[test]
fn the_worst_incident_comes_first_and_a_name_cannot_steer_the_terminal() {
    let mut view = view();
    view.press(Input::Down(1));
    golden(&screen(&mut view, 80, 24), "incidents.txt");
}

#[test]
fn a_node_without_an_incident() {
    let mut view = view();
    view.update(Answer::State(Ok((Vec::new(), report()))));
    golden(&screen(&mut view, 80, 24), "quiet.txt");
    assert_eq!(view.press(Input::Why), None);
}

#[test]
fn a_daemon_that_does_not_answer_is_named_until_it_does() {
    let mut view = view();
    view.update(Answer::State(Err("no daemon listens on /run/kevtmon/kevtmon.sock".into())));
    view.tick("2026-01-02T03:05:02Z".parse().unwrap());
    // The time is that of the first failure.
    view.update(Answer::State(Err("no daemon listens on /run/kevtmon/kevtmon.sock".into())));
    golden(&screen(&mut view, 80, 24), "gone.txt");
    view.update(Answer::State(Ok((incidents(), report()))));
    let shown = screen(&mut view, 80, 24);
    assert!(shown.contains("Open incidents (3)\n") && !shown.contains("no answer"), "{shown}");
}

#[test]
fn a_screen_of_any_size_is_drawn() {
    let mut view = view();
    for (width, height) in [(0, 0), (1, 1), (1, 24), (80, 1), (2, 2), (13, 3), (40, 10), (300, 90)] {
        for input in [Input::Why, Input::Down(10), Input::Back, Input::Down(1)] {
            view.press(input);
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| view.draw(frame)).unwrap();
        }
    }
}

#[test]
fn the_story_of_the_selected_incident_is_scrolled_and_left() {
    let mut view = view();
    assert_eq!(view.press(Input::Why), Some("lost".into()));
    assert!(screen(&mut view, 80, 24).starts_with("querying incident lost …\n"));
    view.update(Answer::Why("busy".into(), Err("of another incident".into())));
    assert!(screen(&mut view, 80, 24).starts_with("querying incident lost …\n"));
    view.set_story((0..100).map(|line| format!("line {line}\n")).collect());
    view.press(Input::Down(10));
    view.press(Input::Up(1));
    assert!(screen(&mut view, 80, 24).starts_with("line 9\n"));
    (0..20).for_each(|_| drop(view.press(Input::Down(10))));
    assert!(screen(&mut view, 80, 24).starts_with("line 99\n"));
    view.press(Input::Back);
    assert!(screen(&mut view, 80, 24).contains("Open incidents (3)"));
}

#[test]
fn the_selected_incident_stays_selected() {
    let mut view = view();
    view.press(Input::Down(10));
    assert_eq!(view.press(Input::Why), Some("veth".into()), "the last");
    view.press(Input::Back);
    view.update(Answer::State(Ok((incidents().split_off(1), report()))));
    assert_eq!(view.press(Input::Why), Some("busy".into()), "the nearest to one that is closed");
    view.press(Input::Back);
    let again =
        [incident("new", Severity::Critical, "volume-busy", "a new one", 55)].into_iter().chain(incidents());
    view.update(Answer::State(Ok((again.collect(), report()))));
    assert_eq!(view.press(Input::Why), Some("busy".into()), "it is the third by now");
}
