//! Busy mounts: their holders, the caller, the number of attempts, and the event when they are unmounted.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use kevtmon_tests::actor::Actor;
use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::mount::{Mount, Scratch, is_about, settle, wait_for};
use kevtmon_tests::process::{Running, comm, copy_program, hold_by_cwd, hold_by_fd, idle, run};
use serde_json::Value;

fn holder(event: &Event, pid: u32, access: &str) -> Value {
    let holders = event.list("/holders");
    let found = holders.iter().find(|holder| holder["pid"] == pid && holder["access"] == access);
    found.unwrap_or_else(|| unreachable!("{access} of {pid} among the holders of {event}")).clone()
}

#[test]
fn a_refused_unmount_names_the_caller_and_who_is_in_the_mount() {
    let mount = Mount::new();
    let mut daemon = launch().start();
    let culprit = hold_by_cwd(mount.point());
    let umount = mount.umount_refused();

    let event = wait_for(&mut daemon, "mount.busy", mount.point());
    event.expect("/mount/syscall", "umount2");
    event.expect("/mount/errno", "EBUSY");
    event.expect("/mount/fstype", "tmpfs");
    event.expect("/mount/source", "kevtmon");
    event.expect("/mount/attempts", 1);
    let mntns = std::fs::metadata("/proc/self/ns/mnt").expect("a namespace").ino();
    event.expect("/mount/mntns", mntns);
    event.expect_actor(umount.pid, "umount");
    assert!(event.text("/actor/exe").ends_with("/umount"), "{event}");
    event.expect("/actor/ancestors/0/pid", std::process::id());
    event.expect("/holders_verdict", "processes");
    let found = holder(&event, culprit.pid(), "cwd");
    assert_eq!(found["comm"], "sleep", "{event}");
    assert_eq!(found["cmdline"], "sleep 1000000", "{event}");
    for word in [&*mount.point().to_string_lossy(), "sleep", &culprit.pid().to_string()] {
        assert!(event.text("/message").contains(word), "{word} in the message of {event}");
    }
}

#[test]
fn which_mount_a_user_meant_is_only_likely() {
    let mount = Mount::new();
    let mut daemon = launch().start();
    let culprit = hold_by_cwd(mount.point());
    let mut user = Actor::start();
    let command = format!("refused {}", mount.point().display());
    for (uid, confidence) in [(0, "certain"), (1000, "likely")] {
        user.act(&format!("uid {uid} {uid}"));
        settle(mount.point().parent().expect("a directory above"));
        // Each by itself: the second attempt of one process has an event of its own, too.
        user.act(&command);
        let event = daemon.wait_for(&format!("the refusal of {uid}"), |event| {
            is_about(event, "mount.busy", mount.point()) && event.number("/actor/uid") == Some(uid)
        });
        event.expect("/actor/confidence", confidence);
        let is_said = event.text("/message").contains("of what is likely ");
        assert_eq!(is_said, confidence == "likely", "{event}");
    }
    drop(culprit);
}

#[test]
fn an_open_file_a_program_that_runs_a_root_directory_and_a_mount_below_hold_a_mount() {
    let [opened, executed, entered, above] = [(); 4].map(|()| Mount::new());
    let mut daemon = launch().start();
    let mut busy = |mount: &Mount| {
        mount.umount_refused();
        wait_for(&mut daemon, "mount.busy", mount.point())
    };
    let culprit = hold_by_fd(&opened.file());
    let event = busy(&opened);
    let found = holder(&event, culprit.pid(), "fd");
    assert_eq!(found["fd"], 7, "{event}");
    assert_eq!(found["path"], *opened.file().to_string_lossy(), "{event}");

    let programs = [&executed, &entered].map(|mount| {
        let program = mount.point().join("busybox");
        copy_program(&kevtmon_tests::image::find("busybox"), &program);
        program
    });
    let culprit = Running::spawn(Command::new(&programs[0]).args(["sleep", "1000000"]));
    holder(&busy(&executed), culprit.pid(), "exe");

    let mut command = Command::new("chroot");
    let culprit = Running::spawn(command.arg(entered.point()).args(["/busybox", "sleep", "1000000"]));
    eventually!(comm(culprit.pid()).as_deref() == Some("busybox"), "the program changes its root");
    holder(&busy(&entered), culprit.pid(), "root");

    let child = Mount::at(&above.point().join("below"));
    let event = busy(&above);
    event.expect("/holders_verdict", "child-mount");
    let below = child.point().to_string_lossy();
    assert!(event.to_string().contains(&*below), "{below} is not named: {event}");
}

#[test]
fn a_process_in_a_container_is_found_with_its_container() {
    let dockerd = Dockerd::shared();
    // The container sees the volume through a slave of a shared mount, as with HostToContainer.
    let scratch = Scratch::new();
    let base = Mount::at(&scratch.path().join("base"));
    run(&format!("mount --make-shared {}", base.point().display()));
    let volume = Mount::at(&base.point().join("volume"));
    let bind = format!("{}:/data:rslave", base.point().display());
    let container =
        Container::start(dockerd, &["-v", &bind], &["sh", "-c", "cd /data/volume; exec sleep 1000000"]);
    eventually!(comm(container.pid()).as_deref() == Some("sleep"), "the container is in the volume");
    let mut daemon = launch().joining(dockerd.runtime()).start();
    volume.umount_refused();

    let event = wait_for(&mut daemon, "mount.busy", volume.point());
    event.expect("/holders_verdict", "processes");
    let found = holder(&event, container.pid(), "cwd");
    assert_eq!(found["container"]["id"], container.id(), "{event}");
    assert_eq!(found["container"]["name"], container.name(), "{event}");
    let mntns = std::fs::metadata(format!("/proc/{}/ns/mnt", container.pid())).expect("a namespace").ino();
    assert_eq!(found["mntns"], mntns, "{event}");
}

#[test]
fn a_busy_mount_that_goes_at_last_is_released_and_one_that_is_detached_is_not() {
    let (mount, detached) = (Mount::new(), Mount::new());
    let mut daemon = launch().start();
    let [culprit, other] = [&mount, &detached].map(|mount| hold_by_cwd(mount.point()));
    for mount in [&mount, &detached] {
        mount.umount_refused();
        wait_for(&mut daemon, "mount.busy", mount.point());
    }
    drop(culprit);
    let umount = kevtmon_tests::patience::wait_until("the mount is free", || {
        let ran = mount.umount();
        ran.status.success().then_some(ran)
    });
    let event = wait_for(&mut daemon, "mount.released", mount.point());
    event.expect_actor(umount.pid, "umount");
    event.expect_none("/mount/errno");

    let umount = kevtmon_tests::process::attempt::<&std::ffi::OsStr>(&[
        "umount".as_ref(),
        "-l".as_ref(),
        detached.point().as_ref(),
    ]);
    let umount = umount.succeeded("umount -l");
    let event = wait_for(&mut daemon, "mount.detached", detached.point());
    event.expect_actor(umount.pid, "umount");
    let events = daemon.mount_fence();
    assert!(!events.iter().any(|event| is_about(event, "mount.released", detached.point())));
    drop(other);
}

#[test]
fn neither_an_unmount_that_succeeds_at_once_nor_one_of_what_is_no_mount_is_reported() {
    let (mount, scratch) = (Mount::new(), Scratch::new());
    let mut daemon = launch().start();
    eventually!(mount.umount().status.success(), "nobody holds the mount");
    let refused = kevtmon_tests::process::attempt(&["busybox", "umount", &scratch.path().to_string_lossy()]);
    assert!(!refused.status.success());
    let events = daemon.mount_fence();
    let emitted = events.iter().find(|event| is_about(event, "mount.released", mount.point()));
    assert_eq!(emitted.map(ToString::to_string), None);
    assert!(!events.iter().any(|event| event.text("/mount/path") == scratch.path().to_string_lossy()));
}

#[test]
fn a_relative_path_is_reported_as_an_absolute_one_and_repeated_refusals_at_each_doubling() {
    let (mount, repeated) = (Mount::new(), Mount::new());
    let above = mount.point().parent().expect("a mount point has a directory").to_owned();
    let mut daemon = launch().start();
    let culprits = [&mount, &repeated].map(|mount| hold_by_cwd(mount.point()));
    let mut command = idle();
    // SAFETY: between fork and exec only chdir and umount2 are called, which are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            std::env::set_current_dir(&above)?;
            libc::umount2(c"pod volume".as_ptr(), 0);
            Ok(())
        });
    }
    let caller = Running::spawn(&mut command);
    let event = wait_for(&mut daemon, "mount.busy", mount.point());
    event.expect("/actor/pid", caller.pid());

    for _ in 0..9 {
        repeated.umount_refused();
    }
    let events = daemon.mount_fence();
    let emitted = events.iter().filter(|event| is_about(event, "mount.busy", repeated.point()));
    let emitted = emitted.filter(|event| !event.has("/completes"));
    let attempts = emitted.filter_map(|event| event.number("/mount/attempts")).collect::<Vec<_>>();
    assert_eq!(attempts, [1, 2, 4, 8]);
    drop(culprits);
}

/// What is told of a mount that an actor holds by such an act on a new file in it, after these preparations, and who that is.
fn held_by_actor(daemon: &mut Daemon, before: &[&str], act: &str) -> (Event, u32) {
    let mount = Mount::new();
    let mut actor = Actor::start();
    let pid = std::process::id().to_string();
    let in_mount = |act: &str| act.replace("DIR", &mount.point().to_string_lossy()).replace("SELF", &pid);
    for act in before {
        actor.act(&in_mount(act));
    }
    let act = in_mount(act);
    match act.contains(' ') {
        true => actor.act(&act),
        false => actor.act(&format!("{act} {}", mount.point().join("held").display())),
    }
    mount.umount_refused();
    // The scan may go on after its first event.
    let event = daemon.wait_for(&act, |event| {
        let knows = |list: &str| event.list(list).iter().any(|found| found["pid"] == actor.pid());
        is_about(event, "mount.busy", mount.point()) && (knows("/holders") || knows("/holders_unreadable"))
    });
    (event, actor.pid())
}

#[test]
fn a_thread_with_open_files_of_its_own_holds_a_mount_beside_others_also_by_a_bound_socket() {
    /// `PIDFD_THREAD` of include/uapi/linux/pidfd.h, since 6.9.
    const THREAD: libc::c_uint = 0x80;
    let mount = Mount::new();
    let mut daemon = launch().start();
    let other = hold_by_cwd(mount.point());
    let mut actor = Actor::start();
    actor.act(&format!("hold-apart {}", mount.point().join("held").display()));
    mount.umount_refused();
    let event = wait_for(&mut daemon, "mount.busy", mount.point());
    holder(&event, other.pid(), "cwd");
    let found = holder(&event, actor.pid(), "fd");
    let link = format!("/proc/{}/task/{}/fd/{}", actor.pid(), found["tid"], found["fd"]);
    assert_eq!(std::fs::read_link(&link).ok(), Some(mount.point().join("held")), "{event}");

    // SAFETY: takes two integers; the descriptor that it makes is left to the end of the process.
    let is_shown = unsafe { libc::syscall(libc::SYS_pidfd_open, std::process::id(), THREAD) } >= 0;
    let (event, pid) = held_by_actor(&mut daemon, &[], "apart bind DIR/held");
    if is_shown {
        let found = holder(&event, pid, "socket");
        assert!(found["tid"].is_u64() && found["tid"] != pid, "{event}");
    } else {
        event.expect("/holders_complete", false);
    }
}

#[test]
fn a_bound_socket_holds_a_mount_whatever_its_name_and_network_namespace() {
    let mut daemon = launch().start();
    let cases: [(&[&str], &str); 5] = [
        (&[], "bind"),
        (&[], "bind-relative held DIR"),
        (&[], "accept"),
        (&["unshare net"], "bind"),
        // No process is left in the namespace of the socket.
        (&["unshare net", "thread other bind DIR/held"], "netns /proc/SELF/ns/net"),
    ];
    for (before, act) in cases {
        let (event, pid) = held_by_actor(&mut daemon, before, act);
        event.expect("/holders_verdict", "processes");
        let found = holder(&event, pid, "socket");
        assert!(found["path"].as_str().is_some_and(|path| path.ends_with("/pod volume/held")), "{event}");
        assert!(event.text("/message").contains("with a socket that is bound to a file"), "{event}");
    }
}

#[test]
fn a_socket_in_another_mount_of_the_same_file_system_holds_only_that_one() {
    let mount = Mount::new();
    let other = mount.point().parent().expect("a directory above").join("other");
    std::fs::create_dir(&other).expect("a directory can be made");
    let bind: [&std::ffi::OsStr; 4] =
        ["mount".as_ref(), "--bind".as_ref(), mount.point().as_ref(), other.as_ref()];
    let _ = kevtmon_tests::process::attempt(&bind).succeeded("mount");
    let mut daemon = launch().start();
    let mut innocent = Actor::start();
    innocent.act(&format!("bind {}", other.join("sock").display()));
    let culprit = hold_by_cwd(mount.point());
    mount.umount_refused();
    let event = wait_for(&mut daemon, "mount.busy", mount.point());
    holder(&event, culprit.pid(), "cwd");
    let is_named = event.list("/holders").iter().any(|holder| holder["pid"] == innocent.pid());
    assert!(!is_named, "{event}");
}

/// What may be held on any mount leaves in doubt who holds those of others.
mod alone {
    use super::*;

    #[test]
    fn what_no_list_of_open_files_shows_is_at_least_doubted() {
        let mut daemon = launch().start();
        for act in ["register", "send"] {
            let (event, pid) = held_by_actor(&mut daemon, &[], act);
            event.expect("/holders_complete", false);
            event.expect("/holders_verdict", "incomplete");
            assert!(
                event.list("/holders_unreadable").iter().any(|found| found["pid"] == pid),
                "{act}: {event}"
            );
        }
    }
}
