//! What is kept of the mount tables of other namespaces while a scan goes on: whoever makes a namespace makes its table as large
//! as he likes, and as many of them.

use std::collections::BTreeSet;

use kevtmon_sources::procfs::mountinfo::{Mount, MountTable, is_below};

use crate::propagation::NamespaceMounts;
use crate::scope::Scope;

/// Bytes of all of them.
const MEMORY_MAX: usize = 48 << 20;
/// Places of the file system that are remembered.
const PLACES: usize = 64;

/// Room for the tables.
pub(super) struct TableMemory {
    left: usize,
    /// Where something of what is searched for is mounted, or what an unmount of it could propagate to.
    places: Vec<String>,
}

impl TableMemory {
    pub(super) fn new(own: &NamespaceMounts, scope: &Scope<'_>) -> Self {
        let mut memory = Self { left: MEMORY_MAX, places: vec![scope.searched().mountpoint.clone()] };
        memory.note_places(&own.table, scope);
        memory
    }

    /// Reduces a table to the mounts that can matter: those of the file system and those that an unmount could propagate to, what
    /// they sit on and what sits on them, and whatever is mounted above or below their places. False where there is no room.
    pub(super) fn take(&mut self, table: &mut MountTable, scope: &Scope<'_>) -> bool {
        self.note_places(table, scope);
        let device = &scope.target.device;
        let (mut ids, mut parents) = (BTreeSet::new(), BTreeSet::new());
        let reached = scope.at.iter().flat_map(|at| at.mounts(table)).map(|(mount, _)| mount);
        for mount in table.iter().filter(|mount| mount.device == *device).chain(reached) {
            ids.insert(mount.id);
            parents.insert(mount.parent);
        }
        let is_near = |mount: &Mount| {
            let of =
                |place: &String| is_below(place, &mount.mountpoint) || is_below(&mount.mountpoint, place);
            self.places.iter().any(of)
        };
        table.retain(|mount| {
            ids.contains(&mount.id)
                || ids.contains(&mount.parent)
                || parents.contains(&mount.id)
                || is_near(mount)
        });
        let left = self.left.checked_sub(table.size());
        self.left = left.unwrap_or(self.left);
        left.is_some()
    }

    fn note_places(&mut self, table: &MountTable, scope: &Scope<'_>) {
        let memory = PLACES.saturating_sub(self.places.len());
        let reached = scope.at.iter().flat_map(|at| at.mounts(table)).map(|(mount, _)| mount);
        let found = table.iter().filter(|mount| scope.touches(mount)).chain(reached).take(memory);
        self.places.extend(found.map(|mount| mount.mountpoint.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_another_namespace_only_mounts_are_kept_that_can_matter_and_no_more_than_there_is_room_for() {
        let own = "1 0 8:1 / / rw shared:1 - ext4 d rw\n2 1 0:9 / /v rw - tmpfs t rw\n";
        let own = NamespaceMounts { ns: 1, table: MountTable::parse(own, "/") };
        let target = own.table.by_id(2).unwrap().clone();
        let scope = Scope::new(&target, "/v").in_table(&own.table);
        let text = "10 0 8:1 / / rw master:1 - ext4 d rw\n11 10 0:9 / /w/v rw - tmpfs t rw\n\
                    12 11 0:7 / /w/v/in rw - tmpfs u rw\n13 10 0:8 / /w rw - tmpfs u rw\n\
                    14 10 0:8 / /else rw - tmpfs u rw\n15 10 8:1 / /p rw master:1 - ext4 d rw\n\
                    16 15 0:6 / /p/v rw - tmpfs own rw\n17 16 0:5 / /p/v rw - tmpfs cover rw\n";
        let mut table = MountTable::parse(text, "/");
        let mut memory = TableMemory::new(&own, &scope);
        assert!(memory.take(&mut table, &scope));
        assert_eq!(table.iter().map(|mount| mount.id).collect::<Vec<_>>(), [10, 11, 12, 13, 15, 16, 17]);
        memory.left = 10;
        assert!(!memory.take(&mut table, &scope));
    }
}
