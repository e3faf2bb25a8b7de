//! The index of SQLite's log as it is in memory: all connections of this process to one file share it for as long as one of
//! them is open. So pages of it that were lost stay lost until the last one is closed.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Longest wait for the queries that are being answered.
const PATIENCE: Duration = Duration::from_secs(1);

/// How many readers are open.
static READERS: Mutex<usize> = Mutex::new(0);
static CLOSED: Condvar = Condvar::new();

/// That a reader is open.
pub(super) struct Open(());

impl Open {
    pub(super) fn new() -> Self {
        *readers() += 1;
        Self(())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        *readers() -= 1;
        CLOSED.notify_all();
    }
}

/// Waits until no reader is open, and lets none open until it is dropped; `None` where they take too long.
pub(super) fn without_readers() -> Option<MutexGuard<'static, usize>> {
    let waited = CLOSED.wait_timeout_while(readers(), PATIENCE, |readers| *readers > 0);
    let (none, waited) = waited.unwrap_or_else(PoisonError::into_inner);
    (!waited.timed_out()).then_some(none)
}

fn readers() -> MutexGuard<'static, usize> {
    READERS.lock().unwrap_or_else(PoisonError::into_inner)
}
