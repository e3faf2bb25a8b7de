//! FUSE servers that end while pods have their file systems.

use kevtmon_event::Incident;
use kevtmon_observation::*;

use super::*;
use crate::diagnose::tests::harness::*;

const SERVER: u32 = 40_311;
const WHAT: &str = "volume cam-pv-50g (kubernetes.io/glusterfs) of pod cam/cam1-78b6fc6bc8-cjsw5";

fn server() -> FuseServer {
    FuseServer {
        tgid: SERVER,
        start_ns: 7 * S,
        comm: "glusterfs".into(),
        uid: Some(0),
        cgroup: Some("/system.slice/run-r77.scope".into()),
        is_certain: true,
    }
}

/// The volume of the pod, which its container has, too.
fn served() -> FuseMount {
    FuseMount {
        device: "0:77".into(),
        fstype: "fuse.glusterfs".into(),
        source: "10.47.136.60:cam".into(),
        mntns: MNTNS,
        paths: vec![volume_path()],
        servers: vec![server()],
        ..FuseMount::default()
    }
}

fn holder(mntns: NsInum, path: &str, cgroup: Option<String>) -> Holder {
    Holder { mntns: Some(mntns), cgroup, ..Holder::of_kernel(Access::Mount, path.into()) }
}

fn in_pod() -> Holder {
    holder(900, "/data", Some(format!("/kubepods/pod{CAM_UID}/{}", "c".repeat(64))))
}

fn unserved() -> FuseMount {
    FuseMount { unserved: true, mounts: vec![holder(MNTNS, &volume_path(), None), in_pod()], ..served() }
}

fn node() -> TestNode {
    let mut node = cam_runs();
    let roots = vec![KUBELET.to_owned()];
    let host = KubeletNamespace { mntns: MNTNS, roots, of_kubelet: false, pid: None };
    node.observe(Fact::Kubelet(KubeletFacts { namespaces: vec![host] }));
    node.observe(Fact::FuseMounts(vec![served()]));
    node.events.clear();
    node
}

fn killed(node: &mut TestNode, signal: u32, status: u32) {
    let sender = TaskRef { key: task_key(812), tid: 812, comm: "pkill".into(), context: None };
    let start_ns = 7 * S + 5;
    node.observe(Fact::SignalSent(Box::new(SignalSent {
        sender: Some(sender),
        by_kernel: false,
        tgid: SERVER,
        start_ns,
        signal,
    })));
    node.observe(Fact::CniExit(CniExit { tgid: SERVER, start_ns, status }));
}

fn found(node: &TestNode) -> Vec<Incident> {
    node.open().into_iter().filter(|incident| incident.kind == KIND).collect()
}

#[test]
fn who_kills_the_server_of_a_volume_is_named_until_nobody_has_the_mount() {
    let mut node = node();
    killed(&mut node, 9, 9);
    assert!(node.requests.contains(&Request::FuseMounts));
    node.observe(Fact::FuseMounts(vec![unserved()]));
    node.run_for(9 * S);
    assert!(found(&node).is_empty(), "it may be unmounted");
    node.run_for(2 * S);
    let [incident] = &found(&node)[..] else { panic!("{:?}", node.kinds()) };
    assert_eq!((incident.severity, incident.confidence), (Severity::Critical, Confidence::Certain));
    let killed = "pkill (pid 812) has killed glusterfs (pid 40311) (SIGKILL), which served";
    assert_eq!(incident.summary, format!("{killed} {WHAT}: every access fails (ENOTCONN)"));
    let [step] = &incident.advice[..] else { panic!("{:?}", incident.advice) };
    assert_eq!(step.command, "kubectl -n cam delete pod cam1-78b6fc6bc8-cjsw5");
    let event = node.last_incident().clone();
    assert_eq!(
        event.actor.as_ref().map(|actor| (actor.pid, actor.confidence)),
        Some((812, Confidence::Certain))
    );
    assert_eq!(
        event.mount.as_ref().map(|mount| (mount.unserved, mount.path.clone())),
        Some((true, volume_path()))
    );
    // The host has mounted it again; the container still has the old one.
    let (remounted, mounts) = (true, vec![in_pod()]);
    node.observe(Fact::FuseMounts(vec![served(), FuseMount { remounted, mounts, ..unserved() }]));
    node.run_for(S);
    assert!(found(&node)[0].summary.ends_with("(ENOTCONN), though the node has mounted it again"));
    node.observe(Fact::FuseMounts(vec![served()]));
    node.run_for(S);
    assert!(found(&node).is_empty());
}

#[test]
fn how_a_server_has_ended_is_told_as_far_as_it_was_seen() {
    let told = |act: &dyn Fn(&mut TestNode), mount: FuseMount| {
        let mut node = node();
        act(&mut node);
        node.observe(Fact::FuseMounts(vec![mount]));
        node.run_for(20 * S);
        let incident = found(&node).remove(0);
        let cause = incident.summary.split(" volume").next().unwrap().to_owned();
        (cause, incident.confidence)
    };
    let exit = |status| {
        move |node: &mut TestNode| {
            node.observe(Fact::CniExit(CniExit { tgid: SERVER, start_ns: 7 * S, status }))
        }
    };
    let (certain, likely) = (Confidence::Certain, Confidence::Likely);
    let cut_off = "the connection of glusterfs (pid 40311) was aborted or closed while it ran, which served";
    let ended = cut_off.replace("while it ran", "before it ended");
    let term: &dyn Fn(&mut TestNode) = &|node| killed(node, 15, 15 << 8);
    for (act, mount, expected) in [
        (
            term,
            unserved(),
            ("pkill (pid 812) has likely ended glusterfs (pid 40311) (SIGTERM), which served", likely),
        ),
        (&exit(11), unserved(), ("glusterfs (pid 40311) was killed by SIGSEGV, which served", certain)),
        (&exit(3 << 8), unserved(), ("glusterfs (pid 40311) exited with status 3, which served", certain)),
        (&|_| {}, unserved(), ("glusterfs (pid 40311) has ended, which served", likely)),
        (&|_| {}, FuseMount { servers: vec![], ..unserved() }, ("no process serves", likely)),
        (&|_| {}, FuseMount { cut_off: true, ..unserved() }, (cut_off, likely)),
        (&exit(9), FuseMount { cut_off: true, ..unserved() }, (ended.as_str(), likely)),
    ] {
        assert_eq!(told(act, mount), (expected.0.to_owned(), expected.1));
    }
    let by_kernel: &dyn Fn(&mut TestNode) = &|node| {
        let signal = SignalSent { sender: None, by_kernel: true, tgid: SERVER, start_ns: 7 * S, signal: 9 };
        node.observe(Fact::SignalSent(Box::new(signal)));
        exit(9)(node);
    };
    let unsure = FuseServer { is_certain: false, ..server() };
    let (cause, confidence) = told(by_kernel, FuseMount { servers: vec![unsure], ..unserved() });
    let expected = "the kernel has killed glusterfs (pid 40311) (SIGKILL), which likely served";
    assert_eq!((cause.as_str(), confidence), (expected, likely));
}

#[test]
fn what_no_running_pod_and_no_container_has_is_no_incident() {
    let of_driver = holder(901, &format!("/host{}", volume_path()), in_pod().cgroup);
    let of_unit = holder(902, "/data", Some("/system.slice/cam.service".into()));
    for mount in [
        FuseMount {
            mounts: vec![holder(MNTNS, "/mnt", None), of_unit],
            paths: vec!["/mnt".into()],
            ..unserved()
        },
        FuseMount { mounts: vec![of_driver], remounted: true, ..unserved() },
    ] {
        let mut node = node();
        killed(&mut node, 9, 9);
        node.observe(Fact::FuseMounts(vec![mount.clone()]));
        node.run_for(60 * S);
        assert!(found(&node).is_empty(), "{mount:?}");
    }
    let mut node = node();
    end_cam(&mut node);
    node.observe(pods_seen(vec![cam_remains(true)]));
    node.observe(Fact::FuseMounts(vec![FuseMount { mounts: vec![], ..unserved() }]));
    node.run_for(60 * S);
    assert!(found(&node).is_empty(), "the pod has ended");
}
