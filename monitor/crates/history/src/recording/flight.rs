//! The flight recorder as it is written to: its segments, opened later where they could not be at the start.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use kevtmon_event::Incident;

use super::record_queue::{PartStart, SegmentWriter};
use super::segments::Segments;

/// Where the segments are, and how much of them is kept.
#[derive(Debug, Clone)]
pub(super) struct FlightConfig {
    pub(super) state_dir: PathBuf,
    pub(super) age: Duration,
    pub(super) max_bytes: u64,
}

impl FlightConfig {
    pub(super) fn open(&self) -> io::Result<Segments> {
        Segments::open(&self.state_dir, self.age, self.max_bytes)
    }
}

/// The segments, once they are open.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) config: FlightConfig,
    pub(super) segments: Option<Segments>,
}

impl SegmentWriter for Flight {
    fn start_part(&mut self, start: PartStart) -> io::Result<()> {
        let segments = match &mut self.segments {
            Some(segments) => segments,
            none => none.insert(self.config.open()?),
        };
        segments.start_part(start)
    }

    fn write_lines(&mut self, lines: &[u8]) -> io::Result<()> {
        match &mut self.segments {
            Some(segments) => segments.write_lines(lines),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn update_incident(&mut self, incident: &Incident, opened: bool) {
        if let Some(segments) = &mut self.segments {
            segments.update_incident(incident, opened);
        }
    }

    fn batch_done(&mut self) {
        if let Some(segments) = &mut self.segments {
            segments.batch_done();
        }
    }
}
