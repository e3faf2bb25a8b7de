//! Who still uses a copy of the mount in another mount namespace.

use super::descriptors::still;
use super::*;

fn in_copy(target: &Path) -> Child {
    let open = Step::Open(c_path(&target.join("held")), libc::O_RDONLY);
    Child::spawn(vec![Step::Unshare(libc::MS_SLAVE), Step::Chdir(c_path(target)), open])
}

/// A shared sandbox with a mount that covers a directory with a file of the same name.
fn covered() -> (MountSandbox, PathBuf) {
    let mut sandbox = MountSandbox::new();
    sandbox.share();
    let bare = sandbox.path("vol");
    fs::create_dir(&bare).unwrap();
    fs::write(bare.join("held"), "").unwrap();
    let target = sandbox.mount("vol");
    fs::write(target.join("held"), "").unwrap();
    (sandbox, target)
}

fn users(report: &HolderReport) -> Vec<Holder> {
    own(report).filter(|holder| holder.explains()).cloned().collect()
}

fn accesses(holders: &[Holder]) -> Vec<Access> {
    holders.iter().map(|holder| holder.access).collect()
}

#[test]
fn who_left_a_copy_for_the_directory_below_it_holds_it_no_more() {
    let (_sandbox, target) = covered();
    let stays = in_copy(&target);
    let report = scan_path(&target);
    let holders = users(&report);
    assert_eq!(accesses(&holders), [Access::Cwd, Access::Fd], "{report:#?}");
    assert_eq!(users(&still(&report, &holders)), holders);
    let left = Child::spawn(vec![
        Step::Unshare(libc::MS_SLAVE),
        Step::Detach(c_path(&target)),
        Step::Chdir(c_path(&target)),
        Step::Open(c_path(&target.join("held")), libc::O_RDONLY),
    ]);
    let proc = Proc::default();
    let (start_ns, mntns) = (proc.stat(left.tgid()).unwrap().start_ns, proc.ns(left.tgid(), "mnt"));
    let as_if =
        |holder: &Holder| Holder { tgid: left.tgid(), start_ns: Some(start_ns), mntns, ..holder.clone() };
    // As the first one would be, had it unmounted its copy.
    let before: Vec<Holder> = holders.iter().map(as_if).collect();
    let again = still(&report, &before);
    assert_eq!((users(&again), again.complete), (vec![], true), "{again:#?}");
    // Where it is not known which copy it was in, a name says nothing.
    let unknown: Vec<Holder> = before.iter().map(|held| Holder { mount: None, ..held.clone() }).collect();
    let again = still(&report, &unknown);
    assert_eq!((users(&again), again.complete), (vec![], false), "{again:#?}");
    drop(stays);
}

#[test]
fn an_id_that_another_mount_has_by_now_is_not_that_of_the_copy() {
    let (_sandbox, target) = covered();
    let _child = in_copy(&target);
    let report = scan_path(&target);
    let holders = users(&report);
    let Some(unique) = holders[0].mount.unwrap().unique else { return };
    let reused = |holder: &Holder| {
        let mount = holder.mount.map(|mount| MeantMount { unique: Some(unique - 1), ..mount });
        Holder { mount, ..holder.clone() }
    };
    let before: Vec<Holder> = holders.iter().map(reused).collect();
    assert_eq!(users(&still(&report, &before)), []);
}

#[test]
fn who_uses_a_copy_that_was_detached_along_is_seen() {
    let (_sandbox, target) = covered();
    let child = in_copy(&target);
    let report = scan_path(&target);
    let holders = users(&report);
    assert_eq!(accesses(&holders), [Access::Cwd, Access::Fd], "{report:#?}");
    assert_eq!(umount(&target, libc::MNT_DETACH), Ok(()));
    let detached = |holders: Vec<Holder>| {
        let mount = report.mount.clone().unwrap();
        let request = StillHeldRequest { id: 7, mount, holders, is_attached: false };
        still_held::still_held(&Proc::default(), &request, Deadline::after(AMPLE))
    };
    assert_eq!(detached(holders.clone()).holders, holders);
    let unknown: Vec<Holder> = holders.iter().map(|held| Holder { mount: None, ..held.clone() }).collect();
    let unseen = detached(unknown);
    assert_eq!(unseen.holders, []);
    assert!(unseen.blind_spots.iter().any(|spot| spot.tgid == Some(child.tgid())), "{unseen:#?}");
}

#[test]
fn who_has_mounted_something_else_in_the_place_of_his_copy_and_uses_that_is_found() {
    let (_sandbox, target) = covered();
    let own = |mut more: Vec<Step>| {
        let mut steps =
            vec![Step::Unshare(libc::MS_SLAVE), Step::Detach(c_path(&target)), Step::Mount(c_path(&target))];
        steps.append(&mut more);
        Child::spawn(steps)
    };
    let child = own(vec![Step::Chdir(c_path(&target))]);
    assert_eq!(umount(&target, 0), Err(libc::EBUSY));
    let report = scan_path(&target);
    assert_eq!(held(&report), [(child.tgid(), Access::Cwd)], "{report:#?}");
    let holders = users(&report);
    assert_eq!(users(&still(&report, &holders)), holders);
    drop(child);
    // Who is in what covers that refuses nothing.
    let _covered = own(vec![Step::Mount(c_path(&target)), Step::Chdir(c_path(&target))]);
    let report = scan_path(&target);
    assert_eq!(users(&report), [], "{report:#?}");
    assert_eq!(umount(&target, 0), Ok(()));
}

#[test]
fn a_copy_is_found_that_all_processes_of_its_namespace_have_hidden_below_another_root() {
    let (_sandbox, target) = covered();
    let child = Child::spawn(vec![
        Step::Unshare(libc::MS_SLAVE),
        Step::Open(c_path(&target.join("held")), libc::O_RDONLY),
        Step::CoverRoot,
    ]);
    assert_eq!(umount(&target, 0), Err(libc::EBUSY));
    let process = Proc::default().dir(child.tgid()).unwrap();
    if MountNamespace::of(&process).is_err() {
        eprintln!("this kernel does not list the mounts of others");
        return;
    }
    let report = scan_path(&target);
    assert_eq!(held(&report), [(child.tgid(), Access::Fd), (child.tgid(), Access::Mount)], "{report:#?}");
}

#[test]
fn a_copy_that_only_processes_in_a_chroot_could_see_is_not_taken_for_none() {
    for (propagation, complete) in [(libc::MS_SLAVE, false), (libc::MS_PRIVATE, true)] {
        let mut sandbox = MountSandbox::new();
        sandbox.share();
        let target = sandbox.mount("vol");
        let jail = sandbox.path("jail");
        fs::create_dir(&jail).unwrap();
        let child = Child::spawn(vec![
            Step::Unshare(propagation),
            Step::Chdir(c_path(&target)),
            Step::Chroot(c_path(&jail)),
        ]);
        let report = scan_path(&target);
        let is_doubted = report.blind_spots.iter().any(|spot| spot.tgid == Some(child.tgid()));
        // Before 6.11 the kernel does not tell.
        let is_listed = MountNamespace::of(&Proc::default().dir(child.tgid()).unwrap()).is_ok();
        assert_eq!(is_doubted, !is_listed, "{report:#?}");
        if complete {
            // No unmount here reaches it.
            assert_eq!(umount(&target, 0), Ok(()));
        } else {
            match is_listed {
                true => assert!(held(&report).contains(&(child.tgid(), Access::Cwd)), "{report:#?}"),
                false => assert_eq!(report.verdict, Verdict::Incomplete, "{report:#?}"),
            }
            assert_eq!(umount(&target, 0), Err(libc::EBUSY));
        }
    }
}
