//! Who pins a mount: a path in a mount namespace goes in; the processes, child mounts and copies that pin
//! what is mounted there come out, with a verdict.
//!
//! ```text
//! index (process ─► namespace) ─► target (path ─► mount) ─► propagation (copies) ─► pins (each process) ─► verdict
//! ```
//!
//! Reads /proc: links, fdinfo, maps and mountinfo, which no hung file server can delay. The directories above the
//! target are opened for a moment, to follow symbolic links; the target is never opened, and nothing of another process
//! stays open after it was read. Containers and pods are joined by the core, by cgroup.
//!
//! [`scan`] tells in which order processes are looked into, and how a scan goes on whose time ran out; [`worker`] whose
//! request comes first.

use std::path::PathBuf;
use std::time::{Duration, Instant};

pub use ask::{Caller, Whose, ask, initial_namespace};
pub use attached::Attached;
pub use block_device::{add_uses, look_for_device_users_and_send};
pub use detached::DetachedRequest;
use kevtmon_observation::{Holder, HolderReport, NsInum, PathOrigin};
use kevtmon_sources::procfs::Proc;
use nix::time::{ClockId, clock_gettime};
pub use presence::PresenceRequest;
use serde::{Deserialize, Serialize};
pub use still_held::StillHeldRequest;

mod ask;
mod attached;
mod block_device;
mod detached;
mod file_server;
pub mod fuse_mounts;
mod jobs;
mod kernel;
pub mod leaks;
mod listed;
mod locate;
mod look;
mod mntns_index;
pub mod obstacle;
mod orphans;
mod overlay;
mod pins;
mod presence;
mod progress;
mod propagation;
pub mod rbd;
mod resolve;
mod same_directory;
mod scan;
mod scan_queue;
mod scope;
mod searched;
mod still_held;
mod table;
mod target;
#[cfg(test)]
mod tests;
pub mod unmounters;
mod veth_peers;
mod volume_data;
pub mod worker;

pub use jobs::jobs;

/// Holders, and child mounts, that one report lists.
pub const MAX_LISTED: usize = 256;
/// The same of a report on demand, which nobody keeps.
const MAX_LISTED_ON_DEMAND: usize = 4096;

/// Why a process was not read.
const READS_HANG: &str = "reads of it hang";
/// Why not all mounts of a namespace are known.
const TOO_LONG: &str = "its mount namespace has more mounts, or longer names, than a scan reads";

/// Processor time for the descriptors of one process, until others have their turn, where only those of a detached mount are
/// looked for.
const FILES_OF_ONE: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanRequest {
    /// Returned in the report.
    pub id: u64,
    /// Mount namespace in which the path was given.
    pub mntns: NsInum,
    /// The process that gave it; it may be gone already.
    pub tgid: u32,
    /// As it was given; may be relative to the process' directory.
    pub path: String,
    /// Where it starts from, captured when it was given.
    pub origin: Option<Box<PathOrigin>>,
    /// Whether a link at its end is followed.
    pub follow: bool,
    /// Whether only what is mounted there is asked, and not who holds it.
    pub mount_only: bool,
    /// Whether somebody wants to know it though no unmount was refused: then all holders are looked for, of a path that is
    /// no mount point those of what lies below it, and nothing is known to be busy.
    #[serde(default)]
    pub on_demand: bool,
    /// Whether it is enough to know those who use it from a mount namespace that sees it, if there are any.
    #[serde(default)]
    pub near_suffices: bool,
}

impl ScanRequest {
    /// Holders that the report lists.
    fn most_listed(&self) -> usize {
        if self.on_demand { MAX_LISTED_ON_DEMAND } else { MAX_LISTED }
    }
}

/// How much longer than its budget work may take where others use the processor, or the kernel waits.
const STARVED_FACTOR: u32 = 3;

/// When work has to end: it may use so much of the processor, until then at the latest. On a busy machine little can be done
/// in a time by the clock.
#[derive(Debug, Clone, Copy)]
struct Deadline {
    /// Processor time of this thread.
    used: Duration,
    latest: Instant,
}

impl Deadline {
    fn after(budget: Duration) -> Self {
        let latest = Instant::now() + budget * STARVED_FACTOR;
        Self { used: thread_time().saturating_add(budget), latest }
    }

    /// However much of the processor it uses.
    fn at(latest: Instant) -> Self {
        Self { used: Duration::MAX, latest }
    }

    /// So much of the time from now on, as far as there is so much.
    fn within(&self, budget: Duration) -> Self {
        let part = Self::after(budget);
        Self { used: self.used.min(part.used), latest: self.latest.min(part.latest) }
    }

    /// From now on there is so much at least.
    fn allow(&mut self, budget: Duration) {
        let new = Self::after(budget);
        *self = Self { used: self.used.max(new.used), latest: self.latest.max(new.latest) };
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.latest || thread_time() >= self.used
    }
}

/// Processor time of this thread. The kernel always has this clock, so a failure reads as zero.
fn thread_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// The daemon's own id as this /proc shows it, which may be of another pid namespace.
fn own_tgid(proc: &Proc) -> Option<u32> {
    std::fs::read_link(proc.root().join("self")).ok()?.to_str()?.parse().ok()
}

/// The directory of this process in this /proc, if that shows the ids of our own pid namespace.
fn own_directory(proc: &Proc) -> Option<PathBuf> {
    (own_tgid(proc) == Some(std::process::id())).then(|| proc.root().join("self"))
}

/// This program of tests is its own reader of /proc.
#[cfg(test)]
mod reader {
    #[test]
    fn proc_reader() {
        let jobs: Vec<_> =
            kevtmon_sources::jobs().chain(kevtmon_probe::jobs()).chain(crate::jobs()).collect();
        if let Some(served) = kevtmon_sources::procfs::readers::serve_if_asked(std::env::args_os(), &jobs) {
            served.unwrap();
        }
    }
}
