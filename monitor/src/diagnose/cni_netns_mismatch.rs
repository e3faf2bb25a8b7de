//! A CNI DEL of one sandbox in the network namespace of the host or of another sandbox: the process whose directory
//! `CNI_NETNS` names has ended, and its id is another's now. Plugins take interfaces down there.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::finding::{Count, Findings, IncidentObjects, Repeat, Report};
use super::timers::Timers;
use super::{CAPACITY, Context, Diagnosis, ModelChange, seconds};
use crate::escape::name;
use crate::event::wording::{repeated_actor_phrase, short_id, target_label};
use crate::event::{CloseReason, Confidence, Event, Severity, Shared, Target};
use crate::node::cni::Call;
use crate::node::containers::is_live;
use crate::observation::{BootNs, CniCommand, NsInum};
use crate::settings::{Thresholds, Unit, thresholds};

/// As users filter and alert on it.
pub(super) const KIND: &str = "cni-netns-mismatch";

thresholds! {
    /// A CNI DEL in the network namespace of others is over when it is found; its incident expires after this time.
    EXPIRE = "cni_netns_mismatch_expire_seconds", default 600, Unit::Seconds;
}

/// The diagnosis.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CniNetnsMismatch {
    #[serde(skip)]
    thresholds: Thresholds,
    open: BTreeSet<String>,
    /// The last such call of each, which may not have ended yet.
    #[serde(default)]
    calls: BTreeMap<String, u64>,
    timers: Timers<String>,
}

impl CniNetnsMismatch {
    pub(super) fn new(thresholds: &Thresholds) -> Self {
        let (open, calls) = (BTreeSet::new(), BTreeMap::new());
        Self { thresholds: thresholds.clone(), open, calls, timers: Timers::default() }
    }

    fn expire(&self) -> BootNs {
        seconds(self.thresholds.get(&EXPIRE))
    }

    fn found(&mut self, context: &Context<'_>, call: &Call, findings: &mut Findings) {
        let (Some(id), Some(netns)) = (&call.first.container_id, call.netns) else { return };
        if call.first.command != CniCommand::Del {
            return;
        }
        let Some((owner, target)) = other_owner(context, id, netns) else { return };
        if !self.open.contains(id) && self.open.len() >= CAPACITY {
            return findings.discard();
        }
        self.open.insert(id.clone());
        self.calls.insert(id.clone(), call.id);
        self.timers.set(id, context.now.saturating_add(self.expire()));
        let cni = call.cni();
        let pod = cni.pod_name().map_or_else(String::new, |pod| format!(" of pod {}", name(&pod)));
        let path = call.first.netns.as_deref().unwrap_or_default();
        let by = repeated_actor_phrase(&call.actor);
        findings.report(Report {
            subject: id.clone(),
            severity: Severity::Warning,
            // The namespace was looked for after the call began.
            confidence: Confidence::Likely,
            summary: format!(
                "CNI DEL of sandbox {}{pod} by {by} was made in the network namespace of {owner}: {} led there",
                short_id(id),
                name(path)
            ),
            ruled_out: None,
            advice: None,
            objects: IncidentObjects {
                actor: Some(call.actor.clone()),
                target: Some(Shared::new(target)),
                cni: Some(Box::new(cni)),
                ..IncidentObjects::default()
            },
            first: call.started,
            last: call.started,
            evidence: call.events.clone(),
            count: Count::More(1),
            found_at_start: false,
            caused_by: Vec::new(),
        });
    }

    /// How the call ended that was found in another namespace is evidence, too.
    fn finished(&self, call: &Call, seq: u64, findings: &mut Findings) {
        let Some(id) = call.first.container_id.clone() else { return };
        if self.calls.get(&id) == Some(&call.id) {
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

impl Diagnosis for CniNetnsMismatch {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn event(&mut self, _context: &Context<'_>, _event: &Event, _findings: &mut Findings) {}

    fn change(&mut self, context: &Context<'_>, change: &ModelChange<'_>, findings: &mut Findings) {
        match change {
            ModelChange::CniNetns(call) => self.found(context, call, findings),
            ModelChange::CniFinished(call, seq) => self.finished(call, *seq, findings),
            _ => {}
        }
    }

    fn tick(&mut self, context: &Context<'_>, findings: &mut Findings) {
        while let Some(id) = self.timers.take_due(context.now) {
            self.open.remove(&id);
            self.calls.remove(&id);
            findings.close(id, CloseReason::Expired, None);
        }
    }

    fn deadline(&self) -> Option<BootNs> {
        self.timers.next()
    }

    fn resume(&mut self, context: &Context<'_>, event: &Event) -> Option<String> {
        let id = event.cni.as_deref()?.container_id.clone()?;
        let last = context.clock.boot_ns(&event.incident.as_deref()?.last_seen).unwrap_or(context.now);
        self.timers.set(&id, last.saturating_add(self.expire()));
        self.open.insert(id.clone());
        Some(id)
    }

    saved_without_thresholds!();
}
