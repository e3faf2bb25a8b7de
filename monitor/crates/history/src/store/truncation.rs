//! Survives that somebody truncates the index of SQLite's log, or makes it immutable.
//!
//! The index is a file that SQLite maps into memory. An access to a page that is not there any more raises SIGBUS,
//! whose default is the end of the process. Instead an empty page is put in its place. Nothing may be committed or copied
//! by such an index: the store is closed, and the index made again from the log when it is opened again.
//!
//! The same signal comes where the disk fails under the program itself. Empty pages in place of its constants would be
//! told as facts, so that ends it.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libc::{c_int, c_void, siginfo_t};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// include/uapi/asm-generic/siginfo.h: there is no such memory.
const BUS_ADRERR: c_int = 2;
/// A page that is smaller than this is replaced with its neighbors, which are lost as well.
const PAGE: usize = 4096;

unsafe extern "C" {
    /// Where the linker begins to place this program.
    safe static __executable_start: u8;
    /// Behind the last it has placed.
    safe static _end: u8;
}

static REPLACED: AtomicU64 = AtomicU64::new(0);
static IS_SEEN: AtomicBool = AtomicBool::new(false);

/// Survives truncations from now on.
///
/// # Errors
/// When the handler cannot be installed.
pub fn survive_truncation() -> nix::Result<()> {
    let action = SigAction::new(SigHandler::SigAction(replace_page), SaFlags::SA_SIGINFO, SigSet::empty());
    // SAFETY: the handler makes one system call and stores to an atomic; both are safe in a signal handler.
    unsafe { sigaction(Signal::SIGBUS, &action) }.map(drop)
}

/// How many pages were replaced so far.
pub(super) fn replaced() -> u64 {
    REPLACED.load(Ordering::Relaxed)
}

/// An index was found to be truncated, whether it was accessed since or not.
pub(super) fn note() {
    IS_SEEN.store(true, Ordering::Relaxed);
}

/// Whether any index was ever truncated.
pub(super) fn has_happened() -> bool {
    replaced() > 0 || IS_SEEN.load(Ordering::Relaxed)
}

extern "C" fn replace_page(_signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a valid pointer, and for SIGBUS the address is set.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr()) };
    let start = ptr::without_provenance_mut::<c_void>(address.addr() & !(PAGE - 1));
    let is_replaced = code == BUS_ADRERR && !is_of_program(address.addr()) && {
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
        // SAFETY: the page has a mapping whose memory is gone, as this signal says, so nothing that can be read is
        // replaced. But for the program itself, only files of the store are mapped.
        unsafe { libc::mmap(start, PAGE, access, flags, -1, 0) == start }
    };
    if is_replaced {
        REPLACED.fetch_add(1, Ordering::Relaxed);
    } else {
        // SAFETY: restores the default, which ends the process when the access is repeated.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    }
}

/// Whether something is at an address that is this program's own: its code, its constants, its variables.
fn is_of_program(address: usize) -> bool {
    let first = ptr::from_ref(&__executable_start).addr();
    let end = ptr::from_ref(&_end).addr();
    (first..end).contains(&address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_and_constants_are_of_the_program_and_what_it_allocates_is_not() {
        for address in [
            "a constant".as_ptr().addr(),
            ptr::from_ref(&REPLACED).addr(),
            survive_truncation as *const () as usize,
        ] {
            assert!(is_of_program(address), "{address:#x}");
        }
        let (allocated, on_stack) = (Box::new(0_u8), 0_u8);
        assert!(!is_of_program(ptr::from_ref(&*allocated).addr()));
        assert!(!is_of_program(ptr::from_ref(&on_stack).addr()));
    }
}
