//! Who still uses a mount that was detached, or refused an unmount before: the holders of the last scan go in, those that
//! hold on come out.
//!
//! Only their processes are read. Where a mount is detached, the kernel shows their files from its root; descriptors keep
//! its id. What is in a copy of another mount namespace is compared with the id of that copy, which is never reused where the
//! kernel has such. A current directory is told from one of the same name elsewhere by the id of its mount, or, before Linux
//! 5.8, by its device, which is read on local file systems only: a server that is gone would block it. What a file is called
//! now says nothing: its user may have renamed or removed it.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::io;
use std::path::Path;

use kevtmon_observation::{Access, MeantMount, MountFacts, Verdict};
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::dir::{Buffer, Dir, NumberName, is_gone, mnt_id};
use kevtmon_sources::procfs::mountinfo::is_below;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::stat::fstatat;
use serde::{Deserialize, Serialize};

use super::detached::{Use, first_of, path_on};
use super::mntns_index::{MAX_THREADS, task_dir, threads};
use super::pins::{Owner, bound_file, is_closed, maps_file};
use super::resolve::is_local;
use super::searched::{answers_at_once, is_device, is_layered};
use super::{Deadline, Holder, HolderReport, kernel, own_directory};

const FDS_PER_LOOK: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StillHeldRequest {
    /// Returned in the report.
    pub id: u64,
    pub mount: MountFacts,
    /// As the last scan found them.
    pub holders: Vec<Holder>,
    /// Whether it is mounted still, so that files have the paths that they had.
    pub is_attached: bool,
}

pub(super) fn still_held(proc: &Proc, request: &StillHeldRequest, deadline: Deadline) -> HolderReport {
    let StillHeldRequest { id, mount, holders, is_attached } = request;
    let skipped = HolderReport::skipped(*id, mount.mountpoint.clone());
    let mut report = HolderReport { mount: Some(mount.clone()), complete: true, ..skipped };
    let mut by_process: BTreeMap<u32, Vec<&Holder>> = BTreeMap::new();
    for holder in holders {
        by_process.entry(holder.tgid).or_default().push(holder);
    }
    for holder in by_process.remove(&0).into_iter().flatten() {
        match kernel::is_still(proc, holder, &deadline).filter(|_| *is_attached) {
            Some(true) => report.holders.push(holder.clone()),
            Some(false) => {}
            None => report.blind_spot(None, "it is unknown whether the kernel still holds it"),
        }
    }
    for (tgid, holders) in by_process {
        if deadline.is_over() {
            report.blind_spot(None, "time ran out before its holders were read again");
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
            let mut now = holder.clone();
            let held = holds(proc, &process, (holder, &mut now), (mount, *is_attached), deadline);
            if !process.is_there(&mut Vec::new()) {
                break;
            }
            match held {
                Some(true) => report.holders.push(Holder { comm: stat.comm.clone(), ..now }),
                Some(false) => {}
                None => report.blind_spot(
                    Some((tgid, Some(stat.comm.clone()))),
                    match is_attached {
                        true => "it is unknown whether it still uses the mount",
                        false => "it is unknown whether it still uses the detached mount",
                    },
                ),
            }
        }
    }
    if !is_attached {
        report.blind_spot(None, "only processes that held it before the unmount were read");
    }
    let in_it = |holder: &Holder| holder.explains() && holder.access != Access::ChildMount;
    report.verdict = match &report.holders[..] {
        [] => Verdict::Incomplete,
        holders if holders.iter().any(in_it) => Verdict::Processes,
        _ => Verdict::MountNamespace,
    };
    report
}

struct Look<'a> {
    proc: &'a Proc,
    process: &'a Dir,
    /// The thread that has its table of descriptors.
    task: &'a Dir,
    holder: &'a Holder,
    held: Held<'a>,
    /// What the kernel calls what it had, if that was not renamed.
    name: Option<&'a str>,
    deadline: Deadline,
}

/// Whether it holds on; `None` where that cannot be seen. Anybody can rename or remove what he uses, or use another file in
/// its place, so the name tells only where nothing tells the mount. If it uses something else there, that is noted.
fn holds(
    proc: &Proc,
    process: &Dir,
    (holder, now): (&Holder, &mut Holder),
    (mount, is_attached): (&MountFacts, bool),
    deadline: Deadline,
) -> Option<bool> {
    let thread = holder.tid.map(|tid| task_dir(process, tid));
    if let Some(None) = thread {
        return Some(false);
    }
    let task = thread.as_ref().and_then(Option::as_ref).unwrap_or(process);
    let held = Held::new(holder, mount, is_attached);
    let path = holder.path.as_deref();
    let name = match path.and_then(|path| path.strip_prefix(mount.mountpoint.trim_end_matches('/'))) {
        _ if is_attached => path,
        Some("") => Some("/"),
        below => below,
    };
    let look = Look { proc, process, task, holder, held, name, deadline };
    match holder.access {
        Access::Fd | Access::Socket => look.descriptors(now),
        Access::Cwd | Access::Root | Access::Exe => look.links(now),
        Access::Mmap => look.mappings(now),
        // What is mounted in a namespace that it only keeps its own mounts do not show.
        Access::Mount if holder.fd.is_some() => None,
        Access::Mount => {
            let root = process.link(c"root", &mut Buffer::default()).ok()?.into_owned();
            let table = process.mount_table(&root, |_| true).ok()?;
            let is_copy = |found: &_| path.is_some_and(|path| is_copy(found, path, mount));
            Some(table.iter().any(is_copy)).filter(|is_held| *is_held || !table.is_cut())
        }
        Access::ChildMount
        | Access::Netns
        | Access::Loop
        | Access::Swap
        | Access::Export
        | Access::Uprobe
        | Access::Nfs => Some(false),
        Access::InFlight | Access::IoUring | Access::Call | Access::PerfEvent => None,
    }
}

impl Look<'_> {
    /// Whether its descriptor, or else another one of the same table, is on the mount.
    fn descriptors(&self, now: &mut Holder) -> Option<bool> {
        let fd = self.holder.fd?;
        match self.descriptor(fd, now) {
            Ok(Some(false)) => {}
            Err(error) if is_gone(&error) || is_closed(&error) => {}
            known => return known.ok()?,
        }
        let on = self.held.on?;
        let list = self.task.at(c"fd").ok()?;
        let (mut links, mut fds, mut text) = (Buffer::default(), Vec::new(), Vec::new());
        list.numbers(&mut links, &mut fds).ok()?;
        let infos = self.task.at(c"fdinfo").ok()?;
        let mut is_unclear = false;
        for (count, other) in fds.into_iter().enumerate().filter(|(_, other)| *other != fd) {
            if count % FDS_PER_LOOK == 0 && self.deadline.is_over() {
                return None;
            }
            let name = NumberName::new(other);
            let may_be_on = match self.holder.access {
                Access::Socket => {
                    list.link(name.as_c_str(), &mut links).is_ok_and(|link| link.starts_with("socket:["))
                }
                _ => infos.text(name.as_c_str(), &mut text).is_ok_and(|info| mnt_id(&info) == Some(on.id)),
            };
            match may_be_on.then(|| self.descriptor(other, now)) {
                Some(Ok(Some(true))) => {
                    now.fd = Some(other);
                    return Some(true);
                }
                None | Some(Ok(Some(false))) => {}
                Some(Err(error)) if is_gone(&error) || is_closed(&error) => {}
                Some(Ok(None) | Err(_)) => is_unclear = true,
            }
        }
        (!is_unclear).then_some(false)
    }

    fn descriptor(&self, fd: u32, now: &mut Holder) -> io::Result<Option<bool>> {
        if self.holder.access == Access::Socket {
            let Holder { tgid, tid, .. } = *self.holder;
            let (own, owner) = (own_directory(self.proc), Owner { tgid, tid: tid.unwrap_or(tgid) });
            let Some(file) = bound_file(own.as_deref(), (self.task, owner), fd)? else {
                return Ok(Some(false));
            };
            return Ok(self.is_on(file.mount, || None, &file.path, now));
        }
        let name = NumberName::new(fd);
        let link = self.task.at(c"fd")?.link(name.as_c_str(), &mut Buffer::default())?.into_owned();
        let mut text = Vec::new();
        let info = self.task.at(c"fdinfo")?.text(name.as_c_str(), &mut text)?.into_owned();
        let Some(id) = mnt_id(&info) else { return Ok(None) };
        let unique = || self.task.unique_mount_of(&CString::new(format!("fd/{fd}")).ok()?).ok()?;
        Ok(self.is_on(id, unique, &link, now))
    }

    /// Whether a directory or the program of it is on the mount: each thread may have directories of its own, and the first
    /// one has none once it has ended.
    fn links(&self, now: &mut Holder) -> Option<bool> {
        let (mut found, mut buffer) = (self.link(self.process, "", now), Buffer::default());
        let tgid = self.holder.tgid;
        let others = threads(tgid, self.process, &mut buffer).into_iter().filter(|tid| *tid != tgid);
        for (count, tid) in others.enumerate() {
            if found == Some(true) {
                break;
            }
            if count % MAX_THREADS == MAX_THREADS - 1 && self.deadline.is_over() {
                return None;
            }
            let Some(task) = task_dir(self.process, tid) else { continue };
            found = match self.link(&task, &format!("task/{tid}/"), now) {
                Some(false) => found,
                known => known,
            };
        }
        found
    }

    /// `place`: of the thread below the directory of the process.
    fn link(&self, task: &Dir, place: &str, now: &mut Holder) -> Option<bool> {
        let name = match self.holder.access {
            Access::Cwd => c"cwd",
            Access::Root => c"root",
            _ => c"exe",
        };
        let mut buffer = Buffer::default();
        let link = match task.link(name, &mut buffer) {
            Ok(link) => link,
            Err(error) => return is_gone(&error).then_some(false),
        };
        let (mount, is_in_copy) = (self.held.mount, self.held.is_in_copy);
        if answers_at_once(&mount.fstype)
            && let Ok(Some(id)) = task.mount_of(name)
        {
            return self.is_on(id, || task.unique_mount_of(name).ok()?, &link, now);
        }
        let is_elsewhere = self.held.is_attached && !is_in_copy && !is_below(&link, &mount.mountpoint);
        if is_elsewhere {
            return Some(false);
        }
        if is_in_copy || !is_local(&mount.fstype) {
            return None;
        }
        let path =
            |name: &CStr| self.proc.path(self.holder.tgid, &format!("{place}{}", name.to_string_lossy()));
        let own = device(&path(name))?;
        if own != mount.device {
            return Some(false);
        }
        let root = device(&path(c"root")).filter(|_| self.holder.access != Access::Root);
        (self.name == Some(&link) && root.as_ref() != Some(&own)).then_some(true)
    }

    /// Whether it maps a file of the mount, but for its program.
    fn mappings(&self, now: &mut Holder) -> Option<bool> {
        let mount = self.held.mount;
        let is_layered = is_layered(&mount.fstype);
        if let Some(on) = self.held.on
            && !is_layered
            && answers_at_once(&mount.fstype)
        {
            let mut buffer = Buffer::default();
            let program = self.process.link(c"exe", &mut buffer).ok();
            let is_program = |path: &str| program.as_deref() == Some(path);
            if let Ok(used) = first_of(self.process, &mount.device, &[on.id], is_program) {
                let Some(Use { pin, id, unique }) = used else { return Some(false) };
                return self.is_on(id, || unique, &pin.path.unwrap_or_default(), now);
            }
        }
        maps_file(self.process, self.name?, |device| is_layered || is_device(device, &mount.device)).ok()?
    }

    /// Whether what is on the mount with this id now, and has this name, is on that of the holder.
    fn is_on(
        &self,
        id: u64,
        unique: impl FnOnce() -> Option<u64>,
        link: &str,
        now: &mut Holder,
    ) -> Option<bool> {
        let is_named_so = self.name == Some(link);
        let is_on = self.held.is_on((id, unique), self.task, is_named_so);
        // How a copy is called elsewhere is not known.
        if is_on == Some(true) && !is_named_so && !self.held.is_in_copy {
            now.path = Some(match self.held.is_attached {
                true => link.to_owned(),
                false => path_on(&self.held.mount.mountpoint, link),
            });
        }
        is_on
    }
}

/// The mount that a holder was found on: the target, or a copy of it in another mount namespace, which has an id of its own.
struct Held<'m> {
    mount: &'m MountFacts,
    /// `None` where it is not known which copy it was.
    on: Option<MeantMount>,
    is_in_copy: bool,
    is_attached: bool,
}

impl<'m> Held<'m> {
    fn new(holder: &Holder, mount: &'m MountFacts, is_attached: bool) -> Self {
        let is_foreign = holder.mntns.is_some_and(|mntns| mntns != mount.mntns);
        let target = MeantMount { id: mount.id, unique: mount.unique };
        let on = holder.mount.or_else(|| (!is_foreign).then_some(target));
        let is_in_copy = on.is_none_or(|on| on.id != mount.id);
        Self { mount, on, is_in_copy, is_attached }
    }

    /// Whether what is on the mount with this id now is on that one still.
    fn is_on(
        &self,
        (id, unique): (u64, impl FnOnce() -> Option<u64>),
        task: &Dir,
        is_named_so: bool,
    ) -> Option<bool> {
        let on = self.on?;
        if id != on.id {
            return Some(false);
        }
        if let Some(meant) = on.unique
            && let Some(now) = unique()
        {
            return Some(now == meant);
        }
        // The id of a mount that is there is that of no other one; one that was detached has it as long as it is in use.
        if !self.is_in_copy && self.is_attached || is_named_so && !self.is_attached {
            return Some(true);
        }
        let table = task.mount_table("/", |_| true).ok().filter(|table| !table.is_cut())?;
        let Some(found) = table.by_id(id) else { return (!self.is_attached).then_some(true) };
        let is_copy = self.is_in_copy && found.device == self.mount.device && found.root == self.mount.root;
        match self.is_attached {
            // It may as well be what somebody has mounted in the place of his copy.
            true => is_copy.then_some(true),
            // What was detached is in no table.
            false => Some(is_copy),
        }
    }
}

fn is_copy(found: &kevtmon_sources::procfs::mountinfo::Mount, path: &str, mount: &MountFacts) -> bool {
    found.mountpoint == path && found.device == mount.device && found.root == mount.root
}

/// `major:minor` of the file system that a link of /proc leads to, from the cache.
fn device(link: &Path) -> Option<String> {
    let flags = AtFlags::AT_NO_AUTOMOUNT | AtFlags::from_bits_retain(libc::AT_STATX_DONT_SYNC);
    let stat = fstatat(AT_FDCWD, link, flags).ok()?;
    Some(format!("{}:{}", libc::major(stat.st_dev), libc::minor(stat.st_dev)))
}
