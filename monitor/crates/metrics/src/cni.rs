//! Calls of CNI plugins.

use kevtmon_event::{Event, Kind};
use prometheus::IntCounterVec;

use super::registrar::Registrar;
use super::{FamilyMetrics, MetricsError};

pub(super) struct CniMetrics {
    invocations: IntCounterVec,
}

impl CniMetrics {
    pub(super) fn register(registrar: &Registrar) -> Result<Self, MetricsError> {
        let invocations = registrar.counters(
            "kevtmon_cni_invocations_total",
            "Calls of CNI plugins that have ended, chained and delegated plugins counted as one.",
            &["command", "result"],
        )?;
        for command in ["ADD", "DEL"] {
            for result in ["ok", "failed"] {
                invocations.with_label_values(&[command, result]);
            }
        }
        Ok(Self { invocations })
    }
}

impl FamilyMetrics for CniMetrics {
    fn event(&self, event: &Event) {
        if let (Kind::CniFinished, Some(cni)) = (event.kind, &event.cni) {
            let result = if cni.failed() == Some(false) { "ok" } else { "failed" };
            self.invocations.with_label_values(&[cni.command.as_str(), result]).inc();
        }
    }
}
