//! From the kernel's time stamp of a deletion to the moment its JSON line is read.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};

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
    let event: serde_json::Value = serde_json::from_str(&line.text)?;
    let time = event["time"].as_str().context("an event without time")?;
    let stamp = seconds_and_nanos(time).with_context(|| format!("not a time: {time}"))?;
    let read = line.read.duration_since(SystemTime::UNIX_EPOCH)?;
    Ok((read.as_secs_f64() - stamp.as_secs_f64()) * 1e6)
}

/// Time since the epoch of `YYYY-MM-DDTHH:MM:SS.nnnnnnnnnZ`.
fn seconds_and_nanos(time: &str) -> Option<Duration> {
    let (date, clock) = time.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.split('-').map(str::parse::<i64>);
    let (year, month, day) = (date.next()?.ok()?, date.next()?.ok()?, date.next()?.ok()?);
    let (clock, nanos) = clock.split_once('.')?;
    let mut clock = clock.split(':').map(str::parse::<i64>);
    let (hour, minute, second) = (clock.next()?.ok()?, clock.next()?.ok()?, clock.next()?.ok()?);
    // Days from the civil date, with the year starting in March.
    let shifted = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = 365 * shifted + shifted / 4 - shifted / 100 + shifted / 400 + day_of_year - 719_468;
    let seconds = u64::try_from(((days * 24 + hour) * 60 + minute) * 60 + second).ok()?;
    Some(Duration::new(seconds, nanos.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_becomes_seconds_since_the_epoch() {
        let time = |text| seconds_and_nanos(text).unwrap();
        assert_eq!(time("1970-01-01T00:00:00.000000001Z"), Duration::new(0, 1));
        assert_eq!(time("2000-03-01T00:00:00.000000000Z"), Duration::from_secs(951_868_800));
        assert_eq!(time("2026-01-02T03:04:05.678901234Z"), Duration::new(1_767_323_045, 678_901_234));
        assert_eq!(seconds_and_nanos("yesterday"), None);
    }
}
