//! The mounts of the host, with the copies in other namespaces that an unmount there reaches: of the same directory, on a mount
//! that shares or receives what is mounted on it. That is more than are reached; once the mount is detached, it is looked which
//! have gone.

use std::collections::BTreeMap;

use kevtmon_observation::{MeantMount, NsInum};
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::mountinfo::{Mount, MountTable, is_of_the_kernel};
use kevtmon_sources::procfs::statmount::MountNamespace;

use super::inventory::is_in_pod;
use crate::attached::{AttachedCopy, AttachedMount};
use crate::mntns_index::Member;

/// Mounts of the host, and copies of all of them, that are told.
const MOUNTS_MAX: usize = 1024;
const COPIES_MAX: usize = 4096;
const TRIED: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Reached {
    mounts: Vec<Known>,
    /// Indices of those of a directory of a file system.
    by_directory: BTreeMap<(String, String), Vec<usize>>,
    copies: usize,
    is_cut: bool,
}

#[derive(Debug)]
struct Known {
    mount: AttachedMount,
    mntns: NsInum,
    /// Whether it is a copy that goes with another one of the host's, too.
    is_reached: bool,
}

impl Reached {
    /// Adds the mounts of a namespace that is the host's.
    pub(super) fn add_host(
        &mut self,
        proc: &Proc,
        (mntns, members): (NsInum, &[Member]),
        table: &MountTable,
    ) {
        let is_wanted = |mount: &&Mount| !is_of_the_kernel(&mount.fstype) && mount.mountpoint != "/";
        let mut mounts: Vec<&Mount> = table.iter().filter(is_wanted).collect();
        mounts.sort_by_key(|mount| !is_in_pod(&mount.mountpoint));
        let room = MOUNTS_MAX.saturating_sub(self.mounts.len());
        self.is_cut |= table.is_cut();
        mounts.truncate(room);
        for (found, meant) in mounts.iter().zip(meant(proc, members, &mounts)) {
            let directory = (found.device.clone(), found.root.clone());
            self.by_directory.entry(directory).or_default().push(self.mounts.len());
            let mount = AttachedMount {
                mount: meant,
                device: found.device.clone(),
                fstype: found.fstype.clone(),
                copies: Vec::new(),
                is_all: false,
            };
            self.mounts.push(Known { mount, mntns, is_reached: is_reached(found, table) });
        }
    }

    /// Adds the copies that another namespace has.
    pub(super) fn add_copies(
        &mut self,
        proc: &Proc,
        (mntns, members): (NsInum, &[Member]),
        table: &MountTable,
    ) {
        self.is_cut |= table.is_cut();
        let directory = |mount: &Mount| (mount.device.clone(), mount.root.clone());
        let is_copy =
            |mount: &&Mount| is_reached(mount, table) && self.by_directory.contains_key(&directory(mount));
        let copies: Vec<&Mount> = table.iter().filter(is_copy).collect();
        if copies.is_empty() {
            return;
        }
        for (found, mount) in copies.iter().zip(meant(proc, members, &copies)) {
            let of = self.by_directory.get(&directory(found)).cloned().unwrap_or_default();
            for index in of {
                self.add(index, AttachedCopy { mount, mntns });
            }
        }
    }

    /// All mounts of the host. `is_all`: whether all other namespaces were read.
    pub(super) fn finish(mut self, is_all: bool) -> Vec<AttachedMount> {
        for alike in std::mem::take(&mut self.by_directory).into_values().filter(|alike| alike.len() > 1) {
            for (of, other) in alike.iter().flat_map(|of| alike.iter().map(move |other| (*of, *other))) {
                let Known { mount, mntns, is_reached } = &self.mounts[other];
                if self.mounts[of].mntns != *mntns && *is_reached {
                    let copy = AttachedCopy { mount: mount.mount, mntns: *mntns };
                    self.add(of, copy);
                }
            }
        }
        let is_all = is_all && !self.is_cut;
        self.mounts.into_iter().map(|known| AttachedMount { is_all, ..known.mount }).collect()
    }

    fn add(&mut self, of: usize, copy: AttachedCopy) {
        if self.copies >= COPIES_MAX {
            self.is_cut = true;
            return;
        }
        self.copies += 1;
        self.mounts[of].mount.copies.push(copy);
    }
}

/// Whether it sits where a mount or unmount elsewhere may reach.
fn is_reached(mount: &Mount, table: &MountTable) -> bool {
    table.by_id(mount.parent).is_some_and(|parent| parent.id != mount.id && parent.propagates())
}

/// The ids of mounts of a namespace.
fn meant(proc: &Proc, members: &[Member], mounts: &[&Mount]) -> Vec<MeantMount> {
    let process = members.iter().take(TRIED).find_map(|member| member.dir(proc));
    let by_kernel = process.and_then(|process| MountNamespace::of(&process).ok());
    let unique = by_kernel.map_or_else(|| vec![None; mounts.len()], |namespace| namespace.unique_ids(mounts));
    mounts.iter().zip(unique).map(|(mount, unique)| MeantMount { id: mount.id, unique }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "1 0 8:1 / / rw shared:1 - ext4 d rw\n2 1 0:9 / /v rw shared:2 - tmpfs t rw\n";

    fn copies(others: &[&str]) -> Vec<(NsInum, u64)> {
        let proc = Proc::default();
        let mut reached = Reached::default();
        reached.add_host(&proc, (1, &[]), &MountTable::parse(HOST, "/"));
        for (ns, text) in (2..).zip(others) {
            reached.add_copies(&proc, (ns, &[]), &MountTable::parse(text, "/"));
        }
        let found = reached.finish(true);
        assert_eq!(found.iter().map(|mount| (mount.mount.id, mount.is_all)).collect::<Vec<_>>(), [(2, true)]);
        found[0].copies.iter().map(|copy| (copy.mntns, copy.mount.id)).collect()
    }

    #[test]
    fn what_sits_on_a_mount_that_receives_or_shares_is_reached() {
        let slave = "10 0 8:1 / / rw master:1 - ext4 d rw\n11 10 0:9 / /v rw master:2 - tmpfs t rw\n";
        let peer = "20 0 8:1 / / rw shared:1 - ext4 d rw\n21 20 0:9 / /v rw shared:2 - tmpfs t rw\n";
        let private = "30 0 8:1 / / rw - ext4 d rw\n31 30 0:9 / /v rw - tmpfs t rw\n";
        let part = "40 0 8:1 / / rw master:1 - ext4 d rw\n41 40 0:9 /a /v rw - tmpfs t rw\n";
        assert_eq!(copies(&[slave, peer, private, part]), [(2, 11), (3, 21)]);
    }

    #[test]
    fn a_namespace_of_a_runtime_has_copies_as_well() {
        let proc = Proc::default();
        let mut reached = Reached::default();
        reached.add_host(&proc, (1, &[]), &MountTable::parse(HOST, "/"));
        let runtime = "10 0 8:1 / / rw master:1 - ext4 d rw\n11 10 0:9 / /v rw master:2 - tmpfs t rw\n";
        reached.add_host(&proc, (2, &[]), &MountTable::parse(runtime, "/"));
        let found = reached.finish(false);
        let told = |index: usize| found[index].copies.iter().map(|copy| copy.mount.id).collect::<Vec<_>>();
        assert_eq!(
            (told(0), told(1)),
            (vec![11], vec![2]),
            "whose master is reached by none is found out later"
        );
        assert!(!found[0].is_all);
    }
}
