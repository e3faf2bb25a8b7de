//! Answers queries, with or without a running daemon: conditions enter, JSON leaves as it was emitted. No part of a
//! query becomes part of an SQL statement.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use kevtmon_event::Event;
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, MAIN_DB, OpenFlags, OptionalExtension as _, Statement, params_from_iter};

use super::lookup::{self, ALL, Range};
use super::open::{self, BUSY, VFS, with_suffix};
use super::schema::{self, VERSION};
use super::{FILE, StoreError, failed, time};
use crate::query::filter::{EventFilter, IncidentFilter, Order, Position};
use crate::query::history::{Extent, Found, IncidentView, Page};
use crate::query::record::{Record, timestamp};

/// Pages kept in memory, in KiB.
const CACHE_KIB: i64 = 2048;
/// What would end the path of a `file:` URI, or be decoded in it.
const URI_PATH: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b'?').add(b'#');
/// Ranges of keys that are merged; SQLite merges at most 500.
const MOST_RANGES: usize = 400;

/// Reads the store, while it is written to or not.
pub struct Reader {
    connection: Connection,
    path: PathBuf,
    /// The files as they were when they were opened.
    opened: Files,
}

/// Inode, length and last change of a file and its log, where they are there.
type Files = [Option<[i64; 4]>; 2];

impl Reader {
    /// Opens the store in this state directory, which nobody but this process writes to.
    /// Errors: when there is none, it cannot be read, or it was written by another version of the program.
    pub fn open_read_only(directory: &Path) -> Result<Self, StoreError> {
        Self::find(directory, |path| connect(path).or_else(|error| connect_alone(path).map_err(|_| error)))
    }

    /// Opens it as another process than the daemon, if there is one: the view of the files stays as it is.
    pub fn open_beside_daemon(directory: &Path) -> Result<Self, StoreError> {
        let _held = share(directory)?;
        Self::find(directory, connect_alone)
    }

    fn find(
        directory: &Path,
        connect: impl Fn(&Path) -> rusqlite::Result<Connection>,
    ) -> Result<Self, StoreError> {
        let path = directory.join(FILE);
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(StoreError::Missing { directory: directory.to_owned() });
            }
            Err(source) => return Err(StoreError::File { path, source }),
            Ok(_) => {}
        }
        let opened = files(&path);
        let connection = connect(&path).map_err(failed("open"))?;
        match schema::version(&connection).map_err(failed("open"))? {
            // It has no tables yet.
            0 | VERSION => Ok(Self { connection, path, opened }),
            found => Err(StoreError::OtherVersion { path, found }),
        }
    }

    /// Has a daemon leave the file and its log as they are until what is returned is dropped, and opens them again if they are
    /// not as they were.
    /// Errors: when the directory cannot be locked, or the file not be opened.
    pub fn hold(&mut self, directory: &Path) -> Result<File, StoreError> {
        let held = share(directory)?;
        if files(&self.path) != self.opened {
            *self = Self::open_beside_daemon(directory)?;
        }
        Ok(held)
    }

    /// Starts one snapshot of the file for all following queries, until the reader is dropped.
    pub fn begin_snapshot(&self) -> Result<(), StoreError> {
        // A deferred transaction sees the file as it is at its first read.
        self.connection
            .execute_batch("BEGIN DEFERRED; SELECT count(*) FROM sqlite_schema")
            .map_err(failed("read"))
    }

    /// Reads from one view of the file: what is deleted meanwhile is still visible.
    fn view<T>(&self, read: impl FnOnce() -> rusqlite::Result<T>) -> Result<T, StoreError> {
        let view = self.connection.is_autocommit().then(|| self.connection.unchecked_transaction());
        view.transpose().and_then(|_view| read()).map_err(failed("read"))
    }

    /// The events that meet every condition, a page of them.
    pub fn events(&self, filter: &EventFilter) -> Result<Page, StoreError> {
        let found =
            self.view(|| if filter.seqs.is_empty() { self.search(filter) } else { self.numbered(filter) });
        Ok(Page::cut(found?, filter))
    }

    fn search(&self, filter: &EventFilter) -> rusqlite::Result<Vec<Found>> {
        let (classes, has_all) = self.classes(filter)?;
        let mut groups: Vec<Vec<Range>> =
            filter.container.iter().chain(&filter.pod).map(|lookup| vec![lookup::range(lookup)]).collect();
        if !filter.about.is_empty() {
            groups.push(filter.about.iter().map(lookup::range).collect());
        }
        let mut is_rough = groups.iter().flatten().any(|range| range.is_rough);
        // The first leads, and each event is tried on the others: a container is seldom busier than its pod.
        let mut lead = match groups.is_empty() {
            false => groups.remove(0),
            true if has_all => vec![Range::single(ALL)],
            true => classes.iter().copied().map(Range::single).collect(),
        };
        if lead.len() > MOST_RANGES {
            (lead, is_rough) = (vec![Range::single(ALL)], true);
        }
        let mut found = Vec::new();
        if lead.is_empty() {
            return Ok(found);
        }
        let mut merged = self.connection.prepare_cached(&merge(&lead, filter.order))?;
        let mut rows = merged.query(params_from_iter(bounds(&lead, filter)))?;
        let (mut select, mut last) = (self.select()?, None);
        while found.len() <= filter.limit
            && let Some(row) = rows.next()?
        {
            let (id, class) = (row.get(1)?, row.get(2)?);
            // An event can stand under several of the keys.
            if last.replace(id) != Some(id) && classes.contains(&class) {
                found.extend(read(&mut select, id, filter, &groups, is_rough)?);
            }
        }
        Ok(found)
    }

    /// Events by their numbers, as an incident lists its evidence.
    fn numbered(&self, filter: &EventFilter) -> rusqlite::Result<Vec<Found>> {
        let mut select = self.select()?;
        let mut found = Vec::new();
        for id in self.ids(&filter.seqs, filter.boot_id.as_deref())? {
            found.extend(read(&mut select, id, filter, &[], true)?);
        }
        Ok(found)
    }

    /// The numbers of all events of a boot between two numbers, without these.
    pub fn numbers(&self, boot_id: &str, after: u64, before: u64) -> Result<BTreeSet<u64>, StoreError> {
        self.view(|| {
            // Another boot can have an event in this range of ids, but not under the number that belongs to it.
            let mut select = self.connection.prepare_cached(
                "SELECT seq FROM events WHERE id > ?1 + ?2 AND id < ?1 + ?3 AND seq = id - ?1",
            )?;
            let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX / 2);
            let mut numbers = BTreeSet::new();
            for base in self.bases(Some(boot_id))? {
                let mut rows = select.query([base, number(after), number(before)])?;
                while let Some(row) = rows.next()? {
                    numbers.insert(row.get::<_, i64>(0)?.try_into().unwrap_or(0));
                }
            }
            Ok(numbers)
        })
    }

    /// Where events with these numbers stand, if they are there.
    fn ids(&self, seqs: &[u64], boot_id: Option<&str>) -> rusqlite::Result<BTreeSet<i64>> {
        let bases = self.bases(boot_id)?;
        let seqs = seqs.iter().filter_map(|seq| i64::try_from(*seq).ok());
        Ok(seqs.flat_map(|seq| bases.iter().map(move |base| base.saturating_add(seq))).collect())
    }

    /// What is added to the numbers of a boot.
    fn bases(&self, boot_id: Option<&str>) -> rusqlite::Result<Vec<i64>> {
        let mut runs = self
            .connection
            .prepare_cached("SELECT DISTINCT base FROM runs WHERE boot_id = ?1 OR ?1 IS NULL")?;
        runs.query_map([boot_id], |row| row.get(0))?.collect()
    }

    fn select(&self) -> rusqlite::Result<rusqlite::CachedStatement<'_>> {
        self.connection.prepare_cached("SELECT time, seq, names, json FROM events WHERE id = ?1")
    }

    /// Classes that are wanted, and whether all are.
    fn classes(&self, filter: &EventFilter) -> rusqlite::Result<(BTreeSet<i64>, bool)> {
        let least = filter.severity.map_or(0, |severity| severity as i64);
        let mut select = self.connection.prepare_cached("SELECT class, kind, severity FROM classes")?;
        let (mut classes, mut has_all) = (BTreeSet::new(), true);
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            let is_wanted = row.get::<_, i64>(2)? >= least && filter.wants_kind(row.get_ref(1)?.as_str()?);
            has_all &= is_wanted;
            if is_wanted {
                classes.insert(row.get(0)?);
            }
        }
        Ok((classes, has_all))
    }

    /// The newest state of each incident, the oldest first.
    pub fn incidents(&self, filter: &IncidentFilter) -> Result<Vec<IncidentView>, StoreError> {
        let rows = self.view(|| self.incident_rows(filter))?;
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
    pub fn extent(&self) -> Result<Extent, StoreError> {
        let event = |statement: &str| -> rusqlite::Result<Option<Event>> {
            let json: Option<String> =
                self.connection.query_row(statement, [], |row| row.get(0)).optional()?;
            Ok(json.and_then(|json| Record::read(json).ok()).map(|record| record.event))
        };
        let (newest, oldest) = self.view(|| {
            let newest = event("SELECT json FROM events ORDER BY id DESC LIMIT 1")?;
            Ok((newest, event("SELECT json FROM events ORDER BY id LIMIT 1")?))
        })?;
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

/// The statement for what stands under these keys between two times, in the order of pages.
fn merge(ranges: &[Range], order: Order) -> String {
    let one = |range: &Range| match range.first == range.last {
        true => "SELECT time, id, class FROM lookup WHERE key = ? AND time BETWEEN ? AND ?",
        false => "SELECT time, id, class FROM lookup WHERE key BETWEEN ? AND ? AND time BETWEEN ? AND ?",
    };
    let all: Vec<&str> = ranges.iter().map(one).collect();
    let order = match order {
        Order::Newest => " ORDER BY time DESC, id DESC",
        Order::Oldest => " ORDER BY time, id",
    };
    all.join(" UNION ALL ") + order
}

fn bounds(ranges: &[Range], filter: &EventFilter) -> Vec<i64> {
    let cursor = |order| filter.cursor.filter(|_| filter.order == order).map(|cursor| cursor.time);
    let since = filter.since.into_iter().chain(cursor(Order::Oldest)).map(time::of).max();
    let until = filter.until.into_iter().chain(cursor(Order::Newest)).map(time::of).min();
    let (since, until) = (since.unwrap_or(i64::MIN), until.unwrap_or(i64::MAX));
    let one = |range: &Range| match range.first == range.last {
        true => vec![range.first, since, until],
        false => vec![range.first, range.last, since, until],
    };
    ranges.iter().flat_map(one).collect()
}

/// The event, if it is there and wanted.
fn read(
    select: &mut Statement<'_>,
    id: i64,
    filter: &EventFilter,
    groups: &[Vec<Range>],
    is_rough: bool,
) -> rusqlite::Result<Option<Found>> {
    let mut rows = select.query([id])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let names = row.get_ref(2)?.as_blob()?;
    let stands_in = |ranges: &Vec<Range>| {
        let mut names = [ALL].into_iter().chain(lookup::from_bytes(names));
        names.any(|name| ranges.iter().any(|range| range.contains(name)))
    };
    let json = row.get_ref(3)?.as_str()?;
    let Ok(time) = Timestamp::from_nanosecond(i128::from(row.get::<_, i64>(0)?)) else { return Ok(None) };
    let position = Position { time, seq: u64::try_from(row.get::<_, i64>(1)?).unwrap_or(0) };
    let is_wanted = filter.wants_position(position)
        && groups.iter().all(stands_in)
        && filter.may_match(json)
        && filter.boot_id.as_ref().is_none_or(|boot| json.contains(&format!("\"boot_id\":\"{boot}\"")))
        && (!is_rough || Record::read(json).is_ok_and(|record| filter.matches(&record)));
    Ok(is_wanted.then(|| Found { position, line: json.into() }))
}

/// Opens the file beside the writer of this process, if there is one, with which it shares the index of the log.
fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags_and_vfs(path, flags, VFS)?;
    // Such a connection would map the index.
    if connection.is_readonly(MAIN_DB)? {
        return connect_alone(path);
    }
    set_up(connection)
}

/// Opens the file without locks, and with an index of the log of its own.
fn connect_alone(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if !with_suffix(path, "-wal").exists() {
        let path = percent_encode(path.as_os_str().as_bytes(), URI_PATH);
        let uri = PathBuf::from(format!("file:{path}?immutable=1"));
        return set_up(Connection::open_with_flags(uri, flags | OpenFlags::SQLITE_OPEN_URI)?);
    }
    let connection = Connection::open_with_flags_and_vfs(path, flags, "unix-none")?;
    connection.pragma_update_and_check(None, "locking_mode", "EXCLUSIVE", |_row| Ok(()))?;
    set_up(connection)
}

fn set_up(connection: Connection) -> rusqlite::Result<Connection> {
    // Without locks it takes itself for the last connection, and would remove a log of which all is copied.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.busy_timeout(BUSY)?;
    connection.set_prepared_statement_cache_capacity(open::STATEMENTS);
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    connection.pragma_update(None, "query_only", true)?;
    // Reads the log, too, so that errors occur now.
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_row| Ok(()))?;
    Ok(connection)
}

/// Keeps a daemon from copying the log into the file.
fn share(directory: &Path) -> Result<File, StoreError> {
    let share = || {
        let held = File::open(directory)?;
        held.lock_shared().map(|()| held)
    };
    share().map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => StoreError::Missing { directory: directory.to_owned() },
        _ => StoreError::File { path: directory.to_owned(), source },
    })
}

fn files(path: &Path) -> Files {
    [path.to_owned(), with_suffix(path, "-wal")].map(|path| {
        let file = fs::metadata(path).ok()?;
        Some([file.ino(), file.len()].map(u64::cast_signed))
            .map(|[inode, bytes]| [inode, bytes, file.mtime(), file.mtime_nsec()])
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn a_reader_beside_the_daemon_leaves_a_log_alone_that_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let daemon = Connection::open_with_flags_and_vfs(&path, OpenFlags::default(), VFS).unwrap();
        daemon.pragma_update_and_check(None, "journal_mode", "WAL", |_row| Ok(())).unwrap();
        daemon.pragma_update(None, "user_version", VERSION).unwrap();
        daemon.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_row| Ok(())).unwrap();
        let log = with_suffix(&path, "-wal");
        assert_eq!(fs::metadata(&log).unwrap().len(), 0);
        let reader = Reader::open_beside_daemon(dir.path()).unwrap();
        drop(reader);
        assert!(log.exists());
    }

    #[test]
    fn any_path_can_be_opened_without_a_log() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(OsStr::from_bytes(b"a b%41?c#\xff.db"));
        let created = Connection::open(&path).unwrap();
        created.pragma_update(None, "user_version", VERSION).unwrap();
        created.close().unwrap();
        let connection = connect_alone(&path).unwrap();
        assert_eq!(schema::version(&connection).unwrap(), VERSION);
        assert!(connect_alone(&dir.path().join("a bAc")).is_err());
    }
}
