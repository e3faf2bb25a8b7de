//! A runtime with a CRI for tests: real sockets and HTTP/2, made-up containers, faults on demand.

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kevtmon_testing::patience::until;
use prost::Message;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

use crate::runtime::cri::api;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mood {
    Well,
    Silent,
    Nonsense,
    Cut,
    Huge,
}

/// Another service is called, or another method.
const UNIMPLEMENTED: &str = "12";
const NOT_FOUND: &str = "5";

type Body = BoxBody<Bytes, Infallible>;

#[derive(Debug)]
pub(super) struct State {
    pub(super) mood: Mood,
    /// What is answered to a method in place of an answer.
    pub(super) spoiled: Option<(&'static str, Vec<u8>)>,
    pub(super) service: &'static str,
    pub(super) name: &'static str,
    pub(super) version: &'static str,
    /// Whether events are offered; else the stream ends at once.
    pub(super) events: bool,
    /// Whether a stream is only answered with its first event, which never comes.
    pub(super) quiet: bool,
    pub(super) sandboxes: Vec<api::PodSandbox>,
    pub(super) containers: Vec<api::Container>,
    /// What a verbose status adds, by id.
    pub(super) info: HashMap<String, String>,
    pub(super) requests: Vec<String>,
    subscribers: Vec<mpsc::Sender<Bytes>>,
}

pub(super) struct FakeCri {
    dir: tempfile::TempDir,
    state: Arc<Mutex<State>>,
    server: JoinHandle<()>,
}

impl FakeCri {
    /// A containerd of today.
    pub(super) fn started() -> Self {
        let state = State {
            mood: Mood::Well,
            spoiled: None,
            service: "runtime.v1.RuntimeService",
            name: "containerd",
            version: "1.6.20",
            events: true,
            quiet: false,
            sandboxes: Vec::new(),
            containers: Vec::new(),
            info: HashMap::new(),
            requests: Vec::new(),
            subscribers: Vec::new(),
        };
        let (dir, state) = (tempfile::tempdir().unwrap(), Arc::new(Mutex::new(state)));
        let listener = UnixListener::bind(dir.path().join("c.sock")).unwrap();
        let server = tokio::spawn(serve(listener, Arc::clone(&state)));
        Self { dir, state, server }
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.path().join("c.sock")
    }

    pub(super) fn set<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap())
    }

    pub(super) async fn event(&self, message: &impl Message) {
        self.raw_event(&message.encode_to_vec()).await;
    }

    pub(super) async fn raw_event(&self, message: &[u8]) {
        for subscriber in self.set(|state| state.subscribers.clone()) {
            let _ = subscriber.send(framed(message)).await;
        }
    }

    /// Ends it, with all its connections.
    pub(super) fn stop(&self) {
        self.server.abort();
    }

    pub(super) async fn subscribed(&self) {
        until("a client subscribes", || self.set(|state| !state.subscribers.is_empty())).await;
    }
}

impl Drop for FakeCri {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(listener: UnixListener, state: Arc<Mutex<State>>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let state = Arc::clone(&state);
        connections.spawn(async move {
            let service = service_fn(move |request| answer(request, Arc::clone(&state)));
            let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(request: Request<Incoming>, state: Arc<Mutex<State>>) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path().trim_start_matches('/').to_owned();
    let (service, method) = path.split_once('/').unwrap_or_default();
    let question = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let question = question.get(5..).unwrap_or_default();
    let is_stream = matches!(method, "Subscribe" | "GetContainerEvents");
    let mood = {
        let mut state = state.lock().unwrap();
        state.requests.push(method.to_owned());
        if is_stream && state.quiet { Mood::Silent } else { state.mood }
    };
    match mood {
        Mood::Silent => std::future::pending().await,
        Mood::Nonsense => return Ok(reply(vec![framed(b"\xff\xff\xff\xff")], "0")),
        Mood::Cut => return Ok(reply(vec![framed(&[10; 64]).slice(..20)], "0")),
        Mood::Huge => return Ok(reply(vec![Bytes::from_static(b"\0\xff\xff\xff\xff")], "0")),
        Mood::Well => {}
    }
    let mut state = state.lock().unwrap();
    if let Some((_, message)) = state.spoiled.as_ref().filter(|(spoiled, _)| *spoiled == method) {
        return Ok(reply(vec![framed(message)], "0"));
    }
    if is_stream && !state.events {
        return Ok(reply(Vec::new(), "0"));
    }
    let is_containerds = service == "containerd.services.events.v1.Events" && state.name == "containerd";
    if is_stream && (service == state.service || is_containerds) {
        let (tx, rx) = mpsc::channel(64);
        state.subscribers.push(tx);
        let frames =
            stream::unfold(rx, |mut rx| async { rx.recv().await.map(|data| (Frame::data(data), rx)) });
        return Ok(grpc(BodyExt::boxed(StreamBody::new(frames.map(Ok)))));
    }
    let message =
        if service == state.service { message(&state, method, question) } else { Err(UNIMPLEMENTED) };
    Ok(match message {
        Ok(message) => reply(vec![framed(&message)], "0"),
        Err(status) => reply(Vec::new(), status),
    })
}

fn message(state: &State, method: &str, question: &[u8]) -> Result<Vec<u8>, &'static str> {
    let wanted = || api::ListRequest::decode(question).unwrap().filter.map(|filter| filter.id);
    let asked = || api::StatusRequest::decode(question).unwrap().id;
    let info = |id: &str| {
        let text = state.info.get(id).cloned().unwrap_or_default();
        HashMap::from([("info".to_owned(), text)])
    };
    Ok(match method {
        "Version" => api::VersionResponse {
            runtime_name: state.name.to_owned(),
            runtime_version: state.version.to_owned(),
        }
        .encode_to_vec(),
        "ListContainers" => {
            let is_wanted = |id: &str| wanted().is_none_or(|wanted| wanted == id);
            let containers = state.containers.iter().filter(|container| is_wanted(&container.id));
            api::ListContainersResponse { containers: containers.cloned().collect() }.encode_to_vec()
        }
        "ListPodSandbox" => {
            let is_wanted = |id: &str| wanted().is_none_or(|wanted| wanted == id);
            let items = state.sandboxes.iter().filter(|sandbox| is_wanted(&sandbox.id));
            api::ListPodSandboxResponse { items: items.cloned().collect() }.encode_to_vec()
        }
        "ContainerStatus" => {
            let known = state.containers.iter().find(|container| container.id == asked()).ok_or(NOT_FOUND)?;
            let status = api::ContainerStatus {
                id: known.id.clone(),
                metadata: known.metadata.clone(),
                state: known.state,
                started_at: 0,
                finished_at: 0,
                exit_code: 0,
                reason: String::new(),
                image: Some(api::ImageSpec { image: "registry/etcd:3".into() }),
            };
            api::ContainerStatusResponse { status: Some(status), info: info(&known.id) }.encode_to_vec()
        }
        "PodSandboxStatus" => {
            let known = state.sandboxes.iter().find(|sandbox| sandbox.id == asked()).ok_or(NOT_FOUND)?;
            let network = api::PodSandboxNetworkStatus {
                ip: "10.1.2.3".into(),
                additional_ips: vec![api::PodIp { ip: "fd00::3".into() }],
            };
            let status = api::PodSandboxStatus {
                id: known.id.clone(),
                metadata: known.metadata.clone(),
                state: known.state,
                network: Some(network),
            };
            api::PodSandboxStatusResponse { status: Some(status), info: info(&known.id) }.encode_to_vec()
        }
        _ => return Err(UNIMPLEMENTED),
    })
}

fn framed(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(message.len().try_into().unwrap());
    frame.put_slice(message);
    frame.freeze()
}

fn reply(data: Vec<Bytes>, status: &'static str) -> Response<Body> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(status));
    trailers.insert("grpc-message", HeaderValue::from_static("no such\u{20}thing"));
    let frames = data.into_iter().map(Frame::data).chain([Frame::trailers(trailers)]);
    grpc(BodyExt::boxed(StreamBody::new(stream::iter(frames.map(Ok)))))
}

fn grpc(body: Body) -> Response<Body> {
    Response::builder().header(CONTENT_TYPE, "application/grpc").body(body).unwrap()
}
