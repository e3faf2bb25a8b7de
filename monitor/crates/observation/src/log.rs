//! Lines of logs that say something of interest.

use serde::{Deserialize, Serialize};

use super::{CephServerLine, NfsServerLine};

/// A line of a log that was recognised. It is what a program has written: a reason to look, and no fact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// The log: `/dev/kmsg`, or the path of a file.
    pub log: String,
    /// The part of the line that was recognised; the rest may hold anything, and is not kept.
    pub text: String,
    pub says: LogSays,
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "of")]
pub enum LogSays {
    /// A kubelet or a driver was refused a Ceph RBD image.
    RbdRefused(RbdRefusal),
    /// A plugin of Calico did not find the endpoint of a sandbox whose network it was to remove.
    EndpointMissing {
        /// The sandbox, where the line has an id.
        sandbox: Option<String>,
        /// Namespace and name of the pod, where the line has them.
        pod: Option<(String, String)>,
    },
    /// A plugin did not remove the network of a sandbox, and says why.
    NetworkNotRemoved {
        /// The sandbox, where the line has an id.
        sandbox: Option<String>,
        /// Namespace and name of the pod, where the line has them.
        pod: Option<(String, String)>,
    },
    /// A kubelet lacks the sandbox of a container, and ends.
    SandboxMissing { sandbox: String },
    /// A kubelet could not take down a volume.
    TeardownFailed { pod_uid: String },
    /// A kubelet kills a container since its specification has another hash.
    SpecHashChanged,
    /// The kernel could not delete a thin device of device-mapper.
    ThinDeletion,
    /// The kernel has no room for another neighbor entry of one family, in whichever network namespace.
    NeighborOverflow {
        /// Whether of IPv6.
        ipv6: bool,
    },
    /// A server of NFS does not answer the kernel, or does again.
    NfsServer(NfsServerLine),
    /// A server of Ceph does not respond to the kernel, or does again.
    CephServer(CephServerLine),
    /// The kernel has lost the watch on a mapped Ceph RBD image, or takes its lock from another client.
    RbdDevice {
        /// `rbd0`.
        device: String,
    },
    /// The kernel waits for a network device that was deleted, as something still refers to it.
    DeviceNotFreed {
        /// Its name in its own network namespace, which the line does not tell.
        ifname: String,
    },
    /// A task waits in the kernel.
    HungTask {
        comm: String,
        /// Its id in the initial process namespace.
        tid: u32,
    },
}

impl LogSays {
    /// What it is about, as one word.
    pub fn name(&self) -> &'static str {
        match self {
            Self::RbdRefused(_) => "rbd-refused",
            Self::EndpointMissing { .. } => "endpoint-missing",
            Self::NetworkNotRemoved { .. } => "network-not-removed",
            Self::SandboxMissing { .. } => "sandbox-missing",
            Self::TeardownFailed { .. } => "teardown-failed",
            Self::SpecHashChanged => "spec-hash-changed",
            Self::ThinDeletion => "thin-deletion",
            Self::NeighborOverflow { .. } => "neighbor-overflow",
            Self::NfsServer(line) => line.says.name(),
            Self::CephServer(CephServerLine { is_back: false, .. }) => "ceph-server-lost",
            Self::CephServer(_) => "ceph-server-back",
            Self::RbdDevice { .. } => "rbd-device",
            Self::DeviceNotFreed { .. } => "device-not-freed",
            Self::HungTask { .. } => "hung-task",
        }
    }
}

/// What a line says of a Ceph RBD image that was refused.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RbdRefusal {
    /// Pool, where the line has it.
    pub pool: Option<String>,
    /// Namespace in the pool.
    pub namespace: Option<String>,
    /// Name of the image.
    pub image: String,
    /// Address of the client that has it, where the line has it: `IP:PORT/NONCE`.
    pub held_by: Option<String>,
    /// Whether the line is written for other failures as well, such as a monitor that does not answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub vague: bool,
}
