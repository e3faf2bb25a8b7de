//! Processes in the control groups of a pod: which were killed and do not go.

use kevtmon_observation::PodProcess;

use crate::procfs::Proc;
use crate::procfs::root::is_init;

const TOLD_MAX: usize = 8;
/// The bit of SIGKILL in a mask of signals.
const SIGKILL: u64 = 1 << 8;

/// Those that were sent SIGKILL and are still there, and with `all` the first of the others.
pub(super) fn of(proc: &Proc, pids: &[u32], all: bool) -> Vec<PodProcess> {
    let mut buffer = Vec::new();
    let found = pids.iter().filter_map(|pid| process(proc, *pid, all, &mut buffer));
    let mut found: Vec<PodProcess> = found.filter(|process| all || process.killed).collect();
    found.sort_by_key(|process| (!process.killed, process.state != 'D', process.key()));
    found.truncate(TOLD_MAX);
    found
}

fn process(proc: &Proc, pid: u32, all: bool, buffer: &mut Vec<u8>) -> Option<PodProcess> {
    let stat = proc.stat(pid)?;
    // What runs dies at once. A process is there as long as a thread of it is.
    let may_hang = matches!(stat.state, 'D' | 'Z');
    if !may_hang && !all {
        return None;
    }
    let (mut killed, mut init) = (false, false);
    if may_hang {
        let status = proc.dir(pid).ok()?.text(c"status", buffer).ok()?;
        (killed, init) = (is_killed(&status), is_init(&status));
    }
    let process =
        PodProcess { tgid: pid, start_ns: stat.start_ns, comm: stat.comm, state: stat.state, killed, init };
    // Another one may have its id by now.
    (proc.stat(pid)?.start_ns == stat.start_ns).then_some(process)
}

/// Whether SIGKILL is pending, of the thread or of the process: nothing blocks or handles it, so who has it is on the way out.
fn is_killed(status: &str) -> bool {
    let masks = status
        .lines()
        .filter_map(|line| line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:")));
    masks.filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok()).any(|mask| mask & SIGKILL != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_killed_once_sigkill_is_pending() {
        let status = |thread: &str, process: &str| {
            format!("Name:\tx\nSigPnd:\t{thread}\nShdPnd:\t{process}\nSigBlk:\t0000000000000100\n")
        };
        assert!(is_killed(&status("0000000000000100", "0000000000000000")));
        assert!(is_killed(&status("0000000000000000", "0000000000004100")));
        assert!(!is_killed(&status("0000000000004000", "0000000000000000")), "SIGTERM");
        assert!(!is_killed(""));
    }

    #[test]
    fn a_process_that_runs_is_told_only_where_all_are() {
        let own = std::process::id();
        assert_eq!(of(&Proc::default(), &[own, u32::MAX], false), []);
        let all = of(&Proc::default(), &[own, u32::MAX], true);
        assert_eq!(
            all.iter().map(|process| (process.tgid, process.killed)).collect::<Vec<_>>(),
            [(own, false)]
        );
    }
}
