//! When to discover namespaces and to read which of them. Pure: time is an argument.
//!
//! One job at a time. Discoveries wait until a burst of changes has passed and take at most a twentieth of the
//! time; a namespace is read again, and the whole node after a gap, at most once a second.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use kevtmon_observation::NsInum;

/// A burst of changes is over after that.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// Between two readings of the same thing.
const SPACING: Duration = Duration::from_secs(1);
/// A discovery is followed by a pause of so many times its duration.
const DISCOVERY_PAUSE: u32 = 19;
/// Failed readings of a namespace before it is not tried again.
const ATTEMPTS: u32 = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// Find the namespaces; with `all`, to read every one.
    Discover {
        all: bool,
    },
    Read(NsInum),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FullRead {
    Start,
    Resync(BTreeSet<&'static str>),
}

#[derive(Debug, Default)]
pub(super) struct ReadSchedule {
    full_read: Option<FullRead>,
    /// When the discovery of the running full read is due, if it has not started.
    full_discovery: Option<Instant>,
    /// Reasons for the next full read, and when it may start.
    gap: Option<(BTreeSet<&'static str>, Instant)>,
    last_full_read: Option<Instant>,
    discovery: Option<Instant>,
    discovery_not_before: Option<Instant>,
    last_discovery: Option<Instant>,
    queue: VecDeque<NsInum>,
    stale: HashMap<NsInum, Instant>,
    last_read: HashMap<NsInum, Instant>,
    failures: HashMap<NsInum, u32>,
}

impl ReadSchedule {
    pub(super) fn new(now: Instant) -> Self {
        Self { full_read: Some(FullRead::Start), full_discovery: Some(now), ..Self::default() }
    }

    /// Messages were lost. True if this reason is new: the same loss is not reported twice before it is repaired.
    pub(super) fn gap(&mut self, reason: &'static str, now: Instant) -> bool {
        let earliest = self.last_full_read.map_or(now, |last| (last + SPACING).max(now)) + DEBOUNCE;
        self.gap.get_or_insert_with(|| (BTreeSet::new(), earliest)).0.insert(reason)
    }

    pub(super) fn plan_discovery(&mut self, now: Instant, tries: u32) {
        let soon = now + DEBOUNCE * 2_u32.saturating_pow(tries);
        let allowed = self.discovery_not_before.map_or(soon, |earliest| earliest.max(soon));
        self.discovery = Some(self.discovery.map_or(allowed, |planned| planned.min(allowed)));
    }

    /// Whether the last discovery is old, and another one may start as soon as a burst is over.
    pub(super) fn should_discover(&self, now: Instant) -> bool {
        self.last_discovery.is_none_or(|last| last + SPACING <= now)
            && self.discovery_not_before.is_none_or(|earliest| earliest <= now + DEBOUNCE)
    }

    /// A discovery took this long; it has to be planned again if needed.
    pub(super) fn discovery_done(&mut self, now: Instant, took: Duration) {
        self.discovery = None;
        self.last_discovery = Some(now);
        self.discovery_not_before = Some(now + took * DISCOVERY_PAUSE);
    }

    pub(super) fn enqueue(&mut self, netns: NsInum) {
        self.stale.remove(&netns);
        if !self.queue.contains(&netns) {
            self.queue.push_back(netns);
        }
    }

    /// Something changed in it that no message reported: plans to read it again.
    pub(super) fn mark_stale(&mut self, netns: NsInum, now: Instant) {
        let spaced = self.last_read.get(&netns).map_or(now, |last| *last + SPACING);
        self.stale.entry(netns).or_insert(spaced.max(now + DEBOUNCE));
    }

    pub(super) fn read_done(&mut self, netns: NsInum, now: Instant) {
        self.last_read.insert(netns, now);
        self.failures.remove(&netns);
    }

    /// It could not be read. False if it is not tried again; with `is_required` it always is.
    pub(super) fn read_failed(&mut self, netns: NsInum, now: Instant, is_required: bool) -> bool {
        let failures = self.failures.entry(netns).or_insert(0);
        *failures += 1;
        if *failures >= ATTEMPTS && !is_required {
            self.failures.remove(&netns);
            return false;
        }
        self.stale.insert(netns, now + (DEBOUNCE * 2_u32.saturating_pow(*failures)).min(SPACING));
        true
    }

    /// A discovery has failed: plans it again.
    pub(super) fn postpone(&mut self, all: bool, now: Instant) {
        let again = if all { &mut self.full_discovery } else { &mut self.discovery };
        *again = Some(now + SPACING);
    }

    pub(super) fn forget(&mut self, netns: NsInum) {
        self.queue.retain(|queued| *queued != netns);
        self.stale.remove(&netns);
        self.last_read.remove(&netns);
        self.failures.remove(&netns);
    }

    pub(super) fn next(&mut self, now: Instant) -> Option<Work> {
        if self.full_read.is_none()
            && let Some((reasons, _)) = self.gap.take_if(|(_, due)| *due <= now)
        {
            self.full_read = Some(FullRead::Resync(reasons));
            self.full_discovery = Some(now);
        }
        let all = self.full_discovery.take_if(|due| *due <= now).is_some();
        if all || self.discovery.is_some_and(|due| due <= now) {
            self.discovery = None;
            return Some(Work::Discover { all });
        }
        let mut due: Vec<NsInum> =
            self.stale.iter().filter(|(_, due)| **due <= now).map(|(netns, _)| *netns).collect();
        due.sort_unstable();
        due.into_iter().for_each(|netns| self.enqueue(netns));
        self.queue.pop_front().map(Work::Read)
    }

    /// The running full read, if nothing of it is left to do. Call this only while no job is running.
    pub(super) fn finish(&mut self, now: Instant) -> Option<FullRead> {
        if self.full_discovery.is_some() || !self.queue.is_empty() || !self.failures.is_empty() {
            return None;
        }
        let full_read = self.full_read.take()?;
        self.last_full_read = Some(now);
        Some(full_read)
    }

    pub(super) fn is_reading_all(&self) -> bool {
        self.full_read.is_some()
    }

    /// When the next job is due, if nothing else happens.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let gap = self.gap.as_ref().filter(|_| self.full_read.is_none()).map(|(_, due)| *due);
        self.stale.values().copied().chain(self.discovery).chain(self.full_discovery).chain(gap).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(now: Instant) -> ReadSchedule {
        let mut schedule = ReadSchedule::new(now);
        assert_eq!(schedule.next(now), Some(Work::Discover { all: true }));
        assert_eq!(schedule.finish(now), Some(FullRead::Start));
        schedule
    }

    #[test]
    fn a_storm_of_gaps_is_repaired_at_most_once_a_second() {
        let start = Instant::now();
        let mut schedule = started(start);
        assert!(schedule.gap("overrun", start));
        assert!(!schedule.gap("overrun", start), "the same gap again is not reported again");
        assert!(schedule.gap("decode", start));
        assert_eq!(schedule.next(start), None);
        let due = schedule.deadline().unwrap();
        assert!(due >= start + SPACING);
        assert_eq!(schedule.next(due), Some(Work::Discover { all: true }));
        schedule.enqueue(7);
        assert_eq!(schedule.finish(due), None);
        assert_eq!(schedule.next(due), Some(Work::Read(7)));
        let Some(FullRead::Resync(reasons)) = schedule.finish(due) else { panic!("not finished") };
        assert_eq!(reasons, BTreeSet::from(["decode", "overrun"]));
        assert_eq!(schedule.deadline(), None);
    }

    #[test]
    fn a_gap_during_a_cycle_is_repaired_after_it() {
        let start = Instant::now();
        let mut schedule = ReadSchedule::new(start);
        schedule.next(start);
        schedule.gap("overrun", start);
        assert_eq!(schedule.next(start + SPACING), None, "the start is still under way");
        assert_eq!(schedule.finish(start + SPACING), Some(FullRead::Start));
        assert_eq!(schedule.next(start + SPACING * 3), Some(Work::Discover { all: true }));
    }

    #[test]
    fn a_long_survey_makes_the_next_one_wait() {
        let start = Instant::now();
        let mut schedule = started(start);
        schedule.discovery_done(start, Duration::from_millis(100));
        schedule.plan_discovery(start, 0);
        assert_eq!(schedule.deadline(), Some(start + Duration::from_millis(1900)));
        schedule.plan_discovery(start, 3);
        assert_eq!(schedule.deadline(), Some(start + Duration::from_millis(1900)));
    }

    #[test]
    fn a_stale_namespace_is_read_once_after_a_burst_and_not_again_within_a_second() {
        let start = Instant::now();
        let mut schedule = started(start);
        schedule.mark_stale(7, start);
        schedule.mark_stale(7, start + DEBOUNCE / 2);
        assert_eq!(schedule.deadline(), Some(start + DEBOUNCE));
        assert_eq!(schedule.next(start + DEBOUNCE), Some(Work::Read(7)));
        schedule.read_done(7, start + DEBOUNCE);
        schedule.mark_stale(7, start + DEBOUNCE * 2);
        assert_eq!(schedule.deadline(), Some(start + DEBOUNCE + SPACING));
    }

    #[test]
    fn a_namespace_that_cannot_be_read_is_given_up_but_the_host_never() {
        let now = Instant::now();
        let mut schedule = started(now);
        for _ in 1..ATTEMPTS {
            assert!(schedule.read_failed(7, now, false));
        }
        assert!(!schedule.read_failed(7, now, false));
        for _ in 0..40 {
            assert!(schedule.read_failed(1, now, true));
        }
    }
}
