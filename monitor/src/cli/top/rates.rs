//! How often something occurred in the last minute, by name.

use std::collections::{BTreeMap, VecDeque};

/// Seconds that are counted.
const MINUTE: u64 = 60;
/// Names of one second that are counted apart: users choose names of pods.
const NAMES_MAX: usize = 256;

/// Counts by second and name.
#[derive(Debug, Default)]
pub(super) struct Rates(VecDeque<(u64, BTreeMap<String, u64>)>);

impl Rates {
    /// Forgets what is older than a minute at this second.
    pub(super) fn advance(&mut self, now: u64) {
        while self.0.front().is_some_and(|(second, _)| second + MINUTE <= now) {
            self.0.pop_front();
        }
    }

    /// Counts what occurs now.
    pub(super) fn count(&mut self, now: u64, name: String) {
        if self.0.back().is_none_or(|(second, _)| *second != now) {
            self.0.push_back((now, BTreeMap::new()));
        }
        let Some((_, names)) = self.0.back_mut() else { return };
        let has_room = names.len() < NAMES_MAX || names.contains_key(&name);
        *names.entry(if has_room { name } else { "(others)".to_owned() }).or_default() += 1;
    }

    /// The most frequent names, each with its count.
    pub(super) fn top(&self, most: usize) -> Vec<(&str, u64)> {
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        for (name, count) in self.0.iter().flat_map(|(_, names)| names) {
            *sums.entry(name).or_default() += count;
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        sums.truncate(most);
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_older_than_a_minute_is_not_counted() {
        let mut rates = Rates::default();
        for (second, name) in [(0, "b"), (1, "a"), (59, "b"), (59, "b")] {
            rates.count(second, name.into());
        }
        rates.advance(59);
        assert_eq!(rates.top(9), [("b", 3), ("a", 1)]);
        assert_eq!(rates.top(1), [("b", 3)]);
        rates.advance(60);
        assert_eq!(rates.top(9), [("b", 2), ("a", 1)]);
        rates.advance(200);
        assert_eq!(rates.top(9), []);
    }

    #[test]
    fn any_number_of_names_takes_bounded_memory() {
        let mut rates = Rates::default();
        (0..10_000).for_each(|pod| rates.count(1, format!("pod-{pod}")));
        assert_eq!(rates.top(1), [("(others)", 10_000 - 256)]);
        assert_eq!(rates.top(usize::MAX).len(), NAMES_MAX + 1);
    }
}
