//! Metrics and health over HTTP. Events never leave this way.
//!
//! It has a thread and a runtime of its own, so that neither a scrape nor a slow client delays the core.
//! One request a connection, and a time limit on the whole of it: nobody can hold a place.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::health::Health;
use crate::build_info::VERSION;
use crate::clock::boot_now;
use crate::metrics::Metrics;
use crate::queue::lower_thread_priority;

/// Most connections at once, over all addresses; more wait in the kernel.
const CONNECTIONS: usize = 64;
/// Time for a client to send its request.
pub(super) const REQUEST_TIME: Duration = Duration::from_secs(5);
/// Time for a client to take its answer, request included.
pub(super) const CONNECTION_TIME: Duration = Duration::from_secs(15);
/// Pause after the kernel refused a connection (no descriptors left), so that it is not asked in a loop.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Why the endpoint cannot be offered. The daemon exits with code 1.
#[derive(Debug, Error)]
pub enum HttpError {
    /// An address cannot be used.
    #[error("cannot listen on {address} for metrics")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The thread or its runtime cannot be started.
    #[error("cannot start the thread for metrics")]
    Start(#[source] io::Error),
}

/// The running endpoint; it ends when this is dropped.
pub struct Server {
    addresses: Vec<SocketAddr>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on every address, then serves.
    ///
    /// # Errors
    /// When one of the addresses cannot be used.
    pub fn start(
        addresses: &[SocketAddr],
        metrics: Arc<Metrics>,
        health: Arc<Health>,
    ) -> Result<Self, HttpError> {
        let listeners = addresses.iter().map(|address| listen(*address)).collect::<Result<Vec<_>, _>>()?;
        let addresses = listeners
            .iter()
            .map(TcpListener::local_addr)
            .collect::<io::Result<_>>()
            .map_err(HttpError::Start)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(HttpError::Start)?;
        let (stop, stopped) = oneshot::channel();
        let answers = Arc::new(Answers { metrics, health });
        let thread = thread::Builder::new()
            .name("http".to_owned())
            .spawn(move || {
                lower_thread_priority();
                runtime.block_on(serve(listeners, answers, stopped));
            })
            .map_err(HttpError::Start)?;
        Ok(Self { addresses, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens, with the ports that the kernel chose.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Either end may be gone already.
        let _ = self.stop.take().map(|stop| stop.send(()));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, HttpError> {
    let failed = |source| HttpError::Listen { address, source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

async fn serve(listeners: Vec<TcpListener>, answers: Arc<Answers>, stopped: oneshot::Receiver<()>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    // Dropping the set ends what still runs.
    let mut accepting = JoinSet::new();
    for listener in listeners {
        accepting.spawn(accept(listener, Arc::clone(&places), Arc::clone(&answers)));
    }
    // An error means that the handle was dropped: the same wish.
    let _ = stopped.await;
}

async fn accept(listener: TcpListener, places: Arc<Semaphore>, answers: Arc<Answers>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "metrics are not served"),
    };
    let mut connections = JoinSet::new();
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let answers = Arc::clone(&answers);
                connections.spawn(async move {
                    // A client that breaks off or is too slow is its own business.
                    let _ = timeout(CONNECTION_TIME, answer_one(stream, answers)).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection for metrics");
                sleep(ACCEPT_PAUSE).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn answer_one(stream: TcpStream, answers: Arc<Answers>) -> hyper::Result<()> {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = answers.answer(request.method(), request.uri().path());
        async move { Ok::<_, Infallible>(answer) }
    });
    http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIME)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

struct Answers {
    metrics: Arc<Metrics>,
    health: Arc<Health>,
}

impl Answers {
    fn answer(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
        const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
        const METRICS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        if !matches!(*method, Method::GET | Method::HEAD) {
            let mut refusal = response(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n");
            refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refusal;
        }
        match path {
            "/metrics" => match self.metrics.gather() {
                Ok(text) => response(StatusCode::OK, METRICS, text),
                Err(error) => {
                    tracing::error!(%error, "cannot render metrics");
                    response(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "cannot render metrics\n")
                }
            },
            "/healthz" => match self.health.check(boot_now()) {
                Ok(()) => response(StatusCode::OK, TEXT, "ok\n"),
                Err(silent) => response(
                    StatusCode::SERVICE_UNAVAILABLE,
                    TEXT,
                    format!("the core has been silent for {} s\n", silent / 1_000_000_000),
                ),
            },
            "/readyz" if self.health.is_ready() => response(StatusCode::OK, TEXT, "ready\n"),
            "/readyz" => {
                response(StatusCode::SERVICE_UNAVAILABLE, TEXT, "not ready: the sources are being started\n")
            }
            "/" => response(StatusCode::OK, HTML, landing_page()),
            _ => {
                response(StatusCode::NOT_FOUND, TEXT, "not found: there are /metrics, /healthz and /readyz\n")
            }
        }
    }
}

fn response(status: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

fn landing_page() -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>kevtmon</title></head><body>\n\
         <h1>kevtmon</h1>\n<p>Names who deleted a neighbor entry, changed a link or holds a mount.</p>\n\
         <p>Version {VERSION}</p>\n<ul>\n<li><a href=\"/metrics\">Metrics</a></li>\n\
         <li><a href=\"/healthz\">Health</a></li>\n<li><a href=\"/readyz\">Readiness</a></li>\n</ul>\n</body></html>\n"
    )
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;
    use crate::sources::procfs::own::Own;

    fn server() -> (Server, Arc<Health>) {
        let metrics = Arc::new(Metrics::new("0", "0", Own::default()).unwrap());
        let health = Arc::new(Health::default());
        let loopback = ["127.0.0.1:0".parse().unwrap(), "[::1]:0".parse().unwrap()];
        (Server::start(&loopback, metrics, Arc::clone(&health)).unwrap(), health)
    }

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "{request} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn metrics_are_served_on_every_address() {
        let (server, _) = server();
        assert_eq!(server.addresses().len(), 2);
        for address in server.addresses() {
            let answer = ask(*address, "GET /metrics");
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
            assert!(
                answer.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"),
                "{answer}"
            );
            assert!(answer.contains("\nkevtmon_build_info{"), "{answer}");
        }
    }

    #[test]
    fn health_follows_the_core() {
        let (server, health) = server();
        let address = server.addresses()[0];
        assert!(ask(address, "GET /healthz").starts_with("HTTP/1.1 200 "));
        health.tick(boot_now().saturating_sub(12_500_000_000));
        let answer = ask(address, "GET /healthz");
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("silent for 12 s"), "{answer}");
    }

    #[test]
    fn readiness_follows_the_daemon() {
        let (server, health) = server();
        let address = server.addresses()[0];
        assert!(ask(address, "GET /readyz").starts_with("HTTP/1.1 503 "));
        health.set_ready();
        assert!(ask(address, "GET /readyz").starts_with("HTTP/1.1 200 "));
    }

    #[test]
    fn the_landing_page_links_everything_and_other_paths_are_not_there() {
        let (server, _) = server();
        let address = server.addresses()[0];
        let page = ask(address, "GET /");
        for path in ["/metrics", "/healthz", "/readyz", VERSION] {
            assert!(page.contains(path), "{page}");
        }
        assert!(ask(address, "GET /events").starts_with("HTTP/1.1 404 "));
    }

    #[test]
    fn only_reading_is_allowed() {
        let (server, _) = server();
        let address = server.addresses()[0];
        let refusal = ask(address, "POST /metrics");
        assert!(
            refusal.starts_with("HTTP/1.1 405 ") && refusal.contains("allow: GET, HEAD\r\n"),
            "{refusal}"
        );
        let head = ask(address, "HEAD /metrics");
        assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
    }

    #[test]
    fn garbage_is_refused_and_the_next_client_is_served() {
        let (server, _) = server();
        let address = server.addresses()[0];
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&[0xff; 64]).unwrap();
        let mut answer = Vec::new();
        // The kernel may reset the connection, because the server leaves garbage unread.
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 200"));
        assert!(ask(address, "GET /healthz").starts_with("HTTP/1.1 200 "));
    }

    #[test]
    fn clients_that_say_nothing_do_not_keep_others_out() {
        let (server, _) = server();
        let address = server.addresses()[0];
        let silent: Vec<_> = (0..CONNECTIONS / 2).map(|_| TcpStream::connect(address).unwrap()).collect();
        assert!(ask(address, "GET /healthz").starts_with("HTTP/1.1 200 "));
        drop(silent);
    }

    #[test]
    fn an_address_in_use_is_named() {
        let (server, health) = server();
        let metrics = Arc::new(Metrics::new("0", "0", Own::default()).unwrap());
        let taken = server.addresses()[0];
        let error = Server::start(&[taken], metrics, health).err().unwrap();
        assert!(error.to_string().contains(&taken.to_string()), "{error}");
        assert!(
            matches!(error, HttpError::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse)
        );
    }

    #[test]
    fn dropping_the_server_frees_its_addresses() {
        let (server, _) = server();
        let address = server.addresses()[0];
        let _silent = TcpStream::connect(address).unwrap();
        drop(server);
        assert!(TcpStream::connect(address).is_err());
    }
}
