//! The fault of one gateway: its owner, what happened to its entry, and the report about it.

use serde::{Deserialize, Serialize};

use super::health::Health;
use super::{health, repair, wording};
use crate::diagnose::Context;
use crate::diagnose::finding::{Count, IncidentObjects, Report};
use crate::event::wording::owner_phrase;
use crate::event::{Confidence, Event, Incident, Neighbor, Severity, Target};
use crate::observation::{BootNs, NeighborKey};

/// What is wrong with the entry.
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

/// The owner of a gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GatewayOwner {
    /// Id of the pod's sandbox, else of the container.
    pub(super) id: String,
    pub(super) container: String,
    /// For the summary: `pod lijiaob/etcd1-0`.
    pub(super) label: String,
    /// Whether a runtime reported the container, and so will report its exit.
    pub(super) by_runtime: bool,
}

impl GatewayOwner {
    pub(super) fn of(target: &Target) -> Option<Self> {
        let container = target.container.as_ref()?;
        let sandbox = target.pod.as_ref().and_then(|pod| pod.sandbox_id.clone());
        Some(Self {
            id: sandbox.unwrap_or_else(|| container.id.clone()),
            container: container.id.clone(),
            label: owner_phrase(target).trim_start_matches(" of ").to_owned(),
            by_runtime: container.name.is_some(),
        })
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

/// The fault of one gateway.
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
    /// When it was last observed.
    pub(super) last: BootNs,
    pub(super) evidence: Vec<u64>,
    pub(super) objects: IncidentObjects,
    pub(super) interval_index: usize,
    pub(super) found_at_start: bool,
}

impl Fault {
    /// The fault of a static entry that was deleted or replaced.
    pub(super) fn lost(context: &Context<'_>, owner: GatewayOwner, target: Target, event: &Event) -> Self {
        let neighbor = event.neighbor.as_ref();
        let replaced = neighbor.is_some_and(|entry| {
            entry.new_lladdr.is_some() && entry.new_state.as_deref() == Some("permanent")
        });
        let reason = if replaced { FaultReason::WrongLladdr } else { FaultReason::Missing };
        // The new address may be correct if the gateway has moved, unless the model shows otherwise.
        let known = neighbor.is_some_and(|entry| health::health(context.node, key(entry)) == Health::Wrong);
        let mut objects = IncidentObjects { target: Some(Box::new(target)), ..IncidentObjects::of(event) };
        if let Some(entry) = &mut objects.neighbor {
            entry.reason = Some(reason.name().to_owned());
        }
        Self {
            owner,
            ifname: neighbor.map(|entry| entry.ifname.clone()).unwrap_or_default(),
            reason,
            confidence: if replaced && !known { Confidence::Likely } else { Confidence::Certain },
            what_happened: wording::what_happened(event),
            phase: FaultPhase::Open,
            first: event.at,
            last: event.at,
            evidence: vec![event.seq],
            objects,
            interval_index: 0,
            found_at_start: false,
        }
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
        Report {
            subject: subject(&self.owner, key),
            severity,
            confidence: self.confidence,
            summary: wording::summary(self, key),
            ruled_out: target.map(|_| repair::ruled_out(context.node, key)),
            advice: target.map(|target| repair::advice_for(context, self, key, target)),
            objects: self.objects.clone(),
            first: self.first,
            last: self.last.min(context.now),
            count: Count::More(u64::try_from(self.evidence.len()).unwrap_or(1).max(1)),
            evidence: self.evidence.clone(),
            found_at_start: self.found_at_start,
            caused_by: Vec::new(),
        }
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
        Self {
            owner,
            ifname: neighbor.ifname.clone(),
            reason: FaultReason::of(neighbor.reason.as_deref()),
            confidence: incident.confidence,
            what_happened: wording::what_happened(event),
            phase: FaultPhase::Open,
            first,
            last: first,
            evidence: Vec::new(),
            objects: IncidentObjects::of(event),
            interval_index: 0,
            found_at_start: false,
        }
    }
}

pub(super) fn subject(owner: &GatewayOwner, key: NeighborKey) -> String {
    format!("{}/{}/{}", owner.id, key.ifindex, key.address)
}

pub(super) fn key(neighbor: &Neighbor) -> NeighborKey {
    NeighborKey { netns: neighbor.netns, ifindex: neighbor.ifindex, address: neighbor.address }
}
