//! Questions over a unix socket: what happened, what is wrong now, what the model holds; and events as they
//! come. HTTP/1.1, one request a connection.
//!
//! It has a thread and a runtime of its own, as metrics have. Events reach its memory through a sink's queue.
//! Readers of the stream take from the memory; one that falls behind it is disconnected and counted.
//! The model stays with the core, which is asked for a copy.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use thiserror::Error;
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::http::{ACCEPT_PAUSE, CONNECTION_TIME, REQUEST_TIME};
use super::{EventQueue, Filter, Sink};
use crate::core::state::NodeState;
use crate::event::{Severity, SharedEvent};
use crate::metrics::Metrics;
use crate::query::history::{History, Layered, LiveHistory};
use crate::queue::lower_thread_priority;
use crate::settings::settings;

mod answer;
mod memory;
mod peer;
mod socket;
mod stream;
#[cfg(test)]
mod tests;

pub use answer::Identity;
pub use memory::Memory;

use answer::Answers;
use peer::Gate;
use stream::Link;

settings! { "":
    /// Unix socket that queries are answered on, for root and its group.
    SOCKET: PathBuf = "socket", default "/run/kevtmon/kevtmon.sock".into();
}

/// Most connections at once; more wait in the kernel.
const CONNECTIONS: usize = 512;
/// Most bytes of a request.
const REQUEST_BYTES: usize = 16 * 1024;
/// Most headers of a request.
const REQUEST_HEADERS: usize = 32;
/// What readers of the stream get to take the last events when the daemon ends.
const FAREWELL: Duration = Duration::from_millis(500);
/// Threads that search; each question takes milliseconds.
const SEARCHERS: usize = 2;
/// Questions for the core that wait.
const QUESTIONS: usize = 8;

/// Why the socket cannot be offered. The daemon exits with code 1.
#[derive(Debug, Error)]
pub enum ApiError {
    /// Another daemon listens there.
    #[error("another kevtmon listens on {}; give this one another place with --socket PATH", .path.display())]
    Taken {
        /// The socket.
        path: PathBuf,
    },
    /// Something else is there.
    #[error("{} is there and is no socket; give another place with --socket PATH", .path.display())]
    NotASocket {
        /// What is there.
        path: PathBuf,
    },
    /// Its directory cannot be made.
    #[error("cannot create the directory {}", .path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It cannot be listened on.
    #[error("cannot listen on {}; give another place with --socket PATH", .path.display())]
    Listen {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A thread or its runtime cannot be started.
    #[error("cannot start the thread for queries")]
    Start(#[source] io::Error),
}

/// Asks the core for its model; the answer comes by the channel that is the question.
pub type Question = oneshot::Sender<Box<NodeState>>;

/// The channel of questions to the core.
#[must_use]
pub fn questions() -> (mpsc::Sender<Question>, mpsc::Receiver<Question>) {
    mpsc::channel(QUESTIONS)
}

/// The running endpoint; it ends when this is dropped, once its readers took what they were given.
pub struct Server {
    memory: Arc<Memory>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Server")
    }
}

impl Server {
    /// Listens at the path, then serves what `memory` has, and `older` beyond it.
    ///
    /// # Errors
    /// When the path cannot be used, or another daemon uses it.
    pub fn start(
        path: &Path,
        identity: Identity,
        memory: Arc<Memory>,
        older: Option<Arc<dyn LiveHistory>>,
        questions: mpsc::Sender<Question>,
    ) -> Result<Self, ApiError> {
        let (listener, place) = socket::bind(path)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(SEARCHERS)
            .build()
            .map_err(ApiError::Start)?;
        let newest: Arc<dyn History> = Arc::<Memory>::clone(&memory);
        let history = match &older {
            Some(older) => Arc::new(Layered::new(newest, Arc::clone(older))),
            None => newest,
        };
        let answers = Arc::new(Answers { identity, memory: Arc::clone(&memory), history, older, questions });
        let (stop, stopped) = oneshot::channel();
        let gate = Gate::new(path);
        let thread = thread::Builder::new()
            .name("api".to_owned())
            .spawn(move || {
                lower_thread_priority();
                runtime.block_on(serve(listener, answers, gate, stopped));
                runtime.shutdown_background();
                drop(place);
            })
            .map_err(ApiError::Start)?;
        Ok(Self { memory, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.memory.close();
        // Either end may be gone already.
        let _ = self.stop.take().map(|stop| stop.send(()));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The sink that fills the memory.
///
/// # Errors
/// When no thread can be started.
pub fn sink(memory: Arc<Memory>, metrics: Arc<Metrics>) -> io::Result<EventQueue> {
    EventQueue::start("api", Filter { min_severity: Severity::Debug }, metrics, Feed { memory })
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

async fn serve(
    listener: std::os::unix::net::UnixListener,
    answers: Arc<Answers>,
    gate: Gate,
    mut stopped: oneshot::Receiver<()>,
) {
    let listener = match tokio::net::UnixListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "queries are not answered"),
    };
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    // Dropping the set ends what still runs.
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &places) => accepted,
            // An error means that the handle was dropped: the same wish.
            _ = &mut stopped => break,
        };
        match accepted {
            Ok(Some((stream, place))) => {
                let allowed = gate.check(&stream);
                let answers = Arc::clone(&answers);
                connections.spawn(async move {
                    answer_one(stream, answers, allowed).await;
                    drop(place);
                });
            }
            Ok(None) => break,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection for queries");
                sleep(ACCEPT_PAUSE).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
    // Streams end by themselves, since the memory is closed.
    let _ = timeout(FAREWELL, async { while connections.join_next().await.is_some() {} }).await;
}

async fn accept(
    listener: &tokio::net::UnixListener,
    places: &Arc<Semaphore>,
) -> io::Result<Option<(UnixStream, tokio::sync::OwnedSemaphorePermit)>> {
    let Ok(place) = Arc::clone(places).acquire_owned().await else { return Ok(None) };
    let (stream, _) = listener.accept().await?;
    Ok(Some((stream, place)))
}

async fn answer_one(stream: UnixStream, answers: Arc<Answers>, allowed: Result<(), peer::Refused>) {
    let link = Arc::new(Link::default());
    let service = service_fn(|request: Request<Incoming>| {
        let (answers, link, allowed) = (Arc::clone(&answers), Arc::clone(&link), allowed.clone());
        async move {
            Ok::<_, Infallible>(match allowed {
                Ok(()) => answers.answer(&request, link).await,
                Err(refused) => answer::refusal(&refused),
            })
        }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIME)
        .max_buf_size(REQUEST_BYTES)
        .max_headers(REQUEST_HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    // A client that breaks off or is too slow is its own business.
    tokio::select! {
        _ = connection => {}
        () = link.too_slow() => {}
        () = async {
            sleep(CONNECTION_TIME).await;
            if link.is_stream() {
                std::future::pending::<()>().await;
            }
        } => {}
    }
}
