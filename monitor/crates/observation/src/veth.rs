//! What there is at the other end of a veth device, and what the node could not resolve of its pods.

use std::net::IpAddr;

use kevtmon_types::is_zero::is_zero;
use serde::{Deserialize, Serialize};

use super::{BlindSpot, BootNs, Holder, NsInum, NudState};

/// A veth device of the host that is asked about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VethLink {
    pub ifindex: u32,
    /// The namespace of the other end, if it was seen.
    pub netns: Option<NsInum>,
    /// The addresses there that no other namespace has.
    pub addresses: Vec<IpAddr>,
}

/// The other end of a veth device of the host, and what keeps the network namespace that it is in.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VethPeer {
    /// Index of the host's end.
    pub ifindex: u32,
    /// Whether there is such a device still.
    pub present: bool,
    /// The namespace of the other end; `None` where that was not found.
    pub netns: Option<NsInum>,
    /// Name of that namespace in the host's directories, if it has one.
    pub name: Option<String>,
    /// What keeps it: processes in it, open files, mounts; sockets where nothing else was found. Possible sockets keep that which
    /// was asked about, and was not found by them. Mounts of NFS are possible: their client has an address of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keepers: Vec<Holder>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted: u32,
    /// What could not be looked into.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blind_spots: Vec<BlindSpot>,
}

/// A neighbor entry of the host's network namespace that is not resolved, or that was not when it was last looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostNeighbor {
    pub ifindex: u32,
    pub address: IpAddr,
    pub state: NudState,
    /// When its state last changed (`ndm_updated`), to 10 ms.
    pub updated: BootNs,
    /// When something was last sent to it (`ndm_used`), to 10 ms.
    pub used: BootNs,
}
