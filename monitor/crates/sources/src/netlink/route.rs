//! Messages about routes, nexthop objects and rules: which next hops there are, and which tables count.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use kevtmon_observation::{NsInum, PolicyRule, RouteFacts, RuleAction, RuleFacts, TABLE_MAIN};
use netlink_packet_core::{NetlinkBuffer, parse_i32, parse_ip, parse_u32};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{RouteFlags, RouteHeader, RouteProtocol, RouteType, RouteVia};

use super::message::{Decoded, attributes, is_internet, text};

/// `struct rtmsg`.
pub(super) const ROUTE_HEADER: usize = 12;
/// `RTM_*NEXTHOP` and `RTA_NH_ID` of include/uapi/linux/rtnetlink.h, since 5.3.
pub(super) const RTM_NEWNEXTHOP: u16 = 104;
pub(super) const RTM_DELNEXTHOP: u16 = 105;
pub(super) const RTM_GETNEXTHOP: u16 = 106;
pub(super) const RTA_NH_ID: u16 = 30;
/// `RTA_PREF` (`include/uapi/linux/rtnetlink.h`), and its values of RFC 4191 in two bits.
const RTA_PREF: u16 = 20;
const PREFERENCE_HIGH: u8 = 1;
const PREFERENCE_LOW: u8 = 3;
/// `struct nhmsg`, `struct nexthop_grp` and attributes of include/uapi/linux/nexthop.h.
pub(super) const NEXTHOP_HEADER: usize = 8;
const NEXTHOP_GROUP_MEMBER: usize = 8;
const NHA_ID: u16 = 1;
const NHA_GROUP: u16 = 2;
const NHA_OIF: u16 = 5;
const NHA_GATEWAY: u16 = 6;
/// `struct fib_rule_hdr`, its action and attributes of include/uapi/linux/fib_rules.h.
const RULE_HEADER: usize = 12;
const FR_ACT_TO_TBL: u8 = 1;
const FR_ACT_GOTO: u8 = 2;
const FR_ACT_NOP: u8 = 3;
const FIB_RULE_INVERT: u32 = 2;
/// No interface has the name that packets are to come from or go to.
const FIB_RULE_IIF_DETACHED: u32 = 8;
const FIB_RULE_OIF_DETACHED: u32 = 16;
const FRA_DST: u16 = 1;
const FRA_SRC: u16 = 2;
const FRA_IIFNAME: u16 = 3;
const FRA_GOTO: u16 = 4;
const FRA_PRIORITY: u16 = 6;
const FRA_FLOW: u16 = 11;
const FRA_SUPPRESS_IFGROUP: u16 = 13;
const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
const FRA_TABLE: u16 = 15;
const FRA_OIFNAME: u16 = 17;
const FRA_PAD: u16 = 18;
const FRA_L3MDEV: u16 = 19;
const FRA_PROTOCOL: u16 = 21;
/// `struct rtnexthop`, before its attributes.
const NEXT_HOP_HEADER: usize = 8;
/// In `rtm_flags`, `rtnh_flags` and `nh_flags`: the interface is down, so no packet goes there.
const RTNH_F_DEAD: u8 = 1;

/// A nexthop object: one next hop, or a group of objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Nexthop {
    pub(super) id: u32,
    pub(super) hop: NextHop,
    pub(super) group: Vec<u32>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct NextHop {
    pub(super) gateway: Option<IpAddr>,
    pub(super) ifindex: Option<u32>,
}

/// A rule; without a table the device of the packet decides (a VRF).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) ipv6: bool,
    pub(super) table: Option<u32>,
    pub(super) priority: u32,
    /// It has no selector.
    pub(super) matches_all: bool,
    pub(super) action: RuleAction,
    pub(super) suppresses: Option<u32>,
}

impl Rule {
    pub(super) fn of(self, table: u32) -> RuleFacts {
        let Self { ipv6, priority, matches_all, action, suppresses, .. } = self;
        RuleFacts { ipv6, table, priority, matches_all, action, suppresses }
    }
}

pub(super) enum Routes {
    None,
    Hops(Vec<RouteFacts>),
    /// The number of the nexthop object that has the next hops.
    ByObject(RouteFacts, u32),
}

/// `usable`: without the next hops that no packet is sent to, as long as their interface is down.
pub(super) fn routes(netns: NsInum, payload: &[u8], usable: bool) -> Decoded<Routes> {
    let header = RouteHeader::parse(payload)?;
    let prefix = header.destination_prefix_length;
    // One that does not forward packets hides a worse one that would.
    let forwards = header.kind == RouteType::Unicast;
    if !is_internet(header.address_family)
        || header.flags.contains(RouteFlags::Cloned)
        || !(forwards || prefix <= 1)
    {
        return Ok(Routes::None);
    }
    let ipv6 = header.address_family == AddressFamily::Inet6;
    let mut route = RouteFacts {
        netns,
        table: u32::from(header.table),
        ipv6,
        tos: if ipv6 { 0 } else { header.tos },
        unshared: ipv6 && header.protocol == RouteProtocol::Ra,
        throws: header.kind == RouteType::Throw,
        refuses: matches!(header.kind, RouteType::BlackHole | RouteType::Unreachable | RouteType::Prohibit),
        ..RouteFacts::default()
    };
    let (mut destination, mut object) = (None, None);
    let mut hop = NextHop::default();
    let mut hops = Vec::new();
    for attribute in attributes(payload, ROUTE_HEADER) {
        match attribute? {
            (libc::RTA_TABLE, value) => route.table = parse_u32(value)?,
            (libc::RTA_DST, value) => destination = Some(parse_ip(value)?),
            (libc::RTA_SRC, value) => route.source = Some((parse_ip(value)?, header.source_prefix_length)),
            (libc::RTA_PRIORITY, value) => route.metric = parse_u32(value)?,
            (RTA_PREF, value) => route.preference = preference(value),
            (RTA_NH_ID, value) => object = Some(parse_u32(value)?),
            (libc::RTA_OIF, value) => hop.ifindex = Some(parse_u32(value)?),
            (libc::RTA_GATEWAY, value) => hop.gateway = Some(parse_ip(value)?),
            (libc::RTA_VIA, value) => hop.gateway = via(value)?,
            (libc::RTA_MULTIPATH, value) => {
                hops = next_hops(value, usable)?;
                if hops.is_empty() {
                    return Ok(Routes::None);
                }
            }
            _ => {}
        }
    }
    if !forwards {
        hop = NextHop::default();
    } else if usable && hops.is_empty() && header.flags.contains(RouteFlags::Dead) {
        return Ok(Routes::None);
    }
    route.unshared |= object.is_some();
    // Of half of a default route the kernel leaves an address of zeros out.
    let unspecified = || if ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    route.destination = (prefix != 0).then(|| (destination.unwrap_or_else(unspecified), prefix));
    if route.table != TABLE_MAIN && prefix > 1 {
        return Ok(Routes::None);
    }
    if let (Some(object), true) = (object, forwards && hops.is_empty() && hop == NextHop::default()) {
        // Only default routes are used, and reading the namespace again costs a dump.
        return Ok(if prefix > 1 { Routes::None } else { Routes::ByObject(route, object) });
    }
    if hops.is_empty() {
        return Ok(Routes::Hops(vec![hop.of(&route)]));
    }
    let is_group = !ipv6 || route.unshared;
    let hop = |(number, hop): (u16, NextHop)| RouteFacts {
        hop: if is_group { number } else { 0 },
        ..hop.of(&route)
    };
    Ok(Routes::Hops(hops.into_iter().map(hop).collect()))
}

/// The next hops of a default route to which no packet is sent as long as their interfaces are not ready.
pub(super) fn dead_gateways(netns: NsInum, payload: &[u8]) -> Vec<(u32, IpAddr)> {
    let hops = |usable| match routes(netns, payload, usable) {
        Ok(Routes::Hops(hops)) => hops,
        Ok(Routes::None | Routes::ByObject(..)) | Err(_) => Vec::new(),
    };
    let is_long = payload.get(1).is_none_or(|prefix_len| *prefix_len > 1);
    let mut dead = if is_long { Vec::new() } else { hops(false) };
    if !dead.is_empty() {
        let usable = hops(true);
        dead.retain(|hop| !usable.contains(hop));
    }
    dead.iter().filter_map(|hop| Some((hop.ifindex?, hop.gateway?))).collect()
}

/// A router preference; what RFC 4191 reserves counts as medium.
fn preference(value: &[u8]) -> i8 {
    match value.first() {
        Some(&PREFERENCE_HIGH) => 1,
        Some(&PREFERENCE_LOW) => -1,
        _ => 0,
    }
}

impl NextHop {
    pub(super) fn of(self, route: &RouteFacts) -> RouteFacts {
        RouteFacts { gateway: self.gateway, ifindex: self.ifindex, ..route.clone() }
    }
}

/// `struct nhmsg` and its attributes (`include/uapi/linux/nexthop.h`).
pub(super) fn nexthop(payload: &[u8]) -> Decoded<Nexthop> {
    let mut nexthop = Nexthop::default();
    for attribute in attributes(payload, NEXTHOP_HEADER) {
        match attribute? {
            (NHA_ID, value) => nexthop.id = parse_u32(value)?,
            (NHA_OIF, value) => nexthop.hop.ifindex = Some(parse_u32(value)?),
            (NHA_GATEWAY, value) => nexthop.hop.gateway = Some(parse_ip(value)?),
            (NHA_GROUP, value) => {
                let members = value.chunks_exact(NEXTHOP_GROUP_MEMBER).map(|member| parse_u32(&member[..4]));
                nexthop.group = members.collect::<Result<_, _>>()?;
            }
            _ => {}
        }
    }
    Ok(nexthop)
}

/// `struct fib_rule_hdr` and its attributes (`include/uapi/linux/fib_rules.h`); `None` of a rule that no packet matches.
pub(super) fn rule(payload: &[u8]) -> Decoded<Option<Rule>> {
    let Some(header) = payload.first_chunk::<RULE_HEADER>() else {
        return Err(format!("a rule of {} bytes", payload.len()).into());
    };
    let ipv6 = match i32::from(header[0]) {
        libc::AF_INET => false,
        libc::AF_INET6 => true,
        _ => return Ok(None),
    };
    let (mut table, mut by_device, mut suppresses, mut target) = (u32::from(header[4]), false, None, None);
    let flags = u32::from_ne_bytes([header[8], header[9], header[10], header[11]]);
    // Prefixes of destination and source, and the type of service.
    let mut matches_all = header[1..4] == [0; 3];
    let (mut priority, mut by_interface) = (0, false);
    for attribute in attributes(payload, RULE_HEADER) {
        match attribute? {
            (FRA_TABLE, value) => table = parse_u32(value)?,
            (FRA_PRIORITY, value) => priority = parse_u32(value)?,
            (FRA_GOTO, value) => target = Some(parse_u32(value)?),
            (FRA_L3MDEV, value) => {
                by_device = value.first() == Some(&1);
                matches_all &= !by_device;
            }
            // Such a rule takes no route as short as that (WireGuard: all but default routes).
            (FRA_SUPPRESS_PREFIXLEN, value) => suppresses = u32::try_from(parse_i32(value)?).ok(),
            (FRA_SUPPRESS_IFGROUP, value) => by_interface = parse_i32(value)? >= 0,
            (FRA_PROTOCOL | FRA_FLOW | FRA_PAD, _) => {}
            // A selector, or something unknown that may be one.
            _ => matches_all = false,
        }
    }
    let is_inverse = flags & FIB_RULE_INVERT != 0;
    let matches_none = flags & (FIB_RULE_IIF_DETACHED | FIB_RULE_OIF_DETACHED) != 0;
    if if is_inverse { matches_all } else { matches_none } {
        return Ok(None);
    }
    matches_all = if is_inverse { matches_none } else { matches_all };
    let action = action(header[7], target);
    let table = (!by_device).then_some(table);
    // By which interface a route leads is not looked at: packets may go on.
    let matches_all = matches_all && !by_interface;
    Ok(Some(Rule { ipv6, table, priority, matches_all, action, suppresses }))
}

fn action(action: u8, target: Option<u32>) -> RuleAction {
    match (action, target) {
        (FR_ACT_TO_TBL, _) => RuleAction::Lookup,
        (FR_ACT_GOTO, Some(target)) => RuleAction::Goto(target),
        (FR_ACT_GOTO | FR_ACT_NOP, _) => RuleAction::Nothing,
        _ => RuleAction::Refuse,
    }
}

/// The rule that a message is about, if it selects packets by addresses or interfaces, and whether it is there.
pub(super) fn policy_rule(netns: NsInum, message: &NetlinkBuffer<&[u8]>) -> Option<(PolicyRule, bool)> {
    let is_there = match message.message_type() {
        libc::RTM_NEWRULE => true,
        libc::RTM_DELRULE => false,
        _ => return None,
    };
    let payload = message.payload();
    let header = payload.first_chunk::<RULE_HEADER>()?;
    let ipv6 = match i32::from(header[0]) {
        libc::AF_INET => false,
        libc::AF_INET6 => true,
        _ => return None,
    };
    let flags = u32::from_ne_bytes([header[8], header[9], header[10], header[11]]);
    let mut rule = PolicyRule {
        netns,
        ipv6,
        has_more: header[3] != 0,
        is_inverse: flags & FIB_RULE_INVERT != 0,
        table: u32::from(header[4]),
        ..PolicyRule::default()
    };
    let mut target = None;
    for attribute in attributes(payload, RULE_HEADER) {
        match attribute.ok()? {
            (FRA_DST, value) => rule.to = Some((parse_ip(value).ok()?, header[1])),
            (FRA_SRC, value) => rule.from = Some((parse_ip(value).ok()?, header[2])),
            (FRA_IIFNAME, value) => rule.iif = Some(text(value)),
            (FRA_OIFNAME, value) => rule.oif = Some(text(value)),
            (FRA_TABLE, value) => rule.table = parse_u32(value).ok()?,
            (FRA_PRIORITY, value) => rule.priority = parse_u32(value).ok()?,
            (FRA_GOTO, value) => target = parse_u32(value).ok(),
            // The device of each packet decides (a VRF).
            (FRA_L3MDEV, value) if value.first() == Some(&1) => return None,
            (
                FRA_L3MDEV
                | FRA_SUPPRESS_IFGROUP
                | FRA_SUPPRESS_PREFIXLEN
                | FRA_PROTOCOL
                | FRA_FLOW
                | FRA_PAD,
                _,
            ) => {}
            _ => rule.has_more = true,
        }
    }
    rule.action = action(header[7], target);
    let selects = rule.from.is_some() || rule.to.is_some() || rule.iif.is_some() || rule.oif.is_some();
    selects.then_some((rule, is_there))
}

/// `RTA_MULTIPATH`: a list of `struct rtnexthop`, each with attributes of its own. With their positions, from 1.
pub(super) fn next_hops(mut bytes: &[u8], usable: bool) -> Decoded<Vec<(u16, NextHop)>> {
    let mut hops = Vec::new();
    for number in 1..=u16::MAX {
        let Some(header) = bytes.first_chunk::<NEXT_HOP_HEADER>() else { break };
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let Some(hop) = bytes.get(..length).filter(|_| length >= NEXT_HOP_HEADER) else {
            return Err(format!("a next hop of {length} bytes in {}", bytes.len()).into());
        };
        let ifindex = Some(parse_u32(&hop[4..NEXT_HOP_HEADER])?);
        let mut gateway = None;
        for attribute in attributes(hop, NEXT_HOP_HEADER) {
            match attribute? {
                (libc::RTA_GATEWAY, value) => gateway = Some(parse_ip(value)?),
                (libc::RTA_VIA, value) => gateway = via(value)?,
                _ => {}
            }
        }
        if !usable || header[2] & RTNH_F_DEAD == 0 {
            hops.push((number, NextHop { gateway, ifindex }));
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(hops)
}

/// A gateway of the other family (`RTA_VIA`).
fn via(value: &[u8]) -> Decoded<Option<IpAddr>> {
    Ok(match RouteVia::parse(value)? {
        RouteVia::Inet(address) => Some(address.into()),
        RouteVia::Inet6(address) => Some(address.into()),
        _ => None,
    })
}
