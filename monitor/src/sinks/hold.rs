//! Holds the announcement of an incident back until the store has it, but not for long.
//!
//! Whoever was told that an incident opened or closed can rely on finding it there after a crash. Only the
//! threads of the other sinks wait here; the core does not.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::event::{Event, Kind};

/// An announcement is not held back for longer.
const PATIENCE: Duration = Duration::from_millis(250);

/// How far the store is.
#[derive(Debug, Default)]
pub struct Hold {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    settled: u64,
    /// The store was waited for in vain; it is not waited for again until it moves.
    late: bool,
}

impl Hold {
    /// Whether the event has to be in the store first.
    #[must_use]
    pub fn concerns(&self, event: &Event) -> bool {
        matches!(event.kind, Kind::IncidentOpened | Kind::IncidentClosed)
    }

    /// Everything up to this number is in the store, or will never be.
    pub fn settle(&self, seq: u64) {
        let mut state = self.lock();
        state.settled = state.settled.max(seq);
        state.late = false;
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until this number is settled; whether it is.
    pub fn wait(&self, seq: u64) -> bool {
        let (mut state, _) = self
            .changed
            .wait_timeout_while(self.lock(), PATIENCE, |state| state.settled < seq && !state.late)
            .unwrap_or_else(PoisonError::into_inner);
        let is_late = state.settled < seq;
        if is_late && !state.late {
            tracing::warn!("the event store is slow: an incident is announced before it is kept");
        }
        state.late = is_late;
        !is_late
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn a_waiter_goes_on_when_its_number_is_settled() {
        let hold = Arc::new(Hold::default());
        let waiter = thread::spawn({
            let hold = Arc::clone(&hold);
            move || hold.wait(7)
        });
        hold.settle(6);
        hold.settle(8);
        assert!(waiter.join().unwrap());
        assert!(hold.wait(8), "what is settled is not waited for");
    }

    #[test]
    fn a_store_that_does_not_move_is_waited_for_once() {
        let hold = Hold::default();
        assert!(!hold.wait(1));
        let before = std::time::Instant::now();
        for seq in 2..1000 {
            assert!(!hold.wait(seq));
        }
        assert!(before.elapsed() < 500 * PATIENCE, "else each of them waited");
        hold.settle(1000);
        assert!(hold.wait(1000), "it counts again once it moves");
    }
}
