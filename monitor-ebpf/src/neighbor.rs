//! Neighbor entries: what was removed, replaced, downgraded or failed goes out, and what gives a gateway an address again;
//! the rest is counted.
//!
//! The tracepoint `neigh_update` fires before the change, so it shows the state before. A deletion by
//! request is complete there: the cleanup that follows sees state FAILED, and may come late when something
//! still holds the entry. A cleanup in state PERMANENT is collateral of a link, address or namespace. One that something
//! else uses at that moment, such as a packet, is made NOARP first, whatever it was.

use aya_ebpf::EbpfContext;
use aya_ebpf::helpers::generated::bpf_ktime_get_boot_ns;
use aya_ebpf::macros::{btf_tracepoint, map, raw_tracepoint};
use aya_ebpf::maps::{Array, PerCpuArray};
use aya_ebpf::programs::{BtfTracePointContext, RawTracePointContext};
use aya_log_ebpf::debug;
use kevtmon_ebpf::lanes::GatewayKey;
use kevtmon_ebpf::neighbor::{
    KIND_NEIGHBOR, LLADDR_CAPACITY, NeighborOffsets, NeighborRecord, counter, device_mark, operation,
};
use kevtmon_ebpf::task::TaskId;
use kevtmon_ebpf::{Counter, Header, MISSING};

use crate::emit::{self, RingReserve};
use crate::lanes;
use crate::memory::{Kernel, Structure, Typed, offset};
use crate::task::{self, Program, Task};

// NUD_* of include/uapi/linux/neighbour.h.
const FAILED: u8 = 0x20;
const NOARP: u8 = 0x40;
const PERMANENT: u8 = 0x80;
/// REACHABLE, STALE, DELAY, PROBE: resolved by the protocol.
const LEARNED: u8 = 0x02 | 0x04 | 0x08 | 0x10;
/// States in which an entry has a link-layer address (`NUD_VALID`). Of another one the kernel takes no address.
const VALID: u8 = PERMANENT | NOARP | LEARNED;
/// `NEIGH_UPDATE_F_OVERRIDE` of include/net/neighbour.h, bit 0 in every version.
const OVERRIDE: u32 = 1;
/// `NEIGH_UPDATE_F_OVERRIDE_ISROUTER`, bit 2 in every version: a request that replaces an entry has it, one that deletes
/// an entry has not.
const OVERRIDE_ISROUTER: u32 = 4;
const AF_INET: u32 = 2;
const SECOND_NS: u64 = 1_000_000_000;
/// Where the arguments of a tracepoint have the second one, in bytes.
const LLADDR_ARGUMENT: u32 = 8;

/// Written by the daemon before load.
#[unsafe(export_name = "NEIGHBOR_OFFSETS")]
static OFFSETS: NeighborOffsets = NeighborOffsets::ZERO;

/// An entry, and where its pointers lead. They are read once: the verifier searches all types of the kernel by name, several times,
/// for each pointer that is read from an argument, on each way that it walks.
#[derive(Clone, Copy)]
struct Neighbor<S> {
    /// `struct neighbour`.
    entry: S,
    /// `struct net_device`.
    device: S,
    /// `struct neigh_table`.
    table: S,
}

impl<S: Structure> Neighbor<S> {
    #[inline(always)]
    fn read(entry: S) -> Self {
        let (device, table) = (entry.follow(offset!(neighbour_dev)), entry.follow(offset!(neighbour_tbl)));
        Self { entry, device, table }
    }

    #[inline(always)]
    fn family(&self) -> u32 {
        self.table.get(offset!(neigh_table_family))
    }

    #[inline(always)]
    fn netns(&self) -> S {
        self.device.follow(offset!(net_device_nd_net))
    }
}

/// What a program hands to [`send`].
#[repr(C)]
#[derive(Clone, Copy)]
struct Change {
    operation: u8,
    old_state: u8,
    new_state: u8,
    new_lladdr: Kernel,
    netlink_port: u32,
}

/// One slot for each program, and one more. The verifier forgets here what it found out on the way, and walks what follows once,
/// not once for each way.
#[map]
static CHANGES: PerCpuArray<Change> = PerCpuArray::with_max_entries(RESOLVED_SLOT + 1, 0);
/// Of what the protocol resolves: before 6.1 a softirq may run the program while a task's request is in it on the same processor.
const RESOLVED_SLOT: u32 = Program::COUNT;

/// The entries that a process has made within a minute while their table was nearly full, those that were refused too.
#[repr(C)]
#[derive(Clone, Copy)]
struct Created {
    start_ns: u64,
    /// When it began.
    since_ns: u64,
    tgid: u32,
    family: u32,
    entries: u64,
}

/// By the low bits of the process id: of two processes in one slot neither is reported as long as both go on.
#[map]
static CREATED: Array<Created> = Array::with_max_entries(CREATED_SLOTS, 0);
const CREATED_SLOTS: u32 = 64;
const CREATED_WITHIN_NS: u64 = 60 * SECOND_NS;
/// Fewer are not reported; of more, each doubling is.
const CREATED_MIN: u64 = 64;

/// `neigh_update(struct neighbour *n, const u8 *lladdr, u8 new, u32 flags, u32 nlmsg_pid)`, since 5.1.
#[btf_tracepoint(function = "neigh_update")]
fn neigh_update(ctx: BtfTracePointContext) -> i32 {
    let [state, flags, port] = [ctx.arg::<u64>(2), ctx.arg(3), ctx.arg(4)];
    updated(&ctx, Typed(ctx.arg(0)), state as u8, flags as u32, port as u32);
    0
}

/// The same on a kernel without types of its own, as each of the programs `_raw`: the verifier does not know what an argument
/// points to.
#[raw_tracepoint(tracepoint = "neigh_update")]
fn neigh_update_raw(ctx: RawTracePointContext) {
    let [state, flags, port] = [ctx.arg::<u64>(2), ctx.arg(3), ctx.arg(4)];
    updated(&ctx, Kernel(ctx.arg(0)), state as u8, flags as u32, port as u32);
}

#[inline(always)]
fn updated(ctx: &impl EbpfContext, entry: impl Structure, new_state: u8, flags: u32, netlink_port: u32) {
    let dead: u8 = entry.get(offset!(neighbour_dead));
    if dead != 0 {
        return;
    }
    let old_state: u8 = entry.get(offset!(neighbour_nud_state));
    let is_by_request = flags & offset!(admin_flag) != 0;
    // The way of every answer of a neighbor that is known already ends here.
    if !is_by_request && (old_state & VALID != 0 || new_state & LEARNED == 0) {
        return;
    }
    // The verifier of 5.10 lets nobody load an argument that points to an integer.
    let new_lladdr = Kernel(ctx.as_ptr() as u64).follow(LLADDR_ARGUMENT);
    if !is_by_request && new_lladdr.is_null() {
        return;
    }
    let neighbour = Neighbor::read(entry);
    let mut change = Change { operation: operation::CHANGED, old_state, new_state, new_lladdr, netlink_port };
    let is_to_resolve = is_by_request && flags & offset!(resolve_flags) != 0;
    if is_to_resolve {
        // Whatever else the request says.
        change.new_state = old_state & !PERMANENT;
    } else if new_state & FAILED != 0 && flags & (OVERRIDE | OVERRIDE_ISROUTER) == OVERRIDE {
        count_deletion(old_state, counter::PERMANENT_ADMIN, counter::LEARNED_ADMIN, counter::NOARP_ADMIN);
        change.operation = operation::DELETED;
    }
    // What has no address differs from nothing.
    let has_address = old_state & VALID != 0 && new_lladdr.0 != 0;
    let other = is_by_request && has_address && differs(&neighbour, new_lladdr);
    if old_state & PERMANENT == 0 {
        // Without an address the kernel makes no entry, and without OVERRIDE it changes none.
        let is_taken = match old_state & VALID {
            0 => new_lladdr.0 != 0,
            _ => new_lladdr.0 == 0 || flags & OVERRIDE != 0,
        };
        let is_set = !is_to_resolve && new_state & VALID != 0 && is_taken;
        // Packets go where they went, and the kernel checks that or not as it did.
        let stays = |states: u8| old_state & states != 0 && new_state & states != 0;
        let is_same = !other && (stays(LEARNED) || stays(NOARP));
        // Of all entries there would be too much.
        if !is_set || is_same || !lanes::is_gateway(&key_of(&neighbour)) {
            return;
        }
        change.operation = if is_by_request { operation::SET } else { operation::RESOLVED };
    } else if is_to_resolve || new_state & VALID == 0 {
        change.new_lladdr = Kernel(0);
    } else {
        // Without OVERRIDE the kernel keeps the old address and does nothing.
        if (other && flags & OVERRIDE == 0) || (!other && new_state & PERMANENT != 0) {
            return;
        }
    }
    debug!(ctx, "neigh_update {:x} -> {:x}", old_state, change.new_state);
    report(&neighbour, Program::NeighUpdate, &change);
}

/// `neigh_cleanup_and_release(struct neighbour *n, int rc)`, since 5.1.
#[btf_tracepoint(function = "neigh_cleanup_and_release")]
fn neigh_cleanup_and_release(ctx: BtfTracePointContext) -> i32 {
    removed(&ctx, Typed(ctx.arg(0)));
    0
}

#[raw_tracepoint(tracepoint = "neigh_cleanup_and_release")]
fn neigh_cleanup_raw(ctx: RawTracePointContext) {
    removed(&ctx, Kernel(ctx.arg(0)));
}

#[inline(always)]
fn removed(ctx: &impl EbpfContext, entry: impl Structure) {
    let state: u8 = entry.get(offset!(neighbour_nud_state));
    let neighbour = Neighbor::read(entry);
    let is_stray = state == NOARP && is_blackhole(entry) && lanes::is_gateway(&key_of(&neighbour));
    if is_stray {
        emit::count(counter::UNKNOWN_COLLATERAL);
    } else {
        count_deletion(
            state,
            counter::PERMANENT_COLLATERAL,
            counter::LEARNED_COLLATERAL,
            counter::NOARP_COLLATERAL,
        );
        if state & PERMANENT == 0 {
            return;
        }
    }
    let change = Change {
        operation: operation::COLLATERAL,
        old_state: if is_stray { 0 } else { state },
        new_state: 0,
        new_lladdr: Kernel(0),
        netlink_port: 0,
    };
    debug!(ctx, "cleanup in state {:x}", state);
    report(&neighbour, Program::NeighCleanup, &change);
}

/// `neigh_timer_handler(struct neighbour *n, int err)`, since 5.1. Fires after the state changed, in
/// whatever task the timer interrupted: there is no actor.
#[btf_tracepoint(function = "neigh_timer_handler")]
fn neigh_timer_handler(ctx: BtfTracePointContext) -> i32 {
    timed_out(Typed(ctx.arg(0)));
    0
}

#[raw_tracepoint(tracepoint = "neigh_timer_handler")]
fn neigh_timer_raw(ctx: RawTracePointContext) {
    timed_out(Kernel(ctx.arg(0)));
}

#[inline(always)]
fn timed_out(entry: impl Structure) {
    let state: u8 = entry.get(offset!(neighbour_nud_state));
    if state & FAILED != 0 {
        let change = Change {
            operation: operation::FAILED,
            old_state: 0,
            new_state: state,
            new_lladdr: Kernel(0),
            netlink_port: 0,
        };
        report_without_task(&Neighbor::read(entry), &change);
    }
}

/// `neigh_create(struct neigh_table *tbl, struct net_device *dev, const void *pkey, const struct neighbour *n, bool
/// exempt_from_gc)`, since 5.1; also where the table is full and there is no entry.
#[btf_tracepoint(function = "neigh_create")]
fn neigh_create(ctx: BtfTracePointContext) -> i32 {
    let is_exempt = ctx.arg::<u64>(4) as u8 != 0;
    if !is_exempt {
        created(Typed(ctx.arg(0)), Typed(ctx.arg(1)));
    }
    0
}

#[raw_tracepoint(tracepoint = "neigh_create")]
fn neigh_create_raw(ctx: RawTracePointContext) {
    let is_exempt = ctx.arg::<u64>(4) as u8 != 0;
    if !is_exempt {
        created(Kernel(ctx.arg(0)), Kernel(ctx.arg(1)));
    }
}

#[inline(always)]
fn created<S: Structure>(table: S, device: S) {
    let entries: i32 = table.get(offset!(neigh_table_gc_entries));
    let nearly: i32 = table.get(offset!(neigh_table_gc_thresh2));
    if entries < nearly {
        return;
    }
    let Some(task) = task::current_of::<S>(Program::NeighCreate) else { return };
    let netns = device.follow(offset!(net_device_nd_net));
    // A packet that arrives or passes has nothing to do with the current task; it may still interrupt one of that namespace.
    if task.id().netns != netns.get::<u32>(offset!(net_ns_inum)) {
        return;
    }
    let family: u32 = table.get(offset!(neigh_table_family));
    let made = count_created(task.id(), family);
    if made < CREATED_MIN || !made.is_power_of_two() {
        return;
    }
    let entry = GatewayKey { netns: task.id().netns, ifindex: 0, address: [0; 16] };
    if let Some(room) = lanes::neighbor(&entry, netns.follow(offset!(net_user_ns)), task.id()) {
        task::send_details(task, room);
        send_created(&task, family, made, room);
    }
}

#[inline(always)]
fn count_created(task: &TaskId, family: u32) -> u64 {
    let is_ipv6 = u32::from(family != AF_INET);
    let Some(slot) = CREATED.get_ptr_mut((task.tgid * 2 + is_ipv6) % CREATED_SLOTS) else { return 0 };
    // SAFETY: helper without arguments.
    let now = unsafe { bpf_ktime_get_boot_ns() };
    // SAFETY: a value of the map, of plain numbers. Other processors may write there at the same time: then
    // the count is wrong.
    unsafe {
        let mut created = slot.read_volatile();
        let is_same =
            created.start_ns == task.start_ns && created.tgid == task.tgid && created.family == family;
        if !is_same || now.wrapping_sub(created.since_ns) > CREATED_WITHIN_NS {
            created = Created { start_ns: task.start_ns, since_ns: now, tgid: task.tgid, family, entries: 0 };
        }
        created.entries += 1;
        slot.write_volatile(created);
        created.entries
    }
}

#[inline(always)]
fn send_created(task: &Task, family: u32, made: u64, room: RingReserve) {
    let lost = room.loss(counter::RING_FULL, counter::USERS_RING_FULL);
    emit::record::<NeighborRecord>(room, lost, |record| {
        // SAFETY: the ring gave memory for a whole, aligned record, of which zeros are valid.
        unsafe {
            record
                .cast::<[u64; size_of::<NeighborRecord>() / 8]>()
                .write([0; size_of::<NeighborRecord>() / 8]);
            (*record).header = Header { kind: KIND_NEIGHBOR, detail: 0, boot_ns: bpf_ktime_get_boot_ns() };
            (*record).task = *task.id();
            (*record).task_root = task.root();
            (*record).netns = task.id().netns;
            (*record).family = family as u16;
            (*record).netlink_port = made as u32;
            (*record).operation = operation::CREATED;
            if room == RingReserve::Unprivileged {
                (*record).device_marks = device_mark::NETNS_OF_USER;
            }
        }
    });
}

#[inline(always)]
fn report<S: Structure>(neighbour: &Neighbor<S>, program: Program, change: &Change) {
    let slot = if change.operation == operation::RESOLVED { RESOLVED_SLOT } else { program as u32 };
    let Some(slot) = CHANGES.get_ptr_mut(slot) else { return };
    // SAFETY: a slot of the map, which no other run on this processor uses meanwhile. Since 6.1 the kernel sees to that. Before it
    // no task is preempted in a tracepoint, requests come from tasks alone, and the rest from where no softirq comes between.
    let change = unsafe {
        slot.write_volatile(*change);
        &slot.read_volatile()
    };
    // What the protocol resolves has nothing to do with the current task.
    let is_by_task = change.operation != operation::RESOLVED;
    let Some(task) = is_by_task.then(|| task::current_of::<S>(program)).flatten() else {
        return report_without_task(neighbour, change);
    };
    if let Some(room) = room_for(neighbour, task.id(), change) {
        task::send_details(task, room);
        send(neighbour, task.id(), task.root(), change, room);
    }
}

#[inline(always)]
fn report_without_task(neighbour: &Neighbor<impl Structure>, change: &Change) {
    if let Some(room) = room_for(neighbour, &task::NO_TASK, change) {
        send(neighbour, &task::NO_TASK, 0, change, room);
    }
}

/// `None` if it is over the budget of its source, and counted.
#[inline(always)]
fn room_for(neighbour: &Neighbor<impl Structure>, id: &TaskId, change: &Change) -> Option<RingReserve> {
    match change.operation {
        operation::SET => return lanes::gateway_set(&key_of(neighbour), id, counter::GATEWAY_SET),
        operation::RESOLVED => return lanes::gateway_set(&key_of(neighbour), id, counter::GATEWAY_RESOLVED),
        _ => {}
    }
    lanes::neighbor(&key_of(neighbour), neighbour.netns().follow(offset!(net_user_ns)), id)
}

#[inline(always)]
fn key_of(neighbour: &Neighbor<impl Structure>) -> GatewayKey {
    let mut key = GatewayKey {
        netns: neighbour.netns().get(offset!(net_ns_inum)),
        ifindex: neighbour.device.get(offset!(net_device_ifindex)),
        address: [0; 16],
    };
    // SAFETY: the whole key is written.
    unsafe { put_address(neighbour, &raw mut key.address) };
    key
}

/// Whether packets to an entry that ends are discarded: so `neigh_flush_dev` (net/core/neighbour.c) leaves one that something
/// still uses. One that had no use for a link-layer address has an output function of its kind.
#[inline(always)]
fn is_blackhole(entry: impl Structure) -> bool {
    let dead: u8 = entry.get(offset!(neighbour_dead));
    let output: u64 = entry.get(offset!(neighbour_output));
    let kind = entry.follow(offset!(neighbour_ops));
    let outputs: [u64; 2] =
        [kind.get(offset!(neigh_ops_output)), kind.get(offset!(neigh_ops_connected_output))];
    dead != 0 && output != outputs[0] && output != outputs[1]
}

/// Writes the address, with zeros behind it.
///
/// # Safety
/// `into` must be valid for writes.
#[inline(always)]
unsafe fn put_address(neighbour: &Neighbor<impl Structure>, into: *mut [u8; 16]) {
    let family = neighbour.family();
    // An array without a size, at the end: not within the structure that the verifier knows.
    let key = neighbour.entry.untyped();
    // SAFETY: by the caller's promise.
    unsafe {
        if family == AF_INET {
            *into = [0; 16];
            key.put(offset!(neighbour_primary_key), into.cast::<[u8; 4]>());
        } else {
            key.put(offset!(neighbour_primary_key), into);
        }
    }
}

#[inline(always)]
fn count_deletion(old_state: u8, permanent: Counter, learned: Counter, noarp: Counter) {
    if old_state & PERMANENT != 0 {
        emit::count(permanent);
    } else if old_state & LEARNED != 0 {
        emit::count(learned);
    } else if old_state & NOARP != 0 {
        emit::count(noarp);
    }
}

/// Whether the entry has another link-layer address than the one given.
#[inline(always)]
fn differs(neighbour: &Neighbor<impl Structure>, lladdr: Kernel) -> bool {
    let len: u8 = neighbour.device.get(offset!(net_device_addr_len));
    let new: [u8; LLADDR_CAPACITY] = lladdr.get(0);
    let mut index = 0;
    let mut differs = 0;
    while index < LLADDR_CAPACITY {
        // All ones for the bytes that count: arithmetic, because a branch here doubles the verifier's paths.
        let counts = (index as i32 - i32::from(len)) >> 31;
        let old: u8 = neighbour.entry.get(offset!(neighbour_ha) + index as u32);
        differs |= i32::from(old ^ new[index]) & counts;
        index += 1;
    }
    differs != 0
}

#[inline(always)]
fn send(neighbour: &Neighbor<impl Structure>, id: &TaskId, root: u32, change: &Change, room: RingReserve) {
    let device = neighbour.device;
    let family = neighbour.family();
    let list = offset!(net_device_unreg_list);
    let queued: u64 = device.get(list);
    let unregistering = queued != 0 && queued != device.untyped().0 + u64::from(list);
    let first_address = device.follow(offset!(net_device_ip_ptr)).follow(offset!(in_device_ifa_list));

    let netns = neighbour.netns();

    let mut marks = 0;
    if unregistering {
        marks |= device_mark::UNREGISTERING;
    }
    if !first_address.is_null() {
        marks |= device_mark::HAS_ADDRESS;
    }
    if offset!(net_references) != MISSING {
        let references: u32 = netns.get(offset!(net_references));
        marks |= if references == 0 { device_mark::NETNS_ENDED } else { device_mark::NETNS_ALIVE };
    }
    let cookie: u32 = netns.get(offset!(net_cookie));
    if room == RingReserve::Unprivileged {
        marks |= device_mark::NETNS_OF_USER;
    }
    let lost = match change.operation {
        operation::SET | operation::RESOLVED => counter::GATEWAY_SET_RING_FULL,
        _ => room.loss(counter::RING_FULL, counter::USERS_RING_FULL),
    };
    emit::record::<NeighborRecord>(room, lost, |record| {
        // SAFETY: the ring gave memory for a whole, aligned record, and every field is written.
        unsafe {
            (*record).header =
                Header { kind: KIND_NEIGHBOR, detail: cookie, boot_ns: bpf_ktime_get_boot_ns() };
            (*record).task = *id;
            (*record).netns = netns.get(offset!(net_ns_inum));
            (*record).ifindex = device.get(offset!(net_device_ifindex));
            (*record).device_flags = device.get(offset!(net_device_flags));
            (*record).netlink_port = change.netlink_port;
            (*record).family = family as u16;
            (*record).operation = change.operation;
            (*record).old_state = change.old_state;
            (*record).new_state = change.new_state;
            (*record).lladdr_len = device.get(offset!(net_device_addr_len));
            (*record).device_marks = marks;
            (*record).has_new_lladdr = u8::from(change.new_lladdr.0 != 0);
            put_address(neighbour, &raw mut (*record).address);
            neighbour.entry.copy::<u32, 5>(offset!(neighbour_ha), (&raw mut (*record).lladdr).cast());
            change.new_lladdr.put(0, &raw mut (*record).new_lladdr);
            let address: u64 = device.get(offset!(net_device_dev_addr));
            Kernel(address).put(0, &raw mut (*record).device_lladdr);
            (*record).task_root = root;
            device.copy::<u64, 2>(offset!(net_device_name), (&raw mut (*record).ifname).cast());
        }
    });
}
