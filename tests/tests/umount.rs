//! Calls of umount(2) that are hard to observe: many that block in a file server that does not answer, one that began
//! before the daemon, and one whose caller overwrites the path; and one that succeeds though the mount is in use.

#![allow(clippy::expect_used, reason = "a test whose set-up fails must fail")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use kevtmon_tests::daemon::{WITHOUT_BUDGETS, launch};
use kevtmon_tests::eventually;
use kevtmon_tests::fuse;
use kevtmon_tests::kernel;
use kevtmon_tests::mount::{Mount, Scratch, wait_for};
use kevtmon_tests::patience::patience;
use kevtmon_tests::process::{hold_by_cwd, run};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// More than once were remembered.
const BLOCKED: usize = 1_100;

/// A call takes no memory to speak of.
const STACK: usize = 64 << 10;

/// Threads that are in umount(2), until the server is gone.
struct Blocked {
    /// Of a file system that nobody serves. Closing it ends every call that waits for an answer, and the kernel closes
    /// it when this process ends.
    server: Option<File>,
    threads: Vec<JoinHandle<()>>,
}

impl Blocked {
    /// In a mount namespace of their own, so that nobody else meets the server.
    fn new(directory: &Path) -> Self {
        let point = directory.join("fuse");
        std::fs::create_dir(&point).expect("a directory can be made");
        let server = File::options().read(true).write(true).open("/dev/fuse").expect("there is FUSE");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
        let threads = thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNS).expect("a namespace can be made");
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(None::<&str>, "/", None::<&str>, private, None::<&str>).expect("it can be made private");
            mount(Some("kevtmon"), &point, Some("fuse"), MsFlags::empty(), Some(&*options))
                .expect("FUSE can be mounted");
            let path = std::ffi::CString::new(format!("{}/a/b", point.display())).expect("a path");
            let block = || {
                let path = path.clone();
                let call = move || {
                    // SAFETY: the path ends with NUL.
                    unsafe { libc::umount2(path.as_ptr(), 0) };
                };
                thread::Builder::new().stack_size(STACK).spawn(call).expect("a thread can be started")
            };
            (0..BLOCKED).map(|_| block()).collect()
        });
        let threads = threads.join().expect("the threads start");
        Self { server: Some(server), threads }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        self.server.take();
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Threads of this process that are in umount2(2).
fn in_umount() -> usize {
    let call = format!("{} ", libc::SYS_umount2);
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads are listed");
    let calls = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("syscall")).ok());
    calls.filter(|text| text.starts_with(&call)).count()
}

#[test]
fn calls_that_block_hide_no_other_call() {
    let scratch = Scratch::new();
    let mount = Mount::new();
    let holder = hold_by_cwd(mount.point());
    let mut daemon = launch().config(WITHOUT_BUDGETS).start();
    let counted = |daemon: &kevtmon_tests::daemon::Daemon| {
        daemon.metrics().count("kevtmon_kernel_mount_busy_total", &[("syscall", "umount2")])
    };
    let blocked = Blocked::new(scratch.path());
    eventually!(in_umount() >= BLOCKED, "all threads are in umount(2)");
    let before = counted(&daemon);
    let umount = mount.umount_refused();
    let event = daemon.wait_for("mount.busy of the mount", |event| {
        event.kind() == "mount.busy" && event.number("/actor/pid") == Some(umount.pid.into())
    });
    event.expect("/mount/path", &*mount.point().to_string_lossy());
    eventually!(counted(&daemon) > before, "the refusal is counted");
    assert!(in_umount() >= BLOCKED, "they blocked all the time");
    drop((blocked, holder));
}

#[test]
fn a_call_that_began_before_the_daemon_has_no_path_rather_than_no_event() {
    let scratch = Scratch::new();
    let (busy, point) = (Mount::new(), scratch.path().join("link"));
    let (tell, told) = sync_channel(1);
    let target = busy.point().to_owned();
    let caller = thread::spawn(move || {
        // In a mount namespace of its own, so that nobody else meets the server.
        unshare(CloneFlags::CLONE_NEWNS).expect("a namespace can be made");
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&str>, "/", None::<&str>, private, None::<&str>).expect("it can be made private");
        let link = fuse::mount_link(&point, &target);
        let holder = File::open(&target).expect("a directory can be opened");
        tell.send((link, nix::unistd::gettid())).expect("the test waits");
        let result = nix::mount::umount2(&point.join("a"), MntFlags::empty());
        drop(holder);
        result
    });
    let (link, tid) = told.recv().expect("the caller runs");
    link.wait_until_asked();
    let mut daemon = launch().config(WITHOUT_BUDGETS).start();
    link.release();
    assert_eq!(caller.join().expect("the caller ends"), Err(Errno::EBUSY));
    let event = daemon.wait_for("mount.busy of the caller", |event| {
        event.kind() == "mount.busy" && event.number("/actor/tid") == u64::try_from(tid.as_raw()).ok()
    });
    event.expect(
        "/holders_unreadable/0/reason",
        "the start of the call was not observed, so its path is unknown",
    );
    event.expect("/holders_verdict", "incomplete");
    assert!(!event.to_string().contains(&*busy.point().to_string_lossy()), "{event}");
}

#[test]
fn a_path_that_its_caller_overwrites_during_the_call_is_not_believed() {
    let scratch = Scratch::new();
    let mounts = ["a", "b"].map(|name| Mount::at(&scratch.path().join(name)));
    let holders = mounts.each_ref().map(|mount| hold_by_cwd(mount.point()));
    let mut daemon = launch().config(WITHOUT_BUDGETS).start();
    let text = format!("{}\0", mounts[0].point().display()).into_bytes();
    let path: Vec<AtomicU8> = text.into_iter().map(AtomicU8::new).collect();
    let last = path.len() - 2;
    let done = AtomicBool::new(false);
    // The thread also ends when the test fails.
    let deadline = Instant::now() + 2 * patience();
    let is_marked = |event: &kevtmon_tests::event::Event| {
        event.kind() == "mount.busy"
            && event.text("/holders_unreadable/0/reason").contains("overwrote the path")
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) && Instant::now() < deadline {
                // Each stays for as long as a call takes, or hardly any call would see the other one.
                for name in *b"ba" {
                    path[last].store(name, Ordering::Relaxed);
                    (0..500).for_each(|_| std::hint::spin_loop());
                }
            }
        });
        eventually!(
            {
                for _ in 0..100 {
                    // SAFETY: the path always ends with NUL, and both of its texts are paths.
                    unsafe { libc::umount2(path.as_ptr().cast(), 0) };
                }
                daemon.events().iter().any(is_marked)
            },
            "a call is marked"
        );
        done.store(true, Ordering::Relaxed);
    });
    let event = daemon.wait_for("the marked call", is_marked);
    event.expect("/holders_verdict", "incomplete");
    assert!(!event.has("/mount/device") && event.list("/holders").is_empty(), "{event}");
    drop(holders);
}

#[test]
fn a_volume_that_is_detached_though_nobody_was_refused_is_told_with_who_uses_it_on() {
    let volume = Mount::volume();
    let mut daemon = launch().kubelet(&volume).start();
    let holder = hold_by_cwd(volume.point());
    run(&format!("umount --lazy {}", volume.point().display()));
    let first = wait_for(&mut daemon, "mount.detached", volume.point());
    first.expect("/severity", "debug");
    // Where the kernel refuses the program that sees which mount it was, nobody can be looked for; and before 6.8 the mount is known
    // by an id that may be another one's by now.
    let is_refused =
        daemon.log().lines().any(|line| line.contains("does without") && line.contains("path_umount"));
    if is_refused || !kernel::is_since(6, 8) {
        return;
    }
    let used = daemon.wait_for("who uses it on", |event| {
        event.kind() == "mount.detached" && event.number("/completes") == first.number("/seq")
    });
    let of_holder = |held: &&serde_json::Value| held["pid"] == holder.pid();
    let held = used.list("/holders").iter().find(of_holder).expect("it uses it on");
    assert_eq!(
        (&held["access"], &held["path"]),
        (&"cwd".into(), &volume.point().to_string_lossy().as_ref().into())
    );
    assert!(used.text("/message").contains(&format!("held by sleep (pid {})", holder.pid())), "{used}");
}
