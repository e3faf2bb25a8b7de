//! Podman with files of its own, and its service on a socket; where it is installed.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::image;
use crate::mount::Scratch;
use crate::patience::wait_until;
use crate::process::{Finished, Running, attempt};
use crate::reaper::Cleanup;

/// Image of every container.
const IMAGE: &str = "kevtmon:1";

/// Limits that a user without all privileges may set, too; for the infra containers of pods there is no option.
const CONFIG: &str = r#"[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
"#;

/// A pod of podman's own kind, which no kubelet knows.
#[derive(Debug)]
pub struct PodmanPod {
    /// Its id.
    pub id: String,
    /// Id of the container that holds its namespaces.
    pub infra: String,
    /// Id of its other container.
    pub container: String,
}

/// A service and its containers.
#[derive(Debug)]
pub struct Podman {
    /// Command and options for its own files, with its environment.
    words: Vec<String>,
    service: Mutex<Option<Running>>,
    /// Dropped before the files.
    _containers: Cleanup,
    scratch: Scratch,
}

impl Podman {
    /// Starts the service and gives it the image; `None` where podman or runc is not installed.
    #[must_use]
    pub fn start() -> Option<Self> {
        let (podman, runc) = (image::installed("podman")?, image::installed("runc")?);
        let scratch = Scratch::without_mounts();
        let directory = |name: &str| scratch.path().join(name).to_string_lossy().into_owned();
        let config = directory("containers.conf");
        std::fs::write(&config, CONFIG).expect("a file can be written");
        let words: Vec<String> = [
            "env".to_owned(),
            format!("CONTAINERS_CONF={config}"),
            podman.to_string_lossy().into_owned(),
            format!("--root={}", directory("root")),
            format!("--runroot={}", directory("run")),
            // Of its runtimes crun refuses hybrid control groups.
            format!("--runtime={}", runc.display()),
            "--cgroup-manager=cgroupfs".to_owned(),
            "--storage-driver=vfs".to_owned(),
            "--events-backend=file".to_owned(),
        ]
        .into();
        let all = words.join(" ");
        let removal = "rm --all --force --time 0 >/dev/null 2>&1\n";
        let containers = Cleanup::script(&format!("{all} pod {removal}{all} {removal}"));
        let podman = Self { words, service: Mutex::new(None), _containers: containers, scratch };
        podman.launch();
        let archive = image::archive(&podman.scratch);
        let _ = podman.run(&["import", &archive.to_string_lossy(), IMAGE]).succeeded("podman import");
        Some(podman)
    }

    /// Starts its service, and waits until that listens.
    pub fn launch(&self) {
        let mut service = Command::new(&self.words[0]);
        service.args(&self.words[1..]).args(["system", "service", "--time", "0"]);
        service.arg(format!("unix://{}", self.socket().display()));
        service.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        *self.service.lock().unwrap_or_else(PoisonError::into_inner) = Some(Running::spawn(&mut service));
        wait_until("the service listens", || UnixStream::connect(self.socket()).ok());
    }

    /// Ends its service; its containers live on.
    pub fn stop(&self) {
        drop(self.service.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Path of its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.scratch.path().join("podman.sock")
    }

    /// Runs podman on its own files.
    pub fn run(&self, arguments: &[&str]) -> Finished {
        let words: Vec<&str> =
            self.words.iter().map(String::as_str).chain(arguments.iter().copied()).collect();
        attempt(&words)
    }

    /// The first process of a container, on the host.
    #[must_use]
    pub fn pid(&self, container: &str) -> u32 {
        let ran = self.run(&["inspect", "--format", "{{.State.Pid}}", container]).succeeded("podman inspect");
        ran.stdout.trim().parse().expect("a process id")
    }

    /// Starts a container with these options; returns its id.
    #[must_use]
    pub fn start_container(&self, options: &[&str], command: &[&str]) -> String {
        self.run_detached(&[&["--network=none"], options].concat(), command)
    }

    fn run_detached(&self, options: &[&str], command: &[&str]) -> String {
        let words = [&["run", "-d"][..], options, &[IMAGE], command].concat();
        self.run(&words).succeeded("podman run").stdout.trim().to_owned()
    }

    /// Starts a pod with a container in its network.
    #[must_use]
    pub fn start_pod(&self, command: &[&str]) -> PodmanPod {
        let image = format!("--infra-image={IMAGE}");
        let words = ["pod", "create", "--network=none", &image, "--infra-command=sleep 1000000"];
        let id = self.run(&words).succeeded("podman pod create").stdout.trim().to_owned();
        let container = self.run_detached(&["--pod", &id], command);
        let format = "--format={{.InfraContainerID}}";
        let infra = self.run(&["pod", "inspect", format, &id]).succeeded("podman pod inspect");
        PodmanPod { id, infra: infra.stdout.trim().to_owned(), container }
    }
}
