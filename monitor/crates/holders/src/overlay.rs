//! Overlays with the same upper directory as one that could not be mounted.
//!
//! The kernel shows the name of that directory as it was given. Elsewhere it may be the name of another one.

use kevtmon_observation::{Access, HolderReport, Verdict};
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::dir::Buffer;
use kevtmon_sources::procfs::mountinfo::overlay_upper;
use kevtmon_sources::procfs::root::is_initial_userns;

use super::mntns_index::MntnsIndex;
use super::pins::{Pin, describe};
use super::rbd::{MEMBERS_LOOKED_AT, oldest, sorted};
use super::{Deadline, MAX_LISTED};

/// Adds those that a process sees mounted to a report, the host's first.
pub(super) fn add(proc: &Proc, upper: &str, deadline: &Deadline, report: &mut HolderReport) {
    let index = MntnsIndex::build(proc, deadline).unwrap_or_default();
    let is_wanted = |line: &str| overlay_upper(line).is_some_and(|found| found == upper);
    let mut links = Buffer::default();
    for (ns, members) in sorted(proc, &index) {
        let room = MAX_LISTED.saturating_sub(report.holders.len());
        if deadline.is_over() || room == 0 {
            break;
        }
        let Some((tgid, process)) = oldest(proc, members, MEMBERS_LOOKED_AT) else { continue };
        // What a user mounts in a namespace of his own has any name that he likes.
        if !is_initial_userns(&process, &mut links) {
            continue;
        }
        let Ok(root) = process.link(c"root", &mut links) else { continue };
        let Ok(table) = process.mount_table(&root, is_wanted) else { continue };
        let pins = table.iter().map(|mount| Pin::of(Access::Mount, mount.mountpoint.clone()));
        report.holders.extend(describe(proc, tgid, &process, ns, pins.take(room).collect()));
    }
    report.blind_spot(None, "only overlays that a process sees mounted were looked at");
    report.verdict = if report.holders.is_empty() { Verdict::Incomplete } else { Verdict::ChildMount };
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn where_none_is_found_the_answer_is_incomplete() {
        let mut report = HolderReport { complete: true, ..HolderReport::skipped(0, "/no/such") };
        add(&Proc::default(), "/no/such", &Deadline::after(Duration::from_secs(20)), &mut report);
        assert_eq!((report.holders.len(), report.complete), (0, false));
        assert_eq!(report.verdict, Verdict::Incomplete);
    }
}
