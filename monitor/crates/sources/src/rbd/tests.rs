//! Trees as sysfs makes them, in a directory of the test's own.

use std::fs;
use std::path::Path;

use kevtmon_observation::{Observation, RbdImage};
use tempfile::TempDir;
use tokio::sync::mpsc;

use super::*;
use crate::procfs::Proc;

mod nbd;

const FSID: &str = "7b7a2f50-9d1c-4a3e-8f6d-2c5b1e0a9d84";
const ATTRIBUTES: [(&str, &str); 12] = [
    ("pool", "kube\n"),
    ("pool_id", "2\n"),
    ("pool_ns", "\n"),
    ("name", "index-api-image\n"),
    ("image_id", "1f3a6b8b4567\n"),
    ("current_snap", "-\n"),
    ("client_id", "client24128\n"),
    ("client_addr", "10.47.136.60:0/1504107565\n"),
    ("cluster_fsid", "7b7a2f50-9d1c-4a3e-8f6d-2c5b1e0a9d84\n"),
    ("major", "252\n"),
    ("minor", "16\n"),
    ("config_info", "10.47.136.2:6789 name=admin,secret=AQBk3y5aAAAAABAA kube index-api-image -\n"),
];

struct Tree(TempDir);

impl Tree {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn with(numbers: &[u32]) -> Self {
        let tree = Self::new();
        numbers.iter().for_each(|number| tree.map(*number));
        tree
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn device(&self, name: &str) -> PathBuf {
        self.path().join("bus/rbd/devices").join(name)
    }

    fn map(&self, number: u32) {
        let directory = self.device(&number.to_string());
        fs::create_dir_all(&directory).unwrap();
        for (name, text) in ATTRIBUTES {
            fs::write(directory.join(name), text).unwrap();
        }
    }

    fn set(&self, number: u32, attribute: &str, bytes: &[u8]) {
        fs::write(self.device(&number.to_string()).join(attribute), bytes).unwrap();
    }

    fn remove(&self, number: u32, attribute: &str) {
        fs::remove_file(self.device(&number.to_string()).join(attribute)).unwrap();
    }

    fn look(&self) -> Found {
        sysfs::look(self.path()).unwrap()
    }
}

fn image(number: u32) -> RbdImage {
    RbdImage {
        number: number.into(),
        device: "252:16".into(),
        pool: "kube".into(),
        namespace: None,
        image: "index-api-image".into(),
        image_id: Some("1f3a6b8b4567".into()),
        snapshot: None,
        client_id: Some("client24128".into()),
        client_addr: Some("10.47.136.60:0/1504107565".into()),
        cluster_fsid: Some(FSID.into()),
    }
}

#[test]
fn the_attributes_of_a_device_are_its_image_and_no_key_is_among_them() {
    let found = Tree::with(&[0]).look();
    assert_eq!(found.images.images, [image(0)]);
    assert_eq!((found.images.unread, found.problems), (Vec::new(), BTreeSet::new()));
    assert!(!format!("{:?}", Tree::with(&[0]).look()).contains("secret"));
    let tree = Tree::with(&[7]);
    tree.set(7, "pool_ns", b"team-a\n");
    tree.set(7, "current_snap", b"nightly\n");
    let expected =
        RbdImage { namespace: Some("team-a".into()), snapshot: Some("nightly".into()), ..image(7) };
    assert_eq!(tree.look().images.images, [expected]);
}

#[test]
fn a_kernel_without_such_a_bus_has_no_image() {
    assert_eq!(Tree::new().look(), Found::default());
}

#[test]
fn what_old_kernels_do_not_show_is_absent_and_no_fault() {
    let tree = Tree::with(&[1]);
    for attribute in ["pool_ns", "client_addr", "cluster_fsid", "minor"] {
        tree.remove(1, attribute);
    }
    fs::create_dir_all(tree.path().join("block/rbd1")).unwrap();
    fs::write(tree.path().join("block/rbd1/dev"), "252:16\n").unwrap();
    let found = tree.look();
    assert_eq!(found.images.images, [RbdImage { client_addr: None, cluster_fsid: None, ..image(1) }]);
    assert_eq!(found.problems, BTreeSet::new());
}

#[test]
fn a_device_without_what_names_it_is_left_out_and_counted() {
    let tree = Tree::with(&[0, 1, 2, 3, 4, 5, 6]);
    tree.remove(0, "name");
    tree.set(1, "pool", b"ku");
    tree.set(2, "name", b"\xff\xfe\n");
    tree.set(3, "name", b"a\x1b[2J\n");
    tree.set(4, "major", b"-1\n");
    tree.set(5, "pool", b"\n");
    fs::create_dir(tree.device("x7")).unwrap();
    let found = tree.look();
    assert_eq!(found.images.images, [image(6)]);
    assert_eq!(found.images.unread, [0, 1, 2, 3, 4, 5].map(RbdNumber::Kernel));
    let expected: [Problem; 7] = [
        (None, "its name is no number"),
        (Some(0.into()), "name"),
        (Some(1.into()), "pool"),
        (Some(2.into()), "name"),
        (Some(3.into()), "name"),
        (Some(4.into()), "major, minor"),
        (Some(5.into()), "pool"),
    ];
    assert_eq!(found.problems, expected.into());
}

#[test]
fn an_attribute_that_is_none_is_left_out_alone() {
    let tree = Tree::with(&[0]);
    for (attribute, bytes) in [
        ("client_addr", &b"somewhere\n"[..]),
        ("client_id", b"client\n"),
        ("cluster_fsid", b"7b7a2f50\n"),
        ("image_id", b"1f3a\nb\n"),
    ] {
        tree.set(0, attribute, bytes);
    }
    let found = tree.look();
    let expected =
        RbdImage { client_addr: None, client_id: None, cluster_fsid: None, image_id: None, ..image(0) };
    assert_eq!(found.images.images, [expected]);
    let names = found.problems.iter().map(|(_, name)| *name).collect::<Vec<_>>();
    assert_eq!(names, ["client_addr", "client_id", "cluster_fsid", "image_id"]);
}

#[test]
fn a_snapshot_that_cannot_be_read_is_not_taken_for_the_image() {
    let tree = Tree::with(&[0]);
    tree.remove(0, "current_snap");
    assert_eq!((tree.look().images.images, tree.look().images.unread), (vec![], vec![0.into()]));
}

/// As where the device goes between the list and its attributes: the entry leads nowhere.
#[test]
fn a_device_that_vanishes_while_it_is_read_is_gone_and_no_fault() {
    let tree = Tree::with(&[0]);
    std::os::unix::fs::symlink("nowhere", tree.device("3")).unwrap();
    let found = tree.look();
    assert_eq!(found.images, RbdImages { images: vec![image(0)], ..RbdImages::default() });
    assert_eq!(found.problems, BTreeSet::new());
}

#[test]
fn a_device_has_the_numbers_of_its_partitions_too() {
    let tree = Tree::with(&[1]);
    for (name, number) in
        [("rbd1p1", "252:17\n"), ("rbd1p2", "259:3\n"), ("rbd1p3", "x\n"), ("holders", "1:1\n")]
    {
        let directory = tree.path().join("block/rbd1").join(name);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("dev"), number).unwrap();
    }
    let mut numbers = devices(tree.path(), &image(1));
    numbers[1..].sort();
    assert_eq!(numbers, ["252:16", "252:17", "259:3"]);
}

#[test]
fn more_images_than_are_followed_are_counted() {
    let tree = Tree::with(&(0..258).collect::<Vec<u32>>());
    let found = tree.look();
    assert_eq!((found.images.images.len(), found.images.omitted), (256, 2));
}

async fn next(rx: &mut mpsc::Receiver<Observation>) -> Fact {
    rx.recv().await.unwrap().fact
}

fn follower(tree: &Tree) -> (Follower, mpsc::Receiver<Observation>) {
    let (tx, rx) = mpsc::channel(16);
    let (readers, sysfs) = (Readers::from(Proc::default()), tree.path().to_owned());
    (Follower { readers, sysfs, tx, told: None, problems: BTreeSet::new(), is_full: false }, rx)
}

#[tokio::test]
async fn what_is_mapped_is_told_at_the_start_and_when_it_changes() {
    let tree = Tree::new();
    let (mut follower, mut rx) = follower(&tree);
    follower.look().await;
    follower.look().await;
    assert_eq!(next(&mut rx).await, Fact::RbdImages(RbdImages::default()));
    tree.map(0);
    follower.look().await;
    follower.look().await;
    let expected = RbdImages { images: vec![image(0)], ..RbdImages::default() };
    assert_eq!(next(&mut rx).await, Fact::RbdImages(expected));
    assert!(rx.try_recv().is_err(), "what is as before is no news");
}

#[tokio::test]
async fn what_is_wrong_is_counted_once_for_as_long_as_it_lasts() {
    let tree = Tree::with(&[0]);
    tree.set(0, "client_addr", b"x\n");
    let (mut follower, mut rx) = follower(&tree);
    for _ in 0..3 {
        follower.look().await;
    }
    assert_eq!(next(&mut rx).await, Fact::Malformed { source: "rbd".into(), count: 1 });
    assert!(matches!(next(&mut rx).await, Fact::RbdImages(_)));
    assert!(rx.try_recv().is_err());
}

#[test]
fn sysfs_is_at_an_absolute_path() {
    assert_eq!(serde_json::from_str::<Sysfs>("\"/host/sys\"").unwrap(), Sysfs("/host/sys".into()));
    assert!(serde_json::from_str::<Sysfs>("\"sys\"").is_err());
}

#[test]
fn what_is_made_of_a_device_is_found_by_its_holders_and_by_the_files_of_loop_devices() {
    let tree = Tree::with(&[1]);
    let block = tree.path().join("block");
    for directory in ["rbd1/holders/dm-0", "rbd1/rbd1p2/holders/md1", "rbd12/holders/dm-7"] {
        fs::create_dir_all(block.join(directory)).unwrap();
    }
    for (device, file) in
        [("loop3", "/dev/rbd1\n"), ("loop4", "/dev/rbd1p2\n"), ("loop5", "/dev/rbd12\n"), ("loop6", "/img\n")]
    {
        fs::create_dir_all(block.join(device).join("loop")).unwrap();
        fs::write(block.join(device).join("loop/backing_file"), file).unwrap();
    }
    assert_eq!(users(tree.path(), &image(1)), ["dm-0", "loop3", "loop4", "md1"]);
    assert_eq!(users(tree.path(), &image(2)), Vec::<String>::new());
}
