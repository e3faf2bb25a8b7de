//! Records that wait: bounded, and shared by whoever causes them, as the queue of each sink.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use kevtmon_event::Tenant;
use kevtmon_history::queue::{Bounds, QueueClass};

/// Places of all records, and beyond that for those that must not be displaced.
const BOUNDS: Bounds = Bounds { capacity: 3584, reserved: 512 };
/// A record takes one, and one more for so many bytes. So all of them take 16 MiB at most.
const BYTES_PER_PLACE: usize = 4096;
/// Of one request, at most: records, and bytes before they are compressed.
pub(super) const BATCH: usize = 512;
const BATCH_BYTES: usize = 512 << 10;

struct Record {
    bytes: Vec<u8>,
    tenant: Tenant,
    since: Instant,
}

/// The oldest first.
#[derive(Default)]
pub(super) struct Waiting {
    records: VecDeque<Record>,
    bytes: usize,
    taken: usize,
    /// How many places each tenant has.
    tenants: HashMap<Tenant, usize>,
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether there is room for a record of so many bytes.
    pub(super) fn has_room(&self, bytes: usize, tenant: &Tenant, class: QueueClass) -> bool {
        let same = self.tenants.get(tenant).copied().unwrap_or(0);
        let is_fair = class == QueueClass::Reserved || BOUNDS.is_fair(self.taken, tenant, same);
        is_fair && BOUNDS.admits(self.taken, places(bytes), class)
    }

    /// Whether it took the record.
    pub(super) fn push(&mut self, bytes: Vec<u8>, tenant: &Tenant, class: QueueClass, now: Instant) -> bool {
        if !self.has_room(bytes.len(), tenant, class) {
            return false;
        }
        let places = places(bytes.len());
        self.taken += places;
        self.bytes += bytes.len();
        *self.tenants.entry(tenant.clone()).or_default() += places;
        self.records.push_back(Record { bytes, tenant: tenant.clone(), since: now });
        true
    }

    /// Since when the oldest one waits.
    pub(super) fn since(&self) -> Option<Instant> {
        self.records.front().map(|record| record.since)
    }

    /// Whether there is enough for a request.
    pub(super) fn is_batch(&self) -> bool {
        self.records.len() >= BATCH || self.bytes >= BATCH_BYTES
    }

    /// How many are sent in one request: at least one, if there is one.
    pub(super) fn batch(&self) -> usize {
        let mut bytes = 0;
        let fits = |record: &&Record| {
            bytes += record.bytes.len();
            bytes <= BATCH_BYTES
        };
        let fitting = self.records.iter().take(BATCH).take_while(fits).count();
        fitting.max(1).min(self.records.len())
    }

    /// The oldest ones.
    pub(super) fn first(&self, count: usize) -> impl Iterator<Item = &[u8]> {
        self.records.iter().take(count).map(|record| record.bytes.as_slice())
    }

    pub(super) fn drop_first(&mut self, count: usize) {
        for _ in 0..count {
            let Some(record) = self.records.pop_front() else { return };
            let places = places(record.bytes.len());
            self.taken -= places;
            self.bytes -= record.bytes.len();
            if let Some(same) = self.tenants.get_mut(&record.tenant) {
                *same -= places;
                if *same == 0 {
                    self.tenants.remove(&record.tenant);
                }
            }
        }
    }

    /// Drops those that have waited for so long. Returns how many.
    pub(super) fn expire(&mut self, age: Duration, now: Instant) -> usize {
        let is_old = |record: &&Record| now.saturating_duration_since(record.since) >= age;
        let old = self.records.iter().take_while(is_old).count();
        self.drop_first(old);
        old
    }
}

fn places(bytes: usize) -> usize {
    1 + bytes / BYTES_PER_PLACE
}

#[cfg(test)]
mod tests {
    use kevtmon_event::Priority;

    use super::*;

    fn tenant(priority: Priority, name: &str) -> Tenant {
        Tenant { priority, name: name.into() }
    }

    /// How many it takes of so many.
    fn taken(waiting: &mut Waiting, count: usize, bytes: usize, tenant: &Tenant) -> usize {
        let now = Instant::now();
        (0..count).filter(|_| waiting.push(vec![0; bytes], tenant, QueueClass::Normal, now)).count()
    }

    #[test]
    fn one_tenant_takes_half_and_others_find_room() {
        let Bounds { capacity, reserved } = BOUNDS;
        let mut waiting = Waiting::default();
        let one = tenant(Priority::Known, "one");
        assert_eq!(taken(&mut waiting, 9000, 10, &one), capacity / 2);
        let foreign = taken(&mut waiting, 9000, 10, &tenant(Priority::Foreign, "other"));
        assert!((355..=360).contains(&foreign), "a fifth of the rest: {foreign}");
        for number in 0..9000 {
            taken(&mut waiting, 1, 10, &tenant(Priority::Known, &number.to_string()));
        }
        assert_eq!(waiting.len(), capacity);
        let mut push = || waiting.push(vec![0; 10], &one, QueueClass::Reserved, Instant::now());
        assert_eq!((0..9000).filter(|_| push()).count(), reserved, "incidents are not displaced");
        waiting.drop_first(capacity + reserved);
        assert!(waiting.is_empty() && waiting.tenants.is_empty());
        assert_eq!((waiting.taken, waiting.bytes), (0, 0));
    }

    #[test]
    fn large_records_take_no_more_memory_than_others() {
        let mut waiting = Waiting::default();
        for number in 0..9000 {
            taken(&mut waiting, 1, 100 << 10, &tenant(Priority::Known, &number.to_string()));
        }
        assert!(waiting.bytes <= BOUNDS.capacity * BYTES_PER_PLACE, "{}", waiting.bytes);
        assert_eq!(waiting.batch(), 5);
        assert!(waiting.is_batch());
    }

    #[test]
    fn a_batch_has_at_most_so_many_and_at_least_one() {
        let mut waiting = Waiting::default();
        let one = tenant(Priority::Known, "one");
        assert_eq!(waiting.batch(), 0);
        assert_eq!(taken(&mut waiting, 1, 2 * BATCH_BYTES, &one), 1);
        assert_eq!(waiting.batch(), 1);
        waiting.drop_first(1);
        assert_eq!(taken(&mut waiting, BATCH - 1, 10, &one), BATCH - 1);
        assert!(!waiting.is_batch());
        assert_eq!(taken(&mut waiting, 2, 10, &one), 2);
        assert!(waiting.is_batch());
        assert_eq!((waiting.batch(), waiting.first(BATCH).count()), (BATCH, BATCH));
    }

    #[test]
    fn what_has_waited_for_long_is_dropped() {
        let mut waiting = Waiting::default();
        let (one, start) = (tenant(Priority::Known, "one"), Instant::now());
        let second = |number| start + Duration::from_secs(number);
        for number in 0..3 {
            assert!(waiting.push(vec![0], &one, QueueClass::Normal, second(number)));
        }
        assert_eq!(waiting.expire(Duration::from_secs(10), second(11)), 2);
        assert_eq!((waiting.len(), waiting.since()), (1, Some(second(2))));
    }
}
