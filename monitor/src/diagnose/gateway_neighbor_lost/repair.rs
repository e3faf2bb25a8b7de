//! What to do about a lost gateway, and what was found healthy. Both follow from the model as it is now.

use super::{Fault, FaultReason};
use crate::diagnose::Context;
use crate::diagnose::advice::{advice, in_namespace, list_sandboxes, restart};
use crate::escape::name;
use crate::event::{Actor, Advice, Container, Form, NamedProcess, Pod, Target, form};
use crate::node::view::NodeView;
use crate::observation::{LinkFacts, LlAddr, NeighborKey, iff};

/// The incident's advice.
pub(super) fn advice_for(
    context: &Context<'_>,
    fault: &Fault,
    key: NeighborKey,
    target: &Target,
) -> Vec<Advice> {
    let mut steps = Vec::new();
    if let (Some(link), Some(inside)) = (link(context.node, key), Inside::of(context, key, target)) {
        let look = ["neigh", "show", "dev", &link.ifname];
        steps.push(inside.advice(form::SHOW_ENTRY, "look at the entry", &look));
        let end = context.node.host_end(key.netns, key.ifindex);
        let is_down = |end: &&LinkFacts| end.netns == context.node.host_netns && end.flags & iff::UP == 0;
        if let Some(end) = end.filter(is_down) {
            let text = "set the host end of the interface up; while it is down, nothing passes";
            let words = ["ip", "link", "set", &end.ifname, "up"];
            steps.push(advice(form::SET_UP, text, &words));
        }
        if let Some(lladdr) = replaceable(context.node, fault, key) {
            let (address, lladdr) = (key.address.to_string(), lladdr.to_string());
            let words =
                ["neigh", "replace", &address, "lladdr", &lladdr, "nud", "permanent", "dev", &link.ifname];
            let text = "put the entry back; packets flow again at once";
            steps.push(inside.advice(form::REPLACE_ENTRY, text, &words));
        }
    }
    match (target.confirmed_pod(), &target.container) {
        (Some(pod), container) => steps.extend(about_pod(context.node, fault, pod, container.as_ref())),
        (None, Some(container)) => {
            let text = "restart the container, if its runtime made its network: it gets a new one; what others have put into \
                        it is lost";
            let restart = restart(context.node, container);
            steps.extend(restart.map(|(form, command)| advice(form, text, &command)));
        }
        _ => {}
    }
    steps
}

/// What to do with the pod. Where the removal of an older sandbox of its name may be failing, that is what took the
/// entry, and it would take the next pod's: then the pod is better not deleted.
fn about_pod(node: &NodeView<'_>, fault: &Fault, pod: &Pod, container: Option<&Container>) -> Option<Advice> {
    let (namespace, pod_name) = (pod.namespace.as_deref()?, pod.name.as_deref()?);
    let kubelet = fault.objects.actor.as_deref().is_some_and(is_of_kubelet);
    let is_failing = node.cni.has_failing_of(namespace, pod_name);
    if kubelet || is_failing || has_older_sandbox(node, pod, container) {
        let (form, command) = list_sandboxes(node, container?, pod)?;
        let text = "look for older sandboxes of this pod: while the removal of one fails, do not delete the pod, or its \
                    successor loses its network too";
        return Some(advice(form, text, &command));
    }
    let text = "delete the pod; its controller makes a new one with a new network";
    Some(advice(form::DELETE_POD, text, &["kubectl", "-n", namespace, "delete", "pod", pod_name]))
}

/// Whether the kubelet may have started it, as it starts network plugins. Only withholds advice, so a name is enough.
fn is_of_kubelet(actor: &Actor) -> bool {
    actor.unit.as_deref() == Some("kubelet.service")
        || actor.ancestors.iter().any(|ancestor| ancestor.comm == "kubelet")
}

fn has_older_sandbox(node: &NodeView<'_>, pod: &Pod, container: Option<&Container>) -> bool {
    let own = pod.sandbox_id.as_deref().or(container.map(|container| container.id.as_str()));
    node.containers.present().filter(|facts| facts.is_sandbox() && Some(facts.id.as_str()) != own).any(
        |facts| {
            facts.pod.as_ref().is_some_and(|other| {
                Some(&other.namespace) == pod.namespace.as_ref() && Some(&other.name) == pod.name.as_ref()
            })
        },
    )
}

/// A process in the namespace, through which `ip` gets there.
struct Inside(NamedProcess);

impl Inside {
    fn of(context: &Context<'_>, key: NeighborKey, target: &Target) -> Option<Self> {
        let owner = context.node.namespaces.get(key.netns)?.owner.as_ref().map(|owner| owner.tgid);
        let container = target.container.as_ref().and_then(|container| container.pid);
        let links = in_namespace("net", key.netns);
        Some(Self(NamedProcess { pid: container.or(owner)?, seen_ns: context.now.to_string(), links }))
    }

    fn advice(&self, form: &'static Form, text: &str, words: &[&str]) -> Advice {
        let NamedProcess { pid, .. } = &self.0;
        let pid_text = pid.to_string();
        let command = [&["nsenter", "-t", &pid_text, "-n", "ip"][..], words].concat();
        Advice { process: Some(self.0.clone()), ..advice(form, text, &command) }
    }
}

/// The interface of the entry, if it still exists.
fn link<'a>(node: &NodeView<'a>, key: NeighborKey) -> Option<&'a LinkFacts> {
    node.namespaces.get(key.netns)?.links.get(&key.ifindex)
}

/// Whether packets pass it: it was set up, and so was its other end.
fn is_up(link: &LinkFacts) -> bool {
    let flags = iff::UP | iff::LOWER_UP;
    link.flags & flags == flags
}

/// The address of an entry that would work: where both ends of the pair and the bridge are up, the route is in use, and
/// the host answers by this address.
fn replaceable<'a>(node: &NodeView<'a>, fault: &Fault, key: NeighborKey) -> Option<&'a LlAddr> {
    let own = link(node, key).filter(|link| is_up(link) && fault.reason != FaultReason::Failed);
    let other = node.host_end(key.netns, key.ifindex).filter(|end| is_up(end));
    own.and(other).filter(|_| is_in_use(node, key))?;
    node.gateway_link(key).filter(|link| is_up(link))?.mac.as_ref()
}

fn is_in_use(node: &NodeView<'_>, key: NeighborKey) -> bool {
    node.namespaces
        .get(key.netns)
        .is_some_and(|namespace| namespace.gateways_in_use().contains(&(key.ifindex, key.address)))
}

/// What the model shows to be healthy.
pub(super) fn ruled_out(node: &NodeView<'_>, key: NeighborKey) -> Vec<String> {
    let Some(link) = link(node, key) else { return Vec::new() };
    let ifname = name(&link.ifname);
    let mut healthy = Vec::new();
    if is_up(link) {
        healthy.push(format!("{ifname} is up"));
    }
    if is_in_use(node, key) {
        healthy.push(format!("the default route via {} is in place", key.address));
    }
    let Some(end) = node.host_end(key.netns, key.ifindex) else { return healthy };
    if is_up(end) {
        healthy.push(format!("its host end {} is up", name(&end.ifname)));
    }
    let Some(gateway) = node.gateway_link(key) else { return healthy };
    if gateway.ifindex != end.ifindex && is_up(gateway) {
        healthy.push(format!("the bridge {} is up", name(&gateway.ifname)));
    }
    let namespace = node.namespaces.get(key.netns);
    let former =
        namespace.and_then(|namespace| namespace.gateway(key.ifindex, key.address)?.static_lladdr.as_ref());
    if let Some(former) = former.filter(|former| gateway.mac.as_ref() == Some(former)) {
        healthy.push(format!("{} still has the MAC address {former} of the entry", name(&gateway.ifname)));
    }
    healthy
}
