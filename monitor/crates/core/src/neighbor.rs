//! Events of neighbor entries: what happened to the entry, the actor, the owner of the namespace.

mod elsewhere;

use std::fmt::Write as _;

use kevtmon_event::wording::{actor_phrase, cause_phrase, place_phrase};
use kevtmon_event::{Actor, Confidence, Event, Kind, Neighbor, Severity, Shared, Target, UserNamespace};
use kevtmon_observation::cgroup;
use kevtmon_observation::{
    BootNs, ContainerFacts, NeighborCause, NeighborChange, NeighborCreator, NeighborKey, NeighborOp, Request,
    Source, TaskFacts,
};
use kevtmon_types::escape::name;
use serde::{Deserialize, Serialize};

use super::link::ENDED_NS;
use super::{Core, NsInum};
use crate::diagnose::ModelChange;
use crate::node::containers::is_live;

/// An event is held back this long while the core awaits what it needs to name actor and target.
const PENDING_TIMEOUT_NS: u64 = 900_000_000;
/// The same for a snapshot without which nothing could be said of it: the first of a namespace, or one that shows the
/// routes. On a machine that has much else to do it comes late, but it comes, or that there is none.
const SNAPSHOT_TIMEOUT_NS: u64 = 3_000_000_000;
/// The owner of a namespace that was read so recently is not looked for again.
const OWNER_KNOWN_NS: u64 = 1_000_000_000;
/// More than this are pending only in an event storm; further ones are emitted at once, with what is known.
const PENDING_MAX: usize = 1024;

/// Length of most messages, in bytes.
const MESSAGE: usize = 192;

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Awaited {
    Netns(NsInum),
    /// A container that the runtime has not reported yet.
    Container(String),
    /// Whether the container's init process still exists.
    Process(u32),
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct PendingChange {
    at: BootNs,
    #[serde(default, skip_serializing_if = "Source::is_daemon")]
    source: Source,
    change: NeighborChange,
    requested: Requested,
    task: Option<Box<TaskFacts>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RequestState {
    Sent,
    Answered,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Requested {
    /// Not requested, but known when the change was observed: the namespace of the peer that took the link along.
    ended_netns: Option<NsInum>,
    /// Whether it was that of the lower device.
    ended_lower: bool,
    netns: Option<RequestState>,
    container: bool,
    /// Whether the container's process exists, once that was answered.
    process_alive: Option<bool>,
}

impl Core {
    /// A process makes many entries of a table that is nearly full.
    pub(super) fn neighbor_creator(&mut self, at: BootNs, creator: &NeighborCreator) {
        let actor = Actor { confidence: Confidence::Likely, ..self.actor(&creator.actor, false) };
        self.diagnose(at, &ModelChange::NeighborCreator { creator, actor: &Shared::new(actor) });
    }

    pub(super) fn neighbor(&mut self, at: BootNs, mut change: NeighborChange) {
        let is_here = !self.is_elsewhere(&change);
        if is_here {
            // Before a snapshot that it awaits shows the interface as it is afterwards.
            change.cause = self.consistent_cause(at, &change);
        }
        if is_here && change.cause != NeighborCause::NetnsExit {
            self.namespaces.put_neighbor(at, &change);
        }
        // What the protocol does every day: only its end may be worth knowing.
        if change.op == NeighborOp::Added && !is_by_request(&change) {
            if !is_here {
                return;
            }
            return self.diagnose(at, &ModelChange::Resolved(change.key.netns));
        }
        let (ended_netns, ended_lower) = self.ended_netns(at, &change).unzip();
        let ended_lower = ended_lower.unwrap_or(false);
        let requested = Requested { ended_netns, ended_lower, ..Requested::default() };
        self.hold_or_emit(at, at, change, requested);
    }

    /// The namespace whose end took a link along, and whether that of its lower device. A process is named for a link that
    /// it deletes, so that one of a pair goes by itself only with the other end. The device below may have gone alone
    /// (hardware that is unplugged, or it went with something else): it has to be known that its namespace has just ended.
    fn ended_netns(&self, at: BootNs, change: &NeighborChange) -> Option<(NsInum, bool)> {
        if change.cause != NeighborCause::LinkDeleted || change.actor.is_some() || self.is_elsewhere(change) {
            return None;
        }
        let link = self.namespaces.get(change.key.netns)?.link_with_other(at, change.key.ifindex)?;
        // Its number may be another one's later.
        let is_ended = |netns: &NsInum| {
            let mut ended = self.ended_netns.iter();
            ended.any(|(when, ended)| ended == netns && when.abs_diff(at) <= ENDED_NS)
        };
        let netns = match (&link.peer, &link.lower) {
            (Some(peer), _) => peer.netns?,
            (None, lower) => lower.as_ref()?.netns.filter(is_ended)?,
        };
        // The host's namespace never ends.
        let is_other = netns != link.netns && netns != self.settings.host_netns;
        is_other.then_some((netns, link.peer.is_none()))
    }

    /// Resumes the changes that awaited this answer; `positive`: the namespace, container or process exists.
    pub(super) fn answered(&mut self, now: BootNs, answer: &Awaited, positive: bool) {
        for pending in self.pending_neighbors.take_answered(answer) {
            self.resume(now, pending, answer, positive);
        }
    }

    fn resume(&mut self, now: BootNs, mut pending: PendingChange, answer: &Awaited, positive: bool) {
        match answer {
            Awaited::Process(_) => pending.requested.process_alive = Some(positive),
            Awaited::Netns(netns) if positive => {
                // What changed meanwhile is in the next reading; nobody can make the node read for ever.
                let again = self
                    .namespaces
                    .get(*netns)
                    .is_some_and(|namespace| namespace.is_stale() && !namespace.foreign_userns);
                pending.requested.netns = (!again).then_some(RequestState::Answered);
            }
            Awaited::Netns(_) | Awaited::Container(_) => {}
        }
        self.take_up(pending.source, pending.task.as_deref());
        // Something else may be missing still.
        self.hold_or_emit(now, pending.at, pending.change, pending.requested);
    }

    pub(super) fn emit_overdue(&mut self, now: BootNs) {
        for pending in self.pending_neighbors.take_overdue(now) {
            self.take_up(pending.source, pending.task.as_deref());
            self.emit_neighbor(pending.at, &pending.change, pending.requested);
        }
    }

    fn hold_or_emit(&mut self, now: BootNs, at: BootNs, change: NeighborChange, mut requested: Requested) {
        let namespace = self.namespaces.get(change.key.netns);
        // Namespaces that are not known, or that users made, take no places from the others.
        let is_known = namespace.is_some_and(|namespace| !namespace.foreign_userns);
        let most = if is_known { PENDING_MAX } else { PENDING_MAX / 2 };
        let room = self.pending_neighbors.len() < most;
        let is_foreign = namespace.is_some_and(|namespace| namespace.foreign_userns);
        let deadline = |awaited: &Awaited| {
            let is_untold = || !is_foreign && self.was_gateway(at, &change).is_none();
            let is_patient = !matches!(awaited, Awaited::Container(_)) && is_untold();
            at.saturating_add(if is_patient { SNAPSHOT_TIMEOUT_NS } else { PENDING_TIMEOUT_NS })
        };
        // In a storm nothing is looked for that could not be waited for.
        let awaited = room.then(|| self.missing(at, &change, requested)).flatten();
        let awaited = awaited.map(|awaited| (deadline(&awaited), awaited));
        let Some((deadline, awaited)) = awaited.filter(|(deadline, _)| now < *deadline) else {
            return self.emit_neighbor(at, &change, requested);
        };
        let already_requested = self.pending_neighbors.is_awaited(&awaited);
        match &awaited {
            Awaited::Netns(netns) => {
                requested.netns = Some(RequestState::Sent);
                if !already_requested {
                    self.request(Request::Netns { netns: *netns });
                }
            }
            Awaited::Container(_) => requested.container = true,
            Awaited::Process(tgid) => {
                let owner = self.owner_of(change.key.netns).filter(|owner| owner.tgid == Some(*tgid));
                let started_ns = owner.and_then(|owner| owner.started_ns);
                if !already_requested {
                    self.request(Request::ProcessState { tgid: *tgid, started_ns });
                }
            }
        }
        let task = change.actor.as_ref().and_then(|actor| self.tasks.copy(actor));
        let pending = PendingChange { at, source: self.source, change, requested, task };
        self.pending_neighbors.push(deadline, awaited, pending);
    }

    /// The next thing that is missing to name actor and target of a change correctly.
    fn missing(&self, at: BootNs, change: &NeighborChange, requested: Requested) -> Option<Awaited> {
        let netns = change.key.netns;
        if netns == self.settings.host_netns {
            if requested.netns.is_none() && self.is_doubted_on_host(change) {
                return Some(Awaited::Netns(netns));
            }
        } else if requested.netns.is_none()
            && !self.quota.is_refused(at, netns)
            // None overtakes one of its namespace that waits.
            && (self.is_elsewhere(change)
                || !self.is_sure_of_gateway(at, change) && !self.is_left_alone(netns)
                || !self.is_sure_of_owner(at, change)
                || self.pending_neighbors.is_awaited(&Awaited::Netns(netns)))
        {
            return Some(Awaited::Netns(netns));
        }
        // A runtime deletes a container's links after its processes have exited, and that is no fault. Whether
        // they have is known sooner and more reliably from the process than from the runtime's own events.
        let owner = self.owner_of(netns).filter(|owner| is_live(owner.state) && !self.is_elsewhere(change));
        if let Some(tgid) = owner.and_then(|owner| owner.tgid)
            && requested.process_alive.is_none()
            && change.op == NeighborOp::Deleted
            && !matches!(change.cause, NeighborCause::Admin | NeighborCause::NetnsExit)
        {
            return Some(Awaited::Process(tgid));
        }
        let task = change.actor.as_ref().and_then(|actor| self.tasks.get(actor))?;
        let id = cgroup::container_id(task.cgroup.as_deref()?)?;
        (!requested.container && self.runtimes().is_any() && self.containers.get(id).is_none())
            .then(|| Awaited::Container(id.to_owned()))
    }

    /// Whether a namespace is not read again for each event although nothing reports its changes: any user can make as many
    /// as they like. One with too many routes would be known no better.
    fn is_left_alone(&self, netns: NsInum) -> bool {
        self.namespaces.get(netns).is_some_and(|namespace| {
            namespace.unheard && namespace.foreign_userns || namespace.has_omitted_routes()
        })
    }

    /// Whether the entry was a gateway's when it changed, or none that is waited for.
    fn was_gateway(&self, at: BootNs, change: &NeighborChange) -> Option<bool> {
        let NeighborKey { netns, ifindex, address } = change.key;
        let namespace = self.namespaces.get(netns).filter(|_| !self.is_elsewhere(change))?;
        let was = namespace.was_gateway(at, ifindex, address, is_by_request(change));
        // Of the host's routes none is waited for but those that are known.
        let is_host = netns == self.settings.host_netns;
        let is_known = || namespace.is_gateway(at, ifindex, address, is_by_request(change));
        was.or_else(|| (is_host && !is_known()).then_some(false))
    }

    /// Whether routes of the host's namespace, which is large, have to be read again to judge an entry.
    fn is_doubted_on_host(&self, change: &NeighborChange) -> bool {
        let NeighborKey { netns, ifindex, address } = change.key;
        self.namespaces
            .get(netns)
            .is_some_and(|host| host.is_stale() && host.in_use.contains(&(ifindex, address)))
    }

    /// Whether the model is certain about the address being a gateway or not. A route to it is proof, unless routes change
    /// unseen; that it is none is certain only where no recent change can be missing from the model.
    fn is_sure_of_gateway(&self, at: BootNs, change: &NeighborChange) -> bool {
        !self.is_elsewhere(change)
            && self.namespaces.get(change.key.netns).is_some_and(|namespace| {
                let key = change.key;
                let was = namespace.was_gateway(at, key.ifindex, key.address, is_by_request(change));
                !namespace.unheard
                    && (was == Some(true) || was == Some(false) && namespace.is_settled(at, key.ifindex))
            })
    }

    /// Whether it is known if a process lives in the namespace, and which, of a gateway that may be lost. A runtime reports
    /// its containers; without one a look that is not older than a second has to do.
    fn is_sure_of_owner(&self, at: BootNs, change: &NeighborChange) -> bool {
        let NeighborKey { netns, ifindex, address } = change.key;
        let Some(namespace) = self.namespaces.get(netns) else { return false };
        !matches!(change.op, NeighborOp::Deleted | NeighborOp::Changed)
            || change.cause == NeighborCause::NetnsExit
            || namespace.foreign_userns
            || namespace.read.saturating_add(OWNER_KNOWN_NS) > at
            || self.owner_of(netns).is_some()
            || !namespace.is_gateway(at, ifindex, address, is_by_request(change))
    }

    fn emit_neighbor(&mut self, at: BootNs, change: &NeighborChange, requested: Requested) {
        let key = change.key;
        if self.is_elsewhere(change) {
            return self.emit_of_unknown(at, change, requested);
        }
        let mut target = self.target(key.netns, requested.netns == Some(RequestState::Answered));
        // Known of one that was gone before it could be read, too.
        if change.netns_of_user && target.container.is_none() {
            target.userns = Some(UserNamespace::Other);
        }
        let known = key.netns == self.settings.host_netns
            || requested.netns == Some(RequestState::Answered)
            || self.is_sure_of_gateway(at, change);
        let told = || {
            let namespace = self.namespaces.get(key.netns)?;
            namespace.was_gateway(at, key.ifindex, key.address, is_by_request(change))
        };
        let is_tunnels = self.is_tunnels(key);
        let gateway = if is_tunnels { Some(true) } else { known.then(told).flatten() };
        let teardown = self.is_teardown(change, requested);
        let cause = self.checked_cause(at, change);
        let actor = change
            .actor
            .as_ref()
            .filter(|_| !teardown || is_by_request(change))
            .map(|task| self.actor(task, requested.container));
        // An agent replaces that of a node which came back with another address.
        let repaired = change.op == NeighborOp::Changed && (is_tunnels || self.is_repair(change));
        let (kind, severity) = match (change.op, gateway == Some(true)) {
            (NeighborOp::Added, _) => (Kind::NeighborAdded, Severity::Info),
            (NeighborOp::Deleted, _) if teardown || cause == NeighborCause::NetnsExit => {
                (Kind::NeighborDeleted, Severity::Debug)
            }
            // So it is when its node leaves the cluster: whether anything is lost is seen once its routes are.
            (NeighborOp::Deleted, true) if !is_tunnels => (Kind::NeighborDeleted, Severity::Warning),
            (NeighborOp::Deleted, _) => (Kind::NeighborDeleted, Severity::Notice),
            (NeighborOp::Changed, true) if !repaired => (Kind::NeighborChanged, Severity::Warning),
            (NeighborOp::Changed, _) => (Kind::NeighborChanged, Severity::Notice),
            (NeighborOp::Failed, true) => (Kind::NeighborFailed, Severity::Warning),
            (NeighborOp::Failed, false) => (Kind::NeighborFailed, Severity::Debug),
        };
        // What users do in a namespace of their own concerns nobody else.
        let severity = if target.is_foreign() { severity.min(Severity::Notice) } else { severity };
        let by = actor.as_ref().map(actor_phrase);
        let reason = (gateway == Some(true)).then(|| match change.op {
            NeighborOp::Added => None,
            NeighborOp::Deleted => Some("missing"),
            NeighborOp::Failed => Some("failed"),
            // An entry that lost NUD_PERMANENT still has the right address until it ages out.
            NeighborOp::Changed => change.new_lladdr.as_ref().filter(|_| !repaired).map(|_| "wrong-lladdr"),
        });
        let neighbor = Neighbor {
            reason: reason.flatten().map(str::to_owned),
            ended_netns: requested.ended_netns,
            ended_lower: requested.ended_lower,
            link_moved: cause == NeighborCause::LinkDown
                && self.namespaces.get(key.netns).is_some_and(|known| known.was_left(at, key.ifindex)),
            after_exit: teardown,
            ..neighbor(change, cause, gateway)
        };
        let message = message(change, &neighbor, &target, by.as_deref());
        let event = Event {
            actor: actor.map(Shared::new),
            target: Some(Shared::new(target)),
            neighbor: Some(Box::new(neighbor)),
            ..self.event(at, kind, severity, message)
        };
        self.emit(event);
    }

    /// Whether an entry was set to the known link-layer address of the gateway.
    fn is_repair(&self, change: &NeighborChange) -> bool {
        let expected = self.node().gateway_lladdr(change.key);
        expected.is_some()
            && expected == change.new_lladdr.as_ref()
            && change.new_state.is_some_and(|state| state.is_permanent() || state.is_usable())
    }

    /// Whether a route of the host leads to an address by a tunnel: it is the gateway of all that is behind it.
    fn is_tunnels(&self, key: NeighborKey) -> bool {
        key.netns == self.settings.host_netns
            && self
                .namespaces
                .get(key.netns)
                .is_some_and(|host| host.tunnels.is_hop((key.ifindex, key.address)))
    }

    /// Whether the container that owns the entry's namespace has exited already, and leaves it to no other one. The end of a
    /// sandbox is that of its pod.
    fn is_teardown(&self, change: &NeighborChange, requested: Requested) -> bool {
        let netns = change.key.netns;
        let Some(owner) = self.owner_of(netns) else { return requested.process_alive == Some(false) };
        match requested.process_alive {
            Some(true) => false,
            Some(false) => owner.is_sandbox() || !self.containers.is_shared(netns, &owner.id),
            None => !is_live(owner.state),
        }
    }

    /// The container that a namespace belongs to. Containers with host networking do not own the host's namespace.
    fn owner_of(&self, netns: NsInum) -> Option<&ContainerFacts> {
        self.containers.in_netns(netns).filter(|_| netns != self.settings.host_netns)
    }

    /// What an interface is in the moment in which an entry goes with it does not show that this is new. Where the model
    /// knows that it was so before, its hardware address has changed, or the cause is unknown.
    fn consistent_cause(&self, at: BootNs, change: &NeighborChange) -> NeighborCause {
        let NeighborKey { netns, ifindex, .. } = change.key;
        let Some(namespace) = self.namespaces.get(netns) else { return change.cause };
        if !namespace.contradicts(change.cause, at, ifindex) {
            return change.cause;
        }
        let is_new = |lladdr| !namespace.had_lladdr(at, ifindex, lladdr);
        match change.device_lladdr.as_ref().is_some_and(is_new) {
            true => NeighborCause::LladdrChanged,
            false => NeighborCause::Unknown,
        }
    }

    /// The kernel program infers a change of the interface's hardware address by exclusion, and other changes remain as
    /// well. Unless the model shows that the address was another one, the cause is unknown.
    fn checked_cause(&self, at: BootNs, change: &NeighborChange) -> NeighborCause {
        let NeighborKey { netns, ifindex, .. } = change.key;
        let is_unproven = |lladdr| {
            self.namespaces.get(netns).is_none_or(|namespace| {
                !namespace.links.contains_key(&ifindex) || namespace.had_lladdr(at, ifindex, lladdr)
            })
        };
        match change.cause {
            // Netlink, which has no such address, has told of the change itself.
            NeighborCause::LladdrChanged if change.device_lladdr.as_ref().is_some_and(is_unproven) => {
                NeighborCause::Unknown
            }
            cause => cause,
        }
    }
}

/// What the change itself tells.
fn neighbor(change: &NeighborChange, cause: NeighborCause, gateway: Option<bool>) -> Neighbor {
    Neighbor {
        lladdr: change.lladdr.as_ref().map(ToString::to_string),
        new_lladdr: change.new_lladdr.as_ref().map(ToString::to_string),
        state: change.old_state.map(|state| state.name().to_owned()),
        new_state: change.new_state.map(|state| state.name().to_owned()),
        gateway,
        ..entry(change.key, change.ifname.clone(), cause)
    }
}

/// An entry of which only its place is known.
pub(super) fn entry(key: NeighborKey, ifname: String, cause: NeighborCause) -> Neighbor {
    Neighbor {
        address: key.address,
        lladdr: None,
        new_lladdr: None,
        ifindex: key.ifindex,
        ifname,
        netns: key.netns,
        state: None,
        new_state: None,
        cause: cause.name().to_owned(),
        gateway: None,
        reason: None,
        ended_netns: None,
        ended_lower: false,
        link_moved: false,
        after_exit: false,
        other_netns: false,
    }
}

fn is_by_request(change: &NeighborChange) -> bool {
    change.cause == NeighborCause::Admin
}

fn message(change: &NeighborChange, neighbor: &Neighbor, target: &Target, by: Option<&str>) -> String {
    let permanent = change.old_state.is_some_and(|state| state.is_permanent());
    let mut text = String::with_capacity(MESSAGE);
    if permanent {
        text.push_str("static ");
    }
    if neighbor.gateway == Some(true) {
        text.push_str("gateway ");
    }
    let protocol = if change.key.address.is_ipv4() { "ARP" } else { "neighbor" };
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "{protocol} {} on {}{}",
        change.key.address,
        name(&change.ifname),
        place_phrase(target, change.key.netns)
    );
    match change.op {
        NeighborOp::Added => {
            text.push_str(" set");
            // One that it had before stays where none is given.
            if let Some(lladdr) = change.new_lladdr.as_ref().or(change.lladdr.as_ref()) {
                let _ = write!(text, " to {lladdr}");
            }
        }
        NeighborOp::Deleted => text.push_str(" deleted"),
        NeighborOp::Failed => text.push_str(" failed to resolve"),
        NeighborOp::Changed => match (&change.new_lladdr, change.new_state) {
            (Some(lladdr), _) => _ = write!(text, " replaced with {lladdr}"),
            (None, Some(state)) => _ = write!(text, " downgraded to {}", state.name()),
            (None, None) => text.push_str(" changed"),
        },
    }
    if let Some(by) = by {
        let _ = write!(text, " by {by}");
    }
    text.push_str(&cause_phrase(neighbor, by.is_some()));
    text
}
