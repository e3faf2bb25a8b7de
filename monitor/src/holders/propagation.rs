//! Where an unmount propagates: the mount and the tables of all namespaces go in; the copies that the kernel
//! would unmount along with it come out, and those that it would not.
//!
//! An unmount propagates from the mount below the target to that one's peers and slaves, and to theirs, at
//! the same place of each (`propagate_mount_busy`, fs/pnode.c). It is refused when one of the copies found
//! there is in use. A copy that it does not propagate to keeps the file system alive, but refuses nothing.

use std::collections::BTreeSet;

use crate::observation::NsInum;
use crate::sources::procfs::mountinfo::{Mount, MountTable};

/// The mounts of one namespace.
#[derive(Debug)]
pub(super) struct NamespaceMounts {
    pub(super) ns: NsInum,
    pub(super) table: MountTable,
}

/// A copy of the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MountCopy<'a> {
    pub(super) ns: NsInum,
    pub(super) mount: &'a Mount,
    /// Whether an unmount of the target propagates to it.
    pub(super) propagated: bool,
}

/// Every other mount of the same directory of the same file system, or what else `touches` it. The first view is the
/// target's own.
pub(super) fn copies<'a>(
    views: &'a [NamespaceMounts],
    target: &Mount,
    touches: impl Fn(&Mount) -> bool,
) -> Vec<MountCopy<'a>> {
    let attachment = views.first().and_then(|view| view.table.attachment(target));
    let groups = attachment
        .as_ref()
        .and_then(|attachment| attachment.parent.shared)
        .map(|group| receivers(group, views));
    let mut copies = Vec::new();
    for view in views {
        for mount in view.table.iter().filter(|mount| mount.id != target.id && touches(mount)) {
            let propagated = match (&groups, &attachment, view.table.attachment(mount)) {
                (Some(groups), Some(attachment), Some(other)) => {
                    let member = |group: Option<u64>| group.is_some_and(|group| groups.contains(&group));
                    other.path == attachment.path
                        && !has_children(&view.table, mount)
                        && other.parent.device == attachment.parent.device
                        && (member(other.parent.shared) || member(other.parent.master))
                }
                _ => false,
            };
            copies.push(MountCopy { ns: view.ns, mount, propagated });
        }
    }
    copies
}

/// Whether something is mounted on a copy, other than one mount that covers all of it: the unmount leaves it alone then,
/// and who uses it refuses nothing.
fn has_children(table: &MountTable, mount: &Mount) -> bool {
    let mut children = table.children(mount.id);
    match (children.next(), children.next()) {
        (Some(only), None) => only.mountpoint != mount.mountpoint,
        (first, _) => first.is_some(),
    }
}

/// The peer groups that receive what happens in this one.
fn receivers(group: u64, views: &[NamespaceMounts]) -> BTreeSet<u64> {
    let mut groups = BTreeSet::from([group]);
    loop {
        let before = groups.len();
        for mount in views.iter().flat_map(|view| view.table.iter()) {
            if let (Some(shared), Some(master)) = (mount.shared, mount.master)
                && groups.contains(&master)
            {
                groups.insert(shared);
            }
        }
        if groups.len() == before {
            return groups;
        }
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
        let copies = copies(&views, target, |mount| mount.is_copy_of(target));
        copies.iter().map(|copy| (copy.mount.id, copy.propagated)).collect()
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
        let sub = "10 0 8:1 / / rw master:1 - ext4 d rw\n11 10 0:9 /sub /vol rw - tmpfs t rw\n";
        assert_eq!(propagated(&[SHARED, sub]), []);
    }
}
