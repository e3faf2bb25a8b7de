//! Keeps resident memory small.
//!
//! The allocator keeps freed memory between allocations that are in use. After parsing the kernel's BTF and after an
//! event storm, that is several times what the daemon needs. And of the program itself far more is mapped than runs,
//! because what only a start needs stays.

use std::ffi::{c_int, c_void};

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
pub fn keep_little() {
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

/// Unmaps the code and constants of the program and its libraries. What runs is mapped again when it is used, from the page
/// cache.
pub fn release_program() {
    // SAFETY: the callback has the signature that is expected, and takes no data.
    unsafe { libc::dl_iterate_phdr(Some(release_segments), std::ptr::null_mut()) };
}

/// Unmaps what cannot have been written to of one object: the program, or a library.
unsafe extern "C" fn release_segments(
    info: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    _data: *mut c_void,
) -> c_int {
    // SAFETY: the loader passes a valid description of a loaded object, with as many headers as it says.
    let (base, headers) = unsafe {
        let info = &*info;
        (info.dlpi_addr, std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)))
    };
    // SAFETY: a plain query.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096).max(1);
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD) {
        if header.p_flags & libc::PF_W != 0 {
            continue;
        }
        // Whole pages of this segment only.
        let start = (base + header.p_vaddr).next_multiple_of(page);
        let end = (base + header.p_vaddr + header.p_memsz) / page * page;
        if start < end {
            let length = usize::try_from(end - start).unwrap_or(0);
            // SAFETY: the pages are a private mapping of a file that is never written to, so that the next
            // access reads the same again. What a debugger or a uprobe has put there is forgotten: the program runs on.
            let failed = unsafe { libc::madvise(start as *mut c_void, length, libc::MADV_DONTNEED) } != 0;
            if failed {
                tracing::debug!(error = %std::io::Error::last_os_error(), "cannot unmap code");
            }
        }
    }
    0
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
    /// Counts an event.
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
    fn a_program_runs_on_after_it_was_unmapped() {
        let sum = || (0..1000_u64).map(|number| format!("{number}").len() as u64).sum::<u64>();
        let before = sum();
        release_program();
        assert_eq!(sum(), before);
        let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let code = text.split_once("r-xp").unwrap().1;
        let number = |name: &str| -> u64 {
            let rest = code.split_once(name).unwrap().1;
            rest.split_whitespace().next().unwrap().parse().unwrap()
        };
        assert!(number("Rss:") < number("Size:") / 2, "{} of {} KiB", number("Rss:"), number("Size:"));
    }

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
