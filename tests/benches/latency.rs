//! From the kernel's time stamp of a deletion to the moment its JSON line is read.
#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "it prints figures, and a set-up that fails must end it"
)]

use std::net::Ipv4Addr;
use std::time::{Duration, Instant, UNIX_EPOCH};

use kevtmon_tests::daemon::launch;
use kevtmon_tests::event::Event;
use kevtmon_tests::patience::patience;
use kevtmon_tests::pod::Pod;

const EVENTS: u32 = 10_000;
/// The first address, 10.99.1.0.
const FIRST: u32 = 0x0a63_0100;
const PER_SECOND: u32 = 1_000;

fn main() {
    let pod = Pod::new();
    let mut daemon = launch().read_later().spawn();
    let lines = daemon.unparsed();
    // Parsed only once all are there: meanwhile the reader should cost next to nothing.
    let next = |kind: &str| {
        let mut lines = std::iter::from_fn(|| lines.recv_timeout(patience()).ok());
        lines.find(|(line, _)| line.contains(kind)).expect("the daemon writes it")
    };
    next("\"daemon.ready\"");
    let start = Instant::now();
    pod.netns().network(|network| {
        for index in 0..EVENTS {
            pause_until(start + Duration::from_secs(1) * index / PER_SECOND);
            network.churn_neighbors("eth0", [Ipv4Addr::from(FIRST + index)])?;
        }
        Ok(())
    });
    let elapsed = start.elapsed();
    let mut micros: Vec<f64> = (0..EVENTS)
        .map(|_| {
            let (line, read) = next("\"neighbor.deleted\"");
            let read = read.duration_since(UNIX_EPOCH).expect("a clock that is set");
            (read.as_secs_f64() - Event::parse(&line).expect("an event").seconds()) * 1e6
        })
        .collect();
    micros.sort_by(f64::total_cmp);
    let at = |percent: usize| micros[(micros.len() * percent / 100).min(micros.len() - 1)];
    println!(
        "latency    {EVENTS} deletions in {:.1} s: min {:.0} µs, median {:.0} µs, p99 {:.0} µs, max {:.0} µs",
        elapsed.as_secs_f64(),
        at(0),
        at(50),
        at(99),
        at(100),
    );
}

#[expect(clippy::disallowed_methods, reason = "a paced load is what this benchmark measures with")]
fn pause_until(due: Instant) {
    std::thread::sleep(due.saturating_duration_since(Instant::now()));
}
