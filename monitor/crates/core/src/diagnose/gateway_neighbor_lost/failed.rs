//! Learned entries that cannot be resolved: an incident if that lasts.

use kevtmon_event::{CloseReason, Confidence, EVIDENCE_MAX, Event};
use kevtmon_observation::NeighborKey;

use super::{Fault, FaultPhase, FaultReason, GatewayNeighborLost, GatewayOwner, may_be_harmless, subject};
use crate::diagnose::Context;
use crate::diagnose::finding::{Count, Findings, IncidentObjects, Repeat};

impl GatewayNeighborLost {
    pub(super) fn failed(
        &mut self,
        context: &Context<'_>,
        key: NeighborKey,
        owner: GatewayOwner,
        event: &Event,
        findings: &mut Findings,
    ) {
        if let Some(fault) = self.faults.get_mut(&key)
            && fault.is_downgrade()
            && matches!(fault.phase, FaultPhase::Suspected { .. })
        {
            fault.evidence.push(event.seq);
            return self.recheck(context, key.netns, Some(event.seq), findings);
        }
        // An entry with an address had been learned again: that it fails is another matter than its deletion.
        let had_lladdr = event.neighbor.as_ref().is_some_and(|entry| entry.lladdr.is_some());
        let is_other_cause =
            |fault: &Fault| fault.is_deletion() && (fault.recovered || (had_lladdr && fault.last < event.at));
        if self.faults.get(&key).is_some_and(|fault| fault.phase == FaultPhase::Open && is_other_cause(fault))
        {
            self.close(key, CloseReason::Resolved, None, findings);
        }
        if let Some(fault) = self.faults.get_mut(&key) {
            if fault.phase == FaultPhase::Open {
                let is_repeated = fault.reason == FaultReason::Failed;
                let count = Count::More(u64::from(is_repeated));
                let repeat = Repeat::new(subject(&fault.owner, key), event.at, count);
                findings.repeat(Repeat { evidence: Some(event.seq), ..repeat });
                fault.last = event.at;
            } else if fault.reason == FaultReason::Failed && fault.evidence.len() < EVIDENCE_MAX {
                fault.last = event.at;
                fault.evidence.push(event.seq);
            }
            return;
        }
        let due = self.failed_due(context, key, &owner);
        let objects = IncidentObjects { actor: None, ..IncidentObjects::of(event) };
        let fault = Fault {
            confidence: match may_be_harmless(context.node, key) {
                true => Confidence::Likely,
                false => Confidence::Certain,
            },
            phase: FaultPhase::Suspected { due },
            evidence: vec![event.seq],
            learned: true,
            ..Fault::new(owner, FaultReason::Failed, objects, event.at)
        };
        self.suspect(context, key, fault, findings);
    }
}
