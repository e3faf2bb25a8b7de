//! Events and incidents by number: the time follows from it.

use jiff::{SignedDuration, Timestamp};
use kevtmon_event::{Confidence, Event, Incident, Severity};

use super::sample;

/// Time of the event or incident of this number.
pub fn time(seq: u64) -> String {
    let start: Timestamp = "2026-01-02T03:00:00Z".parse().unwrap();
    format!("{:.9}", start + SignedDuration::from_secs(i64::try_from(seq).unwrap()))
}

/// A deletion as the event of this number.
pub fn event(seq: u64) -> Event {
    numbered(seq, sample::deletion())
}

/// This event under another number.
pub fn numbered(seq: u64, event: Event) -> Event {
    Event { seq, time: time(seq), ..event }
}

/// An open incident that was last seen at the time of an event.
pub fn incident(id: &str, last: u64) -> Incident {
    Incident {
        id: id.into(),
        kind: "gateway-neighbor-lost".into(),
        severity: Severity::Critical,
        confidence: Confidence::Certain,
        opened: time(last),
        closed: None,
        first_seen: time(last),
        last_seen: time(last),
        count: 1,
        counted: "observations".into(),
        counted_since: None,
        episode: 1,
        clock_set_ms: 0,
        ruled_out: Vec::new(),
        close_reason: None,
        found_at_start: false,
        caused_by: Vec::new(),
        host_cause: None,
        summary: format!("incident {id}"),
        advice: Vec::new(),
        evidence: Vec::new(),
        evidence_omitted: 0,
    }
}
