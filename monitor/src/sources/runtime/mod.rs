//! Container runtimes: their containers, with pods, processes and namespaces.
//!
//! One [`RuntimeClient`] per API, in a file of its own, registered in [`RuntimeKind`]; how to snapshot, stream,
//! reconcile and recover is the same for all of them. Every socket is a source of its own.

use std::fmt;
use std::path::PathBuf;

use super::Sender;
use super::procfs::readers::Readers;
use crate::names::names;
pub use client::{Changes, RuntimeClient, RuntimeError};
pub(super) use process::Identify;
pub use source::{Timing, run};

mod change;
mod client;
mod containers;
pub mod docker;
mod kubelet;
mod pod_proof;
mod process;
mod refresh;
mod session;
mod source;

names! {
    /// The API that a socket serves.
    RuntimeKind {
        /// Docker Engine API.
        Docker = "docker",
    }
}

impl RuntimeKind {
    /// All of them.
    pub const ALL: &'static [Self] = &[Self::Docker];

    /// Default paths of its socket; the first that exists is used.
    #[must_use]
    pub fn default_sockets(self) -> &'static [&'static str] {
        match self {
            Self::Docker => &["/run/docker.sock", "/var/run/docker.sock"],
        }
    }
}

/// A socket to watch: a source of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeSocket {
    /// Its API.
    pub kind: RuntimeKind,
    /// Where it is.
    pub path: PathBuf,
}

impl RuntimeSocket {
    /// Name of the source, as in `SourceStatus::source`.
    #[must_use]
    pub fn source(&self) -> String {
        format!("{}:{}", self.kind.name(), self.path.display())
    }

    /// Watches it until the receiver of observations is gone.
    pub async fn watch(self, readers: Readers, tx: Sender) {
        let (source, timing) = (self.source(), Timing::default());
        match self.kind {
            RuntimeKind::Docker => run::<docker::Docker>(source, &self.path, timing, readers, tx).await,
        }
    }
}

/// As in the configuration: `docker=/run/docker.sock`.
impl fmt::Display for RuntimeSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.kind.name(), self.path.display())
    }
}

/// The sockets at the usual places. One that is not there yet is waited for: the runtime may be installed or started
/// later.
#[must_use]
pub fn default_sockets() -> Vec<RuntimeSocket> {
    let socket = |kind: &RuntimeKind| {
        let mut paths = kind.default_sockets().iter().map(PathBuf::from);
        let usual = paths.clone().next()?;
        Some(RuntimeSocket { kind: *kind, path: paths.find(|path| path.exists()).unwrap_or(usual) })
    };
    RuntimeKind::ALL.iter().filter_map(socket).collect()
}

/// Labels of the sockets for metrics, in the same order: without a path, which has no bound.
#[must_use]
pub fn metric_labels(sockets: &[RuntimeSocket]) -> Vec<String> {
    let label = |(index, socket): (usize, &RuntimeSocket)| {
        let before = sockets[..index].iter().filter(|other| other.kind == socket.kind).count();
        match before {
            0 => socket.kind.name().to_owned(),
            _ => format!("{}-{}", socket.kind.name(), before + 1),
        }
    };
    sockets.iter().enumerate().map(label).collect()
}

/// Whether it is a full container id: 64 hex digits. Ids become part of request paths, so nothing else
/// is accepted.
fn is_container_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests;
