//! How many events each unprivileged account may have.

use serde::{Deserialize, Serialize};

use super::setting::{Valid, Values, settings};

settings! { "events":
    /// Events a second that one unprivileged account may have on average: a user, with all that is his. What is beyond
    /// that is counted, and summed up by kind in `events.throttled`; incidents, and what is about pods, containers or the
    /// gateways of the node, are exempt.
    // Each is a kilobyte in every sink, and concerns nobody else.
    USER_RATE: u32 = "user_rate", default 4, valid Valid::Range(1, 1_000_000);
    /// Events that it may have at once, and has back after a pause.
    USER_BURST: u32 = "user_burst", default 64, valid Valid::Range(1, 1_000_000);
}

/// The configured rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserEvents {
    /// Events a second.
    pub rate: u32,
    /// Events at once.
    pub burst: u32,
}

impl UserEvents {
    /// The configured rate.
    #[must_use]
    pub fn from_values(values: &Values) -> Self {
        Self { rate: values.get(&USER_RATE), burst: values.get(&USER_BURST) }
    }

    /// No limit: recordings of before there was one have all events.
    #[must_use]
    pub fn unlimited() -> Self {
        Self { rate: u32::MAX, burst: u32::MAX }
    }
}

impl Default for UserEvents {
    fn default() -> Self {
        Self { rate: (USER_RATE.default)(), burst: (USER_BURST.default)() }
    }
}
