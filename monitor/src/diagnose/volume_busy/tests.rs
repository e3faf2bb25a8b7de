//! Observations in, incidents out, through the core.

use super::*;
use crate::core::Resume;
use crate::diagnose::tests::harness::*;
use crate::observation::*;

/// The pod is Terminating: its containers are gone.
fn terminating() -> TestNode {
    let mut node = TestNode::booted(Resume::default());
    let cam = sandbox(&"c".repeat(64), 71, "cam", "cam1-78b6fc6bc8-cjsw5", CAM_UID);
    let web = sandbox(&"d".repeat(64), 72, "cam", "web-fddf96444-stxpf", WEB_UID);
    node.start(vec![cam, web]);
    node.observe(Fact::ContainerGone { id: "c".repeat(64), source: "docker".into() });
    node.run_for(700 * S);
    node.observe(task(30_001, "/bin/umount"));
    node.events.clear();
    node
}

fn busy() -> TestNode {
    let mut node = terminating();
    node.observe(umount(Some(16)));
    node
}

#[test]
fn the_first_refused_unmount_opens_with_pod_volume_and_who_holds_it() {
    let node = busy();
    let opened = node.last_incident();
    assert_eq!(
        opened.message,
        "volume cam-pv-50g (kubernetes.io/glusterfs) of pod cam/cam1-78b6fc6bc8-cjsw5 cannot be unmounted by \
         umount of kubelet.service: held by glusterfs (pid 94549) with an open file, which serves a volume of pod \
         cam/web-fddf96444-stxpf"
    );
    assert_eq!((opened.kind, opened.severity), (Kind::IncidentOpened, Severity::Info));
    let volume = opened.mount.as_ref().unwrap().volume.as_ref().unwrap();
    assert_eq!((volume.pod_uid.as_str(), volume.name.as_str()), (CAM_UID, "cam-pv-50g"));
    let pod = opened.target.as_ref().unwrap().pod.as_ref().unwrap();
    assert_eq!(pod.name.as_deref(), Some("cam1-78b6fc6bc8-cjsw5"), "though its containers are forgotten");
    let holder = &opened.holders.as_ref().unwrap()[0];
    assert_eq!(holder.serves.as_ref().unwrap().pod.uid, WEB_UID);
    let commands: Vec<&str> =
        opened.incident.as_ref().unwrap().advice.iter().map(|step| step.command.as_str()).collect();
    let path = volume_path();
    assert_eq!(
        commands,
        [format!("kevtmon why {path}"), "kill 94549".into(), format!("umount --lazy {path}")]
    );
}

#[test]
fn retries_count_up_and_never_open_another() {
    let mut node = busy();
    for _ in 0..50 {
        node.observe(umount(Some(16)));
    }
    let incident = &node.open()[0];
    assert_eq!((node.open().len(), incident.count), (1, 51));
    let updates = node.kinds().iter().filter(|kind| **kind == "incident.updated").count();
    assert!((5..10).contains(&updates), "{updates}");
}

#[test]
fn it_is_a_warning_at_the_third_attempt() {
    let mut node = busy();
    node.observe(umount(Some(16)));
    assert_eq!(node.open()[0].severity, Severity::Info);
    node.observe(umount(Some(16)));
    assert_eq!((node.open()[0].severity, node.open()[0].count), (Severity::Warning, 3));
    assert_eq!(node.last_incident().severity, Severity::Warning);
}

#[test]
fn it_escalates_with_time_alone() {
    let mut node = busy();
    node.run_for(29 * S);
    assert_eq!(node.open()[0].severity, Severity::Info);
    node.run_for(S);
    assert_eq!(node.open()[0].severity, Severity::Warning);
    node.run_for(870 * S);
    assert_eq!(node.open()[0].severity, Severity::Critical);
    assert_eq!(node.kinds(), ["incident.opened", "incident.updated", "incident.updated"]);
}

#[test]
fn it_closes_when_the_unmount_succeeds_even_if_lazily() {
    for flags in [0, 2] {
        let mut node = busy();
        let Fact::Umount(mut attempt) = umount(None) else { unreachable!() };
        attempt.flags = flags;
        node.observe(Fact::Umount(attempt));
        let closed = node.last_incident().incident.as_ref().unwrap();
        assert_eq!((closed.close_reason, closed.evidence.len()), (Some(CloseReason::Resolved), 2));
        assert_eq!(node.core.deadline(), None);
    }
}

#[test]
fn a_path_through_a_symbolic_link_is_the_same_mount() {
    let through_link = |errno| {
        let Fact::Umount(mut attempt) = umount(errno) else { unreachable!() };
        attempt.path = attempt.path.replace(KUBELET, LINK);
        Fact::Umount(attempt)
    };
    let mut node = terminating();
    for _ in 0..3 {
        node.observe(through_link(Some(16)));
    }
    assert_eq!((node.open()[0].count, node.open()[0].severity), (3, Severity::Warning));
    assert_eq!(node.last_incident().mount.as_ref().unwrap().path, volume_path());
    // The scan that resolved the path is forgotten by then.
    node.run_for(1_200 * S);
    node.observe(through_link(None));
    assert_eq!(node.open().len(), 0);
}

#[test]
fn an_unmount_in_another_mount_namespace_resolves_nothing() {
    let mut node = busy();
    let Fact::Umount(mut attempt) = umount(None) else { unreachable!() };
    attempt.mntns = 5;
    node.observe(Fact::Umount(attempt));
    assert_eq!(node.open().len(), 1);
}

#[test]
fn a_volume_that_is_busy_again_reopens_under_the_same_id() {
    let mut node = busy();
    node.observe(umount(None));
    node.run_for(60 * S);
    node.observe(umount(Some(16)));
    let ids: Vec<&String> = node.incidents().iter().map(|(_, incident)| &incident.id).collect();
    assert!(ids.iter().all(|id| *id == ids[0]));
    assert_eq!(node.kinds(), ["incident.opened", "incident.closed", "incident.opened"]);
    assert_eq!(node.open()[0].count, 1);
}

#[test]
fn a_volume_that_nobody_tries_to_unmount_any_more_expires() {
    let mut node = busy();
    node.run_for(1_801 * S);
    assert_eq!(node.last_incident().incident.as_ref().unwrap().close_reason, Some(CloseReason::Expired));
    assert_eq!(node.core.deadline(), None);
}

#[test]
fn an_unmount_that_succeeds_before_the_scan_is_done_leaves_nothing_open() {
    let mut node = terminating();
    let silent = |node: &mut TestNode, at, fact| {
        node.core.observe(Observation { at, source: Source::Daemon, fact });
        node.core
            .take_output()
            .filter_map(|output| match output {
                crate::core::Output::Event(event) => Some(event.kind),
                crate::core::Output::Request(_) => None,
            })
            .collect::<Vec<_>>()
    };
    let now = node.now;
    assert_eq!(silent(&mut node, now, umount(Some(16))), []);
    assert_eq!(silent(&mut node, now + 1, umount(None)), [], "events of one mount leave in order");
    let emitted = silent(&mut node, now + 6 * S, Fact::Tick);
    let expected = [Kind::MountBusy, Kind::IncidentOpened, Kind::MountReleased, Kind::IncidentClosed];
    assert_eq!(emitted, expected);
}

#[test]
fn a_busy_mount_that_is_no_volume_is_no_incident() {
    let mut node = terminating();
    let Fact::Umount(mut attempt) = umount(Some(16)) else { unreachable!() };
    attempt.path = "/mnt/backup".into();
    for _ in 0..10 {
        node.observe(Fact::Umount(attempt.clone()));
    }
    assert_eq!(node.kinds(), [""; 0]);
}

#[test]
fn after_a_long_downtime_no_incident_escalates_before_the_node_was_read() {
    let before = busy();
    for (mounted, expected) in [(true, "incident.updated"), (false, "incident.closed")] {
        let mut node = TestNode::booted(before.resume_state());
        node.now = before.now + 1_000 * S;
        node.mounted = mounted;
        node.observe(Fact::Tick);
        assert_eq!(node.kinds(), [""; 0]);
        node.start(Vec::new());
        node.run_for(10 * S);
        assert_eq!(node.kinds(), [expected]);
    }
}

#[test]
fn a_restart_keeps_id_count_and_age_and_closes_what_was_unmounted_meanwhile() {
    let mut before = busy();
    before.run_for(10 * S);
    before.observe(umount(Some(16)));
    let id = before.open()[0].id.clone();
    for mounted in [true, false] {
        let mut node = TestNode::booted(before.resume_state());
        node.now = before.now;
        node.mounted = mounted;
        node.start(Vec::new());
        if !mounted {
            assert_eq!(node.kinds(), ["incident.closed"]);
            assert_eq!(node.last_incident().incident.as_ref().unwrap().id, id);
            continue;
        }
        assert_eq!(node.kinds(), [""; 0]);
        node.observe(umount(Some(16)));
        let incident = &node.open()[0];
        assert_eq!((&incident.id, incident.count, incident.severity), (&id, 3, Severity::Warning));
        assert_eq!(incident.opened, before.open()[0].opened);
    }
}
