//! What namespaces call each other: small numbers, given by each namespace to others, and reused.
//!
//! Pure bookkeeping. The host's own numbers come from surveys and from the stream; those that other
//! namespaces use come from their dumps.

use std::collections::{HashMap, HashSet};

use crate::observation::NsInum;

/// Surveys that may fail to find the namespace behind a number before it is left alone.
const TRIES: u32 = 5;

/// What is known of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    Known(NsInum),
    /// The kernel was asked, and did not tell.
    Unknowable,
    Unknown,
}

/// The numbers of the host and of the other namespaces.
#[derive(Debug, Default)]
pub(super) struct NsidTable {
    host: HashMap<i32, NsInum>,
    others: HashMap<(NsInum, i32), Option<NsInum>>,
    /// Taken back since the running survey began: what the survey says of them may be old.
    touched: HashSet<i32>,
    /// Heard, and not found by so many surveys.
    missed: HashMap<i32, u32>,
}

impl NsidTable {
    /// The namespace that the host calls so.
    pub(super) fn get(&self, nsid: i32) -> Option<NsInum> {
        self.host.get(&nsid).copied()
    }

    /// The namespace that `netns` calls so.
    pub(super) fn peer(&self, host: NsInum, netns: NsInum, nsid: i32) -> Name {
        if netns == host {
            return self.get(nsid).map_or(Name::Unknown, Name::Known);
        }
        match self.others.get(&(netns, nsid)) {
            Some(Some(peer)) => Name::Known(*peer),
            Some(None) => Name::Unknowable,
            None => Name::Unknown,
        }
    }

    /// Learns what `netns` calls another.
    pub(super) fn learn(&mut self, netns: NsInum, nsid: i32, peer: Option<NsInum>) {
        self.others.insert((netns, nsid), peer);
    }

    /// `netns` gave the number anew or took it back.
    pub(super) fn unlearn(&mut self, netns: NsInum, nsid: i32) {
        self.others.remove(&(netns, nsid));
    }

    /// The host took the number back from who had it.
    pub(super) fn release(&mut self, nsid: i32) -> Option<NsInum> {
        self.touched.insert(nsid);
        self.missed.remove(&nsid);
        self.host.remove(&nsid)
    }

    /// An unknown number was heard. Tells how often it was looked for, if it is worth another try.
    pub(super) fn miss(&mut self, nsid: i32) -> Option<u32> {
        let tries = *self.missed.entry(nsid).or_insert(0);
        (tries < TRIES).then_some(tries)
    }

    /// A survey begins.
    pub(super) fn begin_survey(&mut self) {
        self.touched.clear();
    }

    /// A survey ended. `afresh`: what is not in it is forgotten, because the stream had a gap.
    /// Returns the namespaces that are heard from now on, and were not before.
    pub(super) fn surveyed(
        &mut self,
        found: impl Iterator<Item = (i32, NsInum)>,
        afresh: bool,
    ) -> HashSet<NsInum> {
        let found: HashMap<i32, NsInum> = found.filter(|(nsid, _)| !self.touched.contains(nsid)).collect();
        let before = std::mem::take(&mut self.host);
        let gained =
            found.iter().filter(|(nsid, netns)| before.get(nsid) != Some(netns)).map(|(_, n)| *n).collect();
        if !afresh {
            // A namespace without a handle is still heard; one that has another number by now is not
            // heard by the old one.
            let renamed: HashSet<NsInum> = found.values().copied().collect();
            self.host.extend(before.into_iter().filter(|(_, netns)| !renamed.contains(netns)));
        }
        self.host.extend(found);
        self.missed.retain(|nsid, _| !self.host.contains_key(nsid));
        for tries in self.missed.values_mut() {
            *tries += 1;
        }
        gained
    }

    /// The most patient of the numbers that are still worth looking for has been tried so often.
    pub(super) fn tries(&self) -> Option<u32> {
        self.missed.values().copied().filter(|tries| *tries < TRIES).min()
    }

    /// Whether messages of the namespace are heard.
    pub(super) fn hears(&self, netns: NsInum) -> bool {
        self.host.values().any(|heard| *heard == netns)
    }

    /// The namespace is gone, or out of reach. The host's number for it stays until it is taken back:
    /// messages under it are nobody's news.
    pub(super) fn forget(&mut self, netns: NsInum) {
        self.others.retain(|(namer, _), named| *namer != netns && *named != Some(netns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_changed_hands_during_a_survey_is_not_believed() {
        let mut table = NsidTable::default();
        assert_eq!(table.surveyed([(1, 100)].into_iter(), false), HashSet::from([100]));
        table.begin_survey();
        assert_eq!(table.release(1), Some(100));
        assert!(table.surveyed([(1, 100), (2, 200)].into_iter(), false).contains(&200));
        assert_eq!(table.get(1), None);
        assert_eq!(table.get(2), Some(200));
    }

    #[test]
    fn a_namespace_without_a_handle_is_still_heard_unless_the_stream_had_a_gap() {
        let mut table = NsidTable::default();
        table.surveyed([(1, 100), (2, 200)].into_iter(), false);
        table.surveyed([(2, 200)].into_iter(), false);
        assert_eq!(table.get(1), Some(100));
        table.surveyed([(2, 200)].into_iter(), true);
        assert_eq!(table.get(1), None);
    }

    #[test]
    fn a_number_that_no_survey_explains_is_left_alone_until_it_changes_hands() {
        let mut table = NsidTable::default();
        for _ in 0..TRIES {
            assert!(table.miss(5).is_some());
            assert!(table.tries().is_some());
            table.surveyed([].into_iter(), false);
        }
        assert_eq!(table.miss(5), None);
        assert_eq!(table.tries(), None);
        table.release(5);
        assert_eq!(table.miss(5), Some(0));
    }

    #[test]
    fn the_same_number_means_another_namespace_elsewhere() {
        let mut table = NsidTable::default();
        table.surveyed([(0, 100)].into_iter(), false);
        table.learn(100, 0, Some(1));
        table.learn(100, 7, None);
        assert_eq!(table.peer(1, 1, 0), Name::Known(100));
        assert_eq!(table.peer(1, 100, 0), Name::Known(1));
        assert_eq!(table.peer(1, 100, 7), Name::Unknowable);
        assert_eq!(table.peer(1, 100, 8), Name::Unknown);
        table.forget(100);
        assert_eq!(table.peer(1, 100, 0), Name::Unknown);
        assert_eq!(table.get(0), Some(100));
    }
}
