//! Observations in, incidents out, through the core.

use kevtmon_event::{Confidence, Join};
use kevtmon_observation::*;

use super::*;
use crate::Resume;
use crate::diagnose::tests::harness::*;

mod advice;
mod bridge_mac;
mod downtime;
mod host_side;
mod kinds;
mod owners;
mod reasons;
mod restart;
mod room;
mod routes;
mod teardown;
mod tunnels;
mod unseen;

fn lost() -> TestNode {
    let mut node = TestNode::with_running_pod();
    node.delete_entry(ETCD, NeighborCause::Admin);
    node
}

fn pods(count: u32, without: u32) -> TestNode {
    let mut node = TestNode::booted(Resume::default());
    let mut containers = Vec::new();
    for index in 0..count {
        let netns = 100 + index;
        node.add_pod(netns, &format!("cali9118ebbb{index:03x}"), NudState::PERMANENT);
        if index < without {
            node.set_entry(netns, None);
        }
        let id = format!("{index:064x}");
        containers.push(sandbox(&id, netns, "lijiaob", &format!("web-{index}"), &format!("uid-{index}")));
    }
    node.start(containers);
    node
}

#[test]
fn a_deleted_static_entry_opens_with_the_name_of_who_did_it() {
    let node = lost();
    let [deleted, opened] = &node.events[..] else { panic!("{:?}", node.kinds()) };
    assert_eq!((deleted.kind, opened.kind), (Kind::NeighborDeleted, Kind::IncidentOpened));
    assert_eq!(opened.seq, deleted.seq + 1);
    assert_eq!(
        opened.message,
        "pod lijiaob/etcd1-0 has lost its gateway 169.254.1.1: its static ARP entry on eth0 was deleted by \
         calico (pid 28997)"
    );
    let incident = opened.incident.as_ref().unwrap();
    assert_eq!((incident.severity, incident.confidence), (Severity::Warning, Confidence::Certain));
    assert_eq!((incident.count, &incident.evidence), (1, &vec![deleted.seq]));
    assert_eq!(opened.actor.as_ref().unwrap().unit.as_deref(), Some("kubelet.service"));
    assert_eq!(opened.target.as_ref().unwrap().join, Join::Ok);
    assert_eq!(opened.neighbor.as_ref().unwrap().reason.as_deref(), Some("missing"));
    let commands: Vec<&str> = incident.advice.iter().map(|step| step.command.as_str()).collect();
    assert_eq!(
        commands,
        [
            "nsenter -t 16707 -n ip neigh show dev eth0",
            "nsenter -t 16707 -n ip neigh replace 169.254.1.1 lladdr ee:ee:ee:ee:ee:ee nud permanent dev eth0",
            // The kubelet ran the plugin: its next call would take the network of the next pod of this name.
            "docker ps --all --filter label=io.kubernetes.pod.namespace=lijiaob \
             --filter label=io.kubernetes.pod.name=etcd1-0",
        ]
    );
    assert_eq!(incident.advice[1].process.as_ref().map(|process| process.pid), Some(16_707));
    assert_eq!(
        incident.ruled_out,
        [
            "eth0 is up",
            "the default route via 169.254.1.1 is in place",
            "its host end cali9118ebbb10b is up",
            "cali9118ebbb10b still has the MAC address ee:ee:ee:ee:ee:ee of the entry",
        ]
    );
}

#[test]
fn a_repair_closes_the_incident_within_two_seconds_however_long_it_is_open() {
    for open_for in [2 * S, 300 * S] {
        let mut node = lost();
        node.run_for(open_for);
        assert_eq!(node.open().len(), 1);
        node.set_entry(ETCD, Some((NudState::PERMANENT, Some(host_mac()))));
        node.run_for(2 * S);
        assert_eq!(node.kinds().last(), Some(&"incident.closed"));
        let closed = node.last_incident();
        assert_eq!(closed.incident.as_ref().unwrap().close_reason, Some(CloseReason::Resolved));
        assert_eq!(closed.severity, Severity::Notice);
        assert!(closed.actor.is_some() && closed.target.is_some());
        node.run_for(2 * S);
        assert_eq!(node.core.deadline(), None, "no reread is scheduled");
    }
}

#[test]
fn many_open_incidents_do_not_make_the_daemon_read_all_the_time() {
    let mut node = pods(100, 0);
    for netns in 100..200 {
        node.delete_entry(netns, NeighborCause::Admin);
    }
    // One actor is the cause of them all, which is one more.
    assert_eq!(node.open().iter().filter(|incident| incident.kind == KIND).count(), 100);
    assert_eq!(node.open().len(), 101);
    node.run_for(20 * S);
    node.requests.clear();
    node.run_for(60 * S);
    assert!((600..1_100).contains(&node.requests.len()), "{}", node.requests.len());
}

#[test]
fn it_is_critical_after_a_minute_without_the_entry() {
    let mut node = lost();
    node.run_for(59 * S);
    assert_eq!(node.open()[0].severity, Severity::Warning);
    node.run_for(S);
    assert_eq!(node.kinds(), ["incident.opened", "incident.updated"]);
    assert_eq!(node.open()[0].severity, Severity::Critical);
}

#[test]
fn it_is_over_once_packets_flow_by_an_entry_of_any_state_that_has_the_right_address() {
    for state in [0x02, 0x04, 0x08, 0x10, 0x40] {
        let mut node = lost();
        node.set_entry(ETCD, Some((NudState(state), Some(host_mac()))));
        node.run_for(3 * S);
        let closed = node.last_incident().incident.as_ref().unwrap().close_reason;
        assert_eq!(closed, Some(CloseReason::Resolved), "{state}");
        node.set_entry(ETCD, None);
        node.observe_netns(ETCD);
        node.run_for(20 * S);
        assert!(node.open().is_empty(), "an idle entry is collected, and nobody lost it");
    }
}

#[test]
fn where_the_right_address_is_not_known_the_one_before_is_as_good() {
    let mut node = lost();
    node.tables.get_mut(&HOST).unwrap().links[0].kind = Some("macvlan".into());
    node.observe_netns(HOST);
    node.set_entry(ETCD, Some((NudState(0x04), Some(host_mac()))));
    node.run_for(3 * S);
    assert!(node.open().is_empty());
}

#[test]
fn an_entry_that_is_neither_static_nor_checked_is_wrong_with_another_address() {
    for (state, expected) in [(0x40, 1), (0x02, 0), (0x04, 0)] {
        let mut node = TestNode::booted(Resume::default());
        node.add_pod(ETCD, "cali9118ebbb10b", NudState::PERMANENT);
        node.set_entry(ETCD, Some((NudState(state), Some(mac(9)))));
        node.start(vec![sandbox(SANDBOX, ETCD, "lijiaob", "etcd1-0", "u")]);
        node.run_for(100 * S);
        assert_eq!(node.open().len(), expected, "{state}");
    }
}

#[test]
fn it_is_not_critical_while_packets_flow_by_a_learned_entry_and_over_once_that_is_confirmed() {
    let mut node = lost();
    node.set_entry(ETCD, Some((NudState(0x04), Some(mac(9)))));
    node.run_for(100 * S);
    assert_eq!(node.open()[0].severity, Severity::Warning);
    node.set_entry(ETCD, Some((NudState(0x02), Some(mac(9)))));
    node.run_for(31 * S);
    assert_eq!(node.last_incident().incident.as_ref().unwrap().close_reason, Some(CloseReason::Resolved));
    node.set_entry(ETCD, None);
    node.observe_netns(ETCD);
    node.run_for(20 * S);
    assert!(node.open().is_empty(), "an idle learned entry is collected, and nobody lost it");
}

#[test]
fn an_entry_that_is_set_again_closes_the_incident_at_once_where_the_source_reports_it() {
    let mut node = lost();
    node.set_entry(ETCD, Some((NudState::PERMANENT, Some(host_mac()))));
    node.observe(Fact::Neighbor(Box::new(NeighborChange {
        op: NeighborOp::Added,
        old_state: None,
        new_state: Some(NudState::PERMANENT),
        lladdr: None,
        new_lladdr: Some(host_mac()),
        ..deletion(ETCD, NeighborCause::Admin)
    })));
    assert_eq!(node.kinds(), ["incident.opened", "incident.closed"]);
}

#[test]
fn the_exit_of_its_container_closes_an_incident() {
    let mut node = lost();
    node.observe(etcd(ContainerState::Exited));
    let closed = node.last_incident().incident.clone().unwrap();
    assert_eq!(closed.close_reason, Some(CloseReason::SubjectGone));
    node.end_network(ETCD);
    node.run_for(100 * S);
    assert_eq!(node.kinds(), ["incident.opened", "incident.closed"]);
}

#[test]
fn the_end_of_its_namespace_closes_an_incident() {
    let mut node = lost();
    node.tables.remove(&ETCD);
    node.run_for(2 * S);
    assert_eq!(node.last_incident().incident.as_ref().unwrap().close_reason, Some(CloseReason::SubjectGone));
}

#[test]
fn a_plain_namespace_has_events_but_no_incident() {
    let mut node = TestNode::with_running_pod();
    node.add_pod(99, "veth1234567", NudState::PERMANENT);
    node.observe_netns(99);
    node.delete_entry(99, NeighborCause::Admin);
    node.run_for(200 * S);
    assert_eq!(node.events.iter().filter(|event| event.kind == Kind::NeighborDeleted).count(), 1);
    assert_eq!(node.kinds(), [""; 0]);
}

#[test]
fn an_entry_replaced_with_a_wrong_address_is_as_bad_as_a_missing_one() {
    let mut node = TestNode::with_running_pod();
    let replaced = |lladdr: LlAddr| {
        Fact::Neighbor(Box::new(NeighborChange {
            op: NeighborOp::Changed,
            new_state: Some(NudState::PERMANENT),
            new_lladdr: Some(lladdr),
            ..deletion(ETCD, NeighborCause::Replaced)
        }))
    };
    node.set_entry(ETCD, Some((NudState::PERMANENT, Some(mac(9)))));
    node.observe(replaced(mac(9)));
    let opened = node.last_incident();
    assert_eq!(opened.neighbor.as_ref().unwrap().reason.as_deref(), Some("wrong-lladdr"));
    assert!(opened.message.contains("was replaced with 32:76:e6:6f:ff:09 by calico"), "{}", opened.message);
    node.set_entry(ETCD, Some((NudState::PERMANENT, Some(host_mac()))));
    node.observe(replaced(host_mac()));
    assert_eq!(node.kinds(), ["incident.opened", "incident.closed"]);
}

#[test]
fn a_repair_to_the_right_address_is_no_incident() {
    let mut node = TestNode::with_running_pod();
    node.observe(Fact::Neighbor(Box::new(NeighborChange {
        op: NeighborOp::Changed,
        new_state: Some(NudState::PERMANENT),
        lladdr: Some(mac(9)),
        new_lladdr: Some(host_mac()),
        ..deletion(ETCD, NeighborCause::Replaced)
    })));
    assert_eq!(node.kinds(), [""; 0]);
    let [changed] = &node.events[..] else { panic!("{:?}", node.events) };
    assert_eq!((changed.kind, changed.severity), (Kind::NeighborChanged, Severity::Notice));
    assert_eq!(changed.neighbor.as_ref().unwrap().reason, None);
}

#[test]
fn a_learned_gateway_that_stays_unresolved_for_ten_seconds_is_an_incident() {
    let mut node = TestNode::booted(Resume::default());
    node.add_pod(ETCD, "cali9118ebbb10b", NudState(0x02));
    node.start(vec![sandbox(SANDBOX, ETCD, "lijiaob", "etcd1-0", "u")]);
    node.set_entry(ETCD, Some((NudState::FAILED, None)));
    node.observe(failure(ETCD));
    node.run_for(9 * S);
    assert_eq!(node.kinds(), [""; 0]);
    node.run_for(2 * S);
    let opened = node.last_incident();
    assert_eq!(
        opened.message,
        "pod lijiaob/etcd1-0 cannot reach its gateway 169.254.1.1: nothing answers its ARP requests on eth0"
    );
    assert_eq!(opened.neighbor.as_ref().unwrap().reason.as_deref(), Some("failed"));
    node.set_entry(ETCD, Some((NudState(0x02), Some(host_mac()))));
    node.run_for(2 * S);
    assert_eq!(node.kinds(), ["incident.opened", "incident.closed"]);
}

#[test]
fn a_learned_gateway_that_recovers_or_is_not_wanted_any_more_is_no_incident() {
    for entry in [Some((NudState(0x02), Some(host_mac()))), None] {
        let mut node = TestNode::booted(Resume::default());
        node.add_pod(ETCD, "cali9118ebbb10b", NudState(0x02));
        node.start(vec![sandbox(SANDBOX, ETCD, "lijiaob", "etcd1-0", "u")]);
        node.observe(failure(ETCD));
        node.set_entry(ETCD, entry);
        node.run_for(100 * S);
        assert_eq!(node.kinds(), [""; 0]);
    }
}

#[test]
fn a_new_pod_whose_gateway_never_worked_gets_a_minute() {
    let mut node = TestNode::booted(Resume::default());
    node.start(Vec::new());
    node.add_pod(ETCD, "cali9118ebbb10b", NudState::FAILED);
    node.set_entry(ETCD, Some((NudState::FAILED, None)));
    node.observe_netns(HOST);
    node.observe_netns(ETCD);
    node.observe(etcd(ContainerState::Running));
    let started = node.now;
    node.observe(failure(ETCD));
    node.run_until(started + 59 * S);
    assert_eq!(node.kinds(), [""; 0]);
    node.run_until(started + 61 * S);
    assert_eq!(node.kinds(), ["incident.opened"]);
}

#[test]
fn a_deletion_that_was_not_observed_is_found_in_the_neighbor_table() {
    let mut node = TestNode::with_running_pod();
    node.set_entry(ETCD, None);
    node.observe(Fact::Lost(Loss { source: "bpf".into(), reason: "ring-full".into(), count: Some(3) }));
    node.run_for(10 * S);
    let opened = node.last_incident();
    assert!(opened.message.ends_with("is gone; actor unknown"), "{}", opened.message);
    assert!(opened.actor.is_none());
    let incident = opened.incident.as_ref().unwrap();
    assert!(!incident.found_at_start && incident.evidence.is_empty());
}

#[test]
fn a_static_entry_that_does_not_point_to_the_hosts_end_is_found_at_start() {
    let mut node = TestNode::booted(Resume::default());
    node.add_pod(ETCD, "eni0123456789a", NudState::PERMANENT);
    node.set_entry(ETCD, Some((NudState::PERMANENT, Some(mac(9)))));
    node.start(vec![sandbox(SANDBOX, ETCD, "lijiaob", "etcd1-0", "u")]);
    node.run_for(10 * S);
    let opened = node.last_incident();
    let incident = opened.incident.as_ref().unwrap();
    assert!(incident.found_at_start);
    assert_eq!((incident.severity, incident.confidence), (Severity::Warning, Confidence::Likely));
    assert!(
        incident
            .summary
            .ends_with("points to 32:76:e6:6f:ff:09, but eni0123456789a is reached by ee:ee:ee:ee:ee:ee"),
        "{}",
        incident.summary
    );
    node.set_entry(ETCD, Some((NudState::PERMANENT, Some(host_mac()))));
    node.run_for(30 * S);
    assert_eq!(node.kinds(), ["incident.opened", "incident.closed"]);
}

#[test]
fn a_bridge_port_is_judged_by_the_bridge_if_that_is_the_gateway() {
    for (has_address, expected) in [(true, 1), (false, 0)] {
        let mut node = TestNode::booted(Resume::default());
        node.add_pod(ETCD, "veth1234567", NudState::PERMANENT);
        node.set_entry(ETCD, Some((NudState::PERMANENT, Some(mac(9)))));
        let host = node.tables.get_mut(&HOST).unwrap();
        host.links[0].master = Some(3);
        let bridge = LinkFacts { kind: Some("bridge".into()), peer: None, ..veth(HOST, 3, "cni0", 0, 0) };
        host.links.push(bridge);
        if has_address {
            host.addresses.push(AddressFacts { netns: HOST, ifindex: 3, address: gateway(), prefix_len: 24 });
        }
        node.start(vec![sandbox(SANDBOX, ETCD, "lijiaob", "etcd1-0", "u")]);
        node.run_for(10 * S);
        assert_eq!(node.kinds().len(), expected);
    }
}

#[test]
fn the_one_pod_without_the_entry_that_nearly_all_have_has_lost_it() {
    let mut node = pods(5, 1);
    node.run_for(10 * S);
    let opened = node.last_incident();
    assert!(
        opened.message.ends_with("is missing, though 4 of 5 pods with a cali interface have one"),
        "{}",
        opened.message
    );
    assert_eq!(opened.incident.as_ref().unwrap().confidence, Confidence::Likely);
    assert!(opened.incident.as_ref().unwrap().found_at_start);
}

#[test]
fn without_a_clear_majority_nobody_has_lost_anything() {
    for (count, without) in [(4, 1), (3, 1), (5, 2), (5, 5)] {
        let mut node = pods(count, without);
        node.run_for(100 * S);
        assert_eq!(node.kinds(), [""; 0], "{without} of {count}");
    }
}

#[test]
fn several_gateways_of_one_pod_are_no_majority_of_the_pods() {
    let mut node = pods(2, 1);
    let tables = node.tables.get_mut(&101).unwrap();
    for last in 2..10 {
        let address = IpAddr::from([169, 254, 1, last]);
        tables.routes.push(RouteFacts::default_via(101, address, 2));
        let (state, lladdr) = (NudState::PERMANENT, Some(host_mac()));
        tables.neighbors.push(NeighborEntry { ifindex: 2, address, state, lladdr });
    }
    node.observe_netns(101);
    node.run_for(100 * S);
    assert!(node.open().is_empty(), "{:?}", node.open());
}

#[test]
fn a_deletion_before_the_container_was_known_is_attributed_to_it_with_its_actor() {
    let mut node = TestNode::booted(Resume::default());
    node.add_pod(ETCD, "cali9118ebbb10b", NudState::PERMANENT);
    node.start(Vec::new());
    node.observe(calico());
    node.delete_entry(ETCD, NeighborCause::Admin);
    assert_eq!(node.kinds(), [""; 0]);
    node.observe(etcd(ContainerState::Running));
    let opened = node.last_incident();
    assert_eq!(opened.actor.as_ref().unwrap().comm, "calico");
    assert_eq!(opened.target.as_ref().unwrap().pod.as_ref().unwrap().name.as_deref(), Some("etcd1-0"));
}

#[test]
fn faults_are_bounded_in_number() {
    let mut node = TestNode::booted(Resume::default());
    let mut containers = Vec::new();
    for index in 0..1_100_u32 {
        let netns = 1_000 + index;
        containers.push(sandbox(
            &format!("{index:064x}"),
            netns,
            "n",
            &format!("p{index}"),
            &index.to_string(),
        ));
        node.tables.insert(netns, {
            let mut tables = node.tables[&HOST].clone();
            tables.netns = netns;
            tables.routes = vec![RouteFacts::default_via(netns, gateway(), 2)];
            tables
        });
    }
    node.start(containers);
    for index in 0..1_100_u32 {
        node.delete_entry(1_000 + index, NeighborCause::Admin);
    }
    assert_eq!(node.open().len(), CAPACITY);
    assert!(node.core.incidents_discarded() >= 76);
}
