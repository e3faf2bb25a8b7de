//! Finds all processes at once that hang whoever reads them.
//!
//! A reader that hangs is known to after half a second. A dead file server leaves dozens of such processes, and each would
//! delay the job that meets it. So when one is met, all others are looked for together, by a reader that may lose any number
//! of its threads: it is killed as a whole.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use kevtmon_types::lock::lock;
use serde::{Deserialize, Serialize};

use super::Job;
use super::apart::apart;
use super::serve::reading_none;
use crate::procfs::Proc;
use crate::procfs::dir::Buffer;

/// Processes that are read at a time.
pub(super) const AT_A_TIME: usize = 128;
/// Threads need no more than a few small buffers.
const STACK: usize = 64 << 10;
/// What was not begun until then is left to the next one.
const BUDGET: Duration = Duration::from_secs(5);

/// Reads of processes whatever jobs read, each in a thread of its own.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Prefilter {
    /// `None`: all.
    pub(super) pids: Option<Vec<u32>>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Filtered {
    pub(super) hanging: BTreeSet<u32>,
    /// Processes, of those that were to be read, that were not.
    pub(super) unread: BTreeSet<u32>,
}

impl Job for Prefilter {
    const NAME: &'static str = "prefilter";
    type Reply = Filtered;
    const IN_BACKGROUND: bool = true;

    fn run(&self, proc: &Proc) -> Filtered {
        let pids = self.pids.clone().unwrap_or_else(|| proc.pids().unwrap_or_default());
        let unread = pids.into_iter().filter(|tgid| !proc.is_aside(*tgid)).collect();
        let (work, end) = (Mutex::new(Filtered { unread, ..Filtered::default() }), Instant::now() + BUDGET);
        reading_none();
        let read_some = || {
            let next = || lock(&work).unread.pop_first().filter(|_| Instant::now() < end);
            while let Some(tgid) = next() {
                let proc = proc.clone();
                match apart(tgid, STACK, move || read(&proc, tgid)) {
                    Ok(Some(())) => {}
                    Ok(None) => _ = lock(&work).hanging.insert(tgid),
                    // There are too many threads.
                    Err(_) => {
                        lock(&work).unread.insert(tgid);
                        return;
                    }
                }
            }
        };
        thread::scope(|scope| {
            let start = || thread::Builder::new().stack_size(STACK).spawn_scoped(scope, read_some);
            (0..AT_A_TIME).map_while(|_| start().ok()).for_each(drop);
        });
        work.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads of a process whatever may wait for it.
fn read(proc: &Proc, tgid: u32) {
    let _ = proc.stat(tgid);
    let Ok(dir) = proc.dir(tgid) else { return };
    let (mut buffer, mut text, mut numbers) = (Buffer::default(), Vec::new(), Vec::new());
    for link in [c"ns/net", c"ns/mnt", c"exe", c"cwd", c"root"] {
        let _ = dir.link(link, &mut buffer);
    }
    for file in [c"maps", c"mountinfo", c"cmdline", c"cgroup"] {
        // The first byte waits as the last one does.
        let _ = dir.beginning(file, 1, &mut text);
    }
    for list in [c"fd", c"task"] {
        let _ = dir.at(list).and_then(|list| list.more_numbers(&mut buffer, &mut numbers));
    }
}
