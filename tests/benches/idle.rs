//! What the daemon costs a node on which nothing happens: processor time over a minute and resident memory,
//! with containers that do nothing; and what memory stays after a storm.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "it prints figures, and measures over a span of time"
)]

use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{fs, io};

use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::eventually;
use kevtmon_tests::pod::Pod;
use kevtmon_tests::storm;

const CONTAINERS: usize = 20;
/// After the start the first reconcile and the first commits come.
const SETTLE: Duration = Duration::from_secs(10);
const WINDOW: Duration = Duration::from_secs(60);
const STORM: u32 = 100_000;

fn main() -> io::Result<()> {
    let dockerd = Dockerd::start();
    let containers: Vec<Container<'_>> =
        (0..CONTAINERS).map(|_| Container::idle(&dockerd, &["--network", "none"])).collect();
    let pods: Vec<Pod> = containers.iter().map(|container| Pod::at(container.netns())).collect();
    let daemon = launch().runtime(dockerd.runtime()).start();
    let known = || daemon.metrics().count("kevtmon_containers", &[("state", "running")]);
    eventually!(known() >= CONTAINERS as f64, "all containers are known");

    sleep(SETTLE);
    let (before, slept, began) = (processor_seconds(&daemon)?, wake_ups(&daemon)?, Instant::now());
    sleep(WINDOW);
    let seconds = began.elapsed().as_secs_f64();
    let busy = (processor_seconds(&daemon)? - before) / seconds;
    let wake_ups = (wake_ups(&daemon)? - slept) / seconds;
    println!(
        "idle with {CONTAINERS} containers: {:.3} % of a core and {wake_ups:.1} wake-ups a second over {WINDOW:?}",
        100.0 * busy
    );
    println!("  memory: {}", memory(&daemon)?);

    let addresses = || (0..STORM).map(storm::ipv4);
    pods[0].netns().network(|network| network.set_neighbors("eth0", addresses()));
    pods[0].netns().network(|network| network.delete_neighbors("eth0", addresses()));
    let emitted = || daemon.metrics().count("kevtmon_events_total", &[("kind", "neighbor.deleted")]);
    let lost = || daemon.metrics().sum("kevtmon_events_lost_total", &[]).unwrap_or_default();
    let throttled = || daemon.metrics().count("kevtmon_events_throttled_total", &[]);
    let all = || emitted() + throttled() + lost();
    eventually!(all() >= f64::from(STORM), "all events of the storm are emitted, over the budget or lost");
    println!(
        "after {STORM} deletions, {} over the budget, {} lost: {}",
        throttled(),
        lost(),
        memory(&daemon)?
    );
    sleep(3 * SETTLE);
    println!("  a while later: {}", memory(&daemon)?);
    Ok(())
}

/// What its threads have run so far: the first number of proc_pid_schedstat(5), nanoseconds.
fn processor_seconds(daemon: &Daemon) -> io::Result<f64> {
    let nanoseconds = sum_of_threads(daemon, "schedstat", |text| text.split_whitespace().next())?;
    Ok(nanoseconds / 1e9)
}

/// How often its threads have slept so far, and so were woken (proc_pid_status(5)).
fn wake_ups(daemon: &Daemon) -> io::Result<f64> {
    sum_of_threads(daemon, "status", |text| {
        text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))
    })
}

/// The sum of a number in a file of each thread.
fn sum_of_threads(daemon: &Daemon, file: &str, number: impl Fn(&str) -> Option<&str>) -> io::Result<f64> {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid()))?;
    let texts = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join(file)).ok());
    Ok(texts.filter_map(|text| number(&text)?.trim().parse::<f64>().ok()).sum())
}

fn memory(daemon: &Daemon) -> io::Result<String> {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid()))?;
    let wanted = ["VmRSS", "RssAnon", "RssFile", "RssShmem", "VmHWM"];
    let lines = status.lines().filter(|line| wanted.iter().any(|name| line.starts_with(name)));
    Ok(lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join(", "))
}
