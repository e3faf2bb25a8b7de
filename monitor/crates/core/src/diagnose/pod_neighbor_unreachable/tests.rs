use kevtmon_observation::*;

use super::*;
use crate::Resume;
use crate::diagnose::tests::harness::*;

const IP: &str = "192.168.252.66";
/// The host's end of its pair, as the tables number it.
const END: u32 = 11;

fn node() -> TestNode {
    let mut node = TestNode::booted(Resume::default());
    node.add_pod(ETCD, "cali9118ebbb10b", NudState::PERMANENT);
    let address = AddressFacts { netns: ETCD, ifindex: 2, address: IP.parse().unwrap(), prefix_len: 32 };
    node.tables.get_mut(&ETCD).unwrap().addresses.push(address);
    node
}

fn started(mut node: TestNode) -> TestNode {
    assert_eq!(node.tables[&HOST].links[0].ifindex, END);
    node.start(vec![etcd_sandbox()]);
    node.run_for(60 * S);
    node.events.clear();
    node
}

fn entry(node: &TestNode, state: NudState) -> HostNeighbor {
    HostNeighbor { ifindex: END, address: IP.parse().unwrap(), state, updated: node.now, used: node.now }
}

/// A look at the table, ten seconds after the one before.
fn look(node: &mut TestNode, entries: &[HostNeighbor]) {
    node.run_for(10 * S);
    node.observe(Fact::HostNeighbors(entries.to_vec()));
}

fn fail(node: &mut TestNode, looks: usize) {
    for _ in 0..looks {
        let failed = entry(node, NudState::FAILED);
        look(node, &[failed]);
    }
}

#[test]
fn a_record_that_stays_failed_for_three_looks_and_thirty_seconds_is_told_until_it_is_resolved() {
    let mut node = started(node());
    fail(&mut node, 3);
    assert_eq!(node.kinds(), [""; 0], "20 s");
    // It is tried again.
    let tried = entry(&node, NudState::INCOMPLETE);
    look(&mut node, &[tried]);
    let incident = &node.open()[0];
    assert_eq!((incident.severity, incident.confidence), (Severity::Warning, Confidence::Certain));
    assert_eq!(
        incident.summary,
        "this node cannot reach pod lijiaob/etcd1-0 at 192.168.252.66: its neighbor record on cali9118ebbb10b was FAILED \
         or INCOMPLETE in 4 checks within 30 s"
    );
    assert_eq!(
        incident.ruled_out,
        [
            "its host end cali9118ebbb10b is up",
            "eth0 in the pod is up",
            "eth0 in the pod has the address 192.168.252.66",
            "no other pod of this node has it"
        ]
    );
    let commands: Vec<&str> = incident.advice.iter().map(|step| step.command.as_str()).collect();
    assert_eq!(
        commands,
        [
            "ip neigh show to 192.168.252.66 dev cali9118ebbb10b",
            "ip route get 192.168.252.66",
            "kevtmon why lijiaob/etcd1-0"
        ]
    );
    fail(&mut node, 1);
    assert_eq!(node.open()[0].count, 5);
    let resolved = entry(&node, NudState(0x02));
    look(&mut node, &[resolved]);
    let (kind, incident) = *node.incidents().last().unwrap();
    assert_eq!((kind, incident.close_reason), (Kind::IncidentClosed, Some(CloseReason::Resolved)));
    assert!(incident.summary.starts_with("this node cannot reach pod "), "{}", incident.summary);
    assert!(node.last_incident().message.starts_with("resolved: "));
}

#[test]
fn a_table_that_is_full_is_quoted_if_it_is_of_the_same_family_and_the_record_failed_of_late() {
    let quotes = |node: &TestNode| {
        node.events
            .iter()
            .filter(|event| event.kind == Kind::LogQuoted)
            .map(|event| event.seq)
            .collect::<Vec<_>>()
    };
    let full = |ipv6| {
        let text = "neighbour: x_cache: neighbor table overflow!".into();
        let says = LogSays::NeighborOverflow { ipv6 };
        Fact::Log(Box::new(LogLine { log: "/dev/kmsg".into(), text, says }))
    };
    let mut node = started(node());
    fail(&mut node, 4);
    node.observe(full(true));
    assert_eq!(quotes(&node), [0; 0], "that table is of IPv6");
    // Nothing was seen of the record since, and that of another entry may be full.
    node.run_for(61 * S);
    node.observe(full(false));
    assert_eq!(quotes(&node), [0; 0]);
    fail(&mut node, 1);
    node.observe(full(false));
    assert_eq!(quotes(&node), node.open()[0].evidence);
    assert_eq!(quotes(&node).len(), 1);
}

#[test]
fn what_is_wrong_on_the_way_is_said_and_not_that_it_is_healthy() {
    let mut broken = node();
    broken.tables.get_mut(&HOST).unwrap().links[0].flags = 0;
    let tables = broken.tables.get_mut(&ETCD).unwrap();
    tables.links[0].flags |= iff::NOARP;
    tables.addresses.clear();
    let mut node = started(broken);
    fail(&mut node, 4);
    let incident = &node.open()[0];
    let wrong =
        "; cali9118ebbb10b is down; ARP is off on eth0 in the pod; eth0 in the pod lacks that address";
    assert!(incident.summary.ends_with(wrong), "{}", incident.summary);
    assert_eq!(incident.ruled_out, ["eth0 in the pod is up", "no other pod of this node has it"]);
}

#[test]
fn who_set_the_host_s_end_down_before_is_named() {
    let told = |by_somebody: bool, is_after: bool, is_lost: bool| {
        let mut bridged = node();
        let host = bridged.tables.get_mut(&HOST).unwrap();
        host.links[0].master = Some(90);
        let bridge = veth(HOST, 90, "cni0", 0, 0);
        host.links.push(LinkFacts { kind: Some("bridge".into()), peer: None, ..bridge });
        let mut node = started(bridged);
        let failed = |node: &TestNode| HostNeighbor { ifindex: 90, ..entry(node, NudState::FAILED) };
        let before = failed(&node);
        if by_somebody {
            let actor = TaskRef { key: task_key(28_997), tid: 28_997, comm: "calico".into(), context: None };
            let act = LinkAct {
                netns: HOST,
                ifindex: END,
                op: LinkOp::Closed,
                missing: 0,
                netns_cookie: None,
                actor,
            };
            node.run_for(S);
            node.observe(task(28_997, "/opt/cni/bin/calico"));
            node.observe(Fact::LinkAct(Box::new(act)));
        }
        let link = &mut node.tables.get_mut(&HOST).unwrap().links[0];
        link.flags = 0;
        let down = link.clone();
        node.observe(Fact::Link(Box::new(down)));
        if is_lost {
            let lost = Loss { source: "bpf".into(), reason: "ring-full".into(), count: Some(1) };
            node.observe(Fact::Lost(lost));
        }
        for _ in 0..4 {
            let entry = if is_after { failed(&node) } else { before.clone() };
            look(&mut node, &[entry]);
        }
        let incident = node.open().into_iter().find(|incident| incident.kind == KIND).unwrap().clone();
        let is_it = |event: &&Event| event.incident.as_ref().is_some_and(|one| one.id == incident.id);
        let actor = node.events.iter().rfind(is_it).unwrap().actor.clone();
        (incident, actor.map(|actor| (actor.pid, actor.confidence)))
    };
    let (incident, actor) = told(true, true, false);
    assert!(
        incident.summary.ends_with("; cali9118ebbb10b was set down by calico (pid 28997)"),
        "{}",
        incident.summary
    );
    assert_eq!(actor, Some((28_997, Confidence::Certain)));
    assert_eq!(incident.evidence.len(), 1);
    let (incident, actor) = told(true, true, true);
    assert!(incident.summary.contains("was set down, likely by calico"), "{}", incident.summary);
    assert_eq!(actor, Some((28_997, Confidence::Likely)));
    for (by_somebody, is_after) in [(false, true), (true, false)] {
        let (incident, actor) = told(by_somebody, is_after, false);
        assert!(incident.summary.ends_with("; cali9118ebbb10b is down"), "{}", incident.summary);
        assert_eq!(actor, None);
    }
}

#[test]
fn a_record_that_comes_and_goes_or_of_before_the_pod_ran_or_of_nobody_is_none() {
    let mut node = started(node());
    for _ in 0..5 {
        fail(&mut node, 2);
        // No record is normal.
        look(&mut node, &[]);
    }
    let ran = node.now;
    node.observe(Fact::Container(Box::new(ContainerFacts { started_ns: Some(ran), ..etcd_sandbox() })));
    for _ in 0..6 {
        let old = HostNeighbor { updated: ran - S, ..entry(&node, NudState::FAILED) };
        let link_local =
            HostNeighbor { address: "fe80::7".parse().unwrap(), ..entry(&node, NudState::FAILED) };
        let unknown =
            HostNeighbor { address: "192.168.9.9".parse().unwrap(), ..entry(&node, NudState::FAILED) };
        let elsewhere = HostNeighbor { ifindex: 99, ..entry(&node, NudState::FAILED) };
        look(&mut node, &[old, link_local, unknown, elsewhere]);
    }
    assert_eq!(node.kinds(), [""; 0]);
}

#[test]
fn it_ends_with_the_pod_and_when_there_is_no_record_any_more() {
    let mut node = started(node());
    fail(&mut node, 4);
    look(&mut node, &[]);
    look(&mut node, &[]);
    assert_eq!(node.open().len(), 1);
    look(&mut node, &[]);
    let (_, incident) = *node.incidents().last().unwrap();
    assert_eq!(incident.close_reason, Some(CloseReason::Expired));
    fail(&mut node, 4);
    assert_eq!(node.open()[0].episode, 2);
    node.observe(etcd(ContainerState::Exited));
    let (_, incident) = *node.incidents().last().unwrap();
    assert_eq!(incident.close_reason, Some(CloseReason::SubjectGone));
}

#[test]
fn a_record_that_nothing_was_sent_to_of_late_is_only_likely_to_show_that() {
    let mut node = started(node());
    let failed = entry(&node, NudState::FAILED);
    for _ in 0..8 {
        look(&mut node, std::slice::from_ref(&failed));
    }
    assert_eq!(
        node.open()[0].confidence,
        Confidence::Certain,
        "it was opened within a minute of the last packet"
    );
    let mut idle = started(self::node());
    let failed =
        HostNeighbor { used: idle.now - 50 * S, updated: idle.now, ..entry(&idle, NudState::FAILED) };
    for _ in 0..4 {
        look(&mut idle, std::slice::from_ref(&failed));
    }
    assert_eq!(idle.open()[0].confidence, Confidence::Likely);
}

#[test]
fn it_goes_on_over_a_restart_of_the_daemon() {
    let mut node = started(node());
    fail(&mut node, 4);
    let mut next = TestNode::booted(node.resume_state());
    next.tables.clone_from(&node.tables);
    let mut next = started(next);
    assert_eq!((next.kinds(), next.open().len()), (Vec::new(), 1), "it goes on without another word");
    let resolved = entry(&next, NudState(0x04));
    look(&mut next, &[resolved]);
    assert_eq!(next.open().len(), 0);
}

#[test]
fn behind_a_bridge_the_entry_is_the_bridges() {
    let mut bridged = node();
    let host = bridged.tables.get_mut(&HOST).unwrap();
    host.links[0].master = Some(90);
    host.links.push(LinkFacts { kind: Some("bridge".into()), peer: None, ..veth(HOST, 90, "cni0", 0, 0) });
    let mut node = started(bridged);
    for _ in 0..4 {
        let failed = HostNeighbor { ifindex: 90, ..entry(&node, NudState::FAILED) };
        look(&mut node, &[failed]);
    }
    let incident = &node.open()[0];
    assert!(incident.summary.contains("its neighbor record on cni0 was FAILED"), "{}", incident.summary);
    assert_eq!(incident.ruled_out[0], "its host end cali9118ebbb10b is up");
}
