//! One outage after another of the same gateway: nobody is named for what another one did.

use super::*;

fn replaced_by(lladdr: LlAddr) -> NeighborChange {
    NeighborChange {
        op: NeighborOp::Changed,
        new_state: Some(NudState::PERMANENT),
        new_lladdr: Some(lladdr),
        ..deletion(ETCD, NeighborCause::Replaced)
    }
}

/// Summary, actor and count of the one open incident.
#[track_caller]
fn open(node: &TestNode) -> (String, Option<u32>, u64) {
    let [incident] = &node.open()[..] else { panic!("{:?}", node.kinds()) };
    let objects = node.core.incidents().next().unwrap().1.clone();
    (incident.summary.clone(), objects.actor.map(|actor| actor.pid), incident.count)
}

#[test]
fn a_deletion_by_another_process_names_and_counts_that_one_only() {
    let mut node = lost();
    let id = node.open()[0].id.clone();
    node.observe(task(30_000, "/usr/bin/worker"));
    let mut again = deletion(ETCD, NeighborCause::Admin);
    again.actor = Some(TaskRef { key: task_key(30_000), tid: 30_000, comm: "worker".into(), context: None });
    node.observe(Fact::Neighbor(Box::new(again.clone())));
    assert_eq!(node.kinds(), ["incident.opened", "incident.updated"]);
    let (summary, actor, count) = open(&node);
    assert!(summary.ends_with("deleted by worker (pid 30000)"), "{summary}");
    assert_eq!((actor, count, &node.open()[0].id), (Some(30_000), 1, &id));
    node.observe(Fact::Neighbor(Box::new(again)));
    assert_eq!(open(&node).2, 2, "the same one again");
    assert_eq!(node.open()[0].evidence.len(), 3);
}

#[test]
fn a_failure_that_follows_from_the_deletion_neither_counts_nor_hides_the_culprit() {
    let mut node = lost();
    node.set_entry(ETCD, Some((NudState::FAILED, None)));
    node.observe(failure(ETCD));
    let (summary, actor, count) = open(&node);
    assert!(summary.ends_with("deleted by calico (pid 28997)"), "{summary}");
    assert_eq!((actor, count, node.open()[0].evidence.len()), (Some(28_997), 1, 2));
}

#[test]
fn an_entry_that_was_learned_again_and_fails_later_is_not_the_deletions_doing() {
    for seen in [true, false] {
        let mut node = lost();
        node.run_for(2 * S);
        node.set_entry(ETCD, Some((NudState(0x02), Some(host_mac()))));
        if seen {
            node.run_for(5 * S);
        }
        node.set_entry(ETCD, Some((NudState::FAILED, None)));
        let Fact::Neighbor(mut change) = failure(ETCD) else { panic!() };
        // The kernel keeps the address that it had learned.
        change.lladdr = (!seen).then(host_mac);
        node.observe(Fact::Neighbor(change));
        assert_eq!(node.kinds().last(), Some(&"incident.closed"));
        node.run_for(15 * S);
        let (summary, actor, count) = open(&node);
        assert!(summary.ends_with("nothing answers its ARP requests on eth0"), "{summary}");
        assert_eq!((actor, count), (None, 1));
    }
}

#[test]
fn a_wrong_entry_that_nobody_was_seen_setting_is_not_the_deletions_doing() {
    let mut node = lost();
    node.set_entry(ETCD, Some((NudState::PERMANENT, Some(mac(9)))));
    node.run_for(3 * S);
    let (summary, actor, count) = open(&node);
    assert!(summary.contains("points to 32:76:e6:6f:ff:09"), "{summary}");
    assert_eq!((actor, count, node.open()[0].confidence), (None, 1, Confidence::Likely));
    let entry = node.last_incident().neighbor.clone().unwrap();
    assert_eq!(entry.reason.as_deref(), Some("wrong-lladdr"));
}

/// Somebody sets the entry, where there is none, to an address that is not the host's.
fn set_by_hand(node: &mut TestNode) -> Fact {
    node.set_entry(ETCD, Some((NudState::PERMANENT, Some(mac(9)))));
    node.observe(task(30_000, "/usr/bin/worker"));
    Fact::Neighbor(Box::new(NeighborChange {
        op: NeighborOp::Added,
        old_state: None,
        new_state: Some(NudState::PERMANENT),
        lladdr: None,
        new_lladdr: Some(mac(9)),
        actor: Some(TaskRef { key: task_key(30_000), tid: 30_000, comm: "worker".into(), context: None }),
        ..deletion(ETCD, NeighborCause::Admin)
    }))
}

#[test]
fn who_sets_a_wrong_entry_after_the_deletion_is_named_for_it() {
    // It may be read before its event is told.
    for is_read_first in [false, true] {
        let mut node = lost();
        let set = set_by_hand(&mut node);
        if is_read_first {
            node.observe_netns(ETCD);
        }
        node.observe(set);
        for _ in 0..2 {
            let (summary, actor, count) = open(&node);
            assert_eq!(
                summary,
                "pod lijiaob/etcd1-0 cannot reach its gateway 169.254.1.1: its static ARP entry on eth0 was set to \
                 32:76:e6:6f:ff:09 by worker (pid 30000)"
            );
            assert_eq!((actor, count, node.open()[0].confidence), (Some(30_000), 1, Confidence::Certain));
            let added = node.events.iter().find(|event| event.kind == Kind::NeighborAdded).unwrap();
            assert!(added.message.contains("set to 32:76:e6:6f:ff:09 by worker"), "{}", added.message);
            assert!(node.open()[0].evidence.contains(&added.seq));
            let entry = node.last_incident().neighbor.clone().unwrap();
            assert_eq!(entry.reason.as_deref(), Some("wrong-lladdr"));
            node.run_for(10 * S);
        }
        node.set_entry(ETCD, Some((NudState::PERMANENT, Some(host_mac()))));
        node.run_for(2 * S);
        assert!(node.open().is_empty());
    }
}

#[test]
fn who_sets_a_wrong_entry_where_there_was_none_is_named_once_it_lasts() {
    for lasts in [true, false] {
        let mut node = TestNode::booted(Resume::default());
        node.add_pod(ETCD, "cali9118ebbb10b", NudState(0x02));
        node.set_entry(ETCD, None);
        node.start(vec![etcd_sandbox()]);
        node.run_for(100 * S);
        let set = set_by_hand(&mut node);
        node.observe(set);
        assert!(node.open().is_empty(), "it may be mended at once");
        if !lasts {
            node.set_entry(ETCD, Some((NudState::PERMANENT, Some(host_mac()))));
        }
        node.run_for(10 * S);
        assert_eq!(node.open().len(), usize::from(lasts));
        if lasts {
            let (summary, actor, _) = open(&node);
            assert!(summary.ends_with("was set to 32:76:e6:6f:ff:09 by worker (pid 30000)"), "{summary}");
            assert_eq!(actor, Some(30_000));
        }
    }
}

#[test]
fn an_entry_that_vanished_unseen_is_not_the_doing_of_who_had_replaced_it() {
    let mut node = TestNode::with_running_pod();
    node.set_entry(ETCD, Some((NudState::PERMANENT, Some(mac(9)))));
    node.observe(Fact::Neighbor(Box::new(replaced_by(mac(9)))));
    assert_eq!(open(&node).1, Some(28_997));
    node.run_for(3 * S);
    assert_eq!(open(&node).1, Some(28_997));
    node.set_entry(ETCD, None);
    node.run_for(10 * S);
    let (summary, actor, count) = open(&node);
    assert!(summary.ends_with("is gone; no process was seen removing it"), "{summary}");
    assert_eq!((actor, count), (None, 1));
}

/// An entry that was replaced with a wrong one, as an event has told.
fn wrong() -> TestNode {
    let mut node = TestNode::with_running_pod();
    node.set_entry(ETCD, Some((NudState::PERMANENT, Some(mac(9)))));
    node.observe(Fact::Neighbor(Box::new(replaced_by(mac(9)))));
    node.run_for(3 * S);
    node
}

#[test]
fn nobody_is_said_to_have_removed_a_wrong_entry_unseen_while_the_event_may_be_on_its_way() {
    for is_read_first in [true, false] {
        let mut node = wrong();
        node.set_entry(ETCD, None);
        node.observe(task(30_000, "/usr/bin/worker"));
        let mut removal = deletion(ETCD, NeighborCause::Admin);
        removal.actor =
            Some(TaskRef { key: task_key(30_000), tid: 30_000, comm: "worker".into(), context: None });
        if is_read_first {
            node.observe_netns(ETCD);
            // On a busy machine the record of the kernel comes late.
            node.run_for(4 * S);
        }
        node.observe(Fact::Neighbor(Box::new(removal)));
        if !is_read_first {
            node.observe_netns(ETCD);
        }
        node.run_for(10 * S);
        let (summary, actor, count) = open(&node);
        assert!(summary.ends_with("was deleted by worker (pid 30000)"), "{summary}");
        assert_eq!((actor, count), (Some(30_000), 1));
        let unseen = |event: &Event| event.message.contains("no process was seen");
        assert!(!node.events.iter().any(unseen), "{is_read_first}");
    }
}

#[test]
fn where_records_were_lost_nobody_is_said_not_to_have_been_seen_removing_a_wrong_entry() {
    let mut node = wrong();
    node.set_entry(ETCD, None);
    let (source, reason) = ("bpf".into(), "neighbor-ring-full".into());
    node.observe(Fact::Lost(Loss { source, reason, count: Some(3) }));
    node.run_for(10 * S);
    let (summary, actor, _) = open(&node);
    assert!(summary.ends_with("is gone; actor unknown"), "{summary}");
    assert_eq!(actor, None);
}

#[test]
fn an_entry_that_is_replaced_with_the_right_one_is_no_fault_whatever_its_state() {
    for state in [0x02, 0x04, 0x08, 0x10, 0x40, 0x80].map(NudState) {
        let mut node = TestNode::with_running_pod();
        node.set_entry(ETCD, Some((NudState::PERMANENT, Some(mac(9)))));
        node.observe(Fact::Neighbor(Box::new(replaced_by(mac(9)))));
        let (summary, ..) = open(&node);
        assert!(summary.contains(" cannot reach its gateway "), "{summary}");
        node.set_entry(ETCD, Some((state, Some(host_mac()))));
        let repair = NeighborChange { new_state: Some(state), ..replaced_by(host_mac()) };
        node.observe(Fact::Neighbor(Box::new(repair)));
        assert!(node.open().is_empty(), "{state:?}");
        let repaired = node.events.iter().rev().find(|event| event.kind == Kind::NeighborChanged).unwrap();
        assert_eq!(repaired.severity, Severity::Notice);
        assert_eq!(repaired.neighbor.as_ref().unwrap().reason, None);
    }
}

#[test]
fn that_another_address_is_wrong_is_certain_only_where_the_right_one_is_known() {
    for (kind, expected) in [("veth", Confidence::Certain), ("macvlan", Confidence::Likely)] {
        let mut node = TestNode::with_running_pod();
        node.tables.get_mut(&HOST).unwrap().links[0].kind = Some(kind.into());
        node.observe_netns(HOST);
        node.set_entry(ETCD, Some((NudState(0x02), Some(mac(9)))));
        let replaced = NeighborChange { new_state: Some(NudState(0x02)), ..replaced_by(mac(9)) };
        node.observe(Fact::Neighbor(Box::new(replaced)));
        assert_eq!(node.open()[0].confidence, expected, "{kind}");
    }
}

#[test]
fn a_loss_without_an_actor_drops_the_earlier_one() {
    let mut node = lost();
    let unknown = NeighborChange { actor: None, ..deletion(ETCD, NeighborCause::LinkDown) };
    node.observe(Fact::Neighbor(Box::new(unknown)));
    let (summary, actor, count) = open(&node);
    assert!(summary.ends_with("was deleted because the link was set down"), "{summary}");
    assert_eq!((actor, count), (None, 1));
}

#[test]
fn a_restored_entry_ends_the_story_of_who_deleted_it() {
    let mut node = lost();
    node.set_entry(ETCD, Some((NudState::PERMANENT, Some(host_mac()))));
    node.run_for(3 * S);
    assert!(node.open().is_empty());
    let unknown = NeighborChange { actor: None, ..deletion(ETCD, NeighborCause::LinkDown) };
    node.set_entry(ETCD, None);
    node.observe(Fact::Neighbor(Box::new(unknown)));
    assert_eq!(open(&node).1, None);
}

/// A node on which somebody made the gateway's entry one in this state, which has the right address still.
fn downgraded(state: NudState) -> TestNode {
    let mut node = TestNode::with_running_pod();
    node.set_entry(ETCD, Some((state, Some(host_mac()))));
    let change = NeighborChange {
        op: NeighborOp::Changed,
        new_state: Some(state),
        ..deletion(ETCD, NeighborCause::Replaced)
    };
    node.observe(Fact::Neighbor(Box::new(change)));
    node
}

#[test]
fn an_entry_that_is_no_longer_static_is_lost_once_it_fails_or_is_removed_and_no_sooner() {
    for state in [0x02, 0x04, 0x40].map(NudState) {
        for failed in [true, false] {
            let mut node = downgraded(state);
            node.run_for(3 * S);
            assert!(node.open().is_empty(), "packets go where they went");
            node.set_entry(ETCD, failed.then_some((NudState::FAILED, None)));
            if failed {
                node.observe(failure(ETCD));
            } else {
                node.run_for(4 * S);
            }
            let (summary, actor, _) = open(&node);
            let expected = format!("was downgraded to {} by calico (pid 28997)", state.name());
            assert!(summary.ends_with(&expected), "{summary}");
            assert_eq!(actor, Some(28_997));
        }
    }
}

#[test]
fn an_entry_that_goes_on_working_without_being_static_is_not_lost_by_who_downgraded_it() {
    let mut node = downgraded(NudState(0x02));
    node.run_for(90 * S);
    assert_eq!(node.kinds(), [""; 0]);
    node.set_entry(ETCD, Some((NudState::FAILED, None)));
    node.observe(failure(ETCD));
    node.run_for(15 * S);
    let (summary, actor, _) = open(&node);
    assert!(summary.ends_with("nothing answers its ARP requests on eth0"), "{summary}");
    assert_eq!(actor, None);
}

#[test]
fn a_new_address_of_the_host_end_makes_the_entry_wrong() {
    let mut node = TestNode::with_running_pod();
    let mut end = node.tables[&HOST].links[0].clone();
    end.mac = Some(mac(7));
    node.tables.get_mut(&HOST).unwrap().links[0] = end.clone();
    node.observe(Fact::Link(Box::new(end)));
    node.run_for(10 * S);
    assert_eq!(node.last_incident().neighbor.as_ref().unwrap().reason.as_deref(), Some("wrong-lladdr"));
}
