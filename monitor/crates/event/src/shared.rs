//! An event shared by several sinks. Those that write JSON need the same line: it is serialized once, by whichever
//! sink needs it first.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

use kevtmon_types::escape::to_json;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Actor, Event, Target};

/// An event, and its JSON once a sink needed it.
#[derive(Debug)]
pub struct SharedEvent {
    event: Event,
    line: OnceLock<Arc<str>>,
}

impl SharedEvent {
    /// The event as one line of JSON, without the newline. Serializing cannot fail, because the schema has no maps
    /// with keys other than strings; if it did, the line would be empty.
    pub fn line(&self) -> &Arc<str> {
        self.line.get_or_init(|| to_json(&self.event).unwrap_or_default().into())
    }
}

/// What several events may have in common, such as their actor: kept once, and copied when one of them changes it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(transparent)]
pub struct Shared<T>(Arc<T>);

impl<T> Shared<T> {
    /// Of one event so far.
    pub fn new(value: T) -> Self {
        Self(Arc::new(value))
    }
}

impl<T: Clone> Shared<T> {
    pub fn into_inner(self) -> T {
        Arc::unwrap_or_clone(self.0)
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}

/// The actor and the target of the last event. Those of a storm have the same ones, and keep them once.
#[derive(Debug, Default)]
pub struct LastParties {
    actor: Option<Shared<Actor>>,
    target: Option<Shared<Target>>,
}

impl LastParties {
    /// Has the event share what is the same.
    pub fn share(&mut self, event: &mut Event) {
        share(&mut self.actor, &mut event.actor);
        share(&mut self.target, &mut event.target);
    }
}

fn share<T: PartialEq>(last: &mut Option<Shared<T>>, this: &mut Option<Shared<T>>) {
    if this.is_none() {
        return;
    }
    if last == this {
        *this = last.clone();
    } else {
        *last = this.clone();
    }
}

impl From<Event> for SharedEvent {
    fn from(event: Event) -> Self {
        Self { event, line: OnceLock::new() }
    }
}

impl Deref for SharedEvent {
    type Target = Event;

    fn deref(&self) -> &Event {
        &self.event
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::sample;

    #[test]
    fn the_line_is_the_event_and_is_serialized_once() {
        for event in sample::all() {
            let shared = SharedEvent::from(event.clone());
            let back: Event = serde_json::from_str(shared.line()).unwrap();
            assert_eq!(back, Event { at: 0, ..event });
            assert!(Arc::ptr_eq(shared.line(), shared.line()));
        }
    }

    fn is_kept_once<T>(one: &Shared<T>, other: &Shared<T>) -> bool {
        Arc::ptr_eq(&one.0, &other.0)
    }

    #[test]
    fn events_share_the_parties_that_are_the_same() {
        let mut last = LastParties::default();
        let mut shared = |mut event: Event| {
            last.share(&mut event);
            (event.actor.unwrap(), event.target.unwrap())
        };
        let first = shared(sample::deletion());
        let other_actor = Actor { pid: first.0.pid + 1, ..first.0.clone().into_inner() };
        let again = shared(sample::deletion());
        assert!(is_kept_once(&again.0, &first.0) && is_kept_once(&again.1, &first.1));
        let other = shared(Event { actor: Some(Shared::new(other_actor.clone())), ..sample::deletion() });
        assert_eq!(*other.0, other_actor);
        assert!(is_kept_once(&other.1, &first.1));
    }
}
