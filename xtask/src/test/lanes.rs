//! The test executables of a package, several at a time: end-to-end tests wait for kernels and runtimes most of the time. What
//! must not meet takes locks of the whole machine.
//!
//! In: what `cargo test` would execute, as cargo itself tells. Out: each one's output in one piece, and who failed.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::num::NonZero;
use std::os::unix::ffi::OsStrExt as _;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::run_into;
use crate::side_by_side::Transcript;
use crate::workspace;

/// Writes down, at the end of the file `$0`, what it is to execute: how many words, where, and the words.
const NOTE: &str = r#"printf '%s\0' "$#" "$PWD" "$@" >>"$0""#;

/// How far apart in their order those are that start one after the other: files beside each other in the alphabet are about one
/// subject, and would wait for the same locks.
const APART: usize = 7;

/// How many of the slowest are told.
const SLOWEST: usize = 5;

/// What cargo would execute.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Executable {
    /// Of the file that it is made of.
    name: String,
    directory: PathBuf,
    /// Itself and its arguments.
    words: Vec<OsString>,
}

/// What came of an executable.
pub(super) struct Ended<'a> {
    name: &'a str,
    took: Duration,
    outcome: Result<()>,
}

/// Builds with a `cargo test`, and returns what it would execute: only cargo knows what its arguments select, and what of them is
/// for the executables.
pub(super) fn executables(
    cargo: impl Fn() -> Result<Command>,
    arguments: &[String],
) -> Result<Vec<Executable>> {
    let mut build = cargo()?;
    let only_build = arguments.iter().take_while(|argument| *argument != "--").any(|word| word == "--no-run");
    if !only_build {
        build.arg("--no-run");
    }
    workspace::check(build.args(arguments))?;
    let directory = tempfile::tempdir().context("cannot create a temporary directory")?;
    let notes = directory.path().join("notes");
    fs::write(&notes, "").with_context(|| format!("cannot write {}", notes.display()))?;
    let mut list = cargo()?;
    let runner = ["sh", "-c", NOTE, notes.to_str().context("a temporary path is no text")?];
    list.args(["--config", &format!("target.'cfg(unix)'.runner = {runner:?}")]).args(arguments);
    let output = list.output().context("cannot start cargo")?;
    if !output.status.success() {
        // It names each executable there; who reads it wants to know only why there is no list of them.
        io::stderr().write_all(&output.stderr).context("cannot show what cargo says")?;
        bail!("{} failed ({})", workspace::written(&list), output.status);
    }
    noted(&fs::read(&notes).with_context(|| format!("cannot read {}", notes.display()))?)
}

/// What is written down in the notes.
fn noted(notes: &[u8]) -> Result<Vec<Executable>> {
    let mut words: VecDeque<&[u8]> = notes.split(|byte| *byte == 0).collect();
    // Behind the last end of a word.
    words.pop_back();
    let mut executables = Vec::new();
    while let Some(count) = words.pop_front() {
        let count = str::from_utf8(count).ok().and_then(|count| count.parse().ok());
        let directory = words.pop_front();
        let (Some(count), Some(directory)) = (count, directory.filter(|_| count <= Some(words.len()))) else {
            bail!("cargo's list of executables is cut off");
        };
        let words: Vec<_> = words.drain(..count).map(|word| OsStr::from_bytes(word).to_owned()).collect();
        let Some(program) = words.first() else { bail!("cargo executes nothing") };
        let directory = PathBuf::from(OsStr::from_bytes(directory));
        executables.push(Executable { name: name(Path::new(program)), directory, words });
    }
    Ok(executables)
}

/// Cargo puts a hash behind the name of the file.
fn name(program: &Path) -> String {
    let file = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy();
    file.rsplit_once('-').map_or(file.as_ref(), |(name, _hash)| name).to_owned()
}

/// How many run at a time by default: one more than there are processors, since most wait.
pub(super) fn default_number() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get) + 1
}

/// Runs all executables, `lanes` of them at a time, each through the words of `runner`.
pub(super) fn run<'a>(
    executables: &'a [Executable],
    lanes: usize,
    runner: &[String],
    out: impl Write + Send,
) -> Vec<Ended<'a>> {
    let transcript = Transcript::new(executables.len(), out);
    let order = order(executables.len());
    let next = AtomicUsize::new(0);
    let lane = || {
        let mut ended = Vec::new();
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(&index) = order.get(place) else { return ended };
            ended.push((index, executables[index].run(runner, &mut transcript.piece(place))));
        }
    };
    let mut ended: Vec<_> = thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes.min(executables.len())).map(|_| scope.spawn(lane)).collect();
        let ended = lanes.into_iter().map(|lane| lane.join());
        ended.flat_map(|lane| lane.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    ended.sort_by_key(|(index, _)| *index);
    ended.into_iter().map(|(_, ended)| ended).collect()
}

/// The order in which so many start.
fn order(number: usize) -> Vec<usize> {
    (0..APART.min(number)).flat_map(|first| (first..number).step_by(APART)).collect()
}

impl Executable {
    fn run(&self, runner: &[String], output: &mut impl Write) -> Ended<'_> {
        let start = Instant::now();
        let mut words = runner.iter().map(OsStr::new).chain(self.words.iter().map(OsString::as_os_str));
        let mut command = Command::new(words.next().unwrap_or_default());
        // Several share a terminal: none is to read from it.
        command.args(words).current_dir(&self.directory).stdin(Stdio::null());
        let outcome = writeln!(output, "xtask: {}", self.name).map_err(Into::into);
        let outcome = outcome.and_then(|()| run_into(&mut command, output));
        let ended = Ended { name: &self.name, took: start.elapsed(), outcome };
        // Its reader is gone; the summary has it, too.
        let _ = writeln!(output, "xtask: {}", ended.verdict());
        ended
    }
}

impl Ended<'_> {
    fn verdict(&self) -> String {
        let outcome =
            self.outcome.as_ref().map_or_else(|error| format!("{error:#}"), |()| "passed".to_owned());
        format!("{}: {outcome} after {} s", self.name, self.took.as_secs())
    }
}

/// What to tell at the end; an error names who failed.
pub(super) fn summary(ended: &[Ended<'_>], out: &mut impl Write) -> Result<()> {
    let mut by_time: Vec<_> = ended.iter().collect();
    by_time.sort_by_key(|ended| std::cmp::Reverse(ended.took));
    let slowest =
        by_time.iter().take(SLOWEST).map(|ended| format!("{} {} s", ended.name, ended.took.as_secs()));
    let slowest: Vec<_> = slowest.collect();
    writeln!(out, "xtask: {} test executables, the slowest: {}", ended.len(), slowest.join(", "))?;
    let failed: Vec<_> = ended.iter().filter(|ended| ended.outcome.is_err()).collect();
    for ended in &failed {
        writeln!(out, "xtask: {}", ended.verdict())?;
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.iter().map(|ended| ended.name).collect::<Vec<_>>().join(", "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn executable(name: &str, words: &[&str]) -> Executable {
        let words = words.iter().map(OsString::from).collect();
        Executable { name: name.to_owned(), directory: PathBuf::from("/"), words }
    }

    fn shell(name: &str, script: &str) -> Executable {
        executable(name, &["sh", "-c", script])
    }

    /// What runs so many at a time print, and the summary with its outcome.
    fn outcome(executables: &[Executable], lanes: usize) -> (String, String, Result<()>) {
        let (mut shown, mut told) = (Vec::new(), Vec::new());
        // What waits for another one that never comes is not to wait for ever.
        let runner = ["timeout", "60", "env", "GIVEN=yes"].map(str::to_owned);
        let ended = run(executables, lanes, &runner, &mut shown);
        let outcome = summary(&ended, &mut told);
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (text(shown), text(told), outcome)
    }

    /// Without the times, which are of no interest here.
    fn timeless(text: &str) -> Vec<&str> {
        text.lines().map(|line| line.split(" after ").next().unwrap_or(line)).collect()
    }

    #[test]
    fn all_run_after_a_failure_too_and_each_ones_output_is_whole() {
        let executables = [
            shell("good", "echo $GIVEN; pwd"),
            shell("bad", "echo one; echo two >&2; exit 3"),
            executable("missing", &["/no/such/program"]),
            shell("last", "echo end"),
        ];
        for lanes in [1, 2, 9] {
            let (shown, told, outcome) = outcome(&executables, lanes);
            let shown = timeless(&shown);
            assert_eq!(shown[..4], ["xtask: good", "yes", "/", "xtask: good: passed"]);
            assert_eq!(shown[4..8], ["xtask: bad", "one", "two", "xtask: bad: exit status: 3"]);
            assert_eq!(shown[shown.len() - 3..], ["xtask: last", "end", "xtask: last: passed"]);
            assert!(told.starts_with("xtask: 4 test executables, the slowest: "), "{told}");
            assert_eq!(
                timeless(&told)[1..],
                ["xtask: bad: exit status: 3", "xtask: missing: exit status: 127"]
            );
            assert_eq!(outcome.expect_err("two failed").to_string(), "failed: bad, missing");
        }
    }

    #[test]
    fn lanes_run_side_by_side() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let pipe = directory.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
        // Each end of the pipe waits for the other one.
        let pipe = pipe.display();
        let executables = [
            shell("reader", &format!("read -r word <{pipe}; echo $word")),
            shell("writer", &format!("echo met >{pipe}")),
        ];
        let (shown, _, outcome) = outcome(&executables, 2);
        outcome.expect("both passed");
        assert!(shown.starts_with("xtask: reader\nmet\n"), "{shown}");
    }

    #[test]
    fn each_starts_once_and_not_beside_its_neighbor() {
        for number in [0, 1, 5, 7, 20, 97] {
            let mut started = order(number);
            let are_neighbors = |pair: &[usize]| pair[0].abs_diff(pair[1]) == 1;
            assert!(number <= APART || !started.windows(2).any(are_neighbors), "{started:?}");
            started.sort_unstable();
            assert_eq!(started, (0..number).collect::<Vec<_>>());
        }
    }

    #[test]
    fn no_executables_are_no_failure() {
        let (shown, _, outcome) = outcome(&[], 3);
        assert!(shown.is_empty() && outcome.is_ok());
    }

    #[test]
    fn notes_that_are_cut_off_are_an_error() {
        let whole = b"2\0/x\0/t/mount_leak-0a1b\0a b\n\x001\0/x\0/t/flood-22\0";
        let expected = [
            Executable {
                directory: "/x".into(),
                ..executable("mount_leak", &["/t/mount_leak-0a1b", "a b\n"])
            },
            Executable { directory: "/x".into(), ..executable("flood", &["/t/flood-22"]) },
        ];
        assert_eq!(noted(whole).expect("whole"), expected);
        assert_eq!(noted(b"").expect("none"), []);
        for cut in [&whole[..2], &whole[..5], &whole[..21], b"x\0/x\0", b"0\0/x\0"] {
            assert!(noted(cut).is_err(), "{}", cut.escape_ascii());
        }
    }

    #[test]
    fn cargo_tells_what_its_arguments_select() {
        let package = tempfile::tempdir().expect("temporary directory");
        let write = |file: &str, text: &str| {
            let path = package.path().join(file);
            fs::create_dir_all(path.parent().expect("a directory")).expect("create directory");
            fs::write(path, text).expect("write");
        };
        write("Cargo.toml", "[package]\nname = \"sample\"\nedition = \"2024\"\n[workspace]\n");
        write("tests/one.rs", "#[test]\nfn never() { panic!(\"only listed\") }\n");
        write("tests/two_words.rs", "");
        let cargo = || {
            let mut cargo = workspace::cargo("test");
            cargo.current_dir(package.path()).args(["--offline", "--quiet"]);
            cargo.env("CARGO_TARGET_DIR", package.path().join("target"));
            Ok(cargo)
        };
        let selected = |arguments: &[&str]| {
            let arguments: Vec<_> = arguments.iter().map(|&argument| argument.to_owned()).collect();
            executables(cargo, &arguments).map(|selected| {
                let told = selected.into_iter().map(|executable| {
                    assert_eq!(executable.directory, package.path().canonicalize().expect("a path"));
                    let words = executable.words[1..].iter().map(|word| word.to_string_lossy().into_owned());
                    (executable.name, words.filter(|word| word != "--quiet").collect::<Vec<_>>())
                });
                told.collect::<Vec<_>>()
            })
        };
        let told = |names: &[&str], words: &[&str]| -> Vec<(String, Vec<String>)> {
            let words: Vec<_> = words.iter().map(|&word| word.to_owned()).collect();
            names.iter().map(|&name| (name.to_owned(), words.clone())).collect()
        };
        assert_eq!(selected(&[]).expect("both"), told(&["one", "two_words"], &[]));
        assert_eq!(
            selected(&["--test", "two_words", "name", "--", "--ignored", "a b"]).expect("one"),
            told(&["two_words"], &["name", "--ignored", "a b"])
        );
        assert_eq!(selected(&["--no-run"]).expect("none"), []);
        assert!(selected(&["--test", "three"]).is_err());
    }
}
