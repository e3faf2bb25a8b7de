//! Whoever looks for holders is none: while the daemon and `kevtmon holders` scan without end, each mount can be unmounted as soon as
//! nobody else holds it, and volumes and containers can be removed.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::{Daemon, WITHOUT_BUDGETS, kubelet_roots, launch};
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::eventually;
use kevtmon_tests::lock::Exclusive;
use kevtmon_tests::loop_device::LoopDevice;
use kevtmon_tests::mount::{Mount, Scratch};
use kevtmon_tests::pod_sandbox::uuid;
use kevtmon_tests::process::{Finished, Running, attempt, comm, hold_by_cwd, hold_by_fd};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

/// How often a mount is held, refused, let go and unmounted.
const ROUNDS: usize = 40;
/// Containers that are removed.
const CONTAINERS: usize = 3;

/// How often each loop went round.
#[derive(Default)]
struct Loops {
    done: AtomicBool,
    scans: AtomicU32,
    scrapes: AtomicU32,
}

/// Ends the loops, also of a test that fails.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does something while `kevtmon holders` is asked for a path again and again, and the daemon for what it pins itself: that is no
/// mount and no mount namespace at any time, and no network namespace but for the moment in which it reads a new one.
fn while_scanned(daemon: &Daemon, path: &Path, act: impl FnOnce(&Loops)) {
    let pinned = |kinds: &[&str]| -> f64 {
        let metrics = daemon.metrics();
        kinds.iter().map(|kind| metrics.count("kevtmon_self_pins", &[("type", kind)])).sum()
    };
    let all = || pinned(&["mount", "mntns", "netns"]);
    eventually!(all() == 0.0, "it has read what there is");
    let loops = Loops::default();
    let text = path.to_str().expect("a path that is text");
    std::thread::scope(|scope| {
        let done = Done(&loops.done);
        scope.spawn(|| {
            while !loops.done.load(Ordering::Relaxed) {
                daemon.ask(&["holders", text]);
                loops.scans.fetch_add(1, Ordering::Relaxed);
            }
        });
        let pins = scope.spawn(|| {
            let mut most: f64 = 0.0;
            while !loops.done.load(Ordering::Relaxed) {
                most = most.max(pinned(&["mount", "mntns"]));
                loops.scrapes.fetch_add(1, Ordering::Relaxed);
            }
            most
        });
        act(&loops);
        // Each has been at it for as long as the mounts were.
        drop(done);
        assert_eq!(pins.join().expect("it reads metrics"), 0.0, "something is pinned");
    });
    eventually!(all() == 0.0, "no network namespace stays pinned");
}

/// Another scan of the loop that is complete within the life of what is mounted now: it begins and ends from now on.
fn scanned(loops: &Loops) {
    let before = loops.scans.load(Ordering::Relaxed);
    eventually!(loops.scans.load(Ordering::Relaxed) >= before + 2, "it is scanned");
}

/// A command in the mount namespace of a container.
fn inside(container: &Container<'_>, words: &[&str]) -> Finished {
    let pid = container.pid().to_string();
    attempt(&[&["nsenter", "--mount", "--target", &pid, "/bin/busybox"], words].concat())
}

/// Holds a mount of a container from its mount namespace.
fn hold_inside(container: &Container<'_>, path: &str) -> Running {
    let mut command = Command::new("nsenter");
    command.args(["--mount", &format!("--target={}", container.pid()), "sh", "-c"]);
    command.args([&format!("cd {path} && exec sleep 1000000")]);
    let holder = Running::spawn(command.stdin(Stdio::null()));
    eventually!(comm(holder.pid()).as_deref() == Some("sleep"), "it is there");
    holder
}

/// Whether no mount at all, of whatever namespace, has a device any more.
fn is_free(device: &LoopDevice) -> bool {
    File::options().read(true).custom_flags(libc::O_EXCL).open(device.name()).is_ok()
}

/// What counts all that the kernel does, or needs a quiet machine.
mod alone {
    use super::*;

    #[test]
    fn a_volume_can_be_unmounted_and_removed_as_soon_as_nobody_else_holds_it_however_often_it_is_scanned() {
        let _exclusive = Exclusive::take();
        let scratch = Scratch::new();
        let root = scratch.path().join("kubelet");
        let point = root.join(format!("pods/{}/volumes/kubernetes.io~rbd/data", uuid()));
        let daemon = launch().config(&format!("{WITHOUT_BUDGETS}{}", kubelet_roots(&root))).start();
        while_scanned(&daemon, &point, |loops| {
            for round in 0..ROUNDS {
                let volume = Mount::at(&point);
                let holder = if round % 2 == 0 { hold_by_cwd(&point) } else { hold_by_fd(&volume.file()) };
                for _ in 0..1 + round % 4 {
                    assert_eq!(umount2(&point, MntFlags::UMOUNT_NOFOLLOW), Err(Errno::EBUSY));
                }
                if round % 3 == 0 {
                    scanned(loops);
                }
                drop(holder);
                assert_eq!(umount2(&point, MntFlags::UMOUNT_NOFOLLOW), Ok(()), "in round {round}");
                std::fs::remove_dir(&point).expect("nothing is mounted there");
            }
        });
        assert!(daemon.metrics().count("kevtmon_holders_scan_seconds_count", &[]) > 0.0);
    }

    #[test]
    fn a_container_that_is_scanned_without_end_can_unmount_its_own_mounts_and_be_removed() {
        let _exclusive = Exclusive::take();
        let dockerd = Dockerd::shared();
        let daemon = launch().joining(dockerd.runtime()).config(WITHOUT_BUDGETS).start();
        for _ in 0..CONTAINERS {
            let scratch = Scratch::new();
            let (device, point) =
                (LoopDevice::on(&scratch.path().join("disk"), 16), scratch.path().join("volume"));
            device.mount(&point);
            let bind = format!("{}:/volume", point.display());
            let mut container = Container::idle(dockerd, &["-v", &bind]);
            while_scanned(&daemon, &point, |loops| {
                for round in 0..ROUNDS / 4 {
                    let _ = inside(&container, &["mount", "-t", "tmpfs", "own", "/data"]).succeeded("mount");
                    let holder = hold_inside(&container, "/data");
                    assert!(!inside(&container, &["umount", "/data"]).status.success(), "it is busy");
                    drop(holder);
                    let _ = inside(&container, &["umount", "/data"])
                        .succeeded(&format!("umount in round {round}"));
                }
                scanned(loops);
                // The container has a copy, which refuses nothing.
                assert_eq!(umount2(&point, MntFlags::UMOUNT_NOFOLLOW), Ok(()));
                assert!(!is_free(&device), "it keeps the device");
                container.end(&["rm", "-f"]);
                eventually!(is_free(&device), "nobody keeps the device");
                std::fs::remove_dir(&point).expect("nothing is mounted there");
            });
        }
    }
}
