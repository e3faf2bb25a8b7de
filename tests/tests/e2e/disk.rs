//! A disk that does not answer: no event waits for it, and neither does the end of the daemon. One that is full, or
//! read-only, costs what is written there, until it is not.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kevtmon_tests::balance::{Balance, stop_and_account, wait_for_balance};
use kevtmon_tests::daemon::{Daemon, POLL_EACH_SECOND, launch};
use kevtmon_tests::disk::Disk;
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::pod_sandbox::PodSandbox;
use kevtmon_tests::process::{Running, run};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Has the daemon tell of two changes of an incident, who is to blame for the loss included.
fn expect_service(daemon: &mut Daemon) {
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    let ip = pod.delete_gateway();
    daemon.wait_for_deletion_by(ip.pid, pod.inum(), GATEWAY).expect_actor(ip.pid, "ip");
    daemon.wait_for_incident(sandbox.id()).expect_actor(ip.pid, "ip");
    pod.set_gateway();
    daemon.wait_for("the end of the incident", |event| {
        event.kind() == "incident.closed" && event.text("/target/container/id") == sandbox.id()
    });
    assert_eq!(daemon.get("/readyz").map(|answer| answer.status), Some(200));
    let state = daemon.ask(&["state", "--json"]).succeeded("state").stdout;
    assert!(state.contains(&pod.inum().to_string()), "{state}");
}

/// Waits until the daemon tells that its store is stuck, and why.
fn expect_no_answer(daemon: &mut Daemon) {
    let degraded = daemon.wait_for("daemon.degraded", |event| {
        event.kind() == "daemon.degraded" && event.has("/daemon/degraded/store")
    });
    let reason = degraded.text("/daemon/degraded/store");
    assert!(reason.starts_with("the disk has not answered for "), "{degraded}");
    degraded.expect("/message", format!("store is down: {reason}"));
    assert_eq!(daemon.log().matches("the disk has not answered for ").count(), 1, "{}", daemon.log());
    assert_eq!(daemon.metrics().sum("kevtmon_source_up", &[("source", "store")]), Some(0.0));
}

/// A daemon on a disk that stops answering while it runs.
fn on_a_disk_that_stops() -> (Daemon, Disk) {
    let prepared = launch();
    let mut disk = Disk::mount(&prepared.directory().join("state"));
    let mut daemon = prepared.start();
    expect_service(&mut daemon);
    let has_closed = |event: &Event| event.kind() == "incident.closed";
    eventually!(
        daemon.find_committed(&["events", "--since", "1h"]).iter().any(has_closed),
        "it is in the store"
    );
    disk.stop();
    expect_service(&mut daemon);
    expect_no_answer(&mut daemon);
    expect_service(&mut daemon);
    (daemon, disk)
}

#[test]
fn a_disk_that_does_not_answer_costs_the_store_until_it_does() {
    let (mut daemon, mut disk) = on_a_disk_that_stops();
    disk.resume();
    daemon.wait_for("the return of the store", |event| {
        event.kind() == "daemon.recovered" && event.text("/message") == "store is back"
    });
    assert_eq!(daemon.metrics().sum("kevtmon_source_up", &[("source", "store")]), Some(1.0));
    expect_service(&mut daemon);
    stop_and_account(&mut daemon);
    // Each event waited in the queue, or is younger.
    let kept = daemon.find(&["events", "--since", "1h"]);
    for event in daemon.events() {
        assert!(kept.iter().any(|kept| kept.to_string() == event.to_string()), "it is lost: {event}");
    }
}

#[test]
fn a_disk_that_does_not_answer_keeps_the_daemon_from_no_end() {
    let (mut daemon, disk) = on_a_disk_that_stops();
    // Whoever asks for what only the disk has waits for it, and does not keep the daemon either.
    let mut asking = Command::new(kevtmon_tests::daemon::program());
    asking.args(["events", "--since", "24h", "--socket"]).arg(daemon.socket());
    asking.stdout(Stdio::null()).stderr(Stdio::null());
    let _asking = Running::spawn(&mut asking);
    expect_service(&mut daemon);
    stop_and_account(&mut daemon);
    assert!(daemon.log().contains("sink did not finish in time"), "{}", daemon.log());
    drop(disk);
}

#[test]
fn a_disk_that_does_not_answer_keeps_no_daemon_from_its_start() {
    let prepared = launch();
    let mut disk = Disk::mount(&prepared.directory().join("state"));
    disk.stop();
    let mut daemon = prepared.start();
    let ready = daemon.wait_for("daemon.ready", |event| event.kind() == "daemon.ready");
    ready.expect("/daemon/degraded/store", "the disk does not answer");
    for what in ["the event store is unavailable: the disk does not answer", "no flight recorder"] {
        assert_eq!(daemon.log().matches(what).count(), 1, "{}", daemon.log());
    }
    expect_service(&mut daemon);
    wait_for_balance(&daemon, Balance::of_all);
    stop_and_account(daemon);
    drop(disk);
}

#[test]
fn a_disk_that_does_not_answer_keeps_the_daemon_at_its_old_configuration_until_it_does() {
    let prepared = launch();
    let directory = prepared.directory().join("etc");
    let mut disk = Disk::mount(&directory);
    let file = directory.join("kevtmon.toml");
    std::fs::write(&file, "cmdline = \"host\"\n").expect("a file can be made");
    let mut daemon = prepared.argument("--config").argument(&file).start();
    disk.stop();
    daemon.signal(Signal::SIGHUP);
    let degraded = daemon.wait_for("daemon.degraded", |event| {
        event.kind() == "daemon.degraded" && event.has("/daemon/degraded/configuration")
    });
    assert!(
        degraded.text("/message").ends_with("the disk of the configuration does not answer"),
        "{degraded}"
    );
    expect_service(&mut daemon);
    disk.resume();
    daemon.wait_for("the return of the configuration", |event| {
        event.kind() == "daemon.recovered" && event.text("/message") == "configuration is back"
    });
    stop_and_account(daemon);
}

/// Fills a file system but for one page.
fn fill(path: &Path) {
    const PAGE: u64 = 4096;
    let mut filler = File::create(path).expect("a file can be made");
    let mut size = 0;
    while filler.write_all(&[0; 4096]).is_ok() {
        size += PAGE;
    }
    filler.set_len(size - PAGE).expect("a file can be truncated");
}

#[test]
fn a_full_disk_costs_standard_output_until_it_has_room() {
    let prepared = launch();
    let directory = prepared.directory().join("output");
    std::fs::create_dir(&directory).expect("a directory can be made");
    run(&format!("mount -t tmpfs -o size=1m tmpfs {}", directory.display()));
    let (output, filler) = (directory.join("out.json"), directory.join("filler"));
    let file = File::create(&output).expect("a file can be made");
    fill(&filler);
    let daemon = prepared.stdout(file).spawn();
    eventually!(daemon.get("/readyz").is_some_and(|answer| answer.status == 200), "it is ready");
    let up = || daemon.metrics().sum("kevtmon_source_up", &[("source", "stdout")]);
    eventually!(
        {
            Pod::new().delete_gateway();
            up() == Some(0.0)
        },
        "the disk is full"
    );
    let told = |kind: &str| {
        let events = daemon.find(&["events", "--kind", kind]);
        events
            .iter()
            .rev()
            .map(|event| event.text("/message").to_owned())
            .find(|told| told.contains("stdout"))
    };
    let full = "stdout is down: No space left on device (os error 28)";
    eventually!(told("daemon.degraded").as_deref() == Some(full), "it is told");
    let doctor = daemon.ask(&["doctor"]).succeeded("doctor").stdout;
    assert!(doctor.contains("\nstdout            failed\n"), "{doctor}");

    std::fs::remove_file(&filler).expect("a file can be removed");
    eventually!(up() == Some(1.0), "it is written again");
    eventually!(told("daemon.recovered").as_deref() == Some("stdout is back"), "it is told");
    let read = || std::fs::read_to_string(&output).expect("a file can be read");
    eventually!(read().contains("stdout is back"), "its reader is told as well");
    let text = read();
    // It may be written just now.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let lines: Vec<_> = whole.lines().map(Event::parse).collect();
    assert_eq!(lines.iter().filter(|line| line.is_err()).count(), 1, "the one that was cut: {text}");
    let is_gap = |event: &Event| event.kind() == "events.lost" && event.text("/lost/source") == "sink.stdout";
    let gap = lines.iter().flatten().find(|event| is_gap(event)).expect("what was discarded is told");
    gap.expect("/lost/reason", "failed");
}

/// Waits until the daemon tells that its store is down for this reason; `doctor` tells what helps.
fn expect_store_down(daemon: &mut Daemon, reason: &str, remedy: &str) {
    let is_it = |message: &str| message.starts_with("store is down: ") && message.contains(reason);
    daemon.wait_for("that the store is down", |event| {
        event.kind() == "daemon.degraded" && is_it(event.text("/message"))
    });
    let report: Value = serde_json::from_str(&daemon.ask(&["doctor", "--json"]).stdout).expect("JSON");
    let mut parts = report["parts"].as_array().expect("parts").iter();
    let store = parts.find(|part| part["name"] == "store").expect("the store");
    assert_eq!(store["state"], "failed", "{store}");
    assert!(store["remedy"].as_str().is_some_and(|text| text.starts_with(remedy)), "{store}");
}

fn expect_store_back(daemon: &mut Daemon) {
    daemon.wait_for("the return of the store", |event| {
        event.kind() == "daemon.recovered" && event.text("/message") == "store is back"
    });
}

/// A daemon whose state directory was mounted by these command lines, in which DIR is its path.
fn on_state_directory(commands: &[&str]) -> (Daemon, PathBuf) {
    let prepared = launch().config(POLL_EACH_SECOND);
    let state = prepared.directory().join("state");
    std::fs::create_dir(&state).expect("a directory can be made");
    for command in commands {
        run(&command.replace("DIR", &state.display().to_string()));
    }
    (prepared.start(), state)
}

#[test]
fn a_full_disk_costs_the_store_until_it_has_room() {
    let (mut daemon, state) = on_state_directory(&["mount -t tmpfs -o size=32k,mode=700 tmpfs DIR"]);
    expect_store_down(&mut daemon, "database or disk is full", "make room");
    expect_service(&mut daemon);
    run(&format!("mount -o remount,size=64m {}", state.display()));
    expect_store_back(&mut daemon);
    stop_and_account(daemon);
}

#[test]
fn a_disk_that_is_read_only_costs_the_store_until_it_is_not() {
    let read_only = ["mount --bind DIR DIR", "mount -o remount,bind,ro DIR"];
    let (mut daemon, state) = on_state_directory(&read_only);
    expect_store_down(&mut daemon, "Read-only file system", "dmesg shows");
    expect_service(&mut daemon);
    run(&format!("mount -o remount,bind,rw {}", state.display()));
    expect_store_back(&mut daemon);
    stop_and_account(daemon);
}
