//! A Docker daemon of the tests' own: its data, socket, bridge and control group, and nothing of the host's.
//!
//! It sets no packet filter and does not forward, so it leaves the host's network alone. Containers survive its restart
//! (live-restore). Its end is a shell script, because the shared one is ended by the [`crate::reaper`].

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::eventually;
use crate::image;
use crate::mount::Scratch;
use crate::network::on_host;
use crate::patience::wait_until;
use crate::process::{Finished, attempt};
use crate::reaper::Cleanup;
use crate::unique;

/// Name of the image that every daemon has.
pub const IMAGE: &str = "kevtmon-test:1";

/// Ends everything under `$dir` and in control groups below `$name`: daemon, shims, containers, mounts, control groups, files.
pub(crate) const END: &str = r#"
members() { find /sys/fs/cgroup -path "*/$name/*" -name cgroup.procs -exec cat {} + 2>/dev/null; }
processes() {
    # By a pipe, since one that has the directory among its arguments would find itself.
    echo "$dir/" | grep -lFf - /proc/[0-9]*/cmdline 2>/dev/null | cut -d/ -f3
    members
}
for round in $(seq 100); do
    pids=$(processes)
    [ -z "$pids" ] && break
    kill -9 $pids 2>/dev/null
    sleep 0.1
done
for round in $(seq 20); do
    points=$(awk -v d="$dir/" 'index($5, d) == 1 { print $5 }' /proc/self/mountinfo | sort -r)
    [ -z "$points" ] && break
    for point in $points; do umount -l "$point"; done
done 2>/dev/null
for round in $(seq 50); do
    groups=$(find /sys/fs/cgroup -depth -type d \( -name "$name" -o -path "*/$name/*" \) 2>/dev/null)
    [ -z "$groups" ] && break
    rmdir $groups 2>/dev/null || sleep 0.1
done
rm -rf --one-file-system "$dir"
"#;

/// A Docker daemon.
#[derive(Debug)]
pub struct Dockerd {
    /// Name of its bridge and of its control group.
    name: String,
    client: PathBuf,
    /// What starts it, before its own name.
    prefix: Vec<OsString>,
    /// Arguments besides those of every daemon.
    arguments: Vec<OsString>,
    process: Mutex<Option<Child>>,
    _cleanup: Cleanup,
    /// Dropped when nothing uses it any more.
    _bridge: Cleanup,
    /// Dropped last: it holds all files.
    scratch: Scratch,
}

impl Dockerd {
    /// The daemon that all tests of this process share; it lives until the process ends.
    #[must_use]
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Dockerd> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// Starts a daemon of the caller's own and gives it the image.
    #[must_use]
    pub fn start() -> Self {
        let dockerd = Self::prepare();
        dockerd.launch();
        dockerd
    }

    /// Prepares everything but does not start: the socket does not exist yet.
    #[must_use]
    pub fn prepare() -> Self {
        let scratch = Scratch::without_mounts();
        let name = unique::name("kvd");
        let bridge = Cleanup::link(&name);
        let cleanup = Cleanup::script(&format!("dir={}\nname={name}\n{END}", scratch.path().display()));
        on_host(|network| {
            network.add_bridge(&name)?;
            network.add_address(&name, gateway(), 24)
        });
        // The client beside the daemon fits it best; any other that is installed may be of another make.
        let client = image::find("dockerd").with_file_name("docker");
        let client = [client, "/usr/bin/docker".into()].into_iter().find(|file| file.is_file());
        let client = client.unwrap_or_else(|| image::find("docker"));
        let (prefix, arguments) = (Vec::new(), Vec::new());
        let process = Mutex::new(None);
        Self { name, client, prefix, arguments, process, _cleanup: cleanup, _bridge: bridge, scratch }
    }

    /// The same, started through a command, with further arguments.
    #[must_use]
    pub fn through<S: AsRef<OsStr>>(mut self, command: &[S], arguments: &[&str]) -> Self {
        self.prefix = command.iter().map(|word| word.as_ref().to_owned()).collect();
        self.arguments = arguments.iter().map(OsString::from).collect();
        self
    }

    /// Starts the prepared daemon, and waits until it answers.
    pub fn launch(&self) {
        let directory = self.scratch.path();
        let log = File::options().create(true).append(true).open(self.log()).expect("a log file");
        let mut words = self.prefix.clone();
        words.push(image::find("dockerd").into());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(&self.arguments);
        command.arg("--data-root").arg(directory.join("data"));
        command.arg("--exec-root").arg(directory.join("exec"));
        command.arg("--pidfile").arg(directory.join("pid"));
        command.arg("--host").arg(format!("unix://{}", self.socket().display()));
        command.arg(format!("--bridge={}", self.name)).arg(format!("--cgroup-parent=/{}", self.name));
        command.args(["--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false"]);
        command.args(["--userland-proxy=false", "--live-restore"]);
        command.args(["--exec-opt", "native.cgroupdriver=cgroupfs"]);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log file")).stderr(log);
        let child = command.spawn().expect("dockerd (package docker.io) starts");
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = Some(child);
        wait_until("dockerd answers", || {
            let answer = self.attempt(&["version"]);
            let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
            let ended = process.as_mut().and_then(|child| child.try_wait().ok().flatten());
            assert!(
                ended.is_none(),
                "dockerd ended: {}",
                std::fs::read_to_string(self.log()).unwrap_or_default()
            );
            answer.status.success().then_some(())
        });
        if !self.attempt(&["image", "inspect", IMAGE]).status.success() {
            let _ = image::archive(&self.scratch);
            self.docker(&["import", &self.image_archive().to_string_lossy(), IMAGE]);
        }
    }

    /// Kills it at once; its containers live on.
    pub fn kill(&self) {
        let child = self.process.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut child = child.expect("dockerd runs");
        child.kill().expect("dockerd can be killed");
        child.wait().expect("dockerd can be waited for");
        // Its containerd dies with it. The next daemon must not take the dying one for a live one.
        for file in ["pid", "exec/containerd/containerd.pid"].map(|name| self.scratch.path().join(name)) {
            let pid = std::fs::read_to_string(&file).unwrap_or_default();
            eventually!(is_dead(pid.trim()), "the process of {} ends", file.display());
            drop(std::fs::remove_file(&file));
        }
    }

    /// Path of its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.scratch.path().join("docker.sock")
    }

    /// What its image was made from.
    #[must_use]
    pub fn image_archive(&self) -> PathBuf {
        self.scratch.path().join("image.tar")
    }

    /// What the daemon under test takes as `--runtime`.
    #[must_use]
    pub fn runtime(&self) -> String {
        format!("docker={}", self.socket().display())
    }

    /// Name of its bridge, and of the control group above its containers.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// An image with labels that whoever made it chose.
    #[must_use]
    pub fn labelled_image(&self, labels: &[(&str, &str)]) -> String {
        let scratch = Scratch::without_mounts();
        let archive = image::archive(&scratch);
        let name = format!("{}:1", unique::name("kvi"));
        let changes = labels.iter().map(|(key, value)| format!("--change=LABEL {key}={value}"));
        let mut words = vec!["import".to_owned()];
        words.extend(changes.chain([archive.to_string_lossy().into_owned(), name.clone()]));
        self.docker(&words);
        name
    }

    /// What a kubelet passes as `--cgroup-parent` for the containers of a pod; within the group of this daemon.
    #[must_use]
    pub fn pod_cgroup(&self, uid: &str) -> String {
        format!("/{}/kubepods/besteffort/pod{uid}", self.name)
    }

    /// Runs the client, whatever comes of it.
    pub fn attempt<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Finished {
        attempt(&self.words(arguments))
    }

    /// Runs the client; panics unless it succeeds.
    pub fn docker<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Finished {
        let words = self.words(arguments);
        attempt(&words).succeeded(&format!("{words:?}"))
    }

    /// The client's command line.
    #[must_use]
    pub fn words<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Vec<OsString> {
        let host = format!("unix://{}", self.socket().display());
        let start = [self.client.as_os_str(), "-H".as_ref(), host.as_ref()];
        start.into_iter().chain(arguments.iter().map(AsRef::as_ref)).map(OsStr::to_owned).collect()
    }

    /// Where its log is.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.scratch.path().join("log")
    }

    /// Directory of all its files.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.scratch.path()
    }
}

impl Drop for Dockerd {
    fn drop(&mut self) {
        // Reaped here, else the script would see a zombie. The script does the rest.
        if let Some(mut child) = self.process.lock().unwrap_or_else(PoisonError::into_inner).take() {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

pub(crate) fn is_dead(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}

/// Address of a bridge, in a /24 of its own.
fn gateway() -> Ipv4Addr {
    let [a, b, c] = unique::subnet(192);
    Ipv4Addr::new(a, b, c, 1)
}
