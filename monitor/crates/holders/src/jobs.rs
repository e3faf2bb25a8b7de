//! The scans as jobs of [readers](kevtmon_sources::procfs::readers), since whoever is scanned may hang the scan.

use std::time::Duration;

use kevtmon_observation::{HolderReport, MountPresence};
use kevtmon_probe::iterators::IteratorHandle;
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::readers::{Entry, Job, entry};
use serde::{Deserialize, Serialize};

use super::ask::InitialNamespace;
use super::block_device::{Look as BlockDevice, LookForMount};
use super::detached::{self, Looked, users};
use super::fuse_mounts::Look as FuseMounts;
use super::leaks::Inventory;
use super::locate::{Located, first};
use super::obstacle::FindObstacle;
use super::presence::presence;
use super::progress::Progress;
use super::rbd::Look as RbdUses;
use super::scan::{Part, scan};
use super::still_held::still_held;
use super::unmounters::Look as Unmounters;
use super::veth_peers::FindPeers;
use super::volume_data;
use super::{Deadline, DetachedRequest, PresenceRequest, ScanRequest, StillHeldRequest, thread_time};

/// What readers do for this module.
pub fn jobs() -> impl Iterator<Item = Entry> {
    let scans = [entry::<Scan>(), entry::<Locate>(), entry::<Presence>(), entry::<StillHeld>()];
    let scans = scans.into_iter().chain([entry::<Detached>()]);
    let looks =
        [entry::<InitialNamespace>(), entry::<Unmounters>(), entry::<Inventory>(), entry::<RbdUses>()];
    let others =
        [entry::<FindPeers>(), entry::<BlockDevice>(), entry::<FuseMounts>(), entry::<FindObstacle>()];
    scans.chain(looks).chain(others).chain([entry::<LookForMount>()])
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Measured<T> {
    pub(super) found: T,
    pub(super) took: Duration,
}

fn measured<T>(work: impl FnOnce() -> T) -> Measured<T> {
    let before = thread_time();
    let found = work();
    Measured { found, took: thread_time().saturating_sub(before) }
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Terms {
    pub(super) budget: Duration,
    /// Whether workloads of the node take precedence.
    pub(super) in_background: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Scan {
    pub(super) request: ScanRequest,
    pub(super) progress: Progress,
    pub(super) terms: Terms,
    /// What lists who can hold it, where the kernel does.
    pub(super) iterators: Option<IteratorHandle>,
}

/// What was found, and how to go on if it is not all.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Scanned {
    pub(super) report: HolderReport,
    pub(super) progress: Option<Progress>,
}

impl Job for Scan {
    const NAME: &'static str = "holders";
    type Reply = Measured<Scanned>;

    fn in_background(&self) -> bool {
        self.terms.in_background
    }

    fn run(&self, proc: &Proc) -> Self::Reply {
        measured(|| {
            let (progress, budget) = (self.progress.clone(), self.terms.budget);
            let Part { mut report, left } = scan(proc, &self.request, progress, budget, self.iterators);
            report.volume_data = volume_data::beside(proc, &self.request, &report).map(Box::new);
            Scanned { report, progress: left }
        })
    }

    fn go_on(&mut self, note: &[u8]) {
        // What cannot be read begins again.
        let again = |_| Progress::default();
        self.progress = serde_json::from_slice(note).unwrap_or_else(again);
    }
}

macro_rules! answer_in_one_look {
    ($job:ident, $name:literal, $answer:path, $request:ty => $reply:ty) => {
        #[derive(Debug, Serialize, Deserialize)]
        pub(super) struct $job {
            pub(super) request: $request,
            pub(super) terms: Terms,
        }

        impl Job for $job {
            const NAME: &'static str = $name;
            type Reply = Measured<$reply>;

            fn in_background(&self) -> bool {
                self.terms.in_background
            }

            fn run(&self, proc: &Proc) -> Self::Reply {
                measured(|| $answer(proc, &self.request, Deadline::after(self.terms.budget)))
            }
        }
    };
}

answer_in_one_look!(Locate, "locate-mount", first, ScanRequest => Located);
answer_in_one_look!(Presence, "mount-presence", presence, PresenceRequest => MountPresence);
answer_in_one_look!(StillHeld, "still-held", still_held, StillHeldRequest => HolderReport);

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Detached {
    pub(super) request: DetachedRequest,
    pub(super) progress: detached::Progress,
    pub(super) terms: Terms,
}

impl Job for Detached {
    const NAME: &'static str = "detached-mounts";
    type Reply = Measured<Looked>;

    fn in_background(&self) -> bool {
        self.terms.in_background
    }

    fn run(&self, proc: &Proc) -> Self::Reply {
        measured(|| users(proc, &self.request, self.progress.clone(), self.terms.budget))
    }

    fn go_on(&mut self, note: &[u8]) {
        // What cannot be read begins again.
        let again = |_| detached::Progress::default();
        self.progress = serde_json::from_slice(note).unwrap_or_else(again);
    }
}
