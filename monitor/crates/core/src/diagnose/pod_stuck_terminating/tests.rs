use kevtmon_event::{CloseReason, Incident, Kind};
use kevtmon_observation::*;

use super::*;
use crate::Resume;
use crate::diagnose::tests::harness::*;

fn stuck(node: &TestNode) -> Vec<Incident> {
    node.open().into_iter().filter(|incident| incident.kind == KIND).collect()
}

fn process(tgid: u32, state: char, killed: bool) -> PodProcess {
    PodProcess { tgid, start_ns: 7, comm: "etcd".into(), state, killed, init: true }
}

#[test]
fn a_pod_whose_volume_stays_mounted_is_stuck_and_what_is_behind_it_is_linked() {
    let mut node = cam_runs();
    end_cam(&mut node);
    node.observe(pods_seen(vec![cam_remains(true)]));
    node.run_for(59 * S);
    assert_eq!(node.kinds(), [""; 0], "an unmount may take its time");
    node.run_for(2 * S);
    let incidents = stuck(&node);
    let incident = &incidents[0];
    assert_eq!((incident.severity, incident.confidence), (Severity::Warning, Confidence::Likely));
    assert_eq!(
        incident.summary,
        "pod cam/cam1-78b6fc6bc8-cjsw5 is still on this node, though no container of it has run for 60 s: volume cam-pv-50g \
         (kubernetes.io/glusterfs) is mounted"
    );
    assert_eq!(incident.ruled_out, ["no process is in its control group"]);
    assert!(incident.advice[0].command.starts_with("kevtmon holders /var/lib/kubelet/pods/"));
    assert_eq!(incident.advice[1].command, "kevtmon why cam/cam1-78b6fc6bc8-cjsw5");
    assert_eq!(incident.caused_by, [""; 0]);
    node.run_for(150 * S);
    let volume = node.open().into_iter().find(|incident| incident.kind == "volume-busy").unwrap();
    assert_eq!(stuck(&node)[0].caused_by, [volume.id]);
    node.observe(pods_seen(vec![cam_remains(false)]));
    assert_eq!(node.open().len(), 0);
    let (kind, closed) = *node.incidents().iter().rfind(|(_, incident)| incident.kind == KIND).unwrap();
    assert_eq!((kind, closed.close_reason), (Kind::IncidentClosed, Some(CloseReason::Resolved)));
    assert_eq!(
        closed.summary,
        "pod cam/cam1-78b6fc6bc8-cjsw5 is still on this node, though no container of it has run for 60 s: volume cam-pv-50g \
         (kubernetes.io/glusterfs) is mounted"
    );
    assert_eq!(closed.ruled_out, ["no process is in its control group"]);
}

#[test]
fn the_directory_of_a_volume_that_is_not_empty_keeps_it_open_and_opens_nothing() {
    let path = format!("/var/lib/kubelet/pods/{CAM_UID}/volumes/kubernetes.io~glusterfs/cam-pv-50g");
    let filled = || pods_seen(vec![PodRemains { filled: vec![path.clone()], ..cam_remains(false) }]);
    let mut node = cam_runs();
    end_cam(&mut node);
    node.observe(filled());
    node.run_for(3600 * S);
    assert_eq!(node.kinds(), [""; 0], "a kubelet keeps what is of a pod that has completed");
    node.observe(pods_seen(vec![cam_remains(true)]));
    node.run_for(S);
    assert_eq!(stuck(&node).len(), 1);
    node.observe(filled());
    node.run_for(3600 * S);
    let incident = &stuck(&node)[0];
    let words = ": the directory of volume cam-pv-50g (kubernetes.io/glusterfs) is not empty, though nothing is mounted there";
    assert!(incident.summary.ends_with(words), "{}", incident.summary);
    assert_eq!(incident.ruled_out, ["no process is in its control group", "none of its volumes is mounted"]);
    assert!(incident.advice.iter().all(|step| !step.command.contains("rm ")), "{:?}", incident.advice);
    node.observe(pods_seen(vec![cam_remains(false)]));
    let (kind, closed) = *node.incidents().iter().rfind(|(_, incident)| incident.kind == KIND).unwrap();
    assert_eq!(kind, Kind::IncidentClosed);
    assert!(closed.summary.ends_with(words), "{}", closed.summary);
}

#[test]
fn a_graceful_deletion_and_a_pod_that_has_completed_are_no_incident() {
    let mut node = cam_runs();
    // The volumes of a running pod are not looked at; then app and sandbox end, and what was mounted goes.
    end_cam(&mut node);
    node.observe(pods_seen(vec![cam_remains(true)]));
    node.run_for(S);
    node.observe(pods_seen(vec![cam_remains(false)]));
    node.run_for(3600 * S);
    assert_eq!(node.kinds(), [""; 0], "its directory stays as long as the API has it");
    node.observe(pods_seen(Vec::new()));
    node.run_for(3600 * S);
    assert_eq!(node.kinds(), [""; 0]);
}

#[test]
fn a_pod_that_never_had_a_container_is_not_at_its_end() {
    let mut node = TestNode::booted(Resume::default());
    node.start(vec![etcd_sandbox()]);
    node.events.clear();
    node.observe(pods_seen(vec![PodRemains { started: false, ..cam_remains(true) }]));
    node.run_for(3600 * S);
    assert_eq!(node.kinds(), [""; 0]);
}

#[test]
fn a_process_that_was_killed_and_waits_in_the_kernel_holds_its_pod() {
    let mut node = cam_runs();
    let waits = |killed| {
        let processes = vec![process(51, 'D', killed), process(52, 'D', killed)];
        pods_seen(vec![PodRemains { processes, ..cam_running() }])
    };
    node.observe(waits(false));
    node.run_for(3600 * S);
    assert_eq!(node.kinds(), [""; 0], "nobody wants it to end");
    node.observe(waits(true));
    node.run_for(59 * S);
    assert_eq!(node.kinds(), [""; 0]);
    node.run_for(2 * S);
    let incidents = stuck(&node);
    assert_eq!(
        incidents[0].summary,
        "a container of pod cam/cam1-78b6fc6bc8-cjsw5 does not end: process etcd (pid 51) is to end (SIGKILL) and does not, as \
         it waits in the kernel (and 1 more)"
    );
    assert_eq!(incidents[0].confidence, Confidence::Certain);
    assert_eq!(incidents[0].ruled_out, [""; 0]);
    node.observe(pods_seen(vec![cam_running()]));
    assert_eq!(stuck(&node).len(), 0);
}

#[test]
fn a_process_that_was_killed_beside_others_that_run_is_not_the_end_of_its_container() {
    let mut node = cam_runs();
    let probe = PodProcess { init: false, ..process(51, 'D', true) };
    node.observe(pods_seen(vec![PodRemains { processes: vec![probe], ..cam_running() }]));
    node.run_for(3600 * S);
    assert_eq!(node.kinds(), [""; 0]);
}

#[test]
fn what_cannot_be_looked_at_any_more_is_no_news() {
    let mut node = cam_runs();
    end_cam(&mut node);
    node.observe(pods_seen(vec![cam_remains(true)]));
    node.run_for(50 * S);
    node.observe(Fact::PodRemainsUnread);
    node.run_for(3600 * S);
    assert_eq!(node.kinds(), [""; 0], "it may be over");
    node.observe(pods_seen(vec![cam_remains(true)]));
    node.run_for(S);
    assert_eq!(stuck(&node).len(), 1);
}

#[test]
fn a_network_that_is_not_taken_down_holds_its_pod() {
    let mut node = cam_runs();
    end_cam(&mut node);
    node.observe(pods_seen(vec![cam_remains(false)]));
    let id = "c".repeat(64);
    for _ in 0..4 {
        node.call(CniCommand::Del, &id, 1);
        node.run_for(20 * S);
    }
    let incidents = stuck(&node);
    assert!(
        incidents[0].summary.ends_with(": the CNI DEL of its sandbox cccccccccccc fails repeatedly"),
        "{}",
        incidents[0].summary
    );
    assert_eq!(
        incidents[0].ruled_out,
        ["no process is in its control group", "none of its volumes is mounted"]
    );
    let cause = node.open().into_iter().find(|incident| incident.kind == "cni-teardown-failing").unwrap();
    assert_eq!(incidents[0].caused_by, [cause.id]);
    node.call(CniCommand::Del, &id, 0);
    assert_eq!(node.open().len(), 0);
}

#[test]
fn another_process_of_that_id_has_its_own_time() {
    let mut node = cam_runs();
    for start_ns in 0..10 {
        let processes = vec![PodProcess { start_ns, ..process(51, 'D', true) }];
        node.observe(pods_seen(vec![PodRemains { processes, ..cam_running() }]));
        node.run_for(40 * S);
    }
    assert_eq!(node.kinds(), [""; 0]);
}

#[test]
fn processes_that_are_left_of_containers_that_have_ended_are_asked_for_and_named() {
    let mut node = cam_runs();
    let left = PodRemains { containers: vec!["c".repeat(12)], ..cam_running() };
    node.observe(pods_seen(vec![left.clone()]));
    end_cam(&mut node);
    let asked = Request::PodProcesses { pods: vec![CAM_UID.into()] };
    assert_eq!(node.requests.iter().filter(|request| **request == asked).count(), 1);
    node.run_for(61 * S);
    assert!(
        stuck(&node)[0].summary.ends_with(": a process is left in its control group"),
        "{:?}",
        stuck(&node)
    );
    node.observe(pods_seen(vec![PodRemains { processes: vec![process(51, 'D', false)], ..left }]));
    assert!(
        stuck(&node)[0].summary.ends_with(": process etcd (pid 51) is left of it, and waits in the kernel"),
        "{:?}",
        stuck(&node)
    );
    node.observe(pods_seen(vec![cam_remains(false)]));
    assert_eq!(stuck(&node).len(), 0);
    assert_eq!(node.requests.last(), Some(&Request::PodProcesses { pods: Vec::new() }));
}

#[test]
fn processes_of_a_container_that_no_runtime_knows_are_of_a_pod_that_runs() {
    let mut node = cam_runs();
    // Another runtime has made it again.
    node.observe(pods_seen(vec![PodRemains { containers: vec!["d".repeat(12)], ..cam_running() }]));
    end_cam(&mut node);
    node.run_for(3600 * S);
    assert_eq!(node.kinds(), [""; 0]);
}

#[test]
fn a_daemon_that_starts_afterwards_finds_it_and_the_next_one_goes_on_with_it() {
    let mut node = cam_node(Resume::default(), ContainerState::Exited);
    node.observe(pods_seen(vec![cam_remains(true)]));
    node.run_for(61 * S);
    let found = stuck(&node);
    assert!(found[0].found_at_start);
    let mut next = cam_node(node.resume_state(), ContainerState::Exited);
    next.observe(pods_seen(vec![cam_remains(true)]));
    assert_eq!(stuck(&next)[0].id, found[0].id);
    next.run_for(600 * S);
    assert_eq!(stuck(&next).len(), 1);
    let mut last = cam_node(node.resume_state(), ContainerState::Exited);
    last.observe(pods_seen(Vec::new()));
    assert_eq!(stuck(&last).len(), 0);
}

/// A kubelet lists the pod, which was deleted, and tells when its grace period ends.
fn deleted(ends: BootNs) -> Fact {
    let booted_s = 1_520_280_000;
    let pod = KubeletPod {
        uid: CAM_UID.into(),
        namespace: "cam".into(),
        name: "cam1-78b6fc6bc8-cjsw5".into(),
        ends_s: Some(booted_s + i64::try_from(ends / S).unwrap()),
    };
    Fact::KubeletPods { pods: vec![pod], all: true }
}

#[test]
fn a_pod_that_was_deleted_and_was_not_seen_to_run_is_overdue_from_the_end_of_its_grace_period() {
    let mut node = cam_node(Resume::default(), ContainerState::Exited);
    node.run_until(100 * S);
    node.observe(pods_seen(vec![cam_remains(true)]));
    node.observe(deleted(50 * S));
    node.run_until(109 * S);
    assert_eq!(stuck(&node).len(), 0);
    node.run_until(111 * S);
    let incidents = stuck(&node);
    assert_eq!(
        incidents[0].summary,
        "pod cam/cam1-78b6fc6bc8-cjsw5 is still on this node, though it was deleted and no container of it runs: volume \
         cam-pv-50g (kubernetes.io/glusterfs) is mounted"
    );
    assert_eq!(incidents[0].confidence, Confidence::Likely);
    node.observe(pods_seen(vec![cam_remains(false)]));
    assert_eq!(stuck(&node).len(), 0);
}

#[test]
fn a_deletion_that_is_told_as_it_happens_has_not_ended_before_by_a_clock_that_is_behind() {
    let mut node = cam_node(Resume::default(), ContainerState::Exited);
    node.run_until(100 * S);
    node.observe(pods_seen(vec![cam_remains(true)]));
    let Fact::KubeletPods { pods, .. } = deleted(50 * S) else { unreachable!() };
    node.observe(Fact::KubeletPods { pods, all: false });
    node.run_until(150 * S);
    assert_eq!(stuck(&node).len(), 0);
    node.observe(deleted(50 * S));
    node.run_until(159 * S);
    assert_eq!(stuck(&node).len(), 0, "nor by the next list");
    node.run_until(161 * S);
    assert_eq!(stuck(&node).len(), 1);
}

#[test]
fn a_pod_that_was_seen_to_run_is_not_overdue_before_its_last_container_has_ended() {
    let mut node = cam_runs();
    node.observe(deleted(31 * S));
    node.run_until(200 * S);
    end_cam(&mut node);
    node.observe(pods_seen(vec![cam_remains(true)]));
    node.run_for(59 * S);
    assert_eq!(stuck(&node).len(), 0);
    node.run_for(2 * S);
    assert_eq!(stuck(&node).len(), 1);
}

#[test]
fn a_pod_that_never_had_a_container_is_at_its_end_once_it_was_deleted() {
    let mut node = TestNode::booted(Resume::default());
    node.start(vec![etcd_sandbox()]);
    node.observe(pods_seen(vec![PodRemains { started: false, ..cam_remains(true) }]));
    node.observe(deleted(3_630 * S));
    node.run_until(3_689 * S);
    assert_eq!(stuck(&node).len(), 0);
    node.run_until(3_691 * S);
    let summary = &stuck(&node)[0].summary;
    assert!(summary.contains("is still on this node, though it was deleted"), "{summary}");
}
