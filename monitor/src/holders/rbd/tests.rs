//! A mount of this process' own namespace stands for that of an image: a user of it is found by the number of its device alone.

use super::*;

/// An image with the device on which `/proc` is, as this process shows it.
fn device(devices: &[&str]) -> Device {
    Device {
        number: 4095,
        devices: devices.iter().map(|&device| device.to_owned()).collect(),
        users: Vec::new(),
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
    let look =
        Look { devices: vec![device(&[&number]), device(&["4095:1"])], budget: Duration::from_secs(20) };
    let found = look.look(&Proc::default());
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
    let device = Device { number: 1, ..device(&["252:16", "252:17"]) };
    let paths: Vec<Option<String>> = pins(&device, &table).into_iter().map(|pin| pin.path).collect();
    assert_eq!(paths, ["/a", "/b", "/publish/pvc-1/uid"].map(|path| Some(path.to_owned())));
}

#[test]
fn only_a_table_that_may_have_a_mount_of_it_is_parsed() {
    let device = Device { number: 1, ..device(&["252:16"]) };
    assert!(device.may_be_in("30 1 252:16 / /a rw - ext4 /dev/rbd1 rw"));
    assert!(device.may_be_in("32 1 0:6 /rbd1 /publish rw - devtmpfs udev rw"));
    assert!(!device.may_be_in("34 1 252:160 / /c rw - ext4 /dev/x rw"));
}

#[test]
fn an_open_file_that_is_no_block_device_is_none() {
    let file = std::fs::File::open("/dev/null").unwrap();
    let process = Proc::default().dir(std::process::id()).unwrap();
    let look = Look { devices: vec![device(&["1:3"])], budget: Duration::from_secs(20) };
    let mut buffers = (Buffer::default(), Buffer::default());
    assert_eq!(look.open_in(&process, &mut buffers).unwrap(), (Vec::new(), true));
    drop(file);
}

#[test]
fn where_not_all_descriptors_were_looked_at_that_is_said() {
    let root = tempfile::tempdir().unwrap();
    let list = root.path().join("7/fd");
    std::fs::create_dir_all(&list).unwrap();
    let look = Look { devices: vec![device(&["1:3"])], budget: Duration::from_secs(20) };
    let is_all = || {
        let process = Proc::new(root.path()).dir(7).unwrap();
        look.open_in(&process, &mut (Buffer::default(), Buffer::default())).unwrap().1
    };
    let open = |fd: usize| std::os::unix::fs::symlink("socket:[1]", list.join(fd.to_string())).unwrap();
    (0..DESCRIPTORS_MAX).for_each(open);
    assert!(is_all());
    open(DESCRIPTORS_MAX);
    assert!(!is_all());
}

#[test]
fn what_there_is_no_room_for_is_counted() {
    let mut used = RbdUse { number: 0, holders: Vec::new(), omitted: 0, devices: Vec::new(), swap: false };
    let pin = Pin::of(Access::Mount, "/a".to_owned());
    add(&mut used, vec![alone(7, pin); HOLDERS_MAX + 2]);
    assert_eq!((used.holders.len(), used.omitted), (HOLDERS_MAX, 2));
}
