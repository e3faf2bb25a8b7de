//! Holders whose files have other names by now, or none.

use super::descriptors::still;
use super::*;

fn detached(report: &HolderReport, holders: &[Holder]) -> HolderReport {
    let (mount, holders) = (report.mount.clone().unwrap(), holders.to_vec());
    let request = StillHeldRequest { id: 7, mount, holders, is_attached: false };
    still_held::still_held(&Proc::default(), &request, Deadline::after(AMPLE))
}

fn accesses(report: &HolderReport) -> Vec<(u32, Access)> {
    let mut accesses: Vec<_> = report.holders.iter().map(|holder| (holder.tgid, holder.access)).collect();
    accesses.sort_unstable();
    accesses
}

#[test]
fn who_renames_or_removes_what_he_uses_holds_the_mount_on() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    for name in ["fd", "map"] {
        fs::write(target.join(name), "x").unwrap();
    }
    for name in ["cwd", "root"] {
        fs::create_dir(target.join(name)).unwrap();
    }
    fs::copy("/bin/cat", target.join("cat")).unwrap();
    let children = [
        Child::spawn(vec![Step::Open(c_path(&target.join("fd")), libc::O_RDONLY)]),
        Child::spawn(vec![Step::Map(c_path(&target.join("map")))]),
        Child::spawn(vec![Step::Bind(c_path(&target.join("socket")))]),
        Child::spawn(vec![Step::Chdir(c_path(&target.join("cwd")))]),
        Child::spawn(vec![Step::Chroot(c_path(&target.join("root")))]),
    ];
    let mut cat = Command::new(target.join("cat")).stdin(Stdio::piped()).spawn().unwrap();
    let report = scan_path(&target);
    assert_eq!(report.holders.len(), 6, "{report:#?}");
    for name in ["fd", "map", "socket", "cwd", "cat"] {
        fs::rename(target.join(name), target.join(format!("other {name}"))).unwrap();
    }
    let renamed = still(&report, &report.holders);
    for name in ["fd", "map", "socket", "cat"] {
        fs::remove_file(target.join(format!("other {name}"))).unwrap();
    }
    fs::remove_dir(target.join("other cwd")).unwrap();
    let removed = still(&report, &report.holders);
    assert_eq!(umount(&target, libc::MNT_DETACH), Ok(()));
    let away = detached(&report, &report.holders);
    drop(cat.stdin.take());
    cat.wait().unwrap();
    for again in [&renamed, &removed, &away] {
        assert_eq!(accesses(again), accesses(&report), "{again:#?}");
    }
    let path = |report: &HolderReport| {
        let open = report.holders.iter().find(|holder| holder.access == Access::Fd);
        open.unwrap().path.clone().unwrap()
    };
    let name = target.join("other fd").to_str().unwrap().to_owned();
    assert_eq!(
        [&renamed, &removed, &away].map(path),
        [name.clone(), format!("{name} (deleted)"), format!("{name} (deleted)")]
    );
    drop(children);
    assert_eq!(detached(&report, &report.holders).holders, []);
}

#[test]
fn who_moves_a_file_to_another_descriptor_holds_the_mount_on() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    let children = [
        Child::spawn(vec![Step::Open(c_path(&target), libc::O_RDONLY)]),
        Child::spawn(vec![Step::Bind(c_path(&target.join("socket")))]),
    ];
    let report = scan_path(&target);
    assert_eq!(held(&report).len(), 2);
    let before: Vec<Holder> =
        report.holders.iter().map(|holder| Holder { fd: Some(900), ..holder.clone() }).collect();
    assert_eq!(still(&report, &before).holders, report.holders);
    drop(children);
    assert_eq!(still(&report, &before).holders, []);
}

#[test]
fn a_thread_that_stays_in_a_directory_of_its_own_holds_the_mount_on() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    let child = Child::spawn(vec![Step::ThreadIn(c_path(&target))]);
    let report = scan_path(&target);
    assert_eq!(held(&report), [(child.tgid(), Access::Cwd)]);
    assert_eq!(still(&report, &report.holders).holders, report.holders);
    let elsewhere = Child::spawn(vec![Step::ThreadIn(c_path(&sandbox.path("")))]);
    let start_ns = Proc::default().stat(elsewhere.tgid()).map(|stat| stat.start_ns);
    let other = Holder { tgid: elsewhere.tgid(), start_ns, ..report.holders[0].clone() };
    assert_eq!(still(&report, &[other]).holders, []);
}
