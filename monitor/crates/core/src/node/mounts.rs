//! Busy mounts: mounts whose unmount was refused, with the number of attempts of each caller.
//!
//! A mount is told from others by its identity, as soon as a scan has found it. Until then, and for attempts between
//! two scans, the path as the caller gave it stands for it.
//!
//! Whoever has mounts of his own can try to unmount thousands of them, by thousands of paths: nothing here takes longer
//! for it, and it displaces only what is his.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

pub use calls::RefusedCalls;
use index::Index;
use kevtmon_observation::{BootNs, MountIdentity, MountSyscall, NsInum, PathOrigin, UmountAttempt};
use serde::{Deserialize, Serialize};

mod calls;
mod index;
#[cfg(test)]
mod tests;

/// The counts of callers start again after this time without an attempt; kubelet retries every two minutes at most.
const CALLER_RETENTION_NS: u64 = 15 * 60 * 1_000_000_000;
const RETENTION_NS: u64 = 24 * 3600 * 1_000_000_000;
const CAPACITY: usize = 1024;
/// Most bytes of the paths of all mounts.
const PATH_BYTES: usize = 1 << 19;
/// Callers of one mount that are told apart. Whoever calls can start any number of processes, so the rest share a count.
const CALLERS_MAX: usize = 8;
const PATHS_MAX: usize = 16;

/// A path in a mount namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MountKey {
    pub mntns: NsInum,
    /// Path, without what leads nowhere: doubled and trailing slashes, `.`.
    pub path: String,
}

impl MountKey {
    /// A key. However many spellings of a path there are, it has one.
    pub fn new(mntns: NsInum, path: &str) -> Self {
        let names = path.split('/').filter(|name| !matches!(*name, "" | "."));
        let names = names.collect::<Vec<_>>().join("/");
        let path = if path.starts_with('/') { format!("/{names}") } else { names };
        Self { mntns, path }
    }
}

/// Who tries to unmount, or to remove what something is mounted on: the nearest process above the program that does it, which
/// is another process each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caller {
    pub tgid: u32,
    /// Its start, since process ids are reused.
    pub start_ns: BootNs,
    /// By which system call.
    #[serde(default = "MountSyscall::umount2", skip_serializing_if = "MountSyscall::is_umount")]
    pub syscall: MountSyscall,
}

/// The tenant of a busy mount, so that nobody's mounts displace those of others.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Account {
    /// Whether an administrator unmounts in the host's mount namespace. These are kept longest.
    pub host: bool,
    /// What the caller's control group belongs to: a container, a user, a unit.
    pub name: String,
}

/// Number of a busy mount, never reused.
pub type BusyId = u64;

/// A mount whose unmount was refused and has not succeeded since.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BusyMount {
    /// The first path by which it was known.
    pub key: MountKey,
    /// What it is, once a scan has found it.
    pub identity: Option<MountIdentity>,
    /// Whether that is only likely the mount that was busy.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_likely: bool,
    /// Whether an unmount of it succeeded that had no room to wait: that one may have taken it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub missed: bool,
    /// The tenant of it.
    pub account: Account,
    /// The path as a caller gave it, and where that starts from; until a scan has found the mount.
    pub given: Option<Box<GivenPath>>,
    /// Refused attempts since it became busy.
    pub total: u64,
    /// The same by system call.
    #[serde(default, skip_serializing_if = "RefusedCalls::is_empty")]
    pub calls: RefusedCalls,
    callers: Vec<(Caller, u64)>,
    /// Recent attempts of all others.
    others: u64,
    pub last: BootNs,
}

/// A path, and where it starts from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GivenPath {
    pub path: String,
    /// The caller's directories.
    pub origin: Box<PathOrigin>,
}

impl BusyMount {
    fn new(key: MountKey, account: Account) -> Self {
        let (callers, others) = (Vec::new(), 0);
        Self {
            key,
            identity: None,
            is_likely: false,
            missed: false,
            account,
            given: None,
            total: 0,
            calls: RefusedCalls::default(),
            callers,
            others,
            last: 0,
        }
    }

    /// Refused attempts since the last long pause.
    pub fn recent_attempts(&self) -> u64 {
        self.others + self.callers.iter().map(|(_, attempts)| attempts).sum::<u64>()
    }

    /// Refused unmounts since the mount became busy that are not recent. Those of callers that share a count are taken for
    /// recent ones.
    pub fn former_unmounts(&self) -> u64 {
        let of_callers = self.callers.iter().filter(|(caller, _)| caller.syscall.is_umount());
        let recent = self.others + of_callers.map(|(_, attempts)| attempts).sum::<u64>();
        self.calls.unmounts().saturating_sub(recent)
    }

    /// Where it is mounted as far as that is known, else the path as a caller gave it.
    pub fn path(&self) -> &str {
        self.identity.as_ref().map_or(&self.key.path, |identity| &identity.mount_point)
    }

    fn count(&mut self, caller: Caller, attempts: u64) -> u64 {
        let place = self.callers.iter().position(|(known, _)| *known == caller);
        let count = match place {
            Some(place) => &mut self.callers[place].1,
            None if self.callers.len() < CALLERS_MAX => {
                self.callers.push((caller, 0));
                let last = self.callers.len() - 1;
                &mut self.callers[last].1
            }
            None => &mut self.others,
        };
        *count += attempts;
        *count
    }
}

#[derive(Default)]
struct Possessions {
    size: usize,
    mounts: Vec<(BootNs, BusyId)>,
}

/// All busy mounts. Attempts are counted only here.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Saved")]
pub struct BusyMounts {
    last_id: BusyId,
    mounts: BTreeMap<BusyId, BusyMount>,
    /// The paths that callers gave.
    #[serde(with = "kevtmon_types::pairs")]
    paths: HashMap<MountKey, BusyId>,
    #[serde(skip)]
    index: Index,
}

#[derive(Default, Deserialize)]
struct Saved {
    last_id: BusyId,
    mounts: BTreeMap<BusyId, BusyMount>,
    #[serde(with = "kevtmon_types::pairs")]
    paths: HashMap<MountKey, BusyId>,
}

impl From<Saved> for BusyMounts {
    fn from(Saved { last_id, mounts, paths }: Saved) -> Self {
        let mut index = Index::default();
        mounts.iter().for_each(|(id, busy)| index.add(*id, busy));
        paths.iter().for_each(|(key, id)| index.add_path(key, *id));
        Self { last_id, mounts, paths, index }
    }
}

impl BusyMounts {
    /// The busy mount that a path stood for last.
    pub fn at(&self, key: &MountKey) -> Option<BusyId> {
        self.paths.get(key).copied()
    }

    pub fn get(&self, id: BusyId) -> Option<&BusyMount> {
        self.mounts.get(&id)
    }

    /// The busy mount with this identity; without one, the mount at this place.
    pub fn find(&self, place: &MountKey, identity: Option<&MountIdentity>) -> Option<(BusyId, &BusyMount)> {
        let is_unknown = |id: &BusyId| {
            identity.is_none() || self.mounts.get(id).is_some_and(|busy| busy.identity.is_none())
        };
        let by_place = self.index.at(place).find(is_unknown);
        let by_identity = identity.and_then(|identity| self.identified(place.mntns, identity));
        let id = by_place.into_iter().chain(by_identity).min()?;
        self.mounts.get(&id).map(|busy| (id, busy))
    }

    /// The busy mount that is known to have this identity.
    pub fn identified(&self, mntns: NsInum, identity: &MountIdentity) -> Option<BusyId> {
        let is_it = |id: &BusyId| {
            let known = self.mounts.get(id).and_then(|busy| busy.identity.as_ref());
            known.is_some_and(|known| known.is_same(identity))
        };
        self.index.like(mntns, identity).find(is_it)
    }

    /// Mounts of a namespace whose last path component is the same: a path through a link may mean one of them.
    pub fn similar<'a>(&'a self, key: &MountKey) -> impl Iterator<Item = BusyId> + 'a {
        self.index.named_like(key)
    }

    /// The busy mount that a path stands for, which is a new one if it stands for none.
    pub fn entry(&mut self, key: &MountKey, account: Account) -> BusyId {
        if let Some(id) = self.at(key) {
            return id;
        }
        self.make_room();
        self.last_id += 1;
        let busy = BusyMount::new(key.clone(), account);
        self.index.add(self.last_id, &busy);
        self.mounts.insert(self.last_id, busy);
        self.add_path(key, self.last_id);
        self.last_id
    }

    /// Keeps the path of a refused attempt by the host, for a mount that no scan has found yet: by the path alone a link in
    /// it cannot be followed below the root directory of the caller.
    pub fn keep_given(&mut self, id: BusyId, attempt: &UmountAttempt) {
        let Some(busy) = self.mounts.get_mut(&id) else { return };
        if busy.account.host && busy.identity.is_none() && busy.given.is_none() {
            busy.given = attempt
                .origin
                .clone()
                .map(|origin| Box::new(GivenPath { path: attempt.path.clone(), origin }));
        }
    }

    /// Counts a refused attempt; returns the count of this caller.
    pub fn refused(&mut self, at: BootNs, id: BusyId, caller: Caller) -> u64 {
        let Some(busy) = self.mounts.get_mut(&id) else { return 1 };
        busy.last = busy.last.max(at);
        busy.total += 1;
        busy.calls.add(caller.syscall, 1);
        busy.count(caller, 1)
    }

    /// Keeps whether an unmount of this mount succeeded and had no room to wait, once one did.
    pub fn note_missed(&mut self, id: BusyId, missed: bool) {
        if let Some(busy) = self.mounts.get_mut(&id) {
            busy.missed |= missed;
        }
    }

    /// A scan has found which mount the attempts on a path meant; returns the busy mount that it is. `caller`: who made
    /// the attempt that led to the scan, and is counted already.
    pub fn identify(&mut self, id: BusyId, key: &MountKey, caller: Caller, found: &MountIdentity) -> BusyId {
        let Some(busy) = self.mounts.get_mut(&id) else { return id };
        match &busy.identity {
            Some(known) if known.is_same(found) => {
                // Its place may have changed.
                self.set_identity(id, found.clone());
                return id;
            }
            Some(_) => {
                // Another one is at the path now. What was counted between two scans stays with the first.
                busy.total = busy.total.saturating_sub(1);
                busy.calls.take_one(caller.syscall);
                if let Some((_, count)) = busy.callers.iter_mut().find(|(known, _)| *known == caller) {
                    *count = count.saturating_sub(1);
                }
                let (account, last, missed) = (busy.account.clone(), busy.last, busy.missed);
                self.remove_path(key);
                let place = MountKey::new(key.mntns, &found.mount_point);
                let other = match self.find(&place, Some(found)).filter(|(_, other)| other.identity.is_some())
                {
                    Some((other, _)) => other,
                    None => self.entry(key, account),
                };
                self.add_path(key, other);
                self.refused(last, other, caller);
                self.set_identity(other, found.clone());
                self.note_missed(other, missed);
                return other;
            }
            None => {}
        }
        match self.identified(key.mntns, found) {
            Some(other) => {
                self.merge(id, other);
                // It may have been moved to where this path leads.
                self.set_identity(other, found.clone());
                other
            }
            None => {
                self.set_identity(id, found.clone());
                id
            }
        }
    }

    /// Keeps whether the newest scan is certain that this is the mount that was meant.
    pub fn set_likely(&mut self, id: BusyId, is_likely: bool) {
        if let Some(busy) = self.mounts.get_mut(&id) {
            busy.is_likely = is_likely && busy.identity.is_some();
        }
    }

    fn set_identity(&mut self, id: BusyId, identity: MountIdentity) {
        let Some(busy) = self.mounts.get_mut(&id) else { return };
        self.index.remove(id, busy);
        busy.identity = Some(identity);
        busy.given = None;
        self.index.add(id, busy);
    }

    /// Two paths meant one mount.
    fn merge(&mut self, from: BusyId, into: BusyId) {
        let moved: Vec<MountKey> = self.index.paths_of(from).to_vec();
        let Some(merged) = self.remove(from) else { return };
        if let Some(busy) = self.mounts.get_mut(&into) {
            busy.total += merged.total;
            busy.calls.merge(&merged.calls);
            busy.last = busy.last.max(merged.last);
            busy.others += merged.others;
            busy.missed |= merged.missed;
            for (caller, attempts) in merged.callers {
                busy.count(caller, attempts);
            }
        }
        for key in moved {
            self.add_path(&key, into);
        }
    }

    fn add_path(&mut self, key: &MountKey, id: BusyId) {
        self.remove_path(key);
        if self.index.paths_of(id).len() < PATHS_MAX {
            self.paths.insert(key.clone(), id);
            self.index.add_path(key, id);
        }
    }

    fn remove_path(&mut self, key: &MountKey) {
        if let Some(id) = self.paths.remove(key) {
            self.index.remove_path(key, id);
        }
    }

    pub fn attempts_of(&self, id: BusyId, caller: Caller) -> u64 {
        let Some(busy) = self.mounts.get(&id) else { return 1 };
        busy.callers.iter().find(|(known, _)| *known == caller).map_or(busy.others, |(_, count)| *count)
    }

    /// Adds a busy mount of which an earlier run of the daemon has told: the attempts, and the time of the last.
    pub fn resume(
        &mut self,
        key: MountKey,
        identity: Option<MountIdentity>,
        account: Account,
        (calls, last): (RefusedCalls, BootNs),
    ) {
        let id = self.entry(&key, account);
        if let Some(identity) = identity {
            self.set_identity(id, identity);
        }
        if let Some(busy) = self.mounts.get_mut(&id) {
            (busy.total, busy.calls) = (calls.total(), calls);
            busy.last = last;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.mounts.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (BusyId, &BusyMount)> {
        self.mounts.iter().map(|(id, busy)| (*id, busy))
    }

    pub fn remove(&mut self, id: BusyId) -> Option<BusyMount> {
        let busy = self.mounts.remove(&id)?;
        self.index.remove(id, &busy);
        for key in self.index.take_paths(id) {
            self.paths.remove(&key);
        }
        Some(busy)
    }

    /// Removes mounts without recent attempts.
    pub fn expire(&mut self, now: BootNs) {
        let is_old = |busy: &BusyMount| busy.last.saturating_add(RETENTION_NS) <= now;
        let old: Vec<BusyId> =
            self.mounts.iter().filter(|(_, busy)| is_old(busy)).map(|(id, _)| *id).collect();
        for id in old {
            self.remove(id);
        }
        for busy in self.mounts.values_mut() {
            if busy.last.saturating_add(CALLER_RETENTION_NS) <= now {
                busy.callers.clear();
                busy.others = 0;
            }
        }
    }

    /// Where it is full, half of the mounts of whoever takes most of the room go, the oldest; those of the host last. So
    /// much goes at once that it is full again only after many more.
    fn make_room(&mut self) {
        let bytes = self.index.path_bytes;
        if self.mounts.len() < CAPACITY && bytes < PATH_BYTES {
            return;
        }
        let mut accounts: BTreeMap<(bool, &str), Possessions> = BTreeMap::new();
        for (id, busy) in &self.mounts {
            let account = (busy.account.host, busy.account.name.as_str());
            let has = accounts.entry(account).or_default();
            let bytes: usize = self.index.paths_of(*id).iter().map(|key| key.path.len()).sum();
            has.size += PATH_BYTES / CAPACITY + bytes;
            has.mounts.push((busy.last, *id));
        }
        let mut accounts: Vec<(bool, Possessions)> =
            accounts.into_iter().map(|((host, _), has)| (host, has)).collect();
        accounts.sort_by_key(|(host, has)| (*host, Reverse(has.size)));
        let accounts: Vec<_> = accounts.into_iter().map(|(_, has)| has.mounts).collect();
        for mut mounts in accounts {
            mounts.sort_unstable();
            mounts.truncate(mounts.len().div_ceil(2));
            for (_, id) in mounts {
                self.remove(id);
            }
            let left = (self.mounts.len(), self.index.path_bytes);
            if left.0 <= CAPACITY / 16 * 15 && left.1 <= PATH_BYTES / 16 * 15 {
                return;
            }
        }
    }
}
