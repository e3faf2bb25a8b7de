//! The flight recorder's files: the last minutes in segments, each of which can be replayed on its own.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use kevtmon_event::Incident;
use kevtmon_types::regular_file;

use super::incident_windows::IncidentWindows;
use super::record_queue::{PartStart, SegmentWriter};
use super::rotating_file::{PRIVATE, create_private};

/// Directory of the segments, in the state directory.
pub(super) const DIRECTORY: &str = "recorder";
/// File name extension of the segments.
pub(super) const SUFFIX: &str = "ndjson";

/// Locked while segments are written: a second daemon would remove them and use the same numbers.
const LOCK: &str = ".lock";
/// Made and removed again, to see whether files can be made.
const PROBE: &str = ".probe";

#[derive(Debug)]
pub(super) struct Segments {
    directory: PathBuf,
    age: Duration,
    max_bytes: u64,
    /// Oldest first; the last one is written to.
    known: VecDeque<Segment>,
    file: Option<File>,
    next: u64,
    windows: IncidentWindows,
    _lock: File,
}

#[derive(Debug)]
struct Segment {
    path: PathBuf,
    bytes: u64,
    written: SystemTime,
}

impl Segments {
    /// Keeps the segments of an earlier run: they cover the minutes before a crash.
    pub(super) fn open(state_dir: &Path, age: Duration, max_bytes: u64) -> io::Result<Self> {
        let directory = state_dir.join(DIRECTORY);
        create_directory(&directory)?;
        // It is empty, and the mode of another user's cannot be changed.
        let mut options = File::options();
        options.write(true).create(true).truncate(false).mode(PRIVATE);
        let lock = regular_file::open_as(&mut options, &directory.join(LOCK))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => {
                io::Error::new(ErrorKind::ResourceBusy, "another kevtmon records in this directory")
            }
            TryLockError::Error(error) => error,
        })?;
        let windows = IncidentWindows::open(state_dir)?;
        let mut known = VecDeque::new();
        let mut next = 0;
        for (number, path) in numbered(&directory)? {
            let metadata = fs::metadata(&path)?;
            known.push_back(Segment { path, bytes: metadata.len(), written: metadata.modified()? });
            next = number + 1;
        }
        let mut segments = Self { directory, age, max_bytes, known, file: None, next, windows, _lock: lock };
        // Fails now rather than at the first write.
        let probe = segments.directory.join(PROBE);
        create_private(&probe)?;
        fs::remove_file(&probe)?;
        segments.trim();
        Ok(segments)
    }

    /// Removes segments that are too old, or too large in total; never the one being written.
    fn trim(&mut self) {
        let now = SystemTime::now();
        let mut total: u64 = self.known.iter().map(|segment| segment.bytes).sum();
        let kept = usize::from(self.file.is_some());
        while self.known.len() > kept
            && let Some(oldest) = self.known.front()
            // After the clock was set back, segments from the future are not old.
            && (total > self.max_bytes
                || now.duration_since(oldest.written).is_ok_and(|age| age > self.age))
        {
            if let Err(error) = fs::remove_file(&oldest.path) {
                tracing::debug!(path = %oldest.path.display(), %error, "cannot remove an old segment");
            }
            total -= oldest.bytes;
            self.known.pop_front();
        }
    }

    fn paths(&self) -> impl Iterator<Item = &Path> {
        self.known.iter().map(|segment| segment.path.as_path())
    }
}

impl SegmentWriter for Segments {
    fn start_part(&mut self, _start: PartStart) -> io::Result<()> {
        if let (Some(_), Some(ended)) = (&self.file, self.known.back()) {
            self.windows.add_segment(&ended.path);
        }
        self.file = None;
        self.trim();
        // The state directory may have been removed meanwhile.
        create_directory(&self.directory)?;
        let path = self.directory.join(format!("{:012}.{SUFFIX}", self.next));
        self.file = Some(create_private(&path)?);
        self.next += 1;
        self.windows.add_segment(&path);
        self.known.push_back(Segment { path, bytes: 0, written: SystemTime::now() });
        Ok(())
    }

    fn write_lines(&mut self, lines: &[u8]) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        let (Some(file), Some(segment)) = (&mut self.file, self.known.back_mut()) else {
            return Err(ErrorKind::NotFound.into());
        };
        // A file without a name is of no use; the next part gets one.
        fs::symlink_metadata(&segment.path)?;
        file.write_all(lines)?;
        segment.bytes += u64::try_from(lines.len()).unwrap_or(u64::MAX);
        segment.written = SystemTime::now();
        Ok(())
    }

    fn update_incident(&mut self, incident: &Incident, opened: bool) {
        if opened {
            let paths: Vec<PathBuf> = self.paths().map(Path::to_owned).collect();
            self.windows.freeze(incident, &paths);
        } else {
            self.windows.update(incident);
        }
    }

    fn batch_done(&mut self) {
        self.trim();
        if let Some(current) = self.known.back() {
            self.windows.complete_expired(&current.path);
        }
    }
}

/// Creates a directory that only its owner can read.
pub(super) fn create_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// The segments in a directory, oldest first.
pub(super) fn numbered(directory: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let number = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
        if let (Some(number), true) = (number, path.extension().is_some_and(|suffix| suffix == SUFFIX)) {
            found.push((number, path));
        }
    }
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::tests::incident;

    #[test]
    fn a_directory_that_was_removed_is_made_anew_with_the_next_part() {
        let parent = tempfile::tempdir().unwrap();
        let state = parent.path().join("state");
        let mut segments = Segments::open(&state, Duration::from_secs(60), 1 << 20).unwrap();
        segments.start_part(PartStart::NewFile).unwrap();
        segments.write_lines(b"a\n").unwrap();
        fs::remove_dir_all(&state).unwrap();
        assert_eq!(segments.write_lines(b"b\n").unwrap_err().kind(), ErrorKind::NotFound);
        segments.start_part(PartStart::NewFile).unwrap();
        segments.write_lines(b"c\n").unwrap();
        let written = |directory: &Path| -> Vec<Vec<u8>> {
            numbered(directory).unwrap().iter().map(|(_, path)| fs::read(path).unwrap()).collect()
        };
        assert_eq!(written(&state.join(DIRECTORY)), [b"c\n"]);
        // So is the window of an incident that opens then, with what there is.
        let incident = incident("a1", 0);
        segments.update_incident(&incident, true);
        assert_eq!(written(&state.join("incidents").join(&incident.id)), [b"c\n"]);
    }
}
