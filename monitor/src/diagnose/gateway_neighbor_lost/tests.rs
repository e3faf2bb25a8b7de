//! Observations in, incidents out, through the core.

use super::*;
use crate::core::Resume;
use crate::diagnose::stage::*;
use crate::event::Join;
use crate::observation::*;

fn lost() -> Stage {
    let mut stage = Stage::settled();
    stage.delete_entry(ETCD, NeighborCause::Admin);
    stage
}

fn pods(count: u32, without: u32) -> Stage {
    let mut stage = Stage::bare(Resume::default());
    let mut containers = Vec::new();
    for index in 0..count {
        let netns = 100 + index;
        stage.add_pod(netns, &format!("cali9118ebbb{index:03x}"), NudState::PERMANENT);
        if index < without {
            stage.set_entry(netns, None);
        }
        let id = format!("{index:064x}");
        containers.push(sandbox(&id, netns, "lijiaob", &format!("web-{index}"), &format!("uid-{index}")));
    }
    stage.start(containers);
    stage
}

#[test]
fn a_deleted_static_entry_opens_with_the_name_of_who_did_it() {
    let stage = lost();
    let [deleted, opened] = &stage.told[..] else { panic!("{:?}", stage.kinds()) };
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
            "kubectl -n lijiaob delete pod etcd1-0",
        ]
    );
}

#[test]
fn it_is_looked_at_at_growing_intervals_and_closes_when_the_entry_is_back() {
    let mut stage = lost();
    let began = stage.now;
    stage.asked.clear();
    stage.run_for(50 * S);
    assert_eq!(stage.asked, vec![Request::Netns { netns: ETCD }; 5]);
    stage.set_entry(ETCD, Some((NudState::PERMANENT, Some(host_mac()))));
    stage.run_for(30 * S);
    assert_eq!(stage.kinds(), ["incident.opened", "incident.updated", "incident.closed"]);
    let closed = stage.last_incident();
    assert_eq!(closed.incident.as_ref().unwrap().close_reason, Some(CloseReason::Resolved));
    assert_eq!(closed.severity, Severity::Notice);
    assert!(closed.actor.is_some() && closed.target.is_some());
    assert!(stage.now < began + 90 * S);
    assert_eq!(stage.core.deadline(), None, "nothing is left to look at");
}

#[test]
fn it_is_critical_after_a_minute_without_the_entry() {
    let mut stage = lost();
    stage.run_for(59 * S);
    assert_eq!(stage.open()[0].severity, Severity::Warning);
    stage.run_for(S);
    assert_eq!(stage.kinds(), ["incident.opened", "incident.updated"]);
    assert_eq!(stage.open()[0].severity, Severity::Critical);
}

#[test]
fn it_is_not_critical_while_packets_flow_by_a_learned_entry_and_over_once_that_is_confirmed() {
    let mut stage = lost();
    stage.set_entry(ETCD, Some((NudState(0x04), Some(host_mac()))));
    stage.run_for(100 * S);
    assert_eq!(stage.open()[0].severity, Severity::Warning);
    stage.set_entry(ETCD, Some((NudState(0x02), Some(host_mac()))));
    stage.run_for(31 * S);
    assert_eq!(stage.last_incident().incident.as_ref().unwrap().close_reason, Some(CloseReason::Resolved));
    stage.set_entry(ETCD, None);
    stage.read(ETCD);
    stage.run_for(20 * S);
    assert!(stage.open().is_empty(), "an idle learned entry is collected, and nobody lost it");
}

#[test]
fn an_entry_that_is_set_again_is_seen_at_once_where_the_source_tells_it() {
    let mut stage = lost();
    stage.set_entry(ETCD, Some((NudState::PERMANENT, Some(host_mac()))));
    stage.say(Fact::Neighbor(Box::new(NeighborChange {
        op: NeighborOp::Added,
        old_state: None,
        new_state: Some(NudState::PERMANENT),
        lladdr: None,
        new_lladdr: Some(host_mac()),
        ..deletion(ETCD, NeighborCause::Admin)
    })));
    assert_eq!(stage.kinds(), ["incident.opened", "incident.closed"]);
}

#[test]
fn the_same_deletion_again_counts_and_names_the_newest_actor() {
    let mut stage = lost();
    let id = stage.open()[0].id.clone();
    stage.say(task(30_000, "/usr/bin/ip"));
    let mut again = deletion(ETCD, NeighborCause::Admin);
    again.actor = Some(TaskRef { key: task_key(30_000), tid: 30_000, comm: "ip".into() });
    stage.say(Fact::Neighbor(Box::new(again)));
    assert_eq!(stage.kinds(), ["incident.opened", "incident.updated"]);
    let incident = &stage.open()[0];
    assert_eq!((&incident.id, incident.count, incident.evidence.len()), (&id, 2, 2));
    assert!(incident.summary.ends_with("deleted by ip (pid 30000)"), "{}", incident.summary);
    stage.say(failure(ETCD));
    assert_eq!(stage.open()[0].count, 3);
    assert!(stage.core.incidents().next().unwrap().1.actor.is_some(), "a failure does not hide the culprit");
}

#[test]
fn a_container_that_ends_takes_its_incident_along() {
    let mut stage = lost();
    stage.say(etcd(ContainerState::Exited));
    let closed = stage.last_incident().incident.clone().unwrap();
    assert_eq!(closed.close_reason, Some(CloseReason::SubjectGone));
    stage.run_for(100 * S);
    assert_eq!(stage.kinds(), ["incident.opened", "incident.closed"]);
}

#[test]
fn a_namespace_that_goes_takes_its_incident_along() {
    let mut stage = lost();
    stage.tables.remove(&ETCD);
    stage.run_for(2 * S);
    assert_eq!(stage.last_incident().incident.as_ref().unwrap().close_reason, Some(CloseReason::SubjectGone));
}

#[test]
fn a_plain_namespace_has_events_but_no_incident() {
    let mut stage = Stage::settled();
    stage.add_pod(99, "veth1234567", NudState::PERMANENT);
    stage.read(99);
    stage.delete_entry(99, NeighborCause::Admin);
    stage.run_for(200 * S);
    assert_eq!(stage.told.iter().filter(|event| event.kind == Kind::NeighborDeleted).count(), 1);
    assert_eq!(stage.kinds(), [""; 0]);
}

#[test]
fn teardown_is_no_incident() {
    let mut stage = Stage::settled();
    // The network plugin takes the interface before the sandbox ends.
    stage.delete_entry(ETCD, NeighborCause::LinkDeleted);
    stage.run_for(20 * S);
    stage.say(etcd(ContainerState::Exited));
    stage.tables.remove(&ETCD);
    stage.run_for(200 * S);
    assert_eq!(stage.kinds(), [""; 0]);
}

#[test]
fn an_interface_deleted_under_a_pod_that_lives_on_is_an_incident_with_a_name() {
    let mut stage = Stage::settled();
    stage.delete_entry(ETCD, NeighborCause::LinkDeleted);
    stage.run_for(59 * S);
    assert_eq!(stage.kinds(), [""; 0]);
    stage.run_for(2 * S);
    assert_eq!(stage.kinds(), ["incident.opened"]);
    let opened = stage.last_incident();
    assert!(
        opened.message.ends_with("deleted by calico (pid 28997), who deleted the link"),
        "{}",
        opened.message
    );
    assert_eq!(opened.incident.as_ref().unwrap().first_seen, stage.told[0].time);
}

#[test]
fn an_interface_that_another_one_took_the_place_of_is_not_missed() {
    let replace = |stage: &mut Stage| {
        let tables = stage.tables.get_mut(&ETCD).unwrap();
        tables.links[0].ifindex = 3;
        tables.routes[0].ifindex = Some(3);
        let peer = PeerLink { ifindex: 3, netns: Some(ETCD) };
        stage.tables.get_mut(&HOST).unwrap().links.last_mut().unwrap().peer = Some(peer);
        stage.set_entry(ETCD, Some((NudState::PERMANENT, Some(host_mac()))));
        stage.tables.get_mut(&ETCD).unwrap().neighbors[0].ifindex = 3;
        stage.read(HOST);
    };
    let mut stage = Stage::settled();
    stage.delete_entry(ETCD, NeighborCause::LinkDeleted);
    replace(&mut stage);
    stage.run_for(100 * S);
    assert!(stage.incidents().is_empty(), "{:?}", stage.kinds());

    let mut stage = Stage::settled();
    stage.delete_entry(ETCD, NeighborCause::LinkDeleted);
    stage.run_for(61 * S);
    assert_eq!(stage.kinds(), ["incident.opened"]);
    replace(&mut stage);
    stage.run_for(30 * S);
    assert_eq!(stage.last_incident().incident.as_ref().unwrap().close_reason, Some(CloseReason::Resolved));
}

#[test]
fn an_entry_replaced_with_a_wrong_address_is_as_bad_as_a_missing_one() {
    let mut stage = Stage::settled();
    let replaced = |lladdr: LlAddr| {
        Fact::Neighbor(Box::new(NeighborChange {
            op: NeighborOp::Changed,
            new_state: Some(NudState::PERMANENT),
            new_lladdr: Some(lladdr),
            ..deletion(ETCD, NeighborCause::Replaced)
        }))
    };
    stage.set_entry(ETCD, Some((NudState::PERMANENT, Some(mac(9)))));
    stage.say(replaced(mac(9)));
    let opened = stage.last_incident();
    assert_eq!(opened.neighbor.as_ref().unwrap().reason.as_deref(), Some("wrong-lladdr"));
    assert!(opened.message.contains("was replaced with 32:76:e6:6f:ff:09 by calico"), "{}", opened.message);
    stage.set_entry(ETCD, Some((NudState::PERMANENT, Some(host_mac()))));
    stage.say(replaced(host_mac()));
    assert_eq!(stage.kinds(), ["incident.opened", "incident.closed"]);
}

#[test]
fn a_repair_to_the_right_address_is_no_incident() {
    let mut stage = Stage::settled();
    stage.say(Fact::Neighbor(Box::new(NeighborChange {
        op: NeighborOp::Changed,
        new_state: Some(NudState::PERMANENT),
        lladdr: Some(mac(9)),
        new_lladdr: Some(host_mac()),
        ..deletion(ETCD, NeighborCause::Replaced)
    })));
    assert_eq!(stage.kinds(), [""; 0]);
    let [changed] = &stage.told[..] else { panic!("{:?}", stage.told) };
    assert_eq!((changed.kind, changed.severity), (Kind::NeighborChanged, Severity::Notice));
    assert_eq!(changed.neighbor.as_ref().unwrap().reason, None);
}

#[test]
fn a_learned_gateway_that_stays_unresolved_for_ten_seconds_is_an_incident() {
    let mut stage = Stage::bare(Resume::default());
    stage.add_pod(ETCD, "cali9118ebbb10b", NudState(0x02));
    stage.start(vec![sandbox(SANDBOX, ETCD, "lijiaob", "etcd1-0", "u")]);
    stage.set_entry(ETCD, Some((NudState::FAILED, None)));
    stage.say(failure(ETCD));
    stage.run_for(9 * S);
    assert_eq!(stage.kinds(), [""; 0]);
    stage.run_for(2 * S);
    let opened = stage.last_incident();
    assert_eq!(
        opened.message,
        "pod lijiaob/etcd1-0 cannot reach its gateway 169.254.1.1: nothing answers its ARP requests on eth0"
    );
    assert_eq!(opened.neighbor.as_ref().unwrap().reason.as_deref(), Some("failed"));
    stage.set_entry(ETCD, Some((NudState(0x02), Some(host_mac()))));
    stage.run_for(2 * S);
    assert_eq!(stage.kinds(), ["incident.opened", "incident.closed"]);
}

#[test]
fn a_learned_gateway_that_recovers_or_is_not_wanted_any_more_is_no_incident() {
    for entry in [Some((NudState(0x02), Some(host_mac()))), None] {
        let mut stage = Stage::bare(Resume::default());
        stage.add_pod(ETCD, "cali9118ebbb10b", NudState(0x02));
        stage.start(vec![sandbox(SANDBOX, ETCD, "lijiaob", "etcd1-0", "u")]);
        stage.say(failure(ETCD));
        stage.set_entry(ETCD, entry);
        stage.run_for(100 * S);
        assert_eq!(stage.kinds(), [""; 0]);
    }
}

#[test]
fn a_new_pod_whose_gateway_never_worked_gets_a_minute() {
    let mut stage = Stage::bare(Resume::default());
    stage.start(Vec::new());
    stage.add_pod(ETCD, "cali9118ebbb10b", NudState::FAILED);
    stage.set_entry(ETCD, Some((NudState::FAILED, None)));
    stage.read(HOST);
    stage.read(ETCD);
    stage.say(etcd(ContainerState::Running));
    let started = stage.now;
    stage.say(failure(ETCD));
    stage.run_until(started + 59 * S);
    assert_eq!(stage.kinds(), [""; 0]);
    stage.run_until(started + 61 * S);
    assert_eq!(stage.kinds(), ["incident.opened"]);
}

#[test]
fn an_entry_that_went_unseen_is_found_in_the_tables() {
    let mut stage = Stage::settled();
    stage.set_entry(ETCD, None);
    stage.say(Fact::Lost(Loss { source: "bpf".into(), reason: "ring-full".into(), count: Some(3) }));
    stage.run_for(10 * S);
    let opened = stage.last_incident();
    assert!(opened.message.ends_with("is gone, and nobody was seen removing it"), "{}", opened.message);
    assert!(opened.actor.is_none());
    let incident = opened.incident.as_ref().unwrap();
    assert!(!incident.found_at_start && incident.evidence.is_empty());
}

#[test]
fn a_static_entry_that_does_not_point_to_the_hosts_end_is_found_at_start() {
    let mut stage = Stage::bare(Resume::default());
    stage.add_pod(ETCD, "eni0123456789a", NudState::PERMANENT);
    stage.set_entry(ETCD, Some((NudState::PERMANENT, Some(mac(9)))));
    stage.start(vec![sandbox(SANDBOX, ETCD, "lijiaob", "etcd1-0", "u")]);
    stage.run_for(10 * S);
    let opened = stage.last_incident();
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
    stage.set_entry(ETCD, Some((NudState::PERMANENT, Some(host_mac()))));
    stage.run_for(30 * S);
    assert_eq!(stage.kinds(), ["incident.opened", "incident.closed"]);
}

#[test]
fn a_bridge_port_is_judged_by_the_bridge_if_that_is_the_gateway() {
    for (has_address, expected) in [(true, 1), (false, 0)] {
        let mut stage = Stage::bare(Resume::default());
        stage.add_pod(ETCD, "veth1234567", NudState::PERMANENT);
        stage.set_entry(ETCD, Some((NudState::PERMANENT, Some(mac(9)))));
        let host = stage.tables.get_mut(&HOST).unwrap();
        host.links[0].master = Some(3);
        let bridge = LinkFacts { kind: Some("bridge".into()), peer: None, ..veth(HOST, 3, "cni0", 0, 0) };
        host.links.push(bridge);
        if has_address {
            host.addresses.push(AddressFacts { netns: HOST, ifindex: 3, address: gateway(), prefix_len: 24 });
        }
        stage.start(vec![sandbox(SANDBOX, ETCD, "lijiaob", "etcd1-0", "u")]);
        stage.run_for(10 * S);
        assert_eq!(stage.kinds().len(), expected);
    }
}

#[test]
fn a_host_end_that_gets_another_address_makes_the_entry_wrong() {
    let mut stage = Stage::settled();
    let mut end = stage.tables[&HOST].links[0].clone();
    end.mac = Some(mac(7));
    stage.tables.get_mut(&HOST).unwrap().links[0] = end.clone();
    stage.say(Fact::Link(Box::new(end)));
    stage.run_for(10 * S);
    assert_eq!(stage.last_incident().neighbor.as_ref().unwrap().reason.as_deref(), Some("wrong-lladdr"));
}

#[test]
fn the_one_pod_without_what_nearly_all_have_has_lost_it() {
    let mut stage = pods(5, 1);
    stage.run_for(10 * S);
    let opened = stage.last_incident();
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
        let mut stage = pods(count, without);
        stage.run_for(100 * S);
        assert_eq!(stage.kinds(), [""; 0], "{without} of {count}");
    }
}

#[test]
fn what_happened_before_the_container_was_known_is_put_down_to_it_with_its_actor() {
    let mut stage = Stage::bare(Resume::default());
    stage.add_pod(ETCD, "cali9118ebbb10b", NudState::PERMANENT);
    stage.start(Vec::new());
    stage.say(calico());
    stage.delete_entry(ETCD, NeighborCause::Admin);
    assert_eq!(stage.kinds(), [""; 0]);
    stage.say(etcd(ContainerState::Running));
    let opened = stage.last_incident();
    assert_eq!(opened.actor.as_ref().unwrap().comm, "calico");
    assert_eq!(opened.target.as_ref().unwrap().pod.as_ref().unwrap().name.as_deref(), Some("etcd1-0"));
}

#[test]
fn a_restart_keeps_the_id_announces_nothing_and_closes_what_was_mended_meanwhile() {
    let mut before = lost();
    before.run_for(5 * S);
    let id = before.open()[0].id.clone();
    let mended = Some((NudState::PERMANENT, Some(host_mac())));
    for (entry, expected) in [(None, vec!["incident.updated"]), (mended, vec!["incident.closed"])] {
        let mut stage = Stage::bare(before.left());
        stage.now = before.now;
        stage.add_pod(ETCD, "cali9118ebbb10b", NudState::PERMANENT);
        stage.set_entry(ETCD, entry);
        assert_eq!(stage.open()[0].id, id);
        stage.start(vec![sandbox(
            SANDBOX,
            ETCD,
            "lijiaob",
            "etcd1-0",
            "3f0f6a0e-2f6a-4d4e-9d1f-1f2f3f4f5f6f",
        )]);
        stage.run_for(60 * S);
        assert_eq!(stage.kinds(), expected);
        let last = stage.last_incident();
        assert_eq!(last.incident.as_ref().unwrap().id, id);
        assert_eq!(last.actor.as_ref().unwrap().comm, "calico");
    }
}

#[test]
fn a_restart_after_a_long_time_makes_nothing_worse_before_it_has_looked() {
    let before = lost();
    let mended = Some((NudState::PERMANENT, Some(host_mac())));
    for (entry, expected) in [(None, "incident.updated"), (mended, "incident.closed")] {
        let mut stage = Stage::bare(before.left());
        stage.now = before.now + 600 * S;
        stage.add_pod(ETCD, "cali9118ebbb10b", NudState::PERMANENT);
        stage.set_entry(ETCD, entry);
        stage.say(Fact::Tick);
        assert_eq!(stage.kinds(), [""; 0]);
        stage.start(vec![sandbox(
            SANDBOX,
            ETCD,
            "lijiaob",
            "etcd1-0",
            "3f0f6a0e-2f6a-4d4e-9d1f-1f2f3f4f5f6f",
        )]);
        stage.run_for(10 * S);
        assert_eq!(stage.kinds(), [expected]);
    }
}

#[test]
fn a_container_that_ended_while_nobody_looked_closes_its_incident_after_the_restart() {
    let before = lost();
    let mut stage = Stage::bare(before.left());
    stage.start(Vec::new());
    let closed = stage.last_incident().incident.as_ref().unwrap();
    assert_eq!(closed.close_reason, Some(CloseReason::SubjectGone));
    assert_eq!(stage.kinds(), ["incident.closed"]);
}

#[test]
fn trouble_is_bounded_in_number() {
    let mut stage = Stage::bare(Resume::default());
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
        stage.tables.insert(netns, {
            let mut tables = stage.tables[&HOST].clone();
            tables.netns = netns;
            tables.routes = vec![RouteFacts::default_via(netns, gateway(), 2)];
            tables
        });
    }
    stage.start(containers);
    for index in 0..1_100_u32 {
        stage.delete_entry(1_000 + index, NeighborCause::Admin);
    }
    assert_eq!(stage.open().len(), CAPACITY);
    assert!(stage.core.incidents_discarded() >= 76);
}
