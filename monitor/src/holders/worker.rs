//! The thread that scans: requests go into a bounded queue, reports come out as observations. Whether a mount is still
//! there is answered before any scan.
//!
//! Scans are made by [readers](crate::sources::procfs::readers) at low priority. It rests after each scan so that scanning takes at most a twentieth of a core
//! however many requests there are. A full queue refuses a request, and the caller reports that the scan was not
//! made.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use super::jobs::{self, Measured};
use super::{PresenceRequest, ScanRequest, StillHeldRequest};
use crate::error_chain::chain;
use crate::observation::{Fact, HolderReport, MountPresence};
use crate::sources::procfs::readers::{Answer, BlockingReaders, Readers};
use crate::sources::{Sender, observed_now};

/// A scan that took one part is followed by nineteen parts of rest: 5 % of a core.
const REST_FACTOR: u32 = 19;

/// Longest wait for the answer of a reader, which notices by itself when its time is over. One that hangs is replaced.
const PATIENCE: Duration = Duration::from_secs(60);

/// Requests whether a mount is still there that wait; all of them together are worth a few scans.
const PRESENCES_MAX: usize = 1024;

/// What scanning may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Requests that wait.
    pub queue: usize,
    /// Time for one scan.
    pub budget: Duration,
    /// Longest rest between two scans, whatever the first one took.
    pub max_rest: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { queue: 32, budget: Duration::from_secs(1), max_rest: Duration::from_secs(10) }
    }
}

/// Why a request is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The queue is full.
    #[error("the queue of holder scans is full")]
    Full,
    /// The receiver of reports is gone.
    #[error("the holder scanner has ended")]
    Ended,
}

/// Takes requests; dropping it ends the thread.
#[derive(Debug)]
pub struct Scanner {
    shared: Arc<Shared>,
    queue: usize,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// What the thread does next.
#[derive(Debug, PartialEq, Eq)]
enum Work {
    Scan(ScanRequest),
    Presence(PresenceRequest),
    StillHeld(StillHeldRequest),
}

#[derive(Debug, Default)]
struct State {
    scans: VecDeque<ScanRequest>,
    presences: VecDeque<PresenceRequest>,
    still_held: VecDeque<StillHeldRequest>,
    ended: bool,
}

/// Starts the thread; each request that is taken is answered by one `Fact::Holders` or `Fact::MountPresence`.
///
/// # Errors
/// When no thread can be started, or outside of a runtime.
pub fn spawn(readers: Readers, tx: Sender, limits: Limits) -> io::Result<Scanner> {
    let shared = Arc::new(Shared::default());
    let theirs = Arc::clone(&shared);
    let readers = BlockingReaders::new(readers)?;
    thread::Builder::new().name("holders".to_owned()).spawn(move || {
        work(&readers, &theirs, &tx, limits);
        theirs.end();
    })?;
    Ok(Scanner { shared, queue: limits.queue })
}

impl Scanner {
    /// Queues a request; never blocks.
    ///
    /// # Errors
    /// When the queue is full or the thread has ended: no answer will come.
    pub fn request(&self, request: ScanRequest) -> Result<(), Refused> {
        self.queue(request, self.queue, |state| &mut state.scans)
    }

    /// Queues a request whether a mount is still there; never blocks.
    ///
    /// # Errors
    /// As [`Self::request`].
    pub fn presence(&self, request: PresenceRequest) -> Result<(), Refused> {
        self.queue(request, PRESENCES_MAX, |state| &mut state.presences)
    }

    /// Queues a request who still holds a detached mount; never blocks.
    ///
    /// # Errors
    /// As [`Self::request`].
    pub fn still_held(&self, request: StillHeldRequest) -> Result<(), Refused> {
        self.queue(request, self.queue, |state| &mut state.still_held)
    }

    fn queue<T>(
        &self,
        request: T,
        max: usize,
        queue: impl FnOnce(&mut State) -> &mut VecDeque<T>,
    ) -> Result<(), Refused> {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.ended {
            return Err(Refused::Ended);
        }
        let queue = queue(&mut state);
        if queue.len() >= max {
            return Err(Refused::Full);
        }
        queue.push_back(request);
        self.shared.changed.notify_one();
        Ok(())
    }
}

impl Drop for Scanner {
    fn drop(&mut self) {
        self.shared.end();
    }
}

impl Shared {
    fn end(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        self.changed.notify_all();
    }

    /// What to do next, no scan before the moment; `None` at the end.
    fn next(&self, no_scan_before: Instant) -> Option<Work> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if state.ended {
                return None;
            }
            if let Some(request) = state.presences.pop_front() {
                return Some(Work::Presence(request));
            }
            if let Some(request) = state.still_held.pop_front() {
                return Some(Work::StillHeld(request));
            }
            let rest = no_scan_before.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                if let Some(request) = state.scans.pop_front() {
                    return Some(Work::Scan(request));
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            } else {
                state = self.changed.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

fn work(readers: &BlockingReaders, shared: &Shared, tx: &Sender, limits: Limits) {
    let mut no_scan_before = Instant::now();
    while let Some(work) = shared.next(no_scan_before) {
        let (reply, took) = work.carry_out(readers, limits.budget);
        let rest = rest_after(took, limits.max_rest);
        if tx.blocking_send(observed_now(reply)).is_err() {
            return;
        }
        // What was looked up between two scans delays the next one, too.
        let now = Instant::now();
        no_scan_before = (no_scan_before.max(now) + rest).min(now + limits.max_rest);
    }
}

impl Work {
    /// The answer, and the processor time that it took.
    fn carry_out(self, readers: &BlockingReaders, budget: Duration) -> (Fact, Duration) {
        match self {
            Self::Scan(request) => {
                let mut unread = HolderReport::skipped(request.id, request.path.clone());
                match readers.ask(jobs::Scan { request, budget }, PATIENCE) {
                    Ok(Answer { reply: Measured { found, took }, .. }) => {
                        (Fact::Holders(Box::new(found)), took)
                    }
                    Err(error) => {
                        unread.blind_spot(None, &chain(&error));
                        (Fact::Holders(Box::new(unread)), Duration::ZERO)
                    }
                }
            }
            Self::StillHeld(request) => {
                let mut unread = HolderReport::skipped(request.id, request.mount.mountpoint.clone());
                match readers.ask(jobs::StillHeld { request, budget }, PATIENCE) {
                    Ok(Answer { reply: Measured { found, took }, .. }) => {
                        (Fact::Holders(Box::new(found)), took)
                    }
                    Err(error) => {
                        unread.blind_spot(None, &chain(&error));
                        (Fact::Holders(Box::new(unread)), Duration::ZERO)
                    }
                }
            }
            Self::Presence(request) => {
                let id = request.id;
                match readers.ask(jobs::Presence { request, budget }, PATIENCE) {
                    Ok(Answer { reply: Measured { found, took }, .. }) => (Fact::MountPresence(found), took),
                    Err(error) => {
                        (Fact::MountPresence(MountPresence::unknown(id, chain(&error))), Duration::ZERO)
                    }
                }
            }
        }
    }
}

/// Rest after a scan that used this much of the processor.
fn rest_after(took: Duration, longest: Duration) -> Duration {
    took.saturating_mul(REST_FACTOR).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{MountIdentity, Verdict};
    use crate::sources::procfs::Proc;

    fn request(id: u64) -> ScanRequest {
        ScanRequest { id, mntns: 1, tgid: 1, path: "/vol".to_owned(), origin: None, follow: true }
    }

    fn idle(queue: usize) -> Scanner {
        Scanner { shared: Arc::default(), queue }
    }

    /// Scans of an empty /proc.
    fn start(
        limits: Limits,
    ) -> (tempfile::TempDir, Scanner, tokio::sync::mpsc::Receiver<crate::observation::Observation>) {
        let root = tempfile::tempdir().unwrap();
        let (tx, rx) = tokio::sync::mpsc::channel(8);
        let scanner = spawn(Proc::new(root.path()).into(), tx, limits).unwrap();
        (root, scanner, rx)
    }

    async fn report(rx: &mut tokio::sync::mpsc::Receiver<crate::observation::Observation>) -> HolderReport {
        match rx.recv().await.unwrap().fact {
            Fact::Holders(report) => *report,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn each_request_is_answered_in_turn() {
        let (_root, scanner, mut rx) = start(Limits::default());
        for id in [3, 4] {
            scanner.request(request(id)).unwrap();
        }
        for id in [3, 4] {
            let report = report(&mut rx).await;
            assert_eq!((report.id, report.path.as_str(), report.verdict), (id, "/vol", Verdict::Incomplete));
        }
    }

    #[test]
    fn whether_a_mount_is_there_is_answered_before_any_scan() {
        let scanner = idle(1);
        scanner.request(request(1)).unwrap();
        let identity = MountIdentity {
            unique: None,
            mount_id: 2,
            parent_id: 1,
            device: "0:9".to_owned(),
            root: "/".to_owned(),
            mount_point: "/vol".to_owned(),
        };
        let wanted = PresenceRequest { id: 2, mntns: 1, tgid: 1, identity, at: None };
        scanner.presence(wanted.clone()).unwrap();
        let later = Instant::now() + Duration::from_secs(3600);
        assert_eq!(scanner.shared.next(later), Some(Work::Presence(wanted)));
        assert_eq!(scanner.shared.next(Instant::now()), Some(Work::Scan(request(1))));
    }

    #[test]
    fn a_full_queue_refuses() {
        let scanner = idle(2);
        assert_eq!(scanner.request(request(1)), Ok(()));
        assert_eq!(scanner.request(request(2)), Ok(()));
        assert_eq!(scanner.request(request(3)), Err(Refused::Full));
        assert_eq!(scanner.shared.next(Instant::now()), Some(Work::Scan(request(1))));
        assert_eq!(scanner.request(request(4)), Ok(()));
    }

    #[tokio::test]
    async fn the_thread_ends_when_the_scanner_is_dropped() {
        let (_root, scanner, mut rx) = start(Limits::default());
        drop(scanner);
        assert_eq!(rx.recv().await, None);
    }

    #[test]
    fn the_end_interrupts_a_rest() {
        let scanner = idle(1);
        let shared = Arc::clone(&scanner.shared);
        let later = Instant::now() + Duration::from_secs(3600);
        let worker = thread::spawn(move || shared.next(later));
        scanner.request(request(1)).unwrap();
        drop(scanner);
        assert_eq!(worker.join().unwrap(), None);
    }

    #[tokio::test]
    async fn when_nobody_reads_reports_requests_are_refused() {
        let (_root, scanner, rx) = start(Limits::default());
        drop(rx);
        scanner.request(request(1)).unwrap();
        // The thread notices when it answers; then it has ended for good.
        while !scanner.shared.state.lock().unwrap().ended {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(scanner.request(request(2)), Err(Refused::Ended));
    }

    #[test]
    fn scans_take_a_twentieth_of_a_core_within_bounds() {
        let longest = Duration::from_secs(10);
        assert_eq!(rest_after(Duration::from_millis(50), longest), Duration::from_millis(950));
        assert_eq!(rest_after(Duration::from_secs(2), longest), longest);
        assert_eq!(rest_after(Duration::MAX, longest), longest);
    }
}
