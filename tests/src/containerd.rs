//! A containerd of the tests' own, driven over the CRI as a kubelet does it: pods in networks of real CNI plugins.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::cri::{
    self, Capabilities, ContainerConfig, ContainerSecurity, CreateContainer, Id, Ids, LinuxContainer,
    LinuxPod, Name, Namespaces, PodConfig, PodMetadata, Security, UserNamespace,
};
use crate::dockerd::{END, is_dead};
use crate::eventually;
use crate::image;
use crate::lock;
use crate::mount::Scratch;
use crate::netns::NetnsPath;
use crate::patience::wait_until;
use crate::pod_sandbox::uuid;
use crate::process::attempt;
use crate::reaper::Cleanup;
use crate::unique;

/// Image of every container and sandbox.
const IMAGE: &str = "kevtmon.test/idle:1";

/// The namespace of containerd's in which the CRI makes containers.
const CRI: &str = "k8s.io";

/// Where Debian has the CNI plugins (package containernetworking-plugins).
const PLUGINS: &str = "/usr/lib/cni";

/// Namespace of all pods.
pub const NAMESPACE: &str = "lijiaob";

/// First id on the host of the users of a pod with a user namespace of its own.
pub const FIRST_UID: u32 = 100_000;

/// Labels of all pods.
const LABELS: [(&str, &str); 2] = [("app", "etcd"), ("token", "hunter2")];

/// How pods get their network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plugin {
    /// By a pair of links and routes.
    Ptp,
    /// By a bridge on the host.
    Bridge,
}

/// A containerd.
#[derive(Debug)]
pub struct Containerd {
    /// Name of the control group above its containers.
    name: String,
    process: Mutex<Option<Child>>,
    _cleanup: Cleanup,
    /// Dropped last: it holds all files.
    scratch: Scratch,
}

impl Containerd {
    /// Starts one whose pods have links of their own.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(Plugin::Ptp)
    }

    /// Starts one and gives it the image.
    #[must_use]
    pub fn start_with(plugin: Plugin) -> Self {
        let scratch = Scratch::without_mounts();
        let name = unique::name("kvd");
        // The plugin makes the bridge, and leaves it.
        let end = format!("{END}\nip link del {name} 2>/dev/null\n");
        let cleanup = Cleanup::script(&format!("dir={}\nname={name}\n{end}", scratch.path().display()));
        let containerd = Self { name, process: Mutex::new(None), _cleanup: cleanup, scratch };
        containerd.configure(plugin);
        containerd.launch();
        let saved = image::saved(&containerd.scratch, IMAGE);
        let _ = containerd.ctr(&["images", "import", &saved.to_string_lossy()]);
        containerd
    }

    fn configure(&self, plugin: Plugin) {
        let directory = self.scratch.path();
        let shown = directory.display();
        let [a, b, c] = unique::subnet(128);
        let subnet = format!("{a}.{b}.{c}.0/24");
        let config = format!(
            r#"version = 2
root = "{shown}/root"
state = "{shown}/state"
[grpc]
  address = "{shown}/state/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{shown}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{IMAGE}"
  restrict_oom_score_adj = true
  tolerate_missing_hugetlb_controller = true
  netns_mounts_under_state_dir = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{PLUGINS}"
    conf_dir = "{shown}/cni"
"#
        );
        let ipam = serde_json::json!({"type": "host-local", "dataDir": directory.join("ipam"), "subnet": subnet,
            "routes": [{"dst": "0.0.0.0/0"}]});
        let plugin = match plugin {
            Plugin::Ptp => serde_json::json!({"type": "ptp", "ipMasq": false, "ipam": ipam}),
            Plugin::Bridge => {
                serde_json::json!({"type": "bridge", "bridge": self.name, "isGateway": true, "ipam": ipam})
            }
        };
        let network = serde_json::json!({"cniVersion": "0.4.0", "name": "kevtmon", "plugins": [plugin]});
        std::fs::create_dir(directory.join("cni")).expect("a directory can be made");
        for (file, text) in [("config.toml", config), ("cni/10-kevtmon.conflist", network.to_string())] {
            std::fs::write(directory.join(file), text).expect("a file can be written");
        }
    }

    /// Its process.
    #[must_use]
    pub fn process(&self) -> u32 {
        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        process.as_ref().map(Child::id).expect("containerd runs")
    }

    /// Starts it, and waits until it answers.
    pub fn launch(&self) {
        let directory = self.scratch.path();
        let log = File::options().create(true).append(true).open(self.log()).expect("a log file");
        let mut command = Command::new(image::find("containerd"));
        command.arg("--config").arg(directory.join("config.toml"));
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log file")).stderr(log);
        let child = command.spawn().expect("containerd starts");
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = Some(child);
        wait_until("containerd answers", || {
            cri::attempt::<Id>(&self.socket(), "Version", &Id::default()).ok()
        });
    }

    /// Kills it at once; its containers live on.
    pub fn kill(&self) {
        let child = self.process.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut child = child.expect("containerd runs");
        child.kill().expect("containerd can be killed");
        child.wait().expect("containerd can be waited for");
        eventually!(is_dead(&child.id().to_string()), "containerd ends");
    }

    /// Path of its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        // In its state directory, as usual: so its files are found.
        self.scratch.path().join("state/containerd.sock")
    }

    /// The first two numbers of its version.
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        let answer: cri::Version = cri::ask(&self.socket(), "Version", &Id::default());
        let mut numbers = answer.runtime.trim_start_matches('v').split('.').map(str::parse::<u32>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
            _ => panic!("containerd has no version: {answer:?}"),
        }
    }

    /// What the daemon under test takes as `--runtime`.
    #[must_use]
    pub fn runtime(&self) -> String {
        format!("cri={}", self.socket().display())
    }

    /// Where its log is.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.scratch.path().join("log")
    }

    /// Runs the sandbox of a new pod.
    #[must_use]
    pub fn run_pod(&self) -> CriPod<'_> {
        self.run_named(format!("etcd-{}", &uuid()[..8]), None)
    }

    /// Runs the sandbox of a new pod in the network of the host (`hostNetwork`).
    #[must_use]
    pub fn run_on_host(&self) -> CriPod<'_> {
        let namespaces = Namespaces { network: cri::NODE, user: None };
        let security = Security { namespaces: Some(namespaces) };
        self.run_named(format!("proxy-{}", &uuid()[..8]), Some(security))
    }

    /// Runs the sandbox of a new pod in a user namespace of its own; `None` where this containerd cannot.
    #[must_use]
    pub fn run_with_users(&self) -> Option<CriPod<'_>> {
        if self.version() < (2, 0) {
            return None;
        }
        let all = vec![Ids { host: FIRST_UID, container: 0, length: 65_536 }];
        let user = Some(UserNamespace { uids: all.clone(), gids: all });
        let security = Security { namespaces: Some(Namespaces { network: 0, user }) };
        Some(self.run_named(format!("etcd-{}", &uuid()[..8]), Some(security)))
    }

    /// Runs the sandbox of a pod of the same name, as a StatefulSet has it made.
    #[must_use]
    pub fn run_successor(&self, pod: &CriPod<'_>) -> CriPod<'_> {
        self.run_named(pod.name.clone(), None)
    }

    fn run_named(&self, name: String, security: Option<Security>) -> CriPod<'_> {
        let shared = lock::Shared::take();
        let uid = uuid();
        let config = PodConfig {
            metadata: Some(PodMetadata { name: name.clone(), uid: uid.clone(), namespace: NAMESPACE.into() }),
            labels: LABELS.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            // It does not tell the pod.
            linux: Some(LinuxPod { cgroup_parent: format!("/{}/pods", self.name), security }),
        };
        let request = cri::RunPodSandbox { config: Some(config.clone()) };
        let made: Id = cri::ask(&self.socket(), "RunPodSandbox", &request);
        let pid = self.pid(&made.id);
        CriPod { containerd: self, config, name, uid, id: made.id, pid, _shared: shared }
    }

    /// The first process of a container, on the host.
    fn pid(&self, id: &str) -> u32 {
        self.pid_in(CRI, id)
    }

    fn pid_in(&self, namespace: &str, id: &str) -> u32 {
        let tasks = self.ctr_in(namespace, &["tasks", "ls"]);
        let task = tasks.lines().find(|line| line.starts_with(id)).expect("the container has a process");
        task.split_whitespace().nth(1).and_then(|pid| pid.parse().ok()).expect("a process id")
    }

    /// Starts a container of which the CRI knows nothing, beside those that it has made, with these options of `ctr run`;
    /// returns its id and first process.
    #[must_use]
    pub fn start_aside(&self, options: &[&str]) -> (String, u32) {
        self.start_in(CRI, options)
    }

    /// The same in another namespace of containerd's, in which nothing is yet.
    #[must_use]
    pub fn start_elsewhere(&self, namespace: &str, options: &[&str]) -> (String, u32) {
        let saved = self.scratch.path().join("saved.tar");
        self.ctr_in(namespace, &["images", "import", "--no-unpack", &saved.to_string_lossy()]);
        self.start_in(namespace, options)
    }

    fn start_in(&self, namespace: &str, options: &[&str]) -> (String, u32) {
        let id = format!("{}{}", uuid(), uuid()).replace('-', "");
        let group = format!("/{}/{id}", self.name);
        let own = ["run", "--detach", "--snapshotter", "native", "--cgroup", &group];
        let words = [&own[..], options, &[IMAGE, &id, "/bin/sleep", "1000000"]].concat();
        self.ctr_in(namespace, &words);
        let pid = self.pid_in(namespace, &id);
        (id, pid)
    }

    /// Runs a command in a container of the CRI to its end.
    pub fn execute(&self, id: &str, command: &[&str]) {
        let name = format!("--exec-id={}", unique::name("kvx"));
        self.ctr(&[&["tasks", "exec", &name, id], command].concat());
    }

    /// Runs containerd's own client in the namespace of the CRI; returns what it prints.
    fn ctr(&self, arguments: &[&str]) -> String {
        self.ctr_in(CRI, arguments)
    }

    /// Runs containerd's own client in a namespace of containerd's; returns what it prints.
    pub fn ctr_in(&self, namespace: &str, arguments: &[&str]) -> String {
        let socket = self.socket();
        let words = ["ctr", "-a", &socket.to_string_lossy(), "-n", namespace];
        let words = [&words[..], arguments].concat();
        attempt(&words).succeeded(&format!("{words:?}")).stdout
    }

    fn about(&self, method: &str, id: &str) {
        let _: Id = cri::ask(&self.socket(), method, &Id { id: id.to_owned() });
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // Reaped here, else the script would see a zombie. The script does the rest.
        if let Some(mut child) = self.process.lock().unwrap_or_else(PoisonError::into_inner).take() {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// A pod with its sandbox and network.
#[derive(Debug)]
pub struct CriPod<'c> {
    containerd: &'c Containerd,
    config: PodConfig,
    name: String,
    uid: String,
    id: String,
    pid: u32,
    _shared: lock::Shared,
}

impl CriPod<'_> {
    /// `NAMESPACE/NAME`.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{NAMESPACE}/{}", self.name)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its identity.
    #[must_use]
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Id of its sandbox.
    #[must_use]
    pub fn sandbox(&self) -> &str {
        &self.id
    }

    /// Its network namespace.
    #[must_use]
    pub fn netns(&self) -> NetnsPath {
        NetnsPath::of_process(self.pid)
    }

    /// Starts a container with these directories of the host, at their own paths, and what is mounted below; returns its
    /// id and first process.
    #[must_use]
    pub fn start_container(&self, name: &str, command: &[&str], volumes: &[&Path]) -> (String, u32) {
        let volume = |path: &&Path| {
            let path = path.to_string_lossy().into_owned();
            cri::Mount { container_path: path.clone(), host_path: path, propagation: 1, image: None }
        };
        self.start_with(name, command, volumes.iter().map(volume).collect())
    }

    /// Starts a container that does nothing, with an image as a volume; `None` where this containerd cannot.
    #[must_use]
    pub fn start_with_image_volume(&self, name: &str) -> Option<(String, u32)> {
        if self.containerd.version() < (2, 1) {
            return None;
        }
        let image = Some(Name { name: IMAGE.to_owned() });
        let volume = cri::Mount { container_path: "/data".to_owned(), image, ..cri::Mount::default() };
        Some(self.start_with(name, &["/bin/sleep", "1000000"], vec![volume]))
    }

    /// Where the host has the images that its containers have as volumes.
    #[must_use]
    pub fn image_volumes(&self) -> PathBuf {
        let state = self.containerd.scratch.path().join("state/io.containerd.grpc.v1.cri");
        state.join("image-volumes").join(&self.id)
    }

    fn start_with(&self, name: &str, command: &[&str], mounts: Vec<cri::Mount>) -> (String, u32) {
        let namespaces = self.config.linux.as_ref().and_then(|linux| linux.security.clone()?.namespaces);
        // What is done in a user namespace must be allowed there.
        let linux = namespaces.filter(|namespaces| namespaces.user.is_some()).map(|namespaces| {
            let capabilities = Some(Capabilities { add: vec!["NET_ADMIN".to_owned()] });
            LinuxContainer {
                security: Some(ContainerSecurity { capabilities, namespaces: Some(namespaces) }),
            }
        });
        let config = ContainerConfig {
            metadata: Some(Name { name: name.to_owned() }),
            image: Some(Name { name: IMAGE.to_owned() }),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            mounts,
            linux,
        };
        let request = CreateContainer {
            pod_sandbox_id: self.id.clone(),
            config: Some(config),
            sandbox_config: Some(self.config.clone()),
        };
        let made: Id = cri::ask(&self.containerd.socket(), "CreateContainer", &request);
        self.containerd.about("StartContainer", &made.id);
        let pid = self.containerd.pid(&made.id);
        (made.id, pid)
    }

    /// Tries to stop the pod; the runtime's words if it cannot.
    ///
    /// # Errors
    /// What the runtime answers.
    pub fn try_to_stop(&self) -> Result<(), String> {
        let id = Id { id: self.id.clone() };
        cri::attempt::<Id>(&self.containerd.socket(), "StopPodSandbox", &id).map(drop)
    }

    /// Stops a container at once, and removes it.
    pub fn remove_container(&self, id: &str) {
        self.containerd.about("StopContainer", id);
        self.containerd.about("RemoveContainer", id);
    }

    /// Ends the pod as a kubelet does.
    pub fn remove(self) {
        self.containerd.about("StopPodSandbox", &self.id);
        self.containerd.about("RemovePodSandbox", &self.id);
    }
}
