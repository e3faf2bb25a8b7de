//! The cost of observation for a process that adds and deletes 100,000 permanent neighbors as fast as one core can, in
//! turn with and without the daemon; and whether anything is lost. The process is `ip -batch`, the fastest tool that
//! operators use, so that the figures stay comparable.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::environment::{Daemon, Namespace};
use super::spread;

const NEIGHBORS: usize = 100_000;
const ROUNDS: usize = 7;

pub(super) fn neighbors(binary: &Path) -> Result<()> {
    let namespace = Namespace::new()?;
    let adds = script("neigh add", "lladdr 02:00:00:00:00:01 dev eth0 nud permanent");
    let deletes = script("neigh del", "dev eth0");
    let (mut bare, mut watched) = (Vec::new(), Vec::new());
    let (mut lost, mut throttled, mut discarded, mut counted, mut read) = (0.0, 0.0, 0.0, 0.0, 0.0);
    run(&namespace, &adds)?;
    run(&namespace, &deletes)?;
    for _ in 0..ROUNDS {
        bare.push(run(&namespace, &adds)? + run(&namespace, &deletes)?);
        let mut daemon = Daemon::start(binary)?;
        watched.push(run(&namespace, &adds)? + run(&namespace, &deletes)?);
        let discarded_events = "kevtmon_events_discarded_total{reason=\"queue-full\",sink=\"stdout\"}";
        let deleted = "kevtmon_events_total{kind=\"neighbor.deleted\"}";
        let lost_events = "kevtmon_events_lost_total{";
        let over_budget = "kevtmon_events_throttled_total{";
        // The core has seen all once what it emitted, what was over the budget and what it lost add up.
        let missing = || -> Result<f64> { Ok(daemon.metric(over_budget)? + daemon.metric(lost_events)?) };
        while daemon.metric(deleted)? + missing()? < NEIGHBORS as f64 {
            std::thread::yield_now();
        }
        let missing = missing()?;
        throttled += daemon.metric(over_budget)?;
        lost += daemon.metric(lost_events)?;
        counted +=
            daemon.metric("kevtmon_kernel_neighbor_deletions_total{origin=\"admin\",state=\"permanent\"}")?;
        discarded += daemon.metric(discarded_events)?;
        read += daemon
            .count("\"neighbor.deleted\"", NEIGHBORS as f64 - missing - daemon.metric(discarded_events)?)?;
    }
    let total = (NEIGHBORS * ROUNDS) as f64;
    ensure!(counted == total, "the kernel counted {counted} deletions, {total} were made");
    let ratio = {
        let mut ratios: Vec<f64> = bare.iter().zip(&watched).map(|(bare, watched)| watched / bare).collect();
        spread(&mut ratios)
    };
    let (bare, watched) = (spread(&mut bare), spread(&mut watched));
    eprintln!("neighbors  {NEIGHBORS} added and deleted, {ROUNDS} rounds in turn (min / median / max)");
    eprintln!("           bare    {:.3} / {:.3} / {:.3} s", bare.0, bare.1, bare.2);
    eprintln!("           watched {:.3} / {:.3} / {:.3} s", watched.0, watched.1, watched.2);
    eprintln!("           ratio   {:.2} / {:.2} / {:.2}", ratio.0, ratio.1, ratio.2);
    eprintln!(
        "           counted in the kernel {counted:.0}, over the budget {throttled:.0}, lost {lost:.0}, lines {read:.0}, discarded {discarded:.0}"
    );
    Ok(())
}

fn script(verb: &str, rest: &str) -> String {
    let mut script = String::new();
    for index in 0..NEIGHBORS {
        let _ = writeln!(
            script,
            "{verb} 10.{}.{}.{} {rest}",
            index / 62_500 + 1,
            index / 250 % 250,
            index % 250 + 2
        );
    }
    script
}

/// Seconds that `ip` takes for the script.
fn run(namespace: &Namespace, script: &str) -> Result<f64> {
    let (mut ip, mut input) = namespace.batch()?;
    let start = Instant::now();
    input.write_all(script.as_bytes())?;
    drop(input);
    let status = ip.wait()?;
    let elapsed = start.elapsed().as_secs_f64();
    ensure!(status.success(), "ip -batch ended with {status}");
    Ok(elapsed)
}
