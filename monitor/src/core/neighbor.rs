//! Neighbor entries: what was lost, by whom, whose it was.

use serde::{Deserialize, Serialize};

use super::{Core, NsInum};
use crate::event::wording::{because, who, whose};
use crate::event::{Event, Kind, Neighbor, Severity, Target};
use crate::node::cgroup;
use crate::node::containers::is_live;
use crate::node::view::RuntimeAvailability;
use crate::observation::{
    BootNs, ContainerFacts, NeighborCause, NeighborChange, NeighborOp, NudState, Request, Source,
};

/// An event waits this long for what is missing to name it.
const PATIENCE_NS: u64 = 500_000_000;
/// More than this wait only in a storm; then naming late costs more than naming less.
const HELD_MAX: usize = 1024;

/// What an event waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Wait {
    /// The content of a namespace.
    Netns(NsInum),
    /// A container that the runtime has not told of yet.
    Container(String),
    /// Whether the container's process still lives.
    Process(u32),
}

/// A change that waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct HeldChange {
    at: BootNs,
    #[serde(default, skip_serializing_if = "Source::is_daemon")]
    source: Source,
    change: NeighborChange,
    asked: Asked,
}

/// Whether a question was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Awaited,
    Come,
}

/// What was asked already.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Asked {
    netns: Option<Answer>,
    container: bool,
    /// The answer, if it was asked.
    alive: Option<bool>,
}

impl Core {
    pub(super) fn neighbor(&mut self, at: BootNs, change: NeighborChange) {
        if change.cause != NeighborCause::NetnsExit {
            self.namespaces.put_neighbor(at, &change);
        }
        self.hold_or_emit(at, at, change, Asked::default());
    }

    /// An answer came: what waited for it goes on.
    pub(super) fn answered(&mut self, now: BootNs, answer: &Wait, positive: bool) {
        for mut held in self.held.take_answered(answer) {
            match answer {
                Wait::Process(_) => held.asked.alive = Some(positive),
                Wait::Netns(_) if positive => held.asked.netns = Some(Answer::Come),
                Wait::Netns(_) | Wait::Container(_) => {}
            }
            self.source = held.source;
            // It may wait for something else now.
            self.hold_or_emit(now, held.at, held.change, held.asked);
        }
    }

    pub(super) fn release_overdue(&mut self, now: BootNs) {
        for held in self.held.take_overdue(now) {
            self.source = held.source;
            self.emit_neighbor(held.at, &held.change, held.asked);
        }
    }

    fn hold_or_emit(&mut self, now: BootNs, at: BootNs, change: NeighborChange, mut asked: Asked) {
        let deadline = at.saturating_add(PATIENCE_NS);
        let room = self.held.len() < HELD_MAX && now < deadline;
        let Some(wait) = self.missing(at, &change, asked).filter(|_| room) else {
            return self.emit_neighbor(at, &change, asked);
        };
        let asked_before = self.held.is_asked(&wait);
        match &wait {
            Wait::Netns(netns) => {
                asked.netns = Some(Answer::Awaited);
                if !asked_before {
                    self.request(Request::Netns { netns: *netns });
                }
            }
            Wait::Container(_) => asked.container = true,
            Wait::Process(tgid) => {
                if !asked_before {
                    self.request(Request::ProcessState { tgid: *tgid });
                }
            }
        }
        self.held.push(deadline, wait, HeldChange { at, source: self.source, change, asked });
    }

    /// What would have to be known to name this change truthfully.
    fn missing(&self, at: BootNs, change: &NeighborChange, asked: Asked) -> Option<Wait> {
        let netns = change.key.netns;
        if asked.netns.is_none() && netns != self.settings.host_netns && !self.is_sure_of_gateway(at, change)
        {
            return Some(Wait::Netns(netns));
        }
        // A runtime takes a container's links down after its processes are gone. That is no fault, and
        // whether it was so is told by the process, sooner and surer than by the runtime's own events.
        let owner = self.owner_of(netns);
        if let Some(tgid) = owner.filter(|owner| is_live(owner.state)).and_then(|owner| owner.tgid)
            && asked.alive.is_none()
            && change.op == NeighborOp::Deleted
            && !matches!(change.cause, NeighborCause::Admin | NeighborCause::NetnsExit)
        {
            return Some(Wait::Process(tgid));
        }
        let task = change.actor.as_ref().and_then(|actor| self.tasks.get(&actor.key))?;
        let id = cgroup::identify(task.cgroup.as_deref()?).container_id?;
        (!asked.container
            && self.runtimes() != RuntimeAvailability::None
            && self.containers.get(&id).is_none())
        .then_some(Wait::Container(id))
    }

    /// Whether the model can tell if this was a gateway. That it was is enough; that it was not takes a model
    /// that nothing can have overtaken.
    fn is_sure_of_gateway(&self, at: BootNs, change: &NeighborChange) -> bool {
        self.namespaces.get(change.key.netns).is_some_and(|namespace| {
            namespace.is_gateway(at, change.key.ifindex, change.key.address)
                || namespace.is_settled(at, change.key.ifindex)
        })
    }

    fn emit_neighbor(&mut self, at: BootNs, change: &NeighborChange, asked: Asked) {
        let key = change.key;
        let target = self.target(key.netns, asked.netns == Some(Answer::Come));
        let known = key.netns == self.settings.host_netns
            || asked.netns == Some(Answer::Come)
            || self.is_sure_of_gateway(at, change);
        let namespace = self.namespaces.get(key.netns).filter(|_| known);
        let gateway = namespace.map(|namespace| namespace.is_gateway(at, key.ifindex, key.address));
        let teardown = self.is_teardown(change, asked);
        let cause = if teardown { NeighborCause::NetnsExit } else { self.checked_cause(at, change) };
        let actor = change.actor.as_ref().filter(|_| !teardown).map(|task| self.actor(task, asked.container));
        let repaired = self.is_repair(change);
        let (kind, severity) = match (change.op, gateway == Some(true)) {
            (NeighborOp::Added, _) => (Kind::NeighborAdded, Severity::Info),
            (NeighborOp::Deleted, _) if cause == NeighborCause::NetnsExit => {
                (Kind::NeighborDeleted, Severity::Debug)
            }
            (NeighborOp::Deleted, true) => (Kind::NeighborDeleted, Severity::Warning),
            (NeighborOp::Deleted, false) => (Kind::NeighborDeleted, Severity::Notice),
            (NeighborOp::Changed, true) if !repaired => (Kind::NeighborChanged, Severity::Warning),
            (NeighborOp::Changed, _) => (Kind::NeighborChanged, Severity::Notice),
            (NeighborOp::Failed, true) => (Kind::NeighborFailed, Severity::Warning),
            (NeighborOp::Failed, false) => (Kind::NeighborFailed, Severity::Debug),
        };
        let by = actor.as_ref().map(who);
        let message = message(change, cause, gateway == Some(true), &target, by.as_deref());
        let reason = (gateway == Some(true)).then(|| match change.op {
            NeighborOp::Added => None,
            NeighborOp::Deleted => Some("missing"),
            NeighborOp::Failed => Some("failed"),
            // Another address is wrong; the same one that now can age is not wrong yet.
            NeighborOp::Changed => change.new_lladdr.as_ref().filter(|_| !repaired).map(|_| "wrong-lladdr"),
        });
        let event = Event {
            actor: actor.map(Box::new),
            target: Some(Box::new(target)),
            neighbor: Some(Box::new(Neighbor {
                address: key.address,
                lladdr: change.lladdr.as_ref().map(ToString::to_string),
                new_lladdr: change.new_lladdr.as_ref().map(ToString::to_string),
                ifindex: key.ifindex,
                ifname: change.ifname.clone(),
                netns: key.netns,
                state: change.old_state.map(|state| state.name().to_owned()),
                new_state: change.new_state.map(|state| state.name().to_owned()),
                cause: cause.name().to_owned(),
                gateway,
                reason: reason.flatten().map(str::to_owned),
            })),
            ..self.event(at, kind, severity, message)
        };
        self.emit(event);
    }

    /// Whether a static entry was made to point to where the gateway is known to be.
    fn is_repair(&self, change: &NeighborChange) -> bool {
        let right = self.node().gateway_lladdr(change.key);
        right.is_some()
            && right == change.new_lladdr.as_ref()
            && change.new_state.is_some_and(NudState::is_permanent)
    }

    /// Whether the container that the entry belonged to had ended already.
    fn is_teardown(&self, change: &NeighborChange, asked: Asked) -> bool {
        if asked.alive == Some(false) {
            return true;
        }
        asked.alive.is_none() && self.owner_of(change.key.netns).is_some_and(|owner| !is_live(owner.state))
    }

    /// The container that a namespace ends with. The host's is that of many, and ends with none.
    fn owner_of(&self, netns: NsInum) -> Option<&ContainerFacts> {
        self.containers.in_netns(netns).filter(|_| netns != self.settings.host_netns)
    }

    /// The kernel's record shows a change of the hardware address only by exclusion; where the model knows
    /// that the address is the same as ever, the truth is that nobody knows.
    fn checked_cause(&self, at: BootNs, change: &NeighborChange) -> NeighborCause {
        let unchanged = |lladdr| {
            self.namespaces
                .get(change.key.netns)
                .is_some_and(|namespace| namespace.had_lladdr(at, change.key.ifindex, lladdr))
        };
        match change.cause {
            NeighborCause::LladdrChanged if change.device_lladdr.as_ref().is_some_and(unchanged) => {
                NeighborCause::Unknown
            }
            cause => cause,
        }
    }
}

fn message(
    change: &NeighborChange,
    cause: NeighborCause,
    gateway: bool,
    target: &Target,
    by: Option<&str>,
) -> String {
    let permanent = change.old_state.is_some_and(|state| state.is_permanent());
    let mut text = String::new();
    if permanent {
        text.push_str("static ");
    }
    if gateway {
        text.push_str("gateway ");
    }
    let protocol = if change.key.address.is_ipv4() { "ARP" } else { "neighbor" };
    text.push_str(&format!("{protocol} {} on {}{}", change.key.address, change.ifname, whose(target)));
    match change.op {
        NeighborOp::Added => text.push_str(" set"),
        NeighborOp::Deleted => text.push_str(" deleted"),
        NeighborOp::Failed => text.push_str(" failed to resolve"),
        NeighborOp::Changed => match (&change.new_lladdr, change.new_state) {
            (Some(lladdr), _) => text.push_str(&format!(" replaced with {lladdr}")),
            (None, Some(state)) => text.push_str(&format!(" downgraded to {}", state.name())),
            (None, None) => text.push_str(" changed"),
        },
    }
    if let Some(by) = by {
        text.push_str(&format!(" by {by}"));
    }
    text.push_str(because(cause.name(), by.is_some()));
    text
}
