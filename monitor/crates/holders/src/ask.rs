//! Who holds a path, on demand: a request goes in; the report of a scan that was continued to its end, or until the time
//! was over, comes out. Without the rests and the places of the [worker](super::worker): whoever asks waits for it.

use std::io;
use std::time::{Duration, Instant};

use kevtmon_observation::{HolderReport, NsInum};
use kevtmon_probe::iterators::Iterators;
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::readers::{Job, Readers, Unread};
use kevtmon_types::error_chain::chain;
use serde::{Deserialize, Serialize};

use super::jobs::{Measured, Scan, Scanned, Terms};
use super::progress::Progress;
use super::{ScanRequest, own_tgid};

/// Processor time for a part: when a reader hangs, no more than this is done again.
const PART: Duration = Duration::from_millis(500);

/// Scans, for at most about this time. A report to whose end there was no time says so, and has what was found until then.
pub async fn ask(
    (readers, iterators): (&Readers, Option<&Iterators>),
    request: ScanRequest,
    limit: Duration,
) -> HolderReport {
    let iterators = iterators.map(Iterators::handle);
    let end = Instant::now() + limit;
    let terms = Terms { budget: PART, in_background: false };
    let (mut progress, mut found) = (Progress::default(), None);
    loop {
        let job = Scan { request: request.clone(), progress, terms, iterators };
        let left = end.saturating_duration_since(Instant::now());
        match readers.ask(job, left).await {
            Ok(Measured { found: Scanned { report, progress: left }, .. }) => {
                let Some(left) = left.filter(|_| Instant::now() < end) else { return report };
                (progress, found) = (left, Some(report));
            }
            Err(error) => {
                let mut report =
                    found.unwrap_or_else(|| HolderReport::skipped(request.id, request.path.clone()));
                report.blind_spot(None, &chain(&error));
                return report;
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// Process id, as /proc shows it, which may be of another process namespace.
    pub tgid: u32,
    pub mntns: NsInum,
}

impl Caller {
    pub fn this_process() -> io::Result<Self> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let proc = Proc::default();
        let tgid = own_tgid(&proc).ok_or_else(invalid)?;
        Ok(Self { tgid, mntns: proc.ns(tgid, "mnt").ok_or_else(invalid)? })
    }
}

/// Whose view of the mounts it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Whose {
    /// That of process 1.
    Init,
    /// That which the kernel started with: process 1 may not be read.
    Kernel,
    Caller,
}

/// The mount namespace of process 1, else that of the kernel threads; `None` where neither may be read.
pub async fn initial_namespace(
    readers: &Readers,
    patience: Duration,
) -> Result<Option<(NsInum, Whose)>, Unread> {
    readers.ask(InitialNamespace, patience).await
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct InitialNamespace;

impl Job for InitialNamespace {
    const NAME: &'static str = "initial-namespace";
    type Reply = Option<(NsInum, Whose)>;

    fn run(&self, proc: &Proc) -> Self::Reply {
        let of_init = proc.init_mntns().map(|mntns| (mntns, Whose::Init));
        of_init.or_else(|| proc.first_mntns().map(|mntns| (mntns, Whose::Kernel)))
    }
}
