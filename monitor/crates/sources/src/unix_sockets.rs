//! Which unix sockets are bound to files: all of a network namespace, as sock_diag(7) lists them, and the file of one of them.
//!
//! A list tells the file system of the file at most, and where there is no such list (`CONFIG_UNIX_DIAG`) only the name that
//! was handed to bind(2), which may be relative, or of another root directory. On which mount it is only the socket itself
//! tells: `SIOCUNIXFILE` (since 4.12) opens the file with the mount that the socket keeps in use, without a request to a file
//! system. Nothing is looked up by name.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer, NlasIterator};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr};
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike as _};
use nix::{getsockopt_impl, sockopt_impl};

use super::procfs::dir::mnt_id;
use super::procfs::mountinfo::device_numbers;
use super::procfs::pidfd::{PidFd, owned};

/// `include/uapi/linux/sock_diag.h` and `unix_diag.h`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const UDIAG_SHOW_VFS: u32 = 2;
const UNIX_DIAG_VFS: u16 = 1;
/// `struct nlmsghdr`, `struct unix_diag_req` and `struct unix_diag_msg`.
const HEADER: usize = 16;
const REQUEST: usize = 24;
const REPLY: usize = 16;
/// Offset of the inode number in the last one.
const INODE: usize = 4;
/// `SIOCPROTOPRIVATE` of include/uapi/linux/sockios.h, which is `SIOCUNIXFILE` of a unix socket.
const SIOCUNIXFILE: libc::Ioctl = 0x89E0;
/// Larger than any datagram of a dump.
const DATAGRAM: usize = 64 << 10;
/// A list takes no longer than this, and has no more than so many sockets: of others it tells nothing.
const LIST_MAX: Duration = Duration::from_millis(300);
const SOCKETS_MAX: usize = 1 << 18;

sockopt_impl!(Domain, GetOnly, libc::SOL_SOCKET, libc::SO_DOMAIN, libc::c_int);

/// What a socket is bound to, as far as a list tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Binding {
    Nothing,
    /// A file of the file system with this number, as in [`device`].
    Device(u32),
    /// A file, by what was handed to bind(2).
    Name(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundFile {
    /// Id of the mount that the socket keeps in use.
    pub mount: u64,
    pub path: String,
}

/// The number of a file system, out of `major:minor` of mountinfo: the kernel's own (`MKDEV`, include/linux/kdev_t.h).
pub fn device(text: &str) -> Option<u32> {
    let (major, minor) = device_numbers(text)?;
    (major < 1 << 12 && minor < 1 << 20).then_some(major << 20 | minor)
}

/// The unix sockets of a network namespace by inode number: all, or those of which there was time to learn.
/// Errors: when the namespace cannot be entered, or the kernel has no such list.
pub fn list(netns: OwnedFd) -> io::Result<Vec<(u32, Binding)>> {
    // A socket stays in the namespace in which it was made, and the thread ends there.
    let thread = thread::Builder::new().spawn(move || {
        setns(&netns, CloneFlags::CLONE_NEWNET)?;
        Socket::new(NETLINK_SOCK_DIAG)
    })?;
    let socket = thread.join().unwrap_or_else(|_| Err(io::ErrorKind::UnexpectedEof.into()))?;
    list_by(socket, Instant::now() + LIST_MAX)
}

fn list_by(mut socket: Socket, until: Instant) -> io::Result<Vec<(u32, Binding)>> {
    socket.bind(&SocketAddr::new(0, 0))?;
    let patience = TimeVal::milliseconds(i64::try_from(LIST_MAX.as_millis()).unwrap_or(i64::MAX));
    setsockopt(&socket, sockopt::ReceiveTimeout, &patience)?;
    socket.send_to(&request(), &SocketAddr::new(0, 0), 0)?;
    let (mut buffer, mut found) = (Vec::with_capacity(DATAGRAM), Vec::new());
    while found.len() < SOCKETS_MAX && Instant::now() < until {
        buffer.clear();
        match socket.recv_from(&mut buffer, 0) {
            // Not from the kernel.
            Ok((_, from)) if from.port_number() != 0 => {}
            Ok(_) if take(&buffer, &mut found)? => break,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn request() -> [u8; HEADER + REQUEST] {
    let mut bytes = [0; HEADER + REQUEST];
    let mut message = NetlinkBuffer::new(&mut bytes[..]);
    message.set_length(u32::try_from(HEADER + REQUEST).unwrap_or(0));
    message.set_message_type(SOCK_DIAG_BY_FAMILY);
    message.set_flags(NLM_F_REQUEST | NLM_F_DUMP);
    let body = &mut bytes[HEADER..];
    body[0] = u8::try_from(libc::AF_UNIX).unwrap_or(0);
    // In whichever state.
    body[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
    body[12..16].copy_from_slice(&UDIAG_SHOW_VFS.to_ne_bytes());
    bytes
}

/// Takes what one datagram tells; whether it was the last one.
fn take(mut datagram: &[u8], found: &mut Vec<(u32, Binding)>) -> io::Result<bool> {
    while !datagram.is_empty() {
        let message = NetlinkBuffer::new_checked(datagram)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
        let payload = message.payload();
        match message.message_type() {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                let code = number(payload, 0).map_or(libc::EIO, |code| code.cast_signed().saturating_neg());
                return Err(io::Error::from_raw_os_error(code));
            }
            SOCK_DIAG_BY_FAMILY => found.extend(socket(payload)),
            _ => {}
        }
        let length = usize::try_from(message.length()).unwrap_or(usize::MAX).max(HEADER).next_multiple_of(4);
        datagram = datagram.get(length..).unwrap_or_default();
    }
    Ok(false)
}

/// The socket that a message is about; none of one without an inode, which nobody has accepted yet.
fn socket(payload: &[u8]) -> Option<(u32, Binding)> {
    let inode = number(payload, INODE).filter(|inode| *inode != 0)?;
    let mut attributes = NlasIterator::new(payload.get(REPLY..)?).flatten();
    // `struct unix_diag_vfs`: inode number and device.
    let device = attributes.find(|attribute| attribute.kind() == UNIX_DIAG_VFS);
    let device = device.and_then(|attribute| number(attribute.value(), 4));
    Some((inode, device.map_or(Binding::Nothing, Binding::Device)))
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// The socket of a line of `/proc/PID/net/unix`, which names it. One that is named has no name in another line, as a name can
/// have line breaks: the first counts.
pub fn named(line: &str) -> Option<(u32, Binding)> {
    // Num, RefCount, Protocol, Flags, Type, St, Inode, Path.
    let rest = (0..6).try_fold(line, |rest, _| Some(rest.split_once(' ')?.1))?.trim_start_matches(' ');
    let (inode, name) = rest.split_once(' ').map_or((rest, None), |(inode, name)| (inode, Some(name)));
    let binding = name.map_or(Binding::Nothing, |name| Binding::Name(name.to_owned()));
    Some((inode.parse().ok()?, binding))
}

/// The file to which a socket of a process is bound, if it is. `own`: the directory of this process in /proc.
/// Errors: `EBADF` and `ESRCH` where there is no such descriptor any more; `ENOSYS` before 5.6.
pub fn bound_file(own: &Path, process: &PidFd, fd: u32) -> io::Result<Option<BoundFile>> {
    let socket = process.copy_of(fd)?;
    match family(&socket) {
        Ok(libc::AF_UNIX) => {}
        // The number is used for something else by now, to which the request could mean anything.
        Ok(_) => return Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ENOTSOCK) => return Ok(None),
        Err(error) => return Err(error),
    }
    // SAFETY: the request of a unix socket ignores its argument, and returns a new descriptor (close-on-exec) or -1.
    let file = match unsafe { owned(libc::ioctl(socket.as_raw_fd(), SIOCUNIXFILE, 0)) } {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        file => file?,
    };
    let name = file.as_raw_fd().to_string();
    let path = std::fs::read_link(own.join("fd").join(&name))?.to_string_lossy().into_owned();
    let info = std::fs::read_to_string(own.join("fdinfo").join(&name))?;
    let mount = mnt_id(&info).ok_or(io::ErrorKind::Unsupported)?;
    Ok(Some(BoundFile { mount, path }))
}

pub(super) fn family(socket: &OwnedFd) -> io::Result<libc::c_int> {
    Ok(getsockopt(socket, Domain)?)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::RawFd;
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::net::{UnixDatagram, UnixListener};

    use nix::sys::stat::fstat;

    use super::*;

    fn inode(socket: &impl std::os::fd::AsFd) -> u32 {
        u32::try_from(fstat(socket).unwrap().st_ino).unwrap()
    }

    #[test]
    fn a_list_tells_the_file_system_of_each_bound_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("my sock");
        let bound = UnixListener::bind(&path).unwrap();
        // More than one datagram tells.
        let unbound: Vec<_> = (0..400).map(|_| UnixDatagram::unbound().unwrap()).collect();
        let own = File::open("/proc/thread-self/ns/net").unwrap();
        // A kernel may have no such list.
        let Ok(all) = list(own.into()) else { return };
        let of = |wanted| all.iter().find(|(inode, _)| *inode == wanted).map(|(_, binding)| binding.clone());
        let dev = std::fs::metadata(&path).unwrap().dev();
        let number = device(&format!("{}:{}", libc::major(dev), libc::minor(dev))).unwrap();
        assert_eq!(of(inode(&bound)), Some(Binding::Device(number)));
        assert!(unbound.iter().all(|socket| of(inode(socket)) == Some(Binding::Nothing)));
    }

    #[test]
    fn a_socket_tells_its_file_by_the_mount_and_not_by_a_name() {
        let dir = tempfile::tempdir().unwrap();
        let (path, renamed) = (dir.path().join("sock"), dir.path().join("other"));
        let bound = UnixListener::bind(&path).unwrap();
        std::fs::rename(&path, &renamed).unwrap();
        let (own, process) = (Path::new("/proc/self"), PidFd::open(std::process::id()).unwrap());
        let fd = |socket: RawFd| u32::try_from(socket).unwrap();
        let file = bound_file(own, &process, fd(bound.as_raw_fd())).unwrap().unwrap();
        assert_eq!(Path::new(&file.path), renamed);
        let directory = File::open(dir.path()).unwrap();
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", directory.as_raw_fd())).unwrap();
        assert_eq!(mnt_id(&info), Some(file.mount));
        let unbound = UnixDatagram::unbound().unwrap();
        assert_eq!(bound_file(own, &process, fd(unbound.as_raw_fd())).unwrap(), None);
        assert_eq!(bound_file(own, &process, fd(directory.as_raw_fd())).unwrap(), None, "it is no socket");
        let error = bound_file(own, &process, 1 << 20).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    }

    #[test]
    fn a_number_of_mountinfo_is_that_of_the_list() {
        assert_eq!(device("254:1"), Some(254 << 20 | 1));
        assert_eq!(device("0:1048575"), Some(1_048_575));
        assert_eq!(device("0:1048576"), None);
        assert_eq!(device("garbage"), None);
    }

    #[test]
    fn a_line_of_proc_gives_inode_and_name() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
                     0000000012345678: 00000002 00000000 00010000 0001 01  4711 /v/my sock\n\
                     0000000012345679: 00000002 00000000 00010000 0001 01 99712 @/v/abstract\n\
                     000000001234567a: 00000003 00000000 00000000 0001 03   233\n\
                     000000001234567b: 00000003 00000000 00000000 0001 03 4713 a\n\
                     b\n";
        let name = |name: &str| Binding::Name(name.to_owned());
        let expected = [
            (4711, name("/v/my sock")),
            (99712, name("@/v/abstract")),
            (233, Binding::Nothing),
            (4713, name("a")),
        ];
        assert_eq!(table.lines().skip(1).filter_map(named).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn garbage_of_a_list_is_no_socket() {
        assert_eq!(socket(&[0; 8]), None, "nobody has accepted it");
        assert_eq!(socket(&[1; 5]), None);
        let mut found = Vec::new();
        assert!(take(&[1; 40], &mut found).is_err());
        assert_eq!(found, []);
    }
}
