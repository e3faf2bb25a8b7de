//! Machine-wide locks: a test that counts everything in the kernel holds one exclusively, all others share it; and those
//! that mount something in the same namespace take turns.

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::patience::{patience, within};

/// The environment variable that tells the daemon of a process whose mounts are the node's: where each test process has mounts of
/// its own, that one.
pub const HOST_PID: &str = "KEVTMON_HOST_PID";

/// The file that is locked, the same for all test processes of this machine.
const FILE: &str = "/run/lock/kevtmon-tests.lock";

/// Held by who waits for the first one exclusively, so that others give way: there is always one that shares it, or will.
const GATE: &str = "/run/lock/kevtmon-tests-gate.lock";

/// The same of those that mount something in this mount namespace.
fn mounts_file() -> String {
    let namespace = std::fs::metadata("/proc/self/ns/mnt").expect("a process has a mount namespace");
    format!("/run/lock/kevtmon-tests-mounts-{}.lock", namespace.ino())
}

fn open(file: &str) -> File {
    drop(std::fs::create_dir_all("/run/lock"));
    File::options().create(true).truncate(false).write(true).open(file).expect("the lock file can be opened")
}

/// Shares a lock, behind who waits to have it alone. Patience ends, as that one may wait for what is shared for hours, such as
/// by a cluster, or by another thread of the same test.
fn share(file: &str, gate: &str, patience: Duration) -> File {
    let gate = open(gate);
    let _ = within(patience, || gate.try_lock_shared().ok());
    drop(gate);
    let file = open(file);
    file.lock_shared().expect("a lock can be taken");
    file
}

/// Takes a lock alone.
fn take_alone(file: &str, gate: &str) -> File {
    let gate = open(gate);
    gate.lock().expect("a lock can be taken");
    let file = open(file);
    file.lock().expect("a lock can be taken");
    file
}

/// Held by every network namespace and container of a test: the kernel may count something while it lives.
#[derive(Debug)]
pub struct Shared(#[expect(dead_code, reason = "the lock goes with the file")] Option<Arc<File>>);

impl Shared {
    /// Waits while another test has the lock for itself, or waits for that. What this thread has already is shared at once, and
    /// the one that has the lock for itself does not wait for itself.
    pub(crate) fn take() -> Self {
        if HELD_HERE.get() {
            return Self(None);
        }
        SHARED.with_borrow_mut(|shared| {
            let taken = shared.upgrade().unwrap_or_else(|| Arc::new(share(FILE, GATE, patience())));
            *shared = Arc::downgrade(&taken);
            Self(Some(taken))
        })
    }
}

/// While this lives, no other test has a network namespace or container.
#[derive(Debug)]
pub struct Exclusive(#[expect(dead_code, reason = "the lock goes with the file")] File);

impl Exclusive {
    /// Waits until no test shares the lock. Take it first: what this thread builds afterwards is its own.
    #[must_use]
    pub fn take() -> Self {
        let file = take_alone(FILE, GATE);
        HELD_HERE.set(true);
        Self(file)
    }
}

/// Whether this thread has the lock for itself: then nothing that the kernel counts is another test's.
pub(crate) fn is_exclusive() -> bool {
    HELD_HERE.get()
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        HELD_HERE.set(false);
    }
}

/// While this lives, no other test of this mount namespace has mounts: each change of the mount table between a refused unmount and the look at it
/// may leave in doubt which mount was refused.
#[derive(Debug)]
pub(crate) struct Turn(#[expect(dead_code, reason = "the locks go with the files")] (File, Shared));

impl Turn {
    /// Waits for it, or shares that of this thread.
    pub(crate) fn take() -> Arc<Self> {
        TURN.with_borrow_mut(|turn| {
            turn.upgrade().unwrap_or_else(|| {
                // First, as who has the other one exclusively may wait for this one.
                let shared = Shared::take();
                let file = open(&mounts_file());
                file.lock().expect("a lock can be taken");
                let taken = Arc::new(Self((file, shared)));
                *turn = Arc::downgrade(&taken);
                taken
            })
        })
    }
}

thread_local! {
    static SHARED: RefCell<Weak<File>> = const { RefCell::new(Weak::new()) };
    static TURN: RefCell<Weak<Turn>> = const { RefCell::new(Weak::new()) };
    static HELD_HERE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc::sync_channel;
    use std::thread;

    use super::*;
    use crate::eventually;

    fn paths(directory: &Path) -> (String, String) {
        let path = |name| directory.join(name).to_string_lossy().into_owned();
        (path("lock"), path("gate"))
    }

    fn somebody_waits(gate: &str) -> bool {
        open(gate).try_lock_shared().is_err()
    }

    #[test]
    fn who_waits_for_the_lock_alone_comes_before_who_would_share_it_later() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let (lock, gate) = paths(directory.path());
        let first = share(&lock, &gate, patience());
        thread::scope(|scope| {
            let (sender, order) = sync_channel(3);
            let told = sender.clone();
            let (lock, gate) = (&lock, &gate);
            scope.spawn(move || {
                let _alone = take_alone(lock, gate);
                told.send("alone").expect("received");
            });
            eventually!(somebody_waits(gate), "the lock is wanted alone");
            let told = sender.clone();
            scope.spawn(move || {
                told.send("wanted").expect("received");
                let _shared = share(lock, gate, patience());
                told.send("shared").expect("received");
            });
            assert_eq!(order.recv(), Ok("wanted"));
            drop(first);
            assert_eq!([order.recv(), order.recv()], [Ok("alone"), Ok("shared")]);
        });
    }

    #[test]
    fn what_is_shared_for_long_keeps_nobody_from_sharing_it() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let (lock, gate) = paths(directory.path());
        let long = share(&lock, &gate, patience());
        thread::scope(|scope| {
            let alone = scope.spawn(|| take_alone(&lock, &gate));
            eventually!(somebody_waits(&gate), "the lock is wanted alone");
            drop(share(&lock, &gate, Duration::ZERO));
            drop(long);
            alone.join().expect("no panic");
        });
    }
}
