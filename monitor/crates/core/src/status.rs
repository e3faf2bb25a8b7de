//! Events of the daemon itself: ready, degraded, stopping, and lost records.

use jiff::SignedDuration;
use kevtmon_event::{Daemon, Event, Kind, Lost, Severity, SourceStates, span};
use kevtmon_observation::{BootNs, Loss, SourceKind, SourceStatus};
use kevtmon_types::clock::{MS, SECOND};

use super::Core;
use crate::diagnose::ModelChange;

/// The wall clock among the sources, once it was set.
const CLOCK: &str = "clock";
/// Longest time for which it is degraded then.
const CLOCK_TOLD_NS: BootNs = 24 * 3600 * SECOND;

impl Core {
    pub(super) fn source(&mut self, at: BootNs, status: SourceStatus) {
        let name = status.source.clone();
        let runtimes_before = self.runtimes();
        let old = self.statuses.insert(name.clone(), status.clone());
        let was_up = old.as_ref().map(|old| old.up);
        if self.ready {
            let changed = old.is_none_or(|old| {
                let reason_changed = match status.up {
                    true => old.reason != status.reason,
                    // While a source is down, each attempt to reach it may fail in another way.
                    false => old.reason.is_some() != status.reason.is_some(),
                };
                old.up != status.up || reason_changed
            });
            if changed {
                self.emit_status_change(at, &status);
            }
            let is_switched = was_up.is_some_and(|was_up| was_up != status.up);
            let is_switched = is_switched && status.kind == SourceKind::Runtime;
            if is_switched && status.up {
                self.pods_on_node.recovered = Some(at);
            }
            // One that is down all along may turn out to be none, or to have been there.
            if is_switched || self.runtimes() != runtimes_before {
                self.diagnose(at, &ModelChange::RuntimeAvailability);
            }
            return;
        }
        if self.settings.sources.keys().all(|source| self.statuses.contains_key(source)) {
            self.ready = true;
            let missing: Vec<SourceStatus> =
                self.statuses.values().filter(|status| self.degrades(status)).cloned().collect();
            let message = match missing.len() {
                0 => "ready".to_owned(),
                _ => format!(
                    "ready without {}",
                    missing.iter().map(|status| status.source.as_str()).collect::<Vec<_>>().join(", ")
                ),
            };
            self.emit_daemon(at, Kind::DaemonReady, Severity::Info, message);
            for status in missing {
                self.emit_status_change(at, &status);
            }
            self.diagnose(at, &ModelChange::Ready);
            self.look_up_busy_mounts(at);
        }
    }

    /// Tells that the wall clock was set, for as long as the times of now and those from before overlap or have a gap of that.
    pub(super) fn clock_set(&mut self, at: BootNs, by_ms: i64) {
        let until = at.saturating_add(by_ms.unsigned_abs().saturating_mul(MS).min(CLOCK_TOLD_NS));
        // A larger step is still told.
        if self.clock_set_until.is_some_and(|told| told > until) {
            return;
        }
        self.clock_set_until = Some(until);
        let by = span(SignedDuration::from_millis(by_ms.saturating_abs()));
        let (how, off) = if by_ms < 0 { ("back", "ahead") } else { ("forward", "behind") };
        let reason = format!("it was set {how} by {by}, so that times from before are {by} {off}");
        self.source(at, SourceStatus { reason: Some(reason), ..SourceStatus::up(SourceKind::Clock, CLOCK) });
    }

    /// Tells that times compare again.
    pub(super) fn tell_clock(&mut self, now: BootNs) {
        if self.clock_set_until.is_some_and(|until| until <= now) {
            self.clock_set_until = None;
            self.source(now, SourceStatus::up(SourceKind::Clock, CLOCK));
        }
    }

    pub(super) fn lost(&mut self, at: BootNs, loss: &Loss) {
        let count = loss.count.map_or_else(|| "unknown".to_owned(), |count| count.to_string());
        let message = match loss.count {
            Some(count) => format!("{count} records lost in {}: {}", loss.source, loss.reason),
            None => format!("an unknown number of records lost in {}: {}", loss.source, loss.reason),
        };
        let event = Event {
            lost: Some(Lost {
                source: loss.source.clone(),
                reason: loss.reason.clone(),
                count,
                from: None,
                to: Some(self.wall_time(at)),
            }),
            ..self.event(at, Kind::EventsLost, Severity::Warning, message)
        };
        self.emit(event);
        if loss.source == "bpf" {
            self.look_up_busy_mounts_soon(at);
        }
    }

    /// Nothing is observed between two runs of the daemon. A notice only, because a restart is no fault by itself.
    pub(super) fn restarted(&mut self, at: BootNs, last_alive: BootNs) {
        self.previously_alive = Some(last_alive);
        let message = "nothing was seen while the daemon did not run".to_owned();
        let event = Event {
            lost: Some(Lost {
                source: "daemon".to_owned(),
                reason: "restart".to_owned(),
                count: "unknown".to_owned(),
                from: Some(self.wall_time(last_alive)),
                to: Some(self.wall_time(at)),
            }),
            ..self.event(at, Kind::EventsLost, Severity::Notice, message)
        };
        self.emit(event);
    }

    pub(super) fn stop(&mut self, at: BootNs) {
        self.tell_folded(at, true);
        self.tell_refused(at, true);
        self.tell_given_up_calls(at, true);
        self.end_quiet_periods(at);
        self.emit_daemon(at, Kind::DaemonStopping, Severity::Info, "stopping".to_owned());
    }

    /// Each `daemon.recovered` is the end of a `daemon.degraded` of the same source.
    fn emit_status_change(&mut self, at: BootNs, status: &SourceStatus) {
        let name = &status.source;
        let message = match (status.up, &status.attach_mode, &status.reason) {
            (true, _, None) => {
                let (kind, message) = match self.degraded.remove(name) {
                    true => (Kind::DaemonRecovered, format!("{name} is back")),
                    // An optional source whose absence was no degradation.
                    false => (Kind::DaemonReady, format!("{name} is up")),
                };
                return self.emit_daemon(at, kind, Severity::Info, message);
            }
            (true, Some(attach_mode), Some(reason)) => {
                format!("{name} is degraded to {attach_mode}: {reason}")
            }
            (true, None, Some(reason)) => format!("{name} is degraded: {reason}"),
            (false, _, reason) => {
                format!("{name} is down: {}", reason.as_deref().unwrap_or("no reason given"))
            }
        };
        self.degraded.insert(name.clone());
        self.emit_daemon(at, Kind::DaemonDegraded, Severity::Warning, message);
    }

    /// Whether a source is down or on a lower attach mode than its best. An optional source that is absent does not count.
    fn degrades(&self, status: &SourceStatus) -> bool {
        status.reason.is_some() && self.settings.sources.get(&status.source) != Some(&true)
    }

    fn emit_daemon(&mut self, at: BootNs, kind: Kind, severity: Severity, message: String) {
        let up = self.statuses.values().filter(|status| status.up);
        let reasons = self.statuses.values().filter(|status| !status.up || status.reason.is_some());
        let sources: SourceStates = up
            .map(|status| (status.source.clone(), status.attach_mode.clone().unwrap_or_else(|| "up".into())))
            .collect();
        let degraded: SourceStates = reasons
            .map(|status| (status.source.clone(), status.reason.clone().unwrap_or_default()))
            .collect();
        let daemon = Daemon { version: self.settings.version.clone(), sources, degraded };
        let event = Event { daemon: Some(daemon), ..self.event(at, kind, severity, message) };
        self.emit(event);
    }
}
