//! The node has no route to a pod that lives: what others send to it, answers above all, does not arrive, though its gateway
//! may answer and its own routes are in order.
//!
//! The kernel is asked for the route to each address of a pod, from time to time and whenever something may have changed it.
//! A route counts if it leads to the host's end of the pod's veth pair, or to the bridge which that is a port of. A route that
//! leads elsewhere says nothing, but for a default route: what is behind a longer prefix may know the pod.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kevtmon_event::{CloseReason, Confidence, Event, Kind, Route, Rule, Severity, Shared};
use kevtmon_observation::{BootNs, FoundRoute, NsInum, PodAddress, PodRoute, Request};
use kevtmon_types::settings::{Thresholds, Unit, thresholds};
use routed::RoutedPod;
use serde::{Deserialize, Serialize};

use super::downs::{Down, Downs};
use super::finding::{Count, Findings, IncidentKey, IncidentObjects, Report};
use super::pod_network::{SETTLE, gone, runs_since};
use super::{
    Alert, CAPACITY, Context, Diagnosis, IncidentKind, ModelChange, SECOND, Watch, gateway_neighbor_lost,
    seconds, start,
};

mod host_end;
mod routed;
#[cfg(test)]
mod tests;
mod wording;

pub(super) const KIND: &str = "pod-route-missing";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "This node has no route to one of its pods",
    symptom: "a pod is unreachable",
    names: "the process that set the pod's host interface down, if the route went with it",
    opens: "The node has no route to a living pod for 10 s.",
    alert: Alert::Open { severity: Severity::Warning, minutes: 2 },
    meaning: "The pod's own network looks right and its gateway may answer, but what the node or others send to the pod does \
             not arrive: answers to the pod are dropped or leave by another interface.",
    remedy: "Add the route as the advice says, then restart the agent of the network plugin on this node (calico-node), which \
             adds the routes of all pods; look in its log for why it lost this one.",
    severities: &[Severity::Warning],
    counted: "checks",
    thresholds: THRESHOLDS,
    watched_by: Watch::Netlink,
    is_optional: false,
    start: start::<PodRouteMissing>,
};

thresholds! {
    /// A route to a pod may be missing for this time.
    AFTER = "pod_route_missing_seconds", default 10, Unit::Seconds;
    /// A pod younger than this may not have its route yet.
    YOUNG_POD = "pod_route_young_pod_seconds", default 60, Unit::Seconds;
    /// After a CNI DEL of its sandbox a pod may be without its route for this time: it is being deleted.
    TEARDOWN = "pod_route_teardown_seconds", default 60, Unit::Seconds;
}

/// Looks that have to show it.
const LOOKS: u32 = 2;
/// How often the kernel is asked where nothing has changed: changes of tables other than the main one are not told.
const IDLE: BootNs = 30 * SECOND;
/// The same while a route is missing.
const WATCH: BootNs = 5 * SECOND;
/// An answer that does not come by then is asked for again.
const PATIENCE: BootNs = 10 * SECOND;

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Missing {
    address: IpAddr,
    netns: NsInum,
    uid: String,
    first: BootNs,
    found_at_start: bool,
    /// Looks that showed it.
    looks: u32,
    found: FoundRoute,
    /// Whether a message told that somebody deleted it.
    is_deleted: bool,
    /// The event of that.
    deletion_told: Option<Down>,
    /// The event of the deletion of a rule for the address, since the kernel last found the route.
    rule_deletion: Option<u64>,
    /// How it went, if it went with its interface.
    #[serialize_always]
    went_with: Option<Down>,
    /// Whether the host's end is down; absent where an earlier run of the daemon found the route missing.
    is_end_down: Option<bool>,
    set_down: Option<Down>,
    is_open: bool,
}

/// What was asked and is not answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Asked {
    id: u64,
    /// The host's ends, by pod and address.
    ends: BTreeMap<String, u32>,
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct History {
    /// When the kernel last found it.
    found: Option<BootNs>,
    /// When a message last told that it was deleted, or added.
    deleted: Option<BootNs>,
    added: Option<BootNs>,
    /// The event that told that it was deleted.
    deletion_told: Option<Down>,
    /// When a rule for it was last deleted, and the event of that.
    rule_deleted: Option<(BootNs, u64)>,
    netns: NsInum,
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct PodRouteMissing {
    #[serde(skip)]
    thresholds: Thresholds,
    /// By pod and address.
    missing: BTreeMap<String, Missing>,
    /// Of the addresses that were asked for last.
    histories: BTreeMap<IpAddr, History>,
    downs: Downs,
    /// Interfaces of the host that this run of the daemon saw made, and not set up since.
    never_up: BTreeSet<u32>,
    asked: Option<Asked>,
    last_id: u64,
    /// Whether a look of this run of the daemon is over.
    has_looked: bool,
    next: Option<BootNs>,
}

impl PodRouteMissing {
    fn wake(&mut self, at: BootNs) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    /// Has the kernel asked for the routes to all pods.
    fn look(&mut self, context: &Context<'_>, findings: &mut Findings) {
        self.next = None;
        // Which pods live is not known before the runtimes have reported their containers.
        if context.ready.is_none() {
            return;
        }
        self.end_gone(context, findings);
        let pods = routed::pods(context.node);
        let histories = std::mem::take(&mut self.histories);
        let known = |pod: &RoutedPod| {
            let history = histories.get(&pod.address).cloned().unwrap_or_default();
            (pod.address, History { netns: pod.netns, ..history })
        };
        self.histories = pods.iter().map(known).collect();
        self.downs.retain(|ifindex| pods.iter().any(|pod| pod.end.ifindex == ifindex));
        self.end_unknown(&pods, findings);
        self.asked = None;
        if pods.is_empty() {
            self.has_looked = true;
            return;
        }
        self.last_id += 1;
        let ends = pods.iter().map(|pod| (pod.subject(), pod.end.ifindex)).collect();
        self.asked = Some(Asked { id: self.last_id, ends });
        let address = |pod: RoutedPod| PodAddress { address: pod.address, interfaces: pod.interfaces };
        let addresses = pods.into_iter().map(address).collect();
        findings.request(Request::PodRoutes { id: self.last_id, addresses });
        self.wake(context.now.saturating_add(PATIENCE));
    }

    fn looked(&mut self, context: &Context<'_>, id: u64, elsewhere: &[PodRoute], findings: &mut Findings) {
        let Some(asked) = self.asked.take_if(|asked| asked.id == id) else { return };
        let by_address: BTreeMap<IpAddr, FoundRoute> =
            elsewhere.iter().map(|route| (route.address, route.found)).collect();
        let pods = routed::pods(context.node);
        self.end_unknown(&pods, findings);
        for pod in &pods {
            let subject = pod.subject();
            // What was set up since is asked for next time.
            if asked.ends.get(&subject) != Some(&pod.end.ifindex) {
                continue;
            }
            match by_address.get(&pod.address) {
                None => {
                    self.histories.entry(pod.address).or_default().found = Some(context.now);
                    self.end(&subject, CloseReason::Resolved, findings);
                }
                Some(FoundRoute::By { .. } | FoundRoute::Other) => {
                    self.end(&subject, CloseReason::Expired, findings)
                }
                Some(found) => self.note_missing(context, pod, *found, findings),
            }
        }
        self.has_looked = true;
        self.next = None;
        let dues = self.missing.values().map(|missing| match missing.is_open {
            true => context.now.saturating_add(WATCH),
            false => self.due(context, missing).max(context.now.saturating_add(SETTLE)),
        });
        let next = dues.min().unwrap_or_else(|| context.now.saturating_add(IDLE));
        self.wake(next.min(context.now.saturating_add(IDLE)));
    }

    fn note_missing(
        &mut self,
        context: &Context<'_>,
        pod: &RoutedPod,
        found: FoundRoute,
        findings: &mut Findings,
    ) {
        let subject = pod.subject();
        let is_open = self.missing.get(&subject).is_some_and(|known| known.is_open);
        // The whole network goes when the sandbox is deleted.
        if !is_open && (self.is_told_otherwise(context.node, pod) || self.is_torn_down(context, pod)) {
            self.missing.remove(&subject);
            return;
        }
        if !self.missing.contains_key(&subject) {
            if self.missing.len() >= CAPACITY {
                return findings.discard();
            }
            let new = self.new_missing(context, pod, found);
            self.missing.insert(subject.clone(), new);
        }
        let Some(mut known) = self.missing.get(&subject).cloned() else { return };
        known.looks = known.looks.saturating_add(1);
        let before = std::mem::replace(&mut known.found, found);
        // What an earlier run of the daemon found is in what it said.
        let is_other = before != found && before != FoundRoute::Other;
        let is_other = self.note_end(&mut known, pod) || is_other;
        self.missing.insert(subject.clone(), known.clone());
        if known.is_open {
            if is_other {
                findings.restate(subject.clone(), wording::summary(context.node, &known, pod));
            }
            return self.link_gateway(context, &known, pod, &subject, findings);
        }
        if known.looks < LOOKS || context.now < self.due(context, &known) {
            return;
        }
        if let Some(known) = self.missing.get_mut(&subject) {
            known.is_open = true;
        }
        findings.report(report(context, &known, pod, subject.clone()));
        self.link_gateway(context, &known, pod, &subject, findings);
    }

    fn new_missing(&self, context: &Context<'_>, pod: &RoutedPod, found: FoundRoute) -> Missing {
        let history = self.histories.get(&pod.address).cloned().unwrap_or_default();
        let is_before = |at: Option<BootNs>, other: BootNs| at.is_none_or(|at| at < other);
        let deleted = history
            .deleted
            .filter(|deleted| is_before(history.added, *deleted) && is_before(history.found, *deleted));
        // In IPv4 routes that go with their interface have no message of their own, and others have.
        let went_with = self.downs.last(pod.end.ifindex).filter(|down| {
            pod.address.is_ipv4()
                && deleted.is_none()
                && history.found.is_some()
                && is_before(history.found, down.at)
                && is_before(history.added, down.at)
        });
        let set_down = self.downs.last(pod.end.ifindex).filter(|_| !pod.is_up());
        let first = deleted.or_else(|| went_with.or(set_down).map(|down| down.at)).unwrap_or(context.now);
        Missing {
            address: pod.address,
            netns: pod.netns,
            uid: pod.pod.uid.clone(),
            first,
            found_at_start: !self.has_looked,
            looks: 0,
            found,
            is_deleted: deleted.is_some(),
            // Not each deletion is an event, and who did another one did not do this.
            deletion_told: history.deletion_told.filter(|told| deleted == Some(told.at)),
            rule_deletion: history
                .rule_deleted
                .filter(|(at, _)| is_before(history.found, *at))
                .map(|(_, seq)| seq),
            went_with: went_with.cloned(),
            is_end_down: None,
            set_down: None,
            is_open: false,
        }
    }

    /// When it is an incident if it lasts.
    fn due(&self, context: &Context<'_>, missing: &Missing) -> BootNs {
        let after = missing.first.saturating_add(seconds(self.thresholds.get(&AFTER)));
        let was_there = self.histories.get(&missing.address).is_some_and(|known| known.found.is_some());
        if was_there {
            return after;
        }
        // Of which it is not known since when it runs, it may have begun to when that was seen first.
        let since = match runs_since(context.node, missing.netns) {
            0 => missing.first,
            since => since,
        };
        after.max(since.saturating_add(seconds(self.thresholds.get(&YOUNG_POD))))
    }

    /// Whether the sandbox itself is being deleted, or was so shortly before: as root of the node has told a CNI plugin.
    fn is_torn_down(&self, context: &Context<'_>, pod: &RoutedPod) -> bool {
        let window = seconds(self.thresholds.get(&TEARDOWN));
        let container = pod.target.container.as_ref().map(|container| &container.id);
        let ids = pod.pod.sandbox_id.iter().chain(container);
        ids.into_iter().any(|id| context.node.cni.is_deleted_about(id, context.now, window))
    }

    /// A gateway that the node does not answer for, because it knows no way back to who asks (net/ipv4/arp.c, `arp_process`):
    /// it began to fail after the route was gone.
    fn link_gateway(
        &self,
        context: &Context<'_>,
        missing: &Missing,
        pod: &RoutedPod,
        subject: &str,
        findings: &mut Findings,
    ) {
        for lost in context.incidents.iter().filter(|open| open.kind() == gateway_neighbor_lost::KIND) {
            let is_its = lost.objects.neighbor.as_deref().is_some_and(|entry| {
                (entry.netns, entry.ifindex) == (pod.netns, pod.inner.ifindex)
                    && entry.reason.as_deref() == Some("failed")
                    && entry.address.is_ipv4() == missing.address.is_ipv4()
            });
            let is_later =
                context.clock.boot_ns(&lost.incident.first_seen).is_some_and(|first| missing.first <= first);
            if is_its && is_later && pod.is_up() {
                let effect = IncidentKey { kind: gateway_neighbor_lost::KIND, subject: lost.subject.clone() };
                findings.link(effect, IncidentKey { kind: KIND, subject: subject.to_owned() });
            }
        }
    }

    fn end(&mut self, subject: &str, reason: CloseReason, findings: &mut Findings) {
        if self.missing.remove(subject).is_some_and(|missing| missing.is_open) {
            findings.close(subject.to_owned(), reason, None);
        }
    }

    /// Ends those of pods that do not live any more.
    fn end_gone(&mut self, context: &Context<'_>, findings: &mut Findings) {
        let gone = gone(context, &mut self.missing, |known| (&mut known.netns, known.uid.as_str()));
        for subject in gone {
            self.end(&subject, CloseReason::SubjectGone, findings);
        }
    }

    /// Ends those of which it is not known any more whether there should be a route.
    fn end_unknown(&mut self, pods: &[RoutedPod], findings: &mut Findings) {
        let is_known = |subject: &str| pods.iter().any(|pod| pod.subject() == subject);
        let unknown = self.missing.keys().filter(|subject| !is_known(subject)).cloned();
        for subject in unknown.collect::<Vec<_>>() {
            self.end(&subject, CloseReason::Expired, findings);
        }
    }

    /// A message told that a route to this address was deleted or added.
    fn route_told(&mut self, context: &Context<'_>, address: IpAddr, is_there: bool) {
        let Some(history) = self.histories.get_mut(&address) else { return };
        let time = if is_there { &mut history.added } else { &mut history.deleted };
        *time = Some(context.now);
        // A replaced one is deleted and added at once.
        self.wake(context.now.saturating_add(SETTLE));
    }
}

fn report(context: &Context<'_>, missing: &Missing, pod: &RoutedPod, subject: String) -> Report {
    let bits = if pod.address.is_ipv4() { 32 } else { 128 };
    let confidence = if pod.is_certain { Confidence::Certain } else { Confidence::Likely };
    let summary = wording::summary(context.node, missing, pod);
    Report {
        ruled_out: Some(wording::healthy(context.node, pod)),
        advice: Some(wording::steps(pod)),
        objects: IncidentObjects {
            actor: missing.actor(),
            target: Some(Shared::new(pod.target.clone())),
            link: Some(Box::new(context.node.link(&pod.end))),
            route: Some(Box::new(Route {
                destination: format!("{}/{bits}", pod.address),
                gateway: None,
                ifindex: Some(pod.device.ifindex),
                netns: context.node.host_netns,
            })),
            ..IncidentObjects::default()
        },
        first: missing.first,
        evidence: missing.evidence(),
        count: Count::Total(u64::from(missing.looks)),
        found_at_start: missing.found_at_start,
        ..Report::new(subject, Severity::Warning, confidence, summary, context.now)
    }
}

/// The address that a rule of the host has a table looked in for, if it does so for all packets to it alone. No event is of one that
/// is inverted.
fn looked_up(rule: &Rule) -> Option<IpAddr> {
    let is_for_all = !rule.more && [&rule.from, &rule.iif, &rule.oif].into_iter().all(Option::is_none);
    let to = rule.to.as_deref().filter(|_| is_for_all && rule.action == "lookup")?;
    Rule::single_address(to)
}

impl Diagnosis for PodRouteMissing {
    fn event(&mut self, context: &Context<'_>, event: &Event, _findings: &mut Findings) {
        if event.kind == Kind::RouteDeleted
            && let Some(route) = event.route.as_deref().filter(|route| route.netns == context.node.host_netns)
            && let Some(address) = route.destination.split('/').next().and_then(|text| text.parse().ok())
            && let Some(history) = self.histories.get_mut(&address)
        {
            history.deletion_told = Some(Down::of(event));
        }
        if event.kind == Kind::RuleDeleted
            && let Some(rule) = event.rule.as_deref().filter(|rule| rule.netns == context.node.host_netns)
            && let Some(address) = looked_up(rule)
            && let Some(history) = self.histories.get_mut(&address)
        {
            history.rule_deleted = Some((event.at, event.seq));
            self.wake(context.now.saturating_add(SETTLE));
        }
        if event.kind == Kind::EventsLost {
            // Since an interface was set down it may have been set up, and down again by somebody else.
            self.downs.doubt();
            let deletions = self.histories.values_mut().filter_map(|known| known.deletion_told.as_mut());
            deletions.for_each(Down::doubt);
        }
        let is_of_link = matches!(
            event.kind,
            Kind::LinkCreated | Kind::LinkChanged | Kind::LinkProxyArp | Kind::LinkMoved | Kind::LinkDeleted
        );
        if !is_of_link {
            return;
        }
        let Some(link) = event.link.as_deref() else { return };
        if link.netns == context.node.host_netns {
            self.note_host_link(event);
        }
        self.wake(context.now.saturating_add(SETTLE));
    }

    fn change(&mut self, context: &Context<'_>, change: &ModelChange<'_>, findings: &mut Findings) {
        match change {
            ModelChange::PodRoutes { id, elsewhere } => self.looked(context, *id, elsewhere, findings),
            ModelChange::HostRoute { address, is_there } => self.route_told(context, *address, *is_there),
            ModelChange::NetnsGone(_) | ModelChange::Container(_) | ModelChange::Runtime => {
                self.end_gone(context, findings);
                self.wake(context.now.saturating_add(SETTLE));
            }
            // Namespaces of pods are read again and again while their gateways are lost.
            ModelChange::Netns(netns) if self.histories.values().any(|known| known.netns == *netns) => {}
            ModelChange::Netns(_) | ModelChange::Addresses(_) | ModelChange::Ready => {
                self.wake(context.now.saturating_add(SETTLE));
            }
            _ => {}
        }
    }

    fn tick(&mut self, context: &Context<'_>, findings: &mut Findings) {
        if self.next.is_some_and(|next| next <= context.now) {
            self.look(context, findings);
        }
    }

    fn deadline(&self) -> Option<BootNs> {
        self.next
    }

    fn resume(&mut self, context: &Context<'_>, event: &Event) -> Option<String> {
        let (incident, route) = (event.incident.as_ref()?, event.route.as_ref()?);
        let pod = event.target.as_deref()?.confirmed_pod()?;
        let address: IpAddr = route.destination.split('/').next()?.parse().ok()?;
        let missing = Missing {
            address,
            netns: NsInum::default(),
            uid: pod.uid.clone(),
            first: context.clock.boot_ns(&incident.first_seen).unwrap_or(context.now),
            found_at_start: incident.found_at_start,
            looks: LOOKS,
            found: FoundRoute::Other,
            is_deleted: false,
            deletion_told: None,
            rule_deletion: None,
            went_with: None,
            is_end_down: None,
            set_down: None,
            is_open: true,
        };
        let subject = routed::subject(&pod.uid, address);
        self.missing.insert(subject.clone(), missing);
        Some(subject)
    }

    with_thresholds!();
}
