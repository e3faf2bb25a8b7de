//! Events that sinks discarded, and the event store.

use prometheus::{IntCounterVec, IntGauge};

use super::MetricsError;
use super::registrar::Registrar;

pub(super) struct SinkMetrics {
    pub(super) discarded: IntCounterVec,
    pub(super) store_bytes: IntGauge,
    pub(super) store_errors: IntCounterVec,
}

impl SinkMetrics {
    pub(super) fn register(registrar: &Registrar) -> Result<Self, MetricsError> {
        let discarded = registrar.counters(
            "kevtmon_events_discarded_total",
            "Events that a sink discarded.",
            &["sink", "reason"],
        )?;
        for (sink, reason) in [
            ("stdout", "queue-full"),
            ("store", "queue-full"),
            ("api", "queue-full"),
            ("api", "slow-reader"),
            ("diagnose", "too-many-open"),
        ] {
            discarded.with_label_values(&[sink, reason]);
        }
        let store_errors = registrar.counters(
            "kevtmon_store_errors_total",
            "Failures of the event store, by operation.",
            &["op"],
        )?;
        for op in ["open", "write", "commit", "checkpoint"] {
            store_errors.with_label_values(&[op]);
        }
        Ok(Self {
            discarded,
            store_bytes: registrar.gauge("kevtmon_store_bytes", "Bytes of the event store on disk.")?,
            store_errors,
        })
    }
}
