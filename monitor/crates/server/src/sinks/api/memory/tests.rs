//! What is remembered, found, evicted and handed to readers.

use kevtmon_event::Kind;
use kevtmon_history::query::filter::{self, Order};
use kevtmon_sources::procfs::own::Own;

use super::*;
use crate::test_support::memory;

fn memory() -> Memory {
    Memory::new(
        "n",
        "5a3c6b5e-0d0f-4d5c-9c58-0f2b6a1f7c11",
        Arc::new(Metrics::new("0", "0", Own::default()).unwrap()),
    )
}

fn push(memory: &Memory, event: &Event) {
    memory.push(event, serde_json::to_string(event).unwrap().into());
}

#[test]
fn it_answers_as_a_search_of_everything_would() {
    let memory = memory();
    let samples = kevtmon_testing::sample::all();
    let events: Vec<Event> =
        samples.into_iter().cycle().zip(1..100).map(|(event, seq)| memory::numbered(seq, event)).collect();
    events.iter().for_each(|event| push(&memory, event));
    let reference = memory::Memory::of(events);
    for filter in [
        EventFilter::default(),
        EventFilter { limit: 7, order: Order::Oldest, ..EventFilter::default() },
        EventFilter { kinds: vec!["mount.".into()], limit: 3, ..EventFilter::default() },
        EventFilter { pod: filter::pod("lijiaob/etcd1-0").ok(), after: Some(50), ..EventFilter::default() },
        EventFilter {
            severity: filter::severity("warning").ok(),
            seqs: vec![1, 2, 3],
            ..EventFilter::default()
        },
        EventFilter { boot_id: Some("other".into()), ..EventFilter::default() },
    ] {
        assert_eq!(memory.events(&filter).unwrap(), reference.events(&filter).unwrap(), "{filter:?}");
    }
}

#[test]
fn it_holds_so_many_events_and_bytes_and_no_more() {
    let many = memory();
    (1..=10_000).for_each(|seq| many.push(&memory::event(seq), "{}".into()));
    assert_eq!(lock(&many.inner).recent.len(), EVENTS);
    assert_eq!(many.extent().unwrap().last_seq, 10_000);
    let large = memory();
    let line = "x".repeat(BYTES / 10);
    (1..=100).for_each(|seq| large.push(&memory::event(seq), line.as_str().into()));
    let bytes: usize = lock(&large.inner).recent.iter().map(|kept| kept.line.len()).sum();
    assert!(bytes <= BYTES, "{bytes}");
}

#[test]
fn what_was_newest_is_still_there_when_it_is_evicted() {
    let memory = memory();
    push(&memory, &memory::event(1));
    let newest = memory.newest();
    (2..=2 + EVENTS as u64).for_each(|seq| memory.push(&memory::event(seq), "{}".into()));
    assert_eq!((newest.first_seq(), memory.newest().first_seq()), (1, 3));
    let found = |history: &dyn History| {
        let filter = EventFilter { seqs: vec![1], ..EventFilter::default() };
        history.events(&filter).unwrap().events.len()
    };
    assert_eq!((found(&newest), found(&memory)), (1, 0));
}

#[test]
fn open_incidents_outlive_closed_ones_and_the_events() {
    let memory = memory();
    for number in 0..2 * INCIDENTS as u64 {
        let mut incident = memory::incident(&number.to_string(), number);
        // One in four stays open.
        incident.closed = (number % 4 != 0).then(|| memory::time(number));
        let event = Event {
            kind: Kind::IncidentClosed,
            incident: Some(Box::new(incident)),
            ..kevtmon_testing::sample::daemon(Severity::Info)
        };
        memory.push(&memory::numbered(number, event), "{}".into());
    }
    let open = memory.incidents(&IncidentFilter::default()).unwrap();
    assert_eq!(open.len(), INCIDENTS / 2);
    let all = memory.incidents(&IncidentFilter { all: true, ..IncidentFilter::default() }).unwrap();
    assert_eq!(all.len(), INCIDENTS);
}

#[test]
fn the_closed_incidents_of_one_displace_none_of_others() {
    let memory = memory();
    let put = |number: u64, account: &str, priority| {
        let mut incident = memory::incident(&number.to_string(), number);
        incident.closed = Some(memory::time(number));
        let event = Event {
            kind: Kind::IncidentClosed,
            incident: Some(Box::new(incident)),
            ..kevtmon_testing::sample::daemon(Severity::Info)
        };
        let tenant = Tenant { priority, name: account.into() };
        memory.push(&Event { tenant, ..memory::numbered(number, event) }, "{}".into());
    };
    (0..10).for_each(|number| put(number, "etcd", kevtmon_event::Priority::Known));
    (10..4000).for_each(|number| put(number, "flapping", kevtmon_event::Priority::Known));
    let all = memory.incidents(&IncidentFilter { all: true, ..IncidentFilter::default() }).unwrap();
    assert_eq!(all.len(), INCIDENTS);
    assert!((0..10).all(|number| all[number].incident.id == number.to_string()));
    (4000..6000).for_each(|number| put(number, "users", kevtmon_event::Priority::Foreign));
    let all = memory.incidents(&IncidentFilter { all: true, ..IncidentFilter::default() }).unwrap();
    let of_users = all.iter().filter(|view| view.incident.id.parse::<u64>().unwrap() >= 4000).count();
    assert!((100..130).contains(&of_users), "an eighth each: {of_users}");
}

fn seqs(next: Next) -> Vec<u64> {
    let Next::Lines(lines) = next else { panic!("{next:?}") };
    lines.into_iter().map(|line| Record::read(line).unwrap().event.seq).collect()
}

#[test]
fn a_reader_gets_what_it_wants_from_then_on() {
    let memory = memory();
    push(&memory, &memory::event(1));
    let filter = EventFilter { kinds: vec!["mount.busy".into()], ..EventFilter::default() };
    let mut subscription = memory.subscribe(filter, Arc::default()).unwrap();
    assert_eq!((memory.newest().first_seq(), subscription.last_seq), (1, 1));
    assert_eq!(memory.next(&subscription.reader, usize::MAX), Next::Wait);
    push(&memory, &memory::event(2));
    push(&memory, &memory::numbered(3, kevtmon_testing::sample::busy()));
    assert!(!subscription.changed.has_changed().unwrap());
    memory.wake();
    assert!(subscription.changed.has_changed().unwrap());
    assert_eq!(seqs(memory.next(&subscription.reader, usize::MAX)), [3]);
    subscription.changed.mark_unchanged();
    push(&memory, &memory::numbered(4, kevtmon_testing::sample::busy()));
    memory.close();
    assert!(subscription.changed.has_changed().unwrap());
    assert_eq!(seqs(memory.next(&subscription.reader, usize::MAX)), [4], "the last ones are not lost");
    assert_eq!(memory.next(&subscription.reader, usize::MAX), Next::End);
    assert!(memory.subscribe(EventFilter::default(), Arc::default()).is_none());
}

#[test]
fn a_reader_is_handed_little_at_a_time_and_all_in_the_end() {
    let memory = memory();
    let subscription = memory.subscribe(EventFilter::default(), Arc::default()).unwrap();
    (1..=10).for_each(|seq| push(&memory, &memory::event(seq)));
    assert_eq!(seqs(memory.next(&subscription.reader, 1)), [1]);
    assert_eq!(seqs(memory.next(&subscription.reader, usize::MAX)), (2..=10).collect::<Vec<_>>());
}

#[test]
fn a_reader_that_falls_behind_is_cut_off_and_counted_once() {
    let memory = memory();
    let subscription = memory.subscribe(EventFilter::default(), Arc::default()).unwrap();
    let other = memory.subscribe(EventFilter::default(), Arc::default()).unwrap();
    let end = EVENTS as u64 + SWEEP;
    for seq in 1..=end {
        memory.push(&memory::event(seq), "{}".into());
        memory.next(&other.reader, usize::MAX);
    }
    assert_eq!(lock(&memory.inner).readers.len(), 1);
    assert_eq!(memory.next(&subscription.reader, usize::MAX), Next::End);
    let text = memory.metrics.gather().unwrap();
    let counted = format!("kevtmon_events_discarded_total{{reason=\"slow-reader\",sink=\"api\"}} {end}\n");
    assert!(text.contains(&counted), "{text}");
}

#[test]
fn readers_that_went_away_make_room() {
    let memory = memory();
    let join = || memory.subscribe(EventFilter::default(), Arc::default());
    let first: Vec<_> = (0..READERS).map(|_| join()).collect();
    assert!(first.iter().all(Option::is_some));
    assert!(join().is_none());
    drop(first);
    assert!(join().is_some());
}

#[test]
fn a_snapshot_stays_as_it_is_while_events_come() {
    let memory = memory();
    let opened =
        |id: &str, seq| Event { incident: Some(Box::new(memory::incident(id, seq))), ..memory::event(seq) };
    push(&memory, &opened("a", 1));
    let snapshot = memory.snapshot(crate::test_support::node_state::state());
    push(&memory, &opened("b", 2));
    let counts = |history: &dyn History| {
        let events = history.events(&EventFilter::default()).unwrap().events.len();
        let incidents = history.incidents(&IncidentFilter::default()).unwrap().len();
        (events, incidents, history.extent().unwrap().last_seq)
    };
    assert_eq!((counts(&snapshot), counts(&memory)), ((1, 1, 1), (2, 2, 2)));
    assert!(snapshot.state().unwrap().is_some());
}
