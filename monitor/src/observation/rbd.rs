//! Ceph RBD images that the kernel has mapped.

use serde::{Deserialize, Serialize};

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
