//! How many events each account may have: of a user, and of a container.

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
    /// Events a second of the links, routes, neighbor entries and sysctls of one container or pod, as far as nobody else changes
    /// them, on average. What is beyond that is counted, and summed up by kind in `events.throttled`; incidents are exempt,
    /// and take it into account.
    // With CAP_NET_ADMIN it can make tens of thousands.
    CONTAINER_RATE: u32 = "container_rate", default 16, valid Valid::Range(1, 1_000_000);
    /// Events that it may have at once, and has back after a pause.
    CONTAINER_BURST: u32 = "container_burst", default 512, valid Valid::Range(1, 1_000_000);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRate {
    pub rate: u32,
    pub burst: u32,
}

impl EventRate {
    /// The configured rate of an unprivileged user.
    pub fn of_users(values: &Values) -> Self {
        Self { rate: values.get(&USER_RATE), burst: values.get(&USER_BURST) }
    }

    /// The configured rate of a container.
    pub fn of_containers(values: &Values) -> Self {
        Self { rate: values.get(&CONTAINER_RATE), burst: values.get(&CONTAINER_BURST) }
    }

    /// No limit, as where a recording names none.
    pub fn unlimited() -> Self {
        Self { rate: u32::MAX, burst: u32::MAX }
    }
}
