//! What only /proc has of the ancestors of a task: their executables, and the paths of their control groups.
//!
//! Read by a [reader](kevtmon_sources::procfs::readers), since an ancestor may hang whoever reads it. The ring is drained
//! meanwhile, and what comes out of it waits in order, for a moment, in bounded number and size. How often anybody may cause that
//! is in [`questions`](super::questions); beyond it a task stays as the kernel captured it.

use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::time::{Duration, Instant};

use kevtmon_observation::{Ancestor, Fact, Observation, TaskKey, TaskPlace};
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::readers::{Job, Readers, Unread};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot::{self, error::TryRecvError};

use super::questions::{Account, Questions};

/// Longest wait for the ancestors of one task; a reader takes a fraction of a millisecond, its start some more.
const PATIENCE: Duration = Duration::from_millis(250);
/// How long an answer serves other children of the same parent, which often do the same again and again.
const FRESH: Duration = Duration::from_secs(1);
/// Answers that are kept.
const KEPT: usize = 64;
/// Observations that wait for one task at most; then it stays as the kernel captured it.
const WAITING_MAX: usize = 16_384;
/// The same in bytes of their texts: any user can give paths of 4 KiB, which take three times as much if they are no text.
const WAITING_TEXTS: usize = 4 << 20;

/// Where a task acted, since its control groups are often those of its parent, and the captured ancestors: what they are,
/// the name by which they go now, which changes with the executable, their users and control groups, and whether each has
/// started the one below it, which not all children of a parent have in common.
type Line = (TaskPlace, Vec<Ancestor>);

/// Completes the ancestors of tasks, and keeps observations in order meanwhile.
#[derive(Debug)]
pub(super) struct Lineages {
    readers: Readers,
    known: HashMap<Line, (Instant, Vec<Ancestor>)>,
    questions: Questions,
    /// Each with the bytes of its texts. The first one is the task that was asked about, if any was.
    waiting: VecDeque<(Observation, usize)>,
    texts: usize,
    /// How many were taken in so far.
    added: u64,
    asked: Option<Asked>,
}

/// A question under way.
#[derive(Debug)]
struct Asked {
    account: Account,
    line: Line,
    captured: Vec<Ancestor>,
    answer: oneshot::Receiver<Completed>,
    /// Awaited no longer than this.
    until: Instant,
}

type Completed = Result<Vec<Ancestor>, Unread>;

impl Lineages {
    pub(super) fn new(readers: Readers) -> Self {
        let questions = Questions::new(Instant::now());
        let (known, waiting, asked) = Default::default();
        Self { readers, known, questions, waiting, texts: 0, added: 0, asked }
    }

    /// Takes an observation in; [`next`](Self::next) gives it back.
    pub(super) fn add(&mut self, observation: Observation) {
        // A task has others once it is completed.
        let texts = observation.text_bytes();
        self.texts += texts;
        self.waiting.push_back((observation, texts));
        self.added += 1;
        if self.waiting.len() >= WAITING_MAX {
            self.give_up();
        } else if self.texts >= WAITING_TEXTS {
            // A few hundred calls of any user are enough: nobody's next question is paused for that.
            if let Some(Asked { line, captured, .. }) = self.asked.take() {
                self.know(line, captured, Instant::now());
            }
        }
    }

    /// How many observations were taken in so far.
    pub(super) fn added(&self) -> u64 {
        self.added
    }

    /// How many of them were given back.
    pub(super) fn given(&self) -> u64 {
        self.added - self.waiting.len() as u64
    }

    /// Whether the oldest observation waits for an answer.
    pub(super) fn is_asking(&self) -> bool {
        self.asked.is_some()
    }

    /// The oldest observation, unless it waits for an answer.
    pub(super) fn next(&mut self) -> Option<Observation> {
        if !self.is_settled() || self.asks() {
            return None;
        }
        let (next, texts) = self.waiting.pop_front()?;
        self.texts -= texts;
        Some(next)
    }

    /// Takes the answer if it is there, or if it was awaited for long enough; whether none is out any more. In a storm the
    /// ring is never empty, and nobody comes to await it.
    fn is_settled(&mut self) -> bool {
        let Some(asked) = &mut self.asked else { return true };
        let answer = match asked.answer.try_recv() {
            Ok(answer) => answer,
            Err(TryRecvError::Empty) if Instant::now() < asked.until => return false,
            Err(TryRecvError::Empty) => Err(Unread::Late),
            Err(TryRecvError::Closed) => Err(Unread::Busy),
        };
        self.settle(answer);
        true
    }

    /// Completes the oldest observation by what is known; whether that has to be asked for.
    fn asks(&mut self) -> bool {
        if let Some((Observation { fact: Fact::Task(task), .. }, _)) = self.waiting.front_mut()
            && !task.ancestors.is_empty()
        {
            let now = Instant::now();
            let own = (task.place.cgroup_v1, task.place.cgroup_v2);
            for ancestor in task.ancestors.iter_mut().filter(|above| above.groups == own && own != (0, 0)) {
                // Of the task itself the kernel has captured the names, too.
                ancestor.cgroup.clone_from(&task.cgroup);
            }
            let (account, line) = (Account::of(task), (task.place, task.ancestors.clone()));
            match self.known.get(&line).filter(|(read, _)| now - *read < FRESH) {
                Some((_, known)) => task.ancestors.clone_from(known),
                None if self.questions.take(account, now) => {
                    let captured = task.ancestors.clone();
                    let (readers, job) = (self.readers.clone(), Complete(captured.clone()));
                    let (answered, answer) = oneshot::channel();
                    tokio::spawn(async move {
                        // Nobody may wait for it any more.
                        let _ = answered.send(readers.ask(job, PATIENCE).await);
                    });
                    self.asked = Some(Asked { account, line, captured, answer, until: now + PATIENCE });
                    return true;
                }
                None => {}
            }
        }
        false
    }

    /// Resolves when the oldest observation waits no longer; never, if it does not wait. Cancel-safe.
    pub(super) async fn completed(&mut self) {
        let Some(asked) = &mut self.asked else { return pending().await };
        let answer = (&mut asked.answer).await;
        self.settle(answer.unwrap_or(Err(Unread::Busy)));
    }

    /// What was asked for is as it was answered, or as the kernel captured it.
    fn settle(&mut self, answer: Completed) {
        let Some(Asked { account, line, captured, .. }) = self.asked.take() else { return };
        let now = Instant::now();
        let completed = match answer {
            Ok(completed) => completed,
            Err(error) => {
                if matches!(error, Unread::Late | Unread::Busy) {
                    self.questions.was_in_vain(account, now);
                }
                tracing::debug!(%error, "the ancestors of a task are not completed");
                captured
            }
        };
        self.know(line, completed, now);
    }

    /// Keeps the ancestors for a while, so that they are not asked for again.
    fn know(&mut self, line: Line, ancestors: Vec<Ancestor>, now: Instant) {
        if self.known.len() >= KEPT {
            self.known.retain(|_, (read, _)| now - *read < FRESH);
        }
        if self.known.len() >= KEPT {
            self.known.clear();
        }
        self.known.insert(line, (now, ancestors));
    }

    /// Waits for nothing any more.
    pub(super) fn give_up(&mut self) {
        self.asked = None;
        self.questions.pause(Instant::now());
    }
}

/// Completes the captured ancestors of a task.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Complete(Vec<Ancestor>);

impl Job for Complete {
    const NAME: &'static str = "ancestors";
    type Reply = Vec<Ancestor>;

    fn run(&self, proc: &Proc) -> Vec<Ancestor> {
        let mut ancestors = self.0.clone();
        for ancestor in &mut ancestors {
            complete(proc, ancestor);
        }
        ancestors
    }
}

/// Reads an ancestor. What was read of an id belongs to it only if it has the id before and after. An executable is that of
/// then only if the process goes by the same name still, since another program has another name, as a rule. A control group
/// is, if it is the one that the kernel captured.
fn complete(proc: &Proc, ancestor: &mut Ancestor) {
    let key = TaskKey { tgid: ancestor.tgid, start_ns: ancestor.start_ns, exec_id: 0 };
    if !proc.is_same(&key) {
        return;
    }
    let exe = exe(proc, key.tgid);
    let read = match &ancestor.cgroup {
        Some(_) => None,
        None => proc.cgroup_of(key.tgid, ancestor.groups),
    };
    let is_renamed = proc.stat(key.tgid).is_none_or(|stat| stat.comm != ancestor.comm);
    if !proc.is_same(&key) {
        return;
    }
    ancestor.cgroup = ancestor.cgroup.take().or(read);
    if !is_renamed {
        ancestor.exe = exe;
    }
}

/// The executable of a process as its own root shows it: /proc shows both from the root of the reader.
fn exe(proc: &Proc, tgid: u32) -> Option<String> {
    let (exe, root) = (proc.exe(tgid)?, proc.link(tgid, "root")?);
    if root == "/" {
        return Some(exe);
    }
    Some(match exe.strip_prefix(&root) {
        Some(below) if below.starts_with('/') => below.to_owned(),
        _ => format!("(unreachable){exe}"),
    })
}

#[cfg(test)]
mod tests;
