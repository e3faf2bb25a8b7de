//! Sysctls of the network: who writes one. `RTM_NEWNETCONF` tells of some of them that they changed, and not who did it.
//!
//! The program is asked before a value is written, and could refuse that. It never does.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::generated::{
    bpf_get_current_task, bpf_ktime_get_boot_ns, bpf_sysctl_get_current_value, bpf_sysctl_get_name,
    bpf_sysctl_get_new_value,
};
use aya_ebpf::macros::{cgroup_sysctl, map};
use aya_ebpf::maps::PerCpuArray;
use aya_ebpf::programs::SysctlContext;
use kevtmon_ebpf::Header;
use kevtmon_ebpf::link::counter;
use kevtmon_ebpf::sysctl::{KIND_SYSCTL, NAME_CAPACITY, SysctlOffsets, SysctlRecord, VALUE_CAPACITY};

use crate::memory::{Structure as _, offset, volatile};
use crate::task::{self, Program};
use crate::{emit, lanes, link};

/// How names begin that are reported, in the order of the processor's bytes.
const IPV4: u64 = u64::from_ne_bytes(*b"net/ipv4");
const IPV6: u64 = u64::from_ne_bytes(*b"net/ipv6");
/// The access is allowed.
const ALLOWED: i32 = 1;

/// Written by the daemon before load.
#[unsafe(export_name = "SYSCTL_OFFSETS")]
static OFFSETS: SysctlOffsets = SysctlOffsets::ZERO;

/// A write, by the thread that asks for it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Write {
    thread: u64,
    name: u64,
    new: [u64; 2],
    at: u64,
}

/// The kernel restarts a write from the beginning, and asks again, as long as another task has the lock of the network
/// (`restart_syscall`, as in `devinet_sysctl_forward`, net/ipv4/devinet.c).
#[map]
static LAST_WRITE: PerCpuArray<Write> = PerCpuArray::with_max_entries(1, 0);
/// A write so soon after the same one is a restart.
const RESTART_NS: u64 = 20_000_000;

/// How many of these programs are under way on this CPU: unlike others, they can be preempted.
#[map]
static UNDER_WAY: PerCpuArray<u64> = PerCpuArray::with_max_entries(1, 0);

#[cgroup_sysctl]
fn sysctl_access(ctx: SysctlContext) -> i32 {
    // SAFETY: the kernel gives a valid context.
    let (is_write, position) = unsafe { ((*ctx.sysctl).write, (*ctx.sysctl).file_pos) };
    // What is written elsewhere than at the beginning is ignored (`proc_first_pos_non_zero_ignore`, kernel/sysctl.c).
    if is_write != 0 && position == 0 {
        report(&ctx);
    }
    ALLOWED
}

#[inline(always)]
fn report(ctx: &SysctlContext) {
    let mut name = [0_u64; NAME_CAPACITY / 8];
    let (mut old, mut new) = ([0_u64; VALUE_CAPACITY / 8], [0_u64; VALUE_CAPACITY / 8]);
    // SAFETY: the helpers write no more than that, and end it with NUL. A value that is too long is cut, and none at all leaves
    // zeros.
    let len = unsafe {
        bpf_sysctl_get_name(ctx.as_ptr().cast(), name.as_mut_ptr().cast(), NAME_CAPACITY as u64, 0)
    };
    if len < 0 || name[0] != IPV4 && name[0] != IPV6 {
        return;
    }
    // SAFETY: as above.
    unsafe {
        bpf_sysctl_get_current_value(ctx.as_ptr().cast(), old.as_mut_ptr().cast(), VALUE_CAPACITY as u64);
        bpf_sysctl_get_new_value(ctx.as_ptr().cast(), new.as_mut_ptr().cast(), VALUE_CAPACITY as u64);
    }
    if is_restarted(&name, new) {
        return;
    }
    let Some(under_way) = UNDER_WAY.get_ptr_mut(0) else { return };
    // SAFETY: a slot of the map.
    unsafe { emit::add(under_way, 1) };
    if volatile(under_way) == 1 {
        send(&name, &old, &new);
    }
    // SAFETY: as above.
    unsafe { emit::add(under_way, u64::MAX) };
}

/// Whether the thread has begun the same write just now.
#[inline(always)]
fn is_restarted(name: &[u64; NAME_CAPACITY / 8], new: [u64; 2]) -> bool {
    let mut folded = 0_u64;
    let mut index = 0;
    while index < name.len() {
        folded = (folded ^ name[index]).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        index += 1;
    }
    // SAFETY: helpers without arguments.
    let (now, thread) = unsafe { (bpf_ktime_get_boot_ns(), bpf_get_current_task()) };
    let Some(last) = LAST_WRITE.get_ptr_mut(0) else { return false };
    // SAFETY: a slot of the map, whose values are plain numbers. Whoever writes there in between is told once more.
    unsafe {
        let is_same = (*last).thread == thread
            && (*last).name == folded
            && (*last).new[0] == new[0]
            && (*last).new[1] == new[1]
            && now.wrapping_sub((*last).at) < RESTART_NS;
        (*last).thread = thread;
        (*last).name = folded;
        (*last).new[0] = new[0];
        (*last).new[1] = new[1];
        (*last).at = now;
        is_same
    }
}

#[inline(always)]
fn send(name: &[u64; NAME_CAPACITY / 8], old: &[u64; VALUE_CAPACITY / 8], new: &[u64; VALUE_CAPACITY / 8]) {
    let Some(task) = task::current(Program::Sysctl) else { return };
    let namespace = task.netns();
    let netns = task.id().netns;
    let room = match lanes::link(netns, namespace.follow(offset!(net_user_ns)), task.id()) {
        lanes::Paid::Yes(room) => room,
        lanes::Paid::Over => return link::miss(netns),
        lanes::Paid::Unwanted => return,
    };
    task::send_details(task, room);
    let missing = link::missing(netns);
    let detail: u32 = namespace.get(offset!(net_cookie));
    let is_sent = emit::record::<SysctlRecord>(room, counter::RING_FULL, |record| {
        // SAFETY: the ring gave memory for a whole, aligned record, and every field is written.
        unsafe {
            (*record).header = Header { kind: KIND_SYSCTL, detail, boot_ns: bpf_ktime_get_boot_ns() };
            (*record).task = *task.id();
            (*record).task_root = task.root();
            (*record).missing = missing;
            (&raw mut (*record).name).cast::<[u64; NAME_CAPACITY / 8]>().write(*name);
            (&raw mut (*record).old).cast::<[u64; VALUE_CAPACITY / 8]>().write(*old);
            (&raw mut (*record).new).cast::<[u64; VALUE_CAPACITY / 8]>().write(*new);
        }
    });
    if !is_sent {
        link::miss(netns);
    }
}
