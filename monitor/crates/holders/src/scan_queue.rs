//! The places of those who wait for a look at other processes, shared out so that nobody's requests keep out or delay
//! those of others.
//!
//! Volumes of pods and the host come first. Among all others it goes by turns: by account, within it by user, within
//! that by mount namespace. When all places of a kind are taken, whoever has most of them loses the newest one.

use std::collections::{BTreeMap, HashMap};

use kevtmon_observation::{NsInum, Rank, Share};

/// Accounts, users and mount namespaces of which it is remembered when it was their turn last.
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

/// Who of a share is counted or has a turn, from the outside in: an account, a user of it, a namespace of that.
type Party<'a> = (&'a str, Option<u32>, Option<NsInum>);

fn parties(share: &Share) -> [Party<'_>; 3] {
    let Share { account, uid, mntns, .. } = share;
    [(account, None, None), (account, Some(*uid), None), (account, Some(*uid), Some(*mntns))]
}

#[derive(Debug)]
pub(super) struct ScanQueue<T> {
    waiting: Vec<Waiting<T>>,
    scan_order: HashMap<(String, Option<u32>, Option<NsInum>), u64>,
    number: u64,
}

impl<T> Default for ScanQueue<T> {
    fn default() -> Self {
        Self { waiting: Vec::new(), scan_order: HashMap::new(), number: 0 }
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

    /// The newest of whoever has most places of the lowest rank.
    fn loser(&self, kind: Kind) -> Option<usize> {
        let of_kind = || self.waiting.iter().enumerate().filter(|(_, waiting)| waiting.kind == kind);
        let rank = of_kind().map(|(_, waiting)| waiting.share.rank).max()?;
        let mut left: Vec<(usize, &Waiting<T>)> =
            of_kind().filter(|(_, waiting)| waiting.share.rank == rank).collect();
        for level in 0..3 {
            let mut taken: BTreeMap<Party<'_>, (usize, u64)> = BTreeMap::new();
            for (_, waiting) in &left {
                let (count, newest) = taken.entry(parties(&waiting.share)[level]).or_default();
                (*count, *newest) = (*count + 1, waiting.number.max(*newest));
            }
            // Of equals, whoever came last.
            let most = taken.into_iter().max_by_key(|(_, taken)| *taken).map(|(party, _)| party)?;
            left.retain(|(_, waiting)| parties(&waiting.share)[level] == most);
        }
        left.into_iter().max_by_key(|(_, waiting)| waiting.number).map(|(index, _)| index)
    }

    /// Takes the next work that may be done now.
    pub(super) fn next(&mut self, may: impl Fn(Rank, Kind) -> bool) -> Option<(Share, T)> {
        let ready =
            self.waiting.iter().enumerate().filter(|(_, waiting)| may(waiting.share.rank, waiting.kind));
        let next = ready.min_by_key(|(_, waiting)| self.order(waiting)).map(|(index, _)| index)?;
        let Waiting { share, work, .. } = self.waiting.remove(next);
        self.number += 1;
        if share.rank == Rank::Other {
            self.note_turn(&share);
        }
        Some((share, work))
    }

    /// What comes first, in the order of importance.
    fn order(&self, waiting: &Waiting<T>) -> (bool, [u64; 3], Kind, Rank, u64) {
        let Waiting { share, kind, number, .. } = waiting;
        let is_other = share.rank == Rank::Other;
        let last = |(account, uid, mntns): Party<'_>| {
            self.scan_order.get(&(account.to_owned(), uid, mntns)).copied().unwrap_or_default()
        };
        let scan_order = if is_other { parties(share).map(last) } else { [0; 3] };
        (is_other, scan_order, *kind, share.rank, *number)
    }

    fn note_turn(&mut self, share: &Share) {
        for (account, uid, mntns) in parties(share) {
            self.scan_order.insert((account.to_owned(), uid, mntns), self.number);
        }
        if self.scan_order.len() > REMEMBERED {
            let mut scan_order: Vec<u64> = self.scan_order.values().copied().collect();
            scan_order.sort_unstable();
            let middle = scan_order[scan_order.len() / 2];
            self.scan_order.retain(|_, turn| *turn > middle);
        }
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

    fn share(rank: Rank, account: &str, uid: u32, mntns: NsInum) -> Share {
        Share { rank, account: account.to_owned(), uid, mntns }
    }

    fn other(uid: u32, mntns: NsInum) -> Share {
        share(Rank::Other, "user.slice", uid, mntns)
    }

    fn all(places: &mut ScanQueue<u32>) -> Vec<u32> {
        std::iter::from_fn(|| places.next(|_, _| true)).map(|(_, work)| work).collect()
    }

    #[test]
    fn whoever_has_most_places_loses_one_to_whoever_has_none() {
        let mut places = ScanQueue::default();
        for work in 0..4 {
            assert_eq!(places.add(other(1000, work), Kind::Scan, work, 4), None);
        }
        assert_eq!(places.add(other(1000, 9), Kind::Scan, 9, 4), Some(9), "it has all of them already");
        assert_eq!(places.add(other(1001, 1), Kind::Scan, 10, 4), Some(3));
        assert_eq!(places.add(other(1001, 1), Kind::Scan, 11, 4), Some(2));
        assert_eq!(places.add(other(1001, 1), Kind::Scan, 12, 4), Some(12), "each has half");
        assert_eq!(places.add(share(Rank::Host, "x.service", 0, 1), Kind::Scan, 20, 4), Some(11));
        assert_eq!(places.add(other(1001, 1), Kind::Few, 30, 4), None, "another kind");
        assert_eq!(all(&mut places), [20, 30, 0, 10, 1]);
    }

    #[test]
    fn a_user_with_many_namespaces_and_one_with_many_ids_have_one_share_each() {
        let mut places = ScanQueue::default();
        for work in 0..6 {
            places.add(share(Rank::Other, "user-1000.slice", 100_000 + work, 7), Kind::Scan, work, 8);
            places.add(share(Rank::Other, "docker-a", 0, work), Kind::Scan, 100 + work, 8);
        }
        assert_eq!(places.add(share(Rank::Other, "docker-b", 0, 1), Kind::Scan, 200, 8), Some(103));
        assert_eq!(all(&mut places)[..3], [0, 100, 200]);
    }

    #[test]
    fn volumes_and_the_host_come_first_and_others_by_turns() {
        let mut places = ScanQueue::default();
        for work in 0..3 {
            places.add(other(1000, 5), Kind::Scan, work, 32);
        }
        places.add(other(1001, 6), Kind::Scan, 10, 32);
        places.add(share(Rank::Host, "a.service", 0, 1), Kind::Scan, 20, 32);
        places.add(share(Rank::Volume, "kubelet.service", 0, 1), Kind::Scan, 21, 32);
        places.add(share(Rank::Host, "a.service", 0, 1), Kind::Look, 22, 32);
        assert_eq!(all(&mut places), [22, 21, 20, 0, 10, 1, 2]);
        // Who had a turn waits for who had none, though nothing else of it waits.
        places.add(other(1000, 5), Kind::Scan, 30, 32);
        places.add(other(1002, 6), Kind::Scan, 31, 32);
        assert_eq!(all(&mut places), [31, 30]);
    }

    #[test]
    fn what_may_not_be_done_yet_waits() {
        let mut places = ScanQueue::default();
        places.add(other(1000, 5), Kind::Look, 1, 32);
        assert_eq!(places.next(|rank, _| rank != Rank::Other), None);
        assert!(places.any(|rank, _| rank == Rank::Other) && !places.any(|_, kind| kind == Kind::Scan));
        assert_eq!(places.next(|_, _| true), Some((other(1000, 5), 1)));
    }

    #[test]
    fn turns_of_strangers_without_end_are_not_remembered_for_ever() {
        let mut places = ScanQueue::default();
        for uid in 0..10_000 {
            places.add(other(uid, uid), Kind::Look, uid, 32);
            places.next(|_, _| true);
        }
        assert!(places.scan_order.len() <= REMEMBERED);
    }
}
