//! The state left by the previous run of the daemon, and where this one starts.

use kevtmon_core::node::kept::Kept;
use kevtmon_core::node::pods::PodNames;
use kevtmon_event::Event;
use kevtmon_observation::BootNs;
use kevtmon_types::clock::boot_now;
use rusqlite::{OptionalExtension as _, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{StoreError, Writer, failed, time};

/// Numbers skipped after a run that did not stop cleanly: its last second of events is not in the store, but readers
/// have seen their numbers.
pub const RESERVE: u64 = 1 << 16;

/// State left by the previous run of this boot.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PreviousRun {
    /// Events of this run are numbered from here on, exclusively.
    pub last_seq: u64,
    /// When it was last alive; `None` if there was none in this boot.
    pub alive: Option<BootNs>,
    /// The newest event of each incident that it left open.
    pub incidents: Vec<Event>,
    /// The last episode of incidents that closed in this boot, the latest at the end.
    pub episodes: Vec<(String, u32)>,
    /// Names of pods that existed, or were gone for less than a day.
    pub pods: PodNames,
    /// What it kept besides.
    pub kept: Kept,
    /// The offset of its wall clock when it was last alive; 0 if there was none in this boot.
    pub realtime_offset_ns: i64,
}

/// The newest run in the file, of any boot.
pub(super) struct LastRun {
    pub(super) boot_id: String,
    base: i64,
    last_seq: u64,
    alive: i64,
    alive_boot: u64,
    pub(super) ended: bool,
}

impl Writer {
    pub(super) fn previous(&self) -> rusqlite::Result<Option<LastRun>> {
        self.connection
            .query_row(
                "SELECT boot_id, base, last_seq, alive, alive_boot, ended FROM runs ORDER BY run DESC LIMIT 1",
                [],
                |row| {
                    Ok(LastRun {
                        boot_id: row.get(0)?,
                        base: row.get(1)?,
                        last_seq: row.get::<_, i64>(2)?.try_into().unwrap_or(0),
                        alive: row.get(3)?,
                        alive_boot: row.get::<_, i64>(4)?.try_into().unwrap_or(0),
                        ended: row.get(5)?,
                    })
                },
            )
            .optional()
    }

    /// State left by the previous run, if it was of this boot.
    pub(super) fn previous_run(&self, previous: Option<&LastRun>) -> rusqlite::Result<PreviousRun> {
        let pods = self.pod_names(time::now(), boot_now())?;
        let Some(previous) = previous.filter(|previous| previous.boot_id == self.boot_id) else {
            return Ok(PreviousRun { pods, ..PreviousRun::default() });
        };
        let skipped = if previous.ended { 0 } else { RESERVE };
        Ok(PreviousRun {
            last_seq: previous.last_seq + skipped,
            alive: Some(previous.alive_boot),
            incidents: self.open_incidents()?,
            kept: Kept { gateways: self.kept("gateways")?, rbd_users: self.kept("rbd_users")? },
            episodes: self.last_episodes()?,
            realtime_offset_ns: previous.alive.saturating_sub(previous.alive_boot.cast_signed()),
            pods,
        })
    }

    fn kept<T: DeserializeOwned>(&self, name: &str) -> rusqlite::Result<Vec<T>> {
        let query = "SELECT json FROM kept WHERE name = ?1 AND boot_id = ?2";
        let json: Option<String> =
            self.connection.query_row(query, [name, &self.boot_id], |row| row.get(0)).optional()?;
        // Written by another version, perhaps.
        Ok(json.and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default())
    }

    /// Takes into the transaction what the next run is to know.
    /// Errors: when they cannot be written; then the transaction is lost, and the caller drops the writer.
    pub fn keep(&mut self, kept: &Kept) -> Result<(), StoreError> {
        self.begin()?;
        let gateways = self.keep_as("gateways", &kept.gateways);
        gateways.and_then(|()| self.keep_as("rbd_users", &kept.rbd_users)).map_err(failed("write"))
    }

    fn keep_as<T: Serialize>(&self, name: &str, entries: &[T]) -> rusqlite::Result<()> {
        let json = serde_json::to_string(entries).unwrap_or_default();
        self.connection
            .prepare_cached("INSERT OR REPLACE INTO kept (name, boot_id, json) VALUES (?1, ?2, ?3)")?
            .execute([name, &self.boot_id, &json])
            .map(drop)
    }

    /// Starts the run whose next event has this number.
    pub(super) fn begin_run(&mut self, previous: Option<&LastRun>, next_seq: u64) -> rusqlite::Result<()> {
        let newest: i64 =
            self.connection.query_row("SELECT coalesce(max(id), 0) FROM events", [], |row| row.get(0))?;
        let next = i64::try_from(next_seq).unwrap_or(i64::MAX / 2);
        // Numbers that go on where they ended keep their relation to ids; else ids go on behind the newest.
        self.base = previous
            .filter(|previous| previous.boot_id == self.boot_id && previous.base + next > newest)
            .map_or_else(|| (newest + 1 - next).max(0), |previous| previous.base);
        self.last_seq = next_seq.saturating_sub(1);
        let boot = i64::try_from(boot_now()).unwrap_or(i64::MAX);
        self.connection.execute(
            "INSERT INTO runs (boot_id, base, last_seq, started, alive, alive_boot, ended)
             VALUES (?1, ?2, ?3, ?4, ?4, ?5, 0)",
            params![self.boot_id, self.base, i64::try_from(self.last_seq).unwrap_or(0), time::now(), boot],
        )?;
        self.run = self.connection.last_insert_rowid();
        Ok(())
    }

    /// Closes the open incidents of a run that this one does not continue.
    pub(super) fn expire_incidents(
        &self,
        previous: Option<&LastRun>,
        stays: impl Fn(&Event) -> bool,
    ) -> rusqlite::Result<()> {
        let closed = previous.map_or_else(time::now, |previous| previous.alive);
        let gone = self.open_incidents()?.into_iter().filter(|event| !stays(event));
        gone.into_iter().try_for_each(|event| self.expire_incident(event, closed))
    }
}
