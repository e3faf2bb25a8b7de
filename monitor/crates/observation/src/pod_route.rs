//! By which route the node sends packets to its pods, as the kernel itself finds it.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// An address of a pod, and the interfaces of the host behind which the pod is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodAddress {
    pub address: IpAddr,
    /// Indexes of the interfaces.
    pub interfaces: Vec<u32>,
}

/// Where packets to an address of a pod go that do not go to one of its interfaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRoute {
    pub address: IpAddr,
    /// What the kernel finds.
    pub found: FoundRoute,
}

/// What the kernel finds for an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FoundRoute {
    /// No route (`ENETUNREACH`).
    Nothing,
    /// A route that discards packets (`blackhole`).
    Discards,
    /// A route that refuses packets (`unreachable`, `prohibit`, `throw` without a route behind it).
    Refuses,
    /// A default route, or half of one, by another interface, where no table has a route to the pod.
    Default { ifindex: u32 },
    /// Another route, by another interface: what is behind it may lead to the pod.
    By { ifindex: u32 },
    /// Another route, of which nothing more is known.
    Other,
}
