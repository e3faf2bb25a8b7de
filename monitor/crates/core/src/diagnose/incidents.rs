//! The open incidents: evidence, counts, and which changes are notable enough for an `incident.updated` event.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use kevtmon_event::{Advice, Confidence, EVIDENCE_MAX, Incident, Severity, WallClock};
use kevtmon_observation::BootNs;
use kevtmon_types::is_zero::is_zero;
use serde::{Deserialize, Serialize};

use super::finding::{Count, IncidentObjects, Repeat, Report};
use super::identity::IncidentId;
use crate::node::tenant::of_target;

/// Up to this number of times a changed summary alone is notable; after that it appears in the next update.
const SUMMARY_UPDATES_MAX: u32 = 16;
/// Open incidents of one container or pod; what users do in namespaces of their own has fewer.
const ACCOUNT_MAX: usize = 128;
const FOREIGN_MAX: usize = 16;
/// Closed incidents that can still be linked as a cause.
const CLOSED_MAX: usize = 256;
/// Changes of which it is known whose they were: more than the findings about one event.
const CHANGED_MAX: usize = 64;
/// Closed incidents whose next episode is known; more than the store keeps need none.
const EPISODES_MAX: usize = 1024;

/// How often an open incident has been seen by now, which its events tell at 1, 2, 4, 8 …
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recount {
    pub id: String,
    pub count: u64,
    /// When it was last seen, RFC 3339.
    pub last_seen: String,
    /// As [`Incident::clock_set_ms`].
    #[serde(skip_serializing_if = "is_zero", default)]
    pub clock_set_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpenIncident {
    pub(super) incident: Incident,
    pub subject: String,
    pub objects: IncidentObjects,
    /// When it was last observed, if that is later than `incident.last_seen`.
    last: Option<BootNs>,
    summaries: u32,
}

impl OpenIncident {
    pub(super) fn new(
        (id, episode): (IncidentId, u32),
        kind: &str,
        report: Report,
        now: BootNs,
        clock: WallClock,
    ) -> Self {
        let mut open = Self {
            incident: Incident {
                id: id.text(),
                kind: kind.to_owned(),
                severity: capped(report.severity, &report.objects),
                confidence: report.confidence,
                opened: clock.text(now),
                closed: None,
                first_seen: clock.text(report.first),
                last_seen: clock.text(report.last),
                count: match report.count {
                    Count::More(count) | Count::Total(count) | Count::Restart(count) => count.max(1),
                },
                counted: super::kind(kind).map_or_else(String::new, |kind| kind.counted.to_owned()),
                counted_since: None,
                episode,
                clock_set_ms: 0,
                close_reason: None,
                found_at_start: report.found_at_start,
                caused_by: Vec::new(),
                host_cause: report.host_cause,
                summary: report.summary,
                ruled_out: report.ruled_out.unwrap_or_default(),
                advice: report.advice.unwrap_or_default(),
                evidence: Vec::new(),
                evidence_omitted: 0,
            },
            subject: report.subject,
            objects: report.objects,
            last: None,
            summaries: 0,
        };
        report.evidence.into_iter().for_each(|seq| open.add_evidence(seq));
        open
    }

    pub(super) fn resumed(incident: Incident, subject: String, objects: IncidentObjects) -> Self {
        Self { incident, subject, objects, last: None, summaries: 0 }
    }

    pub fn kind(&self) -> &str {
        &self.incident.kind
    }

    /// The incident in the event schema.
    pub fn incident(&self, clock: WallClock) -> Incident {
        let mut incident = self.incident.clone();
        if let Some(last) = self.last {
            incident.last_seen = clock.text(last);
        }
        incident
    }

    /// How often it has been seen, if it was again since it opened.
    pub(super) fn recount(&self, clock: WallClock) -> Option<Recount> {
        let last_seen = clock.text(self.last?);
        let Incident { id, count, clock_set_ms, .. } = &self.incident;
        Some(Recount { id: id.clone(), count: *count, last_seen, clock_set_ms: *clock_set_ms })
    }

    /// The wall clock was set while it is open.
    pub(super) fn clock_set(&mut self, by_ms: i64) {
        self.incident.clock_set_ms = self.incident.clock_set_ms.saturating_add(by_ms);
    }

    /// Applies a report; returns whether the change is notable.
    pub(super) fn report(&mut self, report: Report, clock: WallClock) -> bool {
        let incident = &mut self.incident;
        let is_other_cause = matches!(report.count, Count::Restart(_));
        let mut notable = is_other_cause;
        if is_other_cause {
            incident.counted_since = Some(clock.text(report.last));
        }
        if report.confidence > incident.confidence || is_other_cause {
            notable |= report.confidence != incident.confidence;
            incident.confidence = report.confidence;
        }
        notable |= self.restate(report.summary);
        let incident = &mut self.incident;
        incident.host_cause = report.host_cause;
        if let Some(ruled_out) = report.ruled_out {
            incident.ruled_out = ruled_out;
        }
        if let Some(advice) = report.advice {
            incident.advice = advice;
        }
        if is_other_cause {
            self.objects = report.objects;
        } else {
            self.objects.merge(report.objects);
        }
        for seq in report.evidence {
            self.add_evidence(seq);
        }
        let repeat = Repeat::new(report.subject, report.last, report.count);
        notable | self.repeat(&Repeat { severity: Some(report.severity), ..repeat })
    }

    /// Replaces the summary; returns whether the change is notable.
    pub(super) fn restate(&mut self, summary: String) -> bool {
        if summary == self.incident.summary {
            return false;
        }
        self.incident.summary = summary;
        self.summaries += 1;
        self.summaries <= SUMMARY_UPDATES_MAX
    }

    /// Replaces a summary that differs in its time alone, and how sure it is; returns whether that is notable: another
    /// certainty.
    pub(super) fn renew(&mut self, summary: String, confidence: Confidence) -> bool {
        let before = std::mem::replace(&mut self.incident.confidence, confidence);
        self.incident.summary = summary;
        before != confidence
    }

    /// What is known of it in the end.
    pub(super) fn conclude(&mut self, summary: String, objects: IncidentObjects) {
        self.incident.summary = summary;
        self.objects.merge(objects);
    }

    /// Applies a repetition; returns whether the change is notable: at counts 2, 4, 8, … and when the severity rises.
    pub(super) fn repeat(&mut self, repeat: &Repeat) -> bool {
        if let Some(seq) = repeat.evidence {
            self.add_evidence(seq);
        }
        self.last = Some(self.last.map_or(repeat.last, |last| last.max(repeat.last)));
        let incident = &mut self.incident;
        let before = incident.count;
        incident.count = match repeat.count {
            Count::More(more) => before.saturating_add(more),
            Count::Total(total) => before.max(total),
            Count::Restart(count) => count,
        };
        let severity = repeat.severity.map(|severity| capped(severity, &self.objects));
        let worse = severity.is_some_and(|severity| severity > incident.severity);
        if let Some(severity) = severity.filter(|_| worse) {
            incident.severity = severity;
        }
        worse || incident.count.checked_ilog2() != before.checked_ilog2()
    }

    /// Replaces the next steps; returns whether that is notable: other commands than before, or a cause that is ruled out no
    /// more, and not too often. `is_known`: the whole node was read, so that what is not there is not only unknown yet.
    pub(super) fn advise(
        &mut self,
        ruled_out: Option<Vec<String>>,
        advice: Vec<Advice>,
        is_known: bool,
    ) -> bool {
        // By other links it is told whether it still uses what it used.
        let links = |step: &Advice| step.process.as_ref().map(|process| process.links.clone());
        let commands = |steps: &[Advice]| {
            steps.iter().map(|step| (step.command.clone(), links(step))).collect::<Vec<_>>()
        };
        let taken_back = |now: &Vec<String>| self.incident.ruled_out.iter().any(|cause| !now.contains(cause));
        let is_other = commands(&advice) != commands(&self.incident.advice);
        let is_notable = is_other || is_known && ruled_out.as_ref().is_some_and(taken_back);
        if is_other {
            self.incident.advice = advice;
        }
        self.summaries += u32::from(is_notable);
        if let Some(ruled_out) = ruled_out {
            self.incident.ruled_out = ruled_out;
        }
        is_notable && self.summaries <= SUMMARY_UPDATES_MAX
    }

    /// Links a cause; returns whether it is new.
    pub(super) fn add_cause(&mut self, cause: IncidentId) -> bool {
        let cause = cause.text();
        let causes = &mut self.incident.caused_by;
        let is_new = cause != self.incident.id && !causes.contains(&cause) && causes.len() < EVIDENCE_MAX;
        if is_new {
            causes.push(cause);
        }
        is_new
    }

    /// Adds evidence; when full, the first and the newest half are kept.
    pub(super) fn add_evidence(&mut self, seq: u64) {
        let evidence = &mut self.incident.evidence;
        // Without a number it was beyond a budget, and nobody has it.
        if seq == 0 || evidence.last() == Some(&seq) {
            return;
        }
        if evidence.len() >= EVIDENCE_MAX {
            evidence.remove(EVIDENCE_MAX / 2);
            self.incident.evidence_omitted += 1;
        }
        evidence.push(seq);
    }
}

/// The severity that an incident of this target may have.
fn capped(severity: Severity, objects: &IncidentObjects) -> Severity {
    match &objects.target {
        Some(target) if target.is_claimed() => severity.min(Severity::CLAIMED_MAX),
        _ => severity,
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Incidents {
    pub(super) open: BTreeMap<IncidentId, OpenIncident>,
    closed: VecDeque<IncidentId>,
    /// The last episode of closed incidents, the latest at the end.
    episodes: VecDeque<(IncidentId, u32)>,
    /// How often one has opened, changed or closed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub changes: u64,
    #[serde(skip)]
    changed: Changed,
}

/// Which incidents have opened, changed or closed, the latest at the end. Not part of the state: who does not know them looks at
/// all.
#[derive(Clone, Default)]
struct Changed(VecDeque<IncidentId>);

impl PartialEq for Changed {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl fmt::Debug for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changed").finish_non_exhaustive()
    }
}

impl Incidents {
    /// Which incidents have opened, changed or closed since `changes` was `seen`; `None` if that is too long ago to be known.
    pub(super) fn changed_since(&self, seen: u64) -> Option<impl Iterator<Item = IncidentId>> {
        let count = usize::try_from(self.changes.wrapping_sub(seen)).ok()?;
        let begin = self.changed.0.len().checked_sub(count)?;
        Some(self.changed.0.range(begin..).copied())
    }

    pub(super) fn note_change(&mut self, id: IncidentId) {
        self.changes = self.changes.wrapping_add(1);
        crate::bounded::push(&mut self.changed.0, CHANGED_MAX, id);
    }

    pub(super) fn by_id(&self) -> impl Iterator<Item = (IncidentId, &OpenIncident)> {
        self.open.iter().map(|(id, open)| (*id, open))
    }

    pub(super) fn get(&self, id: IncidentId) -> Option<&OpenIncident> {
        self.open.get(&id)
    }

    pub fn iter(&self) -> impl Iterator<Item = &OpenIncident> {
        self.open.values()
    }

    /// Whether another incident may open about the target of these objects. What is the node's own has no limit.
    pub(super) fn has_room_for(&self, objects: &IncidentObjects) -> bool {
        let Some(target) = objects.target.as_deref() else { return true };
        let account = of_target(target);
        let most = match target.is_foreign() {
            true => FOREIGN_MAX,
            false if account.is_empty() => return true,
            false => ACCOUNT_MAX,
        };
        let same = |open: &&OpenIncident| {
            open.objects
                .target
                .as_deref()
                .is_some_and(|other| other.is_foreign() == target.is_foreign() && of_target(other) == account)
        };
        self.open.values().filter(same).take(most).count() < most
    }

    pub(super) fn close(&mut self, id: IncidentId) -> Option<OpenIncident> {
        let open = self.open.remove(&id)?;
        crate::bounded::push(&mut self.closed, CLOSED_MAX, id);
        self.note_episode(id, open.incident.episode);
        Some(open)
    }

    /// Notes that an incident has closed, in this run or an earlier one.
    pub(super) fn note_episode(&mut self, id: IncidentId, episode: u32) {
        let known = self.episodes.iter().position(|(known, _)| *known == id);
        let earlier = known.and_then(|at| self.episodes.remove(at)).map_or(0, |(_, episode)| episode);
        crate::bounded::push(&mut self.episodes, EPISODES_MAX, (id, episode.max(earlier)));
    }

    pub(super) fn next_episode(&self, id: IncidentId) -> u32 {
        let last = self.episodes.iter().find(|(known, _)| *known == id);
        last.map_or(1, |(_, episode)| episode.saturating_add(1))
    }

    /// Whether an incident is open or was closed recently.
    pub(super) fn knows(&self, id: IncidentId) -> bool {
        self.open.contains_key(&id) || self.closed.contains(&id)
    }
}
