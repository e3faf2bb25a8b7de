//! What a source reports about itself: what it is, whether it delivers, and what it lost.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{BootNs, NsInum};

/// What a source integrates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    /// The kernel's network tables.
    Netlink,
    /// A kernel hook, or the kernel programs as a whole.
    Hook,
    /// A container runtime: it names containers.
    Runtime,
    /// What is read of processes.
    Processes,
    /// A kubelet: it names pods.
    Kubelet,
    /// Logs of the kernel and of programs.
    Logs,
    /// A sink that can be down, such as the event store.
    Sink,
    /// The configuration file, which is read again on request.
    Configuration,
    /// The wall clock, which may be set.
    Clock,
}

/// The state of one source or hook.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceStatus {
    /// Unique: `netlink`, `hook.neighbor`, `docker:/run/docker.sock`, …
    pub source: String,
    pub kind: SourceKind,
    pub up: bool,
    /// The attach mode of its list of attach modes (`tp_btf`, `tracepoint`, `netlink`, …), where it has one.
    pub attach_mode: Option<String>,
    /// Why it is down or not on its best attach mode, for an operator.
    pub reason: Option<String>,
    /// What it does without, though it is on its best attach mode, and why, for an operator.
    pub lacks: Option<String>,
    /// Whether there is nothing that it could report, rather than something that is out of its reach.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub absent: bool,
    /// Whether nobody said that it is there, and neither it nor anything of it was found since the daemon started.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub vacant: bool,
}

impl SourceStatus {
    /// A source that delivers.
    pub fn up(kind: SourceKind, source: impl Into<String>) -> Self {
        Self {
            source: source.into(),
            kind,
            up: true,
            attach_mode: None,
            reason: None,
            lacks: None,
            absent: false,
            vacant: false,
        }
    }

    /// A source that does not deliver.
    pub fn down(kind: SourceKind, source: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { up: false, reason: Some(reason.into()), ..Self::up(kind, source) }
    }
}

/// Records that a source could not hand over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// As in [`SourceStatus::source`]; `bpf` for all hooks.
    pub source: String,
    /// `ring-full`, `overrun`, `decode`, …
    pub reason: String,
    /// How many; `None` if unknown.
    pub count: Option<u64>,
}

impl Loss {
    /// The end of the reason where only records of unprivileged users among themselves were lost: of their namespaces and
    /// unmounts, and of no other's.
    pub const OF_USERS: &str = "-users-ring-full";
}

/// What has a budget of its own in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetClass {
    /// Neighbor changes in one namespace of the host or of a container, by one control group, or by all together.
    Namespace,
    /// Neighbor changes in all namespaces of one unprivileged user.
    Owner,
    /// What is not told apart: neighbor changes in other user namespaces of root's that are no known container's, and the
    /// sources for which there was no room.
    Unknown,
    /// Unmount attempts of one user, of root by control group.
    Umount,
    /// The same of names that could not be removed or renamed.
    Remove,
    /// CNI plugins that were executed in one control group of root's.
    Exec,
    /// What set the entries of known gateways in one namespace.
    GatewaySet,
    /// What one control group did to interfaces, routes and addresses in one namespace of the host or of a container.
    Link,
}

impl BudgetClass {
    /// As in events and metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Namespace => "namespace",
            Self::Owner => "owner",
            Self::Unknown => "unknown",
            Self::Umount => "umount",
            Self::Remove => "remove",
            Self::Exec => "exec",
            Self::GatewaySet => "gateway-set",
            Self::Link => "link",
        }
    }
}

/// What one source did beyond its budget: the kernel programs counted it, and wrote no records.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Throttled {
    /// Whose budget it was.
    pub lane: BudgetClass,
    /// The network namespace, where it is one.
    pub netns: Option<NsInum>,
    /// The user in the initial user namespace, where it is one.
    pub uid: Option<u32>,
    /// The control groups of the tasks, where they are the same; 0 for none.
    pub cgroup_v1: u32,
    /// In the v2 hierarchy.
    pub cgroup_v2: u32,
    /// The process of the last record.
    pub last_tgid: Option<u32>,
    /// Records that were not written.
    pub count: u64,
    pub from: BootNs,
    pub until: BootNs,
}

/// What the kernel programs are to know of a network namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownNetns {
    /// Whether another user namespace than the host's owns it.
    pub foreign_userns: bool,
    /// Interface and address of its default gateways, those in use first.
    pub gateways: Vec<(u32, IpAddr)>,
    /// Of the host's: the next hops by its tunnels.
    pub tunnels: Vec<(u32, IpAddr)>,
}
