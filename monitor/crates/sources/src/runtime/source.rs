//! One socket as a source: connects, and reconnects after every failure.
//!
//! Out: snapshots, changes and whether the source is up. The source is down while the runtime is missing, restarts,
//! hangs or sends invalid data; the model keeps its containers meanwhile, with what the runtime's files on disk tell.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kevtmon_observation::{ContainerFacts, Fact, Source, SourceKind, SourceStatus};
use kevtmon_types::clock::boot_now;
use tokio::sync::broadcast;
use tokio::time::{Instant, sleep_until};

use super::super::procfs::readers::Readers;
use super::super::{Sender, observed_now_by, until_closed};
use super::client::{RuntimeClient, RuntimeError};
use super::containers::Containers;
use super::session::{self, Served};
use super::state_files::{self, Found, StateFiles};
use crate::beat::at_beat;
use crate::kubelet::PodLabels;

/// How the node's files are reached where pid 1 does not show them.
const BY_KTHREADD: &str = " by way of kthreadd, since the root of pid 1 is out of reach";

/// Containers that are named at once to be read again.
const WANTED_MAX: usize = 64;

#[derive(Debug, Clone)]
pub struct Options {
    /// Between two full lists, which repair what the event stream did not report.
    pub reconcile: Duration,
    /// The same where there is no event stream.
    pub poll: Duration,
    pub timeout: Duration,
    /// Before the first new attempt after a failure; doubles with each failure.
    pub backoff_min: Duration,
    pub backoff_max: Duration,
    /// Pause where another API is served, or where there has never been a socket.
    pub absent: Duration,
    /// Whether nobody has named the sockets: there need not be a runtime.
    pub is_guess: bool,
    pub pod_labels: Arc<PodLabels>,
    /// By which containers are named that are to be read again.
    pub wanted: broadcast::Sender<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            reconcile: Duration::from_secs(60),
            poll: Duration::from_secs(5),
            // A busy machine is not one on which the runtime hangs.
            timeout: Duration::from_secs(5),
            backoff_min: Duration::from_millis(100),
            // The containers are to be known again within 5 s of a restart of the runtime.
            backoff_max: Duration::from_secs(2),
            absent: Duration::from_secs(10),
            is_guess: false,
            pod_labels: Arc::default(),
            wanted: broadcast::Sender::new(WANTED_MAX),
        }
    }
}

/// Reports the containers of a runtime until the receiver is gone.
///
/// The first `Fact::Source` comes within the time of a few requests whatever the runtime does: after the first
/// snapshot if it is up, else with the reason. A snapshot always precedes the status `up`.
pub async fn run<C: RuntimeClient>(
    source: String,
    path: &Path,
    options: Options,
    readers: Readers,
    tx: Sender,
) {
    until_closed(&tx, Box::pin(reconnect::<C>(source, path, options, readers, &tx))).await;
}

async fn reconnect<C: RuntimeClient>(
    source: String,
    path: &Path,
    options: Options,
    readers: Readers,
    tx: &Sender,
) {
    let mut containers = Containers::new(source.clone());
    let mut pause = options.backoff_min;
    let mut gap: Option<&'static str> = None;
    let mut down: Option<String> = None;
    let mut was_there = false;
    let mut on_disk = OnDisk::of::<C>(path);
    loop {
        let started = Instant::now();
        // A socket file that was bind-mounted into our own root goes stale when the runtime makes a new one.
        let socket = readers.proc().on_host(path);
        let mut served = Served { up: false, files: on_disk.files.take() };
        let error =
            session::run::<C>(&socket, &options, &mut containers, &readers, tx, gap, &mut served).await;
        on_disk.files = served.files;
        if served.up {
            // Only the engine knows where it keeps them: elsewhere are those of another one, or none.
            on_disk.files = on_disk.files.take().filter(|files| *files != StateFiles::Docker(None));
            on_disk.read = None;
            gap = Some(error.gap());
            down = None;
            // One that fails at once again has not recovered.
            if started.elapsed() > options.backoff_max + options.timeout {
                pause = options.backoff_min;
            }
        }
        was_there |= served.up || !matches!(error, RuntimeError::NoSocket { .. });
        let is_absent = matches!(error, RuntimeError::NotServed { .. });
        if error.is_malformed() {
            send(tx, Fact::Malformed { source: source.clone(), count: 1 }).await;
        }
        if !is_absent {
            on_disk.report(&options, &mut containers, &readers, tx).await;
        }
        let reason = on_disk.with_place(error.reason());
        tracing::debug!(source, %reason, ?pause, "the runtime is down");
        if down.as_ref() != Some(&reason) {
            let status = SourceStatus::down(SourceKind::Runtime, source.clone(), reason.clone());
            let vacant = options.is_guess && !was_there && !on_disk.has_any();
            let status = SourceStatus { absent: is_absent, vacant, ..status };
            send(tx, Fact::Source(status)).await;
            down = Some(reason);
        }
        sleep_until(at_beat(if is_absent { options.absent } else { pause })).await;
        pause = (pause * 2).min(options.backoff_max);
    }
}

/// What the runtime keeps on disk, for as long as it does not answer.
struct OnDisk {
    files: Option<StateFiles>,
    /// When they were read last, and what was found.
    read: Option<(Instant, Option<Reported>)>,
}

struct Reported {
    directory: PathBuf,
    by_kthreadd: bool,
    containers: Vec<ContainerFacts>,
    malformed: u64,
}

impl OnDisk {
    fn of<C: RuntimeClient>(socket: &Path) -> Self {
        Self { files: C::usual_state_files(socket), read: None }
    }

    /// Reads them if it is time, and reports what has changed.
    async fn report(
        &mut self,
        options: &Options,
        containers: &mut Containers,
        readers: &Readers,
        tx: &Sender,
    ) {
        let is_due = self.read.as_ref().is_none_or(|(read, _)| read.elapsed() >= options.poll);
        let Some(files) = self.files.as_ref().filter(|_| is_due) else { return };
        let at = boot_now();
        let found = state_files::read(readers, files, &options.pod_labels).await;
        let before = self.read.take().and_then(|(_, reported)| reported);
        let found = match found {
            Ok(Some(found)) => found,
            // What was read is told no more once it is gone.
            missing => {
                self.read = Some((Instant::now(), before.filter(|_| missing.is_err())));
                return;
            }
        };
        let Found { runtime, directory, containers: written, complete, unread, by_kthreadd } = found;
        let malformed = u64::try_from(unread.len()).unwrap_or(u64::MAX);
        if containers.runtime.is_empty() {
            containers.runtime = runtime;
        }
        let written = written.into_iter().map(|written| written.facts);
        containers.read_from_disk(written, |id| !complete || unread.iter().any(|unread| unread == id));
        let all = containers.take_all();
        let source = containers.source.clone();
        let more = malformed.saturating_sub(before.as_ref().map_or(0, |before| before.malformed));
        if more > 0 {
            send(tx, Fact::Malformed { source: source.clone(), count: more }).await;
        }
        if before.is_none_or(|before| before.containers != all) {
            let runtime = containers.runtime.clone();
            let snapshot = Fact::RuntimeSnapshot { runtime, source, read: Some(at), containers: all.clone() };
            send(tx, snapshot).await;
        }
        let reported = Reported { directory, by_kthreadd, containers: all, malformed };
        self.read = Some((Instant::now(), Some(reported)));
    }

    fn has_any(&self) -> bool {
        let reported = self.read.as_ref().and_then(|(_, reported)| reported.as_ref());
        reported.is_some_and(|reported| !reported.containers.is_empty())
    }

    /// Why the runtime is down, and what is known nevertheless.
    fn with_place(&self, reason: String) -> String {
        match &self.read {
            Some((_, Some(reported))) => {
                let route = if reported.by_kthreadd { BY_KTHREADD } else { "" };
                format!("{reason}; its containers are read from {}{route}", reported.directory.display())
            }
            _ => reason,
        }
    }
}

async fn send(tx: &Sender, fact: Fact) {
    crate::send(tx, observed_now_by(Source::Runtime, fact)).await;
}
