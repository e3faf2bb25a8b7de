//! The HTTP server of the page: who may ask, what is passed on to the daemon, and events as they occur.
//!
//! Any user of the node can connect, and any page in the browser can make it ask. So each request needs the token: in the address
//! of the page, in a header of the rest. A cookie would go to every other port of the loopback.

use std::fs::File;
use std::hint::black_box;
use std::io::{self, Read as _};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Request, StatusCode};
use kevtmon_history::query::filter::EventFilter;
use kevtmon_history::query::why::Outcome;
use kevtmon_history::query::wire::IncidentsAnswer;
use kevtmon_server::client::{Remote, RemoteError};
use kevtmon_server::http::{
    CONNECTION_TIME, Connection, HTML, Handler, JSON, Limits, NDJSON, PATIENCE, Response, Server,
    method_not_allowed, respond, stream_body, text, whole,
};
use kevtmon_server::web_config::{WebListener, WebStream};
use kevtmon_sources::capabilities::{DAC_OVERRIDE, DAC_READ_SEARCH, SYS_PTRACE};
use kevtmon_types::error_chain::chain;
use kevtmon_types::escape::to_json;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Semaphore, broadcast};
use tokio::task::spawn_blocking;

use crate::cli::query::processes::retain_current;

const LIMITS: Limits = Limits {
    connections: 64,
    patience: PATIENCE,
    connection: CONNECTION_TIME,
    blocking_threads: 4,
    shutdown: Duration::from_millis(100),
    // Whether advice still is about the same process is read of /proc; the socket may be another user's.
    capabilities: &[SYS_PTRACE, DAC_READ_SEARCH, DAC_OVERRIDE],
};
/// Most streams of events at once.
const STREAMS: usize = 16;
/// Events that wait for a slow reader; then a line says that some are missing.
const EVENTS: usize = 1024;
/// Pause before reconnecting to the daemon: a restart takes seconds.
const PAUSE: Duration = Duration::from_secs(1);
/// What is passed on to the daemon.
const PROXIED: [&str; 5] = ["/v1/incidents", "/v1/events", "/v1/why", "/v1/state", "/v1/doctor"];
/// A stream of events, one a line, and of objects that say how the stream is.
const FOLLOW: &str = "/v1/follow";
/// Header with the token.
const TOKEN: &str = "x-kevtmon-token";
/// The stream begins, or begins again.
const UP: &[u8] = b"{\"up\":true}\n";
/// A reader was too slow for some events.
const LAGGED: &[u8] = b"{\"lagged\":true}\n";

struct Site {
    token: String,
    page: Bytes,
    /// What the page may do (`Content-Security-Policy`).
    policy: HeaderValue,
    /// Socket of the daemon.
    socket: PathBuf,
    events: broadcast::Sender<Bytes>,
    streams: Arc<Semaphore>,
}

/// Serves the page on a port of the loopback, 0 for a free one; returns the server and the address of the page.
pub(super) fn start(socket: &Path, port: u16) -> io::Result<(Server, String)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let (token, nonce) = (random()?, random()?);
    let (events, _) = broadcast::channel(EVENTS);
    let url = format!("http://{address}/?token={token}");
    let site = Site {
        token,
        page: page(&nonce).into(),
        policy: HeaderValue::try_from(policy(&nonce)).map_err(io::Error::other)?,
        socket: socket.to_owned(),
        events: events.clone(),
        streams: Arc::new(Semaphore::new(STREAMS)),
    };
    let socket = socket.to_owned();
    // Ends with the program.
    thread::Builder::new().name("ui-events".to_owned()).spawn(move || follow(&socket, &events))?;
    let listeners = move || Ok(vec![WebListener::new(listener, None)?]);
    Ok((Server::start("ui", listeners, LIMITS, site)?, url))
}

/// 16 random bytes in hexadecimal.
fn random() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

fn page(nonce: &str) -> String {
    include_str!("page.html")
        .replace("@nonce@", nonce)
        .replace("@css@", include_str!("page.css"))
        .replace("@js@", include_str!("page.js"))
}

/// Only the page's own script and style, requests only to this server, and no text that becomes markup.
fn policy(nonce: &str) -> String {
    format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
         trusted-types 'none'"
    )
}

impl Handler for Site {
    type Stream = WebStream;
    type Peer = ();

    fn identify(&self, _: &WebStream) -> Result<(), String> {
        Ok(())
    }

    async fn handle(&self, request: &Request<Incoming>, (): &(), connection: &Arc<Connection>) -> Response {
        let mut response = match self.refusal(request) {
            Some(refusal) => refusal,
            None => self.answer(request, connection).await,
        };
        let headers = response.headers_mut();
        headers.insert(CONTENT_SECURITY_POLICY, self.policy.clone());
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        // The address has the token.
        headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        response
    }
}

impl Site {
    fn refusal(&self, request: &Request<Incoming>) -> Option<Response> {
        let hosts: Vec<&HeaderValue> = request.headers().get_all(HOST).iter().collect();
        if !matches!(hosts[..], [host] if host.to_str().is_ok_and(is_loopback)) {
            return Some(text(StatusCode::FORBIDDEN, "the host must be 127.0.0.1, localhost or [::1]"));
        }
        let given = match request.uri().path() {
            "/" => {
                let query = request.uri().query().unwrap_or_default();
                query.split('&').find_map(|pair| pair.strip_prefix("token="))
            }
            _ => request.headers().get(TOKEN).and_then(|token| token.to_str().ok()),
        };
        if !given.is_some_and(|given| is_same(given.as_bytes(), self.token.as_bytes())) {
            let why = "open the whole address that `kevtmon ui` has printed: the token is missing or wrong";
            return Some(text(StatusCode::FORBIDDEN, why));
        }
        (request.method() != Method::GET).then(|| method_not_allowed("GET"))
    }

    async fn answer(&self, request: &Request<Incoming>, connection: &Connection) -> Response {
        let path = request.uri().path();
        match path {
            "/" => respond(StatusCode::OK, HTML, whole(self.page.clone())),
            FOLLOW => self.stream(connection),
            _ if PROXIED.contains(&path) => {
                let (path, query) = (path.to_owned(), request.uri().query().unwrap_or_default().to_owned());
                let socket = self.socket.clone();
                match spawn_blocking(move || ask(&socket, &path, &query)).await {
                    Ok(Ok(body)) => respond(StatusCode::OK, JSON, whole(body)),
                    Ok(Err(error)) => text(StatusCode::BAD_GATEWAY, chain(&error)),
                    Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
                }
            }
            _ => text(StatusCode::NOT_FOUND, "not found"),
        }
    }

    /// Events as they occur, as long as the reader stays.
    fn stream(&self, connection: &Connection) -> Response {
        let Ok(permit) = Arc::clone(&self.streams).try_acquire_owned() else {
            return text(StatusCode::SERVICE_UNAVAILABLE, "too many streams at once");
        };
        connection.hold(permit);
        connection.set_stream();
        let mut events = self.events.subscribe();
        let (chunks, body) = stream_body();
        tokio::spawn(async move {
            loop {
                let event = tokio::select! {
                    event = events.recv() => event,
                    () = chunks.closed() => return,
                };
                let chunk = match event {
                    Ok(line) => line,
                    Err(RecvError::Lagged(_)) => Bytes::from_static(LAGGED),
                    Err(RecvError::Closed) => return,
                };
                if chunks.send(chunk).await.is_err() {
                    return;
                }
            }
        });
        respond(StatusCode::OK, NDJSON, body)
    }
}

/// Whether a `Host` header names the loopback: the name of another host may lead here, too. A tunnel may change the port.
fn is_loopback(host: &str) -> bool {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let name = host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(name, _)| name);
    matches!(name, "127.0.0.1" | "localhost" | "[::1]")
}

/// Compares in a time that does not depend on where they differ.
fn is_same(given: &[u8], token: &[u8]) -> bool {
    let differing = given.iter().zip(token).fold(0_u8, |differing, (a, b)| black_box(differing | (a ^ b)));
    given.len() == token.len() && differing == 0
}

/// The answer of the daemon. Advice about a process that has ended is left out: a page invites to copy it.
fn ask(socket: &Path, path: &str, query: &str) -> Result<String, RemoteError> {
    let body = Remote::connect(socket)?.get(&format!("{path}?{query}"))?;
    match path {
        "/v1/incidents" => {
            let mut answer: IncidentsAnswer = serde_json::from_str(&body)?;
            retain_current(answer.incidents.iter_mut().map(|view| &mut view.incident.advice));
            Ok(to_json(&answer)?)
        }
        "/v1/why" => {
            let mut outcome: Outcome = serde_json::from_str(&body)?;
            if let Outcome::Story(story) = &mut outcome {
                retain_current([&mut story.advice]);
            }
            Ok(to_json(&outcome)?)
        }
        _ => Ok(body),
    }
}

/// Sends events to all readers as they occur, over restarts of the daemon.
fn follow(socket: &Path, events: &broadcast::Sender<Bytes>) {
    // There may be no reader.
    let send = |line: Bytes| drop(events.send(line));
    loop {
        let followed = Remote::connect(socket).and_then(|remote| {
            send(Bytes::from_static(UP));
            remote.follow(&EventFilter::default(), Duration::MAX, |line| {
                line.into_iter().for_each(|line| send(format!("{line}\n").into()));
                ControlFlow::Continue(())
            })
        });
        let reason = followed.err().map_or_else(|| "the daemon has ended".to_owned(), |error| chain(&error));
        send(format!("{}\n", serde_json::json!({ "down": reason })).into());
        // Nothing unparks this thread; it would only reconnect earlier.
        thread::park_timeout(PAUSE);
    }
}

#[cfg(test)]
mod tests;
