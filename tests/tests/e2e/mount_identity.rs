//! Which mount, and which caller: covers, detached mounts, retries, and mounts of strangers.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use kevtmon_tests::balance::stop_and_account_for_refusals;
use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::fuse::mount_served;
use kevtmon_tests::loop_device::LoopDevice;
use kevtmon_tests::mount::{Mount, Scratch, is_about, shell, wait_for};
use kevtmon_tests::patience::wait_until;
use kevtmon_tests::process::{
    Finished, Running, attempt, copy_program, finish, hold_by_cwd, hold_by_fd, write_script,
};
use nix::sys::signal::Signal;

fn kinds_of(events: &[Event], path: &Path) -> Vec<String> {
    let about = events.iter().filter(|event| event.text("/mount/path") == path.to_string_lossy());
    about.map(|event| event.kind().to_owned()).collect()
}

fn umount_succeeds(mount: &Mount) -> Finished {
    wait_until("the mount is free", || {
        let ran = mount.umount();
        ran.status.success().then_some(ran)
    })
}

#[test]
fn a_cover_that_is_unmounted_releases_nothing_and_closes_nothing() {
    let mount = Mount::volume();
    let mut daemon = launch().kubelet(&mount).start();
    let culprit = hold_by_cwd(mount.point());
    mount.umount_refused();
    let busy = wait_for(&mut daemon, "mount.busy", mount.point());
    assert!(busy.has("/mount/identity/mount_id"), "{busy}");
    for unmount in ["umount \"$1\"", "umount -l \"$1\""] {
        let cover = shell(&format!("mount -t tmpfs cover \"$1\" && {unmount}"), &mount);
        assert!(cover.status.success(), "{}", cover.stderr);
    }
    let seen = kinds_of(&daemon.mount_fence(), mount.point());
    for kind in ["mount.released", "mount.detached", "incident.closed"] {
        assert!(!seen.iter().any(|seen| seen == kind), "{seen:?}");
    }
    drop(culprit);
    let umount = umount_succeeds(&mount);
    wait_for(&mut daemon, "mount.released", mount.point()).expect_actor(umount.pid, "umount");
    let closed = wait_for(&mut daemon, "incident.closed", mount.point());
    closed.expect("/incident/close_reason", "resolved");
}

#[test]
fn a_holder_of_an_unprivileged_user_is_told_by_his_id_whatever_he_calls_it() {
    let mount = Mount::volume();
    let mut daemon = launch().kubelet(&mount).start();
    let programs = Scratch::new();
    let program = programs.path().join("kubelet");
    copy_program("/bin/sleep".as_ref(), &program);
    let culprit =
        Running::spawn(Command::new(&program).arg("1000000").uid(65_534).current_dir(mount.point()));
    mount.umount_refused();
    let busy = wait_for(&mut daemon, "mount.busy", mount.point());
    busy.expect("/holders/0/pid", culprit.pid());
    busy.expect("/holders/0/uid", 65_534);
    let told = format!("held by a process of uid 65534 called kubelet (pid {})", culprit.pid());
    assert!(busy.text("/message").contains(&told), "{busy}");
    let opened = wait_for(&mut daemon, "incident.opened", mount.point());
    assert!(opened.text("/incident/summary").contains(&told), "{opened}");
}

#[test]
fn of_two_that_unmount_at_one_place_none_is_certain_to_have_taken_the_busy_mount() {
    let mount = Mount::volume();
    let mut daemon = launch().kubelet(&mount).start();
    let culprit = hold_by_cwd(mount.point());
    mount.umount_refused();
    wait_for(&mut daemon, "mount.busy", mount.point());
    drop(culprit);
    // Both before the daemon can look which one took it.
    daemon.signal(Signal::SIGSTOP);
    let first = umount_succeeds(&mount);
    let next = Mount::at(mount.point());
    let last = umount_succeeds(&next);
    daemon.signal(Signal::SIGCONT);
    let released = wait_for(&mut daemon, "mount.released", mount.point());
    assert_ne!(first.pid, last.pid);
    released.expect("/actor/pid", last.pid);
    released.expect("/actor/confidence", "likely");
}

#[test]
fn who_uses_what_was_mounted_there_next_has_refused_nothing_before() {
    let mount = Mount::volume();
    let mut daemon = launch().kubelet(&mount).start();
    // All of it before the daemon can look.
    daemon.signal(Signal::SIGSTOP);
    let culprit = hold_by_cwd(mount.point());
    let refused = mount.umount_refused();
    drop(culprit);
    umount_succeeds(&mount);
    let next = Mount::at(mount.point());
    let innocent = hold_by_cwd(next.point());
    daemon.signal(Signal::SIGCONT);
    let busy = daemon.wait_for("mount.busy", |event| {
        is_about(event, "mount.busy", mount.point()) && event.number("/actor/pid") == Some(refused.pid.into())
    });
    busy.expect("/holders_complete", false);
    next.umount_refused();
    daemon.wait_for("the next mount's holder", |event| {
        is_about(event, "mount.busy", mount.point())
            && event.number("/holders/0/pid") == Some(innocent.pid().into())
    });
    let blamed = daemon.events().into_iter().find(|event| {
        event.number("/actor/pid") == Some(refused.pid.into())
            && event.number("/holders/0/pid") == Some(innocent.pid().into())
    });
    assert_eq!(blamed.map(|event| event.to_string()), None);
}

#[test]
fn a_busy_cover_is_another_mount_than_the_one_below_and_a_sentence_names_who_ran_umount() {
    let mount = Mount::new();
    let scratch = Scratch::new();
    let kubelet = scratch.path().join("kubelet");
    write_script(&kubelet, "#!/bin/sh\numount \"$1\"\nexit 0\n");
    let mut daemon = launch().start();
    let below = hold_by_cwd(mount.point());
    mount.umount_refused();
    let first = wait_for(&mut daemon, "mount.busy", mount.point());
    let cover = Mount::at(mount.point());
    let above = hold_by_cwd(cover.point());
    drop(above);
    umount_succeeds(&cover);
    daemon.mount_fence();
    // The one below was busy before, and only that one is released.
    drop(below);
    let ran = wait_until("the mount is free", || {
        let ran = finish(Command::new(&kubelet).arg(mount.point()).stdin(Stdio::null()), "kubelet".as_ref());
        ran.stderr.is_empty().then_some(ran)
    });
    let released = wait_for(&mut daemon, "mount.released", mount.point());
    assert_eq!(released.get("/mount/identity"), first.get("/mount/identity"), "{released}");
    released.expect("/actor/comm", "umount");
    let named = format!("by kubelet (pid {}), run by ", ran.pid);
    assert!(released.text("/message").contains(&named), "{named} in {released}");
    let ends = |likely| format!(", by means of umount, {likely}after one refused attempt");
    assert!(
        ["", "likely "].iter().any(|likely| released.text("/message").ends_with(&ends(likely))),
        "{released}"
    );
    let all = kinds_of(&daemon.events(), mount.point());
    assert_eq!(all.iter().filter(|kind| *kind == "mount.released").count(), 1, "{all:?}");
}

#[test]
fn a_cover_that_is_busy_soon_after_the_mount_below_is_told_with_its_own_holders() {
    let mount = Mount::new();
    let mut daemon = launch().start();
    let below = hold_by_cwd(mount.point());
    // One caller, whose second attempt is the cover's first.
    let script = "umount \"$1\"; read _; umount \"$1\"; read _; umount \"$1\"; read _";
    let mut caller = Command::new("sh");
    caller.args(["-c", script, "sh"]).arg(mount.point()).stdin(Stdio::piped()).stderr(Stdio::null());
    let mut caller = caller.spawn().expect("a shell runs");
    let mut next = caller.stdin.take().expect("a pipe");
    let mut go_on = || std::io::Write::write_all(&mut next, b"\n").expect("the shell reads");
    let first = wait_for(&mut daemon, "mount.busy", mount.point());
    let cover = Mount::at(mount.point());
    let above = hold_by_cwd(cover.point());
    go_on();
    let nth = |daemon: &mut Daemon, pid: u32, what: &str| {
        daemon.wait_for(what, |event| {
            is_about(event, "mount.busy", mount.point())
                && event.list("/holders").iter().any(|holder| holder["pid"] == pid)
        })
    };
    let pids =
        |event: &Event| event.list("/holders").iter().map(|holder| holder["pid"].clone()).collect::<Vec<_>>();
    assert_eq!(pids(&first), [below.pid()], "{first}");
    let second = nth(&mut daemon, above.pid(), "the cover's first attempt");
    assert_eq!(pids(&second), [above.pid()], "{second}");
    second.expect_none("/holders_age_ms");
    assert_ne!(second.get("/mount/device"), first.get("/mount/device"), "{second}");
    assert_ne!(second.get("/mount/identity"), first.get("/mount/identity"), "{second}");
    // The same mount again: its holders are repeated, once they were all found.
    let is_cut = |event: &Event| {
        let mut spots = event.list("/holders_unreadable").iter();
        spots.any(|spot| spot["reason"] == "the time for one scan ran out")
    };
    if is_cut(&second) {
        daemon.wait_for("the rest of the holders of the cover", |event| {
            event.has("/completes") && event.get("/completes") == second.get("/seq") && !is_cut(event)
        });
    }
    go_on();
    let third = daemon.wait_for("the cover's second attempt", |event| {
        is_about(event, "mount.busy", mount.point()) && event.number("/mount/attempts") == Some(2)
    });
    assert_eq!(pids(&third), [above.pid()], "{third}");
    assert!(third.has("/holders_age_ms"), "{third} after {second}");
    assert_eq!(third.get("/mount/identity"), second.get("/mount/identity"), "{third}");
    go_on();
    caller.wait().expect("the shell ends");
    drop((above, below));
}

#[test]
fn a_detached_volume_is_not_resolved_and_names_who_holds_it_still() {
    let mount = Mount::volume();
    let mut daemon = launch().kubelet(&mount).start();
    let (by_cwd, by_fd, leaver) =
        (hold_by_cwd(mount.point()), hold_by_fd(&mount.file()), hold_by_cwd(mount.point()));
    mount.umount_refused();
    wait_for(&mut daemon, "mount.busy", mount.point());
    let gone = leaver.pid();
    drop(leaver);
    let umount = attempt::<&std::ffi::OsStr>(&["umount".as_ref(), "-l".as_ref(), mount.point().as_ref()]);
    let umount = umount.succeeded("umount -l");

    let detached = wait_for(&mut daemon, "mount.detached", mount.point());
    detached.expect_actor(umount.pid, "umount");
    let closed = wait_for(&mut daemon, "incident.closed", mount.point());
    closed.expect("/incident/close_reason", "detached");
    assert!(closed.text("/message").starts_with("detached, not resolved: "), "{closed}");
    for event in [&detached, &closed] {
        // Copies of the mount in namespaces of other tests are listed, too.
        let pids =
            event.list("/holders").iter().filter_map(|holder| holder["pid"].as_u64()).collect::<Vec<_>>();
        for pid in [by_cwd.pid(), by_fd.pid()] {
            assert!(pids.contains(&pid.into()), "{pid} in {event}");
        }
        assert!(!pids.contains(&gone.into()), "{gone}, which has ended, in {event}");
        assert!(event.text("/message").contains("is still held by"), "{event}");
    }
    assert!(!kinds_of(&daemon.events(), mount.point()).contains(&"mount.released".to_owned()));
}

#[test]
fn who_stays_in_a_file_system_of_a_server_that_is_detached_is_named() {
    let scratch = Scratch::new();
    let volume = scratch.path().join("volume");
    mount_served(&volume);
    let mut daemon = launch().start();
    let holder = hold_by_cwd(&volume);
    assert!(!attempt(&["umount".as_ref(), volume.as_os_str()]).status.success());
    wait_for(&mut daemon, "mount.busy", &volume);
    let _ = attempt(&["umount".as_ref(), "-l".as_ref(), volume.as_os_str()]).succeeded("umount -l");
    let detached = wait_for(&mut daemon, "mount.detached", &volume);
    for word in ["is still held by", &format!("(pid {})", holder.pid())] {
        assert!(detached.text("/message").contains(word), "{word} in {detached}");
    }
    // Who came between the two looks cannot be known.
    detached.expect("/holders_complete", false);
}

#[test]
fn fifty_retries_of_one_caller_are_one_story_and_another_caller_has_its_own() {
    let mount = Mount::new();
    let mut daemon = launch().start();
    let culprit = hold_by_cwd(mount.point());
    let retries = "i=0; while [ $i -lt 50 ]; do umount \"$1\" 2>/dev/null; i=$((i + 1)); done";
    let first = shell(retries, &mount);
    let second = shell("umount \"$1\" 2>/dev/null; umount \"$1\" 2>/dev/null; true", &mount);
    // A fence is behind the events of its own mount, and of others only behind those that wait for no scan.
    daemon.wait_for("the last story", |event| {
        is_about(event, "mount.busy", mount.point())
            && event.number("/actor/ancestors/0/pid") == Some(u64::from(second.pid))
            && event.number("/mount/attempts") == Some(2)
    });
    let events = daemon.mount_fence();
    let busy = events.iter().filter(|event| is_about(event, "mount.busy", mount.point()));
    let busy = busy.filter(|event| !event.has("/completes"));
    let stories: Vec<(u64, u64)> = busy
        .map(|event| {
            (
                event.number("/actor/ancestors/0/pid").expect("a parent"),
                event.number("/mount/attempts").expect("a count"),
            )
        })
        .collect();
    let (first, second) = (u64::from(first.pid), u64::from(second.pid));
    let expected = [1, 2, 4, 8, 16, 32].map(|attempts| (first, attempts));
    assert_eq!(stories, [&expected[..], &[(second, 1), (second, 2)]].concat());
    let later: Vec<&Event> = events
        .iter()
        .filter(|event| is_about(event, "mount.busy", mount.point()))
        .filter(|event| event.has("/holders_age_ms"))
        .collect();
    for event in later {
        assert_eq!(event.list("/holders")[0]["pid"], culprit.pid(), "{event}");
    }
}

#[test]
fn a_thousand_mounts_of_a_stranger_displace_no_count_and_no_incident() {
    let mount = Mount::volume();
    let mut daemon = launch().kubelet(&mount).start();
    let culprit = hold_by_cwd(mount.point());
    mount.umount_refused();
    wait_for(&mut daemon, "incident.opened", mount.point());
    let scratch = Scratch::new();
    // Each with another one in it, so that its unmount is refused.
    let script = "mount -t tmpfs strange \"$1\" && cd \"$1\" && mkdir of $(seq 1100) && mount -t tmpfs s of\n\
         mkdir of/in && mount -t tmpfs s of/in\n\
         for i in $(seq 1100); do mount --rbind of $i && umount \"$1/$i\" 2>/dev/null; done";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]).arg(scratch.path());
    // What comes later is told later; most of these have no event of their own.
    let _ = finish(command.stdin(Stdio::null()), "unshare".as_ref());
    let second = mount.umount_refused();
    let fits = |event: &Event| {
        is_about(event, "mount.busy", mount.point()) && event.number("/actor/pid") == Some(second.pid.into())
    };
    let event = daemon.wait_for("the second attempt", fits);
    event.expect("/mount/attempts", 2);
    let seen = kinds_of(&daemon.mount_fence(), mount.point());
    assert!(!seen.iter().any(|kind| kind == "incident.closed"), "{seen:?}");
    stop_and_account_for_refusals(daemon);
    drop(culprit);
}

#[test]
fn an_incomplete_list_of_holders_says_why_and_what_cannot_matter_spoils_no_list() {
    let mount = Mount::new();
    // A zombie, and a process in a mount namespace without the mount.
    let mut zombie = Command::new("sh");
    let zombie = zombie.args(["-c", "sleep 0 & exec sleep 1000000"]).stdin(Stdio::null());
    let zombie = Running::spawn(zombie);
    let mut elsewhere = Command::new("unshare");
    elsewhere.args([
        "--mount", "--propagation", "private", "sh", "-c", "umount -l \"$1\"; exec sleep 1000000", "sh",
    ]);
    let elsewhere = Running::spawn(elsewhere.arg(mount.point()).stdin(Stdio::null()));
    let name = |pid| kevtmon_tests::process::comm(pid);
    wait_until("both have begun", || {
        [zombie.pid(), elsewhere.pid()].iter().all(|pid| name(*pid).as_deref() == Some("sleep")).then_some(())
    });
    let mut daemon = launch().start();
    let culprit = hold_by_cwd(mount.point());
    mount.umount_refused();
    let event = wait_for(&mut daemon, "mount.busy", mount.point());
    // Where the tests run in a container, there are processes that nobody may read.
    let unreadable = event.list("/holders_unreadable");
    event.expect("/holders_complete", unreadable.is_empty());
    for pid in [zombie.pid(), elsewhere.pid()] {
        assert!(unreadable.iter().all(|process| process["pid"] != pid), "{event}");
    }
    drop(culprit);
}

/// Ids of those who use the mount, without the namespaces of other tests that have a copy.
fn users(event: &Event) -> Vec<u64> {
    let holders = event.list("/holders");
    // Other tests have files in flight, which may be of any mount.
    let users = holders
        .iter()
        .filter(|holder| !["mount", "in-flight"].contains(&holder["access"].as_str().unwrap_or("")));
    users.filter_map(|holder| holder["pid"].as_u64()).collect()
}

#[test]
fn a_process_below_a_cover_is_no_holder_of_it_and_not_to_be_ended() {
    let mount = Mount::volume();
    let below = hold_by_cwd(mount.point());
    let cover = Mount::at(mount.point());
    let mut daemon = launch().kubelet(&mount).start();
    let above = hold_by_fd(&cover.file());
    mount.umount_refused();
    let busy = wait_for(&mut daemon, "mount.busy", mount.point());
    assert_eq!(users(&busy), [u64::from(above.pid())], "{busy}");
    let opened = wait_for(&mut daemon, "incident.opened", mount.point());
    for event in [&busy, &opened] {
        assert!(event.text("/message").contains(&format!("(pid {})", above.pid())), "{event}");
        let (text, below) = (event.to_string(), below.pid().to_string());
        // Not as a part of a longer number.
        let mut words = text.split(|c: char| !c.is_ascii_alphanumeric());
        assert!(words.all(|word| word != below), "{event}");
    }
}

/// A process in a mount namespace with a private copy of every mount.
fn private_copy() -> Running {
    let mut copy = Command::new("unshare");
    copy.args(["--mount", "--propagation", "private", "sleep", "1000000"]).stdin(Stdio::null());
    let copy = Running::spawn(&mut copy);
    let named = || kevtmon_tests::process::comm(copy.pid()).filter(|comm| comm == "sleep");
    wait_until("the copy is made", named);
    copy
}

#[test]
fn a_private_copy_in_another_namespace_is_not_what_an_unmount_is_refused_for_and_not_counted() {
    let (mount, held) = (Mount::new(), Mount::new());
    let copy = private_copy();
    // The kernel itself keeps the mount for a loop device; no process has the file open.
    let device = LoopDevice::on(&mount.point().join("disk"), 1);
    let mut daemon = launch().start();
    mount.umount_refused();
    let busy = wait_for(&mut daemon, "mount.busy", mount.point());
    assert_eq!(users(&busy), [0; 0], "{busy}");
    let is_listed = |holder: &serde_json::Value| holder["pid"] == copy.pid() && holder["access"] == "mount";
    assert!(busy.list("/holders").iter().any(is_listed), "{busy}");
    assert_ne!(busy.text("/holders_verdict"), "mount-namespace", "{busy}");
    // In the copy, the file would have the same name.
    let possible = format!("possibly it is held by loop device {}, ", device.name());
    assert!(busy.text("/message").contains(&possible), "{busy}");
    busy.expect("/holders_verdict", "incomplete");
    assert!(busy.sentence().ends_with(", which does not refuse the unmount by itself"), "{busy}");

    let culprit = hold_by_cwd(held.point());
    held.umount_refused();
    let busy = wait_for(&mut daemon, "mount.busy", held.point());
    let sentence = format!("held by sleep (pid {}) as its current directory", culprit.pid());
    assert!(busy.sentence().ends_with(&sentence), "{busy}");
}

#[test]
fn a_volume_that_is_unmounted_while_another_namespace_has_a_copy_is_not_all_gone() {
    let mount = Mount::volume();
    let copy = private_copy();
    let mut daemon = launch().kubelet(&mount).start();
    let holder = hold_by_cwd(mount.point());
    mount.umount_refused();
    wait_for(&mut daemon, "mount.busy", mount.point());
    drop(holder);
    wait_until("the holder let go", || mount.umount().status.success().then_some(()));
    let has_copy = |holder: &serde_json::Value| holder["pid"] == copy.pid() && holder["access"] == "mount";
    let released = wait_for(&mut daemon, "mount.released", mount.point());
    assert!(released.list("/holders").iter().any(has_copy), "{released}");
    assert!(released.text("/message").contains(", and its file system is still mounted in "), "{released}");
    let closed = wait_for(&mut daemon, "incident.closed", mount.point());
    closed.expect("/incident/close_reason", "resolved");
    assert!(closed.text("/message").contains("; its file system stayed mounted in "), "{closed}");
}
