//! Incidents: what the diagnoses are shown, and how what they find is told.

use super::Core;
use crate::diagnose::{About, Change, Engine};
use crate::event::{Event, Incident};
use crate::node::view::NodeView;
use crate::observation::{BootNs, Source};

impl Core {
    /// The open incidents with the objects that their events carry, in the order of their ids.
    pub fn incidents(&self) -> impl Iterator<Item = (Incident, &About)> {
        let clock = self.clock();
        self.engine.incidents().iter().map(move |open| (open.incident(clock), open.about()))
    }

    /// How often trouble was found that is not followed, because there is too much of it.
    #[must_use]
    pub fn incidents_discarded(&self) -> u64 {
        self.engine.discarded()
    }

    /// The clock is known or moved. Only now can the times be read that an earlier run left.
    pub(super) fn set_clock(&mut self, realtime_offset_ns: i64) {
        self.realtime_offset_ns = realtime_offset_ns;
        let clock = self.clock();
        self.engine.set_clock(clock);
        self.resume_incidents();
    }

    pub(super) fn resume_incidents(&mut self) {
        let events = std::mem::take(&mut self.resumed);
        let (engine, node) = self.engine_and_node();
        engine.resume(&node, events);
    }

    pub(super) fn diagnose_event(&mut self, event: &Event) {
        let (engine, node) = self.engine_and_node();
        engine.event(&node, event.at, event);
    }

    /// Shows the diagnoses what is no event.
    pub(super) fn diagnose(&mut self, at: BootNs, change: &Change<'_>) {
        let (engine, node) = self.engine_and_node();
        engine.change(&node, at, change);
        self.tell_incidents();
    }

    pub(super) fn diagnose_tick(&mut self, now: BootNs) {
        let (engine, node) = self.engine_and_node();
        engine.tick(&node, now);
        self.tell_incidents();
    }

    /// Says what the diagnoses found.
    pub(super) fn tell_incidents(&mut self) {
        for told in self.engine.take_told() {
            let event = self.event(told.at, told.kind, told.severity(), told.message());
            self.push(Event {
                // A conclusion, which no source observed.
                source: Source::Daemon,
                incident: Some(Box::new(told.incident)),
                ..with_objects(event, told.about)
            });
        }
        for request in self.engine.take_asked() {
            self.request(request);
        }
    }

    fn engine_and_node(&mut self) -> (&mut Engine, NodeView<'_>) {
        let node = NodeView {
            containers: &self.containers,
            namespaces: &self.namespaces,
            pods: &self.pods,
            busy_mounts: &self.busy_mounts,
            host_netns: self.settings.host_netns,
            runtimes: super::join::runtimes(&self.statuses, self.ready),
        };
        (&mut self.engine, node)
    }
}

fn with_objects(event: Event, about: About) -> Event {
    Event {
        actor: about.actor,
        target: about.target,
        neighbor: about.neighbor,
        mount: about.mount,
        holders: about.holders,
        holders_complete: about.holders_complete,
        holders_verdict: about.holders_verdict,
        ..event
    }
}
