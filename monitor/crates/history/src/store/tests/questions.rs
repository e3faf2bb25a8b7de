//! Questions and answers, wherever in the file the events are.

use std::collections::BTreeSet;

use super::*;
use crate::query::filter;
use crate::query::history::{History, LiveHistory as _};
use crate::query::key::{self, Key};
use crate::store::retention::Victims;
use crate::test_support::memory::Memory;

/// Events of every shape, some of whose times are out of order.
fn mixed() -> Vec<Event> {
    let shapes = sample::all().into_iter().cycle();
    (1..=300)
        .zip(shapes)
        .map(|(seq, event)| {
            let off = match seq % 11 {
                2 => 5,
                4 => -20,
                10 => 3,
                _ => 0,
            };
            let seconds = i64::try_from(seq).unwrap() + off;
            let severity = if seq % 50 == 0 { Severity::Critical } else { event.severity };
            Event { time: at(seconds), severity, ..numbered(event, seq) }
        })
        .collect()
}

#[test]
fn every_question_has_the_answer_that_reading_everything_gives() {
    let reference = Memory::of(mixed());
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = resume(dir.path(), BOOT);
    for (number, event) in (1..).zip(mixed()) {
        writer.insert(&event).unwrap();
        if number % 140 == 0 {
            writer.commit().unwrap();
        }
    }
    writer.commit().unwrap();
    let readers = [reader(dir.path()), Reader::open_beside_daemon(dir.path()).unwrap()];
    for (reader, (filter, limit)) in
        readers.iter().flat_map(|reader| questions().into_iter().map(move |question| (reader, question)))
    {
        let filter = EventFilter { limit, ..filter };
        let (page, expected) = (reader.events(&filter).unwrap(), reference.events(&filter).unwrap());
        assert_eq!(page, expected, "{filter:?}");
        if let Some(next) = page.next {
            let filter = EventFilter { cursor: Some(next), ..filter };
            let (page, expected) = (reader.events(&filter).unwrap(), reference.events(&filter).unwrap());
            assert_eq!(page, expected, "{filter:?}");
        }
    }
}

/// Of every kind, each with several limits.
fn questions() -> Vec<(EventFilter, usize)> {
    let any = EventFilter::default;
    let mut filters = vec![any(), EventFilter { boot_id: Some("another".into()), ..any() }];
    for kind in ["neighbor.", "mount.busy", "events.lost", "nonsense"] {
        filters.push(EventFilter { kinds: vec![kind.into()], ..any() });
    }
    for severity in Severity::ALL {
        filters.push(EventFilter { severity: Some(severity), ..any() });
    }
    let keys: BTreeSet<Key> = sample::all().iter().flat_map(key::keys).map(|(key, _role)| key).collect();
    for key in keys {
        filters.push(EventFilter { about: vec![Lookup::Exact(key.clone())], ..any() });
        filters.push(EventFilter { about: vec![Lookup::Prefix(key)], ..any() });
    }
    for path in ["/", "/var/lib/kubelet/", "/var/lib/kubele/", "/mnt/"] {
        filters.push(EventFilter { about: vec![Lookup::prefix(Family::Path, path)], ..any() });
    }
    for container in ["5", "593d", "593d8a89ee37", "593d8a89ee37593d", "593d8a89ee38", "6"] {
        let container = filter::container(container).ok();
        filters.push(EventFilter { container: container.clone(), ..any() });
        let pod = filter::pod("lijiaob/etcd1-0").ok();
        filters.push(EventFilter { container, pod: pod.clone(), kinds: vec!["mount.".into()], ..any() });
        filters.push(EventFilter { pod, about: vec![Lookup::exact(Family::Pid, "977")], ..any() });
    }
    let time = |seconds| time::nanos(&at(seconds));
    let moment = |seconds| jiff::Timestamp::from_nanosecond(time(seconds).into()).unwrap();
    for (since, until) in [(None, Some(100)), (Some(100), None), (Some(50), Some(60)), (Some(400), None)] {
        filters.push(EventFilter { since: since.map(moment), until: until.map(moment), ..any() });
    }
    filters.push(EventFilter { after: Some(290), ..any() });
    filters.push(EventFilter { seqs: vec![7, 5000, 9, 12], boot_id: Some(BOOT.into()), ..any() });
    filters.push(EventFilter { seqs: vec![7, 8, 9], kinds: vec!["mount.".into()], ..any() });
    let orders = |filter: EventFilter| {
        [Order::Newest, Order::Oldest].map(|order| EventFilter { order, ..filter.clone() })
    };
    let filters = filters.into_iter().flat_map(orders);
    filters.flat_map(|filter| [1, 7, 100, 1000].map(|limit| (filter.clone(), limit))).collect()
}

#[test]
fn an_incident_is_found_by_what_it_rests_on_as_long_as_that_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = resume(dir.path(), BOOT);
    writer.insert(&numbered(sample::deletion(), 1)).unwrap();
    let resting = |id: &str, kind, seq, evidence: &[u64]| {
        let mut event = incident(id, kind, seq);
        event.incident.as_mut().unwrap().evidence = evidence.to_vec();
        event
    };
    writer.insert(&resting("one", Kind::IncidentOpened, 2, &[1])).unwrap();
    writer.insert(&resting("two", Kind::IncidentOpened, 3, &[1, 2])).unwrap();
    writer.insert(&resting("one", Kind::IncidentClosed, 4, &[1, 3])).unwrap();
    writer.commit().unwrap();
    let reader = reader(dir.path());
    let found = |evidence: &[u64], boot_id: Option<&str>| {
        let (evidence, boot_id) = (evidence.to_vec(), boot_id.map(str::to_owned));
        let filter = IncidentFilter { evidence, boot_id, ..IncidentFilter::default() };
        let views = reader.incidents(&filter).unwrap();
        views.into_iter().map(|view| view.incident.id).collect::<Vec<_>>()
    };
    assert_eq!(found(&[1], Some(BOOT)), ["one", "two"], "open or closed");
    assert_eq!(found(&[2, 7], None), ["two"]);
    assert_eq!(found(&[3], Some(BOOT)), ["one"]);
    assert_eq!(found(&[1], Some("another")), [""; 0]);
    assert_eq!(found(&[u64::MAX], None), [""; 0]);
    assert!(writer.forget(lookup::ALL, Victims { with_evidence: true, ..Victims::ALL }).unwrap());
    let left: i64 =
        writer.connection.query_row("SELECT count(*) FROM evidence", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0);
}

#[test]
fn a_snapshot_stays_as_it_is_while_the_daemon_writes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = resume(dir.path(), BOOT);
    let all = IncidentFilter { all: true, ..IncidentFilter::default() };
    writer.insert(&incident("a", Kind::IncidentOpened, 1)).unwrap();
    writer.commit().unwrap();
    let archive = Archive::behind(dir.path());
    let snapshot = archive.snapshot().unwrap();
    writer.insert(&incident("b", Kind::IncidentOpened, 2)).unwrap();
    writer.commit().unwrap();
    let counts = |history: &dyn History| {
        let events = history.events(&EventFilter::default()).unwrap().events.len();
        (events, history.incidents(&all).unwrap().len(), history.extent().unwrap().last_seq)
    };
    assert_eq!((counts(snapshot.as_ref()), counts(&archive)), ((1, 1, 1), (2, 2, 2)));
    assert!(Archive::behind(dir.path().join("nothing")).snapshot().is_none());
}
