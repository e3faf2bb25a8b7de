//! Bytes of one rtnetlink message in, one [`Change`] out; no socket, no clock, no state.
//!
//! Only the attributes that are used are decoded. A newer kernel's form of another attribute, or a name
//! that is not UTF-8, must not lose the message: a container could otherwise hide its changes.

use kevtmon_observation::{
    AddressFacts, BootNs, HostNeighbor, LinkFacts, LlAddr, NeighborEntry, NsInum, NudState, PeerLink,
    RouteFacts, iff,
};
use netlink_packet_core::{
    NLM_F_EXCL, NLM_F_REPLACE, NetlinkBuffer, NlasIterator, parse_i32, parse_ip, parse_u32,
};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::AddressHeader;
use netlink_packet_route::link::LinkHeader;
use netlink_packet_route::neighbour::{NeighbourFlags, NeighbourHeader, NeighbourState};
use netlink_packet_route::nsid::NsidHeader;

use super::route::{self, Nexthop, RTM_DELNEXTHOP, RTM_NEWNEXTHOP, Routes, Rule};

/// `NETNSA_NSID` (`include/uapi/linux/net_namespace.h`).
const NETNSA_NSID: u16 = 1;
/// `IFLA_NEW_NETNSID` and `IFLA_NEW_IFINDEX` of include/uapi/linux/if_link.h, since 4.15.
const IFLA_NEW_NETNSID: u16 = 45;
const IFLA_NEW_IFINDEX: u16 = 49;
/// Not assigned (`NETNSA_NSID_NOT_ASSIGNED`).
pub(super) const NSID_NOT_ASSIGNED: i32 = -1;

/// Fixed part of each message (`ifinfomsg`, `ifaddrmsg`, `rtmsg`, `ndmsg`, `rtgenmsg` with padding).
const LINK_HEADER: usize = 16;
const ADDRESS_HEADER: usize = 8;
const NEIGHBOR_HEADER: usize = 12;
const NSID_HEADER: usize = 4;
/// `IFLA_INFO_KIND` of a VRF.
const VRF: &str = "vrf";
/// `IFLA_VRF_TABLE` of include/uapi/linux/if_link.h.
const IFLA_VRF_TABLE: u16 = 1;
#[derive(Debug, thiserror::Error)]
pub(super) enum DecodeError {
    #[error("malformed message at byte {offset} of a datagram")]
    Framing { offset: usize, source: netlink_packet_core::DecodeError },
    #[error("cannot decode a message of type {kind}")]
    Message { kind: u16, source: netlink_packet_core::DecodeError },
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Change {
    Link(LinkChange),
    LinkGone {
        ifindex: u32,
        /// Number of its new namespace, as the old one counts, and its index there.
        moved_to: Option<(i32, u32)>,
        /// It was a VRF, whose table is selected no longer.
        was_vrf: bool,
    },
    Address(AddressFacts),
    AddressGone(AddressFacts),
    /// One fact per next hop. `alone`: there was no other one of the same metric; else one may have made way without a message
    /// of its own, and which comes first is not told. `replaces`: on request.
    Route {
        routes: Vec<RouteFacts>,
        alone: bool,
        replaces: bool,
    },
    /// `asked`: on request.
    RouteGone {
        routes: Vec<RouteFacts>,
        asked: bool,
    },
    /// A route by nexthop object only, without the address that the object has (`nexthop_compat_mode` 0).
    RouteByObject {
        route: RouteFacts,
        nexthop: u32,
    },
    Nexthop(Nexthop),
    /// A rule that some packet can match.
    Rule(Rule),
    /// A rule or nexthop object is gone, and with the latter its routes without a message of their own.
    RoutingGone,
    /// `port` is the netlink port of the request, 0 for the kernel's own changes.
    Neighbor {
        entry: NeighborEntry,
        port: u32,
    },
    NeighborGone(NeighborEntry),
    NsidAssigned(i32),
    NsidFreed(i32),
    /// Of no interest: another table, family or kind of message.
    Other,
}

/// A link as its message shows it; a peer or lower device in another namespace is not resolved yet.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LinkChange {
    pub(super) facts: LinkFacts,
    /// `IFLA_LINK_NETNSID`, relative to the namespace of the link.
    pub(super) other_nsid: Option<i32>,
    /// The message is about the link being set up or down.
    pub(super) toggled: bool,
    pub(super) vrf_table: Option<u32>,
}

pub(super) fn messages(datagram: &[u8]) -> Messages<'_> {
    Messages { datagram, offset: 0 }
}

/// Iterator over a datagram; ends after the first framing error.
pub(super) struct Messages<'a> {
    datagram: &'a [u8],
    offset: usize,
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<NetlinkBuffer<&'a [u8]>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.datagram.get(self.offset..).filter(|rest| !rest.is_empty())?;
        match NetlinkBuffer::new_checked(rest) {
            Ok(message) => {
                let length = usize::try_from(message.length()).unwrap_or(usize::MAX);
                self.offset = self.offset.saturating_add(length.next_multiple_of(4));
                Some(Ok(message))
            }
            Err(source) => {
                let offset = self.offset;
                self.offset = self.datagram.len();
                Some(Err(DecodeError::Framing { offset, source }))
            }
        }
    }
}

/// Decodes one message of the namespace `netns`.
pub(super) fn decode(netns: NsInum, message: &NetlinkBuffer<&[u8]>) -> Result<Change, DecodeError> {
    let kind = message.message_type();
    let payload = message.payload();
    let alone = message.flags() & NLM_F_EXCL != 0;
    // Port 0 is the kernel's own.
    let asked = message.port_number() != 0;
    let replaces = asked && message.flags() & NLM_F_REPLACE != 0;
    match kind {
        libc::RTM_NEWLINK => link(netns, payload),
        libc::RTM_DELLINK => link_gone(payload),
        libc::RTM_NEWADDR => {
            address(netns, payload).map(|facts| facts.map_or(Change::Other, Change::Address))
        }
        libc::RTM_DELADDR => {
            address(netns, payload).map(|facts| facts.map_or(Change::Other, Change::AddressGone))
        }
        libc::RTM_NEWROUTE => route::routes(netns, payload, true).map(|routes| match routes {
            Routes::None => Change::Other,
            Routes::Hops(routes) => Change::Route { routes, alone, replaces },
            Routes::ByObject(route, nexthop) => Change::RouteByObject { route, nexthop },
        }),
        libc::RTM_DELROUTE => route::routes(netns, payload, false).map(|routes| match routes {
            Routes::None => Change::Other,
            Routes::Hops(routes) => Change::RouteGone { routes, asked },
            Routes::ByObject(..) => Change::RoutingGone,
        }),
        RTM_NEWNEXTHOP => route::nexthop(payload).map(Change::Nexthop),
        libc::RTM_NEWRULE => route::rule(payload).map(|rule| rule.map_or(Change::Other, Change::Rule)),
        RTM_DELNEXTHOP | libc::RTM_DELRULE => Ok(Change::RoutingGone),
        libc::RTM_NEWNEIGH => neighbor(payload).map(|entry| {
            entry.map_or(Change::Other, |entry| Change::Neighbor { entry, port: message.port_number() })
        }),
        libc::RTM_DELNEIGH => {
            neighbor(payload).map(|entry| entry.map_or(Change::Other, Change::NeighborGone))
        }
        libc::RTM_NEWNSID => nsid(payload).map(|id| id.map_or(Change::Other, Change::NsidAssigned)),
        libc::RTM_DELNSID => nsid(payload).map(|id| id.map_or(Change::Other, Change::NsidFreed)),
        _ => Ok(Change::Other),
    }
    .map_err(|source| DecodeError::Message { kind, source })
}

pub(super) type Decoded<T> = Result<T, netlink_packet_core::DecodeError>;

/// Attributes behind a fixed header of `skip` bytes, as (type, value).
pub(super) fn attributes(payload: &[u8], skip: usize) -> impl Iterator<Item = Decoded<(u16, &[u8])>> {
    NlasIterator::new(payload.get(skip..).unwrap_or_default()).map(|attribute| {
        let attribute = attribute?;
        let (kind, length) = (attribute.kind(), usize::from(attribute.length()));
        Ok((kind, attribute.into_inner().get(4..length).unwrap_or_default()))
    })
}

fn link(netns: NsInum, payload: &[u8]) -> Decoded<Change> {
    let header = LinkHeader::parse(payload)?;
    // AF_BRIDGE messages of the same group are about a bridge port, not the link.
    if header.interface_family != AddressFamily::Unspec {
        return Ok(Change::Other);
    }
    let flags = header.flags.bits();
    let mut facts = LinkFacts { netns, ifindex: header.index, flags, ..LinkFacts::default() };
    let (mut other, mut other_nsid, mut vrf_table) = (None, None, None);
    for attribute in attributes(payload, LINK_HEADER) {
        match attribute? {
            (libc::IFLA_IFNAME, value) => facts.ifname = text(value),
            (libc::IFLA_ADDRESS, value) if !value.is_empty() => facts.mac = Some(LlAddr(value.to_vec())),
            (libc::IFLA_MASTER, value) => facts.master = Some(parse_u32(value)?),
            (libc::IFLA_LINK, value) => other = Some(parse_u32(value)?),
            (libc::IFLA_LINK_NETNSID, value) => other_nsid = Some(parse_i32(value)?),
            (libc::IFLA_LINKINFO, value) => {
                for info in attributes(value, 0) {
                    match info? {
                        (libc::IFLA_INFO_KIND, kind) => facts.kind = Some(text(kind)),
                        // The kind comes first (net/core/rtnetlink.c, rtnl_link_info_fill).
                        (libc::IFLA_INFO_DATA, data) if facts.kind.as_deref() == Some(VRF) => {
                            vrf_table = attribute_u32(data, IFLA_VRF_TABLE)?;
                        }
                        _ => {}
                    }
                }
            }
            // A wireless driver's event: a NEWLINK without the state of the link.
            (libc::IFLA_WIRELESS, _) => return Ok(Change::Other),
            _ => {}
        }
    }
    let is_pair = matches!(facts.kind.as_deref(), Some("veth" | "netkit" | "vxcan"));
    // Their drivers delete them with the device below; a tunnel stays.
    let is_stacked = matches!(
        facts.kind.as_deref(),
        Some("vlan" | "macvlan" | "macvtap" | "ipvlan" | "ipvtap" | "macsec")
    );
    // 0 means that the other end is gone already.
    let other = other.filter(|ifindex| (is_pair || is_stacked) && *ifindex != 0);
    let other_nsid = other_nsid.filter(|_| other.is_some());
    let other = other.map(|ifindex| PeerLink { ifindex, netns: other_nsid.is_none().then_some(netns) });
    *(if is_pair { &mut facts.peer } else { &mut facts.lower }) = other;
    let toggled = header.change_mask.bits() & iff::UP != 0;
    Ok(Change::Link(LinkChange { facts, other_nsid, toggled, vrf_table }))
}

fn link_gone(payload: &[u8]) -> Decoded<Change> {
    let header = LinkHeader::parse(payload)?;
    // In AF_BRIDGE it means that the link left its bridge.
    if header.interface_family != AddressFamily::Unspec {
        return Ok(Change::Other);
    }
    let (mut nsid, mut new_index, mut was_vrf) = (None, header.index, false);
    for attribute in attributes(payload, LINK_HEADER) {
        match attribute? {
            (IFLA_NEW_NETNSID, value) => nsid = Some(parse_i32(value)?),
            (IFLA_NEW_IFINDEX, value) => new_index = parse_u32(value)?,
            (libc::IFLA_LINKINFO, value) => {
                for info in attributes(value, 0) {
                    was_vrf |= matches!(info?, (libc::IFLA_INFO_KIND, kind) if text(kind) == VRF);
                }
            }
            _ => {}
        }
    }
    let moved_to = nsid.map(|nsid| (nsid, new_index));
    Ok(Change::LinkGone { ifindex: header.index, moved_to, was_vrf })
}

fn address(netns: NsInum, payload: &[u8]) -> Decoded<Option<AddressFacts>> {
    let header = AddressHeader::parse(payload)?;
    if !is_internet(header.family) {
        return Ok(None);
    }
    let (mut local, mut address) = (None, None);
    for attribute in attributes(payload, ADDRESS_HEADER) {
        match attribute? {
            (libc::IFA_LOCAL, value) => local = Some(parse_ip(value)?),
            (libc::IFA_ADDRESS, value) => address = Some(parse_ip(value)?),
            _ => {}
        }
    }
    // On a point-to-point link IFA_ADDRESS is the other side's.
    Ok(local.or(address).map(|address| AddressFacts {
        netns,
        ifindex: header.index,
        address,
        prefix_len: header.prefix_len,
    }))
}

fn attribute_u32(bytes: &[u8], wanted: u16) -> Decoded<Option<u32>> {
    for attribute in attributes(bytes, 0) {
        let (kind, value) = attribute?;
        if kind == wanted {
            return parse_u32(value).map(Some);
        }
    }
    Ok(None)
}

fn neighbor(payload: &[u8]) -> Decoded<Option<NeighborEntry>> {
    let header = NeighbourHeader::parse(payload)?;
    // AF_BRIDGE entries are forwarding tables; proxied addresses are answers, not neighbors.
    if !is_internet(header.family) || header.flags.contains(NeighbourFlags::Proxy) {
        return Ok(None);
    }
    let (mut address, mut lladdr) = (None, None);
    for attribute in attributes(payload, NEIGHBOR_HEADER) {
        match attribute? {
            (libc::NDA_DST, value) => address = Some(parse_ip(value)?),
            (libc::NDA_LLADDR, value) => lladdr = Some(LlAddr(value.to_vec())),
            _ => {}
        }
    }
    let state = NudState(u8::try_from(u16::from(header.state)).unwrap_or(0));
    Ok(address.filter(|address| !address.is_multicast()).map(|address| NeighborEntry {
        ifindex: header.ifindex,
        address,
        state,
        lladdr,
    }))
}

/// Whether an entry does not count against the kernel's limits (`exempt_from_gc`, net/core/neighbour.c).
pub(super) fn is_exempt(entry: &NeighborEntry, payload: &[u8]) -> bool {
    let is_managed = |header: NeighbourHeader| header.flags.contains(NeighbourFlags::ExtLearned);
    entry.state.is_permanent() || NeighbourHeader::parse(payload).is_ok_and(is_managed)
}

/// `ndm_used` and `ndm_updated` of `struct nda_cacheinfo` (include/uapi/linux/neighbour.h): ages in ticks of 10 ms.
const CACHE_USED: usize = 4;
const CACHE_UPDATED: usize = 8;
const TICK_NS: u64 = 10_000_000;

/// An entry with its times; `now`: when it was read.
pub(super) fn host_neighbor(now: BootNs, payload: &[u8]) -> Decoded<Option<HostNeighbor>> {
    let Some(entry) = neighbor(payload)? else { return Ok(None) };
    let cache = attributes(payload, NEIGHBOR_HEADER).filter_map(Result::ok);
    let cache = cache.filter(|(kind, _)| *kind == libc::NDA_CACHEINFO).map(|(_, value)| value).next();
    let since = |offset: usize| {
        let ticks =
            cache.and_then(|cache| cache.get(offset..offset + 4)?.try_into().ok()).map(u32::from_ne_bytes);
        now.saturating_sub(u64::from(ticks.unwrap_or(0)) * TICK_NS)
    };
    let (used, updated) = (since(CACHE_USED), since(CACHE_UPDATED));
    Ok(Some(HostNeighbor {
        ifindex: entry.ifindex,
        address: entry.address,
        state: entry.state,
        updated,
        used,
    }))
}

/// Whether the entry needs no resolution: every link brings and takes such entries.
pub(super) fn is_noarp(entry: &NeighborEntry) -> bool {
    entry.state == NudState(u8::try_from(u16::from(NeighbourState::Noarp)).unwrap_or(0))
}

fn nsid(payload: &[u8]) -> Decoded<Option<i32>> {
    NsidHeader::parse(payload)?;
    for attribute in attributes(payload, NSID_HEADER) {
        if let (NETNSA_NSID, value) = attribute? {
            return Ok(Some(parse_i32(value)?).filter(|id| *id != NSID_NOT_ASSIGNED));
        }
    }
    Ok(None)
}

pub(super) fn is_internet(family: AddressFamily) -> bool {
    matches!(family, AddressFamily::Inet | AddressFamily::Inet6)
}

/// A C string as text: whatever is not UTF-8 in it is replaced.
pub(super) fn text(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}
