//! Processes that unmount something, and wait in the kernel.

use serde::{Deserialize, Serialize};

use super::{BootNs, FileServer, TaskFacts};

/// A process of root of the node that runs a program which unmounts, or that is in a call of umount2(2), and that waits in the
/// kernel.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unmounter {
    /// The process; its start is known to 10 ms.
    pub task: TaskFacts,
    pub comm: String,
    /// The kind of file systems in whose code it waits, where the kernel shows that.
    pub waits_for: Option<String>,
    /// What is mounted at the path that its arguments name, or at that of its call, as its own mount namespace shows it. None
    /// where the arguments name several and its call does not tell which.
    pub mount: Option<UnmountedMount>,
    /// The call in which it waits, of a program that is not there to unmount.
    pub call: Option<UmountCall>,
}

impl Unmounter {
    /// Which process it is: the id alone is another one's later.
    pub fn key(&self) -> (u32, BootNs) {
        (self.task.key.tgid, self.task.key.start_ns)
    }
}

/// A call of umount2(2) that has not returned.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UmountCall {
    pub tid: u32,
    /// An absolute path that it was given, if that could be read.
    pub path: Option<String>,
    /// When it was seen first.
    pub since: BootNs,
}

/// A mount whose path a process was given to unmount.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnmountedMount {
    pub mountpoint: String,
    /// Type of its file system.
    pub fstype: String,
    pub source: String,
    /// The process that serves it, of FUSE.
    pub server: Option<FileServer>,
}
