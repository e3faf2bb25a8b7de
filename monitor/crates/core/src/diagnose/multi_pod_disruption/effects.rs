//! What the open incidents tell of who or what disrupts the networks of pods, kept as they change.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use kevtmon_event::wording::pod_label;
use kevtmon_event::{Actor, Confidence, HostCause, Identity, Severity, Shared, identity};
use kevtmon_observation::BootNs;

use super::EFFECTS;
use crate::diagnose::flapping::is_own_doing;
use crate::diagnose::identity::IncidentId;
use crate::diagnose::{Context, OpenIncident};

/// An open incident of the network of a pod.
#[derive(Debug, PartialEq)]
pub(super) struct Effect {
    pub(super) kind: &'static str,
    pub(super) subject: String,
    pub(super) first: BootNs,
    pub(super) host_cause: Option<HostCause>,
    pub(super) actor: Option<Shared<Actor>>,
    /// What it has in common with others: the change of the node, else the identity of the actor.
    key: String,
    pub(super) severity: Severity,
    /// How sure it is that this actor, or this change of the node, did it.
    pub(super) confidence: Confidence,
    pub(super) uid: String,
    pub(super) label: String,
}

/// Those of all open incidents. Not part of the state: it follows from them.
#[derive(Default)]
pub(super) struct Effects {
    /// The changes of incidents that were looked at.
    seen: Option<u64>,
    by_incident: BTreeMap<IncidentId, Shared<Effect>>,
    by_key: BTreeMap<String, BTreeSet<IncidentId>>,
}

impl fmt::Debug for Effects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Effects").finish_non_exhaustive()
    }
}

impl Effects {
    /// Looks at the incidents that have changed since; returns the keys of which something else may be to be said: where it is not known which have changed all of them, and those that are `known`.
    pub(super) fn look<'a>(
        &mut self,
        context: &Context<'_>,
        known: impl Iterator<Item = &'a String>,
    ) -> BTreeSet<String> {
        let changes = context.incidents.changes;
        if self.seen == Some(changes) {
            return BTreeSet::new();
        }
        let keys = match self.seen.and_then(|seen| context.incidents.changed_since(seen)) {
            Some(changed) => self.follow(context, changed),
            None => {
                self.read(context);
                self.by_key.keys().cloned().chain(known.cloned()).collect()
            }
        };
        self.seen = Some(changes);
        keys
    }

    fn read(&mut self, context: &Context<'_>) {
        *self = Self::default();
        for (id, open) in context.incidents.by_id() {
            self.insert(id, effect(context, open));
        }
    }

    fn follow(
        &mut self,
        context: &Context<'_>,
        changed: impl Iterator<Item = IncidentId>,
    ) -> BTreeSet<String> {
        let mut keys = BTreeSet::new();
        for id in changed.collect::<BTreeSet<_>>() {
            let now = context.incidents.get(id).and_then(|open| effect(context, open));
            if self.by_incident.get(&id).map(|before| &**before) == now.as_ref() {
                continue;
            }
            keys.extend(now.as_ref().map(|effect| effect.key.clone()));
            keys.extend(self.remove(id));
            self.insert(id, now);
        }
        keys
    }

    /// Those with a key, in the order in which they were first seen.
    pub(super) fn of(&self, key: &str) -> Vec<Shared<Effect>> {
        let ids = self.by_key.get(key).into_iter().flatten();
        let mut effects: Vec<_> = ids.filter_map(|id| self.by_incident.get(id)).cloned().collect();
        effects.sort_by_key(|effect| effect.first);
        effects
    }

    fn insert(&mut self, id: IncidentId, effect: Option<Effect>) {
        let Some(effect) = effect else { return };
        self.by_key.entry(effect.key.clone()).or_default().insert(id);
        self.by_incident.insert(id, Shared::new(effect));
    }

    /// Returns its key.
    fn remove(&mut self, id: IncidentId) -> Option<String> {
        let effect = self.by_incident.remove(&id)?;
        let others = self.by_key.get_mut(&effect.key)?;
        others.remove(&id);
        if others.is_empty() {
            self.by_key.remove(&effect.key);
        }
        Some(effect.key.clone())
    }
}

/// What an incident tells, if it is one of the network of a pod that a change of the node or somebody else has disrupted.
fn effect(context: &Context<'_>, open: &OpenIncident) -> Option<Effect> {
    let kind = *EFFECTS.iter().find(|kind| **kind == open.kind())?;
    let objects = &open.objects;
    let target = objects.target.as_deref().filter(|target| !target.is_foreign())?;
    if is_own_doing(objects) {
        return None;
    }
    let pod = target.confirmed_pod()?;
    let host_cause = open.incident.host_cause.clone();
    let actor = objects.actor.clone().filter(|actor| actor.userns.is_none());
    let (key, confidence) = match (&host_cause, &actor) {
        (Some(cause), _) => (cause.key(), Confidence::Likely),
        (None, Some(actor)) => {
            let Identity { key, is_certain } = identity(actor);
            let most = if is_certain { Confidence::Certain } else { Confidence::Likely };
            (key, actor.confidence.min(most))
        }
        (None, None) => return None,
    };
    Some(Effect {
        kind,
        subject: open.subject.clone(),
        first: context.clock.boot_ns(&open.incident.first_seen)?,
        host_cause,
        actor,
        key,
        severity: open.incident.severity,
        confidence: confidence.min(open.incident.confidence),
        uid: pod.uid.clone(),
        label: pod_label(pod),
    })
}
