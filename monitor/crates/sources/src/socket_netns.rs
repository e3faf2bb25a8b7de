//! The network namespace in which a socket was made, and which it keeps: `SIOCGSKNS` (since 4.10) opens it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use super::procfs::Proc;
use super::procfs::pidfd::{PidFd, owned};
use super::unix_sockets::family;

/// `include/uapi/linux/sockios.h`.
const SIOCGSKNS: libc::c_ulong = 0x894c;

/// Controllers of v1 by which a socket has the class of a task.
const CLASSES: [&str; 2] = ["net_cls", "net_prio"];

/// Errors: as ioctl(2): `ENOTTY` for other files, at best.
pub fn of_own(socket: BorrowedFd<'_>) -> io::Result<File> {
    // SAFETY: SIOCGSKNS takes no argument and returns a new descriptor (close-on-exec) or -1.
    Ok(unsafe { owned(libc::ioctl(socket.as_raw_fd(), SIOCGSKNS)) }?.into())
}

/// Errors: `ENOTSUP` where that would change the socket, `ENOTSOCK` for other files, and as pidfd_getfd(2).
pub fn of_other(proc: &Proc, process: &PidFd, fd: u32) -> io::Result<File> {
    // Whoever receives a socket gives it the classes of its own control groups (`__receive_sock`, net/core/scm.c).
    if has_classes(&std::fs::read_to_string(proc.root().join("self/cgroup"))?) {
        return Err(io::Error::from_raw_os_error(libc::ENOTSUP));
    }
    let socket = process.copy_of(fd)?;
    // To another file the request could mean anything.
    family(&socket)?;
    of_own(socket.as_fd())
}

/// Whether tasks have such classes here, by `/proc/PID/cgroup` of any of them.
fn has_classes(groups: &str) -> bool {
    let mut controllers =
        groups.lines().filter_map(|line| line.split(':').nth(1)).flat_map(|all| all.split(','));
    controllers.any(|controller| CLASSES.contains(&controller))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn a_class_of_sockets_is_known_by_the_hierarchies_of_v1() {
        assert!(has_classes("9:pids:/\n4:net_cls,net_prio:/\n0::/\n"));
        assert!(has_classes("2:net_prio:/a\n"));
        assert!(!has_classes("9:name=net_cls:/net_cls\n8:pids:/net_prio\n0::/a:net_cls\n"));
    }

    #[test]
    fn a_socket_of_a_process_tells_its_namespace_and_another_file_nothing() {
        let process = PidFd::open(std::process::id()).unwrap();
        let number = |fd: i32| u32::try_from(fd).unwrap();
        let (socket, file) = (UdpSocket::bind("127.0.0.1:0").unwrap(), File::open("/dev/null").unwrap());
        let own = std::fs::metadata("/proc/self/ns/net").unwrap().ino();
        match of_other(&Proc::default(), &process, number(socket.as_raw_fd())) {
            Ok(namespace) => assert_eq!(namespace.metadata().unwrap().ino(), own),
            // Without the capability, or where it would change the socket.
            Err(error) => {
                assert!(matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOTSUP)), "{error}")
            }
        }
        assert!(of_other(&Proc::default(), &process, number(file.as_raw_fd())).is_err());
    }
}
