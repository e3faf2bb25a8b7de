//! Whether the init process of a container still runs: by its id and its start, since the kernel gives the id of one that
//! ended to another.

use std::time::Duration;

use kevtmon_observation::{BootNs, Fact, ProcessState};
use serde::{Deserialize, Serialize};

use crate::Sender;
use crate::procfs::readers::{Job, Readers};
use crate::procfs::{Proc, pidfd};

/// Longest wait for a reader; an event waits for the answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// Looks whether the process with this id is the one that started then.
#[derive(Debug, Serialize, Deserialize)]
pub struct StillRuns {
    tgid: u32,
    started_ns: BootNs,
}

impl Job for StillRuns {
    const NAME: &'static str = "still-runs";
    type Reply = bool;

    fn run(&self, proc: &Proc) -> bool {
        let found = proc.stat(self.tgid).map(|stat| stat.start_ns);
        // One that may not be read now is known by its id alone.
        proc.is_aside(self.tgid) || found == Some(self.started_ns)
    }
}

/// The answer at once, where it needs no look at /proc: no process has the id, or nothing else is known of it.
pub fn at_once(tgid: u32, started_ns: Option<BootNs>) -> Option<ProcessState> {
    let alive = pidfd::is_running(tgid);
    (!alive || started_ns.is_none()).then_some(ProcessState { tgid, alive })
}

/// Looks, and sends the answer. Where nobody can look now, the process is taken to run.
pub fn look_and_send(readers: &Readers, tx: &Sender, tgid: u32, started_ns: BootNs) {
    let job = (StillRuns { tgid, started_ns }, PATIENCE, "cannot see whether a process is the same");
    readers.tell(tx, job, move |alive| {
        Some(Fact::ProcessState(ProcessState { tgid, alive: alive.unwrap_or(true) }))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_with_the_id_is_not_the_one_that_started_before() {
        let (tgid, proc) = (std::process::id(), Proc::default());
        let start = proc.stat(tgid).unwrap().start_ns;
        let runs = |started_ns| StillRuns { tgid, started_ns }.run(&proc);
        assert!(runs(start) && !runs(start + 10_000_000));
        assert!(StillRuns { tgid, started_ns: 1 }.run(&proc.without(vec![tgid])));
        assert_eq!(at_once(tgid, Some(start)), None, "only its start tells");
        assert_eq!(at_once(tgid, None), Some(ProcessState { tgid, alive: true }));
        assert_eq!(at_once(u32::MAX, Some(1)), Some(ProcessState { tgid: u32::MAX, alive: false }));
    }
}
