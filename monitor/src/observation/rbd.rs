//! Ceph RBD images that the kernel has mapped.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{Holder, NsInum, TaskRef};
use crate::names::names;

/// What a look at the mapped images found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RbdImages {
    /// All of them that could be read, by number.
    pub images: Vec<RbdImage>,
    /// Numbers of those that are there and could not be read: what was known of them may still hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<u32>,
    /// Images for which there was no room.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// An image, or a snapshot of one, that the kernel has mapped as a block device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RbdImage {
    /// Its number: that of its device.
    pub number: u32,
    /// `major:minor` of its device.
    pub device: String,
    /// Pool.
    pub pool: String,
    /// Namespace in the pool; absent for the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name of the image.
    pub image: String,
    /// Id of the image in its pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_id: Option<String>,
    /// The snapshot that is mapped; absent where it is the image itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// `client4125`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// `IP:PORT/NONCE` (since Linux 4.9).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_addr: Option<String>,
    /// The cluster (since Linux 4.9).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_fsid: Option<String>,
}

impl RbdImage {
    /// The node of its device.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/dev/rbd{}", self.number)
    }

    /// Whether it is the same mapping, as far as that can be told. The address of the client changes with a mapping that
    /// recovers, and what is only read on new kernels may be missing.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let named = |image: &Self| {
            (image.pool.clone(), image.namespace.clone(), image.image.clone(), image.snapshot.clone())
        };
        let same_id = self.image_id.is_none() || other.image_id.is_none() || self.image_id == other.image_id;
        self.number == other.number && self.device == other.device && named(self) == named(other) && same_id
    }
}

/// Who uses the mapped images.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RbdUses {
    /// Of each image that was looked for.
    pub uses: Vec<RbdUse>,
    /// The mount namespace of the host, if its mounts were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<NsInum>,
    /// Mount namespaces whose mounts could not be read.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unread: BTreeSet<NsInum>,
    /// Whether every process and every mount namespace could be read.
    pub complete: bool,
}

/// Who uses one of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RbdUse {
    /// Its number.
    pub number: u32,
    /// Mounts of the device or a partition, of which each mount namespace has one holder ([`Access::Mount`]), and, where no pod's
    /// directory has one, processes that have the device open ([`Access::Fd`]).
    ///
    /// [`Access::Mount`]: super::Access::Mount
    /// [`Access::Fd`]: super::Access::Fd
    pub holders: Vec<Holder>,
    /// Those for which there was no room.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted: u32,
    /// Block devices that are made of it: `dm-0`, `loop3`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// Whether the kernel swaps to it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub swap: bool,
}

names! {
    /// What `rbd` was called for, as far as that is observed.
    RbdCommand {
        /// Map an image: `rbd map`, `rbd device map`.
        Map = "map",
        /// Take a lock on it: `rbd lock add`.
        LockAdd = "lock-add",
        /// Take one away: `rbd lock remove`, `rbd lock rm`.
        LockRemove = "lock-remove",
    }
}

/// A program called `rbd` that root of the node executed with the right to administer it. What it is given is what somebody
/// wants; whether he gets it is another matter. Of its arguments nothing else is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RbdExec {
    /// The process, as that program.
    pub actor: TaskRef,
    /// What it was called for.
    pub command: RbdCommand,
    /// Pool; `rbd`, the default of that program, where none is named.
    pub pool: String,
    /// Namespace in the pool; absent for the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name of the image.
    pub image: String,
    /// A snapshot of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Id of the lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<String>,
    /// Whether others may have the lock, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
}

impl RbdExec {
    /// Whether it shows that the image is wanted on this node; a snapshot can be mapped everywhere at once.
    #[must_use]
    pub fn wants(&self) -> bool {
        self.command != RbdCommand::LockRemove && self.snapshot.is_none()
    }
}
