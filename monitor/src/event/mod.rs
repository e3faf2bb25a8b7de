//! The public event schema, version 1: what every sink writes and every reader parses.
//!
//! One JSON object per event, snake_case, absent rather than null. An absent bool means *unknown*.
//! Integers that can pass 2^53 are strings. A field is added freely and never renamed.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::observation::Source;

mod incident;
mod object;
mod shared;
mod subject;
mod time;
pub(crate) mod wording;

pub use incident::{Advice, CloseReason, EVIDENCE_MAX, Incident, Risk};
pub use object::{Daemon, Link, LinkPeer, Lost, Mount, MountHolder, Neighbor, Route, Serves, Volume};
pub use shared::SharedEvent;
pub use subject::{Actor, ActorSource, AncestorRef, Confidence, Container, Join, Pod, Target};
pub use time::WallClock;

/// Version of the schema, in every event.
pub const SCHEMA: u32 = 1;

/// One observed fact, joined with what is known of the node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Wall-clock time of the fact, RFC 3339, UTC, nanoseconds.
    pub time: String,
    /// The same moment on the boot clock, in nanoseconds; not part of the JSON.
    #[serde(skip)]
    pub at: u64,
    /// Which source observed the fact; not part of the JSON.
    #[serde(skip)]
    pub source: Source,
    /// Rises by one per event of this boot.
    pub seq: u64,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// Node name.
    pub node: String,
    /// What it is.
    pub kind: Kind,
    /// How bad it is.
    pub severity: Severity,
    /// One sentence for a person.
    pub message: String,
    /// Who did it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub actor: Option<Box<Actor>>,
    /// Whose it was.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub target: Option<Box<Target>>,
    /// For `neighbor.*`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub neighbor: Option<Box<Neighbor>>,
    /// For `link.*`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub link: Option<Box<Link>>,
    /// For `route.*`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub route: Option<Box<Route>>,
    /// For `mount.*`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mount: Option<Box<Mount>>,
    /// Who pins the mount, for `mount.busy`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub holders: Option<Vec<MountHolder>>,
    /// Whether the holder scan saw everything.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub holders_complete: Option<bool>,
    /// What the holder scan concludes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub holders_verdict: Option<crate::observation::Verdict>,
    /// For `events.lost`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lost: Option<Lost>,
    /// For `incident.*`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub incident: Option<Box<Incident>>,
    /// For `daemon.*`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub daemon: Option<Daemon>,
}

impl Event {
    /// An event that is about nothing yet and was told by nobody.
    #[must_use]
    pub fn new(kind: Kind, severity: Severity, message: String) -> Self {
        Self {
            schema: SCHEMA,
            time: String::new(),
            at: 0,
            source: Source::Daemon,
            seq: 0,
            boot_id: String::new(),
            node: String::new(),
            kind,
            severity,
            message,
            actor: None,
            target: None,
            neighbor: None,
            link: None,
            route: None,
            mount: None,
            holders: None,
            holders_complete: None,
            holders_verdict: None,
            lost: None,
            incident: None,
            daemon: None,
        }
    }
}

/// Kinds of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// Required sources are live, optional ones were tried.
    #[serde(rename = "daemon.ready")]
    DaemonReady,
    /// Something optional is missing.
    #[serde(rename = "daemon.degraded")]
    DaemonDegraded,
    /// The daemon ends.
    #[serde(rename = "daemon.stopping")]
    DaemonStopping,
    /// Records were lost.
    #[serde(rename = "events.lost")]
    EventsLost,
    /// A permanent entry was set.
    #[serde(rename = "neighbor.added")]
    NeighborAdded,
    /// A permanent entry got another address or lost its permanence.
    #[serde(rename = "neighbor.changed")]
    NeighborChanged,
    /// An entry failed to resolve.
    #[serde(rename = "neighbor.failed")]
    NeighborFailed,
    /// A permanent entry is gone.
    #[serde(rename = "neighbor.deleted")]
    NeighborDeleted,
    /// A link appeared.
    #[serde(rename = "link.created")]
    LinkCreated,
    /// A link changed.
    #[serde(rename = "link.changed")]
    LinkChanged,
    /// A link went to another namespace.
    #[serde(rename = "link.moved")]
    LinkMoved,
    /// A link is gone.
    #[serde(rename = "link.deleted")]
    LinkDeleted,
    /// A pod's gateway route or route to a pod appeared.
    #[serde(rename = "route.added")]
    RouteAdded,
    /// A pod's gateway route or route to a pod is gone.
    #[serde(rename = "route.deleted")]
    RouteDeleted,
    /// An unmount was refused because something holds the mount.
    #[serde(rename = "mount.busy")]
    MountBusy,
    /// A mount that was busy is unmounted.
    #[serde(rename = "mount.released")]
    MountReleased,
    /// A mount was detached lazily (`MNT_DETACH`).
    #[serde(rename = "mount.detached")]
    MountDetached,
    /// A container was created.
    #[serde(rename = "container.created")]
    ContainerCreated,
    /// A container runs.
    #[serde(rename = "container.started")]
    ContainerStarted,
    /// A container ended.
    #[serde(rename = "container.exited")]
    ContainerExited,
    /// A container was removed.
    #[serde(rename = "container.removed")]
    ContainerRemoved,
    /// An incident opened.
    #[serde(rename = "incident.opened")]
    IncidentOpened,
    /// An open incident was seen again, got worse or is better understood.
    #[serde(rename = "incident.updated")]
    IncidentUpdated,
    /// An incident closed.
    #[serde(rename = "incident.closed")]
    IncidentClosed,
    /// A kind of a newer version; only a reader that is lenient makes it.
    #[serde(rename = "unknown", skip_deserializing)]
    Unknown,
}

impl Kind {
    /// Every kind that is written, in the order of the documentation.
    pub const ALL: [Self; 24] = [
        Self::DaemonReady,
        Self::DaemonDegraded,
        Self::DaemonStopping,
        Self::EventsLost,
        Self::NeighborAdded,
        Self::NeighborChanged,
        Self::NeighborFailed,
        Self::NeighborDeleted,
        Self::LinkCreated,
        Self::LinkChanged,
        Self::LinkMoved,
        Self::LinkDeleted,
        Self::RouteAdded,
        Self::RouteDeleted,
        Self::MountBusy,
        Self::MountReleased,
        Self::MountDetached,
        Self::ContainerCreated,
        Self::ContainerStarted,
        Self::ContainerExited,
        Self::ContainerRemoved,
        Self::IncidentOpened,
        Self::IncidentUpdated,
        Self::IncidentClosed,
    ];

    /// As in the JSON and in metric labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::DaemonReady => "daemon.ready",
            Self::DaemonDegraded => "daemon.degraded",
            Self::DaemonStopping => "daemon.stopping",
            Self::EventsLost => "events.lost",
            Self::NeighborAdded => "neighbor.added",
            Self::NeighborChanged => "neighbor.changed",
            Self::NeighborFailed => "neighbor.failed",
            Self::NeighborDeleted => "neighbor.deleted",
            Self::LinkCreated => "link.created",
            Self::LinkChanged => "link.changed",
            Self::LinkMoved => "link.moved",
            Self::LinkDeleted => "link.deleted",
            Self::RouteAdded => "route.added",
            Self::RouteDeleted => "route.deleted",
            Self::MountBusy => "mount.busy",
            Self::MountReleased => "mount.released",
            Self::MountDetached => "mount.detached",
            Self::ContainerCreated => "container.created",
            Self::ContainerStarted => "container.started",
            Self::ContainerExited => "container.exited",
            Self::ContainerRemoved => "container.removed",
            Self::IncidentOpened => "incident.opened",
            Self::IncidentUpdated => "incident.updated",
            Self::IncidentClosed => "incident.closed",
            Self::Unknown => "unknown",
        }
    }
}

/// How bad an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
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

    /// As in the JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

/// Addresses in an event, sorted so that equal facts print equally.
pub type Addresses = Vec<IpAddr>;

/// Named states of sources, for `daemon.*`.
pub type SourceStates = BTreeMap<String, String>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_kind_is_its_json() {
        for kind in Kind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }
}
