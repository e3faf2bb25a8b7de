//! One interface for everything that keeps events and incidents: the daemon's memory, its socket, a store.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use jiff::Timestamp;
use kevtmon_core::state::NodeState;
use kevtmon_event::{Actor, CloseReason, Event, Incident, LeakedMount, Pod, SCHEMA, Shared, Target};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::filter::{EventFilter, IncidentFilter, MAX_LIMIT, Order, Position};
use super::record::{Record, RecordError, timestamp};
use super::stale::Stale;

/// Maximum size of the JSON on one page, in bytes; there is at least one event on it.
pub const PAGE_BYTES: usize = 4 << 20;

/// Past events and incidents.
pub trait History: Send + Sync {
    /// Events that match: at most `filter.limit` and [`PAGE_BYTES`], the oldest first in
    /// either order.
    fn events(&self, filter: &EventFilter) -> Result<Page, HistoryError>;

    /// Each incident by its newest event, the oldest first.
    fn incidents(&self, filter: &IncidentFilter) -> Result<Vec<IncidentView>, HistoryError>;

    /// How far it reaches.
    fn extent(&self) -> Result<Extent, HistoryError>;

    /// The numbers of all events of a boot between two numbers, without these.
    fn numbers(&self, boot_id: &str, after: u64, before: u64) -> Result<BTreeSet<u64>, HistoryError> {
        let mut filter = EventFilter {
            boot_id: Some(boot_id.to_owned()),
            after: Some(after),
            order: Order::Oldest,
            limit: MAX_LIMIT,
            ..EventFilter::default()
        };
        let mut numbers = BTreeSet::new();
        loop {
            let page = self.events(&filter)?;
            numbers.extend(page.events.iter().map(|found| found.position.seq).filter(|seq| *seq < before));
            filter.cursor = page.next;
            if filter.cursor.is_none() {
                return Ok(numbers);
            }
        }
    }

    /// The model of the node, where it is known.
    fn state(&self) -> Result<Option<NodeState>, HistoryError> {
        Ok(None)
    }
}

/// A history that goes on while it is read.
pub trait LiveHistory: History {
    /// The history as it is at this moment, for several queries that belong together; `None` where it cannot be
    /// read.
    fn snapshot(&self) -> Option<Box<dyn History>>;
}

/// Why a query has no answer.
#[derive(Debug, Error)]
pub enum HistoryError {
    #[error(transparent)]
    Unanswered(Box<dyn std::error::Error + Send + Sync>),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("cannot read {what}")]
    Unreadable {
        /// The file or table.
        what: String,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// An event as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub position: Position,
    /// Its JSON.
    pub line: Arc<str>,
}

/// One page of the events of a query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// The events, the oldest first.
    pub events: Vec<Found>,
    /// The cursor of the page after this one, if there is more.
    pub next: Option<Position>,
}

impl Page {
    /// Cuts what was found to one page. `found` has the matching events up to one more than the limit,
    /// in any order.
    pub fn cut(mut found: Vec<Found>, filter: &EventFilter) -> Self {
        found.sort_unstable_by_key(|found| found.position);
        found.dedup_by_key(|found| found.position);
        if filter.order == Order::Newest {
            found.reverse();
        }
        let mut bytes = 0_usize;
        let fits = found
            .iter()
            .take(filter.limit)
            .take_while(|found| {
                let first = bytes == 0;
                bytes = bytes.saturating_add(found.line.len());
                first || bytes <= PAGE_BYTES
            })
            .count();
        let more = found.len() > fits;
        found.truncate(fits);
        let next = found.last().map(|last| last.position).filter(|_| more);
        if filter.order == Order::Newest {
            found.reverse();
        }
        Self { events: found, next }
    }
}

/// How far a history reaches.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Time of the oldest event it has, RFC 3339.
    pub from: Option<String>,
    /// Time of the newest.
    pub to: Option<String>,
    /// Number of the newest event.
    pub last_seq: u64,
    /// The boot that it belongs to.
    pub boot_id: String,
    pub node: String,
}

/// An incident, with the actor and target of its newest event.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "kevtmon incident")]
pub struct IncidentView {
    #[serde(flatten)]
    pub incident: Incident,
    /// The process that did it.
    pub actor: Option<Actor>,
    /// The container and pod that are affected.
    pub target: Option<Target>,
    /// Mounts that are left in the mount namespace of the actor.
    pub leaks: Option<Vec<LeakedMount>>,
    /// Boot that its evidence numbers belong to.
    pub boot_id: String,
    /// Number of its newest event.
    pub seq: u64,
    /// It is open because it opens again and again, and nothing has been wrong since then, RFC 3339.
    #[schemars(extend("format" = "date-time"))]
    pub well_since: Option<String>,
    /// It is not known whether it is still so; then it is without advice.
    pub stale: Option<Stale>,
}

/// What is to be said before the summary of an incident that is not known to be so now: the summary is that of the time
/// when it was.
pub fn status(
    closed: Option<&str>,
    reason: Option<CloseReason>,
    well_since: Option<&str>,
    stale: Option<&Stale>,
) -> Option<&'static str> {
    match (closed, stale, well_since) {
        (Some(_), ..) => Some(reason.map_or("closed", CloseReason::phrase)),
        (None, Some(_), _) => Some("last known"),
        (None, None, Some(_)) => Some("intermittent, not active now"),
        (None, None, None) => None,
    }
}

impl IncidentView {
    /// An incident as an event tells it.
    pub fn new(
        incident: Incident,
        actor: Option<Actor>,
        target: Option<Target>,
        boot_id: String,
        seq: u64,
    ) -> Self {
        Self { incident, actor, target, leaks: None, boot_id, seq, well_since: None, stale: None }
    }

    /// What is to be said before its summary, where it is not known to be so now.
    pub fn status(&self) -> Option<&'static str> {
        let Incident { closed, close_reason, .. } = &self.incident;
        status(closed.as_deref(), *close_reason, self.well_since.as_deref(), self.stale.as_ref())
    }

    /// What was counted and over which time. Where it is not known whether it is still so, it may be more.
    pub fn repeated(&self) -> Option<String> {
        let repeated = self.incident.repeated()?;
        Some(if self.stale.is_some() { format!("at least {repeated}") } else { repeated })
    }

    /// Parses the newest event of an incident.
    pub fn read(json: &str) -> Result<Option<Self>, RecordError> {
        /// Not all of it: a mount can have hundreds of holders.
        #[derive(Deserialize)]
        struct Parts {
            schema: u32,
            seq: u64,
            boot_id: String,
            incident: Incident,
            actor: Option<Actor>,
            target: Option<Target>,
            leaks: Option<Vec<LeakedMount>>,
        }
        if let Ok(Parts { schema: SCHEMA, seq, boot_id, incident, actor, target, leaks }) =
            serde_json::from_str(json)
        {
            return Ok(Some(Self { leaks, ..Self::new(incident, actor, target, boot_id, seq) }));
        }
        // Of a newer version: as much as can be understood.
        let Event { incident, actor, target, leaks, boot_id, seq, .. } = Record::read(json)?.event;
        let (actor, target) = (actor.map(Shared::into_inner), target.map(Shared::into_inner));
        Ok(incident.map(|incident| Self { leaks, ..Self::new(*incident, actor, target, boot_id, seq) }))
    }

    /// The pods that are affected or did it.
    pub(super) fn pods(&self) -> impl Iterator<Item = &Pod> {
        let target = self.target.as_ref().and_then(|target| target.pod.as_ref());
        let actor = self.actor.as_ref().and_then(|actor| actor.pod.as_ref());
        target.into_iter().chain(actor)
    }

    /// Identity of the episode: an incident can open again, with the same id.
    pub fn episode(&self) -> (String, String) {
        (self.incident.id.clone(), self.incident.opened.clone())
    }

    pub fn is_open(&self) -> bool {
        self.incident.closed.is_none()
    }

    pub fn last_seen(&self) -> Timestamp {
        timestamp(&self.incident.last_seen)
    }
}

/// A history of the newest events, in front of one that reaches further back.
pub struct Layered<N, O> {
    newest: N,
    older: O,
}

impl<N: Deref<Target: History>, O: Deref<Target: History>> Layered<N, O> {
    /// Both together; what both have is there once.
    pub fn new(newest: N, older: O) -> Self {
        Self { newest, older }
    }
}

impl<N, O> fmt::Debug for Layered<N, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Layered")
    }
}

impl<N, O> History for Layered<N, O>
where
    N: Deref<Target: History> + Send + Sync,
    O: Deref<Target: History> + Send + Sync,
{
    fn events(&self, filter: &EventFilter) -> Result<Page, HistoryError> {
        let (new, old) = (self.newest.events(filter)?, self.older.events(filter)?);
        // Beyond the end of one page, only that history has what comes.
        let stop = match filter.order {
            Order::Newest => new.next.into_iter().chain(old.next).max(),
            Order::Oldest => new.next.into_iter().chain(old.next).min(),
        };
        let mut found: Vec<Found> = new.events.into_iter().chain(old.events).collect();
        if let Some(stop) = stop {
            found.retain(|found| match filter.order {
                Order::Newest => found.position >= stop,
                Order::Oldest => found.position <= stop,
            });
        }
        let mut page = Page::cut(found, filter);
        page.next = page.next.or(stop);
        Ok(page)
    }

    fn incidents(&self, filter: &IncidentFilter) -> Result<Vec<IncidentView>, HistoryError> {
        // The older history may not have the newest update of an incident yet.
        let newest = self.newest.incidents(&filter.of_any_update())?;
        let mut latest: BTreeMap<(String, String), IncidentView> = BTreeMap::new();
        for view in self.older.incidents(filter)?.into_iter().chain(newest) {
            let known = latest.get(&view.episode());
            if known.is_none_or(|known| known.last_seen() <= view.last_seen()) {
                latest.insert(view.episode(), view);
            }
        }
        let mut views: Vec<IncidentView> = latest.into_values().filter(|view| filter.wants(view)).collect();
        views.sort_by(|a, b| a.incident.opened.cmp(&b.incident.opened));
        Ok(views)
    }

    fn extent(&self) -> Result<Extent, HistoryError> {
        let (new, old) = (self.newest.extent()?, self.older.extent()?);
        let from = old.from.clone().or_else(|| new.from.clone());
        Ok(Extent { from, ..if new.to.is_some() { new } else { old } })
    }

    fn state(&self) -> Result<Option<NodeState>, HistoryError> {
        match self.newest.state()? {
            Some(state) => Ok(Some(state)),
            None => self.older.state(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::memory::{Memory, event, incident};

    fn seqs(page: &Page) -> Vec<u64> {
        page.events.iter().map(|found| found.position.seq).collect()
    }

    /// The newest ten, and the first ninety-five: half a page is known to both.
    fn layered() -> Layered<Arc<Memory>, Arc<Memory>> {
        let memory = |from, to| Arc::new(Memory::of((from..=to).map(event)));
        Layered::new(memory(91, 100), memory(1, 95))
    }

    #[test]
    fn pages_follow_each_other_without_gap_or_repetition_in_both_orders() {
        for order in [Order::Newest, Order::Oldest] {
            for limit in [1, 7, 10, 99, 100, 101] {
                let mut filter = EventFilter { order, limit, ..EventFilter::default() };
                let mut all = Vec::new();
                loop {
                    let page = layered().events(&filter).unwrap();
                    let seqs = seqs(&page);
                    assert!(seqs.is_sorted() && seqs.len() <= limit);
                    match order {
                        Order::Newest => all.splice(0..0, seqs),
                        Order::Oldest => all.splice(all.len().., seqs),
                    };
                    match page.next {
                        Some(_) => filter.cursor = page.next,
                        None => break,
                    }
                }
                assert_eq!(all, (1..=100).collect::<Vec<_>>(), "{order:?} {limit}");
            }
        }
    }

    #[test]
    fn a_page_is_bounded_in_bytes_but_never_empty_for_it() {
        let found = |seq, len: usize| Found {
            position: Position { time: Timestamp::UNIX_EPOCH, seq },
            line: "x".repeat(len).into(),
        };
        let filter = EventFilter::default();
        let page = Page::cut(vec![found(1, PAGE_BYTES), found(2, PAGE_BYTES + 1), found(3, 1)], &filter);
        assert_eq!((seqs(&page), page.next.map(|next| next.seq)), (vec![3], Some(3)));
        let page = Page::cut(vec![found(2, PAGE_BYTES + 1)], &filter);
        assert_eq!((seqs(&page), page.next), (vec![2], None));
    }

    #[test]
    fn the_newer_word_on_an_incident_counts() {
        let mut closed = incident("a", 20);
        closed.closed = Some(closed.last_seen.clone());
        closed.opened = incident("a", 10).opened;
        let new = Memory::default().with_incident(closed).with_incident(incident("b", 21));
        let old = Memory::default().with_incident(incident("a", 10)).with_incident(incident("c", 5));
        let layered = Layered::new(Arc::new(new), Arc::new(old));
        let ids = |filter: &IncidentFilter| {
            layered.incidents(filter).unwrap().into_iter().map(|view| view.incident.id).collect::<Vec<_>>()
        };
        assert_eq!(ids(&IncidentFilter::default()), ["c", "b"]);
        assert_eq!(ids(&IncidentFilter { all: true, ..IncidentFilter::default() }).len(), 3);
        assert_eq!(ids(&IncidentFilter { ids: vec!["a".into()], ..IncidentFilter::default() }), ["a"]);
    }

    #[test]
    fn an_incident_that_became_harmless_is_not_found_as_it_was() {
        let mut milder = incident("a", 20);
        milder.severity = kevtmon_event::Severity::Notice;
        milder.opened = incident("a", 10).opened;
        let new = Memory::default().with_incident(milder);
        let old = Memory::default().with_incident(incident("a", 10));
        let layered = Layered::new(Arc::new(new), Arc::new(old));
        let critical =
            IncidentFilter { severity: Some(kevtmon_event::Severity::Critical), ..IncidentFilter::default() };
        assert_eq!(layered.incidents(&critical).unwrap(), []);
    }

    #[test]
    fn the_extent_is_that_of_both() {
        let extent = layered().extent().unwrap();
        assert_eq!(extent.last_seq, 100);
        assert_eq!((extent.from, extent.to), (Some(event(1).time), Some(event(100).time)));
    }
}
