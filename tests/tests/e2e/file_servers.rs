//! Busy mounts of FUSE whose server is stopped, has died, or never answered anything: who holds them is told all the same, and
//! what their server does.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kevtmon_tests::actor::Actor;
use kevtmon_tests::advice::{incident, opened, resolved};
use kevtmon_tests::daemon::{Daemon, held, kubelet_roots, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::fuse::mount_unserved;
use kevtmon_tests::mount::{Scratch, is_about, settle, wait_for};
use kevtmon_tests::pod_sandbox::uuid;
use kevtmon_tests::process::{Running, hold_by_cwd};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// A file system whose server is a process of its own.
fn served(point: &Path) -> Actor {
    let mut server = Actor::start();
    server.act(&format!("serve {}", point.display()));
    server
}

/// Whether the kernel shows whose a connection is.
fn is_shown(server: u32) -> bool {
    let infos = std::fs::read_dir(format!("/proc/{server}/fdinfo")).expect("it runs");
    let mut texts = infos.flatten().filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
    texts.any(|text| text.contains("fuse_connection"))
}

/// Tries to unmount by a call of this process: umount(8) would ask the server first.
fn refuse(point: &Path) {
    settle(point.parent().expect("a directory above"));
    assert_eq!(umount2(point, MntFlags::UMOUNT_NOFOLLOW), Err(Errno::EBUSY), "{}", point.display());
}

/// What the daemon tells of a refused unmount, and what is told without it.
fn answers(daemon: &mut Daemon, point: &Path) -> [Value; 2] {
    refuse(point);
    let busy = wait_for(daemon, "mount.busy", point);
    let alone = held(point);
    for answer in [busy.get("").expect("an event"), &alone] {
        let is_complete = answer["holders_complete"] == true;
        assert_eq!(answer["holders_unreadable"].is_null(), is_complete, "{answer}");
    }
    [busy.get("").expect("an event").clone(), alone]
}

/// How a process holds a mount or may hold it, by an answer.
fn held_by(answer: &Value, pid: u32) -> Vec<Value> {
    let holders = answer["holders"].as_array().cloned().unwrap_or_default();
    let of_it = holders.into_iter().filter(|holder| holder["pid"] == pid);
    of_it.map(|holder| json!([holder["access"], holder["possible"]])).collect()
}

/// The processes that serve it, each with what it does.
fn servers(answer: &Value) -> Vec<Value> {
    let servers = answer["mount"]["servers"].as_array().cloned().unwrap_or_default();
    servers.into_iter().map(|server| json!([server["pid"], server["state"]])).collect()
}

/// Who waits in the kernel for the answer of a FUSE server.
fn waiting_in(program: &str, path: &Path) -> Running {
    let mut command = Command::new(program);
    let waiting = Running::spawn(command.arg(path).stdout(Stdio::null()).stderr(Stdio::null()));
    let function = || std::fs::read_to_string(format!("/proc/{}/wchan", waiting.pid())).unwrap_or_default();
    let is_waiting =
        || ["request_wait_answer", "fuse_get_req"].iter().any(|name| function().starts_with(name));
    eventually!(is_waiting(), "{} waits in {}", waiting.pid(), function());
    waiting
}

/// Nobody is named for certain, and who waits is what may hold it.
fn expect_in_doubt(answer: &Value, waiting: u32) {
    assert_eq!(
        (&answer["holders_verdict"], &answer["holders_complete"]),
        (&json!("incomplete"), &json!(false))
    );
    assert_eq!(held_by(answer, waiting), [json!(["call", true])], "{answer}");
    let unread = answer["holders_unreadable"].as_array().cloned().unwrap_or_default();
    let reason =
        unread.iter().find(|unread| unread["pid"] == waiting).map(|unread| unread["reason"].to_string());
    assert!(reason.is_some_and(|reason| reason.contains("waits for FUSE")), "{answer}");
}

#[test]
fn who_is_in_a_mount_whose_file_server_is_stopped_is_named_and_the_server_told_stopped() {
    let scratch = Scratch::new();
    let point = scratch.path().join("served");
    let server = served(&point);
    let holder = hold_by_cwd(&point);
    let shown = is_shown(server.pid());
    let mut daemon = launch().start();
    server.stop();
    // Others that wait for it are in nobody's way.
    let waiting = waiting_in("stat", &point.join("name"));
    for answer in answers(&mut daemon, &point) {
        assert_eq!(held_by(&answer, holder.pid()), [json!(["cwd", null])], "{answer}");
        assert_eq!(answer["holders_verdict"], "processes", "{answer}");
        if shown {
            assert_eq!(servers(&answer), [json!([server.pid(), "stopped"])], "{answer}");
            assert_eq!(answer["mount"]["servers"][0]["confidence"], "certain", "{answer}");
        }
        assert!(answer["mount"]["unserved"].is_null(), "it is there: {answer}");
    }
    if shown {
        let stopped = format!("the file server of that mount, actor (pid {}), is stopped", server.pid());
        let said = wait_for(&mut daemon, "mount.busy", &point);
        assert!(said.sentence().ends_with(&stopped), "{said}");
    }
    assert_eq!(daemon.metrics().count("kevtmon_proc_readers_stuck", &[]), 0.0);
    server.signal(Signal::SIGCONT);
    drop((waiting, holder));
    eventually!(umount2(&point, MntFlags::UMOUNT_NOFOLLOW).is_ok(), "nobody holds it");
    daemon.wait_for("its end", |event| is_about(event, "mount.released", &point));
}

#[test]
fn where_only_who_waits_for_a_stopped_file_server_may_hold_its_mount_the_answer_is_not_complete() {
    let scratch = Scratch::new();
    let point = scratch.path().join("served");
    let server = served(&point);
    let shown = is_shown(server.pid());
    let mut daemon = launch().start();
    server.stop();
    let waiting = waiting_in("stat", &point.join("name"));
    for answer in answers(&mut daemon, &point) {
        expect_in_doubt(&answer, waiting.pid());
        if shown {
            assert_eq!(servers(&answer), [json!([server.pid(), "stopped"])], "{answer}");
        }
    }
    server.signal(Signal::SIGCONT);
    drop(waiting);
    eventually!(umount2(&point, MntFlags::UMOUNT_NOFOLLOW).is_ok(), "nobody holds it");
}

/// A place for a volume of a pod, and the root directory of its kubelet.
fn volume(scratch: &Scratch) -> (PathBuf, PathBuf) {
    let root = scratch.path().join("kubelet");
    (root.join(format!("pods/{}/volumes/kubernetes.io~glusterfs/web", uuid())), root)
}

#[test]
fn a_volume_whose_file_server_has_died_is_told_so_with_who_is_in_it() {
    let scratch = Scratch::new();
    let (point, root) = volume(&scratch);
    let server = served(&point);
    let shown = is_shown(server.pid());
    let holder = hold_by_cwd(&point);
    let mut daemon = launch().config(&kubelet_roots(&root)).start();
    drop(server);
    let error = || std::fs::metadata(&point).err().and_then(|error| error.raw_os_error());
    eventually!(error() == Some(libc::ENOTCONN), "its connection ends");
    for answer in answers(&mut daemon, &point) {
        assert_eq!(held_by(&answer, holder.pid()), [json!(["cwd", null])], "{answer}");
        assert_eq!(servers(&answer), [Value::Null; 0], "{answer}");
        // Where the kernel does not show whose a connection is, any other server may be that of this one.
        let is_told = answer["mount"]["unserved"] == true;
        assert!(is_told || !shown, "{answer}");
    }
    let gone = "no process found that serves it; its file server is likely gone (ENOTCONN)";
    let is_told = |event: &Event| event.sentence().ends_with(gone) || !shown;
    let busy = wait_for(&mut daemon, "mount.busy", &point);
    assert!(is_told(&busy), "{busy}");
    let id = opened(&mut daemon, "volume-busy", |event| event.text("/mount/path") == point.to_string_lossy());
    let open = incident(&daemon, &id);
    assert!(open.text("/summary").contains(gone) || !shown, "{open}");
    let text = daemon.ask(&["holders", &point.to_string_lossy()]).stdout;
    assert!(text.contains("its file server is likely gone (ENOTCONN)") || !shown, "{text}");
    drop(holder);
    eventually!(umount2(&point, MntFlags::UMOUNT_NOFOLLOW).is_ok(), "nobody holds it");
    resolved(&mut daemon, &id);
}

#[test]
fn of_a_file_system_whose_server_never_answered_who_has_it_open_is_named_and_who_waits_is_in_doubt() {
    let scratch = Scratch::new();
    let point = scratch.path().join("unanswered");
    let device = mount_unserved(&point);
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", device.as_raw_fd()));
    let shown = info.expect("a descriptor").contains("fuse_connection");
    let mut daemon = launch().start();
    let mut holder = Actor::start();
    holder.act(&format!("locate {}", point.display()));
    let is_unserved = |answer: &Value| {
        // The test itself has the device, and reads nothing of it.
        let expected = if shown { vec![json!([std::process::id(), "running"])] } else { Vec::new() };
        assert_eq!(servers(answer), expected, "{answer}");
        answer["mount"]["unserved"] == true
    };
    for answer in answers(&mut daemon, &point) {
        assert_eq!(held_by(&answer, holder.pid()), [json!(["fd", null])], "{answer}");
        assert!(!is_unserved(&answer), "it is there: {answer}");
    }
    drop(holder);
    let other = scratch.path().join("waited-for");
    let unanswering = mount_unserved(&other);
    let waiting = waiting_in("stat", &other);
    for answer in answers(&mut daemon, &other) {
        expect_in_doubt(&answer, waiting.pid());
        assert!(!is_unserved(&answer), "it is there: {answer}");
    }
    assert_eq!(daemon.metrics().count("kevtmon_proc_readers_stuck", &[]), 0.0);
    // With the device everybody is refused.
    drop((device, unanswering, waiting));
    for point in [point, other] {
        eventually!(umount2(&point, MntFlags::UMOUNT_NOFOLLOW).is_ok(), "nobody holds {}", point.display());
    }
}
