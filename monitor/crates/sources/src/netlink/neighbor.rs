//! Changes of neighbor entries out of neighbor messages, where no probe reports them.
//!
//! A message carries the state that an entry has, never the one it had: a permanent entry that is deleted
//! by request shows up as failed. So the entries are stored. The actor is unknown here; at best
//! there is the netlink port of the request.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use kevtmon_observation::{
    LinkFacts, LlAddr, NeighborCause, NeighborChange, NeighborEntry, NeighborKey, NeighborOp, NetnsSnapshot,
    NsInum, NudState, iff,
};

use super::message;

/// Entries and links of all namespaces, as many as the kernel holds.
#[derive(Debug, Default)]
pub(super) struct NeighborCache {
    namespaces: HashMap<NsInum, Namespace>,
    /// The namespace that is being dumped, and what changed in it since: the dump may be older.
    dump: Option<(NsInum, ChangedKeys)>,
}

/// Links, and entries by link and address.
type ChangedKeys = HashSet<(u32, Option<IpAddr>)>;

#[derive(Debug, Default)]
struct Namespace {
    entries: HashMap<(u32, IpAddr), Entry>,
    links: HashMap<u32, Link>,
}

#[derive(Debug, Clone)]
struct Entry {
    state: NudState,
    lladdr: Option<LlAddr>,
}

#[derive(Debug)]
struct Link {
    ifname: String,
    flags: u32,
    mac: Option<LlAddr>,
    has_peer: bool,
    /// What the last message about the link would explain.
    explains: Option<NeighborCause>,
}

impl Link {
    fn of(facts: &LinkFacts) -> Self {
        Self {
            ifname: facts.ifname.clone(),
            flags: facts.flags,
            mac: facts.mac.clone(),
            has_peer: facts.peer.is_some(),
            explains: None,
        }
    }

    /// Why an entry vanished without a request: the kernel announces the link's change first.
    fn cause(&self) -> NeighborCause {
        match self.explains {
            Some(NeighborCause::LinkDeleted) => NeighborCause::LinkDeleted,
            _ if self.flags & iff::UP == 0 => NeighborCause::LinkDown,
            explained => explained.unwrap_or(NeighborCause::Unknown),
        }
    }
}

impl NeighborCache {
    pub(super) fn link(&mut self, facts: &LinkFacts) {
        self.touch(facts.netns, facts.ifindex, None);
        let links = &mut self.namespaces.entry(facts.netns).or_default().links;
        let mut link = Link::of(facts);
        if let Some(before) = links.get(&facts.ifindex) {
            // A pair is parted first and then set down, from whichever end it is deleted.
            if before.has_peer && !link.has_peer {
                link.explains = Some(NeighborCause::LinkDeleted);
            } else if before.mac != link.mac {
                link.explains = Some(NeighborCause::LladdrChanged);
            } else if before.flags & iff::NOARP == 0 && link.flags & iff::NOARP != 0 {
                link.explains = Some(NeighborCause::Noarp);
            }
        }
        links.insert(facts.ifindex, link);
    }

    /// A link is gone, and its entries with it: they had messages of their own before.
    pub(super) fn link_gone(&mut self, netns: NsInum, ifindex: u32) {
        self.touch(netns, ifindex, None);
        let namespace = self.namespaces.entry(netns).or_default();
        namespace.links.remove(&ifindex);
        namespace.entries.retain(|(on, _), _| *on != ifindex);
    }

    pub(super) fn address_gone(&mut self, netns: NsInum, ifindex: u32) {
        if let Some(link) = self.namespaces.entry(netns).or_default().links.get_mut(&ifindex) {
            link.explains = Some(NeighborCause::LastAddressRemoved);
        }
    }

    pub(super) fn set(&mut self, netns: NsInum, new: &NeighborEntry, port: u32) -> Option<NeighborChange> {
        self.touch(netns, new.ifindex, Some(new.address));
        let namespace = self.namespaces.entry(netns).or_default();
        let key = (new.ifindex, new.address);
        let old = namespace.entries.get(&key).cloned();
        let was_permanent = old.as_ref().is_some_and(|old| old.state.is_permanent());
        if message::is_noarp(new) && !was_permanent {
            return None;
        }
        let entry = Entry { state: new.state, lladdr: new.lladdr.clone() };
        namespace.entries.insert(key, entry);
        let old_lladdr = old.as_ref().and_then(|old| old.lladdr.clone());
        let is_permanent = new.state.is_permanent();
        let (op, cause) = match (was_permanent, new.state) {
            (true, NudState::FAILED) => (NeighborOp::Deleted, NeighborCause::Admin),
            (true, _) if is_permanent && old_lladdr == new.lladdr => return None,
            (true, _) => (NeighborOp::Changed, NeighborCause::Replaced),
            (false, _) if is_permanent => (NeighborOp::Added, NeighborCause::Admin),
            // With a port it is a learned entry that was deleted by request.
            (false, NudState::FAILED) if port == 0 => (NeighborOp::Failed, NeighborCause::Unknown),
            _ => return None,
        };
        if op == NeighborOp::Failed && old.as_ref().is_some_and(|old| old.state == NudState::FAILED) {
            return None;
        }
        if op == NeighborOp::Added
            && let Some(link) = namespace.links.get_mut(&new.ifindex)
        {
            link.explains = None;
        }
        let deleted = op == NeighborOp::Deleted;
        Some(NeighborChange {
            key: NeighborKey { netns, ifindex: new.ifindex, address: new.address },
            ifname: namespace.ifname(new.ifindex),
            op,
            cause,
            old_state: old.map(|old| old.state),
            new_state: (!deleted).then_some(new.state),
            new_lladdr: new.lladdr.clone().filter(|lladdr| !deleted && old_lladdr.as_ref() != Some(lladdr)),
            lladdr: old_lladdr,
            device_lladdr: None,
            actor: None,
            netlink_port: Some(port).filter(|port| *port != 0),
            netns_cookie: None,
            netns_of_user: false,
        })
    }

    pub(super) fn gone(&mut self, netns: NsInum, last: &NeighborEntry) -> Option<NeighborChange> {
        self.touch(netns, last.ifindex, Some(last.address));
        let namespace = self.namespaces.entry(netns).or_default();
        let old = namespace
            .entries
            .remove(&(last.ifindex, last.address))
            .unwrap_or_else(|| Entry { state: last.state, lladdr: last.lladdr.clone() });
        if !old.state.is_permanent() {
            return None;
        }
        let cause = match last.state {
            NudState::FAILED => NeighborCause::Admin,
            _ => namespace.links.get(&last.ifindex).map_or(NeighborCause::Unknown, Link::cause),
        };
        Some(NeighborChange {
            key: NeighborKey { netns, ifindex: last.ifindex, address: last.address },
            ifname: namespace.ifname(last.ifindex),
            op: NeighborOp::Deleted,
            cause,
            old_state: Some(old.state),
            new_state: None,
            lladdr: old.lladdr.or_else(|| last.lladdr.clone()),
            new_lladdr: None,
            device_lladdr: None,
            actor: None,
            netlink_port: None,
            netns_cookie: None,
            netns_of_user: false,
        })
    }

    pub(super) fn begin_dump(&mut self, netns: NsInum) {
        self.dump = Some((netns, HashSet::new()));
    }

    /// A dump ended: it replaces what is stored, except what changed since it began.
    pub(super) fn dumped(&mut self, snapshot: &NetnsSnapshot) {
        let touched = self.dump.take().map(|(_, touched)| touched).unwrap_or_default();
        let namespace = self.namespaces.entry(snapshot.netns).or_default();
        namespace.entries.retain(|(ifindex, address), _| touched.contains(&(*ifindex, Some(*address))));
        namespace.links.retain(|ifindex, _| touched.contains(&(*ifindex, None)));
        for entry in &snapshot.neighbors {
            if !touched.contains(&(entry.ifindex, Some(entry.address))) {
                let remembered = Entry { state: entry.state, lladdr: entry.lladdr.clone() };
                namespace.entries.insert((entry.ifindex, entry.address), remembered);
            }
        }
        for link in &snapshot.links {
            if !touched.contains(&(link.ifindex, None)) {
                namespace.links.insert(link.ifindex, Link::of(link));
            }
        }
    }

    fn touch(&mut self, netns: NsInum, ifindex: u32, address: Option<IpAddr>) {
        if let Some((_, touched)) = self.dump.as_mut().filter(|(dumped, _)| *dumped == netns) {
            touched.insert((ifindex, address));
        }
    }

    pub(super) fn forget(&mut self, netns: NsInum) {
        self.namespaces.remove(&netns);
    }
}

impl Namespace {
    fn ifname(&self, ifindex: u32) -> String {
        self.links.get(&ifindex).map(|link| link.ifname.clone()).unwrap_or_default()
    }
}
