//! The vocabulary between sources and the core.
//!
//! A source sends an [`Observation`]: one [`Fact`] with the kernel's time, nothing joined. The core may send a
//! [`Request`] for a fact that only I/O can establish; the reply is an observation again, so a recording of
//! observations is all that a replay needs. Secrets never get this far: sources mask command lines before they
//! build a fact.

use std::net::IpAddr;

pub use kevtmon_types::clock::BootNs;
use kevtmon_types::names::named;
pub use kevtmon_types::namespace::NsInum;
use kevtmon_types::settings::Settings;
use serde::{Deserialize, Serialize};

mod ceph;
pub mod cgroup;
mod cni;
mod component;
mod file_server;
mod ipam;
mod kubelet;
mod leak;
mod log;
mod mount;
mod neighbor;
mod neighbor_table;
mod net;
mod nfs;
pub mod own_mounts;
mod pod_remains;
mod pod_route;
mod process;
mod rbd;
mod removal;
mod runtime;
mod source;
mod sysctl;
mod texts;
mod unmounter;
mod veth;

pub use ceph::{CephServerLine, is_of_ceph};
pub use cni::{CniCommand, CniExec, CniExit, CniNetns, CniPod};
pub use component::{ComponentExit, ComponentFacts};
pub use file_server::{FileServer, FuseMount, FuseServer, ServerState, SignalSent};
pub use ipam::{CniDevice, IpamFile, IpamFiles, IpamRecord};
pub use kubelet::{KubeletFacts, KubeletNamespace, KubeletPod, SandboxCheckpoint};
pub use leak::{
    BindMount, CopyHolder, HostPath, KernelMounts, MountCopies, MountCopy, OriginalMount, Propagation,
};
pub use log::{LogLine, LogSays, RbdRefusal};
pub use mount::{
    Access, BlindSpot, BlockDevice, CallStart, CallerDirectory, DetachedMount, DeviceUser, Holder,
    HolderReport, LoopDevice, MeantMount, MountFacts, MountIdentity, MountPresence, MountSyscall,
    MountedElsewhere, PathOrigin, PathUncertainty, Rank, SecondPath, Share, TableMark, UmountAttempt,
    Verdict, VolumeData,
};
pub use neighbor::{LlAddr, NeighborCause, NeighborChange, NeighborEntry, NeighborOp, NudState};
pub use neighbor_table::{NeighborCreator, NeighborTable};
pub use net::{
    AddressFacts, LinkAct, LinkFacts, LinkOp, LladdrAct, NetnsOwner, NetnsSnapshot, PeerLink, PolicyRule,
    RouteAct, RouteFacts, RouteOp, RuleAction, RuleFacts, TABLE_LOCAL, TABLE_MAIN, iff,
};
pub use nfs::{NfsMount, NfsMounts, NfsSays, NfsServerLine, nfs_server};
pub use pod_remains::{CoveredVolume, MountStack, PodCgroup, PodProcess, PodRemains, STACKED_MIN};
pub use pod_route::{FoundRoute, PodAddress, PodRoute};
pub use process::{
    Ancestor, ProcessState, RESEND_AFTER, TaskContext, TaskFacts, TaskKey, TaskPlace, TaskRef,
};
pub use rbd::{ImageName, RbdCommand, RbdExec, RbdImage, RbdImages, RbdNumber, RbdUse, RbdUses};
pub use removal::{FileFlag, FoundObstacle, Obstacle, RefusedRemoval, RemovalError};
pub use runtime::{
    ContainerExit, ContainerFacts, ContainerStart, ContainerState, Incarnation, OwnMounts, PodIdentity,
    PodProof,
};
pub use source::{BudgetClass, KnownNetns, Loss, SourceKind, SourceStatus, Throttled};
pub use sysctl::{InterfaceSysctls, RpFilter, SysctlWrite};
pub use unmounter::{UmountCall, UnmountedMount, Unmounter};
pub use veth::{HostNeighbor, VethLink, VethPeer};

/// One fact from one source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// When it happened by the kernel's stamp, or when it was read where the kernel gives none.
    pub at: BootNs,
    /// Which source observed it; not recorded.
    #[serde(skip)]
    pub source: Source,
    pub fact: Fact,
}

named! {
    /// Where an observation comes from.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    Source {
        /// The daemon itself, or a recording.
        #[default]
        Daemon = "daemon",
        Bpf = "bpf",
        Netlink = "netlink",
        Runtime = "runtime",
    }
}

impl Source {
    pub fn is_daemon(&self) -> bool {
        *self == Self::Daemon
    }
}

/// What a source can observe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// `CLOCK_REALTIME` minus `CLOCK_BOOTTIME`, at start and again when it moves.
    Clock {
        /// Nanoseconds to add to a boot time to get wall-clock time.
        realtime_offset_ns: i64,
    },
    /// The details of a task; sent once, before the first fact that refers to it.
    Task(Box<TaskFacts>),
    /// A live change of a neighbor entry.
    Neighbor(Box<NeighborChange>),
    /// An attempt to unmount, refused or not.
    Umount(Box<UmountAttempt>),
    /// All that a network namespace holds; replaces what the model had of it.
    Netns(Box<NetnsSnapshot>),
    /// A network namespace is gone, or no handle to it could be found.
    NetnsGone { netns: NsInum },
    /// A link appeared or changed (live).
    Link(Box<LinkFacts>),
    /// Somebody set a link up or down, deleted or moved it: a message tells it, too, without who did it.
    LinkAct(Box<LinkAct>),
    /// Somebody had routes or an address added or deleted: a message tells it, too, without who did it.
    RouteAct(Box<RouteAct>),
    /// A task writes a sysctl of the network.
    SysctlWrite(Box<SysctlWrite>),
    /// Somebody changed the hardware address of a link, by the record of a neighbor entry that went with it, before a message
    /// tells it.
    LladdrAct(Box<LladdrAct>),
    /// A link was deleted, or left the namespace (live).
    LinkGone {
        /// Namespace it was in.
        netns: NsInum,
        ifindex: u32,
        /// Where it is now, if it was moved.
        moved_to: Option<PeerLink>,
    },
    /// Somebody had the kernel delete this route, or put it in the place of others: what follows did not go with an interface
    /// (live; the kernel says by `nlmsg_pid` who asked).
    RouteAsked {
        /// The route that is deleted, or the new one.
        #[serde(flatten)]
        route: RouteFacts,
        /// It takes the place of others (`NLM_F_REPLACE`), whether it was among them or not.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        replaces: bool,
    },
    /// A route appeared (live).
    Route(RouteFacts),
    /// A route was deleted (live).
    RouteGone(RouteFacts),
    /// A rule by addresses or interfaces appeared (live).
    Rule(Box<PolicyRule>),
    /// Such a rule was deleted (live).
    RuleGone(Box<PolicyRule>),
    /// All messages about a namespace that were sent until a time were observed: what the next one tells of happened later.
    NetnsHeard { netns: NsInum, until: BootNs },
    /// Messages were lost that were sent after a time, so that what is known of any namespace may be old; snapshots of all
    /// follow.
    NetnsMissed { since: BootNs },
    /// The routes of a namespace changed in a way that no message describes; a snapshot follows.
    NetnsStale {
        netns: NsInum,
        /// Whether messages tell all routes that came and went, and only what went with them is not known.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        told: bool,
    },
    /// An address appeared (live).
    Address(AddressFacts),
    /// An address was deleted (live).
    AddressGone(AddressFacts),
    /// A container appeared or changed state.
    Container(Box<ContainerFacts>),
    /// A container was removed from its runtime.
    ContainerGone {
        /// 64 hex digits.
        id: String,
        /// The source that reports it, as in [`SourceStatus::source`].
        source: String,
    },
    /// Every container of one source; those that it reported before and does not list are gone.
    RuntimeSnapshot {
        /// `docker`, …
        runtime: String,
        /// The source, as in [`SourceStatus::source`].
        source: String,
        /// When the list was requested: what changed later may be missing from it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        read: Option<BootNs>,
        /// All its containers, in any state.
        containers: Vec<ContainerFacts>,
    },
    /// Where a runtime has what is of its containers, as it tells itself.
    RuntimeDirectories {
        /// The source, as in [`SourceStatus::source`].
        source: String,
        directories: Vec<String>,
    },
    /// Reply to [`Request::ProcessState`].
    ProcessState(ProcessState),
    /// Reply to [`Request::Holders`] and to [`Request::DeviceUsers`].
    Holders(Box<HolderReport>),
    /// Reply to [`Request::MountPresence`].
    MountPresence(MountPresence),
    /// Reply to [`Request::DetachedUsers`]; where the reports go on, another one follows.
    DetachedUsers {
        id: u64,
        /// For each mount, by the number of its place in the request; none where nothing was found out.
        reports: Vec<HolderReport>,
    },
    /// A CNI plugin was executed.
    CniExec(Box<CniExec>),
    /// A process ended that was a CNI plugin or `rbd`, or is followed.
    CniExit(CniExit),
    /// Somebody sends a signal to a process that is followed.
    SignalSent(Box<SignalSent>),
    /// The FUSE file systems of the host, when they have changed; after the first also the reply to [`Request::FuseMounts`].
    FuseMounts(Vec<FuseMount>),
    /// Reply to [`Request::CniNetns`].
    CniNetns(CniNetns),
    /// Reply to [`Request::Kubelet`], and reported once at start.
    Kubelet(KubeletFacts),
    /// Pods as their kubelet tells them: all, or those of which something has changed just now.
    KubeletPods { pods: Vec<KubeletPod>, all: bool },
    /// The kubelets and runtimes that run. The end of each is a fact of its own.
    Components { components: Vec<ComponentFacts> },
    /// One of those has ended.
    ComponentExited(ComponentExit),
    /// The processes that unmount something and wait in the kernel.
    Unmounters { unmounters: Vec<Unmounter> },
    /// What there is of each pod that has a directory on the node.
    PodRemains { pods: Vec<PodRemains> },
    /// What there is of the pods could not be read, again and again: what was seen last may be over.
    PodRemainsUnread,
    /// What host-local has written down of addresses has changed, or was read for the first time.
    Ipam(IpamFiles),
    /// That could not be read, again and again: what was read last may be over.
    IpamUnread,
    /// Mounts in other namespaces than the host's whose file systems the host no longer has mounted; after the first also the
    /// reply to [`Request::MountCopies`].
    MountCopies(Box<MountCopies>),
    /// The Ceph RBD images that the kernel has mapped.
    RbdImages(RbdImages),
    /// Reply to [`Request::RbdUses`], again whenever it changes.
    RbdUses(RbdUses),
    /// `rbd` was executed.
    RbdExec(Box<RbdExec>),
    /// A client of a container runtime was executed, to start containers.
    ContainerStart(Box<ContainerStart>),
    /// A log has a line that says something of interest.
    Log(Box<LogLine>),
    /// Root executed a program that has the name of one.
    ComponentExecuted {
        /// The process (thread group).
        tgid: u32,
    },
    /// Reply to [`Request::NfsMounts`]: for each server, unless they could not be read.
    NfsMounts(Vec<NfsMounts>),
    /// Reply to [`Request::SandboxCheckpoints`].
    SandboxCheckpoints(Vec<SandboxCheckpoint>),
    /// Reply to [`Request::Obstacle`].
    Obstacle(Box<FoundObstacle>),
    /// Reply to [`Request::VethPeers`].
    VethPeers(Vec<VethPeer>),
    /// The neighbor entries of the host's namespace that are not resolved, as a look shows them; one that was not at the last
    /// look is among them with its present state, if it is there.
    HostNeighbors(Vec<HostNeighbor>),
    /// The tables of neighbor entries, when one of them is nearly full or was at the last look.
    NeighborTables(Vec<NeighborTable>),
    /// Who makes many entries in such a table.
    NeighborCreator(Box<NeighborCreator>),
    HostSysctls {
        /// What is told of each.
        sysctls: Vec<InterfaceSysctls>,
        /// Whether these are all, as they were read; else they have changed.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        all: bool,
    },
    /// Reply to [`Request::PodRoutes`]: those of the addresses to which the route does not lead by their interfaces.
    PodRoutes {
        /// The id of the request.
        id: u64,
        /// The others of the request are in order.
        elsewhere: Vec<PodRoute>,
    },
    /// A source came up, went down, or settled on a attach mode.
    Source(SourceStatus),
    /// A source read everything again, because its stream had a gap.
    Resync {
        source: String,
        /// Why: `overrun`, `decode`, `interrupted`, …
        reason: String,
    },
    /// What a source was sent was no such answer or message, and was left out.
    Malformed {
        source: String,
        /// How many answers, messages or entries of a list.
        count: u64,
    },
    /// A source lost records.
    Lost(Loss),
    /// The kernel programs counted what was over a budget.
    Throttled(Throttled),
    /// Observations before this one are missing from the recording in which it stands.
    Unrecorded { count: u64 },
    /// An earlier run of the daemon in this boot ended; what came after it was not observed.
    Restarted { last_alive: BootNs },
    /// Time has passed; wakes what waits for a deadline.
    Tick,
    /// Settings that apply from now on.
    Settings(Box<Settings>),
    /// The daemon ends; nothing comes after it.
    Stop,
}

/// What the core requests from the sources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Find this network namespace and read it: the reply is `Fact::Netns` or `Fact::NetnsGone`.
    Netns { netns: NsInum },
    /// Whether this process is alive; the reply is `Fact::ProcessState`.
    ProcessState {
        /// Process id (thread group).
        tgid: u32,
        /// Its start, where that is known: another process may have the id by now.
        started_ns: Option<BootNs>,
    },
    /// Read a container again; the reply is `Fact::Container`, if it has changed.
    Container {
        /// 64 hex digits.
        id: String,
    },
    /// Look from now on for those who use these mapped images, and no others; the reply is `Fact::RbdUses`.
    RbdUses { images: Vec<RbdImage> },
    /// Look at the FUSE file systems of the host soon; the reply is `Fact::FuseMounts`, if they have changed.
    FuseMounts,
    /// Where the kubelets that run now keep the directories of pods; the reply is `Fact::Kubelet`.
    Kubelet,
    /// Whether this process is a kubelet or runtime; if it is, the reply is `Fact::Components`.
    Component {
        /// The process (thread group).
        tgid: u32,
    },
    /// Look soon for mounts that are left in other namespaces than the host's; the reply is `Fact::MountCopies`, if there are
    /// any or were.
    MountCopies,
    /// Which network namespace a path leads to; the reply is `Fact::CniNetns` with the same `id`.
    CniNetns {
        /// Chosen by the core.
        id: u64,
        /// `CNI_NETNS`.
        path: String,
        /// Where that is not the host's: the mount namespace in which it does, and the processes above the plugin.
        within: Option<(NsInum, Vec<u32>)>,
    },
    /// List the processes and mounts of these pods with what there is of all, though they have processes; replaces what was
    /// requested before. The reply is `Fact::PodRemains`.
    PodProcesses {
        /// Uids of the pods.
        pods: Vec<String>,
    },
    /// List the mounts of these pods, too; replaces what was requested before. The reply is `Fact::PodRemains`.
    PodMounts {
        /// Uids of the pods.
        pods: Vec<String>,
    },
    /// What refuses the removal of something of a container; the reply is `Fact::Obstacle`.
    Obstacle {
        /// Id of the container.
        container: String,
        refused: RefusedRemoval,
    },
    /// Where the other ends of these veth devices of the host are, and what keeps the namespaces that they are in; the reply
    /// is `Fact::VethPeers`.
    VethPeers {
        /// The host's ends.
        links: Vec<VethLink>,
    },
    /// By which routes the host reaches these addresses of pods; the reply is `Fact::PodRoutes` with the same `id`.
    PodRoutes {
        /// Chosen by the core.
        id: u64,
        /// The addresses, each once.
        addresses: Vec<PodAddress>,
    },
    /// What the host has mounted from these servers of NFS; the reply is `Fact::NfsMounts`.
    NfsMounts { servers: Vec<String> },
    /// Whether there are checkpoints of these sandboxes; the reply is `Fact::SandboxCheckpoints`.
    SandboxCheckpoints { sandboxes: Vec<String> },
    /// Who uses the block device at this path, or the upper directory of an overlay; the reply is `Fact::Holders` with the same `id`.
    DeviceUsers {
        /// Chosen by the core.
        id: u64,
        /// Mount namespace in which the path was given.
        mntns: NsInum,
        /// The process that tried to mount it; it may be gone already.
        tgid: u32,
        /// As the caller gave it.
        path: String,
        /// Where it starts from.
        origin: Box<PathOrigin>,
        /// The type of file system that was to be mounted, if it is known.
        fstype: Option<String>,
    },
    /// What pins the mount at this path; the reply is `Fact::Holders` with the same `id`.
    Holders {
        /// Chosen by the core.
        id: u64,
        /// Mount namespace in which the path was given.
        mntns: NsInum,
        /// The process that tried to unmount it; it may be gone already.
        tgid: u32,
        /// As the caller gave it; may be relative to the caller's directory.
        path: String,
        /// Where the path starts from. Without it, an absolute path starts at the root of the namespace.
        origin: Option<Box<PathOrigin>>,
        /// Whether a link at its end is followed.
        follow: bool,
        /// Whether only what is mounted there is asked, and not who holds it.
        mount_only: bool,
        share: Share,
    },
    /// Whether a mount is still there; the reply is `Fact::MountPresence` with the same `id`. Much cheaper than
    /// `Holders`, and it resolves no path.
    MountPresence {
        /// Chosen by the core.
        id: u64,
        mntns: NsInum,
        /// A process that was in that namespace, which saves the search for one; it may be gone already.
        tgid: u32,
        identity: MountIdentity,
        share: Share,
    },
    /// Whether a path leads to this mount; the reply is `Fact::MountPresence` with the same `id`: not present where the path
    /// leads to another mount or to none. As cheap as `MountPresence`.
    MountAt {
        /// Chosen by the core.
        id: u64,
        /// Mount namespace in which the path was given.
        mntns: NsInum,
        /// The process that tried to unmount it; it may be gone already.
        tgid: u32,
        /// As the caller gave it.
        path: String,
        /// Where the path starts from.
        origin: Option<Box<PathOrigin>>,
        /// Whether a link at its end is followed.
        follow: bool,
        identity: MountIdentity,
        share: Share,
    },
    /// Who uses mounts that were detached, of which no scan has found anybody; all processes are read. The reply is
    /// `Fact::DetachedUsers` with the same `id`.
    DetachedUsers {
        /// Chosen by the core.
        id: u64,
        mounts: Vec<DetachedMount>,
        share: Share,
    },
    /// Which of these holders still use a mount: only they are read. The reply is `Fact::Holders` with
    /// the same `id`.
    StillHeld {
        /// Chosen by the core.
        id: u64,
        mount: Box<MountFacts>,
        /// As a scan has found them.
        holders: Vec<Holder>,
        /// Whether it is mounted still, rather than detached.
        is_attached: bool,
        share: Share,
    },
}

/// A neighbor, link or address belongs to one interface of one namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NeighborKey {
    pub netns: NsInum,
    /// Interface index in it.
    pub ifindex: u32,
    pub address: IpAddr,
}
