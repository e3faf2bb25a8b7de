//! A process that does what it reads on standard input, a line at a time, and answers each line with `done` or an
//! error: it acts, and between two acts changes what a process can change of itself.
//!
//! It has one thread, as entering another user namespace requires, and keeps its capabilities when it changes users.
#![expect(clippy::print_stdout, reason = "its standard output is read by the test that started it")]

use std::ffi::CString;
use std::fs::File;
use std::io::{self, BufRead};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::path::Path;

use nix::sched::{CloneFlags, setns, unshare};

fn main() {
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
        // Goes into new namespaces.
        ["unshare", "mnt"] => Ok(unshare(CloneFlags::CLONE_NEWNS)?),
        ["unshare", "user"] => Ok(unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET)?),
        ["chroot", path] => Ok(nix::unistd::chroot(Path::new(path))?),
        ["uid", real, effective] => set_uid(number(real)?, number(effective)?),
        ["delete", link, address] => delete_neighbor(link, address),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
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

/// Deletes an IPv4 neighbor entry of the namespace that this process is in, as `arp -d` does.
fn delete_neighbor(link: &str, address: &str) -> io::Result<()> {
    let address: Ipv4Addr = address.parse().map_err(io::Error::other)?;
    let link = CString::new(link)?;
    let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    // SAFETY: all zeros is a request; the address has the size and alignment of the place it is written to, and a
    // name of up to 15 bytes fits with its NUL.
    let result = unsafe {
        let mut request: libc::arpreq = std::mem::zeroed();
        let place = (&raw mut request.arp_pa).cast::<libc::sockaddr_in>();
        (*place).sin_family = libc::sa_family_t::try_from(libc::AF_INET).unwrap_or_default();
        (*place).sin_addr.s_addr = u32::from_ne_bytes(address.octets());
        for (to, from) in request.arp_dev.iter_mut().zip(link.as_bytes()) {
            *to = *from as libc::c_char;
        }
        libc::ioctl(socket.as_raw_fd(), libc::SIOCDARP, &raw mut request)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
