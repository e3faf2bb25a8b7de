//! Who the stored events are charged to, and how much of the store each has.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};

use kevtmon_event::{Charge, Standing};
use kevtmon_types::shares::Shares;
use rusqlite::{Connection, params};

/// Accounts without events that are kept.
const SPARE: usize = 64;
/// Accounts of their own in one standing: on a node where containers come and go each is one, and all are in memory.
const MOST: usize = 1024;
/// Accounts that all beyond them share.
const SHARED: u64 = 64;

/// Number of an account in this file.
pub(super) type AccountId = i64;

/// All accounts of the file, and what the events of each that are in a block count.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    ids: BTreeMap<Charge, AccountId>,
    standings: BTreeMap<AccountId, Standing>,
    shares: Shares<AccountId>,
}

impl Accounts {
    /// Reads what the file has.
    pub(super) fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let mut accounts = Self::default();
        let mut select = connection.prepare("SELECT account, standing, name FROM accounts")?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            let (id, standing): (AccountId, u32) = (row.get(0)?, row.get(1)?);
            // Another version of the program may have more of them.
            let standing = Standing::ALL.get(standing as usize).copied().unwrap_or(Standing::Foreign);
            let account = row.get_ref(2)?.as_str()?.into();
            accounts.standings.insert(id, standing);
            accounts.ids.insert(Charge { standing, account }, id);
        }
        let mut select = connection.prepare("SELECT account, sum(bytes) FROM shares GROUP BY account")?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            accounts.add(row.get(0)?, row.get::<_, i64>(1)?.try_into().unwrap_or(0));
        }
        Ok(accounts)
    }

    /// The number of an account, which is written if it is new. Beyond a number of them, those that are new share some.
    pub(super) fn id(&mut self, connection: &Connection, charge: &Charge) -> rusqlite::Result<AccountId> {
        if let Some(id) = self.ids.get(charge) {
            return Ok(*id);
        }
        let of_standing = self.standings.values().filter(|standing| **standing == charge.standing).count();
        if of_standing < MOST {
            return self.create(connection, charge);
        }
        let charge = shared(charge);
        match self.ids.get(&charge) {
            Some(id) => Ok(*id),
            None => self.create(connection, &charge),
        }
    }

    fn create(&mut self, connection: &Connection, charge: &Charge) -> rusqlite::Result<AccountId> {
        connection
            .prepare_cached("INSERT INTO accounts (standing, name) VALUES (?1, ?2)")?
            .execute(params![charge.standing as i64, &*charge.account])?;
        let id = connection.last_insert_rowid();
        self.ids.insert(charge.clone(), id);
        self.standings.insert(id, charge.standing);
        Ok(id)
    }

    pub(super) fn add(&mut self, id: AccountId, bytes: u64) {
        self.shares.add(&id, bytes.saturating_mul(self.standing(id).weight()));
    }

    pub(super) fn remove(&mut self, id: AccountId, bytes: u64) {
        self.shares.remove(&id, bytes.saturating_mul(self.standing(id).weight()));
    }

    pub(super) fn standing(&self, id: AccountId) -> Standing {
        self.standings.get(&id).copied().unwrap_or(Standing::Foreign)
    }

    /// Those that count at least half as much as the one that counts most.
    pub(super) fn heaviest(&self) -> Vec<AccountId> {
        let least = self.shares.largest().map_or(0, |(_, most)| most / 2);
        self.shares.descending().take_while(|(_, size)| *size >= least).map(|(id, _)| *id).collect()
    }

    /// All that have events in a block.
    pub(super) fn all(&self) -> Vec<AccountId> {
        self.shares.descending().map(|(id, _)| *id).collect()
    }

    /// Forgets those without events; none may wait for the index.
    pub(super) fn forget_unused(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let used = self.shares.descending().count();
        if self.ids.len() <= used + SPARE {
            return Ok(());
        }
        let mut delete = connection.prepare_cached("DELETE FROM accounts WHERE account = ?1")?;
        let shares = &self.shares;
        for (_, id) in self.ids.extract_if(.., |_, id| shares.of(id) == 0) {
            self.standings.remove(&id);
            delete.execute([id])?;
        }
        Ok(())
    }
}

/// The account which this one shares with others.
fn shared(charge: &Charge) -> Charge {
    let mut hasher = DefaultHasher::new();
    charge.account.hash(&mut hasher);
    let account = format!("one of many, {}", hasher.finish() % SHARED).into();
    Charge { standing: charge.standing, account }
}
