//! Which uses of a mount, and of its copies in other mount namespaces, refuse an unmount: each is compared with what the
//! kernel does.

use std::collections::BTreeSet;
use std::io::BufRead;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kevtmon_tests::actor::Actor;
use kevtmon_tests::daemon::{Daemon, held, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::mount::{Mount, Scratch, is_about, settle, wait_for};
use kevtmon_tests::process::{Running, run};
use kevtmon_tests::{eventually, kernel};
use serde_json::Value;

/// A mount on a shared one.
struct Volume {
    mount: Mount,
    _base: Mount,
    scratch: Scratch,
}

impl Volume {
    fn new() -> Self {
        let scratch = Scratch::new();
        let base = Mount::at(&scratch.path().join("base"));
        run(&format!("mount --make-shared {}", base.point().display()));
        let mount = Mount::at(&base.point().join("volume"));
        Self { mount, _base: base, scratch }
    }

    fn point(&self) -> &Path {
        self.mount.point()
    }
}

/// A process in a mount namespace of its own, into which mounts propagate like this, after it did so; `$1` is the mount.
fn copy(volume: &Volume, propagation: &str, script: &str) -> Running {
    let script = format!("{script}; echo ready; exec sleep 1000000");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", propagation, "sh", "-c", &script, "sh"]).arg(volume.point());
    let mut copy = Running::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()));
    let mut said = String::new();
    let output = copy.child().stdout.take().expect("a pipe");
    std::io::BufReader::new(output).read_line(&mut said).expect("it says it is ready");
    assert_eq!(said, "ready\n", "{propagation}: {script}");
    copy
}

/// Who is said to hold it for certain, and how.
fn users(holders: &[Value]) -> BTreeSet<(u64, String)> {
    let users = holders.iter().filter(|holder| holder["access"] != "mount" && holder["possible"] != true);
    let user = |holder: &Value| {
        let access = holder["access"].as_str().expect("each has one").to_owned();
        (holder["pid"].as_u64().unwrap_or_default(), access)
    };
    users.map(user).collect()
}

/// Whether it is listed as one with a copy.
fn has_copy(holders: &[Value], pid: u32) -> bool {
    holders.iter().any(|holder| holder["pid"] == pid && holder["access"] == "mount")
}

/// Has it unmounted, which is refused or not; what is told then. `before`: on demand.
fn unmount(daemon: &mut Daemon, volume: &Volume, is_refused: bool, what: &str) -> Option<Event> {
    if is_refused {
        volume.mount.umount_refused();
        return Some(wait_for(daemon, "mount.busy", volume.point()));
    }
    let ran = volume.mount.umount();
    assert!(ran.status.success(), "{what}: {}", ran.stderr);
    expect_no_refusal(daemon, volume, what);
    None
}

fn expect_no_refusal(daemon: &mut Daemon, volume: &Volume, what: &str) {
    let events = daemon.mount_fence();
    let busy = events.iter().find(|event| is_about(event, "mount.busy", volume.point()));
    assert_eq!(busy.map(ToString::to_string), None, "{what}");
}

/// Whether a process sees a mount at this place.
fn sees(pid: u32, point: &Path) -> bool {
    let mounts = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).expect("the copy lives");
    let point = point.to_string_lossy();
    mounts.lines().any(|line| line.split(' ').nth(4) == Some(&*point))
}

/// What the kernel does with the directory that the volume is or was mounted on, and what is told of it.
fn remove_directory(daemon: &mut Daemon, volume: &Volume, copy: &Running, is_refused: bool, what: &str) {
    if is_refused {
        settle(volume.point().parent().expect("a directory above"));
        let error = std::fs::remove_dir(volume.point()).expect_err(what);
        assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy, "{what}: {error}");
        let is_it = |event: &Event| {
            is_about(event, "mount.busy", volume.point()) && event.text("/mount/syscall") != "umount2"
        };
        let busy = daemon.wait_for_holders(&format!("the removal: {what}"), is_it);
        busy.expect("/holders_verdict", "child-mount");
    } else {
        std::fs::remove_dir(volume.point()).expect(what);
        assert!(!sees(copy.pid(), volume.point()), "{what}: it takes the copies along");
        expect_no_refusal(daemon, volume, what);
    }
}

#[test]
fn a_copy_in_another_namespace_refuses_an_unmount_only_where_that_reaches_it_in_use() {
    let idle = ":";
    let cwd = "cd \"$1\"";
    let nested = "mkdir \"$1/in\"; mount -t tmpfs nested \"$1/in\"";
    // Propagation, what is done in the copy, whether the unmount is refused, and why; whether the copy is there afterwards.
    let matrix = [
        ("private", idle, None, true),
        ("private", cwd, None, true),
        ("private", nested, None, true),
        ("slave", idle, None, false),
        ("slave", cwd, Some("processes"), true),
        ("slave", nested, None, true),
        ("shared", idle, None, false),
        ("shared", cwd, Some("processes"), true),
        // It is mounted here as well.
        ("shared", nested, Some("child-mount"), true),
    ];
    let mut daemon = launch().start();
    for (propagation, script, verdict, is_left) in matrix {
        let what = format!("{propagation}: {script}");
        let volume = Volume::new();
        let copy = copy(&volume, propagation, script);
        let expected = match verdict {
            Some("processes") => BTreeSet::from([(u64::from(copy.pid()), "cwd".to_owned())]),
            _ => BTreeSet::new(),
        };
        let told = held(volume.point());
        let holders = told["holders"].as_array().expect("a list");
        assert_eq!(users(holders), expected, "{what}: {told}");
        assert!(has_copy(holders, copy.pid()), "{what}: {told}");
        let busy = unmount(&mut daemon, &volume, verdict.is_some(), &what);
        assert_eq!(sees(copy.pid(), volume.point()), is_left, "{what}");
        if let Some((busy, verdict)) = busy.zip(verdict) {
            busy.expect("/holders_verdict", verdict);
            assert_eq!(users(busy.list("/holders")), expected, "{what}: {busy}");
            if verdict == "processes" {
                let phrase = format!("held by sleep (pid {}) as its current directory", copy.pid());
                assert!(busy.sentence().ends_with(&phrase), "{what}: {busy}");
            } else {
                assert!(busy.sentence().contains("another file system is mounted below it"), "{busy}");
            }
        }
        remove_directory(&mut daemon, &volume, &copy, verdict.is_some(), &what);
    }
}

/// Of inotify(7).
struct Watch(#[expect(dead_code, reason = "closes it")] std::os::fd::OwnedFd);

impl Watch {
    fn on(path: &Path) -> Self {
        let path = std::ffi::CString::new(path.as_os_str().as_bytes()).expect("no NUL");
        // SAFETY: both take a path that ends with NUL, or nothing; the descriptor is for us alone.
        unsafe {
            let watch = libc::inotify_init1(libc::IN_CLOEXEC);
            assert!(watch >= 0 && libc::inotify_add_watch(watch, path.as_ptr(), libc::IN_ALL_EVENTS) >= 0);
            Self(std::os::fd::FromRawFd::from_raw_fd(watch))
        }
    }
}

/// A process that keeps the mount namespace of another one, which has ended, and has done this before: `$2` is where that saw
/// the mount.
fn keeper(copy: Running, volume: &Volume, script: &str) -> (Running, u64) {
    let namespace = PathBuf::from(format!("/proc/{}/ns/mnt", copy.pid()));
    let number = std::fs::metadata(&namespace).expect("a namespace").ino();
    let script = format!("exec 7<\"$1\"; {script}; echo ready; exec sleep 1000000");
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh"]).arg(&namespace);
    let root = format!("/proc/{}/root{}", copy.pid(), volume.point().display());
    let mut keeper = Running::spawn(command.arg(root).stdin(Stdio::null()).stdout(Stdio::piped()));
    let mut said = String::new();
    let output = keeper.child().stdout.take().expect("a pipe");
    std::io::BufReader::new(output).read_line(&mut said).expect("it says it is ready");
    assert_eq!(said, "ready\n");
    drop(copy);
    (keeper, number)
}

/// Whether the kernel lists mount namespaces (`NS_MNT_GET_NEXT`).
fn lists_namespaces() -> bool {
    kernel::is_since(6, 12)
}

#[test]
fn a_copy_in_a_namespace_without_a_process_is_named_with_who_keeps_that() {
    let volume = Volume::new();
    let (keeper, number) = keeper(copy(&volume, "private", ":"), &volume, ":");
    let told = held(volume.point());
    let holders = told["holders"].as_array().expect("a list");
    assert_eq!(users(holders), BTreeSet::new(), "{told}");
    if lists_namespaces() {
        assert!(has_copy(holders, keeper.pid()), "{told}");
        let found = holders.iter().find(|holder| holder["pid"] == keeper.pid()).expect("it is listed");
        assert_eq!((&found["fd"], &found["mntns"]), (&7.into(), &number.into()), "{told}");
    } else {
        assert!(told["holders_unreadable"].to_string().contains(&keeper.pid().to_string()), "{told}");
    }
    assert!(volume.mount.umount().status.success(), "it is private");
}

#[test]
fn who_uses_a_copy_in_a_namespace_without_a_process_is_found() {
    if !lists_namespaces() {
        return;
    }
    let volume = Volume::new();
    let mut daemon = launch().start();
    let (keeper, number) = keeper(copy(&volume, "slave", ":"), &volume, "exec 8<\"$2/file\"");
    let busy = unmount(&mut daemon, &volume, true, "an open file in it").expect("it is refused");
    busy.expect("/holders_verdict", "processes");
    let expected = BTreeSet::from([(u64::from(keeper.pid()), "fd".to_owned())]);
    assert_eq!(users(busy.list("/holders")), expected, "{busy}");
    let is_copy = |holder: &Value| holder["access"] == "mount" && holder["mntns"] == number;
    assert!(busy.list("/holders").iter().any(is_copy), "{busy}");
    drop(volume.scratch);
}

#[test]
fn what_a_user_has_mounted_in_the_place_of_his_copy_refuses_an_unmount_only_in_use() {
    let replace = "umount \"$1\"; mount -t tmpfs own \"$1\"";
    let cover = "mount -t tmpfs cover \"$1\"";
    let mut daemon = launch().start();
    for (script, is_refused) in [
        (replace.to_owned(), false),
        (format!("{replace}; cd \"$1\""), true),
        (format!("{replace}; cd \"$1\"; {cover}"), true),
        (format!("{replace}; {cover}; cd \"$1\""), false),
        (format!("cd \"$1\"; {cover}"), true),
    ] {
        let scratch = Scratch::new();
        let base = Mount::at(&scratch.path().join("base"));
        run(&format!("mount --make-shared {}", base.point().display()));
        let point = base.point().join("volume");
        // What was mounted before the namespace was made cannot be unmounted there.
        let wait = "until grep -q \" $1 \" /proc/self/mountinfo; do sleep 0.01; done";
        let act = format!("{wait}; {script}; echo ready; exec sleep 1000000");
        let mut command = Command::new("unshare");
        command
            .args(["--user", "--map-root-user", "--mount", "--propagation", "slave", "sh", "-c", &act, "sh"]);
        let mut user = Running::spawn(command.arg(&point).stdin(Stdio::null()).stdout(Stdio::piped()));
        let namespace = |pid: &str| std::fs::metadata(format!("/proc/{pid}/ns/mnt")).map(|ns| ns.ino()).ok();
        let pid = user.pid();
        let own = namespace("self");
        eventually!(namespace(&pid.to_string()) != own, "it has a namespace of its own");
        let volume = Volume { mount: Mount::at(&point), _base: base, scratch };
        let mut said = String::new();
        let output = user.child().stdout.take().expect("a pipe");
        std::io::BufReader::new(output).read_line(&mut said).expect("it says it is ready");
        assert_eq!(said, "ready\n", "{script}");
        let expected = match is_refused {
            true => BTreeSet::from([(u64::from(pid), "cwd".to_owned())]),
            false => BTreeSet::new(),
        };
        let told = held(volume.point());
        assert_eq!(users(told["holders"].as_array().expect("a list")), expected, "{script}: {told}");
        let Some(busy) = unmount(&mut daemon, &volume, is_refused, &script) else { continue };
        busy.expect("/holders_verdict", "processes");
        assert_eq!(users(busy.list("/holders")), expected, "{script}: {busy}");
    }
}

/// What may be held on any mount leaves in doubt who holds those of others.
mod alone {
    use super::*;

    #[test]
    fn each_use_in_its_own_namespace_refuses_an_unmount_and_a_watch_does_not() {
        let mut daemon = launch().start();
        for (act, access) in [
            ("cd DIR", "cwd"),
            ("open DIR/held", "fd"),
            // Opened only to know where it is (`O_PATH`).
            ("locate DIR", "fd"),
            ("chroot DIR", "root"),
            ("map DIR/held", "mmap"),
            ("bind DIR/held", "socket"),
            ("send DIR/held", "in-flight"),
            ("register DIR/held", "io-uring"),
        ] {
            let volume = Volume::new();
            let mut actor = Actor::start();
            actor.act(&act.replace("DIR", &volume.point().to_string_lossy()));
            let busy = unmount(&mut daemon, &volume, true, act).expect("it is refused");
            let is_it = |holder: &&Value| holder["pid"] == actor.pid() && holder["access"] == access;
            let found = busy.list("/holders").iter().find(is_it);
            let found = found.unwrap_or_else(|| unreachable!("{act}: {busy}"));
            // Of these the kernel does not tell where they are.
            let is_possible = matches!(access, "in-flight" | "io-uring");
            assert_eq!(found["possible"] == true, is_possible, "{busy}");
            busy.expect("/holders_verdict", if is_possible { "incomplete" } else { "processes" });
            // Others may have such, too.
            let held = match is_possible {
                true => "no holder found for certain; possibly it is held by ".to_owned(),
                false => format!("held by actor (pid {})", actor.pid()),
            };
            assert!(busy.text("/message").contains(&held), "{busy}");
        }
        let volume = Volume::new();
        let below = Mount::at(&volume.point().join("below"));
        let busy = unmount(&mut daemon, &volume, true, "a mount below it").expect("it is refused");
        busy.expect("/holders_verdict", "child-mount");
        drop(below);
        let volume = Volume::new();
        let _watch = Watch::on(volume.point());
        unmount(&mut daemon, &volume, false, "a watch");
    }
}
