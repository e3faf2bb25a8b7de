//! `[recorder]` of the configuration file.

use kevtmon_types::settings::{Valid, Values, settings};

settings! { "recorder":
    /// Whether the last minutes are recorded in the state directory.
    ENABLED: bool = "enabled", default true;
    /// How many minutes the flight recorder reaches back.
    MINUTES: u32 = "minutes", default 15, valid Valid::Range(1, 24 * 60);
    /// Maximum size of the flight recorder in MiB; recordings of incidents have a limit of their own.
    // The model and its changes must fit several times.
    MAX_MIB: u32 = "max_mib", default 16, valid Valid::Range(4, 1024);
}

/// What the flight recorder keeps in the state directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlightLimits {
    /// How far it reaches back.
    pub minutes: u32,
    /// Maximum size; recordings of incidents have a limit of their own.
    pub max_mib: u32,
}

impl FlightLimits {
    /// The configured limits; `None` if the flight recorder is disabled.
    pub fn from_values(values: &Values) -> Option<Self> {
        values.get(&ENABLED).then(|| Self { minutes: values.get(&MINUTES), max_mib: values.get(&MAX_MIB) })
    }
}
