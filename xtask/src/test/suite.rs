//! Runs test executables: several batches of their tests at a time, then those that need a quiet machine, then once more, alone,
//! what failed.
//!
//! In: batches of tests of libtest executables. Out: each batch's output in one piece, the time of the slowest tests, and an error
//! that names what failed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::flaky;
use super::parts::run_into;
use crate::workspace;

/// How long the tests of one process may take.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// How many of the slowest tests are shown.
const SLOWEST: usize = 20;

/// Tests of one executable that run in one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    /// What it is called in the output.
    pub(super) label: String,
    pub(super) executable: Executable,
    pub(super) tests: Vec<String>,
}

/// A test executable, and how it is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Executable {
    pub(super) path: PathBuf,
    /// Where cargo would start it: in the directory of its package.
    pub(super) directory: PathBuf,
    /// The words before its own, such as `sudo`.
    pub(super) runner: Vec<String>,
    /// Whether its ignored tests are meant.
    pub(super) ignored: bool,
}

/// How many run at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Width {
    /// Processes.
    pub(super) batches: usize,
    pub(super) threads: usize,
}

impl Width {
    /// One test and nothing else.
    pub(super) const ALONE: Self = Self { batches: 1, threads: 1 };
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    Passed(Duration),
    Failed,
    Ignored,
}

/// What came of the tests of several batches.
#[derive(Debug, Default)]
pub(super) struct Report {
    passed: Vec<(Duration, String)>,
    /// With the batch that each is of.
    failed: Vec<(Batch, String)>,
    ignored: usize,
}

impl Executable {
    /// The names of its tests.
    pub(super) fn tests(&self) -> Result<Vec<String>> {
        let mut command = Command::new(&self.path);
        command.args(["--list", "--format", "terse"]).current_dir(&self.directory);
        if self.ignored {
            command.arg("--ignored");
        }
        let output = command.stderr(Stdio::inherit()).output();
        let output = output.with_context(|| format!("cannot start {}", self.path.display()))?;
        if !output.status.success() {
            bail!("{} does not list its tests ({})", self.path.display(), output.status);
        }
        let listed = String::from_utf8_lossy(&output.stdout);
        Ok(listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    }

    fn command(&self, tests: &[String], threads: usize) -> Command {
        // libtest tells times only where unstable options are allowed; they are for this process.
        const ALLOWED: &str = "RUSTC_BOOTSTRAP=1";
        let mut words = vec!["env".to_owned(), ALLOWED.to_owned()];
        words.extend(self.runner.iter().cloned());
        words.push(self.path.display().to_string());
        if words[2] == "sudo" {
            // It drops the environment.
            words.splice(..3, ["sudo", "env", ALLOWED].map(str::to_owned));
        }
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(&self.directory).stdin(Stdio::null());
        // The tests of this tool are no part of the gate that runs them.
        command.env_remove(flaky::VARIABLE);
        command.args([
            "-Zunstable-options",
            "--report-time",
            &format!("--test-threads={threads}"),
            "--exact",
        ]);
        if self.ignored {
            command.arg("--ignored");
        }
        command.args(tests);
        command
    }
}

/// Runs batches side by side, in their order; each one's output appears when it has ended, whole if something failed.
pub(super) fn run(batches: Vec<Batch>, width: Width, out: &mut (impl Write + Send)) -> Report {
    let (next, out) = (AtomicUsize::new(0), Mutex::new(out));
    let lane = || {
        let mut report = Report::default();
        while let Some(batch) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (text, verdicts) = batch.run(width.threads);
            if let Ok(mut out) = out.lock() {
                // Its reader is gone; the verdict is an exit code, too.
                let _ = out.write_all(text.as_bytes());
            }
            report.take(batch, verdicts);
        }
        report
    };
    let mut all = Report::default();
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..width.batches.min(batches.len())).map(|_| scope.spawn(lane)).collect();
        for lane in lanes {
            all.add(lane.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
    });
    all
}

impl Batch {
    /// What it prints, and what came of each test.
    fn run(&self, threads: usize) -> (String, Vec<(String, Verdict)>) {
        let start = Instant::now();
        let mut printed = Vec::new();
        let ended = run_into(&mut self.executable.command(&self.tests, threads), LIMIT, &mut printed);
        let printed = String::from_utf8_lossy(&printed);
        let told = verdicts(&printed);
        // Of whoever took the process down there is no verdict.
        let verdict = |test: &String| told.get(test.as_str()).copied().unwrap_or(Verdict::Failed);
        let verdicts: Vec<_> = self.tests.iter().map(|test| (test.clone(), verdict(test))).collect();
        let failed = verdicts.iter().filter(|(_, verdict)| *verdict == Verdict::Failed).count();
        let mut text = format!(
            "xtask: {}: {} tests, {failed} failed, {} s\n",
            self.label,
            verdicts.len(),
            start.elapsed().as_secs()
        );
        if failed > 0 {
            let end =
                ended.err().map_or_else(String::new, |error| format!("xtask: it ended with {error:#}\n"));
            let _ = write!(text, "{printed}{end}");
        }
        (text, verdicts)
    }
}

/// Those of all tests. A child may have written in between: then the outcome begins a line of its own.
fn verdicts(printed: &str) -> BTreeMap<&str, Verdict> {
    let mut told = BTreeMap::new();
    let mut begun = None;
    for line in printed.lines() {
        if let Some((name, verdict)) = verdict(line) {
            told.insert(name, verdict);
            begun = None;
        } else if let Some((_, rest)) = line.split_once("test ")
            && let Some((name, _)) = rest.split_once(" ... ")
        {
            begun = Some(name);
        } else if let Some(verdict) = outcome(line)
            && let Some(name) = begun
        {
            told.insert(name, verdict);
        }
    }
    told
}

/// Reads `test a::b ... ok <0.123s>`, wherever in the line a child has left it.
fn verdict(line: &str) -> Option<(&str, Verdict)> {
    let (_, rest) = line.split_once("test ")?;
    let (name, text) = rest.split_once(" ... ")?;
    Some((name.strip_suffix(" - should panic").unwrap_or(name), outcome(text)?))
}

fn outcome(text: &str) -> Option<Verdict> {
    match text.split([' ', ',']).next()? {
        "ok" => {
            let seconds = text.split_once('<').and_then(|(_, time)| time.split_once("s>"));
            let seconds = seconds.and_then(|(seconds, _)| seconds.parse().ok()).unwrap_or_default();
            Some(Verdict::Passed(Duration::try_from_secs_f64(seconds).unwrap_or_default()))
        }
        "FAILED" => Some(Verdict::Failed),
        "ignored" => Some(Verdict::Ignored),
        _ => None,
    }
}

impl Report {
    fn take(&mut self, batch: &Batch, verdicts: Vec<(String, Verdict)>) {
        for (test, verdict) in verdicts {
            match verdict {
                Verdict::Passed(took) => self.passed.push((took, test)),
                Verdict::Failed => self.failed.push((batch.clone(), test)),
                Verdict::Ignored => self.ignored += 1,
            }
        }
    }

    /// With what came of others.
    pub(super) fn add(&mut self, other: Self) {
        self.passed.extend(other.passed);
        self.failed.extend(other.failed);
        self.ignored += other.ignored;
    }

    /// Runs once more, alone, what failed; what passes now is flaky. The error names what failed again, or all, if these are too
    /// many to be noise.
    pub(super) fn conclude(mut self, out: &mut (impl Write + Send)) -> Result<()> {
        let mut flaky = Vec::new();
        let first = std::mem::take(&mut self.failed);
        if first.len() > flaky::MOST_RUN_AGAIN {
            self.failed = first;
        } else {
            for (batch, test) in first {
                let again = Batch { label: format!("{test}, again"), tests: vec![test.clone()], ..batch };
                let report = run(vec![again], Width::ALONE, out);
                if report.failed.is_empty() {
                    flaky.push(test);
                }
                self.add(report);
            }
        }
        let written = self.write(out);
        flaky::add(&flaky)?;
        flaky::show(&flaky);
        written.context("cannot show what came of the tests")?;
        if !self.failed.is_empty() {
            let names: Vec<_> = self.failed.iter().map(|(_, test)| test.as_str()).collect();
            bail!("failed: {}", names.join(", "));
        }
        if self.passed.is_empty() {
            bail!("no test ran");
        }
        flaky::bound(&flaky)
    }

    fn write(&mut self, out: &mut impl Write) -> std::io::Result<()> {
        self.passed.sort_by(|one, other| other.cmp(one));
        writeln!(
            out,
            "xtask: {} tests passed, {} failed, {} ignored; the slowest of those that passed:",
            self.passed.len(),
            self.failed.len(),
            self.ignored
        )?;
        for (took, test) in self.passed.iter().take(SLOWEST) {
            writeln!(out, "{:>9.1} s  {test}", took.as_secs_f64())?;
        }
        Ok(())
    }
}

/// Builds test executables with a `cargo test`, which has no `--no-run` yet; those that are tests, by the name of their target.
pub(super) fn build(mut cargo: Command) -> Result<Vec<(String, Executable)>> {
    cargo.args(["--no-run", "--message-format=json-render-diagnostics"]);
    let output = cargo.stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("{} failed ({})", workspace::written(&cargo), output.status);
    }
    Ok(built(&String::from_utf8_lossy(&output.stdout)))
}

/// The test executables in cargo's messages.
fn built(messages: &str) -> Vec<(String, Executable)> {
    let artifacts = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    artifacts
        .filter_map(|message| {
            let text = |pointer: &str| message.pointer(pointer).and_then(|text| text.as_str());
            let is_test = message.pointer("/profile/test").and_then(|test| test.as_bool()) == Some(true);
            let directory = PathBuf::from(text("/manifest_path")?).parent()?.to_owned();
            let executable = Executable {
                path: text("/executable")?.into(),
                directory,
                runner: Vec::new(),
                ignored: false,
            };
            is_test.then(|| (text("/target/name").unwrap_or_default().to_owned(), executable))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A program in the place of a test executable: a shell script that finds the names of tests in `$tests`.
    fn executable(directory: &std::path::Path, script: &str) -> Executable {
        let path = directory.join("tests");
        let text = format!(
            "#!/bin/sh\ntests=\nfor word; do case $word in -*) ;; *) tests=\"$tests $word\" ;; esac; done\n{script}\n"
        );
        std::fs::write(&path, text).expect("write");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
        Executable { path, directory: directory.to_owned(), runner: Vec::new(), ignored: false }
    }

    fn batch(executable: &Executable, tests: &[&str]) -> Batch {
        let tests = tests.iter().map(|&test| test.to_owned()).collect();
        Batch { label: "batch".to_owned(), executable: executable.clone(), tests }
    }

    #[test]
    fn a_verdict_is_read_with_its_time() {
        let passed = |millis| Verdict::Passed(Duration::from_millis(millis));
        assert_eq!(verdict("test a::b ... ok <1.250s>"), Some(("a::b", passed(1250))));
        assert_eq!(verdict("half a linetest a ... ok"), Some(("a", passed(0))));
        assert_eq!(verdict("test a - should panic ... FAILED <0.1s>"), Some(("a", Verdict::Failed)));
        assert_eq!(verdict("test a ... ignored, needs a kubelet"), Some(("a", Verdict::Ignored)));
        assert_eq!(verdict("test a has been running for over 60 seconds"), None);
        assert_eq!(verdict("test result: ok. 1 passed"), None);
        let between = verdicts("test a ... umount: busy\nok <2.0s>\ntest b ... ok <1.0s>\nok <9.0s>\n");
        assert_eq!(between, BTreeMap::from([("a", passed(2000)), ("b", passed(1000))]));
        // The last one counts: a child may have said the same.
        assert_eq!(
            verdicts("test a ... x\nok so\nFAILED <2.0s>\n"),
            BTreeMap::from([("a", Verdict::Failed)])
        );
    }

    #[test]
    fn a_test_without_a_verdict_has_failed_and_all_output_is_shown() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let executable = executable(directory.path(), "echo 'test a ... ok <0.5s>'; echo so; exit 3");
        let mut out = Vec::new();
        let width = Width { batches: 2, threads: 1 };
        let report = run(vec![batch(&executable, &["a", "b"]), batch(&executable, &["a"])], width, &mut out);
        assert_eq!(report.passed.len(), 2);
        assert_eq!(report.failed.iter().map(|(_, test)| test.as_str()).collect::<Vec<_>>(), ["b"]);
        let out = String::from_utf8(out).expect("text");
        assert!(
            out.contains("batch: 2 tests, 1 failed")
                && out.contains("so\nxtask: it ended with exit status: 3")
        );
        assert_eq!(out.matches("so\n").count(), 1, "{out}");
    }

    #[test]
    fn what_passes_alone_is_flaky_and_what_fails_again_is_red() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let once = format!(
            "[ -e {0}/$test ] && echo \"test $test ... ok\"; : >{0}/$test",
            directory.path().display()
        );
        let script = format!(
            "for test in $tests; do case $test in good*) echo \"test $test ... ok\" ;; once) {once} ;; esac; done"
        );
        let executable = executable(directory.path(), &script);
        let width = Width { batches: 1, threads: 1 };
        let mut out = Vec::new();
        let noise = run(vec![batch(&executable, &["good", "once"])], width, &mut out);
        noise.conclude(&mut out).expect("green");
        let red = run(vec![batch(&executable, &["good", "bad"])], width, &mut out).conclude(&mut out);
        assert_eq!(red.expect_err("red").to_string(), "failed: bad");
        let nothing = run(Vec::new(), width, &mut out).conclude(&mut out);
        assert_eq!(nothing.expect_err("red").to_string(), "no test ran");
    }

    #[test]
    fn executables_are_found_among_cargos_messages() {
        let messages = r#"{"target":{"name":"libc"},"profile":{"test":false},"manifest_path":"/p/Cargo.toml","executable":null}
{"target":{"name":"guest"},"profile":{"test":false},"manifest_path":"/p/Cargo.toml","executable":"/t/guest"}
{"target":{"name":"e2e"},"profile":{"test":true},"manifest_path":"/p/Cargo.toml","executable":"/t/e2e-1"}
{"reason":"build-finished","success":true}"#;
        let built = built(messages);
        assert_eq!(built.len(), 1);
        assert_eq!((built[0].0.as_str(), built[0].1.path.as_path()), ("e2e", "/t/e2e-1".as_ref()));
        assert_eq!(built[0].1.directory, PathBuf::from("/p"));
    }
}
