//! Pods of a runtime behind the CRI: containerd with CNI plugins, driven as a kubelet does it.

use std::collections::BTreeSet;
use std::process::Command;

use kevtmon_tests::advice::{is_understood, opened};
use kevtmon_tests::call_listener::CallListener;
use kevtmon_tests::containerd::{Containerd, CriPod, FIRST_UID, NAMESPACE, Plugin};
use kevtmon_tests::daemon::{Daemon, kubelet_roots, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::mount::{Mount, Scratch};
use kevtmon_tests::netns::NetnsPath;
use kevtmon_tests::network::{NeighbourState, Network};
use kevtmon_tests::pod::{GATEWAY, GATEWAY_LLADDR, Pod};
use kevtmon_tests::process::{Running, comm, run};

/// What was reported of the life of a container, in order.
fn life(events: &[Event], id: &str) -> Vec<String> {
    let of_it = events.iter().filter(|event| event.has("/target/container/id"));
    let of_it = of_it.filter(|event| event.text("/target/container/id") == id);
    of_it.map(|event| event.kind().to_owned()).filter(|kind| kind.starts_with("container.")).collect()
}

fn expect_pod(event: &Event, pod: &CriPod<'_>) {
    event.expect("/target/pod/namespace", NAMESPACE);
    event.expect("/target/pod/name", pod.name());
    event.expect("/target/pod/uid", pod.uid());
    event.expect("/target/pod/sandbox_id", pod.sandbox());
    event.expect_none("/target/pod/claimed");
    event.expect("/target/container/runtime", "containerd");
}

fn wait_for_life(daemon: &mut Daemon, kind: &str, id: &str) -> Event {
    daemon.wait_for(kind, |event| event.kind() == kind && event.text("/target/container/id") == id)
}

/// The end of the call of a plugin for a sandbox by this containerd.
fn wait_for_call(
    daemon: &mut Daemon,
    command: &str,
    plugin: &str,
    containerd: &Containerd,
    pod: (&str, &str),
) -> Event {
    let (name, sandbox) = pod;
    let what = format!("{command} of {plugin}");
    let call = daemon.wait_for(&what, |event| {
        event.kind() == "cni.finished"
            && event.text("/cni/command") == command
            && event.has("/cni/container_id")
            && event.text("/cni/container_id") == sandbox
    });
    call.expect("/cni/plugin", format!("/usr/lib/cni/{plugin}"));
    call.expect("/cni/exit_code", 0);
    call.expect("/cni/namespace", NAMESPACE);
    call.expect("/cni/pod", name);
    let ancestors = call.list("/actor/ancestors");
    assert!(ancestors.iter().any(|ancestor| ancestor["pid"] == containerd.process()), "{call}");
    call
}

#[test]
fn the_life_of_a_pod_on_a_bridge_has_the_calls_of_its_plugin() {
    let containerd = Containerd::start_with(Plugin::Bridge);
    let mut daemon = launch().runtime(containerd.runtime()).start();
    let pod = containerd.run_pod();
    let netns = pod.netns().inum();
    let of_pod = (pod.name().to_owned(), pod.sandbox().to_owned());
    let added = wait_for_call(&mut daemon, "ADD", "bridge", &containerd, (&of_pod.0, &of_pod.1));
    added.expect("/cni/netns_inode", netns);
    wait_for_life(&mut daemon, "container.started", pod.sandbox());
    let deleted = lose_gateway(&mut daemon, &pod);
    expect_pod(&deleted, &pod);
    pod.remove();
    let removed = wait_for_call(&mut daemon, "DEL", "bridge", &containerd, (&of_pod.0, &of_pod.1));
    removed.expect("/cni/netns_inode", netns);
    wait_for_life(&mut daemon, "container.removed", &of_pod.1);
}

#[test]
fn the_life_of_a_pod_behind_the_cri_is_reported_as_it_happens() {
    let containerd = Containerd::start();
    let early = containerd.run_pod();
    let config = "[kubelet]\npod_labels = [\"app\", \"absent\"]\n";
    let mut daemon = launch().runtime(containerd.runtime()).config(config).start();
    assert_eq!(up(&daemon), Some(1.0));
    let running = [("runtime", "containerd"), ("state", "running")];
    eventually!(
        daemon.metrics().count("kevtmon_containers", &running) == 1.0,
        "the first sandbox is counted"
    );

    let pod = containerd.run_pod();
    let started = wait_for_life(&mut daemon, "container.started", pod.sandbox());
    expect_pod(&started, &pod);
    let (id, pid) = pod.start_container("etcd", &["/bin/sleep", "1000000"], &[]);
    let started = wait_for_life(&mut daemon, "container.started", &id);
    expect_pod(&started, &pod);
    started.expect("/target/pod/labels/app", "etcd");
    started.expect_none("/target/pod/labels/token");
    started.expect("/target/container/name", "etcd");
    started.expect("/target/container/pid", pid);
    started.expect("/message", format!("container etcd of pod {} started", pod.full_name()));
    pod.remove_container(&id);
    let exited = wait_for_life(&mut daemon, "container.exited", &id);
    exited.expect("/target/container/exit_code", 137);
    exited.expect("/message", format!("container etcd of pod {} exited with code 137", pod.full_name()));
    wait_for_life(&mut daemon, "container.removed", &id);
    let (name, sandbox) = (pod.name().to_owned(), pod.sandbox().to_owned());
    wait_for_call(&mut daemon, "ADD", "ptp", &containerd, (&name, &sandbox));
    pod.remove();
    wait_for_call(&mut daemon, "DEL", "ptp", &containerd, (&name, &sandbox));
    let removed = wait_for_life(&mut daemon, "container.removed", &sandbox);
    removed.expect_none("/target/container/image");
    let events = daemon.events();
    let whole = ["container.created", "container.started", "container.exited", "container.removed"];
    let of_container = life(&events, &id);
    assert!(
        whole.ends_with(&of_container.iter().map(String::as_str).collect::<Vec<_>>()),
        "{of_container:?}"
    );
    assert_eq!(life(&events, early.sandbox()), [""; 0], "it ran all the time");
}

#[test]
fn a_runtime_behind_the_cri_is_sent_nothing_but_what_reads() {
    let containerd = Containerd::start();
    let listener = CallListener::before(&containerd.socket());
    let mut daemon = launch().runtime(format!("cri={}", listener.socket().display())).start();
    let pod = containerd.run_pod();
    wait_for_life(&mut daemon, "container.started", pod.sandbox());
    let (id, pid) = pod.start_container("etcd", &["/bin/sleep", "1000000"], &[]);
    let started = wait_for_life(&mut daemon, "container.started", &id);
    started.expect("/target/container/pid", pid);
    expect_pod(&lose_gateway(&mut daemon, &pod), &pod);
    pod.remove_container(&id);
    wait_for_life(&mut daemon, "container.removed", &id);
    daemon.stop();
    let of_cri =
        ["ContainerStatus", "ListContainers", "ListPodSandbox", "PodSandboxStatus", "Version"].into_iter();
    let reads: BTreeSet<String> = of_cri
        .map(|method| format!("/runtime.v1.RuntimeService/{method}"))
        .chain(["/containerd.services.events.v1.Events/Subscribe".to_owned()])
        .collect();
    assert_eq!(listener.calls(), reads);
}

/// Makes the entry of the gateway permanent, as some network plugins do, and has it deleted.
fn lose_gateway(daemon: &mut Daemon, pod: &CriPod<'_>) -> Event {
    let netns = pod.netns();
    let gateway = netns.network(Network::default_gateway).to_string();
    netns.set_neighbor("eth0", &gateway, GATEWAY_LLADDR, NeighbourState::Permanent);
    let ip = netns.run(&format!("ip neigh del {gateway} dev eth0"));
    daemon.wait_for_deletion_by(ip.pid, netns.inum(), &gateway)
}

fn up(daemon: &Daemon) -> Option<f64> {
    daemon.metrics().sum("kevtmon_source_up", &[("source", "cri")])
}

#[test]
fn a_lost_gateway_is_that_of_the_pod_also_while_the_runtime_is_gone() {
    let containerd = Containerd::start();
    let (pod, other) = (containerd.run_pod(), containerd.run_pod());
    let mut daemon = launch().runtime(containerd.runtime()).start();
    let deleted = lose_gateway(&mut daemon, &pod);
    expect_pod(&deleted, &pod);
    deleted.expect("/target/join", "ok");
    deleted.expect("/target/container/id", pod.sandbox());
    deleted.expect("/actor/confidence", "certain");
    assert!(deleted.text("/message").contains(&format!("of pod {}", pod.full_name())), "{deleted}");

    containerd.kill();
    eventually!(up(&daemon) == Some(0.0), "the loss is seen");
    let deleted = lose_gateway(&mut daemon, &other);
    expect_pod(&deleted, &other);
    let running = || daemon.metrics().count("kevtmon_containers", &[("state", "running")]);
    eventually!(running() == 2.0, "what is known stays");
    containerd.launch();
    eventually!(up(&daemon) == Some(1.0), "it is back");
    let (id, _) = pod.start_container("late", &["/bin/sleep", "1000000"], &[]);
    let started = wait_for_life(&mut daemon, "container.started", &id);
    expect_pod(&started, &pod);
    let events = daemon.events();
    for pod in [&pod, &other] {
        assert_eq!(life(&events, pod.sandbox()), [""; 0], "it ran all the time");
    }
}

#[test]
fn a_pod_in_the_network_of_the_host_has_no_calls_and_owns_nothing_there() {
    let containerd = Containerd::start();
    let mut daemon = launch().runtime(containerd.runtime()).start();
    let pod = containerd.run_on_host();
    let host = NetnsPath::of_process(std::process::id());
    assert_eq!(pod.netns().inum(), host.inum(), "it has no network of its own");
    let started = wait_for_life(&mut daemon, "container.started", pod.sandbox());
    expect_pod(&started, &pod);
    let (id, pid) = pod.start_container("proxy", &["/bin/sleep", "1000000"], &[]);
    let started = wait_for_life(&mut daemon, "container.started", &id);
    expect_pod(&started, &pod);
    started.expect("/target/container/pid", pid);

    // What happens on the host is nothing that happens to the pod.
    let other = Pod::new();
    host.set_neighbor(other.host_end(), "192.0.2.9", GATEWAY_LLADDR, NeighbourState::Permanent);
    let ip = host.run(&format!("ip neigh del 192.0.2.9 dev {}", other.host_end()));
    let deleted = daemon.wait_for_deletion_by(ip.pid, host.inum(), "192.0.2.9");
    deleted.expect_none("/neighbor/gateway");
    deleted.expect_none("/target/pod");
    deleted.expect_none("/target/container");

    let sandbox = pod.sandbox().to_owned();
    pod.remove();
    wait_for_life(&mut daemon, "container.removed", &sandbox);
    daemon.mount_fence();
    let events = daemon.events();
    let is_its = |event: &&Event| {
        event.has("/cni") && event.text("/cni/container_id") == sandbox
            || event.kind() == "incident.opened"
                && [&sandbox, &id].iter().any(|id| event.text("/target/container/id") == **id)
    };
    let of_it: Vec<&Event> = events.iter().filter(is_its).collect();
    assert!(of_it.is_empty(), "no plugin is called for it, and nothing is wrong: {of_it:?}");
}

#[test]
fn labels_of_a_container_that_the_cri_has_not_made_are_a_claim_at_most() {
    let containerd = Containerd::start();
    let mut daemon = launch().runtime(containerd.runtime()).start();
    let pod = containerd.run_pod();
    wait_for_life(&mut daemon, "container.started", pod.sandbox());
    let forged = [
        "--label=io.cri-containerd.kind=container".to_owned(),
        "--label=io.kubernetes.container.name=etcd".to_owned(),
        format!("--label=io.kubernetes.pod.namespace={NAMESPACE}"),
        format!("--label=io.kubernetes.pod.name={}", pod.name()),
        format!("--label=io.kubernetes.pod.uid={}", pod.uid()),
        "--annotation=io.kubernetes.cri.container-type=container".to_owned(),
        format!("--annotation=io.kubernetes.cri.sandbox-id={}", pod.sandbox()),
        format!("--annotation=io.kubernetes.cri.sandbox-namespace={NAMESPACE}"),
        format!("--annotation=io.kubernetes.cri.sandbox-name={}", pod.name()),
        format!("--annotation=io.kubernetes.cri.sandbox-uid={}", pod.uid()),
    ];
    let (id, pid) = containerd.start_aside(&forged.each_ref().map(String::as_str));
    let network = Pod::at(NetnsPath::of_process(pid));
    let tells_of_no_pod = |daemon: &mut Daemon, may_claim: bool| {
        daemon.wait_for_gateway(network.inum(), GATEWAY);
        let ip = network.delete_gateway();
        let deleted = daemon.wait_for_deletion_by(ip.pid, network.inum(), GATEWAY);
        let opened = daemon.wait_for("the lost gateway", |event| {
            event.is_incident("incident.opened", "gateway-neighbor-lost") && event.is_in(network.inum())
        });
        for event in [&deleted, &opened] {
            event.expect("/target/container/id", &*id);
            let claims = event.get("/target/pod/claimed").is_some_and(|claimed| claimed == true);
            assert!(may_claim && claims || !event.has("/target/pod"), "{event}");
            assert_eq!(event.text("/message").contains(pod.name()), claims, "{event}");
        }
        network.set_gateway();
        daemon.wait_for("it is back", |event| {
            event.is_incident("incident.closed", "gateway-neighbor-lost") && event.is_in(network.inum())
        });
        assert!(daemon.find(&["incidents", "--pod", &pod.full_name()]).is_empty());
    };
    tells_of_no_pod(&mut daemon, false);
    containerd.kill();
    eventually!(daemon.metrics().count("kevtmon_source_up", &[("source", "cri")]) == 0.0, "it is missed");
    // What containerd left on the disk has them.
    tells_of_no_pod(&mut daemon, true);
    tells_of_no_pod(&mut launch().runtime(containerd.runtime()).start(), true);
    containerd.launch();
}

#[test]
fn where_containerd_does_not_answer_its_containers_are_known_by_its_files() {
    let containerd = Containerd::start();
    let pod = containerd.run_pod();
    let (id, pid) = pod.start_container("etcd", &["/bin/sleep", "1000000"], &[]);
    containerd.kill();
    let mut daemon = launch().runtime(containerd.runtime()).start();
    let known = || {
        let state = daemon.find(&["state"]).remove(0);
        state.list("/containers").iter().find(|container| container["id"] == *id).cloned()
    };
    eventually!(known().is_some(), "the container is known");
    let container = known().unwrap_or_default();
    for (field, expected) in
        [("name", "etcd".into()), ("pid", pid.into()), ("stale", serde_json::Value::from(true))]
    {
        assert_eq!(container[field], expected, "{field} of {container}");
    }
    let deleted = lose_gateway(&mut daemon, &pod);
    deleted.expect("/target/pod/uid", pod.uid());
    deleted.expect("/target/pod/name", pod.name());
    deleted.expect("/target/container/runtime", "containerd");
    containerd.launch();
}

#[test]
fn who_acts_in_a_pod_with_users_of_its_own_is_named_with_it() {
    let containerd = Containerd::start();
    let Some(pod) = containerd.run_with_users() else { return };
    let (id, _) = pod.start_container("etcd", &["/bin/sleep", "1000000"], &[]);
    let mut daemon = launch().runtime(containerd.runtime()).start();
    let netns = pod.netns();
    let gateway = netns.network(Network::default_gateway).to_string();
    netns.set_neighbor("eth0", &gateway, GATEWAY_LLADDR, NeighbourState::Permanent);
    containerd.execute(&id, &["/bin/ip", "neigh", "del", &gateway, "dev", "eth0"]);
    let deleted = daemon.wait_for_deletion(netns.inum(), &gateway);
    expect_pod(&deleted, &pod);
    deleted.expect_none("/target/userns");
    deleted.expect("/severity", "warning");
    deleted.expect("/actor/userns", "other");
    deleted.expect("/actor/uid", FIRST_UID);
    deleted.expect("/actor/container/id", &*id);
    deleted.expect("/actor/pod/uid", pod.uid());
    let pid = deleted.number("/actor/pid").unwrap_or_default();
    let by = format!(" deleted by ip (pid {pid}) of pod {}", pod.full_name());
    assert!(deleted.text("/message").contains(&by), "{deleted}");
}

#[test]
fn who_holds_an_image_that_a_pod_has_as_a_volume_is_named_with_the_pod() {
    let containerd = Containerd::start();
    let pod = containerd.run_pod();
    let Some((id, _)) = pod.start_with_image_volume("etcd") else { return };
    // So that no other test mounts anything.
    let _scratch = Scratch::new();
    let mut daemon = launch().runtime(containerd.runtime()).start();
    let entries = std::fs::read_dir(pod.image_volumes()).expect("the sandbox has volumes");
    let volumes: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    let [volume] = &volumes[..] else { panic!("{volumes:?}") };
    let holder = Running::spawn(Command::new("sleep").arg("1000000").current_dir(volume));
    pod.remove_container(&id);
    let refused = pod.try_to_stop().expect_err("its volume is in use");
    assert!(refused.contains("busy"), "{refused}");
    let path = volume.to_string_lossy();
    let busy = daemon.wait_for("mount.busy", |event| {
        event.kind() == "mount.busy" && event.text("/mount/path") == path && event.has("/holders/0")
    });
    expect_pod(&busy, &pod);
    busy.expect("/target/container/id", pod.sandbox());
    busy.expect("/holders/0/pid", holder.pid());
    drop(holder);
    eventually!(pod.try_to_stop().is_ok(), "the volume is free");
    pod.remove();
}

#[test]
fn a_container_elsewhere_in_containerd_that_enters_the_network_of_a_pod_is_none_of_it() {
    let containerd = Containerd::start();
    let mut daemon = launch().runtime(containerd.runtime()).start();
    let pod = containerd.run_pod();
    wait_for_life(&mut daemon, "container.started", pod.sandbox());
    let netns = pod.netns();
    let options = [
        format!("--label=io.kubernetes.sandbox.id={}", pod.sandbox()),
        format!("--label=io.kubernetes.pod.uid={}", pod.uid()),
        format!("--with-ns=network:{}", netns.path().display()),
        "--cap-add=CAP_NET_ADMIN".to_owned(),
    ];
    let (id, pid) = containerd.start_elsewhere("moby", &options.each_ref().map(String::as_str));
    assert_eq!(NetnsPath::of_process(pid).inum(), netns.inum(), "it is in the network of the pod");
    let gateway = netns.network(Network::default_gateway).to_string();
    netns.set_neighbor("eth0", &gateway, GATEWAY_LLADDR, NeighbourState::Permanent);
    let del = ["/bin/ip", "neigh", "del", &gateway, "dev", "eth0"];
    containerd.ctr_in("moby", &[&["tasks", "exec", "--exec-id=del", &id], &del[..]].concat());
    let deleted = daemon.wait_for_deletion(netns.inum(), &gateway);
    expect_pod(&deleted, &pod);
    deleted.expect("/target/container/id", pod.sandbox());
    deleted.expect("/actor/comm", "ip");
    deleted.expect("/actor/confidence", "certain");
    deleted.expect("/actor/container/id", &*id);
    // No runtime that is watched knows it.
    deleted.expect("/actor/join", "missed");
    deleted.expect_none("/actor/pod");
    let state = daemon.find(&["state"]).remove(0);
    let known = state.list("/pods").iter().find(|known| known["uid"] == pod.uid()).expect("the pod is known");
    assert_eq!(known["containers"], serde_json::json!([pod.sandbox()]));
}

#[test]
fn the_sandboxes_of_the_name_of_a_pod_are_listed_through_the_cri() {
    let containerd = Containerd::start();
    let older = containerd.run_pod();
    let pod = containerd.run_successor(&older);
    let mut daemon = launch().runtime(containerd.runtime()).start();
    lose_gateway(&mut daemon, &pod);
    let netns = pod.netns().inum();
    let id = opened(&mut daemon, "gateway-neighbor-lost", |event| event.is_in(netns));
    if let Some(listed) = is_understood(&daemon, &id, "gateway-neighbor-lost/list-by-crictl", &[]) {
        for sandbox in [&older, &pod].map(CriPod::sandbox) {
            assert!(listed.stdout.contains(&sandbox[..12]), "{sandbox} in {}", listed.stdout);
        }
    }
}

#[test]
fn a_container_behind_the_cri_that_holds_a_volume_is_named_with_its_pod() {
    let containerd = Containerd::start();
    let scratch = Scratch::new();
    let root = Mount::at(&scratch.path().join("kubelet"));
    run(&format!("mount --make-shared {}", root.point().display()));
    let pod = containerd.run_pod();
    let below = format!("pods/{}/volumes/kubernetes.io~rbd/data", pod.uid());
    let volume = Mount::at(&root.point().join(below));
    let script = format!("cd {}; exec sleep 1000000", volume.point().display());
    let (id, pid) = pod.start_container("backup", &["/bin/sh", "-c", &script], &[root.point()]);
    eventually!(comm(pid).as_deref() == Some("sleep"), "the container is in the volume");
    let mut daemon = launch().runtime(containerd.runtime()).config(&kubelet_roots(root.point())).start();
    volume.umount_refused();
    let path = volume.point().to_string_lossy().into_owned();
    let busy = daemon.wait_for("mount.busy", |event| {
        event.kind() == "mount.busy" && event.text("/mount/path") == path && event.has("/holders/0")
    });
    busy.expect("/holders/0/pid", pid);
    busy.expect("/holders/0/container/id", &*id);
    busy.expect("/holders/0/container/name", "backup");
    busy.expect("/holders/0/pod/name", pod.name());
    busy.expect("/holders/0/pod/namespace", NAMESPACE);
    busy.expect_none("/holders/0/pod/claimed");
    let incident = opened(&mut daemon, "volume-busy", |event| event.text("/mount/path") == path);
    if is_understood(&daemon, &incident, "volume-busy/stop-by-crictl", &[]).is_none() {
        pod.remove_container(&id);
    }
    eventually!(volume.umount().status.success(), "the mount is free");
}
