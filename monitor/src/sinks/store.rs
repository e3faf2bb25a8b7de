//! The event store as a sink: events enter, at most one commit a second leaves.
//!
//! A commit is only brought forward when an incident opened or closed, because the other sinks hold that
//! announcement back, or when a storm fills the log. Whatever goes wrong with the file, the daemon goes on:
//! what comes meanwhile is counted as discarded, incidents are kept in memory, and the file is tried again
//! every minute.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::statvfs::statvfs;

use super::{CommitBarrier, EventQueue, Filter, Sink};
use crate::config::Config;
use crate::error_chain::chain;
use crate::event::{Event, Kind, Severity, SharedEvent};
use crate::metrics::Metrics;
use crate::observation::{Fact, SourceKind, SourceStatus};
use crate::sources::{Sender, seen};
use crate::store::{Aside, Left, Limits, Log, StoreError, Writer};

/// As the daemon names it among its sources.
pub const NAME: &str = "store";
/// What an event may take up in a storm: 12,500 of them a second are kept, at an eighth of a core.
const SHARE: Duration = Duration::from_micros(80);
/// Least time between two commits.
const COMMIT: Duration = Duration::from_secs(1);
/// How long after an incident opened or closed the commit comes, at the latest.
const TRANSITION: Duration = Duration::from_millis(20);
/// An idle store notes that the daemon is alive this often.
const ALIVE: Duration = Duration::from_secs(5);
/// How often a store that failed is tried again.
const RETRY: Duration = Duration::from_secs(60);
/// A disk that does not answer must not keep the daemon from starting.
const OPEN: Duration = Duration::from_secs(3);
/// While a reader holds the log, it is looked at again this often.
const HELD: Duration = Duration::from_millis(50);
/// Open incidents that are kept in memory.
const MOST_INCIDENTS: usize = 1024;
/// A disk with less free space is still full.
const LEAST_FREE: u64 = 4 << 20;

/// Where and how much.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// State directory.
    pub directory: PathBuf,
    /// How much is kept.
    pub limits: Limits,
    /// Identity of this boot.
    pub boot_id: String,
}

impl StoreConfig {
    /// What the daemon is told to keep; `None` when that is nothing.
    #[must_use]
    pub fn of(config: &Config, boot_id: &str) -> Option<Self> {
        let limits = config.store?;
        Some(Self { directory: config.state_dir.clone(), limits, boot_id: boot_id.to_owned() })
    }
}

/// The running sink.
pub struct Store {
    pub(super) queue: EventQueue,
    pub(super) barrier: Arc<CommitBarrier>,
}

/// What is known once it runs.
pub struct Started {
    /// The sink.
    pub store: Store,
    /// What an earlier run left.
    pub left: Left,
    /// Whether it works; to be told to the core.
    pub status: SourceStatus,
}

/// Opens the store and starts its thread. That it cannot be opened is no error: it is tried again.
///
/// # Errors
/// When no thread can be started.
pub fn start(config: StoreConfig, metrics: Arc<Metrics>, core: Sender) -> io::Result<Started> {
    let (sink, left, status) = open(config, Arc::clone(&metrics), core, RETRY)?;
    if let Some(reason) = &status.reason {
        tracing::warn!("no event store: {reason}; going on without");
    }
    let barrier = Arc::clone(&sink.barrier);
    let everything = Filter { min_severity: Severity::Debug };
    let queue = EventQueue::start(NAME, everything, metrics, sink)?;
    Ok(Started { store: Store { queue, barrier }, left, status })
}

fn open(
    config: StoreConfig,
    metrics: Arc<Metrics>,
    core: Sender,
    retry: Duration,
) -> io::Result<(StoreSink, Left, SourceStatus)> {
    let (sent, opened) = sync_channel(1);
    thread::Builder::new().name("store-open".to_owned()).spawn({
        let config = config.clone();
        move || {
            // Nobody waits any more when it took too long; what was opened is closed again.
            let _ = sent.send(Writer::resume(&config.directory, config.limits, &config.boot_id));
        }
    })?;
    let result = opened.recv_timeout(OPEN).map_err(|_| "the disk does not answer".to_owned());
    let mut sink = StoreSink {
        config,
        metrics,
        core,
        barrier: Arc::default(),
        state: State::Down { retry: Instant::now() + retry },
        retry,
        is_up: false,
        last_seq: 0,
        incidents: BTreeMap::new(),
        unsaved: false,
        pending: 0,
        commit_by: None,
        last_commit: Instant::now(),
        held: None,
        stormy: false,
        is_too_big: false,
        damaged: None,
    };
    let (left, reason) = match result {
        Ok(Ok((writer, left, aside))) => {
            sink.tell_of(&aside);
            (sink.take_up(writer, left), None)
        }
        Ok(Err(error)) => {
            sink.metrics.store_error(error.op());
            (Left::default(), Some(chain(&error)))
        }
        Err(reason) => (Left::default(), Some(reason)),
    };
    let status = status(reason);
    sink.is_up = status.up;
    Ok((sink, left, status))
}

fn status(reason: Option<String>) -> SourceStatus {
    match reason {
        None => SourceStatus::up(SourceKind::Store, NAME),
        Some(reason) => SourceStatus::down(SourceKind::Store, NAME, reason),
    }
}

enum State {
    Up(Box<Writer>),
    Down { retry: Instant },
}

struct StoreSink {
    config: StoreConfig,
    metrics: Arc<Metrics>,
    core: Sender,
    barrier: Arc<CommitBarrier>,
    state: State,
    retry: Duration,
    /// As it was told last.
    is_up: bool,
    last_seq: u64,
    /// Newest event of each incident that is open, or whose end is not in the store yet.
    incidents: BTreeMap<String, Event>,
    /// Whether some of them are not in the store.
    unsaved: bool,
    /// Events in the transaction.
    pending: u64,
    commit_by: Option<Instant>,
    last_commit: Instant,
    /// A reader holds the log; when to look again.
    held: Option<Instant>,
    stormy: bool,
    /// A limit was lowered, and the file follows in steps.
    is_too_big: bool,
    /// A disk that damages one file after the other gets one a minute.
    damaged: Option<Instant>,
}

impl StoreSink {
    /// Goes on with a store that was opened at start.
    fn take_up(&mut self, writer: Writer, left: Left) -> Left {
        self.last_seq = left.last_seq;
        self.metrics.store_bytes(writer.bytes());
        self.state = State::Up(Box::new(writer));
        left
    }

    fn tell_of(&self, aside: &[Aside]) {
        for Aside { path, reason } in aside {
            tracing::warn!(path = %path.display(), "another event store is used: {reason}");
        }
    }

    /// The one way for any failure.
    fn fail(&mut self, error: &StoreError) {
        self.metrics.store_error(error.op());
        let pending = std::mem::take(&mut self.pending);
        self.discard("failed", pending);
        self.commit_by = None;
        self.held = None;
        self.barrier.advance(self.last_seq);
        let retry = Instant::now() + self.retry;
        let State::Up(writer) = std::mem::replace(&mut self.state, State::Down { retry }) else { return };
        if error.is_damage() {
            match writer.set_aside(error) {
                Ok(aside) => {
                    self.tell_of(std::slice::from_ref(&aside));
                    let again = self.damaged.replace(Instant::now());
                    if again.is_none_or(|before| before.elapsed() > self.retry) {
                        return self.reopen();
                    }
                }
                Err(error) => self.metrics.store_error(error.op()),
            }
        }
        self.tell(Some(chain(error)));
    }

    fn reopen(&mut self) {
        self.state = State::Down { retry: Instant::now() + self.retry };
        if let Ok(disk) = statvfs(&self.config.directory)
            && disk.blocks_available().saturating_mul(disk.fragment_size()) < LEAST_FREE
        {
            return;
        }
        let StoreConfig { directory, limits, boot_id } = &self.config;
        let is_open = |id: &str| self.incidents.contains_key(id);
        match Writer::reopen(directory, *limits, boot_id, self.last_seq + 1, is_open) {
            Ok((writer, aside)) => {
                self.tell_of(&aside);
                self.state = State::Up(Box::new(writer));
                self.unsaved = true;
                // It is back once it took something.
                self.commit();
            }
            Err(error) => self.metrics.store_error(error.op()),
        }
    }

    /// Says once that it went down or came back.
    fn tell(&mut self, reason: Option<String>) {
        if self.is_up == reason.is_none() {
            return;
        }
        self.is_up = reason.is_none();
        match &reason {
            Some(reason) => tracing::warn!("the event store failed: {reason}; going on without"),
            None => tracing::info!("the event store is back"),
        }
        // The core ends together with its queue.
        let _ = self.core.blocking_send(seen(Fact::Source(status(reason))));
    }

    fn discard(&self, reason: &'static str, count: u64) {
        if count > 0 {
            self.metrics.discarded(NAME, reason, count);
        }
    }

    fn remember(&mut self, event: &Event) {
        let Some(incident) = &event.incident else { return };
        // Those that closed are the first to go; none is left out while the store works.
        if self.incidents.len() >= MOST_INCIDENTS && !self.incidents.contains_key(&incident.id) {
            let closed = self.incidents.iter().find(|(_, event)| event.kind == Kind::IncidentClosed);
            let Some(id) = closed.map(|(id, _)| id.clone()) else { return };
            self.incidents.remove(&id);
        }
        self.incidents.insert(incident.id.clone(), event.clone());
    }

    fn commit(&mut self) {
        if let Err(error) = self.try_commit() {
            self.fail(&error);
        }
    }

    fn try_commit(&mut self) -> Result<(), StoreError> {
        let State::Up(writer) = &mut self.state else { return Ok(()) };
        if self.unsaved {
            for event in self.incidents.values() {
                writer.restore_incident(event)?;
            }
        }
        writer.commit()?;
        self.stormy |= self.pending > 1000;
        self.pending = 0;
        self.commit_by = None;
        self.unsaved = false;
        self.last_commit = Instant::now();
        self.incidents.retain(|_, event| event.kind != Kind::IncidentClosed);
        self.barrier.advance(self.last_seq);
        self.check_log()?;
        self.tell(None);
        Ok(())
    }

    fn check_log(&mut self) -> Result<(), StoreError> {
        let State::Up(writer) = &mut self.state else { return Ok(()) };
        self.held = match writer.checkpoint()? {
            Log::Held => Some(Instant::now() + HELD),
            Log::Short | Log::Copied => None,
        };
        self.metrics.store_bytes(writer.bytes());
        self.is_too_big = writer.is_too_big();
        Ok(())
    }

    fn is_held(&mut self) -> bool {
        if self.held.is_some_and(|again| Instant::now() >= again)
            && let Err(error) = self.check_log()
        {
            self.fail(&error);
        }
        self.held.is_some()
    }
}

impl Sink for StoreSink {
    fn deliver(&mut self, event: &SharedEvent) -> io::Result<()> {
        self.last_seq = self.last_seq.max(event.seq);
        self.remember(event);
        if self.pending == 0 && self.is_held() {
            self.unsaved = true;
            self.discard("log-held", 1);
            self.barrier.advance(self.last_seq);
            return Ok(());
        }
        let State::Up(writer) = &mut self.state else {
            self.discard("failed", 1);
            self.barrier.advance(self.last_seq);
            return Ok(());
        };
        let inserted = writer.insert_line(event, event.line());
        let full = writer.is_full();
        self.pending += 1;
        if let Err(error) = inserted {
            self.fail(&error);
            return Ok(());
        }
        let now = Instant::now();
        let due = match self.barrier.applies_to(event) {
            true => now + TRANSITION,
            false => self.last_commit + COMMIT,
        };
        let due = self.commit_by.map_or(due, |by| by.min(due));
        self.commit_by = Some(due);
        if full || due <= now {
            self.commit();
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        // Nothing else waits, so an incident need not either.
        if self.commit_by.is_some_and(|by| by < self.last_commit + COMMIT || by <= Instant::now()) {
            self.commit();
        }
        Ok(())
    }

    fn time_per_event(&self) -> Option<Duration> {
        Some(SHARE)
    }

    fn due(&self) -> Option<Instant> {
        Some(match &self.state {
            State::Down { retry } => *retry,
            State::Up(_) if self.is_too_big => self.last_commit + COMMIT,
            State::Up(_) => self.commit_by.unwrap_or(self.last_commit + ALIVE),
        })
    }

    fn on_time(&mut self) {
        match &self.state {
            State::Down { .. } => self.reopen(),
            State::Up(writer) => {
                if self.pending == 0 && std::mem::take(&mut self.stormy) {
                    writer.shrink_memory();
                }
                self.commit();
            }
        }
    }

    fn finish(&mut self) {
        // What was kept of incidents while the store was away goes in first.
        self.commit();
        let State::Up(writer) =
            std::mem::replace(&mut self.state, State::Down { retry: Instant::now() + self.retry })
        else {
            return;
        };
        if let Err(error) = writer.stop() {
            self.metrics.store_error(error.op());
            tracing::warn!("the event store was not closed in good order: {}", chain(&error));
        }
    }
}

#[cfg(test)]
mod tests;
