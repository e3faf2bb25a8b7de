//! The probes on the kernel at hand: on which attach mode they are, and what they cost in memory.

use std::collections::BTreeMap;
use std::path::Path;

use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::{eventually, kernel};

fn ready(daemon: &mut Daemon) -> Event {
    daemon.wait_for("daemon.ready", |event| event.kind() == "daemon.ready")
}

#[test]
fn every_hook_is_on_its_best_attach_mode() {
    let mut daemon = launch().start();
    let ready = ready(&mut daemon);
    let metrics = daemon.metrics();
    for (hook, attach_mode) in [
        ("neighbor", "tp_btf"),
        ("umount", "tracepoint"),
        ("remove", "tracepoint"),
        ("link", "tp_btf"),
        ("sysctl", "cgroup"),
        ("exec", "tp_btf"),
    ] {
        ready.expect(&format!("/daemon/sources/hook.{hook}"), attach_mode);
        let labels = [("hook", hook), ("attach_mode", attach_mode)];
        assert_eq!(metrics.sum("kevtmon_hook_info", &labels), Some(1.0), "{}", metrics.text);
    }
    let degraded = daemon.events().into_iter().find(|event| event.kind() == "daemon.degraded");
    assert_eq!(degraded.map(|event| event.to_string()), None);
    // Before 6.6 the stack of each function is rounded up. A program that can be done without is refused without further notice.
    let log = daemon.log();
    assert!(!log.contains("combined stack size") && !log.contains("frames is too deep"), "{log}");
    kernel::print_attach_modes(&daemon, "");
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
    let status = format!("/proc/{}/status", daemon.pid());
    let status = std::fs::read_to_string(status).expect("the daemon runs");
    assert!(status.contains("THP_enabled:\t0"), "a stack may take 2 MiB: {status}");
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

/// `BPF_MAP_TYPE_RINGBUF`.
const RING: u64 = 27;

/// Memory of the maps that the daemon has, by map: bytes, and what kind.
fn maps(daemon: &Daemon) -> BTreeMap<u32, (u64, u64)> {
    let directory = format!("/proc/{}/fdinfo", daemon.pid());
    let entries = std::fs::read_dir(directory).expect("root may read it").flatten();
    let field = |text: &str, name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        value.trim().parse::<u64>().ok()
    };
    let of_map = |text: &str| {
        let id = u32::try_from(field(text, "map_id")?).ok()?;
        let (kind, bytes) = (field(text, "map_type")?, field(text, "memlock")?);
        // Before 6.4 that leaves the memory of a ring out.
        let ring = field(text, "max_entries").filter(|_| kind == RING).unwrap_or_default();
        Some((id, (bytes.max(ring), kind)))
    };
    // A descriptor may be closed meanwhile; several may be of one map.
    entries.filter_map(|entry| of_map(&std::fs::read_to_string(entry.path()).ok()?)).collect()
}

#[test]
fn the_maps_and_the_ring_take_no_more_memory_than_they_may() {
    const BUDGET: u64 = 4 << 20;
    let daemon = launch().start();
    let maps = maps(&daemon);
    let sum = maps.values().map(|(bytes, _)| bytes).sum::<u64>();
    println!("{} KiB in {} maps", sum >> 10, maps.len());
    let rings = maps.values().filter(|(_, kind)| *kind == RING).map(|(bytes, _)| *bytes);
    assert!(rings.max().is_some_and(|bytes| bytes >= 1 << 20), "the ring is among them: {maps:?}");
    assert!(sum <= BUDGET, "{sum} bytes: {maps:?}");
    let told = daemon.ask(&["doctor", "--json"]).stdout;
    assert!(told.contains(&format!("{} KiB of maps", sum.div_ceil(1024))), "{told}");
}
