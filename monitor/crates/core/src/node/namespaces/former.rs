//! What became of a default gateway that is used no more: replaced, deleted on purpose, or gone with its interface.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use kevtmon_observation::{AddressFacts, BootNs, NeighborCause, NeighborChange, NsInum, RouteFacts, iff};

use super::super::routing::{leads_anywhere, takes_all};
use super::{DISTURBED_MAX, Namespace, Namespaces, ROUTES_MAX, SETTLING_NS};

impl Namespaces {
    /// Somebody has a default route deleted, or put in the place of others.
    pub fn ask(&mut self, route: &RouteFacts, replaces: bool) {
        self.known
            .get_mut(&route.netns)
            .into_iter()
            .for_each(|namespace| namespace.challenge(route, replaces));
    }

    /// Whether the routes by an interface that has become ready are known only by the next snapshot.
    pub fn has_dead_gateway(&self, netns: NsInum, ifindex: u32) -> bool {
        let is_by_it = |namespace: &Namespace| namespace.dead_gateways.iter().any(|(by, _)| *by == ifindex);
        self.known.get(&netns).is_some_and(is_by_it)
    }
}

impl Namespace {
    /// Whether packets go to a gateway again once its interface is ready.
    pub fn is_dead_gateway(&self, ifindex: u32, address: IpAddr) -> bool {
        self.dead_gateways.contains(&(ifindex, address))
    }

    /// The gateways that packets need, or will need once their interface is ready again.
    pub(super) fn missed_gateways(&self) -> BTreeSet<(u32, IpAddr)> {
        let all = self.gateways.iter().map(|(ifindex, address, _)| (ifindex, address));
        let is_missed = |key: &(u32, IpAddr)| {
            self.outdated || self.dead_gateways.contains(key) || !self.is_former_gateway(key.0, key.1)
        };
        all.filter(is_missed).collect()
    }

    /// Whether an address that was a default gateway is no longer needed: packets go to another one, or the route was
    /// deleted and left interface and address in place.
    pub fn is_former_gateway(&self, ifindex: u32, address: IpAddr) -> bool {
        let on_purpose = || match self.gateways.get(ifindex, address) {
            Some(gateway) => !gateway.went_with_link,
            // Those that are needed are kept.
            None => !self.gone_with_link.contains(&(ifindex, address)),
        };
        let is_needed = || leads_anywhere(&self.rules, address.is_ipv6());
        !self.in_use.contains(&(ifindex, address))
            && (self.is_replaced(address) || on_purpose() || !is_needed())
    }

    /// Whether nobody knows that its route went with its interface, and was not deleted on purpose just before.
    pub fn may_have_been_deleted(&self, ifindex: u32, address: IpAddr) -> bool {
        self.perhaps_deleted.contains(&(ifindex, address))
    }

    pub(super) fn doubt(&mut self, gateway: (u32, IpAddr)) {
        if self.perhaps_deleted.len() < ROUTES_MAX {
            self.perhaps_deleted.insert(gateway);
        }
    }

    pub(super) fn forget_doubts(&mut self) {
        let Self { gateways, gone_with_link, .. } = self;
        self.perhaps_deleted
            .retain(|key| gateways.get(key.0, key.1).is_some() || gone_with_link.contains(key));
    }

    /// Whether packets of all kinds of a family have a default gateway.
    fn is_replaced(&self, family: IpAddr) -> bool {
        let is_up = |ifindex: &u32| self.links.get(ifindex).is_some_and(|link| link.flags & iff::UP != 0);
        // What only some packets take, by a rule of theirs, replaces nothing.
        let is_for_all = |key: &(u32, IpAddr)| {
            let leads = |route: &&RouteFacts| (route.ifindex, route.gateway) == (Some(key.0), Some(key.1));
            self.routes.iter().filter(leads).any(|route| takes_all(route, &self.rules))
        };
        let is_other = |key: &&(u32, IpAddr)| key.1.is_ipv4() == family.is_ipv4() && is_up(&key.0);
        self.in_use.iter().filter(is_other).any(is_for_all)
    }

    /// One that went with its interface and had a successor since is not needed any more, also when that one goes. To be asked
    /// when routes were read or added: those that the kernel takes along are told one by one.
    pub(super) fn forget_replaced(&mut self) {
        let has_gone = self.gateways.iter().any(|(_, _, gateway)| gateway.went_with_link);
        if !has_gone && self.gone_with_link.is_empty() {
            return;
        }
        let [v4, v6] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()]
            .map(|family: IpAddr| self.is_replaced(family));
        let is_replaced = |address: IpAddr| if address.is_ipv4() { v4 } else { v6 };
        let of_before: Vec<_> = (self.gateways.iter())
            .filter(|(ifindex, address, gateway)| {
                gateway.went_with_link
                    && is_replaced(*address)
                    && !self.in_use.contains(&(*ifindex, *address))
            })
            .map(|(ifindex, address, _)| (ifindex, address))
            .collect();
        of_before.into_iter().for_each(|key| self.gateways.set_went_with_link(key, false));
        self.succeeded.extend(self.gone_with_link.extract_if(.., |(_, address)| is_replaced(*address)));
    }

    /// Whether an interface can carry packets of this family.
    pub(super) fn is_usable(&self, ifindex: u32, family: IpAddr) -> bool {
        let of_family =
            |known: &AddressFacts| known.ifindex == ifindex && known.address.is_ipv4() == family.is_ipv4();
        self.links.get(&ifindex).is_some_and(|link| link.flags & iff::UP != 0)
            && self.addresses.iter().any(of_family)
    }

    /// An interface went, was set down or lost an address. Routes that go with it are missing from the next snapshot;
    /// those of IPv6 may have been reported just before.
    pub(super) fn disturb(&mut self, at: BootNs, ifindex: u32) {
        self.disturbed.insert(ifindex);
        if self.disturbed.len() > DISTURBED_MAX {
            // The highest numbers are the newest.
            self.disturbed.pop_first();
        }
        self.went_along(at, ifindex);
    }

    /// That an interface goes is known by the entries that it takes along before the kernel reports it, which is after its
    /// routes of IPv6, and on a busy machine much later.
    pub(super) fn note_cause(&mut self, at: BootNs, change: &NeighborChange) {
        let with_link = matches!(change.cause, NeighborCause::LinkDown | NeighborCause::LinkDeleted);
        if with_link && !self.contradicts(change.cause, at, change.key.ifindex) {
            self.disturb(at, change.key.ifindex);
        }
    }

    /// The routes of an interface that were reported to be gone just before went with it.
    pub(super) fn went_along(&mut self, at: BootNs, ifindex: u32) {
        let just_before =
            |ceased: BootNs| ceased.saturating_add(SETTLING_NS) >= at && !self.has_risen(ifindex, ceased, at);
        // One whose route was or is there still had ceased to be used for another reason; one that has gone so already and
        // had a successor is not needed again.
        let is_other = |gateway: (u32, IpAddr)| {
            self.hidden.contains(&gateway) || self.succeeded.contains(&gateway) || self.has_route(gateway)
        };
        let ceased =
            self.former.iter().filter(|(ceased, (link, _))| *link == ifindex && just_before(*ceased));
        let ceased: Vec<_> =
            ceased.map(|(_, gateway)| *gateway).filter(|gateway| !is_other(*gateway)).collect();
        for gateway in ceased {
            self.gateways.set_went_with_link(gateway, true);
            self.gone_with_link.insert(gateway);
            if self.missed {
                self.doubt(gateway);
            }
        }
    }

    pub(super) fn has_route(&self, (ifindex, address): (u32, IpAddr)) -> bool {
        let leads = |route: &RouteFacts| (route.ifindex, route.gateway) == (Some(ifindex), Some(address));
        self.routes.iter().any(leads)
    }
}
