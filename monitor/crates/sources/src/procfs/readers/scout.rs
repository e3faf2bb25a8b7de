//! A sieve that is not ended after each use.
//!
//! A reader that not even SIGKILL ends is lost, and its place with it. Of its threads a reader may lose very many. So where
//! only few more readers may be lost, one of them reads every process before a job does: what hangs it costs a thread, and
//! no place. That thread goes on once it can, and until then its process is not tried again.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::child::{Child, read_by_threads};
use super::sieve::{Sieve, Sifted, THREADS};
use crate::procfs::Proc;

/// One with more threads that hang is given up for a new one.
const HANGING: usize = THREADS * 4;

/// At most one reader, started when it is needed.
#[derive(Debug, Default)]
pub(super) struct Scout {
    now: tokio::sync::Mutex<Option<Child>>,
    /// Those before that were killed and are still there, by process id.
    before: Arc<Mutex<BTreeSet<u32>>>,
}

impl Scout {
    /// Has it read processes. `None` if it failed.
    pub(super) async fn ask(&self, job: &Sieve, proc: &Proc) -> Option<Sifted> {
        let mut place = self.now.lock().await;
        let mut child = match place.take() {
            Some(child) => child,
            None => Child::start(true).ok()?,
        };
        let done = child.converse(job, proc).await;
        if done.is_ok() && read_by_threads(child.id()).len() < HANGING {
            *place = Some(child);
        } else {
            self.give_up(child.id(), child.end(()));
        }
        Some(done.ok()?.reply)
    }

    /// What those that are there hang at.
    pub(super) async fn holding(&self) -> BTreeSet<u32> {
        let mut ids = locked(&self.before).clone();
        ids.extend(self.id().await);
        ids.into_iter().flat_map(read_by_threads).collect()
    }

    /// Its process id.
    pub(super) async fn id(&self) -> Option<u32> {
        self.now.lock().await.as_ref().map(Child::id)
    }

    /// Ends it; whether there was one.
    pub(super) async fn end(&self) -> bool {
        let child = self.now.lock().await.take();
        child.map(|child| self.give_up(child.id(), child.end(()))).is_some()
    }

    /// Remembers one until it is gone: what it hangs at would cost the next one a thread, too.
    fn give_up(&self, id: u32, gone: impl Future<Output = ()> + Send + 'static) {
        locked(&self.before).insert(id);
        let before = Arc::clone(&self.before);
        tokio::spawn(async move {
            gone.await;
            locked(&before).remove(&id);
        });
    }
}

fn locked(ids: &Mutex<BTreeSet<u32>>) -> MutexGuard<'_, BTreeSet<u32>> {
    ids.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;
    use std::thread;

    use kevtmon_testing::patience::until;

    use super::super::serve::show_in_thread;
    use super::*;

    #[tokio::test]
    async fn what_one_that_was_given_up_hangs_at_is_known_until_it_is_gone() {
        // Nobody's: it stands for a process that hangs a thread.
        let tgid = 1 << 23;
        let (shown, is_shown) = sync_channel(1);
        let (release, released) = sync_channel::<()>(1);
        let thread = thread::spawn(move || {
            show_in_thread(tgid);
            shown.send(()).unwrap();
            // It ends as the other end is dropped.
            let _ = released.recv();
        });
        is_shown.recv().unwrap();
        let scout = Scout::default();
        let (ended, gone) = tokio::sync::oneshot::channel::<()>();
        scout.give_up(std::process::id(), async { drop(gone.await) });
        assert!(scout.holding().await.contains(&tgid));
        ended.send(()).unwrap();
        until("it is gone", || locked(&scout.before).is_empty()).await;
        assert!(!scout.holding().await.contains(&tgid));
        drop(release);
        thread.join().unwrap();
    }
}
