//! The newest events as JSON, the incidents, and the readers of the stream.
//!
//! All under one lock, held for a short time only: so a reader that subscribes misses nothing and gets nothing twice.
//! Readers take events at their own pace. Nothing waits for them: one whose position was evicted is disconnected, so
//! that one reader or hundreds cost the same.
//!
//! It is a ring in front of the store, which keeps events longer and shares its room fairly among those who caused them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use kevtmon_core::state::NodeState;
use kevtmon_event::{Event, Severity, Tenant};
use kevtmon_history::query::filter::{EventFilter, IncidentFilter, Position};
use kevtmon_history::query::history::{Extent, Found, History, HistoryError, IncidentView, Page};
use kevtmon_history::query::record::{Record, timestamp};
use kevtmon_metrics::Metrics;
use kevtmon_types::lock::lock;
use tokio::sync::watch;

use crate::http::Connection;

/// Most events: so far a reader may be behind. A storm brings more between two commits of the store; until the next one, a second
/// later, queries lack the rest.
const EVENTS: usize = 4096;
/// Most bytes of their JSON.
const BYTES: usize = 2 << 20;
/// Most incidents; closed ones are evicted first, those of who has most of them.
const INCIDENTS: usize = 1024;
/// Most readers of the stream, so that connections are left for other queries.
pub(super) const READERS: usize = 384;
/// Evicted events after which slow readers are looked for.
const SWEEP: u64 = 64;

/// The newest events and the incidents.
pub struct Memory {
    inner: Mutex<Inner>,
    /// Changes when there is something to read, or when the stream ends.
    changed: watch::Sender<()>,
    metrics: Arc<Metrics>,
    node: String,
    boot_id: String,
}

#[derive(Default)]
struct Inner {
    /// The newest, without a gap.
    recent: VecDeque<Kept>,
    /// How many went from there: the position of the oldest, counted from the first ever.
    evicted: u64,
    /// Of the recent ones.
    bytes: usize,
    last_seq: u64,
    /// By id and opening.
    incidents: BTreeMap<(String, String), (Tenant, Arc<IncidentView>)>,
    readers: Vec<Weak<Reader>>,
    closed: bool,
}

#[derive(Clone)]
struct Kept {
    position: Position,
    line: Arc<str>,
    kind: &'static str,
    severity: Severity,
}

/// A reader of the stream. Readers share the memory; each has only a position in it.
pub(super) struct Reader {
    filter: EventFilter,
    position: AtomicU64,
    cut: AtomicBool,
    connection: Arc<Connection>,
}

/// What a new reader needs.
pub(super) struct Subscription {
    pub(super) reader: Arc<Reader>,
    /// Changes when there may be something to read.
    pub(super) changed: watch::Receiver<()>,
    /// Number of the newest event before the subscription.
    pub(super) last_seq: u64,
}

/// The next result for a reader.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Lines(Vec<Arc<str>>),
    /// Nothing until [`Subscription::changed`] changes.
    Wait,
    /// Nothing more: the daemon stops, or the reader fell behind.
    End,
}

impl Memory {
    /// An empty memory for this boot of the node.
    pub fn new(node: &str, boot_id: &str, metrics: Arc<Metrics>) -> Self {
        Self {
            inner: Mutex::default(),
            changed: watch::Sender::new(()),
            metrics,
            node: node.to_owned(),
            boot_id: boot_id.to_owned(),
        }
    }

    /// Adds an event and its JSON. Readers are notified by [`Self::wake`].
    pub fn push(&self, event: &Event, line: Arc<str>) {
        let position = Position { time: timestamp(&event.time), seq: event.seq };
        let mut inner = lock(&self.inner);
        inner.last_seq = inner.last_seq.max(event.seq);
        inner.note_incident(event);
        inner.bytes += line.len();
        inner.recent.push_back(Kept { position, line, kind: event.kind.name(), severity: event.severity });
        while inner.recent.len() > EVENTS || inner.bytes > BYTES {
            let Some(oldest) = inner.recent.pop_front() else { return };
            inner.bytes -= oldest.line.len();
            inner.evicted += 1;
            if inner.evicted.is_multiple_of(SWEEP) {
                self.sweep(&mut inner);
            }
        }
    }

    /// Adds an incident that the previous run left open, by its newest event, which readers do not get again.
    pub fn resume(&self, event: &Event) {
        lock(&self.inner).note_incident(event);
    }

    pub fn wake(&self) {
        self.changed.send_replace(());
    }

    /// Disconnects the readers that did not read what was evicted.
    fn sweep(&self, inner: &mut Inner) {
        let (evicted, end) = (inner.evicted, inner.end());
        inner.readers.retain(|reader| match reader.upgrade() {
            Some(reader) if reader.position.load(Ordering::Relaxed) < evicted => {
                self.disconnect(&reader, end);
                false
            }
            reader => reader.is_some(),
        });
    }

    fn disconnect(&self, reader: &Reader, end: u64) {
        if !reader.cut.swap(true, Ordering::Relaxed) {
            let unread = end.saturating_sub(reader.position.load(Ordering::Relaxed));
            self.metrics.discarded("api", "slow-reader", unread);
            reader.connection.cut();
        }
    }

    /// Adds a reader; `None` when there are too many, or when the daemon stops.
    pub(super) fn subscribe(&self, filter: EventFilter, connection: Arc<Connection>) -> Option<Subscription> {
        let mut inner = lock(&self.inner);
        inner.readers.retain(|reader| reader.strong_count() > 0);
        if inner.closed || inner.readers.len() >= READERS {
            return None;
        }
        let position = AtomicU64::new(inner.end());
        let reader = Arc::new(Reader { filter, position, cut: AtomicBool::new(false), connection });
        inner.readers.push(Arc::downgrade(&reader));
        let last_seq = inner.last_seq;
        Some(Subscription { reader, changed: self.changed.subscribe(), last_seq })
    }

    /// What a reader has not read yet, up to about so many bytes.
    pub(super) fn next(&self, reader: &Reader, most: usize) -> Next {
        let inner = lock(&self.inner);
        let place = reader.position.load(Ordering::Relaxed);
        let Some(skip) = place.checked_sub(inner.evicted) else {
            self.disconnect(reader, inner.end());
            return Next::End;
        };
        let mut bytes = 0_usize;
        let unread: Vec<Kept> = inner
            .recent
            .iter()
            .skip(usize::try_from(skip).unwrap_or(usize::MAX))
            .take_while(|kept| {
                let fits = bytes < most;
                bytes = bytes.saturating_add(kept.line.len());
                fits
            })
            .cloned()
            .collect();
        let closed = inner.closed;
        drop(inner);
        if unread.is_empty() {
            return if closed { Next::End } else { Next::Wait };
        }
        reader.position.store(place + unread.len() as u64, Ordering::Relaxed);
        Next::Lines(
            unread.iter().filter_map(|kept| kept.wanted(&reader.filter)).map(|found| found.line).collect(),
        )
    }

    /// Ends every stream, once its reader has read what there is.
    pub(super) fn close(&self) {
        lock(&self.inner).closed = true;
        self.wake();
    }

    pub(super) fn last_seq(&self) -> u64 {
        lock(&self.inner).last_seq
    }

    pub(super) fn boot_id(&self) -> &str {
        &self.boot_id
    }
}

impl Inner {
    /// The position of the next event.
    fn end(&self) -> u64 {
        self.evicted + self.recent.len() as u64
    }

    fn has(&self, seq: u64) -> bool {
        self.closed || self.last_seq >= seq
    }

    fn note_incident(&mut self, event: &Event) {
        let Some(incident) = event.incident.as_deref() else { return };
        let (actor, target) = (event.actor.as_deref().cloned(), event.target.as_deref().cloned());
        let view = IncidentView::new(incident.clone(), actor, target, event.boot_id.clone(), event.seq);
        let view = IncidentView { leaks: event.leaks.clone(), ..view };
        self.incidents.insert(view.episode(), (event.tenant.clone(), Arc::new(view)));
        while self.incidents.len() > INCIDENTS && self.forget_incident() {}
    }

    /// Forgets the oldest of whoever has most of those that are closed, else of all.
    fn forget_incident(&mut self) -> bool {
        let is_open_too = self.incidents.values().all(|(_, view)| view.is_open());
        let all = || self.incidents.values().filter(|(_, view)| is_open_too || !view.is_open());
        let mut shares: HashMap<&Tenant, u64> = HashMap::new();
        for (tenant, _) in all() {
            *shares.entry(tenant).or_default() += tenant.cost(1);
        }
        let most = shares.values().copied().max().unwrap_or(0);
        let of_most = all().filter(|(tenant, _)| shares.get(tenant) == Some(&most));
        let oldest = of_most.map(|(_, view)| view).min_by_key(|view| view.last_seen());
        let Some(episode) = oldest.map(|view| view.episode()) else { return false };
        self.incidents.remove(&episode).is_some()
    }
}

impl Kept {
    /// The event, if it meets the conditions, except those on its position.
    fn wanted(&self, filter: &EventFilter) -> Option<Found> {
        if !filter.wants_kind(self.kind) || filter.severity.is_some_and(|least| self.severity < least) {
            return None;
        }
        let line = Arc::clone(&self.line);
        let is_wanted = !filter.names_something()
            || filter.may_match(&line)
                && Record::read(Arc::clone(&line)).is_ok_and(|record| filter.wants_names(&record.event));
        is_wanted.then_some(Found { position: self.position, line })
    }
}

impl Memory {
    /// The memory as it is at this moment, with a copy of the model.
    pub(super) fn snapshot(&self, state: NodeState) -> Snapshot {
        let inner = lock(&self.inner);
        let incidents = inner.incidents.values().map(|(_, view)| Arc::clone(view)).collect();
        Snapshot { incidents, state: Some(state), ..self.events_of(&inner) }
    }

    /// The events as they are at this moment: what is evicted later is still there.
    pub(super) fn newest(&self) -> Snapshot {
        self.events_of(&lock(&self.inner))
    }

    fn events_of(&self, inner: &Inner) -> Snapshot {
        let kept = inner.recent.iter().cloned().collect();
        Snapshot { kept, incidents: Vec::new(), extent: self.extent_of(inner), state: None }
    }

    /// Waits until it has the event of this number, or the daemon stops.
    pub(super) async fn caught_up(&self, seq: u64) {
        let mut changed = self.changed.subscribe();
        while !lock(&self.inner).has(seq) {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    fn extent_of(&self, inner: &Inner) -> Extent {
        let time = |kept: &Kept| format!("{:.9}", kept.position.time);
        Extent {
            from: inner.recent.front().map(time),
            to: inner.recent.back().map(time),
            last_seq: inner.last_seq,
            boot_id: self.boot_id.clone(),
            node: self.node.clone(),
        }
    }
}

impl History for Memory {
    fn events(&self, filter: &EventFilter) -> Result<Page, HistoryError> {
        // The search does not need the lock.
        self.newest().events(filter)
    }

    fn incidents(&self, filter: &IncidentFilter) -> Result<Vec<IncidentView>, HistoryError> {
        Ok(wanted_incidents(lock(&self.inner).incidents.values().map(|(_, view)| view), filter))
    }

    fn extent(&self) -> Result<Extent, HistoryError> {
        Ok(self.extent_of(&lock(&self.inner)))
    }
}

/// The memory at one moment.
pub(super) struct Snapshot {
    kept: Vec<Kept>,
    incidents: Vec<Arc<IncidentView>>,
    extent: Extent,
    state: Option<NodeState>,
}

impl Snapshot {
    /// Number of the oldest event from which on it has all.
    pub(super) fn first_seq(&self) -> u64 {
        self.kept.first().map_or(self.extent.last_seq + 1, |kept| kept.position.seq)
    }
}

impl History for Snapshot {
    fn events(&self, filter: &EventFilter) -> Result<Page, HistoryError> {
        if filter.boot_id.as_ref().is_some_and(|boot| *boot != self.extent.boot_id) {
            return Ok(Page::default());
        }
        let kept = self.kept.iter().filter(|kept| filter.wants_position(kept.position));
        let found = kept.filter_map(|kept| kept.wanted(filter)).collect();
        Ok(Page::cut(found, filter))
    }

    fn incidents(&self, filter: &IncidentFilter) -> Result<Vec<IncidentView>, HistoryError> {
        Ok(wanted_incidents(self.incidents.iter(), filter))
    }

    fn extent(&self) -> Result<Extent, HistoryError> {
        Ok(self.extent.clone())
    }

    fn state(&self) -> Result<Option<NodeState>, HistoryError> {
        Ok(self.state.clone())
    }
}

fn wanted_incidents<'a>(
    incidents: impl Iterator<Item = &'a Arc<IncidentView>>,
    filter: &IncidentFilter,
) -> Vec<IncidentView> {
    let mut views: Vec<IncidentView> =
        incidents.filter(|view| filter.wants(view)).map(|view| IncidentView::clone(view)).collect();
    views.sort_by(|a, b| a.incident.opened.cmp(&b.incident.opened));
    views
}

#[cfg(test)]
mod tests;
