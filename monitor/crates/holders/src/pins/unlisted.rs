//! Uses of mounts that no mount namespace shows: whoever has a user namespace can copy a tree of mounts that is in none
//! (`open_tree(2)`), and who uses the copy of the target in it refuses an unmount as well. The path of a file there begins at the
//! top of that tree, so no name tells: the file system and the number of the mount do, and only that it may be such a mount. It
//! may as well be one that was detached, which refuses nothing.
//!
//! Not for file systems whose files show other devices than their mounts, and not for what is only mapped.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};

use kevtmon_observation::{Access, MeantMount};
use kevtmon_sources::procfs::dir::{Dir, NumberName, mnt_id};

use super::descriptors::FDS_PER_LOOK;
use super::{Pin, Visit, Visitor};
use crate::Deadline;
use crate::mntns_index::{MAX_THREADS, namespace, task_dir, threads};
use crate::searched::ScanTargets;

/// Of what the kernel tells of a descriptor; the mount is among the first lines.
const INFO: u64 = 256;

/// Mounts by their numbers.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// Those that are shown, or of another file system.
    others: BTreeSet<u64>,
    is_begun: bool,
}

impl Visitor {
    /// Takes note of mounts that a namespace shows.
    pub fn show(&mut self, ids: impl IntoIterator<Item = u64>) {
        self.numbers.others.extend(ids);
    }

    /// Looks for uses of such a mount in one process; all that it finds is possible only.
    pub fn unlisted(
        &mut self,
        (tgid, process): (u32, &Dir),
        targets: &ScanTargets<'_>,
        deadline: &Deadline,
    ) -> Option<Visit> {
        let device = targets.own_device()?;
        if !std::mem::replace(&mut self.numbers.is_begun, true) {
            let all = targets.tables.values().flat_map(|table| table.iter());
            self.numbers.others.extend(all.map(|mount| mount.id));
        }
        let mut visit = Visit::default();
        for (count, tid) in (1..).zip(threads(tgid, process, &mut self.buffer)) {
            let Some(task) = task_dir(process, tid) else { continue };
            for (name, access) in [(c"cwd", Access::Cwd), (c"root", Access::Root)] {
                if let Some(id) = self.is_unlisted(&task, name, device) {
                    self.add_unlisted(&task, (name, id), Pin::of(access, None::<String>), &mut visit);
                }
            }
            if count % MAX_THREADS == 0 && deadline.is_over() {
                visit.is_cut = true;
                break;
            }
        }
        self.each_table((tgid, process), deadline, &mut visit, |visitor, task, visit| {
            visitor.find_unlisted(task, device, deadline, visit);
        })?;
        if !visit.pins.is_empty() {
            visit.ns = visit.read(namespace(process, &mut self.buffer)).flatten().unwrap_or_default();
        }
        Some(visit)
    }

    fn find_unlisted(&mut self, task: &Dir, device: [u32; 2], deadline: &Deadline, visit: &mut Visit) {
        let (Some(list), Some(infos)) = (visit.read(task.at(c"fd")), visit.read(task.at(c"fdinfo"))) else {
            return;
        };
        let mut fds = Vec::new();
        let _ = visit.read(list.numbers(&mut self.buffer, &mut fds));
        for (count, fd) in (1_u32..).zip(fds) {
            let info = infos.beginning(NumberName::new(fd).as_c_str(), INFO, &mut self.text);
            let id = info.ok().and_then(|(info, _)| mnt_id(&info));
            if id.is_some_and(|id| !self.numbers.others.contains(&id))
                && let Ok(link) = CString::new(format!("fd/{fd}"))
                && let Some(id) = self.is_unlisted(task, &link, device)
            {
                let pin = Pin { fd: Some(fd), ..Pin::of(Access::Fd, None::<String>) };
                self.add_unlisted(task, (&link, id), pin, visit);
                return;
            }
            if count % FDS_PER_LOOK == 0 && deadline.is_over() {
                visit.is_cut = true;
                return;
            }
        }
    }

    /// The number of the mount that a link leads to, if it is one of this file system that is not shown.
    fn is_unlisted(&mut self, task: &Dir, link: &CStr, device: [u32; 2]) -> Option<u64> {
        let (id, of) = task.mount_and_device(link).ok().flatten()?;
        if of != device {
            self.numbers.others.insert(id);
        }
        (!self.numbers.others.contains(&id)).then_some(id)
    }

    fn add_unlisted(&mut self, task: &Dir, (link, id): (&CStr, u64), pin: Pin, visit: &mut Visit) {
        let path = task.link(link, &mut self.buffer).ok().map(std::borrow::Cow::into_owned);
        visit.is_unlisted = true;
        visit.add(Pin { path, possible: true, mount: Some(MeantMount { id, unique: None }), ..pin });
    }
}
