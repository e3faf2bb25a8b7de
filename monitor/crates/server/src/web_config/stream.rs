//! The listener for metrics: plain connections, or TLS, whose handshake is a part of the time that a client has for its request.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use super::WatchedConfig;
use crate::http::{self, Accept};

/// The first byte of a client that speaks TLS: `handshake` of RFC 8446, section 5.1.
const HANDSHAKE: u8 = 22;
/// What a client gets that does not.
const NO_TLS: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n\
    content-length: 29\r\n\r\nthis port speaks https only.\n";

/// A listener, and what is checked of its clients.
#[derive(Debug)]
pub struct WebListener {
    listener: TcpListener,
    config: Option<Arc<WatchedConfig>>,
}

impl WebListener {
    /// One that does not block, within a runtime. Without a configuration, everybody is served, and nothing encrypted.
    pub fn new(listener: std::net::TcpListener, config: Option<Arc<WatchedConfig>>) -> io::Result<Self> {
        Ok(Self { listener: TcpListener::from_std(listener)?, config })
    }
}

impl Accept for WebListener {
    type Stream = WebStream;

    const IS_OPEN_TO_ALL: bool = true;

    fn waiting(&self) -> usize {
        http::waiting(&self.listener)
    }

    async fn accept(&self) -> io::Result<WebStream> {
        let (stream, address) = self.listener.accept().await?;
        let peer = address.ip();
        let state = match self.config.as_ref().filter(|config| config.has_tls()) {
            None => State::Plain(stream),
            Some(config) => State::Opening(Box::pin(open(stream, peer, Arc::clone(config)))),
        };
        Ok(WebStream { peer, state })
    }
}

pub struct WebStream {
    peer: IpAddr,
    state: State,
}

type Opening = Pin<Box<dyn Future<Output = io::Result<Box<TlsStream<TcpStream>>>> + Send>>;

enum State {
    Plain(TcpStream),
    /// The handshake is driven by who reads.
    Opening(Opening),
    Secure(Box<TlsStream<TcpStream>>),
    Failed,
}

impl WebStream {
    /// Where it comes from.
    pub fn peer(&self) -> IpAddr {
        self.peer
    }

    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let State::Opening(opening) = &mut self.state else { return Poll::Ready(Ok(())) };
        match ready!(opening.as_mut().poll(cx)) {
            Ok(stream) => {
                self.state = State::Secure(stream);
                Poll::Ready(Ok(()))
            }
            Err(error) => {
                self.state = State::Failed;
                Poll::Ready(Err(error))
            }
        }
    }

    fn poll_io<T>(
        &mut self,
        cx: &mut Context<'_>,
        act: impl FnOnce(Pin<&mut dyn Stream>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        ready!(self.poll_open(cx))?;
        match &mut self.state {
            State::Plain(stream) => act(Pin::new(stream), cx),
            State::Secure(stream) => act(Pin::new(stream.as_mut()), cx),
            State::Opening(_) | State::Failed => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

impl AsyncRead for WebStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_io(cx, |stream, cx| stream.poll_read(cx, buf))
    }
}

impl AsyncWrite for WebStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().poll_io(cx, |stream, cx| stream.poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_io(cx, |stream, cx| stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_io(cx, |stream, cx| stream.poll_shutdown(cx))
    }
}

async fn open(
    mut stream: TcpStream,
    peer: IpAddr,
    config: Arc<WatchedConfig>,
) -> io::Result<Box<TlsStream<TcpStream>>> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if first != [HANDSHAKE] {
        // What is left unread when a connection is closed may cost the client the answer.
        let _ = stream.try_read(&mut [0; 1024]);
        // A client that is gone needs no reason.
        let _ = stream.write_all(NO_TLS).await;
        let _ = stream.shutdown().await;
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the client does not speak TLS"));
    }
    // Only what follows takes time of a core: who sends nothing, or half of a greeting, takes nobody's turn.
    let greeted = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
    let config = config.handshake(peer).await.ok_or(io::ErrorKind::TimedOut)?;
    greeted.into_stream(config).await.map(Box::new)
}

#[cfg(test)]
mod tests {
    use rustls::{ClientConfig, ClientConnection, RootCertStore, crypto};

    use super::*;
    use crate::web_config::handshake_rate::HandshakeRate;

    /// What a client sends first.
    fn hello() -> Vec<u8> {
        let provider = Arc::new(crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let mut client = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    /// How it ends with a client that sends this, and closes.
    async fn ended(config: &Arc<WatchedConfig>, sent: &[u8]) -> io::ErrorKind {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, peer) = listener.accept().await.unwrap();
        client.write_all(sent).await.unwrap();
        drop(client);
        open(stream, peer.ip(), Arc::clone(config)).await.unwrap_err().kind()
    }

    #[tokio::test]
    async fn only_who_has_sent_a_whole_greeting_takes_a_turn() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let config = Arc::new(WatchedConfig::load(file.path()).unwrap());
        let hello = hello();
        for _ in 0..10 {
            for sent in [&[][..], &[HANDSHAKE], &hello[..hello.len() - 1]] {
                assert_eq!(ended(&config, sent).await, io::ErrorKind::UnexpectedEof);
            }
        }
        assert_eq!(*config.handshake_rate.lock().unwrap(), HandshakeRate::default(), "they took none");
        // There is no certificate: that is where it ends.
        assert_eq!(ended(&config, &hello).await, io::ErrorKind::TimedOut);
        assert_ne!(*config.handshake_rate.lock().unwrap(), HandshakeRate::default());
    }
}
