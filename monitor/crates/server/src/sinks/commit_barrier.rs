//! Delays transitions of incidents until the store has committed them, but not for long.
//!
//! An incident that was emitted as opened or closed is in the store even after a crash. Only the threads of the
//! other sinks wait here; the core does not.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use kevtmon_event::{Event, Kind};
use kevtmon_types::lock::lock;

/// Longest delay of an event.
const TIMEOUT: Duration = Duration::from_millis(250);

/// How far the store is.
#[derive(Debug, Default)]
pub struct CommitBarrier {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Everything up to this number is committed, or never will be.
    passed: u64,
    /// A wait timed out; there is no other one until the store makes progress.
    timed_out: bool,
}

impl CommitBarrier {
    /// Whether the event has to be in the store before other sinks get it.
    pub fn applies_to(&self, event: &Event) -> bool {
        matches!(event.kind, Kind::IncidentOpened | Kind::IncidentClosed)
    }

    /// Everything up to this number is in the store, or will never be.
    pub fn advance(&self, seq: u64) {
        let mut state = lock(&self.state);
        state.passed = state.passed.max(seq);
        state.timed_out = false;
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until the barrier has passed this number; whether it has.
    pub fn wait(&self, seq: u64) -> bool {
        let (mut state, _) = self
            .changed
            .wait_timeout_while(lock(&self.state), TIMEOUT, |state| state.passed < seq && !state.timed_out)
            .unwrap_or_else(PoisonError::into_inner);
        let is_late = state.passed < seq;
        if is_late && !state.timed_out {
            tracing::warn!("the event store is slow: an incident is reported before it is stored");
        }
        state.timed_out = is_late;
        !is_late
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn a_waiter_goes_on_when_its_number_is_committed() {
        let barrier = Arc::new(CommitBarrier::default());
        let waiter = thread::spawn({
            let barrier = Arc::clone(&barrier);
            move || barrier.wait(7)
        });
        barrier.advance(6);
        barrier.advance(8);
        assert!(waiter.join().unwrap());
        assert!(barrier.wait(8), "what is committed is not waited for");
    }

    #[test]
    fn a_store_that_makes_no_progress_is_waited_for_once() {
        let barrier = CommitBarrier::default();
        assert!(!barrier.wait(1));
        let before = std::time::Instant::now();
        for seq in 2..1000 {
            assert!(!barrier.wait(seq));
        }
        assert!(before.elapsed() < 500 * TIMEOUT, "else each of them waited");
        barrier.advance(1000);
        assert!(barrier.wait(1000), "it counts again once it makes progress");
    }
}
