//! The probes on the kernel at hand: on which rung they are, and what they cost in memory.

use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::event::Event;

fn ready(daemon: &mut Daemon) -> Event {
    daemon.wait_for("daemon.ready", |event| event.kind() == "daemon.ready")
}

#[test]
fn every_hook_is_on_its_best_rung() {
    let mut daemon = launch().start();
    let ready = ready(&mut daemon);
    let metrics = daemon.metrics();
    for (hook, rung) in [("neighbor", "tp_btf"), ("umount", "tracepoint")] {
        ready.expect(&format!("/daemon/sources/hook.{hook}"), rung);
        let labels = [("hook", hook), ("rung", rung)];
        assert_eq!(metrics.sum("kevtmon_hook_info", &labels), Some(1.0), "{}", metrics.text);
    }
    let degraded = daemon.events().into_iter().find(|event| event.kind() == "daemon.degraded");
    assert_eq!(degraded.map(|event| event.to_string()), None);
}

#[test]
fn reading_the_kernels_types_leaves_little_memory_behind() {
    let daemon = launch().start();
    // Not the pages of the program itself, of which a debug build has more. The types take more than 5 MiB alone.
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap_or_default();
    let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or_default();
    let kib: u64 = anonymous.trim().trim_end_matches(" kB").parse().unwrap_or_default();
    assert!(kib > 0 && kib < 5 * 1024, "{status}");
}
