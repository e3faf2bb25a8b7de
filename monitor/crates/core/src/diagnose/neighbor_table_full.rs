//! The kernel's table of neighbor entries is full. All network namespaces of the node share it, so that one of them can take the
//! network of all others: for a gateway that has no entry any more there is no packet.
//!
//! That it is full is the kernel's own count. Who has most of its entries is read from the namespaces then. Who makes entries is
//! reported by the kernel programs once the table is nearly full: who made those before is not known. No process of the host's own
//! namespace is named: there packets of pods make entries too, in whatever task they interrupt.

use std::cmp::Reverse;

use kevtmon_event::wording::{actor_subject, pod_label, target_label};
use kevtmon_event::{
    Actor, Advice, Confidence, Event, NeighborCount, NeighborTable, Severity, Shared, Target, form,
};
use kevtmon_observation::{self as observation, BootNs, NeighborCreator, NsInum, Request};
use kevtmon_types::settings::{Threshold, Unit, thresholds};
use serde::{Deserialize, Serialize};

use super::advice::advice;
use super::conditions::{Condition, Conditions, Known, Look, Seen, start};
use super::finding::{Count, Findings, IncidentObjects, Repeat, Report};
use super::gateway_neighbor_lost::health::live_target;
use super::rereads::RereadSchedule;
use super::{Alert, Context, IncidentKind, ModelChange, SECOND, Watch};

pub(super) const KIND: &str = "neighbor-table-full";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "The kernel's table of neighbor entries is full",
    symptom: "a pod is unreachable",
    names: "the pod that fills the neighbor table of all, and the process that does",
    opens: "The kernel's table of neighbor entries is full for 2 s.",
    alert: Alert::Open { severity: Severity::Critical, minutes: 0 },
    meaning: "All network namespaces of the node share one table for IPv4 and one for IPv6. While it is full, the kernel \
             removes entries that others need, and refuses new ones: pods can lose their gateways, though nobody \
             deletes their entries.",
    remedy: "End what fills it, such as a scan of a large network; or raise gc_thresh1 to gc_thresh3, if the node needs so \
             many neighbors.",
    severities: &[Severity::Warning, Severity::Critical],
    counted: "refused entries",
    thresholds: THRESHOLDS,
    watched_by: Watch::None,
    is_optional: true,
    start: start::<NeighborTableFull>,
};

thresholds! {
    /// A table of neighbor entries that is full is reported when it has been so for this time.
    AFTER = "neighbor_table_full_seconds", default 2, Unit::Seconds;
}

/// A table is no longer full once it has not been for this time: what fills it may go on.
const OVER_AFTER: BootNs = 60 * SECOND;
/// How often the namespaces are read at most, to see who has the entries; and where nothing is refused, as on a node with many
/// permanent entries.
const READ_INTERVAL: BootNs = 60 * SECOND;
const QUIET_READ_INTERVAL: BootNs = 600 * SECOND;
/// Who made entries before that time is not to blame for what is full now.
const CREATED_WITHIN: BootNs = 60 * SECOND;
/// Higher limits are not advised.
const LIMIT_MAX: u64 = 1 << 20;
const CREATORS_MAX: usize = 64;
const NAMESPACES_MAX: usize = 5;

#[serde_with::skip_serializing_none]
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct NeighborTableFull {
    tables: Vec<Filled>,
    creators: Vec<Creator>,
    /// When the namespaces were to be read last.
    read: Option<BootNs>,
    rereads: RereadSchedule,
}

/// One that is or was full.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Filled {
    table: observation::NeighborTable,
    refused: u64,
    last: BootNs,
    /// The namespace that is to blame, and who has filled it.
    netns: Option<NsInum>,
    actor: Option<Shared<Actor>>,
}

/// Who made entries while the table was nearly full.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Creator {
    netns: NsInum,
    ipv6: bool,
    entries: u32,
    at: BootNs,
    actor: Shared<Actor>,
}

/// When any of it changes, the incident is reported again; a number only once it is ten times as high.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct News {
    netns: Option<NsInum>,
    pid: Option<u32>,
    magnitude: Option<u32>,
}

impl News {
    fn of(filled: &Filled) -> Self {
        Self {
            netns: filled.netns,
            pid: filled.actor.as_ref().map(|actor| actor.pid),
            magnitude: filled.refused.checked_ilog10(),
        }
    }
}

impl NeighborTableFull {
    fn looked(
        &mut self,
        seen: &Seen<'_, News>,
        tables: &[observation::NeighborTable],
        findings: &mut Findings,
    ) {
        let (context, now) = (seen.context, seen.context.now);
        let is_reached =
            |table: &observation::NeighborTable| table.refused > 0 || table.entries >= table.gc_thresh3;
        let is_refused = tables.iter().any(|table| table.refused > 0);
        let interval = if is_refused { READ_INTERVAL } else { QUIET_READ_INTERVAL };
        let is_due = self.read.is_none_or(|read| read.saturating_add(interval) <= now);
        if is_due && tables.iter().any(is_reached) {
            self.read = Some(now);
            self.rereads.schedule_all(now);
        }
        for table in tables {
            let is_full = is_reached(table) && (table.refused > 0 || self.is_used(context, table));
            match self.tables.iter_mut().find(|filled| filled.table.ipv6 == table.ipv6) {
                Some(filled) => {
                    filled.refused = filled.refused.saturating_add(table.refused);
                    filled.table = *table;
                    filled.last = if is_full { now } else { filled.last };
                }
                None if is_full => {
                    let (table, refused, last) = (*table, table.refused, now);
                    self.tables.push(Filled { table, refused, last, netns: None, actor: None });
                }
                None => {}
            }
            let subject = family(table.ipv6);
            if let Some(filled) = self.tables.iter().find(|filled| filled.table.ipv6 == table.ipv6)
                && is_full
                && seen.is_open(subject)
            {
                let count = Count::Total(filled.refused.max(1));
                findings.repeat(Repeat::new(subject.to_owned(), now, count));
            }
        }
    }

    fn created(&mut self, creator: &NeighborCreator, at: BootNs, actor: &Shared<Actor>) {
        let NeighborCreator { netns, ipv6, entries, .. } = *creator;
        self.creators.retain(|known| {
            let is_same = (known.netns, known.ipv6) == (netns, ipv6)
                && known.entries <= entries
                && (known.actor.pid, &known.actor.start_time_ns) == (actor.pid, &actor.start_time_ns);
            !is_same && at < known.at.saturating_add(CREATED_WITHIN)
        });
        // The one with the fewest entries makes room.
        self.creators.push(Creator { netns, ipv6, entries, at, actor: actor.clone() });
        self.creators.sort_by_key(|creator| Reverse(creator.entries));
        self.creators.truncate(CREATORS_MAX);
    }

    /// Finds who is to blame. Who was stays so until another process is.
    fn blame(&self, context: &Context<'_>, filled: &mut Filled) {
        let is_much = |entries: u64| entries >= filled.table.gc_thresh3 / 4;
        let creator = self.creators.iter().find(|one| {
            one.ipv6 == filled.table.ipv6
                && one.netns != context.node.host_netns
                && is_much(one.entries.into())
                && filled.last < one.at.saturating_add(CREATED_WITHIN)
        });
        if let Some(creator) = creator {
            (filled.netns, filled.actor) = (Some(creator.netns), Some(creator.actor.clone()));
        } else if filled.actor.is_none() {
            let largest = self.largest(context, filled.table.ipv6);
            let most = largest.first().filter(|(_, entries)| is_much((*entries).into()));
            filled.netns = most.map(|(netns, _)| *netns).or(filled.netns);
        }
    }

    fn condition(&self, context: &Context<'_>, filled: &Filled) -> Condition<News> {
        let Filled { table, refused, netns, actor, .. } = filled;
        let largest = self.largest(context, table.ipv6).into_iter().take(NAMESPACES_MAX);
        let count = |(netns, entries): (NsInum, u32)| NeighborCount {
            netns,
            owner: owner(context, netns),
            entries: entries.into(),
        };
        let object = NeighborTable {
            family: family(table.ipv6).to_owned(),
            entries: table.entries,
            limit: table.gc_thresh3,
            refused: *refused,
            namespaces: largest.map(count).collect(),
        };
        let is_shown =
            |netns: &NsInum| actor.is_some() || object.namespaces.iter().any(|shown| shown.netns == *netns);
        let target =
            netns.filter(is_shown).and_then(|netns| live_target(context.node, netns)).map(Shared::new);
        let severity = if *refused > 0 { Severity::Critical } else { Severity::Warning };
        let summary = summary(&object, *netns, actor.as_deref());
        let report = Report {
            advice: Some(steps(table, target.as_deref())),
            count: Count::Total((*refused).max(1)),
            objects: IncidentObjects {
                actor: actor.clone(),
                target,
                neighbor_table: Some(Box::new(object)),
                ..IncidentObjects::default()
            },
            ..Report::new(family(table.ipv6).to_owned(), severity, Confidence::Likely, summary, context.now)
        };
        Condition { memory: News::of(filled), ..Condition::new(report) }
    }

    /// Whether as many entries as may be count against the limit, of which the kernel's number is not only.
    fn is_used(&self, context: &Context<'_>, table: &observation::NeighborTable) -> bool {
        let sum: u64 =
            self.largest(context, table.ipv6).into_iter().map(|(_, entries)| u64::from(entries)).sum();
        sum >= table.gc_thresh3 - table.gc_thresh3 / 10
    }

    /// The namespaces with entries of a family, as they were read since the table was full, and how many, the largest first.
    fn largest(&self, context: &Context<'_>, ipv6: bool) -> Vec<(NsInum, u32)> {
        let all = context.node.namespaces.all();
        let all = all.filter(|(_, namespace)| self.read.is_some_and(|read| namespace.read >= read));
        let mut all: Vec<_> = all.map(|(netns, known)| (netns, known.limited_neighbors(ipv6))).collect();
        all.retain(|(_, entries)| *entries > 0);
        all.sort_by_key(|(netns, entries)| (Reverse(*entries), *netns));
        all
    }
}

fn owner(context: &Context<'_>, netns: NsInum) -> String {
    match netns == context.node.host_netns {
        true => "the host".to_owned(),
        false => target_label(&context.node.target(netns)).unwrap_or_else(|| format!("net:[{netns}]")),
    }
}

fn family(ipv6: bool) -> &'static str {
    if ipv6 { "ipv6" } else { "ipv4" }
}

/// `netns`: the namespace that is to blame.
fn summary(table: &NeighborTable, netns: Option<NsInum>, actor: Option<&Actor>) -> String {
    let NeighborTable { family, limit, refused, namespaces, .. } = table;
    let family = if family == "ipv6" { "IPv6" } else { "IPv4" };
    let refused = if *refused > 0 { "; the kernel refused new entries" } else { "" };
    if let Some(actor) = actor {
        let actor = actor_subject(actor);
        return format!(
            "{actor} has likely filled the {family} neighbor table of the node (limit {limit}){refused}"
        );
    }
    let most = match namespaces.iter().find(|one| Some(one.netns) == netns) {
        Some(most) => format!("{} of {limit} entries are of {}", most.entries, most.owner),
        None => format!("no network namespace is known that has many of its {limit} entries"),
    };
    format!("the {family} neighbor table of the node is full: {most}{refused}")
}

/// The kernel makes room from `gc_thresh2` on, so that a higher `gc_thresh3` alone helps little.
fn steps(table: &observation::NeighborTable, target: Option<&Target>) -> Vec<Advice> {
    let mut steps = Vec::new();
    if let Some(pod) = target.and_then(Target::confirmed_pod).map(pod_label) {
        let text = "show what is known of the pod that fills it";
        steps.push(advice(form::TELL_POD, text, &["kevtmon", "why", &pod]));
    }
    let limit = table.gc_thresh3.saturating_mul(4);
    if limit <= LIMIT_MAX {
        let setting = |number: u64, value: u64| {
            format!("net.{}.neigh.default.gc_thresh{number}={value}", family(table.ipv6))
        };
        let settings = [setting(3, limit), setting(2, limit / 2), setting(1, limit / 4)];
        let text = "raise the limits until the next boot, if the node needs so many neighbors";
        let [third, second, first] = &settings;
        steps.push(advice(form::RAISE_LIMITS, text, &["sysctl", "-w", third, second, first]));
    }
    steps
}

impl Conditions for NeighborTableFull {
    const SPEC: &'static IncidentKind = &SPEC;
    const HOLD: &'static Threshold = &AFTER;
    type Memory = News;

    fn change(&mut self, seen: &Seen<'_, News>, change: &ModelChange<'_>, findings: &mut Findings) -> Look {
        match change {
            ModelChange::NeighborTables(tables) => {
                self.looked(seen, tables, findings);
                Look::Now
            }
            ModelChange::NeighborCreator { creator, actor } => {
                self.created(creator, seen.context.now, actor);
                Look::soon_if(!self.tables.is_empty())
            }
            ModelChange::Netns(_) => Look::soon_if(!self.tables.is_empty()),
            ModelChange::NetnsGone(netns) => {
                // Its number is another one's later.
                self.creators.retain(|creator| creator.netns != *netns);
                for filled in self.tables.iter_mut().filter(|filled| filled.netns == Some(*netns)) {
                    filled.netns = None;
                }
                Look::No
            }
            _ => Look::No,
        }
    }

    fn conditions(&mut self, seen: &Seen<'_, News>, findings: &mut Findings) -> Option<Vec<Condition<News>>> {
        let context = seen.context;
        let all = || context.node.namespaces.all().map(|(netns, _)| netns).collect();
        for netns in self.rereads.take_due(context.now, all) {
            findings.request(Request::Netns { netns });
        }
        let mut tables = std::mem::take(&mut self.tables);
        tables.retain(|filled| context.now < filled.last.saturating_add(OVER_AFTER));
        tables.iter_mut().for_each(|filled| self.blame(context, filled));
        self.tables = tables;
        Some(self.tables.iter().map(|filled| self.condition(context, filled)).collect())
    }

    fn settle(&self, _: &Seen<'_, News>, _: &mut Findings) -> Option<BootNs> {
        let ends = self.tables.iter().map(|filled| filled.last.saturating_add(OVER_AFTER));
        ends.chain(self.rereads.next()).min()
    }

    fn is_news(known: &Known<News>, _: &Report, memory: &News) -> bool {
        let News { netns, pid, magnitude } = &known.memory;
        (memory.netns, memory.pid) != (*netns, *pid) || memory.magnitude > *magnitude
    }

    fn resume(&mut self, context: &Context<'_>, event: &Event) -> Option<(String, News)> {
        let object = event.neighbor_table.as_deref()?;
        let table = observation::NeighborTable {
            ipv6: object.family == family(true),
            entries: object.entries,
            gc_thresh2: object.limit,
            gc_thresh3: object.limit,
            refused: 0,
        };
        let of_actor = event.actor.as_ref().and_then(|actor| actor.netns);
        let of_target = event.target.as_ref().and_then(|_| object.namespaces.first());
        // Until it was looked at for as long as one that is full no more.
        let filled = Filled {
            table,
            refused: object.refused,
            last: context.now,
            netns: of_actor.or_else(|| of_target.map(|first| first.netns)),
            actor: event.actor.clone(),
        };
        let told = News::of(&filled);
        self.tables.push(filled);
        Some((object.family.clone(), told))
    }
}

#[cfg(test)]
mod tests;
