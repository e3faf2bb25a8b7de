//! Programs that stay attached until this is dropped.

use std::thread;

use aya::Ebpf;
use aya::programs::{Program, ProgramError};

pub(super) struct Attached(pub(super) Ebpf);

impl Drop for Attached {
    /// The kernel waits for a grace period of RCU whenever it detaches a program, which takes some 40 ms: side by side they wait
    /// for the same one.
    fn drop(&mut self) {
        thread::scope(|scope| {
            let programs = self.0.programs_mut().map(|(_, program)| program);
            for program in programs.filter(|program| program.fd().is_ok()) {
                // Where no thread starts it is unloaded with its object.
                let _ = thread::Builder::new().spawn_scoped(scope, || unload(program));
            }
        });
    }
}

pub(super) fn unload(program: &mut Program) -> Result<(), ProgramError> {
    match program {
        Program::BtfTracePoint(program) => program.unload(),
        Program::TracePoint(program) => program.unload(),
        Program::FEntry(program) => program.unload(),
        Program::KProbe(program) => program.unload(),
        Program::CgroupSysctl(program) => program.unload(),
        Program::RawTracePoint(program) => program.unload(),
        // No hook has those of other kinds.
        _ => Ok(()),
    }
}
