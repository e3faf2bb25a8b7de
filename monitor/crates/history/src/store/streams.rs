//! Ids of events in order, merged from the ranges of the index that can hold them, and from the events that are
//! not in it yet.

use std::collections::VecDeque;

use rusqlite::{Connection, OptionalExtension as _, params};

use super::index::{self, decode};
use super::lookup::Range;

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
    /// Of one block.
    read: VecDeque<i64>,
    next: Next,
}

/// Where reading goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// At the block that holds this id, or would.
    At(i64),
    /// At the block after or before this one.
    Beyond(i64),
    /// There is nothing more.
    End,
}

/// Merges ranges.
pub(super) struct Streams<'a> {
    connection: &'a Connection,
    order: Order,
    /// Inclusive.
    first: i64,
    /// Inclusive.
    last: i64,
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
        let begin = match order {
            Order::Rising => first,
            Order::Falling => last,
        };
        let waiting = waiting(connection, ranges, &wanted, (first, last), order)?;
        // Stands under no key, and is never read on.
        let mut streams = vec![Stream { key: 0, class: 0, read: waiting, next: Next::End }];
        for range in ranges {
            each_class(connection, range, |key, class| {
                if wanted(class) {
                    streams.push(Stream { key, class, read: VecDeque::new(), next: Next::At(begin) });
                }
                streams.len() <= MOST_RANGES
            })?;
        }
        Ok(Self { connection, order, first, last, streams })
    }

    /// The next id; each comes once, however many ranges have it.
    pub(super) fn next(&mut self) -> rusqlite::Result<Option<i64>> {
        let mut best: Option<i64> = None;
        for stream in &mut self.streams {
            while stream.read.is_empty() && stream.next != Next::End {
                stream.fill(self.connection, self.order, (self.first, self.last))?;
            }
            let front = stream.read.front().copied();
            best = match self.order {
                Order::Rising => best.into_iter().chain(front).min(),
                Order::Falling => best.into_iter().chain(front).max(),
            };
        }
        if let Some(id) = best {
            for stream in &mut self.streams {
                if stream.read.front() == Some(&id) {
                    stream.read.pop_front();
                }
            }
        }
        self.streams.retain(|stream| !stream.read.is_empty() || stream.next != Next::End);
        Ok(best)
    }
}

impl Stream {
    /// Reads one block.
    fn fill(
        &mut self,
        connection: &Connection,
        order: Order,
        (first, end): (i64, i64),
    ) -> rusqlite::Result<()> {
        let (text, bound) = match (order, self.next) {
            (_, Next::End) => return Ok(()),
            (_, Next::At(id)) => (
                "SELECT last, ids FROM lookup WHERE key = ?1 AND class = ?2 AND last >= ?3 ORDER BY last LIMIT 1",
                id,
            ),
            (Order::Rising, Next::Beyond(last)) => (
                "SELECT last, ids FROM lookup WHERE key = ?1 AND class = ?2 AND last > ?3 ORDER BY last LIMIT 1",
                last,
            ),
            (Order::Falling, Next::Beyond(last)) => (
                "SELECT last, ids FROM lookup WHERE key = ?1 AND class = ?2 AND last < ?3
                 ORDER BY last DESC LIMIT 1",
                last,
            ),
        };
        let mut select = connection.prepare_cached(text)?;
        let mut rows = select.query(params![self.key, self.class, bound])?;
        let Some(row) = rows.next()? else {
            self.next = match (order, self.next) {
                // No block reaches that far; the ones below are still to be read.
                (Order::Falling, Next::At(id)) => Next::Beyond(id),
                _ => Next::End,
            };
            return Ok(());
        };
        let last = row.get(0)?;
        let ids = decode(last, row.get_ref(1)?.as_blob()?);
        let mut is_over = false;
        for id in ids {
            match order {
                Order::Rising if id > end => is_over = true,
                Order::Falling if id < first => is_over = true,
                Order::Rising if id >= first => self.read.push_front(id),
                Order::Falling if id <= end => self.read.push_back(id),
                Order::Rising | Order::Falling => {}
            }
        }
        self.next = if is_over { Next::End } else { Next::Beyond(last) };
        Ok(())
    }
}

/// What stands in these ranges and is not in the index.
fn waiting(
    connection: &Connection,
    ranges: &[Range],
    wanted: impl Fn(i64) -> bool,
    (first, last): (i64, i64),
    order: Order,
) -> rusqlite::Result<VecDeque<i64>> {
    let indexed: Option<i64> = connection.query_row("SELECT max(last) FROM blocks", [], |row| row.get(0))?;
    let first = indexed.map_or(first, |indexed| first.max(indexed.saturating_add(1)));
    let mut select = connection
        .prepare_cached("SELECT id, class, keys FROM events WHERE id BETWEEN ?1 AND ?2 ORDER BY id")?;
    let mut rows = select.query([first, last])?;
    let mut ids = VecDeque::new();
    while let Some(row) = rows.next()? {
        if wanted(row.get(1)?) && stands_under(index::keys(row, 2)?, ranges) {
            match order {
                Order::Rising => ids.push_back(row.get(0)?),
                Order::Falling => ids.push_front(row.get(0)?),
            }
        }
    }
    Ok(ids)
}

/// Whether an event with these keys stands in one of the ranges.
pub(super) fn stands_under(mut keys: impl Iterator<Item = i64>, ranges: &[Range]) -> bool {
    keys.any(|key| ranges.iter().any(|range| (range.first..=range.last).contains(&key)))
}

/// Calls with each key and class in the range until the callback stops it: one step in the index each.
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
