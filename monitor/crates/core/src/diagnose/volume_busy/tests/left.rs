//! Volumes that are mounted though no container of their pod runs.

use kevtmon_event::{Advice, Confidence, Incident, Risk};

use super::*;

/// Open incidents of this kind.
fn busy(node: &TestNode) -> Vec<Incident> {
    node.open().into_iter().filter(|incident| incident.kind == KIND).collect()
}

#[test]
fn a_volume_that_stays_mounted_once_no_container_runs_is_found_without_a_refused_unmount() {
    let mut node = cam_runs();
    end_cam(&mut node);
    node.observe(pods_seen(vec![cam_remains(true)]));
    node.run_for(178 * S);
    assert_eq!(busy(&node).len(), 0, "it may be slow");
    node.run_for(2 * S);
    let incidents = busy(&node);
    assert_eq!(incidents.len(), 1);
    let incident = &incidents[0];
    assert_eq!((incident.severity, incident.confidence), (Severity::Warning, Confidence::Likely));
    assert_eq!(
        incident.summary,
        "volume cam-pv-50g (kubernetes.io/glusterfs) of pod cam/cam1-78b6fc6bc8-cjsw5 is still mounted, though no container \
         of the pod has run for 180 s: at 20:03:01 UTC held by glusterfs (pid 94549) with an open file, which serves a volume of pod \
         0b7a2f50-9d1c-4a3e-8f6d-2c5b1e0a9d84"
    );
    let is_look = |step: &Advice| step.risk == Risk::Read;
    assert!(incident.advice.iter().all(is_look), "nobody was refused: nothing is ended for it");
    assert_eq!(incident.ruled_out, ["no process is in the control group of the pod"]);
    let event = node.last_incident();
    assert_eq!(event.holders.as_ref().unwrap()[0].pid, 94_549);
    assert_eq!(event.mount.as_ref().unwrap().syscall, "");
    // However long it lasts: nobody was seen to try.
    node.run_for(3600 * S);
    assert_eq!(busy(&node)[0].severity, Severity::Warning);
    node.observe(pods_seen(vec![cam_remains(false)]));
    assert_eq!(busy(&node).len(), 0);
    let closed =
        node.incidents().into_iter().map(|(_, incident)| incident).rfind(|it| it.kind == KIND).unwrap();
    assert_eq!(closed.close_reason, Some(CloseReason::Resolved));
    assert!(
        closed.summary.contains(" is still mounted, though no container of the pod has run for 180 s: at ")
    );
}

#[test]
fn what_the_state_shows_and_what_is_refused_is_one_incident() {
    let mut node = cam_runs();
    node.observe(task(30_001, "/usr/bin/umount"));
    end_cam(&mut node);
    node.observe(pods_seen(vec![cam_remains(true)]));
    node.run_for(181 * S);
    let id = busy(&node)[0].id.clone();
    node.observe(umount(Some(16)));
    let incidents = busy(&node);
    assert_eq!((incidents.len(), &incidents[0].id), (1, &id));
    assert_eq!(incidents[0].confidence, Confidence::Certain);
    assert!(incidents[0].summary.contains(" cannot be unmounted by "), "{}", incidents[0].summary);
    // The refused unmount came first: no second one opens, and the unmount closes it.
    node.observe(umount(None));
    node.run_for(5 * S);
    assert_eq!(busy(&node).len(), 0);
    // The list may be older than that.
    node.observe(pods_seen(vec![cam_remains(true)]));
    node.run_for(20 * S);
    assert_eq!(busy(&node).len(), 0);
    node.observe(pods_seen(vec![cam_remains(false)]));
    node.run_for(600 * S);
    assert_eq!(busy(&node).len(), 0);
}

#[test]
fn a_volume_whose_unmount_was_refused_stays_open_as_long_as_it_is_mounted() {
    let mut node = cam_runs();
    node.observe(task(30_001, "/usr/bin/umount"));
    end_cam(&mut node);
    node.observe(pods_seen(vec![cam_remains(true)]));
    node.observe(umount(Some(16)));
    node.run_for(4 * 3600 * S);
    assert_eq!(busy(&node).len(), 1, "nobody tries any more, and it is there");
    let opened = |node: &TestNode| {
        node.incidents()
            .iter()
            .filter(|(kind, it)| it.kind == KIND && kind.name() == "incident.opened")
            .count()
    };
    assert_eq!(opened(&node), 1);
}

#[test]
fn the_volumes_of_a_pod_that_runs_starts_or_has_completed_are_no_incident() {
    // It runs: by its runtime, by its control group alone.
    let mut node = cam_runs();
    node.observe(pods_seen(vec![cam_remains(true)]));
    node.run_for(900 * S);
    assert_eq!(node.kinds(), [""; 0]);
    // A new pod: its volumes are mounted, its first container is not made yet.
    let mut node = node_without_containers();
    node.observe(pods_seen(vec![PodRemains {
        started: false,
        cgroup: PodCgroup::Empty,
        ..cam_remains(true)
    }]));
    node.run_for(900 * S);
    assert_eq!(node.kinds(), [""; 0]);
    // It has completed: the kubelet keeps its directory.
    let mut node = cam_runs();
    end_cam(&mut node);
    node.observe(pods_seen(vec![cam_remains(true)]));
    node.run_for(S);
    node.observe(pods_seen(vec![cam_remains(false)]));
    node.run_for(900 * S);
    assert_eq!(node.kinds(), [""; 0]);
}

fn node_without_containers() -> TestNode {
    let mut node = TestNode::booted(Resume::default());
    node.start(vec![etcd_sandbox()]);
    node.events.clear();
    node
}

#[test]
fn a_pod_that_is_started_anew_waits_for_its_network_with_its_volumes() {
    let mut node = cam_runs();
    node.observe(calico());
    end_cam(&mut node);
    node.observe(pods_seen(vec![cam_remains(true)]));
    for number in 0..20 {
        node.run_for(40 * S);
        let id = format!("{number:064x}");
        let call = cni_exec(CniCommand::Add, &id, 40_000 + number);
        node.observe(call);
    }
    assert_eq!(node.kinds(), [""; 0], "its kubelet tries to start it");
}

/// The call of a plugin for a sandbox of the pod.
fn cni_exec(command: CniCommand, id: &str, tgid: u32) -> Fact {
    let Fact::CniExec(exec) = exec(tgid, command, id) else { unreachable!("it is one") };
    let pod = CniPod { namespace: "cam".into(), name: "cam1-78b6fc6bc8-cjsw5".into(), uid: None };
    Fact::CniExec(Box::new(CniExec { pod: Some(pod), ..*exec }))
}

#[test]
fn where_no_runtime_tells_it_the_control_group_has_to_for_longer_than_a_kubelet_pauses() {
    let mut node = TestNode::booted(Resume::default());
    node.start(Vec::new());
    node.events.clear();
    node.observe(pods_seen(vec![cam_running()]));
    node.observe(pods_seen(vec![cam_remains(true)]));
    node.run_for(360 * S);
    assert_eq!(busy(&node).len(), 0, "a container that crashes is started again after five minutes");
    node.run_for(181 * S);
    assert_eq!(busy(&node).len(), 1);
    // Where not even that is in sight, nothing is said.
    let mut node = TestNode::booted(Resume::default());
    node.start(Vec::new());
    node.events.clear();
    node.observe(pods_seen(vec![PodRemains { cgroup: PodCgroup::Unknown, ..cam_remains(true) }]));
    node.run_for(3600 * S);
    assert_eq!(node.kinds(), [""; 0]);
}

#[test]
fn containers_that_end_with_their_runtime_are_made_anew_once_it_is_back() {
    let mut node = cam_runs();
    let down = SourceStatus::down(SourceKind::Runtime, "docker", "connection refused");
    node.observe(Fact::Source(down));
    end_cam(&mut node);
    node.observe(pods_seen(vec![cam_remains(true)]));
    node.run_for(1800 * S);
    assert_eq!(node.kinds(), [""; 0], "without it a kubelet can end none and start none");
    node.observe(up("docker"));
    node.run_for(240 * S);
    assert_eq!(node.kinds(), [""; 0], "it may be started again");
    node.run_for(241 * S);
    assert_eq!(busy(&node).len(), 1, "nobody has");
}

#[test]
fn a_daemon_that_starts_afterwards_finds_it_and_the_next_one_goes_on_with_it() {
    let mut node = cam_node(Resume::default(), ContainerState::Exited);
    node.observe(pods_seen(vec![cam_remains(true)]));
    node.run_for(181 * S);
    let found = busy(&node);
    assert_eq!((found.len(), found[0].found_at_start), (1, true));
    let mut next = cam_node(node.resume_state(), ContainerState::Exited);
    next.observe(pods_seen(vec![cam_remains(true)]));
    assert_eq!(busy(&next)[0].id, found[0].id);
    next.run_for(600 * S);
    assert_eq!(busy(&next).len(), 1);
    assert!(!next.kinds().contains(&"incident.opened"), "{:?}", next.kinds());
    let mut last = cam_node(node.resume_state(), ContainerState::Exited);
    last.observe(pods_seen(Vec::new()));
    assert_eq!(busy(&last).len(), 0, "gone meanwhile");
}

#[test]
fn a_stopped_file_server_of_a_volume_that_stays_mounted_is_told_and_may_go_on() {
    let mut node = cam_runs();
    node.scan = |id, path| HolderReport {
        servers: vec![FileServer {
            tgid: 17,
            comm: "glusterfs".into(),
            state: ServerState::Stopped,
            waits_for: None,
            is_certain: true,
            uid: Some(0),
            cgroup: None,
        }],
        ..holders(id, path)
    };
    end_cam(&mut node);
    node.observe(pods_seen(vec![cam_remains(true)]));
    node.run_for(181 * S);
    let incident = &busy(&node)[0];
    let words = "; the file server of that mount, glusterfs (pid 17), is stopped";
    assert!(incident.summary.ends_with(words), "{}", incident.summary);
    assert!(incident.advice.iter().any(|step| step.command == "kill -CONT 17"), "{:?}", incident.advice);
    assert_eq!(node.last_incident().mount.as_ref().unwrap().servers[0].pid, 17);
}

#[test]
fn without_any_time_to_expire_one_that_is_mounted_stays_open_and_wakes_nobody_all_the_time() {
    let mut settings = settings();
    settings.incidents.set(&EXPIRE_AFTER, 0);
    let mut node = TestNode::with_settings(settings, Resume::default());
    node.start(vec![cam_sandbox(ContainerState::Running)]);
    node.observe(pods_seen(vec![cam_running()]));
    end_cam(&mut node);
    node.observe(pods_seen(vec![cam_remains(true)]));
    node.run_for(200 * S);
    assert_eq!(busy(&node).len(), 1, "it is mounted still");
    assert!(node.core.deadline().is_some_and(|due| due > node.now), "nothing is due now");
    // One that nobody tries to unmount any more is over at once.
    node.observe(pods_seen(vec![cam_remains(false)]));
    node.observe(task(30_001, "/usr/bin/umount"));
    node.observe(umount(Some(16)));
    assert_eq!(busy(&node).len(), 1);
    node.run_for(2 * S);
    assert_eq!(busy(&node).len(), 0);
}
