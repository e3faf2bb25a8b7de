//! What the daemon costs a node on which nothing happens: processor time over a minute and private memory,
//! with containers that do nothing; and what memory stays after a storm.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "it prints figures, and measures over a span of time"
)]

use std::io;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::WITHOUT_BUDGETS;
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::eventually;
use kevtmon_tests::limits::Limits;
use kevtmon_tests::pod::Pod;
use kevtmon_tests::storm;
use kevtmon_tests::usage::Usage;

const CONTAINERS: u32 = 20;
/// After the start the first reconcile and the first commits come.
const SETTLE: Duration = Duration::from_secs(10);
const WINDOW: Duration = Duration::from_secs(60);
const STORM: u32 = 100_000;

fn main() -> io::Result<ExitCode> {
    let dockerd = Dockerd::start();
    let containers: Vec<Container<'_>> =
        (0..CONTAINERS).map(|_| Container::idle(&dockerd, &["--network", "none"])).collect();
    let pods: Vec<Pod> = containers.iter().map(|container| Pod::at(container.netns())).collect();
    let usage = Usage::new();
    // Beyond the budgets the storm would cost next to nothing.
    let daemon = usage.launch().config(WITHOUT_BUDGETS).joining(dockerd.runtime()).start();
    let known = || daemon.metrics().count("kevtmon_containers", &[("state", "running")]);
    eventually!(known() >= f64::from(CONTAINERS), "all containers are known");
    let mut limits = Limits::default();

    sleep(SETTLE);
    let (before, slept, began) = (usage.processor_seconds(), usage.wake_ups(), Instant::now());
    sleep(WINDOW);
    let seconds = began.elapsed().as_secs_f64();
    let busy = 100.0 * (usage.processor_seconds() - before) / seconds;
    let wake_ups = (usage.wake_ups() - slept) as f64 / seconds;
    println!(
        "idle with {CONTAINERS} containers: {busy:.3} % of a core and {wake_ups:.1} wake-ups a second over {WINDOW:?}"
    );
    println!("  memory: {}", usage.memory(&daemon)?);
    limits.at_most("idle: private memory", 5.0, usage.anonymous(), "MB");
    limits.at_most("idle: part of a core", 0.1, busy, "%");
    limits.at_most("idle: wake-ups a second", 3.0, wake_ups, "");

    usage.forget_peak();
    let share = STORM / CONTAINERS;
    for (pod, first) in pods.iter().zip((0..STORM).step_by(share as usize)) {
        let addresses = || (first..first + share).map(storm::ipv4);
        pod.netns().network(|network| network.set_neighbors("eth0", addresses()));
        pod.netns().network(|network| network.delete_neighbors("eth0", addresses()));
    }
    let emitted = || daemon.metrics().count("kevtmon_events_total", &[("kind", "neighbor.deleted")]);
    let lost = || daemon.metrics().sum("kevtmon_events_lost_total", &[]).unwrap_or_default();
    let throttled = || daemon.metrics().count("kevtmon_events_throttled_total", &[]);
    let all = || emitted() + throttled() + lost();
    eventually!(all() >= f64::from(STORM), "all events of the storm are emitted, over the budget or lost");
    println!(
        "after {STORM} deletions in {CONTAINERS} containers, of which {} were emitted, {} over a budget, {} lost: {}",
        emitted(),
        throttled(),
        lost(),
        usage.memory(&daemon)?
    );
    limits.add(
        "storm: deletions emitted",
        format!(">= {}", STORM / 2),
        emitted().to_string(),
        emitted() >= f64::from(STORM / 2),
    );
    // The store, too, has written all of them by then.
    sleep(WINDOW);
    println!("  a minute later: {}", usage.memory(&daemon)?);
    limits.at_most("storm: private memory at most", 16.0, usage.peak(), "MB");
    limits.at_most("storm: private memory a minute later", 8.0, usage.anonymous(), "MB");
    println!("{limits}");
    Ok(limits.exit_code())
}
