//! Exact counters, kept per CPU in the kernel: they also count what the ring had no room for.

use super::HOOKS;

/// Counters of one hook.
const PER_HOOK: u32 = 18;

/// Entries of the counter map.
pub const COUNTERS: u32 = HOOKS * PER_HOOK;

/// An entry of the counter map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Counter(u32);

impl Counter {
    pub(super) const fn of(hook: u32, nth: u32) -> Self {
        assert!(nth < PER_HOOK);
        Self(hook * PER_HOOK + nth)
    }

    /// Index into the map, less than [`COUNTERS`].
    #[must_use]
    #[inline(always)]
    pub const fn index(self) -> u32 {
        self.0
    }
}
