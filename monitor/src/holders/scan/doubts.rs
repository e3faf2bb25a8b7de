//! What a scan could not look into: processes that may not be read, and mounts that nobody shows.

use super::Scan;
use crate::holders::mntns_index::{self, MntnsIndex, Shown};
use crate::holders::pins::Visit;
use crate::holders::scope::Scope;
use crate::observation::Access;
use crate::sources::procfs::dir::{Dir, is_gone};
use crate::sources::procfs::mountinfo::Mount;
use crate::sources::procfs::statmount::MountNamespace;

/// Why not all mounts of a namespace are known.
pub(super) const TOO_LONG: &str = "its mount namespace has more mounts, or longer names, than are read";

impl Scan<'_> {
    /// Where all processes of a namespace are in a chroot, or it has more mounts than are read, they may hold a copy that is
    /// not seen.
    pub(super) fn doubt_what_is_hidden(&mut self, shown: &Shown, target: &Mount) {
        let Some(member) = shown.hidden_from else { return };
        let Some(task) = member.dir(self.proc) else { return };
        let namespace = MountNamespace::of(&task);
        if !matches!(namespace.map(|all| all.hides_copy(target, &shown.table)), Ok(Ok(false))) {
            let reason = match shown.table.is_cut() {
                true => TOO_LONG,
                false => {
                    "every process of its mount namespace is in a chroot, and mounts outside of it are not seen"
                }
            };
            self.blind_to(member.tgid, reason);
        }
    }

    /// Counts the processes that may not be read. Those that see the mount, or whose mounts cannot be known
    /// either, could be what is looked for.
    pub(super) fn count_unreadable(&mut self, index: &MntnsIndex, scope: &Scope<'_>) {
        let own = self.own;
        let unreadable = index.unreadable.iter().copied();
        let unreadable = unreadable.filter(|tgid| Some(*tgid) != own && self.progress.is_about(*tgid));
        for tgid in unreadable.collect::<Vec<_>>() {
            let blind = match mntns_index::mounts_of_unreadable(self.proc, tgid) {
                Ok(table) => table.is_cut() || table.iter().any(|mount| scope.touches(mount)),
                Err(error) if is_gone(&error) => continue,
                Err(_) => self.proc.is_alive(tgid),
            };
            self.count_as_unreadable(tgid);
            if blind {
                self.blind_to(tgid, "its descriptors may not be read");
            }
        }
    }

    /// What could not be told of a process that was looked at.
    pub(super) fn doubt(&mut self, tgid: u32, process: &Dir, visit: &Visit, near: bool) {
        // The kernel also refuses what it can no longer find.
        if visit.refused && process.is_there(&mut Vec::new()) {
            self.add_unreadable(tgid, near);
        }
        if visit.is_named_by_ring && process.is_there(&mut Vec::new()) {
            self.blind_to(tgid, "a file of a name on it is registered with an io_uring of it, and on which mount cannot be told");
        }
        if visit.keeps_unknown && process.is_there(&mut Vec::new()) {
            self.blind_to(
                tgid,
                "it keeps a mount namespace without a process, whose mounts this kernel does not show",
            );
        }
        if !visit.doubts.is_empty() && visit.pins.is_empty() && process.is_there(&mut Vec::new()) {
            let is_socket = |access: &Access| *access == Access::Socket;
            if visit.doubts.iter().any(is_socket) {
                self.blind_to(tgid, "a socket of it is bound to a file, but on which mount cannot be told");
            }
            if !visit.doubts.iter().all(is_socket) {
                self.blind_to(tgid, "it uses something of this name, but on which mount cannot be told");
            }
        }
        if visit.is_sent_files && process.is_there(&mut Vec::new()) {
            self.blind_to(
                tgid,
                "a socket of it has files that nobody has received yet, on mounts that are not known",
            );
        }
        if visit.has_more_sockets && process.is_there(&mut Vec::new()) {
            self.blind_to(tgid, "it has more sockets than there was time to look for files in");
        }
    }

    fn count_as_unreadable(&mut self, tgid: u32) {
        if self.progress.unreadable.insert(tgid) {
            self.report.unreadable += 1;
        }
    }

    pub(super) fn add_unreadable(&mut self, tgid: u32, near: bool) {
        self.count_as_unreadable(tgid);
        if near {
            self.blind_to(tgid, "it may not be read");
        }
    }

    /// A process that could be a holder was not looked into.
    pub(super) fn blind_to(&mut self, tgid: u32, reason: &str) {
        let comm = self.proc.stat(tgid).map(|stat| stat.comm);
        let reason = if self.proc.is_aside(tgid) { "whoever reads it hangs" } else { reason };
        self.report.blind_spot(Some((tgid, comm)), reason);
    }
}
