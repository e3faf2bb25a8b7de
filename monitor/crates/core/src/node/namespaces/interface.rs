//! What an interface was at a time, by what the kernel has told until then.

use std::collections::BTreeSet;
use std::net::IpAddr;

use kevtmon_observation::{AddressFacts, BootNs, LinkFacts, LlAddr, NeighborCause, NsInum, iff};

use super::{FORMER_GATEWAY_NS, Namespace, Namespaces, SETTLING_NS};

/// How long the former peer of a link is kept: the kernel reports that it is gone, then what goes with it.
const FORMER_PEER_NS: u64 = 2_000_000_000;

/// Whether it was set up or down, or ARP was switched on or off for it.
pub(super) fn is_switched(before: u32, now: u32) -> bool {
    (before ^ now) & (iff::UP | iff::NOARP) != 0
}

impl Namespaces {
    /// Adds or changes a link, if there is room for it; returns its previous state.
    pub fn put_link(&mut self, at: BootNs, link: LinkFacts) -> Option<LinkFacts> {
        if !self.has_room_for(&link) {
            return None;
        }
        let namespace = self.known.get_mut(&link.netns)?;
        let ifindex = link.ifindex;
        let (mac, flags, has_other) = (link.mac.clone(), link.flags, link.has_other());
        namespace.changed = at;
        let is_up = flags & iff::UP != 0;
        let old = namespace.links.insert(ifindex, link);
        if !is_up && old.as_ref().is_some_and(|old| old.flags & iff::UP != 0) {
            namespace.disturb(at, ifindex);
        }
        if let Some(old) = old.as_ref().filter(|old| old.has_other() && !has_other) {
            namespace.keep_bereft(at, old.clone());
        }
        if old.as_ref().is_some_and(|old| old.mac != mac) {
            namespace.lladdr_changed.insert(ifindex, at);
        }
        if old.as_ref().is_none_or(|old| is_switched(old.flags, flags)) {
            namespace.switched.insert(ifindex, at);
        }
        if is_up && old.as_ref().is_some_and(|old| old.flags & iff::UP == 0) {
            namespace.note_risen(at, ifindex);
        }
        old
    }

    pub fn remove_link(&mut self, at: BootNs, netns: NsInum, ifindex: u32) -> Option<LinkFacts> {
        let namespace = self.known.get_mut(&netns)?;
        namespace.disturb(at, ifindex);
        namespace.tunnels.remove_link(ifindex);
        namespace.lladdr_changed.remove(&ifindex);
        namespace.switched.remove(&ifindex);
        namespace.addresses.retain(|address| address.ifindex != ifindex);
        let link = namespace.links.remove(&ifindex)?;
        if link.has_other() {
            namespace.keep_bereft(at, link.clone());
        }
        Some(link)
    }

    /// Adds an address; returns false if there is no room for it.
    pub fn put_address(&mut self, at: BootNs, address: AddressFacts) -> bool {
        let Some(namespace) = self.known.get_mut(&address.netns) else { return true };
        if namespace.addresses.contains(&address) {
            return true;
        }
        let has_room = namespace.has_room(namespace.addresses.len());
        if has_room {
            namespace.switched.insert(address.ifindex, at);
            namespace.note_risen(at, address.ifindex);
            namespace.addresses.insert(address);
        }
        has_room
    }

    pub fn remove_address(&mut self, at: BootNs, address: &AddressFacts) {
        if let Some(namespace) = self.known.get_mut(&address.netns) {
            namespace.addresses.remove(address);
            // Of one that went before nobody asks any more.
            if namespace.links.contains_key(&address.ifindex) {
                namespace.switched.insert(address.ifindex, at);
            }
            match address.address {
                IpAddr::V4(_) => namespace.disturb(at, address.ifindex),
                // One of IPv6 takes no default route along that is not reported, and no snapshot follows.
                IpAddr::V6(_) => namespace.went_along(at, address.ifindex),
            }
        }
    }

    /// A link that has gone was moved to another namespace.
    pub fn set_left(&mut self, at: BootNs, netns: NsInum, ifindex: u32) {
        let Some(namespace) = self.known.get_mut(&netns) else { return };
        namespace.left.retain(|(left, _)| left.saturating_add(FORMER_PEER_NS) >= at);
        namespace.left.push((at, ifindex));
        super::moves::keep_newest(&mut namespace.left);
    }
}

impl Namespace {
    /// Whether a link was moved to another namespace right after a time.
    pub fn was_left(&self, at: BootNs, ifindex: u32) -> bool {
        let is_after = |left: BootNs| (at..at.saturating_add(FORMER_PEER_NS)).contains(&left);
        self.left.iter().any(|(left, of)| *of == ifindex && is_after(*left))
    }

    /// A link with its peer or lower device, also where that was lost just before a time.
    pub fn link_with_other(&self, at: BootNs, ifindex: u32) -> Option<&LinkFacts> {
        let lost = |(lost, link): &&(BootNs, LinkFacts)| {
            link.ifindex == ifindex && lost.abs_diff(at) <= FORMER_PEER_NS
        };
        let known = self.links.get(&ifindex).filter(|link| link.has_other());
        known.or_else(|| self.bereft.iter().rev().find(lost).map(|(_, link)| link))
    }

    /// Whether the model is up to date for an interface at a time: it is known, and nothing changed just before.
    pub fn is_settled(&self, at: BootNs, ifindex: u32) -> bool {
        self.links.contains_key(&ifindex) && self.changed.saturating_add(SETTLING_NS) < at
    }

    /// Whether another interface than this one can carry packets of this family.
    pub fn has_other_interface(&self, ifindex: u32, family: IpAddr) -> bool {
        let is_other = |link: &&LinkFacts| link.ifindex != ifindex && link.flags & iff::LOOPBACK == 0;
        self.links.values().filter(is_other).any(|other| self.is_usable(other.ifindex, family))
    }

    /// Whether a link had this hardware address at a time, and for some time before.
    pub fn had_lladdr(&self, at: BootNs, ifindex: u32, lladdr: &LlAddr) -> bool {
        let settled = self
            .lladdr_changed
            .get(&ifindex)
            .is_none_or(|changed| changed.saturating_add(FORMER_GATEWAY_NS) < at);
        settled && self.links.get(&ifindex).is_some_and(|link| link.mac.as_ref() == Some(lladdr))
    }

    /// Whether an interface was long in the state whose beginning is said to have taken a neighbor entry along: then it
    /// was something else. The kernel program sees the state alone.
    pub fn contradicts(&self, cause: NeighborCause, at: BootNs, ifindex: u32) -> bool {
        let Some(link) = self.links.get(&ifindex).filter(|_| !self.unheard) else { return false };
        let was_so = match cause {
            NeighborCause::LinkDown => link.flags & iff::UP == 0,
            NeighborCause::Noarp => link.flags & iff::NOARP != 0,
            NeighborCause::LastAddressRemoved => !self.has_ipv4(ifindex),
            _ => false,
        };
        was_so && self.switched.get(&ifindex).is_none_or(|switched| switched.saturating_add(SETTLING_NS) < at)
    }

    /// Whether an interface was set up or got an address again after a time, and before another: what went with it before
    /// that is not what goes with it now.
    pub(super) fn has_risen(&self, ifindex: u32, after: BootNs, until: BootNs) -> bool {
        self.risen.iter().any(|(risen, of)| *of == ifindex && after < *risen && *risen <= until)
    }

    fn note_risen(&mut self, at: BootNs, ifindex: u32) {
        self.risen.retain(|(risen, _)| risen.saturating_add(FORMER_GATEWAY_NS) >= at);
        self.risen.push((at, ifindex));
        super::moves::keep_newest(&mut self.risen);
    }

    /// Notes which interfaces a snapshot shows in another state than an older one.
    pub(super) fn note_switched(&mut self, at: BootNs, old: &Self) {
        let known: BTreeSet<u32> = self.links.keys().copied().collect();
        self.switched.retain(|ifindex, _| known.contains(ifindex));
        let mut risen = Vec::new();
        for (ifindex, link) in &self.links {
            let same = old.links.get(ifindex).is_some_and(|old| !is_switched(old.flags, link.flags));
            let [had_ipv4, has_ipv4] = [old, &*self].map(|one| one.has_ipv4(*ifindex));
            if !same || has_ipv4 != had_ipv4 {
                self.switched.insert(*ifindex, at);
            }
            let was_down = old.links.get(ifindex).is_some_and(|old| old.flags & iff::UP == 0);
            if was_down && link.flags & iff::UP != 0 || has_ipv4 && !had_ipv4 {
                risen.push(*ifindex);
            }
        }
        risen.into_iter().for_each(|ifindex| self.note_risen(at, ifindex));
    }

    fn has_ipv4(&self, ifindex: u32) -> bool {
        self.addresses.iter().any(|known| known.ifindex == ifindex && known.address.is_ipv4())
    }

    pub(super) fn keep_bereft(&mut self, at: BootNs, link: LinkFacts) {
        self.bereft.retain(|(lost, _)| lost.saturating_add(FORMER_PEER_NS) >= at);
        self.bereft.push((at, link));
        super::moves::keep_newest(&mut self.bereft);
    }
}
