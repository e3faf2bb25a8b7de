//! Finds busy mounts by what is known of them.

use std::collections::{BTreeSet, HashMap};

use kevtmon_observation::{MountIdentity, NsInum};

use super::{BusyId, BusyMount, MountKey};

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Index {
    /// By the place where they are, and by the path by which they were known first.
    by_place: HashMap<MountKey, BTreeSet<BusyId>>,
    /// By the last component of the place.
    by_name: HashMap<(NsInum, String), BTreeSet<BusyId>>,
    by_unique: HashMap<(NsInum, u64), BTreeSet<BusyId>>,
    by_mount_id: HashMap<(NsInum, u32), BTreeSet<BusyId>>,
    paths: HashMap<BusyId, Vec<MountKey>>,
    pub(super) path_bytes: usize,
}

impl Index {
    pub(super) fn add(&mut self, id: BusyId, busy: &BusyMount) {
        for place in places(busy) {
            self.by_place.entry(place).or_default().insert(id);
        }
        self.by_name.entry(name(busy)).or_default().insert(id);
        let mntns = busy.key.mntns;
        if let Some(identity) = &busy.identity {
            self.by_mount_id.entry((mntns, identity.mount_id)).or_default().insert(id);
            if let Some(unique) = identity.unique {
                self.by_unique.entry((mntns, unique)).or_default().insert(id);
            }
        }
    }

    /// Removes a mount, whose paths stay.
    pub(super) fn remove(&mut self, id: BusyId, busy: &BusyMount) {
        for place in places(busy) {
            take(&mut self.by_place, &place, id);
        }
        take(&mut self.by_name, &name(busy), id);
        let mntns = busy.key.mntns;
        if let Some(identity) = &busy.identity {
            take(&mut self.by_mount_id, &(mntns, identity.mount_id), id);
            if let Some(unique) = identity.unique {
                take(&mut self.by_unique, &(mntns, unique), id);
            }
        }
    }

    /// The mounts at a place, the oldest first.
    pub(super) fn at(&self, place: &MountKey) -> impl Iterator<Item = BusyId> {
        self.by_place.get(place).into_iter().flatten().copied()
    }

    /// Those that may have this identity.
    pub(super) fn like(&self, mntns: NsInum, identity: &MountIdentity) -> impl Iterator<Item = BusyId> {
        let by_unique = identity.unique.and_then(|unique| self.by_unique.get(&(mntns, unique)));
        let by_mount_id = self.by_mount_id.get(&(mntns, identity.mount_id));
        by_unique.into_iter().chain(by_mount_id).flatten().copied()
    }

    /// Those whose place has the same last component.
    pub(super) fn named_like(&self, key: &MountKey) -> impl Iterator<Item = BusyId> + use<'_> {
        self.by_name.get(&(key.mntns, last_component(&key.path))).into_iter().flatten().copied()
    }

    pub(super) fn add_path(&mut self, key: &MountKey, id: BusyId) {
        self.path_bytes += key.path.len();
        self.paths.entry(id).or_default().push(key.clone());
    }

    pub(super) fn remove_path(&mut self, key: &MountKey, id: BusyId) {
        let Some(paths) = self.paths.get_mut(&id) else { return };
        if let Some(place) = paths.iter().position(|path| path == key) {
            paths.remove(place);
            self.path_bytes -= key.path.len();
        }
        if paths.is_empty() {
            self.paths.remove(&id);
        }
    }

    pub(super) fn paths_of(&self, id: BusyId) -> &[MountKey] {
        self.paths.get(&id).map_or(&[], Vec::as_slice)
    }

    pub(super) fn take_paths(&mut self, id: BusyId) -> Vec<MountKey> {
        let paths = self.paths.remove(&id).unwrap_or_default();
        self.path_bytes -= paths.iter().map(|key| key.path.len()).sum::<usize>();
        paths
    }
}

fn places(busy: &BusyMount) -> [MountKey; 2] {
    let here = MountKey { mntns: busy.key.mntns, path: busy.path().to_owned() };
    [here, busy.key.clone()]
}

fn name(busy: &BusyMount) -> (NsInum, String) {
    (busy.key.mntns, last_component(busy.path()))
}

fn last_component(path: &str) -> String {
    path.rsplit('/').next().unwrap_or_default().to_owned()
}

fn take<K: std::hash::Hash + Eq>(from: &mut HashMap<K, BTreeSet<BusyId>>, key: &K, id: BusyId) {
    if let Some(ids) = from.get_mut(key) {
        ids.remove(&id);
        if ids.is_empty() {
            from.remove(key);
        }
    }
}
