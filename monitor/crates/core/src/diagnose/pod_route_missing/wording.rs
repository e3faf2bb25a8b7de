//! Summary, what is in order, and next steps.

use kevtmon_event::wording::{actor_phrase, pod_label, target_label};
use kevtmon_event::{Advice, form};
use kevtmon_observation::{FoundRoute, NeighborKey, iff};
use kevtmon_types::escape::name;

use super::routed::RoutedPod;
use super::{Down, Missing};
use crate::diagnose::advice::{advice, set_up};
use crate::diagnose::gateway_neighbor_lost::health::{Health, health};
use crate::node::view::NodeView;
use crate::route::by;

/// What Calico calls the host's ends of pods.
const CALICO: &str = "cali";

pub(super) fn summary(node: &NodeView<'_>, missing: &Missing, pod: &RoutedPod) -> String {
    let label = target_label(&pod.target).unwrap_or_else(|| format!("pod {}", pod_label(&pod.pod)));
    let device = name(&pod.device.ifname);
    let mut text =
        format!("this node has no route to {label} at {}, which is reached by {device}", pod.address);
    text.push_str(&match missing.found {
        FoundRoute::Nothing => ": no route matches".to_owned(),
        FoundRoute::Discards => ": a blackhole route discards packets".to_owned(),
        FoundRoute::Refuses => ": a route refuses packets".to_owned(),
        FoundRoute::Default { ifindex } => {
            let link = node.link_at(node.host_netns, ifindex);
            let by =
                link.map_or_else(|| format!("interface {ifindex}"), |link| name(&link.ifname).into_owned());
            format!(": packets take the default route by {by}")
        }
        FoundRoute::By { .. } | FoundRoute::Other => String::new(),
    });
    let by = |down: &Down| by(down.actor.as_deref());
    let end = name(&pod.end.ifname);
    if missing.is_end_down == Some(true) {
        text.push_str(&match &missing.set_down {
            Some(down) => format!("; its host end {end} was set down{}", by(down)),
            None => format!("; its host end {end} is down"),
        });
    } else if let Some(down) = &missing.went_with {
        let by = down.actor.as_deref().map(actor_phrase);
        let by = by.map_or_else(String::new, |by| format!(" by {by}"));
        text.push_str(&format!("; the route likely went when {end} was set down{by}"));
    } else if missing.is_deleted {
        match missing.deletion_told.as_ref().filter(|told| told.actor.is_some()) {
            Some(told) => text.push_str(&format!("; the route was deleted{}", by(told))),
            None => text.push_str("; the route was deleted; actor unknown"),
        }
    }
    text
}

pub(super) fn healthy(node: &NodeView<'_>, pod: &RoutedPod) -> Vec<String> {
    let (end, inner) = (name(&pod.end.ifname), name(&pod.inner.ifname));
    let mut healthy = Vec::new();
    if pod.end.flags & iff::UP != 0 {
        healthy.push(format!("its host end {end} is up"));
    }
    if pod.inner.flags & iff::UP != 0 {
        healthy.push(format!("{inner} in the pod is up"));
    }
    healthy.push(format!("{inner} in the pod has the address {}", pod.address));
    healthy.push("no other pod of this node has it".to_owned());
    if let Some(gateway) = pod.gateway {
        let key = NeighborKey { netns: pod.netns, ifindex: pod.inner.ifindex, address: gateway };
        if matches!(health(node, key), Health::Correct | Health::Static | Health::Usable) {
            healthy.push(format!("the neighbor entry of its gateway {gateway} is in place"));
        }
    }
    healthy
}

pub(super) fn steps(pod: &RoutedPod) -> Vec<Advice> {
    let (address, label) = (pod.address.to_string(), pod_label(&pod.pod));
    let agent = match pod.end.ifname.starts_with(CALICO) {
        true => "calico-node on this node, which adds the routes of all pods when it starts",
        false => "the network plugin's agent on this node, if it has one that adds routes",
    };
    // Not `add`: the route that discards or refuses packets may be one to this very address.
    let text = format!("add the route now; what else is missing comes back with a restart of {agent}");
    let add = ["ip", "route", "replace", &address, "dev", &pod.device.ifname, "scope", "link"];
    let mut show = vec!["ip", "route", "show", "match", &address];
    if pod.address.is_ipv6() {
        show.insert(1, "-6");
    }
    let show = advice(form::SHOW_ROUTES, "see which routes of the node match the address", &show);
    // No route leads by an interface that is down.
    let set_up = (pod.end.flags & iff::UP == 0).then(|| {
        let text = "set the host end of the interface up; while it is down, nothing passes, and no route can be added";
        set_up(&pod.end.ifname, text)
    });
    let add = advice(form::ADD_ROUTE, &text, &add);
    let tell = advice(form::TELL_POD, "show what is known of the pod", &["kevtmon", "why", &label]);
    [show].into_iter().chain(set_up).chain([add, tell]).collect()
}
