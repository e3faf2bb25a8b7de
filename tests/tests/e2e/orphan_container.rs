//! Containers whose sandbox is gone, as dockershim leaves them in Docker.

use std::path::{Path, PathBuf};

use kevtmon_tests::advice::{carry_out, incident, offered, resolved};
use kevtmon_tests::component::{Program, start_with};
use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::pod_sandbox::uuid;
use kevtmon_tests::reaper::Cleanup;

const NAMESPACE: &str = "lijiaob";
/// A sandbox may be missing for a second only.
const SOON: &str = "[incidents]\norphan_container_seconds = 1\n";

/// A pod as a kubelet with dockershim makes it.
struct Shim<'d> {
    dockerd: &'d Dockerd,
    name: String,
    uid: String,
}

impl<'d> Shim<'d> {
    fn new(dockerd: &'d Dockerd) -> Self {
        let uid = uuid();
        Self { dockerd, name: format!("etcd-{}", &uid[..8]), uid }
    }

    fn start(&self, kind: &str, container: &str, further: &[&str]) -> Container<'d> {
        let labels = [
            "io.kubernetes.pod.namespace=".to_owned() + NAMESPACE,
            format!("io.kubernetes.pod.name={}", self.name),
            format!("io.kubernetes.pod.uid={}", self.uid),
            format!("io.kubernetes.container.name={container}"),
            format!("io.kubernetes.docker.type={kind}"),
        ];
        let group = self.dockerd.pod_cgroup(&self.uid);
        let mut options = vec!["--cgroup-parent", &*group];
        options.extend(labels.iter().flat_map(|label| ["--label", label]));
        options.extend_from_slice(further);
        let made = Container::idle(self.dockerd, &options);
        let name = format!("k8s_{container}_{}_{NAMESPACE}_{}_0", self.name, self.uid);
        self.dockerd.docker(&["rename", made.id(), &name]);
        made
    }

    fn sandbox(&self) -> Container<'d> {
        self.start("podsandbox", "POD", &["--network", "none"])
    }

    fn member(&self, sandbox: &Container<'_>) -> Container<'d> {
        let network = format!("container:{}", sandbox.id());
        let label = format!("io.kubernetes.sandbox.id={}", sandbox.id());
        let hash = "annotation.io.kubernetes.container.hash=5cf0cfcf";
        self.start("container", "etcd", &["--network", &network, "--label", &label, "--label", hash])
    }

    fn full(&self) -> String {
        format!("{NAMESPACE}/{}", self.name)
    }
}

/// What dockershim or cri-dockerd would have written, deleted at the end.
fn checkpoint(sandbox: &str) -> (PathBuf, Cleanup) {
    // Not that of dockershim: a kubelet of another test would take it for its own.
    let path = Path::new("/var/lib/cri-dockerd/sandbox").join(sandbox);
    let shown = path.display();
    let cleanup =
        Cleanup::script(&format!("rm -f '{shown}'; rmdir -p \"$(dirname '{shown}')\" 2>/dev/null\n"));
    std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory can be made");
    std::fs::write(&path, "{}").expect("a file can be written");
    (path, cleanup)
}

fn opened(daemon: &mut Daemon, container: &Container<'_>) -> Event {
    daemon.wait_for("the incident", |event| {
        event.is_incident("incident.opened", "orphan-container")
            && event.text("/target/container/id") == container.id()
    })
}

/// Runs the advice as it is offered, and waits until the incident is over.
fn follow(daemon: &mut Daemon, id: &str) {
    let _ = carry_out(daemon, id, "orphan-container/remove-by-docker");
    resolved(daemon, id);
}

#[test]
fn one_that_has_ended_is_found_at_the_start_and_goes_by_the_advice() {
    let dockerd = Dockerd::shared();
    let pod = Shim::new(dockerd);
    let sandbox = pod.sandbox();
    let member = pod.member(&sandbox);
    // While it ran it was confirmed by its control group, and it has ended now: only its log could tell the pod.
    let log = format!("/var/log/pods/{NAMESPACE}_{}_{}/etcd", pod.name, pod.uid);
    let _log = Cleanup::script(&format!("rm -f '{log}/0.log'; rmdir -p '{log}' 2>/dev/null\n"));
    std::fs::create_dir_all(&log).expect("a directory can be made");
    let target = format!("/var/lib/docker/containers/{0}/{0}-json.log", member.id());
    std::os::unix::fs::symlink(target, Path::new(&log).join("0.log")).expect("a link can be made");
    dockerd.docker(&["stop", "--time", "0", member.id()]);
    dockerd.docker(&["rm", "--force", sandbox.id()]);
    let mut daemon = launch().joining(dockerd.runtime()).start();
    let opened = opened(&mut daemon, &member);
    opened.expect("/incident/found_at_start", true);
    opened.expect("/incident/confidence", "certain");
    opened.expect("/target/container/state", "exited");
    opened.expect("/target/pod/name", &*pod.name);
    opened.expect("/sandbox/id", sandbox.id());
    let phrase = format!(" of pod {} is still there without its sandbox {}", pod.full(), &sandbox.id()[..12]);
    assert!(opened.text("/message").contains(&phrase), "{opened}");
    let command = opened.text("/incident/advice/0/command");
    assert!(command.ends_with(&format!(" rm {}", member.id())), "{opened}");
    follow(&mut daemon, opened.text("/incident/id"));
}

#[test]
fn while_its_runtime_does_not_answer_it_is_told_as_it_was_and_nothing_is_to_be_done() {
    let dockerd = Dockerd::start();
    let pod = Shim::new(&dockerd);
    let sandbox = pod.sandbox();
    let member = pod.member(&sandbox);
    dockerd.docker(&["stop", "--time", "0", member.id()]);
    dockerd.docker(&["rm", "--force", sandbox.id()]);
    let mut daemon = launch().joining(dockerd.runtime()).start();
    let id = opened(&mut daemon, &member).text("/incident/id").to_owned();
    let is_offered = |daemon: &Daemon| offered(&incident(daemon, &id), "orphan-container/remove-by-docker");
    let is_told_as_it_was = |daemon: &Daemon| {
        let now = incident(daemon, &id);
        now.has("/stale/reason") && !now.has("/closed") && now.list("/advice").is_empty()
    };
    assert!(is_offered(&daemon).is_some());
    dockerd.kill();
    eventually!(is_told_as_it_was(&daemon), "the runtime would show that it is over, and does not answer");
    let story = daemon.find(&["why", &id]).remove(0);
    let reason = story.text("/verdict/stale/reason");
    assert!(reason.contains("docker.sock does not deliver: "), "{story}");
    let sentence = story.text("/verdict/sentence");
    assert!(sentence.starts_with("last known: "), "{story}");
    assert!(sentence.contains(" is still there without its sandbox "), "{story}");
    assert!(!story.has("/advice"), "{story}");
    // A daemon to which it was never reported knows of it by its store alone.
    daemon.stop();
    let mut daemon = launch().on_state_of(&daemon).runtime(dockerd.runtime()).start();
    eventually!(is_told_as_it_was(&daemon), "a restart makes it no better known");
    dockerd.launch();
    eventually!(is_offered(&daemon).is_some(), "the runtime reports it again");
    follow(&mut daemon, &id);
}

#[test]
fn one_that_runs_is_found_when_its_sandbox_goes_and_its_checkpoint_is_watched() {
    let dockerd = Dockerd::shared();
    let pod = Shim::new(dockerd);
    let sandbox = pod.sandbox();
    let member = pod.member(&sandbox);
    let (path, _checkpoint) = checkpoint(sandbox.id());
    let mut daemon = launch().joining(dockerd.runtime()).config(SOON).start();
    dockerd.docker(&["rm", "--force", sandbox.id()]);
    let opened = opened(&mut daemon, &member);
    opened.expect_none("/incident/found_at_start");
    let of_it = |event: &Event| event.text("/incident/id") == opened.text("/incident/id");
    let with =
        |checkpoint: bool| move |event: &Event| event.get("/sandbox/checkpoint") == Some(&checkpoint.into());
    let there = daemon.wait_for("the checkpoint", |event| of_it(event) && with(true)(event));
    assert!(there.text("/message").contains("; the sandbox has a checkpoint"), "{there}");
    std::fs::remove_file(path).expect("the checkpoint is there");
    let gone = daemon.wait_for("its end", |event| of_it(event) && with(false)(event));
    // How bad that is depends on the kubelet of this machine, if there is one.
    assert!(gone.alarms(), "{gone}");
    gone.expect("/incident/confidence", "certain");
    follow(&mut daemon, gone.text("/incident/id"));
}

#[test]
fn what_is_left_in_docker_is_not_fatal_for_a_kubelet_that_works_with_another_runtime() {
    let dockerd = Dockerd::shared();
    let pod = Shim::new(dockerd);
    let sandbox = pod.sandbox();
    let member = pod.member(&sandbox);
    let scratch = Scratch::without_mounts();
    let program = Program::new(&scratch, "kubelet", Some("v1.20.2"));
    let socket = scratch.path().join("containerd.sock").display().to_string();
    let endpoint = format!("--container-runtime-endpoint=unix://{socket}");
    let kubelet = start_with(&program, &["--container-runtime=remote", &endpoint]);
    let mut daemon = launch().joining(dockerd.runtime()).config(SOON).start();
    daemon.wait_for_component(kubelet.pid());
    dockerd.docker(&["rm", "--force", sandbox.id()]);
    let works_with = format!("by its command line kubelet v1.20.2 works with that at {socket}");
    let told = daemon.wait_for("what its kubelet works with", |event| {
        event.text("/target/container/id") == member.id() && event.text("/message").ends_with(&works_with)
    });
    told.expect("/severity", "warning");
    follow(&mut daemon, told.text("/incident/id"));
}

#[test]
fn labels_of_who_started_a_container_are_told_as_a_claim() {
    let dockerd = Dockerd::shared();
    let pod = Shim::new(dockerd);
    let labels = [
        ("io.kubernetes.pod.namespace", NAMESPACE),
        ("io.kubernetes.pod.name", &*pod.name),
        ("io.kubernetes.pod.uid", &*pod.uid),
        ("io.kubernetes.container.name", "etcd"),
        ("io.kubernetes.docker.type", "container"),
        ("io.kubernetes.sandbox.id", "d0831a42d0831a42d0831a42d0831a42d0831a42d0831a42d0831a42d0831a42"),
        ("annotation.io.kubernetes.container.hash", "5cf0cfcf"),
    ];
    let image = dockerd.labelled_image(&labels);
    let forged = Container::of_image(dockerd, &image, &["--network", "none"], &["sleep", "1000000"]);
    let mut daemon = launch().joining(dockerd.runtime()).config(SOON).start();
    let opened = opened(&mut daemon, &forged);
    opened.expect("/target/pod/claimed", true);
    opened.expect("/incident/confidence", "likely");
    let claim = format!("container {} (claims to be pod {}) is still there", forged.name(), pod.full());
    assert!(opened.text("/message").starts_with(&claim), "{opened}");
    // No kubelet lists a container of such a name.
    opened.expect("/severity", "info");
}

#[test]
fn a_pod_that_ends_in_good_order_is_no_trouble() {
    let dockerd = Dockerd::shared();
    let pod = Shim::new(dockerd);
    let sandbox = pod.sandbox();
    let member = pod.member(&sandbox);
    let other = Shim::new(dockerd);
    let lost = other.sandbox();
    let orphaned = other.member(&lost);
    let mut daemon = launch().joining(dockerd.runtime()).config(SOON).start();
    for gone in [&member, &sandbox, &lost] {
        dockerd.docker(&["rm", "--force", gone.id()]);
    }
    // That of the other pod opens later than one of this pod would.
    let opened = opened(&mut daemon, &orphaned);
    let events = daemon.events();
    let mut of_it = events.iter().filter(|event| event.text("/target/container/id") == member.id());
    let incident = of_it.find(|event| event.has("/incident"));
    assert!(incident.is_none(), "{incident:?}");
    follow(&mut daemon, opened.text("/incident/id"));
}
