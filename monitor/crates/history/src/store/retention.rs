//! Removes events that are too old or too many, in small steps within the caller's transaction.
//!
//! Where they are too many, the oldest ones of those who have most of the store go, so that nobody displaces what others
//! did. What an open incident rests on stays.

use kevtmon_event::Priority;
use kevtmon_observation::BootNs;
use kevtmon_types::clock::{SECOND, boot_now};
use rusqlite::params;

use super::accounts::{self, AccountId};
use super::lookup::{self, ALL};
use super::writer::{Entry, size};
use super::{StoreError, Writer, failed, time};

/// Most events that are looked at in one step.
const BATCH: usize = 256;
/// Most accounts that they are of.
const LOSERS: usize = 32;
/// So many of the newest events stay: an incident may be about to rest on them.
const FRESH: i64 = 32;
/// Most steps at once: a lowered limit is reached over several commits.
const STEPS: usize = 16;
/// How often the age is checked, in nanoseconds of the boot clock: the other one may be set back.
const PRUNE_NS: BootNs = 60 * SECOND;
/// Free pages at the end of the file that are released in one commit.
const VACUUM: u32 = 512;

const CANDIDATES: &str = "
    SELECT l.time, l.id, l.class, e.account, e.names, octet_length(e.json),
        (SELECT standing FROM accounts a WHERE a.account = e.account) <> ?7 AND
        EXISTS (SELECT 1 FROM evidence v CROSS JOIN incidents i ON i.id = v.incident
            WHERE v.event = l.id AND i.open = 1)
    FROM lookup l CROSS JOIN events e ON e.id = l.id
    WHERE l.key = ?1 AND (l.time, l.id) > (?2, ?3) AND l.time < ?4 AND l.id <= ?5
    ORDER BY l.time, l.id LIMIT ?6";

/// Place of an event under a key: its time and its id.
pub(super) type Place = (i64, i64);

const BEGIN: Place = (i64::MIN, 0);

/// Which events of a key go.
#[derive(Debug, Clone, Copy)]
pub(super) struct Victims {
    /// Before this time.
    pub(super) before: i64,
    /// Up to this id.
    pub(super) last: i64,
    /// Also what open incidents rest on.
    pub(super) with_evidence: bool,
    /// At most so many.
    pub(super) most: usize,
}

impl Victims {
    pub(super) const ALL: Self = Self { before: i64::MAX, last: i64::MAX, with_evidence: false, most: BATCH };
}

impl Writer {
    pub(super) fn trim_if_due(&mut self) -> Result<(), StoreError> {
        match self.untrimmed_bytes < self.limits.trim_bytes() {
            true => Ok(()),
            false => self.trim().map_err(failed("retain")),
        }
    }

    /// Removes what is due before a commit.
    pub(super) fn retain(&mut self) -> Result<(), StoreError> {
        self.retain_at(time::now(), boot_now())
    }

    /// The same of this moment on two clocks.
    pub(super) fn retain_at(&mut self, now: i64, boot: BootNs) -> Result<(), StoreError> {
        let mut retain = || {
            self.index()?;
            if boot >= self.next_prune {
                self.prune(now, boot)?;
            }
            self.trim()?;
            self.give_back()
        };
        retain().map_err(failed("retain"))
    }

    fn trim(&mut self) -> rusqlite::Result<()> {
        self.untrimmed_bytes = 0;
        self.index()?;
        for _ in 0..STEPS {
            let (pages, free, size) = self.pages()?;
            if (pages - free) * size <= self.limits.data_bytes() {
                break;
            }
            // The limit holds, whatever there is.
            let anything = Victims { with_evidence: true, ..Victims::ALL };
            if !self.forget_heaviest()? && !self.forget(ALL, anything)? {
                break;
            }
        }
        Ok(())
    }

    /// Removes the oldest events of those who have most; false if there are none.
    fn forget_heaviest(&mut self) -> rusqlite::Result<bool> {
        let last = self.id(self.last_seq).saturating_sub(FRESH);
        self.accounts.write(&self.connection)?;
        for or_any in [false, true] {
            let losers = self.oldest(&accounts::heaviest(&self.connection, or_any)?, last)?;
            for key in &losers {
                self.forget(*key, Victims { last, most: BATCH / losers.len(), ..Victims::ALL })?;
            }
            if !losers.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Keys of those accounts that have the oldest events which were not looked at yet.
    fn oldest(&self, accounts: &[AccountId], last: i64) -> rusqlite::Result<Vec<i64>> {
        let mut select = self.connection.prepare_cached(
            "SELECT time, id FROM lookup WHERE key = ?1 AND (time, id) > (?2, ?3) AND id <= ?4
             ORDER BY time, id LIMIT 1",
        )?;
        let mut oldest: Vec<(Place, i64)> = Vec::new();
        for account in accounts {
            let key = lookup::of_account(*account);
            let (time, id) = self.seen.get(&key).copied().unwrap_or(BEGIN);
            let mut rows = select.query([key, time, id, last])?;
            if let Some(row) = rows.next()? {
                oldest.push(((row.get(0)?, row.get(1)?), key));
            }
        }
        oldest.sort_unstable();
        Ok(oldest.into_iter().take(LOSERS).map(|(_, key)| key).collect())
    }

    /// Removes the next events under a key, the oldest first; false if there are none.
    pub(super) fn forget(&mut self, key: i64, which: Victims) -> rusqlite::Result<bool> {
        let Victims { before, last, with_evidence, most } = which;
        let (time, id) = self.seen.get(&key).copied().filter(|_| !with_evidence).unwrap_or(BEGIN);
        let (mut entries, mut victims): (Vec<Entry>, Vec<i64>) = (Vec::new(), Vec::new());
        let (mut end, mut freed, enough) = (None, 0, self.limits.data_bytes() / 32);
        let mut select = self.connection.prepare_cached(CANDIDATES)?;
        let most = i64::try_from(most).unwrap_or(1);
        let mut rows = select.query(params![key, time, id, before, last, most, Priority::Foreign as i64])?;
        while freed < enough
            && let Some(row) = rows.next()?
        {
            let (time, id, class, account) = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
            end = Some((time, id));
            if row.get(6)? && !with_evidence {
                continue;
            }
            let names = row.get_ref(4)?.as_blob()?;
            let bytes = size(names, row.get(5)?);
            freed += bytes.unsigned_abs();
            self.accounts.add(account, -bytes);
            let keys = lookup::keys(class, account, lookup::from_bytes(names));
            entries.extend(keys.map(|key| (key, time, id, class)));
            victims.push(id);
        }
        drop(rows);
        drop(select);
        let Some(end) = end else { return Ok(false) };
        if !with_evidence {
            self.seen.insert(key, end);
        }
        self.delete(entries, &victims)?;
        Ok(true)
    }

    fn delete(&self, mut entries: Vec<Entry>, victims: &[i64]) -> rusqlite::Result<()> {
        // Neighbors in the index come one after the other.
        entries.sort_unstable();
        let mut delete =
            self.connection.prepare_cached("DELETE FROM lookup WHERE key = ?1 AND time = ?2 AND id = ?3")?;
        for (key, time, id, _) in entries {
            delete.execute([key, time, id])?;
        }
        let mut events = self.connection.prepare_cached("DELETE FROM events WHERE id = ?1")?;
        let mut evidence = self.connection.prepare_cached("DELETE FROM evidence WHERE event = ?1")?;
        for id in victims {
            events.execute([id])?;
            evidence.execute([id])?;
        }
        Ok(())
    }

    fn prune(&mut self, now: i64, boot: BootNs) -> rusqlite::Result<()> {
        let before = now.saturating_sub(i64::try_from(self.limits.max_age.as_nanos()).unwrap_or(i64::MAX));
        for _ in 0..STEPS {
            if !self.forget(ALL, Victims { before, ..Victims::ALL })? {
                self.forget_incidents(before)?;
                self.forget_pods(now, before)?;
                self.connection
                    .prepare_cached("DELETE FROM runs WHERE alive < ?1 AND run <> ?2")?
                    .execute([before, self.run])?;
                self.accounts.forget_unused(&self.connection)?;
                self.next_prune = boot.saturating_add(PRUNE_NS);
                // What stayed for an incident may have to go by now.
                self.seen.clear();
                break;
            }
        }
        Ok(())
    }

    /// Truncates a file that is larger than its limit.
    fn give_back(&self) -> rusqlite::Result<()> {
        let (pages, free, size) = self.pages()?;
        if free == 0 || pages * size <= self.limits.data_bytes() {
            return Ok(());
        }
        let mut vacuum = self.connection.prepare(&format!("PRAGMA incremental_vacuum({VACUUM})"))?;
        let mut rows = vacuum.query([])?;
        while rows.next()?.is_some() {}
        Ok(())
    }

    /// Pages, free ones among them, and bytes of each.
    fn pages(&self) -> rusqlite::Result<(u64, u64, u64)> {
        let number = |pragma| {
            self.connection
                .pragma_query_value(None, pragma, |row| row.get::<_, i64>(0))
                .map(|value| u64::try_from(value).unwrap_or(0))
        };
        Ok((number("page_count")?, number("freelist_count")?, number("page_size")?))
    }

    /// Whether the file is still larger than its limit.
    pub fn is_too_big(&self) -> bool {
        self.pages().is_ok_and(|(pages, _free, size)| pages * size > self.limits.data_bytes())
    }
}
