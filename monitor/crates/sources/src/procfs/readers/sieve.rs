//! Finds all processes at once that hang whoever reads them.
//!
//! A reader that hangs is known to after half a second, and begins again without the process that it was reading. Who has
//! many such processes would blind it for half a second with each of them. So when one is met, all others are looked for
//! together, by a reader that may lose any number of its threads: it is killed as a whole.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::child::{PAGE_SAMPLES, SAMPLE, SAMPLES, Sample, sample_of_thread};
use super::serve::{reading_none, show_in_thread};
use super::{Answer, Job};
use crate::procfs::Proc;
use crate::procfs::dir::Buffer;

/// Threads that may hang. Of more processes, the rest is found by the next one.
pub(super) const THREADS: usize = 256;
/// Each needs no more than a few small buffers.
const STACK: usize = 64 << 10;
/// If none of the threads goes on for so long, there are twice as many.
const LOOK: Duration = Duration::from_millis(5);
/// What was not read until then is left to the next one.
const BUDGET: Duration = Duration::from_secs(5);

/// Reads of processes whatever jobs read, several at a time.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Sieve {
    /// `None`: all.
    pub(super) pids: Option<Vec<u32>>,
}

/// What came of it.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sifted {
    /// Processes that hang.
    pub(super) hanging: BTreeSet<u32>,
    /// Processes, of those that were to be read, that were not.
    pub(super) unread: BTreeSet<u32>,
}

impl Job for Sieve {
    const NAME: &'static str = "sieve";
    type Reply = Sifted;

    fn in_background(&self) -> bool {
        true
    }

    fn run(&self, proc: &Proc) -> Answer<Sifted> {
        let of_proc = || proc.pids().unwrap_or_default();
        let mut pids = self.pids.clone().unwrap_or_else(of_proc);
        pids.retain(|tgid| !proc.is_aside(*tgid));
        reading_none();
        let work = Arc::new(Work { proc: proc.clone(), pids, next: AtomicUsize::new(0) });
        Threads { work, threads: Vec::new() }.run().into()
    }
}

struct Work {
    proc: Proc,
    pids: Vec<u32>,
    /// Index of the next one that nobody reads.
    next: AtomicUsize,
}

impl Work {
    fn begun(&self) -> usize {
        self.next.load(Ordering::Relaxed).min(self.pids.len())
    }

    fn is_all_begun(&self) -> bool {
        self.begun() == self.pids.len()
    }

    /// Reads one after the other, until all are read.
    fn read(&self, tid: &AtomicU32, current: &AtomicU32) {
        tid.store(u32::try_from(nix::unistd::gettid().as_raw()).unwrap_or_default(), Ordering::Relaxed);
        while let Some(tgid) = self.pids.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            current.store(*tgid, Ordering::Relaxed);
            show_in_thread(*tgid);
            read(&self.proc, *tgid);
            current.store(0, Ordering::Relaxed);
        }
    }
}

/// Reads of a process whatever may wait for it.
fn read(proc: &Proc, tgid: u32) {
    let _ = proc.stat(tgid);
    let Ok(dir) = proc.dir(tgid) else { return };
    let (mut buffer, mut text, mut numbers) = (Buffer::default(), Vec::new(), Vec::new());
    for link in [c"ns/net", c"ns/mnt", c"exe", c"cwd", c"root"] {
        let _ = dir.link(link, &mut buffer);
    }
    for file in [c"maps", c"mountinfo", c"cmdline", c"cgroup"] {
        // The first byte waits as the last one does.
        let _ = dir.beginning(file, 1, &mut text);
    }
    for list in [c"fd", c"task"] {
        let _ = dir.at(list).and_then(|list| list.more_numbers(&mut buffer, &mut numbers));
    }
}

struct Thread {
    handle: JoinHandle<()>,
    tid: Arc<AtomicU32>,
    /// The process that it reads, or 0.
    current: Arc<AtomicU32>,
    last: Option<Sample>,
    /// Looks in which it made no progress.
    same: usize,
}

impl Thread {
    fn start(work: &Arc<Work>) -> Option<Self> {
        let (tid, current) = <(Arc<AtomicU32>, Arc<AtomicU32>)>::default();
        let theirs = (Arc::clone(work), Arc::clone(&tid), Arc::clone(&current));
        let builder = thread::Builder::new().stack_size(STACK);
        let handle = builder.spawn(move || theirs.0.read(&theirs.1, &theirs.2)).ok()?;
        Some(Self { handle, tid, current, last: None, same: 0 })
    }

    fn look(&mut self) {
        let now = sample_of_thread(self.tid.load(Ordering::Relaxed));
        self.same = if now.is_some() && now == self.last { self.same + 1 } else { 0 };
        self.last = now;
    }

    fn hangs(&self) -> bool {
        let enough =
            if self.last.as_ref().is_some_and(|last| last.for_disk) { PAGE_SAMPLES } else { SAMPLES };
        self.same >= enough
    }

    fn current(&self) -> Option<u32> {
        Some(self.current.load(Ordering::Relaxed)).filter(|tgid| *tgid != 0)
    }
}

struct Threads {
    work: Arc<Work>,
    threads: Vec<Thread>,
}

impl Threads {
    #[expect(clippy::disallowed_methods, reason = "nothing announces that a thread hangs")]
    fn run(mut self) -> Sifted {
        let (began, mut looked) = (Instant::now(), Instant::now());
        self.add(1);
        let mut begun = 0;
        while began.elapsed() < BUDGET {
            sleep(LOOK);
            self.threads.retain(|thread| !thread.handle.is_finished());
            let before = std::mem::replace(&mut begun, self.work.begun());
            if !self.work.is_all_begun() && begun == before {
                self.add(self.threads.len().max(1));
            }
            if looked.elapsed() >= SAMPLE {
                looked = Instant::now();
                self.threads.iter_mut().for_each(Thread::look);
            }
            if self.threads.iter().all(Thread::hangs)
                && (self.work.is_all_begun() || self.threads.len() >= THREADS)
            {
                break;
            }
        }
        let of = |hangs| {
            let threads = self.threads.iter().filter(move |thread| thread.hangs() == hangs);
            threads.filter_map(Thread::current)
        };
        let unbegun = self.work.pids[self.work.begun()..].iter().copied();
        Sifted { hanging: of(true).collect(), unread: of(false).chain(unbegun).collect() }
    }

    fn add(&mut self, number: usize) {
        let number = number.min(THREADS.saturating_sub(self.threads.len()));
        self.threads.extend((0..number).map_while(|_| Thread::start(&self.work)));
    }
}
