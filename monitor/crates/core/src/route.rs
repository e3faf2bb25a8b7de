//! Events of routes and addresses: added, deleted, and by whom where a program in the kernel has seen it. Those of rules are in
//! `rule.rs`.

use std::net::IpAddr;

use kevtmon_event::wording::{actor_phrase, owner_phrase, place_phrase};
use kevtmon_event::{Actor, Address, Confidence, Event, Kind, Route, Severity, Shared, Target};
use kevtmon_observation::{
    AddressFacts, BootNs, LinkFacts, NsInum, PodRoute, PolicyRule, RouteAct, RouteFacts, RouteOp, TABLE_MAIN,
};
use kevtmon_types::escape::name;

use super::Core;
use crate::diagnose::ModelChange;
use crate::node::acts::RoutedAct;
use crate::node::namespaces::Namespace;

impl Core {
    /// Keeps who did something to routes, an address or a rule until the message tells it.
    pub(super) fn route_act(&mut self, at: BootNs, act: RouteAct) {
        let RouteAct { netns, ops, missing, netns_cookie, actor } = act;
        for op in ops {
            let act = RoutedAct { netns, op, missing, netns_cookie, actor: actor.clone() };
            self.link_acts.routes.put(at, act);
        }
    }

    pub(super) fn route_actor(&mut self, at: BootNs, netns: NsInum, op: &RouteOp) -> Option<Actor> {
        self.link_acts.routes.set_told(at);
        let cookie = self.namespaces.cookie(netns);
        let is_it = |act: &RoutedAct| act.netns == netns && act.op == *op;
        let (task, confidence) = self.link_acts.routes.take(at, cookie, is_it)?;
        Some(Actor { confidence, ..self.actor(&task, false) })
    }

    pub(super) fn pod_routes(&mut self, at: BootNs, id: u64, elsewhere: &[PodRoute]) {
        self.diagnose(at, &ModelChange::PodRoutes { id, elsewhere });
    }

    pub(super) fn rule_told(&mut self, at: BootNs, rule: &PolicyRule, is_there: bool) {
        self.rule(at, rule, is_there);
        if rule.netns == self.settings.host_netns {
            self.diagnose(at, &ModelChange::HostRule(rule));
        }
    }

    pub(super) fn address(&mut self, at: BootNs, address: AddressFacts) {
        let netns = address.netns;
        let actor = self.route_actor(at, netns, &RouteOp::AddressAdded(address.clone()));
        let is_new = self.namespaces.get(netns).is_some_and(|known| !known.addresses.contains(&address));
        if is_new {
            self.emit_address(at, &address, true, actor);
        }
        if !self.namespaces.put_address(at, address) {
            self.overfull(at, netns);
        }
        self.diagnose(at, &ModelChange::Addresses(netns));
    }

    pub(super) fn address_gone(&mut self, at: BootNs, address: &AddressFacts) {
        let actor = self.route_actor(at, address.netns, &RouteOp::AddressDeleted(address.clone()));
        let was_there =
            self.namespaces.get(address.netns).is_some_and(|known| known.addresses.contains(address));
        if was_there {
            self.emit_address(at, address, false, actor);
        }
        self.namespaces.remove_address(at, address);
        self.diagnose(at, &ModelChange::Addresses(address.netns));
    }

    pub(super) fn route(&mut self, at: BootNs, route: RouteFacts) {
        let actor = self.route_actor(at, route.netns, &RouteOp::RouteAdded(route.clone()));
        self.tell_host_route(at, &route, true, actor.as_ref());
        if route.netns == self.settings.host_netns {
            self.namespaces.put_tunnel_route(&route);
        }
        if route.is_default() && self.namespaces.put_route(at, route.clone()) {
            self.emit_route(at, &route, true, actor);
        }
    }

    pub(super) fn route_gone(&mut self, at: BootNs, route: &RouteFacts) {
        let actor = self.route_actor(at, route.netns, &RouteOp::RouteDeleted(route.clone()));
        self.tell_host_route(at, route, false, actor.as_ref());
        if self.namespaces.remove_tunnel_route(route) {
            self.diagnose(at, &ModelChange::Tunnels);
        }
        if self.namespaces.remove_route(at, route) {
            self.emit_route(at, route, false, actor);
        }
    }

    /// Routes to single addresses are those to pods.
    fn tell_host_route(&mut self, at: BootNs, route: &RouteFacts, is_there: bool, actor: Option<&Actor>) {
        let Some((address, prefix_len)) = route.destination else { return };
        let bits = if address.is_ipv4() { 32 } else { 128 };
        if prefix_len == bits && route.netns == self.settings.host_netns {
            self.emit_pod_route(at, route, is_there, actor);
            self.diagnose(at, &ModelChange::HostRoute { address, is_there });
        }
    }

    /// A route of the host by its end of a pod's pair, or one by another interface that takes a pod's packets there.
    fn emit_pod_route(&mut self, at: BootNs, route: &RouteFacts, is_there: bool, actor: Option<&Actor>) {
        let Some((address, bits)) = route.destination else { return };
        let destination = format!("{address}/{bits}");
        let links = self.namespaces.get(route.netns).map(|host| &host.links);
        let Some(link) = links.zip(route.ifindex).and_then(|(links, ifindex)| links.get(&ifindex)) else {
            return;
        };
        let of_link = Some(self.link_target(link)).filter(is_owned);
        let of_address = self.target_at(address);
        let is_astray = of_link.is_none() || of_address.is_some() && of_address != of_link;
        let of_link_owner = of_link.as_ref().map_or_else(String::new, owner_phrase);
        let found = if is_astray { of_address.filter(|_| is_there) } else { of_link };
        let Some(target) = found else { return };
        let (kind, severity, verb) = match is_there {
            true if is_astray => (Kind::RouteAdded, Severity::Info, "added"),
            true => (Kind::RouteAdded, Severity::Debug, "added"),
            // When a pod is deleted, too.
            false => (Kind::RouteDeleted, Severity::Info, "deleted"),
        };
        let (owner, by, ifname) = (owner_phrase(&target), by(actor), name(&link.ifname));
        let message = match is_astray {
            true => {
                format!("route of the host to {destination}{owner} by {ifname}{of_link_owner} {verb}{by}")
            }
            false => format!("route of the host to {destination} by {ifname}{owner} {verb}{by}"),
        };
        self.emit(Event {
            actor: actor.cloned().map(Shared::new),
            target: Some(Shared::new(target)),
            route: Some(Box::new(Route {
                destination,
                gateway: route.gateway,
                ifindex: route.ifindex,
                netns: route.netns,
            })),
            ..self.event(at, kind, severity, message)
        });
    }

    /// The pod or container with an address that a single network namespace has, not counting the host's and those of users.
    pub(super) fn target_at(&self, address: IpAddr) -> Option<Target> {
        let has_it = |known: &Namespace| known.addresses.iter().any(|own| own.address == address);
        let host = self.settings.host_netns;
        let is_there =
            |(netns, known): &(NsInum, &Namespace)| *netns != host && !known.foreign_userns && has_it(known);
        let mut found = self.namespaces.all().filter(is_there);
        let (Some((netns, _)), None) = (found.next(), found.next()) else { return None };
        Some(self.target(netns, false)).filter(is_owned)
    }

    /// Halves of default routes and those of other tables are kept only to determine which gateway is in use.
    pub(super) fn emit_route(
        &mut self,
        at: BootNs,
        route: &RouteFacts,
        is_there: bool,
        actor: Option<Actor>,
    ) {
        if route.destination.is_some() || route.table != TABLE_MAIN {
            return;
        }
        let target = self.target(route.netns, false);
        let is_containers = target.container.is_some();
        let (kind, severity, verb) = match (is_there, is_containers) {
            (false, true) => (Kind::RouteDeleted, Severity::Notice, "deleted"),
            (false, false) => (Kind::RouteDeleted, Severity::Info, "deleted"),
            // What replaced it is as much of the story as its loss.
            (true, true) => (Kind::RouteAdded, Severity::Info, "added"),
            (true, false) => (Kind::RouteAdded, Severity::Debug, "added"),
        };
        let via = route.gateway.map_or_else(String::new, |gateway| format!(" via {gateway}"));
        let (place, by) = (place_phrase(&target, route.netns), by(actor.as_ref()));
        let message = format!("default route{via}{place} {verb}{by}");
        let event = Event {
            actor: actor.map(Shared::new),
            target: Some(Shared::new(target)),
            route: Some(Box::new(Route {
                destination: "default".into(),
                gateway: route.gateway,
                ifindex: route.ifindex,
                netns: route.netns,
            })),
            resync: self.is_resync,
            ..self.event(at, kind, severity, message)
        };
        self.emit(event);
    }

    /// An address of a pod, of the host's end of its pair, or one of the host's that is a pod's gateway.
    pub(super) fn emit_address(
        &mut self,
        at: BootNs,
        address: &AddressFacts,
        is_there: bool,
        actor: Option<Actor>,
    ) {
        let Some(link) =
            self.namespaces.get(address.netns).and_then(|known| known.links.get(&address.ifindex))
        else {
            return;
        };
        let target = self.link_target(link);
        let is_local = address.address.is_loopback() || is_link_local(address);
        if is_local || !(is_owned(&target) || self.is_gateway_of_host(address)) {
            return;
        }
        let (kind, severity, verb) = match is_there {
            true => (Kind::AddressAdded, Severity::Debug, "added to"),
            // When a pod is deleted, too.
            false => (Kind::AddressDeleted, Severity::Info, "deleted from"),
        };
        let (ifname, by) = (link.ifname.clone(), by(actor.as_ref()));
        let owner = self.place_of(link, &target);
        let prefix = format!("{}/{}", address.address, address.prefix_len);
        let message = format!("address {prefix} {verb} {}{owner}{by}", name(&ifname));
        let event = Event {
            actor: actor.map(Shared::new),
            target: Some(Shared::new(target)),
            address: Some(Box::new(Address {
                address: address.address,
                prefix_len: address.prefix_len,
                ifindex: address.ifindex,
                ifname,
                netns: address.netns,
            })),
            resync: self.is_resync,
            ..self.event(at, kind, severity, message)
        };
        self.emit(event);
    }

    fn place_of(&self, link: &LinkFacts, target: &Target) -> String {
        match link.netns == self.settings.host_netns {
            true => match owner_phrase(target).strip_prefix(" of ") {
                Some(owner) => format!(", the host's end of {owner}"),
                None => " of the host".to_owned(),
            },
            false => place_phrase(target, link.netns),
        }
    }

    /// Whether a container's namespace has its gateway at this address of the host's.
    fn is_gateway_of_host(&self, address: &AddressFacts) -> bool {
        address.netns == self.settings.host_netns
            && self.namespaces.all().any(|(netns, known)| {
                netns != address.netns && known.in_use.iter().any(|(_, gateway)| *gateway == address.address)
            })
    }
}

pub(super) fn is_owned(target: &Target) -> bool {
    target.container.is_some() || target.confirmed_pod().is_some()
}

/// Each interface with IPv6 has one.
fn is_link_local(address: &AddressFacts) -> bool {
    match address.address {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// How the one who did it is told.
pub(super) fn by(actor: Option<&Actor>) -> String {
    actor.map_or_else(String::new, |actor| {
        let likely = if actor.confidence == Confidence::Certain { "" } else { ", likely" };
        format!("{likely} by {}", actor_phrase(actor))
    })
}
