//! The files of runtimes, below the root of a node that the test makes.

use std::os::unix::fs::symlink;

use kevtmon_observation::{Fact, Observation, PodProof, SourceStatus};
use serde_json::{Value, json};

use super::*;
use crate::runtime::client::RuntimeClient;
use crate::runtime::cri::Cri;
use crate::runtime::docker::Docker;
use crate::runtime::tests::reports::{self, Reports};
use crate::runtime::{Options, RuntimeKind, RuntimeSocket};

const ID: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const SANDBOX: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
const UID: &str = "5c948341-c030-4996-b888-f032577d97b0";

struct Node(tempfile::TempDir);

impl Node {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("proc/1")).unwrap();
        symlink(directory.path(), directory.path().join("proc/1/root")).unwrap();
        Self(directory)
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn process(&self, pid: u32, cgroup: &str) {
        let fields = "0 ".repeat(17);
        self.write(&format!("proc/{pid}/stat"), format!("{pid} (etcd) S 1 {fields}7 0\n"));
        self.write(&format!("proc/{pid}/cgroup"), format!("0::{cgroup}\n"));
        self.write(&format!("sys/fs/cgroup{cgroup}/cgroup.procs"), "");
        self.write("sys/fs/cgroup/cgroup.controllers", "");
    }

    fn found(&self, files: StateFiles) -> Option<Found> {
        ReadStateFiles(files, PodLabels::default()).run(&Proc::new(self.0.path().join("proc")))
    }
}

fn docker(state: Value) -> Value {
    json!({
        "ID": ID, "Name": "/k8s_etcd_etcd1-0_lijiaob_u_0", "State": state, "Path": "sh", "Args": ["hunter2"],
        "Config": {"Image": "etcd:3", "Env": ["TOKEN=hunter2"], "Labels": {
            "io.kubernetes.pod.name": "etcd1-0", "io.kubernetes.pod.namespace": "lijiaob",
            "io.kubernetes.pod.uid": UID, "io.kubernetes.container.name": "etcd"}},
        "NetworkSettings": {"Networks": {"bridge": {"IPAddress": "172.17.0.2", "GwPriority": 0, "IPAMOperational": false}}},
    })
}

/// The specification of a container of containerd's CRI.
fn containerd() -> Value {
    json!({"process": {"env": ["TOKEN=hunter2"]}, "annotations": {
        "io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.sandbox-id": SANDBOX,
        "io.kubernetes.cri.sandbox-namespace": "lijiaob", "io.kubernetes.cri.sandbox-name": "etcd1-0",
        "io.kubernetes.cri.sandbox-uid": UID, "io.kubernetes.cri.container-name": "etcd",
        "io.kubernetes.cri.image-name": "etcd:3"}})
}

fn only(found: Option<Found>) -> ContainerFacts {
    let found = found.unwrap();
    let [Written { facts, .. }] = &found.containers[..] else { panic!("{found:?}") };
    facts.clone()
}

#[test]
fn dockers_file_tells_a_container_and_its_control_group_whose_process_it_is() {
    let running = json!({"Running": true, "Pid": 7, "StartedAt": "2026-01-02T03:04:05.6Z"});
    for (cgroup, expected, proof) in [
        (format!("/kubepods/besteffort/pod{UID}/{ID}"), Some(7), PodProof::Cgroup),
        (format!("/kubepods/besteffort/pod{UID}/{SANDBOX}"), None, PodProof::Claimed),
    ] {
        let node = Node::new();
        node.write(
            &format!("var/lib/docker/containers/{ID}/config.v2.json"),
            docker(running.clone()).to_string(),
        );
        let sandbox = json!({"NetworkMode": format!("container:{SANDBOX}")});
        node.write(&format!("var/lib/docker/containers/{ID}/hostconfig.json"), sandbox.to_string());
        node.process(7, &cgroup);
        let found = node.found(StateFiles::Docker(None)).unwrap();
        assert!(found.complete && found.unread.is_empty());
        let facts = only(Some(found));
        assert_eq!((facts.tgid, facts.image.as_str()), (expected, "etcd:3"));
        let state = if expected.is_some() { ContainerState::Running } else { ContainerState::Exited };
        assert_eq!(facts.state, state, "another process has the id by now");
        assert_eq!(facts.addresses, ["172.17.0.2".parse::<std::net::IpAddr>().unwrap()]);
        let pod = facts.pod.clone().unwrap();
        assert_eq!((pod.name.as_str(), pod.sandbox_id.as_deref()), ("etcd1-0", Some(SANDBOX)));
        assert_eq!(pod.proof, proof);
        assert!(!serde_json::to_string(&facts).unwrap().contains("hunter2"));
    }
}

#[test]
fn dockers_file_tells_how_a_container_has_ended() {
    let node = Node::new();
    let ended = json!({"Running": false, "Pid": 0, "ExitCode": 137, "OOMKilled": true, "StartedAt": "2026-01-02T03:04:05Z"});
    node.write("etc/docker/daemon.json", json!({"data-root": "/data/docker"}).to_string());
    node.write(&format!("data/docker/containers/{ID}/config.v2.json"), docker(ended).to_string());
    let facts = only(node.found(StateFiles::Docker(None)));
    let exit = facts.exit.unwrap();
    assert_eq!((facts.state, exit.code, exit.oom_killed), (ContainerState::Exited, Some(137), Some(true)));
    let told = only(node.found(StateFiles::Docker(Some("/data/docker".into()))));
    assert_eq!(told, facts);
}

#[test]
fn a_file_that_is_none_of_a_container_is_counted_and_one_of_another_owner_is_not_believed() {
    let node = Node::new();
    assert!(node.found(StateFiles::Docker(None)).is_none());
    let path = |id: &str| format!("var/lib/docker/containers/{id}/config.v2.json");
    let never = json!({"StartedAt": "0001-01-01T00:00:00Z"});
    node.write(&path(ID), docker(never).to_string());
    node.write(&path(&"c".repeat(64)), docker(json!({})).to_string());
    node.write(&path(&"d".repeat(64)), "{");
    node.write(&path("lost+found"), "{");
    node.write(&path(SANDBOX), docker(json!({})).to_string().replace(ID, SANDBOX));
    std::os::unix::fs::chown(node.0.path().join(path(SANDBOX)), Some(65534), None).unwrap();
    let found = node.found(StateFiles::Docker(None)).unwrap();
    assert_eq!(found.unread.len(), 3, "of another id, cut, of another owner");
    assert_eq!(only(Some(found)).state, ContainerState::Created);
}

#[test]
fn a_bundle_tells_the_container_its_pod_and_its_sandbox() {
    let containerd = containerd();
    let crio = json!({"annotations": {
        "io.kubernetes.cri-o.ContainerType": "container", "io.kubernetes.cri-o.SandboxID": SANDBOX,
        "io.kubernetes.pod.namespace": "lijiaob", "io.kubernetes.pod.name": "etcd1-0",
        "io.kubernetes.pod.uid": UID, "io.kubernetes.container.name": "etcd",
        "io.kubernetes.cri-o.ImageName": "etcd:3"}});
    let tasks = "run/containerd/io.containerd.runtime.v2.task/k8s.io";
    let node = Node::new();
    node.process(7, &format!("/kubepods/pod{UID}/{ID}"));
    node.write(&format!("{tasks}/{ID}/config.json"), containerd.to_string());
    node.write(&format!("{tasks}/{ID}/init.pid"), "7");
    let userdata = format!("run/containers/storage/overlay-containers/{ID}/userdata");
    node.write(&format!("{userdata}/config.json"), crio.to_string());
    node.write(&format!("{userdata}/pidfile"), "7\n");
    let of = |socket: &str| node.found(StateFiles::of_cri(Path::new(socket)).unwrap());
    let [first, second] =
        ["/run/containerd/containerd.sock", "/run/crio/crio.sock"].map(|socket| only(of(socket)));
    assert_eq!(first, second);
    assert_eq!((first.state, first.tgid, first.name.as_str()), (ContainerState::Running, Some(7), "etcd"));
    let pod = first.pod.unwrap();
    assert_eq!(
        (pod.uid.as_str(), pod.sandbox_id.as_deref(), pod.proof),
        (UID, Some(SANDBOX), PodProof::Cgroup)
    );
}

#[test]
fn bundles_of_both_versions_of_shims_are_read() {
    let node = Node::new();
    let files = StateFiles::of_cri(Path::new("/run/containerd/containerd.sock")).unwrap();
    for (version, id) in [("v1.linux", ID), ("v2.task", SANDBOX)] {
        let bundle = format!("run/containerd/io.containerd.runtime.{version}/k8s.io/{id}");
        node.write(&format!("{bundle}/config.json"), containerd().to_string());
        let found = node.found(files.clone()).unwrap();
        assert!(found.containers.iter().any(|written| written.facts.id == id), "{found:?}");
        assert!(found.directory.to_string_lossy().contains("io.containerd.runtime."), "{found:?}");
    }
    assert_eq!(node.found(files).unwrap().containers.len(), 2);
}

#[test]
fn files_of_docker_are_not_looked_for_beside_the_socket_of_another_engine() {
    let usual = |socket: &str| Docker::usual_state_files(Path::new(socket));
    assert_eq!(usual("/var/run/docker.sock"), Some(StateFiles::Docker(None)));
    for kind in RuntimeKind::ALL {
        for socket in kind.places().iter().skip(1).flat_map(|paths| *paths) {
            assert_eq!(usual(socket), None, "{socket}");
        }
    }
    assert!(RuntimeKind::Docker.places().iter().any(|paths| paths.contains(&"/run/podman/podman.sock")));
}

/// A node with a container of containerd, whose process is the one of the files.
fn at_work() -> Node {
    let node = Node::new();
    let bundle = format!("kevtmon-none/io.containerd.runtime.v2.task/k8s.io/{ID}");
    node.process(7, &format!("/kubepods/pod{UID}/{ID}"));
    node.write(&format!("{bundle}/config.json"), containerd().to_string());
    node.write(&format!("{bundle}/init.pid"), "7");
    node
}

#[tokio::test]
async fn a_runtime_whose_socket_has_never_been_there_is_known_by_what_runs_of_it() {
    let node = at_work();
    let proc = Proc::new(node.0.path().join("proc"));
    let socket = RuntimeSocket { kind: RuntimeKind::Cri, path: "/kevtmon-none/containerd.sock".into() };
    let (tx, mut rx) = tokio::sync::mpsc::channel(8);
    let task = tokio::spawn(socket.watch_once_there(Options::default(), proc.into(), tx));
    let next = async |rx: &mut tokio::sync::mpsc::Receiver<Observation>| {
        tokio::time::timeout(reports::PATIENCE, rx.recv()).await.unwrap().unwrap().fact
    };
    let Fact::RuntimeSnapshot { containers, .. } = next(&mut rx).await else { panic!("no containers") };
    assert_eq!((containers.len(), containers[0].tgid), (1, Some(7)));
    let Fact::Source(SourceStatus { up: false, reason: Some(reason), absent: false, .. }) =
        next(&mut rx).await
    else {
        panic!("no status")
    };
    assert!(
        reason.contains("there is no socket") && reason.contains("are read from /kevtmon-none/"),
        "{reason}"
    );
    task.abort();
}

#[test]
fn what_is_left_of_a_runtime_that_is_gone_is_no_container_that_runs() {
    let node = at_work();
    let files = || StateFiles::of_cri(Path::new("/kevtmon-none/containerd.sock")).unwrap();
    assert!(node.found(files()).unwrap().any_runs());
    fs::remove_dir_all(node.0.path().join("proc/7")).unwrap();
    let found = node.found(files()).unwrap();
    assert!(!found.containers.is_empty() && !found.any_runs());
}

#[tokio::test]
async fn by_whose_root_the_files_are_read_is_told() {
    for is_first_hidden in [false, true] {
        let node = at_work();
        let fields = "0 ".repeat(17);
        node.write("proc/2/stat", format!("2 (kthreadd) S 0 {fields}7 0\n"));
        symlink(node.0.path(), node.0.path().join("proc/2/root")).unwrap();
        if is_first_hidden {
            fs::remove_file(node.0.path().join("proc/1/root")).unwrap();
        }
        let pause = Duration::from_millis(10);
        let timing = Options { poll: pause, backoff_min: pause, backoff_max: pause, ..Options::default() };
        let proc = Proc::new(node.0.path().join("proc"));
        let mut reports = Reports::of::<Cri>("cri:c", "/kevtmon-none/containerd.sock".into(), timing, proc);
        let reason = loop {
            let reason = reports.down().await;
            if reason.contains("are read from") {
                break reason;
            }
        };
        assert_eq!(reason.contains("by way of kthreadd"), is_first_hidden, "{reason}");
    }
}

#[test]
fn a_process_is_recognised_by_its_start_where_its_control_group_says_nothing() {
    let proc = Proc::default();
    let tgid = std::process::id();
    let started = proc.stat(tgid).unwrap().start_ns;
    let now = kevtmon_types::clock::boot_now();
    let facts = || ContainerFacts {
        state: ContainerState::Running,
        tgid: Some(tgid),
        started_ns: None,
        ..kevtmon_testing::facts::container(ID)
    };
    let wall = |at: BootNs| {
        let age = i64::try_from(now.saturating_sub(at)).unwrap();
        super::super::change::wall_now() - age
    };
    for (since, is_same) in [(started + 1_000_000_000, true), (started.saturating_sub(60_000_000_000), false)]
    {
        let mut facts = facts();
        with_process(&proc, &mut facts, Some(wall(since)));
        assert_eq!((facts.tgid.is_some(), facts.netns.is_some()), (is_same, is_same));
    }
}

#[test]
fn what_another_program_keeps_in_the_same_place_is_no_container_of_the_cri() {
    let node = Node::new();
    let crio = "run/containers/storage/overlay-containers";
    let tasks = "run/containerd/io.containerd.runtime.v2.task/k8s.io";
    let podman = json!({"annotations": {"org.opencontainers.image.base.name": ""}});
    node.write(&format!("{crio}/{ID}/userdata/config.json"), podman.to_string());
    node.write(&format!("{tasks}/{ID}/config.json"), json!({"process": {}}).to_string());
    let strange = json!({"annotations": {"io.kubernetes.cri.container-type": "other"}});
    node.write(&format!("{tasks}/{SANDBOX}/config.json"), strange.to_string());
    for socket in ["/run/containerd/containerd.sock", "/run/crio/crio.sock"] {
        let found = node.found(StateFiles::of_cri(Path::new(socket)).unwrap()).unwrap();
        assert_eq!((found.containers, found.unread), (vec![], vec![]), "{socket}");
    }
}

#[test]
fn links_of_the_node_lead_within_it() {
    let node = Node::new();
    let link = |path: &str, target: &str| {
        let path = node.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    };
    link("etc/docker/daemon.json", "/data/daemon.json");
    node.write("data/daemon.json", json!({"data-root": "/data/docker"}).to_string());
    node.write(
        &format!("data/docker/containers/{ID}/config.v2.json"),
        docker(json!({"Running": false})).to_string(),
    );
    assert_eq!(node.found(StateFiles::Docker(None)).unwrap().containers.len(), 1);
    link("run/containerd", "/data/containerd");
    let tasks = "data/containerd/io.containerd.runtime.v2.task/k8s.io";
    node.write(&format!("{tasks}/{ID}/config.json"), containerd().to_string());
    let files = StateFiles::of_cri(Path::new("/run/containerd/containerd.sock")).unwrap();
    assert_eq!(node.found(files).unwrap().containers.len(), 1);
}

#[test]
fn a_pipe_in_the_place_of_a_file_keeps_nobody_waiting() {
    let node = Node::new();
    let directory = node.0.path().join("var/lib/docker/containers").join(ID);
    fs::create_dir_all(&directory).unwrap();
    nix::unistd::mkfifo(&directory.join("config.v2.json"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(node.found(StateFiles::Docker(None)).unwrap().unread, [ID]);
}

#[test]
fn a_directory_with_too_many_entries_is_not_complete() {
    let directory = tempfile::tempdir().unwrap();
    for entry in ["a", "b", "c"] {
        fs::write(directory.path().join(entry), "").unwrap();
    }
    let is_complete = |max| in_directories(directory.path(), max, |_, _| Entry::Other).unwrap().complete;
    assert!(is_complete(3) && !is_complete(2));
}

#[test]
fn a_process_that_was_written_down_before_this_boot_is_another_one() {
    let node = Node::new();
    // The kernel's first ones start at 0.
    let fields = "0 ".repeat(18);
    node.write("proc/7/stat", format!("7 (etcd) S 1 {fields}0 0\n"));
    let proc = Proc::new(node.0.path().join("proc"));
    let mut facts = ContainerFacts {
        state: ContainerState::Running,
        tgid: Some(7),
        ..kevtmon_testing::facts::container(ID)
    };
    with_process(&proc, &mut facts, Some(1));
    assert_eq!((facts.tgid, facts.state), (None, ContainerState::Exited));
}

#[test]
fn a_process_that_nobody_can_read_is_not_taken_for_that_of_a_container() {
    let me = std::process::id();
    let mut facts = ContainerFacts {
        state: ContainerState::Running,
        tgid: Some(me),
        ..kevtmon_testing::facts::container(ID)
    };
    with_process(&Proc::default().without(vec![me]), &mut facts, None);
    assert_eq!((facts.tgid, facts.state), (None, ContainerState::Running), "that it has ended is not known");
}

#[tokio::test]
async fn where_containers_are_read_from_is_told_while_it_is_there() {
    let node = Node::new();
    let tasks = "kevtmon-none/io.containerd.runtime.v2.task/k8s.io";
    node.write(&format!("{tasks}/{ID}/config.json"), containerd().to_string());
    let pause = Duration::from_millis(10);
    let timing = Options { poll: pause, backoff_min: pause, backoff_max: pause, ..Options::default() };
    let proc = Proc::new(node.0.path().join("proc"));
    let mut reports = Reports::of::<Cri>("cri:c", "/kevtmon-none/containerd.sock".into(), timing, proc);
    let place = format!("; its containers are read from /{tasks}");
    while !reports.down().await.ends_with(&place) {}
    fs::remove_dir_all(node.0.path().join("kevtmon-none")).unwrap();
    let reason = reports.down().await;
    assert!(!reason.contains("read from"), "{reason}");
}
