//! The query commands, timed from their start to their exit, against the store of a dead daemon and against a
//! daemon that runs on it.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use kevtmon_tests::limits::spread;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use serde_json::Value;

use crate::setup::Privilege;

/// Each answer comes within this, in milliseconds.
const BUDGET_MS: f64 = 50.0;
const REPEATS: usize = 15;
const PATIENCE: Duration = Duration::from_secs(30);

/// A query: arguments, and whether there is an answer.
type Question = (Vec<String>, bool);

pub(super) fn measure(binary: &Path, state: &Path, words: &Value) -> Result<()> {
    eprintln!(
        "           commands on that store, start to exit in ms; budget {BUDGET_MS:.0}. Cold: nothing of it in the page cache"
    );
    eprintln!(
        "           {:<62} {:>6} {:>7} {:>7} {:>7} {:>7}",
        "no daemon", "lines", "cold", "min", "median", "max"
    );
    let mut slow = Vec::new();
    for question in questions(words)? {
        slow.extend(time(binary, state, &question, true)?);
    }
    if Privilege::of_this_user() == Privilege::Root {
        let _daemon = Daemon::start(binary, state)?;
        eprintln!("           with a daemon");
        // What the boot before left open is closed by now; and it is about answers, not about long lists.
        let left_out = [&["incidents", "--json"][..], &["events", "--since", "1h", "--severity", "warning"]];
        let stays = |question: &Question| !left_out.iter().any(|words| question.0 == *words);
        for question in questions(words)?.into_iter().filter(stays) {
            slow.extend(time(binary, state, &question, false)?);
        }
    } else {
        eprintln!("           a daemon is not asked: that needs root");
    }
    ensure!(slow.is_empty(), "slower than {BUDGET_MS} ms: {}", slow.join("; "));
    Ok(())
}

fn questions(words: &Value) -> Result<Vec<Question>> {
    let word = |name: &str| match &words[name] {
        Value::String(word) => Ok(word.clone()),
        Value::Number(number) => Ok(number.to_string()),
        _ => bail!("no {name} in {words}"),
    };
    let mut questions: Vec<Question> = Vec::new();
    let mut ask = |arguments: &[&str], finds| {
        questions.push((arguments.iter().map(|argument| (*argument).to_owned()).collect(), finds));
    };
    ask(&["events", "--json"], true);
    ask(&["events"], true);
    ask(&["events", "--json", "--since", "1h"], true);
    ask(&["events", "--since", "15m"], true);
    ask(&["events", "--since", "1h", "--severity", "warning"], true);
    ask(&["events", "--json", "--kind", "mount.busy"], true);
    ask(&["events", "--json", "--kind", "daemon."], true);
    ask(&["events", "--json", "--severity", "critical"], false);
    for pod in ["busy_pod", "rare_pod"] {
        ask(&["events", "--json", "--pod", &word(pod)?], true);
    }
    ask(&["events", "--json", "--pod", &word("rare_pod")?, "--kind", "mount.busy"], false);
    ask(&["events", "--json", "--container", &word("container")?], true);
    ask(&["incidents", "--json"], true);
    ask(&["incidents", "--json", "--all"], true);
    let subjects =
        ["busy_pod", "rare_pod", "struck_pod", "ip", "container", "veth", "pid", "busy_pid", "path"];
    for subject in subjects {
        ask(&["why", &word(subject)?], true);
    }
    ask(&["why", "--json", &word("struck_pod")?], true);
    ask(&["why", "team-1/absent-0"], false);
    Ok(questions)
}

/// Repeats each query; returns the query if an answer takes too long.
fn time(binary: &Path, state: &Path, (arguments, finds): &Question, cold: bool) -> Result<Option<String>> {
    let shown = arguments.join(" ");
    let mut lines = 0;
    let mut ask = || -> Result<f64> {
        let begin = Instant::now();
        let output = Command::new(binary)
            .args(arguments)
            .arg("--state-dir")
            .arg(state)
            .arg("--socket")
            .arg(state.join("kevtmon.sock"))
            .output()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        let took = begin.elapsed().as_secs_f64() * 1e3;
        let expected = if *finds { 0 } else { 1 };
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(expected), "`{shown}` ended with {}: {said}", output.status);
        lines = output.stdout.iter().filter(|byte| **byte == b'\n').count();
        Ok(took)
    };
    let first = if cold {
        forget(state)?;
        Some(ask()?)
    } else {
        None
    };
    let mut times = (0..REPEATS).map(|_| ask()).collect::<Result<Vec<f64>>>()?;
    let (min, median, max) = spread(&mut times);
    let first = first.map_or_else(|| "-".to_owned(), |first| format!("{first:.1}"));
    eprintln!("           {shown:<62.62} {lines:>6} {first:>7} {min:>7.1} {median:>7.1} {max:>7.1}");
    // The best one, since other load on the machine does not count.
    Ok((min > BUDGET_MS).then_some(shown))
}

/// Drops the page cache of the files.
fn forget(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_file() {
            let file = File::open(&path)?;
            // Pages that wait to be written stay.
            file.sync_all()?;
            posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)
                .with_context(|| format!("cannot advise on {}", path.display()))?;
        }
    }
    Ok(())
}

/// A daemon that keeps all of it, ended when dropped.
struct Daemon(Child);

impl Daemon {
    fn start(binary: &Path, state: &Path) -> Result<Self> {
        let config = state.join("kevtmon.toml");
        fs::write(&config, "[metrics]\nlisten = []\n[store]\nmax_mib = 65536\nmax_age_days = 30\n")?;
        let child = Command::new(binary)
            .args(["run", "--output", "none", "--runtime", "none", "--config"])
            .arg(&config)
            .arg("--state-dir")
            .arg(state)
            .arg("--socket")
            .arg(state.join("kevtmon.sock"))
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        let mut daemon = Self(child);
        let begin = Instant::now();
        loop {
            let answered = Command::new(binary)
                .args(["events", "--kind", "daemon.ready", "--since", "1m", "--state-dir"])
                .arg(state)
                .arg("--socket")
                .arg(state.join("kevtmon.sock"))
                .output()?;
            // Without a daemon it prints a remark.
            if answered.status.success() && answered.stderr.is_empty() {
                return Ok(daemon);
            }
            if let Some(status) = daemon.0.try_wait()? {
                bail!("the daemon ended: {status}");
            }
            ensure!(begin.elapsed() < PATIENCE, "the daemon does not become ready");
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
