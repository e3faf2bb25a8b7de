//! Neighbor facts: states as in `include/uapi/linux/neighbour.h`.

use std::fmt;
use std::num::ParseIntError;

use kevtmon_types::names::named;
use serde::{Deserialize, Serialize, Serializer};

use super::{NeighborKey, TaskRef};

/// A link-layer address, printed as `ee:ee:ee:ee:ee:ee`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct LlAddr(pub Vec<u8>);

impl Serialize for LlAddr {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl TryFrom<String> for LlAddr {
    type Error = ParseIntError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        // A link can have an address of no bytes.
        let bytes = text.split(':').filter(|_| !text.is_empty());
        bytes.map(|byte| u8::from_str_radix(byte, 16)).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for LlAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(":")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// The kernel's NUD state bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NudState(pub u8);

impl NudState {
    pub const INCOMPLETE: Self = Self(0x01);
    /// Resolution or probing failed, or the entry was deleted by request.
    pub const FAILED: Self = Self(0x20);
    /// No resolution needed (multicast, loopback).
    pub const NOARP: Self = Self(0x40);
    /// Set by an administrator; never ages.
    pub const PERMANENT: Self = Self(0x80);

    /// Whether nobody has answered for the address, so far or at all.
    pub fn is_unresolved(self) -> bool {
        matches!(self, Self::FAILED | Self::INCOMPLETE)
    }

    /// Whether an administrator set the entry.
    pub fn is_permanent(self) -> bool {
        self.0 & Self::PERMANENT.0 != 0
    }

    /// Whether an entry that is not static has a link-layer address to which packets go at once: `NUD_REACHABLE`,
    /// `NUD_STALE`, `NUD_DELAY`, `NUD_PROBE`, `NUD_NOARP`.
    pub fn is_usable(self) -> bool {
        self.0 & (0x02 | 0x04 | 0x08 | 0x10 | Self::NOARP.0) != 0
    }

    /// The kernel's name in lower case, as in `ip neigh`.
    pub fn name(self) -> &'static str {
        match self.0 {
            0x00 => "none",
            0x01 => "incomplete",
            0x02 => "reachable",
            0x04 => "stale",
            0x08 => "delay",
            0x10 => "probe",
            0x20 => "failed",
            0x40 => "noarp",
            0x80 => "permanent",
            _ => "unknown",
        }
    }
}

/// What happened to an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NeighborOp {
    /// A permanent entry was set.
    Added,
    /// A permanent entry got another address or lost its permanence.
    Changed,
    /// Resolution or probing failed.
    Failed,
    /// A permanent entry is gone, or that of a gateway of which it is not known whether it was permanent.
    Deleted,
}

named! {
    /// Why an entry changed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    NeighborCause {
        /// By request (netlink, ioctl).
        Admin = "admin",
        /// By a request that put another entry in its place.
        Replaced = "replaced",
        /// The interface was set down.
        LinkDown = "link-down",
        /// The interface was deleted, from either end of a veth.
        LinkDeleted = "link-deleted",
        /// The interface got another MAC address.
        LladdrChanged = "lladdr-changed",
        /// The interface stopped using ARP.
        Noarp = "noarp",
        /// The interface lost its last address.
        LastAddressRemoved = "last-address-removed",
        Gc = "gc",
        NetnsExit = "netns-exit",
        /// The kernel's record does not show it.
        Unknown = "unknown",
    }
}

/// A live change of one entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NeighborChange {
    pub key: NeighborKey,
    /// Name of the interface at that moment.
    pub ifname: String,
    pub op: NeighborOp,
    pub cause: NeighborCause,
    /// State before; `None` where the source cannot know it.
    pub old_state: Option<NudState>,
    /// State after; `None` once deleted.
    pub new_state: Option<NudState>,
    /// Link-layer address before.
    pub lladdr: Option<LlAddr>,
    /// Link-layer address after, when it is another.
    pub new_lladdr: Option<LlAddr>,
    /// Hardware address of the interface at that moment, where the source reports it.
    pub device_lladdr: Option<LlAddr>,
    /// Who did it, where that is true.
    pub actor: Option<TaskRef>,
    /// Netlink port id of the request (0 and absent ones are `None`): a hint, never a name.
    pub netlink_port: Option<u32>,
    /// The lower half of the namespace's cookie (`SO_NETNS_COOKIE`), where the source knows it: its number is another one's as
    /// soon as the namespace has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns_cookie: Option<u32>,
    /// Whether a user made the namespace: another user namespace than the host's owns it, and it was no known container's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub netns_of_user: bool,
}

/// An entry as a dump shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NeighborEntry {
    pub ifindex: u32,
    pub address: std::net::IpAddr,
    pub state: NudState,
    /// Link-layer address, if resolved.
    pub lladdr: Option<LlAddr>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_layer_address_is_written_as_it_is_printed() {
        for bytes in [vec![0xee, 0, 0x0a], vec![], vec![0xfe]] {
            let address = LlAddr(bytes);
            let text = serde_json::to_string(&address).unwrap();
            assert_eq!(text, format!("\"{address}\""));
            assert_eq!(serde_json::from_str::<LlAddr>(&text).unwrap(), address);
        }
        assert!(serde_json::from_str::<LlAddr>("\"ee:xx\"").is_err());
    }
}
