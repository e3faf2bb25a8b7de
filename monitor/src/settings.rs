//! What the operator decides and the core, the diagnoses and the configuration share.

use std::collections::BTreeMap;

use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};

use crate::names::names;
use crate::namespace::NsInum;

names! {
    /// Whose command lines are kept.
    Cmdline {
        /// Nobody's.
        Off = "off",
        /// Those of processes outside containers.
        Host = "host",
        /// Everybody's.
        All = "all",
    }
}

/// What does not change while the daemon runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Node name.
    pub node: String,
    /// Identity of this boot.
    pub boot_id: String,
    /// Version of the program.
    pub version: String,
    /// The host's network namespace.
    pub host_netns: NsInum,
    /// Whose command lines are shown.
    pub cmdline: Cmdline,
    /// When trouble is an incident.
    #[serde(default)]
    pub incidents: Thresholds,
    /// Sources that must have reported before the daemon is ready; `true` where absence is an everyday
    /// case and no degradation.
    pub sources: BTreeMap<String, bool>,
}

/// Thresholds of the diagnoses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Thresholds {
    /// A learned gateway entry may stay unresolved for so long.
    pub learned_gateway_failed_seconds: u32,
    /// A lost gateway is critical after so long.
    pub gateway_critical_seconds: u32,
    /// What is seen in the tables only must still be so after so long.
    pub gateway_confirm_seconds: u32,
    /// A pod younger than that may not have its gateway yet.
    pub gateway_young_pod_seconds: u32,
    /// A pod whose network is taken away as a whole may live on for so long: it is being deleted.
    pub gateway_teardown_seconds: u32,
    /// A pod without static gateway entry has lost it if so many like it have one, …
    pub gateway_static_pods: u32,
    /// … and such a share of all like it.
    #[serde(deserialize_with = "percent")]
    pub gateway_static_percent: u32,
    /// A busy volume is worth a warning after so many refused attempts to unmount it, …
    pub volume_busy_warning_attempts: u32,
    /// … or after so long.
    pub volume_busy_warning_seconds: u32,
    /// A busy volume is critical after so long.
    pub volume_busy_critical_seconds: u32,
    /// Nobody tries to unmount it any more after so long without an attempt.
    pub volume_busy_expire_seconds: u32,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            learned_gateway_failed_seconds: 10,
            gateway_critical_seconds: 60,
            gateway_confirm_seconds: 5,
            gateway_young_pod_seconds: 60,
            gateway_teardown_seconds: 60,
            gateway_static_pods: 3,
            gateway_static_percent: 80,
            volume_busy_warning_attempts: 3,
            volume_busy_warning_seconds: 30,
            volume_busy_critical_seconds: 15 * 60,
            volume_busy_expire_seconds: 30 * 60,
        }
    }
}

fn percent<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    match i64::deserialize(from)? {
        percent @ 1..=100 => u32::try_from(percent).map_err(D::Error::custom),
        other => Err(D::Error::custom(format!("{other} is not valid: expected 1 to 100"))),
    }
}
