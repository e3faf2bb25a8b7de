//! What a diagnosis says.

use serde::{Deserialize, Serialize};

use crate::event::{
    Actor, Advice, CloseReason, Confidence, Event, Mount, MountHolder, Neighbor, Severity, Target,
};
use crate::observation::{BootNs, Request, Verdict};

/// An incident, by what it is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncidentKey {
    /// Its kind.
    pub kind: &'static str,
    /// What it happens to: unique within the kind.
    pub subject: String,
}

/// The objects that an incident's events carry.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct IncidentObjects {
    /// Who did it.
    pub actor: Option<Box<Actor>>,
    /// Whose it was.
    pub target: Option<Box<Target>>,
    /// The neighbor entry.
    pub neighbor: Option<Box<Neighbor>>,
    /// The mount.
    pub mount: Option<Box<Mount>>,
    /// Who pins the mount.
    pub holders: Option<Vec<MountHolder>>,
    /// Whether that is everybody.
    pub holders_complete: Option<bool>,
    /// What the scan concludes.
    pub holders_verdict: Option<Verdict>,
}

impl IncidentObjects {
    /// The objects of an event.
    #[must_use]
    pub fn of(event: &Event) -> Self {
        Self {
            actor: event.actor.clone(),
            target: event.target.clone(),
            neighbor: event.neighbor.clone(),
            mount: event.mount.clone(),
            holders: event.holders.clone(),
            holders_complete: event.holders_complete,
            holders_verdict: event.holders_verdict,
        }
    }

    /// Takes what the newer one has: an entry that is missed once more does not make its culprit unknown.
    pub(super) fn merge(&mut self, newer: Self) {
        fn put<T>(old: &mut Option<T>, newer: Option<T>) {
            if newer.is_some() {
                *old = newer;
            }
        }
        put(&mut self.actor, newer.actor);
        put(&mut self.target, newer.target);
        put(&mut self.neighbor, newer.neighbor);
        put(&mut self.mount, newer.mount);
        put(&mut self.holders, newer.holders);
        put(&mut self.holders_complete, newer.holders_complete);
        put(&mut self.holders_verdict, newer.holders_verdict);
    }
}

/// How often the trouble was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// So many times more.
    More(u64),
    /// So many times in all; never fewer than before.
    Total(u64),
}

/// Trouble in full: opens the incident, or brings the open one up to date.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// What it happens to.
    pub subject: String,
    /// How bad; an open incident keeps the worst.
    pub severity: Severity,
    /// How sure; an open incident keeps the surest.
    pub confidence: Confidence,
    /// One sentence with actor and target.
    pub summary: String,
    /// What to do; `None` leaves what was said before.
    pub advice: Option<Vec<Advice>>,
    /// The objects.
    pub objects: IncidentObjects,
    /// When the trouble began, as far as it was seen.
    pub first: BootNs,
    /// When it was seen last.
    pub last: BootNs,
    /// Sequence numbers of the events that show it.
    pub evidence: Vec<u64>,
    /// How often.
    pub count: Count,
    /// It was there before the daemon looked.
    pub found_at_start: bool,
    /// What led to it.
    pub caused_by: Vec<IncidentKey>,
}

/// Known trouble once more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repeat {
    /// What it happens to.
    pub subject: String,
    /// When it was seen.
    pub last: BootNs,
    /// The event that shows it.
    pub evidence: Option<u64>,
    /// How often.
    pub count: Count,
    /// Worse than before.
    pub severity: Option<Severity>,
}

/// One thing that a diagnosis says.
#[derive(Debug, Clone, PartialEq)]
pub enum Finding {
    /// Something is wrong.
    Report(Box<Report>),
    /// Something is wrong still.
    Repeat(Repeat),
    /// It is over.
    Close {
        /// What it happened to.
        subject: String,
        /// Why.
        reason: CloseReason,
        /// The event that shows it.
        evidence: Option<u64>,
    },
    /// One incident led to another, which was not known when that opened.
    Link {
        /// The effect.
        effect: IncidentKey,
        /// The cause.
        cause: IncidentKey,
    },
    /// Something that only I/O can tell.
    Request(Request),
    /// There was trouble that could not be followed, for there is too much of it.
    Discarded,
}

/// Collects what a diagnosis says.
#[derive(Debug, Default)]
pub struct Findings {
    pub(super) items: Vec<Finding>,
}

impl Findings {
    /// Something is wrong.
    pub fn report(&mut self, report: Report) {
        self.items.push(Finding::Report(Box::new(report)));
    }

    /// Something is wrong still.
    pub fn repeat(&mut self, repeat: Repeat) {
        self.items.push(Finding::Repeat(repeat));
    }

    /// It is over.
    pub fn close(&mut self, subject: String, reason: CloseReason, evidence: Option<u64>) {
        self.items.push(Finding::Close { subject, reason, evidence });
    }

    /// One incident led to another.
    pub fn link(&mut self, effect: IncidentKey, cause: IncidentKey) {
        self.items.push(Finding::Link { effect, cause });
    }

    /// Asks for what only I/O can tell.
    pub fn request(&mut self, request: Request) {
        self.items.push(Finding::Request(request));
    }

    /// There is too much trouble to follow it all.
    pub fn discard(&mut self) {
        self.items.push(Finding::Discarded);
    }
}
