//! An address that several pods have.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Details, LinkPeer, Object, Pod, Role, Visitor};

/// An address that several pods of the node have, for incidents of kind `duplicate-pod-ip`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AddressConflict {
    /// The address.
    pub address: IpAddr,
    /// The pods, the one first that has run for longest.
    pub pods: Vec<AddressedPod>,
}

/// A pod that has the address.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AddressedPod {
    /// The pod.
    pub pod: Pod,
    /// Its network namespace, inode number.
    pub netns: u32,
    /// Index of the interface with the address, in that namespace.
    pub ifindex: u32,
    /// Name of that interface.
    pub ifname: String,
    /// The host's end of the veth pair.
    pub host_end: LinkPeer,
}

impl Object for AddressConflict {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.neighbor_address(Role::Object, self.address);
        for AddressedPod { pod, netns, ifindex, ifname, host_end } in &self.pods {
            visitor.pod(Role::Target, pod);
            visitor.interface(Role::Object, *netns, *ifindex, Some(ifname));
            if let Some(netns) = host_end.netns {
                visitor.interface(Role::Peer, netns, host_end.ifindex, host_end.ifname.as_deref());
            }
        }
    }

    fn describe(&self, details: &mut dyn Details) {
        let mut label = "pods";
        for AddressedPod { pod, netns, ifname, host_end, .. } in &self.pods {
            let pod = super::wording::pod_label(pod);
            let end = host_end.ifname.as_deref().unwrap_or_default();
            details.line(label, &format!("{pod} · {ifname} in netns {netns} · host end {end}"));
            label = "";
        }
    }
}
