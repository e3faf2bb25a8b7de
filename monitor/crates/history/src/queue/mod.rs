//! The bounded queue between a producer that must never wait and a thread that does slow work.
//!
//! The producer appends to a buffer under a short lock. The thread swaps the whole buffer for an empty one and works
//! without the lock. It is woken only when the buffer was empty or when something urgent arrives: what would slow
//! the producer down is waking a thread, not the lock.
//!
//! The queue is independent of events and files. [`Buffer`] defines what waits and when it is urgent; [`Bounds`] and
//! [`Gap`] are how a buffer decides what fits and accounts for what did not; [`Worker`] is the slow work.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

mod bounds;
#[cfg(test)]
mod tests;

pub use bounds::{Bounds, Gap, QueueClass, Refused};

/// Niceness of worker threads: they yield to the processes being watched, and to the core.
const NICENESS: libc::c_int = 5;

/// What waits in a queue.
pub trait Buffer: Default + Send + 'static {
    /// Whether there is nothing for the worker.
    fn is_empty(&self) -> bool;

    /// How much waits, in the unit of the buffer's bounds.
    fn len(&self) -> usize;

    /// Whether something waits that ends the worker's rest.
    fn is_urgent(&self) -> bool;

    /// Moves what waits to `batch`, which is empty, and takes over its memory.
    fn take_into(&mut self, batch: &mut Self);
}

/// What the thread of a queue does.
pub trait Worker: Send + 'static {
    type Buffer: Buffer;

    /// Processes a batch and leaves it empty. Returns until when the worker rests: nothing is taken before, unless
    /// it is urgent.
    /// Errors: when nothing can be processed, ever: the queue closes.
    fn process(&mut self, batch: &mut Self::Buffer) -> io::Result<Option<Instant>>;

    /// Passes to the producer what came of the last batch. Called with the lock held.
    fn report(&mut self, _waiting: &mut Self::Buffer) {}

    /// When [`Self::on_time`] is to be called, between two batches or while nothing arrives.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// The time of [`Self::due`] has come.
    fn on_time(&mut self) {}

    fn finish(&mut self) {}

    /// The queue closed after an error of [`Self::process`]; `unprocessed` was still waiting.
    fn abort(&mut self, _error: &io::Error, _unprocessed: &Self::Buffer) {}
}

/// The producer's end of a queue.
pub struct Queue<B> {
    shared: Arc<Shared<B>>,
    thread: JoinHandle<()>,
}

struct Shared<B> {
    state: Mutex<State<B>>,
    changed: Condvar,
}

struct State<B> {
    waiting: B,
    phase: Phase,
    /// Since when the worker is at work.
    working: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    Finishing,
    /// The worker failed, or is done.
    Closed,
}

impl<B: Buffer> Queue<B> {
    /// Starts the worker's thread.
    pub fn start(thread_name: &str, worker: impl Worker<Buffer = B>) -> io::Result<Self> {
        let state = State { waiting: B::default(), phase: Phase::Open, working: None };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let thread = thread::Builder::new().name(thread_name.to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || {
                lower_thread_priority();
                // A worker that panics must not let `finish` wait for it.
                let closing = CloseOnDrop(&shared);
                shared.run(worker);
                drop(closing);
            }
        })?;
        Ok(Self { shared, thread })
    }

    /// Changes what waits and wakes the worker if need be; `None` when the queue is closed. Never waits for the
    /// worker.
    pub fn put<R>(&self, change: impl FnOnce(&mut B) -> R) -> Option<R> {
        let mut state = self.shared.lock();
        if state.phase != Phase::Open {
            return None;
        }
        let waiting = &mut state.waiting;
        let (was_empty, was_urgent) = (waiting.is_empty(), waiting.is_urgent());
        let result = change(waiting);
        let wakes = was_empty && !waiting.is_empty() || !was_urgent && waiting.is_urgent();
        drop(state);
        if wakes {
            self.shared.changed.notify_all();
        }
        Some(result)
    }

    /// Looks at what waits.
    pub fn read<R>(&self, read: impl FnOnce(&B) -> R) -> R {
        read(&self.shared.lock().waiting)
    }

    /// Since when the worker has been at a batch, or at what its timer is for; `None` while it waits.
    pub fn working_since(&self) -> Option<Instant> {
        self.shared.lock().working
    }

    /// Lets the worker process what waits, until the deadline.
    /// Errors: how much still waits when it was not done in time.
    pub fn finish(self, deadline: Instant) -> Result<(), usize> {
        let mut state = self.shared.lock();
        if state.phase == Phase::Open {
            state.phase = Phase::Finishing;
            self.shared.changed.notify_all();
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let (state, _) = self
            .shared
            .changed
            .wait_timeout_while(state, left, |state| state.phase == Phase::Finishing)
            .unwrap_or_else(PoisonError::into_inner);
        let (phase, waiting) = (state.phase, state.waiting.len());
        drop(state);
        if phase != Phase::Closed {
            return Err(waiting);
        }
        // A panic of that thread was printed when it happened.
        let _ = self.thread.join();
        Ok(())
    }
}

impl<B: Buffer> Shared<B> {
    fn run(&self, mut worker: impl Worker<Buffer = B>) {
        let mut batch = B::default();
        let mut rest = None;
        while self.take(&mut batch, &mut worker, rest) {
            match worker.process(&mut batch) {
                Ok(until) => {
                    rest = until;
                    // Else a queue in which something always waits would never let it have its time.
                    if worker.due().is_some_and(|due| due <= Instant::now()) {
                        worker.on_time();
                    }
                }
                Err(error) => {
                    let unprocessed = self.close();
                    worker.abort(&error, &unprocessed);
                    return;
                }
            }
        }
        worker.finish();
    }

    /// Waits for work, and then for the end of the rest; false when nothing more arrives.
    fn take(&self, batch: &mut B, worker: &mut impl Worker<Buffer = B>, rest: Option<Instant>) -> bool {
        let mut state = self.lock();
        state.working = None;
        worker.report(&mut state.waiting);
        let is_idle = |state: &mut State<B>| state.waiting.is_empty() && state.phase == Phase::Open;
        state = self.wait(state, worker, None, is_idle);
        if rest.is_some() {
            let may_rest = |state: &mut State<B>| !state.waiting.is_urgent() && state.phase == Phase::Open;
            state = self.wait(state, worker, rest, may_rest);
        }
        state.waiting.take_into(batch);
        state.working = (!batch.is_empty()).then(Instant::now);
        !batch.is_empty()
    }

    /// Waits as long as the condition holds, and not beyond `until`. The worker's timer goes off meanwhile.
    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<B>>,
        worker: &mut impl Worker<Buffer = B>,
        until: Option<Instant>,
        condition: impl Fn(&mut State<B>) -> bool,
    ) -> MutexGuard<'a, State<B>> {
        loop {
            let due = worker.due().filter(|due| until.is_none_or(|until| *due < until));
            let Some(end) = due.or(until) else {
                return self.changed.wait_while(state, &condition).unwrap_or_else(PoisonError::into_inner);
            };
            let left = end.saturating_duration_since(Instant::now());
            (state, _) = self
                .changed
                .wait_timeout_while(state, left, &condition)
                .unwrap_or_else(PoisonError::into_inner);
            if due.is_none() || !condition(&mut state) {
                return state;
            }
            state.working = Some(Instant::now());
            drop(state);
            worker.on_time();
            state = self.lock();
            state.working = None;
        }
    }

    fn close(&self) -> B {
        let mut state = self.lock();
        state.phase = Phase::Closed;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.changed.notify_all();
        waiting
    }

    fn lock(&self) -> MutexGuard<'_, State<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct CloseOnDrop<'a, B: Buffer>(&'a Shared<B>);

impl<B: Buffer> Drop for CloseOnDrop<'_, B> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Lowers the class of the calling thread. Where that fails, it just competes on equal terms.
pub fn lower_thread_priority() {
    // SAFETY: plain integers. On Linux 0 means the calling thread alone (setpriority(2), "C library/kernel
    // differences").
    let failed = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS) } != 0;
    if failed {
        tracing::debug!(error = %io::Error::last_os_error(), "cannot lower the priority of a thread");
    }
}
