//! The interface of a container runtime. A client implements the runtime's API; timeouts, retries and what was
//! reported before are the session's.

use std::error::Error;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use futures_util::Stream;
use kevtmon_observation::ContainerFacts;
use thiserror::Error;

use super::change::Change;
use super::source::Options;
use super::state_files::StateFiles;

/// Longest part of an error text that is repeated: the runtime chooses its length.
const MAX_REASON: usize = 300;

/// Containers that a list tells at most: a node has some hundred, and some thousand that have ended.
pub(crate) const ENTRIES_MAX: usize = 32 << 10;

type Cause = Box<dyn Error + Send + Sync>;

pub type Changes = Pin<Box<dyn Stream<Item = Result<Change, RuntimeError>> + Send>>;

#[derive(Debug, Clone, Default)]
pub struct Listed {
    pub containers: Vec<ContainerFacts>,
    /// Entries that were left out, since they have no proper id.
    pub malformed: u64,
}

impl FromIterator<Option<ContainerFacts>> for Listed {
    fn from_iter<I: IntoIterator<Item = Option<ContainerFacts>>>(entries: I) -> Self {
        let mut listed = Self::default();
        for entry in entries {
            match entry {
                Some(facts) => listed.containers.push(facts),
                None => listed.malformed += 1,
            }
        }
        listed
    }
}

#[derive(Debug, Clone)]
pub struct Inspection {
    pub facts: ContainerFacts,
    /// When its process was started, or has ended if it runs no more: wall clock, nanoseconds, as the runtime tells it.
    pub since: Option<i64>,
}

/// A connection to one runtime. Only what reads is ever sent: the socket is root on the node.
///
/// In its facts, `runtime`, `source` and what only /proc has (`netns`, `mntns`) are ignored: the session fills them in.
/// Calls need no deadline of their own: the session has one and drops the future.
pub trait RuntimeClient: Clone + Send + Sync + 'static {
    /// Whether its events begin where they were asked to. Else what happens while it subscribes is found by an early list.
    const LOOKS_BACK: bool = true;

    /// Connects to a socket. How long a request may take is for libraries with timeouts of their own.
    fn connect(socket: &Path, options: &Options) -> impl Future<Output = Result<Self, RuntimeError>> + Send;

    /// What really answers there, as in `ContainerFacts::runtime`: the API of one runtime may be served by another.
    fn runtime(&self) -> &str;

    /// Answers that could not be read while it connected, and without which it goes on.
    fn refused(&self) -> u64 {
        0
    }

    /// Where a runtime with this socket keeps its containers on disk, to be read while it does not answer.
    fn usual_state_files(_socket: &Path) -> Option<StateFiles> {
        None
    }

    /// The same, where this one tells it.
    fn state_files(&self) -> Option<StateFiles> {
        None
    }

    /// Every container in any state. Process ids may be missing.
    fn list(&self) -> impl Future<Output = Result<Listed, RuntimeError>> + Send;

    /// All of one container, the id of its init process included; `None` if it does not exist.
    fn inspect(&self, id: &str) -> impl Future<Output = Result<Option<Inspection>, RuntimeError>> + Send;

    /// Changes from `since` (wall clock, nanoseconds) on, where the runtime can look back, else from now on. It may
    /// subscribe when it is first polled. A runtime without events gives [`RuntimeError::NoEvents`] and is listed
    /// instead; an event that is none of a container gives [`RuntimeError::UnidentifiedEvent`] and does not end the stream.
    fn events(&self, since: i64) -> Changes;
}

#[derive(Debug, Error)]
pub enum RuntimeError {
    #[error("there is no socket at {}", path.display())]
    NoSocket { path: PathBuf },
    /// No process listens there, or access is denied.
    #[error("cannot connect to the socket")]
    Connect { source: Cause },
    #[error("no answer within {after:?}")]
    Timeout { after: Duration },
    #[error("{request} failed")]
    Request { request: &'static str, source: Cause },
    #[error("{request} returned an invalid response")]
    Decode { request: &'static str, source: Cause },
    /// An event tells no container; those after it are not affected.
    #[error("{request} sent an event without a proper container id")]
    UnidentifiedEvent { request: &'static str },
    #[error("the event stream failed")]
    Events { source: Cause },
    #[error("the event stream ended")]
    EventsEnded,
    /// Another API is served there, so there are no containers that this one could show.
    #[error("{api} is not served there")]
    NotServed { api: &'static str, source: Cause },
    /// The runtime has no event stream.
    #[error("the runtime has no event stream")]
    NoEvents { source: Cause },
}

impl RuntimeError {
    pub(super) fn is_malformed(&self) -> bool {
        matches!(self, Self::Decode { .. } | Self::UnidentifiedEvent { .. })
    }

    /// For `Fact::Resync`.
    pub(super) fn gap(&self) -> &'static str {
        match self {
            Self::NoSocket { .. } => "no-socket",
            Self::Connect { .. } => "refused",
            Self::Timeout { .. } => "timeout",
            Self::Decode { .. } | Self::UnidentifiedEvent { .. } => "decode",
            Self::Request { .. } => "request-failed",
            Self::NotServed { .. } => "not-served",
            Self::Events { .. } | Self::NoEvents { .. } => "stream-failed",
            Self::EventsEnded => "stream-ended",
        }
    }

    pub fn reason(&self) -> String {
        let mut cause = self.source();
        while let Some(inner) = cause.and_then(|error| error.source()) {
            cause = Some(inner);
        }
        let text = cause.map_or_else(|| self.to_string(), |cause| format!("{self}: {cause}"));
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_REASON).collect()
    }
}
