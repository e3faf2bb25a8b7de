//! A memory for the tests of queries: events and incidents in a list, searched from end to end.

use std::sync::Arc;

use kevtmon_core::state::NodeState;
use kevtmon_event::{Event, Incident};
use kevtmon_history::query::filter::{EventFilter, IncidentFilter};
use kevtmon_history::query::history::{
    Extent, Found, History, HistoryError, IncidentView, LiveHistory, Page,
};
use kevtmon_history::query::{Record, wire};
pub use kevtmon_testing::numbered::{event, incident, numbered, time};
use kevtmon_testing::sample;

/// Everything that it was given.
#[derive(Clone, Default)]
pub struct Memory {
    records: Vec<Record>,
    pub incidents: Vec<IncidentView>,
    state: Option<NodeState>,
}

impl Memory {
    pub fn of(events: impl IntoIterator<Item = Event>) -> Self {
        Self::of_lines(events.into_iter().map(|event| serde_json::to_string(&event).unwrap()))
    }

    pub fn of_lines(lines: impl IntoIterator<Item = String>) -> Self {
        let records = lines.into_iter().map(|line| Record::read(line).unwrap()).collect();
        Self { records, ..Self::default() }
    }

    pub fn with_incident(self, incident: Incident) -> Self {
        let (boot_id, seq) = (sample::deletion().boot_id, 0);
        self.with_view(IncidentView::new(incident, None, None, boot_id, seq))
    }

    pub fn with_view(mut self, view: IncidentView) -> Self {
        self.incidents.push(view);
        self
    }

    pub fn with_state(mut self, state: NodeState) -> Self {
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

pub fn shared(memory: Memory) -> Arc<dyn LiveHistory> {
    Arc::new(memory)
}
