//! The objects that events are about.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Container, Pod, SourceStates};
use crate::observation::Access;

/// A neighbor entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Neighbor {
    /// Protocol address.
    pub address: IpAddr,
    /// Link-layer address (before the change).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lladdr: Option<String>,
    /// Link-layer address after the change, when another took its place.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub new_lladdr: Option<String>,
    /// Interface index.
    pub ifindex: u32,
    /// Interface name.
    pub ifname: String,
    /// Network namespace.
    pub netns: u32,
    /// State before the change: `permanent`, …
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub state: Option<String>,
    /// State after the change, when the entry still exists.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub new_state: Option<String>,
    /// Why.
    pub cause: String,
    /// Whether it is the default gateway of its namespace.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub gateway: Option<bool>,
    /// What is wrong with a gateway: `missing`, `failed`, `wrong-lladdr`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Index.
    pub ifindex: u32,
    /// Name.
    pub ifname: String,
    /// `veth`, …
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub kind: Option<String>,
    /// Network namespace.
    pub netns: u32,
    /// The other end.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub peer: Option<LinkPeer>,
    /// Index of the bridge it belongs to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub master: Option<u32>,
    /// Hardware address.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mac: Option<String>,
    /// Whether it is administratively up.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub up: Option<bool>,
    /// What changed: `up`, `down`, `carrier-up`, `carrier-down`, `mac`, `name`, `master`, `peer`, `netns`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub change: Vec<String>,
    /// Where it is now, for `link.moved`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub moved_to: Option<LinkPeer>,
}

/// The other end of a pair.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkPeer {
    /// Index in its namespace.
    pub ifindex: u32,
    /// Its namespace.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub netns: Option<u32>,
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ifname: Option<String>,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Route {
    /// `default` or a prefix.
    pub destination: String,
    /// Next hop.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub gateway: Option<IpAddr>,
    /// Outgoing interface.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ifindex: Option<u32>,
    /// Network namespace.
    pub netns: u32,
}

/// A mount, and what was tried on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mount {
    /// `umount2`, …
    pub syscall: String,
    /// Absolute path.
    pub path: String,
    /// `EBUSY`, …; absent on success.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub errno: Option<String>,
    /// Flags of the call, by name.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub flags: Vec<String>,
    /// File system type.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fstype: Option<String>,
    /// Mount source.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub source: Option<String>,
    /// `major:minor`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub device: Option<String>,
    /// Mount namespace of the caller.
    pub mntns: u32,
    /// How often this caller program was refused on this path.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub attempts: Option<u64>,
    /// The pod volume that is mounted there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub volume: Option<Volume>,
    /// Mount points of file systems mounted below it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub child_mounts: Vec<String>,
}

/// A kubelet pod volume, read from its path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Uid of the pod.
    pub pod_uid: String,
    /// `kubernetes.io/glusterfs`, …
    pub plugin: String,
    /// Name of the volume.
    pub name: String,
}

/// A process that pins a mount.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MountHolder {
    /// Process id.
    pub pid: u32,
    /// Command name.
    pub comm: String,
    /// Masked command line, for host processes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cmdline: Option<String>,
    /// Executable.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub exe: Option<String>,
    /// How it pins.
    pub access: Access,
    /// What it holds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub path: Option<String>,
    /// Descriptor number.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fd: Option<u32>,
    /// systemd unit.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unit: Option<String>,
    /// Mount namespace of the process.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mntns: Option<u32>,
    /// Its container.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub container: Option<Container>,
    /// Its pod.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pod: Option<Pod>,
    /// The pod volume that it is the file server of, by its command line.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub serves: Option<Serves>,
}

/// A pod volume that a process on the host is the file server of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Serves {
    /// Where the volume is mounted.
    pub mountpoint: String,
    /// Whose it is.
    pub pod: Pod,
}

/// What was lost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lost {
    /// `bpf`, `netlink`, a sink, …
    pub source: String,
    /// Why.
    pub reason: String,
    /// A number, or `unknown`.
    pub count: String,
    /// Start of the window, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub from: Option<String>,
    /// End of the window, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub to: Option<String>,
}

/// The daemon itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Daemon {
    /// Version of the program.
    pub version: String,
    /// Sources that deliver, with their rung.
    pub sources: SourceStates,
    /// What is missing, with the reason.
    #[serde(skip_serializing_if = "SourceStates::is_empty", default)]
    pub degraded: SourceStates,
}
