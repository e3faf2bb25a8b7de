//! Routes, addresses and routing rules: who had one added or deleted. Messages of rtnetlink tell that it happened, and not who did it.
//!
//! All of them are sent by one function, most often in the task that asked for it: a request of rtnetlink is answered while its
//! sender waits (`netlink_unicast_kernel`, net/netlink/af_netlink.c), and is sent with his port. Of what has no port only that
//! is his who runs which may sleep: all else may come from an interrupt, and so from whoever was interrupted.

use aya_ebpf::helpers::generated::{bpf_ktime_get_boot_ns, bpf_probe_read_kernel};
use aya_ebpf::macros::{fentry, kprobe};
use aya_ebpf::programs::{FEntryContext, ProbeContext};
use kevtmon_ebpf::Header;
use kevtmon_ebpf::link::counter;
use kevtmon_ebpf::route::{KIND_ROUTE, MESSAGE_CAPACITY, RouteRecord};

use crate::kprobe::argument;
use crate::link::{self, OFFSETS};
use crate::memory::{Kernel, Structure, Typed, offset};
use crate::task::{self, Program};
use crate::{emit, lanes};

/// `RTM_NEWADDR` to `RTM_DELADDR`, `RTM_NEWROUTE` to `RTM_DELROUTE` and `RTM_NEWRULE` to `RTM_DELRULE` of
/// include/uapi/linux/rtnetlink.h.
const NEW_ADDRESS: u16 = 20;
const DELETED_ADDRESS: u16 = 21;
const NEW_ROUTE: u16 = 24;
const DELETED_ROUTE: u16 = 25;
const NEW_RULE: u16 = 32;
const DELETED_RULE: u16 = 33;
/// `RTN_LOCAL`: what comes and goes with an address.
const LOCAL: u8 = 2;
/// `RTN_BROADCAST`, likewise.
const BROADCAST: u8 = 3;
/// `__GFP_IO` and `__GFP_FS` of include/linux/gfp_types.h: of `GFP_KERNEL`, and not of `GFP_ATOMIC`.
const MAY_SLEEP: u32 = 0x40 | 0x80;

/// `struct nlmsghdr` and, of a route, the beginning of `struct rtmsg`.
#[repr(C)]
#[derive(Clone, Copy, zerocopy::FromBytes)]
struct Head {
    len: u32,
    kind: u16,
    flags: u16,
    sequence: u32,
    port: u32,
    family: u8,
    destination_len: u8,
    source_len: u8,
    tos: u8,
    table: u8,
    protocol: u8,
    scope: u8,
    route_type: u8,
}

impl Head {
    /// An address, a rule, a default route, or one to a single address.
    #[inline(always)]
    fn is_wanted(&self) -> bool {
        match self.kind {
            NEW_ADDRESS | DELETED_ADDRESS | NEW_RULE | DELETED_RULE => true,
            NEW_ROUTE | DELETED_ROUTE => {
                let bits = if self.family == 2 { 32 } else { 128 };
                (self.destination_len == 0 || self.destination_len == bits)
                    && self.route_type != LOCAL
                    && self.route_type != BROADCAST
            }
            _ => false,
        }
    }
}

/// `void rtnl_notify(struct sk_buff *skb, struct net *net, u32 pid, u32 group, struct nlmsghdr *nlh, gfp_t flags)`: the message
/// is whole, and is sent.
#[fentry(function = "rtnl_notify")]
fn rtnl_notify(ctx: FEntryContext) -> i32 {
    notified(Typed(ctx.arg(0)), Typed(ctx.arg(1)), ctx.arg(2), ctx.arg(5));
    0
}

/// The same where the kernel refuses `fentry`: on arm64 before 6.4, and without `DYNAMIC_FTRACE_WITH_DIRECT_CALLS`.
#[kprobe(function = "rtnl_notify")]
fn kp_rtnl_notify(ctx: ProbeContext) -> u32 {
    let (buffer, namespace) = (Kernel(argument(&ctx, 0)), Kernel(argument(&ctx, 1)));
    notified(buffer, namespace, argument(&ctx, 2) as u32, argument(&ctx, 5) as u32);
    0
}

#[inline(always)]
fn notified<S: Structure>(buffer: S, namespace: S, port: u32, flags: u32) {
    if port == 0 && flags & MAY_SLEEP != MAY_SLEEP {
        return;
    }
    let message = Kernel(buffer.get(offset!(sk_buff_data)));
    let head: Head = message.get(0);
    if head.is_wanted() && head.len as usize <= MESSAGE_CAPACITY {
        report(namespace, message, head.len);
    }
}

#[inline(always)]
fn report<S: Structure>(namespace: S, message: Kernel, len: u32) {
    let Some(task) = task::current_of::<S>(Program::RtnlNotify) else { return };
    let netns: u32 = namespace.get(offset!(net_ns_inum));
    let room = match lanes::link(netns, namespace.follow(offset!(net_user_ns)), task.id()) {
        lanes::Paid::Yes(room) => room,
        lanes::Paid::Over => return link::miss(netns),
        lanes::Paid::Unwanted => return,
    };
    task::send_details(task, room);
    let missing = link::missing(netns);
    let detail: u32 = namespace.get(offset!(net_cookie));
    let is_sent = emit::record::<RouteRecord>(room, counter::RING_FULL, |record| {
        // SAFETY: the ring gave memory for a whole, aligned record, every field is written, and `len` is no more than there is
        // room for.
        unsafe {
            (*record).header = Header { kind: KIND_ROUTE, detail, boot_ns: bpf_ktime_get_boot_ns() };
            (*record).task = *task.id();
            (*record).netns = netns;
            (*record).task_root = task.root();
            (*record).missing = missing;
            (*record).message_len = len;
            let words = (&raw mut (*record).message).cast::<[u64; MESSAGE_CAPACITY / 8]>();
            words.write([0; MESSAGE_CAPACITY / 8]);
            let len = if len as usize > MESSAGE_CAPACITY { MESSAGE_CAPACITY as u32 } else { len };
            bpf_probe_read_kernel(words.cast(), len, message.0 as *const _);
        }
    });
    if !is_sent {
        link::miss(netns);
    }
}
