//! Who did what to interfaces, routes, addresses, rules and sysctls, until the message comes that tells what happened.

use kevtmon_observation::{BootNs, LinkAct, LladdrAct, NsInum, SysctlWrite};
use serde::{Deserialize, Serialize};

use super::acts::{Acts, RoutedAct};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkActs {
    pub links: Acts<LinkAct>,
    /// Hardware addresses that interfaces were given. Of those with which no neighbor entry goes nothing is known.
    pub lladdrs: Acts<LladdrAct>,
    /// What was done to routes, addresses and rules.
    pub routes: Acts<RoutedAct>,
    /// Sysctls of the host that were written.
    pub sysctls: Acts<SysctlWrite>,
}

impl LinkActs {
    pub fn put_lladdr(&mut self, at: BootNs, act: LladdrAct) {
        // Of several entries that went along, each tells of it.
        if !self.lladdrs.has(&act) {
            self.lladdrs.put(at, act);
        }
    }

    /// A message about a link was read.
    pub fn set_told(&mut self, at: BootNs) {
        self.links.set_told(at);
        self.lladdrs.set_told(at);
    }

    /// Forgets what was done in a namespace, which was read again.
    pub fn forget(&mut self, netns: NsInum) {
        self.links.forget(netns);
        self.lladdrs.forget(netns);
        self.routes.forget(netns);
    }

    pub fn forget_namespace(&mut self, netns: NsInum) {
        self.links.forget_namespace(netns);
        self.lladdrs.forget_namespace(netns);
        self.routes.forget_namespace(netns);
    }
}

#[cfg(test)]
mod tests {
    use kevtmon_event::Confidence;
    use kevtmon_observation::{LinkOp, LlAddr, TaskKey, TaskRef};
    use kevtmon_types::clock::SECOND as S;

    use super::*;
    use crate::node::acts::{ACTS_MAX, Act as _, NAMESPACES_MAX};

    fn act(tgid: u32, netns: NsInum, ifindex: u32, op: LinkOp, missing: u32) -> LinkAct {
        let key = TaskKey { tgid, start_ns: 1, exec_id: 0 };
        let actor = TaskRef { key, tid: tgid, comm: "ip".into(), context: None };
        LinkAct { netns, ifindex, op, missing, netns_cookie: None, actor }
    }

    fn taken(acts: &mut LinkActs, at: BootNs, netns: NsInum, op: LinkOp) -> Option<(u32, Confidence)> {
        let is_it = |act: &LinkAct| (act.netns, act.ifindex, act.op) == (netns, 2, op);
        acts.links.take(at, None, is_it).map(|(task, confidence)| (task.key.tgid, confidence))
    }

    #[test]
    fn an_act_is_named_once_and_only_for_what_it_did() {
        let mut acts = LinkActs::default();
        acts.links.put(S, act(7, 1, 2, LinkOp::Closed, 0));
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
        acts.links.put(S, act(7, 1, 2, LinkOp::Closed, 0));
        acts.links.put(3 * S, act(8, 1, 2, LinkOp::Closed, 0));
        // The message of the first may be still to come.
        assert_eq!(taken(&mut acts, 3 * S, 1, LinkOp::Closed), Some((8, Confidence::Likely)));
        acts.links.put(12 * S, act(8, 1, 2, LinkOp::Closed, 0));
        assert_eq!(taken(&mut acts, 12 * S, 1, LinkOp::Closed), Some((8, Confidence::Certain)));
    }

    #[test]
    fn who_is_left_where_others_were_displaced_is_only_likely_the_one() {
        let mut acts = LinkActs::default();
        acts.links.put(S, act(7, 1, 2, LinkOp::Closed, 0));
        acts.links.put(S, act(8, 1, 2, LinkOp::Closed, 0));
        for ifindex in 3..=65 {
            acts.links.put(S, act(7, 1, ifindex, LinkOp::Closed, 0));
        }
        assert_eq!(taken(&mut acts, S, 1, LinkOp::Closed), Some((8, Confidence::Likely)));
    }

    #[test]
    fn of_two_who_did_the_same_nobody_is_named() {
        let mut acts = LinkActs::default();
        acts.links.put(S, act(7, 1, 2, LinkOp::Closed, 0));
        acts.links.put(S, act(8, 1, 2, LinkOp::Closed, 0));
        assert_eq!(taken(&mut acts, 2 * S, 1, LinkOp::Closed), None);
        acts.links.put(3 * S, act(7, 1, 2, LinkOp::Closed, 0));
        acts.links.put(3 * S, act(7, 1, 2, LinkOp::Closed, 0));
        assert_eq!(taken(&mut acts, 3 * S, 1, LinkOp::Closed), Some((7, Confidence::Certain)));
    }

    #[test]
    fn an_act_after_others_that_are_missing_is_only_likely_the_one() {
        let mut acts = LinkActs::default();
        acts.links.put(S, act(7, 1, 2, LinkOp::Closed, 3));
        assert_eq!(taken(&mut acts, S, 1, LinkOp::Closed), Some((7, Confidence::Likely)));
        acts.links.put(S, act(8, 1, 9, LinkOp::Closed, 3));
        acts.links.put(S, act(7, 1, 2, LinkOp::Closed, 3));
        assert_eq!(taken(&mut acts, S, 1, LinkOp::Closed), Some((7, Confidence::Likely)), "of any interface");
        acts.links.put(12 * S, act(7, 1, 2, LinkOp::Closed, 3));
        assert_eq!(taken(&mut acts, 12 * S, 1, LinkOp::Closed), Some((7, Confidence::Certain)));
        acts.links.put(12 * S, act(7, 1, 2, LinkOp::Closed, 0));
        assert_eq!(
            taken(&mut acts, 12 * S, 1, LinkOp::Closed),
            Some((7, Confidence::Likely)),
            "counted again"
        );
        acts.links.put(S, act(7, 2, 2, LinkOp::Closed, 0));
        assert_eq!(taken(&mut acts, S, 2, LinkOp::Closed), Some((7, Confidence::Certain)), "another one's");
    }

    #[test]
    fn acts_are_saved_and_restored_also_where_others_are_missing() {
        let mut acts = LinkActs::default();
        acts.links.put(S, act(7, 1, 2, LinkOp::Closed, 3));
        let saved = serde_json::to_string(&acts).unwrap();
        assert_eq!(serde_json::from_str::<LinkActs>(&saved).unwrap(), acts);
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
            acts.lladdrs.take(at, None, |act| act.lladdr == lladdr(last)).map(|(task, _)| task.key.tgid)
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
        assert!(acts.lladdrs.lengths().0 <= ACTS_MAX);
    }

    #[test]
    fn what_no_message_tells_is_forgotten_and_one_namespace_displaces_nothing_of_others() {
        let mut acts = LinkActs::default();
        acts.links.put(S, act(7, 1, 2, LinkOp::Opened, 0));
        for ifindex in 0..10_000 {
            acts.links.put(S, act(8, 3, ifindex, LinkOp::Closed, 0));
        }
        assert_eq!(acts.links.lengths().0, LinkAct::OF_NETNS_MAX + 1);
        assert_eq!(taken(&mut acts, S, 1, LinkOp::Opened), Some((7, Confidence::Certain)));
        acts.links.put(12 * S, act(7, 1, 2, LinkOp::Opened, 0));
        assert_eq!(acts.links.lengths().0, 1);
        for netns in 0..10_000 {
            acts.links.put(12 * S, act(8, netns, 2, LinkOp::Closed, 1));
        }
        assert_eq!(acts.links.lengths(), (ACTS_MAX, NAMESPACES_MAX));
        acts.forget_namespace(9_999);
        assert_eq!(acts.links.lengths(), (ACTS_MAX - 1, NAMESPACES_MAX - 1));
    }
}
