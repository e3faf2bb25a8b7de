//! What can be listened on: TCP addresses and unix sockets.

use std::future::Future;
use std::io;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// A bound, non-blocking listener, before there is a runtime.
pub trait Listen: Send + 'static {
    /// The same within a runtime.
    type Accept: Accept;

    /// Registers it with the current runtime.
    ///
    /// # Errors
    /// When the runtime cannot watch it.
    fn into_async(self) -> io::Result<Self::Accept>;
}

/// A listener within a runtime.
pub trait Accept: Send + Sync + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Listen for std::net::TcpListener {
    type Accept = tokio::net::TcpListener;

    fn into_async(self) -> io::Result<Self::Accept> {
        tokio::net::TcpListener::from_std(self)
    }
}

impl Accept for tokio::net::TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        Ok(self.accept().await?.0)
    }
}

impl Listen for std::os::unix::net::UnixListener {
    type Accept = tokio::net::UnixListener;

    fn into_async(self) -> io::Result<Self::Accept> {
        tokio::net::UnixListener::from_std(self)
    }
}

impl Accept for tokio::net::UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        Ok(self.accept().await?.0)
    }
}
