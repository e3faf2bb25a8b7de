//! What reads a disk may hang for ever and beyond all signals: one job of a kind does so at a time, so that no kind keeps more
//! than one reader.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use kevtmon_types::lock::lock;
use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, timeout};

/// That of one kind of jobs.
#[derive(Debug, Default)]
pub(super) struct DiskLock {
    one: Arc<tokio::sync::Mutex<()>>,
    /// When the job that has it began.
    began: Mutex<Option<Instant>>,
}

/// Has it until the reader is gone.
#[derive(Debug)]
pub(super) struct Locked {
    lock: Arc<DiskLock>,
    _guard: OwnedMutexGuard<()>,
}

impl DiskLock {
    /// `None`, at once, where the job before takes longer than `patience` already.
    pub(super) async fn lock(self: Arc<Self>, patience: Duration) -> Option<Locked> {
        let began = *lock(&self.began);
        let left = patience.checked_sub(began.map_or(Duration::ZERO, |began| began.elapsed()))?;
        let guard = timeout(left, Arc::clone(&self.one).lock_owned()).await.ok()?;
        *lock(&self.began) = Some(Instant::now());
        Some(Locked { lock: self, _guard: guard })
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        *lock(&self.lock.began) = None;
    }
}
