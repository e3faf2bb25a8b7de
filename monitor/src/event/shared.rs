//! An event shared by several sinks. Those that write JSON need the same line: it is serialized once, by whichever
//! sink needs it first.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use super::Event;
use crate::escape::to_json;

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
    use crate::tests::sample;

    #[test]
    fn the_line_is_the_event_and_is_serialized_once() {
        for event in sample::all() {
            let shared = SharedEvent::from(event.clone());
            let back: Event = serde_json::from_str(shared.line()).unwrap();
            assert_eq!(back, Event { at: 0, ..event });
            assert!(Arc::ptr_eq(shared.line(), shared.line()));
        }
    }
}
