//! How the host's network treats the packets of an interface: `net.ipv4.conf` and `net.ipv6.conf`.

use kevtmon_types::namespace::NsInum;
use serde::{Deserialize, Serialize};

use crate::TaskRef;

/// What a message tells of one interface, or of what holds for all: what it does not tell is absent.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceSysctls {
    /// Interface index; `None` of `conf/all`.
    pub ifindex: Option<u32>,
    /// Whether it is about IPv6.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ipv6: bool,
    pub forwarding: Option<bool>,
    /// `proxy_arp`, or `proxy_ndp`.
    pub proxy: Option<bool>,
    /// `rp_filter`, of IPv4.
    pub rp_filter: Option<RpFilter>,
}

/// Values of `rp_filter` (Documentation/networking/ip-sysctl.rst).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RpFilter {
    /// 0: the source of a packet is not looked at.
    Off,
    /// 1: its source has to be reached by the interface by which it came.
    Strict,
    /// 2: its source has to be reached by any interface.
    Loose,
}

impl RpFilter {
    /// By its number; others than these are as 2 (`fib_validate_source`, net/ipv4/fib_frontend.c).
    pub fn of(value: i32) -> Self {
        match value {
            0 => Self::Off,
            1 => Self::Strict,
            _ => Self::Loose,
        }
    }

    /// The number that is written for it.
    pub fn number(self) -> u8 {
        match self {
            Self::Off => 0,
            Self::Strict => 1,
            Self::Loose => 2,
        }
    }
}

/// A sysctl of `net.ipv4` or `net.ipv6` that a task is about to write. Whether the kernel takes the value, what changes then tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SysctlWrite {
    /// The task's own network namespace: it may have opened the file in another one.
    pub netns: NsInum,
    /// Path below `/proc/sys`.
    pub name: String,
    /// The value before, as the file shows it.
    pub old: String,
    /// What is written.
    pub new: String,
    /// As in `RouteAct`.
    pub missing: u32,
    /// As in `NeighborChange`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns_cookie: Option<u32>,
    pub actor: TaskRef,
}
