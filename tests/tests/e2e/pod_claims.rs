//! Labels of an image, which its maker chose, do not make a container a pod: what root made confirms that, or it stays
//! a claim.

use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::pod_sandbox::uuid;
use kevtmon_tests::reaper::Cleanup;

const NAMESPACE: &str = "lijiaob";

/// A pod as labels tell it.
struct Labels {
    name: String,
    uid: String,
    container: &'static str,
}

impl Labels {
    fn new(container: &'static str) -> Self {
        let uid = uuid();
        Self { name: format!("etcd-{}", &uid[..8]), uid, container }
    }

    /// An image with these labels.
    fn image(&self, dockerd: &Dockerd) -> String {
        let kind = if self.container == "POD" { "podsandbox" } else { "container" };
        dockerd.labelled_image(&[
            ("io.kubernetes.pod.namespace", NAMESPACE),
            ("io.kubernetes.pod.name", &self.name),
            ("io.kubernetes.pod.uid", &self.uid),
            ("io.kubernetes.container.name", self.container),
            ("io.kubernetes.docker.type", kind),
        ])
    }

    fn start<'d>(&self, dockerd: &'d Dockerd, options: &[&str]) -> Container<'d> {
        let options = [&["--network", "none"], options].concat();
        Container::of_image(dockerd, &self.image(dockerd), &options, &["sleep", "1000000"])
    }

    fn full(&self) -> String {
        format!("{NAMESPACE}/{}", self.name)
    }
}

/// A file that only root may make, deleted at the end.
fn file_of_root(path: &str, make: &str) -> Cleanup {
    let cleanup = Cleanup::script(&format!("rm -f '{path}'; rmdir -p \"$(dirname '{path}')\" 2>/dev/null\n"));
    let script = format!("mkdir -p \"$(dirname '{path}')\" && {make} '{path}'");
    let _ = kevtmon_tests::process::attempt(&["sh", "-c", &script]).succeeded(&script);
    cleanup
}

/// The event of the deletion of the container's gateway.
fn lose_gateway(daemon: &mut Daemon, container: &Container<'_>) -> (Event, Pod) {
    let pod = Pod::at(container.netns());
    eventually!(
        {
            let state = daemon.ask(&["state", "--json"]).stdout;
            state.contains(container.id()) && state.contains(pod.address())
        },
        "the container and its network are known"
    );
    let ip = pod.delete_gateway();
    (daemon.wait_for_deletion_by(ip.pid, pod.inum(), GATEWAY), pod)
}

fn expect_confirmed(event: &Event, labels: &Labels) {
    event.expect("/target/pod/name", &*labels.name);
    event.expect("/target/pod/uid", &*labels.uid);
    event.expect_none("/target/pod/claimed");
    let phrase = format!(" of pod {}", labels.full());
    assert!(event.text("/message").contains(&phrase), "{event}");
}

fn expect_claimed(event: &Event, labels: &Labels) {
    event.expect("/target/pod/name", &*labels.name);
    event.expect("/target/pod/claimed", true);
    let phrase = format!("(claims to be pod {})", labels.full());
    assert!(event.text("/message").contains(&phrase), "{event}");
    assert!(!event.text("/message").contains(" of pod "), "{event}");
}

#[test]
fn labels_of_an_image_are_a_claim_and_never_a_label_of_a_metric() {
    let dockerd = Dockerd::shared();
    let labels = Labels::new("POD");
    let container = labels.start(dockerd, &[]);
    let config = "[incidents]\ngateway_critical_seconds = 1\n";
    let mut daemon = launch().joining(dockerd.runtime()).config(config).start();
    let (event, pod) = lose_gateway(&mut daemon, &container);
    expect_claimed(&event, &labels);
    let second = labels.start(dockerd, &[]);
    let started = daemon.wait_for("its start", |event| {
        event.kind() == "container.started" && event.text("/target/container/id") == second.id()
    });
    let claims = format!("container {} (claims to be pod {}) started", second.name(), labels.full());
    started.expect("/message", claims);
    let opened = daemon.wait_for_incident(container.id());
    expect_claimed(&opened, &labels);
    opened.expect("/severity", "warning");
    let advice = opened.get("/incident/advice").map(ToString::to_string).unwrap_or_default();
    assert!(!advice.contains("kubectl"), "advice about a pod that it is not: {advice}");

    let id = opened.text("/incident/id");
    let of_pod = |pod: &str| daemon.metrics().sum("kevtmon_incident_info", &[("id", id), ("pod", pod)]);
    assert_eq!((of_pod(""), of_pod(&labels.name)), (Some(1.0), None));
    let state = daemon.ask(&["state", "--json"]).stdout;
    let state: serde_json::Value = serde_json::from_str(&state).expect("JSON");
    let pods = state["pods"].as_array().expect("pods");
    assert!(!pods.iter().any(|pod| pod["uid"] == labels.uid.as_str()), "{pods:?}");
    assert!(daemon.find(&["events", "--pod", &labels.full()]).is_empty());
    assert!(!daemon.find(&["events", "--container", container.id()]).is_empty());

    // A real pod that loses its gateway later is critical by now; what only claims to be one never is.
    let real = Labels::new("POD");
    let witness = real.start(dockerd, &["--cgroup-parent", &dockerd.pod_cgroup(&real.uid)]);
    let (_, _witness_pod) = lose_gateway(&mut daemon, &witness);
    daemon.wait_for("a critical incident", |event| {
        event.text("/target/container/id") == witness.id() && event.text("/incident/severity") == "critical"
    });
    pod.set_gateway();
    let closed = daemon.wait_for("incident.closed", |event| {
        event.kind() == "incident.closed" && event.text("/incident/id") == id
    });
    closed.expect("/incident/severity", "warning");
    let events = daemon.events();
    let of_it = events.iter().filter(|event| event.text("/target/container/id") == container.id());
    let critical: Vec<&Event> = of_it
        .filter(|event| [event.text("/severity"), event.text("/incident/severity")].contains(&"critical"))
        .collect();
    assert!(critical.is_empty(), "{critical:?}");
}

#[test]
fn a_claim_does_not_stand_in_for_the_pod_that_has_the_name() {
    let dockerd = Dockerd::shared();
    let labels = Labels::new("POD");
    let group = dockerd.pod_cgroup(&labels.uid);
    let real = labels.start(dockerd, &["--cgroup-parent", &group]);
    let forged = labels.start(dockerd, &[]);
    let mut daemon = launch().joining(dockerd.runtime()).start();
    let (event, real_pod) = lose_gateway(&mut daemon, &real);
    expect_confirmed(&event, &labels);
    event.expect("/target/pod/sandbox_id", real.id());
    let (event, forged_pod) = lose_gateway(&mut daemon, &forged);
    expect_claimed(&event, &labels);
    event.expect("/target/container/id", forged.id());
    event.expect_none("/target/pod/sandbox_id");

    eventually!(!daemon.find(&["events", "--pod", &labels.full()]).is_empty(), "the pod's events are stored");
    for event in daemon.find(&["events", "--pod", &labels.full()]) {
        event.expect("/target/container/id", real.id());
    }
    let story = daemon.ask(&["why", &labels.full(), "--json"]).stdout;
    assert!(story.contains(real_pod.host_end()) && !story.contains(forged_pod.host_end()), "{story}");
}

#[test]
fn a_checkpoint_of_its_sandbox_or_the_kubelets_link_to_its_log_confirms_a_container_and_its_start_at_once() {
    let dockerd = Dockerd::shared();
    let linked = Labels::new("etcd");
    let logged = linked.start(dockerd, &[]);
    let path = format!("/var/log/pods/{NAMESPACE}_{}_{}/etcd/0.log", linked.name, linked.uid);
    let log = format!("/var/lib/docker/containers/{0}/{0}-json.log", logged.id());
    let _link = file_of_root(&path, &format!("ln -s '{log}'"));
    let labels = Labels::new("POD");
    let container = labels.start(dockerd, &[]);
    let path = format!("/var/lib/cri-dockerd/sandbox/{}", container.id());
    let text =
        format!(r#"{{"version":"v1","name":"{}","namespace":"{NAMESPACE}","data":{{}}}}"#, labels.name);
    let _checkpoint = file_of_root(&path, &format!("echo '{text}' >"));
    let mut daemon = launch().joining(dockerd.runtime()).start();
    expect_confirmed(&lose_gateway(&mut daemon, &container).0, &labels);
    expect_confirmed(&lose_gateway(&mut daemon, &logged).0, &linked);

    let labels = Labels::new("POD");
    let container = labels.start(dockerd, &["--cgroup-parent", &dockerd.pod_cgroup(&labels.uid)]);
    let started = daemon.wait_for("container.started", |event| {
        event.kind() == "container.started" && event.text("/target/container/id") == container.id()
    });
    expect_confirmed(&started, &labels);
}
