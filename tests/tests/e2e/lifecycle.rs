//! The daemon's lifecycle: ready, running without pinning anything, and stopping cleanly.

use std::fs::File;
use std::path::Path;

use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::eventually;
use kevtmon_tests::mount::Mount;
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::process::hold_by_cwd;
use nix::sys::signal::Signal;

#[test]
fn it_lives_in_the_namespaces_of_the_host_says_what_is_live_and_ends_well_by_an_interrupt() {
    let mut daemon = launch().start();
    let ready = daemon.wait_for("daemon.ready", |event| event.kind() == "daemon.ready");
    ready.expect("/schema", 1);
    assert!(!ready.text("/daemon/version").is_empty(), "{ready}");
    let sources = ready.get("/daemon/sources").and_then(serde_json::Value::as_object);
    assert!(sources.is_some_and(|sources| !sources.is_empty()), "{ready}");
    for path in ["/healthz", "/readyz", "/metrics", "/"] {
        assert_eq!(daemon.get(path).map(|answer| answer.status), Some(200), "{path}");
    }
    assert_eq!(daemon.get("/nothing").map(|answer| answer.status), Some(404));
    for kind in ["mnt", "net", "pid"] {
        let theirs = std::fs::read_link(format!("/proc/{}/ns/{kind}", daemon.pid())).expect("a namespace");
        assert_eq!(theirs, std::fs::read_link(format!("/proc/self/ns/{kind}")).expect("a namespace"));
    }
    daemon.signal(Signal::SIGINT);
    assert_eq!(daemon.wait(), Some(0), "{}", daemon.log());
}

#[test]
fn every_event_says_where_and_in_which_order_it_was_reported() {
    let pod = Pod::new();
    let mut daemon = launch().argument("--node-name").argument("slave-197").start();
    for _ in 0..3 {
        pod.delete_gateway();
        pod.set_gateway();
    }
    daemon.fence(&pod);
    daemon.stop();
    let events = daemon.wait_for_end_of_output();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot id");
    for pair in events.windows(2) {
        assert_eq!(pair[1].number("/seq"), pair[0].number("/seq").map(|seq| seq + 1), "{}", pair[1]);
    }
    for event in &events {
        event.expect("/schema", 1);
        event.expect("/node", "slave-197");
        event.expect("/boot_id", boot.trim());
        assert!(event.text("/time").ends_with('Z') && event.text("/time").len() == 30, "{event}");
        assert!(["debug", "info", "notice", "warning", "critical"].contains(&event.severity()), "{event}");
        assert!(!event.text("/message").is_empty(), "{event}");
        assert!(!event.to_string().contains("null"), "{event}");
    }
}

#[test]
fn the_programs_log_only_when_asked() {
    let pod = Pod::new();
    let mut quiet = launch().start();
    let mut asked = launch().argument("--log-bpf").start();
    pod.delete_gateway();
    eventually!(asked.log().contains("kevtmon_ebpf"), "the programs log the deletion");
    quiet.fence(&pod);
    quiet.stop();
    assert!(!quiet.log().contains("kevtmon_ebpf"), "{}", quiet.log());
    asked.stop();
}

#[test]
fn a_termination_is_said_after_what_happened_before_and_ends_well() {
    let pod = Pod::new();
    let mut daemon = launch().start();
    pod.delete_gateway();
    daemon.stop();
    let events = daemon.wait_for_end_of_output();
    assert!(events.iter().any(|event| event.is_deletion(pod.inum(), GATEWAY)));
    assert_eq!(events.last().map(|event| event.kind().to_owned()).as_deref(), Some("daemon.stopping"));
}

#[test]
fn without_output_it_still_counts() {
    let pod = Pod::new();
    let launch = launch().output("none");
    let path = launch.directory().join("stdout");
    let mut daemon = launch.stdout(File::create(&path).expect("a file can be made")).spawn();
    eventually!(daemon.get("/readyz").is_some_and(|answer| answer.status == 200), "the daemon is ready");
    pod.delete_gateway();
    let labels = [("kind", "neighbor.deleted")];
    eventually!(daemon.metrics().count("kevtmon_events_total", &labels) >= 1.0, "the event is counted");
    daemon.stop();
    assert_eq!(std::fs::read_to_string(&path).expect("a file"), "");
}

/// Descriptors of the daemon that would keep something of others alive.
fn pins(daemon: &Daemon) -> Vec<String> {
    let list = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("descriptors of a child");
    let links = list.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    // That of its own namespace, which it is in anyway, tells it when mounts change.
    let own = format!("/proc/{}/mountinfo", daemon.pid());
    links
        .map(|link| link.to_string_lossy().into_owned())
        .filter(|link| link.starts_with("net:[") || link.starts_with("mnt:[") || link.contains("/mountinfo"))
        .filter(|link| *link != own)
        .collect()
}

#[test]
fn no_namespace_that_is_deleted_and_no_mount_that_is_looked_at_is_kept() {
    let pods = (0..5).map(|_| Pod::new()).collect::<Vec<_>>();
    let daemon = launch().start();
    let later = (0..5).map(|_| Pod::new()).collect::<Vec<_>>();
    for mut pod in pods.into_iter().chain(later) {
        let link = format!("/sys/class/net/{}", pod.host_end());
        pod.delete_gateway();
        pod.delete_netns();
        eventually!(!Path::new(&link).exists(), "{link} goes with the namespace");
    }
    for _ in 0..10 {
        let mount = Mount::new();
        let holder = hold_by_cwd(mount.point());
        mount.umount_refused();
        drop(holder);
        eventually!(mount.umount().status.success(), "nobody holds the mount any more");
    }
    eventually!(pins(&daemon).is_empty(), "no descriptor is kept: {:?}", pins(&daemon));
    assert_eq!(daemon.metrics().count("kevtmon_self_pins", &[]), 0.0);
}
