//! What a reader gets, and what becomes of a destination that takes nothing.

use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, pipe};
use std::time::Duration;

use kevtmon_event::{Event, Kind};
use kevtmon_metrics::Metrics;
use kevtmon_observation::{Fact, Observation};
use kevtmon_sources::procfs::own::Own;
use kevtmon_testing::sample;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tokio::sync::mpsc::{Receiver, channel};

use super::*;
use crate::sinks::reconnect::ENDED;
use crate::sinks::{Sink, Sinks};

fn metrics() -> Arc<Metrics> {
    Arc::new(Metrics::new("0", "0", Own::default()).unwrap())
}

/// Statuses reported to the core since the last call.
fn reported(core: &mut Receiver<Observation>) -> Vec<(bool, String)> {
    let mut reported = Vec::new();
    while let Ok(Observation { fact: Fact::Source(status), .. }) = core.try_recv() {
        assert_eq!(status.source, NAME);
        reported.push((status.up, status.reason.unwrap_or_default()));
    }
    reported
}

fn sinks(style: Style, metrics: &Arc<Metrics>) -> (Sinks, PipeReader, PipeWriter, Receiver<Observation>) {
    let (reader, writer) = pipe().unwrap();
    let (core, statuses) = channel(16);
    let stream = Stream::new(style, writer.try_clone().unwrap());
    let (sink, _) = Reconnecting::new(stream, BACKOFF, Arc::clone(metrics), core).started(None);
    let mut sinks = Sinks::default();
    sinks.add(EventQueue::start(NAME, Severity::Debug, Arc::clone(metrics), sink).unwrap());
    (sinks, reader, writer, statuses)
}

fn plain() -> Style {
    Style::pretty(Pretty { colour: false, zone: TimeZone::UTC })
}

#[test]
fn a_reader_gets_each_line_while_the_stream_is_open() {
    let (sinks, reader, _writer, _core) = sinks(Style::Json, &metrics());
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
    let (sinks, mut reader, writer, _core) = sinks(plain(), &metrics());
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
    let (sinks, reader, _writer, _core) = sinks(plain(), &metrics());
    for seq in 1..=500 {
        let mut event = sample::deletion();
        (event.seq, event.neighbor.as_mut().unwrap().gateway) = (seq, Some(false));
        sinks.offer(&Arc::new(event.into()));
    }
    let mut heads = BufReader::new(reader).lines().map(Result::unwrap).filter(|line| !line.starts_with(' '));
    assert!(heads.next().unwrap().contains("deleted by calico"));
    assert!(heads.next().unwrap().contains("… 499 more like it"));
    sinks.finish(Duration::from_secs(30));
}

#[test]
fn a_reader_that_went_away_closes_the_sink_and_nothing_else() {
    let metrics = metrics();
    let (sinks, reader, writer, mut core) = sinks(Style::Json, &metrics);
    drop((reader, writer));
    for event in sample::all() {
        sinks.offer(&Arc::new(event.into()));
    }
    sinks.finish(Duration::from_secs(30));
    let count = sample::all().len();
    let expected = format!("kevtmon_events_discarded_total{{reason=\"closed\",sink=\"stdout\"}} {count}\n");
    assert!(metrics.gather().unwrap().contains(&expected));
    assert_eq!(reported(&mut core), [(false, format!("{ENDED}: Broken pipe (os error 32)"))]);
}

/// A file on a disk with room for so many bytes.
struct Disk {
    pipe: PipeWriter,
    file: Vec<u8>,
    left: usize,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.left);
        self.left -= taken;
        self.file.extend_from_slice(&bytes[..taken]);
        if taken > 0 { Ok(taken) } else { Err(ErrorKind::StorageFull.into()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Disk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

/// A sink on such a disk, which tries again at once.
struct Rig {
    sink: Reconnecting<Stream<Disk>>,
    metrics: Arc<Metrics>,
    core: Receiver<Observation>,
}

impl Rig {
    fn new(style: Style, room: usize) -> Self {
        let (_, pipe) = pipe().unwrap();
        let metrics = metrics();
        let (core, statuses) = channel(16);
        let stream = Stream::new(style, Disk { pipe, file: Vec::new(), left: room });
        let backoff = Backoff { first: Duration::ZERO, longest: Duration::ZERO };
        let (sink, status) = Reconnecting::new(stream, backoff, Arc::clone(&metrics), core).started(None);
        assert!(status.up);
        Self { sink, metrics, core: statuses }
    }

    fn deliver(&mut self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            self.sink.deliver(&Arc::new(event.into())).unwrap();
        }
        self.sink.flush().unwrap();
    }

    fn make_room(&mut self, room: usize) {
        self.sink.destination.output.left = room;
        self.sink.on_time();
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.sink.destination.output.file).unwrap()
    }

    fn discarded(&self) -> u64 {
        let start = "kevtmon_events_discarded_total{reason=\"failed\",sink=\"stdout\"} ";
        let text = self.metrics.gather().unwrap();
        text.lines().find_map(|line| line.strip_prefix(start)).map_or(0, |count| count.parse().unwrap())
    }
}

fn numbered(seq: u64) -> Event {
    Event { seq, ..sample::deletion() }
}

/// Bytes of the line of such an event, with its end.
fn line() -> usize {
    SharedEvent::from(numbered(1)).line().len() + 1
}

#[test]
fn a_full_disk_is_told_and_what_follows_is_on_a_line_of_its_own() {
    let mut rig = Rig::new(Style::Json, 2 * line() + line() / 2);
    rig.deliver((1..=5).map(numbered));
    assert_eq!(reported(&mut rig.core), [(false, "no storage space".to_owned())]);
    assert_eq!(rig.discarded(), 3, "two were written, and the half of one");
    rig.deliver([numbered(6)]);
    rig.sink.on_time();
    assert_eq!((reported(&mut rig.core), rig.discarded()), (Vec::new(), 4));
    // Room for the end of the line, and for a part of what is told of the gap.
    rig.make_room(9);
    assert_eq!((reported(&mut rig.core), rig.discarded()), (Vec::new(), 4));
    rig.make_room(usize::MAX);
    assert_eq!(reported(&mut rig.core), [(true, String::new())]);
    rig.deliver([numbered(7)]);
    let read: Vec<Option<Event>> = rig.text().lines().map(|line| serde_json::from_str(line).ok()).collect();
    let [Some(first), Some(second), None, None, Some(gap), Some(last)] = &read[..] else {
        panic!("{}", rig.text())
    };
    assert_eq!([first.seq, second.seq, gap.seq, last.seq], [1, 2, 6, 7]);
    let lost = gap.lost.as_ref().unwrap();
    assert_eq!((gap.kind, lost.reason.as_str(), lost.count.as_str()), (Kind::EventsLost, "failed", "4"));
}

#[test]
fn a_line_that_lacked_only_its_end_is_not_lost() {
    let mut rig = Rig::new(Style::Json, line() - 1);
    rig.deliver([numbered(1)]);
    assert_eq!((reported(&mut rig.core).len(), rig.discarded()), (1, 0));
    rig.make_room(usize::MAX);
    rig.deliver([numbered(2)]);
    assert_eq!((reported(&mut rig.core).len(), rig.text().lines().count()), (1, 2));
}

#[test]
fn what_was_only_counted_on_a_terminal_is_lost_as_well() {
    let mut rig = Rig::new(plain(), usize::MAX);
    let like = |seq| {
        let mut event = numbered(seq);
        event.neighbor.as_mut().unwrap().gateway = Some(false);
        event
    };
    rig.deliver((1..=10).map(like));
    rig.sink.destination.output.left = 0;
    rig.sink.on_time();
    assert_eq!(rig.discarded(), 9, "only the first was shown");
    rig.make_room(usize::MAX);
    assert!(rig.text().contains("stdout was down: 9 events discarded"), "{}", rig.text());
}

#[test]
fn a_non_blocking_pipe_loses_nothing() {
    let metrics = metrics();
    let (sinks, reader, writer, _core) = sinks(Style::Json, &metrics);
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

#[test]
fn every_event_is_one_line_that_reads_back_the_same_without_what_is_unknown() {
    for event in sample::all() {
        let shared = SharedEvent::from(event.clone());
        let line = shared.line();
        assert!(!line.contains('\n') && !line.contains("null"), "{line}");
        let back: Event = serde_json::from_str(line).unwrap();
        assert_eq!(back, Event { at: 0, ..event });
    }
}
