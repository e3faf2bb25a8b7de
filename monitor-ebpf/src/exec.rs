//! CNI calls: a program in a directory of CNI plugins, executed by root of the node, its environment, and its end; and calls of
//! the program `rbd` and of the clients of container runtimes, with their arguments; and the signals and the end of processes
//! that the daemon names.
//!
//! Anybody may execute a plugin with the name of another's pod in its environment. So nothing is read but of root in the
//! initial user namespace, and there only in a mount namespace of the host's, or below a kubelet or runtime and in its mount
//! namespace. The daemon tells which those are, and to that end learns at once of a program that root executes under the name
//! of one.
//!
//! A program called `rbd` may lie anywhere, as drivers of volumes bring one along in their containers. What it is given says
//! something of the node only where it can map images: of root with the right to administer the node (`CAP_SYS_ADMIN`). The
//! same holds for clients of runtimes.

use aya_ebpf::bindings::BPF_ANY;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{
    bpf_get_current_comm, bpf_ktime_get_boot_ns, bpf_probe_read_kernel_str, bpf_probe_read_user,
};
use aya_ebpf::macros::{btf_tracepoint, map};
use aya_ebpf::maps::lpm_trie::Key;
use aya_ebpf::maps::{HashMap, LpmTrie, PerCpuArray};
use aya_ebpf::programs::BtfTracePointContext;
use kevtmon_ebpf::Header;
use kevtmon_ebpf::exec::{
    CALLERS_MAX, CLIENT_COMMS, COMPONENT_COMMS, CommandRecord, ComponentRecord, DIRECTORIES_MAX,
    DIRECTORY_CAPACITY, EnvironmentRecord, ExecOffsets, ExecRecord, ExitRecord, FILENAME_CAPACITY,
    FOLLOWED_MAX, KIND_CLIENT, KIND_COMPONENT, KIND_ENVIRONMENT, KIND_EXEC, KIND_EXIT, KIND_RBD, KIND_SIGNAL,
    MOUNT_NAMESPACES_MAX, PART_CAPACITY, PARTS_MAX, RBD_COMM, RUNNING_MAX, SENT_BY_KERNEL, SENT_BY_TASK,
    SENT_BY_UNKNOWN, SignalRecord, TICK_NS, counter,
};

use crate::emit::{self, RingReserve};
use crate::lanes;
use crate::memory::{Kernel, Structure as _, Typed, copy_arguments, offset, volatile};
use crate::task::{self, Program, Task};

/// `SIGNAL_GROUP_EXIT` of include/linux/sched/signal.h.
const GROUP_EXIT: u32 = 4;

/// Written by the daemon before load.
#[unsafe(export_name = "EXEC_OFFSETS")]
static OFFSETS: ExecOffsets = ExecOffsets::ZERO;

/// Written by the daemon: the directories of CNI plugins.
#[map]
static CNI_DIRECTORIES: LpmTrie<[u8; DIRECTORY_CAPACITY], u32> =
    LpmTrie::with_max_entries(DIRECTORIES_MAX, 0);

/// Written by the daemon: mount namespaces of the host.
#[map]
static CNI_MOUNT_NAMESPACES: HashMap<u32, u32> = HashMap::with_max_entries(MOUNT_NAMESPACES_MAX, 0);

/// Written by the daemon: the kubelets and runtimes that run, by thread group id, and their start in ticks.
#[map]
static CNI_CALLERS: HashMap<u32, u64> = HashMap::with_max_entries(CALLERS_MAX, 0);

/// Processes whose exec was sent, by thread group id, and their start.
#[map]
static CNI_RUNNING: HashMap<u32, u64> = HashMap::with_max_entries(RUNNING_MAX, 0);

/// Written by the daemon: processes whose signals and end are reported, by thread group id, and their start in ticks.
#[map]
static FOLLOWED: HashMap<u32, u64> = HashMap::with_max_entries(FOLLOWED_MAX, 0);

/// The key to look up: too large for the stack.
#[map]
static CNI_PATH: PerCpuArray<Key<[u8; DIRECTORY_CAPACITY]>> = PerCpuArray::with_max_entries(1, 0);

/// `sched_process_exec(struct task_struct *p, pid_t old_pid, struct linux_binprm *bprm)`, since 3.4. The new program is
/// loaded: credentials, command name, arguments and environment are its own.
#[btf_tracepoint(function = "sched_process_exec")]
fn sched_process_exec(ctx: BtfTracePointContext) -> i32 {
    let filename: u64 = Typed(ctx.arg::<u64>(2)).get(offset!(binprm_filename));
    let Some(path) = CNI_PATH.get_ptr_mut(0) else {
        return 0;
    };
    // SAFETY: a slot of the map; programs of tracepoints do not nest on a CPU. The helper writes at most the path.
    let is_plugin = unsafe {
        (*path).prefix_len = DIRECTORY_CAPACITY as u32 * 8;
        bpf_probe_read_kernel_str(
            (&raw mut (*path).data).cast(),
            DIRECTORY_CAPACITY as u32,
            filename as *const _,
        );
        CNI_DIRECTORIES.get(&*path).is_some()
    };
    let comm = name_of_program();
    let is_called = |name: &[u64; 2]| comm[0] == name[0] && comm[1] == name[1];
    let kind = match () {
        () if is_plugin => KIND_EXEC,
        () if is_called(&RBD_COMM) => KIND_RBD,
        () if CLIENT_COMMS.iter().any(is_called) => KIND_CLIENT,
        () if COMPONENT_COMMS.iter().any(is_called) => KIND_COMPONENT,
        () => return 0,
    };
    if let Some(task) = task::current_typed(Program::Exec) {
        if kind == KIND_COMPONENT { component(task) } else { executed(task, filename, kind) }
    }
    0
}

/// The command name, which was just made from the last component of its path.
#[inline(always)]
fn name_of_program() -> [u64; 2] {
    let mut comm = [0_u64; 2];
    // SAFETY: the helper writes as many bytes as it is told, and pads the name with zeros.
    unsafe { bpf_get_current_comm((&raw mut comm).cast(), size_of_val(&comm) as u32) };
    comm
}

/// Tells that it was executed; what it is, the daemon reads. One in a container is none, and takes no room from those of
/// the node.
#[inline(always)]
fn component(task: Task) {
    if !is_root(&task) || !is_in_initial_pidns(&task) {
        return;
    }
    let Some(room) = lanes::exec(&task) else {
        return;
    };
    emit::record::<ComponentRecord>(room, counter::RING_FULL, |record| {
        // SAFETY: the ring gave memory for a whole record, and every field is written.
        unsafe {
            (*record).header = Header { kind: KIND_COMPONENT, detail: 0, boot_ns: bpf_ktime_get_boot_ns() };
            (*record).tgid = task.id().tgid;
            (*record).reserved = 0;
        }
    });
}

/// Tells of a plugin, of `rbd` or of a client.
#[inline(always)]
fn executed(task: Task, filename: u64, kind: u32) {
    let id = task.id();
    let is_plugin = kind == KIND_EXEC;
    if is_plugin {
        if !is_root(&task) || !is_on_host(id.mntns) && !task.is_called_in_its_mntns_by(is_caller) {
            return emit::count(counter::OTHERS);
        }
    } else if !is_root(&task) || !task.may_administer() {
        return;
    }
    let Some(room) = lanes::exec(&task) else {
        return;
    };
    task::send_details(task, room);
    let sent = if is_plugin { send_plugin(&task, filename, room) } else { send_command(&task, kind, room) };
    if !sent || kind == KIND_CLIENT {
        return;
    }
    // Without it the end of the call is not seen.
    #[expect(clippy::needless_borrows_for_generic_args, reason = "6.1 refuses the program that has copies")]
    let noted = CNI_RUNNING.insert(&id.tgid, &id.start_ns, u64::from(BPF_ANY));
    if noted.is_err() {
        emit::count(counter::RUNNING_FULL);
    }
}

/// Sends a plugin and its environment; false if something of them was lost.
#[inline(always)]
fn send_plugin(task: &Task, filename: u64, room: RingReserve) -> bool {
    let id = task.id();
    let mm = task.address.follow(offset!(task_mm));
    let start: u64 = mm.get(offset!(mm_env_start));
    let end: u64 = mm.get(offset!(mm_env_end));
    let len = if start == 0 || end < start { 0 } else { end - start };
    let sent = emit::record::<ExecRecord>(room, counter::RING_FULL, |record| {
        // SAFETY: the ring gave memory for a whole record, and every field is written.
        unsafe {
            (*record).header = Header { kind: KIND_EXEC, detail: 0, boot_ns: bpf_ktime_get_boot_ns() };
            (*record).task = *id;
            (*record).environment_len = len;
            (*record).task_root = task.root();
            (*record).reserved = 0;
            let name = (&raw mut (*record).filename).cast();
            bpf_probe_read_kernel_str(name, FILENAME_CAPACITY as u32, filename as *const _);
        }
    });
    sent && send_environment(id.start_ns, id.tgid, start, len, room)
}

/// Sends the arguments; false if they were lost.
#[inline(always)]
fn send_command(task: &Task, kind: u32, room: RingReserve) -> bool {
    let mm = task.address.follow(offset!(task_mm));
    let start: u64 = mm.get(volatile(&raw const task::OFFSETS.mm_arg_start));
    let end: u64 = mm.get(volatile(&raw const task::OFFSETS.mm_arg_end));
    emit::record::<CommandRecord>(room, counter::RING_FULL, |record| {
        // SAFETY: the ring gave memory for a whole record; every field is written, `arguments` as far as its length goes,
        // and the daemon reads no further.
        unsafe {
            (*record).header = Header { kind, detail: 0, boot_ns: bpf_ktime_get_boot_ns() };
            (*record).task = *task.id();
            (*record).arguments_len = end.wrapping_sub(start);
            (*record).task_root = task.root();
            (*record).len = copy_arguments(start, end, &raw mut (*record).arguments);
        }
    })
}

/// Whether it is root of the node. A file that is executed with root's rights by whoever owns no such process counts as
/// another's.
#[inline(always)]
fn is_root(task: &Task) -> bool {
    let id = task.id();
    id.euid == 0 && id.uid == 0 && lanes::is_in_initial_userns(task)
}

#[inline(always)]
fn is_in_initial_pidns(task: &Task) -> bool {
    task.address.follow(offset!(task_thread_pid)).get::<u32>(offset!(pid_level)) == 0
}

#[inline(always)]
fn is_on_host(mntns: u32) -> bool {
    // SAFETY: the map's values are plain numbers.
    unsafe { CNI_MOUNT_NAMESPACES.get(mntns) }.is_some()
}

/// Whether this process is a kubelet or runtime of the node.
#[inline(always)]
fn is_caller(tgid: u32, start_ns: u64) -> bool {
    // SAFETY: the map's values are plain numbers.
    unsafe { CNI_CALLERS.get(tgid) }.is_some_and(|ticks| *ticks == start_ns / TICK_NS)
}

/// Sends the environment in parts; false if one of them was lost, after which the others say nothing.
#[inline(always)]
fn send_environment(start_ns: u64, tgid: u32, start: u64, len: u64, room: RingReserve) -> bool {
    let mut index = 0_u64;
    while index < PARTS_MAX as u64 {
        let offset = index * PART_CAPACITY as u64;
        index += 1;
        let rest = len.wrapping_sub(offset);
        let is_last = rest <= PART_CAPACITY as u64 || index == PARTS_MAX as u64;
        let sent = emit::record::<EnvironmentRecord>(room, counter::RING_FULL, |record| {
            // SAFETY: the ring gave memory for a whole record; every field is written, `bytes` as far as its length
            // goes, and the daemon reads no further. The helper checks the source.
            unsafe {
                (*record).header =
                    Header { kind: KIND_ENVIRONMENT, detail: 0, boot_ns: bpf_ktime_get_boot_ns() };
                (*record).start_ns = start_ns;
                (*record).tgid = tgid;
                (*record).offset = offset as u32;
                (*record).is_last = u32::from(is_last);
                let from = start.wrapping_add(offset) as *const _;
                // Bounded here, where the verifier sees it: the compiler would put it together with `is_last`.
                let mut count = volatile(&raw const rest);
                if count > PART_CAPACITY as u64 {
                    count = PART_CAPACITY as u64;
                }
                let read = bpf_probe_read_user((&raw mut (*record).bytes).cast(), count as u32, from);
                (*record).len = if read == 0 { count as u32 } else { 0 };
            }
        });
        if !sent {
            return false;
        }
        if is_last {
            return true;
        }
    }
    true
}

/// `sched_process_exit(struct task_struct *p)`, since 2.6.28. Fires for each thread, in itself; the count of those that live
/// is lowered before.
#[btf_tracepoint(function = "sched_process_exit")]
fn sched_process_exit(ctx: BtfTracePointContext) -> i32 {
    let task = Typed(ctx.arg::<u64>(0));
    let signal = task.follow(offset!(task_signal));
    let live: u32 = signal.get(offset!(signal_live));
    if live != 0 {
        return 0;
    }
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    let leader = task.follow(offset!(task_group_leader));
    let start_ns: u64 = leader.get(volatile(&raw const task::OFFSETS.task_start_boottime));
    // SAFETY: the map's values are plain numbers.
    let is_it = match unsafe { CNI_RUNNING.get(tgid) }.copied() {
        // The end of one before may not have been seen. The last two threads may both see that none lives.
        Some(started) => {
            CNI_RUNNING.remove(tgid).is_ok() && started == start_ns || is_followed(tgid, start_ns)
        }
        None => is_followed(tgid, start_ns),
    };
    if !is_it {
        return 0;
    }
    let flags: u32 = signal.get(offset!(signal_flags));
    let of_group: u32 = signal.get(offset!(signal_group_exit_code));
    let of_leader: u32 = leader.get(offset!(task_exit_code));
    emit::record::<ExitRecord>(RingReserve::Namespace, counter::RING_FULL, |record| {
        // SAFETY: the ring gave memory for a whole record, and every field is written.
        unsafe {
            (*record).header = Header { kind: KIND_EXIT, detail: 0, boot_ns: bpf_ktime_get_boot_ns() };
            (*record).start_ns = start_ns;
            (*record).tgid = tgid;
            (*record).status = if flags & GROUP_EXIT != 0 { of_group } else { of_leader };
        }
    });
    0
}

/// `SEND_SIG_PRIV` of include/linux/sched/signal.h: the kernel sends a signal without saying more.
const SEND_SIG_PRIV: u64 = 1;
/// Where `si_code` is (include/uapi/asm-generic/siginfo.h; programs are compiled with that).
const SI_CODE: u32 = 8;
/// `TRACE_SIGNAL_DELIVERED` and `TRACE_SIGNAL_LOSE_INFO` of include/trace/events/signal.h: it is not ignored, as the first process
/// of a pid namespace does with what is sent from within.
const DELIVERED: i32 = 0;
const DELIVERED_WITHOUT_INFO: i32 = 4;
/// `SI_USER`, `SI_QUEUE` and `SI_TKILL` of siginfo.h: a process sends it, as by kill(2), sigqueue(3) or tgkill(2).
const BY_PROCESS: [i32; 3] = [0, -1, -6];
/// `PF_EXITING` of include/linux/sched.h.
const PF_EXITING: u32 = 4;
/// Signals that end a process by default, or are to make it end itself (signal(7)).
const ENDING: u32 = bits(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 24, 31]);

const fn bits(signals: &[u32]) -> u32 {
    let (mut bits, mut index) = (0, 0);
    while index < signals.len() {
        bits |= 1 << signals[index];
        index += 1;
    }
    bits
}

/// `signal_generate(int sig, struct kernel_siginfo *info, struct task_struct *task, int group, int result)`, since 3.2. Fires in
/// whoever sends it.
#[btf_tracepoint(function = "signal_generate")]
fn signal_generate(ctx: BtfTracePointContext) -> i32 {
    let signal: i32 = ctx.arg(0);
    let result: i32 = ctx.arg(4);
    if !(1..32).contains(&signal) || ENDING & (1 << signal) == 0 {
        return 0;
    }
    if result != DELIVERED && result != DELIVERED_WITHOUT_INFO {
        return 0;
    }
    let target = Typed(ctx.arg::<u64>(2));
    let tgid: u32 = target.get(volatile(&raw const task::OFFSETS.task_tgid));
    // SAFETY: the map's values are plain numbers.
    if unsafe { FOLLOWED.get(tgid) }.is_none() {
        return 0;
    }
    let leader = target.follow(offset!(task_group_leader));
    let start_ns: u64 = leader.get(volatile(&raw const task::OFFSETS.task_start_boottime));
    if is_followed(tgid, start_ns) {
        signalled(signal as u32, ctx.arg(1), tgid, start_ns);
    }
    0
}

#[inline(always)]
fn signalled(signal: u32, info: u64, tgid: u32, start_ns: u64) {
    // Newer verifiers take an argument for no null pointer, which this one may be (`SEND_SIG_NOINFO`).
    let info = volatile(&raw const info);
    let sender = task::current_typed(Program::Signal);
    let room = match &sender {
        Some(task) => lanes::signal(task),
        // In an interrupt, or by a thread of the kernel.
        None => Some(RingReserve::Unprivileged),
    };
    let Some(room) = room else {
        return;
    };
    if let Some(task) = sender {
        task::send_details(task, room);
    }
    let (id, root) = match &sender {
        Some(task) => (*task.id(), task.root()),
        None => (task::NO_TASK, 0),
    };
    let sent_by = sent_by(sender.as_ref(), info, tgid);
    emit::record::<SignalRecord>(room, counter::RING_FULL, |record| {
        // SAFETY: the ring gave memory for a whole record, and every field is written.
        unsafe {
            (*record).header = Header { kind: KIND_SIGNAL, detail: 0, boot_ns: bpf_ktime_get_boot_ns() };
            (*record).task = id;
            (*record).start_ns = start_ns;
            (*record).tgid = tgid;
            (*record).signal = signal;
            (*record).task_root = root;
            (*record).sent_by = sent_by;
        }
    });
}

/// Who sends a signal to this process. What says that the kernel does a process can only send to itself (rt_sigqueueinfo(2)), and
/// the children of one that ends get theirs from the kernel in its name (`PR_SET_PDEATHSIG`).
#[inline(always)]
fn sent_by(sender: Option<&Task>, info: u64, tgid: u32) -> u32 {
    if info == SEND_SIG_PRIV {
        return SENT_BY_KERNEL;
    }
    let Some(task) = sender else {
        return SENT_BY_UNKNOWN;
    };
    let code: i32 = if info == 0 { 0 } else { Kernel(info).get(SI_CODE) };
    if code > 0 && task.id().tgid != tgid {
        return SENT_BY_KERNEL;
    }
    let flags: u32 = task.address.get(volatile(&raw const task::OFFSETS.task_flags));
    let is_process = code == BY_PROCESS[0] || code == BY_PROCESS[1] || code == BY_PROCESS[2];
    if is_process && flags & PF_EXITING == 0 { SENT_BY_TASK } else { SENT_BY_UNKNOWN }
}

/// Whether the daemon follows this process.
#[inline(always)]
fn is_followed(tgid: u32, start_ns: u64) -> bool {
    // SAFETY: the map's values are plain numbers.
    unsafe { FOLLOWED.get(tgid) }.is_some_and(|ticks| *ticks == start_ns / TICK_NS)
}
