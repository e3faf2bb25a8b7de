//! Cleans up after a test process that could not do it itself: killed, interrupted, or ended with shared guards.
//!
//! Each guard writes down, as a [`Cleanup`], how to undo what it makes. These files of a process lie in one directory,
//! watched by the program `reaper`, which blocks on a pipe. When the last writer of that pipe is gone, so is the test
//! process, and the reaper executes what is left, newest first.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::netns;
use crate::network::Network;
use crate::unique;

struct Reaper {
    directory: PathBuf,
    /// Taken at the end of the process.
    life: Mutex<Option<(File, Child)>>,
}

static REAPER: OnceLock<Reaper> = OnceLock::new();

/// How to undo something, to be done when its guard, or the whole process, is gone.
#[derive(Debug)]
pub struct Cleanup {
    file: PathBuf,
}

impl Cleanup {
    /// Runs a shell script.
    #[must_use]
    pub fn script(script: &str) -> Self {
        Self::write(script, "sh")
    }

    /// Deletes the name of a network namespace.
    #[must_use]
    pub fn netns(path: &Path) -> Self {
        Self::write(&path.to_string_lossy(), "netns")
    }

    /// Deletes a link of the host's namespace.
    #[must_use]
    pub fn link(name: &str) -> Self {
        Self::write(name, "link")
    }

    fn write(text: &str, kind: &str) -> Self {
        let reaper = REAPER.get_or_init(start);
        let file = reaper.directory.join(format!("{:08}.{kind}", unique::number()));
        let partial = file.with_extension("new");
        fs::write(&partial, text).expect("a cleanup can be written");
        fs::rename(&partial, &file).expect("a cleanup can be written");
        Self { file }
    }

    /// Forgets it: the guard has cleaned up by itself.
    pub fn revoke(self) {
        drop(fs::remove_file(&self.file));
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        if self.file.exists() {
            execute(&self.file);
            drop(fs::remove_file(&self.file));
        }
    }
}

/// What is gone already needs no cleanup, so nothing here is an error.
fn execute(file: &Path) {
    let kind = file.extension().and_then(|kind| kind.to_str()).unwrap_or_default();
    let text = || fs::read_to_string(file).unwrap_or_default();
    match kind {
        "sh" => drop(Command::new("sh").arg(file).stdin(Stdio::null()).status()),
        "netns" => drop(netns::delete(Path::new(&text()))),
        "link" => drop(Network::here().and_then(|network| network.delete_link(&text()))),
        // One that was being written; what it would undo was not done yet.
        _ => {}
    }
}

/// The reaper's work: waits until standard input ends, and executes what then lies in the directory.
///
/// # Errors
/// When the directory cannot be read or removed.
pub fn reap(directory: &Path) -> io::Result<()> {
    io::copy(&mut io::stdin(), &mut io::sink())?;
    let mut files =
        fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    files.sort();
    files.iter().rev().for_each(|file| execute(file));
    fs::remove_dir_all(directory)
}

fn start() -> Reaper {
    let directory = std::env::temp_dir().join(unique::name("kvw"));
    fs::create_dir_all(&directory).expect("a directory for cleanups");
    let (reader, writer) = io::pipe().expect("a pipe");
    let mut command = Command::new(built("reaper"));
    command.arg(&directory).stdin(reader).stdout(Stdio::null()).stderr(Stdio::null());
    let watcher = command.spawn().expect("the reaper starts");
    // SAFETY: `end` is a plain function that lives as long as the process and never unwinds.
    unsafe { libc::atexit(end) };
    let writer = File::from(std::os::fd::OwnedFd::from(writer));
    Reaper { directory, life: Mutex::new(Some((writer, watcher))) }
}

/// A program of this package: beside the test or above its `deps`, where cargo puts it.
pub(crate) fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let mut candidates = test.ancestors().skip(1).take(2).map(|directory| directory.join(name));
    candidates.find(|file| file.is_file()).expect("cargo builds the programs with the tests")
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
