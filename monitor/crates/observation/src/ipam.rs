//! What host-local has written down of the addresses that it manages.

use std::net::IpAddr;

use kevtmon_types::is_zero::is_default;
use serde::{Deserialize, Serialize};

use super::BootNs;

/// How what is written down differs from the look before.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpamFiles {
    /// Since when all that differs has changed; absent where no look was made before, or its result counts no more: `added` is
    /// all there is then.
    pub since: Option<BootNs>,
    /// What was not there before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub added: Vec<IpamRecord>,
    /// What is there no more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<IpamRecord>,
    /// Whether all was read: what is not written down in any of it is not written down.
    pub complete: bool,
    /// Devices that were not written down before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices_added: Vec<CniDevice>,
    /// Devices that are written down no more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices_removed: Vec<CniDevice>,
}

/// A device of the host that a CNI plugin says to have made for a sandbox of a pod, by the result of its `ADD` that libcni keeps
/// until a `DEL` succeeds.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CniDevice {
    pub ifname: String,
    /// The id of the sandbox.
    pub container: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
}

/// What a file tells of an address.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct IpamRecord {
    pub address: IpAddr,
    /// The network in which it is reserved.
    pub network: String,
    /// For whom; absent where the file does not tell.
    pub container: Option<String>,
    /// Which file tells it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub file: IpamFile,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IpamFile {
    /// That of host-local: as long as it is there, host-local gives the address to nobody else.
    #[default]
    Reservation,
    /// That of libcni with the result of an `ADD`, if that had the address from host-local.
    Result,
}
