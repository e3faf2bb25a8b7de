//! From the kernel's time stamp of a deletion to the moment its JSON line is read.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Error, Result};
use kevtmon_tests::event::Event;

use super::environment::{Daemon, Line, Namespace};

const EVENTS: u32 = 10_000;
/// The first address, 10.99.1.0.
const FIRST: u32 = 0x0a63_0100;
const PER_SECOND: u32 = 1_000;

pub(super) fn latency(binary: &Path) -> Result<()> {
    let namespace = Namespace::new()?;
    let mut daemon = Daemon::start(binary)?;
    let start = Instant::now();
    namespace.network(|network| {
        for index in 0..EVENTS {
            pause_until(start + Duration::from_secs(1) * index / PER_SECOND);
            network.churn_neighbors("eth0", [Ipv4Addr::from(FIRST + index)])?;
        }
        Ok(())
    })?;
    let elapsed = start.elapsed();
    let mut micros = daemon
        .take("\"neighbor.deleted\"", EVENTS as usize)?
        .iter()
        .map(latency_of)
        .collect::<Result<Vec<f64>>>()?;
    micros.sort_by(f64::total_cmp);
    let at = |percent: usize| micros[(micros.len() * percent / 100).min(micros.len() - 1)];
    eprintln!(
        "latency    {EVENTS} deletions in {:.1} s: min {:.0} µs, median {:.0} µs, p99 {:.0} µs, max {:.0} µs",
        elapsed.as_secs_f64(),
        at(0),
        at(50),
        at(99),
        at(100),
    );
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "a paced load is what this benchmark measures with")]
fn pause_until(due: Instant) {
    std::thread::sleep(due.saturating_duration_since(Instant::now()));
}

fn latency_of(line: &Line) -> Result<f64> {
    let event = Event::parse(&line.text).map_err(Error::msg)?;
    let read = line.read.duration_since(SystemTime::UNIX_EPOCH)?;
    Ok((read.as_secs_f64() - event.seconds()) * 1e6)
}
