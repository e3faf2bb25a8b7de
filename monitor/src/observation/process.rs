//! Tasks and processes.

use serde::{Deserialize, Serialize};

use super::{BootNs, NsInum};

/// Identity of a program in execution: process ids are reused, and exec makes another program of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TaskKey {
    /// Thread group id, what user space calls pid.
    pub tgid: u32,
    /// Start of the thread group leader, boot time (`task_struct.start_boottime`).
    pub start_ns: BootNs,
    /// Counts the execs of this process (`task_struct.self_exec_id`).
    pub exec_id: u32,
}

/// The task that was current when the kernel recorded a fact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskRef {
    /// The program.
    pub key: TaskKey,
    /// The thread.
    pub tid: u32,
    /// The thread's name at that moment.
    pub comm: String,
}

/// An ancestor of a task.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ancestor {
    /// Thread group id.
    pub tgid: u32,
    /// Start, boot time.
    pub start_ns: BootNs,
    /// Command name.
    pub comm: String,
    /// Executable, where it could still be read.
    pub exe: Option<String>,
}

/// The details of a task: captured in the kernel, completed from /proc if it still exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskFacts {
    /// Identity.
    pub key: TaskKey,
    /// User id in the initial user namespace.
    pub uid: u32,
    /// Executable, as the root directory of the task shows it; `(unreachable)…`, `… (deleted)` where it does not.
    pub exe: Option<String>,
    /// Arguments joined by spaces, masked, cut.
    pub cmdline: Option<String>,
    /// Network namespace of the task.
    pub netns: NsInum,
    /// Mount namespace of the task.
    pub mntns: NsInum,
    /// Control group path: the v1 leaf hierarchy where there is one, else v2.
    pub cgroup: Option<String>,
    /// Nearest first, at most five.
    pub ancestors: Vec<Ancestor>,
}

/// Whether a process exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessState {
    /// The process in question.
    pub tgid: u32,
    /// False for a zombie too: its files and namespaces are gone.
    pub alive: bool,
}
