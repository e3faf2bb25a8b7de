//! Records every observation just before the core takes it. Divides the recording into parts, each of which starts
//! with the complete state of the core; accounts for what could not be recorded.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kevtmon_core::Core;
use kevtmon_event::{Event, Kind, Tenant};
use kevtmon_metrics::Metrics;
use kevtmon_observation::{BootNs, Fact, Observation, Source, SourceKind, SourceStatus};
use kevtmon_types::clock::SECOND;
use thiserror::Error;

use super::budgets::Budgets;
use super::flight::{Flight, FlightConfig};
use super::format::{self, Header, RECORDING, VERSION, Writer};
use super::record_queue::{PartStart, RecordBounds, RecordQueue, SegmentWriter, cannot_write};
use super::rotating_file::{self, RotatingFile};
use super::segments::Segments;
use super::settings::FlightLimits;
use crate::queue::{Gap, Refused};

/// The flight recorder in metrics, and among the sources of `daemon.*` events.
const FLIGHT: &str = "recorder";
const MIB: usize = 1 << 20;
/// The flight recorder divides its time and its space by this many segments.
const SEGMENTS: u64 = 5;
/// A segment takes at most this fraction of the flight recorder's space.
const SEGMENT_SHARE: u64 = 8;
/// A writer that failed is tried again at once, as its files may only have been removed, and then after this long.
const RETRY_INTERVAL: BootNs = 60 * SECOND;
/// How long the state directory is waited for at the start.
const OPEN_TIMEOUT: Duration = Duration::from_secs(3);
/// Memory that an idle recorder keeps, in bytes.
const KEPT_CAPACITY: usize = 64 * 1024;

/// Where `--record` writes, and how much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The file; when it is full it is renamed to `FILE.1`.
    pub path: PathBuf,
    /// Most bytes of observations in each of the two.
    pub max_bytes: u64,
}

impl Record {
    /// Refuses what is at its path, if that is no regular file: before anything is started, which would log first.
    pub fn check(&self) -> Result<(), RecordError> {
        rotating_file::look(&self.path).map(drop).map_err(|error| self.error(error))
    }

    fn error(&self, source: io::Error) -> RecordError {
        let path = self.path.clone();
        match source.kind() {
            io::ErrorKind::InvalidInput => RecordError::NotRegular { path },
            _ => RecordError::File { path, source },
        }
    }
}

/// Why nothing can be recorded.
#[derive(Debug, Error)]
pub enum RecordError {
    #[error("cannot record to {}", .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("cannot record to {}: not a regular file; choose another one with --record FILE", .path.display())]
    NotRegular { path: PathBuf },
    #[error("cannot start a recorder thread")]
    Thread(#[source] io::Error),
}

/// All recordings of this daemon.
pub struct Recorder {
    writer: Writer,
    run: BootNs,
    metrics: Arc<Metrics>,
    tell: Arc<dyn Fn(SourceStatus) + Send + Sync>,
    tracks: Vec<Track>,
    line: Vec<u8>,
}

/// When a track starts another part.
#[derive(Debug, Clone, Copy)]
struct Rotation {
    /// Most bytes of observations in a file.
    file_bytes: u64,
    part_age: BootNs,
    /// Least time from one part to the next where there was a gap.
    gap_interval: BootNs,
    /// Whether each part has a file of its own.
    one_file_per_part: bool,
    /// Whether users have a budget for what they do among themselves.
    has_budgets: bool,
}

/// One recording: its queue, and the part that is being written.
struct Track {
    queue: RecordQueue,
    rotation: Rotation,
    parts: u64,
    part_started: BootNs,
    bytes: u64,
    /// What is missing since recording was interrupted.
    gap: Option<Gap>,
    /// When a writer that failed was tried again last.
    retried: Option<BootNs>,
    /// Whether an incident opened in the gap, which is then ended as soon as possible.
    is_urgent: bool,
    budgets: Budgets,
    /// Observations that were left out and are not told yet, and when they were told last.
    unrecorded: (u64, BootNs),
    /// Whether any were left out of this part: its replay does not lead to the state of the next one.
    is_incomplete: bool,
}

impl Recorder {
    /// Records nothing yet; `run` is when the daemon started.
    pub fn new(writer: Writer, run: BootNs, metrics: Arc<Metrics>) -> Self {
        Self { writer, run, metrics, tell: Arc::new(drop), tracks: Vec::new(), line: Vec::new() }
    }

    /// Tells from now on that a recording cannot be written, and that it can again. Called in a thread that may block.
    pub fn telling(self, tell: impl Fn(SourceStatus) + Send + Sync + 'static) -> Self {
        Self { tell: Arc::new(tell), ..self }
    }

    /// `failed`: it is known, and told, that nothing can be written yet.
    fn start_queue(
        &self,
        name: &'static str,
        bounds: RecordBounds,
        writer: impl SegmentWriter,
        failed: bool,
    ) -> Result<RecordQueue, RecordError> {
        let tell = Arc::clone(&self.tell);
        let tell = move |failure: Option<String>| tell(status(name, failure));
        RecordQueue::start(name, bounds, writer, failed, tell).map_err(RecordError::Thread)
    }

    /// Records everything to a file.
    pub fn add_file(&mut self, record: &Record) -> Result<(), RecordError> {
        let file = RotatingFile::create(&record.path).map_err(|error| record.error(error))?;
        let bounds = RecordBounds { capacity: 8 * MIB, urgent: MIB / 4 };
        let rotation = Rotation {
            file_bytes: record.max_bytes,
            part_age: BootNs::MAX,
            gap_interval: SECOND,
            one_file_per_part: false,
            has_budgets: false,
        };
        let queue = self.start_queue("record", bounds, file, false)?;
        self.tracks.push(Track::new(queue, rotation));
        Ok(())
    }

    /// Keeps the last minutes in the state directory. Where that cannot be written, a warning is logged, and it is tried again
    /// while the daemon runs without; then this is its status.
    pub fn add_flight(
        &mut self,
        state_dir: &Path,
        limits: &FlightLimits,
    ) -> Result<Option<SourceStatus>, RecordError> {
        let age = Duration::from_secs(60 * u64::from(limits.minutes));
        let max_bytes = u64::from(limits.max_mib) << 20;
        let config = FlightConfig { state_dir: state_dir.to_owned(), age, max_bytes };
        let opened = open_segments(&config).map_err(RecordError::Thread)?.inspect_err(|error| {
            tracing::warn!(directory = %state_dir.display(), %error, "no flight recorder: cannot write to the state directory");
        });
        let failure = opened.as_ref().err().map(cannot_write);
        let flight = Flight { config, segments: opened.ok() };
        // A second of a storm is kept and written at once; what exceeds it is discarded, so that a storm does not
        // take the disk from others.
        let bounds = RecordBounds { capacity: MIB, urgent: usize::MAX };
        let rotation = Rotation {
            file_bytes: max_bytes / SEGMENT_SHARE,
            part_age: u64::from(limits.minutes) * 60 * SECOND / SEGMENTS,
            gap_interval: 10 * SECOND,
            one_file_per_part: true,
            has_budgets: true,
        };
        let queue = self.start_queue(FLIGHT, bounds, flight, failure.is_some())?;
        self.tracks.push(Track::new(queue, rotation));
        Ok(failure.map(|reason| status(FLIGHT, Some(reason))))
    }

    pub fn is_recording(&self) -> bool {
        !self.tracks.is_empty()
    }

    /// Records what the core is about to take, on the account of whoever caused it.
    pub fn record(&mut self, observation: &Observation, tenant: &Tenant, core: &Core) {
        let at = observation.at;
        self.line.clear();
        for track in &mut self.tracks {
            if !track.can_resume(at) {
                track.discard(1, &self.metrics);
                continue;
            }
            if self.line.is_empty() && format::write_line(observation, &mut self.line).is_err() {
                return;
            }
            if track.is_part_due(at) {
                track.start_part(&self.writer, self.run, core, at);
            }
            if track.rotation.has_budgets && !track.budgets.admits(at, tenant, self.line.len()) {
                track.leave_out(&self.metrics);
                continue;
            }
            if at >= track.unrecorded.1.saturating_add(SECOND) {
                track.tell_unrecorded(at);
            }
            track.put(&self.line, tenant, &self.metrics);
        }
        self.line.shrink_to(KEPT_CAPACITY);
    }

    /// Keeps the window of an incident that opens, and follows its state.
    pub fn event(&mut self, event: &Event) {
        let Some(incident) = &event.incident else { return };
        let opened = event.kind == Kind::IncidentOpened;
        for track in self.tracks.iter_mut().filter(|track| track.rotation.one_file_per_part) {
            track.is_urgent |= opened;
            if !track.queue.update_incident(incident, opened) {
                self.metrics.discarded(track.queue.name(), Refused::Full.reason(), 1);
            }
        }
    }

    /// Writes what waits, all together at most this long.
    pub fn finish(self, core: &Core, now: BootNs, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        for mut track in self.tracks {
            track.tell_unrecorded(now);
            if track.gap.is_some() {
                // The gap is recorded, though nothing follows it.
                track.start_part(&self.writer, self.run, core, now);
            }
            track.queue.finish(deadline);
        }
    }
}

fn status(name: &str, failure: Option<String>) -> SourceStatus {
    match failure {
        None => SourceStatus::up(SourceKind::Sink, name),
        Some(reason) => SourceStatus::down(SourceKind::Sink, name, reason),
    }
}

/// Opens the segments, unless the disk does not answer: it must not keep the daemon from starting.
fn open_segments(config: &FlightConfig) -> io::Result<io::Result<Segments>> {
    let (sent, opened) = sync_channel(1);
    let config = config.clone();
    thread::Builder::new().name("recorder-open".to_owned()).spawn(move || {
        // If it took too long, nothing waits for it any more; what was opened is closed again.
        let _ = sent.send(config.open());
    })?;
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the disk does not answer");
    Ok(opened.recv_timeout(OPEN_TIMEOUT).map_err(late).and_then(|opened| opened))
}

impl Track {
    fn new(queue: RecordQueue, rotation: Rotation) -> Self {
        Self {
            queue,
            rotation,
            parts: 0,
            part_started: 0,
            bytes: 0,
            gap: None,
            retried: None,
            is_urgent: false,
            budgets: Budgets::default(),
            unrecorded: (0, 0),
            is_incomplete: false,
        }
    }

    /// Whether a gap, if there is one, may end now.
    fn can_resume(&self, at: BootNs) -> bool {
        let Some(gap) = &self.gap else { return true };
        let due = match gap.refused {
            Refused::Failed | Refused::Down => self.retried.map_or(0, |at| at.saturating_add(RETRY_INTERVAL)),
            Refused::Full if self.is_urgent => self.part_started.saturating_add(SECOND),
            Refused::Full | Refused::Budget | Refused::Closed => {
                self.part_started.saturating_add(self.rotation.gap_interval)
            }
        };
        at >= due && self.queue.is_empty()
    }

    fn is_part_due(&self, at: BootNs) -> bool {
        self.parts == 0
            || self.gap.is_some()
            || self.bytes >= self.rotation.file_bytes
            || at.saturating_sub(self.part_started) >= self.rotation.part_age
    }

    fn start_part(&mut self, writer: &Writer, run: BootNs, core: &Core, at: BootNs) {
        self.tell_unrecorded(at);
        if matches!(self.gap, Some(Gap { refused: Refused::Failed | Refused::Down, .. })) {
            self.retried = Some(at);
        }
        let gap = self.gap.take().map(|gap| format::Gap {
            discarded: gap.discarded + self.queue.take_lost(),
            reason: gap.refused.reason().to_owned(),
        });
        let Ok(state) = core.save() else { return };
        let header = Header {
            format: RECORDING.to_owned(),
            version: VERSION,
            writer: writer.clone(),
            started: Timestamp::now().to_string(),
            run,
            part: self.parts,
            gap,
            after_incomplete: std::mem::take(&mut self.is_incomplete),
            settings: core.settings().clone(),
            state,
        };
        let mut lines = Vec::new();
        if format::write_line(&header, &mut lines).is_err() {
            return;
        }
        let is_full = self.bytes >= self.rotation.file_bytes;
        let start =
            if self.rotation.one_file_per_part || is_full { PartStart::NewFile } else { PartStart::SameFile };
        self.queue.start_part(start, &lines);
        // Headers after gaps count, or a file could grow without bound.
        self.bytes = match start {
            PartStart::NewFile => 0,
            PartStart::SameFile if self.parts == 0 => 0,
            PartStart::SameFile => self.bytes + u64::try_from(lines.len()).unwrap_or(u64::MAX),
        };
        self.parts += 1;
        self.part_started = at;
        self.is_urgent = false;
    }

    fn put(&mut self, line: &[u8], tenant: &Tenant, metrics: &Metrics) {
        match self.queue.put(line, tenant) {
            Ok(()) => self.bytes += u64::try_from(line.len()).unwrap_or(u64::MAX),
            Err(Refused::Budget) => self.leave_out(metrics),
            Err(refused) => {
                let lost = self.queue.take_lost();
                // They are counted already.
                let discarded = std::mem::take(&mut self.unrecorded.0);
                self.gap = Some(Gap { discarded, ..Gap::new(refused) });
                self.discard(1 + lost, metrics);
            }
        }
    }

    /// Whoever caused it has had enough; what others cause is recorded on.
    fn leave_out(&mut self, metrics: &Metrics) {
        self.unrecorded.0 += 1;
        self.is_incomplete = true;
        metrics.discarded(self.queue.name(), Refused::Budget.reason(), 1);
    }

    /// Writes how many observations were left out.
    fn tell_unrecorded(&mut self, at: BootNs) {
        let (count, _) = self.unrecorded;
        if count == 0 || self.gap.is_some() {
            return;
        }
        let observation = Observation { at, source: Source::Daemon, fact: Fact::Unrecorded { count } };
        let mut line = Vec::new();
        if format::write_line(&observation, &mut line).is_ok()
            && self.queue.put(&line, &Tenant::default()).is_ok()
        {
            self.bytes += u64::try_from(line.len()).unwrap_or(u64::MAX);
            self.unrecorded = (0, at);
        }
    }

    fn discard(&mut self, count: u64, metrics: &Metrics) {
        if let Some(gap) = &mut self.gap {
            gap.discarded += count;
            metrics.discarded(self.queue.name(), gap.refused.reason(), count);
        }
    }
}
