//! What a diagnosis reports.

pub use kevtmon_event::IncidentObjects;
use kevtmon_event::{Advice, CloseReason, Confidence, HostCause, Severity};
use kevtmon_observation::{BootNs, Request};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncidentKey {
    pub kind: &'static str,
    /// What is affected; unique within the kind.
    pub subject: String,
}

/// Number of observations of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    More(u64),
    /// The total; lower values are ignored.
    Total(u64),
    /// This many of another cause: what was known of the earlier one, its actor above all, no longer applies.
    Restart(u64),
}

/// A complete report: opens the incident, or updates the open one.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    pub subject: String,
    /// Severity; an open incident keeps the highest.
    pub severity: Severity,
    /// Confidence; an open incident keeps the highest.
    pub confidence: Confidence,
    /// One sentence with actor and target.
    pub summary: String,
    /// What was checked and found healthy; `None` keeps that of the open incident.
    pub ruled_out: Option<Vec<String>>,
    /// Next steps; `None` keeps those of the open incident.
    pub advice: Option<Vec<Advice>>,
    /// The objects of its events.
    pub objects: IncidentObjects,
    /// When it was first observed.
    pub first: BootNs,
    /// When it was last observed.
    pub last: BootNs,
    /// Sequence numbers of the events that show it.
    pub evidence: Vec<u64>,
    pub count: Count,
    /// Whether it existed before the daemon started.
    pub found_at_start: bool,
    pub caused_by: Vec<IncidentKey>,
    /// What was done to the node, where that is likely why.
    pub host_cause: Option<HostCause>,
}

impl Report {
    /// One of what was observed once, now, and of which there is nothing else to tell.
    pub(super) fn new(
        subject: String,
        severity: Severity,
        confidence: Confidence,
        summary: String,
        now: BootNs,
    ) -> Self {
        Self {
            subject,
            severity,
            confidence,
            summary,
            ruled_out: None,
            advice: None,
            objects: IncidentObjects::default(),
            first: now,
            last: now,
            evidence: Vec::new(),
            count: Count::Total(1),
            found_at_start: false,
            caused_by: Vec::new(),
            host_cause: None,
        }
    }
}

/// Another observation of an open incident.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repeat {
    pub subject: String,
    /// When it was observed.
    pub last: BootNs,
    /// The event that shows it.
    pub evidence: Option<u64>,
    pub count: Count,
    /// New severity, if it is higher.
    pub severity: Option<Severity>,
}

/// A finding of a diagnosis.
#[derive(Debug, Clone, PartialEq)]
pub enum Finding {
    /// Opens or updates an incident.
    Report(Box<Report>),
    /// Updates an open incident.
    Repeat(Repeat),
    Close {
        subject: String,
        /// Why it is closed.
        reason: CloseReason,
        /// The event that shows it.
        evidence: Option<u64>,
        /// Its summary and objects from now on, where they change with it.
        last: Option<Box<(String, IncidentObjects)>>,
    },
    /// Replaces the summary of an open incident.
    Restate {
        subject: String,
        /// One sentence with actor and target.
        summary: String,
    },
    /// Brings the time in the summary of an open incident up to date, and how sure it is, which may be less than before.
    Renew {
        subject: String,
        /// One sentence with actor and target.
        summary: String,
        /// How sure it is.
        confidence: Confidence,
    },
    /// Links a cause that was not known when the effect opened.
    Link { effect: IncidentKey, cause: IncidentKey },
    /// Replaces what was found healthy and the next steps of an open incident.
    Advise {
        subject: String,
        /// What was checked and found healthy; `None` leaves that as it is.
        ruled_out: Option<Vec<String>>,
        advice: Vec<Advice>,
    },
    /// Requests what only I/O can find out.
    Request(Request),
    /// A fault was discarded because a limit was reached.
    Discarded,
}

impl Finding {
    /// The next steps that it brings.
    pub(super) fn advice(&self) -> &[Advice] {
        match self {
            Self::Report(report) => report.advice.as_deref().unwrap_or_default(),
            Self::Advise { advice, .. } => advice,
            _ => &[],
        }
    }
}

/// Collects the findings of a diagnosis.
#[derive(Debug, Default)]
pub struct Findings {
    pub(super) items: Vec<Finding>,
}

impl Findings {
    /// Opens or updates an incident.
    pub fn report(&mut self, report: Report) {
        self.items.push(Finding::Report(Box::new(report)));
    }

    /// Updates an open incident.
    pub fn repeat(&mut self, repeat: Repeat) {
        self.items.push(Finding::Repeat(repeat));
    }

    pub fn close(&mut self, subject: String, reason: CloseReason, evidence: Option<u64>) {
        self.items.push(Finding::Close { subject, reason, evidence, last: None });
    }

    /// Closes an incident, with what is known of it in the end.
    pub fn close_with(
        &mut self,
        subject: String,
        reason: CloseReason,
        evidence: Option<u64>,
        summary: String,
        objects: IncidentObjects,
    ) {
        let last = Some(Box::new((summary, objects)));
        self.items.push(Finding::Close { subject, reason, evidence, last });
    }

    /// Replaces the summary of an open incident.
    pub fn restate(&mut self, subject: String, summary: String) {
        self.items.push(Finding::Restate { subject, summary });
    }

    /// Brings the time in the summary of an open incident up to date, and how sure it is.
    pub fn renew(&mut self, subject: String, summary: String, confidence: Confidence) {
        self.items.push(Finding::Renew { subject, summary, confidence });
    }

    pub fn link(&mut self, effect: IncidentKey, cause: IncidentKey) {
        self.items.push(Finding::Link { effect, cause });
    }

    /// Replaces the next steps of an open incident, because what they depend on may have changed. `ruled_out`: `None`
    /// leaves what was found healthy as it is.
    pub fn advise(&mut self, subject: String, ruled_out: Option<Vec<String>>, advice: Vec<Advice>) {
        self.items.push(Finding::Advise { subject, ruled_out, advice });
    }

    /// Requests what only I/O can find out.
    pub fn request(&mut self, request: Request) {
        self.items.push(Finding::Request(request));
    }

    /// Counts a fault that is discarded because a limit was reached.
    pub fn discard(&mut self) {
        self.items.push(Finding::Discarded);
    }
}
