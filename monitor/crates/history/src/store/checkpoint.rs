//! Copies the write-ahead log into the file: the only time when the store waits for the disk.

use super::{StoreError, Writer, failed};

/// Bytes of a page in the log, with its header.
const FRAME: u64 = 4096 + 24;

/// State of the log after a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Log {
    /// It is short enough to wait.
    Short,
    /// It was copied and starts over.
    Copied,
    /// A reader in a long transaction needs its pages.
    Held,
}

impl Writer {
    /// Copies the log if it is long. Called between transactions.
    ///
    /// # Errors
    /// When it cannot be copied.
    pub fn checkpoint(&mut self) -> Result<Log, StoreError> {
        self.in_place.check_index()?;
        let pragma = |mode: &str| {
            self.connection
                .query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| {
                    Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
                })
                .map_err(failed("checkpoint"))
        };
        let bytes = |frames: i64| u64::try_from(frames).unwrap_or(0).saturating_mul(FRAME);
        // Copied pages still count until the next transaction restarts the log.
        let (frames, copied) = pragma("NOOP")?;
        if bytes(frames - copied.max(0)) < self.limits.checkpoint_bytes() {
            return Ok(Log::Short);
        }
        let (frames, copied) = pragma("PASSIVE")?;
        self.in_place.check_index()?;
        let long = self.limits.max_bytes / 8;
        match copied < frames && bytes(frames) > long {
            true => Ok(Log::Held),
            false => Ok(Log::Copied),
        }
    }

    /// Frees memory that a storm needed.
    pub fn shrink_memory(&self) {
        // Best effort.
        let _ = self.connection.execute_batch("PRAGMA shrink_memory");
    }
}
