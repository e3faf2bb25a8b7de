//! Calls of umount(2) that are hard to observe: many that block in a file server that does not answer, one that began
//! before the daemon, and one whose caller overwrites the path; those that the kernel never saw; and one that succeeds though the
//! mount is in use.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use kevtmon_tests::actor::Actor;
use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::{Daemon, WITHOUT_BUDGETS, kubelet_roots, launch};
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::fuse;
use kevtmon_tests::kernel;
use kevtmon_tests::mount::{Mount, Scratch, wait_for};
use kevtmon_tests::patience::patience;
use kevtmon_tests::pod_sandbox::uuid;
use kevtmon_tests::process::{Running, comm, hold_by_cwd, run};
use kevtmon_tests::seccomp::{answer, drop_capabilities};
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
    let counted = |daemon: &Daemon| {
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
        "the start of the call was not observed, so neither its path nor its result is certain",
    );
    event.expect("/holders_verdict", "incomplete");
    assert!(!event.to_string().contains(&*busy.point().to_string_lossy()), "{event}");
}

/// Whether it can be told who uses a detached mount on: where the kernel refuses the program that sees which mount it was,
/// nobody can be looked for; and before 6.8 the mount is known by an id that may be another one's by now.
fn can_be_looked_for(daemon: &Daemon) -> bool {
    let is_refused =
        daemon.log().lines().any(|line| line.contains("does without") && line.contains("path_umount"));
    !is_refused && kernel::is_since(6, 8)
}

/// Who uses a volume on that was just detached.
fn used_on(daemon: &mut Daemon, point: &Path) -> Option<Event> {
    let first = wait_for(daemon, "mount.detached", point);
    first.expect("/severity", "debug");
    if !can_be_looked_for(daemon) {
        return None;
    }
    Some(daemon.wait_for("who uses it on", |event| {
        event.kind() == "mount.detached" && event.number("/completes") == first.number("/seq")
    }))
}

/// How a process holds it, by the event.
fn held_by(event: &Event, pid: u32) -> serde_json::Value {
    let of_holder = |held: &&serde_json::Value| held["pid"] == pid;
    event.list("/holders").iter().find(of_holder).unwrap_or(&serde_json::Value::Null).clone()
}

#[test]
fn a_volume_that_is_detached_though_nobody_was_refused_is_told_with_who_uses_it_on() {
    let volume = Mount::volume();
    let mut daemon = launch().kubelet(&volume).start();
    let holder = hold_by_cwd(volume.point());
    run(&format!("umount --lazy {}", volume.point().display()));
    let Some(used) = used_on(&mut daemon, volume.point()) else { return };
    let held = held_by(&used, holder.pid());
    assert_eq!(
        (&held["access"], &held["path"]),
        (&"cwd".into(), &volume.point().to_string_lossy().as_ref().into())
    );
    assert!(used.text("/message").contains(&format!("held by sleep (pid {})", holder.pid())), "{used}");
}

/// A pod's volume on a shared mount, and a process that has a copy of that in a mount namespace of its own, in which it is.
fn volume_with_copy(propagation: &str) -> (Mount, Running, Mount, Scratch) {
    let scratch = Scratch::new();
    let base = Mount::at(&scratch.path().join("kubelet"));
    run(&format!("mount --make-shared {}", base.point().display()));
    let below = format!("pods/{}/volumes/kubernetes.io~rbd/data", uuid());
    let volume = Mount::at(&base.point().join(below));
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", propagation, "sh", "-c", "cd \"$1\" && exec sleep 1000000", "sh"]);
    let user = Running::spawn(command.arg(volume.point()).stdin(Stdio::null()));
    let link = format!("/proc/{}/cwd", user.pid());
    let is_there = || std::fs::read_link(&link).is_ok_and(|at| at == volume.point());
    eventually!(is_there() && comm(user.pid()).as_deref() == Some("sleep"), "it is in its copy");
    (volume, user, base, scratch)
}

#[test]
fn who_uses_a_copy_that_went_with_a_detached_volume_is_told_and_who_has_one_of_his_own_is_not() {
    for (propagation, is_used) in [("slave", true), ("shared", true), ("private", false)] {
        let (volume, user, _base, _scratch) = volume_with_copy(propagation);
        let mut daemon = launch().kubelet(&volume).start();
        daemon.wait_for_mount_inventory();
        run(&format!("umount --lazy {}", volume.point().display()));
        let Some(used) = used_on(&mut daemon, volume.point()) else { return };
        let held = held_by(&used, user.pid());
        if !is_used {
            assert_eq!(held, serde_json::Value::Null, "{used}");
            used.expect("/holders_complete", false);
            continue;
        }
        assert_eq!(held["access"], "cwd", "{propagation}: {used}");
        // Of other namespaces the kernel tells the ids that are never reused since 6.11.
        assert_eq!(held["possible"] == true, !kernel::is_since(6, 11), "{propagation}: {used}");
    }
}

#[test]
fn whoever_has_a_file_of_a_detached_volume_mapped_or_a_socket_bound_in_it_uses_it_on() {
    for (act, access) in [("map", "mmap"), ("bind", "socket")] {
        let volume = Mount::volume();
        let mut user = Actor::start();
        user.act(&format!("{act} {}/held", volume.point().display()));
        let mut daemon = launch().kubelet(&volume).start();
        daemon.wait_for_mount_inventory();
        run(&format!("umount --lazy {}", volume.point().display()));
        let Some(used) = used_on(&mut daemon, volume.point()) else { return };
        let held = held_by(&used, user.pid());
        assert_eq!(held["access"], access, "{used}");
        let path = volume.point().join("held");
        assert_eq!(held["path"], path.to_string_lossy().as_ref(), "{used}");
        // A socket tells no id that is never reused.
        assert_eq!(held["possible"] == true, access == "socket", "{used}");
    }
}

#[test]
fn a_mount_of_a_container_that_is_detached_is_told_if_somebody_uses_it_on() {
    let dockerd = Dockerd::start();
    let container = Container::idle(&dockerd, &["--ipc", "shareable"]);
    let shm = dockerd.directory().join("data/containers").join(container.id()).join("mounts/shm");
    let mut daemon = launch().joining(dockerd.runtime()).start();
    let holder = hold_by_cwd(&shm);
    run(&format!("umount --lazy {}", shm.display()));
    if !can_be_looked_for(&daemon) {
        return;
    }
    let used = wait_for(&mut daemon, "mount.detached", &shm);
    used.expect("/severity", "notice");
    used.expect("/target/container/id", container.id());
    assert_eq!(held_by(&used, holder.pid())["access"], "cwd", "{used}");
    let own = held_by(&used, container.pid());
    assert_eq!(own, serde_json::Value::Null, "its own mount of it is still there: {used}");
}

#[test]
fn a_volume_that_is_staged_for_all_pods_is_named_where_its_unmount_is_refused() {
    let scratch = Scratch::new();
    let root = scratch.path().join("kubelet");
    let directory = root.join("plugins/kubernetes.io/csi/rbd.csi.ceph.com/0a1b2c3d");
    std::fs::create_dir_all(&directory).expect("a directory can be made");
    // As a kubelet writes it.
    let data = r#"{"driverName":"rbd.csi.ceph.com","volumeHandle":"0001-0009-rook-ceph"}"#;
    std::fs::write(directory.join("vol_data.json"), data).expect("a file can be written");
    let staged = Mount::at(&directory.join("globalmount"));
    let mut daemon = launch().config(&kubelet_roots(&root)).start();
    let holder = hold_by_cwd(staged.point());
    staged.umount_refused();
    let busy = wait_for(&mut daemon, "mount.busy", staged.point());
    busy.expect("/mount/staged/plugin", "rbd.csi.ceph.com");
    busy.expect("/mount/staged/handle", "0001-0009-rook-ceph");
    let words = format!(
        "umount of staged volume 0001-0009-rook-ceph (rbd.csi.ceph.com) at {} by ",
        staged.point().display()
    );
    assert!(busy.text("/message").starts_with(&words), "{busy}");
    assert_eq!(held_by(&busy, holder.pid())["access"], "cwd", "{busy}");
}

/// How often a refusal is made up.
const MADE_UP: usize = 100;

/// Calls that a thread has refused by itself: they end with EBUSY before they begin.
fn make_up(path: &Path, take_capabilities: bool) {
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("no NUL");
    let number = |call: libc::c_long| u32::try_from(call).expect("a number of a system call");
    let calls = move || {
        if take_capabilities {
            drop_capabilities();
        }
        answer(&[number(libc::SYS_umount2), number(libc::SYS_unlinkat)], libc::EBUSY);
        for _ in 0..MADE_UP {
            // SAFETY: the path ends with NUL.
            let results = unsafe {
                [
                    libc::umount2(path.as_ptr(), 0),
                    libc::unlinkat(libc::AT_FDCWD, path.as_ptr(), libc::AT_REMOVEDIR),
                ]
            };
            assert_eq!((results, Errno::last()), ([-1, -1], Errno::EBUSY));
        }
    };
    thread::spawn(calls).join().expect("the thread makes its calls");
}

/// Those of calls that are in `metric`.
fn of_each(daemon: &Daemon, metric: &str) -> [f64; 2] {
    let metrics = daemon.metrics();
    ["umount2", "unlinkat"].map(|syscall| metrics.count(metric, &[("syscall", syscall)]))
}

const BUSY: &str = "kevtmon_kernel_mount_busy_total";
const UNPROVEN: &str = "kevtmon_kernel_mount_unproven_total";

/// Events of calls of this process.
fn own(events: Vec<Event>) -> Vec<Event> {
    let is_own = |event: &Event| {
        event.kind().starts_with("mount.")
            && event.number("/actor/pid") == Some(u64::from(std::process::id()))
    };
    events.into_iter().filter(is_own).collect()
}

/// In a child that is traced, so that the kernel passes over its calls and its tracer answers them. With what may be called
/// between fork(2) and exec(2) alone.
#[cfg(target_arch = "x86_64")]
fn make_up_by_tracing(path: &Path) {
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("no NUL");
    // SAFETY: the child allocates nothing, and ends without any destructor.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the path ends with NUL, and outlives the child's memory.
        unsafe {
            libc::ptrace(libc::PTRACE_TRACEME);
            libc::raise(libc::SIGSTOP);
            loop {
                libc::umount2(path.as_ptr(), 0);
                libc::unlinkat(libc::AT_FDCWD, path.as_ptr(), libc::AT_REMOVEDIR);
            }
        }
    }
    let wait = || {
        // SAFETY: it may be given no place for the status.
        assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child, "it stops");
    };
    wait();
    for _ in 0..2 * MADE_UP {
        // SAFETY: the child is stopped, and the registers are plain numbers.
        unsafe {
            assert_eq!(libc::ptrace(libc::PTRACE_SYSEMU, child, 0, 0), 0, "it goes on");
            wait();
            let mut registers: libc::user_regs_struct = std::mem::zeroed();
            libc::ptrace(libc::PTRACE_GETREGS, child, 0, &raw mut registers);
            registers.rax = i64::from(-libc::EBUSY).cast_unsigned();
            libc::ptrace(libc::PTRACE_SETREGS, child, 0, &raw const registers);
        }
    }
    // SAFETY: it is this process's child. The last call ends as it is let go.
    unsafe {
        libc::ptrace(libc::PTRACE_DETACH, child, 0, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
}

/// What counts all that the kernel does, and is in no account of others.
mod alone {
    use super::*;

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
        let is_marked = |event: &Event| {
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
    fn a_refusal_that_root_of_a_container_makes_up_is_none() {
        let mount = Mount::new();
        let mut daemon = launch().config(WITHOUT_BUDGETS).start();
        let (busy, unproven) = (of_each(&daemon, BUSY), of_each(&daemon, UNPROVEN));
        make_up(mount.point(), true);
        let made_up = || {
            let now = of_each(&daemon, UNPROVEN);
            [now[0] - unproven[0], now[1] - unproven[1]]
        };
        eventually!(made_up() == [MADE_UP as f64; 2], "they are counted as what they are: {:?}", made_up());
        assert_eq!(of_each(&daemon, BUSY), busy, "the kernel has refused nothing");
        let holder = hold_by_cwd(mount.point());
        let umount = mount.umount_refused();
        let event = wait_for(&mut daemon, "mount.busy", mount.point());
        event.expect("/actor/pid", umount.pid);
        event.expect("/actor/confidence", "certain");
        event.expect("/mount/attempts", 1);
        assert_eq!(own(daemon.events()), Vec::<Event>::new());
        drop(holder);
    }

    #[test]
    fn a_refusal_that_root_of_the_node_makes_up_is_likely() {
        let mount = Mount::new();
        let mut daemon = launch().config(WITHOUT_BUDGETS).start();
        let busy = of_each(&daemon, BUSY);
        make_up(mount.point(), false);
        eventually!(of_each(&daemon, UNPROVEN) == [MADE_UP as f64; 2], "each is counted");
        assert_eq!(of_each(&daemon, BUSY), busy, "the kernel has refused nothing");
        let told = own(daemon.mount_fence());
        let of = |syscall: &str| told.iter().filter(|event| event.text("/mount/syscall") == syscall).count();
        assert!(
            of("umount2") > 0 && of("unlinkat") > 0,
            "the calls of who may unmount may have begun before the daemon did: {told:?}"
        );
        for event in &told {
            event.expect("/actor/confidence", "likely");
            let names_the_mount = event.to_string().contains(&*mount.point().to_string_lossy());
            let is_removal = event.text("/mount/syscall") == "unlinkat";
            assert_eq!(names_the_mount, is_removal, "the arguments of a removal can still be read: {event}");
            assert!(event.to_string().contains("the start of the call was not observed"), "{event}");
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_refusal_that_a_tracer_makes_up_is_none() {
        let mount = Mount::new();
        let mut daemon = launch().config(WITHOUT_BUDGETS).start();
        let busy = of_each(&daemon, BUSY);
        let path = mount.point().to_owned();
        let tracer = move || {
            drop_capabilities();
            make_up_by_tracing(&path);
        };
        thread::spawn(tracer).join().expect("the tracer ends");
        let least = [MADE_UP as f64 - 1.0; 2];
        eventually!(
            of_each(&daemon, UNPROVEN).iter().zip(least).all(|(now, least)| *now >= least),
            "each is counted: {:?}",
            of_each(&daemon, UNPROVEN)
        );
        assert_eq!(of_each(&daemon, BUSY), busy, "the kernel has refused nothing");
        let is_made_up = |event: &Event| event.text("/mount/path") == mount.point().to_string_lossy();
        assert!(!daemon.mount_fence().iter().any(is_made_up));
    }
}
