//! The sink as it is started, and a server on the loopback that answers as it is told to.

use std::fs;
use std::io::Read as _;
use std::sync::{Mutex, mpsc};

use kevtmon_event::{Event, Priority, Tenant};
use kevtmon_history::queue::QueueClass;
use kevtmon_observation::{Fact, Observation, SourceStatus};
use kevtmon_sources::procfs::own::Own;
use kevtmon_testing::patience::{PATIENCE, eventually};
use kevtmon_testing::{numbered, sample};
use kevtmon_types::settings::Values;
use tempfile::TempDir;

use super::proto::{ExportLogsServiceRequest, LogRecord};
use super::record::tests::values;
use super::*;
use crate::sinks::Sinks;
use crate::sinks::api::Memory;
use crate::sinks::fake_server::{Answers, CA, FakeServer, OTHER_CA, Request, Script};

mod fleet;

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
/// Two records were rejected.
const PARTIAL: &str = "HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n\n\x06\x08\x02\x12\x02no";
const BAD_REQUEST: &str = "HTTP/1.1 400 Bad Request\r\ncontent-length: 4\r\n\r\n\x12\x02no";
const UNAUTHORIZED: &str = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 8\r\n\r\nno token";
const IN_A_WHILE: &str = "HTTP/1.1 429 Too Many Requests\r\nretry-after: 20\r\ncontent-length: 0\r\n\r\n";
const HANGS_UP: &str = "";
const NOT_FOUND: &str = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
const TOO_MANY_REQUESTS: &str =
    "HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n";
const OVERLOADED: &str = "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n";
const AWAY: &str = "HTTP/1.1 502 Bad Gateway\r\ncontent-length: 8\r\n\r\nupstream";

/// Without a wait that a test would wait for.
const AT_ONCE: Timing = Timing {
    linger: Duration::from_millis(5),
    backoff: Backoff { first: Duration::from_millis(5), longest: Duration::from_millis(5) },
    share: 0.0,
};

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
        Self::with_tls(false, answers)
    }

    fn with_tls(is_tls: bool, answers: &[&'static str]) -> Self {
        let metrics = Arc::new(Metrics::new("0", "0", Own::default()).unwrap());
        let memory = Arc::new(Memory::new("n", "b", Arc::clone(&metrics)));
        let (core, statuses) = tokio::sync::mpsc::channel(64);
        let (seen, requests) = mpsc::sync_channel(64);
        let answers: Answers = Arc::new(Mutex::new(answers.iter().copied().collect()));
        let script = Script { answers: Arc::clone(&answers), otherwise: OK, seen, is_tls };
        let server = Some(FakeServer::start(([127, 0, 0, 1], 0).into(), script.clone()));
        let dir = tempfile::tempdir().unwrap();
        Self { dir, metrics, memory, core, statuses, answers, requests, script, server }
    }

    fn context<'a>(&'a self, settings: &'a Values) -> Context<'a> {
        Context {
            settings,
            state_dir: self.dir.path().to_owned(),
            boot_id: "b",
            colour: false,
            metrics: &self.metrics,
            core: &self.core,
            memory: &self.memory,
        }
    }

    fn started(&self, timing: Timing) -> Started {
        let mut settings = Values::default();
        assert!(start(&self.context(&settings)).unwrap().is_none(), "nothing is sent unless it is asked for");
        let scheme = if self.script.is_tls { "https" } else { "http" };
        let address = self.server.as_ref().unwrap().address;
        settings.set(&ENDPOINT, format!("{scheme}://{address}"));
        settings.set(&CA_FILE, self.dir.path().join("ca.crt"));
        settings.set(&HEADERS_FILE, self.dir.path().join("headers"));
        open(&self.context(&settings), timing).unwrap()
    }

    fn sinks(&self, timing: Timing) -> Sinks {
        fs::write(self.dir.path().join("ca.crt"), CA).unwrap();
        fs::write(self.dir.path().join("headers"), "x-scope-orgid: one\n").unwrap();
        let mut sinks = Sinks::default();
        sinks.add(self.started(timing).queue);
        sinks
    }

    fn request(&self) -> Request {
        self.requests.recv_timeout(PATIENCE).expect("a request")
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
                && line.contains("sink=\"otlp\"")
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

fn offer(sinks: &Sinks, seq: u64) {
    sinks.offer(&Arc::new(numbered::numbered(seq, sample::deletion()).into()));
}

fn message(request: &Request) -> ExportLogsServiceRequest {
    let mut message = Vec::new();
    flate2::read::GzDecoder::new(&request.body[..]).read_to_end(&mut message).unwrap();
    ExportLogsServiceRequest::decode(&message[..]).unwrap()
}

fn records(request: &Request) -> Vec<LogRecord> {
    let message = message(request);
    let records = message.resource_logs.iter().flat_map(|it| &it.scope_logs).flat_map(|it| &it.log_records);
    records.map(|record| LogRecord::decode(&record[..]).unwrap()).collect()
}

fn numbers(request: &Request) -> Vec<u64> {
    let number = |record: &LogRecord| values(&record.attributes)["kevtmon.seq"].parse::<u64>().unwrap();
    records(request).iter().map(number).collect()
}

#[test]
fn events_are_sent_together_a_moment_after_the_first() {
    let rig = Rig::new(&[]);
    let sinks = rig.sinks(Timing { linger: PATIENCE, ..AT_ONCE });
    (1..=3).for_each(|seq| offer(&sinks, seq));
    sinks.finish(PATIENCE);
    let request = rig.request();
    assert_eq!(request.line(), "POST /v1/logs HTTP/1.1");
    assert_eq!(request.header("content-type"), "application/x-protobuf");
    assert_eq!(request.header("content-encoding"), "gzip");
    assert_eq!(request.header("x-scope-orgid"), "one");
    assert_eq!(numbers(&request), [1, 2, 3]);
    let message = message(&request);
    let resource = values(&message.resource_logs[0].resource.as_ref().unwrap().attributes);
    assert_eq!(resource["k8s.node.name"], sample::deletion().node);
    rig.expect_no_request();
}

#[test]
fn a_full_batch_waits_for_nothing() {
    let rig = Rig::new(&[]);
    let sinks = rig.sinks(Timing { linger: PATIENCE * 100, ..AT_ONCE });
    let count = u64::try_from(waiting::BATCH).unwrap();
    (1..=count).for_each(|seq| offer(&sinks, seq));
    assert_eq!(numbers(&rig.request())[0], 1);
    sinks.finish(PATIENCE);
    assert_eq!(rig.discarded("closed") + rig.discarded("queue-full"), 0);
}

#[test]
fn by_tls_only_a_server_that_is_trusted_gets_anything() {
    let mut rig = Rig::with_tls(true, &[]);
    let sinks = rig.sinks(AT_ONCE);
    fs::write(rig.dir.path().join("ca.crt"), OTHER_CA).unwrap();
    offer(&sinks, 1);
    assert!(rig.status().reason.unwrap().contains("UnknownIssuer"));
    rig.expect_no_request();
    fs::write(rig.dir.path().join("ca.crt"), CA).unwrap();
    assert!(rig.status().up, "the certificates are read again");
    assert_eq!(numbers(&rig.request()), [1]);
    sinks.finish(PATIENCE);
}

#[test]
fn a_server_that_has_too_much_to_do_gets_the_same_again_when_it_says() {
    for busy in [TOO_MANY_REQUESTS, OVERLOADED] {
        let mut rig = Rig::new(&[busy]);
        let sinks = rig.sinks(AT_ONCE);
        offer(&sinks, 1);
        assert_eq!(numbers(&rig.request()), [1]);
        assert_eq!(numbers(&rig.request()), [1]);
        sinks.finish(PATIENCE);
        rig.expect_no_request();
        assert!(rig.statuses.try_recv().is_err(), "it is up all the time");
    }
}

#[test]
fn what_waits_while_the_server_is_away_is_sent_when_it_is_back() {
    let mut rig = Rig::new(&[]);
    let sinks = rig.sinks(AT_ONCE);
    let address = rig.server.as_ref().unwrap().address;
    rig.server = None;
    offer(&sinks, 1);
    let reason = rig.status().reason.unwrap();
    assert!(reason.contains("cannot connect to 127.0.0.1"), "{reason}");
    offer(&sinks, 2);
    rig.answers.lock().unwrap().push_back(AWAY);
    rig.server = Some(FakeServer::start(address, rig.script.clone()));
    assert!(rig.status().up);
    sinks.finish(PATIENCE);
    let mut sent: Vec<u64> = rig.requests.try_iter().flat_map(|request| numbers(&request)).collect();
    sent.dedup();
    assert!(sent.ends_with(&[1, 2]), "in order: {sent:?}");
    assert_eq!(rig.discarded("failed") + rig.discarded("queue-full") + rig.discarded("closed"), 0);
}

#[test]
fn what_the_server_refuses_is_discarded_and_the_rest_is_sent() {
    let mut rig = Rig::new(&[BAD_REQUEST, PARTIAL]);
    let sinks = rig.sinks(AT_ONCE);
    offer(&sinks, 1);
    assert_eq!(numbers(&rig.request()), [1]);
    eventually("it is discarded", || rig.discarded("refused") == 1);
    offer(&sinks, 2);
    assert_eq!(numbers(&rig.request()), [2]);
    eventually("no more are counted than were sent", || rig.discarded("rejected") == 1);
    offer(&sinks, 3);
    assert_eq!(numbers(&rig.request()), [3]);
    sinks.finish(PATIENCE);
    assert!(rig.statuses.try_recv().is_err(), "it is up all the time");
}

#[test]
fn a_server_that_wants_other_headers_is_down() {
    let mut rig = Rig::new(&[UNAUTHORIZED]);
    let sinks = rig.sinks(AT_ONCE);
    offer(&sinks, 1);
    let down = rig.status();
    let reason = down.reason.unwrap();
    assert!(!down.up && reason.contains("401") && reason.contains("no token"), "{reason}");
    assert_eq!(rig.discarded("refused"), 1);
    offer(&sinks, 2);
    assert!(rig.status().up);
    sinks.finish(PATIENCE);
}

#[test]
fn what_cannot_work_is_reported_at_the_start() {
    let rig = Rig::with_tls(true, &[]);
    rig.sinks(AT_ONCE).finish(PATIENCE);
    assert!(rig.started(AT_ONCE).status.unwrap().up);
    fs::write(rig.dir.path().join("headers"), "none").unwrap();
    let reason = rig.started(AT_ONCE).status.unwrap().reason.unwrap();
    assert!(reason.contains("headers: line 1 is none of"), "{reason}");
    fs::write(rig.dir.path().join("headers"), "").unwrap();
    fs::write(rig.dir.path().join("ca.crt"), "none").unwrap();
    let reason = rig.started(AT_ONCE).status.unwrap().reason.unwrap();
    assert!(reason.ends_with("ca.crt has no certificate (PEM)"), "{reason}");
}

fn collector(endpoint: String, timing: Timing, metrics: &Arc<Metrics>) -> Collector {
    let client = Client { endpoint, ca_file: PathBuf::new(), headers_file: PathBuf::new() };
    Collector::new(client, timing, "b", Arc::clone(metrics))
}

/// One that cannot send anything.
fn idle(metrics: &Arc<Metrics>) -> Collector {
    collector(String::new(), Timing { linger: AGE, ..AT_ONCE }, metrics)
}

/// One that sends to the server of a rig, and has these events.
fn with_events(rig: &Rig, count: u64) -> Collector {
    let address = rig.server.as_ref().unwrap().address;
    let mut collector =
        collector(format!("http://{address}"), Timing { linger: Duration::ZERO, ..AT_ONCE }, &rig.metrics);
    (1..=count).for_each(|seq| collector.take(&numbered::numbered(seq, sample::deletion()).into()));
    collector
}

#[test]
fn a_server_that_refuses_everything_costs_one_event_a_further_attempt() {
    let rig = Rig::new(&[UNAUTHORIZED, NOT_FOUND, OK, OK]);
    let mut collector = with_events(&rig, 3);
    assert!(collector.connect().is_err());
    assert_eq!((rig.discarded("refused"), collector.waiting.len()), (3, 0));
    (1..=4).for_each(|seq| collector.take(&numbered::numbered(seq, sample::deletion()).into()));
    assert!(collector.connect().is_err());
    assert_eq!((rig.discarded("refused"), collector.waiting.len()), (4, 3));
    collector.connect().unwrap();
    collector.send_if_due().unwrap();
    assert!(collector.waiting.is_empty());
}

#[test]
fn a_server_that_always_has_too_much_to_do_is_down() {
    let rig = Rig::new(&[IN_A_WHILE, TOO_MANY_REQUESTS, AWAY]);
    let mut collector = with_events(&rig, 1);
    collector.send_if_due().unwrap();
    let pause = collector.not_before.duration_since(Instant::now());
    assert!((15..=20).contains(&pause.as_secs()), "as it says: {pause:?}");
    assert!(!collector.can_connect());
    collector.not_before = Instant::now();
    collector.busy_since = Instant::now().checked_sub(BUSY);
    let error = collector.send_if_due().unwrap_err();
    assert!(error.to_string().starts_with("it has too much to do: 429"), "{error}");
    assert!(collector.connect().is_err(), "whatever the answer");
    assert_eq!(collector.waiting.len(), 1);
    collector.connect().unwrap();
    assert_eq!((collector.busy_since, collector.pauses), (None, 0));
}

#[test]
fn a_server_that_refuses_the_records_of_everybody_is_down_and_not_back_before_it_takes_one() {
    let rig = Rig::new(&[BAD_REQUEST, BAD_REQUEST, BAD_REQUEST, OK, OK]);
    let mut collector = with_events(&rig, 5);
    collector.waiting.drop_first(4);
    collector.send_if_due().unwrap();
    (1..=3).for_each(|seq| collector.take(&numbered::numbered(seq, sample::deletion()).into()));
    assert!(collector.send_if_due().is_err(), "the second time");
    assert!(collector.connect().is_err());
    assert_eq!((rig.discarded("refused"), collector.waiting.len()), (3, 1));
    collector.connect().unwrap();
    assert!(!collector.is_refused);
}

#[test]
fn what_is_too_much_for_a_server_is_sent_in_smaller_parts_until_all_is_sent() {
    let rig = Rig::new(&[HANGS_UP, HANGS_UP, OK]);
    let mut collector = with_events(&rig, 8);
    assert!(collector.send_if_due().is_err() && collector.connect().is_err());
    for _ in 0..3 {
        collector.send_if_due().unwrap();
    }
    let sent: Vec<usize> = rig.requests.try_iter().map(|request| numbers(&request).len()).collect();
    assert_eq!(sent, [8, 4, 2, 2, 2]);
    collector.send_if_due().unwrap();
    assert_eq!((collector.waiting.len(), collector.most), (0, waiting::BATCH));
}

#[test]
fn a_server_is_not_back_because_nothing_is_left_to_send() {
    let rig = Rig::new(&[]);
    let mut collector = idle(&rig.metrics);
    let old = Instant::now().checked_sub(AGE).unwrap();
    let tenant = Tenant { priority: Priority::Known, name: "one".into() };
    assert!(collector.waiting.push(vec![0], &tenant, QueueClass::Normal, old));
    assert!(collector.can_connect() && collector.connect().is_err());
}

#[test]
fn what_is_beyond_the_bounds_and_what_has_waited_for_long_is_counted() {
    let rig = Rig::new(&[]);
    let mut collector = idle(&rig.metrics);
    let tenant = Tenant { priority: Priority::Known, name: "one".into() };
    let event: SharedEvent = Event { tenant: tenant.clone(), ..sample::deletion() }.into();
    let old = Instant::now().checked_sub(AGE).unwrap();
    assert!(collector.waiting.push(vec![0], &tenant, QueueClass::Normal, old));
    for _ in 0..3000 {
        collector.take(&event);
    }
    assert_eq!(rig.discarded("expired"), 1);
    let waiting = u64::try_from(collector.waiting.len()).unwrap();
    assert!(waiting < 3000);
    assert_eq!(rig.discarded("queue-full"), 3000 - waiting);
    drop(collector);
    assert_eq!(rig.discarded("closed"), waiting);
}

#[test]
fn a_server_that_has_too_much_to_do_is_asked_less_and_less_often() {
    let timing = Timing { share: 0.5, ..AT_ONCE };
    let seconds =
        |named: Option<u64>, before| timing.pause(named.map(Duration::from_secs), before).as_millis() / 1500;
    assert_eq!((0..7).map(|before| seconds(None, before)).collect::<Vec<_>>(), [1, 2, 4, 8, 16, 30, 30]);
    assert_eq!((seconds(Some(20), 0), seconds(Some(20), 9)), (20, 30));
    assert_eq!(seconds(Some(u64::MAX), u32::MAX), 240);
}

#[test]
fn no_node_waits_longer_than_a_minute_by_itself() {
    for boot in ["one", "two", "three"] {
        let timing = Timing::of_boot(boot);
        assert!(timing.backoff.longest < Duration::from_secs(60), "{timing:?}");
        assert!(timing.pause(None, 20) < Duration::from_secs(60), "{timing:?}");
        assert!(timing.pause(Some(Duration::MAX), 0) + timing.backoff.longest < AGE, "{timing:?}");
    }
}
