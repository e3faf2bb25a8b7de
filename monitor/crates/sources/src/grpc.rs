//! gRPC over a unix socket: one HTTP/2 connection, requests and streams.

use std::error::Error;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::http::uri::PathAndQuery;
use hyper::{Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use prost::encoding::{DecodeContext, decode_key, skip_field};
use thiserror::Error;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Status, Streaming};

use crate::runtime::{ENTRIES_MAX, RuntimeError};

/// Largest list, as the kubelet has it. What announces to be larger is not read.
const MAX_LIST: usize = 16 << 20;
/// The same of other answers and of events: a status has all annotations of a pod (256 KiB), several times.
const MAX_ANSWER: usize = 4 << 20;

/// gRPC wants a host; a socket has none.
const ORIGIN: &str = "http://localhost";

/// A connection that any number of requests share; it ends with the last of its clones.
#[derive(Debug, Clone)]
pub(super) struct Channel {
    requests: SendRequest<Body>,
    _driver: Arc<Driver>,
}

#[derive(Debug)]
struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Method {
    pub(super) service: &'static str,
    pub(super) name: &'static str,
}

#[derive(Debug, Error)]
pub(super) enum Fault {
    #[error("{}", text(.0))]
    Status(Box<Status>),
    #[error(transparent)]
    Decode(prost::DecodeError),
    /// A decoder would make some hundred bytes of the two that an empty entry has.
    #[error("it has more than {ENTRIES_MAX} entries")]
    TooMany,
}

impl From<Status> for Fault {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

impl Fault {
    /// The server's answer; none if it was no proper one, or if the connection ended before.
    pub(super) fn code(&self) -> Option<Code> {
        match self {
            // Of what failed here there is a cause.
            Self::Status(status) => status.source().is_none().then(|| status.code()),
            Self::Decode(_) | Self::TooMany => None,
        }
    }

    pub(super) fn into_error(self, request: &'static str) -> RuntimeError {
        let is_malformed = match &self {
            // What the library says of an answer that is cut or too large.
            Self::Status(status) => matches!(status.code(), Code::Internal | Code::OutOfRange),
            Self::Decode(_) | Self::TooMany => true,
        };
        let source = Box::new(self);
        match is_malformed {
            true => RuntimeError::Decode { request, source },
            false => RuntimeError::Request { request, source },
        }
    }
}

/// The innermost cause, or what the server wrote.
fn text(status: &Status) -> String {
    let mut cause = status.source();
    while let Some(inner) = cause.and_then(Error::source) {
        cause = Some(inner);
    }
    let shown = cause.map_or_else(|| status.message().to_owned(), ToString::to_string);
    if shown.is_empty() { status.code().description().to_owned() } else { shown }
}

/// Why there is no connection to this socket.
pub(super) fn unreached(socket: &Path, source: std::io::Error) -> RuntimeError {
    match source.kind() {
        std::io::ErrorKind::NotFound => RuntimeError::NoSocket { path: socket.to_owned() },
        _ => RuntimeError::Connect { source: Box::new(source) },
    }
}

impl Channel {
    pub(super) async fn connect(socket: &Path) -> Result<Self, RuntimeError> {
        let stream = UnixStream::connect(socket).await.map_err(|error| unreached(socket, error))?;
        Self::over(stream).await
    }

    /// The same over a connection to a socket on which this user listens, and no other.
    pub(super) async fn over_to(stream: UnixStream, user: u32) -> Result<Self, RuntimeError> {
        let peer = stream.peer_cred().map_err(|source| RuntimeError::Connect { source: Box::new(source) })?;
        if peer.uid() != user {
            let source = format!("uid {} listens there", peer.uid()).into();
            return Err(RuntimeError::Connect { source });
        }
        Self::over(stream).await
    }

    async fn over(stream: UnixStream) -> Result<Self, RuntimeError> {
        let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (requests, connection) =
            handshake.await.map_err(|source| RuntimeError::Connect { source: Box::new(source) })?;
        // How it ends shows in the requests.
        let driver = tokio::spawn(async move { drop(connection.await) });
        Ok(Self { requests, _driver: Arc::new(Driver(driver)) })
    }

    pub(super) async fn ask<A: Message + Default>(
        &self,
        method: Method,
        question: &impl Message,
    ) -> Result<A, Fault> {
        let request = tonic::Request::new(question.encode_to_vec());
        let limit = if method.name.starts_with("List") { MAX_LIST } else { MAX_ANSWER };
        let mut grpc = self.grpc(limit);
        let answer = grpc.unary(request, path(method)?, Raw).await?.into_inner();
        if fields(answer.clone()).map_err(Fault::Decode)? > ENTRIES_MAX {
            return Err(Fault::TooMany);
        }
        A::decode(answer).map_err(Fault::Decode)
    }

    /// One request, a stream of answers. It is sent when this is first polled.
    pub(super) async fn stream(
        &self,
        method: Method,
        question: &impl Message,
    ) -> Result<Streaming<Bytes>, Fault> {
        let request = tonic::Request::new(question.encode_to_vec());
        let mut grpc = self.grpc(MAX_ANSWER);
        Ok(grpc.server_streaming(request, path(method)?, Raw).await?.into_inner())
    }

    fn grpc(&self, limit: usize) -> Grpc<Self> {
        Grpc::with_origin(self.clone(), Uri::from_static(ORIGIN)).max_decoding_message_size(limit)
    }
}

/// Fields of a message, without those of the messages in it.
fn fields(mut message: Bytes) -> Result<usize, prost::DecodeError> {
    let mut number = 0;
    while message.has_remaining() {
        let (tag, wire) = decode_key(&mut message)?;
        skip_field(wire, tag, &mut message, DecodeContext::default())?;
        number += 1;
    }
    Ok(number)
}

fn path(method: Method) -> Result<PathAndQuery, Fault> {
    let path = format!("/{}/{}", method.service, method.name);
    Ok(PathAndQuery::try_from(path).map_err(|error| Status::from_error(error.into()))?)
}

impl tower_service::Service<Request<Body>> for Channel {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Incoming>, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.requests.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.requests.send_request(request))
    }
}

/// Messages as bytes: what cannot be decoded is told apart from what the server refuses.
#[derive(Debug, Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, message: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
