//! Events one below the other, what repeats itself in one line with a count.
//!
//! The first of like events is shown as ever, and those that follow it are counted. What was counted is shown before
//! anything unlike follows, when it was long enough since the last of them, and whenever the caller wants it.

use std::ops::Deref;

use jiff::{SignedDuration, Timestamp};
use kevtmon_event::Event;
use kevtmon_history::query::group::group_key;
use kevtmon_history::query::record::timestamp;

use super::Transcript;

/// Runs of like events that are told apart.
const RUNS_MAX: usize = 32;
/// Transitions and reports of the daemon: none stands for another.
const NEVER: [&str; 3] = ["incident.", "daemon.", "events."];

/// Shows events; `E` holds one.
#[derive(Debug)]
pub struct Fold<E> {
    transcript: Transcript,
    /// How long after its last event a run ends.
    gap: SignedDuration,
    runs: Vec<Run<E>>,
}

#[derive(Debug)]
struct Run<E> {
    group: String,
    kind: String,
    last_time: Timestamp,
    pending: Option<Pending<E>>,
}

/// Events of a run that were not shown.
#[derive(Debug)]
struct Pending<E> {
    count: u64,
    last: E,
}

impl<E: Deref<Target = Event>> Fold<E> {
    /// One in which a run of like events ends that long after its last.
    pub fn new(transcript: Transcript, gap: SignedDuration) -> Self {
        Self { transcript, gap, runs: Vec::new() }
    }

    /// Whether something was counted and is not shown yet.
    pub fn is_pending(&self) -> bool {
        self.runs.iter().any(|run| run.pending.is_some())
    }

    /// The text that the next event leads to: empty where it only counts. `when` is an event's time in words.
    pub fn event(&mut self, event: E, kind: &str, when: impl Fn(&Event) -> String) -> String {
        let time = timestamp(&event.time);
        let mut text = String::new();
        if NEVER.iter().any(|family| kind.starts_with(family)) {
            text.push_str(&self.flush(&when));
            text.push_str(&self.transcript.paragraph(&event, kind, &when(&event)));
            return text;
        }
        let group = group_key(&event, kind);
        let gap = self.gap;
        let run = self.runs.iter_mut().find(|run| run.group == group);
        if let Some(run) = run.filter(|run| time.duration_since(run.last_time) <= gap) {
            run.last_time = run.last_time.max(time);
            let count = run.pending.take().map_or(0, |pending| pending.count);
            run.pending = Some(Pending { count: count + 1, last: event });
            return text;
        }
        text.push_str(&self.flush(&when));
        // An event that was held back is older, and ends nothing.
        self.runs.retain(|run| run.group != group && time.duration_since(run.last_time) <= gap);
        if self.runs.len() >= RUNS_MAX {
            self.runs.remove(0);
        }
        text.push_str(&self.transcript.paragraph(&event, kind, &when(&event)));
        self.runs.push(Run { group, kind: kind.to_owned(), last_time: time, pending: None });
        text
    }

    /// What was counted since it was last shown, in order of time.
    pub fn flush(&mut self, when: impl Fn(&Event) -> String) -> String {
        let counted = self.runs.iter_mut().filter_map(|run| {
            let pending = run.pending.take()?;
            Some((run.last_time, run.kind.clone(), pending))
        });
        let mut counted: Vec<_> = counted.collect();
        counted.sort_by_key(|(time, ..)| *time);
        let shown = counted.iter().map(|(_, kind, Pending { count, last })| match count {
            1 => self.transcript.paragraph(last, kind, &when(last)),
            more => self.transcript.counted(last, kind, &when(last), *more),
        });
        shown.collect()
    }
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;
    use kevtmon_event::{Incident, Kind};
    use kevtmon_testing::{numbered, sample};

    use super::*;
    use crate::Pretty;

    fn fold() -> Fold<Box<Event>> {
        let pretty = Pretty { colour: false, zone: TimeZone::UTC };
        Fold::new(Transcript::new(pretty), SignedDuration::from_secs(60))
    }

    fn entry(seq: u64, address: &str) -> Box<Event> {
        let mut event = numbered::numbered(seq, sample::deletion());
        let neighbor = event.neighbor.as_mut().unwrap();
        (neighbor.address, neighbor.gateway) = (address.parse().unwrap(), Some(false));
        event.message = format!("ARP {address} on eth0 deleted by ip (pid {seq})");
        Box::new(event)
    }

    fn told(fold: &mut Fold<Box<Event>>, event: Box<Event>) -> String {
        let kind = event.kind.name();
        fold.event(event, kind, |event| event.seq.to_string())
    }

    fn heads(text: &str) -> Vec<&str> {
        text.lines().filter(|line| !line.starts_with(' ')).collect()
    }

    #[test]
    fn a_batch_is_its_first_event_and_a_count() {
        let mut fold = fold();
        let mut text = String::new();
        for seq in 1..=50 {
            text.push_str(&told(&mut fold, entry(seq, &format!("10.0.0.{seq}"))));
        }
        assert!(fold.is_pending());
        text.push_str(&fold.flush(|event| event.seq.to_string()));
        assert!(!fold.is_pending() && fold.flush(|_| String::new()).is_empty());
        let heads = heads(&text);
        assert_eq!(heads.len(), 2, "{text}");
        assert!(
            heads[0].starts_with("1 ") && heads[0].ends_with("ARP 10.0.0.1 on eth0 deleted by ip (pid 1)")
        );
        assert!(heads[1].starts_with("50 "), "{text}");
        assert!(
            heads[1].ends_with("… 49 more like it, the last: ARP 10.0.0.50 on eth0 deleted by ip (pid 50)")
        );
    }

    #[test]
    fn whatever_is_unlike_stands_behind_what_came_before_it() {
        let mut fold = fold();
        let (busy, incident) = (sample::busy(), numbered::incident("a", 9));
        let opened = |incident: Incident| Event {
            kind: Kind::IncidentOpened,
            incident: Some(Box::new(incident)),
            ..numbered::event(9)
        };
        let texts = [
            told(&mut fold, entry(1, "10.0.0.1")),
            told(&mut fold, entry(2, "10.0.0.2")),
            told(&mut fold, Box::new(numbered::numbered(3, busy.clone()))),
            told(&mut fold, entry(4, "10.0.0.2")),
            told(&mut fold, Box::new(numbered::numbered(5, busy))),
            told(&mut fold, entry(6, "10.0.0.2")),
            told(&mut fold, Box::new(opened(incident))),
        ];
        let counts: Vec<usize> = texts.iter().map(|text| heads(text).len()).collect();
        assert_eq!(counts, [1, 0, 2, 0, 0, 0, 3], "{texts:#?}");
        assert!(
            heads(&texts[2])[0].contains("10.0.0.2 on eth0 deleted by ip (pid 2)"),
            "alone it is as ever"
        );
        assert!(heads(&texts[6])[0].starts_with("5 ") && heads(&texts[6])[1].contains("… 2 more like it"));
    }

    #[test]
    fn an_event_that_was_held_back_ends_no_run() {
        let mut fold = fold();
        told(&mut fold, entry(200, "10.0.0.1"));
        told(&mut fold, Box::new(numbered::numbered(1, sample::busy())));
        assert!(told(&mut fold, entry(201, "10.0.0.2")).is_empty() && fold.is_pending());
    }

    #[test]
    fn after_a_pause_it_is_told_anew_and_no_transition_is_left_out() {
        let mut fold = fold();
        assert_eq!(heads(&told(&mut fold, entry(1, "10.0.0.1"))).len(), 1);
        assert_eq!(heads(&told(&mut fold, entry(62, "10.0.0.1"))).len(), 1);
        let opened = Event {
            kind: Kind::IncidentUpdated,
            incident: Some(Box::new(numbered::incident("a", 9))),
            ..numbered::event(63)
        };
        for _ in 0..3 {
            assert_eq!(heads(&told(&mut fold, Box::new(opened.clone()))).len(), 1);
        }
    }
}
