//! A Kubernetes of one node: etcd, the API server, the controllers and the scheduler, and a [`KubeletNode`].
//!
//! They listen on addresses of the loopback that are nobody else's; the API server takes a token that only root can read.
//! `cargo xtask cluster` and `cargo xtask test cluster` build the programs.

use std::ffi::OsString;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::daemon::own_address;
use crate::dockerd::IMAGE;
use crate::image;
use crate::kubelet::{KubeletNode, NodePod};
use crate::mount::Scratch;
use crate::patience::wait_until;
use crate::process::{Finished, Running, attempt, finish_with_input};

/// Lines of each log that a failed test shows.
const LOG_LINES: usize = 30;

/// A cluster.
#[derive(Debug)]
pub struct Cluster {
    /// Dropped first: it would make again what ends.
    control_plane: ControlPlane,
    node: KubeletNode,
}

impl Cluster {
    /// Starts everything, and waits until pods can be made in the namespace of the node.
    #[must_use]
    pub fn start() -> Self {
        let control_plane = ControlPlane::start();
        let node = KubeletNode::start_with(Some(control_plane.kubeconfig()));
        let cluster = Self { control_plane, node };
        let ready = "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}";
        wait_until("the node is ready", || {
            let nodes = cluster.control_plane.attempt(&["get", "nodes", "--output", ready]);
            (nodes.stdout == "True").then_some(())
        });
        let _ = cluster.kubectl(&["create", "namespace", cluster.node.namespace()]);
        let docker = cluster.node.dockerd().words::<&str>(&[]).swap_remove(0);
        let programs = cluster.programs();
        fs::create_dir(&programs).expect("a directory can be made");
        for (name, place) in [("kubectl", program("kubectl")), ("docker", docker.into())] {
            symlink(place, programs.join(name)).expect("a link can be made");
        }
        cluster
    }

    /// Its only node.
    #[must_use]
    pub fn node(&self) -> &KubeletNode {
        &self.node
    }

    /// Lines that let a shell use its `kubectl` and the `docker` of its node.
    #[must_use]
    pub fn environment(&self) -> String {
        format!(
            "export KUBECONFIG={}\nexport DOCKER_HOST=unix://{}\nexport PATH={}:$PATH\n",
            self.control_plane.kubeconfig().display(),
            self.node.dockerd().socket().display(),
            self.programs().display(),
        )
    }

    fn programs(&self) -> PathBuf {
        self.control_plane.path("bin")
    }

    /// Runs `kubectl` in the namespace of the node; panics unless it succeeds.
    pub fn kubectl(&self, arguments: &[&str]) -> Finished {
        let namespace = format!("--namespace={}", self.node.namespace());
        let words = [&[&*namespace], arguments].concat();
        self.control_plane.attempt(&words).succeeded(&format!("kubectl {arguments:?}"))
    }

    /// Applies an object, wherever it says.
    pub fn apply(&self, object: &Value) {
        let mut command = self.control_plane.kubectl(&["apply", "--filename=-"]);
        let _ = finish_with_input(&mut command, object.to_string());
    }

    /// A token of a service account, as the kubelet asks for those of pods.
    #[must_use]
    pub fn token(&self, namespace: &str, account: &str) -> String {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
        let mut command = self.control_plane.kubectl(&["create", "--raw", &path, "--filename=-"]);
        let answer = finish_with_input(&mut command, request.to_string()).stdout;
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        answer["status"]["token"].as_str().expect("a token").to_owned()
    }

    /// URL of the API server.
    #[must_use]
    pub fn server(&self) -> String {
        format!("https://{}", self.control_plane.api)
    }

    /// Certificates of the authority that the API server has its own of.
    #[must_use]
    pub fn authority(&self) -> PathBuf {
        self.control_plane.path("certificates/apiserver.crt")
    }

    /// Makes a StatefulSet: its pods are `NAME-0`, `NAME-1` and so on, and each is replaced by one of the same name. Each has a
    /// volume in memory, which is called `data`.
    pub fn run_stateful_set(&self, name: &str, replicas: u32) {
        let labels = json!({ "app": name });
        let manifest = json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": {"name": name, "namespace": self.node.namespace()},
            "spec": {
                "serviceName": name, "replicas": replicas, "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{
                        "name": "app", "image": IMAGE, "imagePullPolicy": "Never",
                        "command": ["/bin/sleep", "1000000"],
                        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                    }],
                    "volumes": [{"name": "data", "emptyDir": {"medium": "Memory"}}],
                }},
            },
        });
        let mut command = self.control_plane.kubectl(&["create", "--filename=-"]);
        let _ = finish_with_input(&mut command, manifest.to_string());
    }

    /// Waits until a pod of this name runs, in other containers than these.
    #[must_use]
    pub fn wait_for_pod(&self, name: &str, other_than: &[&str]) -> NodePod {
        self.node.wait_for_pod(name, other_than)
    }
}

/// All of a cluster but its node.
#[derive(Debug)]
struct ControlPlane {
    processes: Vec<(&'static str, Running)>,
    api: SocketAddr,
    scratch: Scratch,
}

impl ControlPlane {
    fn start() -> Self {
        let (etcd, peer, api) = (own_address(), own_address(), own_address());
        let mut plane = Self { processes: Vec::new(), api, scratch: Scratch::without_mounts() };
        plane.write_access(api);
        plane.start_etcd(etcd, peer);
        wait_until("etcd answers", || {
            plane.expect_alive();
            crate::http::get(etcd, "/health").filter(|answer| answer.body.contains("true"))
        });
        plane.start_api_server(etcd, api);
        wait_until("the API server answers", || {
            plane.expect_alive();
            plane.attempt(&["get", "--raw=/readyz"]).status.success().then_some(())
        });
        for name in ["kube-controller-manager", "kube-scheduler"] {
            let kubeconfig = format!("--kubeconfig={}", plane.kubeconfig().display());
            // Nobody asks them anything.
            let words = [&kubeconfig, "--leader-elect=false", "--port=0", "--secure-port=0"];
            plane.spawn(name, program(name), &words.map(str::to_owned));
        }
        plane
    }

    /// The keys of the cluster, and what a client has to know.
    fn write_access(&self, api: SocketAddr) {
        let mode = PermissionsExt::from_mode(0o700);
        fs::set_permissions(self.scratch.path(), mode).expect("a mode can be set");
        let key = self.path("service-account.key");
        let words =
            ["openssl".as_ref(), "genrsa".as_ref(), "-out".as_ref(), key.as_os_str(), "2048".as_ref()];
        let _ = attempt(&words).succeeded("openssl");
        let token =
            fs::read_to_string("/proc/sys/kernel/random/uuid").expect("the kernel has random numbers");
        let token = token.trim_end();
        fs::write(self.path("tokens.csv"), format!("{token},admin,admin,system:masters\n")).expect("a file");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "kevtmon",
            "clusters": [{"name": "kevtmon", "cluster":
                {"server": format!("https://{api}"), "insecure-skip-tls-verify": true}}],
            "users": [{"name": "admin", "user": {"token": token}}],
            "contexts": [{"name": "kevtmon", "context": {"cluster": "kevtmon", "user": "admin"}}],
        });
        fs::write(self.kubeconfig(), config.to_string()).expect("a file can be written");
    }

    fn start_etcd(&mut self, clients: SocketAddr, peers: SocketAddr) {
        let words = [
            format!("--data-dir={}", self.path("etcd").display()),
            format!("--listen-client-urls=http://{clients}"),
            format!("--advertise-client-urls=http://{clients}"),
            format!("--listen-peer-urls=http://{peers}"),
            format!("--initial-advertise-peer-urls=http://{peers}"),
            format!("--initial-cluster=default=http://{peers}"),
        ];
        self.spawn("etcd", image::find("etcd"), &words);
    }

    fn start_api_server(&mut self, etcd: SocketAddr, api: SocketAddr) {
        let key = self.path("service-account.key").display().to_string();
        let words = [
            format!("--etcd-servers=http://{etcd}"),
            format!("--bind-address={}", api.ip()),
            format!("--secure-port={}", api.port()),
            format!("--cert-dir={}", self.path("certificates").display()),
            format!("--token-auth-file={}", self.path("tokens.csv").display()),
            format!("--service-account-key-file={key}"),
            format!("--service-account-signing-key-file={key}"),
            "--service-account-issuer=https://kevtmon.invalid".to_owned(),
            "--authorization-mode=RBAC".to_owned(),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            "--allow-privileged=true".to_owned(),
            "--service-cluster-ip-range=198.18.0.0/24".to_owned(),
            // It must not be of the loopback, and nobody is told.
            "--advertise-address=192.0.2.1".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
        ];
        self.spawn("kube-apiserver", program("kube-apiserver"), &words);
    }

    fn spawn(&mut self, name: &'static str, program: PathBuf, arguments: &[String]) {
        let log = File::create(self.log_file(name)).expect("a log file");
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.scratch.path()).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("a log file")).stderr(log);
        self.processes.push((name, Running::spawn(&mut command)));
    }

    /// Panics if one has ended.
    fn expect_alive(&mut self) {
        for (name, process) in &mut self.processes {
            let ended = process.ended();
            assert!(ended.is_none(), "{name} ended: {ended:?}");
        }
    }

    fn kubectl(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program("kubectl"));
        command.arg("--kubeconfig").arg(self.kubeconfig()).arg("--request-timeout=20s").args(arguments);
        // It keeps what it discovers.
        command.arg("--cache-dir").arg(self.path("kubectl"));
        command
    }

    fn attempt(&self, arguments: &[&str]) -> Finished {
        let command = self.kubectl(arguments);
        let words: Vec<OsString> =
            std::iter::once(command.get_program()).chain(command.get_args()).map(Into::into).collect();
        attempt(&words)
    }

    fn kubeconfig(&self) -> PathBuf {
        self.path("kubeconfig")
    }

    fn log_file(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}.log"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }
}

impl Drop for ControlPlane {
    #[expect(clippy::print_stderr, reason = "why a test failed is in these logs")]
    fn drop(&mut self) {
        // Those first that use the others.
        while let Some((name, process)) = self.processes.pop() {
            drop(process);
            if std::thread::panicking() {
                let log = fs::read_to_string(self.log_file(name)).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                let last = lines.len().saturating_sub(LOG_LINES);
                eprintln!("the end of the log of {name}:\n{}", lines[last..].join("\n"));
            }
        }
    }
}

/// A program of the control plane, or `kubectl`.
fn program(name: &str) -> PathBuf {
    let directory = std::env::var_os("KEVTMON_CONTROL_PLANE").map(PathBuf::from);
    let directory = directory.expect(
        "KEVTMON_CONTROL_PLANE is the directory of kube-apiserver: `cargo xtask test cluster` builds it",
    );
    directory.join(name)
}
