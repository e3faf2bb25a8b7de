//! What to do about a lost gateway, and what was found healthy. Both follow from the model as it is now.

use kevtmon_event::{Actor, Advice, Container, Pod, Target, form};
use kevtmon_observation::{BootNs, CniPod, LinkFacts, LlAddr, NeighborKey, RouteFacts, RpFilter, iff};
use kevtmon_types::escape::name;

use super::bridge_mac::outdated;
use super::host_side::{Act, Explanation, FORWARDS_NOTHING, HostFault, host_fault, place};
use super::{Fault, FaultReason, SECOND, rp_filter};
use crate::diagnose::Context;
use crate::diagnose::advice::{InNetns, advice, list_sandboxes, restart, set_up};
use crate::diagnose::pod_network::is_deletion_feared;
use crate::node::view::NodeView;

/// A removal of another sandbox is feared for so long.
const STALE_DEL: BootNs = 120 * SECOND;

pub(super) fn advice_for(
    context: &Context<'_>,
    fault: &Fault,
    key: NeighborKey,
    target: &Target,
) -> Vec<Advice> {
    let mut steps = Vec::new();
    let link = context.node.link_at(key.netns, key.ifindex);
    if let Some((link, inside)) = link.zip(InNetns::of(context, key.netns, target)) {
        let look = ["neigh", "show", "dev", &link.ifname];
        let text = match is_route_gone(context.node, key, link) {
            true => {
                "show the entry; the default route by the gateway is missing, too: it went with the interface or its \
                 address, and must be added again"
            }
            false => "show the entry",
        };
        steps.push(inside.advice(form::SHOW_ENTRY, text, &look));
        if link.flags & iff::UP == 0 {
            let text = "set the interface up again; its routes and static entries went with it, and must be added \
                        again";
            steps.push(inside.set_up(&link.ifname, text));
        }
        if let Some(found) = host_fault(context.node, key) {
            steps.extend(about_host(context.node, fault, found));
        }
        steps.extend(rp_filter::steps(context.node, fault, key));
        // One that was learned is mended by the kernel, and would be no longer if it were static.
        if let Some(lladdr) = replaceable(context.node, fault, key).filter(|_| !fault.is_outdated()) {
            let (address, lladdr) = (key.address.to_string(), lladdr.to_string());
            let words =
                ["neigh", "replace", &address, "lladdr", &lladdr, "nud", "permanent", "dev", &link.ifname];
            let text = "put the entry back; packets flow again at once";
            steps.push(inside.advice(form::REPLACE_ENTRY, text, &words));
        }
        steps.extend(outdated(context.node, key).and_then(|bridge| keep_mac(fault, bridge)));
    }
    if fault.is_outdated() {
        return steps;
    }
    match (target.confirmed_pod(), &target.container) {
        (Some(pod), container) => steps.extend(about_pod(context, fault, pod, container.as_ref())),
        (None, Some(container)) => {
            let mut text = "restart the container, if its runtime made its network: it gets a new one; what others have put \
                            into it is lost"
                .to_owned();
            if context.node.containers.is_shared(key.netns, &container.id) {
                text.push_str("; then restart the containers that share it: they stay in the old one");
            }
            let restart = restart(context.node, container);
            steps.extend(restart.map(|(form, command)| advice(form, &text, &command)));
        }
        _ => {}
    }
    steps
}

/// What to do about what is wrong on the host's side. That the host answers for others is expected of it only where it was
/// found to be why nothing answers.
fn about_host(node: &NodeView<'_>, fault: &Fault, found: HostFault<'_>) -> Vec<Advice> {
    let (end, is_proxy_off) = match found {
        HostFault::Down(link) => {
            let what = match link.kind.as_deref() {
                Some("bridge") => "the bridge that the host end of the interface is a port of",
                _ => "the host end of the interface",
            };
            let text = format!("set {what} up; while it is down, nothing passes");
            return vec![set_up(&link.ifname, &text)];
        }
        HostFault::ProxyOff(end) => (end, true),
        HostFault::ForwardingOff(end) => (end, false),
        // Where it led, nothing here tells.
        HostFault::NoRoute(_) => return Vec::new(),
    };
    let Some(explanation) = &fault.explanation else { return Vec::new() };
    let again =
        "have the host answer for the gateway again; an agent of the network plugin does so when it starts";
    let of_end = |sysctl: &str, text: &str| {
        let setting = format!("net/ipv4/conf/{}/{sysctl}=1", end.ifname);
        advice(form::SET_SYSCTL, text, &["sysctl", "-w", &setting])
    };
    let mut steps = Vec::new();
    if is_proxy_off {
        steps.push(of_end("proxy_arp", again));
    }
    // It answers for others only where it forwards what comes by the interface.
    let is_told = !is_proxy_off && explanation.text.starts_with(FORWARDS_NOTHING);
    if is_told || node.host_sysctls.forwards_nothing() {
        let text = "have the host forward again, what comes by any interface; until then it answers for no gateway either";
        steps.push(advice(form::SET_SYSCTL, text, &["sysctl", "-w", "net/ipv4/ip_forward=1"]));
    } else if !is_proxy_off {
        steps.push(of_end("forwarding", again));
    } else if node.host_sysctls.forwards_ipv4(end.ifindex) == Some(false) {
        let text = "have the host forward what comes by the interface, too: it answers for no gateway where it does not";
        steps.push(of_end("forwarding", text));
    }
    steps
}

fn keep_mac(fault: &Fault, bridge: &LinkFacts) -> Option<Advice> {
    fault.explanation.as_ref().filter(|known| known.blames(bridge, &[Act::OtherMac]))?;
    let text = match fault.is_outdated() {
        true => {
            "have the bridge keep this MAC address, whatever ports come and go; the entry was learned, and the kernel mends it \
             within a minute if the pod sends anything"
        }
        false => "have the bridge keep this MAC address, whatever ports come and go",
    };
    let mac = bridge.mac.as_ref()?.to_string();
    Some(advice(form::SET_MAC, text, &["ip", "link", "set", "dev", &bridge.ifname, "address", &mac]))
}

/// What to do with the pod. Where the removal of an older sandbox of its name may be failing, that is what took the
/// entry, and it would take the next pod's: then the pod is better not deleted.
fn about_pod(
    context: &Context<'_>,
    fault: &Fault,
    pod: &Pod,
    container: Option<&Container>,
) -> Option<Advice> {
    let (namespace, pod_name) = (pod.namespace.as_deref()?, pod.name.as_deref()?);
    let kubelet = fault.objects.actor.as_deref().is_some_and(is_of_kubelet);
    let named = CniPod { namespace: namespace.to_owned(), name: pod_name.to_owned(), uid: None };
    let is_feared = is_deletion_feared(context, namespace, pod_name)
        || has_stale_del(context, &named, own_sandbox(pod, container));
    if kubelet || is_feared || has_older_sandbox(context.node, pod, container) {
        let (form, command) = list_sandboxes(context.node, container?, pod)?;
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

/// Whether another sandbox of the pod than this one is being removed, or was of late: an incident may be about to open.
fn has_stale_del(context: &Context<'_>, pod: &CniPod, own: Option<&str>) -> bool {
    let cni = context.node.cni;
    let is_of_late = |at: BootNs| context.now < at.saturating_add(STALE_DEL);
    cni.of_pod(&pod.namespace, &pod.name).any(|(_, known)| known.stale_at.is_some_and(is_of_late))
        || own.is_some_and(|own| cni.is_other_being_deleted(pod, own))
}

fn own_sandbox<'a>(pod: &'a Pod, container: Option<&'a Container>) -> Option<&'a str> {
    pod.sandbox_id.as_deref().or(container.map(|container| container.id.as_str()))
}

fn has_older_sandbox(node: &NodeView<'_>, pod: &Pod, container: Option<&Container>) -> bool {
    let own = own_sandbox(pod, container);
    node.containers.present().filter(|facts| facts.is_sandbox() && Some(facts.id.as_str()) != own).any(
        |facts| {
            facts.pod.as_ref().is_some_and(|other| {
                Some(&other.namespace) == pod.namespace.as_ref() && Some(&other.name) == pod.name.as_ref()
            })
        },
    )
}

/// Whether packets pass it: it was set up, and so was its other end.
fn is_up(link: &LinkFacts) -> bool {
    let flags = iff::UP | iff::LOWER_UP;
    link.flags & flags == flags
}

/// The address of an entry that would work: where both ends of the pair and the bridge are up, the route is in use, and
/// the host answers by this address.
fn replaceable<'a>(node: &NodeView<'a>, fault: &Fault, key: NeighborKey) -> Option<&'a LlAddr> {
    let own = node.link_at(key.netns, key.ifindex);
    let own = own.filter(|link| is_up(link) && fault.reason != FaultReason::Failed);
    let other = node.host_end(key.netns, key.ifindex).filter(|end| is_up(end));
    own.and(other).filter(|_| is_in_use(node, key))?;
    node.gateway_link(key).filter(|link| is_up(link))?.mac.as_ref()
}

fn is_in_use(node: &NodeView<'_>, key: NeighborKey) -> bool {
    node.namespaces
        .get(key.netns)
        .is_some_and(|namespace| namespace.in_use.contains(&(key.ifindex, key.address)))
}

/// Whether the route that led to the gateway is known to have gone with the interface, which is up again.
fn is_route_gone(node: &NodeView<'_>, key: NeighborKey, link: &LinkFacts) -> bool {
    let Some(namespace) = node.namespaces.get(key.netns) else { return false };
    let leads_there =
        |route: &RouteFacts| (route.ifindex, route.gateway) == (Some(key.ifindex), Some(key.address));
    link.flags & iff::UP != 0
        && node.gateway(key).is_some_and(|gateway| gateway.went_with_link)
        && !namespace.is_doubted()
        && !namespace.is_dead_gateway(key.ifindex, key.address)
        && !namespace.may_have_been_deleted(key.ifindex, key.address)
        && !namespace.routes.iter().any(leads_there)
}

/// What the model shows to be healthy. What explains the fault and was mended since is not ruled out.
pub(super) fn ruled_out(
    node: &NodeView<'_>,
    key: NeighborKey,
    explanation: Option<&Explanation>,
) -> Vec<String> {
    let is_blamed =
        |link: &LinkFacts, acts: &[Act]| explanation.is_some_and(|known| known.blames(link, acts));
    let is_fine = |link: &LinkFacts| is_up(link) && !is_blamed(link, &[Act::Down]);
    let Some(link) = node.link_at(key.netns, key.ifindex) else { return Vec::new() };
    let ifname = name(&link.ifname);
    let mut healthy = Vec::new();
    if is_fine(link) {
        healthy.push(format!("{ifname} is up"));
    }
    if is_in_use(node, key) {
        healthy.push(format!("the default route via {} is in place", key.address));
    }
    let Some(end) = node.host_end(key.netns, key.ifindex) else { return healthy };
    if is_fine(end) {
        healthy.push(format!("its host end {} is up", name(&end.ifname)));
    }
    let is_answered_for = |end: &LinkFacts| {
        let sysctls = node.host_sysctls;
        let answers = sysctls.answers_arp_for_others(end.ifindex) == Some(true);
        answers && sysctls.forwards_ipv4(end.ifindex) == Some(true) && end.netns == node.host_netns
    };
    let off = [Act::ProxyOff, Act::ForwardingOff, Act::ForwardsNothing];
    if key.address.is_ipv4() && end.master.is_none() && is_answered_for(end) && !is_blamed(end, &off) {
        healthy.push(format!("proxy_arp is on for its host end {}", name(&end.ifname)));
    }
    let Some(gateway) = node.gateway_link(key) else { return healthy };
    let is_unchecked = node.host_sysctls.rp_filter(gateway.ifindex) == Some(RpFilter::Off);
    let is_hosts = gateway.netns == node.host_netns && key.address.is_ipv4();
    if is_hosts && is_unchecked && !is_blamed(gateway, &[Act::RpFilter, Act::OtherRoute]) {
        healthy.push(format!("rp_filter is off for {}", place(gateway)));
    }
    if gateway.ifindex != end.ifindex && is_fine(gateway) {
        healthy.push(format!("the bridge {} is up", name(&gateway.ifname)));
    }
    let former = node.gateway(key).and_then(|gateway| gateway.static_lladdr.as_ref());
    if let Some(former) = former.filter(|former| gateway.mac.as_ref() == Some(former)) {
        healthy.push(format!("{} still has the MAC address {former} of the entry", name(&gateway.ifname)));
    }
    healthy
}
