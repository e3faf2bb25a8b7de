//! From a core to a file and back, through everything between.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kevtmon_core::{Core, Output, Resume};
use kevtmon_event::{Confidence, Event, Incident, Kind, Severity};
use kevtmon_metrics::Metrics;
use kevtmon_observation::*;
use kevtmon_sources::procfs::own::Own;
use kevtmon_testing::sample;
use kevtmon_types::clock::SECOND;
use kevtmon_types::settings::{Cmdline, EventRate, Policy, Settings};

use super::format::{Header, Writer};
use super::reader::{Line, Reader};
use super::recorder::{Record, Recorder};
use super::replay::{Summary, replay};
use super::segments::numbered;
use super::settings::FlightLimits;

mod bundle;
mod clock;
mod flight;
pub(super) mod golden;
mod story;
mod tenants;

const PATIENCE: Duration = Duration::from_secs(30);
const FLIGHT: FlightLimits = FlightLimits { minutes: 15, max_mib: 16 };

fn settings() -> Settings {
    Settings {
        node: "slave-197".into(),
        boot_id: "b".into(),
        version: "0".into(),
        host_netns: 1,
        cmdline: Cmdline::Host,
        sources: BTreeMap::from([("netlink".into(), false)]),
        incidents: Default::default(),
        user_events: EventRate { rate: 4, burst: 64 },
        container_events: EventRate { rate: 16, burst: 512 },
    }
}

/// Appends the event as a line.
fn write(event: &Event, to: &mut Vec<u8>) -> io::Result<()> {
    serde_json::to_writer(&mut *to, event)?;
    to.push(b'\n');
    Ok(())
}

/// A daemon without sources: its observations are recorded and go to a core.
struct Live {
    core: Core,
    recorder: Recorder,
    metrics: Arc<Metrics>,
    said: Vec<u8>,
}

impl Live {
    fn new() -> Self {
        Self::with(settings())
    }

    /// One with a flight recorder, which has begun.
    fn in_flight(state: &Path) -> Self {
        let mut live = Self::new();
        live.recorder.add_flight(state, &FLIGHT).unwrap();
        live.begin();
        live
    }

    fn with(settings: Settings) -> Self {
        let metrics = Arc::new(Metrics::new("0", "0", Own::default()).unwrap());
        let writer = Writer { kevtmon: "0".into(), ..Writer::default() };
        let recorder = Recorder::new(writer, 7, Arc::clone(&metrics));
        Self { core: Core::new(settings, Resume::default()), recorder, metrics, said: Vec::new() }
    }

    fn observe(&mut self, at: BootNs, fact: Fact) {
        let observation = Observation { at, source: Source::Daemon, fact };
        let tenant = self.core.tenant_of(&observation);
        self.recorder.record(&observation, &tenant, &self.core);
        self.core.observe(observation);
        for output in self.core.take_output() {
            if let Output::Event(event) = output {
                self.recorder.event(&event);
                write(&event, &mut self.said).unwrap();
            }
        }
    }

    fn begin(&mut self) {
        self.observe(1, Fact::Clock { realtime_offset_ns: 5 });
        let up = SourceStatus::up(SourceKind::Netlink, "netlink");
        self.observe(2, Fact::Source(up));
        self.observe(3, task());
    }

    /// A link that comes and goes, and a mount that is refused.
    fn bustle(&mut self, from: BootNs, rounds: u64) {
        for round in 0..rounds {
            let at = from + round * 1_000;
            let netns = u32::try_from(10 + round % 5).unwrap();
            self.observe(at, netns_snapshot(netns));
            self.observe(at + 1, link(netns, 3, iff::UP));
            self.observe(at + 2, link(netns, 3, 0));
            self.observe(at + 3, Fact::LinkGone { netns, ifindex: 3, moved_to: None });
            self.observe(at + 4, busy(&format!("/mnt/{}", round % 7)));
            self.observe(at + 5, Fact::Holders(Box::new(HolderReport::skipped(round, "/mnt/x"))));
        }
    }

    /// What is of no other tenant, more than has room.
    fn storm_of_host(&mut self, from: BootNs) {
        for number in 0..10_000 {
            self.observe(from + number, link(1, 3, if number % 2 == 0 { iff::UP } else { 0 }));
        }
    }

    /// An unoptimised core is not always faster than the thread that writes.
    fn storms_until_queue_is_full(&mut self, from: BootNs) -> u64 {
        let storm = |number| {
            self.storm_of_host(from + number * 10_000);
            self.discarded("recorder", "queue-full") > 0
        };
        (0..1000_u64).map(storm).position(|is_full| is_full).expect("a queue that can be full") as u64 + 1
    }

    fn open_incident(&mut self, id: &str, opened: u32) {
        let event =
            Event { incident: Some(Box::new(incident(id, opened))), kind: Kind::IncidentOpened, ..plain() };
        self.recorder.event(&event);
    }

    fn finish(self) -> Vec<u8> {
        self.recorder.finish(&self.core, 0, PATIENCE);
        self.said
    }

    /// Observations that the flight recorder left out.
    fn missing(&self) -> u64 {
        self.discarded("recorder", "queue-full") + self.discarded("recorder", "over-budget")
    }

    fn discarded(&self, sink: &str, reason: &str) -> u64 {
        let start = format!("kevtmon_events_discarded_total{{reason=\"{reason}\",sink=\"{sink}\"}} ");
        let text = self.metrics.gather().unwrap();
        text.lines().find_map(|line| line.strip_prefix(&start)).map_or(0, |count| count.parse().unwrap())
    }
}

fn plain() -> Event {
    sample::daemon(Severity::Info)
}

pub(super) fn incident(id: &str, opened: u32) -> Incident {
    Incident {
        id: id.into(),
        kind: "volume-busy".into(),
        severity: Severity::Warning,
        confidence: Confidence::Certain,
        opened: format!("2018-06-12T20:{opened:02}:00Z"),
        closed: None,
        first_seen: String::new(),
        last_seen: String::new(),
        count: 1,
        counted: String::new(),
        counted_since: None,
        episode: 1,
        clock_set_ms: 0,
        ruled_out: Vec::new(),
        close_reason: None,
        found_at_start: false,
        caused_by: Vec::new(),
        host_cause: None,
        summary: "s".into(),
        advice: Vec::new(),
        evidence: Vec::new(),
        evidence_omitted: 0,
    }
}

fn key() -> TaskKey {
    TaskKey { tgid: 28_997, start_ns: 5, exec_id: 2 }
}

/// What a user does in a network of his own.
fn of_user(key: TaskKey) -> Fact {
    let context = TaskContext { uid: 1000, euid: 1000, userns: 77, ..TaskContext::default() };
    Fact::Neighbor(Box::new(NeighborChange {
        key: NeighborKey { netns: 1000, ifindex: 2, address: "10.0.0.1".parse().unwrap() },
        ifname: "eth0".into(),
        op: NeighborOp::Deleted,
        cause: NeighborCause::Admin,
        old_state: Some(NudState::PERMANENT),
        new_state: None,
        lladdr: None,
        new_lladdr: None,
        device_lladdr: None,
        actor: Some(TaskRef { key, tid: key.tgid, comm: "hostile".into(), context: Some(context) }),
        netlink_port: None,
        netns_cookie: None,
        netns_of_user: true,
    }))
}

fn task() -> Fact {
    Fact::Task(Box::new(TaskFacts {
        key: key(),
        exe: Some("/usr/bin/umount".into()),
        cmdline: Some("umount".into()),
        netns: 1,
        mntns: 2,
        cgroup: Some("/system.slice/kubelet.service".into()),
        ..TaskFacts::default()
    }))
}

fn netns_snapshot(netns: NsInum) -> Fact {
    Fact::Netns(Box::new(NetnsSnapshot { name: Some("x".repeat(200)), ..NetnsSnapshot::empty(netns) }))
}

fn link(netns: NsInum, ifindex: u32, flags: u32) -> Fact {
    Fact::Link(Box::new(LinkFacts {
        netns,
        ifindex,
        ifname: "eth0".into(),
        kind: Some("veth".into()),
        flags,
        ..LinkFacts::default()
    }))
}

fn busy(path: &str) -> Fact {
    Fact::Umount(Box::new(UmountAttempt {
        syscall: MountSyscall::Umount2,
        actor: TaskRef { key: key(), tid: 28_997, comm: "umount".into(), context: None },
        mntns: 2,
        path: path.into(),
        origin: None,
        flags: 0,
        errno: Some(16),
        second: None,
    }))
}

fn replayed(recording: &[u8]) -> (Vec<u8>, Summary) {
    let mut said = Vec::new();
    let summary = replay(recording, None, |event| write(&event, &mut said)).unwrap();
    (said, summary)
}

fn segments(directory: &Path) -> Vec<u8> {
    numbered(directory).unwrap().into_iter().flat_map(|(_, path)| fs::read(path).unwrap()).collect()
}

#[test]
fn a_recording_replays_to_the_bytes_that_were_said_live() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.ndjson");
    let mut live = Live::new();
    live.recorder.add_file(&Record { path: path.clone(), max_bytes: 64 << 20 }).unwrap();
    live.begin();
    live.bustle(10, 50);
    live.observe(SECOND, Fact::Settings(Box::new(Settings { cmdline: Cmdline::Off, ..settings() })));
    live.observe(SECOND + 1, busy("/mnt/last"));
    live.observe(10 * SECOND, Fact::Tick);
    live.observe(10 * SECOND, Fact::Stop);
    let said = live.finish();
    let (again, summary) = replayed(&fs::read(&path).unwrap());
    assert!(said.len() > 1000);
    assert_eq!(String::from_utf8(again).unwrap(), String::from_utf8(said).unwrap());
    assert_eq!((summary.skipped, summary.gaps.len(), summary.cut.len()), (0, 0, 0));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_full_file_becomes_the_older_one_and_each_replays_alone_and_both_together() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.ndjson");
    let mut live = Live::new();
    live.recorder.add_file(&Record { path: path.clone(), max_bytes: 20_000 }).unwrap();
    live.begin();
    live.bustle(10, 100);
    live.observe(10 * SECOND, Fact::Stop);
    let said = String::from_utf8(live.finish()).unwrap();
    let newer = fs::read(&path).unwrap();
    let older = fs::read(dir.path().join("r.ndjson.1")).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    for file in [&older, &newer] {
        let header = file.iter().position(|byte| *byte == b'\n').unwrap();
        assert!(file.len() - header < 20_000 + 1_000, "{header} of {}", file.len());
    }
    let (last, _) = replayed(&newer);
    assert!(!last.is_empty() && said.ends_with(std::str::from_utf8(&last).unwrap()));
    let (both, summary) = replayed(&[older, newer].concat());
    assert!(both.len() > last.len() && said.ends_with(std::str::from_utf8(&both).unwrap()));
    assert_eq!(summary.gaps, []);
}

#[test]
fn what_was_recorded_before_is_kept_as_the_older_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    fs::write(&path, "precious").unwrap();
    let mut live = Live::new();
    live.recorder.add_file(&Record { path: path.clone(), max_bytes: 20_000 }).unwrap();
    live.finish();
    assert_eq!(fs::read_to_string(dir.path().join("r.1")).unwrap(), "precious");
}

#[test]
fn a_file_that_cannot_be_made_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    for path in [dir.path().join("missing/r"), dir.path().to_owned()] {
        let mut live = Live::new();
        let error = live.recorder.add_file(&Record { path: path.clone(), max_bytes: 1 }).unwrap_err();
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        live.finish();
    }
}

#[test]
fn the_flight_recorder_cuts_segments_that_go_on_from_each_other_and_stay_within_their_space() {
    let dir = tempfile::tempdir().unwrap();
    let mut live = Live::in_flight(dir.path());
    // Every segment reaches three minutes.
    for minute in 0..20 {
        live.bustle(minute * 60 * SECOND + 10, 5);
    }
    live.observe(2000 * SECOND, Fact::Stop);
    let said = live.finish();
    let directory = dir.path().join("recorder");
    assert_eq!(numbered(&directory).unwrap().len(), 8);
    let (again, summary) = replayed(&segments(&directory));
    assert_eq!(String::from_utf8(again).unwrap(), String::from_utf8(said.clone()).unwrap());
    assert_eq!(summary.gaps, []);
    let (_, last) = numbered(&directory).unwrap().pop().unwrap();
    let (tail, _) = replayed(&fs::read(last).unwrap());
    assert!(!tail.is_empty() && said.ends_with(&tail));
}

#[test]
fn a_storm_is_not_written_whole_and_the_gap_is_counted_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let mut live = Live::in_flight(dir.path());
    live.bustle(10, 5_000);
    let storms = live.storms_until_queue_is_full(6_000_000);
    let missing = live.missing();
    live.finish();
    let recording = segments(&dir.path().join("recorder"));
    let (_, summary) = replayed(&recording);
    let told: u64 = summary.gaps.iter().map(|gap| gap.discarded).sum();
    assert_eq!((told, summary.observations + missing), (missing, 30_003 + storms * 10_000));
}

#[test]
fn what_a_user_does_without_end_is_left_out_and_counted_and_hides_nothing_of_others() {
    const SECONDS: u64 = 20;
    let dir = tempfile::tempdir().unwrap();
    let mut live = Live::in_flight(dir.path());
    for number in 0..SECONDS * 2000 {
        let at = SECOND + number * SECOND / 2000;
        let user = TaskKey { tgid: 100_000 + u32::try_from(number).unwrap(), ..key() };
        let Fact::Task(facts) = task() else { unreachable!() };
        live.observe(at, Fact::Task(Box::new(TaskFacts { key: user, uid: 1000, ..*facts })));
        live.observe(at, of_user(user));
        if number % 500 == 0 {
            live.observe(at, busy(&format!("/mnt/{number}")));
        }
    }
    live.observe(100 * SECOND, Fact::Stop);
    let missing = live.missing();
    live.finish();
    let recording = segments(&dir.path().join("recorder"));
    assert!(recording.len() < 1 << 20, "{}", recording.len());
    let text = String::from_utf8(recording.clone()).unwrap();
    let of_root = text.lines().filter(|line| line.contains(r#""fact":{"umount":"#)).count();
    assert_eq!(of_root as u64, SECONDS * 4);
    assert!(text.matches(r#""comm":"hostile""#).count() > 100, "some of it is there");
    let (_, summary) = replayed(&recording);
    let told: u64 = summary.gaps.iter().map(|gap| gap.discarded).sum();
    assert!(missing > SECONDS * 2000, "{missing}");
    assert_eq!(told, missing);
    assert!(summary.gaps.iter().all(|gap| gap.reason == "over-budget"));
    assert_eq!(summary.observations + missing, 3 + SECONDS * (4000 + 4) + 1);
}

#[test]
fn after_a_part_that_lacks_something_the_model_is_right_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut live = Live::in_flight(dir.path());
    let mut later = SECOND;
    while live.missing() == 0 {
        later += 1;
        let Fact::Netns(snapshot) = netns_snapshot(1000) else { unreachable!() };
        live.observe(later, Fact::Netns(Box::new(NetnsSnapshot { foreign_userns: true, ..*snapshot })));
    }
    // It is the only one of this namespace that is missing.
    live.observe(later + 1, Fact::NetnsGone { netns: 1000 });
    live.observe(later + 300 * SECOND, Fact::Tick);
    live.finish();
    let files = numbered(&dir.path().join("recorder")).unwrap();
    let header = |path: &Path| {
        let text = fs::read_to_string(path).unwrap();
        serde_json::from_str::<Header<'_>>(text.lines().next().unwrap())
            .map(|it| it.after_incomplete)
            .unwrap()
    };
    assert_eq!(files.iter().map(|(_, path)| header(path)).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn after_a_gap_the_model_is_right_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut live = Live::in_flight(dir.path());
    live.bustle(10, 5_000);
    live.storms_until_queue_is_full(6_000_000);
    // Emitted only in the gap.
    live.observe(SECOND, netns_snapshot(99));
    let from = 20 * SECOND;
    // The scans that nobody has answered.
    live.observe(from, Fact::Tick);
    let before = live.said.len();
    let deadline = Instant::now() + PATIENCE;
    let mut at = from;
    loop {
        let missing = live.discarded("recorder", "queue-full");
        live.observe(at, Fact::Tick);
        at += 1;
        if live.discarded("recorder", "queue-full") == missing {
            break;
        }
        assert!(Instant::now() < deadline, "the gap does not end");
        std::thread::yield_now();
    }
    live.observe(at, link(99, 3, iff::UP));
    live.observe(at, Fact::Stop);
    let said = live.finish();
    let (again, _) = replayed(&segments(&dir.path().join("recorder")));
    assert!(said.len() > before && again.ends_with(&said[before..]));
}

#[test]
fn another_configuration_shows_what_it_would_have_changed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let mut live = Live::new();
    live.recorder.add_file(&Record { path: path.clone(), max_bytes: 64 << 20 }).unwrap();
    live.begin();
    live.observe(10, busy("/mnt/x"));
    live.observe(11, Fact::Holders(Box::new(HolderReport::skipped(1, "/mnt/x"))));
    live.observe(12, Fact::Settings(Box::new(settings())));
    live.observe(20 * SECOND, busy("/mnt/x"));
    live.observe(40 * SECOND, Fact::Tick);
    let said = live.finish();
    assert_eq!(String::from_utf8(said).unwrap().matches("\"cmdline\"").count(), 2);
    let policy = Policy { cmdline: Cmdline::Off, incidents: Default::default() };
    let mut events = Vec::new();
    replay(&fs::read(&path).unwrap()[..], Some(&policy), |event| {
        events.push(event);
        Ok(())
    })
    .unwrap();
    assert_eq!(events.iter().filter(|event| event.kind == Kind::MountBusy).count(), 2);
    for event in events {
        assert!(event.actor.is_none_or(|actor| actor.cmdline.is_none()));
        assert_eq!(event.node, "slave-197");
    }
}
