//! A container that its runtime could not remove.
//!
//! State alone finds it: Docker leaves it dead, or being removed for long. The refused removal of one of its directories or
//! mounts tells what is in the way. Runtimes try again by themselves for some seconds, which is one refusal; and a refusal
//! alone is no failed removal: what is mounted for a container is unmounted when it ends, too.

use std::collections::{BTreeMap, BTreeSet};

use kevtmon_event::{CloseReason, Confidence, Event, Kind, MountHolder, Severity, Shared};
use kevtmon_observation::{BootNs, ContainerFacts, ContainerState, FoundObstacle, PodIdentity, Request};
use kevtmon_types::settings::{Thresholds, Unit, thresholds};
use obstacle::Obstructed;
use refusal::Refusal;
use serde::{Deserialize, Serialize};

use super::finding::{Count, Findings, IncidentObjects, Repeat, Report};
use super::timers::Timers;
use super::{
    Alert, CAPACITY, Context, Diagnosis, IncidentKey, IncidentKind, ModelChange, SECOND, STARTUP_GRACE,
    Watch, seconds, start,
};
use crate::node::mounts::MountKey;
use crate::node::view::{NodeView, RuntimeAvailability};

mod left;
mod obstacle;
mod refusal;
mod wording;

pub(super) const KIND: &str = "container-undeletable";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "A container cannot be removed",
    symptom: "`Dead` container",
    names: "the path whose removal is refused, and what holds it",
    opens: "A container could not be removed.",
    alert: Alert::Open { severity: Severity::Warning, minutes: 15 },
    meaning: "Something uses its directory or its mounts, often a copy of the mount in the namespace of a service or of \
             another container. Or nothing does, and a file of it is immutable or append-only, or its file system is \
             read-only or fails.",
    remedy: "End or restart the holder that the incident names; the runtime removes the container then. Where it names none, \
             clear the flag of the file, or repair the file system.",
    severities: &[Severity::Warning],
    counted: "refused attempts",
    thresholds: THRESHOLDS,
    watched_by: Watch::None,
    is_optional: false,
    start: start::<ContainerUndeletable>,
};

/// What is there at the start was not seen to begin.
const START_DELAY: BootNs = 5 * SECOND;
/// How often the runtime is asked again what has become of the container.
const LOOK_INTERVAL: BootNs = 5 * SECOND;
/// The answer is there by then.
const ANSWER_WITHIN: BootNs = SECOND;
/// A refusal of which nothing has come is forgotten after this time.
const REFUSAL_RETENTION: BootNs = 600 * SECOND;
/// Those that only claim to be of a pod: anybody who may start containers can make as many as he likes.
const CLAIMED_MAX: usize = 64;
/// How often it is looked at what is behind an open one: a mount that others still have is told some time after.
const LOOK: BootNs = 30 * SECOND;

thresholds! {
    /// A container may be dead, or the removal of one of its directories or mounts refused, for this time.
    UNDELETABLE_AFTER = "container_undeletable_seconds", default 10, Unit::Seconds;
    /// A container may be in the state `removing` for this time, if nothing of it was seen to be refused.
    REMOVING_AFTER = "container_removing_seconds", default 120, Unit::Seconds;
}

/// A container whose removal may have failed.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Victim {
    first: BootNs,
    found_at_start: bool,
    is_claimed: bool,
    refusal: Option<Box<Refusal>>,
    /// What its runtime was refused though nothing holds it.
    obstructed: Option<Box<Obstructed>>,
    /// Whether that was reported last.
    was_obstructed: bool,
    /// What was refused last was in the way, and is gone: how surely.
    cleared: Option<Confidence>,
    /// When the runtime was asked last, before it is judged.
    asked: Option<BootNs>,
    /// Who still has a mount of it, as it was said last.
    left: Option<String>,
    is_open: bool,
}

impl Victim {
    /// What is in use, unless the runtime was refused for another reason since.
    fn refusal(&self) -> Option<&Refusal> {
        self.refusal.as_deref().filter(|_| self.obstructed.is_none())
    }

    /// Requests what refuses its removal, if a look can show that.
    fn find_obstacle(&self, id: &str, findings: &mut Findings) {
        if let Some(Obstructed { refused, .. }) =
            self.obstructed.as_deref().filter(|obstructed| obstructed.can_be_found())
        {
            findings.request(Request::Obstacle { container: id.to_owned(), refused: refused.clone() });
        }
    }

    /// Who held what was refused last.
    fn holders(&self) -> &[MountHolder] {
        let refusal = self.refusal.as_deref();
        refusal.and_then(|refusal| refusal.objects.holders.as_deref()).unwrap_or_default()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Removal {
    None,
    /// Something of it was refused, and its runtime does not say that it has failed.
    Refused,
    GoesOn,
    Failed,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ContainerUndeletable {
    #[serde(skip)]
    thresholds: Thresholds,
    victims: BTreeMap<String, Victim>,
    timers: Timers<String>,
}

impl ContainerUndeletable {
    fn refused(&mut self, context: &Context<'_>, event: &Event, findings: &mut Findings) {
        let Some(mount) = event.mount.as_deref() else { return };
        let of_runtime = event.actor.as_deref().is_some_and(|actor| refusal::is_runtime(context.node, actor));
        let Some(id) = mount.container_id.as_ref().filter(|_| of_runtime) else { return };
        let ended = context.node.containers.get(id).is_some_and(|facts| has_ended(facts.state));
        if !ended || !context.node.containers.is_present(id) || !self.note(context, id, findings) {
            return;
        }
        let Some(victim) = self.victims.get_mut(id) else { return };
        // Of what it was refused before, the runtime tells again if that is still so.
        (victim.cleared, victim.obstructed) = (None, None);
        match &mut victim.refusal {
            Some(refusal) => refusal.repeat(event),
            None => victim.refusal = Some(Box::new(Refusal::of(event))),
        }
        // No event of the runtime tells that it gave up.
        findings.request(Request::Container { id: id.clone() });
        self.report(context, id, findings);
    }

    /// Follows a container from now on; false where there is no room for it.
    fn note(&mut self, context: &Context<'_>, id: &str, findings: &mut Findings) -> bool {
        if self.victims.contains_key(id) {
            return true;
        }
        let is_claim = |pod: &PodIdentity| !pod.is_confirmed();
        let is_claimed =
            context.node.containers.get(id).and_then(|facts| facts.pod.as_ref()).is_some_and(is_claim);
        let claimed = self.victims.values().filter(|victim| victim.is_claimed).count();
        if self.victims.len() >= CAPACITY || is_claimed && claimed >= CLAIMED_MAX {
            findings.discard();
            return false;
        }
        let found_at_start = context.ready.is_none_or(|ready| ready == context.now);
        let delay =
            if found_at_start { START_DELAY } else { seconds(self.thresholds.get(&UNDELETABLE_AFTER)) };
        self.timers.set(&id.to_owned(), context.now + delay);
        let victim = Victim { first: context.now, found_at_start, is_claimed, ..Victim::default() };
        self.victims.insert(id.to_owned(), victim);
        true
    }

    fn check_all(&mut self, context: &Context<'_>, findings: &mut Findings) {
        let is_ending = |facts: &&ContainerFacts| of_state(facts.state) > Removal::Refused;
        let ending = context.node.containers.present().filter(is_ending).map(|facts| &facts.id);
        // In the order of their ids: incidents open in it.
        let ids: BTreeSet<String> = ending.chain(self.victims.keys()).cloned().collect();
        ids.iter().for_each(|id| self.check(context, id, findings));
    }

    fn check(&mut self, context: &Context<'_>, id: &str, findings: &mut Findings) {
        if !is_known(context.node, id) {
            return;
        }
        match self.removal(context.node, id) {
            Removal::None => return self.forget(id, None, findings),
            Removal::Refused => {}
            Removal::GoesOn | Removal::Failed => {
                self.note(context, id, findings);
            }
        }
        let Some((victim, facts)) = self.victims.get_mut(id).zip(context.node.containers.get(id)) else {
            return;
        };
        let refused = facts.refused_removal.as_deref();
        let is_new = victim.obstructed.as_ref().map(|obstructed| &obstructed.refused) != refused;
        // While it is tried again, the runtime says nothing.
        if is_new && facts.state != ContainerState::Removing {
            victim.obstructed = refused.map(Obstructed::of).map(Box::new);
            victim.find_obstacle(id, findings);
        }
        if !victim.obstructed.as_deref().is_some_and(Obstructed::is_awaited) {
            self.report(context, id, findings);
        }
    }

    fn looked(&mut self, context: &Context<'_>, look: &FoundObstacle, findings: &mut Findings) {
        let obstructed =
            self.victims.get_mut(&look.container).and_then(|victim| victim.obstructed.as_deref_mut());
        let Some(obstructed) = obstructed.filter(|obstructed| obstructed.refused == look.refused) else {
            return;
        };
        if obstructed.set(&look.found) {
            self.report(context, &look.container, findings);
        }
    }

    /// How far the removal of a container has come that is still there.
    fn removal(&self, node: &NodeView<'_>, id: &str) -> Removal {
        let Some(facts) = node.containers.get(id).filter(|_| node.containers.is_present(id)) else {
            return Removal::None;
        };
        let is_refused = self.victims.get(id).is_some_and(|victim| victim.refusal.is_some());
        match of_state(facts.state) {
            Removal::None if is_refused && has_ended(facts.state) => Removal::Refused,
            state => state,
        }
    }

    fn due(&mut self, context: &Context<'_>, id: &str, findings: &mut Findings) {
        let Some(victim) = self.victims.get(id) else { return };
        let node = context.node;
        if context.ready.is_none() || !is_known(node, id) {
            // Nothing opens on what was known before.
            return self.timers.set(&id.to_owned(), context.now + STARTUP_GRACE);
        }
        if victim.is_open {
            return self.look(context, id, findings);
        }
        let removal = self.removal(node, id);
        let is_answered = victim.asked.is_some_and(|at| at.saturating_add(LOOK_INTERVAL) > context.now);
        if matches!(removal, Removal::Refused | Removal::GoesOn) && !is_answered {
            return self.ask(context, id, findings);
        }
        let says_all = node.containers.get(id).is_some_and(|facts| facts.runtime == "docker");
        let lasts = context.now.saturating_sub(victim.first);
        let refusal = victim.refusal.as_deref();
        let after = seconds(self.thresholds.get(&UNDELETABLE_AFTER));
        let opens = match removal {
            Removal::None => return self.forget(id, None, findings),
            Removal::Failed => true,
            // A large one takes its time.
            Removal::GoesOn => {
                let is_recent = |refusal: &Refusal| refusal.last.saturating_add(after) >= context.now;
                refusal.is_some_and(is_recent) || lasts >= seconds(self.thresholds.get(&REMOVING_AFTER))
            }
            // Docker tells of each removal; of others only what they remove shows it, or that they try again.
            Removal::Refused => !says_all && refusal.is_some_and(|refusal| refusal.shows_removal(after)),
        };
        if opens {
            return self.open(context, id, findings);
        }
        let is_old = |refusal: &Refusal| refusal.last.saturating_add(REFUSAL_RETENTION) <= context.now;
        if removal == Removal::Refused && refusal.is_some_and(is_old) {
            return self.forget(id, None, findings);
        }
        self.timers.set(&id.to_owned(), context.now + LOOK_INTERVAL);
    }

    /// Asks the runtime before a container is judged: what it says of it may be old.
    fn ask(&mut self, context: &Context<'_>, id: &str, findings: &mut Findings) {
        if let Some(victim) = self.victims.get_mut(id) {
            victim.asked = Some(context.now);
        }
        findings.request(Request::Container { id: id.to_owned() });
        self.timers.set(&id.to_owned(), context.now + ANSWER_WITHIN);
    }

    fn open(&mut self, context: &Context<'_>, id: &str, findings: &mut Findings) {
        if let Some(victim) = self.victims.get_mut(id) {
            victim.is_open = true;
        }
        self.report(context, id, findings);
        self.timers.set(&id.to_owned(), context.now + LOOK);
    }

    fn look(&mut self, context: &Context<'_>, id: &str, findings: &mut Findings) {
        self.timers.set(&id.to_owned(), context.now + LOOK);
        let Some(victim) = self.victims.get(id) else { return };
        if victim.obstructed.is_some() {
            victim.find_obstacle(id, findings);
            return;
        }
        if victim.refusal.is_none() && victim.left != left::phrase(context, id) {
            return self.report(context, id, findings);
        }
        for cause in left::causes(context, id, victim.holders()) {
            findings.link(IncidentKey { kind: KIND, subject: id.to_owned() }, cause);
        }
    }

    fn report(&mut self, context: &Context<'_>, id: &str, findings: &mut Findings) {
        let node = context.node;
        let open = self.victims.get_mut(id).filter(|victim| victim.is_open);
        let Some((victim, facts)) = open.zip(node.containers.get(id)) else { return };
        // What was refused tells more.
        let is_obstructed = victim.obstructed.is_some();
        let is_other_cause = std::mem::replace(&mut victim.was_obstructed, is_obstructed) != is_obstructed;
        let is_unexplained = victim.refusal.is_none() && !is_obstructed;
        victim.left = left::phrase(context, id).filter(|_| is_unexplained);
        let target = node.target_of(facts);
        let (refusal, obstructed) = (victim.refusal(), victim.obstructed.as_deref());
        let confidence = match (refusal, of_state(facts.state)) {
            (Some(refusal), _) => refusal.confidence,
            // That it refuses the removal nobody has seen.
            (None, _) if is_obstructed => Confidence::Likely,
            (None, Removal::Failed | Removal::GoesOn) => victim.cleared.unwrap_or(Confidence::Certain),
            (None, Removal::Refused | Removal::None) => Confidence::Likely,
        };
        let summary = wording::summary(&target, facts, victim);
        let attempts = refusal.map_or(1, |refusal| refusal.attempts);
        findings.report(Report {
            advice: Some(wording::advice_for(node, &target, victim)),
            ruled_out: Some(obstructed.and_then(Obstructed::ruled_out).into_iter().collect()),
            caused_by: match obstructed {
                Some(_) => Vec::new(),
                None => left::causes(context, id, victim.holders()),
            },
            objects: IncidentObjects {
                target: Some(Shared::new(target)),
                ..refusal.map(|refusal| refusal.objects.clone()).unwrap_or_default()
            },
            first: victim.first,
            evidence: refusal.map(|refusal| refusal.evidence.clone()).unwrap_or_default(),
            count: if is_other_cause { Count::Restart(attempts) } else { Count::Total(attempts) },
            found_at_start: victim.found_at_start,
            ..Report::new(id.to_owned(), Severity::Warning, confidence, summary, context.now)
        });
    }

    fn attempt(&mut self, context: &Context<'_>, key: &MountKey, attempts: u64, findings: &mut Findings) {
        let is_it = |victim: &Victim| victim.refusal.as_ref().is_some_and(|refusal| refusal.is_of(key));
        let Some((id, victim)) = self.victims.iter_mut().find(|(_, victim)| is_it(victim)) else { return };
        let Some(refusal) = &mut victim.refusal else { return };
        refusal.last = refusal.last.max(context.now);
        refusal.attempts = refusal.attempts.max(attempts);
        let (evidence, count, severity) = (None, Count::Total(refusal.attempts), None);
        if victim.is_open {
            findings.repeat(Repeat { subject: id.clone(), last: context.now, evidence, count, severity });
        }
    }

    /// A mount is gone: it is in nobody's way any more. `is_likely`: only that one, as far as is known.
    fn cleared(
        &mut self,
        context: &Context<'_>,
        is_it: impl Fn(&Refusal) -> bool,
        is_likely: bool,
        findings: &mut Findings,
    ) {
        let how = if is_likely { Confidence::Likely } else { Confidence::Certain };
        let is_of = |victim: &Victim| victim.refusal.as_ref().is_some_and(|refusal| is_it(refusal));
        let ids: Vec<String> =
            self.victims.iter().filter(|(_, victim)| is_of(victim)).map(|(id, _)| id.clone()).collect();
        for id in ids {
            if let Some(victim) = self.victims.get_mut(&id) {
                (victim.refusal, victim.cleared) = (None, Some(how));
            }
            // Of a runtime that does not tell, nothing is left that shows a removal.
            self.check(context, &id, findings);
        }
    }

    /// It is over; `evidence`: the event that shows it.
    fn forget(&mut self, id: &str, evidence: Option<u64>, findings: &mut Findings) {
        let Some(victim) = self.victims.remove(id) else { return };
        self.timers.cancel(&id.to_owned());
        if victim.is_open {
            findings.close(id.to_owned(), CloseReason::Resolved, evidence);
        }
    }
}

impl Diagnosis for ContainerUndeletable {
    fn event(&mut self, context: &Context<'_>, event: &Event, findings: &mut Findings) {
        match event.kind {
            Kind::MountBusy => self.refused(context, event, findings),
            Kind::MountReleased | Kind::MountDetached => {
                if let Some(mount) = event.mount.as_deref() {
                    let is_likely = mount.confidence.is_some();
                    self.cleared(context, |refusal| refusal.is_about(mount), is_likely, findings);
                }
            }
            Kind::ContainerRemoved => {
                let container = event.target.as_ref().and_then(|target| target.container.as_ref());
                if let Some(gone) = container {
                    self.forget(&gone.id, Some(event.seq), findings);
                }
            }
            _ => {}
        }
    }

    fn change(&mut self, context: &Context<'_>, change: &ModelChange<'_>, findings: &mut Findings) {
        match change {
            ModelChange::Container(id) => self.check(context, id, findings),
            ModelChange::Runtime | ModelChange::RuntimeAvailability | ModelChange::Ready => {
                self.check_all(context, findings);
            }
            ModelChange::MountGone(mount) => {
                let is_it = |refusal: &Refusal| refusal.is_of(&mount.key);
                self.cleared(context, is_it, mount.is_likely, findings);
            }
            ModelChange::Obstacle(look) => self.looked(context, look, findings),
            ModelChange::Refused(mount) => {
                self.attempt(context, &mount.key, mount.total, findings);
            }
            _ => {}
        }
    }

    fn tick(&mut self, context: &Context<'_>, findings: &mut Findings) {
        while let Some(id) = self.timers.take_due(context.now) {
            self.due(context, &id, findings);
        }
    }

    fn resume(&mut self, context: &Context<'_>, event: &Event) -> Option<String> {
        let incident = event.incident.as_ref()?;
        let id = event.target.as_ref()?.container.as_ref()?.id.clone();
        let victim = Victim {
            first: context.clock.boot_ns(&incident.first_seen).unwrap_or(context.now),
            found_at_start: incident.found_at_start,
            is_claimed: event.target.as_ref().is_some_and(|target| target.is_claimed()),
            refusal: Refusal::resume(event, context.clock.boot_ns(&incident.last_seen)).map(Box::new),
            was_obstructed: !incident.ruled_out.is_empty(),
            is_open: true,
            ..Victim::default()
        };
        self.victims.insert(id.clone(), victim);
        self.timers.set(&id, context.now + LOOK);
        Some(id)
    }

    with_thresholds!(by timers);
}

/// How far a removal has come by the state that the runtime tells.
fn of_state(state: ContainerState) -> Removal {
    match state {
        ContainerState::Dead => Removal::Failed,
        ContainerState::Removing => Removal::GoesOn,
        _ => Removal::None,
    }
}

fn has_ended(state: ContainerState) -> bool {
    matches!(state, ContainerState::Exited | ContainerState::Dead | ContainerState::Removing)
}

/// Whether the lists that tell of a container are up to date. One that is not there may be that of a runtime which does not
/// answer, and has not yet since the start.
fn is_known(node: &NodeView<'_>, id: &str) -> bool {
    let is_up = |source: &String| !node.is_down(source);
    match node.containers.get(id) {
        Some(_) if node.containers.is_present(id) => node.containers.sources(id).iter().any(is_up),
        Some(_) => true,
        None => node.runtimes == RuntimeAvailability::All,
    }
}

#[cfg(test)]
mod tests;
