//! One scan: in which order everything is looked at, what was found, and where it goes on if its time is over.
//!
//! Each part begins with the list of processes and the mount tables, and goes on with the [`Stage`] at which the last
//! one stopped.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use kevtmon_observation::{Access, Holder, HolderReport, NsInum, Verdict};
use kevtmon_probe::iterators::IteratorHandle;
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::dir::is_gone;
use kevtmon_sources::procfs::mountinfo::{Mount, is_below, is_fuse};
use kevtmon_sources::procfs::readers;
use kevtmon_types::clock::boot_now;

use super::file_server::{Serving, serving};
use super::listed::Listed;
use super::locate::{self, best_members};
use super::mntns_index::{MntnsIndex, Seen};
use super::pins::Visitor;
use super::progress::{Progress, Stage};
use super::propagation::{self, Copies, MountCopy, NamespaceMounts};
use super::scope::Scope;
use super::searched::{ScanTargets, SearchedMount};
use super::{Deadline, ScanRequest, TOO_LONG, kernel, own_directory, own_tgid};

/// The list of processes is never longer than this takes; a reader would be ended soon after.
const LIST_MAX: Duration = Duration::from_secs(10);
/// However long the lists took, and the mount tables, a quarter of the time is for what comes then.
const STAGES_MIN: u32 = 4;
/// Processes of which it is foreseen at once what their threads do.
const FORESEEN: usize = 256;
/// How often it is written down how far it came, in case that a process hangs the reader.
const NOTE_EVERY: Duration = Duration::from_millis(100);

mod doubts;
mod newcomers;
mod process;
mod table_memory;
mod verdict;
mod views;
mod wanted;
mod without_process;

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
pub(super) fn scan(
    proc: &Proc,
    request: &ScanRequest,
    progress: Progress,
    budget: Duration,
    iterators: Option<IteratorHandle>,
) -> Part {
    let started = Instant::now();
    let mut scan = Scan::new(proc, request, progress, started);
    scan.listed = iterators.and_then(Listed::new);
    let outcome = scan.run(request, budget);
    scan.finish(outcome, started)
}

pub(super) struct Scan<'p> {
    proc: &'p Proc,
    visitor: Visitor,
    /// What the kernel lists itself.
    listed: Option<Listed>,
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
            listed: None,
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
        let mut index = match &self.listed {
            Some(listed) => MntnsIndex::of(&listed.tasks),
            None => MntnsIndex::build(self.proc, &self.deadline).ok()?,
        };
        if !request.on_demand {
            index.add_asker(self.proc);
        }
        if !index.finished {
            self.report.blind_spot(None, "there are too many processes to list them in time");
        }
        if self.progress.listed.is_empty() {
            self.progress.listed.clone_from(&index.listed);
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
            self.report.blind_spot(None, TOO_LONG);
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
        let scope = Scope::new(&target, &path).in_table(&seen.table);
        let place = &scope.searched().mountpoint;
        let children = seen.table.children(target.id).filter(|child| is_below(&child.mountpoint, place));
        let children = children.map(|child| child.mountpoint.clone());
        self.report.child_mounts = children.take(self.most_listed).collect();
        if let Some(listed) = &mut self.listed {
            listed.look_for(&target);
        }
        self.deadline = all;
        self.deadline.allow(budget / STAGES_MIN);
        self.note();
        Some(self.search((request, budget), &index, seen, &scope))
    }

    fn nothing_there(&mut self, request: &ScanRequest) -> Outcome {
        if self.report.mount.is_some() {
            self.report.blind_spot(None, "the mount went before every process was read");
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
        let mut is_done = self.progress.stage != Stage::Own || self.own_stage(index, &own, scope);
        let (views, has_all) = match is_done {
            true => self.views(own, index, scope),
            false => (vec![own], false),
        };
        if is_done && !has_all && self.progress.stage.is_own() {
            self.progress.enter(Stage::OwnFiles);
            self.deadline.allow(budget / STAGES_MIN);
            self.own_stage(index, &views[0], scope);
        }
        let reach = (scope.at.as_ref(), &self.progress.groups);
        let Copies { found: copies, is_unclear } =
            propagation::copies(&views, reach, target, |mount| scope.touches(mount));
        if has_all {
            if is_unclear {
                self.report.blind_spot(None, doubts::UNSEEN_GROUP);
            }
            self.count_unreadable(index, scope);
            self.deadline.allow(budget / STAGES_MIN);
            is_done = self.stages(request, index, &views, scope, &copies);
        }
        let is_done = is_done && has_all;
        let is_due = is_done || self.report.servers.is_empty();
        if is_fuse(&target.fstype) && is_due {
            self.deadline.allow(budget / STAGES_MIN);
            let Serving { servers, is_unserved, .. } = serving(self.proc, target, &self.deadline);
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

    /// Does what is left of a stage about the namespace of the mount; false when there is no time for all of it.
    fn own_stage(&mut self, index: &MntnsIndex, own: &NamespaceMounts, scope: &Scope<'_>) -> bool {
        let mounts = vec![SearchedMount { ns: own.ns, mount: scope.searched() }];
        let targets = ScanTargets { mounts, tables: BTreeMap::from([(own.ns, &own.table)]) };
        let tgids = self.processes_of(index, |ns| ns == own.ns);
        self.stage(index, &tgids, &tgids, &targets)
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
        if let Some(listed) = &mut self.listed {
            listed.add(&mounts);
        }
        let targets =
            ScanTargets { mounts, tables: views.iter().map(|view| (view.ns, &view.table)).collect() };
        if !std::mem::replace(&mut self.progress.is_kernel_done, true) {
            self.look_at_kernel(index, views, &targets, kernel::holders);
        }
        let searched: BTreeSet<NsInum> = targets.mounts.iter().map(|searched| searched.ns).collect();
        let near = self.processes_of(index, |ns| searched.contains(&ns));
        let mut far = self.processes_of(index, |ns| !searched.contains(&ns));
        far.retain(|tgid| !near.contains(tgid));
        let begun = self.progress.stage;
        for stage in Stage::ALL.into_iter().skip_while(|stage| *stage < begun) {
            if stage.is_own() {
                continue;
            }
            // What is found then is possible only.
            let is_known = self.report.is_explained() || !self.report.child_mounts.is_empty();
            if stage == Stage::Unseen && is_known {
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
            let was_own = self.progress.stage.is_own();
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
                // Who ends has no mount namespace any more.
                Stage::Unseen => {
                    if self.report.holders.iter().all(|holder| holder.access != Access::Uprobe) {
                        self.look_at_kernel(index, views, &targets, kernel::probes);
                    }
                    all = self.listed_processes(index);
                    &all
                }
                stage if stage.is_far() => &far,
                _ => &near,
            };
            if !self.stage(index, tgids, &near, &targets) {
                return false;
            }
        }
        if self.report.child_mounts.is_empty() {
            self.look_at_newcomers(&targets);
        }
        true
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
            Stage::Crowds => index.crowded.clone(),
            Stage::Rest => self.progress.rest.keys().copied().collect(),
            _ => tgids.iter().copied().collect(),
        };
        let is_wanted = |tgid: &u32| near.contains(tgid) || !matches!(stage, Stage::Crowds | Stage::Rest);
        let may_be_far = !self.is_explained();
        let left = left.into_iter().filter(|tgid| may_be_far || is_wanted(tgid));
        let mut left: Vec<u32> = left.filter(|tgid| !self.progress.done.contains(tgid)).collect();
        if let Some(listed) = &mut self.listed {
            left.retain(|tgid| listed.may_hold(stage, *tgid));
        }
        let mut looked = false;
        for (count, tgid) in left.iter().copied().enumerate() {
            // One at least, so that each part gets on.
            if std::mem::replace(&mut looked, true) && self.deadline.is_over() {
                return false;
            }
            if stage == Stage::Unseen && count % FORESEEN == 0 {
                self.foresee(left.iter().skip(count).take(FORESEEN), targets);
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

    /// What the threads of these do, for [`Stage::Unseen`].
    fn foresee<'t>(&mut self, tgids: impl Iterator<Item = &'t u32>, targets: &ScanTargets<'_>) {
        let processes = tgids.filter_map(|tgid| Some((*tgid, self.proc.dir(*tgid).ok()?)));
        self.visitor.foresee(processes, targets, &self.deadline);
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
        let memory = self.most_listed.saturating_sub(report.holders.len());
        let omitted = outcome.namespaces.len().saturating_sub(memory);
        report.holders_omitted += u32::try_from(omitted).unwrap_or(u32::MAX);
        report.holders.extend(outcome.namespaces.into_iter().take(memory));
        if left.is_some() {
            report.blind_spot(None, "the time for one scan ran out");
        }
        Part { report, left }
    }
}
