use kevtmon_event::Kind;
use kevtmon_observation::*;

use super::KIND;
use crate::Resume;
use crate::diagnose::tests::harness::*;

/// A pod with so many entries that count.
fn node(entries: u32) -> TestNode {
    let mut node = TestNode::booted(Resume::default());
    node.add_pod(ETCD, "cali9118ebbb10b", NudState::PERMANENT);
    fill(&mut node, entries);
    node.start(vec![etcd_sandbox()]);
    node.run_for(60 * S);
    node.events.clear();
    node.requests.clear();
    node
}

fn fill(node: &mut TestNode, entries: u32) {
    node.tables.get_mut(&ETCD).unwrap().limited_neighbors = [entries, 0];
}

/// A look at the table, ten seconds after the one before.
fn look(node: &mut TestNode, entries: u64, refused: u64) {
    node.run_for(10 * S);
    let table = NeighborTable { ipv6: false, entries, gc_thresh2: 50, gc_thresh3: 100, refused };
    node.observe(Fact::NeighborTables(vec![table]));
    node.run_for(3 * S);
}

fn create(node: &mut TestNode, netns: NsInum, tgid: u32, entries: u32) {
    node.observe(task(tgid, "/usr/bin/scanner"));
    let actor = TaskRef { key: task_key(tgid), tid: tgid, comm: "scanner".into(), context: None };
    node.observe(Fact::NeighborCreator(Box::new(NeighborCreator {
        netns,
        netns_of_user: false,
        ipv6: false,
        entries,
        actor,
    })));
}

#[test]
fn who_fills_the_table_is_named_with_the_pod_that_has_the_entries_until_it_is_over() {
    let mut node = node(3);
    look(&mut node, 80, 0);
    assert_eq!(node.kinds(), [""; 0], "nearly full");
    fill(&mut node, 95);
    create(&mut node, ETCD, 812, 64);
    look(&mut node, 100, 7);
    let incident = &node.open()[0];
    assert_eq!((incident.kind.as_str(), incident.severity), (KIND, kevtmon_event::Severity::Critical));
    assert_eq!(
        incident.summary,
        "scanner (pid 812) has likely filled the IPv4 neighbor table of the node (limit 100); the kernel refused new entries"
    );
    let commands: Vec<&str> = incident.advice.iter().map(|step| step.command.as_str()).collect();
    assert_eq!(
        commands,
        [
            "kevtmon why lijiaob/etcd1-0",
            "sysctl -w net.ipv4.neigh.default.gc_thresh3=400 net.ipv4.neigh.default.gc_thresh2=200 \
             net.ipv4.neigh.default.gc_thresh1=100"
        ]
    );
    let opened = node.last_incident();
    assert_eq!(opened.actor.as_ref().unwrap().confidence, kevtmon_event::Confidence::Likely);
    let table = opened.neighbor_table.as_deref().unwrap();
    assert_eq!((table.namespaces[0].netns, table.namespaces[0].entries), (ETCD, 95));
    fill(&mut node, 3);
    (0..4).for_each(|_| look(&mut node, 20, 0));
    assert_eq!(node.open().len(), 1, "whoever filled it may go on");
    look(&mut node, 20, 0);
    assert_eq!(node.last_incident().kind, Kind::IncidentClosed);
}

#[test]
fn a_table_that_is_full_of_permanent_entries_refuses_nothing() {
    let mut node = node(3);
    (0..30).for_each(|_| look(&mut node, 150, 0));
    assert_eq!(node.kinds(), [""; 0]);
    let reads = |node: &TestNode| {
        node.requests.iter().filter(|request| matches!(request, Request::Netns { netns: ETCD })).count()
    };
    assert_eq!(reads(&node), 1, "once in ten minutes");
}

#[test]
fn nobody_is_named_who_made_entries_elsewhere_or_where_few_are() {
    let mut node = node(10);
    create(&mut node, ETCD, 812, 16);
    look(&mut node, 100, 1);
    let incident = &node.open()[0];
    assert_eq!(
        incident.summary,
        "the IPv4 neighbor table of the node is full: no network namespace is known that has many of its 100 entries; the \
         kernel refused new entries"
    );
    let opened = node.last_incident();
    assert!(opened.actor.is_none() && opened.target.is_none(), "{opened:?}");
}

#[test]
fn who_has_made_many_is_named_though_they_are_gone_when_they_are_counted() {
    let mut node = node(10);
    create(&mut node, ETCD, 812, 64);
    look(&mut node, 100, 1);
    assert_eq!(node.last_incident().actor.as_ref().unwrap().pid, 812);
    assert!(node.last_incident().target.is_some());
    (0..6).for_each(|_| look(&mut node, 100, 1));
    assert!(
        node.open()[0].summary.starts_with("scanner (pid 812) "),
        "he stays named: {}",
        node.open()[0].summary
    );
}

#[test]
fn nobody_is_named_in_the_hosts_own_network_where_packets_of_pods_make_entries() {
    let mut node = node(95);
    create(&mut node, HOST, 812, 64);
    look(&mut node, 100, 1);
    let opened = node.last_incident();
    assert!(opened.actor.is_none(), "{:?}", opened.actor);
    assert!(opened.message.contains("95 of 100 entries are of pod lijiaob/etcd1-0"), "{}", opened.message);
}

#[test]
fn what_is_refused_goes_on_to_be_counted_and_who_was_named_stays_so() {
    let mut node = node(95);
    create(&mut node, ETCD, 812, 64);
    look(&mut node, 100, 7);
    (0..7).for_each(|_| look(&mut node, 100, 9));
    let incident = &node.open()[0];
    assert_eq!(incident.count, 70);
    assert!(incident.summary.starts_with("scanner (pid 812) "), "{}", incident.summary);
}

#[test]
fn what_was_made_long_before_has_not_filled_it() {
    let mut node = node(95);
    create(&mut node, ETCD, 812, 64);
    node.run_for(90 * S);
    create(&mut node, HOST, 813, 64);
    look(&mut node, 100, 1);
    assert!(node.last_incident().actor.is_none(), "{:?}", node.last_incident().actor);
    create(&mut node, ETCD, 814, 64);
    node.run_for(3 * S);
    assert_eq!(node.last_incident().actor.as_ref().unwrap().pid, 814, "it is told once it is known");
}

#[test]
fn one_that_an_earlier_run_found_stays_until_it_is_known_to_be_over() {
    let mut before = node(95);
    create(&mut before, ETCD, 812, 64);
    look(&mut before, 100, 7);
    let mut node = TestNode::booted(before.resume_state());
    node.add_pod(ETCD, "cali9118ebbb10b", NudState::PERMANENT);
    node.start(vec![etcd_sandbox()]);
    node.run_for(30 * S);
    assert!(node.open()[0].summary.starts_with("scanner (pid 812) "), "{}", node.open()[0].summary);
    assert_eq!(node.open()[0].count, 7);
    node.run_for(60 * S);
    assert_eq!(node.open().len(), 0);
}
