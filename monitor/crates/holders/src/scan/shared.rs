//! Tables of descriptors that several processes share (`CLONE_FILES`): one with very many descriptors in which nothing was found
//! is not looked at again for each process that has it.

use kevtmon_observation::BootNs;
use kevtmon_sources::procfs::{Proc, kcmp};
use serde::{Deserialize, Serialize};

/// Tables that are remembered; each of the others is looked at for every process that has it.
const MAX_TABLES: usize = 64;

/// Tables that were looked at to their ends, each by a thread that has it: process, thread, and when the process began.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookedAt(Vec<(u32, u32, BootNs)>);

impl LookedAt {
    /// Remembers the table of a thread. The ids are those of our own pid namespace.
    pub fn add(&mut self, proc: &Proc, (tgid, tid): (u32, u32)) {
        let memory = MAX_TABLES.saturating_sub(self.0.len());
        self.0.extend(proc.stat(tgid).map(|stat| (tgid, tid, stat.start_ns)).into_iter().take(memory));
    }

    /// Whether the table that this thread has is one of them.
    pub fn has(&self, proc: &Proc, tid: u32) -> bool {
        self.0.iter().any(|(tgid, known, start_ns)| {
            // If its process is there still, the id was that of no other thread meanwhile.
            kcmp::share_files(*known, tid) == Some(true)
                && proc.stat(*tgid).is_some_and(|stat| stat.start_ns == *start_ns)
        })
    }
}
