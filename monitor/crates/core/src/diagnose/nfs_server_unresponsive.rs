//! A server of NFS does not respond, as the kernel's log says: what uses a mount of it waits in the kernel, or gets errors where the
//! mount is soft.
//!
//! The kernel says so once of each call, and once that a call is answered, but not of a call that was killed, nor of all where there
//! are many. So the replies count, too, that the kernel has received: one of them after the silence shows that the server responds.

use std::collections::BTreeMap;

use kevtmon_event::wording::target_label;
use kevtmon_event::{
    Advice, CloseReason, Confidence, Event, NfsServer, NfsServerMount, Severity, Shared, Target, form,
};
use kevtmon_observation::{BootNs, NfsMount, NfsMounts, NfsSays, NfsServerLine, Request, nfs_server};
use kevtmon_types::escape::name;
use kevtmon_types::settings::{Thresholds, Unit, thresholds};
use serde::{Deserialize, Serialize};

use super::advice::advice;
use super::finding::{Count, Findings, IncidentKey, IncidentObjects, Repeat, Report};
use super::{
    Alert, Context, Diagnosis, IncidentKind, ModelChange, SECOND, Suspicion, Watch, seconds, start,
    volume_busy,
};

#[cfg(test)]
mod tests;

pub(super) const KIND: &str = "nfs-server-unresponsive";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "An NFS server does not respond",
    symptom: "`Terminating` without end",
    names: "the NFS server, and the volumes and pods that hang",
    opens: "The kernel says that an NFS server does not respond, and it does not for 30 s.",
    alert: Alert::Open { severity: Severity::Warning, minutes: 2 },
    meaning: "The kernel says that calls to the server get no reply. What uses its mounts waits in the kernel and cannot end, or \
              gets errors if the mount is soft. A pod with such a volume can neither work nor be deleted.",
    remedy: "See whether the server runs, and whether this node reaches it. What waits goes on by itself once the server responds.",
    severities: &[Severity::Warning],
    counted: "lines of the log",
    thresholds: THRESHOLDS,
    watched_by: Watch::None,
    is_optional: true,
    start: start::<NfsServerUnresponsive>,
};

thresholds! {
    /// An NFS server that does not respond, as the kernel says, is reported if no reply is seen for this time.
    AFTER = "nfs_server_unresponsive_seconds", default 30, Unit::Seconds;
}

/// How often is looked at mounts and replies.
const LOOK: BootNs = 10 * SECOND;
/// Calls of soft mounts fail, and the kernel writes no OK: without another line for so long no call is left.
const QUIET: BootNs = 600 * SECOND;
/// No mount of it is seen on the host, so that no reply can be: after so long without another line who waited was killed, likely.
const UNSEEN: BootNs = 3600 * SECOND;
/// Servers that are followed: only root mounts them.
const SERVERS_MAX: usize = 64;
/// Mounts that an incident lists.
const MOUNTS_MAX: usize = 16;

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Silent {
    since: BootNs,
    /// That as a time of the day, which stays the same when the clock is set.
    since_text: String,
    /// When the kernel said so last, or may have.
    last: BootNs,
    lines: u64,
    /// Whether a call waits; else all have failed.
    waits: bool,
    is_open: bool,
    /// As they were seen last.
    mounts: Option<NfsMounts>,
    /// Whether the kernel has not said so again since then.
    is_counted: bool,
    /// The event that quotes it, until the incident has that.
    quote: Option<u64>,
    /// As in the newest report.
    summary: String,
}

impl Silent {
    /// When it is over without a reply, and why.
    fn expires(&self) -> Option<(BootNs, CloseReason)> {
        if !self.waits {
            return Some((self.last.saturating_add(QUIET), CloseReason::Expired));
        }
        let seen = self.mounts.as_ref()?;
        let is_unseen = seen.mounts.is_empty() && seen.omitted == 0;
        is_unseen.then(|| (self.last.saturating_add(UNSEEN), CloseReason::LikelyGone))
    }

    /// Takes what was seen of its mounts; why it is over, if it is.
    fn looked(&mut self, now: &NfsMounts) -> Option<CloseReason> {
        let is_counted = std::mem::replace(&mut self.is_counted, true);
        let before = self.mounts.replace(now.clone())?;
        let is_answered = now.mounts.iter().any(|mount| {
            let known = before.mounts.iter().find(|known| known.path == mount.path);
            known.is_some_and(|known| known.source == mount.source && known.replies < mount.replies)
        });
        // One that was detached lazily may still be in use.
        let is_gone = now.mounts.is_empty() && !before.mounts.is_empty();
        match is_counted && is_answered {
            true => Some(CloseReason::Resolved),
            false => is_gone.then_some(CloseReason::LikelyGone),
        }
    }

    /// Volumes of pods first.
    fn object(&self, context: &Context<'_>, server: &str) -> NfsServer {
        let kubelets = context.node.kubelets;
        let of = |mntns, mount: &NfsMount| NfsServerMount {
            volume: kubelets.volume(context.now, mntns, &mount.path),
            path: mount.path.clone(),
            source: mount.source.clone(),
        };
        let mut mounts: Vec<NfsServerMount> = Vec::new();
        let mut omitted = 0;
        if let Some(known) = &self.mounts {
            mounts.extend(known.mounts.iter().map(|mount| of(known.mntns, mount)));
            mounts.sort_by_key(|mount| mount.volume.is_none());
            omitted = known.omitted.saturating_add(count(mounts.len().saturating_sub(MOUNTS_MAX)));
            mounts.truncate(MOUNTS_MAX);
        }
        NfsServer { name: server.to_owned(), waits: self.waits, mounts, mounts_omitted: omitted }
    }

    fn report(&mut self, context: &Context<'_>, server: &str) -> Report {
        let object = self.object(context, server);
        let target = target(context, &object).map(Shared::new);
        let summary = summary(context, &object, &self.since_text);
        self.summary.clone_from(&summary);
        Report {
            advice: Some(vec![step()]),
            objects: IncidentObjects {
                target,
                nfs_server: Some(Box::new(object)),
                ..IncidentObjects::default()
            },
            first: self.since,
            last: self.last,
            evidence: self.quote.take().into_iter().collect(),
            count: Count::Total(self.lines),
            ..Report::new(server.to_owned(), Severity::Warning, Confidence::Likely, summary, context.now)
        }
    }
}

/// The pod of the first mount.
fn target(context: &Context<'_>, server: &NfsServer) -> Option<Target> {
    let volume = server.mounts.first()?.volume.as_ref()?;
    Some(context.node.target_of_pod(&volume.pod_uid))
}

fn count(mounts: usize) -> u64 {
    u64::try_from(mounts).unwrap_or(u64::MAX)
}

/// `NFS server nas1 has not responded since 21:03:05 UTC: volume pv-1 of pod a/b and 2 more mounts hang`
fn summary(context: &Context<'_>, server: &NfsServer, since: &str) -> String {
    let text = format!("NFS server {} has not responded since {since}", name(&server.name));
    let Some((first, others)) = server.mounts.split_first() else { return text };
    let pod = target(context, server).and_then(|target| target_label(&target));
    let what = match (&first.volume, pod) {
        (Some(volume), Some(pod)) => format!("volume {} of {pod}", name(&volume.name)),
        _ => name(&first.path).into_owned(),
    };
    let others = count(others.len()).saturating_add(server.mounts_omitted);
    let more = match others {
        0 => String::new(),
        1 => " and 1 more mount".to_owned(),
        more => format!(" and {more} more mounts"),
    };
    let verb = match (server.waits, others) {
        (true, 0) => "hangs",
        (true, _) => "hang",
        (false, 0) => "returns errors",
        (false, _) => "return errors",
    };
    format!("{text}: {what}{more} {verb}")
}

fn step() -> Advice {
    let text = "show the NFS mounts with their options and the addresses of their servers; then see whether this node reaches \
                that address, and whether the server runs there";
    advice(form::SHOW_NFS_MOUNTS, text, &["findmnt", "--types", "nfs,nfs4"])
}

/// The open incident of the server that a mount is from.
pub(super) fn cause(context: &Context<'_>, fstype: &str, source: &str) -> Option<IncidentKey> {
    let server = nfs_server(source).filter(|_| is_nfs(fstype))?;
    let is_open = context.incidents.iter().any(|open| open.kind() == KIND && open.subject() == server);
    is_open.then(|| key(server))
}

fn is_nfs(fstype: &str) -> bool {
    matches!(fstype, "nfs" | "nfs4")
}

fn key(server: &str) -> IncidentKey {
    IncidentKey { kind: KIND, subject: server.to_owned() }
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct NfsServerUnresponsive {
    #[serde(skip)]
    thresholds: Thresholds,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    silent: BTreeMap<String, Silent>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    look_at: Option<BootNs>,
}

impl NfsServerUnresponsive {
    fn after(&self) -> BootNs {
        seconds(self.thresholds.get(&AFTER))
    }

    fn said(
        &mut self,
        context: &Context<'_>,
        line: &NfsServerLine,
        quote: Option<u64>,
        findings: &mut Findings,
    ) {
        let NfsServerLine { server, says, .. } = line;
        if *says == NfsSays::Answers {
            return self.close(server, CloseReason::Resolved, findings);
        }
        let (now, is_new) = (context.now, !self.silent.contains_key(server));
        if is_new && self.silent.len() >= SERVERS_MAX {
            return findings.discard();
        }
        let silent = self.silent.entry(server.clone()).or_insert_with(|| Silent {
            since: now,
            since_text: context.clock.time_of_day(now),
            ..Silent::default()
        });
        silent.last = now;
        silent.lines = silent.lines.saturating_add(1);
        silent.waits |= *says == NfsSays::Waiting;
        silent.is_counted = false;
        if silent.is_open {
            let (subject, count) = (server.clone(), Count::Total(silent.lines));
            findings.repeat(Repeat { subject, last: now, evidence: quote, count, severity: None });
        } else {
            silent.quote = silent.quote.or(quote);
        }
        if is_new {
            self.look(now, findings);
        }
    }

    fn look(&mut self, now: BootNs, findings: &mut Findings) {
        let servers: Vec<String> = self.silent.keys().cloned().collect();
        self.look_at = (!servers.is_empty()).then(|| now.saturating_add(LOOK));
        if !servers.is_empty() {
            findings.request(Request::NfsMounts { servers });
        }
    }

    fn looked(&mut self, context: &Context<'_>, found: &[NfsMounts], findings: &mut Findings) {
        for now in found {
            let Some(silent) = self.silent.get_mut(&now.server) else { continue };
            if let Some(reason) = silent.looked(now) {
                self.close(&now.server, reason, findings);
            } else if silent.is_open {
                let before = silent.summary.clone();
                let report = silent.report(context, &now.server);
                if report.summary != before {
                    findings.report(report);
                }
                link(context, &now.server, findings);
            }
        }
    }

    fn close(&mut self, server: &str, reason: CloseReason, findings: &mut Findings) {
        if self.silent.remove(server).is_some_and(|silent| silent.is_open) {
            findings.close(server.to_owned(), reason, None);
        }
    }
}

/// Volumes of it that are busy are so because of it: who waits for the server holds them.
fn link(context: &Context<'_>, server: &str, findings: &mut Findings) {
    for open in context.incidents.iter().filter(|open| open.kind() == volume_busy::KIND) {
        let Some(mount) = open.objects().mount.as_deref() else { continue };
        let is_its = mount.fstype.as_deref().is_some_and(is_nfs)
            && mount.source.as_deref().and_then(nfs_server) == Some(server);
        if is_its {
            let effect = IncidentKey { kind: volume_busy::KIND, subject: open.subject().to_owned() };
            findings.link(effect, key(server));
        }
    }
}

impl Diagnosis for NfsServerUnresponsive {
    fn event(&mut self, _: &Context<'_>, event: &Event, _: &mut Findings) {
        // What was lost may have said it again.
        if event.lost.as_ref().is_some_and(|lost| lost.source == "logs") {
            self.silent.values_mut().for_each(|silent| silent.last = silent.last.max(event.at));
        }
    }

    fn change(&mut self, context: &Context<'_>, change: &ModelChange<'_>, findings: &mut Findings) {
        match change {
            ModelChange::NfsServer { line, quote } => self.said(context, line, *quote, findings),
            ModelChange::NfsMounts(found) => self.looked(context, found, findings),
            _ => {}
        }
    }

    fn tick(&mut self, context: &Context<'_>, findings: &mut Findings) {
        let (now, after) = (context.now, self.after());
        let over = self.silent.iter().filter_map(|(server, silent)| {
            let (at, reason) = silent.expires()?;
            (at <= now).then(|| (server.clone(), reason))
        });
        for (server, reason) in over.collect::<Vec<_>>() {
            self.close(&server, reason, findings);
        }
        for (server, silent) in &mut self.silent {
            if !silent.is_open && silent.since.saturating_add(after) <= now {
                silent.is_open = true;
                findings.report(silent.report(context, server));
                link(context, server, findings);
            }
        }
        if self.look_at.is_some_and(|at| at <= now) {
            self.look(now, findings);
        }
    }

    fn suspected(&self, context: &Context<'_>) -> Vec<Suspicion> {
        let after = self.after();
        let suspicion = |(server, silent): (&String, &Silent)| Suspicion {
            kind: KIND.to_owned(),
            summary: format!("NFS server {} has not responded", name(server)),
            reason: format!("it is reported if it does not respond for {} s", after / SECOND),
            confidence: Confidence::Likely,
            since: context.clock.text(silent.since),
            due: context.clock.text(silent.since.saturating_add(after)),
            target: target(context, &silent.object(context, server)),
            neighbor: None,
            evidence: silent.quote.into_iter().collect(),
        };
        self.silent.iter().filter(|(_, silent)| !silent.is_open).map(suspicion).collect()
    }

    fn deadline(&self) -> Option<BootNs> {
        let after = self.after();
        let of = |silent: &Silent| {
            let due = (!silent.is_open).then(|| silent.since.saturating_add(after));
            due.into_iter().chain(silent.expires().map(|(at, _)| at))
        };
        self.silent.values().flat_map(of).chain(self.look_at).min()
    }

    fn resume(&mut self, context: &Context<'_>, event: &Event) -> Option<String> {
        let (server, incident) = (event.nfs_server.as_deref()?, event.incident.as_deref()?);
        let since = context.clock.boot_ns(&incident.first_seen).unwrap_or(context.now);
        let silent = Silent {
            since,
            since_text: context.clock.time_of_day(since),
            // The log was not read since the daemon ended.
            last: context.now,
            lines: incident.count,
            waits: server.waits,
            is_open: true,
            ..Silent::default()
        };
        self.silent.insert(server.name.clone(), silent);
        self.look_at = Some(context.now);
        Some(server.name.clone())
    }

    with_thresholds!();
}
