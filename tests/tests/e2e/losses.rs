//! What the kernel has no room for: it is told while it happens, and counted exactly.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use kevtmon_tests::balance::stop_and_account;
use kevtmon_tests::daemon::{Daemon, WITHOUT_BUDGETS, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::lock::Exclusive;
use kevtmon_tests::pod::Pod;
use kevtmon_tests::storm::Storm;

fn lost(daemon: &Daemon) -> f64 {
    daemon.metrics().count("kevtmon_events_lost_total", &[("source", "bpf")])
}

fn losses(daemon: &Daemon) -> Vec<Event> {
    let is_loss = |event: &Event| event.kind() == "events.lost" && event.text("/lost/source") == "bpf";
    daemon.events().into_iter().filter(is_loss).collect()
}

/// Gives others the processors first, so that the ring does not run empty before a storm is over.
fn slow_down(daemon: &Daemon) {
    let threads = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("it runs");
    for thread in threads.filter_map(Result::ok) {
        let mut renice = Command::new("renice");
        renice.args(["-n", "10", "-p"]).arg(thread.file_name()).stdout(Stdio::null()).stderr(Stdio::null());
        let is_done = renice.status().is_ok_and(|status| status.success());
        // One of those that work off single jobs may have ended.
        assert!(is_done || !thread.path().exists(), "renice {}", thread.path().display());
    }
}

/// What counts all that the kernel does, or needs a quiet machine.
mod alone {
    use super::*;

    #[test]
    fn losses_are_told_while_they_happen_and_not_only_when_they_are_over() {
        // More than the first, which is told at once.
        const TOLD: usize = 2;
        let _exclusive = Exclusive::take();
        let pods: [Pod; 4] = std::array::from_fn(|_| Pod::new());
        let daemon = launch().config(WITHOUT_BUDGETS).start();
        slow_down(&daemon);
        let storms = pods.each_ref().map(|pod| Storm::of(pod, 0..2_000));
        eventually!(losses(&daemon).len() >= TOLD, "losses are told, again and again");
        let (told, counted) = (losses(&daemon), lost(&daemon));
        assert!(counted > 0.0);
        // Still.
        eventually!(lost(&daemon) > counted, "the storm goes on, and its losses are counted");
        drop(storms);
        for event in &told {
            assert!(event.text("/lost/count").parse::<u64>().is_ok_and(|count| count > 0), "{event}");
            event.expect("/severity", "warning");
        }
        let times: BTreeSet<&str> = told.iter().map(|event| event.text("/time")).collect();
        assert_eq!(times.len(), told.len(), "each has its own time: {told:?}");
        stop_and_account(daemon);
    }
}
