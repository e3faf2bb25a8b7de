//! Tasks and processes.

use kevtmon_types::is_zero::is_zero;
use serde::{Deserialize, Serialize};

use super::{BootNs, NsInum};

/// After the details of this many other tasks, those of a task are sent again.
pub const RESEND_AFTER: usize = 448;

/// Identity of a program in execution: process ids are reused, and exec makes another program of one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TaskKey {
    /// Thread group id, what user space calls pid.
    pub tgid: u32,
    /// Start of the thread group leader, boot time (`task_struct.start_boottime`).
    pub start_ns: BootNs,
    /// Counts the execs of this process (`task_struct.self_exec_id`).
    pub exec_id: u32,
}

/// The task that was current when the kernel recorded a fact.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskRef {
    pub key: TaskKey,
    pub tid: u32,
    /// The program's name at that moment: that of its first thread, as in the list of processes.
    pub comm: String,
    /// What it was at that moment; where that was not captured, it was what is in [`TaskFacts`].
    pub context: Option<TaskContext>,
}

impl TaskRef {
    /// Where its details were captured.
    pub fn place(&self) -> TaskPlace {
        self.context.map_or_else(TaskPlace::default, |context| context.place)
    }
}

/// What a task can change between two of its acts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskContext {
    /// Real user id in the initial user namespace.
    pub uid: u32,
    /// Effective user id in the initial user namespace.
    pub euid: u32,
    pub userns: NsInum,
    /// Network namespace; 0 for a task that exits.
    pub netns: NsInum,
    /// Mount namespace, root directory and control groups.
    pub place: TaskPlace,
}

impl TaskContext {
    /// Whether its user namespace is not the initial one: `PROC_USER_INIT_INO` of include/linux/proc_ns.h.
    pub fn is_in_other_userns(&self) -> bool {
        !matches!(self.userns, 0 | 0xEFFF_FFFD)
    }
}

/// What the details of a task depend on besides the program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TaskPlace {
    /// Mount namespace; 0 for a task that exits.
    pub mntns: NsInum,
    /// Root directory, by a number that tells it from the others of this program; 0 where it is not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub root: u32,
    /// Control group of a v1 controller, by the part of its kernfs id that counts up.
    pub cgroup_v1: u32,
    /// The same in the v2 hierarchy.
    pub cgroup_v2: u32,
}

/// An ancestor of a task.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ancestor {
    pub tgid: u32,
    /// Start, boot time.
    pub start_ns: BootNs,
    pub comm: String,
    /// Executable, where it could still be read.
    #[serialize_always]
    pub exe: Option<String>,
    /// Whether it has started the process below itself, as the program that it is and without one in between; `None`
    /// where that is not known. It may have adopted the process.
    pub started: Option<bool>,
    /// Real user id in the initial user namespace when these details were captured, where it could be read.
    pub uid: Option<u32>,
    /// Path of the control group that it was in when these details were captured, where that could be found.
    pub cgroup: Option<String>,
    /// Ids of that control group, in v1 and in v2, as in [`TaskPlace`]; zeros where they are not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub groups: (u32, u32),
}

/// The details of a task: captured in the kernel, completed from /proc if it still exists.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskFacts {
    pub key: TaskKey,
    /// Where they were captured: the path of the executable and the control group belong to it.
    pub place: TaskPlace,
    /// User id in the initial user namespace at that moment.
    pub uid: u32,
    /// Executable, as the root directory of the task shows it; `(unreachable)…`, `… (deleted)` where it does not.
    pub exe: Option<String>,
    /// Arguments joined by spaces, masked, cut.
    pub cmdline: Option<String>,
    /// Network namespace of the task at that moment.
    pub netns: NsInum,
    /// Mount namespace of the task at that moment.
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
