//! Writer and reader together, on a directory of the test's own.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use kevtmon_event::{Confidence, Event, Incident, Kind, Severity};
use kevtmon_testing::sample;
use rusqlite::Connection;

use super::*;
use crate::query::filter::{EventFilter, IncidentFilter, Order};
use crate::query::history::Page;
use crate::query::key::{Family, Lookup};

mod damage;
mod pods;
mod questions;
mod retention;

const BOOT: &str = "5a3c6b5e-0d0f-4d5c-9c58-0f2b6a1f7c11";
const SECOND: i64 = 1_000_000_000;
const SMALL: Limits = Limits { max_age: Duration::from_secs(7 * 86_400), max_bytes: 8 << 20 };

/// Now, so that nothing is too old; then by seconds.
fn at(seconds: i64) -> String {
    static START: std::sync::LazyLock<i64> = std::sync::LazyLock::new(time::now);
    time::text(*START + seconds * SECOND)
}

fn numbered(event: Event, seq: u64) -> Event {
    Event { seq, time: at(i64::try_from(seq).unwrap()), boot_id: BOOT.into(), ..event }
}

pub(super) fn incident(id: &str, kind: Kind, seq: u64) -> Event {
    let closed = kind == Kind::IncidentClosed;
    let incident = Incident {
        id: id.into(),
        kind: "volume-busy".into(),
        severity: Severity::Warning,
        confidence: Confidence::Certain,
        opened: at(0),
        closed: closed.then(|| at(9)),
        first_seen: at(0),
        last_seen: at(i64::try_from(seq).unwrap()),
        count: seq,
        counted: String::new(),
        counted_since: None,
        episode: 1,
        clock_set_ms: 0,
        ruled_out: Vec::new(),
        close_reason: closed.then_some(kevtmon_event::CloseReason::Resolved),
        found_at_start: false,
        caused_by: vec![],
        host_cause: None,
        summary: "held".into(),
        advice: vec![],
        evidence: vec![],
        evidence_omitted: 0,
    };
    numbered(Event { kind, incident: Some(Box::new(incident)), ..sample::busy() }, seq)
}

fn resume(dir: &Path, boot: &str) -> (Writer, PreviousRun) {
    let (writer, previous_run, quarantined) = Writer::resume(dir, SMALL, boot).unwrap();
    assert_eq!(quarantined, []);
    (writer, previous_run)
}

fn reader(dir: &Path) -> Reader {
    Reader::open_read_only(dir).unwrap()
}

fn seqs(page: &Page) -> Vec<u64> {
    page.events.iter().map(|found| found.position.seq).collect()
}

/// All of them, page after page.
fn query(reader: &Reader, mut filter: EventFilter) -> Vec<u64> {
    let mut all = Vec::new();
    loop {
        let page = reader.events(&filter).unwrap();
        match filter.order {
            Order::Newest => all.splice(0..0, seqs(&page)),
            Order::Oldest => all.splice(all.len().., seqs(&page)),
        };
        match page.next {
            Some(_) => filter.cursor = page.next,
            None => return all,
        }
    }
}

fn everything(reader: &Reader) -> Vec<u64> {
    query(reader, EventFilter { limit: 1000, ..EventFilter::default() })
}

#[test]
fn what_was_committed_is_read_as_it_was_told_and_nothing_before() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = resume(dir.path(), BOOT);
    let told: Vec<Event> = (1..).zip(sample::all()).map(|(seq, event)| numbered(event, seq)).collect();
    for event in &told {
        writer.insert(event).unwrap();
    }
    let reader = reader(dir.path());
    assert_eq!(everything(&reader), [0_u64; 0]);
    writer.commit().unwrap();
    let page = reader.events(&EventFilter::default()).unwrap();
    let lines: Vec<&str> = page.events.iter().map(|found| &*found.line).collect();
    assert_eq!(lines, told.iter().map(|event| serde_json::to_string(event).unwrap()).collect::<Vec<_>>());
}

#[test]
fn a_run_that_stopped_in_good_order_is_continued_without_a_gap_in_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, previous_run) = resume(dir.path(), BOOT);
    assert_eq!((previous_run.last_seq, previous_run.alive), (0, None));
    writer.insert(&numbered(sample::deletion(), 1)).unwrap();
    writer.stop().unwrap();
    let (_writer, previous_run) = resume(dir.path(), BOOT);
    assert_eq!(previous_run.last_seq, 1);
    assert!(previous_run.alive.is_some());
    let offset = kevtmon_types::clock::realtime_offset_ns();
    assert!(previous_run.realtime_offset_ns.abs_diff(offset) < 60 * SECOND.unsigned_abs(), "{offset}");
}

#[test]
fn a_run_that_was_killed_leaves_all_it_committed_and_its_numbers_are_not_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = resume(dir.path(), BOOT);
    writer.insert(&numbered(sample::deletion(), 1)).unwrap();
    writer.insert(&incident("one", Kind::IncidentOpened, 2)).unwrap();
    writer.insert(&incident("two", Kind::IncidentOpened, 3)).unwrap();
    writer.insert(&incident("two", Kind::IncidentClosed, 4)).unwrap();
    writer.commit().unwrap();
    writer.insert(&numbered(sample::busy(), 5)).unwrap();
    drop(writer);
    let (mut writer, previous_run) = resume(dir.path(), BOOT);
    assert_eq!(previous_run.last_seq, 4 + RESERVE);
    assert_eq!(
        previous_run
            .incidents
            .iter()
            .map(|event| event.incident.as_ref().unwrap().id.as_str())
            .collect::<Vec<_>>(),
        ["one"]
    );
    let next = previous_run.last_seq + 1;
    writer.insert(&Event { seq: next, ..numbered(sample::busy(), 6) }).unwrap();
    writer.commit().unwrap();
    let reader = reader(dir.path());
    assert_eq!(everything(&reader), [1, 2, 3, 4, next]);
    let evidence = EventFilter { seqs: vec![1, next], boot_id: Some(BOOT.into()), ..EventFilter::default() };
    assert_eq!(query(&reader, evidence), [1, next]);
}

#[test]
fn what_another_boot_left_open_is_closed_as_expired() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = resume(dir.path(), BOOT);
    writer.insert(&incident("one", Kind::IncidentOpened, 1)).unwrap();
    writer.commit().unwrap();
    drop(writer);
    let (mut writer, previous_run) = resume(dir.path(), "another boot");
    assert_eq!((previous_run.last_seq, previous_run.alive, previous_run.incidents.len()), (0, None, 0));
    writer
        .insert(&Event { boot_id: "another boot".into(), time: at(9), ..numbered(sample::busy(), 1) })
        .unwrap();
    writer.commit().unwrap();
    let reader = reader(dir.path());
    assert_eq!(reader.incidents(&IncidentFilter::default()).unwrap(), []);
    let all = reader.incidents(&IncidentFilter { all: true, ..IncidentFilter::default() }).unwrap();
    assert!(!all[0].is_open());
    assert_eq!(all[0].incident.close_reason, Some(kevtmon_event::CloseReason::Expired));
    assert!(all[0].incident.advice.is_empty());
    assert_eq!(everything(&reader), [1, 1], "numbers begin again, places do not");
}

#[test]
fn an_incident_that_opens_again_keeps_its_earlier_episode() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = resume(dir.path(), BOOT);
    writer.insert(&incident("aa1", Kind::IncidentClosed, 1)).unwrap();
    let mut again = incident("aa1", Kind::IncidentOpened, 2);
    let second = again.incident.as_mut().unwrap();
    (second.opened, second.episode, second.evidence) = (at(2), 2, vec![2]);
    writer.insert(&again).unwrap();
    writer.commit().unwrap();
    let episodes = |filter: IncidentFilter| -> Vec<(u32, u64)> {
        let views = reader(dir.path()).incidents(&filter).unwrap();
        views.iter().map(|view| (view.incident.episode, view.seq)).collect()
    };
    assert_eq!(episodes(IncidentFilter { all: true, ..IncidentFilter::default() }), [(1, 1), (2, 2)]);
    assert_eq!(episodes(IncidentFilter::default()), [(2, 2)]);
    let by_id = IncidentFilter { ids: vec!["aa1".into()], ..IncidentFilter::default() };
    assert_eq!(episodes(by_id).len(), 2);
    let by_evidence = IncidentFilter { evidence: vec![2], ..IncidentFilter::default() };
    assert_eq!(episodes(by_evidence), [(2, 2)]);
    drop(writer);
    let (_, previous_run) = resume(dir.path(), BOOT);
    assert_eq!(previous_run.incidents.len(), 1);
    assert_eq!(previous_run.episodes, [("aa1".to_owned(), 1)]);
    let (_, previous_run) = resume(dir.path(), "another boot");
    assert_eq!(previous_run.episodes, []);
}

#[test]
fn incidents_are_one_row_each_with_their_newest_event() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = resume(dir.path(), BOOT);
    writer.insert(&incident("aa1", Kind::IncidentOpened, 1)).unwrap();
    writer.insert(&incident("ab2", Kind::IncidentOpened, 2)).unwrap();
    writer.insert(&incident("aa1", Kind::IncidentUpdated, 3)).unwrap();
    writer.insert(&incident("ab2", Kind::IncidentClosed, 4)).unwrap();
    writer.commit().unwrap();
    let reader = reader(dir.path());
    let numbers = |filter: IncidentFilter| {
        reader.incidents(&filter).unwrap().iter().map(|view| view.seq).collect::<Vec<_>>()
    };
    let any = IncidentFilter::default;
    let moment = jiff::Timestamp::from_nanosecond(time::nanos(&at(4)).into()).unwrap();
    assert_eq!(numbers(any()), [3]);
    assert_eq!(numbers(IncidentFilter { all: true, ..any() }), [3, 4]);
    assert_eq!(numbers(IncidentFilter { all: true, since: Some(moment), ..any() }), [4]);
    assert_eq!(numbers(IncidentFilter { ids: vec!["ab2".into(), "%".into()], ..any() }), [4]);
}

#[test]
fn the_size_limit_holds_at_every_moment_of_a_storm() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = resume(dir.path(), BOOT);
    let mut most = 0;
    for seq in 1..=30_000_u64 {
        let mut event = numbered(sample::deletion(), seq);
        if let Some(neighbor) = &mut event.neighbor {
            neighbor.address = std::net::Ipv4Addr::from(u32::try_from(seq).unwrap()).into();
        }
        writer.insert(&event).unwrap();
        if writer.is_full() || seq % 5000 == 0 {
            writer.commit().unwrap();
            assert_ne!(writer.checkpoint().unwrap(), Log::Held);
        }
        if seq % 100 == 0 {
            most = most.max(writer.bytes());
        }
    }
    writer.commit().unwrap();
    assert!(most <= SMALL.max_bytes, "{most} bytes");
    let reader = reader(dir.path());
    let left = everything(&reader);
    assert_eq!(left.last(), Some(&30_000));
    assert!(left.len() > 500 && left.windows(2).all(|pair| pair[1] == pair[0] + 1), "the newest stay");
    let about = |address: &str| {
        let about = vec![Lookup::exact(Family::Neighbor, address)];
        query(&reader, EventFilter { about, ..EventFilter::default() })
    };
    assert_eq!((about("0.0.0.1"), about("0.0.117.48")), (vec![], vec![30_000]));
    let entries = "SELECT count(*) FROM lookup WHERE id NOT IN (SELECT id FROM events)";
    let entries: i64 = writer.connection.query_row(entries, [], |row| row.get(0)).unwrap();
    assert_eq!(entries, 0, "nothing points to what was deleted");
}

#[test]
fn a_lowered_limit_is_reached_in_steps_and_the_file_gets_shorter() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _, _) =
        Writer::resume(dir.path(), Limits { max_bytes: 64 << 20, ..SMALL }, BOOT).unwrap();
    for seq in 1..=8000 {
        writer.insert(&numbered(sample::busy(), seq)).unwrap();
    }
    writer.stop().unwrap();
    let file = dir.path().join(FILE);
    assert!(fs::metadata(&file).unwrap().len() > SMALL.max_bytes);
    let (mut writer, _) = resume(dir.path(), BOOT);
    let mut commits = 0;
    while writer.is_too_big() {
        writer.commit().unwrap();
        writer.checkpoint().unwrap();
        commits += 1;
        assert!(commits < 100, "it gets there");
    }
    writer.stop().unwrap();
    assert!(fs::metadata(&file).unwrap().len() <= SMALL.max_bytes);
}

#[test]
fn what_is_older_than_the_limit_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = resume(dir.path(), BOOT);
    for seq in 1..=600 {
        let time = at(-8 * 86_400 + i64::try_from(seq).unwrap());
        writer.insert(&Event { time, ..numbered(sample::deletion(), seq) }).unwrap();
    }
    writer.insert(&numbered(sample::deletion(), 601)).unwrap();
    writer.commit().unwrap();
    let reader = reader(dir.path());
    assert_eq!(everything(&reader), [601]);
}

#[test]
fn only_its_owner_can_read_it() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("a/state");
    let (mut writer, _) = resume(&state, BOOT);
    writer.insert(&numbered(sample::deletion(), 1)).unwrap();
    writer.commit().unwrap();
    assert_eq!(fs::metadata(&state).unwrap().mode() & 0o777, 0o700);
    let files: Vec<_> = fs::read_dir(&state).unwrap().map(Result::unwrap).collect();
    assert!(files.len() >= 3, "{files:?}");
    for file in files {
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{file:?}");
    }
}

#[test]
fn readers_leave_nothing_open() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = resume(dir.path(), BOOT);
    writer.insert(&numbered(sample::deletion(), 1)).unwrap();
    writer.commit().unwrap();
    let path = fs::canonicalize(dir.path()).unwrap();
    let open = || {
        let links = fs::read_dir("/proc/self/fd").unwrap().map(|entry| fs::read_link(entry.unwrap().path()));
        links.filter(|link| link.as_ref().is_ok_and(|link| link.starts_with(&path))).count()
    };
    assert_eq!(everything(&reader(dir.path())), [1]);
    let before = open();
    for _ in 0..20 {
        assert_eq!(everything(&reader(dir.path())), [1]);
    }
    assert_eq!(open(), before);
    assert!(!open::with_suffix(&dir.path().join(FILE), "-shm").exists(), "nothing is mapped");
}

#[test]
fn a_second_daemon_is_refused_and_a_reader_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let (_writer, _) = resume(dir.path(), BOOT);
    let refused = Writer::resume(dir.path(), SMALL, BOOT).err().unwrap();
    assert!(matches!(refused, StoreError::InUse { .. }), "{refused}");
    Reader::open_read_only(dir.path()).unwrap();
}

#[test]
fn a_file_of_another_version_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    let other = Connection::open(&path).unwrap();
    other
        .execute_batch(&format!(
            "PRAGMA journal_mode = WAL; PRAGMA application_id = {}; PRAGMA user_version = {};
             CREATE TABLE others (x)",
            schema::APPLICATION,
            VERSION + 1
        ))
        .unwrap();
    // As a crash leaves it: the log was not copied.
    let log = open::with_suffix(&path, "-wal");
    let (file_bytes, log_bytes) = (fs::read(&path).unwrap(), fs::read(&log).unwrap());
    std::mem::forget(other);
    let read = Reader::open_read_only(dir.path()).err().unwrap();
    let written = Writer::resume(dir.path(), SMALL, BOOT).err().unwrap();
    for refused in [read, written] {
        assert!(
            matches!(refused, StoreError::OtherVersion { found, .. } if found == VERSION + 1),
            "{refused}"
        );
    }
    assert_eq!(fs::read(&path).unwrap(), file_bytes);
    assert_eq!(fs::read(&log).unwrap(), log_bytes);
}

#[test]
fn a_file_that_makes_no_sense_is_quarantined_with_all_its_bytes() {
    for (content, why) in [
        (b"SQLite format 3\0 and then nothing that makes sense".repeat(200), "not a database"),
        (vec![0xa5; 4096], "not a database"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE), &content).unwrap();
        let (mut writer, _, quarantined) = Writer::resume(dir.path(), SMALL, BOOT).unwrap();
        assert!(quarantined[0].reason.contains(why), "{quarantined:?}");
        assert!(quarantined[0].path.to_str().unwrap().contains("events.db.corrupt-"), "{quarantined:?}");
        assert_eq!(fs::read(&quarantined[0].path).unwrap(), content);
        writer.insert(&numbered(sample::deletion(), 1)).unwrap();
        writer.commit().unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    Connection::open(dir.path().join(FILE)).unwrap().execute_batch("CREATE TABLE letters (x)").unwrap();
    let (.., quarantined) = Writer::resume(dir.path(), SMALL, BOOT).unwrap();
    assert!(quarantined[0].reason.contains("not an event store"), "{quarantined:?}");
}

#[test]
fn a_power_failure_that_broke_pages_is_found_at_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = resume(dir.path(), BOOT);
    for seq in 1..=500 {
        writer.insert(&numbered(sample::deletion(), seq)).unwrap();
    }
    writer.stop().unwrap();
    let path = dir.path().join(FILE);
    // As if it had not ended in good order.
    Connection::open(&path).unwrap().execute("UPDATE runs SET ended = 0", []).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 4096 / 2 * 4096;
    bytes[middle..middle + 8192].fill(0xee);
    fs::write(&path, bytes).unwrap();
    let (mut writer, _, quarantined) = Writer::resume(dir.path(), SMALL, "the next boot").unwrap();
    assert!(quarantined[0].reason.contains("damaged"), "{quarantined:?}");
    writer.insert(&numbered(sample::deletion(), 1)).unwrap();
    writer.commit().unwrap();
    let reader = reader(dir.path());
    assert_eq!(everything(&reader), [1]);
}

#[test]
fn links_and_pipes_in_place_of_the_file_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    std::os::unix::fs::symlink("/etc/hostname", &path).unwrap();
    assert!(matches!(Writer::resume(dir.path(), SMALL, BOOT).err(), Some(StoreError::File { .. })));
    fs::remove_file(&path).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(matches!(Writer::resume(dir.path(), SMALL, BOOT).err(), Some(StoreError::File { .. })));
}

#[test]
fn there_is_an_answer_where_there_is_no_store() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(Reader::open_read_only(dir.path()).err(), Some(StoreError::Missing { .. })));
    assert!(matches!(
        Reader::open_read_only(&dir.path().join("nothing")).err(),
        Some(StoreError::Missing { .. })
    ));
}

#[test]
fn a_reader_that_stands_still_makes_the_log_grow_and_that_is_found_out() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = resume(dir.path(), BOOT);
    writer.insert(&numbered(sample::deletion(), 1)).unwrap();
    writer.commit().unwrap();
    let stuck = Connection::open(dir.path().join(FILE)).unwrap();
    stuck.execute_batch("BEGIN; SELECT count(*) FROM events").unwrap();
    let mut log = Log::Short;
    for seq in 2..5000 {
        writer.insert(&numbered(sample::deletion(), seq)).unwrap();
        if writer.is_full() {
            writer.commit().unwrap();
            log = writer.checkpoint().unwrap();
            if log == Log::Held {
                break;
            }
        }
    }
    assert_eq!(log, Log::Held);
    stuck.execute_batch("COMMIT").unwrap();
    assert_eq!(writer.checkpoint().unwrap(), Log::Copied);
}
