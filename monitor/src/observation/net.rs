//! Links, addresses, routes, and a namespace as a whole.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{LlAddr, NeighborEntry, NsInum};

/// Interface flags of `include/uapi/linux/if.h` that the project looks at.
pub mod iff {
    /// Administratively up.
    pub const UP: u32 = 0x1;
    /// No address resolution protocol.
    pub const NOARP: u32 = 0x80;
    /// Carrier present (`IFF_LOWER_UP`).
    pub const LOWER_UP: u32 = 0x1_0000;
}

/// The other end of a veth or similar pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerLink {
    /// Index in its own namespace (`IFLA_LINK`).
    pub ifindex: u32,
    /// Its namespace (`IFLA_LINK_NETNSID` mapped to an inode); `None` when that could not be mapped.
    pub netns: Option<NsInum>,
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkFacts {
    /// Namespace it is in.
    pub netns: NsInum,
    /// Index there.
    pub ifindex: u32,
    /// Name.
    pub ifname: String,
    /// `IFLA_INFO_KIND` (`veth`, `bridge`, …).
    pub kind: Option<String>,
    /// `IFF_*`.
    pub flags: u32,
    /// Hardware address.
    pub mac: Option<LlAddr>,
    /// Index of the bridge or bond it is enslaved to.
    pub master: Option<u32>,
    /// The other end.
    pub peer: Option<PeerLink>,
}

/// An address of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressFacts {
    /// Namespace.
    pub netns: NsInum,
    /// Interface index.
    pub ifindex: u32,
    /// The address.
    pub address: IpAddr,
    /// Length of its prefix in bits.
    pub prefix_len: u8,
}

/// A route of the main table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteFacts {
    /// Namespace.
    pub netns: NsInum,
    /// Destination and prefix length; `None` is the default route.
    pub destination: Option<(IpAddr, u8)>,
    /// Next hop.
    pub gateway: Option<IpAddr>,
    /// Outgoing interface.
    pub ifindex: Option<u32>,
}

/// Whether one of these routes makes the address the default gateway of its namespace.
pub fn is_default_gateway<'a>(mut routes: impl Iterator<Item = &'a RouteFacts>, address: IpAddr) -> bool {
    routes.any(|route| route.destination.is_none() && route.gateway == Some(address))
}

/// A process that lives in a namespace, found in /proc: names it where no runtime does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetnsOwner {
    /// Process id.
    pub tgid: u32,
    /// Its command name.
    pub comm: String,
    /// Its control group path.
    pub cgroup: Option<String>,
}

/// All that a namespace holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NetnsSnapshot {
    /// Inode number.
    pub netns: NsInum,
    /// Name below /run/netns, if it has one.
    pub name: Option<String>,
    /// The oldest process found in it.
    pub owner: Option<NetnsOwner>,
    /// Interfaces.
    pub links: Vec<LinkFacts>,
    /// Addresses.
    pub addresses: Vec<AddressFacts>,
    /// Routes of the main table, both families.
    pub routes: Vec<RouteFacts>,
    /// Neighbor entries, both families.
    pub neighbors: Vec<NeighborEntry>,
}
