//! What fits into a queue, and the account of what does not.

use kevtmon_event::Tenant;

/// How much may wait, in whatever unit the buffer counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// What any item may fill.
    pub capacity: usize,
    /// What only [`QueueClass::Reserved`] items may fill beyond that: a storm of others does not displace them.
    pub reserved: usize,
}

/// Which part of the bounds an item may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueClass {
    Normal,
    /// The reserved places, too.
    Reserved,
}

impl Bounds {
    /// Whether an item fits beside what is used already.
    pub fn admits(self, used: usize, size: usize, class: QueueClass) -> bool {
        let bound = match class {
            QueueClass::Normal => self.capacity,
            QueueClass::Reserved => self.capacity.saturating_add(self.reserved),
        };
        used.saturating_add(size) <= bound
    }

    /// Whether a tenant that uses `same` already may use more: as long as that is less than what is left free, so that there is a place
    /// for everybody. One fills half of the capacity, two a third each.
    pub fn is_fair(self, used: usize, tenant: &Tenant, same: usize) -> bool {
        same.saturating_mul(tenant.priority.price()) < self.capacity.saturating_sub(used)
    }
}

/// Why an item is not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    Full,
    /// The last write failed, and writing has not been resumed.
    Failed,
    /// The destination is down.
    Down,
    /// Whoever caused it has had enough: others need the rest.
    Budget,
    /// The worker has ended.
    Closed,
}

impl Refused {
    /// As in metric labels.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Full => "queue-full",
            Self::Failed => "write-failed",
            Self::Down => "failed",
            Self::Budget => "over-budget",
            Self::Closed => "closed",
        }
    }
}

/// Consecutive items that were discarded: every hole in a sequence is accounted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    pub discarded: u64,
    /// Why the first of them was.
    pub refused: Refused,
}

impl Gap {
    /// A gap without items yet.
    pub fn new(refused: Refused) -> Self {
        Self { discarded: 0, refused }
    }
}
