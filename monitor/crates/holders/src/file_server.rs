//! The mount that a process is the file server of: whoever has the FUSE device open answers for one file system. Newer
//! kernels show which one, whatever the server is called and however it was started. Elsewhere its mount point is among
//! the arguments of the server, which are anybody's to choose: they are believed only of root of the node, if a FUSE
//! file system is mounted there, and not for certain.

use std::io;
use std::os::fd::AsFd as _;

use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::dir::{Buffer, Dir, NumberName, is_gone};
use kevtmon_sources::procfs::mountinfo::{Mount, MountTable, device_numbers, is_fuse};
use kevtmon_sources::procfs::pidfd::PidFd;
use kevtmon_sources::procfs::root::is_root_of_node;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serving::SHOWN_SINCE;
pub(super) use serving::{Serving, server_of, serving, serving_each};

use super::mntns_index::{MAX_THREADS, survivor, task_dir, threads};
use super::own_directory;
use super::pins::{Extent, Tables};

mod serving;
mod state;

/// What the device is called, also where its directory was detached; elsewhere only the connection tells that it is one.
const CALLED: [&str; 2] = ["/dev/fuse", "/fuse"];
/// Descriptors of a holder that are looked at, the lowest ones: a server opens the device before it serves anything.
const FDS_MAX: usize = 1024;
/// `MINORBITS` of include/linux/kdev_t.h.
const MINOR_BITS: u32 = 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Served {
    pub(super) mountpoint: String,
    /// Whether the kernel shows it, rather than only an argument.
    pub(super) is_certain: bool,
}

pub(super) fn served(proc: &Proc, (tgid, process): (u32, &Dir)) -> Option<Served> {
    let (mut links, mut text) = (Buffer::default(), Vec::new());
    let survivor = survivor(tgid, process, &mut links);
    let task = survivor.as_ref().unwrap_or(process);
    // Mount points are as the process sees them only without a chroot.
    if task.link(c"root", &mut links).ok()? != "/" {
        return None;
    }
    let table = task.mount_table("/", |_| true).ok()?;
    if !table.iter().any(|mount| is_fuse(&mount.fstype)) {
        return None;
    }
    let connections = connections(proc, (tgid, process), &mut links)?;
    let cmdline = task.text(c"cmdline", &mut text).ok()?.into_owned();
    let (mountpoint, is_certain) = if connections.is_empty() {
        let is_believed = is_root_of_node(task, &mut links, &mut text);
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

/// What a server has of the connection of its file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Connection {
    /// It has it open, or may have.
    Open,
    /// Each that it has open was aborted, or never mounted. The kernel does not show which is the one.
    LikelyAborted,
    Aborted,
    /// It has it open no more.
    Closed,
}

/// What a server has open of the device, by its descriptors; neither it nor a file system is asked. The directory of a connection
/// below /sys/fs/fuse/connections stays until the last unmount (`fuse_conn_destroy`), so what was aborted is there, too.
#[derive(Debug)]
pub(super) struct Connections {
    /// Each with the number that the kernel shows, and whether it was found aborted.
    open: Vec<(Option<u32>, bool)>,
    /// Whether the kernel shows the connection of each that has one.
    shows: bool,
    is_whole: bool,
}

impl Connections {
    pub(super) fn of(proc: &Proc, tgid: u32) -> Option<Self> {
        let process = proc.dir(tgid).ok()?;
        let found = devices(proc, (tgid, &process), &mut Buffer::default(), Extent::First).ok()?;
        let shows = SHOWN_SINCE.is_running() || found.open.iter().any(Option::is_some);
        // Others could have put there by now what never answers a poll.
        let is_of_root = || proc.uid(tgid) == Some(0);
        let server = own_directory(proc).filter(|_| is_of_root()).and_then(|_| PidFd::open(tgid).ok());
        let server = server.filter(|_| process.is_there(&mut Vec::new()));
        // Poll of one without a connection may wait for that (`FUSE_DEV_IOC_SYNC_INIT`).
        let is_polled = |shown: Option<u32>| shown.is_some() || !shows;
        let ask = |(at, shown): (usize, Option<u32>)| {
            let fd = found.fds.get(at).filter(|_| is_polled(shown));
            (shown, server.as_ref().zip(fd).is_some_and(|(server, fd)| is_aborted(server, *fd)))
        };
        let open = found.open.iter().copied().enumerate().map(ask).collect();
        // A process that exits has closed all before it has ended.
        Some(Self { open, shows, is_whole: found.is_whole && found.looked > 0 })
    }

    /// The one that is that of this mount.
    pub(super) fn to(&self, mount: &Mount) -> Connection {
        let may_be_it = |shown: Option<u32>| shown.map_or(!self.shows, |number| is_of(number, mount));
        let of_it = self.open.iter().filter(|(shown, _)| may_be_it(*shown));
        let are_aborted: Vec<bool> = of_it.map(|(_, is_aborted)| *is_aborted).collect();
        match (&are_aborted[..], self.shows) {
            ([], _) if self.is_whole => Connection::Closed,
            ([], _) => Connection::Open,
            (all, _) if all.contains(&false) => Connection::Open,
            (_, true) => Connection::Aborted,
            (_, false) => Connection::LikelyAborted,
        }
    }
}

/// Whether the connection that a process has open by this descriptor is aborted, or none: `fuse_dev_poll` tells that at once.
fn is_aborted(process: &PidFd, fd: u32) -> bool {
    let Ok(device) = process.copy_of(fd) else { return false };
    let mut polled = [PollFd::new(device.as_fd(), PollFlags::empty())];
    let is_error =
        |polled: &PollFd<'_>| polled.revents().is_some_and(|events| events.contains(PollFlags::POLLERR));
    poll(&mut polled, PollTimeout::ZERO).is_ok() && polled.iter().any(is_error)
}

/// The connections that a process has open, as far as the kernel shows them; `None` without the device.
fn connections(proc: &Proc, process: (u32, &Dir), links: &mut Buffer) -> Option<Vec<u32>> {
    let Devices { open, .. } = devices(proc, process, links, Extent::First).ok()?;
    (!open.is_empty()).then(|| open.into_iter().flatten().collect())
}

#[derive(Default)]
struct Devices {
    /// Each with its connection where the kernel shows it (`fuse_connection` in fdinfo). One that is not mounted yet has none.
    open: Vec<Option<u32>>,
    /// The descriptors of the first ones, which are in the table of the first thread.
    fds: Vec<u32>,
    is_whole: bool,
    looked: usize,
}

/// Looks for the device among the descriptors of a process, in all its tables: the first thread may have ended, which leaves the
/// table of the process empty, and others may have one of their own. Of a holder only the first ones are looked at.
fn devices(
    proc: &Proc,
    (tgid, process): (u32, &Dir),
    links: &mut Buffer,
    extent: Extent<'_>,
) -> io::Result<Devices> {
    let mut found = Devices { is_whole: true, ..Devices::default() };
    found.add_table(process, links, extent)?;
    let own = found.fds.len();
    // Nearly all processes have one thread, or one table.
    let mut tables: Option<Tables> = None;
    let others = threads(tgid, process, links).into_iter().filter(|tid| *tid != tgid);
    for (count, tid) in others.enumerate() {
        let is_enough = match extent {
            Extent::First => count >= MAX_THREADS,
            Extent::Until(deadline) => count % MAX_THREADS == MAX_THREADS - 1 && deadline.is_over(),
        };
        if is_enough || !found.is_whole {
            found.is_whole = false;
            break;
        }
        let tables = tables.get_or_insert_with(|| Tables::of(tgid, own_directory(proc).is_some()));
        if tables.is_new(tid)
            && let Some(task) = task_dir(process, tid)
        {
            match found.add_table(&task, links, extent) {
                Err(error) if !is_gone(&error) => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
    }
    found.fds.truncate(own);
    Ok(found)
}

impl Devices {
    fn add_table(&mut self, task: &Dir, links: &mut Buffer, extent: Extent<'_>) -> io::Result<()> {
        let (list, info) = (task.at(c"fd")?, task.at(c"fdinfo")?);
        let (mut numbers, mut text) = (Vec::new(), Vec::new());
        loop {
            numbers.clear();
            let goes_on = list.more_numbers(links, &mut numbers)?;
            for fd in &numbers {
                if matches!(extent, Extent::First) && self.looked >= FDS_MAX {
                    self.is_whole = false;
                    return Ok(());
                }
                self.looked += 1;
                let name = NumberName::new(*fd);
                let Ok(link) = list.link(name.as_c_str(), links) else { continue };
                if !may_be_device(&link) {
                    continue;
                }
                let is_called_so = CALLED.contains(&&*link);
                let shown = info.text(name.as_c_str(), &mut text).ok().and_then(|shown| connection(&shown));
                if shown.is_some() || is_called_so {
                    self.open.push(shown);
                    self.fds.push(*fd);
                }
            }
            if !goes_on {
                return Ok(());
            }
            if let Extent::Until(deadline) = extent
                && deadline.is_over()
            {
                self.is_whole = false;
                return Ok(());
            }
        }
    }
}

/// Whether the target of a descriptor may be the device: where what it was opened on was detached since, its path is shown
/// from the top of that.
fn may_be_device(link: &str) -> bool {
    let link = link.strip_suffix(" (deleted)").unwrap_or(link);
    link == "/" || link.ends_with("/fuse")
}

fn connection(fdinfo: &str) -> Option<u32> {
    fdinfo.lines().find_map(|line| line.strip_prefix("fuse_connection:"))?.trim().parse().ok()
}

/// Whether a connection is that of a mount: it has the number of the device.
fn is_of(connection: u32, mount: &Mount) -> bool {
    let number = |(major, minor): (u32, u32)| (major << MINOR_BITS).checked_add(minor);
    device_numbers(&mount.device).and_then(number) == Some(connection)
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
    fn the_device_is_found_where_its_directory_was_detached() {
        for (link, expected) in [
            ("/dev/fuse", true),
            ("/fuse", true),
            ("/dev/fuse (deleted)", true),
            ("/", true),
            ("/dev/fused", false),
            ("/dev/null", false),
            ("fuse", false),
        ] {
            assert_eq!(may_be_device(link), expected, "{link}");
        }
    }

    #[test]
    fn a_descriptor_without_a_connection_counts_only_where_the_kernel_shows_none() {
        let table = MountTable::parse("1 0 0:39 / /v rw - fuse x rw", "/");
        let to = |open: &[(Option<u32>, bool)], shows: bool, is_whole: bool| {
            Connections { open: open.to_vec(), shows, is_whole }.to(table.at("/v").unwrap())
        };
        for (open, shows, expected) in [
            (&[(None, true)][..], true, Connection::Closed),
            (&[(None, true)], false, Connection::LikelyAborted),
            (&[(None, false), (Some(39), true), (Some(40), false)], true, Connection::Aborted),
            (&[(Some(39), true), (Some(39), false)], true, Connection::Open),
            (&[(None, true), (None, false)], false, Connection::Open),
            (&[], false, Connection::Closed),
        ] {
            assert_eq!(to(open, shows, true), expected, "{open:?} {shows}");
        }
        assert_eq!(to(&[(Some(40), true)], true, false), Connection::Open, "there are more");
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
