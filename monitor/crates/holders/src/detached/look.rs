//! One look: in which order processes are looked at, and where it goes on when its time was over.

use std::time::{Duration, Instant};

use kevtmon_observation::{Access, Holder, NsInum};
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::dir::{Buffer, Dir, is_gone};
use kevtmon_sources::procfs::readers;

use super::mapped::{Mapped, first_of};
use super::progress::{Part, Progress};
use super::{Searched, UNMAPPED, Use, pins};
use crate::mntns_index::namespace;
use crate::pins::{Extent, Rest, Visit, Visitor, describe};
use crate::searched::ScanTargets;
use crate::{Deadline, FILES_OF_ONE, MAX_LISTED, READS_HANG, own_directory, own_tgid};

/// However long the list took, and those who were found before, a quarter of the time is for what comes then.
const TURNS_MIN: u32 = 4;
/// How often it is written down how far it came, in case that a process hangs the reader.
const NOTE_EVERY: Duration = Duration::from_millis(100);
const UNLISTED: &str = "the processes of the node could not be listed";

/// A look at all processes: what is quick is looked at of each before anybody's thousands of descriptors.
pub(super) struct Look<'a> {
    pub(super) proc: &'a Proc,
    pub(super) searched: &'a [Searched<'a>],
    targets: ScanTargets<'a>,
    mapped: Mapped<'a>,
    pub(super) visitor: Visitor,
    pub(super) progress: Progress,
    /// Whether anything was looked at before the clock was.
    looked: bool,
    noted: Instant,
}

impl<'a> Look<'a> {
    pub(super) fn new(
        proc: &'a Proc,
        searched: &'a [Searched<'a>],
        targets: ScanTargets<'a>,
        progress: Progress,
    ) -> Self {
        let mapped = Mapped::of(searched.iter().filter_map(Searched::device));
        let visitor = Visitor::new(own_directory(proc));
        Self { proc, searched, targets, mapped, visitor, progress, looked: false, noted: Instant::now() }
    }

    /// Goes on for so long. Returns how far it came, and whether that is all.
    pub(super) fn all(mut self, budget: Duration) -> (Progress, bool) {
        let mut deadline = Deadline::after(budget);
        let goes_on = !self.progress.found.is_empty();
        if goes_on {
            self.forget_who_is_gone();
            self.look_again();
        } else {
            let reports = (0..).zip(self.searched).map(|(id, searched)| searched.report(id));
            self.progress.found = reports.collect();
            self.list();
        }
        deadline.allow(budget / TURNS_MIN);
        self.note();
        let mut is_done = self.in_order(&deadline) && self.left(&deadline);
        if is_done && goes_on {
            // Who came since the list was made may have got something from who was looked at already.
            self.list();
            is_done = self.in_order(&deadline) && self.left(&deadline);
        }
        (self.progress, is_done)
    }

    fn list(&mut self) {
        let Progress { listed, order, part, next, .. } = &mut self.progress;
        (*part, *next) = (Some(Part::Links), 0);
        order.clear();
        let Ok(pids) = self.proc.pids() else {
            return self.progress.found.iter_mut().for_each(|report| report.blind_spot(None, UNLISTED));
        };
        let own = own_tgid(self.proc);
        let new = pids.iter().copied().filter(|tgid| Some(*tgid) != own && !listed.contains(tgid));
        order.extend(new);
        *listed = pids.into_iter().collect();
    }

    /// Whoever gets the id of a process that has ended has a turn of his own.
    fn forget_who_is_gone(&mut self) {
        if let Ok(pids) = self.proc.pids() {
            let Progress { listed, unread, programs, .. } = &mut self.progress;
            listed.retain(|tgid| pids.binary_search(tgid).is_ok());
            unread.retain(|tgid| pids.binary_search(tgid).is_ok());
            programs.retain(|tgid, _| pids.binary_search(tgid).is_ok());
        }
    }

    /// Whether there is no time any more. One at least is looked at, so that each look gets on.
    fn is_over(&mut self, deadline: &Deadline) -> bool {
        std::mem::replace(&mut self.looked, true) && deadline.is_over()
    }

    /// Looks at what each process has, but for what there is very much of; false when there is no time for all.
    fn in_order(&mut self, deadline: &Deadline) -> bool {
        while let Some(part) = self.progress.part {
            while let Some(tgid) = self.progress.order.get(self.progress.next).copied() {
                if self.is_over(deadline) {
                    return false;
                }
                if let Some(process) = self.process(tgid) {
                    self.look_at(part, (tgid, &process));
                }
                self.progress.next += 1;
                self.note_in_time();
            }
            (self.progress.part, self.progress.next) = (part.next(), 0);
        }
        true
    }

    /// Looks at what was left of descriptors; false when there is no time for all.
    fn left(&mut self, deadline: &Deadline) -> bool {
        while !self.progress.left.is_empty() {
            if self.is_over(deadline) {
                return false;
            }
            let Some((tgid, mount, rest)) = self.progress.left.pop_front() else { break };
            if let Some(process) = self.process(tgid) {
                let slice = deadline.within(FILES_OF_ONE);
                // Tables that only threads have are found with the first files.
                let is_first = rest == Rest::DESCRIPTORS;
                let extent = if is_first { Extent::First } else { Extent::Until(&slice) };
                self.files((tgid, &process), mount, (rest, extent));
            }
            self.note_in_time();
        }
        true
    }

    fn note_in_time(&mut self) {
        if self.noted.elapsed() >= NOTE_EVERY {
            self.note();
        }
    }

    fn note(&mut self) {
        self.noted = Instant::now();
        readers::note(&self.progress);
    }

    pub(super) fn process(&mut self, tgid: u32) -> Option<Dir> {
        match self.proc.dir(tgid) {
            Ok(process) => Some(process),
            Err(error) if is_gone(&error) => None,
            Err(_) => {
                self.note_unread(tgid);
                None
            }
        }
    }

    pub(super) fn note_unread(&mut self, tgid: u32) {
        if !self.progress.unread.insert(tgid) {
            return;
        }
        let comm = self.proc.stat(tgid).map(|stat| stat.comm);
        let reason = if self.proc.is_aside(tgid) { READS_HANG } else { "it may not be read" };
        for report in &mut self.progress.found {
            report.unreadable += 1;
            report.blind_spot(Some((tgid, comm.clone())), reason);
        }
    }

    fn look_at(&mut self, part: Part, (tgid, process): (u32, &Dir)) {
        match part {
            Part::Links => {
                let Some(visit) = self.visitor.links(tgid, process, &self.targets) else { return };
                self.take((tgid, process), None, &visit);
                if visit.pins.is_empty() || self.searched.len() == 1 {
                    return;
                }
                for index in 0..self.searched.len() {
                    self.links_on((tgid, process), index);
                }
            }
            Part::FirstFiles => self.files((tgid, process), None, (Rest::DESCRIPTORS, Extent::First)),
            Part::Mappings => self.mappings((tgid, process)),
        }
    }

    /// Looks at what is quick, for one of the mounts.
    pub(super) fn links_on(&mut self, (tgid, process): (u32, &Dir), index: usize) {
        let visit = self.visitor.links(tgid, process, &self.searched[index].targets());
        self.take((tgid, process), Some(index), &visit.unwrap_or_default());
    }

    /// Looks at descriptors: of one of the mounts, or of all, and then, if there is one of them, of each.
    pub(super) fn files(
        &mut self,
        (tgid, process): (u32, &Dir),
        mount: Option<usize>,
        (rest, extent): (Rest, Extent<'_>),
    ) {
        let begun = rest.clone();
        let found = match mount {
            Some(index) => self.visitor.files(tgid, process, &self.searched[index].targets(), (rest, extent)),
            None => self.visitor.files(tgid, process, &self.targets, (rest, extent)),
        };
        let Some((visit, left)) = found else { return };
        self.take((tgid, process), mount, &visit);
        if mount.is_none() && self.searched.len() > 1 && !visit.pins.is_empty() {
            // One look tells one of several mounts that the process has.
            let each = (0..self.searched.len()).map(|index| (tgid, Some(index), begun.clone()));
            self.progress.left.extend(each);
        } else if let Some(left) = left {
            self.progress.left.push_back((tgid, mount, left));
        }
    }

    fn mappings(&mut self, (tgid, process): (u32, &Dir)) {
        match self.mapped.any(process) {
            Ok(true) => {}
            Err(error) if !is_gone(&error) && process.is_there(&mut Vec::new()) => {
                return self.note_unread(tgid);
            }
            Ok(false) | Err(_) => return,
        }
        for index in 0..self.searched.len() {
            self.mappings_on((tgid, process), index);
        }
    }

    /// Looks at mappings, for one of the mounts.
    pub(super) fn mappings_on(&mut self, (tgid, process): (u32, &Dir), index: usize) {
        let searched = &self.searched[index];
        let Some(device) = searched.device() else { return };
        let ids: Vec<u64> = searched.mounts.iter().map(|mount| mount.id).collect();
        let programs = self.progress.programs.get(&tgid);
        let program = programs.and_then(|programs| programs.get(&index));
        match first_of(process, device, &ids, |path| program.is_some_and(|program| program == path)) {
            Ok(used) => {
                let ns = namespace(process, &mut Buffer::default()).ok().flatten().unwrap_or_default();
                self.add((tgid, process), ns, index, used.into_iter().collect());
            }
            Err(error) if is_gone(&error) => {}
            Err(_) => self.progress.found[index].blind_spot(None, UNMAPPED),
        }
    }

    /// Adds what was found in a process of one of the mounts; of all of them, where there is only one.
    pub(super) fn take(&mut self, (tgid, process): (u32, &Dir), mount: Option<usize>, visit: &Visit) {
        if visit.refused && process.is_there(&mut Vec::new()) {
            self.note_unread(tgid);
        }
        let Some(index) = mount.or((self.searched.len() == 1).then_some(0)) else { return };
        let program = visit.pins.iter().find(|pin| pin.access == Access::Exe);
        if let Some(path) = program.and_then(|pin| pin.path.clone()) {
            self.progress.programs.entry(tgid).or_default().insert(index, path);
        }
        let uses = visit.pins.iter().cloned().filter_map(|pin| Use::of(process, pin)).collect();
        self.add((tgid, process), visit.ns, index, uses);
    }

    fn add(&mut self, (tgid, process): (u32, &Dir), ns: NsInum, index: usize, uses: Vec<Use>) {
        let pins = pins(process, ns, uses, &self.searched[index]);
        let report = &mut self.progress.found[index];
        for holder in describe(self.proc, tgid, process, ns, pins) {
            let is_same = |known: &&mut Holder| (known.tgid, known.access) == (holder.tgid, holder.access);
            if let Some(known) = report.holders.iter_mut().find(is_same) {
                // What was found in several parts of its descriptors is one way to use it.
                if known.possible {
                    *known = holder;
                }
            } else if report.holders.len() < MAX_LISTED {
                report.holders.push(holder);
            } else {
                report.holders_omitted += 1;
            }
        }
    }
}
