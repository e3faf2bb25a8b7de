//! Processes that serve a file system.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A process that has the connection of a FUSE file system open, or is told to serve it by its arguments.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileServer {
    /// Process id (thread group).
    pub tgid: u32,
    pub comm: String,
    pub state: ServerState,
    /// The kind of file systems in whose code of the kernel a thread of it waits, where the kernel shows that.
    pub waits_for: Option<String>,
    /// Whether the kernel shows that it is the one, and no other, rather than its arguments.
    pub is_certain: bool,
    /// Real user id, in the initial user namespace, where it could be read.
    pub uid: Option<u32>,
    /// Control group path, where it could be read.
    pub cgroup: Option<String>,
}

/// What a file server does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ServerState {
    /// None of the others. Whether it answers is not known.
    #[default]
    Running,
    /// Stopped by a signal: it answers nothing until SIGCONT.
    Stopped,
    /// All its threads are stopped, by a tracer or with its help: it answers nothing until that lets it go on.
    Traced,
    /// A thread of it waits in the kernel and no signal interrupts that (`D`), as it has for a while. Whether others of its threads
    /// answer is not known.
    Waiting,
}
