//! Kinds of events, in one table, and severities.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Defines [`Kind`]: documentation, variant, and the name in JSON and metric labels.
macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// What happened. Readers show a kind that they do not know by its message.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
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

kinds! {
    /// Required sources are live, optional ones were tried.
    DaemonReady = "daemon.ready",
    /// Something optional is missing.
    DaemonDegraded = "daemon.degraded",
    /// The daemon ends.
    DaemonStopping = "daemon.stopping",
    /// Records were lost.
    EventsLost = "events.lost",
    /// A permanent entry was set.
    NeighborAdded = "neighbor.added",
    /// A permanent entry got another address or lost its permanence.
    NeighborChanged = "neighbor.changed",
    /// An entry failed to resolve.
    NeighborFailed = "neighbor.failed",
    /// A permanent entry is gone.
    NeighborDeleted = "neighbor.deleted",
    /// A link appeared.
    LinkCreated = "link.created",
    /// A link changed.
    LinkChanged = "link.changed",
    /// A link went to another namespace.
    LinkMoved = "link.moved",
    /// A link is gone.
    LinkDeleted = "link.deleted",
    /// A pod's gateway route or route to a pod appeared.
    RouteAdded = "route.added",
    /// A pod's gateway route or route to a pod is gone.
    RouteDeleted = "route.deleted",
    /// An unmount was refused because something holds the mount.
    MountBusy = "mount.busy",
    /// A mount that was busy is unmounted.
    MountReleased = "mount.released",
    /// A mount was detached lazily (`MNT_DETACH`).
    MountDetached = "mount.detached",
    /// A container was created.
    ContainerCreated = "container.created",
    /// A container runs.
    ContainerStarted = "container.started",
    /// A container ended.
    ContainerExited = "container.exited",
    /// A container was removed.
    ContainerRemoved = "container.removed",
    /// An incident opened.
    IncidentOpened = "incident.opened",
    /// An open incident was seen again, got worse or is better understood.
    IncidentUpdated = "incident.updated",
    /// An incident closed.
    IncidentClosed = "incident.closed",
}

/// How bad an event is, least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Of use only when looking for something.
    Debug,
    /// Normal life of a node.
    Info,
    /// Worth reading.
    Notice,
    /// Something is broken or about to break.
    Warning,
    /// Somebody should act now.
    Critical,
}

impl Severity {
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
    fn the_name_of_a_kind_is_its_json() {
        for kind in Kind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
        for severity in Severity::ALL {
            assert_eq!(serde_json::to_value(severity).unwrap(), severity.name());
        }
    }
}
