//! A namespace with one interface, a daemon whose events are read, `ip -batch` with a script.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use crate::workspace::check;

const PATIENCE: Duration = Duration::from_secs(30);

/// A network namespace, deleted when dropped.
pub(super) struct Namespace {
    pub(super) name: String,
}

impl Namespace {
    pub(super) fn new() -> Result<Self> {
        let name = format!("kevtmon-bench-{}", std::process::id());
        check(Command::new("ip").args(["netns", "add", &name]))?;
        let namespace = Self { name };
        for arguments in [
            "link add veth0 type veth peer name eth0",
            "addr add 10.99.0.1/16 dev eth0",
            "link set veth0 up",
            "link set eth0 up",
        ] {
            check(Command::new("ip").args(["-n", &namespace.name]).args(arguments.split(' ')))?;
        }
        Ok(namespace)
    }

    /// `ip -batch -` in the namespace, which reads its script from standard input.
    pub(super) fn batch(&self) -> Result<(Child, ChildStdin)> {
        let mut child = Command::new("ip")
            .args(["-n", &self.name, "-batch", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .context("cannot start ip")?;
        let script = child.stdin.take().context("ip has no standard input")?;
        Ok((child, script))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// A line of the daemon, and when it was read.
pub(super) struct Line {
    pub(super) text: String,
    pub(super) read: SystemTime,
}

/// What the daemon writes. It is taken apart only when somebody asks: during a measurement its reader should
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
    port: u16,
    _state: TempDir,
}

impl Daemon {
    /// Returns once it is ready.
    pub(super) fn start(binary: &Path) -> Result<Self> {
        let state = tempfile::tempdir()?;
        // Freed just before it is used again, on an address that nobody else takes ports of meanwhile.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut child = Command::new(binary)
            .args(["run", "--output", "json", "--runtime", "none"])
            .args(["--listen", &format!("127.0.0.1:{port}")])
            .arg("--socket")
            .arg(state.path().join("kevtmon.sock"))
            .arg("--state-dir")
            .arg(state.path())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        let output = Output::of(child.stdout.take().context("the daemon has no standard output")?);
        let mut daemon = Self { child, output, port, _state: state };
        loop {
            let line = daemon.output.next().context("the daemon does not become ready")?;
            if line.text.contains("\"daemon.ready\"") {
                return Ok(daemon);
            }
        }
    }

    /// The value of a sample whose name and labels start like this; several add up.
    pub(super) fn metric(&self, start: &str) -> Result<f64> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text
            .lines()
            .filter(|line| line.starts_with(start))
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
            .sum())
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
