//! Mounts, and the processes that hold them.

use kevtmon_observation::{Access, BlockDevice, LoopDevice, MountIdentity, MountSyscall, VolumeData};
use kevtmon_types::escape::name;
use kevtmon_types::is_zero::is_zero;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::file_server;
use super::{Confidence, Container, Details, MountServer, Object, Pod, Role, Visitor, servers_phrase};

/// A mount and the call that was made on it, for `mount.*`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Mount {
    /// `umount2`; of what something is mounted on: `rmdir`, `unlink`, `unlinkat`, `rename`, `renameat`, `renameat2`; of what was to
    /// be mounted: `mount`, `fsconfig`.
    /// Absent where no call was seen: a volume that is mounted though no container of its pod runs.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub syscall: String,
    /// Absolute path. Absent for `fsconfig`, after which a caller says where to mount.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub path: String,
    /// `EBUSY`, …; absent on success.
    pub errno: Option<String>,
    /// Flags of the call, by name.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub flags: Vec<String>,
    /// File system type.
    pub fstype: Option<String>,
    /// Mount source; for `mount.refused` of an overlay its upper directory.
    pub source: Option<String>,
    /// `major:minor`.
    pub device: Option<String>,
    /// The block device that was to be mounted, for `mount.refused`, with what the kernel uses it for.
    pub block_device: Option<Box<BlockDevice>>,
    /// Mount namespace of the caller, inode number; absent where it is not known.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub mntns: u32,
    /// Which mount it is, once a scan has found it: what is mounted at the same path later is another one.
    pub identity: Option<MountIdentity>,
    /// `likely` where another mount could have been meant: those of the namespace changed before it was looked up. Absent where
    /// that is certain, and where none was found.
    pub confidence: Option<Confidence>,
    /// How often this caller was refused on this mount, by this system call, that is, the nearest process above the program that does it; once
    /// it is released or detached, how often all callers were.
    pub attempts: Option<u64>,
    /// How often each system call was refused on this mount, by all callers, where that was not `syscall` alone.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub refused: Vec<RefusedCall>,
    /// The pod volume that is mounted there.
    pub volume: Option<Volume>,
    /// The volume that is staged there, for all pods of the node that use it.
    pub staged: Option<StagedVolume>,
    /// The container for which its runtime mounts it, or which has it in its directory, as the runtime tells.
    pub container_id: Option<String>,
    /// Mount points of file systems mounted below it; first its own, where that is why a name cannot be removed or renamed.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub child_mounts: Vec<String>,
    /// No process was found that serves this FUSE file system: whoever uses it gets `ENOTCONN`. Absent where one was found, and where
    /// that is not known.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub unserved: bool,
    /// Processes that serve this FUSE file system, eight at most. Absent where none was found or not all could be looked at in time.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub servers: Vec<MountServer>,
}

impl Mount {
    /// What a list calls it: its path, or what was to be mounted where no path is known.
    pub fn label(&self) -> &str {
        if self.path.is_empty() { self.source.as_deref().unwrap_or_default() } else { &self.path }
    }

    /// Whether the call was about the mount, rather than about the name that it is on.
    pub fn is_umount(&self) -> bool {
        self.syscall == MountSyscall::Umount2.name()
    }

    /// Where the mount is that a name cannot be removed or renamed for, if it is at another path to the same directory.
    pub fn elsewhere(&self) -> Option<&str> {
        let point = self.identity.as_ref().map(|identity| identity.mount_point.as_str())?;
        (!self.is_umount() && point != self.path).then_some(point)
    }

    /// What else a sentence about its holders says: that its server is gone, or does not run.
    pub fn server_phrase(&self) -> String {
        if self.unserved {
            return "; no process found that serves it; its file server is likely gone (ENOTCONN)".to_owned();
        }
        servers_phrase(&self.servers).map_or_else(String::new, |phrase| format!("; {phrase}"))
    }
}

/// How often a system call was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RefusedCall {
    /// `umount2`, `rmdir`, …
    pub syscall: String,
    /// Number of calls.
    pub attempts: u64,
}

/// `3 refused unmounts, 1 refused removal`; what is asked for by one system call or another is counted as one.
pub fn refused_phrase(calls: &[RefusedCall]) -> String {
    let of = |what: &str| {
        let alike = calls.iter().filter(|call| call_noun(&call.syscall) == what);
        match alike.map(|call| call.attempts).sum() {
            0_u64 => None,
            1 => Some(format!("1 refused {what}")),
            many => Some(format!("{many} refused {what}s")),
        }
    };
    ["unmount", "removal", "rename"].into_iter().filter_map(of).collect::<Vec<_>>().join(", ")
}

/// What a call asks for.
pub fn call_noun(syscall: &str) -> &'static str {
    match syscall {
        "umount2" => "unmount",
        "rename" | "renameat" | "renameat2" => "rename",
        _ => "removal",
    }
}

/// A kubelet pod volume, read from its path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Volume {
    /// Uid of the pod.
    pub pod_uid: String,
    /// `kubernetes.io/glusterfs`, …
    pub plugin: String,
    /// Name of the volume.
    pub name: String,
}

/// A volume that a kubelet has mounted for all pods of the node that use it, read from the path and from what the kubelet has
/// written beside it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StagedVolume {
    /// `kubernetes.io/rbd`, …, or the CSI driver.
    pub plugin: String,
    /// The last name of its directory: of the PersistentVolume, or of what the plugin has attached; absent where that is a
    /// hash.
    pub name: Option<String>,
    /// By what its CSI driver knows it (`volumeHandle`), where the kubelet's `vol_data.json` could be read.
    pub handle: Option<String>,
}

impl StagedVolume {
    /// With what its kubelet has written beside it, if that is of this volume.
    pub fn with(mut self, data: Option<&VolumeData>) -> Self {
        // Where the path does not tell the name, it tells the driver.
        let data = data.filter(|data| self.name.is_some() || data.driver == self.plugin);
        self.handle = data.map(|data| data.handle.clone());
        self
    }

    /// As sentences say it.
    pub fn phrase(&self) -> String {
        let plugin = name(&self.plugin);
        match self.name.as_ref().or(self.handle.as_ref()) {
            Some(known) => format!("staged volume {} ({plugin})", name(known)),
            None => format!("a staged volume of {plugin}"),
        }
    }
}

/// Something that the holder scan could not read.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Unreadable {
    /// Process id, where it is one process.
    pub pid: Option<u32>,
    /// Its command name.
    pub comm: Option<String>,
    /// Why.
    pub reason: String,
}

/// A process that pins a mount, or what the kernel pins it for.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MountHolder {
    /// Process id; absent where there is no process: of a loop device, a swap file, an export, and of a copy in a mount
    /// namespace that nobody was found to keep.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub pid: u32,
    /// Real user id, in the initial user namespace.
    pub uid: Option<u32>,
    /// Whether it is the first process of a pid namespace other than the node's: it ignores every signal that it does not handle,
    /// but for SIGKILL.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub init: bool,
    /// Command name; absent where there is no process.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub comm: String,
    /// Masked command line, for host processes.
    pub cmdline: Option<String>,
    /// Executable.
    pub exe: Option<String>,
    /// How it pins the mount.
    pub access: Access,
    /// What it holds.
    pub path: Option<String>,
    /// Descriptor number.
    pub fd: Option<u32>,
    /// The thread in whose list of descriptors that is, where `/proc/PID/fd` does not show it.
    pub tid: Option<u32>,
    /// systemd unit.
    pub unit: Option<String>,
    /// Mount namespace of the process, inode number; of a copy, that in which it is.
    pub mntns: Option<u32>,
    /// Its container.
    pub container: Option<Container>,
    /// Its pod.
    pub pod: Option<Pod>,
    /// The pod volume that it is the file server of: root of the node serves the FUSE mount that its arguments name.
    pub serves: Option<Serves>,
    /// It only may pin the mount: what it has may be on another one, as nothing shows on which it is.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub possible: bool,
    /// The loop device whose backing file is on the mount, and what uses that.
    pub loop_device: Option<LoopDevice>,
    /// Server and export of a mount of NFS; of an export the network namespace, if it is another one than kevtmon's; of a user of a block
    /// device that one, a partition of it or its disk.
    pub source: Option<String>,
}

/// A pod volume that a process on the host is the file server of.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Serves {
    /// Where the volume is mounted.
    pub mountpoint: String,
    /// The pod that it belongs to.
    pub pod: Pod,
    /// `certain` where the kernel shows of which file system it is the server, `likely` where only its arguments tell.
    pub confidence: Option<Confidence>,
}

impl Serves {
    /// How a sentence says it: that it serves the volume, or likely does.
    pub fn verb(&self) -> &'static str {
        if self.confidence == Some(Confidence::Certain) { "serves" } else { "likely serves" }
    }
}

impl Object for Mount {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.path(Role::Object, &self.path);
        if let Some(volume) = &self.volume {
            visitor.pod_uid(Role::Target, &volume.pod_uid);
            visitor.volume(Role::Object, &volume.name);
        }
        if let Some(name) = self.staged.as_ref().and_then(|staged| staged.name.as_ref()) {
            visitor.volume(Role::Object, name);
        }
        if let Some(device) = &self.device {
            visitor.device(Role::Object, device);
        }
        if let Some(device) = &self.block_device {
            visitor.path(Role::Object, &device.name);
            if let Some(source) = self.source.as_ref().filter(|source| **source != device.name) {
                visitor.path(Role::Object, source);
            }
        }
        for server in &self.servers {
            visitor.process(Role::Server, server.pid, &server.comm);
            visitor.owner(Role::Server, server.container.as_ref(), server.pod.as_ref());
        }
    }

    fn describe(&self, details: &mut dyn Details) {
        let mut words = Vec::new();
        match (&self.fstype, &self.source) {
            (Some(fstype), Some(source)) => words.push(format!("{fstype} {source}")),
            (fstype, source) => words.extend(fstype.as_ref().or(source.as_ref()).cloned()),
        }
        let flags = if self.flags.is_empty() { String::new() } else { format!("({})", self.flags.join("|")) };
        let errno = self.errno.as_ref().map_or_else(String::new, |errno| format!(": {errno}"));
        // What succeeded in the end was none of the attempts that were refused.
        let attempt = match (self.attempts, &self.errno) {
            (None, _) => String::new(),
            (Some(_), None) if !self.refused.is_empty() => {
                format!(", after {}", refused_phrase(&self.refused))
            }
            (Some(attempts), Some(_)) => format!(", attempt {attempts}"),
            (Some(1), None) => ", refused once before".to_owned(),
            (Some(attempts), None) => format!(", refused {attempts} times before"),
        };
        if !self.syscall.is_empty() {
            words.push(format!("{}{flags}{errno}{attempt}", self.syscall));
        }
        let words = words.join(" · ");
        // The path may be unknown.
        let lines = [self.path.as_str(), words.as_str()].into_iter().filter(|line| !line.is_empty());
        for (label, line) in ["mount", ""].into_iter().zip(lines) {
            details.line(label, line);
        }
        file_server::describe(&self.servers, details);
    }
}

impl Object for Vec<MountHolder> {
    fn visit(&self, visitor: &mut dyn Visitor) {
        for holder in self {
            if holder.pid != 0 {
                visitor.process(Role::Holder, holder.pid, &holder.comm);
            }
            visitor.owner(Role::Holder, holder.container.as_ref(), holder.pod.as_ref());
        }
    }
}
