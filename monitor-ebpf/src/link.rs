//! Interfaces: who set one up or down, deleted it, or moved it to another namespace. Messages of rtnetlink tell that it
//! happened, and not who did it.
//!
//! All of these pass through the queueing disciplines, in the task that asked for it. What the programs read beside them
//! tells an act on the interface from one on its queues (`tc`), and from the carrier, which a kernel thread or whoever
//! just reads the state of the interface handles (`linkwatch_sync_dev`, net/core/link_watch.c). Nothing passes there when an
//! interface that is down is deleted or moved and never was up, or is set up again: then nobody is named.

use aya_ebpf::helpers::generated::bpf_ktime_get_boot_ns;
use aya_ebpf::macros::{btf_tracepoint, map};
use aya_ebpf::maps::{LruHashMap, PerCpuArray};
use aya_ebpf::programs::BtfTracePointContext;
use kevtmon_ebpf::Header;
use kevtmon_ebpf::link::{KIND_LINK, LinkOffsets, LinkRecord, counter, operation};

use crate::memory::{Structure as _, Typed, offset};
use crate::task::{self, Program};
use crate::{emit, lanes};

/// `IFF_UP` of include/uapi/linux/if.h.
const UP: u32 = 1;
/// Bit of `__LINK_STATE_START` (include/linux/netdevice.h): set before an interface is up, and cleared before it is down.
const STARTED: u64 = 1;
/// `TCQ_F_BUILTIN` (include/net/sch_generic.h): what an interface has that never was up, and one that is shut down.
const BUILTIN: u32 = 1;
/// `LIST_POISON2` of 64-bit architectures (include/linux/poison.h): where an interface is in no list of its namespace.
const UNLISTED: u64 = 0xdead_0000_0000_0122;
/// Each queue of an interface that is set up gets its discipline, within such a time.
const OPENING_NS: u64 = 1_000_000;

/// Written by the daemon before load.
#[unsafe(export_name = "LINK_OFFSETS")]
pub(crate) static OFFSETS: LinkOffsets = LinkOffsets::ZERO;

/// Records that were not written, by network namespace.
#[map]
static LINKS_MISSING: LruHashMap<u32, u32> = LruHashMap::with_max_entries(1024, 0);

/// The last interface that was set up.
#[repr(C)]
#[derive(Clone, Copy)]
struct Opened {
    device: u64,
    at: u64,
    tid: u64,
}

#[map]
static LAST_OPENED: PerCpuArray<Opened> = PerCpuArray::with_max_entries(1, 0);

/// `qdisc_reset(struct Qdisc *q)`, since 5.8.
#[btf_tracepoint(function = "qdisc_reset")]
fn qdisc_reset(ctx: BtfTracePointContext) -> i32 {
    let qdisc = Typed(ctx.arg::<u64>(0));
    let queue = qdisc.follow(offset!(qdisc_dev_queue));
    let device = queue.follow(offset!(netdev_queue_dev));
    let flags: u32 = device.get(offset!(net_device_flags));
    let state: u64 = device.get(offset!(net_device_state));
    // `__dev_close_many` (net/core/dev.c) is between the two.
    if flags & UP != 0 && state & STARTED == 0 && is_first_of(device, queue, qdisc) {
        report(device, Program::QdiscReset, operation::CLOSED);
    }
    0
}

/// `qdisc_destroy(struct Qdisc *q)`, since 5.8.
#[btf_tracepoint(function = "qdisc_destroy")]
fn qdisc_destroy(ctx: BtfTracePointContext) -> i32 {
    let qdisc = Typed(ctx.arg::<u64>(0));
    let queue = qdisc.follow(offset!(qdisc_dev_queue));
    let device = queue.follow(offset!(netdev_queue_dev));
    let first: u64 = device.get(offset!(net_device_tx));
    let listed: u64 = device.get(offset!(net_device_listed));
    // Both ways, it has left its namespace before its queues are shut down.
    if queue.0 != first || listed != UNLISTED {
        return 0;
    }
    let list = offset!(net_device_unreg_list);
    let queued: u64 = device.get(list);
    let is_deleted = queued != 0 && queued != device.0 + u64::from(list);
    let operation = if is_deleted { operation::DELETED } else { operation::MOVED };
    report(device, Program::QdiscDestroy, operation);
    0
}

/// `qdisc_create(const struct Qdisc_ops *ops, struct net_device *dev, u32 parent)`, since 5.8.
#[btf_tracepoint(function = "qdisc_create")]
fn qdisc_create(ctx: BtfTracePointContext) -> i32 {
    let device = Typed(ctx.arg::<u64>(1));
    let flags: u32 = device.get(offset!(net_device_flags));
    let state: u64 = device.get(offset!(net_device_state));
    let before: u32 = device.follow(offset!(net_device_qdisc)).get(offset!(qdisc_flags));
    // Whoever adds one by hand (`tc`) finds another one there.
    if flags & UP != 0 && state & STARTED != 0 && before & BUILTIN != 0 && is_opened_now(device) {
        report(device, Program::QdiscCreate, operation::OPENED);
    }
    0
}

/// Whether it is what the first queue of an interface has, of the one for each of its queues and of those below it.
#[inline(always)]
fn is_first_of(device: Typed, queue: Typed, qdisc: Typed) -> bool {
    let first: u64 = device.get(offset!(net_device_tx));
    let attached: u64 = queue.get(offset!(netdev_queue_qdisc));
    queue.0 == first && qdisc.0 == attached
}

/// Whether this is the first queue of an interface that is being set up.
#[inline(always)]
fn is_opened_now(device: Typed) -> bool {
    // SAFETY: helper without arguments.
    let now = unsafe { bpf_ktime_get_boot_ns() };
    let tid = aya_ebpf::helpers::bpf_get_current_pid_tgid();
    let Some(last) = LAST_OPENED.get_ptr_mut(0) else { return true };
    // SAFETY: a slot of the map, which belongs to this CPU.
    unsafe {
        let is_same = (*last).tid == tid && (*last).device == device.0 && now - (*last).at < OPENING_NS;
        (*last).device = device.0;
        (*last).tid = tid;
        (*last).at = now;
        !is_same
    }
}

#[inline(always)]
fn report(device: Typed, program: Program, operation: u8) {
    let Some(task) = task::current_typed(program) else { return };
    let namespace = device.follow(offset!(net_device_nd_net));
    let netns: u32 = namespace.get(offset!(net_ns_inum));
    let user = namespace.follow(offset!(net_user_ns));
    let room = match lanes::link(netns, user, task.id()) {
        lanes::Paid::Yes(room) => room,
        lanes::Paid::Over => return miss(netns),
        lanes::Paid::Unwanted => return,
    };
    task::send_details(task, room);
    let ifindex: u32 = device.get(offset!(net_device_ifindex));
    let missing = missing(netns);
    let detail: u32 = namespace.get(offset!(net_cookie));
    let is_sent = emit::record::<LinkRecord>(room, counter::RING_FULL, |record| {
        // SAFETY: the ring gave memory for a whole, aligned record, and every field is written.
        unsafe {
            (*record).header = Header { kind: KIND_LINK, detail, boot_ns: bpf_ktime_get_boot_ns() };
            (*record).task = *task.id();
            (*record).netns = netns;
            (*record).ifindex = ifindex;
            (*record).task_root = task.root();
            (*record).missing = missing;
            (*record).operation = operation;
            (*record).reserved = [0; 7];
        }
    });
    if !is_sent {
        miss(netns);
    }
}

/// Records about a namespace that are missing so far: of interfaces, and of what else is in it and not of neighbor entries.
#[inline(always)]
pub(crate) fn missing(netns: u32) -> u32 {
    // SAFETY: the map's values are plain numbers.
    unsafe { LINKS_MISSING.get(netns) }.map_or(0, |missing| *missing)
}

/// Counts a record that is missing.
#[inline(always)]
pub(crate) fn miss(netns: u32) {
    // Two CPUs at once may count one for two: it is another number all the same.
    let _ = LINKS_MISSING.insert(netns, missing(netns).wrapping_add(1), 0);
}
