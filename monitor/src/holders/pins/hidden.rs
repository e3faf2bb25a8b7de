//! What the list of a process' open files does not show: files that are registered with an io_uring(7), and files that wait
//! in a socket (`SCM_RIGHTS`).
//!
//! Of rings the kernel tells only the names, of files in a socket only how many (since 5.10): who has such is a possible holder.
//! Both are looked at after all lists: whoever has sent a file and closed it before his list was read is not missed then. Where
//! a list showed all that can hide files, it is not read again.

use std::borrow::Cow;

use super::descriptors::{FDS_PER_LOOK, Owner};
use super::{Pin, Visit, Visitor};
use crate::holders::Deadline;
use crate::holders::mntns_index::{MAX_THREADS, namespace, task_dir, threads};
use crate::holders::searched::ScanTargets;
use crate::observation::Access;
use crate::sources::procfs::dir::{Dir, NumberName};
use crate::sources::procfs::mountinfo::unescape;

/// What `/proc/PID/fd` shows of a ring.
const RING: &str = "anon_inode:[io_uring]";
/// The line of a ring's fdinfo before those of its files (`io_uring_show_fdinfo`, io_uring/fdinfo.c).
const REGISTERED: &str = "UserFiles:";
/// A place of its table that is free.
const NO_FILE: &str = "<none>";

/// Unix sockets of one process that are remembered; one with more is listed again.
const MAX_SOCKETS: usize = 64;

/// What of the descriptors of a process can hide files.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Hiding {
    /// The unix sockets in the table that the directory of the process shows.
    sockets: Vec<u32>,
    /// Whether there is more.
    is_more: bool,
}

impl Hiding {
    pub(super) fn add_socket(&mut self, owner: Owner, fd: u32) {
        if owner.apart().is_some() || self.sockets.len() == MAX_SOCKETS {
            self.is_more = true;
        } else {
            self.sockets.push(fd);
        }
    }

    /// Whether what a link leads to is a ring.
    pub(super) fn add_ring(&mut self, link: &str) {
        self.is_more |= link == RING;
    }

    /// There are tables that were not read.
    pub(super) fn add_unread(&mut self) {
        self.is_more = true;
    }

    /// The sockets, if they are all that there is.
    pub(super) fn known(self) -> Option<Vec<u32>> {
        (!self.is_more).then_some(self.sockets)
    }
}

impl Visitor {
    /// Looks at all that in a process whose other files were looked at. `known`: its sockets, if it can hide nothing else;
    /// `targets`: none where the files of rings do not matter.
    pub(in crate::holders) fn hidden(
        &mut self,
        (tgid, process): (u32, &Dir),
        known: Option<&[u32]>,
        targets: Option<&ScanTargets<'_>>,
        deadline: &Deadline,
    ) -> Option<Visit> {
        let mut visit = Visit::default();
        match known {
            Some([]) => {}
            Some(sockets) => self.find_in_sockets(process, sockets, &mut visit),
            None => self.each_table((tgid, process), deadline, &mut visit, |visitor, task, visit| {
                visitor.find_all(task, targets, deadline, visit);
            })?,
        }
        if !visit.pins.is_empty() {
            visit.ns = visit.read(namespace(process, &mut self.buffer)).flatten().unwrap_or_default();
        }
        Some(visit)
    }

    /// Calls this with a thread for each table of descriptors of a process, the main one first. `None` when it ended.
    fn each_table(
        &mut self,
        (tgid, process): (u32, &Dir),
        deadline: &Deadline,
        visit: &mut Visit,
        mut look: impl FnMut(&mut Self, &Dir, &mut Visit),
    ) -> Option<()> {
        let main = self.main(tgid, process)?;
        look(self, main.dir.as_ref().unwrap_or(process), visit);
        let mut tables = self.tables(main.tid);
        let others = threads(tgid, process, &mut self.buffer).into_iter().filter(|tid| *tid != main.tid);
        for (count, tid) in (1..).zip(others) {
            if tables.is_new(tid)
                && let Some(task) = task_dir(process, tid)
            {
                look(self, &task, visit);
            }
            if count % MAX_THREADS == 0 && deadline.is_over() {
                visit.has_more_sockets = true;
                break;
            }
        }
        Some(())
    }

    /// Finds out whether files wait in one of these sockets.
    fn find_in_sockets(&mut self, task: &Dir, sockets: &[u32], visit: &mut Visit) {
        let Some(infos) = visit.read(task.at(c"fdinfo")) else { return };
        for fd in sockets {
            self.find_sent_files(&infos, *fd, visit);
            if visit.is_sent_files {
                return;
            }
        }
    }

    /// Finds out whether files wait in a socket.
    fn find_sent_files(&mut self, infos: &Dir, fd: u32, visit: &mut Visit) {
        let info = infos.text(NumberName::new(fd).as_c_str(), &mut self.text);
        if info.is_ok_and(|info| sent_files(&info) > 0) {
            visit.is_sent_files = true;
            visit.add(Pin { fd: Some(fd), possible: true, ..Pin::of(Access::InFlight, None::<String>) });
        }
    }

    /// Looks at all descriptors of a table, of which anybody can have as many as he likes.
    fn find_all(
        &mut self,
        task: &Dir,
        targets: Option<&ScanTargets<'_>>,
        deadline: &Deadline,
        visit: &mut Visit,
    ) {
        let (Some(list), Some(infos)) = (visit.read(task.at(c"fd")), visit.read(task.at(c"fdinfo"))) else {
            return;
        };
        let mut fds = Vec::new();
        let _ = visit.read(list.numbers(&mut self.buffer, &mut fds));
        for (count, fd) in (1_u32..).zip(fds) {
            let link = list.link(NumberName::new(fd).as_c_str(), &mut self.buffer);
            let (is_socket, is_ring) =
                link.map_or((false, false), |link| (link.starts_with("socket:["), link == RING));
            if is_socket && !visit.is_sent_files {
                self.find_sent_files(&infos, fd, visit);
            }
            if let Some(targets) = targets
                && is_ring
                && !visit.is_named_by_ring
                && let Some(path) = self.named_by_ring(&infos, fd, targets)
            {
                visit.is_named_by_ring = true;
                visit.add(Pin { fd: Some(fd), possible: true, ..Pin::of(Access::IoUring, path) });
            }
            if count % FDS_PER_LOOK == 0 && deadline.is_over() {
                visit.has_more_sockets = true;
                return;
            }
        }
    }

    /// Whether a file that is registered with a ring has a name that may be on a searched mount, and that name.
    fn named_by_ring(&mut self, infos: &Dir, ring: u32, targets: &ScanTargets<'_>) -> Option<Option<String>> {
        let info = infos.text(NumberName::new(ring).as_c_str(), &mut self.text).ok()?;
        let mut files = registered(&info);
        let may_be = files.find(|path| path.as_ref().is_none_or(|path| targets.selects(path)))?;
        Some(may_be.map(Cow::into_owned))
    }
}

/// The paths of the files that are registered with a ring, out of its fdinfo: lines of a number and a path. `None` for a
/// file of which there is no path: 6.12 and older show the last part of it, and only if it is short.
fn registered(fdinfo: &str) -> impl Iterator<Item = Option<Cow<'_, str>>> {
    let lines = fdinfo.lines().skip_while(|line| !line.starts_with(REGISTERED)).skip(1);
    let files = lines.map_while(|line| {
        let (number, path) = line.trim_start().split_once(": ")?;
        number.bytes().all(|byte| byte.is_ascii_digit()).then_some(path)
    });
    files.filter(|path| *path != NO_FILE).map(|path| path.starts_with('/').then(|| unescape(path)))
}

/// How many files wait in a socket, out of its fdinfo (`unix_show_fdinfo`, net/unix/af_unix.c).
fn sent_files(fdinfo: &str) -> u32 {
    let count = fdinfo.lines().find_map(|line| line.strip_prefix("scm_fds:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::tests::alone::alone;

    #[test]
    fn of_a_process_with_more_sockets_than_there_is_time_for_that_is_said() {
        let test = "of_a_process_with_more_sockets_than_there_is_time_for_that_is_said";
        // Other tests of this process send files.
        alone(module_path!(), test, || {
            let socket = std::os::unix::net::UnixDatagram::unbound().unwrap();
            let copies: Vec<_> = (0..FDS_PER_LOOK).map(|_| socket.try_clone().unwrap()).collect();
            let process = crate::sources::procfs::Proc::default().dir(std::process::id()).unwrap();
            let over = Deadline { used: Duration::MAX, latest: Instant::now() };
            let ample = Deadline { used: Duration::MAX, latest: Instant::now() + Duration::from_secs(60) };
            for (deadline, has_more) in [(over, true), (ample, false)] {
                let process = (std::process::id(), &process);
                let visit = Visitor::default().hidden(process, None, None, &deadline).unwrap();
                assert_eq!((visit.has_more_sockets, visit.is_sent_files), (has_more, false));
            }
            drop(copies);
        });
    }

    #[test]
    fn of_known_sockets_only_those_are_looked_at() {
        use std::io::IoSlice;
        use std::os::fd::AsRawFd as _;

        use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

        let (from, to) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let rights = [from.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&rights)];
        sendmsg::<()>(from.as_raw_fd(), &[IoSlice::new(b"f")], &rights, MsgFlags::empty(), None).unwrap();
        let process = crate::sources::procfs::Proc::default().dir(std::process::id()).unwrap();
        let ample = Deadline { used: Duration::MAX, latest: Instant::now() + Duration::from_secs(60) };
        let [from, to] = [from.as_raw_fd(), to.as_raw_fd()].map(|fd| u32::try_from(fd).unwrap());
        for (known, is_sent_files) in
            [(None, true), (Some(&[from, to][..]), true), (Some(&[from]), false), (Some(&[]), false)]
        {
            let process = (std::process::id(), &process);
            let visit = Visitor::default().hidden(process, known, None, &ample).unwrap();
            assert_eq!(visit.is_sent_files, is_sent_files, "{known:?}");
        }
    }

    #[test]
    fn the_files_of_a_ring_follow_their_number() {
        let info = "pos:\t0\nSqMask:\t0x3\nUserFiles:\t3\n    0: /v/file\n    2: /v/a\\040b\nUserBufs:\t1\n    0: 0x1/4096\n";
        let paths = ["/v/file", "/v/a b"].map(|path| Some(path.into()));
        assert_eq!(registered(info).collect::<Vec<_>>(), paths);
        let older = "UserFiles:\t2\n    0: file\n    1: <none>\nUserBufs:\t0\n";
        assert_eq!(registered(older).collect::<Vec<_>>(), [None]);
        assert_eq!(registered("pos:\t0\n").count(), 0);
    }
}
