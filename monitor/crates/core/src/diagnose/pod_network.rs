//! What several diagnoses read of the networks of pods.

use std::collections::BTreeMap;
use std::net::IpAddr;

use kevtmon_event::{Pod, Target};
use kevtmon_observation::{LinkFacts, NsInum};

use super::gateway_neighbor_lost::health::live_target;
use super::incidents::OpenIncident;
use super::{BootNs, Context, SECOND, stale_cni_del};
use crate::node::view::{NodeView, is_link_local};

/// All is looked at so long after a change: many come together.
pub(super) const SETTLE: BootNs = SECOND;
/// A device is below a VRF, through a bridge and a bond at most.
const MASTERS: usize = 4;

/// The pod that lives in a network namespace, if anything confirms that it is this pod's.
pub(super) fn living_pod(node: &NodeView<'_>, netns: NsInum) -> Option<(Target, Pod)> {
    let target = live_target(node, netns).filter(|target| !target.is_foreign())?;
    let pod = target.confirmed_pod()?.clone();
    Some((target, pod))
}

fn is_in(node: &NodeView<'_>, netns: NsInum, uid: &str) -> bool {
    living_pod(node, netns).is_some_and(|(_, pod)| pod.uid == uid)
}

pub(super) fn netns_of(node: &NodeView<'_>, uid: &str) -> Option<NsInum> {
    node.namespaces.all().map(|(netns, _)| netns).find(|netns| is_in(node, *netns, uid))
}

/// The network namespace in which a pod lives, that in which it was if it still does: it may have another sandbox by now, and of
/// one that an earlier run of the daemon found, it is not known where it was.
pub(super) fn netns_now(node: &NodeView<'_>, before: NsInum, uid: &str) -> Option<NsInum> {
    Some(before).filter(|netns| is_in(node, *netns, uid)).or_else(|| netns_of(node, uid))
}

/// The subjects of pods that do not live any more; `place`: where a pod was, which follows where it is, and its uid.
pub(super) fn gone<R>(
    context: &Context<'_>,
    records: &mut BTreeMap<String, R>,
    place: impl Fn(&mut R) -> (&mut NsInum, &str),
) -> Vec<String> {
    let mut gone = Vec::new();
    for (subject, record) in records.iter_mut().filter(|_| context.ready.is_some()) {
        let (netns, uid) = place(record);
        match netns_now(context.node, *netns, uid) {
            Some(now) => *netns = now,
            None => gone.push(subject.clone()),
        }
    }
    gone
}

/// Since when a pod's container runs, as far as that is known; 0 where it is not.
pub(super) fn runs_since(node: &NodeView<'_>, netns: NsInum) -> BootNs {
    let of_runtime = node.containers.in_netns(netns).and_then(|facts| {
        let started = facts.started_ns.into_iter().chain(node.containers.started(&facts.id));
        started.max()
    });
    let of_process = || Some(node.namespaces.get(netns)?.owner.as_ref()?.start_ns);
    of_runtime.or_else(of_process).unwrap_or(0)
}

/// Whether the next pod of a name may lose its network when this one is deleted: the removal of a sandbox of that name fails, or
/// took what that of the present one will miss.
pub(super) fn is_deletion_feared(context: &Context<'_>, namespace: &str, name: &str) -> bool {
    let is_of_it = |open: &OpenIncident| {
        let cni = open.objects.cni.as_deref();
        let pod = cni.map(|cni| (cni.namespace.as_deref(), cni.pod.as_deref()));
        open.kind() == stale_cni_del::KIND && pod == Some((Some(namespace), Some(name)))
    };
    context.node.cni.has_failing_of(namespace, name) || context.incidents.iter().any(is_of_it)
}

/// Whether an address is that of a pod, rather than one that every network namespace has.
pub(super) fn is_of_pod(address: IpAddr) -> bool {
    let is_of_all = is_link_local(&address) || address.is_loopback();
    !is_of_all && !address.is_unspecified() && !address.is_multicast()
}

/// Whether an interface leads out of a pod: its default routes are by it, or it has none. By others it reaches networks of
/// their own.
pub(super) fn leads_out(node: &NodeView<'_>, netns: NsInum, ifindex: u32) -> bool {
    let routes = node.namespaces.get(netns).map_or(&[][..], |namespace| &namespace.routes[..]);
    let mut defaults = routes.iter().filter(|route| route.is_default()).peekable();
    defaults.peek().is_none() || defaults.any(|route| route.ifindex == Some(ifindex))
}

/// The VRF that a device of the host is below: addresses in two of them are not the same.
pub(super) fn vrf(node: &NodeView<'_>, link: &LinkFacts) -> Option<u32> {
    let host = node.namespaces.get(link.netns)?;
    let mut link = link;
    for _ in 0..MASTERS {
        link = host.links.get(&link.master?)?;
        if link.kind.as_deref() == Some("vrf") {
            return Some(link.ifindex);
        }
    }
    None
}
