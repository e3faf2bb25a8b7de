//! A real socket, a memory, and a core that is a thread.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use kevtmon_event::{Event, Incident, Kind};
use kevtmon_history::query::filter::{EventFilter, IncidentFilter, Order};
use kevtmon_history::store::{Archive, Limits, Writer};
use kevtmon_testing::patience::{PATIENCE, eventually};

use super::*;
use crate::api_rig::{BOOT, Rig, ask};
use crate::client::{Remote, RemoteError};
use crate::test_support::memory;

mod access;
mod why;

fn next(remote: &Remote, filter: &EventFilter, count: usize) -> Vec<u64> {
    let mut seqs = Vec::new();
    remote
        .follow(filter, Duration::MAX, |line| {
            let Some(line) = line else { return ControlFlow::Continue(()) };
            seqs.push(serde_json::from_str::<Event>(line).unwrap().seq);
            if seqs.len() < count { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
        .unwrap();
    seqs
}

#[test]
fn a_client_gets_what_the_daemon_remembers() {
    let rig = Rig::new();
    rig.push(1..=30);
    let remote = rig.remote();
    assert_eq!(
        (remote.version().unwrap().node.as_str(), remote.version().unwrap().revision.as_str()),
        ("n", "r")
    );
    let filter = EventFilter { limit: 7, order: Order::Oldest, ..EventFilter::default() };
    assert_eq!(remote.events(&filter).unwrap(), rig.memory.events(&filter).unwrap());
    assert_eq!(remote.extent().unwrap(), rig.memory.extent().unwrap());
    assert_eq!(remote.incidents(&IncidentFilter::default()).unwrap(), []);
    assert_eq!(remote.state().unwrap().unwrap().host_netns, 1);
}

#[test]
fn every_answer_names_the_interface_and_another_one_is_refused_naming_both() {
    let rig = Rig::new();
    for target in ["/v1/version", "/v1/events", "/v1/nothing", "/"] {
        assert!(rig.ask(target).contains("\r\nkevtmon-api: 1\r\n"), "{target}");
    }
    let refusal = ask(&rig.path, "GET /v1/version HTTP/1.1\r\nHost: x\r\nkevtmon-api: 2\r\n\r\n");
    assert!(refusal.starts_with("HTTP/1.1 400 "), "{refusal}");
    assert!(refusal.contains("has interface version 1, the client 2"), "{refusal}");
}

#[test]
fn what_is_not_there_or_not_understood_is_said() {
    let rig = Rig::new();
    assert!(rig.ask("/v2/events").starts_with("HTTP/1.1 404 "));
    assert!(rig.ask("/v1/events?colour=red").starts_with("HTTP/1.1 400 "));
    assert!(
        rig.ask("/v1/incidents?colour=red").contains("expected one of all, kind, pod, severity, since, id")
    );
    let refusal = ask(&rig.path, "POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
    assert!(refusal.starts_with("HTTP/1.1 405 ") && refusal.contains("allow: GET\r\n"), "{refusal}");
    let large = format!("GET /v1/events HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(http::REQUEST_BYTES));
    let refusal = ask(&rig.path, &large);
    assert!(!refusal.starts_with("HTTP/1.1 200"), "{refusal}");
    assert!(ask(&rig.path, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
    assert!(rig.ask("/v1/version").starts_with("HTTP/1.1 200 "));
}

#[test]
fn a_stream_goes_on_after_a_number_without_gap_or_repetition() {
    let rig = Rig::new();
    rig.push(1..=10);
    let remote = rig.remote();
    let after = |after, boot: &str| EventFilter {
        after: Some(after),
        boot_id: Some(boot.into()),
        ..EventFilter::default()
    };
    thread::scope(|scope| {
        scope.spawn(|| rig.push(11..=500));
        assert_eq!(next(&remote, &after(4, BOOT), 496), (5..=500).collect::<Vec<_>>());
    });
    assert_eq!(next(&remote, &after(499, "another boot"), 500), (1..=500).collect::<Vec<_>>());
    assert_eq!(next(&remote, &after(9_999, BOOT), 500).len(), 500, "numbers began again");
}

#[test]
fn a_stream_that_goes_on_beyond_what_is_remembered_says_so_first() {
    let rig = Rig::new();
    rig.push(101..=110);
    let mut stream = rig.stream("&after=50");
    // The size of a chunk stands before it.
    let lines = stream.by_ref().lines().map(Result::unwrap).filter(|line| line.starts_with('{'));
    let events: Vec<Event> = lines.take(2).map(|line| serde_json::from_str(&line).unwrap()).collect();
    assert_eq!((events[0].kind.name(), events[0].seq, events[1].seq), ("events.lost", 100, 101));
    assert_eq!(events[0].lost.as_ref().unwrap().count, "50");
}

#[test]
fn what_the_memory_has_forgotten_comes_from_what_reaches_further_back() {
    let older = memory::shared(memory::Memory::of((1..=100).map(memory::event)));
    let rig = Rig::with(Some(older));
    rig.push(90..=110);
    let remote = rig.remote();
    let filter = EventFilter { after: Some(40), ..EventFilter::default() };
    assert_eq!(next(&remote, &filter, 70), (41..=110).collect::<Vec<_>>());
    assert_eq!(
        remote.events(&EventFilter { limit: 1_000, ..EventFilter::default() }).unwrap().events.len(),
        110
    );
}

/// Kind and number of each event of a stream that goes on after a number, with the count of each loss.
fn resumed(rig: &Rig, after: &str, count: usize) -> Vec<(String, u64, Option<String>)> {
    let mut stream = rig.stream(after);
    let lines = stream.by_ref().lines().map(Result::unwrap).filter(|line| line.starts_with('{'));
    lines
        .take(count)
        .map(|line| {
            let event: Event = serde_json::from_str(&line).unwrap();
            (event.kind.name().to_owned(), event.seq, event.lost.map(|lost| lost.count))
        })
        .collect()
}

#[test]
fn a_stream_that_goes_on_names_what_the_store_never_got() {
    let deletion = |seq| ("neighbor.deleted".to_owned(), seq, None);
    let lost = |seq, count: &str| ("events.lost".to_owned(), seq, Some(count.to_owned()));
    let state = tempfile::tempdir().unwrap();
    // The events are old.
    let limits = Limits { max_age: Duration::from_secs(100 * 365 * 86_400), ..Limits::default() };
    let (mut store, ..) = Writer::resume(state.path(), limits, BOOT).unwrap();
    // It was down for 5 to 7, and what came after 9 it has not committed.
    for seq in [1, 2, 3, 4, 8, 9] {
        store.insert(&Event { boot_id: BOOT.into(), ..memory::event(seq) }).unwrap();
    }
    store.commit().unwrap();
    let rig = Rig::with(Some(Arc::new(Archive::behind(state.path()))));
    rig.push(13..=14);
    let expected =
        [deletion(4), lost(7, "3"), deletion(8), deletion(9), lost(12, "3"), deletion(13), deletion(14)];
    assert_eq!(resumed(&rig, "&after=3", 7), expected);
    assert_eq!(resumed(&rig, "&after=3&kind=neighbor.", 7), expected, "whatever was asked for");
    assert_eq!(resumed(&rig, "&after=3&kind=mount.", 2), [lost(7, "3"), lost(12, "3")]);
    assert_eq!(resumed(&rig, "&after=12", 2), [deletion(13), deletion(14)], "nothing is missing there");

    // A file that is not there has nothing.
    drop(store);
    fs::remove_file(state.path().join(kevtmon_history::store::FILE)).unwrap();
    assert_eq!(resumed(&rig, "&after=3", 2), [lost(12, "9"), deletion(13)]);
}

#[test]
fn what_a_queue_summed_up_is_no_second_gap() {
    let mut summary = memory::numbered(4, kevtmon_testing::sample::lost());
    summary.boot_id = BOOT.into();
    let events = [memory::event(1), summary, memory::event(5)];
    let events = events.map(|event| Event { boot_id: BOOT.into(), ..event });
    let rig = Rig::with(Some(memory::shared(memory::Memory::of(events))));
    rig.push(6..=7);
    let seqs = |after: &str, count| {
        resumed(&rig, after, count).into_iter().map(|(_, seq, _)| seq).collect::<Vec<_>>()
    };
    assert_eq!(seqs("&after=1", 4), [4, 5, 6, 7]);
    assert_eq!(seqs("&after=1&kind=neighbor.", 4), [3, 5, 6, 7], "here the summary is left out");
}

#[test]
fn a_stream_carries_only_what_was_asked_for() {
    let rig = Rig::new();
    let remote = rig.remote();
    let filter = EventFilter { kinds: vec!["mount.".into()], ..EventFilter::default() };
    thread::scope(|scope| {
        let reading = scope.spawn(|| next(&remote, &filter, 1));
        let mut seq = 0;
        while !reading.is_finished() {
            seq += 2;
            rig.push([seq]);
            let busy = memory::numbered(seq + 1, kevtmon_testing::sample::busy());
            rig.memory.push(&busy, serde_json::to_string(&busy).unwrap().into());
        }
        assert_eq!(reading.join().unwrap()[0] % 2, 1);
    });
}

#[test]
fn two_hundred_readers_get_everything_though_one_of_them_never_reads() {
    const READERS: usize = 200;
    const BATCH: u64 = 500;
    let rig = Rig::new();
    let mute = rig.stream("");
    let (done, all_done) = sync_channel(READERS);
    let read: Vec<AtomicU64> = (0..READERS - 1).map(|_| AtomicU64::new(0)).collect();
    let joined = AtomicUsize::new(0);
    let cut = || {
        let text = rig.metrics.gather().unwrap();
        !text.contains("kevtmon_events_discarded_total{reason=\"slow-reader\",sink=\"api\"} 0\n")
    };
    thread::scope(|scope| {
        for read in &read {
            let (done, joined, rig) = (done.clone(), &joined, &rig);
            scope.spawn(move || {
                let stream = rig.stream("");
                joined.fetch_add(1, Ordering::Relaxed);
                for line in stream.lines().map(Result::unwrap).filter(|line| line.starts_with('{')) {
                    let event: Event = serde_json::from_str(&line).unwrap();
                    let before = read.swap(event.seq, Ordering::Relaxed);
                    assert_eq!(event.seq, before + 1, "nothing is left out and all is in order");
                }
                done.send(()).unwrap();
            });
        }
        eventually("all have joined", || joined.load(Ordering::Relaxed) == READERS - 1);
        let mut seq = 0;
        // A reader that reads gets time to; one that does not is disconnected, without harm to the others.
        while !cut() {
            rig.push(seq + 1..=seq + BATCH);
            seq += BATCH;
            eventually("all have read a batch", || {
                read.iter().all(|read| read.load(Ordering::Relaxed) == seq)
            });
            assert!(seq < 1_000_000, "the one that never reads is never cut off");
        }
        // The daemon ends, and with it the streams, in order.
        rig.memory.close();
        for _ in 1..READERS {
            all_done.recv_timeout(PATIENCE).unwrap();
        }
    });
    drop(mute);
}

#[test]
fn questions_are_answered_while_every_reader_is_there() {
    let rig = Rig::new();
    let streams: Vec<_> = (0..super::memory::READERS).map(|_| rig.stream("")).collect();
    assert!(rig.ask("/v1/events?follow=1").starts_with("HTTP/1.1 503 "));
    assert!(rig.ask("/v1/version").starts_with("HTTP/1.1 200 "));
    drop(streams);
}

#[test]
fn the_end_of_the_daemon_ends_streams_and_removes_the_socket() {
    let mut rig = Rig::new();
    rig.push([1]);
    let mut stream = rig.stream("&after=0");
    drop(rig.server.take());
    let mut rest = String::new();
    let _ = stream.read_to_string(&mut rest);
    assert!(rest.contains("\"seq\":1"), "{rest}");
    assert!(!rig.path.exists());
    assert!(matches!(Remote::connect(&rig.path), Err(RemoteError::Dead { .. })));
}

#[test]
fn an_incident_of_an_earlier_run_is_shown_once_though_the_store_breaks_later() {
    let state = tempfile::tempdir().unwrap();
    let (mut store, _, _) = Writer::resume(state.path(), Limits::default(), BOOT).unwrap();
    let opened = Event {
        kind: Kind::IncidentOpened,
        incident: Some(Box::new(memory::incident("94feeebc95fb9411", 1))),
        ..memory::numbered(7, kevtmon_testing::sample::busy())
    };
    store.insert(&opened).unwrap();
    store.stop().unwrap();
    let (store, left, _) = Writer::resume(state.path(), Limits::default(), BOOT).unwrap();
    let rig = Rig::with(Some(Arc::new(Archive::behind(state.path()))));
    left.incidents.iter().for_each(|event| rig.memory.resume(event));
    let shown = || {
        let views = rig.remote().incidents(&IncidentFilter::default()).unwrap();
        views.into_iter().map(|view| (view.incident.id, view.seq)).collect::<Vec<_>>()
    };
    let one = [("94feeebc95fb9411".to_owned(), 7)];
    assert_eq!(shown(), one);
    drop(store);
    fs::write(state.path().join(kevtmon_history::store::FILE), "no database").unwrap();
    assert_eq!(shown(), one);

    let closed = Event {
        kind: Kind::IncidentClosed,
        incident: opened
            .incident
            .map(|incident| Box::new(Incident { closed: Some(memory::time(9)), ..*incident })),
        ..memory::numbered(8, kevtmon_testing::sample::busy())
    };
    rig.memory.push(&closed, "{}".into());
    assert_eq!(shown(), []);
}

#[test]
fn the_daemon_tells_of_itself() {
    let report = Rig::new().remote().doctor().unwrap();
    assert_eq!((report.node.as_str(), report.revision.as_str()), ("n", "r"));
    assert_eq!(report.pid, std::process::id());
    assert!(!report.ready, "its core has no sources yet");
    assert!(report.capabilities.is_some_and(|mask| u64::from_str_radix(&mask, 16).is_ok()));
}
