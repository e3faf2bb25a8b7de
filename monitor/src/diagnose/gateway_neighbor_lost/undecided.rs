//! Deletions at about the time at which the default route came to lead there: kept for a while, until a reading shows
//! whether the entry is missed.

use super::recheck::live_owner;
use super::{
    FOREIGN_UNATTRIBUTED_MAX, Fault, GatewayNeighborLost, UNATTRIBUTED_MAX, UNATTRIBUTED_NS,
    UnattributedEvent,
};
use crate::diagnose::Context;
use crate::event::{Confidence, Event, Kind};
use crate::observation::{BootNs, NeighborKey};

impl GatewayNeighborLost {
    /// Keeps a deletion of which it is not known whether it was of a gateway.
    pub(super) fn keep_undecided(&mut self, context: &Context<'_>, event: &Event) {
        let Some(entry) = event.neighbor.as_ref().filter(|entry| entry.gateway.is_none()) else { return };
        if event.kind != Kind::NeighborDeleted || entry.cause == "netns-exit" || entry.after_exit {
            return;
        }
        let is_foreign = |netns| context.node.namespaces.get(netns).is_some_and(|known| known.foreign_userns);
        let netns_of = |one: &UnattributedEvent| one.event.neighbor.as_ref().map(|entry| entry.netns);
        let of_foreign = self.undecided.iter().filter(|one| netns_of(one).is_some_and(is_foreign)).count();
        if is_foreign(entry.netns) && of_foreign >= FOREIGN_UNATTRIBUTED_MAX {
            return;
        }
        // In a storm they do not come in the order in which they happened.
        let place = self.undecided.partition_point(|one| one.at <= event.at);
        let (since, at) = (context.now, event.at);
        self.undecided.insert(place, UnattributedEvent { since, at, event: event.clone() });
        if self.undecided.len() > UNATTRIBUTED_MAX {
            self.undecided.pop_front();
            self.lost_at = Some(context.now);
        }
    }

    /// Whether a deletion can have been seen that is not kept.
    pub(super) fn may_have_lost_sight(&self, now: BootNs) -> bool {
        self.lost_at.is_some_and(|lost_at| lost_at.saturating_add(UNATTRIBUTED_NS) > now)
    }

    /// The loss of an entry that is missed, by the deletion that was seen last.
    pub(super) fn undecided_loss(&mut self, context: &Context<'_>, key: NeighborKey) -> Option<Fault> {
        self.undecided.retain(|one| one.since.saturating_add(UNATTRIBUTED_NS) > context.now);
        let is_of_key = |one: &UnattributedEvent| {
            one.event.neighbor.as_ref().is_some_and(|entry| super::key(entry) == key)
        };
        let last = self.undecided.iter().rposition(is_of_key)?;
        let (owner, target) = live_owner(context.node, key.netns)?;
        let one = self.undecided.remove(last)?;
        let mut fault = Fault::lost(context, owner, target, &one.event);
        // Another one need not have been seen since.
        if self.lost_at.is_some_and(|lost_at| lost_at >= one.since) {
            fault.confidence = Confidence::Likely;
        }
        Some(fault)
    }
}
