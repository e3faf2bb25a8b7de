//! Events of links and default routes: created, changed, moved, deleted.

use super::Core;
use super::neighbor::Awaited;
use crate::diagnose::ModelChange;
use crate::escape::name;
use crate::event::wording::{actor_phrase, owner_phrase, place_phrase, target_label};
use crate::event::{Actor, Confidence, Event, Kind, Link, LinkPeer, Route, Severity, Target};
use crate::node::routing::is_default;
use crate::observation::{
    AddressFacts, BootNs, LinkFacts, LinkOp, NetnsSnapshot, NsInum, PeerLink, Request, RouteFacts,
    TABLE_MAIN, iff,
};

/// How long it is kept that a namespace has ended: what goes with it in others is told right after.
pub(super) const ENDED_NS: u64 = 2_000_000_000;
/// Namespaces that ended of late.
const ENDED_MAX: usize = 256;

impl Core {
    /// Applies the snapshot of a namespace. The first one emits no events; each difference in a later one is a change of
    /// which no netlink message was received.
    pub(super) fn snapshot(&mut self, at: BootNs, snapshot: NetnsSnapshot) {
        let netns = snapshot.netns;
        if self.namespaces.is_successor(&snapshot) {
            // What waits is of the one before.
            self.answered(at, &Awaited::Netns(netns), false);
            self.netns_gone(at, netns);
        }
        let is_containers = self.containers.in_netns(netns).is_some();
        let is_host = netns == self.settings.host_netns;
        if !is_host && !self.crowd.admits(at, &mut self.namespaces, &snapshot, is_containers) {
            return self.answered(at, &Awaited::Netns(netns), true);
        }
        let is_outdated = snapshot.is_outdated;
        let old = self.namespaces.replace(at, snapshot, !self.ready);
        // Messages may have been lost that these acts belong to.
        self.link_acts.forget(netns);
        if is_host {
            self.namespaces.set_unbounded(netns);
        }
        let previous = self.previous_entries.extract_if(.., |entry| entry.netns == netns);
        for entry in previous.collect::<Vec<_>>() {
            if self.namespaces.compare_previous(at, &entry)
                && let Some(fault) = &entry.suspected
            {
                self.diagnose(at, &ModelChange::Suspected(fault));
            }
        }
        if let (Some(old), Some(new)) = (old, self.namespaces.get(netns)) {
            let (links, routes) = (new.links.clone(), new.routes.clone());
            for link in old.links.values() {
                match links.get(&link.ifindex) {
                    Some(new) => self.emit_link_change(at, link, new),
                    None => self.emit_link(at, Kind::LinkDeleted, link, &[], "deleted", None),
                }
            }
            for link in links.values().filter(|link| !old.links.contains_key(&link.ifindex)) {
                self.emit_link(at, Kind::LinkCreated, link, &[], "created", None);
            }
            for route in old.routes.iter().filter(|route| !routes.contains(route)) {
                self.emit_route(at, Kind::RouteDeleted, route, "deleted");
            }
            for route in routes.iter().filter(|route| !old.routes.contains(route)) {
                self.emit_route(at, Kind::RouteAdded, route, "added");
            }
        }
        if !is_outdated {
            self.answered(at, &Awaited::Netns(netns), true);
        }
        self.diagnose(at, &ModelChange::Netns(netns));
    }

    pub(super) fn netns_gone(&mut self, at: BootNs, netns: NsInum) {
        self.namespaces.remove(netns);
        self.containers.forget_netns(netns);
        self.link_acts.forget_namespace(netns);
        self.ended_netns.retain(|(ended, _)| ended.saturating_add(ENDED_NS) >= at);
        self.ended_netns.push_back((at, netns));
        if self.ended_netns.len() > ENDED_MAX {
            self.ended_netns.pop_front();
        }
        self.diagnose(at, &ModelChange::NetnsGone(netns));
    }

    pub(super) fn link(&mut self, at: BootNs, mut link: LinkFacts) {
        self.link_acts.set_told(at);
        let Some(namespace) = self.namespaces.get(link.netns) else {
            // The snapshot will include the link.
            return self.overfull(at, link.netns);
        };
        // Messages about a veth pair that is being deleted no longer name the peer.
        if link.peer.is_none() {
            link.peer = namespace.links.get(&link.ifindex).and_then(|old| old.peer.clone());
        }
        // A namespace that ends has no number any more.
        if link.lower.as_ref().is_some_and(|lower| lower.netns.is_none()) {
            let known = namespace.links.get(&link.ifindex).and_then(|old| old.lower.clone());
            let is_same =
                |known: &PeerLink| link.lower.as_ref().is_some_and(|new| new.ifindex == known.ifindex);
            link.lower = known.filter(is_same).or(link.lower);
        }
        if !self.namespaces.has_room_for(&link) {
            return self.overfull(at, link.netns);
        }
        match self.namespaces.put_link(at, link.clone()) {
            Some(old) => {
                let becomes_ready = old.flags & iff::RUNNING == 0 && link.flags & iff::RUNNING != 0;
                if becomes_ready && self.namespaces.has_dead_gateway(link.netns, link.ifindex) {
                    self.namespaces.set_stale(at, link.netns, false);
                    self.overfull(at, link.netns);
                }
                self.emit_link_change(at, &old, &link);
            }
            None => self.emit_link(at, Kind::LinkCreated, &link, &[], "created", None),
        }
    }

    /// Who did it, if that is known.
    fn link_actor(&mut self, at: BootNs, link: &LinkFacts, op: LinkOp) -> Option<Actor> {
        let (task, confidence) = self.link_acts.take(at, link.netns, link.ifindex, op)?;
        Some(Actor { confidence, ..self.actor(&task, false) })
    }

    pub(super) fn address(&mut self, at: BootNs, address: AddressFacts) {
        let netns = address.netns;
        if !self.namespaces.put_address(at, address) {
            self.overfull(at, netns);
        }
        self.diagnose(at, &ModelChange::Addresses(netns));
    }

    pub(super) fn address_gone(&mut self, at: BootNs, address: &AddressFacts) {
        self.namespaces.remove_address(at, address);
        self.diagnose(at, &ModelChange::Addresses(address.netns));
    }

    /// More came than is kept of a namespace, or something of it is not known: it is read again, unless there was no room for it of
    /// late. That there is too much in it is told then.
    fn overfull(&mut self, at: BootNs, netns: NsInum) {
        if !self.crowd.is_refused(at, netns) {
            self.request(Request::Netns { netns });
        }
    }

    fn emit_link_change(&mut self, at: BootNs, old: &LinkFacts, new: &LinkFacts) {
        let change = changes(old, new);
        if change.is_empty() {
            return;
        }
        // The carrier follows; what else has changed may be another one's doing.
        let is_all = change.iter().all(|one| ["up", "down", "carrier-up", "carrier-down"].contains(one));
        let op = if change.contains(&"down") { LinkOp::Closed } else { LinkOp::Opened };
        let is_by_somebody = change.contains(&"up") || change.contains(&"down");
        let actor = if is_by_somebody { self.link_actor(at, new, op) } else { None };
        let verb = format!("changed: {}", change.join(", "));
        self.emit_link(at, Kind::LinkChanged, new, &change, &verb, actor.filter(|_| is_all));
    }

    pub(super) fn link_gone(&mut self, at: BootNs, netns: NsInum, ifindex: u32, moved_to: Option<PeerLink>) {
        self.link_acts.set_told(at);
        let Some(link) = self.namespaces.remove_link(at, netns, ifindex) else {
            return;
        };
        match moved_to {
            Some(peer) => {
                self.namespaces.set_left(at, netns, ifindex);
                let target = peer.netns.map(|netns| self.target(netns, false));
                let verb = match target.as_ref().and_then(|target| Some((target, target_label(target)?))) {
                    Some((target, label)) if target.container.is_none() && target.pod.is_none() => {
                        format!("moved to {label}")
                    }
                    Some((_, label)) => format!("moved to the namespace of {label}"),
                    None => "moved to another namespace".to_owned(),
                };
                let actor = self.link_actor(at, &link, LinkOp::Moved);
                let mut event = self.link_event(at, Kind::LinkMoved, &link, &["netns"], &verb, actor);
                if let Some(link) = &mut event.link {
                    link.moved_to = Some(LinkPeer { ifindex: peer.ifindex, netns: peer.netns, ifname: None });
                }
                self.emit(event);
            }
            None => {
                let actor = self.link_actor(at, &link, LinkOp::Deleted);
                self.emit_link(at, Kind::LinkDeleted, &link, &[], "deleted", actor);
            }
        }
    }

    pub(super) fn route(&mut self, at: BootNs, route: RouteFacts) {
        self.tell_host_route(at, &route, true);
        if is_default(&route) && self.namespaces.put_route(at, route.clone()) {
            self.emit_route(at, Kind::RouteAdded, &route, "added");
        }
    }

    pub(super) fn route_gone(&mut self, at: BootNs, route: &RouteFacts) {
        self.tell_host_route(at, route, false);
        if self.namespaces.remove_route(at, route) {
            self.emit_route(at, Kind::RouteDeleted, route, "deleted");
        }
    }

    /// Routes to single addresses are those to pods.
    fn tell_host_route(&mut self, at: BootNs, route: &RouteFacts, is_there: bool) {
        let Some((address, prefix_len)) = route.destination else { return };
        let bits = if address.is_ipv4() { 32 } else { 128 };
        if prefix_len == bits && route.netns == self.settings.host_netns {
            self.diagnose(at, &ModelChange::HostRoute { address, is_there });
        }
    }

    fn emit_link(
        &mut self,
        at: BootNs,
        kind: Kind,
        link: &LinkFacts,
        change: &[&str],
        verb: &str,
        actor: Option<Actor>,
    ) {
        let event = self.link_event(at, kind, link, change, verb, actor);
        self.emit(event);
    }

    fn link_event(
        &self,
        at: BootNs,
        kind: Kind,
        link: &LinkFacts,
        change: &[&str],
        verb: &str,
        actor: Option<Actor>,
    ) -> Event {
        let target = self.link_target(link);
        // Of what a story is told, without any runtime too, it is no detail that nothing passes any more.
        let is_cut = target_label(&target).is_some() && target.userns.is_none() && change.contains(&"down");
        let severity = match kind {
            Kind::LinkChanged if target.container.is_none() && !is_cut => Severity::Debug,
            _ => Severity::Info,
        };
        let what = link.kind.as_deref().unwrap_or("link");
        let is_on_host = link.netns == self.settings.host_netns;
        let owner = if is_on_host { owner_phrase(&target) } else { place_phrase(&target, link.netns) };
        // The namespace that it leads to is not the one that it is in.
        let owner = match owner.strip_prefix(" in ").filter(|_| is_on_host) {
            Some(there) => format!(" with its other end in {there}"),
            None => owner,
        };
        let by = actor.as_ref().map_or_else(String::new, |actor| {
            let likely = if actor.confidence == Confidence::Certain { "" } else { ", likely" };
            format!("{likely} by {}", actor_phrase(actor))
        });
        let message = format!("{what} {}{owner} {verb}{by}", name(&link.ifname));
        Event {
            actor: actor.map(Box::new),
            target: Some(Box::new(target)),
            link: Some(Box::new(Link {
                up: matches!(kind, Kind::LinkCreated | Kind::LinkChanged)
                    .then_some(link.flags & iff::UP != 0),
                change: change.iter().map(|change| (*change).to_owned()).collect(),
                ..self.link_state(link)
            })),
            ..self.event(at, kind, severity, message)
        }
    }

    /// The host end of a veth pair belongs to the owner of the other end.
    fn link_target(&self, link: &LinkFacts) -> Target {
        let peer = link.peer.as_ref().and_then(|peer| peer.netns);
        match peer {
            Some(netns) if link.netns == self.settings.host_netns => self.target(netns, false),
            _ => self.target(link.netns, false),
        }
    }

    /// Halves of default routes and those of other tables are kept only to determine which gateway is in use.
    fn emit_route(&mut self, at: BootNs, kind: Kind, route: &RouteFacts, verb: &str) {
        if route.destination.is_some() || route.table != TABLE_MAIN {
            return;
        }
        let target = self.target(route.netns, false);
        let severity = match kind {
            Kind::RouteDeleted if target.container.is_some() => Severity::Notice,
            Kind::RouteDeleted => Severity::Info,
            // What replaced it is as much of the story as its loss.
            Kind::RouteAdded if target.container.is_some() => Severity::Info,
            _ => Severity::Debug,
        };
        let via = route.gateway.map_or_else(String::new, |gateway| format!(" via {gateway}"));
        let message = format!("default route{via}{} {verb}", place_phrase(&target, route.netns));
        let event = Event {
            target: Some(Box::new(target)),
            route: Some(Box::new(Route {
                destination: "default".into(),
                gateway: route.gateway,
                ifindex: route.ifindex,
                netns: route.netns,
            })),
            ..self.event(at, kind, severity, message)
        };
        self.emit(event);
    }
}

/// The differences, by their names in the event schema.
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
    // The attribute may be absent from a message; that is no change.
    if new.peer.as_ref().is_some_and(|peer| old.peer.as_ref().is_some_and(|old| old != peer)) {
        changes.push("peer");
    }
    changes
}
