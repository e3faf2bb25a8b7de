//! Where events go. Each sink has a bounded queue and a thread of its own: what it cannot take in time is
//! discarded, counted and summed up in one event, and nothing waits for it.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kevtmon_core::Kept;
use kevtmon_event::SharedEvent;
use kevtmon_observation::SourceStatus;

pub mod api;
mod commit_barrier;
mod event_gap;
mod event_queue;
#[cfg(test)]
mod fake_server;
pub mod health;
mod http_client;
pub mod journald;
mod kept;
pub mod kubernetes;
pub mod listen;
pub mod otlp;
pub mod prometheus;
mod reconnect;
mod spread;
mod stall;
mod startup;
pub mod stdout;
pub mod store;

pub use commit_barrier::CommitBarrier;
pub use event_queue::EventQueue;
pub use kept::KeptState;
pub use reconnect::{Backoff, Destination, Disconnected, ENDED, Reconnecting};
pub use stall::Liveness;
pub use startup::{Context, Running, StartError, Started, connects, start};

/// Every sink, with its name in errors, in the order in which they get an event. The store is the first: the others
/// wait for its commits.
const SINKS: [(&str, startup::Start); 6] = [
    ("the event store", store::start_if_enabled),
    ("standard output", stdout::start),
    ("the journal", journald::start),
    ("the memory of events", api::start_sink),
    ("Kubernetes Events", kubernetes::start),
    ("OpenTelemetry logs", otlp::start),
];

/// What the thread of a queue hands its events to.
pub trait Sink: Send + 'static {
    /// Takes an event; may buffer it until [`Self::flush`].
    /// Errors: when the sink can take no more, ever.
    fn deliver(&mut self, event: &Arc<SharedEvent>) -> io::Result<()>;

    /// Writes what was buffered; called as soon as nothing waits.
    /// Errors: when the sink can take no more, ever.
    fn flush(&mut self) -> io::Result<()>;

    /// After an error: how many of the events that it was given were not written.
    fn unwritten(&self) -> usize {
        0
    }

    /// When [`Self::on_time`] is to be called, between two batches of events or while none arrives.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// The time of [`Self::due`] has come.
    fn on_time(&mut self) {}

    /// Time that an event may take in a storm, for a sink whose work would otherwise compete with the processes
    /// being watched. It rests for what its work leaves of it.
    fn time_per_event(&self) -> Option<Duration> {
        None
    }

    fn finish(&mut self) {}
}

/// All sinks of the daemon.
#[derive(Default)]
pub struct Sinks {
    queues: Vec<EventQueue>,
    /// Of sinks that are watched, by their place in `queues`.
    stalls: Vec<(usize, stall::Stall)>,
    barrier: Option<Arc<CommitBarrier>>,
    kept: Option<Arc<KeptState>>,
}

impl Sinks {
    /// Keeps this for the next run, if there is a store.
    pub fn keep(&self, state: Kept) {
        if let Some(kept) = &self.kept {
            kept.put(state);
        }
    }

    /// Adds a sink; those after a store get transitions of incidents once they are committed there.
    pub fn add(&mut self, sink: impl Into<Started>) {
        let Started { queue, source, liveness, store, .. } = sink.into();
        if let Some(barrier) = &self.barrier {
            queue.wait_for_commits(Arc::clone(barrier));
        }
        let watched = source.zip(liveness);
        self.stalls.extend(watched.map(|(source, it)| (self.queues.len(), stall::Stall::new(source, it))));
        self.queues.push(queue);
        if let Some((barrier, kept)) = store {
            (self.barrier, self.kept) = (Some(barrier), Some(kept));
        }
    }

    /// The statuses of sinks that have begun to be stuck in their work, or do it again.
    pub fn stalled(&mut self) -> Vec<SourceStatus> {
        let now = Instant::now();
        let queues = &self.queues;
        let stalls = self.stalls.iter_mut();
        stalls.filter_map(|(at, stall)| stall.look(queues.get(*at)?.working_since(), now)).collect()
    }

    /// Queues the event for every sink that takes it; never waits.
    pub fn offer(&self, event: &Arc<SharedEvent>) {
        for queue in &self.queues {
            queue.offer(event);
        }
    }

    /// Waits until every sink has written what it was given, all together at most this long.
    pub fn finish(self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        for queue in self.queues {
            queue.finish(deadline);
        }
    }
}
