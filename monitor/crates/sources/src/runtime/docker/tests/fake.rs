//! A Docker daemon for tests: real sockets and HTTP, made-up containers, every fault on demand.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use kevtmon_testing::patience::until;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinHandle, JoinSet};

use crate::runtime::change::wall_now;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    Well,
    Silent,
    Garbage,
    NoJson,
    Broken,
    InspectHangs,
    InspectEmpty,
    /// Lists, but responds to an inspect with 404.
    InspectGone,
    /// Lists, but answers no inspect before it is [let](FakeDocker::answer_inspects).
    InspectWaits,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    List,
    Inspect,
    Version,
    Info,
}

/// What is answered in place of an answer.
#[derive(Debug, Clone)]
enum Spoiled {
    Body(Vec<u8>),
    /// Blanks, up to [`HUGE`].
    Huge,
}

/// Bytes of a huge answer: as good as no end, but no fault of the test's makes the machine swap.
const HUGE: usize = 512 << 20;
/// What it is sent in.
const PIECE: &[u8] = &[b' '; 64 << 10];

type Body = BoxBody<Bytes, io::Error>;
type Events = mpsc::Sender<Result<Frame<Bytes>, io::Error>>;

#[derive(Debug)]
struct State {
    mood: Mood,
    /// As many inspects as may be answered.
    gate: Arc<Semaphore>,
    engine: &'static str,
    /// What is answered in place of an answer.
    spoiled: Option<(Answer, Spoiled)>,
    sent: usize,
    containers: BTreeMap<String, Value>,
    /// `METHOD path?query`.
    requests: Vec<String>,
    subscribers: Vec<Events>,
}

pub(crate) struct FakeDocker {
    dir: tempfile::TempDir,
    state: Arc<Mutex<State>>,
    server: Option<JoinHandle<()>>,
}

impl FakeDocker {
    pub(crate) fn stopped() -> Self {
        let state = State {
            mood: Mood::Well,
            gate: Arc::new(Semaphore::new(0)),
            engine: "Engine",
            spoiled: None,
            sent: 0,
            containers: BTreeMap::new(),
            requests: Vec::new(),
            subscribers: Vec::new(),
        };
        Self { dir: tempfile::tempdir().unwrap(), state: Arc::new(Mutex::new(state)), server: None }
    }

    pub(crate) fn started() -> Self {
        let mut fake = Self::stopped();
        fake.start();
        fake
    }

    pub(crate) fn start(&mut self) {
        let listener = UnixListener::bind(self.socket()).unwrap();
        self.server = Some(tokio::spawn(serve(listener, Arc::clone(&self.state))));
    }

    /// Closes all connections; the socket file stays, as after a crash, unless `remove`.
    pub(crate) async fn stop(&mut self, remove: bool) {
        if let Some(server) = self.server.take() {
            server.abort();
            let _ = server.await;
        }
        self.state.lock().unwrap().subscribers.clear();
        if remove {
            std::fs::remove_file(self.socket()).unwrap();
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path().join("d.sock")
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn mood(&self, mood: Mood) {
        self.state.lock().unwrap().mood = mood;
    }

    pub(crate) fn answer_inspects(&self, number: usize) {
        self.state.lock().unwrap().gate.add_permits(number);
    }

    pub(crate) fn engine(&self, name: &'static str) {
        self.state.lock().unwrap().engine = name;
    }

    /// Answers this instead, until it is [well](Self::well) again.
    pub(crate) fn spoil(&self, answer: Answer, body: Vec<u8>) {
        self.state.lock().unwrap().spoiled = Some((answer, Spoiled::Body(body)));
    }

    /// Answers more than anybody can take, until it is [well](Self::well) again.
    pub(crate) fn answer_hugely(&self, answer: Answer) {
        self.state.lock().unwrap().spoiled = Some((answer, Spoiled::Huge));
    }

    pub(crate) fn taken(&self) -> usize {
        self.state.lock().unwrap().sent
    }

    pub(crate) fn well(&self) {
        self.state.lock().unwrap().spoiled = None;
    }

    pub(crate) fn put_inspected(&self, container: Value) {
        let id = container["Id"].as_str().unwrap().to_owned();
        self.state.lock().unwrap().containers.insert(id, container);
    }

    pub(crate) fn put(&self, id: &str, state: &str, pid: u32) {
        let container = json!({
            "Id": id, "Name": format!("/c-{}", &id[..2]), "Image": "sha256:0",
            "State": {"Status": state, "Pid": pid},
            "Config": {"Image": "busybox:1", "Labels": {"a": "b"}},
            "HostConfig": {"NetworkMode": "default"},
            "NetworkSettings": {"Networks": {"bridge": {"IPAddress": "172.17.0.2"}}},
        });
        self.state.lock().unwrap().containers.insert(id.to_owned(), container);
    }

    /// Adds or replaces one that runs since a time on the wall clock.
    pub(crate) fn put_started(&self, id: &str, pid: u32, started: i64) {
        self.put(id, "running", pid);
        let started = jiff::Timestamp::from_nanosecond(started.into()).unwrap().to_string();
        let mut state = self.state.lock().unwrap();
        state.containers.get_mut(id).unwrap()["State"]["StartedAt"] = json!(started);
    }

    pub(crate) fn remove(&self, id: &str) {
        self.state.lock().unwrap().containers.remove(id);
    }

    pub(crate) async fn event(&self, action: &str, id: &str) {
        self.event_at(wall_now(), action, id).await;
    }

    /// Sends an event of another time.
    pub(crate) async fn event_at(&self, wall: i64, action: &str, id: &str) {
        let attributes = json!({"name": format!("c-{}", &id[..2]), "image": "busybox:1"});
        let event = json!({
            "Type": "container", "Action": action, "timeNano": wall,
            "Actor": {"ID": id, "Attributes": attributes},
        });
        self.raw_event(Ok(Frame::data(Bytes::from(format!("{event}\n"))))).await;
    }

    pub(crate) async fn raw_event(&self, frame: Result<Frame<Bytes>, io::Error>) {
        let subscribers = self.state.lock().unwrap().subscribers.clone();
        for subscriber in subscribers {
            let frame = match &frame {
                Ok(data) => Ok(Frame::data(data.data_ref().unwrap().clone())),
                Err(error) => Err(io::Error::from(error.kind())),
            };
            let _ = subscriber.send(frame).await;
        }
    }

    /// Ends all event streams as a daemon does that shuts down.
    pub(crate) fn end_events(&self) {
        self.state.lock().unwrap().subscribers.clear();
    }

    pub(crate) async fn subscribed(&self) {
        until("a client subscribes", || !self.state.lock().unwrap().subscribers.is_empty()).await;
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.state.lock().unwrap().requests.clone()
    }

    pub(crate) fn lists(&self) -> usize {
        self.requests().iter().filter(|request| request.contains("/containers/json")).count()
    }

    pub(crate) fn inspects(&self) -> usize {
        let is_inspect =
            |request: &&String| request.contains("/containers/") && !request.contains("/containers/json");
        self.requests().iter().filter(is_inspect).count()
    }
}

impl Drop for FakeDocker {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.abort();
        }
    }
}

async fn serve(listener: UnixListener, state: Arc<Mutex<State>>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(connection(stream, Arc::clone(&state)));
    }
}

async fn connection(mut stream: UnixStream, state: Arc<Mutex<State>>) {
    let mood = state.lock().unwrap().mood;
    match mood {
        Mood::Silent => std::future::pending().await,
        Mood::Garbage => {
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(b"\x00\xffSSH-2.0-nonsense\r\n\r\n").await;
        }
        _ => {
            let service = service_fn(|request| answer(request, Arc::clone(&state)));
            let http = hyper::server::conn::http1::Builder::new();
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
        }
    }
}

async fn answer(request: Request<Incoming>, state: Arc<Mutex<State>>) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    let target = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
    let mood = {
        let mut state = state.lock().unwrap();
        state.requests.push(format!("{} {target}", request.method()));
        state.mood
    };
    if mood == Mood::Broken {
        return Ok(reply(
            StatusCode::INTERNAL_SERVER_ERROR,
            json!({"message": "layer\u{1b} not known"}).to_string(),
        ));
    }
    if path == "/events" {
        let (tx, rx) = mpsc::channel(64);
        state.lock().unwrap().subscribers.push(tx);
        let frames = stream::unfold(rx, |mut rx| async { rx.recv().await.map(|frame| (frame, rx)) });
        return Ok(Response::new(BodyExt::boxed(StreamBody::new(frames))));
    }
    if mood == Mood::NoJson {
        return Ok(reply(StatusCode::OK, "<html>"));
    }
    let asked = match path.as_str() {
        "/containers/json" => Answer::List,
        "/version" => Answer::Version,
        "/info" => Answer::Info,
        _ => Answer::Inspect,
    };
    let spoiled = state.lock().unwrap().spoiled.clone().filter(|(spoiled, _)| *spoiled == asked);
    match spoiled {
        Some((_, Spoiled::Body(body))) => return Ok(reply(StatusCode::OK, body)),
        Some((_, Spoiled::Huge)) => return Ok(Response::new(huge(state))),
        None => {}
    }
    if asked == Answer::Version {
        let engine = state.lock().unwrap().engine;
        let version = json!({"Version": "29.0", "Components": [{"Name": engine, "Version": "29.0"}]});
        return Ok(reply(StatusCode::OK, version.to_string()));
    }
    if asked == Answer::List {
        let containers = state.lock().unwrap().containers.clone();
        let list: Vec<Value> = containers.into_values().map(entry).collect();
        return Ok(reply(StatusCode::OK, json!(list).to_string()));
    }
    match mood {
        Mood::InspectEmpty => return Ok(reply(StatusCode::OK, "{}")),
        Mood::InspectHangs => std::future::pending().await,
        Mood::InspectWaits => {
            let gate = Arc::clone(&state.lock().unwrap().gate);
            gate.acquire().await.unwrap().forget();
        }
        _ => {}
    }
    let id = path.trim_start_matches("/containers/").trim_end_matches("/json");
    let container = state.lock().unwrap().containers.get(id).cloned();
    Ok(match container.filter(|_| mood != Mood::InspectGone) {
        Some(container) => reply(StatusCode::OK, container.to_string()),
        None => reply(StatusCode::NOT_FOUND, json!({"message": "No such container"}).to_string()),
    })
}

fn huge(state: Arc<Mutex<State>>) -> Body {
    let pieces = stream::iter(0..HUGE / PIECE.len()).map(move |_| {
        state.lock().unwrap().sent += PIECE.len();
        Ok(Frame::data(Bytes::from_static(PIECE)))
    });
    BodyExt::boxed(StreamBody::new(pieces))
}

/// The list's view of an inspect answer.
pub(super) fn entry(container: Value) -> Value {
    json!({
        "Id": container["Id"], "Names": [container["Name"]], "Image": container["Config"]["Image"],
        "State": container["State"]["Status"], "Labels": container["Config"]["Labels"],
        "HostConfig": container["HostConfig"], "NetworkSettings": container["NetworkSettings"],
    })
}

fn reply(status: StatusCode, body: impl AsRef<[u8]>) -> Response<Body> {
    let body =
        Full::new(Bytes::copy_from_slice(body.as_ref())).map_err(|never: Infallible| match never {}).boxed();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}
