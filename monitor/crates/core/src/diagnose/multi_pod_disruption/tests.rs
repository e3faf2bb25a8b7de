use kevtmon_event::{Event, Incident, Kind};
use kevtmon_observation::*;

use super::*;
use crate::Resume;
use crate::diagnose::tests::harness::*;

const FIRST: NsInum = 4_026_532_300;
const MANY: u32 = 12;

/// A node with many pods, all with a static gateway entry.
fn node() -> TestNode {
    let mut node = TestNode::booted(Resume::default());
    let mut containers = Vec::new();
    for number in 0..MANY {
        let netns = FIRST + number;
        node.add_pod(netns, &format!("cali{number:011x}"), NudState::PERMANENT);
        let (id, uid) = (format!("{number:064x}"), format!("3f0f6a0e-2f6a-4d4e-9d1f-{number:012x}"));
        containers.push(sandbox(&id, netns, "web", &format!("pod-{number:02}"), &uid));
    }
    node.start(containers);
    node.observe(calico());
    node.events.clear();
    node
}

fn hit(node: &mut TestNode, numbers: impl IntoIterator<Item = u32>) {
    numbers.into_iter().for_each(|number| node.delete_entry(FIRST + number, NeighborCause::Admin));
}

/// Puts the entries back; the namespaces of open incidents are read again from time to time.
fn restore(node: &mut TestNode, numbers: impl IntoIterator<Item = u32>) {
    for number in numbers {
        node.set_entry(FIRST + number, Some((NudState::PERMANENT, Some(host_mac()))));
    }
    node.run_for(40 * S);
}

fn is_parent(event: &&Event) -> bool {
    event.incident.as_ref().is_some_and(|incident| incident.kind == KIND)
}

fn parent(node: &TestNode) -> Option<Incident> {
    node.open().into_iter().find(|incident| incident.kind == KIND)
}

fn effects(node: &TestNode) -> Vec<Incident> {
    node.open().into_iter().filter(|incident| incident.kind != KIND).collect()
}

#[test]
fn one_actor_that_hits_three_pods_within_ten_seconds_is_their_cause_until_all_are_well() {
    let mut node = node();
    hit(&mut node, 0..2);
    node.run_for(8 * S);
    assert_eq!(parent(&node), None, "two are not many");
    hit(&mut node, 2..3);
    let found = parent(&node).unwrap();
    assert_eq!((found.severity, found.confidence, found.count), (Severity::Warning, Confidence::Certain, 3));
    assert_eq!(
        found.summary,
        "the network of 3 pods was disrupted within 9 s, by calico (pid 28997): web/pod-00, web/pod-01, web/pod-02"
    );
    assert_eq!(found.advice[0].command, "kevtmon incidents --kind gateway-neighbor-lost");
    assert_eq!(node.events.iter().rfind(is_parent).unwrap().actor.as_ref().unwrap().pid, 28_997);
    assert!(effects(&node).iter().all(|effect| effect.caused_by == [found.id.as_str()]));

    // Further ones join it, and it is as severe as the worst.
    hit(&mut node, 3..MANY);
    let found = parent(&node).unwrap();
    assert_eq!((found.count, effects(&node).len()), (12, 12));
    assert!(found.summary.ends_with("web/pod-06, web/pod-07 and 4 more"), "{}", found.summary);
    assert!(effects(&node).iter().all(|effect| effect.caused_by == [found.id.as_str()]));
    node.run_for(61 * S);
    assert_eq!(parent(&node).unwrap().severity, Severity::Critical);

    restore(&mut node, 0..MANY - 1);
    assert_eq!((parent(&node).is_some(), effects(&node).len()), (true, 1), "not all are well");
    restore(&mut node, MANY - 1..MANY);
    let (kind, incident) = *node.incidents().last().unwrap();
    assert_eq!((kind, incident.kind.as_str()), (Kind::IncidentClosed, KIND));
    assert_eq!(node.open().len(), 0);
}

#[test]
fn several_actors_or_a_long_time_or_few_pods_have_no_common_cause() {
    let mut slow = node();
    for number in 0..4 {
        hit(&mut slow, [number]);
        slow.run_for(6 * S);
    }
    assert_eq!(parent(&slow), None);

    let mut several = node();
    for number in 0..4 {
        let tgid = 40_000 + number;
        several.observe(task(tgid, "/opt/cni/bin/calico"));
        let actor = TaskRef { key: task_key(tgid), tid: tgid, comm: "calico".into(), context: None };
        let change = deletion(FIRST + number, NeighborCause::Admin);
        several.set_entry(FIRST + number, None);
        several.observe(Fact::Neighbor(Box::new(NeighborChange { actor: Some(actor), ..change })));
    }
    assert_eq!((parent(&several), effects(&several).len()), (None, 4));

    // Of whom nothing is known nothing is said, nor of one pod that is hit again and again.
    let mut unknown = node();
    for number in 0..4 {
        let change = deletion(FIRST + number, NeighborCause::Admin);
        unknown.set_entry(FIRST + number, None);
        unknown.observe(Fact::Neighbor(Box::new(NeighborChange { actor: None, ..change })));
    }
    for _ in 0..4 {
        hit(&mut unknown, [5]);
    }
    assert_eq!(parent(&unknown), None);
}

#[test]
fn what_happens_long_after_the_others_is_no_part_of_it() {
    let mut node = node();
    hit(&mut node, 0..3);
    let found = parent(&node).unwrap();
    node.run_for(30 * S);
    hit(&mut node, 3..4);
    assert_eq!(parent(&node).unwrap().count, 3);
    let apart: Vec<Incident> =
        effects(&node).into_iter().filter(|effect| effect.caused_by != [found.id.as_str()]).collect();
    assert_eq!(apart.len(), 1);
}

#[test]
fn it_goes_on_over_a_restart_of_the_daemon() {
    let mut before = node();
    hit(&mut before, 0..4);
    let id = parent(&before).unwrap().id;
    let mut next = TestNode::booted(before.resume_state());
    next.tables.clone_from(&before.tables);
    let containers = before.observed.iter().find_map(|observation| match &observation.fact {
        Fact::RuntimeSnapshot { containers, .. } => Some(containers.clone()),
        _ => None,
    });
    next.start(containers.unwrap());
    assert_eq!(parent(&next).map(|found| (found.id, found.count)), Some((id, 4)));
    assert!(!next.events.iter().any(|event| is_parent(&event)), "it goes on without another word");
    restore(&mut next, 0..4);
    assert_eq!(next.open(), []);
}

/// Has `ip` delete the entries of these pods, run again for each by a shell of this start.
fn hit_by_shell(node: &mut TestNode, numbers: std::ops::Range<u32>, shell_start: BootNs) {
    for number in numbers {
        let tgid = 50_000 + number;
        let Fact::Task(facts) = task(tgid, "/usr/sbin/ip") else { panic!() };
        let shell = Ancestor {
            tgid: 49_000,
            start_ns: shell_start,
            comm: "bash".into(),
            started: Some(true),
            ..Ancestor::default()
        };
        node.observe(Fact::Task(Box::new(TaskFacts { ancestors: vec![shell], ..*facts })));
        let actor = TaskRef { key: task_key(tgid), tid: tgid, comm: "ip".into(), context: None };
        node.set_entry(FIRST + number, None);
        let change = NeighborChange { actor: Some(actor), ..deletion(FIRST + number, NeighborCause::Admin) };
        node.observe(Fact::Neighbor(Box::new(change)));
    }
}

#[test]
fn two_processes_that_had_the_same_id_one_after_the_other_are_not_one_actor() {
    let mut two = node();
    hit_by_shell(&mut two, 0..2, 5 * S);
    hit_by_shell(&mut two, 2..4, 6 * S);
    assert_eq!((parent(&two), effects(&two).len()), (None, 4));
    let mut one = node();
    hit_by_shell(&mut one, 0..4, 5 * S);
    let found = parent(&one).unwrap();
    assert_eq!((found.count, found.confidence), (4, Confidence::Certain));
}

#[test]
fn an_actor_that_is_known_by_its_id_alone_is_only_likely_one() {
    let mut node = node();
    hit_by_shell(&mut node, 0..4, 0);
    let found = parent(&node).unwrap();
    assert_eq!((found.count, found.confidence), (4, Confidence::Likely));
    assert!(found.summary.contains(", likely by ip, run by bash (pid 49000)"), "{}", found.summary);
}

/// The host forwards nothing any more, and pods that have learned their gateways find that out.
fn stop_forwarding(node: &mut TestNode, by: Option<u32>, numbers: std::ops::Range<u32>) {
    if let Some(tgid) = by {
        node.observe(task(tgid, "/usr/sbin/sysctl"));
        node.observe(Fact::SysctlWrite(Box::new(SysctlWrite {
            netns: HOST,
            name: "net/ipv4/ip_forward".into(),
            old: "1".into(),
            new: "0".into(),
            missing: 0,
            netns_cookie: None,
            actor: TaskRef { key: task_key(tgid), tid: tgid, comm: "sysctl".into(), context: None },
        })));
    }
    let off = InterfaceSysctls { forwarding: Some(false), ..InterfaceSysctls::default() };
    node.observe(Fact::HostSysctls { sysctls: vec![off], all: false });
    for link in node.tables[&HOST].links.clone() {
        let off = InterfaceSysctls {
            ifindex: Some(link.ifindex),
            forwarding: Some(false),
            ..InterfaceSysctls::default()
        };
        node.observe(Fact::HostSysctls { sysctls: vec![off], all: false });
    }
    for number in numbers {
        node.set_entry(FIRST + number, Some((NudState::FAILED, None)));
        node.observe(failure(FIRST + number));
    }
    node.run_for(15 * S);
}

/// A node with many pods that have learned their gateways, for which the host answers.
fn learned() -> TestNode {
    let mut node = TestNode::booted(Resume::default());
    let mut containers = Vec::new();
    for number in 0..MANY {
        let netns = FIRST + number;
        node.add_pod(netns, &format!("cali{number:011x}"), NudState(0x02));
        let (id, uid) = (format!("{number:064x}"), format!("3f0f6a0e-2f6a-4d4e-9d1f-{number:012x}"));
        containers.push(sandbox(&id, netns, "web", &format!("pod-{number:02}"), &uid));
    }
    node.start(containers);
    let of = |ifindex, proxy| InterfaceSysctls {
        ifindex,
        forwarding: Some(true),
        proxy: Some(proxy),
        ..InterfaceSysctls::default()
    };
    let ends = node.tables[&HOST].links.iter().map(|link| of(Some(link.ifindex), true));
    let sysctls = std::iter::once(of(None, false)).chain(ends).collect();
    node.observe(Fact::HostSysctls { sysctls, all: true });
    node.events.clear();
    node
}

#[test]
fn one_change_of_the_node_is_the_cause_of_what_it_does_to_pods_whoever_made_it() {
    let names = ": 3 pods lost their gateway within 1 s: web/pod-00, web/pod-01, web/pod-02";
    for (by, expected) in [
        (Some(902), "IPv4 forwarding was switched off on the node, likely by sysctl (pid 902)"),
        (None, "IPv4 forwarding is off on the node"),
    ] {
        let mut node = learned();
        stop_forwarding(&mut node, by, 0..3);
        let found = parent(&node).unwrap_or_else(|| panic!("{:#?}", node.open()));
        assert_eq!(found.summary, format!("{expected}{names}"));
        assert_eq!((found.count, found.confidence), (3, Confidence::Likely));
        assert!(effects(&node).iter().all(|effect| effect.caused_by == [found.id.as_str()]));
        assert!(effects(&node).iter().all(|effect| effect.host_cause == found.host_cause));
        let actor = node.events.iter().rfind(is_parent).unwrap().actor.as_ref().map(|actor| actor.pid);
        assert_eq!(actor, by);

        // It goes on over a restart of the daemon.
        let mut next = TestNode::booted(node.resume_state());
        next.tables.clone_from(&node.tables);
        let containers = node.observed.iter().find_map(|observation| match &observation.fact {
            Fact::RuntimeSnapshot { containers, .. } => Some(containers.clone()),
            _ => None,
        });
        next.start(containers.unwrap());
        assert_eq!(parent(&next).map(|next| (next.id, next.count)), Some((found.id, 3)));
        (0..3).for_each(|number| next.set_entry(FIRST + number, Some((NudState(0x02), Some(host_mac())))));
        next.run_for(40 * S);
        assert_eq!(next.open(), []);
    }
}

#[test]
fn two_pods_that_one_change_of_the_node_hits_are_not_many() {
    let mut node = learned();
    stop_forwarding(&mut node, Some(902), 0..2);
    assert_eq!((parent(&node), effects(&node).len()), (None, 2));
}
