//! One socket as a source: connects, and reconnects after every failure.
//!
//! Out: snapshots, changes and whether the source is up. The source is down while the runtime is missing, restarts,
//! hangs or sends invalid data; the model keeps its containers meanwhile.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::super::procfs::Proc;
use super::super::procfs::readers::Readers;
use super::super::{Sender, observed_now_by};
use super::client::{RuntimeClient, RuntimeError};
use super::containers::Containers;
use super::session::{self, End};
use crate::observation::{Fact, Source, SourceKind, SourceStatus};

/// Intervals and timeouts for a runtime.
#[derive(Debug, Clone)]
pub struct Timing {
    /// Between two full lists, which repair what the event stream did not report.
    pub reconcile: Duration,
    /// The same where there is no event stream.
    pub poll: Duration,
    /// For the answer to one request.
    pub timeout: Duration,
    /// Before the first new attempt after a failure; doubles with each failure.
    pub backoff_min: Duration,
    /// Longest pause between two attempts.
    pub backoff_max: Duration,
    /// Pause where another API is served, or where there has never been a socket.
    pub absent: Duration,
}

impl Default for Timing {
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
    timing: Timing,
    readers: Readers,
    tx: Sender,
) {
    let mut containers = Containers::new(source.clone());
    let mut pause = timing.backoff_min;
    let mut gap: Option<&'static str> = None;
    let mut down: Option<String> = None;
    while !tx.is_closed() {
        let started = Instant::now();
        let socket = reachable(path, readers.proc());
        let mut was_up = false;
        let end = session::run::<C>(&socket, &timing, &mut containers, &readers, &tx, gap, &mut was_up).await;
        let End::Failed(error) = end else { return };
        if was_up {
            gap = Some(error.gap());
            down = None;
            // One that fails at once again has not recovered.
            if started.elapsed() > timing.backoff_max + timing.timeout {
                pause = timing.backoff_min;
            }
        }
        let is_absent = matches!(error, RuntimeError::NotServed { .. });
        if error.is_malformed() {
            let malformed = Fact::Malformed { source: source.clone(), count: 1 };
            if tx.send(observed_now_by(Source::Runtime, malformed)).await.is_err() {
                return;
            }
        }
        let reason = error.reason();
        tracing::debug!(source, %reason, ?pause, "the runtime is down");
        if down.as_ref() != Some(&reason) {
            let status = SourceStatus::down(SourceKind::Runtime, source.clone(), reason.clone());
            let status = SourceStatus { absent: is_absent, ..status };
            if tx.send(observed_now_by(Source::Runtime, Fact::Source(status))).await.is_err() {
                return;
            }
            down = Some(reason);
        }
        tokio::select! {
            () = tx.closed() => return,
            () = sleep(if is_absent { timing.absent } else { pause }) => {}
        }
        pause = (pause * 2).min(timing.backoff_max);
    }
}

/// The socket as pid 1 sees it: a socket file that was bind-mounted into our own root goes stale when the
/// runtime makes a new one. Pid 1 may be out of reach even for root.
pub(super) fn reachable(socket: &Path, proc: &Proc) -> PathBuf {
    socket
        .strip_prefix("/")
        .map(|path| proc.path(1, "root").join(path))
        .ok()
        .filter(|path| path.exists())
        .unwrap_or_else(|| socket.to_owned())
}
