//! `why`, asked of a daemon and of its files.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use jiff::tz::TimeZone;
use kevtmon_event::{Event, Incident, Kind};
use kevtmon_history::store::{Archive, Limits, Writer};
use kevtmon_render::time::Clock;
use kevtmon_testing::numbered;

use crate::api_rig::{BOOT, Rig};
use crate::cli::client::ClientArgs;
use crate::cli::exit;
use crate::cli::query::{Query, Terminal, WhyArgs};

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
    let mut events: Vec<Event> = (1..=100).map(numbered::event).collect();
    let cause = Incident { evidence: vec![1, 2, 3], ..numbered::incident("cause", 3) };
    let effect = Incident {
        evidence: (40..60).collect(),
        caused_by: vec!["cause".into()],
        ..numbered::incident("effect", 60)
    };
    for (seq, incident) in [(101, cause), (102, effect)] {
        let opened =
            Event { kind: Kind::IncidentOpened, incident: Some(Box::new(incident)), ..numbered::event(seq) };
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
