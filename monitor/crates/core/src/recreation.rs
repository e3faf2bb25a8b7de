//! A container that was made instead of another one: why, by what differs between the two.

use kevtmon_event::wording::{owner_phrase, target_label};
use kevtmon_event::{Event, Kind, Recreation, RecreationReason, Severity, Shared, Target};
use kevtmon_observation::{BootNs, ContainerFacts, ContainerState, Source};
use kevtmon_types::escape::name;

use super::Core;
use crate::node::incarnations::predecessor;
use crate::node::view;

const SECOND_NS: i64 = 1_000_000_000;

impl Core {
    /// Emits that a container was made instead of another one, if it was and has been started.
    pub(super) fn recreated(&mut self, at: BootNs, id: &str) {
        let Some(facts) = self.containers.get(id) else { return };
        if facts.state == ContainerState::Created {
            return;
        }
        if let Some(event) = self.recreation(at, facts, false) {
            self.emit(event);
        }
    }

    /// Emits the same of what was made again since the daemon ran last, as far as ended containers still show it.
    pub(super) fn recreated_before(&mut self, at: BootNs, ids: &[String]) {
        let since = self.previously_alive;
        let created = |id: &String| self.created(self.containers.get(id)?).filter(|created| *created <= at);
        let mut found: Vec<(BootNs, &String)> =
            ids.iter().filter_map(|id| Some((created(id)?, id))).collect();
        found.retain(|(created, _)| since.is_none_or(|since| *created > since));
        found.sort_unstable();
        let events: Vec<Event> = found
            .into_iter()
            .filter_map(|(created, id)| self.recreation(created, self.containers.get(id)?, true))
            .collect();
        for event in events {
            self.emit(event);
        }
    }

    /// When a container that was started was created in this boot, on the boot clock.
    fn created(&self, facts: &ContainerFacts) -> Option<BootNs> {
        if facts.state == ContainerState::Created {
            return None;
        }
        self.boot_time(facts.incarnation.created_s?)
    }

    /// A time of the wall clock in this boot, whole seconds, on the boot clock.
    pub(super) fn boot_time(&self, seconds: i64) -> Option<BootNs> {
        u64::try_from(seconds.checked_mul(SECOND_NS)?.checked_sub(self.realtime_offset_ns)?).ok()
    }

    fn recreation(&self, at: BootNs, facts: &ContainerFacts, found_at_start: bool) -> Option<Event> {
        let before = predecessor(&self.containers, facts)?;
        let (pod, earlier) = (facts.pod.as_ref()?, before.pod.as_ref()?);
        let reason = reason(before, facts);
        let target = self.target_of(facts);
        let (one, other) = (&before.incarnation, &facts.incarnation);
        let same_sandbox = earlier.sandbox_id.as_ref().zip(pod.sandbox_id.as_ref()).map(|(a, b)| a == b);
        let is_other_sandbox = same_sandbox == Some(false) && pod.is_confirmed();
        let recreation = Recreation {
            name: pod.container_name.clone()?,
            reason,
            previous: view::container(before),
            attempt: other.attempt,
            previous_attempt: one.attempt,
            spec_hash: other.spec_hash.map(Into::into),
            previous_spec_hash: one.spec_hash.map(Into::into),
            previous_sandbox_id: earlier.sandbox_id.clone().filter(|_| is_other_sandbox),
            same_sandbox,
            found_at_start,
        };
        let severity = match reason {
            RecreationReason::SpecHashChanged => Severity::Notice,
            _ => Severity::Info,
        };
        let message = message(&target, &recreation);
        let event = self.event(at, Kind::ContainerRecreated, severity, message);
        // What is found after the fact has no latency.
        let source = if found_at_start { Source::Daemon } else { event.source };
        Some(Event {
            source,
            target: Some(Shared::new(target)),
            recreation: Some(Box::new(recreation)),
            ..event
        })
    }
}

/// Why a container was made instead of another one. An image of which only the name is known is the same if that is.
fn reason(before: &ContainerFacts, now: &ContainerFacts) -> RecreationReason {
    let (one, other) = (&before.incarnation, &now.incarnation);
    let same_image = match (&one.image_id, &other.image_id) {
        (Some(one), Some(other)) => one == other,
        _ => before.image == now.image,
    };
    match one.spec_hash.zip(other.spec_hash).map(|(one, other)| one == other) {
        _ if !same_image => RecreationReason::ImageChanged,
        Some(true) => RecreationReason::Exited,
        Some(false) => RecreationReason::SpecHashChanged,
        None => RecreationReason::Unknown,
    }
}

fn message(target: &Target, recreation: &Recreation) -> String {
    let label = match target.confirmed_pod() {
        Some(_) => format!("container {}{}", name(&recreation.name), owner_phrase(target)),
        None => target_label(target).unwrap_or_else(|| format!("container {}", name(&recreation.name))),
    };
    let decimal = |hash: &Option<kevtmon_event::SpecHash>| {
        hash.as_ref().map_or_else(|| "?".to_owned(), |hash| hash.decimal.clone())
    };
    let why = match recreation.reason {
        RecreationReason::SpecHashChanged => format!(
            "the hash of its specification changed from {} to {}",
            decimal(&recreation.previous_spec_hash),
            decimal(&recreation.spec_hash)
        ),
        RecreationReason::ImageChanged => "its image changed".to_owned(),
        RecreationReason::Exited => match recreation.previous.exit_code {
            Some(code) => format!("its predecessor exited with code {code}"),
            None => "its predecessor ended".to_owned(),
        },
        RecreationReason::Unknown => "reason unknown".to_owned(),
    };
    let when = if recreation.found_at_start { " before the daemon started" } else { "" };
    format!("{label} was re-created{when}: {why}")
}
