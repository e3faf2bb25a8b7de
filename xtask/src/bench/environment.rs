//! What a benchmark runs in: a namespace with one interface, and a daemon whose events are read.

use std::collections::VecDeque;
use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use kevtmon_tests::http;
use kevtmon_tests::netns;
use kevtmon_tests::network::{Network, NetworkError};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(30);

/// A network namespace with the interface `eth0`, deleted when dropped.
pub(super) struct Namespace {
    name: String,
    path: PathBuf,
}

impl Namespace {
    pub(super) fn new() -> Result<Self> {
        let name = format!("kevtmon-bench-{}", std::process::id());
        let path = Path::new("/run/netns").join(&name);
        netns::create(&path).with_context(|| format!("cannot make the namespace {name}"))?;
        let namespace = Self { name, path };
        namespace.network(|network| {
            network.add_veth("veth0", None, "eth0", &namespace.path)?;
            network.add_address("eth0", Ipv4Addr::new(10, 99, 0, 1), 16)?;
            network.set_up("veth0", true)?;
            network.set_up("eth0", true)
        })?;
        Ok(namespace)
    }

    /// Changes something in it, by this process.
    pub(super) fn network(
        &self,
        act: impl FnOnce(&Network) -> Result<(), NetworkError> + Send,
    ) -> Result<()> {
        Ok(Network::within(&self.path, act)?)
    }

    /// `ip -batch -` in the namespace, which reads its script from standard input.
    pub(super) fn batch(&self) -> Result<(Child, ChildStdin)> {
        let mut child = Command::new("ip")
            .args(["-n", &self.name, "-batch", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .context("cannot start ip (package iproute2), which is the culprit here")?;
        let script = child.stdin.take().context("ip has no standard input")?;
        Ok((child, script))
    }

    /// `ip monitor neigh` in the namespace, whose output is read.
    pub(super) fn monitor(&self) -> Result<Child> {
        let mut ip = Command::new("ip");
        ip.args(["-n", &self.name, "monitor", "neigh"]).stdin(Stdio::null()).stdout(Stdio::piped());
        ip.stderr(Stdio::null()).spawn().context("cannot start ip (package iproute2)")
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = netns::delete(&self.path);
    }
}

/// A line of the daemon, and when it was read.
pub(super) struct Line {
    pub(super) text: String,
    pub(super) read: SystemTime,
}

/// What the daemon writes. It is parsed only on request: during a measurement its reader should
/// cost next to nothing.
struct Output {
    chunks: Receiver<(Vec<u8>, SystemTime)>,
    lines: VecDeque<Line>,
    unfinished: Vec<u8>,
}

impl Output {
    fn of(mut stdout: ChildStdout) -> Self {
        let (tx, chunks) = sync_channel(1 << 16);
        std::thread::spawn(move || {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(read @ 1..) = stdout.read(&mut buffer) {
                if tx.send((buffer[..read].to_vec(), SystemTime::now())).is_err() {
                    return;
                }
            }
        });
        Self { chunks, lines: VecDeque::new(), unfinished: Vec::new() }
    }

    fn next(&mut self) -> Result<Line> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Ok(line);
            }
            let (chunk, read) = self.chunks.recv_timeout(PATIENCE)?;
            for piece in chunk.split_inclusive(|byte| *byte == b'\n') {
                self.unfinished.extend_from_slice(piece);
                if piece.ends_with(b"\n") {
                    let text = String::from_utf8(std::mem::take(&mut self.unfinished))?;
                    self.lines.push_back(Line { text, read });
                }
            }
        }
    }
}

/// A daemon without runtimes, ended when dropped.
pub(super) struct Daemon {
    child: Child,
    output: Output,
    address: SocketAddr,
    binary: PathBuf,
    state: TempDir,
}

impl Daemon {
    /// Returns once it is ready.
    pub(super) fn start(binary: &Path) -> Result<Self> {
        Self::configured(binary, "")
    }

    /// The same with this configuration.
    pub(super) fn configured(binary: &Path, config: &str) -> Result<Self> {
        let state = tempfile::tempdir()?;
        let file = state.path().join("kevtmon.toml");
        std::fs::write(&file, config)?;
        // Freed just before it is used again, on an address from which no other process takes ports meanwhile.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut child = Command::new(binary)
            .args(["run", "--output", "json", "--runtime", "none", "--config"])
            .arg(file)
            .args(["--listen", &address.to_string()])
            .arg("--socket")
            .arg(state.path().join("kevtmon.sock"))
            .arg("--state-dir")
            .arg(state.path())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        let output = Output::of(child.stdout.take().context("the daemon has no standard output")?);
        let mut daemon = Self { child, output, address, binary: binary.to_owned(), state };
        loop {
            let line = daemon.output.next().context("the daemon does not become ready")?;
            if line.text.contains("\"daemon.ready\"") {
                return Ok(daemon);
            }
        }
    }

    /// The value of a sample whose name and labels start like this; several add up.
    pub(super) fn metric(&self, start: &str) -> Result<f64> {
        let answer = http::get(self.address, "/metrics").context("the daemon shows no metrics")?;
        Ok(answer
            .body
            .lines()
            .filter(|line| line.starts_with(start))
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
            .sum())
    }

    /// Its model of the node, as `kevtmon state --json` shows it.
    pub(super) fn state(&self) -> Result<String> {
        let mut state = Command::new(&self.binary);
        state.args(["state", "--json", "--socket"]).arg(self.state.path().join("kevtmon.sock"));
        Ok(String::from_utf8(state.stdin(Stdio::null()).output()?.stdout)?)
    }

    /// Its private memory, MiB.
    pub(super) fn private_memory(&self) -> Result<f64> {
        let memory = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id()))?;
        let line = memory.lines().find_map(|line| line.strip_prefix("Anonymous:"));
        let kib: f64 = line.and_then(|kib| kib.split_whitespace().next()).context("no Anonymous")?.parse()?;
        Ok(kib / 1024.0)
    }

    /// Waits until this many lines with the word came.
    pub(super) fn count(&mut self, word: &str, count: f64) -> Result<f64> {
        let mut counted = 0.0;
        while counted < count {
            let line = self.output.next();
            let line = line.with_context(|| format!("only {counted} of {count} lines with {word} came"))?;
            counted += f64::from(u8::from(line.text.contains(word)));
        }
        Ok(counted)
    }

    /// Lines until `count` of them hold the word.
    pub(super) fn take(&mut self, word: &str, count: usize) -> Result<Vec<Line>> {
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count {
            let line = self.output.next();
            let line =
                line.with_context(|| format!("only {} of {count} lines with {word} came", taken.len()))?;
            if line.text.contains(word) {
                taken.push(line);
            }
        }
        Ok(taken)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
