//! Whether a mount is still in its namespace: looked up in the mount table of a living process of that namespace.
//!
//! By identity, never by path: what is mounted at the same path now may be another mount. No path is walked.

use super::mntns_index::namespace;
use super::{Deadline, own_tgid};
use crate::observation::{MountIdentity, MountPresence, NsInum};
use crate::sources::procfs::Proc;
use crate::sources::procfs::dir::Buffer;
use crate::sources::procfs::mountinfo::MountTable;

/// A request whether a mount is still there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PresenceRequest {
    /// Returned in the reply.
    pub id: u64,
    /// Mount namespace.
    pub mntns: NsInum,
    /// A process that was in it; it may be gone already.
    pub tgid: u32,
    /// The mount.
    pub identity: MountIdentity,
}

/// Answers a request. Takes about as long as reading one mount table, or the links of all processes if the one that
/// is named is gone.
pub(super) fn presence(proc: &Proc, request: &PresenceRequest, deadline: Deadline) -> MountPresence {
    let unknown = |reason| MountPresence::unknown(request.id, reason);
    let known = |present| MountPresence { id: request.id, present: Some(present), reason: None };
    let mut in_chroot = false;
    let named = own_tgid(proc).into_iter().chain([request.tgid]);
    let all = std::iter::once_with(|| proc.pids().unwrap_or_default()).flatten();
    for tgid in named.chain(all) {
        if deadline.is_over() {
            return unknown("the time to look for a process of its mount namespace ran out");
        }
        let Some((table, is_whole)) = table_of(proc, tgid, request.mntns) else { continue };
        match find(&table, &request.identity) {
            Some(true) => return known(true),
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
        false => unknown("no process is left in its mount namespace whose mounts can be read"),
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

/// The mounts that a process sees, if it is in the namespace, and whether these are all.
fn table_of(proc: &Proc, tgid: u32, mntns: NsInum) -> Option<(MountTable, bool)> {
    let (mut buffer, mut text) = (Buffer::default(), Vec::new());
    let process = proc.dir(tgid).ok()?;
    let is_member = |buffer: &mut Buffer| matches!(namespace(&process, buffer), Ok(Some(ns)) if ns == mntns);
    if !is_member(&mut buffer) {
        return None;
    }
    let root = process.link(c"root", &mut buffer).ok()?.into_owned();
    let table = MountTable::parse(&process.text(c"mountinfo", &mut text).ok()?, &root);
    // It may have entered another namespace meanwhile.
    is_member(&mut buffer).then_some((table, root == "/"))
}
