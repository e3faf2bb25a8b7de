//! Keeps private memory small.
//!
//! The allocator keeps freed memory between allocations that are in use. After parsing the kernel's BTF and after an
//! event storm, that is several times what the daemon needs.

#[cfg(target_env = "gnu")]
use std::ffi::c_int;

/// Minimum number of events between two checks that is a storm.
const STORM: u64 = 512;
/// Maximum number of events between two checks at which a storm is over.
const CALM: u64 = 64;

/// Largest block that lies between others, in bytes. Larger ones are mapped alone, and unmapped when they are freed.
#[cfg(target_env = "gnu")]
const SHARED_MAX: c_int = 256 << 10;
/// Free memory at the end of the heap that is kept, in bytes.
#[cfg(target_env = "gnu")]
const SPARE: c_int = 1 << 20;
/// Heaps, which threads share in turn; that of the core's thread is one of them.
#[cfg(target_env = "gnu")]
const HEAPS: c_int = 2;

/// Bounds what the allocator keeps; called before any other thread is there. By itself it takes the largest block that was
/// ever freed, at the start that is the kernel's BTF with several MiB, for one to expect again, and keeps twice as much; and
/// each thread gets a heap of its own, in which what others free stays unused.
///
/// Nor does the daemon take huge pages: where they are `always` used, a thread's stack that happens to be aligned would cost
/// 2 MiB. What it runs inherits that (`PR_SET_THP_DISABLE(2const)`).
pub fn keep_little() {
    if let Err(error) = nix::sys::prctl::set_thp_disable(true) {
        tracing::debug!(%error, "huge pages stay enabled");
    }
    #[cfg(target_env = "gnu")]
    for (option, value) in
        [(libc::M_MMAP_THRESHOLD, SHARED_MAX), (libc::M_TRIM_THRESHOLD, SPARE), (libc::M_ARENA_MAX, HEAPS)]
    {
        // SAFETY: it changes numbers of the allocator only.
        if unsafe { libc::mallopt(option, value) } == 0 {
            tracing::debug!(option, value, "the allocator refuses an option");
        }
    }
}

/// Returns all free memory to the kernel; takes milliseconds.
pub fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim only touches the allocator's free memory.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Detects the end of an event storm.
#[derive(Debug, Default)]
pub struct StormDetector {
    events: u64,
    in_storm: bool,
}

impl StormDetector {
    pub fn event(&mut self) {
        self.events += 1;
    }

    /// Whether a storm has ended since the last call; called every few seconds.
    pub fn has_calmed(&mut self) -> bool {
        let events = std::mem::take(&mut self.events);
        if events >= STORM {
            self.in_storm = true;
        }
        events <= CALM && std::mem::take(&mut self.in_storm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_is_over_once_when_few_events_pass() {
        let mut detector = StormDetector::default();
        assert!(!detector.has_calmed(), "there was none");
        let mut after = |events: u64| {
            (0..events).for_each(|_| detector.event());
            detector.has_calmed()
        };
        assert!(!after(STORM));
        assert!(!after(CALM + 1), "it is not over yet");
        assert!(after(CALM));
        assert!(!after(0));
        assert!(!after(STORM - 1));
        assert!(!after(0), "a busy time is no storm");
    }
}
