//! Counters of the kernel programs: their sources declare which metric each is part of.

use std::sync::Mutex;

use kevtmon_event::Throttled;
use prometheus::{IntCounter, IntCounterVec};

use super::MetricsError;
use super::registrar::Registrar;

/// A metric that kernel programs count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelMetric {
    /// Deletions of neighbor entries, by `state` and `origin`.
    NeighborDeletions,
    /// Entries of known gateways that were set or resolved, by `origin`.
    GatewaySets,
    /// Calls refused because a mount is busy, by `syscall`.
    MountBusy,
    /// Calls that returned as if a mount were busy or gone, without a sign that the kernel said so, by `syscall`.
    MountUnproven,
    /// Records over the budget of their source, by `lane`.
    Throttled,
    /// CNI plugins that were executed by others than root of the node, or in another mount namespace than the host's or a
    /// runtime's.
    CniIgnored,
}

/// A counter as it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelCount {
    /// The metric it is part of.
    pub metric: KernelMetric,
    /// Values of the metric's labels, in their order.
    pub labels: &'static [&'static str],
    /// Since the programs were loaded.
    pub value: u64,
}

pub(super) type ReadKernel = Box<dyn Fn() -> Vec<KernelCount> + Send + Sync>;

/// The metrics, and how their counters are read.
pub(super) struct KernelMetrics {
    /// In the order of [`KernelMetric`].
    counters: [IntCounterVec; 6],
    /// Events that the daemon knew, and that were over the budget of an unprivileged account.
    pub(super) folded: IntCounter,
    pub(super) read: Mutex<Option<ReadKernel>>,
}

impl KernelMetrics {
    pub(super) fn register(registrar: &Registrar) -> Result<Self, MetricsError> {
        Ok(Self {
            counters: [
                registrar.counters(
                    "kevtmon_kernel_neighbor_deletions_total",
                    "Neighbor entries deleted by request or as collateral, by their previous state. Counted in the kernel.",
                    &["state", "origin"],
                )?,
                registrar.counters(
                    "kevtmon_kernel_gateway_sets_total",
                    "Neighbor entries of known gateways, except permanent ones, that were set by request or resolved. Counted in the kernel.",
                    &["origin"],
                )?,
                registrar.counters(
                    "kevtmon_kernel_mount_busy_total",
                    "Calls refused because a mount is busy, except 32-bit and x32 system calls and io_uring. Counted in the kernel.",
                    &["syscall"],
                )?,
                registrar.counters(
                    "kevtmon_kernel_mount_unproven_total",
                    "Calls that returned as if a mount were busy or unmounted, perhaps not by a decision of the kernel. Counted in the kernel.",
                    &["syscall"],
                )?,
                registrar.counters(
                    "kevtmon_events_throttled_total",
                    "Kernel events over the budget of their source, and events over that of an unprivileged user or container; not reported one by one.",
                    &["lane"],
                )?,
                registrar.counters(
                    "kevtmon_kernel_cni_ignored_total",
                    "Ignored executions in a directory of CNI plugins: not by root of the node, or not in the host's or a runtime's mount namespace. Counted in the kernel.",
                    &[],
                )?,
            ],
            folded: IntCounter::new("folded", "part of kevtmon_events_throttled_total")?,
            read: Mutex::default(),
        })
    }

    fn of(&self, metric: KernelMetric) -> &IntCounterVec {
        &self.counters[metric as usize]
    }

    /// Adds what the daemon itself did not report one by one.
    pub(super) fn add_folded(&self) {
        let counter = self.of(KernelMetric::Throttled).with_label_values(&[Throttled::EVENTS]);
        counter.inc_by(self.folded.get().saturating_sub(counter.get()));
    }

    /// Replaces what was read before: the kernel's counters are totals.
    pub(super) fn set(&self, counts: &[KernelCount]) {
        for counter in &self.counters {
            counter.reset();
        }
        for count in counts {
            // Those have a series once there are any: there are none on a node that is well.
            let is_rare =
                count.metric == KernelMetric::MountUnproven || matches!(count.labels, ["mount" | "fsconfig"]);
            if is_rare && count.value == 0 {
                continue;
            }
            self.of(count.metric).with_label_values(count.labels).inc_by(count.value);
        }
    }
}
