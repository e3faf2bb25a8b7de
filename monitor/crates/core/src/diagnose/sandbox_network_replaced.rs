//! The sandbox of a pod was restarted under its id and has a new network namespace: the pod's interface, addresses and routes were
//! in the one before, and no CNI `ADD` has made others.
//!
//! Found by the runtimes' containers and by what the kernel tells of their namespaces. Another process alone shows nothing, as a
//! runtime may start it in the same namespace; nor does the number of a namespace, as the next one may have it again.

use std::collections::BTreeMap;

use kevtmon_event::wording::{actor_subject, pod_label, short_id};
use kevtmon_event::{Actor, CloseReason, Confidence, Event, Kind, Pod, Severity, Shared};
use kevtmon_observation::{BootNs, CniCommand, ContainerFacts, NsInum, PodIdentity, iff};
use kevtmon_types::escape::name;
use kevtmon_types::settings::{Threshold, Unit, thresholds};
use serde::{Deserialize, Serialize};

use super::advice::delete_pod;
use super::conditions::{Condition, Conditions, Look, Seen, start};
use super::finding::{Findings, IncidentObjects, Report};
use super::{Alert, Context, IncidentKind, ModelChange, SECOND, Watch};
use crate::node::cni::Call;
use crate::node::containers::is_live;
use crate::node::incarnations::current_sandbox;
use crate::node::namespaces::Namespace;
use crate::node::view::RuntimeAvailability;

#[cfg(test)]
mod tests;

pub(super) const KIND: &str = "sandbox-network-replaced";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "A pod's sandbox was restarted and has a new network namespace",
    symptom: "a pod is unreachable",
    names: "the pod whose sandbox was restarted, and is without a network",
    opens: "A sandbox was restarted, and for 10 s no CNI `ADD` has set up its new network namespace.",
    alert: Alert::ByHand,
    meaning: "The sandbox (pause) container of a pod has another network namespace than before, and no CNI ADD has set it up. The \
             network of the pod was in the former one. Containers that still run may be there until they restart.",
    remedy: "Delete the pod, so that it gets a new sandbox. Never restart a sandbox by hand, by docker restart for example.",
    severities: &[Severity::Warning, Severity::Critical],
    counted: "sandboxes",
    thresholds: THRESHOLDS,
    watched_by: Watch::Runtime,
    is_optional: true,
    start: start::<SandboxNetworkReplaced>,
};

thresholds! {
    /// A restarted sandbox whose network is not set up again is reported after this time.
    AFTER = "sandbox_network_replaced_seconds", default 10, Unit::Seconds;
}

/// For so long after a CNI `DEL` of it a sandbox may be on its way out.
const TEARDOWN: BootNs = 60 * SECOND;

/// A container that is to be restarted starts within this time. First it may end: `docker restart` waits for that for 10 s, unless
/// it is told otherwise.
const STARTS_WITHIN: BootNs = 180 * SECOND;

/// The network of a sandbox, as it was set up.
#[serde_with::apply(_ => #[serde(skip_serializing_if = "crate::saved::is_new")])]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Network {
    /// The process that has made it; 0 where only an earlier run of the daemon knew it.
    tgid: u32,
    started: Option<BootNs>,
    netns: NsInum,
    cookie: Option<u64>,
    /// An interface led out of it: a pod without any network has none to lose.
    had_interface: bool,
    /// The namespace has ended, so that the next one may have its number.
    has_ended: bool,
    /// When the last `ADD` that has succeeded began.
    added: BootNs,
    /// When it was last asked for it to be started, and who asked.
    asked: Option<(BootNs, Shared<Actor>)>,
    /// When it was started again, and who likely asked for that.
    restarted: Option<(BootNs, Shared<Actor>)>,
    /// Its exit, and its start since.
    events: Vec<u64>,
}

impl Network {
    /// Where a sandbox runs now; `None` where that is not known, or is the host's network.
    fn of(context: &Context<'_>, facts: &ContainerFacts) -> Option<Self> {
        let node = context.node;
        let netns = facts.netns.filter(|netns| *netns != node.host_netns)?;
        // One that was read before its process ran may have been another one with its number.
        let started = started(context, facts);
        let namespace = node.namespaces.get(netns).filter(|known| known.read >= started.unwrap_or(0));
        let own = node.containers.netns_cookie(&facts.id);
        let cookie = own.or_else(|| namespace.and_then(|known| known.cookie));
        Some(Self {
            tgid: facts.tgid.filter(|_| is_live(facts.state))?,
            started: facts.started_ns,
            netns,
            cookie,
            had_interface: namespace.is_some_and(|known| interface(known).is_some()),
            ..Self::default()
        })
    }

    fn is_other_process(&self, now: &Self) -> bool {
        let is_later = self.started.zip(now.started).is_some_and(|(before, now)| before != now);
        self.tgid != now.tgid || is_later
    }

    /// Notes who asked for the start that was then. Who asks again later has not made it.
    fn note_restart(&mut self, started: Option<BootNs>) {
        if started.is_none() || self.restarted.as_ref().map(|(at, _)| *at) != started {
            let is_it =
                |at: BootNs, started: BootNs| at <= started && started <= at.saturating_add(STARTS_WITHIN);
            let asked = self.asked.as_ref().zip(started).filter(|((at, _), started)| is_it(*at, *started));
            self.restarted = asked.map(|((_, actor), started)| (started, actor.clone()));
        }
    }

    /// `None` if that is not known.
    fn is_other_netns(&self, now: &Self) -> Option<bool> {
        match self.cookie.zip(now.cookie) {
            Some((before, now)) => Some(before != now),
            None if self.netns != now.netns || self.has_ended => Some(true),
            None => None,
        }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct SandboxNetworkReplaced {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    networks: BTreeMap<String, Network>,
}

impl SandboxNetworkReplaced {
    /// What is wrong with a sandbox, if anything.
    fn look_at(&mut self, context: &Context<'_>, facts: &ContainerFacts) -> Option<Condition<()>> {
        let unknown = || Some(Condition::unknown(facts.id.clone()));
        let Some(now) = Network::of(context, facts) else {
            return if is_live(facts.state) { unknown() } else { None };
        };
        let Some(known) = self.networks.get_mut(&facts.id) else {
            self.networks.insert(facts.id.clone(), now);
            return None;
        };
        if !known.is_other_process(&now) {
            let (cookie, added) = (now.cookie.or(known.cookie), known.added);
            let had_interface = now.had_interface || known.had_interface;
            *known = Network { cookie, added, had_interface, asked: known.asked.take(), ..now };
            return None;
        }
        match known.is_other_netns(&now) {
            Some(true) => {}
            Some(false) => return None,
            None => return unknown(),
        }
        let pod = facts.pod.as_ref()?;
        if !known.had_interface || !is_current(context, facts, pod) {
            return None;
        }
        known.note_restart(started(context, facts));
        let Some(namespace) = namespace(context, facts, &now) else { return unknown() };
        // What becomes of one that the kernel tells nothing of is not seen.
        if is_set_up(known, &now) || now.had_interface && may_be_set_up(context, known) {
            *known = Network { added: known.added, ..now };
            return None;
        }
        Some(condition(context, facts, known, namespace))
    }

    /// Whether no interface of a sandbox in a namespace was seen yet.
    fn waits_for(&self, netns: NsInum) -> bool {
        self.networks.values().any(|known| known.netns == netns && !known.had_interface)
    }

    fn asked(&mut self, context: &Context<'_>, named: &[String], actor: &Shared<Actor>) {
        for (id, known) in &mut self.networks {
            let Some(facts) = context.node.containers.get(id) else { continue };
            if named.iter().any(|word| id.starts_with(word.as_str()) || facts.name == *word) {
                known.note_restart(started(context, facts));
                known.asked = Some((context.now, actor.clone()));
            }
        }
    }

    fn added(&mut self, call: &Call) {
        let Some(id) = call.first.container_id.as_ref().filter(|_| call.first.command == CniCommand::Add)
        else {
            return;
        };
        let has_succeeded = call.ended.is_some_and(|(_, exit)| exit.status == 0);
        if let Some(known) = self.networks.get_mut(id).filter(|_| has_succeeded) {
            (known.added, known.had_interface) = (call.started, true);
        }
    }
}

/// When its present process began, as far as that is known.
fn started(context: &Context<'_>, facts: &ContainerFacts) -> Option<BootNs> {
    facts.started_ns.or_else(|| context.node.containers.started(&facts.id))
}

/// Whether no other sandbox of the pod has taken its place.
fn is_current(context: &Context<'_>, facts: &ContainerFacts, pod: &PodIdentity) -> bool {
    let current = current_sandbox(context.node.containers, &pod.namespace, &pod.name);
    current.is_none_or(|current| current.id == facts.id)
}

/// The namespace of a sandbox, if it was read.
fn namespace<'n>(context: &Context<'n>, facts: &ContainerFacts, now: &Network) -> Option<&'n Namespace> {
    let started = started(context, facts);
    let namespace = context.node.namespaces.get(now.netns)?;
    (namespace.cookie == now.cookie && namespace.read >= started.unwrap_or(0)).then_some(namespace)
}

/// An interface by which packets may leave it. Some modules make one in each new namespace, which is down.
fn interface(namespace: &Namespace) -> Option<&str> {
    let is_usable = |flags: u32| flags & iff::UP != 0 && flags & iff::LOOPBACK == 0;
    namespace.links.values().find(|link| is_usable(link.flags)).map(|link| link.ifname.as_str())
}

/// Whether a CNI `ADD` has set the namespace up.
fn is_set_up(known: &Network, now: &Network) -> bool {
    now.started.is_some_and(|started| known.added > started)
}

/// Whether one may have, unseen.
fn may_be_set_up(context: &Context<'_>, known: &Network) -> bool {
    let node = context.node;
    let is_heard = node.statuses.get("hook.exec").is_some_and(|status| status.up)
        && node.cni.sandboxes().next().is_some();
    !is_heard || known.tgid == 0
}

/// Whether a container of the pod still runs in a network namespace that has a network.
fn has_former(context: &Context<'_>, pod: &PodIdentity, now: &Network) -> bool {
    let node = context.node;
    let is_of_pod = |other: &PodIdentity| other.is_same_pod(pod) && other.is_confirmed();
    let others = node.containers.present().filter(|facts| is_live(facts.state) && !facts.sandbox);
    let mut netns = others
        .filter(|facts| facts.pod.as_ref().is_some_and(is_of_pod))
        .filter_map(|facts| facts.netns.filter(|netns| *netns != now.netns));
    netns.any(|netns| node.namespaces.get(netns).is_some_and(|former| interface(former).is_some()))
}

fn condition(
    context: &Context<'_>,
    facts: &ContainerFacts,
    known: &Network,
    namespace: &Namespace,
) -> Condition<()> {
    let node = context.node;
    let target = node.target_of(facts);
    let pod = node.pod(facts).unwrap_or_default();
    let interface = interface(namespace);
    let now = Network::of(context, facts).unwrap_or_default();
    let has_former = facts.pod.as_ref().is_some_and(|pod| has_former(context, pod, &now));
    // That its process is in this very namespace.
    let is_seen = namespace.owner.as_ref().is_some_and(|owner| owner.tgid == now.tgid);
    let is_certain = is_seen && interface.is_none() && !has_former && known.tgid != 0 && !namespace.unheard;
    let severity = if interface.is_none() { Severity::Critical } else { Severity::Warning };
    let confidence = if is_certain { Confidence::Certain } else { Confidence::Likely };
    let actor = known.restarted.as_ref().map(|(_, actor)| actor);
    let report = Report {
        advice: Some(delete_pod(
            context,
            &pod,
            "delete the pod; its controller makes a new one with a new network",
        )),
        objects: IncidentObjects {
            actor: actor.cloned(),
            target: Some(Shared::new(target)),
            ..IncidentObjects::default()
        },
        evidence: known.events.clone(),
        ..Report::new(
            facts.id.clone(),
            severity,
            confidence,
            summary(actor, &pod, &facts.id, interface, has_former),
            context.now,
        )
    };
    let is_under_way =
        node.cni.is_being_added(&facts.id) || node.cni.is_deleted_about(&facts.id, context.now, TEARDOWN);
    let not_before = if is_under_way { context.now.saturating_add(SECOND) } else { 0 };
    Condition { not_before, ..Condition::new(report) }
}

fn summary(
    actor: Option<&Shared<Actor>>,
    pod: &Pod,
    id: &str,
    interface: Option<&str>,
    has_former: bool,
) -> String {
    let lost = match interface {
        Some(_) => "may have lost its network",
        None if has_former => "loses its network once its containers restart",
        None => "lost its network",
    };
    let set_up = match interface {
        Some(ifname) => format!("was seen to set up, with interface {}", name(ifname)),
        None => "set up".to_owned(),
    };
    let (pod, id) = (pod_label(pod), short_id(id));
    let new = format!("a new network namespace that no CNI plugin {set_up}");
    match actor {
        Some(actor) => {
            let actor = actor_subject(actor);
            format!("{actor} has likely restarted the sandbox {id} of pod {pod}, which {lost}: it has {new}")
        }
        None => {
            format!("pod {pod} {lost}: its sandbox {id} was restarted, by whom is not known, and has {new}")
        }
    }
}

impl Conditions for SandboxNetworkReplaced {
    const SPEC: &'static IncidentKind = &SPEC;
    const HOLD: &'static Threshold = &AFTER;
    type Memory = ();

    fn event(&mut self, seen: &Seen<'_, ()>, event: &Event, _: &mut Findings) -> Look {
        let container = event.target.as_ref().and_then(|target| target.container.as_ref());
        if let Some(known) = container.and_then(|container| self.networks.get_mut(&container.id)) {
            match event.kind {
                Kind::ContainerExited => known.events = vec![event.seq],
                Kind::ContainerStarted if known.events.len() == 1 => known.events.push(event.seq),
                _ => {}
            }
        }
        let link = event.link.as_deref();
        Look::soon_if(link.is_some_and(|link| seen.memories().next().is_some() || self.waits_for(link.netns)))
    }

    fn change(&mut self, seen: &Seen<'_, ()>, change: &ModelChange<'_>, _: &mut Findings) -> Look {
        let has_suspects = || seen.memories().next().is_some();
        match change {
            ModelChange::CniFinished(call, _) => {
                self.added(call);
                Look::soon_if(has_suspects())
            }
            ModelChange::Addresses(netns) => Look::soon_if(has_suspects() || self.waits_for(*netns)),
            ModelChange::NetnsGone(netns) => {
                let of_it = self.networks.values_mut().filter(|known| known.netns == *netns);
                of_it.for_each(|known| known.has_ended = true);
                Look::soon_if(has_suspects())
            }
            ModelChange::Container(id) => {
                let is_sandbox = seen.context.node.containers.get(id).is_some_and(|facts| facts.sandbox);
                Look::soon_if(is_sandbox || has_suspects())
            }
            ModelChange::ContainerStart(named, actor) => {
                self.asked(seen.context, named, actor);
                Look::No
            }
            // A restart may come at once.
            ModelChange::Netns(netns) if self.waits_for(*netns) => Look::Now,
            ModelChange::Ready => Look::Now,
            ModelChange::Netns(_) | ModelChange::Runtime => Look::Soon,
            _ => Look::No,
        }
    }

    fn conditions(&mut self, seen: &Seen<'_, ()>, _: &mut Findings) -> Option<Vec<Condition<()>>> {
        let context = seen.context;
        // Which are gone is known once the runtimes have listed their containers.
        context.ready?;
        let containers = context.node.containers;
        let is_all = context.node.runtimes == RuntimeAvailability::All;
        let is_awaited =
            |id: &String, known: &Network| known.tgid == 0 && !is_all && containers.get(id).is_none();
        self.networks.retain(|id, known| containers.is_present(id) || is_awaited(id, known));
        let awaited = self.networks.iter().filter(|(id, known)| is_awaited(id, known));
        let awaited: Vec<_> = awaited.map(|(id, _)| Condition::unknown(id.clone())).collect();
        let sandboxes = containers.present().filter(|facts| {
            facts.sandbox && !facts.joined_netns && facts.pod.as_ref().is_some_and(PodIdentity::is_confirmed)
        });
        Some(sandboxes.filter_map(|facts| self.look_at(context, facts)).chain(awaited).collect())
    }

    fn ended(&self, context: &Context<'_>, subject: &str, (): &()) -> Option<CloseReason> {
        let containers = context.node.containers;
        let facts = containers.get(subject).filter(|facts| is_live(facts.state));
        let pod = facts.and_then(|facts| Some((facts, facts.pod.as_ref()?)));
        let has_it = pod.is_some_and(|(facts, pod)| is_current(context, facts, pod));
        Some(if has_it { CloseReason::Resolved } else { CloseReason::SubjectGone })
    }

    fn resume(&mut self, _: &Context<'_>, event: &Event) -> Option<(String, ())> {
        let id = event.target.as_ref()?.container.as_ref()?.id.clone();
        self.networks.insert(id.clone(), Network { had_interface: true, ..Network::default() });
        Some((id, ()))
    }
}
