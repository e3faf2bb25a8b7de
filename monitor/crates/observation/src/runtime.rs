//! Containers and pods as a runtime reports them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use kevtmon_types::is_zero::is_default;
use kevtmon_types::names::{named, names};
use serde::{Deserialize, Serialize};

use super::{BootNs, NsInum, RefusedRemoval, TaskRef};

named! {
    /// Lifecycle state, one set for all runtimes.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    ContainerState {
        /// Not started yet.
        Created = "created",
        Running = "running",
        Paused = "paused",
        Restarting = "restarting",
        Removing = "removing",
        Exited = "exited",
        /// Removal failed half-way.
        Dead = "dead",
        #[default]
        Unknown = "unknown",
    }
}

names! {
    /// Why it is believed that a container is of the pod that its labels or its name tell. Whoever makes an image
    /// chooses its labels, so by themselves they are a claim.
    #[derive(Default)]
    PodProof {
        /// Nothing confirms it.
        #[default]
        Claimed = "claimed",
        /// The control group of its process is below the pod's, which root made.
        Cgroup = "cgroup",
        /// dockershim or cri-dockerd keeps a checkpoint of its sandbox.
        Checkpoint = "checkpoint",
        /// The runtime keeps it with the sandbox that was requested for the pod: its socket is root on the node.
        Cri = "cri",
        /// The kubelet links to its log in the pod's directory.
        Log = "log",
    }
}

/// The pod a container belongs to, by the kubelet's labels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodIdentity {
    /// `io.kubernetes.pod.namespace`.
    pub namespace: String,
    /// `io.kubernetes.pod.name`.
    pub name: String,
    /// `io.kubernetes.pod.uid`.
    pub uid: String,
    /// Container id of the sandbox: the container itself if it is one.
    pub sandbox_id: Option<String>,
    /// `io.kubernetes.container.name`; `POD` for the sandbox.
    pub container_name: Option<String>,
    /// Whether anything but the labels shows that.
    pub proof: PodProof,
    /// Of a sandbox, those labels of the pod that are allowed to be kept, as they were when it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<Box<BTreeMap<String, String>>>,
}

impl PodIdentity {
    /// Whether it is more than a claim of whoever made the container.
    pub fn is_confirmed(&self) -> bool {
        self.proof != PodProof::Claimed
    }

    /// Whether another identity is of the same pod.
    pub fn is_same_pod(&self, other: &Self) -> bool {
        (&self.namespace, &self.name, &self.uid) == (&other.namespace, &other.name, &other.uid)
    }
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerFacts {
    /// 64 hex digits.
    pub id: String,
    /// Without the leading slash.
    pub name: String,
    /// The runtime that it really is of, whatever the socket is configured as: `docker`, `podman`, …
    pub runtime: String,
    /// The source that reported it, as in `SourceStatus::source`.
    pub source: String,
    pub image: String,
    pub state: ContainerState,
    /// Init process on the host while it runs.
    pub tgid: Option<u32>,
    /// Start of that process to 10 ms, read from /proc: the id alone is another one's once it has ended.
    pub started_ns: Option<BootNs>,
    /// Its network namespace, read from /proc. Once it has ended, that of its last run, whose inode number
    /// may be another namespace's by then.
    pub netns: Option<NsInum>,
    /// Its mount namespace, read from /proc; the same holds.
    pub mntns: Option<NsInum>,
    /// Addresses as the runtime reports them.
    pub addresses: Vec<IpAddr>,
    /// Pod, by the kubelet's labels; confirmed or claimed.
    pub pod: Option<PodIdentity>,
    /// Whether it is the pod's sandbox.
    pub sandbox: bool,
    /// Whether it joined the network namespace of another container.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub joined_netns: bool,
    /// How its last run ended, once it has.
    pub exit: Option<ContainerExit>,
    /// What tells it from the container that it was made instead of.
    #[serde(default, skip_serializing_if = "is_default")]
    pub incarnation: Incarnation,
    /// What the runtime mounts for it alone.
    #[serde(default, skip_serializing_if = "is_default")]
    pub own_mounts: OwnMounts,
    /// Why its removal failed, as the runtime says; of one that is dead only.
    pub removal_error: Option<Box<str>>,
    /// What could not be removed then, if that was not in use.
    pub refused_removal: Option<Box<RefusedRemoval>>,
}

/// A client of a runtime that root of the node executed with the right to administer it, to start or restart containers. Whether
/// the runtime does so is another matter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerStart {
    /// The process, as that program.
    pub actor: TaskRef,
    /// Names, ids or prefixes of ids, as they were given.
    pub containers: Vec<String>,
}

/// What a runtime mounts for one container, where it says that itself: in these paths nothing else tells whose they are.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnMounts {
    /// Where its root file system is mounted.
    pub rootfs: Option<Box<str>>,
    /// The file on which its network namespace is mounted.
    pub netns: Option<Box<str>>,
}

impl OwnMounts {
    /// What either of two reports of one container tells; the first one has precedence.
    pub fn or(self, other: Self) -> Self {
        Self { rootfs: self.rootfs.or(other.rootfs), netns: self.netns.or(other.netns) }
    }
}

/// What tells one container of a pod from the one that it was made instead of. The kubelet sets attempt and hash, as labels
/// where the runtime is Docker: they are as good as what confirms the pod.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incarnation {
    /// How many containers, or sandboxes, of this name the pod had before: the kubelet's restart count.
    pub attempt: Option<u32>,
    /// Hash of the container's specification as the kubelet that made it computed it. Sandboxes have none.
    pub spec_hash: Option<u64>,
    /// What the image really is: its id, or its digest. Of one runtime it is always of the same form.
    pub image_id: Option<String>,
    /// When it was created, by the runtime: wall clock, whole seconds.
    pub created_s: Option<i64>,
    /// Why the runtime could not start it; of a sandbox only, whose command line is no secret.
    pub error: Option<String>,
}

impl Incarnation {
    /// What either of two reports of one container tells; the first one has precedence.
    pub fn or(self, other: Self) -> Self {
        Self {
            attempt: self.attempt.or(other.attempt),
            spec_hash: self.spec_hash.or(other.spec_hash),
            image_id: self.image_id.or(other.image_id),
            created_s: self.created_s.or(other.created_s),
            error: self.error.or(other.error),
        }
    }
}

/// How a run of a container ended, as the runtime tells it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerExit {
    /// Exit code of its first process; 128 and more may be a signal.
    pub code: Option<i32>,
    /// Whether the kernel killed a process of it in that run for want of memory; none if that is not known.
    pub oom_killed: Option<bool>,
}

impl ContainerExit {
    /// What either of two reports of the same end tells; the first one has precedence.
    pub fn or(this: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (this, other) {
            (Some(this), Some(other)) => Some(Self {
                code: this.code.or(other.code),
                oom_killed: this.oom_killed.or(other.oom_killed),
            }),
            (this, other) => this.or(other),
        }
    }
}

impl ContainerFacts {
    /// Whether it is the sandbox of a pod, rather than one that claims to be.
    pub fn is_sandbox(&self) -> bool {
        self.sandbox && self.pod.as_ref().is_none_or(PodIdentity::is_confirmed)
    }
}
