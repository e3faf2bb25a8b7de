//! Removes events that are too old or too many, the oldest first, in small steps within the caller's transaction.

use std::collections::BTreeSet;

use rusqlite::{OptionalExtension as _, params};

use super::{StoreError, Writer, failed, index, time};

/// Most steps at once, each of which removes a block: a lowered limit is reached over several commits.
const STEPS: usize = 8;
/// Bytes of events after which the size is checked.
const TRIM_BYTES: u64 = 256 * 1024;
/// How often the age is checked, in nanoseconds.
const PRUNE_NS: i64 = 60 * 1_000_000_000;
/// Free pages at the end of the file that are released in one commit.
const VACUUM: u32 = 512;

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
        for _ in 0..STEPS {
            let (pages, free, size) = self.pages()?;
            let fits = (pages - free) * size <= self.limits.data_bytes();
            if fits || !self.forget(i64::MAX)? {
                return Ok(());
            }
        }
        Ok(())
    }

    fn prune(&mut self, now: i64) -> rusqlite::Result<()> {
        let age = i64::try_from(self.limits.max_age.as_nanos()).unwrap_or(i64::MAX);
        let before = now.saturating_sub(age);
        if self.waits_since_before(before) {
            self.index()?;
        }
        for _ in 0..STEPS {
            if !self.forget(before)? {
                self.forget_incidents(before)?;
                self.forget_pods(now, before)?;
                self.connection
                    .prepare_cached("DELETE FROM runs WHERE alive < ?1 AND run <> ?2")?
                    .execute(params![before, self.run])?;
                self.next_prune = now.saturating_add(PRUNE_NS);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Deletes the oldest block of events, if all of them happened before this time.
    pub(super) fn forget(&self, before: i64) -> rusqlite::Result<bool> {
        let oldest = self
            .connection
            .prepare_cached(
                "SELECT last FROM blocks WHERE last = (SELECT min(last) FROM blocks) AND high < ?1",
            )?
            .query_row([before], |row| row.get::<_, i64>(0))
            .optional()?;
        let Some(last) = oldest else { return Ok(false) };
        let mut entries = BTreeSet::new();
        {
            let mut select =
                self.connection.prepare_cached("SELECT class, keys FROM events WHERE id <= ?1")?;
            let mut rows = select.query([last])?;
            while let Some(row) = rows.next()? {
                let class: i64 = row.get(0)?;
                entries.extend(index::keys(row, 1)?.map(|key| (key, class)));
            }
        }
        let mut delete = self
            .connection
            .prepare_cached("DELETE FROM lookup WHERE key = ?1 AND class = ?2 AND last <= ?3")?;
        for (key, class) in entries {
            delete.execute(params![key, class, last])?;
        }
        for statement in [
            "DELETE FROM events WHERE id <= ?1",
            "DELETE FROM evidence WHERE event <= ?1",
            "DELETE FROM blocks WHERE last <= ?1",
        ] {
            self.connection.prepare_cached(statement)?.execute([last])?;
        }
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
