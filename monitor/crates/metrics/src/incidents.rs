//! Incidents: which are open, since when, and about what.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock};

use jiff::Timestamp;
use kevtmon_event::{Actor, Event, Incident, IncidentObjects, Kind, Severity};
use kevtmon_types::escape::Escaped;
use prometheus::{GaugeVec, IntCounterVec, IntGauge, IntGaugeVec};

use super::registrar::Registrar;
use super::{FamilyMetrics, MetricsError, lock};

/// Incidents that are shown one by one: more would be too many series, on a node with another problem.
const SHOWN_MAX: usize = 20;

/// The collectors, and what they are computed from.
pub(super) struct IncidentMetrics {
    open: IntGaugeVec,
    total: IntCounterVec,
    oldest: GaugeVec,
    info: IntGaugeVec,
    omitted: IntGauge,
    pub(super) known: Mutex<BTreeMap<String, Shown>>,
    /// Whose series are there from the start.
    kinds: OnceLock<Vec<IncidentSeries>>,
}

/// The series of a kind of incidents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IncidentSeries {
    pub kind: &'static str,
    /// Severities that it usually has.
    pub severities: &'static [Severity],
}

/// What is shown of an open incident.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Shown {
    kind: String,
    severity: Severity,
    opened: f64,
    namespace: String,
    pod: String,
    pod_uid: String,
    actor: String,
}

impl Shown {
    #[expect(clippy::cast_precision_loss, reason = "microseconds suffice for a point in time")]
    fn of(incident: &Incident, objects: &IncidentObjects) -> Self {
        let opened = incident.opened.parse::<Timestamp>().unwrap_or(Timestamp::UNIX_EPOCH);
        // A label would make it a fact.
        let pod = objects.target.as_ref().and_then(|target| target.confirmed_pod());
        Self {
            kind: incident.kind.clone(),
            severity: incident.severity,
            opened: opened.as_microsecond() as f64 / 1e6,
            namespace: pod.and_then(|pod| pod.namespace.clone()).unwrap_or_default(),
            pod: pod.and_then(|pod| pod.name.clone()).unwrap_or_default(),
            pod_uid: pod.map(|pod| pod.uid.clone()).unwrap_or_default(),
            actor: objects.actor.as_deref().filter(|actor| is_named(actor)).map(name).unwrap_or_default(),
        }
    }
}

/// Whether an actor is called by its name: any user can give a process any name, which would be taken for that of a system
/// component.
fn is_named(actor: &Actor) -> bool {
    actor.userns.is_none() && (actor.container.is_some() || actor.uid.is_none_or(|uid| uid == 0))
}

/// Its command name; whoever looks at metrics on a terminal is not to be controlled by it.
fn name(actor: &Actor) -> String {
    Escaped(&actor.comm).to_string()
}

impl IncidentMetrics {
    pub(super) fn register(registrar: &Registrar) -> Result<Self, MetricsError> {
        Ok(Self {
            open: registrar.gauges(
                "kevtmon_incidents_open",
                "Open incidents, by kind and severity.",
                &["incident", "severity"],
            )?,
            total: registrar.counters("kevtmon_incidents_total", "Incidents that opened.", &["incident"])?,
            oldest: registrar.float_gauges(
                "kevtmon_incidents_oldest_open_timestamp_seconds",
                "When the oldest open incident of a kind opened.",
                &["incident"],
            )?,
            info: registrar.gauges(
                "kevtmon_incident_info",
                "An open incident; the worst twenty are shown.",
                &["incident", "id", "severity", "namespace", "pod", "pod_uid", "actor"],
            )?,
            omitted: registrar
                .gauge("kevtmon_incident_info_omitted", "Open incidents that are not shown.")?,
            known: Mutex::default(),
            kinds: OnceLock::new(),
        })
    }

    /// Called once: these are there before the first incident.
    pub(super) fn export_zeros(&self, kinds: Vec<IncidentSeries>) {
        for series in self.kinds.get_or_init(|| kinds) {
            self.total.with_label_values(&[series.kind]);
        }
        self.show(&lock(&self.known));
    }

    /// An incident that an earlier run left open.
    pub(super) fn resumed(&self, incident: &Incident, objects: &IncidentObjects) {
        let mut known = lock(&self.known);
        known.insert(incident.id.clone(), Shown::of(incident, objects));
        self.show(&known);
    }

    fn show(&self, known: &BTreeMap<String, Shown>) {
        self.open.reset();
        for IncidentSeries { kind, severities } in self.kinds.get().into_iter().flatten() {
            // Series are few, and of what only informs nobody is woken.
            for severity in severities.iter().copied().filter(|severity| *severity > Severity::Info) {
                self.open.with_label_values(&[kind, severity.name()]);
            }
        }
        self.oldest.reset();
        for shown in known.values() {
            let kind = shown.kind.as_str();
            self.open.with_label_values(&[kind, shown.severity.name()]).inc();
            let oldest = self.oldest.with_label_values(&[kind]);
            if oldest.get() == 0.0 || shown.opened < oldest.get() {
                oldest.set(shown.opened);
            }
        }
        self.info.reset();
        let mut worst: Vec<(&String, &Shown)> = known.iter().collect();
        worst.sort_by(|(_, a), (_, b)| b.severity.cmp(&a.severity).then(a.opened.total_cmp(&b.opened)));
        for (id, shown) in worst.iter().take(SHOWN_MAX) {
            let Shown { kind, severity, opened: _, namespace, pod, pod_uid, actor } = shown;
            let labels = [kind, *id, severity.name(), namespace, pod, pod_uid, actor];
            self.info.with_label_values(&labels).set(1);
        }
        self.omitted.set(i64::try_from(worst.len().saturating_sub(SHOWN_MAX)).unwrap_or(i64::MAX));
    }
}

impl FamilyMetrics for IncidentMetrics {
    fn event(&self, event: &Event) {
        let Some(incident) = &event.incident else {
            return;
        };
        let mut known = lock(&self.known);
        match event.kind {
            Kind::IncidentOpened => self.total.with_label_values(&[incident.kind.as_str()]).inc(),
            Kind::IncidentClosed => {
                known.remove(&incident.id);
                return self.show(&known);
            }
            _ => {}
        }
        known.insert(incident.id.clone(), Shown::of(incident, &IncidentObjects::of(event)));
        self.show(&known);
    }
}
