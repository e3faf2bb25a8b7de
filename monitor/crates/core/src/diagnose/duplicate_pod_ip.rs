//! Several pods that live on the node have the same address: what is sent to it reaches one of them at most.
//!
//! Found by the addresses that the kernel tells of their own network namespaces; what runtimes and labels tell of them counts
//! for nothing here. Pods that use the host's network share its addresses, and the containers of one pod those of its
//! namespace: both are in order.

use std::collections::BTreeMap;
use std::net::IpAddr;

use kevtmon_event::wording::pod_label;
use kevtmon_event::{
    AddressConflict, AddressedPod, Advice, CloseReason, Confidence, Event, Kind, LinkPeer, Severity, Shared,
    Target, form,
};
use kevtmon_observation::{BootNs, NsInum};
use kevtmon_types::escape::name;
use kevtmon_types::settings::{Threshold, Unit, thresholds};
use serde::{Deserialize, Serialize};

use super::advice::advice;
use super::conditions::{Condition, Conditions, Look, Seen, start};
use super::finding::{Count, Findings, IncidentObjects, Report};
use super::pod_network::{is_of_pod, leads_out, living_pod, netns_of, runs_since, vrf};
use super::{Alert, Context, IncidentKind, ModelChange, SECOND, Watch, ipam_drift};
use crate::node::view::NodeView;

#[cfg(test)]
mod tests;

pub(super) const KIND: &str = "duplicate-pod-ip";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "Two pods of this node have the same address",
    symptom: "a pod is unreachable",
    names: "the pod with the same address",
    opens: "Two living pods on the node have the same address for 5 s.",
    alert: Alert::Open { severity: Severity::Critical, minutes: 0 },
    meaning: "Packets for one of them may reach the other, or neither. Either the address was given out while it was in use, \
             often after the records of the address management were lost or restored, or a pod has set it itself.",
    remedy: "Restart the pod that got the address last, and compare the records of the address management with the pods.",
    severities: &[Severity::Warning],
    counted: "pods",
    thresholds: THRESHOLDS,
    watched_by: Watch::Netlink,
    is_optional: false,
    start: start::<DuplicatePodIp>,
};

thresholds! {
    /// Pods that have the same address are reported after this time.
    AFTER = "duplicate_pod_ip_seconds", default 5, Unit::Seconds;
}

/// So long after the start what is found was so before.
const START: BootNs = 2 * SECOND;
const PODS_MAX: usize = 8;

struct Holder {
    target: Target,
    addressed: AddressedPod,
    since: BootNs,
    /// Whether the kernel tells what changes in its namespace.
    is_heard: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct DuplicatePodIp {}

/// Addresses that several pods have, by what identifies such a conflict.
fn conflicts(node: &NodeView<'_>) -> BTreeMap<String, (IpAddr, Vec<Holder>)> {
    let mut by_address: BTreeMap<IpAddr, Vec<(NsInum, u32)>> = BTreeMap::new();
    for (netns, namespace) in node.namespaces.all().filter(|(netns, _)| *netns != node.host_netns) {
        for known in namespace.addresses.iter().filter(|known| is_of_pod(known.address)) {
            by_address.entry(known.address).or_default().push((netns, known.ifindex));
        }
    }
    let mut found = BTreeMap::new();
    for (address, places) in by_address.into_iter().filter(|(_, places)| places.len() > 1) {
        let mut of_vrf: BTreeMap<Option<u32>, Vec<Holder>> = BTreeMap::new();
        for (netns, ifindex) in places {
            if let Some((vrf, holder)) = holder(node, netns, ifindex) {
                let holders = of_vrf.entry(vrf).or_default();
                // One pod may have two sandboxes for a moment.
                if !holders.iter().any(|known| known.addressed.pod.uid == holder.addressed.pod.uid) {
                    holders.push(holder);
                }
            }
        }
        for mut holders in of_vrf.into_values().filter(|holders| holders.len() > 1) {
            let mut uids: Vec<&str> =
                holders.iter().map(|holder| holder.addressed.pod.uid.as_str()).collect();
            uids.sort_unstable();
            let subject = format!("{address}/{}", uids.join("/"));
            holders.sort_by(|one, other| {
                (one.since, &one.addressed.pod.uid).cmp(&(other.since, &other.addressed.pod.uid))
            });
            found.insert(subject, (address, holders));
        }
    }
    found
}

/// The pod that has an address by an interface that leads to the host, with the VRF there.
fn holder(node: &NodeView<'_>, netns: NsInum, ifindex: u32) -> Option<(Option<u32>, Holder)> {
    let end = node.host_end(netns, ifindex).filter(|end| end.netns == node.host_netns)?;
    if !leads_out(node, netns, ifindex) {
        return None;
    }
    let (target, pod) = living_pod(node, netns)?;
    let namespace = node.namespaces.get(netns)?;
    let ifname = namespace.links.get(&ifindex)?.ifname.clone();
    let host_end =
        LinkPeer { ifindex: end.ifindex, netns: Some(end.netns), ifname: Some(end.ifname.clone()) };
    let addressed = AddressedPod { pod, netns, ifindex, ifname, host_end };
    let (since, is_heard) = (runs_since(node, netns), !namespace.unheard);
    Some((vrf(node, end), Holder { target, addressed, since, is_heard }))
}

fn report(context: &Context<'_>, subject: String, address: IpAddr, holders: Vec<Holder>) -> Report {
    let count = u64::try_from(holders.len()).unwrap_or(u64::MAX);
    let confidence =
        if holders.iter().all(|holder| holder.is_heard) { Confidence::Certain } else { Confidence::Likely };
    let target = holders.first().map(|holder| Shared::new(holder.target.clone()));
    let more = holders.len().saturating_sub(PODS_MAX);
    let pods: Vec<AddressedPod> = holders.into_iter().take(PODS_MAX).map(|holder| holder.addressed).collect();
    let both = AddressConflict { address, pods };
    let summary = summary(address, &both.pods, more);
    Report {
        ruled_out: Some(vec!["neither is in the network namespace of the other or of the host".to_owned()]),
        advice: Some(steps(address, &both.pods)),
        count: Count::Total(count),
        found_at_start: context.ready.is_some_and(|ready| context.now <= ready.saturating_add(START)),
        caused_by: ipam_drift::of(context, &both),
        objects: IncidentObjects {
            target,
            address_conflict: Some(Box::new(both)),
            ..IncidentObjects::default()
        },
        ..Report::new(subject, Severity::Warning, confidence, summary, context.now)
    }
}

fn summary(address: IpAddr, pods: &[AddressedPod], more: usize) -> String {
    let labels: Vec<String> = pods.iter().map(label).collect();
    let all = if pods.len() == 2 { "both" } else { "all" };
    let list = match labels.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) if more == 0 => format!("{} and {last}", others.join(", ")),
        _ => format!("{} and {more} more", labels.join(", ")),
    };
    format!("pods {list} of this node {all} have the address {address}")
}

/// `lijiaob/etcd1-0 (eth0, host end cali9118ebbb10b)`
fn label(of: &AddressedPod) -> String {
    let end = of.host_end.ifname.as_deref().unwrap_or_default();
    format!("{} ({}, host end {})", pod_label(&of.pod), name(&of.ifname), name(end))
}

fn steps(address: IpAddr, pods: &[AddressedPod]) -> Vec<Advice> {
    let address = address.to_string();
    let text = "see which of them this node reaches by the address";
    let mut steps = vec![advice(form::SHOW_ROUTE, text, &["ip", "route", "get", &address])];
    for pod in pods.iter().take(2) {
        let label = pod_label(&pod.pod);
        steps.push(advice(form::TELL_POD, "show what is known of the pod", &["kevtmon", "why", &label]));
    }
    steps
}

impl Conditions for DuplicatePodIp {
    const SPEC: &'static IncidentKind = &SPEC;
    const HOLD: &'static Threshold = &AFTER;
    type Memory = ();

    fn event(&mut self, _: &Seen<'_, ()>, event: &Event, _: &mut Findings) -> Look {
        Look::soon_if(matches!(
            event.kind,
            Kind::LinkCreated | Kind::LinkChanged | Kind::LinkMoved | Kind::LinkDeleted
        ))
    }

    fn change(&mut self, _: &Seen<'_, ()>, change: &ModelChange<'_>, _: &mut Findings) -> Look {
        Look::soon_if(matches!(
            change,
            ModelChange::Netns(_)
                | ModelChange::NetnsGone(_)
                | ModelChange::Addresses(_)
                | ModelChange::Container(_)
                | ModelChange::Runtime
                | ModelChange::Ready
        ))
    }

    fn conditions(&mut self, seen: &Seen<'_, ()>, _: &mut Findings) -> Option<Vec<Condition<()>>> {
        // Which pods live is not known before the runtimes have reported their containers.
        seen.context.ready?;
        let found = conflicts(seen.context.node).into_iter();
        let report = |(subject, (address, holders))| report(seen.context, subject, address, holders);
        Some(found.map(report).map(Condition::new).collect())
    }

    fn ended(&self, context: &Context<'_>, subject: &str, _: &()) -> Option<CloseReason> {
        let gone = subject.split('/').skip(1).any(|uid| netns_of(context.node, uid).is_none());
        Some(if gone { CloseReason::SubjectGone } else { CloseReason::Resolved })
    }

    fn resume(&mut self, _: &Context<'_>, event: &Event) -> Option<(String, ())> {
        let conflict = event.address_conflict.as_ref()?;
        let mut uids: Vec<&str> = conflict.pods.iter().map(|pod| pod.pod.uid.as_str()).collect();
        uids.sort_unstable();
        Some((format!("{}/{}", conflict.address, uids.join("/")), ()))
    }
}
