//! The sink as it is started, and an API server by TLS on the loopback that answers as it is told to.

use std::fs;
use std::sync::{Mutex, mpsc};

use kevtmon_event::Priority;
use kevtmon_observation::{Fact, Observation, SourceStatus};
use kevtmon_sources::procfs::own::Own;
use kevtmon_testing::patience::{PATIENCE, eventually};
use kevtmon_testing::sample;
use kevtmon_types::settings::Values;
use serde_json::Value;
use tempfile::TempDir;

use super::object::tests::opened;
use super::*;
use crate::sinks::Sinks;
use crate::sinks::api::Memory;
use crate::sinks::fake_server::{Answers, CA, FakeServer, OTHER_CA, Request, Script};

/// Without a pause that a test would wait for.
const AT_ONCE: Backoff = Backoff { first: Duration::from_millis(5), longest: Duration::from_millis(5) };

/// A request, as the sink has made it.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    line: String,
    token: String,
    body: Value,
}

impl From<Request> for Seen {
    fn from(request: Request) -> Self {
        Self {
            line: request.line().to_owned(),
            token: request.header("authorization").to_owned(),
            body: serde_json::from_slice(&request.body).unwrap(),
        }
    }
}

const CREATED: &str = "HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\n{}";
const CONFLICT: &str =
    "HTTP/1.1 409 Conflict\r\nconnection: close\r\n\r\n{\"message\":\"events \\\"a\\\" already exists\"}";
const CONTENTION: &str = "HTTP/1.1 409 Conflict\r\nconnection: close\r\n\r\n{\"message\":\"Operation cannot be \
     fulfilled on resourcequotas\"}";
const NO_NAMESPACE: &str = "HTTP/1.1 404 Not Found\r\nconnection: close\r\n\r\n{\"message\":\"namespaces \\\"lijiaob\\\" not found\"}";
const NOT_FOUND: &str = "HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}";
const FAILURE: &str = "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 4\r\n\r\netcd";
const UNAUTHORIZED: &str =
    "HTTP/1.1 401 Unauthorized\r\ncontent-length: 26\r\n\r\n{\"message\":\"Unauthorized\"}";
const INVALID: &str = "HTTP/1.1 422 Unprocessable Entity\r\ncontent-length: 2\r\n\r\nno";
const TOO_MANY_REQUESTS: &str =
    "HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n";
const OVERLOADED: &str = "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n";
const FORBIDDEN: &str = "HTTP/1.1 403 Forbidden\r\nconnection: close\r\n\r\n{\"message\":\"events.events.k8s.io is forbidden: \
     User \\\"system:serviceaccount:kevtmon:kevtmon\\\" cannot create resource \\\"events\\\" in API group\"}";
const NO_PATCH: &str = "HTTP/1.1 403 Forbidden\r\nconnection: close\r\n\r\n{\"message\":\"User cannot patch resource \\\"events\\\"\"}";
const TERMINATING: &str = "HTTP/1.1 403 Forbidden\r\nconnection: close\r\n\r\n{\"message\":\"events is forbidden: unable to \
     create new content in namespace lijiaob because it is being terminated\"}";

struct Rig {
    dir: TempDir,
    metrics: Arc<Metrics>,
    memory: Arc<Memory>,
    core: tokio::sync::mpsc::Sender<Observation>,
    statuses: tokio::sync::mpsc::Receiver<Observation>,
    answers: Answers,
    requests: mpsc::Receiver<Request>,
    script: Script,
    server: Option<FakeServer>,
}

impl Rig {
    fn new(answers: &[&'static str]) -> Self {
        let metrics = Arc::new(Metrics::new("0", "0", Own::default()).unwrap());
        let memory = Arc::new(Memory::new("n", "b", Arc::clone(&metrics)));
        let (core, statuses) = tokio::sync::mpsc::channel(64);
        let (seen, requests) = mpsc::sync_channel(64);
        let answers: Answers = Arc::new(Mutex::new(answers.iter().copied().collect()));
        let script = Script { answers: Arc::clone(&answers), otherwise: CREATED, seen, is_tls: true };
        let server = FakeServer::start(([127, 0, 0, 1], 0).into(), script.clone());
        let dir = tempfile::tempdir().unwrap();
        let rig =
            Self { dir, metrics, memory, core, statuses, answers, requests, script, server: Some(server) };
        rig.write("token", "first\n");
        rig.write("ca.crt", CA);
        rig
    }

    fn write(&self, file: &str, text: &str) {
        // As the kubelet does: what is read is the one or the other.
        let (path, new) = (self.dir.path().join(file), self.dir.path().join("new"));
        fs::write(&new, text).unwrap();
        fs::rename(new, path).unwrap();
    }

    fn started(&self) -> Started {
        let mut settings = Values::default();
        let address = self.server.as_ref().unwrap().address;
        settings.set(&SERVER, format!("https://{address}"));
        settings.set(&TOKEN_FILE, self.dir.path().join("token"));
        settings.set(&CA_FILE, self.dir.path().join("ca.crt"));
        let context = Context {
            settings: &settings,
            state_dir: self.dir.path().to_owned(),
            boot_id: "b",
            colour: false,
            metrics: &self.metrics,
            core: &self.core,
            memory: &self.memory,
        };
        assert!(start(&context).unwrap().is_none(), "nothing is written unless it is asked for");
        open(&context, Duration::ZERO, AT_ONCE).unwrap()
    }

    fn sinks(&self) -> Sinks {
        let mut sinks = Sinks::default();
        sinks.add(self.started().queue);
        sinks
    }

    fn request(&self) -> Seen {
        self.requests.recv_timeout(PATIENCE).expect("a request").into()
    }

    fn status(&mut self) -> SourceStatus {
        match self.statuses.blocking_recv().unwrap().fact {
            Fact::Source(status) => status,
            other => panic!("{other:?}"),
        }
    }

    fn discarded(&self, reason: &str) -> u64 {
        let text = self.metrics.gather().unwrap();
        let of_it = |line: &&str| {
            line.starts_with("kevtmon_events_discarded_total{")
                && line.contains("sink=\"kubernetes\"")
                && line.contains(&format!("reason=\"{reason}\""))
        };
        text.lines().find(of_it).and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
    }

    /// No attempt is left that was answered and is not looked at.
    fn expect_no_request(&self) {
        assert_eq!(self.requests.try_recv(), Err(mpsc::TryRecvError::Empty));
        assert!(self.answers.lock().unwrap().is_empty());
    }
}

fn offer(sinks: &Sinks, event: Event) {
    sinks.offer(&Arc::new(event.into()));
}

fn escalated(id: &str, severity: Severity) -> Event {
    let mut event = opened(id);
    event.kind = Kind::IncidentUpdated;
    event.incident.as_mut().unwrap().severity = severity;
    event
}

fn of_warning(id: &str) -> Event {
    let mut event = opened(id);
    event.incident.as_mut().unwrap().severity = Severity::Warning;
    event
}

fn is_post(request: &Seen) -> bool {
    request.line == "POST /apis/events.k8s.io/v1/namespaces/lijiaob/events HTTP/1.1"
}

#[test]
fn an_incident_is_created_escalates_once_and_closes() {
    let rig = Rig::new(&[]);
    let sinks = rig.sinks();
    offer(&sinks, sample::deletion());
    offer(&sinks, of_warning("a1"));
    let first = rig.request();
    assert!(is_post(&first), "{first:?}");
    assert_eq!((first.token.as_str(), &first.body["type"]), ("Bearer first", &"Warning".into()));
    for severity in [Severity::Warning, Severity::Critical, Severity::Critical] {
        offer(&sinks, escalated("a1", severity));
    }
    let patch = rig.request();
    let name = first.body["metadata"]["name"].as_str().unwrap();
    let line = format!("PATCH /apis/events.k8s.io/v1/namespaces/lijiaob/events/{name} HTTP/1.1");
    assert_eq!(patch.line, line);
    assert_eq!(patch.body, json!({ "series": patch.body["series"] }), "the API changes nothing else");
    let mut closed = opened("a1");
    closed.kind = Kind::IncidentClosed;
    closed.incident.as_mut().unwrap().close(closed.time.clone(), kevtmon_event::CloseReason::Resolved);
    offer(&sinks, closed);
    let last = rig.request();
    assert!(is_post(&last) && last.body["type"] == "Normal", "{last:?}");
    sinks.finish(PATIENCE);
    rig.expect_no_request();
}

#[test]
fn what_is_there_already_is_written_and_what_has_expired_is_made_again() {
    let rig = Rig::new(&[CONFLICT, NOT_FOUND]);
    let sinks = rig.sinks();
    offer(&sinks, of_warning("a1"));
    assert!(is_post(&rig.request()));
    offer(&sinks, escalated("a1", Severity::Critical));
    assert!(rig.request().line.starts_with("PATCH "));
    let again = rig.request();
    assert!(is_post(&again) && again.body["series"]["count"] == 2, "{again:?}");
    sinks.finish(PATIENCE);
    rig.expect_no_request();
    assert_eq!(rig.discarded("refused"), 0);
}

#[test]
fn a_missing_verb_is_named_once_and_what_it_is_for_is_discarded() {
    let mut rig = Rig::new(&[FORBIDDEN, FORBIDDEN]);
    let sinks = rig.sinks();
    offer(&sinks, opened("a1"));
    let down = rig.status();
    let reason = down.reason.unwrap();
    assert!(!down.up && reason.contains("lacks the RBAC verb create"), "{reason}");
    offer(&sinks, opened("a2"));
    eventually("both were refused", || rig.discarded("forbidden") == 2);
    offer(&sinks, opened("a3"));
    assert!(rig.status().up, "the next one to be written, and nothing was said in between");
    assert_eq!(rig.requests.try_iter().count(), 3);
    sinks.finish(PATIENCE);
}

#[test]
fn without_the_verb_to_patch_others_are_still_created() {
    let mut rig = Rig::new(&[CREATED, NO_PATCH]);
    let sinks = rig.sinks();
    offer(&sinks, of_warning("a1"));
    offer(&sinks, escalated("a1", Severity::Critical));
    offer(&sinks, opened("a2"));
    let lines: Vec<bool> = (0..3).map(|_| is_post(&rig.request())).collect();
    assert_eq!(lines, [true, false, true]);
    sinks.finish(PATIENCE);
    assert_eq!(rig.discarded("forbidden"), 1);
    assert!(rig.statuses.try_recv().is_err(), "it is up all the time");
}

#[test]
fn a_server_that_has_too_much_to_do_gets_the_same_again_when_it_says() {
    for busy in [TOO_MANY_REQUESTS, OVERLOADED] {
        let mut rig = Rig::new(&[busy]);
        let sinks = rig.sinks();
        offer(&sinks, opened("a1"));
        let first = rig.request();
        assert_eq!(rig.request(), first);
        sinks.finish(PATIENCE);
        rig.expect_no_request();
        assert!(rig.statuses.try_recv().is_err(), "it is up all the time");
    }
}

#[test]
fn what_a_server_fails_at_is_given_to_it_again() {
    let mut rig = Rig::new(&[FAILURE, CONTENTION, FAILURE]);
    let sinks = rig.sinks();
    offer(&sinks, opened("a1"));
    let reason = rig.status().reason.unwrap();
    assert!(reason.contains("500") && reason.contains("etcd"), "{reason}");
    let first = rig.request();
    for _ in 0..3 {
        assert_eq!(rig.request(), first);
    }
    assert!(rig.status().up);
    sinks.finish(PATIENCE);
    rig.expect_no_request();
}

#[test]
fn what_the_server_does_not_want_is_discarded_and_the_rest_is_written() {
    let mut rig = Rig::new(&[INVALID, TERMINATING, NO_NAMESPACE]);
    let sinks = rig.sinks();
    for id in ["a1", "a2", "a3", "a4"] {
        offer(&sinks, opened(id));
    }
    for _ in 0..4 {
        rig.request();
    }
    sinks.finish(PATIENCE);
    assert_eq!(rig.discarded("refused"), 1, "what a namespace is deleted with is no loss");
    assert!(rig.statuses.try_recv().is_err(), "it is up all the time");
}

#[test]
fn a_token_that_was_replaced_is_used() {
    let mut rig = Rig::new(&[UNAUTHORIZED]);
    let sinks = rig.sinks();
    // The server has read the request when this is there, and not yet answered.
    let answers = Arc::clone(&rig.answers);
    let held = answers.lock().unwrap();
    offer(&sinks, opened("a1"));
    assert_eq!(rig.request().token, "Bearer first");
    rig.write("token", "second\n");
    drop(held);
    assert!(rig.status().reason.unwrap().contains("401"));
    assert_eq!(rig.request().token, "Bearer second");
    assert!(rig.status().up);
    sinks.finish(PATIENCE);
}

#[test]
fn a_server_with_a_certificate_of_another_authority_gets_nothing() {
    let mut rig = Rig::new(&[]);
    rig.write("ca.crt", OTHER_CA);
    let sinks = rig.sinks();
    offer(&sinks, opened("a1"));
    let down = rig.status();
    assert!(down.reason.unwrap().contains("UnknownIssuer"));
    rig.expect_no_request();
    rig.write("ca.crt", CA);
    assert!(rig.status().up, "the certificates are read again, too");
    assert!(is_post(&rig.request()));
    sinks.finish(PATIENCE);
}

#[test]
fn what_waits_while_the_server_is_away_is_written_when_it_is_back() {
    let mut rig = Rig::new(&[]);
    let sinks = rig.sinks();
    let address = rig.server.as_ref().unwrap().address;
    rig.server = None;
    offer(&sinks, opened("a1"));
    let reason = rig.status().reason.unwrap();
    assert!(reason.contains("cannot connect to 127.0.0.1"), "{reason}");
    offer(&sinks, opened("a2"));
    rig.server = Some(FakeServer::start(address, rig.script.clone()));
    assert!(rig.status().up);
    let names = [rig.request(), rig.request()].map(|request| request.body["metadata"]["name"].clone());
    let expected =
        ["a1", "a2"].map(|id| Value::from(Object::of(&opened(id), Transition::Opened).unwrap().name));
    assert_eq!(names, expected, "in order");
    sinks.finish(PATIENCE);
    assert_eq!(rig.discarded("failed") + rig.discarded("queue-full"), 0);
}

#[test]
fn what_cannot_work_is_told_at_the_start() {
    let rig = Rig::new(&[]);
    assert!(rig.started().status.unwrap().up);
    rig.write("token", "");
    let reason = rig.started().status.unwrap().reason.unwrap();
    assert!(reason.ends_with("token has no token"), "{reason}");
    rig.write("ca.crt", "none");
    rig.write("token", "first");
    let reason = rig.started().status.unwrap().reason.unwrap();
    assert!(reason.ends_with("ca.crt has no certificate (PEM)"), "{reason}");
}

/// One that sends nothing.
fn idle(metrics: &Arc<Metrics>) -> ApiServer {
    let nowhere = Client { server: String::new(), token_file: PathBuf::new(), ca_file: PathBuf::new() };
    ApiServer::new(nowhere, Duration::ZERO, Arc::clone(metrics))
}

fn of_tenant(number: usize, name: &str, priority: Priority) -> Event {
    let mut event = opened(&format!("{number:016x}"));
    event.tenant = Tenant { priority, name: name.into() };
    event
}

#[test]
fn the_queue_is_bounded_and_shared_and_what_is_beyond_is_counted() {
    let rig = Rig::new(&[]);
    let mut server = idle(&rig.metrics);
    for number in 0..1000 {
        server.take(&of_tenant(number, "one", Priority::Known));
    }
    assert_eq!(server.waiting.len(), WAITING / 2);
    assert_eq!(rig.discarded("queue-full"), 1000 - 128);
    server.take(&of_tenant(1000, "other", Priority::Known));
    assert_eq!(server.waiting.len(), WAITING / 2 + 1, "there is room for others");
    for number in 2000..3000 {
        server.take(&of_tenant(number, &number.to_string(), Priority::Known));
    }
    assert_eq!(server.waiting.len(), WAITING);
    drop(server);
    assert_eq!(rig.discarded("closed"), 256);
}

#[test]
fn what_has_waited_for_long_is_discarded() {
    let rig = Rig::new(&[]);
    let mut server = idle(&rig.metrics);
    server.pace.pause(Instant::now() + AGE);
    ["a1", "a2"].iter().for_each(|id| server.take(&opened(id)));
    server.waiting[0].since -= AGE;
    server.send().unwrap();
    assert_eq!((server.waiting.len(), rig.discarded("expired")), (1, 1));
}

#[test]
fn a_server_that_has_too_much_to_do_is_asked_less_and_less_often() {
    let rig = Rig::new(&[]);
    let mut server = idle(&rig.metrics);
    server.jitter = Duration::from_millis(JITTER_MS / 2);
    let mut pauses = (0..8).map(|_| {
        let before = Instant::now();
        server.pace = Pace::beginning(before);
        server.pause(Some(Duration::from_secs(1)));
        server.pace.next().duration_since(before).as_millis() / 1500
    });
    assert_eq!(pauses.by_ref().take(6).collect::<Vec<_>>(), [1, 2, 4, 8, 16, 32]);
    assert_eq!(pauses.collect::<Vec<_>>(), [60, 60]);
}

/// What an event is written for; it is taken.
fn taken(server: &mut ApiServer, event: &Event) -> Option<String> {
    let before = server.waiting.len();
    server.take(event);
    let written = &server.waiting.get(before)?.object;
    let closed = (written.event["type"] == "Normal").then_some("closed");
    let named = (written.event["action"] == "Identified").then_some("named");
    let changed = written.is_there.then_some("escalated");
    Some(closed.or(named).or(changed).unwrap_or("opened").to_owned())
}

#[test]
fn what_is_no_warning_yet_is_written_when_it_is_one_and_never_if_it_ends_before() {
    let rig = Rig::new(&[]);
    let mut server = idle(&rig.metrics);
    let mut over = escalated("a1", Severity::Info);
    assert_eq!(taken(&mut server, &over), None);
    over.kind = Kind::IncidentClosed;
    assert_eq!(taken(&mut server, &over), None);
    for (severity, expected) in [
        (Severity::Notice, None),
        (Severity::Warning, Some("opened")),
        (Severity::Warning, None),
        (Severity::Critical, Some("escalated")),
        (Severity::Critical, None),
    ] {
        assert_eq!(taken(&mut server, &escalated("a2", severity)).as_deref(), expected, "{severity:?}");
    }
    let mut over = escalated("a2", Severity::Critical);
    over.kind = Kind::IncidentClosed;
    assert_eq!(taken(&mut server, &over).as_deref(), Some("closed"));
}

#[test]
fn a_holder_that_is_found_later_is_another_event() {
    let rig = Rig::new(&[]);
    let mut server = idle(&rig.metrics);
    let samples = sample::all();
    let held = samples.iter().find(|event| event.holders.as_ref().is_some_and(|it| !it.is_empty())).unwrap();
    let mut event = Event { mount: held.mount.clone(), ..opened("a1") };
    assert_eq!(taken(&mut server, &event).as_deref(), Some("opened"));
    event.kind = Kind::IncidentUpdated;
    event.holders = Some(Vec::new());
    assert_eq!(taken(&mut server, &event), None);
    event.holders = held.holders.clone();
    assert_eq!(taken(&mut server, &event).as_deref(), Some("named"));
    assert_eq!(taken(&mut server, &event), None);
}

#[test]
fn what_is_remembered_is_bounded() {
    let rig = Rig::new(&[]);
    let mut server = idle(&rig.metrics);
    for number in 0..2 * KNOWN {
        assert!(taken(&mut server, &of_tenant(number, "one", Priority::Known)).is_some(), "each is told");
        server.waiting.clear();
    }
    assert_eq!(server.known.len(), KNOWN);
    let unknown = escalated("unknown", Severity::Critical);
    assert_eq!(taken(&mut server, &unknown), None, "or it would be told each time");
    // What ends is forgotten, whether its end finds a place or not.
    for number in 0..WAITING {
        server.take(&of_tenant(number, &number.to_string(), Priority::Known));
        let mut over = of_tenant(number, "one", Priority::Known);
        over.kind = Kind::IncidentClosed;
        server.take(&over);
    }
    assert_eq!(server.known.len(), KNOWN - WAITING);
}

#[test]
fn nodes_begin_at_different_times_within_a_bound() {
    let (one, other) = (jitter("one boot"), jitter("another boot"));
    assert_ne!(one, other);
    assert!(one < Duration::from_secs(10) && other < Duration::from_secs(10));
    assert_eq!(jitter("one boot"), one);
}
