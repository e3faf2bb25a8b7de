//! What of a file system is searched for: all of a mount, or what lies below a path on it.
//!
//! An unmount is refused for those who use that mount, and the copies that go with it. Who uses a directory uses it
//! through any mount of its file system: a volume of a container is a mount of its own.

use std::borrow::Cow;

use kevtmon_observation::NsInum;
use kevtmon_sources::procfs::mountinfo::{Mount, MountTable};

use super::propagation::{AttachPoint, MountCopy};

#[derive(Debug)]
pub(super) struct Scope<'t> {
    pub(super) target: &'t Mount,
    /// Where it sits, if all of it is searched for and an unmount may reach other mounts.
    pub(super) at: Option<AttachPoint>,
    part: Option<Part>,
}

#[derive(Debug)]
struct Part {
    /// The target, as if it was mounted at the path.
    narrowed: Mount,
    /// The path within the file system.
    within: String,
}

impl<'t> Scope<'t> {
    /// What is at this path, which is that of the mount, or lies on it.
    pub(super) fn new(target: &'t Mount, path: &str) -> Self {
        let below = rest(path, &target.mountpoint).filter(|below| !below.is_empty());
        let part = below.map(|below| Part {
            narrowed: Mount { mountpoint: path.to_owned(), ..target.clone() },
            within: joined(&target.root, below),
        });
        Self { target, at: None, part }
    }

    /// With where it sits in its mount table.
    pub(super) fn in_table(self, table: &MountTable) -> Self {
        let at = if self.part.is_none() { AttachPoint::of(self.target, table) } else { None };
        Self { at, ..self }
    }

    /// Whether a namespace may have something that matters which has a mount of this file system, that may share or receive what is
    /// mounted on it: of the file system of the target, or reached by what happens where that sits.
    pub(super) fn may_be_near_of(&self, device: &str, propagates: bool) -> bool {
        device == self.target.device || self.at.as_ref().is_some_and(|at| at.may_reach(device, propagates))
    }

    /// Whether a table shows something of it, or what is mounted where an unmount of it could propagate to.
    pub(super) fn matters(&self, table: &MountTable) -> bool {
        let is_reached = |at: &AttachPoint| !at.mounts(table).is_empty();
        table.iter().any(|mount| self.touches(mount)) || self.at.as_ref().is_some_and(is_reached)
    }

    /// The target as it is searched for: with the path of what counts as its mount point.
    pub(super) fn searched(&self) -> &Mount {
        self.part.as_ref().map_or(self.target, |part| &part.narrowed)
    }

    /// Whether another mount shows something of it.
    pub(super) fn touches(&self, mount: &Mount) -> bool {
        match &self.part {
            Some(part) => part.of(mount, self.target).is_some(),
            None => mount.is_copy_of(self.target),
        }
    }

    /// Whether another mount shows nothing but what is searched for.
    pub(super) fn has_all_of(&self, mount: &Mount) -> bool {
        match &self.part {
            Some(part) => {
                mount.device == self.target.device
                    && is_path(mount)
                    && rest(&mount.root, &part.within).is_some()
            }
            None => mount.is_copy_of(self.target),
        }
    }

    /// What is searched for of another mount, if anything.
    pub(super) fn of_other<'m>(&self, copy: &MountCopy<'m>) -> Option<(NsInum, Cow<'m, Mount>)> {
        let mount = match &self.part {
            Some(part) => part.of(copy.mount, self.target)?,
            // Whatever it is, who uses it refuses the unmount.
            None => Cow::Borrowed(Some(copy.mount).filter(|_| copy.propagated)?),
        };
        Some((copy.ns, mount))
    }
}

impl Part {
    /// The part that a mount has of it, as if it was mounted by itself.
    fn of<'m>(&self, mount: &'m Mount, target: &Mount) -> Option<Cow<'m, Mount>> {
        if mount.device != target.device || !is_path(mount) {
            return None;
        }
        if rest(&mount.root, &self.within).is_some() {
            return Some(Cow::Borrowed(mount));
        }
        let below = rest(&self.within, &mount.root)?;
        Some(Cow::Owned(Mount { mountpoint: joined(&mount.mountpoint, below), ..mount.clone() }))
    }
}

/// Namespaces and the like are mounted by a name that is no path.
fn is_path(mount: &Mount) -> bool {
    mount.root.starts_with('/')
}

/// What of a path comes after another one above it; empty where they are the same.
fn rest<'p>(path: &'p str, above: &str) -> Option<&'p str> {
    let rest = path.strip_prefix(above.trim_end_matches('/'))?;
    (rest.is_empty() || rest.starts_with('/')).then_some(rest.trim_end_matches('/'))
}

fn joined(above: &str, below: &str) -> String {
    format!("{}{below}", above.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "1 0 8:1 / / rw - ext4 d rw\n2 1 8:1 /srv/data /pod rw - ext4 d rw\n\
         3 1 8:1 /srv/data/in /in rw - ext4 d rw\n4 1 8:1 /srv/database /no rw - ext4 d rw\n\
         5 1 8:2 /srv/data /other rw - ext4 e rw\n6 1 8:1 /srv /s rw - ext4 d rw\n";

    /// Where the mounts of the table have something of a path on the mount with this id.
    fn places(id: u64, path: &str) -> Vec<(u64, String)> {
        let table = MountTable::parse(TABLE, "/");
        let scope = Scope::new(table.by_id(id).unwrap(), path);
        let others = table.iter().filter(|mount| mount.id != id);
        let place = |mount: &Mount| {
            let found = scope.of_other(&MountCopy { ns: 1, mount, propagated: false });
            assert_eq!(found.is_some(), scope.touches(mount));
            Some((mount.id, found?.1.mountpoint.clone()))
        };
        others.filter_map(place).collect()
    }

    #[test]
    fn what_lies_below_a_path_is_found_in_every_mount_of_its_file_system() {
        let expected = [(2, "/pod"), (3, "/in"), (6, "/s/data")].map(|(id, place)| (id, place.to_owned()));
        assert_eq!(places(1, "/srv/data"), expected);
        let expected =
            [(2, "/pod/in/x"), (3, "/in/x"), (6, "/s/data/in/x")].map(|(id, place)| (id, place.to_owned()));
        assert_eq!(places(1, "/srv/data/in/x"), expected);
        let expected = [(1, "/srv/data/a"), (6, "/s/data/a")].map(|(id, place)| (id, place.to_owned()));
        assert_eq!(places(2, "/pod/a"), expected);
    }

    #[test]
    fn a_whole_mount_has_only_its_copies() {
        let table = MountTable::parse(TABLE, "/");
        let scope = Scope::new(table.by_id(2).unwrap(), "/pod");
        assert_eq!(scope.searched().mountpoint, "/pod");
        assert!(table.iter().all(|mount| scope.touches(mount) == (mount.id == 2)));
        let root = Scope::new(table.by_id(1).unwrap(), "/");
        assert!(!root.touches(table.by_id(6).unwrap()), "a part of it");
    }

    #[test]
    fn a_mount_of_a_directory_below_shows_nothing_else() {
        let table = MountTable::parse(TABLE, "/");
        let scope = Scope::new(table.by_id(1).unwrap(), "/srv/data");
        let ids: Vec<u64> = table.iter().filter(|mount| scope.has_all_of(mount)).map(|m| m.id).collect();
        assert_eq!(ids, [2, 3]);
    }
}
