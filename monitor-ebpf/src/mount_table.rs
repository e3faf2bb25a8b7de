//! The mount table of a namespace: what tells later whether it still is the one that a call has seen.
//!
//! Each change of the table, by whatever way, gives it the next number of a counter of the kernel
//! (`touch_mnt_namespace` in fs/namespace.c), under the lock that lookups of mounts take, too. No system call shows that
//! number, so the daemon runs a program of its own to read it again.

use aya_ebpf::macros::{map, raw_tracepoint};
use aya_ebpf::maps::Array;
use aya_ebpf::programs::RawTracePointContext;
use kevtmon_ebpf::MISSING;
use kevtmon_ebpf::umount::{MountTableRecord, TABLE_STATE, table_state};

use crate::memory::{Kernel, Structure as _, offset, volatile};
use crate::umount::OFFSETS;

/// Written by the daemon before load. Addresses of the kernel are nobody's business.
#[unsafe(export_name = "HANDLE_KEY")]
// Not zero: a constant of the same value, of which a reference is taken, may be made one with it.
static KEY: u64 = u64::MAX;

/// What the daemon asked for last.
#[map]
static MOUNT_TABLE: Array<u64> = Array::with_max_entries(TABLE_STATE, 0);

/// Steps down the tree of mounts: enough for some 60,000 of them.
const DEPTH: u32 = 32;

/// `struct mnt_namespace`.
#[derive(Clone, Copy)]
pub(crate) struct MountTable(Kernel);

impl MountTable {
    /// That which a task sees.
    #[inline(always)]
    pub(crate) fn of(task: Kernel) -> Self {
        Self(task.follow(offset!(task_nsproxy)).follow(offset!(nsproxy_mnt_ns)))
    }

    /// With which it changed last.
    #[inline(always)]
    pub(crate) fn event(self) -> u64 {
        self.0.get(offset!(mnt_namespace_event))
    }

    #[inline(always)]
    fn id(self) -> u64 {
        self.0.get(offset!(mnt_namespace_id))
    }

    /// The highest unique id in it: that of the last node of the tree, which is ordered by it. The tree is read without its
    /// lock, so a change meanwhile makes it a lower one; but that shows.
    #[inline(always)]
    fn newest(self) -> u64 {
        let mut node: u64 = self.0.get(offset!(mnt_namespace_last_node));
        // The verifier knows both. Before 6.8 there is no such tree.
        if offset!(mnt_namespace_last_node) == MISSING && offset!(mnt_namespace_root_node) != MISSING {
            let mut next: u64 = self.0.get(offset!(mnt_namespace_root_node));
            let mut step = 0;
            while step < DEPTH {
                // Past the end there is nothing, and the last one stays.
                let is_there = u64::from(next != 0).wrapping_neg();
                node = (next & is_there) | (node & !is_there);
                next = Kernel(node).get(offset!(rb_node_right));
                step += 1;
            }
        }
        Kernel(node.wrapping_sub(u64::from(offset!(mount_node)))).get(offset!(mount_id_unique))
    }

    /// Writes what tells it from what it becomes. `start`: its event at the start of the call.
    ///
    /// # Safety
    /// `into` must be valid for writes.
    #[inline(always)]
    pub(crate) unsafe fn describe(self, start: u64, into: *mut MountTableRecord) {
        // SAFETY: by the caller's promise.
        unsafe {
            (*into).handle = self.0.0 ^ volatile(&raw const KEY);
            (*into).id = self.id();
            (*into).newest = self.newest();
            let event = self.event();
            (*into).event = event;
            (*into).changed = u32::from(event != start);
            (*into).reserved = 0;
        }
    }
}

/// Run by the daemon; attached to nothing. Arguments: handle and id of a mount namespace.
#[raw_tracepoint]
fn mount_table(ctx: RawTracePointContext) {
    let table = MountTable(Kernel(ctx.arg::<u64>(0) ^ volatile(&raw const KEY)));
    let event = table.event();
    let is_known = table.id() == ctx.arg::<u64>(1) && table.event() == event;
    let state = [(table_state::EVENT, event), (table_state::IS_KNOWN, is_known.into())];
    for (index, value) in state {
        let Some(slot) = MOUNT_TABLE.get_ptr_mut(index) else { return };
        // SAFETY: a slot of the map, which only this program writes, once at a time.
        unsafe { *slot = value };
    }
}
