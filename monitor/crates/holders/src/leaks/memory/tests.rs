//! Copies of what the host had, look after look.

use kevtmon_observation::{BindMount, CopyHolder, MountFacts, Propagation};

use super::*;

const VOLUME: &str = "/var/lib/kubelet/pods/5c948341-c030-4996-b888-f032577d97b0/volumes/kubernetes.io~rbd/x";

fn host(device: &str, path: &str) -> HostMount {
    HostMount {
        device: device.into(),
        root: "/".into(),
        path: path.into(),
        fstype: "tmpfs".into(),
        source: "t".into(),
        mntns: 1,
        root_of: None,
        volume_data: None,
    }
}

/// A memory of one copy that is left.
pub(in super::super) fn left() -> Memory {
    let mut memory = Memory::default();
    memory.apply(1, found(&[host("0:50", VOLUME)], &[], Some(100)));
    memory.apply(2, found(&[], &[copy("0:50", Some(100))], Some(200)));
    memory
}

fn copy(device: &str, unique: Option<u64>) -> MountCopy {
    MountCopy {
        mount: MountFacts {
            id: 7,
            parent: Some(1),
            unique,
            mountpoint: "/mem".into(),
            root: "/".into(),
            fstype: "tmpfs".into(),
            source: "t".into(),
            device: device.into(),
            mntns: 9,
        },
        propagation: Propagation::Private,
        holder: CopyHolder {
            tgid: 50,
            start_ns: 1,
            comm: "sleep".into(),
            uid: Some(0),
            ..CopyHolder::default()
        },
        original: None,
        bind: None,
        without_process: false,
    }
}

fn found(hosts: &[HostMount], copies: &[MountCopy], bound: Option<u64>) -> Found {
    Found {
        host: Some([&[host("8:1", "/")], hosts].concat()),
        mntns: 1,
        copies: copies.to_vec(),
        bound,
        before: 10,
        indexed: Some([1, 9].into()),
        read: [1, 9].into(),
        finished: true,
        ..Found::default()
    }
}

fn originals(memory: &mut Memory, at: BootNs, found: Found) -> Vec<(String, bool)> {
    let copies = memory.apply(at, found).copies;
    copies.into_iter().filter_map(|copy| copy.original).map(|it| (it.path, it.is_certain)).collect()
}

#[test]
fn a_copy_that_was_there_while_the_host_had_it_is_of_it_for_certain() {
    let mut memory = Memory::default();
    assert_eq!(originals(&mut memory, 1, found(&[host("0:50", VOLUME)], &[], Some(100))), []);
    for at in 2..5 {
        let left = found(&[], &[copy("0:50", Some(100))], Some(200));
        assert_eq!(originals(&mut memory, at, left), [(VOLUME.to_owned(), true)], "{at}");
    }
    assert_eq!(originals(&mut memory, 6, found(&[], &[], Some(300))), []);
    let next = found(&[], &[copy("0:50", Some(90))], Some(400));
    assert_eq!(originals(&mut memory, 7, next), [], "the number was free in between");
}

#[test]
fn a_copy_that_was_made_since_may_be_of_the_next_file_system_with_that_number() {
    let mut memory = Memory::default();
    originals(&mut memory, 1, found(&[host("0:50", VOLUME)], &[], Some(100)));
    let next = || found(&[], &[copy("0:50", Some(101))], Some(200));
    assert_eq!(originals(&mut memory, 2, next()), []);
    let with_old = found(&[], &[copy("0:50", Some(101)), copy("0:50", Some(99))], Some(300));
    assert_eq!(originals(&mut memory, 3, with_old), [], "it is forgotten");
    // While an older copy lives, so does the file system.
    originals(&mut memory, 4, found(&[host("0:50", VOLUME)], &[], Some(400)));
    let both = found(&[], &[copy("0:50", Some(401)), copy("0:50", Some(399))], Some(500));
    assert_eq!(originals(&mut memory, 5, both).len(), 2);
}

#[test]
fn without_numbers_for_good_it_is_likely_as_long_as_the_type_is_the_same() {
    let mut memory = Memory::default();
    originals(&mut memory, 1, found(&[host("0:50", VOLUME)], &[], None));
    let left = || found(&[], &[copy("0:50", None)], None);
    assert_eq!(originals(&mut memory, 2, left()), [(VOLUME.to_owned(), false)]);
    let mut other = left();
    other.copies[0].mount.fstype = "overlay".into();
    assert_eq!(originals(&mut memory, 3, other), []);
}

#[test]
fn what_a_look_has_missed_is_not_taken_to_be_gone() {
    let mut memory = Memory::default();
    originals(&mut memory, 1, found(&[host("0:50", VOLUME)], &[], Some(100)));
    let left = || found(&[], &[copy("0:50", Some(100))], Some(200));
    assert_eq!(originals(&mut memory, 2, left()).len(), 1);
    let missed = Found { copies: Vec::new(), read: [1].into(), finished: false, ..left() };
    assert_eq!(originals(&mut memory, 3, missed).len(), 1, "its time ran out");
    let hidden = Found { copies: Vec::new(), read: [1].into(), unread: [50].into(), ..left() };
    assert_eq!(originals(&mut memory, 4, hidden).len(), 1, "its process cannot be read");
    let blind = Found { host: None, ..left() };
    assert_eq!(originals(&mut memory, 5, blind).len(), 1);
    let gone = Found { copies: Vec::new(), indexed: Some([1].into()), read: [1].into(), ..left() };
    assert_eq!(originals(&mut memory, 6, gone), [], "no process is in that namespace any more");
}

#[test]
fn a_process_that_has_started_since_has_no_copy_that_is_known_by_its_device_alone() {
    let young = |start_ns| {
        let mut found = found(&[], &[copy("0:50", None)], None);
        found.copies[0].holder.start_ns = start_ns;
        found
    };
    let mut memory = Memory::default();
    originals(&mut memory, 11, found(&[host("0:50", VOLUME)], &[], None));
    assert_eq!(originals(&mut memory, 12, young(11)), []);
    assert_eq!(originals(&mut memory, 13, young(10)).len(), 1);
    assert_eq!(originals(&mut memory, 14, young(11)).len(), 1, "it is the same mount, another process of it");
}

#[test]
fn a_namespace_without_a_process_is_gone_though_looks_do_not_finish() {
    let mut memory = Memory::default();
    originals(&mut memory, 1, found(&[host("0:50", VOLUME)], &[], Some(100)));
    let left = || found(&[], &[copy("0:50", Some(100))], Some(200));
    assert_eq!(originals(&mut memory, 2, left()).len(), 1);
    let late = |indexed| Found { copies: Vec::new(), indexed, read: [1].into(), finished: false, ..left() };
    assert_eq!(originals(&mut memory, 3, late(None)).len(), 1, "not all processes were looked up");
    assert_eq!(originals(&mut memory, 4, late(Some([1, 9].into()))).len(), 1, "it was not read");
    assert_eq!(originals(&mut memory, 5, late(Some([1].into()))), []);
}

#[test]
fn a_copy_in_a_namespace_that_only_a_file_keeps_is_still_there() {
    let mut memory = Memory::default();
    originals(&mut memory, 1, found(&[host("0:50", VOLUME)], &[], Some(100)));
    let left = || found(&[], &[copy("0:50", Some(100))], Some(200));
    assert_eq!(originals(&mut memory, 2, left()).len(), 1);
    assert_eq!(memory.wanted(), [(9, 100)]);
    let alone = |kept: &[u64]| Found {
        copies: Vec::new(),
        indexed: Some([1].into()),
        read: [1].into(),
        kept: kept.iter().copied().collect(),
        ..left()
    };
    for at in 3..5 {
        let copies = memory.apply(at, alone(&[100])).copies;
        assert!(copies.len() == 1 && copies[0].without_process && copies[0].original.is_some());
    }
    // Somebody has entered it.
    assert!(!memory.apply(5, left()).copies[0].without_process);
    assert_eq!(memory.apply(6, alone(&[])).copies, []);
}

#[test]
fn what_there_was_no_room_for_is_neither_gone_nor_forgotten() {
    let mut memory = Memory::default();
    originals(&mut memory, 1, found(&[host("0:50", VOLUME)], &[], Some(100)));
    let left = || found(&[], &[copy("0:50", Some(100))], Some(200));
    let full = || Found { copies: Vec::new(), omitted: 1, missed: [9].into(), read: [1].into(), ..left() };
    assert_eq!(originals(&mut memory, 2, full()), [], "none has been found yet");
    for at in 3..7 {
        let look = if at % 2 == 0 { full() } else { left() };
        assert_eq!(originals(&mut memory, at, look), [(VOLUME.to_owned(), true)], "{at}");
    }
}

#[test]
fn what_the_run_before_knew_is_known_on() {
    let remembered = Remembered {
        device: "0:50".into(),
        root: "/".into(),
        source: "t".into(),
        fstype: "tmpfs".into(),
        path: VOLUME.into(),
        container: Some("a".into()),
        volume_data: None,
        unique: Some(100),
        told: 1,
    };
    let mut memory = Memory::of(vec![remembered.clone()]);
    let mut left = found(&[], &[copy("0:50", Some(100))], Some(200));
    // A runtime with mounts of its own has another root.
    left.host.as_mut().unwrap().insert(0, HostMount { mntns: 7, ..host("0:30", "/") });
    let copies = memory.apply(1, left).copies;
    let original = copies[0].original.clone().unwrap();
    assert_eq!((original.path.as_str(), original.is_certain, original.mntns), (VOLUME, true, 1));
    assert_eq!(original.root_of.as_deref(), Some("/a"));
    // Where mounts have no numbers for good, whoever had it then has it on.
    let likely = Remembered { unique: None, told: 1, ..remembered };
    let mut memory = Memory::of(vec![likely]);
    let left = || found(&[], &[copy("0:50", None)], None);
    assert_eq!(originals(&mut memory, 1, left()), [(VOLUME.to_owned(), false)]);
}

#[test]
fn what_nobody_has_seen_on_the_host_is_told_only_if_a_container_has_it_from_there() {
    let mut memory = Memory::default();
    assert_eq!(memory.apply(1, found(&[], &[copy("0:50", Some(9))], Some(10))).copies, []);
    let bind = BindMount { source: VOLUME.into(), destination: "/mem".into(), propagation: None };
    let bound = MountCopy { bind: Some(bind), ..copy("0:50", Some(9)) };
    assert_eq!(memory.apply(2, found(&[], &[bound], Some(10))).copies.len(), 1);
    let mut apart = copy("0:50", Some(9));
    apart.mount.mountpoint = VOLUME.into();
    assert_eq!(memory.apply(3, found(&[], &[apart.clone()], Some(10))).copies.len(), 1);
    // The first process of a pid namespace may be a node of its own.
    apart.holder.init = true;
    assert_eq!(memory.apply(4, found(&[], &[apart], Some(10))).copies, []);
}
