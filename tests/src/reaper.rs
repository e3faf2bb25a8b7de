//! Cleans up after a test process that could not do it itself: killed, interrupted, or ended with shared guards.
//!
//! Each guard leaves a [`Will`]: a shell script that undoes what the guard made. The wills of a process lie
//! in one directory, watched by a shell that blocks on a pipe. When the last writer of that pipe is gone, so is the
//! test process, and the shell executes the wills that are left, newest first.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::unique;

const WATCH: &str = r#"
trap '' INT TERM HUP
cat >/dev/null
for will in $(ls -r "$1"); do sh "$1/$will"; done
rm -rf "$1"
"#;

struct Reaper {
    wills: PathBuf,
    /// Taken at the end of the process.
    life: Mutex<Option<(File, Child)>>,
}

static REAPER: OnceLock<Reaper> = OnceLock::new();

/// What is to be done when a guard, or the whole process, is gone.
#[derive(Debug)]
pub struct Will {
    script: PathBuf,
}

impl Will {
    /// Writes down how to undo what the caller is about to make.
    #[must_use]
    pub fn new(script: &str) -> Self {
        let reaper = REAPER.get_or_init(start);
        let path = reaper.wills.join(format!("{:08}.sh", unique::number()));
        let partial = path.with_extension("new");
        std::fs::write(&partial, script).expect("a will can be written");
        std::fs::rename(&partial, &path).expect("a will can be written");
        Self { script: path }
    }

    /// Forgets it: the guard has cleaned up by itself.
    pub fn revoke(self) {
        drop(std::fs::remove_file(&self.script));
    }
}

impl Drop for Will {
    fn drop(&mut self) {
        if self.script.exists() {
            drop(Command::new("sh").arg(&self.script).stdin(Stdio::null()).status());
            drop(std::fs::remove_file(&self.script));
        }
    }
}

fn start() -> Reaper {
    let wills = std::env::temp_dir().join(unique::name("kvw"));
    std::fs::create_dir_all(&wills).expect("a directory for wills");
    let (watcher, life) = watch(&wills);
    // SAFETY: `end` is a plain function that lives as long as the process and never unwinds.
    unsafe { libc::atexit(end) };
    Reaper { wills, life: Mutex::new(Some((life, watcher))) }
}

/// A shell in a session of its own, so that an interrupt at the terminal does not reach it.
fn watch(wills: &Path) -> (Child, File) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let mut command = Command::new("setsid");
    command.arg0("kevtmon-reaper").args(["sh", "-c", WATCH, "kevtmon-reaper"]).arg(wills);
    command.stdin(reader).stdout(Stdio::null()).stderr(Stdio::null());
    let watcher = command.spawn().expect("setsid (util-linux) starts the reaper");
    (watcher, File::from(std::os::fd::OwnedFd::from(writer)))
}

/// Runs when the test process ends in good order: nothing may be left when the test runner sees the end.
extern "C" fn end() {
    let Some(reaper) = REAPER.get() else { return };
    let life = reaper.life.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some((mut pipe, mut watcher)) = life {
        drop(pipe.flush());
        drop(pipe);
        drop(watcher.wait());
    }
}
