//! Who serves a FUSE file system: the processes that have its connection open. Where the kernel shows no connections, those of
//! root of the node whose arguments name the mount point; that is never certain.

use std::time::Duration;

use kevtmon_observation::FileServer;
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::dir::{Buffer, Dir, is_gone};
use kevtmon_sources::procfs::mountinfo::Mount;
use kevtmon_sources::procfs::root::is_root_of_node;
use kevtmon_types::kernel_release::KernelRelease;

use super::state::state;
use super::{Devices, devices, is_of, served};
use crate::Deadline;
use crate::mntns_index::survivor;
use crate::pins::Extent;

const MOST: usize = 8;
/// A release that shows the connection of a descriptor. Whether an earlier one does, a descriptor tells that has one.
pub(super) const SHOWN_SINCE: KernelRelease = KernelRelease(6, 18);
/// Time for all descriptors of one process at first, and how many times more it has whenever that was too short.
const SLICE: Duration = Duration::from_millis(5);
const SLICE_GROWTH: u32 = 4;

#[derive(Debug, Default)]
pub struct Serving {
    pub servers: Vec<FileServer>,
    /// Whether no process has its connection open: its server is gone, and every access to it fails (`ENOTCONN`). False where
    /// that is not known: who hangs his readers, may not be read, or has more descriptors than there was time for may be it, and
    /// older kernels do not show whose a connection is. Only the first process keeps its files to itself on many nodes; it
    /// serves none.
    pub is_unserved: bool,
    pub is_whole: bool,
    /// Whether some have the device open of which the kernel does not show whose connection it is.
    pub is_hidden: bool,
}

struct Search<'a> {
    proc: &'a Proc,
    mounts: &'a [&'a Mount],
    deadline: &'a Deadline,
    links: Buffer,
    text: Vec<u8>,
    /// Of each mount, by their connections, and by their arguments.
    shown: Vec<Vec<u32>>,
    told: Vec<Vec<u32>>,
    shows: bool,
    /// Whether somebody has the device open, and no connection is shown of it.
    is_hidden: bool,
    /// Who may have it open and was not looked at.
    unread: Vec<u32>,
    /// Who has more descriptors than were looked at, or threads: hardly a server, which opens the device before it serves
    /// anything.
    left: Vec<u32>,
}

/// Looks for the servers of a file system among all processes, until the time is over: first at the descriptors that
/// a server opens it by, and then at the others of those who have very many.
pub fn serving(proc: &Proc, mount: &Mount, deadline: &Deadline) -> Serving {
    serving_each(proc, &[mount], deadline).pop().unwrap_or_default()
}

/// The same of several file systems, in their order.
pub fn serving_each(proc: &Proc, mounts: &[&Mount], deadline: &Deadline) -> Vec<Serving> {
    let Ok(tgids) = proc.pids() else { return Vec::new() };
    let mut search = Search::new(proc, mounts, deadline);
    search.look(&tgids, None);
    // One of them may have the connection from its server, as a child has.
    let has_unread = !search.unread.is_empty();
    let mut slice = SLICE;
    // Of one that was found, another one would be told as well, but need not be looked for.
    while search.misses_any() && !search.left.is_empty() && !deadline.is_over() {
        let left = std::mem::take(&mut search.left);
        search.look(&left, Some(slice));
        slice *= SLICE_GROWTH;
    }
    let is_whole = search.unread.is_empty() && search.left.is_empty();
    let is_hidden = search.is_hidden && !search.shows;
    let Search { shown, told, shows, .. } = search;
    let of = |(shown, told): (Vec<u32>, Vec<u32>)| {
        let is_certain = shown.len() == 1 && !has_unread;
        let is_unserved = is_whole && !is_hidden && shown.is_empty();
        let found = if shown.is_empty() && !shows { told } else { shown };
        let servers = found.into_iter().take(MOST).filter_map(|tgid| describe(proc, tgid, is_certain));
        Serving { servers: servers.collect(), is_unserved, is_whole, is_hidden }
    };
    shown.into_iter().zip(told).map(of).collect()
}

impl<'a> Search<'a> {
    fn new(proc: &'a Proc, mounts: &'a [&'a Mount], deadline: &'a Deadline) -> Self {
        let (links, text, shows) = (Buffer::default(), Vec::new(), SHOWN_SINCE.is_running());
        let (unread, left) = (Vec::new(), Vec::new());
        let (shown, told) = (vec![Vec::new(); mounts.len()], vec![Vec::new(); mounts.len()]);
        Self { proc, mounts, deadline, links, text, shown, told, shows, is_hidden: false, unread, left }
    }

    #[cfg(test)]
    fn has_looked_at_all(&self) -> bool {
        self.unread.is_empty() && self.left.is_empty()
    }

    fn misses_any(&self) -> bool {
        self.shown.iter().any(Vec::is_empty)
    }

    /// `slice`: the time for each; without one it is looked at what nearly all have no more of.
    fn look(&mut self, tgids: &[u32], slice: Option<Duration>) {
        for (count, tgid) in tgids.iter().enumerate() {
            if self.deadline.is_over() {
                self.unread.extend(&tgids[count..]);
                return;
            }
            let until = slice.map(|slice| self.deadline.within(slice));
            self.look_at(*tgid, until.as_ref().map_or(Extent::First, Extent::Until));
        }
    }

    fn look_at(&mut self, tgid: u32, extent: Extent<'_>) {
        let process = self.proc.dir(tgid);
        let open = process.as_ref().map_err(is_gone).and_then(|process| {
            let open = devices(self.proc, (tgid, process), &mut self.links, extent);
            open.map_err(|error| is_gone(&error))
        });
        let (process, Devices { open, is_whole, .. }) = match (process, open) {
            (Ok(process), Ok(devices)) => (process, devices),
            (_, Err(is_gone)) => {
                let is_none = is_gone && !self.proc.is_aside(tgid) || tgid == 1;
                self.unread.extend((!is_none).then_some(tgid));
                return;
            }
            (Err(_), Ok(_)) => return,
        };
        self.shows |= open.iter().any(Option::is_some);
        let mut is_server = false;
        for (mount, shown) in self.mounts.iter().zip(&mut self.shown) {
            if open.iter().flatten().any(|number| is_of(*number, mount)) {
                shown.push(tgid);
                is_server = true;
            }
        }
        if is_server {
            return;
        }
        self.left.extend((!is_whole).then_some(tgid));
        // What is not mounted has no connection anywhere.
        if !self.shows && open.iter().any(Option::is_none) {
            self.is_hidden = true;
            self.hear(tgid, &process);
        }
    }

    /// Believes the arguments of root of the node; those of others cost nothing.
    fn hear(&mut self, tgid: u32, process: &Dir) {
        let survivor = survivor(tgid, process, &mut self.links);
        let task = survivor.as_ref().unwrap_or(process);
        let is_new = |told: &Vec<u32>| told.len() < MOST && !told.contains(&tgid);
        if !self.told.iter().any(is_new) || !is_root_of_node(task, &mut self.links, &mut self.text) {
            return;
        }
        let Some(served) = served(self.proc, (tgid, process)).filter(|served| !served.is_certain) else {
            return;
        };
        for (mount, told) in self.mounts.iter().zip(&mut self.told) {
            if served.mountpoint == mount.mountpoint && is_new(told) {
                told.push(tgid);
            }
        }
    }
}

/// The process that serves a file system. Of several the first one, which is only likely it.
pub fn server_of(proc: &Proc, mount: &Mount, budget: Duration) -> Option<FileServer> {
    serving(proc, mount, &Deadline::after(budget)).servers.into_iter().next()
}

fn describe(proc: &Proc, tgid: u32, is_certain: bool) -> Option<FileServer> {
    let process = proc.dir(tgid).ok()?;
    let stat = proc.stat(tgid)?;
    let (state, waits_for) = state(&process, stat.state);
    let (uid, cgroup) = (proc.uid(tgid), proc.cgroup(tgid));
    // Much was read by its number.
    process.is_there(&mut Vec::new()).then_some(FileServer {
        tgid,
        comm: stat.comm,
        state,
        waits_for,
        is_certain,
        uid,
        cgroup,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use kevtmon_sources::procfs::mountinfo::MountTable;

    use super::*;

    #[test]
    fn who_has_more_descriptors_than_there_was_time_for_may_be_the_server() {
        let root = tempfile::tempdir().unwrap();
        for directory in ["20/fd", "20/fdinfo", "20/task/20"] {
            fs::create_dir_all(root.path().join(directory)).unwrap();
        }
        for fd in 0..1500 {
            symlink("/dev/null", root.path().join(format!("20/fd/{fd}"))).unwrap();
        }
        let table = MountTable::parse("1 0 0:39 / /v rw - fuse x rw", "/");
        let (proc, deadline) = (Proc::new(root.path()), Deadline::after(Duration::from_secs(60)));
        let mounts = [table.at("/v").unwrap()];
        let mut search = Search::new(&proc, &mounts, &deadline);
        search.look(&[20], None);
        assert!(!search.has_looked_at_all());
        search.left.clear();
        search.look(&[20], Some(Duration::from_secs(60)));
        assert!(search.has_looked_at_all() && search.misses_any());
        let over = Deadline::after(Duration::ZERO);
        search.deadline = &over;
        search.look(&[20], Some(Duration::from_secs(60)));
        assert!(!search.has_looked_at_all());
    }
}
