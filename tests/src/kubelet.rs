//! A node with a real kubelet of the generation that has dockershim: it runs static pods, and those of a [`crate::cluster`]
//! if it is part of one.
//!
//! kubelet and dockerd are in a mount namespace of their own, since all that they mount has to be shared. What the kubelet
//! would change or leave on the machine is hidden from it there: settings of the kernel, its sockets, the logs of pods. Only
//! dockershim's checkpoints are where they are on every node. `cargo xtask test kubelet` builds the program.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use nix::sys::signal::Signal;

use crate::by_name;
use crate::dockerd::{Dockerd, IMAGE};
use crate::eventually;
use crate::lock::{self, HOST_PID};
use crate::patience::wait_until;
use crate::process::{Running, attempt};
use crate::reaper::Cleanup;
use crate::runc;
use crate::unique;

mod volume;

/// Where dockershim keeps its checkpoints.
const CHECKPOINTS: &str = "/var/lib/dockershim/sandbox";

/// Debian's CNI plugins.
const PLUGINS: &str = "/usr/lib/cni";
/// The node's name, the last part of the names of its static pods; the API server connects to its kubelet by it.
const NODE: &str = "127.0.0.1";
/// The Kubernetes namespace of the pods of a cluster, as in the documents.
const POD_NAMESPACE: &str = "lijiaob";
/// Held while a kubelet runs: it takes all checkpoints for its own.
const LOCK: &str = "/run/lock/kevtmon-kubelet.lock";

/// Lines of its log that a failed test shows.
const LOG_LINES: usize = 100;

/// What the kubelet sets at its start (`pkg/kubelet/cm/container_manager_linux.go`): it finds it set.
const KERNEL: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Directories of the machine that the kubelet sees as empty ones of its own.
const HIDDEN: [&str; 6] = [
    "/var/lib/kubelet", "/var/lib/cni", "/var/log/pods", "/var/log/containers", "/var/lib/kevtmon",
    "/run/kevtmon",
];

/// Makes the mount namespace: `$1` is a directory, the rest are pairs of what is mounted and where.
const NAMESPACE: &str = r#"
mount --make-rshared / || exit
ready=$1
shift
while [ $# -gt 0 ]; do
    mount --bind "$1" "$2" || exit
    shift 2
done
: >"$ready"
exec sleep 1000000
"#;

/// Copies a program of Go, and sets the flags of its build information: addresses instead of texts. By another process, see
/// [`crate::process::copy_program`].
const OLD_BUILD_INFORMATION: &str = r#"
cp "$1" "$2" || exit
for at in $(LC_ALL=C grep -obUaP '\xff Go buildinf:' "$2" | cut -d: -f1); do
    printf '\0' | dd of="$2" bs=1 seek=$((at + 15)) conv=notrunc status=none || exit
done
"#;

/// A node.
#[derive(Debug)]
pub struct KubeletNode {
    /// The Kubernetes namespace of its pods.
    namespace: String,
    /// How it reaches the API server, in a cluster.
    kubeconfig: Option<PathBuf>,
    kubelet: Option<Running>,
    dockerd: Dockerd,
    mounts: Running,
    _checkpoints: Cleanup,
    _alone: File,
    _shared: lock::Shared,
}

impl KubeletNode {
    /// The kubelet's version, as it calls itself.
    pub const VERSION: &str = "v1.20.2";
    /// The same of the kubelet that computes other hashes ([`Self::launch_other`]).
    pub const OTHER_VERSION: &str = "v1.20.2+other-hash";

    /// Starts everything; the kubelet has no pod yet.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(None)
    }

    /// The same; with a `kubeconfig` as the node of a cluster, and with the network of [`crate::by_name`].
    pub(crate) fn start_with(kubeconfig: Option<PathBuf>) -> Self {
        drop(fs::create_dir_all("/run/lock"));
        let alone = File::create(LOCK).expect("a lock can be made");
        alone.lock().expect("a lock can be taken");
        let others = fs::read_dir(CHECKPOINTS).map(Iterator::count).unwrap_or_default();
        assert_eq!(others, 0, "{CHECKPOINTS} has sandboxes of another kubelet, which this one would remove");
        let shared = lock::Shared::take();
        let namespace = kubeconfig.as_ref().map_or_else(|| unique::name("kvk"), |_| POD_NAMESPACE.to_owned());
        // Of a cluster, pods of other namespaces have some, too.
        let checkpoints = Cleanup::script(&match kubeconfig {
            Some(_) => format!("rm -f {CHECKPOINTS}/*\n"),
            None => format!("grep -ls '\"namespace\":\"{namespace}\"' {CHECKPOINTS}/* | xargs -r rm -f\n"),
        });
        let dockerd = Dockerd::prepare();
        let directory = dockerd.directory().to_owned();
        let mounts = mount_namespace(&directory);
        // For a daemon in a pod: pid 1, which it sees, has the mounts of the machine.
        let runtime = runc::install(&directory, &[(HOST_PID, &mounts.pid().to_string())]);
        let dockerd = dockerd.through(&enter(&mounts), &runtime.each_ref().map(String::as_str));
        dockerd.launch();
        let mut node = Self {
            namespace,
            kubeconfig,
            kubelet: None,
            dockerd,
            mounts,
            _checkpoints: checkpoints,
            _alone: alone,
            _shared: shared,
        };
        node.prepare();
        node.launch();
        node
    }

    /// The image of sandboxes, the network, and the control groups.
    fn prepare(&self) {
        let archive = self.dockerd.image_archive();
        let command = r#"--change=CMD ["/bin/sleep","1000000"]"#;
        self.dockerd.docker(&["import", command, &archive.to_string_lossy(), "pause:1"]);
        for directory in ["cni", "cni-bin", "manifests", "kubelet"] {
            fs::create_dir(self.path(directory)).expect("a directory can be made");
        }
        let [_, _, middle, low] = std::process::id().wrapping_mul(11).to_be_bytes();
        let plugin = if self.kubeconfig.is_none() { "ptp" } else { by_name::install(&self.path("cni-bin")) };
        let network = serde_json::json!({"cniVersion": "0.4.0", "name": "kevtmon", "plugins": [{
            "type": plugin, "ipMasq": false,
            "ipam": {"type": "host-local", "dataDir": self.path("ipam"),
                "subnet": format!("10.{}.{low}.0/24", 64 + (middle & 0x3f)),
                "routes": [{"dst": "0.0.0.0/0"}]},
        }]});
        fs::write(self.path("cni/10-kevtmon.conflist"), network.to_string()).expect("a file can be written");
        // The kubelet makes its groups below one that has to be there.
        let script = format!(
            "for group in /sys/fs/cgroup /sys/fs/cgroup/*; do\n\
             [ -e \"$group/cgroup.procs\" ] || continue\n\
             mkdir -p \"$group/{0}\"\n\
             for file in cpus mems; do\n\
             [ ! -e \"$group/cpuset.$file\" ] || cat \"$group/cpuset.$file\" >\"$group/{0}/cpuset.$file\"\n\
             done; done\n",
            self.dockerd.name()
        );
        let _ = attempt(&["sh", "-c", &script]).succeeded("control groups");
    }

    /// Starts the kubelet.
    pub fn launch(&mut self) {
        self.launch_program(&program("KEVTMON_KUBELET"));
    }

    /// Starts another kubelet in its place: of the same source but for the hash of a container, which is taken of the whole
    /// structure, as before 1.16.
    pub fn launch_other(&mut self) {
        self.launch_program(&program("KEVTMON_OTHER_KUBELET"));
    }

    /// Starts a copy of the kubelet, with build information as Go before 1.18 wrote it: without what the linker was given.
    pub fn launch_with_old_build_information(&mut self) {
        let path = self.path("old-go/kubelet");
        fs::create_dir_all(self.path("old-go")).expect("a directory can be made");
        let (from, to) = (program("KEVTMON_KUBELET"), path.to_string_lossy());
        let _ = attempt(&["sh", "-c", OLD_BUILD_INFORMATION, "sh", &from.to_string_lossy(), &to])
            .succeeded("a copy of the kubelet");
        self.launch_program(&path);
    }

    fn launch_program(&mut self, program: &Path) {
        assert!(self.kubelet.is_none(), "a kubelet runs");
        let log = File::options().create(true).append(true).open(self.log_file()).expect("a log file");
        let words = enter(&self.mounts);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(program);
        let socket = |name: &str| format!("unix://{}", self.path(name).display());
        for (flag, value) in [
            ("docker-endpoint", socket("docker.sock")),
            ("container-runtime-endpoint", socket("dockershim.sock")),
            ("cni-bin-dir", format!("{PLUGINS},{}", self.shown("cni-bin"))),
            ("cni-conf-dir", self.shown("cni")),
            ("cni-cache-dir", self.shown("cni-cache")),
            ("cgroup-root", format!("/{}", self.dockerd.name())),
            ("root-dir", self.shown("kubelet")),
            ("cert-dir", self.shown("certificates")),
            ("pod-manifest-path", self.shown("manifests")),
            ("volume-plugin-dir", self.shown("plugins")),
            ("hostname-override", NODE.to_owned()),
            ("pod-infra-container-image", "pause:1".to_owned()),
            // Above those that the kernel chooses by itself.
            ("port", (61_000 + std::process::id() % 4_000).to_string()),
        ] {
            command.arg(format!("--{flag}={value}"));
        }
        command.args([
            "--network-plugin=cni", "--cgroup-driver=cgroupfs", "--fail-swap-on=false", "--eviction-hard=",
            "--enforce-node-allocatable=", "--resolv-conf=", "--address=127.0.0.1", "--healthz-port=0",
            "--read-only-port=0", "--make-iptables-util-chains=false", "--oom-score-adj=0",
            "--image-gc-high-threshold=100",
        ]);
        if let Some(kubeconfig) = &self.kubeconfig {
            command.arg(format!("--kubeconfig={}", kubeconfig.display()));
        }
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log file")).stderr(log);
        self.kubelet = Some(Running::spawn(&mut command));
    }

    /// Process id of the kubelet.
    #[must_use]
    pub fn kubelet_pid(&self) -> u32 {
        self.kubelet.as_ref().expect("the kubelet runs").pid()
    }

    /// Ends the kubelet; its pods go on.
    pub fn stop(&mut self) {
        let mut kubelet = self.kubelet.take().expect("the kubelet runs");
        kubelet.signal(Signal::SIGTERM);
        wait_until("the kubelet ends", || kubelet.ended());
    }

    /// Waits until the kubelet has ended by itself.
    pub fn wait_for_end(&mut self) -> ExitStatus {
        let mut kubelet = self.kubelet.take().expect("the kubelet runs");
        wait_until("the kubelet ends by itself", || kubelet.ended())
    }

    /// Has the runtime fail, until the guard is dropped.
    #[must_use]
    pub fn break_runtime(&self) -> Cleanup {
        let file = self.path("runc.broken");
        fs::write(&file, "").expect("a file can be written");
        Cleanup::script(&format!("rm -f {}\n", file.display()))
    }

    /// What the kubelet has logged.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// The Kubernetes namespace of its pods.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The network of its pods, in a cluster.
    #[must_use]
    pub fn network(&self) -> by_name::Network {
        by_name::Network::new(self.path("cni-bin"), self.namespace.clone())
    }

    /// Its root directory.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        format!("/proc/{}/root", self.mounts.pid()).into()
    }

    /// Its Docker.
    #[must_use]
    pub fn dockerd(&self) -> &Dockerd {
        &self.dockerd
    }

    /// Has the kubelet run a static pod, and waits until its container runs.
    #[must_use]
    pub fn run_pod(&self, name: &str) -> NodePod {
        self.write_manifest(name, None, &serde_json::json!({}));
        self.wait_for_static_pod(name, &[])
    }

    /// Has the kubelet run a static pod. With the same `uid` a pod that is there is changed, else it is another one: the
    /// kubelet takes a hash of the manifest. In `container` are the settings of its container that differ.
    pub fn write_manifest(&self, name: &str, uid: Option<&str>, container: &serde_json::Value) {
        self.write_pod(name, uid, container, None);
    }

    fn write_pod(
        &self,
        name: &str,
        uid: Option<&str>,
        container: &serde_json::Value,
        volumes: Option<serde_json::Value>,
    ) {
        let mut manifest = serde_json::json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [{
                "name": "app", "image": IMAGE, "imagePullPolicy": "Never",
                "command": ["/bin/sleep", "1000000"],
            }]},
        });
        if let Some(uid) = uid {
            manifest["metadata"]["uid"] = uid.into();
        }
        if let Some(volumes) = volumes {
            manifest["spec"]["volumes"] = volumes;
        }
        for (key, value) in container.as_object().into_iter().flatten() {
            manifest["spec"]["containers"][0][key] = value.clone();
        }
        // Under its name only when it is whole: the kubelet watches the directory.
        let (partial, file) = (self.path("manifest"), self.manifest(name));
        fs::write(&partial, manifest.to_string()).expect("a file can be written");
        fs::rename(&partial, &file).expect("a file can be renamed");
    }

    /// As [`Self::wait_for_pod`], of a static pod, by the name in its manifest.
    #[must_use]
    pub fn wait_for_static_pod(&self, name: &str, other_than: &[&str]) -> NodePod {
        self.wait_for_pod(&format!("{name}-{NODE}"), other_than)
    }

    /// Waits until the containers of a pod run, other ones than these.
    #[must_use]
    pub fn wait_for_pod(&self, name: &str, other_than: &[&str]) -> NodePod {
        let new = |container: &str| {
            let id = self.running(name, container)?;
            (!other_than.contains(&&*id)).then_some(id)
        };
        let (sandbox, app) = wait_until(&format!("pod {name} runs"), || Some((new("POD")?, new("app")?)));
        let uid = r#"{{index .Config.Labels "io.kubernetes.pod.uid"}}"#;
        let uid = self.dockerd.docker(&["inspect", "-f", uid, &sandbox]).stdout.trim().to_owned();
        let pid = self.dockerd.docker(&["inspect", "-f", "{{.State.Pid}}", &sandbox]).stdout;
        let pid = pid.trim().parse().expect("a process id");
        NodePod { namespace: self.namespace.clone(), name: name.to_owned(), uid, sandbox, app, pid }
    }

    /// Id of the container of a pod, if it runs.
    fn running(&self, pod: &str, container: &str) -> Option<String> {
        let pod = format!("label=io.kubernetes.pod.name={pod}");
        let container = format!("label=io.kubernetes.container.name={container}");
        let words = ["ps", "--quiet", "--no-trunc", "--filter", &pod, "--filter", &container];
        let listed = self.dockerd.attempt(&words).stdout;
        listed.lines().next().map(str::to_owned)
    }

    /// Takes the manifest of a pod away, so that the kubelet ends it in good order; waits until its container is gone.
    pub fn remove_pod(&self, name: &str, pod: &NodePod) {
        fs::remove_file(self.manifest(name)).expect("the pod has a manifest");
        for id in [&pod.app, &pod.sandbox] {
            eventually!(
                self.dockerd.attempt(&["ps", "-q", "--no-trunc"]).stdout.lines().all(|running| running != id),
                "{id} is ended"
            );
        }
    }

    fn manifest(&self, name: &str) -> PathBuf {
        self.path(&format!("manifests/{name}.json"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dockerd.directory().join(name)
    }

    fn shown(&self, name: &str) -> String {
        self.path(name).to_string_lossy().into_owned()
    }

    fn log_file(&self) -> PathBuf {
        self.path("kubelet.log")
    }
}

impl Drop for KubeletNode {
    #[expect(clippy::print_stderr, reason = "why a test failed is in the log of the kubelet")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = lines.len().saturating_sub(LOG_LINES);
            eprintln!("the end of the kubelet's log:\n{}", lines[last..].join("\n"));
        }
        // It would start again what ends.
        drop(self.kubelet.take());
        let all = self.dockerd.attempt(&["ps", "--all", "--quiet"]).stdout;
        let ids: Vec<&str> = all.lines().collect();
        if !ids.is_empty() {
            let _ = self.dockerd.attempt(&[&["rm", "--force"], &ids[..]].concat());
        }
    }
}

/// A pod that the kubelet runs.
#[derive(Debug, Clone)]
pub struct NodePod {
    /// Its Kubernetes namespace.
    pub namespace: String,
    /// Its name, with that of the node.
    pub name: String,
    /// Its identity.
    pub uid: String,
    /// Id of its sandbox.
    pub sandbox: String,
    /// Id of its only other container.
    pub app: String,
    /// First process of the sandbox.
    pub pid: u32,
}

impl NodePod {
    /// `NAMESPACE/NAME`.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Where dockershim remembers its sandbox.
    #[must_use]
    pub fn checkpoint(&self) -> PathBuf {
        Path::new(CHECKPOINTS).join(&self.sandbox)
    }
}

/// A kubelet that was built for the tests.
fn program(variable: &str) -> PathBuf {
    let path = std::env::var_os(variable).map(PathBuf::from);
    path.unwrap_or_else(|| panic!("{variable} is a kubelet: `cargo xtask test kubelet` builds it"))
}

/// A process in a mount namespace of its own.
fn mount_namespace(directory: &Path) -> Running {
    let mut mounts: Vec<(PathBuf, PathBuf)> = Vec::new();
    for (name, value) in KERNEL {
        let file = directory.join(name.replace('/', "-"));
        fs::write(&file, value).expect("a file can be written");
        mounts.push((file, Path::new("/proc/sys").join(name)));
    }
    for path in HIDDEN {
        let own = directory.join(path.trim_start_matches('/').replace('/', "-"));
        fs::create_dir(&own).expect("a directory can be made");
        fs::create_dir_all(path).expect("a directory can be made");
        mounts.push((own, path.into()));
    }
    let ready = directory.join("mounted");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation=private", "sh", "-c", NAMESPACE, "sh"]).arg(&ready);
    command.args(mounts.into_iter().flat_map(|(from, to)| [from, to])).stdin(Stdio::null());
    let mut holder = Running::spawn(&mut command);
    eventually!(
        {
            assert!(holder.ended().is_none(), "the mount namespace cannot be made");
            ready.exists()
        },
        "the mount namespace is made"
    );
    holder
}

/// What starts a program in the mount namespace of a process.
fn enter(mounts: &Running) -> [String; 4] {
    ["nsenter".into(), format!("--mount=/proc/{}/ns/mnt", mounts.pid()), "--wd=/".into(), "--".into()]
}
