//! Answers queries, with or without a running daemon: conditions enter, JSON leaves as it was emitted. No part of a
//! query becomes part of an SQL statement.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, Statement, Transaction};
use serde::Deserialize;

use super::index;
use super::lookup::{self, ALL, Range};
use super::schema::{self, VERSION};
use super::shared_index;
use super::streams::{self, Streams, stands_under};
use super::{FILE, StoreError, failed, open, time};
use crate::query::filter::{EventFilter, IncidentFilter, Order, Position};
use crate::query::history::{Extent, Found, IncidentView, Page};
use crate::query::record::{Record, timestamp};

/// Pages kept in memory, in KiB.
const CACHE_KIB: i64 = 2048;
/// What would end the path of a `file:` URI, or be decoded in it.
const URI_PATH: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b'?').add(b'#');
const BUSY: Duration = Duration::from_millis(250);
/// Events read beyond a page to put those in order whose times are not.
const UNSORTED: usize = 4096;

/// Reads the store, while it is written to or not.
pub struct Reader {
    connection: Connection,
    /// Behind the connection, which is closed first.
    _open: shared_index::Open,
}

/// A row that may be wanted.
struct Candidate {
    high: i64,
    found: Option<Found>,
}

impl Reader {
    /// Opens the store in this state directory.
    ///
    /// # Errors
    /// When there is none, it cannot be read, or it was written by another version of the program.
    pub fn open_read_only(directory: &Path) -> Result<Self, StoreError> {
        let (mut other, is_open) = (None, shared_index::Open::new());
        for name in [FILE.to_owned(), open::beside_other()] {
            let path = directory.join(name);
            match std::fs::symlink_metadata(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(source) => return Err(StoreError::File { path, source }),
                Ok(_) => {}
            }
            match connect(&path).or_else(|error| connect_alone(&path).map_err(|_| error)) {
                // 0: it has no tables yet.
                Ok((_, found)) if ![0, VERSION].contains(&found) => {
                    other = Some(StoreError::OtherVersion { path, found, known: VERSION });
                }
                Ok((connection, _)) => return Ok(Self { connection, _open: is_open }),
                Err(source) => return Err(StoreError::Failed { op: "open", source }),
            }
        }
        Err(other.unwrap_or_else(|| StoreError::Missing { directory: directory.to_owned() }))
    }

    /// Starts one snapshot of the file for all following queries, until the reader is dropped.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn begin_snapshot(&self) -> Result<(), StoreError> {
        // A deferred transaction sees the file as it is at its first read.
        self.connection
            .execute_batch("BEGIN DEFERRED; SELECT count(*) FROM sqlite_schema")
            .map_err(failed("read"))
    }

    /// A snapshot of the file for one query: what is deleted meanwhile is still visible.
    fn view(&self) -> Result<Option<Transaction<'_>>, StoreError> {
        let begin = || self.connection.unchecked_transaction().map_err(failed("read"));
        self.connection.is_autocommit().then(begin).transpose()
    }

    /// The events that meet every condition, a page of them.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn events(&self, filter: &EventFilter) -> Result<Page, StoreError> {
        let view = self.view()?;
        let found = if filter.seqs.is_empty() { self.search(filter) } else { self.numbered(filter) };
        drop(view);
        Ok(Page::cut(found.map_err(failed("read"))?, filter))
    }

    fn search(&self, filter: &EventFilter) -> rusqlite::Result<Vec<Found>> {
        let kinds = self.kinds(filter)?;
        let least = filter.severity.map_or(0, |severity| severity as i64);
        let wanted = |class: i64| class & 7 >= least && kinds.contains(&(class / 8));
        let (first, last) = self.window(filter)?;
        let order = match filter.order {
            Order::Newest => streams::Order::Falling,
            Order::Oldest => streams::Order::Rising,
        };
        let all = || vec![Range { first: ALL, last: ALL, is_rough: false }];
        let mut groups: Vec<Vec<Range>> =
            filter.container.iter().chain(&filter.pod).map(|lookup| vec![lookup::range(lookup)]).collect();
        if !filter.about.is_empty() {
            groups.push(filter.about.iter().map(lookup::range).collect());
        }
        let is_rough = groups.iter().flatten().any(|range| range.is_rough);
        // The first leads, and each event is tried on the others: a container is seldom busier than its pod.
        let lead = if groups.is_empty() { all() } else { groups.remove(0) };

        let mut streams = Streams::new(&self.connection, &lead, wanted, (first, last), order)?;
        let mut select = self.select()?;
        let lag = self.lag()?;
        let mut answer = Answer::new(filter.order, filter.limit.saturating_add(1), lag);
        while !answer.is_complete()
            && let Some(id) = streams.next()?
        {
            if let Some(candidate) = read(&mut select, id, filter, &groups, is_rough)? {
                answer.take(candidate);
            }
        }
        Ok(answer.found)
    }

    /// Events by their numbers, as an incident lists its evidence.
    fn numbered(&self, filter: &EventFilter) -> rusqlite::Result<Vec<Found>> {
        let mut select = self.select()?;
        let mut found = Vec::new();
        for id in self.ids(&filter.seqs, filter.boot_id.as_deref())? {
            found.extend(read(&mut select, id, filter, &[], true)?.and_then(|candidate| candidate.found));
        }
        Ok(found)
    }

    /// The numbers of all events of a boot between two numbers, without these.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn numbers(&self, boot_id: &str, after: u64, before: u64) -> Result<BTreeSet<u64>, StoreError> {
        let view = self.view()?;
        let read = || {
            let mut runs =
                self.connection.prepare_cached("SELECT DISTINCT base FROM runs WHERE boot_id = ?1")?;
            let bases: Vec<i64> =
                runs.query_map([boot_id], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
            // Another boot can have an event in this range of ids, but not under the number that belongs to it.
            let mut select = self.connection.prepare_cached(
                "SELECT seq FROM events WHERE id > ?1 + ?2 AND id < ?1 + ?3 AND seq = id - ?1",
            )?;
            let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX / 2);
            let mut numbers = BTreeSet::new();
            for base in bases {
                let mut rows = select.query([base, number(after), number(before)])?;
                while let Some(row) = rows.next()? {
                    numbers.insert(row.get::<_, i64>(0)?.try_into().unwrap_or(0));
                }
            }
            Ok(numbers)
        };
        let numbers = read().map_err(failed("read"));
        drop(view);
        numbers
    }

    /// Where events with these numbers stand, if they are there.
    fn ids(&self, seqs: &[u64], boot_id: Option<&str>) -> rusqlite::Result<BTreeSet<i64>> {
        if seqs.is_empty() {
            return Ok(BTreeSet::new());
        }
        let mut runs = self
            .connection
            .prepare_cached("SELECT DISTINCT base FROM runs WHERE boot_id = ?1 OR ?1 IS NULL")?;
        let bases: Vec<i64> =
            runs.query_map([boot_id], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
        let seqs = seqs.iter().filter_map(|seq| i64::try_from(*seq).ok());
        Ok(seqs.flat_map(|seq| bases.iter().map(move |base| base.saturating_add(seq))).collect())
    }

    fn select(&self) -> rusqlite::Result<rusqlite::CachedStatement<'_>> {
        self.connection.prepare_cached("SELECT time, high, keys, json, seq FROM events WHERE id = ?1")
    }

    /// Numbers of the kinds that are wanted.
    fn kinds(&self, filter: &EventFilter) -> rusqlite::Result<BTreeSet<i64>> {
        let mut select = self.connection.prepare_cached("SELECT kind, name FROM kinds")?;
        let mut kinds = BTreeSet::new();
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            if filter.wants_kind(row.get_ref(1)?.as_str()?) {
                kinds.insert(row.get(0)?);
            }
        }
        Ok(kinds)
    }

    /// First and last id between which everything wanted lies.
    fn window(&self, filter: &EventFilter) -> rusqlite::Result<(i64, i64)> {
        let cursor = |order| filter.cursor.filter(|_| filter.order == order).map(|cursor| cursor.time);
        let since = filter.since.into_iter().chain(cursor(Order::Oldest)).map(time::of).max();
        let until = filter.until.into_iter().chain(cursor(Order::Newest)).map(time::of).min();
        let first = since.map_or(Ok(i64::MIN), |since| self.first_where(|high| high >= since))?;
        let Some(until) = until else { return Ok((first, i64::MAX)) };
        let beyond = until.saturating_add(self.lag()?);
        Ok((first, self.first_where(|high| high > beyond)?.saturating_sub(1)))
    }

    fn lag(&self) -> rusqlite::Result<i64> {
        self.connection.query_row("SELECT value FROM meta WHERE name = 'lag'", [], |row| row.get(0))
    }

    /// The first id whose `high` passes; it rises with the id. `i64::MAX` when none does.
    fn first_where(&self, passes: impl Fn(i64) -> bool) -> rusqlite::Result<i64> {
        // Both ends in one aggregate would read every row.
        let ends =
            "SELECT coalesce((SELECT min(id) FROM events), 0), coalesce((SELECT max(id) FROM events), -1)";
        let (mut low, mut end): (i64, i64) =
            self.connection.query_row(ends, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let mut probe = self
            .connection
            .prepare_cached("SELECT id, high FROM events WHERE id >= ?1 ORDER BY id LIMIT 1")?;
        let mut answer = i64::MAX;
        while low <= end {
            let middle = low + (end - low) / 2;
            let (id, high): (i64, i64) = probe.query_row([middle], |row| Ok((row.get(0)?, row.get(1)?)))?;
            if passes(high) {
                answer = id;
                end = middle - 1;
            } else {
                low = id + 1;
            }
        }
        Ok(answer)
    }

    /// The newest state of each incident, the oldest first.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn incidents(&self, filter: &IncidentFilter) -> Result<Vec<IncidentView>, StoreError> {
        // One view of the file, and one lock.
        let view = self.view()?;
        let rows = self.incident_rows(filter).map_err(failed("read"))?;
        drop(view);
        // What cannot be read was written by another version of the program.
        let views = rows.iter().filter_map(|json| IncidentView::read(json).ok().flatten());
        let mut views: Vec<IncidentView> = views.filter(|view| filter.wants(view)).collect();
        views.sort_by_cached_key(|view| (timestamp(&view.incident.opened), view.incident.id.clone()));
        Ok(views)
    }

    fn incident_rows(&self, filter: &IncidentFilter) -> rusqlite::Result<Vec<String>> {
        let rests = self.rest_on(filter)?;
        let ids = if filter.ids.is_empty() { &rests } else { &filter.ids };
        if let Some(prefix) = &filter.id_prefix {
            // Ids are hex digits, which come before a tilde.
            let mut select = self
                .connection
                .prepare_cached("SELECT json FROM incidents WHERE id >= ?1 AND id < ?1 || '~'")?;
            return select.query_map([prefix], |row| row.get(0))?.collect();
        }
        if filter.ids.is_empty() && filter.evidence.is_empty() {
            let since = filter.since.map_or(i64::MIN, time::of);
            // With all of them wanted, the index would only be a detour.
            let mut select = self.connection.prepare_cached(match filter.all {
                true => "SELECT json FROM incidents WHERE +last_seen >= ?1",
                false => "SELECT json FROM incidents WHERE open = 1 AND last_seen >= ?1",
            })?;
            return select.query_map([since], |row| row.get(0))?.collect();
        }
        let mut select = self.connection.prepare_cached("SELECT json FROM incidents WHERE id = ?1")?;
        let mut found = Vec::new();
        for id in ids {
            for json in select.query_map([id], |row| row.get(0))? {
                found.push(json?);
            }
        }
        Ok(found)
    }

    /// Ids of incidents that rest, or once rested, on the events that are named as evidence.
    fn rest_on(&self, filter: &IncidentFilter) -> rusqlite::Result<Vec<String>> {
        let mut select = self.connection.prepare_cached("SELECT incident FROM evidence WHERE event = ?1")?;
        let mut incidents = BTreeSet::new();
        for id in self.ids(&filter.evidence, filter.boot_id.as_deref())? {
            let mut rows = select.query([id])?;
            while let Some(row) = rows.next()? {
                incidents.insert(row.get(0)?);
            }
        }
        Ok(incidents.into_iter().collect())
    }

    /// How far it reaches.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn extent(&self) -> Result<Extent, StoreError> {
        let event = |statement: &str| {
            let json: Option<String> = self
                .connection
                .query_row(statement, [], |row| row.get(0))
                .optional()
                .map_err(failed("read"))?;
            Ok(json.and_then(|json| Record::read(json).ok()).map(|record| record.event))
        };
        let newest = event("SELECT json FROM events ORDER BY id DESC LIMIT 1")?;
        let oldest = event("SELECT json FROM events ORDER BY id LIMIT 1")?;
        let Some(newest) = newest else { return Ok(Extent::default()) };
        Ok(Extent {
            from: oldest.map(|event| event.time),
            to: Some(newest.time),
            last_seq: newest.seq,
            boot_id: newest.boot_id,
            node: newest.node,
        })
    }
}

/// The row, if it is there; with the event, if that is wanted.
fn read(
    select: &mut Statement<'_>,
    id: i64,
    filter: &EventFilter,
    groups: &[Vec<Range>],
    is_rough: bool,
) -> rusqlite::Result<Option<Candidate>> {
    let mut rows = select.query([id])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let (time, high): (i64, i64) = (row.get(0)?, row.get(1)?);
    let seq = u64::try_from(row.get::<_, i64>(4)?).unwrap_or(0);
    for ranges in groups {
        if !stands_under(index::keys(row, 2)?, ranges) {
            return Ok(Some(Candidate { high, found: None }));
        }
    }
    let json = row.get_ref(3)?.as_str()?;
    let found = Timestamp::from_nanosecond(i128::from(time)).ok().and_then(|time| {
        let is_late = filter.since.is_some_and(|since| time < since);
        if is_late || filter.until.is_some_and(|until| time >= until) || !filter.may_match(json) {
            return None;
        }
        let position = Position { time, seq };
        let is_wanted = filter.wants_position(position)
            && filter.boot_id.as_ref().is_none_or(|boot| is_of_boot(json, boot))
            && (!is_rough || Record::read(json).is_ok_and(|record| filter.matches(&record)));
        is_wanted.then(|| Found { position, line: json.into() })
    });
    Ok(Some(Candidate { high, found }))
}

fn is_of_boot(json: &str, boot: &str) -> bool {
    #[derive(Deserialize)]
    struct Boot<'a> {
        #[serde(borrow)]
        boot_id: Cow<'a, str>,
    }
    serde_json::from_str::<Boot<'_>>(json).is_ok_and(|event| event.boot_id == boot)
}

/// Collects events by id until no later one can belong among the first by time.
struct Answer {
    order: Order,
    enough: usize,
    lag: i64,
    found: Vec<Found>,
    /// The times of the first `enough` by time, the last of them on top.
    first: BinaryHeap<Reverse<i128>>,
    /// Read since there were enough.
    surplus: usize,
    is_complete: bool,
}

impl Answer {
    fn new(order: Order, enough: usize, lag: i64) -> Self {
        let (found, first) = (Vec::new(), BinaryHeap::new());
        Self { order, enough, lag, found, first, surplus: 0, is_complete: enough == 0 }
    }

    fn take(&mut self, Candidate { high, found }: Candidate) {
        if let Some(found) = found {
            self.first.push(Reverse(self.rank(found.position.time.as_nanosecond())));
            self.found.push(found);
        }
        if self.first.len() < self.enough {
            return;
        }
        if self.first.len() > self.enough {
            self.first.pop();
        }
        self.surplus += 1;
        // Older ids have no later time than `high`; newer ids have no earlier one than `high` less the lag.
        let bound = match self.order {
            Order::Newest => high,
            Order::Oldest => high.saturating_sub(self.lag),
        };
        let last = self.first.peek().map(|Reverse(rank)| *rank);
        self.is_complete =
            self.surplus > UNSORTED || last.is_some_and(|last| last >= self.rank(i128::from(bound)));
    }

    /// Higher is earlier in the answer.
    fn rank(&self, time: i128) -> i128 {
        match self.order {
            Order::Newest => time,
            Order::Oldest => -time,
        }
    }

    fn is_complete(&self) -> bool {
        self.is_complete
    }
}

fn flags() -> OpenFlags {
    OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX
}

/// Opens the file and reads its schema.
fn connect(path: &Path) -> rusqlite::Result<(Connection, u32)> {
    set_up(Connection::open_with_flags(path, flags())?)
}

/// A log needs an index beside it, which cannot be made on a read-only disk. But nothing writes there either:
/// without a log the file never changes, and with one its index may be in memory.
fn connect_alone(path: &Path) -> rusqlite::Result<(Connection, u32)> {
    if !open::with_suffix(path, "-wal").exists() {
        let path = percent_encode(path.as_os_str().as_bytes(), URI_PATH);
        let uri = PathBuf::from(format!("file:{path}?immutable=1"));
        return set_up(Connection::open_with_flags(uri, flags() | OpenFlags::SQLITE_OPEN_URI)?);
    }
    let connection = Connection::open_with_flags_and_vfs(path, flags(), "unix-none")?;
    connection.pragma_update_and_check(None, "locking_mode", "EXCLUSIVE", |_row| Ok(()))?;
    set_up(connection)
}

fn set_up(connection: Connection) -> rusqlite::Result<(Connection, u32)> {
    connection.busy_timeout(BUSY)?;
    connection.set_prepared_statement_cache_capacity(open::STATEMENTS);
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    connection.pragma_update(None, "query_only", true)?;
    // Reads the log, too, so that errors occur now.
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_row| Ok(()))?;
    let version = schema::version(&connection)?;
    Ok((connection, version))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn any_path_can_be_opened_without_a_log() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(OsStr::from_bytes(b"a b%41?c#\xff.db"));
        let created = Connection::open(&path).unwrap();
        created.pragma_update(None, "user_version", VERSION).unwrap();
        created.close().unwrap();
        let (_, version) = connect_alone(&path).unwrap();
        assert_eq!(version, VERSION);
        assert!(connect_alone(&dir.path().join("a bAc")).is_err());
    }
}
