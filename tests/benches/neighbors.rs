//! The cost of observation for a process that adds and deletes 100,000 permanent neighbors as fast as one core can, in
//! turn with the daemon, with `ip monitor neigh` and without both; and what each of the two has seen. The process is
//! `ip -batch`, the fastest tool that operators use, so that the figures stay comparable.
#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "it prints figures, and a set-up that fails must end it"
)]

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::Ipv4Addr;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::Receiver;
use std::thread::{self, JoinHandle};
use std::time::{Instant, SystemTime};

use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::eventually;
use kevtmon_tests::limits::spread;
use kevtmon_tests::network::NeighbourState;
use kevtmon_tests::patience::patience;
use kevtmon_tests::pod::Pod;
use kevtmon_tests::process::Running;

const NEIGHBORS: u32 = 100_000;
const ROUNDS: u32 = 7;
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

fn main() {
    let pod = Pod::new();
    let adds = script("neigh add", "lladdr 02:00:00:00:00:01 dev eth0 nud permanent");
    let deletes = script("neigh del", "dev eth0");
    let both = || run(&pod, &adds) + run(&pod, &deletes);
    let (mut bare, mut watched, mut monitored) = (Vec::new(), Vec::new(), Vec::new());
    let (mut account, mut heard) = (Account::default(), 0);
    both();
    for round in 0..ROUNDS {
        bare.push(both());
        let mut daemon = launch().read_later().spawn();
        let lines = daemon.unparsed();
        read(&lines, "\"daemon.ready\"", 1.0);
        watched.push(both());
        account.settle(&daemon, &lines, &pod, round);
        drop(daemon);
        let monitor = Monitor::start(&pod);
        monitored.push(both());
        heard += monitor.stop();
    }
    let total = f64::from(NEIGHBORS * ROUNDS);
    let Account { counted, throttled, lost, discarded, read, mut behind, mut memory } = account;
    assert!(counted == total, "the kernel counted {counted} deletions, {total} were made");
    let ratio = |with: &[f64]| {
        let mut ratios: Vec<f64> = bare.iter().zip(with).map(|(bare, with)| with / bare).collect();
        spread(&mut ratios)
    };
    let (of_daemon, of_monitor) = (ratio(&watched), ratio(&monitored));
    let seconds = |(least, middle, most): (f64, f64, f64)| format!("{least:.3} / {middle:.3} / {most:.3} s");
    let times = |(least, middle, most): (f64, f64, f64)| format!("{least:.2} / {middle:.2} / {most:.2}");
    println!("neighbors  {NEIGHBORS} added and deleted, {ROUNDS} rounds in turn (min / median / max)");
    println!("           bare             {}", seconds(spread(&mut bare.clone())));
    println!("           watched          {}, ratio {}", seconds(spread(&mut watched)), times(of_daemon));
    println!("           ip monitor neigh {}, ratio {}", seconds(spread(&mut monitored)), times(of_monitor));
    println!(
        "           counted in the kernel {counted:.0}, over the budget {throttled:.0}, lost {lost:.0}, lines {read:.0}, discarded {discarded:.0}"
    );
    println!("           ip monitor neigh printed {heard} of {} changes", 2 * NEIGHBORS * ROUNDS);
    println!(
        "           all accounted for and the model right {} after the last change; private memory after a round {:.1} MiB at most",
        seconds(spread(&mut behind)),
        spread(&mut memory).2
    );
}

impl Account {
    fn settle(&mut self, daemon: &Daemon, lines: &Receiver<(String, SystemTime)>, pod: &Pod, round: u32) {
        let ended = Instant::now();
        let last = Ipv4Addr::from(0x0a63_0100 + round);
        pod.netns().network(|network| network.add_address("eth0", last, 32));
        let sum = |name: &str, labels: &[(&str, &str)]| daemon.metrics().count(name, labels);
        let deleted = || sum("kevtmon_events_total", &[("kind", "neighbor.deleted")]);
        let throttled = || sum("kevtmon_events_throttled_total", &[]);
        let lost = || sum("kevtmon_events_lost_total", &[]);
        // The core has seen all once what it emitted, what was over the budget and what it lost add up.
        let seen = || deleted() + throttled() + lost();
        eventually!(seen() >= f64::from(NEIGHBORS), "all changes are accounted for");
        let shown = format!("\"{last}/32\"");
        eventually!(daemon.ask(&["state", "--json"]).stdout.contains(&shown), "the model has {last}");
        self.behind.push(ended.elapsed().as_secs_f64());
        let missing = throttled() + lost();
        self.throttled += throttled();
        self.lost += lost();
        let origin = [("origin", "admin"), ("state", "permanent")];
        self.counted += sum("kevtmon_kernel_neighbor_deletions_total", &origin);
        let discarded =
            sum("kevtmon_events_discarded_total", &[("reason", "queue-full"), ("sink", "stdout")]);
        self.discarded += discarded;
        self.memory.push(private_memory(daemon.pid()));
        let expected = f64::from(NEIGHBORS) - missing - discarded;
        read(lines, "\"neighbor.deleted\"", expected);
        self.read += expected;
    }
}

/// Waits until this many lines with the word came.
fn read(lines: &Receiver<(String, SystemTime)>, word: &str, count: f64) {
    let mut read = 0.0;
    while read < count {
        let (line, _) = lines.recv_timeout(patience()).expect("the daemon writes all of its lines");
        read += f64::from(u8::from(line.contains(word)));
    }
}

/// Private memory of a process, MiB.
fn private_memory(pid: u32) -> f64 {
    let memory = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("root may read it");
    let line = memory.lines().find_map(|line| line.strip_prefix("Anonymous:")).expect("the kernel tells it");
    let kib = line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number");
    kib / 1024.0
}

/// What people have used so far: it prints every change.
struct Monitor<'a> {
    pod: &'a Pod,
    ip: Running,
    told: Arc<Heard>,
    reader: JoinHandle<()>,
}

/// Lines about the entries of the benchmark, and about the one that only shows that it listens.
#[derive(Default)]
struct Heard {
    entries: AtomicU32,
    marks: AtomicU32,
}

impl<'a> Monitor<'a> {
    fn start(pod: &'a Pod) -> Self {
        let mut ip = Command::new("ip");
        ip.args(["-n", pod.netns_name(), "monitor", "neigh"]).stdin(Stdio::null());
        let mut ip = Running::spawn(ip.stdout(Stdio::piped()).stderr(Stdio::null()));
        let output = ip.child().stdout.take().expect("a pipe");
        let told = Arc::new(Heard::default());
        let reader = thread::spawn({
            let told = Arc::clone(&told);
            move || told.read(output)
        });
        let monitor = Self { pod, ip, told, reader };
        monitor.mark();
        monitor
    }

    /// Changes an entry of its own until that is told: all that was changed before was told then, or is lost.
    fn mark(&self) {
        let before = self.told.marks.load(Ordering::Relaxed);
        let address = Ipv4Addr::new(10, 99, 0, 9).into();
        while self.told.marks.load(Ordering::Relaxed) == before {
            self.pod.netns().network(|network| {
                network.set_neighbor("eth0", address, MARK, NeighbourState::Permanent)?;
                network.delete_neighbor("eth0", address)
            });
        }
    }

    /// How many changes it has told.
    fn stop(self) -> u32 {
        self.mark();
        let Self { ip, told, reader, .. } = self;
        drop(ip);
        reader.join().expect("its output can be read");
        told.entries.load(Ordering::Relaxed)
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
fn run(pod: &Pod, script: &str) -> f64 {
    let start = Instant::now();
    pod.netns().ip_batch(script);
    start.elapsed().as_secs_f64()
}
