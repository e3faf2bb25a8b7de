//! The only writer: events enter, rows leave in transactions that the caller commits.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use kevtmon_event::{Event, Incident};
use kevtmon_observation::BootNs;
use kevtmon_types::clock::boot_now;
use kevtmon_types::escape::to_json;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::accounts::Accounts;
use super::in_place::InPlace;
use super::open::{self, Opened, Quarantined, with_suffix};
use super::pods::Written;
use super::retention::Place;
use super::runs::PreviousRun;
use super::{Limits, StoreError, failed, lookup, time};

/// What stands in `lookup`: key, time, id and class.
pub(super) type Entry = (i64, i64, i64, i64);

/// What a key of an event takes in its row and in `lookup`, whose pages are two thirds full.
const KEY_BYTES: i64 = 48;

/// State of the log after a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Log {
    /// It is short enough to wait.
    Short,
    /// It was copied and starts over.
    Copied,
    /// A reader needs its pages.
    Held,
}

/// Writes to the store; there is only one at a time.
pub struct Writer {
    pub(super) connection: Connection,
    opened: Opened,
    in_place: InPlace,
    pub(super) limits: Limits,
    pub(super) boot_id: String,
    /// By kind and severity.
    classes: HashMap<(&'static str, i64), i64>,
    pub(super) accounts: Accounts,
    /// How far the events under a key were looked at for what can be removed.
    pub(super) seen: BTreeMap<i64, Place>,
    pub(super) pods: Written,
    pub(super) run: i64,
    /// Added to an event's number it gives its id.
    pub(super) base: i64,
    pub(super) last_seq: u64,
    /// Of events of this transaction: sorted, they change each page of the index once.
    entries: Vec<Entry>,
    in_transaction: bool,
    /// What the events of this transaction take.
    pending_bytes: u64,
    pub(super) untrimmed_bytes: u64,
    /// On the boot clock.
    pub(super) next_prune: BootNs,
}

impl Writer {
    /// Opens or creates the store. The first attempt of a daemon resumes from the previous run.
    /// Errors: when there is no usable directory or file, or another daemon uses it.
    pub fn resume(
        directory: &Path,
        limits: Limits,
        boot_id: &str,
    ) -> Result<(Self, PreviousRun, Vec<Quarantined>), StoreError> {
        Self::start(directory, limits, boot_id, |writer| {
            let previous = writer.previous().map_err(failed("open"))?;
            // A process that is killed breaks no file; a power failure can, on a disk that acknowledges writes too early.
            if previous.as_ref().is_some_and(|previous| !previous.ended && previous.boot_id != boot_id) {
                writer.check()?;
            }
            let mut take_over = || {
                let run = writer.previous_run(previous.as_ref())?;
                writer.begin_run(previous.as_ref(), run.last_seq + 1)?;
                writer.expire_incidents(previous.as_ref(), |event| event.boot_id == boot_id)?;
                Ok(run)
            };
            take_over().map_err(failed("open"))
        })
    }

    /// Opens or creates the store for a daemon that is running already, whose next event has this number. Open
    /// incidents that the daemon does not know are closed.
    /// Errors: when there is no usable directory or file, or another daemon uses it.
    pub fn reopen(
        directory: &Path,
        limits: Limits,
        boot_id: &str,
        next_seq: u64,
        is_open: impl Fn(&Incident) -> bool,
    ) -> Result<(Self, Vec<Quarantined>), StoreError> {
        let stays = |event: &Event| event.incident.as_ref().is_some_and(|incident| is_open(incident));
        let (writer, (), quarantined) = Self::start(directory, limits, boot_id, |writer| {
            let mut begin = || {
                let previous = writer.previous()?;
                writer.begin_run(previous.as_ref(), next_seq)?;
                writer.expire_incidents(previous.as_ref(), stays)
            };
            begin().map_err(failed("open"))
        })?;
        Ok((writer, quarantined))
    }

    /// Opens or creates the store and begins a run. What shows to be damaged then is quarantined.
    fn start<T>(
        directory: &Path,
        limits: Limits,
        boot_id: &str,
        begin: impl Fn(&mut Self) -> Result<T, StoreError>,
    ) -> Result<(Self, T, Vec<Quarantined>), StoreError> {
        let (mut writer, mut quarantined) = Self::open(directory, limits, boot_id)?;
        let begun = match begin(&mut writer) {
            Err(error) if error.is_damage() => {
                quarantined.extend(writer.quarantine(&error)?);
                let (fresh, more) = Self::open(directory, limits, boot_id)?;
                quarantined.extend(more);
                writer = fresh;
                begin(&mut writer)?
            }
            begun => begun?,
        };
        writer.in_place.note();
        Ok((writer, begun, quarantined))
    }

    fn open(directory: &Path, limits: Limits, boot_id: &str) -> Result<(Self, Vec<Quarantined>), StoreError> {
        let (connection, opened, quarantined) = open::open(directory, limits)?;
        let writer = Self {
            in_place: InPlace::new(&opened.path),
            connection,
            opened,
            limits,
            boot_id: boot_id.to_owned(),
            classes: HashMap::new(),
            accounts: Accounts::default(),
            seen: BTreeMap::new(),
            pods: Written::default(),
            run: 0,
            base: 0,
            last_seq: 0,
            entries: Vec::new(),
            in_transaction: false,
            pending_bytes: 0,
            untrimmed_bytes: 0,
            next_prune: 0,
        };
        Ok((writer, quarantined))
    }

    /// Reads the whole file, as after a power failure.
    fn check(&self) -> Result<(), StoreError> {
        let result: String = self
            .connection
            .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
            .map_err(failed("check"))?;
        match result.as_str() {
            "ok" => Ok(()),
            _ => Err(open::damaged(&self.opened.path, &result)),
        }
    }

    /// Takes an event into the transaction, which begins with the first one.
    /// Errors: when it cannot be written; then the transaction is lost, and the caller drops the writer.
    pub fn insert(&mut self, event: &Event) -> Result<(), StoreError> {
        self.insert_line(event, &to_json(event).unwrap_or_default())
    }

    /// The same for an event that is serialized already.
    pub fn insert_line(&mut self, event: &Event, json: &str) -> Result<(), StoreError> {
        self.begin()?;
        self.put(event, json).map_err(failed("write"))?;
        self.trim_if_due()
    }

    fn put(&mut self, event: &Event, json: &str) -> rusqlite::Result<()> {
        let (id, time) = (self.id(event.seq), time::nanos(&event.time));
        let class = self.class(event)?;
        let account = self.accounts.id(&self.connection, &event.tenant)?;
        let names = lookup::names(event);
        let as_bytes = lookup::to_bytes(&names);
        let added = self
            .connection
            .prepare_cached(
                "INSERT OR IGNORE INTO events (id, seq, time, class, account, names, json)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            )?
            .execute(params![id, id - self.base, time, class, account, as_bytes, json])?;
        if added == 0 {
            return Ok(());
        }
        let keys = lookup::keys(class, account, names.into_iter());
        self.entries.extend(keys.map(|key| (key, time, id, class)));
        if let Some(incident) = &event.incident {
            self.put_incident(event, incident, json)?;
            self.put_evidence(incident)?;
        }
        self.note_pods(event, time)?;
        self.last_seq = self.last_seq.max(event.seq);
        let bytes = size(&as_bytes, i64::try_from(json.len()).unwrap_or(i64::MAX / 2));
        self.accounts.add(account, bytes);
        self.pending_bytes = self.pending_bytes.saturating_add_signed(bytes);
        self.untrimmed_bytes = self.untrimmed_bytes.saturating_add_signed(bytes);
        Ok(())
    }

    /// Writes what the events of this transaction are found by.
    pub(super) fn index(&mut self) -> rusqlite::Result<()> {
        self.entries.sort_unstable();
        let mut put = self
            .connection
            .prepare_cached("INSERT OR IGNORE INTO lookup (key, time, id, class) VALUES (?1, ?2, ?3, ?4)")?;
        for (key, time, id, class) in self.entries.drain(..) {
            put.execute([key, time, id, class])?;
        }
        Ok(())
    }

    /// Writes an incident whose events are not in the store: they arrived while it was down.
    /// Errors: when it cannot be written; then the transaction is lost, and the caller drops the writer.
    pub fn restore_incident(&mut self, event: &Event) -> Result<(), StoreError> {
        self.begin()?;
        let json = to_json(event).unwrap_or_default();
        let Some(incident) = &event.incident else { return Ok(()) };
        let put = self.put_incident(event, incident, &json);
        put.and_then(|()| self.put_evidence(incident)).map_err(failed("write"))
    }

    /// The id of an event of this run or, where numbers went on, of an earlier one.
    pub(super) fn id(&self, seq: u64) -> i64 {
        self.base.saturating_add(i64::try_from(seq).unwrap_or(i64::MAX))
    }

    /// Whether the transaction is as big as one may be.
    pub fn is_full(&self) -> bool {
        self.pending_bytes >= self.limits.transaction_bytes()
    }

    /// Commits the transaction, and records that the daemon is alive. What was inserted then survives the end of this
    /// process.
    /// Errors: when it cannot be written; then the transaction is lost, and the caller drops the writer.
    pub fn commit(&mut self) -> Result<(), StoreError> {
        self.end(false)
    }

    /// The last commit of a daemon that stops cleanly.
    pub fn stop(mut self) -> Result<(), StoreError> {
        self.end(true)?;
        let Self { connection, opened, .. } = self;
        // The last connection copies the log into the file and removes it.
        let stays = opened.directory.try_lock().is_err();
        connection
            .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, stays)
            .map_err(failed("close"))?;
        connection.close().map_err(|(_connection, source)| StoreError::Failed { op: "close", source })
    }

    fn end(&mut self, ended: bool) -> Result<(), StoreError> {
        self.begin()?;
        self.retain()?;
        self.note_alive(ended).map_err(failed("write"))?;
        self.in_place.check()?;
        self.connection.execute_batch("COMMIT").map_err(failed("commit"))?;
        self.in_place.note();
        self.in_transaction = false;
        self.pending_bytes = 0;
        Ok(())
    }

    fn note_alive(&mut self, ended: bool) -> rusqlite::Result<()> {
        self.accounts.write(&self.connection)?;
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let (last_seq, boot) = (number(self.last_seq), number(boot_now()));
        self.connection
            .prepare_cached(
                "UPDATE runs SET last_seq = ?2, alive = ?3, alive_boot = ?4, ended = ?5 WHERE run = ?1",
            )?
            .execute(params![self.run, last_seq, time::now(), boot, ended])
            .map(drop)
    }

    pub(super) fn begin(&mut self) -> Result<(), StoreError> {
        if !self.in_transaction {
            self.in_place.check()?;
            self.connection.execute_batch("BEGIN IMMEDIATE").map_err(failed("write"))?;
            self.in_transaction = true;
        }
        Ok(())
    }

    /// Copies the log into the file if it is long: the only time when the store waits for the disk. Called between
    /// transactions.
    pub fn checkpoint(&mut self) -> Result<Log, StoreError> {
        let log = with_suffix(&self.opened.path, "-wal");
        let bytes = fs::metadata(log).map_or(0, |log| log.len());
        if bytes < self.limits.checkpoint_bytes() {
            return Ok(Log::Short);
        }
        self.in_place.check()?;
        let is_copied =
            self.opened.directory.try_lock().is_ok() && self.copy().map_err(failed("checkpoint"))?;
        self.in_place.note();
        Ok(match is_copied {
            true => Log::Copied,
            false if bytes > self.limits.max_bytes / 8 => Log::Held,
            false => Log::Short,
        })
    }

    /// Where a query of this process holds the log, it goes on later, and nobody else may read until then: what is copied
    /// already can be overwritten in the log at any time.
    fn copy(&self) -> rusqlite::Result<bool> {
        let is_held: bool =
            self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
        if !is_held {
            // It goes with the process, too.
            let _ = self.opened.directory.unlock();
        }
        Ok(!is_held)
    }

    /// Frees memory that a storm needed.
    pub fn shrink_memory(&mut self) {
        self.entries.shrink_to_fit();
        // Best effort.
        let _ = self.connection.execute_batch("PRAGMA shrink_memory");
    }

    pub fn bytes(&self) -> u64 {
        open::bytes(&self.opened.path)
    }

    /// Checks that what is written can be found.
    /// Errors: when the file or its log was removed, replaced or truncated.
    pub fn check_in_place(&self) -> Result<(), StoreError> {
        self.in_place.check()
    }

    /// Renames what is left of the files because of this damage, so that the next attempt creates new ones.
    pub fn quarantine(self, why: &StoreError) -> Result<Option<Quarantined>, StoreError> {
        let Self { connection, opened, in_place, .. } = self;
        drop(connection);
        open::quarantine(&opened.path, &in_place.left(), why)
    }

    /// The number of the kind and severity of an event in this file.
    fn class(&mut self, event: &Event) -> rusqlite::Result<i64> {
        let key = (event.kind.name(), event.severity as i64);
        if let Some(class) = self.classes.get(&key) {
            return Ok(*class);
        }
        let find = "SELECT class FROM classes WHERE kind = ?1 AND severity = ?2";
        let class =
            match self.connection.query_row(find, params![key.0, key.1], |row| row.get(0)).optional()? {
                Some(class) => class,
                None => {
                    let put = "INSERT INTO classes (kind, severity) VALUES (?1, ?2)";
                    self.connection.execute(put, params![key.0, key.1])?;
                    self.connection.last_insert_rowid()
                }
            };
        self.classes.insert(key, class);
        Ok(class)
    }
}

/// What an event takes, by its names and the length of its JSON.
pub(super) fn size(names: &[u8], json: i64) -> i64 {
    json + i64::try_from(names.len() / 8 + 3).unwrap_or(0) * KEY_BYTES
}
