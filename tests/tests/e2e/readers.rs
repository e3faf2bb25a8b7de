//! Many readers of the stream of events, one of which never reads: none waits for another.

use std::sync::atomic::{AtomicU64, Ordering};

use kevtmon_tests::balance::stop_and_account;
use kevtmon_tests::daemon::{Daemon, WITHOUT_BUDGETS, launch};
use kevtmon_tests::eventually;
use kevtmon_tests::lock::Exclusive;
use kevtmon_tests::pod::Pod;
use kevtmon_tests::storm::{address, storm};
use kevtmon_tests::stream::Stream;

const READERS: usize = 198;
/// Entries that come and go in one breath; less than any queue holds.
const ROUND: u32 = 200;
/// Rounds after which a reader that does not read has fallen behind, including what its socket holds.
const ROUNDS: u32 = 60;

/// Lets entries come and go, and waits until the deletion of the last one is on standard output; its sequence number.
fn round(daemon: &mut Daemon, pod: &Pod, round: u32) -> u64 {
    let end = (round + 1) * ROUND;
    storm(pod, end - ROUND..end);
    let last = daemon.wait_for_deletion(pod.inum(), &address(end - 1));
    last.number("/seq").expect("an event has a number")
}

/// Reads until the end of the stream, or this number.
fn numbers(stream: &mut Stream, last: u64) -> Vec<u64> {
    let mut numbers = Vec::new();
    while numbers.last() != Some(&last)
        && let Some(number) = stream.next_seq()
    {
        numbers.push(number);
    }
    numbers
}

/// Panics unless these are all numbers from the first to the last, in their order.
#[track_caller]
fn expect_all(numbers: &[u64], first: u64, last: u64) {
    let begin = numbers.first().copied().unwrap_or(u64::MAX);
    assert!(begin <= first, "the first of {} is {begin}, not {first}", numbers.len());
    let gap = numbers.windows(2).find(|pair| pair[1] != pair[0] + 1);
    assert_eq!(gap, None, "a gap among {}", numbers.len());
    assert_eq!(numbers.last(), Some(&last));
}

/// How many events readers of the stream missed because they were slow.
fn cut_off(daemon: &Daemon) -> f64 {
    let labels = [("sink", "api"), ("reason", "slow-reader")];
    daemon.metrics().count("kevtmon_events_discarded_total", &labels)
}

/// What counts all that the kernel does, or needs a quiet machine.
mod alone {
    use super::*;

    #[test]
    fn whoever_does_not_read_is_cut_off_and_two_hundred_others_get_everything() {
        // No storm of another test may take room in a queue of which every event is counted here.
        let _exclusive = Exclusive::take();
        let pod = Pod::new();
        let mut daemon = launch().config(WITHOUT_BUDGETS).start();
        let socket = daemon.socket();
        let mut never = Stream::open(&socket, "");
        let mut slow = Stream::open(&socket, "");
        let readers = (0..READERS).map(|_| Stream::open(&socket, "")).collect::<Vec<_>>();
        let places = (0..READERS).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        let first = round(&mut daemon, &pod, 0) + 1 - u64::from(ROUND);

        let read = std::thread::scope(|scope| {
            let reading = readers.into_iter().zip(&places).map(|(mut reader, place)| {
                scope.spawn(move || {
                    let mut read = Vec::new();
                    while let Some(number) = reader.next_seq() {
                        read.push(number);
                        place.store(number, Ordering::Release);
                    }
                    read
                })
            });
            let reading = reading.collect::<Vec<_>>();
            let mut read_slowly = Vec::new();
            let last = (1..ROUNDS).find_map(|number| {
                let last = round(&mut daemon, &pod, number);
                let behind = || places.iter().filter(|place| place.load(Ordering::Acquire) < last).count();
                eventually!(behind() == 0, "all readers have number {last}");
                assert_eq!(daemon.get("/readyz").map(|answer| answer.status), Some(200));
                // Only when all others have it all, and in small pieces.
                read_slowly.extend(numbers(&mut slow, last));
                (cut_off(&daemon) > 0.0).then_some(last)
            });
            let last = last.expect("who never reads is cut off");

            // What was on its way to him is whole. He can go on where it ends.
            let arrived = numbers(&mut never, last);
            let end = arrived.last().copied().expect("something was on its way");
            expect_all(&arrived, first, end);
            assert!(end < last, "the stream of who never reads has ended");
            let missed = numbers(&mut Stream::open(&socket, &format!("&after={end}")), last);
            expect_all(&missed, end + 1, last);
            // What came after the cut is not counted, nor what was on its way and did not arrive.
            assert!(cut_off(&daemon) <= missed.len() as f64, "{} of {}", cut_off(&daemon), missed.len());

            stop_and_account(&mut daemon);
            read_slowly.extend(numbers(&mut slow, u64::MAX));
            let read = reading.into_iter().map(|thread| thread.join().expect("a reader ends well"));
            read.chain([read_slowly]).collect::<Vec<_>>()
        });
        let printed = daemon.events();
        let printed = printed.iter().filter_map(|event| event.number("/seq")).collect::<Vec<_>>();
        let last = printed.last().copied().expect("something was printed");
        expect_all(&printed, 1, last);
        for read in read {
            expect_all(&read, first, last);
        }
    }
}
