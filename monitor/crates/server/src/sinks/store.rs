//! The event store as a sink: events enter, at most one commit a second leaves.
//!
//! A commit is only brought forward when an incident opened or closed, because the other sinks wait for it, or when
//! a storm fills the log. If the file fails, the daemon keeps running: events are counted as discarded,
//! incidents are kept in memory, and the file is opened again every minute, or as often as the configuration has the daemon look at
//! what the kernel does not announce.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use kevtmon_event::{Event, Incident, Kind, Severity, SharedEvent, Tenant};
use kevtmon_history::store::{Limits, Log, PreviousRun, Quarantined, StoreError, Writer};
use kevtmon_metrics::Metrics;
use kevtmon_observation::SourceStatus;
use kevtmon_sources::Sender;
use kevtmon_sources::beat::limited;
use kevtmon_types::error_chain::chain;
use nix::sys::statvfs::statvfs;

use super::reconnect::{Backoff, Destination, Disconnected, Reconnecting};
use super::{CommitBarrier, Context, EventQueue, KeptState, Started};

/// Of the sink, and among the sources of `daemon.*` events.
pub const NAME: &str = "store";
/// Time per event in a storm: 12,500 of them a second are stored, at an eighth of a core.
const TIME_PER_EVENT: Duration = Duration::from_micros(80);
/// Least time between two commits.
const COMMIT: Duration = Duration::from_secs(1);
/// How long after an incident opened or closed the commit comes, at the latest.
const TRANSITION: Duration = Duration::from_millis(20);
/// How often an idle store records that the daemon is alive.
const ALIVE: Duration = Duration::from_secs(5);
/// How often opening a store that failed is tried again.
const RETRY: Duration = Duration::from_secs(60);
/// A disk that does not answer must not keep the daemon from starting.
const OPEN_TIMEOUT: Duration = Duration::from_secs(3);
/// How often a log is checked that cannot be copied because of a reader.
const HELD_CHECK: Duration = Duration::from_millis(50);
/// So many events fill the cache of pages: it is emptied when nothing comes any more, however long they took to come.
const CACHED: u64 = 1000;
/// Most incidents kept in memory.
const MAX_INCIDENTS: usize = 1024;
/// A disk with less free space, in bytes, counts as full.
const MIN_FREE: u64 = 4 << 20;

/// Where events are stored, and how many.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// State directory.
    pub directory: PathBuf,
    /// How much is kept.
    pub limits: Limits,
    /// Identity of this boot.
    pub boot_id: String,
}

/// Starts the sink; `None` if the store is disabled.
pub(super) fn start_if_enabled(context: &Context<'_>) -> io::Result<Option<Started>> {
    let Some(limits) = Limits::from_values(context.settings) else { return Ok(None) };
    let config =
        StoreConfig { directory: context.state_dir.clone(), limits, boot_id: context.boot_id.to_owned() };
    start(config, Arc::clone(context.metrics), context.core.clone()).map(Some)
}

/// Opens the store and starts its thread. That it cannot be opened is no error: it is tried again.
pub fn start(config: StoreConfig, metrics: Arc<Metrics>, core: Sender) -> io::Result<Started> {
    let (sink, previous_run, status) = open(config, Arc::clone(&metrics), core, limited(RETRY))?;
    let store = (Arc::clone(&sink.destination.barrier), Arc::clone(&sink.destination.kept));
    let liveness = sink.liveness();
    let queue = EventQueue::start(NAME, Severity::Debug, metrics, sink)?;
    Ok(Started {
        queue,
        source: Some(NAME),
        liveness: Some(liveness),
        status: Some(status),
        store: Some(store),
        previous_run: Some(previous_run),
    })
}

fn open(
    config: StoreConfig,
    metrics: Arc<Metrics>,
    core: Sender,
    retry: Duration,
) -> io::Result<(Reconnecting<StoreFile>, PreviousRun, SourceStatus)> {
    let (sent, opened) = sync_channel(1);
    thread::Builder::new().name("store-open".to_owned()).spawn({
        let config = config.clone();
        move || {
            // If it took too long, nothing waits for it any more; what was opened is closed again.
            let _ = sent.send(Writer::resume(&config.directory, config.limits, &config.boot_id));
        }
    })?;
    let result = opened.recv_timeout(OPEN_TIMEOUT).map_err(|_| "the disk does not answer".to_owned());
    let mut file = StoreFile {
        config,
        metrics: Arc::clone(&metrics),
        barrier: Arc::default(),
        kept: Arc::default(),
        writer: None,
        retry,
        last_seq: 0,
        incidents: BTreeMap::new(),
        unsaved: false,
        pending: 0,
        commit_by: None,
        last_commit: Instant::now(),
        held: None,
        cached: 0,
        is_too_big: false,
        damaged: None,
    };
    let (previous_run, failure) = match result {
        Ok(Ok((writer, previous_run, quarantined))) => {
            file.resume(writer, &previous_run, &quarantined);
            (previous_run, None)
        }
        Ok(Err(error)) => {
            metrics.store_error(error.op());
            (PreviousRun::default(), Some(chain(&error)))
        }
        Err(reason) => (PreviousRun::default(), Some(reason)),
    };
    let backoff = Backoff { first: retry, longest: retry };
    let (sink, status) = Reconnecting::new(file, backoff, metrics, core).started(failure);
    Ok((sink, previous_run, status))
}

/// Id of an incident, and when it opened.
type Episode = (String, String);

fn episode(incident: &Incident) -> Episode {
    (incident.id.clone(), incident.opened.clone())
}

/// The file, and what has to be known of events while there is none.
struct StoreFile {
    config: StoreConfig,
    metrics: Arc<Metrics>,
    barrier: Arc<CommitBarrier>,
    kept: Arc<KeptState>,
    writer: Option<Box<Writer>>,
    retry: Duration,
    last_seq: u64,
    /// Newest event of each incident that is open, or whose end is not in the store yet.
    incidents: BTreeMap<Episode, Event>,
    /// Whether some of them are not in the store.
    unsaved: bool,
    /// Events in the transaction.
    pending: u64,
    commit_by: Option<Instant>,
    last_commit: Instant,
    /// A reader holds the log; when to check again.
    held: Option<Instant>,
    /// Events written since its cache was last emptied.
    cached: u64,
    /// A limit was lowered, and the file shrinks step by step.
    is_too_big: bool,
    /// When a file was last found damaged or gone: a disk that damages one after the other gets one a minute.
    damaged: Option<Instant>,
}

impl StoreFile {
    /// Continues with a store that was opened at start.
    fn resume(&mut self, writer: Writer, previous_run: &PreviousRun, quarantined: &[Quarantined]) {
        log_quarantined(quarantined);
        self.last_seq = previous_run.last_seq;
        self.metrics.store_bytes(writer.bytes());
        self.writer = Some(Box::new(writer));
    }

    /// Records in memory what has to survive a failure of the file.
    fn note(&mut self, event: &Event) {
        self.last_seq = self.last_seq.max(event.seq);
        let Some(incident) = &event.incident else { return };
        // Closed ones are the first to go; none is left out while the store works.
        if self.incidents.len() >= MAX_INCIDENTS && !self.incidents.contains_key(&episode(incident)) {
            let Some(id) = self.dispensable().cloned() else { return };
            self.incidents.remove(&id);
        }
        self.incidents.insert(episode(incident), event.clone());
    }

    /// A closed incident of whoever has most of them, as they weigh.
    fn dispensable(&self) -> Option<&Episode> {
        let closed = || self.incidents.iter().filter(|(_, event)| event.kind == Kind::IncidentClosed);
        let mut shares: BTreeMap<&Tenant, u64> = BTreeMap::new();
        closed().for_each(|(_, event)| *shares.entry(&event.tenant).or_default() += 1);
        let (most, _) = shares.into_iter().max_by_key(|(tenant, count)| tenant.cost(*count))?;
        let of_most = closed().filter(|(_, event)| event.tenant == *most);
        of_most.min_by_key(|(_, event)| event.seq).map(|(id, _)| id)
    }

    /// Why it fails: where somebody took the file or its log away, that says more.
    fn cause(&mut self, error: StoreError) -> StoreError {
        let writer = self.writer.as_ref().filter(|_| matches!(error, StoreError::Failed { .. }));
        writer.and_then(|writer| writer.check_in_place().err()).unwrap_or(error)
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        self.commit_all().map_err(|error| self.cause(error))
    }

    fn commit_all(&mut self) -> Result<(), StoreError> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        writer.check_in_place()?;
        if self.unsaved {
            for event in self.incidents.values() {
                writer.restore_incident(event)?;
            }
        }
        if let Some(kept) = self.kept.take_unstored() {
            writer.keep(&kept)?;
        }
        writer.commit()?;
        self.cached += self.pending;
        self.pending = 0;
        self.commit_by = None;
        self.unsaved = false;
        self.last_commit = Instant::now();
        self.incidents.retain(|_, event| event.kind != Kind::IncidentClosed);
        self.barrier.advance(self.last_seq);
        self.check_log()
    }

    fn check_log(&mut self) -> Result<(), StoreError> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        self.held = match writer.checkpoint()? {
            Log::Held => Some(Instant::now() + HELD_CHECK),
            Log::Short | Log::Copied => None,
        };
        self.metrics.store_bytes(writer.bytes());
        self.is_too_big = writer.is_too_big();
        Ok(())
    }

    /// Whether nothing can be written now, because a reader holds the log.
    fn is_held(&mut self) -> Result<bool, StoreError> {
        if self.held.is_some_and(|again| Instant::now() >= again) {
            self.check_log()?;
        }
        Ok(self.held.is_some())
    }
}

impl Destination for StoreFile {
    type Error = StoreError;

    const NAME: &'static str = NAME;
    const TITLE: &'static str = "event store";
    /// The runs in the store show what is missing.
    const REPORTS_GAPS: bool = false;

    fn can_connect(&self) -> bool {
        statvfs(&self.config.directory)
            .map_or(true, |disk| disk.blocks_available().saturating_mul(disk.fragment_size()) >= MIN_FREE)
    }

    fn connect(&mut self) -> Result<(), StoreError> {
        let StoreConfig { directory, limits, boot_id } = &self.config;
        let is_open = |incident: &Incident| self.incidents.contains_key(&episode(incident));
        let (writer, quarantined) = Writer::reopen(directory, *limits, boot_id, self.last_seq + 1, is_open)?;
        log_quarantined(&quarantined);
        self.writer = Some(Box::new(writer));
        self.unsaved = true;
        self.kept.store_again();
        // It is up once something was written.
        self.commit()
    }

    fn write(&mut self, event: &Arc<SharedEvent>) -> Result<(), StoreError> {
        self.note(event);
        self.pending += 1;
        if self.pending == 1 && self.is_held()? {
            self.pending = 0;
            self.unsaved = true;
            self.metrics.discarded(NAME, "log-held", 1);
            self.barrier.advance(self.last_seq);
            return Ok(());
        }
        let Some(writer) = &mut self.writer else { return Ok(()) };
        if let Err(error) = writer.insert_line(event, event.line()) {
            return Err(self.cause(error));
        }
        let is_full = writer.is_full();
        let now = Instant::now();
        let due = match self.barrier.applies_to(event) {
            true => now + TRANSITION,
            false => self.last_commit + COMMIT,
        };
        let due = self.commit_by.map_or(due, |by| by.min(due));
        self.commit_by = Some(due);
        if is_full || due <= now { self.commit() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        // Nothing else waits, so an incident need not either.
        if self.commit_by.is_some_and(|by| by < self.last_commit + COMMIT || by <= Instant::now()) {
            return self.commit();
        }
        Ok(())
    }

    fn disconnect(&mut self, error: &StoreError) -> Disconnected {
        self.metrics.store_error(error.op());
        let undelivered = std::mem::take(&mut self.pending);
        self.commit_by = None;
        self.held = None;
        self.barrier.advance(self.last_seq);
        let writer = self.writer.take();
        let mut must_report = false;
        if let Some(writer) = writer.filter(|_| error.is_damage()) {
            match writer.quarantine(error) {
                Ok(quarantined) => {
                    must_report = true;
                    if let Some(Quarantined { path, .. }) = quarantined {
                        tracing::info!(path = %path.display(), "what is left of the event store was moved there");
                    }
                }
                Err(error) => self.metrics.store_error(error.op()),
            }
        }
        let before = if must_report { self.damaged.replace(Instant::now()) } else { None };
        let retry_now = must_report && before.is_none_or(|before| before.elapsed() > self.retry);
        Disconnected { undelivered, retry_now, must_report }
    }

    fn skip(&mut self, event: &SharedEvent) -> bool {
        self.note(event);
        self.barrier.advance(self.last_seq);
        false
    }

    fn due(&self) -> Option<Instant> {
        Some(match self.is_too_big {
            true => self.last_commit + COMMIT,
            false => self.commit_by.unwrap_or(self.last_commit + ALIVE),
        })
    }

    fn on_time(&mut self) -> Result<(), StoreError> {
        if self.pending == 0
            && self.cached >= CACHED
            && let Some(writer) = &mut self.writer
        {
            writer.shrink_memory();
            self.cached = 0;
        }
        self.commit()
    }

    fn time_per_event(&self) -> Option<Duration> {
        Some(TIME_PER_EVENT)
    }

    fn close(&mut self) -> Result<(), StoreError> {
        // Incidents that were kept while there was no store are written first.
        self.commit()?;
        self.writer.take().map_or(Ok(()), |writer| writer.stop())
    }
}

fn log_quarantined(quarantined: &[Quarantined]) {
    for Quarantined { path, reason } in quarantined {
        tracing::warn!(path = %path.display(), "using another event store: {reason}");
    }
}

#[cfg(test)]
mod tests;
