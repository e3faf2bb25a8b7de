//! Every metric: its name, help and labels stand here and nowhere else.
//!
//! Events, observations and a few figures enter; the Prometheus text format leaves. No process id, path or
//! address ever becomes a label, and whatever the node itself can name has a bound.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus::{
    Counter, Gauge, Histogram, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Registry, TextEncoder,
};

use crate::clock::{BootNs, boot_now};
use crate::diagnose::About;
use crate::event::{Event, Incident, Join, Kind};
use crate::observation::{ContainerState, Fact, HolderReport, Observation, Source, SourceStatus, Verdict};
use crate::sources::procfs::own::{Own, PinKind};

mod house;
mod incidents;
mod kernel;

pub use kernel::{KernelCount, KernelMetric};

use house::House;
use incidents::IncidentMetrics;
use kernel::{KernelMetrics, ReadKernel};

/// How many kinds of links get a label of their own; the rest is `other`.
const MAX_LINK_KINDS: usize = 32;
/// Positive errno of a busy mount (`EBUSY`).
const EBUSY: u16 = 16;
const CONTAINER_STATES: [ContainerState; 8] = [
    ContainerState::Created,
    ContainerState::Running,
    ContainerState::Paused,
    ContainerState::Restarting,
    ContainerState::Removing,
    ContainerState::Exited,
    ContainerState::Dead,
    ContainerState::Unknown,
];

/// Why metrics could not be registered or rendered.
pub use prometheus::Error as MetricsError;

/// The registry of this process.
pub struct Metrics {
    registry: Registry,
    own: Own,
    /// Adds up to wall-clock time with a boot time, in nanoseconds.
    clock_offset: AtomicI64,
    link_kinds: Mutex<BTreeSet<String>>,
    runtimes: Mutex<BTreeSet<String>>,
    rungs: Mutex<HashMap<String, String>>,
    /// Labels of sources whose names are no labels.
    source_labels: Mutex<HashMap<String, String>>,

    events: IntCounterVec,
    lost: IntCounterVec,
    discarded: IntCounterVec,
    joins: IntCounterVec,
    kernel: KernelMetrics,
    neighbor_deletions: IntCounterVec,
    mount_busy: IntCounterVec,
    mount_busy_ignored: IntCounterVec,
    link_changes: IntCounterVec,
    containers: IntGaugeVec,
    veths: IntGauge,
    incidents: IncidentMetrics,
    holders_scan: Histogram,
    holders_skipped: IntCounterVec,
    latency: HistogramVec,
    resyncs: IntCounterVec,
    source_up: IntGaugeVec,
    hooks: IntGaugeVec,
    self_pins: IntGaugeVec,
    store_bytes: IntGauge,
    store_errors: IntCounterVec,
    last_tick: Gauge,
    cpu: Counter,
    resident: IntGauge,
    virtual_memory: IntGauge,
    open_fds: IntGauge,
    max_fds: IntGauge,
}

impl Metrics {
    /// Registers everything; what can be zero is exported as zero from the start.
    ///
    /// # Errors
    /// When two metrics have one name.
    pub fn new(version: &str, revision: &str, own: Own) -> Result<Self, MetricsError> {
        let registry = Registry::new();
        let house = House { registry: &registry };
        let metrics = Self {
            events: house.counters("kevtmon_events_total", "Events, by kind.", &["kind"])?,
            lost: house.counters(
                "kevtmon_events_lost_total",
                "Records that the kernel or a runtime could not hand over; at least one each where nobody can know how many.",
                &["source", "reason"],
            )?,
            discarded: house.counters(
                "kevtmon_events_discarded_total",
                "Events that a sink did not take.",
                &["sink", "reason"],
            )?,
            joins: house.counters(
                "kevtmon_joins_total",
                "Joins of the actor or target of an event with a container.",
                &["side", "result"],
            )?,
            kernel: KernelMetrics {
                neighbor_deletions: house.counters(
                    "kevtmon_kernel_neighbor_deletions_total",
                    "Neighbor entries deleted by request or with something else, counted in the kernel, by the state they had.",
                    &["state", "origin"],
                )?,
                mount_busy: house.counters(
                    "kevtmon_kernel_mount_busy_total",
                    "Calls refused because a mount is busy, counted in the kernel.",
                    &["syscall"],
                )?,
                read: Mutex::default(),
            },
            neighbor_deletions: house.counters(
                "kevtmon_neighbor_deletions_total",
                "Permanent neighbor entries deleted.",
                &["cause", "gateway"],
            )?,
            mount_busy: house.counters(
                "kevtmon_mount_busy_total",
                "Calls refused because a mount is busy.",
                &["syscall"],
            )?,
            mount_busy_ignored: house.counters(
                "kevtmon_mount_busy_ignored_total",
                "Refused calls that are everyday life and gave no event.",
                &["reason"],
            )?,
            link_changes: house.counters(
                "kevtmon_link_changes_total",
                "Changes of network interfaces.",
                &["link_kind", "change"],
            )?,
            containers: house.gauges("kevtmon_containers", "Containers, by state.", &["runtime", "state"])?,
            veths: house.gauge("kevtmon_veth_devices", "Veth devices of the host.")?,
            incidents: incidents(&house)?,
            holders_scan: house.histogram(
                "kevtmon_holders_scan_seconds",
                "Time that a scan for the holders of a mount took.",
                &[0.02, 0.1, 0.5, 2.0, 10.0],
            )?,
            holders_skipped: house.counters(
                "kevtmon_holders_scans_skipped_total",
                "Scans for the holders of a mount that were not made.",
                &["reason"],
            )?,
            latency: house.histograms(
                "kevtmon_event_latency_seconds",
                "Time from the kernel's stamp, or from reading where there is none, to the event being handed to the sinks.",
                &["source"],
                &[0.000_05, 0.000_25, 0.001, 0.01, 1.0],
            )?,
            resyncs: house.counters(
                "kevtmon_netlink_resyncs_total",
                "Times that netlink state was read anew because messages were missed.",
                &["reason"],
            )?,
            source_up: house.gauges("kevtmon_source_up", "Whether a source delivers.", &["source"])?,
            hooks: house.gauges("kevtmon_hook_info", "The way each hook works here.", &["hook", "rung"])?,
            self_pins: house.gauges(
                "kevtmon_self_pins",
                "Mounts and namespaces that this process keeps alive; above 0 only while a scan runs.",
                &["type"],
            )?,
            store_bytes: house.gauge("kevtmon_store_bytes", "Bytes of the event store on disk.")?,
            store_errors: house.counters(
                "kevtmon_store_errors_total",
                "Failures of the event store, by what was tried.",
                &["op"],
            )?,
            last_tick: house.float_gauge(
                "kevtmon_core_last_tick_timestamp_seconds",
                "When the core last looked at the clock.",
            )?,
            cpu: house.float_counter("process_cpu_seconds_total", "User and system time used in seconds.")?,
            resident: house.gauge("process_resident_memory_bytes", "Resident memory in bytes.")?,
            virtual_memory: house.gauge("process_virtual_memory_bytes", "Virtual memory in bytes.")?,
            open_fds: house.gauge("process_open_fds", "Open file descriptors.")?,
            max_fds: house.gauge("process_max_fds", "Most file descriptors that may be open.")?,
            clock_offset: AtomicI64::new(clock_offset_now()),
            link_kinds: Mutex::default(),
            runtimes: Mutex::default(),
            rungs: Mutex::default(),
            source_labels: Mutex::default(),
            own,
            registry: registry.clone(),
        };
        house
            .gauges("kevtmon_build_info", "The running program.", &["version", "revision"])?
            .with_label_values(&[version, revision])
            .set(1);
        house
            .float_gauge("process_start_time_seconds", "Start of the process since the epoch in seconds.")?
            .set(metrics.wall_seconds(metrics.own.start_ns().unwrap_or_else(boot_now)));
        metrics.export_zeros();
        Ok(metrics)
    }

    fn export_zeros(&self) {
        for kind in Kind::ALL {
            self.events.with_label_values(&[kind.name()]);
        }
        for side in ["actor", "target"] {
            for result in [Join::Ok, Join::Late, Join::Missed, Join::Host] {
                self.joins.with_label_values(&[side, result.name()]);
            }
        }
        for kind in PinKind::ALL {
            self.self_pins.with_label_values(&[kind.name()]);
        }
        for cause in
            ["admin", "replaced", "link-down", "link-deleted", "lladdr-changed", "last-address-removed"]
        {
            self.neighbor_deletions.with_label_values(&[cause, "true"]);
        }
        self.lost.with_label_values(&["netlink", "overrun"]);
        self.resyncs.with_label_values(&["overrun"]);
        for (sink, reason) in
            [("stdout", "queue-full"), ("store", "queue-full"), ("api", "queue-full"), ("api", "slow-reader")]
        {
            self.discarded.with_label_values(&[sink, reason]);
        }
        for op in ["open", "write", "commit", "checkpoint"] {
            self.store_errors.with_label_values(&[op]);
        }
        self.discarded.with_label_values(&["diagnose", "too-many-open"]);
        self.mount_busy.with_label_values(&["umount2"]);
        self.incidents.export_zeros();
    }

    /// Exports zeros for the reasons for which the kernel programs can lose records.
    pub fn export_zero_losses(&self, reasons: impl Iterator<Item = &'static str>) {
        for reason in reasons {
            self.lost.with_label_values(&["bpf", reason]);
        }
    }

    /// Sets how the kernel's own counters are read, at every scrape.
    pub fn set_kernel_counters(&self, read: ReadKernel) {
        *lock(&self.kernel.read) = Some(read);
    }

    /// Counts an event.
    pub fn event(&self, event: &Event) {
        self.events.with_label_values(&[event.kind.name()]).inc();
        if let Some(actor) = &event.actor {
            self.joins.with_label_values(&["actor", actor.join.name()]).inc();
        }
        if let Some(target) = &event.target {
            self.joins.with_label_values(&["target", target.join.name()]).inc();
        }
        if let (Kind::NeighborDeleted, Some(neighbor)) = (event.kind, &event.neighbor) {
            let gateway = match neighbor.gateway {
                Some(true) => "true",
                Some(false) => "false",
                None => "unknown",
            };
            self.neighbor_deletions.with_label_values(&[neighbor.cause.as_str(), gateway]).inc();
        }
        self.incidents.event(event);
        if let Some(link) = &event.link {
            let kind = self.bounded_link_kind(link.kind.as_deref());
            let change = |change: &str| self.link_changes.with_label_values(&[kind.as_str(), change]).inc();
            match event.kind {
                Kind::LinkCreated => change("created"),
                Kind::LinkMoved => change("moved"),
                Kind::LinkDeleted => change("deleted"),
                Kind::LinkChanged => link.change.iter().for_each(|what| change(what)),
                _ => {}
            }
        }
    }

    /// An incident that an earlier run left open: it was announced then.
    pub fn resumed_incident(&self, incident: &Incident, about: &About) {
        self.incidents.resumed(incident, about);
    }

    /// Sets how often trouble was found that is not followed.
    pub fn incidents_discarded(&self, total: u64) {
        let counter = self.discarded.with_label_values(&["diagnose", "too-many-open"]);
        counter.inc_by(total.saturating_sub(counter.get()));
    }

    /// Counts what an observation tells of the sources.
    pub fn observation(&self, observation: &Observation) {
        match &observation.fact {
            Fact::Clock { realtime_offset_ns } => {
                self.clock_offset.store(*realtime_offset_ns, Ordering::Relaxed)
            }
            Fact::Tick => self.last_tick.set(self.wall_seconds(observation.at)),
            Fact::Source(status) => self.source(status),
            Fact::Lost(loss) => {
                self.lost.with_label_values(&[&loss.source, &loss.reason]).inc_by(loss.count.unwrap_or(1));
            }
            Fact::Restarted { .. } => self.lost.with_label_values(&["daemon", "restart"]).inc(),
            Fact::Resync { source, reason } if source == "netlink" => {
                self.resyncs.with_label_values(&[reason]).inc();
            }
            Fact::Umount(attempt) if attempt.errno == Some(EBUSY) => {
                self.mount_busy.with_label_values(&["umount2"]).inc();
            }
            Fact::Holders(report) => self.holders(report),
            _ => {}
        }
    }

    /// Gives a label to a source whose name has a path. It counts as down until it reports.
    pub fn name_source(&self, source: String, label: String) {
        self.source_up.with_label_values(&[&label]).set(0);
        lock(&self.source_labels).insert(source, label);
    }

    fn source(&self, status: &SourceStatus) {
        let Some(hook) = status.source.strip_prefix("hook.") else {
            let labels = lock(&self.source_labels);
            // A path is no label, whatever happens.
            let bare = status.source.split(':').next().unwrap_or_default();
            let label = labels.get(&status.source).map_or(bare, String::as_str);
            self.source_up.with_label_values(&[label]).set(i64::from(status.up));
            return;
        };
        let rung = status.rung.as_deref().filter(|_| status.up).unwrap_or("none");
        if let Some(previous) = lock(&self.rungs).insert(hook.to_owned(), rung.to_owned()) {
            // It is there: it was set when it was remembered.
            let _ = self.hooks.remove_label_values(&[hook, previous.as_str()]);
        }
        self.hooks.with_label_values(&[hook, rung]).set(1);
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "a scan takes seconds, where a double still tells nanoseconds"
    )]
    fn holders(&self, report: &HolderReport) {
        match report.verdict {
            Verdict::Skipped => self.holders_scan_skipped("not-made"),
            _ => self.holders_scan.observe(report.elapsed_ns as f64 / 1e9),
        }
    }

    /// Counts a scan for holders that was not made.
    pub fn holders_scan_skipped(&self, reason: &'static str) {
        self.holders_skipped.with_label_values(&[reason]).inc();
    }

    /// Counts a refused unmount that is everyday life.
    pub fn mount_busy_ignored(&self, reason: &'static str) {
        self.mount_busy_ignored.with_label_values(&[reason]).inc();
    }

    /// Counts events that a sink did not take.
    pub fn discarded(&self, sink: &'static str, reason: &'static str, count: u64) {
        self.discarded.with_label_values(&[sink, reason]).inc_by(count);
    }

    /// Counts a failure of the event store.
    pub fn store_error(&self, op: &'static str) {
        self.store_errors.with_label_values(&[op]).inc();
    }

    /// Sets how much disk the event store takes.
    pub fn store_bytes(&self, bytes: u64) {
        self.store_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Measures how old the fact of an event is when the event is handed to the sinks.
    pub fn latency(&self, event: &Event, now: BootNs) {
        if event.source != Source::Daemon {
            let age = Duration::from_nanos(now.saturating_sub(event.at));
            self.latency.with_label_values(&[event.source.name()]).observe(age.as_secs_f64());
        }
    }

    /// Sets what the model holds: containers by runtime and state, and veth devices.
    pub fn model(&self, containers: &HashMap<(String, ContainerState), i64>, veths: i64) {
        let mut runtimes = lock(&self.runtimes);
        runtimes.extend(containers.keys().map(|(runtime, _)| runtime.clone()));
        for runtime in runtimes.iter() {
            for state in CONTAINER_STATES {
                let count = containers.get(&(runtime.clone(), state)).copied().unwrap_or(0);
                self.containers.with_label_values(&[runtime.as_str(), state.name()]).set(count);
            }
        }
        self.veths.set(veths);
    }

    /// Everything in the Prometheus text format; reads the kernel's counters and this process anew.
    ///
    /// # Errors
    /// When the text cannot be made.
    pub fn gather(&self) -> Result<String, MetricsError> {
        // Held until the text is made: two scrapes at once would mix each other's readings.
        let read_kernel = lock(&self.kernel.read);
        if let Some(read) = read_kernel.as_ref() {
            self.kernel.set(&read());
        }
        self.take_own_figures();
        let _whole = lock(&self.incidents.known);
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }

    fn take_own_figures(&self) {
        let pins = self.own.pins();
        for kind in PinKind::ALL {
            let count = pins.iter().filter(|pin| pin.kind == kind).count();
            self.self_pins.with_label_values(&[kind.name()]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        if let Some(usage) = self.own.usage() {
            let set = |gauge: &IntGauge, value| gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
            self.cpu.reset();
            self.cpu.inc_by(usage.cpu_seconds);
            set(&self.resident, usage.resident_bytes);
            set(&self.virtual_memory, usage.virtual_bytes);
            set(&self.open_fds, usage.open_fds);
            set(&self.max_fds, usage.max_fds);
        }
    }

    /// Modules name link kinds, so the node could invent any number of them.
    fn bounded_link_kind(&self, kind: Option<&str>) -> String {
        let kind = kind.unwrap_or("none");
        let mut known = lock(&self.link_kinds);
        if !known.contains(kind) && known.len() >= MAX_LINK_KINDS {
            return "other".to_owned();
        }
        known.insert(kind.to_owned());
        kind.to_owned()
    }

    #[expect(clippy::cast_precision_loss, reason = "microseconds suffice for a point in time")]
    fn wall_seconds(&self, at: u64) -> f64 {
        let ns = i128::from(at) + i128::from(self.clock_offset.load(Ordering::Relaxed));
        ns as f64 / 1e9
    }
}

fn clock_offset_now() -> i64 {
    let realtime = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    i64::try_from(realtime).unwrap_or(0).saturating_sub(i64::try_from(boot_now()).unwrap_or(0))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn incidents(house: &House<'_>) -> Result<IncidentMetrics, MetricsError> {
    Ok(IncidentMetrics {
        open: house.gauges(
            "kevtmon_incidents_open",
            "Open incidents, by kind and severity.",
            &["incident", "severity"],
        )?,
        total: house.counters("kevtmon_incidents_total", "Incidents that opened.", &["incident"])?,
        oldest: house.float_gauges(
            "kevtmon_incidents_oldest_open_timestamp_seconds",
            "When the oldest open incident of a kind opened.",
            &["incident"],
        )?,
        info: house.gauges(
            "kevtmon_incident_info",
            "An open incident; the worst twenty are shown.",
            &["incident", "id", "severity", "namespace", "pod", "actor"],
        )?,
        omitted: house.gauge("kevtmon_incident_info_omitted", "Open incidents that are not shown.")?,
        known: Mutex::default(),
    })
}

#[cfg(test)]
mod tests;
