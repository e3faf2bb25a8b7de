//! What an unprivileged user can do to the daemon, and to others through it: three of his processes at full speed for
//! half a minute (neighbor entries; a process for each deletion; unmounts of one and of 200 busy mounts, under ever new
//! names), while eight pods lose their gateways and a volume is busy. The store is full from the beginning.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "it prints figures, measures over a span of time, and a set-up that fails must end it"
)]

mod history;
mod hostile;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{env, fs, io};

use history::{History, Survivors, all, has_loss};
use hostile::{Hostile, USER};
use kevtmon_tests::balance::{Balance, stop_and_account_for_refusals, wait_for_balance};
use kevtmon_tests::daemon::Daemon;
use kevtmon_tests::event::Event;
use kevtmon_tests::limits::Limits;
use kevtmon_tests::mount::{Mount, Scratch};
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::pod_sandbox::PodSandbox;
use kevtmon_tests::process::{Running, hold_by_cwd};
use kevtmon_tests::scrape::Scrape;
use kevtmon_tests::storm::ipv4;
use kevtmon_tests::usage::Usage;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};

const FLOOD: Duration = Duration::from_secs(30);
/// Pods that lose their gateways meanwhile.
const PODS: usize = 8;
/// Pods that did before.
const OTHERS: usize = 4;
/// Entries of the innocent neighbor, per round.
const INNOCENT: u32 = 10_000;
const ROUNDS: usize = 3;

type SandboxedPod = (Pod, PodSandbox);

/// What is on the node beside the user.
struct Node {
    pods: Vec<SandboxedPod>,
    others: Vec<SandboxedPod>,
    /// Is busy during the flood.
    volume: Mount,
    /// Is busy before.
    held: Mount,
    _holder: Running,
}

/// When a pod lost its gateway.
struct Loss {
    /// Who deleted it.
    pid: u32,
    /// Seconds until the incident that names it; `None` if that was waited for in vain.
    told_after: Option<f64>,
}

/// What was measured while the user was at it.
struct Measured {
    seconds: f64,
    losses: Vec<Loss>,
    scanned: Option<f64>,
    /// Part of a core.
    busy: f64,
    /// Bytes.
    written: f64,
}

fn main() -> io::Result<ExitCode> {
    if let Some(what) = env::args().skip_while(|argument| argument != "hostile").nth(1) {
        return hostile::act(&what).map(|()| ExitCode::SUCCESS);
    }
    if statfs(Scratch::without_mounts().path())?.filesystem_type() == TMPFS_MAGIC {
        return Err(io::Error::other("what is written to a tmpfs is not counted: set TMPDIR to a disk"));
    }
    let innocent = Pod::new();
    let bare = {
        let _hostile = Hostile::start();
        sleep(Duration::from_secs(2));
        rounds(&innocent)
    };
    let node = Node::new();
    let history = History::make(&node);
    let usage = Usage::new();
    let mut daemon = usage.launch().config(&node.config()).on_state_of(&history.daemon).start();
    for (pod, _) in &node.pods {
        daemon.wait_for_gateway(pod.inum(), GATEWAY);
    }
    usage.forget_peak();
    let hostile = Hostile::start();
    let measured = measure(&mut daemon, &usage, &node)?;
    let (memory, peak) = (usage.memory(&daemon)?, usage.peak());
    // It makes events of its own.
    let watched = rounds(&innocent);
    drop(hostile);

    println!("flood by uid {USER} for {:.0} s, 3 processes", measured.seconds);
    println!("  memory: {memory}");
    println!("  innocent neighbor: {:.2} times as slow as beside the flood alone", watched / bare);
    let account = wait_for_balance(&daemon, Balance::of_all);
    print_losses(&daemon.metrics());
    stop_and_account_for_refusals(&mut daemon);
    println!("  account of deletions and refused unmounts: {account:?}");
    println!("  each event is in the output, or told to be discarded");
    let limits = judge(&daemon, &node, &history.compare(&daemon), &measured, peak);
    println!("{limits}");
    Ok(limits.exit_code())
}

impl Node {
    fn new() -> Self {
        let with_sandbox = |_| {
            let pod = Pod::new();
            let sandbox = PodSandbox::of(&pod);
            (pod, sandbox)
        };
        let held = Mount::volume();
        let holder = hold_by_cwd(held.point());
        Self {
            pods: (0..PODS).map(with_sandbox).collect(),
            others: (0..OTHERS).map(with_sandbox).collect(),
            volume: Mount::volume(),
            held,
            _holder: holder,
        }
    }

    /// The smallest store that there is, and whose volumes these are.
    fn config(&self) -> String {
        let roots =
            [&self.volume, &self.held].map(|volume| volume.kubelet_root().to_string_lossy().into_owned());
        format!("[store]\nmax_mib = 8\n[kubelet]\nroots = {roots:?}\n")
    }
}

fn measure(daemon: &mut Daemon, usage: &Usage, node: &Node) -> io::Result<Measured> {
    let holder = hold_by_cwd(node.volume.point());
    let (busy, written, began) = (usage.processor_seconds(), disk(daemon)?, Instant::now());
    sleep(Duration::from_secs(2));
    let mut losses = Vec::new();
    for pod in &node.pods {
        losses.push(lose(daemon, pod));
        sleep(Duration::from_secs(1));
    }
    node.volume.umount_refused();
    let path = node.volume.point().to_string_lossy().into_owned();
    let scanned = answer(|| {
        daemon.wait_for("the holder of the volume", |event| {
            let mut holders = event.list("/holders").iter();
            event.is_incident("incident.opened", "volume-busy")
                && event.text("/mount/path") == path
                && holders.any(|held| held["pid"] == holder.pid())
        })
    });
    sleep(FLOOD.saturating_sub(began.elapsed()));
    let seconds = began.elapsed().as_secs_f64();
    Ok(Measured {
        seconds,
        losses,
        scanned,
        busy: (usage.processor_seconds() - busy) / seconds,
        written: disk(daemon)? - written,
    })
}

/// What was measured beside what is promised. The daemon has ended: what is not in its store now is lost.
fn judge(daemon: &Daemon, node: &Node, left: &Survivors, measured: &Measured, peak: f64) -> Limits {
    let mut limits = Limits::default();
    let (emitted, stored) = (daemon.events(), all(daemon));
    let having = |events: &[Event]| {
        let pairs = node.pods.iter().zip(&measured.losses);
        pairs.filter(|(pod, loss)| has_loss(events, pod, loss.pid)).count()
    };
    limits.all("deletions of gateways that were emitted", PODS, having(&emitted));
    limits.all("deletions of gateways that were stored", PODS, having(&stored));
    let told_after: Vec<f64> = measured.losses.iter().filter_map(|loss| loss.told_after).collect();
    let latest =
        if told_after.len() < PODS { f64::INFINITY } else { told_after.into_iter().fold(0.0, f64::max) };
    limits.at_most("latest incident with its actor", 1.0, latest, "s");
    let displaced = format!("{} of {}", left.displaced, left.told);
    limits.add("events of before that were displaced", "0", displaced, left.displaced == 0);
    // Else the figure above says nothing: there was room for all.
    let in_all = left.displaced_in_all;
    limits.add("events that were displaced at all", ">= 1", in_all.to_string(), in_all >= 1);
    let (were_open, are_open) = left.open;
    let is_kept = were_open >= 2 && are_open == were_open;
    limits.add("incidents of before that are open", were_open.to_string(), are_open.to_string(), is_kept);
    let scanned = measured.scanned.map_or("never".to_owned(), |seconds| format!("{seconds:.2} s"));
    limits.add("holder of the busy volume named", "yes", scanned, measured.scanned.is_some());
    limits.at_most("processor, of a core", 20.0, 100.0 * measured.busy, "%");
    limits.at_most("private memory at most", 16.0, peak, "MB");
    limits.at_most("output caused by the flood", 1.0, output(daemon), "MB");
    limits.at_most("disk writes in all", 10.0, measured.written / 1e6, "MB");
    limits
}

fn print_losses(metrics: &Scrape) {
    for lane in ["namespace", "owner", "unknown", "umount", "events"] {
        let count = metrics.count("kevtmon_events_throttled_total", &[("lane", lane)]);
        println!("  throttled {lane}: {count}");
    }
    let reasons = ["neighbor", "task", "mount"]
        .map(|what| [format!("{what}-ring-full"), format!("{what}-users-ring-full")]);
    for reason in reasons.as_flattened() {
        println!("  {reason}: {}", metrics.count("kevtmon_events_lost_total", &[("reason", reason)]));
    }
}

/// Seconds until this is done; `None` if it waits in vain.
fn answer<T>(act: impl FnOnce() -> T) -> Option<f64> {
    let start = Instant::now();
    catch_unwind(AssertUnwindSafe(act)).ok().map(|_| start.elapsed().as_secs_f64())
}

/// A pod loses its gateway, and that is waited for from the end of the process that deletes it.
fn lose(daemon: &mut Daemon, (pod, sandbox): &SandboxedPod) -> Loss {
    let ip = pod.delete_gateway();
    let told_after = answer(|| {
        daemon.wait_for("the incident of a pod", |event| {
            event.is_incident("incident.opened", "gateway-neighbor-lost")
                && event.text("/target/container/id") == sandbox.id()
                && event.number("/actor/pid") == Some(ip.pid.into())
        })
    });
    Loss { pid: ip.pid, told_after }
}

/// Seconds that the innocent neighbor takes, in the median.
fn rounds(pod: &Pod) -> f64 {
    let mut seconds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            pod.netns().churn((0..INNOCENT).map(ipv4));
            start.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    seconds[ROUNDS / 2]
}

/// Megabytes that were written about what the user did: on standard output, and all of the log.
fn output(daemon: &Daemon) -> f64 {
    let is_his = |event: &Event| {
        let uids = ["/actor/uid", "/throttled/uid"].map(|uid| event.number(uid));
        uids.contains(&Some(USER.into()))
            || [event.text("/actor/userns"), event.text("/target/userns")].contains(&"other")
            || event.text("/throttled/lane") == "unknown"
            || event.kind() == "events.lost"
    };
    let compact = |event: &Event| event.get("").map_or(0, |value| value.to_string().len() + 1);
    let events: usize = daemon.events().iter().filter(|event| is_his(event)).map(compact).sum();
    (events + daemon.log().len()) as f64 / 1e6
}

/// Bytes that it had written to disks so far (proc_pid_io(5)).
fn disk(daemon: &Daemon) -> io::Result<f64> {
    let text = fs::read_to_string(format!("/proc/{}/io", daemon.pid()))?;
    let bytes = text.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse::<f64>().ok());
    bytes.ok_or_else(|| io::Error::other("the kernel counts no writes"))
}
