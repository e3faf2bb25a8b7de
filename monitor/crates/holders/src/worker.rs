//! The threads that have others looked into: requests go into a bounded number of places, reports come out as
//! observations.
//!
//! Scans are made by [readers](kevtmon_sources::procfs::readers), and rested after, so that scanning takes a twentieth of a
//! core however many requests there are. What is done for strangers, by a thread of its own and at low priority, delays
//! strangers only; what the host asks is answered on a busy machine too. Whether a
//! mount of the host is still there is answered before any scan and without a rest. A scan whose time ran out goes on
//! where it stopped, when it is its turn again. One of the host that has not begun waits for no long rest: whoever asks is
//! told at least what is quickly found.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{io, mem, thread};

use detached::Detached;
use kevtmon_observation::{Fact, HolderReport, MountPresence, Rank, Share, Verdict, VethLink};
use kevtmon_probe::MountTables;
use kevtmon_probe::iterators::Iterators;
use kevtmon_sources::procfs::readers::{BlockingReaders, Readers};
use kevtmon_sources::{Sender, observed_now};
use kevtmon_types::error_chain::chain;
use rest::{Rest, rest_after};

use super::attached::Attached;
use super::jobs::{self, Measured, Scanned, Terms};
use super::locate::Located;
use super::look::{Look, look};
use super::progress::Progress;
use super::scan_queue::{Kind, ScanQueue};
use super::table::{Tables, Uncertainty};
use super::veth_peers::{self, FindPeers};
use super::{DetachedRequest, PresenceRequest, ScanRequest, StillHeldRequest};

/// Longest wait for the answer of a reader, which notices by itself when its time is over. One that hangs is replaced.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Requests whether a mount is still there that wait; all of them together are worth a few scans.
const LOOKS_MAX: usize = 1024;
/// What is left of scans, with what they found: unlike a scan that has not begun it may be large.
const LEFT_MAX: usize = 32;
/// The same of looks at detached mounts, of which another one may begin every ten seconds: they leave scans their places, and
/// each other the time.
const DETACHED_LEFT_MAX: usize = 4;
/// A scan that goes on for longer is ended with what it found.
const SCAN_MAX: Duration = Duration::from_secs(300);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Scans that wait, and have not begun: as of all volumes of a node that is drained.
    pub queue: usize,
    /// Processor time for one scan, until it gives way and goes on later.
    pub budget: Duration,
    /// Longest rest between two scans, whatever the first one took.
    pub max_rest: Duration,
    /// Longest rest before one of the host that has not begun. One that begins before the rest is over has less time.
    pub max_wait: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let (budget, max_rest) = (Duration::from_secs(1), Duration::from_secs(10));
        Self { queue: 256, budget, max_rest, max_wait: Duration::from_secs(2) }
    }
}

/// Takes requests; dropping it ends the threads.
#[derive(Debug)]
pub struct Scanner {
    shared: Arc<Shared>,
    queue: usize,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    tables: Tables,
    attached: Attached,
}

/// Which of the two threads: neither waits for what the other one does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScanThread {
    /// For pods' volumes and the host.
    Host,
    Others,
}

impl ScanThread {
    fn of(rank: Rank) -> Self {
        if rank == Rank::Other { Self::Others } else { Self::Host }
    }
}

#[derive(Debug)]
enum Work {
    /// First of a scan.
    Locate(Box<Scan>),
    Scan(Box<Scan>),
    Presence(PresenceRequest),
    StillHeld(StillHeldRequest),
    Detached(Box<Detached>),
}

#[derive(Debug)]
struct Scan {
    request: ScanRequest,
    progress: Progress,
    begun: Option<Instant>,
    told: Option<HolderReport>,
    /// Whether what it finds at the path is only likely the mount that was meant.
    doubt: Option<Uncertainty>,
    /// Processor time that finding the mount took, and that was not rested after yet.
    located: Duration,
}

impl From<ScanRequest> for Scan {
    fn from(request: ScanRequest) -> Self {
        // Recordings and `kevtmon holders` have none.
        let is_call = request.origin.is_some() && !request.mount_only;
        let doubt = is_call.then_some(Uncertainty::NotSeen);
        let located = Duration::ZERO;
        Self { request, progress: Progress::default(), begun: None, told: None, doubt, located }
    }
}

#[derive(Debug, Default)]
struct State {
    places: ScanQueue<Work>,
    rest: Rest,
    ended: bool,
}

/// Starts the threads; each request that is taken is answered by one `Fact::Holders`, `Fact::MountPresence` or
/// `Fact::DetachedUsers`, and by more where a scan goes on.
/// Errors: when a thread cannot be started, or outside of a runtime.
pub fn spawn(readers: Readers, tx: Sender, limits: Limits) -> io::Result<Scanner> {
    let shared = Arc::new(Shared::default());
    let scanner = Scanner { shared: Arc::clone(&shared), queue: limits.queue };
    for (thread, name) in [(ScanThread::Host, "holders"), (ScanThread::Others, "holders-others")] {
        let (shared, tx) = (Arc::clone(&shared), tx.clone());
        let readers = BlockingReaders::new(readers.clone())?;
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            work(&readers, &shared, &tx, (thread, limits));
            shared.end();
        })?;
    }
    Ok(scanner)
}

impl Scanner {
    /// Queues a scan; never blocks. Returns the answer to a request that has no place any more, which may be this one.
    #[must_use]
    pub fn request(&self, request: ScanRequest, share: Share) -> Option<Fact> {
        let scan = Box::new(Scan::from(request));
        self.queue(if scan.doubt.is_some() { Work::Locate(scan) } else { Work::Scan(scan) }, share)
    }

    /// From now on it can tell whether mounts have changed since a call.
    pub fn set_mount_tables(&self, tables: MountTables) {
        self.shared.tables.set(tables);
    }

    /// From now on the kernel's own lists tell who can hold a mount.
    pub fn set_iterators(&self, iterators: Iterators) {
        self.shared.tables.set_iterators(iterators);
    }

    /// Has a reader look for the other ends of veth devices; never blocks.
    pub fn find_veth_peers_and_send(&self, readers: &Readers, tx: &Sender, links: Vec<VethLink>) {
        veth_peers::find_and_send(
            readers,
            tx,
            FindPeers { links, iterators: self.shared.tables.iterators() },
        );
    }

    /// Where it is told what the host has mounted.
    pub fn attached(&self) -> Attached {
        self.shared.attached.clone()
    }

    /// Queues a request whether a mount is still there; never blocks. Returns what [`Self::request`] returns.
    #[must_use]
    pub fn presence(&self, request: PresenceRequest, share: Share) -> Option<Fact> {
        self.queue(Work::Presence(request), share)
    }

    /// Queues a request who still holds a detached mount; never blocks. Returns what [`Self::request`] returns.
    #[must_use]
    pub fn still_held(&self, request: StillHeldRequest, share: Share) -> Option<Fact> {
        self.queue(Work::StillHeld(request), share)
    }

    /// Queues a request who uses detached mounts; never blocks. Returns what [`Self::request`] returns.
    #[must_use]
    pub fn detached(&self, request: DetachedRequest, share: Share) -> Option<Fact> {
        let request = request.with(&self.shared.attached);
        self.queue(Work::Detached(Box::new(request.into())), share)
    }

    fn queue(&self, work: Work, share: Share) -> Option<Fact> {
        let mut state = self.shared.lock();
        if state.ended {
            return Some(work.unanswered("the holder scanner has ended"));
        }
        let loser = state.add(share, work, self.queue);
        self.shared.changed.notify_all();
        Some(loser?.unanswered("the requests of others took the places of all that wait for a scan"))
    }
}

impl Drop for Scanner {
    fn drop(&mut self) {
        self.shared.end();
    }
}

impl State {
    fn add(&mut self, share: Share, work: Work, scans: usize) -> Option<Work> {
        let kind = work.kind();
        let max = match kind {
            Kind::Look => LOOKS_MAX,
            Kind::Continuation => LEFT_MAX.min(scans),
            Kind::Few | Kind::Scan => scans,
        };
        let is_left = |kind, work: &Work| kind == Kind::Continuation && matches!(work, Work::Detached(_));
        if is_left(kind, &work) && self.places.count(is_left) >= DETACHED_LEFT_MAX {
            return Some(work);
        }
        self.places.add(share, kind, work, max)
    }

    fn next(&mut self, thread: ScanThread, now: Instant) -> Option<(Share, Work)> {
        let Self { places, rest, .. } = self;
        places.next(|rank, kind| ScanThread::of(rank) == thread && rest.is_over(rank, kind, now))
    }

    /// Begins the rest after work of this kind, which leaves something to go on with or not.
    fn rest_after(&mut self, (rank, kind): (Rank, Kind), took: Duration, leaves: bool, limits: &Limits) {
        let now = Instant::now();
        self.rest.add(rank, took, limits, now);
        let waits = || {
            self.places
                .any(|rank, kind| ScanThread::of(rank) == ScanThread::Host && kind == Kind::Continuation)
        };
        if rank != Rank::Other && (kind == Kind::Continuation || leaves && !waits()) {
            self.rest.go_on = now + rest_after(took, limits.max_rest);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    /// What to do next, as far as the rest is over; `None` at the end.
    fn next(&self, thread: ScanThread) -> Option<(Share, Work, Rest)> {
        let mut state = self.lock();
        loop {
            if state.ended {
                return None;
            }
            let (now, rest) = (Instant::now(), state.rest);
            if let Some((share, work)) = state.next(thread, now) {
                return Some((share, work, rest));
            }
            let is_due = |until: &Instant, rank, kind| {
                ScanThread::of(rank) == thread && rest.until(rank, kind).is_some_and(|due| due == *until)
            };
            let due = [rest.begin, rest.go_on, rest.all]
                .into_iter()
                .filter(|until| state.places.any(|rank, kind| is_due(until, rank, kind)));
            state = match due.min() {
                Some(due) => {
                    let wait = due.saturating_duration_since(now);
                    self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

fn work(readers: &BlockingReaders, shared: &Shared, tx: &Sender, (thread, limits): (ScanThread, Limits)) {
    while let Some((share, work, rest)) = shared.next(thread) {
        let (rank, kind) = (share.rank, work.kind());
        let budget = rest.budget(rank, kind, &limits, Instant::now());
        let terms = Terms { budget, in_background: thread == ScanThread::Others };
        let Done { reply, took, left } = work.carry_out(readers, &shared.tables, terms);
        if let Some(reply) = reply
            && tx.blocking_send(observed_now(reply)).is_err()
        {
            return;
        }
        let loser = {
            let mut state = shared.lock();
            let goes_on = left.is_some() && kind != Kind::Look;
            state.rest_after((rank, kind), took, goes_on, &limits);
            left.and_then(|left| state.add(share, left, limits.queue))
        };
        let reason = "the requests of others took the place in which it waited";
        if let Some(loser) = loser
            && tx.blocking_send(observed_now(loser.unanswered(reason))).is_err()
        {
            return;
        }
    }
}

struct Done {
    reply: Option<Fact>,
    took: Duration,
    left: Option<Work>,
}

impl Work {
    fn kind(&self) -> Kind {
        match self {
            Self::Scan(scan) if scan.begun.is_some() => Kind::Continuation,
            Self::Detached(look) if look.has_begun() => Kind::Continuation,
            Self::Scan(_) | Self::Detached(_) => Kind::Scan,
            Self::StillHeld(_) => Kind::Few,
            Self::Locate(_) | Self::Presence(_) => Kind::Look,
        }
    }

    fn carry_out(self, readers: &BlockingReaders, tables: &Tables, terms: Terms) -> Done {
        match self {
            Self::Locate(scan) => scan.locate(readers, tables, terms),
            Self::Scan(scan) => scan.carry_out(readers, tables, terms),
            Self::StillHeld(request) => {
                match readers.ask(jobs::StillHeld { request: request.clone(), terms }, PATIENCE) {
                    Ok(Measured { found, took }) => {
                        Done { reply: Some(Fact::Holders(Box::new(found))), took, left: None }
                    }
                    Err(error) => Self::StillHeld(request).undone(&chain(&error)),
                }
            }
            Self::Detached(look) => look.carry_out(readers, terms),
            Self::Presence(PresenceRequest { at: Some(at), id, identity, .. }) => {
                let found =
                    look(readers, tables, &at, terms).map(|look| (look.leads_to(id, &identity), look.took));
                let (found, took) =
                    found.unwrap_or_else(|error| (MountPresence::unknown(id, chain(&error)), Duration::ZERO));
                Done { reply: Some(Fact::MountPresence(found)), took, left: None }
            }
            Self::Presence(request) => {
                match readers.ask(jobs::Presence { request: request.clone(), terms }, PATIENCE) {
                    Ok(Measured { found, took }) => {
                        Done { reply: Some(Fact::MountPresence(found)), took, left: None }
                    }
                    Err(error) => Self::Presence(request).undone(&chain(&error)),
                }
            }
        }
    }

    fn undone(self, reason: &str) -> Done {
        Done { reply: Some(self.unanswered(reason)), took: Duration::ZERO, left: None }
    }

    fn unanswered(self, reason: &str) -> Fact {
        match self {
            Self::Locate(scan) | Self::Scan(scan) => Fact::Holders(Box::new(scan.unanswered(reason))),
            Self::StillHeld(request) => {
                let mut report = HolderReport::skipped(request.id, request.mount.mountpoint);
                report.blind_spot(None, reason);
                Fact::Holders(Box::new(report))
            }
            Self::Detached(look) => look.unanswered(reason),
            Self::Presence(request) => Fact::MountPresence(MountPresence::unknown(request.id, reason)),
        }
    }
}

impl Scan {
    fn unanswered(self, reason: &str) -> HolderReport {
        let Self { request, progress, told, doubt, .. } = self;
        let located = || {
            // Of the processes nothing is known, but of the mount what was found and how sure that is.
            let mut report = HolderReport { verdict: Verdict::Skipped, ..*progress.found? };
            if let Some(doubt) = doubt {
                doubt.tell(&mut report);
            }
            Some(report)
        };
        let mut report =
            told.or_else(located).unwrap_or_else(|| HolderReport::skipped(request.id, request.path));
        report.goes_on = false;
        report.blind_spot(None, reason);
        report
    }

    /// Finds the mount before anything else, so that little time passes in which others change the mounts.
    fn locate(mut self: Box<Self>, readers: &BlockingReaders, tables: &Tables, terms: Terms) -> Done {
        let Look { located: Located { mut report, lost, .. }, doubt, took } =
            match look(readers, tables, &self.request, terms) {
                Ok(look) => look,
                Err(error) => return Work::Scan(self).undone(&chain(&error)),
            };
        if let Some(lost) = lost {
            report.blind_spot(None, lost.reason());
            return Done { reply: Some(Fact::Holders(Box::new(report))), took, left: None };
        }
        if report.inside.is_some() {
            return Done { reply: Some(Fact::Holders(Box::new(report))), took, left: None };
        }
        self.progress.found = report.mount.is_some().then(|| Box::new(report));
        self.doubt = doubt;
        // The scan itself is not to wait for that.
        let (took, later) = if terms.in_background { (took, Duration::ZERO) } else { (Duration::ZERO, took) };
        self.located = later;
        Done { reply: None, took, left: Some(Work::Scan(self)) }
    }

    fn carry_out(mut self: Box<Self>, readers: &BlockingReaders, tables: &Tables, terms: Terms) -> Done {
        let located = mem::take(&mut self.located);
        let begun = *self.begun.get_or_insert_with(Instant::now);
        let (request, progress) = (self.request.clone(), self.progress.clone());
        let job = jobs::Scan { request, progress, terms, iterators: tables.iterators() };
        match readers.ask(job, PATIENCE) {
            Ok(Measured { found: Scanned { mut report, progress }, took }) => {
                let left = progress.filter(|_| begun.elapsed() < SCAN_MAX);
                report.goes_on = left.is_some();
                if let Some(doubt) = self.doubt {
                    doubt.tell(&mut report);
                }
                if report.verdict == Verdict::ChildMount && !self.sees_mounts_of_call(tables) {
                    report
                        .blind_spot(None, "what is mounted on it may have been mounted there after the call");
                }
                let left = left.map(|progress| {
                    (self.progress, self.told) = (progress, Some(report.clone()));
                    Work::Scan(self)
                });
                Done { reply: Some(Fact::Holders(Box::new(report))), took: took + located, left }
            }
            Err(error) => Work::Scan(self).undone(&chain(&error)),
        }
    }

    /// Whether the mounts are for certain those that the call has seen. Nobody asks of a scan that is about no call.
    fn sees_mounts_of_call(&self, tables: &Tables) -> bool {
        let Some(origin) = &self.request.origin else { return true };
        origin.table.as_ref().is_some_and(|table| tables.event(table) == Some(table.event))
    }
}

mod detached;
mod rest;
#[cfg(test)]
mod tests;
