//! Mounts that are held by what no file of /proc shows: processes that end and wait for a file server meanwhile, and system calls
//! in progress.

use std::path::Path;
use std::process::{Command, Stdio};

use kevtmon_tests::actor::Actor;
use kevtmon_tests::daemon::{held, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::fuse::{Server, mount_halting, mount_halting_files};
use kevtmon_tests::mount::{Mount, Scratch, settle, wait_for};
use kevtmon_tests::process::Running;
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use serde_json::Value;

/// Lets whoever waits for a file server go on, also of a test that fails.
struct Resumed(Server);

impl Drop for Resumed {
    fn drop(&mut self) {
        self.0.resume();
    }
}

/// Where a thread waits in the kernel.
fn waits_in(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default()
}

/// Whether a process has no program any more, and waits for a FUSE server.
fn is_ending(pid: u32) -> bool {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe"));
    exe.is_err() && waits_in(pid).starts_with("request_wait_answer")
}

/// Why a process was not read, by an answer.
fn why_unread(answer: &Value, pid: u32) -> String {
    let unread = answer["holders_unreadable"].as_array().cloned().unwrap_or_default();
    let reason = unread.iter().find(|unread| unread["pid"] == pid).map(|unread| unread["reason"].clone());
    reason.and_then(|reason| reason.as_str().map(str::to_owned)).unwrap_or_default()
}

/// How a process may hold a mount, by an answer.
fn may_hold(answer: &Value, pid: u32) -> Vec<Value> {
    let holders = answer["holders"].as_array().cloned().unwrap_or_default();
    let of_it = holders.into_iter().filter(|holder| holder["pid"] == pid);
    of_it.map(|holder| serde_json::json!([holder["access"], holder["possible"]])).collect()
}

fn whole(event: &Event) -> &Value {
    event.get("").expect("an event")
}

fn refuse(point: &Path) {
    settle(point.parent().expect("a directory above"));
    assert_eq!(umount2(point, MntFlags::UMOUNT_NOFOLLOW), Err(Errno::EBUSY), "{}", point.display());
}

#[test]
fn who_ends_and_waits_for_a_file_server_meanwhile_holds_what_he_had() {
    let scratch = Scratch::new();
    let served = scratch.path().join("served");
    let server = mount_halting_files(&served);
    let [opened, entered] = ["opened", "entered"].map(|name| Mount::at(&scratch.path().join(name)));
    let mut daemon = launch().start();
    let [mut by_file, mut by_directory] = [Actor::start(), Actor::start()];
    let resumed = Resumed(server.clone());
    for actor in [&mut by_file, &mut by_directory] {
        // With a lower descriptor it is closed before the other file.
        actor.act(&format!("read {}", served.join("file").display()));
    }
    by_file.act(&format!("open {}", opened.point().join("held").display()));
    by_directory.act(&format!("cd {}", entered.point().display()));
    server.halt();
    for actor in [&mut by_file, &mut by_directory] {
        actor.leave();
        eventually!(is_ending(actor.pid()), "{} waits in {}", actor.pid(), waits_in(actor.pid()));
    }

    for mount in [&opened, &entered] {
        refuse(mount.point());
    }
    let busy = wait_for(&mut daemon, "mount.busy", entered.point());
    busy.expect("/holders_verdict", "processes");
    let named = may_hold(whole(&busy), by_directory.pid());
    assert_eq!(named, [serde_json::json!(["cwd", null])], "{busy}");
    let busy = wait_for(&mut daemon, "mount.busy", opened.point());
    busy.expect("/holders_verdict", "incomplete");
    busy.expect("/holders_complete", false);
    assert!(why_unread(whole(&busy), by_file.pid()).starts_with("a thread is exiting"), "{busy}");
    let answer = held(opened.point());
    assert!(why_unread(&answer, by_file.pid()).starts_with("a thread is exiting"), "{answer}");

    drop(resumed);
    for mount in [&opened, &entered] {
        eventually!(mount.umount().status.success(), "{} is held by nobody", mount.point().display());
    }
}

#[test]
fn who_waits_for_a_file_server_in_a_system_call_may_hold_its_mount() {
    let scratch = Scratch::new();
    let served = scratch.path().join("served");
    let server = mount_halting(&served);
    let mut daemon = launch().start();
    server.halt();
    let mut command = Command::new("stat");
    let waiting =
        Running::spawn(command.arg(served.join("name")).stdout(Stdio::null()).stderr(Stdio::null()));
    let resumed = Resumed(server.clone());
    eventually!(server.asked_in_vain() > 0, "{} waits in {}", waiting.pid(), waits_in(waiting.pid()));
    refuse(&served);
    let busy = wait_for(&mut daemon, "mount.busy", &served);
    busy.expect("/holders_verdict", "incomplete");
    busy.expect("/holders_complete", false);
    let possibly = [serde_json::json!(["call", true])];
    assert_eq!(may_hold(whole(&busy), waiting.pid()), possibly, "{busy}");
    assert!(why_unread(whole(&busy), waiting.pid()).contains("waits for FUSE"), "{busy}");
    assert!(busy.text("/message").contains("possibly it is held by "), "{busy}");
    assert_eq!(may_hold(&held(&served), waiting.pid()), possibly);
    drop(resumed);
    drop(waiting);
    eventually!(umount2(&served, MntFlags::UMOUNT_NOFOLLOW).is_ok(), "nobody holds it");
}

#[test]
fn who_opens_a_named_pipe_that_nobody_else_opens_may_hold_its_mount() {
    let mount = Mount::new();
    let pipe = mount.point().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("it can be made");
    let mut daemon = launch().start();
    let opening = Running::spawn(Command::new("cat").arg(&pipe).stdout(Stdio::null()));
    let waits = ["wait_for_partner", "fifo_open", "pipe_wait"];
    let is_opening = || waits.contains(&waits_in(opening.pid()).trim_end());
    eventually!(is_opening(), "{} waits in {}", opening.pid(), waits_in(opening.pid()));
    refuse(mount.point());
    let busy = wait_for(&mut daemon, "mount.busy", mount.point());
    busy.expect("/holders_verdict", "incomplete");
    assert_eq!(may_hold(whole(&busy), opening.pid()), [serde_json::json!(["call", true])], "{busy}");
    drop(opening);
    eventually!(mount.umount().status.success(), "nobody holds it");
}

/// How an actor that did this with a file of a mount is named as what may hold it.
fn named_after(act: &str) -> (Event, Value) {
    let mount = Mount::new();
    let mut daemon = launch().start();
    let mut actor = Actor::start();
    actor.act(&format!("{act} {}", mount.point().join("kept").display()));
    refuse(mount.point());
    let busy = wait_for(&mut daemon, "mount.busy", mount.point());
    busy.expect("/holders_verdict", "incomplete");
    busy.expect("/holders_complete", false);
    let named = may_hold(whole(&busy), actor.pid());
    assert_eq!(may_hold(&held(mount.point()), actor.pid()), named, "{busy}");
    drop(actor);
    eventually!(mount.umount().status.success(), "nobody holds it");
    (busy, Value::Array(named))
}

#[test]
fn who_has_a_probe_in_a_file_may_hold_its_mount() {
    if !Path::new("/sys/bus/event_source/devices/uprobe").exists() {
        println!("this kernel has no probes in files by perf events");
        return;
    }
    let (busy, named) = named_after("probe");
    assert_eq!(named, serde_json::json!([["perf-event", true]]), "{busy}");
}

/// What may be held on any mount leaves in doubt who holds those of others.
mod alone {
    use super::*;

    #[test]
    fn who_has_mapped_a_ring_that_is_closed_may_hold_the_mount_of_its_files() {
        let (busy, named) = named_after("register-mapped");
        assert_eq!(named, serde_json::json!([["io-uring", true]]), "{busy}");
    }
}
