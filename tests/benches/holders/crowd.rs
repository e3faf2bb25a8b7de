//! Processes in large numbers that hold nothing of the mount: this program again, which forks itself in a process namespace of
//! its own, so that nothing survives it.

use std::env;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};

use kevtmon_tests::mount::Scratch;
use kevtmon_tests::process::Running;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{ForkResult, fork, pause, pipe};

/// What each process has open: files, pipes and sockets as services have them.
const DESCRIPTORS: i32 = 50;
const PIPES: usize = 3;
const SOCKETS: usize = 4;

/// The processes, until this is dropped.
pub(crate) struct Crowd {
    root: Option<Running>,
    output: File,
    _files: Scratch,
}

impl Crowd {
    /// Starts so many processes, spread over so many mount namespaces: one is that of this process, the others are made. Nothing
    /// that is mounted later is seen in those.
    pub(crate) fn start(processes: usize, namespaces: usize) -> Self {
        let files = Scratch::new();
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child=KILL"]);
        command.arg(env::current_exe().expect("a program has a path")).arg("crowd").arg(files.path());
        command.args([processes, namespaces].map(|number| number.to_string()));
        let mut root = Running::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()));
        let mut output = File::from(OwnedFd::from(root.child().stdout.take().expect("a pipe")));
        output.read_exact(&mut vec![0; processes]).expect("each has its descriptors");
        Self { root: Some(root), output, _files: files }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        drop(self.root.take());
        // Each of them has the other end open.
        let _ = self.output.read_to_end(&mut Vec::new());
    }
}

/// Is such processes, until it is killed.
pub(crate) fn be(arguments: &[String]) -> io::Result<()> {
    let [files, processes, namespaces] = arguments else { return Err(io::ErrorKind::InvalidInput.into()) };
    let number = |text: &str| text.parse::<usize>().map_err(io::Error::other);
    let (processes, namespaces) = (number(processes)?, number(namespaces)?);
    let files = Path::new(files);
    for namespace in 0..namespaces {
        let members = (processes * (namespace + 1) / namespaces) - (processes * namespace / namespaces);
        // SAFETY: this process has one thread.
        if let ForkResult::Child = unsafe { fork() }? {
            return be_namespace(files, namespace > 0, members);
        }
    }
    loop {
        pause();
    }
}

fn be_namespace(files: &Path, is_own: bool, members: usize) -> io::Result<()> {
    if is_own {
        unshare(CloneFlags::CLONE_NEWNS)?;
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&str>, "/", None::<&str>, private, None::<&str>)?;
    }
    for _ in 1..members {
        // SAFETY: as above.
        if let ForkResult::Child = unsafe { fork() }? {
            break;
        }
    }
    open_descriptors(files)?;
    io::stdout().write_all(b".")?;
    io::stdout().flush()?;
    loop {
        pause();
    }
}

/// Opens what each of them has for itself.
fn open_descriptors(files: &Path) -> io::Result<()> {
    let mut kept = Vec::new();
    for _ in 0..PIPES {
        kept.extend(<[OwnedFd; 2]>::from(pipe()?));
    }
    for _ in 0..SOCKETS / 2 {
        let (one, other) = UnixDatagram::pair()?;
        kept.extend([OwnedFd::from(one), OwnedFd::from(other)]);
    }
    loop {
        let name = format!("file{}", kept.len());
        let file =
            File::options().read(true).write(true).create(true).truncate(false).open(files.join(name))?;
        let file = OwnedFd::from(file);
        let is_last = file.as_fd().as_raw_fd() == DESCRIPTORS - 1;
        kept.push(file);
        if is_last {
            break;
        }
    }
    // For as long as the process lives.
    kept.into_iter().for_each(std::mem::forget);
    Ok(())
}
