//! Docker: its containers, by list, inspect and event stream over the unix socket.
//!
//! In: answers to GET requests; nothing else is ever sent, since the socket is root on the node. Out:
//! snapshots, changes and whether the source is up. A daemon that is missing, restarts, hangs or talks
//! nonsense makes the source down for as long as that lasts, never more.

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::errors::Error as ClientError;
use thiserror::Error;
use tokio::time::{Instant, sleep};

use super::super::procfs::Proc;
use super::super::{Sender, seen};
use crate::observation::{Fact, SourceKind, SourceStatus};
use containers::Containers;
use session::{End, Session};

mod change;
mod containers;
mod facts;
mod refresh;
mod session;

/// As in `ContainerFacts::runtime`, and the name of this source.
const RUNTIME: &str = "docker";

/// Longest part of the daemon's own words that is repeated.
const MAX_REASON: usize = 300;

/// Where Docker is and how patient to be with it.
#[derive(Debug, Clone)]
pub struct DockerConfig {
    /// Path of the API socket.
    pub socket: PathBuf,
    /// Between two full lists, which repair what the event stream did not tell.
    pub reconcile: Duration,
    /// For the answer to one request.
    pub timeout: Duration,
    /// Before the first new attempt after a failure; doubles with each failure.
    pub backoff_min: Duration,
    /// Longest pause between two attempts.
    pub backoff_max: Duration,
}

impl DockerConfig {
    /// The defaults for this socket.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            reconcile: Duration::from_secs(60),
            timeout: Duration::from_secs(2),
            backoff_min: Duration::from_millis(100),
            // A node has to know its containers again within 5 s of a restart of the daemon.
            backoff_max: Duration::from_secs(2),
        }
    }
}

/// Why Docker cannot be asked.
#[derive(Debug, Error)]
pub enum DockerError {
    /// Nothing is there.
    #[error("there is no socket at {}", path.display())]
    NoSocket {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The client library takes text only.
    #[error("the socket path {} is not UTF-8", path.display())]
    SocketPath {
        /// The path.
        path: PathBuf,
    },
    /// Nobody listens there, or not to us.
    #[error("cannot connect to the socket")]
    Connect {
        /// What went wrong.
        #[source]
        source: ClientError,
    },
    /// The daemon hangs, starts, or is overloaded.
    #[error("no answer within {after:?}")]
    Timeout {
        /// How long it was waited for.
        after: Duration,
    },
    /// The request was refused, or the answer makes no sense.
    #[error("{request} failed")]
    Request {
        /// What was asked.
        request: &'static str,
        /// What went wrong.
        #[source]
        source: ClientError,
    },
    /// The event stream broke off, or makes no sense.
    #[error("the event stream failed")]
    Events {
        /// What went wrong.
        #[source]
        source: ClientError,
    },
    /// The daemon stopped.
    #[error("the event stream ended")]
    EventsEnded,
}

impl DockerError {
    /// For `Fact::Resync`.
    fn gap(&self) -> &'static str {
        match self {
            Self::NoSocket { .. } | Self::SocketPath { .. } => "no-socket",
            Self::Connect { .. } => "refused",
            Self::Timeout { .. } => "timeout",
            Self::Request { source, .. } | Self::Events { source } if is_nonsense(source) => "decode",
            Self::Request { .. } => "request-failed",
            Self::Events { .. } => "stream-failed",
            Self::EventsEnded => "stream-ended",
        }
    }

    /// Whether the daemon says that there is no such container.
    fn is_absence(&self) -> bool {
        matches!(
            self,
            Self::Request { source: ClientError::DockerResponseServerError { status_code: 404, .. }, .. }
        )
    }

    /// For an operator: what failed, and the innermost cause.
    fn reason(&self) -> String {
        let mut cause = self.source();
        while let Some(inner) = cause.and_then(|error| error.source()) {
            cause = Some(inner);
        }
        let text = cause.map_or_else(|| self.to_string(), |cause| format!("{self}: {cause}"));
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_REASON).collect()
    }
}

fn is_nonsense(error: &ClientError) -> bool {
    matches!(error, ClientError::JsonDataError { .. } | ClientError::JsonSerdeError { .. })
}

/// The socket of the local Docker daemon, if there is one.
#[must_use]
pub fn default_socket() -> Option<PathBuf> {
    ["/run/docker.sock", "/var/run/docker.sock"].iter().map(PathBuf::from).find(|path| path.exists())
}

/// Tells what Docker knows, until nobody listens any more.
///
/// The first `Fact::Source` comes within the time of a few requests whatever the daemon does: after the
/// first snapshot if it is up, else with the reason. A snapshot always comes before the status that says up.
pub async fn run(config: DockerConfig, proc: Proc, tx: Sender) {
    let mut containers = Containers::new(proc.clone());
    let mut pause = config.backoff_min;
    let mut gap: Option<&'static str> = None;
    let mut down: Option<String> = None;
    while !tx.is_closed() {
        let started = Instant::now();
        let socket = reachable(&config.socket, &proc);
        let mut was_up = false;
        let mut session = Session::new(&config, &mut containers, &tx, gap);
        let End::Failed(error) = session.run(&socket, &mut was_up).await else { return };
        if was_up {
            gap = Some(error.gap());
            down = None;
            // One that fails at once again has not recovered.
            if started.elapsed() > config.backoff_max + config.timeout {
                pause = config.backoff_min;
            }
        }
        let reason = error.reason();
        tracing::debug!(%reason, ?pause, "docker is down");
        if down.as_ref() != Some(&reason) {
            let status = SourceStatus::down(SourceKind::Runtime, RUNTIME, reason.clone());
            if tx.send(seen(Fact::Source(status))).await.is_err() {
                return;
            }
            down = Some(reason);
        }
        tokio::select! {
            () = tx.closed() => return,
            () = sleep(pause) => {}
        }
        pause = (pause * 2).min(config.backoff_max);
    }
}

/// The socket as pid 1 sees it: a socket file that was bind-mounted into our own root goes stale when the
/// daemon makes a new one. Pid 1 may be out of reach even for root.
fn reachable(socket: &Path, proc: &Proc) -> PathBuf {
    socket
        .strip_prefix("/")
        .map(|path| proc.path(1, "root").join(path))
        .ok()
        .filter(|path| path.exists())
        .unwrap_or_else(|| socket.to_owned())
}

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;
