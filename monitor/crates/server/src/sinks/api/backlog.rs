//! What a stream begins with that continues after a number: the events since, from the memory and the store, and one
//! event for each run of numbers that neither has.

use std::collections::BTreeSet;
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kevtmon_event::{Kind, SCHEMA, Severity};
use kevtmon_history::query::filter::{EventFilter, MAX_LIMIT, Order};
use kevtmon_history::query::history::{Found, History, HistoryError, Layered, LiveHistory};
use kevtmon_history::query::record::Record;
use kevtmon_history::store::RESERVE;
use serde_json::json;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::memory::Snapshot;

/// Most past events.
const EVENTS: usize = 10_000;
/// Most gaps; the last one spans the others.
const GAPS: usize = 100;
/// Time for the store to commit what it was given; it does so once a second.
const COMMIT_TIME: Duration = Duration::from_secs(3);
/// Between two looks whether it has.
const COMMIT_CHECK: Duration = Duration::from_millis(50);

/// What is asked for, and where it is found.
pub(super) struct Backlog {
    /// The newest events, as they were when the stream of new ones began.
    pub(super) newest: Snapshot,
    pub(super) older: Option<Arc<dyn LiveHistory>>,
    pub(super) node: String,
    pub(super) boot_id: String,
    /// The last number that the reader has.
    pub(super) after: u64,
    /// The newest number before the stream of new events.
    pub(super) last_seq: u64,
}

/// Numbers of which no event is known, both ends inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Gap {
    first: u64,
    last: u64,
}

impl Backlog {
    /// Waits until the store has what the memory does not have: it commits once a second, and a storm can evict
    /// events from the memory sooner. Without a store that works it ends at once, or in time.
    pub(super) async fn await_commit(&self) {
        let Some(older) = self.older.as_ref().filter(|_| self.needs_store()) else { return };
        let stored = async {
            loop {
                let older = Arc::clone(older);
                match spawn_blocking(move || older.extent()).await {
                    Ok(Ok(extent)) if extent.last_seq + 1 < self.newest.first_seq() => {
                        sleep(COMMIT_CHECK).await
                    }
                    _ => return,
                }
            }
        };
        let _ = timeout(COMMIT_TIME, stored).await;
    }

    fn needs_store(&self) -> bool {
        self.newest.first_seq() > self.after + 1
    }

    /// The events as JSON, and what stands for those that are missing, in order.
    pub(super) fn lines(self, filter: EventFilter) -> Result<Vec<Arc<str>>, HistoryError> {
        // One view of the store for the events and for the numbers it has.
        let older = self.older.as_ref().filter(|_| self.needs_store()).and_then(|older| older.snapshot());
        let newest: &dyn History = &self.newest;
        let (found, more) = match older.as_deref() {
            Some(older) => self.search(&Layered::new(newest, older), filter)?,
            None => self.search(newest, filter)?,
        };
        let begin = found.first().map(|first| first.position.seq).filter(|_| more);
        let mut gaps = Vec::new();
        if let Some(begin) = begin {
            gaps.push(Gap { first: self.after + 1, last: begin - 1 });
        }
        if self.needs_store() {
            let first_seq = self.newest.first_seq();
            let after = begin.map_or(self.after, |begin| begin - 1);
            let known = match &older {
                Some(older) => older.numbers(&self.boot_id, after, first_seq)?,
                None => BTreeSet::new(),
            };
            gaps.extend(holes(&known, after, first_seq).filter(|gap| !is_accounted_for(*gap, &found)));
        }
        Ok(self.merge(found, limited(gaps)))
    }

    /// The newest events since the number, in order, and whether there are more.
    fn search(
        &self,
        history: &(impl History + ?Sized),
        filter: EventFilter,
    ) -> Result<(Vec<Found>, bool), HistoryError> {
        let mut filter = EventFilter {
            after: Some(self.after),
            boot_id: Some(self.boot_id.clone()),
            order: Order::Newest,
            limit: MAX_LIMIT,
            ..filter
        };
        let mut found = Vec::new();
        loop {
            let page = history.events(&filter)?;
            filter.cursor = page.next;
            found.extend(page.events);
            if filter.cursor.is_none() || found.len() >= EVENTS {
                break;
            }
        }
        found.retain(|found| found.position.seq <= self.last_seq);
        found.sort_unstable_by_key(|found| found.position.seq);
        Ok((found, filter.cursor.is_some()))
    }

    fn merge(&self, found: Vec<Found>, gaps: Vec<Gap>) -> Vec<Arc<str>> {
        let mut gaps = gaps.into_iter().peekable();
        let mut lines = Vec::with_capacity(found.len() + gaps.len());
        for found in found {
            while let Some(gap) = gaps.next_if(|gap| gap.first < found.position.seq) {
                lines.push(self.describe(gap));
            }
            lines.push(found.line);
        }
        lines.extend(gaps.map(|gap| self.describe(gap)));
        lines
    }

    fn describe(&self, Gap { first, last }: Gap) -> Arc<str> {
        let (count, after) = (last - first + 1, first - 1);
        // After a run that did not stop cleanly numbers are skipped.
        let (count, message) = if count < RESERVE {
            let message = format!("up to {count} events after number {after} are no longer remembered here");
            (count.to_string(), message)
        } else {
            let message = format!("an unknown number of events after number {after} is not remembered here");
            ("unknown".to_owned(), message)
        };
        let event = json!({
            "schema": SCHEMA,
            "time": format!("{:.9}", Timestamp::now()),
            "seq": last,
            "boot_id": self.boot_id,
            "node": self.node,
            "kind": Kind::EventsLost,
            "severity": Severity::Warning,
            "message": message,
            "lost": {"source": "sink.api", "reason": "forgotten", "count": count},
        });
        event.to_string().into()
    }
}

/// What is missing between two numbers.
fn holes(known: &BTreeSet<u64>, after: u64, before: u64) -> impl Iterator<Item = Gap> + '_ {
    let ends = known.range(after + 1..before).copied().chain(iter::once(before));
    ends.scan(after, |last, number| {
        let gap = Gap { first: *last + 1, last: number - 1 };
        *last = number;
        Some(gap)
    })
    .filter(|gap| gap.first <= gap.last)
}

/// Whether the reader gets an event about it: what a queue discarded, or that the daemon was started again, which
/// skips numbers.
fn is_accounted_for(gap: Gap, found: &[Found]) -> bool {
    let next = found.partition_point(|found| found.position.seq <= gap.last);
    found.get(next).filter(|found| found.position.seq == gap.last + 1).is_some_and(|found| {
        let record = Record::read(Arc::clone(&found.line));
        record.is_ok_and(|record| record.event.kind == Kind::EventsLost)
    })
}

fn limited(mut gaps: Vec<Gap>) -> Vec<Gap> {
    if let Some(end) = gaps.last().map(|gap| gap.last)
        && gaps.len() > GAPS
    {
        gaps.truncate(GAPS);
        gaps[GAPS - 1].last = end;
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_what_lies_between_known_numbers() {
        let holes = |known: &[u64], after, before| {
            let known = known.iter().copied().collect();
            holes(&known, after, before).map(|gap| (gap.first, gap.last)).collect::<Vec<_>>()
        };
        assert_eq!(holes(&[], 4, 5), []);
        assert_eq!(holes(&[], 4, 8), [(5, 7)]);
        assert_eq!(holes(&[5, 6, 7], 4, 8), []);
        assert_eq!(holes(&[1, 4, 6, 9, 20], 4, 12), [(5, 5), (7, 8), (10, 11)]);
    }

    #[test]
    fn a_store_with_many_holes_makes_few_gaps() {
        let gaps = (1..500).map(|at| Gap { first: at * 2, last: at * 2 }).collect();
        let gaps = limited(gaps);
        assert_eq!((gaps.len(), gaps[0].last, gaps[GAPS - 1].last), (GAPS, 2, 998));
    }
}
