//! An event on its way to the sinks. Several of them want the same line of JSON: it is made once, by whoever
//! needs it first.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use crate::event::Event;

/// An event, and its JSON once somebody asked for it.
#[derive(Debug)]
pub struct Told {
    event: Event,
    line: OnceLock<Arc<str>>,
}

impl Told {
    /// The public schema as one line, without its end. The schema has no maps with keys that are not strings, so
    /// this cannot fail; were it to, the line would be empty.
    pub fn line(&self) -> &Arc<str> {
        self.line.get_or_init(|| serde_json::to_string(&self.event).unwrap_or_default().into())
    }
}

impl From<Event> for Told {
    fn from(event: Event) -> Self {
        Self { event, line: OnceLock::new() }
    }
}

impl Deref for Told {
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
    fn the_line_is_the_event_and_is_made_once() {
        for event in sample::all() {
            let told = Told::from(event.clone());
            let back: Event = serde_json::from_str(told.line()).unwrap();
            assert_eq!(back, Event { at: 0, ..event });
            assert!(Arc::ptr_eq(told.line(), told.line()));
        }
    }
}
