//! host-local no longer has the address of a living pod reserved for it: it has freed it, or reserved it for another sandbox.
//! Two pods with one address come of that.
//!
//! Found by its files alone, by the addresses that the kernel tells of the pod's own network namespace, and by who lives there.
//! That host-local gave the address to the pod is known because its reservation was seen, or by the result of the `ADD` that
//! libcni keeps. What other plugins manage has no such files, and nothing is said of it. CNI calls tell who did it, by time alone.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use found::{Unreserved, outcome, subject, unreserved};
use kevtmon_event::wording::{pod_label, repeated_actor_phrase, short_id};
use kevtmon_event::{
    Actor, ActorSource, AddressConflict, Cni, Confidence, Event, Kind, Pod, Reservation, Severity, Shared,
    form,
};
use kevtmon_observation::{BootNs, CniCommand, CniPod};
use kevtmon_types::escape::name;
use kevtmon_types::settings::{Thresholds, Unit, thresholds};
use serde::{Deserialize, Serialize};

use super::advice::advice;
use super::finding::{Count, Findings, IncidentKey, IncidentObjects, Report};
use super::pod_network::SETTLE;
use super::{CAPACITY, Context, Diagnosis, IncidentKind, ModelChange, OpenIncident, SECOND, Watch, seconds};
use crate::node::cni::Call;

mod found;

/// As users filter and alert on it.
pub(super) const KIND: &str = "ipam-drift";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "host-local no longer reserves the address of a living pod for it",
    meaning: "host-local gives out no address that has a file of its name. That of a pod which lives and has the \
             address is gone, or is another sandbox's: a CNI DEL freed it, the file was removed, or its directory was \
             emptied. Two pods may get one address.",
    remedy: "Restart the pod, so that it gets another address; until then no pod should be started. Find what freed it: \
             scripts that clean up /var/lib/cni/networks by a list of containers often do.",
    severities: &[Severity::Warning],
    counted: "observations",
    thresholds: THRESHOLDS,
    watched_by: Watch::Netlink,
    is_optional: false,
    start: |thresholds| Box::new(IpamDrift::new(thresholds)),
};

/// How long an address is reserved for another sandbox before that is told: longer than a pod that is being removed keeps its
/// address in the kernel when another one needs it already.
const TAKEN_AFTER: BootNs = 5 * SECOND;
/// For so long after a CNI `DEL` of its own sandbox a pod may be on its way out: the plugins free its address first.
const TEARDOWN: BootNs = 60 * SECOND;
/// So long after the start what is found was so before.
const START: BootNs = 10 * SECOND;
/// For the call of another sandbox: between two looks at the files, one after the other, is no more than that.
const WINDOW_MAX: BootNs = 3 * SECOND;
/// Calls of `DEL` that are remembered, and for how long.
const CALLS_MAX: usize = 256;
const CALLS_KEPT: BootNs = 600 * SECOND;

thresholds! {
    /// An address that host-local has freed though a living pod has it is reported after this time.
    AFTER = "ipam_drift_seconds", default 30, Unit::Seconds;
}

/// An address that is not reserved for the pod that has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Drift {
    first: BootNs,
    found_at_start: bool,
    is_open: bool,
    /// As it was told last: what host-local has freed may be forgotten, by the daemon too.
    reservation: Box<Reservation>,
}

/// A `DEL` that has ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Deletion {
    pod: Option<CniPod>,
    sandbox: String,
    cni: Box<Cni>,
    actor: Shared<Actor>,
    seq: u64,
    from: BootNs,
    until: BootNs,
}

/// The diagnosis.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct IpamDrift {
    #[serde(skip)]
    thresholds: Thresholds,
    /// By address, network and pod.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    drifts: BTreeMap<String, Drift>,
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    deletions: VecDeque<Deletion>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next: Option<BootNs>,
}

impl IpamDrift {
    pub(super) fn new(thresholds: &Thresholds) -> Self {
        let thresholds = thresholds.clone();
        Self { thresholds, drifts: BTreeMap::new(), deletions: VecDeque::new(), next: None }
    }

    fn schedule(&mut self, context: &Context<'_>) {
        // Where host-local has nothing, there is nothing to tell about.
        if self.drifts.is_empty() && context.node.ipam.is_empty() {
            return;
        }
        let at = context.now.saturating_add(SETTLE);
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    fn deleted(&mut self, context: &Context<'_>, call: &Call, seq: u64) {
        let (CniCommand::Del, Some(sandbox)) = (call.first.command, &call.first.container_id) else { return };
        if context.node.ipam.is_empty() {
            return;
        }
        let is_over = |call: &Deletion| call.until.saturating_add(CALLS_KEPT) < context.now;
        while self.deletions.len() >= CALLS_MAX || self.deletions.front().is_some_and(is_over) {
            self.deletions.pop_front();
        }
        self.deletions.push_back(Deletion {
            pod: call.first.pod.clone(),
            sandbox: sandbox.clone(),
            cni: Box::new(call.cni()),
            actor: call.actor.clone(),
            seq,
            from: call.started,
            until: call.ended.map_or(context.now, |(ended, _)| ended),
        });
    }

    fn review(&mut self, context: &Context<'_>, findings: &mut Findings) {
        self.next = None;
        // Before the runtimes have told their containers nobody knows who lives; of what cannot be read nothing is known.
        let Some(ready) = context.ready.filter(|_| context.node.ipam.is_complete()) else { return };
        let mut told: BTreeMap<IpAddr, Vec<&Reservation>> = BTreeMap::new();
        for Drift { reservation, .. } in self.drifts.values() {
            told.entry(reservation.address).or_default().push(reservation);
        }
        let found = unreserved(context.node, &told);
        let gone = self.drifts.keys().filter(|subject| !found.contains_key(*subject)).cloned();
        for subject in gone.collect::<Vec<_>>() {
            self.end(context, subject, findings);
        }
        for (subject, unreserved) in found {
            if !self.drifts.contains_key(&subject) && self.drifts.len() >= CAPACITY {
                findings.discard();
                continue;
            }
            let now = context.now;
            let drift = self.drifts.entry(subject.clone()).or_insert_with(|| Drift {
                first: unreserved.freed.map_or(now, |(_, until)| until),
                found_at_start: unreserved.freed.is_none() && now <= ready.saturating_add(START),
                is_open: false,
                reservation: Box::new(unreserved.reservation.clone()),
            });
            let has_changed = drift.reservation.reserved_for != unreserved.reservation.reserved_for;
            if drift.is_open && !has_changed {
                continue;
            }
            let after = seconds(self.thresholds.get(&AFTER));
            let due = due(context, drift, &unreserved, after);
            if !drift.is_open && due > now {
                *drift.reservation = unreserved.reservation.clone();
                self.next = Some(self.next.map_or(due, |next| next.min(due)));
                continue;
            }
            drift.is_open = true;
            *drift.reservation = unreserved.reservation.clone();
            let by = freed_by(&self.deletions, &unreserved);
            findings.report(report(context, drift, subject, unreserved, by));
        }
        self.link(context, findings);
    }

    /// A drift that is not found any more. One that was told ends only where it is known how.
    fn end(&mut self, context: &Context<'_>, subject: String, findings: &mut Findings) {
        let Some(drift) = self.drifts.get(&subject) else { return };
        let uid = subject.rsplit(' ').next().unwrap_or_default();
        let reason = outcome(context.node, &drift.reservation, uid);
        if drift.is_open
            && let Some(reason) = reason
        {
            findings.close(subject.clone(), reason, None);
        }
        if !drift.is_open || reason.is_some() {
            self.drifts.remove(&subject);
        }
    }

    /// Links what came of it before it was told itself.
    fn link(&self, context: &Context<'_>, findings: &mut Findings) {
        for duplicate in context.incidents.iter() {
            // No other incident has that object.
            let Some(conflict) = &duplicate.objects().address_conflict else { continue };
            let Some(kind) = super::kind(duplicate.kind()).map(|kind| kind.name) else { continue };
            let is_its = |subject: &&String| {
                let mut words = subject.split(' ');
                words.next() == Some(&conflict.address.to_string())
                    && conflict.pods.iter().any(|pod| words.next_back() == Some(&pod.pod.uid))
            };
            let drifts = self.drifts.iter().filter(|(_, drift)| drift.is_open).map(|(subject, _)| subject);
            for subject in drifts.filter(is_its) {
                let effect = IncidentKey { kind, subject: duplicate.subject().to_owned() };
                findings.link(effect, IncidentKey { kind: KIND, subject: subject.clone() });
            }
        }
    }
}

/// The open incidents of an address of these pods: what comes of them is told later.
pub(super) fn of(context: &Context<'_>, conflict: &AddressConflict) -> Vec<IncidentKey> {
    let is_its = |open: &&OpenIncident| {
        let uid = open.objects().target.as_ref().and_then(|target| Some(&target.confirmed_pod()?.uid));
        open.kind() == KIND
            && open.objects().reservation.as_ref().is_some_and(|one| one.address == conflict.address)
            && uid.is_some_and(|uid| conflict.pods.iter().any(|pod| pod.pod.uid == *uid))
    };
    let open = context.incidents.iter().filter(is_its);
    open.map(|open| IncidentKey { kind: KIND, subject: open.subject().to_owned() }).collect()
}

/// When it is told.
fn due(context: &Context<'_>, drift: &Drift, unreserved: &Unreserved, after: BootNs) -> BootNs {
    let Reservation { container_id, reserved_for, .. } = &unreserved.reservation;
    let due = drift.first.saturating_add(if reserved_for.is_some() { after.min(TAKEN_AFTER) } else { after });
    let own = &unreserved.reservation.container_id;
    let is_under_way = context.node.cni.is_deleted_about(own, BootNs::MAX, 0)
        || pod_name(&unreserved.pod).is_some_and(|pod| context.node.cni.is_other_being_deleted(&pod, own));
    if is_under_way {
        // How it ends is told when it has.
        return due.max(context.now.saturating_add(SECOND));
    }
    let ended = context.node.cni.get(container_id).and_then(|sandbox| sandbox.deleted_at);
    ended.map_or(due, |ended| due.max(ended.saturating_add(TEARDOWN)))
}

fn pod_name(pod: &Pod) -> Option<CniPod> {
    Some(CniPod { namespace: pod.namespace.clone()?, name: pod.name.clone()?, uid: None })
}

/// The call during which the reservation went: of the sandbox itself, else of another one of the pod.
fn freed_by<'a>(deletions: &'a VecDeque<Deletion>, unreserved: &Unreserved) -> Option<&'a Deletion> {
    let (from, until) = unreserved.freed?;
    let then = || deletions.iter().rev().filter(|call| call.from <= until && from <= call.until);
    let own = then().find(|call| call.sandbox == unreserved.reservation.container_id);
    own.or_else(|| {
        // In a long time calls run that have nothing to do with it.
        let pod = pod_name(&unreserved.pod).filter(|_| until.saturating_sub(from) <= WINDOW_MAX)?;
        let is_its = |of: &CniPod| (&of.namespace, &of.name) == (&pod.namespace, &pod.name);
        then().find(|call| call.pod.as_ref().is_some_and(is_its))
    })
}

fn report(
    context: &Context<'_>,
    drift: &Drift,
    subject: String,
    unreserved: Unreserved,
    by: Option<&Deletion>,
) -> Report {
    let Unreserved { target, pod, reservation, freed, is_heard } = unreserved;
    let is_certain = is_heard && freed.is_some() && by.is_none();
    let actor = by.map(|by| {
        let actor = Actor {
            source: ActorSource::CniWindow,
            confidence: Confidence::Likely,
            ..by.actor.clone().into_inner()
        };
        Shared::new(actor)
    });
    let label = pod_label(&pod);
    let text = "show what is known of the pod";
    Report {
        subject,
        severity: Severity::Warning,
        confidence: if is_certain { Confidence::Certain } else { Confidence::Likely },
        summary: summary(&pod, &reservation, by),
        ruled_out: Some(vec!["no other network of host-local has it reserved for the pod".to_owned()]),
        advice: Some(vec![advice(form::TELL_POD, text, &["kevtmon", "why", &label])]),
        objects: IncidentObjects {
            actor,
            target: Some(Shared::new(target)),
            cni: by.map(|by| by.cni.clone()),
            reservation: Some(Box::new(reservation)),
            ..IncidentObjects::default()
        },
        first: drift.first,
        last: context.now,
        evidence: by.map(|by| by.seq).into_iter().collect(),
        count: Count::Total(1),
        found_at_start: drift.found_at_start,
        caused_by: Vec::new(),
    }
}

fn summary(pod: &Pod, reservation: &Reservation, by: Option<&Deletion>) -> String {
    let Reservation { address, network, ifname, container_id, reserved_for, reserved_for_pod, .. } =
        reservation;
    let (pod, ifname, network) = (pod_label(pod), name(ifname), name(network));
    let by = by.map_or_else(String::new, |by| {
        let own =
            if by.sandbox == *container_id { "its own sandbox" } else { "another sandbox of that name" };
        let actor = repeated_actor_phrase(&by.actor);
        format!("; it was freed while the CNI DEL of {own} {} ran, by {actor}", short_id(&by.sandbox))
    });
    match reserved_for {
        Some(other) => {
            let of = reserved_for_pod.as_ref().map(|pod| format!(" of pod {}", pod_label(pod)));
            format!(
                "network {network} of host-local has reserved address {address} for sandbox {}{}, though pod {pod} still has \
                 it ({ifname}){by}",
                short_id(other),
                of.unwrap_or_default()
            )
        }
        None => format!(
            "address {address} is no longer reserved for pod {pod}, which still has it ({ifname}): network {network} of \
             host-local may give it to another pod{by}"
        ),
    }
}

impl Diagnosis for IpamDrift {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn event(&mut self, context: &Context<'_>, event: &Event, _findings: &mut Findings) {
        if matches!(event.kind, Kind::LinkMoved | Kind::LinkDeleted) {
            self.schedule(context);
        }
    }

    fn change(&mut self, context: &Context<'_>, change: &ModelChange<'_>, _findings: &mut Findings) {
        match change {
            ModelChange::CniFinished(call, seq) => self.deleted(context, call, *seq),
            ModelChange::Ipam
            | ModelChange::Netns(_)
            | ModelChange::NetnsGone(_)
            | ModelChange::Addresses(_)
            | ModelChange::Container(_)
            | ModelChange::Runtime
            | ModelChange::Ready => self.schedule(context),
            _ => {}
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
        let (incident, reservation) = (event.incident.as_ref()?, event.reservation.as_ref()?);
        let subject = subject(reservation, event.target.as_ref()?.confirmed_pod()?);
        let drift = Drift {
            first: context.clock.boot_ns(&incident.first_seen).unwrap_or(context.now),
            found_at_start: incident.found_at_start,
            is_open: true,
            reservation: reservation.clone(),
        };
        self.drifts.insert(subject.clone(), drift);
        Some(subject)
    }

    saved_without_thresholds!();
}

#[cfg(test)]
mod tests;
