//! Descriptors of processes: a process by more than its number, without a read of /proc, which could hang.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::kill;
use nix::unistd::Pid;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::sleep;

/// How often, and how long apart, the kernel is asked how a process has ended: a parent may be slow on a busy machine.
const STATUS_LOOKS: usize = 100;
const STATUS_PAUSE: Duration = Duration::from_millis(20);

/// `PIDFD_THREAD` of include/uapi/linux/pidfd.h.
const PIDFD_THREAD: libc::c_uint = 0x80;

/// A process. It pins no more than the number.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// The process that has this number now.
    /// Errors: as pidfd_open(2): `ESRCH` where there is none, `ENOSYS` before 5.3.
    pub fn open(tgid: u32) -> io::Result<Self> {
        Self::opened(tgid, 0)
    }

    /// The thread that has this number now.
    /// Errors: as [`Self::open`]; `EINVAL` before 6.9.
    pub fn open_thread(tid: u32) -> io::Result<Self> {
        Self::opened(tid, PIDFD_THREAD)
    }

    fn opened(id: u32, flags: libc::c_uint) -> io::Result<Self> {
        let pid = libc::pid_t::try_from(id).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
        // SAFETY: takes two integers, and returns a new descriptor (close-on-exec) or -1.
        Ok(Self(unsafe { owned(libc::syscall(libc::SYS_pidfd_open, pid, flags)) }?))
    }

    /// A copy of one of its descriptors. What that is stays open until the copy is closed.
    /// Errors: as pidfd_getfd(2): `EBADF` where it has none of this number, `ENOSYS` before 5.6.
    pub fn copy_of(&self, fd: u32) -> io::Result<OwnedFd> {
        // SAFETY: takes three integers, and returns a new descriptor (close-on-exec) or -1.
        unsafe { owned(libc::syscall(libc::SYS_pidfd_getfd, self.0.as_raw_fd(), fd, 0)) }
    }

    /// Whether the process has ended; a zombie has.
    pub fn has_ended(&self) -> bool {
        let mut polled = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        poll(&mut polled, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }
}

/// The descriptor that a system call has made for the caller, or its error.
///
/// # Safety
/// Nothing else uses the descriptor.
pub(crate) unsafe fn owned(fd: impl TryInto<RawFd>) -> io::Result<OwnedFd> {
    let fd = fd.try_into().ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: as the caller says.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Waits until the process has ended, and tells its wait status where the kernel does (since 6.15).
pub async fn ended(process: PidFd) -> io::Result<Option<i32>> {
    // SAFETY: an OwnedFd keeps its descriptor open and the same until it is dropped.
    let process = unsafe { AsyncFd::register_with_interest(process.0, Interest::READABLE) }?;
    drop(process.readable().await?);
    // The kernel tells it once the parent has read it.
    for _ in 0..STATUS_LOOKS {
        match wait_status(process.get_ref()) {
            Ok(Some(status)) => return Ok(Some(status)),
            // A kernel that never tells.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) => {
                return Ok(None);
            }
            Ok(None) | Err(_) => sleep(STATUS_PAUSE).await,
        }
    }
    Ok(None)
}

/// The first version of `struct pidfd_info` (include/uapi/linux/pidfd.h).
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroupid: u64,
    ids: [u32; 11],
    exit_code: i32,
}

const _: () = assert!(size_of::<PidfdInfo>() == 64);

/// `PIDFD_GET_INFO`: `_IOWR(0xFF, 11, struct pidfd_info)`.
const PIDFD_GET_INFO: libc::c_ulong = (3 << 30) | (64 << 16) | (0xFF << 8) | 11;
/// `PIDFD_INFO_EXIT`.
const INFO_EXIT: u64 = 1 << 3;

fn wait_status(process: &OwnedFd) -> io::Result<Option<i32>> {
    let mut info = PidfdInfo { mask: INFO_EXIT, ..PidfdInfo::default() };
    // SAFETY: the kernel reads and writes one structure of the size that the request has.
    Errno::result(unsafe { libc::ioctl(process.as_raw_fd(), PIDFD_GET_INFO as _, &raw mut info) })?;
    Ok((info.mask & INFO_EXIT != 0).then_some(info.exit_code))
}

/// Whether a process with this number runs; a zombie does not, except before 5.3.
pub fn is_running(tgid: u32) -> bool {
    match PidFd::open(tgid) {
        Ok(process) => !process.has_ended(),
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
            i32::try_from(tgid).is_ok_and(|pid| kill(Pid::from_raw(pid), None).is_ok())
        }
        // What cannot be looked at has not ended; by a number that is none of a process, or that of a thread, one has.
        Err(error) => !matches!(error.raw_os_error(), Some(libc::ESRCH | libc::EINVAL | libc::ENOENT)),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_runs_until_it_ends_though_nobody_waited_for_it() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let process = PidFd::open(child.id()).unwrap();
        assert!(is_running(child.id()) && !process.has_ended());
        child.kill().unwrap();
        let mut polled = [PollFd::new(process.0.as_fd(), PollFlags::POLLIN)];
        poll(&mut polled, PollTimeout::from(10_000_u16)).unwrap();
        assert!(process.has_ended() && !is_running(child.id()), "it is a zombie");
        child.wait().unwrap();
        assert!(!is_running(child.id()) && !is_running(u32::MAX));
        let thread =
            std::thread::spawn(|| is_running(u32::try_from(nix::unistd::gettid().as_raw()).unwrap()));
        assert!(!thread.join().unwrap(), "it is a number of no process");
    }
}
