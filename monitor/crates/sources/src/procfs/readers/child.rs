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
use super::{Job, Opened, wire};
use crate::procfs::Proc;

/// How often a reader that has not answered yet is looked at.
pub(super) const SAMPLE: Duration = Duration::from_millis(100);
/// A reader that made no progress in as many looks hangs: nothing that is read waits for anything, except a lock that its
/// process holds for as long as it pleases.
const SAMPLES: usize = 5;
/// Longest time for one job, hanging or not.
const LIMIT: Duration = Duration::from_secs(15);
/// First pause before it is looked whether a killed reader is gone, and the longest.
const REAP: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));
/// A reader that made no progress in as many looks hangs even where the kernel waits as for a disk: whoever reads a file of
/// a dead FUSE server waits for the page that the first of its readers has locked.
const PAGE_SAMPLES: usize = 20;
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
    /// Whether workloads of the node take precedence.
    pub(super) background: bool,
    /// Since when it has had nothing to do, if so.
    pub(super) idle_since: Instant,
    /// Whether it has done no job yet.
    pub(super) is_new: bool,
    /// How far it came with the last one, as it said last.
    pub(super) note: Option<Vec<u8>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sample {
    tgid: u32,
    ticks: u64,
    /// Whether it waits as for a disk.
    for_disk: bool,
}

/// What it was seen doing, look after look.
#[derive(Debug, Default)]
pub(super) struct Progress {
    last: Option<Sample>,
    /// Looks that found the same.
    same: usize,
}

impl Progress {
    /// `place`: of the reader or thread in /proc.
    pub(super) fn look(&mut self, place: &str) {
        let now = sample(place);
        self.same = if now.is_some() && now == self.last { self.same + 1 } else { 0 };
        self.last = now;
    }

    /// What it is doing, if it made no progress in as many looks.
    fn stalled(&self, looks: usize) -> Option<&Sample> {
        self.last.as_ref().filter(|_| self.same >= looks)
    }

    pub(super) fn hangs(&self) -> bool {
        self.stalled(PAGE_SAMPLES).is_some() || self.stalled(SAMPLES).is_some_and(|sample| !sample.for_disk)
    }
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
        let idle_since = Instant::now();
        Ok(Self { process, socket, background, idle_since, is_new: true, note: None })
    }

    pub(super) async fn converse<J: Job>(&mut self, job: &J, proc: &Proc) -> Result<Opened<J::Reply>, Ended> {
        let with = Cow::Owned(to_raw_value(job).map_err(io::Error::from)?);
        let request = wire::Request { job: Cow::Borrowed(J::NAME), proc: proc.clone(), with };
        let request = serde_json::to_vec(&request).map_err(io::Error::from)?;
        let Self { process, socket, is_new, note, .. } = self;
        *note = None;
        let started = Instant::now();
        if *is_new {
            // Until it is there, it is not even known to be this program.
            let hello = tokio::time::timeout(LIMIT, wire::read(socket)).await;
            hello.map_err(|_| Ended::Slow)??;
        }
        let mut talk = pin!(async {
            wire::write(socket, &request).await?;
            loop {
                match wire::read(socket).await? {
                    Said::Answer(body, opened) => return io::Result::Ok((body, opened)),
                    Said::Note(last) => *note = Some(last),
                }
            }
        });
        let mut looks = interval(SAMPLE);
        looks.reset();
        let (place, mut progress) = (format!("/proc/{}", process.id()), Progress::default());
        let (body, opened) = loop {
            tokio::select! {
                said = &mut talk => break said?,
                _ = looks.tick() => progress.look(&place),
            }
            if let Some(hangs) = progress.stalled(SAMPLES).filter(|sample| !sample.for_disk) {
                return Err(Ended::Hangs { tgid: hangs.tgid });
            }
            if started.elapsed() > LIMIT {
                let stalled = progress.stalled(PAGE_SAMPLES).filter(|_| !J::WAITS_FOR_DISK);
                return Err(stalled.map_or(Ended::Slow, |sample| Ended::Hangs { tgid: sample.tgid }));
            }
        };
        *is_new = false;
        Ok((serde_json::from_slice(&body).map_err(io::Error::from)?, opened))
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

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }
}

fn program(background: bool) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(super::PROGRAM).arg(super::ARGUMENT).args(background.then_some(super::BACKGROUND));
    command
}

/// What a reader or thread is doing, if it waits while it reads a process: `None` while it runs, is stopped, or reads none.
/// A child of ours that has reported itself executes nothing any more, so that this cannot hang.
pub(super) fn sample(place: &str) -> Option<Sample> {
    let stat = fs::read_to_string(format!("{place}/stat")).ok()?;
    let (head, tail) = stat.rsplit_once(')')?;
    let tgid = read_by(head.split_once('(')?.1)?;
    let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
    if !matches!(*fields.first()?, "S" | "D") {
        return None;
    }
    let ticks = |field: usize| fields.get(field)?.parse::<u64>().ok();
    let function = fs::read_to_string(format!("{place}/wchan")).unwrap_or_default();
    let for_disk = DISK.iter().any(|part| function.contains(part));
    Some(Sample { tgid, ticks: ticks(11)? + ticks(12)?, for_disk })
}

/// The processes that those threads read which are left of a reader.
pub(super) fn read_by_threads(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.filter_map(|thread| read_by(&fs::read_to_string(thread.path().join("comm")).ok()?)).collect()
}
