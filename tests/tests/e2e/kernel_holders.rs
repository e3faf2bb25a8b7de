//! What holds a mount for no process: loop devices, with what uses them, and swap files.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kevtmon_tests::daemon::{held, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::lock::Exclusive;
use kevtmon_tests::loop_device::LoopDevice;
use kevtmon_tests::mount::{Mount, Scratch, settle, wait_for};
use kevtmon_tests::process::{Running, attempt, comm, hold_by_cwd, run};
use serde_json::Value;

/// The holders of this kind.
fn of<'e>(event: &'e Event, access: &str) -> Vec<&'e Value> {
    event.list("/holders").iter().filter(|holder| holder["access"] == access).collect()
}

#[test]
fn a_loop_device_is_told_with_where_it_is_mounted_and_beside_processes() {
    let mount = Mount::new();
    let device = LoopDevice::on(&mount.point().join("disk"), 8);
    let above = mount.point().parent().expect("a directory above").join("above it");
    device.mount(&above);
    let mut daemon = launch().start();
    let culprit = hold_by_cwd(mount.point());
    mount.umount_refused();
    let busy = wait_for(&mut daemon, "mount.busy", mount.point());
    busy.expect("/holders_verdict", "processes");
    let [found] = of(&busy, "loop")[..] else { unreachable!("{busy}") };
    assert_eq!(found["loop_device"]["mounts"], serde_json::json!([above.to_string_lossy()]), "{busy}");
    let phrase = format!("held by sleep (pid {}) as its current directory and 1 more", culprit.pid());
    assert!(busy.sentence().ends_with(&phrase), "{busy}");
    run(&format!("umount {}", device.name()));
}

#[test]
fn a_loop_device_that_is_mounted_in_another_mount_namespace_alone_is_told_with_who_is_there() {
    let mount = Mount::new();
    let device = LoopDevice::on(&mount.point().join("disk"), 8);
    let above = mount.point().parent().expect("a directory above").join("above");
    device.mount(&above);
    let mut command = Command::new("unshare");
    let script = format!("umount {}; exec sleep 1000000", mount.point().display());
    command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    let other = Running::spawn(command.stdin(Stdio::null()));
    eventually!(comm(other.pid()).as_deref() == Some("sleep"), "it has the device's mount alone");
    run(&format!("umount {}", above.display()));
    let mut daemon = launch().start();
    mount.umount_refused();
    let busy = wait_for(&mut daemon, "mount.busy", mount.point());
    let [found] = of(&busy, "loop")[..] else { unreachable!("{busy}") };
    let there = &found["loop_device"]["elsewhere"];
    assert_eq!(there[0]["path"], *above.to_string_lossy(), "{busy}");
    assert_eq!(there[0]["pid"], other.pid(), "{busy}");
    assert!(found["loop_device"]["mounts"].is_null(), "it is not mounted here: {busy}");
    let phrase = format!("in the mount namespace of sleep (pid {})", other.pid());
    assert!(busy.text("/message").contains(&phrase), "{busy}");
    drop((other, device));
    eventually!(mount.umount().status.success(), "nothing holds it any more");
}

#[test]
fn a_swap_file_is_told_as_what_may_hold_its_mount() {
    let scratch = Scratch::new();
    let device = LoopDevice::on(&scratch.path().join("disk"), 64);
    let point = scratch.path().join("mnt/point");
    device.mount(&point);
    let file = point.join("swap file");
    let swap: &[&[&std::ffi::OsStr]] = &[
        &["dd".as_ref(), "if=/dev/zero".as_ref(), "bs=1M".as_ref(), "count=8".as_ref()],
        &["chmod".as_ref(), "600".as_ref(), file.as_ref()],
        &["mkswap".as_ref(), file.as_ref()],
        &["swapon".as_ref(), file.as_ref()],
    ];
    let of_file = format!("of={}", file.display());
    for words in swap {
        let mut words = words.to_vec();
        if words[0] == "dd" {
            words.push(of_file.as_ref());
        }
        let _ = attempt(&words).succeeded("the swap file");
    }
    let off = || {
        let _ = attempt(&["swapoff".as_ref(), file.as_os_str()]).succeeded("swapoff");
    };
    let guard = SwapOff(&off);
    let mut daemon = launch().start();
    settle(point.parent().expect("a directory above"));
    assert!(!attempt(&["umount".as_ref(), point.as_os_str()]).status.success(), "it is busy");
    let busy = wait_for(&mut daemon, "mount.busy", &point);
    busy.expect("/holders_verdict", "incomplete");
    busy.expect("/holders_complete", false);
    let [found] = of(&busy, "swap")[..] else { unreachable!("{busy}") };
    assert_eq!(
        (&found["path"], &found["possible"]),
        (&file.to_string_lossy().into(), &true.into()),
        "{busy}"
    );
    assert!(busy.text("/message").contains("possibly it is held by the swap file "), "{busy}");
    drop(guard);
    assert!(attempt(&["umount".as_ref(), point.as_os_str()]).status.success(), "nothing holds it any more");
}

/// Ends the use of a swap file, also of a test that fails.
struct SwapOff<'f>(&'f dyn Fn());

impl Drop for SwapOff<'_> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Where tracefs is.
const TRACEFS: &str = "/sys/kernel/tracing";

/// tracefs, mounted for so long where it was not.
struct Tracefs {
    is_ours: bool,
}

impl Tracefs {
    fn mounted() -> Self {
        let is_ours = !Path::new(TRACEFS).join("uprobe_events").exists();
        if is_ours {
            run(&format!("mount -t tracefs tracefs {TRACEFS}"));
        }
        Self { is_ours }
    }
}

impl Drop for Tracefs {
    fn drop(&mut self) {
        if self.is_ours {
            // Any daemon may read it just then.
            eventually!(attempt(&["umount", TRACEFS]).status.success(), "nobody reads it");
        }
    }
}

/// A probe that is defined for so long, and that nobody uses.
struct Probe(String);

impl Probe {
    fn define(file: &Path) -> Self {
        let name = format!("kevtmon_test/of_{}", std::process::id());
        change(&format!("p:{name} {}:0x1000", file.display())).expect("it can be defined");
        Self(name)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        change(&format!("-:{}", self.0)).expect("it can be removed");
    }
}

/// Adds a line to the list of probes: who opens it otherwise removes all of them.
fn change(line: &str) -> io::Result<()> {
    let list = PathBuf::from(TRACEFS).join("uprobe_events");
    File::options().append(true).open(list)?.write_all(line.as_bytes())
}

/// What counts all that the kernel does, or needs a quiet machine.
mod alone {
    use super::*;

    #[test]
    fn a_loop_device_whose_file_is_below_the_mount_and_not_on_it_holds_nothing() {
        let scratch = Scratch::new();
        let point = scratch.path().join("point");
        std::fs::create_dir(&point).expect("a directory can be made");
        let device = LoopDevice::on(&point.join("disk"), 1);
        let mount = Mount::at(&point);
        // There its name is that of what it would be called on the mount.
        let named = std::fs::read_to_string(format!(
            "/sys/block/{}/loop/backing_file",
            device.name().trim_start_matches("/dev/")
        ));
        assert_eq!(named.expect("it has a file").trim(), point.join("disk").to_string_lossy());
        let told = held(mount.point());
        assert_eq!(told["holders"], serde_json::json!([]), "{told}");
        assert!(mount.umount().status.success(), "nothing holds it");
    }

    #[test]
    fn a_loop_device_holds_the_mount_that_its_file_is_on() {
        // A container that another test starts has a copy of each mount for a moment, which the file may be on just as well.
        let _exclusive = Exclusive::take();
        let mount = Mount::new();
        let file = mount.point().join("disk");
        let device = LoopDevice::on(&file, 1);
        let mut daemon = launch().start();
        mount.umount_refused();
        let busy = wait_for(&mut daemon, "mount.busy", mount.point());
        busy.expect("/holders_verdict", "kernel");
        let [found] = of(&busy, "loop")[..] else { unreachable!("{busy}") };
        assert_eq!(found["path"], *file.to_string_lossy(), "{busy}");
        assert_eq!(found["loop_device"]["name"], device.name(), "{busy}");
        for absent in ["pid", "comm", "possible"] {
            assert!(found[absent].is_null(), "{absent}: {busy}");
        }
        let phrase = format!("held by loop device {}, whose backing file is ", device.name());
        assert!(busy.text("/message").contains(&phrase), "{busy}");
        drop(device);
        kevtmon_tests::eventually!(mount.umount().status.success(), "nothing holds it any more");
        wait_for(&mut daemon, "mount.released", mount.point());
    }

    #[test]
    fn a_probe_that_tracefs_defines_is_told_as_what_may_hold_the_mount_of_its_file() {
        let _exclusive = Exclusive::take();
        let _tracefs = Tracefs::mounted();
        // The kernel takes no blanks in such a path.
        let scratch = Scratch::new();
        let mount = Mount::at(&scratch.path().join("volume"));
        let program = mount.point().join("program");
        std::fs::copy("/proc/self/exe", &program).expect("it can be copied");
        let probe = Probe::define(&program);
        let mut daemon = launch().start();
        mount.umount_refused();
        let busy = wait_for(&mut daemon, "mount.busy", mount.point());
        busy.expect("/holders_verdict", "incomplete");
        busy.expect("/holders_complete", false);
        let expected = serde_json::json!([program.to_string_lossy(), true]);
        let told = |holders: &[&Value]| match holders {
            [found] => serde_json::json!([found["path"], found["possible"]]),
            others => serde_json::json!(others),
        };
        assert_eq!(told(&of(&busy, "uprobe")), expected, "{busy}");
        let phrase = format!("possibly it is held by a uprobe in {}", program.display());
        assert!(busy.text("/message").contains(&phrase), "{busy}");
        let asked = held(mount.point());
        let asked: Vec<&Value> = asked["holders"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|holder| holder["access"] == "uprobe")
            .collect();
        assert_eq!(told(&asked), expected);
        drop(probe);
        eventually!(mount.umount().status.success(), "nothing holds it any more");
        wait_for(&mut daemon, "mount.released", mount.point());
    }
}
