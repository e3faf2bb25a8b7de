//! Ceph RBD images that are mapped as block devices.

use std::collections::BTreeSet;
use std::fmt;

use kevtmon_types::is_zero::is_zero;
use kevtmon_types::names::names;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Holder, NsInum, TaskRef};

/// The number of a device, by the driver that it is of. As text it is the name of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RbdNumber {
    /// The kernel's client: `rbd0`.
    Kernel(u32),
    /// The program `rbd-nbd`, behind the kernel's network block devices: `nbd0`.
    Nbd(u32),
}

impl RbdNumber {
    /// The prefix of the names of network block devices.
    pub const NBD: &str = "nbd";

    /// Whether it is of `rbd-nbd`.
    pub fn is_nbd(self) -> bool {
        matches!(self, Self::Nbd(_))
    }
}

impl Default for RbdNumber {
    fn default() -> Self {
        Self::Kernel(0)
    }
}

impl From<u32> for RbdNumber {
    fn from(number: u32) -> Self {
        Self::Kernel(number)
    }
}

impl fmt::Display for RbdNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel(number) => write!(f, "rbd{number}"),
            Self::Nbd(number) => write!(f, "{}{number}", Self::NBD),
        }
    }
}

/// That of the kernel's client is a number.
impl Serialize for RbdNumber {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Kernel(number) => to.serialize_u32(*number),
            Self::Nbd(_) => to.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for RbdNumber {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = RbdNumber;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the number of a device, or nbd and a number")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<RbdNumber, E> {
                number.try_into().map(RbdNumber::Kernel).map_err(E::custom)
            }

            // As the key of a map, a number is text.
            fn visit_str<E: Error>(self, text: &str) -> Result<RbdNumber, E> {
                let (of, number): (fn(u32) -> RbdNumber, _) = match text.strip_prefix(RbdNumber::NBD) {
                    Some(number) => (RbdNumber::Nbd, number),
                    None => (RbdNumber::Kernel, text),
                };
                number.parse().map(of).map_err(E::custom)
            }
        }
        from.deserialize_any(Number)
    }
}

/// What a look at the mapped images found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RbdImages {
    /// All of them that could be read, by number.
    pub images: Vec<RbdImage>,
    /// Numbers of those that are there and could not be read: what was known of them may still hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<RbdNumber>,
    /// Images for which there was no room.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted: u32,
}

/// An image, or a snapshot of one, that is mapped as a block device: by the kernel's client, or by `rbd-nbd`, of whose client nothing
/// is known.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RbdImage {
    /// Its number: that of its device.
    pub number: RbdNumber,
    /// `major:minor` of its device.
    pub device: String,
    pub pool: String,
    /// Namespace in the pool; absent for the default one.
    pub namespace: Option<String>,
    /// Name of the image.
    pub image: String,
    pub image_id: Option<String>,
    /// The snapshot that is mapped; absent where it is the image itself.
    pub snapshot: Option<String>,
    /// `client4125`.
    pub client_id: Option<String>,
    /// `IP:PORT/NONCE` (since Linux 4.9).
    pub client_addr: Option<String>,
    /// The cluster (since Linux 4.9).
    pub cluster_fsid: Option<String>,
}

impl RbdImage {
    /// The node of its device.
    pub fn path(&self) -> String {
        format!("/dev/{}", self.number)
    }

    /// Whether it is the same mapping, as far as that can be told. The address of the client changes with a mapping that
    /// recovers, and what is only read on new kernels may be missing.
    pub fn is_same(&self, other: &Self) -> bool {
        let named = |image: &Self| {
            (image.pool.clone(), image.namespace.clone(), image.image.clone(), image.snapshot.clone())
        };
        let same_id = self.image_id.is_none() || other.image_id.is_none() || self.image_id == other.image_id;
        self.number == other.number && self.device == other.device && named(self) == named(other) && same_id
    }
}

/// Who uses the mapped images.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RbdUses {
    /// Of each image that was looked for.
    pub uses: Vec<RbdUse>,
    /// The mount namespace of the host, if its mounts were read.
    pub host: Option<NsInum>,
    /// Mount namespaces whose mounts could not be read.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unread: BTreeSet<NsInum>,
    /// Whether every process and every mount namespace could be read.
    pub complete: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RbdUse {
    pub number: RbdNumber,
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
    /// Whether the kernel has a file system on it that has no device number, and no mount of that was found.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unlocated: bool,
}

/// An image, by what it is called.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageName {
    pub pool: String,
    /// Namespace in the pool; absent for the default one.
    pub namespace: Option<String>,
    /// Name of the image.
    pub image: String,
}

names! {
    /// What `rbd` was called for, as far as that is observed.
    RbdCommand {
        /// Map an image: `rbd map`, `rbd device map`.
        Map = "map",
        /// Unmap one: `rbd unmap`, `rbd device unmap`.
        Unmap = "unmap",
        /// Take a lock on it: `rbd lock add`.
        LockAdd = "lock-add",
        /// Take one away: `rbd lock remove`, `rbd lock rm`.
        LockRemove = "lock-remove",
        /// Show who has it open: `rbd status`, which kubelets since 1.8 call before they map an image.
        Status = "status",
    }
}

/// A program called `rbd` that root of the node executed with the right to administer it. What it is given is what somebody
/// wants; whether he gets it is another matter. Of its arguments nothing else is kept.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RbdExec {
    /// The process, as that program.
    pub actor: TaskRef,
    /// What it was called for.
    pub command: RbdCommand,
    /// Pool; `rbd`, the default of that program, where none is named.
    pub pool: String,
    /// Namespace in the pool; absent for the default one.
    pub namespace: Option<String>,
    /// Name of the image.
    pub image: String,
    pub snapshot: Option<String>,
    /// Number of the device, of a call that names that instead: then there is no pool and no image.
    pub device: Option<RbdNumber>,
    /// Whether it is to be mapped, or is mapped, by `rbd-nbd`; where the device is named, that tells.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub nbd: bool,
    /// Id of the lock.
    pub lock: Option<String>,
    /// Whether others may have the lock, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
}

impl RbdExec {
    pub fn name(&self) -> ImageName {
        ImageName { pool: self.pool.clone(), namespace: self.namespace.clone(), image: self.image.clone() }
    }

    /// Whether another call is for the same, whoever makes it.
    pub fn is_for_same_as(&self, other: &Self) -> bool {
        *self == Self { actor: self.actor.clone(), ..other.clone() }
    }

    /// Whether it shows that the image is wanted on this node; a snapshot can be mapped everywhere at once.
    pub fn wants(&self) -> bool {
        matches!(self.command, RbdCommand::Map | RbdCommand::LockAdd) && self.snapshot.is_none()
    }

    /// Whether somebody may wait for the image on this node: it is wanted, or was looked at before it is mapped.
    pub fn asks(&self) -> bool {
        self.wants() || self.command == RbdCommand::Status && self.snapshot.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_number_of_a_device_is_saved_with_its_driver_where_that_is_not_the_kernels() {
        let map = BTreeMap::from([(RbdNumber::Kernel(3), 1), (RbdNumber::Nbd(3), 2)]);
        let text = serde_json::to_string(&map).unwrap();
        assert_eq!(text, "{\"3\":1,\"nbd3\":2}");
        assert_eq!(serde_json::from_str::<BTreeMap<RbdNumber, i32>>(&text).unwrap(), map);
        let value = serde_json::to_value(&map).unwrap();
        assert_eq!(serde_json::from_value::<BTreeMap<RbdNumber, i32>>(value).unwrap(), map);
        let all = vec![RbdNumber::Kernel(0), RbdNumber::Nbd(12)];
        assert_eq!(serde_json::to_string(&all).unwrap(), "[0,\"nbd12\"]");
        assert_eq!(serde_json::from_str::<Vec<RbdNumber>>("[0,\"nbd12\"]").unwrap(), all);
        for bad in ["-1", "4294967296", "\"nbd\"", "\"rbd0\"", "\"nbd-1\"", "null"] {
            assert!(serde_json::from_str::<RbdNumber>(bad).is_err(), "{bad}");
        }
    }
}
