//! Names that cannot be removed or renamed: what is mounted there, which call was refused, and what is no matter of mounts.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use kevtmon_tests::cgroup::{Cgroup, Hierarchy};
use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::mount::{Mount, Scratch, is_about, settle, wait_for};
use kevtmon_tests::process::{attempt, hold_by_cwd};
use libc::{AT_FDCWD, AT_REMOVEDIR, c_int, c_long};

/// A user of the host.
const USER: c_long = 1000;

/// Makes a system call with up to five arguments, and returns its errno.
fn call(number: c_long, arguments: [c_long; 5]) -> i32 {
    let [a, b, c, d, e] = arguments;
    // SAFETY: paths among the arguments are strings that outlive the call, and it writes nothing.
    match unsafe { libc::syscall(number, a, b, c, d, e) } {
        0 => 0,
        _ => std::io::Error::last_os_error().raw_os_error().expect("an errno"),
    }
}

fn text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no NUL")
}

fn address(path: &CString) -> c_long {
    path.as_ptr() as c_long
}

fn rmdir(path: &Path) -> i32 {
    unlinkat(AT_FDCWD, path, AT_REMOVEDIR)
}

fn unlinkat(directory: c_int, path: &Path, flags: c_int) -> i32 {
    let path = text(path);
    call(libc::SYS_unlinkat, [directory.into(), address(&path), flags.into(), 0, 0])
}

fn counted(daemon: &Daemon, name: &str, labels: &[(&str, &str)]) -> f64 {
    daemon.metrics().count(name, labels)
}

fn ignored(daemon: &Daemon, reason: &str) -> f64 {
    counted(daemon, "kevtmon_mount_busy_ignored_total", &[("reason", reason)])
}

/// The event of this call about what is mounted at this path.
fn busy(daemon: &mut Daemon, syscall: &str, path: &Path) -> Event {
    daemon.wait_for_holders(&format!("{syscall} of {}", path.display()), |event| {
        is_about(event, "mount.busy", path) && event.text("/mount/syscall") == syscall
    })
}

#[test]
fn each_call_that_is_refused_tells_what_is_mounted_there() {
    let scratch = Scratch::new();
    let directory = Mount::at(&scratch.path().join("a directory"));
    let file = scratch.path().join("a file");
    fs::write(&file, "").expect("a file can be made");
    let bind = ["mount".as_ref(), "--bind".as_ref(), file.as_os_str(), file.as_os_str()];
    let _ = attempt(&bind).succeeded("mount --bind");
    let mut daemon = launch().start();
    settle(scratch.path());

    let onto = text(&scratch.path().join("onto"));
    let (of_directory, of_file) = (text(directory.point()), text(&file));
    let (d, f, to, cwd) = (address(&of_directory), address(&of_file), address(&onto), AT_FDCWD.into());
    let calls = [
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_rmdir, "rmdir", [d, 0, 0, 0, 0], directory.point()),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_unlink, "unlink", [f, 0, 0, 0, 0], &*file),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_rename, "rename", [d, to, 0, 0, 0], directory.point()),
        (libc::SYS_unlinkat, "unlinkat", [cwd, d, AT_REMOVEDIR.into(), 0, 0], directory.point()),
        (libc::SYS_renameat, "renameat", [cwd, f, cwd, to, 0], &*file),
        (libc::SYS_renameat2, "renameat2", [cwd, d, cwd, to, 1], directory.point()),
    ];
    for (number, name, arguments, path) in calls {
        assert_eq!(call(number, arguments), libc::EBUSY, "{name}");
        let event = busy(&mut daemon, name, path);
        event.expect("/mount/errno", "EBUSY");
        event.expect("/mount/attempts", 1);
        event.expect("/holders_verdict", "child-mount");
        event.expect("/actor/pid", std::process::id());
        event.expect("/actor/confidence", "certain");
        event.expect_none("/mount/confidence");
        event.expect("/mount/child_mounts/0", &*path.to_string_lossy());
        assert!(event.text("/message").starts_with(&format!("{name} of ")), "{event}");
        assert!(event.text("/message").contains("refused: a file system is mounted there"), "{event}");
        let seen = counted(&daemon, "kevtmon_kernel_mount_busy_total", &[("syscall", name)]);
        assert!(seen >= 1.0, "{name} is counted in the kernel");
    }
    let flags = |name: &str| {
        let mut events = daemon.events().into_iter();
        events
            .find(|event| event.text("/mount/syscall") == name)
            .map(|event| event.text("/mount/flags/0").to_owned())
    };
    assert_eq!(flags("unlinkat").as_deref(), Some("AT_REMOVEDIR"));
    assert_eq!(flags("renameat2").as_deref(), Some("RENAME_NOREPLACE"));
}

#[test]
fn a_name_is_looked_for_in_the_directory_of_the_descriptor_and_where_it_is_renamed_to_at_each_attempt() {
    let (mount, repeated, scratch) = (Mount::new(), Mount::new(), Scratch::new());
    let above = mount.point().parent().expect("a directory above");
    let user = hold_by_cwd(mount.point());
    let renamed = Mount::at(&scratch.path().join("onto"));
    let from = scratch.path().join("from");
    fs::create_dir(&from).expect("a directory can be made");
    let mut daemon = launch().start();
    settle(above);
    let directory = File::open(above).expect("it can be opened");
    let name = Path::new(mount.point().file_name().expect("a name"));
    assert_eq!(unlinkat(directory.as_raw_fd(), name, AT_REMOVEDIR), libc::EBUSY);
    let event = busy(&mut daemon, "unlinkat", mount.point());
    event.expect_none("/mount/confidence");
    event.expect("/mount/fstype", "tmpfs");
    event.expect("/holders_verdict", "child-mount");
    let holders = event.list("/holders");
    assert!(holders.iter().any(|holder| holder["pid"] == user.pid()), "{event}");
    for word in ["a file system is mounted there, held by sleep", "as its current directory"] {
        assert!(event.text("/message").contains(word), "{event}");
    }

    settle(scratch.path());
    let (from, onto) = (text(&from), text(renamed.point()));
    let cwd = AT_FDCWD.into();
    let arguments = [cwd, address(&from), cwd, address(&onto), 0];
    assert_eq!(call(libc::SYS_renameat2, arguments), libc::EBUSY);
    let event = busy(&mut daemon, "renameat2", renamed.point());
    event.expect("/holders_verdict", "child-mount");
    event.expect("/mount/attempts", 1);

    settle(repeated.point().parent().expect("a directory above"));
    let before = ignored(&daemon, "repeated");
    for _ in 0..4 {
        assert_eq!(rmdir(repeated.point()), libc::EBUSY);
    }
    daemon.wait_for("the fourth attempt", |event| {
        is_about(event, "mount.busy", repeated.point()) && event.number("/mount/attempts") == Some(4)
    });
    eventually!(ignored(&daemon, "repeated") - before >= 1.0, "the third is counted");
    let events = daemon.events();
    let told = events.iter().filter(|event| is_about(event, "mount.busy", repeated.point()));
    let told: Vec<_> = told.filter_map(|event| event.number("/mount/attempts")).collect();
    assert_eq!(told, [1, 2, 4]);
}

#[test]
fn what_no_mount_is_the_reason_of_is_counted_only() {
    let groups: Vec<Cgroup> = Hierarchy::all().into_iter().map(Cgroup::new).collect();
    assert!(!groups.is_empty(), "this machine has control groups");
    let mount = Mount::new();
    let mut daemon = launch().start();
    for group in &groups {
        let procs = group.procs();
        let directory = procs.parent().expect("a control group");
        let child = directory.join("child");
        fs::create_dir(&child).expect("a control group can be made");
        let before = ignored(&daemon, "cgroup");
        let refused = rmdir(directory);
        // Of the descriptor too, as runtimes do.
        let above = File::open(directory.parent().expect("a group above")).expect("it can be opened");
        let name = Path::new(directory.file_name().expect("a name"));
        let again = unlinkat(above.as_raw_fd(), name, AT_REMOVEDIR);
        fs::remove_dir(&child).expect("it is empty");
        assert_eq!((refused, again), (libc::EBUSY, libc::EBUSY));
        eventually!(ignored(&daemon, "cgroup") - before >= 2.0, "{} is counted", directory.display());
    }
    let before = ignored(&daemon, "nameless");
    assert_eq!(rmdir(Path::new("/")), libc::EBUSY);
    eventually!(ignored(&daemon, "nameless") - before >= 1.0, "the root directory is counted");
    assert_eq!(rmdir(mount.point()), libc::EBUSY);
    busy(&mut daemon, "unlinkat", mount.point());
    let is_told = |event: &&Event| {
        let path = event.text("/mount/path");
        event.kind() == "mount.busy" && groups.iter().any(|group| path.ends_with(group.name()))
    };
    assert_eq!(daemon.events().iter().find(is_told).map(ToString::to_string), None);
}

#[test]
fn it_can_be_switched_off() {
    let mount = Mount::new();
    let holder = hold_by_cwd(mount.point());
    let mut daemon = launch().config("[hooks]\nremove = \"off\"\n").start();
    let ready = daemon.wait_for("daemon.ready", |event| event.kind() == "daemon.ready");
    ready.expect("/daemon/degraded/hook.remove", "switched off");
    let attached = [("hook", "remove"), ("attach_mode", "tracepoint")];
    assert_eq!(daemon.metrics().sum("kevtmon_hook_info", &attached), None);
    assert_eq!(rmdir(mount.point()), libc::EBUSY);
    mount.umount_refused();
    let event = wait_for(&mut daemon, "mount.busy", mount.point());
    event.expect("/mount/syscall", "umount2");
    assert_eq!(counted(&daemon, "kevtmon_kernel_mount_busy_total", &[("syscall", "unlinkat")]), 0.0);
    drop(holder);
}

#[test]
fn the_refused_removals_of_a_user_hide_none_of_roots() {
    const ATTEMPTS: u32 = 2_000;
    let mount = Mount::new();
    let above = mount.point().parent().expect("a directory above");
    let mut daemon = launch().config("[hooks]\nuser_rate = 20\nuser_burst = 100\n").start();
    settle(above);
    let refused = std::thread::spawn(|| {
        // Of this thread alone.
        assert_eq!(call(libc::SYS_setresuid, [USER, USER, USER, 0, 0]), 0);
        (0..ATTEMPTS).filter(|_| rmdir(Path::new("/")) == libc::EBUSY).count()
    });
    let refused = refused.join().expect("the thread ends");
    assert_eq!(refused, ATTEMPTS as usize);
    let throttled =
        |daemon: &Daemon| counted(daemon, "kevtmon_events_throttled_total", &[("lane", "remove")]);
    assert!(throttled(&daemon) > 1_000.0, "the user is beyond his budget: {}", throttled(&daemon));
    let counts = |daemon: &Daemon| throttled(daemon) + ignored(daemon, "nameless");
    eventually!(counts(&daemon) >= f64::from(ATTEMPTS), "each is counted: {}", counts(&daemon));
    assert_eq!(rmdir(mount.point()), libc::EBUSY);
    busy(&mut daemon, "unlinkat", mount.point()).expect("/actor/uid", 0);
    let told = daemon.wait_for("the sum", |event| {
        event.kind() == "events.throttled" && event.text("/throttled/lane") == "remove"
    });
    told.expect("/throttled/uid", u64::try_from(USER).expect("a number"));
    told.expect("/severity", "notice");
}

#[test]
fn a_volume_that_cannot_be_removed_is_an_incident_until_it_is_unmounted() {
    let volume = Mount::volume();
    let above = volume.point().parent().expect("a directory above");
    let mut daemon = launch().kubelet(&volume).start();
    settle(above);
    assert_eq!(rmdir(volume.point()), libc::EBUSY);
    let is_of =
        |event: &Event, kind: &str| event.kind() == kind && event.text("/incident/kind") == "volume-busy";
    let opened = daemon.wait_for("the incident", |event| is_of(event, "incident.opened"));
    let summary = opened.text("/incident/summary");
    // On a slow machine it is told when that was.
    let is_reason = summary.contains(": a file system is mounted there")
        || summary.contains(" UTC a file system is mounted there");
    assert!(summary.contains(" cannot be removed by ") && is_reason, "{opened}");
    let _ = volume.umount().succeeded("umount");
    let closed = daemon.wait_for("its end", |event| is_of(event, "incident.closed"));
    closed.expect("/incident/close_reason", "resolved");
    assert!(closed.text("/incident/summary").contains(" cannot be removed by "), "{closed}");
}
