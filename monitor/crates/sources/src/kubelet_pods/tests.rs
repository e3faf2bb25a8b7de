//! The source against a server of the messages that are declared here, which is no kubelet.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fs;
use std::sync::{Arc, Mutex};

use bytes::{BufMut, BytesMut};
use futures_util::{StreamExt, stream};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kevtmon_observation::Observation;
use nix::unistd::geteuid;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

use super::*;

/// How long a condition may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);
const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(1);
const TIMING: Timing =
    Timing { timeout: PATIENCE, renew: LONG, pause_min: SHORT, pause_max: SHORT, absent: SHORT };

const FAILED_PRECONDITION: &str = "9";
const UNIMPLEMENTED: &str = "12";
const SYNCED: (EventKind, &str, Option<i64>) = (EventKind::InitialSyncComplete, "", None);

/// What one caller of `WatchPods` gets.
struct Script {
    messages: Vec<Vec<u8>>,
    /// The status at its end; none lets the stream stay.
    status: Option<&'static str>,
}

fn script(events: &[(EventKind, &str, Option<i64>)], status: Option<&'static str>) -> Script {
    Script { messages: events.iter().map(|(kind, name, ends)| event(*kind, name, *ends)).collect(), status }
}

fn event(kind: EventKind, name: &str, ends: Option<i64>) -> Vec<u8> {
    let metadata = ObjectMeta {
        name: name.to_owned(),
        namespace: "lijiaob".into(),
        uid: format!("u-{name}"),
        deletion: ends.map(|seconds| Time { seconds }),
    };
    let mut pod = Pod { metadata: Some(metadata) }.encode_to_vec();
    // The specification, with an environment.
    pod.extend(b"\x12\x07hunter2");
    let pod = if name.is_empty() { Bytes::new() } else { pod.into() };
    Event { kind: kind.into(), pod }.encode_to_vec()
}

fn pod(name: &str, ends_s: Option<i64>) -> KubeletPod {
    KubeletPod { uid: format!("u-{name}"), namespace: "lijiaob".into(), name: name.to_owned(), ends_s }
}

/// Gives each caller the next script; who comes after the last one is told that there is no such API.
fn serve(socket: &Path, scripts: Vec<Script>) -> JoinHandle<()> {
    let listener = UnixListener::bind(socket).unwrap();
    let scripts = Arc::new(Mutex::new(VecDeque::from(scripts)));
    tokio::spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let peer = stream.peer_cred().unwrap().pid();
            assert_ne!(peer, i32::try_from(std::process::id()).ok(), "a path may lead to a disk that hangs");
            let scripts = Arc::clone(&scripts);
            connections.spawn(async move {
                let service = service_fn(move |request: Request<Incoming>| {
                    assert_eq!(request.uri().path(), "/v1alpha1.Pods/WatchPods");
                    let next = scripts.lock().unwrap().pop_front();
                    async move { Ok::<_, Infallible>(answer(next)) }
                });
                let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let _ = http.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    })
}

fn answer(script: Option<Script>) -> Response<BoxBody<Bytes, Infallible>> {
    let response = Response::builder().header(CONTENT_TYPE, "application/grpc");
    let Some(Script { messages, status }) = script else {
        let nothing = StreamBody::new(stream::empty::<Result<Frame<Bytes>, Infallible>>());
        return response.header("grpc-status", UNIMPLEMENTED).body(BodyExt::boxed(nothing)).unwrap();
    };
    let data = |message: &Vec<u8>| Frame::data(framed(message));
    let mut frames: Vec<_> = messages.iter().map(data).collect();
    if let Some(status) = status {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static(status));
        frames.push(Frame::trailers(trailers));
    }
    let frames = stream::iter(frames.into_iter().map(Ok));
    let body = match status {
        Some(_) => BodyExt::boxed(StreamBody::new(frames)),
        None => BodyExt::boxed(StreamBody::new(frames.chain(stream::pending()))),
    };
    response.body(body).unwrap()
}

fn framed(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(message.len().try_into().unwrap());
    frame.put_slice(message);
    frame.freeze()
}

struct Facts(mpsc::Receiver<Observation>);

impl Facts {
    fn of(socket: &Path, user: u32, timing: Timing) -> Self {
        let (tx, rx) = mpsc::channel(8);
        let (socket, readers) = (socket.to_owned(), Proc::default().into());
        let follower = Follower { socket, user, timing, readers, tx: tx.clone(), told: None };
        spawn_until_closed(tx, follower.run());
        Self(rx)
    }

    async fn next(&mut self) -> Fact {
        let fact = timeout(PATIENCE, self.0.recv()).await.unwrap().unwrap().fact;
        assert!(!format!("{fact:?}").contains("hunter2"));
        fact
    }

    /// All pods.
    async fn pods(&mut self) -> Vec<KubeletPod> {
        match self.next().await {
            Fact::KubeletPods { pods, all: true } => pods,
            other => panic!("{other:?}"),
        }
    }

    /// Those of one event.
    async fn news(&mut self) -> Vec<KubeletPod> {
        match self.next().await {
            Fact::KubeletPods { pods, all: false } => pods,
            other => panic!("{other:?}"),
        }
    }

    async fn status(&mut self) -> SourceStatus {
        match self.next().await {
            Fact::Source(status) => status,
            other => panic!("{other:?}"),
        }
    }

    async fn down(&mut self) -> String {
        let status = self.status().await;
        assert!(!status.up, "{status:?}");
        status.reason.unwrap()
    }

    async fn malformed(&mut self) -> u64 {
        match self.next().await {
            Fact::Malformed { count, .. } => count,
            other => panic!("{other:?}"),
        }
    }
}

fn me() -> u32 {
    geteuid().as_raw()
}

#[tokio::test]
async fn all_pods_are_told_and_then_what_is_new_of_each() {
    use EventKind::{Added, Deleted, Modified, Unspecified};
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("p.sock");
    let events = [
        (Added, "a", None),
        (Added, "no name", None),
        (Added, "b", None),
        SYNCED,
        (Modified, "a", None),
        (Modified, "a", Some(1_520_280_030)),
        (Unspecified, "x", None),
        (Deleted, "b", None),
        (Modified, "no name", None),
        (Added, "b", None),
    ];
    let server = serve(&socket, vec![script(&events, None)]);
    let mut facts = Facts::of(&socket, me(), TIMING);
    assert_eq!(facts.pods().await, [pod("a", None), pod("b", None)]);
    assert_eq!(facts.malformed().await, 1);
    assert_eq!(facts.status().await, SourceStatus::up(SourceKind::Kubelet, source(&socket)));
    assert_eq!(facts.news().await, [pod("a", Some(1_520_280_030))]);
    assert_eq!(facts.malformed().await, 1);
    assert_eq!(facts.news().await, [pod("b", None)], "it was forgotten");
    server.abort();
}

#[tokio::test]
async fn a_kubelet_that_starts_ends_or_lies_is_down_until_it_tells_its_pods() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("p.sock");
    let all = [(EventKind::Added, "a", None), SYNCED];
    let nonsense = Script { messages: vec![vec![0xff; 4]], status: Some("0") };
    let scripts =
        vec![script(&[], Some(FAILED_PRECONDITION)), script(&all, Some("0")), nonsense, script(&all, None)];
    let server = serve(&socket, scripts);
    let mut facts = Facts::of(&socket, me(), TIMING);
    let reason = facts.down().await;
    assert!(reason.starts_with("WatchPods failed"), "{reason}");
    assert_eq!(facts.pods().await, [pod("a", None)]);
    assert!(facts.status().await.up);
    assert_eq!(facts.down().await, "the event stream ended");
    assert_eq!(facts.malformed().await, 1);
    let reason = facts.down().await;
    assert!(reason.starts_with("WatchPods returned an invalid response"), "{reason}");
    assert_eq!(facts.pods().await, [pod("a", None)]);
    assert!(facts.status().await.up);
    server.abort();
}

#[tokio::test]
async fn one_that_does_not_say_that_these_are_all_is_down() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("p.sock");
    let server = serve(&socket, vec![script(&[(EventKind::Added, "a", None)], None)]);
    let timeout = Duration::from_millis(200);
    let mut facts = Facts::of(&socket, me(), Timing { timeout, ..TIMING });
    assert_eq!(facts.down().await, "no answer within 200ms");
    server.abort();
}

#[tokio::test]
async fn all_pods_are_told_again_from_time_to_time() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("p.sock");
    let all = |name| script(&[(EventKind::Added, name, None), SYNCED], None);
    let server = serve(&socket, vec![all("a"), all("b")]);
    let mut facts = Facts::of(&socket, me(), Timing { renew: SHORT, ..TIMING });
    assert_eq!(facts.pods().await, [pod("a", None)]);
    assert!(facts.status().await.up);
    assert_eq!(facts.pods().await, [pod("b", None)]);
    let other = facts.status().await;
    assert!(other.absent && other.reason.unwrap().contains("(v1alpha1) is not served there"));
    server.abort();
}

#[tokio::test]
async fn without_a_socket_there_is_no_source_and_one_that_has_gone_is_absent() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("p.sock");
    let mut facts = Facts::of(&socket, me(), TIMING);
    let readers = Readers::from(Proc::default());
    assert!(probe(&socket, &readers, PATIENCE).await.is_none());
    assert!(probe(Path::new(""), &readers, PATIENCE).await.is_none());
    let server = serve(&socket, vec![script(&[SYNCED], None)]);
    assert!(facts.pods().await.is_empty());
    assert!(facts.status().await.up);
    fs::remove_file(&socket).unwrap();
    server.abort();
    let gone = loop {
        if let Fact::Source(status) = facts.next().await
            && status.absent
        {
            break status;
        }
    };
    assert!(gone.reason.unwrap().starts_with("there is no socket at "));
}

#[tokio::test]
async fn what_another_user_serves_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("p.sock");
    let server = serve(&socket, vec![script(&[(EventKind::Added, "a", None), SYNCED], None)]);
    let mut facts = Facts::of(&socket, me() + 1, TIMING);
    let reason = format!("cannot connect to the socket: uid {} listens there", me());
    assert_eq!(facts.down().await, reason);
    server.abort();
}
