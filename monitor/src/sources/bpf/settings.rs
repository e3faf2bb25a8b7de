//! `[hooks]` of the configuration file: each hook, and the ring buffer.

use super::BpfConfig;
use super::hooks::{HOOKS, HookChoices};
use crate::settings::{Description, Valid, Values, settings};

settings! { "hooks":
    /// Size of the ring buffer in KiB; it counts twice as resident memory.
    // Its pages are mapped twice; a smaller one does not survive a burst.
    RING_KIB: u32 = "ring_kib", default 1024, valid Valid::PowerOfTwo(64, 2048);
}

/// All of the table, in the order of the file.
pub fn descriptions() -> impl Iterator<Item = &'static dyn Description> {
    HOOKS.iter().map(|hook| *hook as &dyn Description).chain(SETTINGS.iter().copied())
}

impl BpfConfig {
    /// The configured value.
    #[must_use]
    pub fn from_values(values: &Values, log: bool) -> Self {
        Self { ring_bytes: values.get(&RING_KIB) << 10, hooks: HookChoices::from_values(values), log }
    }
}
