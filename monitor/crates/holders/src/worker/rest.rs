//! How long scanning rests after work, so that it takes a twentieth of a core however many requests there are.

use std::time::{Duration, Instant};

use kevtmon_observation::Rank;

use super::Limits;
use crate::scan_queue::Kind;

/// Work that took one part is followed by nineteen parts of rest: 5 % of a core.
const REST_FACTOR: u32 = 19;

/// The part of its time that a scan has which begins before the rest is over.
pub(super) const HASTE_FACTOR: u32 = 4;

/// Until when it rests, but for what needs none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rest {
    pub(super) host: Instant,
    /// The same, before a scan of the host that has not begun.
    pub(super) begin: Instant,
    /// Before a scan of the host goes on. Not prolonged by others that begin meanwhile, or it never would.
    pub(super) go_on: Instant,
    pub(super) all: Instant,
}

impl Default for Rest {
    fn default() -> Self {
        Self::new(Instant::now())
    }
}

impl Rest {
    pub(super) fn new(now: Instant) -> Self {
        Self { host: now, begin: now, go_on: now, all: now }
    }

    pub(super) fn is_over(self, rank: Rank, kind: Kind, now: Instant) -> bool {
        self.until(rank, kind).is_none_or(|until| until <= now)
    }

    pub(super) fn until(self, rank: Rank, kind: Kind) -> Option<Instant> {
        match (rank, kind) {
            (Rank::Other, _) => Some(self.all),
            (_, Kind::Scan) => Some(self.begin),
            (_, Kind::Continuation) => Some(self.go_on),
            (_, Kind::Few | Kind::Look) => None,
        }
    }

    pub(super) fn add(&mut self, rank: Rank, took: Duration, limits: &Limits, now: Instant) {
        let rest = rest_after(took, limits.max_rest);
        let longer = |until: Instant| (until.max(now) + rest).min(now + limits.max_rest);
        self.all = longer(self.all);
        if rank != Rank::Other {
            self.host = longer(self.host);
            self.begin = self.host.min(now + limits.max_wait);
        }
    }

    pub(super) fn budget(self, rank: Rank, kind: Kind, limits: &Limits, now: Instant) -> Duration {
        let is_early = rank != Rank::Other && kind == Kind::Scan && self.host > now;
        if is_early { limits.budget / HASTE_FACTOR } else { limits.budget }
    }
}

/// Rest after a scan that used this much of the processor.
pub(super) fn rest_after(took: Duration, longest: Duration) -> Duration {
    took.saturating_mul(REST_FACTOR).min(longest)
}
