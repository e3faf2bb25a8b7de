//! Where events go. Each sink has a bounded queue and a thread of its own: what it cannot take in time is
//! discarded, counted and summed up in one event, and nothing waits for it.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::event::{Event, Severity, SharedEvent};

pub mod api;
pub mod health;
mod hold;
pub mod http;
pub mod json;
mod queue;
pub mod stdout;
pub mod store;

pub use hold::Hold;
pub(crate) use queue::yield_to_others;
pub use queue::{QUEUE, Queue};

/// What a queue's thread hands its events to.
pub trait Deliver: Send + 'static {
    /// Takes an event; may hold it back until [`Self::flush`].
    ///
    /// # Errors
    /// When the sink can take no more, ever.
    fn deliver(&mut self, event: &SharedEvent) -> io::Result<()>;

    /// Hands over what was held back; called as soon as nothing waits.
    ///
    /// # Errors
    /// When the sink can take no more, ever.
    fn flush(&mut self) -> io::Result<()>;

    /// When [`Self::on_time`] is wanted, if nothing comes before.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// The time of [`Self::due`] has come.
    fn on_time(&mut self) {}

    /// Time that an event may take up in a storm, for a sink whose work would otherwise compete with the
    /// processes being watched. It rests for what its work leaves of it.
    fn share(&self) -> Option<Duration> {
        None
    }

    /// Nothing more comes.
    fn finish(&mut self) {}
}

/// Which events a sink wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filter {
    /// Least severity; `daemon.*` and `incident.*` pass always.
    pub min_severity: Severity,
}

impl Filter {
    /// Whether the sink wants it.
    #[must_use]
    pub fn passes(self, event: &Event) -> bool {
        event.severity >= self.min_severity
            || ["daemon.", "incident."].iter().any(|family| event.kind.name().starts_with(family))
    }
}

/// All sinks of the daemon.
#[derive(Default)]
pub struct Sinks {
    queues: Vec<Queue>,
    hold: Option<Arc<Hold>>,
}

impl Sinks {
    /// Sinks behind a store: what they announce of incidents is in the store before.
    #[must_use]
    pub fn behind(store: store::Store) -> Self {
        Self { queues: vec![store.queue], hold: Some(store.hold) }
    }

    /// Adds a sink.
    pub fn add(&mut self, queue: Queue) {
        if let Some(hold) = &self.hold {
            queue.hold(Arc::clone(hold));
        }
        self.queues.push(queue);
    }

    /// Gives the event to every sink that wants it; never waits.
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
