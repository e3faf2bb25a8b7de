//! Real mounts and real holders. They need root, as the scan does.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use kevtmon_observation::{
    Access, CallerDirectory, Holder, MeantMount, MountIdentity, PathUncertainty, Verdict,
};
use kevtmon_sources::procfs::mountinfo::MountTable;
use kevtmon_sources::procfs::statmount::MountNamespace;
use parts::scan_part;
use sandbox::{Child, MountSandbox, Step, c_path, umount};

use super::locate::first;
use super::progress::Progress;
use super::scan::Scan;
use super::table::Uncertainty;
use super::*;

mod copies;
mod demand;
mod descriptors;
mod detached;
mod file_server;
mod fuse_mounts;
mod identity;
mod parts;
mod path;
mod renamed;
mod replaced;
mod sandbox;
mod sockets;
mod tables;
mod unseen;
mod without_process;

/// Long enough that it never ends a scan of a test.
const AMPLE: Duration = Duration::from_secs(60);

fn own_mntns() -> NsInum {
    Proc::default().ns(std::process::id(), "mnt").unwrap()
}

fn request(path: &Path) -> ScanRequest {
    let (id, tgid, path, origin) = (7, std::process::id(), path.to_str().unwrap().to_owned(), None);
    let (follow, mount_only, on_demand) = (true, false, false);
    ScanRequest {
        id,
        mntns: own_mntns(),
        tgid,
        path,
        origin,
        follow,
        mount_only,
        on_demand,
        near_suffices: false,
    }
}

fn scan(proc: &Proc, request: &ScanRequest, budget: Duration) -> HolderReport {
    scan_part(proc, request, Progress::default(), budget).report
}

fn scan_path(path: &Path) -> HolderReport {
    scan(&Proc::default(), &request(path), AMPLE)
}

/// The holders by process and access, of a report in which processes hold the mount.
fn held(report: &HolderReport) -> Vec<(u32, Access)> {
    assert_eq!(report.verdict, Verdict::Processes, "{report:#?}");
    own(report).map(|holder| (holder.tgid, holder.access)).collect()
}

/// The holders without those that merely have a copy of the mount and are nobody that a test has started: whatever makes
/// a mount namespace meanwhile has one.
fn own(report: &HolderReport) -> impl Iterator<Item = &Holder> {
    let is_ours = |tgid| Proc::default().stat(tgid).is_some_and(|stat| stat.ppid == std::process::id());
    report.holders.iter().filter(move |holder| holder.access != Access::Mount || is_ours(holder.tgid))
}

#[test]
fn an_open_file_is_found_with_its_descriptor_and_process() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    fs::write(target.join("f"), "x").unwrap();
    let child = Child::spawn(vec![Step::Open(c_path(&target.join("f")), libc::O_RDONLY)]);
    assert_eq!(umount(&target, 0), Err(libc::EBUSY));
    let report = scan_path(&target);
    assert_eq!(held(&report), [(child.tgid(), Access::Fd)]);
    let holder = &report.holders[0];
    assert_eq!(holder.path.as_deref(), target.join("f").to_str());
    assert!(holder.fd.is_some() && holder.exe.is_some() && holder.cgroup.is_some());
    assert_eq!(holder.comm, Proc::default().stat(child.tgid()).unwrap().comm);
    assert_eq!(holder.mntns, Some(own_mntns()));
    assert_eq!((report.id, report.path.as_str()), (7, target.to_str().unwrap()));
    let mount = report.mount.unwrap();
    assert_eq!((mount.fstype.as_str(), mount.source.as_str(), mount.root.as_str()), ("tmpfs", "target", "/"));
    assert_eq!(mount.mountpoint, target.to_str().unwrap());
}

#[test]
fn a_deleted_file_and_a_path_descriptor_hold_too() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    fs::write(target.join("f"), "x").unwrap();
    let deleted = Child::spawn(vec![Step::Open(c_path(&target.join("f")), libc::O_RDONLY)]);
    fs::remove_file(target.join("f")).unwrap();
    let path = Child::spawn(vec![Step::Open(c_path(&target), libc::O_PATH)]);
    let report = scan_path(&target);
    let mut expected = [(deleted.tgid(), Access::Fd), (path.tgid(), Access::Fd)];
    expected.sort_unstable();
    assert_eq!(held(&report), expected);
    assert!(report.holders.iter().any(|holder| holder.path.as_deref().unwrap().ends_with("/f (deleted)")));
}

#[test]
fn who_is_in_a_directory_that_the_mount_covers_does_not_hold_it() {
    let mut sandbox = MountSandbox::new();
    let directory = sandbox.path("vol");
    fs::create_dir(&directory).unwrap();
    let before = Child::spawn(vec![Step::Chdir(c_path(&directory))]);
    let below = sandbox.mount("vol");
    let first = Child::spawn(vec![Step::Chdir(c_path(&below))]);
    assert_eq!(held(&scan_path(&below)), [(first.tgid(), Access::Cwd)]);
    let cover = sandbox.mount("vol");
    let second = Child::spawn(vec![Step::Chdir(c_path(&cover))]);
    assert_eq!(held(&scan_path(&cover)), [(second.tgid(), Access::Cwd)]);
    drop(before);
}

#[test]
fn a_descriptor_far_above_the_others_is_found() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    let child = Child::spawn(vec![Step::OpenAt(c_path(&target), 900)]);
    let report = scan_path(&target);
    assert_eq!(held(&report), [(child.tgid(), Access::Fd)]);
    assert_eq!(report.holders[0].fd, Some(900));
}

#[test]
fn current_and_root_directory_are_found_each_with_its_access() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol with blank");
    fs::create_dir(target.join("d")).unwrap();
    let cwd = Child::spawn(vec![Step::Chdir(c_path(&target.join("d")))]);
    assert_eq!(held(&scan_path(&target)), [(cwd.tgid(), Access::Cwd)]);
    drop(cwd);
    let root = Child::spawn(vec![Step::Chroot(c_path(&target.join("d")))]);
    assert_eq!(umount(&target, 0), Err(libc::EBUSY));
    let report = scan_path(&target);
    assert_eq!(held(&report), [(root.tgid(), Access::Root)]);
    assert_eq!(report.holders[0].path.as_deref(), target.join("d").to_str());
}

#[test]
fn the_directory_of_a_thread_is_found() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    let child = Child::spawn(vec![Step::ThreadIn(c_path(&target))]);
    assert_eq!(umount(&target, 0), Err(libc::EBUSY));
    assert_eq!(held(&scan_path(&target)), [(child.tgid(), Access::Cwd)]);
}

#[test]
fn a_mapped_file_is_found_after_its_descriptor_is_closed() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    fs::write(target.join("f"), "x").unwrap();
    let child = Child::spawn(vec![Step::Map(c_path(&target.join("f")))]);
    assert_eq!(umount(&target, 0), Err(libc::EBUSY));
    let report = scan_path(&target);
    assert_eq!(held(&report), [(child.tgid(), Access::Mmap)]);
    assert_eq!(report.holders[0].path.as_deref(), target.join("f").to_str());
}

#[test]
fn a_running_program_is_found_as_executable_only() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    fs::copy("/bin/cat", target.join("cat")).unwrap();
    let mut cat = Command::new(target.join("cat")).stdin(Stdio::piped()).spawn().unwrap();
    let report = scan_path(&target);
    let found = held(&report);
    drop(cat.stdin.take());
    cat.wait().unwrap();
    assert_eq!(found, [(cat.id(), Access::Exe)]);
    assert_eq!(report.holders[0].exe.as_deref(), target.join("cat").to_str());
}

#[test]
fn a_child_mount_is_reported_and_its_users_are_not() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    let nested = sandbox.mount("vol/nested");
    let _child = Child::spawn(vec![
        Step::Chdir(c_path(&nested)),
        Step::Open(c_path(&nested), libc::O_RDONLY | libc::O_DIRECTORY),
    ]);
    let report = scan_path(&target);
    assert_eq!(report.verdict, Verdict::ChildMount);
    assert_eq!(report.child_mounts, [nested.to_str().unwrap()]);
    assert_eq!(report.holders, []);
}

#[test]
fn the_topmost_of_two_mounts_is_meant() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    let _below = Child::spawn(vec![Step::Open(c_path(&target), libc::O_RDONLY)]);
    sandbox.mount("vol");
    let above = Child::spawn(vec![Step::Open(c_path(&target), libc::O_RDONLY)]);
    assert_eq!(held(&scan_path(&target)), [(above.tgid(), Access::Fd)]);
}

#[test]
fn a_private_copy_in_another_namespace_is_named_but_its_users_refuse_nothing() {
    let mut sandbox = MountSandbox::new();
    sandbox.share();
    let target = sandbox.mount("vol");
    let child = Child::spawn(vec![Step::Unshare(libc::MS_PRIVATE), Step::Chdir(c_path(&target))]);
    let report = scan_path(&target);
    // Where the tests run in a container, there are processes that nobody may read.
    assert!(matches!(report.verdict, Verdict::Kernel | Verdict::Incomplete), "{report:#?}");
    let [holder] = own(&report).collect::<Vec<_>>()[..] else { panic!("{report:#?}") };
    assert_eq!((holder.tgid, holder.access), (child.tgid(), Access::Mount));
    assert_eq!(holder.path.as_deref(), target.to_str());
    assert_eq!(holder.mntns, Proc::default().ns(child.tgid(), "mnt"));
    assert_eq!(umount(&target, 0), Ok(()));
}

#[test]
fn a_user_of_a_copy_that_the_unmount_reaches_is_a_holder() {
    let mut sandbox = MountSandbox::new();
    sandbox.share();
    let target = sandbox.mount("vol");
    let child = Child::spawn(vec![Step::Unshare(libc::MS_SLAVE), Step::Chdir(c_path(&target))]);
    assert_eq!(umount(&target, 0), Err(libc::EBUSY));
    let report = scan_path(&target);
    assert_eq!(held(&report), [(child.tgid(), Access::Cwd), (child.tgid(), Access::Mount)]);
    assert_eq!(report.holders[0].mntns, Proc::default().ns(child.tgid(), "mnt"));
    drop(child);
    assert_eq!(umount(&target, 0), Ok(()));
}

#[test]
fn a_descriptor_taken_into_another_namespace_still_holds_the_old_mount() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    let child = Child::spawn(vec![
        Step::Open(c_path(&target), libc::O_RDONLY),
        Step::Unshare(libc::MS_PRIVATE),
        Step::Detach(c_path(&sandbox.path(""))),
    ]);
    assert_eq!(umount(&target, 0), Err(libc::EBUSY));
    let report = scan_path(&target);
    assert_eq!(held(&report), [(child.tgid(), Access::Fd)]);
    assert_ne!(report.holders[0].mntns, Some(own_mntns()));
}

#[test]
fn the_scan_itself_pins_nothing() {
    let mut sandbox = MountSandbox::new();
    sandbox.share();
    let target = sandbox.mount("vol");
    let child = Child::spawn(vec![Step::Unshare(libc::MS_SLAVE), Step::Chdir(c_path(&target))]);
    assert_eq!(scan_path(&target).verdict, Verdict::Processes);
    let mine = |fd: fs::DirEntry| fs::read_link(fd.path()).unwrap_or_default().to_string_lossy().into_owned();
    let open: Vec<String> = fs::read_dir("/proc/self/fd").unwrap().map(|fd| mine(fd.unwrap())).collect();
    let child_dir = format!("/proc/{}", child.tgid());
    assert!(!open.iter().any(|path| path.starts_with(&child_dir)), "{open:?}");
    drop(child);
    assert_eq!(umount(&target, 0), Ok(()));
}

#[test]
fn without_time_the_report_says_so() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    let _child = Child::spawn(vec![Step::Chdir(c_path(&target))]);
    let report = scan(&Proc::default(), &request(&target), Duration::ZERO);
    // One process is looked at in any case, and whose turn it is depends on who else is there.
    let verdict = if report.holders.is_empty() { Verdict::Incomplete } else { Verdict::Processes };
    assert_eq!((report.verdict, report.complete), (verdict, false));
}

#[test]
fn time_in_which_others_use_the_processor_is_not_that_of_a_scan() {
    let latest = Instant::now() + AMPLE;
    let budget = Duration::from_millis(20);
    let deadline = Deadline { used: thread_time() + budget, latest };
    let later = Instant::now() + 2 * budget;
    while let Some(left) = later.checked_duration_since(Instant::now()) {
        std::thread::park_timeout(left);
    }
    assert!(!deadline.is_over());
    while !deadline.is_over() {}
    assert!(Instant::now() < latest);
    assert!(Deadline { used: Duration::MAX, latest: Instant::now() }.is_over());
}

/// A /proc of literal files in which namespace 1 has a mount at /vol and namespace 2 has none.
struct FakeProc(tempfile::TempDir);

/// Its processes have our own root directory, so that is on the mount that the table says.
fn fake_table() -> String {
    let own = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let root = MountTable::parse(&own, "/").at("/").unwrap().id;
    format!("{root} 0 8:1 / / rw - ext4 d rw\n{VOL} {root} 0:9 / /vol rw - tmpfs t rw\n")
}

/// Id of the mount at /vol.
const VOL: u64 = 900_002;

fn fake_request() -> ScanRequest {
    ScanRequest { id: 1, mntns: 1, tgid: 99, path: "/vol".to_owned(), follow: true, ..ScanRequest::default() }
}

impl FakeProc {
    fn new() -> Self {
        let fake = Self(tempfile::tempdir().unwrap());
        fake.process(10, 1, &fake_table());
        fake
    }

    fn process(&self, tgid: u32, ns: u32, mountinfo: &str) {
        let dir = self.0.path().join(tgid.to_string());
        for sub in ["ns", "fd", "fdinfo"] {
            fs::create_dir_all(dir.join(sub)).unwrap();
        }
        let stat = format!("{tgid} (p{tgid}) S 1{} {tgid} 0 0\n", " 0".repeat(17));
        for (file, text) in
            [("stat", stat.as_str()), ("mountinfo", mountinfo), ("maps", ""), ("cmdline", "p\0")]
        {
            fs::write(dir.join(file), text).unwrap();
        }
        for (link, to) in
            [("ns/mnt", format!("mnt:[{ns}]").as_str()), ("root", "/"), ("cwd", "/"), ("exe", "/x")]
        {
            symlink(to, dir.join(link)).unwrap();
        }
    }

    fn open(&self, tgid: u32, fd: u32, path: &str, fdinfo: &str) {
        let dir = self.0.path().join(tgid.to_string());
        symlink(path, dir.join(format!("fd/{fd}"))).unwrap();
        fs::write(dir.join(format!("fdinfo/{fd}")), fdinfo).unwrap();
    }

    /// Makes a link unreadable: readlink of a regular file is refused, also to root.
    fn refuse(&self, tgid: u32, link: &str) {
        let path = self.0.path().join(tgid.to_string()).join(link);
        fs::remove_file(&path).unwrap();
        fs::write(path, "").unwrap();
    }

    fn scan(&self) -> HolderReport {
        scan(&Proc::new(self.0.path()), &fake_request(), AMPLE)
    }
}

#[test]
fn when_all_were_read_and_nobody_holds_it_the_kernel_does() {
    let fake = FakeProc::new();
    let report = fake.scan();
    assert_eq!((report.verdict, report.complete, report.unreadable), (Verdict::Kernel, true, 0));
}

#[test]
fn a_mount_that_is_gone_after_the_scan_was_held_for_a_moment_only() {
    let fake = FakeProc::new();
    let proc = Proc::new(fake.0.path());
    let target = MountTable::parse(&fake_table(), "/").at("/vol").unwrap().clone();
    let request = fake_request();
    let mut scan = Scan::new(&proc, &request, Progress::default(), Instant::now());
    scan.report.mount = Some(target.facts(1, None));
    assert_eq!(scan.verdict(true, 99), Verdict::Kernel);
    fs::write(fake.0.path().join("10/mountinfo"), fake_table().lines().next().unwrap()).unwrap();
    assert_eq!(scan.verdict(true, 99), Verdict::Transient);
}

#[test]
fn descriptors_are_found_however_their_numbers_lie() {
    for held in [0, 3, 40, 255, 70_000] {
        let fake = FakeProc::new();
        for fd in [0, 1, 2, 50, 1000].into_iter().filter(|fd| *fd != held) {
            fake.open(10, fd, "/dev/null", "mnt_id:\t1\n");
        }
        fake.open(10, held, "/vol/f", &format!("mnt_id:\t{VOL}\n"));
        let report = fake.scan();
        assert_eq!((report.verdict, report.holders[0].fd), (Verdict::Processes, Some(held)));
    }
}

#[test]
fn a_process_that_may_see_the_mount_and_cannot_be_read_makes_the_answer_incomplete() {
    let fake = FakeProc::new();
    fake.process(1, 1, &fake_table());
    fake.refuse(1, "ns/mnt");
    let report = fake.scan();
    assert_eq!((report.verdict, report.complete, report.unreadable), (Verdict::Incomplete, false, 1));

    let fake = FakeProc::new();
    fake.process(1, 1, &fake_table());
    fake.refuse(1, "cwd");
    let report = fake.scan();
    assert_eq!((report.verdict, report.complete, report.unreadable), (Verdict::Incomplete, false, 1));
}

#[test]
fn an_unreadable_process_that_does_not_see_the_mount_is_only_counted() {
    let fake = FakeProc::new();
    fake.process(1, 2, "5 0 8:1 / / rw - ext4 d rw\n");
    fake.refuse(1, "ns/mnt");
    let report = fake.scan();
    assert_eq!((report.verdict, report.complete, report.unreadable), (Verdict::Kernel, true, 1));
}

#[test]
fn processes_that_vanish_half_way_and_garbage_do_not_end_the_scan() {
    let fake = FakeProc::new();
    fs::create_dir(fake.0.path().join("11")).unwrap();
    fake.process(12, 1, &fake_table());
    for file in ["maps", "cwd", "fdinfo"] {
        let path = fake.0.path().join("12").join(file);
        fs::remove_dir(&path).or_else(|_| fs::remove_file(&path)).unwrap();
    }
    fs::write(fake.0.path().join("13"), "not a directory").unwrap();
    fake.process(14, 1, "\u{fffd} garbage\n\n- - -\n");
    fake.process(20, 1, &fake_table());
    fake.open(20, 3, "/vol/f", &format!("pos:\t0\nmnt_id:\t{VOL}\n"));
    let report = fake.scan();
    assert_eq!(held(&report), [(20, Access::Fd)]);
    assert_eq!(report.holders[0].fd, Some(3));
}

#[test]
fn the_mount_id_of_a_descriptor_decides_and_a_name_alone_is_a_doubt() {
    let fake = FakeProc::new();
    fake.open(10, 3, "/vol/other", "mnt_id:\t5\n");
    assert_eq!(fake.scan().verdict, Verdict::Kernel);
    fake.open(10, 4, "/vol/old kernel", "pos:\t0\n");
    let report = fake.scan();
    let named: Vec<_> =
        report.holders.iter().map(|holder| (holder.tgid, holder.access, holder.possible)).collect();
    assert_eq!(named, [(10, Access::Fd, true)]);
    assert_eq!((report.verdict, report.complete), (Verdict::Incomplete, false));
}

#[test]
fn more_holders_than_a_report_lists_are_counted() {
    let fake = FakeProc::new();
    for tgid in (100..).take(MAX_LISTED + 3) {
        fake.process(tgid, 1, &fake_table());
        fake.open(tgid, 3, "/vol/f", &format!("mnt_id:\t{VOL}\n"));
    }
    let report = fake.scan();
    assert_eq!((report.holders.len(), report.holders_omitted), (MAX_LISTED, 3));
}

#[test]
fn without_a_proc_the_answer_is_incomplete() {
    let empty = tempfile::tempdir().unwrap();
    for root in [empty.path().to_owned(), empty.path().join("none")] {
        let request = fake_request();
        let report = scan(&Proc::new(root), &request, AMPLE);
        assert_eq!((report.verdict, report.complete), (Verdict::Incomplete, false));
    }
}
