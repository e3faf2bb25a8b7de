//! Who calls umount: many callers of one mount, one by way of `nsenter`, and one whose namespace ends with the call.

use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use kevtmon_tests::daemon::launch;
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::mount::{Mount, Scratch, is_about, shell, wait_for};
use kevtmon_tests::process::{Running, attempt, comm, finish, hold_by_cwd, write_script};
use nix::sys::signal::Signal;

/// The parent of who unmounted, and the attempts.
fn story(event: &Event) -> (Option<u64>, Option<u64>) {
    (event.number("/actor/ancestors/0/pid"), event.number("/mount/attempts"))
}

#[test]
fn eight_callers_of_a_mount_are_told_apart_and_the_others_share_one_story() {
    let mount = Mount::new();
    let mut daemon = launch().start();
    let culprit = hold_by_cwd(mount.point());
    let caller = || u64::from(shell("umount \"$1\" 2>/dev/null; true", &mount).pid);
    let callers: Vec<u64> = (0..12).map(|_| caller()).collect();
    let last = (callers.last().copied(), Some(4));
    daemon.wait_for("the last story", |event| {
        is_about(event, "mount.busy", mount.point()) && story(event) == last
    });
    let events = daemon.mount_fence();
    let busy = events.iter().filter(|event| is_about(event, "mount.busy", mount.point()));
    let stories: Vec<_> = busy.filter(|event| !event.has("/completes")).map(story).collect();
    let first = callers[..8].iter().map(|caller| (*caller, 1));
    let shared = [(callers[8], 1), (callers[9], 2), (callers[11], 4)];
    let expected: Vec<_> = first.chain(shared).map(|(pid, attempts)| (Some(pid), Some(attempts))).collect();
    assert_eq!(stories, expected);
    drop(culprit);
}

#[test]
fn who_unmounts_in_the_namespace_of_another_by_nsenter_is_named_and_not_the_tool_alone() {
    let (mount, scratch) = (Mount::new(), Scratch::new());
    let kubelet = scratch.path().join("kubelet");
    write_script(&kubelet, "#!/bin/sh\nnsenter --target \"$1\" --mount umount \"$2\"\nexit 0\n");
    let script = "cd \"$1\" && exec sleep 1000000";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]).arg(mount.point());
    let inside = Running::spawn(&mut command);
    eventually!(comm(inside.pid()).as_deref() == Some("sleep"), "it is in its namespace");
    let mut daemon = launch().start();
    let mut command = Command::new(&kubelet);
    command.arg(inside.pid().to_string()).arg(mount.point()).stdin(Stdio::null());
    let caller = finish(&mut command, "kubelet".as_ref());
    assert!(caller.stderr.contains("busy"), "{}", caller.stderr);
    let busy = wait_for(&mut daemon, "mount.busy", mount.point());
    let pid = busy.number("/actor/pid").expect("a pid");
    // `nsenter` was executed between the fork and `umount`: that the kernel does not know.
    let named = format!("umount (pid {pid}), a child of kubelet (pid {})", caller.pid);
    assert!(busy.text("/message").contains(&named), "{named} in {busy}");
    busy.expect("/actor/comm", "umount");
    busy.expect("/holders/0/pid", inside.pid());
    // Where the mount is another one than on the host.
    let namespace = std::fs::metadata(format!("/proc/{}/ns/mnt", inside.pid())).expect("a namespace");
    busy.expect("/mount/mntns", namespace.ino());
}

#[test]
fn where_no_process_is_left_in_the_namespace_of_the_call_the_answer_is_incomplete() {
    let mount = Mount::new();
    let below = mount.point().join("below");
    std::fs::create_dir(&below).expect("a directory can be made");
    let child = Mount::at(&below);
    let mut daemon = launch().start();
    daemon.signal(Signal::SIGSTOP);
    // Its namespace ends with the call.
    let through = ["unshare", "--mount", "--propagation", "private", "umount"].map(AsRef::as_ref);
    let refused = attempt(&[&through[..], &[mount.point().as_os_str()]].concat());
    daemon.signal(Signal::SIGCONT);
    assert!(!refused.status.success());
    let busy = daemon.wait_for_holders("the refusal", |event| {
        event.kind() == "mount.busy" && event.number("/actor/pid") == Some(refused.pid.into())
    });
    busy.expect("/holders_verdict", "incomplete");
    busy.expect("/holders_complete", false);
    let reason = busy.text("/holders_unreadable/0/reason");
    // The kernel gives the number of a namespace that has ended to the next one.
    let reasons =
        ["no process in its mount namespace has ", "/ is on another mount now than it was for the caller"];
    assert!(reasons.iter().any(|known| reason.contains(known)), "{busy}");
    assert!(!busy.has("/mount/device") && busy.list("/holders").is_empty(), "{busy}");
    drop(child);
}
