//! umount(2): refused with EBUSY, or done.
//!
//! The system call is traced as `umount` (`SYSCALL_DEFINE2(umount, …)`, fs/namespace.c). The path is read at
//! exit: by then the kernel itself has read it, so its page is there; at entry it may not be.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{bpf_ktime_get_boot_ns, bpf_probe_read_user_str};
use aya_ebpf::macros::{map, tracepoint};
use aya_ebpf::maps::{HashMap, PerCpuArray};
use aya_ebpf::programs::TracePointContext;
use aya_log_ebpf::debug;
use kevtmon_ebpf::Header;
use kevtmon_ebpf::umount::{KIND_UMOUNT, PATH_CAPACITY, UmountRecord, counter};

use crate::emit;
use crate::task;

const EBUSY: i64 = -16;

/// Arguments of a call under way.
#[repr(C)]
#[derive(Clone, Copy)]
struct Pending {
    path: u64,
    flags: u64,
}

/// By thread id: a thread is in one system call at a time.
#[map]
static PENDING: HashMap<u32, Pending> = HashMap::with_max_entries(1024, 0);

/// A record is larger than the stack of a program.
#[map]
static SCRATCH: PerCpuArray<UmountRecord> = PerCpuArray::with_max_entries(1, 0);

/// `syscalls:sys_enter_umount`: `char *name` at 16, `int flags` at 24.
#[tracepoint(category = "syscalls", name = "sys_enter_umount")]
fn sys_enter_umount(ctx: TracePointContext) -> u32 {
    // SAFETY: offsets of the tracepoint's format, which the verifier bounds.
    let (path, flags) = unsafe { (ctx.read_at::<u64>(16), ctx.read_at::<u64>(24)) };
    if let (Ok(path), Ok(flags)) = (path, flags)
        && PENDING.insert(ctx.pid(), Pending { path, flags }, 0).is_err()
    {
        emit::count(counter::PENDING_FULL);
    }
    0
}

/// `syscalls:sys_exit_umount`: `long ret` at 16.
#[tracepoint(category = "syscalls", name = "sys_exit_umount")]
fn sys_exit_umount(ctx: TracePointContext) -> u32 {
    let tid = bpf_get_current_pid_tgid() as u32;
    // SAFETY: the map's values are plain bytes.
    let Some(pending) = (unsafe { PENDING.get(tid) }).copied() else {
        return 0;
    };
    let _ = PENDING.remove(tid);
    // SAFETY: offset of the tracepoint's format, which the verifier bounds.
    let Ok(result) = (unsafe { ctx.read_at::<i64>(16) }) else {
        return 0;
    };
    if result == EBUSY {
        emit::count(counter::BUSY);
    } else if result != 0 {
        return 0;
    }
    debug!(&ctx, "umount returned {}", result);
    let Some((current, id)) = task::current() else {
        return 0;
    };
    task::send_details(current, &id);
    let Some(record) = SCRATCH.get_ptr_mut(0) else {
        return 0;
    };
    // SAFETY: the slot holds a whole record, and tracepoints of system calls do not nest on a CPU with
    // migration disabled; the copy into the ring ends within it.
    unsafe {
        (*record).header = Header { kind: KIND_UMOUNT, reserved: 0, boot_ns: bpf_ktime_get_boot_ns() };
        (*record).task = id;
        (*record).mntns = id.mntns;
        (*record).flags = pending.flags as u32;
        (*record).result = result as i32;
        let copied = bpf_probe_read_user_str(
            (&raw mut (*record).path).cast(),
            PATH_CAPACITY as u32,
            pending.path as *const _,
        );
        if copied <= 0 || copied > PATH_CAPACITY as i64 {
            emit::count(counter::PATH_UNREADABLE);
            return 0;
        }
        let len = (copied - 1) as u64 & (PATH_CAPACITY as u64 - 1);
        (*record).path_len = len as u32;
        emit::copied(counter::RING_FULL, record, UmountRecord::HEAD as u64 + len);
    }
    0
}
