//! Keeps a sink in service whose destination can fail: a disk, a socket, a server.
//!
//! After a failure the destination is down: events are counted as discarded, and it is connected again, at growing
//! intervals. Each change is reported to the core, and what was discarded to the destination. An error may also be
//! final: then the sink ends.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kevtmon_event::SharedEvent;
use kevtmon_history::queue::Refused;
use kevtmon_metrics::Metrics;
use kevtmon_observation::{Fact, SourceKind, SourceStatus};
use kevtmon_sources::{Sender, observed_now};
use kevtmon_types::error_chain::chain;

use super::Sink;
use super::event_gap::EventGap;
use super::stall::Liveness;

/// Where a sink writes to, and what can fail.
pub trait Destination: Send + 'static {
    type Error: Error + 'static;

    /// In metric labels, thread names and the sources of `daemon.*` events.
    const NAME: &'static str;
    /// In log messages, as in "the TITLE failed".
    const TITLE: &'static str;
    /// Whether the destination gets an `events.lost` event for what it missed.
    const REPORTS_GAPS: bool = true;
    /// In log messages: what becomes of events while it is down.
    const WHILE_DOWN: &'static str = "events are discarded";

    /// Whether connecting may succeed. Called before [`Self::connect`].
    fn can_connect(&self) -> bool {
        true
    }

    /// Connects, or opens what is written to.
    /// Errors: when that fails; it is tried again later.
    fn connect(&mut self) -> Result<(), Self::Error>;

    /// Writes an event; may buffer it until [`Self::flush`].
    /// Errors: when the destination is down from now on.
    fn write(&mut self, event: &Arc<SharedEvent>) -> Result<(), Self::Error>;

    /// Writes what was buffered; called as soon as nothing waits.
    /// Errors: when the destination is down from now on.
    fn flush(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Whether nothing can be written there ever again after this error.
    fn is_final(&self, _error: &Self::Error) -> bool {
        false
    }

    /// Drops the connection after this error; what is waiting may go on to wait.
    fn disconnect(&mut self, _error: &Self::Error) -> Disconnected {
        Disconnected::default()
    }

    /// Notified of an event that comes while the destination is down. Returns whether it keeps it for later; if not, the event is
    /// discarded.
    fn skip(&mut self, _event: &SharedEvent) -> bool {
        false
    }

    /// As [`Sink::due`], while connected.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// As [`Sink::on_time`], while connected.
    /// Errors: when the destination is down from now on.
    fn on_time(&mut self) -> Result<(), Self::Error> {
        self.flush()
    }

    /// As [`Sink::time_per_event`].
    fn time_per_event(&self) -> Option<Duration> {
        None
    }

    /// Nothing more arrives.
    fn close(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// What a lost connection means.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Disconnected {
    /// Events that were accepted and not yet written.
    pub undelivered: u64,
    /// Whether reconnecting at once may succeed.
    pub retry_now: bool,
    /// Whether it is reported even if reconnecting succeeds at once: what was written before may be gone.
    pub must_report: bool,
}

/// Intervals between attempts to connect: each is twice as long as the one before.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    pub first: Duration,
    pub longest: Duration,
}

/// A sink whose destination is connected again after failures.
pub struct Reconnecting<D> {
    pub(super) destination: D,
    metrics: Arc<Metrics>,
    core: Sender,
    backoff: Backoff,
    state: State,
    /// The newest event that was accepted, if gaps are reported.
    last: Option<Arc<SharedEvent>>,
    /// What was discarded since the destination went down.
    gap: Option<EventGap>,
    /// The status last reported to the core.
    reported_up: Option<bool>,
    liveness: Liveness,
    /// An event that came after the end.
    refused: usize,
}

enum State {
    Up,
    Down {
        retry: Instant,
        next_interval: Duration,
    },
    /// For ever, for this reason.
    Ended(String),
}

/// In the reason of a destination to which nothing can be written ever again.
pub const ENDED: &str = "its reader closed it";

impl<D: Destination> Reconnecting<D> {
    /// A sink that connects on its own thread, as soon as that runs.
    pub fn new(destination: D, backoff: Backoff, metrics: Arc<Metrics>, core: Sender) -> Self {
        let state = State::Down { retry: Instant::now(), next_interval: backoff.first };
        Self {
            destination,
            metrics,
            core,
            backoff,
            state,
            last: None,
            gap: None,
            reported_up: None,
            liveness: Liveness::default(),
            refused: 0,
        }
    }

    /// A sink whose destination was connected by the caller, or could not be for a reason. The caller reports the
    /// status to the core.
    pub fn started(mut self, failure: Option<String>) -> (Self, SourceStatus) {
        self.reported_up = Some(failure.is_none());
        self.liveness.set(failure.is_none());
        match &failure {
            None => self.state = State::Up,
            Some(reason) => {
                tracing::warn!(
                    "the {} is unavailable: {reason}; {} until it is back",
                    D::TITLE,
                    D::WHILE_DOWN
                );
                self.schedule_retry();
            }
        }
        (self, status::<D>(failure))
    }

    /// Whether it is up, for others to see.
    pub fn liveness(&self) -> Liveness {
        self.liveness.clone()
    }

    pub fn is_up(&self) -> bool {
        matches!(self.state, State::Up)
    }

    fn connect(&mut self) -> Result<(), D::Error> {
        self.destination.connect()?;
        if let Some(gap) = &self.gap {
            self.destination.write(&Arc::new(gap.summary(D::NAME).into()))?;
            self.destination.flush()?;
        }
        self.gap = None;
        self.state = State::Up;
        Ok(())
    }

    /// Tries to connect; a failure is reported if it is news.
    fn retry(&mut self) {
        if !self.destination.can_connect() {
            return self.schedule_retry();
        }
        match self.connect() {
            Ok(()) => self.report(None),
            // What it was given of the gap is counted already.
            Err(error) => {
                self.disconnect(&error);
                match self.destination.is_final(&error) {
                    true => self.end(&error, 0),
                    false => self.report(Some(chain(&error))),
                }
            }
        }
    }

    /// Records the result of an operation of the destination.
    pub(super) fn check(&mut self, result: Result<(), D::Error>) {
        let Err(mut error) = result else { return };
        let Disconnected { undelivered, retry_now, must_report } = self.disconnect(&error);
        if self.destination.is_final(&error) {
            return self.end(&error, undelivered);
        }
        if undelivered > 0 {
            self.metrics.discarded(D::NAME, Refused::Down.reason(), undelivered);
            self.gap = self.last.take().map(|last| EventGap::ending_with(last, undelivered, Refused::Down));
        }
        if retry_now && self.destination.can_connect() {
            match self.connect() {
                Ok(()) if must_report => {
                    self.report(Some(chain(&error)));
                    return self.report(None);
                }
                Ok(()) => return,
                Err(again) => {
                    self.disconnect(&again);
                    if self.destination.is_final(&again) {
                        return self.end(&again, 0);
                    }
                    error = again;
                }
            }
        }
        self.report(Some(chain(&error)));
    }

    /// Nothing is written any more: the next event ends the sink.
    fn end(&mut self, error: &D::Error, undelivered: u64) {
        if undelivered > 0 {
            self.metrics.discarded(D::NAME, Refused::Closed.reason(), undelivered);
        }
        let reason = chain(error);
        self.tell(Some(format!("{ENDED}: {reason}")));
        self.state = State::Ended(reason);
    }

    fn disconnect(&mut self, error: &D::Error) -> Disconnected {
        self.schedule_retry();
        self.destination.disconnect(error)
    }

    fn schedule_retry(&mut self) {
        let interval = match self.state {
            State::Up | State::Ended(_) => self.backoff.first,
            State::Down { next_interval, .. } => next_interval,
        };
        let next_interval = (interval * 2).min(self.backoff.longest);
        self.state = State::Down { retry: Instant::now() + interval, next_interval };
    }

    /// Reports once that the destination went down or came back.
    fn report(&mut self, failure: Option<String>) {
        if self.reported_up == Some(failure.is_none()) {
            return;
        }
        match &failure {
            Some(reason) => {
                tracing::warn!("the {} failed: {reason}; {} until it is back", D::TITLE, D::WHILE_DOWN);
            }
            None => tracing::info!("the {} is back", D::TITLE),
        }
        self.tell(failure);
    }

    fn tell(&mut self, failure: Option<String>) {
        self.reported_up = Some(failure.is_none());
        self.liveness.set(failure.is_none());
        // The core ends together with its queue.
        let _ = self.core.blocking_send(observed_now(Fact::Source(status::<D>(failure))));
    }

    /// The error that ends the sink, if nothing can be written any more.
    fn ended(&self) -> io::Result<()> {
        match &self.state {
            State::Ended(reason) => Err(io::Error::new(io::ErrorKind::BrokenPipe, reason.clone())),
            State::Up | State::Down { .. } => Ok(()),
        }
    }

    fn discard(&mut self, event: &Arc<SharedEvent>) {
        if self.destination.skip(event) {
            return;
        }
        if D::REPORTS_GAPS {
            EventGap::extend(&mut self.gap, event, Refused::Down);
        }
        self.metrics.discarded(D::NAME, Refused::Down.reason(), 1);
    }
}

fn status<D: Destination>(failure: Option<String>) -> SourceStatus {
    match failure {
        None => SourceStatus::up(SourceKind::Sink, D::NAME),
        Some(reason) => SourceStatus::down(SourceKind::Sink, D::NAME, reason),
    }
}

impl<D: Destination> Sink for Reconnecting<D> {
    fn deliver(&mut self, event: &Arc<SharedEvent>) -> io::Result<()> {
        if let Err(error) = self.ended() {
            self.refused = 1;
            return Err(error);
        }
        if self.is_up() {
            if D::REPORTS_GAPS {
                self.last = Some(Arc::clone(event));
            }
            let written = self.destination.write(event);
            self.check(written);
        } else {
            self.discard(event);
        }
        self.ended()
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.is_up() {
            let flushed = self.destination.flush();
            self.check(flushed);
        }
        self.ended()
    }

    fn unwritten(&self) -> usize {
        self.refused
    }

    fn due(&self) -> Option<Instant> {
        match self.state {
            State::Up => self.destination.due(),
            State::Down { retry, .. } => Some(retry),
            State::Ended(_) => None,
        }
    }

    fn on_time(&mut self) {
        if self.is_up() {
            let done = self.destination.on_time();
            self.check(done);
        } else if self.ended().is_ok() {
            self.retry();
        }
    }

    fn time_per_event(&self) -> Option<Duration> {
        self.destination.time_per_event()
    }

    fn finish(&mut self) {
        // After a failure it may have been connected again at once: then that connection is closed.
        for _ in 0..2 {
            if !self.is_up() {
                return;
            }
            let Err(error) = self.destination.close() else { return };
            tracing::warn!("the {} was not closed cleanly: {}", D::TITLE, chain(&error));
            self.check(Err(error));
        }
    }
}

#[cfg(test)]
mod tests;
