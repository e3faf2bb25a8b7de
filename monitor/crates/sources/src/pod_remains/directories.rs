//! The directories of pods below the root directories of kubelets, and what is mounted there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use kevtmon_event::volume;
use kevtmon_observation::{CoveredVolume, KubeletNamespace, MountFacts, MountStack, NsInum, STACKED_MIN};
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

use crate::kubelet::below;
use crate::procfs::Proc;
use crate::procfs::mountinfo::{Mount, MountTable, is_below};
use crate::procfs::readers::reading_none;
use crate::procfs::statmount::MountNamespace;

const MOUNTS_MAX: usize = 32;
/// Directories of volumes of one pod that are looked into, and that are told.
const VOLUMES_MAX: usize = 64;
const FILLED_MAX: usize = 8;
/// Mount namespaces of a pod that are looked at: most containers have one of their own.
const NAMESPACES_MAX: usize = 16;
/// File systems that are made anew by each mount(2).
const IN_MEMORY: [&str; 3] = ["hugetlbfs", "ramfs", "tmpfs"];
/// Processes whose mount namespace may be the host's, and that nobody but root started there: init and kthreadd.
const NODE: [u32; 2] = [1, 2];

/// A mount namespace in which kubelets mount, through a process that is in it.
#[derive(Debug)]
pub(super) struct Place<'n> {
    namespace: &'n KubeletNamespace,
    /// The process; `None` where the namespace is our own.
    process: Option<u32>,
    pub(super) top: PathBuf,
    pub(super) table: MountTable,
    /// The directories of pods, by the path of the root directory as it was resolved.
    opened: BTreeMap<PathBuf, File>,
    /// Which of them a pod was found in.
    found: BTreeMap<String, PathBuf>,
}

impl<'n> Place<'n> {
    /// None where it cannot be read.
    pub(super) fn of(proc: &Proc, namespace: &'n KubeletNamespace, daemon: u32) -> Option<Self> {
        let candidates = namespace.pid.into_iter().chain([daemon]).chain(NODE);
        for pid in candidates {
            if proc.ns(pid, "mnt") != Some(namespace.mntns) {
                continue;
            }
            let Ok(process) = proc.dir(pid) else { continue };
            let root = proc.link(pid, "root").unwrap_or_else(|| "/".into());
            let Some(table) = process.mount_table(&root, |_| true).ok().filter(|table| !table.is_cut())
            else {
                continue;
            };
            let is_own = pid == daemon;
            let top = if is_own { PathBuf::from("/") } else { proc.path(pid, "root") };
            let process = Some(pid).filter(|_| !is_own);
            let (opened, found) = (BTreeMap::new(), BTreeMap::new());
            return Some(Self { namespace, process, top, table, opened, found });
        }
        None
    }

    /// The directory and the uid of each pod. None where a directory could not be read.
    pub(super) fn pods(&mut self) -> Option<Vec<(String, String)>> {
        reading_none();
        let mut pods = Vec::new();
        for root in &self.namespace.roots {
            let path = below(&self.top, root).join("pods");
            if self.opened.contains_key(&path) {
                continue;
            }
            let entries = match fs::read_dir(&path) {
                Ok(entries) => entries,
                Err(error) if is_none(&error) => continue,
                Err(_) => return None,
            };
            let directory = File::open(&path).ok()?;
            for entry in entries {
                let name = entry.ok()?.file_name();
                let Some(uid) = name.to_str().filter(|name| volume::is_uid(name)) else { continue };
                pods.push((format!("{}/pods/{uid}", root.trim_end_matches('/')), uid.to_owned()));
                self.found.entry(uid.to_owned()).or_insert_with(|| path.clone());
            }
            self.opened.insert(path, directory);
        }
        Some(pods)
    }

    /// Whether the kubelet has made a directory for a container of the pod, which it does when it starts one.
    pub(super) fn has_started(&self, uid: &str) -> bool {
        self.list(uid, "containers", 1).is_some_and(|names| !names.is_empty())
    }

    /// The directories of volumes of a pod that are not empty, though nothing is mounted there. `directory`: the pod's.
    pub(super) fn filled(&self, uid: &str, directory: &str) -> Vec<String> {
        let mut filled = Vec::new();
        let mut looked_at = 0;
        for plugin in self.list(uid, "volumes", VOLUMES_MAX).unwrap_or_default() {
            let of_plugin = format!("volumes/{plugin}");
            for volume in self.list(uid, &of_plugin, VOLUMES_MAX).unwrap_or_default() {
                looked_at += 1;
                if looked_at > VOLUMES_MAX || filled.len() >= FILLED_MAX {
                    return filled;
                }
                let path = format!("{of_plugin}/{volume}");
                if self.list(uid, &path, 1).is_some_and(|names| !names.is_empty()) {
                    filled.push(format!("{directory}/{path}"));
                }
            }
        }
        filled.sort();
        filled
    }

    /// The names in a directory of a pod, if that is on the file system of the kubelet's: nothing that is mounted is touched, as
    /// its server may not answer, and no link is followed. So many of them, and none that is no text.
    fn list(&self, uid: &str, below: &str, most: usize) -> Option<Vec<String>> {
        let pods = self.found.get(uid).and_then(|path| self.opened.get(path))?;
        let resolve =
            ResolveFlag::RESOLVE_NO_XDEV | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_BENEATH;
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let how = OpenHow::new().flags(flags).resolve(resolve);
        let directory = openat2(pods, format!("{uid}/{below}").as_str(), how).ok()?;
        let entries = fs::read_dir(format!("/proc/self/fd/{}", directory.as_raw_fd())).ok()?;
        let names = entries
            .take(most)
            .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()));
        Some(names.collect())
    }

    /// The volumes of a pod that are mounted, and how many more there are. None where they cannot be read.
    pub(super) fn mounts(&self, proc: &Proc, uid: &str) -> Option<(Vec<MountFacts>, u32)> {
        let of_pod = |mount: &&Mount| {
            let volumes =
                self.namespace.roots.iter().filter_map(|root| volume::below(root, &mount.mountpoint));
            volumes.into_iter().any(|volume| volume.pod_uid == uid)
        };
        let mounts: Vec<&Mount> = self.table.iter().filter(of_pod).collect();
        if mounts.is_empty() {
            return Some((Vec::new(), 0));
        }
        let ids = match self.process {
            None => Some(MountNamespace::own()),
            Some(pid) => proc.dir(pid).and_then(|process| MountNamespace::of(&process)).ok(),
        };
        let told = &mounts[..mounts.len().min(MOUNTS_MAX)];
        let unique = ids.map_or_else(|| vec![None; told.len()], |ids| ids.unique_ids(told));
        let facts = told
            .iter()
            .zip(unique)
            .map(|(mount, unique)| mount.facts(self.namespace.mntns, unique))
            .collect();
        Some((facts, u32::try_from(mounts.len().saturating_sub(MOUNTS_MAX)).unwrap_or(u32::MAX)))
    }
}

/// All mounts at the path of a volume, if each is on the one before and they are of one file system and source. Where others are at the
/// same path, as below a directory that is bound to itself, not all of them can be reached.
pub(super) fn stacked(table: &MountTable, namespace: &KubeletNamespace) -> BTreeMap<String, Vec<MountStack>> {
    let mut stacked: BTreeMap<String, Vec<MountStack>> = BTreeMap::new();
    for (path, mounts) in by_path(table) {
        let layers = u32::try_from(mounts.len()).unwrap_or(u32::MAX);
        if layers < STACKED_MIN || !are_alike(&mounts) {
            continue;
        }
        let Some(volume) = namespace.roots.iter().find_map(|root| volume::below(root, path)) else {
            continue;
        };
        let Some(top) = top_of_chain(&mounts) else { continue };
        let stacks = stacked.entry(volume.pod_uid).or_default();
        if stacks.len() < MOUNTS_MAX {
            stacks.push(MountStack { mount: top.facts(namespace.mntns, None), layers });
        }
    }
    stacked
}

/// The mounts of a table, by the path that they are at.
fn by_path(table: &MountTable) -> BTreeMap<&str, Vec<&Mount>> {
    let mut at: BTreeMap<&str, Vec<&Mount>> = BTreeMap::new();
    for mount in table.iter() {
        at.entry(&mount.mountpoint).or_default().push(mount);
    }
    at
}

/// Of each volume that its path does not lead to, what it leads to; not where that may be what one below it is, as a volume that is
/// mounted over itself, or once more over what covers it.
pub(super) fn covered(
    table: &MountTable,
    namespace: &KubeletNamespace,
) -> BTreeMap<String, Vec<CoveredVolume>> {
    let mut covered: BTreeMap<String, Vec<CoveredVolume>> = BTreeMap::new();
    let paths = table.paths();
    for (path, mounts) in by_path(table) {
        let Some(volume) = namespace.roots.iter().find_map(|root| volume::below(root, path)) else {
            continue;
        };
        let Some(cover) = paths.reached(path).filter(|cover| cover.mountpoint != "/") else { continue };
        let below: Vec<&Mount> = mounts.into_iter().filter(|mount| mount.id != cover.id).collect();
        let is_it = |mount: &&Mount| {
            cover.is_copy_of(mount) || cover.mountpoint == path && is_once_more(&[*mount, cover])
        };
        if below.is_empty() || below.iter().any(is_it) {
            continue;
        }
        let of_pod = covered.entry(volume.pod_uid).or_default();
        let facts = |mount: &Mount| mount.facts(namespace.mntns, None);
        for mount in below.into_iter().take(MOUNTS_MAX.saturating_sub(of_pod.len())) {
            of_pod.push(CoveredVolume { mount: facts(mount), cover: facts(cover), held: false });
        }
    }
    covered
}

/// Whether of two mounts one may be what the other is. File systems in memory are others each time, whatever their source.
fn is_once_more(mounts: &[&Mount; 2]) -> bool {
    let [one, other] = mounts;
    are_alike(mounts) && (!IN_MEMORY.contains(&one.fstype.as_str()) || one.device == other.device)
}

/// Finds out which of them containers of the pod have. `pids`: the processes of the pod.
pub(super) fn look_inside(proc: &Proc, pids: &[u32], covered: &mut [CoveredVolume]) {
    if covered.is_empty() {
        return;
    }
    let mut known: BTreeSet<NsInum> = BTreeSet::new();
    let firsts = pids.iter().filter(|pid| proc.ns(**pid, "mnt").is_some_and(|ns| known.insert(ns)));
    for pid in firsts.take(NAMESPACES_MAX) {
        let Some(table) = proc.dir(*pid).ok().and_then(|task| task.mount_table("/", |_| true).ok()) else {
            continue;
        };
        covered.iter_mut().for_each(|volume| volume.held = volume.held || is_held(&table, volume));
    }
}

/// Whether a container has a volume, and not what its path leads to. It may have a part of a volume alone (`subPath`).
pub(super) fn is_held(table: &MountTable, volume: &CoveredVolume) -> bool {
    let CoveredVolume { mount, cover, .. } = volume;
    let has = |device: &str, root: &str| {
        table.iter().any(|mount| mount.device == device && is_below(&mount.root, root))
    };
    let below = mount.mountpoint.strip_prefix(cover.mountpoint.trim_end_matches('/')).unwrap_or_default();
    let instead = format!("{}{below}", cover.root.trim_end_matches('/'));
    // In the rest of a table that was cut the other may be.
    !table.is_cut() && has(&mount.device, &mount.root) && !has(&cover.device, &instead)
}

fn are_alike(mounts: &[&Mount]) -> bool {
    mounts.windows(2).all(|pair| (&pair[0].fstype, &pair[0].source) == (&pair[1].fstype, &pair[1].source))
}

/// The last of mounts that are each on the one before: no two are on the same, and all but this one carry another.
fn top_of_chain<'m>(mounts: &[&'m Mount]) -> Option<&'m Mount> {
    let parents: BTreeSet<u64> = mounts.iter().map(|mount| mount.parent).collect();
    let mut tops = mounts.iter().filter(|mount| !parents.contains(&mount.id));
    let top = tops.next()?;
    (parents.len() == mounts.len() && tops.next().is_none()).then_some(*top)
}

/// Whether there is no such directory, or never one that the daemon may read.
fn is_none(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::EACCES | libc::EPERM))
}
