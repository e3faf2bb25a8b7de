//! Asks the kernel by which route the host reaches addresses of pods.
//!
//! The kernel evaluates tables, rules and metrics itself, for a packet that the node sends. Other packets rules may send to
//! other tables, by their source, mark or interface: where any table has a route that leads to the pod, nothing is missing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use kevtmon_observation::{AddressFacts, Fact, FoundRoute, PodAddress, PodRoute};
use netlink_packet_core::{parse_ip, parse_u32};
use netlink_packet_route::route::{RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::dump::{self, BUDGET};
use super::message::{Decoded, attributes};
use super::route::{ROUTE_HEADER, RTA_NH_ID, next_hops};
use super::socket::{RequestError, RequestSocket};
use crate::{Sender, tell};

#[derive(Debug, PartialEq, Eq)]
struct Found {
    kind: RouteType,
    destination: Option<IpAddr>,
    prefix_len: u8,
    interfaces: Vec<u32>,
    by_object: bool,
}

/// Asks, and sends what is found; nothing where that fails: the core asks again. To be called where the host's network
/// namespace is that of the process.
pub fn look_up_and_send(tx: &Sender, id: u64, addresses: Vec<PodAddress>) {
    let tx = tx.clone();
    tokio::spawn(async move {
        let failure = "cannot ask for the routes to pods";
        if let Some(elsewhere) = dump::read_on_thread(failure, move || look_up(&addresses)).await {
            tell(&tx, Fact::PodRoutes { id, elsewhere }).await;
        }
    });
}

fn look_up(addresses: &[PodAddress]) -> Result<Vec<PodRoute>, RequestError> {
    let mut requests = RequestSocket::open(BUDGET)?;
    let mut elsewhere = Vec::new();
    for PodAddress { address, interfaces } in addresses {
        let answer = requests.request(request(*address), |message| found(message.payload()));
        let found = match answer {
            Ok(found) => judged(found.ok().as_ref(), interfaces),
            Err(RequestError::Refused { source, .. }) => match source.raw_os_error() {
                Some(libc::ENETUNREACH) => Some(FoundRoute::Nothing),
                Some(libc::EHOSTUNREACH | libc::EACCES) => Some(FoundRoute::Refuses),
                // The request is well formed: the errors of route types are in `fib_props` of net/ipv4/fib_semantics.c.
                Some(libc::EINVAL) => Some(FoundRoute::Discards),
                _ => Some(FoundRoute::Other),
            },
            Err(error) => return Err(error),
        };
        let found = match found {
            None => continue,
            Some(found @ (FoundRoute::Other | FoundRoute::By { .. })) => found,
            Some(found) if !is_in_any_table(*address, interfaces) => found,
            // The kernel checks sources with the interface by which they come, by which a rule may select that table.
            Some(_) => FoundRoute::Other,
        };
        elsewhere.push(PodRoute { address: *address, found });
    }
    Ok(elsewhere)
}

/// Whether a table has a route to an address by one of these interfaces; also where that cannot be read to its end.
fn is_in_any_table(address: IpAddr, interfaces: &[u32]) -> bool {
    let Ok(mut requests) = RequestSocket::open(BUDGET) else { return true };
    // Since 4.20 the kernel selects the routes; before, it tells all.
    requests.check_strictly();
    interfaces.iter().any(|ifindex| {
        let mut is_there = false;
        let read = requests.dump(routes_by(address, *ifindex), |message| {
            is_there |= found(message.payload()).is_ok_and(|found| found.leads_to(address, *ifindex));
        });
        is_there || read.is_err()
    })
}

/// For all routes of the family of an address by an interface, in all tables.
fn routes_by(address: IpAddr, ifindex: u32) -> RouteNetlinkMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family(address);
    message.attributes.push(RouteAttribute::Oif(ifindex));
    RouteNetlinkMessage::GetRoute(message)
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

impl Found {
    /// Whether packets to an address match it and go by an interface; one by nexthop object may not name its interfaces.
    fn leads_to(&self, address: IpAddr, ifindex: u32) -> bool {
        let unspecified = || match address {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let prefix = AddressFacts {
            netns: 0,
            ifindex,
            address: self.destination.unwrap_or_else(unspecified),
            prefix_len: self.prefix_len,
        };
        let is_by_it = self.interfaces.contains(&ifindex) || self.interfaces.is_empty() && self.by_object;
        self.kind == RouteType::Unicast && is_by_it && prefix.has_in_subnet(address)
    }
}

/// For the route itself rather than what follows from it (`RTM_F_FIB_MATCH`, since 4.13).
fn request(address: IpAddr) -> RouteNetlinkMessage {
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: family(address),
        destination_prefix_length: if address.is_ipv4() { 32 } else { 128 },
        flags: RouteFlags::FibMatch,
        ..RouteHeader::default()
    };
    message.attributes.push(RouteAttribute::Destination(address.into()));
    RouteNetlinkMessage::GetRoute(message)
}

fn found(payload: &[u8]) -> Decoded<Found> {
    let header = RouteHeader::parse(payload)?;
    let (mut interfaces, mut destination, mut by_object) = (Vec::new(), None, false);
    for attribute in attributes(payload, ROUTE_HEADER) {
        match attribute? {
            (libc::RTA_DST, value) => destination = Some(parse_ip(value)?),
            (RTA_NH_ID, _) => by_object = true,
            (libc::RTA_OIF, value) => interfaces.push(parse_u32(value)?),
            (libc::RTA_MULTIPATH, value) => {
                interfaces.extend(next_hops(value, false)?.into_iter().filter_map(|(_, hop)| hop.ifindex));
            }
            _ => {}
        }
    }
    // An older kernel tells what follows from the route, as a route to the address alone.
    let prefix_len = match header.flags.contains(RouteFlags::Cloned) {
        true => u8::MAX,
        false => header.destination_prefix_length,
    };
    Ok(Found { kind: header.kind, destination, prefix_len, interfaces, by_object })
}

/// What it means for an address that is behind one of these interfaces; `None`: the route leads there.
fn judged(found: Option<&Found>, interfaces: &[u32]) -> Option<FoundRoute> {
    let Some(Found { kind, prefix_len, interfaces: by, .. }) = found else { return Some(FoundRoute::Other) };
    match (kind, by.as_slice()) {
        (RouteType::Unicast, by) if by.iter().any(|by| interfaces.contains(by)) => None,
        (RouteType::Unicast, [by]) if *prefix_len <= 1 => Some(FoundRoute::Default { ifindex: *by }),
        (RouteType::Unicast, [by]) => Some(FoundRoute::By { ifindex: *by }),
        (RouteType::BlackHole, _) => Some(FoundRoute::Discards),
        (RouteType::Unreachable | RouteType::Prohibit | RouteType::Throw, _) => Some(FoundRoute::Refuses),
        _ => Some(FoundRoute::Other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_surely_leads_elsewhere_is_told_as_that() {
        let unicast = |prefix_len, interfaces: &[u32]| Found {
            kind: RouteType::Unicast,
            destination: None,
            prefix_len,
            interfaces: interfaces.to_vec(),
            by_object: false,
        };
        for (found, expected) in [
            (unicast(32, &[7]), None),
            (unicast(24, &[3, 7]), None),
            (unicast(0, &[7]), None),
            (unicast(0, &[2]), Some(FoundRoute::Default { ifindex: 2 })),
            (unicast(1, &[2]), Some(FoundRoute::Default { ifindex: 2 })),
            (unicast(0, &[2, 3]), Some(FoundRoute::Other)),
            (unicast(0, &[]), Some(FoundRoute::Other)),
            (unicast(24, &[2]), Some(FoundRoute::By { ifindex: 2 })),
            (unicast(u8::MAX, &[2]), Some(FoundRoute::By { ifindex: 2 })),
            (Found { kind: RouteType::Local, ..unicast(32, &[1]) }, Some(FoundRoute::Other)),
            (Found { kind: RouteType::Local, ..unicast(32, &[7]) }, Some(FoundRoute::Other)),
            (Found { kind: RouteType::BlackHole, ..unicast(26, &[]) }, Some(FoundRoute::Discards)),
            (Found { kind: RouteType::Unreachable, ..unicast(26, &[1]) }, Some(FoundRoute::Refuses)),
        ] {
            assert_eq!(judged(Some(&found), &[7, 8]), expected, "{found:?}");
        }
        assert_eq!(judged(None, &[7]), Some(FoundRoute::Other), "what cannot be decoded");
    }

    #[test]
    fn a_route_of_any_table_leads_there_that_matches_the_address_and_goes_by_the_interface() {
        let by = |destination: &str, prefix_len, interfaces: &[u32]| Found {
            kind: RouteType::Unicast,
            destination: Some(destination.parse().unwrap()),
            prefix_len,
            interfaces: interfaces.to_vec(),
            by_object: false,
        };
        let pod: IpAddr = "10.1.2.3".parse().unwrap();
        for (found, expected) in [
            (by("10.1.2.3", 32, &[7]), true),
            (by("10.1.2.0", 24, &[3, 7]), true),
            (Found { destination: None, ..by("0.0.0.0", 0, &[7]) }, true),
            (Found { by_object: true, ..by("10.1.2.3", 32, &[]) }, true),
            (by("10.1.2.3", 32, &[]), false),
            (by("10.1.2.3", 32, &[8]), false),
            (by("10.1.2.4", 32, &[7]), false),
            (by("fd00::", 8, &[7]), false),
            (Found { kind: RouteType::Local, ..by("10.1.2.3", 32, &[7]) }, false),
        ] {
            assert_eq!(found.leads_to(pod, 7), expected, "{found:?}");
        }
    }

    #[test]
    fn the_kernel_of_this_machine_answers_for_its_own_addresses() {
        let of = |address: &str, interfaces: &[u32]| {
            let address = address.parse().unwrap();
            look_up(&[PodAddress { address, interfaces: interfaces.to_vec() }]).unwrap()
        };
        // A local address is none that is routed to a pod, whatever its interface is.
        let [own] = of("127.0.0.1", &[1]).try_into().unwrap();
        assert_eq!(own.found, FoundRoute::Other);
    }
}
