//! Container runtimes: their containers, with pods, processes and namespaces.
//!
//! One [`RuntimeClient`] per API, in a file of its own, registered in [`RuntimeKind`]; how to snapshot, stream,
//! reconcile and recover is the same for all of them. Every socket is a source of its own.

use std::fmt;
use std::path::{Path, PathBuf};

pub(super) use checkpoint::FindCheckpoints;
pub(super) use client::ENTRIES_MAX;
pub use client::{Changes, RuntimeClient, RuntimeError};
use kevtmon_types::names::names;
pub(super) use kubelet::is_name;
pub(super) use process::{Identify, Prove};
pub use source::{Options, run};
pub(super) use state_files::ReadStateFiles;
pub(super) use still_runs::StillRuns;
use tokio::time::{Instant, sleep_until, timeout};

use super::procfs::Proc;
use super::procfs::readers::Readers;
use super::{Sender, until_closed};
use crate::beat::at_beat;
use crate::kubelet::PodLabels;

mod change;
pub mod checkpoint;
mod client;
mod containers;
mod cri;
pub mod docker;
mod kubelet;
mod pod_proof;
mod process;
mod refresh;
mod session;
mod source;
mod state_files;
pub mod still_runs;

/// Where dockerd's own socket is; what else serves its API keeps its containers elsewhere on disk.
const DOCKER: &[&str] = &["/run/docker.sock", "/var/run/docker.sock"];

names! {
    /// The API that a socket serves.
    RuntimeKind {
        /// Docker Engine API.
        Docker = "docker",
        /// Container Runtime Interface, v1 or v1alpha2.
        Cri = "cri",
    }
}

impl RuntimeKind {
    pub const ALL: &'static [Self] = &[Self::Docker, Self::Cri];

    /// The usual places of its sockets; of several paths to one place, the first that exists is used.
    pub fn places(self) -> &'static [&'static [&'static str]] {
        match self {
            Self::Docker => &[DOCKER, &["/run/podman/podman.sock"]],
            Self::Cri => &[
                &["/run/containerd/containerd.sock"],
                &["/run/crio/crio.sock"],
                &["/run/cri-dockerd.sock"],
                &["/run/k3s/containerd/containerd.sock"],
                &["/run/k0s/containerd.sock"],
            ],
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeSocket {
    pub kind: RuntimeKind,
    pub path: PathBuf,
}

impl RuntimeSocket {
    /// Name of the source, as in `SourceStatus::source`.
    pub fn source(&self) -> String {
        format!("{}:{}", self.kind.name(), self.path.display())
    }

    /// Whether it is where root has the socket of a runtime by default.
    pub fn is_at_usual_place(&self) -> bool {
        let mut places = RuntimeKind::ALL.iter().flat_map(|kind| kind.places()).copied().flatten();
        places.any(|place| Path::new(place) == self.path)
    }

    /// What answers there: `docker`, `podman`, `containerd`, …
    /// Errors: why nothing does, within the time that a request may take.
    pub async fn probe(&self, proc: &Proc, options: &Options) -> Result<String, RuntimeError> {
        let path = proc.on_host(&self.path);
        let asked = async {
            Ok(match self.kind {
                RuntimeKind::Docker => docker::Docker::connect(&path, options).await?.runtime().to_owned(),
                RuntimeKind::Cri => cri::Cri::connect(&path, options).await?.runtime().to_owned(),
            })
        };
        let late = RuntimeError::Timeout { after: options.timeout };
        timeout(options.timeout, asked).await.unwrap_or(Err(late))
    }

    /// Watches it until the receiver of observations is gone.
    pub async fn watch(self, options: Options, readers: Readers, tx: Sender) {
        let source = self.source();
        match self.kind {
            RuntimeKind::Docker => run::<docker::Docker>(source, &self.path, options, readers, tx).await,
            RuntimeKind::Cri => run::<cri::Cri>(source, &self.path, options, readers, tx).await,
        }
    }

    /// Watches it from when it appears for the first time, or a container runs that its runtime keeps on disk: until then
    /// it is no source.
    pub async fn watch_once_there(self, options: Options, readers: Readers, tx: Sender) {
        until_closed(&tx, self.until_there(&options, &readers)).await;
        self.watch(options, readers, tx).await;
    }

    async fn until_there(&self, options: &Options, readers: &Readers) {
        let mut looked: Option<Instant> = None;
        while !readers.proc().on_host(&self.path).exists() {
            if looked.is_none_or(|looked| looked.elapsed() >= options.reconcile) {
                looked = Some(Instant::now());
                if self.is_at_work(readers).await {
                    break;
                }
            }
            sleep_until(at_beat(options.absent)).await;
        }
    }

    /// Whether a container runs of the runtime that has its socket there. What a runtime that was removed from the node has
    /// left on disk tells no such.
    async fn is_at_work(&self, readers: &Readers) -> bool {
        let files = match self.kind {
            RuntimeKind::Docker => docker::Docker::usual_state_files(&self.path),
            RuntimeKind::Cri => cri::Cri::usual_state_files(&self.path),
        };
        let Some(files) = files else { return false };
        let found = state_files::read(readers, &files, &PodLabels::default()).await;
        found.is_ok_and(|found| found.is_some_and(|found| found.any_runs()))
    }
}

/// As in the configuration: `docker=/run/docker.sock`.
impl fmt::Display for RuntimeSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.kind.name(), self.path.display())
    }
}

/// The sockets at the usual places: those that are there, and those that are not. The runtime of one may be installed or
/// started later. Where there is none at all, Docker's counts as there: that no runtime is found is to be seen.
pub fn default_sockets() -> (Vec<RuntimeSocket>, Vec<RuntimeSocket>) {
    let socket = |kind: RuntimeKind, paths: &[&str]| {
        let mut paths = paths.iter().map(PathBuf::from);
        let usual = paths.clone().next()?;
        Some(RuntimeSocket { kind, path: paths.find(|path| path.exists()).unwrap_or(usual) })
    };
    let places = RuntimeKind::ALL.iter().flat_map(|kind| kind.places().iter().map(|paths| (*kind, *paths)));
    let all = places.filter_map(|(kind, paths)| socket(kind, paths));
    let (mut there, mut absent): (Vec<_>, Vec<_>) = all.partition(|socket| socket.path.exists());
    if there.is_empty() && !absent.is_empty() {
        there.push(absent.remove(0));
    }
    (there, absent)
}

/// Labels of the sockets for metrics, in the same order: without a path, which has no bound.
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
pub(super) fn is_container_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests;
