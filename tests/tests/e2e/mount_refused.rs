//! Mounts that are refused because something else uses the device.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::loop_device::LoopDevice;
use kevtmon_tests::mount::{Scratch, wait_for};
use kevtmon_tests::process::{attempt, run};
use libc::c_long;
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

#[test]
fn an_overlay_is_refused_for_another_one_with_its_upper_directory() {
    let scratch = Scratch::new();
    let device = LoopDevice::on(&scratch.path().join("disk"), 16);
    let [disk, first, second] = ["layers", "first", "second"].map(|name| scratch.path().join(name));
    device.mount(&disk);
    let [lower, upper, work] = ["lower", "upper", "work"].map(|name| disk.join(name));
    for directory in [&lower, &upper, &work, &first, &second] {
        std::fs::create_dir_all(directory).expect("a directory can be made");
    }
    let (lower, upper, work) = (lower.display(), upper.display(), work.display());
    let options = format!("lowerdir={lower},upperdir={upper},workdir={work},index=on");
    let overlay =
        |at: &Path| mount(Some("overlay"), at, Some("overlay"), MsFlags::empty(), Some(options.as_str()));
    assert_eq!(overlay(&first), Ok(()));
    let mut daemon = launch().start();
    assert_eq!(overlay(&second), Err(Errno::EBUSY));
    let event = wait_for(&mut daemon, "mount.refused", &second);
    event.expect("/mount/fstype", "overlay");
    event.expect("/mount/source", &*upper.to_string());
    event.expect("/holders_verdict", "child-mount");
    event.expect("/holders_complete", false);
    let other = format!("likely that of the overlay at {} in ", first.display());
    assert!(event.text("/message").contains(&format!(" refused: its upper directory is {other}")), "{event}");
    run(&format!("umount {} {}", first.display(), disk.display()));
}

/// Commands of fsconfig(2), include/uapi/linux/mount.h.
const SET_FLAG: c_long = 0;
const SET_STRING: c_long = 1;
const CREATE: c_long = 6;

/// A context of a file system, as newer programs make one to mount it.
struct FsContext(OwnedFd);

impl FsContext {
    fn new(fstype: &CStr) -> Self {
        // SAFETY: the name is a string that outlives the call, which writes nothing.
        let opened = unsafe { libc::syscall(libc::SYS_fsopen, fstype.as_ptr(), 1) };
        let descriptor = Errno::result(opened).expect("fsopen(2)");
        // SAFETY: it was just opened, and nothing else closes it.
        Self(unsafe { OwnedFd::from_raw_fd(RawFd::try_from(descriptor).expect("a descriptor")) })
    }

    fn config(&self, command: c_long, key: Option<&CStr>, value: Option<&CStr>) -> Result<(), Errno> {
        let address = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
        let (descriptor, key, value) = (c_long::from(self.0.as_raw_fd()), address(key), address(value));
        // SAFETY: both are strings that outlive the call, or null; it writes nothing.
        let result = unsafe { libc::syscall(libc::SYS_fsconfig, descriptor, command, key, value, 0) };
        Errno::result(result).map(drop)
    }
}

#[test]
fn what_fsconfig_is_refused_is_told_without_a_mount_point() {
    let scratch = Scratch::new();
    let device = LoopDevice::on(&scratch.path().join("disk"), 8);
    run(&format!("mkswap {}", device.name()));
    let _off = SwapOff(&device);
    run(&format!("swapon {}", device.name()));
    let mut daemon = launch().start();
    let source = CString::new(device.name()).expect("no NUL");
    let context = FsContext::new(c"ext4");
    assert_eq!(context.config(SET_STRING, Some(c"source"), Some(&source)), Ok(()));
    assert_eq!(context.config(SET_FLAG, Some(c"ro"), None), Ok(()));
    assert_eq!(context.config(CREATE, None, None), Err(Errno::EBUSY));
    let event = daemon.wait_for("mount.refused by fsconfig", |event| {
        event.kind() == "mount.refused" && event.text("/mount/syscall") == "fsconfig"
    });
    event.expect_none("/mount/path");
    event.expect("/mount/source", device.name());
    event.expect("/mount/fstype", "ext4");
    event.expect("/mount/flags/0", "MS_RDONLY");
    event.expect("/mount/errno", "EBUSY");
    event.expect("/mount/block_device/swap", true);
    event.expect("/holders_verdict", "kernel");
    event.expect("/actor/pid", std::process::id());
    event.expect("/actor/confidence", "certain");
    let message = event.text("/message");
    assert!(message.starts_with(&format!("mount of {} by ", device.name())), "{event}");
    assert!(message.ends_with(&format!(" refused: the kernel swaps to {}", device.name())), "{event}");
    let why = daemon.ask(&["why", device.name()]);
    assert!(why.stdout.contains("mount.refused"), "{why:?}");
}

#[test]
fn what_fsconfig_refuses_in_a_wrong_order_is_no_refused_mount() {
    // Others count their refusals in the same kernel.
    let _scratch = Scratch::new();
    let daemon = launch().start();
    let counted = |metric: &str| daemon.metrics().count(metric, &[("syscall", "fsconfig")]);
    let made = FsContext::new(c"tmpfs");
    assert_eq!(made.config(CREATE, None, None), Ok(()));
    for command in [CREATE, SET_FLAG] {
        let key = (command == SET_FLAG).then_some(c"ro");
        assert_eq!(made.config(command, key, None), Err(Errno::EBUSY), "{command}");
    }
    // It fails, as it has no source, and is busy from then on.
    let failed = FsContext::new(c"ext4");
    let failure = failed.config(CREATE, None, None);
    assert!(failure.is_err_and(|error| error != Errno::EBUSY), "{failure:?}");
    assert_eq!(failed.config(CREATE, None, None), Err(Errno::EBUSY));
    eventually!(counted("kevtmon_kernel_mount_unproven_total") > 0.0, "it may be made up");
    assert_eq!(counted("kevtmon_kernel_mount_busy_total"), 0.0, "none was refused for a device in use");
}
