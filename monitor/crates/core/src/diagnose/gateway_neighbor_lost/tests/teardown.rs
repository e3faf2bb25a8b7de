//! What goes with its pod, its sandbox or its interface.

use super::*;

#[test]
fn teardown_is_no_incident() {
    let mut node = TestNode::with_running_pod();
    // The network plugin takes the interface before the sandbox ends.
    node.delete_entry(ETCD, NeighborCause::LinkDeleted);
    node.run_for(20 * S);
    node.observe(etcd(ContainerState::Exited));
    node.end_network(ETCD);
    node.run_for(200 * S);
    assert_eq!(node.kinds(), [""; 0]);
}

#[test]
fn a_plugin_takes_the_entry_when_its_own_sandbox_is_deleted() {
    let delete = |node: &mut TestNode, sandbox: &str, code: u32| {
        node.call_with(CniCommand::Del, sandbox, code, |node| node.delete_entry(ETCD, NeighborCause::Admin));
    };
    for code in [0, 1] {
        let mut node = TestNode::with_running_pod();
        delete(&mut node, SANDBOX, code);
        node.run_for(10 * S);
        assert_eq!(node.core.state(0).suspected[0].reason, "its sandbox is being deleted");
        node.observe(etcd(ContainerState::Exited));
        node.end_network(ETCD);
        node.run_for(200 * S);
        assert_eq!(node.kinds(), [""; 0]);
    }
    // It lives on.
    let mut node = TestNode::with_running_pod();
    delete(&mut node, SANDBOX, 0);
    node.run_for(57 * S);
    assert_eq!(node.kinds(), [""; 0]);
    node.run_for(4 * S);
    assert_eq!(node.kinds(), ["incident.opened"]);
    assert!(node.last_incident().message.contains("calico (pid 28997)"), "{}", node.last_incident().message);
    // Another sandbox is deleted, or this one was long ago.
    let mut node = TestNode::with_running_pod();
    delete(&mut node, &"a".repeat(64), 0);
    assert!(node.kinds().contains(&"incident.opened"), "{:?}", node.kinds());
    let mut node = TestNode::with_running_pod();
    node.call(CniCommand::Del, SANDBOX, 1);
    node.run_for(61 * S);
    node.delete_entry(ETCD, NeighborCause::Admin);
    assert!(node.kinds().contains(&"incident.opened"), "{:?}", node.kinds());
}

#[test]
fn an_interface_deleted_under_a_pod_that_lives_on_is_an_incident_with_a_name() {
    let mut node = TestNode::with_running_pod();
    node.delete_entry(ETCD, NeighborCause::LinkDeleted);
    node.run_for(59 * S);
    assert_eq!(node.kinds(), [""; 0]);
    node.run_for(2 * S);
    assert_eq!(node.kinds(), ["incident.opened"]);
    let opened = node.last_incident();
    assert!(
        opened.message.ends_with("deleted by calico (pid 28997), by deleting the link"),
        "{}",
        opened.message
    );
    assert_eq!(opened.incident.as_ref().unwrap().first_seen, node.events[0].time);
}

#[test]
fn an_interface_replaced_by_another_is_no_fault() {
    let replace = |node: &mut TestNode| {
        let tables = node.tables.get_mut(&ETCD).unwrap();
        tables.links[0].ifindex = 3;
        tables.routes[0].ifindex = Some(3);
        let peer = PeerLink { ifindex: 3, netns: Some(ETCD) };
        node.tables.get_mut(&HOST).unwrap().links.last_mut().unwrap().peer = Some(peer);
        node.set_entry(ETCD, Some((NudState::PERMANENT, Some(host_mac()))));
        node.tables.get_mut(&ETCD).unwrap().neighbors[0].ifindex = 3;
        node.observe_netns(HOST);
    };
    let mut node = TestNode::with_running_pod();
    node.delete_entry(ETCD, NeighborCause::LinkDeleted);
    replace(&mut node);
    node.run_for(100 * S);
    assert!(node.incidents().is_empty(), "{:?}", node.kinds());

    let mut node = TestNode::with_running_pod();
    node.delete_entry(ETCD, NeighborCause::LinkDeleted);
    node.run_for(61 * S);
    assert_eq!(node.kinds(), ["incident.opened"]);
    replace(&mut node);
    node.run_for(30 * S);
    assert_eq!(node.last_incident().incident.as_ref().unwrap().close_reason, Some(CloseReason::Resolved));
}
