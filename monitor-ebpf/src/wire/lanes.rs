//! Who may write how much to the ring: gateways have a lane of their own, everything else a budget per source.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::SHARED;

/// What was over a budget, and therefore only counted.
pub mod counter {
    use super::SHARED;
    use crate::Counter;

    /// Neighbor changes in a namespace that the host or a container owns.
    pub const NAMESPACE: Counter = SHARED.counter(1);
    /// Neighbor changes in namespaces of an unprivileged user.
    pub const OWNER: Counter = SHARED.counter(2);
    /// Neighbor changes in other user namespaces of root's that are no known container's.
    pub const UNKNOWN: Counter = SHARED.counter(3);
    /// Unmount attempts.
    pub const UMOUNT: Counter = SHARED.counter(4);
    /// CNI plugins, and programs with the name of a kubelet or runtime, that were executed.
    pub const EXEC: Counter = SHARED.counter(5);
    /// Entries of known gateways that were set.
    pub const GATEWAY_SET: Counter = SHARED.counter(7);
    /// Names that could not be removed or renamed.
    pub const REMOVE: Counter = SHARED.counter(8);
    /// What was done to interfaces, routes and addresses.
    pub const LINK: Counter = SHARED.counter(9);
}

/// Values of [`SourceKey::lane`].
pub mod lane {
    /// One namespace and control group: the namespace is owned by the initial user namespace, or a container's.
    pub const NAMESPACE: u32 = 1;
    /// All namespaces of one user who is not root.
    pub const OWNER: u32 = 2;
    /// All namespaces that root owns in other user namespaces, unless the daemon knows them as a container's; and
    /// those for which there is no room among the sources of their kind.
    pub const UNKNOWN: u32 = 3;
    /// Unmount attempts of one user who is not root.
    pub const UMOUNT_OF_USER: u32 = 4;
    /// Those of one control group of root's, in the host's mount namespace.
    pub const UMOUNT_ON_HOST: u32 = 5;
    /// The same in all others.
    pub const UMOUNT_IN_MNTNS: u32 = 6;
    /// The same in all other user namespaces of root's.
    pub const UMOUNT_IN_USERNS: u32 = 7;
    /// CNI plugins, and programs with the name of a kubelet or runtime, that were executed in one control group of root's.
    pub const EXEC: u32 = 8;
    /// What sets the entries of known gateways in one namespace. Each has a lane of its own, of which this is the rest.
    pub const GATEWAY_SET: u32 = 9;
    /// From the lanes of unmount attempts to those of names that could not be removed or renamed, which are as many.
    pub const REMOVE_AFTER_UMOUNT: u32 = 6;
    /// Refused removals of one user who is not root.
    pub const REMOVE_OF_USER: u32 = UMOUNT_OF_USER + REMOVE_AFTER_UMOUNT;
    /// Those of one control group of root's, in the host's mount namespace.
    pub const REMOVE_ON_HOST: u32 = UMOUNT_ON_HOST + REMOVE_AFTER_UMOUNT;
    /// The same in all others.
    pub const REMOVE_IN_MNTNS: u32 = UMOUNT_IN_MNTNS + REMOVE_AFTER_UMOUNT;
    /// The same in all other user namespaces of root's.
    pub const REMOVE_IN_USERNS: u32 = UMOUNT_IN_USERNS + REMOVE_AFTER_UMOUNT;
    /// What one control group does to interfaces, routes and addresses in one namespace of the host or of a container.
    pub const LINK: u32 = REMOVE_IN_USERNS + 1;
}

/// Budgets that many share. Each has one rate: a slow one would put off the others beyond the burst of a fast one.
pub mod shared {
    /// Of the namespaces of lane [`UNKNOWN`](super::lane::UNKNOWN).
    pub const UNKNOWN: u32 = 0;
    /// Of users for whom there is no room among those that are told apart.
    pub const USERS: u32 = 1;
    /// Of all other sources for which there is none.
    pub const SOURCES: u32 = 2;
    /// How many there are.
    pub const COUNT: u32 = 3;
}

/// Gateways in lane one at most, of all namespaces.
pub const GATEWAYS_MAX: u32 = 4096;
/// Gateways in lane one at most, of one namespace.
pub const GATEWAYS_OF_NAMESPACE_MAX: usize = 16;
/// Next hops by tunnels of the host in lane one at most: each node of a cluster is one of each other node, and those of a thousand
/// take no more than a quarter of the room, whose rest is for the pods.
pub const TUNNEL_HOPS_MAX: usize = 1024;
/// Which lane of a gateway: index into the value of [`GatewayKey`].
pub mod gateway {
    /// What ends, fails or changes its entry.
    pub const CHANGES: usize = 0;
    /// What sets it: it could be done without end, and takes no place from what ends it.
    pub const SETS: usize = 1;
    /// How many there are.
    pub const LANES: usize = 2;
}
/// Sources that are told apart, without unprivileged users.
pub const SOURCES_MAX: u32 = 4096;
/// Control groups that are told apart within one lane and namespace: who has a cgroup tree of their own can make any number of
/// groups. The others have what all of them have together.
pub const GROUPS_OF_NAMESPACE_MAX: u64 = 16;
/// Control group of what belongs to none, or to the root: no other one has this number in both hierarchies.
pub const NO_GROUP: u32 = u32::MAX;
/// All control groups of one lane and namespace have so many times as much together as one of them.
pub const GROUPS_TOGETHER: u64 = 4;
/// Unprivileged users that are told apart. Who has subordinate user ids, or may change his own, can be many of them, and
/// takes no room from anybody else.
pub const USERS_MAX: u32 = 256;
/// Namespaces of containers in other user namespaces that are told apart.
pub const CONTAINERS_MAX: u32 = 4096;

/// A gateway of a known namespace. The value is when each of its [lanes](gateway) is [empty again](SourceBudget::empty_ns).
#[repr(C)]
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct GatewayKey {
    /// Its network namespace.
    pub netns: u32,
    /// Interface index.
    pub ifindex: u32,
    /// Address, network order; IPv4 in the first four bytes, zeros behind it.
    pub address: [u8; 16],
}

/// Who shares a budget. What does not count in its lane is 0.
#[repr(C)]
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct SourceKey {
    /// One of [`lane`].
    pub lane: u32,
    /// The network namespace; of unmount attempts of a user who is not root, the initial user namespace if the caller is
    /// there.
    pub namespace: u32,
    /// The user in the initial user namespace: who owns the outermost user namespace below that one, or the caller
    /// there. 0 is no unprivileged user.
    pub uid: u32,
    /// Control group of a v1 controller; without any, all of the lane and namespace together.
    pub cgroup_v1: u32,
    /// Control group in the v2 hierarchy.
    pub cgroup_v2: u32,
}

impl SourceKey {
    /// Whether it is one of the control groups of its lane and namespace.
    #[must_use]
    #[inline(always)]
    pub const fn is_group(&self) -> bool {
        self.uid == 0 && (self.cgroup_v1 | self.cgroup_v2) != 0
    }

    /// Its lane and namespace, under which control groups are counted.
    #[must_use]
    #[inline(always)]
    pub const fn place(&self) -> u64 {
        (self.lane as u64) << 32 | self.namespace as u64
    }
}

/// The budget of a source, and what was over it.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct SourceBudget {
    /// When nothing of the burst will be used up any more, boot time. Each record puts it off by an interval; one
    /// that would put it off too far is over the budget.
    pub empty_ns: u64,
    /// Records over the budget.
    pub throttled: u64,
    /// The first one of those that followed each other within a second.
    pub since_ns: u64,
    /// The last one.
    pub last_ns: u64,
    /// Its process; 0 where it had none.
    pub last_tgid: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<GatewayKey>() == 24);
const _: () = assert!(size_of::<SourceKey>() == 20);
const _: () = assert!(size_of::<SourceBudget>() == 40);

/// What the daemon sets before load.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Limits {
    /// Size of the ring.
    pub ring_bytes: u64,
    /// The host's mount namespace; 0 where it is not known.
    pub host_mntns: u64,
    /// Of an unprivileged user.
    pub user: Rate,
    /// Of any other source.
    pub source: Rate,
}

/// How much may be written.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Rate {
    /// One record comes back after this time.
    pub interval_ns: u64,
    /// Interval by interval, the whole burst.
    pub burst_ns: u64,
}

impl Rate {
    /// So many records a second on average, and `burst` at once.
    #[must_use]
    pub const fn new(per_second: u32, burst: u32) -> Self {
        let per_second = if per_second == 0 { 1 } else { per_second };
        let interval_ns = 1_000_000_000 / per_second as u64;
        Self { interval_ns, burst_ns: interval_ns * burst as u64 }
    }
}
