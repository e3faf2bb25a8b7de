//! Facts whose events wait for an answer, each until a deadline.

use serde::{Deserialize, Serialize};

use crate::observation::BootNs;

/// What waits, in the order in which it came; `Q` is the question, `T` the fact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Held<Q, T> {
    entries: Vec<Entry<Q, T>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Entry<Q, T> {
    deadline: BootNs,
    question: Q,
    fact: T,
}

impl<Q, T> Default for Held<Q, T> {
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}

impl<Q: PartialEq, T> Held<Q, T> {
    /// Holds a fact until the question is answered, but not beyond the deadline.
    pub(super) fn push(&mut self, deadline: BootNs, question: Q, fact: T) {
        self.entries.push(Entry { deadline, question, fact });
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether somebody waits for this answer already.
    pub(super) fn is_asked(&self, question: &Q) -> bool {
        self.entries.iter().any(|entry| entry.question == *question)
    }

    /// Question and deadline of the last of the facts that wait and are such.
    pub(super) fn last(&self, is_such: impl Fn(&T) -> bool) -> Option<(&Q, BootNs)> {
        let entry = self.entries.iter().rev().find(|entry| is_such(&entry.fact))?;
        Some((&entry.question, entry.deadline))
    }

    /// An answer came: gives what waited for it.
    pub(super) fn take_answered(&mut self, question: &Q) -> Vec<T> {
        self.take(|entry| entry.question == *question)
    }

    /// Gives what has waited long enough.
    pub(super) fn take_overdue(&mut self, now: BootNs) -> Vec<T> {
        self.take(|entry| entry.deadline <= now)
    }

    /// When the first of them has waited long enough.
    pub(super) fn deadline(&self) -> Option<BootNs> {
        self.entries.iter().map(|entry| entry.deadline).min()
    }

    fn take(&mut self, is_taken: impl Fn(&Entry<Q, T>) -> bool) -> Vec<T> {
        self.entries.extract_if(.., |entry| is_taken(entry)).map(|entry| entry.fact).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held() -> Held<&'static str, u32> {
        let mut held = Held::default();
        for (deadline, question, fact) in [(30, "a", 1), (10, "b", 2), (20, "a", 3)] {
            held.push(deadline, question, fact);
        }
        held
    }

    #[test]
    fn an_answer_frees_what_waits_for_it_in_order() {
        let mut held = held();
        assert!(held.take_answered(&"c").is_empty());
        assert_eq!(held.take_answered(&"a"), [1, 3]);
        assert_eq!((held.len(), held.is_asked(&"a"), held.is_asked(&"b")), (1, false, true));
    }

    #[test]
    fn nothing_waits_beyond_its_deadline() {
        let mut held = held();
        assert_eq!(held.deadline(), Some(10));
        assert_eq!(held.take_overdue(20), [2, 3]);
        assert_eq!(held.deadline(), Some(30));
    }

    #[test]
    fn the_last_of_some_facts_is_found() {
        assert_eq!(held().last(|fact| *fact > 1), Some((&"a", 20)));
        assert_eq!(held().last(|fact| *fact > 9), None);
    }
}
