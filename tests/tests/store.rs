//! The event store: what a killed daemon leaves, how much disk a storm takes, and what broken disks cost.

#![allow(clippy::expect_used, reason = "a test that cannot prepare its stage must fail")]

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use kevtmon_tests::daemon::{Daemon, Launch, launch, program};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::process::attempt;
use kevtmon_tests::quiet::Quiet;
use kevtmon_tests::unique;
use nix::sys::signal::Signal;

/// Another daemon on the state directory of one that has ended.
fn on_state_of(before: &Daemon) -> Launch {
    let launch = launch();
    symlink(before.directory().join("state"), launch.directory().join("state")).expect("a link can be made");
    launch
}

/// What a query finds where no daemon runs.
fn kept(state: &Path, since: &str) -> Vec<Event> {
    let program = program();
    let words =
        ["events", "--json", "--since", since, "--socket", "/nonexistent/kevtmon.sock", "--state-dir"];
    let mut command = vec![program.as_os_str()];
    command.extend(words.iter().map(|word| std::ffi::OsStr::new(*word)));
    command.push(state.as_os_str());
    let ran = attempt(&command);
    assert!(ran.status.success(), "{}", ran.stderr);
    ran.stdout.lines().map(|line| Event::parse(line).expect("an event")).collect()
}

fn numbers(events: &[Event]) -> Vec<u64> {
    events.iter().filter_map(|event| event.number("/seq")).collect()
}

/// Entries that appear and go, each with an address of its own.
fn storm(pod: &Pod, entries: u32) {
    let lines: String = (0..entries)
        .map(|entry| {
            let address = format!("10.77.{}.{}", entry / 250, entry % 250 + 1);
            let add = format!("neigh replace {address} lladdr 02:00:00:00:00:0f dev eth0 nud permanent");
            format!("{add}\nneigh del {address} dev eth0\n")
        })
        .collect();
    pod.place().ip_batch(&lines);
}

/// Ends a thread even when the test fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_daemon_that_is_killed_in_a_storm_loses_its_last_second_at_most() {
    let pod = Pod::new();
    let mut daemon = launch().start();
    let killed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = SetOnDrop(&killed);
        scope.spawn(|| {
            while !killed.load(Ordering::Relaxed) {
                storm(&pod, 20);
            }
        });
        let size = || daemon.metrics().count("kevtmon_store_bytes", &[]);
        eventually!(size() > 1_000_000.0, "the store fills");
        daemon.signal(Signal::SIGKILL);
    });
    daemon.wait();
    let told = daemon.wait_for_end_of_output();
    let state = daemon.directory().join("state");
    let last = numbers(&kept(&state, "1h")).into_iter().max().unwrap_or_default();
    assert!(last > 0, "something was kept");
    // A commit a second: what is missing is younger than that, and less time for the kill itself.
    let end = told.last().map(|event| event.text("/time").to_owned()).unwrap_or_default();
    let second_before_end = seconds(&end) - 2.0;
    let missing: Vec<_> = told.iter().filter(|event| event.number("/seq") > Some(last)).collect();
    assert!(missing.iter().all(|event| seconds(event.text("/time")) > second_before_end), "{last} of {end}");

    let mut again = on_state_of(&daemon).start();
    let lost = again.wait_for("the gap", |event| event.text("/lost/source") == "daemon");
    lost.expect("/kind", "events.lost");
    lost.expect("/lost/reason", "restart");
    lost.expect("/lost/count", "unknown");
    assert!(lost.text("/lost/from") < lost.text("/lost/to"), "{lost}");
    let newest = told.iter().filter_map(|event| event.number("/seq")).max();
    assert!(lost.number("/seq") > newest, "no number is used twice: {lost}");
    pod.delete_gateway();
    again.wait_for_deletion(pod.inum(), GATEWAY);
}

/// Seconds of the day.
fn seconds(time: &str) -> f64 {
    let clock = time.split('T').nth(1).unwrap_or_default().trim_end_matches('Z');
    clock.split(':').filter_map(|part| part.parse::<f64>().ok()).fold(0.0, |sum, part| sum * 60.0 + part)
}

#[test]
fn a_daemon_that_stops_well_keeps_everything_and_its_numbers_go_on() {
    let pod = Pod::new();
    let mut daemon = launch().start();
    pod.delete_gateway();
    daemon.wait_for_deletion(pod.inum(), GATEWAY);
    daemon.stop();
    let told = daemon.wait_for_end_of_output();
    let state = daemon.directory().join("state");
    let mut kept = kept(&state, "1h");
    // A query answers in the order of times, which differs where an event waited for a name.
    kept.sort_by_key(|event| event.number("/seq"));
    assert_eq!(numbers(&kept), numbers(&told));
    for (kept, told) in kept.iter().zip(&told) {
        assert_eq!(kept.to_string(), told.to_string());
    }
    let mut again = on_state_of(&daemon).start();
    let first = again.wait_for("the gap", |event| event.text("/lost/source") == "daemon");
    assert_eq!(first.number("/seq"), told.last().and_then(|event| Some(event.number("/seq")? + 1)));
}

#[test]
fn the_size_limit_holds_in_a_storm() {
    // Other tests would miss what a storm of this size makes the kernel lose.
    let _quiet = Quiet::take();
    let pod = Pod::new();
    let daemon = launch().config("[store]\nmax_mib = 8\n").start();
    let state = daemon.directory().join("state");
    let size = || {
        let files = std::fs::read_dir(&state).expect("a state directory").filter_map(Result::ok);
        let store = files.filter(|file| file.file_name().to_string_lossy().starts_with("events.db"));
        store.filter_map(|file| Some(file.metadata().ok()?.len())).sum::<u64>()
    };
    let mut most = 0;
    let labels = [("kind", "neighbor.deleted")];
    std::thread::scope(|scope| {
        let stormy = scope.spawn(|| storm(&pod, 30_000));
        while !stormy.is_finished() {
            most = most.max(size());
            std::thread::yield_now();
        }
    });
    eventually!(daemon.metrics().count("kevtmon_events_total", &labels) >= 30_000.0, "all is told");
    assert!(most.max(size()) <= 8 << 20, "{most} bytes");
    assert!(daemon.metrics().sum("kevtmon_store_bytes", &[]).is_some_and(|bytes| bytes > 0.0));
    assert_eq!(daemon.metrics().count("kevtmon_store_errors_total", &[]), 0.0);
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
    assert_eq!(daemon.log().matches("another event store is used").count(), 1, "{}", daemon.log());
    let aside = std::fs::read_dir(&state).expect("a directory").filter_map(Result::ok);
    assert_eq!(
        aside.filter(|file| file.file_name().to_string_lossy().starts_with("events.db.corrupt-")).count(),
        1
    );
    daemon.stop();
    assert!(kept(&state, "1h").len() >= 2);
}

#[test]
fn without_a_usable_state_directory_only_the_store_is_missing() {
    let launch = launch();
    std::fs::write(launch.directory().join("state"), "").expect("a file can be made");
    let pod = Pod::new();
    let mut daemon = launch.start();
    let ready = daemon.wait_for("daemon.ready", |event| event.kind() == "daemon.ready");
    assert!(ready.has("/daemon/degraded/store"), "{ready}");
    daemon.wait_for("daemon.degraded", |event| event.kind() == "daemon.degraded");
    pod.delete_gateway();
    daemon.wait_for_deletion(pod.inum(), GATEWAY);
    assert_eq!(daemon.log().matches("no event store").count(), 1, "{}", daemon.log());
    let labels = [("sink", "store"), ("reason", "failed")];
    eventually!(daemon.metrics().count("kevtmon_events_discarded_total", &labels) > 0.0, "it is counted");
    assert_eq!(daemon.metrics().sum("kevtmon_source_up", &[("source", "store")]), Some(0.0));
}
