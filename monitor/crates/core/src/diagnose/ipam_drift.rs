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
    Actor, ActorSource, AddressConflict, CloseReason, Cni, Confidence, Event, Kind, Pod, Reservation,
    Severity, Shared, form,
};
use kevtmon_observation::{BootNs, CniCommand, CniPod};
use kevtmon_types::escape::name;
use kevtmon_types::settings::{Threshold, Unit, thresholds};
use serde::{Deserialize, Serialize};

use super::advice::advice;
use super::conditions::{Condition, Conditions, Known, Look, Seen, start};
use super::finding::{Findings, IncidentKey, IncidentObjects, Report};
use super::{Alert, Context, IncidentKind, ModelChange, OpenIncident, SECOND, Watch};
use crate::node::cni::Call;

mod found;

pub(super) const KIND: &str = "ipam-drift";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "host-local no longer reserves the address of a living pod for it",
    symptom: "a pod is unreachable",
    names: "the living pod whose address host-local has freed",
    opens: "For 30 s host-local has had no reservation of a living pod's address for that pod.",
    alert: Alert::Open { severity: Severity::Warning, minutes: 0 },
    meaning: "host-local does not assign an address that has a reservation file. The file of a living pod's address is \
             gone, or names another sandbox: a CNI DEL freed it, the file was removed, or its directory was emptied. \
             Two pods may get one address.",
    remedy: "Restart the pod, so that it gets another address; start no other pod until then. Find what freed it: \
             scripts that clean up /var/lib/cni/networks by a list of containers often do.",
    severities: &[Severity::Warning],
    counted: "observations",
    thresholds: THRESHOLDS,
    watched_by: Watch::Netlink,
    is_optional: false,
    start: start::<IpamDrift>,
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

/// As it was told last: what host-local has freed may be forgotten, by the daemon too.
type Last = Option<Box<Reservation>>;

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

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct IpamDrift {
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    deletions: VecDeque<Deletion>,
}

impl IpamDrift {
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
}

/// Links what came of it before it was told itself.
fn link(seen: &Seen<'_, Last>, findings: &mut Findings) {
    for duplicate in seen.context.incidents.iter() {
        // No other incident has that object.
        let Some(conflict) = &duplicate.objects.address_conflict else { continue };
        let Some(kind) = super::kind(duplicate.kind()).map(|kind| kind.name) else { continue };
        let is_its = |subject: &&str| {
            let mut words = subject.split(' ');
            words.next() == Some(&conflict.address.to_string())
                && conflict.pods.iter().any(|pod| words.next_back() == Some(&pod.pod.uid))
        };
        for subject in seen.open().filter(is_its) {
            let effect = IncidentKey { kind, subject: duplicate.subject.clone() };
            findings.link(effect, IncidentKey { kind: KIND, subject: subject.to_owned() });
        }
    }
}

/// The open incidents of an address of these pods: what comes of them is told later.
pub(super) fn of(context: &Context<'_>, conflict: &AddressConflict) -> Vec<IncidentKey> {
    let is_its = |open: &&OpenIncident| {
        let uid = open.objects.target.as_ref().and_then(|target| Some(&target.confirmed_pod()?.uid));
        open.kind() == KIND
            && open.objects.reservation.as_ref().is_some_and(|one| one.address == conflict.address)
            && uid.is_some_and(|uid| conflict.pods.iter().any(|pod| pod.pod.uid == *uid))
    };
    let open = context.incidents.iter().filter(is_its);
    open.map(|open| IncidentKey { kind: KIND, subject: open.subject.clone() }).collect()
}

/// When it is told at the earliest, however long it has been so.
fn not_before(context: &Context<'_>, unreserved: &Unreserved) -> BootNs {
    let own = &unreserved.reservation.container_id;
    let is_under_way = context.node.cni.is_deleted_about(own, BootNs::MAX, 0)
        || pod_name(&unreserved.pod).is_some_and(|pod| context.node.cni.is_other_being_deleted(&pod, own));
    if is_under_way {
        // How it ends is told when it has.
        return context.now.saturating_add(SECOND);
    }
    let ended = context.node.cni.get(own).and_then(|sandbox| sandbox.deleted_at);
    ended.map_or(0, |ended| ended.saturating_add(TEARDOWN))
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

fn condition(
    seen: &Seen<'_, Last>,
    subject: String,
    unreserved: Unreserved,
    by: Option<&Deletion>,
) -> Condition<Last> {
    let context = seen.context;
    // One that is open is told again at once.
    let is_open = seen.is_open(&subject);
    let not_before = if is_open { 0 } else { not_before(context, &unreserved) };
    let Unreserved { target, pod, reservation, freed, is_heard } = unreserved;
    let is_certain = is_heard && freed.is_some() && by.is_none();
    let confidence = if is_certain { Confidence::Certain } else { Confidence::Likely };
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
    let summary = summary(&pod, &reservation, by);
    let report = Report {
        ruled_out: Some(vec!["no other network of host-local has it reserved for the pod".to_owned()]),
        advice: Some(vec![advice(form::TELL_POD, text, &["kevtmon", "why", &label])]),
        objects: IncidentObjects {
            actor,
            target: Some(Shared::new(target)),
            cni: by.map(|by| by.cni.clone()),
            reservation: Some(Box::new(reservation.clone())),
            ..IncidentObjects::default()
        },
        evidence: by.map(|by| by.seq).into_iter().collect(),
        found_at_start: freed.is_none()
            && context.ready.is_some_and(|ready| context.now <= ready.saturating_add(START)),
        ..Report::new(subject, Severity::Warning, confidence, summary, context.now)
    };
    Condition {
        since: freed.map(|(_, until)| until).filter(|_| !is_open),
        hold: match &reservation.reserved_for {
            _ if is_open => Some(0),
            reserved => reserved.as_ref().map(|_| seen.hold.min(TAKEN_AFTER)),
        },
        not_before,
        memory: Some(Box::new(reservation)),
        ..Condition::new(report)
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

impl Conditions for IpamDrift {
    const SPEC: &'static IncidentKind = &SPEC;
    const HOLD: &'static Threshold = &AFTER;
    type Memory = Last;

    fn event(&mut self, seen: &Seen<'_, Last>, event: &Event, _: &mut Findings) -> Look {
        Look::soon_if(may_drift(seen) && matches!(event.kind, Kind::LinkMoved | Kind::LinkDeleted))
    }

    fn change(&mut self, seen: &Seen<'_, Last>, change: &ModelChange<'_>, _: &mut Findings) -> Look {
        match change {
            ModelChange::CniFinished(call, seq) => self.deleted(seen.context, call, *seq),
            ModelChange::Ipam
            | ModelChange::Netns(_)
            | ModelChange::NetnsGone(_)
            | ModelChange::Addresses(_)
            | ModelChange::Container(_)
            | ModelChange::Runtime
            | ModelChange::Ready => return Look::soon_if(may_drift(seen)),
            _ => {}
        }
        Look::No
    }

    fn conditions(&mut self, seen: &Seen<'_, Last>, _: &mut Findings) -> Option<Vec<Condition<Last>>> {
        let context = seen.context;
        // Which pods live is not known before the runtimes have reported their containers, nor what cannot be read.
        context.ready.filter(|_| context.node.ipam.is_complete)?;
        let mut told: BTreeMap<IpAddr, Vec<&Reservation>> = BTreeMap::new();
        for reservation in seen.memories().flatten() {
            told.entry(reservation.address).or_default().push(reservation);
        }
        let condition = |(subject, unreserved)| {
            let by = freed_by(&self.deletions, &unreserved);
            condition(seen, subject, unreserved, by)
        };
        Some(unreserved(context.node, &told).into_iter().map(condition).collect())
    }

    fn settle(&self, seen: &Seen<'_, Last>, findings: &mut Findings) -> Option<BootNs> {
        link(seen, findings);
        None
    }

    /// Who did it is told once: that is forgotten.
    fn is_news(known: &Known<Last>, _: &Report, now: &Last) -> bool {
        let reserved_for = |last: &Last| last.as_ref().and_then(|last| last.reserved_for.clone());
        reserved_for(&known.memory) != reserved_for(now)
    }

    /// One that was told ends only where it is known how.
    fn ended(&self, context: &Context<'_>, subject: &str, last: &Last) -> Option<CloseReason> {
        outcome(context.node, last.as_deref()?, subject.rsplit(' ').next().unwrap_or_default())
    }

    fn resume(&mut self, _: &Context<'_>, event: &Event) -> Option<(String, Last)> {
        let reservation = event.reservation.as_ref()?;
        let subject = subject(reservation, event.target.as_ref()?.confirmed_pod()?);
        Some((subject, Some(reservation.clone())))
    }
}

/// Where host-local has nothing, there is nothing to tell about.
fn may_drift(seen: &Seen<'_, Last>) -> bool {
    !seen.context.node.ipam.is_empty() || seen.memories().next().is_some()
}

#[cfg(test)]
mod tests;
