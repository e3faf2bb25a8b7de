//! The node cannot resolve the address of a pod that runs: its neighbor record on the node stays `FAILED`.
//!
//! Found by looks at the neighbor table of the host. That there is no record is normal for a pod to which nothing is sent. A
//! record of before the pod ran is none of the pod's: the address was another's, or nobody's, then.

use std::collections::BTreeMap;
use std::net::IpAddr;

use kevtmon_event::wording::{pod_label, target_label};
use kevtmon_event::{
    Advice, CloseReason, Confidence, Event, Kind, Neighbor, Pod, Severity, Shared, Target, form,
};
use kevtmon_observation::{BootNs, HostNeighbor, LinkFacts, NeighborCause, NeighborKey, NsInum, iff};
use kevtmon_types::escape::name;
use kevtmon_types::settings::{Thresholds, Unit, thresholds};
use serde::{Deserialize, Serialize};

use super::advice::{InNetns, advice, set_up};
use super::downs::{Down, Downs};
use super::finding::{Count, Findings, IncidentObjects, Repeat, Report};
use super::pod_network::{gone, is_of_pod, living_pod, runs_since};
use super::{Alert, CAPACITY, Context, Diagnosis, IncidentKind, ModelChange, SECOND, Watch, seconds, start};
use crate::node::namespaces::Namespace;
use crate::node::view::NodeView;
use crate::route::by;

#[cfg(test)]
mod tests;

pub(super) const KIND: &str = "pod-neighbor-unreachable";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "This node cannot reach one of its pods",
    symptom: "a pod is unreachable",
    names: "the part of the path to the pod that is down",
    opens: "The host cannot resolve the address of a pod for 30 s.",
    alert: Alert::ByHand,
    meaning: "The neighbor record of the pod's address stays unresolved while the pod runs: its interface is down or has lost \
             the address, or ARP is not answered there.",
    remedy: "Check the interface and the address in the pod, as the advice says; restart the pod if its network is \
             gone.",
    severities: &[Severity::Warning],
    counted: "checks",
    thresholds: THRESHOLDS,
    watched_by: Watch::Netlink,
    is_optional: false,
    start: start::<PodNeighborUnreachable>,
};

thresholds! {
    /// A neighbor record of a pod's address that stays unresolved for this time, and for three checks, is reported.
    AFTER = "pod_neighbor_unreachable_seconds", default 30, Unit::Seconds;
}

/// Looks that have to show it.
const LOOKS: u32 = 3;
/// Looks that show no record, after which nobody knows whether it still is so.
const ABSENT_LOOKS: u32 = 3;
/// What was sent to so recently is tried by somebody now.
const RECENT: BootNs = 60 * SECOND;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Record {
    address: IpAddr,
    netns: NsInum,
    uid: String,
    first: BootNs,
    found_at_start: bool,
    /// Looks that showed it.
    looks: u32,
    /// Looks in a row that showed none.
    absent: u32,
    is_open: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct PodNeighborUnreachable {
    #[serde(skip)]
    thresholds: Thresholds,
    /// By pod and address.
    records: BTreeMap<String, Record>,
    #[serde(default)]
    downs: Downs,
}

/// The pod that an entry of the host is of.
struct Owner {
    netns: NsInum,
    target: Target,
    pod: Pod,
    /// The host's end of its veth pair.
    end: LinkFacts,
    /// The interface in the pod.
    inner: LinkFacts,
    /// Whether that has the address.
    has_address: bool,
}

impl PodNeighborUnreachable {
    fn looked(&mut self, context: &Context<'_>, entries: &[HostNeighbor], findings: &mut Findings) {
        let Some(ready) = context.ready else { return };
        let mut seen = Vec::new();
        for entry in entries {
            let Some(owner) = owner(context.node, entry) else { continue };
            let subject = subject(&owner.pod, entry.address);
            if entry.state.is_unresolved() {
                if entry.updated < runs_since(context.node, owner.netns) {
                    continue;
                }
                self.unresolved(context, (ready, entry), &owner, &subject, findings);
            } else {
                self.end(&subject, CloseReason::Resolved, findings);
            }
            seen.push(subject);
        }
        let absent = self.records.keys().filter(|subject| !seen.contains(subject)).cloned();
        for subject in absent.collect::<Vec<_>>() {
            let Some(record) = self.records.get_mut(&subject) else { continue };
            record.absent += 1;
            if !record.is_open {
                self.records.remove(&subject);
            } else if record.absent >= ABSENT_LOOKS {
                self.end(&subject, CloseReason::Expired, findings);
            }
        }
    }

    fn unresolved(
        &mut self,
        context: &Context<'_>,
        (ready, entry): (BootNs, &HostNeighbor),
        owner: &Owner,
        subject: &str,
        findings: &mut Findings,
    ) {
        if !self.records.contains_key(subject) && self.records.len() >= CAPACITY {
            return findings.discard();
        }
        let record = self.records.entry(subject.to_owned()).or_insert_with(|| Record {
            address: entry.address,
            netns: owner.netns,
            uid: owner.pod.uid.clone(),
            first: context.now,
            // The first look of a run of the daemon.
            found_at_start: context.now <= ready.saturating_add(15 * SECOND),
            looks: 0,
            absent: 0,
            is_open: false,
        });
        record.looks = record.looks.saturating_add(1);
        record.absent = 0;
        if record.is_open {
            return findings.repeat(Repeat::new(subject.to_owned(), context.now, Count::More(1)));
        }
        let lasts = context.now >= record.first.saturating_add(seconds(self.thresholds.get(&AFTER)));
        if record.looks >= LOOKS && lasts {
            record.is_open = true;
            // That it does not resolve for another reason is told by what was sent since.
            let is_why =
                |down: &&Down| down.actor.is_some() && down.at <= entry.updated && is_down(&owner.end);
            let down = self.downs.last(owner.end.ifindex).filter(is_why);
            let report = report(context, (record, entry), owner, down, subject.to_owned());
            findings.report(report);
        }
    }

    fn end(&mut self, subject: &str, reason: CloseReason, findings: &mut Findings) {
        if self.records.remove(subject).is_some_and(|record| record.is_open) {
            findings.close(subject.to_owned(), reason, None);
        }
    }

    /// Ends those of pods that do not run any more.
    fn end_gone(&mut self, context: &Context<'_>, findings: &mut Findings) {
        let gone = gone(context, &mut self.records, |known| (&mut known.netns, known.uid.as_str()));
        for subject in gone {
            self.end(&subject, CloseReason::SubjectGone, findings);
        }
    }
}

fn subject(pod: &Pod, address: IpAddr) -> String {
    format!("{}/{address}", pod.uid)
}

/// The living pod whose address an entry is about: behind the veth device of the entry, or behind a port of its bridge.
fn owner(node: &NodeView<'_>, entry: &HostNeighbor) -> Option<Owner> {
    let host = node.host()?;
    let link = host.links.get(&entry.ifindex).filter(|_| is_of_pod(entry.address))?;
    let (end, netns) = match link.kind.as_deref()? {
        "veth" => (link, link.peer.as_ref()?.netns?),
        "bridge" => {
            let has_it = |(netns, namespace): &(NsInum, &Namespace)| {
                *netns != node.host_netns && has(namespace, entry.address)
            };
            let behind = |(netns, _): (NsInum, &Namespace)| {
                let mut ends = host.links.values().filter(|end| end.master == Some(link.ifindex));
                let leads_there =
                    |end: &&LinkFacts| end.peer.as_ref().is_some_and(|peer| peer.netns == Some(netns));
                ends.find(leads_there).map(|end| (end, netns))
            };
            let mut behind = node.namespaces.all().filter(has_it).filter_map(behind);
            // Which of two it is about nobody knows.
            let first = behind.next()?;
            behind.next().is_none().then_some(first)?
        }
        _ => return None,
    };
    let (target, pod) = living_pod(node, netns)?;
    let namespace = node.namespaces.get(netns)?;
    let inner = namespace.links.get(&end.peer.as_ref()?.ifindex)?;
    let has_address = namespace.has_address(inner.ifindex, entry.address);
    let is_its = has_address || pod.ip.contains(&entry.address);
    is_its.then(|| Owner { netns, target, pod, end: end.clone(), inner: inner.clone(), has_address })
}

fn has(namespace: &Namespace, address: IpAddr) -> bool {
    namespace.addresses.iter().any(|known| known.address == address)
}

fn report(
    context: &Context<'_>,
    (record, entry): (&Record, &HostNeighbor),
    owner: &Owner,
    down: Option<&Down>,
    subject: String,
) -> Report {
    let link = context.node.link_at(context.node.host_netns, entry.ifindex);
    let ifname = link.map_or("", |link| &link.ifname);
    // One packet that found nobody may be long ago, and the next would be answered.
    let is_tried = entry.used.saturating_add(RECENT) >= context.now;
    let confidence = if is_tried { Confidence::Certain } else { Confidence::Likely };
    let summary = summary(context, record, (owner, down), ifname);
    Report {
        ruled_out: Some(healthy(context.node, entry.address, owner)),
        advice: Some(steps(context, entry.address, ifname, owner)),
        objects: IncidentObjects {
            actor: down.and_then(|down| down.actor.clone()),
            target: Some(Shared::new(owner.target.clone())),
            neighbor: Some(Box::new(neighbor(context.node, entry, ifname))),
            ..IncidentObjects::default()
        },
        first: record.first,
        evidence: down.map(|down| down.seq).into_iter().filter(|seq| *seq != 0).collect(),
        count: Count::Total(u64::from(record.looks)),
        found_at_start: record.found_at_start,
        ..Report::new(subject, Severity::Warning, confidence, summary, context.now)
    }
}

fn summary(
    context: &Context<'_>,
    record: &Record,
    (owner, down): (&Owner, Option<&Down>),
    ifname: &str,
) -> String {
    let label = target_label(&owner.target).unwrap_or_else(|| format!("pod {}", pod_label(&owner.pod)));
    let lasted = context.now.saturating_sub(record.first) / SECOND;
    let mut text = format!(
        "this node cannot reach {label} at {}: its neighbor record on {} was FAILED or INCOMPLETE in {} checks within \
         {lasted} s",
        record.address,
        name(ifname),
        record.looks
    );
    for cause in causes(owner, down) {
        text.push_str(&cause);
    }
    text
}

fn is_down(link: &LinkFacts) -> bool {
    link.flags & iff::UP == 0
}

/// What is wrong with the way to the pod, as the model shows it.
fn causes(owner: &Owner, down: Option<&Down>) -> Vec<String> {
    let (end, inner) = (name(&owner.end.ifname), name(&owner.inner.ifname));
    let mut causes = Vec::new();
    if let Some(Down { actor, .. }) = down {
        causes.push(format!("; {end} was set down{}", by(actor.as_deref())));
    } else if is_down(&owner.end) {
        causes.push(format!("; {end} is down"));
    }
    if is_down(&owner.inner) {
        causes.push(format!("; {inner} in the pod is down"));
    }
    if owner.inner.flags & iff::NOARP != 0 {
        causes.push(format!("; ARP is off on {inner} in the pod"));
    }
    if !owner.has_address {
        causes.push(format!("; {inner} in the pod lacks that address"));
    }
    causes
}

fn healthy(node: &NodeView<'_>, address: IpAddr, owner: &Owner) -> Vec<String> {
    let (end, inner) = (name(&owner.end.ifname), name(&owner.inner.ifname));
    let mut healthy = Vec::new();
    if owner.end.flags & iff::UP != 0 {
        healthy.push(format!("its host end {end} is up"));
    }
    if owner.inner.flags & iff::UP != 0 {
        healthy.push(format!("{inner} in the pod is up"));
    }
    if owner.has_address {
        healthy.push(format!("{inner} in the pod has the address {address}"));
    }
    let others = node.namespaces.all().filter(|(netns, namespace)| {
        *netns != owner.netns && *netns != node.host_netns && has(namespace, address)
    });
    if others.filter(|(netns, _)| living_pod(node, *netns).is_some()).count() == 0 {
        healthy.push("no other pod of this node has it".to_owned());
    }
    healthy
}

fn neighbor(node: &NodeView<'_>, entry: &HostNeighbor, ifname: &str) -> Neighbor {
    let key = NeighborKey { netns: node.host_netns, ifindex: entry.ifindex, address: entry.address };
    let state = Some(entry.state.name().to_owned());
    Neighbor { state, ..crate::neighbor::entry(key, ifname.to_owned(), NeighborCause::Unknown) }
}

fn steps(context: &Context<'_>, address: IpAddr, ifname: &str, owner: &Owner) -> Vec<Advice> {
    let (address, label) = (address.to_string(), pod_label(&owner.pod));
    let record = ["ip", "neigh", "show", "to", &address, "dev", ifname];
    let mut steps = vec![advice(form::SHOW_RECORD, "see what the node has of the address now", &record)];
    if is_down(&owner.end) {
        let text = "set the host end of the interface up; while it is down, nothing passes";
        steps.push(set_up(&owner.end.ifname, text));
    }
    if is_down(&owner.inner)
        && let Some(inside) = InNetns::of(context, owner.netns, &owner.target)
    {
        let text = "set the interface of the pod up; its routes and static entries went with it: what made them has to put \
                    them back";
        steps.push(inside.set_up(&owner.inner.ifname, text));
    }
    steps.extend([
        advice(
            form::SHOW_ROUTE,
            "see by which interface the node reaches it",
            &["ip", "route", "get", &address],
        ),
        advice(form::TELL_POD, "show what is known of the pod", &["kevtmon", "why", &label]),
    ]);
    steps
}

impl Diagnosis for PodNeighborUnreachable {
    fn event(&mut self, context: &Context<'_>, event: &Event, findings: &mut Findings) {
        if event.link.as_deref().is_some_and(|link| link.netns == context.node.host_netns) {
            self.downs.note(event);
        }
        if event.kind == Kind::EventsLost {
            self.downs.doubt();
        }
        if matches!(event.kind, Kind::LinkDeleted | Kind::LinkMoved) {
            self.end_gone(context, findings);
        }
    }

    fn change(&mut self, context: &Context<'_>, change: &ModelChange<'_>, findings: &mut Findings) {
        match change {
            ModelChange::HostNeighbors(entries) => self.looked(context, entries, findings),
            ModelChange::NetnsGone(_)
            | ModelChange::Container(_)
            | ModelChange::Runtime
            | ModelChange::Ready => {
                self.end_gone(context, findings);
            }
            _ => {}
        }
    }

    fn resume(&mut self, context: &Context<'_>, event: &Event) -> Option<String> {
        let (incident, neighbor) = (event.incident.as_ref()?, event.neighbor.as_ref()?);
        let pod = event.target.as_deref()?.confirmed_pod()?;
        let record = Record {
            address: neighbor.address,
            netns: NsInum::default(),
            uid: pod.uid.clone(),
            first: context.clock.boot_ns(&incident.first_seen).unwrap_or(context.now),
            found_at_start: incident.found_at_start,
            looks: LOOKS,
            absent: 0,
            is_open: true,
        };
        let subject = subject(pod, neighbor.address);
        self.records.insert(subject.clone(), record);
        Some(subject)
    }

    with_thresholds!();
}
