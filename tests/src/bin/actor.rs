//! A process that does what it reads on standard input, a line at a time, and answers each line with `done` or an
//! error: it acts, and between two acts changes what a process can change of itself.
//!
//! Between two acts it has one thread, as entering another user namespace requires, and keeps its capabilities when it
//! changes users.
#![expect(clippy::print_stdout, reason = "its standard output is read by the test that started it")]

use std::ffi::CString;
use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use kevtmon_tests::fuse::mount_served;
use kevtmon_tests::nfs;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, SockaddrIn, connect, sendmsg, setsockopt,
    socket, sockopt,
};

fn main() {
    // Some acts keep more descriptors than the usual limit.
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        match act(&line.split_whitespace().collect::<Vec<_>>()) {
            Ok(()) => println!("done"),
            Err(error) => println!("{line}: {error}"),
        }
    }
}

fn act(words: &[&str]) -> io::Result<()> {
    match *words {
        // Goes into a network namespace.
        ["netns", path] => Ok(setns(File::open(path)?, CloneFlags::CLONE_NEWNET)?),
        // Goes into new namespaces. In a private one nothing that is mounted elsewhere has any effect.
        ["unshare", "mnt-private"] => unshare_private(),
        ["unshare", "mnt"] => Ok(unshare(CloneFlags::CLONE_NEWNS)?),
        ["unshare", "net"] => Ok(unshare(CloneFlags::CLONE_NEWNET)?),
        ["unshare", "user"] => Ok(unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET)?),
        ["chroot", ref path @ ..] => Ok(nix::unistd::chroot(Path::new(&path.join(" ")))?),
        ["uid", real, effective] => set_uid(number(real)?, number(effective)?),
        // From now on orphans among its descendants are its children.
        ["subreaper"] => subreaper(),
        // Has a command executed, and waits until it and all children have ended.
        ["run", program, ref arguments @ ..] => run(program, arguments),
        // Has an unmount refused; the path may have single spaces.
        ["refused", ref path @ ..] => refused(&path.join(" ")),
        // Mounts a FUSE file system, and serves it.
        ["serve", path] => {
            mount_served(Path::new(path));
            Ok(())
        }
        // The same by NFS.
        ["serve-nfs", server, path] => nfs::mount_served(server, Path::new(path)),
        // Opens a new file in a thread that shares its list of open files with no other.
        ["hold-apart", ref path @ ..] => hold_apart(path.join(" ")),
        // Binds a socket to a name, and keeps it.
        ["bind", ref path @ ..] => bind(&path.join(" ")),
        // The same with a name below the directory that it is in until then.
        ["bind-relative", name, ref directory @ ..] => bind_relative(name, &directory.join(" ")),
        // Accepts a connection to such a socket, and closes all others: the file is that of the connection now.
        ["accept", ref path @ ..] => accept(&path.join(" ")),
        // Does another of these in a thread that shares its list of open files with no other, and goes on to live.
        ["apart", ref what @ ..] => apart(what),
        // Opens a directory or file only to know where it is.
        ["locate", ref path @ ..] => locate(&path.join(" ")),
        // Maps a new file, and closes it.
        ["map", ref path @ ..] => map(&path.join(" ")),
        // Opens a new file.
        ["open", ref path @ ..] => open(&path.join(" ")),
        // Opens a file to read it.
        ["read", ref path @ ..] => {
            std::mem::forget(File::open(path.join(" "))?);
            Ok(())
        }
        // Ends by itself.
        ["exit"] => std::process::exit(0),
        ["cd", ref path @ ..] => std::env::set_current_dir(path.join(" ")),
        // Goes to a directory in a thread that shares its directories with no other.
        ["cd-apart", ref path @ ..] => cd_apart(path.join(" ")),
        // Sends a new file to itself, closes it, and never receives it.
        ["send", ref path @ ..] => send(&path.join(" ")),
        // Registers a new file with a ring, and closes it.
        ["register", ref path @ ..] => register(&path.join(" ")),
        // The same, maps the ring, and closes it.
        ["register-mapped", ref path @ ..] => register_mapped(&path.join(" ")),
        // Has a probe in a new program, which nobody executes.
        ["probe", ref path @ ..] => probe(&path.join(" ")),
        // Connects as often to a socket, sends nothing, and keeps the connections: the path of a unix socket, or an address.
        ["idle", count, to] => idle(number(count)?, to),
        // The same, and waits until each is refused and closed.
        ["turned-away", count, to] => turned_away(number(count)?, to),
        // Asks for metrics as often, and reads nothing of them but the status; keeps the connections.
        ["scrape-unread", count, to] => scrape_unread(number(count)?, to),
        // Sends a datagram to as many addresses, from this one on.
        ["scan", count, first] => scan(number(count)?, first),
        ["delete", link, address] => neighbor_entry(libc::SIOCDARP, link, address),
        // Does another of these in a thread of this name.
        ["thread", name, ref what @ ..] => in_thread(name, what),
        // As many processes add an entry and delete it, one after the other.
        ["crowd", count, link, address] => crowd(number(count)?, link, address),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn scan(count: u32, first: &str) -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let first: Ipv4Addr = first.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
    for address in (first.to_bits()..).take(count as usize) {
        // The kernel may have no room for the neighbor.
        let _ = socket.send_to(&[0], (Ipv4Addr::from_bits(address), 9));
    }
    Ok(())
}

fn unshare_private() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none: Option<&str> = None;
    let private = nix::mount::MsFlags::MS_REC | nix::mount::MsFlags::MS_PRIVATE;
    Ok(nix::mount::mount(none, "/", none, private, none)?)
}

fn number(word: &str) -> io::Result<u32> {
    word.parse().map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn set_uid(real: u32, effective: u32) -> io::Result<()> {
    // SAFETY: neither takes a pointer.
    let set = unsafe {
        libc::prctl(libc::PR_SET_SECUREBITS, libc::SECBIT_NO_SETUID_FIXUP)
            | libc::setresuid(real, effective, 0)
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn subreaper() -> io::Result<()> {
    // SAFETY: takes no pointer.
    match unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn refused(path: &str) -> io::Result<()> {
    match nix::mount::umount2(path, nix::mount::MntFlags::empty()) {
        Err(nix::errno::Errno::EBUSY) => Ok(()),
        other => Err(io::Error::other(format!("{other:?}"))),
    }
}

fn in_thread(name: &str, what: &[&str]) -> io::Result<()> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, || act(what))?;
        thread.join().map_err(|_| io::Error::other("the thread panicked"))?
    })
}

/// Does something in a thread, which lives on.
fn in_lasting_thread(act: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    let (tell, told) = std::sync::mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let _ = tell.send(act());
        loop {
            std::thread::park();
        }
    });
    told.recv().map_err(io::Error::other)?
}

fn hold_apart(path: String) -> io::Result<()> {
    in_lasting_thread(move || {
        unshare(CloneFlags::CLONE_FILES)?;
        open(&path)
    })
}

fn apart(what: &[&str]) -> io::Result<()> {
    let what: Vec<String> = what.iter().map(|word| (*word).to_owned()).collect();
    in_lasting_thread(move || {
        unshare(CloneFlags::CLONE_FILES)?;
        act(&what.iter().map(String::as_str).collect::<Vec<_>>())
    })
}

fn cd_apart(path: String) -> io::Result<()> {
    in_lasting_thread(move || {
        unshare(CloneFlags::CLONE_FS)?;
        std::env::set_current_dir(path)
    })
}

fn open(path: &str) -> io::Result<()> {
    std::mem::forget(File::create(path)?);
    Ok(())
}

fn locate(path: &str) -> io::Result<()> {
    std::mem::forget(File::options().read(true).custom_flags(libc::O_PATH).open(path)?);
    Ok(())
}

fn map(path: &str) -> io::Result<()> {
    let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
    file.set_len(4096)?;
    // SAFETY: maps a new range of memory, which nothing in this program uses.
    let mapped = unsafe {
        libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn bind(path: &str) -> io::Result<()> {
    std::mem::forget(std::os::unix::net::UnixListener::bind(path)?);
    Ok(())
}

fn bind_relative(name: &str, directory: &str) -> io::Result<()> {
    let back = std::env::current_dir()?;
    std::env::set_current_dir(directory)?;
    let bound = bind(name);
    std::env::set_current_dir(back)?;
    bound
}

fn accept(path: &str) -> io::Result<()> {
    let listener = std::os::unix::net::UnixListener::bind(path)?;
    let other = UnixStream::connect(path)?;
    std::mem::forget((listener.accept()?, other));
    Ok(())
}

fn send(path: &str) -> io::Result<()> {
    let file = File::create(path)?;
    let (from, to) = std::os::unix::net::UnixDatagram::pair()?;
    let descriptors = [file.as_raw_fd()];
    let (text, rights) = ([io::IoSlice::new(b"x")], [ControlMessage::ScmRights(&descriptors)]);
    sendmsg::<()>(from.as_raw_fd(), &text, &rights, MsgFlags::empty(), None)?;
    std::mem::forget((from, to));
    Ok(())
}

fn idle(count: u32, to: &str) -> io::Result<()> {
    for _ in 0..count {
        match to.starts_with('/') {
            true => std::mem::forget(UnixStream::connect(to)?),
            false => std::mem::forget(TcpStream::connect(to)?),
        }
    }
    Ok(())
}

fn turned_away(count: u32, to: &str) -> io::Result<()> {
    let connections = (0..count).map(|_| UnixStream::connect(to)).collect::<io::Result<Vec<_>>>()?;
    for mut connection in connections {
        let mut answer = String::new();
        connection.set_read_timeout(Some(kevtmon_tests::patience::patience()))?;
        connection.read_to_string(&mut answer)?;
        if !answer.starts_with("HTTP/1.1 403 ") {
            return Err(io::Error::other(format!("it was answered {answer:?}")));
        }
    }
    Ok(())
}

fn scrape_unread(count: u32, to: &str) -> io::Result<()> {
    let to = SockaddrIn::from(to.parse::<SocketAddrV4>().map_err(io::Error::other)?);
    for _ in 0..count {
        let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        // As little as possible is taken at once.
        setsockopt(&socket, sockopt::RcvBuf, &2048)?;
        setsockopt(&socket, sockopt::TcpMaxSeg, &88)?;
        connect(socket.as_raw_fd(), &to)?;
        let mut connection = TcpStream::from(socket);
        connection.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")?;
        connection.set_read_timeout(Some(kevtmon_tests::patience::patience()))?;
        connection.read_exact(&mut [0; 12])?;
        std::mem::forget(connection);
    }
    Ok(())
}

fn register(path: &str) -> io::Result<()> {
    std::mem::forget(ring_with(path)?);
    Ok(())
}

fn register_mapped(path: &str) -> io::Result<()> {
    let ring = ring_with(path)?;
    // SAFETY: maps a new range of memory, which nothing in this program uses.
    let mapped = unsafe {
        libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, ring.as_raw_fd(), 0)
    };
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A ring with which a new file is registered.
fn ring_with(path: &str) -> io::Result<OwnedFd> {
    /// `IORING_REGISTER_FILES` and the size of `struct io_uring_params` of include/uapi/linux/io_uring.h.
    const FILES: u32 = 2;
    const PARAMETERS: usize = 120;
    let file = File::create(path)?;
    let mut parameters = [0_u64; PARAMETERS / 8];
    let descriptor = file.as_raw_fd();
    // SAFETY: the kernel writes no more than the parameters.
    let ring = owned(unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) })?;
    // SAFETY: the kernel reads one descriptor.
    let result = unsafe {
        libc::syscall(libc::SYS_io_uring_register, ring.as_raw_fd(), FILES, &raw const descriptor, 1)
    };
    if result == 0 { Ok(ring) } else { Err(io::Error::last_os_error()) }
}

/// What a system call returned: a descriptor that nobody else has, or -1.
fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    match libc::c_int::try_from(result) {
        // SAFETY: the kernel has just made it.
        Ok(descriptor @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn probe(path: &str) -> io::Result<()> {
    /// Words of `struct perf_event_attr` in its version 5, and which of them are type and size, the path and the place in the
    /// file (include/uapi/linux/perf_event.h).
    const WORDS: usize = 14;
    const TYPE_AND_SIZE: usize = 0;
    const PATH: usize = 7;
    const PLACE: usize = 8;
    /// PERF_FLAG_FD_CLOEXEC, of the same file.
    const CLOSE_ON_EXEC: libc::c_ulong = 8;
    std::fs::copy("/proc/self/exe", path)?;
    let kind = std::fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")?;
    let kind: u32 = kind.trim().parse().map_err(io::Error::other)?;
    let path = CString::new(path)?;
    let size = u32::try_from(WORDS * 8).unwrap_or_default();
    let mut attributes = [0_u64; WORDS];
    let [a, b, c, d] = kind.to_ne_bytes();
    let [e, f, g, h] = size.to_ne_bytes();
    attributes[TYPE_AND_SIZE] = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
    attributes[PATH] = u64::try_from(path.as_ptr().addr()).unwrap_or_default();
    attributes[PLACE] = 0x1000;
    let (any, processor, none) = (-1_i64, 0_i64, -1_i64);
    // SAFETY: the kernel reads as many bytes as the attributes say, and a path that ends with NUL.
    let event = owned(unsafe {
        libc::syscall(libc::SYS_perf_event_open, attributes.as_ptr(), any, processor, none, CLOSE_ON_EXEC)
    })?;
    std::mem::forget(event);
    Ok(())
}

fn run(program: &str, arguments: &[&str]) -> io::Result<()> {
    let status = Command::new(program).args(arguments).stdin(Stdio::null()).status()?;
    if !status.success() {
        return Err(io::Error::other(status.to_string()));
    }
    while nix::sys::wait::wait().is_ok() {}
    Ok(())
}

fn crowd(count: u32, link: &str, address: &str) -> io::Result<()> {
    for _ in 0..count {
        // SAFETY: this process has one thread.
        match unsafe { nix::unistd::fork() }? {
            nix::unistd::ForkResult::Parent { child } => {
                if nix::sys::wait::waitpid(child, None)? != nix::sys::wait::WaitStatus::Exited(child, 0) {
                    return Err(io::Error::other("one of them failed"));
                }
            }
            nix::unistd::ForkResult::Child => {
                let both = [libc::SIOCSARP, libc::SIOCDARP];
                let done = both.into_iter().try_for_each(|request| neighbor_entry(request, link, address));
                // SAFETY: ends the child, which shares only descriptors with the rest.
                unsafe { libc::_exit(i32::from(done.is_err())) };
            }
        }
    }
    Ok(())
}

/// Adds or deletes a permanent IPv4 neighbor entry of the namespace that this process is in, as `arp` does.
fn neighbor_entry(request: libc::Ioctl, link: &str, address: &str) -> io::Result<()> {
    /// `ATF_COM | ATF_PERM` of include/uapi/linux/if_arp.h.
    const PERMANENT: i32 = 0x02 | 0x04;
    let address: Ipv4Addr = address.parse().map_err(io::Error::other)?;
    let link = CString::new(link)?;
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    // SAFETY: all zeros is a request; the address has the size and alignment of the place it is written to, and a
    // name of up to 15 bytes fits with its NUL.
    let result = unsafe {
        let mut entry: libc::arpreq = std::mem::zeroed();
        let place = (&raw mut entry.arp_pa).cast::<libc::sockaddr_in>();
        (*place).sin_family = libc::sa_family_t::try_from(libc::AF_INET).unwrap_or_default();
        (*place).sin_addr.s_addr = u32::from_ne_bytes(address.octets());
        if request == libc::SIOCSARP {
            entry.arp_ha.sa_family = libc::ARPHRD_ETHER;
            entry.arp_flags = PERMANENT;
        }
        for (to, from) in entry.arp_dev.iter_mut().zip(link.as_bytes()) {
            *to = *from as libc::c_char;
        }
        libc::ioctl(socket.as_raw_fd(), request, &raw mut entry)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
