//! Losses of which the kernel shows only a part, or nothing.

use super::*;

#[test]
fn an_entry_that_was_used_when_it_went_is_a_loss_where_it_was_known_to_be_static() {
    for state in [NudState::PERMANENT, NudState(0x02)] {
        let mut node = TestNode::booted(Resume::default());
        node.add_pod(ETCD, "cali9118ebbb10b", state);
        node.start(vec![sandbox(SANDBOX, ETCD, "lijiaob", "etcd1-0", "u")]);
        node.set_entry(ETCD, None);
        let gone = NeighborChange { old_state: None, ..deletion(ETCD, NeighborCause::LladdrChanged) };
        node.observe(Fact::Neighbor(Box::new(gone)));
        if state != NudState::PERMANENT {
            node.run_for(100 * S);
            assert_eq!(node.kinds(), [""; 0], "what was learned is resolved again");
            continue;
        }
        node.run_for(S);
        let opened = node.last_incident();
        assert_eq!(opened.incident.as_ref().unwrap().confidence, Confidence::Likely);
        assert_eq!(opened.actor.as_ref().unwrap().pid, 28_997);
        assert_eq!(opened.neighbor.as_ref().unwrap().state, None);
        node.set_entry(ETCD, Some((NudState::PERMANENT, Some(host_mac()))));
        node.run_for(30 * S);
        assert_eq!(node.kinds(), ["incident.opened", "incident.closed"]);
    }
}

#[test]
fn what_users_have_lost_among_themselves_puts_only_their_namespaces_in_doubt() {
    for (reason, foreign, expected) in [
        ("neighbor-users-ring-full", false, "is gone; no process was seen removing it"),
        ("neighbor-users-ring-full", true, "is gone; actor unknown"),
        ("neighbor-ring-full", false, "is gone; actor unknown"),
    ] {
        let mut node = TestNode::with_running_pod();
        node.tables.get_mut(&ETCD).unwrap().foreign_userns = foreign;
        node.set_entry(ETCD, None);
        node.observe(Fact::Lost(Loss { source: "bpf".into(), reason: reason.into(), count: Some(3) }));
        node.observe_netns(ETCD);
        node.run_for(10 * S);
        let opened = node.last_incident();
        assert!(opened.message.ends_with(expected), "{}", opened.message);
    }
}

#[test]
fn nobody_is_said_not_to_have_been_seen_where_nothing_sees_who_removes_entries() {
    let status = SourceStatus::up(SourceKind::Hook, "hook.neighbor");
    let blind = SourceStatus { attach_mode: Some("netlink".into()), ..status.clone() };
    let sees = SourceStatus { attach_mode: Some("tp_btf".into()), ..status };
    let down = SourceStatus::down(SourceKind::Hook, "hook.neighbor", "it is off");
    for (status, expected) in [
        (sees, "is gone; no process was seen removing it"),
        (blind, "is gone; actor unknown"),
        (down, "is gone; actor unknown"),
    ] {
        let mut node = TestNode::with_running_pod();
        node.observe(Fact::Source(status));
        node.set_entry(ETCD, None);
        node.observe_netns(ETCD);
        node.run_for(10 * S);
        let opened = node.last_incident();
        assert!(opened.message.ends_with(expected), "{}", opened.message);
    }
}

#[test]
fn records_that_were_lost_are_taken_into_account_that_are_told_of_after_the_entry_was_missed() {
    let mut node = TestNode::with_running_pod();
    node.set_entry(ETCD, None);
    node.observe_netns(ETCD);
    node.run_for(S);
    let (source, reason) = ("bpf".into(), "neighbor-ring-full".into());
    node.observe(Fact::Lost(Loss { source, reason, count: Some(3) }));
    node.run_for(10 * S);
    let opened = node.last_incident();
    assert!(opened.message.ends_with("is gone; actor unknown"), "{}", opened.message);
}
