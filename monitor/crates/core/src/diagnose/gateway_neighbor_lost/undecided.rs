//! Deletions that are not an incident yet: at about the time at which the default route came to lead there, or while too
//! many incidents of the same pod were open. Kept for a while, until a reading shows whether the entry is missed.

use std::collections::BTreeMap;

use kevtmon_event::{Confidence, Event, Kind};
use kevtmon_observation::{BootNs, Loss, NeighborKey, NsInum};
use serde::{Deserialize, Serialize};

use super::recheck::live_owner;
use super::{
    FOREIGN_UNATTRIBUTED_MAX, Fault, GatewayNeighborLost, UNATTRIBUTED_MAX, UNATTRIBUTED_NS,
    UnattributedEvent,
};
use crate::diagnose::Context;

/// Namespaces of which it is known what was not kept; of more, nothing is certain of any.
const NOT_KEPT_MAX: usize = 64;

/// The newest deletions, by the time at which they happened: in a storm they do not come in that order.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Undecided {
    pub(super) events: Vec<UnattributedEvent>,
    /// Where some were not kept: when the newest of those happened.
    not_kept: BTreeMap<NsInum, BootNs>,
}

impl Undecided {
    pub(super) fn forget(&mut self, netns: NsInum) {
        self.events.retain(|one| one.netns() != Some(netns));
        self.not_kept.remove(&netns);
    }

    fn expire(&mut self, now: BootNs) {
        self.events.retain(|one| one.since.saturating_add(UNATTRIBUTED_NS) > now);
        self.not_kept.retain(|_, at| at.saturating_add(UNATTRIBUTED_NS) > now);
    }

    /// When the newest deletion in a namespace happened that is not kept, if that was of late.
    fn not_kept(&self, netns: NsInum, now: BootNs) -> Option<BootNs> {
        self.not_kept.get(&netns).copied().filter(|at| at.saturating_add(UNATTRIBUTED_NS) > now)
    }

    /// Drops the oldest of the namespace with most of those that count. Returns false where there is no telling any more
    /// of which namespaces some were dropped.
    fn drop_one(&mut self, counts: impl Fn(NsInum) -> bool) -> bool {
        let mut by_netns: BTreeMap<NsInum, usize> = BTreeMap::new();
        for netns in self.events.iter().filter_map(UnattributedEvent::netns).filter(|netns| counts(*netns)) {
            *by_netns.entry(netns).or_default() += 1;
        }
        let most = by_netns.into_iter().max_by_key(|(_, count)| *count).map(|(netns, _)| netns);
        let Some(oldest) = self.events.iter().position(|one| one.netns() == most) else { return true };
        let dropped = self.events.remove(oldest);
        if let Some(netns) = most {
            let newest = self.not_kept.entry(netns).or_default();
            *newest = dropped.at.max(*newest);
        }
        self.not_kept.len() <= NOT_KEPT_MAX || self.not_kept.pop_first().is_none()
    }
}

impl UnattributedEvent {
    pub(super) fn netns(&self) -> Option<NsInum> {
        self.event.neighbor.as_ref().map(|entry| entry.netns)
    }
}

impl GatewayNeighborLost {
    /// Keeps a deletion of which it is not known whether it was of a gateway.
    pub(super) fn keep_undecided(&mut self, context: &Context<'_>, event: &Event) {
        let Some(entry) = event.neighbor.as_ref().filter(|entry| entry.gateway.is_none()) else { return };
        // Of the host no loss is told.
        let is_hosts = entry.netns == context.node.host_netns;
        if event.kind == Kind::NeighborDeleted
            && entry.cause != "netns-exit"
            && !entry.after_exit
            && !is_hosts
        {
            self.keep(context, event, entry.netns);
        }
    }

    /// Keeps a deletion for when it is known that the entry is missed. What others do displaces none.
    pub(super) fn keep(&mut self, context: &Context<'_>, event: &Event, netns: NsInum) {
        let is_foreign = |netns| context.node.namespaces.get(netns).is_some_and(|known| known.foreign_userns);
        self.undecided.expire(context.now);
        let all = &mut self.undecided.events;
        let place = all.partition_point(|one| one.at <= event.at);
        let (since, at) = (context.now, event.at);
        all.insert(place, UnattributedEvent { since, at, event: event.clone() });
        let of_foreign = all.iter().filter_map(UnattributedEvent::netns).filter(|netns| is_foreign(*netns));
        let is_told = if is_foreign(netns) && of_foreign.count() > FOREIGN_UNATTRIBUTED_MAX {
            self.undecided.drop_one(is_foreign)
        } else if self.undecided.events.len() > UNATTRIBUTED_MAX {
            self.undecided.drop_one(|_| true)
        } else {
            true
        };
        if !is_told {
            self.lost_at = Some(context.now);
        }
    }

    pub(super) fn note_lost_records(&mut self, now: BootNs, event: &Event) {
        let Some(lost) = event.lost.as_ref().filter(|lost| lost.source == "bpf") else { return };
        if lost.reason.ends_with(Loss::OF_USERS) {
            self.users_lost_at = Some(now);
        } else {
            self.rereads.schedule_all(now);
            self.lost_at = Some(now);
        }
    }

    /// Whether a deletion in a namespace can have been seen that is not kept.
    pub(super) fn may_have_lost_sight(&self, context: &Context<'_>, netns: NsInum) -> bool {
        let lost_at = self.records_lost_at(context, netns);
        lost_at.is_some_and(|lost_at| lost_at.saturating_add(UNATTRIBUTED_NS) > context.now)
            || self.undecided.not_kept(netns, context.now).is_some()
    }

    /// When records were lost last that may have been of this namespace.
    fn records_lost_at(&self, context: &Context<'_>, netns: NsInum) -> Option<BootNs> {
        let is_ours = context.node.namespaces.get(netns).is_some_and(|known| !known.foreign_userns);
        self.lost_at.max(self.users_lost_at.filter(|_| !is_ours))
    }

    /// The loss of an entry that is missed, by the deletion that was seen last, where there is room for it.
    pub(super) fn undecided_loss(&mut self, context: &Context<'_>, key: NeighborKey) -> Option<Fault> {
        self.undecided.expire(context.now);
        let is_of_key = |one: &UnattributedEvent| {
            one.event.neighbor.as_ref().is_some_and(|entry| super::key(entry) == key)
        };
        let last = self.undecided.events.iter().rposition(is_of_key)?;
        let (owner, target) = live_owner(context.node, key.netns)?;
        let one = &self.undecided.events[last];
        let mut fault = Fault::lost(context, owner, target, &one.event);
        // Another one need not have been kept, or seen, since.
        let lost_at = self.records_lost_at(context, key.netns);
        if lost_at.is_some_and(|lost_at| lost_at >= one.since)
            || self.undecided.not_kept(key.netns, context.now).is_some_and(|at| at >= one.at)
        {
            fault.confidence = Confidence::Likely;
        }
        self.has_room(context, key, &fault).then(|| {
            self.undecided.events.remove(last);
            fault
        })
    }
}
