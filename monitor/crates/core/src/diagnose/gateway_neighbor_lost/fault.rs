//! The fault of one gateway: its owner, what happened to its entry, and the report about it.

use std::borrow::Cow;

use kevtmon_event::wording::target_label;
use kevtmon_event::{Confidence, Event, Incident, Kind, Neighbor, Severity, Shared, Target};
use kevtmon_observation::{BootNs, LlAddr, NeighborKey, NsInum};
use serde::{Deserialize, Serialize};

use super::health::Health;
use super::host_side::Explanation;
use super::{health, may_be_harmless, repair, wording};
use crate::diagnose::Context;
use crate::diagnose::finding::{Count, IncidentObjects, Report};
use crate::node::gateways::Gateway;
use crate::node::namespaces::Namespace;
use crate::node::tenant::of_target;
use crate::node::view::NodeView;

/// The states in which packets go to a link-layer address at once.
const USABLE: [&str; 5] = ["reachable", "stale", "delay", "probe", "noarp"];
/// Those that the kernel checks.
const LEARNED: [&str; 4] = ["reachable", "stale", "delay", "probe"];
const PERMANENT: &str = "permanent";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum FaultReason {
    Missing,
    WrongLladdr,
    Failed,
}

impl FaultReason {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::WrongLladdr => "wrong-lladdr",
            Self::Failed => "failed",
        }
    }

    pub(super) fn of(name: Option<&str>) -> Self {
        match name {
            Some("wrong-lladdr") => Self::WrongLladdr,
            Some("failed") => Self::Failed,
            _ => Self::Missing,
        }
    }
}

/// The owner of a gateway: a container, or a namespace in which other processes live.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GatewayOwner {
    /// Id of the pod's sandbox, else of the container; for other namespaces `netns:` with the cookie.
    pub(super) id: String,
    /// Id of the container; empty where none is known.
    pub(super) container: String,
    /// For the summary: `pod lijiaob/etcd1-0`.
    pub(super) label: String,
    /// Whether a runtime reported the container, and so will report its exit.
    pub(super) by_runtime: bool,
    /// Whether users made the namespace themselves: their loss is a notice at most.
    pub(super) is_foreign: bool,
    pub(super) cookie: Option<u64>,
    /// When the process started by which a container is known: the oldest one in the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) started: Option<BootNs>,
}

impl GatewayOwner {
    /// The owner of `netns`, as far as that is known; `None` if nothing lives in it.
    pub(super) fn of(target: &Target, netns: NsInum, namespace: Option<&Namespace>) -> Option<Self> {
        let (id, container) = match &target.container {
            Some(container) => {
                let sandbox = target.pod.as_ref().and_then(|pod| pod.sandbox_id.clone());
                (sandbox.unwrap_or_else(|| container.id.clone()), container.id.clone())
            }
            None => {
                target.process.as_ref()?;
                let cookie = target.netns_cookie.clone();
                (format!("netns:{}", cookie.unwrap_or_else(|| netns.to_string())), String::new())
            }
        };
        let pid = target.container.as_ref().and_then(|container| container.pid);
        let process = namespace.and_then(|namespace| namespace.owner.as_ref());
        let cookie = namespace.and_then(|namespace| namespace.cookie);
        Some(Self {
            id,
            container,
            label: target_label(target).unwrap_or_default(),
            by_runtime: target.container.as_ref().is_some_and(|container| container.name.is_some()),
            is_foreign: target.is_foreign(),
            cookie: cookie.or_else(|| target.netns_cookie.as_ref()?.parse().ok()),
            started: process.filter(|process| Some(process.tgid) == pid).map(|process| process.start_ns),
        })
    }

    /// Whether both are of the same namespace: one that was known by a process has become a container's, perhaps.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.id == other.id || self.cookie.is_some_and(|cookie| other.cookie == Some(cookie))
    }

    /// The severity of its faults, at most.
    pub(super) fn severity(&self, severity: Severity) -> Severity {
        if self.is_foreign { severity.min(Severity::Notice) } else { severity }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum FaultPhase {
    /// Opens an incident if it persists until then.
    Suspected {
        due: BootNs,
    },
    Open,
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Fault {
    pub(super) owner: GatewayOwner,
    pub(super) ifname: String,
    pub(super) reason: FaultReason,
    pub(super) confidence: Confidence,
    /// What happened to the entry, as the end of the summary.
    pub(super) what_happened: String,
    pub(super) phase: FaultPhase,
    pub(super) first: BootNs,
    pub(super) last: BootNs,
    pub(super) evidence: Vec<u64>,
    pub(super) objects: IncidentObjects,
    pub(super) found_at_start: bool,
    /// Whether packets reached the gateway by a learned entry since then: what fails later has another cause.
    pub(super) recovered: bool,
    /// Whether the entry was not static.
    pub(super) learned: bool,
    /// Since when the entry is seen to be gone that was wrong before; the event that names who removed it may still come.
    pub(super) gone_since: Option<BootNs>,
    /// What is known of the host's side.
    pub(super) explanation: Option<Explanation>,
}

impl Fault {
    /// One that is open, and was observed then. `objects` have the entry.
    pub(super) fn new(
        owner: GatewayOwner,
        reason: FaultReason,
        objects: IncidentObjects,
        at: BootNs,
    ) -> Self {
        Self {
            owner,
            ifname: objects.neighbor.as_ref().map(|entry| entry.ifname.clone()).unwrap_or_default(),
            reason,
            confidence: Confidence::Certain,
            what_happened: String::new(),
            phase: FaultPhase::Open,
            first: at,
            last: at,
            evidence: Vec::new(),
            objects,
            found_at_start: false,
            recovered: false,
            learned: false,
            gone_since: None,
            explanation: None,
        }
    }

    /// Whose incident it is, or would be.
    pub(super) fn account(&self) -> Option<Cow<'_, str>> {
        self.objects.target.as_deref().map(of_target)
    }

    /// Takes what is known of the owner by now: the process known at first may have left, and the runtime may have
    /// reported the container only since.
    pub(super) fn learn_owner(&mut self, context: &Context<'_>, netns: NsInum) {
        let is_vague = |known: &Target| {
            known.process.is_some()
                || known.container.as_ref().is_some_and(|container| container.name.is_none())
        };
        if !self.objects.target.as_deref().is_none_or(is_vague) {
            return;
        }
        let namespace = context.node.namespaces.get(netns);
        if let Some(target) = health::live_target(context.node, netns)
            && let Some(owner) = GatewayOwner::of(&target, netns, namespace)
        {
            self.owner = GatewayOwner { cookie: owner.cookie.or(self.owner.cookie), ..owner };
            self.objects.target = Some(Shared::new(target));
        }
    }

    /// The fault of a static entry that was deleted or replaced, or of one that was set to a wrong address.
    pub(super) fn lost(context: &Context<'_>, owner: GatewayOwner, target: Target, event: &Event) -> Self {
        let neighbor = event.neighbor.as_ref();
        let is_set = neighbor.is_some_and(|entry| is_set(entry));
        let replaced = is_set || neighbor.is_some_and(|entry| entry.new_lladdr.is_some());
        let reason = if replaced { FaultReason::WrongLladdr } else { FaultReason::Missing };
        // The new address may be correct if the gateway has moved, unless the model shows otherwise.
        let known = neighbor.is_some_and(|entry| is_wrong(context, entry));
        let is_doubted = is_of_unknown_state(event)
            || replaced && !known
            || neighbor.is_some_and(|entry| may_be_harmless(context.node, key(entry)));
        let mut objects = IncidentObjects { target: Some(Shared::new(target)), ..IncidentObjects::of(event) };
        if let Some(entry) = &mut objects.neighbor {
            entry.reason = Some(reason.name().to_owned());
            entry.gateway = Some(true);
        }
        Self {
            confidence: if is_doubted { Confidence::Likely } else { Confidence::Certain },
            what_happened: wording::what_happened(event),
            evidence: vec![event.seq],
            learned: is_set && neighbor.is_some_and(|entry| entry.new_state.as_deref() != Some(PERMANENT)),
            ..Self::new(owner, reason, objects, event.at)
        }
    }

    /// Whether the entry was deleted, rather than replaced or downgraded.
    pub(super) fn is_deletion(&self) -> bool {
        let entry = self.objects.neighbor.as_ref();
        self.reason == FaultReason::Missing && entry.is_none_or(|entry| entry.new_state.is_none())
    }

    /// Whether the entry lost its permanence alone: packets go where they went, until it has to be resolved again.
    pub(super) fn is_downgrade(&self) -> bool {
        let entry = self.objects.neighbor.as_ref().filter(|_| self.reason == FaultReason::Missing);
        let state =
            entry.filter(|entry| entry.new_lladdr.is_none()).and_then(|entry| entry.new_state.as_deref());
        state.is_some_and(|state| USABLE.contains(&state))
    }

    /// Whether the only process known in the namespace is the one that did it, or one above that.
    pub(super) fn is_by_its_owner(&self) -> bool {
        let process = self.objects.target.as_ref().and_then(|target| target.process.as_ref());
        let (Some(process), Some(actor)) = (process, &self.objects.actor) else { return false };
        actor.pid == process.pid || actor.ancestors.iter().any(|ancestor| ancestor.pid == process.pid)
    }

    /// Whether the same process did the same again.
    pub(super) fn is_repeated_by(&self, newer: &Self) -> bool {
        let actor = |fault: &Self| {
            let actor = fault.objects.actor.as_ref()?;
            Some((actor.pid, actor.start_time_ns.clone()))
        };
        let cause = |fault: &Self| fault.objects.neighbor.as_ref().map(|entry| entry.cause.clone());
        self.reason == newer.reason && actor(self) == actor(newer) && cause(self) == cause(newer)
    }

    /// Something else is wrong with the entry than before, and nobody was seen doing it.
    pub(super) fn turn(&mut self, context: &Context<'_>, reason: FaultReason, entry: Neighbor, what: String) {
        self.reason = reason;
        let is_doubted = reason == FaultReason::WrongLladdr || may_be_harmless(context.node, key(&entry));
        self.confidence = if is_doubted { Confidence::Likely } else { Confidence::Certain };
        self.what_happened = what;
        self.learned &= entry.state.as_deref() != Some(PERMANENT);
        self.last = context.now;
        self.evidence.clear();
        (self.recovered, self.gone_since) = (false, None);
        self.objects.actor = None;
        self.explanation = None;
        self.objects.neighbor = Some(Box::new(entry));
    }

    /// The report about it. Advice is left out of repetitions, since it does not change.
    pub(super) fn report(
        &self,
        context: &Context<'_>,
        key: NeighborKey,
        severity: Severity,
        with_advice: bool,
    ) -> Report {
        let target = self.objects.target.as_ref().filter(|_| with_advice);
        let (subject, severity) = (subject(&self.owner, key), self.owner.severity(severity));
        let summary = wording::summary(self, key);
        Report {
            ruled_out: target.map(|_| repair::ruled_out(context.node, key, self.explanation.as_ref())),
            advice: target.map(|target| repair::advice_for(context, self, key, target)),
            objects: self.objects.clone(),
            first: self.first,
            count: Count::More(u64::try_from(self.evidence.len()).unwrap_or(1).max(1)),
            evidence: self.all_evidence(),
            found_at_start: self.found_at_start,
            host_cause: self.explanation.as_ref().and_then(|known| known.host_cause(context.node)),
            ..Report::new(subject, severity, self.confidence, summary, self.last.min(context.now))
        }
    }

    fn all_evidence(&self) -> Vec<u64> {
        let of_host = self.explanation.as_ref().map(|known| known.seq).filter(|seq| *seq != 0);
        let mut all: Vec<u64> = of_host.into_iter().chain(self.evidence.iter().copied()).collect();
        all.sort_unstable();
        all
    }

    /// The fault of an incident that the previous run of the daemon left open.
    pub(super) fn resumed(
        context: &Context<'_>,
        owner: GatewayOwner,
        event: &Event,
        incident: &Incident,
        neighbor: &Neighbor,
    ) -> Self {
        let first = context.clock.boot_ns(&incident.first_seen).unwrap_or_default();
        let is_learned = neighbor.reason.as_deref() == Some(FaultReason::WrongLladdr.name())
            && neighbor.state.as_deref().is_some_and(|state| LEARNED.contains(&state));
        let reason = FaultReason::of(neighbor.reason.as_deref());
        let mut fault = Self {
            confidence: incident.confidence,
            what_happened: wording::what_happened(event),
            learned: is_learned,
            ..Self::new(owner, reason, IncidentObjects::of(event), first)
        };
        let text = incident.summary.strip_prefix(&wording::summary(&fault, key(neighbor)));
        fault.explanation = text
            .and_then(|text| text.strip_prefix(wording::AND))
            .map(|text| Explanation::resumed(text, context.now));
        fault
    }
}

/// Whether the entry was static by what the model knew of it last.
pub(super) fn was_static(node: &NodeView<'_>, key: NeighborKey) -> bool {
    node.gateway(key).is_some_and(|gateway| gateway.static_lladdr.is_some() && !gateway.gone_before_start)
}

/// Whether an entry is gone of which the kernel did not show whether it was static.
pub(super) fn is_of_unknown_state(event: &Event) -> bool {
    event.kind == Kind::NeighborDeleted && event.neighbor.as_ref().is_some_and(|entry| entry.state.is_none())
}

/// Whether an event tells that an entry was set where there was no static one.
pub(super) fn is_set(entry: &Neighbor) -> bool {
    entry.cause == "admin" && entry.new_state.is_some()
}

/// The address that an entry has after a change: one that stays is told as the one before.
pub(super) fn lladdr_after(entry: &Neighbor) -> Option<&str> {
    entry.new_lladdr.as_deref().or(entry.lladdr.as_deref())
}

/// Whether the entry is still as it was set, which the model shows to be wrong.
pub(super) fn is_set_wrong(node: &NodeView<'_>, entry: &Neighbor) -> bool {
    let key = key(entry);
    let is_as_set = |lladdr: &LlAddr| Some(lladdr.to_string().as_str()) == lladdr_after(entry);
    node.gateway(key).and_then(Gateway::lladdr).is_some_and(is_as_set)
        && health::health(node, key) == Health::Wrong
        && !health::is_former(node, key)
}

/// Whether the model shows that an entry was given an address by which the gateway is not reached.
fn is_wrong(context: &Context<'_>, entry: &Neighbor) -> bool {
    let key = key(entry);
    let expected = context.node.gateway_lladdr(key).map(ToString::to_string);
    health::health(context.node, key) == Health::Wrong
        || expected.is_some() && expected.as_deref() != lladdr_after(entry)
}

pub(super) fn subject(owner: &GatewayOwner, key: NeighborKey) -> String {
    format!("{}/{}/{}", owner.id, key.ifindex, key.address)
}

pub(super) fn key(neighbor: &Neighbor) -> NeighborKey {
    NeighborKey { netns: neighbor.netns, ifindex: neighbor.ifindex, address: neighbor.address }
}
