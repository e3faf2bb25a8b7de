//! Refused unmounts and removals, and the scans for what holds the mount.

use kevtmon_observation::{Fact, HolderReport, MountSyscall, Observation, Verdict};
use prometheus::{Histogram, IntCounter, IntCounterVec};

use super::registrar::Registrar;
use super::{FamilyMetrics, MetricsError};

/// Positive errno of a busy mount (`EBUSY`).
const EBUSY: u16 = 16;

/// Attempts of one caller between the 1st, 2nd, 4th, 8th, …
const REPEATED: &str = "repeated";
/// Removals of control groups.
const CGROUP: &str = "cgroup";
/// Removals of `/`, `.` and `..`.
const NAMELESS: &str = "nameless";
/// Unmounts that succeeded while too many waited.
const MISSED: &str = "missed";

/// Calls for a busy mount that emit no event of their own.
#[derive(Debug, Clone, Copy, Default)]
pub struct IgnoredRefusals {
    /// Attempts of one caller between the 1st, 2nd, 4th, 8th, …
    pub repeated: u64,
    /// Removals of control groups with processes, or with others below them.
    pub cgroup: u64,
    /// Removals and renames of paths that end in no name.
    pub nameless: u64,
    /// Unmounts that succeeded while too many waited.
    pub missed: u64,
}

pub(super) struct MountMetrics {
    busy: IntCounterVec,
    busy_ignored: IntCounterVec,
    scans: Histogram,
    scans_skipped: IntCounterVec,
    pub(super) inventories: IntCounter,
}

impl MountMetrics {
    pub(super) fn register(registrar: &Registrar) -> Result<Self, MetricsError> {
        let busy = registrar.counters(
            "kevtmon_mount_busy_total",
            "Calls refused because a mount is busy.",
            &["syscall"],
        )?;
        // The others have a series once they are refused: an idle node has few.
        busy.with_label_values(&[MountSyscall::Umount2.name()]);
        let busy_ignored = registrar.counters(
            "kevtmon_mount_busy_ignored_total",
            "Calls refused because a mount is busy, and unmounts of a busy mount, without an event of their own.",
            &["reason"],
        )?;
        for reason in [REPEATED, CGROUP, NAMELESS] {
            busy_ignored.with_label_values(&[reason]);
        }
        Ok(Self {
            busy,
            busy_ignored,
            scans: registrar.histogram(
                "kevtmon_holders_scan_seconds",
                "Duration of a scan for the holders of a mount.",
                &[0.02, 0.1, 0.5, 2.0],
            )?,
            scans_skipped: registrar.counters(
                "kevtmon_holders_scans_skipped_total",
                "Skipped scans for the holders of a mount.",
                &["reason"],
            )?,
            inventories: registrar
                .counter("kevtmon_mount_inventories_total", "Scans of the mounts of all namespaces.")?,
        })
    }

    pub(super) fn set_ignored(&self, totals: IgnoredRefusals) {
        let IgnoredRefusals { repeated, cgroup, nameless, missed } = totals;
        // Those have a series once there are any: there are none on a node that is well.
        let missed = Some((MISSED, missed)).filter(|(_, total)| *total > 0);
        let others = [(REPEATED, repeated), (CGROUP, cgroup), (NAMELESS, nameless)];
        for (reason, total) in others.into_iter().chain(missed) {
            let counter = self.busy_ignored.with_label_values(&[reason]);
            counter.inc_by(total.saturating_sub(counter.get()));
        }
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "a scan takes seconds, where a double still resolves nanoseconds"
    )]
    fn scan(&self, report: &HolderReport) {
        match report.verdict {
            Verdict::Skipped => self.scans_skipped.with_label_values(&["not-made"]).inc(),
            _ => self.scans.observe(report.elapsed_ns as f64 / 1e9),
        }
    }
}

impl FamilyMetrics for MountMetrics {
    fn observation(&self, observation: &Observation) {
        match &observation.fact {
            Fact::Umount(attempt) if attempt.errno == Some(EBUSY) => {
                self.busy.with_label_values(&[attempt.syscall.name()]).inc();
            }
            Fact::Holders(report) => self.scan(report),
            _ => {}
        }
    }
}
