//! One gateway in trouble: whose it is, what happened to its entry, and the report that is made of it.

use serde::{Deserialize, Serialize};

use super::judge::Health;
use super::{judge, wording};
use crate::diagnose::Context;
use crate::diagnose::finding::{Count, IncidentObjects, Report};
use crate::event::wording::owner_phrase;
use crate::event::{Confidence, Event, Incident, Neighbor, Severity, Target};
use crate::observation::{BootNs, NeighborKey};

/// What is wrong.
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

/// Whose gateway it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GatewayOwner {
    /// The pod's sandbox, or the container.
    pub(super) id: String,
    pub(super) container: String,
    /// `pod lijiaob/etcd1-0`.
    pub(super) label: String,
    /// Whether a runtime told of it, and so will tell when it ends.
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
    /// Counts if it is still so at that time.
    Suspected {
        due: BootNs,
    },
    Open,
}

/// One gateway in trouble.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Fault {
    pub(super) owner: GatewayOwner,
    pub(super) ifname: String,
    pub(super) reason: FaultReason,
    pub(super) confidence: Confidence,
    /// What happened to the entry, as the end of a sentence.
    pub(super) what_happened: String,
    pub(super) phase: FaultPhase,
    pub(super) first: BootNs,
    /// When it was last seen to be so.
    pub(super) last: BootNs,
    pub(super) evidence: Vec<u64>,
    pub(super) objects: IncidentObjects,
    pub(super) interval_index: usize,
    pub(super) found_at_start: bool,
}

impl Fault {
    /// A static entry was taken away or made another.
    pub(super) fn lost(context: &Context<'_>, owner: GatewayOwner, target: Target, event: &Event) -> Self {
        let neighbor = event.neighbor.as_ref();
        let replaced = neighbor.is_some_and(|entry| {
            entry.new_lladdr.is_some() && entry.new_state.as_deref() == Some("permanent")
        });
        let reason = if replaced { FaultReason::WrongLladdr } else { FaultReason::Missing };
        // Another address may be the right one of a gateway that moved, unless it is known not to be.
        let known = neighbor.is_some_and(|entry| judge::health(context.node, key(entry)) == Health::Wrong);
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

    /// What is to be said of it; the advice does not change with each repetition.
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
            advice: target.map(|target| wording::steps(context.node, self, key, target)),
            objects: self.objects.clone(),
            first: self.first,
            last: self.last.min(context.now),
            count: Count::More(u64::try_from(self.evidence.len()).unwrap_or(1).max(1)),
            evidence: self.evidence.clone(),
            found_at_start: self.found_at_start,
            caused_by: Vec::new(),
        }
    }

    /// As an earlier run of the daemon left it.
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
