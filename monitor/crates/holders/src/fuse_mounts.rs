//! The FUSE file systems that the host has mounted, and whether their servers are there. As long as a process lives that has the
//! connection of one open, it is served. Once they have ended, others that have it open are looked for; where nobody has,
//! every access fails (`ENOTCONN`), and all its mounts are listed, in all mount namespaces.
//!
//! A server that lives may serve no more: its connection was aborted, or it has closed it. Its descriptors tell that.
//!
//! A file system is asked nothing while a server of it may live: who asks one that hangs waits, and pins it meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use kevtmon_observation::{Access, Fact, FileServer, FuseMount, FuseServer, Holder, NsInum};
use kevtmon_sources::beat::at_look;
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::dir::mnt_id;
use kevtmon_sources::procfs::mountinfo::{Mount, MountTable, is_fuse};
use kevtmon_sources::procfs::readers::{Job, Readers};
use kevtmon_sources::{Sender, spawn_until_closed, tell};
use kevtmon_types::redact;
use nix::errno::Errno;
use nix::sys::statfs::fstatfs;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::{sleep, sleep_until};

use super::Deadline;
use super::file_server::{Connection, Connections, Serving, serving_each};
use super::mntns_index::{MntnsIndex, mounts};
use super::pins::{Pin, describe};
use super::rbd::{MEMBERS_LOOKED_AT, alone, oldest, sorted};

const INTERVAL: Duration = Duration::from_secs(10);
/// A process that ends still has its files open when that is told.
const SETTLE: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(60);
const BUDGET: Duration = Duration::from_secs(1);
const MOST: usize = 512;
const PATHS_MAX: usize = 64;
const MOUNTS_MAX: usize = 64;
/// How often the servers of one are searched that are not found, and how often it is looked first at one that nobody serves.
const TRIES: u32 = 6;
/// A server that ends may close the connection seconds before: how many looks in turn find that it lives on without.
pub(super) const LIVES_ON: u32 = 3;

pub fn look_soon(wanted: Option<&mpsc::Sender<()>>) {
    // Where there is no room, a look is due.
    let _ = wanted.map(|wanted| wanted.try_send(()));
}

/// Follows them until the receiver of observations is gone. `unserved`: what an earlier run found that nobody serves.
pub fn start(readers: Readers, unserved: Vec<FuseMount>, tx: Sender) -> mpsc::Sender<()> {
    let (wanted, requests) = mpsc::channel(1);
    let known = unserved.into_iter().map(|mount| Followed { mount, looks: 0, cut_off_looks: 0 }).collect();
    spawn_until_closed(tx.clone(), follow(readers, known, requests, tx));
    wanted
}

async fn follow(readers: Readers, mut known: Vec<Followed>, mut requests: mpsc::Receiver<()>, tx: Sender) {
    let mut told: Option<Vec<FuseMount>> = None;
    let (mut may_ask, mut in_turn) = (true, true);
    loop {
        let look = Look { known: known.clone(), budget: BUDGET, may_ask, in_turn };
        let found = readers.reply(look, PATIENCE, "cannot look for FUSE servers").await;
        // A file system that was asked may not answer.
        may_ask &= found.is_some();
        if let Some(found) = found.flatten() {
            known = found;
            let mounts: Vec<FuseMount> = known.iter().map(|followed| followed.mount.clone()).collect();
            if told.as_ref() != Some(&mounts) {
                told = Some(mounts.clone());
                tell(&tx, Fact::FuseMounts(mounts)).await;
            }
        }
        tokio::select! {
            () = sleep_until(at_look(INTERVAL)) => in_turn = true,
            Some(()) = requests.recv() => {
                sleep(SETTLE).await;
                in_turn = false;
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Followed {
    pub(super) mount: FuseMount,
    /// How often it was looked at since it was mounted, its servers were found, or nobody serves it.
    pub(super) looks: u32,
    /// How many looks have found since then that it is cut off, and its servers live.
    pub(super) cut_off_looks: u32,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Look {
    pub(super) known: Vec<Followed>,
    pub(super) budget: Duration,
    /// Whether a file system may be asked whether it is served, where nothing else tells it.
    pub(super) may_ask: bool,
    /// Those that are asked for come close together.
    pub(super) in_turn: bool,
}

impl Job for Look {
    const NAME: &'static str = "fuse-mounts";
    /// `None` where the mounts of the host could not be read.
    type Reply = Option<Vec<Followed>>;
    const WAITS_FOR_DISK: bool = true;
    const IN_BACKGROUND: bool = true;

    fn run(&self, proc: &Proc) -> Self::Reply {
        let (mntns, process) = proc.host_dir()?;
        // Most hosts have none.
        let is_wanted = |line: &str| !self.known.is_empty() || line.contains(" fuse");
        let table = process.mount_table("/", is_wanted).ok().filter(|table| !table.is_cut())?;
        let mut found = self.followed(&table, mntns);
        self.review(proc, &table, &mut found);
        let is_mounted = |followed: &Followed| is_on_host(&table, &followed.mount);
        let lives = |followed: &Followed| !followed.mount.servers.is_empty();
        found.retain(|followed| followed.mount.unserved || is_mounted(followed) || lives(followed));
        if found.iter().any(|followed| followed.mount.unserved && followed.is_due()) {
            list_mounts(proc, &table, &mut found, &Deadline::after(self.budget));
        }
        found.iter_mut().for_each(|followed| followed.looks = followed.looks.saturating_add(1));
        Some(found)
    }
}

impl Look {
    /// What is known, with where the host has it now, and what it has mounted since then.
    fn followed(&self, table: &MountTable, mntns: NsInum) -> Vec<Followed> {
        let mut found = self.known.clone();
        let mut devices: BTreeMap<&str, Vec<&Mount>> = BTreeMap::new();
        for mount in table.iter().filter(|mount| is_fuse(&mount.fstype)) {
            devices.entry(&mount.device).or_default().push(mount);
        }
        for (device, mounts) in devices {
            let Some(first) = mounts.first() else { continue };
            let is_it = |followed: &&mut Followed| is_of(&followed.mount, first);
            let paths = mounts.iter().take(PATHS_MAX).map(|mount| mount.mountpoint.clone()).collect();
            if let Some(followed) = found.iter_mut().find(is_it) {
                (followed.mount.paths, followed.mount.mntns) = (paths, mntns);
            } else {
                let (device, fstype) = (device.to_owned(), first.fstype.clone());
                let source = redact::mount_source(&first.source);
                let mount = FuseMount { device, fstype, source, mntns, paths, ..FuseMount::default() };
                found.push(Followed { mount, looks: 0, cut_off_looks: 0 });
            }
        }
        // Users can mount many; what a kubelet and its drivers mount comes first.
        let is_of_kubelet = |path: &String| path.contains("/pods/") || path.contains("/plugins/");
        found.sort_by_key(|followed| !followed.mount.paths.iter().any(is_of_kubelet));
        found.truncate(MOST);
        found
    }

    fn review(&self, proc: &Proc, table: &MountTable, found: &mut [Followed]) {
        let mut opened = Opened { proc, deadline: Deadline::after(self.budget), known: BTreeMap::new() };
        let mut searched: Vec<&mut Followed> = Vec::new();
        for followed in found {
            let fuse = &followed.mount;
            if followed.is_to_be_searched(proc)
                || !fuse.unserved && self.is_cut_off(table, fuse, &fuse.servers, &mut opened)
            {
                searched.push(followed);
            } else {
                followed.cut_off_looks = 0;
            }
        }
        if searched.is_empty() {
            return;
        }
        let mounts: Vec<Mount> = searched.iter().map(|followed| mount_of(table, &followed.mount)).collect();
        let all: Vec<&Mount> = mounts.iter().collect();
        let serving = serving_each(proc, &all, &Deadline::after(self.budget));
        opened.deadline.allow(self.budget);
        for ((followed, mount), serving) in searched.iter_mut().zip(&mounts).zip(serving) {
            let servers: Vec<FuseServer> =
                serving.servers.iter().filter_map(|server| with_start(proc, server)).collect();
            // What is dead is not asked again: it may be another file system by now.
            let was_served = !followed.mount.unserved && !followed.mount.servers.is_empty();
            let is_dead = serving.is_unserved
                || self.is_cut_off(table, &followed.mount, &servers, &mut opened)
                || was_served && self.is_dead(proc, table, mount, &serving);
            followed.set(proc, servers, is_dead, serving.is_whole, self.in_turn);
        }
    }

    /// Whether servers of it live that serve it no more. What is dead stays so unless one has its connection open: it may not be
    /// asked again, nor be known to the host any more.
    fn is_cut_off(
        &self,
        table: &MountTable,
        fuse: &FuseMount,
        servers: &[FuseServer],
        opened: &mut Opened<'_>,
    ) -> bool {
        let (proc, device) = (opened.proc, not_on_host(fuse));
        let unread = if fuse.unserved { Connection::LikelyAborted } else { Connection::Open };
        let living = servers.iter().filter(|server| lives(proc, server));
        let connections = living.map(|server| opened.connection(server, &device).unwrap_or(unread));
        match connections.min().unwrap_or(unread) {
            Connection::Aborted | Connection::Closed => true,
            Connection::LikelyAborted => {
                fuse.unserved || self.may_ask && is_disconnected(proc, &mount_of(table, fuse))
            }
            Connection::Open => false,
        }
    }

    /// Older kernels do not show who has a connection open. Where no server is found any more, the file system itself tells that
    /// nobody has; once the host has it no longer, that they have ended has to do.
    fn is_dead(&self, proc: &Proc, table: &MountTable, mount: &Mount, serving: &Serving) -> bool {
        let is_on_host = table.iter().any(|other| other == mount);
        serving.is_hidden
            && serving.servers.is_empty()
            && (!is_on_host || self.may_ask && is_disconnected(proc, mount))
    }
}

impl Followed {
    /// Those whose servers live need not be searched, nor for ever those of which it is not shown whose they are. What nobody
    /// serves may be another file system by now: the number of a device is given to the next one.
    fn is_to_be_searched(&self, proc: &Proc) -> bool {
        match (self.mount.unserved, self.mount.servers.is_empty()) {
            (true, _) => self.is_due(),
            (false, true) => self.looks < TRIES,
            (false, false) => !self.mount.servers.iter().any(|server| lives(proc, server)),
        }
    }

    /// Whether one that nobody serves is looked at now: less often once it stays so.
    fn is_due(&self) -> bool {
        self.looks < TRIES || self.looks.is_multiple_of(TRIES)
    }

    fn set(&mut self, proc: &Proc, servers: Vec<FuseServer>, is_dead: bool, is_whole: bool, in_turn: bool) {
        let fuse = &mut self.mount;
        match (fuse.unserved, is_dead) {
            (_, false) if !servers.is_empty() => {
                (fuse.servers, fuse.mounts, fuse.omitted) = (servers, Vec::new(), 0);
                (fuse.unserved, fuse.cut_off, fuse.remounted, self.looks) = (false, false, false, 0);
                self.cut_off_looks = 0;
            }
            (true, _) => {}
            (false, true) => {
                // Where no process has its connection now, it stays who served it last.
                if !servers.is_empty() {
                    fuse.servers = servers;
                }
                // Where one has ended, that is why.
                let all_live = fuse.servers.iter().all(|server| lives(proc, server));
                let lives_on = all_live && !fuse.servers.is_empty();
                self.cut_off_looks += u32::from(lives_on && in_turn);
                if lives_on && self.cut_off_looks < LIVES_ON {
                    return;
                }
                if !lives_on && self.cut_off_looks > 0 {
                    // It had no connection before, so its end may not be why.
                    fuse.servers.iter_mut().for_each(|server| server.is_certain = false);
                }
                (fuse.unserved, fuse.cut_off, self.looks) = (true, lives_on, 0);
            }
            (false, false) => {
                fuse.servers.clear();
                (self.looks, self.cut_off_looks) = (if is_whole { TRIES } else { self.looks }, 0);
            }
        }
    }
}

/// What servers have open of the device, each read once in a look.
struct Opened<'p> {
    proc: &'p Proc,
    deadline: Deadline,
    known: BTreeMap<u32, Option<Connections>>,
}

impl Opened<'_> {
    /// `None` where it could not be read in time.
    fn connection(&mut self, server: &FuseServer, mount: &Mount) -> Option<Connection> {
        if !self.deadline.is_over() {
            self.known.entry(server.tgid).or_insert_with(|| Connections::of(self.proc, server.tgid));
        }
        let known = self.known.get(&server.tgid)?.as_ref()?;
        Some(known.to(mount))
    }
}

/// Whether a mount is of this file system: the number of a device is given to the next one when it is gone.
fn is_of(fuse: &FuseMount, mount: &Mount) -> bool {
    fuse.device == mount.device
        && fuse.fstype == mount.fstype
        && fuse.source == redact::mount_source(&mount.source)
}

fn is_on_host(table: &MountTable, fuse: &FuseMount) -> bool {
    table.iter().any(|mount| is_of(fuse, mount))
}

/// Its mount on the host, or at least what tells its connection.
fn mount_of(table: &MountTable, fuse: &FuseMount) -> Mount {
    let on_host = table.iter().find(|mount| is_of(fuse, mount)).cloned();
    on_host.unwrap_or_else(|| not_on_host(fuse))
}

/// What tells the connection of a file system that the host has nowhere.
fn not_on_host(fuse: &FuseMount) -> Mount {
    Mount {
        device: fuse.device.clone(),
        mountpoint: fuse.paths.first().cloned().unwrap_or_default(),
        fstype: fuse.fstype.clone(),
        source: fuse.source.clone(),
        ..Mount::default()
    }
}

fn lives(proc: &Proc, server: &FuseServer) -> bool {
    // Others may live on where the first thread has ended.
    let has_threads = || proc.dir(server.tgid).is_ok_and(|process| process.task_count() > Some(1));
    let lives = |state| !matches!(state, 'Z' | 'X') || has_threads();
    proc.stat(server.tgid).is_some_and(|stat| stat.start_ns == server.start_ns && lives(stat.state))
}

fn with_start(proc: &Proc, server: &FileServer) -> Option<FuseServer> {
    let FileServer { tgid, comm, uid, cgroup, is_certain, .. } = server.clone();
    let start_ns = proc.stat(tgid).filter(|stat| stat.comm == comm)?.start_ns;
    Some(FuseServer { tgid, start_ns, comm, uid, cgroup, is_certain })
}

/// Whether the connection of a mount of the host is closed, by what an access says.
pub(super) fn is_disconnected(proc: &Proc, mount: &Mount) -> bool {
    let path = proc.host_root().join(mount.mountpoint.trim_start_matches('/'));
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let Ok(directory) = OpenOptions::new().read(true).custom_flags(flags).open(path) else { return false };
    is_on(&directory, mount) && fstatfs(&directory).is_err_and(|error| error == Errno::ENOTCONN)
}

/// Whether it was opened on this mount.
fn is_on(file: &File, mount: &Mount) -> bool {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).unwrap_or_default();
    mnt_id(&info) == Some(mount.id)
}

/// Lists where those are mounted that nobody serves. What is mounted nowhere is dropped.
fn list_mounts(proc: &Proc, host: &MountTable, found: &mut Vec<Followed>, deadline: &Deadline) {
    let Ok(index) = MntnsIndex::build(proc, deadline) else { return };
    let mut unread: BTreeSet<NsInum> = BTreeSet::new();
    let mut listed: BTreeMap<String, Vec<Holder>> = BTreeMap::new();
    for (ns, members) in sorted(proc, &index) {
        let shown = mounts(proc, members.iter().copied(), |mount| is_fuse(&mount.fstype));
        let Some(shown) = shown.filter(|_| !deadline.is_over()) else {
            unread.insert(ns);
            continue;
        };
        for Followed { mount: fuse, .. } in found.iter().filter(|followed| followed.mount.unserved) {
            // What is mounted on it hides it.
            let is_seen =
                |mount: &&Mount| shown.table.at(&mount.mountpoint).is_some_and(|top| top.id == mount.id);
            let of_it = shown.table.iter().filter(|mount| is_of(fuse, mount)).filter(is_seen);
            let pins: Vec<Pin> =
                of_it.map(|mount| Pin::of(Access::Mount, mount.mountpoint.clone())).collect();
            if pins.is_empty() {
                continue;
            }
            let holders = oldest(proc, members, MEMBERS_LOOKED_AT)
                .map(|(tgid, dir)| describe(proc, tgid, &dir, ns, pins.clone()));
            let holders = holders.filter(|holders| !holders.is_empty());
            let holders = holders.unwrap_or_else(|| pins.into_iter().map(|pin| alone(ns, pin)).collect());
            listed.entry(fuse.device.clone()).or_default().extend(holders);
        }
    }
    for followed in found.iter_mut().filter(|followed| followed.mount.unserved) {
        let fuse = &mut followed.mount;
        let mut mounts = listed.remove(&fuse.device).unwrap_or_default();
        // Of a namespace that was not read it stays what is known.
        let is_unread =
            |holder: &Holder| !index.finished || holder.mntns.is_some_and(|ns| unread.contains(&ns));
        let is_listed = |holder: &Holder| mounts.iter().any(|listed| listed.mntns == holder.mntns);
        let before = std::mem::take(&mut fuse.mounts).into_iter();
        let kept: Vec<Holder> = before.filter(|holder| is_unread(holder) && !is_listed(holder)).collect();
        mounts.extend(kept);
        fuse.omitted = mounts.len().saturating_sub(MOUNTS_MAX).try_into().unwrap_or(u32::MAX);
        mounts.truncate(MOUNTS_MAX);
        fuse.mounts = mounts;
        let is_other = |path: &String| host.at(path).is_some_and(|mount| !is_of(fuse, mount));
        fuse.remounted = fuse.paths.iter().any(is_other);
    }
    let is_complete = index.finished && unread.is_empty();
    let is_gone = |fuse: &FuseMount| fuse.mounts.is_empty() && is_complete && !is_on_host(host, fuse);
    found.retain(|followed| !followed.mount.unserved || !is_gone(&followed.mount));
}

#[cfg(test)]
mod tests;
