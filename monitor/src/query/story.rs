//! The story of one thing: its events and incidents in order, cause before effect, and what it comes to.
//!
//! Records, incidents and what the daemon said of itself enter; a story leaves, for people or as JSON. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Record;
use super::blind::{Missing, Unseen, Watch};
use super::history::IncidentView;
use super::key::keys;
use super::record::timestamp;
use super::subject::Subject;
use super::verdict::{self, Verdict};
use crate::event::{Actor, Advice, CloseReason, Confidence, Kind, Role, Severity};

/// Most steps of a story; what is of least weight is left out first.
const STEPS: usize = 60;

/// What a story is made of.
#[derive(Debug, Clone)]
pub struct Material<'a> {
    /// What it is about.
    pub subject: Subject,
    /// Events in which it plays a part.
    pub records: Vec<Record>,
    /// Whether there are older ones.
    pub truncated: bool,
    /// Events that its incidents rest on, whomever they concern.
    pub evidence: Vec<Record>,
    /// Incidents that concern it, and those that led to them.
    pub incidents: Vec<IncidentView>,
    /// How many more concern it.
    pub incidents_omitted: usize,
    /// What the daemon could see.
    pub watch: Watch<'a>,
}

/// What happened to one thing, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Story {
    /// The node.
    pub node: String,
    /// What it is about.
    pub subject: Subject,
    /// Incidents, each after those that led to it.
    pub incidents: Vec<Chapter>,
    /// Incidents that were left out because there are too many.
    pub incidents_omitted: usize,
    /// Events, in order of time.
    pub steps: Vec<Step>,
    /// Steps that were left out because there are too many.
    pub steps_omitted: usize,
    /// What it comes to.
    pub verdict: Verdict,
    /// What to do next.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub advice: Vec<Advice>,
    /// What could not be seen.
    pub unseen: Vec<Unseen>,
}

/// An incident of a story.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Chapter {
    /// Its id.
    pub id: String,
    /// Its kind.
    pub kind: String,
    /// How bad it is.
    pub severity: Severity,
    /// How sure it is.
    pub confidence: Confidence,
    /// When it opened.
    pub opened: String,
    /// When it closed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub closed: Option<String>,
    /// Why it closed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub close_reason: Option<CloseReason>,
    /// How often it was seen.
    pub count: u64,
    /// One sentence.
    pub summary: String,
    /// What led to it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub caused_by: Vec<Cause>,
}

/// A link from effect to cause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// Id of the incident that led to it.
    pub id: String,
    /// How sure that is: no surer than either end. Absent where that incident is no longer known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub confidence: Option<Confidence>,
}

/// An event of a story.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// When it happened.
    pub time: String,
    /// Its number.
    pub seq: u64,
    /// Its kind.
    pub kind: String,
    /// How bad it is.
    pub severity: Severity,
    /// What happened.
    pub message: String,
    /// The parts that the subject plays in it; none where it only explains.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub roles: Vec<Role>,
    /// Ids of the incidents that rest on it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub evidence_of: Vec<String>,
    /// Who did it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub actor: Option<Actor>,
    #[serde(skip)]
    weight: u8,
}

/// Puts it in order.
#[must_use]
pub fn tell(material: Material<'_>) -> Story {
    let chapters = chapters(&material.incidents);
    let all = steps(&material);
    let verdict = verdict::reach(&chapters, &all);
    let begin = all.iter().map(|step| timestamp(&step.time));
    let begin = begin.chain(material.incidents.iter().map(|view| timestamp(&view.incident.first_seen))).min();
    let mut unseen = nobody(&all);
    if material.truncated {
        unseen.push(whole(Missing::Older { looked_at: material.records.len() }));
    }
    unseen.extend(material.watch.unseen(begin.unwrap_or(Timestamp::MAX)));
    let advice = verdict::headline(&chapters)
        .and_then(|chapter| material.incidents.iter().find(|view| view.incident.id == chapter.id))
        .filter(|view| view.is_open())
        .map(|view| view.incident.advice.clone());
    let (steps, steps_omitted) = shortened(all);
    let node = material.watch.state.map_or(&material.watch.extent.node, |state| &state.node).clone();
    Story {
        node,
        subject: material.subject,
        incidents: chapters,
        incidents_omitted: material.incidents_omitted,
        steps,
        steps_omitted,
        verdict,
        advice: advice.unwrap_or_default(),
        unseen,
    }
}

fn whole(what: Missing) -> Unseen {
    Unseen { what, from: None, to: None }
}

/// Causes first; what nothing connects goes by time. A circle is broken at its oldest.
fn chapters(incidents: &[IncidentView]) -> Vec<Chapter> {
    let by_id: BTreeMap<&str, &IncidentView> =
        incidents.iter().map(|view| (view.incident.id.as_str(), view)).collect();
    let mut left: Vec<&IncidentView> = by_id.values().copied().collect();
    left.sort_by_key(|view| (timestamp(&view.incident.opened), view.incident.id.as_str()));
    let mut chapters = Vec::with_capacity(left.len());
    let mut told = BTreeSet::new();
    while !left.is_empty() {
        let is_next = |view: &&IncidentView| {
            view.incident
                .caused_by
                .iter()
                .all(|id| told.contains(id.as_str()) || !by_id.contains_key(id.as_str()))
        };
        let view = left.remove(left.iter().position(is_next).unwrap_or(0));
        told.insert(view.incident.id.as_str());
        chapters.push(chapter(view, &by_id));
    }
    chapters
}

fn chapter(view: &IncidentView, by_id: &BTreeMap<&str, &IncidentView>) -> Chapter {
    let incident = view.incident.clone();
    let cause = |id: String| {
        let cause = by_id.get(id.as_str());
        let confidence = cause.map(|cause| cause.incident.confidence.min(incident.confidence));
        Cause { confidence, id }
    };
    Chapter {
        caused_by: incident.caused_by.into_iter().map(cause).collect(),
        id: incident.id,
        kind: incident.kind,
        severity: incident.severity,
        confidence: incident.confidence,
        opened: incident.opened,
        closed: incident.closed,
        close_reason: incident.close_reason,
        count: incident.count,
        summary: incident.summary,
    }
}

fn steps(material: &Material<'_>) -> Vec<Step> {
    let mut records: Vec<&Record> = material.records.iter().chain(&material.evidence).collect();
    records.sort_by_key(|record| (record.time(), record.event.seq));
    records.dedup_by(|a, b| (a.event.seq, &a.event.boot_id) == (b.event.seq, &b.event.boot_id));
    records
        .into_iter()
        .map(|record| step(record, material))
        // Incidents are told above, with how often they were seen.
        .filter(|step| step.weight > 0 && step.kind != Kind::IncidentUpdated.name())
        .collect()
}

fn step(record: &Record, material: &Material<'_>) -> Step {
    let event = &record.event;
    let keys = keys(event);
    let is_subject = |key| material.subject.lookups.iter().any(|lookup| lookup.matches(key));
    let roles: BTreeSet<Role> =
        keys.iter().filter(|(key, _)| is_subject(key)).map(|(_, role)| *role).collect();
    let evidence_of: Vec<String> = material
        .incidents
        .iter()
        .filter(|view| view.boot_id == event.boot_id && view.incident.evidence.contains(&event.seq))
        .map(|view| view.incident.id.clone())
        .collect();
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
        weight: if explains { 4 } else { severity_weight },
    }
}

/// Harm that nobody was seen doing.
fn nobody(steps: &[Step]) -> Vec<Unseen> {
    let by_somebody =
        ["neighbor.deleted", "neighbor.changed", "mount.busy", "link.deleted", "link.moved", "link.changed"];
    let is_nobodys = |step: &&Step| {
        step.actor.is_none()
            && step.severity >= Severity::Warning
            && by_somebody.contains(&step.kind.as_str())
    };
    let missing = |step: &Step| Unseen {
        what: Missing::Actor { kind: step.kind.clone(), seq: step.seq },
        from: Some(step.time.clone()),
        to: None,
    };
    // The newest says enough.
    steps.iter().rev().find(is_nobodys).map(missing).into_iter().collect()
}

/// Leaves out the lightest, of those the oldest.
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
pub(crate) mod tests;
