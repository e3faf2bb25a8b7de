//! Network namespaces: links, addresses, the routes that make an address a gateway, and its neighbor entry.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::gateways::{Gateway, Gateways};
use crate::observation::{
    AddressFacts, BootNs, LinkFacts, LlAddr, NeighborChange, NetnsOwner, NetnsSnapshot, NsInum, RouteFacts,
    is_default_gateway,
};

/// A route that is gone still made its next hop the gateway of whatever happened just before: the kernel
/// drops routes and neighbor entries in one operation, and tells of the one sooner than of the other.
const FORMER_ROUTE_NS: u64 = 2_000_000_000;
/// What was built up within this time before a moment may not have been told yet: the kernel's records and
/// netlink's messages come by different ways.
const SETTLING_NS: u64 = 1_000_000_000;

/// All namespaces that were read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Namespaces {
    known: BTreeMap<NsInum, Namespace>,
}

/// What is known of one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Namespace {
    /// Name below /run/netns.
    pub name: Option<String>,
    /// A process in it.
    pub owner: Option<NetnsOwner>,
    /// Links by index.
    pub links: BTreeMap<u32, LinkFacts>,
    /// Addresses.
    pub addresses: Vec<AddressFacts>,
    /// Default routes.
    pub routes: Vec<RouteFacts>,
    gateways: Gateways,
    former_routes: Vec<(BootNs, RouteFacts)>,
    /// When the hardware address of a link last changed.
    relabelled: BTreeMap<u32, BootNs>,
    /// When a link or route last came or changed.
    changed: BootNs,
}

impl Namespaces {
    /// What is known of a namespace.
    #[must_use]
    pub fn get(&self, netns: NsInum) -> Option<&Namespace> {
        self.known.get(&netns)
    }

    /// All of them, by inode number.
    pub fn all(&self) -> impl Iterator<Item = (NsInum, &Namespace)> {
        self.known.iter().map(|(netns, namespace)| (*netns, namespace))
    }

    /// Puts a snapshot in place of what was known, and returns that. Routes that it no longer has become
    /// former ones; the other end of a pair stays known. `settled`: nothing in it is known to be new.
    pub fn replace(&mut self, at: BootNs, mut snapshot: NetnsSnapshot, settled: bool) -> Option<Namespace> {
        let old = self.known.remove(&snapshot.netns);
        if let Some(old) = &old {
            for link in snapshot.links.iter_mut().filter(|link| link.peer.is_none()) {
                link.peer = old.links.get(&link.ifindex).and_then(|old| old.peer.clone());
            }
        }
        let changed = if settled { 0 } else { at };
        let mut new = Namespace {
            name: snapshot.name,
            owner: snapshot.owner,
            links: snapshot.links.into_iter().map(|link| (link.ifindex, link)).collect(),
            addresses: snapshot.addresses,
            routes: snapshot.routes.into_iter().filter(|route| route.destination.is_none()).collect(),
            gateways: old.as_ref().map(|old| old.gateways.clone()).unwrap_or_default(),
            former_routes: old.as_ref().map(|old| old.former_routes.clone()).unwrap_or_default(),
            relabelled: old.as_ref().map(|old| old.relabelled.clone()).unwrap_or_default(),
            changed: old.as_ref().map_or(changed, |old| old.changed),
        };
        new.gateways.replace(at, &new.routes, &snapshot.neighbors);
        for route in old.iter().flat_map(|old| &old.routes) {
            if !new.routes.contains(route) {
                new.remember_former(at, route.clone());
            }
        }
        self.known.insert(snapshot.netns, new);
        old
    }

    /// Forgets a namespace.
    pub fn remove(&mut self, netns: NsInum) {
        self.known.remove(&netns);
    }

    /// Adds or changes a link; returns what it was.
    pub fn put_link(&mut self, at: BootNs, link: LinkFacts) -> Option<LinkFacts> {
        let namespace = self.known.get_mut(&link.netns)?;
        let ifindex = link.ifindex;
        let mac = link.mac.clone();
        namespace.changed = at;
        let old = namespace.links.insert(ifindex, link);
        if old.as_ref().is_some_and(|old| old.mac != mac) {
            namespace.relabelled.insert(ifindex, at);
        }
        old
    }

    /// Removes a link; returns what it was.
    pub fn remove_link(&mut self, netns: NsInum, ifindex: u32) -> Option<LinkFacts> {
        let namespace = self.known.get_mut(&netns)?;
        namespace.relabelled.remove(&ifindex);
        namespace.addresses.retain(|address| address.ifindex != ifindex);
        namespace.links.remove(&ifindex)
    }

    /// Adds an address.
    pub fn put_address(&mut self, address: AddressFacts) {
        if let Some(namespace) = self.known.get_mut(&address.netns)
            && !namespace.addresses.contains(&address)
        {
            namespace.addresses.push(address);
        }
    }

    /// Removes an address.
    pub fn remove_address(&mut self, address: &AddressFacts) {
        if let Some(namespace) = self.known.get_mut(&address.netns) {
            namespace.addresses.retain(|known| known != address);
        }
    }

    /// Adds a default route; returns whether it is new.
    pub fn put_route(&mut self, at: BootNs, route: RouteFacts) -> bool {
        match self.known.get_mut(&route.netns) {
            Some(namespace) if !namespace.routes.contains(&route) => {
                namespace.changed = at;
                namespace.routes.push(route);
                true
            }
            _ => false,
        }
    }

    /// Removes a default route; returns whether it was there.
    pub fn remove_route(&mut self, at: BootNs, route: &RouteFacts) -> bool {
        let Some(namespace) = self.known.get_mut(&route.netns) else {
            return false;
        };
        let before = namespace.routes.len();
        namespace.routes.retain(|known| known != route);
        let found = namespace.routes.len() < before;
        if found {
            namespace.remember_former(at, route.clone());
        }
        found
    }

    /// Takes a live change of a neighbor entry, if it is that of a gateway.
    pub fn put_neighbor(&mut self, at: BootNs, change: &NeighborChange) {
        if let Some(namespace) = self.known.get_mut(&change.key.netns) {
            let is_gateway = namespace.is_gateway(at, change.key.address);
            namespace.gateways.change(at, change, is_gateway);
        }
    }

    /// How many links of a kind a namespace has.
    #[must_use]
    pub fn count_links(&self, netns: NsInum, kind: &str) -> i64 {
        self.known.get(&netns).map_or(0, |namespace| {
            namespace.links.values().map(|link| i64::from(link.kind.as_deref() == Some(kind))).sum()
        })
    }
}

impl Namespace {
    /// The neighbor entries of its default gateways, present and former.
    pub fn gateways(&self) -> impl Iterator<Item = (u32, IpAddr, &Gateway)> {
        self.gateways.iter()
    }

    /// The neighbor entry of a default gateway; `None` when nothing is known of it.
    #[must_use]
    pub fn gateway(&self, ifindex: u32, address: IpAddr) -> Option<&Gateway> {
        self.gateways.get(ifindex, address)
    }

    /// The default routes.
    #[must_use]
    pub fn routes(&self) -> &[RouteFacts] {
        &self.routes
    }

    /// Whether an address was a default gateway at a moment.
    #[must_use]
    pub fn is_gateway(&self, at: BootNs, address: IpAddr) -> bool {
        let former = self
            .former_routes
            .iter()
            .filter(|(removed, _)| removed.saturating_add(FORMER_ROUTE_NS) >= at)
            .map(|(_, route)| route);
        is_default_gateway(self.routes.iter().chain(former), address)
    }

    /// Whether the model shows this interface as it was at a moment: it is known, and nothing changed just before.
    #[must_use]
    pub fn is_settled(&self, at: BootNs, ifindex: u32) -> bool {
        self.links.contains_key(&ifindex) && self.changed.saturating_add(SETTLING_NS) < at
    }

    /// Whether a link has had this hardware address for longer than a change just before would allow.
    #[must_use]
    pub fn had_lladdr(&self, at: BootNs, ifindex: u32, lladdr: &LlAddr) -> bool {
        let settled =
            self.relabelled.get(&ifindex).is_none_or(|changed| changed.saturating_add(FORMER_ROUTE_NS) < at);
        settled && self.links.get(&ifindex).is_some_and(|link| link.mac.as_ref() == Some(lladdr))
    }

    fn remember_former(&mut self, at: BootNs, route: RouteFacts) {
        self.former_routes.retain(|(removed, _)| removed.saturating_add(FORMER_ROUTE_NS) >= at);
        self.former_routes.push((at, route));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(gateway: &str) -> RouteFacts {
        RouteFacts { netns: 7, destination: None, gateway: gateway.parse().ok(), ifindex: Some(2) }
    }

    fn with(routes: Vec<RouteFacts>) -> Namespaces {
        let mut namespaces = Namespaces::default();
        namespaces.replace(0, snapshot(routes), true);
        namespaces
    }

    fn snapshot(routes: Vec<RouteFacts>) -> NetnsSnapshot {
        NetnsSnapshot {
            netns: 7,
            name: None,
            owner: None,
            links: Vec::new(),
            addresses: Vec::new(),
            routes,
            neighbors: Vec::new(),
        }
    }

    #[test]
    fn an_address_stays_the_gateway_for_a_moment_after_its_route_went() {
        let address = "169.254.1.1".parse().unwrap();
        let mut namespaces = with(vec![route("169.254.1.1")]);
        assert!(namespaces.remove_route(1_000, &route("169.254.1.1")));
        let namespace = namespaces.get(7).unwrap();
        assert!(namespace.is_gateway(900, address));
        assert!(namespace.is_gateway(1_500, address));
        assert!(!namespace.is_gateway(5_000_000_000, address));
    }

    #[test]
    fn a_snapshot_without_the_route_counts_as_its_removal() {
        let mut namespaces = with(vec![route("10.0.0.1")]);
        namespaces.replace(1_000, snapshot(Vec::new()), true);
        assert!(namespaces.get(7).unwrap().is_gateway(1_000, "10.0.0.1".parse().unwrap()));
    }
}
