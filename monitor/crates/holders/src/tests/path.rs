//! Which mount a path leads to, and whether it is still there.

use super::*;

#[test]
fn the_question_can_come_from_another_namespace() {
    let mut sandbox = MountSandbox::new();
    let here = sandbox.mount("vol");
    let there = Child::spawn(vec![Step::Unshare(libc::MS_PRIVATE), Step::Chdir(c_path(&here))]);
    let mntns = Proc::default().ns(there.tgid(), "mnt").unwrap();
    for caller in [there.tgid(), u32::MAX] {
        let request = ScanRequest { mntns, tgid: caller, ..request(&here) };
        let report = scan(&Proc::default(), &request, AMPLE);
        assert_eq!(report.mount.as_ref().unwrap().mntns, mntns);
        assert_eq!(report.holders[0].tgid, there.tgid());
        assert_eq!(report.holders[0].access, Access::Cwd);
    }
}

#[test]
fn a_relative_path_is_resolved_with_the_callers_directory() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    fs::create_dir(sandbox.path("x")).unwrap();
    let caller = Child::spawn(vec![Step::Chdir(c_path(&sandbox.path("")))]);
    let holder = Child::spawn(vec![Step::Chdir(c_path(&target))]);
    let relative = ScanRequest { tgid: caller.tgid(), path: "./x/../vol/".to_owned(), ..request(&target) };
    let report = scan(&Proc::default(), &relative, AMPLE);
    assert_eq!(report.path, target.to_str().unwrap());
    assert_eq!(held(&report), [(holder.tgid(), Access::Cwd)]);
    drop(caller);
    let late = scan(&Proc::default(), &ScanRequest { tgid: u32::MAX, ..relative }, AMPLE);
    assert_eq!((late.verdict, late.complete, late.mount), (Verdict::Incomplete, false, None));
}

#[test]
fn a_path_through_names_without_end_is_not_followed_to_its_end() {
    let mut sandbox = MountSandbox::new();
    let vol = sandbox.mount("vol");
    fs::create_dir_all(sandbox.path("x/y")).unwrap();
    symlink("x/y/../..", sandbox.path("link")).unwrap();
    let (names, links) = ("x/../".repeat(200), "link/".repeat(30));
    for (way, is_found) in [(names.clone(), true), (names.repeat(3), false), (links + &names, false)] {
        let path = sandbox.path(&(way + "vol"));
        let report = scan(&Proc::default(), &request(&path), AMPLE);
        assert_eq!(report.path == vol.to_str().unwrap(), is_found, "{report:?}");
        assert_eq!(report.mount.is_some(), is_found);
        let is_told = report.blind_spots.iter().any(|spot| spot.reason.contains("more than 512 names"));
        assert_eq!((is_told, report.complete && !is_found), (!is_found, false), "{report:?}");
    }
}

pub(super) fn captured(path: &Path) -> Option<CallerDirectory> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mount = MountTable::parse(&text, "/").covering(path.to_str().unwrap()).unwrap().id;
    let path = Some(path.to_str().unwrap().to_owned());
    Some(CallerDirectory { mount_id: u32::try_from(mount).unwrap(), path })
}

fn scan_captured(root: &Path, cwd: &Path, path: &str) -> HolderReport {
    let origin = PathOrigin { root: captured(root), cwd: captured(cwd), ..PathOrigin::default() };
    let (path, origin) = (path.to_owned(), Some(Box::new(origin)));
    let request = ScanRequest { tgid: u32::MAX, path, origin, ..request(root) };
    scan(&Proc::default(), &request, AMPLE)
}

#[test]
fn a_path_starts_from_the_directories_that_were_captured_of_its_caller() {
    let mut sandbox = MountSandbox::new();
    let jail = sandbox.path("jail");
    fs::create_dir_all(jail.join("in")).unwrap();
    let target = sandbox.mount("jail/vol");
    symlink("/vol", jail.join("in/absolute")).unwrap();
    symlink("../vol", jail.join("in/relative")).unwrap();
    let holder = Child::spawn(vec![Step::Chdir(c_path(&target))]);
    let found = |path: &str| {
        let report = scan_captured(&jail, &jail.join("in"), path);
        assert_eq!(held(&report), [(holder.tgid(), Access::Cwd)], "{path}");
        // A security module may protect a process, whatever the path.
        assert!(report.blind_spots.iter().all(|spot| spot.tgid.is_some()), "{path}: {report:?}");
        report.path
    };
    for path in ["/vol", "/../../vol", "../vol", "../../../vol", "absolute", "relative/", "./absolute/."] {
        assert_eq!(found(path), target.to_str().unwrap(), "{path}");
    }
    let outside = scan_captured(&sandbox.path(""), &jail.join("in"), "/vol");
    assert_eq!((outside.verdict, outside.complete), (Verdict::NotAMount, false));
}

#[test]
fn an_absolute_link_below_a_root_that_is_not_known_leads_nowhere_rather_than_elsewhere() {
    let mut sandbox = MountSandbox::new();
    let jail = sandbox.path("jail");
    fs::create_dir_all(jail.join("in")).unwrap();
    let target = sandbox.mount("jail/vol");
    symlink("/vol", jail.join("in/absolute")).unwrap();
    symlink("../vol", jail.join("in/relative")).unwrap();
    let look = |path: &Path| {
        let request = ScanRequest { tgid: 0, mount_only: true, ..request(path) };
        scan(&Proc::default(), &request, AMPLE)
    };
    let lost = look(&jail.join("in/absolute"));
    assert_eq!((lost.verdict, lost.complete), (Verdict::Incomplete, false), "{lost:?}");
    assert!(lost.blind_spots[0].reason.contains("root directory of the caller is unknown"), "{lost:?}");
    for path in [target.clone(), jail.join("in/relative")] {
        let found = look(&path);
        assert_eq!((found.path.as_str(), found.complete), (target.to_str().unwrap(), true), "{found:?}");
    }
    // Of one whose root was captured it is known whether anything is there.
    let origin =
        PathOrigin { root: captured(&jail), cwd: captured(&jail.join("in")), ..PathOrigin::default() };
    let with_root = || {
        let (path, origin) = ("absolute".to_owned(), Some(Box::new(origin.clone())));
        scan(
            &Proc::default(),
            &ScanRequest { tgid: 0, mount_only: true, path, origin, ..request(&jail) },
            AMPLE,
        )
    };
    assert_eq!((with_root().verdict, with_root().complete), (Verdict::Incomplete, true));
    assert_eq!(umount(&target, 0), Ok(()));
    assert_eq!((with_root().verdict, with_root().complete), (Verdict::NotAMount, true));
}

#[test]
fn a_directory_that_is_on_another_mount_by_now_is_not_taken_for_the_callers() {
    let mut sandbox = MountSandbox::new();
    fs::create_dir(sandbox.path("a")).unwrap();
    sandbox.mount("a/vol");
    let cwd = captured(&sandbox.path("a"));
    sandbox.mount("a");
    let above = sandbox.mount("a/vol");
    let _holder = Child::spawn(vec![Step::Chdir(c_path(&above))]);
    let origin = PathOrigin { root: captured(Path::new("/")), cwd, ..PathOrigin::default() };
    let request = ScanRequest { path: "vol".to_owned(), origin: Some(Box::new(origin)), ..request(&above) };
    let report = scan(&Proc::default(), &request, AMPLE);
    assert_eq!((report.verdict, report.complete, &report.mount), (Verdict::Incomplete, false, &None));
    assert!(report.blind_spots[0].reason.contains("on another mount now"), "{report:?}");
}

#[test]
fn a_path_that_may_not_be_the_one_of_the_call_is_not_resolved() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    let _holder = Child::spawn(vec![Step::Chdir(c_path(&target))]);
    let with = |doubt| {
        let origin =
            PathOrigin { root: captured(Path::new("/")), doubt: Some(doubt), ..PathOrigin::default() };
        let request = ScanRequest { origin: Some(Box::new(origin)), ..request(&target) };
        let report = scan(&Proc::default(), &request, AMPLE);
        assert!(!report.complete && report.blind_spots[0].reason == doubt.reason(), "{report:?}");
        report.verdict
    };
    assert_eq!(with(PathUncertainty::Changed), Verdict::Incomplete);
    assert_eq!(with(PathUncertainty::DirectoryChanged), Verdict::Incomplete);
    assert_eq!(with(PathUncertainty::ReadLate), Verdict::Processes);
}

#[test]
fn a_mount_below_a_cover_is_not_the_one_at_its_path() {
    let mut sandbox = MountSandbox::new();
    fs::create_dir(sandbox.path("a")).unwrap();
    let target = sandbox.mount("a/vol");
    let _below = Child::spawn(vec![Step::Open(c_path(&target), libc::O_RDONLY)]);
    let cover = sandbox.mount("a");
    fs::create_dir(cover.join("vol")).unwrap();
    assert_eq!(scan_path(&target).verdict, Verdict::NotAMount);
}

#[test]
fn a_path_where_nothing_is_mounted_is_not_a_mount() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    fs::create_dir(target.join("d")).unwrap();
    assert_eq!(scan_path(&target.join("d")).verdict, Verdict::NotAMount);
    assert_eq!(scan_path(&target.join("none")).verdict, Verdict::NotAMount);
}

#[test]
fn nothing_is_mounted_below_a_directory_that_is_gone() {
    let sandbox = MountSandbox::new();
    for path in ["pods/uid/volumes/data", "pods/uid/volumes/../data"] {
        let request = ScanRequest { mount_only: true, ..request(&sandbox.path(path)) };
        let report = scan(&Proc::default(), &request, AMPLE);
        assert_eq!((report.verdict, report.complete), (Verdict::NotAMount, true), "{path}: {report:?}");
        assert_eq!(report.path, sandbox.path(path).to_str().unwrap());
    }
}

#[test]
fn a_mount_is_found_again_by_its_identity_and_another_one_at_its_place_is_not() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    let identity = scan_path(&target).mount.unwrap().identity().unwrap();
    let wanted =
        PresenceRequest { id: 3, mntns: own_mntns(), tgid: u32::MAX, identity: identity.clone(), at: None };
    let answer = || presence::presence(&Proc::default(), &wanted, Deadline::after(AMPLE)).present;
    assert_eq!(answer(), Some(true));
    sandbox.mount("vol");
    assert_eq!(answer(), Some(true), "a cover does not end what is below");
    assert_eq!((umount(&target, 0), umount(&target, 0)), (Ok(()), Ok(())));
    assert_eq!(answer(), Some(false));
    sandbox.mount("vol");
    let other = scan_path(&target).mount.unwrap().identity().unwrap();
    assert!(!other.is_same(&identity), "{other:?}");
    assert_eq!(answer(), Some(false), "what is mounted there now is another one");
}

#[test]
fn a_path_leads_to_a_mount_until_another_one_covers_it() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    let identity = scan_path(&target).mount.unwrap().identity().unwrap();
    let look = |request: &ScanRequest| first(&Proc::default(), request, Deadline::after(AMPLE)).report;
    let leads_to = || {
        let found = look(&request(&target)).mount.and_then(|mount| mount.identity());
        found.is_some_and(|found| found.is_same(&identity))
    };
    assert!(leads_to());
    sandbox.mount("vol");
    assert!(!leads_to());
    assert_eq!(umount(&target, 0), Ok(()));
    assert!(leads_to());
    assert_eq!(umount(&target, 0), Ok(()));
    assert!(!leads_to());
    let report = look(&ScanRequest { mntns: 1, ..request(&target) });
    assert!(
        report.mount.is_none()
            && report.blind_spots[0]
                .reason
                .contains("no process in its mount namespace has a root directory")
    );
}

#[test]
fn the_mount_that_the_kernel_found_is_found_again_below_others_and_no_other_one_for_it() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    let identity = scan_path(&target).mount.unwrap().identity().unwrap();
    let meant = MeantMount { id: identity.mount_id.into(), unique: identity.unique };
    let look = |target: MeantMount| {
        let origin =
            PathOrigin { root: None, cwd: None, doubt: None, table: None, target: Some(target), began: None };
        // What the path leads to does not matter.
        let request = ScanRequest { origin: Some(Box::new(origin)), ..request(Path::new("/")) };
        first(&Proc::default(), &request, Deadline::after(AMPLE))
    };
    let _cover = sandbox.mount("vol");
    let found = look(meant);
    assert_eq!((found.lost, found.is_meant), (None, identity.unique.is_some()));
    assert_eq!(found.report.mount.unwrap().identity(), Some(identity.clone()));
    if let Some(unique) = identity.unique {
        let reused = look(MeantMount { unique: Some(unique + 1), ..meant });
        assert_eq!((reused.lost, reused.report.mount), (Some(Uncertainty::Gone), None));
    }
    assert_eq!(umount(&target, 0), Ok(()));
    assert_eq!(umount(&target, 0), Ok(()));
    let gone = look(meant);
    assert_eq!((gone.lost, gone.report.mount), (Some(Uncertainty::Gone), None));
}

#[test]
fn where_no_process_is_left_nothing_is_said_about_a_mount() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    let there = Child::spawn(vec![Step::Unshare(libc::MS_PRIVATE)]);
    let mntns = Proc::default().ns(there.tgid(), "mnt").unwrap();
    let request = ScanRequest { mntns, tgid: there.tgid(), ..request(&target) };
    let identity = scan(&Proc::default(), &request, AMPLE).mount.unwrap().identity().unwrap();
    let wanted = PresenceRequest { id: 3, mntns, tgid: there.tgid(), identity, at: None };
    let answer = || presence::presence(&Proc::default(), &wanted, Deadline::after(AMPLE));
    assert_eq!(answer().present, Some(true));
    drop(there);
    let late = answer();
    assert_eq!(late.present, None);
    assert!(late.reason.unwrap().starts_with("no process in its mount namespace has mounts"));
}

#[test]
fn a_process_whose_root_directory_was_detached_shows_nothing_of_its_namespace() {
    let mut sandbox = MountSandbox::new();
    let (target, root) = (sandbox.mount("vol"), sandbox.mount("root"));
    let detached = vec![
        Step::Unshare(libc::MS_PRIVATE),
        Step::Chroot(c_path(&root)),
        Step::Detach(c_path(Path::new("/"))),
    ];
    let there = Child::spawn(detached);
    let shown = fs::read_link(format!("/proc/{}/root", there.tgid())).unwrap();
    assert_eq!(shown, Path::new("/"), "as of a process that sees everything");
    let mntns = Proc::default().ns(there.tgid(), "mnt").unwrap();
    // As on a kernel without unique ids.
    let known = scan_path(&target).mount.unwrap().identity().unwrap();
    let identity = MountIdentity { unique: None, ..known };
    let wanted = PresenceRequest { id: 3, mntns, tgid: there.tgid(), identity, at: None };
    let answer = presence::presence(&Proc::default(), &wanted, Deadline::after(AMPLE));
    assert_eq!(answer.present, None, "{answer:?}");
}

#[test]
fn a_path_through_links_leads_to_the_mount_that_the_kernel_would_unmount() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("data/vol");
    fs::write(target.join("f"), "x").unwrap();
    symlink("data", sandbox.path("lib")).unwrap();
    symlink(sandbox.path("lib"), sandbox.path("abs")).unwrap();
    symlink("../lib/vol", sandbox.path("data/last")).unwrap();
    fs::create_dir_all(sandbox.path("data/deep/er")).unwrap();
    symlink("data/deep/er", sandbox.path("jump")).unwrap();
    let child = Child::spawn(vec![Step::Open(c_path(&target.join("f")), libc::O_RDONLY)]);
    for path in ["lib/vol", "abs/vol/", "lib/last", "jump/../../vol", "lib/./vol/."] {
        let path = sandbox.path(path);
        assert_eq!(umount(&path, 0), Err(libc::EBUSY), "{path:?}");
        let report = scan_path(&path);
        assert_eq!(report.path, target.to_str().unwrap(), "{path:?}");
        assert_eq!(held(&report), [(child.tgid(), Access::Fd)], "{path:?}");
        // The process that gave the path has ended: another process of the namespace stands in.
        let late = scan_captured(Path::new("/"), Path::new("/"), path.to_str().unwrap());
        assert_eq!(held(&late), [(child.tgid(), Access::Fd)], "{path:?}");
    }
    let unfollowed = ScanRequest { follow: false, ..request(&sandbox.path("data/last")) };
    let report = scan(&Proc::default(), &unfollowed, AMPLE);
    assert_eq!(
        (report.verdict, report.path.as_str()),
        (Verdict::NotAMount, sandbox.path("data/last").to_str().unwrap())
    );
}

#[test]
fn resolving_a_path_does_not_pin_the_mount() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    symlink("vol", sandbox.path("link")).unwrap();
    assert_eq!(scan_path(&sandbox.path("link")).path, target.to_str().unwrap());
    assert_eq!(umount(&target, 0), Ok(()));
}

#[test]
fn where_nobody_is_left_in_the_namespace_the_answer_is_incomplete_and_says_why() {
    let sandbox = MountSandbox::new();
    let request = ScanRequest { mntns: 1, tgid: u32::MAX, ..request(&sandbox.path("vol")) };
    let report = scan(&Proc::default(), &request, AMPLE);
    assert_eq!((report.verdict, report.complete), (Verdict::Incomplete, false));
    assert!(
        report.blind_spots[0].reason.contains("no process in its mount namespace has a root directory"),
        "{report:?}"
    );
}
