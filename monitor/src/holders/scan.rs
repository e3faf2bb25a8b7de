//! One scan: in which order everything is looked at, what was found, and where it goes on if its time is over.
//!
//! Each part begins with the list of processes and the mount tables, and goes on with the [`Stage`] at which the last
//! one stopped. Within a stage it goes by turns of the users whose processes they are.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::file_server::{Serving, serving};
use super::locate::{self, best_members};
use super::mntns_index::{self, MntnsIndex, Seen};
use super::orphans::Keeper;
use super::pins::{Extent, Rest, Visit, Visitor, describe};
use super::progress::{Progress, Stage};
use super::propagation::{self, MountCopy, NamespaceMounts};
use super::scope::Scope;
use super::searched::{ScanTargets, SearchedMount};
use super::{Deadline, PresenceRequest, ScanRequest, own_directory, own_tgid, presence};
use crate::clock::boot_now;
use crate::observation::{Holder, HolderReport, MountPresence, NsInum, Verdict};
use crate::sources::procfs::Proc;
use crate::sources::procfs::dir::{Dir, is_gone};
use crate::sources::procfs::mountinfo::{Mount, is_below, is_fuse};
use crate::sources::procfs::readers;

/// The list of processes is never longer than this takes; a reader would be ended soon after.
const LIST_MAX: Duration = Duration::from_secs(10);
/// However long the lists took, and the mount tables, a quarter of the time is for what comes then.
const STAGES_MIN: u32 = 4;
/// How often it is written down how far it came, in case that a process hangs the reader.
const NOTE_EVERY: Duration = Duration::from_millis(100);

mod doubts;
mod room;
mod wanted;
mod without_process;

use room::Room;
use wanted::{NEAR_ALONE, wants_all};

/// What a part of a scan found, and how to go on if it is not done.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) report: HolderReport,
    pub(super) left: Option<Progress>,
}

/// Goes on with the search for who pins the mount. Blocks for at most about the budget.
///
/// The report is not complete when there is more to do, and when a process that may see the mount could not be read: as
/// root without `CAP_SYS_PTRACE` all of them, and even with it some that a security module protects.
#[must_use]
pub(super) fn scan(proc: &Proc, request: &ScanRequest, progress: Progress, budget: Duration) -> Part {
    let started = Instant::now();
    let mut scan = Scan::new(proc, request, progress, started);
    let outcome = scan.run(request, budget);
    scan.finish(outcome, started)
}

pub(super) struct Scan<'p> {
    proc: &'p Proc,
    visitor: Visitor,
    own: Option<u32>,
    /// Whether somebody wants to know who holds it though no unmount was refused.
    on_demand: bool,
    /// Whether all holders are looked for, rather than the reason why it is busy.
    wants_all: bool,
    most_listed: usize,
    progress: Progress,
    pub(super) report: HolderReport,
    deadline: Deadline,
    noted: Instant,
    elapsed_before: u64,
}

/// How far a part came.
struct Outcome {
    verdict: Verdict,
    /// Mount namespaces with a copy, each by its oldest process.
    namespaces: Vec<Holder>,
    is_done: bool,
}

impl Outcome {
    fn done(verdict: Verdict) -> Self {
        Self { verdict, namespaces: Vec::new(), is_done: true }
    }
}

impl<'p> Scan<'p> {
    pub(super) fn new(
        proc: &'p Proc,
        request: &ScanRequest,
        mut progress: Progress,
        started: Instant,
    ) -> Self {
        let new = || {
            let skipped = HolderReport::skipped(request.id, request.path.clone());
            HolderReport { complete: true, verdict: Verdict::Incomplete, ..skipped }
        };
        let report = progress.found.take().map_or_else(new, |found| *found);
        let own = own_tgid(proc);
        Self {
            proc,
            visitor: Visitor::new(own_directory(proc)),
            own,
            on_demand: request.on_demand,
            wants_all: wants_all(request, progress.stage, &report),
            most_listed: request.most_listed(),
            progress,
            elapsed_before: report.elapsed_ns,
            report,
            deadline: Deadline::at(started + LIST_MAX),
            noted: started,
        }
    }

    /// `None` when no scan is possible.
    fn run(&mut self, request: &ScanRequest, budget: Duration) -> Option<Outcome> {
        let all = Deadline::after(budget);
        let index = MntnsIndex::build(self.proc, &self.deadline).ok()?;
        if !index.finished {
            self.report.blind_spot(None, "there are too many processes to list them in time");
        }
        let members = best_members(&index, request, self.own);
        let (seen, target) = match self.report.mount.clone() {
            None => {
                let found = locate::locate(self.proc, request, &members, self.deadline, &mut self.report)?;
                self.report.resolved = Some(boot_now());
                (found.seen, found.mount)
            }
            Some(known) => locate::again(self.proc, &known, &members)?,
        };
        if seen.table.is_cut() {
            self.report.blind_spot(None, doubts::TOO_LONG);
        }
        let Some(target) = target else {
            return Some(self.nothing_there(request));
        };
        if request.mount_only {
            return Some(Outcome::done(Verdict::Incomplete));
        }
        if self.report.mount.is_none() {
            let unique = locate::unique_id(self.proc, &seen, &target);
            self.report.mount = Some(target.facts(request.mntns, unique));
        }
        let path = if request.on_demand { self.report.path.clone() } else { target.mountpoint.clone() };
        let scope = Scope::new(&target, &path);
        let place = &scope.searched().mountpoint;
        let children = seen.table.children(target.id).filter(|child| is_below(&child.mountpoint, place));
        let children = children.map(|child| child.mountpoint.clone());
        self.report.child_mounts = children.take(self.most_listed).collect();
        self.deadline = all;
        self.deadline.allow(budget / STAGES_MIN);
        self.note();
        Some(self.search((request, budget), &index, seen, &scope))
    }

    /// The mount is not there, or not any more.
    fn nothing_there(&mut self, request: &ScanRequest) -> Outcome {
        if self.report.mount.is_some() {
            self.report.blind_spot(None, "the mount went before every process was looked at");
            let is_held = self.report.is_explained();
            return Outcome::done(if is_held { Verdict::Processes } else { Verdict::Transient });
        }
        if request.origin.is_some() && !request.mount_only {
            // The kernel found a mount there.
            self.report.blind_spot(None, "nothing is mounted at the path any more");
        }
        Outcome::done(Verdict::NotAMount)
    }

    fn search(
        &mut self,
        (request, budget): (&ScanRequest, Duration),
        index: &MntnsIndex,
        seen: Seen,
        scope: &Scope<'_>,
    ) -> Outcome {
        let target = scope.target;
        let own = NamespaceMounts { ns: request.mntns, table: seen.table };
        let mut is_done = true;
        if self.progress.stage == Stage::Own {
            let mounts = vec![SearchedMount { ns: own.ns, mount: scope.searched() }];
            let targets = ScanTargets { mounts, tables: BTreeMap::from([(own.ns, &own.table)]) };
            let tgids = self.processes_of(index, |ns| ns == request.mntns);
            is_done = self.stage(index, &tgids, &tgids, &targets);
        }
        let (views, has_all) = match is_done {
            true => self.views(own, index, scope),
            false => (vec![own], false),
        };
        let copies = propagation::copies(&views, target, |mount| scope.touches(mount));
        if has_all {
            self.count_unreadable(index, scope);
            self.deadline.allow(budget / STAGES_MIN);
            is_done = self.stages(request, index, &views, scope, &copies);
        }
        let is_done = is_done && has_all;
        let is_due = is_done || self.report.servers.is_empty();
        if is_fuse(&target.fstype) && is_due && self.tells_common() {
            self.deadline.allow(budget / STAGES_MIN);
            let order = |tgids| index.by_turns(tgids);
            let Serving { servers, is_unserved } = serving(self.proc, target, order, &self.deadline);
            (self.report.servers, self.report.unserved) = (servers, is_unserved);
        }
        Outcome {
            verdict: self.verdict(is_done, request.tgid),
            namespaces: {
                let copies = copies.iter().filter(|copy| scope.has_all_of(copy.mount));
                self.namespaces(request.mntns, copies, index)
            },
            is_done,
        }
    }

    /// Goes through the stages; false when there is no time for all of them.
    fn stages(
        &mut self,
        request: &ScanRequest,
        index: &MntnsIndex,
        views: &[NamespaceMounts],
        scope: &Scope<'_>,
        copies: &[MountCopy<'_>],
    ) -> bool {
        let others: Vec<(NsInum, Cow<'_, Mount>)> =
            copies.iter().filter_map(|copy| scope.of_other(copy)).collect();
        let mut mounts = vec![SearchedMount { ns: request.mntns, mount: scope.searched() }];
        mounts.extend(others.iter().map(|(ns, mount)| SearchedMount { ns: *ns, mount }));
        let has_copies = mounts.len() > 1;
        let targets =
            ScanTargets { mounts, tables: views.iter().map(|view| (view.ns, &view.table)).collect() };
        if self.tells_common() {
            self.look_at_kernel(index, views, &targets);
        }
        let searched: BTreeSet<NsInum> = targets.mounts.iter().map(|searched| searched.ns).collect();
        let near = self.processes_of(index, |ns| searched.contains(&ns));
        let mut far = self.processes_of(index, |ns| !searched.contains(&ns));
        far.retain(|tgid| !near.contains(tgid));
        let begun = self.progress.stage;
        for stage in Stage::ALL.into_iter().skip_while(|stage| *stage < begun) {
            if stage == Stage::Own {
                continue;
            }
            if stage.is_last_resort() && self.is_explained() {
                if self.on_demand {
                    self.report.blind_spot(None, NEAR_ALONE);
                }
                continue;
            }
            // None of those who see it holds it, or all are wanted anyway.
            self.wants_all |= self.on_demand && stage.is_far();
            let was_own = self.progress.stage == Stage::Own;
            let done = std::mem::take(&mut self.progress.done);
            self.progress.enter(stage);
            if stage == begun {
                self.progress.done = done;
            } else if stage == Stage::Near && was_own && !has_copies {
                // They were looked at before.
                self.progress.done = self.processes_of(index, |ns| ns == request.mntns);
            }
            let all: BTreeSet<u32>;
            let tgids = match stage {
                Stage::Hidden => {
                    all = near.union(&far).copied().collect();
                    &all
                }
                stage if stage.is_far() => &far,
                _ => &near,
            };
            if !self.stage(index, tgids, &near, &targets) {
                return false;
            }
        }
        true
    }

    /// The target's namespace, and all others in which its file system is mounted; whether there was time for all.
    fn views(
        &mut self,
        own: NamespaceMounts,
        index: &MntnsIndex,
        scope: &Scope<'_>,
    ) -> (Vec<NamespaceMounts>, bool) {
        let target = scope.target;
        let device = format!(" {} ", target.device);
        let mut room = Room::new(&own, scope);
        let (mut views, mut is_whole, mut looked) = (vec![own], true, false);
        for (ns, members) in &index.namespaces {
            let known = self.progress.namespaces.get(ns).copied();
            if *ns == views[0].ns || known == Some(false) {
                continue;
            }
            // What is needed again is read however long it takes, and one that is new: else a scan would not get on.
            if known.is_none() && std::mem::replace(&mut looked, true) && self.deadline.is_over() {
                is_whole = false;
                continue;
            }
            let shown =
                mntns_index::mounts(self.proc, members.iter().copied(), |text| text.contains(&device));
            let Some(shown) = shown else { continue };
            if known.is_none() {
                self.doubt_what_is_hidden(&shown, target);
            }
            let mut table = shown.table;
            let mut has_copy = table.iter().any(|mount| scope.touches(mount));
            if has_copy && !room.take(&mut table, scope) {
                has_copy = false;
                self.report.blind_spot(None, "more mounts show its file system than are looked at");
            }
            self.progress.namespaces.insert(*ns, has_copy);
            if has_copy {
                views.push(NamespaceMounts { ns: *ns, table });
            }
            self.note_in_time();
        }
        views.extend(self.orphans(index, scope));
        (views, is_whole)
    }

    /// Does what is left of a stage; false when there is no time for all of it.
    fn stage(
        &mut self,
        index: &MntnsIndex,
        tgids: &BTreeSet<u32>,
        near: &BTreeSet<u32>,
        targets: &ScanTargets<'_>,
    ) -> bool {
        let stage = self.progress.stage;
        let left: Vec<u32> = match stage {
            Stage::Crowds => {
                let crowded = index.crowded.iter().copied();
                crowded.filter(|tgid| self.progress.is_about(*tgid)).collect()
            }
            Stage::Rest => self.progress.rest.keys().copied().collect(),
            _ => tgids.iter().copied().collect(),
        };
        let is_wanted = |tgid: &u32| near.contains(tgid) || !matches!(stage, Stage::Crowds | Stage::Rest);
        let may_be_far = !self.is_explained();
        let left = left.into_iter().filter(|tgid| may_be_far || is_wanted(tgid));
        let is_done = |tgid: &u32| {
            self.progress.done.contains(tgid) || stage == Stage::Hidden && self.progress.hides_nothing(*tgid)
        };
        let left: Vec<u32> = left.filter(|tgid| !is_done(tgid)).collect();
        let mut looked = false;
        for tgid in index.by_turns(left) {
            // One at least, so that each part gets on.
            if std::mem::replace(&mut looked, true) && self.deadline.is_over() {
                return false;
            }
            let is_near = near.contains(&tgid);
            let process = match self.proc.dir(tgid) {
                Ok(process) => Some(process),
                Err(error) if is_gone(&error) => None,
                Err(_) => {
                    self.add_unreadable(tgid, is_near);
                    None
                }
            };
            if let Some(process) = process
                && !self.look(tgid, &process, targets, is_near)
            {
                return false;
            }
            self.progress.done.insert(tgid);
            self.note_in_time();
        }
        true
    }

    /// Does what the stage has to do with one process; false when there was no time for all of it.
    fn look(&mut self, tgid: u32, process: &Dir, targets: &ScanTargets<'_>, is_near: bool) -> bool {
        let deadline = self.deadline;
        let (visit, is_done) = match self.progress.stage {
            Stage::Own | Stage::Near | Stage::Far => (self.visitor.links(tgid, process, targets), true),
            Stage::NearFiles | Stage::FarFiles => {
                let found = self.visitor.files(tgid, process, targets, (Rest::ALL, Extent::First));
                let (mut visit, rest) = found.map_or((None, None), |(visit, rest)| (Some(visit), rest));
                self.progress.rest.extend(rest.map(|rest| (tgid, rest)));
                let sockets = visit.as_mut().and_then(|visit| visit.sockets.take());
                self.progress.sockets.extend(sockets.map(|sockets| (tgid, sockets)));
                (visit, true)
            }
            Stage::Crowds => {
                let after = self.progress.crowds.get(&tgid).copied().unwrap_or_default();
                let mut rest = self.progress.rest.get(&tgid).cloned().unwrap_or(Rest::NONE);
                let (visit, at) = self.visitor.crowd((tgid, after), process, targets, (&mut rest, &deadline));
                self.progress.rest.extend(rest.is_any().then_some((tgid, rest)));
                self.progress.crowds.extend(at.map(|at| (tgid, at)));
                (Some(visit), at.is_none())
            }
            Stage::Rest => {
                let Some(rest) = self.progress.rest.get(&tgid).cloned() else { return true };
                let found = self.visitor.files(tgid, process, targets, (rest, Extent::Until(&deadline)));
                let (visit, rest) = found.map_or((None, None), |(visit, rest)| (Some(visit), rest));
                let is_done = rest.is_none();
                self.progress.rest.extend(rest.map(|rest| (tgid, rest)));
                (visit, is_done)
            }
            Stage::Hidden => {
                let known = self.progress.sockets.get(&tgid).map(Vec::as_slice);
                let of_rings = is_near.then_some(targets);
                (self.visitor.hidden((tgid, process), known, of_rings, &deadline), true)
            }
        };
        if let Some(visit) = visit {
            self.take(tgid, process, visit, is_near);
        }
        is_done
    }

    fn take(&mut self, tgid: u32, process: &Dir, visit: Visit, near: bool) {
        self.doubt(tgid, process, &visit, near);
        for (ns, fd) in visit.kept {
            self.progress.keepers.entry(ns).or_insert(Keeper { tgid, fd });
        }
        let known =
            |access| self.report.holders.iter().any(|holder| holder.tgid == tgid && holder.access == access);
        let new = visit.pins.into_iter().filter(|pin| !known(pin.access)).collect();
        for holder in describe(self.proc, tgid, process, visit.ns, new) {
            if self.report.holders.len() < self.most_listed {
                self.report.holders.push(holder);
            } else {
                self.report.holders_omitted += 1;
            }
        }
    }

    pub(super) fn verdict(&mut self, is_done: bool, tgid: u32) -> Verdict {
        let mut certain = self.report.holders.iter().filter(|holder| holder.explains()).peekable();
        let is_held = certain.peek().is_some();
        if certain.any(|holder| !holder.access.is_kernel()) {
            return Verdict::Processes;
        }
        if !self.report.child_mounts.is_empty() {
            return Verdict::ChildMount;
        }
        if is_held {
            return Verdict::Kernel;
        }
        if !is_done {
            return Verdict::Incomplete;
        }
        let still = self.report.mount.as_ref().and_then(|mount| {
            let (id, mntns, identity) = (self.report.id, mount.mntns, mount.identity()?);
            let request = PresenceRequest { id, mntns, tgid, identity, at: None };
            Some(presence::presence(self.proc, &request, self.deadline))
        });
        match still {
            Some(MountPresence { present: Some(true), .. }) if self.report.complete => match self.on_demand {
                true => Verdict::None,
                false => Verdict::Kernel,
            },
            Some(MountPresence { present: Some(false), .. }) => Verdict::Transient,
            Some(MountPresence { reason: Some(reason), .. }) => {
                self.report.blind_spot(None, &reason);
                Verdict::Incomplete
            }
            _ => Verdict::Incomplete,
        }
    }

    /// Writes down how far it came, now and then.
    fn note_in_time(&mut self) {
        if self.noted.elapsed() >= NOTE_EVERY {
            self.note();
        }
    }

    fn note(&mut self) {
        self.noted = Instant::now();
        readers::note(&self.progress_now());
    }

    fn progress_now(&self) -> Progress {
        Progress { found: Some(Box::new(self.report.clone())), ..self.progress.clone() }
    }

    fn finish(mut self, outcome: Option<Outcome>, started: Instant) -> Part {
        let elapsed = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.report.elapsed_ns = self.elapsed_before.saturating_add(elapsed);
        let outcome = outcome.unwrap_or_else(|| {
            self.report.complete = false;
            Outcome::done(Verdict::Incomplete)
        });
        let left = (!outcome.is_done).then(|| self.progress_now());
        let mut report = self.report;
        report.verdict = outcome.verdict;
        let room = self.most_listed.saturating_sub(report.holders.len());
        let omitted = outcome.namespaces.len().saturating_sub(room);
        report.holders_omitted += u32::try_from(omitted).unwrap_or(u32::MAX);
        report.holders.extend(outcome.namespaces.into_iter().take(room));
        if left.is_some() {
            report.blind_spot(None, "the time for one scan ran out");
        }
        Part { report, left }
    }
}
