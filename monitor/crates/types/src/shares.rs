//! How much of something bounded each of many has, and who has most of it: whoever takes more than others is the first to
//! give some back.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone)]
pub struct Shares<K> {
    /// A tree, as all maps are in which many come and go: a hash table is made twice as large for the places of those that
    /// went, though no more are in it.
    by_holder: BTreeMap<K, u64>,
    by_size: BTreeSet<(u64, K)>,
    total: u64,
}

impl<K> Default for Shares<K> {
    fn default() -> Self {
        Self { by_holder: BTreeMap::new(), by_size: BTreeSet::new(), total: 0 }
    }
}

impl<K: Ord + Clone> Shares<K> {
    pub fn add(&mut self, holder: &K, size: u64) {
        self.total = self.total.saturating_add(size);
        self.set(holder, self.of(holder).saturating_add(size));
    }

    pub fn remove(&mut self, holder: &K, size: u64) {
        let before = self.of(holder);
        self.total = self.total.saturating_sub(size.min(before));
        self.set(holder, before.saturating_sub(size));
    }

    /// The share of one.
    pub fn of<Q>(&self, holder: &Q) -> u64
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.by_holder.get(holder).copied().unwrap_or(0)
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    /// Who has most, with the share; each takes as many steps to find as the logarithm of their number.
    pub fn largest(&self) -> Option<(&K, u64)> {
        self.by_size.last().map(|(size, holder)| (holder, *size))
    }

    fn set(&mut self, holder: &K, size: u64) {
        let before = match size {
            0 => self.by_holder.remove(holder),
            size => self.by_holder.insert(holder.clone(), size),
        };
        if let Some(before) = before {
            self.by_size.remove(&(before, holder.clone()));
        }
        if size > 0 {
            self.by_size.insert((size, holder.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_most_is_known_at_any_time() {
        let mut shares = Shares::default();
        assert_eq!(shares.largest(), None);
        for (holder, size) in [("a", 5), ("b", 7), ("a", 3)] {
            shares.add(&holder, size);
        }
        assert_eq!((shares.largest(), shares.total()), (Some((&"a", 8)), 15));
        shares.remove(&"a", 2);
        assert_eq!(shares.largest(), Some((&"b", 7)));
        shares.remove(&"b", 99);
        assert_eq!((shares.of("b"), shares.largest(), shares.total()), (0, Some((&"a", 6)), 6));
    }
}
