//! The current task: its identity in every record, its details once per identity.
//!
//! `ip`, `umount` and CNI plugins end within milliseconds, so all that identifies them is captured here.

use aya_ebpf::helpers::generated::{bpf_get_current_task, bpf_get_current_task_btf, bpf_ktime_get_boot_ns};
use aya_ebpf::helpers::{bpf_get_current_comm, bpf_get_current_pid_tgid};
use aya_ebpf::macros::map;
use aya_ebpf::maps::LruHashMap;
use kevtmon_ebpf::task::{AncestorRecord, KIND_TASK, TaskId, TaskOffsets, TaskRecord, counter};
use kevtmon_ebpf::{Header, MISSING};

use crate::emit;
use crate::memory::{Kernel, Structure, Typed, copy_arguments, offset, walk_names};
use crate::path::Place;

/// `PF_KTHREAD` of `include/linux/sched.h`.
const PF_KTHREAD: u32 = 0x0020_0000;

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
    reserved: u32,
}

/// Tasks whose details were sent.
#[map]
static TASKS_SENT: LruHashMap<Identity, u8> = LruHashMap::with_max_entries(1024, 0);

/// No actor.
pub(crate) const NO_TASK: TaskId = TaskId {
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
    comm: [0; 16],
};

/// The current task, if it is a process: a kernel thread or an idle CPU is no actor.
#[inline(always)]
pub(crate) fn current() -> Option<(Kernel, TaskId)> {
    // SAFETY: helper without arguments.
    let task = Kernel(unsafe { bpf_get_current_task() });
    Some((task, identify(task)?))
}

/// The same for programs whose arguments have BTF types.
#[inline(always)]
pub(crate) fn current_typed() -> Option<(Kernel, TaskId)> {
    // SAFETY: helper without arguments, since 5.11.
    let task = Typed(unsafe { bpf_get_current_task_btf() } as u64);
    Some((task.untyped(), identify(task)?))
}

#[inline(always)]
fn identify(task: impl Structure) -> Option<TaskId> {
    let ids = bpf_get_current_pid_tgid();
    let tgid = (ids >> 32) as u32;
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
    Some(TaskId {
        start_ns: leader.get(offset!(task_start_boottime)),
        tgid,
        tid: ids as u32,
        exec_id: leader.get(offset!(task_self_exec_id)),
        uid: cred.get(offset!(cred_uid)),
        euid: cred.get(offset!(cred_euid)),
        userns: cred.follow(offset!(cred_user_ns)).get(offset!(user_namespace_inum)),
        netns: namespaces.follow(offset!(nsproxy_net_ns)).get(offset!(net_ns_inum)),
        mntns: namespaces.follow(offset!(nsproxy_mnt_ns)).get(offset!(mnt_namespace_inum)),
        cgroup_v1: cgroup_v1(task).map_or(0, |node| node.get(offset!(kernfs_id))),
        cgroup_v2: cgroup_v2(task).map_or(0, |node| node.get(offset!(kernfs_id))),
        comm: bpf_get_current_comm().unwrap_or_default(),
    })
}

/// The kernfs node of the control group of a v1 controller. The verifier knows the offsets, so the branch costs nothing.
#[inline(always)]
fn cgroup_v1<S: Structure>(task: S) -> Option<S> {
    if offset!(task_cgroups) == MISSING || offset!(css_set_subsys) == MISSING {
        return None;
    }
    let state = task.follow(offset!(task_cgroups)).follow(offset!(css_set_subsys));
    Some(state.follow(offset!(css_cgroup)).follow(offset!(cgroup_kn)))
}

/// The kernfs node of the control group in the v2 hierarchy.
#[inline(always)]
fn cgroup_v2<S: Structure>(task: S) -> Option<S> {
    if offset!(task_cgroups) == MISSING || offset!(css_set_dfl_cgrp) == MISSING {
        return None;
    }
    Some(task.follow(offset!(task_cgroups)).follow(offset!(css_set_dfl_cgrp)).follow(offset!(cgroup_kn)))
}

/// Sends the details of a task, unless that was done before.
#[inline(always)]
pub(crate) fn send_details(task: Kernel, id: &TaskId) {
    let identity = Identity {
        start_ns: id.start_ns,
        tgid: id.tgid,
        exec_id: id.exec_id,
        mntns: id.mntns,
        cgroup_v1: id.cgroup_v1,
        cgroup_v2: id.cgroup_v2,
        reserved: 0,
    };
    // SAFETY: the map's values are plain bytes.
    if unsafe { TASKS_SENT.get(identity) }.is_some() {
        return;
    }
    if emit::record::<TaskRecord>(counter::RING_FULL, |record| fill(record, task, id)) {
        let _ = TASKS_SENT.insert(identity, 1, 0);
    }
}

#[inline(always)]
fn fill(record: *mut TaskRecord, task: Kernel, id: &TaskId) {
    // SAFETY: the ring gave memory for a whole record; every field is written below, `argv` as far as its
    // length goes, and the daemon reads no further.
    unsafe {
        (*record).header = Header { kind: KIND_TASK, reserved: 0, boot_ns: bpf_ktime_get_boot_ns() };
        (*record).task = *id;
        let mm = task.follow(offset!(task_mm));
        (*record).argv_len = copy_arguments(
            mm.get(offset!(mm_arg_start)),
            mm.get(offset!(mm_arg_end)),
            &raw mut (*record).argv,
        );
        let exe = Place::read(mm.follow(offset!(mm_exe_file)), offset!(file_path));
        (*record).exe_marks = exe.walk(Place::root_of(task), &raw mut (*record).exe);

        let v1 = cgroup_v1(task).unwrap_or(Kernel(0));
        walk_names(v1, offset!(kernfs_parent), offset!(kernfs_name), &raw mut (*record).cgroup_v1);
        let v2 = cgroup_v2(task).unwrap_or(Kernel(0));
        walk_names(v2, offset!(kernfs_parent), offset!(kernfs_name), &raw mut (*record).cgroup_v2);

        let mut ancestor = task;
        let mut index = 0;
        while index < 3 {
            ancestor = ancestor.follow(offset!(task_real_parent)).follow(offset!(task_group_leader));
            (*record).ancestors[index] = AncestorRecord {
                tgid: ancestor.get(offset!(task_tgid)),
                reserved: 0,
                start_ns: ancestor.get(offset!(task_start_boottime)),
                comm: ancestor.get(offset!(task_comm)),
            };
            index += 1;
        }
    }
}
