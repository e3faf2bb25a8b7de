//! A running container cannot reach its default gateway, because the gateway's neighbor entry is gone, wrong or unresolved;
//! or the host a node behind a tunnel (`tunnels.rs`).
//!
//! An event of a static entry opens the incident at once, with the actor. A fault that only a snapshot shows, or that may
//! be a pod being set up or torn down, is suspected first and confirmed later. While the incident is open the namespace
//! is read again at growing intervals: the kernel hooks report what mends an entry only while they know it as a gateway's.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};

use kevtmon_event::{CloseReason, Event, Kind, Neighbor, Severity};
use kevtmon_observation::{BootNs, NeighborKey, NsInum};
use kevtmon_types::settings::{Thresholds, Unit, thresholds};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::finding::{Count, Findings, Report};
use super::rereads::RereadSchedule;
use super::timers::Timers;
use super::{
    Alert, CAPACITY, Context, Diagnosis, IncidentKind, ModelChange, SECOND, Suspicion, Watch, seconds,
};
use crate::node::containers::is_live;
use crate::node::view::NodeView;

mod bridge_mac;
mod failed;
mod fault;
pub(super) mod health;
mod host_side;
mod left;
mod other_ways;
mod persistence;
mod recheck;
mod repair;
mod rp_filter;
mod suspected;
mod tunnels;
mod unattributed;
mod undecided;
mod unseen;
mod wording;

use bridge_mac::BridgeMacs;
use fault::{Fault, FaultPhase, FaultReason, GatewayOwner, key, subject};
use health::Health;
use host_side::LinkChanges;
use other_ways::{is_replaceable, may_be_harmless};
use rp_filter::Strays;
use tunnels::{LostHops, is_of_tunnel};
use unattributed::UnattributedEvent;
use undecided::Undecided;

pub(super) const KIND: &str = "gateway-neighbor-lost";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "A pod has lost its gateway's neighbor entry, or the host a node's",
    symptom: "a pod is unreachable",
    names: "the process and pod that deleted the gateway's neighbor entry, or set the link down",
    opens: "A running container has no usable neighbor entry of its default gateway, or the host none of a node \
            behind a tunnel.",
    alert: Alert::ByHand,
    meaning: "The default route leads to a gateway whose ARP or NDP entry was removed, replaced, points to a wrong hardware \
             address or does not resolve. Nothing that it sends outside arrives. Where the entry was static, as Calico sets \
             it, the kernel does not find it again by itself. The entry of another node on a VXLAN or Geneve device of the host \
             is the gateway of all pods there: without it, this node reaches none of them.",
    remedy: "Put the entry back, or restart the pod, as the advice of the incident says; then find out why the actor \
             of the incident removed it.",
    severities: &[Severity::Warning, Severity::Critical],
    counted: "events of the loss",
    thresholds: THRESHOLDS,
    watched_by: Watch::Netlink,
    is_optional: false,
    start: |thresholds| Box::new(GatewayNeighborLost::new(thresholds)),
};

/// The namespace of an open incident is read again after this time, so that a repair that no hook reports closes it within
/// two seconds: on a kernel without hooks, beyond the number of gateways that they know, or of records that were lost.
const REREAD_INTERVAL: BootNs = SECOND * 3 / 2;
/// With many open incidents namespaces are read less often: so many a second, at a few percent of a core.
const REREADS_PER_SECOND: BootNs = 16;
/// A namespace whose snapshot did not arrive is requested again after this time.
const REREAD_RETRY: BootNs = 30 * SECOND;
/// A new pod's network is set up by then. Its namespace is read again, since no event reports the added entry.
const NETWORK_SETUP: BootNs = 10 * SECOND;
/// Delay of a check of all namespaces, because changes of the model come in bursts.
const CHECK_ALL_DELAY: BootNs = SECOND;
/// The event of a change may still be pending in the core for this time.
const PENDING_EVENT: BootNs = SECOND;
/// An event can be attributed to a container that becomes known within this time.
const UNATTRIBUTED_NS: BootNs = 60 * SECOND;
const UNATTRIBUTED_MAX: usize = 64;
/// Faults of one container or pod.
const ACCOUNT_MAX: usize = 128;
/// Faults in namespaces that users made themselves, of one account and of all, and events of these that can be attributed
/// later: they take no places from others.
const FOREIGN_ACCOUNT_MAX: usize = 16;
const FOREIGN_MAX: usize = 256;
const FOREIGN_UNATTRIBUTED_MAX: usize = 16;
/// The kernel garbage-collects an unresolved entry that is no longer used. An incident about it expires after this time.
const UNUSED_AFTER: BootNs = 300 * SECOND;

thresholds! {
    /// A learned gateway entry may stay unresolved for this time.
    LEARNED_GATEWAY_FAILED = "learned_gateway_failed_seconds", default 10, Unit::Seconds;
    /// A lost gateway is critical after this time.
    GATEWAY_CRITICAL = "gateway_critical_seconds", default 60, Unit::Seconds;
    /// What only a snapshot of the neighbor table shows must persist for this time.
    GATEWAY_CONFIRM = "gateway_confirm_seconds", default 5, Unit::Seconds;
    /// A pod younger than this may not have its gateway yet.
    GATEWAY_YOUNG_POD = "gateway_young_pod_seconds", default 60, Unit::Seconds;
    /// A pod whose whole network was removed may go on running for this time: it is being deleted.
    GATEWAY_TEARDOWN = "gateway_teardown_seconds", default 60, Unit::Seconds;
    /// A pod without a static gateway entry has lost it if at least this many similar pods have one.
    GATEWAY_STATIC_PODS = "gateway_static_pods", default 3, Unit::Count;
    /// A pod without a static gateway entry has lost it only if at least this share of all similar pods have one.
    GATEWAY_STATIC_PERCENT = "gateway_static_percent", default 80, Unit::Percent;
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct GatewayNeighborLost {
    #[serde(skip)]
    thresholds: Thresholds,
    #[serde(with = "kevtmon_types::pairs")]
    faults: BTreeMap<NeighborKey, Fault>,
    escalations: Timers<NeighborKey>,
    rereads: RereadSchedule,
    #[serialize_always]
    check_all_at: Option<BootNs>,
    /// Events in namespaces whose container is not known yet.
    unattributed: VecDeque<UnattributedEvent>,
    /// What was wrong when its container left the namespace: whoever is there since has not lost it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    left: BTreeSet<NeighborKey>,
    /// Deletions that may turn out to be losses.
    #[serde(default)]
    undecided: Undecided,
    changes: LinkChanges,
    #[serde(default)]
    bridges: BridgeMacs,
    #[serde(default)]
    strays: Strays,
    #[serde(default)]
    tunnels: LostHops,
    /// When records of the kernel were lost last.
    lost_at: Option<BootNs>,
    /// The same of records of unprivileged users among themselves.
    users_lost_at: Option<BootNs>,
}

impl GatewayNeighborLost {
    pub(super) fn new(thresholds: &Thresholds) -> Self {
        Self { thresholds: thresholds.clone(), ..Self::default() }
    }

    fn critical_after(&self) -> BootNs {
        seconds(self.thresholds.get(&GATEWAY_CRITICAL))
    }

    fn neighbor(
        &mut self,
        context: &Context<'_>,
        event: &Event,
        neighbor: &Neighbor,
        findings: &mut Findings,
    ) {
        let key = key(neighbor);
        if neighbor.cause == "netns-exit" || neighbor.after_exit {
            return self.close(key, CloseReason::SubjectGone, Some(event.seq), findings);
        }
        let known = event.target.as_deref().cloned().filter(health::is_live_target);
        let found = known.or_else(|| health::live_target(context.node, key.netns)).and_then(|target| {
            Some((GatewayOwner::of(&target, key.netns, context.node.namespaces.get(key.netns))?, target))
        });
        let Some((mut owner, target)) = found else {
            if matches!(event.kind, Kind::NeighborDeleted | Kind::NeighborChanged) {
                self.keep_unattributed(context, event, key.netns);
            }
            return;
        };
        match self.faults.get(&key).map(|fault| &fault.owner) {
            Some(known) if known.is_same(&owner) => owner = known.clone(),
            // The kernel reused the inode number of a namespace that is gone.
            Some(_) => self.close(key, CloseReason::SubjectGone, None, findings),
            None => {}
        }
        match event.kind {
            Kind::NeighborAdded => self.set(context, (owner, target), event, neighbor, findings),
            Kind::NeighborFailed => self.failed(context, key, owner, event, findings),
            Kind::NeighborChanged if is_repair(context.node, neighbor) => {
                self.recheck(context, key.netns, Some(event.seq), findings);
            }
            // An entry that was learned is resolved again.
            Kind::NeighborDeleted
                if fault::is_of_unknown_state(event) && !fault::was_static(context.node, key) =>
            {
                self.keep(context, event, key.netns);
            }
            Kind::NeighborChanged | Kind::NeighborDeleted => {
                let fault = Fault::lost(context, owner, target, event);
                if event.kind == Kind::NeighborDeleted && !self.has_room(context, key, &fault) {
                    findings.discard();
                    // There may be some once it is found that the entry is missed.
                    return self.keep(context, event, key.netns);
                }
                self.lost(context, key, fault, findings);
            }
            _ => {}
        }
    }

    /// A static entry was deleted or replaced.
    fn lost(&mut self, context: &Context<'_>, key: NeighborKey, fault: Fault, findings: &mut Findings) {
        let is_open = self.faults.get(&key).is_some_and(|known| known.phase == FaultPhase::Open);
        if !is_open {
            let Some(delay) = self.delay(context, key, &fault) else {
                return self.open(context, key, fault, findings);
            };
            let due = context.now + delay;
            if fault.is_downgrade() {
                // It may be removed meanwhile, of which no event tells.
                let look = context.now + seconds(self.thresholds.get(&GATEWAY_CONFIRM));
                self.rereads.schedule(key.netns, look);
            }
            return self.suspect(
                context,
                key,
                Fault { phase: FaultPhase::Suspected { due }, ..fault },
                findings,
            );
        }
        if let Some(known) = self.faults.get_mut(&key) {
            let is_new = known.reason != fault.reason;
            let count = if known.is_repeated_by(&fault) { Count::More(1) } else { Count::Restart(1) };
            *known = Fault { first: known.first, ..fault };
            let report = known.report(context, key, Severity::Warning, is_new);
            findings.report(Report { count, ..report });
        }
    }

    /// How long a lost entry is only suspected to matter; `None` if it matters at once.
    fn delay(&self, context: &Context<'_>, key: NeighborKey, fault: &Fault) -> Option<BootNs> {
        if fault.is_downgrade() {
            return Some(recheck::REPLACED_AFTER);
        }
        let cause = fault.objects.neighbor.as_ref().map_or("", |entry| entry.cause.as_str());
        let with_interface = ["link-deleted", "link-down", "last-address-removed"].contains(&cause);
        if with_interface && is_replaceable(context.node, key) {
            return Some(seconds(self.thresholds.get(&GATEWAY_CONFIRM)));
        }
        // A CNI plugin takes the network down before the runtime stops the container.
        if cause == "link-deleted" || self.is_torn_down(context, &fault.owner, fault.last) {
            return Some(seconds(self.thresholds.get(&GATEWAY_TEARDOWN)));
        }
        // A process that only came for the deletion does not live there.
        fault.is_by_its_owner().then(|| seconds(self.thresholds.get(&GATEWAY_CONFIRM)))
    }

    /// Whether the sandbox itself is being deleted, or was so shortly before, so that its end is near: as root of the node
    /// has told a CNI plugin.
    fn is_torn_down(&self, context: &Context<'_>, owner: &GatewayOwner, at: BootNs) -> bool {
        context.node.cni.is_deleted_about(&owner.id, at, seconds(self.thresholds.get(&GATEWAY_TEARDOWN)))
    }

    fn has_room(&self, context: &Context<'_>, key: NeighborKey, fault: &Fault) -> bool {
        if self.faults.contains_key(&key) {
            return true;
        }
        if !context.incidents.has_room_for(&fault.objects) {
            return false;
        }
        let whose = fault.account();
        let alike = || self.faults.values().filter(|known| known.owner.is_foreign == fault.owner.is_foreign);
        let his = alike().filter(|known| known.account() == whose).count();
        let is_fair = match fault.owner.is_foreign {
            true => his < FOREIGN_ACCOUNT_MAX && alike().count() < FOREIGN_MAX,
            // The host has no account.
            false => his < ACCOUNT_MAX || whose.is_none_or(|whose| whose.is_empty()),
        };
        self.faults.len() < CAPACITY && is_fair
    }

    fn suspect(&mut self, context: &Context<'_>, key: NeighborKey, fault: Fault, findings: &mut Findings) {
        let FaultPhase::Suspected { due } = fault.phase else { return };
        if !self.has_room(context, key, &fault) {
            return findings.discard();
        }
        self.faults.insert(key, fault);
        self.rereads.schedule(key.netns, due);
    }

    fn open(&mut self, context: &Context<'_>, key: NeighborKey, fault: Fault, findings: &mut Findings) {
        if !self.has_room(context, key, &fault) {
            return findings.discard();
        }
        let mut fault = Fault { phase: FaultPhase::Open, ..fault };
        self.explain(context, key, &mut fault);
        findings.report(fault.report(context, key, Severity::Warning, true));
        self.escalations.set(&key, context.now + self.critical_after());
        self.rereads.schedule(key.netns, context.now + REREAD_INTERVAL);
        self.faults.insert(key, fault);
    }

    fn close(
        &mut self,
        key: NeighborKey,
        reason: CloseReason,
        evidence: Option<u64>,
        findings: &mut Findings,
    ) {
        self.escalations.cancel(&key);
        if self.keys(Some(key.netns)) == [key] {
            self.rereads.cancel(key.netns);
        }
        if let Some(fault) = self.faults.remove(&key)
            && fault.phase == FaultPhase::Open
        {
            findings.close(subject(&fault.owner, key), reason, evidence);
        }
    }

    /// The keys of the faults in a namespace; in all of them for `None`.
    fn keys(&self, netns: Option<NsInum>) -> Vec<NeighborKey> {
        let least = |netns| NeighborKey { netns, ifindex: 0, address: IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
        let from = least(netns.unwrap_or(0));
        let of_it = |key: &&NeighborKey| netns.is_none_or(|netns| key.netns == netns);
        self.faults.range(from..).map(|(key, _)| key).take_while(of_it).copied().collect()
    }

    fn advise(&self, context: &Context<'_>, netns: NsInum, findings: &mut Findings) {
        for key in self.keys(Some(netns)) {
            let open = self.faults.get(&key).filter(|fault| fault.phase == FaultPhase::Open);
            let Some((fault, target)) = open.and_then(|fault| Some((fault, fault.objects.target.as_ref()?)))
            else {
                continue;
            };
            findings.advise(
                subject(&fault.owner, key),
                Some(repair::ruled_out(context.node, key, fault.explanation.as_ref())),
                repair::advice_for(context, fault, key, target),
            );
        }
    }
}

impl Diagnosis for GatewayNeighborLost {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn event(&mut self, context: &Context<'_>, event: &Event, findings: &mut Findings) {
        self.changes.note_route(context.node.host_netns, event);
        self.strays.note(context.node.host_netns, event);
        if let Some(link) = event.link.as_ref() {
            self.changes.note(context.node.host_netns, event);
            if let Some(bridge) = self.bridges.note(context.node.host_netns, event) {
                self.bridge_changed(context, bridge);
            }
            // The advice depends on both ends of a pair.
            let other = link.peer.as_ref().and_then(|peer| peer.netns).filter(|netns| *netns != link.netns);
            for netns in [Some(link.netns), other].into_iter().flatten() {
                self.advise(context, netns, findings);
            }
            self.tunnels.recheck_all(context, findings);
        }
        if let Some(route) = event.route.as_ref() {
            self.advise(context, route.netns, findings);
        }
        match event.kind {
            Kind::NeighborDeleted | Kind::NeighborChanged | Kind::NeighborFailed | Kind::NeighborAdded => {
                if let Some(entry) = event.neighbor.as_ref().filter(|entry| is_of_tunnel(context, entry)) {
                    self.tunnels.event(context, event, entry, findings);
                } else if let Some(neighbor) =
                    event.neighbor.as_ref().filter(|entry| concerns(context, event, entry))
                {
                    self.neighbor(context, event, neighbor, findings);
                } else {
                    self.keep_undecided(context, event);
                }
            }
            Kind::ContainerStarted => {
                let id = event.target.as_ref().and_then(|target| target.container.as_ref());
                let netns = id.and_then(|container| context.node.containers.get(&container.id)?.netns);
                if let Some(netns) = netns.filter(|netns| *netns != context.node.host_netns) {
                    self.rereads.schedule(netns, context.now + NETWORK_SETUP);
                }
            }
            // A host interface has another MAC address or bridge: entries that point to the old one are wrong now.
            Kind::LinkChanged if changes_host_lladdr(context, event) => self.schedule_check_all(context.now),
            Kind::EventsLost => self.note_lost_records(context.now, event),
            _ => {}
        }
    }

    fn change(&mut self, context: &Context<'_>, change: &ModelChange<'_>, findings: &mut Findings) {
        match change {
            ModelChange::Netns(netns) => {
                self.netns_read(context, *netns, findings);
                if *netns == context.node.host_netns {
                    self.tunnels.read(context, self.critical_after(), findings);
                }
            }
            ModelChange::Resolved(netns) if *netns == context.node.host_netns => {
                self.tunnels.recheck_all(context, findings);
            }
            ModelChange::Resolved(netns) => self.recheck(context, *netns, None, findings),
            ModelChange::Tunnels => self.tunnels.recheck_all(context, findings),
            ModelChange::PodRoutes { elsewhere, .. } => self.strays.answered(context.now, elsewhere),
            ModelChange::HostRoute { address, .. } => self.strays.doubt(*address),
            ModelChange::HostRule(rule) => self.strays.doubt_all(rule),
            ModelChange::NetnsGone(netns) => {
                self.rereads.forget(*netns);
                // The kernel uses its number again.
                self.unattributed.retain(|one| one.netns() != Some(*netns));
                self.undecided.forget(*netns);
                self.left.retain(|key| key.netns != *netns);
                self.changes.forget(*netns);
                for key in self.keys(Some(*netns)) {
                    self.close(key, CloseReason::SubjectGone, None, findings);
                }
            }
            ModelChange::Suspected(fault) => self.take_over(context, fault),
            ModelChange::Container(id) => {
                let facts = context.node.containers.get(id);
                if facts.is_none_or(|facts| !is_live(facts.state)) {
                    self.close_gone(context, findings);
                } else if let Some(netns) = facts.and_then(|facts| facts.netns) {
                    self.attribute(context, findings);
                    self.detect(context, netns, findings);
                }
            }
            ModelChange::Runtime => {
                self.close_gone(context, findings);
                self.attribute(context, findings);
                self.schedule_check_all(context.now);
            }
            ModelChange::RuntimeAvailability => {
                let namespaces: BTreeSet<NsInum> = self.faults.keys().map(|key| key.netns).collect();
                namespaces.into_iter().for_each(|netns| self.advise(context, netns, findings));
            }
            ModelChange::Ready => {
                self.reconcile(context, findings);
                self.tunnels.ready(context);
            }
            _ => {}
        }
    }

    fn tick(&mut self, context: &Context<'_>, findings: &mut Findings) {
        if self.check_all_at.take_if(|due| *due <= context.now).is_some() {
            self.check_all(context, findings);
        }
        self.request_rereads(context, findings);
        while let Some(key) = self.escalations.take_due(context.now) {
            self.escalate(context, key, findings);
        }
        self.tunnels.tick(context, findings);
    }

    fn suspected(&self, context: &Context<'_>) -> Vec<Suspicion> {
        self.suspicions(context)
    }

    fn kept(&self) -> Vec<(NeighborKey, Value)> {
        self.handed_over()
    }

    fn deadline(&self) -> Option<BootNs> {
        let own = self.check_all_at.into_iter().chain(self.tunnels.next());
        own.chain(self.escalations.next()).chain(self.rereads.next()).min()
    }

    fn resume(&mut self, context: &Context<'_>, event: &Event) -> Option<String> {
        let (neighbor, incident) = (event.neighbor.as_ref()?, event.incident.as_ref()?);
        let key = key(neighbor);
        if key.netns == context.node.host_netns {
            return self.tunnels.resume(context, event, self.critical_after());
        }
        let owner = GatewayOwner::of(event.target.as_ref()?, key.netns, None)?;
        if self.faults.contains_key(&key) {
            return None;
        }
        let subject = subject(&owner, key);
        let opened = context.clock.boot_ns(&incident.opened).unwrap_or(context.now);
        if incident.severity < Severity::Critical {
            self.escalations.set(&key, opened.saturating_add(self.critical_after()));
        }
        self.faults.insert(key, Fault::resumed(context, owner, event, incident, neighbor));
        Some(subject)
    }

    fn save(&self) -> Result<Value, serde_json::Error> {
        serde_json::to_value(self)
    }

    fn restore(&mut self, saved: Value) -> Result<(), serde_json::Error> {
        let thresholds = self.thresholds.clone();
        *self = Self { thresholds, ..serde_json::from_value(saved)? };
        for one in self.unattributed.iter_mut().chain(&mut self.undecided.events) {
            one.event.at = one.at;
        }
        Ok(())
    }
}

/// Whether an event is one of a gateway's entry. Where the route came to lead there at about the same time, what counts is
/// that the entry is missed now.
fn concerns(context: &Context<'_>, event: &Event, entry: &Neighbor) -> bool {
    let namespace = context.node.namespaces.get(entry.netns);
    let is_missed = || namespace.is_some_and(|known| known.is_missed(entry.ifindex, entry.address));
    match event.kind {
        // It may be added before the route that leads to it, and be missed all the same.
        Kind::NeighborAdded => entry.gateway == Some(true) || is_missed(),
        _ => entry.gateway.unwrap_or_else(|| event.kind == Kind::NeighborDeleted && is_missed()),
    }
}

fn changes_host_lladdr(context: &Context<'_>, event: &Event) -> bool {
    let is_it = |change: &String| change == "mac" || change == "master";
    let of_host = event.link.as_ref().filter(|link| link.netns == context.node.host_netns);
    of_host.is_some_and(|link| link.change.iter().any(is_it))
}

/// Whether the model shows that a changed entry is a good one: static, or of another state with another address than
/// before.
fn is_repair(node: &NodeView<'_>, neighbor: &Neighbor) -> bool {
    match health::health(node, key(neighbor)) {
        Health::Correct => true,
        Health::Usable => neighbor.new_lladdr.is_some(),
        _ => false,
    }
}

fn is_restored(node: &NodeView<'_>, key: NeighborKey) -> bool {
    matches!(health::health(node, key), Health::Correct | Health::Static | Health::Usable)
}

#[cfg(test)]
mod tests;
