//! The faults that are not judged yet, in words.

use kevtmon_event::Confidence;
use kevtmon_observation::NeighborKey;
use kevtmon_types::escape::name;
use serde::Deserialize as _;
use serde_json::Value;

use super::{
    Fault, FaultPhase, FaultReason, GATEWAY_CONFIRM, GatewayNeighborLost, KIND, is_replaceable, key, seconds,
};
use crate::diagnose::{Context, Suspicion};

impl GatewayNeighborLost {
    /// The faults that are not judged yet, for the next run of the daemon.
    pub(super) fn handed_over(&self) -> Vec<(NeighborKey, Value)> {
        let suspected =
            self.faults.iter().filter(|(_, fault)| matches!(fault.phase, FaultPhase::Suspected { .. }));
        suspected.filter_map(|(key, fault)| Some((*key, serde_json::to_value(fault).ok()?))).collect()
    }

    /// Goes on with a fault that the previous run had not judged yet, in a namespace that is still the same.
    pub(super) fn take_over(&mut self, context: &Context<'_>, fault: &Value) {
        // Written by another version, perhaps.
        let Ok(fault) = Fault::deserialize(fault) else { return };
        let (Some(key), FaultPhase::Suspected { due }) =
            (fault.objects.neighbor.as_deref().map(key), fault.phase)
        else {
            return;
        };
        if self.faults.contains_key(&key) || !self.has_room(context, key, &fault) {
            return;
        }
        // The runtimes are to report first who still lives.
        let due = due.max(context.now + seconds(self.thresholds.get(&GATEWAY_CONFIRM)));
        self.rereads.schedule(key.netns, due);
        // It may have been repaired and have broken again while nobody looked.
        let confidence = fault.confidence.min(Confidence::Likely);
        self.faults.insert(key, Fault { phase: FaultPhase::Suspected { due }, confidence, ..fault });
    }

    /// The faults that open incidents if they last, but for those that the model shows to be over.
    pub(super) fn suspicions(&self, context: &Context<'_>) -> Vec<Suspicion> {
        let suspected = self.faults.iter().filter_map(|(key, fault)| match fault.phase {
            FaultPhase::Suspected { due } if !fault.is_resolved(context, *key) => Some((*key, fault, due)),
            FaultPhase::Suspected { .. } | FaultPhase::Open => None,
        });
        suspected
            .map(|(key, fault, due)| Suspicion {
                kind: KIND.to_owned(),
                summary: summary(fault, key),
                reason: self.reason(context, fault, key).to_owned(),
                confidence: fault.confidence,
                since: context.clock.text(fault.first),
                due: context.clock.text(due),
                target: fault.objects.target.as_deref().cloned(),
                neighbor: fault.objects.neighbor.as_deref().cloned(),
                // What is beyond a budget has no number.
                evidence: fault.evidence.iter().copied().filter(|seq| *seq != 0).collect(),
            })
            .collect()
    }

    /// Why it may turn out to be none.
    fn reason(&self, context: &Context<'_>, fault: &Fault, key: NeighborKey) -> &'static str {
        let cause = fault.objects.neighbor.as_ref().map_or("", |entry| entry.cause.as_str());
        let with_interface = ["link-deleted", "link-down", "last-address-removed"].contains(&cause)
            || context.node.gateway(key).is_some_and(|gateway| gateway.went_with_link);
        match fault.reason {
            FaultReason::Failed => "an answer may still come",
            _ if with_interface && is_replaceable(context.node, key) => {
                "another default route may take its place"
            }
            _ if with_interface => "its interface or address went with it, as when a pod is deleted",
            _ if self.is_torn_down(context, &fault.owner, fault.first) => "its sandbox is being deleted",
            _ if fault.is_by_its_owner() => "only the process that removed it is known in that namespace",
            _ => "a single read may show a transition",
        }
    }
}

fn summary(fault: &Fault, key: NeighborKey) -> String {
    let kind = if fault.learned { "" } else { "static " };
    let protocol = if key.address.is_ipv4() { "ARP" } else { "neighbor" };
    let (label, address, ifname) = (&fault.owner.label, key.address, name(&fault.ifname));
    let what_happened = &fault.what_happened;
    match fault.reason {
        FaultReason::Missing => format!(
            "{label} misses the {kind}{protocol} entry of its gateway {address} on {ifname}: it {what_happened}"
        ),
        FaultReason::WrongLladdr => format!(
            "{label} has a wrong {kind}{protocol} entry of its gateway {address} on {ifname}: it {what_happened}"
        ),
        FaultReason::Failed => {
            format!(
                "nothing answers the {protocol} requests of {label} for its gateway {address} on {ifname}"
            )
        }
    }
}
