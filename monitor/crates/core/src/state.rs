//! The model as shown to users (`GET /v1/state`, `kevtmon state`): built on demand, sorted, without what only joins
//! need.

use std::collections::BTreeMap;
use std::net::IpAddr;

use kevtmon_event::{Component, Container, Link, Pod, SpecHash, Target};
use kevtmon_observation::{BootNs, ContainerFacts, FuseMount, LinkFacts, NsInum, SourceStatus};
use serde::{Deserialize, Serialize};

use super::Core;
use crate::diagnose::{QuietPeriod, Recount, Suspicion};
use crate::node::namespaces::Namespace;
use crate::node::view::container;

mod network;
mod pods;

pub use network::{Hop, MadeBy, PodIncident};
pub use pods::{KnownBy, PodStatus};

/// The model at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeState {
    /// Time of the snapshot, RFC 3339.
    pub time: String,
    pub node: String,
    pub boot_id: String,
    pub version: String,
    /// Sequence number of the newest event.
    pub seq: u64,
    /// Whether every source has reported its status.
    pub ready: bool,
    pub host_netns: NsInum,
    /// Sources and hooks, by name.
    pub sources: Vec<SourceStatus>,
    pub counts: Counts,
    /// Pods with at least one container, by namespace and name; not those that a container only claims to be of. Where not all
    /// runtimes answer, those too that are known otherwise.
    pub pods: Vec<PodStatus>,
    /// Containers that are not removed, by id.
    pub containers: Vec<ContainerStatus>,
    /// The kubelets and runtimes that run.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub components: Vec<Component>,
    /// FUSE file systems that the host has mounted, with their servers.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub fuse_mounts: Vec<FuseMount>,
    /// Network namespaces of which a snapshot was read, by inode number.
    pub namespaces: Vec<NetnsStatus>,
    /// The default routes of the host, by interface.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub uplinks: Vec<Hop>,
    /// What looks like an incident and is not judged yet.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub suspected: Vec<Suspicion>,
    /// The open incidents that are over for the moment.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub quiet_periods: Vec<QuietPeriod>,
    /// How often the open incidents have been seen by now, where that was more than once.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub recounts: Vec<Recount>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub containers: BTreeMap<String, u64>,
    pub pods: u64,
    pub namespaces: u64,
    pub links: u64,
}

/// A container with its pod and namespaces.
#[serde_with::apply(_ => #[serde(skip_serializing_if = "crate::saved::is_new")])]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerStatus {
    #[serde(flatten)]
    pub container: Container,
    pub pod: Option<Pod>,
    /// Whether it is its pod's sandbox.
    pub sandbox: bool,
    /// How many containers of this name its pod had before, or of a sandbox, how many sandboxes.
    pub attempt: Option<u32>,
    /// Hash of the specification that it was made by, as the kubelet computed it.
    pub spec_hash: Option<SpecHash>,
    pub netns: Option<NsInum>,
    pub mntns: Option<NsInum>,
    /// Its addresses as reported by the runtime.
    pub ip: Vec<IpAddr>,
    /// Sources that report it, the one that describes it first.
    pub sources: Vec<String>,
    /// Whether all of them are down, so that this is what was known last.
    pub stale: bool,
}

#[serde_with::apply(Vec => #[serde(skip_serializing_if = "Vec::is_empty", default)])]
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NetnsStatus {
    pub netns: NsInum,
    /// Name below /run/netns.
    pub name: Option<String>,
    /// Its cookie (`SO_NETNS_COOKIE`), where the kernel has it.
    pub cookie: Option<String>,
    /// When it was first seen, RFC 3339; absent where that was at the start of the daemon.
    pub since: Option<String>,
    /// Process id of a process in it.
    pub pid: Option<u32>,
    /// Command name of that process.
    pub comm: Option<String>,
    pub owner: Target,
    /// Next hops of its default routes.
    pub gateways: Vec<IpAddr>,
    /// The neighbor entries of those.
    pub neighbors: Vec<EntryStatus>,
    /// Its default routes, and halves of such, of all tables.
    pub routes: Vec<RouteStatus>,
    /// Its addresses with prefix length.
    pub addresses: Vec<String>,
    /// Its links, by index.
    pub links: Vec<Link>,
    /// Whether it may have changed since it was read, and is to be read again.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub stale: bool,
}

/// The neighbor entry of a gateway, as it was seen last: of one that is learned not every change is followed.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryStatus {
    pub address: IpAddr,
    pub ifindex: u32,
    /// As `ip neighbor` calls it, in lower case; absent where there is no entry.
    pub state: Option<String>,
    /// Link-layer address; absent where it is not resolved.
    pub lladdr: Option<String>,
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteStatus {
    /// `default`, or a half of it: `0.0.0.0/1`.
    pub destination: String,
    pub gateway: Option<IpAddr>,
    pub ifindex: Option<u32>,
    /// Table: 254 is the main one.
    pub table: u32,
    pub metric: u32,
    /// Whether it is of IPv6.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub ipv6: bool,
}

impl Core {
    /// The current state of the model; `at` becomes its time stamp.
    pub fn state(&self, at: BootNs) -> NodeState {
        let mut containers: Vec<ContainerStatus> =
            self.containers.present().map(|facts| self.container_status(facts)).collect();
        containers.sort_unstable_by(|a, b| a.container.id.cmp(&b.container.id));
        let namespaces: Vec<NetnsStatus> =
            self.namespaces.all().map(|(netns, namespace)| self.netns_status(netns, namespace)).collect();
        let pods = self.pod_statuses(&containers);
        let mut counts = Counts {
            containers: BTreeMap::new(),
            pods: number(pods.len()),
            namespaces: number(namespaces.len()),
            links: number(namespaces.iter().map(|namespace| namespace.links.len()).sum()),
        };
        for container in &containers {
            *counts.containers.entry(container.container.state.clone().unwrap_or_default()).or_default() += 1;
        }
        NodeState {
            time: self.wall_time(at),
            node: self.settings.node.clone(),
            boot_id: self.settings.boot_id.clone(),
            version: self.settings.version.clone(),
            seq: self.seq,
            ready: self.ready,
            host_netns: self.settings.host_netns,
            sources: self.statuses.values().cloned().collect(),
            counts,
            pods,
            containers,
            components: self.components.running.iter().map(Component::from).collect(),
            fuse_mounts: self.fuse_mounts.known.clone(),
            namespaces,
            uplinks: self.uplinks(),
            suspected: self.engine.suspected(&self.node()),
            quiet_periods: self.engine.quiet_periods(),
            recounts: self.engine.recounts(),
        }
    }

    fn container_status(&self, facts: &ContainerFacts) -> ContainerStatus {
        let sources = self.containers.sources(&facts.id);
        let is_up = |source: &String| self.statuses.get(source).is_some_and(|status| status.up);
        ContainerStatus {
            sources: sources.to_vec(),
            stale: !sources.iter().any(is_up),
            container: container(facts),
            pod: self.node().pod(facts),
            sandbox: facts.is_sandbox(),
            attempt: facts.incarnation.attempt,
            spec_hash: facts.incarnation.spec_hash.map(Into::into),
            netns: facts.netns,
            mntns: facts.mntns,
            ip: facts.addresses.clone(),
        }
    }

    fn netns_status(&self, netns: NsInum, namespace: &Namespace) -> NetnsStatus {
        let mut addresses: Vec<String> = namespace
            .addresses
            .iter()
            .map(|address| format!("{}/{}", address.address, address.prefix_len))
            .collect();
        addresses.sort_unstable();
        let is_new = self.engine.ready.is_some_and(|ready| namespace.since > ready);
        NetnsStatus {
            netns,
            name: namespace.name.clone(),
            cookie: namespace.cookie.map(|cookie| cookie.to_string()),
            since: is_new.then(|| self.wall_time(namespace.since)),
            pid: namespace.owner.as_ref().map(|owner| owner.tgid),
            comm: namespace.owner.as_ref().map(|owner| owner.comm.clone()),
            owner: self.target(netns, false),
            gateways: gateways(namespace),
            neighbors: network::entries(namespace),
            routes: network::routes(namespace),
            addresses,
            links: namespace.links.values().map(|link| self.link_state(link)).collect(),
            stale: namespace.is_stale(),
        }
    }

    pub(super) fn link_state(&self, link: &LinkFacts) -> Link {
        self.node().link(link)
    }
}

fn gateways(namespace: &Namespace) -> Vec<IpAddr> {
    let mut gateways: Vec<IpAddr> = namespace.in_use.iter().map(|(_, gateway)| *gateway).collect();
    gateways.sort_unstable();
    gateways.dedup();
    gateways
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
