//! Whether a mount is still in its namespace: looked up in the mount table of a living process of that namespace.
//!
//! By its unique id where the kernel has one, else by all that makes its identity, never by path: what is mounted
//! at the same path now may be another mount. No path is walked, unless whether it leads to the mount is what is asked.

use std::io;

use kevtmon_observation::{MountIdentity, MountPresence, NsInum};
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::dir::{Buffer, Dir};
use kevtmon_sources::procfs::mountinfo::MountTable;
use kevtmon_sources::procfs::statmount::MountNamespace;
use serde::{Deserialize, Serialize};

use super::mntns_index::namespace;
use super::{Deadline, ScanRequest, TOO_LONG, own_tgid};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PresenceRequest {
    /// Returned in the reply.
    pub id: u64,
    pub mntns: NsInum,
    /// A process that was in it; it may be gone already.
    pub tgid: u32,
    pub identity: MountIdentity,
    /// A path that must lead to it.
    pub at: Option<Box<ScanRequest>>,
}

/// Answers a request. Takes about as long as reading one mount table, or the links of all processes if the one that
/// is named is gone.
pub(super) fn presence(proc: &Proc, request: &PresenceRequest, deadline: Deadline) -> MountPresence {
    let unknown = |reason| MountPresence::unknown(request.id, reason);
    let known = |present| MountPresence::known(request.id, present);
    let mut in_chroot = false;
    let named = own_tgid(proc).into_iter().chain([request.tgid]);
    let all = std::iter::once_with(|| proc.pids().unwrap_or_default()).flatten();
    for tgid in named.chain(all) {
        if deadline.is_over() {
            return unknown("time ran out before a process of its mount namespace was found");
        }
        let Some(process) = member(proc, tgid, request.mntns) else { continue };
        if let Some(unique) = request.identity.unique
            && let Some(present) =
                namespace_of(proc, tgid, &process).ok().and_then(|namespace| namespace.has(unique))
            && is_member(&process, request.mntns)
        {
            return known(present);
        }
        let Some((table, is_whole)) = table_of(&process, request.mntns) else { continue };
        match find(&table, &request.identity) {
            Some(true) => return known(true),
            Some(false) if table.is_cut() => {
                return unknown(TOO_LONG);
            }
            Some(false) if is_whole => return known(false),
            // A process in a chroot does not see all mounts.
            Some(false) => in_chroot = true,
            None => {
                return unknown(
                    "a mount with its id is at another place: it was moved, or the id was reused",
                );
            }
        }
    }
    match in_chroot {
        true => unknown("only processes in a chroot are left in its mount namespace"),
        false => unknown("no process in its mount namespace has mounts that can be read"),
    }
}

/// Whether the table has the mount; `None` if it has one that may be the same.
fn find(table: &MountTable, identity: &MountIdentity) -> Option<bool> {
    let Some(found) = table.by_id(u64::from(identity.mount_id)) else {
        return Some(false);
    };
    if found.device != identity.device || found.root != identity.root {
        return Some(false);
    }
    // The place of a mount can change.
    let is_there = found.parent == u64::from(identity.parent_id) && found.mountpoint == identity.mount_point;
    is_there.then_some(true)
}

fn member(proc: &Proc, tgid: u32, mntns: NsInum) -> Option<Dir> {
    proc.dir(tgid).ok().filter(|process| is_member(process, mntns))
}

fn is_member(process: &Dir, mntns: NsInum) -> bool {
    matches!(namespace(process, &mut Buffer::default()), Ok(Some(ns)) if ns == mntns)
}

/// The namespace of a process; our own needs no handle.
pub(super) fn namespace_of(proc: &Proc, tgid: u32, process: &Dir) -> io::Result<MountNamespace> {
    match own_tgid(proc) {
        Some(own) if own == tgid => Ok(MountNamespace::own()),
        _ => MountNamespace::of(process),
    }
}

/// The mounts that a process sees, and whether these are all; `None` if it has entered another namespace meanwhile, or
/// sees none.
fn table_of(process: &Dir, mntns: NsInum) -> Option<(MountTable, bool)> {
    let root = process.link(c"root", &mut Buffer::default()).ok()?.into_owned();
    let table = process.mount_table(&root, |_| true).ok()?;
    (is_member(process, mntns) && !table.is_empty()).then_some((table, root == "/"))
}
