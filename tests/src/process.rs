//! Child processes: short ones that do something and end, and long ones that hold something.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::patience::{wait_until, within_patience};
use crate::reaper::Cleanup;

/// A process that has ended.
#[derive(Debug, Clone)]
pub struct Finished {
    /// Its id while it lived.
    pub pid: u32,
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Finished {
    /// Panics with its standard error unless the process succeeded.
    #[must_use]
    pub fn succeeded(self, what: &str) -> Self {
        assert!(self.status.success(), "{what}: {}\n{}{}", self.status, self.stdout, self.stderr);
        self
    }
}

/// Runs a command to its end, whatever that is.
pub fn attempt<S: AsRef<OsStr>>(command: &[S]) -> Finished {
    let (program, arguments) = command.split_first().expect("a command has a name");
    finish(Command::new(program).args(arguments).stdin(Stdio::null()), program.as_ref())
}

/// Runs a prepared command to its end and collects what it printed.
pub fn finish(command: &mut Command, name: &OsStr) -> Finished {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.unwrap_or_else(|error| panic!("{} does not start: {error}", name.display()));
    collect(child)
}

fn collect(child: Child) -> Finished {
    let pid = child.id();
    let output = child.wait_with_output().expect("a child can be waited for");
    Finished {
        pid,
        status: output.status,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs a command line without quoting rules; panics unless it succeeds.
pub fn run(line: &str) -> Finished {
    attempt(&line.split_whitespace().collect::<Vec<_>>()).succeeded(line)
}

/// Runs a prepared command with this on its standard input; panics unless it succeeds.
pub fn finish_with_input(command: &mut Command, input: impl AsRef<[u8]>) -> Finished {
    attempt_with_input(command, input).succeeded(&format!("{command:?}"))
}

/// Runs a prepared command with this on its standard input to its end, whatever that is; a command need not read it all.
pub fn attempt_with_input(command: &mut Command, input: impl AsRef<[u8]>) -> Finished {
    let name = format!("{command:?}");
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap_or_else(|error| panic!("{name} does not start: {error}"));
    let mut stdin = child.stdin.take().expect("standard input is a pipe");
    match stdin.write_all(input.as_ref()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            panic!("{name} is not given its input: {error}")
        }
        _ => {}
    }
    drop(stdin);
    collect(child)
}

/// Copies a program, to be run at once. By another process: one that a parallel test starts meanwhile would inherit a
/// descriptor to write it with, and a file that is written cannot be run.
pub fn copy_program(from: &Path, to: &Path) {
    let _ = attempt(&["cp".as_ref(), from.as_os_str(), to.as_os_str()]).succeeded("cp");
}

/// Writes a script, to be run at once; see [`copy_program`].
pub fn write_script(path: &Path, text: &str) {
    let mut command = Command::new("sh");
    command.args(["-c", "cat >\"$1\" && chmod 755 \"$1\"", "sh"]).arg(path);
    let _ = finish_with_input(&mut command, text);
}

/// Whether a program is installed, which does nothing but that with `--version`.
#[must_use]
pub fn is_installed(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok()
}

/// A process that lives until it is dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    cleanup: Option<Cleanup>,
}

impl Running {
    /// Starts it; it runs its program when this returns.
    pub fn spawn(command: &mut Command) -> Self {
        let name = command.get_program().to_owned();
        let child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", name.display()));
        let cleanup = Cleanup::script(&format!("kill -9 {} 2>/dev/null\n", child.id()));
        Self { child, cleanup: Some(cleanup) }
    }

    /// Its id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The child itself.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be asked")
    }

    /// Sends a signal.
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).expect("a pid fits"));
        nix::sys::signal::kill(pid, signal).expect("a child can be signalled");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        // One that waits in the kernel may never be gone, and a test that waits for it neither.
        let is_gone = within_patience(|| matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)).then_some(()));
        let is_over = is_gone.is_some() || std::thread::panicking();
        assert!(is_over, "process {} was killed and is not gone", self.child.id());
        if let Some(cleanup) = self.cleanup.take() {
            cleanup.revoke();
        }
    }
}

/// A command that does nothing until it is killed.
#[must_use]
pub fn idle() -> Command {
    let mut command = Command::new("sleep");
    command.arg("1000000").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Holds a directory by being in it.
#[must_use]
pub fn hold_by_cwd(directory: &Path) -> Running {
    Running::spawn(idle().current_dir(directory))
}

/// Holds a file by descriptor 7. The child opens it, so this process never holds it.
#[must_use]
pub fn hold_by_fd(file: &Path) -> Running {
    let mut command = Command::new("sh");
    command.args(["-c", "exec 7<\"$1\"; exec sleep 1000000", "sh"]).arg(file);
    let holder = Running::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()));
    let link = format!("/proc/{}/fd/7", holder.pid());
    wait_until("the holder opens its file", || {
        let opened = std::fs::read_link(&link).is_ok_and(|target| target == file);
        (opened && comm(holder.pid()).as_deref() == Some("sleep")).then_some(())
    });
    holder
}

/// So many processes with so many descriptors each. They end with the one that is returned, and hold nothing.
///
/// # Panics
/// If they cannot be started.
#[must_use]
pub fn crowd(processes: u32, descriptors: u32) -> Running {
    // Forked without another program, which takes long on an emulated processor.
    let script = "exec 3<&0; fd=4; while [ $fd -lt $2 ]; do eval \"exec $fd</dev/null\"; fd=$((fd + 1)); done\n\
                  count=0; while [ $count -lt $1 ]; do read line <&3 & count=$((count + 1)); done\n\
                  echo all; read line <&3";
    let mut command = Command::new("busybox");
    command.args(["sh", "-c", script, "sh"]).args([processes.to_string(), (descriptors + 4).to_string()]);
    let mut crowd = Running::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut line = String::new();
    let output = crowd.child().stdout.take().expect("a pipe");
    BufReader::new(output).read_line(&mut line).expect("it tells when all are there");
    assert_eq!(line, "all\n");
    crowd
}

/// Burns one CPU and changes nothing.
#[must_use]
pub fn busy_loop() -> Running {
    let mut command = Command::new("sh");
    command.arg0("kevtmon-busy-loop").args(["-c", "while :; do :; done"]);
    Running::spawn(command.stdin(Stdio::null()))
}

/// Queries the kernel for neighbors of the network namespace at `netns`, again and again.
#[must_use]
pub fn poll_neighbors(netns: &Path) -> Running {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", netns.display()));
    command.args(["sh", "-c", "while :; do ip neigh show >/dev/null; done"]).stdin(Stdio::null());
    // A group of its own, so that the `ip` that runs when the loop is killed is the only one left.
    Running::spawn(command.process_group(0))
}

/// The command name of a process that lives.
#[must_use]
pub fn comm(pid: u32) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|text| text.trim_end().to_owned())
}

/// The first process of a pid namespace, which handles no signal: a shell that runs this script and becomes `sleep`. It ends
/// with the process that is returned; its id is the other value.
#[must_use]
pub fn first_of_pid_namespace(script: &str, argument: &Path) -> (Running, u32) {
    let mut command = Command::new("unshare");
    let script = format!("{script} exec sleep 1000000");
    command.args(["--pid", "--fork", "--kill-child", "sh", "-c", &script, "sh"]).arg(argument);
    let parent = Running::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()));
    let children = format!("/proc/{0}/task/{0}/children", parent.pid());
    let first = wait_until("the first process of the namespace sleeps", || {
        let first: u32 = std::fs::read_to_string(&children).ok()?.trim().parse().ok()?;
        (comm(first).as_deref() == Some("sleep")).then_some(first)
    });
    (parent, first)
}

/// A process with a mount namespace of its own, in which nothing that happens elsewhere has any effect.
#[must_use]
pub fn apart() -> Running {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sleep", "1000000"]);
    let process = Running::spawn(command.stdin(Stdio::null()));
    crate::eventually!(comm(process.pid()).as_deref() == Some("sleep"), "it is in its namespace");
    process
}
