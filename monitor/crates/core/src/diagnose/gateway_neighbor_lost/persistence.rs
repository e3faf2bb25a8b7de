//! Whether a fault persists, is resolved, or has another reason by now, as the model shows.

use kevtmon_observation::{BootNs, NeighborKey};

use super::bridge_mac::outdated;
use super::fault::lladdr_after;
use super::health::{self, Health};
use super::recheck::{REPLACED_AFTER, mismatch};
use super::{Fault, FaultPhase, FaultReason};
use crate::diagnose::Context;
use crate::node::gateways::Gateway;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recheck {
    Resolved,
    Persists,
    Inconclusive,
}

impl Fault {
    pub(super) fn is_resolved(&self, context: &Context<'_>, key: NeighborKey) -> bool {
        self.recheck(context, key) == Recheck::Resolved
    }

    pub(super) fn recheck(&self, context: &Context<'_>, key: NeighborKey) -> Recheck {
        let gateway = context.node.gateway(key);
        if health::is_former(context.node, key) {
            return Recheck::Resolved;
        }
        let health = health::health(context.node, key);
        if self.is_outdated() {
            return match health {
                Health::Wrong => Recheck::Persists,
                Health::Learned if outdated(context.node, key).is_some() => Recheck::Persists,
                // No bridge shows it by now.
                Health::Learned | Health::Unknown => Recheck::Inconclusive,
                _ => Recheck::Resolved,
            };
        }
        match (health, self.reason) {
            (Health::Correct, _) | (Health::Learned, FaultReason::Failed) => Recheck::Resolved,
            // Whoever took its permanence is to blame if it fails soon.
            (Health::Usable, _) if self.is_downgrade() && self.phase != FaultPhase::Open => {
                Recheck::Inconclusive
            }
            (Health::Usable, _) if context.node.gateway_lladdr(key).is_some() => Recheck::Resolved,
            (Health::Static | Health::Usable, FaultReason::WrongLladdr) => {
                let wrong = self.objects.neighbor.as_ref().and_then(|entry| entry.new_lladdr.as_deref());
                let is_wrong = gateway
                    .and_then(Gateway::lladdr)
                    .is_some_and(|lladdr| wrong.is_none_or(|wrong| lladdr.to_string() == wrong));
                if is_wrong { Recheck::Persists } else { Recheck::Resolved }
            }
            (Health::Static | Health::Usable, _) => Recheck::Resolved,
            (Health::Learned, _) => {
                let settled = self.first.saturating_add(REPLACED_AFTER) <= context.now;
                let missed = gateway.is_some_and(|gateway| gateway.static_lladdr.is_some());
                if settled && !missed { Recheck::Resolved } else { Recheck::Inconclusive }
            }
            (Health::Wrong | Health::Unresolved, _) => Recheck::Persists,
            (Health::Absent | Health::Unknown, FaultReason::Failed) => Recheck::Inconclusive,
            (Health::Absent | Health::Unknown, _) => Recheck::Persists,
        }
    }

    /// Notes since when the entry is gone that was wrong.
    pub(super) fn note_gone(&mut self, context: &Context<'_>, key: NeighborKey) {
        let is_gone =
            self.reason == FaultReason::WrongLladdr && health::health(context.node, key) == Health::Absent;
        self.gone_since = is_gone.then(|| self.gone_since.unwrap_or(context.now));
    }

    /// Until when the event of its removal may still be on its way, which takes so long at most.
    pub(super) fn awaited_until(&self, context: &Context<'_>, pending: BootNs) -> Option<BootNs> {
        Some(self.gone_since?.saturating_add(pending)).filter(|until| context.now < *until)
    }

    /// What is wrong now, where that cannot follow from what was wrong before, and what has happened then. Of an entry that is
    /// gone this does not tell.
    pub(super) fn other_reason(
        &self,
        context: &Context<'_>,
        key: NeighborKey,
    ) -> Option<(FaultReason, Option<String>)> {
        let gateway = context.node.gateway(key)?;
        match (self.reason, health::health(context.node, key)) {
            (FaultReason::Missing | FaultReason::Failed, Health::Wrong) => {
                Some((FaultReason::WrongLladdr, Some(mismatch(context.node, key, gateway))))
            }
            (FaultReason::WrongLladdr, Health::Wrong) => {
                let before = self.objects.neighbor.as_ref().and_then(|entry| lladdr_after(entry));
                let is_other = before.is_some_and(|before| {
                    Some(before) != gateway.lladdr().map(ToString::to_string).as_deref()
                });
                is_other.then(|| (FaultReason::WrongLladdr, Some(mismatch(context.node, key, gateway))))
            }
            (FaultReason::WrongLladdr, Health::Absent) => Some((FaultReason::Missing, None)),
            _ => None,
        }
    }
}
