//! What the programs did not write to the ring: lost where there was no room or where a program did not run, counted where
//! a source was over its budget. Reported while it happens. While no record comes, only runs that were skipped can be new, and
//! they are looked up once a minute, where the reader of the ring wakes anyway.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use aya::maps::{MapData, PerCpuArray};
use kevtmon_observation::{Fact, Loss};
use kevtmon_types::clock::boot_now;

use super::budgets::{self, Budgets};
use super::counters::{losses, read};
use super::skipped::SkippedRuns;

/// Looked up at most so often.
const INTERVAL: Duration = Duration::from_millis(100);
/// So long after a record over a budget more of them are expected.
const EXCEEDING: Duration = Duration::from_secs(2);
/// Losses for one reason are reported at most so often.
const LOSSES: Duration = Duration::from_secs(1);
/// Skipped runs are counted at most so often while no record comes: what would have written one may be what was skipped.
const IDLE: Duration = Duration::from_secs(60);

/// What was reported, and when to look again.
pub(super) struct Account {
    budgets: Budgets,
    losses: Vec<Reported>,
    skipped: Vec<(SkippedRuns, Reported)>,
    counting: Counting,
    throttled: u64,
    looked: Instant,
    /// Whether records were read since: what exceeds the budget comes after what does not.
    recent: bool,
    /// Whether there may be something that was not reported.
    pending: bool,
    /// When the last record over a budget was seen.
    exceeded: Option<Instant>,
    /// To be handed over.
    due: VecDeque<Fact>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Reported {
    count: u64,
    at: Option<Instant>,
}

impl Reported {
    /// How many more there are, unless some have just been reported.
    fn take(&mut self, count: u64, now: Instant, all: bool) -> Option<u64> {
        let more = count.checked_sub(self.count).filter(|more| *more > 0)?;
        if !all && self.at.is_some_and(|at| now < at + LOSSES) {
            return None;
        }
        *self = Self { count, at: Some(now) };
        Some(more)
    }
}

/// When the runs that were skipped are counted.
#[derive(Debug, Clone, Copy)]
struct Counting {
    last: Instant,
    /// Whether there may have been some since.
    is_due: bool,
}

impl Counting {
    fn due(self) -> Option<Instant> {
        self.is_due.then(|| self.last + LOSSES)
    }

    fn note_idle(&mut self, now: Instant) {
        self.is_due |= now >= self.last + IDLE;
    }

    /// Whether it is time to.
    fn take(&mut self, now: Instant, all: bool) -> bool {
        let is_time = all || self.due().is_some_and(|due| now >= due);
        if is_time {
            *self = Self { last: now, is_due: false };
        }
        is_time
    }
}

impl Account {
    pub(super) fn new(budgets: Budgets, skipped: Vec<SkippedRuns>) -> Self {
        let losses = vec![Reported::default(); losses().count()];
        Self {
            budgets,
            losses,
            skipped: skipped.into_iter().map(|runs| (runs, Reported::default())).collect(),
            counting: Counting { last: Instant::now(), is_due: false },
            throttled: 0,
            looked: Instant::now(),
            recent: false,
            pending: false,
            exceeded: None,
            due: VecDeque::new(),
        }
    }

    /// Records were read: others may have been left out.
    pub(super) fn note_records(&mut self) {
        self.recent = true;
        self.counting.is_due = true;
    }

    /// No record came while the reader of the ring slept as long as it does.
    pub(super) fn note_idle(&mut self) {
        if !self.skipped.is_empty() {
            self.counting.note_idle(Instant::now());
        }
    }

    /// When it is to be looked at again; `None` if nothing can have come.
    pub(super) fn due(&self) -> Option<Instant> {
        let due = (self.recent || self.pending).then(|| self.looked + INTERVAL);
        due.into_iter().chain(self.counting.due()).min()
    }

    /// Whether something is to be handed over.
    pub(super) fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// What is to be handed over.
    pub(super) fn take_due(&mut self) -> Option<Fact> {
        self.due.pop_front()
    }

    /// Finds what is to be reported now; with `all`, all that was left out so far.
    pub(super) fn look(&mut self, counts: &PerCpuArray<MapData, u64>, all: bool) {
        let now = Instant::now();
        if !all && self.due().is_none_or(|due| now < due) {
            return;
        }
        self.looked = now;
        self.pending = std::mem::take(&mut self.recent);
        for (loss, reported) in losses().zip(&mut self.losses) {
            let count = read(counts, loss.counter);
            match reported.take(count, now, all) {
                Some(more) => self.due.push_back(lost(loss.reason, more)),
                None => self.pending |= count > reported.count,
            }
        }
        if self.counting.take(now, all) {
            for (runs, reported) in &mut self.skipped {
                let more = reported.take(runs.count(), now, true);
                self.due.extend(more.map(|_| skipped(runs.reason)));
            }
        }
        let throttled: u64 = budgets::RECORDS.counts.iter().map(|count| read(counts, count.counter)).sum();
        if throttled != self.throttled {
            self.throttled = throttled;
            self.exceeded = Some(now);
        }
        if self.exceeded == Some(now) || self.budgets.is_open() {
            self.due.extend(self.budgets.take_due(boot_now(), all).into_iter().map(Fact::Throttled));
        }
        // Between two records that are within the budget any number may be over it.
        self.pending |= self.budgets.is_open() || self.exceeded.is_some_and(|at| now < at + EXCEEDING);
        self.budgets.sweep(boot_now());
    }
}

fn lost(reason: &str, count: u64) -> Fact {
    Fact::Lost(Loss { source: "bpf".into(), reason: reason.into(), count: Some(count) })
}

/// Most runs that were skipped would have written nothing, so that their number says little.
fn skipped(reason: &str) -> Fact {
    Fact::Lost(Loss { source: "bpf".into(), reason: reason.into(), count: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_was_skipped_is_no_record_that_was_lost() {
        let Fact::Lost(loss) = skipped("mount-run-skipped") else { panic!("no loss") };
        assert_eq!((loss.reason.as_str(), loss.count), ("mount-run-skipped", None));
    }

    #[test]
    fn skipped_runs_are_counted_after_records_and_once_a_minute_without_any() {
        let start = Instant::now();
        let mut counting = Counting { last: start, is_due: false };
        counting.note_idle(start + IDLE / 2);
        assert_eq!((counting.due(), counting.take(start + IDLE / 2, false)), (None, false));
        counting.note_idle(start + IDLE);
        assert!(counting.due().is_some_and(|due| due <= start + IDLE), "it waits for no wake-up of its own");
        assert!(counting.take(start + IDLE, false));
        assert_eq!(counting.due(), None);
        counting.is_due = true;
        assert!(!counting.take(start + IDLE + LOSSES / 2, false));
        assert!(counting.take(start + IDLE + LOSSES, false) && counting.take(start + IDLE + LOSSES, true));
    }

    #[test]
    fn losses_are_reported_at_once_and_then_summed_up_for_a_second() {
        let mut reported = Reported::default();
        let start = Instant::now();
        assert_eq!(reported.take(0, start, false), None);
        assert_eq!(reported.take(3, start, false), Some(3));
        assert_eq!(reported.take(5, start + LOSSES / 2, false), None);
        assert_eq!(reported.take(9, start + LOSSES, false), Some(6));
        assert_eq!(reported.take(10, start + LOSSES, true), Some(1));
    }
}
