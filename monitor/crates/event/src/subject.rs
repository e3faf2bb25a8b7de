//! Actor and target: the process that did it, and the container and pod affected; resolved separately.

use std::collections::BTreeMap;
use std::net::IpAddr;

use kevtmon_types::names::named;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Shared;

/// The process that did it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Actor {
    /// How the actor was found.
    pub source: ActorSource,
    /// How certain that is.
    pub confidence: Confidence,
    /// Process id (thread group).
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// User id in the initial user namespace.
    pub uid: Option<u32>,
    /// Effective user id in the initial user namespace, where it is another.
    pub euid: Option<u32>,
    /// Name of the program: that of its first thread.
    pub comm: String,
    /// Executable, as the root directory of the process shows it; `(unreachable)/…` and `… (deleted)` where it does not.
    pub exe: Option<String>,
    /// Arguments, masked, cut at 4 KiB.
    pub cmdline: Option<String>,
    /// Start on the boot clock, nanoseconds; absent where the kernel does not tell it without BTF.
    #[schemars(regex(pattern = "^[0-9]+$"))]
    #[serde(skip_serializing_if = "is_unknown_start", default)]
    pub start_time_ns: String,
    /// Control group path; behind a doubled slash are names that root did not make.
    pub cgroup: Option<String>,
    /// systemd unit, from the control group.
    pub unit: Option<String>,
    /// Network namespace of the process, inode number.
    pub netns: Option<u32>,
    /// Mount namespace of the process, inode number.
    pub mntns: Option<u32>,
    /// Its user namespace, where it is not the initial one: user ids and capabilities in it mean nothing to the node.
    pub userns: Option<UserNamespace>,
    /// Processes above it, nearest first.
    #[schemars(length(max = 5))]
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub ancestors: Vec<AncestorRef>,
    /// Its container.
    pub container: Option<Container>,
    /// Its pod.
    pub pod: Option<Pod>,
    /// How the join with a container went.
    pub join: Join,
}

impl Actor {
    /// The same, and no longer certain.
    pub fn at_most_likely(actor: Shared<Self>) -> Shared<Self> {
        let confidence = actor.confidence.min(Confidence::Likely);
        Shared::new(Self { confidence, ..actor.into_inner() })
    }
}

fn is_unknown_start(start_time_ns: &str) -> bool {
    matches!(start_time_ns, "" | "0")
}

/// A user namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UserNamespace {
    /// Not the initial one.
    Other,
}

/// How an actor was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ActorSource {
    /// The task that was current in the kernel.
    Kernel,
    /// The port id of a netlink request.
    NetlinkPort,
    /// A CNI call that was in progress.
    CniWindow,
    /// Found in /proc afterwards.
    Proc,
    /// Unknown.
    None,
}

named! {
    /// How certain a statement is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
    Confidence {
        /// Possible.
        Guess = "guess",
        /// Consistent with everything that is known.
        Likely = "likely",
        /// Observed.
        Certain = "certain",
    }
}

/// A process above the actor.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AncestorRef {
    /// Process id.
    pub pid: u32,
    /// Command name.
    pub comm: String,
    /// Start on the boot clock, nanoseconds: with the process id it tells the process from any later one. Absent where it is not
    /// known.
    #[schemars(regex(pattern = "^[0-9]+$"))]
    pub start_time_ns: Option<String>,
    /// Executable.
    pub exe: Option<String>,
    /// Whether it has started the process below it, as the program that it is and without another one in between. Absent
    /// where that is not known: the kernel gives orphans to the init of their pid namespace or to a subreaper.
    pub started: Option<bool>,
    /// Real user id, where it could still be read.
    pub uid: Option<u32>,
    /// Its own container, where the actor is a tool of this process and that could still be read.
    pub container: Option<Container>,
    /// Its own pod, likewise.
    pub pod: Option<Pod>,
    /// How the join with that container went, likewise.
    pub join: Option<Join>,
}

named! {
    /// How the join of a fact with a container went.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    Join {
        /// Found at once.
        Ok = "ok",
        /// Found after a query, or, of a process, removed already and still remembered.
        Late = "late",
        /// Not found.
        #[default]
        Missed = "missed",
        /// Belongs to the host.
        Host = "host",
    }
}

/// The container and pod that are affected.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Target {
    /// The container.
    pub container: Option<Container>,
    /// The pod.
    pub pod: Option<Pod>,
    /// Name of the network namespace below /run/netns, where no container is known in it.
    pub netns_name: Option<String>,
    /// Cookie of the network namespace (`SO_NETNS_COOKIE`), where no container is known in it: unlike the inode number
    /// it is never used again.
    #[schemars(regex(pattern = "^[0-9]+$"))]
    pub netns_cookie: Option<String>,
    /// `other` where another user namespace than the host's owns the network namespace and no container is confirmed in
    /// it: its users made it themselves.
    pub userns: Option<UserNamespace>,
    /// The oldest process in the network namespace, where no container is known in it.
    pub process: Option<TargetProcess>,
    /// systemd unit of that process.
    pub unit: Option<String>,
    /// Control group path of that process.
    pub cgroup: Option<String>,
    /// How the join went.
    pub join: Join,
}

impl Target {
    /// Nothing but the result of the join.
    pub fn unknown(join: Join) -> Self {
        Self { join, ..Self::default() }
    }

    /// Whether users of another user namespace than the host's made it themselves.
    pub fn is_foreign(&self) -> bool {
        self.userns.is_some()
    }

    /// Its pod, if that is more than a claim.
    pub fn confirmed_pod(&self) -> Option<&Pod> {
        Pod::confirmed(self.pod.as_ref())
    }

    /// Whether it only claims to be of a pod.
    pub fn is_claimed(&self) -> bool {
        self.pod.as_ref().is_some_and(|pod| pod.claimed)
    }
}

/// A process that names a network namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TargetProcess {
    /// Process id.
    pub pid: u32,
    /// Command name.
    pub comm: String,
    /// Start on the boot clock, nanoseconds.
    #[schemars(regex(pattern = "^[0-9]+$"))]
    pub start_time_ns: String,
}

/// A container, as far as it is known.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Container {
    /// 64 hex digits.
    #[schemars(regex(pattern = "^[0-9a-f]{64}$"))]
    pub id: String,
    /// Name.
    pub name: Option<String>,
    /// Runtime: `docker`, …
    pub runtime: Option<String>,
    /// Image reference.
    pub image: Option<String>,
    /// Init process on the host.
    pub pid: Option<u32>,
    /// `running`, `exited`, …
    pub state: Option<String>,
    /// Exit code of its first process, once it has exited; 128 and more may be a signal.
    pub exit_code: Option<i32>,
    /// Whether the kernel killed a process of it in its last run for want of memory; absent where that is not known.
    pub oom_killed: Option<bool>,
}

impl Container {
    /// One of which only the id is known.
    pub fn of_id(id: String) -> Self {
        Self { id, ..Self::default() }
    }
}

/// A pod.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pod {
    /// Namespace.
    pub namespace: Option<String>,
    /// Name.
    pub name: Option<String>,
    /// Uid.
    pub uid: String,
    /// Whether only labels or a name of the container tell the pod, which who made it chose; absent where its control
    /// group, a checkpoint of its sandbox or a link to its log confirms it.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub claimed: bool,
    /// Container id of its sandbox.
    pub sandbox_id: Option<String>,
    /// Its addresses.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub ip: Vec<IpAddr>,
    /// Those of its labels that the setting `pod_labels` allows, as they were when its sandbox was made; absent where the
    /// pod is only claimed.
    pub labels: Option<Box<BTreeMap<String, String>>>,
}

impl Pod {
    /// The pod, if it is more than a claim of whoever made its container.
    pub fn confirmed(pod: Option<&Self>) -> Option<&Self> {
        pod.filter(|pod| !pod.claimed)
    }
}
