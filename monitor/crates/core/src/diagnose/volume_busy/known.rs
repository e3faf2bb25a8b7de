//! Who holds a busy mount, as far as a scan found out: that stays known when a later scan fails.

use kevtmon_event::wording::users;
use kevtmon_event::{Confidence, Event, Mount, MountHolder};
use kevtmon_observation::{BootNs, Verdict};
use kevtmon_types::clock::MS;
use serde::{Deserialize, Serialize};

use crate::diagnose::finding::IncidentObjects;

/// What the last scan that found holders has told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Known {
    pub(super) at: BootNs,
    pub(super) mount: Box<Mount>,
    pub(super) holders: Vec<MountHolder>,
    pub(super) verdict: Verdict,
}

impl Known {
    pub(super) fn of(event: &Event, at: BootNs) -> Option<Self> {
        let holders = event.holders.clone().filter(|holders| users(holders).next().is_some())?;
        let age = event.holders_age_ms.unwrap_or_default().saturating_mul(MS);
        let (mount, verdict) = (event.mount.clone()?, event.holders_verdict?);
        Some(Self { at: at.saturating_sub(age), mount, holders, verdict })
    }

    /// Takes over what an event tells. Where it tells nothing, returns what was known before.
    pub(super) fn update(known: &mut Option<Self>, event: &Event) -> Option<Self> {
        let tells_nothing = matches!(
            event.holders_verdict,
            Some(Verdict::Skipped | Verdict::Incomplete | Verdict::NotAMount)
        );
        if tells_nothing && event.holders.as_deref().is_none_or(|holders| users(holders).next().is_none()) {
            return known.clone();
        }
        *known = Self::of(event, event.at);
        None
    }

    /// The objects of the incident: those of the event, but for what it does not tell.
    pub(super) fn objects(self, event: &Event) -> IncidentObjects {
        let attempts = event.mount.as_ref().and_then(|mount| mount.attempts);
        IncidentObjects {
            mount: Some(Box::new(Mount { attempts, ..*self.mount })),
            holders: Some(self.holders),
            holders_age_ms: Some(event.at.saturating_sub(self.at) / MS),
            holders_verdict: Some(self.verdict),
            ..IncidentObjects::of(event)
        }
    }
}

/// How sure the sentence is. Who was found in the mount holds it; but where the scan as a whole was cut, skipped or in
/// doubt, others may be the reason.
pub(in crate::diagnose) fn confidence(event: &Event) -> Confidence {
    let holders = event.holders.as_deref().unwrap_or_default();
    let explains = users(holders).next().is_some() || event.holders_verdict == Some(Verdict::ChildMount);
    let is_whole = event.holders_unreadable.iter().all(|spot| spot.pid.is_some());
    match (event.holders_complete, event.holders_verdict) {
        (Some(false), _) if !explains || !is_whole => Confidence::Likely,
        // That nothing was found is no proof: what a call in progress or a ring uses nothing in /proc may show.
        (_, Some(Verdict::Kernel | Verdict::None)) if !explains => Confidence::Likely,
        _ => Confidence::Certain,
    }
}
