//! Machine-wide locks: a test that counts everything in the kernel holds one exclusively, all others share it; and those
//! that mount something take turns.

use std::cell::RefCell;
use std::fs::File;
use std::sync::{Arc, Weak};

/// The file that is locked, the same for all test processes of this machine.
const FILE: &str = "/run/lock/kevtmon-tests.lock";

/// The same of those that mount something.
const MOUNTS_FILE: &str = "/run/lock/kevtmon-tests-mounts.lock";

fn open(file: &str) -> File {
    drop(std::fs::create_dir_all("/run/lock"));
    File::options().create(true).truncate(false).write(true).open(file).expect("the lock file can be opened")
}

/// Held by every network namespace and container of a test: the kernel may count something while it lives.
#[derive(Debug)]
pub struct Shared(#[expect(dead_code, reason = "the lock goes with the file")] Option<File>);

impl Shared {
    /// Waits while another test has the lock for itself; the one that has it does not wait for itself.
    pub(crate) fn take() -> Self {
        if HELD_HERE.get() {
            return Self(None);
        }
        let file = open(FILE);
        file.lock_shared().expect("a lock can be taken");
        Self(Some(file))
    }
}

/// While this lives, no other test has a network namespace or container.
#[derive(Debug)]
pub struct Exclusive(#[expect(dead_code, reason = "the lock goes with the file")] File);

impl Exclusive {
    /// Waits until no test shares the lock. Take it first: what this thread builds afterwards is its own.
    #[must_use]
    pub fn take() -> Self {
        let file = open(FILE);
        file.lock().expect("a lock can be taken");
        HELD_HERE.set(true);
        Self(file)
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        HELD_HERE.set(false);
    }
}

/// While this lives, no other test has mounts: each change of the mount table between a refused unmount and the look at it
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
                let file = open(MOUNTS_FILE);
                file.lock().expect("a lock can be taken");
                let taken = Arc::new(Self((file, shared)));
                *turn = Arc::downgrade(&taken);
                taken
            })
        })
    }
}

thread_local! {
    static TURN: RefCell<Weak<Turn>> = const { RefCell::new(Weak::new()) };
    static HELD_HERE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}
