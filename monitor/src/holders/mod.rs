//! Who pins a mount: a path in a mount namespace goes in; the processes, child mounts and copies that pin
//! what is mounted there come out, with a verdict.
//!
//! ```text
//! index (process ─► namespace) ─► target (path ─► mount) ─► propagation (copies) ─► pins (each process) ─► verdict
//! ```
//!
//! Reads /proc: links, fdinfo, maps and mountinfo, which no hung file server can delay. The directories above the
//! target are opened for a moment, to follow symbolic links; the target is never opened, and nothing of another process
//! stays open after it was read. Containers and pods are joined by the core, by cgroup.
//!
//! Processes whose namespace sees the mount, or a copy that the unmount would take along, are visited first.
//! Only when none of these pins it are all others: a descriptor can have come from another namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error_chain::chain;
use crate::observation::{
    Access, Holder, HolderReport, MountIdentity, MountPresence, NsInum, PathDoubt, PathOrigin, Verdict,
};
use crate::sources::procfs::Proc;
use crate::sources::procfs::dir::{Dir, is_gone};
use crate::sources::procfs::mountinfo::Mount;

pub use presence::PresenceRequest;
pub use still_held::StillHeldRequest;

use mntns_index::{Member, MntnsIndex, Seen};
use pins::{Pin, ScanTargets, SearchedMount, Visitor};
use propagation::{MountCopy, NamespaceMounts};
use resolve::{Unresolved, View};

mod file_server;
mod jobs;
mod mntns_index;
mod pins;
mod presence;
mod propagation;
mod resolve;
mod still_held;
mod target;
#[cfg(test)]
mod tests;
pub mod worker;

pub use jobs::jobs;

/// Holders, and child mounts, that one report lists.
pub const MAX_LISTED: usize = 256;

/// A request to scan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanRequest {
    /// Returned in the report.
    pub id: u64,
    /// Mount namespace in which the path was given.
    pub mntns: NsInum,
    /// The process that gave it; it may be gone already.
    pub tgid: u32,
    /// As it was given; may be relative to the process' directory.
    pub path: String,
    /// Where it starts from, captured when it was given.
    pub origin: Option<Box<PathOrigin>>,
    /// Whether a link at its end is followed.
    pub follow: bool,
}

/// When a scan has to end.
#[derive(Debug, Clone, Copy)]
struct Deadline(Instant);

impl Deadline {
    fn after(budget: Duration) -> Self {
        Self(Instant::now() + budget)
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.0
    }
}

/// Finds who pins the mount. Blocks for at most about the budget.
///
/// `complete` is false when time ran out, and when a process that may see the mount could not be read: as
/// root without `CAP_SYS_PTRACE` all of them, and even with it some that a security module protects.
#[must_use]
pub fn scan(proc: &Proc, request: &ScanRequest, budget: Duration) -> HolderReport {
    let started = Instant::now();
    let mut scan = Scan::new(proc, request, Deadline(started + budget));
    scan.report.verdict = scan.run(request).unwrap_or_else(|| {
        scan.report.complete = false;
        Verdict::Incomplete
    });
    scan.report.elapsed_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
    scan.report
}

/// Whether the path of a request leads to this mount now. Takes about as long as reading one mount table, if the daemon
/// or the caller is in its namespace.
fn leads_to(
    proc: &Proc,
    request: &ScanRequest,
    identity: &MountIdentity,
    deadline: Deadline,
) -> MountPresence {
    let mut scan = Scan::new(proc, request, deadline);
    let named = scan.own.into_iter().chain([request.tgid]).map(|tgid| Member { tgid, tid: tgid });
    let mut members: Vec<Member> =
        named.filter(|member| proc.ns(member.tgid, "mnt") == Some(request.mntns)).collect();
    if members.is_empty() {
        let index = MntnsIndex::build(proc, &scan.deadline).unwrap_or_default();
        members = scan.best_members(&index, request);
    }
    let located = scan.locate(request, &members);
    let Some((seen, mount)) = located.filter(|_| scan.report.complete) else {
        let reason = scan.report.blind_spots.pop().map_or_else(String::new, |spot| spot.reason);
        return MountPresence::unknown(request.id, reason);
    };
    let found = mount.and_then(|mount| {
        let namespace = presence::namespace_of(proc, seen.tgid, &seen.process);
        let unique = namespace.ok().and_then(|namespace| namespace.unique_id(&mount));
        mount.facts(request.mntns, unique).identity()
    });
    let is_same = found.is_some_and(|found| found.is_same(identity));
    MountPresence { id: request.id, present: Some(is_same), reason: None }
}

/// The daemon's own id as this /proc shows it, which may be of another pid namespace.
fn own_tgid(proc: &Proc) -> Option<u32> {
    std::fs::read_link(proc.root().join("self")).ok()?.to_str()?.parse().ok()
}

struct Scan<'p> {
    proc: &'p Proc,
    deadline: Deadline,
    visitor: Visitor,
    own: Option<u32>,
    in_time: bool,
    report: HolderReport,
}

impl<'p> Scan<'p> {
    fn new(proc: &'p Proc, request: &ScanRequest, deadline: Deadline) -> Self {
        let skipped = HolderReport::skipped(request.id, request.path.clone());
        Self {
            proc,
            deadline,
            visitor: Visitor::default(),
            own: own_tgid(proc),
            in_time: true,
            report: HolderReport { complete: true, verdict: Verdict::Incomplete, ..skipped },
        }
    }

    /// `None` when no scan is possible.
    fn run(&mut self, request: &ScanRequest) -> Option<Verdict> {
        let index = MntnsIndex::build(self.proc, &self.deadline).ok()?;
        self.in_time &= index.finished;
        let members = self.best_members(&index, request);
        let (seen, target) = self.locate(request, &members)?;
        let Some(target) = target else {
            if request.origin.is_some() {
                // The kernel found a mount there.
                self.report.blind_spot(None, "nothing is mounted at the path any more");
            }
            return Some(Verdict::NotAMount);
        };
        let table = seen.table;
        let namespace = presence::namespace_of(self.proc, seen.tgid, &seen.process);
        let unique = namespace.ok().and_then(|namespace| namespace.unique_id(&target));
        self.report.mount = Some(target.facts(request.mntns, unique));
        let children = table.children(target.id).map(|child| child.mountpoint.clone());
        self.report.child_mounts = children.take(MAX_LISTED).collect();

        let views = self.views(NamespaceMounts { ns: request.mntns, table }, &index, &target);
        let copies = propagation::copies(&views, &target);
        let mut mounts = vec![SearchedMount { ns: request.mntns, mount: &target }];
        mounts.extend(
            copies
                .iter()
                .filter(|copy| copy.propagated)
                .map(|copy| SearchedMount { ns: copy.ns, mount: copy.mount }),
        );
        let targets =
            ScanTargets { mounts, tables: views.iter().map(|view| (view.ns, &view.table)).collect() };

        self.count_unreadable(&index, &target);
        self.visit_all(&index, &targets);
        let processes = self.report.holders.len();
        self.add_namespaces(request.mntns, &copies, &index);
        if !self.in_time {
            self.report.blind_spot(None, "the time for one scan ran out");
        }
        Some(self.verdict(processes > 0, request.tgid))
    }

    /// Finds the mount that the path leads to, in the view of a process of the namespace; no mount where nothing is
    /// mounted, `None` where that is not known.
    fn locate(&mut self, request: &ScanRequest, members: &[Member]) -> Option<(Seen, Option<Mount>)> {
        if let Some(doubt) = request.origin.as_ref().and_then(|origin| origin.doubt) {
            self.report.blind_spot(None, doubt.reason());
            if doubt != PathDoubt::ReadLate {
                return None;
            }
        }
        let mut seen = members
            .iter()
            .take(mntns_index::MAX_TRIES)
            .filter_map(|member| mntns_index::seen_by(self.proc, *member, request.mntns));
        if let Some(meant) = target::descriptor(self.proc, request) {
            let reason = "the path names a file that the caller has open, or had";
            self.report.blind_spot(None, reason);
            self.report.path = meant?;
            let seen = seen.next()?;
            let mount = seen.table.at(&self.report.path).cloned();
            return mount.is_some().then_some((seen, mount));
        }
        let mut failed = Unresolved::NoProcess;
        match target::origin(self.proc, request) {
            Err(error) => failed = error,
            Ok(origin) => {
                for seen in seen.take_while(|_| !self.deadline.is_over()) {
                    let view = View::open(&seen.process, &seen.root, &seen.table);
                    match view.and_then(|view| view.resolve(&origin)) {
                        Ok(resolved) => {
                            self.report.path = resolved.path;
                            if seen.root != "/" {
                                let reason = "only processes in a chroot are left in its mount namespace";
                                self.report.blind_spot(None, reason);
                            }
                            return Some((seen, resolved.mount));
                        }
                        Err(error) => {
                            let is_final = !error.may_be_seen_by_another();
                            failed = error;
                            if is_final {
                                break;
                            }
                        }
                    }
                }
            }
        }
        self.report.blind_spot(None, &format!("the path cannot be resolved: {}", chain(&failed)));
        None
    }

    /// Members of the target's namespace: ourselves first, then the caller.
    fn best_members(&self, index: &MntnsIndex, request: &ScanRequest) -> Vec<Member> {
        let mut members = index.members(request.mntns).to_vec();
        members.sort_by_key(|member| {
            (Some(member.tgid) != self.own, member.tgid != request.tgid, member.tid != member.tgid)
        });
        members
    }

    /// The target's namespace, and all others in which its file system is mounted.
    fn views(&mut self, own: NamespaceMounts, index: &MntnsIndex, target: &Mount) -> Vec<NamespaceMounts> {
        let device = format!(" {} ", target.device);
        let mut views = vec![own];
        for (ns, members) in &index.namespaces {
            if *ns == views[0].ns {
                continue;
            }
            if self.deadline.is_over() {
                self.in_time = false;
                break;
            }
            let table =
                mntns_index::mounts(self.proc, members.iter().copied(), |text| text.contains(&device));
            if let Some(table) = table.filter(|table| table.iter().any(|mount| mount.is_copy_of(target))) {
                views.push(NamespaceMounts { ns: *ns, table });
            }
        }
        views
    }

    /// Counts the processes that may not be read. Those that see the mount, or whose mounts cannot be known
    /// either, could be what is looked for.
    fn count_unreadable(&mut self, index: &MntnsIndex, target: &Mount) {
        let own = self.own;
        for tgid in index.unreadable.iter().copied().filter(|tgid| Some(*tgid) != own) {
            let blind = match mntns_index::mounts_of_unreadable(self.proc, tgid) {
                Ok(table) => table.iter().any(|mount| mount.is_copy_of(target)),
                Err(error) if is_gone(&error) => continue,
                Err(_) => self.proc.is_alive(tgid),
            };
            self.report.unreadable += 1;
            if blind {
                self.blind_to(tgid, "its descriptors may not be read");
            }
        }
    }

    fn visit_all(&mut self, index: &MntnsIndex, targets: &ScanTargets<'_>) {
        let searched: BTreeSet<NsInum> = targets.mounts.iter().map(|searched| searched.ns).collect();
        let (mut near, mut far) = (BTreeSet::new(), BTreeSet::new());
        for (ns, members) in &index.namespaces {
            let side = if searched.contains(ns) { &mut near } else { &mut far };
            side.extend(members.iter().map(|member| member.tgid).filter(|tgid| Some(*tgid) != self.own));
        }
        self.visit(near.iter().copied(), true, targets);
        if self.report.holders.is_empty() {
            self.visit(far.difference(&near).copied(), false, targets);
        }
    }

    fn visit(&mut self, tgids: impl Iterator<Item = u32>, near: bool, targets: &ScanTargets<'_>) {
        for tgid in tgids {
            if self.deadline.is_over() {
                self.in_time = false;
                return;
            }
            let process = match self.proc.dir(tgid) {
                Ok(process) => process,
                Err(error) if is_gone(&error) => continue,
                Err(_) => {
                    self.add_unreadable(tgid, near);
                    continue;
                }
            };
            let Some(visit) = self.visitor.visit(tgid, &process, targets, &self.deadline) else { continue };
            self.in_time &= !visit.cut;
            // The kernel also refuses what it can no longer find.
            if visit.refused && process.is_there(&mut Vec::new()) {
                self.add_unreadable(tgid, near);
            }
            if !visit.doubts.is_empty() && visit.pins.is_empty() && process.is_there(&mut Vec::new()) {
                self.blind_to(tgid, "it uses something of this name, but on which mount cannot be told");
            }
            self.add(tgid, &process, visit.ns, visit.pins);
        }
    }

    fn add_unreadable(&mut self, tgid: u32, near: bool) {
        self.report.unreadable += 1;
        if near {
            self.blind_to(tgid, "it may not be read");
        }
    }

    /// A process that could be a holder was not looked into.
    fn blind_to(&mut self, tgid: u32, reason: &str) {
        let comm = self.proc.stat(tgid).map(|stat| stat.comm);
        self.report.blind_spot(Some((tgid, comm)), reason);
    }

    /// Describes a process and lists what it pins.
    fn add(&mut self, tgid: u32, process: &Dir, ns: NsInum, pins: Vec<Pin>) {
        if pins.is_empty() {
            return;
        }
        let Some(stat) = self.proc.stat(tgid) else { return };
        let (exe, cmdline, cgroup) = (self.proc.exe(tgid), self.proc.cmdline(tgid), self.proc.cgroup(tgid));
        let uid = self.proc.uid(tgid);
        let serves = file_server::mountpoint(process);
        // The description was read by id: it is this process' only if that was there until now.
        if !process.is_there(&mut Vec::new()) {
            return;
        }
        for Pin { access, path, fd } in pins {
            if self.report.holders.len() >= MAX_LISTED {
                self.report.holders_omitted += 1;
                continue;
            }
            self.report.holders.push(Holder {
                tgid,
                comm: stat.comm.clone(),
                cmdline: cmdline.clone(),
                exe: exe.clone(),
                access,
                path,
                fd,
                start_ns: Some(stat.start_ns),
                uid,
                cgroup: cgroup.clone(),
                mntns: Some(ns),
                serves: serves.clone(),
            });
        }
    }

    /// Lists each other namespace with a copy by its oldest process. None of them refuses an unmount by itself:
    /// one that the unmount does not reach never does, and for one that it reaches the users were looked for.
    fn add_namespaces(&mut self, own: NsInum, copies: &[MountCopy<'_>], index: &MntnsIndex) {
        let mut mountpoints: BTreeMap<NsInum, Vec<String>> = BTreeMap::new();
        for copy in copies.iter().filter(|copy| copy.ns != own) {
            mountpoints.entry(copy.ns).or_default().push(copy.mount.mountpoint.clone());
        }
        for (ns, paths) in mountpoints {
            let oldest = index
                .members(ns)
                .iter()
                // Kernel threads, which have no executable, live in the first namespace and hold nothing.
                .filter(|member| self.proc.exe(member.tgid).is_some())
                .filter_map(|member| Some((self.proc.stat(member.tgid)?.start_ns, member.tgid)))
                .min();
            let Some((_, tgid)) = oldest else { continue };
            let Ok(process) = self.proc.dir(tgid) else { continue };
            let pin = |path| Pin { access: Access::Mount, path: Some(path), fd: None };
            self.add(tgid, &process, ns, paths.into_iter().map(pin).collect());
        }
    }

    fn verdict(&mut self, processes: bool, tgid: u32) -> Verdict {
        if processes {
            return Verdict::Processes;
        }
        if !self.report.child_mounts.is_empty() {
            return Verdict::ChildMount;
        }
        if !self.in_time {
            return Verdict::Incomplete;
        }
        let still = self.report.mount.as_ref().and_then(|mount| {
            let (id, mntns, identity) = (self.report.id, mount.mntns, mount.identity()?);
            let request = PresenceRequest { id, mntns, tgid, identity, at: None };
            Some(presence::presence(self.proc, &request, self.deadline))
        });
        match still {
            Some(MountPresence { present: Some(true), .. }) if self.report.complete => Verdict::Kernel,
            Some(MountPresence { present: Some(false), .. }) => Verdict::Transient,
            Some(MountPresence { reason: Some(reason), .. }) => {
                self.report.blind_spot(None, &reason);
                Verdict::Incomplete
            }
            _ => Verdict::Incomplete,
        }
    }
}
