//! The HTTP server of the daemon's endpoints: accept loops, limits of connections and time, shutdown.
//!
//! Each server has a thread and a runtime of its own, so that neither a request nor a slow client delays the core.
//! HTTP/1.1 with one request per connection and a limit on its time: no client can occupy a connection for long.
//! Who may not connect gets no connection, and one without a request makes room for the next. What is answered is up
//! to the [`Handler`].

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use connection_slots::{ConnectionSlots, Place};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kevtmon_history::queue::lower_thread_priority;
use kevtmon_sources::capabilities::{self, Capability};
use kevtmon_types::clock::boot_now;
use pace::{PAUSE, Pace};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

mod body;
mod compression;
mod connection;
mod connection_slots;
mod listener;
mod pace;
mod response;
#[cfg(test)]
mod tests;

pub use body::{Body, stream_body, whole};
pub(crate) use compression::gzip;
pub use compression::{Compressible, compressed};
pub use connection::Connection;
pub use connection_slots::Patience;
pub use listener::Accept;
pub(crate) use listener::waiting;
pub use response::{HTML, JSON, NDJSON, Response, TEXT, method_not_allowed, respond, text};

/// Most bytes of a request.
pub const REQUEST_BYTES: usize = 16 * 1024;
/// Most headers of a request.
const REQUEST_HEADERS: usize = 64;
/// Time for a client to send its request.
pub const PATIENCE: Patience = Patience { usual: Duration::from_secs(5), scarce: Duration::from_millis(500) };
/// Time for a client to take its response, request included.
pub const CONNECTION_TIME: Duration = Duration::from_secs(15);
/// Time for the reason why a client has no access.
const REFUSAL_TIMEOUT: Duration = Duration::from_millis(50);
/// Pause after accepting failed (no descriptors left), so that it is not tried in a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// What a server allows.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most connections at once, over all listeners. Then one without a request is closed for the next; where all
    /// have one, more wait in the kernel.
    pub connections: usize,
    /// Time for a client to send its request.
    pub patience: Patience,
    /// Time for a client to take its response, request included. Streams have no limit.
    pub connection: Duration,
    /// Most threads for blocking work.
    pub blocking_threads: usize,
    /// Time that open connections get to complete when the server stops.
    pub shutdown: Duration,
    /// Capabilities that answers need. Its threads give up all others: they read what anybody sends.
    pub capabilities: &'static [Capability],
}

pub trait Handler: Send + Sync + 'static {
    /// Connections, as they are accepted.
    type Stream;
    /// Identity of a client.
    type Peer: Send + Sync + 'static;

    /// Identifies a client when it connects.
    /// Errors: why it has no access. Its connection is closed at once and takes no place.
    fn identify(&self, stream: &Self::Stream) -> Result<Self::Peer, String>;

    fn handle(
        &self,
        request: &Request<Incoming>,
        peer: &Self::Peer,
        connection: &Arc<Connection>,
    ) -> impl Future<Output = Response> + Send;
}

/// A running server; it stops when this is dropped.
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves what connects to the listeners, which are made within its runtime.
    pub fn start<A: Accept, H: Handler<Stream = A::Stream>>(
        name: &str,
        listeners: impl FnOnce() -> io::Result<Vec<A>> + Send + 'static,
        limits: Limits,
        handler: H,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(limits.blocking_threads)
            .build()?;
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            lower_thread_priority();
            if let Err(error) = capabilities::keep(limits.capabilities) {
                tracing::warn!(%error, "a thread that serves clients keeps all capabilities");
            }
            runtime.block_on(serve(listeners, limits, Arc::new(handler), stopped));
            runtime.shutdown_background();
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Either end may be gone already.
        let _ = self.stop.take().map(|stop| stop.send(()));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

async fn serve<A: Accept, H: Handler<Stream = A::Stream>>(
    listeners: impl FnOnce() -> io::Result<Vec<A>>,
    limits: Limits,
    handler: Arc<H>,
    stopped: oneshot::Receiver<()>,
) {
    let places = ConnectionSlots::new(limits.connections);
    let (stop, stopping) = watch::channel(());
    let mut accepting = JoinSet::new();
    let listeners = listeners().inspect_err(|error| tracing::error!(%error, "cannot serve a listener"));
    for listener in listeners.unwrap_or_default() {
        let (places, handler) = (Arc::clone(&places), Arc::clone(&handler));
        accepting.spawn(accept_all(listener, places, handler, stopping.clone(), limits));
    }
    // An error means that the server was dropped, which stops it, too.
    let _ = stopped.await;
    drop(stop);
    while accepting.join_next().await.is_some() {}
}

async fn accept_all<A: Accept, H: Handler<Stream = A::Stream>>(
    listener: A,
    places: Arc<ConnectionSlots>,
    handler: Arc<H>,
    mut stopping: watch::Receiver<()>,
    limits: Limits,
) {
    // Dropping the set closes the connections.
    let mut connections = JoinSet::new();
    let mut pace = Pace::default();
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &mut pace, &places, &*handler) => accepted,
            _ = stopping.changed() => break,
        };
        match accepted {
            Ok((stream, peer, place)) => {
                let handler = Arc::clone(&handler);
                connections.spawn(serve_connection(stream, peer, place, handler, limits));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
    let _ = timeout(limits.shutdown, async { while connections.join_next().await.is_some() {} }).await;
}

/// The next client with access, and a place for it. None is held while waiting for a client: the other listeners
/// may need it.
async fn accept<A: Accept, H: Handler<Stream = A::Stream>>(
    listener: &A,
    pace: &mut Pace,
    places: &Arc<ConnectionSlots>,
    handler: &H,
) -> io::Result<(A::Stream, H::Peer, Place)> {
    loop {
        if A::IS_OPEN_TO_ALL && !pace.may_accept(boot_now()) {
            sleep(PAUSE).await;
            pace.paused(listener.waiting());
        }
        let stream = listener.accept().await?;
        match handler.identify(&stream) {
            Ok(peer) => return Ok((stream, peer, places.take().await?)),
            Err(denied) => refuse(stream, &denied).await,
        }
    }
}

/// Gives the reason to a client, and disconnects it.
async fn refuse(mut stream: impl AsyncWrite + Unpin, denied: &str) {
    let refusal = format!(
        "HTTP/1.1 403 Forbidden\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{denied}\n",
        denied.len() + 1
    );
    // The buffer of a new connection is empty, so this does not wait. A client that is gone needs no reason.
    let _ = timeout(REFUSAL_TIMEOUT, stream.write_all(refusal.as_bytes())).await;
}

async fn serve_connection<H: Handler>(
    stream: H::Stream,
    peer: H::Peer,
    place: Place,
    handler: Arc<H>,
    limits: Limits,
) where
    H::Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = Arc::new(Connection::default());
    let (peer, place) = (Arc::new(peer), &place);
    let service = service_fn(|request: Request<Incoming>| {
        place.request_arrived();
        let (handler, peer, connection) = (Arc::clone(&handler), Arc::clone(&peer), Arc::clone(&connection));
        async move { Ok::<_, Infallible>(handler.handle(&request, &peer, &connection).await) }
    });
    let served = http1::Builder::new()
        .keep_alive(false)
        // The place has a deadline for the request.
        .header_read_timeout(None)
        .max_buf_size(REQUEST_BYTES)
        .max_headers(REQUEST_HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        // First of all, what was sent is read.
        biased;
        // An error is a client that disconnected, or sent no valid request.
        _ = served => {}
        () = place.is_lost(limits.patience) => {}
        () = connection.is_cut() => {}
        () = async {
            sleep(limits.connection).await;
            if connection.is_stream() {
                std::future::pending::<()>().await;
            }
        } => {}
    }
}
