//! Changes in another namespace than the one that is known by their number: the kernel gives the number of one that has ended to
//! the next one, and nobody is to lose a gateway in the place of a pod that is gone.

use kevtmon_event::wording::actor_phrase;
use kevtmon_event::{Event, Join, Kind, Neighbor, Severity, Shared, Target, UserNamespace};
use kevtmon_observation::{BootNs, NeighborCause, NeighborChange, NeighborOp};
use kevtmon_types::namespace::may_have_cookie;

use super::{Awaited, Requested, SNAPSHOT_TIMEOUT_NS, message, neighbor};
use crate::{Core, NsInum};

impl Core {
    /// Whether it happened in another namespace than the one that is known by this number.
    pub(super) fn is_elsewhere(&self, change: &NeighborChange) -> bool {
        let (netns, half) = (change.key.netns, change.netns_cookie);
        match self.namespaces.cookie(netns) {
            Some(known) => !may_have_cookie(half, Some(known)),
            None => half.is_some_and(|half| self.containers.are_elsewhere(netns, half)),
        }
    }

    /// Another namespace has this number now. What awaits the snapshot is of the one before, unless it tells the new one's
    /// cookie.
    pub fn netns_succeeded(&mut self, now: BootNs, netns: NsInum, cookie: Option<u64>) {
        let answer = Awaited::Netns(netns);
        for pending in self.pending_neighbors.take_answered(&answer) {
            if pending
                .change
                .netns_cookie
                .is_some_and(|half| cookie.is_some() && may_have_cookie(Some(half), cookie))
            {
                let deadline = pending.at.saturating_add(SNAPSHOT_TIMEOUT_NS);
                self.pending_neighbors.push(deadline, answer.clone(), pending);
            } else {
                self.resume(now, pending, &answer, false);
            }
        }
    }

    /// Of a namespace of which nothing is known: it has ended before it was read, or was not read yet.
    pub(super) fn emit_of_unknown(&mut self, at: BootNs, change: &NeighborChange, requested: Requested) {
        let (kind, severity) = match change.op {
            NeighborOp::Added => (Kind::NeighborAdded, Severity::Info),
            NeighborOp::Deleted if change.cause == NeighborCause::NetnsExit => {
                (Kind::NeighborDeleted, Severity::Debug)
            }
            NeighborOp::Deleted => (Kind::NeighborDeleted, Severity::Notice),
            NeighborOp::Changed => (Kind::NeighborChanged, Severity::Notice),
            NeighborOp::Failed => (Kind::NeighborFailed, Severity::Debug),
        };
        let userns = change.netns_of_user.then_some(UserNamespace::Other);
        let target = Target { userns, ..Target::unknown(Join::Missed) };
        let actor = change.actor.as_ref().map(|task| self.actor(task, requested.container));
        let by = actor.as_ref().map(actor_phrase);
        let cause = match change.cause {
            // By exclusion, and nothing was known of it before.
            NeighborCause::LladdrChanged if change.device_lladdr.is_some() => NeighborCause::Unknown,
            cause => cause,
        };
        let neighbor = Neighbor { other_netns: true, ..neighbor(change, cause, None) };
        let message = message(change, &neighbor, &target, by.as_deref());
        let event = Event {
            actor: actor.map(Shared::new),
            target: Some(Shared::new(target)),
            neighbor: Some(Box::new(neighbor)),
            ..self.event(at, kind, severity, message)
        };
        self.emit(event);
    }
}
