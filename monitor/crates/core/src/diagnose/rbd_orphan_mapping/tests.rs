//! The image of a pod that has left the node.

use kevtmon_event::{CloseReason, Confidence, Incident, Kind, Severity};
use kevtmon_observation::*;

use crate::Resume;
use crate::diagnose::tests::harness::*;

const EXPORTER: &str = "eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee";
const EXPORTER_UID: &str = "7b7a2f50-9d1c-4a3e-8f6d-2c5b1e0a9d84";
const INDEX: &str = "0123456789ab0123456789ab0123456789ab0123456789ab0123456789ab0123";
/// Mount namespaces of the host and of the exporter.
const NODE: NsInum = 4_026_531_840;
const EXPORTERS: NsInum = 4_026_532_777;
const STAGED: &str = "/var/lib/kubelet/plugins/kubernetes.io/rbd/mounts/kube-image-index-api-image";

fn container(id: &str, uid: &str, namespace: &str, name: &str) -> ContainerFacts {
    let pod = PodIdentity {
        namespace: namespace.into(),
        name: name.into(),
        uid: uid.into(),
        ..crate::test_support::model::pod()
    };
    ContainerFacts {
        name: "app".into(),
        state: ContainerState::Running,
        pod: Some(pod),
        ..crate::test_support::model::container(id)
    }
}

fn booted(resume: Resume) -> TestNode {
    let mut node = TestNode::booted(resume);
    let roots = vec!["/var/lib/kubelet".to_owned()];
    let host = KubeletNamespace { mntns: NODE, roots, of_kubelet: false, pid: None };
    node.observe(Fact::Kubelet(KubeletFacts { namespaces: vec![host] }));
    node
}

fn started(resume: Resume) -> TestNode {
    let mut node = booted(resume);
    let exporter = container(EXPORTER, EXPORTER_UID, "monitoring", "node-exporter-x7");
    node.start(vec![exporter, container(INDEX, CAM_UID, "search", "index-api-0")]);
    node.events.clear();
    node
}

/// A ready node that has mapped the image.
fn node() -> TestNode {
    let mut node = started(Resume::default());
    node.observe(mapped(true));
    node
}

fn mapped(is_mapped: bool) -> Fact {
    let image = RbdImage {
        number: 0.into(),
        device: "252:0".into(),
        pool: "kube".into(),
        image: "index-api-image".into(),
        client_addr: Some("10.47.136.60:0/1504107565".into()),
        ..RbdImage::default()
    };
    let images = if is_mapped { vec![image] } else { Vec::new() };
    Fact::RbdImages(RbdImages { images, ..RbdImages::default() })
}

fn used_by(holders: &[Holder]) -> RbdUses {
    let used = RbdUse { number: 0.into(), holders: holders.to_vec(), ..RbdUse::default() };
    RbdUses { uses: vec![used], host: Some(NODE), unread: Default::default(), complete: true }
}

fn uses(holders: &[Holder]) -> Fact {
    Fact::RbdUses(used_by(holders))
}

fn on_host(path: &str) -> Holder {
    let holder = Holder::of_kernel(Access::Mount, path.into());
    Holder { tgid: 1, comm: "systemd".into(), mntns: Some(NODE), ..holder }
}

fn of_pod() -> Holder {
    on_host(&format!("/var/lib/kubelet/pods/{CAM_UID}/volumes/kubernetes.io~rbd/index"))
}

fn in_exporter() -> Holder {
    Holder {
        tgid: 2207,
        comm: "node_exporter".into(),
        cgroup: Some(format!("/kubepods/besteffort/pod{EXPORTER_UID}/{EXPORTER}")),
        mntns: Some(EXPORTERS),
        uid: Some(0),
        ..Holder::of_kernel(Access::Mount, "/rootfs/index".into())
    }
}

fn open_in(tgid: u32, comm: &str, cgroup: &str) -> Holder {
    Holder {
        tgid,
        comm: comm.into(),
        cgroup: Some(cgroup.into()),
        mntns: Some(NODE),
        uid: Some(0),
        fd: Some(3),
        ..Holder::of_kernel(Access::Fd, "/dev/rbd0".into())
    }
}

fn commands(incident: &Incident) -> Vec<&str> {
    incident.advice.iter().map(|step| step.command.as_str()).collect()
}

fn closed(node: &TestNode) -> Option<CloseReason> {
    let (kind, incident) = *node.incidents().last().unwrap();
    assert_eq!(kind, Kind::IncidentClosed);
    incident.close_reason
}

#[test]
fn an_image_that_no_pod_uses_any_more_is_an_incident_until_it_is_unmapped() {
    let mut node = node();
    node.observe(uses(&[of_pod(), on_host(STAGED)]));
    node.run_for(400 * S);
    node.observe(uses(&[on_host(STAGED)]));
    node.run_for(299 * S);
    assert_eq!(node.kinds(), [""; 0], "the kubelet may be about to unmap it");
    node.run_for(2 * S);
    let incident = &node.open()[0];
    assert_eq!((incident.severity, incident.confidence), (Severity::Warning, Confidence::Certain));
    let summary = format!(
        "RBD image kube/index-api-image is still mapped as /dev/rbd0 (client 10.47.136.60:0/1504107565), though no pod \
         has used it for 5 min; the host still has it mounted at {STAGED}; pod search/index-api-0 used it last"
    );
    assert_eq!(incident.summary, summary);
    let umount = format!("umount {STAGED}");
    assert_eq!(
        commands(incident),
        ["kevtmon why /dev/rbd0", &umount, "rbd unmap /dev/rbd0", "rbd lock list kube/index-api-image"]
    );
    let event = node.last_incident();
    let rbd = event.rbd.as_ref().unwrap();
    assert_eq!((rbd.device.as_deref(), &rbd.mounted_at[..]), (Some("/dev/rbd0"), &[STAGED.to_owned()][..]));
    let pod = event.target.as_ref().unwrap().pod.as_ref().unwrap();
    assert_eq!(pod.uid, CAM_UID);
    node.observe(mapped(false));
    assert_eq!(closed(&node), Some(CloseReason::Resolved));
    assert_eq!(node.last_incident().message, format!("resolved: {summary}"));
}

#[test]
fn who_has_it_in_another_mount_namespace_is_named_with_the_command_that_frees_it() {
    let mut node = node();
    node.observe(uses(&[in_exporter()]));
    node.run_for(301 * S);
    let incident = &node.open()[0];
    assert_eq!(
        incident.summary,
        "RBD image kube/index-api-image is still mapped as /dev/rbd0 (client 10.47.136.60:0/1504107565), though no pod \
         has used it for 5 min; it is mounted in the mount namespace of node_exporter (pid 2207) of container app"
    );
    let inside = "nsenter -t 2207 -m umount /rootfs/index";
    assert_eq!(
        commands(incident),
        ["kevtmon why /dev/rbd0", inside, "rbd unmap /dev/rbd0", "rbd lock list kube/index-api-image"]
    );
    let holders = node.last_incident().holders.as_ref().unwrap();
    let pod = holders[0].pod.as_ref().unwrap();
    assert_eq!((holders.len(), holders[0].pid, pod.name.as_deref()), (1, 2207, Some("node-exporter-x7")));
    // What holds it changes.
    node.observe(uses(&[]));
    let incident = &node.open()[0];
    assert!(incident.summary.ends_with("5 min; no holder found"), "{}", incident.summary);
    assert_eq!(node.kinds(), ["incident.opened", "incident.updated"]);
}

/// An image that `rbd-nbd` has mapped.
fn by_nbd() -> RbdImage {
    RbdImage {
        number: RbdNumber::Nbd(0),
        device: "43:0".into(),
        pool: "kube".into(),
        image: "index-api-image".into(),
        ..RbdImage::default()
    }
}

#[test]
fn what_rbd_nbd_has_mapped_is_likely_one_and_freed_by_that_program() {
    let mut node = started(Resume::default());
    node.observe(Fact::RbdImages(RbdImages { images: vec![by_nbd()], ..RbdImages::default() }));
    let uses = |holders: &[Holder]| {
        let mut found = used_by(holders);
        found.uses[0].number = RbdNumber::Nbd(0);
        Fact::RbdUses(found)
    };
    node.observe(uses(&[of_pod(), on_host(STAGED)]));
    node.run_for(900 * S);
    assert_eq!(node.kinds(), [""; 0]);
    node.observe(uses(&[on_host(STAGED)]));
    node.run_for(301 * S);
    let incident = &node.open()[0];
    assert_eq!(incident.confidence, Confidence::Likely, "its name rests on arguments");
    assert!(
        incident.summary.starts_with(
            "RBD image kube/index-api-image is still mapped as /dev/nbd0, though no pod has used it for 5 min; "
        ),
        "{}",
        incident.summary
    );
    let umount = format!("umount {STAGED}");
    assert_eq!(
        commands(incident),
        ["kevtmon why /dev/nbd0", &umount, "rbd-nbd unmap /dev/nbd0", "rbd lock list kube/index-api-image"]
    );
    node.observe(mapped(true));
    assert_eq!(closed(&node), Some(CloseReason::Resolved), "another device has that number");
}

#[test]
fn an_image_that_a_pod_uses_again_is_none() {
    let mut node = node();
    node.observe(uses(&[on_host(STAGED)]));
    node.run_for(301 * S);
    assert_eq!(node.open().len(), 1);
    node.observe(uses(&[on_host(STAGED), of_pod()]));
    assert_eq!(closed(&node), Some(CloseReason::Resolved));
    // From then on, time begins again.
    node.observe(uses(&[on_host(STAGED)]));
    node.run_for(299 * S);
    assert_eq!(node.open(), []);
}

#[test]
fn an_image_that_a_pod_uses_is_none_however_many_others_have_it() {
    let mut node = node();
    node.observe(uses(&[of_pod(), on_host(STAGED), in_exporter()]));
    node.run_for(900 * S);
    assert_eq!(node.kinds(), [""; 0]);
    // A container of the same pod still has it, though the kubelet has unmounted it for that pod.
    let cgroup = format!("/kubepods/burstable/pod{CAM_UID}/{INDEX}");
    node.observe(uses(&[Holder { cgroup: Some(cgroup), ..in_exporter() }]));
    node.run_for(900 * S);
    assert_eq!(node.kinds(), [""; 0]);
}

#[test]
fn a_pod_that_has_the_device_open_uses_it_and_a_process_of_the_host_does_not() {
    let mut node = node();
    let cgroup = format!("/kubepods/burstable/pod{CAM_UID}/{INDEX}");
    node.observe(uses(&[open_in(50, "mysqld", &cgroup)]));
    node.run_for(900 * S);
    assert_eq!(node.kinds(), [""; 0]);
    node.observe(uses(&[open_in(51, "dd", "/user.slice")]));
    node.run_for(301 * S);
    let incident = &node.open()[0];
    assert!(
        incident.summary.ends_with("; dd (pid 51) still has it open; pod search/index-api-0 used it last"),
        "{}",
        incident.summary
    );
}

#[test]
fn what_the_node_uses_for_itself_is_none() {
    let mut node = node();
    let none = used_by(&[]);
    let with = |used: RbdUse| Fact::RbdUses(RbdUses { uses: vec![used], ..none.clone() });
    for fact in [
        uses(&[on_host("/srv/registry")]),
        with(RbdUse { swap: true, ..none.uses[0].clone() }),
        with(RbdUse { devices: vec!["dm-0".into()], ..none.uses[0].clone() }),
    ] {
        node.observe(fact);
        node.run_for(900 * S);
        assert_eq!(node.kinds(), [""; 0]);
    }
}

#[test]
fn where_not_all_could_be_looked_at_nothing_is_said() {
    let mut node = node();
    let none = used_by(&[]);
    let omitted = RbdUse { omitted: 1, ..none.uses[0].clone() };
    let unlocated = RbdUse { unlocated: true, ..none.uses[0].clone() };
    for found in [
        RbdUses { host: None, ..none.clone() },
        RbdUses { unread: [NODE].into(), ..none.clone() },
        RbdUses { uses: vec![omitted], ..none.clone() },
        RbdUses { uses: vec![unlocated], ..none.clone() },
    ] {
        node.observe(Fact::RbdUses(found));
        node.run_for(900 * S);
        assert_eq!(node.kinds(), [""; 0]);
    }
    // That a process could not be read only makes it less sure.
    node.observe(Fact::RbdUses(RbdUses { complete: false, ..none }));
    node.run_for(301 * S);
    let incident = &node.open()[0];
    assert_eq!(incident.confidence, Confidence::Likely);
    assert!(incident.summary.ends_with("; no holder found; scan incomplete"), "{}", incident.summary);
    // An unread look neither closes it nor says anything else.
    node.observe(Fact::RbdUses(RbdUses { host: None, ..used_by(&[]) }));
    node.run_for(900 * S);
    assert_eq!(node.kinds(), ["incident.opened"]);
}

#[test]
fn without_a_runtime_nobody_knows_whose_a_use_is() {
    let mut node = node();
    let down = |up| {
        Fact::Source(SourceStatus {
            source: "docker".into(),
            kind: SourceKind::Runtime,
            up,
            attach_mode: None,
            reason: (!up).then(|| "gone".to_owned()),
            lacks: None,
            absent: false,
            vacant: false,
        })
    };
    node.observe(down(false));
    node.events.clear();
    node.observe(uses(&[in_exporter()]));
    node.run_for(900 * S);
    assert_eq!(node.kinds(), [""; 0]);
    node.observe(down(true));
    node.observe(uses(&[in_exporter()]));
    node.run_for(301 * S);
    assert_eq!(node.kinds(), ["incident.opened"]);
}

#[test]
fn where_there_is_no_runtime_at_all_it_is_likely_one_and_a_pod_s_directory_is_a_use() {
    let mut node = booted(Resume::default());
    node.start_without_runtime();
    node.observe(mapped(true));
    node.observe(uses(&[of_pod()]));
    node.run_for(900 * S);
    assert!(node.open().is_empty());
    node.observe(uses(&[]));
    node.run_for(301 * S);
    let incident = &node.open()[0];
    assert_eq!(incident.confidence, Confidence::Likely);
    assert!(incident.summary.contains("; no holder found"), "{}", incident.summary);
    assert!(!incident.summary.contains("scan incomplete"), "{}", incident.summary);
}

#[test]
fn a_daemon_that_has_just_started_waits_as_long_and_says_that_it_found_it() {
    let mut node = booted(Resume::default());
    node.observe(mapped(true));
    node.observe(uses(&[]));
    node.run_for(900 * S);
    assert_eq!(node.kinds(), [""; 0], "whose uses they are is not known yet");
    node.start(Vec::new());
    node.observe(uses(&[]));
    node.run_for(301 * S);
    assert_eq!(node.kinds(), ["incident.opened"]);
}

#[test]
fn an_incident_of_the_run_before_stays_open_until_its_image_is_unmapped() {
    let mut before = node();
    before.observe(uses(&[of_pod()]));
    before.observe(uses(&[on_host(STAGED)]));
    before.run_for(301 * S);
    let resume = before.resume_state();
    let mut node = started(resume.clone());
    node.observe(mapped(true));
    node.observe(uses(&[on_host(STAGED)]));
    node.run_for(301 * S);
    assert_eq!(node.open().len(), 1);
    let summary = &node.open()[0].summary;
    assert!(summary.ends_with("; pod search/index-api-0 used it last"), "{summary}");
    node.observe(mapped(false));
    assert_eq!(closed(&node), Some(CloseReason::Resolved));

    let mut other = started(resume);
    other.observe(mapped(false));
    assert_eq!(closed(&other), Some(CloseReason::Resolved));
}
