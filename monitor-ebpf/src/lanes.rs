//! Who may write how much to the ring.
//!
//! What one source writes must not hide what another one did. The gateways that the daemon knows have a lane each;
//! everything else is paid from the budget of its source, and what is over that is counted and not written. Whose
//! namespace it is follows from the kernel's own structures, so a namespace counts before the daemon has seen it.

use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::helpers::generated::bpf_ktime_get_boot_ns;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap};
use kevtmon_ebpf::Counter;
use kevtmon_ebpf::lanes::{
    CONTAINERS_MAX, GATEWAYS_MAX, GROUPS_OF_NAMESPACE_MAX, GROUPS_TOGETHER, GatewayKey, Limits, NO_GROUP,
    Rate, SOURCES_MAX, SourceBudget, SourceKey, USERS_MAX, counter, gateway, lane, shared,
};
use kevtmon_ebpf::task::TaskId;

use crate::emit::{self, RingReserve};
use crate::memory::{Structure, offset, volatile};
use crate::task::{OFFSETS, Task};

const SECOND_NS: u64 = 1_000_000_000;
/// A gateway may change so often, on average and at once, and be set as often; further changes are paid from the budget of
/// its namespace.
const GATEWAY_PER_SECOND: u64 = 64;
/// User namespaces lie in each other so deep at most (`create_user_ns` in kernel/user_namespace.c).
const USERNS_DEPTH: u32 = 33;

/// Written by the daemon before load.
#[unsafe(export_name = "LIMITS")]
pub(crate) static LIMITS: Limits =
    Limits { ring_bytes: 1 << 20, host_mntns: 0, user: Rate::new(1, 1), source: Rate::new(1, 1) };

/// Written by the daemon: the gateways of the namespaces that it knows.
#[map]
static GATEWAYS: HashMap<GatewayKey, [u64; gateway::LANES]> = HashMap::with_max_entries(GATEWAYS_MAX, 0);

/// Written by the daemon: network namespaces of containers in other user namespaces.
#[map]
static CONTAINERS: HashMap<u32, u32> = HashMap::with_max_entries(CONTAINERS_MAX, 0);

/// All sources but unprivileged users. The daemon removes those that are long unused. While it is full, new ones share a
/// budget: one that could push others out could have a new budget at any time.
#[map]
static SOURCES: HashMap<SourceKey, SourceBudget> = HashMap::with_max_entries(SOURCES_MAX, 0);

/// How many control groups are told apart, by [`SourceKey::place`]. The daemon counts again when it removes some.
#[map]
static GROUPS: HashMap<u64, u64> = HashMap::with_max_entries(SOURCES_MAX, 0);

/// The same as `SOURCES` of unprivileged users, by a map of their own so that they cannot fill that of the others.
#[map]
static USERS: HashMap<SourceKey, SourceBudget> = HashMap::with_max_entries(USERS_MAX, 0);

/// By [`shared`].
#[map]
static SHARED_BUDGETS: Array<SourceBudget> = Array::with_max_entries(shared::COUNT, 0);

static UNUSED: SourceBudget =
    SourceBudget { empty_ns: 0, throttled: 0, since_ns: 0, last_ns: 0, last_tgid: 0, reserved: 0 };

/// Whether the daemon knows it as the entry of a gateway.
#[inline(always)]
pub(crate) fn is_gateway(entry: &GatewayKey) -> bool {
    GATEWAYS.get_ptr(entry).is_some()
}

/// Which part of the ring a change of a neighbor entry may fill; `None` if it is over its budget, and counted. `user`
/// owns the namespace.
#[inline(always)]
pub(crate) fn neighbor(entry: &GatewayKey, user: impl Structure, task: &TaskId) -> Option<RingReserve> {
    // SAFETY: helper without arguments.
    let now = unsafe { bpf_ktime_get_boot_ns() };
    if let Some(lanes) = GATEWAYS.get_ptr_mut(entry)
        && take_of_gateway(lanes, gateway::CHANGES, now)
    {
        return Some(RingReserve::Gateway);
    }
    let user = outermost(user);
    let level: u32 = user.get(offset!(user_namespace_level));
    let owner: u32 = user.get(offset!(user_namespace_owner));
    if level != 0 && owner != 0 {
        let mut key = SourceKey { lane: lane::OWNER, namespace: 0, uid: owner, cgroup_v1: 0, cgroup_v2: 0 };
        return pay(&mut key, now, counter::OWNER, task.tgid).then_some(RingReserve::Unprivileged);
    }
    // SAFETY: the map's values are plain numbers.
    if level != 0 && unsafe { CONTAINERS.get(entry.netns) }.is_none() {
        let paid = SHARED_BUDGETS
            .get_ptr_mut(shared::UNKNOWN)
            // SAFETY: the value of the map.
            .is_none_or(|budget| unsafe {
                pay_from(budget, &raw const LIMITS.source, 1, now, counter::UNKNOWN, task.tgid)
            });
        return paid.then_some(RingReserve::Unprivileged);
    }
    let mut key = SourceKey {
        lane: lane::NAMESPACE,
        namespace: entry.netns,
        uid: 0,
        cgroup_v1: task.cgroup_v1,
        cgroup_v2: task.cgroup_v2,
    };
    pay(&mut key, now, counter::NAMESPACE, task.tgid).then_some(RingReserve::Namespace)
}

/// The same of what sets the entry of a known gateway, which is counted as `seen`.
#[inline(always)]
pub(crate) fn gateway_set(entry: &GatewayKey, task: &TaskId, seen: Counter) -> Option<RingReserve> {
    let lanes = GATEWAYS.get_ptr_mut(entry)?;
    emit::count(seen);
    // SAFETY: helper without arguments.
    let now = unsafe { bpf_ktime_get_boot_ns() };
    if take_of_gateway(lanes, gateway::SETS, now) {
        return Some(RingReserve::Namespace);
    }
    let key =
        SourceKey { lane: lane::GATEWAY_SET, namespace: entry.netns, uid: 0, cgroup_v1: 0, cgroup_v2: 0 };
    if let Some(budget) = found(&SOURCES, &key).or_else(|| SHARED_BUDGETS.get_ptr_mut(shared::SOURCES)) {
        // SAFETY: a value of either map. It is in use.
        unsafe {
            if (*budget).empty_ns < now {
                (*budget).empty_ns = now;
            }
            note_over(budget, now, task.tgid);
        }
    }
    emit::count(counter::GATEWAY_SET);
    None
}

/// Whether something is written.
pub(crate) enum Paid {
    /// It is, in this part of the ring.
    Yes(RingReserve),
    /// It is over its budget, and counted.
    Over,
    /// There is nothing that it would add to.
    Unwanted,
}

/// The same of what a task does to an interface in a namespace, which `user` owns. Of those that users make for themselves no
/// message tells.
#[inline(always)]
pub(crate) fn link(netns: u32, user: impl Structure, task: &TaskId) -> Paid {
    let level: u32 = user.get(offset!(user_namespace_level));
    // SAFETY: the map's values are plain numbers.
    if level != 0 && unsafe { CONTAINERS.get(netns) }.is_none() {
        return Paid::Unwanted;
    }
    // SAFETY: helper without arguments.
    let now = unsafe { bpf_ktime_get_boot_ns() };
    let (cgroup_v1, cgroup_v2) = (task.cgroup_v1, task.cgroup_v2);
    let mut key = SourceKey { lane: lane::LINK, namespace: netns, uid: 0, cgroup_v1, cgroup_v2 };
    if pay(&mut key, now, counter::LINK, task.tgid) { Paid::Yes(RingReserve::Namespace) } else { Paid::Over }
}

/// The same of an unmount attempt of this task, which may unmount. What the kernel is not known to have answered takes as little
/// room as what users do.
#[inline(always)]
pub(crate) fn umount(task: &Task, is_proven: bool) -> Option<RingReserve> {
    let of_root = if is_proven { RingReserve::Mount } else { RingReserve::Unprivileged };
    mount_call(task, 0, of_root, counter::UMOUNT)
}

/// The same where nothing is known of the task but this: root of a container is like root of the node then, and whether it may
/// unmount is not known.
#[inline(always)]
pub(crate) fn umount_untyped(uid: u32, cgroup_v2: u32, tgid: u32) -> Option<RingReserve> {
    // SAFETY: helper without arguments.
    let now = unsafe { bpf_ktime_get_boot_ns() };
    let mut key = SourceKey { lane: lane::UMOUNT_OF_USER, namespace: 0, uid, cgroup_v1: 0, cgroup_v2: 0 };
    if uid == 0 {
        key.lane = lane::UMOUNT_IN_MNTNS;
        key.cgroup_v2 = cgroup_v2;
    }
    let room = if uid == 0 { RingReserve::Namespace } else { RingReserve::Unprivileged };
    pay(&mut key, now, counter::UMOUNT, tgid).then_some(room)
}

/// The same of a name that this task could not remove or rename. That takes no rights on mounts, so root of a container can do
/// it.
#[inline(always)]
pub(crate) fn remove(task: &Task, is_proven: bool) -> Option<RingReserve> {
    let of_root = if is_proven { RingReserve::Namespace } else { RingReserve::Unprivileged };
    mount_call(task, lane::REMOVE_AFTER_UMOUNT, of_root, counter::REMOVE)
}

/// `after`: from the lanes of unmount attempts to those of this call.
#[inline(always)]
fn mount_call(task: &Task, after: u32, of_root: RingReserve, over: Counter) -> Option<RingReserve> {
    // SAFETY: helper without arguments.
    let now = unsafe { bpf_ktime_get_boot_ns() };
    let id = task.id();
    let user = outermost(task.address.follow(offset!(task_cred)).follow(offset!(cred_user_ns)));
    let level: u32 = user.get(offset!(user_namespace_level));
    let is_initial = level == 0;
    let uid = if is_initial { id.uid } else { user.get(offset!(user_namespace_owner)) };
    let mut key = SourceKey { lane: lane::UMOUNT_OF_USER, namespace: 0, uid, cgroup_v1: 0, cgroup_v2: 0 };
    if uid == 0 {
        (key.cgroup_v1, key.cgroup_v2) = (id.cgroup_v1, id.cgroup_v2);
        key.lane = match (is_initial, u64::from(id.mntns) == volatile(&raw const LIMITS.host_mntns)) {
            (true, true) => lane::UMOUNT_ON_HOST,
            // Whoever may unmount may make any number of mount and user namespaces: they have no budget each.
            (true, false) => lane::UMOUNT_IN_MNTNS,
            (false, _) => lane::UMOUNT_IN_USERNS,
        };
    } else if is_initial {
        key.namespace = id.userns;
    }
    key.lane += after;
    let room = if is_initial && uid == 0 { of_root } else { RingReserve::Unprivileged };
    pay(&mut key, now, over, id.tgid).then_some(room)
}

/// The same of a CNI plugin that this task, which is root's, executed.
#[inline(always)]
pub(crate) fn exec(task: &Task) -> Option<RingReserve> {
    // SAFETY: helper without arguments.
    let now = unsafe { bpf_ktime_get_boot_ns() };
    let id = task.id();
    let (cgroup_v1, cgroup_v2) = (id.cgroup_v1, id.cgroup_v2);
    let mut key = SourceKey { lane: lane::EXEC, namespace: 0, uid: 0, cgroup_v1, cgroup_v2 };
    pay(&mut key, now, counter::EXEC, id.tgid).then_some(RingReserve::Exec)
}

/// The same of a signal to a process that is followed. Anybody can send them to what is his own.
#[inline(always)]
pub(crate) fn signal(task: &Task) -> Option<RingReserve> {
    let id = task.id();
    if id.uid == 0 {
        return exec(task);
    }
    // SAFETY: helper without arguments.
    let now = unsafe { bpf_ktime_get_boot_ns() };
    let mut key =
        SourceKey { lane: lane::UMOUNT_OF_USER, namespace: 0, uid: id.uid, cgroup_v1: 0, cgroup_v2: 0 };
    pay(&mut key, now, counter::EXEC, id.tgid).then_some(RingReserve::Unprivileged)
}

/// Whether a task has its rights on the whole node.
#[inline(always)]
pub(crate) fn is_in_initial_userns(task: &Task) -> bool {
    let user = task.address.follow(offset!(task_cred)).follow(offset!(cred_user_ns));
    user.get::<u32>(offset!(user_namespace_level)) == 0
}

/// The user namespace itself, or what it lies in right below the initial one: whoever owns that can make any number
/// of others, with any of the users that are his there as their owners.
#[inline(always)]
fn outermost<S: Structure>(user: S) -> S {
    let mut user = user;
    let mut depth = 0;
    while depth < USERNS_DEPTH && user.get::<u32>(offset!(user_namespace_level)) > 1 {
        user = user.follow(offset!(user_namespace_parent));
        depth += 1;
    }
    user
}

/// Whether the source has a record left; else it is counted. The key is changed, as a second one would not fit on the
/// stack: before 6.6 that of all calls together is 512 bytes, each rounded up to 32.
#[inline(always)]
fn pay(key: &mut SourceKey, now: u64, over: Counter, tgid: u32) -> bool {
    if key.uid != 0 {
        let budget = found(&USERS, key).or_else(|| SHARED_BUDGETS.get_ptr_mut(shared::USERS));
        // SAFETY: a value of either map.
        return budget
            .is_none_or(|budget| unsafe { pay_from(budget, &raw const LIMITS.user, 1, now, over, tgid) });
    }
    let rate = &raw const LIMITS.source;
    if !key.is_group() {
        key.cgroup_v2 = NO_GROUP;
    }
    if let Some(budget) = found_group(key)
        // SAFETY: a value of the map.
        && !unsafe { pay_from(budget, rate, 1, now, over, tgid) }
    {
        return false;
    }
    (key.cgroup_v1, key.cgroup_v2) = (0, 0);
    let budget = found(&SOURCES, key).or_else(|| SHARED_BUDGETS.get_ptr_mut(shared::SOURCES));
    // SAFETY: a value of either map.
    budget.is_none_or(|budget| unsafe { pay_from(budget, rate, GROUPS_TOGETHER, now, over, tgid) })
}

/// The budget of a source, whole if it is new; `None` if there is no room for it.
#[inline(always)]
fn found(sources: &HashMap<SourceKey, SourceBudget>, key: &SourceKey) -> Option<*mut SourceBudget> {
    sources.get_ptr_mut(key).or_else(|| {
        // Fails if another CPU was faster, or where there is no room.
        #[expect(clippy::needless_borrows_for_generic_args, reason = "a value would be copied to the stack")]
        let _ = sources.insert(key, &UNUSED, u64::from(BPF_NOEXIST));
        sources.get_ptr_mut(key)
    })
}

/// The same of a control group; `None` also if too many of its lane and namespace are told apart.
#[expect(clippy::needless_borrows_for_generic_args, reason = "a value would be copied to the stack")]
#[inline(always)]
fn found_group(key: &SourceKey) -> Option<*mut SourceBudget> {
    if let Some(budget) = SOURCES.get_ptr_mut(key) {
        return Some(budget);
    }
    let place = key.place();
    if GROUPS.get_ptr_mut(&place).is_none() {
        // Fails if another CPU was faster, or where there is no room.
        let none = 0;
        let _ = GROUPS.insert(&place, none, u64::from(BPF_NOEXIST));
    }
    let count = GROUPS.get_ptr_mut(&place)?;
    if volatile(count) >= GROUPS_OF_NAMESPACE_MAX {
        return None;
    }
    if SOURCES.insert(key, &UNUSED, u64::from(BPF_NOEXIST)).is_ok() {
        // SAFETY: a value of the map.
        unsafe { emit::add_one(count) };
    }
    SOURCES.get_ptr_mut(key)
}

/// `share`: it costs only such a part of what one record of the rate costs.
///
/// # Safety
/// `budget` must be a value of a map, and `rate` one of [`LIMITS`].
#[inline(always)]
unsafe fn pay_from(
    budget: *mut SourceBudget,
    rate: *const Rate,
    share: u64,
    now: u64,
    over: Counter,
    tgid: u32,
) -> bool {
    // SAFETY: by the caller's promise.
    let (interval, burst) =
        unsafe { (volatile(&raw const (*rate).interval_ns), volatile(&raw const (*rate).burst_ns)) };
    // SAFETY: by the caller's promise.
    unsafe {
        if take(&raw mut (*budget).empty_ns, now, interval / share, burst) {
            return true;
        }
        note_over(budget, now, tgid);
    }
    emit::count(over);
    false
}

/// Counts a record over a budget there.
///
/// # Safety
/// `budget` must be a value of a map.
#[inline(always)]
unsafe fn note_over(budget: *mut SourceBudget, now: u64, tgid: u32) {
    // SAFETY: by the caller's promise.
    unsafe {
        emit::add_one(&raw mut (*budget).throttled);
        let last = volatile(&raw const (*budget).last_ns);
        // Another CPU may have written a later time, long ago if this task has lost its CPU since it read the clock.
        if now < last {
            return;
        }
        if now > last.wrapping_add(SECOND_NS) {
            (*budget).since_ns = now;
        }
        (*budget).last_ns = now;
        (*budget).last_tgid = tgid;
    }
}

/// Whether a gateway has one left in one of its lanes.
#[inline(always)]
fn take_of_gateway(lanes: *mut [u64; gateway::LANES], which: usize, now: u64) -> bool {
    // SAFETY: a value of the map, and a lane of it.
    unsafe { take(&raw mut (*lanes)[which], now, SECOND_NS / GATEWAY_PER_SECOND, SECOND_NS) }
}

/// Takes one from a bucket that gets one back every `interval`. One number is the whole bucket, so that two CPUs at
/// once can at worst take two for one.
///
/// # Safety
/// `empty_ns` must be valid for reads and writes.
#[inline(always)]
unsafe fn take(empty_ns: *mut u64, now: u64, interval: u64, burst: u64) -> bool {
    // SAFETY: by the caller's promise.
    let before = unsafe { core::ptr::read_volatile(empty_ns) };
    let next = if before > now { before } else { now } + interval;
    if next - now > burst {
        return false;
    }
    // SAFETY: by the caller's promise.
    unsafe { core::ptr::write_volatile(empty_ns, next) };
    true
}
