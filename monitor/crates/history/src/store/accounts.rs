//! Who the stored events are charged to, and how much of the store each has.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use kevtmon_event::Tenant;
use rusqlite::{Connection, OptionalExtension as _, params};

/// Accounts without events that are kept.
const SPARE: i64 = 64;
/// Accounts of their own of one priority: on a node where containers come and go each is one.
const MOST: i64 = 1024;
/// Accounts that all beyond them share.
const SHARED: u64 = 64;

/// Number of an account in this file.
pub(super) type AccountId = i64;

#[derive(Debug, Default)]
pub(super) struct Accounts {
    /// Those that have one of their own.
    ids: HashMap<Tenant, AccountId>,
    /// Bytes by which they are more or less than in the file.
    changes: BTreeMap<AccountId, i64>,
}

impl Accounts {
    /// The number of an account, which is written if it is new. Beyond a number of them, those that are new share some.
    pub(super) fn id(&mut self, connection: &Connection, tenant: &Tenant) -> rusqlite::Result<AccountId> {
        if let Some(id) = self.ids.get(tenant) {
            return Ok(*id);
        }
        let of_priority: i64 = connection
            .prepare_cached("SELECT count(*) FROM accounts WHERE standing = ?1")?
            .query_row([tenant.priority as i64], |row| row.get(0))?;
        if let Some(id) = find(connection, tenant)? {
            self.ids.insert(tenant.clone(), id);
            return Ok(id);
        }
        if of_priority < MOST {
            let id = create(connection, tenant)?;
            self.ids.insert(tenant.clone(), id);
            return Ok(id);
        }
        let tenant = shared(tenant);
        find(connection, &tenant)?.map_or_else(|| create(connection, &tenant), Ok)
    }

    pub(super) fn add(&mut self, id: AccountId, bytes: i64) {
        *self.changes.entry(id).or_default() += bytes;
    }

    /// Writes how much each has by now.
    pub(super) fn write(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let mut update =
            connection.prepare_cached("UPDATE accounts SET bytes = max(bytes + ?2, 0) WHERE account = ?1")?;
        std::mem::take(&mut self.changes)
            .into_iter()
            .try_for_each(|(id, change)| update.execute([id, change]).map(drop))
    }

    /// Forgets those without events, unless they are few.
    pub(super) fn forget_unused(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        self.write(connection)?;
        let unused =
            "DELETE FROM accounts WHERE bytes = 0 AND (SELECT count(*) FROM accounts WHERE bytes = 0) > ?1";
        if connection.prepare_cached(unused)?.execute([SPARE])? > 0 {
            self.ids.clear();
        }
        Ok(())
    }
}

/// Those that count at least half as much as the one that counts most, or all that have events.
pub(super) fn heaviest(connection: &Connection, or_any: bool) -> rusqlite::Result<Vec<AccountId>> {
    let select = "SELECT account FROM accounts WHERE bytes > 0
        AND (?1 OR bytes * weight >= (SELECT max(bytes * weight) FROM accounts) / 2)";
    connection.prepare_cached(select)?.query_map([or_any], |row| row.get(0))?.collect()
}

fn find(connection: &Connection, tenant: &Tenant) -> rusqlite::Result<Option<AccountId>> {
    connection
        .prepare_cached("SELECT account FROM accounts WHERE standing = ?1 AND name = ?2")?
        .query_row(params![tenant.priority as i64, &*tenant.name], |row| row.get(0))
        .optional()
}

fn create(connection: &Connection, tenant: &Tenant) -> rusqlite::Result<AccountId> {
    let weight = i64::try_from(tenant.priority.weight()).unwrap_or(i64::MAX);
    connection
        .prepare_cached("INSERT INTO accounts (standing, weight, name, bytes) VALUES (?1, ?2, ?3, 0)")?
        .execute(params![tenant.priority as i64, weight, &*tenant.name])?;
    Ok(connection.last_insert_rowid())
}

/// The account which this one shares with others.
fn shared(tenant: &Tenant) -> Tenant {
    let mut hasher = DefaultHasher::new();
    tenant.name.hash(&mut hasher);
    let account = format!("one of many, {}", hasher.finish() % SHARED).into();
    Tenant { priority: tenant.priority, name: account }
}
