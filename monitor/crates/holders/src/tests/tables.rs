//! Mount tables that a user has made as long as he likes.

use super::*;

/// A mount table with so many mounts at a path this long, and then a copy of the mount that an unmount reaches.
fn table(mounts: usize, name: usize) -> String {
    let place = "x".repeat(name);
    let root = "900010 0 8:1 / / rw master:7 - ext4 d rw\n".to_owned();
    let others = (0..mounts).map(|n| format!("{} 900010 0:8 / /{place} rw - tmpfs t rw\n", 910_000 + n));
    [root].into_iter().chain(others).collect::<String>() + "900011 900010 0:9 / /vol rw - tmpfs t rw\n"
}

fn beside(mounts: usize, name: usize) -> HolderReport {
    let fake = FakeProc::new();
    let shared = fake_table().replacen("rw - ext4", "rw shared:7 - ext4", 1);
    fs::write(fake.0.path().join("10/mountinfo"), shared).unwrap();
    fake.process(20, 2, &table(mounts, name));
    fake.open(20, 3, "/vol/f", "mnt_id:\t900011\n");
    fake.scan()
}

#[test]
fn a_copy_behind_more_mounts_than_are_read_makes_the_answer_incomplete() {
    for (mounts, name) in [(1400, 7000), (400, 200_000)] {
        let report = beside(mounts, name);
        assert_ne!(report.verdict, Verdict::Kernel, "{mounts} {name}");
        assert!(!report.complete, "{mounts} {name}");
        assert!(report.blind_spots.iter().any(|spot| spot.tgid == Some(20)), "{:?}", report.blind_spots);
    }
}

#[test]
fn a_copy_behind_mounts_with_names_that_are_not_read_is_searched() {
    let report = beside(3, 20_000);
    assert_eq!((held(&report), report.complete), (vec![(20, Access::Fd)], false));
    let report = beside(3, 200);
    assert_eq!((held(&report), report.complete), (vec![(20, Access::Fd)], true));
}

#[test]
fn a_mount_that_a_long_table_does_not_show_is_not_told_to_be_gone() {
    let fake = FakeProc::new();
    let request = |mount_id| {
        let mount = MountTable::parse(&fake_table(), "/").at("/vol").unwrap().facts(1, None);
        let identity = MountIdentity { mount_id, ..mount.identity().unwrap() };
        PresenceRequest { id: 1, mntns: 1, tgid: 10, identity, at: None }
    };
    let proc = Proc::new(fake.0.path());
    let present = |id| presence::presence(&proc, &request(id), Deadline::after(AMPLE)).present;
    let vol = u32::try_from(VOL).unwrap();
    assert_eq!((present(vol), present(vol + 1)), (Some(true), Some(false)));
    let long = format!("5 1 0:7 / /{} rw - tmpfs t rw\n", "x".repeat(20_000));
    fs::write(fake.0.path().join("10/mountinfo"), fake_table() + &long).unwrap();
    assert_eq!((present(vol), present(vol + 1)), (Some(true), None));
}
