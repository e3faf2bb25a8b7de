//! Queries over a unix socket: past events, incidents, the model of the node, and events as they occur.
//!
//! Events reach its memory through a sink's queue. Readers of the stream take from the memory; one that falls behind
//! is disconnected and counted. The model stays with the core, which sends a copy on request.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use kevtmon_core::state::NodeState;
use kevtmon_event::{Severity, SharedEvent};
use kevtmon_history::query::history::{History, Layered, LiveHistory};
use kevtmon_history::query::{API, API_HEADER};
use kevtmon_sources::capabilities::{DAC_OVERRIDE, DAC_READ_SEARCH, NET_ADMIN};
use kevtmon_sources::procfs::own::Own;
use kevtmon_types::settings::settings;
use thiserror::Error;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};

use super::{Context, EventQueue, Sink, Started};
use crate::http::{self, CONNECTION_TIME, Connection, Handler, Limits, PATIENCE, Response};

mod answer;
mod backlog;
mod memory;
mod peer;
mod socket;
mod stream;
#[cfg(test)]
mod tests;

use answer::Answers;
pub use answer::Identity;
pub use memory::Memory;
use peer::AccessControl;
use socket::SocketFile;

settings! { "":
    /// Unix socket that queries are answered on, for root and its group.
    SOCKET: PathBuf = "socket", default "/run/kevtmon/kevtmon.sock".into();
}

/// Blocking threads search, which takes milliseconds; readers of the stream get time for the last events when the
/// daemon stops.
const LIMITS: Limits = Limits {
    connections: 512,
    patience: PATIENCE,
    connection: CONNECTION_TIME,
    blocking_threads: 2,
    shutdown: Duration::from_millis(500),
    // SIOCGSKNS shows what kevtmon itself pins; the store may be another user's.
    capabilities: &[NET_ADMIN, DAC_READ_SEARCH, DAC_OVERRIDE],
};
/// Most requests for the model that wait for the core.
const QUESTIONS: usize = 8;

/// Why queries cannot be served. The daemon exits with code 1.
#[derive(Debug, Error)]
pub enum ApiError {
    #[error("another kevtmon listens on {}; choose another path with --socket PATH", .path.display())]
    Taken { path: PathBuf },
    #[error("{} exists but is not a socket; choose another path with --socket PATH", .path.display())]
    NotASocket { path: PathBuf },
    #[error("cannot create the directory {}", .path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("cannot listen on {}; choose another path with --socket PATH", .path.display())]
    Listen { path: PathBuf, source: io::Error },
    #[error("cannot start the thread for queries")]
    Start(#[source] io::Error),
}

/// Requests a copy of the model from the core; it is sent on the channel.
pub type Question = oneshot::Sender<Box<NodeState>>;

/// The channel of requests to the core.
pub fn questions() -> (mpsc::Sender<Question>, mpsc::Receiver<Question>) {
    mpsc::channel(QUESTIONS)
}

/// The running endpoint; it stops when this is dropped, once its readers took what they were given.
pub struct Server {
    memory: Arc<Memory>,
    // Stopped before the socket is removed: fields are dropped in this order.
    _http: http::Server,
    _socket: SocketFile,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Server")
    }
}

impl Server {
    /// Listens at the path, then serves what `memory` has, and `older` beyond it.
    /// Errors: when the path cannot be used, or another daemon uses it.
    pub fn start(
        path: &Path,
        identity: Identity,
        memory: Arc<Memory>,
        older: Option<Arc<dyn LiveHistory>>,
        questions: mpsc::Sender<Question>,
        own: Own,
    ) -> Result<Self, ApiError> {
        let (listener, socket) = socket::bind(path)?;
        let newest: Arc<dyn History> = Arc::<Memory>::clone(&memory);
        let history = match &older {
            Some(older) => Arc::new(Layered::new(newest, Arc::clone(older))),
            None => newest,
        };
        let answers = Answers { identity, memory: Arc::clone(&memory), history, older, questions, own };
        let endpoint = Endpoint { answers, access: AccessControl::new(path) };
        let listeners = move || Ok(vec![UnixListener::from_std(listener)?]);
        let http = http::Server::start("api", listeners, LIMITS, endpoint).map_err(ApiError::Start)?;
        Ok(Self { memory, _http: http, _socket: socket })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Ends the streams.
        self.memory.close();
    }
}

struct Endpoint {
    answers: Answers,
    access: AccessControl,
}

impl Handler for Endpoint {
    type Stream = UnixStream;
    type Peer = ();

    fn identify(&self, stream: &UnixStream) -> Result<(), String> {
        self.access.check(stream)
    }

    async fn handle(&self, request: &Request<Incoming>, (): &(), connection: &Arc<Connection>) -> Response {
        let mut response = self.answers.answer(request, Arc::clone(connection)).await;
        response.headers_mut().insert(API_HEADER, HeaderValue::from(API));
        response
    }
}

/// Starts the sink that fills the memory.
pub(super) fn start_sink(context: &Context<'_>) -> io::Result<Option<Started>> {
    let feed = Feed { memory: Arc::clone(context.memory) };
    let queue = EventQueue::start("api", Severity::Debug, Arc::clone(context.metrics), feed)?;
    Ok(Some(queue.into()))
}

struct Feed {
    memory: Arc<Memory>,
}

impl Sink for Feed {
    fn deliver(&mut self, event: &Arc<SharedEvent>) -> io::Result<()> {
        self.memory.push(event, Arc::clone(event.line()));
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.memory.wake();
        Ok(())
    }
}
