//! The event store: what a killed daemon leaves, how much disk a storm takes, and what broken disks cost.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};

use kevtmon_tests::balance::stop_and_account;
use kevtmon_tests::daemon::{Daemon, Launch, POLL_EACH_SECOND, WITHOUT_BUDGETS, launch, program};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::lock::Exclusive;
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::pod_sandbox::PodSandbox;
use kevtmon_tests::process::{attempt, run};
use kevtmon_tests::storm::{Storm, storm};
use kevtmon_tests::unique;
use nix::sys::signal::Signal;

/// Everything that a query finds.
fn kept(daemon: &Daemon) -> Vec<Event> {
    daemon.find(&["events", "--since", "1h"])
}

/// What it has committed while it runs.
fn left(daemon: &Daemon) -> Vec<Event> {
    let state = daemon.state();
    let nobody = daemon.directory().join("nobody.sock");
    let words = ["events", "--json", "--since", "1h", "--socket"].map(OsStr::new);
    let mut command = vec![program().into_os_string()];
    command.extend(words.map(OsStr::to_owned));
    command.extend([nobody.into(), "--state-dir".into(), state.into()]);
    let ran = attempt(&command);
    ran.stdout.lines().map(|line| Event::parse(line).expect("an event")).collect()
}

fn is_kept(events: &[Event], event: &Event) -> bool {
    events.iter().any(|kept| kept.to_string() == event.to_string())
}

fn numbers(events: &[Event]) -> Vec<u64> {
    events.iter().filter_map(|event| event.number("/seq")).collect()
}

/// Bytes of the files in a directory whose names begin like this.
fn bytes(directory: &Path, name: &str) -> u64 {
    let files = std::fs::read_dir(directory).expect("a directory").filter_map(Result::ok);
    let files = files.filter(|file| file.file_name().to_string_lossy().starts_with(name));
    files.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}

/// Panics unless the daemon reports once that it has no store, counts what it discards, and keeps running.
fn expect_no_store(daemon: &mut Daemon, pod: &Pod, said: &str) {
    daemon.wait_for("daemon.degraded", |event| {
        event.kind() == "daemon.degraded" && event.has("/daemon/degraded/store")
    });
    let labels = [("sink", "store"), ("reason", "failed")];
    let discarded = || daemon.metrics().count("kevtmon_events_discarded_total", &labels);
    let before = discarded();
    pod.set_gateway();
    let ip = pod.delete_gateway();
    eventually!(discarded() > before, "what is not kept is counted");
    assert_eq!(daemon.metrics().sum("kevtmon_source_up", &[("source", "store")]), Some(0.0));
    assert_eq!(daemon.get("/readyz").map(|answer| answer.status), Some(200));
    daemon.wait_for_deletion_by(ip.pid, pod.inum(), GATEWAY);
    assert_eq!(daemon.log().matches(said).count(), 1, "{}", daemon.log());
}

#[test]
fn a_broken_file_is_moved_aside_and_a_new_one_begun() {
    let launch = launch();
    let state = launch.directory().join("state");
    std::fs::create_dir(&state).expect("a directory can be made");
    std::fs::write(state.join("events.db"), unique::name("nonsense").repeat(1000)).expect("a file");
    let mut daemon = launch.start();
    let ready = daemon.wait_for("daemon.ready", |event| event.kind() == "daemon.ready");
    assert!(ready.has("/daemon/sources/store"), "{ready}");
    assert_eq!(daemon.log().matches("using another event store").count(), 1, "{}", daemon.log());
    let aside = std::fs::read_dir(&state).expect("a directory").filter_map(Result::ok);
    assert_eq!(
        aside.filter(|file| file.file_name().to_string_lossy().starts_with("events.db.corrupt-")).count(),
        1
    );
    stop_and_account(&mut daemon);
    assert!(kept(&daemon).len() >= 2);
}

#[test]
fn without_a_usable_state_directory_only_the_store_is_missing() {
    let launch = launch();
    std::fs::write(launch.directory().join("state"), "").expect("a file can be made");
    let pod = Pod::new();
    let mut daemon = launch.start();
    let ready = daemon.wait_for("daemon.ready", |event| event.kind() == "daemon.ready");
    assert!(ready.has("/daemon/degraded/store"), "{ready}");
    expect_no_store(&mut daemon, &pod, "the event store is unavailable");
    stop_and_account(daemon);
}

/// Least sizes of what is kept on disk.
const SMALL: &str = "[store]\nmax_mib = 8\n[recorder]\nmax_mib = 4\n";

/// A file system of this size as the state directory of a daemon that is not started yet.
fn small_disk(launch: &Launch, mib: u32) -> PathBuf {
    let state = launch.directory().join("state");
    std::fs::create_dir(&state).expect("a directory can be made");
    run(&format!("mount -t tmpfs -o size={mib}m kevtmon {}", state.display()));
    state
}

#[test]
fn a_disk_that_fills_costs_the_store_until_there_is_room() {
    let pod = Pod::new();
    // There is room for store and recorder once the ballast is gone.
    let prepared = launch().config(SMALL);
    let state = small_disk(&prepared, 24);
    let mut daemon = prepared.start();
    pod.delete_gateway();
    let before = daemon.wait_for_deletion(pod.inum(), GATEWAY);
    eventually!(is_kept(&left(&daemon), &before), "it is committed");
    let ballast = state.join("ballast");
    let mut file = std::fs::File::create(&ballast).expect("a file can be made");
    while file.write_all(&[0; 4096]).is_ok() {}
    drop(file);
    let failed = || daemon.log().contains("the event store failed");
    eventually!(
        {
            storm(&pod, 0..10);
            failed()
        },
        "the disk is full"
    );
    expect_no_store(&mut daemon, &pod, "the event store failed");

    std::fs::remove_file(&ballast).expect("a file can be removed");
    stop_and_account(&mut daemon);
    let mut again = launch().on_state_of(&daemon).start();
    let ready = again.wait_for("daemon.ready", |event| event.kind() == "daemon.ready");
    assert!(ready.has("/daemon/sources/store"), "{ready}");
    assert!(!ready.has("/daemon/degraded/store"), "{ready}");
    assert!(is_kept(&kept(&again), &before), "{before}");
    stop_and_account(&mut again);
    assert!(is_kept(&kept(&again), &ready), "{ready}");
}

/// A file system whose files can be made immutable, as the state directory of a daemon that is not started yet.
fn ext4(launch: &Launch) -> PathBuf {
    let (state, image) = (launch.directory().join("state"), launch.directory().join("disk"));
    std::fs::create_dir(&state).expect("a directory can be made");
    run(&format!("truncate -s 96M {}", image.display()));
    run(&format!("mkfs.ext4 -q -F {}", image.display()));
    run(&format!("mount -o loop {} {}", image.display(), state.display()));
    state
}

#[test]
fn files_of_the_store_that_others_make_immutable_cost_the_store_until_they_are_not() {
    let config = format!("{WITHOUT_BUDGETS}{SMALL}");
    for name in ["events.db-wal", "events.db"] {
        let pod = Pod::new();
        let prepared = launch().config(&config);
        let state = ext4(&prepared);
        let mut daemon = prepared.start();
        pod.delete_gateway();
        let before = daemon.wait_for_deletion(pod.inum(), GATEWAY);
        eventually!(is_kept(&left(&daemon), &before), "it is committed");
        let file = state.join(name);
        run(&format!("chattr +i {}", file.display()));
        let failed = || daemon.log().contains("the event store failed");
        eventually!(
            {
                storm(&pod, 0..500);
                failed()
            },
            "{name} cannot be written to"
        );
        expect_no_store(&mut daemon, &pod, "the event store failed");
        stop_and_account(&mut daemon);
        let mut again = launch().on_state_of(&daemon).start();
        expect_no_store(&mut again, &pod, "the event store is unavailable");
        stop_and_account(&mut again);

        run(&format!("chattr -i {}", file.display()));
        let mut again = launch().on_state_of(&daemon).start();
        let ready = again.wait_for("daemon.ready", |event| event.kind() == "daemon.ready");
        assert!(ready.has("/daemon/sources/store") && !ready.has("/daemon/degraded/store"), "{ready}");
        assert!(is_kept(&kept(&again), &before), "{before}");
        stop_and_account(&mut again);
    }
}

#[test]
fn a_state_directory_that_others_make_immutable_costs_nothing_that_is_there() {
    let pod = Pod::new();
    let prepared = launch();
    let state = ext4(&prepared);
    let mut daemon = prepared.start();
    run(&format!("chattr +i {}", state.display()));
    pod.delete_gateway();
    let event = daemon.wait_for_deletion(pod.inum(), GATEWAY);
    eventually!(is_kept(&left(&daemon), &event), "it is committed");
    stop_and_account(&mut daemon);
    let mut again = launch().on_state_of(&daemon).start();
    again.wait_for("daemon.ready", |event| event.kind() == "daemon.ready");
    assert!(is_kept(&kept(&again), &event), "{event}");
    stop_and_account(&mut again);
    run(&format!("chattr -i {}", state.display()));
}

#[test]
fn a_disk_that_is_read_only_is_read() {
    let pod = Pod::new();
    let first = launch();
    let state = small_disk(&first, 64);
    let mut first = first.start();
    pod.delete_gateway();
    let before = first.wait_for_deletion(pod.inum(), GATEWAY);
    stop_and_account(&mut first);
    run(&format!("mount -o remount,ro {}", state.display()));
    let mut second = launch().on_state_of(&first).start();
    expect_no_store(&mut second, &pod, "the event store is unavailable");
    assert!(is_kept(&kept(&second), &before), "{before}");
    stop_and_account(&mut second);
    assert!(is_kept(&kept(&second), &before), "also when nobody runs: {before}");
}

/// Panics unless the daemon reports once what happened to its store, and that it has it again or a new one.
fn expect_a_new_store(daemon: &mut Daemon, what: &str) {
    let lost = daemon.wait_for("daemon.degraded", |event| {
        event.kind() == "daemon.degraded" && event.has("/daemon/degraded/store")
    });
    assert!(lost.text("/daemon/degraded/store").contains(what), "{lost}");
    daemon.wait_for("the return of the store", |event| {
        event.kind() == "daemon.recovered" && event.text("/message") == "store is back"
    });
    assert_eq!(daemon.log().matches(what).count(), 1, "{}", daemon.log());
    assert_eq!(daemon.metrics().sum("kevtmon_source_up", &[("source", "store")]), Some(1.0));
}

/// Panics unless what leads to an incident that opens now is recorded.
fn expect_a_bundle(daemon: &mut Daemon) {
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    pod.delete_gateway();
    let opened = daemon.wait_for_incident(sandbox.id());
    let bundle = || daemon.ask(&["bundle", opened.text("/incident/id")]).stdout;
    eventually!(bundle().lines().count() > 2, "there is a bundle, with a recording behind its header");
}

#[test]
fn a_state_directory_that_is_removed_or_replaced_is_noticed_and_made_anew() {
    // Moved away first: a daemon that writes meanwhile can make no file in what is being removed.
    let remove = |state: &Path| {
        let aside = state.with_extension("removed");
        std::fs::rename(state, &aside).expect("a directory can be renamed");
        std::fs::remove_dir_all(aside).expect("a directory can be removed");
    };
    let replace = |state: &Path| {
        std::fs::rename(state, state.with_extension("old")).expect("a directory can be renamed");
        std::fs::create_dir(state).expect("a directory can be made");
    };
    let ways: [&dyn Fn(&Path); 2] = [&remove, &replace];
    for way in ways {
        let pod = Pod::new();
        let sandbox = PodSandbox::of(&pod);
        let mut daemon = launch().start();
        pod.delete_gateway();
        let opened = daemon.wait_for_incident(sandbox.id());
        way(&daemon.state());
        expect_a_new_store(&mut daemon, "removed or replaced");
        pod.set_gateway();
        let ip = pod.delete_gateway();
        daemon.wait_for_deletion_by(ip.pid, pod.inum(), GATEWAY);
        expect_a_bundle(&mut daemon);
        stop_and_account(&mut daemon);
        // Its history goes on in the new file, and what was open is in it.
        let kept = daemon.find(&["events", "--since", "1h"]);
        assert!(kept.iter().any(|event| event.number("/actor/pid") == Some(ip.pid.into())));
        let incidents = daemon.find(&["incidents", "--all"]);
        assert!(incidents.iter().any(|incident| incident.text("/id") == opened.text("/incident/id")));
    }
}

fn truncate(path: &Path) {
    if let Ok(file) = std::fs::File::options().write(true).open(path) {
        file.set_len(0).expect("a file can be truncated");
    }
}

#[test]
fn a_log_that_others_truncate_is_told_once_and_a_new_store_begun() {
    let pod = Pod::new();
    let mut daemon = launch().start();
    pod.delete_gateway();
    let before = daemon.wait_for_deletion(pod.inum(), GATEWAY);
    eventually!(is_kept(&left(&daemon), &before), "it is committed");
    truncate(&daemon.state().join("events.db-wal"));
    // That is noticed when something is written.
    pod.set_gateway();
    expect_a_new_store(&mut daemon, "events.db-wal was truncated");
    let ip = pod.delete_gateway();
    let after = daemon.wait_for_deletion_by(ip.pid, pod.inum(), GATEWAY);
    stop_and_account(&mut daemon);
    let kept = kept(&daemon);
    assert!(is_kept(&kept, &after), "{kept:?}");
}

#[test]
fn files_of_the_store_that_others_truncate_do_not_end_the_daemon() {
    let pod = Pod::new();
    let mut daemon = launch().start();
    for name in ["events.db-wal", "events.db"] {
        truncate(&daemon.state().join(name));
        for _ in 0..3 {
            pod.set_gateway();
            let ip = pod.delete_gateway();
            daemon.wait_for_deletion_by(ip.pid, pod.inum(), GATEWAY);
            // Reads them, too.
            assert!(daemon.ask(&["events", "--since", "1h"]).status.code().is_some_and(|code| code < 3));
        }
    }
    assert!(!daemon.has_ended(), "{}", daemon.log());
    stop_and_account(daemon);
}

#[test]
fn a_store_that_is_unusable_from_the_start_is_made_anew_once_it_can_be() {
    let launch = launch().config(POLL_EACH_SECOND);
    let state = launch.directory().join("state");
    std::fs::write(&state, "").expect("a file can be made");
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    let mut daemon = launch.start();
    let ready = daemon.wait_for("daemon.ready", |event| event.kind() == "daemon.ready");
    assert!(ready.has("/daemon/degraded/store"), "{ready}");
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    pod.delete_gateway();
    let opened = daemon.wait_for_incident(sandbox.id());
    std::fs::remove_file(&state).expect("a file can be removed");
    daemon.wait_for("daemon.recovered", |event| {
        event.kind() == "daemon.recovered" && event.has("/daemon/sources/store")
    });
    assert_eq!(daemon.metrics().sum("kevtmon_source_up", &[("source", "store")]), Some(1.0));
    pod.set_gateway();
    let ip = pod.delete_gateway();
    let after = daemon.wait_for_deletion_by(ip.pid, pod.inum(), GATEWAY);
    stop_and_account(&mut daemon);
    assert!(is_kept(&kept(&daemon), &after), "{after}");
    // What opened while there was none is in it, too.
    let incidents = daemon.find(&["incidents", "--all"]);
    assert!(incidents.iter().any(|incident| incident.text("/id") == opened.text("/incident/id")));
}

/// What counts all that the kernel does, or needs a quiet machine.
mod alone {
    use super::*;

    #[test]
    fn a_daemon_that_stops_well_keeps_everything_and_its_numbers_go_on() {
        // Beside the storms of other tests it would discard some of what it keeps.
        let _exclusive = Exclusive::take();
        let pod = Pod::new();
        let mut daemon = launch().start();
        pod.delete_gateway();
        daemon.wait_for_deletion(pod.inum(), GATEWAY);
        stop_and_account(&mut daemon);
        let emitted = daemon.events();
        let mut kept = kept(&daemon);
        // A query answers in the order of times, which differs where an event waited for a name.
        kept.sort_by_key(|event| event.number("/seq"));
        assert_eq!(numbers(&kept), numbers(&emitted));
        for (kept, emitted) in kept.iter().zip(&emitted) {
            assert_eq!(kept.to_string(), emitted.to_string());
        }
        let mut again = launch().on_state_of(&daemon).start();
        let first = again.wait_for("the gap", |event| event.text("/lost/source") == "daemon");
        assert_eq!(first.number("/seq"), emitted.last().and_then(|event| Some(event.number("/seq")? + 1)));
        stop_and_account(again);
    }

    #[test]
    fn a_daemon_that_is_killed_in_a_storm_loses_its_last_second_at_most() {
        // The daemons of other tests would discard events of such a storm.
        let _exclusive = Exclusive::take();
        let pod = Pod::new();
        let mut daemon = launch().config(WITHOUT_BUDGETS).start();
        let storm = Storm::of(&pod, 0..20);
        let size = || daemon.metrics().count("kevtmon_store_bytes", &[]);
        eventually!(size() > 1_000_000.0, "the store fills");
        daemon.signal(Signal::SIGKILL);
        drop(storm);
        daemon.wait();
        let emitted = daemon.wait_for_end_of_output();
        let last = numbers(&kept(&daemon)).into_iter().max().unwrap_or_default();
        assert!(last > 0, "something was kept");
        // A commit a second: what is missing is younger than that, and less time for the kill itself.
        let end = emitted.last().map_or(0.0, Event::seconds);
        let missing: Vec<_> = emitted.iter().filter(|event| event.number("/seq") > Some(last)).collect();
        assert!(missing.iter().all(|event| event.seconds() > end - 2.0), "{last} of {end}");

        let mut again = launch().on_state_of(&daemon).start();
        let lost = again.wait_for("the gap", |event| event.text("/lost/source") == "daemon");
        lost.expect("/kind", "events.lost");
        lost.expect("/lost/reason", "restart");
        lost.expect("/lost/count", "unknown");
        assert!(lost.text("/lost/from") < lost.text("/lost/to"), "{lost}");
        let newest = emitted.iter().filter_map(|event| event.number("/seq")).max();
        assert!(lost.number("/seq") > newest, "no number is used twice: {lost}");
        pod.delete_gateway();
        again.wait_for_deletion(pod.inum(), GATEWAY);
        stop_and_account(again);
    }

    #[test]
    fn the_size_limits_hold_in_a_storm() {
        const CHUNK: u32 = 1_000;
        const CHUNKS: u32 = 30;
        // Other tests would miss what a storm of this size makes the kernel lose.
        let _exclusive = Exclusive::take();
        let pod = Pod::new();
        let config = format!("{WITHOUT_BUDGETS}[store]\nmax_mib = 8\n[recorder]\nmax_mib = 4\n");
        let daemon = launch().config(&config).start();
        let emitted = || daemon.metrics().count("kevtmon_events_total", &[("kind", "neighbor.deleted")]);
        let (mut store, mut recorder) = (0, 0);
        for chunk in 1..=CHUNKS {
            storm(&pod, 0..CHUNK);
            eventually!(
                {
                    store = store.max(bytes(&daemon.state(), "events.db"));
                    recorder = recorder.max(bytes(&daemon.state().join("recorder"), ""));
                    emitted() >= f64::from(chunk * CHUNK)
                },
                "all of {chunk} chunks is emitted"
            );
        }
        assert!(store <= 8 << 20, "{store} bytes of the store");
        assert!(recorder <= 4 << 20, "{recorder} bytes of the recorder");
        assert!(store > 4 << 20 && recorder > 0, "no storm: {store} and {recorder} bytes");
        assert!(daemon.metrics().sum("kevtmon_store_bytes", &[]).is_some_and(|bytes| bytes > 0.0));
        assert_eq!(daemon.metrics().count("kevtmon_store_errors_total", &[]), 0.0);
        stop_and_account(daemon);
    }
}
