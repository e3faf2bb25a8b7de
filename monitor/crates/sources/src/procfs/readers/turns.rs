//! The turns of jobs that may wait for a disk, which may hang for ever and beyond all signals: one of a kind at a time, so
//! that no kind keeps more than one reader.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

/// By the name of the kind.
#[derive(Debug, Default)]
pub(super) struct Turns(BTreeMap<&'static str, Arc<Line>>);

/// The line of one kind.
#[derive(Debug)]
pub(super) struct Line {
    one: Arc<Semaphore>,
    /// When the job that has the turn began.
    began: Mutex<Option<Instant>>,
}

/// The turn of one job. It lasts until the reader is gone.
#[derive(Debug)]
pub(super) struct Turn {
    line: Arc<Line>,
    _permit: OwnedSemaphorePermit,
}

impl Turns {
    /// The line of a kind.
    pub(super) fn of(&mut self, kind: &'static str) -> Arc<Line> {
        let line = self
            .0
            .entry(kind)
            .or_insert_with(|| Arc::new(Line { one: Arc::new(Semaphore::new(1)), began: Mutex::default() }));
        Arc::clone(line)
    }
}

impl Line {
    /// Waits for a turn; none where the job before takes longer than `patience` already.
    pub(super) async fn turn(self: Arc<Self>, patience: Duration) -> Option<Turn> {
        let began = *self.began();
        let left = patience.checked_sub(began.map_or(Duration::ZERO, |began| began.elapsed()))?;
        let permit = timeout(left, Arc::clone(&self.one).acquire_owned()).await.ok()?.ok()?;
        *self.began() = Some(Instant::now());
        Some(Turn { line: self, _permit: permit })
    }

    fn began(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.began.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *self.line.began() = None;
    }
}
