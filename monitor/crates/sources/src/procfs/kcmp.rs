//! What two threads share, by kcmp(2).

/// `KCMP_FILES` of include/uapi/linux/kcmp.h.
const KCMP_FILES: libc::c_int = 2;

/// Whether two threads have one table of descriptors; `None` where the kernel does not tell. The ids are those of our own
/// pid namespace.
pub fn share_files(one: u32, other: u32) -> Option<bool> {
    let [one, other] = [one, other].map(i64::from);
    // SAFETY: compares two kernel pointers by the ids of their tasks, and writes nothing.
    match unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_FILES, 0, 0) } {
        0 => Some(true),
        1..=3 => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use nix::sched::{CloneFlags, unshare};

    use super::*;

    #[test]
    fn a_thread_shares_its_files_until_it_has_a_table_of_its_own() {
        let (tell, told) = mpsc::sync_channel(1);
        let (go_on, wait) = mpsc::sync_channel::<()>(1);
        let thread = std::thread::spawn(move || {
            tell.send(nix::unistd::gettid()).unwrap();
            wait.recv().unwrap();
            unshare(CloneFlags::CLONE_FILES).unwrap();
            tell.send(nix::unistd::gettid()).unwrap();
            wait.recv().unwrap();
        });
        for expected in [true, false] {
            let tid = u32::try_from(told.recv().unwrap().as_raw()).unwrap();
            // A kernel without kcmp(2) tells nothing.
            assert_ne!(share_files(std::process::id(), tid), Some(!expected));
            go_on.send(()).unwrap();
        }
        thread.join().unwrap();
    }
}
