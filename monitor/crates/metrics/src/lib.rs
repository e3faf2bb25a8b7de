//! Every metric: its name, help and labels stand in this module and nowhere else.
//!
//! Events, observations and a few figures enter; the Prometheus text format leaves. No process id, path or
//! address ever becomes a label, and whatever the node itself can name has a bound. Each family of events has a file
//! with its metrics.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use kevtmon_event::{Event, Incident, IncidentObjects};
use kevtmon_observation::{ContainerState, Fact, Loss, Observation};
use kevtmon_types::clock::{BootNs, boot_now};
use kevtmon_types::lock::lock;
use prometheus::{Gauge, Registry, TextEncoder};

mod cni;
mod containers;
mod events;
mod incidents;
mod kernel;
mod link;
mod mount;
mod neighbor;
mod process;
mod rbd;
mod registrar;
mod sinks;
mod sources;

use cni::CniMetrics;
use containers::ContainerMetrics;
use events::EventMetrics;
use incidents::IncidentMetrics;
pub use incidents::IncidentSeries;
pub use kernel::{KernelCount, KernelMetric};
use kernel::{KernelMetrics, ReadKernel};
use link::LinkMetrics;
pub use mount::IgnoredRefusals;
use mount::MountMetrics;
use neighbor::NeighborMetrics;
use process::ProcessMetrics;
/// Why metrics could not be registered or rendered.
pub use process::{Pin, PinKind, ProcessReader, Usage};
pub use prometheus::Error as MetricsError;
use rbd::RbdMetrics;
pub use registrar::Description;
use registrar::Registrar;
use sinks::SinkMetrics;
use sources::SourceMetrics;

/// The metrics of one family: each counts what concerns it. What can be zero is exported as zero from the start.
trait FamilyMetrics {
    fn event(&self, _event: &Event) {}

    fn observation(&self, _observation: &Observation) {}
}

/// The registry of this process.
pub struct Metrics {
    registry: Registry,
    descriptions: Vec<Description>,
    /// Adds up to wall-clock time with a boot time, in nanoseconds.
    clock_offset: AtomicI64,
    last_tick: Gauge,
    events: EventMetrics,
    neighbor: NeighborMetrics,
    link: LinkMetrics,
    mount: MountMetrics,
    cni: CniMetrics,
    incidents: IncidentMetrics,
    sources: SourceMetrics,
    containers: ContainerMetrics,
    rbd: RbdMetrics,
    sinks: SinkMetrics,
    kernel: KernelMetrics,
    process: ProcessMetrics,
}

impl Metrics {
    /// Registers everything.
    pub fn new(
        version: &str,
        revision: &str,
        own: impl ProcessReader + 'static,
    ) -> Result<Self, MetricsError> {
        let registrar = Registrar::default();
        let mut metrics = Self {
            clock_offset: AtomicI64::new(clock_offset_now()),
            last_tick: registrar.float_gauge(
                "kevtmon_core_last_tick_timestamp_seconds",
                "When the core last processed a heartbeat, seconds since the epoch.",
            )?,
            events: EventMetrics::register(&registrar)?,
            neighbor: NeighborMetrics::register(&registrar)?,
            link: LinkMetrics::register(&registrar)?,
            mount: MountMetrics::register(&registrar)?,
            cni: CniMetrics::register(&registrar)?,
            incidents: IncidentMetrics::register(&registrar)?,
            sources: SourceMetrics::register(&registrar)?,
            containers: ContainerMetrics::register(&registrar)?,
            rbd: RbdMetrics::register(&registrar)?,
            sinks: SinkMetrics::register(&registrar)?,
            kernel: KernelMetrics::register(&registrar)?,
            process: ProcessMetrics::register(&registrar, Box::new(own))?,
            registry: registrar.registry.clone(),
            descriptions: Vec::new(),
        };
        registrar
            .gauges("kevtmon_build_info", "The running program.", &["version", "revision"])?
            .with_label_values(&[version, revision])
            .set(1);
        registrar
            .float_gauge("process_start_time_seconds", "Start of the process since the epoch in seconds.")?
            .set(metrics.wall_seconds(metrics.process.start_ns().unwrap_or_else(boot_now)));
        metrics.descriptions = registrar.descriptions.into_inner();
        Ok(metrics)
    }

    /// Every metric, in the order in which they are registered.
    pub fn descriptions(&self) -> &[Description] {
        &self.descriptions
    }

    fn families(&self) -> [&dyn FamilyMetrics; 9] {
        [
            &self.events, &self.neighbor, &self.link, &self.mount, &self.cni, &self.incidents, &self.sources,
            &self.containers, &self.rbd,
        ]
    }

    /// Exports zeros for the reasons for which the kernel programs can lose records; those of users among themselves have a
    /// series once some are lost: an idle node has few.
    pub fn export_zero_losses(&self, reasons: impl Iterator<Item = &'static str>) {
        for reason in reasons.filter(|reason| !reason.ends_with(Loss::OF_USERS)) {
            self.sources.lost.with_label_values(&["bpf", reason]);
        }
    }

    /// Sets how many processes are left out because a reader of /proc got stuck at them.
    pub fn proc_readers_stuck(&self, count: usize) {
        self.sources.stuck_readers.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Sets how the kernel's own counters are read, at every scrape.
    pub fn set_kernel_counters(&self, read: ReadKernel) {
        *lock(&self.kernel.read) = Some(read);
    }

    pub fn event(&self, event: &Event) {
        self.families().iter().for_each(|family| family.event(event));
    }

    /// Counts an event that was over the budget of an unprivileged account: it happened, and no sink gets it.
    pub fn folded(&self, event: &Event) {
        let families: [&dyn FamilyMetrics; 3] = [&self.neighbor, &self.link, &self.mount];
        families.iter().for_each(|family| family.event(event));
        self.kernel.folded.inc();
    }

    pub fn observation(&self, observation: &Observation) {
        match &observation.fact {
            Fact::Clock { realtime_offset_ns } => {
                self.clock_offset.store(*realtime_offset_ns, Ordering::Relaxed);
            }
            Fact::Tick => self.last_tick.set(self.wall_seconds(observation.at)),
            _ => {}
        }
        self.families().iter().for_each(|family| family.observation(observation));
    }

    /// Measures how old the fact of an event is when the event is handed to the sinks.
    pub fn latency(&self, event: &Event, now: BootNs) {
        self.events.latency(event, now);
    }

    /// Exports these series as zero before the first incident; called once.
    pub fn export_zero_incidents(&self, kinds: impl IntoIterator<Item = IncidentSeries>) {
        self.incidents.export_zeros(kinds.into_iter().collect());
    }

    /// Shows an incident that an earlier run left open, and counted.
    pub fn resumed_incident(&self, incident: &Incident, objects: &IncidentObjects) {
        self.incidents.resumed(incident, objects);
    }

    /// Sets how many faults were discarded because a limit was reached.
    pub fn incidents_discarded(&self, total: u64) {
        let counter = self.sinks.discarded.with_label_values(&["diagnose", "too-many-open"]);
        counter.inc_by(total.saturating_sub(counter.get()));
    }

    /// Gives a label to a source whose name contains a path. It counts as down until it reports.
    pub fn name_source(&self, source: String, label: String) {
        self.sources.name(source, label);
    }

    /// The same of a source that does not exist yet.
    pub fn name_later_source(&self, source: String, label: String) {
        self.sources.name_later(source, label);
    }

    /// Counts a look at the mounts of all namespaces.
    pub fn mount_inventory(&self) {
        self.mount.inventories.inc();
    }

    /// Sets how many refused calls had no event of their own.
    pub fn refusals_ignored(&self, totals: IgnoredRefusals) {
        self.mount.set_ignored(totals);
    }

    /// Counts events that a sink did not take.
    pub fn discarded(&self, sink: &'static str, reason: &'static str, count: u64) {
        self.sinks.discarded.with_label_values(&[sink, reason]).inc_by(count);
    }

    /// Counts a failure of the event store.
    pub fn store_error(&self, op: &'static str) {
        self.sinks.store_errors.with_label_values(&[op]).inc();
    }

    /// Sets how much disk the event store takes.
    pub fn store_bytes(&self, bytes: u64) {
        self.sinks.store_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Sets what the model holds: containers by runtime and state, and veth devices; for how many readings of users' namespaces
    /// it had no room; and how many default routes it does not keep.
    pub fn model(
        &self,
        containers: &HashMap<(String, ContainerState), i64>,
        veths: i64,
        refused_namespaces: u64,
        routes_omitted: u64,
    ) {
        self.containers.set(containers, veths, refused_namespaces, routes_omitted);
    }

    /// Everything in the Prometheus text format; reads the kernel's counters and this process again.
    pub fn gather(&self) -> Result<String, MetricsError> {
        // Held until the text is made: two scrapes at once would mix each other's readings.
        let read_kernel = lock(&self.kernel.read);
        if let Some(read) = read_kernel.as_ref() {
            self.kernel.set(&read());
        }
        self.kernel.add_folded();
        self.process.read();
        let _whole = lock(&self.incidents.known);
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }

    #[expect(clippy::cast_precision_loss, reason = "microseconds suffice for a point in time")]
    fn wall_seconds(&self, at: BootNs) -> f64 {
        let ns = i128::from(at) + i128::from(self.clock_offset.load(Ordering::Relaxed));
        ns as f64 / 1e9
    }
}

fn clock_offset_now() -> i64 {
    let realtime = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    i64::try_from(realtime).unwrap_or(0).saturating_sub(i64::try_from(boot_now()).unwrap_or(0))
}

#[cfg(test)]
mod tests;
