//! The places of a server: how many connections it serves at once, and which has to go for another.
//!
//! Anybody who may connect can open connections and send nothing. So a connection whose request has not arrived
//! only borrows its place: when all are taken, the one that has been idle for longest is closed.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kevtmon_types::lock::lock;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::yield_now;
use tokio::time::sleep;

/// Turns that accepted connections get before one counts as idle: to register with the runtime, and to read what
/// was sent already.
const YIELDS: usize = 2;

/// How long a client may take to send its request.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// While there are places.
    pub usual: Duration,
    /// While more than half of the places are taken.
    pub scarce: Duration,
}

pub(super) struct ConnectionSlots {
    capacity: usize,
    free: Arc<Semaphore>,
    idle: Mutex<Idle>,
}

/// Connections without a request, in the order in which they were accepted.
#[derive(Default)]
struct Idle {
    next: u64,
    connections: BTreeMap<u64, Arc<Notify>>,
}

/// The place of one connection; free when dropped.
pub(super) struct Place {
    places: Arc<ConnectionSlots>,
    number: u64,
    eviction: Arc<Notify>,
    has_request: AtomicBool,
    _permit: OwnedSemaphorePermit,
}

impl ConnectionSlots {
    pub(super) fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self { capacity, free: Arc::new(Semaphore::new(capacity)), idle: Mutex::default() })
    }

    /// A place for a connection that was accepted. Waits only while every other connection is being answered.
    pub(super) async fn take(self: &Arc<Self>) -> io::Result<Place> {
        for _ in 0..YIELDS {
            if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
                return Ok(self.place(permit));
            }
            yield_now().await;
        }
        if self.free.available_permits() == 0 {
            self.evict_oldest();
        }
        Ok(self.place(Arc::clone(&self.free).acquire_owned().await.map_err(io::Error::other)?))
    }

    fn place(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> Place {
        let eviction = Arc::<Notify>::default();
        let mut idle = lock(&self.idle);
        let number = idle.next;
        idle.next += 1;
        idle.connections.insert(number, Arc::clone(&eviction));
        drop(idle);
        let has_request = AtomicBool::new(false);
        Place { places: Arc::clone(self), number, eviction, has_request, _permit: permit }
    }

    fn evict_oldest(&self) {
        if let Some((_, oldest)) = lock(&self.idle).connections.pop_first() {
            oldest.notify_one();
        }
    }

    fn are_scarce(&self) -> bool {
        self.free.available_permits() < self.capacity / 2
    }
}

impl Place {
    /// The request has arrived: the connection is not idle any more.
    pub(super) fn request_arrived(&self) {
        self.has_request.store(true, Ordering::Relaxed);
        lock(&self.places.idle).connections.remove(&self.number);
    }

    /// Completes when the connection has to go: its place is needed, or its request took too long. Never once the
    /// request has arrived.
    pub(super) async fn is_lost(&self, patience: Patience) {
        tokio::select! {
            () = self.eviction.notified() => {
                if !self.has_request.load(Ordering::Relaxed) {
                    return;
                }
                // It was chosen in the very moment in which its request arrived.
                self.places.evict_oldest();
            }
            () = self.request_is_late(patience) => return,
        }
        std::future::pending().await
    }

    async fn request_is_late(&self, Patience { usual, scarce }: Patience) {
        let mut waited = Duration::ZERO;
        while waited < usual && !(waited >= scarce && self.places.are_scarce()) {
            let step = scarce.min(usual - waited);
            sleep(step).await;
            waited += step;
            if self.has_request.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.places.idle).connections.remove(&self.number);
    }
}
