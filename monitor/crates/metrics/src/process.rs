//! This process: its resources, and what it keeps alive.

use kevtmon_types::clock::BootNs;
use prometheus::{Counter, IntGauge, IntGaugeVec};

use super::MetricsError;
use super::registrar::Registrar;

/// Reads what this process uses and keeps alive, at every scrape.
pub trait ProcessReader: Send + Sync {
    /// When this process started, on the boot clock.
    fn start_ns(&self) -> Option<BootNs>;

    /// What this process uses now.
    fn usage(&self) -> Option<Usage>;

    /// What this process keeps alive at this moment.
    fn pins(&self) -> Vec<Pin>;
}

/// What this process uses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    /// Time on all processors, user and system, in seconds, and that of all it has executed.
    pub cpu_seconds: f64,
    pub resident_bytes: u64,
    /// Address space in bytes.
    pub virtual_bytes: u64,
    pub open_fds: u64,
    /// How many may be open.
    pub max_fds: u64,
}

/// What kind of object is kept alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PinKind {
    /// A mount that others may want to unmount.
    Mount,
    Netns,
    /// Another mount namespace, with every mount in it.
    Mntns,
}

impl PinKind {
    pub const ALL: [Self; 3] = [Self::Mount, Self::Netns, Self::Mntns];

    /// As in metric labels.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mount => "mount",
            Self::Netns => "netns",
            Self::Mntns => "mntns",
        }
    }
}

/// Something that this process keeps alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    pub kind: PinKind,
    /// The descriptor or thread, and what it refers to.
    pub what: String,
}

pub(super) struct ProcessMetrics {
    own: Box<dyn ProcessReader>,
    self_pins: IntGaugeVec,
    cpu: Counter,
    resident: IntGauge,
    virtual_memory: IntGauge,
    open_fds: IntGauge,
    max_fds: IntGauge,
}

impl ProcessMetrics {
    pub(super) fn register(registrar: &Registrar, own: Box<dyn ProcessReader>) -> Result<Self, MetricsError> {
        let self_pins = registrar.gauges(
            "kevtmon_self_pins",
            "Mounts and namespaces that this process pins; above 0 only during a scan.",
            &["type"],
        )?;
        for kind in PinKind::ALL {
            self_pins.with_label_values(&[kind.name()]);
        }
        Ok(Self {
            own,
            self_pins,
            cpu: registrar.float_counter(
                "process_cpu_seconds_total",
                "User and system time in seconds, including the readers of /proc.",
            )?,
            resident: registrar.gauge("process_resident_memory_bytes", "Resident memory in bytes.")?,
            virtual_memory: registrar.gauge("process_virtual_memory_bytes", "Virtual memory in bytes.")?,
            open_fds: registrar.gauge("process_open_fds", "Open file descriptors.")?,
            max_fds: registrar.gauge("process_max_fds", "Most file descriptors that may be open.")?,
        })
    }

    /// Start of the process, boot time in nanoseconds.
    pub(super) fn start_ns(&self) -> Option<u64> {
        self.own.start_ns()
    }

    /// Reads all of it again.
    pub(super) fn read(&self) {
        let pins = self.own.pins();
        for kind in PinKind::ALL {
            let count = pins.iter().filter(|pin| pin.kind == kind).count();
            self.self_pins.with_label_values(&[kind.name()]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        if let Some(usage) = self.own.usage() {
            let set = |gauge: &IntGauge, value| gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
            // One that ends while they are added up is missing: that is no reset.
            self.cpu.inc_by((usage.cpu_seconds - self.cpu.get()).max(0.0));
            set(&self.resident, usage.resident_bytes);
            set(&self.virtual_memory, usage.virtual_bytes);
            set(&self.open_fds, usage.open_fds);
            set(&self.max_fds, usage.max_fds);
        }
    }
}
