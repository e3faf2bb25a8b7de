//! Who still uses a mount that was detached, or refused an unmount before: the holders of the last scan go in, those that
//! hold on come out.
//!
//! Only their processes are read. Where a mount is detached, the kernel shows their files from its root; descriptors keep
//! its id. What is in a copy of another mount namespace is compared with the id of that copy, which is never reused where the
//! kernel has such. A current directory is told from one of the same name elsewhere by the id of its mount, or, before Linux
//! 5.8, by its device, which is read on local file systems only: a server that is gone would block it.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::path::Path;

use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::stat::fstatat;
use serde::{Deserialize, Serialize};

use super::mntns_index::task_dir;
use super::pins::{Owner, bound_file, is_closed, maps_file};
use super::resolve::is_local;
use super::searched::{answers_at_once, is_device};
use super::{Deadline, Holder, HolderReport, kernel, own_directory};
use crate::observation::{Access, MeantMount, MountFacts, Verdict};
use crate::sources::procfs::Proc;
use crate::sources::procfs::dir::{Buffer, Dir, NumberName, is_gone, mnt_id};

/// A request who still holds a detached mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StillHeldRequest {
    /// Returned in the report.
    pub id: u64,
    /// The mount, as it was.
    pub mount: MountFacts,
    /// As the last scan found them.
    pub holders: Vec<Holder>,
    /// Whether it is mounted still, so that files have the paths that they had.
    pub is_attached: bool,
}

/// Answers a request.
pub(super) fn still_held(proc: &Proc, request: &StillHeldRequest, deadline: Deadline) -> HolderReport {
    let StillHeldRequest { id, mount, holders, is_attached } = request;
    let skipped = HolderReport::skipped(*id, mount.mountpoint.clone());
    let mut report = HolderReport { mount: Some(mount.clone()), complete: true, ..skipped };
    let mut by_process: BTreeMap<u32, Vec<&Holder>> = BTreeMap::new();
    for holder in holders {
        by_process.entry(holder.tgid).or_default().push(holder);
    }
    for holder in by_process.remove(&0).into_iter().flatten() {
        match kernel::is_still(proc, holder).filter(|_| *is_attached) {
            Some(true) => report.holders.push(holder.clone()),
            Some(false) => {}
            None => report.blind_spot(None, "whether what the kernel held still does cannot be seen"),
        }
    }
    for (tgid, holders) in by_process {
        if deadline.is_over() {
            report.blind_spot(None, "the time to look at its holders again ran out");
            break;
        }
        let Ok(process) = proc.dir(tgid) else { continue };
        // Other threads live on where the first one has ended.
        let lives = || process.task_count().is_some_and(|count| count > 1);
        let Some(stat) = proc.stat(tgid).filter(|stat| stat.state != 'Z' || lives()) else { continue };
        for holder in holders {
            if holder.start_ns.is_some_and(|start| start != stat.start_ns) {
                continue;
            }
            let held = holds(proc, &process, holder, mount, *is_attached);
            if !process.is_there(&mut Vec::new()) {
                break;
            }
            match held {
                Some(true) => report.holders.push(Holder { comm: stat.comm.clone(), ..holder.clone() }),
                Some(false) => {}
                None => report.blind_spot(
                    Some((tgid, Some(stat.comm.clone()))),
                    match is_attached {
                        true => "whether it still uses the mount cannot be seen",
                        false => "whether it still uses the detached mount cannot be seen",
                    },
                ),
            }
        }
    }
    if !is_attached {
        report.blind_spot(None, "who did not hold it before it was unmounted was not looked at");
    }
    let in_it = |holder: &Holder| holder.explains() && holder.access != Access::ChildMount;
    report.verdict = match &report.holders[..] {
        [] => Verdict::Incomplete,
        holders if holders.iter().any(in_it) => Verdict::Processes,
        _ => Verdict::MountNamespace,
    };
    report
}

/// Whether it holds on; `None` where that cannot be seen.
fn holds(proc: &Proc, process: &Dir, holder: &Holder, mount: &MountFacts, is_attached: bool) -> Option<bool> {
    let (mut buffer, mut text) = (Buffer::default(), Vec::new());
    let thread = holder.tid.map(|tid| task_dir(process, tid));
    if let Some(None) = thread {
        return Some(false);
    }
    let task = thread.as_ref().and_then(Option::as_ref).unwrap_or(process);
    let held = Held::new(holder, mount, is_attached);
    let path = holder.path.as_deref()?;
    let now = path.strip_prefix(mount.mountpoint.trim_end_matches('/'));
    let now = match now {
        _ if is_attached => path,
        Some("") => "/",
        Some(below) => below,
        None if holder.access == Access::Mount => path,
        None => return None,
    };
    match holder.access {
        Access::Fd => {
            let name = NumberName::new(holder.fd?);
            let link =
                match task.at(c"fd").and_then(|fds| Ok(fds.link(name.as_c_str(), &mut buffer)?.into_owned()))
                {
                    Ok(link) => link,
                    Err(error) => return is_gone(&error).then_some(false),
                };
            let info =
                task.at(c"fdinfo").and_then(|dir| Ok(dir.text(name.as_c_str(), &mut text)?.into_owned()));
            let id = mnt_id(&info.ok()?)?;
            let name = CString::new(format!("fd/{}", holder.fd?)).ok()?;
            if link == now { held.is_on(id, (process, task), Some(&name)) } else { Some(false) }
        }
        Access::Socket => {
            let owner = Owner { tgid: holder.tgid, tid: holder.tid.unwrap_or(holder.tgid) };
            let own = own_directory(proc);
            match bound_file(own.as_deref(), (task, owner), holder.fd?) {
                Ok(file) => match file.filter(|file| file.path == now) {
                    Some(file) => held.is_on(file.mount, (process, task), None),
                    None => Some(false),
                },
                Err(error) => is_closed(&error).then_some(false),
            }
        }
        Access::Cwd | Access::Root | Access::Exe => is_in(proc, process, holder, &held, now),
        Access::Mmap => maps_file(process, now, |device| is_device(device, &mount.device)).ok()?,
        // What is mounted in a namespace that it only keeps its own mounts do not show.
        Access::Mount if holder.fd.is_some() => None,
        Access::Mount => {
            let root = process.link(c"root", &mut buffer).ok()?.into_owned();
            let table = process.mount_table(&root, |_| true).ok()?;
            let is_copy = |found: &_| is_copy(found, path, mount);
            Some(table.iter().any(is_copy)).filter(|is_held| *is_held || !table.is_cut())
        }
        Access::ChildMount | Access::Netns | Access::Loop | Access::Swap | Access::Export => Some(false),
        Access::InFlight | Access::IoUring => None,
    }
}

/// The mount that a holder was found on: the target, or a copy of it in another mount namespace, which has an id of its own.
struct Held<'m> {
    /// The target.
    mount: &'m MountFacts,
    /// `None` where it is not known which copy it was.
    on: Option<MeantMount>,
    is_in_copy: bool,
    is_attached: bool,
}

impl<'m> Held<'m> {
    fn new(holder: &Holder, mount: &'m MountFacts, is_attached: bool) -> Self {
        let is_foreign = holder.mntns.is_some_and(|mntns| mntns != mount.mntns);
        let target = MeantMount { id: mount.id, unique: None };
        let on = holder.mount.or_else(|| (!is_foreign).then_some(target));
        let is_in_copy = on.is_none_or(|on| on.id != mount.id);
        Self { mount, on, is_in_copy, is_attached }
    }

    /// Whether what is on the mount with this id now is on that one still. `link`: below the directory of the task.
    fn is_on(&self, id: u64, (process, task): (&Dir, &Dir), link: Option<&CStr>) -> Option<bool> {
        let on = self.on?;
        if id != on.id {
            return Some(false);
        }
        if let (Some(unique), Some(link)) = (on.unique, link)
            && let Ok(Some(now)) = task.unique_mount_of(link)
        {
            return Some(now == unique);
        }
        // The id of a copy is reused at once where that was unmounted.
        if !self.is_in_copy || !self.is_attached {
            return Some(true);
        }
        let table = process.mount_table("/", |_| true).ok().filter(|table| !table.is_cut())?;
        let found = table.by_id(id)?;
        Some(found.device == self.mount.device && found.root == self.mount.root)
    }
}

/// Whether a directory or the program of a process is still what it was, and on the mount, or on any copy of it.
fn is_in(proc: &Proc, process: &Dir, holder: &Holder, held: &Held<'_>, now: &str) -> Option<bool> {
    let (file, name) = match holder.access {
        Access::Cwd => ("cwd", c"cwd"),
        Access::Root => ("root", c"root"),
        _ => ("exe", c"exe"),
    };
    if process.link(name, &mut Buffer::default()).ok()? != now {
        return Some(false);
    }
    let mount = held.mount;
    if answers_at_once(&mount.fstype)
        && let Ok(Some(id)) = process.mount_of(name)
    {
        return held.is_on(id, (process, process), Some(name));
    }
    if held.is_in_copy || !is_local(&mount.fstype) {
        return None;
    }
    let own = device(&proc.path(holder.tgid, file))?;
    if own != mount.device {
        return Some(false);
    }
    let root = device(&proc.path(holder.tgid, "root")).filter(|_| holder.access != Access::Root);
    (root.as_ref() != Some(&own)).then_some(true)
}

fn is_copy(found: &crate::sources::procfs::mountinfo::Mount, path: &str, mount: &MountFacts) -> bool {
    found.mountpoint == path && found.device == mount.device && found.root == mount.root
}

/// `major:minor` of the file system that a link of /proc leads to, from the cache.
fn device(link: &Path) -> Option<String> {
    let flags = AtFlags::AT_NO_AUTOMOUNT | AtFlags::from_bits_retain(libc::AT_STATX_DONT_SYNC);
    let stat = fstatat(AT_FDCWD, link, flags).ok()?;
    Some(format!("{}:{}", libc::major(stat.st_dev), libc::minor(stat.st_dev)))
}
