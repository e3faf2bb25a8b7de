//! The query commands: with a running daemon, on the files of a dead one, and where nothing is found.

use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::pod_sandbox::PodSandbox;
use kevtmon_tests::process::{Finished, attempt};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Exit codes of the commands that read.
const NOTHING: i32 = 1;
const NO_ANSWER: i32 = 2;

/// A pod whose gateway is lost, and the daemon that reported it.
fn pod_with_incident() -> (Pod, PodSandbox, Daemon, Event) {
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    let mut daemon = launch().start();
    pod.delete_gateway();
    let opened = daemon.wait_for("incident.opened", |event| {
        event.kind() == "incident.opened" && event.text("/target/container/id") == sandbox.id()
    });
    (pod, sandbox, daemon, opened)
}

fn kill(daemon: &mut Daemon) {
    daemon.signal(Signal::SIGKILL);
    assert_eq!(daemon.wait(), None);
}

#[track_caller]
fn expect(ran: &Finished, code: i32, words: &[&str]) {
    assert_eq!(ran.status.code(), Some(code), "{}{}", ran.stdout, ran.stderr);
    for word in words {
        assert!(ran.stderr.contains(word), "{word} in {}", ran.stderr);
    }
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
}

/// Panics unless it was answered from the files of the daemon, with a remark about that.
#[track_caller]
fn expect_left(ran: &Finished, code: i32, daemon: &Daemon) {
    let (socket, state) = (daemon.socket(), daemon.state());
    let (socket, state) = (socket.to_string_lossy(), state.to_string_lossy());
    expect(ran, code, &["no daemon listens on", &socket, "reading its files in", &state]);
}

#[test]
fn a_dead_daemon_has_left_what_a_live_one_answers() {
    let (_pod, sandbox, mut daemon, opened) = pod_with_incident();
    let (id, uid) = (&sandbox.id()[..12], sandbox.uid());
    let narrow = ["--kind", "gateway-neighbor-lost", "--pod", uid, "--severity", "warning"];
    let narrow = [&["incidents", "--json"][..], &narrow].concat();
    let questions: [&[&str]; 5] = [
        &narrow,
        &["events", "--json", "--container", id],
        &["events", "--json", "--pod", uid, "--kind", "incident.", "--since", "1h", "--severity", "warning"],
        &["events", "--container", id, "--limit", "1"],
        &["incidents", "--json", "--all"],
    ];
    let about_it = |ran: &Finished| -> Vec<String> {
        ran.stdout.lines().filter(|line| line.contains(sandbox.id())).map(str::to_owned).collect()
    };
    let live = questions.map(|question| daemon.ask(question).succeeded("a question to a live daemon"));
    for ran in &live {
        assert_eq!(ran.stderr, "");
    }
    assert_eq!(about_it(&live[0]).len(), 1, "{}", live[0].stdout);
    for other in [["--kind", "volume-busy"], ["--pod", "nowhere/nothing"]] {
        let ran = daemon.ask(&["incidents", "--json", other[0], other[1]]);
        assert_eq!(about_it(&ran), [""; 0], "{other:?}");
    }
    let why = daemon.ask(&["why", "--json", id]).succeeded("why");
    kill(&mut daemon);

    for (question, live) in questions.into_iter().zip(&live) {
        let dead = daemon.ask(question);
        expect_left(&dead, 0, &daemon);
        assert_eq!(about_it(&dead), about_it(live), "{question:?}");
    }
    let emitted = daemon.find(&["events", "--container", id]);
    assert!(emitted.iter().any(|event| event.to_string() == opened.to_string()), "{opened}");
    assert!(emitted.iter().any(|event| event.kind() == "neighbor.deleted"), "{opened}");

    let dead = daemon.ask(&["why", "--json", id]);
    expect_left(&dead, 0, &daemon);
    let [before, after] =
        [why, dead].map(|ran| Event::parse(&ran.stdout).unwrap_or_else(|bad| panic!("{bad}")));
    for pointer in ["/verdict/sentence", "/verdict/since", "/incidents/0/id"] {
        assert!(before.has(pointer), "{pointer} in {before}");
        assert_eq!(before.get(pointer), after.get(pointer), "{pointer}");
    }
    after.expect("/incidents/0/id", opened.text("/incident/id"));
    let blind = daemon.ask(&["why", uid]);
    expect_left(&blind, 0, &daemon);
    assert!(blind.stdout.contains("no daemon runs: nothing after"), "{}", blind.stdout);
}

#[test]
fn a_dead_daemon_leaves_the_state_of_the_node_as_it_was_recorded_last() {
    let mut daemon = launch().start();
    assert!(daemon.ask(&["state"]).succeeded("state").stdout.contains("hook.neighbor"));
    let live: Value = daemon.ask(&["state", "--json"]).succeeded("state").stdout.parse().expect("JSON");
    daemon.stop();
    let ran = daemon.ask(&["state"]);
    expect_left(&ran, 0, &daemon);
    assert!(ran.stdout.contains("hook.neighbor"), "{}", ran.stdout);
    let ran = daemon.ask(&["state", "--json"]);
    expect_left(&ran, 0, &daemon);
    let left: Value = ran.stdout.parse().expect("JSON");
    for same in ["node", "boot_id", "version", "ready", "sources"] {
        assert_eq!(left[same], live[same], "{same}");
    }
}

#[test]
fn a_dead_daemon_is_not_followed() {
    let mut daemon = launch().start();
    daemon.stop();
    let ran = daemon.ask(&["events", "--follow"]);
    expect_left(&ran, NO_ANSWER, &daemon);
    expect(&ran, NO_ANSWER, &["--follow needs a running daemon"]);
}

#[test]
fn where_nothing_is_found_it_is_said_where_it_was_looked() {
    let mut daemon = launch().start();
    let questions: [&[&str]; 4] = [
        &["why", "203.0.113.7"],
        &["why", "/var/lib/kubelet/pods/nowhere", "--json"],
        &["events", "--pod", "nowhere/nothing"],
        &["events", "--json", "--until", "2001-01-01T00:00:00Z"],
    ];
    let (socket, state) = (daemon.socket(), daemon.state());
    for question in questions {
        let ran = daemon.ask(question);
        expect(&ran, NOTHING, &["queried the daemon at", &socket.to_string_lossy(), "reaches back to"]);
        assert_eq!(ran.stdout, "");
    }
    daemon.stop();
    for question in questions {
        let ran = daemon.ask(question);
        expect_left(&ran, NOTHING, &daemon);
        expect(&ran, NOTHING, &["searched the event store in", &state.to_string_lossy(), "reaches back to"]);
        assert_eq!(ran.stdout, "");
    }
}

#[test]
fn a_word_that_means_several_things_lists_words_that_mean_one() {
    let (first, second) = (Pod::new(), Pod::new());
    let mut daemon = launch().start();
    for pod in [&first, &second] {
        pod.delete_gateway();
        daemon.wait_for_deletion(pod.inum(), GATEWAY);
    }
    for alive in [true, false] {
        if !alive {
            daemon.stop();
        }
        let ran = daemon.ask(&["why", "eth0"]);
        expect(&ran, NO_ANSWER, &["eth0 is ambiguous"]);
        assert_eq!(ran.stdout, "");
        for pod in [&first, &second] {
            let start = format!("interface:{}/", pod.inum());
            let mut words = ran.stderr.split_whitespace();
            let handle = words.find(|word| word.starts_with(&start));
            let handle = handle.unwrap_or_else(|| panic!("{start} in {}", ran.stderr));
            let story = daemon.ask(&["why", handle]);
            expect(&story, 0, &[]);
            assert!(story.stdout.contains("deleted by ip"), "{}", story.stdout);
        }
        let ran = daemon.ask(&["why", "--json", "eth0"]);
        expect(&ran, NO_ANSWER, &["eth0 is ambiguous"]);
        let listed = Event::parse(&ran.stdout).unwrap_or_else(|bad| panic!("{bad}"));
        assert!(listed.list("/candidates").len() >= 2, "{listed}");
    }
}

#[test]
fn where_there_is_neither_daemon_nor_store_both_are_named() {
    let scratch = Scratch::new();
    let place = scratch.path().to_string_lossy();
    let (socket, state) = (format!("{place}/kevtmon.sock"), format!("{place}/state"));
    let program = kevtmon_tests::daemon::program();
    for question in [&["events"][..], &["incidents"], &["why", "eth0"], &["state"]] {
        let mut words = vec![program.as_os_str()];
        let places = ["--socket", &socket, "--state-dir", &state];
        words.extend(question.iter().chain(&places).map(AsRef::<std::ffi::OsStr>::as_ref));
        let ran = attempt(&words);
        expect(&ran, NO_ANSWER, &[&socket, &state]);
        assert_eq!(ran.stdout, "");
    }
    assert!(!scratch.path().join("state").exists(), "a question makes no files");
}

#[test]
fn a_question_that_is_wrong_is_reported_from_one_without_answer() {
    let daemon = launch().start();
    for (question, code, words) in [
        (&["events", "--since", "yesterday"][..], NO_ANSWER, &["--since", "yesterday"][..]),
        (&["events", "--limit", "0"], NO_ANSWER, &["--limit"]),
        (&["events", "--severity", "terrible"], NO_ANSWER, &["--severity", "critical"]),
        (&["events", "--kind", "volume-busy"], NO_ANSWER, &["incidents --kind volume-busy"]),
        (&["incidents", "--kind", "mount.busy"], NO_ANSWER, &["--kind", "volume-busy"]),
        (&["why", ""], NO_ANSWER, &["name a pod"]),
        (&["events", "--seq", "7"], 64, &["--seq"]),
    ] {
        let ran = daemon.ask(question);
        expect(&ran, code, words);
        assert_eq!(ran.stdout, "");
    }
}
