//! The kernel's own messages: records of /dev/kmsg (Documentation/ABI/testing/dev-kmsg). What programs write there has another
//! facility than the kernel's, whatever they ask for (`devkmsg_write`, since 3.5), and is left out.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// The largest record that the kernel gives out (`PRINTK_MESSAGE_MAX`, before 6.4 `CONSOLE_EXT_LOG_MAX`: 8192).
const RECORD_MAX: usize = 8192;
/// Longest line that is put together of fragments.
const LINE_MAX: usize = 2048;
/// The bits of a priority that are the level; the rest is the facility, 0 for the kernel.
const LEVEL_BITS: u32 = 3;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Record<'a> {
    facility: u32,
    seq: u64,
    /// Whether it is one piece of a line.
    is_fragment: bool,
    text: &'a str,
}

/// Parses a record; of its lines only the first is the message, the others are a dictionary.
pub(super) fn parse(bytes: &[u8]) -> Option<Record<'_>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (head, rest) = text.split_once(';')?;
    let mut fields = head.split(',');
    let priority: u32 = fields.next()?.parse().ok()?;
    let seq = fields.next()?.parse().ok()?;
    let _usec: u64 = fields.next()?.parse().ok()?;
    // Before 3.5 there was none; a line begins with `c`, and goes on with `+` before 4.10.
    let is_fragment = matches!(fields.next(), Some("c" | "+"));
    let text = rest.split_once('\n').map_or(rest, |(message, _)| message);
    Some(Record { facility: priority >> LEVEL_BITS, seq, is_fragment, text })
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Looked {
    pub(super) lines: Vec<String>,
    /// Records that were overwritten before they were read.
    pub(super) lost: u64,
    pub(super) malformed: u64,
    pub(super) is_over: bool,
}

#[derive(Debug)]
pub(super) struct Messages<R> {
    from: R,
    next: Option<u64>,
    begun: String,
}

/// Errors: when it cannot be opened: where `kernel.dmesg_restrict` is set, this takes SYSLOG.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    file.seek(SeekFrom::End(0))?;
    Ok(file)
}

impl<R: Read> Messages<R> {
    pub(super) fn new(from: R) -> Self {
        Self { from, next: None, begun: String::new() }
    }

    /// Reads what is there, at most so many records.
    pub(super) fn look(&mut self, records: usize) -> Looked {
        let mut looked = Looked::default();
        let mut buffer = [0; RECORD_MAX];
        for _ in 0..records {
            match self.from.read(&mut buffer) {
                Ok(0) => {
                    looked.is_over = true;
                    break;
                }
                Ok(len) => self.record(buffer.get(..len).unwrap_or_default(), &mut looked),
                // Records were overwritten: the number of the next one tells how many.
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // It does not fit into the buffer, and is gone.
                Err(error) if error.kind() == ErrorKind::InvalidInput => looked.malformed += 1,
                Err(_) => {
                    looked.is_over = true;
                    break;
                }
            }
        }
        self.end_line(&mut looked);
        looked
    }

    fn record(&mut self, bytes: &[u8], looked: &mut Looked) {
        let Some(record) = parse(bytes) else {
            looked.malformed += 1;
            return;
        };
        if let Some(next) = self.next.replace(record.seq.saturating_add(1)) {
            looked.lost += record.seq.saturating_sub(next);
        }
        if record.facility != 0 {
            return;
        }
        if !record.is_fragment {
            self.end_line(looked);
            looked.lines.push(record.text.to_owned());
        } else if self.begun.len() + record.text.len() <= LINE_MAX {
            self.begun.push_str(record.text);
        }
    }

    fn end_line(&mut self, looked: &mut Looked) {
        if !self.begun.is_empty() {
            looked.lines.push(std::mem::take(&mut self.begun));
        }
    }
}

#[cfg(test)]
mod tests;
