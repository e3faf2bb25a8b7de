//! Network namespaces: links, addresses, default routes, the neighbor entries of gateways, and the next hops by tunnels of the
//! host.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kevtmon_observation::{
    AddressFacts, BootNs, LinkFacts, NeighborCause, NeighborChange, NetnsOwner, NetnsSnapshot, NsInum,
    RouteFacts, RuleFacts,
};
use serde::{Deserialize, Serialize};

use super::gateways::{Gateway, Gateways, KnownEntry, READ_DURATION_NS};
use super::routing::{InUse, is_selected};
use super::tunnels::{Tunnels, is_tunnel};

/// The next hop of a deleted route still counts as a gateway for this time: the kernel deletes routes and neighbor
/// entries in one operation, and the two notifications arrive in any order.
const FORMER_GATEWAY_NS: u64 = 2_000_000_000;
/// Notifications of changes within this time before an event may still be in transit: records of the probes and netlink
/// messages take different paths.
const SETTLING_NS: u64 = 1_000_000_000;
/// A message about routes is received so much later than they changed, on a machine that has other things to do: for
/// recordings in which it is not told.
const MESSAGE_DELAY_NS: u64 = 50_000_000;
/// Limit of entries that are kept for the next run.
const PREVIOUS_MAX: usize = 4096;
/// Default routes of one namespace; more than a few have no use, and any user can make as many as they like.
const ROUTES_MAX: usize = 256;
/// Recent changes of one kind in one namespace that are kept.
const RECENT_MAX: usize = 256;
/// Interfaces that went since the last snapshot.
const DISTURBED_MAX: usize = 4096;

mod former;
mod interface;
mod moves;
mod quota;
mod room;

use moves::Move;
pub use quota::{NamespaceQuota, Refused};

/// All namespaces of which a snapshot was read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Namespaces {
    known: BTreeMap<NsInum, Namespace>,
}

#[serde_with::apply(_ => #[serde(skip_serializing_if = "crate::saved::is_new")])]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Namespace {
    /// Name below /run/netns.
    pub name: Option<String>,
    /// `SO_NETNS_COOKIE`, where the kernel has it.
    pub cookie: Option<u64>,
    /// Whether another user namespace than the host's owns it.
    pub foreign_userns: bool,
    /// Whether all of its links and addresses are kept, however many: it is the host's.
    unbounded: bool,
    /// The oldest process in it when it was last read; `None` if none lived in it.
    pub owner: Option<NetnsOwner>,
    /// When it was first read.
    pub since: BootNs,
    pub read: BootNs,
    pub links: BTreeMap<u32, LinkFacts>,
    pub addresses: BTreeSet<AddressFacts>,
    /// Default routes, and halves of default routes.
    pub routes: Vec<RouteFacts>,
    /// Those to which no packet is sent as long as their interface is not ready; the kernel tells nobody when it is.
    dead_gateways: BTreeSet<(u32, IpAddr)>,
    /// Further ones, so that which of them are in use is not known until the next snapshot.
    routes_omitted: usize,
    rules: Vec<RuleFacts>,
    gateways: Gateways,
    /// Next hops by tunnels; of the host's alone.
    pub tunnels: Tunnels,
    /// Neighbor entries that count against the kernel's limits, of IPv4 and of IPv6, at the last reading.
    limited_neighbors: [u32; 2],
    /// Default gateways in use, by interface.
    pub in_use: BTreeSet<(u32, IpAddr)>,
    /// Those among them that others can take the place of, and these others.
    #[serde(with = "kevtmon_types::pairs")]
    pub shared: InUse,
    /// Until when they were others, or others were before them.
    ranked_since: BootNs,
    /// Recent default gateways, with the time of their removal.
    former: Vec<(BootNs, (u32, IpAddr))>,
    /// Those among them that went with their interface or address.
    gone_with_link: BTreeSet<(u32, IpAddr)>,
    /// Those among them that have had a successor since.
    succeeded: BTreeSet<(u32, IpAddr)>,
    /// Former gateways to which a route still led when others took their place, or whose route somebody deleted.
    hidden: BTreeSet<(u32, IpAddr)>,
    /// Those of which nobody knows whether they went with their interface: who deleted or replaced routes was not heard.
    perhaps_deleted: BTreeSet<(u32, IpAddr)>,
    /// Whether messages were lost since the last snapshot.
    missed: bool,
    /// Routes that somebody deleted or replaced since the last snapshot.
    challenged: Vec<RouteFacts>,
    /// Interfaces that went, were set down or lost an address since the last snapshot.
    disturbed: BTreeSet<u32>,
    lladdr_changed: BTreeMap<u32, BootNs>,
    /// When an interface was last set up or down, had ARP switched on or off, or got or lost an address.
    switched: BTreeMap<u32, BootNs>,
    /// Those that were set up or got an address again recently, with the time.
    risen: Vec<(BootNs, u32)>,
    /// When a link or route was last added or changed.
    changed: BootNs,
    /// Whether the kernel sends no messages about it: it is known as of the last snapshot.
    pub unheard: bool,
    /// When routes first and last changed since the last snapshot in a way that only the next one will show.
    stale: Option<(BootNs, BootNs)>,
    /// The same of what no message has told.
    untold: Option<(BootNs, BootNs)>,
    /// Whether messages of which only a snapshot shows the outcome came while the last one was read.
    outdated: bool,
    /// All messages that were sent until then were observed; `None` in recordings that do not tell.
    heard: Option<BootNs>,
    /// Gateways that came or went recently, the newest at the end.
    moves: Vec<Move>,
    /// Recent times between which routes came and went unseen.
    unseen: Vec<(BootNs, BootNs)>,
    /// Moves that ended before are not kept.
    moves_since: BootNs,
    /// Links that have just lost their peer or lower device, or gone, as they were before, with the time.
    bereft: Vec<(BootNs, LinkFacts)>,
    /// Links that have just been moved to another namespace, with the time.
    left: Vec<(BootNs, u32)>,
}

impl Namespaces {
    /// Compares a gateway that the previous run knew with the first snapshot of its namespace; false if that is another
    /// one. A gateway of which only the route is gone was given up on purpose.
    pub fn compare_previous(&mut self, at: BootNs, entry: &KnownEntry) -> bool {
        let Some(namespace) = self.known.get_mut(&entry.netns).filter(|known| known.is_same(entry)) else {
            return false;
        };
        let is_in_use = namespace.in_use.contains(&(entry.ifindex, entry.address));
        if is_in_use || !namespace.is_usable(entry.ifindex, entry.address) {
            namespace.gateways.compare_previous(at, entry, !is_in_use);
        }
        true
    }

    /// The gateways whose entries were seen, for the next run: those in use, and those that are missed.
    pub fn known_gateways(&self) -> Vec<KnownEntry> {
        let entries = self.known.iter().flat_map(|(netns, namespace)| {
            namespace.gateways.iter().filter_map(|(ifindex, address, gateway)| {
                let had_entry = gateway.static_lladdr.is_some() || gateway.worked;
                let owner = namespace.owner.as_ref().map(|owner| (owner.tgid, owner.start_ns));
                (had_entry && !namespace.is_former_gateway(ifindex, address)).then(|| KnownEntry {
                    netns: *netns,
                    cookie: namespace.cookie,
                    owner: owner.filter(|_| namespace.cookie.is_none()),
                    ifindex,
                    address,
                    lladdr: gateway.static_lladdr.clone(),
                    ifname: gateway.ifname.clone(),
                    suspected: None,
                })
            })
        });
        entries.take(PREVIOUS_MAX).collect()
    }

    pub fn get(&self, netns: NsInum) -> Option<&Namespace> {
        self.known.get(&netns)
    }

    pub fn cookie(&self, netns: NsInum) -> Option<u64> {
        self.get(netns).and_then(|namespace| namespace.cookie)
    }

    pub fn all(&self) -> impl Iterator<Item = (NsInum, &Namespace)> {
        self.known.iter().map(|(netns, namespace)| (*netns, namespace))
    }

    /// Replaces a namespace by a snapshot and returns its previous state. Gateways of missing routes become recent ones; a
    /// peer that it does not name is kept. `settled`: nothing in the snapshot counts as a recent change.
    pub fn replace(&mut self, at: BootNs, mut snapshot: NetnsSnapshot, settled: bool) -> Option<Namespace> {
        let old = self.known.remove(&snapshot.netns);
        if let Some(old) = &old {
            for link in snapshot.links.iter_mut().filter(|link| link.peer.is_none()) {
                link.peer = old.links.get(&link.ifindex).and_then(|old| old.peer.clone());
            }
        }
        let changed = if settled { 0 } else { at };
        let first = || Namespace { since: at, changed, ..Namespace::default() };
        let routes: Vec<RouteFacts> = snapshot.routes.into_iter().filter(RouteFacts::is_default).collect();
        let mut new = Namespace {
            name: snapshot.name,
            cookie: snapshot.cookie,
            foreign_userns: snapshot.foreign_userns,
            owner: snapshot.owner,
            read: at,
            links: snapshot.links.into_iter().map(|link| (link.ifindex, link)).collect(),
            addresses: snapshot.addresses.into_iter().collect(),
            routes_omitted: routes.len().saturating_sub(ROUTES_MAX),
            routes: routes.into_iter().take(ROUTES_MAX).collect(),
            dead_gateways: snapshot.dead_gateways.into_iter().take(ROUTES_MAX).collect(),
            rules: snapshot.rules,
            limited_neighbors: snapshot.limited_neighbors,
            missed: old.as_ref().is_some_and(|old| old.missed || old.unheard),
            challenged: Vec::new(),
            unheard: snapshot.unheard,
            stale: None,
            untold: None,
            outdated: snapshot.is_outdated,
            ..old.clone().unwrap_or_else(first)
        };
        for (ifindex, link) in old.iter().flat_map(|old| &old.links) {
            if link.has_other() && !new.links.contains_key(ifindex) {
                new.keep_bereft(at, link.clone());
            }
        }
        if let Some(old) = &old {
            new.note_switched(at, old);
        }
        new.select_after(at, old.as_ref());
        new.missed = new.missed && new.outdated;
        new.disturbed.clear();
        // On a busy machine a reading may take longer; what was heard before it was sent is in it.
        let read = new.heard.map_or(at, |heard| at.min(heard.saturating_add(READ_DURATION_NS)));
        new.gateways.replace((read, at), &new.in_use, &new.missed_gateways(), &snapshot.neighbors);
        new.forget_doubts();
        new.name_gateways();
        self.known.insert(snapshot.netns, new);
        old
    }

    /// Applies what a snapshot shows of the tunnels of the host, all links and addresses of which are kept.
    pub fn replace_tunnels(&mut self, at: BootNs, netns: NsInum, shown: Tunnels) {
        let Some(namespace) = self.known.get_mut(&netns) else { return };
        namespace.unbounded = true;
        let read = namespace.heard.map_or(at, |heard| at.min(heard.saturating_add(READ_DURATION_NS)));
        namespace.tunnels.replace(read, shown);
    }

    /// Adds a route by a tunnel of the host.
    pub fn put_tunnel_route(&mut self, route: &RouteFacts) {
        let Some(namespace) = self.known.get_mut(&route.netns) else { return };
        let link = route.ifindex.and_then(|ifindex| namespace.links.get(&ifindex));
        if link.is_some_and(is_tunnel) {
            namespace.tunnels.put(route);
        }
    }

    /// Removes a route by a tunnel of the host; returns whether a next hop went with it.
    pub fn remove_tunnel_route(&mut self, route: &RouteFacts) -> bool {
        self.known.get_mut(&route.netns).is_some_and(|namespace| namespace.tunnels.remove(route))
    }

    /// Whether a snapshot is of another namespace than the known one: the kernel uses inode numbers again.
    pub fn is_successor(&self, snapshot: &NetnsSnapshot) -> bool {
        let known = self.known.get(&snapshot.netns).and_then(|known| known.cookie);
        known.zip(snapshot.cookie).is_some_and(|(known, new)| known != new)
    }

    /// The routes are not known until the next snapshot. `told`: each change of them is.
    pub fn set_stale(&mut self, at: BootNs, netns: NsInum, told: bool) {
        if let Some(namespace) = self.known.get_mut(&netns) {
            let since = namespace.heard.unwrap_or_else(|| at.saturating_sub(MESSAGE_DELAY_NS));
            namespace.set_stale(at, since, told);
        }
    }

    /// Messages that were sent since a time were lost: no routes are known until the next snapshot.
    pub fn set_all_stale(&mut self, at: BootNs, since: BootNs) {
        for namespace in self.known.values_mut() {
            namespace.set_stale(at, since, false);
            namespace.missed = true;
        }
    }

    /// All messages about a namespace that were sent until then were observed.
    pub fn set_heard(&mut self, netns: NsInum, until: BootNs) {
        if let Some(namespace) = self.known.get_mut(&netns) {
            namespace.heard = Some(until);
        }
    }

    pub fn remove(&mut self, netns: NsInum) {
        self.known.remove(&netns);
    }

    /// Adds a default route; returns whether it is new.
    pub fn put_route(&mut self, at: BootNs, route: RouteFacts) -> bool {
        let Some(namespace) = self.known.get_mut(&route.netns) else { return false };
        namespace.keep_doubting(at);
        let is_known = namespace.routes.contains(&route);
        if is_known || namespace.routes.len() >= ROUTES_MAX {
            namespace.routes_omitted = namespace.routes_omitted.saturating_add(usize::from(!is_known));
            return false;
        }
        namespace.changed = at;
        let matters = is_selected(&route, &namespace.rules);
        namespace.routes.push(route);
        if matters {
            namespace.select_gateways(at);
            namespace.forget_replaced();
        }
        true
    }

    /// Removes a default route; returns whether it existed.
    pub fn remove_route(&mut self, at: BootNs, route: &RouteFacts) -> bool {
        let Some(namespace) = self.known.get_mut(&route.netns) else { return false };
        let before = namespace.routes.len();
        namespace.routes.retain(|known| known != route);
        let found = namespace.routes.len() < before;
        if !found {
            let omitted = &mut namespace.routes_omitted;
            *omitted = omitted.saturating_sub(usize::from(route.is_default()));
            namespace.keep_doubting(at);
        }
        namespace.unchallenge(route);
        if found && is_selected(route, &namespace.rules) {
            namespace.select_gateways(at);
        }
        found
    }

    /// Applies a live change of a neighbor entry, if that is a gateway's.
    pub fn put_neighbor(&mut self, at: BootNs, change: &NeighborChange) {
        if let Some(namespace) = self.known.get_mut(&change.key.netns) {
            namespace.note_cause(at, change);
            namespace.tunnels.change(at, change);
            let key = (change.key.ifindex, change.key.address);
            let is_gateway = namespace.is_gateway(at, key.0, key.1, change.cause == NeighborCause::Admin);
            let is_new = namespace.gateways.get(key.0, key.1).is_none();
            namespace.gateways.change(at, change, is_gateway, &namespace.in_use);
            // Its routes were told, and no snapshot has shown its entry.
            if is_new && namespace.gone_with_link.contains(&key) {
                namespace.gateways.set_went_with_link(key, true);
            }
        }
    }
}

impl Namespace {
    /// Neighbor entries of a family that counted against the kernel's limits at the last reading.
    pub fn limited_neighbors(&self, ipv6: bool) -> u32 {
        self.limited_neighbors[usize::from(ipv6)]
    }

    /// Whether it has more default routes than are kept.
    pub fn has_omitted_routes(&self) -> bool {
        self.routes_omitted > 0
    }

    /// The neighbor entries of its default gateways, current and recent.
    pub fn gateways(&self) -> impl Iterator<Item = (u32, IpAddr, &Gateway)> {
        self.gateways.iter()
    }

    /// The neighbor entry of a default gateway; `None` if the gateway is not known.
    pub fn gateway(&self, ifindex: u32, address: IpAddr) -> Option<&Gateway> {
        self.gateways.get(ifindex, address)
    }

    /// Whether an entry that an earlier run saw was in this very namespace.
    fn is_same(&self, entry: &KnownEntry) -> bool {
        match (self.cookie, entry.cookie) {
            (Some(cookie), Some(known)) => cookie == known,
            _ => {
                let owner = self.owner.as_ref().map(|owner| (owner.tgid, owner.start_ns));
                owner.is_some() && owner == entry.owner
            }
        }
    }

    /// Whether its routes changed in a way that only the next snapshot will show.
    pub fn is_stale(&self) -> bool {
        self.stale.is_some()
    }

    /// Whether the next snapshot may show other routes: one went with its interface, or not all are kept.
    pub fn is_doubted(&self) -> bool {
        self.stale.is_some() || self.outdated || self.has_omitted_routes()
    }

    /// Whether a rule of a family selects packets by what they are: not all of them take the same routes.
    pub fn has_selective_rules(&self, ipv6: bool) -> bool {
        self.rules.iter().any(|rule| rule.ipv6 == ipv6 && !rule.matches_all)
    }

    pub fn has_address(&self, ifindex: u32, address: IpAddr) -> bool {
        self.addresses.iter().any(|known| known.ifindex == ifindex && known.address == address)
    }

    fn name_gateways(&mut self) {
        for gateway in &self.in_use {
            let ifname = self.links.get(&gateway.0).map_or("", |link| link.ifname.as_str());
            self.gateways.set_in_use(*gateway, ifname);
        }
    }
}

#[cfg(test)]
mod tests;
