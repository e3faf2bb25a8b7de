//! Incidents that a restart of the daemon continues.

use super::*;

#[test]
fn a_restart_keeps_the_id_emits_nothing_and_closes_what_was_repaired_meanwhile() {
    let mut before = lost();
    before.run_for(5 * S);
    let id = before.open()[0].id.clone();
    let repaired = Some((NudState::PERMANENT, Some(host_mac())));
    for (entry, expected) in [(None, vec!["incident.updated"]), (repaired, vec!["incident.closed"])] {
        let mut node = TestNode::booted(before.resume_state());
        node.now = before.now;
        node.add_pod(ETCD, "cali9118ebbb10b", NudState::PERMANENT);
        node.set_entry(ETCD, entry);
        assert_eq!(node.open()[0].id, id);
        node.start(vec![etcd_sandbox()]);
        node.run_for(60 * S);
        assert_eq!(node.kinds(), expected);
        let last = node.last_incident();
        assert_eq!(last.incident.as_ref().unwrap().id, id);
        assert_eq!(last.actor.as_ref().unwrap().comm, "calico");
    }
}

#[test]
fn after_a_long_downtime_no_incident_escalates_before_the_node_was_read() {
    let before = lost();
    let repaired = Some((NudState::PERMANENT, Some(host_mac())));
    for (entry, expected) in [(None, "incident.updated"), (repaired, "incident.closed")] {
        let mut node = TestNode::booted(before.resume_state());
        node.now = before.now + 600 * S;
        node.add_pod(ETCD, "cali9118ebbb10b", NudState::PERMANENT);
        node.set_entry(ETCD, entry);
        node.observe(Fact::Tick);
        assert_eq!(node.kinds(), [""; 0]);
        node.start(vec![etcd_sandbox()]);
        node.run_for(10 * S);
        assert_eq!(node.kinds(), [expected]);
    }
}

#[test]
fn a_container_that_exited_during_downtime_closes_its_incident_after_the_restart() {
    let before = lost();
    let mut node = TestNode::booted(before.resume_state());
    node.start(Vec::new());
    let closed = node.last_incident().incident.as_ref().unwrap();
    assert_eq!(closed.close_reason, Some(CloseReason::SubjectGone));
    assert_eq!(node.kinds(), ["incident.closed"]);
}
