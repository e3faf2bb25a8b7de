//! Mounts that are refused because something else uses the device.

use std::path::Path;

use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::loop_device::LoopDevice;
use kevtmon_tests::mount::{Scratch, wait_for};
use kevtmon_tests::process::{attempt, run};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};

/// The event of a mount of a device, which is refused.
fn refused(daemon: &mut Daemon, device: &LoopDevice, at: &Path, flags: MsFlags) -> Event {
    std::fs::create_dir_all(at).expect("a mount point can be made");
    // Not by mount(8): newer ones make other system calls.
    let result = mount(Some(device.name()), at, Some("ext4"), flags, None::<&str>);
    assert_eq!(result, Err(Errno::EBUSY));
    let event = wait_for(daemon, "mount.refused", at);
    event.expect("/mount/syscall", "mount");
    event.expect("/mount/errno", "EBUSY");
    event.expect("/mount/source", device.name());
    event.expect("/mount/block_device/name", device.name());
    event.expect("/actor/pid", std::process::id());
    event.expect("/actor/confidence", "certain");
    event
}

/// Ends the use of a device as swap, also of a test that fails.
struct SwapOff<'d>(&'d LoopDevice);

impl Drop for SwapOff<'_> {
    fn drop(&mut self) {
        let _ = attempt(&["swapoff", self.0.name()]);
    }
}

#[test]
fn a_device_that_is_swapped_to_cannot_be_mounted() {
    let scratch = Scratch::new();
    let device = LoopDevice::on(&scratch.path().join("disk"), 8);
    run(&format!("mkswap {}", device.name()));
    let _off = SwapOff(&device);
    run(&format!("swapon {}", device.name()));
    let mut daemon = launch().start();
    let event = refused(&mut daemon, &device, &scratch.path().join("mnt"), MsFlags::empty());
    event.expect("/mount/block_device/swap", true);
    event.expect("/holders_verdict", "kernel");
    let reason = format!(" refused: the kernel swaps to {}", device.name());
    assert!(event.text("/message").ends_with(&reason), "{event}");
    let why = daemon.ask(&["why", device.name()]);
    assert!(why.stdout.contains("mount.refused"), "{why:?}");
}

#[test]
fn a_device_that_is_mounted_cannot_be_mounted_with_other_flags() {
    let scratch = Scratch::new();
    let device = LoopDevice::on(&scratch.path().join("disk"), 8);
    let first = scratch.path().join("first");
    device.mount(&first);
    let mut daemon = launch().start();
    let event = refused(&mut daemon, &device, &scratch.path().join("second"), MsFlags::MS_RDONLY);
    event.expect("/mount/flags/0", "MS_RDONLY");
    event.expect("/holders_verdict", "child-mount");
    let holders = event.list("/holders");
    let is_first = |path: &serde_json::Value| *path == *first.to_string_lossy();
    assert!(holders.iter().any(|holder| holder["access"] == "mount" && is_first(&holder["path"])), "{event}");
    let reason = format!(" refused: {} is mounted at {}", device.name(), first.display());
    assert!(event.text("/message").contains(&reason), "{event}");
    run(&format!("umount {}", first.display()));
}

#[test]
fn of_a_file_system_that_needs_no_device_the_source_is_not_the_reason() {
    let scratch = Scratch::new();
    let device = LoopDevice::on(&scratch.path().join("disk"), 8);
    let (first, point) = (scratch.path().join("first"), scratch.path().join("sys"));
    device.mount(&first);
    std::fs::create_dir_all(&point).expect("a mount point can be made");
    // One for all mounts in a network namespace, unlike `proc`.
    let sysfs = || mount(Some(device.name()), &point, Some("sysfs"), MsFlags::empty(), None::<&str>);
    assert_eq!(sysfs(), Ok(()));
    let mut daemon = launch().start();
    assert_eq!(sysfs(), Err(Errno::EBUSY));
    let event = wait_for(&mut daemon, "mount.refused", &point);
    event.expect_none("/mount/block_device");
    assert!(event.text("/message").ends_with(" refused: the kernel does not say why"), "{event}");
    run(&format!("umount {} {}", point.display(), first.display()));
}
