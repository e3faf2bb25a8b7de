//! `why`: answered in the daemon, from one moment, with few requests.

use std::os::unix::net::UnixListener;

use jiff::tz::TimeZone;

use super::*;
use crate::cli::client::ClientArgs;
use crate::cli::exit;
use crate::cli::query::{Query, Terminal, WhyArgs};
use crate::query::why::Outcome;
use crate::render::time::Clock;

/// Forwards connections to a daemon and counts them: each carries one request.
fn counting_proxy(daemon: &Path, at: &Path) -> Arc<AtomicUsize> {
    let listener = UnixListener::bind(at).unwrap();
    let (count, daemon) = (Arc::new(AtomicUsize::new(0)), daemon.to_owned());
    let requests = Arc::clone(&count);
    thread::spawn(move || {
        while let Ok((mut client, _)) = listener.accept() {
            requests.fetch_add(1, Ordering::Relaxed);
            let mut upstream = UnixStream::connect(&daemon).unwrap();
            let (mut from, mut to) = (client.try_clone().unwrap(), upstream.try_clone().unwrap());
            thread::spawn(move || io::copy(&mut from, &mut to));
            thread::spawn(move || {
                let _ = io::copy(&mut upstream, &mut client);
                let _ = client.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    count
}

struct Answered {
    code: u8,
    out: String,
    err: String,
}

fn why(word: &str, socket: &Path, state_dir: &Path) -> Answered {
    let client = ClientArgs { socket: Some(socket.to_owned()), state_dir: Some(state_dir.to_owned()) };
    let query = Query::Why(WhyArgs { word: word.into(), client, ..WhyArgs::default() });
    let clock = Clock { now: "2026-01-02T03:05:00Z".parse().unwrap(), zone: TimeZone::UTC };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = query.execute(clock, Terminal::None, &mut out, &mut err);
    Answered { code, out: String::from_utf8(out).unwrap(), err: String::from_utf8(err).unwrap() }
}

/// A gateway that is deleted a hundred times, the incident of it, and its causes.
fn story() -> Vec<Event> {
    let mut events: Vec<Event> = (1..=100).map(history::event).collect();
    let cause = Incident { evidence: vec![1, 2, 3], ..history::incident("cause", 3) };
    let effect = Incident {
        evidence: (40..60).collect(),
        caused_by: vec!["cause".into()],
        ..history::incident("effect", 60)
    };
    for (seq, incident) in [(101, cause), (102, effect)] {
        let opened =
            Event { kind: Kind::IncidentOpened, incident: Some(Box::new(incident)), ..history::event(seq) };
        events.push(opened);
    }
    events.into_iter().map(|event| Event { node: "n".into(), boot_id: BOOT.into(), ..event }).collect()
}

/// A daemon that has the story, half of it only in its store.
fn daemon_with_store(state_dir: &Path) -> Rig {
    // The events are older than the test.
    let limits = Limits { max_age: Duration::from_secs(100 * 365 * 86_400), ..Limits::default() };
    let (mut store, _, _) = Writer::resume(state_dir, limits, BOOT).unwrap();
    let events = story();
    events.iter().for_each(|event| store.insert(event).unwrap());
    store.stop().unwrap();
    let rig = Rig::with(Some(Arc::new(Archive::behind(state_dir))));
    rig.push_events(&events[50..]);
    rig
}

#[test]
fn a_story_takes_two_requests_whatever_it_is_made_of() {
    let state = tempfile::tempdir().unwrap();
    let rig = daemon_with_store(state.path());
    let proxy = state.path().join("proxy.sock");
    let requests = counting_proxy(&rig.path, &proxy);
    for (word, code) in [("lijiaob/etcd1-0", exit::OK), ("nobody", exit::FAILED), ("28997", exit::OK)] {
        let before = requests.load(Ordering::Relaxed);
        let answered = why(word, &proxy, state.path());
        assert_eq!(answered.code, code, "{word}: {}", answered.err);
        let made = requests.load(Ordering::Relaxed) - before;
        assert!((1..=2).contains(&made), "{word}: {made} requests");
    }
}

#[test]
fn a_dead_daemons_files_give_the_same_text() {
    let state = tempfile::tempdir().unwrap();
    let mut rig = daemon_with_store(state.path());
    let alive = why("lijiaob/etcd1-0", &rig.path, state.path());
    drop(rig.server.take());
    let dead = why("lijiaob/etcd1-0", &rig.path, state.path());
    assert_eq!((alive.code, dead.code), (exit::OK, exit::OK), "{}{}", alive.err, dead.err);
    assert!(dead.err.contains("no daemon listens on"), "{}", dead.err);
    // All but what nobody watches any more.
    let events = |text: &str| {
        let (_, events) = text.split_once("\nWhat happened\n").unwrap();
        events.split_once("\nVerdict\n").unwrap().0.to_owned()
    };
    assert_eq!(events(&alive.out), events(&dead.out));
    assert!(alive.out.contains("open since") && !dead.out.contains("open since"), "{}", dead.out);
    assert!(alive.out.contains("led to this") && alive.out.contains(" more like it until "), "{}", alive.out);
    assert!(dead.out.contains("no daemon answers") && !alive.out.contains("no daemon answers"));
}

#[test]
fn a_story_has_every_event_that_the_model_knows() {
    let rig = Rig::new();
    rig.push(1..=2);
    rig.core.seq.store(3, Ordering::Relaxed);
    thread::scope(|scope| {
        let asking = scope.spawn(|| rig.remote().why("lijiaob/etcd1-0").unwrap());
        eventually("the model was copied", || rig.core.copies.load(Ordering::Relaxed) == 1);
        rig.push([3]);
        let Outcome::Story(story) = asking.join().unwrap() else { panic!() };
        let repeated = story.steps[0].repeated.as_ref().unwrap();
        assert_eq!((story.steps[0].seq, repeated.count, repeated.last_seq), (1, 2, 3));
    });
    // One copy of the model was all that the core had to do.
    assert_eq!(rig.core.copies.load(Ordering::Relaxed), 1);
}

#[test]
fn an_event_that_never_comes_does_not_hold_the_answer() {
    let rig = Rig::new();
    rig.push(1..=2);
    rig.core.seq.store(9, Ordering::Relaxed);
    let Outcome::Story(story) = rig.remote().why("lijiaob/etcd1-0").unwrap() else { panic!() };
    assert_eq!(story.steps[0].repeated.as_ref().unwrap().last_seq, 2);
}

#[test]
fn a_missing_and_a_long_subject_are_refused_and_an_ambiguous_one_gives_its_meanings() {
    let rig = Rig::new();
    rig.push(1..=2);
    for query in ["", "?subject=", "?subject=%20", "?word=x", &format!("?subject={}", "x".repeat(5_000))] {
        let refusal = rig.ask(&format!("/v1/why{query}"));
        assert!(refusal.starts_with("HTTP/1.1 400 "), "{query}: {refusal}");
    }
    assert!(rig.ask("/v1/why?subject=nobody").contains("{\"unknown\":{\"from\":\"2026-01-02T03:00:01"));
    assert!(
        rig.ask("/v1/why?subject=lijiaob%2Fetcd1-0").contains("{\"story\":{\"node\":\"n\",\"subject\":{")
    );
}
