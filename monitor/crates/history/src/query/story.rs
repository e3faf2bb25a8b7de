//! The story of one subject: its events and incidents in order, cause before effect, and a verdict.
//!
//! Records, incidents and the daemon's events about itself enter; a story leaves, for text or JSON.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kevtmon_core::diagnose::Suspicion;
use kevtmon_event::{Actor, Advice, CloseReason, Confidence, Role, Severity};
use kevtmon_types::is_zero::is_zero;
use serde::{Deserialize, Serialize};

use super::Record;
use super::coverage::{Coverage, Missing, Unseen};
use super::current;
use super::down;
use super::group;
use super::history::{IncidentView, status};
use super::key::keys;
use super::record::timestamp;
use super::stale::Stale;
use super::subject::Subject;
use super::verdict::{self, Verdict};

/// Maximum number of steps; those of least weight are left out first.
const STEPS: usize = 60;

/// What a story is made of.
#[derive(Debug, Clone)]
pub struct Parts<'a> {
    /// What it is about.
    pub subject: Subject,
    /// Events that name it.
    pub records: Vec<Record>,
    /// Whether there are older ones.
    pub truncated: bool,
    /// Evidence of its incidents, whatever it names.
    pub evidence: Vec<Record>,
    /// Incidents that concern it, and their causes.
    pub incidents: Vec<IncidentView>,
    /// How many more concern it.
    pub incidents_omitted: usize,
    /// What concerns it and is not judged yet.
    pub suspected: Vec<Suspicion>,
    /// What the daemon could not see.
    pub coverage: Coverage<'a>,
}

/// What happened to one subject, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Story {
    pub node: String,
    /// What it is about.
    pub subject: Subject,
    /// What is known of a container or a pod at this moment.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub now: Vec<String>,
    /// Incidents, each after its causes.
    pub incidents: Vec<StoryIncident>,
    /// Incidents that were left out because there are too many.
    pub incidents_omitted: usize,
    /// What looks like an incident and is not judged yet.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub suspected: Vec<Suspicion>,
    /// Events, in order of time.
    pub steps: Vec<Step>,
    /// Steps that were left out because there are too many.
    pub steps_omitted: usize,
    pub verdict: Verdict,
    /// What to do next.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub advice: Vec<Advice>,
    /// What could not be seen.
    pub unseen: Vec<Unseen>,
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoryIncident {
    pub id: String,
    pub kind: String,
    /// How bad it is.
    pub severity: Severity,
    /// How sure it is.
    pub confidence: Confidence,
    pub opened: String,
    pub closed: Option<String>,
    /// By how many milliseconds the wall clock was set between the two.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub clock_set_ms: i64,
    pub close_reason: Option<CloseReason>,
    /// It is open because it opens again and again, and nothing has been wrong since then.
    pub well_since: Option<String>,
    /// It is not known whether it is still so.
    pub stale: Option<Stale>,
    /// How often it was seen.
    pub count: u64,
    /// The same in words, with what was counted and over which time; absent if it was seen once.
    pub repeated: Option<String>,
    /// Counts how often it opened, from 1.
    pub episode: u32,
    pub summary: String,
    /// What was checked and found healthy.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub ruled_out: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub caused_by: Vec<Cause>,
}

/// A link from effect to cause.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// Id of the incident that caused it.
    pub id: String,
    /// How sure that is: no surer than either end. Absent where that incident is no longer known.
    pub confidence: Option<Confidence>,
}

/// An event of a story.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub time: String,
    pub seq: u64,
    pub kind: String,
    /// How bad it is.
    pub severity: Severity,
    pub message: String,
    /// Roles of the subject in it; none for an event that is only evidence.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub roles: Vec<Role>,
    /// Ids of the incidents that it is evidence of.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub evidence_of: Vec<String>,
    /// The process that did it.
    pub actor: Option<Actor>,
    /// The same again, of other neighbors or containers perhaps, told once.
    pub repeated: Option<Repeated>,
    /// When the episodes of the incidents opened that it is evidence of.
    #[serde(skip)]
    episodes: Vec<String>,
    /// What it has in common with its repetitions.
    #[serde(skip)]
    group: String,
    #[serde(skip)]
    weight: u8,
}

/// How often the event of a step happened again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repeated {
    pub count: u64,
    /// When the last of them happened.
    pub until: String,
    pub last_seq: u64,
}

impl StoryIncident {
    /// What is to be said before its summary, where it is not known to be so now.
    pub fn status(&self) -> Option<&'static str> {
        let Self { closed, close_reason, well_since, stale, .. } = self;
        status(closed.as_deref(), *close_reason, well_since.as_deref(), stale.as_ref())
    }
}

pub fn build(parts: Parts<'_>) -> Story {
    let ordered = in_causal_order(&parts.incidents);
    let all = steps(&parts);
    let down = parts.coverage.state.map_or_else(Vec::new, |state| {
        let mut down = down::told(state, &parts.subject);
        down.extend(down::without_route(state, &parts.subject, &parts.records));
        down
    });
    let mut verdict = verdict::conclude(&ordered, &parts.suspected, &down, &all);
    if verdict.since.is_none() && !verdict.open {
        verdict.unwatched = parts.coverage.unwatched();
    }
    let begin = all.iter().map(|step| timestamp(&step.time));
    let begin = begin.chain(parts.incidents.iter().map(|view| timestamp(&view.incident.first_seen))).min();
    let mut unseen = without_actor(&all);
    unseen.extend(other_holders(&parts));
    if parts.truncated {
        unseen.push(self::unseen(Missing::Older { looked_at: parts.records.len() }));
    }
    unseen.extend(parts.coverage.unseen(begin.unwrap_or(Timestamp::MAX)));
    let advice = verdict::main_incident(&ordered)
        .and_then(|incident| parts.incidents.iter().find(|view| view.incident.id == incident.id))
        .filter(|view| view.is_open())
        .map(|view| view.incident.advice.iter().filter(|step| !leads_here(step)).cloned().collect());
    let (steps, steps_omitted) = shortened(folded(all));
    let node = parts.coverage.state.map_or(&parts.coverage.extent.node, |state| &state.node).clone();
    let now = parts.coverage.state.map_or_else(Vec::new, |state| current::told(state, &parts.subject));
    Story {
        node,
        now,
        subject: parts.subject,
        incidents: ordered,
        incidents_omitted: parts.incidents_omitted,
        suspected: parts.suspected,
        steps,
        steps_omitted,
        verdict,
        advice: advice.unwrap_or_default(),
        unseen,
    }
}

/// Whether a step leads to the story that is being read: an incident knows no other way to it.
fn leads_here(step: &Advice) -> bool {
    step.command.starts_with("kevtmon why ")
}

fn unseen(what: Missing) -> Unseen {
    Unseen { what, from: None, to: None }
}

/// Causes first, the rest by time. A cycle is broken at its oldest.
fn in_causal_order(incidents: &[IncidentView]) -> Vec<StoryIncident> {
    let mut rest: Vec<&IncidentView> = incidents.iter().collect();
    rest.sort_by_key(|view| (timestamp(&view.incident.opened), view.incident.id.as_str()));
    // Of several episodes, the latest stands for the incident.
    let by_id: BTreeMap<&str, &IncidentView> =
        rest.iter().map(|view| (view.incident.id.as_str(), *view)).collect();
    let mut ordered = Vec::with_capacity(rest.len());
    let mut placed = BTreeSet::new();
    while !rest.is_empty() {
        let is_next = |view: &&IncidentView| {
            view.incident
                .caused_by
                .iter()
                .all(|id| placed.contains(id.as_str()) || !by_id.contains_key(id.as_str()))
        };
        let view = rest.remove(rest.iter().position(is_next).unwrap_or(0));
        placed.insert(view.incident.id.as_str());
        ordered.push(story_incident(view, &by_id));
    }
    ordered
}

fn story_incident(view: &IncidentView, by_id: &BTreeMap<&str, &IncidentView>) -> StoryIncident {
    let incident = view.incident.clone();
    let cause = |id: String| {
        let cause = by_id.get(id.as_str());
        let confidence = cause.map(|cause| cause.incident.confidence.min(incident.confidence));
        Cause { confidence, id }
    };
    StoryIncident {
        repeated: view.repeated(),
        caused_by: incident.caused_by.into_iter().map(cause).collect(),
        id: incident.id,
        kind: incident.kind,
        severity: incident.severity,
        confidence: incident.confidence,
        opened: incident.opened,
        closed: incident.closed,
        clock_set_ms: incident.clock_set_ms,
        close_reason: incident.close_reason,
        well_since: view.well_since.clone(),
        stale: view.stale.clone(),
        count: incident.count,
        episode: incident.episode,
        ruled_out: incident.ruled_out,
        summary: incident.summary,
    }
}

fn steps(parts: &Parts<'_>) -> Vec<Step> {
    let mut records: Vec<&Record> = parts.records.iter().chain(&parts.evidence).collect();
    records.sort_by_key(|record| (record.time(), record.event.seq));
    records.dedup_by(|a, b| (a.event.seq, &a.event.boot_id) == (b.event.seq, &b.event.boot_id));
    let mut steps: Vec<Step> = records
        .into_iter()
        .map(|record| step(record, parts))
        // Incidents are listed apart, with their times and how often they were seen.
        .filter(|step| !step.kind.starts_with("incident."))
        .collect();
    // What is of least weight is told where nothing else is.
    if steps.iter().any(|step| step.weight > 0) {
        steps.retain(|step| step.weight > 0);
    }
    steps
}

fn step(record: &Record, parts: &Parts<'_>) -> Step {
    let event = &record.event;
    let keys = keys(event);
    let is_subject = |key| parts.subject.lookups.iter().any(|lookup| lookup.matches(key));
    let roles: BTreeSet<Role> =
        keys.iter().filter(|(key, _)| is_subject(key)).map(|(_, role)| *role).collect();
    let (evidence_of, episodes) = parts
        .incidents
        .iter()
        .filter(|view| view.boot_id == event.boot_id && view.incident.evidence.contains(&event.seq))
        .map(|view| (view.incident.id.clone(), view.incident.opened.clone()))
        .unzip::<_, _, Vec<String>, Vec<String>>();
    let severity_weight = match event.severity {
        Severity::Debug => 0,
        Severity::Info => 1,
        Severity::Notice => 2,
        Severity::Warning | Severity::Critical => 3,
    };
    let explains = !evidence_of.is_empty() || event.incident.is_some();
    Step {
        time: event.time.clone(),
        seq: event.seq,
        kind: record.kind.clone(),
        severity: event.severity,
        message: event.message.clone(),
        roles: roles.into_iter().collect(),
        evidence_of,
        actor: event.actor.as_deref().cloned(),
        repeated: None,
        episodes,
        group: group::group_key(event, &record.kind),
        weight: if explains { 4 } else { severity_weight },
    }
}

/// Tells what happens again and again once, with how often and until when. Where other kinds came between, the last time
/// stands for itself, too: what is so in the end follows from the order.
fn folded(steps: Vec<Step>) -> Vec<Step> {
    let mut told: Vec<Option<Step>> = Vec::new();
    // By what they have in common: callers may take turns.
    let mut alike: BTreeMap<String, Alike> = BTreeMap::new();
    let (mut last_kind, mut kinds) = (String::new(), 0);
    for step in steps {
        if group::run(&last_kind) != group::run(&step.kind) {
            alike.clear();
        }
        if last_kind != step.kind {
            last_kind.clone_from(&step.kind);
            kinds += 1;
        }
        let like = format!("{:?}/{:?}/{}", step.episodes, step.roles, step.group);
        let at = told.len();
        let Some(known) = alike.get_mut(&like) else {
            alike.insert(like, Alike { first: at, last: None, kinds });
            told.push(Some(step));
            continue;
        };
        let is_apart = known.kinds != kinds;
        known.kinds = kinds;
        let before = match (is_apart, known.last) {
            (true, last) => {
                known.last = Some(at);
                told.push(Some(step));
                last.and_then(|last| told.get_mut(last)?.take())
            }
            (false, Some(last)) => told.get_mut(last).and_then(|last| last.replace(step)),
            (false, None) => Some(step),
        };
        if let (Some(before), Some(Some(first))) = (before, told.get_mut(known.first)) {
            first.count(before);
        }
    }
    told.into_iter().flatten().collect()
}

/// Where steps stand that have something in common.
struct Alike {
    first: usize,
    /// The last one, where other kinds came between.
    last: Option<usize>,
    /// How many times the kind had changed by the last one.
    kinds: usize,
}

impl Step {
    fn count(&mut self, again: Self) {
        let count = self.repeated.as_ref().map_or(0, |repeated| repeated.count);
        self.repeated = Some(Repeated { count: count + 1, until: again.time, last_seq: again.seq });
        self.weight = self.weight.max(again.weight);
    }
}

/// The newest harmful event without an actor that must have had one.
fn without_actor(steps: &[Step]) -> Vec<Unseen> {
    let with_actor =
        ["neighbor.deleted", "neighbor.changed", "mount.busy", "link.deleted", "link.moved", "link.changed"];
    let lacks_actor = |step: &&Step| {
        step.actor.is_none() && step.severity >= Severity::Warning && with_actor.contains(&step.kind.as_str())
    };
    let missing = |step: &Step| Unseen {
        what: Missing::Actor { kind: step.kind.clone(), seq: step.seq },
        from: Some(step.time.clone()),
        to: None,
    };
    steps.iter().rev().find(lacks_actor).map(missing).into_iter().collect()
}

/// The mounts of which the newest scan for holders has left something out.
fn other_holders(parts: &Parts<'_>) -> Vec<Unseen> {
    let mut records: Vec<&Record> = parts.records.iter().chain(&parts.evidence).collect();
    records.sort_by_key(|record| (record.time(), record.event.seq));
    let mut newest = BTreeMap::new();
    for event in records.into_iter().map(|record| &record.event) {
        if let (Some(mount), Some(complete)) = (&event.mount, event.holders_complete) {
            newest.insert((mount.mntns, mount.label()), (complete, event));
        }
    }
    let partial = newest.into_iter().filter(|(_, (complete, _))| !complete);
    partial
        .map(|((_, path), (_, event))| {
            let unreadable = event.holders_unreadable.clone();
            unseen(Missing::Holders { path: path.to_owned(), seq: event.seq, unreadable })
        })
        .collect()
}

/// Leaves out the steps of least weight, of those the oldest.
fn shortened(mut steps: Vec<Step>) -> (Vec<Step>, usize) {
    let omitted = steps.len().saturating_sub(STEPS);
    let mut order: Vec<usize> = (0..steps.len()).collect();
    order.sort_by_key(|index| (steps[*index].weight, *index));
    let left_out: BTreeSet<usize> = order.into_iter().take(omitted).collect();
    let mut index = 0;
    steps.retain(|_| {
        index += 1;
        !left_out.contains(&(index - 1))
    });
    (steps, omitted)
}

#[cfg(test)]
pub mod tests;
