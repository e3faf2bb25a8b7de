//! The kubelet and the runtimes of the node, as processes.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::BootNs;

/// A process of the node that is a kubelet, a runtime or an adapter of one.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComponentFacts {
    /// `kubelet`, `dockerd`, …
    pub name: String,
    /// Process id (thread group).
    pub tgid: u32,
    /// Its start, to 10 ms.
    pub started_ns: BootNs,
    /// Its program, as the host's root shows it; none where that has another file there.
    pub exe: Option<String>,
    /// Version, by the build information in the program, of a kubelet also by variables in it; none where those tell none.
    pub version: Option<String>,
    /// The socket of the runtime that a kubelet is told to use by `--container-runtime=remote`, empty where that is no
    /// path; none without that: then one of before 1.24 has dockershim, and a later one knows no other way.
    pub remote_runtime: Option<String>,
    /// Absolute paths of the directories where it is configured to look for CNI plugins.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub cni_dirs: BTreeSet<String>,
}

impl ComponentFacts {
    /// Which process it is: the id alone is another one's later.
    pub fn key(&self) -> (u32, BootNs) {
        (self.tgid, self.started_ns)
    }
}

/// The end of such a process.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComponentExit {
    /// Process id (thread group).
    pub tgid: u32,
    /// Its start, to 10 ms.
    pub started_ns: BootNs,
    /// Exit code, where the kernel tells it and no signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it, where the kernel tells that.
    pub signal: Option<i32>,
}
