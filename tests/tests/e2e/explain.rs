//! `kevtmon explain`: lines as the kubelet logs them, of a mount that is really busy and a gateway that is really gone.

use std::process::Command;

use kevtmon_tests::advice::opened;
use kevtmon_tests::daemon::{Daemon, launch, program};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::mount::Mount;
use kevtmon_tests::pod::Pod;
use kevtmon_tests::pod_sandbox::PodSandbox;
use kevtmon_tests::process::{Finished, attempt_with_input, hold_by_cwd};
use nix::sys::signal::Signal;

/// Exit code where nothing is known.
const NOTHING: i32 = 1;

/// What the kubelet says of a volume that it cannot unmount.
fn teardown_failed(uid: &str, path: &str) -> String {
    format!(
        "E1208 09:05:01.000000    1234 nestedpendingoperations.go:335] Operation for \"{{volumeName:kubernetes.io/rbd/{uid}-data \
         podName:{uid} nodeName:}}\" failed. No retries permitted until 2026-12-08 09:05:01.5 (durationBeforeRetry 500ms). Error: \
         \"UnmountVolume.TearDown failed for volume \\\"data\\\" pod \\\"{uid}\\\" (UID: \\\"{uid}\\\") : Unmount failed: exit status 32\\n\
         Unmounting arguments: {path}\\nOutput: umount: {path}: target is busy.\\n\""
    )
}

/// What it says of a pod that does not answer.
fn probe_failed(uid: &str) -> String {
    format!(
        "Dec 08 09:05:01 node kubelet[1234]: I1208 09:05:01.000000    1234 prober.go:107] \"Probe failed\" probeType=\"Readiness\" \
         podUID=\"{uid}\" output=\"dial tcp: connect: no route to host\""
    )
}

/// The pod that a volume is of: ROOT/pods/UID/volumes/PLUGIN/NAME.
fn uid_of(volume: &Mount) -> &str {
    let directory = volume.point().ancestors().nth(3).and_then(|directory| directory.file_name());
    directory.and_then(|uid| uid.to_str()).expect("the uid of a pod")
}

/// The answer on lines that come by standard input.
fn explain(daemon: &Daemon, lines: impl AsRef<[u8]>) -> Finished {
    let mut command = Command::new(program());
    command.args(["explain", "-", "--socket"]).arg(daemon.socket()).arg("--state-dir").arg(daemon.state());
    attempt_with_input(&mut command, lines)
}

/// The one answer on a line.
fn explained(answers: Vec<Event>) -> Event {
    let [answer] = <[Event; 1]>::try_from(answers).unwrap_or_else(|all| panic!("one answer: {all:?}"));
    answer
}

#[test]
fn the_culprit_behind_a_line_of_the_kubelet_is_named_with_and_without_a_daemon() {
    let volume = Mount::volume();
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    let mut daemon = launch().kubelet(&volume).start();
    let holder = hold_by_cwd(volume.point());
    let _ = volume.umount_refused();
    let path = volume.point().to_string_lossy().into_owned();
    let busy = opened(&mut daemon, "volume-busy", |event| event.text("/mount/path") == path);
    let _ = pod.delete_gateway();
    let lost = daemon.wait_for_incident(sandbox.id()).text("/incident/id").to_owned();

    let (volume_line, gateway_line) = (teardown_failed(uid_of(&volume), &path), probe_failed(sandbox.uid()));
    // `ip` is a tool: this test is who used it.
    let [held, deleted] = [holder.pid(), std::process::id()].map(|pid| format!("(pid {pid})"));
    let culprits = [(&volume_line, &busy, &held), (&gateway_line, &lost, &deleted)];
    let names = |answers: Vec<Event>, id: &str, culprit: &str| {
        let answer = explained(answers);
        assert_eq!(answer.text("/incident/id"), id, "{answer}");
        answer.text("/incident/summary").contains(culprit)
    };
    for (line, id, culprit) in culprits {
        let answers = || daemon.find(&["explain", line]);
        eventually!(names(answers(), id, culprit), "{culprit} is named");
        let stored = || daemon.find_committed(&["explain", line]);
        eventually!(names(stored(), id, culprit), "{culprit} is named by the store");
    }
    let answer = explained(daemon.find(&["explain", &volume_line]));
    answer.expect("/form", "teardown-failed");
    answer.expect("/about/0/name", path.as_str());
    answer.expect("/commands/0", format!("kevtmon why {busy}"));
    assert!(!answer.list("/incident/advice").is_empty(), "{answer}");

    // A page, in which one line stands twice and another one is unknown.
    let page = format!("{volume_line}\n{gateway_line}\nall is well\n{volume_line}\n");
    let ran = explain(&daemon, &page).succeeded("explain");
    let text = ran.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in ["line 1, 2 times: teardown-failed", "line 2: probe-failed", &held, &deleted] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(ran.stderr.contains("kevtmon: no line that kevtmon knows: 1 of 4\n"), "{}", ran.stderr);

    daemon.signal(Signal::SIGKILL);
    assert_eq!(daemon.wait(), None);
    for (line, id, culprit) in culprits {
        let answer = explained(daemon.find(&["explain", line]));
        answer.expect("/incident/id", id.as_str());
        answer.expect("/incident/stale/reason", "no daemon answers");
        assert!(answer.text("/incident/summary").contains(culprit), "{answer}");
    }
}

#[test]
fn a_line_about_a_pod_is_not_explained_by_what_that_pod_holds() {
    let volume = Mount::volume();
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    let mut daemon = launch().kubelet(&volume).start();
    let holder = hold_by_cwd(volume.point());
    sandbox.take(holder.pid());
    let _ = volume.umount_refused();
    let path = volume.point().to_string_lossy().into_owned();
    let _ = opened(&mut daemon, "volume-busy", |event| event.text("/mount/path") == path);
    let own = path.replace(uid_of(&volume), sandbox.uid());
    let answer = explained(daemon.find(&["explain", &teardown_failed(sandbox.uid(), &own)]));
    assert!(!answer.has("/incident") && answer.has("/possible"), "{answer}");
}

#[test]
fn hostile_lines_are_counted_or_quoted_and_break_nothing() {
    let daemon = launch().start();
    let uid = "5c948341-c030-4996-b888-f032577d97b0";
    let mut page = vec![b'x'; 1 << 20];
    page.extend_from_slice(b"\n\0\x07\xff\xfe\n");
    page.extend_from_slice(
        format!("{}\x1b[2J\u{202e}\x07\n", teardown_failed(uid, "/mnt/\x1b]0;x\x07")).as_bytes(),
    );
    page.extend_from_slice(b"{\"log\":\"\xff umount: /mnt/$HOME: target is busy\\n\"}\n");
    page.extend_from_slice("\"/pod \\\"".repeat(1 << 18).as_bytes());
    let ran = explain(&daemon, &page).succeeded("explain");
    let steers = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
    assert!(!ran.stdout.contains(steers) && !ran.stderr.contains(steers), "{:?}", ran.stdout);
    assert!(ran.stdout.contains("teardown-failed") && ran.stdout.contains("'/mnt/$HOME'"), "{}", ran.stdout);
    assert!(ran.stderr.contains("no line that kevtmon knows: 3 of 5"), "{}", ran.stderr);

    let ran = explain(&daemon, "all is well\n");
    assert_eq!((ran.status.code(), ran.stdout.as_str()), (Some(NOTHING), ""));
    assert_eq!(ran.stderr, "kevtmon: no line that kevtmon knows: 1 of 1\n");
}
