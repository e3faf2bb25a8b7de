//! A look at the mounts of all namespaces: what the host has, and what others have of which the host has nothing.
//!
//! Where the kernel numbers mounts for good (since 6.8, of other namespaces since 6.11), the highest number is read before
//! the mounts of the host: a mount with a lower number was there at that time, and so was its file system.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use kevtmon_observation::{BindMount, BootNs, CopyHolder, MountCopy, NsInum, Propagation, VolumeData};
use kevtmon_sources::procfs::dir::Buffer;
use kevtmon_sources::procfs::mountinfo::{Mount, MountTable, is_below, is_of_the_kernel};
use kevtmon_sources::procfs::readers::{Job, reading_none};
use kevtmon_sources::procfs::root::is_initial_userns;
use kevtmon_sources::procfs::statmount::MountNamespace;
use kevtmon_sources::procfs::{Proc, dir};
use kevtmon_sources::programs::is_of_runtime;
use kevtmon_types::clock::boot_now;
use serde::{Deserialize, Serialize};

use super::bundle;
use super::reached::Reached;
use crate::attached::AttachedMount;
use crate::mntns_index::{Member, MntnsIndex, mounts, namespace as mount_namespace};
use crate::rbd;
use crate::{Deadline, own_directory, own_tgid, thread_time, volume_data};

/// Mounts that a namespace of a user may have.
const MOUNTS_OF_USER: usize = 4096;
/// Mounts of one namespace, and of all, that are told.
const COPIES_OF_ONE: usize = 256;
/// Of one in a user namespace, of which everybody can have many.
const COPIES_OF_USERS: usize = 64;
const COPIES_MAX: usize = 2048;
/// Bytes of what is told of one: all of it is what whoever made the mount likes.
const TEXT_MAX: usize = 2048;
/// File systems of the host that are told.
const HOST_MAX: usize = 8192;
/// Places of one of them that are told: those that look like volumes of pods, and others.
const VOLUMES_MAX: usize = 128;
const OTHER_PLACES_MAX: usize = 16;
/// Staged volumes of which it is read what their kubelet has written.
const STAGED_MAX: usize = 256;
/// Mount namespaces of one owner that are read, of those in user namespaces: he can make very many.
const NAMESPACES_OF_USER: usize = 64;
/// Members of a namespace of which it is looked at whether they are of a runtime.
const MEMBERS_LOOKED_AT: usize = 16;
/// Processes that could not be looked at and of which each is named.
const NAMED_MAX: usize = 16;
/// Below these, a tmpfs in another namespace is that namespace's own, but for the memory that containers share.
const OWN_PLACES: [&str; 3] = ["/dev", "/proc", "/sys"];
const SHARED_MEMORY: &str = "/dev/shm";

#[derive(Debug, Serialize, Deserialize)]
pub struct Inventory {
    pub(super) budget: Duration,
    pub(super) in_background: bool,
    /// Mounts that were found before, by namespace and unique id: whether each is still there is told also where no process is
    /// left in its namespace.
    pub(super) wanted: Vec<(NsInum, u64)>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Found {
    /// What the host has mounted; `None` where its mounts could not be read.
    pub(super) host: Option<Vec<HostMount>>,
    /// The host's own namespace, beside those of kubelets and runtimes.
    pub(super) mntns: NsInum,
    /// Devices that it has mounted at more places than are told.
    pub(super) crowded: BTreeSet<String>,
    /// What other namespaces have, and the host has not.
    pub(super) copies: Vec<MountCopy>,
    pub(super) omitted: u32,
    /// Those of them for which it was not their own number that left no room.
    pub(super) displaced: u32,
    /// Mounts with this unique id, or a lower one, were there when those of the host were read.
    pub(super) bound: Option<u64>,
    /// A time just before the mounts of the host were read.
    pub(super) before: BootNs,
    /// All namespaces, where there was time to look up every process.
    pub(super) indexed: Option<BTreeSet<NsInum>>,
    pub(super) read: BTreeSet<NsInum>,
    /// Namespaces of which not all is told: they could not be read, or have too many mounts.
    pub(super) missed: BTreeSet<NsInum>,
    pub(super) unread: BTreeSet<u32>,
    /// Command names of some of those, where that can be read.
    pub(super) names: BTreeMap<u32, String>,
    /// Those of the wanted mounts that are there, in namespaces without a process.
    pub(super) kept: BTreeSet<u64>,
    /// The mounts of the host, with the copies that go with them.
    pub(super) attached: Vec<AttachedMount>,
    pub(super) finished: bool,
    pub(super) took: Duration,
}

impl Found {
    /// Whether there was time for all namespaces, and room for all mounts.
    pub(super) fn is_whole(&self) -> bool {
        self.finished && self.omitted == 0
    }

    /// The same, but for what those omit who have more than their share: they conceal their own alone.
    pub(super) fn is_complete(&self) -> bool {
        self.finished && self.displaced == 0 && self.host.is_some()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HostMount {
    pub(super) device: String,
    pub(super) root: String,
    pub(super) path: String,
    pub(super) fstype: String,
    pub(super) source: String,
    pub(super) mntns: NsInum,
    /// Control group of the container whose root directory it is.
    pub(super) root_of: Option<String>,
    pub(super) volume_data: Option<VolumeData>,
}

impl HostMount {
    pub(super) fn is_at(&self, other: &Self) -> bool {
        self.path == other.path && self.root == other.root && self.source == other.source
    }
}

impl Job for Inventory {
    const NAME: &'static str = "mount-inventory";
    type Reply = Found;
    /// The bundles of containers.
    const WAITS_FOR_DISK: bool = true;

    fn in_background(&self) -> bool {
        self.in_background
    }

    fn run(&self, proc: &Proc) -> Found {
        let before = thread_time();
        let mut found = look(proc, &self.wanted, self.budget);
        if !self.in_background {
            found.names = names(proc, &found.unread);
        }
        found.took = thread_time().saturating_sub(before);
        found
    }
}

/// Those of them that were set aside are not read.
fn names(proc: &Proc, unread: &BTreeSet<u32>) -> BTreeMap<u32, String> {
    let named = |tgid: &u32| Some((*tgid, proc.stat(*tgid)?.comm));
    unread.iter().take(NAMED_MAX).filter_map(named).collect()
}

fn look(proc: &Proc, wanted: &[(NsInum, u64)], budget: Duration) -> Found {
    let deadline = &Deadline::after(budget);
    // Somebody may have very many processes: what was found by half of the time is looked at in the other half.
    let Ok(index) = MntnsIndex::build(proc, &Deadline::after(budget / 2)) else { return Found::default() };
    let mut look = Look::new(proc);
    look.found.unread.extend(&index.unreadable);
    // Threads of theirs may have namespaces of their own that were not looked up.
    look.found.unread.extend(&index.crowded);
    look.found.finished = index.finished;
    look.found.indexed = index.finished.then(|| index.namespaces.keys().copied().collect());
    if index.finished {
        look.found.kept = kept(proc, &index, wanted);
    }
    let (namespaces, large): (Vec<_>, Vec<_>) =
        look.sorted(&index).into_iter().partition(|namespace| !is_large(proc, namespace));
    large.iter().for_each(|namespace| look.miss(namespace));
    // Those of users come last: without them the number is only lower, and fewer copies are known.
    let in_time = namespaces.iter().take_while(|_| !deadline.is_over());
    look.found.bound = in_time.filter_map(|namespace| newest(proc, &namespace.members)).max();
    look.found.before = boot_now();
    let mut host: BTreeMap<String, Vec<HostMount>> = BTreeMap::new();
    let of_host = || namespaces.iter().filter(|namespace| namespace.whose == Whose::Host);
    look.found.mntns = of_host().next().map_or(0, |namespace| namespace.inum);
    for namespace in of_host() {
        if let Some(shown) = mounts(proc, namespace.members.iter().copied(), |_| true) {
            add_host(&mut host, &mut look.found.crowded, &shown.table, namespace.inum);
            add_volume_data(proc, namespace, &shown.table, &mut host);
            look.reached.add_host(proc, (namespace.inum, &namespace.members), &shown.table);
        }
    }
    if host.is_empty() {
        return look.found;
    }
    look.on_host = host.values().flatten().map(|mount| mount.path.clone()).collect();
    let mut of_owner: HashMap<u32, usize> = HashMap::new();
    for namespace in namespaces.iter().filter(|namespace| namespace.whose != Whose::Host) {
        if let Whose::User(owner) = namespace.whose {
            let read = of_owner.entry(owner).or_default();
            *read += 1;
            if *read > NAMESPACES_OF_USER {
                look.miss(namespace);
                continue;
            }
        }
        if deadline.is_over() {
            look.found.finished = false;
            break;
        }
        look.namespace(namespace, &mut host);
    }
    look.found.host = Some(host.into_values().take(HOST_MAX).flatten().collect());
    let is_all = look.found.finished && look.found.missed.is_empty() && look.found.unread.is_empty();
    look.found.attached = look.reached.finish(is_all);
    look.found
}

/// Which of these mounts are there in a namespace that no process is in: an open file or a mount keeps it. None before Linux 6.12,
/// where the kernel does not list such.
fn kept(proc: &Proc, index: &MntnsIndex, wanted: &[(NsInum, u64)]) -> BTreeSet<u64> {
    let mut missing: BTreeMap<NsInum, Vec<u64>> = BTreeMap::new();
    for (number, unique) in wanted.iter().filter(|(number, _)| !index.namespaces.contains_key(number)) {
        missing.entry(*number).or_default().push(*unique);
    }
    let mut kept = BTreeSet::new();
    let own = own_directory(proc).and_then(|_| proc.dir(own_tgid(proc)?).ok());
    let Some(own) = own.filter(|_| !missing.is_empty()) else { return kept };
    // Where the list ends early, the others are taken to be gone, as before.
    let _ = MountNamespace::for_each_other(&own, |number, namespace| {
        let uniques = missing.remove(&number).unwrap_or_default();
        kept.extend(uniques.into_iter().filter(|unique| namespace.has(*unique) == Some(true)));
        Ok(!missing.is_empty())
    });
    kept
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// The host's, a kubelet's or a runtime's.
    Host,
    /// Another one that root of the node made.
    Root,
    /// In a user namespace of this owner of the processes.
    User(u32),
}

struct Namespace {
    inum: NsInum,
    members: Vec<Member>,
    whose: Whose,
}

struct Look<'p> {
    proc: &'p Proc,
    bundles: HashMap<String, Vec<BindMount>>,
    reached: Reached,
    /// Where the host has something mounted.
    on_host: HashSet<String>,
    found: Found,
}

impl<'p> Look<'p> {
    fn new(proc: &'p Proc) -> Self {
        Self {
            proc,
            bundles: HashMap::new(),
            reached: Reached::default(),
            on_host: HashSet::new(),
            found: Found::default(),
        }
    }

    /// All namespaces: those that users can make come last.
    fn sorted(&self, index: &MntnsIndex) -> Vec<Namespace> {
        let host = rbd::host(self.proc);
        let mut namespaces: Vec<Namespace> = index
            .namespaces
            .iter()
            .map(|(inum, members)| {
                let whose = if Some(*inum) == host { Whose::Host } else { self.whose(members) };
                Namespace { inum: *inum, members: members.clone(), whose }
            })
            .collect();
        let is_users = |namespace: &Namespace| matches!(namespace.whose, Whose::User(_));
        namespaces.sort_by_key(|namespace| {
            let is_others = (Some(namespace.inum) != host, namespace.whose != Whose::Host);
            (is_users(namespace), is_others, namespace.inum)
        });
        namespaces
    }

    fn whose(&self, members: &[Member]) -> Whose {
        let (mut links, mut text) = (Buffer::default(), Vec::new());
        let dirs = members.iter().take(MEMBERS_LOOKED_AT).filter_map(|member| member.dir(self.proc));
        let mut user = None;
        for dir in dirs {
            if is_of_runtime(&dir, &mut links, &mut text) {
                return Whose::Host;
            }
            if user.is_none() {
                user = Some((!is_initial_userns(&dir, &mut links)).then(|| dir.owner().unwrap_or_default()));
            }
        }
        user.flatten().map_or(Whose::Root, Whose::User)
    }

    fn namespace(&mut self, namespace: &Namespace, host: &mut BTreeMap<String, Vec<HostMount>>) {
        let Some(shown) = mounts(self.proc, namespace.members.iter().copied(), |_| true) else {
            return self.miss(namespace);
        };
        match shown.table.is_cut() {
            true => self.miss(namespace),
            false if shown.hidden_from.is_none() => drop(self.found.read.insert(namespace.inum)),
            false => {}
        }
        if let Some(root) = shown.table.at("/").and_then(|root| host.get_mut(&root.device))
            && root.iter().all(|mount| mount.path != "/")
        {
            let cgroup = namespace.members.first().and_then(|member| self.proc.cgroup(member.tgid));
            root.iter_mut().for_each(|mount| mount.root_of.clone_from(&cgroup));
        }
        self.reached.add_copies(self.proc, (namespace.inum, &namespace.members), &shown.table);
        let of_host = |mount: &&Mount| host.contains_key(&mount.device);
        let candidates = shown.table.iter().filter(|mount| !of_host(mount) && !is_own(mount));
        let mut copies: Vec<&Mount> = candidates.collect();
        if copies.is_empty() {
            return;
        }
        let all = copies.len();
        copies.retain(|mount| mount.mountpoint.len() + mount.root.len() + mount.source.len() <= TEXT_MAX);
        let of_one = if matches!(namespace.whose, Whose::User(_)) { COPIES_OF_USERS } else { COPIES_OF_ONE };
        let most = of_one.min(COPIES_MAX.saturating_sub(self.found.copies.len()));
        let omitted = all - copies.len().min(most);
        let omitted_now = u32::try_from(omitted).unwrap_or(u32::MAX);
        self.found.omitted = self.found.omitted.saturating_add(omitted_now);
        if most < of_one || !matches!(namespace.whose, Whose::User(_)) {
            self.found.displaced = self.found.displaced.saturating_add(omitted_now);
        }
        if omitted > 0 {
            // What is not told is not gone.
            self.found.read.remove(&namespace.inum);
            self.found.missed.insert(namespace.inum);
        }
        copies.truncate(most);
        self.add(namespace, &copies);
    }

    fn miss(&mut self, namespace: &Namespace) {
        self.found.unread.extend(namespace.members.iter().map(|member| member.tgid));
        self.found.missed.insert(namespace.inum);
    }

    fn add(&mut self, namespace: &Namespace, copies: &[&Mount]) {
        // The oldest tells best since when the namespace is there.
        let (first, others) = namespace.members.split_at(namespace.members.len().min(MEMBERS_LOOKED_AT));
        let mut first = first.to_vec();
        first.sort_by_cached_key(|member| {
            self.proc.stat(member.tgid).map_or(BootNs::MAX, |stat| stat.start_ns)
        });
        let mut members = first.iter().chain(others);
        let Some((member, holder)) = members.find_map(|member| self.holder(*member, namespace)) else {
            self.found.read.remove(&namespace.inum);
            self.found.missed.insert(namespace.inum);
            return;
        };
        // In a user namespace anybody mounts what he likes, on what the container has of the host as well.
        let binds = match namespace.whose {
            Whose::User(_) => Vec::new(),
            Whose::Host | Whose::Root => self.binds(member.tgid, holder.cgroup.as_deref()),
        };
        let by_kernel = member.dir(self.proc).and_then(|dir| MountNamespace::of(&dir).ok());
        let unique = by_kernel.map_or_else(|| vec![None; copies.len()], |ns| ns.unique_ids(copies));
        let copies = copies.iter().zip(unique).map(|(mount, unique)| MountCopy {
            mount: mount.facts(namespace.inum, unique),
            propagation: propagation(mount),
            holder: holder.clone(),
            original: None,
            bind: bundle::of_mount(&binds, &mount.mountpoint)
                // Another file system on the same directory of a container is its own then.
                .filter(|bind| {
                    bind.on_host(&mount.mountpoint).is_none_or(|path| !self.on_host.contains(&path))
                })
                .cloned(),
            without_process: false,
        });
        self.found.copies.extend(copies);
    }

    fn holder(&self, member: Member, namespace: &Namespace) -> Option<(Member, CopyHolder)> {
        let stat = self.proc.stat(member.tgid)?;
        let holder = CopyHolder {
            tgid: member.tgid,
            start_ns: stat.start_ns,
            comm: stat.comm,
            exe: self.proc.exe(member.tgid),
            uid: self.proc.uid(member.tgid),
            cgroup: self.proc.cgroup(member.tgid),
            in_userns: matches!(namespace.whose, Whose::User(_)),
            init: self.proc.is_init(member.tgid),
        };
        // Much was read by its number.
        let dir = member.dir(self.proc)?;
        let now = mount_namespace(&dir, &mut Buffer::default()).ok().flatten();
        (now == Some(namespace.inum)).then_some((member, holder))
    }

    fn binds(&mut self, tgid: u32, cgroup: Option<&str>) -> Vec<BindMount> {
        let Some(cgroup) = cgroup else { return Vec::new() };
        if let Some(known) = self.bundles.get(cgroup) {
            return known.clone();
        }
        let binds = bundle::binds(self.proc, tgid, cgroup).unwrap_or_default();
        self.bundles.insert(cgroup.to_owned(), binds.clone());
        binds
    }
}

/// Whether a user has made more mounts in it than anybody needs, where the kernel tells: to read them may take longer than a
/// reader has, and all that it has found would be lost.
fn is_large(proc: &Proc, namespace: &Namespace) -> bool {
    if !matches!(namespace.whose, Whose::User(_)) {
        return false;
    }
    let process = namespace.members.iter().take(MEMBERS_LOOKED_AT).find_map(|member| member.dir(proc));
    let shown = process.and_then(|process| MountNamespace::of(&process).ok());
    shown.is_some_and(|shown| shown.has_more_than(MOUNTS_OF_USER).unwrap_or(false))
}

/// The unique id of the newest mount of a namespace, where the kernel tells.
fn newest(proc: &Proc, members: &[Member]) -> Option<u64> {
    let process: dir::Dir = members.iter().take(MEMBERS_LOOKED_AT).find_map(|member| member.dir(proc))?;
    MountNamespace::of(&process).ok()?.newest().ok()
}

fn add_host(
    host: &mut BTreeMap<String, Vec<HostMount>>,
    crowded: &mut BTreeSet<String>,
    table: &MountTable,
    mntns: NsInum,
) {
    for mount in table.iter().filter(|mount| mount.fstype != "nsfs") {
        let new = HostMount {
            device: mount.device.clone(),
            root: mount.root.clone(),
            path: mount.mountpoint.clone(),
            fstype: mount.fstype.clone(),
            source: kevtmon_types::redact::mount_source(&mount.source),
            mntns,
            root_of: None,
            volume_data: None,
        };
        let known = host.entry(mount.device.clone()).or_default();
        if known.iter().any(|known| known.is_at(&new)) {
            continue;
        }
        let is_volume = is_in_pod(&new.path);
        let alike = known.iter().filter(|known| is_in_pod(&known.path) == is_volume).count();
        if alike < if is_volume { VOLUMES_MAX } else { OTHER_PLACES_MAX } {
            known.push(new);
        } else if is_volume {
            crowded.insert(mount.device.clone());
        }
    }
}

/// Adds what kubelets have written beside the volumes that they have staged: once such a volume is unmounted, that is removed.
fn add_volume_data(
    proc: &Proc,
    namespace: &Namespace,
    table: &MountTable,
    host: &mut BTreeMap<String, Vec<HostMount>>,
) {
    let mut buffer = Buffer::default();
    let mut is_whole = |dir: &dir::Dir| dir.link(c"root", &mut buffer).is_ok_and(|root| root == "/");
    let dirs = namespace.members.iter().take(MEMBERS_LOOKED_AT).filter_map(|member| member.dir(proc));
    let Some(process) = dirs.into_iter().find(|dir| is_whole(dir)) else { return };
    let staged = host
        .values_mut()
        .flatten()
        .filter(|mount| mount.mntns == namespace.inum && mount.path.ends_with("/globalmount"));
    // What hangs now is a disk, and not whom was read last.
    reading_none();
    for mount in staged.take(STAGED_MAX) {
        mount.volume_data = volume_data::of_mount(&process, table, &mount.path);
    }
}

/// Whether it looks like a volume of a pod; whether it is one, others know.
pub(super) fn is_in_pod(path: &str) -> bool {
    path.contains("/pods/") && (path.contains("/volumes/") || path.contains("/volume-subpaths/"))
}

/// Whether it looks like a volume that a kubelet has staged for all pods.
pub(super) fn is_staged(path: &str) -> bool {
    path.contains("/plugins/kubernetes.io/")
}

/// Whether a file system was made for the namespace in which it is.
fn is_own(mount: &Mount) -> bool {
    let is_at = |place: &str| is_below(&mount.mountpoint, place);
    is_of_the_kernel(&mount.fstype)
        || mount.fstype == "tmpfs"
            && mount.mountpoint != SHARED_MEMORY
            && OWN_PLACES.iter().any(|place| is_at(place))
}

fn propagation(mount: &Mount) -> Propagation {
    match (mount.shared, mount.master) {
        (Some(_), _) => Propagation::Shared,
        (None, Some(_)) => Propagation::Slave,
        (None, None) => Propagation::Private,
    }
}

#[cfg(test)]
mod tests;
