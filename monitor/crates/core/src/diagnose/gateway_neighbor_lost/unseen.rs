//! Entries that are gone, of which no event has told: what is said of who removed them, and when it can be said.

use kevtmon_event::Severity;
use kevtmon_observation::{NeighborKey, NsInum};

use super::recheck::entry;
use super::{FaultReason, GATEWAY_CONFIRM, GatewayNeighborLost, PENDING_EVENT, seconds};
use crate::diagnose::Context;
use crate::diagnose::finding::{Count, Findings, Report};
use crate::node::view::NodeView;

/// What is said of an entry whose removal would have been seen.
pub(super) const UNSEEN: &str = "is gone; no process was seen removing it";
/// The status of the hook that sees who removes entries, and its attach mode that does not.
const HOOK: &str = "hook.neighbor";
const WITHOUT_ACTOR: &str = "netlink";

impl GatewayNeighborLost {
    /// Something else is wrong with the entry of an open incident by now, and no event has told of it.
    pub(super) fn turn(
        &mut self,
        context: &Context<'_>,
        key: NeighborKey,
        (reason, what): (FaultReason, Option<String>),
        findings: &mut Findings,
    ) {
        if reason == FaultReason::Missing {
            // As long as where no incident is open.
            let pending = seconds(self.thresholds.get(&GATEWAY_CONFIRM)).max(PENDING_EVENT);
            if let Some(until) = self.faults.get(&key).and_then(|fault| fault.awaited_until(context, pending))
            {
                return self.rereads.schedule(key.netns, until);
            }
            if let Some(loss) = self.undecided_loss(context, key) {
                return self.lost(context, key, loss, findings);
            }
        }
        let what = what.unwrap_or_else(|| self.unseen_removal(context, key.netns));
        let Some(fault) = self.faults.get_mut(&key) else { return };
        fault.turn(context, reason, entry(context.node, key, reason), what);
        let report = fault.report(context, key, Severity::Warning, true);
        findings.report(Report { count: Count::Restart(1), ..report });
    }

    /// What is said of an entry that is gone, and of which no event has told.
    pub(super) fn unseen_removal(&self, context: &Context<'_>, netns: NsInum) -> String {
        match self.may_have_lost_sight(context, netns) || !is_watched(context.node) {
            true => "is gone; actor unknown".to_owned(),
            false => UNSEEN.to_owned(),
        }
    }
}

fn is_watched(node: &NodeView<'_>) -> bool {
    let hook = node.statuses.get(HOOK);
    hook.is_none_or(|status| status.up && status.attach_mode.as_deref() != Some(WITHOUT_ACTOR))
}
