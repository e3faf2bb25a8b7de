//! The thread that scans: requests go into a bounded queue, reports come out as observations. Whether a mount is still
//! there is answered before any scan.
//!
//! It runs at low priority, and rests after each scan so that scanning takes at most a twentieth of a core
//! however many requests there are. A full queue refuses a request, and the caller reports that the scan was not
//! made.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use nix::time::{ClockId, clock_gettime};

use super::presence::presence;
use super::{Deadline, PresenceRequest, ScanRequest, scan};
use crate::observation::Fact;
use crate::sources::procfs::Proc;
use crate::sources::{Sender, observed_now};

/// A scan that took one part is followed by nineteen parts of rest: 5 % of a core.
const REST_FACTOR: u32 = 19;

/// Added to the thread's nice value: the workloads of the node take precedence.
const NICE: libc::c_int = 10;

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
}

#[derive(Debug, Default)]
struct State {
    scans: VecDeque<ScanRequest>,
    presences: VecDeque<PresenceRequest>,
    ended: bool,
}

/// Starts the thread; each request that is taken is answered by one `Fact::Holders` or `Fact::MountPresence`.
///
/// # Errors
/// When no thread can be started.
pub fn spawn(proc: Proc, tx: Sender, limits: Limits) -> io::Result<Scanner> {
    let shared = Arc::new(Shared::default());
    let theirs = Arc::clone(&shared);
    thread::Builder::new().name("holders".to_owned()).spawn(move || {
        lower_priority();
        work(&proc, &theirs, &tx, limits);
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

fn work(proc: &Proc, shared: &Shared, tx: &Sender, limits: Limits) {
    let mut no_scan_before = Instant::now();
    while let Some(work) = shared.next(no_scan_before) {
        let before = thread_time();
        let reply = match &work {
            Work::Scan(request) => Fact::Holders(Box::new(scan(proc, request, limits.budget))),
            Work::Presence(request) => {
                Fact::MountPresence(presence(proc, request, Deadline::after(limits.budget)))
            }
        };
        let rest = rest_after(thread_time().saturating_sub(before), limits.max_rest);
        if tx.blocking_send(observed_now(reply)).is_err() {
            return;
        }
        // What was looked up between two scans delays the next one, too.
        let now = Instant::now();
        no_scan_before = (no_scan_before.max(now) + rest).min(now + limits.max_rest);
    }
}

/// Rest after a scan that used this much of the processor.
fn rest_after(took: Duration, longest: Duration) -> Duration {
    took.saturating_mul(REST_FACTOR).min(longest)
}

/// Processor time of this thread. The kernel always has this clock, so a failure reads as zero.
fn thread_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// If it is refused, the scan runs at normal priority.
fn lower_priority() {
    // SAFETY: takes three integers. On Linux a priority belongs to a thread, and 0 is the calling one.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{HolderReport, MountIdentity, Verdict};

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
        let scanner = spawn(Proc::new(root.path()), tx, limits).unwrap();
        (root, scanner, rx)
    }

    fn report(rx: &mut tokio::sync::mpsc::Receiver<crate::observation::Observation>) -> HolderReport {
        match rx.blocking_recv().unwrap().fact {
            Fact::Holders(report) => *report,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_request_is_answered_in_turn() {
        let (_root, scanner, mut rx) = start(Limits::default());
        for id in [3, 4] {
            scanner.request(request(id)).unwrap();
        }
        for id in [3, 4] {
            let report = report(&mut rx);
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
        let wanted = PresenceRequest { id: 2, mntns: 1, tgid: 1, identity };
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

    #[test]
    fn the_thread_ends_when_the_scanner_is_dropped() {
        let (_root, scanner, mut rx) = start(Limits::default());
        drop(scanner);
        assert_eq!(rx.blocking_recv(), None);
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

    #[test]
    fn when_nobody_reads_reports_requests_are_refused() {
        let (_root, scanner, rx) = start(Limits::default());
        drop(rx);
        scanner.request(request(1)).unwrap();
        // The thread notices when it answers; then it has ended for good.
        let mut state = scanner.shared.state.lock().unwrap();
        while !state.ended {
            state = scanner.shared.changed.wait(state).unwrap();
        }
        drop(state);
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
