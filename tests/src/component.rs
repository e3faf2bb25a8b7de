//! Programs with the name of a component of the node, such as a kubelet, which do what they are told.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};

use crate::eventually;
use crate::mount::Scratch;
use crate::process::{Running, attempt};

/// A copy of the shell under another name.
#[derive(Debug)]
pub struct Program {
    path: PathBuf,
}

impl Program {
    /// The program at this path below a directory; with a version as Go's linker leaves it.
    #[must_use]
    pub fn new(directory: &Scratch, path: &str, version: Option<&str>) -> Self {
        let path = directory.path().join(path);
        let parent = path.parent().expect("a directory");
        std::fs::create_dir_all(parent).expect("a directory can be made");
        let info = path.with_extension("buildinfo");
        let section = version.map(|version| {
            std::fs::write(&info, build_info(version)).expect("a file can be written");
            format!("--add-section=.go.buildinfo={}", info.display())
        });
        // By another process: a file that a parallel test's child may write cannot be run.
        let script = "shell=$(readlink -f /bin/sh); if [ -n \"$2\" ]; then objcopy \"$2\" \"$shell\" \"$1\"; \
                      else cp \"$shell\" \"$1\"; fi";
        let words = ["sh", "-c", script, "sh", &path.to_string_lossy(), section.as_deref().unwrap_or("")];
        let _ = attempt(&words).succeeded("a copy of the shell (objcopy of binutils)");
        Self { path }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A component that runs.
#[derive(Debug)]
pub struct Component {
    process: Running,
    stdin: Option<ChildStdin>,
}

impl Component {
    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Has it run a command line of the shell, as a child of its own.
    pub fn run(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("it runs");
        writeln!(stdin, "{line}").expect("it listens");
    }

    /// Has it end with this exit code.
    pub fn end_with(&mut self, code: &str) {
        self.run(&format!("exit {code}"));
        self.stdin = None;
        self.process.child().wait().expect("a child can be waited for");
    }
}

/// Starts a program as root of the node does.
#[must_use]
pub fn start(program: &Program) -> Component {
    start_with(program, &[])
}

/// Starts a program with these flags, which it shows and does not read.
#[must_use]
pub fn start_with(program: &Program, flags: &[&str]) -> Component {
    start_as(&[], program, flags)
}

/// Starts a program with arguments, by means of a command such as `unshare --mount`, which becomes that program.
#[must_use]
pub fn start_as(by: &[&str], program: &Program, arguments: &[&str]) -> Component {
    let path = program.path().to_string_lossy();
    let own = [&path, "-c", "while read -r line; do eval \"$line\"; done", &path];
    let words: Vec<&str> = by.iter().chain(&own).chain(arguments).copied().collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::piped());
    let mut process = Running::spawn(&mut command);
    let exe = format!("/proc/{}/exe", process.pid());
    eventually!(std::fs::read_link(&exe).is_ok_and(|exe| exe == program.path()), "it runs");
    let stdin = process.child().stdin.take();
    Component { process, stdin }
}

/// What Go's linker puts into a program that is given a version.
fn build_info(version: &str) -> Vec<u8> {
    let info =
        format!("path\tx\nbuild\t-ldflags=\"-X 'k8s.io/component-base/version.gitVersion={version}'\"\n");
    let mut section = b"\xff Go buildinf:\x08\x02".to_vec();
    section.resize(32, 0);
    for text in ["go1.19.8", &info] {
        let length = u8::try_from(text.len()).expect("a short text");
        assert!(length < 0x80, "a length of one byte");
        section.push(length);
        section.extend(text.as_bytes());
    }
    section
}
