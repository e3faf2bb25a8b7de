//! When to read which namespaces again: bounded in number, and in batches when all of them are due.

use std::collections::BTreeSet;

use kevtmon_observation::{BootNs, NsInum};
use serde::{Deserialize, Serialize};

use super::timers::Timers;
use super::{CAPACITY, SECOND};

/// All namespaces are read again at most once in this time, however many records were lost.
const ALL_INTERVAL: BootNs = 30 * SECOND;
const BATCH: usize = 8;
/// Time between batches: a few hundred namespaces take a few seconds, at a few percent of a core.
const BATCH_INTERVAL: BootNs = SECOND / 4;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct RereadSchedule {
    timers: Timers<NsInum>,
    all: Option<BootNs>,
    last_all: Option<BootNs>,
    remaining: BTreeSet<NsInum>,
    next_batch: BootNs,
}

impl RereadSchedule {
    /// Schedules one namespace, unless it is due earlier already.
    pub(super) fn schedule(&mut self, netns: NsInum, at: BootNs) {
        if self.timers.len() < CAPACITY {
            self.timers.set_earlier(&netns, at);
        }
    }

    pub(super) fn schedule_all(&mut self, now: BootNs) {
        let earliest = self.last_all.map_or(now, |last| now.max(last.saturating_add(ALL_INTERVAL)));
        self.all.get_or_insert(earliest);
    }

    pub(super) fn cancel(&mut self, netns: NsInum) {
        self.timers.cancel(&netns);
    }

    pub(super) fn forget(&mut self, netns: NsInum) {
        self.timers.cancel(&netns);
        self.remaining.remove(&netns);
    }

    pub(super) fn next(&self) -> Option<BootNs> {
        let batch = (!self.remaining.is_empty()).then_some(self.next_batch);
        self.timers.next().into_iter().chain(self.all).chain(batch).min()
    }

    /// Removes and returns the namespaces that are due; `all` lists all existing ones.
    pub(super) fn take_due(
        &mut self,
        now: BootNs,
        all: impl FnOnce() -> BTreeSet<NsInum>,
    ) -> BTreeSet<NsInum> {
        if self.all.take_if(|due| *due <= now).is_some() {
            self.last_all = Some(now);
            self.remaining = all();
            self.next_batch = now;
        }
        let mut due = BTreeSet::new();
        if self.next_batch <= now {
            due.extend((0..BATCH).map_while(|_| self.remaining.pop_first()));
            self.next_batch = now.saturating_add(BATCH_INTERVAL);
        }
        while let Some(netns) = self.timers.take_due(now) {
            due.insert(netns);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_loss_every_namespace_is_read_once_and_a_few_at_a_time() {
        let mut rereads = RereadSchedule::default();
        rereads.schedule_all(0);
        rereads.schedule_all(0);
        let mut read = Vec::new();
        while let Some(next) = rereads.next() {
            let due = rereads.take_due(next, || (0..20).collect());
            assert!(due.len() <= BATCH);
            read.extend(due);
            assert!(next < SECOND);
        }
        assert_eq!(read, (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn a_storm_of_losses_reads_everything_at_most_twice_a_minute() {
        let mut rereads = RereadSchedule::default();
        let mut read = 0;
        for now in (0..60 * SECOND).step_by(100_000_000) {
            rereads.schedule_all(now);
            read += rereads.take_due(now, || BTreeSet::from([7])).len();
        }
        assert_eq!(read, 2);
    }

    #[test]
    fn a_namespace_that_is_gone_is_not_read() {
        let mut rereads = RereadSchedule::default();
        rereads.schedule(7, 5);
        rereads.forget(7);
        assert_eq!(rereads.next(), None);
    }
}
