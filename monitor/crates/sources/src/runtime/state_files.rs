//! What runtimes keep of their containers on disk: read while the socket of one does not answer, or is not there.
//!
//! In: files that only root writes, below the node's root directory. Out: containers, each with its process if that is
//! still the one of the file. Read by a reader: a disk may hang. Docker has files of all its containers; behind the CRI only
//! those that run have one.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kevtmon_observation::{BootNs, ContainerFacts, ContainerState};
use kevtmon_observation::{cgroup, own_mounts};
use kevtmon_types::clock::NS_PER_TICK;
use kevtmon_types::regular_file;
use serde::{Deserialize, Serialize};

use super::change::boot_time;
use super::is_container_id;
use super::pod_proof::Proofs;
use crate::kubelet::PodLabels;
use crate::procfs::Proc;
use crate::procfs::readers::{Job, Readers, Unread, reading_none};

mod docker;
mod oci;

/// Where the storage of CRI-O is, and of Podman.
const CRIO_ROOT: &str = "/var/lib/containers/storage";
/// Longest wait for a reader: a runtime that answers again is not to wait for a disk.
const PATIENCE: Duration = Duration::from_secs(2);
const ENTRIES_MAX: usize = 4096;
/// A file with more is not one of a container: its labels and environment have kilobytes.
const FILE_MAX: u64 = 4 << 20;
/// A runtime writes down the start of a process at once, and by its own clock.
const START_LAG_NS: BootNs = 10_000_000_000;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateFiles {
    /// dockerd, by its data root; none where only its configuration tells it.
    Docker(Option<PathBuf>),
    /// containerd, by its state directory.
    Containerd(PathBuf),
    /// CRI-O, by the run root of its storage.
    Crio(PathBuf),
}

impl StateFiles {
    /// Of a runtime behind the CRI, by its socket: that of containerd is in its state directory.
    pub(super) fn of_cri(socket: &Path) -> Option<Self> {
        match socket.file_name()?.to_str()? {
            "containerd.sock" => Some(Self::Containerd(socket.parent()?.to_owned())),
            "crio.sock" => Some(Self::Crio("/run/containers/storage".into())),
            _ => None,
        }
    }

    /// Directories below which the runtime has what is of its containers.
    pub(super) fn directories(&self) -> Vec<String> {
        let all: Vec<&Path> = match self {
            Self::Docker(data) => data.iter().map(PathBuf::as_path).collect(),
            Self::Containerd(state) => vec![state],
            Self::Crio(run_root) => vec![run_root, Path::new(CRIO_ROOT)],
        };
        let plain = all.into_iter().filter_map(Path::to_str).filter(|path| own_mounts::is_plain(path));
        plain.map(str::to_owned).collect()
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Found {
    /// As in `ContainerFacts::runtime`.
    pub(super) runtime: String,
    pub(super) directory: PathBuf,
    pub(super) containers: Vec<Written>,
    /// Whether that is all of them, in whatever state.
    pub(super) complete: bool,
    /// Those of which the files could not be read.
    pub(super) unread: Vec<String>,
    /// Whether the root of pid 1 is out of reach, and that of kthreadd shows them.
    pub(super) by_kthreadd: bool,
}

impl Found {
    pub(super) fn any_runs(&self) -> bool {
        self.containers.iter().any(|written| written.facts.tgid.is_some())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    pub(super) facts: ContainerFacts,
    /// When its process was started, by the wall clock, nanoseconds.
    since: Option<i64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct ReadStateFiles(StateFiles, PodLabels);

impl Job for ReadStateFiles {
    const NAME: &'static str = "state-files";
    type Reply = Option<Found>;
    const WAITS_FOR_DISK: bool = true;

    fn run(&self, proc: &Proc) -> Option<Found> {
        let root = proc.host_root();
        let by_kthreadd = root == proc.first_root();
        // The processes of containers are read for each of them.
        reading_none();
        let mut found = match &self.0 {
            StateFiles::Docker(data) => docker::read(&root, data.as_deref(), &self.1),
            StateFiles::Containerd(state) => oci::read_containerd(&root, state),
            StateFiles::Crio(run_root) => oci::read_crio(&root, run_root),
        };
        if let Some(found) = &mut found {
            found.by_kthreadd = by_kthreadd;
        }
        let proofs = Proofs::new(proc.clone());
        for Written { facts, since } in found.iter_mut().flat_map(|found| &mut found.containers) {
            with_process(proc, facts, *since);
            let proof = proofs.of(facts);
            if let Some(pod) = &mut facts.pod {
                pod.proof = proof;
            }
        }
        found
    }
}

/// Adds what /proc has of the process, or takes it away if it is not known to be the one that was written down: the file may
/// be of before the process ended, or of an earlier boot.
fn with_process(proc: &Proc, facts: &mut ContainerFacts, since: Option<i64>) {
    let Some(tgid) = facts.tgid else { return };
    if proc.is_aside(tgid) {
        // Nobody can look whose it is by now.
        facts.tgid = None;
        return;
    }
    let start = proc.stat(tgid).filter(|stat| !matches!(stat.state, 'Z' | 'X')).map(|stat| stat.start_ns);
    let is_in_its_group = || {
        let path = proc.cgroup(tgid).unwrap_or_default();
        cgroup::identify(&path).container_id.as_ref() == Some(&facts.id)
    };
    let is_written = |start: BootNs| {
        // 0 is before this boot.
        let written = since.map(boot_time).filter(|at| *at > 0);
        written.is_some_and(|at| {
            (at.saturating_sub(START_LAG_NS)..=at.saturating_add(NS_PER_TICK)).contains(&start)
        })
    };
    match start.filter(|start| is_in_its_group() || is_written(*start)) {
        Some(start) => {
            facts.started_ns = Some(start);
            facts.netns = proc.ns(tgid, "net");
            facts.mntns = proc.ns(tgid, "mnt");
        }
        None => {
            facts.tgid = None;
            // Nobody was there to write that it has ended.
            facts.state = ContainerState::Exited;
        }
    }
}

enum Entry {
    Container(Box<Written>),
    /// One of another program, which keeps its own in the same place.
    Other,
    Unread,
}

impl From<Option<Written>> for Entry {
    fn from(read: Option<Written>) -> Self {
        read.map_or(Self::Unread, |written| Self::Container(Box::new(written)))
    }
}

/// The containers below a directory that has one directory for each; complete if all of them were looked at.
fn in_directories(directory: &Path, max: usize, read: impl Fn(&str, &Path) -> Entry) -> Option<Found> {
    let mut found = Found { complete: true, ..Found::default() };
    for (index, entry) in fs::read_dir(directory).ok()?.enumerate() {
        if index >= max {
            found.complete = false;
            break;
        }
        let Ok(entry) = entry else {
            // What comes after it is not told either.
            found.complete = false;
            break;
        };
        let name = entry.file_name();
        let Some(id) = name.to_str().filter(|name| is_container_id(name)) else { continue };
        match read(id, &entry.path()) {
            Entry::Container(written) => found.containers.push(*written),
            // It may be being made, or removed.
            Entry::Unread if entry.path().exists() => found.unread.push(id.to_owned()),
            Entry::Other | Entry::Unread => {}
        }
    }
    Some(found)
}

/// A file that root wrote, and when.
fn file_of_root(path: &Path) -> Option<(Vec<u8>, i64)> {
    let file = regular_file::open(path).ok()?;
    let meta = file.metadata().ok().filter(|meta| meta.uid() == 0)?;
    let mut text = Vec::new();
    file.take(FILE_MAX).read_to_end(&mut text).ok()?;
    Some((text, meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec())))
}

/// Reads them; `None` where there are none.
/// Errors: where nobody can look now.
pub(super) async fn read(
    readers: &Readers,
    files: &StateFiles,
    labels: &PodLabels,
) -> Result<Option<Found>, Unread> {
    let found = readers.ask(ReadStateFiles(files.clone(), labels.clone()), PATIENCE).await;
    found.inspect_err(|error| tracing::debug!(?files, %error, "cannot read the files of a runtime"))
}

#[cfg(test)]
mod tests;
