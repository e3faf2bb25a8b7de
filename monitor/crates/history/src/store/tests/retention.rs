//! Who displaces whom.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::Ipv4Addr;

use kevtmon_event::{Priority, Severity, Shared, Target, Tenant};

use super::*;
use crate::query::record::timestamp;
use crate::store::writer::size;

/// A deletion of an address of its own.
fn deletion(seq: u64, priority: Priority, account: &str) -> Event {
    let mut event = numbered(sample::deletion(), seq);
    event.time = at(i64::try_from(seq / 1000).unwrap());
    event.tenant = Tenant { priority, name: account.into() };
    if let Some(neighbor) = &mut event.neighbor {
        neighbor.address = Ipv4Addr::from(u32::try_from(seq).unwrap()).into();
    }
    event
}

fn incident_resting_on(seq: u64, evidence: &[u64], kind: Kind) -> Event {
    let mut event = incident("aa1", kind, seq);
    event.time = at(i64::try_from(seq / 1000).unwrap());
    event.incident.as_mut().unwrap().evidence = evidence.to_vec();
    Event { tenant: Tenant { priority: Priority::Known, name: "etcd".into() }, ..event }
}

fn put(writer: &mut Writer, event: &Event) {
    writer.insert(event).unwrap();
    if writer.is_full() || event.seq.is_multiple_of(5000) {
        writer.commit().unwrap();
        assert_ne!(writer.checkpoint().unwrap(), Log::Held);
    }
}

/// The index has each event under all of its keys, and nothing else; the shares are what there is.
fn assert_consistent(writer: &Writer) {
    let mut indexed = BTreeSet::new();
    let mut select = writer.connection.prepare("SELECT key, time, id, class FROM lookup").unwrap();
    let mut rows = select.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let entry: (i64, i64, i64, i64) = row.try_into().unwrap();
        indexed.insert(entry);
    }
    let (mut stored, mut shares) = (BTreeSet::new(), BTreeMap::<i64, i64>::new());
    let events = "SELECT id, time, class, account, names, octet_length(json) FROM events";
    let mut select = writer.connection.prepare(events).unwrap();
    let mut rows = select.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let (id, time, class, account, names, json): (i64, i64, i64, i64, Vec<u8>, i64) =
            row.try_into().unwrap();
        let keys = lookup::keys(class, account, lookup::from_bytes(&names));
        stored.extend(keys.map(|key| (key, time, id, class)));
        *shares.entry(account).or_default() += size(&names, json);
    }
    assert!(indexed == stored, "{} entries of {}", indexed.len(), stored.len());
    assert_eq!(shares_of(writer), shares);
    let lost = "SELECT count(*) FROM evidence WHERE event < (SELECT max(id) FROM events)
        AND event NOT IN (SELECT id FROM events)";
    assert_eq!(writer.connection.query_row(lost, [], |row| row.get::<_, i64>(0)).unwrap(), 0);
}

/// Bytes of each account that has some.
fn shares_of(writer: &Writer) -> BTreeMap<i64, i64> {
    let mut select =
        writer.connection.prepare("SELECT account, bytes FROM accounts WHERE bytes > 0").unwrap();
    let shares = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    shares.collect::<rusqlite::Result<_>>().unwrap()
}

#[test]
fn a_flood_displaces_nothing_that_others_did_nor_what_an_open_incident_rests_on() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = resume(dir.path(), BOOT);
    for seq in 1..=300 {
        put(&mut writer, &deletion(seq, Priority::Known, "calico-node.service"));
    }
    put(&mut writer, &deletion(301, Priority::Node, "cron.service"));
    put(&mut writer, &incident_resting_on(302, &[301], Kind::IncidentOpened));
    let mut most = 0;
    for seq in 303..=40_000 {
        let (priority, account) = match seq % 10 {
            0 => (Priority::Known, "calico-node.service"),
            1..4 => (Priority::Node, "cron.service"),
            _ => (Priority::Foreign, "users"),
        };
        // Those who are flooded go on with what they do, seldom.
        if seq % 10 != 0 || seq % 500 == 0 {
            put(&mut writer, &deletion(seq, priority, account));
        }
        if seq % 100 == 0 {
            most = most.max(writer.bytes());
        }
    }
    writer.commit().unwrap();
    assert!(most <= SMALL.max_bytes, "{most} bytes");
    assert_consistent(&writer);
    let left: HashSet<u64> = everything(&reader(dir.path())).into_iter().collect();
    assert!((1..=302).all(|seq| left.contains(&seq)), "what was before");
    assert!((500..=40_000).step_by(500).all(|seq| left.contains(&seq)), "what came meanwhile");
    assert!(left.contains(&39_999) && !left.contains(&305), "the newest of a flood stay");
    let about = vec![Lookup::exact(Family::Neighbor, "0.0.0.7")];
    let filter = EventFilter { about, ..EventFilter::default() };
    assert_eq!(query(&reader(dir.path()), filter), [7], "it is still found by what it is about");
}

/// Events of a day, one in 72 seconds: of gateways, mounts and CNI calls of eight pods, and of incidents. One of these stays
/// open, and rests on the first event.
fn day() -> Vec<Event> {
    let event = |seq: u64| {
        let number = format!("{:016x}", (seq - 1) / 12);
        let event = match (seq, seq % 12) {
            (5, _) => incident_resting_on(seq, &[1], Kind::IncidentOpened),
            (_, 6) => incident(&number, Kind::IncidentOpened, seq),
            (_, 0) => incident(&number, Kind::IncidentClosed, seq),
            (_, 1 | 2 | 7) => sample::deletion(),
            (_, 3 | 4 | 8) => sample::busy(),
            _ => sample::cni(),
        };
        let tenant = Tenant { priority: Priority::Known, name: format!("pod {}", seq % 8).into() };
        let time = at(i64::try_from(seq).unwrap() * 72 - 86_400);
        Event { time, tenant, ..numbered(event, seq) }
    };
    (1..=1200).map(event).collect()
}

#[test]
fn a_day_of_events_survives_a_flood_hour_by_hour() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = resume(dir.path(), BOOT);
    let day = day();
    day.iter().for_each(|event| put(&mut writer, event));
    for seq in 1201..=40_000 {
        let account = format!("uid {}", seq % 3);
        put(&mut writer, &Event { time: at(1), ..deletion(seq, Priority::Foreign, &account) });
    }
    writer.commit().unwrap();
    assert_consistent(&writer);
    let reader = reader(dir.path());
    let time_of = |hour: i64| Some(timestamp(&at(hour * 3600 - 86_400)));
    for hour in 0..24 {
        let filter = EventFilter { since: time_of(hour), until: time_of(hour + 1), ..EventFilter::default() };
        let first = 50 * u64::try_from(hour).unwrap();
        let expected: Vec<u64> = (first..first + 50).filter(|seq| *seq > 0).collect();
        assert_eq!(query(&reader, filter), expected, "hour {hour}");
    }
    let closed: Vec<u64> = day.iter().filter(|it| it.kind == Kind::IncidentClosed).map(|it| it.seq).collect();
    let about = |kind: Kind| EventFilter { kinds: vec![kind.name().into()], ..EventFilter::default() };
    assert_eq!(query(&reader, about(Kind::IncidentClosed)), closed);
    let left = writer.previous_run(writer.previous().unwrap().as_ref()).unwrap();
    assert_eq!(left.incidents.iter().map(|event| event.seq).collect::<Vec<_>>(), [5]);
    let all = everything(&reader);
    assert!(
        all.contains(&1) && all.contains(&40_000) && !all.contains(&1202),
        "the flood gives way to itself"
    );
}

#[test]
fn what_an_incident_rested_on_goes_once_it_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = resume(dir.path(), BOOT);
    put(&mut writer, &deletion(1, Priority::Node, "cron.service"));
    put(&mut writer, &incident_resting_on(2, &[1], Kind::IncidentOpened));
    for seq in 3..=20_000 {
        put(&mut writer, &deletion(seq, Priority::Node, "cron.service"));
    }
    let has_first = |dir: &Path| everything(&reader(dir)).first() == Some(&1);
    assert!(has_first(dir.path()));
    put(&mut writer, &incident_resting_on(20_001, &[1], Kind::IncidentClosed));
    writer.commit().unwrap();
    // What can go by now is looked for once a minute.
    writer.next_prune = 0;
    for seq in 20_002..=30_000 {
        put(&mut writer, &deletion(seq, Priority::Node, "cron.service"));
    }
    writer.commit().unwrap();
    assert!(!has_first(dir.path()));
    assert_consistent(&writer);
}

#[test]
fn the_closed_incidents_of_one_pod_displace_none_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = resume(dir.path(), BOOT);
    let closed = |seq: u64, pod: &str| {
        let mut event = incident(&format!("{pod}{seq}"), Kind::IncidentClosed, seq);
        event.target = sample::deletion().target;
        let target = event.target.as_mut().unwrap();
        target.pod = target.pod.take().map(|known| kevtmon_event::Pod { uid: pod.into(), ..known });
        event
    };
    (1..=10).for_each(|seq| put(&mut writer, &closed(seq, "etcd")));
    (11..=2500).for_each(|seq| put(&mut writer, &closed(seq, "flapping")));
    writer.next_prune = 0;
    writer.commit().unwrap();
    let count = |pod: &str| -> i64 {
        let of = format!("SELECT count(*) FROM incidents WHERE id GLOB '{pod}*'");
        writer.connection.query_row(&of, [], |row| row.get(0)).unwrap()
    };
    assert_eq!((count("etcd"), count("flapping")), (10, 1990));
}

#[test]
fn the_closed_incidents_of_one_user_displace_none_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = resume(dir.path(), BOOT);
    let closed = |seq: u64, user: &str| {
        let mut event = incident(&format!("{user}{seq}"), Kind::IncidentClosed, seq);
        event.incident.as_mut().unwrap().severity = Severity::Notice;
        event.target = Some(Shared::new(Target {
            userns: Some(kevtmon_event::UserNamespace::Other),
            ..Target::unknown(kevtmon_event::Join::Ok)
        }));
        Event { tenant: Tenant { priority: Priority::Foreign, name: user.into() }, ..event }
    };
    (1..=10).for_each(|seq| put(&mut writer, &closed(seq, "alice")));
    (11..=1000).for_each(|seq| put(&mut writer, &closed(seq, "mallory")));
    writer.next_prune = 0;
    writer.commit().unwrap();
    let count = |user: &str| -> i64 {
        let of = format!("SELECT count(*) FROM incidents WHERE id GLOB '{user}*'");
        writer.connection.query_row(&of, [], |row| row.get(0)).unwrap()
    };
    assert_eq!((count("alice"), count("mallory")), (10, 490));
}

#[test]
fn what_is_too_old_goes_though_the_clock_was_set_back() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = resume(dir.path(), BOOT);
    let count = |writer: &Writer| -> i64 {
        writer.connection.query_row("SELECT count(*) FROM events", [], |row| row.get(0)).unwrap()
    };
    let minute: u64 = 60_000_000_000;
    writer.retain_at(time::now() + 3600 * SECOND, 0).unwrap();
    let old = Event { time: at(-8 * 86_400), ..deletion(1, Priority::Node, "cron.service") };
    writer.insert(&old).unwrap();
    writer.retain_at(time::now(), minute - 1).unwrap();
    assert_eq!(count(&writer), 1, "its age is looked at once a minute");
    writer.retain_at(time::now(), minute).unwrap();
    assert_eq!(count(&writer), 0);
}

#[test]
fn a_store_full_of_evidence_keeps_its_limit() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = resume(dir.path(), BOOT);
    for seq in 1..=8_000 {
        put(&mut writer, &deletion(2 * seq, Priority::Known, "etcd"));
        put(&mut writer, &incident_resting_on(2 * seq + 1, &[2 * seq], Kind::IncidentUpdated));
    }
    writer.commit().unwrap();
    assert!(writer.bytes() <= SMALL.max_bytes);
    assert_consistent(&writer);
}

#[test]
fn shares_are_the_same_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = resume(dir.path(), BOOT);
    for seq in 1..=3000 {
        let account = format!("container {}", seq % 100);
        put(&mut writer, &deletion(seq, Priority::Known, &account));
    }
    put(&mut writer, &deletion(3001, Priority::Foreign, "users"));
    writer.commit().unwrap();
    let before = shares_of(&writer);
    writer.stop().unwrap();
    let (writer, _) = resume(dir.path(), BOOT);
    assert_eq!(shares_of(&writer), before);
    assert_consistent(&writer);
    assert_eq!(before.len(), 101);
}

#[test]
fn accounts_without_end_share_a_bounded_number_of_places() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = resume(dir.path(), BOOT);
    for seq in 1..=3000 {
        put(&mut writer, &deletion(seq, Priority::Known, &format!("container {seq}")));
    }
    // What is of another priority has room of its own.
    put(&mut writer, &deletion(3001, Priority::Node, "cron.service"));
    writer.commit().unwrap();
    let accounts = |writer: &Writer, priority: Priority| -> i64 {
        let count = "SELECT count(*) FROM accounts WHERE standing = ?1";
        writer.connection.query_row(count, [priority as i64], |row| row.get(0)).unwrap()
    };
    let known = accounts(&writer, Priority::Known);
    assert!((1024..=1024 + 64).contains(&known), "{known}");
    let named = "SELECT count(*) FROM accounts WHERE name = 'cron.service'";
    assert_eq!(writer.connection.query_row(named, [], |row| row.get::<_, i64>(0)).unwrap(), 1);
    // The same when the file is opened again.
    writer.stop().unwrap();
    let (mut writer, _) = resume(dir.path(), BOOT);
    put(&mut writer, &deletion(4000, Priority::Known, "one more"));
    writer.commit().unwrap();
    assert!(accounts(&writer, Priority::Known) <= 1024 + 64);
}
