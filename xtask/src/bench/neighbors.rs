//! The cost of observation for a process that adds and deletes 100,000 permanent neighbors as fast as one core can, in
//! turn with the daemon, with `ip monitor neigh` and without both; and what each of the two has seen. The process is
//! `ip -batch`, the fastest tool that operators use, so that the figures stay comparable.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, ChildStdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use kevtmon_tests::network::NeighbourState;

use super::environment::{Daemon, Namespace};
use super::spread;

const NEIGHBORS: usize = 100_000;
const ROUNDS: usize = 7;
/// The link-layer address of an entry that is not counted.
const MARK: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// What the daemon did with the changes, in all rounds.
#[derive(Default)]
struct Account {
    counted: f64,
    throttled: f64,
    lost: f64,
    discarded: f64,
    read: f64,
    /// Seconds from the last change until all are accounted for, and the model has what was changed after it.
    behind: Vec<f64>,
    /// Private memory after a round, MiB.
    memory: Vec<f64>,
}

pub(super) fn neighbors(binary: &Path) -> Result<()> {
    let namespace = Namespace::new()?;
    let adds = script("neigh add", "lladdr 02:00:00:00:00:01 dev eth0 nud permanent");
    let deletes = script("neigh del", "dev eth0");
    let both = || Ok::<f64, anyhow::Error>(run(&namespace, &adds)? + run(&namespace, &deletes)?);
    let (mut bare, mut watched, mut monitored) = (Vec::new(), Vec::new(), Vec::new());
    let (mut account, mut heard) = (Account::default(), 0);
    both()?;
    for round in 0..ROUNDS {
        bare.push(both()?);
        let mut daemon = Daemon::start(binary)?;
        watched.push(both()?);
        account.settle(&mut daemon, &namespace, round)?;
        drop(daemon);
        let monitor = Monitor::start(&namespace)?;
        monitored.push(both()?);
        heard += monitor.stop()?;
    }
    let total = (NEIGHBORS * ROUNDS) as f64;
    let Account { counted, throttled, lost, discarded, read, mut behind, mut memory } = account;
    ensure!(counted == total, "the kernel counted {counted} deletions, {total} were made");
    let ratio = |with: &[f64]| {
        let mut ratios: Vec<f64> = bare.iter().zip(with).map(|(bare, with)| with / bare).collect();
        spread(&mut ratios)
    };
    let (of_daemon, of_monitor) = (ratio(&watched), ratio(&monitored));
    let seconds = |(least, middle, most): (f64, f64, f64)| format!("{least:.3} / {middle:.3} / {most:.3} s");
    let times = |(least, middle, most): (f64, f64, f64)| format!("{least:.2} / {middle:.2} / {most:.2}");
    eprintln!("neighbors  {NEIGHBORS} added and deleted, {ROUNDS} rounds in turn (min / median / max)");
    eprintln!("           bare             {}", seconds(spread(&mut bare.clone())));
    eprintln!("           watched          {}, ratio {}", seconds(spread(&mut watched)), times(of_daemon));
    eprintln!("           ip monitor neigh {}, ratio {}", seconds(spread(&mut monitored)), times(of_monitor));
    eprintln!(
        "           counted in the kernel {counted:.0}, over the budget {throttled:.0}, lost {lost:.0}, lines {read:.0}, discarded {discarded:.0}"
    );
    eprintln!("           ip monitor neigh printed {heard} of {} changes", 2 * NEIGHBORS * ROUNDS);
    eprintln!(
        "           all accounted for and the model right {} after the last change; private memory after a round {:.1} MiB at most",
        seconds(spread(&mut behind)),
        spread(&mut memory).2
    );
    Ok(())
}

impl Account {
    fn settle(&mut self, daemon: &mut Daemon, namespace: &Namespace, round: usize) -> Result<()> {
        let ended = Instant::now();
        let last = Ipv4Addr::from(0x0a63_0100 + u32::try_from(round)?);
        namespace.network(|network| network.add_address("eth0", last, 32))?;
        let discarded_events = "kevtmon_events_discarded_total{reason=\"queue-full\",sink=\"stdout\"}";
        let deleted = "kevtmon_events_total{kind=\"neighbor.deleted\"}";
        let lost_events = "kevtmon_events_lost_total{";
        let over_budget = "kevtmon_events_throttled_total{";
        // The core has seen all once what it emitted, what was over the budget and what it lost add up.
        let missing = || -> Result<f64> { Ok(daemon.metric(over_budget)? + daemon.metric(lost_events)?) };
        while daemon.metric(deleted)? + missing()? < NEIGHBORS as f64 {
            thread::yield_now();
        }
        let shown = format!("\"{last}/32\"");
        while !daemon.state()?.contains(&shown) {
            thread::yield_now();
        }
        self.behind.push(ended.elapsed().as_secs_f64());
        let missing = missing()?;
        self.throttled += daemon.metric(over_budget)?;
        self.lost += daemon.metric(lost_events)?;
        self.counted +=
            daemon.metric("kevtmon_kernel_neighbor_deletions_total{origin=\"admin\",state=\"permanent\"}")?;
        let discarded = daemon.metric(discarded_events)?;
        self.discarded += discarded;
        self.memory.push(daemon.private_memory()?);
        self.read += daemon.count("\"neighbor.deleted\"", NEIGHBORS as f64 - missing - discarded)?;
        Ok(())
    }
}

/// What people have used so far: it prints every change.
struct Monitor<'a> {
    namespace: &'a Namespace,
    child: Child,
    told: Arc<Heard>,
    reader: JoinHandle<()>,
}

/// Lines about the entries of the benchmark, and about the one that only shows that it listens.
#[derive(Default)]
struct Heard {
    entries: AtomicUsize,
    marks: AtomicUsize,
}

impl<'a> Monitor<'a> {
    fn start(namespace: &'a Namespace) -> Result<Self> {
        let mut child = namespace.monitor()?;
        let output = child.stdout.take().context("ip has no standard output")?;
        let told = Arc::new(Heard::default());
        let reader = thread::spawn({
            let told = Arc::clone(&told);
            move || told.read(output)
        });
        let monitor = Self { namespace, child, told, reader };
        monitor.mark()?;
        Ok(monitor)
    }

    /// Changes an entry of its own until that is told: all that was changed before was told then, or is lost.
    fn mark(&self) -> Result<()> {
        let before = self.told.marks.load(Ordering::Relaxed);
        let address = Ipv4Addr::new(10, 99, 0, 9).into();
        while self.told.marks.load(Ordering::Relaxed) == before {
            self.namespace.network(|network| {
                network.set_neighbor("eth0", address, MARK, NeighbourState::Permanent)?;
                network.delete_neighbor("eth0", address)
            })?;
        }
        Ok(())
    }

    /// How many changes it has told.
    fn stop(mut self) -> Result<usize> {
        self.mark()?;
        self.child.kill()?;
        self.child.wait()?;
        ensure!(self.reader.join().is_ok(), "its output cannot be read");
        Ok(self.told.entries.load(Ordering::Relaxed))
    }
}

impl Heard {
    fn read(&self, output: ChildStdout) {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let count = if line.contains("10.99.0.9 ") { &self.marks } else { &self.entries };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
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
