//! What defines kinds of events, and severities.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Defines the kinds of events from a table: documentation, variant, and the name in JSON and metric labels.
macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// What happened. Readers show an unknown kind by its message.
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord,
            serde::Serialize, serde::Deserialize, schemars::JsonSchema,
        )]
        #[schemars(inline)]
        pub enum Kind {
            $($(#[doc = $doc])+ #[serde(rename = $name)] $variant,)+
            /// A kind of a newer version; never written, only a lenient reader makes it.
            #[serde(rename = "unknown", skip_deserializing)]
            #[schemars(skip)]
            Unknown,
        }

        impl Kind {
            /// Every kind that is written, in the order of the documentation.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// As in the JSON and in metric labels.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                    Self::Unknown => "unknown",
                }
            }
        }
    };
}

pub(super) use kinds;

/// How bad an event is, least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Of use only for troubleshooting.
    Debug,
    /// Normal life of a node.
    Info,
    /// Worth reading.
    Notice,
    /// Something is broken or about to break.
    Warning,
    /// An operator should act now.
    Critical,
}

impl Severity {
    /// Most that is said of something that only claims to be of a pod: who made it may want to be heard.
    pub const CLAIMED_MAX: Self = Self::Warning;

    /// Every severity, least first.
    pub const ALL: [Self; 5] = [Self::Debug, Self::Info, Self::Notice, Self::Warning, Self::Critical];

    /// Names of all severities, least first.
    pub const NAMES: &'static [&'static str] = &[
        Self::Debug.name(),
        Self::Info.name(),
        Self::Notice.name(),
        Self::Warning.name(),
        Self::Critical.name(),
    ];

    /// As in the JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_severity_is_its_json() {
        for severity in Severity::ALL {
            assert_eq!(serde_json::to_value(severity).unwrap(), severity.name());
        }
    }
}
