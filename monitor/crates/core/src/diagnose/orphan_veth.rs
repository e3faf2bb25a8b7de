//! A veth device of a pod is still on the node though its pod is gone: something keeps the network namespace of its other
//! end.
//!
//! Found by state: the devices of the host, and what the runtimes tell of who lives behind them. A device is a pod's by the name
//! that its network plugin gives it, by the result of the plugin that libcni keeps, or because a pod was seen behind it; it is
//! identified by its index, since the next pod of the same name has a device of the same name. Containers of other pods that are
//! in its namespace do not make its pod live: they have entered it, or the plugin was called for the namespace of another pod (a
//! process id that was used again).
//!
//! A runtime that does not answer makes all pods look gone, so nothing is said then; where there is none at all, a device is left
//! if no process is in its namespace. What keeps the namespace is looked for before anything is said, which also finds containers
//! there that no runtime has told.

use std::collections::BTreeMap;

use kevtmon_event::{
    CloseReason, Confidence, Container, Event, Join, Kind, MountHolder, Pod, Severity, Shared, Target,
    Unreadable,
};
use kevtmon_observation::{Access, BootNs, LinkFacts, NsInum, Request, VethLink};
use kevtmon_types::settings::{Threshold, Unit, thresholds};
use living::{Assessment, Living};
use serde::{Deserialize, Serialize};
use whose::Whose;

use super::conditions::{Condition, Conditions, Look, Seen, start};
use super::finding::{Findings, IncidentKey, IncidentObjects, Report};
use super::pod_network::SETTLE;
use super::{Alert, CAPACITY, Context, IncidentKind, ModelChange, SECOND, Watch, cni_teardown_failing};
use crate::node::view::{NodeView, RuntimeAvailability};

mod living;
#[cfg(test)]
mod tests;
mod whose;
mod wording;

pub(super) const KIND: &str = "orphan-veth";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "A pod's veth device is left on the node though its pod is gone",
    symptom: "devices of pods that are gone",
    names: "what keeps the network namespace",
    opens: "A veth device of a pod is still on the node 60 s after the pod is gone.",
    alert: Alert::Open { severity: Severity::Warning, minutes: 10 },
    meaning: "The network of the pod was not taken down, or something keeps its network namespace alive: a process, an open \
             file or socket, or a mount. Routes and addresses that belong to the device may be in the way of newer pods.",
    remedy: "End what keeps the namespace, as the incident names it; the device goes with it. Do not delete a device by its \
             name: the next pod of that name has one of the same name.",
    severities: &[Severity::Warning],
    counted: "observations",
    thresholds: THRESHOLDS,
    watched_by: Watch::Netlink,
    is_optional: false,
    start: start::<OrphanVeth>,
};

thresholds! {
    /// The veth device of a pod may remain for this time after its pod.
    AFTER = "orphan_veth_seconds", default 60, Unit::Seconds;
}

/// An answer that does not come by then is asked for again.
const PATIENCE: BootNs = 120 * SECOND;
/// A namespace with a container that no runtime tells of is looked at again so late.
const AGAIN: BootNs = 300 * SECOND;
/// What keeps the namespace of an open one is looked for again after this time, and later ever more rarely: all processes of
/// the node are read for it.
const LOOK_FIRST: BootNs = 300 * SECOND;
const LOOK_MOST: BootNs = 3600 * SECOND;
const BATCH: usize = 64;

/// Where the other end of a veth device is, and what keeps the namespace there.
#[derive(Debug, Clone, PartialEq)]
pub struct VethEnd {
    /// Index of the host's end.
    pub ifindex: u32,
    /// Whether there is such a device still.
    pub present: bool,
    /// The namespace of the other end.
    pub netns: Option<NsInum>,
    /// Its name in the host's directories.
    pub name: Option<String>,
    pub keepers: Vec<MountHolder>,
    /// What could not be looked into.
    pub unreadable: Vec<Unreadable>,
    pub complete: bool,
}

/// A device behind which nobody lives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Orphan {
    first: BootNs,
    found_at_start: bool,
    /// When it is looked for what keeps it.
    look_at: BootNs,
    /// The time to the look after that, of an open one.
    pause: BootNs,
}

/// A pod whose device one was.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Former {
    namespace: String,
    name: String,
    uid: String,
    /// Where it was; 0 where that is not known any more.
    netns: NsInum,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct OrphanVeth {
    orphans: BTreeMap<u32, Orphan>,
    /// The pods that were seen behind the devices of the host, by index.
    former: BTreeMap<u32, Former>,
    /// What was found just now.
    #[serde(skip)]
    ends: Vec<VethEnd>,
}

impl OrphanVeth {
    /// Keeps whose device it is, which nothing tells once the pod is gone.
    fn note_pod(&mut self, node: &NodeView<'_>, link: &LinkFacts, living: &mut Living) {
        let peer = link.peer.as_ref().and_then(|peer| peer.netns).filter(|netns| *netns != node.host_netns);
        let facts = peer.and_then(|netns| node.containers.in_netns(netns));
        let Some(facts) = facts.filter(|facts| living::is_present(node, facts)) else { return };
        let Some(pod) = facts.pod.as_ref().filter(|pod| pod.is_confirmed()) else { return };
        let Some(netns) = facts.netns else { return };
        // Others may enter the namespace that was made for it, also before this is seen.
        let is_other = living.whose(node, link, None).is_anothers(facts);
        if !is_other && self.former.get(&link.ifindex).is_none_or(|known| known.netns != netns) {
            let (namespace, name, uid) = (pod.namespace.clone(), pod.name.clone(), pod.uid.clone());
            self.former.insert(link.ifindex, Former { namespace, name, uid, netns });
        }
    }

    /// Has it looked for what keeps the namespaces of those that are due.
    fn look(&mut self, context: &Context<'_>, findings: &mut Findings) {
        let due = self.orphans.iter_mut().filter(|(_, orphan)| orphan.look_at <= context.now);
        let host = context.node.host();
        let links: Vec<VethLink> = due
            .take(BATCH)
            .map(|(ifindex, orphan)| {
                orphan.look_at = context.now.saturating_add(PATIENCE);
                let netns = host.and_then(|host| host.links.get(ifindex)?.peer.as_ref()?.netns);
                let addresses = netns.map_or_else(Vec::new, |netns| context.node.addresses_only_in(netns));
                VethLink { ifindex: *ifindex, netns, addresses }
            })
            .collect();
        if !links.is_empty() {
            findings.request(Request::VethPeers { links });
        }
    }

    /// What was found behind a device; `None` if somebody lives there.
    fn looked(
        &mut self,
        context: &Context<'_>,
        facts: &LinkFacts,
        end: &VethEnd,
        living: &mut Living,
    ) -> Option<Condition<()>> {
        let node = context.node;
        let former = self.former.get(&facts.ifindex);
        let whose = living.whose(node, facts, former);
        let is_told = node.runtimes != RuntimeAvailability::Absent;
        let is_inhabited = match is_told {
            true => end
                .keepers
                .iter()
                .any(|keeper| is_of_living_container(keeper) && !is_anothers(node, &whose, keeper)),
            false => end.keepers.iter().any(|keeper| keeper.access == Access::Netns),
        };
        let known = LinkFacts {
            peer: facts.peer.clone().map(|mut peer| {
                peer.netns = end.netns.or(peer.netns);
                peer
            }),
            ..facts.clone()
        };
        let is_orphan = living.judge(node, &known, former, true) == Assessment::Orphan;
        let orphan = self.orphans.get_mut(&facts.ifindex)?;
        if is_inhabited || !is_orphan {
            orphan.look_at = context.now.saturating_add(AGAIN);
            return (!is_inhabited).then(|| Condition::unknown(subject(node.host_netns, facts.ifindex)));
        }
        orphan.look_at = context.now.saturating_add(orphan.pause);
        orphan.pause = orphan.pause.saturating_mul(2).min(LOOK_MOST);
        let (since, found_at_start) = (Some(orphan.first), orphan.found_at_start);
        // Where it was is known from before, and what keeps it is not.
        let netns = known.peer.as_ref().and_then(|peer| peer.netns);
        let complete = end.complete && end.netns.is_some();
        let end = VethEnd { netns, complete, ..end.clone() };
        let report = Report { found_at_start, ..self.report(context, &known, &end) };
        Some(Condition { since, ..Condition::new(report) })
    }

    fn report(&self, context: &Context<'_>, facts: &LinkFacts, end: &VethEnd) -> Report {
        let node = context.node;
        let pod = self.pod_of(node, facts);
        let former = self.former.get(&facts.ifindex);
        let lives = Living::default().whose(node, facts, former).lives(node);
        let summary = wording::summary(node, facts, (pod.as_ref(), lives), end);
        let is_found = end.netns.is_some();
        let is_guessed = end.keepers.iter().any(|keeper| keeper.possible);
        let subject = subject(node.host_netns, facts.ifindex);
        let confidence = match node.runtimes {
            RuntimeAvailability::All if is_found && end.complete && !is_guessed => Confidence::Certain,
            _ => Confidence::Likely,
        };
        Report {
            ruled_out: Some(wording::ruled_out(node, end)),
            advice: Some(wording::steps(context, facts, end)),
            caused_by: pod.as_ref().map_or_else(Vec::new, |pod| causes(node, pod)),
            objects: IncidentObjects {
                target: pod.map(|pod| Shared::new(Target { pod: Some(pod), ..Target::unknown(Join::Late) })),
                link: Some(Box::new(node.link(facts))),
                holders: Some(end.keepers.clone()),
                holders_complete: Some(end.complete),
                holders_unreadable: end.unreadable.clone(),
                ..IncidentObjects::default()
            },
            ..Report::new(subject, Severity::Warning, confidence, summary, context.now)
        }
    }

    /// The pod whose device it was: one that was seen behind it, else one for which it was made or after whose name it is called.
    fn pod_of(&self, node: &NodeView<'_>, link: &LinkFacts) -> Option<Pod> {
        let seen = self.former.get(&link.ifindex).cloned();
        let made_for = || living::former_by_result(node, &link.ifname);
        let called = || living::former_by_name(node, &link.ifname);
        let Former { namespace, name, uid, .. } = seen.or_else(made_for).or_else(called)?;
        Some(Pod { namespace: Some(namespace), name: Some(name), uid, ..Pod::default() })
    }
}

/// The removals of the pod's networks that fail, if those are told: a plugin that fails leaves the device.
fn causes(node: &NodeView<'_>, pod: &Pod) -> Vec<IncidentKey> {
    let (Some(namespace), Some(name)) = (&pod.namespace, &pod.name) else { return Vec::new() };
    let failing = node.cni.of_pod(namespace, name).filter(|(_, sandbox)| sandbox.failed > 0);
    let kind = cni_teardown_failing::KIND;
    failing.map(|(id, _)| IncidentKey { kind, subject: id.to_owned() }).collect()
}

/// Whether a process in the namespace is of a container that, for all that is known, is not over.
fn is_of_living_container(keeper: &MountHolder) -> bool {
    let is_live = |container: &Container| {
        let state = container.state.as_deref();
        state.is_none_or(|state| ["running", "paused"].contains(&state))
    };
    keeper.access == Access::Netns && keeper.container.as_ref().is_some_and(is_live)
}

/// Whether the container of a process is another pod's than the device. Of one that no runtime tells, nobody knows.
fn is_anothers(node: &NodeView<'_>, whose: &Whose<'_>, keeper: &MountHolder) -> bool {
    let facts = keeper.container.as_ref().and_then(|container| node.containers.get(&container.id));
    facts.is_some_and(|facts| whose.is_anothers(facts))
}

/// A device, which its name alone does not tell.
fn subject(netns: NsInum, ifindex: u32) -> String {
    format!("{netns}/{ifindex}")
}

impl Conditions for OrphanVeth {
    const SPEC: &'static IncidentKind = &SPEC;
    const HOLD: &'static Threshold = &AFTER;
    type Memory = ();

    fn event(&mut self, seen: &Seen<'_, ()>, event: &Event, findings: &mut Findings) -> Look {
        if !matches!(event.kind, Kind::LinkCreated | Kind::LinkChanged | Kind::LinkMoved | Kind::LinkDeleted)
        {
            return Look::No;
        }
        let host = seen.context.node.host_netns;
        let Some(link) = event.link.as_ref().filter(|link| link.netns == host) else { return Look::No };
        if matches!(event.kind, Kind::LinkMoved | Kind::LinkDeleted) {
            // The next one with its index is another one.
            self.former.remove(&link.ifindex);
            self.orphans.remove(&link.ifindex);
            let subject = subject(link.netns, link.ifindex);
            if seen.is_open(&subject) {
                findings.close(subject, CloseReason::Resolved, Some(event.seq));
            }
        }
        Look::Soon
    }

    fn change(&mut self, seen: &Seen<'_, ()>, change: &ModelChange<'_>, _: &mut Findings) -> Look {
        match change {
            ModelChange::VethPeers(ends) => {
                self.ends = ends.to_vec();
                Look::Now
            }
            ModelChange::Netns(_)
            | ModelChange::NetnsGone(_)
            | ModelChange::Container(_)
            | ModelChange::Runtime
            | ModelChange::RuntimeAvailability
            | ModelChange::Ipam
            | ModelChange::Ready => Look::Soon,
            // Where there is no runtime, nothing else tells that a pod is gone.
            ModelChange::PodRemains => {
                Look::soon_if(seen.context.node.runtimes == RuntimeAvailability::Absent)
            }
            _ => Look::No,
        }
    }

    fn conditions(&mut self, seen: &Seen<'_, ()>, findings: &mut Findings) -> Option<Vec<Condition<()>>> {
        let ends = std::mem::take(&mut self.ends);
        let (context, node) = (seen.context, seen.context.node);
        // Which pods live is not known before the runtimes have reported their containers.
        let (ready, host) = context.ready.zip(node.host())?;
        self.former.retain(|ifindex, _| host.links.contains_key(ifindex));
        self.orphans.retain(|ifindex, _| host.links.contains_key(ifindex));
        let (mut living, mut conditions) = (Living::default(), Vec::new());
        for link in host.links.values().filter(|link| link.kind.as_deref() == Some("veth")) {
            self.note_pod(node, link, &mut living);
            let subject = subject(node.host_netns, link.ifindex);
            let is_left = self.orphans.contains_key(&link.ifindex);
            match living.judge(node, link, self.former.get(&link.ifindex), is_left) {
                Assessment::Unknown if seen.is_open(&subject) => {
                    conditions.push(Condition::unknown(subject));
                }
                // What was seen before counts no more once it is known again.
                Assessment::Lives | Assessment::Unknown => {
                    self.orphans.remove(&link.ifindex);
                }
                Assessment::Orphan if !is_left && self.orphans.len() >= CAPACITY => findings.discard(),
                Assessment::Orphan => {
                    self.orphans.entry(link.ifindex).or_insert_with(|| Orphan {
                        first: context.now,
                        found_at_start: context.now <= ready.saturating_add(2 * SECOND),
                        look_at: context.now.saturating_add(seen.hold),
                        pause: LOOK_FIRST,
                    });
                    conditions.extend(
                        match ends.iter().find(|end| end.present && end.ifindex == link.ifindex) {
                            Some(end) => self.looked(context, link, end, &mut living),
                            None => Some(Condition::unknown(subject)),
                        },
                    );
                }
            }
        }
        self.look(context, findings);
        Some(conditions)
    }

    fn settle(&self, seen: &Seen<'_, ()>, _: &mut Findings) -> Option<BootNs> {
        let next = self.orphans.values().map(|orphan| orphan.look_at).min()?;
        Some(next.max(seen.context.now.saturating_add(SETTLE)))
    }

    fn resume(&mut self, context: &Context<'_>, event: &Event) -> Option<(String, ())> {
        let (incident, link) = (event.incident.as_ref()?, event.link.as_ref()?);
        let orphan = Orphan {
            first: context.clock.boot_ns(&incident.first_seen).unwrap_or(context.now),
            found_at_start: incident.found_at_start,
            look_at: context.now,
            pause: LOOK_FIRST,
        };
        self.orphans.insert(link.ifindex, orphan);
        if let Some(pod) = event.target.as_deref().and_then(Target::confirmed_pod)
            && let (Some(namespace), Some(name)) = (pod.namespace.clone(), pod.name.clone())
        {
            let netns = link.peer.as_ref().and_then(|peer| peer.netns).unwrap_or_default();
            let uid = pod.uid.clone();
            self.former.insert(link.ifindex, Former { namespace, name, uid, netns });
        }
        Some((subject(link.netns, link.ifindex), ()))
    }
}
