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
use kevtmon_types::settings::{Threshold, Unit, thresholds};
use serde::{Deserialize, Serialize};

use super::advice::advice;
use super::conditions::{Condition, Conditions, Look, Seen, start};
use super::finding::{Count, Findings, IncidentKey, IncidentObjects, Repeat, Report};
use super::{Alert, Context, IncidentKind, ModelChange, SECOND, Suspicion, Watch, volume_busy};

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
    /// As they were seen last.
    mounts: Option<NfsMounts>,
    /// Whether the kernel has not said so again since then.
    is_counted: bool,
    /// The event that quotes it, from before there is an incident.
    quote: Option<u64>,
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

    fn report(&self, seen: &Seen<'_, ()>, server: &str) -> Report {
        let context = seen.context;
        let object = self.object(context, server);
        let target = target(context, &object).map(Shared::new);
        let summary = summary(context, &object, &self.since_text);
        Report {
            advice: Some(vec![step()]),
            objects: IncidentObjects {
                target,
                nfs_server: Some(Box::new(object)),
                ..IncidentObjects::default()
            },
            last: self.last,
            evidence: self.quote.filter(|_| !seen.is_open(server)).into_iter().collect(),
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
    is_open(context, server).then(|| key(server))
}

/// Also if that is over for the moment.
fn is_open(context: &Context<'_>, server: &str) -> bool {
    context.incidents.iter().any(|open| open.kind() == KIND && open.subject == server)
}

fn is_nfs(fstype: &str) -> bool {
    matches!(fstype, "nfs" | "nfs4")
}

fn key(server: &str) -> IncidentKey {
    IncidentKey { kind: KIND, subject: server.to_owned() }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct NfsServerUnresponsive {
    silent: BTreeMap<String, Silent>,
    look_at: BootNs,
}

impl NfsServerUnresponsive {
    fn said(
        &mut self,
        seen: &Seen<'_, ()>,
        line: &NfsServerLine,
        quote: Option<u64>,
        findings: &mut Findings,
    ) {
        let NfsServerLine { server, says, .. } = line;
        if *says == NfsSays::Answers {
            self.silent.remove(server);
            return;
        }
        let now = seen.context.now;
        if !self.silent.contains_key(server) {
            if self.silent.len() >= SERVERS_MAX {
                return findings.discard();
            }
            self.look_at = now;
        }
        let silent = self.silent.entry(server.clone()).or_insert_with(|| Silent {
            since: now,
            since_text: seen.context.clock.time_of_day(now),
            ..Silent::default()
        });
        silent.last = now;
        silent.lines = silent.lines.saturating_add(1);
        silent.waits |= *says == NfsSays::Waiting;
        silent.is_counted = false;
        if seen.is_open(server) {
            let (subject, count) = (server.clone(), Count::Total(silent.lines));
            findings.repeat(Repeat { subject, last: now, evidence: quote, count, severity: None });
        } else {
            silent.quote = silent.quote.or(quote);
        }
    }

    fn looked(&mut self, found: &[NfsMounts], findings: &mut Findings) {
        for now in found {
            let Some(silent) = self.silent.get_mut(&now.server) else { continue };
            if let Some(reason) = silent.looked(now) {
                self.silent.remove(&now.server);
                findings.close(now.server.clone(), reason, None);
            }
        }
    }
}

/// Volumes of it that are busy are so because of it: who waits for the server holds them.
fn link(context: &Context<'_>, server: &str, findings: &mut Findings) {
    for open in context.incidents.iter().filter(|open| open.kind() == volume_busy::KIND) {
        let Some(mount) = open.objects.mount.as_deref() else { continue };
        let is_its = mount.fstype.as_deref().is_some_and(is_nfs)
            && mount.source.as_deref().and_then(nfs_server) == Some(server);
        if is_its {
            let effect = IncidentKey { kind: volume_busy::KIND, subject: open.subject.clone() };
            findings.link(effect, key(server));
        }
    }
}

impl Conditions for NfsServerUnresponsive {
    const SPEC: &'static IncidentKind = &SPEC;
    const HOLD: &'static Threshold = &AFTER;
    const BEFORE_READY: bool = true;
    type Memory = ();

    fn event(&mut self, _: &Seen<'_, ()>, event: &Event, _: &mut Findings) -> Look {
        // What was lost may have said it again.
        if event.lost.as_ref().is_some_and(|lost| lost.source == "logs") {
            self.silent.values_mut().for_each(|silent| silent.last = silent.last.max(event.at));
        }
        Look::No
    }

    fn change(&mut self, seen: &Seen<'_, ()>, change: &ModelChange<'_>, findings: &mut Findings) -> Look {
        match change {
            ModelChange::NfsServer { line, quote } => self.said(seen, line, *quote, findings),
            ModelChange::NfsMounts(found) => self.looked(found, findings),
            ModelChange::Ready => {}
            _ => return Look::No,
        }
        Look::Now
    }

    fn conditions(&mut self, seen: &Seen<'_, ()>, findings: &mut Findings) -> Option<Vec<Condition<()>>> {
        let now = seen.context.now;
        self.silent.retain(|server, silent| {
            let over = silent.expires().filter(|(at, _)| *at <= now);
            if let Some((_, reason)) = over {
                findings.close(server.clone(), reason, None);
            }
            over.is_none()
        });
        if self.look_at <= now && !self.silent.is_empty() {
            self.look_at = now.saturating_add(LOOK);
            findings.request(Request::NfsMounts { servers: self.silent.keys().cloned().collect() });
        }
        let condition = |(server, silent): (&String, &Silent)| match &silent.mounts {
            // What an earlier run has told names them.
            None if seen.is_open(server) => Condition::unknown(server.clone()),
            _ => Condition {
                since: Some(silent.since),
                // An incident that is over for the moment is not closed while the server is silent.
                hold: is_open(seen.context, server).then_some(0),
                ..Condition::new(silent.report(seen, server))
            },
        };
        Some(self.silent.iter().map(condition).collect())
    }

    fn settle(&self, seen: &Seen<'_, ()>, findings: &mut Findings) -> Option<BootNs> {
        seen.open().for_each(|server| link(seen.context, server, findings));
        let next = |silent: &Silent| silent.expires().map_or(self.look_at, |(at, _)| at.min(self.look_at));
        self.silent.values().map(next).min()
    }

    fn suspected(&self, seen: &Seen<'_, ()>) -> Vec<Suspicion> {
        let context = seen.context;
        let suspicion = |(server, silent): (&String, &Silent)| Suspicion {
            kind: KIND.to_owned(),
            summary: format!("NFS server {} has not responded", name(server)),
            reason: format!("it is reported if it does not respond for {} s", seen.hold / SECOND),
            confidence: Confidence::Likely,
            since: context.clock.text(silent.since),
            due: context.clock.text(silent.since.saturating_add(seen.hold)),
            target: target(context, &silent.object(context, server)),
            neighbor: None,
            evidence: silent.quote.into_iter().collect(),
        };
        self.silent.iter().filter(|(server, _)| !seen.is_open(server)).map(suspicion).collect()
    }

    fn resume(&mut self, context: &Context<'_>, event: &Event) -> Option<(String, ())> {
        let (server, incident) = (event.nfs_server.as_deref()?, event.incident.as_deref()?);
        let since = context.clock.boot_ns(&incident.first_seen).unwrap_or(context.now);
        let silent = Silent {
            since,
            since_text: context.clock.time_of_day(since),
            // The log was not read since the daemon ended.
            last: context.now,
            lines: incident.count,
            waits: server.waits,
            ..Silent::default()
        };
        self.silent.insert(server.name.clone(), silent);
        Some((server.name.clone(), ()))
    }
}
