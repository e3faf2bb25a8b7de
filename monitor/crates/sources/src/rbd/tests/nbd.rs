//! What `rbd-nbd` has mapped: trees as sysfs and /proc make them, in directories of the test's own.

use std::os::unix::fs::symlink;

use kevtmon_observation::ImageName;

use super::*;
use crate::procfs::readers::Job as _;
use crate::rbd::nbd::{Connected, Mapper, add, connected};

/// The initial process namespace.
const INITIAL: &str = "pid:[4026531836]";
/// Root of the node.
const STATUS: &str = "Name:\trbd-nbd\nUid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n";

/// Network block devices, of which some are connected.
fn sysfs(devices: &[(u32, Option<&str>)]) -> Tree {
    let tree = Tree::new();
    for (number, pid) in devices {
        let directory = tree.path().join("block").join(format!("nbd{number}"));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("dev"), format!("43:{}\n", number * 32)).unwrap();
        if let Some(pid) = pid {
            fs::write(directory.join("pid"), pid).unwrap();
        }
    }
    for other in ["nbd", "nbd0p1", "nbd-1", "sda"] {
        fs::create_dir_all(tree.path().join("block").join(other)).unwrap();
    }
    tree
}

/// A /proc, with this process' own namespace.
struct Processes(TempDir);

impl Processes {
    fn in_namespace(own: &str) -> Self {
        let processes = Self(tempfile::tempdir().unwrap());
        let own_ns = processes.0.path().join("self/ns");
        fs::create_dir_all(&own_ns).unwrap();
        symlink(own, own_ns.join("pid")).unwrap();
        processes
    }

    fn with(self, pid: u32, exe: &str, status: &str, arguments: &str) -> Self {
        let directory = self.0.path().join(pid.to_string());
        fs::create_dir_all(directory.join("ns")).unwrap();
        symlink("user:[4026531837]", directory.join("ns/user")).unwrap();
        symlink(exe, directory.join("exe")).unwrap();
        fs::write(directory.join("status"), status).unwrap();
        fs::write(directory.join("stat"), "").unwrap();
        fs::write(directory.join("cmdline"), arguments.replace(' ', "\0") + "\0").unwrap();
        self
    }

    fn mappers(&self, connected: &[Connected]) -> Vec<(RbdNumber, Mapper)> {
        Look::at(connected).run(&Proc::new(self.0.path()))
    }
}

fn look(tree: &Tree) -> (Vec<Connected>, Found) {
    let mut found = Found::default();
    let connected = connected(tree.path(), &mut found).unwrap();
    (connected, found)
}

fn found(tree: &Tree, processes: &Processes, was_image: bool) -> Found {
    let (connected, mut found) = look(tree);
    let mappers = processes.mappers(&connected);
    add(connected, &mappers, |_| was_image, &mut found);
    found
}

fn by_nbd(number: u32, image: &str) -> RbdImage {
    RbdImage {
        number: RbdNumber::Nbd(number),
        device: format!("43:{}", number * 32),
        pool: "kube".into(),
        image: image.into(),
        ..RbdImage::default()
    }
}

#[test]
fn what_a_running_rbd_nbd_has_mapped_is_an_image_and_nothing_of_its_key_is_kept() {
    let tree = sysfs(&[(0, Some("70\n")), (2, Some("72\n")), (3, None)]);
    let processes = Processes::in_namespace(INITIAL)
        .with(
            70,
            "/usr/bin/rbd-nbd",
            STATUS,
            "rbd-nbd map kube/index --id admin --key=AQs3cr3t --try-netlink",
        )
        .with(72, "/usr/bin/rbd-nbd (deleted)", STATUS, "/usr/bin/rbd-nbd map kube/team-a/data@nightly");
    let found = found(&tree, &processes, false);
    let snapshot =
        RbdImage { namespace: Some("team-a".into()), snapshot: Some("nightly".into()), ..by_nbd(2, "data") };
    assert_eq!(found.images.images, [by_nbd(0, "index"), snapshot]);
    assert_eq!((found.images.unread.len(), found.problems.len()), (0, 0));
    let looked = serde_json::to_string(&processes.mappers(&look(&tree).0)).unwrap();
    assert!(looked.contains("index") && !looked.contains("s3cr3t"), "{looked}");
}

#[test]
fn what_another_program_has_connected_is_no_image() {
    let tree = sysfs(&[(0, Some("70\n")), (1, Some("71\n")), (2, Some("72\n"))]);
    let users = STATUS.replace("Uid:\t0", "Uid:\t1000");
    let processes = Processes::in_namespace(INITIAL)
        .with(70, "/usr/bin/qemu-nbd", STATUS, "rbd-nbd map kube/index")
        .with(71, "/home/rbd-nbd", &users, "rbd-nbd map kube/index")
        .with(72, "/tmp/rbd-nbd-x", STATUS, "rbd-nbd map kube/index");
    assert_eq!(found(&tree, &processes, true), Found::default());
}

#[test]
fn an_image_that_cannot_be_told_is_unknown_and_counted() {
    let tree = sysfs(&[(0, Some("70\n")), (1, Some("71\n")), (2, Some("x\n")), (3, Some("73"))]);
    let processes = Processes::in_namespace(INITIAL)
        .with(70, "/usr/bin/rbd-nbd", STATUS, "rbd-nbd map index")
        .with(71, "/usr/bin/rbd-nbd", STATUS, "rbd-nbd map --device /dev/nbd7 kube/index");
    let found = found(&tree, &processes, false);
    assert_eq!(found.images.images, []);
    let mut unread = found.images.unread;
    unread.sort();
    assert_eq!(unread, [0, 1, 2, 3].map(RbdNumber::Nbd));
    let unclear = "which image rbd-nbd has mapped";
    let expected: [Problem; 4] = [(0, unclear), (1, unclear), (2, "pid"), (3, "pid")]
        .map(|(number, problem)| (Some(RbdNumber::Nbd(number)), problem));
    assert_eq!(found.problems, expected.into());
}

#[test]
fn where_its_process_is_gone_an_image_is_unknown_and_what_was_none_is_none() {
    let tree = sysfs(&[(0, Some("70\n"))]);
    let processes = Processes::in_namespace(INITIAL);
    assert_eq!(found(&tree, &processes, false), Found::default());
    let unknown = found(&tree, &processes, true);
    assert_eq!((unknown.images.unread, unknown.images.images), (vec![RbdNumber::Nbd(0)], vec![]));
    assert_eq!(unknown.problems, BTreeSet::new());
}

#[test]
fn an_image_that_is_attached_again_is_known_though_the_kernel_names_the_process_before() {
    let tree = sysfs(&[(0, Some("70\n")), (1, Some("71\n"))]);
    fs::write(tree.path().join("block/nbd0/backend"), "vol-1\n").unwrap();
    fs::write(tree.path().join("block/nbd1/backend"), "\n").unwrap();
    let processes = Processes::in_namespace(INITIAL)
        .with(71, "/usr/bin/sleep", STATUS, "sleep 9")
        .with(80, "/usr/bin/rbd-nbd", STATUS, "rbd-nbd attach kube/index --device /dev/nbd0 --cookie vol-1")
        .with(81, "/usr/bin/rbd-nbd", STATUS, "rbd-nbd attach kube/data --device=/dev/nbd1");
    let found = found(&tree, &processes, false);
    assert_eq!(found.images.images, [by_nbd(0, "index"), by_nbd(1, "data")]);
    assert_eq!((found.images.unread.len(), found.problems.len()), (0, 0));
}

#[test]
fn what_cannot_have_attached_a_device_does_not_serve_it() {
    let tree = sysfs(&[(0, Some("70\n"))]);
    fs::write(tree.path().join("block/nbd0/backend"), "vol-1\n").unwrap();
    let users = STATUS.replace("Uid:\t0", "Uid:\t1000");
    let attach = "rbd-nbd attach kube/index --device /dev/nbd0 --cookie vol-1";
    for (exe, status, arguments) in [
        ("/home/rbd-nbd", users.as_str(), attach),
        ("/usr/bin/sleep", STATUS, attach),
        ("/usr/bin/rbd-nbd", STATUS, "rbd-nbd attach kube/index --device /dev/nbd0 --cookie vol-2"),
        ("/usr/bin/rbd-nbd", STATUS, "rbd-nbd attach kube/index --device /dev/nbd7 --cookie vol-1"),
        ("/usr/bin/rbd-nbd", STATUS, "rbd-nbd map kube/index --device /dev/nbd0 --cookie vol-1"),
    ] {
        let processes = Processes::in_namespace(INITIAL).with(80, exe, status, arguments);
        assert_eq!(found(&tree, &processes, false), Found::default(), "{exe} {arguments}");
    }
    let processes = Processes::in_namespace(INITIAL).with(80, "/usr/bin/rbd-nbd", STATUS, attach).with(
        81,
        "/usr/bin/rbd-nbd",
        STATUS,
        &attach.replace("index", "data"),
    );
    let of_two = found(&tree, &processes, false).images;
    assert_eq!((of_two.images, of_two.unread), (vec![], vec![RbdNumber::Nbd(0)]));
}

#[test]
fn where_processes_cannot_be_looked_at_nothing_is_known_of_what_is_connected() {
    let tree = sysfs(&[(0, Some("70\n"))]);
    let (connected, mut found) = look(&tree);
    add(connected, &[], |_| false, &mut found);
    assert_eq!(found.images.unread, [RbdNumber::Nbd(0)]);
    // In another process namespace the number is another process's.
    let processes = Processes::in_namespace("pid:[4026532999]")
        .with(70, "/usr/bin/rbd-nbd", STATUS, "rbd-nbd map kube/index");
    let found = self::found(&tree, &processes, false);
    assert_eq!((found.images.images, found.images.unread), (vec![], vec![RbdNumber::Nbd(0)]));
}

#[test]
fn what_there_is_no_room_for_is_counted_behind_the_kernels_own() {
    let tree = sysfs(&[(0, Some("70\n"))]);
    let (connected, mut found) = look(&tree);
    found.images = sysfs::look(Tree::with(&(0..256).collect::<Vec<u32>>()).path()).unwrap().images;
    let name = ImageName { pool: "kube".into(), namespace: None, image: "index".into() };
    let mapper = Mapper::Image { name, snapshot: None };
    add(connected, &[(RbdNumber::Nbd(0), mapper)], |_| false, &mut found);
    assert_eq!((found.images.images.len(), found.images.omitted), (256, 1));
}

#[tokio::test]
async fn a_real_process_of_another_program_is_no_image() {
    let tree = sysfs(&[(0, Some(&format!("{}\n", std::process::id())))]);
    let (mut follower, mut rx) = follower(&tree);
    follower.look().await;
    assert_eq!(next(&mut rx).await, Fact::RbdImages(RbdImages::default()));
}
