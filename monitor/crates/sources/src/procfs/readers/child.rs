//! One reader, seen by the daemon: started, talked to, watched, and ended.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Blocking;
use std::os::unix::process::CommandExt as _;
use std::pin::pin;
use std::process::{self, Command, Stdio};
use std::time::Duration;

use serde_json::value::to_raw_value;
use tokio::net::UnixStream;
use tokio::time::{Instant, interval, sleep};

use super::serve::read_by;
use super::wire::Said;
use super::{Answer, Job, wire};
use crate::procfs::Proc;

/// How often a reader that has not answered yet is looked at.
pub(super) const SAMPLE: Duration = Duration::from_millis(100);
/// A reader that made no progress in as many looks hangs: nothing that is read waits for anything, except a lock that its
/// process holds for as long as it pleases.
pub(super) const SAMPLES: usize = 5;
/// Longest time for one job, hanging or not.
const LIMIT: Duration = Duration::from_secs(15);
/// First pause before it is looked whether a killed reader is gone, and the longest.
const REAP: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));
/// A reader that made no progress in as many looks hangs even where the kernel waits as for a disk: whoever reads a file of
/// a dead FUSE server waits for the page that the first of its readers has locked.
pub(super) const PAGE_SAMPLES: usize = 20;
/// Where the kernel waits for a disk: that happens to any program, whatever it reads.
const DISK: [&str; 4] = ["folio", "page", "filemap", "blk"];

/// Why a reader can be used no more.
#[derive(Debug)]
pub(super) enum Ended {
    /// It hangs at this process.
    Hangs { tgid: u32 },
    /// It took too long, and no process is to blame.
    Slow,
    /// It ended, or cannot be understood.
    Failed(io::Error),
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// A reader. Dropping it closes its socket, upon which it ends, unless it hangs.
#[derive(Debug)]
pub(super) struct Child {
    process: process::Child,
    socket: UnixStream,
    /// Whether it has reported that it is there.
    greeted: bool,
    /// Jobs done.
    done: u64,
    /// How far it came with this one, as it said last.
    note: Option<Vec<u8>>,
}

/// What a reader is doing.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sample {
    tgid: u32,
    ticks: u64,
    /// Whether it waits as for a disk.
    pub(super) for_disk: bool,
}

impl Child {
    /// Starts one, by executing this program again. It has no other descriptor than its socket.
    pub(super) fn start(background: bool) -> io::Result<Self> {
        let (ours, theirs) = Blocking::pair()?;
        ours.set_nonblocking(true)?;
        let socket = UnixStream::from_std(ours)?;
        let process = program(background)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // It goes to / by itself: to have that done here costs a copy of the daemon's memory map.
            .env_clear()
            // A terminal's signals are for the daemon, which has it finish.
            .process_group(0)
            .spawn()?;
        Ok(Self { process, socket, greeted: false, done: 0, note: None })
    }

    /// Whether it has done no job yet.
    pub(super) fn is_new(&self) -> bool {
        self.done == 0
    }

    /// How far it came before it hung.
    pub(super) fn take_note(&mut self) -> Option<Vec<u8>> {
        self.note.take()
    }

    /// Has a job done.
    pub(super) async fn converse<J: Job>(&mut self, job: &J, proc: &Proc) -> Result<Answer<J::Reply>, Ended> {
        let with = Cow::Owned(to_raw_value(job).map_err(io::Error::from)?);
        let request = wire::Request { job: Cow::Borrowed(J::NAME), proc: proc.clone(), with };
        let request = serde_json::to_vec(&request).map_err(io::Error::from)?;
        let (body, opened) = self.exchange::<J>(&request).await?;
        self.done += 1;
        Ok(Answer { reply: serde_json::from_slice(&body).map_err(io::Error::from)?, opened })
    }

    async fn exchange<J: Job>(&mut self, request: &[u8]) -> Result<(Vec<u8>, Option<OwnedFd>), Ended> {
        let started = Instant::now();
        let pid = self.process.id();
        let Self { socket, greeted, note, .. } = self;
        *note = None;
        if !std::mem::replace(greeted, true) {
            // Until it is there, it is not even known to be this program.
            let hello = tokio::time::timeout(LIMIT, wire::read(socket)).await;
            hello.map_err(|_| Ended::Slow)??;
        }
        let mut talk = pin!(async {
            wire::write(socket, request).await?;
            loop {
                match wire::read(socket).await? {
                    Said::Answer(body, opened) => return io::Result::Ok((body, opened)),
                    Said::Note(last) => *note = Some(last),
                }
            }
        });
        let mut looks = interval(SAMPLE);
        looks.reset();
        let mut last = None;
        let mut same = 0;
        loop {
            tokio::select! {
                said = &mut talk => return Ok(said?),
                _ = looks.tick() => {}
            }
            let now = sample(pid);
            same = if now.is_some() && now == last { same + 1 } else { 0 };
            last = now;
            if let Some(Sample { tgid, for_disk, .. }) = last
                && same >= SAMPLES
                && !for_disk
            {
                return Err(Ended::Hangs { tgid });
            }
            if started.elapsed() > LIMIT {
                let stalled = last.filter(|_| same >= PAGE_SAMPLES && !J::WAITS_FOR_DISK);
                return Err(stalled.map_or(Ended::Slow, |Sample { tgid, .. }| Ended::Hangs { tgid }));
            }
        }
    }

    /// Kills it and keeps `slot` until it is gone: for ever, if the kernel does not let go of it.
    pub(super) async fn end<T>(mut self, slot: T) {
        // It may be gone already.
        let _ = self.process.kill();
        let (mut pause, longest) = REAP;
        while matches!(self.process.try_wait(), Ok(None)) {
            sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
        drop(slot);
    }

    /// Its process id.
    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }
}

fn program(background: bool) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(super::PROGRAM).arg(super::ARGUMENT).args(background.then_some(super::BACKGROUND));
    command
}

/// What a reader is doing, if it waits while it reads a process: `None` while it runs, is stopped, or reads none.
/// A child of ours that has reported itself executes nothing any more, so that this cannot hang.
pub(super) fn sample(pid: u32) -> Option<Sample> {
    sample_at(&format!("/proc/{pid}"))
}

/// The same of a thread of this process.
pub(super) fn sample_of_thread(tid: u32) -> Option<Sample> {
    sample_at(&format!("/proc/self/task/{tid}"))
}

/// The processes that those threads read which are left of a reader.
pub(super) fn read_by_threads(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.filter_map(|thread| read_by(&fs::read_to_string(thread.path().join("comm")).ok()?)).collect()
}

fn sample_at(place: &str) -> Option<Sample> {
    let stat = fs::read_to_string(format!("{place}/stat")).ok()?;
    let (head, tail) = stat.rsplit_once(')')?;
    let tgid = read_by(head.split_once('(')?.1)?;
    let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
    if !matches!(*fields.first()?, "S" | "D") {
        return None;
    }
    let ticks = |field: usize| fields.get(field)?.parse::<u64>().ok();
    Some(Sample { tgid, ticks: ticks(11)? + ticks(12)?, for_disk: waits_for_disk(place) })
}

fn waits_for_disk(place: &str) -> bool {
    let function = fs::read_to_string(format!("{place}/wchan")).unwrap_or_default();
    DISK.iter().any(|part| function.contains(part))
}
