//! The open incidents: evidence, counts, and what of a change is worth telling.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::finding::{Count, IncidentObjects, Repeat, Report};
use super::identity::IncidentId;
use crate::event::{EVIDENCE_MAX, Incident, WallClock};
use crate::observation::BootNs;

/// A changed summary alone is told so often; later it comes with the next thing that is told.
const SUMMARIES: u32 = 16;
/// Closed incidents that can still be named as a cause.
const FORMER: usize = 256;

/// An incident that is open.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpenIncident {
    incident: Incident,
    subject: String,
    objects: IncidentObjects,
    /// When it was seen last, if that is later than what the incident says.
    last: Option<BootNs>,
    summaries: u32,
}

impl OpenIncident {
    pub(super) fn new(id: IncidentId, kind: &str, report: Report, now: BootNs, clock: WallClock) -> Self {
        let mut open = Self {
            incident: Incident {
                id: id.text(),
                kind: kind.to_owned(),
                severity: report.severity,
                confidence: report.confidence,
                opened: clock.text(now),
                closed: None,
                first_seen: clock.text(report.first),
                last_seen: clock.text(report.last),
                count: match report.count {
                    Count::More(count) | Count::Total(count) => count.max(1),
                },
                close_reason: None,
                found_at_start: report.found_at_start,
                caused_by: Vec::new(),
                summary: report.summary,
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

    /// As an earlier run of the daemon left it.
    pub(super) fn resumed(incident: Incident, subject: String, objects: IncidentObjects) -> Self {
        Self { incident, subject, objects, last: None, summaries: 0 }
    }

    /// What it happens to.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.incident.kind
    }

    /// The objects of its newest evidence.
    #[must_use]
    pub fn objects(&self) -> &IncidentObjects {
        &self.objects
    }

    /// As the schema shows it.
    #[must_use]
    pub fn incident(&self, clock: WallClock) -> Incident {
        let mut incident = self.incident.clone();
        if let Some(last) = self.last {
            incident.last_seen = clock.text(last);
        }
        incident
    }

    /// Takes a report; true if it is worth telling.
    pub(super) fn report(&mut self, report: Report) -> bool {
        let incident = &mut self.incident;
        let mut notable = false;
        if report.confidence > incident.confidence {
            incident.confidence = report.confidence;
            notable = true;
        }
        if report.summary != incident.summary {
            incident.summary = report.summary;
            self.summaries += 1;
            notable |= self.summaries <= SUMMARIES;
        }
        if let Some(advice) = report.advice {
            incident.advice = advice;
        }
        self.objects.merge(report.objects);
        for seq in report.evidence {
            self.add_evidence(seq);
        }
        let repeat = Repeat {
            subject: report.subject,
            last: report.last,
            evidence: None,
            count: report.count,
            severity: Some(report.severity),
        };
        notable | self.repeat(&repeat)
    }

    /// Takes a repetition; true if it is worth telling: at counts 2, 4, 8, …, and when it got worse.
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
        };
        let worse = repeat.severity.is_some_and(|severity| severity > incident.severity);
        if let Some(severity) = repeat.severity.filter(|_| worse) {
            incident.severity = severity;
        }
        worse || incident.count.checked_ilog2() != before.checked_ilog2()
    }

    /// Links to a cause; true if that is news.
    pub(super) fn add_cause(&mut self, cause: IncidentId) -> bool {
        let cause = cause.text();
        let causes = &mut self.incident.caused_by;
        let news = cause != self.incident.id && !causes.contains(&cause) && causes.len() < EVIDENCE_MAX;
        if news {
            causes.push(cause);
        }
        news
    }

    /// Keeps the first and the newest.
    pub(super) fn add_evidence(&mut self, seq: u64) {
        let evidence = &mut self.incident.evidence;
        if evidence.last() == Some(&seq) {
            return;
        }
        if evidence.len() >= EVIDENCE_MAX {
            evidence.remove(EVIDENCE_MAX / 2);
            self.incident.evidence_omitted += 1;
        }
        evidence.push(seq);
    }
}

/// All that are open, and the ids of some that were.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Incidents {
    pub(super) open: BTreeMap<IncidentId, OpenIncident>,
    former: VecDeque<IncidentId>,
}

impl Incidents {
    /// All of them, in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = &OpenIncident> {
        self.open.values()
    }

    /// Those of one kind.
    pub fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a OpenIncident> {
        self.iter().filter(move |open| open.kind() == kind)
    }

    pub(super) fn close(&mut self, id: IncidentId) -> Option<OpenIncident> {
        let open = self.open.remove(&id)?;
        if self.former.len() >= FORMER {
            self.former.pop_front();
        }
        self.former.push_back(id);
        Some(open)
    }

    /// Whether it is or was open, as far as that is remembered.
    pub(super) fn knows(&self, id: IncidentId) -> bool {
        self.open.contains_key(&id) || self.former.contains(&id)
    }
}
