//! Recreations in, storms out, through the core.

use kevtmon_observation::*;

use super::*;
use crate::Resume;
use crate::diagnose::tests::harness::*;

const OLD: u64 = 1_559_107_639;
const NEW: u64 = 1_428_860_573;

fn kubelet(tgid: u32, started_ns: BootNs, version: Option<&str>) -> ComponentFacts {
    ComponentFacts {
        name: PROGRAM.into(),
        tgid,
        started_ns,
        exe: Some("/usr/bin/kubelet".into()),
        version: version.map(str::to_owned),
        remote_runtime: None,
        cni_dirs: Default::default(),
    }
}

fn member(pod: u32, attempt: u32, state: ContainerState, hash: u64) -> ContainerFacts {
    let uid = format!("3f0f6a0e-2f6a-4d4e-9d1f-{pod:012x}");
    let facts = sandbox(&format!("{pod:x}{attempt:063x}"), pod, "lijiaob", &format!("etcd-{pod}"), &uid);
    let pod_identity = facts.pod.clone().map(|identity| PodIdentity {
        container_name: Some("etcd".into()),
        sandbox_id: Some(format!("{pod:064x}")),
        ..identity
    });
    ContainerFacts {
        state,
        tgid: None,
        netns: None,
        pod: pod_identity,
        sandbox: false,
        incarnation: Incarnation {
            attempt: Some(attempt),
            spec_hash: Some(hash),
            image_id: Some("sha256:0".into()),
            ..Incarnation::default()
        },
        ..facts
    }
}

/// Five pods, each with its sandbox and one container.
fn pods() -> Vec<ContainerFacts> {
    let of = |pod: u32| {
        let facts = member(pod, 0, ContainerState::Running, OLD);
        let identity = facts.pod.clone().unwrap();
        let own = sandbox(&format!("{pod:064x}"), pod, "lijiaob", &identity.name, &identity.uid);
        [ContainerFacts { netns: None, ..own }, facts]
    };
    (1..=5).flat_map(of).collect()
}

/// A node with five pods, whose kubelet has just been replaced.
fn replaced(old: Option<&str>, new: Option<&str>) -> TestNode {
    let mut node = TestNode::booted(Resume::default());
    node.observe(Fact::Components { components: vec![kubelet(7, MS, old)] });
    node.start(pods());
    node.run_for(1_000 * S);
    node.observe(Fact::ComponentExited(ComponentExit {
        tgid: 7,
        started_ns: MS,
        code: Some(0),
        signal: None,
    }));
    let started = node.now;
    node.run_for(S);
    node.observe(Fact::Components { components: vec![kubelet(8, started, new)] });
    node.run_for(18 * S);
    node.events.clear();
    node
}

/// The container of a pod ends and is made again.
fn recreate(node: &mut TestNode, pod: u32, change: impl Fn(&mut ContainerFacts)) {
    node.observe(Fact::Container(Box::new(member(pod, 0, ContainerState::Exited, OLD))));
    node.run_for(2 * S);
    let mut new = member(pod, 1, ContainerState::Running, NEW);
    change(&mut new);
    node.observe(Fact::Container(Box::new(new)));
}

#[test]
fn containers_of_three_pods_with_other_hashes_after_a_kubelet_of_another_version_are_a_storm() {
    let mut node = replaced(Some("v1.7.16"), Some("v1.9.11"));
    recreate(&mut node, 1, |_| {});
    recreate(&mut node, 2, |_| {});
    assert_eq!(node.open().len(), 0);
    recreate(&mut node, 3, |_| {});
    let opened = node.last_incident();
    let incident = opened.incident.as_ref().unwrap();
    assert_eq!(
        incident.summary,
        "3 containers of 3 pods were re-created with other spec hashes, in unchanged sandboxes and with unchanged \
         images, after kubelet v1.9.11 (pid 8) had started in place of version v1.7.16"
    );
    assert_eq!((incident.severity, incident.confidence), (Severity::Warning, Confidence::Certain));
    assert_eq!((incident.count, incident.evidence.len()), (3, 3));
    assert_eq!(opened.component.as_ref().unwrap().pid, 8);
    let advice = &incident.advice[0];
    assert!(advice.text.contains("do not go back") && advice.text.contains("drain"), "{}", advice.text);
    recreate(&mut node, 4, |_| {});
    assert_eq!((node.open().len(), node.open()[0].count), (1, 4));
    node.run_for(QUIET + S);
    let (kind, incident) = *node.incidents().last().unwrap();
    assert_eq!((kind, incident.close_reason), (Kind::IncidentClosed, Some(CloseReason::Expired)));
}

#[test]
fn without_versions_only_the_time_speaks_for_it() {
    let mut node = replaced(None, None);
    (1..=3).for_each(|pod| recreate(&mut node, pod, |_| {}));
    let incident = &node.open()[0];
    assert_eq!(incident.confidence, Confidence::Likely);
    assert!(incident.summary.ends_with("after kubelet (pid 8) had started"), "{}", incident.summary);
}

#[test]
fn what_has_another_reason_is_no_storm() {
    let changes: [fn(&mut ContainerFacts); 5] = [
        |new| new.incarnation.spec_hash = Some(OLD),
        |new| new.incarnation.image_id = Some("sha256:1".into()),
        |new| new.incarnation.spec_hash = None,
        |new| new.pod.as_mut().unwrap().sandbox_id = Some("f".repeat(64)),
        |new| new.pod.as_mut().unwrap().proof = PodProof::Claimed,
    ];
    for change in changes {
        let mut node = replaced(Some("v1.7.16"), Some("v1.9.11"));
        (1..=5).for_each(|pod| recreate(&mut node, pod, change));
        assert_eq!(node.kinds(), [""; 0]);
    }
}

#[test]
fn three_containers_of_one_pod_are_no_storm() {
    let mut node = replaced(Some("v1.7.16"), Some("v1.9.11"));
    for (number, name) in [(6, "etcd"), (7, "proxy"), (8, "log")] {
        let of_first = |attempt, state, hash| {
            let facts = member(number, attempt, state, hash);
            let pod = member(1, attempt, state, hash).pod;
            let pod = pod.map(|pod| PodIdentity { container_name: Some(name.into()), ..pod });
            Fact::Container(Box::new(ContainerFacts { pod, ..facts }))
        };
        node.observe(of_first(0, ContainerState::Exited, OLD));
        node.run_for(2 * S);
        node.observe(of_first(1, ContainerState::Running, NEW));
    }
    let recreated = node.events.iter().filter(|event| event.kind == Kind::ContainerRecreated).count();
    assert_eq!((recreated, node.open().len()), (3, 0));
}

#[test]
fn two_pods_or_a_slow_pace_or_no_kubelet_that_has_just_started_are_no_storm() {
    let mut node = replaced(None, None);
    (1..=2).for_each(|pod| recreate(&mut node, pod, |_| {}));
    assert_eq!(node.kinds(), [""; 0], "two pods");
    let mut node = replaced(None, None);
    for pod in 1..=5 {
        recreate(&mut node, pod, |_| {});
        node.run_for(61 * S);
    }
    assert_eq!(node.kinds(), [""; 0], "a slow pace");
    let mut node = replaced(None, None);
    node.run_for(600 * S);
    (1..=5).for_each(|pod| recreate(&mut node, pod, |_| {}));
    assert_eq!(node.kinds(), [""; 0], "long after");
}

#[test]
fn a_kubelet_that_is_found_later_is_named_all_the_same() {
    let mut node = TestNode::booted(Resume::default());
    node.start(pods());
    node.run_for(100 * S);
    let started = node.now;
    node.run_for(18 * S);
    (1..=3).for_each(|pod| recreate(&mut node, pod, |_| {}));
    assert_eq!(node.kinds(), [""; 0]);
    node.run_for(30 * S);
    node.observe(Fact::Components { components: vec![kubelet(8, started, None)] });
    assert_eq!(node.kinds(), ["incident.opened"]);
    let state = node.resume_state();
    drop(node);
    let mut next = TestNode::booted(state);
    next.start(Vec::new());
    assert_eq!((next.kinds(), next.open().len()), (Vec::new(), 1), "it goes on over a restart");
}
