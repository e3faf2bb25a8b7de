//! Ceph RBD images that are mapped for nobody. The kernel's own need a cluster: what sysfs shows of them is a tree that the test
//! makes, and their device is a loop device, so that mounts of it are real. Events of the kernel (`NETLINK_KOBJECT_UEVENT`) are not
//! tried here: an image is found when the daemon starts, or by a look from time to time.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kevtmon_tests::actor::{self, Actor};
use kevtmon_tests::advice::{carry_out, incident, is_understood, offered, opened, resolved};
use kevtmon_tests::daemon::{Daemon, POLL_EACH_SECOND, kubelet_roots, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::fake_dockerd::FakeDockerd;
use kevtmon_tests::loop_device::LoopDevice;
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::pod_sandbox::uuid;
use kevtmon_tests::process::{Running, comm, copy_program, hold_by_fd, run};

const KIND: &str = "rbd-orphan-mapping";
const IMAGE: [(&str, &str); 3] = [("pool", "kube"), ("rados_namespace", ""), ("image", "index-api-image")];

fn numbers(device: &LoopDevice) -> (u64, u64) {
    let number = fs::metadata(device.name()).expect("the device has a node").rdev();
    (nix::sys::stat::major(number), nix::sys::stat::minor(number))
}

/// A tree as sysfs makes it of one image, whose device is this one.
fn map(sysfs: &Path, device: &LoopDevice) -> PathBuf {
    let (major, minor) = numbers(device);
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

/// The same of a network block device that a process has connected.
fn connect(sysfs: &Path, name: &str, device: &LoopDevice, pid: u32) -> PathBuf {
    let (major, minor) = numbers(device);
    let directory = sysfs.join("block").join(name);
    fs::create_dir_all(&directory).expect("a directory can be made");
    for (name, text) in [("dev", format!("{major}:{minor}")), ("pid", pid.to_string())] {
        fs::write(directory.join(name), format!("{text}\n")).expect("a file can be written");
    }
    directory
}

/// A process of a program of this name, which does nothing.
fn program_called(name: &str, directory: &Path, arguments: &str) -> Actor {
    let path = directory.join(name);
    copy_program(&actor::program(), &path);
    Actor::spawn(Command::new(path).args(arguments.split(' ')))
}

fn config(root: &Path, sysfs: &Path) -> String {
    format!(
        "{}\n{POLL_EACH_SECOND}[rbd]\nsysfs = \"{}\"\n[incidents]\nrbd_orphan_mapping_seconds = 1\n",
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
    let freed = || incident(&daemon, &id).text("/summary").contains("; no holder found");
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

#[test]
fn an_image_that_rbd_nbd_has_mapped_is_known_by_its_arguments() {
    let scratch = Scratch::new();
    let (root, sysfs) = (scratch.path().join("kubelet"), scratch.path().join("sys"));
    let device = LoopDevice::on(&scratch.path().join("image"), 16);
    let staged = root.join("plugins/kubernetes.io/csi/pv/pvc-1/globalmount");
    device.mount(&staged);
    let arguments = "map kube/index-api-image --id admin --key=AQBk3y5aAAAAABAA --try-netlink";
    let (mapper, other) = (
        program_called("rbd-nbd", scratch.path(), arguments),
        program_called("qemu-nbd", scratch.path(), arguments),
    );
    let nbd = connect(&sysfs, "nbd0", &device, other.pid());
    let by_kernel = map(&sysfs, &device);
    let dockerd = FakeDockerd::start();
    let mut daemon = launch().runtime(dockerd.runtime()).config(&config(&root, &sysfs)).start();
    eventually!(has(&daemon, "kevtmon_rbd_image_mapped"), "it has looked");
    fs::remove_dir_all(by_kernel).expect("the tree is the test's");
    fs::write(nbd.join("pid.new"), format!("{}\n", mapper.pid())).expect("a file can be written");
    fs::rename(nbd.join("pid.new"), nbd.join("pid")).expect("a file can be moved");
    let mapped = daemon.wait_for("rbd.mapped", |event| event.kind() == "rbd.mapped");
    mapped.expect("/rbd/pool", "kube");
    mapped.expect("/rbd/image", "index-api-image");
    mapped.expect("/rbd/device", "/dev/nbd0");
    mapped.expect_none("/rbd/client_addr");
    eventually!(has(&daemon, "kevtmon_rbd_image_mounted"), "it is mounted");

    let id = opened(&mut daemon, KIND, |event| event.text("/rbd/device") == "/dev/nbd0");
    let open = incident(&daemon, &id);
    open.expect("/confidence", "likely");
    let summary = open.text("/summary");
    assert!(summary.contains("is still mapped as /dev/nbd0, though no pod has used it"), "{summary}");
    assert!(summary.contains(&format!("the host still has it mounted at {}", staged.display())), "{summary}");
    let unreachable =
        ["ceph.conf", "connect to the cluster", "sysfs", "not mapped", "No such", "unmap failed"];
    let _ = is_understood(&daemon, &id, "rbd-orphan-mapping/unmap-by-nbd", &unreachable);
    run(&format!("umount {}", staged.display()));

    fs::remove_file(nbd.join("pid")).expect("the tree is the test's");
    let is_its = |event: &Event| event.kind() == "rbd.unmapped" && event.text("/rbd/device") == "/dev/nbd0";
    let _ = daemon.wait_for("rbd.unmapped", is_its);
    let _ = resolved(&mut daemon, &id);
    let all = format!("{:?}{}", daemon.events(), daemon.log());
    assert!(!all.contains("AQBk3y5a"), "no key of the cluster");
}

#[test]
fn an_image_that_rbd_nbd_has_attached_again_is_known() {
    let scratch = Scratch::new();
    let (root, sysfs) = (scratch.path().join("kubelet"), scratch.path().join("sys"));
    let device = LoopDevice::on(&scratch.path().join("image"), 16);
    // The kernel goes on to name the process before, and its id may be another one's since. What is attached is looked for among all
    // processes: no other test may have a device of this name.
    let other = program_called("sleeper", scratch.path(), "map kube/index-api-image");
    let nbd = connect(&sysfs, "nbd1", &device, other.pid());
    fs::write(nbd.join("backend"), "pvc-1\n").expect("a file can be written");
    let arguments = "attach kube/index-api-image --device /dev/nbd1 --cookie pvc-1";
    let _mapper = program_called("rbd-nbd", scratch.path(), arguments);
    let mut daemon = launch().config(&config(&root, &sysfs)).start();
    let is_its = |event: &Event| {
        event.text("/rbd/device") == "/dev/nbd1" && event.text("/rbd/image") == "index-api-image"
    };
    let _ = opened(&mut daemon, KIND, is_its);
}

#[test]
fn who_has_the_device_open_by_a_node_of_any_name_is_found() {
    let scratch = Scratch::new();
    let (root, sysfs) = (scratch.path().join("kubelet"), scratch.path().join("sys"));
    let device = LoopDevice::on(&scratch.path().join("image"), 16);
    let _ = map(&sysfs, &device);
    let (node, (major, minor)) = (scratch.path().join("data"), numbers(&device));
    run(&format!("mknod {} b {major} {minor}", node.display()));
    let holder = hold_by_fd(&node);
    let dockerd = FakeDockerd::start();
    let mut daemon = launch().runtime(dockerd.runtime()).config(&config(&root, &sysfs)).start();
    let id = opened(&mut daemon, KIND, |event| event.text("/rbd/image") == "index-api-image");
    let summary = incident(&daemon, &id).text("/summary").to_owned();
    assert!(summary.contains(&format!("(pid {}) still has it open", holder.pid())), "{summary}");
}

#[test]
fn where_there_is_no_runtime_an_image_that_nobody_uses_is_likely_mapped_for_nobody() {
    let scratch = Scratch::new();
    let (root, sysfs) = (scratch.path().join("kubelet"), scratch.path().join("sys"));
    let device = LoopDevice::on(&scratch.path().join("image"), 16);
    let volume = root.join(format!("pods/{}/volumes/kubernetes.io~rbd/index", uuid()));
    device.mount(&volume);
    let _ = map(&sysfs, &device);
    let mut daemon = launch().config(&config(&root, &sysfs)).start();
    eventually!(has(&daemon, "kevtmon_rbd_image_mounted"), "it is mounted for a pod");
    run(&format!("umount {}", volume.display()));
    let id = opened(&mut daemon, KIND, |event| event.text("/rbd/image") == "index-api-image");
    incident(&daemon, &id).expect("/confidence", "likely");
}

#[test]
fn which_pod_used_an_image_last_is_known_after_a_restart() {
    let scratch = Scratch::new();
    let (root, sysfs, uid) = (scratch.path().join("kubelet"), scratch.path().join("sys"), uuid());
    let device = LoopDevice::on(&scratch.path().join("image"), 16);
    let volume = root.join(format!("pods/{uid}/volumes/kubernetes.io~rbd/index"));
    device.mount(&volume);
    let _ = map(&sysfs, &device);
    let mut before = launch().config(&config(&root, &sysfs)).start();
    eventually!(has(&before, "kevtmon_rbd_image_mounted"), "it is mounted for a pod");
    before.stop();
    run(&format!("umount {}", volume.display()));
    let mut after = launch().config(&config(&root, &sysfs)).on_state_of(&before).start();
    let id = opened(&mut after, KIND, |event| event.text("/rbd/image") == "index-api-image");
    let summary = incident(&after, &id).text("/summary").to_owned();
    assert!(summary.ends_with(" used it last") && summary.contains(&uid), "{summary}");
}
