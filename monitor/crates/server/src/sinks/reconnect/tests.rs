//! Going down, coming back, and the account of what was missed.

use std::fmt;
use std::sync::{Mutex, MutexGuard};

use kevtmon_event::{Event, Kind};
use kevtmon_observation::Observation;
use kevtmon_sources::procfs::own::Own;
use kevtmon_testing::sample;
use tokio::sync::mpsc::{Receiver, channel};

use super::*;

#[derive(Debug)]
struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the wire is cut")
    }
}

impl Error for Broken {}

/// What the other end of the wire is like, and what it got.
#[derive(Default)]
struct Wire {
    is_cut: bool,
    connects: u32,
    received: Vec<Event>,
}

/// Buffers events until they are flushed.
struct Buffered {
    wire: Arc<Mutex<Wire>>,
    buffered: Vec<Event>,
    skipped: u32,
    retry_now: bool,
    /// The result of each attempt to close it; success if there is none.
    closing: Vec<Result<(), Broken>>,
}

impl Buffered {
    fn wire(&self) -> Result<MutexGuard<'_, Wire>, Broken> {
        let wire = self.wire.lock().unwrap();
        if wire.is_cut { Err(Broken) } else { Ok(wire) }
    }
}

impl Destination for Buffered {
    type Error = Broken;

    const NAME: &'static str = "wire";
    const TITLE: &'static str = "wire";

    fn connect(&mut self) -> Result<(), Broken> {
        self.wire.lock().unwrap().connects += 1;
        self.wire().map(drop)
    }

    fn write(&mut self, event: &Arc<SharedEvent>) -> Result<(), Broken> {
        self.buffered.push((***event).clone());
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Broken> {
        let buffered = self.buffered.clone();
        self.wire()?.received.extend(buffered);
        self.buffered.clear();
        Ok(())
    }

    fn disconnect(&mut self, _error: &Broken) -> Disconnected {
        let undelivered = u64::try_from(std::mem::take(&mut self.buffered).len()).unwrap();
        Disconnected { undelivered, retry_now: self.retry_now, must_report: false }
    }

    fn skip(&mut self, _event: &SharedEvent) -> bool {
        self.skipped += 1;
        false
    }

    fn close(&mut self) -> Result<(), Broken> {
        self.closing.pop().unwrap_or(Ok(()))?;
        self.flush()
    }
}

struct Rig {
    sink: Reconnecting<Buffered>,
    wire: Arc<Mutex<Wire>>,
    metrics: Arc<Metrics>,
    statuses: Receiver<Observation>,
}

fn rig(backoff: Backoff) -> Rig {
    let metrics = Arc::new(Metrics::new("0", "0", Own::default()).unwrap());
    let wire = Arc::new(Mutex::new(Wire::default()));
    let (core, statuses) = channel(16);
    let destination = Buffered {
        wire: Arc::clone(&wire),
        buffered: Vec::new(),
        skipped: 0,
        retry_now: false,
        closing: Vec::new(),
    };
    let sink = Reconnecting::new(destination, backoff, Arc::clone(&metrics), core);
    Rig { sink, wire, metrics, statuses }
}

const AT_ONCE: Backoff = Backoff { first: Duration::ZERO, longest: Duration::ZERO };

impl Rig {
    fn deliver(&mut self, seqs: impl IntoIterator<Item = u64>) {
        for seq in seqs {
            let event = Event { seq, time: format!("t{seq}"), ..sample::deletion() };
            self.sink.deliver(&Arc::new(event.into())).unwrap();
        }
        self.sink.flush().unwrap();
    }

    fn cut(&self, is_cut: bool) {
        self.wire.lock().unwrap().is_cut = is_cut;
    }

    fn received(&self) -> Vec<(u64, Kind)> {
        self.wire.lock().unwrap().received.iter().map(|event| (event.seq, event.kind)).collect()
    }

    fn reported(&mut self) -> Vec<(bool, String)> {
        let mut reported = Vec::new();
        while let Ok(Observation { fact: Fact::Source(status), .. }) = self.statuses.try_recv() {
            assert_eq!((status.source.as_str(), status.kind), ("wire", SourceKind::Sink));
            reported.push((status.up, status.reason.unwrap_or_default()));
        }
        reported
    }

    fn discarded(&self) -> u64 {
        let start = "kevtmon_events_discarded_total{reason=\"failed\",sink=\"wire\"} ";
        let text = self.metrics.gather().unwrap();
        text.lines().find_map(|line| line.strip_prefix(start)).map_or(0, |count| count.parse().unwrap())
    }
}

#[test]
fn a_sink_connects_as_soon_as_it_runs_and_says_so_once() {
    let mut rig = rig(AT_ONCE);
    assert!(rig.sink.due().unwrap() <= Instant::now());
    rig.sink.on_time();
    assert_eq!(rig.reported(), [(true, String::new())]);
    rig.deliver(1..=3);
    assert_eq!(rig.received(), [1, 2, 3].map(|seq| (seq, Kind::NeighborDeleted)));
    assert_eq!(rig.reported(), []);
    assert_eq!(rig.sink.due(), None);
}

#[test]
fn what_was_missed_is_counted_and_summed_up_once_before_the_next_event() {
    let mut rig = rig(AT_ONCE);
    rig.sink.on_time();
    rig.deliver([1]);
    rig.cut(true);
    rig.deliver([2]);
    assert!(!rig.sink.is_up());
    rig.deliver(3..=9);
    rig.sink.on_time();
    rig.sink.on_time();
    assert_eq!(rig.reported(), [(true, String::new()), (false, "the wire is cut".to_owned())]);
    assert_eq!((rig.discarded(), rig.sink.destination.skipped), (8, 7), "one was buffered when it failed");
    rig.cut(false);
    rig.sink.on_time();
    rig.deliver([10]);
    assert_eq!(
        rig.received(),
        [(1, Kind::NeighborDeleted), (9, Kind::EventsLost), (10, Kind::NeighborDeleted)]
    );
    let lost = rig.wire.lock().unwrap().received[1].lost.clone().unwrap();
    assert_eq!(
        (lost.source.as_str(), lost.reason.as_str(), lost.count.as_str()),
        ("sink.wire", "failed", "8")
    );
    assert_eq!(rig.reported(), [(true, String::new())]);
    assert_eq!(rig.discarded(), 8);
}

#[test]
fn a_connection_that_can_be_had_again_at_once_is_no_outage() {
    let mut rig = rig(AT_ONCE);
    rig.sink.on_time();
    rig.sink.destination.retry_now = true;
    rig.sink.check(Err(Broken));
    assert!(rig.sink.is_up());
    rig.cut(true);
    rig.deliver([1]);
    assert!(!rig.sink.is_up(), "one attempt, no more");
    assert_eq!(rig.wire.lock().unwrap().connects, 3);
    assert_eq!(rig.reported(), [(true, String::new()), (false, "the wire is cut".to_owned())]);
}

#[test]
fn attempts_become_rarer_until_one_succeeds() {
    let second = Duration::from_secs(1);
    let mut rig = rig(Backoff { first: second, longest: 4 * second });
    rig.cut(true);
    for interval in [1, 2, 4, 4] {
        let before = Instant::now();
        rig.sink.on_time();
        let pause = rig.sink.due().unwrap() - before;
        assert!(pause >= interval * second && pause < (interval + 1) * second, "{pause:?}");
    }
    rig.cut(false);
    rig.sink.on_time();
    rig.cut(true);
    let before = Instant::now();
    rig.deliver([1]);
    assert!(rig.sink.due().unwrap() - before < 2 * second, "it starts over");
}

#[test]
fn the_end_writes_what_was_buffered() {
    let mut rig = rig(AT_ONCE);
    rig.sink.on_time();
    let event = Event { seq: 1, ..sample::deletion() };
    rig.sink.deliver(&Arc::new(event.into())).unwrap();
    rig.sink.finish();
    assert_eq!(rig.received(), [(1, Kind::NeighborDeleted)]);
}

#[test]
fn a_connection_that_replaces_one_at_the_end_is_closed_too() {
    let mut rig = rig(AT_ONCE);
    rig.sink.on_time();
    rig.sink.destination.retry_now = true;
    rig.sink.destination.closing = vec![Ok(()), Err(Broken)];
    rig.sink.finish();
    assert_eq!(rig.wire.lock().unwrap().connects, 2);
    assert!(rig.sink.destination.closing.is_empty(), "only one was closed");
}
