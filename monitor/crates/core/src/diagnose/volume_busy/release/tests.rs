//! What is to be done about whom.

use kevtmon_event::{Container, NamedProcess, Volume, WallClock};
use kevtmon_observation::{
    ContainerFacts, KubeletFacts, KubeletNamespace, LoopDevice, MountedElsewhere, SourceKind, SourceStatus,
};
use kevtmon_testing::sample;

use super::*;
use crate::diagnose::Incidents;
use crate::node::view::NodeView;
use crate::test_support::model::{Model, container};

const ID: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

fn in_context<T>(node: &NodeView<'_>, work: impl FnOnce(&Context<'_>) -> T) -> T {
    let incidents = Incidents::default();
    work(&Context { now: 9, clock: WallClock::default(), node, incidents: &incidents, ready: Some(0) })
}

fn advice_for(node: &NodeView<'_>, event: &Event, mount: &Mount) -> Vec<Advice> {
    in_context(node, |context| super::advice_for(context, event, mount))
}

fn release(node: &NodeView<'_>, holder: &MountHolder, mount: &Mount) -> Option<Advice> {
    in_context(node, |context| super::release(context, holder, mount))
}

/// What to do about a holder in this container, which this source reports.
fn command(runtime: Option<&str>, source: &str, pod: Option<Pod>) -> String {
    let mut model = Model::default();
    if !source.is_empty() {
        let facts = ContainerFacts {
            runtime: runtime.unwrap_or_default().into(),
            source: source.into(),
            ..container(ID)
        };
        model.containers.put(1, facts);
    }
    let runtime = runtime.map(str::to_owned);
    let container = Container { id: ID.into(), runtime, ..Container::default() };
    let event = sample::busy();
    let mut holder = event.holders.as_ref().unwrap()[0].clone();
    (holder.pid, holder.container, holder.pod) = (7, Some(container), pod);
    (holder.unit, holder.serves) = (None, None);
    release(&model.view(), &holder, event.mount.as_ref().unwrap())
        .map_or_else(String::new, |step| step.command)
}

fn unnamed(uid: &str) -> Option<Pod> {
    Some(Pod { uid: uid.into(), ..Pod::default() })
}

#[test]
fn a_container_is_made_to_let_go_by_the_tool_and_the_socket_of_its_own_runtime() {
    for (runtime, source, pod, expected) in [
        (Some("docker"), "", None, format!("docker restart {ID}")),
        (Some("docker"), "docker:/run/docker.sock", unnamed("u"), format!("docker restart {ID}")),
        (Some("docker"), "docker:/x y", None, format!("docker --host 'unix:///x y' restart {ID}")),
        (Some("podman"), "docker:/run/podman/podman.sock", None, format!("podman restart {ID}")),
        (Some("podman"), "docker:/p", None, format!("podman --url unix:///p restart {ID}")),
        (Some("containerd"), "", unnamed("u"), format!("crictl stop {ID}")),
        (Some("crio"), "", unnamed("u"), format!("crictl stop {ID}")),
        (Some("crio"), "cri:/run/crio/crio.sock", unnamed("u"), format!("crictl stop {ID}")),
        (
            Some("containerd"),
            "cri:/c",
            unnamed("u"),
            format!("crictl --runtime-endpoint unix:///c stop {ID}"),
        ),
        (Some("docker"), "cri:/run/cri-dockerd.sock", unnamed("u"), format!("crictl stop {ID}")),
        (Some("docker"), "cri:/run/cri-dockerd.sock", None, "kill 7".into()),
        // No tool is known to find it.
        (Some("containerd"), "", None, "kill 7".into()),
        (None, "", unnamed("u"), "kill 7".into()),
    ] {
        assert_eq!(command(runtime, source, pod), expected, "{runtime:?} {source}");
    }
}

#[test]
fn a_daemon_that_does_not_answer_is_not_asked_to_restart_anything() {
    let source = "docker:/run/docker.sock";
    let restart = |runtime: &str, up: bool| {
        let mut model = Model::default();
        model.containers.put(1, ContainerFacts { source: source.into(), ..container(ID) });
        let status = SourceStatus { up, ..SourceStatus::up(SourceKind::Runtime, source) };
        model.statuses.insert(source.into(), status);
        let container = Container { id: ID.into(), runtime: Some(runtime.into()), ..Container::default() };
        restart(&model.view(), &container).is_some()
    };
    assert!(restart("docker", true));
    assert!(!restart("docker", false));
    assert!(!restart("podman", false), "its service at that socket");
}

#[test]
fn a_pod_that_is_being_deleted_is_not_to_be_deleted() {
    let event = sample::busy();
    let own = event.mount.unwrap().volume.unwrap().pod_uid;
    let named = |uid: &str| {
        Some(Pod { namespace: Some("a".into()), name: Some("b".into()), ..unnamed(uid).unwrap() })
    };
    assert_eq!(command(Some("docker"), "", named("another")), "kubectl -n a delete pod b");
    assert_eq!(command(Some("docker"), "", named(&own)), format!("docker restart {ID}"));
}

#[test]
fn who_holds_it_is_looked_for_again_where_anybody_was_found() {
    let event = sample::busy();
    let (mount, holders) = (event.mount.unwrap(), event.holders.unwrap());
    let mount = Mount { path: "/m/a b".into(), child_mounts: Vec::new(), ..*mount };
    let below = Mount { child_mounts: vec!["/m/a b/c".into()], ..mount.clone() };
    let copy = MountHolder { access: Access::Mount, ..holders[0].clone() };
    for (mount, holders, way, command) in [
        (&mount, &holders[..], Way::Host, "kevtmon holders '/m/a b'"),
        (&mount, &[copy], Way::Host, "kevtmon holders '/m/a b'"),
        (&below, &[], Way::Host, "kevtmon holders '/m/a b'"),
        (&mount, &[], Way::Host, "kevtmon why '/m/a b'"),
        (&mount, &holders[..], Way::Unknown, "kevtmon why '/m/a b'"),
    ] {
        assert_eq!(look(mount, holders, way).command, command);
    }
}

#[test]
fn the_deepest_mount_below_is_unmounted_first() {
    let event = sample::busy();
    let mut mount = event.mount.clone().unwrap();
    mount.volume = None::<Volume>;
    mount.child_mounts = vec!["/m/a".into(), "/m/a/b/c".into(), "/m/a/b".into()];
    let steps = advice_for(&Model::default().view(), &event, &mount);
    assert!(steps.iter().any(|step| step.command == "umount /m/a/b/c"), "{steps:?}");
}

#[test]
fn a_mount_in_the_namespace_of_a_kubelet_is_unmounted_there() {
    let event = sample::busy();
    let mut mount = event.mount.clone().unwrap();
    (mount.path, mount.mntns, mount.fstype) = ("/m".into(), 5, None);
    mount.child_mounts = vec!["/m/a".into()];
    let commands = |pid: Option<u32>| {
        let namespace = |mntns, pid: Option<u32>| KubeletNamespace {
            mntns,
            roots: vec!["/".into()],
            of_kubelet: mntns == 5,
            pid,
        };
        let mut model = Model::default();
        model.kubelets.replace(9, KubeletFacts { namespaces: vec![namespace(1, None), namespace(5, pid)] });
        let steps = advice_for(&model.view(), &event, &mount);
        let own = steps.into_iter().filter(|step| step.command.contains("/m"));
        own.map(|step| (step.command, step.process)).collect::<Vec<_>>()
    };
    let kubelet = Some(NamedProcess { pid: 7, seen_ns: "9".into(), links: in_namespace("mnt", 5) });
    let look = ("kevtmon why /m".to_owned(), None);
    let expected = [
        look.clone(),
        ("nsenter -t 7 -m umount /m/a".into(), kubelet.clone()),
        ("nsenter -t 7 -m umount --lazy /m".into(), kubelet),
    ];
    assert_eq!(commands(Some(7)), expected);
    assert_eq!(commands(None), [look], "something else is there in the host's");
}

#[test]
fn what_the_kernel_holds_is_not_to_be_detached_and_a_loop_device_is_unmounted_first() {
    let mut event = sample::busy();
    let mut mount = event.mount.clone().unwrap();
    (mount.mntns, mount.child_mounts) = (5, Vec::new());
    let mut model = Model::default();
    let namespace = KubeletNamespace { mntns: 5, roots: vec!["/".into()], of_kubelet: false, pid: None };
    model.kubelets.replace(9, KubeletFacts { namespaces: vec![namespace] });
    let commands = |event: &Event| {
        let steps = advice_for(&model.view(), event, &mount);
        steps.into_iter().map(|step| step.command).collect::<Vec<_>>()
    };
    let mut device = event.holders.as_ref().unwrap()[0].clone();
    (device.pid, device.access) = (0, Access::Loop);
    let mounts = vec!["/m/loop".into()];
    device.loop_device = Some(LoopDevice { mounts, ..sample::loop_device("/dev/loop3") });
    (event.holders, event.holders_verdict) = (Some(vec![device]), Some(Verdict::Kernel));
    let look = format!("kevtmon holders {}", mount.path);
    assert_eq!(commands(&event), [look.clone(), "umount /m/loop".to_owned()]);
    let there = MountedElsewhere { path: "/m/loop".into(), mntns: 77, pid: 9, comm: "sleep".into() };
    let device = LoopDevice { elsewhere: vec![there], ..sample::loop_device("/dev/loop3") };
    event.holders.as_mut().unwrap()[0].loop_device = Some(device);
    assert_eq!(
        commands(&event),
        [look, "nsenter -t 9 -m umount /m/loop".to_owned()],
        "not what is there here"
    );
    let step = &advice_for(&model.view(), &event, &mount)[1];
    assert!(
        format!("{step:?}").contains("mnt:[77]"),
        "only while the process is in that namespace: {step:?}"
    );
    event.holders = Some(Vec::new());
    assert_eq!(commands(&event), [format!("kevtmon why {}", mount.path)]);
}

#[test]
fn nobody_is_to_be_ended_for_a_copy() {
    let mut event = sample::busy();
    event.holders.as_mut().unwrap().drain(..2);
    let steps = advice_for(&Model::default().view(), &event, event.mount.as_ref().unwrap());
    let commands: Vec<&str> = steps.iter().map(|step| step.command.as_str()).collect();
    assert!(
        commands[0].starts_with("kevtmon holders") && commands[1].starts_with("umount --lazy"),
        "{commands:?}"
    );
    assert_eq!(commands.len(), 2, "{commands:?}");
}

#[test]
fn only_a_complete_scan_rules_holders_out() {
    let mut event = sample::busy();
    let mount = event.mount.clone().unwrap();
    event.holders_complete = Some(false);
    assert_eq!(ruled_out(&event, &mount), ["nothing is mounted below it"]);
    event.holders_complete = Some(true);
    assert_eq!(ruled_out(&event, &mount), ["nothing is mounted below it"], "there is a copy");
    event.holders.as_mut().unwrap().truncate(2);
    assert_eq!(ruled_out(&event, &mount)[1], "no other mount namespace has a copy of it");
    event.holders_verdict = Some(Verdict::Skipped);
    assert_eq!(ruled_out(&event, &mount), [""; 0]);
}

/// Two processes in one container each, and one of them in two ways.
fn in_containers(ids: &[&str]) -> Vec<MountHolder> {
    let one = sample::busy().holders.unwrap()[0].clone();
    let holder = |(pid, id): (u32, &&str)| MountHolder {
        pid,
        pod: None,
        container: Some(Container { runtime: Some("docker".into()), ..Container::of_id((*id).to_owned()) }),
        ..one.clone()
    };
    let mut holders: Vec<MountHolder> = (7..).zip(ids).map(holder).collect();
    holders.push(MountHolder { access: Access::Cwd, ..holders[0].clone() });
    holders
}

#[test]
fn all_that_hold_it_are_made_to_let_go_each_once() {
    let mut event = sample::busy();
    let mut mount = event.mount.clone().unwrap();
    (mount.volume, mount.child_mounts) = (None, Vec::new());
    let mut released = |ids: &[&str]| {
        event.holders = Some(in_containers(ids));
        let steps = advice_for(&Model::default().view(), &event, &mount);
        let steps = steps.into_iter().filter(|step| step.form == "restart-by-docker");
        steps.map(|step| (step.command, step.text, step.process.unwrap().pid)).collect::<Vec<_>>()
    };
    let text = "restart the container that holds it";
    assert_eq!(released(&["a"]), [("docker restart a".into(), text.into(), 7)]);
    assert_eq!(released(&["a", "a"]).len(), 1, "one command for both");
    assert_eq!(
        released(&["a", "b"]),
        [
            ("docker restart a".into(), format!("{text} (1 of 2 found: each of them must release it)"), 7),
            ("docker restart b".into(), format!("{text} (2 of 2 found: each of them must release it)"), 8),
        ]
    );
    let ids: Vec<String> = (0..RELEASES_MAX + 2).map(|number| number.to_string()).collect();
    let many = released(&ids.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(many.len(), RELEASES_MAX);
    assert!(many[0].1.ends_with("(1 of 10 found: each of them must release it)"), "{}", many[0].1);
}

#[test]
fn the_first_process_of_a_pid_namespace_is_ended_by_the_one_signal_that_it_cannot_ignore() {
    let one = sample::busy().holders.unwrap()[0].clone();
    let end = |init, pid, container: Option<u32>| {
        let container = container.map(|pid| Container { pid: Some(pid), ..Container::of_id(ID.to_owned()) });
        let holder = MountHolder { pid, init, container, pod: None, serves: None, unit: None, ..one.clone() };
        let event = sample::busy();
        let step = release(&Model::default().view(), &holder, event.mount.as_ref().unwrap());
        step.map(|step| (step.form, step.command))
    };
    let (kill, term) = (("end-container", "kill -KILL 7"), ("end-process", "kill 7"));
    let own = |(form, command): (&str, &str)| Some((form.to_owned(), command.to_owned()));
    assert_eq!(end(true, 7, None), own(kill), "in no container");
    assert_eq!(end(true, 7, Some(9)), own(kill), "of a container whose runtime is not known");
    assert_eq!(end(false, 7, Some(7)), own(kill), "as its runtime tells");
    assert_eq!(end(false, 7, Some(9)), own(term));
    assert_eq!(end(false, 7, None), own(term));
    assert_eq!(end(false, 1, None), None, "nobody ends process 1 of the node");
}

#[test]
fn a_service_is_restarted_only_where_the_holder_is_all_that_it_is() {
    let one = sample::busy().holders.unwrap()[0].clone();
    let restart = |unit: &str, container: Option<Container>| {
        let unit = Some(unit.to_owned());
        let holder = MountHolder { pid: 7, unit, container, pod: None, serves: None, ..one.clone() };
        release(&Model::default().view(), &holder, sample::busy().mount.as_ref().unwrap()).unwrap().command
    };
    assert_eq!(restart("ntpd.service", None), "systemctl restart ntpd.service");
    // That of a user's manager has all services and containers of the user.
    assert_eq!(restart("user@1000.service", None), "kill 7");
    // A runtime's has all its containers.
    assert_eq!(restart("containerd.service", Some(Container::of_id(ID.to_owned()))), "kill 7");
}
