//! A memory for the tests of queries: events and incidents in a list, searched from end to end.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::core::state::NodeState;
use crate::event::{Confidence, Event, Incident, Severity};
use crate::query::filter::{EventFilter, IncidentFilter};
use crate::query::history::{Extent, Found, History, HistoryError, IncidentView, LiveHistory, Page};
use crate::query::{Record, wire};
use crate::tests::sample;

/// Time of the event or incident of this number.
pub(crate) fn time(seq: u64) -> String {
    let start: Timestamp = "2026-01-02T03:00:00Z".parse().unwrap();
    format!("{:.9}", start + SignedDuration::from_secs(i64::try_from(seq).unwrap()))
}

/// A deletion as the event of this number.
pub(crate) fn event(seq: u64) -> Event {
    numbered(seq, sample::deletion())
}

/// This event under another number.
pub(crate) fn numbered(seq: u64, event: Event) -> Event {
    Event { seq, time: time(seq), ..event }
}

/// An open incident that was last seen at the time of an event.
pub(crate) fn incident(id: &str, last: u64) -> Incident {
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
        ruled_out: Vec::new(),
        close_reason: None,
        found_at_start: false,
        caused_by: Vec::new(),
        summary: format!("incident {id}"),
        advice: Vec::new(),
        evidence: Vec::new(),
        evidence_omitted: 0,
    }
}

/// Everything that it was given.
#[derive(Clone, Default)]
pub(crate) struct Memory {
    records: Vec<Record>,
    pub(crate) incidents: Vec<IncidentView>,
    state: Option<NodeState>,
}

impl Memory {
    pub(crate) fn of(events: impl IntoIterator<Item = Event>) -> Self {
        Self::of_lines(events.into_iter().map(|event| serde_json::to_string(&event).unwrap()))
    }

    pub(crate) fn of_lines(lines: impl IntoIterator<Item = String>) -> Self {
        let records = lines.into_iter().map(|line| Record::read(line).unwrap()).collect();
        Self { records, ..Self::default() }
    }

    pub(crate) fn with_incident(self, incident: Incident) -> Self {
        let (boot_id, seq) = (sample::deletion().boot_id, 0);
        self.with_view(IncidentView::new(incident, None, None, boot_id, seq))
    }

    pub(crate) fn with_view(mut self, view: IncidentView) -> Self {
        self.incidents.push(view);
        self
    }

    pub(crate) fn with_state(mut self, state: NodeState) -> Self {
        self.state = Some(state);
        self
    }
}

impl History for Memory {
    fn events(&self, filter: &EventFilter) -> Result<Page, HistoryError> {
        let found: Vec<Found> = self
            .records
            .iter()
            .filter(|record| filter.matches(record))
            .map(|record| wire::found(&record.line).unwrap())
            .collect();
        Ok(Page::cut(found, filter))
    }

    fn incidents(&self, filter: &IncidentFilter) -> Result<Vec<IncidentView>, HistoryError> {
        Ok(self.incidents.iter().filter(|view| filter.wants(view)).cloned().collect())
    }

    fn extent(&self) -> Result<Extent, HistoryError> {
        let last = self.records.last().map(|record| &record.event);
        Ok(Extent {
            from: self.records.first().map(|record| record.event.time.clone()),
            to: last.map(|event| event.time.clone()),
            last_seq: last.map_or(0, |event| event.seq),
            boot_id: last.map(|event| event.boot_id.clone()).unwrap_or_default(),
            node: last.map(|event| event.node.clone()).unwrap_or_default(),
        })
    }

    fn state(&self) -> Result<Option<NodeState>, HistoryError> {
        Ok(self.state.clone())
    }
}

impl LiveHistory for Memory {
    fn snapshot(&self) -> Option<Box<dyn History>> {
        Some(Box::new(self.clone()))
    }
}

/// A shared copy.
pub(crate) fn shared(memory: Memory) -> Arc<dyn LiveHistory> {
    Arc::new(memory)
}
