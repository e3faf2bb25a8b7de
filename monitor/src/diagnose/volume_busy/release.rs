//! What to do about a busy volume, and what does not hold it.

use crate::diagnose::advice::{advice, continue_server, in_namespace, of_process, replace_in_pod, restart};
use crate::escape::name;
use crate::event::wording::{pod_label, users};
use crate::event::{
    Advice, Confidence, Event, Form, Mount, MountHolder, MountServer, Pod, ProcessLink, form,
};
use crate::node::kubelet::Way;
use crate::node::view::NodeView;
use crate::observation::{Access, BootNs, NsInum, ServerState, Verdict};

/// Maximum number of links by which it is seen whether a process still uses a mount.
const LINKS_MAX: usize = 8;

pub(super) fn advice_for(node: &NodeView<'_>, event: &Event, mount: &Mount) -> Vec<Advice> {
    let age = event.holders_age_ms.unwrap_or_default().saturating_mul(1_000_000);
    let holders = event.holders.as_deref().unwrap_or_default();
    steps(node, mount, holders, event.holders_verdict, event.at.saturating_sub(age))
}

/// `seen`: when the holders were.
pub(super) fn steps(
    node: &NodeView<'_>,
    mount: &Mount,
    holders: &[MountHolder],
    verdict: Option<Verdict>,
    seen: BootNs,
) -> Vec<Advice> {
    let way = node.kubelets.way(mount.mntns);
    let mut steps = vec![look(mount, holders, way)];
    // It answers nobody, nor whoever is to let go.
    steps.extend(continue_stopped(mount, seen));
    let deepest = mount.child_mounts.iter().max_by_key(|child| child.matches('/').count());
    if let Some(child) = deepest {
        let text = if *child == mount.path { "unmount it" } else { "unmount what is mounted below it" };
        let inside = (form::UNMOUNT_INSIDE, way, mount.mntns);
        steps.extend(umount(form::UNMOUNT, inside, text, &["umount", child]));
    }
    if let Some(holder) = users(holders).find(|holder| holder.pid != 0) {
        // Whatever it ends or restarts, it does so to somebody who may have let go by now.
        let links = links(holders, holder.pid, &mount.path);
        steps.push(of_process(release(node, holder, mount), holder.pid, seen, links));
    }
    if way == Way::Host
        && let Some(above) = mounted_from(holders)
    {
        let text = "unmount the file system of the loop device whose backing file is on it";
        steps.extend(umount(
            form::UNMOUNT,
            (form::UNMOUNT_INSIDE, way, mount.mntns),
            text,
            &["umount", above],
        ));
    }
    // Nothing was mounted there any more; who knows what is by now. And what the kernel holds would only be hidden by that.
    if !matches!(verdict, Some(Verdict::NotAMount | Verdict::Kernel)) {
        let text = "detach it even while it is in use; what holds it then goes on using it unseen";
        let inside = (form::DETACH_INSIDE, way, mount.mntns);
        steps.extend(umount(form::DETACH, inside, text, &["umount", "--lazy", &mount.path]));
    }
    steps
}

/// Lets the server of a mount go on that is stopped for certain; `seen`: when it was.
pub(super) fn continue_stopped(mount: &Mount, seen: BootNs) -> Option<Advice> {
    let is_stopped = |server: &&MountServer| {
        server.state == ServerState::Stopped && server.confidence == Confidence::Certain
    };
    mount.servers.iter().find(is_stopped).map(|server| continue_server(server, seen))
}

/// Where a loop device is mounted that holds it: as long as it is, nobody can detach the device from its file.
fn mounted_from(holders: &[MountHolder]) -> Option<&str> {
    let devices =
        holders.iter().filter(|holder| !holder.possible).filter_map(|holder| holder.loop_device.as_ref());
    devices
        .flat_map(|device| &device.mounts)
        .map(String::as_str)
        .max_by_key(|point| point.matches('/').count())
}

/// An unmount in the mount namespace of the mount: elsewhere, another one or nothing is at its path. None where no way
/// into that namespace is known.
fn umount(
    here: &'static Form,
    (inside, way, mntns): (&'static Form, Way, NsInum),
    text: &str,
    words: &[&str],
) -> Option<Advice> {
    match way {
        Way::Host => Some(advice(here, text, words)),
        Way::Through { pid, seen } => {
            let pid_text = pid.to_string();
            let command = [&["nsenter", "-t", &pid_text, "-m"], words].concat();
            Some(of_process(advice(inside, text, &command), pid, seen, in_namespace("mnt", mntns)))
        }
        Way::Unknown => None,
    }
}

/// How to see what holds it. What `kevtmon holders` looks at by itself is the mount namespace of process 1.
pub(super) fn look(mount: &Mount, holders: &[MountHolder], way: Way) -> Advice {
    let is_held = !holders.is_empty() || !mount.child_mounts.is_empty();
    if way == Way::Host && is_held {
        return advice(form::SHOW_USERS, "see who holds it now", &["kevtmon", "holders", &mount.path]);
    }
    advice(form::TELL_VOLUME, "see what was found", &["kevtmon", "why", &mount.path])
}

/// What a process has in the mount, each of which is enough. Empty where something of it is no link.
pub(in crate::diagnose) fn links(holders: &[MountHolder], pid: u32, mountpoint: &str) -> Vec<ProcessLink> {
    let link = |holder: &MountHolder| {
        let link = match holder.access {
            Access::Cwd => "cwd".to_owned(),
            Access::Root => "root".to_owned(),
            Access::Exe => "exe".to_owned(),
            Access::Fd => match holder.tid {
                Some(tid) => format!("task/{tid}/fd/{}", holder.fd?),
                None => format!("fd/{}", holder.fd?),
            },
            _ => return None,
        };
        let path = holder.path.as_deref()?;
        let held = ProcessLink { link, target: mountpoint.to_owned() };
        // In the mount namespace of another, the mount is at another place.
        Some(if held.leads_to(path) { held } else { ProcessLink { target: path.to_owned(), ..held } })
    };
    let all: Option<Vec<ProcessLink>> =
        users(holders).filter(|holder| holder.pid == pid).take(LINKS_MAX).map(link).collect();
    all.unwrap_or_default()
}

/// How to make a holder release the mount, in the least disruptive way.
fn release(node: &NodeView<'_>, holder: &MountHolder, mount: &Mount) -> Advice {
    // The pod of the volume is being deleted already.
    let deleted = mount.volume.as_ref().map(|volume| volume.pod_uid.as_str());
    let pod = Pod::confirmed(holder.pod.as_ref());
    let other_pod = pod.filter(|pod| Some(pod.uid.as_str()) != deleted);
    if let Some(Pod { namespace: Some(namespace), name: Some(pod), .. }) = other_pod {
        // Its successor would lose its network.
        if !node.cni.has_failing_of(namespace, pod) {
            let command = ["kubectl", "-n", namespace, "delete", "pod", pod];
            return advice(form::DELETE_POD, "delete the pod that holds it", &command);
        }
    }
    let in_pod = holder.container.as_ref().filter(|_| pod.is_some());
    if let Some((form, command)) = in_pod.and_then(|container| replace_in_pod(node, container)) {
        let text = match other_pod {
            Some(_) => "stop the container that holds it; the kubelet starts another one",
            None => "stop the container that holds it",
        };
        return advice(form, text, &command);
    }
    if let Some((form, command)) = holder.container.as_ref().and_then(|container| restart(node, container)) {
        return advice(form, "restart the container that holds it", &command);
    }
    let pid = holder.pid.to_string();
    if let Some(serves) = &holder.serves {
        let text = format!(
            "end the file server that holds it; pod {} {} the volume at {}",
            pod_label(&serves.pod),
            if serves.confidence == Some(Confidence::Certain) { "loses" } else { "likely loses" },
            name(&serves.mountpoint)
        );
        return advice(form::END_SERVER, &text, &["kill", &pid]);
    }
    match holder.unit.as_deref().filter(|unit| unit.ends_with(".service")) {
        Some(unit) => {
            advice(form::RESTART_UNIT, "restart the service that holds it", &["systemctl", "restart", unit])
        }
        None => {
            // The first process of a process namespace ignores every signal that it does not handle, but this one.
            let is_first =
                holder.container.as_ref().is_some_and(|container| container.pid == Some(holder.pid));
            match is_first {
                true => advice(
                    form::END_CONTAINER,
                    "end the container that holds it by its first process",
                    &["kill", "-KILL", &pid],
                ),
                false => advice(form::END_PROCESS, "end the process that holds it", &["kill", &pid]),
            }
        }
    }
}

/// What a complete scan has not found.
pub(super) fn ruled_out(event: &Event, mount: &Mount) -> Vec<String> {
    let mut healthy = Vec::new();
    let scanned = event.holders_verdict.is_some_and(|verdict| {
        !matches!(verdict, Verdict::Skipped | Verdict::Incomplete | Verdict::NotAMount)
    });
    let holders = event.holders.as_deref().unwrap_or_default();
    let held_by = |access: Access| holders.iter().any(|holder| holder.access == access);
    if scanned && mount.child_mounts.is_empty() && !held_by(Access::ChildMount) {
        healthy.push("nothing is mounted below it".to_owned());
    }
    if let [server] = &mount.servers[..]
        && !server.is_troubled()
        && server.confidence == Confidence::Certain
    {
        healthy.push(format!("the file server of that mount, {}, is not stopped", server.label()));
    }
    if event.holders_complete != Some(true) || !scanned {
        return healthy;
    }
    if !held_by(Access::Mount) {
        healthy.push("no other mount namespace has a copy of it".to_owned());
    }
    let has_none = |access| matches!(access, Access::Mount | Access::ChildMount) || access.is_kernel();
    if holders.iter().all(|holder| has_none(holder.access)) {
        healthy.push("no process was found with a file, directory or program of it open".to_owned());
    }
    healthy
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Container, NamedProcess, Volume};
    use crate::observation::{
        ContainerFacts, KubeletFacts, KubeletNamespace, LoopDevice, SourceKind, SourceStatus,
    };
    use crate::tests::model::{Model, container};
    use crate::tests::sample;

    const ID: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

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
        let container = Container {
            id: ID.into(),
            runtime,
            name: None,
            image: None,
            pid: None,
            state: None,
            exit_code: None,
            oom_killed: None,
        };
        let event = sample::busy();
        let mut holder = event.holders.as_ref().unwrap()[0].clone();
        (holder.pid, holder.container, holder.pod) = (7, Some(container), pod);
        (holder.unit, holder.serves) = (None, None);
        release(&model.view(), &holder, event.mount.as_ref().unwrap()).command
    }

    fn unnamed(uid: &str) -> Option<Pod> {
        Some(Pod {
            namespace: None,
            name: None,
            uid: uid.into(),
            claimed: false,
            sandbox_id: None,
            ip: Vec::new(),
            labels: None,
        })
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
            let container = Container {
                id: ID.into(),
                runtime: Some(runtime.into()),
                name: None,
                image: None,
                pid: None,
                state: None,
                exit_code: None,
                oom_killed: None,
            };
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
            model
                .kubelets
                .replace(9, KubeletFacts { namespaces: vec![namespace(1, None), namespace(5, pid)] });
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
        device.loop_device = Some(LoopDevice { name: "/dev/loop3".into(), mounts, devices: Vec::new() });
        (event.holders, event.holders_verdict) = (Some(vec![device]), Some(Verdict::Kernel));
        let look = format!("kevtmon holders {}", mount.path);
        assert_eq!(commands(&event), [look, "umount /m/loop".to_owned()]);
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
}
