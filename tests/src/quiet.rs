//! Tests that count everything on the machine take it for themselves; all others share it.

use std::fs::File;

/// File whose lock all test processes of this machine share.
const LOCK: &str = "/run/lock/kevtmon-tests.lock";

fn open() -> File {
    drop(std::fs::create_dir_all("/run/lock"));
    File::options().create(true).truncate(false).write(true).open(LOCK).expect("the lock file can be opened")
}

/// Held by every network namespace of a test: something may change while it lives.
#[derive(Debug)]
pub struct Shared(#[expect(dead_code, reason = "the lock goes with the file")] Option<File>);

impl Shared {
    /// Waits while another test counts. The test that counts does not wait for itself.
    pub(crate) fn take() -> Self {
        if COUNTING.get() {
            return Self(None);
        }
        let file = open();
        file.lock_shared().expect("a lock can be taken");
        Self(Some(file))
    }
}

/// Nobody else changes neighbors while this lives.
#[derive(Debug)]
pub struct Quiet(#[expect(dead_code, reason = "the lock goes with the file")] File);

impl Quiet {
    /// Waits until no test has a namespace. Take it first: what this thread builds afterwards is its own.
    #[must_use]
    pub fn take() -> Self {
        let file = open();
        file.lock().expect("a lock can be taken");
        COUNTING.set(true);
        Self(file)
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        COUNTING.set(false);
    }
}

thread_local! {
    static COUNTING: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}
