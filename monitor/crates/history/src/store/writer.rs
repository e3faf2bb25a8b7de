//! The only writer: events enter, rows leave in transactions that the caller commits.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use kevtmon_event::{Event, Incident, Severity};
use kevtmon_types::clock::boot_now;
use kevtmon_types::escape::{append_json, to_json};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::accounts::Accounts;
use super::in_place::InPlace;
use super::index::Waiting;
use super::open::{self, Quarantined};
use super::pods::Written;
use super::retention::Progress;
use super::runs::PreviousRun;
use super::{FILE, Limits, StoreError, failed, lookup, shared_index, time, truncation};

/// Writes to the store; there is only one at a time.
pub struct Writer {
    pub(super) connection: Connection,
    pub(super) path: PathBuf,
    _lock: File,
    pub(super) in_place: InPlace,
    pub(super) limits: Limits,
    pub(super) boot_id: String,
    kinds: HashMap<String, i64>,
    pub(super) accounts: Accounts,
    pub(super) progress: Progress,
    pub(super) pods: Written,
    pub(super) run: i64,
    /// Added to an event's number it gives its id.
    pub(super) base: i64,
    pub(super) last_seq: u64,
    /// Newest time of any event.
    pub(super) high: i64,
    /// How far, at most, an event's time was behind `high`.
    pub(super) lag: i64,
    /// Newest id that is in the index.
    pub(super) indexed: i64,
    pub(super) waiting: Waiting,
    in_transaction: bool,
    /// Text of events in this transaction, in bytes.
    pending_bytes: u64,
    pub(super) untrimmed_bytes: u64,
    pub(super) next_prune: i64,
    json: Vec<u8>,
    /// What the event stands under.
    numbers: Vec<i64>,
    /// The same as bytes.
    keys: Vec<u8>,
}

impl Writer {
    /// Opens or creates the store. The first attempt of a daemon resumes from the previous run.
    ///
    /// # Errors
    /// When there is no usable directory or file, or another daemon uses it.
    pub fn resume(
        directory: &Path,
        limits: Limits,
        boot_id: &str,
    ) -> Result<(Self, PreviousRun, Vec<Quarantined>), StoreError> {
        Self::start(directory, limits, boot_id, Self::take_over)
    }

    /// Opens or creates the store and begins a run. What shows to be damaged then is quarantined.
    fn start<T>(
        directory: &Path,
        limits: Limits,
        boot_id: &str,
        begin: impl Fn(&mut Self) -> Result<T, StoreError>,
    ) -> Result<(Self, T, Vec<Quarantined>), StoreError> {
        let begin = |writer: &mut Self| {
            writer.accounts = Accounts::read(&writer.connection).map_err(failed("open"))?;
            begin(writer)
        };
        let (mut writer, mut quarantined) = Self::open(directory, limits, boot_id)?;
        let begun = match begin(&mut writer) {
            Err(error) if error.is_damage() => {
                quarantined.push(writer.quarantine(&error)?);
                let (fresh, more) = Self::open(directory, limits, boot_id)?;
                quarantined.extend(more);
                writer = fresh;
                begin(&mut writer)?
            }
            begun => begun?,
        };
        Ok((writer, begun, quarantined))
    }

    fn take_over(&mut self) -> Result<PreviousRun, StoreError> {
        let previous = self.previous()?;
        // A process that is killed breaks no file; a power failure can, on a disk that acknowledges writes too early.
        if previous.as_ref().is_some_and(|previous| !previous.ended && previous.boot_id != self.boot_id) {
            self.check()?;
        }
        let (previous_run, previous) = (self.previous_run(previous.as_ref())?, previous.as_ref());
        self.begin_run(previous, previous_run.last_seq + 1)?;
        let boot_id = self.boot_id.clone();
        self.expire_incidents(previous, |event| event.boot_id == boot_id)?;
        Ok(previous_run)
    }

    /// Opens or creates the store for a daemon that is running already, whose next event has this number. Open
    /// incidents that the daemon does not know are closed.
    ///
    /// # Errors
    /// When there is no usable directory or file, or another daemon uses it.
    pub fn reopen(
        directory: &Path,
        limits: Limits,
        boot_id: &str,
        next_seq: u64,
        is_open: impl Fn(&Incident) -> bool,
    ) -> Result<(Self, Vec<Quarantined>), StoreError> {
        // Else it would go on with what is left of the index.
        let alone = truncation::has_happened().then(shared_index::without_readers);
        if let Some(None) = alone {
            return Err(StoreError::Truncated { path: open::with_suffix(&directory.join(FILE), "-shm") });
        }
        let (writer, (), quarantined) = Self::start(directory, limits, boot_id, |writer| {
            // What was copied before the loss was seen may be nonsense.
            if truncation::has_happened() {
                writer.check()?;
            }
            let previous = writer.previous()?;
            writer.begin_run(previous.as_ref(), next_seq)?;
            writer.expire_incidents(previous.as_ref(), |event| {
                event.incident.as_ref().is_some_and(|incident| is_open(incident))
            })
        })?;
        Ok((writer, quarantined))
    }

    fn open(directory: &Path, limits: Limits, boot_id: &str) -> Result<(Self, Vec<Quarantined>), StoreError> {
        let replaced = truncation::replaced();
        let opened = open::open(directory, limits)?;
        let writer = Self {
            in_place: InPlace::new(&opened.path, replaced)?,
            accounts: Accounts::default(),
            progress: Progress::default(),
            connection: opened.connection,
            path: opened.path,
            _lock: opened.lock,
            limits,
            boot_id: boot_id.to_owned(),
            kinds: HashMap::new(),
            pods: Written::default(),
            run: 0,
            base: 0,
            last_seq: 0,
            high: 0,
            lag: 0,
            indexed: 0,
            waiting: Waiting::default(),
            in_transaction: false,
            pending_bytes: 0,
            untrimmed_bytes: 0,
            next_prune: 0,
            json: Vec::new(),
            numbers: Vec::new(),
            keys: Vec::new(),
        };
        Ok((writer, opened.quarantined))
    }

    /// Reads the whole file, as after a power failure.
    fn check(&self) -> Result<(), StoreError> {
        let result: String = self
            .connection
            .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
            .map_err(failed("check"))?;
        match result.as_str() {
            "ok" => Ok(()),
            _ => Err(StoreError::Damaged { path: self.path.clone(), what: result }),
        }
    }

    /// Takes an event into the transaction, which begins with the first one.
    ///
    /// # Errors
    /// When it cannot be written; then the transaction is lost, and the caller drops the writer.
    pub fn insert(&mut self, event: &Event) -> Result<(), StoreError> {
        self.begin()?;
        let mut json = std::mem::take(&mut self.json);
        json.clear();
        let done = match append_json(&mut json, event) {
            Ok(()) => self.insert_line(event, std::str::from_utf8(&json).unwrap_or_default()),
            // Serializing an event cannot fail: the schema has no maps with keys other than strings.
            Err(_) => Ok(()),
        };
        self.json = json;
        done
    }

    /// The same for an event that is serialized already.
    ///
    /// # Errors
    /// As [`Self::insert`].
    pub fn insert_line(&mut self, event: &Event, json: &str) -> Result<(), StoreError> {
        self.begin()?;
        let time = time::nanos(&event.time);
        self.high = self.high.max(time);
        self.lag = self.lag.max(self.high - time);
        let id = self.id(event.seq);
        if id <= self.indexed {
            return Ok(());
        }
        self.index_if_due(self.high).map_err(failed("write"))?;
        let class = class(self.kind(event.kind.name())?, event.severity);
        let account = self.accounts.id(&self.connection, &event.charge).map_err(failed("write"))?;
        lookup::numbers(event, &mut self.numbers);
        self.keys.clear();
        self.keys.extend(self.numbers.iter().flat_map(|key| key.to_le_bytes()));
        let added = self
            .connection
            .prepare_cached(
                "INSERT OR IGNORE INTO events (id, seq, time, high, class, keys, json, account)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )
            .and_then(|mut put| {
                put.execute(params![id, id - self.base, time, self.high, class, self.keys, json, account])
            })
            .map_err(failed("write"))?;
        if added == 0 {
            return Ok(());
        }
        let bytes = u64::try_from(json.len() + 2 * self.keys.len()).unwrap_or(u64::MAX);
        self.wait(self.high, bytes);
        if let Some(incident) = &event.incident {
            self.put_incident(event, incident, json)?;
            self.put_evidence(incident)?;
        }
        self.note_pods(event, self.high)?;
        self.last_seq = self.last_seq.max(event.seq);
        self.pending_bytes += bytes;
        self.untrimmed_bytes += bytes;
        self.trim_if_due()
    }

    /// Writes an incident whose events are not in the store: they arrived while it was down.
    ///
    /// # Errors
    /// When it cannot be written; then the transaction is lost, and the caller drops the writer.
    pub fn restore_incident(&mut self, event: &Event) -> Result<(), StoreError> {
        self.begin()?;
        let json = to_json(event).unwrap_or_default();
        let Some(incident) = &event.incident else { return Ok(()) };
        self.put_incident(event, incident, &json)?;
        self.put_evidence(incident)
    }

    /// The id of an event of this run or, where numbers went on, of an earlier one.
    pub(super) fn id(&self, seq: u64) -> i64 {
        self.base.saturating_add(i64::try_from(seq).unwrap_or(i64::MAX))
    }

    /// Whether the transaction is as big as one may be.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.pending_bytes >= self.limits.transaction_bytes()
    }

    /// Commits the transaction, and records that the daemon is alive. What was inserted then survives the end of this
    /// process.
    ///
    /// # Errors
    /// When it cannot be written; then the transaction is lost, and the caller drops the writer.
    pub fn commit(&mut self) -> Result<(), StoreError> {
        self.end(false)
    }

    /// The last commit of a daemon that stops cleanly.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn stop(mut self) -> Result<(), StoreError> {
        self.end(true)?;
        self.in_place.check_index()?;
        // The last connection copies the log into the file and removes it.
        self.connection
            .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)
            .map_err(failed("close"))?;
        self.connection.close().map_err(|(_connection, source)| StoreError::Failed { op: "close", source })
    }

    fn end(&mut self, ended: bool) -> Result<(), StoreError> {
        self.begin()?;
        if ended {
            self.index().map_err(failed("write"))?;
        }
        self.retain()?;
        let boot = i64::try_from(boot_now()).unwrap_or(i64::MAX);
        let last_seq = i64::try_from(self.last_seq).unwrap_or(i64::MAX);
        self.connection
            .prepare_cached(
                "UPDATE runs SET last_seq = ?2, alive = ?3, alive_boot = ?4, ended = ?5 WHERE run = ?1",
            )
            .and_then(|mut put| put.execute(params![self.run, last_seq, time::now(), boot, ended]))
            .map_err(failed("write"))?;
        self.connection
            .prepare_cached("UPDATE meta SET value = ?1 WHERE name = 'lag' AND value <> ?1")
            .and_then(|mut put| put.execute([self.lag]))
            .map_err(failed("write"))?;
        self.in_place.check_index()?;
        self.connection.execute_batch("COMMIT").map_err(failed("commit"))?;
        self.in_transaction = false;
        self.pending_bytes = 0;
        Ok(())
    }

    pub(super) fn begin(&mut self) -> Result<(), StoreError> {
        if !self.in_transaction {
            self.in_place.check_index()?;
            self.connection.execute_batch("BEGIN IMMEDIATE").map_err(failed("write"))?;
            self.in_transaction = true;
        }
        Ok(())
    }

    /// Bytes on disk.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        open::bytes(&self.path)
    }

    /// Checks that what is written can be found.
    ///
    /// # Errors
    /// When another file, or none, is at the path of the file or of its log.
    pub fn check_in_place(&mut self) -> Result<(), StoreError> {
        self.in_place.check()
    }

    /// Renames the file because of this damage, so that the next attempt creates a new one.
    ///
    /// # Errors
    /// When it cannot be moved.
    pub fn quarantine(self, why: &StoreError) -> Result<Quarantined, StoreError> {
        let Self { connection, path, _lock: lock, .. } = self;
        drop(connection);
        let quarantined = open::quarantine(&path, why);
        drop(lock);
        quarantined
    }

    /// The number of a kind in this file.
    fn kind(&mut self, name: &str) -> Result<i64, StoreError> {
        if let Some(kind) = self.kinds.get(name) {
            return Ok(*kind);
        }
        let find = || {
            self.connection
                .query_row("SELECT kind FROM kinds WHERE name = ?1", [name], |row| row.get(0))
                .optional()
        };
        let kind = match find().map_err(failed("write"))? {
            Some(kind) => kind,
            None => {
                self.connection
                    .execute("INSERT INTO kinds (name) VALUES (?1)", [name])
                    .map_err(failed("write"))?;
                self.connection.last_insert_rowid()
            }
        };
        self.kinds.insert(name.to_owned(), kind);
        Ok(kind)
    }
}

/// Kind and severity in one number.
pub(super) fn class(kind: i64, severity: Severity) -> i64 {
    kind * 8 + severity as i64
}
