//! The journal of systemd as a sink: events enter, entries with fields leave, by the native protocol.
//!
//! An entry is one datagram, or a sealed file in memory where it is larger than a datagram may be. That the journal is
//! restarted costs nothing: its socket is connected again. One that takes nothing for a while is down.

use std::env;
use std::fs::File;
use std::io::{self, IoSlice, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kevtmon_event::{Severity, SharedEvent};
use kevtmon_types::error_chain::chain;
use kevtmon_types::names::names;
use kevtmon_types::settings::{Valid, settings};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
use nix::sys::stat::fstat;
use thiserror::Error;

use super::{Backoff, Context, Destination, Disconnected, EventQueue, Reconnecting, Started};

mod catalog;
mod entry;

names! {
    /// Whether events go to the journal.
    Enabled {
        /// If the logs of the daemon do.
        Auto = "auto",
        /// Always.
        Yes = "yes",
        /// Never.
        No = "no",
    }
}

settings! { "journald":
    /// Whether events go to the journal of systemd, with fields to filter by: auto (if standard error is the journal, as in a
    /// service), yes or no.
    ENABLED: Enabled = "enabled", default Enabled::Auto, valid Valid::OneOf(Enabled::NAMES);
    /// Minimum severity in the journal; events of the daemon itself and of incidents are always written.
    MIN_SEVERITY: Severity = "min_severity", default Severity::Notice, valid Valid::OneOf(Severity::NAMES);
    /// Socket of the journal.
    SOCKET: PathBuf = "socket", default "/run/systemd/journal/socket".into();
}

/// In metric labels, and among the sources of `daemon.*` events.
const NAME: &str = "journald";
/// How long the journal may take for one entry.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between attempts to connect.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(30) };

/// Starts the sink; `None` if events do not go to the journal.
pub(super) fn start(context: &Context<'_>) -> io::Result<Option<Started>> {
    let is_wanted = match context.settings.get(&ENABLED) {
        Enabled::Yes => true,
        Enabled::No => false,
        Enabled::Auto => env::var("JOURNAL_STREAM").is_ok_and(|stream| is_stderr(&stream)),
    };
    if !is_wanted {
        return Ok(None);
    }
    let mut journal = Journal::new(context.settings.get(&SOCKET));
    let failure = journal.connect().err().map(|error| chain(&error));
    let metrics = Arc::clone(context.metrics);
    let sink = Reconnecting::new(journal, BACKOFF, Arc::clone(&metrics), context.core.clone());
    let (sink, status) = sink.started(failure);
    let liveness = sink.liveness();
    let queue = EventQueue::start(NAME, context.settings.get(&MIN_SEVERITY), metrics, sink)?;
    Ok(Some(Started { source: Some(NAME), liveness: Some(liveness), status: Some(status), ..queue.into() }))
}

/// Whether `JOURNAL_STREAM` (systemd.exec(5)) tells device and inode of standard error.
fn is_stderr(stream: &str) -> bool {
    let is_same = || {
        let (device, inode) = stream.split_once(':')?;
        let (device, inode): (u64, u64) = (device.parse().ok()?, inode.parse().ok()?);
        let stderr = fstat(io::stderr()).ok()?;
        Some((stderr.st_dev, stderr.st_ino) == (device, inode))
    };
    is_same() == Some(true)
}

/// Why the journal takes no entry.
#[derive(Debug, Error)]
enum JournalError {
    #[error("cannot connect to {}", path.display())]
    Connect { path: PathBuf, source: io::Error },
    #[error("the journal takes no entry")]
    Send(#[source] io::Error),
    #[error("cannot make a file in memory for a large entry")]
    Large(#[source] io::Error),
}

struct Journal {
    path: PathBuf,
    socket: Option<UnixDatagram>,
    entry: Vec<u8>,
}

impl Journal {
    const fn new(path: PathBuf) -> Self {
        Self { path, socket: None, entry: Vec::new() }
    }

    fn send(&self) -> Result<(), JournalError> {
        let Some(socket) = &self.socket else {
            return Err(JournalError::Send(io::ErrorKind::NotConnected.into()));
        };
        match socket.send(&self.entry) {
            Ok(_) => Ok(()),
            // Larger than a datagram may be, or than the buffer of the socket.
            Err(error) if [Some(libc::EMSGSIZE), Some(libc::ENOBUFS)].contains(&error.raw_os_error()) => {
                let file = sealed(&self.entry).map_err(JournalError::Large)?;
                send_file(socket, &file).map_err(JournalError::Send)
            }
            Err(error) => Err(JournalError::Send(error)),
        }
    }
}

/// A file in memory that nobody can change any more: the journal takes no other.
fn sealed(entry: &[u8]) -> io::Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let mut file = File::from(memfd_create("kevtmon-journal-entry", flags)?);
    file.write_all(entry)?;
    let seals =
        SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file.into())
}

fn send_file(socket: &UnixDatagram, file: &OwnedFd) -> io::Result<()> {
    let descriptors = [file.as_raw_fd()];
    let message = [ControlMessage::ScmRights(&descriptors)];
    let nothing = [IoSlice::new(&[])];
    loop {
        match sendmsg::<UnixAddr>(socket.as_raw_fd(), &nothing, &message, MsgFlags::empty(), None) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Whether whoever listened is gone, so that another one may listen by now.
fn is_gone(error: &JournalError) -> bool {
    let JournalError::Send(error) = error else { return false };
    let gone = [libc::ECONNREFUSED, libc::ECONNRESET, libc::ENOTCONN, libc::EPIPE];
    error.raw_os_error().is_some_and(|errno| gone.contains(&errno))
}

impl Destination for Journal {
    type Error = JournalError;

    const NAME: &str = NAME;
    const TITLE: &str = "journal";

    fn connect(&mut self) -> Result<(), JournalError> {
        let connected = || {
            let socket = UnixDatagram::unbound()?;
            socket.connect(&self.path)?;
            socket.set_write_timeout(Some(PATIENCE))?;
            Ok(socket)
        };
        let failed = |source| JournalError::Connect { path: self.path.clone(), source };
        self.socket = Some(connected().map_err(failed)?);
        Ok(())
    }

    fn write(&mut self, event: &Arc<SharedEvent>) -> Result<(), JournalError> {
        self.entry.clear();
        entry::write(event, &mut self.entry);
        match self.send() {
            Err(error) if is_gone(&error) => {
                self.connect()?;
                self.send()
            }
            sent => sent,
        }
    }

    fn disconnect(&mut self, error: &JournalError) -> Disconnected {
        self.socket = None;
        // An entry for which there was no memory is lost alone.
        let retry_now = matches!(error, JournalError::Large(_));
        Disconnected { undelivered: 1, retry_now, must_report: retry_now }
    }
}

#[cfg(test)]
mod tests;
