//! Containers of a test.

use crate::dockerd::{Dockerd, IMAGE};
use crate::lock;
use crate::netns::NetnsPath;
use crate::network::{NeighbourState, Network};
use crate::patience::wait_until;
use crate::pod_sandbox::uuid;
use crate::process::Finished;
use crate::unique;

/// A container that is removed when dropped.
#[derive(Debug)]
pub struct Container<'d> {
    dockerd: &'d Dockerd,
    name: String,
    image: String,
    id: String,
    pid: u32,
    removed: bool,
    _shared: lock::Shared,
}

impl<'d> Container<'d> {
    /// Starts one that does nothing, with further options of `docker run`.
    #[must_use]
    pub fn idle(dockerd: &'d Dockerd, options: &[&str]) -> Self {
        Self::start(dockerd, options, &["sleep", "1000000"])
    }

    /// Starts one that runs a command.
    #[must_use]
    pub fn start(dockerd: &'d Dockerd, options: &[&str], command: &[&str]) -> Self {
        Self::of_image(dockerd, IMAGE, options, command)
    }

    /// Starts one of another image than usual.
    #[must_use]
    pub fn of_image(dockerd: &'d Dockerd, image: &str, options: &[&str], command: &[&str]) -> Self {
        let shared = lock::Shared::take();
        let name = unique::name("kvc");
        let mut words = vec!["run", "-d", "--name", &name];
        words.extend_from_slice(options);
        words.push(image);
        words.extend_from_slice(command);
        let id = dockerd.docker(&words).stdout.trim().to_owned();
        assert_eq!(id.len(), 64, "docker run prints the id");
        let pid = pid(dockerd, &name).expect("a container that was started has a process");
        Self { dockerd, name, image: image.to_owned(), id, pid, removed: false, _shared: shared }
    }

    /// Starts the sandbox of the pod of this name in the namespace `lijiaob`, as a kubelet does, with further options and
    /// another command than usual.
    #[must_use]
    pub fn sandbox(dockerd: &'d Dockerd, pod: &str, options: &[&str], script: &str) -> Self {
        Self::sandbox_of(dockerd, pod, &uuid(), options, script)
    }

    /// The same of the pod with this uid.
    #[must_use]
    pub fn sandbox_of(dockerd: &'d Dockerd, pod: &str, uid: &str, options: &[&str], script: &str) -> Self {
        let image = dockerd.labelled_image(&[
            ("io.kubernetes.pod.namespace", "lijiaob"),
            ("io.kubernetes.pod.name", pod),
            ("io.kubernetes.pod.uid", uid),
            ("io.kubernetes.container.name", "POD"),
            ("io.kubernetes.docker.type", "podsandbox"),
        ]);
        let group = dockerd.pod_cgroup(uid);
        let options = [&["--network", "none", "--cgroup-parent", &group][..], options].concat();
        Self::of_image(dockerd, &image, &options, &["sh", "-c", script])
    }

    /// 64 hex digits.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it was made of.
    #[must_use]
    pub fn image(&self) -> &str {
        &self.image
    }

    /// Its first process, on the host.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Its network namespace.
    #[must_use]
    pub fn netns(&self) -> NetnsPath {
        NetnsPath::of_process(self.pid)
    }

    /// Address of the bridge, its default gateway.
    #[must_use]
    pub fn gateway(&self) -> String {
        self.netns().network(Network::default_gateway).to_string()
    }

    /// Makes the gateway's entry permanent, as some network plugins do.
    pub fn set_gateway(&self, lladdr: &str) {
        self.netns().set_neighbor("eth0", &self.gateway(), lladdr, NeighbourState::Permanent);
    }

    /// Runs a command in it.
    pub fn exec(&self, options: &[&str], command: &[&str]) -> Finished {
        let mut words = vec!["exec"];
        words.extend_from_slice(options);
        words.push(&self.name);
        words.extend_from_slice(command);
        self.dockerd.docker(&words)
    }

    /// Removes it by a client command: `["rm", "-f"]`, …
    pub fn end(&mut self, command: &[&str]) {
        let mut words = command.to_vec();
        words.push(&self.name);
        self.dockerd.docker(&words);
        self.removed = command.first() == Some(&"rm");
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        if !self.removed {
            let _ = self.dockerd.attempt(&["rm", "-f", &self.name]);
        }
    }
}

/// The first process of a container that runs.
fn pid(dockerd: &Dockerd, name: &str) -> Option<u32> {
    let shown = dockerd.attempt(&["inspect", "-f", "{{.State.Pid}}", name]).stdout;
    shown.trim().parse().ok().filter(|pid| *pid > 0)
}

/// A container whose only process waits for a word, then becomes the command and ends with it.
#[derive(Debug)]
pub struct Sleeper<'d> {
    dockerd: &'d Dockerd,
    name: String,
    client: std::process::Child,
    /// Its process, on the host; the command keeps it.
    pub pid: u32,
    /// 64 hex digits.
    pub id: String,
}

impl<'d> Sleeper<'d> {
    /// Starts it.
    #[must_use]
    pub fn start(dockerd: &'d Dockerd, options: &[&str], command: &[&str]) -> Self {
        let name = unique::name("kvs");
        let mut words = vec!["run", "-i", "--name", &name];
        words.extend_from_slice(options);
        words.extend_from_slice(&[IMAGE, "sh", "-c", "read word; exec \"$@\"", "sh"]);
        words.extend_from_slice(command);
        let words = dockerd.words(&words);
        let (program, arguments) = words.split_first().expect("a client");
        let mut client = std::process::Command::new(program);
        client.args(arguments).stdin(std::process::Stdio::piped());
        client.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let client = client.spawn().expect("the client starts");
        let pid = wait_until("the container runs", || pid(dockerd, &name));
        let id = dockerd.docker(&["inspect", "-f", "{{.Id}}", &name]).stdout.trim().to_owned();
        Self { dockerd, name, client, pid, id }
    }

    /// Sends the word, and waits for the end.
    pub fn wake(&mut self) {
        use std::io::Write;
        let mut stdin = self.client.stdin.take().expect("a sleeper is woken once");
        stdin.write_all(b"go\n").expect("the container listens");
        drop(stdin);
        let status = self.client.wait().expect("the client can be waited for");
        assert!(status.success(), "{}: {status}", self.name);
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        drop(self.client.kill());
        drop(self.client.wait());
        let _ = self.dockerd.attempt(&["rm", "-f", &self.name]);
    }
}
