use super::*;
use crate::{TaskKey, TaskRef};

fn place(path: &str, origin: Option<PathOrigin>) -> String {
    let key = TaskKey { tgid: 1, start_ns: 1, exec_id: 1 };
    let attempt = UmountAttempt {
        syscall: MountSyscall::Umount2,
        actor: TaskRef { key, tid: 1, comm: "umount".to_owned(), context: None },
        mntns: 2,
        path: path.to_owned(),
        origin: origin.map(Box::new),
        flags: 0,
        errno: None,
        second: None,
    };
    attempt.place().into_owned()
}

fn at(path: Option<&str>) -> Option<CallerDirectory> {
    Some(CallerDirectory { mount_id: 7, path: path.map(str::to_owned) })
}

#[test]
fn the_same_text_given_elsewhere_is_another_place() {
    let from =
        |root, cwd, doubt| Some(PathOrigin { root, cwd, doubt, table: None, target: None, began: None });
    assert_eq!(place("/vol", None), "/vol");
    assert_eq!(place("/vol", from(at(Some("/")), None, None)), "/vol");
    assert_eq!(place("/vol", from(at(Some("/jail")), None, None)), "/jail/vol");
    assert_eq!(place("vol", from(at(Some("/")), at(Some("/")), None)), "/vol");
    assert_eq!(place("../vol", from(at(Some("/")), at(Some("/a")), None)), "/a/../vol");
    assert_eq!(place("/vol", from(at(None), None, None)), "…/vol");
    assert_eq!(place("vol", from(at(Some("/")), None, None)), "…vol");
    let changed = from(at(Some("/")), None, Some(PathUncertainty::Changed));
    assert_eq!(place("/vol", changed), "…/vol");
    assert_eq!(place("", from(None, None, Some(PathUncertainty::StartUnseen))), "…");
}

#[test]
fn however_many_processes_cannot_be_read_a_doubt_about_all_is_kept() {
    let mut report = HolderReport::skipped(1, "/mnt/x");
    for tgid in 0..2 * u32::try_from(HolderReport::BLIND_SPOTS).unwrap() {
        report.blind_spot(Some((tgid, None)), "reads of it hang");
    }
    for _ in 0..2 {
        report.blind_spot(None, "the mounts changed");
    }
    assert_eq!(report.blind_spots.len(), HolderReport::BLIND_SPOTS);
    assert_eq!(report.blind_spots.iter().filter(|spot| spot.tgid.is_none()).count(), 1);
}

#[test]
fn a_look_is_said_to_be_cut_only_where_it_was() {
    let mut report = HolderReport::skipped(0, "/v");
    let written = |report: &HolderReport| serde_json::to_string(report).unwrap();
    assert!(!written(&report).contains("\"cut\""));
    assert_eq!(serde_json::from_str::<HolderReport>(&written(&report)).unwrap(), report);
    report.cut();
    assert!(written(&report).contains("\"cut\"") && !report.complete);
    assert_eq!(serde_json::from_str::<HolderReport>(&written(&report)).unwrap(), report);
}
