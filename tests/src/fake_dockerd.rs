//! The socket of a Docker daemon without any: it answers what the daemon under test asks, of containers that a test makes up,
//! as fast and as often as the test likes.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::mount::Scratch;
use crate::pod_sandbox::PodSandbox;

/// A socket that is served until the process ends.
#[derive(Debug)]
pub struct FakeDockerd {
    state: Arc<Mutex<State>>,
    scratch: Scratch,
}

#[derive(Debug)]
struct Container {
    /// 0 once it has ended.
    pid: u32,
    labels: Value,
}

impl Container {
    fn status(&self) -> &'static str {
        if self.pid == 0 { "exited" } else { "running" }
    }
}

#[derive(Debug, Default)]
struct State {
    /// By their ids.
    containers: BTreeMap<String, Container>,
    subscribers: Vec<UnixStream>,
    /// When the first and when the last request came.
    asked: Option<(Instant, Instant)>,
    inspects: usize,
}

impl FakeDockerd {
    /// Begins to serve.
    #[must_use]
    pub fn start() -> Self {
        let scratch = Scratch::without_mounts();
        let listener = UnixListener::bind(scratch.path().join("docker.sock")).expect("a socket can be made");
        let state = Arc::<Mutex<State>>::default();
        let served = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let state = Arc::clone(&served);
                std::thread::spawn(move || serve(client, &state));
            }
        });
        Self { state, scratch }
    }

    /// What the daemon under test takes as `--runtime`.
    #[must_use]
    pub fn runtime(&self) -> String {
        format!("docker={}", self.socket().display())
    }

    /// Path of its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.scratch.path().join("docker.sock")
    }

    /// A container with this process runs, which no event tells.
    pub fn put(&self, id: &str, pid: u32) {
        lock(&self.state).containers.insert(id.to_owned(), Container { pid, labels: labels() });
    }

    /// A container of a pod is made and started, as a kubelet has it made.
    pub fn start_container_of_pod(&self, container: &PodSandbox, namespace: &str, name: &str) {
        let mut labels = labels();
        for (key, value) in [
            ("pod.namespace", namespace),
            ("pod.name", name),
            ("pod.uid", container.uid()),
            ("container.name", "main"),
            ("docker.type", "container"),
        ] {
            labels[format!("io.kubernetes.{key}")] = value.into();
        }
        let id = container.id();
        lock(&self.state).containers.insert(id.to_owned(), Container { pid: container.pid(), labels });
        self.tell(&["create", "start"], id);
    }

    /// A container is made and started.
    pub fn start_container(&self, id: &str, pid: u32) {
        self.put(id, pid);
        self.tell(&["create", "start"], id);
    }

    /// A container ends, and stays until it is removed.
    pub fn end_container(&self, id: &str) {
        if let Some(container) = lock(&self.state).containers.get_mut(id) {
            container.pid = 0;
        }
        self.tell(&["die"], id);
    }

    /// A container is removed, and ends first if it runs.
    pub fn remove_container(&self, id: &str) {
        let removed = lock(&self.state).containers.remove(id);
        if removed.is_some_and(|container| container.pid != 0) {
            self.tell(&["die"], id);
        }
        self.tell(&["destroy"], id);
    }

    /// How many containers were inspected.
    #[must_use]
    pub fn inspects(&self) -> usize {
        lock(&self.state).inspects
    }

    /// When the first request came, and when the last one so far.
    #[must_use]
    pub fn asked(&self) -> Option<(Instant, Instant)> {
        lock(&self.state).asked
    }

    /// Whether somebody reads the events.
    #[must_use]
    pub fn is_followed(&self) -> bool {
        !lock(&self.state).subscribers.is_empty()
    }

    fn tell(&self, actions: &[&str], id: &str) {
        let mut state = lock(&self.state);
        for action in actions {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let attributes = json!({"name": name(id), "image": "idle:1", "exitCode": "0"});
            let event = json!({
                "Type": "container", "Action": action, "Actor": {"ID": id, "Attributes": attributes},
                "time": now.as_secs(), "timeNano": u64::try_from(now.as_nanos()).unwrap_or(u64::MAX),
            });
            let line = format!("{event}\n");
            state.subscribers.retain_mut(|subscriber| subscriber.write_all(line.as_bytes()).is_ok());
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn name(id: &str) -> String {
    format!("c-{}", &id[id.len() - 12..])
}

/// One connection: requests without a body, one after the other.
fn serve(mut client: UnixStream, state: &Mutex<State>) {
    let mut lines =
        BufReader::new(client.try_clone().expect("a descriptor is free")).lines().map_while(Result::ok);
    while let Some(request) = lines.next() {
        let _ = lines.by_ref().find(String::is_empty);
        let target = request.split(' ').nth(1).unwrap_or_default();
        let path = target.split('?').next().unwrap_or_default();
        let now = Instant::now();
        let answer = {
            let mut state = lock(state);
            let first = state.asked.map_or(now, |(first, _)| first);
            state.asked = Some((first, now));
            if path == "/events" {
                // Without a length the answer ends with the connection.
                let header = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n";
                if client.write_all(header.as_bytes()).is_ok() {
                    state.subscribers.push(client);
                }
                return;
            }
            answer(&mut state, path)
        };
        let (status, body) =
            answer.map_or(("404 Not Found", json!({"message": "no such thing"})), |it| ("200 OK", it));
        let body = body.to_string();
        let header = format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        if client.write_all(&[header.as_bytes(), body.as_bytes()].concat()).is_err() {
            return;
        }
    }
}

fn answer(state: &mut State, path: &str) -> Option<Value> {
    match path {
        "/version" => Some(json!({"Version": "29.0", "Components": [{"Name": "Engine", "Version": "29.0"}]})),
        "/containers/json" => {
            Some(state.containers.iter().map(|(id, container)| entry(id, container)).collect())
        }
        _ => {
            let id = path.strip_prefix("/containers/")?.strip_suffix("/json")?;
            let inspected = inspected(id, state.containers.get(id)?);
            state.inspects += 1;
            Some(inspected)
        }
    }
}

/// What whoever made it wrote on it.
fn labels() -> Value {
    json!({
        "maintainer": "nobody", "org.opencontainers.image.title": "idle", "org.opencontainers.image.version": "1",
        "com.example.some-vendor": "some value of a length that is usual for such things",
    })
}

fn entry(id: &str, container: &Container) -> Value {
    json!({
        "Id": id, "Names": [format!("/{}", name(id))], "Image": "idle:1", "ImageID": format!("sha256:{id}"),
        "Command": "sleep 1000000", "Created": 1_795_360_624, "Ports": [], "Labels": container.labels, "State": container.status(),
        "Status": "Up 1 second", "HostConfig": {"NetworkMode": "none"},
        "NetworkSettings": {"Networks": {"none": {"IPAddress": "", "GlobalIPv6Address": "", "MacAddress": ""}}},
        "Mounts": [],
    })
}

fn inspected(id: &str, container: &Container) -> Value {
    let Container { pid, labels } = container;
    json!({
        "Id": id, "Name": format!("/{}", name(id)), "Image": format!("sha256:{id}"), "Created": "2026-11-22T15:17:04Z",
        "Path": "sleep", "Args": ["1000000"], "RestartCount": 0, "Driver": "overlay2",
        "State": {"Status": container.status(), "Running": *pid != 0, "Pid": pid, "ExitCode": 0, "Error": ""},
        "Config": {"Image": "idle:1", "Labels": labels, "Env": ["PATH=/bin:/usr/bin"], "Cmd": ["sleep", "1000000"]},
        "HostConfig": {"NetworkMode": "none", "Binds": null, "Memory": 0, "CpuShares": 2},
        "NetworkSettings": {"Networks": {"none": {"IPAddress": "", "GlobalIPv6Address": "", "MacAddress": ""}}},
        "Mounts": [],
    })
}
