//! Finds incidents: what is wrong now, since when, and why.
//!
//! Each kind of incident is one file and one line in [`all`]. A diagnosis gets events, changes of the model and time,
//! and reports [`Findings`]; the [`Engine`] turns them into incidents, gives those an id and decides when an event is
//! emitted. Neither does I/O or reads a clock: what only I/O can find out is requested.

use std::fmt::Debug;
use std::net::IpAddr;

use serde_json::Value;

use crate::event::{Event, MountServer, Rbd, Severity, WallClock};
use crate::node::cni::Call;
use crate::node::mounts::BusyMount;
use crate::node::rbd_locks::LockCall;
use crate::node::view::NodeView;
use crate::observation::{
    BootNs, HostNeighbor, MountFacts, NeighborKey, NsInum, PodRoute, SandboxCheckpoint,
};
use crate::settings::{Threshold, Thresholds};

/// `save` and `restore` of a diagnosis whose other fields than `thresholds` are its complete state.
macro_rules! saved_without_thresholds {
    () => {
        fn save(&self) -> Result<serde_json::Value, serde_json::Error> {
            serde_json::to_value(self)
        }

        fn restore(&mut self, saved: serde_json::Value) -> Result<(), serde_json::Error> {
            let thresholds = self.thresholds.clone();
            *self = Self { thresholds, ..serde_json::from_value(saved)? };
            Ok(())
        }
    };
}

mod advice;
mod cni_netns_mismatch;
mod cni_teardown_failing;
mod container_undeletable;
mod duplicate_pod_ip;
mod engine;
mod explained;
mod finding;
mod flapping;
mod gateway_health;
mod gateway_neighbor_lost;
mod identity;
mod incidents;
mod ipam_drift;
mod kubelet_crash_loop;
mod mount_leak;
mod multi_pod_disruption;
mod orphan_container;
mod orphan_veth;
mod pod_neighbor_unreachable;
mod pod_network;
mod pod_route_missing;
mod pod_stuck_terminating;
mod rbd_lock_left;
mod rbd_locked_elsewhere;
mod rbd_orphan_mapping;
mod sandbox_crash_loop;
mod spec_hash_storm;
mod stale_cni_del;
mod suspicion;
mod timers;
mod umount_hung;
mod volume_busy;

pub use engine::{Engine, IncidentChange, RestoreError, Saved};
pub use explained::{Explained, explained};
pub use finding::{Count, Finding, Findings, IncidentKey, IncidentObjects, Repeat, Report};
pub use flapping::Lull;
pub use gateway_health::{GatewayHealth, gateway_health};
pub use incidents::{Incidents, OpenIncident, Recount};
pub use mount_leak::{Leak, Leaks};
pub use orphan_veth::VethEnd;
pub use rbd_orphan_mapping::{ImageUse, Usage};
pub(crate) use sandbox_crash_loop::is_folded;
pub use suspicion::Suspicion;
pub use umount_hung::Waiting;
pub use volume_busy::LEFT_VOLUME;

/// Every kind, in the order of [`all`].
pub const KINDS: [&str; 22] = [
    cni_teardown_failing::KIND,
    gateway_neighbor_lost::KIND,
    orphan_veth::KIND,
    ipam_drift::KIND,
    duplicate_pod_ip::KIND,
    pod_neighbor_unreachable::KIND,
    pod_route_missing::KIND,
    orphan_container::KIND,
    volume_busy::KIND,
    stale_cni_del::KIND,
    cni_netns_mismatch::KIND,
    kubelet_crash_loop::KIND,
    spec_hash_storm::KIND,
    sandbox_crash_loop::KIND,
    umount_hung::KIND,
    container_undeletable::KIND,
    pod_stuck_terminating::KIND,
    mount_leak::KIND,
    rbd_orphan_mapping::KIND,
    rbd_lock_left::KIND,
    rbd_locked_elsewhere::KIND,
    multi_pod_disruption::KIND,
];

/// Severities that incidents of a kind usually have: each has a series from the start, of which there is room for few. Others
/// appear with the first of them.
#[must_use]
pub fn severities(kind: &str) -> &'static [Severity] {
    match kind {
        cni_teardown_failing::KIND
        | stale_cni_del::KIND
        | cni_netns_mismatch::KIND
        | kubelet_crash_loop::KIND
        | spec_hash_storm::KIND
        | sandbox_crash_loop::KIND
        | umount_hung::KIND
        | orphan_veth::KIND
        | duplicate_pod_ip::KIND
        | ipam_drift::KIND
        | pod_neighbor_unreachable::KIND
        | pod_route_missing::KIND
        | pod_stuck_terminating::KIND
        | container_undeletable::KIND
        | rbd_orphan_mapping::KIND
        | rbd_lock_left::KIND
        | rbd_locked_elsewhere::KIND
        // As bad as the worst of the pods.
        | multi_pod_disruption::KIND => &[Severity::Warning],
        // Critical is one that keeps a kubelet of few versions from starting.
        mount_leak::KIND | orphan_container::KIND => &[Severity::Info, Severity::Warning],
        // What users do in namespaces of their own is a notice at most.
        gateway_neighbor_lost::KIND => &[Severity::Warning, Severity::Critical],
        _ => &[Severity::Info, Severity::Warning, Severity::Critical],
    }
}

/// Whether it takes a source that is off unless the configuration names it: then there is no series before the first one.
#[must_use]
pub fn is_optional(kind: &str) -> bool {
    kind == rbd_locked_elsewhere::KIND
}

/// What the count of such an incident counts, in the plural.
#[must_use]
pub fn counted(kind: &str) -> &'static str {
    match kind {
        gateway_neighbor_lost::KIND => "events of the loss",
        volume_busy::KIND | container_undeletable::KIND => "refused attempts",
        cni_teardown_failing::KIND | stale_cni_del::KIND => "failed calls",
        cni_netns_mismatch::KIND => "such calls",
        sandbox_crash_loop::KIND => "sandboxes",
        kubelet_crash_loop::KIND => "ends of the kubelet",
        spec_hash_storm::KIND => "containers",
        umount_hung::KIND => "unmounts",
        duplicate_pod_ip::KIND | multi_pod_disruption::KIND => "pods",
        pod_neighbor_unreachable::KIND | pod_route_missing::KIND => "looks",
        mount_leak::KIND => "mounts",
        rbd_locked_elsewhere::KIND => "refusals",
        _ => "observations",
    }
}

/// The thresholds of all diagnoses, in the order of the configuration file.
pub fn thresholds() -> impl Iterator<Item = &'static Threshold> {
    let all = [
        gateway_neighbor_lost::THRESHOLDS,
        orphan_veth::THRESHOLDS,
        ipam_drift::THRESHOLDS,
        duplicate_pod_ip::THRESHOLDS,
        pod_neighbor_unreachable::THRESHOLDS,
        pod_route_missing::THRESHOLDS,
        orphan_container::THRESHOLDS,
        volume_busy::THRESHOLDS,
        stale_cni_del::THRESHOLDS,
        cni_teardown_failing::THRESHOLDS,
        cni_netns_mismatch::THRESHOLDS,
        kubelet_crash_loop::THRESHOLDS,
        spec_hash_storm::THRESHOLDS,
        sandbox_crash_loop::THRESHOLDS,
        umount_hung::THRESHOLDS,
        container_undeletable::THRESHOLDS,
        pod_stuck_terminating::THRESHOLDS,
        mount_leak::THRESHOLDS,
        rbd_orphan_mapping::THRESHOLDS,
        rbd_lock_left::THRESHOLDS,
        multi_pod_disruption::THRESHOLDS,
    ];
    all.into_iter().flatten().copied()
}

const SECOND: BootNs = 1_000_000_000;

fn seconds(seconds: u32) -> BootNs {
    BootNs::from(seconds) * SECOND
}

/// Limit of faults that one diagnosis follows, and of open incidents.
pub(crate) const CAPACITY: usize = 1024;

/// An incident of the previous run does not escalate before every source has reported; its timer is postponed by this.
pub(crate) const STARTUP_GRACE: BootNs = 5 * SECOND;

/// The diagnoses, causes before their effects: a later one can link what an earlier one found in the same event. A stale CNI
/// call is a cause only for what it did, so it comes behind that.
#[must_use]
pub fn all(thresholds: &Thresholds) -> Vec<Box<dyn Diagnosis>> {
    vec![
        Box::new(cni_teardown_failing::CniTeardownFailing::new(thresholds)),
        Box::new(gateway_neighbor_lost::GatewayNeighborLost::new(thresholds)),
        Box::new(orphan_veth::OrphanVeth::new(thresholds)),
        Box::new(ipam_drift::IpamDrift::new(thresholds)),
        Box::new(duplicate_pod_ip::DuplicatePodIp::new(thresholds)),
        Box::new(pod_neighbor_unreachable::PodNeighborUnreachable::new(thresholds)),
        Box::new(pod_route_missing::PodRouteMissing::new(thresholds)),
        Box::new(orphan_container::OrphanContainer::new(thresholds)),
        Box::new(volume_busy::VolumeBusy::new(thresholds)),
        Box::new(stale_cni_del::StaleCniDel::new(thresholds)),
        Box::new(cni_netns_mismatch::CniNetnsMismatch::new(thresholds)),
        Box::new(kubelet_crash_loop::KubeletCrashLoop::new(thresholds)),
        Box::new(spec_hash_storm::SpecHashStorm::new(thresholds)),
        Box::new(sandbox_crash_loop::SandboxCrashLoop::new(thresholds)),
        Box::new(umount_hung::UmountHung::new(thresholds)),
        Box::new(container_undeletable::ContainerUndeletable::new(thresholds)),
        Box::new(pod_stuck_terminating::PodStuckTerminating::new(thresholds)),
        Box::new(mount_leak::MountLeak::new(thresholds)),
        Box::new(rbd_orphan_mapping::RbdOrphanMapping::new(thresholds)),
        Box::new(rbd_lock_left::RbdLockLeft::new(thresholds)),
        Box::new(rbd_locked_elsewhere::RbdLockedElsewhere::default()),
        // The cause of others, found in them.
        Box::new(multi_pod_disruption::MultiPodDisruption::new(thresholds)),
    ]
}

/// Finds one kind of incident.
pub trait Diagnosis: Debug + Send {
    /// The kind of its incidents, as users filter and alert on it.
    fn kind(&self) -> &'static str;

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

    /// When the next tick is due.
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

/// What a diagnosis can read.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// Current time; never goes back.
    pub now: BootNs,
    /// Converts the times of events.
    pub clock: WallClock,
    /// The model.
    pub node: &'a NodeView<'a>,
    /// The open incidents.
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
    /// A network namespace was destroyed.
    NetnsGone(NsInum),
    /// An interface of a network namespace got or lost an address.
    Addresses(NsInum),
    /// It was looked where the other ends of these veth devices of the host are.
    VethPeers(&'a [VethEnd]),
    /// The neighbor entries of the host's namespace that are not resolved were looked at.
    HostNeighbors(&'a [HostNeighbor]),
    /// The kernel was asked by which routes the host reaches addresses of pods.
    PodRoutes {
        /// The id of the request.
        id: u64,
        /// Those to which the route does not lead by their interfaces.
        elsewhere: &'a [PodRoute],
    },
    /// A route of the host to one address alone was added or deleted.
    HostRoute {
        /// The address.
        address: IpAddr,
        /// Whether it was added.
        is_there: bool,
    },
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
    /// Pods that have a directory were looked at.
    PodRemains,
    /// Who uses a volume that is mounted though its pod is over, by the id of the request.
    LeftVolume {
        /// The id.
        id: u64,
        /// The mount that was found at its path.
        mount: Option<&'a MountFacts>,
        /// Who holds that.
        found: &'a IncidentObjects,
        /// Who serves it, a FUSE file system.
        servers: &'a [MountServer],
        /// Whether nobody was found who does.
        unserved: bool,
    },
    /// Mounts of containers and pods that are left in other namespaces were looked for.
    MountCopies(&'a Leaks),
    /// What host-local has written down of addresses has changed.
    Ipam,
    /// The Ceph RBD images that are mapped, all of them.
    RbdImages(&'a [Rbd]),
    /// Who uses them was looked for.
    RbdUses(&'a [ImageUse]),
    /// A call of `rbd` has succeeded that takes or removes a lock.
    RbdLock(&'a LockCall),
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
        /// The mount.
        mount: &'a BusyMount,
        /// When all of them were seen; `None` where that is not known.
        seen: Option<BootNs>,
    },
    /// An unmount of the path of a busy mount succeeded, and whether that very mount is gone is not known.
    UmountUndetermined {
        /// The mount.
        mount: &'a BusyMount,
        /// Why not.
        reason: &'a str,
    },
    /// A busy mount is gone, and how was not observed.
    MountGone(&'a BusyMount),
}

#[cfg(test)]
mod tests;
