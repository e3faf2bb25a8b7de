//! A mount of this process' own namespace stands for that of an image: a user of it is found by the number of its device alone.

use super::descriptors::DESCRIPTORS_MAX;
use super::*;

/// An image with the device on which `/proc` is, as this process shows it.
fn device(devices: &[&str]) -> Device {
    Device {
        number: 4095.into(),
        name: "rbd4095".into(),
        devices: devices.iter().map(|&device| device.to_owned()).collect(),
        ..Device::default()
    }
}

fn own_device(mountpoint: &str) -> String {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    MountTable::parse(&text, "/").at(mountpoint).unwrap().device.clone()
}

fn table(lines: &[&str]) -> MountTable {
    MountTable::parse(&lines.join("\n"), "/")
}

#[test]
fn a_mount_is_found_in_the_namespace_of_this_process_with_the_host_s_read() {
    let number = own_device("/proc");
    let devices = vec![device(&[&number]), device(&["4095:1"])];
    let look = Look { devices, budget: Duration::from_secs(20), on_demand: false };
    let found = look.run(&Proc::default());
    let own = Proc::default().ns(std::process::id(), "mnt").unwrap();
    let is_it = |holder: &&Holder| {
        (holder.access, holder.mntns, holder.path.as_deref()) == (Access::Mount, Some(own), Some("/proc"))
    };
    assert_eq!(found.uses[0].holders.iter().filter(is_it).count(), 1, "{:?}", found.uses[0]);
    assert_eq!(found.uses[1].holders, []);
    assert!(!found.uses[1].swap && found.uses[1].devices.is_empty());
    assert!(found.host.is_some() && !found.unread.contains(&own));
}

#[test]
fn a_bound_node_is_a_use_and_another_device_of_a_longer_number_is_none() {
    let table = table(&[
        "30 1 252:16 / /a rw - ext4 /dev/rbd1 rw",
        "31 1 252:17 /sub /b rw - xfs /dev/rbd1p1 rw",
        "32 1 0:6 /rbd1 /publish/pvc-1/uid rw - devtmpfs udev rw",
        "33 1 0:6 /rbd12 /publish/pvc-2/uid rw - devtmpfs udev rw",
        "34 1 252:160 / /c rw - ext4 /dev/rbd10 rw",
        "35 1 0:7 /rbd1 /d rw - tmpfs tmpfs rw",
    ]);
    let device = Device { name: "rbd1".into(), ..device(&["252:16", "252:17"]) };
    let paths: Vec<Option<String>> = pins(&device, &table).into_iter().map(|pin| pin.path).collect();
    assert_eq!(paths, ["/a", "/b", "/publish/pvc-1/uid"].map(|path| Some(path.to_owned())));
}

#[test]
fn a_network_block_device_is_another_one_than_the_kernels_of_that_number() {
    let table = table(&[
        "30 1 43:0 / /a rw - ext4 /dev/nbd1 rw",
        "31 1 0:39 / /b rw - btrfs /dev/nbd1p1 rw",
        "32 1 0:6 /nbd1 /c rw - devtmpfs udev rw",
        "33 1 0:40 / /d rw - btrfs /dev/rbd1 rw",
    ]);
    let device = Device { name: "nbd1".into(), ..device(&["43:0"]) };
    let paths: Vec<Option<String>> = pins(&device, &table).into_iter().map(|pin| pin.path).collect();
    assert_eq!(paths, ["/a", "/b", "/c"].map(|path| Some(path.to_owned())));
}

#[test]
fn a_file_system_without_a_device_number_is_found_by_the_name_of_its_device() {
    let table = table(&[
        "30 1 0:39 / /a rw - btrfs /dev/rbd1 rw,subvolid=5,subvol=/",
        "31 1 0:40 /sub /b rw - btrfs /dev/rbd1p2 rw",
        "32 1 0:41 / /c rw - bcachefs /dev/sdb:/dev/rbd1 rw",
        "33 1 0:42 / /d rw - btrfs /dev/rbd12 rw",
        "34 1 0:43 / /e rw - tmpfs /dev/rbd1 rw",
    ]);
    let device = Device { name: "rbd1".into(), ..device(&["252:16"]) };
    let paths: Vec<Option<String>> = pins(&device, &table).into_iter().map(|pin| pin.path).collect();
    assert_eq!(paths, ["/a", "/b", "/c"].map(|path| Some(path.to_owned())));
}

#[test]
fn a_mount_of_btrfs_is_one_of_a_device_that_it_does_not_show() {
    let table = table(&[
        "30 1 0:39 / /a rw - btrfs /dev/mapper/vg-data rw",
        "31 1 0:40 / /b rw - btrfs /dev/sdc rw",
        "32 1 0:41 / /c rw - ext4 /dev/sdb rw",
    ]);
    let pools = ["sdb", "dm-0", "mapper/vg-data", "loop1"].map(str::to_owned).to_vec();
    let device = Device { pools, ..Device::alone("loop1".into(), "7:1".into(), true) };
    let paths: Vec<Option<String>> = pins(&device, &table).into_iter().map(|pin| pin.path).collect();
    assert_eq!(paths, [Some("/a".to_owned())]);
}

#[test]
fn partitions_of_a_disk_are_numbered_without_a_letter() {
    let is_node = |disk: &str, name: &str| Device { name: disk.into(), ..Device::default() }.is_node(name);
    assert!(is_node("sda", "sda") && is_node("sda", "sda12") && is_node("nvme0n1", "nvme0n1p2"));
    assert!(!is_node("sda", "sdaa1") && !is_node("dm-1", "dm-10") && !is_node("sda1", "sda10"));
}

#[test]
fn a_device_that_is_looked_for_alone_is_none_of_its_partitions_and_a_bound_node_no_claim() {
    let table = table(&[
        "30 1 7:1 / /a rw - ext4 /dev/loop1 rw",
        "31 1 0:39 / /b rw - btrfs /dev/loop1p1 rw",
        "32 1 0:6 /loop1 /c rw - devtmpfs udev rw",
    ]);
    let paths = |is_claim| -> Vec<Option<String>> {
        let device = Device::alone("loop1".into(), "7:1".into(), is_claim);
        pins(&device, &table).into_iter().map(|pin| pin.path).collect()
    };
    assert_eq!(paths(true), [Some("/a".to_owned())]);
    assert_eq!(paths(false), ["/a", "/c"].map(|path| Some(path.to_owned())));
}

#[test]
fn a_file_system_on_it_of_which_no_mount_is_found_is_said() {
    let look = |pools| {
        let devices = vec![Device { pools, ..device(&["4095:1"]) }];
        Look { devices, budget: Duration::from_secs(20), on_demand: false }
            .run(&Proc::default())
            .uses
            .remove(0)
    };
    assert_eq!((look(vec!["rbd4095".into()]).unlocated, look(Vec::new()).unlocated), (true, false));
}

#[test]
fn an_open_file_that_is_no_block_device_is_none() {
    let file = std::fs::File::open("/dev/null").unwrap();
    let process = Proc::default().dir(std::process::id()).unwrap();
    let devices = [device(&["1:3"])];
    let (open, _) = Descriptors::of(&devices, Mounts::default()).open_in(&process).unwrap();
    assert_eq!(open, Vec::new());
    drop(file);
}

/// A process that has these open, and whether all of its descriptors were looked at. `fds`: what each link shows, and the id of the
/// mount.
fn is_all_looked_at(mountinfo: &str, fds: &[(&str, u64)]) -> bool {
    let root = tempfile::tempdir().unwrap();
    let process = root.path().join("7");
    for directory in ["fd", "fdinfo"] {
        std::fs::create_dir_all(process.join(directory)).unwrap();
    }
    std::fs::write(process.join("mountinfo"), mountinfo).unwrap();
    for (fd, (link, id)) in fds.iter().enumerate() {
        std::os::unix::fs::symlink(link, process.join("fd").join(fd.to_string())).unwrap();
        // What is no file is not asked for its mount.
        if link.starts_with('/') {
            std::fs::write(process.join("fdinfo").join(fd.to_string()), format!("mnt_id:\t{id}\n")).unwrap();
        }
    }
    let (process, devices) = (Proc::new(root.path()).dir(7).unwrap(), [device(&["4095:1"])]);
    Descriptors::of(&devices, Mounts::default()).open_in(&process).unwrap().1
}

#[test]
fn where_not_all_descriptors_were_looked_at_that_is_said() {
    let sockets = vec![("socket:[1]", 9); DESCRIPTORS_MAX + 1];
    assert!(is_all_looked_at("", &sockets[1..]));
    assert!(!is_all_looked_at("", &sockets));
}

#[test]
fn what_is_open_on_a_server_s_file_system_or_on_none_that_is_known_may_be_a_device() {
    let mounts = "30 1 8:1 / / rw - ext4 /dev/sda1 rw\n31 30 0:50 / /far rw - cifs //srv/x rw\n\
                  32 30 0:51 / /proc rw - proc proc rw\n";
    let is_all = |link, id| is_all_looked_at(mounts, &[("pipe:[7]", 9), (link, id)]);
    assert_eq!([is_all("/", 30), is_all("/dev/null", 99), is_all("/memfd:x (deleted)", 99)], [true; 3]);
    assert!(is_all("/proc/self/no-such-file", 32));
    assert_eq!([is_all("/far/data", 31), is_all("/data", 99)], [false; 2]);
}

#[test]
fn what_there_is_no_room_for_is_counted() {
    let mut used = RbdUse { number: 0.into(), ..RbdUse::default() };
    let pin = Pin::of(Access::Mount, "/a".to_owned());
    add(&mut used, vec![alone(7, pin); HOLDERS_MAX + 2]);
    assert_eq!((used.holders.len(), used.omitted), (HOLDERS_MAX, 2));
}
