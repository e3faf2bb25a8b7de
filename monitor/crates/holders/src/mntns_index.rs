//! Which process is in which mount namespace.
//!
//! Threads are looked up one by one, since each may have a namespace of its own (dockerd and runc leave such); of a
//! process with very many of them only the first, so that nobody makes the list endless. Independent of the mount that
//! is searched for.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use kevtmon_ebpf::iterators::ListedTask;
use kevtmon_observation::NsInum;
use kevtmon_sources::procfs::dir::{Buffer, Dir, NumberName, is_gone};
use kevtmon_sources::procfs::mountinfo::{Mount, MountTable};
use kevtmon_sources::procfs::statmount::MountNamespace;
use kevtmon_sources::procfs::{Proc, parse_ns, readers};

use super::Deadline;

/// Threads of a process that are looked up.
pub(super) const MAX_THREADS: usize = 64;
/// Mounts of a namespace that are read where its members do not show them.
const MOUNTS_MAX: usize = 8192;

/// A task whose /proc directory shows its mount namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) tgid: u32,
    pub(super) tid: u32,
}

impl Member {
    /// The directory of the task in /proc.
    pub(super) fn dir(self, proc: &Proc) -> Option<Dir> {
        let process = proc.dir(self.tgid).ok()?;
        if self.tid == self.tgid { Some(process) } else { task_dir(&process, self.tid) }
    }
}

#[derive(Debug, Default)]
pub(super) struct MntnsIndex {
    /// One member per process, and one per thread in another namespace than its process.
    pub(super) namespaces: BTreeMap<NsInum, Vec<Member>>,
    pub(super) listed: BTreeSet<u32>,
    /// Processes whose namespace may not be read.
    pub(super) unreadable: Vec<u32>,
    /// Processes with more threads than were looked up.
    pub(super) crowded: Vec<u32>,
    /// Whether there was time for all processes.
    pub(super) finished: bool,
}

impl MntnsIndex {
    pub(super) fn build(proc: &Proc, deadline: &Deadline) -> io::Result<Self> {
        let mut index = Self { finished: true, ..Self::default() };
        let mut buffer = Buffer::default();
        let asker = readers::asker();
        let pids = proc.pids()?;
        index.listed.extend(&pids);
        for tgid in pids.into_iter().filter(|tgid| Some(*tgid) != asker) {
            if deadline.is_over() {
                index.finished = false;
                return Ok(index);
            }
            match proc.dir(tgid) {
                Ok(dir) => index.add_process(tgid, &dir, &mut buffer),
                Err(error) if is_gone(&error) => {}
                Err(_) => index.unreadable.push(tgid),
            }
        }
        Ok(index)
    }

    /// Adds who asks, who is in no list otherwise.
    pub(super) fn add_asker(&mut self, proc: &Proc) {
        if let Some(asker) = readers::asker()
            && let Ok(dir) = proc.dir(asker)
        {
            self.add_process(asker, &dir, &mut Buffer::default());
            self.listed.insert(asker);
        }
    }

    /// The same by the kernel's own list, without a look at any process.
    pub(super) fn of(tasks: &[ListedTask]) -> Self {
        let mut index = Self { finished: true, ..Self::default() };
        let asker = readers::asker();
        let mut tasks: Vec<&ListedTask> = tasks.iter().filter(|task| Some(task.tgid) != asker).collect();
        tasks.sort_unstable_by_key(|task| (task.tgid, task.tid != task.tgid, task.tid));
        for process in tasks.chunk_by(|one, next| one.tgid == next.tgid) {
            let Some(first) = process.first() else { continue };
            let tgid = first.tgid;
            index.listed.insert(tgid);
            if process.len() > MAX_THREADS {
                index.crowded.push(tgid);
            }
            // A leader without a namespace is a zombie.
            let own = (first.tid == tgid && first.mntns != 0).then_some(first.mntns);
            for task in process.iter().take(MAX_THREADS) {
                if task.mntns != 0 && (task.tid == tgid || Some(task.mntns) != own) {
                    index.add(task.mntns, Member { tgid, tid: task.tid });
                }
            }
        }
        index
    }

    /// Adds a process with its first threads.
    fn add_process(&mut self, tgid: u32, dir: &Dir, buffer: &mut Buffer) {
        // A leader without a namespace is a zombie; other threads may live on.
        let own = match namespace(dir, buffer) {
            Ok(own) => own,
            // The kernel also refuses what it can no longer find.
            Err(_) if !dir.is_there(&mut Vec::new()) => return,
            Err(_) => return self.unreadable.push(tgid),
        };
        if let Some(own) = own {
            self.add(own, Member { tgid, tid: tgid });
        }
        let threads = threads(tgid, dir, buffer);
        if threads.len() > MAX_THREADS {
            self.crowded.push(tgid);
        }
        for tid in threads.into_iter().take(MAX_THREADS).filter(|tid| *tid != tgid) {
            let Some(task) = task_dir(dir, tid) else { continue };
            if let Ok(Some(ns)) = namespace(&task, buffer)
                && Some(ns) != own
            {
                self.add(ns, Member { tgid, tid });
            }
        }
    }

    fn add(&mut self, ns: NsInum, member: Member) {
        self.namespaces.entry(ns).or_default().push(member);
    }

    pub(super) fn members(&self, ns: NsInum) -> &[Member] {
        self.namespaces.get(&ns).map_or(&[], Vec::as_slice)
    }
}

/// The mount namespace of a task; `None` when it has ended.
pub(super) fn namespace(dir: &Dir, buffer: &mut Buffer) -> io::Result<Option<NsInum>> {
    match dir.link(c"ns/mnt", buffer) {
        Ok(link) => parse_ns(&link).map(Some).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Threads of a process, without a look at the list where there is only one.
pub(super) fn threads(tgid: u32, dir: &Dir, buffer: &mut Buffer) -> Vec<u32> {
    let mut tids = Vec::new();
    if dir.task_count() != Some(1)
        && let Ok(list) = dir.at(c"task")
        && list.numbers(buffer, &mut tids).is_ok()
        && !tids.is_empty()
    {
        return tids;
    }
    vec![tgid]
}

/// The directory of a thread that lives, where the first one has ended.
pub(super) fn survivor(tgid: u32, dir: &Dir, buffer: &mut Buffer) -> Option<Dir> {
    if !dir.link(c"root", buffer).is_err_and(|error| is_gone(&error)) {
        return None;
    }
    let others = threads(tgid, dir, buffer).into_iter().filter(|tid| *tid != tgid).take(MAX_THREADS);
    others.filter_map(|tid| task_dir(dir, tid)).find(|task| task.link(c"root", buffer).is_ok())
}

pub(super) fn task_dir(dir: &Dir, tid: u32) -> Option<Dir> {
    dir.at(c"task").ok()?.at(NumberName::new(tid).as_c_str()).ok()
}

#[derive(Debug)]
pub(super) struct Shown {
    pub(super) table: MountTable,
    /// Where some are hidden from every member, or there are more than are read: one of them.
    pub(super) hidden_from: Option<Member>,
}

/// Reads the mounts of a namespace from one of its members, best one first: a member in a chroot does not see all, nor one
/// whose root directory is something that it has mounted on `/`. Where the kernel lists mounts (6.11), those are added.
/// Where no mount is wanted, the table is empty. `None` where no member lives that may be read.
pub(super) fn mounts(
    proc: &Proc,
    members: impl IntoIterator<Item = Member>,
    wanted: impl Fn(&Mount) -> bool,
) -> Option<Shown> {
    let mut shown = shown_by_members(proc, members)?;
    if !shown.table.iter().any(wanted) {
        shown.table.retain(|_| false);
    }
    Some(shown)
}

fn shown_by_members(proc: &Proc, members: impl IntoIterator<Item = Member>) -> Option<Shown> {
    let mut buffer = Buffer::default();
    let mut partial: Option<Shown> = None;
    for member in members.into_iter().take(MAX_TRIES) {
        let Some(dir) = member.dir(proc) else { continue };
        let Ok(root) = dir.link(c"root", &mut buffer) else { continue };
        if root != "/" && partial.as_ref().is_some_and(|shown| !shown.table.is_empty()) {
            continue;
        }
        let mut count = 0;
        let Ok(table) = dir.mount_table(&root, |_| {
            count += 1;
            true
        }) else {
            continue;
        };
        // It sees none at all where its root directory is no mount point, or was detached.
        if root == "/" && count > 0 {
            // Any other member would show no more.
            return Some(with_hidden(&dir, member, table, Some(count)));
        }
        partial = Some(Shown { table, hidden_from: Some(member) });
    }
    let Shown { table, hidden_from } = partial?;
    let member = hidden_from?;
    match member.dir(proc) {
        Some(dir) => Some(with_hidden(&dir, member, table, None)),
        None => Some(Shown { table, hidden_from }),
    }
}

/// Adds what a member does not see. `count`: how many mounts it sees, if it is in no chroot.
fn with_hidden(dir: &Dir, member: Member, table: MountTable, count: Option<usize>) -> Shown {
    let namespace = MountNamespace::of(dir);
    let has_more = match (&namespace, count) {
        _ if table.is_cut() => return Shown { table, hidden_from: Some(member) },
        (Ok(namespace), Some(count)) => match namespace.has_more_than(count) {
            Ok(has_more) => has_more,
            // The kernel does not tell this daemon.
            Err(error) => error.kind() != io::ErrorKind::PermissionDenied,
        },
        // Older kernels do not tell.
        (Err(_), Some(_)) => false,
        (_, None) => true,
    };
    if !has_more {
        return Shown { table, hidden_from: None };
    }
    let all = namespace.and_then(|namespace| namespace.table_with(MOUNTS_MAX, |_, _| true));
    match all {
        Ok(Some(all)) if !all.is_cut() => Shown { table: all, hidden_from: None },
        _ => Shown { table, hidden_from: Some(member) },
    }
}

/// What one member shows of its namespace.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) tgid: u32,
    pub(super) process: Dir,
    /// Its root directory; `/` but for a chroot.
    pub(super) root: String,
    pub(super) table: MountTable,
}

/// Reads the mounts that a member sees; `None` if it sees none, is gone, or has entered another namespace meanwhile.
pub(super) fn seen_by(proc: &Proc, member: Member, ns: NsInum) -> Option<Seen> {
    let mut buffer = Buffer::default();
    let process = member.dir(proc)?;
    let root = process.link(c"root", &mut buffer).ok()?.into_owned();
    let table = process.mount_table(&root, |_| true).ok()?;
    let is_member = matches!(namespace(&process, &mut buffer), Ok(Some(now)) if now == ns);
    (is_member && root.starts_with('/') && !table.is_empty()).then_some(Seen {
        tgid: member.tgid,
        process,
        root,
        table,
    })
}

/// The same of some members, one after the other.
pub(super) fn seen_by_any(proc: &Proc, members: &[Member], ns: NsInum) -> impl Iterator<Item = Seen> {
    members.iter().take(MAX_TRIES).filter_map(move |member| seen_by(proc, *member, ns))
}

/// Members of one namespace that are tried until one can be read and is in no chroot.
pub(super) const MAX_TRIES: usize = 64;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_of_the_first_threads_is_looked_up_in_the_end() {
        let top = tempfile::tempdir().unwrap();
        let thread = |tgid: u32, tid: u32, mntns: u32| {
            let process = top.path().join(tgid.to_string());
            for ns in [process.join(format!("task/{tid}/ns")), process.join("ns")] {
                fs::create_dir_all(&ns).unwrap();
                let _ = symlink(format!("mnt:[{mntns}]"), ns.join("mnt"));
            }
        };
        (100..180).for_each(|tid| thread(100, tid, 1));
        (0..40).for_each(|number| thread(300, 300 + number, 1 + number));
        let ample = Deadline::after(Duration::from_secs(60));
        let index = MntnsIndex::build(&Proc::new(top.path()), &ample).unwrap();
        assert_eq!((index.namespaces.len(), &index.crowded[..], index.finished), (40, &[100][..], true));
        let none = Deadline::after(Duration::ZERO);
        assert!(!MntnsIndex::build(&Proc::new(top.path()), &none).unwrap().finished);
    }

    fn task(tgid: u32, tid: u32, mntns: u32) -> ListedTask {
        ListedTask { tgid, tid, mntns, uid: 0, exe: 0, cwd: 0, root: 0, reserved: 0 }
    }

    #[test]
    fn of_the_kernels_list_each_process_is_in_its_namespace_and_a_thread_where_it_differs() {
        let mut tasks = vec![task(7, 7, 1), task(9, 11, 1), task(9, 9, 1), task(9, 10, 2), task(12, 12, 0)];
        // The first thread has ended.
        tasks.push(task(12, 13, 2));
        tasks.extend((0..=64).map(|thread| task(100, 100 + thread, 1)));
        let index = MntnsIndex::of(&tasks);
        let members = |ns| index.members(ns).iter().map(|it| (it.tgid, it.tid)).collect::<Vec<_>>();
        assert_eq!(members(1), [(7, 7), (9, 9), (100, 100)]);
        assert_eq!(members(2), [(9, 10), (12, 13)]);
        assert_eq!((members(0).len(), &index.crowded[..], index.finished), (0, &[100][..], true));
    }
}
