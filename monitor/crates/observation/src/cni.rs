//! Calls of CNI plugins.

use kevtmon_types::names::names;
use serde::{Deserialize, Serialize};

use super::{BootNs, NsInum, TaskRef};

names! {
    /// What a plugin is asked for (`CNI_COMMAND`). `VERSION` and `STATUS` concern no container, and are not observed.
    CniCommand {
        /// Add a container to a network.
        Add = "ADD",
        /// Remove it.
        Del = "DEL",
        /// See whether it is as it should be.
        Check = "CHECK",
        /// Remove what is left of containers that are gone.
        Gc = "GC",
    }
}

/// A plugin that root of the node executed in a mount namespace of the host or of a runtime. Of its environment nothing else
/// is kept.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CniExec {
    /// The process, as the plugin.
    pub actor: TaskRef,
    /// Path of the plugin, as it was executed.
    pub plugin: String,
    /// `CNI_COMMAND`.
    pub command: CniCommand,
    /// `CNI_CONTAINERID`, 64 hex digits: of a pod that of its sandbox. Only `GC` has none.
    pub container_id: Option<String>,
    /// `CNI_NETNS`, a path; none if it is empty.
    pub netns: Option<String>,
    /// `CNI_IFNAME`.
    pub ifname: Option<String>,
    /// By `CNI_ARGS`.
    pub pod: Option<CniPod>,
    /// Whether the environment is longer than what is read of one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

/// The pod that the caller of a plugin names in `CNI_ARGS`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CniPod {
    /// `K8S_POD_NAMESPACE`.
    pub namespace: String,
    /// `K8S_POD_NAME`.
    pub name: String,
    /// `K8S_POD_UID`; dockershim does not give it.
    pub uid: Option<String>,
}

/// The end of a process that was a plugin, or `rbd`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CniExit {
    pub tgid: u32,
    pub start_ns: BootNs,
    /// As wait(2) has it: the signal in the lowest seven bits, the exit code in the second byte.
    pub status: u32,
}

impl CniExit {
    /// The exit code, unless a signal ended it.
    pub fn code(&self) -> Option<u32> {
        self.signal().is_none().then_some((self.status >> 8) & 0xff)
    }

    /// The signal that ended it.
    pub fn signal(&self) -> Option<u32> {
        Some(self.status & 0x7f).filter(|signal| *signal != 0)
    }
}

/// Reply to [`Request::CniNetns`](super::Request::CniNetns).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CniNetns {
    pub id: u64,
    /// The network namespace that the path leads to, if it leads to one.
    pub netns: Option<NsInum>,
    /// Start of the process in whose directory the path lies, if that is below /proc.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_ns: Option<BootNs>,
}
