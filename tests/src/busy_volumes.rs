//! Many volumes of pods that are busy at once, each tried to be unmounted again and again: as on a node that is drained.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

use crate::event::Event;
use crate::eventually;
use crate::mount::{Mount, Scratch, settle};
use crate::pod_sandbox::uuid;
use crate::process::{Running, hold_by_cwd};

/// Of how many volumes.
pub const VOLUMES: usize = 50;
/// In which each is tried once: 200 attempts a second.
const ROUND: Duration = Duration::from_millis(250);

/// A volume and who holds it.
#[derive(Debug)]
pub struct BusyVolume {
    volume: Mount,
    holder: Running,
}

/// All of them.
#[derive(Debug)]
pub struct BusyVolumes {
    all: Vec<BusyVolume>,
    scratch: Scratch,
}

impl BusyVolume {
    /// Tries to unmount it, by this process.
    ///
    /// # Errors
    /// When it is refused.
    pub fn unmount(&self) -> Result<(), Errno> {
        umount2(self.volume.point(), MntFlags::UMOUNT_NOFOLLOW)
    }

    /// Whether an event is about it.
    #[must_use]
    pub fn is_of(&self, event: &Event) -> bool {
        event.text("/mount/path") == self.volume.point().to_string_lossy()
    }

    /// Whether an event about it names its holder and nobody else.
    #[must_use]
    pub fn is_named(&self, event: &Event) -> bool {
        let holders = event.list("/holders");
        let is_it = |held: &serde_json::Value| held["pid"] == self.holder.pid() && held["access"] == "cwd";
        self.is_of(event) && !holders.is_empty() && holders.iter().all(is_it)
    }

    /// Ends its holder; the mount stays.
    #[must_use]
    pub fn let_go(self) -> Mount {
        self.volume
    }
}

impl BusyVolumes {
    /// Mounts them, each with a holder of its own.
    #[must_use]
    pub fn new() -> Self {
        let scratch = Scratch::new();
        let busy = || {
            let below = format!("kubelet/pods/{}/volumes/kubernetes.io~rbd/data", uuid());
            let volume = Mount::at(&scratch.path().join(below));
            let holder = hold_by_cwd(volume.point());
            BusyVolume { volume, holder }
        };
        let all: Vec<BusyVolume> = (0..VOLUMES).map(|_| busy()).collect();
        for busy in &all {
            settle(busy.volume.point().parent().expect("a directory above"));
        }
        Self { all, scratch }
    }

    /// Root directory of their kubelet.
    #[must_use]
    pub fn kubelet_root(&self) -> PathBuf {
        self.scratch.path().join("kubelet")
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &BusyVolume> {
        self.all.iter()
    }

    /// Each of them, to be let go.
    pub fn take(&mut self) -> impl Iterator<Item = BusyVolume> {
        self.all.drain(..)
    }

    /// Has each refused by turns, so many times; returns how long that took.
    ///
    /// # Panics
    /// When one is not busy.
    pub fn refuse(&self, rounds: u32) -> Duration {
        let began = Instant::now();
        for round in 0..rounds {
            for busy in &self.all {
                assert_eq!(busy.unmount(), Err(Errno::EBUSY), "{}", busy.volume.point().display());
            }
            eventually!(began.elapsed() >= ROUND * (round + 1), "the round is over");
        }
        began.elapsed()
    }
}

impl Default for BusyVolumes {
    fn default() -> Self {
        Self::new()
    }
}
