//! Work that may wait for a process: in a thread of its own, which is left behind if it hangs.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;

use nix::unistd::gettid;

use super::child::{Progress, SAMPLE};
use super::serve::show_in_thread;

/// Stands for no process in the name of a thread, which is looked at only where that tells of a reading.
const NONE: u32 = 0;
/// As much as threads usually have.
const STACK: usize = 2 << 20;

/// Does work apart from this thread; `None` once that waits and makes no progress, as [readers](super) are judged. The thread ends
/// with what it waits for, or with this process.
pub fn unless_it_hangs<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    apart(NONE, STACK, work).ok().flatten()
}

/// The same of a process, which the name of the thread shows.
pub(super) fn apart<T: Send + 'static>(
    tgid: u32,
    stack: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Option<T>> {
    let ((begin, begun), (send, receive)) = (sync_channel(1), sync_channel(1));
    let work = move || {
        show_in_thread(tgid);
        // Whoever asked may have given up.
        let _ = begin.send(gettid());
        let _ = send.send(work());
    };
    thread::Builder::new().stack_size(stack).spawn(work)?;
    let Ok(tid) = begun.recv() else { return Ok(None) };
    let (place, mut progress) = (format!("/proc/self/task/{tid}"), Progress::default());
    while !progress.hangs() {
        match receive.recv_timeout(SAMPLE) {
            Ok(found) => return Ok(Some(found)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => progress.look(&place),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn what_waits_for_good_is_left_behind_and_what_ends_is_answered() {
        assert_eq!(unless_it_hangs(|| 7), Some(7));
        let (mut waits, ends) = UnixStream::pair().unwrap();
        let mut byte = [0];
        assert!(unless_it_hangs(move || waits.read(&mut byte).is_ok()).is_none());
        // Now it ends, too.
        drop(ends);
    }
}
