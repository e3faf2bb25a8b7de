//! Passes events and changes of the model to the diagnoses, and emits the incident events that result.

use kevtmon_event::{Event, Incident};
use kevtmon_observation::{BootNs, Source};
use kevtmon_types::clock::MS;

use super::Core;
use crate::diagnose::{Engine, IncidentObjects, ModelChange};
use crate::join::node_view;
use crate::node::view::NodeView;

/// A smaller step of the wall clock makes no text wrong.
const CLOCK_SET_MS: u64 = 2_000;

impl Core {
    /// The open incidents with the objects of their events, by id.
    pub fn incidents(&self) -> impl Iterator<Item = (Incident, &IncidentObjects)> {
        let clock = self.clock();
        self.engine.incidents.iter().map(move |open| (open.incident(clock), &open.objects))
    }

    pub fn incidents_discarded(&self) -> u64 {
        self.engine.discarded
    }

    /// Sets the offset of the wall clock. Incidents of the previous run are resumed with the clock that they have their times of: if
    /// it was set since, with the one before.
    pub(super) fn set_clock(&mut self, at: BootNs, realtime_offset_ns: i64) {
        let by_ms = match self.realtime_offset_ns {
            // There was none before.
            0 => 0,
            before => realtime_offset_ns.saturating_sub(before) / MS.cast_signed(),
        };
        let is_set = by_ms.unsigned_abs() >= CLOCK_SET_MS;
        if is_set {
            self.resume_incidents();
        }
        self.realtime_offset_ns = realtime_offset_ns;
        let clock = self.clock();
        self.engine.set_clock(clock);
        self.resume_incidents();
        if is_set {
            self.engine.clock_set(by_ms);
            self.emit_incidents();
            self.clock_set(at, by_ms);
        }
    }

    pub(super) fn resume_incidents(&mut self) {
        let events = std::mem::take(&mut self.to_resume);
        self.resume_busy_mounts(&events);
        let (engine, node) = self.engine_and_node();
        engine.resume(&node, events);
    }

    pub(super) fn diagnose_event(&mut self, event: &Event) {
        // The diagnoses know the namespace that has its number now.
        if event.neighbor.as_ref().is_some_and(|neighbor| neighbor.other_netns) {
            return;
        }
        let (engine, node) = self.engine_and_node();
        engine.event(&node, event.at, event);
    }

    pub(super) fn diagnose(&mut self, at: BootNs, change: &ModelChange<'_>) {
        let (engine, node) = self.engine_and_node();
        engine.change(&node, at, change);
        self.emit_incidents();
    }

    pub(super) fn diagnose_tick(&mut self, now: BootNs) {
        let (engine, node) = self.engine_and_node();
        engine.tick(&node, now);
        self.emit_incidents();
    }

    /// Closes the incidents that are over for the moment.
    pub(super) fn end_quiet_periods(&mut self, at: BootNs) {
        self.engine.stop(at);
        self.emit_incidents();
    }

    pub(super) fn emit_incidents(&mut self) {
        for change in self.engine.take_changes() {
            let event = self.event(change.at, change.kind, change.severity(), change.message());
            self.emit_incident(Event {
                // A conclusion, which no source observed.
                source: Source::Daemon,
                incident: Some(Box::new(change.incident)),
                ..change.objects.apply_to(event)
            });
        }
        for request in std::mem::take(&mut self.engine.requests) {
            self.request(request);
        }
    }

    fn engine_and_node(&mut self) -> (&mut Engine, NodeView<'_>) {
        (&mut self.engine, node_view!(self))
    }
}
