//! What a connection and the response on it share.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use kevtmon_types::lock::lock;
use tokio::sync::{Notify, OwnedSemaphorePermit};

/// The state of one connection.
#[derive(Debug, Default)]
pub struct Connection {
    cut: Notify,
    is_stream: AtomicBool,
    permit: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Connection {
    /// Closes the connection, whatever is being sent.
    pub fn cut(&self) {
        self.cut.notify_one();
    }

    /// Completes once [`Self::cut`] was called.
    pub(super) async fn is_cut(&self) {
        self.cut.notified().await;
    }

    /// The response is a stream, which has no time limit.
    pub fn set_stream(&self) {
        self.is_stream.store(true, Ordering::Relaxed);
    }

    /// Holds a permit until the response is sent or the connection closed.
    pub fn hold(&self, permit: OwnedSemaphorePermit) {
        *lock(&self.permit) = Some(permit);
    }

    pub(super) fn is_stream(&self) -> bool {
        self.is_stream.load(Ordering::Relaxed)
    }
}
