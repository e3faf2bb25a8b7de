//! Unmounts of one mount one after another: which of them took it, and who holds it by then.

use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::mount::{Mount, is_about, shell, wait_for};
use kevtmon_tests::process::{hold_by_cwd, hold_by_fd};
use nix::sys::signal::Signal;

fn pids(event: &Event) -> Vec<u64> {
    event.list("/holders").iter().filter_map(|holder| holder["pid"].as_u64()).collect()
}

#[test]
fn a_volume_that_was_detached_in_use_is_not_resolved_by_who_unmounts_the_next_one() {
    let mount = Mount::volume();
    let mut daemon = launch().kubelet(&mount).start();
    let holder = hold_by_cwd(mount.point());
    mount.umount_refused();
    wait_for(&mut daemon, "mount.busy", mount.point());
    // All of it before the daemon can look.
    daemon.signal(Signal::SIGSTOP);
    let all = shell("umount -l \"$1\" && mount -t tmpfs next \"$1\" && umount \"$1\"", &mount);
    daemon.signal(Signal::SIGCONT);
    assert!(all.status.success(), "{}", all.stderr);
    let closed = wait_for(&mut daemon, "incident.closed", mount.point());
    closed.expect("/incident/close_reason", "detached");
    assert!(pids(&closed).contains(&holder.pid().into()), "{closed}");
    let released =
        daemon.mount_fence().into_iter().find(|event| is_about(event, "mount.released", mount.point()));
    assert_eq!(released.map(|event| event.to_string()), None);
}

#[test]
fn who_unmounted_a_cover_has_not_released_what_went_right_after() {
    let mut daemon = launch().start();
    for _ in 0..5 {
        let mount = Mount::new();
        let holder = hold_by_cwd(mount.point());
        mount.umount_refused();
        wait_for(&mut daemon, "mount.busy", mount.point());
        drop(holder);
        let cover = shell("mount -t tmpfs cover \"$1\"", &mount);
        assert!(cover.status.success(), "{}", cover.stderr);
        // Seen to be gone before the record of the second one comes, perhaps.
        let (first, second) = (mount.umount(), mount.umount());
        assert!(first.status.success() && second.status.success(), "{} {}", first.stderr, second.stderr);
        wait_for(&mut daemon, "mount.released", mount.point()).expect("/actor/pid", second.pid);
    }
}

#[test]
fn who_let_go_is_not_told_again_and_who_holds_it_now_is_found() {
    let mount = Mount::volume();
    let mut daemon = launch().kubelet(&mount).start();
    let (first, stays) = (hold_by_cwd(mount.point()), hold_by_fd(&mount.file()));
    mount.umount_refused();
    wait_for(&mut daemon, "mount.busy", mount.point());
    let told = |daemon: &mut Daemon, attempts: u64| {
        let what = format!("attempt {attempts} on {}", mount.point().display());
        daemon.wait_for(&what, |event| {
            is_about(event, "mount.busy", mount.point()) && event.number("/mount/attempts") == Some(attempts)
        })
    };
    let gone = first.pid();
    drop(first);
    mount.umount_refused();
    let second = told(&mut daemon, 2);
    assert!(second.has("/holders_age_ms"), "{second}");
    assert!(pids(&second).contains(&stays.pid().into()) && !pids(&second).contains(&gone.into()), "{second}");
    let left = stays.pid();
    let now = hold_by_cwd(mount.point());
    drop(stays);
    mount.umount_refused();
    mount.umount_refused();
    let fourth = told(&mut daemon, 4);
    assert!(pids(&fourth).contains(&now.pid().into()) && !pids(&fourth).contains(&left.into()), "{fourth}");
    let message = fourth.text("/message");
    assert!(message.contains(&format!("(pid {})", now.pid())), "{message}");
}

#[test]
fn what_was_mounted_below_and_is_gone_refuses_nothing_any_more() {
    let mount = Mount::volume();
    let mut daemon = launch().kubelet(&mount).start();
    let child = shell("mkdir \"$1\"/below && mount -t tmpfs below \"$1\"/below", &mount);
    assert!(child.status.success(), "{}", child.stderr);
    let holder = hold_by_cwd(mount.point());
    mount.umount_refused();
    let busy = daemon.wait_for("the mount below", |event| is_about(event, "mount.busy", mount.point()));
    assert_eq!(busy.list("/mount/child_mounts").len(), 1, "{busy}");
    // As the advice says.
    let child = shell("umount \"$1\"/below", &mount);
    assert!(child.status.success(), "{}", child.stderr);
    mount.umount_refused();
    let again = daemon.wait_for("the second attempt", |event| {
        is_about(event, "mount.busy", mount.point()) && event.number("/mount/attempts") == Some(2)
    });
    assert!(pids(&again).contains(&holder.pid().into()), "{again}");
    assert!(!again.text("/message").contains("mounted below"), "{again}");
    again.expect_none("/mount/child_mounts");
}
