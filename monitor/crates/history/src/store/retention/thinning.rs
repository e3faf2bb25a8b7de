//! Removes some events of a block, with all that points to them.

use std::collections::{BTreeSet, HashMap, HashSet};

use kevtmon_event::Standing;
use rusqlite::params;

use crate::store::Writer;
use crate::store::accounts::AccountId;
use crate::store::index::{self, decode, encode};

/// Which events of a block go.
pub(super) struct Victims {
    /// Of these only; `None`: of everybody.
    pub(super) accounts: Option<HashSet<AccountId>>,
    /// Also what open incidents rest on.
    pub(super) evidence: bool,
}

/// What goes from a block.
#[derive(Default)]
struct Removed {
    events: BTreeSet<i64>,
    /// Under which keys and classes they stand in the index.
    entries: BTreeSet<(i64, i64)>,
    /// How many bytes of each account go.
    bytes: HashMap<AccountId, u64>,
    stays: bool,
}

impl Writer {
    /// Removes events from the block that ends with this one.
    pub(super) fn forget_in(&mut self, last: i64, victims: &Victims) -> rusqlite::Result<()> {
        let before: Option<i64> = self
            .connection
            .prepare_cached("SELECT max(last) FROM blocks WHERE last < ?1")?
            .query_row([last], |row| row.get(0))?;
        let first = before.map_or(i64::MIN, |before| before.saturating_add(1));
        let removed = self.choose((first, last), victims)?;
        if removed.stays {
            self.drop_from_index(last, &removed)?;
            let mut events = self.connection.prepare_cached("DELETE FROM events WHERE id = ?1")?;
            let mut evidence = self.connection.prepare_cached("DELETE FROM evidence WHERE event = ?1")?;
            for id in &removed.events {
                events.execute([id])?;
                evidence.execute([id])?;
            }
        } else {
            let mut delete = self
                .connection
                .prepare_cached("DELETE FROM lookup WHERE key = ?1 AND class = ?2 AND last = ?3")?;
            for (key, class) in &removed.entries {
                delete.execute([*key, *class, last])?;
            }
            for statement in [
                "DELETE FROM events WHERE id BETWEEN ?1 AND ?2",
                "DELETE FROM evidence WHERE event BETWEEN ?1 AND ?2",
                "DELETE FROM blocks WHERE last BETWEEN ?1 AND ?2",
            ] {
                self.connection.prepare_cached(statement)?.execute([first, last])?;
            }
        }
        self.diminish(last, &removed.bytes)
    }

    fn choose(&self, (first, last): (i64, i64), victims: &Victims) -> rusqlite::Result<Removed> {
        let kept: HashSet<i64> = match victims.evidence {
            true => HashSet::new(),
            false => self
                .connection
                .prepare_cached(
                    "SELECT event FROM evidence WHERE event BETWEEN ?1 AND ?2 AND EXISTS
                     (SELECT 1 FROM incidents WHERE id = incident AND open = 1)",
                )?
                .query_map([first, last], |row| row.get(0))?
                .collect::<rusqlite::Result<_>>()?,
        };
        let mut removed = Removed::default();
        let mut select = self.connection.prepare_cached(
            "SELECT id, class, keys, account, octet_length(json) FROM events WHERE id BETWEEN ?1 AND ?2",
        )?;
        let mut rows = select.query([first, last])?;
        while let Some(row) = rows.next()? {
            let (id, class, account): (i64, i64, AccountId) = (row.get(0)?, row.get(1)?, row.get(3)?);
            let is_chosen = victims.accounts.as_ref().is_none_or(|accounts| accounts.contains(&account));
            let is_kept = kept.contains(&id) && self.accounts.standing(account) != Standing::Foreign;
            if !is_chosen || is_kept {
                removed.stays = true;
                continue;
            }
            removed.entries.extend(index::keys(row, 2)?.map(|key| (key, class)));
            removed.events.insert(id);
            *removed.bytes.entry(account).or_default() += index::size(row, 2, 4)?;
        }
        Ok(removed)
    }

    fn drop_from_index(&self, last: i64, removed: &Removed) -> rusqlite::Result<()> {
        let mut select = self
            .connection
            .prepare_cached("SELECT ids FROM lookup WHERE key = ?1 AND class = ?2 AND last = ?3")?;
        let mut delete = self
            .connection
            .prepare_cached("DELETE FROM lookup WHERE key = ?1 AND class = ?2 AND last = ?3")?;
        let mut update = self
            .connection
            .prepare_cached("UPDATE lookup SET ids = ?4 WHERE key = ?1 AND class = ?2 AND last = ?3")?;
        let mut bytes = Vec::new();
        for (key, class) in &removed.entries {
            let mut rows = select.query([*key, *class, last])?;
            let Some(row) = rows.next()? else { continue };
            let ids = decode(last, row.get_ref(0)?.as_blob()?);
            let mut left: Vec<i64> = ids.filter(|id| !removed.events.contains(id)).collect();
            drop(rows);
            if left.is_empty() {
                delete.execute([*key, *class, last])?;
            } else {
                left.reverse();
                bytes.clear();
                encode(last, left.into_iter(), &mut bytes);
                update.execute(params![key, class, last, bytes])?;
            }
        }
        Ok(())
    }

    /// Takes what was removed off the shares.
    fn diminish(&mut self, last: i64, removed: &HashMap<AccountId, u64>) -> rusqlite::Result<()> {
        let mut update = self
            .connection
            .prepare_cached("UPDATE shares SET bytes = bytes - ?3 WHERE account = ?1 AND last = ?2")?;
        for (account, bytes) in removed {
            update.execute(params![account, last, i64::try_from(*bytes).unwrap_or(i64::MAX)])?;
            self.accounts.remove(*account, *bytes);
        }
        self.connection
            .prepare_cached("DELETE FROM shares WHERE last = ?1 AND bytes <= 0")?
            .execute([last])?;
        Ok(())
    }
}
