//! Losses in namespaces of which it is not known yet who lives there: kept for a while, until somebody turns up.

use super::{
    FOREIGN_UNATTRIBUTED_MAX, GatewayNeighborLost, REREAD_INTERVAL, UNATTRIBUTED_MAX, UNATTRIBUTED_NS,
    UnattributedEvent, health, is_restored, key,
};
use crate::diagnose::Context;
use crate::diagnose::finding::Findings;
use crate::event::{Event, Target};
use crate::observation::{BootNs, NsInum};

impl GatewayNeighborLost {
    pub(super) fn keep_unattributed(&mut self, context: &Context<'_>, event: &Event, netns: NsInum) {
        if netns == context.node.host_netns {
            return;
        }
        let is_foreign = |netns| context.node.namespaces.get(netns).is_some_and(|known| known.foreign_userns);
        let of_foreign = |one: &UnattributedEvent| {
            one.event.neighbor.as_ref().is_some_and(|neighbor| is_foreign(neighbor.netns))
        };
        if is_foreign(netns)
            && self.unattributed.iter().filter(|one| of_foreign(one)).count() >= FOREIGN_UNATTRIBUTED_MAX
        {
            return;
        }
        if self.unattributed.len() >= UNATTRIBUTED_MAX {
            self.unattributed.pop_front();
        }
        // Whether a process lives there by now.
        self.rereads.schedule(netns, context.now + REREAD_INTERVAL);
        self.unattributed.push_back(UnattributedEvent {
            since: context.now,
            at: event.at,
            event: event.clone(),
        });
    }

    /// Attributes kept events to containers that have become known.
    pub(super) fn attribute(&mut self, context: &Context<'_>, findings: &mut Findings) {
        let unattributed = std::mem::take(&mut self.unattributed);
        let recent = |one: &UnattributedEvent| one.since.saturating_add(UNATTRIBUTED_NS) > context.now;
        for one in unattributed.into_iter().filter(recent) {
            let Some(neighbor) = one.event.neighbor.clone() else { continue };
            // A process that came later has lost nothing.
            let came_later = |target: &Target| {
                let started = target.process.as_ref().and_then(|process| process.start_time_ns.parse().ok());
                started.is_some_and(|started: BootNs| started > one.at)
            };
            match health::live_target(context.node, neighbor.netns).filter(|target| !came_later(target)) {
                Some(target) if !is_restored(context.node, key(&neighbor)) => {
                    let event = Event { target: Some(Box::new(target)), ..one.event };
                    self.neighbor(context, &event, &neighbor, findings);
                }
                Some(_) => {}
                None => self.unattributed.push_back(one),
            }
        }
    }
}
