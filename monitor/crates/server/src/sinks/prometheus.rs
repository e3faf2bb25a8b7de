//! Metrics for Prometheus and health over HTTP. Events are not served here.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Method, Request, StatusCode};
use kevtmon_metrics::{Metrics, MetricsError};
use kevtmon_sources::capabilities::{BPF, DAC_READ_SEARCH, NET_ADMIN, to_use_maps};
use kevtmon_types::bucket::{Bucket, Price};
use kevtmon_types::build_info::VERSION;
use kevtmon_types::clock::{MS, boot_now};
use kevtmon_types::lock::lock;
use nix::sys::socket::Backlog;
use thiserror::Error;
use tokio::sync::Semaphore;

use super::health::Health;
use crate::http::{
    self, CONNECTION_TIME, Compressible, Connection, HTML, Handler, Limits, PATIENCE, Response, compressed,
    method_not_allowed, respond, text, whole,
};
use crate::web_config::{Refusal, WatchedConfig, WebListener, WebStream};

/// Limits of the server; open scrapes are not awaited at shutdown.
const LIMITS: Limits = Limits {
    connections: 64,
    patience: PATIENCE,
    connection: CONNECTION_TIME,
    blocking_threads: 1,
    shutdown: Duration::ZERO,
    // SIOCGSKNS shows what kevtmon itself pins. Those that take counters of the kernel, or files of the web configuration,
    // are added.
    capabilities: &[NET_ADMIN],
};
/// The same where a thread compares passwords while another looks at files.
const LIMITS_WITH_PASSWORDS: Limits = Limits { blocking_threads: 2, ..LIMITS };
/// Most scrapes whose response is made or sent: the other places are left for health checks, whose answers fit into
/// the socket's buffer.
const SCRAPES: usize = 16;
/// Metrics are read again so often at most, on average and at once; further scrapes get the last ones. Every user of the node
/// can ask as often as it likes, and only the reading takes time.
const FRESH: Price = Price { of_one: 50 * MS, of_all: 1000 * MS };
/// The text format of Prometheus.
const EXPOSITION: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// Why metrics cannot be served. The daemon exits with code 1.
#[derive(Debug, Error)]
pub enum HttpError {
    #[error("cannot listen on {address} for metrics")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("cannot start the thread for metrics")]
    Start(#[source] io::Error),
}

/// The running endpoint; it stops when this is dropped.
pub struct Server {
    addresses: Vec<SocketAddr>,
    _http: http::Server,
}

impl Server {
    /// Listens on every address, then serves.
    pub fn start(
        addresses: &[SocketAddr],
        metrics: Arc<Metrics>,
        health: Arc<Health>,
        web: Option<Arc<WatchedConfig>>,
    ) -> Result<Self, HttpError> {
        let listeners = addresses.iter().map(|address| listen(*address)).collect::<Result<Vec<_>, _>>()?;
        let addresses = listeners
            .iter()
            .map(TcpListener::local_addr)
            .collect::<io::Result<_>>()
            .map_err(HttpError::Start)?;
        let (limits, endpoint) = (limits(web.is_some()), Endpoint::new(metrics, health, web.clone()));
        let listeners = move || {
            listeners
                .into_iter()
                .map(|listener| WebListener::new(listener, web.clone()))
                .collect::<io::Result<Vec<_>>>()
        };
        let http = http::Server::start("http", listeners, limits, endpoint).map_err(HttpError::Start)?;
        Ok(Self { addresses, _http: http })
    }

    /// Where it listens, with the ports that the kernel chose.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

fn limits(is_secured: bool) -> Limits {
    match (to_use_maps().is_none(), is_secured) {
        (true, false) => LIMITS,
        (false, false) => Limits { capabilities: &[NET_ADMIN, BPF], ..LIMITS },
        (true, true) => Limits { capabilities: &[NET_ADMIN, DAC_READ_SEARCH], ..LIMITS_WITH_PASSWORDS },
        (false, true) => Limits { capabilities: &[NET_ADMIN, DAC_READ_SEARCH, BPF], ..LIMITS_WITH_PASSWORDS },
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, HttpError> {
    let failed = |source| HttpError::Listen { address, source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    // The kernel takes what is allowed of that; the standard library takes little, which any user can fill.
    nix::sys::socket::listen(&listener, Backlog::MAXALLOWABLE).map_err(|errno| failed(errno.into()))?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

struct Endpoint {
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    scrapes: Arc<Semaphore>,
    last: Mutex<Last>,
    web: Option<Arc<WatchedConfig>>,
}

/// The metrics as they were read last.
#[derive(Default)]
struct Last {
    text: Option<Arc<Compressible>>,
    /// Of readings.
    bucket: Bucket,
}

impl Handler for Endpoint {
    type Stream = WebStream;
    type Peer = IpAddr;

    fn identify(&self, stream: &WebStream) -> Result<IpAddr, String> {
        Ok(stream.peer())
    }

    async fn handle(
        &self,
        request: &Request<Incoming>,
        peer: &IpAddr,
        connection: &Arc<Connection>,
    ) -> Response {
        let authorization = request.headers().get(AUTHORIZATION);
        // Probes have no password, and learn nothing that one would hide.
        let is_probe = PROBES.contains(&request.uri().path());
        match self.web.as_ref().filter(|_| !is_probe) {
            Some(web) => match web.admit(authorization, *peer).await {
                Ok(()) => self.respond(request, connection),
                Err(refusal) => refuse(refusal),
            },
            None => self.respond(request, connection),
        }
    }
}

/// Paths that need no password.
const PROBES: [&str; 2] = ["/healthz", "/readyz"];

fn refuse(refusal: Refusal) -> Response {
    let (status, line, header, value) = match refusal {
        Refusal::Unauthorized => {
            (StatusCode::UNAUTHORIZED, "unauthorized", WWW_AUTHENTICATE, "Basic realm=\"kevtmon\"")
        }
        Refusal::Busy => {
            (StatusCode::TOO_MANY_REQUESTS, "too many passwords are being compared", RETRY_AFTER, "1")
        }
    };
    let mut response = text(status, line);
    response.headers_mut().insert(header, HeaderValue::from_static(value));
    response
}

impl Endpoint {
    fn new(metrics: Arc<Metrics>, health: Arc<Health>, web: Option<Arc<WatchedConfig>>) -> Self {
        let scrapes = Arc::new(Semaphore::new(SCRAPES));
        Self { metrics, health, scrapes, last: Mutex::default(), web }
    }

    fn scrape(&self, request: &Request<Incoming>, connection: &Connection) -> Response {
        let Ok(permit) = Arc::clone(&self.scrapes).try_acquire_owned() else {
            return text(StatusCode::SERVICE_UNAVAILABLE, "too many scrapes at once");
        };
        connection.hold(permit);
        match self.exposition() {
            Ok(metrics) => {
                compressed(request.headers(), &metrics, |body| respond(StatusCode::OK, EXPOSITION, body))
            }
            Err(error) => {
                tracing::error!(%error, "cannot render metrics");
                text(StatusCode::INTERNAL_SERVER_ERROR, "cannot render metrics")
            }
        }
    }

    fn exposition(&self) -> Result<Arc<Compressible>, MetricsError> {
        let mut last = lock(&self.last);
        let may = last.bucket.take(boot_now(), FRESH);
        if let Some(text) = last.text.as_ref().filter(|_| !may) {
            return Ok(Arc::clone(text));
        }
        let text = Arc::new(Compressible::from(self.metrics.gather()?));
        last.text = Some(Arc::clone(&text));
        Ok(text)
    }

    fn respond(&self, request: &Request<Incoming>, connection: &Connection) -> Response {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return method_not_allowed("GET, HEAD");
        }
        match request.uri().path() {
            "/metrics" => self.scrape(request, connection),
            "/healthz" => match self.health.check(boot_now()) {
                Ok(()) => text(StatusCode::OK, "ok"),
                Err(silent) => text(
                    StatusCode::SERVICE_UNAVAILABLE,
                    format!("the core has been silent for {} s", silent / 1_000_000_000),
                ),
            },
            "/readyz" if self.health.is_ready() => text(StatusCode::OK, "ready"),
            "/readyz" => text(StatusCode::SERVICE_UNAVAILABLE, "not ready: the sources are being started"),
            "/" => respond(StatusCode::OK, HTML, whole(landing_page())),
            _ => text(StatusCode::NOT_FOUND, "not found: there are /metrics, /healthz and /readyz"),
        }
    }
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

    use kevtmon_sources::procfs::own::Own;
    use kevtmon_types::clock::SECOND;
    use nix::sys::socket::setsockopt;
    use nix::sys::socket::sockopt::{RcvBuf, SndBuf};

    use super::*;
    use crate::http::Patience;

    fn server() -> (Server, Arc<Health>) {
        let metrics = Arc::new(Metrics::new("0", "0", Own::default()).unwrap());
        let health = Arc::new(Health::default());
        let loopback = ["127.0.0.1:0".parse().unwrap(), "[::1]:0".parse().unwrap()];
        (Server::start(&loopback, metrics, Arc::clone(&health), None).unwrap(), health)
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
    fn scrapes_without_end_are_answered_with_what_was_read_last() {
        let mut bucket = Bucket::default();
        let fresh = (0..1000).filter(|ms| bucket.take(ms * MS, FRESH)).count();
        assert_eq!(fresh, 20 + 19, "the burst, and one for each interval that passed");

        let metrics = Arc::new(Metrics::new("0", "0", Own::default()).unwrap());
        let endpoint = Endpoint::new(metrics, Arc::new(Health::default()), None);
        let first = endpoint.exposition().unwrap();
        assert!(!Arc::ptr_eq(&first, &endpoint.exposition().unwrap()), "the next one is not too early");
        let later = boot_now() + 3600 * SECOND;
        assert!(endpoint.last.lock().unwrap().bucket.take(later, FRESH));
        let last = endpoint.exposition().unwrap();
        assert!(Arc::ptr_eq(&last, &endpoint.exposition().unwrap()));
    }

    #[test]
    fn metrics_are_compressed_for_who_accepts_it() {
        let (server, _) = server();
        let address = server.addresses()[0];
        let answer = |accepted: &str| {
            let mut stream = TcpStream::connect(address).unwrap();
            write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\n{accepted}\r\n").unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            let end = answer.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
            let body = answer.split_off(end);
            (String::from_utf8(answer).unwrap(), body)
        };
        let (head, body) = answer("Accept-Encoding: gzip\r\n");
        assert!(head.contains("content-encoding: gzip\r\n"), "{head}");
        assert!(head.contains("vary: accept-encoding\r\n"), "{head}");
        let mut text = String::new();
        flate2::read::GzDecoder::new(&body[..]).read_to_string(&mut text).unwrap();
        assert!(text.contains("\nkevtmon_build_info{"), "{text}");
        assert!(body.len() * 3 < text.len(), "{} of {}", body.len(), text.len());
        for refusal in ["", "Accept-Encoding: gzip;q=0\r\n"] {
            let (head, body) = answer(refusal);
            assert!(!head.contains("content-encoding") && head.contains("vary: accept-encoding"), "{head}");
            assert!(String::from_utf8(body).unwrap().contains("\nkevtmon_build_info{"));
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
        let silent: Vec<_> =
            (0..LIMITS.connections * 3).map(|_| TcpStream::connect(address).unwrap()).collect();
        assert!(ask(address, "GET /healthz").starts_with("HTTP/1.1 200 "));
        drop(silent);
    }

    #[test]
    fn scrapes_that_are_not_read_leave_places_for_health_checks() {
        let metrics = Arc::new(Metrics::new("0", "0", Own::default()).unwrap());
        // More than the buffers between client and server take, with those of the server being small.
        for index in 0..4000 {
            metrics.name_source(index.to_string(), format!("{index}-{}", "x".repeat(64)));
        }
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        setsockopt(&listener, SndBuf, &4096).unwrap();
        let address = listener.local_addr().unwrap();
        // However long this test takes, no time is over.
        let hour = Duration::from_secs(3600);
        let limits = Limits { patience: Patience { usual: hour, scarce: hour }, connection: hour, ..LIMITS };
        let endpoint = Endpoint::new(metrics, Arc::default(), None);
        let listeners = move || Ok(vec![WebListener::new(listener, None)?]);
        let _server = http::Server::start("http", listeners, limits, endpoint).unwrap();
        let scrape = || {
            let mut stream = TcpStream::connect(address).unwrap();
            setsockopt(&stream, RcvBuf, &4096).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            let mut status = [0; 12];
            stream.read_exact(&mut status).unwrap();
            (stream, String::from_utf8(status.into()).unwrap())
        };
        let unread: Vec<_> = (0..SCRAPES).map(|_| scrape()).collect();
        assert!(unread.iter().all(|(_, status)| status == "HTTP/1.1 200"));
        let more: Vec<_> = (0..LIMITS.connections).map(|_| scrape()).collect();
        assert!(more.iter().all(|(_, status)| status == "HTTP/1.1 503"), "they would take all places");
        for path in ["GET /healthz", "GET /readyz"] {
            assert!(ask(address, path).starts_with("HTTP/1.1 "), "{path}");
        }
        drop(unread);
    }

    #[test]
    fn an_address_in_use_is_named() {
        let (server, health) = server();
        let metrics = Arc::new(Metrics::new("0", "0", Own::default()).unwrap());
        let taken = server.addresses()[0];
        let error = Server::start(&[taken], metrics, health, None).err().unwrap();
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
