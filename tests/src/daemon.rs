//! The daemon under test: started as a user would, read by its standard output.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::Signal;

use crate::event::Event;
use crate::http::{self, Answer};
use crate::mount::{Mount, Scratch};
use crate::patience::{patience, wait_until, within};
use crate::process::{Finished, Running, finish, run};
use crate::scrape::Scrape;

mod alone;
mod waits;

pub use alone::held;

/// The program under test: `KEVTMON_BIN`, else the one built beside these tests.
#[must_use]
pub fn program() -> PathBuf {
    let given = std::env::var_os("KEVTMON_BIN").map(PathBuf::from);
    let path = given.unwrap_or_else(|| {
        let test = std::env::current_exe().expect("a test has a path");
        test.ancestors().nth(2).expect("tests lie in target/*/deps").join("kevtmon")
    });
    assert!(path.is_file(), "{} is missing: build it, or set KEVTMON_BIN", path.display());
    path
}

/// An address of the loopback that is nobody else's: it has the id of this process, and the kernel gives such ports to no
/// connection.
#[must_use]
pub fn own_address() -> SocketAddr {
    const FIRST: u16 = 9200;
    static NEXT: AtomicU16 = AtomicU16::new(FIRST);
    // An id has 22 bits.
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    SocketAddr::from(([127, 64 | high, middle, low], NEXT.fetch_add(1, Ordering::Relaxed)))
}

/// The part of the configuration that tells the root directory of a kubelet.
#[must_use]
pub fn kubelet_roots(root: &Path) -> String {
    format!("[kubelet]\nroots = [{:?}]\n", root.to_string_lossy())
}

/// The part of the configuration that lets every source make as many records as it likes: for storms of which each event
/// counts.
pub const WITHOUT_BUDGETS: &str = "[hooks]\nsource_rate = 1000000\nsource_burst = 1000000\n\
    user_rate = 1000000\nuser_burst = 1000000\n\
    [events]\nuser_rate = 1000000\nuser_burst = 1000000\n\
    container_rate = 1000000\ncontainer_burst = 1000000\n";

/// The part of the configuration that has the daemon look every second at what the kernel does not announce.
pub const POLL_EACH_SECOND: &str = "[polling]\nmax_interval_seconds = 1\n";

/// Every event of an unprivileged account is told.
pub const ALL_EVENTS: &str = "[events]\nuser_rate = 1000000\nuser_burst = 1000000\n";

/// Lines that wait in [`Daemon::unparsed`]: more than a storm of a benchmark has.
const UNPARSED: usize = 1 << 17;

/// How the daemon is to be started.
#[derive(Debug)]
pub struct Launch {
    scratch: Scratch,
    program: PathBuf,
    prefix: Vec<OsString>,
    arguments: Vec<OsString>,
    runtime: Option<String>,
    output: &'static str,
    address: SocketAddr,
    stdout: Option<File>,
    read_later: bool,
    joins: bool,
}

/// `kevtmon run` with files and an address of its own, no runtime, and JSON on standard output, unless changed.
#[must_use]
pub fn launch() -> Launch {
    launch_of(program())
}

/// The same of this program.
#[must_use]
pub fn launch_of(program: PathBuf) -> Launch {
    Launch {
        scratch: Scratch::without_mounts(),
        program,
        prefix: Vec::new(),
        arguments: Vec::new(),
        runtime: Some("none".to_owned()),
        output: "json",
        address: own_address(),
        stdout: None,
        read_later: false,
        joins: false,
    }
}

impl Launch {
    /// `--runtime`.
    #[must_use]
    pub fn runtime(mut self, runtime: impl Into<String>) -> Self {
        self.runtime = Some(runtime.into());
        self
    }

    /// `--runtime`, of one that answers: [`Self::start`] waits until it is joined, however slow it is today.
    #[must_use]
    pub fn joining(mut self, runtime: impl Into<String>) -> Self {
        self.joins = true;
        self.runtime(runtime)
    }

    /// Another argument.
    #[must_use]
    pub fn argument(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// A configuration file with this text.
    #[must_use]
    pub fn config(self, text: &str) -> Self {
        let path = self.scratch.path().join("kevtmon.toml");
        std::fs::write(&path, text).expect("a file can be written");
        self.argument("--config").argument(path)
    }

    /// A configuration file that tells the root directory of the kubelet that mounts a volume.
    #[must_use]
    pub fn kubelet(self, volume: &Mount) -> Self {
        self.config(&kubelet_roots(volume.kubelet_root()))
    }

    /// A command that starts the daemon as its own process: `setpriv …`.
    #[must_use]
    pub fn through<S: AsRef<OsStr>>(mut self, command: &[S]) -> Self {
        self.prefix = command.iter().map(|word| word.as_ref().to_owned()).collect();
        self
    }

    /// A copy of the program in its own directory, that every user may run: the build directory may be closed.
    #[must_use]
    pub fn copied(mut self) -> Self {
        let copy = self.scratch.path().join("kevtmon");
        // By another process: one that a parallel test forks meanwhile would inherit a descriptor to write it
        // with, and a file that is written cannot be run.
        run(&format!("cp {} {}", self.program.display(), copy.display()));
        self.program = copy;
        self
    }

    /// Where to listen, instead of an address of its own.
    #[must_use]
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.address = address;
        self
    }

    /// `--output`.
    #[must_use]
    pub fn output(mut self, output: &'static str) -> Self {
        self.output = output;
        self
    }

    /// Another standard output than a pipe that is read.
    #[must_use]
    pub fn stdout(mut self, file: File) -> Self {
        self.stdout = Some(file);
        self
    }

    /// Standard output is not read until [`Daemon::read`] or [`Daemon::unparsed`].
    #[must_use]
    pub fn read_later(mut self) -> Self {
        self.read_later = true;
        self
    }

    /// The state directory of a daemon that has ended.
    #[must_use]
    pub fn on_state_of(self, before: &Daemon) -> Self {
        symlink(before.state(), self.scratch.path().join("state")).expect("a link can be made");
        self
    }

    /// A directory that lives as long as the daemon.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.scratch.path()
    }

    /// Where it will listen.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn command(&self) -> Command {
        let directory = self.scratch.path();
        let mut words = self.prefix.clone();
        words.push(self.program.clone().into());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["run", "--output", self.output]);
        command.arg("--listen").arg(self.address.to_string());
        command.arg("--socket").arg(directory.join("kevtmon.sock"));
        command.arg("--state-dir").arg(directory.join("state"));
        if let Some(runtime) = &self.runtime {
            command.arg("--runtime").arg(runtime);
        }
        command.args(&self.arguments).env("RUST_BACKTRACE", "1").env_remove("RUST_LOG").stdin(Stdio::null());
        command
    }

    /// Runs it where it is expected to end by itself.
    #[must_use]
    pub fn run_to_end(self) -> Finished {
        let mut command = Command::new("timeout");
        // A daemon that does not end is ended, with status 124.
        command.arg(patience().as_secs().to_string());
        let inner = self.command();
        command.arg(inner.get_program()).args(inner.get_args()).stdin(Stdio::null());
        finish(&mut command, "kevtmon".as_ref())
    }

    /// Starts it and does not wait until it is ready.
    #[must_use]
    pub fn spawn(mut self) -> Daemon {
        let stderr = self.scratch.path().join("stderr");
        let mut command = self.command();
        command.stderr(File::create(&stderr).expect("a file can be made"));
        let piped = self.stdout.is_none();
        command.stdout(self.stdout.take().map_or_else(Stdio::piped, Stdio::from));
        let mut process = Running::spawn(&mut command);
        let pipe = process.child().stdout.take();
        let mut daemon = Daemon {
            process,
            pipe,
            lines: Arc::default(),
            address: self.address,
            stderr,
            stopped: false,
            scratch: self.scratch,
        };
        if piped && !self.read_later {
            daemon.read();
        }
        daemon
    }

    /// Starts it and waits until it is ready.
    #[must_use]
    pub fn start(self) -> Daemon {
        let joins = self.joins;
        let mut daemon = self.spawn();
        daemon.wait_for("daemon.ready", |event| event.kind() == "daemon.ready");
        if joins {
            daemon.wait_for_source("docker");
        }
        daemon
    }
}

/// What was read so far.
#[derive(Debug, Default)]
struct Lines {
    state: Mutex<Read>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct Read {
    events: Vec<Event>,
    bad: Option<String>,
    ended: bool,
}

impl Lines {
    fn lock(&self) -> MutexGuard<'_, Read> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A daemon that runs.
#[derive(Debug)]
pub struct Daemon {
    process: Running,
    pipe: Option<ChildStdout>,
    lines: Arc<Lines>,
    address: SocketAddr,
    stderr: PathBuf,
    stopped: bool,
    scratch: Scratch,
}

impl Daemon {
    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Directory of its files.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.scratch.path()
    }

    /// Its state directory.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.directory().join("state")
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory().join("kevtmon.sock")
    }

    /// Runs a query command: `["incidents", "--json"]`. It queries this daemon, or reads its files.
    pub fn ask(&self, question: &[&str]) -> Finished {
        self.ask_at(&self.socket(), question)
    }

    fn ask_at(&self, socket: &Path, question: &[&str]) -> Finished {
        let mut command = Command::new(program());
        command.args(question).stdin(Stdio::null());
        command.arg("--socket").arg(socket).arg("--state-dir").arg(self.state());
        finish(&mut command, "kevtmon".as_ref())
    }

    /// As [`Daemon::ask`] with `--json`: the lines of the answer; the exit code must be 0 if there are any.
    pub fn find(&self, question: &[&str]) -> Vec<Event> {
        Self::lines(question, &self.ask_at(&self.socket(), &[question, &["--json"]].concat()))
    }

    /// The same of its files, while it runs too: what is committed.
    pub fn find_committed(&self, question: &[&str]) -> Vec<Event> {
        let nowhere = self.directory().join("no.sock");
        Self::lines(question, &self.ask_at(&nowhere, &[question, &["--json"]].concat()))
    }

    fn lines(question: &[&str], ran: &Finished) -> Vec<Event> {
        assert!(matches!(ran.status.code(), Some(0 | 1)), "{question:?}: {} {}", ran.status, ran.stderr);
        assert_eq!(ran.status.success(), !ran.stdout.is_empty(), "{question:?}: {}", ran.stderr);
        ran.stdout.lines().map(|line| Event::parse(line).expect("a line of JSON")).collect()
    }

    /// What it logged.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    /// Begins to read its standard output.
    pub fn read(&mut self) {
        let pipe = self.pipe.take().expect("the standard output is read once");
        let lines = Arc::clone(&self.lines);
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines() {
                let parsed = line.map_err(|error| error.to_string()).and_then(|line| Event::parse(&line));
                let mut state = lines.lock();
                match parsed {
                    Ok(event) => state.events.push(event),
                    Err(bad) => state.bad = Some(bad),
                }
                lines.news.notify_all();
            }
            lines.lock().ended = true;
            lines.news.notify_all();
        });
    }

    /// Begins to read its standard output as lines, which nothing parses: each with the time at which it came.
    pub fn unparsed(&mut self) -> Receiver<(String, SystemTime)> {
        let pipe = self.pipe.take().expect("the standard output is read once");
        let (sender, lines) = sync_channel(UNPARSED);
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                if sender.send((line, SystemTime::now())).is_err() {
                    break;
                }
            }
        });
        lines
    }

    /// Closes its standard output, as a reader does that goes away.
    pub fn close_stdout(&mut self) {
        drop(self.pipe.take().expect("a pipe that is not read yet"));
    }

    /// All that was printed so far.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.lines.lock().events.clone()
    }

    /// Waits for an event; one that was printed before counts too.
    pub fn wait_for(&mut self, what: &str, fits: impl Fn(&Event) -> bool) -> Event {
        let deadline = Instant::now() + patience();
        let lines = Arc::clone(&self.lines);
        let mut state = lines.lock();
        let mut seen = 0;
        loop {
            if let Some(found) = state.events[seen..].iter().find(|event| fits(event)) {
                return found.clone();
            }
            seen = state.events.len();
            assert!(state.bad.is_none(), "a line is not an event: {:?}", state.bad);
            assert!(!state.ended, "the daemon ended before it printed {what}");
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "the daemon did not print {what}");
            let look = left.min(Duration::from_secs(1));
            state = lines.news.wait_timeout(state, look).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Sends one HTTP request to it.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<Answer> {
        http::get(self.address, path)
    }

    /// Its metrics now.
    #[must_use]
    pub fn metrics(&self) -> Scrape {
        let answer = http::try_get(self.address, "/metrics");
        let answer = answer.unwrap_or_else(|error| panic!("the daemon serves no metrics: {error}"));
        assert_eq!(answer.status, 200, "{}", answer.body);
        Scrape::parse(answer.body)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Waits for its end; the exit code, `None` when a signal killed it.
    pub fn wait(&mut self) -> Option<i32> {
        let status = wait_until("the daemon ends", || self.process.ended());
        self.stopped = true;
        status.code()
    }

    /// Waits until its standard output is read to the end.
    pub fn wait_for_end_of_output(&self) -> Vec<Event> {
        wait_until("the output ends", || self.lines.lock().ended.then_some(()));
        self.events()
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.process.ended().is_some()
    }

    /// As [`Daemon::stop`], where it must have ended by itself after this time.
    pub fn stop_within(&mut self, limit: Duration) {
        self.signal(Signal::SIGTERM);
        let ended = within(limit, || self.process.ended());
        assert!(ended.is_some(), "it lives {limit:?} after SIGTERM; log:\n{}", self.log());
        assert_eq!(self.wait(), Some(0), "exit code after SIGTERM; log:\n{}", self.log());
    }

    /// Ends it as a service manager does; panics unless it ends well.
    pub fn stop(&mut self) {
        self.signal(Signal::SIGTERM);
        assert_eq!(self.wait(), Some(0), "exit code after SIGTERM; log:\n{}", self.log());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut text = format!("--- log of the daemon\n{}--- its last events\n", self.log());
            let events = self.events();
            for event in events.iter().skip(events.len().saturating_sub(20)) {
                text.push_str(&format!("{event}\n"));
            }
            show(&text);
        } else if !self.stopped && !self.has_ended() {
            self.stop();
        }
    }
}

#[expect(clippy::print_stderr, reason = "the test runner shows it with the failure")]
fn show(text: &str) {
    eprintln!("{text}");
}
