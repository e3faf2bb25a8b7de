//! What the daemon and all that it executes use together, as the kernel counts it: its readers are processes of their own, and
//! come and go.

use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fmt, fs, io, thread};

use crate::cgroup::{Cgroup, Hierarchy};
use crate::daemon::{Daemon, Launch, launch};

/// How often it is looked who is there. Of a process that is gone by then, no wake-up counts and no memory.
const SAMPLE: Duration = Duration::from_millis(100);

/// A control group for one daemon, and what was seen in it. To be dropped after the daemon.
#[derive(Debug)]
pub struct Usage {
    group: Cgroup,
    seen: Arc<Mutex<Seen>>,
    sampler: Option<(SyncSender<()>, JoinHandle<()>)>,
}

#[derive(Debug, Default)]
struct Seen {
    /// How often each thread that is there had slept when it was last seen.
    slept: BTreeMap<u32, u64>,
    /// How often all of them have, those included that have ended.
    wake_ups: u64,
    /// Memory of all of them now.
    memory: Memory,
    /// Most private memory of all of them at a time, in kB.
    peak: u64,
}

impl Usage {
    /// An empty one.
    ///
    /// # Panics
    /// Where the kernel has no control groups of v2.
    #[must_use]
    pub fn new() -> Self {
        let hierarchy = Hierarchy::all().into_iter().find(|hierarchy| matches!(hierarchy, Hierarchy::V2));
        let group = Cgroup::new(hierarchy.expect("the kernel counts by control groups of v2"));
        let seen = Arc::<Mutex<Seen>>::default();
        let (stop, stopped) = sync_channel(0);
        let (procs, shared) = (group.procs(), Arc::clone(&seen));
        let look = move || {
            while stopped.recv_timeout(SAMPLE) == Err(RecvTimeoutError::Timeout) {
                // What ends meanwhile is left out.
                let pids = fs::read_to_string(&procs).unwrap_or_default();
                lock(&shared).look(pids.lines().filter_map(|pid| pid.parse().ok()));
            }
        };
        Self { group, seen, sampler: Some((stop, thread::spawn(look))) }
    }

    /// [`launch`], of a daemon that is in the group from the beginning.
    #[must_use]
    pub fn launch(&self) -> Launch {
        let procs = self.group.procs();
        launch().through(&["sh", "-c", "echo $$ >\"$0\" && exec \"$@\"", &*procs.to_string_lossy()])
    }

    /// Processor time of all that was ever in the group, exactly.
    #[must_use]
    pub fn processor_seconds(&self) -> f64 {
        self.group.processor_seconds()
    }

    /// How often they have slept so far, and so were woken (proc_pid_status(5)).
    #[must_use]
    pub fn wake_ups(&self) -> u64 {
        lock(&self.seen).wake_ups
    }

    /// From now on the most memory is looked for again.
    pub fn forget_peak(&self) {
        let mut seen = lock(&self.seen);
        seen.peak = seen.memory.anonymous;
    }

    /// Most private memory of all of them at a time, in MB.
    #[must_use]
    pub fn peak(&self) -> f64 {
        lock(&self.seen).peak as f64 / 1e3
    }

    /// Private memory of all of them now, in MB.
    #[must_use]
    pub fn anonymous(&self) -> f64 {
        lock(&self.seen).memory.anonymous as f64 / 1e3
    }

    /// Memory of the daemon, and that of all of them.
    ///
    /// # Errors
    /// When it has ended.
    pub fn memory(&self, daemon: &Daemon) -> io::Result<String> {
        let own = Memory::of(daemon.pid()).ok_or_else(|| io::Error::other("the daemon has ended"))?;
        let Seen { memory, peak, .. } = *lock(&self.seen);
        Ok(format!("{own}; with its readers {memory}, private at most {peak} kB"))
    }
}

impl Default for Usage {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Usage {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.sampler.take() {
            drop(stop);
            drop(thread.join());
        }
    }
}

impl Seen {
    fn look(&mut self, pids: impl Iterator<Item = u32>) {
        let before = std::mem::take(&mut self.slept);
        self.memory = Memory::default();
        for pid in pids {
            self.memory.add(&Memory::of(pid).unwrap_or_default());
            for (tid, slept) in threads(pid) {
                let last = before.get(&tid).copied().filter(|last| *last <= slept);
                self.wake_ups += slept - last.unwrap_or_default();
                self.slept.insert(tid, slept);
            }
        }
        self.peak = self.peak.max(self.memory.anonymous);
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How often each thread of a process has slept.
fn threads(pid: u32) -> Vec<(u32, u64)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let slept = |task: fs::DirEntry| {
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let slept = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        Some((task.file_name().to_str()?.parse().ok()?, slept.trim().parse().ok()?))
    };
    tasks.filter_map(slept).collect()
}

/// Memory in kB, as proc_pid_smaps_rollup(5) has it.
#[derive(Debug, Clone, Copy, Default)]
struct Memory {
    /// Private: what the kernel cannot take back.
    anonymous: u64,
    /// Pages of the program's file and of the ring included.
    resident: u64,
    /// Of what several processes share, a part only: all of them run the same program.
    proportional: u64,
}

impl Memory {
    fn of(pid: u32) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        Some(Self { anonymous: value("Anonymous:")?, resident: value("Rss:")?, proportional: value("Pss:")? })
    }

    fn add(&mut self, other: &Self) {
        self.anonymous += other.anonymous;
        self.resident += other.resident;
        self.proportional += other.proportional;
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { anonymous, resident, proportional } = self;
        write!(f, "private {anonymous} kB (resident {resident} kB, proportional {proportional} kB)")
    }
}
