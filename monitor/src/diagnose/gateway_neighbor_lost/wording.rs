//! Summary and advice of an incident.

use super::{Fault, FaultReason};
use crate::diagnose::advice::{advice, restart};
use crate::event::wording::{actor_phrase, cause_phrase};
use crate::event::{Advice, Event, Pod, Risk, Target};
use crate::node::view::NodeView;
use crate::observation::NeighborKey;

/// What happened to the entry according to an event: `was deleted by calico (pid 28997)`.
pub(super) fn what_happened(event: &Event) -> String {
    let Some(neighbor) = &event.neighbor else {
        return String::new();
    };
    let mut text = match (&neighbor.new_lladdr, &neighbor.new_state) {
        (Some(lladdr), _) => format!("was replaced with {lladdr}"),
        (None, Some(state)) => format!("was downgraded to {state}"),
        (None, None) => "was deleted".to_owned(),
    };
    if let Some(actor) = &event.actor {
        text.push_str(&format!(" by {}", actor_phrase(actor)));
    }
    text.push_str(cause_phrase(&neighbor.cause, event.actor.is_some()));
    text
}

/// The incident's summary.
pub(super) fn summary(fault: &Fault, key: NeighborKey) -> String {
    let Fault { owner, ifname, what_happened, .. } = fault;
    let (label, address) = (&owner.label, key.address);
    let protocol = if address.is_ipv4() { "ARP" } else { "neighbor" };
    match fault.reason {
        FaultReason::Missing => {
            format!(
                "{label} has lost its gateway {address}: its static {protocol} entry on {ifname} {what_happened}"
            )
        }
        FaultReason::WrongLladdr => {
            format!(
                "{label} cannot reach its gateway {address}: its static {protocol} entry on {ifname} {what_happened}"
            )
        }
        FaultReason::Failed => {
            format!(
                "{label} cannot reach its gateway {address}: nothing answers its {protocol} requests on {ifname}"
            )
        }
    }
}

/// The incident's advice.
pub(super) fn advice_for(
    node: &NodeView<'_>,
    fault: &Fault,
    key: NeighborKey,
    target: &Target,
) -> Vec<Advice> {
    let mut steps = Vec::new();
    let ifname = fault.ifname.as_str();
    let pid = target.container.as_ref().and_then(|container| container.pid).map(|pid| pid.to_string());
    if let Some(pid) = &pid {
        let inside = ["nsenter", "-t", pid, "-n", "ip", "neigh"];
        steps.push(advice(
            "look at the entry",
            Risk::Read,
            &[&inside[..], &["show", "dev", ifname]].concat(),
        ));
        let former = node.namespaces.get(key.netns).and_then(|known| known.gateway(key.ifindex, key.address));
        let lladdr = node
            .gateway_lladdr(key)
            .or_else(|| former.and_then(|gateway| gateway.static_lladdr.as_ref()))
            .filter(|_| fault.reason != FaultReason::Failed)
            .map(ToString::to_string);
        if let Some(lladdr) = lladdr {
            let address = key.address.to_string();
            let replace = ["replace", &address, "lladdr", &lladdr, "nud", "permanent", "dev", ifname];
            steps.push(advice(
                "put the entry back; packets flow again at once",
                Risk::Restart,
                &[&inside[..], &replace].concat(),
            ));
        }
    }
    match (&target.pod, &target.container) {
        (Some(Pod { namespace: Some(namespace), name: Some(name), .. }), _) => steps.push(advice(
            "delete the pod; its controller makes a new one with a new network",
            Risk::Restart,
            &["kubectl", "-n", namespace, "delete", "pod", name],
        )),
        (None, Some(container)) => steps.extend(
            restart(container)
                .map(|command| advice("restart the container with a new network", Risk::Restart, &command)),
        ),
        _ => {}
    }
    steps
}
