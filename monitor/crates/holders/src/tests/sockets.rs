//! Sockets that are bound to files.

use super::descriptors::{still, visit};
use super::*;

#[test]
fn a_bound_socket_is_found_with_its_file_even_if_that_has_another_name_by_now() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol with blank");
    let (old, new) = (target.join("old"), target.join("new name"));
    let child = Child::spawn(vec![Step::Bind(c_path(&old))]);
    assert_eq!(umount(&target, 0), Err(libc::EBUSY));
    fs::rename(old, &new).unwrap();
    let report = scan_path(&target);
    assert_eq!(held(&report), [(child.tgid(), Access::Socket)]);
    let holder = &report.holders[0];
    assert_eq!(holder.path.as_deref(), new.to_str());
    let link = fs::read_link(format!("/proc/{}/fd/{}", child.tgid(), holder.fd.unwrap())).unwrap();
    assert!(link.to_str().unwrap().starts_with("socket:["), "{link:?}");
    fs::remove_file(new).unwrap();
    assert_eq!(held(&scan_path(&target)), [(child.tgid(), Access::Socket)]);
    drop(child);
    assert_eq!(umount(&target, 0), Ok(()));
}

#[test]
fn a_socket_in_another_mount_of_the_file_system_does_not_hold_this_one() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    fs::create_dir(sandbox.path("other")).unwrap();
    sandbox.bind("vol", "other");
    let here = Child::spawn(vec![Step::Bind(c_path(&target.join("here")))]);
    let there = Child::spawn(vec![Step::Bind(c_path(&sandbox.path("other/there")))]);
    assert_eq!(held(&scan_path(&target)), [(here.tgid(), Access::Socket)]);
    drop(here);
    assert_eq!(umount(&target, 0), Ok(()));
    assert_eq!(held(&scan_path(&sandbox.path("other"))), [(there.tgid(), Access::Socket)]);
}

#[test]
fn a_socket_below_another_mount_of_the_same_name_does_not_hold_the_one_above() {
    let mut sandbox = MountSandbox::new();
    let below = sandbox.mount("vol");
    let child = Child::spawn(vec![Step::Bind(c_path(&below.join("sock")))]);
    let above = sandbox.mount("vol");
    let (visit, _) = visit(true, &above, &child);
    assert_eq!((&visit.pins[..], &visit.doubts[..]), (&[][..], &[][..]));
    assert_eq!(umount(&above, 0), Ok(()));
    assert_eq!(held(&scan_path(&below)), [(child.tgid(), Access::Socket)]);
}

#[test]
fn a_socket_that_cannot_be_asked_is_doubted_if_its_file_is_on_that_file_system() {
    let mut sandbox = MountSandbox::new();
    let (target, other) = (sandbox.mount("vol"), sandbox.mount("other"));
    for (at, is_doubted) in [(&target, true), (&other, false)] {
        let child = Child::spawn(vec![Step::Bind(c_path(&at.join("sock")))]);
        let (visit, _) = visit(false, &target, &child);
        assert_eq!((&visit.pins[..], visit.doubts == [Access::Socket]), (&[][..], is_doubted), "{at:?}");
    }
}

#[test]
fn who_still_holds_a_mount_by_a_socket_is_seen() {
    let mut sandbox = MountSandbox::new();
    let (target, other) = (sandbox.mount("vol"), sandbox.mount("other"));
    let child = Child::spawn(vec![Step::Bind(c_path(&target.join("sock")))]);
    let report = scan_path(&target);
    assert_eq!(still(&report, &report.holders).holders, report.holders);
    let elsewhere = Child::spawn(vec![Step::Bind(c_path(&other.join("sock")))]);
    let [found] = &scan_path(&other).holders[..] else { panic!("one") };
    assert_eq!(found.tgid, elsewhere.tgid());
    assert_eq!(still(&report, std::slice::from_ref(found)).holders, []);
    assert_eq!(umount(&target, libc::MNT_DETACH), Ok(()));
    let request = StillHeldRequest {
        id: 7,
        mount: report.mount.clone().unwrap(),
        holders: report.holders.clone(),
        is_attached: false,
    };
    let detached = still_held::still_held(&Proc::default(), &request, Deadline::after(AMPLE));
    assert_eq!(detached.holders, report.holders);
    drop(child);
    assert_eq!(still(&report, &report.holders).holders, []);
}
