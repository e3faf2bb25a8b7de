//! `[store]` of the configuration file.

use std::time::Duration;

use kevtmon_types::settings::{Valid, Values, settings};

use super::Limits;

const DAY: u64 = 86_400;

settings! { "store":
    /// Whether events and incidents are kept in the state directory.
    ENABLED: bool = "enabled", default true;
    /// Events are kept for this many days.
    MAX_AGE_DAYS: u64 = "max_age_days", default 7, valid Valid::Range(1, 3650);
    /// Maximum size of the store in MiB, including its write-ahead log.
    // A storm needs some of it for the log.
    MAX_MIB: u64 = "max_mib", default 64, valid Valid::Range(8, 1 << 20);
}

impl Limits {
    /// The configured limits; `None` if the store is disabled.
    pub fn from_values(values: &Values) -> Option<Self> {
        values.get(&ENABLED).then(|| Self {
            max_age: Duration::from_secs(values.get(&MAX_AGE_DAYS) * DAY),
            max_bytes: values.get(&MAX_MIB) << 20,
        })
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_age: Duration::from_secs((MAX_AGE_DAYS.default)() * DAY),
            max_bytes: (MAX_MIB.default)() << 20,
        }
    }
}
