//! Volumes that are mounted over themselves.

use kevtmon_event::{CloseReason, Incident};
use kevtmon_observation::*;

use super::*;
use crate::diagnose::tests::harness::*;

const PATH: &str =
    "/var/lib/kubelet/pods/5c948341-c030-4996-b888-f032577d97b0/volumes/kubernetes.io~glusterfs/cam-pv-50g";

/// A look that finds the volume so often.
fn look(node: &mut TestNode, layers: u32) {
    let mount = holders(0, PATH).mount.unwrap();
    let stacked = if layers < STACKED_MIN { Vec::new() } else { vec![MountStack { mount, layers }] };
    node.observe(pods_seen(vec![PodRemains { cgroup: PodCgroup::Populated, stacked, ..cam_remains(false) }]));
}

fn open(node: &TestNode) -> Option<Incident> {
    node.open().into_iter().find(|incident| incident.kind == KIND)
}

#[test]
fn a_volume_that_is_mounted_over_itself_is_told_with_how_fast_until_one_mount_is_left() {
    let mut node = cam_runs();
    look(&mut node, 3);
    node.run_for(5 * S);
    assert!(open(&node).is_none(), "it may be over in a moment");
    node.run_for(5 * S);
    let incident = open(&node).unwrap();
    assert_eq!((incident.severity, incident.confidence), (Severity::Info, Confidence::Likely));
    let what = "volume cam-pv-50g (kubernetes.io/glusterfs) of pod cam/cam1-78b6fc6bc8-cjsw5 is mounted";
    assert_eq!(incident.summary, format!("{what} 3 times over itself"));
    let commands: Vec<&str> = incident.advice.iter().map(|step| step.command.as_str()).collect();
    assert_eq!(commands, [format!("kevtmon why {PATH}")]);
    node.run_for(30 * S);
    look(&mut node, 3);
    assert_eq!(open(&node).unwrap().count, 1, "no news");
    look(&mut node, 7);
    let grown = format!("{what} 7 times over itself, 4 of these times within about 40 s");
    assert_eq!(open(&node).unwrap().summary, grown);
    assert_eq!(open(&node).unwrap().severity, Severity::Warning);
    node.run_for(60 * S);
    assert_eq!(open(&node).unwrap().summary, grown, "that it stays so is no news");
    look(&mut node, 4);
    assert_eq!(open(&node).unwrap().summary, format!("{what} 4 times over itself"));
    look(&mut node, 1);
    assert!(open(&node).is_none());
    let incidents = node.incidents();
    let last = incidents.iter().rfind(|(_, incident)| incident.kind == KIND).unwrap().1;
    assert_eq!(last.close_reason, Some(CloseReason::Resolved));
}

#[test]
fn nothing_is_concluded_while_the_pods_cannot_be_looked_at() {
    let mut node = cam_runs();
    look(&mut node, 3);
    node.run_for(10 * S);
    node.observe(Fact::PodRemainsUnread);
    node.run_for(60 * S);
    assert!(open(&node).is_some());
}
