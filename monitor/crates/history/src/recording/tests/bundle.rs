//! From a window to one file, and back.

use super::super::bundle::{BundleError, bundle};
use super::super::format::{BundleHeader, Doctor};
use super::*;

#[test]
fn an_incident_freezes_its_window_and_becomes_a_bundle_that_replays() {
    let dir = tempfile::tempdir().unwrap();
    let mut live = Live::in_flight(dir.path());
    live.bustle(10, 5);
    live.open_incident("a1b2c3", 1);
    live.bustle(SECOND, 5);
    let closed = Incident { closed: Some("later".into()), ..incident("a1b2c3", 1) };
    let event = Event { incident: Some(Box::new(closed.clone())), kind: Kind::IncidentClosed, ..plain() };
    live.recorder.event(&event);
    live.observe(2 * SECOND, Fact::Stop);
    let said = live.finish();

    let mut packed = Vec::new();
    let writer = Writer { kevtmon: "9".into(), ..Writer::default() };
    bundle(dir.path(), "a1b", &writer, "now".into(), &mut packed).unwrap();
    let (again, summary) = replayed(&packed);
    assert_eq!(String::from_utf8(again).unwrap(), String::from_utf8(said).unwrap());
    assert_eq!(summary.skipped, 0);
    let Some(Line::Bundle(header)) = Reader::new(&packed[..]).next_line().unwrap() else { panic!() };
    let BundleHeader { incident, writer, state, .. } = *header;
    assert_eq!((incident, writer.kevtmon.as_str()), (closed, "9"));
    assert!(!state.unwrap().namespaces.is_empty());
}

#[test]
fn each_episode_of_an_incident_has_a_window_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let mut live = Live::in_flight(dir.path());
    live.bustle(10, 5);
    let mut pushed = |opened, episode, kind| {
        let incident = Incident { episode, ..incident("a1b2c3", opened) };
        live.recorder.event(&Event { incident: Some(Box::new(incident)), kind, ..plain() });
    };
    pushed(1, 1, Kind::IncidentOpened);
    pushed(1, 1, Kind::IncidentClosed);
    pushed(5, 2, Kind::IncidentOpened);
    live.observe(2 * SECOND, Fact::Stop);
    live.finish();
    let episode = |wanted: &str| {
        let mut packed = Vec::new();
        bundle(dir.path(), wanted, &Writer::default(), "now".into(), &mut packed).map(|()| {
            let Some(Line::Bundle(header)) = Reader::new(&packed[..]).next_line().unwrap() else { panic!() };
            header.incident.episode
        })
    };
    assert_eq!(episode("a1b2c3").unwrap(), 2, "the last one");
    assert_eq!(episode("a1b").unwrap(), 2);
    assert_eq!(episode("a1b2c3-1").unwrap(), 1);
    assert_eq!(episode("a1b2c3-2").unwrap(), 2);
    assert!(matches!(episode("a1b2c3-3"), Err(BundleError::Unknown { .. })));
}

#[test]
fn a_bundle_holds_all_that_a_stranger_needs_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let mut live = Live::new();
    let config = serde_json::json!({"node_name": "n"});
    let daemon =
        Writer { kevtmon: "8".into(), kernel: "3.10".into(), config: config.clone(), ..Writer::default() };
    live.recorder = Recorder::new(daemon, 7, Arc::clone(&live.metrics));
    live.recorder.add_flight(dir.path(), &FLIGHT).unwrap();
    live.begin();
    let hook = SourceStatus {
        lacks: None,
        absent: false,
        vacant: false,
        source: "hook.neighbor".into(),
        kind: SourceKind::Hook,
        up: true,
        attach_mode: Some("netlink".into()),
        reason: Some("no BTF".into()),
    };
    live.observe(5, Fact::Source(hook.clone()));
    live.open_incident("abc", 1);
    live.finish();
    let mut packed = Vec::new();
    let packer = Writer { kevtmon: "9".into(), kernel: "6.12".into(), ..Writer::default() };
    bundle(dir.path(), "abc", &packer, "now".into(), &mut packed).unwrap();
    let first = packed.split(|byte| *byte == b'\n').next().unwrap();
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(first).unwrap();
    let members: Vec<&str> = header.keys().map(String::as_str).collect();
    let expected = ["config", "created", "doctor", "format", "incident", "kernel", "kevtmon", "revision"];
    assert_eq!(members, [&expected[..], &["state", "version"]].concat());
    assert_eq!((&header["kevtmon"], &header["kernel"]), (&"9".into(), &"6.12".into()));
    let doctor: Doctor = serde_json::from_value(header["doctor"].clone()).unwrap();
    assert_eq!((doctor.kevtmon.as_str(), doctor.kernel.as_str()), ("8", "3.10"));
    assert!(doctor.sources.contains(&hook), "{doctor:?}");
    assert_eq!(header["state"]["node"], "slave-197");
    assert_eq!(header["config"], config);
}

#[test]
fn a_bundle_of_what_nobody_kept_names_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let pack = |wanted: &str| bundle(dir.path(), wanted, &Writer::default(), String::new(), io::sink());
    let error = pack("x").unwrap_err().to_string();
    assert!(error.ends_with("there is none") && error.contains("incidents"), "{error}");
    let mut live = Live::in_flight(dir.path());
    live.open_incident("aa1", 1);
    live.open_incident("aa2", 2);
    live.finish();
    assert!(pack("x").unwrap_err().to_string().ends_with("there are aa1, aa2"));
    assert!(matches!(pack("aa").unwrap_err(), BundleError::Ambiguous { .. }));
    for outside in ["../recorder", ".", ""] {
        assert!(pack(outside).is_err(), "{outside}");
    }
    pack("aa2").unwrap();
}

#[test]
fn what_a_killed_daemon_left_is_part_of_the_next_window() {
    let dir = tempfile::tempdir().unwrap();
    let first = Live::in_flight(dir.path());
    let said = first.finish();
    let (_, segment) = numbered(&dir.path().join("recorder")).unwrap().pop().unwrap();
    let mut cut = fs::read(&segment).unwrap();
    cut.truncate(cut.len() - 5);
    fs::write(&segment, cut).unwrap();

    let mut second = Live::new();
    second.recorder = Recorder::new(Writer::default(), 8, Arc::clone(&second.metrics));
    second.recorder.add_flight(dir.path(), &FLIGHT).unwrap();
    second.begin();
    second.open_incident("abc", 1);
    let said_later = second.finish();
    let mut packed = Vec::new();
    bundle(dir.path(), "abc", &Writer::default(), String::new(), &mut packed).unwrap();
    let (again, summary) = replayed(&packed);
    assert_eq!(again, [said, said_later].concat());
    assert_eq!(summary.cut.len(), 1);
}

#[test]
fn an_incident_whose_id_is_no_name_reaches_no_other_directory() {
    let dir = tempfile::tempdir().unwrap();
    let mut live = Live::in_flight(dir.path());
    live.open_incident("../recorder", 1);
    live.finish();
    assert_eq!(numbered(&dir.path().join("recorder")).unwrap().len(), 1);
    assert_eq!(fs::read_dir(dir.path().join("incidents")).unwrap().count(), 0);
}

#[test]
fn old_windows_go_closed_ones_first() {
    let dir = tempfile::tempdir().unwrap();
    let mut live = Live::in_flight(dir.path());
    for number in 0..25 {
        live.open_incident(&format!("id{number:02}"), number);
        if number == 10 {
            let closed = Incident { closed: Some("later".into()), ..incident("id10", 10) };
            let event = Event { incident: Some(Box::new(closed)), kind: Kind::IncidentClosed, ..plain() };
            live.recorder.event(&event);
        }
    }
    live.finish();
    let mut left: Vec<String> = fs::read_dir(dir.path().join("incidents"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_type().unwrap().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    left.sort();
    let expected: Vec<String> =
        (4..25).filter(|number| *number != 10).map(|number| format!("id{number:02}")).collect();
    assert_eq!(left, expected);
    let bundled = |wanted: &str| bundle(dir.path(), wanted, &Writer::default(), "now".into(), io::sink());
    for unknown in ["id00", "id10", "id10-1", "id99", "id10-2", ""] {
        let error = bundled(unknown).unwrap_err();
        assert!(matches!(error, BundleError::Unknown { .. }), "{unknown}");
        assert!(error.to_string().contains("which keeps 20, of 64 MiB at most; there are "), "{error}");
    }
    bundled("id24").unwrap();
}
