//! A log file that is followed: from its end on, over rotation and truncation. It is opened for each look and closed again, so
//! that no file system is kept for it; what was written to it before it was renamed is read under its new name.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use kevtmon_types::regular_file;

/// Longest line that is looked at; the rest of a longer one is left out.
const LINE_MAX: usize = 16 * 1024;
const CHUNK: usize = 64 * 1024;
/// So much more than can be read is left out: what is far behind is old.
const BEHIND_MAX: u64 = 8 << 20;
/// Entries of the directory among which a renamed file is looked for.
const ENTRIES_MAX: usize = 1024;

/// Looks, one a second, that may find no file before that is told: rotation takes less.
pub(super) const MISSED_MAX: u32 = 60;
/// Where files tell no time of birth, one that has been made since the last look has so little.
const NEW_MAX: u64 = 64 * 1024;
/// The clock that files are stamped by is that of the last tick (`ktime_get_coarse_real_ts64`).
const COARSE: Duration = Duration::from_millis(100);

/// Takes each line as soon as it is whole: of many short ones, all at once would need many times the memory of what is read.
pub(super) type OnLine<'a> = dyn FnMut(&str) + 'a;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    /// Where the file system tells it: numbers are given again.
    born: Option<SystemTime>,
}

impl Identity {
    fn of(status: &Metadata) -> Self {
        Self { device: status.dev(), inode: status.ino(), born: status.created().ok() }
    }
}

#[derive(Debug)]
struct ReadTo {
    identity: Identity,
    position: u64,
}

#[derive(Debug)]
enum Rest {
    Unread(ReadTo),
    Read,
    Gone,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Looked {
    pub(super) bytes: usize,
    /// Bytes that were left out, as more was written than is read.
    pub(super) skipped: u64,
    /// Lines of which the end was left out, and those that are no text.
    pub(super) malformed: u64,
    /// Whether the file was replaced, and what was written to it last could not be read.
    pub(super) is_torn: bool,
    pub(super) is_missing: bool,
}

#[derive(Debug)]
pub(super) struct Followed {
    pub(super) path: PathBuf,
    at: Option<ReadTo>,
    /// When it was looked for last while it was not there.
    missing_at: Option<SystemTime>,
    missed: u32,
    line: Line,
}

#[derive(Debug, Default)]
struct Line {
    bytes: Vec<u8>,
    /// Whether more came than is kept.
    is_cut: bool,
}

impl Followed {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, at: None, missing_at: None, missed: 0, line: Line::default() }
    }

    /// Reads what was written since the last look, at most so many bytes.
    /// Errors: when it is there and cannot be read, or is no regular file.
    pub(super) fn look(&mut self, bytes: usize, on_line: &mut OnLine<'_>) -> io::Result<Looked> {
        let mut looked = Looked::default();
        let now = SystemTime::now();
        let mut file = match open(&self.path) {
            Ok(file) => file,
            // It may be about to be made again.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.missing_at = Some(now);
                self.missed = self.missed.saturating_add(1);
                looked.is_missing = self.missed >= MISSED_MAX;
                return Ok(looked);
            }
            Err(error) => return Err(error),
        };
        self.missed = 0;
        let status = file.metadata()?;
        let identity = Identity::of(&status);
        let mut at = match self.at.take() {
            None => ReadTo { identity, position: self.begin(&status) },
            Some(at) if at.identity == identity => at,
            Some(at) => match self.rest_of(at, bytes, &mut looked, on_line)? {
                // The next look goes on with it.
                Rest::Unread(unread) => {
                    self.at = Some(unread);
                    return Ok(looked);
                }
                Rest::Read => ReadTo { identity, position: 0 },
                Rest::Gone => ReadTo { identity, position: self.begin(&status) },
            },
        };
        self.missing_at = None;
        if at.position > status.len() {
            // It was truncated, as `copytruncate` of logrotate does.
            at.position = 0;
            self.line = Line::default();
        }
        self.read(&mut file, &mut at, bytes, &mut looked, on_line)?;
        self.at = Some(at);
        Ok(looked)
    }

    /// Where to begin with a file: lines have no time that is understood, and old ones would be told as of now. What was moved,
    /// mounted or put in place of another one there may be of any time.
    fn begin(&self, status: &Metadata) -> u64 {
        let (born, changed) = (status.created().ok(), status.modified().ok());
        let is_new = self.missing_at.is_some_and(|missing| is_new(missing, born, changed, status.len()));
        if is_new { 0 } else { status.len() }
    }

    fn rest_of(
        &mut self,
        mut at: ReadTo,
        bytes: usize,
        looked: &mut Looked,
        on_line: &mut OnLine<'_>,
    ) -> io::Result<Rest> {
        let Some((mut file, len)) = self.renamed(at.identity) else {
            looked.is_torn = true;
            self.line = Line::default();
            return Ok(Rest::Gone);
        };
        self.read(&mut file, &mut at, bytes, looked, on_line)?;
        if at.position < len {
            return Ok(Rest::Unread(at));
        }
        self.line = Line::default();
        Ok(Rest::Read)
    }

    /// The file that was at the path, by its number in its directory.
    fn renamed(&self, identity: Identity) -> Option<(File, u64)> {
        use std::os::unix::fs::DirEntryExt as _;
        let entries = fs::read_dir(self.path.parent()?).ok()?.take(ENTRIES_MAX).flatten();
        let path = entries.into_iter().find(|entry| entry.ino() == identity.inode)?.path();
        let file = open(&path).ok()?;
        let status = file.metadata().ok()?;
        (Identity::of(&status) == identity).then_some((file, status.len()))
    }

    fn read(
        &mut self,
        file: &mut File,
        at: &mut ReadTo,
        bytes: usize,
        looked: &mut Looked,
        on_line: &mut OnLine<'_>,
    ) -> io::Result<()> {
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(at.position))?;
        let mut buffer = vec![0; CHUNK.min(bytes)];
        while looked.bytes < bytes {
            let room = buffer.len().min(bytes - looked.bytes);
            let Some(part) = buffer.get_mut(..room) else { break };
            let count = match file.read(part) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            looked.bytes += count;
            at.position = at.position.saturating_add(count as u64);
            self.line.take(part.get(..count).unwrap_or_default(), looked, on_line);
        }
        let behind = len.saturating_sub(at.position);
        if behind > BEHIND_MAX {
            looked.skipped += behind;
            at.position = len;
            // The first line from there on has lost its begin.
            self.line = Line { bytes: Vec::new(), is_cut: true };
        }
        Ok(())
    }
}

impl Line {
    fn take(&mut self, bytes: &[u8], looked: &mut Looked, on_line: &mut OnLine<'_>) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, is_end) = part.strip_suffix(b"\n").map_or((part, false), |text| (text, true));
            let room = LINE_MAX.saturating_sub(self.bytes.len()).min(text.len());
            self.bytes.extend_from_slice(text.get(..room).unwrap_or_default());
            self.is_cut |= room < text.len();
            if is_end {
                self.end(looked, on_line);
            }
        }
    }

    fn end(&mut self, looked: &mut Looked, on_line: &mut OnLine<'_>) {
        let Self { bytes, is_cut } = std::mem::take(self);
        looked.malformed += u64::from(is_cut);
        let is_text = !bytes.contains(&0);
        // The end may be cut within a character.
        let valid = match std::str::from_utf8(&bytes) {
            Ok(text) => Some(text),
            Err(error) if is_cut && bytes.len() - error.valid_up_to() < 4 => {
                bytes.get(..error.valid_up_to()).and_then(|valid| std::str::from_utf8(valid).ok())
            }
            Err(_) => None,
        };
        match valid.filter(|_| is_text) {
            Some(text) => on_line(text),
            None => looked.malformed += u64::from(!is_cut),
        }
    }
}

fn is_new(since: SystemTime, born: Option<SystemTime>, changed: Option<SystemTime>, len: u64) -> bool {
    let Some(since) = since.checked_sub(COARSE) else { return false };
    match born {
        Some(born) => born >= since,
        // One that is written to has changed just now, however old it is.
        None => len <= NEW_MAX && changed.is_some_and(|changed| changed >= since),
    }
}

/// Opens a regular file and follows no link: whoever may write into its directory could have any file read.
fn open(path: &Path) -> io::Result<File> {
    regular_file::open_as(File::options().read(true), path)
}

#[cfg(test)]
mod tests;
