//! Client of the running daemon's socket.

use std::fs;
use std::io::{self, ErrorKind};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use kevtmon_core::state::NodeState;
use kevtmon_history::query::doctor::DaemonReport;
use kevtmon_history::query::filter::{EventFilter, IncidentFilter};
use kevtmon_history::query::history::{Extent, History, HistoryError, IncidentView, Page};
use kevtmon_history::query::why::Outcome;
use kevtmon_history::query::wire::{self, IncidentsAnswer, VersionAnswer};
use kevtmon_history::query::{API, API_HEADER};
use nix::unistd::{Gid, getegid, geteuid, getgroups};
use thiserror::Error;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// Timeout for the connection and the head of the response.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Timeout for the body of a response.
const BODY_TIME: Duration = Duration::from_secs(30);
/// Maximum size of a response, in bytes.
const ANSWER_BYTES: usize = 256 << 20;
/// Maximum size of an event in a stream, in bytes.
const LINE_BYTES: usize = 16 << 20;

/// Why the daemon did not answer.
#[derive(Debug, Error)]
pub enum RemoteError {
    #[error("no daemon listens on {}", .path.display())]
    Dead { path: PathBuf },
    #[error("permission denied by the daemon at {}: only root and members of the socket's group may query it", .path.display())]
    Denied { path: PathBuf },
    /// No connection for another reason.
    #[error("cannot connect to {}", .path.display())]
    Connect { path: PathBuf, source: io::Error },
    #[error("the daemon at {} does not respond", .path.display())]
    Silent { path: PathBuf },
    #[error("the connection to {} broke", .path.display())]
    Broken { path: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("{} is not the socket of a kevtmon daemon", .path.display())]
    NotKevtmon { path: PathBuf },
    #[error("the daemon at {} has interface version {theirs}, this kevtmon has {API}; use the kevtmon of the daemon's version", .path.display())]
    Version { path: PathBuf, theirs: String },
    #[error("the running daemon at {} is older than this kevtmon and does not have this query; restart it", .path.display())]
    Older { path: PathBuf },
    #[error("the daemon refused the request: {reason}")]
    Refused { reason: String },
    #[error("cannot parse the response of the daemon")]
    Answer(#[from] serde_json::Error),
    #[error("cannot start the client")]
    Start(#[source] io::Error),
}

impl From<RemoteError> for HistoryError {
    fn from(error: RemoteError) -> Self {
        Self::Unanswered(Box::new(error))
    }
}

impl RemoteError {
    /// Whether its files may be read in its place.
    pub fn is_dead(&self) -> bool {
        matches!(self, Self::Dead { .. } | Self::Silent { .. } | Self::Broken { .. } | Self::Connect { .. })
    }
}

/// A daemon's socket.
#[derive(Debug)]
pub struct Remote {
    path: PathBuf,
    runtime: Runtime,
}

impl Remote {
    /// Checks that a daemon of this interface version runs.
    pub fn connect(path: &Path) -> Result<Self, RemoteError> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(RemoteError::Start)?;
        let remote = Self { path: path.to_owned(), runtime };
        remote.version()?;
        Ok(remote)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Process id of the daemon as it is here, where it may be in another pid namespace; `None` if it has none.
    pub fn pid(&self) -> Option<u32> {
        let stream = self.runtime.block_on(UnixStream::connect(&self.path)).ok()?;
        let pid = stream.peer_cred().ok()?.pid()?;
        u32::try_from(pid).ok().filter(|pid| *pid != 0)
    }

    /// Versions of the daemon.
    pub fn version(&self) -> Result<VersionAnswer, RemoteError> {
        Ok(serde_json::from_str(&self.get("/v1/version")?)?)
    }

    /// What the daemon tells of itself.
    pub fn doctor(&self) -> Result<DaemonReport, RemoteError> {
        Ok(serde_json::from_str(&self.get("/v1/doctor")?)?)
    }

    /// The story of the subject, answered in the daemon.
    pub fn why(&self, subject: &str) -> Result<Outcome, RemoteError> {
        Ok(serde_json::from_str(&self.get(&format!("/v1/why?{}", wire::write_why(subject)))?)?)
    }

    /// Calls `each` with each new event, as JSON, and with none whenever nothing came for `pause`, until it breaks or the
    /// stream ends.
    pub fn follow(
        &self,
        filter: &EventFilter,
        pause: Duration,
        mut each: impl FnMut(Option<&str>) -> ControlFlow<()>,
    ) -> Result<(), RemoteError> {
        self.runtime.block_on(async {
            let answer = self.head(&format!("/v1/events?{}", wire::write_events(filter, true))).await?;
            let mut body = answer.into_body();
            let mut rest = Vec::new();
            loop {
                let frame = match timeout(pause, body.frame()).await {
                    Ok(Some(frame)) => frame,
                    Ok(None) => return Ok(()),
                    Err(_) if each(None).is_break() => return Ok(()),
                    Err(_) => continue,
                };
                let Ok(data) = frame.map_err(|error| self.broken(error))?.into_data() else { continue };
                rest.extend_from_slice(&data);
                let mut begin = 0;
                while let Some(length) = rest[begin..].iter().position(|byte| *byte == b'\n') {
                    let line = String::from_utf8_lossy(&rest[begin..begin + length]);
                    if each(Some(&line)).is_break() {
                        return Ok(());
                    }
                    begin += length + 1;
                }
                rest.drain(..begin);
                if rest.len() > LINE_BYTES {
                    return Err(RemoteError::NotKevtmon { path: self.path.clone() });
                }
            }
        })
    }

    /// The body of the answer to a request, as the daemon sent it.
    pub fn get(&self, target: &str) -> Result<String, RemoteError> {
        self.runtime.block_on(async {
            let answer = self.head(target).await?;
            self.body(answer).await
        })
    }

    /// Sends the request and reads the head of the response; a refusal is an error.
    async fn head(&self, target: &str) -> Result<Response<Incoming>, RemoteError> {
        let asked = timeout(HEAD_TIME, async {
            let stream =
                UnixStream::connect(&self.path).await.map_err(|source| self.not_connected(source))?;
            let (mut sender, connection) =
                http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.broken(error))?;
            // Ends with its connection, whose errors the answer's body shows as well.
            tokio::spawn(connection);
            let request = Request::get(target)
                .header(HOST, "kevtmon")
                .header(API_HEADER, API)
                .body(Empty::<Bytes>::new())
                .map_err(|error| self.broken(error))?;
            sender.send_request(request).await.map_err(|error| self.broken(error))
        });
        let answer = asked.await.map_err(|_| RemoteError::Silent { path: self.path.clone() })?;
        // Who has no access is disconnected before the request is read.
        let answer = answer.map_err(|error| match self.has_access() {
            Ok(false) => RemoteError::Denied { path: self.path.clone() },
            _ => error,
        })?;
        if answer.status() == StatusCode::FORBIDDEN {
            return Err(RemoteError::Denied { path: self.path.clone() });
        }
        let theirs = answer
            .headers()
            .get(API_HEADER)
            .map(|theirs| String::from_utf8_lossy(theirs.as_bytes()).into_owned())
            .ok_or_else(|| RemoteError::NotKevtmon { path: self.path.clone() })?;
        if theirs != API.to_string() {
            return Err(RemoteError::Version { path: self.path.clone(), theirs });
        }
        match answer.status() {
            StatusCode::OK => Ok(answer),
            StatusCode::NOT_FOUND => Err(RemoteError::Older { path: self.path.clone() }),
            _ => Err(RemoteError::Refused { reason: self.body(answer).await?.trim_end().to_owned() }),
        }
    }

    async fn body(&self, answer: Response<Incoming>) -> Result<String, RemoteError> {
        let whole = timeout(BODY_TIME, Limited::new(answer.into_body(), ANSWER_BYTES).collect()).await;
        let whole = whole.map_err(|_| RemoteError::Silent { path: self.path.clone() })?;
        let bytes =
            whole.map_err(|source| RemoteError::Broken { path: self.path.clone(), source })?.to_bytes();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Whether the daemon lets this user query it, whatever the mode of the socket.
    fn has_access(&self) -> io::Result<bool> {
        let socket = fs::metadata(&self.path)?;
        let user = geteuid().as_raw();
        let is_member = |group: Gid| group.as_raw() == socket.gid();
        Ok(user == 0
            || user == socket.uid()
            || is_member(getegid())
            || getgroups()?.into_iter().any(is_member))
    }

    fn not_connected(&self, source: io::Error) -> RemoteError {
        let path = self.path.clone();
        match source.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => RemoteError::Dead { path },
            ErrorKind::PermissionDenied => RemoteError::Denied { path },
            _ => RemoteError::Connect { path, source },
        }
    }

    fn broken(&self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> RemoteError {
        RemoteError::Broken { path: self.path.clone(), source: source.into() }
    }
}

impl History for Remote {
    fn events(&self, filter: &EventFilter) -> Result<Page, HistoryError> {
        let body = self.get(&format!("/v1/events?{}", wire::write_events(filter, false)))?;
        Ok(wire::read_page(&body).map_err(RemoteError::from)?.0)
    }

    fn incidents(&self, filter: &IncidentFilter) -> Result<Vec<IncidentView>, HistoryError> {
        let body = self.get(&format!("/v1/incidents?{}", wire::write_incidents(filter)))?;
        let answer: IncidentsAnswer = serde_json::from_str(&body).map_err(RemoteError::from)?;
        Ok(answer.incidents)
    }

    fn extent(&self) -> Result<Extent, HistoryError> {
        let body = self.get("/v1/events?limit=1")?;
        Ok(wire::read_page(&body).map_err(RemoteError::from)?.1)
    }

    fn state(&self) -> Result<Option<NodeState>, HistoryError> {
        Ok(Some(serde_json::from_str(&self.get("/v1/state")?).map_err(RemoteError::from)?))
    }
}
