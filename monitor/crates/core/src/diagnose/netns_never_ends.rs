//! The kernel cannot free a network device, as its log says: something in the kernel still refers to it. Likely its network namespace
//! does not end then; and as the kernel ends one after the other, neither does any other.
//!
//! The kernel says so every ten seconds, and nothing once it is over. Its word is the name of the device in a namespace that nothing
//! leads to any more. So which pod that was, only what was deleted just before can tell: a device of that name, or those of one pod alone.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;

use kevtmon_event::wording::pod_label;
use kevtmon_event::{CloseReason, Confidence, Event, Kind, Link, Pod, Severity, Shared, Target};
use kevtmon_observation::BootNs;
use kevtmon_types::escape::name;
use kevtmon_types::settings::{Threshold, Unit, thresholds};
use serde::{Deserialize, Serialize};

use super::conditions::{Condition, Conditions, Look, Seen, start};
use super::finding::{Count, Findings, IncidentKey, IncidentObjects, Repeat, Report};
use super::{Alert, Context, IncidentKind, ModelChange, SECOND, Watch, orphan_veth};

#[cfg(test)]
mod tests;

pub(super) const KIND: &str = "netns-never-ends";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "A network device is not freed",
    symptom: "devices of pods that are gone",
    names: "the network device that the kernel waits for, and likely its pod",
    opens: "The kernel says for 60 s that it waits for a network device to become free.",
    alert: Alert::Open { severity: Severity::Warning, minutes: 5 },
    meaning: "Something in the kernel still refers to a device that was deleted, and no list of the kernel shows what. If it \
              is one of a network namespace that ends, those of other pods stay on the node as well until it is free: the kernel ends \
              them one after the other.",
    remedy: "It is a defect of the kernel: look for a newer one. Often it goes by itself after some minutes; else only a \
             restart of the node frees the device.",
    severities: &[Severity::Warning],
    counted: "lines of the log",
    thresholds: THRESHOLDS,
    watched_by: Watch::None,
    is_optional: true,
    start: start::<NetnsNeverEnds>,
};

thresholds! {
    /// A network device that the kernel waits for is reported if it still says so after this time.
    AFTER = "netns_never_ends_seconds", default 60, Unit::Seconds;
}

/// There is one of a node: the kernel waits for one device at a time, unless others wait for theirs.
const SUBJECT: &str = "unregister_netdevice";
/// After so long without another line it is over: the kernel says so every ten seconds, if it is not configured otherwise
/// (`net.core.netdev_unregister_timeout_secs`).
const QUIET: BootNs = 180 * SECOND;
/// After a longer pause the kernel waits for another device of that name.
const GAP: BootNs = 35 * SECOND;
/// So long before the first line of a device it was deleted: ten seconds, and what passes until it is read.
const BEFORE: RangeInclusive<BootNs> = 9 * SECOND..=20 * SECOND;
const DEVICES_MAX: usize = 16;
const DELETED_MAX: usize = 32;

/// A device that the kernel waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Waiting {
    since: BootNs,
    /// That as a time of the day, which stays the same when the clock is set.
    since_text: String,
    /// When the kernel said so last, or may have.
    last: BootNs,
    /// The event that quotes it, from before there is an incident.
    quote: Option<u64>,
    /// What was likely deleted with it.
    deleted: Option<Deleted>,
}

/// A device of the host that was deleted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Deleted {
    at: BootNs,
    /// The event.
    seq: u64,
    link: Box<Link>,
    target: Option<Shared<Target>>,
}

impl Deleted {
    fn pod(&self) -> Option<&Pod> {
        self.target.as_deref().and_then(Target::confirmed_pod)
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct NetnsNeverEnds {
    /// By the names of the devices.
    waiting: BTreeMap<String, Waiting>,
    lines: u64,
    deleted: VecDeque<Deleted>,
    /// Since when no deletion of a device has been missed.
    complete_since: BootNs,
    /// Until when the kernel may say again what it said to an earlier run.
    resumed_until: BootNs,
    /// What an earlier run knew of the device.
    resumed: Option<Waiting>,
}

impl NetnsNeverEnds {
    fn said(&mut self, seen: &Seen<'_, ()>, ifname: &str, quote: Option<u64>, findings: &mut Findings) {
        let now = seen.context.now;
        if self.waiting.get(ifname).is_some_and(|known| now.saturating_sub(known.last) > GAP) {
            self.waiting.remove(ifname);
        }
        let is_new = !self.waiting.contains_key(ifname);
        if is_new && self.waiting.len() >= DEVICES_MAX {
            return findings.discard();
        }
        self.lines = self.lines.saturating_add(1);
        let deleted = if is_new { self.deleted_before(ifname, now) } else { None };
        let resumed = if is_new { self.resumed.take().filter(|_| self.resumed_until > now) } else { None };
        let waiting = self.waiting.entry(ifname.to_owned()).or_insert_with(|| {
            resumed.unwrap_or_else(|| Waiting {
                since: now,
                since_text: seen.context.clock.time_of_day(now),
                last: now,
                quote: None,
                deleted,
            })
        });
        waiting.last = now;
        if seen.is_open(SUBJECT) {
            let (subject, count) = (SUBJECT.to_owned(), Count::Total(self.lines));
            findings.repeat(Repeat { subject, last: now, evidence: quote, count, severity: None });
        } else {
            waiting.quote = waiting.quote.or(quote);
        }
    }

    /// What was deleted with a device: one of its name, or, as a pod's devices go with those of the host that lead to them, those of
    /// one pod alone.
    fn deleted_before(&self, ifname: &str, now: BootNs) -> Option<Deleted> {
        let of_name = self.recent(now).rfind(|it| it.link.ifname == ifname);
        let of_only_pod = || {
            let has_room = self.deleted.len() < DELETED_MAX;
            let oldest = self.deleted.front().filter(|_| !has_room).map_or(self.complete_since, |it| it.at);
            if now.saturating_sub(oldest.max(self.complete_since)) <= *BEFORE.end() {
                return None;
            }
            let first = self.recent(now).next()?;
            let uid = &first.pod()?.uid;
            let is_its = |it: &Deleted| it.pod().is_some_and(|pod| pod.uid == *uid);
            self.recent(now).all(is_its).then_some(first)
        };
        of_name.or_else(of_only_pod).cloned()
    }

    fn recent(&self, now: BootNs) -> impl DoubleEndedIterator<Item = &Deleted> {
        self.deleted.iter().filter(move |it| BEFORE.contains(&now.saturating_sub(it.at)))
    }

    /// Since when, and what is to be told; `None` if no device has been waited for long enough.
    fn report(&self, seen: &Seen<'_, ()>) -> Option<(BootNs, Report)> {
        let newest = self.waiting.values().map(|waiting| waiting.last).max()?;
        let lasts = |waiting: &Waiting| {
            waiting.last.saturating_sub(waiting.since) >= seen.hold
                && newest.saturating_sub(waiting.last) <= GAP
        };
        let mut lasting: Vec<_> = self.waiting.iter().filter(|&(_, waiting)| lasts(waiting)).collect();
        lasting.sort_by_key(|(_, waiting)| waiting.since);
        let (&(ifname, first), others) = lasting.split_first()?;
        let deleted = first.deleted.as_ref();
        let summary = summary(ifname, first, others.len());
        let evidence = deleted.map(|deleted| deleted.seq).into_iter().chain(first.quote);
        let report = Report {
            objects: IncidentObjects {
                target: deleted.and_then(|deleted| deleted.target.clone()),
                link: deleted.map(|deleted| deleted.link.clone()),
                ..IncidentObjects::default()
            },
            last: lasting.iter().map(|(_, waiting)| waiting.last).max().unwrap_or(first.last),
            evidence: evidence.filter(|_| !seen.is_open(SUBJECT)).collect(),
            count: Count::Total(self.lines),
            ..Report::new(
                SUBJECT.to_owned(),
                Severity::Warning,
                Confidence::Likely,
                summary,
                seen.context.now,
            )
        };
        Some((first.since, report))
    }
}

/// `the kernel has waited since 21:03:05 UTC for network device lo, likely of pod a/b, to become free: likely no network namespace ends
/// until then`. For another device than `lo` it may be one task that waits.
fn summary(ifname: &str, waiting: &Waiting, others: usize) -> String {
    let pod = waiting.deleted.as_ref().and_then(Deleted::pod);
    let of = pod.map_or_else(String::new, |pod| format!(", likely of pod {},", pod_label(pod)));
    let more = match others {
        0 => String::new(),
        1 => " and 1 more".to_owned(),
        more => format!(" and {more} more"),
    };
    let (since, device) = (&waiting.since_text, name(ifname));
    let effect = if ifname == "lo" { ": likely no network namespace ends until then" } else { "" };
    format!(
        "the kernel has waited since {since} for network device {device}{of}{more} to become free{effect}"
    )
}

/// The devices of pods that stay since then without anything that is known to keep their namespaces.
fn link(seen: &Seen<'_, ()>, findings: &mut Findings) {
    let Some(since) = seen.since(SUBJECT).filter(|_| seen.is_open(SUBJECT)) else { return };
    let context = seen.context;
    for open in context.incidents.iter().filter(|open| open.kind() == orphan_veth::KIND) {
        let is_unheld = open.objects.holders.as_ref().is_none_or(Vec::is_empty);
        let began = context.clock.boot_ns(&open.incident.first_seen);
        if is_unheld && began.is_some_and(|began| began.saturating_add(*BEFORE.end()) >= since) {
            let effect = IncidentKey { kind: orphan_veth::KIND, subject: open.subject.clone() };
            findings.link(effect, IncidentKey { kind: KIND, subject: SUBJECT.to_owned() });
        }
    }
}

impl Conditions for NetnsNeverEnds {
    const SPEC: &'static IncidentKind = &SPEC;
    const HOLD: &'static Threshold = &AFTER;
    type Memory = ();

    fn event(&mut self, seen: &Seen<'_, ()>, event: &Event, _: &mut Findings) -> Look {
        let lost = |source: &str| event.lost.as_ref().filter(|lost| lost.source == source);
        if lost("netlink").is_some() {
            self.complete_since = event.at;
        }
        // Lines of the kernel that were lost may have said it again.
        let of_kernel = |reason: &str| ["overrun", "too-many-lines"].contains(&reason);
        if lost("logs").is_some_and(|lost| of_kernel(&lost.reason)) && seen.is_open(SUBJECT) {
            self.waiting.values_mut().for_each(|waiting| waiting.last = waiting.last.max(event.at));
        }
        let host = seen.context.node.host_netns;
        let is_deletion = event.kind == Kind::LinkDeleted && !event.resync;
        if let Some(link) = event.link.as_ref().filter(|link| is_deletion && link.netns == host) {
            let deleted =
                Deleted { at: event.at, seq: event.seq, link: link.clone(), target: event.target.clone() };
            crate::bounded::push(&mut self.deleted, DELETED_MAX, deleted);
        }
        Look::No
    }

    fn change(&mut self, seen: &Seen<'_, ()>, change: &ModelChange<'_>, findings: &mut Findings) -> Look {
        match change {
            ModelChange::UnfreedDevice { ifname, quote } => self.said(seen, ifname, *quote, findings),
            ModelChange::Ready => self.complete_since = seen.context.now,
            _ => return Look::No,
        }
        Look::Now
    }

    fn conditions(&mut self, seen: &Seen<'_, ()>, _: &mut Findings) -> Option<Vec<Condition<()>>> {
        let now = seen.context.now;
        self.waiting.retain(|_, waiting| waiting.last.saturating_add(QUIET) > now);
        let is_resumed = self.resumed_until > now;
        if self.waiting.is_empty() && !is_resumed {
            self.lines = 0;
        }
        Some(match self.report(seen) {
            Some((since, report)) => vec![Condition { since: Some(since), ..Condition::new(report) }],
            None if is_resumed => vec![Condition::unknown(SUBJECT.to_owned())],
            None => Vec::new(),
        })
    }

    fn settle(&self, seen: &Seen<'_, ()>, findings: &mut Findings) -> Option<BootNs> {
        if self.waiting.contains_key("lo") {
            link(seen, findings);
        }
        let ends = self.waiting.values().map(|waiting| waiting.last.saturating_add(QUIET));
        ends.chain([self.resumed_until]).filter(|end| *end > seen.context.now).min()
    }

    fn ended(&self, _: &Context<'_>, _: &str, _: &()) -> Option<CloseReason> {
        Some(CloseReason::LikelyGone)
    }

    fn resume(&mut self, context: &Context<'_>, event: &Event) -> Option<(String, ())> {
        let incident = event.incident.as_deref()?;
        self.lines = incident.count;
        self.resumed_until = context.now.saturating_add(QUIET);
        self.resumed = context.clock.boot_ns(&incident.first_seen).map(|since| Waiting {
            since,
            since_text: context.clock.time_of_day(since),
            last: context.now,
            quote: None,
            deleted: event.link.clone().map(|link| Deleted {
                at: since,
                seq: event.seq,
                link,
                target: event.target.clone(),
            }),
        });
        Some((SUBJECT.to_owned(), ()))
    }
}
