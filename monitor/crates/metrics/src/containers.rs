//! What the model of the node holds, and containers that were made again.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use kevtmon_event::{Event, RecreationReason};
use kevtmon_observation::ContainerState;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::registrar::Registrar;
use super::{FamilyMetrics, MetricsError, lock};

pub(super) struct ContainerMetrics {
    containers: IntGaugeVec,
    veths: IntGauge,
    recreations: IntCounterVec,
    refused: IntCounter,
    routes_omitted: IntGauge,
    /// What was more than zero once: its zero stays. Most of the states are seen on few nodes, and a series each costs.
    seen: Mutex<HashSet<(String, ContainerState)>>,
}

impl ContainerMetrics {
    pub(super) fn register(registrar: &Registrar) -> Result<Self, MetricsError> {
        let recreations = registrar.counters(
            "kevtmon_container_recreations_total",
            "Containers of pods that replaced others.",
            &["reason"],
        )?;
        // The others have a series once they are seen: an idle node has few.
        recreations.with_label_values(&[RecreationReason::Exited.name()]);
        Ok(Self {
            recreations,
            containers: registrar.gauges(
                "kevtmon_containers",
                "Containers, by state.",
                &["runtime", "state"],
            )?,
            veths: registrar.gauge("kevtmon_veth_devices", "Veth devices of the host.")?,
            refused: registrar.counter(
                "kevtmon_namespaces_refused_total",
                "Refused reads of network namespaces: a user has too many of them, or a user or container has too much in them.",
            )?,
            routes_omitted: registrar.gauge(
                "kevtmon_default_routes_omitted",
                "Default routes beyond the limit of a network namespace, and routes by tunnels beyond that of the host: the routes in use there are unknown.",
            )?,
            seen: Mutex::default(),
        })
    }

    pub(super) fn set(
        &self,
        containers: &HashMap<(String, ContainerState), i64>,
        veths: i64,
        refused_namespaces: u64,
        routes_omitted: u64,
    ) {
        self.routes_omitted.set(i64::try_from(routes_omitted).unwrap_or(i64::MAX));
        self.refused.inc_by(refused_namespaces.saturating_sub(self.refused.get()));
        let mut seen = lock(&self.seen);
        for (runtime, state) in containers.keys() {
            seen.insert((runtime.clone(), *state));
            seen.insert((runtime.clone(), ContainerState::Running));
        }
        for key in seen.iter() {
            let count = containers.get(key).copied().unwrap_or(0);
            self.containers.with_label_values(&[key.0.as_str(), key.1.name()]).set(count);
        }
        self.veths.set(veths);
    }
}

impl FamilyMetrics for ContainerMetrics {
    fn event(&self, event: &Event) {
        if let Some(recreation) = &event.recreation {
            self.recreations.with_label_values(&[recreation.reason.name()]).inc();
        }
    }
}
