//! What defines kinds of events, and severities.

use kevtmon_types::names::named;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Defines the kinds of events from a table: documentation, variant, and the name in JSON and metric labels.
macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// What happened. Readers show an unknown kind by its message.
        #[derive(
            Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord,
            serde::Serialize, serde::Deserialize, schemars::JsonSchema,
        )]
        #[schemars(inline)]
        pub enum Kind {
            $($(#[doc = $doc])+ #[serde(rename = $name)] $variant,)+
            /// A kind of a newer version; never written, only a lenient reader makes it.
            #[default]
            #[serde(rename = "unknown", skip_deserializing)]
            #[schemars(skip)]
            Unknown,
        }

        impl Kind {
            /// Every kind that is written, in the order of the documentation.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// As in the JSON and in metric labels.
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

named! {
    /// How bad an event is, least first.
    #[derive(
        Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
    )]
    Severity {
        /// Of use only for troubleshooting.
        #[default]
        Debug = "debug",
        /// Normal life of a node.
        Info = "info",
        /// Worth reading.
        Notice = "notice",
        /// Something is broken or about to break.
        Warning = "warning",
        /// An operator should act now.
        Critical = "critical",
    }
}

impl Severity {
    /// Most that is said of something that only claims to be of a pod: who made it may want to be heard.
    pub const CLAIMED_MAX: Self = Self::Warning;
}
