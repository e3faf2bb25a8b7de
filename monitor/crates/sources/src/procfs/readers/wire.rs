//! What a daemon and a reader say to each other: frames of JSON, with a descriptor where one was opened.

use std::borrow::Cow;
use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixStream as Blocking;

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;

use crate::procfs::Proc;

/// Nothing that is read is longer.
const MAX_FRAME: u32 = 256 << 20;
/// Marks the length of a frame that is a note: more follows.
const NOTE: u32 = 1 << 31;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Request<'a> {
    #[serde(borrow)]
    pub(super) job: Cow<'a, str>,
    pub(super) proc: Proc,
    #[serde(borrow)]
    pub(super) with: Cow<'a, RawValue>,
}

fn header(body: &[u8]) -> io::Result<[u8; 4]> {
    let len = u32::try_from(body.len()).ok().filter(|len| *len <= MAX_FRAME);
    Ok(len.ok_or(io::ErrorKind::FileTooLarge)?.to_ne_bytes())
}

fn length(header: [u8; 4]) -> io::Result<usize> {
    let len = Some(u32::from_ne_bytes(header)).filter(|len| *len <= MAX_FRAME);
    usize::try_from(len.ok_or(io::ErrorKind::InvalidData)?).map_err(io::Error::other)
}

pub(super) async fn write(stream: &mut UnixStream, body: &[u8]) -> io::Result<()> {
    stream.write_all(&[&header(body)?[..], body].concat()).await
}

#[derive(Debug)]
pub(super) enum Said {
    /// An answer, and what was opened for it.
    Answer(Vec<u8>, Option<OwnedFd>),
    /// How far it came.
    Note(Vec<u8>),
}

/// The daemon's side: reads a frame. Not cancel-safe.
pub(super) async fn read(stream: &mut UnixStream) -> io::Result<Said> {
    let fd = stream.as_raw_fd();
    let mut first = [0; 4];
    let (read, opened) = stream.async_io(Interest::READABLE, || receive(fd, &mut first)).await?;
    if read == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    stream.read_exact(&mut first[read..]).await?;
    let marked = u32::from_ne_bytes(first);
    let mut body = vec![0; length((marked & !NOTE).to_ne_bytes())?];
    stream.read_exact(&mut body).await?;
    Ok(if marked & NOTE == 0 { Said::Answer(body, opened) } else { Said::Note(body) })
}

/// The start of a frame, and the descriptor that came with it.
fn receive(socket: RawFd, buffer: &mut [u8; 4]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = nix::cmsg_space!(RawFd);
    let mut slices = [IoSliceMut::new(buffer)];
    let message = recvmsg::<()>(socket, &mut slices, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let mut opened = None;
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = control {
            for fd in fds {
                // SAFETY: the kernel has just made this descriptor for us; nothing else uses it.
                opened = Some(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
    }
    Ok((message.bytes, opened))
}

/// The reader's side: reads a frame; `None` once the daemon has closed the socket.
pub(super) fn next(stream: &mut impl io::Read, body: &mut Vec<u8>) -> io::Result<Option<()>> {
    let mut first = [0; 4];
    match stream.read_exact(&mut first) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    body.resize(length(first)?, 0);
    stream.read_exact(body)?;
    Ok(Some(()))
}

/// The reader's side: writes a frame.
pub(super) fn answer(stream: &mut &Blocking, body: &[u8], opened: Option<OwnedFd>) -> io::Result<()> {
    let first = header(body)?;
    let fds: Vec<RawFd> = opened.iter().map(|fd| fd.as_fd().as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    let rights = if fds.is_empty() { &[] } else { &rights[..] };
    let sent = sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(&first)], rights, MsgFlags::empty(), None)?;
    stream.write_all(&first[sent..])?;
    stream.write_all(body)
}

/// The reader's side: writes how far it came.
pub(super) fn note(stream: &mut impl io::Write, body: &[u8]) -> io::Result<()> {
    let len = u32::from_ne_bytes(header(body)?) | NOTE;
    stream.write_all(&len.to_ne_bytes())?;
    stream.write_all(body)
}
