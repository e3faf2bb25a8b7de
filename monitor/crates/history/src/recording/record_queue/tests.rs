//! Bounds and failures of the queue of a recording.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use kevtmon_testing::patience::{PATIENCE, eventually};

use super::*;

/// Waits for a permit before each write; a permit may be an error.
struct Gated {
    permits: Receiver<io::Result<()>>,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl SegmentWriter for Gated {
    fn start_part(&mut self, _start: PartStart) -> io::Result<()> {
        Ok(())
    }

    fn write_lines(&mut self, lines: &[u8]) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        self.permits.recv().unwrap_or(Ok(()))?;
        self.seen.lock().unwrap().extend_from_slice(lines);
        Ok(())
    }
}

type Seen = Arc<Mutex<Vec<u8>>>;

fn gated() -> (RecordQueue, SyncSender<io::Result<()>>, Seen) {
    let (permit, permits) = sync_channel(100);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let writer = Gated { permits, seen: Arc::clone(&seen) };
    let queue =
        RecordQueue::start("test", RecordBounds { capacity: 10, urgent: 1 }, writer, false, drop).unwrap();
    (queue, permit, seen)
}

#[test]
fn a_disk_that_does_not_answer_delays_nobody_and_what_waits_is_bounded() {
    let (queue, permit, seen) = gated();
    queue.start_part(PartStart::SameFile, b"head\n");
    eventually("all is written", || queue.is_empty());
    let taken = (0..100).filter(|_| queue.put(b"1234\n", &Tenant::default()).is_ok()).count();
    assert_eq!(taken, 2);
    drop(permit);
    queue.finish(Instant::now() + PATIENCE);
    assert_eq!(&seen.lock().unwrap()[..], b"head\n1234\n1234\n");
}

#[test]
fn after_a_failed_write_nothing_follows_the_hole_until_a_part_begins() {
    let (queue, permit, seen) = gated();
    permit.send(Err(io::ErrorKind::StorageFull.into())).unwrap();
    queue.put(b"a\nb\n", &Tenant::default()).unwrap();
    eventually("it has failed", || {
        queue.put(b"c\n", &Tenant::default()) == Err(Refused::Failed)
            || !queue.is_empty() && queue.take_lost() > 0
    });
    eventually("all is written", || queue.is_empty());
    assert!(seen.lock().unwrap().is_empty());
    drop(permit);
    queue.start_part(PartStart::SameFile, b"head\n");
    queue.put(b"d\n", &Tenant::default()).unwrap();
    queue.finish(Instant::now() + PATIENCE);
    assert_eq!(&seen.lock().unwrap()[..], b"head\nd\n");
}

#[test]
fn one_account_takes_as_many_bytes_as_are_left_free_and_no_more() {
    let (permit, permits) = sync_channel(100);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let writer = Gated { permits, seen: Arc::clone(&seen) };
    let bounds = RecordBounds { capacity: 1000, urgent: usize::MAX };
    let queue = RecordQueue::start("test", bounds, writer, false, drop).unwrap();
    // It waits for its permit.
    queue.put(b"0\n", &Tenant::default()).unwrap();
    eventually("the thread is busy", || queue.is_empty());
    let put = |priority, account: &str| {
        let tenant = Tenant { priority, name: account.into() };
        let taken = (0..1000).take_while(|_| queue.put(b"12345678\n", &tenant).is_ok()).count();
        assert_eq!(queue.put(b"12345678\n", &tenant), Err(Refused::Budget));
        taken * 9
    };
    assert_eq!(put(Priority::Node, "a.service"), 504);
    assert_eq!(put(Priority::Node, "b.service"), 252);
    assert_eq!(put(Priority::Foreign, "user-1000.slice"), 45);
    queue.put(b"12345678\n", &Tenant::default()).unwrap();
    drop(permit);
    queue.finish(Instant::now() + PATIENCE);
}

#[test]
fn that_nothing_can_be_written_is_told_once_and_so_is_that_it_can_again() {
    let (permit, permits) = sync_channel(100);
    let writer = Gated { permits, seen: Arc::default() };
    let bounds = RecordBounds { capacity: 10, urgent: 1 };
    let (tell, told) = sync_channel(100);
    let queue =
        RecordQueue::start("test", bounds, writer, false, move |why| tell.send(why).unwrap()).unwrap();
    for _ in 0..2 {
        permit.send(Err(io::ErrorKind::StorageFull.into())).unwrap();
        queue.start_part(PartStart::SameFile, b"head\n");
        eventually("it is tried", || queue.is_empty() && queue.take_lost() > 0);
    }
    permit.send(Ok(())).unwrap();
    queue.start_part(PartStart::SameFile, b"head\n");
    queue.finish(Instant::now() + PATIENCE);
    let told: Vec<Option<String>> = told.iter().collect();
    assert_eq!(told, [Some("cannot write: no storage space".to_owned()), None]);
}
