//! Mounts that are left in other namespaces than the host's: the host has unmounted a file system, and somebody's copy of the
//! mount keeps it. Found by state, from time to time and soon after mounts of the host have changed.
//!
//! ```text
//! look (all namespaces) ─► memory (what the host had before) ─► copies of what the host no longer has
//!          └ bundle (what a container has mounted of the host)
//! ```

use std::sync::Arc;
use std::time::Duration;

use kevtmon_metrics::Metrics;
use kevtmon_observation::{Fact, KernelMounts, MountCopies, SourceKind, SourceStatus};
use kevtmon_sources::beat::{at_look, limited};
use kevtmon_sources::procfs::readers::{Readers, Unread};
use kevtmon_sources::{Sender, spawn_until_closed, tell};
use kevtmon_types::clock::boot_now;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::attached::Attached;

mod bundle;
mod inventory;
mod memory;
mod mount_points;
mod own_table;
mod reached;
#[cfg(test)]
mod tests;

use inventory::Found;
pub(super) use inventory::Inventory;
use memory::Memory;
pub use memory::Remembered;
use own_table::OwnTable;

/// What is reported as degraded while no reader answers.
const SOURCE: &str = "mount-inventory";
const PATIENCE: Duration = Duration::from_secs(60);
const BUDGET: Duration = Duration::from_millis(500);
/// How often all namespaces are looked at where nothing is left and no change of mounts is seen.
const INTERVAL: Duration = Duration::from_secs(60);
/// So long after a change, since others follow it.
const SETTLE: Duration = Duration::from_secs(1);
/// So many looks in succession that were not at all are told.
const PARTIAL_LOOKS: u32 = 2;
const PAUSE: Duration = Duration::from_secs(4);
/// The rest after a look that failed: what made it fail may cost as much again.
const AFTER_FAILURE: Duration = Duration::from_secs(120);
/// After a look there is a rest of so many times the processor time that it took, but no longer than this: where mounts of
/// the host change all the time, a node with very many namespaces pays for that with a twentieth of a core, unless the configuration has it look more often.
const RESTS: u32 = 500;
const REST_MAX: Duration = Duration::from_secs(10);

/// Follows such mounts until the receiver of observations is gone. What is sent to it asks for a look soon. `remembered`:
/// what an earlier run of the daemon in this boot has found. `attached`: is told what the host has mounted.
pub fn start(
    readers: Readers,
    tx: Sender,
    metrics: Arc<Metrics>,
    (remembered, attached): (Vec<Remembered>, Attached),
) -> mpsc::Sender<()> {
    let (asked_tx, asked) = mpsc::channel(1);
    let kernel = kernel();
    let is_restored = !remembered.is_empty();
    let memory = Memory::of(remembered);
    let (patience, budget, is_degraded, partial, calm) = (PATIENCE, BUDGET, false, 0, PAUSE);
    let follower = Follower {
        readers,
        tx,
        metrics,
        kernel,
        memory,
        attached,
        patience,
        budget,
        is_degraded,
        is_restored,
        partial,
        calm,
    };
    spawn_until_closed(follower.tx.clone(), follower.run(asked));
    asked_tx
}

/// Asks for a look. One that is asked for already is enough.
pub fn look_soon(follower: Option<&mpsc::Sender<()>>) {
    let _ = follower.map(|follower| follower.try_send(()));
}

struct Follower {
    readers: Readers,
    tx: Sender,
    metrics: Arc<Metrics>,
    kernel: KernelMounts,
    memory: Memory,
    attached: Attached,
    patience: Duration,
    budget: Duration,
    /// Whether it was reported that no reader answers, or that not all is looked at.
    is_degraded: bool,
    /// Whether an earlier run had found some, and no look of this one was complete: what it did not find may be there.
    is_restored: bool,
    /// How many looks in succession were not at all.
    partial: u32,
    /// The rest after the last look where nobody asks for the next one.
    calm: Duration,
}

impl Follower {
    async fn run(mut self, mut asked: mpsc::Receiver<()>) {
        let mut table = OwnTable::open();
        // The first look is told whatever it finds: what the run before knew of may be gone.
        let mut is_asked = true;
        let mut had_any = false;
        loop {
            let rest = self.look(is_asked || had_any).await;
            (is_asked, had_any) = (self.is_restored, self.memory.has_any());
            let now = Instant::now();
            let (rest, calm) = (now + rest, now + rest.max(self.calm));
            tokio::select! {
                () = sleep_until(self.next(calm)) => continue,
                () = table.changed() => {}
                Some(()) = asked.recv() => is_asked = true,
            }
            sleep_until(rest.max(Instant::now() + SETTLE)).await;
            table.forget();
            is_asked |= asked.try_recv().is_ok();
        }
    }

    /// When to look again though nobody has asked for it: as long as anything is left, soon, since it may go at any time.
    fn next(&self, calm: Instant) -> Instant {
        if self.is_restored || self.memory.has_any() { calm } else { calm.max(at_look(INTERVAL)) }
    }

    /// Looks once, and tells what it found if that is anything, or if it is to be `told` anyway; how long to rest
    /// after it.
    async fn look(&mut self, told: bool) -> Duration {
        let wanted = self.memory.wanted();
        let inventory = Inventory { budget: self.budget, in_background: true, wanted };
        let mut found = match self.readers.ask(inventory, self.patience).await {
            Ok(found) => found,
            Err(error) => {
                let reason = format!(
                    "cannot scan the mounts of other namespaces; no mount-leak opens or closes: {}",
                    kevtmon_types::error_chain::chain(&error)
                );
                tracing::warn!("{reason}");
                self.is_degraded = true;
                self.report(SourceStatus::down(SourceKind::Processes, SOURCE, reason)).await;
                return AFTER_FAILURE;
            }
        };
        self.tell_whether_whole(&found).await;
        self.attached.update(std::mem::take(&mut found.attached));
        self.metrics.mount_inventory();
        let rest = found.took * RESTS;
        self.calm = rest.clamp(limited(PAUSE), limited(INTERVAL));
        let rest = rest.clamp(limited(PAUSE), limited(REST_MAX));
        self.is_restored &= !found.is_complete();
        let (kernel, is_partial) = (self.kernel.clone(), self.is_restored);
        let copies = MountCopies { kernel, is_partial, ..self.memory.apply(boot_now(), found) };
        if told || self.memory.has_any() {
            tell(&self.tx, Fact::MountCopies(Box::new(copies))).await;
        }
        rest
    }

    /// Once may be by chance, and a user who has more mounts than his share conceals his own alone.
    async fn tell_whether_whole(&mut self, found: &Found) {
        self.partial = if found.is_complete() { 0 } else { self.partial.saturating_add(1) };
        let is_degraded = self.partial >= PARTIAL_LOOKS;
        if is_degraded == std::mem::replace(&mut self.is_degraded, is_degraded) {
            return;
        }
        let status = match is_degraded {
            true => {
                let reason = "there are more processes, or more mounts in other namespaces, than there is time or room for, so that \
                              a mount-leak may be found or closed late, or not at all";
                tracing::warn!("{reason}");
                SourceStatus::down(SourceKind::Processes, SOURCE, reason.to_owned())
            }
            false => SourceStatus::up(SourceKind::Processes, SOURCE),
        };
        self.report(status).await;
    }

    async fn report(&self, status: SourceStatus) {
        tell(&self.tx, Fact::Source(status)).await;
    }
}

/// The release of the kernel, and what it was told of such mounts.
fn kernel() -> KernelMounts {
    let release = nix::sys::utsname::uname().ok();
    let release = release.map(|name| name.release().to_string_lossy().into_owned()).unwrap_or_default();
    let setting = std::fs::read_to_string("/proc/sys/fs/may_detach_mounts").ok();
    KernelMounts { release, may_detach: setting.map(|value| value.trim() == "1") }
}

/// Looks once, on demand. All copies are told: nobody has seen here what the host had before.
pub async fn look_once(readers: &Readers, patience: Duration) -> Result<OnDemand, Unread> {
    let inventory = Inventory { budget: patience, in_background: false, wanted: Vec::new() };
    let found = readers.ask(inventory, patience).await?;
    let is_complete = found.host.is_some() && found.is_whole();
    let named = |pid: &u32| UnreadProcess { pid: *pid, comm: found.names.get(pid).cloned() };
    let unread = found.unread.iter().map(named).collect();
    let (omitted, kernel) = (found.omitted, kernel());
    let copies = MountCopies { copies: found.copies, omitted, is_partial: false, kernel };
    Ok(OnDemand { copies, is_complete, unread })
}

#[derive(Debug)]
pub struct OnDemand {
    /// What other namespaces have mounted, and the host has not.
    pub copies: MountCopies,
    /// Whether there was time for all namespaces, and room for all mounts.
    pub is_complete: bool,
    /// Processes that could not be read.
    pub unread: Vec<UnreadProcess>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadProcess {
    pub pid: u32,
    /// Command name, if the reader could have it.
    pub comm: Option<String>,
}
