//! What an unprivileged user can do to the daemon, and to others through it: three of his processes at full speed for
//! half a minute (neighbor entries; a process for each deletion; unmounts of one and of 200 busy mounts, under ever new
//! names), while eight pods lose their gateways and a volume is busy.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "it prints figures, measures over a span of time, and a set-up that fails must end it"
)]

mod hostile;
mod usage;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{env, fs, io};

use hostile::{Hostile, USER};
use kevtmon_tests::balance::{Balance, stop_and_account, wait_for_balance};
use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::mount::Mount;
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::pod_sandbox::PodSandbox;
use kevtmon_tests::process::hold_by_cwd;
use kevtmon_tests::storm::ipv4;
use usage::{memory, processor_seconds};

const PODS: usize = 8;
const FLOOD: Duration = Duration::from_secs(30);
/// Entries of the innocent neighbor, per round.
const INNOCENT: u32 = 10_000;
const ROUNDS: usize = 3;
/// Events that are stored before.
const HISTORY: u32 = 50;

fn main() -> io::Result<()> {
    if let Some(what) = env::args().skip_while(|argument| argument != "hostile").nth(1) {
        return hostile::act(&what);
    }
    let innocent = Pod::new();
    let bare = {
        let _hostile = Hostile::start();
        sleep(Duration::from_secs(2));
        rounds(&innocent)
    };
    let pods: Vec<(Pod, PodSandbox)> = (0..PODS).map(|_| with_sandbox()).collect();
    let volume = Mount::volume();
    let holder = hold_by_cwd(volume.point());
    let mut daemon = launch().kubelet(&volume).start();
    for (pod, _) in &pods {
        daemon.wait_for_gateway(pod.inum(), GATEWAY);
    }
    pods[0].0.netns().churn((0..HISTORY).map(ipv4));
    let history = stored(&daemon, &pods[0].0);

    let (busy, written, began) = (processor_seconds(&daemon)?, disk(&daemon)?, Instant::now());
    let hostile = Hostile::start();
    sleep(Duration::from_secs(2));
    let mut opened = Vec::new();
    for (pod, sandbox) in &pods {
        opened.push(time_to_incident(&mut daemon, pod, sandbox));
        sleep(Duration::from_secs(1));
    }
    volume.umount_refused();
    let scanned = answer(|| {
        daemon.wait_for("the holder of the volume", |event| {
            event.is_incident("incident.opened", "volume-busy")
                && event.to_string().contains(&format!("\"pid\": {}", holder.pid()))
        })
    });
    sleep(FLOOD.saturating_sub(began.elapsed()));
    let seconds = began.elapsed().as_secs_f64();
    let busy = (processor_seconds(&daemon)? - busy) / seconds;
    let (written, memory) = (disk(&daemon)? - written, memory(&daemon)?);
    // It makes events of its own.
    let watched = rounds(&innocent);
    drop(hostile);

    println!("flood by uid {USER} for {seconds:.0} s, 3 processes");
    let in_time = opened.iter().flatten().filter(|elapsed| **elapsed < 1.0).count();
    let longest = opened.iter().flatten().fold(0.0, |a: f64, b| a.max(*b));
    println!(
        "  gateways of {PODS} pods: {in_time} incidents with their actor within 1 s, the latest after {longest:.2} s"
    );
    let missing = pods.iter().filter(|(pod, _)| !is_stored(&daemon, pod)).count();
    println!("  deletions of gateways that are not in the store: {missing}");
    let left = stored(&daemon, &pods[0].0);
    let displaced = history.iter().filter(|number| !left.contains(number)).count();
    println!("  events of before: {} stored, {displaced} displaced", history.len());
    match scanned {
        Some(elapsed) => println!("  busy volume: its holder named after {elapsed:.2} s"),
        None => println!("  busy volume: its holder was not named"),
    }
    println!("  processor: {:.1} % of a core; memory: {memory}", 100.0 * busy);
    println!("  output caused by it: {:.2} MB; disk writes in all: {:.1} MB", output(&daemon), written / 1e6);
    println!("  innocent neighbor: {:.2} times as slow as beside the flood alone", watched / bare);
    let metrics = daemon.metrics();
    for lane in ["namespace", "owner", "unknown", "umount", "events"] {
        println!(
            "  throttled {lane}: {}",
            metrics.count("kevtmon_events_throttled_total", &[("lane", lane)])
        );
    }
    for reason in ["neighbor", "task", "mount"]
        .map(|what| [format!("{what}-ring-full"), format!("{what}-users-ring-full")])
        .into_iter()
        .flatten()
    {
        println!("  {reason}: {}", metrics.count("kevtmon_events_lost_total", &[("reason", &reason)]));
    }
    let account = wait_for_balance(&daemon, Balance::of_all);
    println!("  account of deletions and refused unmounts: {account:?}");
    stop_and_account(daemon);
    println!("  each event is in the output, or told to be discarded");
    drop(holder);
    Ok(())
}

fn with_sandbox() -> (Pod, PodSandbox) {
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    (pod, sandbox)
}

/// Seconds until this is done; `None` if it waits in vain.
fn answer<T>(act: impl FnOnce() -> T) -> Option<f64> {
    let start = Instant::now();
    catch_unwind(AssertUnwindSafe(act)).ok().map(|_| start.elapsed().as_secs_f64())
}

/// Seconds from the end of the process that deletes a gateway to the incident that names it.
fn time_to_incident(daemon: &mut Daemon, pod: &Pod, sandbox: &PodSandbox) -> Option<f64> {
    let ip = pod.delete_gateway();
    answer(|| {
        daemon.wait_for("the incident of a pod", |event| {
            event.is_incident("incident.opened", "gateway-neighbor-lost")
                && event.text("/target/container/id") == sandbox.id()
                && event.number("/actor/pid") == Some(ip.pid.into())
        })
    })
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

/// Numbers of the stored events of a pod that are not about its gateway.
fn stored(daemon: &Daemon, pod: &Pod) -> Vec<u64> {
    let all = daemon.find(&["events", "--since", "1h", "--kind", "neighbor.deleted"]);
    let own = all.iter().filter(|event| event.is_in(pod.inum()) && !event.is_deletion(pod.inum(), GATEWAY));
    own.filter_map(|event| event.number("/seq")).collect()
}

fn is_stored(daemon: &Daemon, pod: &Pod) -> bool {
    let all = daemon.find(&["events", "--since", "1h", "--kind", "neighbor.deleted"]);
    all.iter().any(|event| event.is_deletion(pod.inum(), GATEWAY))
}

/// Megabytes of events about what the user did.
fn output(daemon: &Daemon) -> f64 {
    let is_his = |event: &Event| {
        let uids = ["/actor/uid", "/throttled/uid"].map(|uid| event.number(uid));
        uids.contains(&Some(USER.into())) || event.text("/target/userns") == "other"
    };
    let compact = |event: &Event| event.get("").map_or(0, |value| value.to_string().len() + 1);
    let bytes: usize = daemon.events().iter().filter(|event| is_his(event)).map(compact).sum();
    bytes as f64 / 1e6
}

/// Bytes that it had written to disks so far (proc_pid_io(5)).
fn disk(daemon: &Daemon) -> io::Result<f64> {
    let text = fs::read_to_string(format!("/proc/{}/io", daemon.pid()))?;
    let bytes = text.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse::<f64>().ok());
    Ok(bytes.unwrap_or_default())
}
