//! Deadlines by key, the earliest first. The caller keeps the number of keys within bounds.

use std::collections::{BTreeMap, BTreeSet};

use kevtmon_observation::BootNs;
use serde::de::{Deserialize, Deserializer};
use serde::ser::{Serialize, Serializer};

/// At most one deadline for each key.
#[derive(Debug)]
pub(super) struct Timers<K> {
    by_key: BTreeMap<K, BootNs>,
    by_time: BTreeSet<(BootNs, K)>,
}

impl<K: Ord + Serialize> Serialize for Timers<K> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(&self.by_key)
    }
}

impl<'de, K: Ord + Clone + Deserialize<'de>> Deserialize<'de> for Timers<K> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut timers = Self::default();
        for (key, at) in Vec::<(K, BootNs)>::deserialize(from)? {
            timers.set(&key, at);
        }
        Ok(timers)
    }
}

impl<K> Default for Timers<K> {
    fn default() -> Self {
        Self { by_key: BTreeMap::new(), by_time: BTreeSet::new() }
    }
}

impl<K: Ord + Clone> Timers<K> {
    /// Sets the deadline of a key in place of the one it had.
    pub(super) fn set(&mut self, key: &K, at: BootNs) {
        self.cancel(key);
        self.by_key.insert(key.clone(), at);
        self.by_time.insert((at, key.clone()));
    }

    /// Sets it, unless it has an earlier one.
    pub(super) fn set_earlier(&mut self, key: &K, at: BootNs) {
        if self.by_key.get(key).is_none_or(|old| at < *old) {
            self.set(key, at);
        }
    }

    pub(super) fn cancel(&mut self, key: &K) {
        if let Some((key, at)) = self.by_key.remove_entry(key) {
            self.by_time.remove(&(at, key));
        }
    }

    pub(super) fn next(&self) -> Option<BootNs> {
        self.by_time.first().map(|(at, _)| *at)
    }

    pub(super) fn take_due(&mut self, now: BootNs) -> Option<K> {
        self.next().filter(|at| *at <= now)?;
        let (_, key) = self.by_time.pop_first()?;
        self.by_key.remove(&key);
        Some(key)
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_deadline_comes_first_and_each_key_once() {
        let mut timers = Timers::default();
        timers.set(&"a", 30);
        timers.set(&"b", 20);
        timers.set(&"a", 10);
        timers.set_earlier(&"b", 40);
        assert_eq!(timers.next(), Some(10));
        assert_eq!(timers.take_due(9), None);
        assert_eq!(
            (timers.take_due(25), timers.take_due(25), timers.take_due(99)),
            (Some("a"), Some("b"), None)
        );
        timers.set(&"c", 1);
        timers.cancel(&"c");
        assert_eq!((timers.next(), timers.len()), (None, 0));
    }
}
