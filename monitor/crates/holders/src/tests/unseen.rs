//! Who ends, and who waits in a system call.

use super::*;

/// `PF_KTHREAD` and `PF_EXITING`.
const KERNEL_THREAD: u32 = 0x20_0000;
const ENDING: u32 = 0x4;

impl FakeProc {
    /// Takes its program from a process, which has these flags then.
    fn without_program(&self, tgid: u32, flags: u32) {
        let dir = self.0.path().join(tgid.to_string());
        fs::remove_file(dir.join("exe")).unwrap();
        let stat = format!("{tgid} (p{tgid}) S 1 0 0 0 0 {flags}{} {tgid} 0 0\n", " 0".repeat(12));
        fs::write(dir.join("stat"), stat).unwrap();
    }

    /// Has the first thread of a process wait in a function of the kernel, and in a system call.
    fn waits(&self, tgid: u32, function: &str, call: libc::c_long) {
        let dir = self.0.path().join(tgid.to_string());
        fs::write(dir.join("wchan"), function).unwrap();
        fs::write(dir.join("status"), "voluntary_ctxt_switches:\t7\n").unwrap();
        fs::write(dir.join("syscall"), format!("{call} 0xffffff9c 0x7ffc10 0x0\n")).unwrap();
    }
}

impl FakeProc {
    /// Has the first thread of a process be in a system call for a descriptor.
    fn calls(&self, tgid: u32, call: libc::c_long, fd: u32) {
        let text = format!("{call} {fd:#x} 0x7ffc10 0x1\n");
        fs::write(self.0.path().join(tgid.to_string()).join("syscall"), text).unwrap();
    }
}

fn reasons(report: &HolderReport) -> Vec<(Option<u32>, &str)> {
    report.blind_spots.iter().map(|spot| (spot.tgid, spot.reason.as_str())).collect()
}

#[test]
fn what_a_process_that_ends_still_has_open_holds_and_a_kernel_thread_holds_nothing() {
    let fake = FakeProc::new();
    for (tgid, flags) in [(20, KERNEL_THREAD), (21, ENDING)] {
        fake.process(tgid, 1, &fake_table());
        fake.open(tgid, 3, "/vol/f", &format!("mnt_id:\t{VOL}\n"));
        fake.without_program(tgid, flags);
    }
    let report = fake.scan();
    assert_eq!(held(&report), [(21, Access::Fd)]);
    assert!(report.complete, "it is known who holds it: {report:#?}");
}

#[test]
fn of_who_ends_it_is_not_known_what_he_holds_and_that_is_told_where_nobody_is_known_to() {
    let fake = FakeProc::new();
    fake.process(20, 1, &fake_table());
    fake.without_program(20, ENDING);
    // It has given these back already.
    for file in ["ns/mnt", "root", "cwd"] {
        fs::remove_file(fake.0.path().join("20").join(file)).unwrap();
    }
    let report = fake.scan();
    assert_eq!((report.verdict, report.complete, report.holders.len()), (Verdict::Incomplete, false, 0));
    let told = "a thread is exiting; its open files are not visible";
    assert_eq!(reasons(&report), [(Some(20), told)]);

    fake.process(30, 1, &fake_table());
    fake.open(30, 3, "/vol/f", &format!("mnt_id:\t{VOL}\n"));
    let report = fake.scan();
    assert_eq!((held(&report), report.complete), (vec![(30, Access::Fd)], true));
}

#[test]
fn who_has_given_everything_back_is_a_zombie_and_holds_nothing() {
    let fake = FakeProc::new();
    fake.process(20, 1, &fake_table());
    fake.without_program(20, ENDING);
    let stat = fake.0.path().join("20/stat");
    fs::write(&stat, fs::read_to_string(&stat).unwrap().replace(" S ", " Z ")).unwrap();
    for file in ["ns/mnt", "root", "cwd"] {
        fs::remove_file(fake.0.path().join("20").join(file)).unwrap();
    }
    assert_eq!(fake.scan().verdict, Verdict::Kernel);
}

#[test]
fn who_waits_in_a_system_call_may_hold_what_it_is_about() {
    let of_fuse = fake_table().replace("tmpfs t", "fuse.x t").replace(" 0:9 ", " 0:1048575 ");
    for (table, function, call, told) in [
        (&of_fuse, "request_wait_answer", libc::SYS_statx, "a thread waits for FUSE"),
        (&fake_table(), "wait_for_partner", libc::SYS_openat, "a thread waits in open(2) of a named pipe"),
    ] {
        let fake = FakeProc::new();
        fs::write(fake.0.path().join("10/mountinfo"), table).unwrap();
        fake.process(20, 1, table);
        fake.waits(20, function, call);
        let report = fake.scan();
        assert_eq!((report.verdict, report.complete), (Verdict::Incomplete, false), "{report:#?}");
        let [holder] = &report.holders[..] else { panic!("{report:#?}") };
        assert_eq!((holder.tgid, holder.access, holder.tid), (20, Access::Call, Some(20)));
        assert!(holder.possible && reasons(&report)[0].1.starts_with(told), "{report:#?}");
        // One that is known to hold it explains the refusal.
        fake.open(20, 3, "/vol/f", &format!("mnt_id:\t{VOL}\n"));
        assert_eq!(held(&fake.scan()), [(20, Access::Fd)]);
    }
}

#[test]
fn who_waits_for_something_else_holds_nothing_by_that() {
    for (function, call) in [
        ("request_wait_answer", libc::SYS_statx),
        ("pipe_wait", libc::SYS_read),
        ("futex_wait_queue", libc::SYS_futex),
    ] {
        let fake = FakeProc::new();
        fake.waits(10, function, call);
        fake.calls(10, call, 3);
        fake.open(10, 3, "pipe:[7]", "mnt_id:\t9\n");
        let report = fake.scan();
        assert_eq!((report.verdict, report.complete), (Verdict::Kernel, true), "{function}: {report:#?}");
    }
}

#[test]
fn who_waits_for_a_file_whose_descriptor_is_closed_may_hold_it() {
    let fake = FakeProc::new();
    fake.waits(10, "pipe_read", libc::SYS_read);
    fake.calls(10, libc::SYS_read, 4);
    fake.open(10, 3, "pipe:[7]", "mnt_id:\t9\n");
    let report = fake.scan();
    let told = "a thread waits in a system call for a file whose descriptor is closed";
    assert!(reasons(&report)[0].1.starts_with(told), "{report:#?}");
    let [holder] = &report.holders[..] else { panic!("{report:#?}") };
    assert_eq!((holder.tgid, holder.access, holder.possible), (10, Access::Call, true));
}

#[test]
fn a_perf_event_may_be_a_probe_in_a_file_of_the_mount() {
    let link = |kind: &str| format!("mnt_id:\t9\nlink_type:\t{kind}\nlink_id:\t7\n");
    for (file, info, may_hold) in [
        ("anon_inode:[perf_event]", "mnt_id:\t9\n".to_owned(), true),
        ("anon_inode:bpf_link", link("uprobe_multi"), true),
        ("anon_inode:bpf_link", link("tracing"), false),
        ("anon_inode:[eventfd]", link("perf_event"), false),
    ] {
        let fake = FakeProc::new();
        fake.open(10, 5, file, &info);
        let report = fake.scan();
        let named: Vec<_> =
            report.holders.iter().map(|it| (it.tgid, it.access, it.fd, it.possible)).collect();
        match may_hold {
            true => assert_eq!(named, [(10, Access::PerfEvent, Some(5), true)], "{file}"),
            false => assert_eq!(named, [], "{file}"),
        }
        let verdict = if may_hold { Verdict::Incomplete } else { Verdict::Kernel };
        assert_eq!((report.verdict, report.complete), (verdict, !may_hold), "{report:#?}");
    }
    // This program sets no such probes, and is not every one of its name.
    let fake = FakeProc::new();
    fake.open(10, 5, "anon_inode:[perf_event]", "mnt_id:\t9\n");
    let exe = fake.0.path().join("10/exe");
    fs::remove_file(&exe).unwrap();
    symlink(fs::read_link("/proc/self/exe").unwrap(), &exe).unwrap();
    assert_eq!(fake.scan().verdict, Verdict::Incomplete);
    fs::write(fake.0.path().join("10/maps"), fs::read("/proc/self/maps").unwrap()).unwrap();
    assert_eq!(fake.scan().verdict, Verdict::Kernel);
}

#[test]
fn a_ring_that_is_only_mapped_may_have_files_of_the_mount() {
    for (open, may_hold) in
        [(None, true), (Some("ino:\t78\n"), true), (Some("ino:\t77\n"), false), (Some(""), false)]
    {
        let fake = FakeProc::new();
        let maps = "7f10-7f20 rw-s 00000000 00:10 77                         anon_inode:[io_uring]\n";
        fs::write(fake.0.path().join("10/maps"), maps).unwrap();
        if let Some(info) = open {
            fake.open(10, 5, "anon_inode:[io_uring]", &format!("mnt_id:\t9\n{info}UserFiles:\t0\n"));
        }
        let report = fake.scan();
        let named: Vec<_> = report.holders.iter().map(|it| (it.tgid, it.access, it.possible)).collect();
        let expected = may_hold.then_some((10, Access::IoUring, true));
        assert_eq!(named, Vec::from_iter(expected), "{open:?}");
        assert_eq!(report.complete, !may_hold, "{report:#?}");
    }
}

#[test]
fn what_may_hold_a_mount_is_not_told_beside_who_does() {
    let fake = FakeProc::new();
    fake.open(10, 5, "anon_inode:[perf_event]", "mnt_id:\t9\n");
    fake.waits(10, "wait_for_partner", libc::SYS_openat);
    fake.process(20, 1, &fake_table());
    fake.open(20, 3, "/vol/f", &format!("mnt_id:\t{VOL}\n"));
    let report = fake.scan();
    assert_eq!((held(&report), report.complete), (vec![(20, Access::Fd)], true), "{report:#?}");
}
