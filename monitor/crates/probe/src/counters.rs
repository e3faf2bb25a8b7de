//! What the programs count in the kernel: per CPU, exact even when the ring is full. Of what a run would have counted that
//! the kernel [skipped](super::skipped), nobody knows.

use std::sync::Arc;

use aya::maps::{MapData, PerCpuArray};
use kevtmon_ebpf::Counter;
use kevtmon_metrics::KernelCount;

use super::cni;
use super::hooks::{HOOKS, LossCount, records};

/// Reads the exported counters; shared with the metrics.
pub type CountReader = Arc<dyn Fn() -> Vec<KernelCount> + Send + Sync>;

/// Reasons for which records are lost in the kernel.
pub fn loss_reasons() -> impl Iterator<Item = &'static str> {
    losses()
        .map(|loss| loss.reason)
        .chain(HOOKS.iter().map(|hook| hook.skipped))
        .chain([cni::CUT, cni::TOO_MANY])
}

/// Counters of lost records.
pub(super) fn losses() -> impl Iterator<Item = &'static LossCount> {
    records().flat_map(|records| records.losses)
}

/// A counter, summed over all CPUs.
pub(super) fn read(counts: &PerCpuArray<MapData, u64>, counter: Counter) -> u64 {
    counts.get(&counter.index(), 0).map_or(0, |values| values.iter().sum())
}

pub(super) fn read_all(counts: &PerCpuArray<MapData, u64>) -> Vec<KernelCount> {
    records()
        .flat_map(|records| records.counts)
        .map(|count| KernelCount {
            metric: count.metric,
            labels: count.labels,
            value: read(counts, count.counter),
        })
        .collect()
}
