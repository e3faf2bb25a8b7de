//! When logs are looked at, and whether the last look has ended: who reads them may wait for a disk, and cannot tell it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use kevtmon_observation::{Fact, SourceKind, SourceStatus};
use kevtmon_types::lock::lock;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::{NAME, Sender};
use crate::observed_now;

/// Moments in a row, one a second, at which a look had not ended: a disk that is slow takes less.
pub(super) const MISSED_MAX: u32 = 30;

#[derive(Debug, Default)]
pub(super) struct Progress {
    log: Mutex<String>,
    /// Whether another status than the reader's own was told.
    is_overruled: AtomicBool,
}

impl Progress {
    pub(super) fn at(&self, log: &str) {
        log.clone_into(&mut lock(&self.log));
    }

    pub(super) fn was_overruled(&self) -> bool {
        self.is_overruled.swap(false, Ordering::SeqCst)
    }
}

#[derive(Debug)]
pub(super) struct Pace {
    pub(super) ticks: mpsc::Sender<()>,
    pub(super) tx: Sender,
    pub(super) progress: Arc<Progress>,
    pub(super) missed: u32,
}

impl Pace {
    /// The next look is due; whether there is somebody who reads, and somebody who is told.
    pub(super) fn tick(&mut self) -> bool {
        match self.ticks.try_send(()) {
            Ok(()) => self.missed = 0,
            // A look that takes longer is followed by one.
            Err(TrySendError::Full(())) => self.missed = self.missed.saturating_add(1),
            Err(TrySendError::Closed(())) => return false,
        }
        let progress = &self.progress;
        if self.missed < MISSED_MAX || progress.is_overruled.load(Ordering::SeqCst) {
            return true;
        }
        let log = lock(&progress.log).clone();
        let reason = format!("reading the logs has taken more than {MISSED_MAX} s; it waits at {log}");
        let status = SourceStatus::down(SourceKind::Logs, NAME, reason);
        match self.tx.try_send(observed_now(Fact::Source(status))) {
            // In this order: what the reader tells because of it comes later.
            Ok(()) => progress.is_overruled.store(true, Ordering::SeqCst),
            // It may be that queue for which the reader waits.
            Err(TrySendError::Full(_)) => {}
            Err(TrySendError::Closed(_)) => return false,
        }
        true
    }
}
