//! What a diagnosis reports.

use serde::{Deserialize, Serialize};

use crate::event::{
    Actor, AddressConflict, Advice, CloseReason, Cni, Component, Confidence, Event, LeakedMount, Link, Mount,
    MountHolder, Neighbor, Rbd, Reservation, Route, Sandbox, Severity, Shared, Target, Unreadable,
};
use crate::observation::{BootNs, Request, Verdict};

/// Identifies an incident.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncidentKey {
    /// Its kind.
    pub kind: &'static str,
    /// What is affected; unique within the kind.
    pub subject: String,
}

/// The objects that an incident's events carry.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct IncidentObjects {
    /// The actor.
    pub actor: Option<Shared<Actor>>,
    /// The owner of what is affected.
    pub target: Option<Shared<Target>>,
    /// The neighbor entry.
    pub neighbor: Option<Box<Neighbor>>,
    /// The address that several pods have.
    pub address_conflict: Option<Box<AddressConflict>>,
    /// The reservation of an address.
    pub reservation: Option<Box<Reservation>>,
    /// The network interface.
    pub link: Option<Box<Link>>,
    /// The route.
    pub route: Option<Box<Route>>,
    /// The sandbox that a container lacks.
    pub sandbox: Option<Box<Sandbox>>,
    /// The call of a CNI plugin.
    pub cni: Option<Box<Cni>>,
    /// The kubelet or runtime.
    pub component: Option<Box<Component>>,
    /// The mount.
    pub mount: Option<Box<Mount>>,
    /// The holders of the mount, or of the network namespace of the other end.
    pub holders: Option<Vec<MountHolder>>,
    /// How long before the event they were found, milliseconds.
    pub holders_age_ms: Option<u64>,
    /// Whether the list of holders is complete.
    pub holders_complete: Option<bool>,
    /// What the scan could not look into.
    pub holders_unreadable: Vec<Unreadable>,
    /// Conclusion of the holder scan.
    pub holders_verdict: Option<Verdict>,
    /// Mounts that are left in the mount namespace of the actor.
    pub leaks: Option<Vec<LeakedMount>>,
    /// The Ceph RBD image.
    pub rbd: Option<Box<Rbd>>,
}

impl IncidentObjects {
    /// The objects of an event.
    #[must_use]
    pub fn of(event: &Event) -> Self {
        Self {
            actor: event.actor.clone(),
            target: event.target.clone(),
            neighbor: event.neighbor.clone(),
            address_conflict: event.address_conflict.clone(),
            reservation: event.reservation.clone(),
            link: event.link.clone(),
            route: event.route.clone(),
            sandbox: event.sandbox.clone(),
            cni: event.cni.clone(),
            component: event.component.clone(),
            mount: event.mount.clone(),
            holders: event.holders.clone(),
            holders_age_ms: event.holders_age_ms,
            holders_complete: event.holders_complete,
            holders_unreadable: event.holders_unreadable.clone(),
            holders_verdict: event.holders_verdict,
            leaks: event.leaks.clone(),
            rbd: event.rbd.clone(),
        }
    }

    /// The event with these objects instead of its own.
    #[must_use]
    pub fn apply_to(self, event: Event) -> Event {
        Event {
            actor: self.actor,
            target: self.target,
            neighbor: self.neighbor,
            address_conflict: self.address_conflict,
            reservation: self.reservation,
            link: self.link,
            route: self.route,
            sandbox: self.sandbox,
            cni: self.cni,
            component: self.component,
            mount: self.mount,
            holders: self.holders,
            holders_age_ms: self.holders_age_ms,
            holders_complete: self.holders_complete,
            holders_unreadable: self.holders_unreadable,
            holders_verdict: self.holders_verdict,
            leaks: self.leaks,
            rbd: self.rbd,
            ..event
        }
    }

    /// Takes over what the newer objects have and keeps the rest: a repetition without an actor does not remove the
    /// actor of the first event.
    pub(super) fn merge(&mut self, newer: Self) {
        fn put<T>(old: &mut Option<T>, newer: Option<T>) {
            if newer.is_some() {
                *old = newer;
            }
        }
        put(&mut self.actor, newer.actor);
        put(&mut self.target, newer.target);
        put(&mut self.neighbor, newer.neighbor);
        put(&mut self.address_conflict, newer.address_conflict);
        put(&mut self.reservation, newer.reservation);
        put(&mut self.link, newer.link);
        put(&mut self.route, newer.route);
        put(&mut self.sandbox, newer.sandbox);
        put(&mut self.cni, newer.cni);
        put(&mut self.component, newer.component);
        put(&mut self.mount, newer.mount);
        put(&mut self.holders, newer.holders);
        if newer.holders_complete.is_some() {
            self.holders_unreadable = newer.holders_unreadable;
            self.holders_age_ms = newer.holders_age_ms;
        }
        put(&mut self.holders_complete, newer.holders_complete);
        put(&mut self.holders_verdict, newer.holders_verdict);
        put(&mut self.leaks, newer.leaks);
        put(&mut self.rbd, newer.rbd);
    }
}

/// Number of observations of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// This many more.
    More(u64),
    /// The total; lower values are ignored.
    Total(u64),
    /// This many of another cause: what was known of the earlier one, its actor above all, no longer applies.
    Restart(u64),
}

/// A complete report: opens the incident, or updates the open one.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// What is affected.
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
    /// Number of observations.
    pub count: Count,
    /// Whether it existed before the daemon started.
    pub found_at_start: bool,
    /// Incidents that caused it.
    pub caused_by: Vec<IncidentKey>,
}

/// Another observation of an open incident.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repeat {
    /// What is affected.
    pub subject: String,
    /// When it was observed.
    pub last: BootNs,
    /// The event that shows it.
    pub evidence: Option<u64>,
    /// Number of observations.
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
    /// Closes an incident.
    Close {
        /// What was affected.
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
        /// What is affected.
        subject: String,
        /// One sentence with actor and target.
        summary: String,
    },
    /// Brings the time in the summary of an open incident up to date, and how sure it is, which may be less than before.
    Renew {
        /// What is affected.
        subject: String,
        /// One sentence with actor and target.
        summary: String,
        /// How sure it is.
        confidence: Confidence,
    },
    /// Links a cause that was not known when the effect opened.
    Link {
        /// The effect.
        effect: IncidentKey,
        /// The cause.
        cause: IncidentKey,
    },
    /// Replaces what was found healthy and the next steps of an open incident.
    Advise {
        /// What is affected.
        subject: String,
        /// What was checked and found healthy; `None` leaves that as it is.
        ruled_out: Option<Vec<String>>,
        /// Next steps.
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

    /// Closes an incident.
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

    /// Links a cause to its effect.
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
