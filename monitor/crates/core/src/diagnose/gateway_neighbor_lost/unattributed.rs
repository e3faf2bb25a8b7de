//! Losses in namespaces of which it is not known yet who lives there: kept for a while, until somebody turns up.

use kevtmon_event::{Event, Shared, Target};
use kevtmon_observation::{BootNs, NsInum};
use serde::{Deserialize, Serialize};

use super::{
    FOREIGN_UNATTRIBUTED_MAX, GatewayNeighborLost, REREAD_INTERVAL, UNATTRIBUTED_MAX, UNATTRIBUTED_NS,
    health, is_restored, key, recheck::READ_DURATION,
};
use crate::diagnose::Context;
use crate::diagnose::finding::Findings;
use crate::node::view::NodeView;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct UnattributedEvent {
    pub(super) since: BootNs,
    /// Time of the event, which its serialized form does not include.
    pub(super) at: BootNs,
    pub(super) event: Event,
}

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
        // Whether a process lives there by now.
        self.rereads.schedule(netns, context.now + REREAD_INTERVAL);
        let one = UnattributedEvent { since: context.now, at: event.at, event: event.clone() };
        crate::bounded::push(&mut self.unattributed, UNATTRIBUTED_MAX, one);
    }

    pub(super) fn attribute(&mut self, context: &Context<'_>, findings: &mut Findings) {
        let unattributed = std::mem::take(&mut self.unattributed);
        let recent = |one: &UnattributedEvent| one.since.saturating_add(UNATTRIBUTED_NS) > context.now;
        for one in unattributed.into_iter().filter(recent) {
            let Some(neighbor) = one.event.neighbor.clone() else { continue };
            let netns = neighbor.netns;
            let Some(target) = health::live_target(context.node, netns) else {
                self.unattributed.push_back(one);
                continue;
            };
            match has_lost(context.node, netns, &target, one.at) {
                Some(true) if !is_restored(context.node, key(&neighbor)) => {
                    let event = Event { target: Some(Shared::new(target)), ..one.event };
                    self.neighbor(context, &event, &neighbor, findings);
                }
                Some(_) => {}
                None => {
                    self.rereads.schedule(netns, context.now + READ_DURATION);
                    self.unattributed.push_back(one);
                }
            }
        }
    }
}

/// Whether who lives in a namespace now has lost what was deleted there at a time; `None` until a reading tells.
fn has_lost(node: &NodeView<'_>, netns: NsInum, target: &Target, at: BootNs) -> Option<bool> {
    let came_later = |started: &BootNs| *started > at;
    if let Some(process) = &target.process {
        return Some(!process.start_time_ns.parse().is_ok_and(|started| came_later(&started)));
    }
    let namespace = node.namespaces.get(netns);
    let facts = target.container.as_ref().and_then(|container| node.containers.get(&container.id));
    let started = facts.and_then(|facts| facts.started_ns);
    let oldest = || namespace.and_then(|namespace| namespace.owner.as_ref()).map(|owner| owner.start_ns);
    let Some(started) = started.or_else(oldest).filter(came_later) else { return Some(true) };
    // Its network was set up before it started, or its namespace is another one with the same number. Then a reading shows
    // another cookie, and nothing is kept any more.
    let namespace = namespace?;
    (namespace.read >= started.saturating_add(READ_DURATION)).then_some(namespace.cookie.is_some())
}
