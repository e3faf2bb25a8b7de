//! Where an unmount propagates: the mount and the tables of all namespaces go in; what the kernel would unmount along with it
//! comes out, and the copies that it would not.
//!
//! An unmount propagates from the mount below the target to that one's peers and slaves, and to theirs, at
//! the same place of each (`propagate_mount_busy`, fs/pnode.c). It is refused when what is mounted there is in use: as a rule
//! a copy, but whoever has a namespace of his own can unmount that and mount something else in its place. A copy that it does
//! not propagate to keeps the file system alive, but refuses nothing.

use std::collections::{BTreeMap, BTreeSet};

use kevtmon_observation::NsInum;
use kevtmon_sources::procfs::mountinfo::{Mount, MountTable};
use serde::{Deserialize, Serialize};

/// Peer groups that are remembered: a user can make as many as he likes.
const GROUPS_MAX: usize = 1 << 14;

#[derive(Debug)]
pub(super) struct NamespaceMounts {
    pub(super) ns: NsInum,
    pub(super) table: MountTable,
}

/// A copy of the target, or what is mounted where there would be one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MountCopy<'a> {
    pub(super) ns: NsInum,
    pub(super) mount: &'a Mount,
    /// Whether an unmount of the target propagates to it.
    pub(super) propagated: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Copies<'a> {
    pub(super) found: Vec<MountCopy<'a>>,
    /// Whether of one of them it cannot be told whether the unmount propagates to it: it receives from a peer group of which no
    /// mount is seen.
    pub(super) is_unclear: bool,
}

/// Where the target sits, on a mount that shares what happens there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AttachPoint {
    /// Of the mount below: its file system, and its peer group.
    device: String,
    group: u64,
    /// Path within that file system.
    path: String,
}

impl AttachPoint {
    /// `None` where the mount below is private, so that no unmount on it reaches any other.
    pub(super) fn of(target: &Mount, table: &MountTable) -> Option<Self> {
        let below = table.attachment(target)?;
        let (device, group) = (below.parent.device.clone(), below.parent.shared?);
        Some(Self { device, group, path: below.path })
    }

    /// Whether what happens there may reach a mount of this file system, by whether it shares or receives what is mounted on it.
    pub(super) fn may_reach(&self, device: &str, propagates: bool) -> bool {
        propagates && device == self.device
    }

    /// The mounts of a table that sit at the same place of a mount which it may reach.
    pub(super) fn mounts<'t>(&self, table: &'t MountTable) -> Vec<(&'t Mount, &'t Mount)> {
        let may_reach = |mount: &&Mount| self.may_reach(&mount.device, mount.propagates());
        let below: BTreeMap<u64, &Mount> =
            table.iter().filter(may_reach).map(|mount| (mount.id, mount)).collect();
        let sits = |mount: &'t Mount| {
            let parent = below.get(&mount.parent).copied().filter(|parent| parent.id != mount.id)?;
            (mount.place_on(parent)? == self.path).then_some((mount, parent))
        };
        table.iter().filter_map(sits).collect()
    }
}

/// The peer groups of the file system on which the target sits, each with the one that it receives from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PeerGroups(BTreeMap<u64, Option<u64>>);

impl PeerGroups {
    /// Adds those of a table. False where there are too many.
    pub(super) fn add(&mut self, at: &AttachPoint, table: &MountTable) -> bool {
        for mount in table.iter().filter(|mount| mount.device == at.device) {
            if let Some(shared) = mount.shared {
                if self.0.len() >= GROUPS_MAX && !self.0.contains_key(&shared) {
                    return false;
                }
                self.0.insert(shared, mount.master);
            }
        }
        true
    }

    /// Whether a mount gets what happens in a group; `None` where a group in between is not seen.
    fn receives(&self, mount: &Mount, from: u64) -> Option<bool> {
        if mount.shared == Some(from) {
            return Some(true);
        }
        let mut next = mount.master;
        for _ in 0..=self.0.len() {
            match next {
                None => return Some(false),
                Some(group) if group == from => return Some(true),
                Some(group) => next = *self.0.get(&group)?,
            }
        }
        None
    }
}

/// Every other mount of the same directory of the same file system, or what else `touches` it, and whatever else an unmount
/// propagates to. The first view is the target's own.
pub(super) fn copies<'a>(
    views: &'a [NamespaceMounts],
    (at, groups): (Option<&AttachPoint>, &PeerGroups),
    target: &Mount,
    touches: impl Fn(&Mount) -> bool,
) -> Copies<'a> {
    let mut copies = Copies::default();
    for view in views {
        let mut reached: BTreeSet<u64> = BTreeSet::new();
        for (at, (mount, parent)) in
            at.iter().flat_map(|at| at.mounts(&view.table).into_iter().map(move |on| (at, on)))
        {
            if mount.id == target.id || has_children(&view.table, mount) {
                continue;
            }
            match groups.receives(parent, at.group) {
                Some(true) => drop(reached.insert(mount.id)),
                Some(false) => {}
                None => copies.is_unclear = true,
            }
        }
        for mount in view.table.iter().filter(|mount| mount.id != target.id) {
            let propagated = reached.contains(&mount.id);
            if propagated || touches(mount) {
                copies.found.push(MountCopy { ns: view.ns, mount, propagated });
            }
        }
    }
    copies
}

/// Whether something is mounted on what an unmount would reach, other than one mount that covers all of it: the unmount leaves
/// it alone then, and who uses it refuses nothing.
fn has_children(table: &MountTable, mount: &Mount) -> bool {
    let mut children = table.children(mount.id);
    match (children.next(), children.next()) {
        (Some(only), None) => only.mountpoint != mount.mountpoint,
        (first, _) => first.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mount ids of the copies, and whether they are propagated. The target is mount 2 of the first view.
    fn propagated(views: &[&str]) -> Vec<(u64, bool)> {
        let views: Vec<NamespaceMounts> = (1..)
            .zip(views)
            .map(|(ns, text)| NamespaceMounts { ns, table: MountTable::parse(text, "/") })
            .collect();
        let target = views[0].table.by_id(2).unwrap();
        let (at, mut groups) = (AttachPoint::of(target, &views[0].table), PeerGroups::default());
        for (at, view) in at.iter().flat_map(|at| views.iter().map(move |view| (at, view))) {
            assert!(groups.add(at, &view.table));
        }
        let copies = copies(&views, (at.as_ref(), &groups), target, |mount| mount.is_copy_of(target));
        let mut found: Vec<_> = copies.found.iter().map(|copy| (copy.mount.id, copy.propagated)).collect();
        // Stands for what is not clear.
        found.extend(copies.is_unclear.then_some((0, false)));
        found
    }

    const SHARED: &str = "1 0 8:1 / / rw shared:1 - ext4 d rw\n2 1 0:9 / /vol rw shared:2 - tmpfs t rw\n";

    #[test]
    fn a_copy_below_a_slave_or_peer_of_the_parent_gets_the_unmount() {
        let slave = "10 0 8:1 / / rw master:1 - ext4 d rw\n11 10 0:9 / /vol rw master:2 - tmpfs t rw\n";
        let peer = "20 0 8:1 / / rw shared:1 - ext4 d rw\n21 20 0:9 / /vol rw - tmpfs t rw\n";
        assert_eq!(propagated(&[SHARED, slave, peer]), [(11, true), (21, true)]);
    }

    #[test]
    fn a_private_copy_does_not_get_the_unmount() {
        let private = "10 0 8:1 / / rw - ext4 d rw\n11 10 0:9 / /vol rw - tmpfs t rw\n";
        assert_eq!(propagated(&[SHARED, private]), [(11, false)]);
        let private_here = "1 0 8:1 / / rw - ext4 d rw\n2 1 0:9 / /vol rw shared:2 - tmpfs t rw\n";
        let peer_of_it = "10 0 8:1 / / rw - ext4 d rw\n11 10 0:9 / /vol rw shared:2 - tmpfs t rw\n";
        assert_eq!(propagated(&[private_here, peer_of_it]), [(11, false)]);
    }

    #[test]
    fn a_slave_of_a_slave_gets_the_unmount() {
        let middle = "10 0 8:1 / / rw shared:5 master:1 - ext4 d rw\n11 10 0:9 / /vol rw - tmpfs t rw\n";
        let last = "20 0 8:1 / / rw master:5 - ext4 d rw\n21 20 0:9 / /vol rw - tmpfs t rw\n";
        assert_eq!(propagated(&[SHARED, last, middle]), [(21, true), (11, true)]);
    }

    #[test]
    fn the_host_seen_below_another_directory_gets_the_unmount_at_the_same_path_only() {
        let below = "10 0 8:2 / / rw - ext4 c rw\n11 10 8:1 / /host rw master:1 - ext4 d rw\n\
                     12 11 0:9 / /host/vol rw - tmpfs t rw\n13 11 0:9 / /host/other rw - tmpfs t rw\n";
        assert_eq!(propagated(&[SHARED, below]), [(12, true), (13, false)]);
    }

    #[test]
    fn a_bind_mount_elsewhere_in_the_same_namespace_does_not_get_the_unmount() {
        let bound = format!("{SHARED}3 1 0:9 / /other rw shared:2 - tmpfs t rw\n");
        assert_eq!(propagated(&[&bound]), [(3, false)]);
    }

    #[test]
    fn a_copy_on_which_something_is_mounted_does_not_get_the_unmount_unless_that_covers_it() {
        let with = |at: &str| {
            format!(
                "10 0 8:1 / / rw master:1 - ext4 d rw\n11 10 0:9 / /vol rw - tmpfs t rw\n\
                 12 11 0:8 / {at} rw - tmpfs u rw\n"
            )
        };
        assert_eq!(propagated(&[SHARED, &with("/vol/sub")]), [(11, false)]);
        assert_eq!(propagated(&[SHARED, &with("/vol")]), [(11, true)]);
        let two = format!("{}13 11 0:7 / /vol/b rw - tmpfs u rw\n", with("/vol"));
        assert_eq!(propagated(&[SHARED, &two]), [(11, false)]);
    }

    #[test]
    fn a_mount_of_another_directory_of_the_file_system_is_no_copy() {
        let sub = "10 0 8:1 / / rw master:1 - ext4 d rw\n11 10 0:9 /sub /else rw - tmpfs t rw\n";
        assert_eq!(propagated(&[SHARED, sub]), []);
        assert_eq!(propagated(&[SHARED, &sub.replace("/else", "/vol")]), [(11, true)], "but reached, as any");
    }

    #[test]
    fn what_somebody_has_mounted_in_the_place_of_his_copy_gets_the_unmount_whatever_it_is() {
        let parent = "10 0 8:1 / / rw master:1 - ext4 d rw\n";
        let own = format!("{parent}11 10 0:50 / /vol rw - tmpfs own rw\n");
        assert_eq!(propagated(&[SHARED, &own]), [(11, true)]);
        // Only what is directly there, whatever covers it.
        let covered = format!("{own}12 11 0:51 / /vol rw - tmpfs cover rw\n");
        assert_eq!(propagated(&[SHARED, &covered]), [(11, true)]);
        let beneath = format!("{own}12 11 0:9 / /vol rw - tmpfs t rw\n");
        assert_eq!(propagated(&[SHARED, &beneath]), [(11, true), (12, false)], "the copy was put on it");
        let nested = format!("{own}12 11 0:51 / /vol/in rw - tmpfs in rw\n");
        assert_eq!(propagated(&[SHARED, &nested]), [], "the unmount leaves it alone");
        for other in ["11 10 0:50 / /volume rw - tmpfs own rw\n", "11 10 0:50 / / rw - tmpfs own rw\n"] {
            assert_eq!(propagated(&[SHARED, &format!("{parent}{other}")]), []);
        }
        let private = "10 0 8:1 / / rw - ext4 d rw\n11 10 0:50 / /vol rw - tmpfs own rw\n";
        assert_eq!(propagated(&[SHARED, private]), []);
    }

    #[test]
    fn where_the_group_that_a_mount_receives_from_is_not_seen_that_is_not_taken_for_none() {
        let last = "20 0 8:1 / / rw master:5 - ext4 d rw\n21 20 0:9 / /vol rw - tmpfs t rw\n";
        assert_eq!(propagated(&[SHARED, last]), [(21, false), (0, false)]);
        let elsewhere = "30 0 8:1 / / rw shared:5 - ext4 d rw\n";
        assert_eq!(propagated(&[SHARED, last, elsewhere]), [(21, false)], "a group of its own");
    }
}
