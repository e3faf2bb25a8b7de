//! Calls of a program called `rbd`, which does nothing: a real one needs a cluster. What is observed of it is that it is executed,
//! with its arguments, and how it ends.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::mount::Scratch;
use crate::process::{Finished, finish, write_script};
use crate::{actor, lock};

/// The program, in a directory of its own.
#[derive(Debug)]
pub struct FakeRbd {
    directory: Scratch,
    // Its calls are seen by all daemons.
    _shared: lock::Shared,
}

impl FakeRbd {
    /// A script that ends with the code in `RBD_EXIT`, or with 0.
    #[must_use]
    pub fn script() -> Self {
        let rbd = Self::missing();
        write_script(&rbd.path(), "#!/bin/sh\nexit ${RBD_EXIT:-0}\n");
        rbd
    }

    /// A script that starts another one, waits for it, and ends as that does.
    #[must_use]
    pub fn around(other: &Self) -> Self {
        let rbd = Self::missing();
        write_script(&rbd.path(), &format!("#!/bin/sh\n{} \"$@\"\nexit $?\n", other.path().display()));
        rbd
    }

    /// A program that ends with 0.
    #[must_use]
    pub fn binary() -> Self {
        let rbd = Self::missing();
        // It does what it reads, which is nothing.
        std::os::unix::fs::symlink(actor::program(), rbd.path()).expect("a link can be made");
        rbd
    }

    fn missing() -> Self {
        Self { directory: Scratch::without_mounts(), _shared: lock::Shared::take() }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("rbd")
    }

    /// Its directory.
    #[must_use]
    pub fn directory(&self) -> &Scratch {
        &self.directory
    }

    /// Calls it with the arguments in a line, to its end.
    pub fn call(&self, line: &str) -> Finished {
        self.call_by(&[], line)
    }

    /// The same by a command that becomes it.
    pub fn call_by(&self, command: &[&str], line: &str) -> Finished {
        self.ending(command, line, 0)
    }

    /// Has the script fail with a code.
    pub fn fail(&self, line: &str, code: u32) -> Finished {
        self.ending(&[], line, code)
    }

    fn ending(&self, by: &[&str], line: &str, code: u32) -> Finished {
        let path = self.path().to_string_lossy().into_owned();
        let mut words = by.iter().copied().chain([path.as_str()]).chain(line.split(' '));
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).env("RBD_EXIT", code.to_string()).stdin(Stdio::null());
        finish(&mut command, "rbd".as_ref())
    }
}
