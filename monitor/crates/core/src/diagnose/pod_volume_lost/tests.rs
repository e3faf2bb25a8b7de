//! Volumes of pods that run, unmounted by others than their kubelet.

use kevtmon_event::Incident;
use kevtmon_observation::*;

use super::*;
use crate::diagnose::tests::harness::*;

const SUMMARY: &str = "umount (pid 30001) has likely unmounted volume cam-pv-50g (kubernetes.io/glusterfs) of pod \
                       cam/cam1-78b6fc6bc8-cjsw5, which runs: containers that start in it now write to the disk of the node";

/// The container of the application, besides the sandbox.
fn app(state: ContainerState) -> Fact {
    let facts = cam_sandbox(state);
    let pod = facts.pod.clone().map(|pod| PodIdentity { container_name: Some("cam".into()), ..pod });
    Fact::Container(Box::new(ContainerFacts { id: "a".repeat(64), sandbox: false, pod, ..facts }))
}

fn node() -> TestNode {
    let mut node = cam_runs();
    node.observe(app(ContainerState::Running));
    node.events.clear();
    node
}

/// A look at the volumes of the pod.
fn look(node: &mut TestNode, is_mounted: bool) {
    node.run_for(S);
    let cgroup = PodCgroup::Populated;
    node.observe(pods_seen(vec![PodRemains { cgroup, listed: true, ..cam_remains(is_mounted) }]));
}

fn found(node: &TestNode) -> Vec<Incident> {
    node.open().into_iter().filter(|incident| incident.kind == KIND).collect()
}

/// The pods whose mounts were requested last.
fn listed(node: &TestNode) -> Option<Vec<String>> {
    node.requests.iter().rev().find_map(|request| match request {
        Request::PodMounts { pods } => Some(pods.clone()),
        _ => None,
    })
}

#[track_caller]
fn expect_closed(node: &TestNode, reason: CloseReason) {
    let incidents = node.incidents();
    let last = incidents.iter().rfind(|(_, incident)| incident.kind == KIND).unwrap().1;
    assert_eq!(last.close_reason, Some(reason), "{last:?}");
}

#[test]
fn a_volume_that_somebody_unmounts_is_lost_until_it_is_mounted_again() {
    let mut node = node();
    node.observe(umount(None));
    assert_eq!(listed(&node), Some(vec![CAM_UID.to_owned()]));
    look(&mut node, false);
    node.run_for(13 * S);
    assert!(found(&node).is_empty(), "a driver may mount it again");
    node.run_for(2 * S);
    let [incident] = &found(&node)[..] else { panic!("{:?}", node.kinds()) };
    assert_eq!((incident.severity, incident.confidence), (Severity::Critical, Confidence::Likely));
    assert_eq!(incident.summary, SUMMARY);
    assert_eq!(incident.evidence.len(), 1);
    let [step] = &incident.advice[..] else { panic!("{:?}", incident.advice) };
    assert_eq!(step.command, "kubectl -n cam delete pod cam1-78b6fc6bc8-cjsw5");
    let actor = node.last_incident().actor.clone().unwrap();
    assert_eq!((actor.pid, actor.confidence), (30_001, Confidence::Likely));
    // Whoever unmounts what was mounted there since has not done it.
    node.observe(umount(None));
    node.run_for(60 * S);
    assert_eq!(found(&node)[0].summary, SUMMARY);
    look(&mut node, true);
    node.run_for(S);
    expect_closed(&node, CloseReason::Resolved);
    assert_eq!(listed(&node), Some(Vec::new()));
}

/// A look that finds something mounted over the volume; whether a container has the volume.
fn cover(node: &mut TestNode, held: Option<bool>) {
    cover_at(node, &volume_path(), held);
}

fn cover_at(node: &mut TestNode, mountpoint: &str, held: Option<bool>) {
    node.run_for(S);
    let mount = holders(0, &volume_path()).mount.unwrap();
    let (fstype, source, device) = ("tmpfs".into(), "none".into(), "0:90".into());
    let mountpoint = mountpoint.to_owned();
    let cover = MountFacts { fstype, source, device, mountpoint, ..mount.clone() };
    let covered = held.map(|held| CoveredVolume { mount, cover, held }).into_iter().collect();
    node.observe(pods_seen(vec![PodRemains { covered, ..cam_running() }]));
}

#[test]
fn a_volume_that_a_container_has_is_covered_until_the_cover_is_gone() {
    let mut node = node();
    cover(&mut node, Some(false));
    node.run_for(60 * S);
    assert!(found(&node).is_empty(), "a driver may have mounted it so");
    cover(&mut node, Some(true));
    node.run_for(13 * S);
    assert!(found(&node).is_empty(), "it may be over in a moment");
    node.run_for(4 * S);
    let [incident] = &found(&node)[..] else { panic!("{:?}", node.kinds()) };
    assert_eq!((incident.severity, incident.confidence), (Severity::Critical, Confidence::Likely));
    let what = "volume cam-pv-50g (kubernetes.io/glusterfs) of pod cam/cam1-78b6fc6bc8-cjsw5, which runs,";
    let by = format!("is covered by none (tmpfs, 0:90) at {}", volume_path());
    assert_eq!(incident.summary, format!("{what} {by}: containers that start in it now get that instead"));
    // Its container has started again, and has the other one.
    cover(&mut node, Some(false));
    node.run_for(30 * S);
    node.observe(Fact::PodRemainsUnread);
    node.observe(app(ContainerState::Running));
    node.run_for(30 * S);
    assert_eq!(found(&node).len(), 1);
    cover(&mut node, None);
    node.run_for(S);
    expect_closed(&node, CloseReason::Resolved);
}

#[test]
fn no_deletion_of_the_pod_is_offered_where_that_leaves_the_volume_below_the_cover() {
    let path = volume_path();
    for (mountpoint, steps) in [(path.as_str(), 1), (path.rsplit_once('/').unwrap().0, 0)] {
        let mut node = node();
        cover_at(&mut node, mountpoint, Some(true));
        node.run_for(17 * S);
        let [incident] = &found(&node)[..] else { panic!("{:?}", node.kinds()) };
        assert_eq!(incident.advice.len(), steps, "{:?}", incident.advice);
    }
}

#[test]
fn a_volume_that_is_unmounted_after_what_covers_it_stays_lost() {
    let mut node = node();
    cover(&mut node, Some(true));
    node.run_for(17 * S);
    let before = found(&node)[0].id.clone();
    node.observe(umount(None));
    node.run_for(S);
    node.observe(umount(None));
    look(&mut node, false);
    node.run_for(17 * S);
    let [incident] = &found(&node)[..] else { panic!("{:?}", node.kinds()) };
    assert_eq!((&incident.id, incident.summary.as_str()), (&before, SUMMARY));
}

#[test]
fn what_is_mounted_after_all_is_not_lost() {
    for is_seen_without in [false, true] {
        let mut node = node();
        node.observe(umount(None));
        if is_seen_without {
            look(&mut node, false);
        }
        node.run_for(5 * S);
        look(&mut node, true);
        node.run_for(60 * S);
        assert!(found(&node).is_empty());
        assert_eq!(listed(&node), Some(Vec::new()));
    }
}

#[test]
fn a_look_that_may_have_been_before_shows_nothing() {
    let mut node = node();
    look(&mut node, false);
    node.run_for(S);
    node.observe(umount(None));
    node.run_for(60 * S);
    assert!(found(&node).is_empty());
    let unlisted = PodRemains { listed: false, ..cam_running() };
    node.observe(pods_seen(vec![unlisted]));
    node.run_for(60 * S);
    assert!(found(&node).is_empty(), "its mounts were not listed");
    look(&mut node, false);
    node.run_for(S);
    assert_eq!(found(&node).len(), 1);
}

#[test]
fn the_volume_of_a_pod_that_ends_is_not_lost() {
    let mut ended = node();
    ended.observe(app(ContainerState::Exited));
    ended.observe(umount(None));
    look(&mut ended, false);
    ended.run_for(60 * S);
    assert_eq!((found(&ended).len(), listed(&ended)), (0, None));
    let mut ends = node();
    ends.observe(umount(None));
    look(&mut ends, false);
    ends.observe(app(ContainerState::Exited));
    ends.run_for(60 * S);
    assert!(found(&ends).is_empty());
    let mut later = node();
    later.observe(umount(None));
    look(&mut later, false);
    later.run_for(16 * S);
    assert_eq!(found(&later).len(), 1);
    later.observe(app(ContainerState::Exited));
    later.run_for(2 * S);
    expect_closed(&later, CloseReason::SubjectGone);
}

#[test]
fn it_goes_on_over_a_restart_of_the_daemon() {
    let mut node = node();
    node.observe(umount(None));
    look(&mut node, false);
    node.run_for(16 * S);
    let before = found(&node)[0].clone();
    for is_mounted in [false, true] {
        let mut next = cam_node(node.resume_state(), ContainerState::Running);
        next.observe(app(ContainerState::Running));
        next.run_for(S);
        look(&mut next, is_mounted);
        next.run_for(20 * S);
        if is_mounted {
            expect_closed(&next, CloseReason::Resolved);
        } else {
            let now = found(&next)[0].clone();
            assert_eq!((now.id, now.summary), (before.id.clone(), before.summary.clone()));
        }
    }
}

#[test]
fn only_the_mount_of_the_volume_itself_counts() {
    let volume =
        |plugin: &str| Volume { pod_uid: CAM_UID.into(), plugin: plugin.into(), name: "data".into() };
    let below = |rest: &str| format!("{KUBELET}pods/{CAM_UID}/{rest}");
    for (plugin, rest, is_its) in [
        ("kubernetes.io/rbd", "volumes/kubernetes.io~rbd/data", true),
        ("kubernetes.io/csi", "volumes/kubernetes.io~csi/data/mount", true),
        ("kubernetes.io/empty-dir", "volumes/kubernetes.io~empty-dir/data/fuse", false),
        ("kubernetes.io/rbd", "volumes/kubernetes.io~rbd/data/mount/below", false),
        ("subpath", "volume-subpaths/data/app/0", false),
        ("kubernetes.io/csi", "volumeDevices/kubernetes.io~csi/data", false),
    ] {
        assert_eq!(is_mount_point(&volume(plugin), &below(rest)), is_its, "{rest}");
    }
}
