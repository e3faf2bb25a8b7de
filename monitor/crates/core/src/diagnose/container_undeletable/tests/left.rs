//! Mounts of it that others still have, which are told some time after it.

use kevtmon_event::Incident;

use super::*;

const EXPORTER: &str = "eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee";
const LEFT: &str =
    "container exporter still has the root file system of container web mounted at /host/merged";

/// The root directory of the container in another one; `is_certain`: as it was seen while the host had it mounted.
fn found(node: &mut TestNode, is_certain: bool) {
    let path = format!("{LAYER}/merged");
    let copy = MountCopy {
        mount: MountFacts {
            id: 50,
            parent: Some(1),
            unique: Some(50),
            mountpoint: "/host/merged".into(),
            root: "/".into(),
            fstype: "overlay".into(),
            source: "overlay".into(),
            device: "0:50".into(),
            mntns: 4_026_532_777,
        },
        propagation: Propagation::Private,
        holder: CopyHolder {
            tgid: 4711,
            start_ns: 70,
            comm: "node_exporter".into(),
            exe: Some("/bin/node_exporter".into()),
            uid: Some(0),
            cgroup: Some(format!("/docker/{EXPORTER}")),
            in_userns: false,
            init: false,
        },
        original: Some(OriginalMount {
            path,
            mntns: 2,
            seen: 5,
            is_certain,
            root_of: Some(format!("/docker/{WEB}")),
            volume_data: None,
            others: Vec::new(),
        }),
        bind: None,
        without_process: false,
    };
    found_copies(node, vec![copy]);
}

fn found_copies(node: &mut TestNode, copies: Vec<MountCopy>) {
    let kernel = KernelMounts { release: "6.18.5".into(), may_detach: None };
    node.observe(Fact::MountCopies(Box::new(MountCopies { copies, omitted: 0, is_partial: false, kernel })));
}

fn with_exporter(web: ContainerFacts) -> TestNode {
    let mut node = started(web);
    let exporter =
        ContainerFacts { name: "exporter".into(), ..crate::test_support::model::container(EXPORTER) };
    tell(&mut node, exporter);
    node
}

fn of_kind(node: &TestNode, kind: &str) -> Incident {
    node.open().into_iter().find(|open| open.kind == kind).expect("it is open")
}

#[test]
fn a_mount_that_is_told_to_be_left_after_it_is_named_and_linked() {
    let mut node = with_exporter(web(ContainerState::Dead));
    node.run_for(START_DELAY);
    assert_eq!(of_kind(&node, KIND).caused_by, [""; 0]);
    found(&mut node, true);
    node.run_for(11 * S + LOOK);
    let (leak, victim) = (of_kind(&node, "mount-leak"), of_kind(&node, KIND));
    assert_eq!(victim.caused_by, [leak.id]);
    let expected = format!("is dead: the refused call was not seen, but {LEFT}; the runtime says \"{SAID}\"");
    assert!(victim.summary.ends_with(&expected), "{}", victim.summary);
    let events = node.events.len();
    node.run_for(4 * LOOK);
    assert_eq!(node.events.len(), events, "it is told once");

    found_copies(&mut node, Vec::new());
    node.run_for(LOOK);
    let victim = of_kind(&node, KIND);
    assert!(!victim.summary.contains("exporter"), "{}", victim.summary);
    gone(&mut node);
    assert_eq!(node.last_incident().kind, Kind::IncidentClosed);
}

#[test]
fn what_is_left_is_no_surer_than_its_own_incident_and_ends_with_it() {
    let mut node = with_exporter(web(ContainerState::Dead));
    node.run_for(START_DELAY);
    found(&mut node, false);
    node.run_for(11 * S + LOOK);
    let likely = LEFT.replace("has the root", "has what is likely the root");
    assert!(of_kind(&node, KIND).summary.contains(&likely), "{}", of_kind(&node, KIND).summary);
    gone(&mut node);
    let closed = node.incidents().into_iter().rfind(|(_, incident)| incident.kind == KIND).unwrap().1;
    assert!(closed.summary.contains(&likely), "{}", closed.summary);
}

#[test]
fn what_was_refused_tells_more_and_is_linked_all_the_same() {
    let mut node = with_exporter(web(ContainerState::Exited));
    node.observe(refused(&shm()));
    tell(&mut node, web(ContainerState::Dead));
    node.run_for(10 * S);
    let before = of_kind(&node, KIND);
    found(&mut node, true);
    node.run_for(11 * S + LOOK);
    let (leak, victim) = (of_kind(&node, "mount-leak"), of_kind(&node, KIND));
    assert_eq!((victim.summary, victim.caused_by), (before.summary, vec![leak.id]));
}

#[test]
fn one_that_an_earlier_run_opened_is_looked_at_as_well() {
    let mut node = with_exporter(web(ContainerState::Dead));
    node.run_for(START_DELAY);
    let mut next = TestNode::booted(node.resume_state());
    let exporter =
        ContainerFacts { name: "exporter".into(), ..crate::test_support::model::container(EXPORTER) };
    next.start(vec![web(ContainerState::Dead), exporter]);
    found(&mut next, true);
    next.run_for(11 * S + LOOK);
    assert_eq!(of_kind(&next, KIND).caused_by, [of_kind(&next, "mount-leak").id]);
}
