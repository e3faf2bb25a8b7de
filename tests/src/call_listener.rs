//! A unix socket that passes the calls of gRPC on to another one, and keeps what was called.

use std::collections::BTreeSet;
use std::os::unix::net::UnixListener as Blocking;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{client, server};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{UnixListener, UnixStream};

use crate::mount::Scratch;

/// `/SERVICE/METHOD`.
type Calls = Arc<Mutex<BTreeSet<String>>>;

/// Serves until the process ends.
#[derive(Debug)]
pub struct CallListener {
    calls: Calls,
    scratch: Scratch,
}

impl CallListener {
    /// Stands before this socket.
    #[must_use]
    pub fn before(target: &Path) -> Self {
        let scratch = Scratch::without_mounts();
        let listener = Blocking::bind(scratch.path().join("socket")).expect("a socket can be made");
        listener.set_nonblocking(true).expect("a socket need not block");
        let (calls, target) = (Calls::default(), target.to_owned());
        let keeps = Arc::clone(&calls);
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
            runtime.block_on(serve(listener, target, keeps));
        });
        Self { calls, scratch }
    }

    /// Where clients connect.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.scratch.path().join("socket")
    }

    /// What was called so far, each as `/SERVICE/METHOD`.
    #[must_use]
    pub fn calls(&self) -> BTreeSet<String> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn serve(listener: Blocking, target: PathBuf, calls: Calls) {
    let listener = UnixListener::from_std(listener).expect("a listener of this runtime");
    while let Ok((client, _)) = listener.accept().await {
        tokio::spawn(pass_on(client, target.clone(), Arc::clone(&calls)));
    }
}

/// Until either end closes its connection: then the other one is closed, too.
async fn pass_on(from: UnixStream, target: PathBuf, calls: Calls) {
    let Ok(to) = UnixStream::connect(target).await else { return };
    let handshake = client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(to));
    let Ok((requests, connection)) = handshake.await else { return };
    tokio::spawn(connection);
    let service = service_fn(move |request: Request<Incoming>| {
        let call = request.uri().path().to_owned();
        calls.lock().unwrap_or_else(PoisonError::into_inner).insert(call);
        let mut requests = requests.clone();
        async move { requests.send_request(request).await }
    });
    let http = server::conn::http2::Builder::new(TokioExecutor::new());
    let _ = http.serve_connection(TokioIo::new(from), service).await;
}
