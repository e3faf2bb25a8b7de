//! Where the kubelets of this node keep the directories of pods.

use serde::{Deserialize, Serialize};

use super::NsInum;

/// The root directories of kubelets, complete: those that are configured, the default one, and those of the kubelets
/// that run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubeletFacts {
    /// The mount namespaces in which their paths mean what they say; nobody without privileges on the node mounts
    /// there.
    pub namespaces: Vec<KubeletNamespace>,
}

/// Whether a kubelet still remembers a sandbox: what dockershim and cri-dockerd keep in a file of their own.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxCheckpoint {
    /// Container id of the sandbox.
    pub sandbox: String,
    /// Whether there is one; none where not every place could be read.
    pub found: Option<bool>,
}

/// A mount namespace in which a path below a root directory of a kubelet belongs to a pod.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubeletNamespace {
    pub mntns: NsInum,
    /// Absolute paths of the root directories in it, as configured and with symbolic links resolved.
    pub roots: Vec<String>,
    /// It exists only as long as the kubelet in it, so that its number may soon be another namespace's.
    pub of_kubelet: bool,
    /// The process id of that kubelet.
    pub pid: Option<u32>,
}

/// A pod as its kubelet tells it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubeletPod {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    /// Of one that was deleted, when its grace period ends: wall clock of the API server, whole seconds.
    pub ends_s: Option<i64>,
}
