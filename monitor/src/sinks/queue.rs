//! The bounded queue and the thread of one sink.
//!
//! While the queue is full events are discarded; once its thread has room again, one `events.lost` event
//! takes their place in the stream. It carries the number and time of the last discarded event, so the
//! order of a stream holds and every number in a gap is accounted for. Incidents, losses and what the daemon
//! says of itself have places of their own: a storm of other events does not displace them.

use std::io;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::{Deliver, Filter, Hold};
use crate::event::{Event, Kind, Lost, Severity, SharedEvent};
use crate::metrics::Metrics;

/// Most events that wait; as many again may be in the thread's hands. An event takes about 3 KiB.
pub const QUEUE: usize = 2048;
/// Places beyond the bound for events that must not be displaced, each with the gap before it.
const RESERVED: usize = 256;
/// A batch of so few events is no storm: no rest follows.
const FEW: usize = 64;
/// Yields to the processes being watched, and to the core.
const NICENESS: libc::c_int = 5;

/// The end of a sink that events are put into.
pub struct Queue {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

struct Shared {
    name: &'static str,
    filter: Filter,
    bound: usize,
    metrics: Arc<Metrics>,
    hold: OnceLock<Arc<Hold>>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: Vec<Arc<SharedEvent>>,
    gap: Option<Gap>,
    /// Something waits that ends the thread's rest.
    urgent: bool,
    phase: Phase,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Phase {
    #[default]
    Open,
    /// Nothing more comes.
    Finishing,
    /// The sink failed, or is done.
    Closed,
}

struct Gap {
    count: u64,
    from: String,
    last: Arc<SharedEvent>,
}

impl Queue {
    /// Starts the thread of a sink.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(
        name: &'static str,
        filter: Filter,
        metrics: Arc<Metrics>,
        sink: impl Deliver,
    ) -> io::Result<Self> {
        Self::start_with_bound(name, filter, metrics, sink, QUEUE)
    }

    fn start_with_bound(
        name: &'static str,
        filter: Filter,
        metrics: Arc<Metrics>,
        sink: impl Deliver,
        bound: usize,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            name,
            filter,
            bound,
            metrics,
            hold: OnceLock::new(),
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
        });
        let thread = thread::Builder::new().name(format!("sink-{name}")).spawn({
            let shared = Arc::clone(&shared);
            move || {
                yield_to_others();
                shared.run(sink);
            }
        })?;
        Ok(Self { shared, thread })
    }

    /// Announces incidents only once the store has them.
    pub(super) fn hold(&self, hold: Arc<Hold>) {
        // A queue is behind one store from its start.
        let _ = self.shared.hold.set(hold);
    }

    /// Puts the event into the queue if the sink wants it and has room; never waits for the sink.
    pub fn offer(&self, event: &Arc<SharedEvent>) {
        let shared = &self.shared;
        if !shared.filter.passes(event) {
            return;
        }
        let mut state = shared.lock();
        let reason = if state.phase != Phase::Open {
            "closed"
        } else if !state.has_place(event, shared.bound) {
            state.extend_gap(event);
            "queue-full"
        } else {
            if let Some(gap) = state.gap.take() {
                state.waiting.push(Arc::new(gap.summary(shared.name).into()));
            }
            state.waiting.push(Arc::clone(event));
            let is_urgent = is_reserved_for(event.kind);
            state.urgent |= is_urgent;
            let was_idle = state.waiting.len() == 1;
            drop(state);
            if was_idle || is_urgent {
                shared.changed.notify_all();
            }
            return;
        };
        drop(state);
        shared.metrics.discarded(shared.name, reason, 1);
    }

    /// Lets the sink write what waits, until the deadline.
    pub(super) fn finish(self, deadline: Instant) {
        let mut state = self.shared.lock();
        if state.phase == Phase::Open {
            state.phase = Phase::Finishing;
            self.shared.changed.notify_all();
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let (state, _) = self
            .shared
            .changed
            .wait_timeout_while(state, left, |state| state.phase == Phase::Finishing)
            .unwrap_or_else(PoisonError::into_inner);
        let (phase, waiting) = (state.phase, state.waiting.len());
        drop(state);
        if phase == Phase::Closed {
            // A panic of that thread was printed when it happened.
            let _ = self.thread.join();
        } else {
            tracing::warn!(sink = self.shared.name, waiting, "sink did not finish in time");
        }
    }
}

impl State {
    /// While there is a gap, only what must not be displaced ends it.
    fn has_place(&self, event: &Event, bound: usize) -> bool {
        match is_reserved_for(event.kind) {
            true => self.waiting.len() < bound + RESERVED,
            false => self.gap.is_none() && self.waiting.len() < bound,
        }
    }

    fn extend_gap(&mut self, event: &Arc<SharedEvent>) {
        let gap = self.gap.get_or_insert_with(|| Gap {
            count: 0,
            from: event.time.clone(),
            last: Arc::clone(event),
        });
        gap.count += 1;
        gap.last = Arc::clone(event);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, mut sink: impl Deliver) {
        let mut batch = Vec::new();
        while let Some(gap) = self.take(&mut batch, &mut sink) {
            let (count, began) = (batch.len(), Instant::now());
            if let Err(error) = self.deliver(&mut sink, &mut batch, gap) {
                tracing::warn!(sink = self.name, %error, "sink closed: it takes no more events");
                self.close(count);
                return;
            }
            if let Some(share) = sink.share()
                && count > FEW
            {
                self.rest(&mut sink, began + share * u32::try_from(count).unwrap_or(u32::MAX));
            }
        }
        sink.finish();
        self.close(0);
    }

    /// Waits for events or a gap; `None` when nothing more comes.
    fn take(&self, batch: &mut Vec<Arc<SharedEvent>>, sink: &mut impl Deliver) -> Option<Option<Gap>> {
        let idle =
            |state: &mut State| state.waiting.is_empty() && state.gap.is_none() && state.phase == Phase::Open;
        let mut state = loop {
            let state = self.lock();
            let Some(due) = sink.due() else {
                break self.changed.wait_while(state, idle).unwrap_or_else(PoisonError::into_inner);
            };
            let left = due.saturating_duration_since(Instant::now());
            let (mut state, _) =
                self.changed.wait_timeout_while(state, left, idle).unwrap_or_else(PoisonError::into_inner);
            if !idle(&mut state) {
                break state;
            }
            drop(state);
            sink.on_time();
        };
        mem::swap(&mut state.waiting, batch);
        state.urgent = false;
        let gap = state.gap.take();
        (gap.is_some() || !batch.is_empty()).then_some(gap)
    }

    fn deliver(
        &self,
        sink: &mut impl Deliver,
        batch: &mut Vec<Arc<SharedEvent>>,
        gap: Option<Gap>,
    ) -> io::Result<()> {
        for event in batch.drain(..) {
            if let Some(hold) = self.hold.get()
                && hold.concerns(&event)
            {
                // What came before waits for nothing.
                sink.flush()?;
                hold.wait(event.seq);
            }
            sink.deliver(&event)?;
        }
        if let Some(gap) = gap {
            sink.deliver(&gap.summary(self.name).into())?;
        }
        sink.flush()
    }

    /// After many events: nothing is taken until the given moment, unless it must not wait.
    fn rest(&self, sink: &mut impl Deliver, until: Instant) {
        let may_rest = |state: &mut State| !state.urgent && state.phase == Phase::Open;
        loop {
            let due = sink.due().filter(|due| *due < until);
            let left = due.unwrap_or(until).saturating_duration_since(Instant::now());
            let (mut state, _) = self
                .changed
                .wait_timeout_while(self.lock(), left, may_rest)
                .unwrap_or_else(PoisonError::into_inner);
            if due.is_none() || !may_rest(&mut state) {
                return;
            }
            drop(state);
            sink.on_time();
        }
    }

    fn close(&self, undelivered: usize) {
        let mut state = self.lock();
        let count = undelivered + state.waiting.len();
        state.waiting = Vec::new();
        state.gap = None;
        state.phase = Phase::Closed;
        drop(state);
        self.changed.notify_all();
        if count > 0 {
            self.metrics.discarded(self.name, "closed", u64::try_from(count).unwrap_or(u64::MAX));
        }
    }
}

fn is_reserved_for(kind: Kind) -> bool {
    kind == Kind::EventsLost || ["daemon.", "incident."].iter().any(|family| kind.name().starts_with(family))
}

impl Gap {
    fn summary(&self, sink: &str) -> Event {
        let Self { count, from, last } = self;
        let message =
            format!("{sink} is read too slowly: {count} events discarded up to number {}", last.seq);
        Event {
            time: last.time.clone(),
            at: last.at,
            seq: last.seq,
            boot_id: last.boot_id.clone(),
            node: last.node.clone(),
            lost: Some(Lost {
                source: format!("sink.{sink}"),
                reason: "queue-full".to_owned(),
                count: count.to_string(),
                from: Some(from.clone()),
                to: Some(last.time.clone()),
            }),
            ..Event::new(Kind::EventsLost, Severity::Warning, message)
        }
    }
}

/// Failing that, the thread just competes on equal terms.
pub(crate) fn yield_to_others() {
    // SAFETY: plain integers. On Linux 0 means the calling thread alone (setpriority(2), "C library/kernel
    // differences").
    let failed = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS) } != 0;
    if failed {
        tracing::debug!(error = %io::Error::last_os_error(), "cannot lower the priority of a sink's thread");
    }
}

#[cfg(test)]
mod tests;
