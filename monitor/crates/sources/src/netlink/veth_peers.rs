//! Finds the network namespace of the other end of a veth device of the host, and what keeps it: processes in it, open files,
//! and mounts in any mount namespace that a process is in.
//!
//! A namespace without a process and without a file in the usual directories is found by what keeps it: that is opened for as
//! long as the kernel is asked for the nsid of the namespace, which the device names too. Files are opened only where they
//! are namespaces, and paths in other mount namespaces are walked from the kernel's cache only, as else a dead file server could be
//! waited for. A socket keeps the namespace it was made in, of which /proc shows nothing: whoever calls lists these, and they are
//! looked at only where nothing else leads to a namespace. A mount of NFS keeps the namespace in which it was made, too
//! (`nfs_alloc_client`, fs/nfs/client.c): only the address of its client, which mount tables show since version 4, tells which.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use kevtmon_observation::{Access, Holder, HolderReport, NsInum, VethLink, VethPeer};
use kevtmon_types::redact;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkExtentMask, LinkMessage};
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

use super::NetlinkConfig;
use super::discover::{nsid_of, open_namespace, own_namespace};
use super::message::{self, Change};
use super::socket::{RequestError, RequestSocket};
use crate::procfs::dir::{Buffer, Dir, NumberName, is_gone};
use crate::procfs::mountinfo::nfs_client;
use crate::procfs::pidfd::PidFd;
use crate::procfs::readers::{asker, reading, reading_none};
use crate::procfs::{Proc, parse_ns};
use crate::socket_netns;

/// All processes are looked at within this time, or not all of them.
const TIME: Duration = Duration::from_secs(10);
/// All requests to the kernel together.
const BUDGET: Duration = Duration::from_secs(2);
/// What keeps one namespace, as far as it is told.
const KEEPERS_MAX: usize = 16;
const POSSIBLE_MAX: usize = 8;
/// Processes by which one mount namespace is read: one may be gone.
const READERS_MAX: usize = 2;
/// Sockets in other network namespaces than their tasks' that are looked at.
const SOCKETS_MAX: usize = 4096;
/// `RESOLVE_CACHED` of include/uapi/linux/openat2.h, since 5.12.
const RESOLVE_CACHED: u64 = 0x20;

/// An open socket that is in another network namespace than its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketElsewhere {
    pub tgid: u32,
    /// The thread in whose list of descriptors it is.
    pub tid: u32,
    pub fd: u32,
    pub netns: NsInum,
}

/// The other ends of these devices. `sockets` lists all that are neither in the namespace of their task nor in the given one.
pub fn find(
    proc: &Proc,
    links: &[VethLink],
    sockets: impl FnOnce(NsInum) -> io::Result<Vec<SocketElsewhere>>,
) -> Vec<VethPeer> {
    try_find(proc, links, sockets).unwrap_or_else(|error| {
        tracing::debug!(%error, "cannot look for the other ends of veth devices");
        Vec::new()
    })
}

#[derive(Debug, thiserror::Error)]
enum FindError {
    #[error("cannot read the namespace of this process")]
    Namespace(#[source] io::Error),
    #[error("cannot read the devices")]
    Links(#[from] RequestError),
}

fn try_find(
    proc: &Proc,
    links: &[VethLink],
    sockets: impl FnOnce(NsInum) -> io::Result<Vec<SocketElsewhere>>,
) -> Result<Vec<VethPeer>, FindError> {
    let host = own_namespace(proc).map_err(FindError::Namespace)?;
    let mut survey = Survey::of(proc, host, &clients(links));
    reading_none();
    let mut requests = RequestSocket::open(BUDGET)?;
    let mut nsids = survey.nsids(proc, &mut requests);
    let devices = devices(&mut requests, host)?;
    let is_unfound = |link: &VethLink, nsids: &HashMap<i32, NsInum>| match devices.get(&link.ifindex) {
        Some(Other::Nsid(nsid)) => !nsids.contains_key(nsid),
        _ => false,
    };
    let unfound: Vec<VethLink> = links.iter().filter(|link| is_unfound(link, &nsids)).cloned().collect();
    if !unfound.is_empty() {
        let found = BTreeSet::from_iter(nsids.values().copied());
        let mut sockets = sockets(host).unwrap_or_else(|error| {
            survey.report.blind_spot(None, &format!("sockets cannot be listed: {error}"));
            Vec::new()
        });
        let mut seen = BTreeSet::new();
        sockets.retain(|socket| !found.contains(&socket.netns) && seen.insert((socket.tgid, socket.netns)));
        // Users can make any number of others.
        sockets.sort_by_key(|socket| !unfound.iter().any(|link| link.netns == Some(socket.netns)));
        survey.sockets(proc, &sockets);
        nsids = survey.nsids(proc, &mut requests);
    }
    let peer = |link: &VethLink| {
        let other = devices.get(&link.ifindex);
        let netns = other.and_then(|other| match other {
            Other::Here => Some(host),
            Other::Nsid(nsid) => nsids.get(nsid).copied(),
            Other::Gone => None,
        });
        let kept = netns.and_then(|netns| survey.kept.get(&netns));
        let mut keepers = kept.map(|kept| kept.holders.clone()).unwrap_or_default();
        if is_unfound(link, &nsids) {
            keepers = survey.possible(link.netns);
        }
        keepers.sort_by_key(|keeper| keeper.possible);
        keepers.iter_mut().for_each(|keeper| describe(proc, keeper));
        VethPeer {
            ifindex: link.ifindex,
            present: other.is_some(),
            netns,
            name: netns.and_then(|netns| survey.names.get(&netns).cloned()),
            keepers,
            omitted: kept.map_or(0, |kept| kept.omitted),
            blind_spots: survey.report.blind_spots.clone(),
        }
    };
    Ok(links.iter().map(peer).collect())
}

/// What a process is, which is read only of those that are told.
fn describe(proc: &Proc, keeper: &mut Holder) {
    if keeper.tgid == 0 {
        return;
    }
    if let Some(stat) = proc.stat(keeper.tgid) {
        (keeper.comm, keeper.start_ns) = (stat.comm, Some(stat.start_ns));
    }
    keeper.exe = proc.exe(keeper.tgid);
    keeper.cmdline = proc.cmdline(keeper.tgid);
    keeper.uid = proc.uid(keeper.tgid);
    keeper.cgroup = proc.cgroup(keeper.tgid);
}

/// Where the other end of a device is.
enum Other {
    Here,
    Nsid(i32),
    Gone,
}

fn devices(requests: &mut RequestSocket, host: NsInum) -> Result<HashMap<u32, Other>, RequestError> {
    let mut request = LinkMessage::default();
    request.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    let mut devices = HashMap::new();
    requests.dump(RouteNetlinkMessage::GetLink(request), |message| {
        if let Ok(Change::Link(link)) = message::decode(host, message)
            && link.facts.kind.as_deref() == Some("veth")
        {
            let other = match (link.facts.peer, link.other_nsid) {
                (None, _) => Other::Gone,
                (Some(_), Some(nsid)) => Other::Nsid(nsid),
                (Some(_), None) => Other::Here,
            };
            devices.insert(link.facts.ifindex, other);
        }
    })?;
    Ok(devices)
}

#[derive(Debug, Default)]
struct Kept {
    holders: Vec<Holder>,
    omitted: u32,
}

/// What all processes have of network namespaces.
#[derive(Debug)]
struct Survey {
    host: NsInum,
    kept: BTreeMap<NsInum, Kept>,
    /// Names in the usual directories.
    names: BTreeMap<NsInum, String>,
    report: HolderReport,
    /// The device of the file system of namespaces.
    nsfs: Option<[u32; 2]>,
}

/// A mount of a network namespace, or one of NFS that was likely made in it.
struct NetnsMount {
    netns: NsInum,
    /// The device and the root, which copies share.
    what: (String, String),
    mountpoint: String,
    /// Whether no unmount elsewhere takes it along.
    is_private: bool,
    nfs: Option<String>,
}

/// The namespaces in which clients of NFS with these addresses were made.
fn clients(links: &[VethLink]) -> BTreeMap<IpAddr, NsInum> {
    let of = |link: &VethLink, address: &IpAddr| Some((*address, link.netns?));
    links.iter().flat_map(|link| link.addresses.iter().filter_map(move |address| of(link, address))).collect()
}

impl Survey {
    fn empty(host: NsInum) -> Self {
        let report = HolderReport::skipped(0, String::new());
        Self { host, kept: BTreeMap::new(), names: BTreeMap::new(), report, nsfs: None }
    }

    fn of(proc: &Proc, host: NsInum, clients: &BTreeMap<IpAddr, NsInum>) -> Self {
        let mut survey = Self { nsfs: nsfs(proc), ..Self::empty(host) };
        let mut buffer = Buffer::default();
        let mut by_mntns: BTreeMap<NsInum, Vec<u32>> = BTreeMap::new();
        let end = Instant::now() + TIME;
        for tgid in proc.pids().unwrap_or_default() {
            if Instant::now() > end {
                survey.report.blind_spot(None, "time ran out before all processes were read");
                break;
            }
            match proc.dir(tgid) {
                Ok(dir) => survey.process(tgid, &dir, &mut buffer, &mut by_mntns),
                Err(error) if is_gone(&error) => {}
                Err(_) => survey.report.blind_spot(Some((tgid, None)), "reads of it hang"),
            }
        }
        survey.mounts(proc, &by_mntns, clients);
        survey.bound();
        survey
    }

    fn process(
        &mut self,
        tgid: u32,
        dir: &Dir,
        buffer: &mut Buffer,
        by_mntns: &mut BTreeMap<NsInum, Vec<u32>>,
    ) {
        let own = match dir.link(c"ns/net", buffer) {
            Ok(link) => parse_ns(&link),
            // One that has ended has none.
            Err(error) if is_gone(&error) => return,
            Err(_) => return self.report.blind_spot(Some((tgid, None)), "it cannot be read"),
        };
        if let Some(netns) = own {
            self.add(netns, holder(tgid, Access::Netns));
        }
        if let Some(mntns) = dir.link(c"ns/mnt", buffer).ok().and_then(|link| parse_ns(&link)) {
            let readers = by_mntns.entry(mntns).or_default();
            if readers.len() < READERS_MAX {
                readers.push(tgid);
            }
        }
        let (Ok(files), mut numbers) = (dir.at(c"fd"), Vec::new()) else { return };
        if files.numbers(buffer, &mut numbers).is_err() {
            return;
        }
        for number in numbers {
            let Ok(link) = files.link(NumberName::new(number).as_c_str(), buffer) else { continue };
            let netns = match link.strip_prefix("net:[") {
                Some(_) => parse_ns(&link),
                None if may_be_detached_namespace(&link) => self.namespace_at(&files, number),
                None => None,
            };
            if let Some(netns) = netns.filter(|netns| Some(*netns) != own) {
                let path = Some(link.into_owned());
                self.add(netns, Holder { path, fd: Some(number), ..holder(tgid, Access::Fd) });
            }
        }
    }

    /// The network namespace that a descriptor is of whose link does not show it.
    fn namespace_at(&self, files: &Dir, number: u32) -> Option<NsInum> {
        let (device, inode) = files.file_id(NumberName::new(number).as_c_str()).ok()?;
        (Some(device) == self.nsfs).then_some(NsInum::try_from(inode).ok()?)
    }

    /// Notes what keeps a namespace; a process once, and once where that is only possible. What certainly does has a part of the
    /// room to itself.
    fn add(&mut self, netns: NsInum, keeper: Holder) {
        if netns == self.host {
            return;
        }
        let kept = self.kept.entry(netns).or_default();
        let who = |keeper: &Holder| (keeper.tgid, keeper.possible);
        if keeper.tgid != 0 && kept.holders.iter().any(|known| who(known) == who(&keeper)) {
            return;
        }
        let most = if keeper.possible { POSSIBLE_MAX } else { KEEPERS_MAX };
        if kept.holders.len() < most {
            kept.holders.push(keeper);
        } else {
            kept.omitted += 1;
        }
    }

    /// Mounts of namespaces, and of these clients of NFS, in the mount namespaces of all processes. Copies that go with the one in
    /// this process's are none of their own.
    fn mounts(
        &mut self,
        proc: &Proc,
        by_mntns: &BTreeMap<NsInum, Vec<u32>>,
        clients: &BTreeMap<IpAddr, NsInum>,
    ) {
        let own = proc.ns(std::process::id(), "mnt");
        let mut seen_here = BTreeSet::new();
        let mut namespaces: Vec<(NsInum, &Vec<u32>)> =
            by_mntns.iter().map(|(mntns, readers)| (*mntns, readers)).collect();
        namespaces.sort_by_key(|(mntns, _)| Some(*mntns) != own);
        for (mntns, readers) in namespaces {
            let found = readers.iter().find_map(|tgid| Some((*tgid, netns_mounts(proc, *tgid, clients)?)));
            let Some((tgid, mounts)) = found else {
                self.report.blind_spot(
                    readers.first().map(|tgid| (*tgid, None)),
                    "the mounts of its namespace cannot be read",
                );
                continue;
            };
            for NetnsMount { netns, what, mountpoint, is_private, nfs } in mounts {
                let is_here = Some(mntns) == own;
                if is_here {
                    seen_here.insert(what);
                } else if seen_here.contains(&what) && !is_private {
                    continue;
                }
                let access = if nfs.is_some() { Access::Nfs } else { Access::Mount };
                let keeper = Holder {
                    mntns: Some(mntns),
                    path: Some(mountpoint),
                    possible: nfs.is_some(),
                    source: nfs,
                    ..holder(if is_here { 0 } else { tgid }, access)
                };
                self.add(netns, keeper);
            }
        }
    }

    /// Names in the usual directories.
    fn bound(&mut self) {
        for directory in NetlinkConfig::default().bind_directories {
            for (netns, path) in super::discover::bound(&directory) {
                let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
                if let Some(name) = name {
                    self.names.entry(netns).or_insert(name);
                }
            }
        }
    }

    /// Notes whose sockets keep namespaces. Those of this program are there for a moment only.
    fn sockets(&mut self, proc: &Proc, sockets: &[SocketElsewhere]) {
        if sockets.len() > SOCKETS_MAX {
            self.report.blind_spot(None, "too many sockets are in other network namespaces");
        }
        let own = asker().unwrap_or_else(std::process::id);
        let is_own = |tgid| tgid == own || proc.stat(tgid).is_some_and(|stat| stat.ppid == own);
        let mut buffer = Buffer::default();
        for socket in sockets.iter().take(SOCKETS_MAX).filter(|socket| !is_own(socket.tgid)) {
            // One that is closed by now has none.
            let Ok(protocol) = protocol(proc, socket, &mut buffer) else { continue };
            let SocketElsewhere { tgid, tid, fd, netns } = *socket;
            let tid = (tid != tgid).then_some(tid);
            let keeper = Holder { path: Some(protocol), fd: Some(fd), tid, ..holder(tgid, Access::Socket) };
            self.add(netns, keeper);
        }
    }

    /// The sockets and mounts of NFS of a namespace that was not found by them, which is likely still the one of the device.
    fn possible(&self, netns: Option<NsInum>) -> Vec<Holder> {
        let kept = netns.and_then(|netns| self.kept.get(&netns));
        let keepers = kept.iter().flat_map(|kept| &kept.holders);
        let possible = keepers.filter(|keeper| matches!(keeper.access, Access::Socket | Access::Nfs));
        possible.cloned().map(|keeper| Holder { possible: true, ..keeper }).collect()
    }

    /// The nsids of all that are kept, as far as one of their keepers can be opened.
    fn nsids(&self, proc: &Proc, requests: &mut RequestSocket) -> HashMap<i32, NsInum> {
        let mut nsids = HashMap::new();
        for (netns, kept) in &self.kept {
            let opened = kept.holders.iter().find_map(|keeper| open(proc, *netns, keeper).ok());
            reading_none();
            let nsid = opened.and_then(|file| nsid_of(requests, &file).ok().flatten());
            nsids.extend(nsid.map(|nsid| (nsid, *netns)));
        }
        nsids
    }
}

/// The device of the file system of namespaces, as of this process's own.
fn nsfs(proc: &Proc) -> Option<[u32; 2]> {
    proc.dir(std::process::id()).ok()?.at(c"ns").ok()?.file_id(c"net").ok().map(|(device, _)| device)
}

/// Whether a link may be that of a namespace which was opened by a name in one of the usual directories: its path while
/// that is mounted there, and afterwards the root of a mount that is nowhere.
fn may_be_detached_namespace(link: &str) -> bool {
    link == "/"
        || NetlinkConfig::default().bind_directories.iter().any(|usual| Path::new(link).starts_with(usual))
}

fn holder(tgid: u32, access: Access) -> Holder {
    Holder { tgid, path: None, ..Holder::of_kernel(access, String::new()) }
}

/// The protocol of a socket, as the kernel names it.
fn protocol(proc: &Proc, socket: &SocketElsewhere, buffer: &mut Buffer) -> io::Result<String> {
    let tasks = proc.dir(socket.tgid)?.at(c"task")?;
    let files = tasks.at(NumberName::new(socket.tid).as_c_str())?.at(c"fd")?;
    let own = proc.root().join("self");
    Ok(files.socket_protocol(&own, &NumberName::new(socket.fd), buffer)?.into_owned())
}

/// The network namespaces that are mounted in the mount namespace of a process, and the mounts of these clients of NFS there.
fn netns_mounts(proc: &Proc, tgid: u32, clients: &BTreeMap<IpAddr, NsInum>) -> Option<Vec<NetnsMount>> {
    let dir = proc.dir(tgid).ok()?;
    let mut made_in: BTreeMap<u64, NsInum> = BTreeMap::new();
    // Of most tables it is no line.
    let is_wanted = |line: &str| {
        let made = nfs_client(line).and_then(|(id, address)| Some((id, *clients.get(&address)?)));
        made_in.extend(made);
        made.is_some() || line.contains(" net:[")
    };
    let table = dir.mount_table("/", is_wanted).ok().filter(|table| !table.is_cut())?;
    let mounts = table.iter().filter_map(|mount| {
        let made = made_in.get(&mount.id).copied();
        let mounted = || mount.root.strip_prefix("net:[").and_then(|_| parse_ns(&mount.root));
        Some(NetnsMount {
            netns: made.or_else(mounted)?,
            what: (mount.device.clone(), mount.root.clone()),
            mountpoint: mount.mountpoint.clone(),
            is_private: mount.shared.is_none() && mount.master.is_none(),
            nfs: made.map(|_| redact::mount_source(&mount.source)),
        })
    });
    Some(mounts.collect())
}

fn open(proc: &Proc, netns: NsInum, keeper: &Holder) -> io::Result<File> {
    match (keeper.access, keeper.fd, keeper.path.as_deref()) {
        (Access::Netns, ..) => open_namespace(&proc.path(keeper.tgid, "ns/net"), netns),
        (Access::Fd, Some(fd), _) => open_namespace(&proc.path(keeper.tgid, &format!("fd/{fd}")), netns),
        (Access::Socket, Some(fd), _) => open_by_socket(proc, netns, keeper, fd),
        (Access::Mount, _, Some(path)) if keeper.tgid == 0 => open_mounted(Path::new("/"), path, netns),
        (Access::Mount, _, Some(path)) => open_mounted(&proc.path(keeper.tgid, "root"), path, netns),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

fn open_by_socket(proc: &Proc, netns: NsInum, keeper: &Holder, fd: u32) -> io::Result<File> {
    reading(keeper.tgid);
    let process = keeper.tid.map_or_else(|| PidFd::open(keeper.tgid), PidFd::open_thread)?;
    let namespace = socket_netns::of_other(proc, &process, fd)?;
    let is_wanted = namespace.metadata()?.ino() == u64::from(netns);
    if is_wanted { Ok(namespace) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// Opens the namespace that is mounted on a path below this root: from the kernel's cache, and only if it is one.
fn open_mounted(root: &Path, path: &str, netns: NsInum) -> io::Result<File> {
    let root = nix::fcntl::open(
        root,
        OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        nix::sys::stat::Mode::empty(),
    )?;
    let resolve = ResolveFlag::from_bits_retain(RESOLVE_CACHED)
        | ResolveFlag::RESOLVE_IN_ROOT
        | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(resolve);
    let found = openat2(root.as_fd(), path, how)?;
    let itself = format!("/proc/self/fd/{}", found.as_raw_fd());
    let is_nsfs = fs::metadata("/proc/self/ns/net")?.dev() == fs::metadata(&itself)?.dev();
    if is_nsfs { open_namespace(Path::new(&itself), netns) } else { Err(io::ErrorKind::NotFound.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_what_keeps_a_namespace_once_and_the_host_is_kept_by_nobody() {
        let mut survey = Survey::empty(1);
        survey.add(1, holder(7, Access::Netns));
        survey.add(2, holder(7, Access::Netns));
        survey.add(2, Holder { fd: Some(3), ..holder(7, Access::Fd) });
        for _ in 0..KEEPERS_MAX {
            survey.add(2, holder(0, Access::Mount));
        }
        assert_eq!(survey.kept.keys().collect::<Vec<_>>(), [&2]);
        assert_eq!(survey.kept[&2].holders.len(), KEEPERS_MAX);
        assert_eq!(survey.kept[&2].omitted, 1);
        assert_eq!(survey.kept[&2].holders[0].access, Access::Netns);
    }

    #[test]
    fn a_socket_is_named_with_its_protocol_unless_it_is_closed() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let fd = u32::try_from(socket.as_raw_fd()).unwrap();
        let tgid = std::process::id();
        let at = |fd| SocketElsewhere { tgid, tid: tgid, fd, netns: 2 };
        let mut buffer = Buffer::default();
        assert_eq!(protocol(&Proc::default(), &at(fd), &mut buffer).unwrap(), "UDP");
        assert!(protocol(&Proc::default(), &at(1 << 20), &mut buffer).is_err());
    }

    #[test]
    fn sockets_of_a_namespace_that_was_not_found_by_them_are_possible_keepers_and_nothing_else_of_it_is() {
        let mut survey = Survey::empty(1);
        survey.add(2, holder(7, Access::Fd));
        survey.add(2, Holder { fd: Some(3), ..holder(8, Access::Socket) });
        survey.add(3, Holder { fd: Some(3), ..holder(9, Access::Socket) });
        let possible = survey.possible(Some(2));
        assert_eq!(
            possible.iter().map(|keeper| (keeper.tgid, keeper.possible)).collect::<Vec<_>>(),
            [(8, true)]
        );
        assert_eq!((survey.possible(None), survey.possible(Some(4))), (Vec::new(), Vec::new()));
    }

    /// A CSI driver whose pod has a network of its own has mounted a volume, which the kubelet has bound for a pod.
    const MOUNTS: &str = "\
812 27 0:77 / /k/plugins/globalmount rw,relatime shared:9 - nfs4 10.83.28.38:/52d7e15c rw,vers=4.1,rsize=1048576,\
wsize=1048576,namlen=255,hard,proto=tcp,timeo=600,retrans=2,sec=sys,clientaddr=10.244.3.134,local_lock=none,addr=10.83.28.38
813 27 0:78 / /srv rw,relatime shared:10 - nfs4 10.83.28.38:/srv rw,vers=4.1,clientaddr=10.83.28.40,addr=10.83.28.38
814 27 0:4 net:[2] /run/netns/a rw shared:3 - nsfs nsfs rw
";

    #[test]
    fn a_mount_of_nfs_whose_client_has_an_address_of_a_namespace_likely_keeps_it_and_is_not_opened() {
        let root = tempfile::tempdir().unwrap();
        let process = root.path().join("7");
        fs::create_dir_all(process.join("ns")).unwrap();
        for (name, link) in [("net", "net:[1]"), ("mnt", "mnt:[5]")] {
            std::os::unix::fs::symlink(link, process.join("ns").join(name)).unwrap();
        }
        fs::write(process.join("mountinfo"), MOUNTS).unwrap();
        let proc = Proc::new(root.path());
        let link = |addresses| VethLink { ifindex: 3, netns: Some(2), addresses };
        let shown = |addresses| {
            let kept = Survey::of(&proc, 1, &clients(&[link(addresses)])).kept.remove(&2).unwrap();
            let shown = |keeper: &Holder| (keeper.access, keeper.path.clone(), keeper.source.clone());
            (kept.holders.iter().map(shown).collect::<Vec<_>>(), kept.holders)
        };
        let of = |path: &str| Some(path.to_owned());
        let mount = (Access::Mount, of("/run/netns/a"), None);
        assert_eq!(shown(Vec::new()).0, std::slice::from_ref(&mount));
        let (all, keepers) = shown(vec!["10.244.3.134".parse().unwrap()]);
        let nfs = (Access::Nfs, of("/k/plugins/globalmount"), of("10.83.28.38:/52d7e15c"));
        assert_eq!(all, [nfs, mount]);
        assert_eq!((keepers[0].tgid, keepers[0].possible, keepers[0].mntns), (7, true, Some(5)));
        assert!(open(&proc, 2, &keepers[0]).is_err());
    }

    #[test]
    fn what_only_may_keep_a_namespace_leaves_room_for_what_does() {
        let mut survey = Survey::empty(1);
        for _ in 0..=KEEPERS_MAX {
            survey.add(2, Holder { possible: true, ..holder(0, Access::Nfs) });
        }
        survey.add(2, holder(0, Access::Mount));
        assert_eq!(survey.kept[&2].holders.len(), POSSIBLE_MAX + 1);
        assert_eq!(survey.possible(Some(2)).len(), POSSIBLE_MAX);
    }

    #[test]
    fn a_file_that_is_no_namespace_is_not_opened() {
        let own = own_namespace(&Proc::default()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("file"), "").unwrap();
        assert!(open_mounted(directory.path(), "/file", own).is_err());
        assert!(open_mounted(Path::new("/proc/self"), "/ns/net", own).is_err(), "through no magic link");
    }

    #[test]
    fn the_processes_in_a_namespace_keep_it() {
        let proc = Proc::default();
        let own = own_namespace(&proc).unwrap();
        // As seen from another host: this one is one of the namespaces then.
        let survey = Survey::of(&proc, own.wrapping_add(1), &BTreeMap::new());
        let keepers = &survey.kept[&own];
        assert!(keepers.holders.iter().any(|keeper| keeper.access == Access::Netns), "{keepers:?}");
        assert!(keepers.holders.len() <= KEEPERS_MAX);
    }
}
