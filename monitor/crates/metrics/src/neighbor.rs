//! What happened to neighbor entries.

use kevtmon_event::{Event, Kind};
use prometheus::IntCounterVec;

use super::registrar::Registrar;
use super::{FamilyMetrics, MetricsError};

pub(super) struct NeighborMetrics {
    deletions: IntCounterVec,
}

impl NeighborMetrics {
    pub(super) fn register(registrar: &Registrar) -> Result<Self, MetricsError> {
        let deletions = registrar.counters(
            "kevtmon_neighbor_deletions_total",
            "Permanent neighbor entries deleted.",
            &["cause", "gateway"],
        )?;
        // The others have a series once they are seen: an idle node has few.
        for cause in ["admin", "link-down", "link-deleted"] {
            deletions.with_label_values(&[cause, "true"]);
        }
        Ok(Self { deletions })
    }
}

impl FamilyMetrics for NeighborMetrics {
    fn event(&self, event: &Event) {
        if let (Kind::NeighborDeleted, Some(neighbor)) = (event.kind, &event.neighbor) {
            let gateway = match neighbor.gateway {
                Some(true) => "true",
                Some(false) => "false",
                None => "unknown",
            };
            self.deletions.with_label_values(&[neighbor.cause.as_str(), gateway]).inc();
        }
    }
}
