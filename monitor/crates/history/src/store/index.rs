//! The index from names to events: written for a block of events at a time, read back as ids.
//!
//! An event has a dozen names, each at another place in the index: inserted one by one, each event would change a dozen
//! pages of the file. So events wait in their table, which a reader scans, until there are enough for a block; then
//! each name that occurs in the block gets one row with all ids.

use std::collections::BTreeMap;

use rusqlite::{Row, params};

use super::Writer;
use super::accounts::AccountId;

/// Most events that wait for the index.
const EVENTS: u64 = 1024;
/// From the first to the last event of a block, in nanoseconds: what is too old goes by blocks.
const SPAN_NS: i64 = 3_600 * 1_000_000_000;
/// An id under its key and class.
type Entry = (i64, i64, i64);

/// Events that are not in the index yet.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    events: u64,
    bytes: u64,
    /// Time of the first.
    begin: i64,
}

/// Keys of an event, sorted, from its row.
pub(super) fn keys<'a>(row: &'a Row<'_>, column: usize) -> rusqlite::Result<impl Iterator<Item = i64> + 'a> {
    let (keys, _) = row.get_ref(column)?.as_blob()?.as_chunks::<8>();
    Ok(keys.iter().map(|key| i64::from_le_bytes(*key)))
}

/// What an event takes, from its keys and the length of its JSON: its keys stand in the index, too.
pub(super) fn size(row: &Row<'_>, keys: usize, json: usize) -> rusqlite::Result<u64> {
    let keys = row.get_ref(keys)?.as_blob()?.len() as u64;
    Ok(2 * keys + u64::try_from(row.get::<_, i64>(json)?).unwrap_or(0))
}

impl Writer {
    /// Finds the events that the previous run did not index.
    pub(super) fn find_waiting(&mut self) -> rusqlite::Result<()> {
        let indexed = "SELECT coalesce(max(last), 0) FROM blocks";
        let waiting = "SELECT count(*), coalesce(sum(octet_length(json)), 0), coalesce(min(high), 0)
                       FROM events WHERE id > ?1";
        self.indexed = self.connection.query_row(indexed, [], |row| row.get(0))?;
        self.waiting = self.connection.query_row(waiting, [self.indexed], |row| {
            let number = |column| row.get::<_, i64>(column).map(|number| u64::try_from(number).unwrap_or(0));
            Ok(Waiting { events: number(0)?, bytes: number(1)?, begin: row.get(2)? })
        })?;
        Ok(())
    }

    /// Writes a block if an event of this time is not to wait with those before.
    pub(super) fn index_if_due(&mut self, high: i64) -> rusqlite::Result<()> {
        let Waiting { events, bytes, begin } = self.waiting;
        let is_due = events >= EVENTS || bytes >= self.limits.block_bytes() || high - begin > SPAN_NS;
        if events > 0 && is_due { self.index() } else { Ok(()) }
    }

    pub(super) fn wait(&mut self, high: i64, bytes: u64) {
        if self.waiting.events == 0 {
            self.waiting.begin = high;
        }
        self.waiting.events += 1;
        self.waiting.bytes += bytes;
    }

    /// Whether some of the waiting events are older than this time.
    pub(super) fn waits_since_before(&self, time: i64) -> bool {
        self.waiting.events > 0 && self.waiting.begin < time
    }

    /// Writes the waiting events as one block.
    pub(super) fn index(&mut self) -> rusqlite::Result<()> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut end = None;
        let mut shares: BTreeMap<AccountId, u64> = BTreeMap::new();
        {
            let mut select = self
                .connection
                .prepare_cached(
                    "SELECT id, high, class, keys, account, octet_length(json) FROM events WHERE id > ?1 ORDER BY id",
                )?;
            let mut rows = select.query([self.indexed])?;
            while let Some(row) = rows.next()? {
                let (id, class) = (row.get(0)?, row.get(2)?);
                end = Some((id, row.get::<_, i64>(1)?));
                *shares.entry(row.get(4)?).or_default() += size(row, 3, 5)?;
                entries.extend(keys(row, 3)?.map(|key| (key, class, id)));
            }
        }
        let Some((last, high)) = end else { return Ok(()) };
        entries.sort_unstable();
        let mut put = self
            .connection
            .prepare_cached("INSERT INTO lookup (key, class, last, ids) VALUES (?1, ?2, ?3, ?4)")?;
        let mut ids = Vec::new();
        for same in entries.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            ids.clear();
            encode(last, same.iter().map(|entry| entry.2), &mut ids);
            put.execute(params![same[0].0, same[0].1, last, ids])?;
        }
        self.connection
            .prepare_cached("INSERT INTO blocks (last, high) VALUES (?1, ?2)")?
            .execute(params![last, high])?;
        let mut put = self
            .connection
            .prepare_cached("INSERT INTO shares (account, last, bytes) VALUES (?1, ?2, ?3)")?;
        for (account, bytes) in shares {
            put.execute(params![account, last, i64::try_from(bytes).unwrap_or(i64::MAX)])?;
            self.accounts.add(account, bytes);
        }
        self.indexed = last;
        self.waiting = Waiting::default();
        self.accounts.forget_unused(&self.connection)
    }
}

/// Rising ids as their distances, from the last id of the block down; seven bits a byte.
pub(super) fn encode(last: i64, ids: impl DoubleEndedIterator<Item = i64>, out: &mut Vec<u8>) {
    let mut above = last;
    for id in ids.rev() {
        let mut distance = above.abs_diff(id);
        above = id;
        while distance > 0x7f {
            out.push((distance & 0x7f) as u8 | 0x80);
            distance >>= 7;
        }
        out.push((distance & 0x7f) as u8);
    }
}

/// The ids, descending. Invalid bytes give ids that do not exist.
pub(super) fn decode(last: i64, distances: &[u8]) -> impl Iterator<Item = i64> {
    let mut above = last;
    distances.split_inclusive(|byte| byte & 0x80 == 0).map(move |distance| {
        let bits = |sum: i64, byte: &u8| sum.wrapping_shl(7) | i64::from(byte & 0x7f);
        above = above.wrapping_sub(distance.iter().rev().fold(0, bits));
        above
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_were_written() {
        for ids in [
            vec![7],
            vec![1, 2, 3, 7],
            vec![0, 127, 128, 129, 16_383, 16_384, 1 << 40],
            vec![-5, 5],
            (1..=1024).map(|id| id * 3).collect(),
        ] {
            let last = ids[ids.len() - 1] + 9;
            let mut bytes = Vec::new();
            encode(last, ids.iter().copied(), &mut bytes);
            let mut read: Vec<i64> = decode(last, &bytes).collect();
            read.reverse();
            assert_eq!(read, ids);
        }
        assert_eq!(decode(9, &[]).count(), 0);
        assert_eq!(decode(9, &[0xff; 20]).count(), 1, "no panic");
    }

    #[test]
    fn neighbors_take_a_byte_each() {
        let mut bytes = Vec::new();
        encode(1000, 1..=1000, &mut bytes);
        assert_eq!(bytes.len(), 1000);
    }
}
