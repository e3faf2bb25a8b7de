//! Runs of programs that the kernel skipped, because the same program was under way on that CPU: an interrupt came while it
//! ran. For a program of a system call or of a kprobe any other such program is enough, or a bpf(2) on a map. What such a run
//! would have reported and counted, nothing else does.

use std::fs;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use aya::Ebpf;

use super::hooks::{HOOKS, Hook};

/// In `/proc/self/fdinfo/FD` of a program, since 5.12; of tracepoints of tracefs and of kprobes nothing is counted before 6.7.
const FIELD: &str = "recursion_misses:";

/// The attached programs of a hook.
pub(super) struct SkippedRuns {
    /// Why their records are lost.
    pub(super) reason: &'static str,
    programs: Vec<OwnedFd>,
}

impl SkippedRuns {
    /// Those of every hook that has programs.
    pub(super) fn of(attached: &Ebpf) -> Vec<Self> {
        let hooks =
            HOOKS.iter().map(|hook| Self { reason: hook.skipped, programs: programs(hook, attached) });
        hooks.filter(|hook| !hook.programs.is_empty()).collect()
    }

    /// Skipped runs since the programs were loaded; none where the kernel does not tell.
    pub(super) fn count(&self) -> u64 {
        self.programs.iter().filter_map(skipped).sum()
    }
}

fn programs(hook: &Hook, attached: &Ebpf) -> Vec<OwnedFd> {
    let mut names: Vec<&str> = hook.programs().map(|program| program.name).collect();
    names.sort_unstable();
    names.dedup();
    let found = names.iter().filter_map(|name| attached.program(name));
    // Those of other attach modes are not loaded.
    found.filter_map(|program| program.fd().ok()?.as_fd().try_clone_to_owned().ok()).collect()
}

fn skipped(program: &OwnedFd) -> Option<u64> {
    parse(&fs::read_to_string(format!("/proc/self/fdinfo/{}", program.as_raw_fd())).ok()?)
}

fn parse(fdinfo: &str) -> Option<u64> {
    fdinfo.lines().find_map(|line| line.strip_prefix(FIELD))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_runs_are_read_where_the_kernel_tells_them() {
        let fdinfo = "pos:\t0\nflags:\t02000002\nprog_type:\t26\nrun_cnt:\t7\nrecursion_misses:\t41\n";
        assert_eq!(parse(fdinfo), Some(41));
        assert_eq!(parse("pos:\t0\nprog_type:\t26\nrun_cnt:\t7\n"), None);
    }
}
