//! How severe a busy volume is by now, and when that changes.

use kevtmon_event::Severity;
use kevtmon_observation::BootNs;

use super::{CRITICAL_AFTER, EXPIRE_AFTER, VolumeBusy, WARNING_AFTER, WARNING_ATTEMPTS};
use crate::diagnose::{Context, SECOND, seconds};

impl VolumeBusy {
    /// The severity by now; it never falls while the incident is open.
    pub(super) fn severity(&mut self, context: &Context<'_>, subject: &str) -> Severity {
        let Some(busy) = self.busy.get_mut(subject) else { return Severity::Info };
        let age = context.now.saturating_sub(busy.first);
        let severity = if age >= seconds(self.thresholds.get(&CRITICAL_AFTER)) {
            Severity::Critical
        } else if age >= seconds(self.thresholds.get(&WARNING_AFTER))
            || busy.unmounts(context.node.busy_mounts) >= u64::from(self.thresholds.get(&WARNING_ATTEMPTS))
        {
            Severity::Warning
        } else {
            Severity::Info
        };
        // Where no unmount was refused, nobody may have tried.
        let most = if busy.mounts.is_empty() { Severity::Warning } else { Severity::Critical };
        busy.severity = busy.severity.max(severity.min(most));
        busy.severity
    }

    /// At least a second: with none, one that is renewed as it is mounted still would be due again at once, for ever.
    pub(super) fn expires_after(&self) -> BootNs {
        seconds(self.thresholds.get(&EXPIRE_AFTER)).max(SECOND)
    }

    pub(super) fn set_timer(&mut self, subject: &str) {
        let Some(busy) = self.busy.get(subject) else { return };
        let escalates_after = match busy.severity {
            Severity::Critical => None,
            Severity::Warning if busy.mounts.is_empty() => None,
            Severity::Warning => Some(self.thresholds.get(&CRITICAL_AFTER)),
            _ => Some(self.thresholds.get(&WARNING_AFTER)),
        };
        let escalates = escalates_after.map(|after| busy.first.saturating_add(seconds(after)));
        let expires = busy.last.saturating_add(self.expires_after());
        self.timers.set(&subject.to_owned(), escalates.map_or(expires, |escalates| escalates.min(expires)));
    }
}
