//! A CNI DEL of one sandbox in the network namespace of the host or of another sandbox: the process whose directory
//! `CNI_NETNS` names has ended, and its id is another's now. Plugins take interfaces down there: as long as one is missing, or
//! down, the incident is critical.

use std::collections::{BTreeMap, VecDeque};

use kevtmon_event::wording::{repeated_actor_phrase, short_id, target_label};
use kevtmon_event::{
    ActorSource, Advice, CloseReason, Confidence, Event, Kind, Severity, Shared, Target, form,
};
use kevtmon_observation::{BootNs, CniCommand, NsInum, iff};
use kevtmon_types::escape::name;
use kevtmon_types::settings::{Thresholds, Unit, thresholds};
use serde::{Deserialize, Serialize};

use super::advice::{InNetns, advice, set_up};
use super::finding::{Count, Findings, IncidentObjects, Repeat, Report};
use super::timers::Timers;
use super::{Alert, CAPACITY, Context, Diagnosis, IncidentKind, ModelChange, Watch, seconds, start};
use crate::node::cni::Call;
use crate::node::containers::is_live;

pub(super) const KIND: &str = "cni-netns-mismatch";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "A CNI DEL ran in the wrong network namespace",
    symptom: "a pod is unreachable",
    names: "what a CNI `DEL` broke in the network namespace of the host or of another pod",
    opens: "A CNI `DEL` ran in the network namespace of the host or of another sandbox.",
    alert: Alert::Open { severity: Severity::Warning, minutes: 0 },
    meaning: "The process id in its path was reused, so the plugin may take down the network of the host or of another \
             pod.",
    remedy: "Check the network of the namespace that was hit; update the kubelet or the runtime, which reuse the id.",
    severities: &[Severity::Warning],
    counted: "such calls",
    thresholds: THRESHOLDS,
    watched_by: Watch::Executions,
    is_optional: false,
    start: start::<CniNetnsMismatch>,
};

thresholds! {
    /// A CNI DEL in the network namespace of others is over when it is found; its incident expires after this time.
    EXPIRE = "cni_netns_mismatch_expire_seconds", default 600, Unit::Seconds;
}

/// What calls did of which it is not known yet where they were made.
const ACTS_MAX: usize = 256;
const IMPACT_MAX: usize = 8;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct CniNetnsMismatch {
    #[serde(skip)]
    thresholds: Thresholds,
    open: BTreeMap<String, Mismatch>,
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    acts: VecDeque<Act>,
    timers: Timers<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Mismatch {
    /// The last such call, which may not have ended yet.
    call: u64,
    netns: NsInum,
    /// What is said of it, but for the harm.
    said: String,
    impact: Vec<Act>,
}

/// What a `DEL` did to an interface.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Act {
    call: u64,
    seq: u64,
    netns: NsInum,
    ifindex: u32,
    ifname: String,
    effect: Effect,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
enum Effect {
    SetDown,
    Deleted,
    Moved,
}

impl Act {
    fn of(event: &Event, call: &Call) -> Option<Self> {
        let link = event.link.as_deref()?;
        let effect = match event.kind {
            Kind::LinkDeleted => Effect::Deleted,
            Kind::LinkMoved => Effect::Moved,
            Kind::LinkChanged if link.change.iter().any(|change| change == "down") => Effect::SetDown,
            _ => return None,
        };
        let (netns, ifindex, ifname) = (link.netns, link.ifindex, link.ifname.clone());
        Some(Self { call: call.id, seq: event.seq, netns, ifindex, ifname, effect })
    }

    fn phrase(&self) -> String {
        let ifname = name(&self.ifname);
        match self.effect {
            Effect::SetDown => format!("set {ifname} down"),
            Effect::Deleted => format!("deleted {ifname}"),
            Effect::Moved => format!("moved {ifname} away"),
        }
    }

    /// Whether nobody has mended it, as far as the model knows.
    fn lasts(&self, context: &Context<'_>) -> bool {
        let Some(namespace) = context.node.namespaces.get(self.netns) else { return true };
        match self.effect {
            Effect::SetDown => {
                namespace.links.get(&self.ifindex).is_none_or(|link| link.flags & iff::UP == 0)
            }
            Effect::Deleted | Effect::Moved => {
                !namespace.links.values().any(|link| link.ifname == self.ifname)
            }
        }
    }
}

impl Mismatch {
    fn summary(&self) -> String {
        let impact: Vec<String> = self.impact.iter().map(Act::phrase).collect();
        match &impact[..] {
            [] => self.said.clone(),
            [before @ .., last] if !before.is_empty() => {
                format!("{}; it {} and {last} there", self.said, before.join(", "))
            }
            all => format!("{}; it {} there", self.said, all.join(", ")),
        }
    }

    /// What to do; `id`: the sandbox.
    fn steps(&self, context: &Context<'_>, id: &str) -> Vec<Advice> {
        let calls = ["kevtmon", "events", "--kind", "cni.finished", "--container", id];
        let mut steps =
            vec![advice(form::SHOW_CALLS, "list the CNI calls for the sandbox, with their results", &calls)];
        let is_of_host = self.netns == context.node.host_netns;
        let inside = InNetns::of(context, self.netns, &context.node.target(self.netns));
        for act in self.impact.iter().filter(|act| act.effect == Effect::SetDown && act.lasts(context)) {
            let text = format!("set {} up again", name(&act.ifname));
            let step = inside.as_ref().map(|inside| inside.set_up(&act.ifname, &text));
            steps.extend(if is_of_host { Some(set_up(&act.ifname, &text)) } else { step });
        }
        steps
    }
}

impl CniNetnsMismatch {
    fn expire(&self) -> BootNs {
        seconds(self.thresholds.get(&EXPIRE))
    }

    fn found(&mut self, context: &Context<'_>, call: &Call, findings: &mut Findings) {
        let (Some(id), Some(netns)) = (&call.first.container_id, call.netns) else { return };
        if call.first.command != CniCommand::Del {
            return;
        }
        let Some((owner, target)) = other_owner(context, id, netns) else { return };
        if !self.open.contains_key(id) && self.open.len() >= CAPACITY {
            return findings.discard();
        }
        self.timers.set(id, context.now.saturating_add(self.expire()));
        let cni = call.cni();
        let pod = cni.pod_name().map_or_else(String::new, |pod| format!(" of pod {}", name(&pod)));
        let path = call.first.netns.as_deref().unwrap_or_default();
        let by = repeated_actor_phrase(&call.actor);
        let said = format!(
            "CNI DEL of sandbox {}{pod} by {by} ran in the network namespace of {owner}: {} led there",
            short_id(id),
            name(path)
        );
        let impact = self.open.remove(id).filter(|known| known.netns == netns).map(|known| known.impact);
        let mismatch = Mismatch { call: call.id, netns, said, impact: impact.unwrap_or_default() };
        let steps = mismatch.steps(context, id);
        // The namespace was looked for after the call began.
        let confidence = Confidence::Likely;
        findings.report(Report {
            advice: Some(steps),
            objects: IncidentObjects {
                actor: Some(call.actor.clone()),
                target: Some(Shared::new(target)),
                cni: Some(Box::new(cni)),
                ..IncidentObjects::default()
            },
            evidence: call.events.clone(),
            count: Count::More(1),
            ..Report::new(id.clone(), Severity::Warning, confidence, mismatch.summary(), call.started)
        });
        self.open.insert(id.clone(), mismatch);
        let is_its = |act: &Act| (act.call, act.netns) == (call.id, netns);
        let (its, others) = std::mem::take(&mut self.acts).into_iter().partition::<VecDeque<_>, _>(is_its);
        self.acts = others;
        for act in its {
            self.affected(context, id, act, findings);
        }
        self.review(context, netns, false, findings);
    }

    /// The `DEL` of this sandbox has done something to an interface of others.
    fn affected(&mut self, context: &Context<'_>, id: &str, act: Act, findings: &mut Findings) {
        let Some(open) = self.open.get_mut(id) else { return };
        let evidence = vec![act.seq];
        // What was set down before it was deleted is told once.
        open.impact.retain(|known| known.ifindex != act.ifindex);
        if open.impact.len() < IMPACT_MAX {
            open.impact.push(act);
        }
        findings.report(Report {
            advice: Some(open.steps(context, id)),
            evidence,
            count: Count::More(0),
            ..Report::new(id.to_owned(), Severity::Critical, Confidence::Likely, open.summary(), context.now)
        });
    }

    /// Closes what is mended in a namespace, and with it what has ended with that.
    fn review(&mut self, context: &Context<'_>, netns: NsInum, gone: bool, findings: &mut Findings) {
        let is_over = |_: &String, open: &mut Mismatch| {
            open.netns == netns
                && !open.impact.is_empty()
                && (gone || !open.impact.iter().any(|act| act.lasts(context)))
        };
        let reason = if gone { CloseReason::SubjectGone } else { CloseReason::Resolved };
        for (id, _) in self.open.extract_if(.., is_over) {
            self.timers.cancel(&id);
            findings.close(id, reason, None);
        }
    }

    /// How the call ended that was found in another namespace is evidence, too.
    fn finished(&self, call: &Call, seq: u64, findings: &mut Findings) {
        let Some(id) = call.first.container_id.clone() else { return };
        if self.open.get(&id).is_some_and(|open| open.call == call.id) {
            let (last, count) = (call.started, Count::More(0));
            findings.repeat(Repeat { subject: id, last, evidence: Some(seq), count, severity: None });
        }
    }
}

/// Whose a network namespace is, if it is certainly not that of this sandbox.
fn other_owner(context: &Context<'_>, id: &str, netns: NsInum) -> Option<(String, Target)> {
    let node = context.node;
    if netns == node.host_netns {
        return Some(("the host".to_owned(), node.target(netns)));
    }
    let of_runtime = node.containers.in_netns(netns).filter(|facts| is_live(facts.state));
    if let Some(facts) = of_runtime {
        let of_sandbox = facts.pod.as_ref().and_then(|pod| pod.sandbox_id.as_deref());
        if facts.id == id || of_sandbox == Some(id) {
            return None;
        }
        let target = node.target_of(facts);
        return Some((target_label(&target)?, target));
    }
    let is_its = |(known, calls): &(&str, &crate::node::cni::Sandbox)| {
        *known != id && calls.netns == Some(netns) && node.is_sandbox_alive(known)
    };
    // What was added later has the namespace now.
    let (other, _) = node.cni.sandboxes().filter(is_its).max_by_key(|(_, calls)| calls.added)?;
    let own = node.cni.get(id).filter(|calls| calls.netns == Some(netns));
    if own.is_some() {
        return None;
    }
    Some((format!("sandbox {}", short_id(other)), node.target(netns)))
}

/// Whether what an event is about is this sandbox's, or of its pod.
fn is_of(event: &Event, id: &str) -> bool {
    let Some(target) = event.target.as_deref() else { return false };
    target.container.as_ref().is_some_and(|container| container.id == id)
        || target.pod.as_ref().is_some_and(|pod| pod.sandbox_id.as_deref() == Some(id))
}

impl Diagnosis for CniNetnsMismatch {
    fn event(&mut self, context: &Context<'_>, event: &Event, findings: &mut Findings) {
        let (Some(link), actor) = (event.link.as_deref(), event.actor.as_deref()) else { return };
        // A guess by time names no culprit.
        let actor = actor.filter(|actor| actor.source != ActorSource::CniWindow);
        let call = actor.and_then(|actor| context.node.cni.call_of(actor));
        if let Some(call) = call.filter(|call| call.first.command == CniCommand::Del)
            && let Some(id) = call.first.container_id.clone()
            && !is_of(event, &id)
            && let Some(act) = Act::of(event, call)
        {
            let is_known = |open: &Mismatch| (open.call, open.netns) == (act.call, act.netns);
            if self.open.get(&id).is_some_and(is_known) {
                self.affected(context, &id, act, findings);
            } else {
                // Where the call was made is not known yet.
                crate::bounded::push(&mut self.acts, ACTS_MAX, act);
            }
        }
        self.review(context, link.netns, false, findings);
    }

    fn change(&mut self, context: &Context<'_>, change: &ModelChange<'_>, findings: &mut Findings) {
        match change {
            ModelChange::CniNetns(call) => self.found(context, call, findings),
            ModelChange::CniFinished(call, seq) => self.finished(call, *seq, findings),
            ModelChange::Netns(netns) => self.review(context, *netns, false, findings),
            ModelChange::NetnsGone(netns) => self.review(context, *netns, true, findings),
            _ => {}
        }
    }

    fn tick(&mut self, context: &Context<'_>, findings: &mut Findings) {
        // Of each the timer may be due again at once.
        let due: Vec<String> = std::iter::from_fn(|| self.timers.take_due(context.now)).collect();
        for id in due {
            // Of the host nothing tells whether what was deleted is missed.
            let lasts = |open: &Mismatch| {
                open.netns != context.node.host_netns
                    && context.node.namespaces.get(open.netns).is_some()
                    && open.impact.iter().any(|act| act.lasts(context))
            };
            if self.open.get(&id).is_some_and(lasts) {
                self.timers.set(&id, context.now.saturating_add(self.expire()));
            } else {
                self.open.remove(&id);
                findings.close(id, CloseReason::Expired, None);
            }
        }
    }

    fn resume(&mut self, context: &Context<'_>, event: &Event) -> Option<String> {
        let (cni, incident) = (event.cni.as_deref()?, event.incident.as_deref()?);
        let id = cni.container_id.clone()?;
        let last = context.clock.boot_ns(&incident.last_seen).unwrap_or(context.now);
        self.timers.set(&id, last.saturating_add(self.expire()));
        // What it did is not known any more, but for the summary.
        let (netns, said) = (cni.netns_inode.unwrap_or_default(), incident.summary.clone());
        self.open.insert(id.clone(), Mismatch { call: 0, netns, said, impact: Vec::new() });
        Some(id)
    }

    with_thresholds!(by timers);
}
