//! The current task: its identity in every record, its details once per identity.
//!
//! `ip`, `umount` and CNI plugins end within milliseconds, so all that identifies them is captured here.

use aya_ebpf::helpers::generated::{
    bpf_get_current_task, bpf_get_current_task_btf, bpf_ktime_get_boot_ns, bpf_probe_read_kernel_str,
};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{LruHashMap, PerCpuArray};
use kevtmon_ebpf::task::{
    ANCESTORS, AncestorRecord, COMM_LEN, KIND_TASK, Makers, NAME_CAPACITY, NAMES_DEPTH, Names, RESEND_AFTER,
    TaskId, TaskOffsets, TaskRecord, counter, process_flag,
};
use kevtmon_ebpf::{Header, MISSING};

use crate::emit::{self, RingReserve};
use crate::memory::{Kernel, Structure, Typed, copy_arguments, offset};
use crate::path::{Place, either, equal};

/// `PF_KTHREAD` of `include/linux/sched.h`.
const PF_KTHREAD: u32 = 0x0020_0000;
/// Number of the bit of `PF_KTHREAD`, and of `PF_EXITING`.
const KTHREAD_BIT: u32 = 21;
const EXITING_BIT: u32 = 2;
/// The same of `SIGNAL_UNKILLABLE` (`include/linux/sched/signal.h`), which the init of a pid namespace has from its
/// start, and of `SIGNAL_GROUP_EXIT`, which takes its place when the process ends.
const UNKILLABLE_BIT: u32 = 6;
const GROUP_EXIT_BIT: u32 = 2;
/// The bit of `CAP_SYS_ADMIN` of include/uapi/linux/capability.h.
const SYS_ADMIN: u32 = 1 << 21;

/// Written by the daemon before load.
#[unsafe(export_name = "TASK_OFFSETS")]
pub(crate) static OFFSETS: TaskOffsets = TaskOffsets::ZERO;

/// What the details of a task depend on.
#[repr(C)]
#[derive(Clone, Copy)]
struct Identity {
    start_ns: u64,
    tgid: u32,
    exec_id: u32,
    mntns: u32,
    cgroup_v1: u32,
    cgroup_v2: u32,
    root: u32,
}

/// Tasks whose details were sent, and where in the ring. Which ones the kernel drops from such a map is not certain (each
/// CPU has lists of its own), so that their age decides, and not whether they are there.
#[map]
static TASKS_SENT: LruHashMap<Identity, u64> = LruHashMap::with_max_entries(1024, 0);

/// As long as fewer bytes were written to the ring since, no more than `RESEND_AFTER` others can have been sent.
const RESEND_AFTER_BYTES: u64 = RESEND_AFTER * size_of::<TaskRecord>() as u64;

/// What is known of the current task. Too large for the stack of a program, whose 512 bytes are shared by all
/// functions that it calls.
#[repr(C)]
#[derive(Clone, Copy)]
struct Current {
    id: TaskId,
    identity: Identity,
    /// A value on its way through [`Task::unseen`].
    room: RingReserve,
}

/// One slot for each program: one may interrupt another, and none interrupts itself where it has an actor.
#[map]
static CURRENT: PerCpuArray<Current> = PerCpuArray::with_max_entries(Program::COUNT, 0);

/// A program that asks for the current task.
#[derive(Clone, Copy)]
pub(crate) enum Program {
    NeighUpdate,
    NeighCleanup,
    NeighCreate,
    Umount,
    Remove,
    Exec,
    QdiscReset,
    QdiscDestroy,
    QdiscCreate,
    RtnlNotify,
    Sysctl,
    Signal,
}

impl Program {
    pub(crate) const COUNT: u32 = 12;
}

/// The current task.
#[derive(Clone, Copy)]
pub(crate) struct Task {
    /// `struct task_struct`.
    pub(crate) address: Kernel,
    current: *mut Current,
}

impl Task {
    /// What goes into a record.
    #[inline(always)]
    pub(crate) fn id(&self) -> &TaskId {
        // SAFETY: a slot of the map, which `identify` filled.
        unsafe { &(*self.current).id }
    }

    /// What goes into a record beside it: which root directory its details belong to.
    #[inline(always)]
    pub(crate) fn root(&self) -> u32 {
        // SAFETY: as in `id`.
        unsafe { (*self.current).identity.root }
    }

    /// The same, of which the verifier forgets in a map which one it is: it would walk all that follows once for each.
    #[inline(always)]
    pub(crate) fn unseen(&self, room: RingReserve) -> RingReserve {
        // SAFETY: a slot of the map, which `identify` filled.
        unsafe {
            let slot = &raw mut (*self.current).room;
            slot.write_volatile(room);
            slot.read_volatile()
        }
    }

    /// Its network namespace.
    #[inline(always)]
    pub(crate) fn netns(&self) -> Kernel {
        self.address.follow(offset!(task_nsproxy)).follow(offset!(nsproxy_net_ns))
    }

    /// Whether it has the rights of an administrator (`CAP_SYS_ADMIN`) in its user namespace, as few containers have in that of
    /// the node.
    #[inline(always)]
    pub(crate) fn may_administer(&self) -> bool {
        let cred = self.address.follow(offset!(task_cred));
        cred.get::<u32>(offset!(cred_cap_effective)) & SYS_ADMIN != 0
    }

    /// Whether one of the processes above it is such a one, by thread group id and start, and in the same mount namespace. The
    /// number of a namespace would not do: it is another one's as soon as the namespace has ended.
    #[inline(always)]
    pub(crate) fn is_called_in_its_mntns_by(&self, is_wanted: impl Fn(u32, u64) -> bool) -> bool {
        let mntns = |task: Kernel| task.follow(offset!(task_nsproxy)).follow(offset!(nsproxy_mnt_ns)).0;
        let mut process = self.address.follow(offset!(task_group_leader));
        let mut depth = 0;
        while depth < ANCESTORS {
            process = process.follow(offset!(task_real_parent)).follow(offset!(task_group_leader));
            if is_wanted(process.get(offset!(task_tgid)), process.get(offset!(task_start_boottime))) {
                return mntns(process) != 0 && mntns(process) == mntns(self.address);
            }
            depth += 1;
        }
        false
    }
}

/// No actor.
pub(crate) static NO_TASK: TaskId = TaskId {
    start_ns: 0,
    tgid: 0,
    tid: 0,
    exec_id: 0,
    uid: 0,
    euid: 0,
    userns: 0,
    netns: 0,
    mntns: 0,
    cgroup_v1: 0,
    cgroup_v2: 0,
    comm: [0; COMM_LEN],
};

/// The current task, if it is a process: a kernel thread or an idle CPU is no actor.
#[inline(always)]
pub(crate) fn current(program: Program) -> Option<Task> {
    // SAFETY: helper without arguments.
    let address = Kernel(unsafe { bpf_get_current_task() });
    Some(Task { address, current: identify(address, program)? })
}

/// The same for programs whose arguments have BTF types.
#[inline(always)]
pub(crate) fn current_typed(program: Program) -> Option<Task> {
    // The verifier knows it, and does not walk what follows: a helper that it does not have.
    if offset!(helper_current_task_btf) == 0 {
        return current(program);
    }
    // SAFETY: helper without arguments, since 5.11.
    let task = Typed(unsafe { bpf_get_current_task_btf() } as u64);
    Some(Task { address: task.untyped(), current: identify(task, program)? })
}

/// The same for programs whose arguments have such types or not.
#[inline(always)]
pub(crate) fn current_of<S: Structure>(program: Program) -> Option<Task> {
    if S::IS_TYPED { current_typed(program) } else { current(program) }
}

#[inline(always)]
fn identify(task: impl Structure, program: Program) -> Option<*mut Current> {
    // Not every type of program may call `bpf_get_current_pid_tgid` before 6.10.
    let tgid: u32 = task.get(offset!(task_tgid));
    let flags: u32 = task.get(offset!(task_flags));
    if tgid == 0 || flags & PF_KTHREAD != 0 {
        return None;
    }
    let cred = task.follow(offset!(task_cred));
    // Never null, but the verifier may take a pointer under RCU for one that can be.
    if cred.is_null() {
        return None;
    }
    let leader = task.follow(offset!(task_group_leader));
    let namespaces = task.follow(offset!(task_nsproxy));
    let current = CURRENT.get_ptr_mut(program as u32)?;
    // SAFETY: the slot holds a whole structure, of which every field is written.
    unsafe {
        let id = &raw mut (*current).id;
        (*id).start_ns = leader.get(offset!(task_start_boottime));
        (*id).tgid = tgid;
        (*id).tid = task.get(offset!(task_pid));
        (*id).exec_id = leader.get(offset!(task_self_exec_id));
        (*id).uid = cred.get(offset!(cred_uid));
        (*id).euid = cred.get(offset!(cred_euid));
        (*id).userns = cred.follow(offset!(cred_user_ns)).get(offset!(user_namespace_inum));
        (*id).netns = namespaces.follow(offset!(nsproxy_net_ns)).get(offset!(net_ns_inum));
        (*id).mntns = namespaces.follow(offset!(nsproxy_mnt_ns)).get(offset!(mnt_namespace_inum));
        (*id).cgroup_v1 = cgroup_v1(task.untyped()).map_or(0, |node| node.get(offset!(kernfs_id)));
        (*id).cgroup_v2 = cgroup_v2(task.untyped()).map_or(0, |node| node.get(offset!(kernfs_id)));
        let comm = (&raw mut (*id).comm).cast::<[u64; COMM_LEN / 8]>();
        let name = offset!(task_comm);
        (*comm)[0] = leader.get(name);
        (*comm)[1] = leader.get(name + 8);
        let identity = &raw mut (*current).identity;
        (*identity).start_ns = (*id).start_ns;
        (*identity).tgid = tgid;
        (*identity).exec_id = (*id).exec_id;
        (*identity).mntns = (*id).mntns;
        (*identity).cgroup_v1 = (*id).cgroup_v1;
        (*identity).cgroup_v2 = (*id).cgroup_v2;
        // chroot(2) and pivot_root(2) replace it without an exec.
        (*identity).root = Place::root_of(leader.untyped()).fold();
    }
    Some(current)
}

/// The kernfs node of the control group of a v1 controller. The verifier knows the offsets, so the branch costs nothing.
#[inline(always)]
fn cgroup_v1(task: Kernel) -> Option<Kernel> {
    if offset!(task_cgroups) == MISSING || offset!(css_set_subsys) == MISSING {
        return None;
    }
    let state = task.follow(offset!(task_cgroups)).follow(offset!(css_set_subsys));
    Some(state.follow(offset!(css_cgroup)).follow(offset!(cgroup_kn)))
}

/// The kernfs node of the control group in the v2 hierarchy.
#[inline(always)]
fn cgroup_v2(task: Kernel) -> Option<Kernel> {
    if offset!(task_cgroups) == MISSING || offset!(css_set_dfl_cgrp) == MISSING {
        return None;
    }
    Some(task.follow(offset!(task_cgroups)).follow(offset!(css_set_dfl_cgrp)).follow(offset!(cgroup_kn)))
}

/// Sends the details of a task, unless that was done before; they belong to the record that needs them.
#[inline(always)]
pub(crate) fn send_details(task: Task, room: RingReserve) {
    // SAFETY: a slot of the map, which `identify` filled.
    let identity = unsafe { &(*task.current).identity };
    let position = emit::position();
    // SAFETY: the map's values are plain bytes.
    let sent = unsafe { TASKS_SENT.get(identity) };
    if sent.is_some_and(|sent| position.wrapping_sub(*sent) < RESEND_AFTER_BYTES) {
        return;
    }
    let lost = room.loss(counter::RING_FULL, counter::USERS_RING_FULL);
    if emit::record::<TaskRecord>(room, lost, |record| fill(record, &task)) {
        let _ = TASKS_SENT.insert(identity, position, 0);
    }
}

#[inline(always)]
fn fill(record: *mut TaskRecord, current: &Task) {
    let task = current.address;
    // SAFETY: the ring gave memory for a whole record; every field is written below, `argv` as far as its
    // length goes, and the daemon reads no further.
    unsafe {
        (*record).header = Header { kind: KIND_TASK, detail: 0, boot_ns: bpf_ktime_get_boot_ns() };
        (*record).task = *current.id();
        let mm = task.follow(offset!(task_mm));
        (*record).argv_len = copy_arguments(
            mm.get(offset!(mm_arg_start)),
            mm.get(offset!(mm_arg_end)),
            &raw mut (*record).argv,
        );
        let exe = Place::read(mm.follow(offset!(mm_exe_file)), offset!(file_path));
        // A thread can have a root of its own, and these details serve the acts of all.
        let leader = task.follow(offset!(task_group_leader));
        (*record).exe_marks = exe.walk(Place::root_of(leader), &raw mut (*record).exe);

        let v1 = cgroup_v1(task).unwrap_or(Kernel(0));
        add_cgroup(v1, &raw mut (*record).cgroup_v1, &raw mut (*record).makers_v1);
        let v2 = cgroup_v2(task).unwrap_or(Kernel(0));
        add_cgroup(v2, &raw mut (*record).cgroup_v2, &raw mut (*record).makers_v2);

        (*record).flags = process_flags(leader);
        (*record).root = current.root();
        add_ancestors(&raw mut (*record).ancestors, leader);
    }
}

/// Walks up a tree of kernfs nodes and writes their names, leaf first, and who may make others below each. A name that
/// fills its slot goes on in the next one. Above the root everything reads as empty.
///
/// # Safety
/// `names` and `makers` must be valid for writes.
#[inline(always)]
unsafe fn add_cgroup(leaf: Kernel, names: *mut Names, makers: *mut Makers) {
    let slot = &mut 0;
    let (mut node, mut written) = (leaf, 0_u64);
    let mut depth = 0;
    while depth < NAMES_DEPTH {
        let name = node.get::<u64>(offset!(kernfs_name)).wrapping_add(written);
        // SAFETY: by the caller's promise; probe_read checks the source and zeroes the slot on failure.
        let copied = unsafe {
            let copied = bpf_probe_read_kernel_str(
                (&raw mut (*names)[depth]).cast(),
                NAME_CAPACITY as u32,
                name as *const _,
            );
            // Without attributes of its own, as long as nobody has set any, it is root's.
            let attributes = node.follow(offset!(kernfs_iattr));
            attributes.put(offset!(kernfs_iattrs_uid), &raw mut (*makers).owners[depth]);
            node.put(offset!(kernfs_mode), &raw mut (*makers).modes[depth]);
            copied
        };
        let goes_on = equal(slot, copied as u64, NAME_CAPACITY as u64);
        written = written.wrapping_add(NAME_CAPACITY as u64 - 1) & goes_on;
        node = Kernel(either(goes_on, node.0, node.follow(offset!(kernfs_parent)).0));
        depth += 1;
    }
}

/// Writes the processes above one, and what shows whether each of them forked the one below it.
///
/// # Safety
/// `into` must be valid for writes.
#[inline(always)]
unsafe fn add_ancestors(into: *mut [AncestorRecord; ANCESTORS], leader: Kernel) {
    let mut below = leader;
    let mut index = 0;
    while index < ANCESTORS {
        // SAFETY: by the caller's promise; every field is written.
        unsafe {
            let ancestor = &raw mut (*into)[index];
            let thread = below.follow(offset!(task_real_parent));
            let above = thread.follow(offset!(task_group_leader));
            above.put(offset!(task_tgid), &raw mut (*ancestor).tgid);
            (*ancestor).flags = process_flags(above);
            above.put(offset!(task_start_boottime), &raw mut (*ancestor).start_ns);
            above.put(offset!(task_comm), &raw mut (*ancestor).comm);
            above.put(offset!(task_self_exec_id), &raw mut (*ancestor).exec_id);
            below.put(offset!(task_parent_exec_id), &raw mut (*ancestor).forked_at);
            // Where the addresses differ, so does one of their halves.
            let other = thread.0 ^ above.0;
            (*ancestor).by_other_thread = (other | other >> 32) as u32;
            // What it is for others: its own may be overridden for a moment.
            above.follow(offset!(task_real_cred)).put(offset!(cred_uid), &raw mut (*ancestor).uid);
            (*ancestor).cgroup_v1 = cgroup_v1(above).map_or(0, |node| node.get(offset!(kernfs_id)));
            (*ancestor).cgroup_v2 = cgroup_v2(above).map_or(0, |node| node.get(offset!(kernfs_id)));
            below = above;
        }
        index += 1;
    }
}

/// Bits of [`process_flag`] about the process of this first thread. By shifts, since a branch would multiply the paths
/// that the verifier walks.
#[inline(always)]
fn process_flags(leader: Kernel) -> u32 {
    let flags: u32 = leader.get(offset!(task_flags));
    let signal = leader.follow(offset!(task_signal));
    let of_signals: u32 = signal.get(offset!(signal_flags));
    let is_subreaper: u8 = signal.get(offset!(signal_is_subreaper));
    let has_subreaper: u8 = signal.get(offset!(signal_has_subreaper));
    let bit = |word: u32, number: u32| (word >> number) & 1;
    let is_init = bit(of_signals, UNKILLABLE_BIT) | bit(of_signals, GROUP_EXIT_BIT);
    let is_subreaper = bit(u32::from(is_subreaper), offset!(signal_is_subreaper_bit));
    let has_subreaper = bit(u32::from(has_subreaper), offset!(signal_has_subreaper_bit));
    (is_init * process_flag::INIT)
        | (is_subreaper * process_flag::SUBREAPER)
        | (has_subreaper * process_flag::BELOW_SUBREAPER)
        | (bit(flags, KTHREAD_BIT) * process_flag::KERNEL)
        | (bit(flags, EXITING_BIT) * process_flag::LEADER_EXITS)
}
