//! Facts whose events are held back until the answer to a request arrives, each until its deadline at the latest.

use serde::{Deserialize, Serialize};

use crate::observation::BootNs;

/// Pending facts in order of arrival; `K` identifies the awaited answer, `T` is the fact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Pending<K, T> {
    entries: Vec<Entry<K, T>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Entry<K, T> {
    deadline: BootNs,
    awaited: K,
    fact: T,
}

impl<K, T> Default for Pending<K, T> {
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}

impl<K: PartialEq, T> Pending<K, T> {
    /// Holds a fact back until the awaited answer arrives or the deadline passes.
    pub(super) fn push(&mut self, deadline: BootNs, awaited: K, fact: T) {
        self.entries.push(Entry { deadline, awaited, fact });
    }

    /// Number of pending facts.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether this answer has been requested already.
    pub(super) fn is_awaited(&self, awaited: &K) -> bool {
        self.entries.iter().any(|entry| entry.awaited == *awaited)
    }

    /// Awaited answer and deadline of the newest fact that matches.
    pub(super) fn last_matching(&self, matches: impl Fn(&T) -> bool) -> Option<(&K, BootNs)> {
        let entry = self.entries.iter().rev().find(|entry| matches(&entry.fact))?;
        Some((&entry.awaited, entry.deadline))
    }

    /// Removes and returns the facts that awaited this answer.
    pub(super) fn take_answered(&mut self, answer: &K) -> Vec<T> {
        self.take(|entry| entry.awaited == *answer)
    }

    /// Removes and returns the facts whose deadline has passed.
    pub(super) fn take_overdue(&mut self, now: BootNs) -> Vec<T> {
        self.take(|entry| entry.deadline <= now)
    }

    /// The earliest deadline.
    pub(super) fn deadline(&self) -> Option<BootNs> {
        self.entries.iter().map(|entry| entry.deadline).min()
    }

    fn take(&mut self, is_taken: impl Fn(&Entry<K, T>) -> bool) -> Vec<T> {
        self.entries.extract_if(.., |entry| is_taken(entry)).map(|entry| entry.fact).collect()
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
    fn the_newest_matching_fact_is_found() {
        assert_eq!(pending().last_matching(|fact| *fact > 1), Some((&"a", 20)));
        assert_eq!(pending().last_matching(|fact| *fact > 9), None);
    }
}
