//! Containers that are gone, and what they have left in namespaces in which others live on.

use kevtmon_event::{CloseReason, Target};
use kevtmon_observation::{NeighborKey, NsInum};

use super::recheck::live_owner;
use super::{CAPACITY, GatewayNeighborLost, GatewayOwner, is_restored};
use crate::diagnose::Context;
use crate::diagnose::finding::Findings;
use crate::node::containers::is_live;
use crate::node::namespaces::Namespace;
use crate::node::view::{NodeView, RuntimeAvailability};

impl GatewayNeighborLost {
    pub(super) fn close_gone(&mut self, context: &Context<'_>, findings: &mut Findings) {
        self.close_gone_of(context, &self.keys(None), findings);
    }

    pub(super) fn close_gone_of(
        &mut self,
        context: &Context<'_>,
        keys: &[NeighborKey],
        findings: &mut Findings,
    ) {
        for key in keys {
            let Some(owner) = self.faults.get(key).map(|fault| &fault.owner) else { continue };
            if !owner.is_gone(context.node, key.netns) {
                continue;
            }
            let now = context.node.namespaces.get(key.netns).and_then(|namespace| namespace.cookie);
            let is_other = owner.cookie.zip(now).is_some_and(|(known, now)| known != now);
            let next = live_owner(context.node, key.netns).map(|(next, _)| next);
            let is_left = !owner.container.is_empty() && next.is_some_and(|next| next.container.is_empty());
            if is_left && !is_other && self.left.len() < CAPACITY {
                self.left.insert(*key);
            }
            self.close(*key, CloseReason::SubjectGone, None, findings);
        }
    }

    /// Forgets what was wrong when a container left, once it is in order, or another container is there.
    pub(super) fn forget_left(&mut self, node: &NodeView<'_>, netns: NsInum) {
        if self.left.is_empty() {
            return;
        }
        let is_taken = live_owner(node, netns).is_some_and(|(owner, _)| !owner.container.is_empty());
        self.left.retain(|key| key.netns != netns || !is_taken && !is_restored(node, *key));
    }
}

impl GatewayOwner {
    /// Whether its container is gone according to the runtime, or, where none reported it, no process of it lives there any
    /// more.
    fn is_gone(&self, node: &NodeView<'_>, netns: NsInum) -> bool {
        if !self.by_runtime {
            let Some(namespace) = node.namespaces.get(netns) else { return false };
            // Who lives there may be of the next namespace with its number, or have been let in by somebody before the
            // container left.
            let is_other =
                |(next, _): (GatewayOwner, Target)| !self.is_same(&next) || self.has_left(&next, namespace);
            return live_owner(node, netns).is_none_or(is_other);
        }
        let known = node.containers.get(&self.container);
        if known.is_some_and(|facts| is_live(facts.state) && facts.netns == Some(netns)) {
            return false;
        }
        let successor = live_owner(node, netns);
        successor.is_none_or(|(successor, _)| successor.id != self.id)
            && (known.is_some() || node.runtimes == RuntimeAvailability::All)
    }

    /// Whether the container has left a namespace to a process of somebody else, who is the oldest in it now. One that is
    /// older than the container has only come to it.
    fn has_left(&self, next: &Self, namespace: &Namespace) -> bool {
        let is_other = !self.container.is_empty() && next.id != self.id && !next.by_runtime;
        let oldest = namespace.owner.as_ref().map(|process| process.start_ns);
        let is_younger = self.started.zip(oldest).is_none_or(|(started, oldest)| started < oldest);
        is_other && is_younger
    }
}
