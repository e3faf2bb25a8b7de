//! The kubelet and the runtimes come and go.

use kevtmon_event::{Component, Event, Kind, Severity};
use kevtmon_observation::{BootNs, ComponentExit, ComponentFacts, Source};
use kevtmon_types::escape::name;

use super::Core;
use crate::diagnose::ModelChange;

const SECOND_NS: f64 = 1e9;

impl Core {
    pub(super) fn components(&mut self, at: BootNs, list: Vec<ComponentFacts>) {
        let (new, is_first) = self.components.replace(list);
        for facts in new {
            // What runs at the start is no news, but for what an earlier run of the daemon cannot have seen.
            let is_news = !is_first || self.previously_alive.is_some_and(|alive| facts.started_ns > alive);
            if !is_news {
                continue;
            }
            let component = self.component(&facts);
            let (severity, change) = match (&component.previous_version, &component.version) {
                (Some(old), Some(new)) if old != new => {
                    (Severity::Notice, format!(" in place of version {}", name(old)))
                }
                _ => (Severity::Info, String::new()),
            };
            let message = format!("{} started{change}", component.label());
            let started = facts.started_ns.min(at);
            self.emit_component(started, Kind::ComponentStarted, severity, message, component);
        }
        self.diagnose(at, &ModelChange::Components);
    }

    #[expect(clippy::cast_precision_loss, reason = "a lifetime of years is still exact to a microsecond")]
    pub(super) fn component_exited(&mut self, at: BootNs, exit: &ComponentExit) {
        let Some(facts) = self.components.exited(at, exit) else { return };
        let lifetime = at.saturating_sub(facts.started_ns) as f64 / SECOND_NS;
        let component = Component {
            exit_code: exit.code,
            signal: exit.signal,
            lifetime_s: Some((lifetime * 1e3).round() / 1e3),
            ..self.component(&facts)
        };
        let how = match (exit.signal, exit.code) {
            (Some(signal), _) => format!("was ended by signal {signal}"),
            (None, Some(code)) => format!("exited with code {code}"),
            (None, None) => "ended".to_owned(),
        };
        let message = format!("{} {how} after {lifetime:.1} s", component.label());
        self.emit_component(at, Kind::ComponentExited, Severity::Notice, message, component);
    }

    fn component(&self, facts: &ComponentFacts) -> Component {
        let previous = self.components.before(facts).and_then(|before| before.version.clone());
        Component { previous_version: previous, ..Component::from(facts) }
    }

    fn emit_component(
        &mut self,
        at: BootNs,
        kind: Kind,
        severity: Severity,
        message: String,
        component: Component,
    ) {
        let event = self.event(at, kind, severity, message);
        // It was found some time after it happened, so that its age is no latency.
        let event = Event { source: Source::Daemon, component: Some(Box::new(component)), ..event };
        self.emit(event);
    }
}
