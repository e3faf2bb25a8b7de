//! A read-only view of the model that joins processes, namespaces and volumes with containers and pods.
//!
//! The result of a join is part of each answer: found, missed, or no container at all.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kevtmon_event::{Container, Join, Link, LinkPeer, Pod, Target, TargetProcess, UserNamespace};
use kevtmon_observation::cgroup;
use kevtmon_observation::{
    AddressFacts, ContainerFacts, LinkFacts, LlAddr, NeighborKey, NetnsOwner, NsInum, PodIdentity,
    SourceStatus, iff,
};

use super::cni::CniCalls;
use super::components::Components;
use super::containers::{Containers, is_live};
use super::gateways::Gateway;
use super::host_sysctls::HostSysctls;
use super::ipam::Ipam;
use super::kubelet::Kubelets;
use super::mounts::BusyMounts;
use super::namespaces::{Namespace, Namespaces};
use super::owner::{self, CgroupOwner, Described, Names};
use super::pod_remains::PodsOnNode;
use super::pods::PodNames;
use super::rbd::MappedImages;
use super::rbd_asked::AskedImages;

/// Limit of addresses of a pod in an event.
const POD_ADDRESSES: usize = 8;

#[derive(Debug, Clone, Copy)]
pub struct NodeView<'a> {
    pub containers: &'a Containers,
    /// The kubelet and the runtimes.
    pub components: &'a Components,
    pub namespaces: &'a Namespaces,
    /// Names of pods, including those without containers.
    pub pods: &'a PodNames,
    /// Mounts whose unmount was refused.
    pub busy_mounts: &'a BusyMounts,
    /// Mount namespaces of the host and of kubelets.
    pub kubelets: &'a Kubelets,
    /// Pods that have a directory.
    pub pods_on_node: &'a PodsOnNode,
    /// What host-local has written down of addresses.
    pub ipam: &'a Ipam,
    pub cni: &'a CniCalls,
    /// Ceph RBD images that are mapped.
    pub rbd: &'a MappedImages,
    /// Ceph RBD images that somebody has asked for of late.
    pub rbd_asked: &'a AskedImages,
    pub host_sysctls: &'a HostSysctls,
    pub host_netns: NsInum,
    pub runtimes: RuntimeAvailability,
    /// The newest status of each source, by name.
    pub statuses: &'a BTreeMap<String, SourceStatus>,
}

/// How many of the node's runtimes are available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeAvailability {
    /// There are some, or may be, and none tells of its containers.
    None,
    /// There is none on the node, or none is to be asked: no container will ever be told.
    Absent,
    /// At least one is; an unknown container may belong to another one.
    Some,
    /// All are: an unknown container does not exist.
    All,
}

impl RuntimeAvailability {
    /// Whether any tells of its containers.
    pub fn is_any(self) -> bool {
        matches!(self, Self::Some | Self::All)
    }
}

impl NodeView<'_> {
    /// Whether a source does not deliver: nothing answers at its socket.
    pub fn is_down(&self, source: &str) -> bool {
        self.statuses.get(source).is_some_and(|status| !status.up)
    }

    /// A link as events show it, without changes.
    pub fn link(&self, link: &LinkFacts) -> Link {
        let name = |netns, ifindex| Some(self.link_at(netns, ifindex)?.ifname.clone());
        Link {
            ifindex: link.ifindex,
            ifname: link.ifname.clone(),
            kind: link.kind.clone(),
            netns: link.netns,
            peer: link.peer.as_ref().map(|peer| LinkPeer {
                ifindex: peer.ifindex,
                netns: peer.netns,
                ifname: peer.netns.and_then(|netns| name(netns, peer.ifindex)),
            }),
            master: link.master,
            mac: link.mac.as_ref().map(ToString::to_string),
            old_mac: None,
            up: Some(link.flags & iff::UP != 0),
            change: Vec::new(),
            moved_to: None,
        }
    }

    pub fn owner(&self, cgroup: Option<&str>) -> CgroupOwner {
        owner::owner(self, cgroup)
    }

    /// The owner of a network namespace.
    pub fn target(&self, netns: NsInum) -> Target {
        if netns == self.host_netns {
            return Target::unknown(Join::Host);
        }
        if let Some(facts) = self.containers.in_netns(netns) {
            return self.target_of(facts);
        }
        let Some(namespace) = self.namespaces.get(netns) else { return Target::unknown(Join::Missed) };
        self.namespace_target(netns, namespace)
    }

    /// A namespace in which no runtime reported a container: named by the oldest process in it.
    fn namespace_target(&self, netns: NsInum, namespace: &Namespace) -> Target {
        let process = namespace.owner.as_ref();
        let owner = process.map(|process| self.owner(process.cgroup.as_deref()));
        // A process of a container can make further namespaces, which are not the container's own.
        let is_its_own = |id: &str| {
            let known = self.containers.get(id).and_then(|facts| facts.netns);
            known.is_none_or(|known| known == netns)
        };
        let of_container =
            owner.filter(|owner| owner.container.as_ref().is_some_and(|container| is_its_own(&container.id)));
        if let (Some(owner), Some(process)) = (of_container, process) {
            let container = owner
                .container
                .map(|container| Container { pid: container.pid.or(Some(process.tgid)), ..container });
            let foreign = namespace.foreign_userns && !is_confirmed(process);
            let userns = foreign.then_some(UserNamespace::Other);
            // Where no runtime tells the addresses of the pod, those that are set here are; unless a user has set them.
            let ip = if foreign { Vec::new() } else { self.addresses_in(Some(netns)) };
            let pod = owner.pod.map(|pod| if pod.ip.is_empty() { Pod { ip, ..pod } } else { pod });
            return Target { container, pod, userns, ..Target::unknown(owner.join) };
        }
        let cgroup = process.and_then(|process| process.cgroup.clone());
        Target {
            netns_name: namespace.name.clone(),
            netns_cookie: namespace.cookie.map(|cookie| cookie.to_string()),
            userns: namespace.foreign_userns.then_some(UserNamespace::Other),
            process: process.map(|process| TargetProcess {
                pid: process.tgid,
                comm: process.comm.clone(),
                start_time_ns: process.start_ns.to_string(),
            }),
            unit: cgroup.as_deref().and_then(|path| cgroup::identify(path).unit),
            cgroup,
            ..Target::unknown(if process.is_some() { Join::Ok } else { Join::Missed })
        }
    }

    pub fn target_of(&self, facts: &ContainerFacts) -> Target {
        Target { container: Some(container(facts)), pod: self.pod(facts), ..Target::unknown(Join::Ok) }
    }

    /// A pod by uid as a target, even if its containers are gone.
    pub fn target_of_pod(&self, uid: &str) -> Target {
        if let Some(facts) = self.containers.of_pod(uid) {
            return self.target_of(facts);
        }
        let join = if self.pods.get(uid).is_some() { Join::Ok } else { Join::Missed };
        Target { pod: Some(self.pod_of_uid(uid.to_owned())), ..Target::unknown(join) }
    }

    /// A pod by uid, with its name if that is known.
    pub fn pod_of(&self, uid: &str) -> Pod {
        let known = self.containers.of_pod(uid).and_then(|facts| self.pod(facts));
        known.unwrap_or_else(|| self.pod_of_uid(uid.to_owned()))
    }

    pub fn pod(&self, facts: &ContainerFacts) -> Option<Pod> {
        let identity = facts.pod.as_ref()?;
        // The sandbox has the addresses; containers that joined its namespace have none of their own.
        let sandbox_id = identity.sandbox_id.as_ref().filter(|_| identity.is_confirmed());
        let sandbox = sandbox_id.and_then(|id| self.containers.get(id));
        let mut ip = sandbox.filter(|_| facts.addresses.is_empty()).unwrap_or(facts).addresses.clone();
        if ip.is_empty() {
            // A CNI plugin sets addresses that the runtime does not know.
            ip = self.addresses_in(facts.netns.or(sandbox.and_then(|sandbox| sandbox.netns)));
        }
        ip.sort_unstable();
        Some(Pod {
            namespace: Some(identity.namespace.clone()),
            name: Some(identity.name.clone()),
            uid: identity.uid.clone(),
            claimed: !identity.is_confirmed(),
            sandbox_id: sandbox_id.cloned(),
            ip,
            labels: sandbox.and_then(|sandbox| labels(sandbox, identity)),
        })
    }

    /// Addresses in a pod's namespace that are reachable from outside it.
    fn addresses_in(&self, netns: Option<NsInum>) -> Vec<IpAddr> {
        let namespace = netns.filter(|netns| *netns != self.host_netns).and_then(|n| self.namespaces.get(n));
        let addresses = namespace.into_iter().flat_map(|namespace| &namespace.addresses);
        let reachable = addresses
            .map(|known| known.address)
            .filter(|address| !address.is_loopback() && !is_link_local(address));
        let reachable: BTreeSet<IpAddr> = reachable.collect();
        reachable.into_iter().take(POD_ADDRESSES).collect()
    }

    /// The same that no other namespace has. Namespaces of users do not count: the kernel mounts no NFS for them.
    pub fn addresses_only_in(&self, netns: NsInum) -> Vec<IpAddr> {
        let is_known = self.namespaces.get(netns).is_some_and(|namespace| !namespace.foreign_userns);
        let others =
            || self.namespaces.all().filter(|(other, known)| *other != netns && !known.foreign_userns);
        let is_elsewhere = |address: &IpAddr| {
            others().any(|(_, other)| other.addresses.iter().any(|known| known.address == *address))
        };
        let addresses = if is_known { self.addresses_in(Some(netns)) } else { Vec::new() };
        addresses.into_iter().filter(|address| !is_elsewhere(address)).collect()
    }

    fn pod_of_uid(&self, uid: String) -> Pod {
        let (namespace, name) = self.pods.get(&uid).unzip();
        let (namespace, name) = (namespace.map(str::to_owned), name.map(str::to_owned));
        Pod { namespace, name, uid, claimed: false, sandbox_id: None, ip: Vec::new(), labels: None }
    }
}

/// The labels of a pod, which its sandbox has: those of another container may be of its image.
#[expect(clippy::box_collection, reason = "as observed")]
fn labels(sandbox: &ContainerFacts, pod: &PodIdentity) -> Option<Box<BTreeMap<String, String>>> {
    let known = sandbox.pod.as_ref().filter(|known| known.is_confirmed() && known.is_same_pod(pod));
    known.filter(|_| sandbox.sandbox)?.labels.clone()
}

pub fn container(facts: &ContainerFacts) -> Container {
    let exit = facts.exit.filter(|_| !is_live(facts.state));
    // Not every runtime tells all of them: the sandboxes of the CRI have no image.
    let known = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    Container {
        id: facts.id.clone(),
        name: known(&facts.name),
        runtime: known(&facts.runtime),
        image: known(&facts.image),
        pid: facts.tgid,
        state: Some(facts.state.name().to_owned()),
        exit_code: exit.and_then(|exit| exit.code),
        oom_killed: exit.and_then(|exit| exit.oom_killed),
    }
}

impl Names for NodeView<'_> {
    fn container(&self, id: &str) -> Option<Described> {
        let facts = self.containers.get(id)?;
        Some(Described {
            container: container(facts),
            pod: self.pod(facts),
            is_present: self.containers.is_present(id),
        })
    }

    fn pod(&self, uid: String) -> Pod {
        self.pod_of_uid(uid)
    }

    fn runtimes(&self) -> RuntimeAvailability {
        self.runtimes
    }
}

impl<'a> NodeView<'a> {
    pub fn host(&self) -> Option<&'a Namespace> {
        self.namespaces.get(self.host_netns)
    }

    pub fn link_at(&self, netns: NsInum, ifindex: u32) -> Option<&'a LinkFacts> {
        self.namespaces.get(netns)?.links.get(&ifindex)
    }

    pub fn gateway(&self, key: NeighborKey) -> Option<&'a Gateway> {
        self.namespaces.get(key.netns)?.gateway(key.ifindex, key.address)
    }

    /// The correct link-layer address of a gateway, where that is certain.
    pub fn gateway_lladdr(&self, key: NeighborKey) -> Option<&'a LlAddr> {
        self.gateway_link(key)?.mac.as_ref()
    }

    /// The link by whose address a gateway is reached, where that is certain: the host end of the veth pair, or the bridge
    /// that it is a port of, if the bridge has the gateway's address.
    pub fn gateway_link(&self, key: NeighborKey) -> Option<&'a LinkFacts> {
        let end = self.host_end(key.netns, key.ifindex)?;
        let Some(bridge) = end.master else { return self.bridge_beside(end, key).is_none().then_some(end) };
        let host = self.namespaces.get(end.netns)?;
        host.links.get(&bridge).filter(|_| host.has_address(bridge, key.address))
    }

    /// The bridge that has the gateway's address, where the host end of the pair is no port of it and does not have the
    /// address itself: what answers the pod does not come back to it. Unless the pod has only addresses to which the
    /// bridge does not lead: then others than the bridge route to it.
    pub fn unconnected_gateway(&self, key: NeighborKey) -> Option<&'a LinkFacts> {
        self.bridge_beside(self.host_end(key.netns, key.ifindex)?, key)
    }

    fn bridge_beside(&self, end: &LinkFacts, key: NeighborKey) -> Option<&'a LinkFacts> {
        let host = self.namespaces.get(end.netns)?;
        // By address, which most often none has: the host has a link for each pod.
        let subnets: Vec<&AddressFacts> =
            host.addresses.iter().filter(|known| known.address == key.address).collect();
        let is_connected =
            |known: &&AddressFacts| known.ifindex == end.ifindex || Some(known.ifindex) == end.master;
        if subnets.is_empty() || subnets.iter().any(is_connected) {
            return None;
        }
        let own = self
            .namespaces
            .get(key.netns)?
            .addresses
            .iter()
            .filter(|own| own.ifindex == key.ifindex && own.address.is_ipv4() == key.address.is_ipv4());
        let own: Vec<IpAddr> = own.map(|own| own.address).filter(|own| !is_link_local(own)).collect();
        let leads_to_it =
            |subnet: &&&AddressFacts| own.is_empty() || own.iter().any(|own| subnet.has_in_subnet(*own));
        let mut links = subnets.iter().filter(leads_to_it).filter_map(|known| host.links.get(&known.ifindex));
        links.find(|link| link.kind.as_deref() == Some("bridge"))
    }

    /// The host end of a veth pair. Links of other kinds are ignored: what passes one, and by which address it is reached, is
    /// another matter for a netkit pair, and others have no other end.
    pub fn host_end(&self, netns: NsInum, ifindex: u32) -> Option<&'a LinkFacts> {
        self.other_end(netns, ifindex).filter(|end| end.kind.as_deref() == Some("veth"))
    }

    /// The other end of a pair of any kind.
    pub fn other_end(&self, netns: NsInum, ifindex: u32) -> Option<&'a LinkFacts> {
        let link = self.link_at(netns, ifindex)?;
        let peer = link.peer.as_ref()?;
        let end = self.link_at(peer.netns?, peer.ifindex)?;
        let leads_back = end.peer.as_ref().is_none_or(|back| back.ifindex == ifindex);
        (leads_back && end.kind == link.kind).then_some(end)
    }
}

pub fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Whether the container that a control group names is one of the system: users can make such groups only below their
/// own slice.
fn is_confirmed(process: &NetnsOwner) -> bool {
    process.cgroup.as_deref().is_some_and(|path| !path.starts_with("/user.slice/"))
}

#[cfg(test)]
mod tests {
    use kevtmon_observation::{NetnsSnapshot, PodProof};

    use super::*;
    use crate::test_support::model::{self, Model};

    fn sandbox(netns: NsInum, reported: &[&str]) -> ContainerFacts {
        ContainerFacts {
            netns: Some(netns),
            addresses: reported.iter().map(|address| address.parse().unwrap()).collect(),
            pod: Some(model::pod()),
            sandbox: true,
            ..model::container("a")
        }
    }

    fn pod_addresses(netns: NsInum, reported: &[&str]) -> Vec<String> {
        let mut model = Model::default();
        for netns in [1, 2] {
            let addresses =
                ["127.0.0.1", "192.168.252.66", "169.254.7.7", "::1", "fe80::1", "fd00::7"].map(|address| {
                    AddressFacts { netns, ifindex: 2, address: address.parse().unwrap(), prefix_len: 32 }
                });
            let snapshot = NetnsSnapshot { addresses: addresses.to_vec(), ..NetnsSnapshot::empty(netns) };
            model.namespaces.replace(0, snapshot, true);
        }
        let facts = sandbox(netns, reported);
        model.view().pod(&facts).unwrap().ip.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_control_group_outweighs_labels_that_nothing_confirms() {
        const UID: &str = "5c948341-c030-4996-b888-f032577d97b0";
        const OTHER: &str = "6c948341-c030-4996-b888-f032577d97b0";
        let id = "a".repeat(64);
        let mut model = Model::default();
        let mut facts = sandbox(2, &[]);
        facts.id.clone_from(&id);
        let pod = facts.pod.as_mut().unwrap();
        (pod.uid, pod.proof) = (UID.into(), PodProof::Claimed);
        model.containers.put(1, facts);
        let node = model.view();
        for (cgroup, uid, named, claimed) in [
            (format!("/docker/{id}"), UID, true, true),
            (format!("/kubepods/pod{UID}/{id}"), UID, true, false),
            (format!("/kubepods/pod{OTHER}/{id}"), OTHER, false, false),
        ] {
            let pod = node.owner(Some(&cgroup)).pod.unwrap();
            assert_eq!(
                (pod.uid.as_str(), pod.name.is_some(), pod.claimed),
                (uid, named, claimed),
                "{cgroup}"
            );
        }
        assert_eq!(node.pod_of(UID).name, None, "a claim gives a volume no name");
        assert_eq!(node.target_of_pod(UID).container, None);
    }

    #[test]
    fn a_process_of_a_removed_container_is_named_and_the_join_is_late() {
        let id = "a".repeat(64);
        let mut model = Model::default();
        model.containers.put(1, model::container(&id));
        let joined = |model: &Model| {
            let owner = model.view().owner(Some(&format!("/docker/{id}")));
            (owner.container.and_then(|container| container.name), owner.join)
        };
        assert_eq!(joined(&model), (Some("web".into()), Join::Ok));
        model.containers.remove(2, &id, "docker");
        assert_eq!(joined(&model), (Some("web".into()), Join::Late));
    }

    #[test]
    fn a_pod_has_the_labels_of_its_own_sandbox_and_none_where_it_is_a_claim() {
        let shown = |proof: PodProof, of_sandbox: &str| {
            let mut model = Model::default();
            let identity = PodIdentity { sandbox_id: Some("a".into()), proof, ..model::pod() };
            let labels = Some(Box::new([("app".to_owned(), "etcd".to_owned())].into()));
            let mut pause = sandbox(2, &[]);
            pause.pod = Some(PodIdentity { labels, uid: of_sandbox.into(), ..identity.clone() });
            model.containers.put(1, pause);
            let main = ContainerFacts { pod: Some(identity), ..model::container("b") };
            model.view().pod(&main).unwrap().labels.map(|labels| *labels)
        };
        let etcd = Some([("app".to_owned(), "etcd".to_owned())].into());
        assert_eq!(shown(PodProof::Cgroup, "u"), etcd);
        assert_eq!(shown(PodProof::Claimed, "u"), None);
        assert_eq!(shown(PodProof::Cgroup, "another"), None, "it names the sandbox of another pod");
    }

    #[test]
    fn what_a_runtime_does_not_tell_of_a_container_is_absent() {
        let facts = ContainerFacts { name: String::new(), image: String::new(), ..model::container("a") };
        let shown = serde_json::to_value(container(&facts)).unwrap();
        assert_eq!((shown.get("image"), shown.get("name")), (None, None), "{shown}");
        assert_eq!(container(&model::container("a")).image.as_deref(), Some("nginx"));
    }

    #[test]
    fn a_pod_has_the_addresses_of_its_namespace_where_the_runtime_gave_it_none() {
        assert_eq!(pod_addresses(2, &[]), ["192.168.252.66", "fd00::7"]);
        assert_eq!(pod_addresses(2, &["10.0.0.9"]), ["10.0.0.9"]);
        assert_eq!(pod_addresses(1, &[]), [""; 0], "the host's addresses are not the pod's alone");
    }
}
