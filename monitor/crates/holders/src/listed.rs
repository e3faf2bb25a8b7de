//! Who can hold a mount at all, by the kernel's own lists: of everybody else nothing is read.
//!
//! The lists name processes that have something of the mount's file system, or something that can hide a file; whether and how
//! they hold it, their files in /proc tell as ever. Where a list is not to be had, everybody can.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use kevtmon_ebpf::iterators::ListedTask;
use kevtmon_probe::iterators::{IteratorHandle, Lists, Sought};
use kevtmon_sources::procfs::mountinfo::{Mount, is_fuse};
use kevtmon_sources::procfs::readers::{reading_none, unless_it_hangs};
use kevtmon_sources::unix_sockets;

use super::progress::Stage;
use super::searched::{SearchedMount, is_layered};

/// Whether a thread of this process waits for a process that is changing its mappings: for ever, if that waits for a dead file
/// server. What such a process maps, nobody can know; so all are read in /proc then, and it is named as one that hangs.
static IS_STUCK: AtomicBool = AtomicBool::new(false);

/// The kernel's lists, and what they have shown.
#[derive(Debug)]
pub(super) struct Listed {
    handle: IteratorHandle,
    lists: Lists,
    pub(super) tasks: Vec<ListedTask>,
    device: Option<u32>,
    /// Who can hold it by what is in the lists of `/proc`; all, where that is not known.
    holding: Option<BTreeSet<u32>>,
    /// The same by what is not; known once the others were looked at, and once they were found.
    hiding: Option<Option<BTreeSet<u32>>>,
}

impl Listed {
    /// Lists all tasks; `None` where the kernel does not.
    pub(super) fn new(handle: IteratorHandle) -> Option<Self> {
        let listed = handle.open().and_then(|lists| Ok((lists.tasks()?, lists)));
        let listed =
            listed.inspect_err(|error| tracing::debug!(%error, "reads /proc instead of the kernel's lists"));
        let (tasks, lists) = listed.ok()?;
        Some(Self { handle, lists, tasks, device: None, holding: None, hiding: None })
    }

    /// Finds out who can hold this mount.
    pub(super) fn look_for(&mut self, mount: &Mount) {
        // Their mapped files are on other file systems; of FUSE those that its server passes through.
        if is_layered(&mount.fstype) || is_fuse(&mount.fstype) {
            return;
        }
        self.device = unix_sockets::device(&mount.device);
        let Some(device) = self.device else { return };
        self.holding = self.list(device).ok();
    }

    /// Who has something of it. Files that are sent are listed before and after those that are open, and directories are, too: so
    /// who turns one way of holding into another meanwhile is in one list at least.
    fn list(&self, device: u32) -> io::Result<BTreeSet<u32>> {
        let mut found = BTreeSet::from_iter(self.lists.involved(device, Sought::Hidden)?);
        found.extend(self.lists.involved(device, Sought::Files)?);
        found.extend(self.mapping(device)?);
        let after = self.lists.tasks()?;
        let has_it = |task: &&ListedTask| [task.exe, task.cwd, task.root].contains(&device);
        found.extend(self.tasks.iter().chain(&after).filter(has_it).map(|task| task.tgid));
        Ok(found)
    }

    /// Who has something of it now and had nothing before: others gave it to him meanwhile, and may have nothing any more.
    pub(super) fn given_since(&mut self) -> io::Result<BTreeSet<u32>> {
        let (Some(device), Some(before)) = (self.device, &self.holding) else { return Ok(BTreeSet::new()) };
        let mut now = self.list(device)?;
        now.retain(|tgid| !before.contains(tgid));
        self.holding.iter_mut().for_each(|holding| holding.extend(&now));
        Ok(now)
    }

    /// Whether this process may have something of the file system, by a list.
    pub(super) fn names(&self, tgid: u32) -> bool {
        self.holding.as_ref().is_none_or(|holding| holding.contains(&tgid))
    }

    /// Of mounts of other file systems, which users put in the way of an unmount, it is not known who can hold them.
    pub(super) fn add(&mut self, mounts: &[SearchedMount<'_>]) {
        let is_listed = |searched: &SearchedMount<'_>| {
            let device = unix_sockets::device(&searched.mount.device);
            device.is_some() && device == self.device
        };
        if !mounts.iter().all(is_listed) {
            (self.holding, self.hiding) = (None, Some(None));
        }
    }

    fn mapping(&self, device: u32) -> io::Result<Vec<u32>> {
        if IS_STUCK.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let handle = self.handle;
        reading_none();
        unless_it_hangs(move || handle.open()?.involved(device, Sought::Mappings)).unwrap_or_else(|| {
            IS_STUCK.store(true, Ordering::Relaxed);
            Err(io::ErrorKind::TimedOut.into())
        })
    }

    /// Whether a stage finds anything in a process.
    pub(super) fn may_hold(&mut self, stage: Stage, tgid: u32) -> bool {
        let all = match stage {
            Stage::Hidden => {
                let (lists, device) = (&self.lists, self.device);
                // Listed no sooner: what is sent to another one meanwhile is in one of both lists.
                let list = || lists.involved(device?, Sought::Hidden).ok().map(BTreeSet::from_iter);
                &*self.hiding.get_or_insert_with(list)
            }
            // Of neither list is it.
            Stage::Unseen => &None,
            _ => &self.holding,
        };
        all.as_ref().is_none_or(|all| all.contains(&tgid))
    }
}
