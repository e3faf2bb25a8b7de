//! Ceph RBD images that are mapped for nobody. The kernel's own need a cluster: what sysfs shows of them is a tree that the test
//! makes, and their device is a loop device, so that mounts of it are real. Events of the kernel (`NETLINK_KOBJECT_UEVENT`) are not
//! tried here: an image is found when the daemon starts, or by a look from time to time.

#![allow(clippy::expect_used, reason = "a test whose set-up fails must fail")]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kevtmon_tests::advice::{carry_out, incident, is_understood, offered, opened, resolved};
use kevtmon_tests::daemon::{Daemon, kubelet_roots, launch};
use kevtmon_tests::eventually;
use kevtmon_tests::fake_dockerd::FakeDockerd;
use kevtmon_tests::loop_device::LoopDevice;
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::pod_sandbox::uuid;
use kevtmon_tests::process::{Running, comm, run};

const KIND: &str = "rbd-orphan-mapping";
const IMAGE: [(&str, &str); 3] = [("pool", "kube"), ("rados_namespace", ""), ("image", "index-api-image")];

/// A tree as sysfs makes it of one image, whose device is this one.
fn map(sysfs: &Path, device: &LoopDevice) -> PathBuf {
    let number = fs::metadata(device.name()).expect("the device has a node").rdev();
    let (major, minor) = (nix::sys::stat::major(number), nix::sys::stat::minor(number));
    let directory = sysfs.join("bus/rbd/devices/0");
    fs::create_dir_all(&directory).expect("a directory can be made");
    for (name, text) in [
        ("pool", "kube"),
        ("pool_ns", ""),
        ("name", "index-api-image"),
        ("image_id", "5e2a6b8b4567"),
        ("current_snap", "-"),
        ("client_id", "client24128"),
        ("client_addr", "10.47.136.60:0/1504107565"),
        ("cluster_fsid", "7b7a2f50-9d1c-4a3e-8f6d-2c5b1e0a9d84"),
        ("config_info", "10.47.136.2:6789 name=admin,secret=AQBk3y5aAAAAABAA kube index-api-image -"),
        ("major", &major.to_string()),
        ("minor", &minor.to_string()),
    ] {
        fs::write(directory.join(name), format!("{text}\n")).expect("a file can be written");
    }
    directory
}

fn config(root: &Path, sysfs: &Path) -> String {
    format!(
        "{}\n[rbd]\nsysfs = \"{}\"\n[incidents]\nrbd_orphan_mapping_seconds = 1\n",
        kubelet_roots(root),
        sysfs.display()
    )
}

/// A process with a mount namespace of its own, in which nothing that happens elsewhere has any effect.
fn apart() -> Running {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sleep", "1000000"]);
    let process = Running::spawn(command.stdin(Stdio::null()));
    eventually!(comm(process.pid()).as_deref() == Some("sleep"), "it is in its namespace");
    process
}

fn has(daemon: &Daemon, name: &str) -> bool {
    daemon.metrics().sum(name, &IMAGE) == Some(1.0)
}

#[test]
fn an_image_that_is_mapped_for_nobody_is_freed_step_by_step() {
    let scratch = Scratch::new();
    let (root, sysfs) = (scratch.path().join("kubelet"), scratch.path().join("sys"));
    let device = LoopDevice::on(&scratch.path().join("image"), 16);
    let staged = root.join("plugins/kubernetes.io/rbd/mounts/kube-image-index-api-image");
    device.mount(&staged);
    let volume = root.join(format!("pods/{}/volumes/kubernetes.io~rbd/index", uuid()));
    fs::create_dir_all(&volume).expect("a directory can be made");
    run(&format!("mount --bind {} {}", staged.display(), volume.display()));
    let image = map(&sysfs, &device);
    let dockerd = FakeDockerd::start();
    let mut daemon = launch().runtime(dockerd.runtime()).config(&config(&root, &sysfs)).start();
    eventually!(has(&daemon, "kevtmon_rbd_image_mapped"), "it is mapped");
    eventually!(has(&daemon, "kevtmon_rbd_image_mounted"), "it is mounted");

    // A pod has used it, and is gone; somebody has a copy of both mounts.
    let holder = apart();
    run(&format!("umount {}", volume.display()));
    run(&format!("nsenter -t {} -m umount {}", holder.pid(), volume.display()));
    let id = opened(&mut daemon, KIND, |event| event.text("/rbd/image") == "index-api-image");
    let open = incident(&daemon, &id);
    let summary = open.text("/summary").to_owned();
    for words in [
        "RBD image kube/index-api-image is still mapped as /dev/rbd0 (client 10.47.136.60:0/1504107565)"
            .to_owned(),
        format!("the host still has it mounted at {}", staged.display()),
        format!("it is mounted in the mount namespace of sleep (pid {})", holder.pid()),
    ] {
        assert!(summary.contains(&words), "{words}: {summary}");
    }
    assert_eq!(offered(&open, "rbd-orphan-mapping/unmap-image").as_deref(), Some("rbd unmap /dev/rbd0"));
    let _ = carry_out(&daemon, &id, "rbd-orphan-mapping/tell-volume");
    let _ = carry_out(&daemon, &id, "rbd-orphan-mapping/unmount");
    let _ = carry_out(&daemon, &id, "rbd-orphan-mapping/unmount-inside");
    let unreachable =
        ["ceph.conf", "connect to the cluster", "sysfs", "not mapped", "No such", "unmap failed"];
    let _ = is_understood(&daemon, &id, "rbd-orphan-mapping/list-locks", &unreachable);
    let _ = is_understood(&daemon, &id, "rbd-orphan-mapping/unmap-image", &unreachable);
    let freed = || incident(&daemon, &id).text("/summary").contains("nobody was found to hold it");
    eventually!(freed(), "nobody holds it");
    eventually!(!has(&daemon, "kevtmon_rbd_image_mounted"), "it is mounted nowhere");
    assert!(has(&daemon, "kevtmon_rbd_image_mapped"));

    fs::remove_dir_all(image).expect("the tree is the test's");
    let unmapped = daemon.wait_for("rbd.unmapped", |event| event.kind() == "rbd.unmapped");
    unmapped.expect("/rbd/pool", "kube");
    unmapped.expect("/rbd/client_addr", "10.47.136.60:0/1504107565");
    let _ = resolved(&mut daemon, &id);
    eventually!(!has(&daemon, "kevtmon_rbd_image_mapped"), "it is not mapped");
    let all = format!("{:?}{}", daemon.events(), daemon.log());
    assert!(!all.contains("AQBk3y5a"), "no key of the cluster");
}
