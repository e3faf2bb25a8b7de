//! Events of links: created, changed, moved, deleted; and what a namespace that is read again differs in.

use kevtmon_event::wording::{owner_phrase, place_phrase, target_label};
use kevtmon_event::{Actor, ActorSource, Confidence, Event, Kind, Link, LinkPeer, Severity, Shared, Target};
use kevtmon_observation::{
    BootNs, LinkAct, LinkFacts, LinkOp, LladdrAct, NetnsSnapshot, NsInum, PeerLink, Request, iff,
};
use kevtmon_types::escape::name;

use super::Core;
use super::neighbor::Awaited;
use super::route::by;
use crate::diagnose::ModelChange;
use crate::node::tunnels::Tunnels;

/// How long it is kept that a namespace has ended: what goes with it in others is told right after.
pub(super) const ENDED_NS: u64 = 2_000_000_000;
/// The source of records of who changed a link.
const LINK_HOOK: &str = "hook.link";
/// After such a change nothing passes any more, or no pod finds its gateway.
const CUTTING: [&str; 3] = ["down", "forwarding-off", "proxy-arp-off"];
const ENDED_MAX: usize = 256;
/// What is said of links where only the difference is known: what moves them from one namespace to another was not heard.
const GONE: &str = "gone: it was deleted or moved, unseen";
const NEW: &str = "new: it was created or moved there, unseen";

impl Core {
    /// Applies the snapshot of a namespace. The first one emits no events; each difference in a later one is a change of
    /// which no netlink message was received.
    pub(super) fn snapshot(&mut self, at: BootNs, snapshot: NetnsSnapshot) {
        let netns = snapshot.netns;
        let is_successor = self.namespaces.is_successor(&snapshot);
        if is_successor {
            self.netns_succeeded(at, netns, snapshot.cookie);
        }
        let known = self.namespaces.cookie(netns);
        let is_known = known.is_some() && known == snapshot.cookie;
        let apart = snapshot.cookie.map(|cookie| self.containers.netns_read(netns, cookie, is_known));
        if is_successor {
            self.netns_ended(at, netns);
        }
        for id in apart.into_iter().flatten() {
            self.request(Request::Container { id });
        }
        let is_containers = self.containers.in_netns(netns).is_some();
        let is_host = netns == self.settings.host_netns;
        if !is_host && !self.quota.admits(at, &mut self.namespaces, &snapshot, is_containers) {
            return self.answered(at, &Awaited::Netns(netns), true);
        }
        let is_outdated = snapshot.is_outdated;
        let tunnels = is_host.then(|| Tunnels::of(&snapshot));
        let old = self.namespaces.replace(at, snapshot, !self.ready);
        // Messages may have been lost that these acts belong to.
        self.link_acts.forget(netns);
        if let Some(tunnels) = tunnels {
            self.namespaces.replace_tunnels(at, netns, tunnels);
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
            let (links, routes, addresses) = (new.links.clone(), new.routes.clone(), new.addresses.clone());
            self.is_resync = true;
            for link in old.links.values() {
                match links.get(&link.ifindex) {
                    Some(new) => self.emit_link_change(at, link, new),
                    None => self.emit_link(at, Kind::LinkDeleted, link, &[], GONE, None),
                }
            }
            for link in links.values().filter(|link| !old.links.contains_key(&link.ifindex)) {
                self.emit_link(at, Kind::LinkCreated, link, &[], NEW, None);
            }
            for route in old.routes.iter().filter(|route| !routes.contains(route)) {
                self.emit_route(at, route, false, None);
            }
            for route in routes.iter().filter(|route| !old.routes.contains(route)) {
                self.emit_route(at, route, true, None);
            }
            for address in old.addresses.difference(&addresses) {
                self.emit_address(at, address, false, None);
            }
            for address in addresses.difference(&old.addresses) {
                self.emit_address(at, address, true, None);
            }
            self.is_resync = false;
        }
        if !is_outdated {
            self.answered(at, &Awaited::Netns(netns), true);
        }
        self.diagnose(at, &ModelChange::Netns(netns));
    }

    pub(super) fn netns_gone(&mut self, at: BootNs, netns: NsInum) {
        self.answered(at, &Awaited::Netns(netns), false);
        self.containers.forget_netns(netns);
        self.netns_ended(at, netns);
        // Not where a successor was read: a call may have been made for that one already.
        self.cni.forget_netns(netns);
    }

    fn netns_ended(&mut self, at: BootNs, netns: NsInum) {
        self.namespaces.remove(netns);
        self.link_acts.forget_namespace(netns);
        self.ended_netns.retain(|(ended, _)| ended.saturating_add(ENDED_NS) >= at);
        crate::bounded::push(&mut self.ended_netns, ENDED_MAX, (at, netns));
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
        let there = |link: &LinkFacts| link.peer.as_ref().and_then(|peer| peer.netns);
        let known = self.namespaces.get(link.netns).and_then(|namespace| namespace.links.get(&link.ifindex));
        let known = known.and_then(there);
        // The number is given again: those who have exited had it before what leads there only now.
        if let Some(netns) = there(&link).filter(|netns| known != Some(*netns)) {
            self.containers.forget_exited(netns);
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
            None => {
                // A physical one, or a virtual function of it, comes with its driver, or back from a namespace that ends.
                let verb = if link.kind.is_some() { "created" } else { "appeared" };
                self.emit_link(at, Kind::LinkCreated, &link, &[], verb, None);
            }
        }
    }

    fn link_actor(&mut self, at: BootNs, link: &LinkFacts, op: LinkOp) -> Option<Actor> {
        let cookie = self.namespaces.cookie(link.netns);
        let is_it = |act: &LinkAct| (act.netns, act.ifindex, act.op) == (link.netns, link.ifindex, op);
        let Some((task, confidence)) = self.link_acts.links.take(at, cookie, is_it) else {
            return self.caller_about(link);
        };
        Some(Actor { confidence, ..self.actor(&task, false) })
    }

    /// Who changed the hardware address, if a neighbor entry went with it. Of others who may have set the same one in between,
    /// when no entry was there, nothing is known.
    fn lladdr_actor(&mut self, at: BootNs, link: &LinkFacts) -> Option<Actor> {
        let mac = link.mac.as_ref()?;
        let is_it =
            |act: &LladdrAct| (act.netns, act.ifindex, &act.lladdr) == (link.netns, link.ifindex, mac);
        let (task, _) = self.link_acts.lladdrs.take(at, None, is_it)?;
        Some(Actor { confidence: Confidence::Likely, ..self.actor(&task, false) })
    }

    /// Where the hook of links does not work: the plugin whose call for the network namespace of one of its ends is under way.
    fn caller_about(&self, link: &LinkFacts) -> Option<Actor> {
        // When that was done is not known.
        if self.is_resync {
            return None;
        }
        self.statuses.get(LINK_HOOK).filter(|hook| !hook.up)?;
        let other = link.peer.as_ref().and_then(|peer| peer.netns);
        let ends = [Some(link.netns), other].into_iter().flatten();
        let mut pods = ends.filter(|netns| *netns != self.settings.host_netns);
        let call = pods.find_map(|netns| self.cni.only_call_in(netns))?;
        Some(Actor {
            source: ActorSource::CniWindow,
            confidence: Confidence::Likely,
            ..(*call.actor).clone()
        })
    }

    /// More came than is kept of a namespace, or something of it is not known: it is read again, unless there was no room for it of
    /// late. That there is too much in it is told then.
    pub(super) fn overfull(&mut self, at: BootNs, netns: NsInum) {
        if !self.quota.is_refused(at, netns) {
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
        let actor = match change[..] {
            ["mac"] => self.lladdr_actor(at, new),
            _ if is_by_somebody => self.link_actor(at, new, op).filter(|_| is_all),
            _ => None,
        };
        let verb = format!("changed: {}", change.join(", "));
        let mut event = self.link_event(at, Kind::LinkChanged, new, &change, &verb, actor);
        if let Some(link) = event.link.as_mut().filter(|_| change.contains(&"mac")) {
            link.old_mac = old.mac.as_ref().map(ToString::to_string);
        }
        self.emit(event);
    }

    pub(super) fn link_gone(&mut self, at: BootNs, netns: NsInum, ifindex: u32, moved_to: Option<PeerLink>) {
        self.link_acts.set_told(at);
        if netns == self.settings.host_netns {
            self.host_sysctls.remove(ifindex);
        }
        let Some(link) = self.namespaces.remove_link(at, netns, ifindex) else { return };
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

    pub(super) fn emit_link(
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

    pub(super) fn link_event(
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
        let is_cut = target_label(&target).is_some()
            && target.userns.is_none()
            && CUTTING.iter().any(|cutting| change.contains(cutting));
        let severity = match kind {
            Kind::LinkChanged | Kind::LinkProxyArp if target.container.is_none() && !is_cut => {
                Severity::Debug
            }
            _ => Severity::Info,
        };
        let what = link.kind.as_deref().unwrap_or("link");
        let is_on_host = link.netns == self.settings.host_netns;
        let has_owner = target.pod.is_some() || target.container.is_some();
        let owner = match target_label(&target) {
            // The namespace that it leads to is not the one that it is in.
            Some(there) if is_on_host && !has_owner => format!(" with its other end in {there}"),
            _ if is_on_host => owner_phrase(&target),
            _ => place_phrase(&target, link.netns),
        };
        let by = by(actor.as_ref());
        let message = format!("{what} {}{owner} {verb}{by}", name(&link.ifname));
        Event {
            actor: actor.map(Shared::new),
            target: Some(Shared::new(target)),
            link: Some(Box::new(Link {
                up: matches!(kind, Kind::LinkCreated | Kind::LinkChanged | Kind::LinkProxyArp)
                    .then_some(link.flags & iff::UP != 0),
                change: change.iter().map(|change| (*change).to_owned()).collect(),
                ..self.link_state(link)
            })),
            resync: self.is_resync,
            ..self.event(at, kind, severity, message)
        }
    }

    /// The host end of a veth pair belongs to the owner of the other end.
    pub(super) fn link_target(&self, link: &LinkFacts) -> Target {
        let peer = link.peer.as_ref().and_then(|peer| peer.netns);
        match peer {
            Some(netns) if link.netns == self.settings.host_netns => self.target(netns, false),
            _ => self.target(link.netns, false),
        }
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
