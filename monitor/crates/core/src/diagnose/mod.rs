//! Finds incidents: what is wrong now, since when, and why.
//!
//! Each kind of incident is one file and one line in [`KINDS`]. A diagnosis gets events, changes of the model and time,
//! and reports [`Findings`]; the [`Engine`] turns them into incidents, gives those an id and decides when an event is
//! emitted. Neither does I/O or reads a clock: what only I/O can find out is requested.

use std::fmt::Debug;
use std::net::IpAddr;

use kevtmon_event::{Actor, Event, MountServer, Rbd, Shared, WallClock};
use kevtmon_observation::{
    BootNs, CephServerLine, FoundObstacle, HostNeighbor, MountFacts, NeighborCreator, NeighborKey,
    NeighborTable, NfsMounts, NfsServerLine, NsInum, PodRoute, PolicyRule, SandboxCheckpoint,
};
use kevtmon_types::clock::SECOND;
use kevtmon_types::settings::{Threshold, Thresholds};
use serde_json::Value;

use crate::node::cni::Call;
use crate::node::mounts::BusyMount;
use crate::node::rbd_calls::RbdCall;
use crate::node::view::NodeView;

/// The same in all diagnoses that have thresholds, and otherwise only fields that are saved.
macro_rules! with_thresholds {
    () => {
        fn kind(&self) -> &'static str {
            KIND
        }

        fn set_thresholds(&mut self, thresholds: &Thresholds) {
            self.thresholds = thresholds.clone();
        }

        fn save(&self) -> Result<serde_json::Value, serde_json::Error> {
            serde_json::to_value(self)
        }

        fn restore(&mut self, saved: serde_json::Value) -> Result<(), serde_json::Error> {
            let thresholds = self.thresholds.clone();
            *self = Self { thresholds, ..serde_json::from_value(saved)? };
            Ok(())
        }
    };
    (by timers) => {
        fn deadline(&self) -> Option<BootNs> {
            self.timers.next()
        }

        with_thresholds!();
    };
}

mod advice;
mod cni_netns_mismatch;
mod cni_teardown_failing;
mod conditions;
mod container_undeletable;
mod downs;
mod duplicate_pod_ip;
mod engine;
mod file_server_lost;
mod finding;
mod flapping;
mod gateway_neighbor_lost;
mod identity;
mod incidents;
mod ipam_drift;
mod kind;
mod kubelet_crash_loop;
mod mount_leak;
mod mount_multiplied;
mod multi_pod_disruption;
mod neighbor_table_full;
mod netns_never_ends;
mod nfs_server_unresponsive;
mod orphan_container;
mod orphan_veth;
mod pod_neighbor_unreachable;
mod pod_network;
mod pod_route_missing;
mod pod_stuck_terminating;
mod pod_volume_lost;
mod rbd_lock_left;
mod rbd_locked_elsewhere;
mod rbd_orphan_mapping;
mod rereads;
mod route_flapping;
mod sandbox_crash_loop;
mod sandbox_network_replaced;
mod spec_hash_storm;
mod stale_cni_del;
mod suspicion;
mod timers;
mod umount_hung;
mod volume_busy;

pub use engine::{Engine, IncidentChange, RestoreError, Saved};
pub use file_server_lost::{KIND as FILE_SERVER_LOST, UnservedMount};
pub use finding::{Count, Finding, Findings, IncidentKey, IncidentObjects, Repeat, Report};
pub use flapping::QuietPeriod;
pub(crate) use gateway_neighbor_lost::health::{Health, health};
pub use incidents::{Incidents, OpenIncident, Recount};
pub use kind::{Alert, IncidentKind, Watch};
pub use mount_leak::{Leak, Leaks};
pub use orphan_veth::VethEnd;
pub use rbd_orphan_mapping::{ImageUse, Usage};
pub use sandbox_crash_loop::is_folded;
pub use suspicion::Suspicion;
pub use umount_hung::Waiting;
pub use volume_busy::LEFT_VOLUME;

/// Every kind, causes before their effects: a later diagnosis can link what an earlier one found in the same event. A stale CNI
/// call is a cause only for what it did, so it comes behind that.
pub const KINDS: [&IncidentKind; 30] = [
    &cni_teardown_failing::SPEC,
    &neighbor_table_full::SPEC,
    &gateway_neighbor_lost::SPEC,
    &netns_never_ends::SPEC,
    &orphan_veth::SPEC,
    &ipam_drift::SPEC,
    &duplicate_pod_ip::SPEC,
    &pod_neighbor_unreachable::SPEC,
    &pod_route_missing::SPEC,
    &orphan_container::SPEC,
    &nfs_server_unresponsive::SPEC,
    &volume_busy::SPEC,
    &stale_cni_del::SPEC,
    &cni_netns_mismatch::SPEC,
    &kubelet_crash_loop::SPEC,
    &spec_hash_storm::SPEC,
    &sandbox_crash_loop::SPEC,
    &sandbox_network_replaced::SPEC,
    &umount_hung::SPEC,
    &pod_volume_lost::SPEC,
    &file_server_lost::SPEC,
    &mount_multiplied::SPEC,
    &container_undeletable::SPEC,
    &pod_stuck_terminating::SPEC,
    &mount_leak::SPEC,
    &rbd_orphan_mapping::SPEC,
    &rbd_lock_left::SPEC,
    &rbd_locked_elsewhere::SPEC,
    &route_flapping::SPEC,
    // The cause of others, found in them.
    &multi_pod_disruption::SPEC,
];

pub fn kind(name: &str) -> Option<&'static IncidentKind> {
    KINDS.into_iter().find(|kind| kind.name == name)
}

/// The thresholds of all kinds, in the order of the configuration file.
pub fn thresholds() -> impl Iterator<Item = &'static Threshold> {
    KINDS.into_iter().flat_map(|kind| kind.thresholds).copied()
}

fn seconds(seconds: u32) -> BootNs {
    BootNs::from(seconds) * SECOND
}

/// Limit of faults that one diagnosis follows, and of open incidents.
pub const CAPACITY: usize = 1024;

/// An incident of the previous run does not escalate before every source has reported; its timer is postponed by this.
pub const STARTUP_GRACE: BootNs = 5 * SECOND;

/// The diagnoses, in the order of [`KINDS`].
pub fn all(thresholds: &Thresholds) -> Vec<Box<dyn Diagnosis>> {
    KINDS.into_iter().map(|kind| (kind.start)(thresholds)).collect()
}

/// Starts a diagnosis that has found nothing yet.
fn start<D: Diagnosis + Default + 'static>(thresholds: &Thresholds) -> Box<dyn Diagnosis> {
    let mut diagnosis = D::default();
    diagnosis.set_thresholds(thresholds);
    Box::new(diagnosis)
}

pub trait Diagnosis: Debug + Send {
    /// The kind of its incidents, as users filter and alert on it.
    fn kind(&self) -> &'static str;

    fn set_thresholds(&mut self, _thresholds: &Thresholds) {}

    /// An event was emitted; the model includes it already.
    fn event(&mut self, context: &Context<'_>, event: &Event, findings: &mut Findings);

    /// Something changed that is no event.
    fn change(&mut self, _seen: &Context<'_>, _change: &ModelChange<'_>, _findings: &mut Findings) {}

    /// A deadline may have passed.
    fn tick(&mut self, _seen: &Context<'_>, _findings: &mut Findings) {}

    /// What would open incidents if it lasts.
    fn suspected(&self, _seen: &Context<'_>) -> Vec<Suspicion> {
        Vec::new()
    }

    /// What it suspects of gateways and the next run of the daemon is to know, in its own form.
    fn kept(&self) -> Vec<(NeighborKey, Value)> {
        Vec::new()
    }

    fn deadline(&self) -> Option<BootNs> {
        None
    }

    /// Resumes an incident of this kind that the previous run left open, and returns its subject. `event` is the newest
    /// event of the incident.
    fn resume(&mut self, context: &Context<'_>, event: &Event) -> Option<String>;

    /// Saves its state, without the thresholds.
    ///
    /// # Errors
    /// Never in practice: all saved maps have string keys or are written as lists of pairs.
    fn save(&self) -> Result<Value, serde_json::Error>;

    /// Restores its state.
    ///
    /// # Errors
    /// When the saved state cannot be read.
    fn restore(&mut self, saved: Value) -> Result<(), serde_json::Error>;
}

#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// Current time; never goes back.
    pub now: BootNs,
    pub clock: WallClock,
    pub node: &'a NodeView<'a>,
    pub incidents: &'a Incidents,
    /// When every source had reported; `None` during start-up.
    pub ready: Option<BootNs>,
}

/// A change that diagnoses are notified of besides events.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ModelChange<'a> {
    /// A snapshot of a network namespace was applied.
    Netns(NsInum),
    /// The entry of a gateway in a network namespace was resolved, which is no event.
    Resolved(NsInum),
    NetnsGone(NsInum),
    /// An interface of a network namespace got or lost an address.
    Addresses(NsInum),
    /// It was looked what refuses the removal of something of a container.
    Obstacle(&'a FoundObstacle),
    /// It was looked where the other ends of these veth devices of the host are.
    VethPeers(&'a [VethEnd]),
    /// The neighbor entries of the host's namespace that are not resolved were looked at.
    HostNeighbors(&'a [HostNeighbor]),
    /// The tables of neighbor entries were looked at, one of which is nearly full or was.
    NeighborTables(&'a [NeighborTable]),
    /// A process makes many entries in such a table.
    NeighborCreator {
        creator: &'a NeighborCreator,
        actor: &'a Shared<Actor>,
    },
    /// The kernel was asked by which routes the host reaches addresses of pods.
    PodRoutes {
        id: u64,
        /// Those to which the route does not lead by their interfaces.
        elsewhere: &'a [PodRoute],
    },
    /// A route of the host to one address alone was added or deleted.
    HostRoute {
        address: IpAddr,
        is_there: bool,
    },
    /// A routing rule of the host was added or deleted.
    HostRule(&'a PolicyRule),
    /// A next hop by a tunnel of the host is used no more.
    Tunnels,
    /// What the previous run suspected of a gateway, of whose namespace a snapshot was applied.
    Suspected(&'a Value),
    /// A container was added, changed or removed.
    Container(&'a str),
    /// It was found where `CNI_NETNS` of a CNI call led to.
    CniNetns(&'a Call),
    /// A CNI call has ended, which is the event of this number.
    CniFinished(&'a Call, u64),
    /// A container appeared that is a sandbox, or claims to be one.
    SandboxMade(&'a str),
    /// Kubelets and runtimes were looked for.
    Components,
    /// The processes that unmount something and wait in the kernel.
    Unmounters(&'a [Waiting]),
    /// A kubelet tells pods that were deleted.
    PodsDeleted,
    /// Pods that have a directory were looked at.
    PodRemains,
    /// Who uses a volume that is mounted though its pod is over, by the id of the request.
    LeftVolume {
        id: u64,
        /// The mount that was found at its path.
        mount: Option<&'a MountFacts>,
        found: &'a IncidentObjects,
        /// Who serves it, a FUSE file system.
        servers: &'a [MountServer],
        /// Whether nobody was found who does.
        unserved: bool,
    },
    /// Mounts of containers and pods that are left in other namespaces were looked for.
    MountCopies(&'a Leaks),
    /// The FUSE file systems of the host were looked at: those that nobody serves any more.
    FuseMounts(&'a [UnservedMount]),
    /// The kernel's log says that a server of NFS does not respond, or does again, which is quoted by the event of this number.
    NfsServer {
        line: &'a NfsServerLine,
        quote: Option<u64>,
    },
    /// The same of a server of Ceph.
    CephServer {
        line: &'a CephServerLine,
        quote: Option<u64>,
    },
    /// The kernel's log says that the kernel waits for a network device to become free.
    UnfreedDevice {
        ifname: &'a str,
        quote: Option<u64>,
    },
    /// The mounts of servers of NFS that do not respond were looked at.
    NfsMounts(&'a [NfsMounts]),
    /// What host-local has written down of addresses has changed.
    Ipam,
    /// The Ceph RBD images that are mapped, all of them.
    RbdImages(&'a [Rbd]),
    /// Who uses them was looked for.
    RbdUses(&'a [ImageUse]),
    /// A process executes a client of a runtime to start containers, given by their names, ids or prefixes of ids.
    ContainerStart(&'a [String], &'a Shared<Actor>),
    /// A call of `rbd` has succeeded that takes or removes a lock.
    RbdLock(&'a RbdCall),
    /// The mount namespaces or root directories of kubelets are others.
    Kubelets,
    /// A snapshot of all containers of a runtime was applied.
    Runtime,
    /// A runtime no longer answers, or does again.
    RuntimeAvailability,
    /// Every source has reported its status.
    Ready,
    /// Which of the sandboxes that were asked for have a checkpoint.
    SandboxCheckpoints(&'a [SandboxCheckpoint]),
    /// An unmount was refused again, without an event.
    Refused(&'a BusyMount),
    /// Because of that it was looked again whether those hold the mount still who did.
    HoldersChecked {
        mount: &'a BusyMount,
        /// When all of them were seen; `None` where that is not known.
        seen: Option<BootNs>,
    },
    /// An unmount of the path of a busy mount succeeded, and whether that very mount is gone is not known.
    UmountUndetermined {
        mount: &'a BusyMount,
        reason: &'a str,
    },
    /// A busy mount is gone, and how was not observed.
    MountGone(&'a BusyMount),
}

#[cfg(test)]
mod tests;
