//! The reader: a loop that does one job after the other until its socket is closed.

use std::cell::Cell;
use std::ffi::{CString, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::{set_name, set_pdeathsig};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;
use serde::Serialize;
use serde_json::value::RawValue;

use super::{Job, Opened, wire};
use crate::procfs::Proc;
use crate::procfs::cgroups::enter_initial;

/// The name by which a reader is executed.
pub(super) const PROGRAM: &str = "kevtmon";
/// The argument with which this program is a reader. No command: nobody but the daemon starts one.
pub(super) const ARGUMENT: &str = "proc_reader";

/// What is shown in place of a process while none is read.
const READY: &str = "reader";
/// Precedes the id of the process that is read.
const READING: &str = "read ";

/// Bytes of its own that a reader may have. What a scan keeps of the mount tables of other namespaces is at most a quarter of it.
const MEMORY: libc::rlim_t = 192 << 20;

/// Added to the nice value of a reader for jobs that can wait.
const NICE: libc::c_int = 10;
/// The second argument of such a reader.
pub(super) const BACKGROUND: &str = "proc_reader_in_background";

/// One job follows another within this time, in milliseconds, or not soon.
const FOLLOWS: u16 = 1000;

/// Added to the score by which the kernel chooses whom to end where memory is short (proc_pid_oom_score_adj(5)).
const ABOVE_DAEMON: i32 = 300;

/// The name of this process, once it is a reader.
static NAME: OnceLock<Option<File>> = OnceLock::new();
static CURRENT: AtomicU32 = AtomicU32::new(0);
/// Where this process, once it is a reader, answers.
static SOCKET: OnceLock<UnixStream> = OnceLock::new();

thread_local! {
    /// Whether this thread shows by its own name what it reads.
    static HAS_NAME: Cell<bool> = const { Cell::new(false) };
}

type Body = serde_json::Result<Opened<Vec<u8>>>;

/// A job by its name.
pub type Entry = (&'static str, fn(&RawValue, &Proc) -> Body);

/// How a job is entered in the list of those that a reader knows.
pub const fn entry<J: Job>() -> Entry {
    (J::NAME, run::<J>)
}

fn run<J: Job>(with: &RawValue, proc: &Proc) -> Body {
    let (reply, opened) = serde_json::from_str::<J>(with.get())?.run_and_open(proc);
    Ok((serde_json::to_vec(&reply)?, opened))
}

/// Serves as a reader if these are its arguments, the program's name first: [`serve`]. A program of unit tests is its own reader, by a
/// test that has the name of [`ARGUMENT`], which selects it.
pub fn serve_if_asked(
    mut arguments: impl Iterator<Item = OsString>,
    jobs: &[Entry],
) -> Option<io::Result<()>> {
    if arguments.next()? != PROGRAM || arguments.next()? != ARGUMENT {
        return None;
    }
    Some(serve(jobs, arguments.next().is_some_and(|next| next == BACKGROUND)))
}

/// Does jobs that come by standard input, until that is closed. `background`: the workloads of the node take precedence.
/// Errors: when standard input is no socket, or what comes is no request.
fn serve(jobs: &[Entry], background: bool) -> io::Result<()> {
    // What the daemon itself inherited.
    // SAFETY: takes three integers; nothing in this process owns such a descriptor yet.
    // Before 5.9 it is refused, and they stay.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    // Where the daemon stands may be on a mount that somebody unmounts.
    std::env::set_current_dir("/")?;
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    // A reader that hangs must not outlive the daemon.
    set_pdeathsig(Signal::SIGKILL)?;
    if background {
        // SAFETY: takes three integers; 0 is this process. If it is refused, the priority stays normal.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
    }
    offer_first();
    // Whatever a text of another process makes a job keep, this process ends before the node lacks the memory; the daemon starts
    // another one. If it is refused, there is no limit.
    let _ = setrlimit(Resource::RLIMIT_DATA, MEMORY, MEMORY);
    enter_initial();
    // Without it nobody can say what hung.
    NAME.get_or_init(|| OpenOptions::new().write(true).open("/proc/self/comm").ok());
    show(READY);
    SOCKET.get_or_init(|| socket);
    let mut socket = SOCKET.get().ok_or(io::ErrorKind::NotConnected)?;
    wire::answer(&mut socket, b"", None)?;
    let mut body = Vec::new();
    loop {
        rest(socket);
        if wire::next(&mut socket, &mut body)?.is_none() {
            return Ok(());
        }
        let request: wire::Request<'_> = serde_json::from_slice(&body)?;
        let job = jobs.iter().find(|(name, _)| *name == request.job).ok_or(io::ErrorKind::InvalidInput)?;
        let (reply, opened) = job.1(&request.with, &request.proc)?;
        reading_none();
        wire::answer(&mut socket, &reply, opened)?;
        // A scan may have needed much memory.
        body = Vec::new();
    }
}

/// Gives back what the last job needed, if no other one follows.
fn rest(socket: &UnixStream) {
    let mut asked = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    if poll(&mut asked, PollTimeout::from(FOLLOWS)) == Ok(0) {
        kevtmon_types::allocator::release_free_memory();
    }
}

/// Where memory is short, the kernel is to end a reader rather than the daemon, which starts another one.
fn offer_first() {
    const SCORE: &str = "/proc/self/oom_score_adj";
    let own = std::fs::read_to_string(SCORE).ok().and_then(|text| text.trim().parse::<i32>().ok());
    if let Some(own) = own {
        // If it is refused, the kernel has the choice.
        let _ = std::fs::write(SCORE, own.saturating_add(ABOVE_DAEMON).min(1000).to_string());
    }
}

fn show(text: &str) {
    if let Some(Some(name)) = NAME.get() {
        // If it cannot be shown, a hang has no name.
        let _ = (&*name).write(text.as_bytes());
    }
}

/// Tells the daemon, if this process is a reader, how far the job came: [`Job::go_on`].
pub fn note(progress: &impl Serialize) {
    if let (Some(mut socket), Ok(progress)) = (SOCKET.get(), serde_json::to_vec(progress)) {
        // Without it the job begins again; if the daemon is gone, this process ends with it.
        let _ = wire::note(&mut socket, &progress);
    }
}

fn is_reader() -> bool {
    NAME.get().is_some()
}

/// The process for which this reader reads; `None` in any other process.
pub fn asker() -> Option<u32> {
    is_reader().then(std::os::unix::process::parent_id)
}

/// Shows in the name of this process, if it is a reader, which process it begins to read.
pub fn reading(tgid: u32) {
    if is_reader() && !HAS_NAME.get() && CURRENT.swap(tgid, Ordering::Relaxed) != tgid {
        show(&format!("{READING}{tgid}"));
    }
}

/// What follows concerns no process, until the next one is read: if it hangs, none is to blame.
pub fn reading_none() {
    if CURRENT.swap(0, Ordering::Relaxed) != 0 {
        show(READY);
    }
}

/// Shows in the name of this thread which process it begins to read. From then on it does not change that of the reader.
pub(super) fn show_in_thread(tgid: u32) {
    HAS_NAME.set(true);
    if let Ok(name) = CString::new(format!("{READING}{tgid}")) {
        // As above.
        let _ = set_name(&name);
    }
}

/// The process that a reader with this name is reading.
pub(super) fn read_by(comm: &str) -> Option<u32> {
    comm.trim().strip_prefix(READING)?.parse().ok()
}
