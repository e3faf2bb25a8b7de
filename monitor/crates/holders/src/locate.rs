//! Which mount a scan is about: a request goes in; the mount comes out, seen by a process of its namespace.

use kevtmon_observation::{HolderReport, MountFacts, PathUncertainty, Verdict};
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::mountinfo::Mount;
use kevtmon_types::clock::boot_now;
use kevtmon_types::error_chain::chain;
use serde::{Deserialize, Serialize};

use super::mntns_index::{Member, MntnsIndex, Seen, seen_by_any};
use super::resolve::replaced::Beginning;
use super::resolve::{Resolved, Unresolved, View};
use super::table::Uncertainty;
use super::{Deadline, ScanRequest, own_tgid, presence, same_directory, target};

pub(super) struct Found {
    pub(super) seen: Seen,
    /// `None` where nothing is mounted; on demand, where nothing is.
    pub(super) mount: Option<Mount>,
    /// Whether the path may have led elsewhere when the call began.
    pub(super) may_be_replaced: bool,
}

/// Finds the mount that the path leads to, in the view of a process of the namespace; `None` where that is not known.
pub(super) fn locate(
    proc: &Proc,
    request: &ScanRequest,
    members: &[Member],
    deadline: Deadline,
    report: &mut HolderReport,
) -> Option<Found> {
    if let Some(doubt) = request.origin.as_ref().and_then(|origin| origin.doubt) {
        report.blind_spot(None, doubt.reason());
        if doubt != PathUncertainty::ReadLate {
            return None;
        }
    }
    let mut seen = seen_by_any(proc, members, request.mntns);
    if let Some(meant) = target::descriptor(proc, request) {
        let reason = "the path names a file that the caller has open, or had";
        report.blind_spot(None, reason);
        report.path = meant?;
        let seen = seen.next()?;
        let mount = seen.table.at(&report.path).cloned();
        return mount.is_some().then_some(Found { seen, mount, may_be_replaced: false });
    }
    let mut failed = Unresolved::NoProcess;
    match target::origin(proc, request) {
        Err(error) => failed = error,
        Ok(origin) => {
            for seen in seen.take_while(|_| !deadline.is_over()) {
                let view = View::open(&seen.process, &seen.root, &seen.table);
                match view.and_then(|view| Ok((view.resolve(&origin)?, view))) {
                    Ok((resolved, view)) => {
                        let may_be_replaced = may_be_replaced(request, &view, &resolved);
                        report.path.clone_from(&resolved.path);
                        if seen.root != "/" {
                            let reason = "only processes in a chroot are left in its mount namespace";
                            report.blind_spot(None, reason);
                        }
                        let Resolved { mut mount, lies_on, .. } = resolved;
                        // Only what removes or renames a name follows no link at its end.
                        if let Some(id) = lies_on.filter(|_| request.origin.is_some() && !request.follow) {
                            mount = same_directory::mount_on(&seen.table, &report.path, id).cloned();
                        }
                        if let Some(id) = lies_on.filter(|_| request.on_demand) {
                            mount = seen.table.by_id(id).cloned();
                            if mount.is_none() {
                                report.blind_spot(None, "the mount of the path is not visible");
                            }
                        }
                        return Some(Found { mount, may_be_replaced, seen });
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
    report.blind_spot(None, &format!("the path cannot be resolved: {}", chain(&failed)));
    None
}

/// Whether the path of a call may have led elsewhere when the call began.
fn may_be_replaced(request: &ScanRequest, view: &View<'_>, resolved: &Resolved) -> bool {
    let Some(origin) = &request.origin else { return false };
    let is_in_place = |beginning| view.is_in_place(resolved, beginning).ok();
    origin.began.and_then(Beginning::of).and_then(is_in_place) != Some(true)
}

/// Finds a mount again that a scan has found before; no mount where it is gone, `None` where that is not known.
pub(super) fn again(proc: &Proc, known: &MountFacts, members: &[Member]) -> Option<(Seen, Option<Mount>)> {
    let mut seen = seen_by_any(proc, members, known.mntns);
    let seen = seen.find(|seen| seen.root == "/")?;
    let is_it = |mount: &&Mount| {
        let found = facts(proc, &seen, mount, known).identity();
        found.is_some_and(|found| known.identity().is_some_and(|known| known.is_same(&found)))
    };
    let mount = seen.table.by_id(known.id).filter(is_it).cloned();
    if mount.is_none() && seen.table.is_cut() {
        return None;
    }
    Some((seen, mount))
}

fn facts(proc: &Proc, seen: &Seen, mount: &Mount, known: &MountFacts) -> MountFacts {
    let unique = known.unique.and_then(|_| unique_id(proc, seen, mount));
    mount.facts(known.mntns, unique)
}

/// The id of a mount that is never reused, where the kernel has one.
pub(super) fn unique_id(proc: &Proc, seen: &Seen, mount: &Mount) -> Option<u64> {
    presence::namespace_of(proc, seen.tgid, &seen.process).ok()?.unique_id(mount)
}

/// Members of the target's namespace: ourselves first, then the caller.
pub(super) fn best_members(index: &MntnsIndex, request: &ScanRequest, own: Option<u32>) -> Vec<Member> {
    let mut members = index.members(request.mntns).to_vec();
    members.sort_by_key(|member| {
        (Some(member.tgid) != own, member.tgid != request.tgid, member.tid != member.tgid)
    });
    members
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Located {
    /// With the mount, if it was found.
    pub(super) report: HolderReport,
    /// Whether it is what the kernel found during the call, by an id that is never reused.
    pub(super) is_meant: bool,
    /// Whether the path may have led elsewhere when the call began.
    pub(super) may_be_replaced: bool,
    pub(super) lost: Option<Uncertainty>,
}

impl From<HolderReport> for Located {
    fn from(report: HolderReport) -> Self {
        Self { report, is_meant: false, may_be_replaced: false, lost: None }
    }
}

/// Finds only the mount that a path leads to, without those that were mounted after the call. Takes about as long as reading
/// one mount table, if the daemon or the caller is in its namespace.
pub(super) fn first(proc: &Proc, request: &ScanRequest, deadline: Deadline) -> Located {
    let members = near_members(proc, request, &deadline);
    if let Some(found) = meant(proc, request, &members) {
        return found;
    }
    let mut found = Located::from(empty(request));
    if let Some(group) = cgroup(proc, request, &members) {
        (found.report.path, found.report.inside) = (group.path, Some(group.fstype));
        found.report.verdict = Verdict::NotAMount;
        return found;
    }
    let located = locate(proc, request, &members, deadline, &mut found.report);
    let Some(Found { seen, mount: Some(top), may_be_replaced }) = located else { return found };
    found.may_be_replaced = may_be_replaced;
    found.report.resolved = Some(boot_now());
    let namespace = presence::namespace_of(proc, seen.tgid, &seen.process).ok();
    let unique = |mount: &Mount| namespace.as_ref().and_then(|namespace| namespace.unique_id(mount));
    let newest = request.origin.as_ref().and_then(|origin| origin.table?.newest);
    let is_newer = |unique: Option<u64>| unique.zip(newest).is_some_and(|(unique, newest)| unique > newest);
    let below = |mount: &Mount| {
        let below = seen.table.by_id(mount.parent).filter(|below| below.id != mount.id);
        below.filter(|below| below.mountpoint == mount.mountpoint).cloned()
    };
    let (mut id, mut mount) = (unique(&top), top);
    while is_newer(id) {
        let Some(older) = below(&mount) else {
            found.lost = Some(Uncertainty::Covered);
            return found;
        };
        (id, mount) = (unique(&older), older);
    }
    // In a chroot it would not be found again.
    if seen.root == "/" {
        found.report.mount = Some(mount.facts(request.mntns, id));
    }
    found
}

/// The mount that the kernel found itself; `None` where it did not show that, or where all processes are in a chroot, which may
/// hide it.
fn meant(proc: &Proc, request: &ScanRequest, members: &[Member]) -> Option<Located> {
    let origin = request.origin.as_ref()?;
    // What a caller shows to others while it calls is told as that.
    let target = origin.target.filter(|_| matches!(origin.doubt, None | Some(PathUncertainty::ReadLate)))?;
    let mut seen = seen_by_any(proc, members, request.mntns);
    let seen = seen.find(|seen| seen.root == "/")?;
    let mut found = Located::from(empty(request));
    found.report.resolved = Some(boot_now());
    let with_id = seen.table.by_id(target.id);
    if with_id.is_none() && seen.table.is_cut() {
        return None;
    }
    let unique = with_id.and_then(|mount| unique_id(proc, &seen, mount));
    let is_another = unique.is_some() && target.unique.is_some() && unique != target.unique;
    match with_id.filter(|_| !is_another) {
        Some(mount) => {
            found.is_meant = unique.is_some() && target.unique.is_some();
            found.report.path = mount.mountpoint.clone();
            found.report.mount = Some(mount.facts(request.mntns, unique));
        }
        None => found.lost = Some(Uncertainty::Gone),
    }
    Some(found)
}

/// A directory in a hierarchy of control groups, which is busy as long as processes are in it.
struct Cgroup {
    path: String,
    fstype: String,
}

/// Where a path leads that is below the mount point of such a hierarchy, and on nothing that is mounted below that. There are no
/// links in it, nor in the path of a mount point; so the text alone tells, which nothing is to be looked up for.
fn cgroup(proc: &Proc, request: &ScanRequest, members: &[Member]) -> Option<Cgroup> {
    let path = target::text(request)?;
    let mut seen = seen_by_any(proc, members, request.mntns);
    let seen = seen.find(|seen| seen.root == "/" && !seen.table.is_cut())?;
    let on = seen.table.covering(&path).filter(|on| on.mountpoint != path)?;
    matches!(on.fstype.as_str(), "cgroup" | "cgroup2").then(|| Cgroup { path, fstype: on.fstype.clone() })
}

fn empty(request: &ScanRequest) -> HolderReport {
    let skipped = HolderReport::skipped(request.id, request.path.clone());
    HolderReport { complete: true, verdict: Verdict::Incomplete, ..skipped }
}

/// Members of the namespace of a request: the daemon and the caller, else all.
pub(super) fn near_members(proc: &Proc, request: &ScanRequest, deadline: &Deadline) -> Vec<Member> {
    let own = own_tgid(proc);
    let named = own.into_iter().chain([request.tgid]).map(|tgid| Member { tgid, tid: tgid });
    let members: Vec<Member> =
        named.filter(|member| proc.ns(member.tgid, "mnt") == Some(request.mntns)).collect();
    if !members.is_empty() {
        return members;
    }
    let index = MntnsIndex::build(proc, deadline).unwrap_or_default();
    best_members(&index, request, own)
}
