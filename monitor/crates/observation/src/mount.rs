//! Calls that a busy mount refuses, and what pins the mount.

pub use block_device::{BlockDevice, DeviceUser};
pub use call::{
    CallStart, CallerDirectory, MeantMount, MountSyscall, PathOrigin, PathUncertainty, SecondPath, TableMark,
    UmountAttempt,
};
use kevtmon_types::names::named;
pub use loop_device::{LoopDevice, MountedElsewhere};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BootNs, FileServer, NsInum};

mod block_device;
mod call;
mod loop_device;

/// Who comes first where places are few.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// Volumes of pods, which only root of the node unmounts.
    Volume,
    /// Other mounts of the node itself, unmounted by its root.
    Host,
    /// All else: containers, and users with mount namespaces of their own.
    Other,
}

/// On whose behalf something is looked up, so that nobody uses up what is there for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    pub rank: Rank,
    /// What the caller's control group belongs to: a container, a user, a unit.
    pub account: String,
}

/// A mount as /proc/PID/mountinfo shows it (proc_pid_mountinfo(5)).
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountFacts {
    /// Mount id; reused as soon as the mount is gone.
    pub id: u64,
    /// Mount id of the mount that it sits on; absent where a recording does not tell it.
    pub parent: Option<u64>,
    /// The id that is never reused (`STATMOUNT_MNT_BASIC`, since 6.8), where it could be read.
    pub unique: Option<u64>,
    /// Mount point in the namespace's own view.
    pub mountpoint: String,
    /// Path within the file system that is mounted there.
    pub root: String,
    pub fstype: String,
    pub source: String,
    /// `major:minor` of the file system.
    pub device: String,
    pub mntns: NsInum,
}

impl MountFacts {
    /// What tells this mount from all others of its namespace; `None` where a recording does not say it.
    pub fn identity(&self) -> Option<MountIdentity> {
        Some(MountIdentity {
            unique: self.unique,
            mount_id: u32::try_from(self.id).ok()?,
            parent_id: u32::try_from(self.parent?).ok()?,
            device: self.device.clone(),
            root: self.root.clone(),
            mount_point: self.mountpoint.clone(),
        })
    }
}

/// What tells a mount from all others of its mount namespace: the unique id where the kernel has one, else all the rest
/// together, since plain ids are reused at once.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MountIdentity {
    /// The id that is never reused, since 6.8.
    pub unique: Option<u64>,
    /// Mount id.
    pub mount_id: u32,
    /// Mount id of the mount that it sits on.
    pub parent_id: u32,
    /// `major:minor` of the file system.
    pub device: String,
    /// Path within the file system that is mounted there.
    pub root: String,
    /// Mount point in the namespace's own view.
    pub mount_point: String,
}

impl MountIdentity {
    /// Whether both are one mount, as far as both tell. A mount that was moved stays the same only by its unique id.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self.unique, other.unique) {
            (Some(one), Some(other)) => one == other,
            _ => Self { unique: None, ..self.clone() } == Self { unique: None, ..other.clone() },
        }
    }
}

/// Reply to a request whether a mount is still there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountPresence {
    pub id: u64,
    /// Whether the mount is in its namespace; `None` where that cannot be determined.
    pub present: Option<bool>,
    /// Whether that is only likely: the mounts may have changed between the call and the look. Of [`Request::MountAt`] only.
    ///
    /// [`Request::MountAt`]: super::Request::MountAt
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_likely: bool,
    /// Why it cannot be determined, or is only likely.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl MountPresence {
    /// The reply where it is certain.
    pub fn known(id: u64, present: bool) -> Self {
        Self { id, present: Some(present), is_likely: false, reason: None }
    }

    /// The reply where nothing can be said.
    pub fn unknown(id: u64, reason: impl Into<String>) -> Self {
        Self { id, present: None, is_likely: false, reason: Some(reason.into()) }
    }
}

named! {
    /// How a process pins a mount.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
    Access {
        /// An open file descriptor.
        Fd = "fd",
        /// The current directory.
        Cwd = "cwd",
        /// The root directory.
        Root = "root",
        /// The executable.
        Exe = "exe",
        /// A mapped file.
        Mmap = "mmap",
        /// A unix socket that is bound to a file; of a network namespace that is kept, any socket that was made in it.
        Socket = "socket",
        /// A copy of the mount in another mount namespace: keeps the file system, but refuses no unmount by itself.
        Mount = "mount",
        /// A mount below it.
        ChildMount = "child-mount",
        /// A process that is in the network namespace, of one that is kept.
        Netns = "netns",
        /// A loop device whose backing file is on it.
        Loop = "loop",
        /// A swap file on it.
        Swap = "swap",
        /// A path for which the kernel's NFS server has an entry: it is exported, was until it expired, or is denied to a client.
        Export = "export",
        /// A socket in which files wait that others have sent (`SCM_RIGHTS`): never known is on which mount these are.
        InFlight = "in-flight",
        /// Files that are registered with an io_uring(7), of which only the names are known.
        IoUring = "io-uring",
        /// A system call in which a thread waits, for the server of a file system or for the other end of a named pipe: never known is
        /// on which mount that is.
        Call = "call",
        /// A perf event, or a link of BPF by one, which may be a probe in a file (uprobe): never known is in which.
        PerfEvent = "perf-event",
        /// A probe in a file on it that was defined in tracefs (`uprobe_events`).
        Uprobe = "uprobe",
        /// A mount of NFS with a client that was made in the network namespace, of one that is kept.
        Nfs = "nfs",
    }
}

impl Access {
    /// Whether it is the kernel that holds on, for no process in particular.
    pub fn is_kernel(self) -> bool {
        matches!(self, Self::Loop | Self::Swap | Self::Export | Self::Uprobe)
    }
}

/// A process that pins a mount, or what the kernel pins it for.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Process id; 0 where the kernel holds on for no process.
    pub tgid: u32,
    /// Command name; empty where there is no process.
    pub comm: String,
    pub cmdline: Option<String>,
    pub exe: Option<String>,
    /// How; a process that holds in several ways is listed once for each.
    pub access: Access,
    /// What it holds, as the kernel names it.
    pub path: Option<String>,
    /// The descriptor, for [`Access::Fd`] and [`Access::Socket`].
    pub fd: Option<u32>,
    /// The thread in whose list of descriptors that is, where `/proc/PID/fd` does not show it, or, for [`Access::Call`], which
    /// waits.
    pub tid: Option<u32>,
    /// Start of the process on the boot clock, to tell it from a later one with its id; none where there is no process.
    pub start_ns: Option<BootNs>,
    /// Real user id, in the initial user namespace, where it could be read.
    pub uid: Option<u32>,
    /// Whether it is the first process of a pid namespace other than the node's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub init: bool,
    pub cgroup: Option<String>,
    /// Mount namespace of the holder.
    pub mntns: Option<NsInum>,
    /// Mount point of the FUSE file system that it serves, of root of the node only.
    pub serves: Option<String>,
    /// Whether the kernel shows that it serves that one, rather than only its arguments.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub serves_for_certain: bool,
    /// Whether it only may pin the mount: what it has may be on another one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub possible: bool,
    /// The mount that it is on, where it was found by that.
    pub mount: Option<MeantMount>,
    /// The device, for [`Access::Loop`].
    pub loop_device: Option<LoopDevice>,
    /// Server and export, for [`Access::Nfs`]; for [`Access::Export`] the network namespace, if it is another one than kevtmon's; of a user
    /// of a block device that one, a partition of it or its disk.
    pub source: Option<String>,
}

impl Holder {
    /// What the kernel holds for no process.
    pub fn of_kernel(access: Access, path: String) -> Self {
        Self {
            tgid: 0,
            comm: String::new(),
            cmdline: None,
            exe: None,
            access,
            path: Some(path),
            fd: None,
            tid: None,
            start_ns: None,
            uid: None,
            init: false,
            cgroup: None,
            mntns: None,
            serves: None,
            serves_for_certain: false,
            possible: false,
            mount: None,
            loop_device: None,
            source: None,
        }
    }

    /// Whether both are one process that holds the same by the same.
    pub fn is_same_hold(&self, other: &Self) -> bool {
        (self.tgid, self.access, &self.path) == (other.tgid, other.access, &other.path)
            && (self.fd, self.tid) == (other.fd, other.tid)
    }

    /// Whether it is a reason for which an unmount is refused.
    pub fn explains(&self) -> bool {
        !self.possible && self.access != Access::Mount
    }
}

/// What a holder scan concludes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Processes hold it.
    Processes,
    /// Only copies in other mount namespaces are left of what was detached.
    MountNamespace,
    /// Only mounts below it hold it; of a name that cannot be removed or renamed, the mount on it.
    ChildMount,
    /// The kernel holds it for no process: a loop device does, which is listed. Without such a holder: complete looks at once
    /// and after 0.1, 1 and 10 s found nothing that could hold it, so the kernel has a reference that it shows to nobody,
    /// or somebody holds it now and then.
    Kernel,
    /// Whoever held it has let go: a holder was seen and is gone, or another attempt succeeded and nobody had been found.
    Transient,
    /// Nothing was found to hold it. Of a refused unmount: it is looked again, and another event tells what that found.
    None,
    /// Nothing is mounted at the path.
    NotAMount,
    /// The scan was not made.
    #[default]
    Skipped,
    /// No holder was found for certain: the scan was incomplete, or there is something that only may hold it.
    Incomplete,
}

/// Reply to a request for holders.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HolderReport {
    pub id: u64,
    /// Absolute path that was meant.
    pub path: String,
    #[serialize_always]
    pub mount: Option<MountFacts>,
    /// Whether it is only likely the one that was meant: the mounts may have changed between the call and the look.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mount_is_likely: bool,
    /// When the path had been looked up, where it was.
    pub resolved: Option<BootNs>,
    pub holders: Vec<Holder>,
    /// Holders that were found and not listed, because the list is bounded.
    pub holders_omitted: u32,
    /// Mount points of mounts that sit on it, at most as many as listed holders.
    pub child_mounts: Vec<String>,
    /// Processes that could not be read, whether or not they could pin it.
    pub unreadable: u32,
    /// Why the report may miss a holder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blind_spots: Vec<BlindSpot>,
    /// Whether no process was found that serves it, a FUSE file system; false also where that is not known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unserved: bool,
    /// Processes that serve it, a FUSE file system; none where none was found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<FileServer>,
    /// What its kubelet has written beside it, where it is staged for a CSI driver.
    pub volume_data: Option<Box<VolumeData>>,
    /// The block device whose node is at the path, of a report on demand.
    pub device: Option<Box<BlockDevice>>,
    /// Whether every process that could pin it was read within the time budget.
    pub complete: bool,
    pub verdict: Verdict,
    /// Type of the file system that the path is in, where nothing is mounted there and only tasks keep it busy.
    pub inside: Option<String>,
    /// How long the scan took.
    pub elapsed_ns: u64,
    /// Whether the scan goes on, because its time ran out: another report with the same id follows, which has all that
    /// this one has.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub goes_on: bool,
    /// Whether the time for a look at the users of detached mounts ran out before it had been at all processes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

/// What a kubelet has written in the `vol_data.json` beside the mount of a volume that it has staged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeData {
    /// The CSI driver.
    #[serde(rename = "driverName")]
    pub driver: String,
    /// By what that knows the volume.
    #[serde(rename = "volumeHandle")]
    pub handle: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetachedMount {
    /// Which one, as the call found it.
    pub meant: MeantMount,
    /// Where it was mounted.
    pub path: String,
}

/// Something that a scan could not look into.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlindSpot {
    /// Process id, where it is one process.
    pub tgid: Option<u32>,
    pub comm: Option<String>,
    pub reason: String,
}

impl HolderReport {
    /// Blind spots that one report lists.
    pub const BLIND_SPOTS: usize = 16;

    /// Notes that the time ran out for some of the processes.
    pub fn cut(&mut self) {
        self.cut = true;
        self.blind_spot(None, "time ran out before all processes were read");
    }

    /// Notes that something could not be looked into.
    pub fn blind_spot(&mut self, process: Option<(u32, Option<String>)>, reason: &str) {
        self.complete = false;
        let (tgid, comm) = process.map_or((None, None), |(tgid, comm)| (Some(tgid), comm));
        let spot = BlindSpot { tgid, comm, reason: reason.to_owned() };
        if self.blind_spots.contains(&spot) {
            return;
        }
        if self.blind_spots.len() >= Self::BLIND_SPOTS {
            // What is not about one process alone is never left out for those that are.
            let of_one = self.blind_spots.iter().rposition(|known| known.tgid.is_some());
            let Some(of_one) = of_one.filter(|_| spot.tgid.is_none()) else { return };
            self.blind_spots.remove(of_one);
        }
        self.blind_spots.push(spot);
    }

    /// Whether something is known that refuses an unmount.
    pub fn is_explained(&self) -> bool {
        self.holders.iter().any(Holder::explains)
    }

    /// Whether a look at everything found nothing that holds it, neither process nor mount nor what the kernel shows.
    pub fn has_found_nobody(&self) -> bool {
        let is_conclusive = matches!(self.verdict, Verdict::Kernel | Verdict::Transient | Verdict::None);
        is_conclusive && self.complete && !self.is_explained() && self.child_mounts.is_empty()
    }

    /// Lists processes that were started after a call behind those that can have refused it. Returns whether no other is left:
    /// whoever that was has gone.
    pub fn put_younger_last(&mut self, call: BootNs) -> bool {
        let is_younger = |holder: &Holder| holder.start_ns.is_some_and(|start| start > call);
        self.holders.sort_by_key(is_younger);
        let mut users = self.holders.iter().filter(|holder| holder.explains());
        let is_gone = users.next().is_some_and(is_younger);
        if is_gone {
            self.blind_spot(None, "its present holders started after the call");
        }
        is_gone
    }

    /// Makes it one about a name that could not be removed or renamed: what is mounted there is the reason, whoever uses it.
    pub fn explain_removal(&mut self) {
        let Some(mount) = &self.mount else { return };
        self.verdict = Verdict::ChildMount;
        if !self.child_mounts.contains(&mount.mountpoint) {
            self.child_mounts.insert(0, mount.mountpoint.clone());
        }
    }

    /// The reply to a request for which no scan is made.
    pub fn skipped(id: u64, path: impl Into<String>) -> Self {
        Self { id, path: path.into(), ..Self::default() }
    }
}

#[cfg(test)]
mod tests;
