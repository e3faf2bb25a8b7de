//! What can be listened on: unix sockets, and TCP addresses by `web_config`.

use std::future::Future;
use std::io;
use std::os::fd::AsRawFd;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{UnixListener, UnixStream};

/// Taken for the number of those that wait, where the kernel does not tell.
const BATCH: usize = 64;

/// Connections of a listener that were not accepted yet: of such a socket the kernel tells them as `tcpi_unacked`
/// (net/ipv4/tcp.c, tcp_get_info).
fn queued(listener: &impl AsRawFd) -> io::Result<usize> {
    // SAFETY: all of its fields are integers.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut bytes = libc::socklen_t::try_from(size_of_val(&info)).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `bytes` bytes to `info`, which has that many, and stores how many in `bytes`.
    let failed = unsafe {
        libc::getsockopt(
            listener.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut bytes,
        )
    } != 0;
    if failed {
        return Err(io::Error::last_os_error());
    }
    usize::try_from(info.tcpi_unacked).map_err(io::Error::other)
}

/// The same, or some where the kernel does not tell.
pub(crate) fn waiting(listener: &impl AsRawFd) -> usize {
    queued(listener).unwrap_or(BATCH)
}

/// A listener within a runtime.
pub trait Accept: Send + Sync + 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Whether any user of the node can connect.
    const IS_OPEN_TO_ALL: bool;

    /// How many connections wait to be accepted, where the kernel tells; else some.
    fn waiting(&self) -> usize;

    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Accept for UnixListener {
    type Stream = UnixStream;

    // By the mode of the file.
    const IS_OPEN_TO_ALL: bool = false;

    fn waiting(&self) -> usize {
        BATCH
    }

    async fn accept(&self) -> io::Result<UnixStream> {
        Ok(self.accept().await?.0)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_kernel_tells_how_many_connections_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(queued(&listener).unwrap(), 0);
        let _clients: Vec<TcpStream> = (0..5).map(|_| TcpStream::connect(address).unwrap()).collect();
        kevtmon_testing::patience::eventually("all of them wait", || queued(&listener).unwrap() == 5);
        drop(listener.accept().unwrap());
        assert_eq!(queued(&listener).unwrap(), 4);
    }
}
