//! The sink on real files: status reports, durability, disk failures.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use kevtmon_event::{CloseReason, Confidence, Incident};
use kevtmon_history::query::filter::{EventFilter, IncidentFilter};
use kevtmon_history::store::{FILE, Reader};
use kevtmon_observation::{Fact, Observation};
use kevtmon_sources::procfs::own::Own;
use kevtmon_testing::sample;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tokio::sync::mpsc::{Receiver, channel};

use super::*;
use crate::sinks::{Sink, Sinks};

const BOOT: &str = "5a3c6b5e-0d0f-4d5c-9c58-0f2b6a1f7c11";
const PATIENCE: Duration = Duration::from_secs(30);

struct Rig {
    sink: Reconnecting<StoreFile>,
    metrics: Arc<Metrics>,
    statuses: Receiver<Observation>,
    start: SourceStatus,
}

/// A sink that is driven by the test itself, and tries again at once.
fn rig(directory: &Path) -> Rig {
    let metrics = Arc::new(Metrics::new("0", "0", Own::default()).unwrap());
    let (core, statuses) = channel(16);
    let config = StoreConfig {
        directory: directory.to_owned(),
        limits: Limits { max_bytes: 8 << 20, ..Limits::default() },
        boot_id: BOOT.into(),
    };
    let (sink, _, start) = open(config, Arc::clone(&metrics), core, Duration::ZERO).unwrap();
    Rig { sink, metrics, statuses, start }
}

impl Rig {
    fn deliver(&mut self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            self.sink.deliver(&Arc::new(event.into())).unwrap();
        }
    }

    fn commit(&mut self) {
        let committed = self.sink.destination.commit();
        self.sink.check(committed);
    }

    /// Statuses reported to the core since the last call.
    fn reported(&mut self) -> Vec<(bool, String)> {
        let mut reported = Vec::new();
        while let Ok(Observation { fact: Fact::Source(status), .. }) = self.statuses.try_recv() {
            assert_eq!(status.source, NAME);
            reported.push((status.up, status.reason.unwrap_or_default()));
        }
        reported
    }

    fn metric(&self, start: &str) -> f64 {
        let text = self.metrics.gather().unwrap();
        text.lines()
            .filter(|line| line.starts_with(start))
            .map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap())
            .sum()
    }

    fn discarded(&self, reason: &str) -> f64 {
        self.metric(&format!("kevtmon_events_discarded_total{{reason=\"{reason}\",sink=\"store\"}}"))
    }
}

fn numbered(seq: u64) -> Event {
    Event { seq, boot_id: BOOT.into(), time: now(), ..sample::deletion() }
}

fn now() -> String {
    format!("{:.9}", jiff::Timestamp::now())
}

fn incident(id: &str, kind: Kind, seq: u64) -> Event {
    static OPENED: std::sync::LazyLock<String> = std::sync::LazyLock::new(now);
    let closed = (kind == Kind::IncidentClosed).then(now);
    let incident = Incident {
        id: id.into(),
        kind: "volume-busy".into(),
        severity: Severity::Warning,
        confidence: Confidence::Certain,
        opened: OPENED.clone(),
        close_reason: closed.is_some().then_some(CloseReason::Resolved),
        closed,
        first_seen: now(),
        last_seen: now(),
        count: seq,
        counted: String::new(),
        counted_since: None,
        episode: 1,
        clock_set_ms: 0,
        ruled_out: Vec::new(),
        found_at_start: false,
        caused_by: vec![],
        host_cause: None,
        summary: "held".into(),
        advice: vec![],
        evidence: vec![],
        evidence_omitted: 0,
    };
    Event { kind, incident: Some(Box::new(incident)), ..numbered(seq) }
}

#[test]
fn the_first_closed_incident_to_go_is_of_whoever_has_most() {
    use kevtmon_event::{Priority, Tenant};
    let directory = tempfile::tempdir().unwrap();
    let rig = &mut rig(directory.path());
    let mut note = |id: &str, priority, seq| {
        let tenant = Tenant { priority, name: format!("{priority:?}").into() };
        rig.sink.destination.note(&Event { tenant, ..incident(id, Kind::IncidentClosed, seq) });
    };
    note("user", Priority::Foreign, 1);
    (2..20).for_each(|seq| note(&format!("pod{seq}"), Priority::Known, seq));
    assert_eq!(rig.sink.destination.dispensable().map(|(id, _)| id.as_str()), Some("pod2"));
}

#[test]
fn a_file_that_is_removed_or_replaced_is_noticed_and_made_anew() {
    let remove = |dir: &Path| fs::remove_dir_all(dir).unwrap();
    let remove_log = |dir: &Path| fs::remove_file(dir.join("events.db-wal")).unwrap();
    let replace = |dir: &Path| {
        fs::rename(dir, dir.with_extension("old")).unwrap();
        fs::create_dir(dir).unwrap();
    };
    let ways: [&dyn Fn(&Path); 3] = [&remove, &remove_log, &replace];
    for way in ways {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("state");
        let mut rig = rig(&dir);
        rig.deliver([numbered(1), incident("a", Kind::IncidentOpened, 2)]);
        rig.commit();
        rig.commit();
        assert_eq!(rig.reported(), []);
        way(&dir);
        rig.deliver([numbered(3)]);
        rig.commit();
        let reported = rig.reported();
        let [(false, reason), (true, _)] = &reported[..] else { panic!("{reported:?}") };
        assert!(reason.contains("events.db") && reason.contains("removed or replaced"), "{reason}");
        rig.deliver([numbered(4)]);
        rig.commit();
        assert!(stored(&dir).contains(&4));
        assert_eq!(open_incidents(&dir), ["a"], "what is open is not forgotten");
        assert_eq!(rig.discarded("failed"), 1.0);
    }
}

#[test]
fn files_that_others_truncate_are_told_once_and_made_anew() {
    for name in [FILE.to_owned(), format!("{FILE}-wal")] {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = rig(dir.path());
        rig.deliver([numbered(1), incident("a", Kind::IncidentOpened, 2)]);
        rig.commit();
        fs::File::options().write(true).open(dir.path().join(&name)).unwrap().set_len(0).unwrap();
        for seq in 3..6 {
            rig.deliver([numbered(seq)]);
            rig.commit();
        }
        let reported = rig.reported();
        let [(false, reason), (true, _)] = &reported[..] else { panic!("{reported:?}") };
        assert!(reason.contains(&format!("{name} was truncated")), "{reason}");
        assert!(stored(dir.path()).contains(&5));
        assert_eq!(open_incidents(dir.path()), ["a"]);
    }
}

fn stored(directory: &Path) -> Vec<u64> {
    let reader = Reader::open_read_only(directory).unwrap();
    let filter = EventFilter { limit: 10_000, ..EventFilter::default() };
    reader.events(&filter).unwrap().events.iter().map(|found| found.position.seq).collect()
}

fn open_incidents(directory: &Path) -> Vec<String> {
    let views = Reader::open_read_only(directory).unwrap().incidents(&IncidentFilter::default()).unwrap();
    views.into_iter().map(|view| view.incident.id).collect()
}

/// A file system of its own, unmounted on drop.
struct Disk(tempfile::TempDir);

impl Disk {
    fn new(size: &str) -> Self {
        let disk = Self(tempfile::tempdir().unwrap());
        let options = format!("size={size},mode=0700");
        mount(Some("disk"), disk.0.path(), Some("tmpfs"), MsFlags::empty(), Some(options.as_str())).unwrap();
        disk
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn remount(&self, flags: MsFlags, options: Option<&str>) {
        mount(None::<&str>, self.path(), None::<&str>, MsFlags::MS_REMOUNT | flags, options).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = umount2(self.path(), MntFlags::MNT_DETACH);
    }
}

#[test]
fn events_wait_for_a_commit_a_second_and_incidents_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = rig(dir.path());
    rig.sink.destination.last_commit = Instant::now();
    rig.deliver([numbered(1), numbered(2)]);
    rig.sink.flush().unwrap();
    assert_eq!(stored(dir.path()), [0_u64; 0]);
    let due = rig.sink.due().unwrap();
    assert!(due > rig.sink.destination.last_commit && due <= rig.sink.destination.last_commit + COMMIT);
    rig.deliver([incident("one", Kind::IncidentUpdated, 3)]);
    rig.sink.flush().unwrap();
    assert_eq!(stored(dir.path()), [0_u64; 0], "an update can wait");
    rig.deliver([incident("two", Kind::IncidentOpened, 4)]);
    rig.sink.flush().unwrap();
    assert_eq!(stored(dir.path()), [1, 2, 3, 4]);
    assert_eq!(rig.sink.due(), Some(rig.sink.destination.last_commit + ALIVE));
}

#[test]
fn an_incident_is_in_the_store_before_another_sink_announces_it() {
    struct Announcer {
        directory: PathBuf,
        found: std::sync::mpsc::SyncSender<(Kind, bool)>,
    }
    impl Sink for Announcer {
        fn deliver(&mut self, event: &Arc<SharedEvent>) -> io::Result<()> {
            let id = &event.incident.as_ref().unwrap().id;
            let filter = IncidentFilter { ids: vec![id.clone()], ..IncidentFilter::default() };
            let views = Reader::open_read_only(&self.directory).unwrap().incidents(&filter).unwrap();
            let is_there = views.first().is_some_and(|view| view.seq == event.seq);
            self.found.send((event.kind, is_there)).unwrap();
            Ok(())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let metrics = Arc::new(Metrics::new("0", "0", Own::default()).unwrap());
    let (core, _statuses) = channel(16);
    let limits = Limits { max_bytes: 8 << 20, ..Limits::default() };
    let config = StoreConfig { directory: dir.path().to_owned(), limits, boot_id: BOOT.into() };
    let started = start(config, Arc::clone(&metrics), core).unwrap();
    assert!(started.status.as_ref().unwrap().up);
    let mut sinks = Sinks::default();
    sinks.add(started);
    let (sent, found) = sync_channel(100);
    let announcer = Announcer { directory: dir.path().to_owned(), found: sent };
    sinks.add(EventQueue::start("test", Severity::Debug, metrics, announcer).unwrap());
    for (seq, kind) in (1..).zip([Kind::IncidentOpened, Kind::IncidentClosed].repeat(3)) {
        sinks.offer(&Arc::new(incident("one", kind, seq).into()));
        assert_eq!(found.recv_timeout(PATIENCE).unwrap(), (kind, true));
    }
    sinks.finish(PATIENCE);
}

#[test]
fn a_full_disk_is_told_once_and_what_it_cannot_take_is_counted() {
    let disk = Disk::new("1m");
    let mut rig = rig(disk.path());
    rig.deliver([incident("before", Kind::IncidentOpened, 1)]);
    rig.sink.flush().unwrap();
    rig.deliver((2..=3000).map(numbered));
    rig.deliver([incident("meanwhile", Kind::IncidentOpened, 3001)]);
    rig.commit();
    rig.sink.on_time();
    let reported = rig.reported();
    assert!(matches!(&reported[..], [(false, reason)] if reason.contains("full")), "{reported:?}");
    assert!(rig.metric("kevtmon_store_errors_total") >= 1.0);
    assert!(rig.discarded("failed") >= 2000.0, "{}", rig.discarded("failed"));
    assert!(rig.sink.destination.barrier.wait(3001), "nobody waits for what will not be stored");
    assert_eq!(open_incidents(disk.path()), ["before"]);

    disk.remount(MsFlags::empty(), Some("size=32m"));
    rig.sink.on_time();
    assert_eq!(rig.reported(), [(true, String::new())]);
    rig.deliver([numbered(3002)]);
    rig.commit();
    let mut open = open_incidents(disk.path());
    open.sort_unstable();
    assert_eq!(open, ["before", "meanwhile"], "incidents were kept in memory");
    assert_eq!(stored(disk.path()).last(), Some(&3002));
    let discarded = rig.discarded("failed");
    rig.deliver([numbered(3003)]);
    assert_eq!(rig.discarded("failed"), discarded);
}

#[test]
fn a_directory_that_cannot_be_written_costs_only_the_store() {
    let disk = Disk::new("32m");
    disk.remount(MsFlags::MS_RDONLY, None);
    let mut rig = rig(disk.path());
    rig.deliver([numbered(1), incident("one", Kind::IncidentOpened, 2)]);
    rig.sink.flush().unwrap();
    rig.sink.on_time();
    assert_eq!(rig.reported(), [], "the start told it");
    assert!(!rig.sink.is_up());
    assert_eq!(rig.discarded("failed"), 2.0);
    disk.remount(MsFlags::empty(), None);
    rig.sink.on_time();
    assert_eq!(rig.reported(), [(true, String::new())]);
    assert_eq!(open_incidents(disk.path()), ["one"]);
    rig.deliver([numbered(3)]);
    rig.commit();
    assert_eq!(stored(disk.path()), [3]);
}

#[test]
fn a_disk_that_becomes_read_only_is_told_once_and_what_it_holds_can_be_read() {
    let disk = Disk::new("32m");
    let mut rig = rig(disk.path());
    rig.deliver([numbered(1)]);
    rig.commit();
    // The descriptors that SQLite holds keep a file system from being remounted, so the writer is let go first.
    rig.sink.destination.writer.take().unwrap().stop().unwrap();
    rig.sink.check(Err(StoreError::Missing { directory: disk.path().to_owned() }));
    let log = disk.path().join(format!("{FILE}-wal"));
    assert!(!log.exists(), "the last connection took the log along");
    disk.remount(MsFlags::MS_RDONLY, None);
    rig.sink.on_time();
    rig.deliver([numbered(2)]);
    assert_eq!(stored(disk.path()), [1]);
    assert_eq!(rig.discarded("failed"), 1.0);
}

#[test]
fn a_log_that_a_crash_left_can_be_read_on_a_read_only_disk() {
    let disk = Disk::new("32m");
    let living = tempfile::tempdir().unwrap();
    let mut rig = rig(living.path());
    rig.deliver([numbered(1)]);
    rig.commit();
    for file in [FILE.to_owned(), format!("{FILE}-wal")] {
        fs::copy(living.path().join(&file), disk.path().join(&file)).unwrap();
    }
    disk.remount(MsFlags::MS_RDONLY, None);
    assert_eq!(stored(disk.path()), [1]);
}

#[test]
fn a_file_that_breaks_while_it_is_used_is_moved_aside_and_a_new_one_begins() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = rig(dir.path());
    first.deliver((1..=600).map(numbered));
    first.deliver([incident("one", Kind::IncidentOpened, 601)]);
    first.sink.finish();
    let path = dir.path().join(FILE);
    let mut bytes = fs::read(&path).unwrap();
    // All but the pages that are read at start.
    bytes[20 * 4096..].fill(0xee);
    fs::write(&path, &bytes).unwrap();

    let mut rig = rig(dir.path());
    assert_eq!(rig.start.reason, None);
    rig.deliver((602..=1200).map(numbered));
    rig.commit();
    rig.deliver([numbered(1201)]);
    rig.commit();
    assert!(rig.sink.is_up());
    assert_eq!(stored(dir.path()).last(), Some(&1201));
    let aside = fs::read_dir(dir.path())
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_str().unwrap().contains(".corrupt-"))
        .count();
    assert!(aside >= 1);
}

#[test]
fn a_state_directory_that_is_a_file_is_said_with_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    fs::write(&path, "").unwrap();
    let metrics = Arc::new(Metrics::new("0", "0", Own::default()).unwrap());
    let (core, _statuses) = channel(16);
    let config = StoreConfig { directory: path.clone(), limits: Limits::default(), boot_id: BOOT.into() };
    let started = start(config, metrics, core).unwrap();
    let status = started.status.as_ref().unwrap();
    let reason = status.reason.as_ref().unwrap();
    assert!(!status.up && reason.contains(path.to_str().unwrap()), "{reason}");
    assert_eq!(started.previous_run, Some(PreviousRun::default()));
    started.queue.finish(Instant::now() + PATIENCE);
}

#[test]
fn an_orderly_end_keeps_everything_and_the_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let metrics = Arc::new(Metrics::new("0", "0", Own::default()).unwrap());
    for run in 0..3 {
        let (core, _statuses) = channel(16);
        let config =
            StoreConfig { directory: dir.path().to_owned(), limits: Limits::default(), boot_id: BOOT.into() };
        let started = start(config, Arc::clone(&metrics), core).unwrap();
        assert_eq!(started.previous_run.as_ref().unwrap().last_seq, run * 10);
        let mut sinks = Sinks::default();
        sinks.add(started);
        for seq in 1..=10 {
            sinks.offer(&Arc::new(numbered(run * 10 + seq).into()));
        }
        sinks.finish(PATIENCE);
    }
    assert_eq!(stored(dir.path()), (1..=30).collect::<Vec<_>>());
    assert_eq!(fs::metadata(dir.path().join(FILE)).unwrap().permissions().mode() & 0o777, 0o600);
}
