//! Who did what to interfaces, routes, addresses and rules, until the message comes that tells what happened.
//!
//! The kernel sends the message after the act, and each act that is told apart has one of its kind. The same may be done by
//! several before the first message is read: then nobody is named.

use std::collections::{BTreeMap, VecDeque};

use kevtmon_event::Confidence;
use kevtmon_observation::{BootNs, LinkAct, LladdrAct, NsInum, RouteOp, SysctlWrite, TaskRef};
use kevtmon_types::namespace::may_have_cookie;
use serde::{Deserialize, Serialize};

/// Acts that wait for their message. What is displaced has no actor.
pub(super) const ACTS_MAX: usize = 1024;
/// A message that comes later than this has none.
const KEPT_NS: u64 = 10_000_000_000;
/// Namespaces of which it is kept how many acts are missing.
pub(super) const NAMESPACES_MAX: usize = 1024;

/// What a task did in a network namespace.
pub trait Act: PartialEq {
    /// How many of one namespace wait at most, so that no container displaces those of others.
    const OF_NETNS_MAX: usize;

    fn facts(&self) -> ActFacts<'_>;
}

pub struct ActFacts<'a> {
    netns: NsInum,
    /// How many acts there were not reported so far: another number than before tells that some are missing.
    missing: u32,
    /// The lower half of the cookie of the namespace, where it is known.
    cookie: Option<u32>,
    actor: &'a TaskRef,
}

/// An act that has its parts as fields.
macro_rules! act {
    ($act:ty, at most $most:literal) => {
        impl Act for $act {
            const OF_NETNS_MAX: usize = $most;

            fn facts(&self) -> ActFacts<'_> {
                let (netns, missing, cookie) = (self.netns, self.missing, self.netns_cookie);
                ActFacts { netns, missing, cookie, actor: &self.actor }
            }
        }
    };
}

act!(LinkAct, at most 64);
// All routes to the pods of a node may be set at once.
act!(RoutedAct, at most 512);
act!(SysctlWrite, at most 64);

impl Act for LladdrAct {
    const OF_NETNS_MAX: usize = 64;

    fn facts(&self) -> ActFacts<'_> {
        ActFacts { netns: self.netns, missing: 0, cookie: None, actor: &self.actor }
    }
}

/// What a task did to one route, address or rule.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoutedAct {
    pub netns: NsInum,
    pub op: RouteOp,
    /// As in `RouteAct`.
    pub missing: u32,
    /// As in `RouteAct`.
    pub netns_cookie: Option<u32>,
    pub actor: TaskRef,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Acts<A> {
    waiting: VecDeque<Waiting<A>>,
    /// When the last message was read: each act of before is known by then, and one that is not may have been told already.
    told: BootNs,
    missing: BTreeMap<NsInum, Missing>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Missing {
    /// As the last act had it.
    count: u32,
    /// Until then an act may be taken for another one of the same that is missing, whose message is still to come.
    doubted_until: BootNs,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Waiting<A> {
    at: BootNs,
    act: A,
    /// Others of this namespace may be missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_after_loss: bool,
}

impl<A> Default for Acts<A> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), told: 0, missing: BTreeMap::new() }
    }
}

impl<A: Act> Acts<A> {
    pub fn put(&mut self, at: BootNs, act: A) {
        let ActFacts { netns, missing, .. } = act.facts();
        if at <= self.told {
            // Its own message may be still to come.
            return self.miss(at, netns, Some(missing));
        }
        self.waiting.retain(|waiting| waiting.at.saturating_add(KEPT_NS) >= at);
        let of_it = |waiting: &Waiting<A>| waiting.act.facts().netns == netns;
        if self.waiting.iter().filter(|waiting| of_it(waiting)).count() >= A::OF_NETNS_MAX {
            let oldest = self.waiting.iter().position(of_it);
            oldest.and_then(|oldest| self.waiting.remove(oldest));
            self.miss(at, netns, None);
        }
        if self.waiting.len() >= ACTS_MAX
            && let Some(displaced) = self.waiting.pop_front()
        {
            self.miss(at, displaced.act.facts().netns, None);
        }
        let known = self.missing.get(&netns).copied().unwrap_or_default();
        if known.count != missing {
            self.miss(at, netns, Some(missing));
        }
        let is_after_loss = self.missing.get(&netns).is_some_and(|known| at < known.doubted_until);
        self.waiting.push_back(Waiting { at, act, is_after_loss });
    }

    /// An act in a namespace is missing, one that was not reported (then `count` are) or not kept.
    fn miss(&mut self, at: BootNs, netns: NsInum, count: Option<u32>) {
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.act.facts().netns == netns) {
            waiting.is_after_loss = true;
        }
        if self.missing.len() >= NAMESPACES_MAX && !self.missing.contains_key(&netns) {
            self.missing.pop_first();
        }
        let known = self.missing.entry(netns).or_default();
        known.count = count.unwrap_or(known.count);
        known.doubted_until = known.doubted_until.max(at.saturating_add(KEPT_NS));
    }

    pub(super) fn has(&self, act: &A) -> bool {
        self.waiting.iter().any(|waiting| waiting.act == *act)
    }

    /// Each act of before a message that was read then is taken to be known.
    pub fn set_told(&mut self, at: BootNs) {
        self.told = self.told.max(at);
    }

    /// Who did this before `at` in the namespace with this cookie, if one program did, and how certain that is; what was done then
    /// is forgotten.
    pub fn take(
        &mut self,
        at: BootNs,
        cookie: Option<u64>,
        is_it: impl Fn(&A) -> bool,
    ) -> Option<(TaskRef, Confidence)> {
        let is_taken = |Waiting { at: done, act, .. }: &Waiting<A>| {
            *done <= at && is_it(act) && may_have_cookie(act.facts().cookie, cookie)
        };
        // Most messages tell of what nobody did.
        if !self.waiting.iter().any(is_taken) {
            return None;
        }
        let (taken, rest): (Vec<_>, Vec<_>) = self.waiting.drain(..).partition(is_taken);
        self.waiting = rest.into();
        let doubtful = taken.iter().any(|waiting| waiting.is_after_loss);
        let mut acts = taken.into_iter().map(|waiting| waiting.act);
        let first = acts.next()?;
        let is_one = acts.all(|act| act.facts().actor.key == first.facts().actor.key);
        let confidence = if doubtful { Confidence::Likely } else { Confidence::Certain };
        is_one.then(|| (first.facts().actor.clone(), confidence))
    }

    /// Forgets what was done in a namespace, which was read again or is gone.
    pub fn forget(&mut self, netns: NsInum) {
        self.waiting.retain(|waiting| waiting.act.facts().netns != netns);
    }

    /// The same with how many acts of it are missing.
    pub fn forget_namespace(&mut self, netns: NsInum) {
        self.forget(netns);
        self.missing.remove(&netns);
    }

    #[cfg(test)]
    pub(super) fn lengths(&self) -> (usize, usize) {
        (self.waiting.len(), self.missing.len())
    }
}
