//! Runs the diagnoses and keeps the lifecycle of incidents: opened, updated, closed.
//!
//! Input: events, changes of the model, time. Output: changes of incidents to emit, and requests. A finding about an
//! open incident updates it and never opens a second one; an incident that the previous run left open is resumed
//! without another `incident.opened`.

use std::collections::BTreeMap;

use kevtmon_event::{CloseReason, Event, Incident, Kind, Severity, WallClock};
use kevtmon_observation::{BootNs, NeighborKey, Request};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

use super::advice::is_offered;
use super::finding::{Finding, Findings, IncidentObjects, Report};
use super::flapping::{Flapping, QuietPeriod, flaps};
use super::identity::{IdGenerator, IncidentId};
use super::incidents::{Incidents, OpenIncident, Recount};
use super::{CAPACITY, Context, Diagnosis, ModelChange, Suspicion};
use crate::node::view::NodeView;

/// A change of an incident, to be emitted as an event.
#[derive(Debug, Clone, PartialEq)]
pub struct IncidentChange {
    /// `incident.opened`, `incident.updated` or `incident.closed`.
    pub kind: Kind,
    pub at: BootNs,
    /// The incident after the change.
    pub incident: Incident,
    pub objects: IncidentObjects,
}

#[derive(Debug, Error)]
pub enum RestoreError {
    #[error("cannot read the saved state of diagnosis {kind}")]
    Diagnosis {
        kind: &'static str,
        #[source]
        source: serde_json::Error,
    },
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    now: BootNs,
    ready: Option<BootNs>,
    incidents: Incidents,
    unclaimed: Vec<IncidentId>,
    discarded: u64,
    flapping: Flapping,
    /// The state of each diagnosis, by the kind of its incidents.
    diagnoses: BTreeMap<String, Value>,
}

#[derive(Debug)]
pub struct Engine {
    diagnoses: Vec<Box<dyn Diagnosis>>,
    ids: IdGenerator,
    boot_id: String,
    now: BootNs,
    clock: WallClock,
    /// When every source had reported.
    pub ready: Option<BootNs>,
    pub incidents: Incidents,
    /// Resumed incidents that no diagnosis recognizes, such as those of another version; closed once ready.
    unclaimed: Vec<IncidentId>,
    flapping: Flapping,
    findings: Findings,
    changes: Vec<IncidentChange>,
    pub requests: Vec<Request>,
    /// Findings that were discarded because a limit was reached.
    pub discarded: u64,
}

impl Engine {
    pub fn new(diagnoses: Vec<Box<dyn Diagnosis>>, node: &str, boot_id: &str) -> Self {
        Self {
            diagnoses,
            ids: IdGenerator::new(node, boot_id),
            boot_id: boot_id.to_owned(),
            now: 0,
            clock: WallClock::default(),
            ready: None,
            incidents: Incidents::default(),
            unclaimed: Vec::new(),
            flapping: Flapping::default(),
            findings: Findings::default(),
            changes: Vec::new(),
            requests: Vec::new(),
            discarded: 0,
        }
    }

    #[cfg(test)]
    pub(super) fn replace_diagnoses(&mut self, diagnoses: Vec<Box<dyn Diagnosis>>) {
        self.diagnoses = diagnoses;
    }

    /// Saves the state. All changes and requests must have been taken before.
    ///
    /// # Errors
    /// Never in practice, as of [`Diagnosis::save`].
    pub fn save(&self) -> Result<Saved, serde_json::Error> {
        let saved = |diagnosis: &dyn Diagnosis| Ok((diagnosis.kind().to_owned(), diagnosis.save()?));
        Ok(Saved {
            now: self.now,
            ready: self.ready,
            incidents: self.incidents.clone(),
            unclaimed: self.unclaimed.clone(),
            discarded: self.discarded,
            flapping: self.flapping.clone(),
            diagnoses: self
                .diagnoses
                .iter()
                .map(|diagnosis| saved(diagnosis.as_ref()))
                // Of one that has nothing to save there is nothing to restore.
                .filter(|saved| saved.as_ref().map_or(true, |(_, state)| *state != Value::Object(Map::new())))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Restores the state. A diagnosis without saved state starts empty.
    ///
    /// # Errors
    /// When a diagnosis cannot read its saved state.
    pub fn restore(&mut self, mut saved: Saved) -> Result<(), RestoreError> {
        for diagnosis in &mut self.diagnoses {
            let kind = diagnosis.kind();
            if let Some(saved) = saved.diagnoses.remove(kind) {
                diagnosis.restore(saved).map_err(|source| RestoreError::Diagnosis { kind, source })?;
            }
        }
        (self.now, self.ready, self.discarded) = (saved.now, saved.ready, saved.discarded);
        (self.incidents, self.unclaimed, self.flapping) = (saved.incidents, saved.unclaimed, saved.flapping);
        Ok(())
    }

    pub fn set_clock(&mut self, clock: WallClock) {
        self.clock = clock;
    }

    /// The wall clock was set by so much: open incidents have times of before.
    pub fn clock_set(&mut self, by_ms: i64) {
        for id in self.incidents.open.keys().copied().collect::<Vec<_>>() {
            if let Some(open) = self.incidents.open.get_mut(&id) {
                open.clock_set(by_ms);
            }
            // A later run knows no more of it than its newest event.
            self.push_change(Kind::IncidentUpdated, id);
        }
    }

    /// Continues to count the episodes of incidents that earlier runs in this boot closed.
    pub fn resume_episodes(&mut self, last: Vec<(String, u32)>) {
        for (id, episode) in last {
            if let Some(id) = IncidentId::parse(&id) {
                self.incidents.note_episode(id, episode);
            }
        }
    }

    /// Resumes the open incidents of the previous run; `events` holds the newest event of each.
    pub fn resume(&mut self, node: &NodeView<'_>, events: Vec<Event>) {
        for event in events {
            let Some(incident) = event.incident.as_deref().cloned() else { continue };
            let Some(id) = IncidentId::parse(&incident.id) else { continue };
            let over = incident.closed.is_some() || event.boot_id != self.boot_id;
            if over || self.incidents.open.len() >= CAPACITY {
                continue;
            }
            let Self { now, clock, ref incidents, ready, .. } = *self;
            let context = Context { now, clock, node, incidents, ready };
            let subject = self
                .diagnoses
                .iter_mut()
                .find(|diagnosis| diagnosis.kind() == incident.kind)
                .and_then(|diagnosis| diagnosis.resume(&context, &event))
                .filter(|subject| self.ids.id(&incident.kind, subject) == id);
            if subject.is_none() {
                self.unclaimed.push(id);
            }
            let open =
                OpenIncident::resumed(incident, subject.unwrap_or_default(), IncidentObjects::of(&event));
            self.incidents.open.insert(id, open);
        }
    }

    pub fn event(&mut self, node: &NodeView<'_>, at: BootNs, event: &Event) {
        self.run(node, at, |diagnosis, context, findings| diagnosis.event(context, event, findings));
    }

    pub fn change(&mut self, node: &NodeView<'_>, at: BootNs, change: &ModelChange<'_>) {
        if *change == ModelChange::Ready {
            self.ready.get_or_insert(at);
            for id in std::mem::take(&mut self.unclaimed) {
                self.close(id, CloseReason::Expired, None);
            }
        }
        self.run(node, at, |diagnosis, context, findings| diagnosis.change(context, change, findings));
    }

    pub fn tick(&mut self, node: &NodeView<'_>, at: BootNs) {
        self.run(node, at, |diagnosis, context, findings| diagnosis.tick(context, findings));
        while let Some(id) = self.flapping.take_due(self.now) {
            self.end(id, CloseReason::Resolved);
        }
    }

    pub fn deadline(&self) -> Option<BootNs> {
        let deadlines = self.diagnoses.iter().filter_map(|diagnosis| diagnosis.deadline());
        deadlines.chain(self.flapping.deadline()).min()
    }

    pub fn take_changes(&mut self) -> Vec<IncidentChange> {
        std::mem::take(&mut self.changes)
    }

    /// What would open incidents if it lasts, as the model shows it.
    pub fn suspected(&self, node: &NodeView<'_>) -> Vec<Suspicion> {
        let Self { now, clock, ref incidents, ready, .. } = *self;
        let context = Context { now, clock, node, incidents, ready };
        self.diagnoses.iter().flat_map(|diagnosis| diagnosis.suspected(&context)).collect()
    }

    pub fn quiet_periods(&self) -> Vec<QuietPeriod> {
        self.flapping.quiet_periods(self.clock)
    }

    pub fn recounts(&self) -> Vec<Recount> {
        self.incidents.iter().filter_map(|open| open.recount(self.clock)).collect()
    }

    /// Closes the incidents that are over for the moment: nobody will see whether that lasts.
    pub fn stop(&mut self, at: BootNs) {
        self.now = self.now.max(at);
        self.flapping.take_all().into_iter().for_each(|id| self.end(id, CloseReason::Resolved));
    }

    /// What the next run is to know besides open incidents.
    pub fn kept(&self) -> Vec<(NeighborKey, Value)> {
        self.diagnoses.iter().flat_map(|diagnosis| diagnosis.kept()).collect()
    }

    /// A line of a log is quoted for an open incident, by the event of this number.
    pub fn quote(&mut self, at: BootNs, kind: &str, subject: &str, seq: u64) {
        self.now = self.now.max(at);
        self.update(kind, subject, |open| {
            open.add_evidence(seq);
            true
        });
    }

    /// Emits an open incident if there is one and `change` changed it.
    fn update(&mut self, kind: &str, subject: &str, change: impl FnOnce(&mut OpenIncident) -> bool) {
        let id = self.ids.id(kind, subject);
        if self.incidents.open.get_mut(&id).is_some_and(change) {
            self.push_change(Kind::IncidentUpdated, id);
        }
    }

    fn run(
        &mut self,
        node: &NodeView<'_>,
        at: BootNs,
        mut work: impl FnMut(&mut dyn Diagnosis, &Context<'_>, &mut Findings),
    ) {
        // A pending event is emitted up to half a second late, with its own time; `now` must not go back for it.
        self.now = self.now.max(at);
        for index in 0..self.diagnoses.len() {
            let Self { now, clock, ref incidents, ready, .. } = *self;
            let context = Context { now, clock, node, incidents, ready };
            let diagnosis = &mut self.diagnoses[index];
            work(diagnosis.as_mut(), &context, &mut self.findings);
            if self.findings.items.is_empty() {
                continue;
            }
            let kind = self.diagnoses[index].kind();
            let mut items = std::mem::take(&mut self.findings.items);
            items.drain(..).for_each(|finding| self.take(kind, finding));
            self.findings.items = items;
        }
    }

    fn take(&mut self, kind: &'static str, finding: Finding) {
        debug_assert!(is_offered(kind, finding.advice()), "the table of forms has the kind");
        match finding {
            Finding::Report(report) => self.report(kind, *report),
            Finding::Repeat(repeat) => self.update(kind, &repeat.subject, |open| open.repeat(&repeat)),
            Finding::Close { subject, reason, evidence, last } => {
                let id = self.ids.id(kind, &subject);
                if let (Some(last), Some(open)) = (last, self.incidents.open.get_mut(&id)) {
                    open.conclude(last.0, last.1);
                }
                self.close(id, reason, evidence);
            }
            Finding::Restate { subject, summary } => {
                self.update(kind, &subject, |open| open.restate(summary));
            }
            Finding::Renew { subject, summary, confidence } => {
                self.update(kind, &subject, |open| open.renew(summary, confidence));
            }
            Finding::Link { effect, cause } => {
                let cause = self.ids.id(cause.kind, &cause.subject);
                if self.incidents.knows(cause) {
                    self.update(effect.kind, &effect.subject, |open| open.add_cause(cause));
                }
            }
            Finding::Advise { subject, ruled_out, advice } => {
                let is_known = self.ready.is_some();
                self.update(kind, &subject, |open| open.advise(ruled_out, advice, is_known));
            }
            Finding::Request(request) => self.requests.push(request),
            Finding::Discarded => self.discarded += 1,
        }
    }

    fn report(&mut self, kind: &'static str, mut report: Report) {
        let id = self.ids.id(kind, &report.subject);
        let causes: Vec<IncidentId> = std::mem::take(&mut report.caused_by)
            .iter()
            .map(|cause| self.ids.id(cause.kind, &cause.subject))
            .filter(|cause| self.incidents.knows(*cause))
            .collect();
        if let Some(open) = self.incidents.open.get_mut(&id) {
            let mut notable = false;
            if self.flapping.resume(id) {
                // What somebody else did is not lost among what happens again and again.
                notable = !flaps(&report.objects);
                // It was over: what is reported now is all that is known of it.
                open.objects = IncidentObjects::default();
                open.incident.confidence = report.confidence;
            }
            notable |= open.report(report, self.clock);
            for cause in causes {
                notable |= open.add_cause(cause);
            }
            if notable {
                self.push_change(Kind::IncidentUpdated, id);
            } else {
                // Its objects may be others.
                self.incidents.note_change(id);
            }
            return;
        }
        if self.incidents.open.len() >= CAPACITY || !self.incidents.has_room_for(&report.objects) {
            self.discarded += 1;
            return;
        }
        let episode = self.incidents.next_episode(id);
        let mut open = OpenIncident::new((id, episode), kind, report, self.now, self.clock);
        for cause in causes {
            open.add_cause(cause);
        }
        self.incidents.open.insert(id, open);
        self.push_change(Kind::IncidentOpened, id);
    }

    fn close(&mut self, id: IncidentId, reason: CloseReason, evidence: Option<u64>) {
        let Some(open) = self.incidents.open.get_mut(&id) else { return };
        if let Some(seq) = evidence {
            open.add_evidence(seq);
        }
        if reason != CloseReason::Resolved || !self.flapping.holds(id, &open.objects, self.now) {
            self.flapping.resume(id);
            self.end(id, reason);
        }
    }

    fn end(&mut self, id: IncidentId, reason: CloseReason) {
        let Some(open) = self.incidents.close(id) else { return };
        self.incidents.note_change(id);
        let mut incident = open.incident(self.clock);
        incident.close(self.clock.text(self.now), reason);
        let objects = open.objects.clone();
        self.changes.push(IncidentChange { kind: Kind::IncidentClosed, at: self.now, incident, objects });
    }

    fn push_change(&mut self, kind: Kind, id: IncidentId) {
        self.incidents.note_change(id);
        if let Some(open) = self.incidents.open.get(&id) {
            let (incident, objects) = (open.incident(self.clock), open.objects.clone());
            self.changes.push(IncidentChange { kind, at: self.now, incident, objects });
        }
    }
}

impl IncidentChange {
    /// Severity of its event: a closed incident is a notice at most.
    pub fn severity(&self) -> Severity {
        match self.kind {
            Kind::IncidentClosed => self.incident.severity.min(Severity::Notice),
            _ => self.incident.severity,
        }
    }

    pub fn message(&self) -> String {
        self.incident.message()
    }
}
