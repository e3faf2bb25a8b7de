//! Wake-ups, rests, timers and the end of a queue.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use super::*;

const PATIENCE: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3600);

#[derive(Default)]
struct Numbers {
    numbers: Vec<u32>,
    is_urgent: bool,
}

impl Buffer for Numbers {
    fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    fn len(&self) -> usize {
        self.numbers.len()
    }

    fn is_urgent(&self) -> bool {
        self.is_urgent
    }

    fn take_into(&mut self, batch: &mut Self) {
        std::mem::swap(self, batch);
    }
}

/// Passes each batch on, then does what the test set.
struct Relay {
    batches: SyncSender<Vec<u32>>,
    answers: Receiver<io::Result<Option<Instant>>>,
    timer: Option<Instant>,
    timers: SyncSender<()>,
    aborted: SyncSender<usize>,
}

impl Worker for Relay {
    type Buffer = Numbers;

    fn process(&mut self, batch: &mut Numbers) -> io::Result<Option<Instant>> {
        let numbers = std::mem::take(batch).numbers;
        assert!(!numbers.contains(&666), "the worker panics on purpose");
        self.batches.send(numbers).unwrap();
        self.answers.recv().unwrap_or(Ok(None))
    }

    fn due(&self) -> Option<Instant> {
        self.timer
    }

    fn on_time(&mut self) {
        self.timer = None;
        self.timers.send(()).unwrap();
    }

    fn abort(&mut self, _error: &io::Error, unprocessed: &Numbers) {
        self.aborted.send(unprocessed.len()).unwrap();
    }
}

struct Rig {
    queue: Queue<Numbers>,
    batches: Receiver<Vec<u32>>,
    answers: SyncSender<io::Result<Option<Instant>>>,
    timers: Receiver<()>,
    aborted: Receiver<usize>,
}

fn rig(timer: Option<Instant>) -> Rig {
    let (batches_in, batches) = sync_channel(100);
    let (answers, answers_out) = sync_channel(100);
    let (timers_in, timers) = sync_channel(100);
    let (aborted_in, aborted) = sync_channel(100);
    let relay =
        Relay { batches: batches_in, answers: answers_out, timer, timers: timers_in, aborted: aborted_in };
    Rig { queue: Queue::start("test", relay).unwrap(), batches, answers, timers, aborted }
}

impl Rig {
    fn put(&self, number: u32) -> bool {
        self.queue.put(|waiting| waiting.numbers.push(number)).is_some()
    }

    fn batch(&self) -> Vec<u32> {
        self.batches.recv_timeout(PATIENCE).unwrap()
    }
}

#[test]
fn what_arrives_while_the_worker_is_busy_is_one_batch() {
    let rig = rig(None);
    rig.put(1);
    assert_eq!(rig.batch(), [1]);
    (2..=5).for_each(|number| assert!(rig.put(number)));
    rig.answers.send(Ok(None)).unwrap();
    assert_eq!(rig.batch(), [2, 3, 4, 5]);
    drop(rig.answers);
    assert_eq!(rig.queue.finish(Instant::now() + PATIENCE), Ok(()));
}

#[test]
fn a_timer_goes_off_though_something_always_waits() {
    let timer = Instant::now() + Duration::from_millis(50);
    let rig = rig(Some(timer));
    rig.put(1);
    assert_eq!(rig.batch(), [1]);
    rig.put(2);
    while Instant::now() < timer {
        thread::park_timeout(timer.saturating_duration_since(Instant::now()));
    }
    rig.answers.send(Ok(None)).unwrap();
    assert_eq!(rig.batch(), [2]);
    assert!(rig.timers.try_recv().is_ok());
}

#[test]
fn a_rest_is_ended_only_by_what_is_urgent() {
    let rig = rig(None);
    rig.answers.send(Ok(Some(Instant::now() + HOUR))).unwrap();
    rig.put(1);
    assert_eq!(rig.batch(), [1]);
    rig.put(2);
    assert!(rig.batches.recv_timeout(Duration::from_millis(50)).is_err(), "it rests");
    rig.queue.put(|waiting| waiting.is_urgent = true);
    assert_eq!(rig.batch(), [2]);
}

#[test]
fn the_end_ends_a_rest_and_processes_what_waits() {
    let rig = rig(None);
    rig.answers.send(Ok(Some(Instant::now() + HOUR))).unwrap();
    rig.put(1);
    assert_eq!(rig.batch(), [1]);
    rig.put(2);
    drop(rig.answers);
    assert_eq!(rig.queue.finish(Instant::now() + PATIENCE), Ok(()));
    assert_eq!(rig.batches.recv().unwrap(), [2]);
}

#[test]
fn the_timer_goes_off_while_nothing_arrives() {
    let rig = rig(Some(Instant::now()));
    rig.timers.recv_timeout(PATIENCE).unwrap();
}

#[test]
fn the_timer_goes_off_during_a_rest() {
    let rig = rig(Some(Instant::now() + Duration::from_millis(20)));
    rig.answers.send(Ok(Some(Instant::now() + HOUR))).unwrap();
    rig.put(1);
    assert_eq!(rig.batch(), [1]);
    rig.put(2);
    rig.timers.recv_timeout(PATIENCE).unwrap();
    assert!(rig.batches.try_recv().is_err(), "the rest goes on");
}

#[test]
fn a_worker_that_fails_closes_the_queue_and_learns_what_still_waited() {
    let rig = rig(None);
    rig.put(1);
    assert_eq!(rig.batch(), [1]);
    rig.put(2);
    rig.put(3);
    rig.answers.send(Err(io::ErrorKind::BrokenPipe.into())).unwrap();
    assert_eq!(rig.aborted.recv_timeout(PATIENCE), Ok(2));
    assert!(!rig.put(4));
    assert_eq!(rig.queue.finish(Instant::now() + PATIENCE), Ok(()));
}

#[test]
fn a_worker_that_is_stuck_is_given_up_at_the_deadline() {
    let rig = rig(None);
    rig.put(1);
    assert_eq!(rig.batch(), [1]);
    rig.put(2);
    assert_eq!(rig.queue.finish(Instant::now() + Duration::from_millis(1)), Err(1));
}

#[test]
fn it_is_known_since_when_a_worker_is_at_work() {
    let rig = rig(None);
    assert_eq!(rig.queue.working_since(), None);
    let before = Instant::now();
    rig.put(1);
    assert_eq!(rig.batch(), [1]);
    assert!(rig.queue.working_since().is_some_and(|since| since >= before), "until it has its answer");
    rig.answers.send(Ok(None)).unwrap();
    kevtmon_testing::patience::eventually("it waits again", || rig.queue.working_since().is_none());
}

#[test]
fn nobody_waits_for_a_worker_that_panicked() {
    let rig = rig(None);
    rig.put(666);
    let before = Instant::now();
    assert_eq!(rig.queue.finish(before + PATIENCE), Ok(()));
    assert!(before.elapsed() < PATIENCE);
}

#[test]
fn reserved_places_are_beyond_the_capacity() {
    let bounds = Bounds { capacity: 10, reserved: 5 };
    assert!(bounds.admits(9, 1, QueueClass::Normal));
    assert!(!bounds.admits(10, 1, QueueClass::Normal));
    assert!(bounds.admits(14, 1, QueueClass::Reserved));
    assert!(!bounds.admits(14, 2, QueueClass::Reserved));
    assert!(!bounds.admits(1, usize::MAX, QueueClass::Normal));
}
