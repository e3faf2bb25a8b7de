//! Unmounts that are refused for somebody who lets go at once: it is looked again before the kernel is said to hold a mount.

use std::fs::File;

use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::mount::{Mount, wait_for};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

/// Mounts whose holder was there when its holders were looked for.
const TRIES: usize = 20;

/// A mount that was refused for a file that was closed before anybody was looked for, with the event of that.
fn refused(daemon: &mut Daemon) -> (Mount, Event) {
    for _ in 0..TRIES {
        let mount = Mount::new();
        let file = File::open(mount.file()).expect("it can be read");
        let refused = umount2(mount.point(), MntFlags::UMOUNT_NOFOLLOW);
        drop(file);
        assert_eq!(refused, Err(Errno::EBUSY));
        let busy = wait_for(daemon, "mount.busy", mount.point());
        if busy.text("/holders_verdict") != "processes" {
            return (mount, busy);
        }
    }
    unreachable!("the file was seen open each time")
}

#[test]
fn where_nobody_is_found_it_is_looked_again_before_the_kernel_is_said_to_hold_a_mount() {
    let mut daemon = launch().start();
    let (mount, first) = refused(&mut daemon);
    // Where not even root may read process 1, nobody knows all holders: then nothing is concluded.
    if first.text("/holders_verdict") == "incomplete" {
        assert!(!first.list("/holders_unreadable").is_empty(), "{first}");
        return;
    }
    first.expect("/holders_verdict", "none");
    assert!(first.text("/message").ends_with("no holder found yet"), "{first}");
    let seq = first.number("/seq");
    let last = daemon.wait_for("the last look", |event| {
        event.kind() == "mount.busy" && event.has("/completes") && event.number("/completes") == seq
    });
    last.expect("/holders_verdict", "kernel");
    umount2(mount.point(), MntFlags::UMOUNT_NOFOLLOW).expect("nobody holds it");
    let released = wait_for(&mut daemon, "mount.released", mount.point());
    released.expect("/holders_verdict", "transient");
}
