//! Who can hold a mount: iterators over all tasks, open files and mappings, which the kernel runs while the daemon reads what they
//! write.
//!
//! A file is taken for involved where it may be one that a look at `/proc/PID` would find; that look decides. So each test here
//! errs on that side where it can; what cannot be read has no device, and is not involved.

use aya_ebpf::bindings::seq_file;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::bpf_seq_write;
use aya_ebpf::macros::map;
use aya_ebpf::maps::HashMap;
use kevtmon_ebpf::MISSING;
use kevtmon_ebpf::iterators::{
    END, IteratorOffsets, ListedSocket, ListedTask, NOT_ASKED, READERS, Wanted, sought,
};

use crate::memory::{Kernel, Structure as _, Typed, offset};

/// Written by the daemon before load.
#[unsafe(export_name = "ITERATOR_OFFSETS")]
static OFFSETS: IteratorOffsets = IteratorOffsets::ZERO;

/// By the thread that reads.
#[map]
static WANTED: HashMap<u32, Wanted> = HashMap::with_max_entries(READERS, 0);

// include/uapi/linux/magic.h
const SOCKFS: u64 = 0x534f_434b;
const NSFS: u64 = 0x6e73_6673;
const ANON_INODES: u64 = 0x0904_1934;

/// `AF_UNIX`.
const UNIX: u16 = 1;
/// `TCP_LISTEN` (include/net/tcp_states.h), of unix sockets as well.
const LISTENS: u8 = 10;
/// The first eight bytes of `[io_uring]` (io_uring/io_uring.c).
const RING: u64 = u64::from_ne_bytes(*b"[io_urin");

/// What an iterator is called with: pointers to `struct bpf_iter_meta` and to what it is at.
#[derive(Clone, Copy)]
struct Context(*const u64);

impl Context {
    /// The `index`th member. All are of 8 bytes or padded to that.
    #[inline(always)]
    fn at(self, index: usize) -> u64 {
        // SAFETY: the verifier checks that the context has it. Volatile, so that it stays one read.
        unsafe { core::ptr::read_volatile(self.0.add(index)) }
    }

    /// Writes a record for whoever reads; false where there is no room for it, and then the kernel begins again at the same task.
    #[inline(always)]
    fn write<T>(self, record: T) -> bool {
        // `struct bpf_iter_meta` begins with the pointer.
        let seq: u64 = Typed(self.at(0)).get(0);
        // SAFETY: the verifier checks both.
        unsafe { bpf_seq_write(seq as *mut seq_file, (&raw const record).cast(), size_of::<T>() as u32) == 0 }
    }

    /// Writes a process that is involved, once.
    #[inline(always)]
    fn involve(self, task: u64, wanted: *mut Wanted) {
        let tgid: u32 = Kernel(task).get(offset!(task_tgid));
        // SAFETY: a value of the map, which only this reader's iterators use.
        unsafe {
            if (*wanted).last != tgid && self.write(tgid) {
                (*wanted).last = tgid;
            }
        }
    }

    /// Writes an open socket if it is neither in the network namespace of its task nor in the one that is left out; of several in
    /// one namespace that follow each other in a process, the first.
    #[inline(always)]
    fn write_if_elsewhere(self, task: Kernel, socket: Kernel, wanted: *mut Wanted) {
        let netns: u32 = socket.follow(offset!(sock_net)).get(offset!(net_ns_inum));
        let namespaces = task.follow(offset!(task_nsproxy));
        let own: u32 = namespaces.follow(offset!(nsproxy_net_ns)).get(offset!(net_ns_inum));
        let tgid: u32 = task.get(offset!(task_tgid));
        // SAFETY: a value of the map, which only this reader's iterators use.
        unsafe {
            let is_known = (*wanted).last == tgid && (*wanted).last_netns == netns;
            if netns == 0 || netns == (*wanted).device || netns == own || is_known {
                return;
            }
            let (tid, fd) = (task.get(offset!(task_pid)), self.at(2) as u32);
            if self.write(ListedSocket { tgid, tid, fd, netns }) {
                ((*wanted).last, (*wanted).last_netns) = (tgid, netns);
            }
        }
    }
}

/// What whoever reads is looking for.
#[inline(always)]
fn wanted() -> Option<*mut Wanted> {
    let reader = bpf_get_current_pid_tgid() as u32;
    WANTED.get_ptr_mut(reader)
}

/// File system that a mount shows, by the kernel's number.
#[inline(always)]
fn device(mount: Kernel) -> u32 {
    mount.follow(offset!(vfsmount_sb)).get(offset!(super_block_dev))
}

/// `bpf_iter__task` (kernel/bpf/task_iter.c), since 5.8: `meta`, `task`.
#[unsafe(link_section = "iter/task")]
#[unsafe(no_mangle)]
extern "C" fn iter_task(context: *const u64) -> i32 {
    let context = Context(context);
    let task = context.at(1);
    if task == 0 {
        let end = ListedTask { tgid: END, tid: 0, mntns: 0, uid: 0, exe: 0, cwd: 0, root: 0, reserved: 0 };
        context.write(end);
        return 0;
    }
    let task = Kernel(task);
    let fs = task.follow(offset!(task_fs));
    let exe = task.follow(offset!(task_mm)).follow(offset!(mm_exe_file));
    let namespace = task.follow(offset!(task_nsproxy)).follow(offset!(nsproxy_mnt_ns));
    let listed = ListedTask {
        tgid: task.get(offset!(task_tgid)),
        tid: task.get(offset!(task_pid)),
        mntns: namespace.get(offset!(mnt_namespace_inum)),
        uid: task.follow(offset!(task_real_cred)).get(offset!(cred_euid)),
        exe: device(exe.follow(offset!(file_path_mnt))),
        cwd: device(fs.follow(offset!(fs_pwd_mnt))),
        root: device(fs.follow(offset!(fs_root_mnt))),
        reserved: 0,
    };
    context.write(listed);
    0
}

/// `bpf_iter__task_file`, since 5.8: `meta`, `task`, `fd`, `file`. Threads that share their table are left out but for one.
#[unsafe(link_section = "iter/task_file")]
#[unsafe(no_mangle)]
extern "C" fn iter_task_file(context: *const u64) -> i32 {
    let context = Context(context);
    let (task, file) = (context.at(1), context.at(3));
    let Some(wanted) = wanted() else {
        context.write(NOT_ASKED);
        return 0;
    };
    // SAFETY: a value of the map.
    let (device, sought) = unsafe { ((*wanted).device, (*wanted).sought) };
    if task == 0 || file == 0 {
        match sought {
            sought::SOCKETS => context.write(ListedSocket { tgid: END, tid: 0, fd: 0, netns: 0 }),
            _ => context.write(END),
        };
        return 0;
    }
    // The verifier knows what an argument of the iterator leads to, and there is one for each open file.
    let file = Typed(file);
    let mount: u64 = file.get(offset!(file_path_mnt));
    let super_block = Typed(Typed(mount).get(offset!(vfsmount_sb)));
    let magic: u64 = super_block.get(offset!(super_block_magic));
    if sought == sought::SOCKETS {
        if magic == SOCKFS {
            context.write_if_elsewhere(Kernel(task), socket(file), wanted);
        }
        return 0;
    }
    let is_involved = if sought == sought::HIDDEN {
        magic == SOCKFS && has_files(socket(file)) || magic == ANON_INODES && is_ring(file)
    } else {
        super_block.get::<u32>(offset!(super_block_dev)) == device
            || magic == NSFS
            || magic == SOCKFS && is_bound_on(socket(file), device)
    };
    if is_involved {
        context.involve(task, wanted);
    }
    0
}

/// `bpf_iter__task_vma`, since 5.12: `meta`, `task`, `vma`.
#[unsafe(link_section = "iter/task_vma")]
#[unsafe(no_mangle)]
extern "C" fn iter_task_vma(context: *const u64) -> i32 {
    let context = Context(context);
    let (task, mapping) = (context.at(1), context.at(2));
    let Some(wanted) = wanted() else {
        context.write(NOT_ASKED);
        return 0;
    };
    if task == 0 || mapping == 0 {
        context.write(END);
        return 0;
    }
    let file = Kernel(mapping).follow(offset!(vma_file));
    // SAFETY: a value of the map.
    if !file.is_null() && device(file.follow(offset!(file_path_mnt))) == unsafe { (*wanted).device } {
        context.involve(task, wanted);
    }
    0
}

/// `struct sock` of a file that is a socket.
#[inline(always)]
fn socket(file: Typed) -> Kernel {
    Kernel(file.get(offset!(file_private_data))).follow(offset!(socket_sk))
}

#[inline(always)]
fn is_unix(socket: Kernel) -> bool {
    socket.get::<u16>(offset!(sock_family)) == UNIX
}

/// Whether it is bound to a file on this file system.
#[inline(always)]
fn is_bound_on(socket: Kernel, device: u32) -> bool {
    is_unix(socket)
        && (offset!(unix_sock_path_mnt) == MISSING
            || self::device(socket.follow(offset!(unix_sock_path_mnt))) == device)
}

/// Whether files wait in it, or can in a connection that nobody has accepted.
#[inline(always)]
fn has_files(socket: Kernel) -> bool {
    if !is_unix(socket) {
        return false;
    }
    if offset!(unix_sock_sent_files) == MISSING || socket.get::<u8>(offset!(sock_state)) == LISTENS {
        return socket.get::<u32>(offset!(sock_queue_len)) != 0;
    }
    socket.get::<u32>(offset!(unix_sock_sent_files)) != 0
}

#[inline(always)]
fn is_ring(file: Typed) -> bool {
    let dentry = Kernel(file.get(offset!(file_path_dentry)));
    dentry.follow(offset!(dentry_name)).get::<u64>(0) == RING
}
