//! A machine-wide lock: a test that counts everything in the kernel holds it exclusively, all others share it.

use std::fs::File;

/// The file that is locked, the same for all test processes of this machine.
const FILE: &str = "/run/lock/kevtmon-tests.lock";

fn open() -> File {
    drop(std::fs::create_dir_all("/run/lock"));
    File::options().create(true).truncate(false).write(true).open(FILE).expect("the lock file can be opened")
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
        let file = open();
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
        let file = open();
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

thread_local! {
    static HELD_HERE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}
