//! The event store under load, for `cargo xtask bench store`: how many events a second it takes through its sink
//! without discarding any, with how many commits and how much disk; how fast and how big a store of a million
//! events becomes, which the commands are then timed with.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark talks to whoever started it")]

mod node;
mod pod;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use kevtmon_event::Event;
use kevtmon_history::store::{FILE, Limits, Writer};
use kevtmon_metrics::Metrics;
use kevtmon_server::sinks::Sinks;
use kevtmon_server::sinks::store::{StoreConfig, start};
use kevtmon_sources::procfs::own::Own;
use nix::time::{ClockId, clock_gettime};
use node::{BOOT, Node};

const RATE: u64 = 10_000;
const SECONDS: u64 = 20;
/// Events that a second's worth is taken from.
const POOL: u64 = 50_000;
/// Events that are generated, then inserted.
const BATCH: u64 = 10_000;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        // `cargo test` runs benchmarks, too, to see that they work.
        [] => Ok(()),
        ["sustained", directory] => sustained(Path::new(directory)),
        ["fill", directory, events] => fill(Path::new(directory), events.parse()?),
        other => bail!("expected `sustained DIR` or `fill DIR EVENTS`, not {other:?}"),
    }
}

fn now() -> i128 {
    jiff::Timestamp::now().as_nanosecond()
}

#[expect(clippy::disallowed_methods, reason = "paces a load")]
fn pace(until: Instant) {
    std::thread::sleep(until.saturating_duration_since(Instant::now()));
}

/// A storm of all kinds of events through the sink, as the daemon has it.
fn sustained(state: &Path) -> Result<()> {
    let mut node = Node::new(now());
    // An incident that opens or closes brings its commit forward, which is another matter.
    let events = std::iter::repeat_with(|| node.next()).filter(|event| event.incident.is_none());
    let pool: Vec<Event> = events.take(usize::try_from(POOL)?).collect();
    let metrics = Arc::new(Metrics::new("0", "0", Own::default())?);
    let (core, _statuses) = tokio::sync::mpsc::channel(16);
    let config =
        StoreConfig { directory: state.to_owned(), limits: Limits::default(), boot_id: BOOT.to_owned() };
    let started = start(config, Arc::clone(&metrics), core)?;
    let is_up = started.status.as_ref().is_some_and(|status| status.up);
    ensure!(is_up, "the store does not start: {:?}", started.status);
    let mut sinks = Sinks::default();
    sinks.add(started);
    let watch = rusqlite::Connection::open(state.join(FILE))?;
    let begin = Instant::now();
    let (mut most, mut commits, mut version) = (0, 0_u64, 0_i64);
    for hundredth in 0..SECONDS * 100 {
        for seq in hundredth * RATE / 100 + 1..=(hundredth + 1) * RATE / 100 {
            let event = &pool[usize::try_from(seq % POOL)?];
            let time = format!("{:.9}", jiff::Timestamp::now());
            sinks.offer(&Arc::new(Event { seq, time, ..event.clone() }.into()));
        }
        most = most.max(bytes(state)?);
        // Another number after each commit of somebody else.
        let seen = watch.query_row("PRAGMA data_version", [], |row| row.get(0))?;
        commits += u64::from(std::mem::replace(&mut version, seen) != seen);
        pace(begin + Duration::from_millis(10 * (hundredth + 1)));
    }
    let took = begin.elapsed().as_secs_f64();
    drop(watch);
    sinks.finish(Duration::from_secs(10));
    let discarded = sum(&metrics, "events_discarded_total{");
    println!(
        "store      {:.0} events/s for {took:.1} s: {discarded} discarded, {:.1} commits/s, at most {:.1} MiB on disk (limit {} MiB)",
        (SECONDS * RATE) as f64 / took,
        commits as f64 / took,
        most as f64 / 1_048_576.0,
        Limits::default().max_bytes >> 20
    );
    ensure!(discarded == 0.0, "the store discarded events");
    Ok(())
}

fn bytes(directory: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory)? {
        // The log goes when the store is closed.
        bytes += entry?.metadata().map_or(0, |metadata| metadata.len());
    }
    Ok(bytes)
}

fn sum(metrics: &Metrics, name: &str) -> f64 {
    let text = metrics.gather().unwrap_or_default();
    let values = text.lines().filter(|line| line.contains(name));
    values.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}

/// Processor time of this thread.
fn busy() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

/// Fills a store with a week, and prints as JSON what can be asked of it.
fn fill(state: &Path, events: u64) -> Result<()> {
    let limits = Limits { max_bytes: 64 << 30, ..Limits::default() };
    let (mut writer, ..) = Writer::resume(state, limits, BOOT)?;
    let mut node = Node::new(now() - Node::span(events));
    let (mut insert, mut commit) = (Duration::ZERO, Duration::ZERO);
    let begin = Instant::now();
    for _ in 0..events / BATCH {
        let batch: Vec<Event> = (0..BATCH).map(|_| node.next()).collect();
        let start = busy()?;
        for event in &batch {
            writer.insert(event)?;
        }
        let inserted = busy()?;
        writer.commit()?;
        writer.checkpoint()?;
        insert += inserted - start;
        commit += busy()? - inserted;
    }
    writer.stop()?;
    // Once more, as a daemon forgets every minute which incidents are too many.
    Writer::resume(state, limits, BOOT)?.0.stop()?;
    let each = |time: Duration| time.as_secs_f64() * 1e6 / events as f64;
    eprintln!(
        "           filled with {events} events in {:.0} s: {:.1} µs of processor time each to insert, {:.1} µs to commit; {:.0} bytes each on disk",
        begin.elapsed().as_secs_f64(),
        each(insert),
        each(commit),
        bytes(state)? as f64 / events as f64
    );
    println!("{}", serde_json::to_string(&node.words())?);
    Ok(())
}
