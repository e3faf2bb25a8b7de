//! Sockets of a process that are bound to a file on a searched mount, which they keep in use until they are closed.
//!
//! The lists of the network namespaces select, and the socket itself decides. One that no list has may be of a namespace in
//! which no process is left, or newer than the list: it is asked, too.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use kevtmon_observation::{Access, MeantMount};
use kevtmon_sources::procfs::dir::{Dir, NumberName};
use kevtmon_sources::procfs::pidfd::PidFd;
use kevtmon_sources::procfs::readers::reading_none;
use kevtmon_sources::unix_sockets::{self, Binding, BoundFile};

use super::descriptors::{Files, Owner};
use super::{Pin, Visit, Visitor};

/// When so many are known no more are listed: each of the others is asked.
const SOCKETS_MAX: usize = 1 << 20;
/// Bytes of `/proc/PID/net/unix` that are read, which is some 200,000 sockets, and of one of its lines: a name is no longer than
/// 108 bytes.
const TABLE_MAX: u64 = 16 << 20;
const LINE_MAX: usize = 512;

/// The unix sockets that are known, of all network namespaces.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    /// Namespaces whose sockets were listed, by their links in /proc.
    listed: BTreeSet<String>,
    bindings: HashMap<u32, Binding>,
}

/// The inode number of a socket, out of the link of its descriptor.
pub(super) fn inode(link: &str) -> Option<u32> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Whether an error means that the socket is not there any more.
pub fn is_closed(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBADF | libc::ESRCH))
}

/// The file to which a socket is bound. `task`: the directory of the thread in /proc, `own`: that of this process, if /proc
/// shows the ids of our own pid namespace.
pub fn bound_file(
    own: Option<&Path>,
    (task, owner): (&Dir, Owner),
    fd: u32,
) -> io::Result<Option<BoundFile>> {
    let own = own.ok_or(io::ErrorKind::Unsupported)?;
    let process = match owner.tid == owner.tgid {
        true => PidFd::open(owner.tgid)?,
        false => PidFd::open_thread(owner.tid)?,
    };
    // If it is there now, no other one has had its number.
    if !task.is_there(&mut Vec::new()) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    unix_sockets::bound_file(own, &process, fd)
}

impl Visitor {
    pub(super) fn socket(&mut self, files: &mut Files<'_>, (fd, inode): (u32, u32), visit: &mut Visit) {
        if !files.is_netns_listed {
            files.is_netns_listed = true;
            self.list_sockets(files.task);
        }
        let is_listed = self.sockets.bindings.contains_key(&inode);
        if visit.has(Access::Socket) || !is_listed && !self.is_unix(files, fd) {
            return;
        }
        // Whether it may be bound to such a file, where it cannot be asked.
        let is_likely = match self.sockets.bindings.get(&inode) {
            Some(Binding::Nothing) => return,
            Some(Binding::Device(device)) if !files.targets.is_of(*device) => return,
            Some(Binding::Device(_)) => true,
            Some(Binding::Name(name)) => match name.bytes().next() {
                Some(b'/') => files.targets.selects(name),
                // Nearly always one that is no file.
                first => first != Some(b'@'),
            },
            None => true,
        };
        match bound_file(self.own.as_deref(), (files.task, files.owner), fd) {
            Ok(Some(file)) if files.targets.has(file.mount, Some(&file.path)) => {
                let (path, tid) = (Some(file.path), files.owner.apart());
                let mount = Some(MeantMount { id: file.mount, unique: None });
                visit.add(Pin { fd: Some(fd), tid, mount, ..Pin::of(Access::Socket, path) });
            }
            Err(error) if is_likely && !is_closed(&error) && !visit.doubts.contains(&Access::Socket) => {
                visit.doubts.push(Access::Socket);
            }
            Ok(_) | Err(_) => {}
        }
    }

    /// Whether it is a unix socket, as far as it tells.
    fn is_unix(&mut self, files: &Files<'_>, fd: u32) -> bool {
        let own = self.own.clone().unwrap_or_else(|| PathBuf::from("/proc/self"));
        let protocol = files.list.socket_protocol(&own, &NumberName::new(fd), &mut self.buffer);
        protocol.is_ok_and(|protocol| protocol.starts_with("UNIX"))
    }

    /// Lists the sockets in the network namespace of a thread, once.
    fn list_sockets(&mut self, task: &Dir) {
        let Ok(link) = task.link(c"ns/net", &mut self.buffer) else { return };
        if self.sockets.listed.contains(&*link) {
            return;
        }
        self.sockets.listed.insert(link.into_owned());
        let bindings = &mut self.sockets.bindings;
        if bindings.len() > SOCKETS_MAX {
            return;
        }
        let listed = task.handle(c"ns/net").and_then(|netns| {
            // What is waited for is not the process.
            reading_none();
            unix_sockets::list(netns)
        });
        match listed {
            Ok(listed) => bindings.extend(listed),
            Err(_) => {
                let mut is_first = true;
                // Those that are not read are asked, as is one that is in no list.
                let _ = task.lines(c"net/unix", (TABLE_MAX, LINE_MAX), |line, is_cut| {
                    let named = if std::mem::take(&mut is_first) { None } else { unix_sockets::named(line) };
                    match named.filter(|_| !is_cut) {
                        // A name may have line breaks, and look like this.
                        Some((inode, Binding::Nothing)) => {
                            bindings.entry(inode).or_insert(Binding::Nothing);
                        }
                        Some((inode, binding)) => drop(bindings.insert(inode, binding)),
                        None => {}
                    }
                    match bindings.len() > SOCKETS_MAX {
                        true => ControlFlow::Break(()),
                        false => ControlFlow::Continue(()),
                    }
                });
            }
        }
    }
}
