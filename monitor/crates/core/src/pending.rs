//! Facts whose events are held back until the answer to a request arrives, each until its deadline at the latest.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::hash::Hash;

use kevtmon_observation::BootNs;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Pending facts in order of arrival; `K` identifies the awaited answer, `T` is the fact. What each operation costs does
/// not depend on how many others are pending.
#[derive(Clone)]
pub(super) struct Pending<K, T> {
    entries: BTreeMap<u64, Entry<K, T>>,
    by_answer: HashMap<K, BTreeSet<u64>>,
    by_deadline: BTreeSet<(BootNs, u64)>,
    arrived: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Entry<K, T> {
    deadline: BootNs,
    awaited: K,
    fact: T,
}

impl<K, T> Default for Pending<K, T> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), by_answer: HashMap::new(), by_deadline: BTreeSet::new(), arrived: 0 }
    }
}

impl<K: Eq + Hash + Clone, T> Pending<K, T> {
    /// Holds a fact back until the awaited answer arrives or the deadline passes.
    pub(super) fn push(&mut self, deadline: BootNs, awaited: K, fact: T) {
        self.arrived += 1;
        self.by_answer.entry(awaited.clone()).or_default().insert(self.arrived);
        self.by_deadline.insert((deadline, self.arrived));
        self.entries.insert(self.arrived, Entry { deadline, awaited, fact });
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_awaited(&self, awaited: &K) -> bool {
        self.by_answer.contains_key(awaited)
    }

    pub(super) fn has(&self, matches: impl Fn(&T) -> bool) -> bool {
        self.entries.values().any(|entry| matches(&entry.fact))
    }

    pub(super) fn take_answered(&mut self, answer: &K) -> Vec<T> {
        let answered = self.by_answer.remove(answer).unwrap_or_default();
        answered.into_iter().filter_map(|arrived| self.take(arrived)).collect()
    }

    /// Removes and returns the facts whose deadline has passed, in order of arrival.
    pub(super) fn take_overdue(&mut self, now: BootNs) -> Vec<T> {
        let overdue = self.by_deadline.iter().take_while(|(deadline, _)| *deadline <= now);
        let overdue: BTreeSet<u64> = overdue.map(|(_, arrived)| *arrived).collect();
        overdue.into_iter().filter_map(|arrived| self.take(arrived)).collect()
    }

    pub(super) fn deadline(&self) -> Option<BootNs> {
        self.by_deadline.first().map(|(deadline, _)| *deadline)
    }

    fn take(&mut self, arrived: u64) -> Option<T> {
        let Entry { deadline, awaited, fact } = self.entries.remove(&arrived)?;
        self.by_deadline.remove(&(deadline, arrived));
        if let Some(all) = self.by_answer.get_mut(&awaited) {
            all.remove(&arrived);
            if all.is_empty() {
                self.by_answer.remove(&awaited);
            }
        }
        Some(fact)
    }
}

impl<K: fmt::Debug, T: fmt::Debug> fmt::Debug for Pending<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.entries.values()).finish()
    }
}

impl<K: PartialEq, T: PartialEq> PartialEq for Pending<K, T> {
    fn eq(&self, other: &Self) -> bool {
        self.entries.values().eq(other.entries.values())
    }
}

impl<K: Serialize, T: Serialize> Serialize for Pending<K, T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.entries.values())
    }
}

impl<'de, K, T> Deserialize<'de> for Pending<K, T>
where
    K: Deserialize<'de> + Eq + Hash + Clone,
    T: Deserialize<'de>,
{
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut pending = Self::default();
        for Entry { deadline, awaited, fact } in Vec::<Entry<K, T>>::deserialize(from)? {
            pending.push(deadline, awaited, fact);
        }
        Ok(pending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending() -> Pending<&'static str, u32> {
        let mut pending = Pending::default();
        for (deadline, awaited, fact) in [(30, "a", 1), (10, "b", 2), (20, "a", 3)] {
            pending.push(deadline, awaited, fact);
        }
        pending
    }

    #[test]
    fn an_answer_releases_the_facts_that_await_it_in_order() {
        let mut pending = pending();
        assert!(pending.take_answered(&"c").is_empty());
        assert_eq!(pending.take_answered(&"a"), [1, 3]);
        assert_eq!((pending.len(), pending.is_awaited(&"a"), pending.is_awaited(&"b")), (1, false, true));
    }

    #[test]
    fn no_fact_is_pending_after_its_deadline() {
        let mut pending = pending();
        assert_eq!(pending.deadline(), Some(10));
        assert_eq!(pending.take_overdue(20), [2, 3]);
        assert_eq!(pending.deadline(), Some(30));
    }

    #[test]
    fn a_matching_fact_is_found() {
        assert!(pending().has(|fact| *fact > 1));
        assert!(!pending().has(|fact| *fact > 9));
    }
}
