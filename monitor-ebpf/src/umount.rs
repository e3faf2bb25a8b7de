//! umount(2): refused with EBUSY, or done.
//!
//! The system call is traced as `umount` (`SYSCALL_DEFINE2(umount, …)`, fs/namespace.c). Every refusal is counted
//! and reported when the call returns. The path is read then: by now the kernel itself
//! has read it, so its page is there. Since its caller can overwrite it during the call, and another thread can
//! change the directories that it starts from, both are compared with what they were at the start.
//!
//! That a call returns shows no answer of the kernel: a filter of system calls, which anybody can give himself, or a tracer
//! ends one with any result before it begins. Its end is traced all the same, its start is not (`syscall_trace_enter` in
//! kernel/entry/common.c asks both before it shows the start). So only a call that was seen to begin counts. One that was not may
//! have begun before the programs were attached: it is reported as doubtful, if its caller had any right to be answered.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{
    bpf_get_current_task, bpf_get_prandom_u32, bpf_ktime_get_boot_ns, bpf_probe_read_kernel,
    bpf_probe_read_user_str,
};
use aya_ebpf::macros::{fentry, kprobe, map, tracepoint};
use aya_ebpf::maps::{LruHashMap, PerCpuArray};
use aya_ebpf::programs::{FEntryContext, ProbeContext, TracePointContext};
use aya_log_ebpf::debug;
use kevtmon_ebpf::Header;
use kevtmon_ebpf::umount::{
    DirectoryRecord, KIND_UMOUNT, MountName, PATH_CAPACITY, UmountOffsets, UmountRecord, call_mark, counter,
};

use crate::kprobe::argument;
use crate::memory::{Kernel, Structure as _, offset};
use crate::mount_table::MountTable;
use crate::path::Place;
use crate::task::{self, Program};
use crate::{emit, lanes, syscall};

pub(crate) const EBUSY: i64 = -16;

/// Written by the daemon before load.
#[unsafe(export_name = "UMOUNT_OFFSETS")]
pub(crate) static OFFSETS: UmountOffsets = UmountOffsets::ZERO;

/// What a call under way began with.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Start {
    pub(crate) path: u64,
    pub(crate) flags: u64,
    /// Bytes of the path, 0 if it could not be read.
    pub(crate) len: u64,
    /// Of the path, by `key`.
    pub(crate) digest: u64,
    pub(crate) key: u64,
    pub(crate) root: Place,
    pub(crate) cwd: Place,
    /// With which the caller's mount table had changed last.
    pub(crate) event: u64,
    /// `CLOCK_BOOTTIME`.
    pub(crate) began: u64,
    /// What the path led to, once the kernel has resolved it and where it shows that.
    pub(crate) target: MountName,
}

impl Start {
    /// Of a call that began before the programs were attached, or that was forgotten.
    pub(crate) const UNSEEN: Self = Self {
        path: 0,
        flags: 0,
        len: 0,
        digest: 0,
        key: 0,
        root: Place::NOWHERE,
        cwd: Place::NOWHERE,
        event: u64::MAX,
        began: 0,
        target: MountName::NONE,
    };

    #[inline(always)]
    pub(crate) fn is_seen(&self) -> bool {
        self.began != 0
    }
}

/// By thread id: a thread is in one system call at a time. When it is full, the calls that began first are
/// forgotten: callers that block in great numbers hide no other.
#[map]
pub(crate) static STARTED: LruHashMap<u32, Start> = LruHashMap::with_max_entries(3072, 0);

/// A record is larger than the stack of a program.
#[map]
pub(crate) static SCRATCH: PerCpuArray<UmountRecord> = PerCpuArray::with_max_entries(1, 0);

/// `syscalls:sys_enter_umount`: `char *name`, `int flags`.
#[tracepoint(category = "syscalls", name = "sys_enter_umount")]
fn sys_enter_umount(ctx: TracePointContext) -> u32 {
    let (path, flags) = (syscall::argument(&ctx, 0), syscall::argument(&ctx, 1));
    let Some(record) = SCRATCH.get_ptr_mut(0) else {
        return 0;
    };
    // SAFETY: as in `sys_exit_umount`.
    let len = unsafe { read_whole_path(path, record) };
    // SAFETY: helpers without arguments.
    let (key, task, began) = unsafe {
        let key = u64::from(bpf_get_prandom_u32()) << 32 | u64::from(bpf_get_prandom_u32()) | 1;
        (key, Kernel(bpf_get_current_task()), bpf_ktime_get_boot_ns())
    };
    let fs = task.follow(offset!(task_fs));
    let start = Start {
        path,
        flags,
        len,
        // SAFETY: as above.
        digest: unsafe { digest(record, key) },
        key,
        root: Place::read(fs, offset!(fs_root)),
        cwd: Place::read(fs, offset!(fs_pwd)),
        event: MountTable::of(task).event(),
        began,
        target: MountName::NONE,
    };
    // Without it, the call is reported without its path.
    let _ = STARTED.insert(ctx.pid(), start, 0);
    0
}

/// `int path_umount(struct path *path, int flags)`, since 5.9: the path is resolved, and nothing was decided yet. It keeps the
/// mount until the call is over.
#[fentry(function = "path_umount")]
fn path_umount(ctx: FEntryContext) -> i32 {
    resolved(Kernel(ctx.arg(0)));
    0
}

/// The same where the kernel refuses `fentry`.
#[kprobe(function = "path_umount")]
fn kp_path_umount(ctx: ProbeContext) -> u32 {
    resolved(Kernel(argument(&ctx, 0)));
    0
}

#[inline(always)]
fn resolved(path: Kernel) {
    let tid = bpf_get_current_pid_tgid() as u32;
    let Some(start) = STARTED.get_ptr_mut(tid) else {
        return;
    };
    let mount = Place::read(path, 0).mount();
    let target = MountName {
        unique: mount.get(offset!(mount_id_unique)),
        mount_id: mount.get(offset!(mount_id)),
        reserved: 0,
    };
    // SAFETY: the entry of this thread, which only this thread writes.
    unsafe { (*start).target = target };
}

/// What is known of the start of a call that returns: on the stack it would take more than older kernels leave for it.
#[map]
static ENDED: PerCpuArray<Start> = PerCpuArray::with_max_entries(1, 0);

/// `syscalls:sys_exit_umount`: `long ret`.
#[tracepoint(category = "syscalls", name = "sys_exit_umount")]
fn sys_exit_umount(ctx: TracePointContext) -> u32 {
    let tid = bpf_get_current_pid_tgid() as u32;
    let Some(start) = ENDED.get_ptr_mut(0) else {
        return 0;
    };
    // SAFETY: the maps' values are plain bytes, and nobody else uses this slot meanwhile, as with `SCRATCH`.
    let start = unsafe {
        match STARTED.get(tid) {
            Some(seen) => start.copy_from_nonoverlapping(&raw const *seen, 1),
            None => start.write(Start::UNSEEN),
        }
        &*start
    };
    let _ = STARTED.remove(tid);
    let result = syscall::result(&ctx);
    if result != EBUSY && result != 0 {
        return 0;
    }
    debug!(&ctx, "umount returned {}", result);
    let Some(task) = task::current(Program::Umount) else {
        return 0;
    };
    // Without it the kernel gives EPERM first (`can_umount`): a server that is asked for the path may give EBUSY, but no mount.
    if !task.may_administer() {
        emit::count(counter::UNPROVEN);
        return 0;
    }
    if !start.is_seen() {
        emit::count(counter::UNPROVEN);
    } else if result == EBUSY {
        emit::count(counter::BUSY);
    }
    let (Some(room), Some(record)) = (lanes::umount(&task, start.is_seen()), SCRATCH.get_ptr_mut(0)) else {
        return 0;
    };
    let room = task.unseen(room);
    // SAFETY: the slot holds a whole record, and tracepoints of system calls do not nest on a CPU with
    // migration disabled; the copy into the ring ends within it.
    unsafe {
        (*record).header = Header { kind: KIND_UMOUNT, detail: 0, boot_ns: bpf_ktime_get_boot_ns() };
        (*record).task = *task.id();
        (*record).mntns = task.id().mntns;
        (*record).result = result as i32;
        (*record).task_root = task.root();
        (*record).target = start.target;
        (*record).began = start.began;
        MountTable::of(task.address).describe(start.event, &raw mut (*record).table);
        // What has many branches comes last: each would multiply the paths that the verifier walks.
        add_directories(record, start, task.address);
        task::send_details(task, room);
        let len = add_path(record, start);
        (*record).path_len = len as u32;
        let lost = room.loss(counter::RING_FULL, counter::USERS_RING_FULL);
        emit::copied(room, lost, record, UmountRecord::HEAD as u64 + len);
    }
    0
}

/// Writes where the path starts from, and a mark if that changed. Also for an absolute path, which starts at the root:
/// whether it is one is not known yet.
///
/// # Safety
/// `record` must be valid for writes.
#[inline(always)]
unsafe fn add_directories(record: *mut UmountRecord, start: &Start, current: Kernel) {
    let fs = current.follow(offset!(task_fs));
    let root = Place::read(fs, offset!(fs_root));
    let cwd = Place::read(fs, offset!(fs_pwd));
    // SAFETY: by the caller's promise.
    unsafe {
        add_directory(&raw mut (*record).root, root);
        add_directory(&raw mut (*record).cwd, cwd);
        (*record).root_changed = root.differs(start.root);
        (*record).cwd_changed = cwd.differs(start.cwd);
    }
}

/// Writes the path and what is not certain about it; returns its length.
///
/// # Safety
/// `record` must be valid for writes.
#[inline(always)]
pub(crate) unsafe fn add_path(record: *mut UmountRecord, start: &Start) -> u64 {
    // SAFETY: by the caller's promise.
    unsafe {
        let len = read_whole_path(start.path, record);
        let digest = digest(record, start.key);
        let mut marks = 0;
        if !start.is_seen() {
            marks = call_mark::START_UNSEEN;
        } else if len == 0 {
            marks = call_mark::PATH_UNREAD;
        } else if start.len == 0 {
            marks = call_mark::PATH_READ_LATE;
        } else if digest != start.digest {
            marks = call_mark::PATH_CHANGED;
        }
        (*record).flags = start.flags as u32;
        (*record).marks = marks;
        len
    }
}

/// Writes a directory with its names up to the topmost mount.
///
/// # Safety
/// `into` must be valid for writes.
#[inline(always)]
pub(crate) unsafe fn add_directory(into: *mut DirectoryRecord, place: Place) {
    // SAFETY: by the caller's promise.
    unsafe {
        (*into).mount_id = place.mount().get(offset!(mount_id));
        (*into).marks = place.walk(Place::NOWHERE, &raw mut (*into).names);
    }
}

/// Reads a path from the caller's memory, with zeros after it; returns its length, 0 if it cannot be read.
///
/// # Safety
/// `record` must be valid for writes.
#[inline(always)]
pub(crate) unsafe fn read_whole_path(path: u64, record: *mut UmountRecord) -> u64 {
    // SAFETY: by the caller's promise. The helper fails, and then writes zeros.
    unsafe {
        let into: *mut u8 = (&raw mut (*record).path).cast();
        bpf_probe_read_kernel(into.cast(), PATH_CAPACITY as u32, core::ptr::null());
        read_path(path, into)
    }
}

/// Reads a path from the caller's memory; returns its length, 0 if it cannot be read.
///
/// # Safety
/// `into` must be valid for writes of `PATH_CAPACITY` bytes.
#[inline(always)]
pub(crate) unsafe fn read_path(path: u64, into: *mut u8) -> u64 {
    // SAFETY: by the caller's promise; the helper checks the source.
    copied_len(unsafe { bpf_probe_read_user_str(into.cast(), PATH_CAPACITY as u32, path as *const _) })
}

/// The length of a path of which a helper has copied so many bytes; 0 if it failed.
#[inline(always)]
pub(crate) fn copied_len(copied: i64) -> u64 {
    if copied <= 0 || copied > PATH_CAPACITY as i64 {
        return 0;
    }
    (copied - 1) as u64 & (PATH_CAPACITY as u64 - 1)
}

/// Of the path in a record, with the zeros after it: a polynomial in `key`, which nobody knows before. Without any
/// branch, each of which would multiply the paths that the verifier walks.
///
/// # Safety
/// `record` must be valid for reads.
#[inline(always)]
pub(crate) unsafe fn digest(record: *const UmountRecord, key: u64) -> u64 {
    let mut sum = 0_u64;
    let mut index = 0;
    while index < PATH_CAPACITY / 8 {
        // SAFETY: within the path. Volatile, so that the loop stays as short as it is.
        let word = unsafe { core::ptr::read_volatile((&raw const (*record).path).cast::<u64>().add(index)) };
        sum = sum.wrapping_mul(key).wrapping_add(word);
        index += 1;
    }
    sum
}
