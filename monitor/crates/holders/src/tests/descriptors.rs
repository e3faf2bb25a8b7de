//! Descriptors that are not in the table of the process.

use super::*;
use crate::pins::{Extent, Rest, Visit, Visitor};
use crate::searched::{ScanTargets, SearchedMount};
/// What the first files of a process show, and whether some are left.
pub(super) fn visit(own_ids: bool, target: &Path, child: &Child) -> (Visit, bool) {
    let process = Proc::default().dir(child.tgid()).unwrap();
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let table = MountTable::parse(&table, "/");
    let mount = table.iter().filter(|mount| Path::new(&mount.mountpoint) == target).last().unwrap();
    let mounts = vec![SearchedMount { ns: own_mntns(), mount }];
    let targets = ScanTargets { mounts, tables: [(own_mntns(), &table)].into() };
    let mut visitor = Visitor::new(own_ids.then(|| "/proc/self".into()));
    let (visit, rest) = visitor.files(child.tgid(), &process, &targets, (Rest::ALL, Extent::First)).unwrap();
    (visit, rest.is_some())
}

pub(super) fn still(report: &HolderReport, holders: &[Holder]) -> HolderReport {
    let (mount, holders) = (report.mount.clone().unwrap(), holders.to_vec());
    let request = StillHeldRequest { id: 7, mount, holders, is_attached: true };
    still_held::still_held(&Proc::default(), &request, Deadline::after(AMPLE))
}

/// Descriptor, and the thread that has it.
type Found = (Option<u32>, Option<u32>);

/// What the own table of a thread that opens this shows, and what is left of it after the first look.
fn visited(own_ids: bool, target: &Path, child: &Child) -> (Vec<Found>, bool) {
    let (visit, is_left) = visit(own_ids, target, child);
    (visit.pins.into_iter().map(|pin| (pin.tid, pin.fd)).collect(), is_left)
}

#[test]
fn a_descriptor_in_the_own_table_of_a_thread_is_found_with_that_thread() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    let child = Child::spawn(vec![Step::Apart(c_path(&target), 3)]);
    assert_eq!(umount(&target, 0), Err(libc::EBUSY));
    let report = scan_path(&target);
    assert_eq!(held(&report), [(child.tgid(), Access::Fd)]);
    let (tid, fd) = (report.holders[0].tid.unwrap(), report.holders[0].fd.unwrap());
    assert_ne!(tid, child.tgid());
    let link = fs::read_link(format!("/proc/{}/task/{tid}/fd/{fd}", child.tgid())).unwrap();
    assert_eq!(link, target);
    // Whether kcmp(2) tells anything or not.
    for own_ids in [true, false] {
        assert_eq!(visited(own_ids, &target, &child), (vec![(Some(tid), Some(fd))], false), "{own_ids}");
    }
}

#[test]
fn a_table_of_its_own_is_found_however_many_threads_a_process_has_and_whoever_else_holds_the_mount() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    let other = Child::spawn(vec![Step::Chdir(c_path(&target))]);
    let child = Child::spawn(vec![Step::Apart(c_path(&target), 200)]);
    let mut expected = [(other.tgid(), Access::Cwd), (child.tgid(), Access::Fd)];
    expected.sort_unstable();
    let mut found = held(&scan_path(&target));
    found.sort_unstable();
    assert_eq!(found, expected);
}

#[test]
fn what_an_own_table_has_very_many_of_is_looked_at_later() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    let other = c_path(&sandbox.path(""));
    let mut steps: Vec<Step> = (0..300).map(|_| Step::Open(other.clone(), libc::O_RDONLY)).collect();
    // The table is a copy of that of the process, and has one more.
    steps.push(Step::Apart(c_path(&target), 2));
    let child = Child::spawn(steps);
    for own_ids in [true, false] {
        assert_eq!(visited(own_ids, &target, &child), (vec![], true), "{own_ids}");
    }
    assert_eq!(held(&scan_path(&target)), [(child.tgid(), Access::Fd)]);
}

#[test]
fn who_still_holds_a_mount_by_a_table_of_its_own_is_seen() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    let child = Child::spawn(vec![Step::Apart(c_path(&target), 2)]);
    let report = scan_path(&target);
    assert_eq!(still(&report, &report.holders).holders, report.holders);
    let elsewhere = Holder { tid: None, ..report.holders[0].clone() };
    assert_eq!(still(&report, &[elsewhere]).holders, [], "the process itself does not have it");
    drop(child);
    assert_eq!(still(&report, &report.holders).holders, []);
}

#[test]
fn a_process_whose_first_thread_ended_is_found_through_another() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    let child = Child::spawn(vec![
        Step::Open(c_path(&target), libc::O_RDONLY),
        Step::ThreadIn(c_path(&sandbox.path(""))),
        Step::EndLeader,
    ]);
    while Proc::default().stat(child.tgid()).unwrap().state != 'Z' {
        std::thread::yield_now();
    }
    assert_eq!(umount(&target, 0), Err(libc::EBUSY));
    let report = scan_path(&target);
    assert_eq!(held(&report), [(child.tgid(), Access::Fd)]);
    // The list of the process itself is empty by now.
    assert!(report.holders[0].tid.is_some_and(|tid| tid != child.tgid()));
    assert_eq!(still(&report, &report.holders).holders, report.holders);
}

/// The process that shares its descriptors with a child.
fn sharing(child: &Child) -> u32 {
    let proc = Proc::default();
    let is_it = |pid: &u32| proc.stat(*pid).is_some_and(|stat| stat.ppid == child.tgid());
    proc.pids().unwrap().into_iter().find(is_it).unwrap()
}

#[test]
fn whoever_holds_the_mount_by_a_table_that_processes_share_is_found() {
    let mut sandbox = MountSandbox::new();
    let (target, other) = (sandbox.mount("vol"), sandbox.mount("other"));
    let full = |last: Step| {
        let open = || Step::Open(c_path(&other), libc::O_RDONLY);
        let mut steps: Vec<Step> = std::iter::repeat_with(open).take(300).collect();
        steps.extend([last, Step::ShareFiles]);
        Child::spawn(steps)
    };
    let (_without, with) = (full(Step::Open(c_path(&other), 0)), full(Step::Open(c_path(&target), 0)));
    let mut expected = [(with.tgid(), Access::Fd), (sharing(&with), Access::Fd)];
    expected.sort_unstable();
    let mut found = held(&scan_path(&target));
    found.sort_unstable();
    assert_eq!(found, expected);
}
