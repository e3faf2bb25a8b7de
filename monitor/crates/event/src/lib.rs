//! The public event schema, version 1: what every sink writes and every reader parses.
//!
//! One JSON object per event, snake_case, absent rather than null. An absent bool means *unknown*.
//! Integers that can pass 2^53 are strings. A field is added freely and never renamed.
//!
//! Each family of kinds has a file with its object. Doc comments of types and fields are the documentation that
//! `kevtmon schema` prints: their audience is readers of the JSON.

#[cfg(test)]
extern crate self as kevtmon_event;

use kevtmon_observation::{Source, Verdict};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod address;
mod address_conflict;
mod advice;
mod cni;
mod component;
pub mod culprit;
mod tenant;
pub use culprit::{Identity, identity};
mod daemon;
mod file_server;
mod incident;
mod kind;
mod leak;
mod link;
mod log;
mod mount;
mod neighbor;
mod neighbor_table;
mod nfs_server;
mod object;
mod objects;
mod rbd;
mod recreation;
mod reservation;
mod route;
mod rule;
mod sandbox;
mod schema;
mod shared;
mod subject;
mod sysctl;
#[cfg(test)]
mod test_support;
mod throttled;
mod time;
pub mod volume;
pub mod wording;

pub use address::Address;
pub use address_conflict::{AddressConflict, AddressedPod};
pub use advice::{Action, Advice, Form, NamedProcess, ProcessLink, Risk, form};
pub use cni::Cni;
pub use component::Component;
pub use daemon::{Daemon, Lost, SourceStates};
pub use file_server::MountServer;
pub use file_server::servers_phrase;
pub use incident::{CloseReason, EVIDENCE_MAX, HostCause, HostChange, Incident};
pub use kind::Severity;
pub use leak::{ContainerPart, LEAKS_MAX, LeakedMount, leak_holder};
pub use link::{Link, LinkPeer};
pub use log::Log;
pub use mount::{Mount, MountHolder, RefusedCall, Serves, StagedVolume, Unreadable, Volume};
pub use mount::{call_noun, refused_phrase};
pub use neighbor::Neighbor;
pub use neighbor_table::{NeighborCount, NeighborTable};
pub use nfs_server::{NfsServer, NfsServerMount};
pub use object::{Details, Object, Role, Visitor};
pub use objects::IncidentObjects;
pub use rbd::Rbd;
pub use recreation::{Recreation, RecreationReason, SpecHash};
pub use reservation::Reservation;
pub use route::Route;
pub use rule::Rule;
pub use sandbox::Sandbox;
pub use schema::{schema, schema_of};
pub use shared::{LastParties, Shared, SharedEvent};
pub use subject::{
    Actor, ActorSource, AncestorRef, Confidence, Container, Join, Pod, Target, TargetProcess, UserNamespace,
};
pub use sysctl::Sysctl;
pub use tenant::{Priority, Tenant};
pub use throttled::Throttled;
pub use time::{WallClock, span};

/// Version of the schema, in every event.
pub const SCHEMA: u32 = 1;

kind::kinds! {
    /// Required sources are live, optional ones were tried.
    DaemonReady = "daemon.ready",
    /// Something optional is missing.
    DaemonDegraded = "daemon.degraded",
    /// What was missing is back.
    DaemonRecovered = "daemon.recovered",
    /// The daemon ends.
    DaemonStopping = "daemon.stopping",
    /// Records were lost.
    EventsLost = "events.lost",
    /// A source was over its budget: what it did was counted and not reported one by one.
    EventsThrottled = "events.throttled",
    /// A permanent entry was set.
    NeighborAdded = "neighbor.added",
    /// A permanent entry got another address or lost its permanence.
    NeighborChanged = "neighbor.changed",
    /// An entry failed to resolve.
    NeighborFailed = "neighbor.failed",
    /// A permanent entry is gone, or a gateway's that may have been one.
    NeighborDeleted = "neighbor.deleted",
    /// A link appeared.
    LinkCreated = "link.created",
    /// A link changed.
    LinkChanged = "link.changed",
    /// Whether the host answers by a link for addresses that are not its own (`proxy_arp`, `proxy_ndp`) changed.
    LinkProxyArp = "link.proxy_arp",
    /// A link went to another namespace.
    LinkMoved = "link.moved",
    /// A link is gone.
    LinkDeleted = "link.deleted",
    /// A pod's gateway route or route to a pod appeared.
    RouteAdded = "route.added",
    /// Such a route is gone.
    RouteDeleted = "route.deleted",
    /// A routing rule appeared that selects by an address or the host's interface of a pod.
    RuleAdded = "rule.added",
    /// Such a rule is gone.
    RuleDeleted = "rule.deleted",
    /// An address was added: a pod's, of the host's end of its pair, or its gateway on the host.
    AddressAdded = "address.added",
    /// Such an address is gone.
    AddressDeleted = "address.deleted",
    /// A process wrote another value to a sysctl of the network.
    SysctlChanged = "sysctl.changed",
    /// An unmount was refused because something holds the mount.
    MountBusy = "mount.busy",
    /// A mount was refused because something else uses the device, or something else is mounted there.
    MountRefused = "mount.refused",
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
    /// A container of a pod was made instead of another one, and started.
    ContainerRecreated = "container.recreated",
    /// A runtime or kubelet calls a CNI plugin.
    CniStarted = "cni.started",
    /// A call of CNI plugins has ended.
    CniFinished = "cni.finished",
    /// A kubelet or runtime was started.
    ComponentStarted = "component.started",
    /// A kubelet or runtime has ended.
    ComponentExited = "component.exited",
    /// The kernel has mapped a Ceph RBD image.
    RbdMapped = "rbd.mapped",
    /// A Ceph RBD image is no longer mapped.
    RbdUnmapped = "rbd.unmapped",
    /// A log says that this node was refused a Ceph RBD image.
    RbdAttachRefused = "rbd.attach_refused",
    /// A log says something that belongs to an incident, or may lead to one.
    LogQuoted = "log.quoted",
    /// An incident opened.
    IncidentOpened = "incident.opened",
    /// An open incident was observed again, got worse or is better understood.
    IncidentUpdated = "incident.updated",
    /// An incident closed.
    IncidentClosed = "incident.closed",
}

/// One observed fact, joined with the model of the node. What is unknown is absent, never null. Fields and
/// kinds are added freely and never renamed: readers ignore unknown ones.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "kevtmon event")]
pub struct Event {
    /// Version of this schema.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: u32,
    /// Wall-clock time of the fact, RFC 3339, UTC, nanoseconds.
    #[schemars(extend("format" = "date-time"))]
    pub time: String,
    /// The same moment on the boot clock, in nanoseconds; not part of the JSON.
    #[serde(skip)]
    pub at: u64,
    /// Which source observed the fact; not part of the JSON.
    #[serde(skip)]
    pub source: Source,
    /// The tenant of it; not part of the JSON.
    #[serde(skip)]
    pub tenant: Tenant,
    /// Sequence number: rises by one per event of this boot.
    pub seq: u64,
    /// Identity of the boot: `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// Node name.
    pub node: String,
    /// What happened. Readers show an unknown kind by its message.
    pub kind: Kind,
    /// How bad it is.
    pub severity: Severity,
    /// One sentence, for people.
    pub message: String,
    /// Whether it was found when all was read again, and not told by the kernel as it happened: that was some time before, and
    /// who did it was not seen.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub resync: bool,
    /// The process that did it.
    pub actor: Option<Shared<Actor>>,
    /// The container and pod that are affected.
    pub target: Option<Shared<Target>>,
    /// The neighbor entry, for `neighbor.*`.
    pub neighbor: Option<Box<Neighbor>>,
    /// The address that several pods have, for incidents of kind `duplicate-pod-ip`.
    pub address_conflict: Option<Box<AddressConflict>>,
    /// The kernel's table of neighbor entries, for incidents of kind `neighbor-table-full`.
    pub neighbor_table: Option<Box<NeighborTable>>,
    /// The reservation of an address that a pod has, for incidents of kind `ipam-drift`.
    pub reservation: Option<Box<Reservation>>,
    /// The network interface, for `link.*`, and for incidents of kinds `orphan-veth` and `netns-never-ends`.
    pub link: Option<Box<Link>>,
    /// The route, for `route.*`.
    pub route: Option<Box<Route>>,
    /// The routing rule, for `rule.*`.
    pub rule: Option<Box<Rule>>,
    /// The address, for `address.*`.
    pub address: Option<Box<Address>>,
    /// The sysctl, for `sysctl.*`.
    pub sysctl: Option<Box<Sysctl>>,
    /// The call of a CNI plugin, for `cni.*`.
    pub cni: Option<Box<Cni>>,
    /// The sandbox that a container lacks.
    pub sandbox: Option<Box<Sandbox>>,
    /// The mount and the call that was made on it, for `mount.*`.
    pub mount: Option<Box<Mount>>,
    /// Who pins the mount, for `mount.busy`; who uses the device, for `mount.refused`; who still uses it, for `mount.detached`;
    /// what keeps the network namespace of the other end, for incidents of kind `orphan-veth`; who holds the device, for those of
    /// kind `rbd-orphan-mapping`.
    pub holders: Option<Vec<MountHolder>>,
    /// How long before the event its holders were found, milliseconds; absent where they were found for it.
    pub holders_age_ms: Option<u64>,
    /// Whether all was looked at that could be the reason. Where somebody who sees the mount explains a refusal, who does not see it
    /// is not looked at.
    pub holders_complete: Option<bool>,
    /// What the holder scan could not read; a holder may be among it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub holders_unreadable: Vec<Unreadable>,
    /// What the holder scan concludes.
    pub holders_verdict: Option<Verdict>,
    /// Mounts that are left in the mount namespace of the actor, for incidents of kind `mount-leak`.
    pub leaks: Option<Vec<LeakedMount>>,
    /// Sequence number of the event of the same call that this one completes: its holders were not all looked for when
    /// that was emitted.
    pub completes: Option<u64>,
    /// What a container was made instead of, for `container.recreated`.
    pub recreation: Option<Box<Recreation>>,
    /// The kubelet or runtime, for `component.*`.
    pub component: Option<Box<Component>>,
    /// The Ceph RBD image, for `rbd.*` and incidents of kinds `rbd-orphan-mapping`, `rbd-locked-elsewhere` and `rbd-lock-left`.
    pub rbd: Option<Box<Rbd>>,
    /// The server of NFS, for incidents of kind `nfs-server-unresponsive`.
    pub nfs_server: Option<Box<NfsServer>>,
    /// The line of a log, for `rbd.attach_refused` and `log.quoted`.
    pub log: Option<Box<Log>>,
    /// What was lost or discarded, for `events.lost`.
    pub lost: Option<Lost>,
    /// What was over a budget, for `events.throttled`.
    pub throttled: Option<Box<Throttled>>,
    /// The diagnosis, for `incident.*`.
    pub incident: Option<Box<Incident>>,
    /// The daemon's own state, for `daemon.*`.
    pub daemon: Option<Daemon>,
}

impl Event {
    /// An event without objects, time and place.
    pub fn new(kind: Kind, severity: Severity, message: String) -> Self {
        Self { schema: SCHEMA, kind, severity, message, ..Self::default() }
    }

    /// Reports the parties of the event: its target, its actor, and what its objects are about.
    pub fn visit(&self, visitor: &mut dyn Visitor) {
        if let Some(target) = &self.target {
            visitor.owner(Role::Target, target.container.as_ref(), target.pod.as_ref());
            if let Some(process) = &target.process {
                visitor.process(Role::Target, process.pid, &process.comm);
            }
            if let Some(name) = &target.netns_name {
                visitor.namespace(Role::Target, name);
            }
        }
        if let Some(actor) = &self.actor {
            visitor.process(Role::Actor, actor.pid, &actor.comm);
            visitor.owner(Role::Actor, actor.container.as_ref(), actor.pod.as_ref());
        }
        for object in self.objects() {
            object.visit(visitor);
        }
    }

    /// The objects of the event, in the order of the schema.
    pub fn objects(&self) -> impl Iterator<Item = &dyn Object> {
        fn object<T: Object>(object: Option<&T>) -> Option<&dyn Object> {
            object.map(|object| object as &dyn Object)
        }
        [
            object(self.neighbor.as_deref()),
            object(self.address_conflict.as_deref()),
            object(self.neighbor_table.as_deref()),
            object(self.reservation.as_deref()),
            object(self.link.as_deref()),
            object(self.route.as_deref()),
            object(self.rule.as_deref()),
            object(self.address.as_deref()),
            object(self.sysctl.as_deref()),
            object(self.cni.as_deref()),
            object(self.sandbox.as_deref()),
            object(self.mount.as_deref()),
            object(self.holders.as_ref()),
            object(self.leaks.as_ref()),
            object(self.recreation.as_deref()),
            object(self.component.as_deref()),
            object(self.rbd.as_deref()),
            object(self.nfs_server.as_deref()),
            object(self.log.as_deref()),
            object(self.lost.as_ref()),
            object(self.throttled.as_deref()),
            object(self.incident.as_deref()),
            object(self.daemon.as_ref()),
        ]
        .into_iter()
        .flatten()
    }
}
