//! The descriptors of a process: those of its table, and of the tables that threads have of their own
//! (`unshare(CLONE_FILES)`).
//!
//! Nearly all threads share one table, which kcmp(2) tells at the cost of one link. Where it does not tell, every thread is
//! taken to have its own: that two tables have as many descriptors, or the same numbers, says nothing.

use std::collections::BTreeMap;
use std::ffi::CString;

use kevtmon_observation::{Access, MeantMount};
use kevtmon_sources::procfs::dir::{Dir, NumberName, is_gone, mnt_id};
use kevtmon_sources::procfs::kcmp;
use serde::{Deserialize, Serialize};

use super::{On, Pin, Visit, Visitor, sockets};
use crate::Deadline;
use crate::mntns_index::{MAX_THREADS, task_dir, threads};
use crate::searched::ScanTargets;

pub(super) const FDS_PER_LOOK: u32 = 256;

/// Numbers that may be unused among the lowest ones before the rest is listed.
const MAX_GAPS: u64 = 8;

/// How much of one process is looked at before all others were.
const FIRST_FDS: u32 = 256;
/// Some 2,500 mappings.
pub(super) const FIRST_MAPS: u64 = 256 << 10;
/// As many, where they are counted.
pub(super) const FIRST_MAPPINGS: u32 = 2500;

const KEEPS_UNKNOWN: &str =
    "it keeps a mount namespace without a process; this kernel does not show the mounts there";

/// Tables of one process that a thread is compared with.
const MAX_TABLES: usize = 8;

/// What of the files of a process was not looked at yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rest {
    /// Descriptors from this one on.
    fd: Option<u32>,
    /// Threads with a table of their own, and from which descriptor on.
    threads: BTreeMap<u32, u32>,
    /// Whether its mappings are to be read.
    pub(super) maps: bool,
}

impl Rest {
    /// Everything but the tables of threads, which are found with the first files.
    pub const ALL: Self = Self { fd: Some(0), threads: BTreeMap::new(), maps: true };
    pub const DESCRIPTORS: Self = Self { fd: Some(0), threads: BTreeMap::new(), maps: false };
    pub const NONE: Self = Self { fd: None, threads: BTreeMap::new(), maps: false };

    /// Descriptors from these on, each in the table of the process or of a thread.
    pub fn from(fds: impl Iterator<Item = (Option<u32>, u32)>) -> Self {
        let mut rest = Self::NONE;
        for (tid, fd) in fds {
            let first = match tid {
                Some(tid) => rest.threads.entry(tid).or_insert(fd),
                None => rest.fd.get_or_insert(fd),
            };
            *first = fd.min(*first);
        }
        rest
    }

    pub fn is_any(&self) -> bool {
        self.fd.is_some() || !self.threads.is_empty() || self.maps
    }
}

/// How much of one process is looked at.
#[derive(Debug, Clone, Copy)]
pub enum Extent<'d> {
    /// The first files, which nearly all processes have no more of.
    First,
    /// All that is left, until then.
    Until(&'d Deadline),
}

/// Whose table of descriptors is meant.
#[derive(Debug, Clone, Copy)]
pub struct Owner {
    pub tgid: u32,
    /// The thread that has it.
    pub tid: u32,
}

impl Owner {
    /// The thread, if the directory of the process does not show its table: another one is shown there, or none where the first
    /// thread ended.
    pub(super) fn apart(self) -> Option<u32> {
        (self.tid != self.tgid).then_some(self.tid)
    }
}

/// One table of descriptors.
pub(super) struct Files<'a> {
    /// The thread that has it.
    pub(super) task: &'a Dir,
    pub(super) owner: Owner,
    pub(super) list: Dir,
    pub(super) targets: &'a ScanTargets<'a>,
    extent: Extent<'a>,
    count: u32,
    /// Whether the sockets of its network namespace are known, as far as they can be.
    pub(super) is_netns_listed: bool,
}

impl Files<'_> {
    fn is_enough(&self) -> bool {
        match self.extent {
            Extent::First => self.count >= FIRST_FDS,
            Extent::Until(deadline) => self.count % FDS_PER_LOOK == FDS_PER_LOOK - 1 && deadline.is_over(),
        }
    }
}

enum State {
    Closed,
    Open,
    /// Open on a searched mount: no need to look at another one.
    Held,
}

/// The tables of one process that are known.
pub struct Tables {
    tids: Vec<u32>,
    own_ids: bool,
    /// Descriptors of threads that were looked at.
    count: u32,
}

impl Tables {
    /// That of this thread alone. `own_ids`: whether /proc shows the ids of our own pid namespace.
    pub fn of(tid: u32, own_ids: bool) -> Self {
        Self { tids: vec![tid], own_ids, count: 0 }
    }

    /// Whether a thread has one that is not known yet, as far as that can be told.
    pub fn is_new(&mut self, tid: u32) -> bool {
        let shares = |known: &u32| kcmp::share_files(*known, tid) == Some(true);
        if self.own_ids && self.tids.iter().any(shares) {
            return false;
        }
        if self.tids.len() < MAX_TABLES {
            self.tids.push(tid);
        }
        true
    }

    /// From now on as much is looked at again.
    pub(super) fn begin(&mut self) {
        self.count = 0;
    }
}

impl Visitor {
    /// The tables of a process of which only that of this thread is known.
    pub(super) fn tables(&self, tid: u32) -> Tables {
        Tables::of(tid, self.own.is_some())
    }

    /// Looks at all tables of a process: the first descriptors, or what is left of them; false if there was no time for that.
    pub(super) fn all_descriptors(
        &mut self,
        owner: Owner,
        (process, main): (&Dir, &Dir),
        targets: &ScanTargets<'_>,
        (left, extent): (&mut Rest, Extent<'_>),
        visit: &mut Visit,
    ) -> bool {
        if let Some(fd) = left.fd {
            left.fd = self.descriptors((main, owner), (fd, 0), targets, extent, visit).0;
        }
        match extent {
            Extent::First => {
                let mut tables = self.tables(owner.tid);
                let tids = threads(owner.tgid, process, &mut self.buffer).into_iter();
                for tid in tids.take(MAX_THREADS).filter(|tid| *tid != owner.tid) {
                    self.own_table(process, Owner { tid, ..owner }, targets, (&mut tables, left), visit);
                }
            }
            Extent::Until(_) if left.fd.is_some() => return false,
            Extent::Until(_) => {
                while let Some((tid, fd)) = left.threads.pop_first() {
                    let Some(task) = task_dir(process, tid) else { continue };
                    let table = (&task, Owner { tid, ..owner });
                    let next = self.descriptors(table, (fd, 0), targets, extent, visit).0;
                    if let Some(next) = next {
                        left.threads.insert(tid, next);
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Looks at the first descriptors of a thread, unless they are in a table that is known, or the process holds something by
    /// a descriptor anyway.
    pub(super) fn own_table(
        &mut self,
        process: &Dir,
        owner: Owner,
        targets: &ScanTargets<'_>,
        (tables, left): (&mut Tables, &mut Rest),
        visit: &mut Visit,
    ) {
        if visit.has(Access::Fd) || !tables.is_new(owner.tid) {
            return;
        }
        let Some(task) = task_dir(process, owner.tid) else { return };
        let (next, count) =
            self.descriptors((&task, owner), (0, tables.count), targets, Extent::First, visit);
        tables.count = count;
        left.threads.extend(next.map(|next| (owner.tid, next)));
    }

    /// The first descriptor of a table, from this one on, that is open on a searched mount. Returns with which one to go on, if
    /// not all were looked at, and how many were, with those before.
    ///
    /// Listing them would take an eighth of the whole scan. So where the kernel shows how many there are they
    /// are tried from zero, as long as nearly all numbers are in use.
    fn descriptors(
        &mut self,
        (task, owner): (&Dir, Owner),
        (from, count): (u32, u32),
        targets: &ScanTargets<'_>,
        extent: Extent<'_>,
        visit: &mut Visit,
    ) -> (Option<u32>, u32) {
        let Some(list) = visit.read(task.at(c"fd")) else { return (None, count) };
        let mut files = Files { task, owner, list, targets, extent, count, is_netns_listed: false };
        (self.descriptors_of(&mut files, from, visit), files.count)
    }

    fn descriptors_of(&mut self, files: &mut Files<'_>, from: u32, visit: &mut Visit) -> Option<u32> {
        let size = files.list.size();
        let (mut next, mut open) = (from, 0);
        while from == 0 && open < size && u64::from(next) <= open + MAX_GAPS {
            if files.is_enough() {
                return Some(next);
            }
            match self.descriptor(files, next, visit) {
                State::Closed => {}
                State::Open => open += 1,
                State::Held => return None,
            }
            next += 1;
        }
        if from == 0 && open >= size && size > 0 {
            return None;
        }
        if from > 0 {
            visit.read(files.list.list_from(next))?;
        }
        let mut fds = Vec::new();
        loop {
            fds.clear();
            if !visit.read(files.list.more_numbers(&mut self.buffer, &mut fds))? {
                return None;
            }
            for fd in fds.iter().copied().filter(|fd| *fd >= next) {
                if files.is_enough() {
                    return Some(fd);
                }
                if let State::Held = self.descriptor(files, fd, visit) {
                    return None;
                }
            }
        }
    }

    fn descriptor(&mut self, files: &mut Files<'_>, fd: u32, visit: &mut Visit) -> State {
        files.count += 1;
        let name = NumberName::new(fd);
        let path = match files.list.link(name.as_c_str(), &mut self.buffer) {
            Ok(path) if files.targets.selects(&path) => Some(path.into_owned()),
            Ok(path) => {
                if let Some(inode) = sockets::inode(&path) {
                    self.socket(files, (fd, inode), visit);
                } else if let Some(kept) = self.namespaces.of(&path) {
                    match kept {
                        Some(ns) => visit.kept.push((ns, fd)),
                        None => visit.doubt(KEEPS_UNKNOWN),
                    }
                }
                return State::Open;
            }
            Err(error) if is_gone(&error) => return State::Closed,
            // Where the kernel cannot show the name, the mount id alone decides.
            Err(error) if error.raw_os_error() == Some(libc::ENAMETOOLONG) => None,
            Err(_) => {
                visit.refused = true;
                return State::Open;
            }
        };
        let info = visit.read(files.task.at(c"fdinfo"));
        let info = info.and_then(|info| visit.read(info.text(name.as_c_str(), &mut self.text)));
        let held = match (info.as_deref().map(mnt_id), &path) {
            (Some(Some(id)), None) if files.targets.has_part_of(id) => {
                visit.decide(On::Unknown, Access::Fd, "", |id| MeantMount { id, unique: None });
                false
            }
            (Some(Some(id)), path) => files.targets.has(id, path.as_deref()),
            // Before 3.15 a name is all that there is.
            (Some(None), Some(path)) if files.targets.names(visit.ns, path) => {
                visit.decide(On::Unknown, Access::Fd, path, |id| MeantMount { id, unique: None });
                false
            }
            _ => false,
        };
        if held {
            let link = CString::new(format!("fd/{fd}")).ok();
            let id = info.as_deref().and_then(mnt_id).zip(link);
            let mount = id.map(|(id, link)| files.targets.held(id, files.task, &link));
            visit.add(Pin { fd: Some(fd), tid: files.owner.apart(), mount, ..Pin::of(Access::Fd, path) });
            return State::Held;
        }
        State::Open
    }
}
