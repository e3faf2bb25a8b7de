//! What only /proc has of the ancestors of a task: executables, and the ancestors above the captured ones.
//!
//! Read by a [reader](crate::sources::procfs::readers), since an ancestor may hang whoever reads it. The ring waits for
//! it, but hardly ever, and not for long.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::observation::{Ancestor, BootNs, Fact, Observation, TaskKey};
use crate::sources::procfs::Proc;
use crate::sources::procfs::readers::{Answer, Job, Readers, Unread};

const ANCESTORS: usize = 5;
/// Longest wait for the ancestors of one task; a reader takes a fraction of a millisecond, its start some more.
const PATIENCE: Duration = Duration::from_millis(250);
/// After a wait in vain none is begun for this long, so that nobody can stop the ring by processes that hang.
const PAUSE: Duration = Duration::from_secs(5);
/// How long an answer serves other children of the same parent, which often do the same again and again.
const FRESH: Duration = Duration::from_secs(1);
/// Answers that are kept.
const KEPT: usize = 64;

/// The captured ancestors: what they are, and the name by which they go now, which changes with the executable.
type Line = Vec<(u32, BootNs, String)>;

/// Completes the ancestors of tasks.
#[derive(Debug)]
pub(super) struct Lineages {
    readers: Readers,
    known: HashMap<Line, (Instant, Vec<Ancestor>)>,
    not_before: Option<Instant>,
    /// The observation that is being completed.
    held: Option<Observation>,
}

impl Lineages {
    pub(super) fn new(readers: Readers) -> Self {
        Self { readers, known: HashMap::new(), not_before: None, held: None }
    }

    /// Adds what /proc has to a task, if that can be read at once. Cancel-safe: what is not returned is [taken](Self::take)
    /// later.
    pub(super) async fn complete(&mut self, observation: Observation) -> Option<Observation> {
        let Fact::Task(task) = &observation.fact else { return Some(observation) };
        let captured = task.ancestors.clone();
        self.held = Some(observation);
        let completed = self.ancestors(captured).await;
        let mut observation = self.take()?;
        if let (Some(completed), Fact::Task(task)) = (completed, &mut observation.fact) {
            task.ancestors = completed;
        }
        Some(observation)
    }

    /// The observation whose completion was interrupted.
    pub(super) fn take(&mut self) -> Option<Observation> {
        self.held.take()
    }

    async fn ancestors(&mut self, captured: Vec<Ancestor>) -> Option<Vec<Ancestor>> {
        let line: Line = captured.iter().map(|a| (a.tgid, a.start_ns, a.comm.clone())).collect();
        let now = Instant::now();
        if let Some((_, known)) = self.known.get(&line).filter(|(read, _)| now - *read < FRESH) {
            return Some(known.clone());
        }
        if line.is_empty() || self.not_before.is_some_and(|not_before| now < not_before) {
            return None;
        }
        match self.readers.ask(Complete(captured), PATIENCE).await {
            Ok(Answer { reply, .. }) => {
                if self.known.len() >= KEPT {
                    self.known.retain(|_, (read, _)| now - *read < FRESH);
                }
                if self.known.len() < KEPT {
                    self.known.insert(line, (now, reply.clone()));
                }
                Some(reply)
            }
            Err(error) => {
                if matches!(error, Unread::Late | Unread::Busy) {
                    self.not_before = Some(Instant::now() + PAUSE);
                }
                tracing::debug!(%error, "the ancestors of a task are not completed");
                None
            }
        }
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
            let key = TaskKey { tgid: ancestor.tgid, start_ns: ancestor.start_ns, exec_id: 0 };
            if proc.is_same(&key) {
                ancestor.exe = exe(proc, ancestor.tgid);
            }
        }
        while ancestors.len() < ANCESTORS {
            let above = ancestors.last().and_then(|last| above(proc, last.tgid));
            let Some(above) = above else { break };
            ancestors.push(above);
        }
        ancestors.into()
    }
}

fn above(proc: &Proc, tgid: u32) -> Option<Ancestor> {
    let tgid = proc.stat(tgid).filter(|_| tgid > 1)?.ppid;
    if tgid == 0 {
        return None;
    }
    let stat = proc.stat(tgid)?;
    Some(Ancestor { tgid, start_ns: stat.start_ns, comm: stat.comm, exe: exe(proc, tgid) })
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
