//! The program that follows the journal: a child process with three pipes and nothing else of the daemon. It ends with the
//! thread that reads it, and with the daemon.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};

use kevtmon_types::error_chain::chain;
use kevtmon_types::escape::is_hidden;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::geteuid;

use crate::capabilities::{self, Capability, DAC_READ_SEARCH};

/// All that it may do beyond what any user may: read the journal, whoever owns its files.
const KEPT: [Capability; 1] = [DAC_READ_SEARCH];
/// So much waits in its pipe between two looks, where the kernel allows it (`fs.pipe-max-size`); then the program waits.
const PIPE: libc::c_int = 1 << 20;
const CHUNK: usize = 64 * 1024;
/// So often is read of what it complains of.
const COMPLAINTS: usize = 16;
const SAYS_MAX: usize = 300;
/// Write permission for others than the owner.
const OTHERS_WRITE: u32 = 0o022;

/// The program while it runs. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Running {
    process: Child,
    stdout: ChildStdout,
    stderr: ChildStderr,
    says: Vec<u8>,
    /// Looks that found its output closed.
    closed: u32,
}

impl Running {
    /// Starts it; else the reason. It prints what comes from now on.
    pub(super) fn start(program: &Path, units: &[String], names_fields: bool) -> Result<Self, String> {
        check(program)?;
        let failed = |error: io::Error| format!("cannot start {}: {}", program.display(), chain(&error));
        let mut command = Command::new(program);
        // With --lines=0, systemd 252 leaves out the first entries of a unit that has none yet.
        command.args(["--follow", "--since=now", "--no-tail", "--no-pager", "--output=json"]);
        if names_fields {
            command.arg("--output-fields=MESSAGE,_SYSTEMD_UNIT");
        }
        // Not --unit: that prints as well what others say of a unit. Of one field any value is taken.
        command.args(units.iter().map(|unit| format!("_SYSTEMD_UNIT={unit}")));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env_clear().current_dir("/").process_group(0);
        // SAFETY: system calls alone, which need no memory and no lock of this process.
        unsafe { command.pre_exec(give_up) };
        let mut process = command.spawn().map_err(failed)?;
        let (Some(stdout), Some(stderr)) = (process.stdout.take(), process.stderr.take()) else {
            return Err(format!("{} has no output", program.display()));
        };
        let running = Self { process, stdout, stderr, says: Vec::new(), closed: 0 };
        let unblocked = unblock(&running.stdout).and_then(|()| unblock(&running.stderr));
        // It is ended with what was made of it.
        unblocked.map_err(failed)?;
        // Without it there is the usual room.
        let _ = fcntl(&running.stdout, FcntlArg::F_SETPIPE_SZ(PIPE));
        Ok(running)
    }

    /// Reads what is there, at most so many bytes; whether it has ended.
    pub(super) fn read(&mut self, bytes: usize, on_part: &mut dyn FnMut(&[u8])) -> bool {
        let mut buffer = vec![0; CHUNK.min(bytes)];
        let mut left = bytes;
        let is_over = loop {
            let room = buffer.len().min(left);
            let Some(part) = buffer.get_mut(..room).filter(|part| !part.is_empty()) else { break false };
            match read_some(&mut self.stdout, part) {
                Ok(0) => break self.is_over(),
                Ok(count) => {
                    left -= count;
                    on_part(part.get(..count).unwrap_or_default());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break false,
                Err(_) => break self.is_over(),
            }
        };
        self.listen(&mut buffer);
        is_over
    }

    /// Its output is closed: how it ends is known a moment later, if it ends at all.
    fn is_over(&mut self) -> bool {
        self.closed += 1;
        self.closed > 1 || self.is_gone()
    }

    /// Takes what it complains of, so that it never waits for that; the begin is kept.
    fn listen(&mut self, buffer: &mut [u8]) {
        for _ in 0..COMPLAINTS {
            let Ok(count @ 1..) = read_some(&mut self.stderr, buffer) else { return };
            let room = SAYS_MAX.saturating_sub(self.says.len()).min(count);
            self.says.extend_from_slice(buffer.get(..room).unwrap_or_default());
        }
    }

    pub(super) fn says(&self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.says);
        let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
        Some(line.chars().map(|c| if is_hidden(c) || c == '"' { ' ' } else { c }).collect())
    }

    /// Ends it, if it has not ended; how it did.
    pub(super) fn end(&mut self) -> String {
        let ended = self.process.try_wait().ok().flatten();
        let _ = self.process.kill();
        ended.map_or_else(|| "prints no more".to_owned(), how)
    }

    pub(super) fn is_gone(&mut self) -> bool {
        !matches!(self.process.try_wait(), Ok(None))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may be gone. Nobody waits for it: the kernel may have it wait for a disk.
        let _ = self.process.kill();
        let _ = self.process.try_wait();
    }
}

/// Whether nobody but root, or who runs the daemon, can have put it there.
fn check(program: &Path) -> Result<(), String> {
    let shown = program.display();
    let file = fs::metadata(program).map_err(|error| match error.kind() {
        ErrorKind::NotFound => format!("there is no {shown}"),
        _ => format!("cannot look at {shown}: {}", chain(&error)),
    })?;
    let is_trusted = [0, geteuid().as_raw()].contains(&file.uid()) && file.mode() & OTHERS_WRITE == 0;
    match (file.is_file(), is_trusted) {
        (false, _) => Err(format!("{shown} is not a regular file")),
        (_, false) => Err(format!("{shown} is not executed, as others than root may write to it")),
        _ => Ok(()),
    }
}

/// What the child does before it becomes the program: that one ends when the thread ends that has started it.
fn give_up() -> io::Result<()> {
    // A root's program would have all capabilities again without the first.
    capabilities::gain_none_but(&KEPT)?;
    capabilities::keep(&KEPT)?;
    Ok(set_pdeathsig(Signal::SIGKILL)?)
}

fn unblock(pipe: &impl AsFd) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(pipe, FcntlArg::F_GETFL)?);
    fcntl(pipe, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

fn read_some(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match from.read(buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("has ended with code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "has ended".to_owned(),
    }
}
