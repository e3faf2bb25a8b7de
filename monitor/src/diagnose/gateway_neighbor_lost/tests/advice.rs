//! Advice follows the state in which it is read, and never feeds the failure.

use super::*;

fn commands(node: &TestNode) -> Vec<String> {
    node.open()[0].advice.iter().map(|step| step.command.clone()).collect()
}

fn repairs(node: &TestNode) -> bool {
    commands(node).iter().any(|command| command.contains("neigh replace"))
}

/// The gateway's entry is deleted by a process that the kubelet did not start.
fn lost_by_hand(mut node: TestNode) -> TestNode {
    let Fact::Task(facts) = calico() else { panic!() };
    let by_hand = TaskFacts { cgroup: Some("/user.slice/x.scope".into()), ancestors: Vec::new(), ..*facts };
    node.observe(Fact::Task(Box::new(by_hand)));
    node.delete_entry(ETCD, NeighborCause::Admin);
    node
}

#[test]
fn a_pod_is_to_be_deleted_only_where_no_older_sandbox_of_its_name_is_left() {
    let deletes =
        |node: &TestNode| commands(node).contains(&"kubectl -n lijiaob delete pod etcd1-0".to_owned());
    assert!(deletes(&lost_by_hand(TestNode::with_running_pod())));

    let mut node = TestNode::with_running_pod();
    let older = sandbox(&"9".repeat(64), 77, "lijiaob", "etcd1-0", "another uid");
    let older = ContainerFacts { state: ContainerState::Exited, tgid: None, netns: None, ..older };
    node.observe(Fact::Container(Box::new(older)));
    let node = lost_by_hand(node);
    assert!(!deletes(&node), "{:?}", commands(&node));
    assert!(commands(&node)[2].starts_with("docker ps --all"), "{:?}", commands(&node));
}

#[test]
fn an_entry_is_put_back_only_where_both_ends_are_up() {
    let mut node = lost();
    assert!(repairs(&node));
    let end = node.tables[&HOST].links[0].clone();
    let down = LinkFacts { flags: 0, ..end.clone() };
    node.observe(Fact::Link(Box::new(down)));
    assert!(!repairs(&node), "{:?}", commands(&node));
    node.observe(Fact::Link(Box::new(end)));
    assert!(repairs(&node));
    assert!(node.events.iter().all(|event| event.kind != Kind::IncidentClosed));
}

#[test]
fn nothing_is_to_be_done_on_an_interface_that_is_gone() {
    let mut node = lost();
    assert!(commands(&node).iter().any(|command| command.contains("dev eth0")));
    node.tables.get_mut(&ETCD).unwrap().links.clear();
    node.tables.get_mut(&ETCD).unwrap().routes.clear();
    node.tables.get_mut(&HOST).unwrap().links.clear();
    node.observe(Fact::LinkGone { netns: ETCD, ifindex: 2, moved_to: None });
    node.run_for(S);
    assert!(!commands(&node).iter().any(|command| command.contains("dev eth0")), "{:?}", commands(&node));
    assert_eq!(node.open()[0].ruled_out, [""; 0]);
}
