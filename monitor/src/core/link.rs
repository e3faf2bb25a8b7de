//! Links and routes: veth lifecycle, and the routes that make a gateway.

use super::Core;
use super::join::whose;
use crate::event::{Event, Kind, Link, LinkPeer, Route, Severity, Target};
use crate::observation::{BootNs, LinkFacts, NsInum, Request, RouteFacts, iff};

impl Core {
    pub(super) fn link(&mut self, at: BootNs, link: LinkFacts) {
        if self.namespaces.get(link.netns).is_none() {
            // Its snapshot will hold the link.
            return self.request(Request::Netns { netns: link.netns });
        }
        let old = self.namespaces.put_link(at, link.clone());
        let change = old.as_ref().map_or_else(Vec::new, |old| changes(old, &link));
        if old.is_some() && change.is_empty() {
            return;
        }
        let kind = if old.is_some() { Kind::LinkChanged } else { Kind::LinkCreated };
        let verb = if old.is_some() { format!("changed: {}", change.join(", ")) } else { "created".into() };
        self.tell_link(at, kind, &link, &change, &verb);
    }

    pub(super) fn link_gone(&mut self, at: BootNs, netns: NsInum, ifindex: u32) {
        if let Some(link) = self.namespaces.remove_link(netns, ifindex) {
            self.tell_link(at, Kind::LinkDeleted, &link, &[], "deleted");
        }
    }

    pub(super) fn route(&mut self, at: BootNs, route: RouteFacts) {
        if route.destination.is_none() && self.namespaces.put_route(route.clone()) {
            self.tell_route(at, Kind::RouteAdded, &route, "added");
        }
    }

    pub(super) fn route_gone(&mut self, at: BootNs, route: &RouteFacts) {
        if self.namespaces.remove_route(at, route) {
            self.tell_route(at, Kind::RouteDeleted, route, "deleted");
        }
    }

    fn tell_link(&mut self, at: BootNs, kind: Kind, link: &LinkFacts, change: &[&str], verb: &str) {
        let target = self.link_target(link);
        let severity = match kind {
            Kind::LinkChanged if target.container.is_none() => Severity::Debug,
            _ => Severity::Info,
        };
        let what = link.kind.as_deref().unwrap_or("link");
        let message = format!("{what} {}{} {verb}", link.ifname, whose(&target));
        let peer = link.peer.as_ref().map(|peer| LinkPeer {
            ifindex: peer.ifindex,
            netns: peer.netns,
            ifname: peer
                .netns
                .and_then(|netns| self.namespaces.get(netns)?.links.get(&peer.ifindex))
                .map(|link| link.ifname.clone()),
        });
        let event = Event {
            target: Some(target),
            link: Some(Link {
                ifindex: link.ifindex,
                ifname: link.ifname.clone(),
                kind: link.kind.clone(),
                netns: link.netns,
                peer,
                master: link.master,
                mac: link.mac.as_ref().map(ToString::to_string),
                up: (kind != Kind::LinkDeleted).then_some(link.flags & iff::UP != 0),
                change: change.iter().map(|change| (*change).to_owned()).collect(),
            }),
            ..self.event(at, kind, severity, message)
        };
        self.emit(event);
    }

    /// A host's veth is whose the other end is.
    fn link_target(&self, link: &LinkFacts) -> Target {
        let peer = link.peer.as_ref().and_then(|peer| peer.netns);
        match peer {
            Some(netns) if link.netns == self.settings.host_netns => self.target(netns, false),
            _ => self.target(link.netns, false),
        }
    }

    fn tell_route(&mut self, at: BootNs, kind: Kind, route: &RouteFacts, verb: &str) {
        let target = self.target(route.netns, false);
        let severity = match kind {
            Kind::RouteDeleted if target.container.is_some() => Severity::Notice,
            Kind::RouteDeleted => Severity::Info,
            _ => Severity::Debug,
        };
        let via = route.gateway.map_or_else(String::new, |gateway| format!(" via {gateway}"));
        let message = format!("default route{via}{} {verb}", whose(&target));
        let event = Event {
            target: Some(target),
            route: Some(Route {
                destination: "default".into(),
                gateway: route.gateway,
                ifindex: route.ifindex,
                netns: route.netns,
            }),
            ..self.event(at, kind, severity, message)
        };
        self.emit(event);
    }
}

/// What differs, in the words of the schema.
fn changes(old: &LinkFacts, new: &LinkFacts) -> Vec<&'static str> {
    let mut changes = Vec::new();
    let flag = |flag: u32| (old.flags & flag != 0, new.flags & flag != 0);
    match flag(iff::UP) {
        (false, true) => changes.push("up"),
        (true, false) => changes.push("down"),
        _ => {}
    }
    match flag(iff::LOWER_UP) {
        (false, true) => changes.push("carrier-up"),
        (true, false) => changes.push("carrier-down"),
        _ => {}
    }
    if old.mac != new.mac {
        changes.push("mac");
    }
    if old.ifname != new.ifname {
        changes.push("name");
    }
    if old.master != new.master {
        changes.push("master");
    }
    // A message that does not tell the other end is no change of it.
    if new.peer.as_ref().is_some_and(|peer| old.peer.as_ref().is_some_and(|old| old != peer)) {
        changes.push("peer");
    }
    changes
}
