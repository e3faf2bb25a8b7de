//! Events that a sink could not take, summed up in one event that takes their place in the stream.

use std::sync::Arc;

use kevtmon_event::{Event, Kind, Lost, Severity, SharedEvent};
use kevtmon_history::queue::{Gap, Refused};

/// Consecutive events that were discarded.
pub(super) struct EventGap {
    gap: Gap,
    first_time: String,
    last: Arc<SharedEvent>,
}

impl EventGap {
    /// A gap whose last event is known, and how many there are.
    pub(super) fn ending_with(last: Arc<SharedEvent>, discarded: u64, refused: Refused) -> Self {
        Self { gap: Gap { discarded, refused }, first_time: last.time.clone(), last }
    }

    /// Adds an event to a gap, which starts with it if there is none.
    pub(super) fn extend(open: &mut Option<Self>, event: &Arc<SharedEvent>, refused: Refused) {
        let open = open.get_or_insert_with(|| Self {
            gap: Gap::new(refused),
            first_time: event.time.clone(),
            last: Arc::clone(event),
        });
        open.gap.discarded += 1;
        open.last = Arc::clone(event);
    }

    /// The event that takes their place. It has the number and time of the last one, so that the stream stays in
    /// order.
    pub(super) fn summary(&self, sink: &str) -> Event {
        let Self { gap: Gap { discarded, refused }, first_time, last } = self;
        let cause = match refused {
            Refused::Full | Refused::Budget | Refused::Closed => "is read too slowly",
            Refused::Failed | Refused::Down => "was down",
        };
        let message = format!("{sink} {cause}: {discarded} events discarded up to number {}", last.seq);
        Event {
            time: last.time.clone(),
            at: last.at,
            seq: last.seq,
            boot_id: last.boot_id.clone(),
            node: last.node.clone(),
            lost: Some(Lost {
                source: format!("sink.{sink}"),
                reason: refused.reason().to_owned(),
                count: discarded.to_string(),
                from: Some(first_time.clone()),
                to: Some(last.time.clone()),
            }),
            ..Event::new(Kind::EventsLost, Severity::Warning, message)
        }
    }
}
