//! Runs the diagnoses, and the lifecycle of incidents: opened, updated, closed.
//!
//! In: events, changes of the model, time. Out: what is to be told, and questions. An incident that is found
//! again counts up and never opens a second time; one that an earlier run left open goes on without being
//! announced again.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use super::finding::{About, Finding, Findings, Report};
use super::identity::{Id, Namer};
use super::incidents::{Incidents, Open};
use super::{CAPACITY, Change, Diagnosis, Seen};
use crate::event::{CloseReason, Event, Incident, Kind, Severity, WallClock};
use crate::node::view::NodeView;
use crate::observation::{BootNs, Request};

/// This bit marks the scans that diagnoses ask for.
pub const SCAN_ID: u64 = 1 << 48;

/// An incident whose event is to be told.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    /// `incident.opened`, `incident.updated` or `incident.closed`.
    pub kind: Kind,
    /// When.
    pub at: BootNs,
    /// The incident as it is now.
    pub incident: Incident,
    /// Its objects.
    pub about: About,
}

/// Why a saved state cannot be restored.
#[derive(Debug, Error)]
pub enum RestoreError {
    /// A diagnosis does not understand its saved state.
    #[error("what was saved of {kind} cannot be read")]
    Diagnosis {
        /// Kind of its incidents.
        kind: &'static str,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
}

/// What goes on where an engine was.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Saved {
    now: BootNs,
    ready: Option<BootNs>,
    incidents: Incidents,
    strangers: Vec<Id>,
    discarded: u64,
    /// By the kind of their incidents.
    diagnoses: BTreeMap<String, Value>,
}

/// All diagnoses and all that they found.
#[derive(Debug)]
pub struct Engine {
    diagnoses: Vec<Box<dyn Diagnosis>>,
    namer: Namer,
    boot_id: String,
    now: BootNs,
    clock: WallClock,
    ready: Option<BootNs>,
    incidents: Incidents,
    /// Resumed incidents that no diagnosis knows how to go on with.
    strangers: Vec<Id>,
    findings: Findings,
    told: Vec<Told>,
    asked: Vec<Request>,
    discarded: u64,
}

impl Engine {
    /// Nothing is open.
    #[must_use]
    pub fn new(diagnoses: Vec<Box<dyn Diagnosis>>, node: &str, boot_id: &str) -> Self {
        Self {
            diagnoses,
            namer: Namer::new(node, boot_id),
            boot_id: boot_id.to_owned(),
            now: 0,
            clock: WallClock::default(),
            ready: None,
            incidents: Incidents::default(),
            strangers: Vec::new(),
            findings: Findings::default(),
            told: Vec::new(),
            asked: Vec::new(),
            discarded: 0,
        }
    }

    #[cfg(test)]
    pub(super) fn replace_diagnoses(&mut self, diagnoses: Vec<Box<dyn Diagnosis>>) {
        self.diagnoses = diagnoses;
    }

    /// All that is remembered; what was found is told and asked by then.
    ///
    /// # Errors
    /// Never in practice, as of [`Diagnosis::save`].
    pub fn save(&self) -> Result<Saved, serde_json::Error> {
        let saved = |diagnosis: &dyn Diagnosis| Ok((diagnosis.kind().to_owned(), diagnosis.save()?));
        Ok(Saved {
            now: self.now,
            ready: self.ready,
            incidents: self.incidents.clone(),
            strangers: self.strangers.clone(),
            discarded: self.discarded,
            diagnoses: self
                .diagnoses
                .iter()
                .map(|diagnosis| saved(diagnosis.as_ref()))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Goes on where another engine was. A diagnosis that it did not have begins anew.
    ///
    /// # Errors
    /// When a diagnosis does not understand what was saved.
    pub fn restore(&mut self, mut saved: Saved) -> Result<(), RestoreError> {
        for diagnosis in &mut self.diagnoses {
            let kind = diagnosis.kind();
            if let Some(saved) = saved.diagnoses.remove(kind) {
                diagnosis.restore(saved).map_err(|source| RestoreError::Diagnosis { kind, source })?;
            }
        }
        self.now = saved.now;
        self.ready = saved.ready;
        self.incidents = saved.incidents;
        self.strangers = saved.strangers;
        self.discarded = saved.discarded;
        Ok(())
    }

    /// Wall-clock time from now on.
    pub fn set_clock(&mut self, clock: WallClock) {
        self.clock = clock;
    }

    /// Goes on with incidents that an earlier run left open; `events` holds the newest one of each.
    pub fn resume(&mut self, node: &NodeView<'_>, events: Vec<Event>) {
        for event in events {
            let Some(incident) = event.incident.as_deref().cloned() else { continue };
            let Some(id) = Id::parse(&incident.id) else { continue };
            let over = incident.closed.is_some() || event.boot_id != self.boot_id;
            if over || self.incidents.open.len() >= CAPACITY {
                continue;
            }
            let seen = Seen {
                now: self.now,
                clock: self.clock,
                node,
                incidents: &self.incidents,
                ready: self.ready,
            };
            let subject = self
                .diagnoses
                .iter_mut()
                .find(|diagnosis| diagnosis.kind() == incident.kind)
                .and_then(|diagnosis| diagnosis.resume(&seen, &event))
                .filter(|subject| self.namer.id(&incident.kind, subject) == id);
            if subject.is_none() {
                self.strangers.push(id);
            }
            let open = Open::resumed(incident, subject.unwrap_or_default(), About::of(&event));
            self.incidents.open.insert(id, open);
        }
    }

    /// An event was told.
    pub fn event(&mut self, node: &NodeView<'_>, at: BootNs, event: &Event) {
        self.run(node, at, |diagnosis, seen, findings| diagnosis.event(seen, event, findings));
    }

    /// Something happened that is no event.
    pub fn change(&mut self, node: &NodeView<'_>, at: BootNs, change: &Change<'_>) {
        if *change == Change::Ready {
            self.ready.get_or_insert(at);
            for id in std::mem::take(&mut self.strangers) {
                self.close(id, CloseReason::Expired, None);
            }
        }
        self.run(node, at, |diagnosis, seen, findings| diagnosis.change(seen, change, findings));
    }

    /// Time has passed.
    pub fn tick(&mut self, node: &NodeView<'_>, at: BootNs) {
        self.run(node, at, |diagnosis, seen, findings| diagnosis.tick(seen, findings));
    }

    /// When the next tick is due at the latest.
    #[must_use]
    pub fn deadline(&self) -> Option<BootNs> {
        self.diagnoses.iter().filter_map(|diagnosis| diagnosis.deadline()).min()
    }

    /// Takes what is to be told.
    pub fn take_told(&mut self) -> Vec<Told> {
        std::mem::take(&mut self.told)
    }

    /// Takes the questions.
    pub fn take_asked(&mut self) -> Vec<Request> {
        std::mem::take(&mut self.asked)
    }

    /// What is open.
    #[must_use]
    pub fn incidents(&self) -> &Incidents {
        &self.incidents
    }

    /// How often trouble was found that could not be followed.
    #[must_use]
    pub fn discarded(&self) -> u64 {
        self.discarded
    }

    fn run(
        &mut self,
        node: &NodeView<'_>,
        at: BootNs,
        mut work: impl FnMut(&mut dyn Diagnosis, &Seen<'_>, &mut Findings),
    ) {
        // Events are told up to half a second after they happened: time does not go back for them.
        self.now = self.now.max(at);
        for index in 0..self.diagnoses.len() {
            let seen = Seen {
                now: self.now,
                clock: self.clock,
                node,
                incidents: &self.incidents,
                ready: self.ready,
            };
            let diagnosis = &mut self.diagnoses[index];
            work(diagnosis.as_mut(), &seen, &mut self.findings);
            if self.findings.said.is_empty() {
                continue;
            }
            let kind = self.diagnoses[index].kind();
            let mut said = std::mem::take(&mut self.findings.said);
            said.drain(..).for_each(|finding| self.take(kind, finding));
            self.findings.said = said;
        }
    }

    fn take(&mut self, kind: &'static str, finding: Finding) {
        match finding {
            Finding::Report(report) => self.report(kind, *report),
            Finding::Repeat(repeat) => {
                let id = self.namer.id(kind, &repeat.subject);
                if let Some(open) = self.incidents.open.get_mut(&id)
                    && open.repeat(&repeat)
                {
                    self.tell(Kind::IncidentUpdated, id);
                }
            }
            Finding::Close { subject, reason, evidence } => {
                self.close(self.namer.id(kind, &subject), reason, evidence);
            }
            Finding::Link { effect, cause } => {
                let (effect, cause) =
                    (self.namer.id(effect.kind, &effect.subject), self.namer.id(cause.kind, &cause.subject));
                if self.incidents.knows(cause)
                    && let Some(open) = self.incidents.open.get_mut(&effect)
                    && open.add_cause(cause)
                {
                    self.tell(Kind::IncidentUpdated, effect);
                }
            }
            Finding::Ask(request) => self.asked.push(request),
            Finding::NoRoom => self.discarded += 1,
        }
    }

    fn report(&mut self, kind: &'static str, mut report: Report) {
        let id = self.namer.id(kind, &report.subject);
        let causes: Vec<Id> = std::mem::take(&mut report.caused_by)
            .iter()
            .map(|cause| self.namer.id(cause.kind, &cause.subject))
            .filter(|cause| self.incidents.knows(*cause))
            .collect();
        if let Some(open) = self.incidents.open.get_mut(&id) {
            let mut worth = open.report(report);
            for cause in causes {
                worth |= open.add_cause(cause);
            }
            if worth {
                self.tell(Kind::IncidentUpdated, id);
            }
            return;
        }
        if self.incidents.open.len() >= CAPACITY {
            self.discarded += 1;
            return;
        }
        let mut open = Open::new(id, kind, report, self.now, self.clock);
        for cause in causes {
            open.add_cause(cause);
        }
        self.incidents.open.insert(id, open);
        self.tell(Kind::IncidentOpened, id);
    }

    fn close(&mut self, id: Id, reason: CloseReason, evidence: Option<u64>) {
        let Some(mut open) = self.incidents.close(id) else {
            return;
        };
        if let Some(seq) = evidence {
            open.add_evidence(seq);
        }
        let mut incident = open.incident(self.clock);
        incident.closed = Some(self.clock.text(self.now));
        incident.close_reason = Some(reason);
        let about = open.about().clone();
        self.told.push(Told { kind: Kind::IncidentClosed, at: self.now, incident, about });
    }

    fn tell(&mut self, kind: Kind, id: Id) {
        if let Some(open) = self.incidents.open.get(&id) {
            let (incident, about) = (open.incident(self.clock), open.about().clone());
            self.told.push(Told { kind, at: self.now, incident, about });
        }
    }
}

impl Told {
    /// How bad its event is: what is over is no alarm.
    #[must_use]
    pub fn severity(&self) -> Severity {
        match self.kind {
            Kind::IncidentClosed => self.incident.severity.min(Severity::Notice),
            _ => self.incident.severity,
        }
    }

    /// Its event in one sentence.
    #[must_use]
    pub fn message(&self) -> String {
        let summary = &self.incident.summary;
        match self.incident.close_reason {
            Some(CloseReason::Resolved) => format!("resolved: {summary}"),
            Some(CloseReason::SubjectGone) => format!("over, for what it happened to is gone: {summary}"),
            Some(CloseReason::Expired) => format!("not heard of any more: {summary}"),
            None if self.incident.count > 1 => format!("{summary} ({} times)", self.incident.count),
            None => summary.clone(),
        }
    }
}
