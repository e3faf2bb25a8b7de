//! The reservation of an address.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::wording::short_id;
use super::{Details, Object, Pod, Role, Visitor};

/// The reservation of an address that a pod has, in the files of host-local, for incidents of kind `ipam-drift`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Reservation {
    /// The address.
    pub address: IpAddr,
    /// The network in which it was reserved for the pod.
    pub network: String,
    /// The sandbox of the pod, for which it was.
    pub container_id: String,
    /// The pod's network namespace, inode number.
    pub netns: u32,
    /// Index of the interface with the address, in that namespace.
    pub ifindex: u32,
    /// Name of that interface.
    pub ifname: String,
    /// The sandbox for which it is reserved now; absent where it is free.
    pub reserved_for: Option<String>,
    /// The pod of that sandbox, as far as it is known.
    pub reserved_for_pod: Option<Pod>,
}

impl Object for Reservation {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.neighbor_address(Role::Object, self.address);
        visitor.interface(Role::Object, self.netns, self.ifindex, Some(&self.ifname));
        if let Some(pod) = &self.reserved_for_pod {
            visitor.pod(Role::Target, pod);
        }
    }

    fn describe(&self, details: &mut dyn Details) {
        let Self { address, network, container_id, reserved_for, .. } = self;
        let now = reserved_for
            .as_deref()
            .map_or("not reserved".to_owned(), |id| format!("reserved for {}", short_id(id)));
        let before = short_id(container_id);
        details.line("address", &format!("{address} in network {network} · {now} · before: {before}"));
    }
}
