//! Which process is in which mount namespace.
//!
//! Threads are looked up one by one, since each may have a namespace of its own (dockerd and runc leave such); of a
//! process with very many of them only the first, so that nobody makes the list endless. Independent of the mount that
//! is searched for.

use std::collections::{BTreeMap, HashMap};
use std::io;

use super::Deadline;
use crate::observation::NsInum;
use crate::sources::procfs::dir::{Buffer, Dir, NumberName, is_gone};
use crate::sources::procfs::mountinfo::MountTable;
use crate::sources::procfs::{Proc, parse_ns, readers};

/// Threads of a process that are looked up before all other processes were.
pub(super) const MAX_THREADS: usize = 64;

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

/// All processes by mount namespace.
#[derive(Debug, Default)]
pub(super) struct MntnsIndex {
    /// One member per process, and one per thread in another namespace than its process.
    pub(super) namespaces: BTreeMap<NsInum, Vec<Member>>,
    /// Processes whose namespace may not be read.
    pub(super) unreadable: Vec<u32>,
    /// Processes with more threads than were looked up.
    pub(super) crowded: Vec<u32>,
    /// Whose each process is, as far as its directory tells.
    owners: HashMap<u32, u32>,
    /// Whether there was time for all processes.
    pub(super) finished: bool,
}

impl MntnsIndex {
    /// Looks up every process.
    pub(super) fn build(proc: &Proc, deadline: &Deadline) -> io::Result<Self> {
        let mut index = Self { finished: true, ..Self::default() };
        let mut buffer = Buffer::default();
        let asker = readers::asker();
        for tgid in proc.pids()?.into_iter().filter(|tgid| Some(*tgid) != asker) {
            if deadline.is_over() {
                index.finished = false;
                break;
            }
            match proc.dir(tgid) {
                Ok(dir) => index.add_process(tgid, &dir, &mut buffer),
                Err(error) if is_gone(&error) => {}
                Err(_) => index.unreadable.push(tgid),
            }
        }
        Ok(index)
    }

    fn add_process(&mut self, tgid: u32, dir: &Dir, buffer: &mut Buffer) {
        self.owners.extend(dir.owner().map(|owner| (tgid, owner)));
        let own = match namespace(dir, buffer) {
            Ok(own) => own,
            // The kernel also refuses what it can no longer find.
            Err(_) if !dir.is_there(&mut Vec::new()) => return,
            Err(_) => return self.unreadable.push(tgid),
        };
        if let Some(own) = own {
            self.add(own, Member { tgid, tid: tgid });
        }
        // A leader without a namespace is a zombie; other threads may live on.
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

    /// Processes in an order in which those of one user, however many, do not come before those of another.
    pub(super) fn by_turns(&self, tgids: impl IntoIterator<Item = u32>) -> Vec<u32> {
        let mut of_owner: HashMap<u32, u32> = HashMap::new();
        let mut turns: Vec<(u32, u32, u32)> = Vec::new();
        for tgid in tgids {
            let owner = self.owners.get(&tgid).copied().unwrap_or_default();
            let turn = of_owner.entry(owner).or_default();
            *turn += 1;
            turns.push((*turn, owner, tgid));
        }
        turns.sort_unstable();
        turns.into_iter().map(|(.., tgid)| tgid).collect()
    }

    /// Members of a namespace.
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

/// The directory of a thread.
pub(super) fn task_dir(dir: &Dir, tid: u32) -> Option<Dir> {
    dir.at(c"task").ok()?.at(NumberName::new(tid).as_c_str()).ok()
}

/// What the members of a namespace show of its mounts.
#[derive(Debug)]
pub(super) struct Shown {
    /// Those that were wanted.
    pub(super) table: MountTable,
    /// Where every member is in a chroot, which hides some, or there are more than are read: one of them.
    pub(super) hidden_from: Option<Member>,
}

/// Reads the mounts of a namespace from one of its members, best one first: a member in a chroot does not
/// see all. Where no line is wanted, the table is empty. `None` where no member lives that may be read.
pub(super) fn mounts(
    proc: &Proc,
    members: impl IntoIterator<Item = Member>,
    wanted: impl Fn(&str) -> bool,
) -> Option<Shown> {
    let mut buffer = Buffer::default();
    let mut partial: Option<Shown> = None;
    for member in members.into_iter().take(MAX_TRIES) {
        let Some(dir) = member.dir(proc) else { continue };
        let Ok(root) = dir.link(c"root", &mut buffer) else { continue };
        if root != "/" && partial.as_ref().is_some_and(|shown| !shown.table.is_empty()) {
            continue;
        }
        let (mut is_wanted, mut is_empty) = (false, true);
        let Ok(mut table) = dir.mount_table(&root, |line| {
            is_empty = false;
            is_wanted |= wanted(line);
            true
        }) else {
            continue;
        };
        if !is_wanted {
            table.retain(|_| false);
        }
        // It sees none at all where its root directory is no mount point, or was detached.
        if root == "/" && !is_empty {
            // Any other member would show no more.
            let hidden_from = table.is_cut().then_some(member);
            return Some(Shown { table, hidden_from });
        }
        partial = Some(Shown { table, hidden_from: Some(member) });
    }
    partial
}

/// What one member shows of its namespace.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) tgid: u32,
    /// The directory of the task.
    pub(super) process: Dir,
    /// Its root directory; `/` but for a chroot.
    pub(super) root: String,
    /// The mounts below that.
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

/// Members of one namespace that are tried until one can be read and is in no chroot.
pub(super) const MAX_TRIES: usize = 64;

/// The mounts that a process sees whose links may not be read; its own root may hide some.
pub(super) fn mounts_of_unreadable(proc: &Proc, tgid: u32) -> io::Result<MountTable> {
    proc.dir(tgid)?.mount_table("/", |_| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_one_user_however_many_do_not_all_come_first() {
        let owners = (1..=5).map(|tgid| (tgid, 1000)).chain([(6, 0), (7, 1001), (8, 0)]).collect();
        let index = MntnsIndex { owners, ..MntnsIndex::default() };
        assert_eq!(index.by_turns(1..=8), [6, 1, 7, 8, 2, 3, 4, 5]);
    }
}
