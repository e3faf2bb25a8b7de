//! Next hops by tunnels of the host (VXLAN, Geneve): each is the gateway of all pods of another node, and an agent sets its
//! neighbor entry, since nothing there answers who has the address.
//!
//! Input: snapshots of the host's namespace, and live changes of its routes and neighbor entries.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kevtmon_observation::{
    BootNs, LinkFacts, NeighborChange, NeighborEntry, NeighborOp, NetnsSnapshot, NudState, RouteFacts,
    TABLE_MAIN,
};
use kevtmon_types::is_zero::is_zero;
use serde::{Deserialize, Serialize};

use super::gateways::READ_DURATION_NS;

/// Kinds of links whose other end is another node, or several.
const KINDS: [&str; 2] = ["vxlan", "geneve"];
/// Each node of a cluster is a next hop of each other one. The kernel programs know as many: a quarter of the gateways for
/// which they have room, so that the pods of the node keep the rest.
const HOPS_MAX: usize = 1024;
/// Networks behind all of them: of some network plugins a node has several.
const ROUTES_MAX: usize = 4096;

/// Interface index and address of a next hop.
pub type Hop = (u32, IpAddr);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Route {
    destination: IpAddr,
    prefix_len: u8,
    metric: u32,
    tos: u8,
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Known {
    routes: BTreeSet<Route>,
    /// State of its neighbor entry; `None` without one, and while its routes were told and no snapshot has shown it.
    state: Option<NudState>,
    changed_at: Option<BootNs>,
}

/// The next hops by tunnels of the host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Tunnels {
    #[serde(with = "kevtmon_types::pairs")]
    hops: BTreeMap<Hop, Known>,
    /// Routes for which there was no room at the last reading, and since.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted: usize,
}

impl Tunnels {
    /// What a snapshot shows of them.
    pub fn of(snapshot: &NetnsSnapshot) -> Self {
        let of_kind = snapshot.links.iter().filter(|link| is_tunnel(link));
        let links: BTreeSet<u32> = of_kind.map(|link| link.ifindex).collect();
        let mut tunnels = Self::default();
        if links.is_empty() {
            return tunnels;
        }
        for route in &snapshot.routes {
            if let Some((hop, route)) = entry(route).filter(|((ifindex, _), _)| links.contains(ifindex)) {
                tunnels.insert(hop, route);
            }
        }
        for NeighborEntry { ifindex, address, state, .. } in &snapshot.neighbors {
            if let Some(known) = tunnels.hops.get_mut(&(*ifindex, *address)) {
                known.state = Some(*state);
            }
        }
        tunnels
    }

    pub fn hops(&self) -> impl Iterator<Item = Hop> + '_ {
        self.hops.keys().copied()
    }

    /// Whether a route leads there.
    pub fn is_hop(&self, hop: Hop) -> bool {
        self.hops.contains_key(&hop)
    }

    pub fn state(&self, hop: Hop) -> Option<NudState> {
        self.hops.get(&hop)?.state
    }

    /// The networks that only this next hop leads to.
    pub fn networks(&self, hop: Hop) -> Vec<(IpAddr, u8)> {
        let Some(known) = self.hops.get(&hop) else { return Vec::new() };
        let of_route = |route: &Route| (route.destination, route.prefix_len);
        let mut networks: BTreeSet<_> = known.routes.iter().map(of_route).collect();
        for (_, other) in self.hops.iter().filter(|(other, _)| **other != hop) {
            other.routes.iter().for_each(|route| _ = networks.remove(&of_route(route)));
        }
        networks.into_iter().collect()
    }

    /// Applies a snapshot, which was read not before this time. What a live change told just before takes precedence.
    pub(super) fn replace(&mut self, began: BootNs, mut tunnels: Self) {
        for (hop, known) in &mut tunnels.hops {
            let Some(old) = self.hops.get(hop) else { continue };
            if old.changed_at.is_some_and(|changed| began < changed.saturating_add(READ_DURATION_NS)) {
                (known.state, known.changed_at) = (old.state, old.changed_at);
            }
        }
        *self = tunnels;
    }

    pub(super) fn put(&mut self, facts: &RouteFacts) {
        let Some((hop, route)) = entry(facts) else { return };
        // Of IPv4 the kernel keeps one of the same place, unless it is asked to append; of IPv6 they are next hops of one route.
        if hop.1.is_ipv4() {
            self.hops.iter_mut().filter(|(other, _)| **other != hop).for_each(|(_, other)| {
                other.routes.remove(&route);
            });
            self.hops.retain(|_, known| !known.routes.is_empty());
        }
        self.insert(hop, route);
    }

    fn insert(&mut self, hop: Hop, route: Route) {
        let routes: usize = self.hops.values().map(|known| known.routes.len()).sum();
        let has_room = self.hops.contains_key(&hop) || self.hops.len() < HOPS_MAX;
        if routes >= ROUTES_MAX || !has_room {
            self.omitted = self.omitted.saturating_add(1);
            return;
        }
        self.hops.entry(hop).or_default().routes.insert(route);
    }

    /// Removes a route; returns whether a next hop went with it.
    pub(super) fn remove(&mut self, facts: &RouteFacts) -> bool {
        let Some((hop, route)) = entry(facts) else { return false };
        let Some(known) = self.hops.get_mut(&hop) else { return false };
        known.routes.remove(&route);
        let is_unused = known.routes.is_empty();
        if is_unused {
            self.hops.remove(&hop);
        }
        is_unused
    }

    /// The routes of an interface went with it; the kernel does not report those of IPv4.
    pub(super) fn remove_link(&mut self, ifindex: u32) {
        self.hops.retain(|(of, _), _| *of != ifindex);
    }

    pub(super) fn change(&mut self, at: BootNs, change: &NeighborChange) {
        let Some(known) = self.hops.get_mut(&(change.key.ifindex, change.key.address)) else { return };
        known.state = match change.op {
            NeighborOp::Deleted => None,
            NeighborOp::Failed => Some(NudState::FAILED),
            NeighborOp::Added | NeighborOp::Changed => change.new_state,
        };
        known.changed_at = Some(at);
    }
}

pub(super) fn is_tunnel(link: &LinkFacts) -> bool {
    link.kind.as_deref().is_some_and(|kind| KINDS.contains(&kind))
}

/// The next hop of a route to some addresses, of the main table. That of one of several next hops that share the packets is
/// left out: what is lost with it is not known.
fn entry(route: &RouteFacts) -> Option<(Hop, Route)> {
    let (destination, prefix_len) = route.destination.filter(|_| !route.is_default())?;
    let hop = route.ifindex.zip(route.gateway)?;
    let is_plain = route.table == TABLE_MAIN && route.hop == 0 && route.source.is_none();
    is_plain.then_some((hop, Route { destination, prefix_len, metric: route.metric, tos: route.tos }))
}

#[cfg(test)]
mod tests {
    use kevtmon_types::clock::SECOND as S;

    use super::*;

    const DEVICE: u32 = 7;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn route(to: &str, via: &str) -> RouteFacts {
        let destination = Some((address(to), 24));
        RouteFacts { destination, ..RouteFacts::default_via(1, address(via), DEVICE) }
    }

    fn snapshot(kind: &str, routes: Vec<RouteFacts>, entries: &[(&str, NudState)]) -> NetnsSnapshot {
        let kind = Some(kind.to_owned());
        let link = LinkFacts { netns: 1, ifindex: DEVICE, kind, ..LinkFacts::default() };
        let neighbor = |(of, state): &(&str, NudState)| NeighborEntry {
            ifindex: DEVICE,
            address: address(of),
            state: *state,
            lladdr: None,
        };
        let neighbors = entries.iter().map(neighbor).collect();
        NetnsSnapshot { links: vec![link], routes, neighbors, ..NetnsSnapshot::empty(1) }
    }

    fn shown(snapshot: &NetnsSnapshot) -> Tunnels {
        let mut tunnels = Tunnels::default();
        tunnels.replace(S, Tunnels::of(snapshot));
        tunnels
    }

    #[test]
    fn a_next_hop_is_one_that_a_route_to_a_network_leads_to_by_a_tunnel() {
        let default = RouteFacts::default_via(1, address("10.44.9.0"), DEVICE);
        let shared = RouteFacts { hop: 1, ..route("10.44.3.0", "10.44.3.0") };
        let routes = vec![route("10.44.2.0", "10.44.2.0"), default, shared];
        let entries = [("10.44.1.0", NudState::PERMANENT), ("10.44.2.0", NudState::PERMANENT)];
        let tunnels = shown(&snapshot("vxlan", routes.clone(), &entries));
        let hop = (DEVICE, address("10.44.2.0"));
        assert_eq!(tunnels.hops().collect::<Vec<_>>(), [hop]);
        assert_eq!(tunnels.state(hop), Some(NudState::PERMANENT));
        assert_eq!(tunnels.networks(hop), [(address("10.44.2.0"), 24)]);
        assert_eq!(shown(&snapshot("veth", routes, &entries)).hops().count(), 0);
    }

    #[test]
    fn a_route_in_the_place_of_another_one_ends_the_use_of_its_next_hop() {
        let mut tunnels = shown(&snapshot("vxlan", vec![route("10.44.2.0", "10.44.2.0")], &[]));
        tunnels.put(&route("10.44.2.0", "10.44.3.0"));
        assert!(!tunnels.is_hop((DEVICE, address("10.44.2.0"))));
        assert!(tunnels.remove(&route("10.44.2.0", "10.44.3.0")));
        assert_eq!(tunnels.hops().count(), 0);
    }

    #[test]
    fn a_network_behind_several_next_hops_is_lost_with_none_of_them() {
        let (one, other) = (route("10.44.2.0", "10.44.2.0"), route("10.44.2.0", "10.44.3.0"));
        let other = RouteFacts { metric: 9, ..other };
        let tunnels = shown(&snapshot("geneve", vec![one, other], &[]));
        assert_eq!(tunnels.hops().count(), 2);
        assert!(tunnels.hops().all(|hop| tunnels.networks(hop).is_empty()));
    }

    #[test]
    fn they_are_bounded_and_what_is_left_out_is_counted() {
        let via = |number: u32| IpAddr::from((0x0a2c_0000 + number).to_be_bytes());
        let routes = (0..1100).map(|number| RouteFacts {
            destination: Some((via(number), 32)),
            ..RouteFacts::default_via(1, via(number), DEVICE)
        });
        let tunnels = shown(&snapshot("vxlan", routes.collect(), &[]));
        assert_eq!((tunnels.hops().count(), tunnels.omitted), (HOPS_MAX, 1100 - HOPS_MAX));
    }
}
