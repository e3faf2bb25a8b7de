//! What the list of a process' open files does not show: files that are registered with an io_uring(7), and files that wait
//! in a socket (`SCM_RIGHTS`).
//!
//! Of rings the kernel tells only the names, of files in a socket only how many (since 5.10): who has such is a possible holder.

use std::borrow::Cow;

use super::descriptors::FDS_PER_LOOK;
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

impl Visitor {
    /// Looks at the sockets of a process whose other files were looked at: whoever has sent a file may be gone.
    pub(in crate::holders) fn sockets(
        &mut self,
        tgid: u32,
        process: &Dir,
        deadline: &Deadline,
    ) -> Option<Visit> {
        let mut visit = Visit::default();
        self.each_table((tgid, process), deadline, &mut visit, |visitor, task, visit| {
            visitor.find_sent_files(task, deadline, visit);
        })?;
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

    /// Finds out whether files wait in a socket of the process, of which anybody can have as many as he likes.
    fn find_sent_files(&mut self, main: &Dir, deadline: &Deadline, visit: &mut Visit) {
        let (Some(list), Some(infos)) = (visit.read(main.at(c"fd")), visit.read(main.at(c"fdinfo"))) else {
            return;
        };
        let mut fds = Vec::new();
        let _ = visit.read(list.numbers(&mut self.buffer, &mut fds));
        for (count, fd) in (1_u32..).zip(fds) {
            let name = NumberName::new(fd);
            let is_socket =
                list.link(name.as_c_str(), &mut self.buffer).is_ok_and(|link| link.starts_with("socket:["));
            if is_socket
                && infos.text(name.as_c_str(), &mut self.text).is_ok_and(|info| sent_files(&info) > 0)
            {
                visit.is_sent_files = true;
                visit.add(Pin { fd: Some(fd), possible: true, ..Pin::of(Access::InFlight, None::<String>) });
                return;
            }
            if count % FDS_PER_LOOK == 0 && deadline.is_over() {
                visit.has_more_sockets = true;
                return;
            }
        }
    }

    /// Looks at all that.
    pub(in crate::holders) fn hidden(
        &mut self,
        tgid: u32,
        process: &Dir,
        targets: &ScanTargets<'_>,
        deadline: &Deadline,
    ) -> Option<Visit> {
        let mut visit = Visit::default();
        visit.ns = visit.read(namespace(process, &mut self.buffer)).flatten().unwrap_or_default();
        self.each_table((tgid, process), deadline, &mut visit, |visitor, task, visit| {
            if let Some((fd, path)) = visitor.named_by_ring(task, targets, visit) {
                visit.is_named_by_ring = true;
                visit.add(Pin { fd: Some(fd), possible: true, ..Pin::of(Access::IoUring, path) });
            }
            visitor.find_sent_files(task, deadline, visit);
        })?;
        Some(visit)
    }

    /// A ring with which a file is registered whose name may be on a searched mount, and that name.
    fn named_by_ring(
        &mut self,
        task: &Dir,
        targets: &ScanTargets<'_>,
        visit: &mut Visit,
    ) -> Option<(u32, Option<String>)> {
        let list = visit.read(task.at(c"fd"))?;
        let mut fds = Vec::new();
        visit.read(list.numbers(&mut self.buffer, &mut fds))?;
        fds.into_iter().find_map(|fd| {
            let name = NumberName::new(fd);
            let is_ring = list.link(name.as_c_str(), &mut self.buffer).is_ok_and(|link| link == RING);
            if !is_ring {
                return None;
            }
            let info = task.at(c"fdinfo").ok()?;
            let info = info.text(name.as_c_str(), &mut self.text).ok()?;
            let mut files = registered(&info);
            let may_be = files.find(|path| path.as_ref().is_none_or(|path| targets.selects(path)))?;
            Some((fd, may_be.map(Cow::into_owned)))
        })
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
    use super::*;

    #[test]
    fn of_a_process_with_more_sockets_than_there_is_time_for_that_is_said() {
        use std::time::{Duration, Instant};

        let socket = std::os::unix::net::UnixDatagram::unbound().unwrap();
        let copies: Vec<_> = (0..FDS_PER_LOOK).map(|_| socket.try_clone().unwrap()).collect();
        let process = crate::sources::procfs::Proc::default().dir(std::process::id()).unwrap();
        let over = Deadline { used: Duration::MAX, latest: Instant::now() };
        let ample = Deadline { used: Duration::MAX, latest: Instant::now() + Duration::from_secs(60) };
        for (deadline, has_more) in [(over, true), (ample, false)] {
            let visit = Visitor::default().sockets(std::process::id(), &process, &deadline).unwrap();
            assert_eq!((visit.has_more_sockets, visit.is_sent_files), (has_more, false));
        }
        drop(copies);
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
