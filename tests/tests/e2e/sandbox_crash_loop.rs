//! Sandboxes that a real Docker makes and cannot start, because runc fails.

use std::path::{Path, PathBuf};

use kevtmon_tests::daemon::launch;
use kevtmon_tests::dockerd::{Dockerd, IMAGE};
use kevtmon_tests::event::Event;
use kevtmon_tests::pod_sandbox::uuid;
use kevtmon_tests::reaper::Cleanup;

const NAMESPACE: &str = "lijiaob";
/// Sandboxes that are made: a number at which their incident is told again.
const ATTEMPTS: u32 = 16;
/// What runc cannot set, and so it starts nothing.
const SETTING: &str = "--sysctl=net.ipv4.kevtmon=1";
/// What it says of that.
const REASON: &str = "/proc/sys/net/ipv4/kevtmon: no such file or directory";
/// Where cri-dockerd keeps its checkpoints. Not dockershim's: a kubelet of another test would take them for its own.
const CHECKPOINTS: &str = "/var/lib/cri-dockerd/sandbox";

/// A pod whose sandboxes cannot be started.
struct Pod<'d> {
    dockerd: &'d Dockerd,
    name: String,
    uid: String,
    checkpoints: Vec<(PathBuf, Cleanup)>,
}

impl Pod<'_> {
    /// Makes and starts a sandbox, in the order of dockershim: its checkpoint is there before it is started.
    fn attempt(&mut self, attempt: u32) -> String {
        let name = format!("k8s_POD_{}_{NAMESPACE}_{}_{attempt}", self.name, self.uid);
        let labels = [
            format!("--label=io.kubernetes.pod.namespace={NAMESPACE}"),
            format!("--label=io.kubernetes.pod.name={}", self.name),
            format!("--label=io.kubernetes.pod.uid={}", self.uid),
            "--label=io.kubernetes.container.name=POD".to_owned(),
            "--label=io.kubernetes.docker.type=podsandbox".to_owned(),
            format!("--cgroup-parent={}", self.dockerd.pod_cgroup(&self.uid)),
            format!("--name={name}"),
        ];
        let mut words = vec!["create", SETTING, "--network=none"];
        words.extend(labels.iter().map(String::as_str));
        words.extend([IMAGE, "sleep", "1000000"]);
        let id = self.dockerd.docker(&words).stdout.trim().to_owned();
        let path = Path::new(CHECKPOINTS).join(&id);
        let shown = path.display();
        let cleanup =
            Cleanup::script(&format!("rm -f '{shown}'; rmdir -p \"$(dirname '{shown}')\" 2>/dev/null\n"));
        std::fs::create_dir_all(CHECKPOINTS).expect("a directory can be made");
        let checkpoint = serde_json::json!({"version": "v1", "name": self.name, "namespace": NAMESPACE});
        std::fs::write(&path, checkpoint.to_string()).expect("a file can be written");
        self.checkpoints.push((path, cleanup));
        let started = self.dockerd.attempt(&["start", &id]);
        assert!(!started.status.success() && started.stderr.contains(REASON), "{}", started.stderr);
        id
    }
}

impl Drop for Pod<'_> {
    fn drop(&mut self) {
        for (path, _) in &self.checkpoints {
            let id = path.file_name().unwrap_or_default().to_string_lossy();
            let _ = self.dockerd.attempt(&["rm", "-f", &*id]);
        }
    }
}

#[test]
fn sandboxes_that_the_runtime_cannot_start_are_one_incident_with_its_reason() {
    let dockerd = Dockerd::shared();
    let uid = uuid();
    let name = format!("etcd-{}", &uid[..8]);
    let mut pod = Pod { dockerd, name, uid, checkpoints: Vec::new() };
    let mut daemon = launch().joining(dockerd.runtime()).start();
    let ids: Vec<String> = (0..ATTEMPTS).map(|attempt| pod.attempt(attempt)).collect();

    let is_it = |event: &Event| event.text("/incident/kind") == "sandbox-crash-loop";
    let opened = daemon.wait_for("the crash loop", |event| is_it(event) && event.kind() == "incident.opened");
    assert_eq!((opened.severity(), opened.text("/incident/confidence")), ("warning", "certain"), "{opened}");
    opened.expect("/target/pod/namespace", NAMESPACE);
    opened.expect("/target/pod/name", &*pod.name);
    opened.expect("/target/pod/uid", &*pod.uid);
    opened.expect_none("/target/pod/claimed");
    let told = daemon.wait_for("all of them are counted", |event| {
        is_it(event) && event.number("/incident/count") == Some(ATTEMPTS.into())
    });
    assert_eq!(told.text("/incident/id"), opened.text("/incident/id"));
    let summary = told.text("/incident/summary");
    let expected = format!("sandboxes of pod {NAMESPACE}/{} are created repeatedly, 5 within ", pod.name);
    assert!(summary.starts_with(&expected), "{summary}");
    let (_, reason) = summary.split_once("; the runtime says ").expect("its reason");
    assert!(reason.contains(REASON), "{summary}");

    let all = daemon.events();
    assert_eq!(all.iter().filter(|event| is_it(event) && event.kind() == "incident.opened").count(), 1);
    // Those before it opened, and no more.
    let of_them = |event: &&Event| {
        event.kind().starts_with("container.")
            && ids.iter().any(|id| event.text("/target/container/id") == id)
    };
    let lifecycle = all.iter().filter(of_them).count();
    assert!(lifecycle <= 6, "{lifecycle} events of single sandboxes");
}
