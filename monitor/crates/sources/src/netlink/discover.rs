//! Which network namespaces exist, by which handles they can be entered, and their nsid in the kernel.
//!
//! Looks at processes and at the directories where namespaces are bound. A namespace that only a file
//! descriptor keeps alive is not found. Nothing is held open when a function returns.

use std::collections::{BinaryHeap, HashMap};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use kevtmon_observation::{BootNs, NetnsOwner, NsInum};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use serde::{Deserialize, Serialize};

use super::message::{self, Change};
use super::socket::{RequestError, RequestSocket};
use crate::procfs::readers::{Job, Opened, reading_none};
use crate::procfs::{self, Proc};

/// Processes remembered per namespace: enough that one of them is still there at the dump.
const PROCESSES: usize = 4;
/// All requests of a discovery together.
const BUDGET: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiscoveredNetns {
    pub(super) netns: NsInum,
    /// Name below the first bind directory.
    pub(super) name: Option<String>,
    /// Its nsid in the host namespace; without one its messages do not arrive.
    pub(super) nsid: Option<i32>,
    paths: Vec<PathBuf>,
    /// Oldest first, the lower id of two that started together.
    processes: Vec<u32>,
}

impl DiscoveredNetns {
    /// Opens the namespace by the first handle that still leads to it.
    pub(super) fn open(&self, proc: &Proc) -> Option<File> {
        let readable = self.processes.iter().filter(|tgid| !proc.is_aside(**tgid));
        let by_process = readable.map(|tgid| proc.path(*tgid, "ns/net"));
        self.paths.iter().cloned().chain(by_process).find_map(|path| open_namespace(&path, self.netns).ok())
    }

    pub(super) fn had_processes(&self) -> bool {
        !self.processes.is_empty()
    }

    pub(super) fn owner(&self, proc: &Proc) -> Option<NetnsOwner> {
        self.processes.iter().find_map(|tgid| {
            let stat = proc.stat(*tgid).filter(|stat| !matches!(stat.state, 'Z' | 'X'))?;
            let cgroup = proc.cgroup(*tgid);
            let owner = NetnsOwner { tgid: *tgid, start_ns: stat.start_ns, comm: stat.comm, cgroup };
            (proc.ns(*tgid, "net")? == self.netns).then_some(owner)
        })
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Discover {
    pub(super) bind_directories: Vec<PathBuf>,
    pub(super) host: NsInum,
}

impl Job for Discover {
    const NAME: &'static str = "namespaces";
    type Reply = Vec<DiscoveredNetns>;

    fn run(&self, proc: &Proc) -> Self::Reply {
        discover(proc, &self.bind_directories, self.host).into_values().collect()
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Open(pub(super) DiscoveredNetns);

impl Job for Open {
    const NAME: &'static str = "open-namespace";
    type Reply = Option<NetnsOwner>;

    fn run(&self, proc: &Proc) -> Self::Reply {
        self.run_and_open(proc).0
    }

    fn run_and_open(&self, proc: &Proc) -> Opened<Self::Reply> {
        let opened = self.0.open(proc).map(OwnedFd::from);
        (opened.as_ref().and_then(|_| self.0.owner(proc)), opened)
    }
}

pub(super) fn own_namespace(proc: &Proc) -> io::Result<NsInum> {
    let link = fs::read_link(proc.root().join("self/ns/net"))?;
    procfs::parse_ns(&link.to_string_lossy())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a namespace link"))
}

/// Finds every namespace but `host` that can be opened.
pub(super) fn discover(
    proc: &Proc,
    bind_directories: &[PathBuf],
    host: NsInum,
) -> HashMap<NsInum, DiscoveredNetns> {
    let mut found = HashMap::new();
    for (netns, processes) in processes_by_namespace(proc, host) {
        entry(&mut found, netns).processes = processes;
    }
    let mut named = true;
    for directory in bind_directories {
        for (netns, path) in bound(directory).into_iter().filter(|(netns, _)| *netns != host) {
            let found = entry(&mut found, netns);
            if named && found.name.is_none() {
                found.name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            }
            found.paths.push(path);
        }
        named = false;
    }
    reading_none();
    let mut requests = match RequestSocket::open(BUDGET) {
        Ok(requests) => Some(requests),
        Err(error) => {
            tracing::warn!(%error, "cannot request namespace ids");
            None
        }
    };
    found.retain(|_, found| {
        let Some(handle) = found.open(proc) else { return false };
        reading_none();
        found.nsid = requests.as_mut().and_then(|requests| nsid_of(requests, &handle).ok().flatten());
        true
    });
    found
}

/// The nsid of the opened namespace in that of `requests`; `None` if it has none.
pub(super) fn nsid_of(requests: &mut RequestSocket, namespace: &File) -> Result<Option<i32>, RequestError> {
    let fd = u32::try_from(namespace.as_raw_fd()).unwrap_or(u32::MAX);
    request_nsid(requests, vec![NsidAttribute::Fd(fd)])
}

/// Gives the opened namespace the next free nsid in that of `requests`, as `ip netns set` does: it refers to the namespace
/// without keeping it alive, and ends with it. Returns the one it has by then, which may be another program's.
pub(super) fn assign_nsid(
    requests: &mut RequestSocket,
    namespace: &File,
) -> Result<Option<i32>, RequestError> {
    let fd = u32::try_from(namespace.as_raw_fd()).unwrap_or(u32::MAX);
    let mut request = NsidMessage::default();
    request.attributes = vec![NsidAttribute::Fd(fd), NsidAttribute::Id(message::NSID_NOT_ASSIGNED)];
    match requests.command(RouteNetlinkMessage::NewNsId(request)) {
        Err(RequestError::Refused { source, .. }) if source.raw_os_error() == Some(libc::EEXIST) => {}
        result => result?,
    }
    nsid_of(requests, namespace)
}

/// The nsid in the namespace `target` of the one that is `nsid` here (since Linux 4.20).
pub(super) fn nsid_in(
    requests: &mut RequestSocket,
    target: i32,
    nsid: i32,
) -> Result<Option<i32>, RequestError> {
    request_nsid(requests, vec![NsidAttribute::Id(nsid), NsidAttribute::TargetNsid(target)])
}

fn request_nsid(
    requests: &mut RequestSocket,
    about: Vec<NsidAttribute>,
) -> Result<Option<i32>, RequestError> {
    let mut request = NsidMessage::default();
    request.attributes = about;
    // The answer describes no content of a namespace, so any inode serves to decode it.
    requests.request(RouteNetlinkMessage::GetNsId(request), |message| match message::decode(0, message) {
        Ok(Change::NsidAssigned(id)) => Some(id),
        _ => None,
    })
}

/// Opens `path` if it is the namespace `netns`. Non-blocking, as anything could stand in its place.
pub(super) fn open_namespace(path: &Path, netns: NsInum) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.ino() == u64::from(netns) { Ok(file) } else { Err(io::ErrorKind::NotFound.into()) }
}

fn entry(found: &mut HashMap<NsInum, DiscoveredNetns>, netns: NsInum) -> &mut DiscoveredNetns {
    found.entry(netns).or_insert_with(|| DiscoveredNetns { netns, ..DiscoveredNetns::default() })
}

/// One pass over all processes; start times are read only outside the host's namespace.
fn processes_by_namespace(proc: &Proc, host: NsInum) -> HashMap<NsInum, Vec<u32>> {
    let pids = proc.pids().unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot list processes");
        Vec::new()
    });
    let mut oldest: HashMap<NsInum, BinaryHeap<(BootNs, u32)>> = HashMap::new();
    for tgid in pids {
        let Some(netns) = proc.ns(tgid, "net").filter(|netns| *netns != host) else { continue };
        let Some(stat) = proc.stat(tgid) else { continue };
        let heap = oldest.entry(netns).or_default();
        heap.push((stat.start_ns, tgid));
        if heap.len() > PROCESSES {
            heap.pop();
        }
    }
    oldest
        .into_iter()
        .map(|(netns, heap)| (netns, heap.into_sorted_vec().into_iter().map(|(_, tgid)| tgid).collect()))
        .collect()
}

/// Namespaces bound to files of a directory, in the order of their names.
pub(super) fn bound(directory: &Path) -> Vec<(NsInum, PathBuf)> {
    // Namespaces of all kinds live on one internal file system: its device distinguishes them from other files.
    let Ok(nsfs) = fs::metadata("/proc/self/ns/net").map(|own| own.dev()) else { return Vec::new() };
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut bound: Vec<_> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let metadata = fs::metadata(&path).ok().filter(|metadata| metadata.dev() == nsfs)?;
            Some((NsInum::try_from(metadata.ino()).ok()?, path))
        })
        .collect();
    bound.sort_unstable_by(|a, b| a.1.cmp(&b.1));
    bound
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn process(root: &Path, pid: u32, start: u64, netns: NsInum) {
        let dir = root.join(pid.to_string());
        fs::create_dir_all(dir.join("ns")).unwrap();
        let stat = format!("{pid} (p{pid}) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} 0 0");
        fs::write(dir.join("stat"), stat).unwrap();
        symlink(format!("net:[{netns}]"), dir.join("ns/net")).unwrap();
    }

    #[test]
    fn the_oldest_process_owns_a_namespace_and_the_lower_id_wins_a_tie() {
        let root = tempfile::tempdir().unwrap();
        for (pid, start, netns) in [(10, 500, 7), (11, 300, 7), (12, 300, 7), (13, 1, 8), (14, 2, 9)] {
            process(root.path(), pid, start, netns);
        }
        let proc = Proc::new(root.path());
        let found = processes_by_namespace(&proc, 9);
        assert_eq!(found.len(), 2, "the host's namespace is left out");
        assert_eq!(found[&7], [11, 12, 10]);
        let found = DiscoveredNetns { processes: found[&7].clone(), ..entry(&mut HashMap::new(), 7).clone() };
        assert_eq!(found.owner(&proc).unwrap().comm, "p11");
        fs::remove_dir_all(root.path().join("11")).unwrap();
        assert_eq!(found.owner(&proc).unwrap().tgid, 12);
    }

    #[test]
    fn a_crowded_namespace_keeps_only_its_oldest_processes() {
        let root = tempfile::tempdir().unwrap();
        for pid in 100..150 {
            process(root.path(), pid, u64::from(1000 - pid), 7);
        }
        let found = processes_by_namespace(&Proc::new(root.path()), 9);
        assert_eq!(found[&7], [149, 148, 147, 146]);
    }

    #[test]
    fn files_that_are_no_namespaces_are_not_taken_for_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("plain");
        fs::write(&file, "").unwrap();
        assert_eq!(bound(dir.path()), []);
        let inode = NsInum::try_from(fs::metadata(&file).unwrap().ino()).unwrap();
        assert!(open_namespace(&file, inode.wrapping_add(1)).is_err());
    }
}
