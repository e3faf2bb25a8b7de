//! HTTP over a unix socket for the library, which itself takes answers of any size.
//!
//! What is counted is what comes from the socket, so that nothing is kept of what is too much. Each request has a
//! connection of its own.

use std::error::Error;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bollard::errors::Error as ClientError;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

/// Largest list, as that of the CRI: an entry has some kilobytes.
const MAX_LIST: usize = 16 << 20;
/// Largest other answer. Of a container it has the labels, among them all annotations of a pod (256 KiB), several times.
const MAX_ANSWER: usize = 4 << 20;
/// Most that is read from one event to the next: one with all labels, and what is read ahead.
const MAX_EVENT: usize = 2 << 20;

/// HTTP wants a host; a socket has none.
pub(super) const ORIGIN: &str = "http://localhost";
const HOST_NAME: HeaderValue = HeaderValue::from_static("localhost");

#[derive(Debug, Error)]
pub(super) enum Fault {
    /// No process listens there, or access is denied.
    #[error(transparent)]
    Connect(io::Error),
    /// An answer without end, or nearly so.
    #[error("it has more than {} KiB", limit >> 10)]
    TooLarge { limit: usize },
}

impl Fault {
    pub(super) fn of(error: &ClientError) -> Option<&Self> {
        let mut cause: Option<&(dyn Error + 'static)> = match error {
            // A transparent one shows no error of its own.
            ClientError::IOError { err } => Some(err),
            error => Some(error),
        };
        while let Some(error) = cause {
            // Its own cause is not the error in it, but that one's cause.
            let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
            if let Some(fault) = inner.and_then(|inner| inner.downcast_ref()) {
                return Some(fault);
            }
            cause = error.source();
        }
        None
    }
}

#[derive(Debug)]
pub(super) struct Allowance {
    limit: usize,
    left: AtomicUsize,
}

impl Allowance {
    fn of(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, left: AtomicUsize::new(limit) })
    }

    /// That of an event stream, which begins again with each event.
    pub(super) fn of_events() -> Arc<Self> {
        Self::of(MAX_EVENT)
    }

    pub(super) fn renew(&self) {
        self.left.store(self.limit, Ordering::Relaxed);
    }

    /// What is wrong with a stream that has used it up: the library drops the cause of its errors.
    pub(super) fn fault(&self) -> Option<Fault> {
        (self.left.load(Ordering::Relaxed) == 0).then_some(Fault::TooLarge { limit: self.limit })
    }

    fn take(&self, read: usize) -> Result<(), Fault> {
        let left = self.left.load(Ordering::Relaxed).saturating_sub(read);
        self.left.store(left, Ordering::Relaxed);
        self.fault().map_or(Ok(()), Err)
    }
}

pub(super) async fn get(socket: &Path, target: &str) -> Result<Bytes, ClientError> {
    let request = Request::get(format!("{ORIGIN}{target}")).body(Empty::<Bytes>::new())?;
    let response = send(socket, Allowance::of_events(), request).await?;
    let status = response.status();
    let answer = response.into_body().collect().await?.to_bytes();
    if status.is_success() {
        return Ok(answer);
    }
    let refusal = serde_json::from_slice::<Refusal>(&answer).ok().map(|refusal| refusal.message);
    let message = refusal.unwrap_or_else(|| String::from_utf8_lossy(&answer).into_owned());
    Err(ClientError::DockerResponseServerError { status_code: status.as_u16(), message })
}

/// Why there is no answer, as an engine tells it.
#[derive(Deserialize)]
struct Refusal {
    message: String,
}

/// Sends a request to a socket; `events`: what may be read of an event stream.
pub(super) async fn send<B>(
    socket: &Path,
    events: Arc<Allowance>,
    mut request: Request<B>,
) -> Result<Response<Incoming>, ClientError>
where
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let path = request.uri().path();
    let allowance = match path.rsplit_once('/').map(|(_, last)| last) {
        Some("events") => events,
        _ if path.ends_with("/containers/json") => Allowance::of(MAX_LIST),
        _ => Allowance::of(MAX_ANSWER),
    };
    let stream = connect(socket).await?;
    let (mut requests, connection) = http1::handshake(TokioIo::new(Bounded { stream, allowance })).await?;
    // It ends with the answer, and how shows in that.
    tokio::spawn(async move { drop(connection.await) });
    if let Some(target) = request.uri().path_and_query().cloned() {
        *request.uri_mut() = Uri::from(target);
    }
    request.headers_mut().insert(HOST, HOST_NAME);
    Ok(requests.send_request(request).await?)
}

async fn connect(socket: &Path) -> Result<UnixStream, ClientError> {
    UnixStream::connect(socket).await.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => ClientError::SocketNotFoundError(socket.display().to_string()),
        _ => ClientError::IOError { err: io::Error::other(Fault::Connect(error)) },
    })
}

struct Bounded {
    stream: UnixStream,
    allowance: Arc<Allowance>,
}

impl AsyncRead for Bounded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = to.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, to))?;
        Poll::Ready(self.allowance.take(to.filled().len() - before).map_err(io::Error::other))
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
