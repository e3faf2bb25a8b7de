//! Who was found before a look went on: until it ends, minutes may pass, and "is still held" is to be so when it is said.

use std::collections::BTreeMap;
use std::mem;
use std::time::Duration;

use kevtmon_observation::{Access, BlindSpot, Holder};
use kevtmon_sources::procfs::dir::{Dir, is_gone};

use super::look::Look;
use crate::pins::{Extent, Rest};
use crate::{Deadline, FILES_OF_ONE, MAX_LISTED};

/// Processor time for all of them, each time that it goes on.
const AGAIN: Duration = Duration::from_millis(100);
/// Why one that was found need not use the mount any more.
const UNKNOWN: &str = "it is unknown whether it still uses the detached mount";
/// The same of those that found no place in the list.
const OMITTED: &str = "more processes used it than are listed; it is unknown whether they still do";

impl Look<'_> {
    /// Looks again at those who were found before, and leaves out who has let go.
    pub(super) fn look_again(&mut self) {
        let mut known: BTreeMap<u32, BTreeMap<usize, Vec<Holder>>> = BTreeMap::new();
        for (index, report) in self.progress.found.iter_mut().enumerate() {
            report.blind_spots.retain(|spot: &BlindSpot| spot.reason != UNKNOWN);
            for holder in mem::take(&mut report.holders) {
                known.entry(holder.tgid).or_default().entry(index).or_default().push(holder);
            }
        }
        let deadline = Deadline::after(AGAIN);
        let mut looked = false;
        for (tgid, by_mount) in known {
            let process = match self.proc.dir(tgid) {
                Ok(process) => process,
                Err(error) if is_gone(&error) => continue,
                Err(_) => {
                    self.note_unread(tgid);
                    self.keep(tgid, by_mount);
                    continue;
                }
            };
            let started = self.proc.stat(tgid).map(|stat| stat.start_ns);
            let first = by_mount.values().flatten().find_map(|holder| holder.start_ns);
            if started.zip(first).is_some_and(|(started, first)| started != first) {
                // Another one, which had no turn.
                self.progress.listed.remove(&tgid);
                self.progress.programs.remove(&tgid);
            } else if mem::replace(&mut looked, true) && deadline.is_over() {
                self.keep(tgid, by_mount);
            } else {
                // It may have started another one.
                self.progress.programs.remove(&tgid);
                for (index, holders) in by_mount {
                    self.look_again_on((tgid, &process), index, &holders, &deadline);
                }
            }
        }
        for report in &mut self.progress.found {
            if report.holders_omitted > 0 && report.holders.len() < MAX_LISTED {
                report.blind_spot(None, OMITTED);
            }
        }
    }

    /// These may have let go.
    fn keep(&mut self, tgid: u32, by_mount: BTreeMap<usize, Vec<Holder>>) {
        for (index, holders) in by_mount {
            let report = &mut self.progress.found[index];
            let comm = holders.first().map(|holder| holder.comm.clone());
            report.blind_spot(Some((tgid, comm)), UNKNOWN);
            report.holders.extend(holders.into_iter().map(|holder| Holder { possible: true, ..holder }));
        }
    }

    /// Looks again at what a process had of one of the mounts.
    fn look_again_on(
        &mut self,
        (tgid, process): (u32, &Dir),
        index: usize,
        before: &[Holder],
        deadline: &Deadline,
    ) {
        let had = |which: &[Access]| before.iter().any(|holder| which.contains(&holder.access));
        if had(&[Access::Cwd, Access::Root, Access::Exe]) {
            self.links_on((tgid, process), index);
        }
        if had(&[Access::Fd, Access::Socket]) {
            let fds = before.iter().filter_map(|holder| Some((holder.tid, holder.fd?)));
            let slice = deadline.within(FILES_OF_ONE);
            let extent = Extent::Until(&slice);
            let targets = self.searched[index].targets();
            let found = self.visitor.files(tgid, process, &targets, (Rest::from(fds), extent));
            self.take((tgid, process), Some(index), &found.map(|(visit, _)| visit).unwrap_or_default());
            let is_file = |holder: &Holder| matches!(holder.access, Access::Fd | Access::Socket);
            let holders = &self.progress.found[index].holders;
            if !holders.iter().any(|holder| holder.tgid == tgid && is_file(holder)) {
                // It may have it by another number.
                self.progress.left.push_back((tgid, Some(index), Rest::DESCRIPTORS));
            }
        }
        if had(&[Access::Mmap]) {
            self.mappings_on((tgid, process), index);
        }
    }
}
