//! rmdir(2), unlink(2), rename(2) and what they are called with descriptors, mount(2), and fsconfig(2) where it makes what is to be
//! mounted: refused with EBUSY.
//!
//! They are frequent, so hardly anything is done when they begin: it is noted that they do, because anybody can have one end with
//! any result before it begins (see `umount`). The program that runs when they return goes on only for those
//! that were refused. The arguments are still where the kernel saved the registers of the caller. What they point to is read
//! then, as the kernel itself has just done: of callers that could have changed it meanwhile the daemon is told enough to
//! be less certain.

use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{
    bpf_get_current_task, bpf_get_current_task_btf, bpf_ktime_get_boot_ns, bpf_probe_read_kernel_str,
    bpf_probe_read_user_str, bpf_task_pt_regs,
};
use aya_ebpf::macros::{map, tracepoint};
use aya_ebpf::maps::{Array, PerCpuArray};
use aya_ebpf::programs::TracePointContext;
use aya_log_ebpf::debug;
use kevtmon_ebpf::remove::{FSTYPE_CAPACITY, KIND_REMOVE, RemoveOffsets, RemoveRecord, call, counter};
use kevtmon_ebpf::umount::{PATH_CAPACITY, call_mark};
use kevtmon_ebpf::{Counter, Header, MISSING};

use crate::memory::{Kernel, Structure as _, offset, volatile};
use crate::mount_table::MountTable;
use crate::path::{Place, either, equal, less};
use crate::task::{self, Program};
use crate::umount::{add_directory, copied_len, read_path};
use crate::{emit, lanes, syscall, umount};

const EBUSY: i64 = -16;

/// `FSCONFIG_CMD_CREATE` and `FSCONFIG_CMD_CREATE_EXCL` of include/uapi/linux/mount.h.
const CREATE: u64 = 6;
const CREATE_EXCL: u64 = 8;
/// `SB_RDONLY` of include/linux/fs.h, which is `MS_RDONLY` of mount(2).
const RDONLY: u32 = 1;
/// A type of file system, with its NUL.
const OVERLAY: u64 = u64::from_ne_bytes(*b"overlay\0");
/// The first eight bytes of `[fscontext]` (fs/fsopen.c).
const FSCONTEXT: u64 = u64::from_ne_bytes(*b"[fsconte");

/// Written by the daemon before load.
#[unsafe(export_name = "REMOVE_OFFSETS")]
static OFFSETS: RemoveOffsets = RemoveOffsets::ZERO;

/// A record is larger than the stack of a program.
#[map]
static REMOVE_SCRATCH: PerCpuArray<RemoveRecord> = PerCpuArray::with_max_entries(1, 0);

/// Entries of [`BEGUN`], a power of two.
const BEGUN_MAX: u32 = 1 << 14;

/// The thread that is in such a call, by the low bits of its id: looked up in a few instructions, where a hash table would make
/// each call much longer. Of two threads with the same bits that are in a call at once, the one that began first is not known any
/// more to have begun.
#[map]
static BEGUN: Array<u32> = Array::with_max_entries(BEGUN_MAX, 0);

/// What a call was given.
struct Arguments {
    path: u64,
    /// Where a relative path starts: a descriptor, or a negative number for the current directory.
    directory: u64,
    second_path: u64,
    second_directory: u64,
    fstype: u64,
    options: u64,
    flags: u64,
}

/// `syscalls:sys_enter_*` of all of them but fsconfig(2).
#[tracepoint(category = "syscalls", name = "sys_enter_unlinkat")]
fn sys_enter_remove(_ctx: TracePointContext) -> u32 {
    note_start(u64::MAX);
    0
}

/// `syscalls:sys_enter_fsconfig`: `int fd`. No start is noted where the context has failed before: each command is refused with EBUSY
/// then, whatever uses the device.
#[tracepoint(category = "syscalls", name = "sys_enter_fsconfig")]
fn sys_enter_fsconfig(ctx: TracePointContext) -> u32 {
    // SAFETY: helper without arguments.
    let task = Kernel(unsafe { bpf_get_current_task() });
    let context = fs_context(task, syscall::argument(&ctx, 0));
    note_start(!has_failed(context));
    0
}

/// `syscalls:sys_exit_*` of all of them: `int __syscall_nr`, `long ret`.
#[tracepoint(category = "syscalls", name = "sys_exit_unlinkat")]
fn sys_exit_remove(ctx: TracePointContext) -> u32 {
    // Whatever it returns: the next call of the thread has a start of its own.
    let has_begun = take_start();
    if syscall::result(&ctx) != EBUSY {
        return 0;
    }
    let number = syscall::number(&ctx);
    let context = failed_context(&ctx, number);
    let slot = &mut 0;
    let is_fsconfig = equal(slot, number.into(), offset!(calls[call::FSCONFIG]).into());
    if is_fsconfig & equal(slot, context.0, 0) != 0 {
        return 0;
    }
    count(number, if has_begun { &counter::BUSY } else { &counter::UNPROVEN });
    debug!(&ctx, "system call {} was refused: busy", number);
    let Some(task) = task::current(Program::Remove) else {
        return 0;
    };
    // Whoever may unmount is told of in doubt: anybody can have the start of such a call forgotten, and end his own as he likes. Of
    // fsconfig(2) the context may have failed before.
    if !has_begun && (is_fsconfig != 0 || !task.may_administer()) {
        return 0;
    }
    let Some(record) = REMOVE_SCRATCH.get_ptr_mut(0) else {
        return 0;
    };
    // Both are read again: what the verifier knows of them it would walk all that follows for, once for each value.
    let number = syscall::number(&ctx);
    // SAFETY: as below.
    let has_begun = unsafe {
        (&raw mut (*record).marks).write_volatile(if has_begun { 0 } else { call_mark::START_UNSEEN });
        volatile(&raw const (*record).marks) == 0
    };
    let Some(room) = lanes::remove(&task, has_begun) else {
        return 0;
    };
    let room = task.unseen(room);
    let table = MountTable::of(task.address);
    let given = arguments(&ctx, number);
    let cwd = Place::read(
        task.address.follow(volatile(&raw const umount::OFFSETS.task_fs)),
        volatile(&raw const umount::OFFSETS.fs_pwd),
    );
    // SAFETY: the slot holds a whole record, and tracepoints of system calls do not nest on a CPU with
    // migration disabled; the copy into the ring ends within it.
    unsafe {
        (*record).header = Header { kind: KIND_REMOVE, detail: 0, boot_ns: bpf_ktime_get_boot_ns() };
        (*record).task = *task.id();
        (*record).mntns = task.id().mntns;
        (*record).task_root = task.root();
        (*record).number = number;
        (*record).flags = given.flags as u32 | (context.get::<u32>(offset!(fs_context_sb_flags)) & RDONLY);
        table.describe(table.event(), &raw mut (*record).table);
        add_directory(&raw mut (*record).root, Place::root_of(task.address));
        add_directory(&raw mut (*record).start, directory(task.address, given.directory, cwd));
        let second = directory(task.address, given.second_directory, cwd);
        add_directory(&raw mut (*record).second_start, second);
        // What has many branches comes last: each would multiply the paths that the verifier walks.
        task::send_details(task, room);
        // Read again, and not kept on the stack meanwhile, of which some kernels have too little.
        let given = arguments(&ctx, volatile(&raw const (*record).number));
        let paths: *mut u8 = (&raw mut (*record).paths).cast();
        let len = read_path(given.path, paths);
        (*record).path_len = len as u32;
        let second = paths.add(len as usize);
        let fstype = (&raw mut (*record).fstype).cast();
        // Where they fail, they write zeros.
        let second_len = if context.is_null() {
            bpf_probe_read_user_str(fstype, FSTYPE_CAPACITY as u32, given.fstype as *const _);
            // What an overlay is made of is in its options, and its source is any text.
            let is_overlay = equal(slot, volatile((&raw const (*record).fstype).cast()), OVERLAY);
            read_path(either(is_overlay, given.options, given.second_path), second)
        } else {
            let name: u64 = context.follow(offset!(fs_context_fs_type)).get(offset!(file_system_type_name));
            bpf_probe_read_kernel_str(fstype, FSTYPE_CAPACITY as u32, name as *const _);
            read_source(context, second)
        };
        (*record).second_len = second_len as u32;
        let lost = room.loss(counter::RING_FULL, counter::USERS_RING_FULL);
        emit::copied(room, lost, record, RemoveRecord::HEAD as u64 + len + second_len);
    }
    0
}

/// Notes that a call of this thread begins, where `mask` is all ones; where it is zero, that none was seen to.
#[inline(always)]
fn note_start(mask: u64) {
    let tid = bpf_get_current_pid_tgid() as u32;
    if let Some(begun) = BEGUN.get_ptr_mut(tid % BEGUN_MAX) {
        // SAFETY: a slot of the map.
        unsafe { core::ptr::write_volatile(begun, tid & mask as u32) };
    }
}

/// Whether the call that returns was seen to begin; once.
#[inline(always)]
fn take_start() -> bool {
    let tid = bpf_get_current_pid_tgid() as u32;
    let Some(begun) = BEGUN.get_ptr_mut(tid % BEGUN_MAX) else {
        return false;
    };
    if volatile(begun) != tid {
        return false;
    }
    // SAFETY: a slot of the map.
    unsafe { core::ptr::write_volatile(begun, 0) };
    true
}

/// Counts a call by its number.
#[inline(always)]
fn count(number: u32, of_calls: &[Counter; call::COUNT]) {
    let mut index = 0;
    while index < call::COUNT {
        if number == offset!(calls[index]) {
            emit::count(of_calls[index]);
        }
        index += 1;
    }
}

/// The context of which fsconfig(2) was to make a file system, and that has failed by now; null of any other call. What is refused of a
/// context that has not failed was called in a wrong order.
#[inline(always)]
fn failed_context(ctx: &TracePointContext, number: u32) -> Kernel {
    let registers = registers(ctx);
    let slot = &mut 0;
    let command: u32 = registers.get(offset!(arguments[1]));
    let is_it = are_of(registers, number)
        & equal(slot, number.into(), offset!(calls[call::FSCONFIG]).into())
        & (equal(slot, command.into(), CREATE) | equal(slot, command.into(), CREATE_EXCL));
    // SAFETY: helper without arguments.
    let task = Kernel(unsafe { bpf_get_current_task() });
    // Of another call it may be anything; all ones are no descriptor.
    let context = fs_context(task, registers.get::<u64>(offset!(arguments[0])) | !is_it);
    Kernel(context.0 & has_failed(context))
}

/// The context of a file system that a descriptor stands for; null if it stands for something else. Another thread may have put
/// another file there since the kernel looked.
#[inline(always)]
fn fs_context(task: Kernel, descriptor: u64) -> Kernel {
    let slot = &mut 0;
    let file = file(task, descriptor);
    let path = volatile(&raw const task::OFFSETS.file_path);
    let dentry = file.follow(path + volatile(&raw const task::OFFSETS.path_dentry));
    let name: u64 = dentry.follow(volatile(&raw const task::OFFSETS.dentry_name)).get(0);
    // A user can give a file this name, but that has a directory.
    let parent: u64 = dentry.get(volatile(&raw const task::OFFSETS.dentry_parent));
    let is_it = equal(slot, name, FSCONTEXT) & equal(slot, parent, dentry.0);
    Kernel(file.get::<u64>(offset!(file_private_data)) & is_it)
}

/// Whether a context has failed: all ones, or zero.
#[inline(always)]
fn has_failed(context: Kernel) -> u64 {
    let phase: u8 = context.get(offset!(fs_context_phase));
    equal(&mut 0, phase.into(), offset!(phase_failed).into())
}

/// Reads what a context of a file system names as its source; returns the length, 0 if it cannot be read.
///
/// # Safety
/// `into` must be valid for writes of `PATH_CAPACITY` bytes.
#[inline(always)]
unsafe fn read_source(context: Kernel, into: *mut u8) -> u64 {
    let source: u64 = context.get(offset!(fs_context_source));
    // SAFETY: by the caller's promise; the helper checks the source.
    copied_len(unsafe { bpf_probe_read_kernel_str(into.cast(), PATH_CAPACITY as u32, source as *const _) })
}

/// Whether registers are those of the call that returns: all ones, or zero.
#[inline(always)]
fn are_of(registers: Kernel, number: u32) -> u64 {
    let slot = &mut 0;
    let found: u32 = registers.get(offset!(registers_number));
    let result: u64 = registers.get(offset!(registers_result));
    equal(slot, found.into(), number.into()) & equal(slot, result, EBUSY as u64)
}

/// The arguments of the call that returns, without a branch for each; none if the registers are not those of this call.
#[inline(always)]
fn arguments(ctx: &TracePointContext, number: u32) -> Arguments {
    let registers = registers(ctx);
    let slot = &mut 0;
    let are_its = are_of(registers, number);
    let mut is = |which: usize| are_its & equal(slot, number.into(), offset!(calls[which]).into());
    let unlinkat = is(call::UNLINKAT);
    let renameat2 = is(call::RENAMEAT2);
    let renames_at = is(call::RENAMEAT) | renameat2;
    // What is mounted comes before where.
    let mount = is(call::MOUNT);
    let fsconfig = is(call::FSCONFIG);
    let takes_directories = unlinkat | renames_at;
    let argument = |which: usize| registers.get::<u64>(offset!(arguments[which]));
    let cwd = u64::MAX;
    Arguments {
        path: either(takes_directories | mount, argument(1), argument(0) & are_its & !fsconfig),
        directory: either(takes_directories, argument(0), cwd),
        second_path: (argument(1) & is(call::RENAME)) | (argument(3) & renames_at) | (argument(0) & mount),
        second_directory: either(renames_at, argument(2), cwd),
        fstype: argument(2) & mount,
        options: argument(4) & mount,
        flags: (argument(2) & unlinkat)
            | (argument(4) & renameat2)
            | (argument(3) & mount)
            | (argument(1) & CREATE_EXCL & fsconfig),
    }
}

/// What the caller had in its registers.
#[inline(always)]
fn registers(ctx: &TracePointContext) -> Kernel {
    // The verifier knows it, and walks one of the two ways only.
    if offset!(context_registers) != MISSING {
        return syscall::context(ctx).follow(offset!(context_registers));
    }
    // SAFETY: of the current task, which is in a system call. Since 5.15.
    Kernel(unsafe { bpf_task_pt_regs(bpf_get_current_task_btf()) } as u64)
}

/// The file that a descriptor stands for; null if there is none.
#[inline(always)]
fn file(task: Kernel, descriptor: u64) -> Kernel {
    let table = task.follow(offset!(task_files)).follow(offset!(files_fdt));
    let descriptor = u64::from(descriptor as u32);
    let is_within = less(&mut 0, descriptor, table.get::<u32>(offset!(fdtable_max_fds)).into());
    let slot = table.follow(offset!(fdtable_fd)).0.wrapping_add(descriptor << 3);
    Kernel(slot & is_within).follow(0)
}

/// The directory that a descriptor stands for. It was open during the call.
#[inline(always)]
fn directory(task: Kernel, descriptor: u64, cwd: Place) -> Place {
    let is_cwd = (i64::from(descriptor as i32) >> 63) as u64;
    let file = file(task, descriptor);
    Place::either(is_cwd, cwd, Place::read(file, volatile(&raw const task::OFFSETS.file_path)))
}
