//! The pods of the node, by what tells of them: runtimes, and where not all of these answer, the processes in network
//! namespaces and the kubelet's directories.

use std::collections::BTreeMap;
use std::net::IpAddr;

use kevtmon_event::{Pod, Target};
use kevtmon_observation::{NsInum, SourceKind, SourceStatus};
use kevtmon_types::names::named;
use serde::{Deserialize, Serialize};

use super::{ContainerStatus, Hop, MadeBy, NodeState, PodIncident, gateways};
use crate::Core;
use crate::node::view::RuntimeAvailability;

#[serde_with::apply(_ => #[serde(skip_serializing_if = "crate::saved::is_new")])]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodStatus {
    #[serde(flatten)]
    pub pod: Pod,
    pub known_by: KnownBy,
    pub netns: Option<NsInum>,
    /// Next hops of its default routes.
    pub gateways: Vec<IpAddr>,
    /// Host interfaces whose peer is in its namespace.
    pub host_links: Vec<String>,
    /// The way of its packets to the host, and what is broken on it.
    pub path: Vec<Hop>,
    /// The call of a CNI plugin that made its network, if it was seen.
    pub made_by: Option<MadeBy>,
    pub incidents: Vec<PodIncident>,
    /// Ids of its containers.
    pub containers: Vec<String>,
}

named! {
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
    KnownBy {
        /// A runtime has a container of it, or had when it answered last.
        #[default]
        Runtime = "runtime",
        /// A process in a network namespace is in its control group.
        Cgroup = "cgroup",
        /// It has a directory of the kubelet: it may be over.
        Directory = "directory",
    }
}

impl NodeState {
    /// Why there may be pods that are not listed, and not all names of those that are; `None` where every runtime answers.
    pub fn pods_incomplete(&self) -> Option<String> {
        let is_runtime = |source: &&SourceStatus| source.kind == SourceKind::Runtime && !source.absent;
        let (up, down): (Vec<_>, Vec<_>) =
            self.sources.iter().filter(is_runtime).partition(|source| source.up);
        let why = |source: &&SourceStatus| match &source.reason {
            Some(reason) => format!("{}: {reason}", source.source),
            None => source.source.clone(),
        };
        let why = down.iter().map(why).collect::<Vec<_>>().join("; ");
        match (up.is_empty(), down.is_empty()) {
            _ if !self.ready => Some("not every source has reported yet".to_owned()),
            (false, true) => None,
            (true, true) => Some("no container runtime is watched".to_owned()),
            (true, false) => Some(format!("no container runtime answers ({why})")),
            (false, false) => Some(format!("not every container runtime answers ({why})")),
        }
    }
}

impl Core {
    pub(super) fn pod_statuses(&self, containers: &[ContainerStatus]) -> Vec<PodStatus> {
        let mut pods: BTreeMap<String, PodStatus> = BTreeMap::new();
        for container in containers {
            let Some(pod) = container.pod.as_ref().filter(|pod| !pod.claimed) else { continue };
            let state = pods.entry(pod.uid.clone()).or_insert_with(|| self.pod_status(pod.clone()));
            state.containers.push(container.container.id.clone());
            // All containers of a pod share the sandbox's namespace; the host's belongs to no pod.
            state.netns = state.netns.or(container.netns.filter(|netns| *netns != self.settings.host_netns));
        }
        if self.runtimes() != RuntimeAvailability::All {
            self.add_pods_of_namespaces(&mut pods);
            self.add_pods_with_directory(&mut pods);
        }
        let mut pods: Vec<PodStatus> = pods.into_values().collect();
        for pod in &mut pods {
            let Some(netns) = pod.netns else { continue };
            pod.path = self.way_out(netns);
            if let Some(namespace) = self.namespaces.get(netns) {
                pod.gateways = gateways(namespace);
            }
            pod.host_links = self.host_links(netns);
        }
        pods.sort_unstable_by(|a, b| {
            let name =
                |pod: &PodStatus| (pod.pod.namespace.clone(), pod.pod.name.clone(), pod.pod.uid.clone());
            name(a).cmp(&name(b))
        });
        pods
    }

    fn pod_status(&self, pod: Pod) -> PodStatus {
        let (made_by, incidents) = (self.made_by(&pod), self.open_incidents(&pod.uid));
        PodStatus { pod, known_by: KnownBy::Runtime, made_by, incidents, ..PodStatus::default() }
    }

    /// Adds the pods in whose control group a process of a network namespace is.
    fn add_pods_of_namespaces(&self, pods: &mut BTreeMap<String, PodStatus>) {
        let mut found: BTreeMap<String, Vec<(NsInum, Target)>> = BTreeMap::new();
        for (netns, _) in self.namespaces.all() {
            let target = self.target(netns, false);
            // Users can name control groups of their own as they like.
            let Some(pod) = target.confirmed_pod().filter(|_| !target.is_foreign()) else { continue };
            if !pods.contains_key(&pod.uid) {
                found.entry(pod.uid.clone()).or_default().push((netns, target));
            }
        }
        for (uid, mut of_pod) in found {
            // A process of a pod can make further namespaces: the pod's own is that which leads to the host.
            if of_pod.len() > 1 && of_pod.iter().any(|(netns, _)| !self.host_links(*netns).is_empty()) {
                of_pod.retain(|(netns, _)| !self.host_links(*netns).is_empty());
            }
            let is_alone = of_pod.len() == 1;
            let Some((netns, target)) = of_pod.into_iter().next() else { continue };
            let (Some(pod), container) = (target.pod, target.container) else { continue };
            let id = container.map(|container| container.id);
            let pod = self.named_by_call(pod, id.as_deref());
            let containers = id.into_iter().collect();
            let netns = is_alone.then_some(netns);
            let known_by = KnownBy::Cgroup;
            pods.insert(uid, PodStatus { known_by, netns, containers, ..self.pod_status(pod) });
        }
    }

    /// A pod with the name by which a CNI plugin was called for the sandbox that a container is, if it has none. The id of the
    /// sandbox is that of its control group, so it is the same one.
    fn named_by_call(&self, pod: Pod, container: Option<&str>) -> Pod {
        let call = container.and_then(|id| Some((id, self.cni.get(id)?.pod.as_ref()?)));
        match call.filter(|(_, called)| called.uid.as_ref().is_none_or(|uid| *uid == pod.uid)) {
            Some((id, called)) if pod.name.is_none() => Pod {
                namespace: Some(called.namespace.clone()),
                name: Some(called.name.clone()),
                sandbox_id: pod.sandbox_id.or_else(|| Some(id.to_owned())),
                ..pod
            },
            _ => pod,
        }
    }

    fn add_pods_with_directory(&self, pods: &mut BTreeMap<String, PodStatus>) {
        if !self.pods_on_node.is_read {
            return;
        }
        for (uid, _) in self.pods_on_node.iter() {
            let known_by = KnownBy::Directory;
            let status = || PodStatus { known_by, ..self.pod_status(self.node().pod_of(uid)) };
            pods.entry(uid.to_owned()).or_insert_with(status);
        }
    }

    fn host_links(&self, netns: NsInum) -> Vec<String> {
        let host = self.namespaces.get(self.settings.host_netns);
        let links = host.into_iter().flat_map(|host| host.links.values());
        let leads_there =
            links.filter(|link| link.peer.as_ref().is_some_and(|peer| peer.netns == Some(netns)));
        leads_there.map(|link| link.ifname.clone()).collect()
    }
}
