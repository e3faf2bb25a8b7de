//! What an interface was at a time, by what the kernel has told until then.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{FORMER_GATEWAY_NS, Namespace, Namespaces, SETTLING_NS};
use crate::observation::{BootNs, LinkFacts, LlAddr, NeighborCause, NsInum, iff};

/// How long the former peer of a link is kept: the kernel reports that it is gone, then what goes with it.
const FORMER_PEER_NS: u64 = 2_000_000_000;

/// Whether it was set up or down, or ARP was switched on or off for it.
pub(super) fn is_switched(before: u32, now: u32) -> bool {
    (before ^ now) & (iff::UP | iff::NOARP) != 0
}

impl Namespaces {
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
    #[must_use]
    pub fn was_left(&self, at: BootNs, ifindex: u32) -> bool {
        let is_after = |left: BootNs| (at..at.saturating_add(FORMER_PEER_NS)).contains(&left);
        self.left.iter().any(|(left, of)| *of == ifindex && is_after(*left))
    }

    /// A link with its peer or lower device, also where that was lost just before a time.
    #[must_use]
    pub fn link_with_other(&self, at: BootNs, ifindex: u32) -> Option<&LinkFacts> {
        let lost = |(lost, link): &&(BootNs, LinkFacts)| {
            link.ifindex == ifindex && lost.abs_diff(at) <= FORMER_PEER_NS
        };
        let known = self.links.get(&ifindex).filter(|link| link.has_other());
        known.or_else(|| self.bereft.iter().rev().find(lost).map(|(_, link)| link))
    }

    /// Whether the model is up to date for an interface at a time: it is known, and nothing changed just before.
    #[must_use]
    pub fn is_settled(&self, at: BootNs, ifindex: u32) -> bool {
        self.links.contains_key(&ifindex) && self.changed.saturating_add(SETTLING_NS) < at
    }

    /// Whether another interface than this one can carry packets of this family.
    #[must_use]
    pub fn has_other_interface(&self, ifindex: u32, family: IpAddr) -> bool {
        let is_other = |link: &&LinkFacts| link.ifindex != ifindex && link.flags & iff::LOOPBACK == 0;
        self.links.values().filter(is_other).any(|other| self.is_usable(other.ifindex, family))
    }

    /// Whether a link is known at all.
    #[must_use]
    pub fn knows_link(&self, ifindex: u32) -> bool {
        self.links.contains_key(&ifindex)
    }

    /// Whether a link had this hardware address at a time, and for some time before.
    #[must_use]
    pub fn had_lladdr(&self, at: BootNs, ifindex: u32, lladdr: &LlAddr) -> bool {
        let settled = self
            .lladdr_changed
            .get(&ifindex)
            .is_none_or(|changed| changed.saturating_add(FORMER_GATEWAY_NS) < at);
        settled && self.links.get(&ifindex).is_some_and(|link| link.mac.as_ref() == Some(lladdr))
    }

    /// Whether an interface was long in the state whose beginning is said to have taken a neighbor entry along: then it
    /// was something else. The kernel program sees the state alone.
    #[must_use]
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

    /// Notes which interfaces a snapshot shows in another state than an older one.
    pub(super) fn note_switched(&mut self, at: BootNs, old: &Self) {
        let known: BTreeSet<u32> = self.links.keys().copied().collect();
        self.switched.retain(|ifindex, _| known.contains(ifindex));
        for (ifindex, link) in &self.links {
            let same = old.links.get(ifindex).is_some_and(|old| !is_switched(old.flags, link.flags));
            if !same || self.has_ipv4(*ifindex) != old.has_ipv4(*ifindex) {
                self.switched.insert(*ifindex, at);
            }
        }
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
