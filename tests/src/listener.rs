//! A unix socket that passes all on to another one, and keeps what was sent there.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::mount::Scratch;

/// What one client has sent, byte by byte.
type Sent = Arc<Mutex<Vec<Vec<u8>>>>;

/// Serves until the process ends.
#[derive(Debug)]
pub struct Listener {
    sent: Sent,
    scratch: Scratch,
}

impl Listener {
    /// Stands before this socket.
    #[must_use]
    pub fn before(target: &Path) -> Self {
        let scratch = Scratch::without_mounts();
        let listener = UnixListener::bind(scratch.path().join("socket")).expect("a socket can be made");
        let (sent, target) = (Sent::default(), target.to_owned());
        let keeps = Arc::clone(&sent);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // Where nobody listens, the client is told by the end of its connection.
                let Ok(server) = UnixStream::connect(&target) else { continue };
                pass_on(client, server, &keeps);
            }
        });
        Self { sent, scratch }
    }

    /// Where clients connect.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.scratch.path().join("socket")
    }

    /// The first line of each HTTP request so far. A body would count as a request of its own, whose first line is none.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let texts = sent.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        let heads = texts.flat_map(|text| text.split("\r\n\r\n").map(str::to_owned).collect::<Vec<_>>());
        heads
            .filter(|head| !head.is_empty())
            .map(|head| head.lines().next().unwrap_or_default().to_owned())
            .collect()
    }
}

fn pass_on(client: UnixStream, server: UnixStream, keeps: &Sent) {
    let clones = client.try_clone().and_then(|client| Ok((client, server.try_clone()?)));
    let (to_client, from_server) = clones.expect("a socket can be cloned");
    let number = {
        let mut sent = keeps.lock().unwrap_or_else(PoisonError::into_inner);
        sent.push(Vec::new());
        sent.len() - 1
    };
    let keeps = Arc::clone(keeps);
    std::thread::spawn(move || {
        copy(client, server, |bytes| {
            keeps.lock().unwrap_or_else(PoisonError::into_inner)[number].extend_from_slice(bytes);
        });
    });
    std::thread::spawn(move || copy(from_server, to_client, |_| ()));
}

/// Until either end is closed; then both are.
fn copy(mut from: UnixStream, mut to: UnixStream, mut each: impl FnMut(&[u8])) {
    let mut buffer = [0; 16 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        each(&buffer[..read]);
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}
