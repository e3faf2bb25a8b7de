//! Removes events that are too old or too many, in small steps within the caller's transaction.
//!
//! Where they are too many, the oldest ones of those who have most of the store go, block by block, so that nobody
//! displaces what others did. What an open incident rests on stays.

use std::collections::HashMap;

use thinning::Victims;

use super::accounts::AccountId;
use super::{StoreError, Writer, failed, time};

mod thinning;

/// Most steps at once, each of which removes events of one block: a lowered limit is reached over several commits.
const STEPS: usize = 8;
/// Bytes of events after which the size is checked.
const TRIM_BYTES: u64 = 256 * 1024;
/// How often the age is checked, in nanoseconds.
const PRUNE_NS: i64 = 60 * 1_000_000_000;
/// Free pages at the end of the file that are released in one commit.
const VACUUM: u32 = 512;

/// How far the search for events to remove has come.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The last block of an account in which only what stays is left.
    spent: HashMap<AccountId, i64>,
    /// The same of what is too old.
    pruned: Option<i64>,
}

impl Writer {
    pub(super) fn trim_if_due(&mut self) -> Result<(), StoreError> {
        if self.untrimmed_bytes < TRIM_BYTES {
            return Ok(());
        }
        self.trim().map_err(failed("retain"))
    }

    /// Removes what is due before a commit.
    pub(super) fn retain(&mut self) -> Result<(), StoreError> {
        let now = time::now();
        let result = (|| {
            if now >= self.next_prune {
                self.prune(now)?;
            }
            self.trim()?;
            self.give_back()
        })();
        result.map_err(failed("retain"))
    }

    fn trim(&mut self) -> rusqlite::Result<()> {
        self.untrimmed_bytes = 0;
        for step in 1..=STEPS {
            let (pages, free, size) = self.pages()?;
            if (pages - free) * size <= self.limits.data_bytes() {
                return Ok(());
            }
            let is_shortened = step < STEPS && self.forget_heaviest()?;
            // The limit holds, whatever there is.
            if !is_shortened && !self.forget_oldest_block()? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Removes the oldest events of those who have most, all from one block; false if there are none.
    fn forget_heaviest(&mut self) -> rusqlite::Result<bool> {
        for accounts in [self.accounts.heaviest(), self.accounts.all()] {
            let mut oldest: Option<i64> = None;
            for account in &accounts {
                let after = self.progress.spent.get(account).copied().unwrap_or(i64::MIN);
                let first: Option<i64> = self
                    .connection
                    .prepare_cached("SELECT min(last) FROM shares WHERE account = ?1 AND last > ?2")?
                    .query_row([*account, after], |row| row.get(0))?;
                oldest = oldest.into_iter().chain(first).min();
            }
            if let Some(last) = oldest {
                let victims = Victims { accounts: Some(accounts.iter().copied().collect()), evidence: false };
                self.forget_in(last, &victims)?;
                for account in accounts {
                    let spent = self.progress.spent.entry(account).or_insert(last);
                    *spent = last.max(*spent);
                }
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(super) fn forget_oldest_block(&mut self) -> rusqlite::Result<bool> {
        let oldest: Option<i64> =
            self.connection.query_row("SELECT min(last) FROM blocks", [], |row| row.get(0))?;
        let Some(last) = oldest else { return Ok(false) };
        self.forget_in(last, &Victims { accounts: None, evidence: true })?;
        Ok(true)
    }

    fn prune(&mut self, now: i64) -> rusqlite::Result<()> {
        let age = i64::try_from(self.limits.max_age.as_nanos()).unwrap_or(i64::MAX);
        let before = now.saturating_sub(age);
        if self.waits_since_before(before) {
            self.index()?;
        }
        for _ in 0..STEPS {
            if !self.forget_before(before)? {
                self.forget_incidents(before)?;
                self.forget_pods(now, before)?;
                self.connection
                    .prepare_cached("DELETE FROM runs WHERE alive < ?1 AND run <> ?2")?
                    .execute([before, self.run])?;
                self.next_prune = now.saturating_add(PRUNE_NS);
                // What stayed for an incident may have to go by now.
                self.progress = Progress::default();
                return Ok(());
            }
        }
        Ok(())
    }

    /// Deletes the events of the oldest block of which all happened before this time.
    fn forget_before(&mut self, before: i64) -> rusqlite::Result<bool> {
        let mut select = self
            .connection
            .prepare_cached("SELECT last FROM blocks WHERE last > ?1 AND high < ?2 ORDER BY last LIMIT 1")?;
        let mut rows = select.query([self.progress.pruned.unwrap_or(i64::MIN), before])?;
        let Some(last) = rows.next()?.map(|row| row.get(0)).transpose()? else { return Ok(false) };
        drop(rows);
        drop(select);
        self.forget_in(last, &Victims { accounts: None, evidence: false })?;
        self.progress.pruned = Some(last);
        Ok(true)
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
    #[must_use]
    pub fn is_too_big(&self) -> bool {
        self.pages().is_ok_and(|(pages, _free, size)| pages * size > self.limits.data_bytes())
    }
}
