//! A disk that stops answering: a FUSE file system that keeps its files in memory and is served by a thread, until a test
//! has it stop, and goes on.
//!
//! While it is stopped, no request is taken from the kernel: whoever waits for one can be killed. When it is dropped, or
//! this process ends, the kernel ends the file system, and all who wait.
//!
//! The messages are those of include/uapi/linux/fuse.h, in the order of bytes of this machine.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::fuse::{HEADER, REQUEST_MAX, mounted};
use crate::lock::Shared;

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const SETATTR: u32 = 4;
const MKDIR: u32 = 9;
const UNLINK: u32 = 10;
const RMDIR: u32 = 11;
const RENAME: u32 = 12;
const LINK: u32 = 13;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const FSYNC: u32 = 20;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const READDIR: u32 = 28;
const RELEASEDIR: u32 = 29;
const FSYNCDIR: u32 = 30;
const CREATE: u32 = 35;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;
const RENAME2: u32 = 45;

/// `FATTR_SIZE`.
const SIZE: u32 = 1 << 3;
/// `FOPEN_KEEP_CACHE`, and `FOPEN_NOFLUSH`: else a process that ends would wait for a disk that does not answer, and
/// could not be killed any more.
const OPEN_FLAGS: u64 = 1 << 1 | 1 << 5;
const WRITE_MAX: u64 = 64 * 1024;
const ROOT: u64 = 1;
const BLOCK: u64 = 4096;

/// The disk; it answers again, or nobody any more, once this is dropped.
#[derive(Debug)]
pub struct Disk {
    control: UnixStream,
    /// What a flood of another test would add to the queue of who waits for it would be discarded.
    _shared: Shared,
}

impl Disk {
    /// Mounts one in a new directory.
    #[must_use]
    pub fn mount(point: &Path) -> Self {
        let shared = Shared::take();
        let device = mounted(point);
        let (control, told) = UnixStream::pair().expect("a pair of sockets");
        std::thread::spawn(move || Server::default().serve(device, told));
        Self { control, _shared: shared }
    }

    /// From now on nothing is answered.
    pub fn stop(&mut self) {
        self.tell(b's');
    }

    /// What waits is answered, and all that comes.
    pub fn resume(&mut self) {
        self.tell(b'r');
    }

    fn tell(&mut self, what: u8) {
        self.control.write_all(&[what]).expect("the disk is served");
        self.control.read_exact(&mut [0]).expect("the disk is served");
    }
}

#[derive(Debug)]
enum Node {
    File(Vec<u8>),
    Directory(BTreeMap<OsString, u64>),
}

#[derive(Debug)]
struct Server {
    nodes: BTreeMap<u64, Node>,
    next: u64,
}

impl Default for Server {
    fn default() -> Self {
        Self { nodes: BTreeMap::from([(ROOT, Node::Directory(BTreeMap::new()))]), next: ROOT + 1 }
    }
}

type Answer = Result<Vec<u8>, Errno>;

impl Server {
    fn serve(mut self, mut device: File, mut told: UnixStream) {
        let mut request = vec![0; REQUEST_MAX];
        let mut is_stopped = false;
        loop {
            let mut ready = [told.as_fd(), device.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            let watched = if is_stopped { &mut ready[..1] } else { &mut ready[..] };
            if poll(watched, PollTimeout::NONE).is_err() {
                continue;
            }
            if ready[0].any() == Some(true) {
                let mut word = [0];
                if told.read_exact(&mut word).is_err() || told.write_all(b"!").is_err() {
                    return;
                }
                is_stopped = word == *b"s";
                continue;
            }
            let Ok(length) = device.read(&mut request) else { return };
            if length < HEADER {
                return;
            }
            if let Some(answer) = self.answer(&request[..length]) {
                let (error, body) = match answer {
                    Ok(body) => (0, body),
                    Err(errno) => (-(errno as i32), Vec::new()),
                };
                let length = u32::try_from(16 + body.len()).unwrap_or_default();
                let header = [&length.to_ne_bytes()[..], &error.to_ne_bytes(), &request[8..16]].concat();
                // Whoever asked may have been killed meanwhile.
                drop(device.write(&[header, body].concat()));
            }
        }
    }

    /// `None` where nobody awaits an answer.
    fn answer(&mut self, request: &[u8]) -> Option<Answer> {
        let (opcode, node) = (word(request, 4), long(request, 16));
        let body = &request[HEADER..];
        Some(match opcode {
            FORGET | BATCH_FORGET | INTERRUPT => return None,
            INIT => Ok(words(&[7, 31, 0, 0, 0, WRITE_MAX, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
            LOOKUP => self.child(node, name(body)).map(|child| self.entry(child)),
            GETATTR => Ok(self.attributes(node)),
            SETATTR => self.set_size(node, body),
            MKDIR => self.make(node, name(&body[8..]), Node::Directory(BTreeMap::new())),
            CREATE => self.make(node, name(&body[16..]), Node::File(Vec::new())).map(|entry| {
                let opened = longs(&[0, OPEN_FLAGS]);
                [entry, opened].concat()
            }),
            UNLINK | RMDIR => self.remove(node, name(body)),
            RENAME => self.rename(node, body, 8),
            RENAME2 => self.rename(node, body, 16),
            LINK => self.link(node, long(body, 0), name(&body[8..])),
            OPEN | OPENDIR => Ok(longs(&[0, OPEN_FLAGS])),
            READ => self.read(node, body),
            READDIR => self.list(node, body),
            WRITE => self.write(node, body),
            STATFS => {
                Ok([longs(&[1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20]), words(&[BLOCK, 255, BLOCK, 0])]
                    .concat()
                    .into_iter()
                    .chain([0; 24])
                    .collect())
            }
            RELEASE | RELEASEDIR | FSYNC | FSYNCDIR => Ok(Vec::new()),
            _ => Err(Errno::ENOSYS),
        })
    }

    fn directory(&mut self, node: u64) -> Result<&mut BTreeMap<OsString, u64>, Errno> {
        match self.nodes.get_mut(&node) {
            Some(Node::Directory(names)) => Ok(names),
            Some(Node::File(_)) => Err(Errno::ENOTDIR),
            None => Err(Errno::ESTALE),
        }
    }

    fn file(&mut self, node: u64) -> Result<&mut Vec<u8>, Errno> {
        match self.nodes.get_mut(&node) {
            Some(Node::File(bytes)) => Ok(bytes),
            Some(Node::Directory(_)) => Err(Errno::EISDIR),
            None => Err(Errno::ESTALE),
        }
    }

    fn child(&mut self, node: u64, name: &OsStr) -> Result<u64, Errno> {
        self.directory(node)?.get(name).copied().ok_or(Errno::ENOENT)
    }

    fn make(&mut self, node: u64, name: &OsStr, new: Node) -> Answer {
        if self.child(node, name).is_ok() {
            return Err(Errno::EEXIST);
        }
        let number = self.next;
        self.directory(node)?.insert(name.to_owned(), number);
        self.nodes.insert(number, new);
        self.next += 1;
        Ok(self.entry(number))
    }

    /// What has no name any more stays: somebody may have it open.
    fn remove(&mut self, node: u64, name: &OsStr) -> Answer {
        let child = self.child(node, name)?;
        if matches!(self.nodes.get(&child), Some(Node::Directory(names)) if !names.is_empty()) {
            return Err(Errno::ENOTEMPTY);
        }
        self.directory(node)?.remove(name);
        Ok(Vec::new())
    }

    fn rename(&mut self, node: u64, body: &[u8], names: usize) -> Answer {
        let from = name(&body[names..]);
        let to = name(&body[names + from.len() + 1..]);
        let child = self.child(node, from)?;
        self.directory(long(body, 0))?.insert(to.to_owned(), child);
        if (long(body, 0), to) != (node, from) {
            self.directory(node)?.remove(from);
        }
        Ok(Vec::new())
    }

    fn link(&mut self, node: u64, to: u64, name: &OsStr) -> Answer {
        if self.child(node, name).is_ok() {
            return Err(Errno::EEXIST);
        }
        self.directory(node)?.insert(name.to_owned(), to);
        Ok(self.entry(to))
    }

    fn set_size(&mut self, node: u64, body: &[u8]) -> Answer {
        if word(body, 0) & SIZE != 0 {
            let size = usize::try_from(long(body, 16)).map_err(|_| Errno::EFBIG)?;
            self.file(node)?.resize(size, 0);
        }
        Ok(self.attributes(node))
    }

    fn read(&mut self, node: u64, body: &[u8]) -> Answer {
        let (offset, size) = place(body)?;
        let bytes = self.file(node)?;
        let begin = offset.min(bytes.len());
        Ok(bytes[begin..bytes.len().min(begin + size)].to_vec())
    }

    fn write(&mut self, node: u64, body: &[u8]) -> Answer {
        let (offset, size) = place(body)?;
        let written = body.get(40..40 + size).ok_or(Errno::EINVAL)?;
        let bytes = self.file(node)?;
        bytes.resize(bytes.len().max(offset + size), 0);
        bytes[offset..offset + size].copy_from_slice(written);
        Ok(words(&[size as u64, 0]))
    }

    fn list(&mut self, node: u64, body: &[u8]) -> Answer {
        let (offset, size) = place(body)?;
        let names: Vec<(OsString, u64)> =
            self.directory(node)?.iter().map(|(name, child)| (name.clone(), *child)).collect();
        let mut listed = Vec::new();
        for (index, (name, child)) in names.iter().enumerate().skip(offset) {
            let kind = u64::from(self.mode(*child) >> 12);
            let mut entry = longs(&[*child, index as u64 + 1]);
            entry.extend(words(&[name.len() as u64, kind]));
            entry.extend(name.as_bytes());
            entry.resize(entry.len().next_multiple_of(8), 0);
            if listed.len() + entry.len() > size {
                break;
            }
            listed.extend(entry);
        }
        Ok(listed)
    }

    fn mode(&self, node: u64) -> u32 {
        match self.nodes.get(&node) {
            Some(Node::File(_)) => 0o100_600,
            Some(Node::Directory(_)) | None => 0o040_700,
        }
    }

    /// `struct fuse_attr`, which is valid for no time.
    fn fuse_attr(&self, node: u64) -> Vec<u8> {
        let size = match self.nodes.get(&node) {
            Some(Node::File(bytes)) => bytes.len() as u64,
            Some(Node::Directory(_)) | None => 0,
        };
        let links = self.nodes.values().map(|other| match other {
            Node::Directory(names) => names.values().filter(|child| **child == node).count() as u64,
            Node::File(_) => 0,
        });
        let links = links.sum::<u64>().max(u64::from(node == ROOT));
        let numbers = longs(&[node, size, size.div_ceil(512), 0, 0, 0]);
        [numbers, words(&[0, 0, 0, self.mode(node).into(), links, 0, 0, 0, BLOCK, 0])].concat()
    }

    fn attributes(&self, node: u64) -> Vec<u8> {
        [longs(&[0, 0]), self.fuse_attr(node)].concat()
    }

    fn entry(&self, node: u64) -> Vec<u8> {
        [longs(&[node, 0, 0, 0, 0]), self.fuse_attr(node)].concat()
    }
}

/// Offset and size of `struct fuse_read_in` and `struct fuse_write_in`.
fn place(body: &[u8]) -> Result<(usize, usize), Errno> {
    let offset = usize::try_from(long(body, 8)).map_err(|_| Errno::EFBIG)?;
    Ok((offset, word(body, 16) as usize))
}

/// A name up to its NUL.
fn name(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes.split(|byte| *byte == 0).next().unwrap_or_default())
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

fn longs(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// As 32-bit numbers.
fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| u32::try_from(*value).unwrap_or(0).to_ne_bytes()).collect()
}
