//! When the mounts of our own namespace change, which is the host's unless the daemon has one of its own. Costs nothing
//! while they do not.

use std::fs::File;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

#[derive(Debug)]
pub(super) struct OwnTable(Option<AsyncFd<File>>);

impl OwnTable {
    /// Where they cannot be watched, no change is ever seen.
    pub(super) fn open() -> Self {
        let file = File::open("/proc/self/mountinfo").ok();
        // The kernel reports a change as an exceptional condition (proc_pid_mounts(5)).
        // SAFETY: a `File` has one descriptor as long as it lives, and it is not replaced while it is registered.
        let table = file.map(|file| unsafe { AsyncFd::register_with_interest(file, Interest::PRIORITY) });
        Self(table.and_then(Result::ok))
    }

    pub(super) async fn changed(&mut self) {
        match &self.0 {
            Some(table) => {
                if table.ready(Interest::PRIORITY).await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
            None => std::future::pending().await,
        }
    }

    /// Waits for the next change only.
    pub(super) fn forget(&mut self) {
        use std::future::Future as _;
        let Some(table) = &self.0 else { return };
        let mut ready = std::pin::pin!(table.ready(Interest::PRIORITY));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        if let std::task::Poll::Ready(Ok(mut guard)) = ready.as_mut().poll(&mut context) {
            guard.clear_ready();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_change_of_the_mounts_is_seen() {
        let mut table = OwnTable::open();
        table.forget();
        let point = tempfile::tempdir().unwrap();
        let source: Option<&str> = None;
        let flags = nix::mount::MsFlags::empty();
        nix::mount::mount(source, point.path(), Some("tmpfs"), flags, source).unwrap();
        table.changed().await;
        nix::mount::umount(point.path()).unwrap();
    }
}
