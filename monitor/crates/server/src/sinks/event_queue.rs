//! The queue of one sink.
//!
//! Events that find no place are discarded; once one does again, one `events.lost` event takes their place in the
//! stream. It carries the number and time of the last discarded event, so that the stream stays in order and every
//! number in a gap is accounted for. Incidents, losses and events about the daemon have reserved places: a storm of
//! other events does not displace them.
//!
//! Whoever causes events may fill as many places as are left free, so that a place is left for everybody, however much
//! the others send: one takes half of the queue, two take a third each.

use std::collections::HashMap;
use std::io;
use std::mem;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use kevtmon_event::{Event, Kind, Priority, Severity, SharedEvent, Tenant};
use kevtmon_history::queue::{Bounds, Buffer, Queue, QueueClass, Refused, Worker};
use kevtmon_metrics::Metrics;

use super::event_gap::EventGap;
use super::{CommitBarrier, Sink};

/// Places of events that wait, and beyond that for those that must not be displaced, each with the gap before it. As
/// many again may be in the thread's hands. An event takes about 3 KiB, and a place.
const BOUNDS: Bounds = Bounds { capacity: 1536, reserved: 256 };
/// One of a mount that many hold takes a place more for so many of them: there may be 256, of 400 bytes each.
const HOLDERS_PER_PLACE: usize = 8;
/// So does one with as many bytes of paths of mounts below it: there may be 256, of 4 KiB each.
const BYTES_PER_PLACE: usize = 3 * 1024;
/// A batch of at most this many events is no storm: no rest follows.
const SMALL_BATCH: usize = 64;
/// A sink that was held up, by its disk for example, makes up for as much before it rests again.
const CATCH_UP: Duration = Duration::from_secs(1);

/// The producer's end of a sink.
pub struct EventQueue {
    queue: Queue<Events>,
    sink: Arc<SinkShared>,
    bounds: Bounds,
}

/// What producer and thread share besides the events.
struct SinkShared {
    name: &'static str,
    /// Least severity; `daemon.*` and `incident.*` pass always.
    min_severity: Severity,
    metrics: Arc<Metrics>,
    barrier: OnceLock<Arc<CommitBarrier>>,
}

#[derive(Default)]
struct Events {
    events: Vec<Arc<SharedEvent>>,
    /// Places that they take.
    taken: usize,
    /// How many of these each tenant has.
    tenants: HashMap<Tenant, usize>,
    /// What was discarded after the last of them.
    gap: Option<EventGap>,
    is_urgent: bool,
}

impl EventQueue {
    /// Starts the thread of a sink.
    pub fn start(
        name: &'static str,
        min_severity: Severity,
        metrics: Arc<Metrics>,
        sink: impl Sink,
    ) -> io::Result<Self> {
        Self::start_with_bounds(name, min_severity, metrics, sink, BOUNDS)
    }

    fn start_with_bounds(
        name: &'static str,
        min_severity: Severity,
        metrics: Arc<Metrics>,
        sink: impl Sink,
        bounds: Bounds,
    ) -> io::Result<Self> {
        let shared = Arc::new(SinkShared { name, min_severity, metrics, barrier: OnceLock::new() });
        let worker =
            SinkWorker { sink, shared: Arc::clone(&shared), undelivered: 0, rest_until: Instant::now() };
        let queue = Queue::start(&format!("sink-{name}"), worker)?;
        Ok(Self { queue, sink: shared, bounds })
    }

    /// Delivers transitions of incidents only once the store has committed them.
    pub(super) fn wait_for_commits(&self, barrier: Arc<CommitBarrier>) {
        // A queue waits for one store from its start.
        let _ = self.sink.barrier.set(barrier);
    }

    /// Queues the event if the sink takes it and has room; never waits for the sink.
    pub fn offer(&self, event: &Arc<SharedEvent>) {
        if event.severity < self.sink.min_severity && !is_always_taken(event) {
            return;
        }
        let queued = self.queue.put(|waiting| waiting.push(event, self.bounds, self.sink.name));
        if let Err(refused) = queued.unwrap_or(Err(Refused::Closed)) {
            self.sink.metrics.discarded(self.sink.name, refused.reason(), 1);
        }
    }

    /// Since when the sink has not come back from what it was given.
    pub(super) fn working_since(&self) -> Option<Instant> {
        self.queue.working_since()
    }

    /// Lets the sink write what waits, until the deadline.
    pub(super) fn finish(self, deadline: Instant) {
        if let Err(waiting) = self.queue.finish(deadline) {
            tracing::warn!(sink = self.sink.name, waiting, "sink did not finish in time");
        }
    }
}

impl Events {
    fn push(&mut self, event: &Arc<SharedEvent>, bounds: Bounds, sink: &str) -> Result<(), Refused> {
        let (class, places) = (class(event), places(event));
        let same = self.tenants.get(&event.tenant).copied().unwrap_or(0);
        let is_fair = bounds.is_fair(self.taken, &event.tenant, same);
        if !bounds.admits(self.taken, places, class) || class == QueueClass::Normal && !is_fair {
            EventGap::extend(&mut self.gap, event, Refused::Full);
            return Err(Refused::Full);
        }
        if let Some(gap) = self.gap.take() {
            self.events.push(Arc::new(gap.summary(sink).into()));
            self.taken += 1;
        }
        self.events.push(Arc::clone(event));
        self.taken += places;
        match self.tenants.get_mut(&event.tenant) {
            Some(tenants) => *tenants += places,
            None => drop(self.tenants.insert(event.tenant.clone(), places)),
        }
        self.is_urgent |= class == QueueClass::Reserved;
        Ok(())
    }
}

impl Buffer for Events {
    fn is_empty(&self) -> bool {
        self.events.is_empty() && self.gap.is_none()
    }

    fn len(&self) -> usize {
        self.events.len()
    }

    fn is_urgent(&self) -> bool {
        self.is_urgent
    }

    fn take_into(&mut self, batch: &mut Self) {
        mem::swap(&mut self.events, &mut batch.events);
        self.tenants.clear();
        self.taken = 0;
        batch.gap = self.gap.take();
        self.is_urgent = false;
    }
}

/// Hands the events of a queue to its sink.
struct SinkWorker<S> {
    sink: S,
    shared: Arc<SinkShared>,
    /// Events of the batch that the sink was not given yet.
    undelivered: usize,
    /// When all that was delivered will have had its time.
    rest_until: Instant,
}

impl<S: Sink> SinkWorker<S> {
    fn deliver(&mut self, batch: &mut Events) -> io::Result<()> {
        for event in batch.events.drain(..) {
            if let Some(barrier) = self.shared.barrier.get()
                && barrier.applies_to(&event)
            {
                // What came before waits for nothing.
                self.sink.flush()?;
                barrier.wait(event.seq);
            }
            self.undelivered = self.undelivered.saturating_sub(1);
            self.sink.deliver(&event)?;
        }
        if let Some(gap) = batch.gap.take() {
            self.sink.deliver(&Arc::new(gap.summary(self.shared.name).into()))?;
        }
        self.sink.flush()
    }
}

impl<S: Sink> Worker for SinkWorker<S> {
    type Buffer = Events;

    fn process(&mut self, batch: &mut Events) -> io::Result<Option<Instant>> {
        let size = batch.len();
        self.undelivered = size;
        let began = Instant::now();
        self.deliver(batch)?;
        let Some(time) = self.sink.time_per_event() else { return Ok(None) };
        let count = u32::try_from(size).unwrap_or(u32::MAX);
        let earliest = began.checked_sub(CATCH_UP).unwrap_or(began);
        let due = self.rest_until.max(earliest) + time * count;
        // Batches that were not rested for are no debt.
        self.rest_until = due.min(Instant::now() + time * count);
        Ok((size > SMALL_BATCH).then_some(self.rest_until))
    }

    fn due(&self) -> Option<Instant> {
        self.sink.due()
    }

    fn on_time(&mut self) {
        self.sink.on_time();
    }

    fn finish(&mut self) {
        self.sink.finish();
    }

    fn abort(&mut self, error: &io::Error, unprocessed: &Events) {
        let SinkShared { name, metrics, .. } = &*self.shared;
        tracing::warn!(sink = name, %error, "sink failed; it takes no more events");
        let count = self.sink.unwritten() + self.undelivered + unprocessed.len();
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        if count > 0 {
            metrics.discarded(name, Refused::Closed.reason(), count);
        }
    }
}

/// How many places an event takes, so that large ones take no more memory than others.
fn places(event: &Event) -> usize {
    let listed = event.holders.as_ref().map_or(0, Vec::len) + event.holders_unreadable.len();
    let below = event.mount.as_ref().map_or(0, |mount| mount.child_mounts.iter().map(String::len).sum());
    1 + listed / HOLDERS_PER_PLACE + below / BYTES_PER_PLACE
}

fn is_always_taken(event: &Event) -> bool {
    ["daemon.", "incident."].iter().any(|family| event.kind.name().starts_with(family))
}

/// Whether it may use reserved places.
pub(super) fn class(event: &Event) -> QueueClass {
    let is_reserved = event.kind == Kind::EventsLost || is_always_taken(event);
    match is_reserved && event.tenant.priority != Priority::Foreign {
        true => QueueClass::Reserved,
        false => QueueClass::Normal,
    }
}

#[cfg(test)]
mod tests;
