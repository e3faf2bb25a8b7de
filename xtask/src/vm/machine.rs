//! One virtual machine: started, read on its serial console, and ended.

use std::fs;
use std::io::{BufRead as _, BufReader, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::kernels::Kernel;
use super::qemu::Qemu;
use crate::workspace;

/// How long a machine may take: a quarter of an hour was measured with two on two cores.
const PATIENCE: Duration = Duration::from_secs(2400);

/// How long it may print nothing: no test takes as long, and one that hangs shall not keep the verdict of the others.
const SILENCE: Duration = Duration::from_secs(600);

/// In MiB. The programs of the tests are held twice at first, packed and not, and half of it is what the root file system of
/// the machine can have.
const MEMORY: &str = "1536";

/// How a test begins a line for the table of attach modes.
const ATTACHED: &str = "attached: ";

/// How process 1 begins its last line.
const VERDICT: &str = "guest: ";

/// Two processors emulated by one thread, and no KVM, so that it runs wherever programs run. With a thread each, QEMU 7.2
/// at times goes on executing the breakpoint that a kernel had put, for a moment, in place of an instruction when it
/// switched a tracepoint on: both processors hang.
const ACCELERATION: &str = "tcg,thread=single";

/// A machine that hangs or fails ends.
const KERNEL_ARGUMENTS: &str = "quiet panic=-1 oops=panic softlockup_panic=1 rdinit=/init --";

/// Boots the kernel, writes each test's verdict to `output`, and fails unless all passed. The console's log stays beside the
/// initramfs. Returns what the tests printed for the table of attach modes.
pub(crate) fn run(
    qemu: &Qemu,
    kernel: &Kernel,
    initramfs: &Path,
    plan: &[String],
    output: &mut impl Write,
) -> Result<Vec<String>> {
    let mut command = qemu.command();
    let console = kernel.arch.console();
    command
        .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-nic", "none"])
        .args(["-serial", "stdio", "-accel", ACCELERATION, "-smp", "2", "-m", MEMORY])
        .args(kernel.arch.machine())
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(initramfs)
        .args(["-append", &format!("console={console} {KERNEL_ARGUMENTS} {}", plan.join(" "))])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut machine = Machine(command.spawn().context("cannot start QEMU")?);
    let console = read(&mut machine.0)?;
    let deadline = Instant::now() + PATIENCE;
    let mut text = String::new();
    let (mut verdict, mut attached) = (None, Vec::new());
    let end = loop {
        match console.recv_timeout(deadline.saturating_duration_since(Instant::now()).min(SILENCE)) {
            Ok(line) => {
                if line.starts_with("test ") && !line.starts_with("test result")
                    || line.starts_with("skipped: ")
                {
                    writeln!(output, "{}: {line}", kernel.name)?;
                } else if let Some(said) = line.strip_prefix(VERDICT) {
                    writeln!(output, "{}: {said}", kernel.name)?;
                    verdict = Some(said.to_owned());
                } else if let Some(said) = line.strip_prefix(ATTACHED) {
                    attached.push(said.to_owned());
                }
                text.push_str(&line);
                text.push('\n');
            }
            Err(RecvTimeoutError::Disconnected) => break "it ended",
            Err(RecvTimeoutError::Timeout) => break "patience ended",
        }
    };
    drop(machine);
    let log = initramfs.with_extension("log");
    fs::write(&log, &text).with_context(|| format!("cannot write {}", log.display()))?;
    match verdict.as_deref().map(all_passed) {
        Some(true) => return Ok(attached),
        Some(false) => write!(output, "--- console\n{text}")?,
        None => {
            write!(output, "--- console\n{text}")?;
            bail!("{end} before its verdict; the console's log is {}", workspace::shown(&log));
        }
    }
    bail!("not all tests passed; the console's log is {}", workspace::shown(&log))
}

/// Lines of the console, until the machine ends.
fn read(machine: &mut Child) -> Result<Receiver<String>> {
    let mut console = BufReader::new(machine.stdout.take().context("a pipe from the machine")?);
    let (sender, receiver) = sync_channel(256);
    std::thread::spawn(move || {
        let mut line = Vec::new();
        while console.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            // The firmware and the kernel write what is no text, too.
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            if sender.send(text).is_err() {
                return;
            }
            line.clear();
        }
    });
    Ok(receiver)
}

/// `37 passed, 0 failed`: none failed, and some were run.
fn all_passed(verdict: &str) -> bool {
    let count = |word: &str| {
        let counts = verdict.split(", ").filter_map(|part| part.split_once(' '));
        counts.filter(|(_, what)| *what == word).find_map(|(count, _)| count.parse::<u32>().ok())
    };
    count("failed") == Some(0) && count("passed").is_some_and(|passed| passed > 0)
}

/// Ends with its guard.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_good_when_some_passed_and_none_failed() {
        assert!(all_passed("37 passed, 0 failed"));
        for bad in ["37 passed, 1 failed", "0 passed, 0 failed", "37 passed", ""] {
            assert!(!all_passed(bad), "{bad}");
        }
    }
}
