//! Mounts that other mount namespaces have, and the host no longer.

use kevtmon_types::is_zero::is_zero;
use kevtmon_types::kernel_release::KernelRelease;
use kevtmon_types::names::named;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cgroup::container_id;
use super::{BootNs, MountFacts, NsInum, VolumeData};

/// What a look at the mounts of all namespaces found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountCopies {
    /// All of them that may have been mounted on the host: they were seen there, or a container has them by a mount of a
    /// directory of the host.
    pub copies: Vec<MountCopy>,
    /// Copies for which there was no room.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted: u32,
    /// Whether what an earlier run of the daemon had found may be there though it is not among them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_partial: bool,
    pub kernel: KernelMounts,
}

/// What a copy in another mount namespace refuses depends on the kernel.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelMounts {
    /// Its release: `6.18.5`.
    pub release: String,
    /// `fs.may_detach_mounts`, which kernels of Red Hat before 3.18 have.
    pub may_detach: Option<bool>,
}

impl KernelMounts {
    /// Whether a directory can be removed though another namespace has a mount on it: since 3.18, and before where the
    /// setting permits it. `None` where the release is not understood.
    pub fn removes_despite_copies(&self) -> Option<bool> {
        let release = KernelRelease::parse(&self.release)?;
        Some(release >= KernelRelease(3, 18) || self.may_detach == Some(true))
    }
}

/// A mount in another namespace than the host's whose file system is mounted nowhere on the host.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountCopy {
    /// The mount, as its own namespace shows it.
    pub mount: MountFacts,
    /// Which mounts and unmounts elsewhere reach it.
    pub propagation: Propagation,
    /// A process in that namespace.
    pub holder: CopyHolder,
    /// Where the host had its file system mounted.
    pub original: Option<OriginalMount>,
    /// The mount of a directory of the host by which a container has it.
    pub bind: Option<BindMount>,
    /// No process is in that namespace any more, also not the holder; an open file or a mount keeps it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_process: bool,
}

impl MountCopy {
    /// Whether its path is that which it had on the host, as far as is known of who has it: a process of the node, in no
    /// container and the first of no pid namespace, which got all mounts when it was set apart (unshare(2)).
    pub fn is_where_the_host_had_it(&self) -> bool {
        let CopyHolder { in_userns, init, cgroup, .. } = &self.holder;
        let is_in_container = cgroup.as_deref().is_some_and(|path| container_id(path).is_some());
        !in_userns && !init && !is_in_container && self.bind.is_none()
    }
}

named! {
    /// Which mounts and unmounts elsewhere reach a mount (mount_namespaces(7)).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    Propagation {
        /// None.
        Private = "private",
        /// Those of its master.
        Slave = "slave",
        /// Those of its peers, which it reaches as well.
        Shared = "shared",
    }
}

/// A process in whose mount namespace a copy is.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyHolder {
    pub tgid: u32,
    /// Start of the process on the boot clock, to 10 ms.
    pub start_ns: BootNs,
    pub comm: String,
    pub exe: Option<String>,
    /// Real user id, in the initial user namespace.
    pub uid: Option<u32>,
    pub cgroup: Option<String>,
    /// Whether it is in another user namespace than the initial one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_userns: bool,
    /// Whether it is the first process of a pid namespace other than the node's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub init: bool,
}

/// Where the host had a file system mounted, as it was seen last.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginalMount {
    pub path: String,
    pub mntns: NsInum,
    pub seen: BootNs,
    /// Whether the copy was there at that time, so that both were of one file system: devices have the same number only one
    /// after the other.
    pub is_certain: bool,
    /// Control group of the container that had it as its root directory.
    pub root_of: Option<String>,
    /// What its kubelet had written beside it, where it was staged for a CSI driver.
    pub volume_data: Option<VolumeData>,
    /// Other places where the host had the same directory of that file system: the copy may be of any of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<HostPath>,
}

/// A path in a mount namespace of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPath {
    pub path: String,
    pub mntns: NsInum,
}

/// A mount of a directory of the host in a container, by what its runtime was told.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BindMount {
    /// The directory of the host.
    pub source: String,
    /// Where the container has it.
    pub destination: String,
    /// `rprivate`, `rslave`, …; absent where the runtime was told none.
    pub propagation: Option<String>,
}

impl BindMount {
    /// What a path in the container was on the host when the directory was mounted; `None` where it is not below.
    pub fn on_host(&self, mountpoint: &str) -> Option<String> {
        let below = mountpoint.strip_prefix(self.destination.trim_end_matches('/'))?;
        let is_below = below.is_empty() || below.starts_with('/');
        is_below.then(|| format!("{}{}", self.source.trim_end_matches('/'), below.trim_end_matches('/')))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_a_container_is_one_of_the_host_below_a_mount_of_it() {
        let on_host = |destination: &str, mountpoint: &str| {
            let (source, destination) = ("/var/lib/docker".into(), destination.into());
            BindMount { source, destination, propagation: None }.on_host(mountpoint)
        };
        assert_eq!(on_host("/mem", "/mem").as_deref(), Some("/var/lib/docker"));
        assert_eq!(on_host("/host/", "/host/overlay2/x").as_deref(), Some("/var/lib/docker/overlay2/x"));
        assert_eq!(on_host("/host", "/hosts"), None);
        assert_eq!(on_host("/", "/x").as_deref(), Some("/var/lib/docker/x"));
    }

    #[test]
    fn a_copy_refuses_the_removal_of_its_directory_on_old_kernels_only() {
        let removes = |release: &str, may_detach| {
            KernelMounts { release: release.into(), may_detach }.removes_despite_copies()
        };
        assert_eq!(removes("6.18.5", None), Some(true));
        assert_eq!(removes("3.18.0-rc1", None), Some(true));
        assert_eq!(removes("3.10.0-957.el7.x86_64", Some(false)), Some(false));
        assert_eq!(removes("3.10.0-957.el7.x86_64", Some(true)), Some(true));
        assert_eq!(removes("3.10.0", None), Some(false));
        assert_eq!(removes("", None), None);
    }
}
