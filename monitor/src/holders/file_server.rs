//! The mount that a process is the file server of: whoever has the FUSE device open answers for one file system. Newer
//! kernels show which one, whatever the server is called and however it was started. Elsewhere its mount point is among
//! the arguments of the server, which are anybody's to choose: they are believed only of root of the node, if a FUSE
//! file system is mounted there, and not for certain.

use std::io;
use std::time::Duration;

use super::Deadline;
use crate::sources::procfs::Proc;
use crate::sources::procfs::dir::{Buffer, Dir, NumberName, is_gone};
use crate::sources::procfs::mountinfo::{Mount, MountTable, is_fuse};
use crate::sources::procfs::root::is_root_of_node;

const DEVICE: &str = "/dev/fuse";
/// Descriptors of a holder that are looked at, the lowest ones: a server opens the device before it serves anything.
const FDS_MAX: usize = 1024;
/// `MINORBITS` of include/linux/kdev_t.h.
const MINOR_BITS: u32 = 20;

/// The FUSE file system that a process serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Served {
    pub(super) mountpoint: String,
    /// Whether the kernel shows it, rather than only an argument.
    pub(super) is_certain: bool,
}

/// Finds the file system that a process serves.
pub(super) fn served(process: &Dir) -> Option<Served> {
    let (mut links, mut text) = (Buffer::default(), Vec::new());
    // Mount points are as the process sees them only without a chroot.
    if process.link(c"root", &mut links).ok()? != "/" {
        return None;
    }
    let table = MountTable::parse(&process.text(c"mountinfo", &mut text).ok()?, "/");
    if !table.iter().any(|mount| is_fuse(&mount.fstype)) {
        return None;
    }
    let connections = connections(process, &mut links)?;
    let cmdline = process.text(c"cmdline", &mut text).ok()?.into_owned();
    let (mountpoint, is_certain) = if connections.is_empty() {
        let is_believed = is_root_of_node(process, &mut links, &mut text);
        (named(&cmdline, &table).filter(|_| is_believed)?, false)
    } else {
        (connected(&connections, &cmdline, &table)?, true)
    };
    Some(Served { mountpoint: mountpoint.to_owned(), is_certain })
}

/// Where the file system of a connection is mounted. Of several places the one that an argument names, else the first of
/// the whole file system.
fn connected<'t>(connections: &[u32], cmdline: &str, table: &'t MountTable) -> Option<&'t str> {
    let is_of_one = |mount: &&Mount| connections.iter().any(|connection| is_of(*connection, mount));
    let places: Vec<&Mount> = table.iter().filter(|mount| is_fuse(&mount.fstype)).filter(is_of_one).collect();
    let is_named = |mount: &&&Mount| cmdline.split('\0').any(|argument| argument == mount.mountpoint);
    let place =
        places.iter().find(is_named).or(places.iter().find(|mount| mount.root == "/")).or(places.first());
    place.map(|mount| mount.mountpoint.as_str())
}

/// The last argument at which a FUSE file system is mounted.
fn named<'c>(cmdline: &'c str, table: &MountTable) -> Option<&'c str> {
    let paths = cmdline.split('\0').skip(1).filter(|argument| argument.starts_with('/'));
    let is_served = |path: &&str| table.at(path).is_some_and(|mount| is_fuse(&mount.fstype));
    paths.filter(is_served).last()
}

/// The connections that a process has open, as far as the kernel shows them; `None` without the device.
fn connections(process: &Dir, links: &mut Buffer) -> Option<Vec<u32>> {
    let open = devices(process, links, FDS_MAX).ok().filter(|open| !open.is_empty())?;
    Some(open.into_iter().flatten().collect())
}

/// Each descriptor of the device that a process has, with its connection where the kernel shows it (`fuse_connection` in
/// fdinfo).
fn devices(process: &Dir, links: &mut Buffer, most: usize) -> io::Result<Vec<Option<u32>>> {
    let (list, info) = (process.at(c"fd")?, process.at(c"fdinfo")?);
    let (mut numbers, mut text) = (Vec::new(), Vec::new());
    list.numbers(links, &mut numbers)?;
    numbers.sort_unstable();
    let mut found = Vec::new();
    for fd in numbers.into_iter().take(most) {
        let name = NumberName::new(fd);
        if list.link(name.as_c_str(), links).is_ok_and(|link| link == DEVICE) {
            let shown = info.text(name.as_c_str(), &mut text).ok();
            found.push(shown.and_then(|shown| connection(&shown)));
        }
    }
    Ok(found)
}

/// Whether no process has the connection of a FUSE file system open: its server is gone, and every access to it fails
/// (`ENOTCONN`). False where that is not known: who hangs his readers or may not be read may be it, and older kernels do
/// not show whose a connection is. Only the first process keeps its files to itself on many nodes; it serves none.
pub(super) fn is_unserved(proc: &Proc, mount: &Mount, deadline: &Deadline) -> bool {
    let mut links = Buffer::default();
    for tgid in proc.pids().unwrap_or_else(|_| vec![0]) {
        if deadline.is_over() || proc.is_aside(tgid) {
            return false;
        }
        let open = proc.dir(tgid).and_then(|process| devices(&process, &mut links, usize::MAX));
        match open {
            Ok(open) if open.iter().all(|shown| shown.is_some_and(|number| !is_of(number, mount))) => {}
            Err(error) if tgid == 1 || is_gone(&error) => {}
            _ => return false,
        }
    }
    true
}

/// The process that serves a FUSE file system, and whether the kernel shows that. Elsewhere arguments tell, which are believed
/// only of root of the node.
pub(super) fn server_of(proc: &Proc, mount: &Mount, budget: Duration) -> Option<(u32, bool)> {
    let deadline = Deadline::after(budget);
    let (mut links, mut told) = (Buffer::default(), None);
    for tgid in proc.pids().ok()? {
        if deadline.is_over() {
            break;
        }
        let Ok(process) = proc.dir(tgid) else { continue };
        let open = devices(&process, &mut links, FDS_MAX).unwrap_or_default();
        if open.iter().flatten().any(|number| is_of(*number, mount)) {
            return Some((tgid, true));
        }
        let is_hidden = open.first().is_some_and(Option::is_none);
        if told.is_none()
            && is_hidden
            && served(&process).is_some_and(|served| served.mountpoint == mount.mountpoint)
        {
            told = Some((tgid, false));
        }
    }
    told
}

fn connection(fdinfo: &str) -> Option<u32> {
    fdinfo.lines().find_map(|line| line.strip_prefix("fuse_connection:"))?.trim().parse().ok()
}

/// Whether a connection is that of a mount: it has the number of the device.
fn is_of(connection: u32, mount: &Mount) -> bool {
    let device = mount.device.split_once(':').and_then(|(major, minor)| {
        let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
        (major << MINOR_BITS).checked_add(minor)
    });
    device == Some(connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_names_what_is_served_only_where_fuse_is_mounted() {
        let table = MountTable::parse(
            "1 0 8:1 / / rw - ext4 d rw\n2 1 0:9 / /v rw - fuse.glusterfs g rw\n\
             3 1 0:8 / /c rw - fuse x rw\n4 3 0:7 / /c rw - tmpfs t rw\n5 1 0:6 / /f rw - fusectl f rw",
            "/",
        );
        assert_eq!(named("glusterfs\0--volfile-id=a\0/v\0", &table), Some("/v"));
        for arguments in ["glusterfs\0/v/in\0", "glusterfs\0/\0", "x\0/c\0", "x\0/f\0", "/v\0", "x v"] {
            assert_eq!(named(arguments, &table), None, "{arguments:?}");
        }
    }

    #[test]
    fn where_the_kernel_shows_the_connection_arguments_only_choose_among_its_mounts() {
        let table = MountTable::parse(
            "1 0 8:1 / / rw - ext4 d rw\n2 1 0:39 /sub /b rw - fuse x rw\n3 1 0:39 / /v rw - fuse x rw\n\
             4 1 0:39 / /w rw - fuse x rw\n5 1 0:40 / /other rw - fuse y rw\n6 1 0:41 / /t rw - tmpfs t rw",
            "/",
        );
        for (connections, cmdline, place) in [
            (&[39][..], "server", Some("/v")),
            (&[39], "server\0/other\0", Some("/v")),
            (&[39], "server\0/w\0/other\0", Some("/w")),
            (&[40], "/v", Some("/other")),
            (&[41], "server\0/t\0", None),
            (&[7, 40], "", Some("/other")),
        ] {
            assert_eq!(connected(connections, cmdline, &table), place, "{connections:?} {cmdline:?}");
        }
    }

    #[test]
    fn a_connection_is_of_the_mount_with_its_device_number() {
        let table = MountTable::parse(
            "1 0 8:1 / / rw - ext4 d rw\n2 1 0:39 / /v rw - fuse x rw\n3 1 8:39 / /b rw - fuseblk y rw",
            "/",
        );
        let is_of = |connection, path| is_of(connection, table.at(path).unwrap());
        assert!(is_of(39, "/v") && is_of((8 << 20) + 39, "/b"));
        assert!(!is_of(40, "/v") && !is_of(39, "/b"));
        assert_eq!(connection("pos:\t0\nmnt_id:\t62\nfuse_connection:\t39\n"), Some(39));
        assert_eq!(connection("pos:\t0\nmnt_id:\t62\n"), None);
    }
}
