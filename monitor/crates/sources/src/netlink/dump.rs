//! Reads all that one namespace holds, from inside it.
//!
//! Runs on a thread of its own for each namespace, which enters and never comes back: nothing has to be
//! restored, and socket, descriptors and the thread's own reference end with it. So nothing of a
//! container is kept alive for longer than a dump.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::Duration;

use kevtmon_observation::cgroup;
use kevtmon_observation::{
    AddressFacts, LinkFacts, NeighborEntry, NetnsOwner, NetnsSnapshot, NsInum, RouteFacts, RuleFacts, iff,
};
use netlink_packet_core::NetlinkBuffer;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::{LinkAttribute, LinkExtentMask, LinkMessage};
use netlink_packet_route::neighbour::NeighbourMessage;
use netlink_packet_route::route::RouteMessage;
use netlink_packet_route::rule::RuleMessage;
use nix::sched::{CloneFlags, setns};
use tokio::sync::oneshot;

use super::discover::{self, DiscoveredNetns};
use super::message::{self, Change, LinkChange};
use super::nsid::{Naming, Owned};
use super::route::{self, Nexthop, Rule};
use super::socket::{RequestError, RequestSocket};
use crate::procfs::Proc;
use crate::procfs::pidfd;
use crate::procfs::readers::{Readers, Unread};

/// All dumps of a namespace together; longer than that nothing of it may still be open.
pub(super) const BUDGET: Duration = Duration::from_millis(900);
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// How often a table is read again because it changed under the reader.
const ATTEMPTS: usize = 4;
/// Of include/uapi/linux/nsfs.h.
const NS_GET_USERNS: libc::Ioctl = 0xb701;
/// What is read of a namespace other than the host's, of each table: any user can make any number of links, addresses, default
/// routes and rules in a namespace of his own, and any container that may change its network in that one.
const FOREIGN_ROWS: usize = 1024;
/// Neighbor entries of one that no user can have made: what they were before they are deleted is known from here alone where
/// there are no probes.
const FOREIGN_NEIGHBORS: usize = 16_384;
/// Deep enough for a dump; the default of 2 MiB would count for nothing.
const STACK: usize = 256 * 1024;

#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error("no handle to the namespace is left")]
    Vanished,
    #[error("cannot enter the namespace")]
    Enter(#[source] nix::Error),
    #[error("the thread that reads namespaces failed")]
    Thread(#[source] io::Error),
    #[error("it cannot be opened")]
    Unread(#[from] Unread),
    #[error("cannot read its tables")]
    Tables(#[from] RequestError),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerName {
    Host,
    /// By its nsid in the host namespace.
    Nsid(i32),
}

#[derive(Debug)]
pub(super) struct Reading {
    /// Peers in other namespaces are not resolved yet.
    pub(super) snapshot: NetnsSnapshot,
    /// Interface index and `IFLA_LINK_NETNSID` of those.
    pub(super) peers: Vec<(u32, i32)>,
    /// The namespaces of the nsids among `peers`, as far as the kernel resolves them. Empty for the host itself.
    pub(super) names: HashMap<i32, PeerName>,
    /// Its nsid in the host namespace, if it was to be looked up.
    pub(super) nsid: Option<Nsid>,
    /// A table changed under every attempt: read the namespace again soon.
    pub(super) interrupted: bool,
    pub(super) undecoded: u64,
}

/// The nsid in the host namespace of what was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Nsid {
    pub(super) id: i32,
    /// Assigned by this reading, and who owns the namespace.
    pub(super) assigned: Option<Owned>,
}

/// Works on a thread of its own; one that ends without a result has failed.
pub(super) async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ReadError> {
    let (done, result) = oneshot::channel();
    // The requester may be gone: then the result is dropped.
    let body = move || drop(done.send(work()));
    let thread = thread::Builder::new().name("netns-reader".into()).stack_size(STACK);
    thread.spawn(body).map_err(ReadError::Thread)?;
    let ended = |_| ReadError::Thread(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended early"));
    result.await.map_err(ended)
}

/// What is read on a thread of its own; none where it cannot be, which is logged as this failure.
pub(super) async fn read_on_thread<T: Send + 'static>(
    failure: &str,
    read: impl FnOnce() -> Result<T, RequestError> + Send + 'static,
) -> Option<T> {
    let read = on_thread(read).await.and_then(|read| read.map_err(ReadError::Tables));
    read.inspect_err(|error| tracing::debug!(error = error as &dyn std::error::Error, "{failure}")).ok()
}

pub(super) fn read_host(host: NsInum) -> Result<Reading, ReadError> {
    Ok(read_tables(&mut RequestSocket::open(BUDGET)?, host, Most::ALL)?)
}

/// A foreign namespace to read, and its owner. It must be read at once: it is pinned.
pub(super) struct Opened {
    namespace: OwnedFd,
    owner: Option<NetnsOwner>,
}

/// Opens a namespace by a process that may hang whoever reads it.
pub(super) async fn open(found: DiscoveredNetns, readers: &Readers) -> Result<Opened, ReadError> {
    let (owner, opened) = readers.ask_to_open(discover::Open(found), PATIENCE).await?;
    Ok(Opened { namespace: opened.ok_or(ReadError::Vanished)?, owner })
}

/// Enters a namespace for good and reads it; by `naming` it may be given an nsid. To be called on a thread that ends with it.
pub(super) fn read_foreign(
    found: &DiscoveredNetns,
    opened: Opened,
    proc: &Proc,
    naming: Option<Naming>,
) -> Result<Reading, ReadError> {
    // Of this process, not of this thread: it stays where the daemon is.
    let home = File::open(proc.root().join("self/ns/net")).map_err(ReadError::Thread)?;
    let Opened { namespace, owner } = opened;
    let namespace = File::from(namespace);
    let foreign_userns = is_foreign(&home, &namespace);
    // In the host's namespace, before it is left.
    let at_host =
        naming.map(|naming| RequestSocket::open(BUDGET).map(|socket| (naming, socket))).transpose()?;
    setns(&namespace, CloneFlags::CLONE_NEWNET).map_err(ReadError::Enter)?;
    let mut requests = RequestSocket::open(BUDGET)?;
    let neighbors = if foreign_userns { FOREIGN_ROWS } else { FOREIGN_NEIGHBORS };
    let most = Most { rows: FOREIGN_ROWS, neighbors };
    let mut reading = read_tables(&mut requests, found.netns, most)?;
    reading.names = name_peers(&mut requests, &home, &reading.peers);
    reading.snapshot.name.clone_from(&found.name);
    reading.snapshot.owner = owner;
    reading.snapshot.foreign_userns = foreign_userns;
    if let Some((naming, mut socket)) = at_host {
        reading.nsid = nsid(&mut socket, &namespace, &reading.snapshot, &naming).unwrap_or_else(|error| {
            tracing::debug!(netns = found.netns, %error, "it has no nsid");
            None
        });
    }
    Ok(reading)
}

/// The nsid of what was read; one is assigned if it needs one and that is allowed.
fn nsid(
    host: &mut RequestSocket,
    namespace: &File,
    snapshot: &NetnsSnapshot,
    naming: &Naming,
) -> Result<Option<Nsid>, RequestError> {
    if let Some(id) = discover::nsid_of(host, namespace)? {
        return Ok(Some(Nsid { id, assigned: None }));
    }
    let Some(owned) = owned(snapshot).filter(|owned| naming.allows(owned) && is_connected(snapshot)) else {
        return Ok(None);
    };
    let id = discover::assign_nsid(host, namespace)?;
    Ok(id.map(|id| Nsid { id, assigned: Some(owned) }))
}

/// Who owns a namespace; `None` of one that any user can have made.
fn owned(snapshot: &NetnsSnapshot) -> Option<Owned> {
    if !snapshot.foreign_userns {
        return Some(Owned::Here);
    }
    let group = snapshot.owner.as_ref()?.cgroup.as_deref()?;
    cgroup::identify(group).container_id.map(|container| Owned::Elsewhere { container })
}

/// Whether it has an interface in use, or anything that leads to a gateway. Many services have an empty namespace only to
/// be without a network.
fn is_connected(snapshot: &NetnsSnapshot) -> bool {
    snapshot.links.iter().any(|link| link.flags & iff::UP != 0 && link.flags & iff::LOOPBACK == 0)
        || snapshot.routes.iter().any(RouteFacts::is_default)
        || snapshot.neighbors.iter().any(|entry| entry.state.is_permanent())
}

/// Whether different user namespaces own the two network namespaces. Where the kernel refuses to tell, the owner of the
/// other one is an ancestor of this process's, so that it is none that its users could have made.
fn is_foreign(home: &File, namespace: &File) -> bool {
    match (owning_userns(home), owning_userns(namespace)) {
        (Some(home), Some(other)) => home != other,
        _ => false,
    }
}

/// Inode number of the user namespace that owns a namespace (`NS_GET_USERNS`, since 4.9).
fn owning_userns(namespace: &File) -> Option<u64> {
    // SAFETY: the request takes no argument and returns a new descriptor or -1.
    let userns = File::from(unsafe { pidfd::owned(libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS)) }.ok()?);
    userns.metadata().ok().map(|metadata| metadata.ino())
}

/// The host is recognised by its handle; others by their nsid in the host namespace, which the
/// kernel reports if the namespace has an nsid for the host.
fn name_peers(requests: &mut RequestSocket, home: &File, peers: &[(u32, i32)]) -> HashMap<i32, PeerName> {
    let mut names = HashMap::new();
    if peers.is_empty() {
        return names;
    }
    let Ok(Some(host)) = discover::nsid_of(requests, home) else { return names };
    for (_, nsid) in peers {
        if *nsid == host {
            names.insert(*nsid, PeerName::Host);
        } else if let Ok(Some(name)) = discover::nsid_in(requests, host, *nsid) {
            names.insert(*nsid, PeerName::Nsid(name));
        }
    }
    names
}

/// Reads them with at most so many rows each; of one with more, nothing.
fn read_tables(requests: &mut RequestSocket, netns: NsInum, most: Most) -> Result<Reading, RequestError> {
    let mut links = LinkMessage::default();
    links.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    // Without a family each request covers both. Which entries are a gateway's is known once the routes are.
    let messages = [
        Some(RouteNetlinkMessage::GetLink(links)),
        Some(RouteNetlinkMessage::GetAddress(AddressMessage::default())),
        Some(RouteNetlinkMessage::GetRoute(RouteMessage::default())),
        Some(RouteNetlinkMessage::GetRule(RuleMessage::default())),
        None,
        Some(RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default())),
    ];
    let mut tables = Tables { most, ..Tables::default() };
    let mut interrupted = false;
    for request in messages {
        let gateways = tables.gateways();
        let empty = || Tables { most, gateways: gateways.clone(), ..Tables::default() };
        let mut table = empty();
        for attempt in 1..=ATTEMPTS {
            table = empty();
            let take = |message: &NetlinkBuffer<&[u8]>| table.take(netns, message);
            let changed = match &request {
                Some(request) => requests.dump(request.clone(), take)?,
                None => requests.dump_nexthops(take)?,
            };
            if !changed {
                break;
            }
            interrupted |= attempt == ATTEMPTS;
        }
        tables.append(table);
        tables.resolve();
        if tables.omitted > 0 {
            break;
        }
    }
    let mut rules = tables.rules_by_table();
    if tables.omitted > 0 {
        tables = Tables { omitted: tables.omitted, ..Tables::default() };
        rules.clear();
    }
    // One by an object that went meanwhile is gone too.
    let routes = std::mem::take(&mut tables.routes).into_iter();
    let routes = routes.filter(|(_, object)| object.is_none()).map(|(route, _)| route).collect();
    Ok(Reading {
        snapshot: NetnsSnapshot {
            omitted: tables.omitted,
            netns,
            cookie: requests.netns_cookie(),
            links: tables.links,
            addresses: tables.addresses,
            routes,
            dead_gateways: tables.dead_gateways,
            rules,
            neighbors: tables.neighbors,
            limited_neighbors: tables.limited_neighbors,
            ..NetnsSnapshot::default()
        },
        peers: tables.peers,
        names: HashMap::new(),
        nsid: None,
        interrupted,
        undecoded: tables.undecoded,
    })
}

#[derive(Debug, Clone, Copy, Default)]
struct Most {
    /// Of each but the neighbors; one with more is left out with all of its namespace.
    rows: usize,
    neighbors: usize,
}

impl Most {
    const ALL: Self = Self { rows: usize::MAX, neighbors: usize::MAX };
}

#[derive(Default)]
struct Tables {
    most: Most,
    omitted: u32,
    /// The addresses whose neighbor entries are kept in any case.
    gateways: HashSet<IpAddr>,
    links: Vec<LinkFacts>,
    addresses: Vec<AddressFacts>,
    /// In the order of the kernel, with the nexthop object by which they lead.
    routes: Vec<(RouteFacts, Option<u32>)>,
    dead_gateways: Vec<(u32, IpAddr)>,
    /// In the order of the kernel, without a table where the device of a packet decides.
    rules: Vec<Rule>,
    neighbors: Vec<NeighborEntry>,
    limited_neighbors: [u32; 2],
    peers: Vec<(u32, i32)>,
    nexthops: HashMap<u32, Nexthop>,
    /// The tables of such devices, as far as they are up.
    vrf_tables: Vec<u32>,
    undecoded: u64,
}

impl Tables {
    fn take(&mut self, netns: NsInum, message: &NetlinkBuffer<&[u8]>) {
        if self.is_full() {
            self.omitted += 1;
            return;
        }
        if message.message_type() == libc::RTM_NEWROUTE && self.dead_gateways.len() < FOREIGN_ROWS {
            self.dead_gateways.extend(route::dead_gateways(netns, message.payload()));
        }
        match message::decode(netns, message) {
            Ok(Change::Link(link)) => self.link(link),
            Ok(Change::Address(address)) => self.addresses.push(address),
            // Nothing else of such a namespace is ever asked for.
            Ok(Change::Route { routes, .. }) => {
                let is_limited = self.is_limited();
                let routes = routes.into_iter().filter(|route| !is_limited || route.is_default());
                self.routes.extend(routes.map(|route| (route, None)));
            }
            Ok(Change::RouteByObject { route, nexthop }) => {
                if !self.is_limited() || route.is_default() {
                    self.routes.push((route, Some(nexthop)));
                }
            }
            Ok(Change::Nexthop(nexthop)) => {
                self.nexthops.insert(nexthop.id, nexthop);
            }
            Ok(Change::Rule(rule)) => self.rules.push(rule),
            Ok(Change::Neighbor { entry, .. }) => {
                if !message::is_exempt(&entry, message.payload()) {
                    self.limited_neighbors[usize::from(entry.address.is_ipv6())] += 1;
                }
                if self.neighbors.len() < self.most.neighbors || self.gateways.contains(&entry.address) {
                    self.neighbors.push(entry);
                }
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, netns, "cannot decode a dumped message");
                self.undecoded += 1;
            }
        }
    }

    fn link(&mut self, link: LinkChange) {
        self.peers.extend(link.other_nsid.map(|nsid| (link.facts.ifindex, nsid)));
        // Nothing is sent by way of one that is down (net/ipv4/route.c, `ip_route_output_key_hash_rcu`).
        let is_up = link.facts.flags & iff::UP != 0;
        self.vrf_tables.extend(link.vrf_table.filter(|_| is_up));
        self.links.push(link.facts);
    }

    /// Whether one of them has all the rows that are kept. What is only of use to gateways is not counted.
    fn is_full(&self) -> bool {
        let Self { links, addresses, routes, rules, nexthops, .. } = self;
        let rows = [links.len(), addresses.len(), routes.len(), rules.len(), nexthops.len()];
        rows.into_iter().any(|rows| rows >= self.most.rows)
    }

    fn is_limited(&self) -> bool {
        self.most.rows < usize::MAX
    }

    fn gateways(&self) -> HashSet<IpAddr> {
        let routes = self.routes.iter().map(|(route, _)| route);
        routes.filter(|route| route.is_default()).filter_map(|route| route.gateway).collect()
    }

    fn append(&mut self, mut other: Self) {
        self.links.append(&mut other.links);
        self.addresses.append(&mut other.addresses);
        self.routes.append(&mut other.routes);
        self.dead_gateways.append(&mut other.dead_gateways);
        self.neighbors.append(&mut other.neighbors);
        for (sum, more) in self.limited_neighbors.iter_mut().zip(other.limited_neighbors) {
            *sum += more;
        }
        self.peers.append(&mut other.peers);
        self.rules.append(&mut other.rules);
        self.nexthops.extend(other.nexthops);
        self.vrf_tables.append(&mut other.vrf_tables);
        self.undecoded += other.undecoded;
        self.omitted += other.omitted;
    }

    /// Puts next hops in place of objects, once these are read. Each of many routes may lead by a group of many hops.
    fn resolve(&mut self) {
        if self.nexthops.is_empty() || self.routes.iter().all(|(_, object)| object.is_none()) {
            return;
        }
        for (route, object) in std::mem::take(&mut self.routes) {
            if self.routes.len() >= self.most.rows {
                self.omitted += 1;
                return;
            }
            let Some(id) = object else {
                self.routes.push((route, None));
                continue;
            };
            let Some(nexthop) = self.nexthops.get(&id) else { continue };
            if nexthop.group.is_empty() {
                self.routes.push((nexthop.hop.of(&route), None));
            }
            // A group has no groups in it (net/ipv4/nexthop.c, nh_check_attr_group).
            let members = nexthop.group.iter().filter_map(|member| self.nexthops.get(member));
            let hops = (1..=u16::MAX).zip(members);
            let hops = hops.map(|(hop, nexthop)| RouteFacts { hop, ..nexthop.hop.of(&route) });
            self.routes.extend(hops.map(|route| (route, None)));
        }
    }

    /// The rules, with tables in place of devices: a rule for all devices counts once for each.
    fn rules_by_table(&mut self) -> Vec<RuleFacts> {
        let mut by_table = Vec::new();
        for rule in &self.rules {
            let tables = rule.table.as_ref().map_or(&*self.vrf_tables, std::slice::from_ref);
            if tables.len() > self.most.rows.saturating_sub(by_table.len()) {
                self.omitted += 1;
                return Vec::new();
            }
            by_table.extend(tables.iter().map(|table| rule.of(*table)));
        }
        by_table
    }
}

#[cfg(test)]
mod tests;
