//! Containers that are made instead of others, with labels as a kubelet sets them.

use kevtmon_tests::advice::carry_out;
use kevtmon_tests::component::{Program, start};
use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::event::Event;
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::pod_sandbox::uuid;

const NAMESPACE: &str = "lijiaob";
const OLD: &str = "5cee1837";
const NEW: &str = "552aae9d";
const SANDBOX: &str = "94feeebc95fb94feeebc95fb94feeebc95fb94feeebc95fb94feeebc95fb9411";

/// A pod as a kubelet tells Docker of it.
struct Pod {
    name: String,
    uid: String,
    group: Option<String>,
}

impl Pod {
    fn new(dockerd: &Dockerd) -> Self {
        let uid = uuid();
        Self { name: format!("etcd-{}", &uid[..8]), group: Some(dockerd.pod_cgroup(&uid)), uid }
    }

    /// Of which nothing but the labels tell.
    fn claimed() -> Self {
        let uid = uuid();
        Self { name: format!("etcd-{}", &uid[..8]), group: None, uid }
    }

    /// An attempt of its container.
    fn start<'d>(&self, dockerd: &'d Dockerd, attempt: u32, hash: &str) -> Container<'d> {
        let labels = [
            ("io.kubernetes.pod.namespace", NAMESPACE),
            ("io.kubernetes.pod.name", &self.name),
            ("io.kubernetes.pod.uid", &self.uid),
            ("io.kubernetes.container.name", "etcd"),
            ("io.kubernetes.docker.type", "container"),
            ("io.kubernetes.sandbox.id", SANDBOX),
            ("annotation.io.kubernetes.container.hash", hash),
            ("annotation.io.kubernetes.container.restartCount", &attempt.to_string()),
        ]
        .map(|(key, value)| format!("--label={key}={value}"));
        let group = self.group.as_ref().map(|group| format!("--cgroup-parent={group}"));
        let options: Vec<&str> =
            labels.iter().chain(&group).map(String::as_str).chain(["--network=none"]).collect();
        Container::idle(dockerd, &options)
    }

    /// Its container is killed, and made again.
    fn recreate<'d>(&self, dockerd: &'d Dockerd, old: &mut Container<'d>, hash: &str) -> Container<'d> {
        old.end(&["kill"]);
        self.start(dockerd, 1, hash)
    }

    fn full(&self) -> String {
        format!("{NAMESPACE}/{}", self.name)
    }
}

fn recreation(daemon: &mut Daemon, container: &Container<'_>) -> Event {
    daemon.wait_for(&format!("recreation by {}", container.name()), |event| {
        event.kind() == "container.recreated" && event.text("/target/container/id") == container.id()
    })
}

#[test]
fn a_container_of_another_spec_hash_is_told_with_both_hashes_and_after_the_fact() {
    let dockerd = Dockerd::shared();
    let pod = Pod::new(dockerd);
    let mut old = pod.start(dockerd, 0, OLD);
    let mut daemon = launch().joining(dockerd.runtime()).start();
    let new = pod.recreate(dockerd, &mut old, NEW);
    let event = recreation(&mut daemon, &new);
    event.expect("/target/pod/uid", &*pod.uid);
    event.expect_none("/target/pod/claimed");
    event.expect("/recreation/name", "etcd");
    event.expect("/recreation/reason", "spec-hash-changed");
    event.expect("/recreation/previous/id", old.id());
    event.expect("/recreation/previous_attempt", 0);
    event.expect("/recreation/attempt", 1);
    event.expect("/recreation/previous_spec_hash/hex", OLD);
    event.expect("/recreation/previous_spec_hash/decimal", "1559107639");
    event.expect("/recreation/spec_hash/decimal", "1428860573");
    event.expect("/recreation/same_sandbox", true);
    event.expect_none("/recreation/found_at_start");
    let expected = format!(
        "container etcd of pod {} was re-created: the hash of its specification changed from 1559107639 to 1428860573",
        pod.full()
    );
    event.expect("/message", expected);
    let reasons =
        |reason| daemon.metrics().count("kevtmon_container_recreations_total", &[("reason", reason)]);
    assert!(reasons("spec-hash-changed") >= 1.0);
}

#[test]
fn a_container_that_was_made_anew_before_the_daemon_started_is_told_as_such() {
    let dockerd = Dockerd::shared();
    // Without a process nothing confirms the pod of the one that has ended: both are claims.
    let pod = Pod::claimed();
    let mut old = pod.start(dockerd, 0, OLD);
    let new = pod.recreate(dockerd, &mut old, OLD);
    let mut daemon = launch().joining(dockerd.runtime()).start();
    let event = recreation(&mut daemon, &new);
    event.expect("/recreation/found_at_start", true);
    event.expect("/recreation/reason", "exited");
    event.expect("/target/pod/claimed", true);
    assert!(event.text("/message").contains("claims to be pod"), "{event}");
}

/// Of a kubelet that runs beside others it is not told which of them it replaces.
mod alone {
    use super::*;

    #[test]
    fn a_new_kubelet_that_has_all_containers_made_anew_is_a_storm_and_claims_are_none() {
        let dockerd = Dockerd::shared();
        let scratch = Scratch::without_mounts();
        let old_kubelet = Program::new(&scratch, "old/kubelet", Some("v1.7.16"));
        let new_kubelet = Program::new(&scratch, "new/kubelet", Some("v1.9.11"));
        let pods: Vec<Pod> = (0..3).map(|_| Pod::new(dockerd)).collect();
        let claims: Vec<Pod> = (0..3).map(|_| Pod::claimed()).collect();
        let start_all = |pods: &[Pod]| -> Vec<Container<'_>> {
            pods.iter().map(|pod| pod.start(dockerd, 0, OLD)).collect()
        };
        let (mut containers, mut claimants) = (start_all(&pods), start_all(&claims));
        let mut first = start(&old_kubelet);
        let mut daemon = launch().joining(dockerd.runtime()).start();
        daemon.wait_for_component(first.pid());
        first.end_with("0");
        let second = start(&new_kubelet);
        daemon.wait_for_component(second.pid());
        let mut made = Vec::new();
        for (pod, container) in claims.iter().zip(&mut claimants) {
            let new = pod.recreate(dockerd, container, NEW);
            recreation(&mut daemon, &new).expect("/target/pod/claimed", true);
            made.push(new);
        }
        let is_storm = |event: &Event| event.text("/incident/kind") == "spec-hash-storm";
        let of_it =
            |event: &Event| is_storm(event) && event.number("/component/pid") == Some(second.pid().into());
        assert!(!daemon.events().iter().any(of_it), "claims are no storm");
        for (pod, container) in pods.iter().zip(&mut containers) {
            let new = pod.recreate(dockerd, container, NEW);
            recreation(&mut daemon, &new);
            made.push(new);
        }
        let opened = daemon.wait_for("the storm", of_it);
        opened.expect("/kind", "incident.opened");
        opened.expect("/incident/confidence", "certain");
        opened.expect("/incident/severity", "warning");
        opened.expect("/incident/count", 3);
        opened.expect("/component/version", "v1.9.11");
        opened.expect("/component/previous_version", "v1.7.16");
        let advice = opened.get("/incident/advice").map(ToString::to_string).unwrap_or_default();
        assert!(advice.contains("do not go back") && advice.contains("drain the node"), "{advice}");
        let shown =
            carry_out(&daemon, opened.text("/incident/id"), "spec-hash-storm/show-recreations").stdout;
        for pod in &pods {
            assert!(shown.contains(&pod.full()), "{} in {shown}", pod.full());
        }
    }
}
