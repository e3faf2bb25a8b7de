//! Takes down every observation just before the core takes it. Cuts the recording into parts, each of which
//! begins with all that the core knows; says what it could not keep.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use thiserror::Error;

use super::file::RotatingFile;
use super::flight::Segments;
use super::format::{self, Gap, Place, Writer};
use super::tape::{Begin, Bounds, Refused, Tape};
use crate::config::Recorder as FlightConfig;
use crate::core::Core;
use crate::event::{Event, Kind};
use crate::metrics::Metrics;
use crate::observation::{BootNs, Observation};

const MIB: usize = 1 << 20;
const SECOND: BootNs = 1_000_000_000;
/// The flight recorder divides its time and its space by this many segments.
const SEGMENTS: u64 = 5;
/// Of a recorder's bytes a segment may take this fraction.
const SEGMENT_SHARE: u64 = 8;
/// A writer that failed is tried again after this long.
const RETRY: BootNs = 60 * SECOND;
/// Room that an idle recorder keeps.
const KEPT: usize = 64 * 1024;

/// Where `--record` writes, and how much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The file; when it is full it becomes `FILE.1`.
    pub path: PathBuf,
    /// Bytes of observations in each of the two.
    pub max_bytes: u64,
}

/// Why nothing can be recorded.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The file cannot be made.
    #[error("cannot record to {}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It would never be written.
    #[error("cannot start the thread that records")]
    Thread(#[source] io::Error),
}

/// All recordings of this daemon.
pub struct Recorder {
    writer: Writer,
    run: BootNs,
    metrics: Arc<Metrics>,
    tracks: Vec<Track>,
    line: Vec<u8>,
}

/// When a track goes on to another part.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// Bytes of observations in a file.
    file: u64,
    /// Age of a part.
    part: BootNs,
    /// Least time from one part to the next where a gap was.
    gap: BootNs,
    /// Whether each part has a file of its own.
    one_file_each: bool,
}

struct Track {
    tape: Tape,
    pace: Pace,
    parts: u64,
    began: BootNs,
    bytes: u64,
    /// What is missing since, while it cannot be written.
    gap: Option<Missing>,
    /// An incident opened meanwhile.
    hurry: bool,
}

struct Missing {
    discarded: u64,
    why: Refused,
}

impl Recorder {
    /// Records nothing yet; `run` is when the daemon started.
    #[must_use]
    pub fn new(writer: Writer, run: BootNs, metrics: Arc<Metrics>) -> Self {
        Self { writer, run, metrics, tracks: Vec::new(), line: Vec::new() }
    }

    /// Records everything to a file.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn add_file(&mut self, record: &Record) -> Result<(), RecordError> {
        let failed = |source| RecordError::File { path: record.path.clone(), source };
        let file = RotatingFile::create(&record.path).map_err(failed)?;
        let bounds = Bounds { most: 8 * MIB, urgent: MIB / 4 };
        let pace = Pace { file: record.max_bytes, part: BootNs::MAX, gap: SECOND, one_file_each: false };
        let tape = Tape::start("record", bounds, file).map_err(RecordError::Thread)?;
        self.tracks.push(Track::new(tape, pace));
        Ok(())
    }

    /// Keeps the last minutes in the state directory. Where that cannot be, it is said and the daemon does without.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn add_flight(&mut self, state_dir: &Path, config: &FlightConfig) -> Result<(), RecordError> {
        let age = Duration::from_secs(60 * u64::from(config.minutes));
        let max = u64::from(config.max_mib) << 20;
        let segments = match Segments::open(state_dir, age, max) {
            Ok(segments) => segments,
            Err(error) => {
                tracing::warn!(directory = %state_dir.display(), %error, "no flight recorder: the state directory cannot be used");
                return Ok(());
            }
        };
        // A second of a storm is kept, at most one write a second is made, and the storm has no larger share.
        let bounds = Bounds { most: MIB, urgent: usize::MAX };
        let pace = Pace {
            file: max / SEGMENT_SHARE,
            part: u64::from(config.minutes) * 60 * SECOND / SEGMENTS,
            gap: 10 * SECOND,
            one_file_each: true,
        };
        let tape = Tape::start("recorder", bounds, segments).map_err(RecordError::Thread)?;
        self.tracks.push(Track::new(tape, pace));
        Ok(())
    }

    /// Takes down what the core is about to take.
    pub fn record(&mut self, observation: &Observation, core: &Core) {
        let at = observation.at;
        self.line.clear();
        for track in &mut self.tracks {
            if !track.can_go_on(at) {
                track.miss(1, &self.metrics);
                continue;
            }
            if self.line.is_empty() && format::write_line(observation, &mut self.line).is_err() {
                return;
            }
            if track.is_due(at) {
                track.begin(&self.writer, self.run, core, at);
            }
            track.put(&self.line, &self.metrics);
        }
        self.line.shrink_to(KEPT);
    }

    /// Keeps the window of an incident that opens, and what becomes of it.
    pub fn event(&mut self, event: &Event) {
        let Some(incident) = &event.incident else { return };
        let opened = event.kind == Kind::IncidentOpened;
        for track in self.tracks.iter_mut().filter(|track| track.pace.one_file_each) {
            track.hurry |= opened;
            if !track.tape.note(incident, opened) {
                self.metrics.discarded(track.tape.name(), "queue-full", 1);
            }
        }
    }

    /// Writes what waits, all together at most this long.
    pub fn finish(self, core: &Core, now: BootNs, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        for mut track in self.tracks {
            if track.gap.is_some() {
                // The gap is told, though nothing comes after it.
                track.begin(&self.writer, self.run, core, now);
            }
            track.tape.finish(deadline);
        }
    }
}

impl Track {
    fn new(tape: Tape, pace: Pace) -> Self {
        Self { tape, pace, parts: 0, began: 0, bytes: 0, gap: None, hurry: false }
    }

    /// Whether a gap, if there is one, may end now.
    fn can_go_on(&self, at: BootNs) -> bool {
        let Some(gap) = &self.gap else { return true };
        let pause = match gap.why {
            Refused::Failed => RETRY,
            Refused::Full if self.hurry => SECOND,
            Refused::Full => self.pace.gap,
        };
        at >= self.began.saturating_add(pause) && self.tape.is_empty()
    }

    fn is_due(&self, at: BootNs) -> bool {
        self.parts == 0
            || self.gap.is_some()
            || self.bytes >= self.pace.file
            || at.saturating_sub(self.began) >= self.pace.part
    }

    fn begin(&mut self, writer: &Writer, run: BootNs, core: &Core, at: BootNs) {
        let gap = self.gap.take().map(|missing| Gap {
            discarded: missing.discarded + self.tape.take_lost(),
            reason: missing.why.reason().to_owned(),
        });
        let place = Place { run, part: self.parts, gap, started: Timestamp::now().to_string() };
        let mut lines = Vec::new();
        if format::write_beginning(writer, place, core, &mut lines).is_err() {
            return;
        }
        let is_full = self.bytes >= self.pace.file;
        let begin = if self.pace.one_file_each || is_full { Begin::NewFile } else { Begin::SameFile };
        self.tape.begin(begin, &lines);
        // Gaps are no way around the bound of a file.
        self.bytes = match begin {
            Begin::NewFile => 0,
            Begin::SameFile if self.parts == 0 => 0,
            Begin::SameFile => self.bytes + u64::try_from(lines.len()).unwrap_or(u64::MAX),
        };
        self.parts += 1;
        self.began = at;
        self.hurry = false;
    }

    fn put(&mut self, line: &[u8], metrics: &Metrics) {
        match self.tape.put(line) {
            Ok(()) => self.bytes += u64::try_from(line.len()).unwrap_or(u64::MAX),
            Err(why) => {
                let lost = self.tape.take_lost();
                self.gap = Some(Missing { discarded: 0, why });
                self.miss(1 + lost, metrics);
            }
        }
    }

    fn miss(&mut self, count: u64, metrics: &Metrics) {
        if let Some(gap) = &mut self.gap {
            gap.discarded += count;
            metrics.discarded(self.tape.name(), gap.why.reason(), count);
        }
    }
}
