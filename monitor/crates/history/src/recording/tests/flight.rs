//! The flight recorder where the state directory cannot be used.

use std::sync::mpsc::sync_channel;

use kevtmon_testing::patience::eventually;

use super::*;

#[test]
fn a_state_directory_that_cannot_be_written_costs_only_the_flight_recorder_until_it_can() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    fs::write(&state, "").unwrap();
    let (tell, told) = sync_channel(10);
    let mut live = Live::new();
    live.recorder = live.recorder.telling(move |status| tell.send(status).unwrap());
    let down = live.recorder.add_flight(&state, &FLIGHT).unwrap().unwrap();
    assert_eq!((down.source.as_str(), down.up), ("recorder", false));
    assert!(down.reason.unwrap().contains("Not a directory"));
    live.begin();
    fs::remove_file(&state).unwrap();
    let mut at = 3;
    eventually("it is tried again", || {
        at += 60 * SECOND;
        live.observe(at, Fact::Tick);
        told.try_recv() == Ok(SourceStatus::up(SourceKind::Sink, "recorder"))
    });
    assert!(!live.finish().is_empty());
    assert_eq!(told.try_recv().ok(), None, "no more than that");
    assert!(!numbered(&state.join("recorder")).unwrap().is_empty());
}

#[test]
fn a_second_daemon_leaves_the_flight_recorder_to_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let (mut first, mut second) = (Live::new(), Live::new());
    assert_eq!(first.recorder.add_flight(dir.path(), &FLIGHT).unwrap(), None);
    let refused = second.recorder.add_flight(dir.path(), &FLIGHT).unwrap().unwrap();
    assert!(refused.reason.unwrap().contains("another kevtmon"));
    second.begin();
    second.finish();
    assert_eq!(numbered(&dir.path().join("recorder")).unwrap(), []);
    first.begin();
    first.finish();
    assert_eq!(numbered(&dir.path().join("recorder")).unwrap().len(), 1);
}
