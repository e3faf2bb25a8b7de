//! Reads of other processes, made by expendable processes of our own.
//!
//! Any read of another process below /proc can hang for as long as that process wants: while it executes a new
//! program, the kernel may wait for a dead FUSE server and holds the lock that `ns/*`, `maps`, `exe` or `stat` need.
//! Whoever reads is beyond all signals but SIGKILL, and possibly beyond that. So the daemon itself reads nothing of
//! other processes. It asks a *reader*: this program, executed once more, with one socket and no other descriptor. A
//! reader serves one [`Job`] at a time. One that hangs is killed and replaced, and the process that it was reading
//! goes on the skip list with all others that the prefilter finds to hang: no job reads those until they have ended, or until
//! they are tried again after a while. The job is begun again, or goes on where it was.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use child::{Child, Ended};
use disk_lock::{DiskLock, Locked};
use hanging::Describe;
use kevtmon_metrics::Metrics;
use kevtmon_observation::Fact;
use kevtmon_types::lock::lock;
use prefilter::{Filtered, Prefilter};
use serde::Serialize;
use serde::de::DeserializeOwned;
use skip_list::SkipList;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use super::Proc;
use crate::beat::at_beat;
use crate::{Sender, tell};

mod apart;
mod child;
mod disk_lock;
mod hanging;
mod prefilter;
mod serve;
mod skip_list;
#[cfg(test)]
mod tests;
mod waits_in;
mod wire;

pub use apart::unless_it_hangs;
pub(crate) use serve::reading;
use serve::{ARGUMENT, BACKGROUND, PROGRAM};
pub use serve::{Entry, asker, entry, note, reading_none, serve_if_asked};
pub use waits_in::{WAITS, Waits, unanswered};

const READERS: usize = 8;
/// Readers besides that were killed and do not end, since the kernel waits for what they read. They work no more, but each
/// costs memory; of further ones each takes the place of one that works.
const LOST: usize = 16;
/// A reader that was killed, and is still there after this time, is lost.
const LOST_AFTER: Duration = Duration::from_secs(1);
/// A reader that had nothing to do for this long is ended: longer than between two of the looks that never cease, since to start
/// one costs more than most of what it reads.
const IDLE: Duration = Duration::from_secs(if cfg!(test) { 5 } else { 65 });
const SWEEP: Duration = Duration::from_secs(10);
/// How often a job is begun again because a reader hung.
const ATTEMPTS: usize = 64;
/// Longest wait for a place to look for all that hang.
const PREFILTER_PATIENCE: Duration = Duration::from_millis(200);
/// How often processes on the skip list are looked at.
const REVIEW: Duration = Duration::from_secs(1);

/// The jobs of this module.
pub const JOBS: [Entry; 2] = [entry::<Describe>(), entry::<Prefilter>()];

/// Something to read, in a process of its own.
pub trait Job: Serialize + DeserializeOwned + Send + Sync + 'static {
    const NAME: &'static str;
    type Reply: Serialize + DeserializeOwned + Send + 'static;
    /// Whether it reads files on a disk, which may hang: then one of its kind is done at a time.
    const WAITS_FOR_DISK: bool = false;
    /// Whether workloads of the node take precedence.
    const IN_BACKGROUND: bool = false;

    fn in_background(&self) -> bool {
        Self::IN_BACKGROUND
    }

    /// Reads it. Called in a reader.
    fn run(&self, proc: &Proc) -> Self::Reply;

    /// The same, with a descriptor if it opened one for the daemon.
    fn run_and_open(&self, proc: &Proc) -> Opened<Self::Reply> {
        (self.run(proc), None)
    }

    /// Goes on from what was [noted](note) last, after a process hung the reader. Without that, it begins again.
    fn go_on(&mut self, _note: &[u8]) {}
}

/// What a job found, and what it opened.
pub type Opened<T> = (T, Option<OwnedFd>);

#[derive(Debug, thiserror::Error)]
pub enum Unread {
    #[error("no reader of /proc is free")]
    Busy,
    #[error("reading /proc takes too long")]
    Late,
    #[error("too many processes hang their readers")]
    Hanging,
    #[error("a disk does not answer the reader before")]
    Stuck,
    #[error("a reader of /proc failed")]
    Failed(#[source] std::io::Error),
}

/// Asks readers, which are started when they are needed. Clones share them.
#[derive(Debug, Clone)]
pub struct Readers(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    proc: Proc,
    slots: Arc<Semaphore>,
    lost: Arc<Semaphore>,
    state: Mutex<State>,
    /// When all processes that hang were looked for last.
    prefiltered: tokio::sync::Mutex<Option<Instant>>,
    reporting: tokio::sync::Mutex<()>,
    report: Option<Report>,
}

#[derive(Debug, Default)]
struct State {
    /// In the order in which they became so.
    idle: Vec<Child>,
    /// By the name of the kind of jobs.
    disk_locks: BTreeMap<&'static str, Arc<DiskLock>>,
    skipped: SkipList,
    /// Readers that were killed and are still there, by process id.
    killed: BTreeSet<u32>,
    /// How many of them keep the place of one that would work.
    missing: usize,
    sweeping: bool,
    reviewing: bool,
}

struct Report {
    tx: Sender,
    metrics: Arc<Metrics>,
}

impl std::fmt::Debug for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Report")
    }
}

impl From<Proc> for Readers {
    fn from(proc: Proc) -> Self {
        Self::new(proc, None)
    }
}

impl Readers {
    /// Readers of a /proc, which report what hangs as the status of a source and as a metric.
    pub fn reporting(proc: Proc, tx: Sender, metrics: Arc<Metrics>) -> Self {
        Self::new(proc, Some(Report { tx, metrics }))
    }

    fn new(proc: Proc, report: Option<Report>) -> Self {
        let (slots, lost) = (Arc::new(Semaphore::new(READERS)), Arc::new(Semaphore::new(LOST)));
        let (state, prefiltered, reporting) = Default::default();
        Self(Arc::new(Inner { proc, slots, lost, state, prefiltered, reporting, report }))
    }

    pub fn proc(&self) -> &Proc {
        &self.0.proc
    }

    /// Has a job done. Waits no longer than `patience`; the reader goes on, and is judged, without the caller.
    pub async fn ask<J: Job>(&self, job: J, patience: Duration) -> Result<J::Reply, Unread> {
        Ok(self.ask_to_open(job, patience).await?.0)
    }

    /// The same, with a descriptor if the job opened one.
    pub async fn ask_to_open<J: Job>(&self, job: J, patience: Duration) -> Result<Opened<J::Reply>, Unread> {
        let (done, answer) = oneshot::channel();
        let inner = Arc::clone(&self.0);
        tokio::spawn(async move {
            // The caller may have lost patience.
            let _ = done.send(inner.attempt(job, patience).await);
        });
        match timeout(patience, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Unread::Busy),
            Err(_) => Err(Unread::Late),
        }
    }

    /// The reply to a job; none where no reader answered in time. `failure`: what is logged then.
    pub async fn reply<J: Job>(&self, job: J, patience: Duration, failure: &str) -> Option<J::Reply> {
        self.ask(job, patience).await.inspect_err(|error| tracing::debug!(%error, "{failure}")).ok()
    }

    /// Has a job done without waiting for it, and tells what its [reply](Self::reply) means.
    pub fn tell<J: Job>(
        &self,
        tx: &Sender,
        (job, patience, failure): (J, Duration, &'static str),
        fact: impl FnOnce(Option<J::Reply>) -> Option<Fact> + Send + 'static,
    ) {
        let (readers, tx) = (self.clone(), tx.clone());
        tokio::spawn(async move {
            if let Some(fact) = fact(readers.reply(job, patience, failure).await) {
                tell(&tx, fact).await;
            }
        });
    }
}

/// Readers for a thread that may block.
#[derive(Debug)]
pub struct BlockingReaders {
    readers: Readers,
    runtime: tokio::runtime::Handle,
}

impl BlockingReaders {
    /// Readers that are driven by the runtime of the caller.
    pub fn new(readers: Readers) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Handle::try_current().map_err(std::io::Error::other)?;
        Ok(Self { readers, runtime })
    }

    /// As [`Readers::ask`]. Must not be called from within the runtime.
    /// Errors: as there, and at once when the runtime ends.
    pub fn ask<J: Job>(&self, job: J, patience: Duration) -> Result<J::Reply, Unread> {
        let (done, answer) = std::sync::mpsc::sync_channel(1);
        let readers = self.readers.clone();
        self.runtime.spawn(async move {
            // The receiver waits for it.
            let _ = done.send(readers.ask(job, patience).await);
        });
        answer.recv().unwrap_or(Err(Unread::Busy))
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    async fn attempt<J: Job>(
        self: &Arc<Self>,
        mut job: J,
        patience: Duration,
    ) -> Result<Opened<J::Reply>, Unread> {
        let (begun, background) = (Instant::now(), job.in_background());
        let disk = self.lock_disk::<J>(patience).await?;
        for _ in 0..ATTEMPTS {
            let slots = Arc::clone(&self.slots);
            let left = patience.saturating_sub(begun.elapsed());
            let Ok(Ok(slot)) = timeout(left, slots.acquire_owned()).await else { return Err(Unread::Busy) };
            let proc = self.proc.without(self.state().skipped.pids());
            let mut child = self.take(background).map_err(Unread::Failed)?;
            let asked = Instant::now();
            match child.converse(&job, &proc).await {
                Ok(answer) => {
                    drop(slot);
                    self.put_back(child);
                    return Ok(answer);
                }
                Err(Ended::Failed(error)) => {
                    let was_new = child.is_new;
                    self.end(child, slot, ());
                    // One that was idle may have been killed meanwhile.
                    if was_new {
                        return Err(Unread::Failed(error));
                    }
                }
                Err(Ended::Slow) => {
                    self.end(child, slot, disk);
                    return Err(Unread::Late);
                }
                Err(Ended::Hangs { tgid }) => {
                    if let Some(note) = child.note.take() {
                        job.go_on(&note);
                    }
                    self.end(child, slot, ());
                    self.state().skipped.add(&self.proc, tgid);
                    tracing::warn!(tgid, "reading a process hangs; it is skipped");
                    self.prefilter(asked).await;
                    self.has_skipped();
                }
            }
        }
        Err(Unread::Hanging)
    }

    async fn lock_disk<J: Job>(&self, patience: Duration) -> Result<Option<Locked>, Unread> {
        if !J::WAITS_FOR_DISK {
            return Ok(None);
        }
        let lock = Arc::clone(self.state().disk_locks.entry(J::NAME).or_default());
        lock.lock(patience).await.map(Some).ok_or(Unread::Stuck)
    }

    /// The idle reader of this kind that was used last, else a new one.
    fn take(&self, background: bool) -> std::io::Result<Child> {
        let mut state = self.state();
        let idle = state.idle.iter().rposition(|child| child.background == background);
        let idle = idle.map(|place| state.idle.remove(place));
        drop(state);
        idle.map_or_else(|| Child::start(background), Ok)
    }

    fn put_back(self: &Arc<Self>, mut child: Child) {
        child.idle_since = Instant::now();
        let mut state = self.state();
        state.idle.push(child);
        if !std::mem::replace(&mut state.sweeping, true) {
            tokio::spawn(repeat(Arc::downgrade(self), SWEEP, Self::sweep));
        }
    }

    /// Ends a reader, which keeps its place and `disk` until it is gone.
    fn end<T: Send + 'static>(self: &Arc<Self>, child: Child, slot: OwnedSemaphorePermit, disk: T) {
        let (id, inner) = (child.id(), Arc::downgrade(self));
        self.state().killed.insert(id);
        tokio::spawn(async move {
            Self::keep(slot, &inner, child.end(disk)).await;
            if let Some(inner) = inner.upgrade() {
                inner.state().killed.remove(&id);
            }
        });
    }

    /// Keeps the place of a reader that was killed until it is gone; one among those that are lost, if it does not end.
    async fn keep(slot: OwnedSemaphorePermit, of: &Weak<Self>, gone: impl Future<Output = ()>) {
        let mut gone = pin!(gone);
        if timeout(LOST_AFTER, &mut gone).await.is_ok() {
            return;
        }
        let lost = of.upgrade().and_then(|inner| Arc::clone(&inner.lost).try_acquire_owned().ok());
        if let Some(_place) = lost {
            drop(slot);
            return gone.await;
        }
        Self::missing(of, 1).await;
        gone.await;
        Self::missing(of, -1).await;
    }

    /// Reports that more readers are missing, or fewer.
    async fn missing(of: &Weak<Self>, change: isize) {
        let Some(inner) = of.upgrade() else { return };
        {
            let mut state = inner.state();
            state.missing = state.missing.saturating_add_signed(change);
        }
        inner.report().await;
    }

    /// Ends readers that have nothing to do; false when none is left.
    fn sweep(self: Arc<Self>) -> impl Future<Output = bool> {
        let mut state = self.state();
        for child in state.idle.extract_if(.., |child| child.idle_since.elapsed() >= IDLE) {
            tokio::spawn(child.end(()));
        }
        state.sweeping = !state.idle.is_empty();
        std::future::ready(state.sweeping)
    }

    /// Reports what is skipped, and has it tried again.
    fn has_skipped(self: &Arc<Self>) {
        let inner = Arc::clone(self);
        tokio::spawn(async move { inner.report().await });
        if !std::mem::replace(&mut self.state().reviewing, true) {
            tokio::spawn(repeat(Arc::downgrade(self), REVIEW, Self::review));
        }
    }

    /// Skips all others that hang, unless they were looked for after a time.
    async fn prefilter(self: &Arc<Self>, since: Instant) {
        let mut last = self.prefiltered.lock().await;
        while last.is_none_or(|at| at <= since) {
            let (began, proc) = (Instant::now(), self.proc.without(self.state().skipped.pids()));
            let Some(Filtered { hanging, unread }) = self.once(&Prefilter { pids: None }, &proc).await else {
                break;
            };
            // There may be more that it had no time for.
            *last = (unread.is_empty() || hanging.is_empty()).then_some(began);
            if !hanging.is_empty() {
                tracing::warn!(?hanging, "reading processes hangs; they are skipped");
            }
            let mut state = self.state();
            for tgid in hanging {
                state.skipped.add(&self.proc, tgid);
            }
        }
    }

    /// Finds out what can be read of those that a message names.
    async fn describe(self: &Arc<Self>) {
        let undescribed = self.state().skipped.undescribed();
        for tgid in undescribed {
            if let Some(description) = self.once(&Describe { tgid }, &self.proc).await {
                self.state().skipped.describe(tgid, description);
            }
        }
    }

    /// Has a job done by a reader of its own, which is ended then.
    async fn once<J: Job>(self: &Arc<Self>, job: &J, proc: &Proc) -> Option<J::Reply> {
        let slot = timeout(PREFILTER_PATIENCE, Arc::clone(&self.slots).acquire_owned()).await.ok()?.ok()?;
        let mut child = Child::start(true).ok()?;
        let done = child.converse(job, proc).await;
        self.end(child, slot, ());
        Some(done.ok()?.0)
    }

    /// Lets go of those that have ended, and has some tried again; false when none is left.
    async fn review(self: Arc<Self>) -> bool {
        // Each of them would hold the next reader, too, until none is left.
        let killed = self.state().killed.clone();
        let holding = killed.into_iter().flat_map(child::read_by_threads).collect();
        let (mut changed, mut due) = self.state().skipped.review(&self.proc, Instant::now(), &holding);
        if !due.is_empty()
            && let Some(found) = self.once(&Prefilter { pids: Some(due.clone()) }, &self.proc).await
        {
            due.retain(|tgid| !found.hanging.contains(tgid) && !found.unread.contains(tgid));
            changed |= !due.is_empty();
            self.state().skipped.remove(&due);
        }
        if changed {
            self.report().await;
        }
        let mut state = self.state();
        state.reviewing = state.skipped.len() > 0;
        state.reviewing
    }

    async fn report(self: &Arc<Self>) {
        let Some(report) = &self.report else { return };
        // One after the other: what is sent last is what is so.
        let _turn = self.reporting.lock().await;
        self.describe().await;
        let (count, status) = {
            let state = self.state();
            (state.skipped.len(), state.skipped.status(state.missing, READERS))
        };
        report.metrics.proc_readers_stuck(count);
        tell(&report.tx, Fact::Source(status)).await;
    }
}

/// Calls `work` at this interval until it returns false or nobody asks readers any more.
async fn repeat<F: Future<Output = bool>>(
    inner: Weak<Inner>,
    interval: Duration,
    work: impl Fn(Arc<Inner>) -> F,
) {
    loop {
        sleep_until(at_beat(interval)).await;
        let Some(inner) = inner.upgrade() else { return };
        if !work(inner).await {
            return;
        }
    }
}
