//! Who did what to interfaces, routes, addresses, rules and sysctls, until the message comes that tells what happened.

use std::collections::VecDeque;

use kevtmon_event::Confidence;
use kevtmon_observation::{BootNs, LinkAct, LinkOp, LlAddr, LladdrAct, NsInum, SysctlWrite, TaskRef};
use serde::{Deserialize, Serialize};

use super::acts::{ACTS_MAX, Act as _, Acts, KEPT_NS, RoutedAct};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkActs {
    #[serde(flatten)]
    acts: Acts<LinkAct>,
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    addressed: VecDeque<(BootNs, LladdrAct)>,
    /// What was done to routes, addresses and rules.
    pub routes: Acts<RoutedAct>,
    /// Sysctls of the host that were written.
    pub sysctls: Acts<SysctlWrite>,
}

impl LinkActs {
    pub fn put(&mut self, at: BootNs, act: LinkAct) {
        self.acts.put(at, act);
    }

    /// Keeps who gave an interface another hardware address. Of those with which no neighbor entry goes nothing is known.
    pub fn put_lladdr(&mut self, at: BootNs, act: LladdrAct) {
        // Of several entries that went along, each tells of it.
        if at <= self.acts.told || self.addressed.iter().any(|(_, known)| *known == act) {
            return;
        }
        self.addressed.retain(|(known, _)| known.saturating_add(KEPT_NS) >= at);
        let of_it = |(_, known): &(BootNs, LladdrAct)| known.netns == act.netns;
        if self.addressed.iter().filter(|known| of_it(known)).count() >= LinkAct::OF_NETNS_MAX {
            let oldest = self.addressed.iter().position(of_it);
            oldest.and_then(|oldest| self.addressed.remove(oldest));
        }
        crate::bounded::push(&mut self.addressed, ACTS_MAX, (at, act));
    }

    /// Who gave an interface this hardware address before `at`, if one program did.
    pub fn take_lladdr(
        &mut self,
        at: BootNs,
        netns: NsInum,
        ifindex: u32,
        lladdr: &LlAddr,
    ) -> Option<TaskRef> {
        let is_it = |(known, act): &(BootNs, LladdrAct)| {
            *known <= at && (act.netns, act.ifindex, &act.lladdr) == (netns, ifindex, lladdr)
        };
        let (taken, rest): (Vec<_>, Vec<_>) = self.addressed.drain(..).partition(is_it);
        self.addressed = rest.into();
        let mut actors = taken.into_iter().map(|(_, act)| act.actor);
        let first = actors.next()?;
        actors.all(|actor| actor.key == first.key).then_some(first)
    }

    pub fn set_told(&mut self, at: BootNs) {
        self.acts.set_told(at);
    }

    /// Who did this before `at` in the namespace with this cookie, if one program did, and how certain that is; what was done then
    /// is forgotten.
    pub fn take(
        &mut self,
        at: BootNs,
        netns: NsInum,
        cookie: Option<u64>,
        ifindex: u32,
        op: LinkOp,
    ) -> Option<(TaskRef, Confidence)> {
        self.acts.take(at, cookie, |act| (act.netns, act.ifindex, act.op) == (netns, ifindex, op))
    }

    pub fn forget(&mut self, netns: NsInum) {
        self.acts.forget(netns);
        self.addressed.retain(|(_, act)| act.netns != netns);
        self.routes.forget(netns);
    }

    pub fn forget_namespace(&mut self, netns: NsInum) {
        self.forget(netns);
        self.acts.forget_namespace(netns);
        self.routes.forget_namespace(netns);
    }
}

#[cfg(test)]
mod tests {
    use kevtmon_observation::TaskKey;
    use kevtmon_types::clock::SECOND as S;

    use super::*;
    use crate::node::acts::NAMESPACES_MAX;

    fn act(tgid: u32, netns: NsInum, ifindex: u32, op: LinkOp, missing: u32) -> LinkAct {
        let key = TaskKey { tgid, start_ns: 1, exec_id: 0 };
        let actor = TaskRef { key, tid: tgid, comm: "ip".into(), context: None };
        LinkAct { netns, ifindex, op, missing, netns_cookie: None, actor }
    }

    fn taken(acts: &mut LinkActs, at: BootNs, netns: NsInum, op: LinkOp) -> Option<(u32, Confidence)> {
        acts.take(at, netns, None, 2, op).map(|(task, confidence)| (task.key.tgid, confidence))
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
            "counted again"
        );
        acts.put(S, act(7, 2, 2, LinkOp::Closed, 0));
        assert_eq!(taken(&mut acts, S, 2, LinkOp::Closed), Some((7, Confidence::Certain)), "another one's");
    }

    #[test]
    fn who_changed_a_hardware_address_is_named_for_that_one_alone_and_nobody_of_two() {
        let lladdr = |last: u8| LlAddr(vec![2, 0, 0, 0, 0, last]);
        let act = |tgid: u32, last: u8| LladdrAct {
            netns: 1,
            ifindex: 2,
            lladdr: lladdr(last),
            actor: act(tgid, 1, 2, LinkOp::Closed, 0).actor,
        };
        let mut acts = LinkActs::default();
        let taken = |acts: &mut LinkActs, at, last| {
            acts.take_lladdr(at, 1, 2, &lladdr(last)).map(|task| task.key.tgid)
        };
        acts.put_lladdr(S, act(7, 1));
        acts.put_lladdr(S, act(7, 1));
        assert_eq!(taken(&mut acts, 2 * S, 9), None, "another address");
        assert_eq!(taken(&mut acts, S - 1, 1), None, "it came later than what is told");
        assert_eq!(taken(&mut acts, 2 * S, 1), Some(7));
        assert_eq!(taken(&mut acts, 2 * S, 1), None);
        acts.put_lladdr(3 * S, act(7, 1));
        acts.put_lladdr(3 * S, act(8, 1));
        assert_eq!(taken(&mut acts, 4 * S, 1), None, "two did");
        acts.set_told(5 * S);
        acts.put_lladdr(5 * S, act(7, 1));
        assert_eq!(taken(&mut acts, 6 * S, 1), None, "its message was read already");
        acts.put_lladdr(6 * S, act(7, 1));
        acts.forget(1);
        assert_eq!(taken(&mut acts, 7 * S, 1), None);
        for number in 0..10_000 {
            let number = u32::try_from(number).unwrap();
            acts.put_lladdr(8 * S, LladdrAct { netns: number / 100, ifindex: number, ..act(7, 1) });
        }
        assert!(acts.addressed.len() <= ACTS_MAX);
    }

    #[test]
    fn what_no_message_tells_is_forgotten_and_one_namespace_displaces_nothing_of_others() {
        let mut acts = LinkActs::default();
        acts.put(S, act(7, 1, 2, LinkOp::Opened, 0));
        for ifindex in 0..10_000 {
            acts.put(S, act(8, 3, ifindex, LinkOp::Closed, 0));
        }
        assert_eq!(acts.acts.lengths().0, LinkAct::OF_NETNS_MAX + 1);
        assert_eq!(taken(&mut acts, S, 1, LinkOp::Opened), Some((7, Confidence::Certain)));
        acts.put(12 * S, act(7, 1, 2, LinkOp::Opened, 0));
        assert_eq!(acts.acts.lengths().0, 1);
        for netns in 0..10_000 {
            acts.put(12 * S, act(8, netns, 2, LinkOp::Closed, 1));
        }
        assert_eq!(acts.acts.lengths(), (ACTS_MAX, NAMESPACES_MAX));
        acts.forget_namespace(9_999);
        assert_eq!(acts.acts.lengths(), (ACTS_MAX - 1, NAMESPACES_MAX - 1));
    }
}
