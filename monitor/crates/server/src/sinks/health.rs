//! Liveness and readiness of the daemon: the core reports its heartbeat and when it is ready.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kevtmon_observation::BootNs;
use kevtmon_types::clock::boot_now;

/// A core without heartbeat for longer is not healthy.
const HEARTBEAT_TIMEOUT_NS: u64 = 10_000_000_000;

/// Shared between the core and the endpoint.
#[derive(Debug)]
pub struct Health {
    last_tick: AtomicU64,
    ready: AtomicBool,
}

impl Default for Health {
    fn default() -> Self {
        Self { last_tick: AtomicU64::new(boot_now()), ready: AtomicBool::new(false) }
    }
}

impl Health {
    pub fn tick(&self, at: BootNs) {
        self.last_tick.store(at, Ordering::Relaxed);
    }

    /// Records that required sources are up and optional ones were tried.
    pub fn set_ready(&self) {
        self.ready.store(true, Ordering::Relaxed);
    }

    /// Whether [`Self::set_ready`] was called.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// Whether the core is healthy.
    /// Errors: for how many nanoseconds it has been silent, when that is too long.
    pub fn check(&self, now: BootNs) -> Result<(), u64> {
        let silent = now.saturating_sub(self.last_tick.load(Ordering::Relaxed));
        if silent <= HEARTBEAT_TIMEOUT_NS { Ok(()) } else { Err(silent) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_that_is_silent_for_more_than_ten_seconds_is_not_healthy() {
        let health = Health::default();
        health.tick(1_000);
        assert_eq!(health.check(HEARTBEAT_TIMEOUT_NS + 1_000), Ok(()));
        assert_eq!(health.check(HEARTBEAT_TIMEOUT_NS + 1_001), Err(HEARTBEAT_TIMEOUT_NS + 1));
        assert_eq!(health.check(0), Ok(()), "a heartbeat may be newer than the request");
    }

    #[test]
    fn a_daemon_is_ready_once_it_says_so() {
        let health = Health::default();
        assert!(!health.is_ready());
        health.set_ready();
        assert!(health.is_ready());
    }
}
