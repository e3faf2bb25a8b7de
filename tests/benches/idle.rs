//! What the daemon costs a node on which nothing happens: processor time over a minute and resident memory,
//! with containers that do nothing; and what memory stays after a storm.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "it prints figures, and measures over a span of time"
)]

mod usage;

use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::eventually;
use kevtmon_tests::pod::Pod;
use kevtmon_tests::storm;
use usage::{memory, processor_seconds, sum_of_threads};

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
    let daemon = launch().joining(dockerd.runtime()).start();
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
    // The store, too, has written all of them by then.
    sleep(WINDOW);
    println!("  a minute later: {}", memory(&daemon)?);
    Ok(())
}

/// How often its threads have slept so far, and so were woken (proc_pid_status(5)).
fn wake_ups(daemon: &Daemon) -> io::Result<f64> {
    sum_of_threads(daemon, "status", |text| {
        text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))
    })
}
