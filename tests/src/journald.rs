//! A journald of a test's own, in a mount namespace where its `/run` is a directory of the test. Who writes to it, it knows as
//! ever: by the control group of the process, which is one of a unit.

use std::fs;
use std::io::IoSlice;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::socket::{ControlMessage, MsgFlags, UnixCredentials, sendmsg};

use crate::cgroup::{Cgroup, Hierarchy};
use crate::eventually;
use crate::mount::Scratch;
use crate::process::{Running, comm, idle, write_script};

const PROGRAM: &str = "/lib/systemd/systemd-journald";
const READER: &str = "/usr/bin/journalctl";
/// It is to take nothing from the kernel, and to leave nothing out.
const CONFIG: &str = "[Journal]\nStorage=volatile\nAudit=no\nReadKMsg=no\nRateLimitBurst=0\n";

/// The process.
#[derive(Debug)]
pub struct Journald {
    run: Scratch,
    _process: Running,
}

/// A process in a unit of its own.
#[derive(Debug)]
pub struct Unit {
    socket: PathBuf,
    process: Running,
    cgroup: Cgroup,
}

impl Journald {
    /// Starts one; says so where this machine has none.
    #[must_use]
    #[expect(clippy::print_stderr, reason = "the run says what was not tried")]
    pub fn start() -> Option<Self> {
        let has_all = [PROGRAM, READER, "/etc/machine-id", "/etc/systemd/journald.conf"]
            .iter()
            .all(|path| Path::new(path).exists());
        if !has_all || !Hierarchy::all().iter().any(|hierarchy| matches!(hierarchy, Hierarchy::V2)) {
            eprintln!(
                "not tried, for there is no systemd-journald or no unified hierarchy of control groups"
            );
            return None;
        }
        let run = Scratch::without_mounts();
        for directory in ["log/journal", "systemd/journal"] {
            fs::create_dir_all(run.path().join(directory)).expect("a directory can be made");
        }
        fs::write(run.path().join("journald.conf"), CONFIG).expect("a file can be written");
        // A slave: what others unmount goes there as well.
        let script =
            "mount --bind $0/journald.conf /etc/systemd/journald.conf && mount --bind $0 /run && exec $1";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "slave", "sh", "-c", script]).arg(run.path()).arg(PROGRAM);
        let process =
            Running::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()));
        let journald = Self { run, _process: process };
        let listens =
            || UnixDatagram::unbound().is_ok_and(|socket| socket.connect(journald.socket()).is_ok());
        eventually!(listens(), "journald listens");
        write_script(
            &journald.journalctl(),
            &format!(
                "#!/bin/sh\nexec {READER} --directory={}/log/journal \"$@\"\n",
                journald.run.path().display()
            ),
        );
        Some(journald)
    }

    fn socket(&self) -> PathBuf {
        self.run.path().join("systemd/journal/socket")
    }

    /// `journalctl`, of this journal.
    #[must_use]
    pub fn journalctl(&self) -> PathBuf {
        self.run.path().join("journalctl")
    }

    /// A new unit.
    #[must_use]
    pub fn unit(&self) -> Unit {
        let cgroup = Cgroup::of_service(Hierarchy::V2);
        let process = Running::spawn(&mut idle());
        cgroup.take(process.pid());
        Unit { socket: self.socket(), process, cgroup }
    }
}

impl Unit {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.cgroup.name()
    }

    /// Writes an entry as its process: root may name another one as the sender.
    pub fn write(&self, fields: &str) {
        let socket = UnixDatagram::unbound().expect("a socket can be made");
        socket.connect(&self.socket).expect("journald listens");
        let pid = self.process.pid().cast_signed();
        let sender = UnixCredentials::from(libc::ucred { pid, uid: 0, gid: 0 });
        let control = [ControlMessage::ScmCredentials(&sender)];
        let parts = [IoSlice::new(fields.as_bytes())];
        sendmsg::<()>(socket.as_raw_fd(), &parts, &control, MsgFlags::empty(), None).expect("journald reads");
    }
}

/// The children of a process that are `journalctl`.
#[must_use]
pub fn followers_of(pid: u32) -> Vec<u32> {
    let parent = |child: u32| {
        let stat = fs::read_to_string(format!("/proc/{child}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    let entries = fs::read_dir("/proc").expect("/proc can be read").flatten();
    let all = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    all.filter(|child| parent(*child) == Some(pid) && comm(*child).as_deref() == Some("journalctl")).collect()
}
