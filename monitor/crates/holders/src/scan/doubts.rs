//! What a scan could not look into: processes that may not be read, and mounts that nobody shows.

use kevtmon_observation::Access;
use kevtmon_sources::procfs::dir::{Dir, is_gone};
use kevtmon_sources::procfs::statmount::MountNamespace;

use super::Scan;
use crate::mntns_index::{MntnsIndex, Shown};
use crate::pins::Visit;
use crate::scope::Scope;
use crate::{READS_HANG, TOO_LONG};

/// Why it is not known what an unmount reaches.
pub(super) const UNSEEN_GROUP: &str =
    "a mount that the unmount could propagate to receives from a peer group that is not visible";

impl Scan<'_> {
    /// Where mounts of a namespace are not seen, as all its processes are in a chroot or it has more than are read, they may hold
    /// one that matters.
    pub(super) fn doubt_what_is_hidden(&mut self, shown: &Shown, scope: &Scope<'_>) {
        let Some(member) = shown.hidden_from else { return };
        let Some(task) = member.dir(self.proc) else { return };
        let namespace = MountNamespace::of(&task);
        let may_matter = |device: &str, propagates| scope.may_be_near_of(device, propagates);
        if !matches!(namespace.and_then(|all| all.has_one(may_matter)), Ok(false)) {
            let reason = match shown.table.is_cut() {
                true => TOO_LONG,
                false => {
                    "every process of its mount namespace is in a chroot; mounts outside of it are not visible"
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
        self.count_unread(unreadable.filter(|tgid| Some(*tgid) != own), scope);
    }

    pub(super) fn count_unread(&mut self, tgids: impl Iterator<Item = u32>, scope: &Scope<'_>) {
        for tgid in tgids {
            // Its own root may hide some.
            let blind = match self.proc.dir(tgid).and_then(|dir| dir.mount_table("/", |_| true)) {
                Ok(table) => table.is_cut() || scope.matters(&table),
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
        let is_certain = visit.pins.iter().any(|pin| !pin.possible);
        let is_socket = |access: &&Access| **access == Access::Socket;
        let (sockets, others): (Vec<&Access>, Vec<&Access>) =
            visit.doubts.iter().filter(|_| !is_certain).partition(is_socket);
        let by_name = [
            (&sockets, "it has a socket bound to a file; the mount is unknown"),
            (&others, "it uses a file or directory of this name; the mount is unknown"),
        ];
        let by_name = by_name.into_iter().filter(|(of, _)| !of.is_empty()).map(|(_, why)| why);
        for why in by_name.chain(visit.unclear.iter().map(String::as_str)) {
            if process.is_there(&mut Vec::new()) {
                self.blind_to(tgid, why);
            }
        }
    }

    fn count_as_unreadable(&mut self, tgid: u32) {
        if self.progress.unreadable.insert(tgid) {
            self.report.unreadable += 1;
        }
    }

    pub(super) fn add_unreadable(&mut self, tgid: u32, near: bool) {
        self.count_as_unreadable(tgid);
        // By the kernel's list it has something of the file system.
        if near || self.listed.as_ref().is_some_and(|listed| listed.names(tgid)) {
            self.blind_to(tgid, "it may not be read");
        }
    }

    /// A process that could be a holder was not looked into.
    pub(super) fn blind_to(&mut self, tgid: u32, reason: &str) {
        let comm = self.proc.stat(tgid).map(|stat| stat.comm);
        let reason = if self.proc.is_aside(tgid) { READS_HANG } else { reason };
        self.report.blind_spot(Some((tgid, comm)), reason);
    }
}
