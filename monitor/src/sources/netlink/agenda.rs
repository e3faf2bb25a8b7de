//! What is to be read next, and when: pure, time is an argument.
//!
//! One thing at a time. Surveys wait for a burst of changes to pass and take at most a twentieth of the
//! time; a namespace is read anew, and the whole node after a gap, at most once a second.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::observation::NsInum;

/// A burst of changes is over after that.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// Between two readings of the same thing.
const SPACING: Duration = Duration::from_secs(1);
/// A survey is followed by a pause of so many times its duration.
const SURVEY_PAUSE: u32 = 19;
/// Failed readings of a namespace before it is given up.
const ATTEMPTS: u32 = 5;

/// The next thing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// Look for namespaces; with `all`, to read every one.
    Survey {
        all: bool,
    },
    Read(NsInum),
}

/// Why everything is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cycle {
    Start,
    /// The reasons of the gap.
    Resync(BTreeSet<&'static str>),
}

#[derive(Debug)]
pub(super) struct Agenda {
    cycle: Option<Cycle>,
    /// When the survey of the running cycle may begin, if it is still to come.
    cycle_survey: Option<Instant>,
    /// Reasons for the next cycle, and when it may start.
    gap: Option<(BTreeSet<&'static str>, Instant)>,
    last_cycle: Option<Instant>,
    survey: Option<Instant>,
    survey_not_before: Option<Instant>,
    queue: VecDeque<NsInum>,
    stale: HashMap<NsInum, Instant>,
    last_read: HashMap<NsInum, Instant>,
    failures: HashMap<NsInum, u32>,
}

impl Agenda {
    /// Everything is to be read.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            cycle: Some(Cycle::Start),
            cycle_survey: Some(now),
            gap: None,
            last_cycle: None,
            survey: None,
            survey_not_before: None,
            queue: VecDeque::new(),
            stale: HashMap::new(),
            last_read: HashMap::new(),
            failures: HashMap::new(),
        }
    }

    /// The stream has a gap. True if that is news: a gap that will be mended anyway is not.
    pub(super) fn gap(&mut self, reason: &'static str, now: Instant) -> bool {
        let earliest = self.last_cycle.map_or(now, |last| (last + SPACING).max(now)) + DEBOUNCE;
        self.gap.get_or_insert_with(|| (BTreeSet::new(), earliest)).0.insert(reason)
    }

    /// Namespaces are to be looked for.
    pub(super) fn look(&mut self, now: Instant, tries: u32) {
        let soon = now + DEBOUNCE * 2_u32.saturating_pow(tries);
        let allowed = self.survey_not_before.map_or(soon, |earliest| earliest.max(soon));
        self.survey = Some(self.survey.map_or(allowed, |planned| planned.min(allowed)));
    }

    /// A survey took so long; what was planned meanwhile is to be planned anew.
    pub(super) fn surveyed(&mut self, now: Instant, took: Duration) {
        self.survey = None;
        self.survey_not_before = Some(now + took * SURVEY_PAUSE);
    }

    /// Read it next, after what is queued already.
    pub(super) fn read(&mut self, netns: NsInum) {
        self.stale.remove(&netns);
        if !self.queue.contains(&netns) {
            self.queue.push_back(netns);
        }
    }

    /// Something changed in it that no message told.
    pub(super) fn doubt(&mut self, netns: NsInum, now: Instant) {
        let spaced = self.last_read.get(&netns).map_or(now, |last| *last + SPACING);
        self.stale.entry(netns).or_insert(spaced.max(now + DEBOUNCE));
    }

    /// It was read.
    pub(super) fn done(&mut self, netns: NsInum, now: Instant) {
        self.last_read.insert(netns, now);
        self.failures.remove(&netns);
    }

    /// It could not be read. False if it is given up; with `patience` it never is.
    pub(super) fn failed(&mut self, netns: NsInum, now: Instant, patience: bool) -> bool {
        let failures = self.failures.entry(netns).or_insert(0);
        *failures += 1;
        if *failures >= ATTEMPTS && !patience {
            self.failures.remove(&netns);
            return false;
        }
        self.stale.insert(netns, now + (DEBOUNCE * 2_u32.saturating_pow(*failures)).min(SPACING));
        true
    }

    /// It could not even be begun.
    pub(super) fn postpone(&mut self, work: Work, now: Instant) {
        match work {
            Work::Survey { all } => {
                let again = if all { &mut self.cycle_survey } else { &mut self.survey };
                *again = Some(now + SPACING);
            }
            Work::Read(netns) => {
                self.stale.insert(netns, now + SPACING);
            }
        }
    }

    /// It is gone.
    pub(super) fn forget(&mut self, netns: NsInum) {
        self.queue.retain(|queued| *queued != netns);
        self.stale.remove(&netns);
        self.last_read.remove(&netns);
        self.failures.remove(&netns);
    }

    /// Takes the next thing to do.
    pub(super) fn next(&mut self, now: Instant) -> Option<Work> {
        if self.cycle.is_none()
            && let Some((reasons, _)) = self.gap.take_if(|(_, due)| *due <= now)
        {
            self.cycle = Some(Cycle::Resync(reasons));
            self.cycle_survey = Some(now);
        }
        let all = self.cycle_survey.take_if(|due| *due <= now).is_some();
        if all || self.survey.is_some_and(|due| due <= now) {
            self.survey = None;
            return Some(Work::Survey { all });
        }
        let mut due: Vec<NsInum> =
            self.stale.iter().filter(|(_, due)| **due <= now).map(|(netns, _)| *netns).collect();
        due.sort_unstable();
        due.into_iter().for_each(|netns| self.read(netns));
        self.queue.pop_front().map(Work::Read)
    }

    /// The running cycle, if nothing of it is left to do. To be asked when no work is under way.
    pub(super) fn finish(&mut self, now: Instant) -> Option<Cycle> {
        if self.cycle_survey.is_some() || !self.queue.is_empty() || !self.failures.is_empty() {
            return None;
        }
        let cycle = self.cycle.take()?;
        self.last_cycle = Some(now);
        Some(cycle)
    }

    /// Whether everything is being read.
    pub(super) fn in_cycle(&self) -> bool {
        self.cycle.is_some()
    }

    /// When to ask for work again, if nothing else happens.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let gap = self.gap.as_ref().filter(|_| self.cycle.is_none()).map(|(_, due)| *due);
        self.stale.values().copied().chain(self.survey).chain(self.cycle_survey).chain(gap).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(now: Instant) -> Agenda {
        let mut agenda = Agenda::new(now);
        assert_eq!(agenda.next(now), Some(Work::Survey { all: true }));
        assert_eq!(agenda.finish(now), Some(Cycle::Start));
        agenda
    }

    #[test]
    fn a_storm_of_gaps_is_mended_at_most_once_a_second() {
        let start = Instant::now();
        let mut agenda = started(start);
        assert!(agenda.gap("overrun", start));
        assert!(!agenda.gap("overrun", start), "the same gap again is no news");
        assert!(agenda.gap("decode", start));
        assert_eq!(agenda.next(start), None);
        let due = agenda.deadline().unwrap();
        assert!(due >= start + SPACING);
        assert_eq!(agenda.next(due), Some(Work::Survey { all: true }));
        agenda.read(7);
        assert_eq!(agenda.finish(due), None);
        assert_eq!(agenda.next(due), Some(Work::Read(7)));
        let Some(Cycle::Resync(reasons)) = agenda.finish(due) else { panic!("not finished") };
        assert_eq!(reasons, BTreeSet::from(["decode", "overrun"]));
        assert_eq!(agenda.deadline(), None);
    }

    #[test]
    fn a_gap_during_a_cycle_is_mended_after_it() {
        let start = Instant::now();
        let mut agenda = Agenda::new(start);
        agenda.next(start);
        agenda.gap("overrun", start);
        assert_eq!(agenda.next(start + SPACING), None, "the start is still under way");
        assert_eq!(agenda.finish(start + SPACING), Some(Cycle::Start));
        assert_eq!(agenda.next(start + SPACING * 3), Some(Work::Survey { all: true }));
    }

    #[test]
    fn a_long_survey_makes_the_next_one_wait() {
        let start = Instant::now();
        let mut agenda = started(start);
        agenda.surveyed(start, Duration::from_millis(100));
        agenda.look(start, 0);
        assert_eq!(agenda.deadline(), Some(start + Duration::from_millis(1900)));
        agenda.look(start, 3);
        assert_eq!(agenda.deadline(), Some(start + Duration::from_millis(1900)));
    }

    #[test]
    fn a_doubtful_namespace_is_read_once_after_a_burst_and_not_again_within_a_second() {
        let start = Instant::now();
        let mut agenda = started(start);
        agenda.doubt(7, start);
        agenda.doubt(7, start + DEBOUNCE / 2);
        assert_eq!(agenda.deadline(), Some(start + DEBOUNCE));
        assert_eq!(agenda.next(start + DEBOUNCE), Some(Work::Read(7)));
        agenda.done(7, start + DEBOUNCE);
        agenda.doubt(7, start + DEBOUNCE * 2);
        assert_eq!(agenda.deadline(), Some(start + DEBOUNCE + SPACING));
    }

    #[test]
    fn a_namespace_that_cannot_be_read_is_given_up_but_the_host_never() {
        let now = Instant::now();
        let mut agenda = started(now);
        for _ in 1..ATTEMPTS {
            assert!(agenda.failed(7, now, false));
        }
        assert!(!agenda.failed(7, now, false));
        for _ in 0..40 {
            assert!(agenda.failed(1, now, true));
        }
    }
}
