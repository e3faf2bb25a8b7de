//! Busy mounts: mounts whose unmount was refused, with the number of attempts of each caller.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::observation::{BootNs, NsInum};

/// The count of a caller that has not tried for this time starts again; kubelet retries every two minutes at most.
const CALLER_RETENTION_NS: u64 = 15 * 60 * 1_000_000_000;
/// How long a mount is kept after the last attempt.
const RETENTION_NS: u64 = 24 * 3600 * 1_000_000_000;
const CAPACITY: usize = 1024;
/// Callers of one mount that are told apart. Whoever calls chooses its name, so the rest share a count.
const CALLERS_MAX: usize = 8;
/// Not a command name.
const OTHER_CALLERS: &str = "";

/// Identity of a mount: its path as the caller gave it, in the caller's mount namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MountKey {
    /// Mount namespace.
    pub mntns: NsInum,
    /// Path, without a trailing slash.
    pub path: String,
}

impl MountKey {
    /// A key with trailing slashes removed.
    #[must_use]
    pub fn new(mntns: NsInum, path: &str) -> Self {
        let trimmed = match path.trim_end_matches('/') {
            "" if path.starts_with('/') => "/",
            trimmed => trimmed,
        };
        Self { mntns, path: trimmed.to_owned() }
    }
}

/// A mount whose unmount was refused and has not succeeded since.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BusyMount {
    total: u64,
    /// Recent attempts by the caller's command name, since each retry of kubelet is another process.
    by_caller: BTreeMap<String, u64>,
    last: BootNs,
}

impl BusyMount {
    /// Refused attempts since the mount became busy.
    #[must_use]
    pub fn attempts(&self) -> u64 {
        self.total
    }

    /// Refused attempts since the last long pause.
    #[must_use]
    pub fn recent_attempts(&self) -> u64 {
        self.by_caller.values().sum()
    }
}

/// All busy mounts. Attempts are counted only here.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BusyMounts {
    #[serde(with = "crate::pairs")]
    known: HashMap<MountKey, BusyMount>,
}

impl BusyMounts {
    /// Counts a refused attempt; returns the count of this caller.
    pub fn refused(&mut self, at: BootNs, key: &MountKey, caller: &str) -> u64 {
        if !self.known.contains_key(key) {
            self.make_room();
        }
        let busy = self.known.entry(key.clone()).or_default();
        busy.last = at;
        busy.total += 1;
        let is_told_apart = busy.by_caller.contains_key(caller) || busy.by_caller.len() < CALLERS_MAX;
        let caller = if is_told_apart { caller } else { OTHER_CALLERS };
        let attempts = busy.by_caller.entry(caller.to_owned()).or_default();
        *attempts += 1;
        *attempts
    }

    /// Removes and returns a mount after a successful unmount.
    pub fn released(&mut self, key: &MountKey) -> Option<BusyMount> {
        self.known.remove(key)
    }

    /// A busy mount.
    #[must_use]
    pub fn get(&self, key: &MountKey) -> Option<&BusyMount> {
        self.known.get(key)
    }

    /// All busy mounts.
    pub fn iter(&self) -> impl Iterator<Item = (&MountKey, &BusyMount)> {
        self.known.iter()
    }

    /// Removes mounts without recent attempts.
    pub fn expire(&mut self, now: BootNs) {
        self.known.retain(|_, busy| busy.last.saturating_add(RETENTION_NS) > now);
        for busy in self.known.values_mut() {
            if busy.last.saturating_add(CALLER_RETENTION_NS) <= now {
                busy.by_caller.clear();
            }
        }
    }

    fn make_room(&mut self) {
        if self.known.len() >= CAPACITY {
            let mut seen: Vec<BootNs> = self.known.values().map(|busy| busy.last).collect();
            seen.sort_unstable();
            let median = seen[seen.len() / 2];
            self.known.retain(|_, busy| busy.last > median);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn key() -> MountKey {
        MountKey::new(2, "/mnt/x/")
    }

    #[test]
    fn a_trailing_slash_is_no_part_of_the_path() {
        assert_eq!(key().path, "/mnt/x");
        assert_eq!(MountKey::new(2, "//").path, "/");
        assert_eq!(MountKey::new(2, "").path, "");
    }

    #[test]
    fn attempts_count_by_caller_and_in_total() {
        let mut mounts = BusyMounts::default();
        assert_eq!(mounts.refused(S, &key(), "umount"), 1);
        assert_eq!(mounts.refused(S, &key(), "dockerd"), 1);
        assert_eq!(mounts.refused(S, &key(), "umount"), 2);
        assert_eq!(mounts.get(&key()).unwrap().attempts(), 3);
        assert_eq!(mounts.released(&key()).unwrap().recent_attempts(), 3);
        assert_eq!(mounts.get(&key()), None);
    }

    #[test]
    fn a_caller_starts_again_after_a_long_pause_and_the_total_does_not() {
        let mut mounts = BusyMounts::default();
        mounts.refused(S, &key(), "umount");
        mounts.refused(S, &key(), "umount");
        mounts.expire(S + CALLER_RETENTION_NS);
        assert_eq!(mounts.refused(2 * S + CALLER_RETENTION_NS, &key(), "umount"), 1);
        let busy = mounts.get(&key()).unwrap();
        assert_eq!((busy.attempts(), busy.recent_attempts()), (3, 1));
        mounts.expire(2 * S + CALLER_RETENTION_NS + RETENTION_NS);
        assert_eq!(mounts.get(&key()), None);
    }

    #[test]
    fn a_caller_that_changes_its_name_is_one_of_few() {
        let mut mounts = BusyMounts::default();
        let counts = (0..100).map(|index| mounts.refused(S, &key(), &format!("name{index}")));
        let counts: Vec<u64> = counts.collect();
        assert_eq!(counts[..CALLERS_MAX], [1; CALLERS_MAX]);
        assert_eq!(counts[CALLERS_MAX..], (1..=92).collect::<Vec<u64>>()[..]);
        assert_eq!(mounts.get(&key()).unwrap().attempts(), 100);
        assert_eq!(mounts.refused(S, &key(), "name0"), 2, "who was there first keeps a count of its own");
    }

    #[test]
    fn mounts_are_bounded() {
        let mut mounts = BusyMounts::default();
        for index in 0..10 * CAPACITY {
            let at = u64::try_from(index).unwrap();
            mounts.refused(at, &MountKey::new(2, &format!("/mnt/{index}")), "umount");
        }
        assert!(mounts.known.len() <= CAPACITY);
    }
}
