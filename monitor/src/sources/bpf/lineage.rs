//! What only /proc has of the ancestors of a task: their executables, and the paths of their control groups.
//!
//! Read by a [reader](crate::sources::procfs::readers), since an ancestor may hang whoever reads it. The ring is drained
//! meanwhile, and what comes out of it waits in order, for a moment and in bounded number. How often anybody may cause that
//! is in [`questions`](super::questions); beyond it a task stays as the kernel captured it.

use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use super::questions::{Account, Questions};
use crate::observation::{Ancestor, Fact, Observation, TaskKey, TaskPlace};
use crate::sources::procfs::Proc;
use crate::sources::procfs::readers::{Answer, Job, Readers, Unread};

/// Longest wait for the ancestors of one task; a reader takes a fraction of a millisecond, its start some more.
const PATIENCE: Duration = Duration::from_millis(250);
/// How long an answer serves other children of the same parent, which often do the same again and again.
const FRESH: Duration = Duration::from_secs(1);
/// Answers that are kept.
const KEPT: usize = 64;
/// Observations that wait for one task at most; then it stays as the kernel captured it.
const WAITING_MAX: usize = 16_384;

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
    /// The first one is the task that was asked about, if any was.
    waiting: VecDeque<Observation>,
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
    answer: JoinHandle<Result<Answer<Vec<Ancestor>>, Unread>>,
}

impl Lineages {
    pub(super) fn new(readers: Readers) -> Self {
        let questions = Questions::new(Instant::now());
        Self { readers, known: HashMap::new(), questions, waiting: VecDeque::new(), added: 0, asked: None }
    }

    /// Takes an observation in; [`next`](Self::next) gives it back.
    pub(super) fn add(&mut self, observation: Observation) {
        self.waiting.push_back(observation);
        self.added += 1;
        if self.waiting.len() >= WAITING_MAX {
            self.give_up();
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

    /// The oldest observation, unless it waits for [`completed`](Self::completed).
    pub(super) fn next(&mut self) -> Option<Observation> {
        if self.asked.is_some() {
            return None;
        }
        if let Fact::Task(task) = &mut self.waiting.front_mut()?.fact
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
                    let answer = tokio::spawn(async move { readers.ask(job, PATIENCE).await });
                    self.asked = Some(Asked { account, line, captured, answer });
                    return None;
                }
                None => {}
            }
        }
        self.waiting.pop_front()
    }

    /// Resolves when the oldest observation waits no longer; never, if it does not wait. Cancel-safe.
    pub(super) async fn completed(&mut self) {
        let Some(asked) = &mut self.asked else { return pending().await };
        let answer = (&mut asked.answer).await;
        let Some(Asked { account, line, captured, .. }) = self.asked.take() else { return };
        let now = Instant::now();
        let completed = match answer {
            Ok(Ok(Answer { reply, .. })) => reply,
            Ok(Err(error)) => {
                if matches!(error, Unread::Late | Unread::Busy) {
                    self.questions.was_in_vain(account, now);
                }
                tracing::debug!(%error, "the ancestors of a task are not completed");
                captured
            }
            Err(error) => {
                tracing::warn!(%error, "the ancestors of a task are not completed");
                captured
            }
        };
        if self.known.len() >= KEPT {
            self.known.retain(|_, (read, _)| now - *read < FRESH);
        }
        if self.known.len() >= KEPT {
            self.known.clear();
        }
        self.known.insert(line, (now, completed));
    }

    /// Waits for nothing any more.
    pub(super) fn give_up(&mut self) {
        if let Some(asked) = self.asked.take() {
            asked.answer.abort();
        }
        self.questions.pause(Instant::now());
    }
}

/// Completes the captured ancestors of a task.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::sources) struct Complete(Vec<Ancestor>);

impl Job for Complete {
    const NAME: &'static str = "ancestors";
    type Reply = Vec<Ancestor>;

    fn run(&self, proc: &Proc) -> Answer<Vec<Ancestor>> {
        let mut ancestors = self.0.clone();
        for ancestor in &mut ancestors {
            complete(proc, ancestor);
        }
        ancestors.into()
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
