//! Scans on demand: nobody says that anything is busy, and all holders are looked for.

use kevtmon_sources::procfs::readers::Readers;

use super::*;
use crate::ask::ask;

fn on_demand(path: &str) -> ScanRequest {
    ScanRequest { path: path.to_owned(), on_demand: true, ..fake_request() }
}

fn scan_on_demand(fake: &FakeProc, path: &str) -> HolderReport {
    scan(&Proc::new(fake.0.path()), &on_demand(path), AMPLE)
}

/// The id of the mount at the root, in the table of the fake processes.
fn root_id() -> u64 {
    MountTable::parse(&fake_table(), "/").at("/").unwrap().id
}

fn pids(report: &HolderReport) -> Vec<u32> {
    report.holders.iter().filter(|holder| holder.access != Access::Mount).map(|holder| holder.tgid).collect()
}

#[test]
fn that_nobody_holds_it_does_not_mean_that_the_kernel_does() {
    let report = scan_on_demand(&FakeProc::new(), "/vol");
    assert_eq!((report.verdict, report.complete), (Verdict::None, true));
}

#[test]
fn holders_in_other_namespaces_are_looked_for_however_many_were_found() {
    let fake = FakeProc::new();
    fake.open(10, 3, "/vol/f", &format!("mnt_id:\t{VOL}\n"));
    fake.process(20, 2, "5 0 8:7 / / rw - ext4 d rw\n");
    fake.open(20, 3, "/vol/f", &format!("mnt_id:\t{VOL}\n"));
    assert_eq!(pids(&scan_on_demand(&fake, "/vol")), [10, 20]);
    assert_eq!(pids(&fake.scan()), [10], "which is enough to explain a refusal");
}

#[test]
fn where_those_suffice_who_see_the_mount_others_are_looked_for_only_if_none_of_them_holds_it() {
    let fake = FakeProc::new();
    let near = ScanRequest { near_suffices: true, ..on_demand("/vol") };
    let scan_near = |fake: &FakeProc| scan(&Proc::new(fake.0.path()), &near, AMPLE);
    fake.process(20, 2, "5 0 8:7 / / rw - ext4 d rw\n");
    fake.open(20, 3, "/vol/f", &format!("mnt_id:\t{VOL}\n"));
    let report = scan_near(&fake);
    assert_eq!((pids(&report), report.complete), (vec![20], true), "{:?}", report.blind_spots);
    fake.open(10, 3, "/vol/f", &format!("mnt_id:\t{VOL}\n"));
    let report = scan_near(&fake);
    assert_eq!((pids(&report), report.verdict, report.complete), (vec![10], Verdict::Processes, false));
    assert_eq!(report.blind_spots.len(), 1, "{:?}", report.blind_spots);
}

#[test]
fn of_a_path_that_is_no_mount_point_the_users_of_what_lies_below_it_are_found() {
    let fake = FakeProc::new();
    let on_root = format!("mnt_id:\t{}\n", root_id());
    for (tgid, path) in [(11, "/etc/a/f"), (12, "/etc"), (13, "/etcetera"), (14, "/var/x")] {
        fake.process(tgid, 1, &fake_table());
        fake.open(tgid, 3, path, &on_root);
    }
    // A volume: a mount of the directory by itself, in another namespace.
    fake.process(15, 2, "70 0 8:1 /etc/a /data rw - ext4 d rw\n71 0 8:1 /var /log rw - ext4 d rw\n");
    fake.open(15, 3, "/data/f", "mnt_id:\t70\n");
    fake.process(16, 2, "70 0 8:1 /etc/a /data rw - ext4 d rw\n71 0 8:1 /var /log rw - ext4 d rw\n");
    fake.open(16, 3, "/log/f", "mnt_id:\t71\n");
    let report = scan_on_demand(&fake, "/etc");
    assert_eq!((pids(&report), report.path.as_str()), (vec![11, 12, 15], "/etc"));
    assert_eq!(report.mount.unwrap().mountpoint, "/");
    let copies: Vec<_> = report.holders.iter().filter(|holder| holder.access == Access::Mount).collect();
    assert_eq!(copies.iter().map(|copy| copy.path.as_deref()).collect::<Vec<_>>(), [Some("/data")]);
    let report =
        scan(&Proc::new(fake.0.path()), &ScanRequest { path: "/etc".into(), ..fake_request() }, AMPLE);
    assert_eq!(report.verdict, Verdict::NotAMount, "what was unmounted was a mount point");
}

#[test]
fn a_path_that_does_not_exist_is_told_as_that() {
    let report = scan_on_demand(&FakeProc::new(), "/etc/kevtmon-no-such/file");
    assert_eq!((report.verdict, report.mount, report.complete), (Verdict::NotAMount, None, true));
}

fn asked(fake: &FakeProc, limit: Duration) -> HolderReport {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let readers = Readers::from(Proc::new(fake.0.path()));
    runtime.block_on(ask((&readers, None), on_demand("/vol"), limit))
}

#[test]
fn a_scan_is_continued_to_its_end_and_then_no_time_has_run_out() {
    let fake = FakeProc::new();
    fake.open(10, 3, "/vol/f", &format!("mnt_id:\t{VOL}\n"));
    let report = asked(&fake, AMPLE);
    assert_eq!((pids(&report), report.complete), (vec![10], true), "{:?}", report.blind_spots);
    let report = asked(&fake, Duration::ZERO);
    assert!(!report.complete && report.holders.is_empty());
    assert_eq!(report.blind_spots.len(), 1, "{:?}", report.blind_spots);
}
