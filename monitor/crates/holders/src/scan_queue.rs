//! The places of those who wait for a look at other processes, shared out so that nobody's requests keep out or delay
//! those of others.
//!
//! Volumes of pods and the host come first. Among all others it goes by turns, by account. When all places of a kind are taken,
//! the account that has most of them loses the newest one.

use std::collections::{BTreeMap, HashMap};

use kevtmon_observation::{Rank, Share};

/// Accounts of which it is remembered when it was their turn last.
const REMEMBERED: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Takes as long as reading one mount table.
    Look,
    /// Reads a few processes.
    Few,
    Scan,
    /// What is left of one whose time ran out.
    Continuation,
}

#[derive(Debug)]
struct Waiting<T> {
    share: Share,
    kind: Kind,
    work: T,
    number: u64,
}

#[derive(Debug)]
pub(super) struct ScanQueue<T> {
    waiting: Vec<Waiting<T>>,
    turns: HashMap<String, u64>,
    number: u64,
}

impl<T> Default for ScanQueue<T> {
    fn default() -> Self {
        Self { waiting: Vec::new(), turns: HashMap::new(), number: 0 }
    }
}

impl<T> ScanQueue<T> {
    /// Gives work a place, of which there are `max` for its kind. Returns who has none any more: it may be this very
    /// work.
    pub(super) fn add(&mut self, share: Share, kind: Kind, work: T, max: usize) -> Option<T> {
        self.number += 1;
        self.waiting.push(Waiting { share, kind, work, number: self.number });
        let taken = self.waiting.iter().filter(|waiting| waiting.kind == kind).count();
        if taken <= max {
            return None;
        }
        let loser = self.loser(kind)?;
        Some(self.waiting.remove(loser).work)
    }

    /// The newest of the account that has most places of the lowest rank.
    fn loser(&self, kind: Kind) -> Option<usize> {
        let of_kind = || self.waiting.iter().enumerate().filter(|(_, waiting)| waiting.kind == kind);
        let rank = of_kind().map(|(_, waiting)| waiting.share.rank).max()?;
        let mut taken: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for (index, waiting) in of_kind().filter(|(_, waiting)| waiting.share.rank == rank) {
            let (count, newest) = taken.entry(waiting.share.account.as_str()).or_default();
            (*count, *newest) = (*count + 1, index);
        }
        // Of equals, the one that came last.
        taken.into_values().max().map(|(_, newest)| newest)
    }

    /// Takes the next work that may be done now.
    pub(super) fn next(&mut self, may: impl Fn(Rank, Kind) -> bool) -> Option<(Share, T)> {
        let ready =
            self.waiting.iter().enumerate().filter(|(_, waiting)| may(waiting.share.rank, waiting.kind));
        let next = ready.min_by_key(|(_, waiting)| self.order(waiting)).map(|(index, _)| index)?;
        let Waiting { share, work, .. } = self.waiting.remove(next);
        self.number += 1;
        if share.rank == Rank::Other {
            if self.turns.len() == REMEMBERED {
                self.turns.clear();
            }
            self.turns.insert(share.account.clone(), self.number);
        }
        Some((share, work))
    }

    /// What comes first, in the order of importance.
    fn order(&self, waiting: &Waiting<T>) -> (bool, u64, Kind, Rank, u64) {
        let Waiting { share, kind, number, .. } = waiting;
        let is_other = share.rank == Rank::Other;
        let turn = if is_other { self.turns.get(&share.account).copied().unwrap_or_default() } else { 0 };
        (is_other, turn, *kind, share.rank, *number)
    }

    /// How many wait for which this holds.
    pub(super) fn count(&self, which: impl Fn(Kind, &T) -> bool) -> usize {
        self.waiting.iter().filter(|waiting| which(waiting.kind, &waiting.work)).count()
    }

    /// Whether anything waits for which this holds.
    pub(super) fn any(&self, which: impl Fn(Rank, Kind) -> bool) -> bool {
        self.waiting.iter().any(|waiting| which(waiting.share.rank, waiting.kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(rank: Rank, account: &str) -> Share {
        Share { rank, account: account.to_owned() }
    }

    fn other(account: &str) -> Share {
        share(Rank::Other, account)
    }

    fn all(places: &mut ScanQueue<u32>) -> Vec<u32> {
        std::iter::from_fn(|| places.next(|_, _| true)).map(|(_, work)| work).collect()
    }

    #[test]
    fn whoever_has_most_places_loses_one_to_whoever_has_none() {
        let mut places = ScanQueue::default();
        for work in 0..4 {
            assert_eq!(places.add(other("a"), Kind::Scan, work, 4), None);
        }
        assert_eq!(places.add(other("a"), Kind::Scan, 9, 4), Some(9), "it has all of them already");
        assert_eq!(places.add(other("b"), Kind::Scan, 10, 4), Some(3));
        assert_eq!(places.add(other("b"), Kind::Scan, 11, 4), Some(2));
        assert_eq!(places.add(other("b"), Kind::Scan, 12, 4), Some(12), "each has half");
        assert_eq!(places.add(share(Rank::Host, "x.service"), Kind::Scan, 20, 4), Some(11));
        assert_eq!(places.add(other("b"), Kind::Few, 30, 4), None, "another kind");
        assert_eq!(all(&mut places), [20, 30, 0, 10, 1]);
    }

    #[test]
    fn volumes_and_the_host_come_first_and_others_by_turns() {
        let mut places = ScanQueue::default();
        for work in 0..3 {
            places.add(other("a"), Kind::Scan, work, 32);
        }
        places.add(other("b"), Kind::Scan, 10, 32);
        places.add(share(Rank::Host, "a.service"), Kind::Scan, 20, 32);
        places.add(share(Rank::Volume, "kubelet.service"), Kind::Scan, 21, 32);
        places.add(share(Rank::Host, "a.service"), Kind::Look, 22, 32);
        assert_eq!(all(&mut places), [22, 21, 20, 0, 10, 1, 2]);
        // Who had a turn waits for who had none, though nothing else of it waits.
        places.add(other("a"), Kind::Scan, 30, 32);
        places.add(other("c"), Kind::Scan, 31, 32);
        assert_eq!(all(&mut places), [31, 30]);
    }

    #[test]
    fn what_may_not_be_done_yet_waits() {
        let mut places = ScanQueue::default();
        places.add(other("a"), Kind::Look, 1, 32);
        assert_eq!(places.next(|rank, _| rank != Rank::Other), None);
        assert!(places.any(|rank, _| rank == Rank::Other) && !places.any(|_, kind| kind == Kind::Scan));
        assert_eq!(places.next(|_, _| true), Some((other("a"), 1)));
    }

    #[test]
    fn turns_of_strangers_without_end_are_not_remembered_for_ever() {
        let mut places = ScanQueue::default();
        for number in 0..10_000 {
            places.add(other(&number.to_string()), Kind::Look, number, 32);
            places.next(|_, _| true);
        }
        assert!(places.turns.len() <= REMEMBERED);
    }
}
