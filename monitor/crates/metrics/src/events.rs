//! Every event, whatever it is about: how many, how joined, how late.

use std::time::Duration;

use kevtmon_event::{Event, Join};
use kevtmon_observation::Source;
use kevtmon_types::clock::BootNs;
use prometheus::{HistogramVec, IntCounterVec};

use super::registrar::Registrar;
use super::{FamilyMetrics, MetricsError};

pub(super) struct EventMetrics {
    events: IntCounterVec,
    joins: IntCounterVec,
    latency: HistogramVec,
}

impl EventMetrics {
    pub(super) fn register(registrar: &Registrar) -> Result<Self, MetricsError> {
        // Without zeros: there are more kinds than series to spare, and what one alerts on has counters of its own.
        let events = registrar.counters("kevtmon_events_total", "Events, by kind.", &["kind"])?;
        let joins = registrar.counters(
            "kevtmon_joins_total",
            "Joins of the actor or target of an event with a container.",
            &["side", "result"],
        )?;
        // The others have a series once there are such: an idle node has few.
        let usual = [("actor", Join::Ok), ("actor", Join::Missed), ("actor", Join::Host)];
        for (side, result) in usual.into_iter().chain([("target", Join::Ok), ("target", Join::Missed)]) {
            joins.with_label_values(&[side, result.name()]);
        }
        let latency = registrar.histograms(
            "kevtmon_event_latency_seconds",
            "Time from the fact (the kernel's time stamp, or when it was read) until the event is queued for the sinks.",
            &["source"],
            &[0.000_05, 0.000_25, 0.001, 0.01, 1.0],
        )?;
        Ok(Self { events, joins, latency })
    }

    /// Measures the age of the fact; conclusions of the daemon itself have none.
    pub(super) fn latency(&self, event: &Event, now: BootNs) {
        if event.source != Source::Daemon {
            let age = Duration::from_nanos(now.saturating_sub(event.at));
            self.latency.with_label_values(&[event.source.name()]).observe(age.as_secs_f64());
        }
    }
}

impl FamilyMetrics for EventMetrics {
    fn event(&self, event: &Event) {
        self.events.with_label_values(&[event.kind.name()]).inc();
        if let Some(actor) = &event.actor {
            self.joins.with_label_values(&["actor", actor.join.name()]).inc();
        }
        if let Some(target) = &event.target {
            self.joins.with_label_values(&["target", target.join.name()]).inc();
        }
    }
}
