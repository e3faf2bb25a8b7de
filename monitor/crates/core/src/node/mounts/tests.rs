//! Attempts, identities and bounds.

use kevtmon_types::clock::SECOND as S;

use super::*;

const KUBELET: Caller = Caller { tgid: 1893, start_ns: 5, syscall: MountSyscall::Umount2 };

fn caller(tgid: u32) -> Caller {
    Caller { tgid, start_ns: 1, ..KUBELET }
}

fn account(host: bool, name: &str) -> Account {
    Account { host, name: name.into() }
}

fn key() -> MountKey {
    MountKey::new(2, "/mnt/x/")
}

fn refused(mounts: &mut BusyMounts, at: BootNs, caller: Caller) -> u64 {
    let id = mounts.entry(&key(), Account::default());
    mounts.refused(at, id, caller)
}

fn identity(mount_id: u32, mount_point: &str) -> MountIdentity {
    MountIdentity {
        unique: None,
        mount_id,
        parent_id: 1,
        device: "0:9".into(),
        root: "/".into(),
        mount_point: mount_point.into(),
    }
}

#[test]
fn a_trailing_slash_is_no_part_of_the_path() {
    assert_eq!(key().path, "/mnt/x");
    assert_eq!(MountKey::new(2, "//").path, "/");
    assert_eq!(MountKey::new(2, "").path, "");
    assert_eq!(MountKey::new(2, "/mnt//./x/.").path, "/mnt/x");
    assert_eq!(MountKey::new(2, "./x").path, "x");
}

#[test]
fn attempts_count_by_caller_and_in_total() {
    let mut mounts = BusyMounts::default();
    assert_eq!(refused(&mut mounts, S, KUBELET), 1);
    assert_eq!(refused(&mut mounts, S, caller(7)), 1);
    assert_eq!(refused(&mut mounts, S, KUBELET), 2);
    assert_eq!(refused(&mut mounts, S, Caller { start_ns: 9, ..KUBELET }), 1, "its id was reused");
    let id = mounts.at(&key()).unwrap();
    assert_eq!(mounts.attempts_of(id, KUBELET), 2);
    let busy = mounts.remove(id).unwrap();
    assert_eq!((busy.total, busy.recent_attempts()), (4, 4));
    assert_eq!(mounts.at(&key()), None);
}

#[test]
fn a_caller_starts_again_after_a_long_pause_and_the_total_does_not() {
    let mut mounts = BusyMounts::default();
    refused(&mut mounts, S, KUBELET);
    refused(&mut mounts, S, KUBELET);
    mounts.expire(S + CALLER_RETENTION_NS);
    assert_eq!(refused(&mut mounts, 2 * S + CALLER_RETENTION_NS, KUBELET), 1);
    let id = mounts.at(&key()).unwrap();
    let busy = mounts.get(id).unwrap();
    assert_eq!((busy.total, busy.recent_attempts()), (3, 1));
    mounts.expire(2 * S + CALLER_RETENTION_NS + RETENTION_NS);
    assert_eq!((mounts.get(id), mounts.at(&key())), (None, None));
}

#[test]
fn few_callers_are_told_apart() {
    let mut mounts = BusyMounts::default();
    let counts: Vec<u64> = (0..100).map(|tgid| refused(&mut mounts, S, caller(tgid))).collect();
    assert_eq!(counts[..CALLERS_MAX], [1; CALLERS_MAX]);
    assert_eq!(counts[CALLERS_MAX..], (1..=92).collect::<Vec<u64>>()[..]);
    assert_eq!(refused(&mut mounts, S, caller(0)), 2, "who was there first keeps a count of its own");
}

#[test]
fn two_paths_of_one_mount_count_together() {
    let mut mounts = BusyMounts::default();
    let found = identity(7, "/mnt/x");
    let link = MountKey::new(2, "/link");
    let first = mounts.entry(&key(), Account::default());
    mounts.refused(S, first, KUBELET);
    assert_eq!(mounts.identify(first, &key(), KUBELET, &found), first);
    let second = mounts.entry(&link, Account::default());
    mounts.refused(S, second, KUBELET);
    assert_eq!(mounts.identify(second, &link, KUBELET, &found), first);
    assert_eq!((mounts.at(&link), mounts.attempts_of(first, KUBELET)), (Some(first), 2));
    assert_eq!(mounts.get(first).unwrap().total, 2);
}

#[test]
fn a_mount_that_is_found_by_another_path_is_where_it_was_found_last() {
    let mut mounts = BusyMounts::default();
    let at = |mount_point: &str| MountIdentity { unique: Some(7), ..identity(7, mount_point) };
    let first = mounts.entry(&key(), Account::default());
    mounts.refused(S, first, KUBELET);
    mounts.identify(first, &key(), KUBELET, &at("/mnt/x"));
    let moved = MountKey::new(2, "/moved");
    let second = mounts.entry(&moved, Account::default());
    mounts.refused(S, second, KUBELET);
    assert_eq!(mounts.identify(second, &moved, KUBELET, &at("/moved")), first);
    let busy = mounts.get(first).unwrap();
    assert_eq!((busy.path(), busy.total), ("/moved", 2));
    assert_eq!(mounts.find(&moved, Some(&at("/moved"))).map(|(found, _)| found), Some(first));
}

#[test]
fn another_mount_at_the_same_path_counts_from_one() {
    let mut mounts = BusyMounts::default();
    let id = mounts.entry(&key(), Account::default());
    for _ in 0..4 {
        mounts.refused(S, id, KUBELET);
    }
    assert_eq!(mounts.identify(id, &key(), KUBELET, &identity(7, "/mnt/x")), id);
    mounts.refused(S, id, KUBELET);
    let cover = mounts.identify(id, &key(), KUBELET, &identity(8, "/mnt/x"));
    assert_ne!(cover, id);
    assert_eq!((mounts.attempts_of(cover, KUBELET), mounts.attempts_of(id, KUBELET)), (1, 4));
    assert_eq!(mounts.at(&key()), Some(cover));
    assert_eq!(mounts.get(cover).unwrap().identity, Some(identity(8, "/mnt/x")));
    mounts.remove(cover);
    assert_eq!(mounts.find(&key(), Some(&identity(7, "/mnt/x"))).map(|(found, _)| found), Some(id));
}

#[test]
fn nobody_displaces_the_mounts_of_others() {
    let mut mounts = BusyMounts::default();
    let mut add = |at: u64, path: &str, account: Account| {
        let id = mounts.entry(&MountKey::new(2, path), account);
        mounts.refused(at, id, KUBELET);
    };
    add(1, "/host", account(true, "kubelet.service"));
    add(2, "/other", account(false, "user-1001.slice"));
    for index in 0..10 * u64::try_from(CAPACITY).unwrap() {
        add(10 + index, &format!("/mnt/{index}"), account(false, "user-1000.slice"));
    }
    assert!(mounts.mounts.len() <= CAPACITY);
    assert_eq!(mounts.paths.len(), mounts.mounts.len());
    let rebuilt = BusyMounts::from(Saved {
        last_id: mounts.last_id,
        mounts: mounts.mounts.clone(),
        paths: mounts.paths.clone(),
    });
    assert_eq!(rebuilt, mounts, "nothing is left of those that are gone");
    for path in ["/host", "/other"] {
        assert!(mounts.at(&MountKey::new(2, path)).is_some(), "{path}");
    }
}

#[test]
fn long_paths_displace_only_those_of_who_made_them() {
    let mut mounts = BusyMounts::default();
    let host = mounts.entry(&MountKey::new(2, "/host"), account(true, "kubelet.service"));
    let long = "x".repeat(4000);
    for index in 0..10_000 {
        let key = MountKey::new(2, &format!("/{index}/{long}"));
        let id = mounts.entry(&key, account(false, "user-1000.slice"));
        let found = identity(index % 50, &format!("/mnt/{}", index % 50));
        mounts.refused(S, id, KUBELET);
        mounts.identify(id, &key, KUBELET, &found);
    }
    assert!(mounts.index.path_bytes <= PATH_BYTES + 5000, "{}", mounts.index.path_bytes);
    assert!(mounts.get(host).is_some());
}

#[test]
fn a_mount_is_found_by_identity_else_by_place_and_by_name() {
    let mut mounts = BusyMounts::default();
    let unique = |unique, path: &str| MountIdentity { unique: Some(unique), ..identity(7, path) };
    let one = mounts.entry(&key(), Account::default());
    mounts.identify(one, &key(), KUBELET, &unique(100, "/mnt/x"));
    let other = mounts.entry(&MountKey::new(2, "/srv/x"), Account::default());
    let find = |mounts: &BusyMounts, path: &str, identity: Option<MountIdentity>| {
        mounts.find(&MountKey::new(2, path), identity.as_ref()).map(|(id, _)| id)
    };
    assert_eq!(find(&mounts, "/elsewhere", Some(unique(100, "/elsewhere"))), Some(one), "it was moved");
    assert_eq!(find(&mounts, "/mnt/x", Some(unique(101, "/mnt/x"))), None, "another one is there");
    assert_eq!(find(&mounts, "/srv/x", Some(unique(101, "/srv/x"))), Some(other));
    assert_eq!(find(&mounts, "/mnt/x", None), Some(one));
    let similar = |mounts: &BusyMounts, mntns| -> Vec<BusyId> {
        mounts.similar(&MountKey::new(mntns, "/link/x")).collect()
    };
    assert_eq!((similar(&mounts, 2), similar(&mounts, 3)), (vec![one, other], vec![]));
    mounts.remove(one);
    assert_eq!(similar(&mounts, 2), [other]);
    assert_eq!(find(&mounts, "/mnt/x", None), None);
}
