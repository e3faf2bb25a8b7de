//! Sysctls of the network: who writes one. `RTM_NEWNETCONF` tells of some of them that they changed, and not who did it.
//!
//! The program is asked before a value is written, and could refuse that. It never does.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::generated::{
    bpf_ktime_get_boot_ns, bpf_sysctl_get_current_value, bpf_sysctl_get_name, bpf_sysctl_get_new_value,
};
use aya_ebpf::macros::cgroup_sysctl;
use aya_ebpf::programs::SysctlContext;
use kevtmon_ebpf::Header;
use kevtmon_ebpf::sysctl::{
    KIND_SYSCTL, NAME_CAPACITY, SysctlOffsets, SysctlRecord, VALUE_CAPACITY, counter,
};

use crate::memory::{Structure as _, offset};
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

#[cgroup_sysctl]
fn sysctl_access(ctx: SysctlContext) -> i32 {
    // SAFETY: the kernel gives a valid context.
    if unsafe { (*ctx.sysctl).write } != 0 {
        report(&ctx);
    }
    ALLOWED
}

#[inline(always)]
fn report(ctx: &SysctlContext) {
    let mut name = [0_u64; NAME_CAPACITY / 8];
    // SAFETY: the helper writes no more than that, and ends it with NUL.
    let len = unsafe {
        bpf_sysctl_get_name(ctx.as_ptr().cast(), name.as_mut_ptr().cast(), NAME_CAPACITY as u64, 0)
    };
    if len < 0 || name[0] != IPV4 && name[0] != IPV6 {
        return;
    }
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
        // SAFETY: the ring gave memory for a whole, aligned record, and every field is written. A value that is too long is
        // cut, and no value at all leaves zeros.
        unsafe {
            (*record).header = Header { kind: KIND_SYSCTL, detail, boot_ns: bpf_ktime_get_boot_ns() };
            (*record).task = *task.id();
            (*record).task_root = task.root();
            (*record).missing = missing;
            (&raw mut (*record).name).cast::<[u64; NAME_CAPACITY / 8]>().write(name);
            let (old, new) = (&raw mut (*record).old, &raw mut (*record).new);
            old.write([0; VALUE_CAPACITY]);
            new.write([0; VALUE_CAPACITY]);
            bpf_sysctl_get_current_value(ctx.as_ptr().cast(), old.cast(), VALUE_CAPACITY as u64);
            bpf_sysctl_get_new_value(ctx.as_ptr().cast(), new.cast(), VALUE_CAPACITY as u64);
        }
    });
    if !is_sent {
        link::miss(netns);
    }
}
