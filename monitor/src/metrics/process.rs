//! This process: its resources, and what it keeps alive.

use prometheus::{Counter, IntGauge, IntGaugeVec};

use super::MetricsError;
use super::registrar::Registrar;
use crate::sources::procfs::own::{Own, PinKind};

pub(super) struct ProcessMetrics {
    own: Own,
    self_pins: IntGaugeVec,
    cpu: Counter,
    resident: IntGauge,
    virtual_memory: IntGauge,
    open_fds: IntGauge,
    max_fds: IntGauge,
}

impl ProcessMetrics {
    pub(super) fn register(registrar: &Registrar<'_>, own: Own) -> Result<Self, MetricsError> {
        let self_pins = registrar.gauges(
            "kevtmon_self_pins",
            "Mounts and namespaces that this process keeps alive; above 0 only while a scan runs.",
            &["type"],
        )?;
        for kind in PinKind::ALL {
            self_pins.with_label_values(&[kind.name()]);
        }
        Ok(Self {
            own,
            self_pins,
            cpu: registrar
                .float_counter("process_cpu_seconds_total", "User and system time used in seconds.")?,
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

    /// Reads all of it anew.
    pub(super) fn read(&self) {
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
}
