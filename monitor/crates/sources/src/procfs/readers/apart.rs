//! Work that may wait for a process without saying for which: in a thread of its own, which is left behind if it hangs.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;

use nix::unistd::gettid;

use super::child::{SAMPLE, SAMPLES, sample_of_thread};
use super::serve::show_in_thread;

/// Stands for no process in the name of a thread, which is looked at only where that tells of a reading.
const NONE: u32 = 0;

/// Does work apart from this thread; `None` once that waits and makes no progress, as [readers](super) are judged. The thread ends
/// with what it waits for, or with this process.
pub fn unless_it_hangs<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let ((begin, begun), (send, receive)) = (sync_channel(1), sync_channel(1));
    let apart = move || {
        show_in_thread(NONE);
        // Whoever asked may have given up.
        let _ = begin.send(gettid());
        let _ = send.send(work());
    };
    thread::Builder::new().spawn(apart).ok()?;
    let tid = begun.recv().ok()?.as_raw().cast_unsigned();
    let (mut last, mut same) = (None, 0);
    while same < SAMPLES {
        match receive.recv_timeout(SAMPLE) {
            Ok(found) => return Some(found),
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {}
        }
        let now = sample_of_thread(tid);
        same = if now.is_some() && now == last { same + 1 } else { 0 };
        last = now;
    }
    None
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
