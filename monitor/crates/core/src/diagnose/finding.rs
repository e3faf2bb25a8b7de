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
    pub objects: IncidentObjects,
    pub first: BootNs,
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
    pub last: BootNs,
    pub evidence: Option<u64>,
    pub count: Count,
    /// New severity, if it is higher.
    pub severity: Option<Severity>,
}

impl Repeat {
    pub(super) fn new(subject: String, last: BootNs, count: Count) -> Self {
        Self { subject, last, evidence: None, count, severity: None }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Finding {
    /// Opens or updates an incident.
    Report(Box<Report>),
    /// Updates an open incident.
    Repeat(Repeat),
    Close {
        subject: String,
        reason: CloseReason,
        evidence: Option<u64>,
        /// Its summary and objects from now on, where they change with it.
        last: Option<Box<(String, IncidentObjects)>>,
    },
    /// Replaces the summary of an open incident.
    Restate { subject: String, summary: String },
    /// Brings the time in the summary of an open incident up to date, and how sure it is, which may be less than before.
    Renew { subject: String, summary: String, confidence: Confidence },
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
    pub(super) fn advice(&self) -> &[Advice] {
        match self {
            Self::Report(report) => report.advice.as_deref().unwrap_or_default(),
            Self::Advise { advice, .. } => advice,
            _ => &[],
        }
    }
}

#[derive(Debug, Default)]
pub struct Findings {
    pub(super) items: Vec<Finding>,
}

impl Findings {
    pub fn report(&mut self, report: Report) {
        self.items.push(Finding::Report(Box::new(report)));
    }

    pub fn repeat(&mut self, repeat: Repeat) {
        self.items.push(Finding::Repeat(repeat));
    }

    pub fn close(&mut self, subject: String, reason: CloseReason, evidence: Option<u64>) {
        self.items.push(Finding::Close { subject, reason, evidence, last: None });
    }

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

    pub fn restate(&mut self, subject: String, summary: String) {
        self.items.push(Finding::Restate { subject, summary });
    }

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

    pub fn request(&mut self, request: Request) {
        self.items.push(Finding::Request(request));
    }

    pub fn discard(&mut self) {
        self.items.push(Finding::Discarded);
    }
}
