//! What delivers observations, how, and what was lost.

use std::collections::HashMap;
use std::sync::Mutex;

use kevtmon_event::{Event, Lost};
use kevtmon_observation::{Fact, Observation, SourceKind, SourceStatus};
use prometheus::{IntCounterVec, IntGauge, IntGaugeVec};

use super::registrar::Registrar;
use super::{FamilyMetrics, MetricsError, lock};

pub(super) struct SourceMetrics {
    up: IntGaugeVec,
    hooks: IntGaugeVec,
    pub(super) lost: IntCounterVec,
    resyncs: IntCounterVec,
    malformed: IntCounterVec,
    pub(super) stuck_readers: IntGauge,
    attach_modes: Mutex<HashMap<String, String>>,
    /// Labels of sources whose names contain a path.
    labels: Mutex<HashMap<String, String>>,
}

impl SourceMetrics {
    pub(super) fn register(registrar: &Registrar) -> Result<Self, MetricsError> {
        let lost = registrar.counters(
            "kevtmon_events_lost_total",
            "Records that the kernel or a runtime could not deliver; a loss of unknown size counts as one.",
            &["source", "reason"],
        )?;
        lost.with_label_values(&["netlink", "overrun"]);
        lost.with_label_values(&[Lost::CNI, "too-many-calls"]);
        let resyncs = registrar.counters(
            "kevtmon_netlink_resyncs_total",
            "Resyncs of netlink state because messages were lost.",
            &["reason"],
        )?;
        resyncs.with_label_values(&["overrun"]);
        let malformed = registrar.counters(
            "kevtmon_malformed_total",
            "Answers, messages and list entries that could not be parsed, or that name the process of another container.",
            &["source"],
        )?;
        Ok(Self {
            malformed,
            up: registrar.gauges("kevtmon_source_up", "Whether a source delivers.", &["source"])?,
            hooks: registrar.gauges(
                "kevtmon_hook_info",
                "The attach mode of each hook.",
                &["hook", "attach_mode"],
            )?,
            lost,
            resyncs,
            stuck_readers: registrar
                .gauge("kevtmon_proc_readers_stuck", "Skipped processes: reads of their /proc files hang.")?,
            attach_modes: Mutex::default(),
            labels: Mutex::default(),
        })
    }

    /// Gives a label to a source whose name contains a path. It counts as down until it reports.
    pub(super) fn name(&self, source: String, label: String) {
        self.up.with_label_values(&[&label]).set(0);
        self.malformed.with_label_values(&[&label]);
        self.name_later(source, label);
    }

    /// The same of a source that does not exist until it reports.
    pub(super) fn name_later(&self, source: String, label: String) {
        lock(&self.labels).insert(source, label);
    }

    /// A path is no label, whatever happens.
    fn label(&self, source: &str) -> String {
        let bare = || source.split(':').next().unwrap_or_default().to_owned();
        lock(&self.labels).get(source).cloned().unwrap_or_else(bare)
    }

    fn status(&self, status: &SourceStatus) {
        let Some(hook) = status.source.strip_prefix("hook.") else {
            let label = self.label(&status.source);
            if status.absent && status.kind == SourceKind::Kubelet {
                // Most kubelets have no such API. It may never have been set.
                let _ = self.up.remove_label_values(&[label.as_str()]);
            } else {
                self.up.with_label_values(&[label.as_str()]).set(i64::from(status.up));
            }
            return;
        };
        let attach_mode = status.attach_mode.as_deref().filter(|_| status.up).unwrap_or("none");
        if let Some(previous) = lock(&self.attach_modes).insert(hook.to_owned(), attach_mode.to_owned()) {
            // It is there: it was set when it was remembered.
            let _ = self.hooks.remove_label_values(&[hook, previous.as_str()]);
        }
        self.hooks.with_label_values(&[hook, attach_mode]).set(1);
    }
}

impl FamilyMetrics for SourceMetrics {
    /// What sources lose is counted where they report it; this is lost in the model.
    fn event(&self, event: &Event) {
        if let Some(lost) = event.lost.as_ref().filter(|lost| lost.source == Lost::CNI) {
            self.lost
                .with_label_values(&[&lost.source, &lost.reason])
                .inc_by(lost.count.parse().unwrap_or(1));
        }
    }

    fn observation(&self, observation: &Observation) {
        match &observation.fact {
            Fact::Source(status) => self.status(status),
            Fact::Lost(loss) => {
                self.lost.with_label_values(&[&loss.source, &loss.reason]).inc_by(loss.count.unwrap_or(1));
            }
            Fact::Malformed { source, count } => {
                self.malformed.with_label_values(&[&self.label(source)]).inc_by(*count);
            }
            Fact::Restarted { .. } => self.lost.with_label_values(&["daemon", "restart"]).inc(),
            Fact::Resync { source, reason } if source == "netlink" => {
                self.resyncs.with_label_values(&[reason]).inc();
            }
            _ => {}
        }
    }
}
