//! What the programs count in the kernel: per CPU, exact even when the ring is full.

use aya::maps::{MapData, PerCpuArray};
use kevtmon_ebpf::Counter;

/// Counted in the kernel, exact even when events are lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KernelCounters {
    /// Permanent entries deleted by request.
    pub permanent_admin: u64,
    /// Permanent entries gone with their interface, address or namespace.
    pub permanent_collateral: u64,
    /// Resolved entries deleted by request.
    pub learned_admin: u64,
    /// Resolved entries gone otherwise.
    pub learned_collateral: u64,
    /// Entries without resolution deleted by request.
    pub noarp_admin: u64,
    /// Entries without resolution gone otherwise.
    pub noarp_collateral: u64,
    /// umount(2) refused with EBUSY.
    pub umount_busy: u64,
}

/// Losses that the programs count, with the reason they are told under.
pub(super) const LOSSES: [(Counter, &str); 5] = [
    (Counter::NeighborRingFull, "neighbor-ring-full"),
    (Counter::TaskRingFull, "task-ring-full"),
    (Counter::MountRingFull, "mount-ring-full"),
    (Counter::MountPendingFull, "mount-pending-full"),
    (Counter::MountPathUnreadable, "mount-path-unreadable"),
];

/// Reasons for which records are lost in the kernel.
pub const LOSS_REASONS: [&str; LOSSES.len()] = {
    let mut reasons = [""; LOSSES.len()];
    let mut index = 0;
    while index < LOSSES.len() {
        reasons[index] = LOSSES[index].1;
        index += 1;
    }
    reasons
};

/// A counter, summed over all CPUs.
pub(super) fn read(counts: &PerCpuArray<MapData, u64>, counter: Counter) -> u64 {
    counts.get(&(counter as u32), 0).map_or(0, |values| values.iter().sum())
}

pub(super) fn read_counters(counts: &PerCpuArray<MapData, u64>) -> KernelCounters {
    KernelCounters {
        permanent_admin: read(counts, Counter::PermanentAdmin),
        permanent_collateral: read(counts, Counter::PermanentCollateral),
        learned_admin: read(counts, Counter::LearnedAdmin),
        learned_collateral: read(counts, Counter::LearnedCollateral),
        noarp_admin: read(counts, Counter::NoarpAdmin),
        noarp_collateral: read(counts, Counter::NoarpCollateral),
        umount_busy: read(counts, Counter::UmountBusy),
    }
}
