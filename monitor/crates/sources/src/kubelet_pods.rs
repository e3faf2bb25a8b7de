//! The pods of the node as their kubelet tells them by its Pods API (KEP-4188): their names, and which are deleted. That takes
//! neither an API server nor a runtime.
//!
//! The messages have the field numbers of `pods/v1alpha1/api.proto` in kubernetes/kubelet (v0.36 and v0.37), and of `v1.Pod`.
//! Only what is used is declared: a decoder skips the rest, such as environments.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Blocking;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use kevtmon_observation::{Fact, KubeletPod, SourceKind, SourceStatus};
use prost::Message;
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep_until, timeout};
use tonic::{Code, Streaming};

use crate::beat::at_beat;
use crate::grpc::{Channel, Fault, Method, unreached};
use crate::procfs::Proc;
use crate::procfs::readers::{Job, Opened, Readers, Unread, reading_none};
use crate::runtime::{RuntimeError, is_name};
use crate::{Sender, spawn_until_closed, tell};

const API: &str = "the Pods API (v1alpha1)";
const WATCH: Method = Method { service: "v1alpha1.Pods", name: "WatchPods" };
/// Pods that are told; a node has some hundred.
const PODS_MAX: usize = 1024;
/// What another user serves is not believed.
const ROOT: u32 = 0;

#[derive(Debug, Clone, Copy)]
struct Timing {
    /// From the connection to the end of the first list.
    timeout: Duration,
    /// After this time all pods are listed again: the names of pods are kept for a day after they were told, and a kubelet that
    /// hangs sends no end of the stream.
    renew: Duration,
    /// Before the first new attempt after a failure; doubles with each failure.
    pause_min: Duration,
    pause_max: Duration,
    /// The same where there is no socket, or another API.
    absent: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(5),
            renew: Duration::from_secs(600),
            pause_min: Duration::from_secs(1),
            pause_max: Duration::from_secs(30),
            absent: Duration::from_secs(10),
        }
    }
}

/// Name of the source, as in `SourceStatus::source`.
#[must_use]
pub fn source(socket: &Path) -> String {
    format!("kubelet:{}", socket.display())
}

/// Follows the pods of the kubelet that serves this socket, from when it appears for the first time: until then it is no
/// source. An empty path is none.
pub fn start(socket: &str, readers: Readers, tx: Sender) {
    if !socket.is_empty() {
        let (socket, timing) = (PathBuf::from(socket), Timing::default());
        let follower = Follower { socket, user: ROOT, timing, readers, tx: tx.clone(), told: None };
        spawn_until_closed(tx, follower.run());
    }
}

/// How many pods the kubelet there has, or why it does not say so; `None` where there is no socket, and of an empty path.
pub async fn probe(
    socket: &Path,
    readers: &Readers,
    patience: Duration,
) -> Option<Result<usize, RuntimeError>> {
    if socket.as_os_str().is_empty() {
        return None;
    }
    let listed = async { Ok(Pods::open(socket, ROOT, readers, patience).await?.list().await?.len()) };
    match within(patience, listed).await {
        Err(RuntimeError::NoSocket { .. }) => None,
        answer => Some(answer),
    }
}

struct Follower {
    socket: PathBuf,
    /// The user who has to serve it.
    user: u32,
    timing: Timing,
    readers: Readers,
    tx: Sender,
    told: Option<SourceStatus>,
}

impl Follower {
    async fn run(mut self) {
        let mut pause = self.timing.pause_min;
        loop {
            let started = Instant::now();
            let Err(error) = self.watch().await else { continue };
            if matches!(error, RuntimeError::Decode { .. }) {
                self.tell_malformed(1).await;
            }
            let has_socket = !matches!(error, RuntimeError::NoSocket { .. });
            let absent = !has_socket || matches!(error, RuntimeError::NotServed { .. });
            if has_socket || self.told.is_some() {
                let down = SourceStatus::down(SourceKind::Kubelet, source(&self.socket), error.reason());
                self.tell_status(SourceStatus { absent, ..down }).await;
            }
            // One that fails at once again has not recovered.
            if started.elapsed() > self.timing.pause_max {
                pause = self.timing.pause_min;
            }
            sleep_until(at_beat(if absent { self.timing.absent } else { pause })).await;
            pause = (pause * 2).min(self.timing.pause_max);
        }
    }

    /// Follows one stream until all pods are to be listed again.
    async fn watch(&mut self) -> Result<(), RuntimeError> {
        let Self { socket, user, timing, readers, .. } = &*self;
        let opened = async {
            let mut pods = Pods::open(socket, *user, readers, timing.timeout).await?;
            let all = pods.list().await?;
            Ok((pods, all))
        };
        let (mut pods, all) = within(timing.timeout, opened).await?;
        tell(&self.tx, Fact::KubeletPods { pods: all, all: true }).await;
        self.tell_malformed(pods.malformed).await;
        self.tell_status(SourceStatus::up(SourceKind::Kubelet, source(&self.socket))).await;
        let renewal = Instant::now() + self.timing.renew;
        loop {
            let event = tokio::select! {
                event = pods.next() => event?,
                () = sleep_until(renewal) => return Ok(()),
            };
            match pods.take(event) {
                Ok(Some(pod)) => tell(&self.tx, Fact::KubeletPods { pods: vec![pod], all: false }).await,
                Ok(None) => {}
                Err(Malformed) => self.tell_malformed(1).await,
            }
        }
    }

    async fn tell_malformed(&self, count: u64) {
        if count > 0 {
            tell(&self.tx, Fact::Malformed { source: source(&self.socket), count }).await;
        }
    }

    async fn tell_status(&mut self, status: SourceStatus) {
        if self.told.as_ref() != Some(&status) {
            self.told = Some(status.clone());
            tell(&self.tx, Fact::Source(status)).await;
        }
    }
}

/// Connects to the socket of a kubelet. The file system on which it lies may not answer, and the daemon has one thread.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Connect {
    socket: PathBuf,
}

impl Job for Connect {
    const NAME: &'static str = "kubelet-socket";
    /// The errno of connect(2).
    type Reply = Option<i32>;
    const WAITS_FOR_DISK: bool = true;

    fn run(&self, proc: &Proc) -> Self::Reply {
        self.run_and_open(proc).0
    }

    fn run_and_open(&self, proc: &Proc) -> Opened<Self::Reply> {
        let socket = proc.on_host(&self.socket);
        reading_none();
        match Blocking::connect(socket) {
            Ok(stream) => (None, Some(stream.into())),
            // What is no name of a socket has no errno.
            Err(error) => (Some(error.raw_os_error().unwrap_or(libc::EINVAL)), None),
        }
    }
}

async fn connect(socket: &Path, readers: &Readers, patience: Duration) -> Result<UnixStream, RuntimeError> {
    let job = Connect { socket: socket.to_owned() };
    let (errno, opened) = readers.ask_to_open(job, patience).await.map_err(|error| match error {
        Unread::Late => RuntimeError::Timeout { after: patience },
        error => RuntimeError::Connect { source: Box::new(error) },
    })?;
    let refused = || io::Error::from_raw_os_error(errno.unwrap_or(libc::EIO));
    opened.ok_or_else(refused).and_then(adopted).map_err(|error| unreached(socket, error))
}

fn adopted(connection: OwnedFd) -> io::Result<UnixStream> {
    let stream = Blocking::from(connection);
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

/// The pods of a kubelet, by one stream of events.
struct Pods {
    events: Streaming<Bytes>,
    /// The connection ends with it.
    _channel: Channel,
    known: BTreeMap<String, KubeletPod>,
    /// Those of the first list that could not be read.
    malformed: u64,
}

/// What should be a pod is none.
#[derive(Debug, PartialEq)]
struct Malformed;

impl Pods {
    async fn open(
        socket: &Path,
        user: u32,
        readers: &Readers,
        patience: Duration,
    ) -> Result<Self, RuntimeError> {
        let channel = Channel::over_to(connect(socket, readers, patience).await?, user).await?;
        let events = channel.stream(WATCH, &WatchRequest {}).await.map_err(|fault| match fault.code() {
            Some(Code::Unimplemented) => RuntimeError::NotServed { api: API, source: Box::new(fault) },
            _ => fault.into_error(WATCH.name),
        })?;
        Ok(Self { events, _channel: channel, known: BTreeMap::new(), malformed: 0 })
    }

    /// All pods, once the kubelet has said that these are all.
    async fn list(&mut self) -> Result<Vec<KubeletPod>, RuntimeError> {
        loop {
            let event = self.next().await?;
            if event.kind == i32::from(EventKind::InitialSyncComplete) {
                return Ok(self.known.values().cloned().collect());
            }
            if self.take(event).is_err() {
                self.malformed += 1;
            }
        }
    }

    async fn next(&mut self) -> Result<Event, RuntimeError> {
        let malformed = |fault: Fault| fault.into_error(WATCH.name);
        let message = self.events.message().await.map_err(|status| malformed(status.into()))?;
        let message = message.ok_or(RuntimeError::EventsEnded)?;
        Event::decode(message).map_err(|error| malformed(Fault::Decode(error)))
    }

    /// Keeps what an event tells; the pod, if anything of it is new.
    fn take(&mut self, event: Event) -> Result<Option<KubeletPod>, Malformed> {
        // What later versions tell beside these is skipped.
        let Ok(kind @ (EventKind::Added | EventKind::Modified | EventKind::Deleted)) =
            EventKind::try_from(event.kind)
        else {
            return Ok(None);
        };
        let pod = pod(event.pod).ok_or(Malformed)?;
        if kind == EventKind::Deleted {
            self.known.remove(&pod.uid);
            return Ok(None);
        }
        let is_news = match self.known.get(&pod.uid) {
            Some(known) => *known != pod,
            None => self.known.len() < PODS_MAX,
        };
        if is_news {
            self.known.insert(pod.uid.clone(), pod.clone());
        }
        Ok(is_news.then_some(pod))
    }
}

fn pod(bytes: Bytes) -> Option<KubeletPod> {
    let ObjectMeta { name, namespace, uid, deletion } = Pod::decode(bytes).ok()?.metadata?;
    let are_names = [&name, &namespace, &uid].into_iter().all(|text| is_name(text));
    let ends_s = deletion.map(|time| time.seconds).filter(|seconds| *seconds > 0);
    are_names.then_some(KubeletPod { uid, namespace, name, ends_s })
}

async fn within<T>(
    patience: Duration,
    answer: impl Future<Output = Result<T, RuntimeError>>,
) -> Result<T, RuntimeError> {
    timeout(patience, answer).await.unwrap_or(Err(RuntimeError::Timeout { after: patience }))
}

/// `WatchPodsRequest`.
#[derive(Clone, PartialEq, Message)]
struct WatchRequest {}

/// `WatchPodsEvent`.
#[derive(Clone, PartialEq, Message)]
struct Event {
    /// An [`EventKind`].
    #[prost(int32, tag = "1")]
    kind: i32,
    /// A [`Pod`]; of one that was deleted only its names.
    #[prost(bytes = "bytes", tag = "2")]
    pod: Bytes,
}

/// `EventType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
enum EventKind {
    Unspecified = 0,
    Added = 1,
    Modified = 2,
    Deleted = 3,
    InitialSyncComplete = 4,
}

/// `v1.Pod`.
#[derive(Clone, PartialEq, Message)]
struct Pod {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
}

#[derive(Clone, PartialEq, Message)]
struct ObjectMeta {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    namespace: String,
    #[prost(string, tag = "5")]
    uid: String,
    /// `deletionTimestamp`, which is the end of the grace period.
    #[prost(message, optional, tag = "9")]
    deletion: Option<Time>,
}

#[derive(Clone, PartialEq, Message)]
struct Time {
    #[prost(int64, tag = "1")]
    seconds: i64,
}

#[cfg(test)]
mod tests;
