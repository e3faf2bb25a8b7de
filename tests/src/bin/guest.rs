//! Process 1 of a virtual machine: makes it a place where tests can run, runs those that the kernel's command line
//! names, prints how many passed, and powers off.
//!
//! Each argument is a module of the end-to-end tests with what to leave out, which of its ignored tests are meant, and parts of the
//! names of those that run, with commas between: `mount,--skip=container`.
#![expect(clippy::print_stdout, reason = "the console is how the machine is heard")]

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use kevtmon_tests::network::Network;
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::termios::tcdrain;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

/// File system, and where the tests and the daemon look for it.
const MOUNTS: [(&str, &str); 7] = [
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("tmpfs", "/tmp"),
    ("tmpfs", "/run"),
    ("tracefs", "/sys/kernel/tracing"),
    ("cgroup2", "/sys/fs/cgroup"),
];

/// What everything started here finds in its environment. An emulated processor asks for patience.
const ENVIRONMENT: [(&str, &str); 5] = [
    ("PATH", "/bin"),
    ("KEVTMON_BIN", "/bin/kevtmon"),
    ("KEVTMON_TEST_PATIENCE", "120"),
    ("KEVTMON_TEST_GUEST", "1"),
    ("RUST_BACKTRACE", "1"),
];

/// The executable of the tests.
const TESTS: &str = "/tests/e2e";

/// How many tests run at a time: as many as there are processors.
const THREADS: &str = "--test-threads=2";

/// How tests ended.
#[derive(Debug, Default, Clone, Copy)]
struct Count {
    passed: u32,
    failed: u32,
}

fn main() {
    match set_up().and_then(|()| run_all(std::env::args().skip(1))) {
        Ok(count) => println!("guest: {} passed, {} failed", count.passed, count.failed),
        Err(error) => println!("the tests cannot be run: {error}"),
    }
    // What is still in the console's buffer would be lost with the power.
    let _ = tcdrain(std::io::stdout());
    let _ = reboot(RebootMode::RB_POWER_OFF);
}

fn set_up() -> Result<(), Box<dyn Error>> {
    for (kind, place) in MOUNTS {
        fs::create_dir_all(place)?;
        mount(Some(kind), place, Some(kind), MsFlags::empty(), None::<&str>)
            .map_err(|errno| format!("{kind} on {place}: {errno}"))?;
    }
    let mut modules =
        fs::read_dir("/modules")?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    modules.sort();
    for path in modules {
        finit_module(File::open(&path)?, c"", ModuleInitFlags::empty())
            .map_err(|errno| format!("{}: {errno}", path.display()))?;
    }
    // Its type comes with a module.
    mount(Some("fusectl"), "/sys/fs/fuse/connections", Some("fusectl"), MsFlags::empty(), None::<&str>)?;
    Ok(Network::here()?.set_up("lo", true)?)
}

/// What of a module runs.
#[derive(Debug)]
struct Selection<'a> {
    module: &'a str,
    ignored: bool,
    skipped: Vec<&'a str>,
    wanted: Vec<&'a str>,
}

impl<'a> Selection<'a> {
    fn new(words: &'a str) -> Self {
        let mut words = words.split(',');
        let module = words.next().unwrap_or_default();
        let mut selection = Self { module, ignored: false, skipped: Vec::new(), wanted: Vec::new() };
        for word in words {
            match word.strip_prefix("--skip=") {
                Some(skipped) => selection.skipped.push(skipped),
                None if word == "--ignored" => selection.ignored = true,
                None => selection.wanted.push(word),
            }
        }
        selection
    }

    fn takes(&self, test: &str) -> bool {
        test.split("::").next() == Some(self.module)
            && !self.skipped.iter().any(|skipped| test.contains(skipped))
            && (self.wanted.is_empty() || self.wanted.iter().any(|wanted| test.contains(wanted)))
    }
}

/// The names of all tests, or of those that are ignored.
fn list(ignored: bool) -> Result<Vec<String>, Box<dyn Error>> {
    let mut list = command(TESTS);
    list.args(["--list", "--format", "terse"]).args(ignored.then_some("--ignored"));
    let listed = String::from_utf8(list.output()?.stdout)?;
    Ok(listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

fn run_all(selections: impl Iterator<Item = String>) -> Result<Count, Box<dyn Error>> {
    let mut all = Count::default();
    for words in selections {
        let selection = Selection::new(&words);
        let name = selection.module;
        let mut chosen = list(selection.ignored)?;
        chosen.retain(|test| selection.takes(test));
        if chosen.is_empty() {
            continue;
        }
        let mut tests = command(TESTS);
        tests.args(selection.ignored.then_some("--ignored")).arg(THREADS).arg("--exact").args(chosen);
        let mut tests = tests.stdout(Stdio::piped()).spawn()?;
        let mut result = None;
        for line in BufReader::new(tests.stdout.take().ok_or("no pipe")?).lines() {
            let line = line?;
            println!("{line}");
            result = result.or_else(|| count(&line));
        }
        let status = tests.wait()?;
        reap();
        let mut count = result.unwrap_or_default();
        if !status.success() && count.failed == 0 {
            println!("{name} ended early ({status})");
            count.failed = 1;
        }
        all.passed += count.passed;
        all.failed += count.failed;
    }
    Ok(all)
}

/// Waits for those whose parents have ended: nobody else does, and whoever looks at all processes would meet them from then on.
fn reap() {
    let ended = |outcome| !matches!(outcome, Ok(WaitStatus::StillAlive) | Err(_));
    while ended(waitpid(None, Some(WaitPidFlag::WNOHANG))) {}
}

fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env_clear().envs(ENVIRONMENT).stdin(Stdio::null());
    command
}

/// Reads `test result: ok. 24 passed; 0 failed; 0 ignored; …`.
fn count(line: &str) -> Option<Count> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let number = |word: &str| {
        let pairs = counts.split("; ").filter_map(|pair| pair.split_once(' '));
        pairs.filter(|(_, what)| *what == word).find_map(|(number, _)| number.parse().ok())
    };
    Some(Count { passed: number("passed")?, failed: number("failed")? })
}
