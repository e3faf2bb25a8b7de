//! Processes that serve a file system.

use kevtmon_types::clock::BootNs;
use kevtmon_types::is_zero::is_zero;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::process::TaskRef;
use super::{Holder, NsInum};

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
    /// It has ended.
    Ended,
    /// A thread of it waits in the kernel and no signal interrupts that (`D`), as it has for a while. Whether others of its threads
    /// answer is not known.
    Waiting,
}

/// A FUSE file system that the host has mounted, or had.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FuseMount {
    /// `major:minor`: the number of its connection.
    pub device: String,
    pub fstype: String,
    pub source: String,
    /// Mount namespace of the host.
    pub mntns: NsInum,
    /// Where the host has it mounted, or had it last.
    pub paths: Vec<String>,
    /// Who serves it, or served it last. None where that is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<FuseServer>,
    /// Nobody serves it any more: every access fails with `ENOTCONN`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unserved: bool,
    /// Its connection was aborted, or closed by its servers: when it was first found unserved, they all lived.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut_off: bool,
    /// Once nobody serves it: where it is mounted, in all mount namespaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Holder>,
    /// Those for which there was no room.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted: u32,
    /// Once nobody serves it: the host has another file system mounted at one of its paths.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub remounted: bool,
}

/// A process that serves a FUSE file system.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FuseServer {
    /// Process id (thread group).
    pub tgid: u32,
    /// Start of the process on the boot clock, to 10 ms.
    pub start_ns: BootNs,
    pub comm: String,
    /// Real user id, in the initial user namespace, where it could be read.
    pub uid: Option<u32>,
    /// Control group path, where it could be read.
    pub cgroup: Option<String>,
    /// Whether the kernel shows that it has the connection open, and no other process has.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_certain: bool,
}

/// A signal that ends a process by default, to one that is followed.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalSent {
    /// None where no process has sent it, or it is not known which.
    pub sender: Option<TaskRef>,
    /// Whether the kernel itself has sent it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_kernel: bool,
    /// Who gets it: process id (thread group).
    pub tgid: u32,
    /// Its start on the boot clock.
    pub start_ns: BootNs,
    /// Number of the signal.
    pub signal: u32,
}
