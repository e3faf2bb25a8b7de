//! A block device whose users are asked for.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A block device, and what the kernel uses it for.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BlockDevice {
    /// As the kernel calls it: `/dev/loop3`.
    pub name: String,
    /// `major:minor`.
    pub number: String,
    /// What a loop device is made of.
    pub backing_file: Option<String>,
    /// Block devices that are made of it, of a partition of it, or of the disk that it is a partition of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceUser>,
    /// Whether the kernel swaps to it, to a partition of it or, where a mount of it was refused, to its disk.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub swap: bool,
    /// The device that it swaps to, if that is a partition or the disk: `/dev/loop3p1`.
    pub swap_device: Option<String>,
    /// Whether device mapper has suspended it: what is read and written waits until it is resumed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspended: bool,
    /// Whether it, a partition of it or, where a mount of it was refused, its disk is a device of a file system in use that may be on
    /// several (Btrfs, bcachefs), and no mount of that was found.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unlocated: bool,
    /// Backstores of the kernel's SCSI target (LIO) that have claimed it, a partition of it or, where a mount of it was refused, its
    /// disk: `iblock_0/disk`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<String>,
}

/// A block device that is made of another one.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceUser {
    /// `dm-0`, `md1`, `loop3`.
    pub name: String,
    /// The name that it has by device mapper: `vg-data`.
    pub mapping: Option<String>,
    /// What it is for device mapper, as its UUID begins: `multipath`, `LVM`, `CRYPT`.
    pub kind: Option<String>,
}

impl BlockDevice {
    /// Whether the kernel uses it, but for a mount that was found.
    pub fn is_used(&self) -> bool {
        self.swap || self.unlocated || !self.devices.is_empty() || !self.targets.is_empty()
    }
}
