//! Which mount a scan is about: a request goes in; the mount comes out, seen by a process of its namespace.

use super::mntns_index::{self, Member, MntnsIndex, Seen};
use super::resolve::{Unresolved, View};
use super::{Deadline, ScanRequest, own_tgid, presence, target};
use crate::error_chain::chain;
use crate::observation::{HolderReport, MountFacts, MountIdentity, MountPresence, PathDoubt, Verdict};
use crate::sources::procfs::Proc;
use crate::sources::procfs::mountinfo::Mount;

/// Finds the mount that the path leads to, in the view of a process of the namespace; no mount where nothing is
/// mounted, `None` where that is not known.
pub(super) fn locate(
    proc: &Proc,
    request: &ScanRequest,
    members: &[Member],
    deadline: Deadline,
    report: &mut HolderReport,
) -> Option<(Seen, Option<Mount>)> {
    if let Some(doubt) = request.origin.as_ref().and_then(|origin| origin.doubt) {
        report.blind_spot(None, doubt.reason());
        if doubt != PathDoubt::ReadLate {
            return None;
        }
    }
    let mut seen = members
        .iter()
        .take(mntns_index::MAX_TRIES)
        .filter_map(|member| mntns_index::seen_by(proc, *member, request.mntns));
    if let Some(meant) = target::descriptor(proc, request) {
        let reason = "the path names a file that the caller has open, or had";
        report.blind_spot(None, reason);
        report.path = meant?;
        let seen = seen.next()?;
        let mount = seen.table.at(&report.path).cloned();
        return mount.is_some().then_some((seen, mount));
    }
    let mut failed = Unresolved::NoProcess;
    match target::origin(proc, request) {
        Err(error) => failed = error,
        Ok(origin) => {
            for seen in seen.take_while(|_| !deadline.is_over()) {
                let view = View::open(&seen.process, &seen.root, &seen.table);
                match view.and_then(|view| view.resolve(&origin)) {
                    Ok(resolved) => {
                        report.path = resolved.path;
                        if seen.root != "/" {
                            let reason = "only processes in a chroot are left in its mount namespace";
                            report.blind_spot(None, reason);
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
    report.blind_spot(None, &format!("the path cannot be resolved: {}", chain(&failed)));
    None
}

/// Finds a mount again that a scan has found before; no mount where it is gone, `None` where that is not known.
pub(super) fn again(proc: &Proc, known: &MountFacts, members: &[Member]) -> Option<(Seen, Option<Mount>)> {
    let mut seen = members
        .iter()
        .take(mntns_index::MAX_TRIES)
        .filter_map(|member| mntns_index::seen_by(proc, *member, known.mntns));
    let seen = seen.find(|seen| seen.root == "/")?;
    let is_it = |mount: &&Mount| {
        let found = facts(proc, &seen, mount, known).identity();
        found.is_some_and(|found| known.identity().is_some_and(|known| known.is_same(&found)))
    };
    let mount = seen.table.by_id(known.id).filter(is_it).cloned();
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

/// Whether the path of a request leads to this mount now. Takes about as long as reading one mount table, if the daemon
/// or the caller is in its namespace.
pub(super) fn leads_to(
    proc: &Proc,
    request: &ScanRequest,
    identity: &MountIdentity,
    deadline: Deadline,
) -> MountPresence {
    let own = own_tgid(proc);
    let skipped = HolderReport::skipped(request.id, request.path.clone());
    let mut report = HolderReport { complete: true, verdict: Verdict::Incomplete, ..skipped };
    let named = own.into_iter().chain([request.tgid]).map(|tgid| Member { tgid, tid: tgid });
    let mut members: Vec<Member> =
        named.filter(|member| proc.ns(member.tgid, "mnt") == Some(request.mntns)).collect();
    if members.is_empty() {
        let index = MntnsIndex::build(proc, &deadline).unwrap_or_default();
        members = best_members(&index, request, own);
    }
    let located = locate(proc, request, &members, deadline, &mut report);
    let Some((seen, mount)) = located.filter(|_| report.complete) else {
        let reason = report.blind_spots.pop().map_or_else(String::new, |spot| spot.reason);
        return MountPresence::unknown(request.id, reason);
    };
    let found = mount.and_then(|mount| {
        let unique = unique_id(proc, &seen, &mount);
        mount.facts(request.mntns, unique).identity()
    });
    let is_same = found.is_some_and(|found| found.is_same(identity));
    MountPresence { id: request.id, present: Some(is_same), reason: None }
}
