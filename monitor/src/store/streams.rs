//! Ids of events in order, merged from the ranges of the index that can hold them.

use std::collections::VecDeque;

use super::lookup::Range;
use rusqlite::{Connection, OptionalExtension as _, params};

/// Ids read from a range at once.
const CHUNK: i64 = 128;
/// Ranges that are merged at most; a container prefix of one digit can name thousands.
const MOST_RANGES: usize = 10_000;

/// From old to new, or from new to old.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Rising,
    Falling,
}

/// One range of the index: a key with a class.
struct Stream {
    key: i64,
    class: i64,
    read: VecDeque<i64>,
    /// Where reading goes on; `None` once the range is read.
    from: Option<i64>,
}

/// An id, and under which class it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) id: i64,
    pub(super) class: i64,
}

/// Merges ranges.
pub(super) struct Streams<'a> {
    connection: &'a Connection,
    order: Order,
    /// The id that ends it, inclusive.
    end: i64,
    streams: Vec<Stream>,
}

impl<'a> Streams<'a> {
    /// The ids from `first` to `last`, both inclusive, that stand in these ranges in a wanted class.
    pub(super) fn new(
        connection: &'a Connection,
        ranges: &[Range],
        wanted: impl Fn(i64) -> bool,
        (first, last): (i64, i64),
        order: Order,
    ) -> rusqlite::Result<Self> {
        let (from, end) = match order {
            Order::Rising => (first, last),
            Order::Falling => (last, first),
        };
        let mut streams = Vec::new();
        for range in ranges {
            each_class(connection, range, |key, class| {
                if wanted(class) {
                    streams.push(Stream { key, class, read: VecDeque::new(), from: Some(from) });
                }
                streams.len() < MOST_RANGES
            })?;
        }
        Ok(Self { connection, order, end, streams })
    }

    /// The next id; each comes once, however many ranges have it.
    pub(super) fn next(&mut self) -> rusqlite::Result<Option<Found>> {
        let mut best: Option<Found> = None;
        for stream in &mut self.streams {
            stream.fill(self.connection, self.order, self.end)?;
            let Some(id) = stream.read.front().copied() else { continue };
            let better = best.is_none_or(|best| match self.order {
                Order::Rising => id < best.id,
                Order::Falling => id > best.id,
            });
            if better {
                best = Some(Found { id, class: stream.class });
            }
        }
        if let Some(found) = best {
            for stream in &mut self.streams {
                if stream.read.front() == Some(&found.id) {
                    stream.read.pop_front();
                }
            }
        }
        self.streams.retain(|stream| !stream.read.is_empty() || stream.from.is_some());
        Ok(best)
    }
}

impl Stream {
    fn fill(&mut self, connection: &Connection, order: Order, end: i64) -> rusqlite::Result<()> {
        let Some(from) = self.from.filter(|_| self.read.is_empty()) else { return Ok(()) };
        let mut select = connection.prepare_cached(match order {
            Order::Rising => {
                "SELECT id FROM lookup WHERE key = ?1 AND class = ?2 AND id BETWEEN ?3 AND ?4
                 ORDER BY id LIMIT ?5"
            }
            Order::Falling => {
                "SELECT id FROM lookup WHERE key = ?1 AND class = ?2 AND id BETWEEN ?4 AND ?3
                 ORDER BY id DESC LIMIT ?5"
            }
        })?;
        let mut rows = select.query(params![self.key, self.class, from, end, CHUNK])?;
        while let Some(row) = rows.next()? {
            self.read.push_back(row.get(0)?);
        }
        let full = self.read.len() == usize::try_from(CHUNK).unwrap_or(0);
        self.from = self.read.back().filter(|_| full).map(|last| match order {
            Order::Rising => last + 1,
            Order::Falling => last - 1,
        });
        Ok(())
    }
}

/// Calls with each key and class in the range, until told to stop: one step in the index each.
fn each_class(
    connection: &Connection,
    range: &Range,
    mut visit: impl FnMut(i64, i64) -> bool,
) -> rusqlite::Result<()> {
    // Comparing both columns at once would seek by the first and then read on.
    let mut next_key = connection
        .prepare_cached("SELECT key FROM lookup WHERE key BETWEEN ?1 AND ?2 ORDER BY key LIMIT 1")?;
    let mut next_class = connection
        .prepare_cached("SELECT class FROM lookup WHERE key = ?1 AND class > ?2 ORDER BY class LIMIT 1")?;
    let (mut from, last) = (range.first, range.last);
    while let Some(key) = next_key.query_row([from, last], |row| row.get::<_, i64>(0)).optional()? {
        let mut class = -1;
        while let Some(next) = next_class.query_row([key, class], |row| row.get(0)).optional()? {
            if !visit(key, next) {
                return Ok(());
            }
            class = next;
        }
        if key == last {
            break;
        }
        from = key + 1;
    }
    Ok(())
}

/// Whether the event stands in one of these ranges too.
pub(super) fn stands_under(
    connection: &Connection,
    found: Found,
    ranges: &[Range],
) -> rusqlite::Result<bool> {
    let mut probe =
        connection.prepare_cached("SELECT 1 FROM lookup WHERE key = ?1 AND class = ?2 AND id = ?3")?;
    for range in ranges {
        if range.first == range.last {
            if probe.exists(params![range.first, found.class, found.id])? {
                return Ok(true);
            }
            continue;
        }
        let mut hit = false;
        each_class(connection, range, |key, class| {
            hit |= class == found.class && probe.exists(params![key, class, found.id]).unwrap_or(false);
            !hit
        })?;
        if hit {
            return Ok(true);
        }
    }
    Ok(false)
}
