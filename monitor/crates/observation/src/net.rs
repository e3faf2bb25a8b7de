//! Links, addresses, routes, and a namespace as a whole.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use kevtmon_types::is_zero::{is_default, is_zero};
use serde::{Deserialize, Serialize};

use super::{BootNs, LlAddr, NeighborEntry, NsInum, TaskRef};

/// Interface flags of `include/uapi/linux/if.h` that the project looks at.
pub mod iff {
    pub const LOOPBACK: u32 = 0x8;
    pub const UP: u32 = 0x1;
    /// No address resolution protocol.
    pub const NOARP: u32 = 0x80;
    /// Ready to send (`IFF_RUNNING`).
    pub const RUNNING: u32 = 0x40;
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

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkFacts {
    /// Namespace it is in.
    pub netns: NsInum,
    pub ifindex: u32,
    pub ifname: String,
    /// `IFLA_INFO_KIND` (`veth`, `bridge`, …).
    pub kind: Option<String>,
    /// `IFF_*`.
    pub flags: u32,
    pub mac: Option<LlAddr>,
    /// Index of the bridge or bond it is enslaved to.
    pub master: Option<u32>,
    pub peer: Option<PeerLink>,
    /// The device below, of a kind of link that goes with it (`vlan`, `macvlan`, …).
    pub lower: Option<PeerLink>,
}

impl LinkFacts {
    /// The other end, or the device below.
    pub fn other_mut(&mut self) -> Option<&mut PeerLink> {
        self.peer.as_mut().or(self.lower.as_mut())
    }

    /// Whether it goes with another link.
    pub fn has_other(&self) -> bool {
        self.peer.is_some() || self.lower.is_some()
    }
}

/// An address of an interface.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AddressFacts {
    pub netns: NsInum,
    pub ifindex: u32,
    pub address: IpAddr,
    /// Length of its prefix in bits.
    pub prefix_len: u8,
}

impl AddressFacts {
    /// Whether another address is in the subnet of this one.
    pub fn has_in_subnet(&self, other: IpAddr) -> bool {
        let bits = |address| match address {
            IpAddr::V4(address) => (u128::from(u32::from(address)) << 96, 32),
            IpAddr::V6(address) => (u128::from(address), 128),
        };
        let ((own, size), (other, other_size)) = (bits(self.address), bits(other));
        let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix_len)).unwrap_or(0);
        size == other_size && (own ^ other) & mask == 0
    }
}

/// `RT_TABLE_MAIN` of `include/uapi/linux/rtnetlink.h`.
pub const TABLE_MAIN: u32 = 254;

/// `RT_TABLE_LOCAL`, of the node's own addresses.
pub const TABLE_LOCAL: u32 = 255;

/// One next hop of a route. Of tables other than the main one only default routes are observed, and of default routes also
/// those that lead nowhere.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteFacts {
    pub netns: NsInum,
    /// Destination and prefix length; `None` is the default route.
    pub destination: Option<(IpAddr, u8)>,
    pub gateway: Option<IpAddr>,
    pub ifindex: Option<u32>,
    /// Table (`RTA_TABLE`).
    #[serde(default = "table_main", skip_serializing_if = "is_main")]
    pub table: u32,
    /// `RTA_PRIORITY`: the lowest wins.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub metric: u32,
    /// Whether a default route without an address of its own is of IPv6 (`rtm_family`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ipv6: bool,
    /// Position in a multipath route of IPv4 or by nexthop group, from 1; 0 of the only next hop, and of next hops of IPv6,
    /// which belong together wherever they stand.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hop: u16,
    /// Type of service that packets must have (`rtm_tos`, IPv4); 0 for all.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tos: u8,
    /// Source and prefix length that packets must have (`RTA_SRC`, IPv6).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<(IpAddr, u8)>,
    /// Router preference (`RTA_PREF`, IPv6): -1 low, 0 medium, 1 high.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub preference: i8,
    /// Whether it shares packets with no other route of IPv6: advertised by a router, or by nexthop object. Of
    /// IPv4: by nexthop object.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unshared: bool,
    /// Whether packets go on to the next rule (`RTN_THROW`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub throws: bool,
    /// Whether packets go nowhere (`RTN_BLACKHOLE`, `RTN_UNREACHABLE`, `RTN_PROHIBIT`): no rule suppresses that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refuses: bool,
}

/// The two halves that together stand for a default route, as VPN clients set them (`0.0.0.0/1`, `128.0.0.0/1`).
const HALVES_V4: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::new(128, 0, 0, 0))];
const HALVES_V6: [IpAddr; 2] =
    [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::new(0x8000, 0, 0, 0, 0, 0, 0, 0))];

impl RouteFacts {
    /// Whether it is a default route, or half of one.
    pub fn is_default(&self) -> bool {
        match self.destination {
            None => true,
            Some((address, 1)) => HALVES_V4.contains(&address) || HALVES_V6.contains(&address),
            Some(_) => false,
        }
    }

    /// A default route of the main table.
    pub fn default_via(netns: NsInum, gateway: IpAddr, ifindex: u32) -> Self {
        Self {
            netns,
            gateway: Some(gateway),
            ifindex: Some(ifindex),
            table: TABLE_MAIN,
            ipv6: gateway.is_ipv6(),
            ..Self::default()
        }
    }
}

fn table_main() -> u32 {
    TABLE_MAIN
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_main(table: &u32) -> bool {
    *table == TABLE_MAIN
}

/// What a rule does with the packets that it matches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuleAction {
    /// Looks for a route in its table.
    #[default]
    Lookup,
    /// Goes on at the first rule of this priority.
    Goto(u32),
    /// Refuses them (`unreachable`, `blackhole`, `prohibit`).
    Refuse,
    /// Goes on to the next rule.
    Nothing,
}

/// A rule (`ip rule`, or a VRF) that some packet can match; what it selects them by is not observed.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RuleFacts {
    /// Whether it is a rule of IPv6.
    pub ipv6: bool,
    /// The table (`FRA_TABLE`, or the table of a VRF for a rule with `FRA_L3MDEV`).
    pub table: u32,
    /// `FRA_PRIORITY`: the lowest comes first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: u32,
    /// Whether it matches every packet: where its table has a default route, no later rule is reached.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub matches_all: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pub action: RuleAction,
    /// It takes no route whose prefix is not longer than so many bits (`FRA_SUPPRESS_PREFIXLEN`).
    pub suppresses: Option<u32>,
}

/// A rule (`ip rule`) that selects packets by addresses or interfaces.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyRule {
    pub netns: NsInum,
    /// Whether it is a rule of IPv6.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ipv6: bool,
    /// `FRA_PRIORITY`: the lowest comes first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: u32,
    /// Source and prefix length that packets must have.
    pub from: Option<(IpAddr, u8)>,
    /// Destination and prefix length that packets must have.
    pub to: Option<(IpAddr, u8)>,
    /// Interface by which packets must come.
    pub iif: Option<String>,
    /// Interface to which the socket of the sender must be bound.
    pub oif: Option<String>,
    /// Whether it selects by something else, too (a mark, ports, …).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_more: bool,
    /// Whether it matches the other packets (`FIB_RULE_INVERT`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_inverse: bool,
    /// The table that is looked in.
    pub table: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    pub action: RuleAction,
}

/// A process that lives in a namespace, found in /proc: names it where no runtime does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetnsOwner {
    pub tgid: u32,
    /// When it started; with the id it identifies the process.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub start_ns: BootNs,
    pub comm: String,
    /// Its control group path.
    pub cgroup: Option<String>,
}

/// All that a namespace holds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NetnsSnapshot {
    pub netns: NsInum,
    /// Name below /run/netns, if it has one.
    pub name: Option<String>,
    /// `SO_NETNS_COOKIE` (since 5.14): unlike the inode number it is never used again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cookie: Option<u64>,
    /// Whether another user namespace than that of the host's network owns it (`NS_GET_USERNS`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub foreign_userns: bool,
    /// Whether the kernel sends no messages about it, so that what changes later is not known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unheard: bool,
    /// Whether routes changed while it was read: these changes follow, and then another snapshot if one is awaited.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_outdated: bool,
    /// Links, addresses and the like beyond what is read of a namespace other than the host's. If there are any, nothing of it was
    /// kept.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted: u32,
    /// The oldest process found in it; `None` if none lives in it.
    pub owner: Option<NetnsOwner>,
    pub links: Vec<LinkFacts>,
    pub addresses: Vec<AddressFacts>,
    /// Unicast routes of the main table and default routes of all others, both families.
    pub routes: Vec<RouteFacts>,
    /// Next hops of default routes, by interface, to which no packet is sent as long as that is not ready (`RTNH_F_DEAD`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dead_gateways: Vec<(u32, IpAddr)>,
    /// Rules in the order of the kernel; none where the kernel has no policy routing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleFacts>,
    /// Neighbor entries, both families.
    pub neighbors: Vec<NeighborEntry>,
    /// How many entries of IPv4 and of IPv6 count against the kernel's limits, also of those that are not in `neighbors`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub limited_neighbors: [u32; 2],
}

impl NetnsSnapshot {
    /// A namespace without anything in it.
    pub fn empty(netns: NsInum) -> Self {
        Self { netns, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_in_the_subnet_of_another_one_of_its_family() {
        for (subnet, prefix_len, other, expected) in [
            ("10.0.0.1", 24, "10.0.0.9", true),
            ("10.0.0.1", 24, "10.0.1.9", false),
            ("10.0.0.1", 32, "10.0.0.1", true),
            ("10.0.0.1", 32, "10.0.0.0", false),
            ("10.0.0.1", 0, "192.168.0.1", true),
            ("10.0.0.1", 0, "::1", false),
            ("fd00::1", 64, "fd00::7:1", true),
            ("fd00::1", 128, "fd00::2", false),
        ] {
            let address = subnet.parse().unwrap();
            let subnet = AddressFacts { netns: 1, ifindex: 2, address, prefix_len };
            assert_eq!(subnet.has_in_subnet(other.parse().unwrap()), expected, "{subnet:?} {other}");
        }
    }
}

/// What a task did to an interface. It happened before the message that tells of it was sent.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkAct {
    /// Namespace that the interface is in, or leaves.
    pub netns: NsInum,
    pub ifindex: u32,
    pub op: LinkOp,
    /// How many acts in that namespace were not reported so far: another number than before tells that some are missing.
    pub missing: u32,
    /// As in `NeighborChange`.
    pub netns_cookie: Option<u32>,
    pub actor: TaskRef,
}

/// What a task did to routes, addresses and rules of a namespace. It happened before the message that tells of it was sent.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteAct {
    pub netns: NsInum,
    /// What was done, one for each next hop; none where it is of no interest.
    pub ops: Vec<RouteOp>,
    /// How many acts in that namespace were not reported so far: another number than before tells that some are missing.
    pub missing: u32,
    /// As in `NeighborChange`.
    pub netns_cookie: Option<u32>,
    pub actor: TaskRef,
}

/// What is done to a route, an address or a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouteOp {
    /// A route was added, or put in the place of others.
    RouteAdded(RouteFacts),
    RouteDeleted(RouteFacts),
    AddressAdded(AddressFacts),
    AddressDeleted(AddressFacts),
    RuleAdded(PolicyRule),
    RuleDeleted(PolicyRule),
}

/// A task has changed the hardware address of an interface: a neighbor entry went with the former one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LladdrAct {
    /// Namespace that the interface is in.
    pub netns: NsInum,
    pub ifindex: u32,
    /// What it was changed to.
    pub lladdr: LlAddr,
    pub actor: TaskRef,
}

/// What is done to an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkOp {
    /// Set up for the first time since it is in its namespace.
    Opened,
    /// Set down while it was up, also where it is to be deleted or moved.
    Closed,
    Deleted,
    /// Moved to another namespace.
    Moved,
}
