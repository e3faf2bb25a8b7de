//! Who did what to interfaces, until the message comes that tells what happened.
//!
//! The kernel sends the message after the act, and each act that is told apart has one of its kind. An interface may be set
//! down by several before the first message is read: then nobody is named.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::event::Confidence;
use crate::observation::{BootNs, LinkAct, LinkOp, NsInum, TaskRef};

/// Acts that wait for their message. What is displaced has no actor.
const ACTS_MAX: usize = 1024;
/// Of one namespace, so that no container displaces those of others.
const ACTS_OF_NETNS_MAX: usize = 64;
/// A message that comes later than this has none.
const KEPT_NS: u64 = 10_000_000_000;
/// Namespaces of which it is kept how many acts are missing.
const NAMESPACES_MAX: usize = 1024;

/// The acts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkActs {
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    waiting: VecDeque<Waiting>,
    /// When the last message was read: each act of before is known by then, and one that is not may have been told already.
    #[serde(default)]
    told: BootNs,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    missing: BTreeMap<NsInum, Missing>,
}

/// What is missing of the acts in a namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Missing {
    /// As the last act had it.
    count: u32,
    /// Until then an act may be taken for another one on the same interface that is missing, whose message is still to come.
    doubted_until: BootNs,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Waiting {
    at: BootNs,
    act: LinkAct,
    /// Others of this namespace may be missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_after_loss: bool,
}

impl LinkActs {
    /// Keeps an act.
    pub fn put(&mut self, at: BootNs, act: LinkAct) {
        if at <= self.told {
            // Its own message may be still to come.
            return self.miss(at, act.netns, Some(act.missing));
        }
        self.waiting.retain(|waiting| waiting.at.saturating_add(KEPT_NS) >= at);
        let of_it = |waiting: &Waiting| waiting.act.netns == act.netns;
        if self.waiting.iter().filter(|waiting| of_it(waiting)).count() >= ACTS_OF_NETNS_MAX {
            let oldest = self.waiting.iter().position(of_it);
            oldest.and_then(|oldest| self.waiting.remove(oldest));
            self.miss(at, act.netns, None);
        }
        if self.waiting.len() >= ACTS_MAX
            && let Some(displaced) = self.waiting.pop_front()
        {
            self.miss(at, displaced.act.netns, None);
        }
        let known = self.missing.get(&act.netns).copied().unwrap_or_default();
        if known.count != act.missing {
            self.miss(at, act.netns, Some(act.missing));
        }
        let is_after_loss = self.missing.get(&act.netns).is_some_and(|known| at < known.doubted_until);
        self.waiting.push_back(Waiting { at, act, is_after_loss });
    }

    /// An act in a namespace is missing, one that was not reported (then `count` are) or not kept.
    fn miss(&mut self, at: BootNs, netns: NsInum, count: Option<u32>) {
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.act.netns == netns) {
            waiting.is_after_loss = true;
        }
        if self.missing.len() >= NAMESPACES_MAX && !self.missing.contains_key(&netns) {
            self.missing.pop_first();
        }
        let known = self.missing.entry(netns).or_default();
        known.count = count.unwrap_or(known.count);
        known.doubted_until = known.doubted_until.max(at.saturating_add(KEPT_NS));
    }

    /// Each act of before a message that was read then is taken to be known.
    pub fn set_told(&mut self, at: BootNs) {
        self.told = self.told.max(at);
    }

    /// Who did this before `at`, if one program did, and how certain that is; what was done then is forgotten.
    pub fn take(
        &mut self,
        at: BootNs,
        netns: NsInum,
        ifindex: u32,
        op: LinkOp,
    ) -> Option<(TaskRef, Confidence)> {
        let is_it = |waiting: &Waiting| {
            waiting.at <= at
                && (waiting.act.netns, waiting.act.ifindex, waiting.act.op) == (netns, ifindex, op)
        };
        let (taken, rest): (Vec<_>, Vec<_>) = self.waiting.drain(..).partition(is_it);
        self.waiting = rest.into();
        let doubtful = taken.iter().any(|waiting| waiting.is_after_loss);
        let mut actors = taken.into_iter().map(|waiting| waiting.act.actor);
        let first = actors.next()?;
        let is_one = actors.all(|actor| actor.key == first.key);
        let confidence = if doubtful { Confidence::Likely } else { Confidence::Certain };
        is_one.then_some((first, confidence))
    }

    /// Forgets what was done in a namespace, which was read anew or is gone.
    pub fn forget(&mut self, netns: NsInum) {
        self.waiting.retain(|waiting| waiting.act.netns != netns);
    }

    /// The same with how many acts of it are missing.
    pub fn forget_namespace(&mut self, netns: NsInum) {
        self.forget(netns);
        self.missing.remove(&netns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::TaskKey;

    const S: u64 = 1_000_000_000;

    fn act(tgid: u32, netns: NsInum, ifindex: u32, op: LinkOp, missing: u32) -> LinkAct {
        let key = TaskKey { tgid, start_ns: 1, exec_id: 0 };
        let actor = TaskRef { key, tid: tgid, comm: "ip".into(), context: None };
        LinkAct { netns, ifindex, op, missing, actor }
    }

    fn taken(acts: &mut LinkActs, at: BootNs, netns: NsInum, op: LinkOp) -> Option<(u32, Confidence)> {
        acts.take(at, netns, 2, op).map(|(task, confidence)| (task.key.tgid, confidence))
    }

    #[test]
    fn an_act_is_named_once_and_only_for_what_it_did() {
        let mut acts = LinkActs::default();
        acts.put(S, act(7, 1, 2, LinkOp::Closed, 0));
        assert_eq!(taken(&mut acts, 2 * S, 1, LinkOp::Deleted), None);
        assert_eq!(taken(&mut acts, 2 * S, 9, LinkOp::Closed), None);
        assert_eq!(taken(&mut acts, S - 1, 1, LinkOp::Closed), None, "it came later than what is told");
        assert_eq!(taken(&mut acts, 2 * S, 1, LinkOp::Closed), Some((7, Confidence::Certain)));
        assert_eq!(taken(&mut acts, 2 * S, 1, LinkOp::Closed), None);
    }

    #[test]
    fn an_act_that_comes_after_what_tells_of_it_is_no_act_of_the_next_one() {
        let mut acts = LinkActs::default();
        acts.set_told(2 * S);
        acts.put(S, act(7, 1, 2, LinkOp::Closed, 0));
        acts.put(3 * S, act(8, 1, 2, LinkOp::Closed, 0));
        // The message of the first may be still to come.
        assert_eq!(taken(&mut acts, 3 * S, 1, LinkOp::Closed), Some((8, Confidence::Likely)));
        acts.put(12 * S, act(8, 1, 2, LinkOp::Closed, 0));
        assert_eq!(taken(&mut acts, 12 * S, 1, LinkOp::Closed), Some((8, Confidence::Certain)));
    }

    #[test]
    fn who_is_left_where_others_were_displaced_is_only_likely_the_one() {
        let mut acts = LinkActs::default();
        acts.put(S, act(7, 1, 2, LinkOp::Closed, 0));
        acts.put(S, act(8, 1, 2, LinkOp::Closed, 0));
        for ifindex in 3..=65 {
            acts.put(S, act(7, 1, ifindex, LinkOp::Closed, 0));
        }
        assert_eq!(taken(&mut acts, S, 1, LinkOp::Closed), Some((8, Confidence::Likely)));
    }

    #[test]
    fn of_two_who_did_the_same_nobody_is_named() {
        let mut acts = LinkActs::default();
        acts.put(S, act(7, 1, 2, LinkOp::Closed, 0));
        acts.put(S, act(8, 1, 2, LinkOp::Closed, 0));
        assert_eq!(taken(&mut acts, 2 * S, 1, LinkOp::Closed), None);
        acts.put(3 * S, act(7, 1, 2, LinkOp::Closed, 0));
        acts.put(3 * S, act(7, 1, 2, LinkOp::Closed, 0));
        assert_eq!(taken(&mut acts, 3 * S, 1, LinkOp::Closed), Some((7, Confidence::Certain)));
    }

    #[test]
    fn an_act_after_others_that_are_missing_is_only_likely_the_one() {
        let mut acts = LinkActs::default();
        acts.put(S, act(7, 1, 2, LinkOp::Closed, 3));
        assert_eq!(taken(&mut acts, S, 1, LinkOp::Closed), Some((7, Confidence::Likely)));
        acts.put(S, act(8, 1, 9, LinkOp::Closed, 3));
        acts.put(S, act(7, 1, 2, LinkOp::Closed, 3));
        assert_eq!(taken(&mut acts, S, 1, LinkOp::Closed), Some((7, Confidence::Likely)), "of any interface");
        acts.put(12 * S, act(7, 1, 2, LinkOp::Closed, 3));
        assert_eq!(taken(&mut acts, 12 * S, 1, LinkOp::Closed), Some((7, Confidence::Certain)));
        acts.put(12 * S, act(7, 1, 2, LinkOp::Closed, 0));
        assert_eq!(
            taken(&mut acts, 12 * S, 1, LinkOp::Closed),
            Some((7, Confidence::Likely)),
            "counted anew"
        );
        acts.put(S, act(7, 2, 2, LinkOp::Closed, 0));
        assert_eq!(taken(&mut acts, S, 2, LinkOp::Closed), Some((7, Confidence::Certain)), "another one's");
    }

    #[test]
    fn what_no_message_tells_is_forgotten_and_one_namespace_displaces_nothing_of_others() {
        let mut acts = LinkActs::default();
        acts.put(S, act(7, 1, 2, LinkOp::Opened, 0));
        for ifindex in 0..10_000 {
            acts.put(S, act(8, 3, ifindex, LinkOp::Closed, 0));
        }
        assert_eq!(acts.waiting.len(), ACTS_OF_NETNS_MAX + 1);
        assert_eq!(taken(&mut acts, S, 1, LinkOp::Opened), Some((7, Confidence::Certain)));
        acts.put(12 * S, act(7, 1, 2, LinkOp::Opened, 0));
        assert_eq!(acts.waiting.len(), 1);
        for netns in 0..10_000 {
            acts.put(12 * S, act(8, netns, 2, LinkOp::Closed, 1));
        }
        assert_eq!((acts.waiting.len(), acts.missing.len()), (ACTS_MAX, NAMESPACES_MAX));
        acts.forget_namespace(9_999);
        assert_eq!((acts.waiting.len(), acts.missing.len()), (ACTS_MAX - 1, NAMESPACES_MAX - 1));
    }
}
