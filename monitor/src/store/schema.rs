//! The tables, and the migrations from older schemas.
//!
//! An event is one row with its full JSON. Whatever it can be found by is a number in `lookup`, together
//! with its class (kind and severity) and the block of events that it is in: so any subject, kind and severity,
//! alone or combined, is one range of one index, already in order.

use rusqlite::{Connection, Transaction};

/// Marks a file as ours (`application_id`): "kevt".
pub(super) const APPLICATION: i32 = 0x6b65_7674;

/// A migration from a schema to the next; runs in a transaction of its own.
pub(super) type Step = fn(&Transaction<'_>) -> rusqlite::Result<()>;

/// Step `n` leads from schema `n` to schema `n + 1`; 0 is an empty file.
pub(super) const STEPS: &[Step] =
    &[create, keep_episodes, keep_gateways, charge_events, charge_incidents, keep_rbd_users];

/// The schema that this program writes.
pub const VERSION: u32 = 6;
const _: () = assert!(STEPS.len() == VERSION as usize);

fn create(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.pragma_update(None, "application_id", APPLICATION)?;
    transaction.execute_batch(
        "
        -- One row per start of the daemon. The id of an event is base + seq.
        CREATE TABLE runs (
            run        INTEGER PRIMARY KEY,
            boot_id    TEXT NOT NULL,
            base       INTEGER NOT NULL,
            last_seq   INTEGER NOT NULL,
            started    INTEGER NOT NULL, -- ns since the epoch
            alive      INTEGER NOT NULL, -- ns since the epoch
            alive_boot INTEGER NOT NULL, -- the same moment on the boot clock, ns
            ended      INTEGER NOT NULL  -- 1 when it stopped in good order
        );
        CREATE TABLE kinds (
            kind INTEGER PRIMARY KEY,
            name TEXT NOT NULL UNIQUE
        );
        CREATE TABLE events (
            id    INTEGER PRIMARY KEY,
            seq   INTEGER NOT NULL,
            time  INTEGER NOT NULL, -- ns since the epoch
            high  INTEGER NOT NULL, -- newest time up to this row: rises with id, so it can be searched
            class INTEGER NOT NULL, -- kind * 8 + severity
            keys  BLOB NOT NULL,    -- what it stands under in lookup, sorted, 8 bytes each, little-endian
            json  TEXT NOT NULL
        );
        -- Events in a row that are in lookup; the ones after the last block are not yet.
        CREATE TABLE blocks (
            last INTEGER PRIMARY KEY, -- id of its last event
            high INTEGER NOT NULL     -- of the same
        );
        CREATE TABLE lookup (
            key   INTEGER NOT NULL,
            class INTEGER NOT NULL,
            last  INTEGER NOT NULL, -- of the block
            ids   BLOB NOT NULL,    -- distance of the newest from last, of each other one from the next; LEB128
            PRIMARY KEY (key, class, last)
        ) WITHOUT ROWID;
        -- Which incidents rest on an event.
        CREATE TABLE evidence (
            event    INTEGER NOT NULL, -- its id
            incident TEXT NOT NULL,
            PRIMARY KEY (event, incident)
        ) WITHOUT ROWID;
        CREATE TABLE incidents (
            id        TEXT NOT NULL UNIQUE,
            kind      TEXT NOT NULL,
            severity  INTEGER NOT NULL,
            open      INTEGER NOT NULL,
            opened    INTEGER NOT NULL, -- ns since the epoch
            last_seen INTEGER NOT NULL,
            closed    INTEGER,
            boot_id   TEXT NOT NULL,
            json      TEXT NOT NULL     -- its newest event
        );
        CREATE INDEX incidents_by_time ON incidents (open, last_seen);
        CREATE TABLE pods (
            uid       TEXT PRIMARY KEY,
            namespace TEXT NOT NULL,
            name      TEXT NOT NULL,
            ips       TEXT NOT NULL,    -- JSON list
            last_seen INTEGER NOT NULL, -- ns since the epoch
            gone      INTEGER           -- when a container of it was removed and none appeared since
        ) WITHOUT ROWID;
        -- lag: how far, at most, the time of an event was behind an earlier row's, ns.
        CREATE TABLE meta (
            name  TEXT PRIMARY KEY,
            value INTEGER NOT NULL
        ) WITHOUT ROWID;
        INSERT INTO meta VALUES ('lag', 0);
        ",
    )
}

/// An incident that opened again overwrote its earlier episode: now each has a row.
fn keep_episodes(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute_batch(
        "
        CREATE TABLE episodes (
            id        TEXT NOT NULL,
            kind      TEXT NOT NULL,
            severity  INTEGER NOT NULL,
            open      INTEGER NOT NULL,
            opened    INTEGER NOT NULL, -- ns since the epoch
            last_seen INTEGER NOT NULL,
            closed    INTEGER,
            boot_id   TEXT NOT NULL,
            json      TEXT NOT NULL,    -- its newest event
            episode   INTEGER NOT NULL,
            UNIQUE (id, opened)
        );
        INSERT INTO episodes
            SELECT id, kind, severity, open, opened, last_seen, closed, boot_id, json, 1 FROM incidents;
        DROP TABLE incidents;
        ALTER TABLE episodes RENAME TO incidents;
        CREATE INDEX incidents_by_time ON incidents (open, last_seen);
        ",
    )
}

/// The static neighbor entries of gateways as the last run saw them: what is missing at the next start was removed
/// meanwhile.
fn keep_gateways(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute_batch(
        "
        CREATE TABLE gateways (
            only    INTEGER PRIMARY KEY, -- one row
            boot_id TEXT NOT NULL,
            json    TEXT NOT NULL
        );
        ",
    )
}

/// Who caused an event, so that nobody's events displace those of others. Of older ones that is not known.
fn charge_events(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute_batch(
        "
        CREATE TABLE accounts (
            account  INTEGER PRIMARY KEY,
            standing INTEGER NOT NULL, -- how much its events matter; 0 the most
            name     TEXT NOT NULL
        );
        INSERT INTO accounts VALUES (0, 2, '');
        ALTER TABLE events ADD COLUMN account INTEGER NOT NULL DEFAULT 0;
        -- How much of a block is whose.
        CREATE TABLE shares (
            account INTEGER NOT NULL,
            last    INTEGER NOT NULL, -- of the block
            bytes   INTEGER NOT NULL,
            PRIMARY KEY (account, last)
        ) WITHOUT ROWID;
        CREATE INDEX shares_by_block ON shares (last);
        INSERT INTO shares
            SELECT 0, last, (
                SELECT coalesce(sum(octet_length(json) + 2 * length(keys)), 0) FROM events
                WHERE id <= block.last AND id > coalesce(
                    (SELECT max(last) FROM blocks WHERE last < block.last), -9223372036854775808)
            ) FROM blocks AS block;
        ",
    )
}

/// Whose an incident is, so that the closed ones of one user displace none of another's. Of older ones users are not told
/// apart.
fn charge_incidents(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute_batch(
        "
        ALTER TABLE incidents ADD COLUMN account TEXT NOT NULL DEFAULT '';
        UPDATE incidents SET account = coalesce(
            -- Whoever claims to be of a pod takes none of its places.
            iif(json_extract(json, '$.target.pod.claimed'), NULL, json_extract(json, '$.target.pod.uid')),
            json_extract(json, '$.target.container.id'),
            json_extract(json, '$.target.userns'), json_extract(json, '$.target.netns_name'), '')
        WHERE json_valid(json);
        ",
    )
}

/// Which pods used RBD images that are mapped, as the last run saw them.
fn keep_rbd_users(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute_batch(
        "
        CREATE TABLE rbd_users (
            only    INTEGER PRIMARY KEY, -- one row
            boot_id TEXT NOT NULL,
            json    TEXT NOT NULL
        );
        ",
    )
}

/// The schema of an open file.
pub(super) fn version(connection: &Connection) -> rusqlite::Result<u32> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Runs the migrations that are missing, each as a whole or not at all.
pub(super) fn migrate(connection: &mut Connection, steps: &[Step]) -> rusqlite::Result<()> {
    let from = version(connection)?;
    for (number, step) in (1_u32..).zip(steps).skip(from as usize) {
        let transaction = connection.transaction()?;
        step(&transaction)?;
        transaction.pragma_update(None, "user_version", number)?;
        transaction.commit()?;
        if from > 0 {
            tracing::info!(schema = number, "migrated the event store to a newer schema");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn older(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        transaction.execute_batch("CREATE TABLE events (seq INTEGER, json TEXT)")
    }

    fn with_time(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        transaction.execute_batch(
            "ALTER TABLE events ADD COLUMN time TEXT;
             UPDATE events SET time = json_extract(json, '$.time')",
        )
    }

    fn failing(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        transaction.execute_batch("DROP TABLE events; CREATE TABLE events (x); SELECT nonsense")
    }

    fn old_file() -> (tempfile::TempDir, Connection) {
        let dir = tempfile::tempdir().unwrap();
        let mut connection = Connection::open(dir.path().join("old.db")).unwrap();
        migrate(&mut connection, &[older]).unwrap();
        connection.execute(r#"INSERT INTO events VALUES (7, '{"time":"then"}')"#, []).unwrap();
        (dir, connection)
    }

    fn rows(connection: &Connection, columns: &str) -> String {
        connection
            .query_row(&format!("SELECT group_concat({columns}) FROM events"), [], |row| row.get(0))
            .unwrap()
    }

    #[test]
    fn an_older_file_is_taken_forward_with_what_it_holds() {
        let (_dir, mut connection) = old_file();
        assert_eq!(version(&connection).unwrap(), 1);
        migrate(&mut connection, &[older, with_time]).unwrap();
        assert_eq!(version(&connection).unwrap(), 2);
        assert_eq!(rows(&connection, "seq || time"), "7then");
        migrate(&mut connection, &[older, with_time]).unwrap();
        assert_eq!(rows(&connection, "seq || time"), "7then", "taken once only");
    }

    #[test]
    fn a_step_that_fails_leaves_the_file_as_it_was() {
        let (_dir, mut connection) = old_file();
        migrate(&mut connection, &[older, failing]).unwrap_err();
        assert_eq!(version(&connection).unwrap(), 1);
        assert_eq!(rows(&connection, "seq"), "7");
        migrate(&mut connection, &[older, with_time]).unwrap();
        assert_eq!(rows(&connection, "time"), "then");
    }

    #[test]
    fn the_incidents_of_an_older_file_are_first_episodes() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection, &STEPS[..1]).unwrap();
        let put = "INSERT INTO incidents VALUES ('a', 'volume-busy', 3, 0, 5, 6, 7, 'boot', '{}')";
        connection.execute(put, []).unwrap();
        migrate(&mut connection, STEPS).unwrap();
        let read = "SELECT id || opened || closed || boot_id || json || episode FROM incidents";
        let row: String = connection.query_row(read, [], |row| row.get(0)).unwrap();
        assert_eq!(row, "a57boot{}1");
    }

    #[test]
    fn events_of_an_older_file_are_nobodys_and_all_counted() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection, &STEPS[..3]).unwrap();
        let put = "INSERT INTO events VALUES (?1, ?1, 0, 0, 0, x'0000000000000000', 'four')";
        for id in 1..=5 {
            connection.execute(put, [id]).unwrap();
        }
        connection.execute_batch("INSERT INTO blocks VALUES (2, 0), (4, 0)").unwrap();
        migrate(&mut connection, STEPS).unwrap();
        let read = "SELECT group_concat(account || ':' || last || ':' || bytes) FROM shares ORDER BY last";
        let shares: String = connection.query_row(read, [], |row| row.get(0)).unwrap();
        assert_eq!(shares, "0:2:40,0:4:40");
        let accounts = "SELECT count(*) FROM events JOIN accounts USING (account) WHERE standing = 2";
        let count: i64 = connection.query_row(accounts, [], |row| row.get(0)).unwrap();
        assert_eq!(count, 5);
    }

    #[test]
    fn an_empty_file_gets_every_table() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection, STEPS).unwrap();
        assert_eq!(version(&connection).unwrap(), VERSION);
        for table in ["runs", "kinds", "events", "blocks", "lookup", "evidence", "incidents", "pods", "meta"]
        {
            connection.prepare(&format!("SELECT * FROM {table}")).unwrap();
        }
    }
}
