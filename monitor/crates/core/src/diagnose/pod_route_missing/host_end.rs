//! The host's end of a pod's veth pair that is down: the routes by it are gone, and nothing passes whatever routes there are.
//!
//! A gateway that the pod has learned stops answering then, which is an incident of its own. One that is static does not: the
//! pod sends on, to nobody, and the missing route is all that shows it.

use kevtmon_event::{Actor, Event, Kind, Shared};
use kevtmon_observation::{NeighborKey, iff};

use super::routed::RoutedPod;
use super::{Missing, PodRouteMissing};
use crate::diagnose::CAPACITY;
use crate::diagnose::gateway_neighbor_lost::health::{Health, health};
use crate::node::view::NodeView;

impl PodRouteMissing {
    pub(super) fn note_host_link(&mut self, event: &Event) {
        let Some(link) = event.link.as_deref().filter(|link| link.kind.as_deref() == Some("veth")) else {
            return;
        };
        // Only of those that lead to pods, once the next look has found them.
        self.downs.note(event);
        let is_set_up = link.change.iter().any(|change| change == "up");
        if event.kind == Kind::LinkCreated {
            if link.up == Some(false) && self.never_up.len() < CAPACITY {
                self.never_up.insert(link.ifindex);
            }
        } else if is_set_up || matches!(event.kind, Kind::LinkMoved | Kind::LinkDeleted) {
            self.never_up.remove(&link.ifindex);
        }
    }

    /// Whether an end is down of which another incident tells, or which is not in use yet.
    pub(super) fn is_told_otherwise(&self, node: &NodeView<'_>, pod: &RoutedPod) -> bool {
        if pod.is_up() {
            return false;
        }
        let is_inner_down = pod.inner.flags & iff::UP == 0;
        is_inner_down || self.never_up.contains(&pod.end.ifindex) || !has_static_gateway(node, pod)
    }

    /// Notes whether the host's end is down now, and who set it down; whether that is another answer than before.
    pub(super) fn note_end(&self, missing: &mut Missing, pod: &RoutedPod) -> bool {
        let is_down = pod.end.flags & iff::UP == 0;
        let before = missing.is_end_down.replace(is_down);
        missing.set_down = self.downs.last(pod.end.ifindex).filter(|_| is_down).cloned();
        before.is_some_and(|before| before != is_down)
    }
}

impl Missing {
    /// Who is to blame, as far as that is known.
    pub(super) fn actor(&self) -> Option<Shared<Actor>> {
        match &self.set_down {
            Some(down) => down.actor.clone(),
            // That the route was there until then is what was seen last, not what was seen then.
            None => match &self.went_with {
                Some(down) => down.actor.clone().map(Actor::at_most_likely),
                None => self.deletion_told.as_ref()?.actor.clone(),
            },
        }
    }

    pub(super) fn evidence(&self) -> Vec<u64> {
        let down = self.set_down.as_ref().or(self.went_with.as_ref());
        let all = down.into_iter().chain(&self.deletion_told).map(|told| told.seq);
        all.chain(self.rule_deletion).filter(|seq| *seq != 0).collect()
    }
}

/// Whether the pod sends to its gateway without asking for it.
fn has_static_gateway(node: &NodeView<'_>, pod: &RoutedPod) -> bool {
    let Some(address) = pod.gateway else { return false };
    let key = NeighborKey { netns: pod.netns, ifindex: pod.inner.ifindex, address };
    matches!(health(node, key), Health::Correct | Health::Static)
}
