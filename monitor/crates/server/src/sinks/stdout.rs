//! Standard output: events as JSON or text, nothing else.
//!
//! A reader that has closed the pipe ends it. Whatever else fails, as on a full disk, is tried again: a line of which only
//! a part was written is ended first, so that what follows has one of its own.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::SignedDuration;
use jiff::tz::TimeZone;
use kevtmon_event::{Event, Severity, SharedEvent};
use kevtmon_render::{Fold, Pretty, Transcript};
use kevtmon_types::names::names;
use kevtmon_types::settings::{Valid, settings};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{Backoff, Context, Destination, Disconnected, EventQueue, Reconnecting, Started};

names! {
    /// Format of the events on standard output.
    Format {
        /// Text for people.
        Pretty = "pretty",
        /// One JSON object per line.
        Json = "json",
        /// No events.
        None = "none",
    }
}

settings! { "output":
    /// Format of the events on standard output. Default: pretty on a terminal, else json.
    FORMAT: Format = "format", default Format::Json, valid Valid::OneOf(Format::NAMES);
    /// Minimum severity on standard output; events of the daemon itself and of incidents are always written.
    /// Default: info on a terminal, else notice.
    MIN_SEVERITY: Severity = "min_severity", default Severity::Notice, valid Valid::OneOf(Severity::NAMES);
}

/// In metric labels, and among the sources of `daemon.*` events.
const NAME: &str = "stdout";
/// Between attempts to write after a failure.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(30) };
/// Bytes that are collected before they are written; fewer when nothing waits.
const CHUNK: usize = 64 * 1024;
/// What repeats itself on a terminal is counted for this time at most before it is shown.
const FOLD_TIME: Duration = Duration::from_secs(1);

/// Starts the sink; `None` when nothing is to be written.
pub(super) fn start(context: &Context<'_>) -> io::Result<Option<Started>> {
    let style = match context.settings.get(&FORMAT) {
        Format::None => return Ok(None),
        Format::Json => Style::Json,
        Format::Pretty => Style::pretty(Pretty { colour: context.colour, zone: TimeZone::system() }),
    };
    // The standard library's handle writes line by line; a duplicate of its descriptor takes whole chunks.
    let output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let metrics = Arc::clone(context.metrics);
    let stream = Stream::new(style, output);
    let sink = Reconnecting::new(stream, BACKOFF, Arc::clone(&metrics), context.core.clone());
    let (sink, status) = sink.started(None);
    let queue = EventQueue::start(NAME, context.settings.get(&MIN_SEVERITY), metrics, sink)?;
    // It is not watched for being stuck: a reader may take its time.
    Ok(Some(Started { source: Some(NAME), status: Some(status), ..queue.into() }))
}

enum Style {
    Json,
    Pretty(Box<Folded>),
}

impl Style {
    fn pretty(pretty: Pretty) -> Self {
        Self::Pretty(Box::new(Folded::new(pretty)))
    }
}

/// Events for a terminal.
struct Folded {
    pretty: Pretty,
    fold: Fold<Shared>,
    /// Events that were counted and are not shown yet.
    held: usize,
    /// When what was counted is shown at the latest.
    due: Option<Instant>,
}

impl Folded {
    fn new(pretty: Pretty) -> Self {
        let gap = SignedDuration::try_from(FOLD_TIME).unwrap_or(SignedDuration::ZERO);
        let fold = Fold::new(Transcript::new(pretty.clone()), gap);
        Self { pretty, fold, held: 0, due: None }
    }

    /// The text that an event leads to, and how many are shown by it.
    fn text(&mut self, event: &Arc<SharedEvent>) -> (String, usize) {
        let pretty = &self.pretty;
        let text =
            self.fold.event(Shared(Arc::clone(event)), event.kind.name(), |event| pretty.clock(&event.time));
        self.held += 1;
        if self.fold.is_pending() {
            self.due = self.due.or_else(|| Some(Instant::now() + FOLD_TIME));
            return (text, 0);
        }
        self.due = None;
        (text, std::mem::take(&mut self.held))
    }

    /// The same of those that were counted.
    fn counted(&mut self) -> (String, usize) {
        self.due = None;
        let pretty = &self.pretty;
        (self.fold.flush(|event| pretty.clock(&event.time)), std::mem::take(&mut self.held))
    }
}

struct Shared(Arc<SharedEvent>);

impl Deref for Shared {
    type Target = Event;

    fn deref(&self) -> &Event {
        &self.0
    }
}

struct Stream<W> {
    style: Style,
    output: W,
    /// What is not written yet.
    chunk: Vec<u8>,
    /// Where each of the events in it ends.
    ends: VecDeque<usize>,
    /// Whether the last line was begun and not ended.
    is_torn: bool,
}

impl<W: Write + AsFd> Stream<W> {
    const fn new(style: Style, output: W) -> Self {
        Self { style, output, chunk: Vec::new(), ends: VecDeque::new(), is_torn: false }
    }

    /// Adds the text of so many events.
    fn append(&mut self, text: &[u8], events: usize) {
        self.chunk.extend_from_slice(text);
        self.ends.extend(std::iter::repeat_n(self.chunk.len(), events));
    }

    /// Writes all of the chunk, and counts the bytes that were.
    fn write_chunk(&mut self, written: &mut usize) -> io::Result<()> {
        while let Some(rest) = self.chunk.get(*written..).filter(|rest| !rest.is_empty()) {
            match self.output.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.is_torn = rest.get(..count).and_then(<[u8]>::last) != Some(&b'\n');
                    *written += count;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Another process may have made the pipe that it shares with us non-blocking.
                Err(error) if error.kind() == ErrorKind::WouldBlock => await_room(self.output.as_fd())?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Forgets what was not written; returns of how many events that was.
    fn forget(&mut self) -> usize {
        // A line that lacks nothing but its end is ended when it goes on.
        let is_whole = |end: &usize| self.is_torn && *end == 1;
        let mut events = self.ends.iter().filter(|end| !is_whole(end)).count();
        self.chunk.clear();
        self.ends.clear();
        if let Style::Pretty(folded) = &mut self.style {
            events += folded.held;
            // What was shown first may be missing.
            **folded = Folded::new(folded.pretty.clone());
        }
        events
    }
}

impl<W: Write + AsFd + Send + 'static> Destination for Stream<W> {
    type Error = io::Error;

    const NAME: &'static str = NAME;
    const TITLE: &'static str = "standard output";

    fn connect(&mut self) -> io::Result<()> {
        if self.is_torn {
            self.append(b"\n", 0);
        }
        self.flush()
    }

    fn write(&mut self, event: &Arc<SharedEvent>) -> io::Result<()> {
        match &mut self.style {
            Style::Json => {
                self.append(event.line().as_bytes(), 0);
                self.append(b"\n", 1);
            }
            Style::Pretty(folded) => {
                let (text, shown) = folded.text(event);
                self.append(text.as_bytes(), shown);
            }
        }
        if self.chunk.len() < CHUNK { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut written = 0;
        let result = self.write_chunk(&mut written);
        // What was written is not written again, should it be tried once more.
        self.chunk.drain(..written.min(self.chunk.len()));
        self.ends.retain(|end| *end > written);
        self.ends.iter_mut().for_each(|end| *end -= written);
        result
    }

    fn is_final(&self, error: &io::Error) -> bool {
        error.kind() == ErrorKind::BrokenPipe
    }

    fn disconnect(&mut self, _error: &io::Error) -> Disconnected {
        let undelivered = u64::try_from(self.forget()).unwrap_or(u64::MAX);
        Disconnected { undelivered, ..Disconnected::default() }
    }

    fn due(&self) -> Option<Instant> {
        match &self.style {
            Style::Json => None,
            Style::Pretty(folded) => folded.due,
        }
    }

    fn on_time(&mut self) -> io::Result<()> {
        if let Style::Pretty(folded) = &mut self.style {
            let (text, shown) = folded.counted();
            self.append(text.as_bytes(), shown);
        }
        self.flush()
    }

    fn close(&mut self) -> io::Result<()> {
        self.on_time()
    }
}

fn await_room(output: BorrowedFd<'_>) -> io::Result<()> {
    let mut wanted = [PollFd::new(output, PollFlags::POLLOUT)];
    match poll(&mut wanted, PollTimeout::NONE) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests;
