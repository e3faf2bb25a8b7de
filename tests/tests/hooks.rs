//! The probes on the kernel at hand: on which rung they are, and what they cost in memory.

#![allow(clippy::expect_used, reason = "a test whose set-up fails must fail")]

use std::path::Path;

use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;

fn ready(daemon: &mut Daemon) -> Event {
    daemon.wait_for("daemon.ready", |event| event.kind() == "daemon.ready")
}

#[test]
fn every_hook_is_on_its_best_rung() {
    let mut daemon = launch().start();
    let ready = ready(&mut daemon);
    let metrics = daemon.metrics();
    for (hook, rung) in [
        ("neighbor", "tp_btf"),
        ("umount", "tracepoint"),
        ("remove", "tracepoint"),
        ("link", "tp_btf"),
        ("exec", "tp_btf"),
    ] {
        ready.expect(&format!("/daemon/sources/hook.{hook}"), rung);
        let labels = [("hook", hook), ("rung", rung)];
        assert_eq!(metrics.sum("kevtmon_hook_info", &labels), Some(1.0), "{}", metrics.text);
    }
    let degraded = daemon.events().into_iter().find(|event| event.kind() == "daemon.degraded");
    assert_eq!(degraded.map(|event| event.to_string()), None);
}

/// Resident memory, KiB: anonymous, and all but the pages of the program's own file.
fn resident(daemon: &Daemon) -> (u64, u64) {
    let process = Path::new("/proc").join(daemon.pid().to_string());
    let program = std::fs::read_link(process.join("exe")).expect("the daemon runs");
    let program = format!(" {}", program.display());
    let smaps = std::fs::read_to_string(process.join("smaps")).expect("root may read it");
    let (mut is_program, mut anonymous, mut others) = (false, 0, 0);
    for line in smaps.lines() {
        let kib = |value: &str| value.trim().trim_end_matches(" kB").parse().unwrap_or(0_u64);
        match line.split_once(':') {
            Some(("Anonymous", value)) => anonymous += kib(value),
            Some(("Rss", value)) if !is_program => others += kib(value),
            Some((range, _)) if range.contains('-') => is_program = line.ends_with(&program),
            _ => {}
        }
    }
    (anonymous, others)
}

#[test]
fn reading_the_kernels_types_leaves_little_memory_behind() {
    let daemon = launch().start();
    // Of its own file a debug build has many times the pages of the program that is shipped. The types take more than
    // 5 MiB alone, however they are read.
    let is_little = |(anonymous, others): (u64, u64)| {
        assert!(anonymous > 0 && others > 0, "{anonymous} and {others} KiB");
        anonymous < 5 * 1024 && others < 8 * 1024
    };
    // What others on this machine let it see takes memory for a while.
    let told = || format!("{:?} KiB are little", resident(&daemon));
    eventually!(is_little(resident(&daemon)), "{}", told());
}
