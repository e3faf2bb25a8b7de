//! Busy mounts: mounts whose unmount was refused, with the number of attempts of each caller.
//!
//! A mount is told from others by its identity, as soon as a scan has found it. Until then, and for attempts between
//! two scans, the path as the caller gave it stands for it.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::observation::{BootNs, MountIdentity, NsInum};

/// The counts of callers start again after this time without an attempt; kubelet retries every two minutes at most.
const CALLER_RETENTION_NS: u64 = 15 * 60 * 1_000_000_000;
/// How long a mount is kept after the last attempt.
const RETENTION_NS: u64 = 24 * 3600 * 1_000_000_000;
const CAPACITY: usize = 1024;
/// Callers of one mount that are told apart. Whoever calls can start any number of processes, so the rest share a count.
const CALLERS_MAX: usize = 8;
/// Paths by which one mount is known.
const PATHS_MAX: usize = 16;

/// A path in a mount namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MountKey {
    /// Mount namespace.
    pub mntns: NsInum,
    /// Path, without what leads nowhere: doubled and trailing slashes, `.`.
    pub path: String,
}

impl MountKey {
    /// A key. However many spellings of a path there are, it has one.
    #[must_use]
    pub fn new(mntns: NsInum, path: &str) -> Self {
        let names = path.split('/').filter(|name| !matches!(*name, "" | "."));
        let names = names.collect::<Vec<_>>().join("/");
        let path = if path.starts_with('/') { format!("/{names}") } else { names };
        Self { mntns, path }
    }
}

/// Who tries to unmount: the nearest process above the program that unmounts, which is another process each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Caller {
    /// Process id.
    pub tgid: u32,
    /// Its start, since process ids are reused.
    pub start_ns: BootNs,
}

/// Who is charged for a busy mount, so that nobody's mounts displace those of others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Whether the mount is in the host's mount namespace, where only an administrator unmounts. These are kept
    /// longest.
    #[serde(default)]
    pub host: bool,
    /// What the caller's control group belongs to: a container, a user, a unit.
    pub name: String,
}

/// Number of a busy mount, never reused.
pub type BusyId = u64;

/// A mount whose unmount was refused and has not succeeded since.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BusyMount {
    /// The first path by which it was known.
    pub key: MountKey,
    /// What it is, once a scan has found it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<MountIdentity>,
    /// Who is charged for it.
    pub account: Account,
    total: u64,
    /// Recent attempts.
    callers: Vec<(Caller, u64)>,
    /// Recent attempts of all others.
    others: u64,
    last: BootNs,
}

impl BusyMount {
    fn new(key: MountKey, account: Account) -> Self {
        Self { key, identity: None, account, total: 0, callers: Vec::new(), others: 0, last: 0 }
    }

    /// Refused attempts since the mount became busy.
    #[must_use]
    pub fn attempts(&self) -> u64 {
        self.total
    }

    /// Refused attempts since the last long pause.
    #[must_use]
    pub fn recent_attempts(&self) -> u64 {
        self.others + self.callers.iter().map(|(_, attempts)| attempts).sum::<u64>()
    }

    /// When the last attempt was refused.
    #[must_use]
    pub fn last(&self) -> BootNs {
        self.last
    }

    /// Where it is mounted as far as that is known, else the path as a caller gave it.
    #[must_use]
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

/// All busy mounts. Attempts are counted only here.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BusyMounts {
    last_id: BusyId,
    mounts: BTreeMap<BusyId, BusyMount>,
    /// The paths that callers gave.
    #[serde(with = "crate::pairs")]
    paths: HashMap<MountKey, BusyId>,
}

impl BusyMounts {
    /// The busy mount that a path stood for last.
    #[must_use]
    pub fn at(&self, key: &MountKey) -> Option<BusyId> {
        self.paths.get(key).copied()
    }

    /// A busy mount.
    #[must_use]
    pub fn get(&self, id: BusyId) -> Option<&BusyMount> {
        self.mounts.get(&id)
    }

    /// The busy mount with this identity; without one, the mount at this place.
    #[must_use]
    pub fn find(&self, place: &MountKey, identity: Option<&MountIdentity>) -> Option<(BusyId, &BusyMount)> {
        let fits = |busy: &BusyMount| {
            busy.key.mntns == place.mntns
                && match (&busy.identity, identity) {
                    (Some(known), Some(identity)) => known.is_same(identity),
                    _ => busy.path() == place.path || busy.key.path == place.path,
                }
        };
        self.mounts.iter().find(|(_, busy)| fits(busy)).map(|(id, busy)| (*id, busy))
    }

    /// Mounts of a namespace whose last path component is the same: a path through a link may mean one of them.
    pub fn similar<'a>(&'a self, key: &'a MountKey) -> impl Iterator<Item = BusyId> + 'a {
        let name = |path: &'a str| path.rsplit('/').next();
        self.mounts
            .iter()
            .filter(move |(_, busy)| busy.key.mntns == key.mntns && name(busy.path()) == name(&key.path))
            .map(|(id, _)| *id)
    }

    /// The busy mount that a path stands for, which is a new one if it stands for none.
    pub fn entry(&mut self, key: &MountKey, account: Account) -> BusyId {
        if let Some(id) = self.at(key) {
            return id;
        }
        self.make_room();
        self.last_id += 1;
        self.mounts.insert(self.last_id, BusyMount::new(key.clone(), account));
        self.paths.insert(key.clone(), self.last_id);
        self.last_id
    }

    /// Counts a refused attempt; returns the count of this caller.
    pub fn refused(&mut self, at: BootNs, id: BusyId, caller: Caller) -> u64 {
        let Some(busy) = self.mounts.get_mut(&id) else { return 1 };
        busy.last = busy.last.max(at);
        busy.total += 1;
        busy.count(caller, 1)
    }

    /// A scan has found which mount the attempts on a path meant; returns the busy mount that it is. `caller`: who made
    /// the attempt that led to the scan, and is counted already.
    pub fn identify(&mut self, id: BusyId, key: &MountKey, caller: Caller, found: &MountIdentity) -> BusyId {
        let Some(busy) = self.mounts.get_mut(&id) else { return id };
        match &busy.identity {
            Some(known) if known.is_same(found) => {
                // Its place may have changed.
                busy.identity = Some(found.clone());
                return id;
            }
            Some(_) => {
                // Another one is at the path now. What was counted between two scans stays with the first.
                busy.total = busy.total.saturating_sub(1);
                if let Some((_, count)) = busy.callers.iter_mut().find(|(known, _)| *known == caller) {
                    *count = count.saturating_sub(1);
                }
                let (account, last) = (busy.account.clone(), busy.last);
                self.paths.remove(key);
                let place = MountKey::new(key.mntns, &found.mount_point);
                let other = match self.find(&place, Some(found)).filter(|(_, other)| other.identity.is_some())
                {
                    Some((other, _)) => other,
                    None => self.entry(key, account),
                };
                self.add_path(key, other);
                self.refused(last, other, caller);
                if let Some(busy) = self.mounts.get_mut(&other) {
                    busy.identity = Some(found.clone());
                }
                return other;
            }
            None => {}
        }
        let same = |(other, busy): &(&BusyId, &BusyMount)| {
            **other != id
                && busy.key.mntns == key.mntns
                && busy.identity.as_ref().is_some_and(|known| known.is_same(found))
        };
        let Some(other) = self.mounts.iter().find(same).map(|(other, _)| *other) else {
            if let Some(busy) = self.mounts.get_mut(&id) {
                busy.identity = Some(found.clone());
            }
            return id;
        };
        self.merge(id, other);
        other
    }

    /// Two paths meant one mount.
    fn merge(&mut self, from: BusyId, into: BusyId) {
        let Some(merged) = self.mounts.remove(&from) else { return };
        if let Some(busy) = self.mounts.get_mut(&into) {
            busy.total += merged.total;
            busy.last = busy.last.max(merged.last);
            busy.others += merged.others;
            for (caller, attempts) in merged.callers {
                busy.count(caller, attempts);
            }
        }
        let moved: Vec<MountKey> = self.paths_of(from).cloned().collect();
        for key in moved {
            self.add_path(&key, into);
        }
    }

    fn add_path(&mut self, key: &MountKey, id: BusyId) {
        if self.paths_of(id).count() < PATHS_MAX {
            self.paths.insert(key.clone(), id);
        } else {
            self.paths.remove(key);
        }
    }

    fn paths_of(&self, id: BusyId) -> impl Iterator<Item = &MountKey> {
        self.paths.iter().filter(move |(_, of)| **of == id).map(|(key, _)| key)
    }

    /// The count of a caller.
    #[must_use]
    pub fn attempts_of(&self, id: BusyId, caller: Caller) -> u64 {
        let Some(busy) = self.mounts.get(&id) else { return 1 };
        busy.callers.iter().find(|(known, _)| *known == caller).map_or(busy.others, |(_, count)| *count)
    }

    /// Adds a busy mount of which an earlier run of the daemon has told: the number of attempts, and the time of the last.
    pub fn resume(
        &mut self,
        key: MountKey,
        identity: Option<MountIdentity>,
        account: Account,
        (attempts, last): (u64, BootNs),
    ) {
        let id = self.entry(&key, account);
        if let Some(busy) = self.mounts.get_mut(&id) {
            busy.identity = identity;
            busy.total = attempts;
            busy.last = last;
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.mounts.is_empty()
    }

    /// All busy mounts.
    pub fn iter(&self) -> impl Iterator<Item = (BusyId, &BusyMount)> {
        self.mounts.iter().map(|(id, busy)| (*id, busy))
    }

    /// Removes and returns a mount that is gone.
    pub fn remove(&mut self, id: BusyId) -> Option<BusyMount> {
        self.paths.retain(|_, of| *of != id);
        self.mounts.remove(&id)
    }

    /// Removes mounts without recent attempts.
    pub fn expire(&mut self, now: BootNs) {
        let before = self.mounts.len();
        self.mounts.retain(|_, busy| busy.last.saturating_add(RETENTION_NS) > now);
        for busy in self.mounts.values_mut() {
            if busy.last.saturating_add(CALLER_RETENTION_NS) <= now {
                busy.callers.clear();
                busy.others = 0;
            }
        }
        if self.mounts.len() != before {
            self.forget_paths();
        }
    }

    /// Where it is full, half of the mounts of whoever has most of them go, the oldest; those of the host last.
    fn make_room(&mut self) {
        if self.mounts.len() < CAPACITY {
            return;
        }
        let mut accounts: HashMap<(bool, &str), Vec<(BootNs, BusyId)>> = HashMap::new();
        for (id, busy) in &self.mounts {
            let account = (busy.account.host, busy.account.name.as_str());
            accounts.entry(account).or_default().push((busy.last, *id));
        }
        let largest =
            accounts.into_iter().max_by(|((host, name), mounts), ((other_host, other_name), others)| {
                (!host, mounts.len(), name).cmp(&(!other_host, others.len(), other_name))
            });
        let Some((_, mut mounts)) = largest else { return };
        mounts.sort_unstable();
        mounts.truncate(mounts.len().div_ceil(2));
        for (_, id) in mounts {
            self.mounts.remove(&id);
        }
        self.forget_paths();
    }

    fn forget_paths(&mut self) {
        let mounts = &self.mounts;
        self.paths.retain(|_, id| mounts.contains_key(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const KUBELET: Caller = Caller { tgid: 1893, start_ns: 5 };

    fn caller(tgid: u32) -> Caller {
        Caller { tgid, start_ns: 1 }
    }

    fn account(host: bool, name: &str) -> Account {
        Account { host, name: name.into() }
    }

    fn key() -> MountKey {
        MountKey::new(2, "/mnt/x/")
    }

    fn refused(mounts: &mut BusyMounts, at: BootNs, caller: Caller) -> u64 {
        let id = mounts.entry(&key(), Account::default());
        mounts.refused(at, id, caller)
    }

    fn identity(mount_id: u32, mount_point: &str) -> MountIdentity {
        MountIdentity {
            unique: None,
            mount_id,
            parent_id: 1,
            device: "0:9".into(),
            root: "/".into(),
            mount_point: mount_point.into(),
        }
    }

    #[test]
    fn a_trailing_slash_is_no_part_of_the_path() {
        assert_eq!(key().path, "/mnt/x");
        assert_eq!(MountKey::new(2, "//").path, "/");
        assert_eq!(MountKey::new(2, "").path, "");
        assert_eq!(MountKey::new(2, "/mnt//./x/.").path, "/mnt/x");
        assert_eq!(MountKey::new(2, "./x").path, "x");
    }

    #[test]
    fn attempts_count_by_caller_and_in_total() {
        let mut mounts = BusyMounts::default();
        assert_eq!(refused(&mut mounts, S, KUBELET), 1);
        assert_eq!(refused(&mut mounts, S, caller(7)), 1);
        assert_eq!(refused(&mut mounts, S, KUBELET), 2);
        assert_eq!(refused(&mut mounts, S, Caller { start_ns: 9, ..KUBELET }), 1, "its id was reused");
        let id = mounts.at(&key()).unwrap();
        assert_eq!(mounts.attempts_of(id, KUBELET), 2);
        let busy = mounts.remove(id).unwrap();
        assert_eq!((busy.attempts(), busy.recent_attempts()), (4, 4));
        assert_eq!(mounts.at(&key()), None);
    }

    #[test]
    fn a_caller_starts_again_after_a_long_pause_and_the_total_does_not() {
        let mut mounts = BusyMounts::default();
        refused(&mut mounts, S, KUBELET);
        refused(&mut mounts, S, KUBELET);
        mounts.expire(S + CALLER_RETENTION_NS);
        assert_eq!(refused(&mut mounts, 2 * S + CALLER_RETENTION_NS, KUBELET), 1);
        let id = mounts.at(&key()).unwrap();
        let busy = mounts.get(id).unwrap();
        assert_eq!((busy.attempts(), busy.recent_attempts()), (3, 1));
        mounts.expire(2 * S + CALLER_RETENTION_NS + RETENTION_NS);
        assert_eq!((mounts.get(id), mounts.at(&key())), (None, None));
    }

    #[test]
    fn few_callers_are_told_apart() {
        let mut mounts = BusyMounts::default();
        let counts: Vec<u64> = (0..100).map(|tgid| refused(&mut mounts, S, caller(tgid))).collect();
        assert_eq!(counts[..CALLERS_MAX], [1; CALLERS_MAX]);
        assert_eq!(counts[CALLERS_MAX..], (1..=92).collect::<Vec<u64>>()[..]);
        assert_eq!(refused(&mut mounts, S, caller(0)), 2, "who was there first keeps a count of its own");
    }

    #[test]
    fn two_paths_of_one_mount_count_together() {
        let mut mounts = BusyMounts::default();
        let found = identity(7, "/mnt/x");
        let link = MountKey::new(2, "/link");
        let first = mounts.entry(&key(), Account::default());
        mounts.refused(S, first, KUBELET);
        assert_eq!(mounts.identify(first, &key(), KUBELET, &found), first);
        let second = mounts.entry(&link, Account::default());
        mounts.refused(S, second, KUBELET);
        assert_eq!(mounts.identify(second, &link, KUBELET, &found), first);
        assert_eq!((mounts.at(&link), mounts.attempts_of(first, KUBELET)), (Some(first), 2));
        assert_eq!(mounts.get(first).unwrap().attempts(), 2);
    }

    #[test]
    fn another_mount_at_the_same_path_counts_from_one() {
        let mut mounts = BusyMounts::default();
        let id = mounts.entry(&key(), Account::default());
        for _ in 0..4 {
            mounts.refused(S, id, KUBELET);
        }
        assert_eq!(mounts.identify(id, &key(), KUBELET, &identity(7, "/mnt/x")), id);
        mounts.refused(S, id, KUBELET);
        let cover = mounts.identify(id, &key(), KUBELET, &identity(8, "/mnt/x"));
        assert_ne!(cover, id);
        assert_eq!((mounts.attempts_of(cover, KUBELET), mounts.attempts_of(id, KUBELET)), (1, 4));
        assert_eq!(mounts.at(&key()), Some(cover));
        assert_eq!(mounts.get(cover).unwrap().identity, Some(identity(8, "/mnt/x")));
        mounts.remove(cover);
        assert_eq!(mounts.find(&key(), Some(&identity(7, "/mnt/x"))).map(|(found, _)| found), Some(id));
    }

    #[test]
    fn nobody_displaces_the_mounts_of_others() {
        let mut mounts = BusyMounts::default();
        let mut add = |at: u64, path: &str, account: Account| {
            let id = mounts.entry(&MountKey::new(2, path), account);
            mounts.refused(at, id, KUBELET);
        };
        add(1, "/host", account(true, "kubelet.service"));
        add(2, "/other", account(false, "user-1001.slice"));
        for index in 0..10 * u64::try_from(CAPACITY).unwrap() {
            add(10 + index, &format!("/mnt/{index}"), account(false, "user-1000.slice"));
        }
        assert!(mounts.mounts.len() <= CAPACITY);
        assert_eq!(mounts.paths.len(), mounts.mounts.len());
        for path in ["/host", "/other"] {
            assert!(mounts.at(&MountKey::new(2, path)).is_some(), "{path}");
        }
    }
}
