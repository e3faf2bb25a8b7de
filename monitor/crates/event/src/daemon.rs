//! The daemon's own state, and its losses.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Details, Object};

/// States or reasons by the name of a source.
pub type SourceStates = BTreeMap<String, String>;

/// The daemon itself, for `daemon.*`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Daemon {
    /// Version of the program.
    pub version: String,
    /// Sources that deliver, with their attach mode.
    pub sources: SourceStates,
    /// What is missing, with the reason.
    #[serde(skip_serializing_if = "SourceStates::is_empty", default)]
    pub degraded: SourceStates,
}

impl Daemon {
    /// How it is, in one line.
    pub fn summary(&self) -> String {
        let sources = format!("{} sources", self.sources.len());
        match self.degraded.len() {
            0 => sources,
            _ => {
                let names: Vec<&str> = self.degraded.keys().map(String::as_str).collect();
                format!("{sources}; degraded: {}", names.join(", "))
            }
        }
    }
}

/// What was lost or discarded, for `events.lost`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Lost {
    /// `bpf`, `netlink`, `cni`, `sink.stdout`, …
    pub source: String,
    /// Why.
    pub reason: String,
    /// A number, or `unknown`.
    #[schemars(regex(pattern = "^([0-9]+|unknown)$"))]
    pub count: String,
    /// Start of the window, RFC 3339.
    #[schemars(extend("format" = "date-time"))]
    pub from: Option<String>,
    /// End of the window, RFC 3339.
    #[schemars(extend("format" = "date-time"))]
    pub to: Option<String>,
}

impl Lost {
    /// The source of calls of CNI plugins that the model had no room for.
    pub const CNI: &str = "cni";
}

impl Object for Daemon {
    fn describe(&self, details: &mut dyn Details) {
        let sources: Vec<String> =
            self.sources.iter().map(|(source, state)| format!("{source} {state}")).collect();
        if !sources.is_empty() {
            details.line("with", &sources.join(" · "));
        }
        for (index, (source, reason)) in self.degraded.iter().enumerate() {
            details.line(if index == 0 { "lacks" } else { "" }, &format!("{source}: {reason}"));
        }
    }
}

impl Object for Lost {
    fn describe(&self, details: &mut dyn Details) {
        let mut line = format!("{} from {} ({})", self.count, self.source, self.reason);
        if let (Some(from), Some(to)) = (&self.from, &self.to) {
            line.push_str(&format!(", {} to {}", details.clock(from), details.clock(to)));
        }
        details.line("lost", &line);
    }
}
