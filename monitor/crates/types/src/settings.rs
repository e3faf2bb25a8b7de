//! Settings: their descriptions, their values, and those that the core reads.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::names::names;
use crate::namespace::NsInum;

pub mod event_rates;
pub mod setting;
mod threshold;

pub use event_rates::EventRate;
pub use setting::settings;
pub use setting::{Description, Setting, Stored, Valid, Values};
pub use threshold::thresholds;
pub use threshold::{Threshold, Thresholds, Unit};

names! {
    /// Processes whose command lines are shown.
    Cmdline {
        /// None.
        Off = "off",
        /// Those outside containers.
        Host = "host",
        /// All.
        All = "all",
    }
}

settings! { "":
    /// Processes whose command lines events show, with secrets masked: none, those outside containers (host), or all.
    CMDLINE: Cmdline = "cmdline", default Cmdline::Host, valid Valid::OneOf(Cmdline::NAMES);
}

/// What the operator may change for a recording that is replayed; of it, a running daemon adopts `cmdline` only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Processes whose command lines are shown.
    pub cmdline: Cmdline,
    /// Thresholds of the diagnoses.
    pub incidents: Thresholds,
}

impl Policy {
    /// Replaces these values in the settings of a core.
    pub fn apply_to(&self, settings: &mut Settings) {
        settings.cmdline = self.cmdline;
        settings.incidents = self.incidents.clone();
    }
}

/// What does not change while the daemon runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    pub node: String,
    /// Identity of this boot.
    pub boot_id: String,
    /// Version of the program.
    pub version: String,
    /// The host's network namespace.
    pub host_netns: NsInum,
    /// Processes whose command lines are shown.
    pub cmdline: Cmdline,
    /// Thresholds of the diagnoses.
    #[serde(default)]
    pub incidents: Thresholds,
    /// How many events each unprivileged account may have.
    #[serde(default = "EventRate::unlimited")]
    pub user_events: EventRate,
    /// How many events of its own network each container may have.
    #[serde(default = "EventRate::unlimited")]
    pub container_events: EventRate,
    /// Sources that must have reported before the daemon is ready; `true` where absence is normal
    /// and no degradation.
    pub sources: BTreeMap<String, bool>,
}
