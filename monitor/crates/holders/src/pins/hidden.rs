//! What the list of a process' open files does not show: files that are registered with an io_uring(7), and files that wait
//! in a socket (`SCM_RIGHTS`).
//!
//! Of rings the kernel tells only the names, of files in a socket only how many (since 5.10): who has such is a possible holder.
//! Both are looked at after all lists: whoever has sent a file and closed it before his list was read is not missed then.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::thread::park_timeout;
use std::time::Duration;

use kevtmon_observation::Access;
use kevtmon_sources::procfs::dir::{Dir, NumberName};
use kevtmon_sources::procfs::mountinfo::unescape;
use kevtmon_types::kernel_release::KernelRelease;

use super::descriptors::FDS_PER_LOOK;
use super::{CUT, Pin, Visit, Visitor};
use crate::Deadline;
use crate::mntns_index::{MAX_THREADS, namespace, task_dir, threads};
use crate::searched::ScanTargets;

/// What `/proc/PID/fd` shows of a ring.
pub(super) const RING: &str = "anon_inode:[io_uring]";
/// The line of a ring's fdinfo before those of its files (`io_uring_show_fdinfo`, io_uring/fdinfo.c).
const REGISTERED: &str = "UserFiles:";
/// A place of its table that is free.
const NO_FILE: &str = "<none>";

/// Bytes of a ring's fdinfo that are read, and of one of its lines: a ring can have a million files.
const INFO_MAX: u64 = 4 << 20;
const LINE_MAX: usize = 4096 + 32;

/// How often a ring is looked at that is in use: then the kernel shows no files of it (`mutex_trylock` of `io_uring_show_fdinfo`).
const RING_LOOKS: u32 = 8;

/// How often sockets of a daemon as this one are looked at again while they show a file, and the pause before each look.
const OWN_LOOKS: u32 = 5;
const OWN_PAUSE: Duration = Duration::from_millis(2);

impl Visitor {
    /// Looks at all that in a process whose other files were looked at. Of rings of one that is not near, what has no name is not
    /// taken for a file of the mount.
    pub fn hidden(
        &mut self,
        (tgid, process): (u32, &Dir),
        targets: (&ScanTargets<'_>, bool),
        deadline: &Deadline,
    ) -> Option<Visit> {
        let mut visit = self.hidden_now((tgid, process), targets, deadline)?;
        // What readers open for a daemon is on its way to it for a moment; what others send it stays.
        let mut looks = OWN_LOOKS;
        while visit.may_have(Access::InFlight)
            && looks > 0
            && !deadline.is_over()
            && self.is_own_program(process)
        {
            // Nothing announces that a reader's descriptor has arrived.
            park_timeout(OWN_PAUSE);
            visit = self.hidden_now((tgid, process), targets, deadline)?;
            looks -= 1;
        }
        Some(visit)
    }

    fn hidden_now(
        &mut self,
        (tgid, process): (u32, &Dir),
        targets: (&ScanTargets<'_>, bool),
        deadline: &Deadline,
    ) -> Option<Visit> {
        let mut visit = Visit::default();
        self.each_table((tgid, process), deadline, &mut visit, |visitor, task, visit| {
            visitor.find_all(task, targets, deadline, visit);
        })?;
        if !visit.pins.is_empty() {
            visit.ns = visit.read(namespace(process, &mut self.buffer)).flatten().unwrap_or_default();
        }
        Some(visit)
    }

    /// Calls this with a thread for each table of descriptors of a process, the main one first. `None` when it ended.
    pub(super) fn each_table(
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
                visit.doubt(CUT);
                break;
            }
        }
        Some(())
    }

    fn find_sent_files(&mut self, infos: &Dir, fd: u32, visit: &mut Visit) {
        let info = infos.text(NumberName::new(fd).as_c_str(), &mut self.text);
        if info.is_ok_and(|info| sent_files(&info) > 0) {
            visit.doubt("it has a socket with files in flight; their mounts are unknown");
            visit.add(Pin { fd: Some(fd), possible: true, ..Pin::of(Access::InFlight, None::<String>) });
        }
    }

    /// Looks at all descriptors of a table, of which anybody can have as many as he likes.
    fn find_all(
        &mut self,
        task: &Dir,
        (targets, is_near): (&ScanTargets<'_>, bool),
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
            if is_socket && !visit.may_have(Access::InFlight) {
                self.find_sent_files(&infos, fd, visit);
            }
            if is_ring
                && !visit.may_have(Access::IoUring)
                && let Some(path) = self.named_by_ring(&infos, fd, targets)
                && (is_near || path.is_some())
            {
                visit.doubt("a file of this name is registered with its io_uring; the mount is unknown");
                visit.add(Pin { fd: Some(fd), possible: true, ..Pin::of(Access::IoUring, path) });
            }
            if count % FDS_PER_LOOK == 0 && deadline.is_over() {
                visit.doubt(CUT);
                return;
            }
        }
    }

    /// Whether a file that is registered with a ring has a name that may be on a searched mount, and that name.
    fn named_by_ring(&mut self, infos: &Dir, ring: u32, targets: &ScanTargets<'_>) -> Option<Option<String>> {
        let mut files = Registered::default();
        for _ in 0..RING_LOOKS {
            files = Registered::default();
            let mut found = None;
            let is_all = infos.lines(NumberName::new(ring).as_c_str(), (INFO_MAX, LINE_MAX), |line, _| {
                match files.line(line) {
                    Line::Other => ControlFlow::Continue(()),
                    Line::End => ControlFlow::Break(()),
                    Line::File(path) if path.as_ref().is_none_or(|path| targets.selects(path)) => {
                        found = Some(path.map(Cow::into_owned));
                        ControlFlow::Break(())
                    }
                    Line::File(_) => ControlFlow::Continue(()),
                }
            });
            match is_all {
                _ if found.is_some() => return found,
                // What was not read may be such a file.
                Ok(false) => return Some(None),
                Ok(true) if files.shown == 0 && files.places != Some(0) => std::thread::yield_now(),
                // `Err`: it is closed.
                Ok(true) | Err(_) => return None,
            }
        }
        files.may_be_more(KernelRelease::running()).then_some(None)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Line<'l> {
    /// The path of a file that is registered with the ring. `None` for one of which there is no path: 6.12 and older show the
    /// last part of it, and only if it is short.
    File(Option<Cow<'l, str>>),
    End,
    Other,
}

/// The files that are registered with a ring: lines of a number and a path, after one that begins them.
#[derive(Debug, Default)]
struct Registered {
    /// How many places the table has, once that is told.
    places: Option<u32>,
    /// How many of them were shown.
    shown: u32,
}

impl Registered {
    /// Whether a kernel of this release that shows no file may know some: while anybody has the lock of a ring none are shown,
    /// since 6.16 no table either. Since 6.13 free places are not shown.
    fn may_be_more(&self, release: Option<KernelRelease>) -> bool {
        self.places.is_none() || release < Some(KernelRelease(6, 16))
    }

    fn line<'l>(&mut self, line: &'l str) -> Line<'l> {
        if self.places.is_none() {
            let places = line.strip_prefix(REGISTERED);
            self.places = places.map(|places| places.trim().parse().unwrap_or(u32::MAX));
            return Line::Other;
        }
        let file = line.trim_start().split_once(": ");
        let file = file.filter(|(number, _)| number.bytes().all(|byte| byte.is_ascii_digit()));
        self.shown += u32::from(file.is_some());
        match file {
            Some((_, NO_FILE)) => Line::Other,
            Some((_, path)) => Line::File(path.starts_with('/').then(|| unescape(path))),
            None => Line::End,
        }
    }
}

/// How many files wait in a socket, out of its fdinfo (`unix_show_fdinfo`, net/unix/af_unix.c).
fn sent_files(fdinfo: &str) -> u32 {
    let count = fdinfo.lines().find_map(|line| line.strip_prefix("scm_fds:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::{Duration, Instant};

    use kevtmon_sources::procfs::mountinfo::MountTable;
    use kevtmon_testing::alone::alone;

    use super::*;
    use crate::searched::SearchedMount;

    #[test]
    fn of_a_process_with_more_sockets_than_there_is_time_for_that_is_said() {
        let test = "of_a_process_with_more_sockets_than_there_is_time_for_that_is_said";
        // Other tests of this process send files.
        alone(module_path!(), test, || {
            let socket = std::os::unix::net::UnixDatagram::unbound().unwrap();
            let copies: Vec<_> = (0..FDS_PER_LOOK).map(|_| socket.try_clone().unwrap()).collect();
            let process = kevtmon_sources::procfs::Proc::default().dir(std::process::id()).unwrap();
            let none = ScanTargets { mounts: Vec::new(), tables: BTreeMap::new() };
            let over = Deadline { used: Duration::MAX, latest: Instant::now() };
            let ample = Deadline { used: Duration::MAX, latest: Instant::now() + Duration::from_secs(60) };
            for (deadline, has_more) in [(over, true), (ample, false)] {
                let process = (std::process::id(), &process);
                let visit = Visitor::default().hidden(process, (&none, true), &deadline).unwrap();
                assert_eq!((!visit.unclear.is_empty(), &visit.pins[..]), (has_more, &[][..]));
            }
            drop(copies);
        });
    }

    #[test]
    fn the_files_of_a_ring_follow_their_number() {
        let info = "pos:\t0\nSqMask:\t0x3\nUserFiles:\t3\n    0: /v/file\n    2: /v/a\\040b\nUserBufs:\t1\n    0: 0x1/4096\n";
        let paths = ["/v/file", "/v/a b"].map(|path| Some(path.to_owned()));
        assert_eq!(registered(info), paths);
        let older = "UserFiles:\t2\n    0: file\n    1: <none>\nUserBufs:\t0\n";
        assert_eq!(registered(older), [None]);
        assert_eq!(registered("pos:\t0\n"), []);
    }

    fn registered(info: &str) -> Vec<Option<String>> {
        let mut files = Registered::default();
        let lines = info.lines().map(|line| files.line(line)).take_while(|line| *line != Line::End);
        let path = |line| if let Line::File(path) = line { Some(path.map(Cow::into_owned)) } else { None };
        lines.filter_map(path).collect()
    }

    #[test]
    fn of_a_ring_with_more_files_than_are_read_it_is_not_said_that_none_matters() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("7/fdinfo")).unwrap();
        let infos = kevtmon_sources::procfs::Proc::new(root.path()).dir(7).unwrap().at(c"fdinfo").unwrap();
        let table = MountTable::parse("1 0 8:1 / / rw - ext4 d rw\n2 1 0:9 / /v rw - tmpfs t rw\n", "/");
        let mounts = vec![SearchedMount { ns: 7, mount: table.by_id(2).unwrap() }];
        let targets = ScanTargets { mounts, tables: [(7, &table)].into() };
        let named = |count: usize, last: &str| {
            let files: String =
                (0..count).map(|number| format!("{number:5}: /w/{}\n", "x".repeat(1000))).collect();
            let info = format!("pos:\t0\nUserFiles:\t{count}\n{files}{last}UserBufs:\t0\n");
            std::fs::write(root.path().join("7/fdinfo/3"), info).unwrap();
            Visitor::default().named_by_ring(&infos, 3, &targets)
        };
        assert_eq!(named(0, ""), None);
        assert_eq!(named(100, ""), None);
        assert_eq!(named(100, "  100: /v/f\n"), Some(Some("/v/f".to_owned())));
        assert_eq!(named(5000, ""), Some(None));
        // Somebody has its lock: the kernel shows nothing of it then.
        std::fs::write(root.path().join("7/fdinfo/3"), "pos:\t0\nflags:\t02000002\n").unwrap();
        assert_eq!(Visitor::default().named_by_ring(&infos, 3, &targets), Some(None));
    }

    #[test]
    fn a_ring_that_shows_no_files_has_none_if_its_kernel_shows_them_or_nothing() {
        let locked = Registered::default();
        let places = Registered { places: Some(2), shown: 0 };
        let [older, newer] = [KernelRelease(6, 15), KernelRelease(6, 16)].map(Some);
        for (release, expected) in [(None, true), (older, true), (newer, false)] {
            assert!(locked.may_be_more(release));
            assert_eq!(places.may_be_more(release), expected, "{release:?}");
        }
    }
}
