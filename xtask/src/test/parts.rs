//! The parts of the gate and of the full tests: each a process with a limit, side by side where they do not disturb each other.

use std::io::{self, PipeReader, Read as _, Write};
use std::os::fd::AsFd as _;
use std::panic::resume_unwind;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{flaky, leftovers};
use crate::side_by_side::{Output, Transcript};

/// What runs as a process of its own.
pub(super) struct Job {
    name: &'static str,
    /// Arguments of this program.
    arguments: &'static [&'static str],
    /// In minutes: at least twice what it takes on two cores, so that a busy machine is no failure.
    limit: u64,
}

const fn job(name: &'static str, arguments: &'static [&'static str], limit: u64) -> Job {
    Job { name, arguments, limit }
}

/// Jobs that run one after the other.
pub(super) type Lane = &'static [Job];

/// Lanes that run side by side, stage after stage.
pub(super) type Stage = &'static [Lane];

pub(super) const GATE: [Stage; 3] = [
    &[
        &[job("build", &["test", "build"], 45)],
        &[job("preparation", &["test", "prepare"], 45), job("house rules", &["lint", "quick"], 10)],
    ],
    &[
        &[
            job("unit tests", &["test", "unit"], 30),
            job("clippy", &["lint", "clippy"], 30),
            job("clippy of the kernel programs", &["lint", "programs"], 10),
        ],
        &[job("tests on another kernel", &["test", "vm", "--gate"], 30)],
    ],
    &[&[job("end-to-end tests", &["test", "e2e", "--gate"], 60)]],
];

pub(super) const FULL: [Stage; 7] = [
    &[&[job("build", &["test", "build"], 45)], &[job("preparation", &["test", "prepare"], 45)]],
    &[&[
        job("unit tests", &["test", "unit"], 30),
        job("lint", &["lint"], 60),
        job("dependencies", &["lint", "dependencies"], 45),
    ]],
    &[&[job("end-to-end tests", &["test", "e2e"], 90), job("demo", &["demo"], 20)]],
    &[&[job("tests with newer runtimes", &["test", "runtimes", "--if-possible"], 45)]],
    &[&[job("tests with a kubelet", &["test", "kubelet", "--if-possible"], 45)]],
    &[&[job("tests with a cluster", &["test", "cluster", "--if-possible"], 60)]],
    &[&[
        job("tests on other kernels", &["test", "vm", "--if-possible"], 90),
        job("tests on arm64", &["test", "vm", "--arch", "arm64", "--if-possible"], 120),
        job("the package under systemd", &["test", "systemd", "--if-possible"], 30),
    ]],
];

/// Parts of which only some tests can be run.
const BY_NAME: [&str; 6] = ["unit", "e2e", "runtimes", "kubelet", "cluster", "vm"];

/// Runs them, and shows what came of each.
pub(super) fn run(stages: &[Stage], names: &[String]) -> Result<()> {
    let start = Instant::now();
    let this = std::env::current_exe().context("cannot find the executable of this command")?;
    let flaky = flaky::Gathered::begin()?;
    let mut ended = Vec::new();
    for stage in stages {
        ended.extend(run_stage(&this, stage, names, flaky.path(), io::stderr()));
    }
    for (name, took, outcome) in &ended {
        let verdict = outcome.as_ref().map_or_else(|error| format!("{error:#}"), |()| "passed".to_owned());
        eprintln!("xtask: {name}: {verdict} after {} s", took.as_secs());
    }
    eprintln!("xtask: all of it: {} s", start.elapsed().as_secs());
    let noise = flaky.names();
    flaky::show(&noise);
    let failed: Vec<&str> =
        ended.iter().filter(|(_, _, outcome)| outcome.is_err()).map(|(name, ..)| *name).collect();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    flaky::bound(&noise)
}

/// Runs lanes side by side, each job as a process of `program`.
fn run_stage(
    program: &Path,
    lanes: Stage,
    names: &[String],
    flaky: &Path,
    out: impl Write + Send,
) -> Vec<Ended> {
    let transcript = Transcript::new(lanes.iter().map(|lane| lane.len()).sum(), out);
    let mut first = 0;
    std::thread::scope(|scope| {
        let mut running = Vec::new();
        for lane in lanes {
            let outputs: Vec<_> = (first..first + lane.len()).map(|index| transcript.piece(index)).collect();
            first += lane.len();
            running.push(scope.spawn(|| run_lane(program, lane, names, flaky, outputs)));
        }
        let ended = running.into_iter().map(|lane| lane.join());
        ended.flat_map(|lane| lane.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// Name, time and outcome of a job.
type Ended = (&'static str, Duration, Result<()>);

fn run_lane<W: Write + Send>(
    program: &Path,
    lane: Lane,
    names: &[String],
    flaky: &Path,
    outputs: Vec<Output<'_, W>>,
) -> Vec<Ended> {
    let mut ended = Vec::new();
    for (job, mut output) in lane.iter().zip(outputs) {
        let start = Instant::now();
        let mut command = Command::new(program);
        command.args(job.arguments).env(flaky::VARIABLE, flaky);
        if job.arguments.iter().any(|part| BY_NAME.contains(part)) && !names.is_empty() {
            command.arg("--").args(names);
        }
        let outcome = writeln!(output, "xtask: {}", job.name).map_err(Into::into);
        let limit = Duration::from_secs(job.limit * 60);
        let outcome = outcome.and_then(|()| run_into(&mut command, limit, &mut output));
        ended.push((job.name, start.elapsed(), outcome));
    }
    ended
}

/// Runs a command with all that it prints going to `output`; one that takes longer than `limit` is ended with all it has started.
pub(super) fn run_into(command: &mut Command, limit: Duration, output: &mut impl Write) -> Result<()> {
    let (mut printed, writer) = io::pipe().context("cannot make a pipe")?;
    command.stdout(writer.try_clone().context("cannot share a pipe")?).stderr(writer);
    let mut child = command.spawn().context("cannot start a part")?;
    // What it was started with holds the pipe open.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let status = copy_until_end(&mut child, Instant::now() + limit, &mut printed, output)?;
    let Some(status) = status else {
        bail!("ended, since it took longer than {} min", limit.as_secs() / 60);
    };
    if !status.success() {
        bail!("{status}");
    }
    Ok(())
}

/// Copies what a part prints until it has ended; a process that it leaves behind may hold the pipe open for ever. None if it
/// had to be ended.
fn copy_until_end(
    child: &mut Child,
    deadline: Instant,
    printed: &mut PipeReader,
    output: &mut impl Write,
) -> Result<Option<ExitStatus>> {
    let mut buffer = vec![0; 64 * 1024];
    let mut status = None;
    loop {
        if status.is_none() && Instant::now() >= deadline {
            leftovers::end(child.id());
            child.wait().context("cannot wait for a part")?;
            return Ok(None);
        }
        let mut polled = [PollFd::new(printed.as_fd(), PollFlags::POLLIN)];
        let readable = match poll(&mut polled, PollTimeout::from(100_u8)) {
            Err(Errno::EINTR) => continue,
            ready => ready.context("cannot wait for what a part prints")? > 0,
        };
        if readable {
            let read = printed.read(&mut buffer).context("cannot read what a part prints")?;
            output.write_all(&buffer[..read]).context("cannot show what a part prints")?;
            if read > 0 {
                continue;
            }
        }
        match status {
            // All that was in the pipe at its end is read.
            Some(_) => return Ok(status),
            None if readable => return child.wait().map(Some).context("cannot wait for a part"),
            None => status = child.try_wait().context("cannot wait for a part")?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn jobs_run_with_their_arguments_and_each_ones_output_is_whole() {
        const LANES: [Lane; 2] =
            [&[job("a", &["false"], 1), job("b", &["test", "unit"], 1)], &[job("c", &["test", "vm"], 1)]];
        let directory = tempfile::tempdir().expect("temporary directory");
        let program = directory.path().join("part");
        std::fs::write(&program, "#!/bin/sh\necho \"$*\"\necho \"no $1\" >&2\n[ \"$1\" = test ]\n")
            .expect("write");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).expect("make executable");
        let mut shown = Vec::new();
        let ended = run_stage(&program, &LANES, &["name".to_owned()], Path::new("/x"), &mut shown);
        let outcomes: Vec<_> = ended.iter().map(|(name, _, outcome)| (*name, outcome.is_ok())).collect();
        assert_eq!(outcomes, [("a", false), ("b", true), ("c", true)]);
        let shown = String::from_utf8(shown).expect("text");
        assert_eq!(
            shown,
            "xtask: a\nfalse\nno false\nxtask: b\ntest unit -- name\nno test\nxtask: c\ntest vm -- name\nno test\n"
        );
    }

    #[test]
    fn a_part_that_takes_too_long_is_ended_with_what_it_started() {
        let mut shown = Vec::new();
        let script = "sleep 600 & echo $!; wait";
        let error = run_into(&mut shell(script), Duration::from_millis(500), &mut shown).unwrap_err();
        assert!(error.to_string().starts_with("ended, since"), "{error}");
        let child: i32 = String::from_utf8(shown).expect("text").trim().parse().expect("a pid");
        // It was killed; that it ends is the kernel's work, and that it is waited for its new parent's.
        let lives = || {
            let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z ") && !stat.contains(") X ")
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        while lives() {
            assert!(Instant::now() < deadline, "{child} lives");
            std::thread::yield_now();
        }
    }
}
