//! The wall clock is set while an incident is open: that is told, and how long it was open stays the same.

use kevtmon_core::{Core, Output, Resume};
use kevtmon_event::{Event, Kind};
use kevtmon_observation::{Fact, Observation, Source};
use kevtmon_types::clock::MS;

use super::golden::{feed, fixtures, observations};
use crate::query::record::timestamp;

const HOUR_MS: i64 = 3_600_000;

/// What a recording leads to if the clock is set by so much before its incident closes, and goes on for an hour after that.
fn told(by_ms: i64) -> Vec<Event> {
    let path = fixtures().into_iter().find(|path| path.ends_with("gateway-neighbor-lost.ndjson")).unwrap();
    let (header, mut recorded) = observations(&path);
    let offset = recorded.iter().find_map(|it| match it.fact {
        Fact::Clock { realtime_offset_ns } => Some(realtime_offset_ns),
        _ => None,
    });
    let closing = recorded.iter().rposition(|it| matches!(it.fact, Fact::Neighbor(_))).unwrap();
    let at = recorded[closing].at;
    let clock = Fact::Clock { realtime_offset_ns: offset.unwrap() + by_ms * MS.cast_signed() };
    recorded.insert(closing, Observation { at, source: Source::Daemon, fact: clock });
    let later = at + HOUR_MS.unsigned_abs() * MS;
    recorded.push(Observation { at: later, source: Source::Daemon, fact: Fact::Tick });
    let output = feed(&mut Core::new(header.settings, Resume::default()), &recorded);
    let event = |output: Output| match output {
        Output::Event(event) => Some(*event),
        Output::Request(_) => None,
    };
    output.into_iter().filter_map(event).collect()
}

/// Milliseconds from its opening to its end.
fn lasted(events: &[Event]) -> i64 {
    let closed = events.iter().find(|event| event.kind == Kind::IncidentClosed).unwrap();
    let incident = closed.incident.as_ref().unwrap();
    let [from, to] = [&incident.opened, incident.closed.as_ref().unwrap()].map(|text| timestamp(text));
    to.as_millisecond() - from.as_millisecond() - incident.clock_set_ms
}

#[test]
fn an_incident_lasts_as_long_as_it_did_whatever_the_clock_is_set_to() {
    for by_ms in [0, HOUR_MS, -HOUR_MS] {
        assert_eq!(lasted(&told(by_ms)), 520_690, "{by_ms}");
    }
}

#[test]
fn that_the_clock_was_set_is_told_once_until_times_compare_again() {
    let of_clock = |by_ms| {
        let events = told(by_ms).into_iter().filter(|event| event.message.starts_with("clock "));
        events.map(|event| event.message).collect::<Vec<_>>()
    };
    let degraded = |how: &str| format!("clock is degraded: it was set {how}");
    assert_eq!(
        of_clock(HOUR_MS),
        [degraded("forward by 1 h, so that times from before are 1 h behind"), "clock is back".into()]
    );
    assert_eq!(
        of_clock(-HOUR_MS),
        [degraded("back by 1 h, so that times from before are 1 h ahead"), "clock is back".into()]
    );
    assert_eq!(of_clock(1_000), [""; 0], "it is adjusted all the time");
}
