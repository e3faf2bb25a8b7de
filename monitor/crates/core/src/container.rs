//! Events of the container lifecycle: a report of a runtime changes the model, and each change of state is an event.

use kevtmon_event::wording::{owner_phrase, target_label};
use kevtmon_event::{Actor, Confidence, Event, Kind, Severity, Shared};
use kevtmon_observation::{
    BootNs, ContainerExit, ContainerFacts, ContainerStart, ContainerState, PodIdentity,
};
use kevtmon_types::escape::name;

use super::Core;
use super::neighbor::Awaited;
use crate::diagnose::{ModelChange, is_folded};
use crate::node::containers::Transition;

impl Core {
    /// A call of a client is no event. The runtimes tell that a container was started, and not for whom: he who asked for it is
    /// likely why.
    pub(super) fn container_start(&mut self, at: BootNs, start: &ContainerStart) {
        let actor = Actor { confidence: Confidence::Likely, ..self.actor(&start.actor, false) };
        let change = ModelChange::ContainerStart(&start.containers, &Shared::new(actor));
        self.diagnose(at, &change);
    }

    pub(super) fn container(&mut self, at: BootNs, facts: ContainerFacts) {
        let id = facts.id.clone();
        if let Some(pod) = &facts.pod {
            self.pods.note(at, pod);
        }
        let is_confirmed = |core: &Self| {
            core.containers
                .get(&id)
                .and_then(|facts| facts.pod.as_ref())
                .is_some_and(PodIdentity::is_confirmed)
        };
        let was_confirmed = is_confirmed(self);
        let transition = self.containers.put(at, facts);
        if let Some(transition) = &transition {
            self.emit_transition(at, transition);
        }
        let is_new = transition.is_some_and(|transition| is_first_run(&transition));
        // Nothing may have shown before of which pod it is.
        let is_confirmed_now = !was_confirmed && is_confirmed(self);
        if is_confirmed_now {
            self.diagnose_sandbox(at, &id);
        }
        if is_new || is_confirmed_now {
            self.recreated(at, &id);
        }
        self.review_pod(at, &id);
        self.diagnose(at, &ModelChange::Container(&id));
        self.answered(at, &Awaited::Container(id), true);
    }

    pub(super) fn container_gone(&mut self, at: BootNs, id: &str, source: &str) {
        if let Some(transition) = self.containers.remove(at, id, source) {
            self.emit_transition(at, &transition);
        }
        self.review_pod(at, id);
        self.diagnose(at, &ModelChange::Container(id));
    }

    pub(super) fn runtime_snapshot(
        &mut self,
        at: BootNs,
        read: BootNs,
        source: &str,
        list: Vec<ContainerFacts>,
    ) {
        let ids: Vec<String> = list.iter().map(|facts| facts.id.clone()).collect();
        // The first list of a source is the initial state: it emits no events.
        let first =
            !self.containers.any_of(source) && !self.statuses.get(source).is_some_and(|status| status.up);
        // What is known already, another source has reported.
        let is_unknown = |id: &&String| first && self.containers.get(id).is_none();
        let unknown: Vec<String> = ids.iter().filter(is_unknown).cloned().collect();
        for pod in list.iter().filter_map(|facts| facts.pod.as_ref()) {
            self.pods.note(at, pod);
        }
        for transition in self.containers.replace(at, read, source, list) {
            // One that another source reported before has changed, though.
            if !first || transition.from.is_some() {
                self.emit_transition(at, &transition);
                if transition.from.is_none() && transition.to.is_some() {
                    self.diagnose_sandbox(at, &transition.id);
                }
                if is_first_run(&transition) {
                    self.recreated(at, &transition.id);
                }
            }
        }
        if first {
            self.recreated_before(at, &unknown);
        }
        for id in ids {
            self.answered(at, &Awaited::Container(id), true);
        }
        self.pods_on_node.review_all(at, &self.containers);
        self.diagnose(at, &ModelChange::Runtime);
    }

    fn diagnose_sandbox(&mut self, at: BootNs, id: &str) {
        if self.containers.get(id).is_some_and(|facts| facts.sandbox) {
            self.diagnose(at, &ModelChange::SandboxMade(id));
        }
    }

    fn emit_transition(&mut self, at: BootNs, transition: &Transition) {
        let Some(facts) = self.containers.get(&transition.id) else { return };
        if is_folded(&self.engine.incidents, facts) {
            return;
        }
        let (kind, severity, verb) = match (transition.from, transition.to) {
            (_, None) => (Kind::ContainerRemoved, Severity::Info, "removed"),
            (Some(ContainerState::Paused), Some(ContainerState::Running)) => return,
            // It had ended before its removal began.
            (Some(ContainerState::Exited | ContainerState::Removing), Some(ContainerState::Dead))
            | (Some(ContainerState::Removing | ContainerState::Dead), Some(ContainerState::Exited)) => return,
            (_, Some(ContainerState::Running)) => (Kind::ContainerStarted, Severity::Info, "started"),
            (_, Some(ContainerState::Created)) => (Kind::ContainerCreated, Severity::Debug, "created"),
            (_, Some(ContainerState::Exited | ContainerState::Dead)) => {
                (Kind::ContainerExited, Severity::Info, "exited")
            }
            _ => return,
        };
        let verb = match (kind, facts.exit) {
            (Kind::ContainerExited, Some(exit)) => ended(exit),
            _ => verb.to_owned(),
        };
        let target = self.target_of(facts);
        let message = match (target.confirmed_pod(), target_label(&target)) {
            (Some(_), _) => format!("container {}{} {verb}", name(&facts.name), owner_phrase(&target)),
            // Its own label, with what it claims.
            (None, label) => format!("{} {verb}", label.unwrap_or_else(|| "container".to_owned())),
        };
        let event = Event { target: Some(Shared::new(target)), ..self.event(at, kind, severity, message) };
        self.emit(event);
    }
}

fn is_first_run(transition: &Transition) -> bool {
    matches!(transition.from, None | Some(ContainerState::Created))
        && transition.to.is_some_and(|to| to != ContainerState::Created)
}

fn ended(exit: ContainerExit) -> String {
    let code = exit.code.map(|code| format!(" with code {code}")).unwrap_or_default();
    match exit.oom_killed {
        Some(true) => format!("exited{code}, after the kernel had killed a process of it for want of memory"),
        _ => format!("exited{code}"),
    }
}
