//! What there is of a pod on the node, as its state shows it: directory, mounts, control group, processes.

use kevtmon_types::is_zero::is_zero;
use kevtmon_types::names::names;
use serde::{Deserialize, Serialize};

use super::{BootNs, MountFacts, NsInum};

names! {
    /// The control group of a pod, in every form in which a kubelet names it.
    #[derive(Default)]
    PodCgroup {
        /// Whether there is one could not be found out.
        #[default]
        Unknown = "unknown",
        /// There is none.
        Absent = "absent",
        /// It has no process.
        Empty = "empty",
        /// It, or one below it, has a process.
        Populated = "populated",
    }
}

/// A pod that has a directory below the root directory of a kubelet.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRemains {
    /// Its uid: the name of the directory.
    pub uid: String,
    pub directory: String,
    /// The mount namespace in which that is its path.
    pub mntns: NsInum,
    pub cgroup: PodCgroup,
    /// The containers in whose control groups there are processes: the first 12 digits of their ids. Empty where there are
    /// processes elsewhere, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<String>,
    /// Whether the kubelet has started a container of it once: it makes a directory for that. Not looked for as long as
    /// there are processes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub started: bool,
    /// Whether its mounted volumes were listed: of one that has processes only as far as they were requested.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub listed: bool,
    /// Its volumes that are mounted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<MountFacts>,
    /// Mounted volumes that are not listed, because the list is bounded.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mounts_omitted: u32,
    /// Its volumes that are mounted over themselves, [`STACKED_MIN`] times and more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stacked: Vec<MountStack>,
    /// Its volumes that are mounted and that another file system hides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub covered: Vec<CoveredVolume>,
    /// Directories of its volumes that are not empty though nothing is mounted there; not looked for as long as there are processes,
    /// or volumes that are mounted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filled: Vec<String>,
    /// Processes in its control groups that were killed and are still there; of a pod whose processes were requested, the
    /// first of all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<PodProcess>,
    /// Namespace and name of the pod by the directory of its logs, which the kubelet makes; where it has processes, or something
    /// is left of it.
    pub name: Option<(String, String)>,
}

/// A driver may mount a volume that its kubelet has mounted already; more than that is a mistake.
pub const STACKED_MIN: u32 = 3;

/// Mounts at one path, each on the one before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountStack {
    /// The topmost.
    pub mount: MountFacts,
    /// How many there are.
    pub layers: u32,
}

/// A volume that is mounted, and what its path leads to instead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoveredVolume {
    pub mount: MountFacts,
    /// Mounted at the same path, or at one above.
    pub cover: MountFacts,
    /// Whether a container of the pod has the volume, and no part of what covers it.
    pub held: bool,
}

/// A process in a control group of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodProcess {
    /// Process id (thread group).
    pub tgid: u32,
    /// Its start, to 10 ms.
    pub start_ns: BootNs,
    pub comm: String,
    /// As in `/proc/PID/stat`: `D` waits in the kernel, `Z` has ended but for its other threads.
    pub state: char,
    /// Whether SIGKILL is pending: it was sent that, or another thread of it has ended the process.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub killed: bool,
    /// Whether it is the first one of its process namespace, with which all others in there end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub init: bool,
}

impl PodProcess {
    /// Which process it is: the id alone is another one's later.
    pub fn key(&self) -> (u32, BootNs) {
        (self.tgid, self.start_ns)
    }
}
