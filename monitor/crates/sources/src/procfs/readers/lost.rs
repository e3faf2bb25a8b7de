//! Readers that were killed and do not end, since the kernel waits for what they read.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::Inner;

/// A reader that was killed, and is still there after this time, is lost.
const LOST_AFTER: Duration = Duration::from_secs(1);

/// Keeps the place of a reader that was killed until it is gone; one among those that are lost, if it does not end.
pub(super) async fn keep(mut place: OwnedSemaphorePermit, of: &Weak<Inner>, gone: impl Future<Output = ()>) {
    let mut gone = pin!(gone);
    if timeout(LOST_AFTER, &mut gone).await.is_err() {
        let lost = of.upgrade().map(|inner| Arc::clone(&inner.lost));
        let other = lost.and_then(|lost| lost.try_acquire_owned().ok());
        let is_missing = other.is_none();
        if let Some(other) = other {
            place = other;
        }
        missing(of, |missing| missing + usize::from(is_missing)).await;
        gone.await;
        missing(of, |missing| missing - usize::from(is_missing)).await;
    }
    drop(place);
}

/// Changes the number of readers that are missing, and reports it.
async fn missing(of: &Weak<Inner>, change: impl FnOnce(usize) -> usize) {
    let Some(inner) = of.upgrade() else { return };
    let has_changed = {
        let mut state = inner.state();
        let before = state.missing;
        state.missing = change(before);
        state.missing != before
    };
    if has_changed {
        inner.report().await;
    }
}
