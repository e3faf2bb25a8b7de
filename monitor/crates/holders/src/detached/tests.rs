//! By processes that hold files of real mounts.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use kevtmon_observation::MeantMount;
use kevtmon_sources::procfs::dir::{NumberName, mnt_id};

use super::*;

#[test]
fn a_name_from_the_root_of_a_mount_is_one_below_its_mount_point() {
    assert_eq!(path_on("/v", "/"), "/v");
    assert_eq!(path_on("/v", "/a/b"), "/v/a/b");
}

fn holder(file: &File) -> (std::process::Child, MeantMount) {
    let proc = Proc::default();
    let input = file.try_clone().unwrap();
    let child = Command::new("sleep").arg("1000").stdin(Stdio::from(input)).spawn().unwrap();
    let own = proc.dir(std::process::id()).unwrap();
    let name = NumberName::new(file.as_raw_fd());
    let mut text = Vec::new();
    let info = own.at(c"fdinfo").unwrap().text(name.as_c_str(), &mut text).unwrap().into_owned();
    let link = CString::new(format!("fd/{}", file.as_raw_fd())).unwrap();
    let unique = own.unique_mount_of(&link).unwrap();
    (child, MeantMount { id: mnt_id(&info).unwrap(), unique })
}

#[test]
fn whoever_has_a_file_of_a_mount_is_found_by_its_id_whatever_the_file_is_called() {
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    let (mut child, meant) = holder(&file);
    let mount = |meant| DetachedMount { meant, path: "/v".into() };
    let other = MeantMount { unique: meant.unique.map(|unique| unique + 1_000_000), ..meant };
    let request = DetachedRequest::new(1, vec![mount(meant), mount(other)]);
    let reports = users(&Proc::default(), &request, Progress::default(), Duration::from_secs(30)).reports;
    child.kill().unwrap();
    child.wait().unwrap();
    let of = |report: &HolderReport| {
        let mine = report.holders.iter().find(|holder| holder.tgid == child.id());
        mine.map(|holder| (holder.access, holder.fd, holder.possible))
    };
    assert_eq!(of(&reports[0]), Some((Access::Fd, Some(0), meant.unique.is_none())));
    assert!(
        reports[0].holders.iter().all(|holder| holder.path.as_ref().is_none_or(|at| at.starts_with("/v")))
    );
    // Another mount that has the same id now.
    assert!(meant.unique.is_none() || of(&reports[1]).is_none(), "{:?}", reports[1]);
    assert!(reports.iter().all(|report| !report.complete), "mappings were not looked at");
}

#[test]
fn a_process_that_was_found_is_told_as_long_as_it_has_the_file() {
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    let (mut child, meant) = holder(&file);
    let request = DetachedRequest::new(1, vec![DetachedMount { meant, path: "/v".into() }]);
    let is_found = |looked: &Looked| {
        let mine = looked.reports[0].holders.iter().find(|holder| holder.tgid == child.id());
        mine.map(|holder| holder.possible)
    };
    let go_on = |progress| users(&Proc::default(), &request, progress, Duration::ZERO);
    let mut looked = go_on(Progress::default());
    while is_found(&looked).is_none() {
        looked = go_on(looked.progress.expect("it is not done"));
    }
    let certain = Some(meant.unique.is_none());
    assert_eq!(is_found(&looked), certain);
    looked = go_on(looked.progress.expect("mappings are left"));
    assert_eq!(is_found(&looked), certain);
    let verdict = if certain == Some(false) { Verdict::Processes } else { Verdict::Incomplete };
    assert_eq!((looked.reports[0].verdict, looked.reports[0].cut), (verdict, true));
    let tgid = child.id();
    child.kill().unwrap();
    child.wait().unwrap();
    looked = go_on(looked.progress.expect("mappings are left"));
    assert!(looked.reports[0].holders.iter().all(|holder| holder.tgid != tgid));
}
