//! Scans in parts, since their time runs out again and again.

use super::*;
use crate::scan::{self, Part};

/// Ends each part soon, and after any progress at all.
const SHORT: Duration = Duration::from_micros(100);

pub(super) fn scan_part(proc: &Proc, request: &ScanRequest, progress: Progress, budget: Duration) -> Part {
    scan::scan(proc, request, progress, budget, None)
}

/// All parts of a scan, each of which begins with what the one before wrote down.
fn parts(proc: &Proc, request: &ScanRequest, budget: Duration) -> Vec<HolderReport> {
    let mut progress = Progress::default();
    let mut reports = Vec::new();
    loop {
        let before = place(&progress);
        let part = scan_part(proc, request, progress, budget);
        reports.push(part.report);
        let Some(left) = part.left else { return reports };
        let written = serde_json::to_string(&left).unwrap();
        progress = serde_json::from_str(&written).unwrap();
        assert_eq!(progress, left);
        // How many parts it takes is a matter of how many processes there are, and of what else the machine does.
        assert!(reports.len() == 1 || before != place(&left), "each part gets on: {left:?}");
    }
}

/// How far it came, without what each part changes anyway.
fn place(progress: &Progress) -> Progress {
    Progress { found: None, ..progress.clone() }
}

fn same_but_for_time(report: &HolderReport) -> HolderReport {
    let mut report = HolderReport { elapsed_ns: 0, resolved: None, ..report.clone() };
    report.holders.sort_by_key(|holder| (holder.tgid, holder.access));
    report
}

/// Six processes with five hundred descriptors each; two of them hold the mount, one by its last descriptor.
fn crowded() -> FakeProc {
    let fake = FakeProc::new();
    for tgid in 100..106 {
        fake.process(tgid, 1, &fake_table());
        for fd in 0..500 {
            fake.open(tgid, fd, "/dev/null", "mnt_id:\t1\n");
        }
    }
    fake.open(105, 1000, "/vol/f", &format!("mnt_id:\t{VOL}\n"));
    fake.open(103, 1001, "/vol/f", &format!("mnt_id:\t{VOL}\n"));
    fake
}

#[test]
fn a_scan_in_parts_finds_what_a_whole_one_finds() {
    let fake = crowded();
    let proc = Proc::new(fake.0.path());
    let whole = fake.scan();
    assert_eq!(held(&whole), [(103, Access::Fd), (105, Access::Fd)]);
    assert!(whole.complete, "{whole:?}");
    let parts = parts(&proc, &fake_request(), SHORT);
    let (last, before) = parts.split_last().unwrap();
    assert_eq!(same_but_for_time(last), same_but_for_time(&whole));
    assert!(before.len() > 1, "{}", before.len());
    for part in before {
        assert!(!part.complete && part.verdict != Verdict::Kernel, "{part:?}");
        assert!(part.elapsed_ns <= last.elapsed_ns);
    }
}

#[test]
fn nobody_hides_behind_the_descriptors_of_others() {
    let fake = FakeProc::new();
    for tgid in 11..16 {
        fake.process(tgid, 1, &fake_table());
        for fd in 0..400 {
            fake.open(tgid, fd, "/dev/null", "mnt_id:\t1\n");
        }
    }
    // The last one in the order of process ids.
    fake.process(92, 1, &fake_table());
    fake.open(92, 3, "/vol/f", &format!("mnt_id:\t{VOL}\n"));
    let parts = parts(&Proc::new(fake.0.path()), &fake_request(), SHORT);
    let first = parts.iter().position(|part| !part.holders.is_empty()).unwrap();
    assert!(first + 1 < parts.len(), "what is left of the others comes after it: {first} of {}", parts.len());
    assert_eq!(held(&parts[first]), [(92, Access::Fd)]);
}

#[test]
fn who_is_in_the_mount_is_found_before_anybodys_descriptors() {
    let mut sandbox = MountSandbox::new();
    let target = sandbox.mount("vol");
    fs::write(target.join("f"), "x").unwrap();
    let by_fd = Child::spawn(vec![Step::OpenAt(c_path(&target.join("f")), 900)]);
    let child = Child::spawn(vec![Step::Chdir(c_path(&target))]);
    let all = parts(&Proc::default(), &request(&target), 5 * SHORT);
    let finds = |tgid| all.iter().position(|part| part.holders.iter().any(|holder| holder.tgid == tgid));
    let [first, then] = [&child, &by_fd].map(|process| finds(process.tgid()).expect("it is found"));
    assert!(first <= then, "{first} and {then} of {} parts", all.len());
    let held = held(all.last().unwrap());
    let of_both = [(child.tgid(), Access::Cwd), (by_fd.tgid(), Access::Fd)];
    assert!(held.len() == 2 && of_both.iter().all(|of| held.contains(of)), "{held:?}");
}

#[test]
fn a_mount_that_goes_between_two_parts_is_told_to_be_gone() {
    let fake = crowded();
    let proc = Proc::new(fake.0.path());
    let first = scan_part(&proc, &fake_request(), Progress::default(), SHORT);
    let left = first.left.unwrap();
    let before = fake_table();
    fs::write(fake.0.path().join("10/mountinfo"), before.lines().next().unwrap()).unwrap();
    for tgid in 100..106 {
        fs::write(fake.0.path().join(format!("{tgid}/mountinfo")), before.lines().next().unwrap()).unwrap();
    }
    let second = scan_part(&proc, &fake_request(), left, AMPLE);
    assert!(second.left.is_none() && !second.report.complete);
    assert_eq!(second.report.verdict, Verdict::Transient);
    assert!(second.report.mount.is_some(), "it was there");
}

#[test]
fn what_is_mounted_is_told_without_a_look_at_processes() {
    let fake = crowded();
    let request = ScanRequest { mount_only: true, ..fake_request() };
    let part = scan_part(&Proc::new(fake.0.path()), &request, Progress::default(), SHORT);
    assert!(part.left.is_none());
    assert_eq!((part.report.verdict, part.report.holders.len()), (Verdict::Incomplete, 0));
}
