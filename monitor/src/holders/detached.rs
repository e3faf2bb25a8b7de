//! Who uses mounts on that were detached, of which nothing else is known: the ids of the mounts go in, all processes are
//! read, and those come out that have something of them.
//!
//! No mount table shows such a mount any more, and files on it have the names that they have from its root. Descriptors and
//! directories keep its id; where the kernel does not tell the id that is never reused, what has the other one need not
//! be on the same mount. What is mapped of its files is not looked for.

use std::collections::BTreeMap;
use std::ffi::CString;

use serde::{Deserialize, Serialize};

use super::pins::{Extent, Pin, Rest, Visit, Visitor, describe};
use super::searched::{ScanTargets, SearchedMount};
use super::{Deadline, MAX_LISTED, own_directory, own_tgid};
use crate::observation::{Access, DetachedMount, Holder, HolderReport, NsInum, Verdict};
use crate::sources::procfs::Proc;
use crate::sources::procfs::dir::{Dir, is_gone};
use crate::sources::procfs::mountinfo::Mount;
use crate::sources::procfs::readers;

/// What is not looked at.
const BLIND: &str = "files of it that are only mapped, and sockets bound in it, were not looked for";
/// What was not found out.
const CUT: &str = "the time to look at all processes ran out";

/// A request who uses detached mounts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetachedRequest {
    /// Returned in the answer.
    pub id: u64,
    /// The mounts.
    pub mounts: Vec<DetachedMount>,
}

/// Answers a request: a report for each mount, with the number of its place as id.
pub(super) fn users(proc: &Proc, request: &DetachedRequest, deadline: Deadline) -> Vec<HolderReport> {
    let mut reports: Vec<HolderReport> = (0..).zip(&request.mounts).map(empty).collect();
    let searched: Vec<Mount> = request.mounts.iter().map(any_name).collect();
    let all = targets(&searched);
    let mut visitor = Visitor::new(own_directory(proc));
    let (own, asker) = (own_tgid(proc), readers::asker());
    let pids = proc.pids().unwrap_or_default();
    let others = pids.into_iter().filter(|tgid| Some(*tgid) != own && Some(*tgid) != asker);
    for tgid in others {
        if deadline.is_over() {
            reports.iter_mut().for_each(|report| report.blind_spot(None, CUT));
            break;
        }
        let process = match proc.dir(tgid) {
            Ok(process) => process,
            Err(error) if is_gone(&error) => continue,
            Err(_) => {
                note_unread(proc, tgid, &mut reports);
                continue;
            }
        };
        let (visit, is_all) = visit(&mut visitor, (tgid, &process), &all);
        if !is_all {
            reports.iter_mut().for_each(|report| report.blind_spot(None, CUT));
        }
        if visit.refused && process.is_there(&mut Vec::new()) {
            note_unread(proc, tgid, &mut reports);
        }
        if visit.pins.is_empty() {
            continue;
        }
        // One visit tells one of several mounts that the process has.
        for (index, report) in reports.iter_mut().enumerate() {
            let one = targets(&searched[index..=index]);
            let (visit, _) = self::visit(&mut visitor, (tgid, &process), &one);
            report.holders.extend(found(proc, (tgid, &process), visit, &request.mounts[index]));
        }
    }
    for report in &mut reports {
        report.holders.truncate(MAX_LISTED);
        let is_held = report.holders.iter().any(Holder::explains);
        report.verdict = if is_held { Verdict::Processes } else { Verdict::Incomplete };
    }
    reports
}

fn empty((id, mount): (u64, &DetachedMount)) -> HolderReport {
    let mut report = HolderReport { complete: true, ..HolderReport::skipped(id, mount.path.clone()) };
    report.blind_spot(None, BLIND);
    report
}

fn note_unread(proc: &Proc, tgid: u32, reports: &mut [HolderReport]) {
    let comm = proc.stat(tgid).map(|stat| stat.comm);
    for report in reports {
        report.unreadable += 1;
        report.blind_spot(Some((tgid, comm.clone())), "it may not be read");
    }
}

/// The mount as one that anything may be on, whatever its name: the id alone decides.
fn any_name(mount: &DetachedMount) -> Mount {
    Mount {
        id: mount.meant.id,
        parent: 0,
        device: String::new(),
        root: "/".to_owned(),
        mountpoint: "/".to_owned(),
        shared: None,
        master: None,
        fstype: String::new(),
        source: String::new(),
    }
}

fn targets(mounts: &[Mount]) -> ScanTargets<'_> {
    let ns: NsInum = 0;
    let mounts = mounts.iter().map(|mount| SearchedMount { ns, mount }).collect();
    ScanTargets { mounts, tables: BTreeMap::new() }
}

/// What a process has of them, and whether there was time for all that it has open.
fn visit(visitor: &mut Visitor, (tgid, process): (u32, &Dir), targets: &ScanTargets<'_>) -> (Visit, bool) {
    let mut all = visitor.links(tgid, process, targets).unwrap_or_default();
    let mut rest = Some(Rest::DESCRIPTORS);
    for extent in [Extent::First, Extent::Until(&Deadline::after(super::FILES_OF_ONE))] {
        let Some(left) = rest.take() else { break };
        if let Some((visit, left)) = visitor.files(tgid, process, targets, (left, extent)) {
            all.pins.extend(visit.pins);
            all.refused |= visit.refused;
            rest = left;
        }
    }
    (all, rest.is_none())
}

/// What a process has of a mount.
fn found(proc: &Proc, (tgid, process): (u32, &Dir), visit: Visit, mount: &DetachedMount) -> Vec<Holder> {
    let is_it = |pin: &Pin| match (mount.meant.unique, unique(process, pin)) {
        (Some(meant), Some(found)) => Some(meant == found),
        _ => None,
    };
    let pins = visit.pins.into_iter().filter(|pin| pin.access != Access::Socket);
    let pins = pins.filter_map(|pin| match is_it(&pin) {
        Some(false) => None,
        sure => {
            let path = pin.path.as_deref().map(|path| path_on(&mount.path, path));
            Some(Pin { path, possible: sure.is_none(), ..pin })
        }
    });
    describe(proc, tgid, process, visit.ns, pins.collect())
}

/// The name that a file had while the mount was there.
fn path_on(mount_point: &str, name: &str) -> String {
    match name.trim_start_matches('/') {
        "" => mount_point.to_owned(),
        below => format!("{}/{below}", mount_point.trim_end_matches('/')),
    }
}

/// The id that is never reused, of the mount that a pin is on.
fn unique(process: &Dir, pin: &Pin) -> Option<u64> {
    let link = match pin.access {
        Access::Cwd => "cwd".to_owned(),
        Access::Root => "root".to_owned(),
        Access::Exe => "exe".to_owned(),
        Access::Fd => match pin.tid {
            Some(tid) => format!("task/{tid}/fd/{}", pin.fd?),
            None => format!("fd/{}", pin.fd?),
        },
        _ => return None,
    };
    process.unique_mount_of(&CString::new(link).ok()?).ok()?
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::*;
    use crate::observation::MeantMount;
    use crate::sources::procfs::dir::{NumberName, mnt_id};

    #[test]
    fn a_name_from_the_root_of_a_mount_is_one_below_its_mount_point() {
        assert_eq!(path_on("/v", "/"), "/v");
        assert_eq!(path_on("/v", "/a/b"), "/v/a/b");
    }

    /// A process that has this file open as its standard input, and what `/proc` tells of the mount.
    fn holder(file: &File) -> (std::process::Child, MeantMount) {
        let proc = Proc::default();
        let input = file.try_clone().unwrap();
        let child = Command::new("sleep").arg("1000").stdin(Stdio::from(input)).spawn().unwrap();
        let own = proc.dir(std::process::id()).unwrap();
        let name = NumberName::new(file.as_raw_fd().try_into().unwrap());
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
        let request = DetachedRequest { id: 1, mounts: vec![mount(meant), mount(other)] };
        let reports = users(&Proc::default(), &request, Deadline::after(Duration::from_secs(30)));
        child.kill().unwrap();
        child.wait().unwrap();
        let of = |report: &HolderReport| {
            let mine = report.holders.iter().find(|holder| holder.tgid == child.id());
            mine.map(|holder| (holder.access, holder.fd, holder.possible))
        };
        assert_eq!(of(&reports[0]), Some((Access::Fd, Some(0), meant.unique.is_none())));
        assert!(
            reports[0]
                .holders
                .iter()
                .all(|holder| holder.path.as_ref().is_none_or(|at| at.starts_with("/v")))
        );
        // Another mount that has the same id now.
        assert!(meant.unique.is_none() || of(&reports[1]).is_none(), "{:?}", reports[1]);
        assert!(reports.iter().all(|report| !report.complete), "mappings were not looked at");
    }
}
