//! umount(2) on a kernel that shows no types: what helpers alone tell of the caller, and the path as it gave it.
//!
//! Nothing of the kernel's structures is read, so the caller's mount namespace and directories are not known.

use aya_ebpf::helpers::generated::{
    bpf_get_current_cgroup_id, bpf_get_current_comm, bpf_get_prandom_u32, bpf_ktime_get_boot_ns,
};
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_get_current_uid_gid};
use aya_ebpf::macros::tracepoint;
use aya_ebpf::programs::TracePointContext;
use kevtmon_ebpf::Header;
use kevtmon_ebpf::umount::{KIND_UMOUNT_UNTYPED, UmountRecord, counter};

use crate::umount::{EBUSY, SCRATCH, STARTED, Start, add_path, digest, read_whole_path};
use crate::{emit, lanes, syscall};

/// `syscalls:sys_enter_umount`: `char *name`, `int flags`.
#[tracepoint(category = "syscalls", name = "sys_enter_umount")]
fn umount_enter_untyped(ctx: TracePointContext) -> u32 {
    let (path, flags) = (syscall::argument(&ctx, 0), syscall::argument(&ctx, 1));
    let Some(record) = SCRATCH.get_ptr_mut(0) else {
        return 0;
    };
    // SAFETY: the slot holds a whole record, and tracepoints of system calls do not nest on a CPU with migration disabled.
    let len = unsafe { read_whole_path(path, record) };
    // SAFETY: helpers without arguments.
    let (key, began) = unsafe {
        let key = u64::from(bpf_get_prandom_u32()) << 32 | u64::from(bpf_get_prandom_u32()) | 1;
        (key, bpf_ktime_get_boot_ns())
    };
    // SAFETY: as above.
    let digest = unsafe { digest(record, key) };
    let start = Start { path, flags, len, digest, key, began, ..Start::UNSEEN };
    // Without it, the call is reported without its path.
    let _ = STARTED.insert(bpf_get_current_pid_tgid() as u32, start, 0);
    0
}

/// `syscalls:sys_exit_umount`: `long ret`.
#[tracepoint(category = "syscalls", name = "sys_exit_umount")]
fn umount_exit_untyped(ctx: TracePointContext) -> u32 {
    let ids = bpf_get_current_pid_tgid();
    let (tgid, tid) = ((ids >> 32) as u32, ids as u32);
    // SAFETY: the map's values are plain bytes.
    let start = unsafe { STARTED.get(tid) }.copied().unwrap_or(Start::UNSEEN);
    let _ = STARTED.remove(tid);
    let result = syscall::result(&ctx);
    if result != EBUSY && result != 0 {
        return 0;
    }
    // Whether its caller had any right to be answered is not known here.
    if !start.is_seen() {
        emit::count(counter::UNPROVEN);
        return 0;
    }
    if result == EBUSY {
        emit::count(counter::BUSY);
    }
    let uid = bpf_get_current_uid_gid() as u32;
    // SAFETY: helper without arguments.
    let cgroup = unsafe { bpf_get_current_cgroup_id() } as u32;
    let (Some(room), Some(record)) = (lanes::umount_untyped(uid, cgroup, tgid), SCRATCH.get_ptr_mut(0))
    else {
        return 0;
    };
    // SAFETY: as in `umount_enter_untyped`; the copy into the ring ends within it. What is not written is zero: no other
    // program uses the slot where this one is attached.
    unsafe {
        (*record).header = Header { kind: KIND_UMOUNT_UNTYPED, detail: 0, boot_ns: bpf_ktime_get_boot_ns() };
        (*record).task.tgid = tgid;
        (*record).task.tid = tid;
        (*record).task.uid = uid;
        let comm = &raw mut (*record).task.comm;
        bpf_get_current_comm(comm.cast(), size_of_val(&*comm) as u32);
        (*record).result = result as i32;
        (*record).began = start.began;
        let len = add_path(record, &start);
        (*record).path_len = len as u32;
        let lost = room.loss(counter::RING_FULL, counter::USERS_RING_FULL);
        emit::copied(room, lost, record, UmountRecord::HEAD as u64 + len);
    }
    0
}
