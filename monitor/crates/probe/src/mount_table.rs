//! Whether the mounts of a namespace have changed since a call: a program reads what no system call shows.

use std::sync::{Mutex, PoisonError, Weak};

use aya::TestRun as _;
use aya::maps::{Array, MapData};
use aya::programs::{Program, RawTracePoint, RawTracePointRunOptions};
use kevtmon_ebpf::umount::table_state;
use kevtmon_observation::TableMark;

use super::attached::Attached;

pub(super) const MOUNT_TABLE_PROGRAM: &str = "mount_table";

/// The program that reads mount tables. It keeps no program in the kernel.
pub struct MountTables {
    programs: Weak<Attached>,
    /// What the program writes; one request at a time.
    state: Mutex<Array<MapData, u64>>,
}

impl MountTables {
    pub(super) fn new(programs: Weak<Attached>, state: Array<MapData, u64>) -> Self {
        Self { programs, state: Mutex::new(state) }
    }

    /// Number of the last change of the table that a call has seen; `None` where its namespace is gone, where it changes just now,
    /// and where the kernel does not tell: before 5.10, or after the programs were removed.
    pub fn event(&self, of: &TableMark) -> Option<u64> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let programs = self.programs.upgrade()?;
        let Program::RawTracePoint(program) = programs.0.program(MOUNT_TABLE_PROGRAM)? else { return None };
        let mut options = RawTracePointRunOptions::new();
        options.args[..2].copy_from_slice(&[of.handle, of.id]);
        RawTracePoint::test_run(program, options).ok()?;
        let read = |index| state.get(&index, 0).ok();
        if read(table_state::IS_KNOWN)? == 1 { read(table_state::EVENT) } else { None }
    }
}
