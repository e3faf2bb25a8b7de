//! The CNI DEL of a sandbox fails repeatedly: the next pod of that name may lose its network when it succeeds.

use std::collections::BTreeMap;

use kevtmon_event::wording::{repeated_actor_phrase, short_id};
use kevtmon_event::{CloseReason, Cni, Confidence, Event, Kind, Severity};
use kevtmon_observation::BootNs;
use kevtmon_types::escape::name;
use kevtmon_types::settings::{Thresholds, Unit, thresholds};
use serde::{Deserialize, Serialize};

use super::finding::{Count, Findings, IncidentObjects, Report};
use super::timers::Timers;
use super::{Alert, CAPACITY, Context, Diagnosis, IncidentKind, SECOND, Watch, seconds, start};

pub(super) const KIND: &str = "cni-teardown-failing";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "The CNI DEL of a sandbox fails repeatedly",
    symptom: "`ContainerCreating` without end",
    names: "the CNI call that fails",
    opens: "The CNI `DEL` of a sandbox failed, and failed again 10 s later or more, before there is a victim.",
    alert: Alert::Open { severity: Severity::Warning, minutes: 10 },
    meaning: "The network of a pod that has ended is not taken down: addresses and interfaces may leak, and the pod stays.",
    remedy: "Read the plugin's error in the log of the kubelet or the runtime; the incident names the plugin.",
    severities: &[Severity::Warning],
    counted: "failed calls",
    thresholds: THRESHOLDS,
    watched_by: Watch::Executions,
    is_optional: false,
    start: start::<CniTeardownFailing>,
};

/// Without another call it is over, once the sandbox is gone, and in any case after a day.
const QUIET: BootNs = 600 * SECOND;
const EXPIRE: BootNs = 24 * 3600 * SECOND;
const LOOK: BootNs = 60 * SECOND;

thresholds! {
    /// The removal of a sandbox's network fails, if it has failed again after this time and has not succeeded since.
    FAILING_AFTER = "cni_teardown_failing_seconds", default 10, Unit::Seconds;
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct CniTeardownFailing {
    #[serde(skip)]
    thresholds: Thresholds,
    /// When a `DEL` of a sandbox with an open incident failed last.
    failing: BTreeMap<String, BootNs>,
    timers: Timers<String>,
}

impl CniTeardownFailing {
    fn failed(&mut self, context: &Context<'_>, event: &Event, cni: &Cni, id: &str, findings: &mut Findings) {
        let Some(calls) = context.node.cni.get(id) else { return };
        let first = calls.failed_from.unwrap_or(event.at);
        let after = seconds(self.thresholds.get(&FAILING_AFTER));
        let is_open = self.failing.contains_key(id);
        if !is_open && (calls.failed < 2 || event.at < first.saturating_add(after)) {
            return;
        }
        if !is_open && self.failing.len() >= CAPACITY {
            return findings.discard();
        }
        self.failing.insert(id.to_owned(), event.at);
        self.timers.set(&id.to_owned(), event.at.saturating_add(QUIET));
        let summary = summary(event, cni, id);
        findings.report(Report {
            objects: IncidentObjects::of(event),
            first,
            evidence: vec![event.seq],
            // An open one may have counted calls that an earlier run of the daemon saw.
            count: if is_open { Count::More(1) } else { Count::Total(calls.failed) },
            ..Report::new(id.to_owned(), Severity::Warning, Confidence::Certain, summary, event.at)
        });
    }
}

fn summary(event: &Event, cni: &Cni, id: &str) -> String {
    let pod = cni.pod_name();
    let of_pod = pod.as_deref().map_or_else(String::new, |pod| format!(" of pod {}", name(pod)));
    let by = event.actor.as_deref().map(repeated_actor_phrase);
    let by = by.map_or_else(String::new, |by| format!(" by {by}"));
    let plugin = name(cni.plugin.rsplit('/').next().unwrap_or(&cni.plugin));
    let how = match (cni.signal, cni.exit_code) {
        (Some(signal), _) => format!("signal {signal} ended plugin {plugin}"),
        (None, Some(code)) => format!("plugin {plugin} exited with code {code}"),
        (None, None) => format!("plugin {plugin} did not end"),
    };
    let next = pod.map_or("", |_| "; a later one could hit a newer pod of that name");
    format!("CNI DEL of sandbox {}{of_pod}{by} fails repeatedly: {how}{next}", short_id(id))
}

impl Diagnosis for CniTeardownFailing {
    fn event(&mut self, context: &Context<'_>, event: &Event, findings: &mut Findings) {
        let Some(cni) = event.cni.as_deref().filter(|cni| cni.command == "DEL") else { return };
        let (Kind::CniFinished, Some(id)) = (event.kind, &cni.container_id) else { return };
        if cni.failed() == Some(true) {
            self.failed(context, event, cni, id, findings);
        } else if self.failing.remove(id).is_some() {
            self.timers.cancel(id);
            findings.close(id.clone(), CloseReason::Resolved, Some(event.seq));
        }
    }

    fn tick(&mut self, context: &Context<'_>, findings: &mut Findings) {
        while let Some(id) = self.timers.take_due(context.now) {
            let Some(last) = self.failing.get(&id) else { continue };
            let is_there = context.node.has_sandbox(&id);
            if is_there && context.now < last.saturating_add(EXPIRE) {
                self.timers.set(&id, context.now.saturating_add(LOOK));
                continue;
            }
            self.failing.remove(&id);
            let reason = if is_there { CloseReason::Expired } else { CloseReason::SubjectGone };
            findings.close(id, reason, None);
        }
    }

    fn resume(&mut self, context: &Context<'_>, event: &Event) -> Option<String> {
        let id = event.cni.as_deref()?.container_id.clone()?;
        let last = context.clock.boot_ns(&event.incident.as_deref()?.last_seen).unwrap_or(context.now);
        self.timers.set(&id, last.saturating_add(QUIET));
        self.failing.insert(id.clone(), last);
        Some(id)
    }

    with_thresholds!(by timers);
}
