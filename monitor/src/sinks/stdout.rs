//! Standard output: events as JSON or text, nothing else.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::SignedDuration;
use jiff::tz::TimeZone;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{Context, EventQueue, Filter, Sink, Started};
use crate::event::{Event, Severity, SharedEvent};
use crate::names::names;
use crate::render::{Fold, Pretty, Transcript};
use crate::settings::{Valid, settings};

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
    let filter = Filter { min_severity: context.settings.get(&MIN_SEVERITY) };
    // The standard library's handle writes line by line; a duplicate of its descriptor takes whole chunks.
    let output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let stream = Stream::new(style, output);
    Ok(Some(EventQueue::start("stdout", filter, Arc::clone(context.metrics), stream)?.into()))
}

enum Style {
    Json,
    Pretty(Box<Folded>),
}

impl Style {
    fn pretty(pretty: Pretty) -> Self {
        let gap = SignedDuration::try_from(FOLD_TIME).unwrap_or(SignedDuration::ZERO);
        let fold = Fold::new(Transcript::new(pretty.clone()), gap);
        Self::Pretty(Box::new(Folded { pretty, fold, due: None }))
    }
}

/// Events for a terminal.
struct Folded {
    pretty: Pretty,
    fold: Fold<Shared>,
    /// When what was counted is shown at the latest.
    due: Option<Instant>,
}

impl Folded {
    fn text(&mut self, event: &Arc<SharedEvent>) -> String {
        let pretty = &self.pretty;
        let text =
            self.fold.event(Shared(Arc::clone(event)), event.kind.name(), |event| pretty.clock(&event.time));
        self.due = match self.fold.is_pending() {
            true => self.due.or_else(|| Some(Instant::now() + FOLD_TIME)),
            false => None,
        };
        text
    }

    fn counted(&mut self) -> String {
        self.due = None;
        let pretty = &self.pretty;
        self.fold.flush(|event| pretty.clock(&event.time))
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
}

impl<W: Write + AsFd> Stream<W> {
    const fn new(style: Style, output: W) -> Self {
        Self { style, output, chunk: Vec::new(), ends: VecDeque::new() }
    }

    /// Writes all of the chunk, and counts the bytes that were.
    fn write(&mut self, written: &mut usize) -> io::Result<()> {
        while let Some(rest) = self.chunk.get(*written..).filter(|rest| !rest.is_empty()) {
            match self.output.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => *written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Another process may have made the pipe that it shares with us non-blocking.
                Err(error) if error.kind() == ErrorKind::WouldBlock => await_room(self.output.as_fd())?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl<W: Write + AsFd + Send + 'static> Sink for Stream<W> {
    fn deliver(&mut self, event: &Arc<SharedEvent>) -> io::Result<()> {
        match &mut self.style {
            Style::Json => {
                self.chunk.extend_from_slice(event.line().as_bytes());
                self.chunk.push(b'\n');
            }
            Style::Pretty(folded) => self.chunk.extend_from_slice(folded.text(event).as_bytes()),
        }
        self.ends.push_back(self.chunk.len());
        if self.chunk.len() < CHUNK { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut written = 0;
        let result = self.write(&mut written);
        // What was written is not written again, should it be tried once more.
        self.chunk.drain(..written.min(self.chunk.len()));
        self.ends.retain(|end| *end > written);
        self.ends.iter_mut().for_each(|end| *end -= written);
        result
    }

    fn unwritten(&self) -> usize {
        self.ends.len()
    }

    fn due(&self) -> Option<Instant> {
        match &self.style {
            Style::Json => None,
            Style::Pretty(folded) => folded.due,
        }
    }

    fn on_time(&mut self) {
        if let Style::Pretty(folded) = &mut self.style {
            self.chunk.extend_from_slice(folded.counted().as_bytes());
        }
        if let Err(error) = self.flush() {
            // The next event meets the same error, which ends the sink.
            tracing::debug!(%error, "standard output cannot be written");
        }
    }

    fn finish(&mut self) {
        self.on_time();
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
mod tests {
    use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, pipe};
    use std::time::Duration;

    use nix::fcntl::{FcntlArg, OFlag, fcntl};

    use super::*;
    use crate::event::Event;
    use crate::metrics::Metrics;
    use crate::sinks::Sinks;
    use crate::sources::procfs::own::Own;
    use crate::tests::sample;

    fn metrics() -> Arc<Metrics> {
        Arc::new(Metrics::new("0", "0", Own::default()).unwrap())
    }

    fn sinks(style: Style, metrics: &Arc<Metrics>) -> (Sinks, PipeReader, PipeWriter) {
        let (reader, writer) = pipe().unwrap();
        let stream = Stream::new(style, writer.try_clone().unwrap());
        let filter = Filter { min_severity: Severity::Debug };
        let mut sinks = Sinks::default();
        sinks.add(EventQueue::start("stdout", filter, Arc::clone(metrics), stream).unwrap());
        (sinks, reader, writer)
    }

    #[test]
    fn a_reader_gets_each_line_while_the_stream_is_open() {
        let (sinks, reader, _writer) = sinks(Style::Json, &metrics());
        let mut lines = BufReader::new(reader).lines();
        for event in sample::all() {
            sinks.offer(&Arc::new(event.clone().into()));
            let line: Event = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
            assert_eq!(line.message, event.message);
        }
        sinks.finish(Duration::from_secs(30));
    }

    #[test]
    fn pretty_events_are_separate_paragraphs_of_text() {
        let (sinks, mut reader, writer) =
            sinks(Style::pretty(Pretty { colour: false, zone: TimeZone::UTC }), &metrics());
        for event in sample::all() {
            sinks.offer(&Arc::new(event.into()));
        }
        sinks.finish(Duration::from_secs(30));
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        let heads = text.lines().filter(|line| !line.starts_with(' ')).count();
        assert_eq!(heads, sample::all().len());
    }

    #[test]
    fn a_storm_is_counted_on_a_terminal_and_its_count_does_not_wait_for_the_end_of_it() {
        let (sinks, reader, _writer) =
            sinks(Style::pretty(Pretty { colour: false, zone: TimeZone::UTC }), &metrics());
        for seq in 1..=500 {
            let mut event = sample::deletion();
            (event.seq, event.neighbor.as_mut().unwrap().gateway) = (seq, Some(false));
            sinks.offer(&Arc::new(event.into()));
        }
        let mut heads =
            BufReader::new(reader).lines().map(Result::unwrap).filter(|line| !line.starts_with(' '));
        assert!(heads.next().unwrap().contains("deleted by calico"));
        assert!(heads.next().unwrap().contains("… 499 more like it"));
        sinks.finish(Duration::from_secs(30));
    }

    #[test]
    fn a_reader_that_went_away_closes_the_sink_and_nothing_else() {
        let metrics = metrics();
        let (sinks, reader, writer) = sinks(Style::Json, &metrics);
        drop((reader, writer));
        for event in sample::all() {
            sinks.offer(&Arc::new(event.into()));
        }
        sinks.finish(Duration::from_secs(30));
        let count = sample::all().len();
        let expected =
            format!("kevtmon_events_discarded_total{{reason=\"closed\",sink=\"stdout\"}} {count}\n");
        assert!(metrics.gather().unwrap().contains(&expected));
    }

    /// Takes so many bytes.
    struct Full {
        pipe: PipeWriter,
        left: usize,
    }

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.left);
            self.left -= taken;
            if taken > 0 { Ok(taken) } else { Err(ErrorKind::StorageFull.into()) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl AsFd for Full {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.pipe.as_fd()
        }
    }

    #[test]
    fn what_was_written_before_a_disk_was_full_is_not_counted_as_unwritten_nor_written_again() {
        let event: Arc<SharedEvent> = Arc::new(sample::deletion().into());
        let line = event.line().len() + 1;
        let (_reader, pipe) = pipe().unwrap();
        let mut stream = Stream::new(Style::Json, Full { pipe, left: 2 * line + line / 2 });
        for _ in 0..5 {
            stream.deliver(&event).unwrap();
        }
        assert_eq!(stream.flush().unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!((stream.unwritten(), stream.chunk.len()), (3, 5 * line - (2 * line + line / 2)));
        stream.output.left = usize::MAX;
        stream.flush().unwrap();
        assert_eq!((stream.unwritten(), stream.chunk.len()), (0, 0));
        assert_eq!(usize::MAX - stream.output.left, 5 * line - (2 * line + line / 2));
    }

    #[test]
    fn a_non_blocking_pipe_loses_nothing() {
        let metrics = metrics();
        let (sinks, reader, writer) = sinks(Style::Json, &metrics);
        fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        drop(writer);
        let offered = 500;
        for _ in 0..offered {
            sinks.offer(&Arc::new(sample::deletion().into()));
        }
        let reading = std::thread::spawn(|| BufReader::new(reader).lines().count());
        sinks.finish(Duration::from_secs(30));
        assert_eq!(reading.join().unwrap(), offered);
    }
}
