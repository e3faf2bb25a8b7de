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
use kevtmon_types::settings::{Thresholds, Unit, thresholds};
use serde::{Deserialize, Serialize};

use super::advice::advice;
use super::finding::{Count, Findings, IncidentObjects, Report};
use super::pod_network::{SETTLE, is_of_pod, leads_out, living_pod, netns_of, runs_since, vrf};
use super::{CAPACITY, Context, Diagnosis, IncidentKind, ModelChange, SECOND, Watch, ipam_drift, seconds};
use crate::node::view::NodeView;

#[cfg(test)]
mod tests;

/// As users filter and alert on it.
pub(super) const KIND: &str = "duplicate-pod-ip";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "Two pods of this node have the same address",
    meaning: "Packets for one of them may reach the other, or neither. Either the address was given out while it was in use, \
             often after the records of the address management were lost or restored, or a pod has set it itself.",
    remedy: "Restart the pod that got the address last, and compare the records of the address management with the pods.",
    severities: &[Severity::Warning],
    counted: "pods",
    thresholds: THRESHOLDS,
    watched_by: Watch::Netlink,
    is_optional: false,
    start: |thresholds| Box::new(DuplicatePodIp::new(thresholds)),
};

thresholds! {
    /// Pods that have the same address are reported after this time.
    AFTER = "duplicate_pod_ip_seconds", default 5, Unit::Seconds;
}

/// Pods that one incident names.
const PODS_MAX: usize = 8;

/// Pods with one address.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Conflict {
    first: BootNs,
    found_at_start: bool,
    is_open: bool,
}

/// A pod by which an address is had.
struct Holder {
    target: Target,
    addressed: AddressedPod,
    since: BootNs,
    /// Whether the kernel tells what changes in its namespace.
    is_heard: bool,
}

/// The diagnosis.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct DuplicatePodIp {
    #[serde(skip)]
    thresholds: Thresholds,
    /// By address and the pods that have it.
    conflicts: BTreeMap<String, Conflict>,
    next: Option<BootNs>,
}

impl DuplicatePodIp {
    pub(super) fn new(thresholds: &Thresholds) -> Self {
        Self { thresholds: thresholds.clone(), conflicts: BTreeMap::new(), next: None }
    }

    fn schedule(&mut self, at: BootNs) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    fn review(&mut self, context: &Context<'_>, findings: &mut Findings) {
        self.next = None;
        // Before the runtimes have told their containers nobody knows who lives.
        let Some(ready) = context.ready else { return };
        let after = seconds(self.thresholds.get(&AFTER));
        let found = conflicts(context.node);
        let gone = self.conflicts.keys().filter(|subject| !found.contains_key(*subject)).cloned();
        for subject in gone.collect::<Vec<_>>() {
            self.end(context, subject, findings);
        }
        for (subject, (address, holders)) in found {
            if !self.conflicts.contains_key(&subject) && self.conflicts.len() >= CAPACITY {
                findings.discard();
                continue;
            }
            let found_at_start = context.now <= ready.saturating_add(2 * SECOND);
            let new = Conflict { first: context.now, found_at_start, is_open: false };
            let conflict = self.conflicts.entry(subject.clone()).or_insert(new);
            let due = conflict.first.saturating_add(after);
            if conflict.is_open {
                continue;
            }
            if due > context.now {
                self.next = Some(self.next.map_or(due, |next| next.min(due)));
                continue;
            }
            conflict.is_open = true;
            findings.report(report(context, conflict, subject, address, holders));
        }
    }

    fn end(&mut self, context: &Context<'_>, subject: String, findings: &mut Findings) {
        let Some(conflict) = self.conflicts.remove(&subject) else { return };
        if conflict.is_open {
            let gone = subject.split('/').skip(1).any(|uid| netns_of(context.node, uid).is_none());
            let reason = if gone { CloseReason::SubjectGone } else { CloseReason::Resolved };
            findings.close(subject, reason, None);
        }
    }
}

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
    let (since, is_heard) = (runs_since(node, netns), !namespace.is_unheard());
    Some((vrf(node, end), Holder { target, addressed, since, is_heard }))
}

fn report(
    context: &Context<'_>,
    conflict: &Conflict,
    subject: String,
    address: IpAddr,
    holders: Vec<Holder>,
) -> Report {
    let count = u64::try_from(holders.len()).unwrap_or(u64::MAX);
    let confidence =
        if holders.iter().all(|holder| holder.is_heard) { Confidence::Certain } else { Confidence::Likely };
    let target = holders.first().map(|holder| Shared::new(holder.target.clone()));
    let more = holders.len().saturating_sub(PODS_MAX);
    let pods: Vec<AddressedPod> = holders.into_iter().take(PODS_MAX).map(|holder| holder.addressed).collect();
    let both = AddressConflict { address, pods };
    let caused_by = ipam_drift::of(context, &both);
    Report {
        severity: Severity::Warning,
        confidence,
        summary: summary(address, &both.pods, more),
        ruled_out: Some(vec!["neither is in the network namespace of the other or of the host".to_owned()]),
        advice: Some(steps(address, &both.pods)),
        objects: IncidentObjects {
            target,
            address_conflict: Some(Box::new(both)),
            ..IncidentObjects::default()
        },
        first: conflict.first,
        last: context.now,
        evidence: Vec::new(),
        count: Count::Total(count),
        found_at_start: conflict.found_at_start,
        caused_by,
        subject,
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

impl Diagnosis for DuplicatePodIp {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn event(&mut self, context: &Context<'_>, event: &Event, _findings: &mut Findings) {
        if matches!(event.kind, Kind::LinkCreated | Kind::LinkChanged | Kind::LinkMoved | Kind::LinkDeleted) {
            self.schedule(context.now.saturating_add(SETTLE));
        }
    }

    fn change(&mut self, context: &Context<'_>, change: &ModelChange<'_>, _findings: &mut Findings) {
        if matches!(
            change,
            ModelChange::Netns(_)
                | ModelChange::NetnsGone(_)
                | ModelChange::Addresses(_)
                | ModelChange::Container(_)
                | ModelChange::Runtime
                | ModelChange::Ready
        ) {
            self.schedule(context.now.saturating_add(SETTLE));
        }
    }

    fn tick(&mut self, context: &Context<'_>, findings: &mut Findings) {
        if self.next.is_some_and(|next| next <= context.now) {
            self.review(context, findings);
        }
    }

    fn deadline(&self) -> Option<BootNs> {
        self.next
    }

    fn resume(&mut self, context: &Context<'_>, event: &Event) -> Option<String> {
        let (incident, conflict) = (event.incident.as_ref()?, event.address_conflict.as_ref()?);
        let mut uids: Vec<&str> = conflict.pods.iter().map(|pod| pod.pod.uid.as_str()).collect();
        uids.sort_unstable();
        let subject = format!("{}/{}", conflict.address, uids.join("/"));
        let first = context.clock.boot_ns(&incident.first_seen).unwrap_or(context.now);
        let known = Conflict { first, found_at_start: incident.found_at_start, is_open: true };
        self.conflicts.insert(subject.clone(), known);
        Some(subject)
    }

    saved_without_thresholds!();
}
